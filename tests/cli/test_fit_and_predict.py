"""The work behind the commands: fitting, testing, predicting and looking inside, from files to files."""

import csv
import io
import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split

import setwise
from setwise.cli import fit as practice
from setwise.cli import main as cli
from setwise.cli import models
from setwise.cli import predict as using
from setwise.cli.fit import choose_task, fit_model
from setwise.cli.predict import export_file, inspect_file, predict_file
from setwise.cli.tables import TextTable
from setwise.estimators.batches import TrainingBatches
from setwise.estimators.classifier import SetClassifier
from setwise.estimators.load import load
from setwise.estimators.regressor import SetRegressor
from setwise.io.readers import LabelledSets, read_sets
from setwise.sets import Sets
from tests.cli.test_main import setwise as command
from tests.io.test_bags import exactly

SMALL = {"max_epochs": 2, "layers": (8,), "hidden": (8, 8), "graph": "latent"}


def table(path: Path, sets: int = 24, **columns: Callable[[int, np.ndarray], Any]) -> Path:
    """Sets of three to six elements with two features; a label each, by default whether the first is high."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(sets):
        x = rng.normal(size=(3 + i % 4, 2)) + 3 * (i % 2)
        told = columns or {"label": lambda i, _: ("low", "[high]")[i % 2]}
        named = {name: value(i, x) for name, value in told.items()}
        rows += [{"set": f"s{i}", "f": a, "g": b, **named} for a, b in x]
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    return table(tmp_path / "cells.csv")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("fitted")
    fit_model(table(folder / "cells.csv"), folder / "model", folds=0, settings=SMALL | {"max_epochs": 15})
    return (folder / "model").read_bytes()


@pytest.fixture
def model(tmp_path: Path, fitted: bytes) -> Path:
    (tmp_path / "model").write_bytes(fitted)
    return tmp_path / "model"


# Fitting


def test_what_is_reported_is_what_scikit_learn_would_find(tmp_path: Path, cells: Path) -> None:
    out = tmp_path / "new" / "model.safetensors"
    settings = SMALL | {"max_epochs": 8, "lr": 0.01}
    report = fit_model(cells, out, folds=3, seed=5, settings=settings)
    data = read_sets(cells)
    assert data.labels is not None
    accuracy, curve = [], []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=5).split(data.sets.sizes, data.labels):
        estimator = SetClassifier(**settings, random_state=5).fit(data.sets[train], data.labels[train])
        chance = estimator.predict_proba(data.sets[test])[:, 1]
        accuracy.append(estimator.score(data.sets[test], data.labels[test]))
        curve.append(roc_auc_score(data.labels[test] == estimator.classes_[1], chance))
    assert [score.name for score in report.scores] == ["accuracy", "ROC AUC"]
    assert report.scores[0].folds == pytest.approx(accuracy)
    assert report.scores[1].folds == pytest.approx(curve)
    assert min(accuracy) < max(accuracy)
    assert report.scores[0].mean == pytest.approx(np.mean(accuracy))
    assert report.scores[0].error == pytest.approx(np.std(accuracy, ddof=1) / math.sqrt(3))
    assert [score.trivial for score in report.scores] == [0.5, 0.5]
    assert (report.task, report.why, report.estimator) == (
        "classify",
        "the labels are strings",
        "SetClassifier",
    )
    assert (report.sets, report.elements, report.features, report.sizes) == (24, 108, 2, (3, 4, 6))
    assert report.classes == {"[high]": 12, "low": 12}
    assert report.notes == ()

    whole = SetClassifier(**settings, random_state=5).fit(data.sets, data.labels)
    assert np.array_equal(load(out).predict_proba(data.sets), whole.predict_proba(data.sets))
    assert {path.name for path in out.parent.iterdir()} == {out.name, f"{out.name}.report.json"}
    found = json.loads((out.parent / f"{out.name}.report.json").read_text())
    assert found == json.loads(json.dumps(asdict(report)))
    assert found["config"]["seed"] == 5
    assert found["config"]["settings"]["layers"] == [8]
    assert found["versions"]["setwise"] == setwise.__version__


def test_numbers(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", label=lambda i, x: x.mean() + i / 100)
    report = fit_model(path, tmp_path / "m", folds=2, settings=SMALL | {"max_epochs": 8})
    data = read_sets(path)
    assert data.labels is not None
    scores, errors, guesses = [], [], []
    for train, test in StratifiedKFold(2, shuffle=True, random_state=0).split(np.zeros(24), np.zeros(24)):
        estimator = SetRegressor(**SMALL | {"max_epochs": 8}, random_state=0)
        said = estimator.fit(data.sets[train], data.labels[train]).predict(data.sets[test])
        scores.append(r2_score(data.labels[test], said))
        errors.append(np.abs(data.labels[test] - said).mean())
        guesses.append(np.abs(data.labels[test] - data.labels[train].mean()).mean())
    assert (report.task, report.estimator) == ("regress", "SetRegressor")
    assert [score.name for score in report.scores] == ["R²", "mean absolute error"]
    assert report.scores[0].folds == pytest.approx(scores)
    assert report.scores[1].folds == pytest.approx(errors)
    assert report.scores[1].trivial == pytest.approx(np.mean(guesses))
    assert report.scores[0].trivial < 0
    assert report.classes == {}


def test_counts_and_several_labels(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", n=lambda i, x: len(x), u=lambda i, _: i % 2, v=lambda i, _: i // 12)
    report = fit_model(
        path, tmp_path / "m", task="count", folds=0, label_column="n", features=["f"], settings=SMALL
    )
    estimator = load(tmp_path / "m")
    assert (report.why, estimator.loss) == ("chosen by the user", "poisson")
    assert list(estimator.feature_names_in_) == ["f"]
    both = fit_model(path, tmp_path / "n", label_column=("u", "v"), features=["f"], folds=2, settings=SMALL)
    assert both.why == "there are 2 labels per set, all 0 or 1"
    assert [score.name for score in both.scores] == ["accuracy", "accuracy of single labels"]
    labels = read_sets(path, label_column=("u", "v"), features=["f"]).labels
    right = []
    for train, test in StratifiedKFold(2, shuffle=True, random_state=0).split(np.zeros(24), np.zeros(24)):
        values, counts = np.unique(labels[train], axis=0, return_counts=True)
        right.append(labels[test] == values[counts.argmax()])
    assert both.scores[0].trivial == pytest.approx(np.concatenate(right).all(1).mean())
    assert both.scores[1].trivial == pytest.approx(np.concatenate(right).mean())


def test_sets_held_out(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", sets=80, label=lambda i, _: int(i % 4 == 0))
    report = fit_model(path, tmp_path / "m", holdout=0.5, seed=1, settings=SMALL)
    data = read_sets(path)
    assert data.labels is not None
    train, test = train_test_split(np.arange(80), test_size=0.5, random_state=1, stratify=data.labels)
    estimator = SetClassifier(**SMALL, random_state=1).fit(data.sets[train], data.labels[train])
    share = estimator.score(data.sets[test], data.labels[test])
    (accuracy, _) = report.scores
    assert accuracy.folds == (pytest.approx(share),)
    assert accuracy.trivial == 0.75
    assert accuracy.error == pytest.approx(math.sqrt(share * (1 - share) / 40), rel=0.15)
    assert report.tested == "on 40 held-out sets; ± is a standard error over 200 bootstrap samples"


@pytest.mark.parametrize(
    ("labels", "task", "why"),
    [
        (["a", "b"], "classify", "the labels are strings"),
        ([0, 1], "classify", "the labels are integers with 2 distinct values"),
        ([0.0, 1.0, 1.0], "classify", "the labels are integers with 2 distinct values"),
        ([1, 2, 3] * 5, "classify", "the labels are integers with 3 distinct values"),
        ([1, 2, 3] * 4, "regress", "the labels are integers with 3 distinct values, too many for classes"),
        ([1, 2] * 9 + [3], "regress", "the labels are integers with 3 distinct values, too many for classes"),
        (list(range(20)) * 5, "classify", "the labels are integers with 20 distinct values"),
        (
            list(range(21)) * 5,
            "regress",
            "the labels are integers with 21 distinct values, too many for classes",
        ),
        ([0.5, 1], "regress", "the labels are not integers"),
        ([[0, 1], [1, 1]], "classify", "there are 2 labels per set, all 0 or 1"),
        ([[0, 1], [1, 2]], "regress", "there are 2 labels per set, all numbers"),
    ],
)
def test_what_labels_look_like(labels: list[Any], task: str, why: str) -> None:
    found = choose_task(np.array(labels))
    assert found[:2] == (task, why)
    assert found[2].dtype.kind == {"regress": "f"}.get(task, "U" if why.endswith("strings") else "i")
    assert found[2].tolist() == labels


def test_tasks_that_do_not_fit_the_labels() -> None:
    for task in ("regress", "count"):
        with pytest.raises(ValueError, match=exactly(f"task {task} needs labels that are numbers, got 'a'")):
            choose_task(np.array(["a"]), task)
    for label in (0.5, -1):
        with pytest.raises(ValueError, match=f"task count needs .* integers, 0 or more, got {label}"):
            choose_task(np.array([label, 2]), "count")
    with pytest.raises(ValueError, match="task must be auto, classify, regress or count, got 'guess'"):
        choose_task(np.array([0]), "guess")


def labelled(labels: list[Any], groups: list[str] | None = None) -> tuple[LabelledSets, np.ndarray]:
    n = len(labels)
    sets = Sets(np.zeros((n, 1)), np.arange(n + 1))
    found = np.array(labels)
    return LabelledSets(
        sets, found, tuple(map(str, range(n))), None if groups is None else np.array(groups)
    ), found


def splits(
    labels: list[Any],
    groups: list[str] | None = None,
    *,
    folds: int = 5,
    holdout: float | None = None,
    task="classify",
) -> tuple[list[tuple[np.ndarray, np.ndarray]], str, tuple[str, ...]]:
    return practice._splits(*labelled(labels, groups), task, folds=folds, holdout=holdout, seed=0)


def test_folds_part_the_sets_and_keep_groups_together() -> None:
    labels, groups = [0, 1] * 10, [str(i // 4) for i in range(20)]
    for given, tested in ((None, "in 4 folds; "), (groups, "in 4 folds, each group kept in one fold; ")):
        found, said, notes = splits(labels, given, folds=4)
        assert said.startswith(tested)
        assert notes == ()
        assert sorted(np.concatenate([test for _, test in found]).tolist()) == list(range(20))
        for train, test in found:
            assert sorted([*train, *test]) == list(range(20))
            assert set(np.array(labels)[test]) == {0, 1}
            if given:
                assert not set(np.array(given)[train]) & set(np.array(given)[test])
    ((train, test),), _, _ = splits(labels, groups, holdout=0.4)
    assert len(test) == 8
    assert not set(np.array(groups)[train]) & set(np.array(groups)[test])


def test_fewer_folds_where_there_is_too_little() -> None:
    for labels, groups, task, count, note in (
        ([0] * 9 + [1] * 3, None, "classify", 3, "3 folds instead of 5, because class 1 has 3 sets"),
        ([0.5] * 7, None, "regress", 3, "3 folds instead of 5, because there are 7 sets"),
        ([0, 1] * 10, list("xyyx") * 5, "classify", 2, "2 folds instead of 5, because there are 2 groups"),
    ):
        found, _, notes = splits(labels, groups, task=task)
        assert len(found) == count
        assert notes == (note,)
    assert splits([0, 1], folds=0) == ([], "not evaluated", ())


@pytest.mark.parametrize(
    ("labels", "groups", "task", "message"),
    [
        ([0, 0, 1], None, "classify", "but class 1 has 1 sets; --folds 0 skips the evaluation"),
        ([0.5] * 3, None, "regress", "but there are 3 sets; --folds 0 skips the evaluation"),
        ([0, 1] * 3, ["x"] * 6, "classify", "but there are 1 groups; --folds 0 skips the evaluation"),
        ([3, 3, 3], None, "classify", "expected labels of at least two classes, got 3 for every set"),
        (
            [0, 0, 1, 1],
            list("xxyy"),
            "classify",
            "expected groups such that .* got 2 groups for 2 folds",
        ),
    ],
)
def test_too_little_to_test_on(labels: list[Any], groups: list[str] | None, task: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        splits(labels, groups, task=task)


def test_a_score_that_some_folds_cannot_have() -> None:
    assert practice.score(np.array([1.0, 1.0]), np.array([1.0, 2.0])) == {"mean absolute error": 0.5}
    assert practice.score(np.array(["a", "a"]), np.array(["a", "b"]), np.zeros(2)) == {"accuracy": 0.5}
    folds = [
        {"scores": {"a": 1.0}, "trivial": {"a": 0.5}},
        {"scores": {"a": 0.0, "b": 0.25}, "trivial": {"a": 0.0, "b": 0.5}},
    ]
    one, other = practice._summarize(folds)
    assert (one.mean, one.error, one.trivial) == (0.5, 0.5, 0.25)
    assert (other.mean, other.error, other.trivial) == (0.25, None, 0.5)


def test_files_without_a_label_are_said_to_be_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "slides"
    folder.mkdir()
    for i in range(5):
        np.save(folder / f"{i}.npy", np.full((2, 1), float(i)))
    (folder / "manifest.csv").write_text("set,label\n0,a\n1,a\n2,b\n3,b\n")
    report = fit_model(folder, tmp_path / "m", settings=SMALL)
    assert (report.sets, report.scores[0].folds.__len__()) == (4, 2)
    assert report.notes[1].startswith(
        f"1 files were left out for lack of a label, first: {folder / '4.npy'}: "
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 1}, "folds must be at least 2, or 0 for none, got 1"),
        ({"folds": -1}, "folds must be at least 2, or 0 for none, got -1"),
        ({"holdout": 1.0}, "holdout must lie between 0 and 1, got 1.0"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"seed": -1}, "seed must lie between 0 and 2^32, got -1"),
        ({"task": "regress"}, "task regress needs labels that are numbers, got 'low'"),
        ({"name": "a", "label_column": "x"}, "expected a column 'x', got set, f, g, label"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, cells: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=exactly(message)[1:]):
        fit_model(cells, tmp_path / "m", **options)
    assert not list(tmp_path.glob("*m*"))


def test_weights_of_classes_belong_to_classes(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", label=lambda i, x: x.mean())
    with pytest.raises(ValueError, match=r"class_weight .* task classify, got the task regress"):
        fit_model(path, tmp_path / "m", settings={"class_weight": "balanced"})


def test_a_model_is_not_overwritten_by_accident(tmp_path: Path, cells: Path, model: Path) -> None:
    before = model.read_bytes()
    with pytest.raises(FileExistsError, match="exists; choose another --out, or use --overwrite"):
        fit_model(cells, model, settings=SMALL)
    assert model.read_bytes() == before
    fit_model(cells, model, folds=0, settings=SMALL, overwrite=True)
    assert model.read_bytes() != before
    with pytest.raises(IsADirectoryError, match="--out must be a file, got the folder"):
        fit_model(cells, tmp_path, settings=SMALL)


# Interrupted runs


class Stop(BaseException):
    """As an interruption, which would stop the tests as well."""


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sets each fit had; a negative number in it is the number of fits before an interruption."""
    seen: list[int] = []
    fit = SetClassifier.fit

    def counted(self: SetClassifier, X: Any, y: Any) -> SetClassifier:
        if seen and seen[0] + len(seen) == 1:
            raise Stop
        seen.append(len(y))
        return fit(self, X, y)

    monkeypatch.setattr(SetClassifier, "fit", counted)
    return seen


