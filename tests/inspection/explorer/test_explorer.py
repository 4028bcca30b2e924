"""Tests of the content of a page: of runs, of fitted models, and the layout of elements."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import setwise as sw
from setwise.estimators.classifier import SetClassifier
from setwise.estimators.regressor import SetRegressor
from setwise.experiments import counting, histology, mil, pointcloud, runner
from setwise.experiments.base import Experiment
from setwise.experiments.counting import Counting
from setwise.experiments.data.characters import synthetic_characters
from setwise.experiments.data.histology import PatchedImages, extract_patches
from setwise.experiments.data.point_clouds import hold_out
from setwise.experiments.data.solids import solids
from setwise.experiments.gaussian import Gaussian
from setwise.experiments.histology import Histology
from setwise.experiments.mil import MIL
from setwise.experiments.pointcloud import Shapes
from setwise.experiments.smoothing import Smoothing
from setwise.inspection.explorer import layout, page, write_page
from setwise.inspection.explorer import model as models
from setwise.inspection.explorer import run as runs
from setwise.inspection.explorer import sections as parts
from setwise.inspection.explorer import trained_run as trained
from setwise.inspection.explorer.content import PageContent, ShownSet
from setwise.inspection.importance import importance
from setwise.io.bags import Bags
from setwise.io.readers import LabelledSets
from setwise.nn._modes import eval_mode
from setwise.sets import Sets
from setwise.training.checkpoint import load_checkpoint

QUICK = sw.Training(steps=20, evaluations=4, schedule="cosine")
GAUSSIAN = Gaussian(test_sets=120, training=QUICK)
COUNTING = Counting(sets=4, pool_characters=10, test_sets=40, training=sw.Training(steps=2, evaluations=1))
SMOOTHING = Smoothing(points=16, few_points=8, sets=5, depth=2, training=sw.Training(steps=3, evaluations=1))
HISTOLOGY = Histology(folds=2, patches=4, training=sw.Training(steps=4, evaluations=2))
BAGS = MIL(bags="musk1", folds=2, sets=4, instances=3, training=sw.Training(steps=2, evaluations=1))


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Small synthetic data instead of the data of this machine."""
    script, shapes, images, bags = synthetic_characters(100), _solids(), _tissue(), _bags()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "_characters", lambda: script)
        patch.setattr(counting, "VALIDATION_SETS", 16)
        patch.setattr(pointcloud, "_shapes", lambda: shapes)
        patch.setattr(histology, "_images", lambda: images)
        patch.setattr(mil, "_bags", lambda name: bags)
        for cached in (counting._split, histology._fold_split, mil._fold_split):
            cached.cache_clear()
        yield
    for cached in (counting._split, histology._fold_split, mil._fold_split):
        cached.cache_clear()


def _solids() -> Shapes:
    """A few solids, with another vertical axis."""
    parts = (*hold_out(solids(10, 32, seed=0)), solids(3, 32, seed=1))
    return Shapes(*(replace(part, up=1) for part in parts))


def _tissue() -> PatchedImages:
    """Eight images of six patches, malignant ones darker."""
    random = torch.Generator().manual_seed(0)
    bright = [torch.randint(0, 128, (64, 96, 3), generator=random) + 100 * (i % 2) for i in range(8)]
    cut = [extract_patches(image.to(torch.uint8)) for image in bright]
    names = tuple(f"slide{i}" for i in range(8))
    return PatchedImages(
        "tissue", [p for p, _ in cut], [c for _, c in cut], torch.arange(8) % 2, ("benign", "malignant"),
        names, names,
    )  # fmt: skip


def _bags() -> Bags:
    random = np.random.default_rng(0)
    x = [random.normal(size=(3 + i % 4, 5)) + 2 * (i % 2) for i in range(12)]
    return Bags.from_arrays(x, [i % 2 for i in range(12)], names=[f"b{i}" for i in range(12)])


def run(folder: Path, experiment: Experiment, row: str, seed: int = 0) -> Path:
    runner.run(experiment, row, seed, out=folder / "runs", results=folder / "results", show=False)
    return next((folder / "runs" / experiment.name / row).glob(f"*seed-{seed}"))


@pytest.fixture(scope="module")
def gaussian(small: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("gaussian"), GAUSSIAN, "v-dmps")


@pytest.fixture
def own(gaussian: Path, tmp_path: Path) -> Path:
    """A copy of the run to damage, without recorded results."""
    return Path(shutil.copytree(gaussian, tmp_path / "out" / "runs" / "gaussian" / "v-dmps" / gaussian.name))


def by_hand(folder: Path, experiment: Experiment, row: str) -> tuple[list[Any], nn.Module]:
    """All test sets of a run with one model, as (x, truth, out), each through the model alone."""
    model = experiment.model(row, 0)
    model.load_state_dict(load_checkpoint(folder / "checkpoint.pt")["model"])
    model.eval()
    with torch.no_grad():
        exhibits = experiment.example_sets(0, 10**6, torch.Generator())
        return [(e, model(e.x.unsqueeze(0))[0]) for e in exhibits], model


# Runs


