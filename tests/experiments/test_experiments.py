"""From a configuration to a recorded result, a table and figures."""

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import setwise as sw
from setwise.experiments import EXPERIMENTS, report, runner
from setwise.experiments.data.gaussian import bayes_logits
from setwise.experiments.gaussian import Gaussian
from setwise.training.checkpoint import load_checkpoint

SMALL = Gaussian(test_sets=2_000, training=sw.Training(steps=60, evaluations=3, checkpoint_seconds=0))


def run(tmp_path: Path, experiment: Gaussian = SMALL, row: str = "v-dmps", **more: Any) -> dict[str, Any]:
    return runner.run(
        experiment, row, 0, out=tmp_path / "runs", results=tmp_path / "results", show=False, **more
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded results of a small sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    experiment = replace(SMALL, training=replace(SMALL.training, evaluations=1))
    for rho in (0.5, 0.95):
        for row in Gaussian.ROWS:
            for seed in (0, 1):
                runner.run(
                    experiment.vary(rho),
                    row,
                    seed,
                    out=folder / "runs",
                    results=folder / "results",
                    show=False,
                )
    return folder / "results"


def test_a_result_carries_everything_it_depends_on(tmp_path: Path) -> None:
    result = run(tmp_path)
    (path,) = (tmp_path / "results" / "gaussian").iterdir()
    assert path.name == "v-dmps_rho-0.95_steps-60_seed-0.json"
    assert json.loads(path.read_text()) == result
    assert (result["experiment"], result["row"], result["seed"], result["rho"]) == (
        "gaussian",
        "v-dmps",
        0,
        0.95,
    )
    assert result["config"] == json.loads(json.dumps(asdict(SMALL)))
    assert result["budget"]["steps"] == 60
    assert result["budget"]["sets"] == 60 * 128
    assert result["budget"]["threads"] == 1
    assert result["budget"]["seconds"] > 0
    assert result["versions"]["torch"] == torch.__version__
    assert result["versions"]["setwise"] == sw.__version__
    assert result["data"].startswith("synthetic")
    assert {"accuracy", "loss", "bayes_accuracy", "kernel", "paper", "revision"} <= result.keys()


def test_fields_missing_in_a_record_get_their_default(tmp_path: Path) -> None:
    result = run(tmp_path)
    (path,) = (tmp_path / "results" / "gaussian").iterdir()
    (folder,) = (tmp_path / "runs" / "gaussian" / "v-dmps").iterdir()
    del result["config"]["training"]["clip"], result["config"]["threads"]
    for file in (path, folder / "result.json"):
        file.write_text(json.dumps(result))
    config = result["config"] | {"data": result["data"]}
    (folder / "config.json").write_text(json.dumps(config))
    assert run(tmp_path, resume=True) == result
    with pytest.raises(FileExistsError, match="threads differs: 1 and 2"):
        run(tmp_path, replace(SMALL, threads=2), resume=True)


def test_the_kernel_on_record_is_that_of_the_trained_model(tmp_path: Path) -> None:
    result = run(tmp_path)
    model = SMALL.model("v-dmps", 0)
    (folder,) = (tmp_path / "runs" / "gaussian" / "v-dmps").iterdir()
    model.load_state_dict(load_checkpoint(folder / "checkpoint.pt")["model"])
    batch, y = SMALL._sample(2_000, "test", 0)
    with torch.no_grad():
        K = model.graph.similarity(model.encoder(batch.x))
        out = model(batch.x)
    assert torch.allclose(torch.tensor(result["kernel"]["correlated"]), K[y == 1].mean(0), atol=1e-5)
    assert torch.allclose(torch.tensor(result["kernel"]["independent"]), K[y == 0].mean(0), atol=1e-5)
    mean = K[y == 1].mean(0)
    others = [mean[i, j].item() for i in range(5) for j in range(5) if i != j and {i, j} != {1, 3}]
    assert result["kernel_contrast"] == pytest.approx(mean[1, 3].item() / (sum(others) / 18), rel=1e-4)
    assert result["accuracy"] == ((out[:, 0] > 0).long() == y).double().mean().item()


def test_rows_are_the_models_of_the_appendix() -> None:
    v, deep = (SMALL.model(row, 0) for row in ("v-dmps", "deepsets"))
    shapes = {name: tuple(p.shape) for name, p in v.named_parameters() if name.endswith("weight")}
    assert shapes == {
        "encoder.layers.0.linear.weight": (32, 1),
        "graph.kernel.embed.layers.0.linear.weight": (64, 32),
        "graph.kernel.embed.layers.1.linear.weight": (128, 64),
        "blocks.0.dense.linear.weight": (32, 32),
        "blocks.1.dense.linear.weight": (32, 32),
        "blocks.2.dense.linear.weight": (32, 32),
        "head.linear.weight": (1, 32),
    }
    assert isinstance(v.pool, sw.nn.MaxPool)
    assert all(isinstance(block, sw.nn.MessagePassingBlock) for block in v.blocks)
    assert isinstance(deep.graph, sw.nn.IdentityGraph)
    assert v.graph.sigma.item() != 1.0  # started from data


def test_seeds_decide_weights_and_data_but_not_the_test_sets() -> None:
    a, b = SMALL.model("v-dmps", 0), SMALL.model("v-dmps", 1)
    assert not torch.equal(a.head.linear.weight, b.head.linear.weight)
    assert torch.equal(a.head.linear.weight, SMALL.model("v-dmps", 0).head.linear.weight)
    assert not torch.equal(SMALL.batches(0)(1)[0].x, SMALL.batches(1)(1)[0].x)
    assert not torch.equal(SMALL.batches(0)(1)[0].x, SMALL.batches(0)(2)[0].x)
    batch, y = SMALL.batches(0)(1)
    assert (len(batch), y.sum().item()) == (128, 64)


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    first = run(tmp_path)
    with pytest.raises(FileExistsError, match="already contains a run: continue it with --resume"):
        run(tmp_path)
    assert run(tmp_path, resume=True) == first
    other = replace(SMALL, test_sets=4_000)
    with pytest.raises(FileExistsError, match=r"test_sets differs: 2000 and 4000.*another --results"):
        run(tmp_path, other, resume=True)
    shutil.rmtree(tmp_path / "results")
    with pytest.raises(FileExistsError, match=r"test_sets differs: 2000 and 4000.*another --out"):
        run(tmp_path, other, resume=True)
    (folder,) = (tmp_path / "runs" / "gaussian" / "v-dmps").iterdir()
    (folder / "result.json").unlink()
    with pytest.raises(ValueError, match=r"training.lr differs: 0.001 and 0.1"):
        run(tmp_path, replace(SMALL, training=replace(SMALL.training, lr=0.1)), resume=True)
    (folder / "config.json").unlink()
    with pytest.raises(FileExistsError, match="already contains a run"):
        run(tmp_path)


def test_an_invalid_result_file_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    (folder,) = (tmp_path / "runs" / "gaussian" / "v-dmps").iterdir()
    (folder / "result.json").write_text("{}")
    with pytest.raises(ValueError, match=r"result\.json is not a result: remove it"):
        run(tmp_path, resume=True)
    (folder / "result.json").unlink()
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"another configuration \(unreadable\)"):
        run(tmp_path, resume=True)