def test_finished_folds_are_taken_up(tmp_path: Path, cells: Path, fits: list[int]) -> None:
    out, kept = tmp_path / "m", tmp_path / "m.folds.json"
    whole = fit_model(cells, tmp_path / "whole", folds=4, settings=SMALL)
    assert fits == [18] * 4 + [24]
    fits[:] = [-2]
    with pytest.raises(Stop):
        fit_model(cells, out, folds=4, settings=SMALL)
    assert len(json.loads(kept.read_text())["folds"]) == 2
    assert not out.exists()

    for options, difference in (
        ({"seed": 1}, "seed differs: 0 and 1"),
        ({"folds": 3}, "folds differs: 4 and 3"),
        ({"settings": SMALL | {"depth": 2}}, "settings.depth differs: None and 2"),
        ({"features": ["f"]}, "reading.features differs: None and "),
    ):
        with pytest.raises(ValueError, match=f"belongs to a run with other settings .{difference}"):
            fit_model(cells, out, **{"folds": 4, "settings": SMALL, **options}, resume=True)

    fits.clear()
    report = fit_model(cells, out, folds=4, settings=SMALL, resume=True)
    assert fits == [18] * 2 + [24]
    assert report.scores == whole.scores
    assert (
        load(out).predict_proba(read_sets(cells).sets).tolist()
        == load(tmp_path / "whole").predict_proba(read_sets(cells).sets).tolist()
    )
    assert not kept.exists()