def test_content_of_a_run_matches_the_model(gaussian: Path) -> None:
    content = runs.page_content(gaussian)
    tested, model = by_hand(gaussian, GAUSSIAN, "v-dmps")
    counts = [[0, 0], [0, 0]]
    for exhibit, out in tested:
        counts[exhibit.y][int(out[0] > 0)] += 1
    assert content.confusion is not None
    assert content.confusion.classes == ("N(0, I)", "N(0, Σ)")
    assert content.confusion.counts == tuple(map(tuple, counts))
    right = counts[0][0] + counts[1][1]
    assert f"Accuracy {right / 120:.1%} on 120 test sets. Sets shown below: 12," in content.lead
    recorded = json.loads((gaussian / "result.json").read_text())
    assert recorded["accuracy"] == right / 120
    assert ("Recorded test accuracy", f"{right / 120:.4f}") in content.facts

    assert isinstance(model, sw.DMPS)
    by_name = {e.draw().name: (e, out) for e, out in tested}
    for shown in content.sets:
        exhibit, out = by_name[shown.name]
        x = exhibit.x.unsqueeze(0)
        with torch.no_grad():
            W, energies = model.latent_graph(x), model.dirichlet_energies(x)
            K = model.graph.similarity(model.encoder(x))
        assert shown.weights is not None
        assert shown.kernel is not None
        assert shown.importance is not None
        np.testing.assert_allclose(shown.weights.sum(1), 1, atol=1e-6)
        np.testing.assert_allclose(shown.weights, W[0], atol=1e-6)
        np.testing.assert_allclose(shown.kernel, K[0], atol=1e-6)
        np.testing.assert_allclose(shown.energies, energies[0], rtol=1e-5)
        sign = 1 if out[0] > 0 else -1
        np.testing.assert_allclose(shown.importance, sign * importance(model, x)[0], atol=1e-6)
        p = float(out[0].sigmoid())
        assert dict(shown.scores) == pytest.approx({"N(0, Σ)": p, "N(0, I)": 1 - p}, abs=1e-6)
        assert shown.scores[0][1] >= shown.scores[1][1]
        assert shown.prediction == shown.scores[0][0]
        assert shown.label == ("N(0, I)", "N(0, Σ)")[exhibit.y]
        assert shown.correct == (shown.label == shown.prediction)
        assert shown.kind == "features"
        np.testing.assert_allclose(shown.places[:, 0], exhibit.x[:, 0], rtol=1e-6)
        assert shown.groups.count("correlated") == 2 * exhibit.y
        assert shown.remark is not None
        assert "5 elements" in shown.remark


def test_half_of_the_sets_shown_are_errors_and_the_seed_chooses_them(gaussian: Path) -> None:
    first, again, other = (runs.page_content(gaussian, sets=6, seed=seed) for seed in (0, 0, 1))
    assert [s.correct for s in first.sets].count(False) == 3
    assert "Sets shown below: 6, wrong predictions among them: 3." in first.lead
    assert [s.name for s in first.sets] == [s.name for s in again.sets] != [s.name for s in other.sets]
    for a, b in zip(first.sets, again.sets, strict=True):
        np.testing.assert_array_equal(a.weights, b.weights)
        np.testing.assert_array_equal(a.places, b.places)
    assert first.confusion == other.confusion
    assert runs.page_content(gaussian, sets=0).sets == ()


def test_curves_and_facts_are_those_of_the_training(gaussian: Path) -> None:
    content = runs.page_content(gaussian, sets=1)
    entries = [json.loads(line) for line in (gaussian / "metrics.jsonl").read_text().splitlines()]
    found = {(curve.panel, curve.name): curve.points for curve in content.curves}
    assert set(found) == {
        ("loss", "training"), ("loss", "validation"), ("accuracy", "validation"), ("auc", "validation"),
        ("learning rate", "learning rate"), ("effective neighbours", "effective neighbours"),
        ("bandwidth σ", "bandwidth σ"),
        ("saturated fraction of the embedding", "saturated fraction of the embedding"),
    }  # fmt: skip
    measured = tuple((e["step"], e["effective_neighbours"]) for e in entries)
    assert found["effective neighbours", "effective neighbours"] == measured
    assert found["loss", "validation"] == tuple((e["step"], e["validation_loss"]) for e in entries)
    assert found["learning rate", "learning rate"] == tuple((e["step"], e["lr"]) for e in entries)
    facts = dict(content.facts)
    assert facts["Row"] == "V-DMPS"
    assert facts["rho"] == "0.95"
    assert facts["Seed"] == "0"
    assert facts["Training"].startswith("20 batches, 2,560 sets, ")
    model = GAUSSIAN.model("v-dmps", 0)
    assert facts["Parameters"] == f"{sum(p.numel() for p in model.parameters()):,}"
    sigma = load_checkpoint(gaussian / "checkpoint.pt")["model"]["graph.kernel.log_sigma"].exp().item()
    assert facts["σ"] == f"{sigma:.3g}"
    assert "γ" not in facts
    assert facts["Importance"] == parts.METHODS["leave-one-out"]
    assert content.title == "V-DMPS · gaussian"