def test_double_precision_goes_all_the_way(tmp_path: Path) -> None:
    training = replace(SMALL.training, precision="64-true", steps=5)
    assert run(tmp_path, replace(SMALL, training=training))["kernel_contrast"] > 0


def test_a_run_locks_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(*_: object, **__: object) -> None:
        with pytest.raises(BlockingIOError, match="is in use by another process"):
            run(tmp_path, resume=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "fit", meanwhile)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(tmp_path / "a")
    sampled = Gaussian._sample

    def interrupted(self: Gaussian, sets: int, *purpose: str | int) -> Any:
        if purpose == ("train", 0, 50):
            raise KeyboardInterrupt
        return sampled(self, sets, *purpose)

    monkeypatch.setattr(Gaussian, "_sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b")
    monkeypatch.undo()
    found = run(tmp_path / "b", resume=True)
    for result in (expected, found):
        del result["budget"]["seconds"]
    assert found == expected


def test_tables_average_seeds_and_keep_the_order_of_the_paper(results: Path) -> None:
    loaded = report.load_results(results, Gaussian)
    headings, lines = report.table(Gaussian, loaded)
    assert headings[:4] == ["Row", "rho", "Test accuracy", "Paper"]
    assert [line[:2] for line in lines] == [
        ["DeepSets (W = I)", "0.5"], ["DeepSets (W = I)", "0.95"], ["V-DMPS", "0.5"], ["V-DMPS", "0.95"],
    ]  # fmt: skip
    seeds = [r["accuracy"] for r in loaded if (r["row"], r["rho"]) == ("v-dmps", 0.95)]
    mean = sum(seeds) / 2
    spread = abs(seeds[0] - seeds[1]) / 2**0.5
    assert lines[3][2] == f"{mean:.4f} ± {spread:.4f}"
    assert lines[3][3] == "—"
    assert lines[3][-4:-2] == ["60", "7,680"]
    assert lines[3][-1] == "2"


def test_tables_do_not_mix_budgets(results: Path) -> None:
    loaded = report.load_results(results, Gaussian)
    loaded[0]["budget"]["steps"] = 61
    assert len(report.table(Gaussian, loaded)[1]) == 5