def test_a_fold_that_was_interrupted_is_taken_up(
    tmp_path: Path, cells: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the very bytes of the model, dropout included; nothing but model and report stays."""
    settings = SMALL | {"dropout": 0.3, "max_epochs": 4}
    fit_model(cells, tmp_path / "whole", folds=2, settings=settings)
    drawn, draw = [], TrainingBatches.__call__

    def interrupted(self: TrainingBatches, step: int) -> Any:
        drawn.append(step)
        if len(drawn) == 11:
            signal.raise_signal(signal.SIGINT)
        return draw(self, step)

    monkeypatch.setattr(TrainingBatches, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_model(cells, tmp_path / "m", folds=2, settings=settings)
    assert drawn[-1] > 1
    last = drawn[-1]
    drawn.clear()
    fit_model(cells, tmp_path / "m", folds=2, settings=settings, resume=True)
    assert drawn[0] == last + 1
    assert (tmp_path / "m").read_bytes() == (tmp_path / "whole").read_bytes()
    names = {path.name for path in tmp_path.iterdir() if path != cells}
    assert names == {"m", "m.report.json", "whole", "whole.report.json"}


def test_two_at_work_on_one_model(tmp_path: Path, cells: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, fit = [], SetClassifier.fit

    def second(self: SetClassifier, X: Any, y: Any) -> SetClassifier:
        with pytest.raises(BlockingIOError, match=r"^another run is writing m; "):
            fit_model(cells, tmp_path / "m", folds=2, settings=SMALL)
        told.append(1)
        return fit(self, X, y)

    monkeypatch.setattr(SetClassifier, "fit", second)
    fit_model(cells, tmp_path / "m", folds=0, settings=SMALL)
    assert told == [1]


def test_a_run_that_fails_at_once_leaves_nothing(tmp_path: Path, cells: Path) -> None:
    with pytest.raises(ValueError, match="depth"):
        fit_model(cells, tmp_path / "m", folds=2, settings=SMALL | {"depth": -1})
    assert [path for path in tmp_path.iterdir() if path != cells] == []


def test_folds_of_other_data_or_of_none(tmp_path: Path, cells: Path, fits: list[int]) -> None:
    fits[:] = [-1]
    with pytest.raises(Stop):
        fit_model(cells, tmp_path / "m", folds=2, settings=SMALL)
    fits.clear()
    cells.write_text(cells.read_text().replace("s23", "s24"))
    with pytest.raises(ValueError, match=r"other settings .sha256 differs: .* run without --resume"):
        fit_model(cells, tmp_path / "m", folds=2, settings=SMALL, resume=True)
    kept = json.loads((tmp_path / "m.folds.json").read_text())
    config = kept["config"] | {"sha256": practice._digest(cells)}
    whole = kept["folds"][0]
    others = [
        3,
        {},
        whole | {"trivial": {}},
        whole | {"scores": {"accuracy": "high"}},
        whole | {"errors": []},
    ]
    strange = [json.dumps({"config": config, "folds": [other]}) for other in others]
    for text in ("[]", '{"folds": []}', *strange):
        (tmp_path / "m.folds.json").write_text(text)
        with pytest.raises(ValueError, match="is not a valid file of finished folds; run without --resume"):
            fit_model(cells, tmp_path / "m", folds=2, settings=SMALL, resume=True)
    (tmp_path / "m.folds.json").write_text("{")
    with pytest.raises(ValueError, match="is not readable JSON"):
        fit_model(cells, tmp_path / "m", folds=2, settings=SMALL, resume=True)
    assert fits == []
    fit_model(cells, tmp_path / "m", folds=2, settings=SMALL)  # anew
    assert fits == [12, 12, 24]
    fit_model(cells, tmp_path / "n", folds=2, settings=SMALL, resume=True)  # nothing to take up
    assert fits[3:] == [12, 12, 24]


def test_the_state_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.npy").write_text("1")
    before = practice._digest(tmp_path)
    assert practice._digest(tmp_path) == before
    (tmp_path / "a" / "b.npy").write_text("12")
    after = practice._digest(tmp_path)
    assert after != before
    os.utime(tmp_path / "a" / "b.npy", (0, 0))
    later = practice._digest(tmp_path)
    assert later != after
    (tmp_path / "a" / "b.npy").rename(tmp_path / "a" / "c.npy")
    assert practice._digest(tmp_path) != later


# Predicting


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions(tmp_path: Path, cells: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimator, data = load(model), read_sets(cells)
    said, chance = estimator.predict(data.sets), estimator.predict_proba(data.sets)
    found = predict_file(model, cells)
    assert (found.sets, found.scores, found.note) == (24, {"accuracy": 1.0, "ROC AUC": 1.0}, "")
    assert str(found) == "24 sets, accuracy 1, ROC AUC 1"
    printed = rows(capsys.readouterr().out)
    assert list(printed[0]) == ["set", "prediction", "p_[high]", "p_low", "label"]
    assert [row["set"] for row in printed] == list(data.ids)
    assert [row["prediction"] for row in printed] == said.tolist()
    assert [row["label"] for row in printed] == data.labels.tolist()
    assert [float(row["p_low"]) for row in printed] == pytest.approx(chance[:, 1].tolist(), rel=1e-8)

    predict_file(model, cells, tmp_path / "p.csv")
    assert rows((tmp_path / "p.csv").read_text()) == printed
    predict_file(model, cells, tmp_path / "p.parquet")
    table = pd.read_parquet(tmp_path / "p.parquet")
    assert list(table) == list(printed[0])
    assert np.array_equal(table["p_low"], chance[:, 1])
    predict_file(model, cells, tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as arrays:
        assert arrays["prediction"].tolist() == said.tolist()
        assert np.array_equal(arrays["p_[high]"], chance[:, 0])
    assert capsys.readouterr().out == ""


def test_columns_are_found_by_name(tmp_path: Path, cells: Path, model: Path) -> None:
    predict_file(model, cells, tmp_path / "p.csv")
    other = pd.read_csv(cells)[["g", "label", "f", "set"]].assign(notes="text", more=0.5)
    other.to_csv(tmp_path / "other.csv", index=False)
    predict_file(model, tmp_path / "other.csv", tmp_path / "q.csv")
    assert (tmp_path / "q.csv").read_text() == (tmp_path / "p.csv").read_text()
    other.drop(columns="label").to_csv(tmp_path / "other.csv", index=False)
    assert predict_file(model, tmp_path / "other.csv", tmp_path / "q.csv").scores == {}
    assert list(rows((tmp_path / "q.csv").read_text())[0]) == ["set", "prediction", "p_[high]", "p_low"]
    other.drop(columns="f").to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(ValueError, match="expected a column 'f', got g, label, set, notes, more"):
        predict_file(model, tmp_path / "other.csv", tmp_path / "q.csv")


def test_labels_that_cannot_be_compared(tmp_path: Path, model: Path) -> None:
    two = table(tmp_path / "a.csv", u=lambda i, _: i % 2, v=lambda i, _: "low" if i else "new")
    found = predict_file(model, two, tmp_path / "p.csv", label_column="u")
    assert str(found) == "24 sets, no score, because no label (e.g. 0) is among the classes [high], low"
    found = predict_file(model, two, tmp_path / "p.csv", label_column=("u", "v"))
    assert found.note == "no score, because labels have shape [24, 2] and predictions [24]"
    assert predict_file(model, two, tmp_path / "p.csv", label_column="v").scores == {"accuracy": 11 / 24}
    fit_model(two, tmp_path / "n", task="regress", label_column="u", features=["f"], folds=0, settings=SMALL)
    found = predict_file(tmp_path / "n", two, tmp_path / "p.csv", label_column="v")
    assert found.note == "no score, because the labels are strings and the predictions are numbers"
    found = predict_file(tmp_path / "n", two, tmp_path / "p.csv", label_column="u")
    truth = [float(row["label"]) for row in rows((tmp_path / "p.csv").read_text())]
    said = [float(row["prediction"]) for row in rows((tmp_path / "p.csv").read_text())]
    assert found.scores["R²"] == pytest.approx(r2_score(truth, said))


def test_several_targets_have_a_column_each(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", u=lambda i, x: x[0, 0], v=lambda i, x: x[0, 1])
    names = {"label_column": ("u", "v")}
    fit_model(path, tmp_path / "m", folds=0, settings=SMALL, **names)
    found = predict_file(tmp_path / "m", path, tmp_path / "p.csv", **names)
    assert list(found.scores) == ["R²", "mean absolute error"]
    first = rows((tmp_path / "p.csv").read_text())[0]
    assert list(first) == ["set", "prediction_0", "prediction_1", "label_0", "label_1"]
    assert float(first["label_1"]) == pytest.approx(pd.read_csv(path)["v"][0])


def test_files_for_predictions(tmp_path: Path, cells: Path, model: Path) -> None:
    with pytest.raises(
        ValueError, match=exactly("--out must be a .csv, .parquet or .npz file, or -, got p.txt")
    ):
        predict_file(model, cells, "p.txt")
    (tmp_path / "broken").write_bytes(model.read_bytes()[:500])
    with pytest.raises(ValueError, match="broken is not a setwise model"):
        predict_file(tmp_path / "broken", cells)


# Looking inside


def facts(sheet: TextTable) -> dict[str, str]:
    return {row[0]: row[1] for row in sheet.rows}


def test_what_is_in_a_model(tmp_path: Path, cells: Path, model: Path) -> None:
    told, *others = inspect_file(model)
    estimator = load(model)
    network = estimator.module_.network
    assert others == []  # it was not tested
    found = facts(told)
    assert found["classes"] == "[high], low"
    assert found["features"] == "2: f, g"
    assert found["network"] == "1 × denoising, latent graph, mean pool"
    assert found["weights"] == f"{sum(p.numel() for p in network.parameters()):,}"
    assert found["γ"] == f"{float(network.blocks[0].gamma.value.detach()):.3g}"
    assert found["σ"] == f"{float(network.graph.sigma.detach()):.3g}"
    assert found["trained"] == "15 epochs"
    assert "layers (8,)" in found["settings"]
    report = fit_model(cells, tmp_path / "n", folds=2, settings=SMALL)
    _, scores = inspect_file(tmp_path / "n")
    assert scores.title == "tested in 2 folds; ± is a standard error over folds"
    assert scores.rows == report.tables()[1].rows
    (tmp_path / "n.report.json").write_text('{"scores": "none"}')
    assert len(inspect_file(tmp_path / "n")) == 1


def test_what_a_model_sees_in_a_set(cells: Path, model: Path) -> None:
    estimator, data = load(model), read_sets(cells)
    told, edges, elements = inspect_file(model, cells, set_id="s3", k=2)
    x = data.sets[3:4]
    graph = estimator.latent_graph(x)
    found = facts(told)
    assert told.title == "set s3"
    assert (found["elements"], found["label"], found["prediction"]) == ("6", "[high]", "[high]")
    assert found["probability"].startswith(f"[high]: {estimator.predict_proba(x)[0, 0]:.3g}, low: ")
    assert found["graph"] == graph.remark()
    assert found["energy"] == " → ".join(f"{e:.3g}" for e in graph.energies) + " over the blocks"
    assert [row[:3] for row in edges.rows] == [
        (str(i + 1), str(j + 1), f"{w:.4g}") for i, j, w in graph.top_edges(2)
    ]
    counts = estimator.element_importance(x)
    best = np.argsort(-np.abs(counts))[:2]
    assert [row[:2] for row in elements.rows] == [(str(i + 1), f"{counts[i]:+.3g}") for i in best]
    assert inspect_file(model, cells)[0].title == "set s0"


def test_sets_that_are_not_there(cells: Path, model: Path) -> None:
    sentence = f"{cells}: expected a set with the ID 'x', got s0, s1, s2, s3, s4, s5, s6, s7 and 16 more"
    with pytest.raises(ValueError, match=exactly(sentence)):
        inspect_file(model, cells, set_id="x")
    with pytest.raises(ValueError, match="expected DATA with the set 'x', got no data"):
        inspect_file(model, set_id="x")
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        inspect_file(model, cells, k=0)


def test_labels_are_printed_as_they_are() -> None:
    console = Console(width=40, file=io.StringIO())
    console.print(TextTable("[red]set[/red]", ("[x]",), (("[/y]",), ("a" * 50,))))
    said = console.file.getvalue()
    assert "[red]set[/red]" in said
    assert "[x]" in said
    assert "[/y]" in said
    assert said.count("a") == 50  # folded, not cut off


# Exporting


def test_export(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "setwise.io.export.to_onnx", lambda *given, **options: calls.append((*given, options))
    )
    monkeypatch.setattr(
        "setwise.io.export.to_torch_export", lambda *given, **options: calls.append((*given, options))
    )
    said = export_file(model, tmp_path / "m.onnx")
    metadata = {"task": "binary", "classes": '["[high]", "low"]', "features": '["f", "g"]'}
    assert calls[0][1:] == (tmp_path / "m.onnx", {"in_dim": 2, "metadata": metadata})
    assert "output the log-odds of class low; outputs differ" in said
    export_file(model, tmp_path / "m.PT2")
    assert calls[1][1:] == (tmp_path / "m.PT2", {"in_dim": 2})
    with pytest.raises(ValueError, match=exactly("--out must be a .onnx or .pt2 file, got m.txt")):
        export_file(model, "m.txt")


# The commands


def test_from_a_table_to_predictions(
    tmp_path: Path, cells: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--max-epochs", "15", "--layers", "8", "--graph", "latent", "--balanced", "--lr", "0.02"]
    command("fit", "cells.csv", *small, "--folds", "2", "-o", "m")
    out = capsys.readouterr()
    assert "SetClassifier on cells.csv" in out.out
    assert "[high]: 12, low: 12" in out.out
    assert "accuracy   1 ± 0" in out.out
    for title in ("fold 1 of 2  15/15", "fold 2 of 2  15/15", "all sets  30/30"):
        assert title in out.err
    params = load(tmp_path / "m").get_params()
    assert (params["class_weight"], params["layers"], params["lr"]) == ("balanced", (8,), 0.02)
    command("fit", "cells.csv", "-o", "m", expect=2)
    assert "use --overwrite" in capsys.readouterr().err
    command("predict", "m", "cells.csv")
    out = capsys.readouterr()
    assert len(out.out.splitlines()) == 25
    assert out.err == "24 sets, accuracy 1, ROC AUC 1\n"
    command("predict", "m", "cells.csv", "--out", "p.csv")
    assert capsys.readouterr().out == "p.csv: 24 sets, accuracy 1, ROC AUC 1\n"
    command("inspect", "m")
    assert "[high], low" in capsys.readouterr().out
    command("inspect", "m", "cells.csv", "--set", "s2", "--k", "1")
    assert "set s2" in capsys.readouterr().out


def test_options_of_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Told(Exception):
        pass

    def record(data: Path, out: Path, **options: Any) -> None:
        given.update(options, data=data, out=out)
        raise Told

    monkeypatch.setattr(practice, "fit_model", record)
    words = (
        "--name musk1 --group site --label-column u v --set-column bag --features f g --holdout 0.2 --quiet"
    )
    with pytest.raises(Told):
        cli.main(["fit", "a.npz", *words.split(), "--task", "count", "--dropout", "0.1", "--threads", "1"])
    settings = given.pop("settings")
    assert settings["dropout"] == 0.1
    assert "max_elements" not in settings
    assert set(settings) <= set(SetClassifier().get_params())
    assert given == {
        "data": Path("a.npz"), "out": Path("model.safetensors"), "task": "count", "folds": 5, "holdout": 0.2,
        "seed": 0, "threads": 1, "overwrite": False, "resume": False, "verbose": False,
        "group_column": "site", "features": ("f", "g"), "set_column": "bag", "label_column": ("u", "v"),
        "name": "musk1",
    }  # fmt: skip


def test_the_options_have_the_defaults_of_the_estimators() -> None:
    shown = asdict(models.NetworkOptions()) | asdict(models.TrainingOptions())
    del shown["balanced"], shown["threads"]
    for estimator in (SetClassifier(), SetRegressor()):
        params = estimator.get_params()
        assert shown == {name: params[name] for name in shown}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fit nowhere.csv", "setwise: cannot use nowhere.csv: No such file or directory"),
        (
            "fit cells.csv --lr -1",
            "setwise: The 'lr' parameter of SetClassifier must be a float in the range",
        ),
        ("fit cells.csv --pool tree", "setwise: pool must be one of"),
        ("fit cells.csv -o .", "setwise: --out must be a file, got the folder ."),
        ("fit cells.csv -o cells.csv/m", "setwise: cannot use cells.csv: File exists"),
        ("predict cells.csv cells.csv", "setwise: cells.csv is not a setwise model: "),
        ("inspect nothing", "setwise: cannot use nothing: No such file or directory"),
        ("export nothing -o a.txt", "setwise: --out must be a .onnx or .pt2 file, got a.txt"),
        ("explore nothing", "nothing"),
    ],
)
def test_mistakes_get_one_sentence(
    tmp_path: Path, cells: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: str, message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    command(*words.split(), expect=2)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"cells.csv"}


def test_what_a_command_says_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def mistaken(*_: object, **__: object) -> None:
        raise TypeError("X must be an array of numbers, got str")

    monkeypatch.setattr(practice, "fit_model", interrupt)
    monkeypatch.setattr(using, "predict_file", interrupt)
    command("fit", "a.csv", expect=130)
    assert capsys.readouterr().err == "setwise: interrupted; --resume continues from the last checkpoint\n"
    command("predict", "m", "a.csv", expect=130)
    assert capsys.readouterr().err == "setwise: interrupted\n"
    monkeypatch.setattr(using, "predict_file", mistaken)
    command("predict", "m", "a.csv", expect=2)
    assert capsys.readouterr().err == "setwise: X must be an array of numbers, got str\n"


def test_explore_and_export_pass_on_what_they_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        "setwise.inspection.explorer.write_page", lambda *words, **options: given.append((words, options))
    )
    command("explore", "m", "a.npz", "--name", "fox", "--sets", "3", "-o", "x.html")
    options = {"sets": 3, "seed": 0, "set_column": "set", "label_column": "label", "name": "fox"}
    assert given == [((Path("m"), Path("a.npz"), Path("x.html")), options)]
    monkeypatch.setattr(using, "export_file", lambda *words: words)
    capsys.readouterr()
    command("export", "m", "-o", "x.pt2")
    assert capsys.readouterr().out == f"{(Path('m'), Path('x.pt2'))}\n"


def test_nothing_is_written_over_what_is_read(cells: Path, model: Path) -> None:
    table, weights = cells.read_bytes(), model.read_bytes()
    for work in (
        lambda: predict_file(model, cells, cells),
        lambda: fit_model(cells, cells, overwrite=True, settings=SMALL),
    ):
        with pytest.raises(ValueError, match="out must differ from the input file"):
            work()
    with pytest.raises(ValueError, match="got -: a model cannot be printed"):
        fit_model(cells, "-", settings=SMALL)
    assert (cells.read_bytes(), model.read_bytes()) == (table, weights)
