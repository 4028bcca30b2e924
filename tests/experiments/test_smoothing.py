"""The study of p against depth: its models, what goes on record, its figure."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import setwise as sw
from setwise.cli.main import main
from setwise.experiments import pointcloud, runner, smoothing
from setwise.experiments.smoothing import POWERS, Smoothing
from tests.experiments.test_pointcloud import QUICK, SOLIDS

STUDY = Smoothing(points=16, few_points=8, sets=5, depth=3, training=QUICK)
every_row = pytest.mark.parametrize("row", Smoothing.ROWS)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few solids, whatever data this machine has."""
    monkeypatch.setattr(pointcloud, "_shapes", lambda: SOLIDS)


def run(folder: Path, row: str, experiment: Smoothing = STUDY, seed: int = 0) -> dict[str, Any]:
    return runner.run(experiment, row, seed, out=folder / "runs", results=folder / "results", show=False)


@every_row
def test_nothing_but_p_differs(row: str) -> None:
    model, usual = STUDY.model(row, 0), STUDY.model("p-2", 0)
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == {
        name: tuple(value.shape) for name, value in usual.state_dict().items()
    }
    assert all(torch.equal(value, usual.state_dict()[name]) for name, value in model.state_dict().items())
    assert [block.p for block in model.blocks] == [float(row.removeprefix("p-"))] * 3
    assert len({id(block.gamma) for block in model.blocks}) == 1
    assert not model.blocks[0].gamma.learn
    assert model.blocks[0].gamma.value.item() == 0.5
    layers = [
        *model.encoder.layers,
        *model.graph.kernel.embed.layers,
        *(b.dense for b in model.blocks),
        model.head,
    ]
    widths = [(layer.linear.in_features, layer.linear.out_features) for layer in layers]
    assert widths == [(3, 64), *[(64, 64)] * 5, (64, 10)]
    assert {layer.activation for layer in layers[:-1]} == {"tanh"}
    assert isinstance(model.pool, sw.nn.MaxPool)
    x = torch.randn(2, 9, 3)
    assert torch.allclose(model(x), usual(x), atol=1e-4) == (row == "p-2")


def test_the_square_is_a_denoising_model() -> None:
    model = replace(STUDY, depth=5).model("p-2", 3)
    usual = sw.DMPS.build(3, 10, dim=64, hidden=(64, 64), depth=5, gamma=0.5, pool="max", activation="tanh")
    usual.load_state_dict(model.state_dict())
    x = torch.randn(2, 9, 3)
    assert torch.equal(model(x), usual(x))


@every_row
def test_every_row_learns(row: str) -> None:
    model = STUDY.model(row, 0)
    before = [p.detach().clone() for p in model.parameters()]
    sw.fit(model, STUDY.task(row), STUDY.batches(0), STUDY.training)
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_smaller_p_leaves_more_of_the_roughness() -> None:
    """Before any training, with many blocks: the effect that the study is about."""
    deep = replace(STUDY, depth=12)
    left = [deep._graph_scores(deep.model(row, 0))["roughness_left"] for row in ("p-1", "p-1.5", "p-2")]
    assert left[0] > 2 * left[1] > 4 * left[2] > 0


@every_row
def test_recorded_scores(row: str, tmp_path: Path) -> None:
    result = run(tmp_path, row)
    (path,) = (tmp_path / "results" / "smoothing").iterdir()
    assert path.name == f"{row}_depth-3_steps-3_seed-0.json"
    assert json.loads(path.read_text()) == result
    assert (result["row"], result["depth"], result["config"]["depth"]) == (row, 3, 3)
    assert result["gammas"] == [0.5] * 3
    assert result["paper"] is None
    assert "examples" not in result
    assert len(result["roughness"]) == len(result["roughness_untrained"]) == 4
    assert result["roughness_left"] == result["roughness"][3]
    fresh = STUDY._graph_scores(STUDY.model(row, 0))["roughness"]
    assert result["roughness_untrained"] == pytest.approx(fresh)
    assert result["roughness"] != pytest.approx(fresh)


def test_figure(tmp_path: Path) -> None:
    results = [run(tmp_path, row, replace(STUDY, depth=depth)) for row in ("p-2", "p-1") for depth in (4, 2)]
    at = {(r["row"], r["depth"]): r for r in results}
    short = replace(STUDY, depth=2, training=replace(QUICK, steps=1))
    figure = Smoothing.figures([*results, run(tmp_path, "p-1.5", short)])["smoothing"]
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == [Smoothing.ROWS["p-1"], Smoothing.ROWS["p-2"]]
    for line, row in zip(left.lines, ("p-1", "p-2"), strict=True):
        assert line.get_xdata().tolist() == [2, 4]
        assert line.get_ydata().tolist() == [at[row, depth]["accuracy"] for depth in (2, 4)]
    drawn = [(row, key) for row in ("p-1", "p-2") for key in ("roughness", "roughness_untrained")]
    for line, (row, key) in zip(right.lines, drawn, strict=True):
        assert line.get_ydata().tolist() == [at[row, depth][key][-1] for depth in (2, 4)]
        assert line.get_linestyle() == ("-" if key == "roughness" else "--")
        assert line.get_label() == Smoothing.ROWS[row] + (", untrained" if "un" in key else "")
        assert line.get_color() == left.lines[row == "p-2"].get_color()
    assert left.lines[0].get_color() != left.lines[1].get_color()
    for ax in (left, right):
        assert ax.get_xscale() == "log"
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["2", "4"]
        assert ax.get_legend() is not None
    assert (left.get_yscale(), right.get_yscale()) == ("linear", "log")
    assert left.get_title() == "16 points, 3 batches per run"


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = ["--results", str(tmp_path / "results")]
    small = ["--points", "16", "--few-points", "8", "--sets", "5", "--training.steps", "2"]
    sweep = ["--row", "p-1", "p-2", "--sweep", "1", "2", "--out", str(tmp_path / "runs")]
    main(["run", "smoothing", *sweep, *results, *small])
    assert "p = 1 (ours)  depth 2  seed 0  test accuracy" in capsys.readouterr().out
    main(["table", "smoothing", "--markdown", *results])
    table = capsys.readouterr().out
    assert [line.split(" | ")[:2] for line in table.splitlines()[2:]] == [
        [f"| {Smoothing.ROWS[row]}", depth] for row in ("p-1", "p-2") for depth in ("1", "2")
    ]
    assert "Final roughness" in table
    main(["figure", "smoothing", *results, "--out", str(tmp_path / "figures")])
    assert (tmp_path / "figures" / "smoothing.png").stat().st_size > 10_000


def test_invalid_configurations() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        Smoothing().vary("0")
    with pytest.raises(ValueError, match="start_points is only valid for pointcloud, got 20 with smoothing"):
        Smoothing(start_points=20)
    with pytest.raises(ValueError, match="points must be at least 1, got 0"):
        Smoothing(points=0)


def test_rows_are_named_after_their_power() -> None:
    assert list(Smoothing.ROWS) == list(Smoothing.PAPER) == list(POWERS)
    assert all(Smoothing.paper(row, 8) is None for row in Smoothing.ROWS)
    assert all(f"p = {POWERS[row]:g}" in label for row, label in Smoothing.ROWS.items())
    assert smoothing.GAMMA == 0.5