def test_figures_show_what_is_on_record(results: Path) -> None:
    loaded = report.load_results(results, Gaussian)
    figures = Gaussian.figures(loaded)
    assert set(figures) == {"gaussian-kernel", "gaussian-accuracy"}
    ax = figures["gaussian-accuracy"].axes[0]
    lines = {line.get_label(): line for line in ax.lines}
    for row, label in Gaussian.ROWS.items():
        for x, y in zip(*lines[label].get_data(), strict=True):
            seeds = [r["accuracy"] for r in loaded if (r["row"], r["rho"]) == (row, x)]
            assert y == pytest.approx(sum(seeds) / 2)
    limit = dict(zip(*lines["Bayes limit of invariant classifiers"].get_data(), strict=True))
    assert limit[0.0] == pytest.approx(0.5, abs=0.01)
    assert limit[0.95] == pytest.approx(0.6075, abs=0.003)
    assert max(limit) == 0.95
    left, right = figures["gaussian-kernel"].axes[:2]
    kernels = [r["kernel"] for r in loaded if "kernel" in r and r["rho"] == 0.95]
    for ax, name in ((left, "correlated"), (right, "independent")):
        drawn = torch.as_tensor(ax.images[0].get_array().data)
        assert torch.allclose(drawn, torch.tensor([k[name] for k in kernels]).double().mean(0), atol=1e-6)


def test_figures_without_a_kernel_show_the_rest(results: Path) -> None:
    loaded = [r for r in report.load_results(results, Gaussian) if r["row"] == "deepsets"]
    assert set(Gaussian.figures(loaded)) == {"gaussian-accuracy"}


def test_missing_and_damaged_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="'setwise run gaussian'"):
        report.load_results(tmp_path, Gaussian)
    (tmp_path / "gaussian").mkdir()
    (tmp_path / "gaussian" / "x.json").write_text("{")
    with pytest.raises(ValueError, match=r"x\.json is not readable JSON"):
        report.load_results(tmp_path, Gaussian)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"rho": None}, "rho must be a number, got None"),
        ({"accuracy": "0.6"}, "accuracy must be a number, got '0.6'"),
        ({"accuracy": math.nan}, "accuracy must be a number, got nan"),
        ({"budget": 3}, "budget must be an object, got 3"),
        ({"budget": {"steps": 1, "sets": 2}}, "seconds must be a number, got None"),
        ({"kernel_contrast": None}, "kernel_contrast must be a number, got None"),
        ({"experiment": "counting"}, "experiment must be 'gaussian', got 'counting'"),
        ({"row": "magic"}, "row must be one of deepsets, v-dmps, got 'magic'"),
    ],
)
def test_invalid_results_are_refused_with_the_reason(
    results: Path, tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    result = report.load_results(results, Gaussian)[0] | changes
    (tmp_path / "gaussian").mkdir()
    (tmp_path / "gaussian" / "x.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match=rf"x\.json is not a valid result of gaussian: {fault}"):
        report.load_results(tmp_path, Gaussian)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho": 1.0}, "rho must be at least 0 and below 1, got 1.0"),
        ({"test_sets": 3}, "test_sets must be a positive even number, got 3"),
        ({"threads": 0}, "threads must lie between 1 and 1024, got 0"),
    ],
)
def test_invalid_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_complete(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.name == name
    assert set(experiment.PAPER) == set(experiment.ROWS)
    assert hasattr(experiment(), experiment.varied)


def test_the_defaults_are_those_of_the_appendix() -> None:
    default = Gaussian()
    assert (default.rho, default.test_sets, default.threads) == (0.95, 200_000, 1)
    training = default.training
    assert (training.steps, training.optimizer, training.lr, training.evaluations) == (
        30_000,
        "adam",
        1e-3,
        60,
    )
    assert (training.schedule, training.plateau_factor, training.plateau_patience) == ("plateau", 0.9, 1)
    assert Gaussian(rho=0.0).rho == 0
    with pytest.raises(ValueError, match="test_sets must be a positive even number, got 0"):
        Gaussian(test_sets=0)


def test_training_validation_and_test_sets_have_nothing_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Any, ...]] = []
    sampled = Gaussian._sample

    def spy(self: Gaussian, sets: int, *purpose: str | int) -> Any:
        drawn.append((sets, *purpose))
        return sampled(self, sets, *purpose)

    experiment = replace(SMALL, test_sets=12_000)
    model = experiment.model("v-dmps", 3)
    monkeypatch.setattr(Gaussian, "_sample", spy)
    experiment.batches(3)(7)
    experiment.validation(3)
    experiment.test(model, 3)
    assert drawn == [
        (128, "train", 3, 7),
        (10_000, "validation", 3, 0),
        (10_000, "validation", 3, 1),
        (10_000, "test", 0),
        (2_000, "test", 1),
        (128, "train", 3, 1),  # where the bandwidth of the untrained kernel beside it starts
    ]


def test_the_limit_on_record_is_that_of_the_bayes_classifier_on_the_test_sets(tmp_path: Path) -> None:
    result = run(tmp_path, SMALL.vary(0.8))
    batch, y = SMALL.vary(0.8)._sample(2_000, "test", 0)
    best = (bayes_logits(batch.x, 0.8)[:, 0] > 0).long()
    assert result["bayes_accuracy"] == (best == y).double().mean().item()
    kernel = result["kernel"]["independent"]
    others = [kernel[i][j] for i in range(5) for j in range(5) if i != j and {i, j} != {1, 3}]
    assert result["kernel_contrast_independent"] == pytest.approx(kernel[1][3] / (sum(others) / 18))