def test_the_table_has_all_recorded_rows_and_this_run(own: Path, tmp_path: Path) -> None:
    alone = runs.page_content(own, sets=0).table
    assert alone is not None
    assert [line[0] for line in alone.rows] == ["V-DMPS"]
    assert "This page shows V-DMPS, rho 0.95, seed 0." in alone.caption
    record = json.loads((own / "result.json").read_text())
    other = record | {"row": "deepsets", "accuracy": 0.25}
    elsewhere = record | {"data": "others"}
    folder = tmp_path / "out" / "results" / "gaussian"
    folder.mkdir(parents=True)
    for name, result in (("a", other), ("b", elsewhere)):
        (folder / f"{name}.json").write_text(json.dumps(result))
    beside = runs.page_content(own, sets=0).table
    assert beside is not None
    assert [line[0] for line in beside.rows] == ["DeepSets (W = I)", "V-DMPS"]
    assert beside.rows[0][2] == "0.2500"
    (folder / "c.json").write_text(json.dumps(record))
    both = runs.page_content(own, sets=0).table
    assert both is not None
    assert [line[-1] for line in both.rows] == ["1", "1"]
    assert runs.page_content(own, sets=0, results=tmp_path / "nowhere").table == alone


def test_an_unfinished_run_is_shown_up_to_its_last_checkpoint(own: Path) -> None:
    (own / "result.json").unlink()
    state = load_checkpoint(own / "checkpoint.pt")
    torch.save(state | {"step": 15}, own / "checkpoint.pt")
    content = runs.page_content(own, sets=2)
    assert "This run has not finished: 15 of 20 batches." in content.lead
    assert content.table is None
    assert dict(content.facts)["Training"] == "15 of 20 batches"
    assert len(content.sets) == 2
    (own / "checkpoint.pt").unlink()
    with pytest.raises(FileNotFoundError, match="the run has not written one yet"):
        runs.page_content(own)


def test_early_stopping_shows_the_best_weights(own: Path) -> None:
    state = load_checkpoint(own / "checkpoint.pt")
    best = {name: torch.zeros_like(value) for name, value in state["model"].items()}
    torch.save(state | {"best": {"loss": 1.0, "since": 0, "weights": best}}, own / "checkpoint.pt")
    content = runs.page_content(own, sets=1)
    assert content.confusion is not None
    assert [row[1] for row in content.confusion.counts] == [0, 0]
    assert [p for _, p in content.sets[0].scores] == [0.5, 0.5]


