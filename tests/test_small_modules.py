"""Configuration, files, randomness, progress, plots: small, but relied on."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import setwise as sw
from setwise import files, plots
from setwise.progress import Bar, Silent


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "training.steps must be at least 1, got 0"),
        ({"evaluations": 0}, "training.evaluations must be at least 1, got 0"),
        ({"warmup": -1}, "training.warmup must be at least 0, got -1"),
        ({"plateau_patience": -1}, "training.plateau_patience must be at least 0, got -1"),
        ({"weight_decay": -0.1}, "training.weight_decay must be finite and not negative, got -0.1"),
        ({"checkpoint_seconds": -1.0}, "training.checkpoint_seconds must be finite and not negative"),
        ({"lr": 0.0}, "training.lr must be positive and finite, got 0.0"),
        ({"lr": float("nan")}, "training.lr must be positive and finite, got nan"),
        ({"plateau_factor": 1.0}, "training.plateau_factor must lie between 0 and 1, got 1.0"),
        ({"clip": 0.0}, "training.clip must be positive and finite, got 0.0"),
        ({"clip": float("inf")}, "training.clip must be positive and finite, got inf"),
        ({"lr": float("inf")}, "training.lr must be positive and finite, got inf"),
        ({"optimizer": "sgd"}, "training.optimizer must be one of adam, adamw, got 'sgd'"),
        ({"schedule": "constnat"}, "training.schedule must be one of constant, plateau, cosine"),
        ({"precision": "16"}, "training.precision must be one of .*, got '16'"),
        ({"warmup": 4, "schedule": "plateau"}, "training.warmup goes with constant and cosine"),
    ],
)
def test_absurd_training_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.Training(**changes)


@pytest.mark.parametrize(("steps", "evaluations", "interval"), [(100, 10, 10), (101, 10, 11), (5, 60, 1)])
def test_evaluations_are_spread_over_the_steps(steps: int, evaluations: int, interval: int) -> None:
    assert sw.Training(steps=steps, evaluations=evaluations).interval == interval


def test_generators_depend_on_their_whole_purpose() -> None:
    purposes: list[tuple[Any, ...]] = [("a", 1), ("a", 2), ("b", 1), ("a", "1"), ("a1",), ("a", 1, 0), ()]
    draws = [tuple(torch.randn(3, generator=sw.generator(*p)).tolist()) for p in purposes]
    assert len(set(draws)) == len(purposes)
    same = [torch.randn(3, generator=sw.generator("a", one)) for one in (1, np.int64(1), torch.tensor(1))]
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])
    with pytest.raises(TypeError):
        sw.generator(object())


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file.json"
    files.write_json(path, {"a": 1})
    assert files.read_json(path) == {"a": 1}
    assert path.stat().st_mode & 0o777 == 0o644

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_json_on_record_holds_only_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "x.json", {"accuracy": float("nan")})
    (tmp_path / "y.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"y\.json is not readable JSON"):
        files.read_json(tmp_path / "y.json")


def test_a_folder_is_kept_by_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    refused = pytest.raises(BlockingIOError, match=f"another run is at work in {folder}")
    with files.locked(folder), refused, files.locked(folder):
        pass
    with files.locked(folder):
        pass


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def steps(bar: Silent) -> None:
    with bar:
        bar.begin(10, 2)
        for step in range(3, 11):
            bar.advance(step)
        bar.report({"step": 10, "loss": 0.125, "validation_accuracy": 0.75})


def test_the_bar_shows_loss_score_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TERM", "xterm")
    steps(Bar("a model", "accuracy"))
    for text in ("a model", "10/10", "loss 0.1250", "accuracy 0.7500", "/s"):
        assert text in screen.getvalue()


def test_without_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    steps(Bar("a model", "accuracy"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("a model  10/10  loss 0.1250  accuracy 0.7500")


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    steps(Silent())
    assert capsys.readouterr() == ("", "")


def test_curves_show_the_spread_over_seeds() -> None:
    ax = plots.accuracy_curve([(1, 0.5), (2, 0.8), (2, 0.6), (1, 0.5)], label="x")
    assert ax.lines[0].get_xydata().tolist() == [[1, 0.5], [2, pytest.approx(0.7)]]
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(0.7 + 0.02**0.5)
    assert band[:, 1].min() == pytest.approx(0.5)
    assert not plots.accuracy_curve([(1, 0.5), (2, 0.6)]).collections


def test_heat_maps_draw_the_matrix_they_are_given() -> None:
    K = [[1.0, 0.25], [0.25, 1.0]]
    ax = plots.kernel_heatmap(K)
    assert ax.images[0].get_array().tolist() == K
    assert ax.images[0].get_clim() == (0, 1)
    assert [t.get_text() for t in ax.texts] == ["1.00", "0.25", "0.25", "1.00"]
    assert not plots.kernel_heatmap(torch.eye(20).requires_grad_()).texts
    assert plots.kernel_heatmap(K, ax=ax) is ax


def test_results_on_record_are_valid() -> None:
    """Each JSON in results/ says what the tables need, and comes from a committed state of the source."""
    for path in (Path(__file__).parent.parent / "results").glob("*/*.json"):
        result = json.loads(path.read_text())
        if path.parent.name == "benchmarks":
            continue
        assert {
            "experiment",
            "row",
            "seed",
            "accuracy",
            "config",
            "budget",
            "versions",
            "data",
        } <= result.keys()
        assert result["experiment"] == path.parent.name
        assert result["revision"], path.name
        assert not result["revision"].endswith("+"), path.name
