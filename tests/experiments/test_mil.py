"""The classic benchmarks: rows, folds, batches, logistic regression, table and figure."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import setwise as sw
from setwise.cli.main import main
from setwise.experiments import mil, report, runner
from setwise.experiments.mil import ARCHITECTURES, FIVE, MIL, NAMES, PUBLISHED

QUICK = sw.Training(steps=2, evaluations=1)
SMALL = MIL(bags="musk1", folds=2, sets=4, instances=3, training=QUICK)
REAL = Path(os.environ.get("SETWISE_DATA", "")) / "mil" / "mil_classic.npz"
DIM = 6


def classic(folder: Path, bags: int = 20) -> None:
    """Bags whose positives hold one instance far out; the last feature is the same everywhere."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for name in NAMES:
        sizes = random.integers(2, 7, bags)
        y = np.arange(bags) % 2
        x = [random.normal(size=(n, DIM)) for n in sizes]
        for one, label in zip(x, y, strict=True):
            one[0] += 4 * label
            one[:, -1] = 0.1
        arrays[f"{name}_X"] = np.concatenate(x)
        arrays[f"{name}_bag"] = np.repeat(np.arange(bags), sizes)
        arrays[f"{name}_y"] = y
    (folder / "mil").mkdir(parents=True)
    np.savez(folder / "mil" / "mil_classic.npz", **arrays)