def test_errors_name_what_is_wrong_with_a_run(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, config, result = ((own / name) for name in ("checkpoint.pt", "config.json", "result.json"))
    whole, written = checkpoint.read_bytes(), config.read_text()
    checkpoint.write_bytes(whole[:1000])
    with pytest.raises(ValueError, match=r"checkpoint\.pt is not a readable checkpoint: it is damaged"):
        runs.page_content(own)
    torch.save({"model": {"weight": torch.zeros(1)}, "step": 1}, checkpoint)
    with pytest.raises(ValueError, match=r"checkpoint\.pt does not match the model of row v-dmps"):
        runs.page_content(own)
    checkpoint.unlink()
    with pytest.raises(FileNotFoundError, match="the run has finished, but the file is missing"):
        runs.page_content(own)
    checkpoint.write_bytes(whole)
    for changed, expected in (
        ({"rho": 2.0}, "rho must be at least 0 and below 1, got 2.0"),
        ({"magic": 1}, "unknown field magic"),
        ({"training": {"steps": 20, "magic": 1}}, "magic"),
    ):
        config.write_text(json.dumps(json.loads(written) | changed))
        with pytest.raises(ValueError, match=f"is not a configuration of gaussian: .*{expected}"):
            runs.page_content(own)
    config.write_text("[1]")
    with pytest.raises(ValueError, match="is not a configuration of gaussian"):
        runs.page_content(own)
    config.write_text(written)
    monkeypatch.setattr(Gaussian, "data", "others")
    with pytest.raises(FileNotFoundError, match=r"is a run on .synthetic.*data found here are .others"):
        runs.page_content(own)
    monkeypatch.undo()
    result.write_text(json.dumps(json.loads(result.read_text()) | {"accuracy": None}))
    with pytest.raises(ValueError, match=r"result\.json is not a result of gaussian: accuracy must be"):
        runs.page_content(own)


def test_missing_fields_have_defaults_and_folders_may_be_renamed(own: Path) -> None:
    config = json.loads((own / "config.json").read_text())
    del config["test_sets"], config["training"]["patience"]
    (own / "config.json").write_text(json.dumps(config))
    moved = own.rename(own.parent / "kept")
    read = trained.read_run(moved)
    assert read.experiment == replace(GAUSSIAN, test_sets=Gaussian().test_sets)
    assert (read.row, read.seed, read.title) == ("v-dmps", 0, "V-DMPS")
    (moved / "result.json").unlink()
    with pytest.raises(ValueError, match=r"cannot identify the run in .*: expected .*v-dmps/kept"):
        trained.read_run(moved)


@pytest.mark.parametrize(
    ("experiment", "row"),
    [(COUNTING, "d-dmps-ldc"), (COUNTING, "set-transformer"), (SMOOTHING, "p-2")],
)
def test_shown_sets_are_test_sets(tmp_path: Path, experiment: Experiment, row: str) -> None:
    folder = run(tmp_path, experiment, row)
    content = runs.page_content(folder, sets=4)
    result = json.loads((folder / "result.json").read_text())
    assert content.confusion is not None
    counts = np.array(content.confusion.counts)
    assert counts.trace() / counts.sum() == pytest.approx(result["accuracy"])
    tested, model = by_hand(folder, experiment, row)
    assert counts.sum() == len(tested)
    check = check_counting if experiment is COUNTING else check_smoothing
    check(content, {exhibit.draw().name: (exhibit, out) for exhibit, out in tested}, model)


def check_counting(content: PageContent, tested: Mapping[str, Any], model: nn.Module) -> None:
    script = counting._characters()
    truths = sorted({e.y for e, _ in tested.values()} | {int(out.exp()) for _, out in tested.values()})
    assert content.confusion is not None
    assert content.confusion.classes == tuple(str(y) for y in range(truths[0], truths[-1] + 1))
    for shown in content.sets:
        exhibit, out = tested[shown.name]
        assert shown.kind == "images"
        assert shown.images is not None
        assert len(set(shown.groups)) == exhibit.y == int(shown.label or 0)
        np.testing.assert_array_equal(shown.images == 0, exhibit.x[:, 0].numpy())  # ink is black
        assert set(np.unique(shown.images)) == {0, 255}
        assert shown.scores == (("λ", pytest.approx(float(out.exp()), rel=1e-4)),)
        assert shown.prediction == str(int(out.exp()))
        assert {text.partition(",")[0] for text in shown.elements} <= set(script.labels)
        grid = layout.grid(len(exhibit.x))
        if not isinstance(model, sw.DMPS):
            assert shown.weights is None
            assert shown.energies == ()
            assert shown.remark is None
            np.testing.assert_array_equal(shown.places, grid)
        else:
            assert shown.kernel is not None
            np.testing.assert_array_equal(shown.places, layout.by_kernel(shown.kernel))
    without = parts.NO_GRAPH
    assert (without in content.lead) == isinstance(model, sw.SetTransformer)
    assert ("γ" in dict(content.facts)) == isinstance(model, sw.DMPS)


def check_smoothing(content: PageContent, tested: Mapping[str, Any], model: nn.Module) -> None:
    shapes = pointcloud._shapes().test
    assert content.confusion is not None
    assert content.confusion.classes == shapes.classes
    for shown in content.sets:
        exhibit, out = tested[shown.name]
        assert shown.kind == "points"
        np.testing.assert_allclose(shown.places[:, 2], exhibit.x[:, shapes.up], rtol=1e-6)
        assert shown.prediction == shapes.classes[int(out.argmax())]
        assert len(shown.scores) == min(5, len(shapes.classes))
        assert sum(p for _, p in shown.scores) <= 1 + 1e-6
        assert len(shown.energies) == 3
        counted = importance(model, exhibit.x.unsqueeze(0), output=int(out.argmax()))[0]
        np.testing.assert_allclose(shown.importance, counted, atol=1e-5)


def test_every_fold_shows_its_own_sets(tmp_path: Path) -> None:
    folder = run(tmp_path, HISTOLOGY, "gated-attention")
    content = runs.page_content(folder, sets=8)
    images = histology._images()
    assert {shown.name.partition(" ")[0] for shown in content.sets} == set(images.names)
    assert {shown.name.partition(" ")[2] for shown in content.sets} == {"(fold-0)", "(fold-1)"}
    result = json.loads((folder / "result.json").read_text())
    odds = {name: odds for fold in result["folds"] for name, odds in fold["log_odds"].items()}
    for shown in content.sets:
        name = shown.name.partition(" ")[0]
        i = images.names.index(name)
        assert shown.label == images.classes[int(images.labels[i])]
        assert shown.prediction == images.classes[int(odds[name] > 0)]
        assert dict(shown.scores)["malignant"] == pytest.approx(1 / (1 + np.exp(-odds[name])), abs=1e-4)
        assert shown.kind == "patches"
        assert shown.patch == 32
        np.testing.assert_array_equal(shown.background, images.image(i))
        np.testing.assert_array_equal(shown.places, images.coords[i])
        assert shown.elements[2:4] == ("patch in column 3, row 1", "patch in column 1, row 2")
        assert shown.importance is not None
        assert shown.importance.sum() == pytest.approx(1, abs=1e-5)
    assert content.confusion is not None
    assert np.sum(content.confusion.counts) == 8
    assert dict(content.facts)["Importance"] == parts.METHODS["attention"]
    assert {curve.name for curve in content.curves} == {"training, fold-0", "training, fold-1"}

    (folder / "result.json").unlink()
    (folder / "fold-1" / "checkpoint.pt").unlink()
    part = runs.page_content(folder, sets=8)
    assert "This run has not finished: 4 of 4 batches, 1 of 2 folds." in part.lead
    assert {shown.name.partition(" ")[2] for shown in part.sets} == {"(fold-0)"}


def test_bags_lie_along_their_principal_axes(tmp_path: Path) -> None:
    content = runs.page_content(run(tmp_path, BAGS, "d-dmps-ldc"), sets=12)
    bags = mil._bags("musk1")
    assert {shown.name for shown in content.sets} == {
        f"bag {bags.names[i]} (fold-{fold})"
        for fold, seed in enumerate(BAGS.trials(0).values())
        for i in range(12)
        if bags.names[i] in BAGS._parts(seed)[1].names
    }
    for shown in content.sets:
        assert shown.label in ("negative", "positive")
        assert len(shown.energies) == 2
        np.testing.assert_allclose(shown.places.mean(0), 0, atol=1e-9)
        assert shown.places[:, 0].std() >= shown.places[:, 1].std()
        assert shown.elements[0].count("sd") == 4
    assert content.curves == ()  # one evaluation is not a curve
    assert content.table is not None
    assert "mi-SVM" in str(content.table.rows)


def test_rows_fitted_by_a_solver_need_no_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    bags = replace(BAGS, folds=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mil, "STRENGTHS", (1.0,))
        random = np.random.default_rng(0)
        more = Bags.from_arrays(
            [random.normal(size=(3, 5)) + i % 2 for i in range(24)], [i % 2 for i in range(24)]
        )
        patch.setattr(mil, "_bags", lambda name: more)
        mil._fold_split.cache_clear()
        content = runs.page_content(run(tmp_path, bags, "logistic"), sets=2)
        mil._fold_split.cache_clear()
    assert dict(content.facts)["Training"] == "fitted by a solver, without batches"
    assert content.confusion is not None
    assert np.sum(content.confusion.counts) == 24


def test_many_test_sets_are_thinned_evenly(gaussian: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "MAX_TEST_SETS", 50)
    monkeypatch.setattr(trained, "MAX_TEST_ELEMENTS", 100)
    content = runs.page_content(gaussian, sets=1)
    assert content.confusion is not None
    assert np.sum(content.confusion.counts) == 17  # every third of fifty, as they have 250 elements
    assert all(sum(row) for row in content.confusion.counts)  # though classes come one after the other
    assert "on 17 test sets" in content.lead


def test_extreme_counts_do_not_make_a_huge_confusion_matrix() -> None:
    assert runs._classes(None, ["1", "3"], ["0", "4"]) == ["0", "1", "2", "3", "4"]
    assert runs._classes(None, ["1", "3"], ["2", str(-(2**63))]) == [str(-(2**63)), "1", "2", "3"]
    assert runs._classes(("a", "b"), ["a"], ["a"]) == ("a", "b")


def test_an_experiment_without_examples_shows_no_sets(
    gaussian: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gaussian, "example_sets", Experiment.example_sets)
    content = runs.page_content(gaussian)
    assert content.sets == ()
    assert content.confusion is None
    assert content.table is not None
    assert "test sets" not in content.lead


# Models


def labelled(x: list[np.ndarray], y: Any, columns: tuple[str, ...] | None = None) -> LabelledSets:
    sets = replace(Sets.of(x), columns=columns)
    return LabelledSets(sets, None if y is None else np.asarray(y), tuple(str(i) for i in range(len(x))))


def sample(d: int, count: int = 24) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=(3 + i % 3, d)) + i % 2 for i in range(count)]


@pytest.fixture(scope="module")
def fitted() -> SetClassifier:
    y = ["even", "odd"] * 12
    return SetClassifier(max_epochs=12, lr=0.01, dropout=0.0, layers=(8,), hidden=(8,), random_state=0).fit(
        sample(5), y
    )


def test_content_of_a_model_matches_its_predictions(fitted: SetClassifier) -> None:
    x, y = sample(5), ["even", "odd"] * 12
    content = models.page_content(fitted, labelled(x, y, tuple("abcde")), title="m", sets=6, seed=3)
    predicted, p = fitted.predict(x), fitted.predict_proba(x)
    pairs, names = list(zip(y, predicted, strict=True)), ("even", "odd")
    counts = [[pairs.count((true, predicted)) for predicted in names] for true in names]
    assert content.confusion is not None
    assert content.confusion.counts == tuple(map(tuple, counts))
    assert content.table is not None
    assert content.table.headings == ("Class", "Sets", "Recall", "Precision", "AUC")
    everything, even, odd = content.table.rows
    assert everything[:3] == ("all", "24", f"{fitted.score(x, y):.4f}")
    assert even[:3] == ("even", "12", f"{counts[0][0] / 12:.4f}")
    assert odd[3] == f"{counts[1][1] / sum(predicted == 'odd'):.4f}"
    higher = np.mean([a > b for a in p[1::2, 1] for b in p[::2, 1]])
    assert everything[4] == even[4] == odd[4] == f"{higher:.4f}"
    assert [c.points for c in content.curves if c.panel == "loss"] == [
        tuple((e["step"], e["loss"]) for e in fitted.history_)
    ]
    wrong = min(3, int(np.sum(predicted != np.array(y))))
    assert {shown.prediction for shown in content.sets} == {"even", "odd"}  # importance covers both signs
    assert [s.correct for s in content.sets].count(False) == wrong
    network = fitted.module_.network
    for shown in content.sets:
        i = int(shown.name.removeprefix("set "))
        assert (shown.label, shown.prediction) == (y[i], predicted[i])
        assert dict(shown.scores) == pytest.approx(dict(zip(("even", "odd"), p[i], strict=True)))
        inside = fitted.module_.standardized(torch.from_numpy(x[i])).unsqueeze(0)
        with eval_mode(network), torch.no_grad():
            energies = network.dirichlet_energies(inside)[0]
        np.testing.assert_allclose(shown.energies, energies, rtol=1e-5)
        np.testing.assert_allclose(shown.weights, fitted.latent_graph(x[i]).weights, atol=1e-6)
        np.testing.assert_allclose(shown.importance, fitted.element_importance(x[i]), atol=1e-6)
        np.testing.assert_allclose(shown.places, layout.principal_axes(inside[0].double().numpy()))
        values = fitted.module_.standardized(torch.from_numpy(x[i][0]))
        assert shown.elements[0].startswith("abcde"[int(values.abs().argmax())] + " ")
    facts = dict(content.facts)
    assert facts["Classes"] == "even, odd"
    assert facts["Sets"] == "24 sets of 3 to 5 elements, median 4"
    assert "max_epochs 12" in facts["Settings"]
    assert "verbose" not in facts["Settings"]