@pytest.fixture(autouse=True)
def made(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    mil._bags.cache_clear()
    mil._fold_split.cache_clear()
    if "realdata" not in request.keywords:
        folder = tmp_path_factory.getbasetemp() / "classic"
        if not folder.exists():
            classic(folder)
        monkeypatch.setenv("SETWISE_DATA", str(folder))


def run(folder: Path, row: str, experiment: MIL = SMALL, seed: int = 0) -> dict[str, Any]:
    return runner.run(experiment, row, seed, out=folder / "runs", results=folder / "results", show=False)


def test_every_row_but_the_baseline_has_the_same_encoder() -> None:
    assert list(MIL.ROWS) == ["logistic", *ARCHITECTURES, "estimator"]
    shapes = {
        str([tuple(p.shape) for p in SMALL.model(row, 0).encoder.parameters()]) for row in ARCHITECTURES
    }
    assert shapes == {"[(128, 6), (128,), (64, 128), (64,)]"}
    encoder = SMALL.model("mean", 0).encoder
    assert [type(m).__name__ for m in encoder.network] == [
        "Rescale", "Hardtanh", "Dense", "Dropout", "Dense", "Dropout",
    ]  # fmt: skip


def test_the_estimator_row_is_the_default_classifier() -> None:
    module = SMALL.fitted_model("estimator", 3)
    train, _ = SMALL._parts(3)
    expected = sw.SetClassifier(random_state=3).fit([bag.x for bag in train], train.labels)
    assert torch.equal(module(train[0].x[None]), expected.module_(train[0].x[None]))
    assert SMALL.fitted_model("d-dmps-ldc", 3) is None


@pytest.mark.parametrize("row", ARCHITECTURES)
def test_every_row_learns(row: str) -> None:
    model = SMALL.model(row, 0)
    before = [p.detach().clone() for p in model.parameters()]
    sw.fit(model, SMALL.task(row), SMALL.batches(0), replace(SMALL.training, weight_decay=5e-3))
    assert not any(
        torch.equal(a, b) and a.numel() > 1 for a, b in zip(before, model.parameters(), strict=True)
    )
    again, other = SMALL.model(row, 0), SMALL.model(row, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, again.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


def test_the_rows_are_what_they_are_called() -> None:
    denoising = dict.fromkeys(("d-dmps-fdc", "d-dmps-ldc", "attentive"), sw.nn.SetDenoisingBlock)
    for row, kind in (
        {"v-dmps": sw.nn.MessagePassingBlock, "r-dmps": sw.nn.SetResidualBlock} | denoising
    ).items():
        assert [type(block) for block in SMALL.model(row, 0).blocks] == [kind]
    assert not SMALL.model("d-dmps-fdc", 0).blocks[0].gamma.learn
    assert SMALL.model("d-dmps-ldc", 0).blocks[0].gamma.learn
    ours = SMALL.model("attentive", 0)
    assert ours.graph.normalize is sw.functional.row_normalize
    assert [type(pool) for pool in ours.pool.pools] == [sw.nn.MeanPool, sw.nn.GatedAttentionPool]
    pools = {"mean": sw.nn.MeanPool, "max": sw.nn.MaxPool, "attention": sw.nn.AttentionPool}
    for row, kind in {**pools, "gated-attention": sw.nn.GatedAttentionPool}.items():
        assert type(SMALL.model(row, 0).pool) is kind


def test_features_are_standardised_by_the_instances_trained_on() -> None:
    train, _ = SMALL._parts(0)
    x = torch.cat([train[i].x for i in range(len(train))])
    layer = SMALL.model("mean", 0).encoder.network[0]
    torch.testing.assert_close(layer.mean, x.mean(0))
    torch.testing.assert_close(layer.std[:-1], x.std(0)[:-1])
    assert layer.std[-1] == 1  # the one that does not vary


def test_batches_draw_some_instances_of_each_bag() -> None:
    train, _ = SMALL._parts(0)
    seen: list[int] = []
    for step in (1, 2, 3, 4, 5):
        batch, y = SMALL.batches(0)(step)
        index = sw.training.epochs(len(train), 4, step, "mil", 0)
        assert torch.equal(y, train.labels[index])
        for some, i in zip(batch.to_list(), index.tolist(), strict=True):
            whole = train[i].x
            assert len(some) == min(3, len(whole))
            rows = {tuple(row) for row in whole.tolist()}
            assert len({tuple(row) for row in some.tolist()} & rows) == len(some)
        seen += index.tolist()
    assert sorted(seen[: len(train)]) == list(range(len(train)))


def test_each_bag_is_tested_on_once() -> None:
    tested: list[str] = []
    for number in SMALL.trials(3).values():
        train, test = SMALL._parts(number)
        assert not set(train.names) & set(test.names)
        tested += test.names
    assert sorted(tested, key=int) == [str(i) for i in range(20)]


def test_logistic_regression_is_that_of_the_mean_instance() -> None:
    from sklearn.linear_model import LogisticRegression

    model = SMALL.fitted_model("logistic", 0)
    assert model is not None
    assert SMALL.fitted_model("mean", 0) is None
    train, test = SMALL._parts(0)
    x, new = (np.stack([bags[i].x.mean(0).numpy() for i in range(len(bags))]) for bags in (train, test))
    std = x.std(0, ddof=1)
    std[-1] = 1
    scaled, fresh = ((a - x.mean(0)) / std for a in (x, new))
    batch, _ = test.batch(range(len(test)))
    found = model(batch.x, batch.mask).detach().squeeze(-1)
    fits = [LogisticRegression(C=c, max_iter=2000).fit(scaled, train.labels) for c in mil.STRENGTHS]
    assert any(np.allclose(fit.decision_function(fresh), found, atol=1e-3) for fit in fits)


def test_a_directly_fitted_row_goes_on_record_without_batches(tmp_path: Path) -> None:
    result = run(tmp_path, "logistic")
    assert result["budget"]["steps"] == result["budget"]["sets"] == 0
    assert len(result["folds"]) == 2
    assert result["accuracy"] > 0.6
    assert result["data"] == "classic MIL benchmarks"


def test_all_data_sets_run_unless_one_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    main(["run", "mil", "--row", "mean", "--folds", "2", "--training.steps", "1", *out])
    found = [json.loads(path.read_text()) for path in (tmp_path / "results" / "mil").iterdir()]
    assert {r["bags"] for r in found} == set(NAMES)
    assert {r["config"]["bags"] for r in found} == set(NAMES)
    assert MIL(bags="fox").values == ("fox",)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bags": "lion"}, "bags must be one of all, musk1, musk2, fox, tiger, elephant, ucsb, got 'lion'"),
        ({"instances": 0}, "instances must be at least 1, got 0"),
        ({"sets": 0}, "sets must be at least 1, got 0"),
    ],
)
def test_invalid_values_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        replace(SMALL, **changes)