def test_a_model_without_labels_or_data(fitted: SetClassifier) -> None:
    content = models.page_content(fitted, labelled(sample(5), None), title="m", sets=3)
    assert content.table is None
    assert content.confusion is None
    assert content.lead == "3 of 24 sets are shown below."
    assert [(s.label, s.correct) for s in content.sets] == [(None, None)] * 3
    alone = models.page_content(fitted, None, title="m")
    assert alone.sets == ()
    assert "model only" in alone.lead
    assert alone.curves == content.curves


def test_unknown_classes_count_as_errors(fitted: SetClassifier) -> None:
    x = sample(5)
    y = ["even", "odd"] * 11 + ["prime"] * 2
    content = models.page_content(fitted, labelled(x, y), title="m")
    assert content.confusion is not None
    assert content.confusion.classes == ("even", "odd", "prime")
    assert sum(content.confusion.counts[2]) == 2
    assert [row[2] for row in content.confusion.counts] == [0, 0, 0]
    assert content.table is not None
    assert content.table.rows[3] == ("prime", "2", "0.0000", "—", "0.5000")
    with pytest.raises(ValueError, match="expected one label per set, got 2"):
        models.page_content(fitted, labelled(x, np.zeros((24, 2))), title="m")


def test_integer_classes_match_whatever_their_type() -> None:
    x = sample(2)
    x = [one + 3 * (i % 3) for i, one in enumerate(x)]
    model = SetClassifier(max_epochs=12, lr=0.01, dropout=0.0, layers=(8,), hidden=(8,), random_state=0).fit(
        x, [0, 1, 2] * 8
    )
    contents = [
        models.page_content(model, labelled(x, y), title="m", sets=6)
        for y in ([0.0, 1.0, 2.0] * 8, ["0", "1", "2"] * 8)
    ]
    assert contents[0].confusion == contents[1].confusion
    assert contents[0].confusion is not None
    assert contents[0].confusion.classes == ("0", "1", "2")
    assert len({shown.prediction for shown in contents[0].sets}) > 1
    for shown in contents[0].sets:
        i = int(shown.name.removeprefix("set "))
        np.testing.assert_array_equal(shown.places, x[i])  # two features are used as coordinates
        counted = model.element_importance(x[i], int(model.predict([x[i]])[0]))
        np.testing.assert_allclose(shown.importance, counted, atol=1e-6)


def test_several_labels_per_set() -> None:
    x = sample(3)
    y = np.array([[i % 2, i % 3 == 0, 1] for i in range(24)], dtype=int)
    model = SetClassifier(max_epochs=3, layers=(8,), hidden=(8,), random_state=0).fit(x, y)
    content = models.page_content(model, labelled(x, y), title="m", sets=4)
    predicted = model.predict(x)
    assert content.confusion is None
    assert content.table is not None
    assert content.table.rows[0][:3] == ("all", "24", f"{(predicted == y).all(1).mean():.4f}")
    for k in range(3):
        assert content.table.rows[k + 1][:3] == (
            str(k),
            str(y[:, k].sum()),
            f"{predicted[y[:, k] == 1, k].mean():.4f}",
        )
    assert content.table.rows[3][4] == "—"  # no AUC for a label of all sets
    for shown in content.sets:
        i = int(shown.name.removeprefix("set "))
        assert shown.label == ", ".join(str(k) for k in range(3) if y[i, k])
        assert shown.prediction == (", ".join(str(k) for k in range(3) if predicted[i, k]) or "none")
        assert shown.correct == bool((predicted[i] == y[i]).all())
        assert shown.kind == "points"
        np.testing.assert_array_equal(shown.places, x[i])
    assert dict(content.facts)["Labels"] == "0, 1, 2"
    with pytest.raises(ValueError, match=r"expected labels 0 or 1 of shape \[24, 3\], got shape \[24\]"):
        models.page_content(model, labelled(x, np.zeros(24)), title="m")


def test_regression_scores() -> None:
    x = sample(1)
    y = np.array([one.mean() for one in x])
    model = SetRegressor(max_epochs=2, layers=(8,), hidden=(8,), standardize=False, random_state=0).fit(x, y)
    content = models.page_content(model, labelled(x, y), title="m", sets=3)
    predicted = model.predict(x)
    assert content.table is not None
    assert content.confusion is None
    scores = dict(content.table.rows)
    assert scores["R²"] == f"{model.score(x, y):.4f}"
    assert scores["Mean absolute error"] == f"{np.abs(predicted - y).mean():.4g}"
    assert scores["Root mean squared error"] == f"{np.sqrt(np.square(predicted - y).mean()):.4g}"
    everything = np.concatenate(x)
    for shown in content.sets:
        i = int(shown.name.removeprefix("set "))
        assert (shown.prediction, shown.label, shown.correct) == (f"{predicted[i]:.4g}", f"{y[i]:.4g}", None)
        np.testing.assert_allclose(shown.places[:, 0], x[i][:, 0])
        units = (x[i][0, 0] - everything.mean()) / everything.std()
        assert shown.elements[0].replace("−", "-").endswith(f"({units:+.1f} sd)")
    with pytest.raises(ValueError, match="expected one number per set as label"):
        models.page_content(model, labelled(x, ["a"] * 24), title="m")