def test_a_sweep_accepts_all(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    main(
        [
            "run",
            "mil",
            "--row",
            "mean",
            "--folds",
            "2",
            "--training.steps",
            "1",
            "--sweep",
            "fox",
            "all",
            *out,
        ]
    )
    assert len(list((tmp_path / "results" / "mil").iterdir())) == 6
    with pytest.raises(ValueError, match="folds must be at most 20, the number of bags, got 21"):
        run(tmp_path / "b", "mean", replace(SMALL, folds=21))


def test_a_result_on_unknown_bags_is_named(tmp_path: Path) -> None:
    (tmp_path / "mil").mkdir()
    (tmp_path / "mil" / "x.json").write_text(json.dumps(result("mean", "lion", 0, 0.5)))
    with pytest.raises(ValueError, match=r"bags must be one of musk1, .*, got 'lion'"):
        report.load_results(tmp_path, MIL)


def test_a_missing_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["run", "mil", "--row", "mean", "--out", str(tmp_path / "a"), "--results", str(tmp_path / "b")])
    assert capsys.readouterr().err.startswith("setwise: mil_classic.npz is missing: copy it to")


def result(row: str, bags: str, seed: int, *values: float) -> dict[str, Any]:
    return {
        "experiment": "mil", "row": row, "bags": bags, "seed": seed, "accuracy": 0.5, "data": "classic",
        "folds": [{"accuracy": value, "auc": 0.5} for value in values],
        "budget": {"steps": 160, "sets": 2, "seconds": 60.0},
    }  # fmt: skip


def test_the_table_has_a_column_for_each_set_and_published_numbers_below() -> None:
    results = [result("mean", name, 0, 0.6, 0.8) for name in NAMES] + [result("mean", "fox", 1, 0.5, 0.5)]
    headings, lines = report.table(MIL, [*results, result("max", "musk2", 0, 0.9, 0.9)])
    assert headings == [
        "Row",
        *NAMES,
        "Mean of five",
        "Mean of six",
        "AUC of six",
        "Batches",
        "Minutes",
        "Seeds",
    ]
    first = lines[0]
    assert first[0] == "Mean pooling"
    assert first[1] == "0.700 ± 0.100"
    assert first[3] == "0.600 ± 0.071"  # fox, over four folds
    assert first[7:9] == ["0.680 ± 0.042", "0.683 ± 0.039"]
    assert first[9:] == ["0.500 ± 0.000", "160", "3.5", "1–2 × 2 folds"]
    assert lines[1][:4] == ["Max pooling", "—", "0.900 ± 0.000", "—"]
    assert lines[1][7:9] == ["—", "—"]
    published = {line[0]: line[1:] for line in lines[2:]}
    assert list(published) == list(PUBLISHED)
    assert published["Gated Attention (Ilse et al. 2018)"] == [
        "0.900", "0.863", "0.603", "0.845", "0.857", "—", "0.814", "—", "—", "—", "—", "—"
    ]  # fmt: skip


def test_published_numbers_are_for_the_five_sets() -> None:
    assert {tuple(numbers) for numbers in PUBLISHED.values()} == {FIVE}
    assert all(0.5 < value < 1 for numbers in PUBLISHED.values() for value in numbers.values())


def test_the_figure_has_a_panel_for_each_set() -> None:
    results = [result(row, name, 0, 0.6, 0.8) for row in ("mean", "attentive") for name in NAMES[:3]]
    figure = MIL.figures(results)["mil"]
    assert [ax.get_title() for ax in figure.axes] == list(NAMES)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "Mean pooling", MIL.ROWS["attentive"],
    ]  # fmt: skip


@pytest.mark.realdata
@pytest.mark.skipif(not REAL.is_file(), reason="the classic sets are not available")
def test_the_baseline_on_real_bags() -> None:
    experiment = MIL(bags="elephant")
    model = experiment.fitted_model("logistic", 0)
    assert model is not None
    assert experiment.test(model, 0)["accuracy"] >= 0.6