def test_large_sets_are_sampled(fitted: SetClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_ELEMENTS", 20)
    large = np.random.default_rng(0).normal(size=(50, 5))
    (shown,) = models.page_content(fitted, labelled([large], ["odd"]), title="m").sets
    assert shown.weights is not None
    assert shown.weights.shape == (20, 20)
    assert len(shown.places) == len(shown.elements) == 20
    assert shown.remark is not None
    assert shown.remark.endswith("Only 20 of its 50 elements and the graph between them are shown.")
    index = parts.sample_elements(50)
    assert len(set(index.tolist())) == 20
    assert index.tolist() == sorted(index.tolist())
    assert parts.sample_elements(20).tolist() == list(range(20))
    whole = ShownSet(
        "s", "images", np.zeros((50, 2)), groups=tuple("ab" * 25), elements=tuple(map(str, range(50))),
        images=np.arange(50, dtype=np.uint8).reshape(50, 1, 1),
    )  # fmt: skip
    some = parts.subset(whole, index)
    assert some.elements == tuple(str(i) for i in index.tolist())
    assert some.groups == tuple("ab"[i % 2] for i in index.tolist())
    np.testing.assert_array_equal(some.images, index.view(20, 1, 1))


# Parts


def test_importance_has_a_bounded_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = sw.DMPS.build(3, 2, dim=8, hidden=(8, 8), depth=1), torch.randn(6, 3)
    plain = ShownSet("s", "points", x.numpy())
    monkeypatch.setattr(parts, "MAX_LEAVE_ONE_OUT", 5)
    shown = parts.analyse_set(plain, model, x, output=1, whole=6)
    expected = importance(
        model, x[None], method="integrated-gradients", output=1, steps=parts.GRADIENT_STEPS
    )[0]
    np.testing.assert_allclose(shown.importance, expected, atol=1e-6)
    assert [parts.importance_method(model, n) for n in (5, 6)] == ["leave-one-out", "integrated-gradients"]
    attending = sw.DMPS.build(3, 2, dim=8, hidden=(8, 8), depth=1, pool="attention")
    assert parts.importance_method(attending, 10**6) == "attention"
    weights = parts.analyse_set(plain, attending, x, output=0, sign=-1.0, whole=6).importance
    assert weights is not None
    assert weights.sum() == pytest.approx(1, abs=1e-5)

    class Ink(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x.float().sum((1, 2)).unsqueeze(1)

    assert parts.analyse_set(plain, Ink(), x > 0, output=0, whole=6).importance is None


def test_pages_do_not_need_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = sw.DMPS.build(3, 1, dim=8, hidden=(8, 8), depth=1), 9 * torch.randn(6, 3)
    monkeypatch.setitem(sys.modules, "scipy.cluster", None)
    shown = parts.analyse_set(ShownSet("s", "points", x.numpy()), model, x, output=0, whole=6)
    assert shown.remark is None
    assert shown.weights is not None


def test_at_most_half_of_the_sets_are_errors_if_there_are_others() -> None:
    correct = [True] * 3 + [False] * 7
    assert [correct[i] for i in parts.choose_sets(correct, 4, 0)].count(False) == 2
    assert [correct[i] for i in parts.choose_sets(correct, 9, 0)].count(False) == 6
    assert parts.choose_sets(correct, 99, 0) == list(range(10))
    assert len(parts.choose_sets([None] * 5, 3, 0)) == 3
    assert parts.choose_sets([True] * 50, 5, 0) != parts.choose_sets([True] * 50, 5, 1)
    with pytest.raises(ValueError, match="sets must not be negative, got -1"):
        parts.choose_sets(correct, -1, 0)


def test_curves_omit_constants_duplicates_and_single_points() -> None:
    entries = [
        {"step": i, "loss": 1 / i, "lr": 0.1, "validation_accuracy": i / 9, "validation_accuracy_mode": i / 9,
         "validation_accuracy_round": i / 8}
        for i in (1, 2)
    ]  # fmt: skip
    curves = parts.learning_curves(
        {"fold-0": entries, "fold-1": entries[:1], "fold-2": [e | {"loss": 3} for e in entries]}
    )
    assert [(c.panel, c.name) for c in curves] == [
        ("loss", "training, fold-0"),
        ("accuracy", "validation, fold-0"),
        ("accuracy", "validation, round, fold-0"),
        ("loss", "training, fold-2"),
    ]
    assert curves[2].points == ((1.0, 1 / 8), (2.0, 2 / 8))


# Places


def test_kernel_layout_places_similar_elements_together() -> None:
    group = np.arange(12) % 3
    K = np.where(group[:, None] == group, 0.9, 1e-9)
    np.fill_diagonal(K, 1)
    places = layout.by_kernel(K)
    distance = np.linalg.norm(places[:, None] - places, axis=-1)
    others = ~np.eye(12, dtype=bool)
    same = (group[:, None] == group) & others
    assert distance[same].max() < 0.7 * distance[group[:, None] != group].min()
    assert distance[others].min() > 0.95  # images of one unit do not overlap
    np.testing.assert_array_equal(places, layout.by_kernel(K))
    for alike in (np.ones((5, 5)), np.eye(5), np.full((5, 5), 0.999)):
        apart = layout.by_kernel(alike)
        assert np.isfinite(apart).all()
        assert np.linalg.norm(apart[:, None] - apart, axis=-1)[~np.eye(5, dtype=bool)].min() > 0.95
    for n in (0, 1, 2):
        assert layout.by_kernel(np.ones((n, n))).shape == (n, 2)


def test_principal_axes_keep_distances_and_signs() -> None:
    random = np.random.default_rng(0)
    flat = random.normal(size=(9, 2)) * (5, 1)
    turn = np.linalg.qr(random.normal(size=(4, 4)))[0][:2]
    places = layout.principal_axes(flat @ turn + 7)
    np.testing.assert_allclose(
        np.linalg.norm(places[:, None] - places, axis=-1),
        np.linalg.norm(flat[:, None] - flat, axis=-1),
        atol=1e-9,
    )
    assert places[:, 0].std() > places[:, 1].std()
    x = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]])
    assert layout.principal_axes(x).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert layout.principal_axes(-x).tolist() == [[1.0, 0.0], [-1.0, 0.0]]
    assert layout.principal_axes(np.ones((3, 4))).tolist() == [[0.0, 0.0]] * 3
    assert layout.principal_axes(np.ones((1, 4)), axes=3).shape == (1, 3)


def test_grids_and_lines() -> None:
    assert layout.grid(0).shape == (0, 2)
    assert len(np.unique(layout.grid(10), axis=0)) == 10
    assert layout.grid(10).max(0).tolist() == [3, 0]
    assert layout.grid(10).min(0).tolist() == [0, -2]
    places = layout.line(np.arange(7.0))
    assert places[:, 0].tolist() == list(range(7))
    assert places[5:, 1].tolist() == places[:2, 1].tolist()
    assert len(set(places[:5, 1])) == 5
    assert len(set(layout.line(np.ones(3))[:, 1])) == 3


# Pages


def test_write_page_of_a_run(gaussian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[PageContent] = []
    monkeypatch.setattr(page, "render", lambda content: rendered.append(content) or "<p>ρ</p>")
    record = json.loads((gaussian / "result.json").read_text()) | {"row": "deepsets"}
    (tmp_path / "gaussian").mkdir()
    (tmp_path / "gaussian" / "other.json").write_text(json.dumps(record))
    out = write_page(gaussian, None, tmp_path / "new" / "page.html", sets=3, seed=2, results=tmp_path)
    assert out == tmp_path / "new" / "page.html"
    assert out.read_bytes() == "<p>ρ</p>".encode()
    expected = runs.page_content(gaussian, sets=3, seed=2)
    assert [s.name for s in rendered[0].sets] == [s.name for s in expected.sets]
    assert rendered[0].table is not None
    assert [line[0] for line in rendered[0].table.rows] == ["DeepSets (W = I)", "V-DMPS"]


def test_write_page_of_a_model(
    fitted: SetClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.save(tmp_path / "m.safetensors")
    rows = [f"{i},{'eo'[i % 2]},{','.join(map(str, e))}" for i, x in enumerate(sample(5)) for e in x]
    (tmp_path / "data.csv").write_text("\n".join(["bag,kind,a,b,c,d,e", *rows]) + "\n")
    rendered: list[PageContent] = []
    monkeypatch.setattr(page, "render", lambda content: rendered.append(content) or "")
    write_page(
        tmp_path / "m.safetensors", tmp_path / "data.csv", tmp_path / "page.html", sets=2,
        set_column="bag", label_column="kind",
    )  # fmt: skip
    assert rendered[0].title == "SetClassifier · m.safetensors"
    assert rendered[0].facts[0] == ("Data", "data.csv")
    assert rendered[0].confusion is not None
    assert rendered[0].confusion.classes == ("even", "odd", "e", "o")
    assert len(rendered[0].sets) == 2
    assert "d " in rendered[0].sets[0].elements[0] + rendered[0].sets[1].elements[0]
    write_page(tmp_path / "m.safetensors", out=tmp_path / "page.html")
    assert rendered[1].sets == ()


def test_sources_that_are_neither_run_nor_model_are_rejected(gaussian: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    for source, data, error, expected in (
        (
            tmp_path / "nothing",
            None,
            FileNotFoundError,
            "nothing does not exist: expected the folder",
        ),
        (tmp_path, None, FileNotFoundError, "is not the folder of a run: it has no config.json$"),
        (gaussian.parent.parent, None, FileNotFoundError, f"{gaussian} is one$"),
        (gaussian, tmp_path, ValueError, "data must be omitted for a run"),
        (gaussian / "checkpoint.pt", None, ValueError, f"is a part of a run: explore {gaussian}$"),
        (Path(__file__), None, ValueError, "is not a setwise model"),
    ):
        with pytest.raises(error, match=expected):
            write_page(source, data, out)
    (gaussian / "fold-0").mkdir()
    with pytest.raises(ValueError, match=f"fold-0 is a part of a run: explore {gaussian}"):
        write_page(gaussian / "fold-0", out=out)
    (gaussian / "fold-0").rmdir()
    with pytest.raises(IsADirectoryError, match=r"out must be an \.html file, got the folder"):
        write_page(gaussian, out=tmp_path)
    with pytest.raises(ValueError, match="sets must not be negative, got -2"):
        write_page(gaussian, out=out, sets=-2)
    assert not out.exists()


def test_importing_the_explorer_loads_no_heavy_package() -> None:
    code = (
        "import sys, setwise.inspection.explorer; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
