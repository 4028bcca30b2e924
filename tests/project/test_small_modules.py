"""Configuration, files, randomness, progress, plots: small, but relied on."""

import io
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba

import setwise as sw
from setwise import _files as files
from setwise.experiments.data.distortion import distort
from setwise.inspection import plots
from setwise.training.progress import NoProgress, ProgressBar


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
        ({"plateau_factor": 0.0}, "training.plateau_factor must lie between 0 and 1, got 0.0"),
        ({"weight_decay": float("nan")}, "training.weight_decay must be finite and not negative, got nan"),
        ({"plateau_factor": 1.0}, "training.plateau_factor must lie between 0 and 1, got 1.0"),
        ({"clip": 0.0}, "training.clip must be positive and finite, got 0.0"),
        ({"clip": float("inf")}, "training.clip must be positive and finite, got inf"),
        ({"lr": float("inf")}, "training.lr must be positive and finite, got inf"),
        ({"optimizer": "sgd"}, "training.optimizer must be one of adam, adamw, got 'sgd'"),
        ({"schedule": "constnat"}, "training.schedule must be one of constant, plateau, cosine"),
        ({"split": "pairs"}, "training.split must be one of sets, elements, shares, got 'pairs'"),
        ({"precision": "16"}, "training.precision must be one of .*, got '16'"),
        ({"warmup": 4, "schedule": "plateau"}, "training.warmup must be 0 with schedule plateau, got 4"),
    ],
)
def test_absurd_training_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.Training(**changes)


@pytest.mark.parametrize(("steps", "evaluations", "interval"), [(100, 10, 10), (101, 10, 11), (5, 60, 1)])
def test_evaluations_are_spread_over_the_steps(steps: int, evaluations: int, interval: int) -> None:
    assert sw.Training(steps=steps, evaluations=evaluations).interval == interval


@pytest.mark.parametrize(("size", "batch"), [(7, 3), (5, 5), (3, 8), (1, 2)])
def test_epochs_show_everything_once_in_an_order_of_their_own(size: int, batch: int) -> None:
    stream = torch.cat([sw.training.epochs(size, batch, step, "x", 0) for step in range(1, 2 * size + 1)])
    assert len(stream) == 2 * size * batch
    whole = [epoch.tolist() for epoch in stream.split(size) if len(epoch) == size]
    assert all(sorted(epoch) == list(range(size)) for epoch in whole)
    if size > 3:
        assert len({tuple(epoch) for epoch in whole}) > len(whole) // 2
    assert torch.equal(sw.training.epochs(size, batch, 2, "x", 0), stream[batch : 2 * batch])


def test_epochs_depend_on_their_purpose_and_need_examples() -> None:
    assert sw.training.epochs(50, 50, 1, "x", 0).tolist() != sw.training.epochs(50, 50, 1, "x", 1).tolist()
    for arguments, name in (((0, 3, 1), "size"), ((3, 0, 1), "batch"), ((3, 3, 0), "step")):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            sw.training.epochs(*arguments)


def test_generators_depend_on_their_whole_purpose() -> None:
    purposes: list[tuple[Any, ...]] = [("a", 1), ("a", 2), ("b", 1), ("a", "1"), ("a1",), ("a", 1, 0), ()]
    draws = [tuple(torch.randn(3, generator=sw.training.generator(*p)).tolist()) for p in purposes]
    assert len(set(draws)) == len(purposes)
    same = [
        torch.randn(3, generator=sw.training.generator("a", one)) for one in (1, np.int64(1), torch.tensor(1))
    ]
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])
    with pytest.raises(TypeError):
        sw.training.generator(object())


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
    refused = pytest.raises(BlockingIOError, match=f"{folder} is in use by another process")
    with files.locked(folder), refused, files.locked(folder):
        pass
    with files.locked(folder):
        pass


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def steps(bar: NoProgress) -> None:
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
    steps(ProgressBar("a model", "accuracy"))
    for text in ("a model", "10/10", "loss 0.1250", "accuracy 0.7500", "/s"):
        assert text in screen.getvalue()


def test_without_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    steps(ProgressBar("a model", "accuracy"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("a model  10/10  loss 0.1250  accuracy 0.7500")


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    steps(NoProgress())
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
    for path in (Path(__file__).parents[2] / "results").glob("*/*.json"):
        result = json.loads(path.read_text())
        if path.parent.name in ("benchmarks", "reliability"):
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


def test_the_defaults_are_those_that_are_documented() -> None:
    assert asdict(sw.Training()) == {
        "steps": 30_000, "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "schedule": "constant",
        "plateau_factor": 0.9, "plateau_patience": 1, "warmup": 0, "clip": None, "patience": None,
        "device": "auto", "split": "sets", "precision": "32-true",
        "evaluations": 60, "checkpoint_seconds": 20.0, "tensorboard": False,
    }  # fmt: skip


def test_streams_never_change_from_one_version_to_the_next() -> None:
    assert sw.training.generator("train", 0, 1).initial_seed() == 2_376_528_315_726_723_075


def test_an_interrupted_write_leaves_no_litter_and_json_is_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_json(tmp_path / "a.json", {"a": 1})
    assert (tmp_path / "a.json").read_text() == '{\n  "a": 1\n}\n'

    def interrupt(_: int) -> None:
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".a.json.")]  # beside its target
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_json(tmp_path / "a.json", {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_speed_and_time_left_leave_out_what_was_done_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("setwise.training.progress.time.perf_counter", lambda: now[0])
    bar = ProgressBar("a model", "accuracy")
    now[0] = 200.0
    with bar:
        bar.begin(1000, 500)
        now[0] = 205.0
        bar.report({"step": 520, "loss": 1.0})
        now[0] = 220.0
        bar.report({"step": 600, "loss": 1.0})
        now[0] = 225.0
        bar.report({"step": 620, "loss": 1.0})
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "a model  520/1,000  loss 1.0000  4/s  120 s left",
        "a model  600/1,000  loss 1.0000  5/s  80 s left",
    ]


def test_the_bar_moves_ten_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("setwise.training.progress.time.perf_counter", lambda: now[0])
    bar = ProgressBar("a model", "accuracy")
    bar.begin(1000, 0)
    moves: list[Any] = []
    monkeypatch.setattr(bar.bar, "update", lambda *_, **fields: moves.append(fields))
    for step in range(1, 101):
        now[0] += 0.01
        bar.advance(step)
    assert 8 <= len(moves) <= 10
    assert moves[0]["speed"] == "100/s"
    bar.advance(1000)
    assert moves[-1]["completed"] == 1000


def test_heat_maps_can_be_read() -> None:
    ax = plots.kernel_heatmap([[1.0, 0.25], [0.75, 1.0]])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["1", "2"]
    at = {t.get_position(): (t.get_text(), t.get_color()) for t in ax.texts}
    assert at[(1, 0)] == ("0.25", "white")
    assert at[(0, 1)] == ("0.75", "black")
    assert len(plots.kernel_heatmap(np.eye(12)).texts) == 144


def test_curves_go_from_left_to_right_in_one_colour() -> None:
    ax = plots.accuracy_curve([(2, 0.8), (1, 0.5), (2, 0.6), (1, 0.3)])
    assert ax.lines[0].get_xdata().tolist() == [1, 2]
    band = ax.collections[0]
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(0.4 - 0.02**0.5)
    assert to_rgba(ax.lines[0].get_color(), 0.2) == pytest.approx(band.get_facecolor()[0])


def test_distortion_moves_ink_a_little_and_each_image_by_itself() -> None:
    images = torch.zeros(50, 1, 41, 41, dtype=torch.bool)
    images[..., 10:31, 20] = True
    images[..., 10, 20:28] = True
    same = distort(images, torch.Generator().manual_seed(0), strength=0.0)
    assert torch.equal(same, images)
    moved = distort(images, torch.Generator().manual_seed(0), strength=0.2)
    assert torch.equal(moved, distort(images, torch.Generator().manual_seed(0), strength=0.2))
    assert len({image.numpy().tobytes() for image in moved}) == 50
    ink = moved.sum((1, 2, 3)) / images.sum((1, 2, 3))
    assert 0.5 < ink.min() < ink.mean() - 0.1 < 1 < ink.mean() + 0.1 < ink.max() < 1.8
    rows = torch.arange(41.0)
    centre = (moved.float().sum(3).squeeze(1) * rows).sum(1) / moved.float().sum((1, 2, 3))
    assert 1 < centre.std() < 6  # shifts of up to 0.2 × 20 pixels
    assert abs(centre.mean() - centre.new_tensor(18.4)) < 2


def test_distortion_has_a_bound() -> None:
    with pytest.raises(ValueError, match="strength must lie between 0 and 1, got 2"):
        distort(torch.zeros(1, 1, 5, 5, dtype=torch.bool), torch.Generator(), strength=2.0)


def test_a_latent_graph_is_drawn_from_its_weights() -> None:
    W = np.full((5, 5), 0.1)
    W[:3, :3] = W[3:, 3:] = 0.3
    W[0, 4] = 0.2  # one direction of an edge
    ax = plots.latent_graph(W, [np.eye(9)] * 5, groups="aaabb")
    alphas = {(i, j): line.get_alpha() for (i, j), line in zip(EDGES, ax.lines, strict=True)}
    assert alphas[1, 0] == alphas[4, 3] == 1
    assert alphas[3, 0] == 0
    assert alphas[4, 0] == pytest.approx(0.25)
    frames = [box.patch.get_edgecolor() for box in ax.artists]
    assert len(set(frames)) == 2
    assert frames[0] == frames[1] == frames[2] != frames[3] == frames[4]
    place = np.array([box.xy for box in ax.artists])
    apart = np.linalg.norm(place[:, None] - place[None], axis=-1)
    assert apart[:3, :3].max() < apart[:3, 3:].min()
    assert np.abs(place).max() <= 1.3
    for n in (0, 1, 2):
        small = plots.latent_graph(np.ones((n, n)), [np.eye(9)] * n)
        assert len(small.artists) == n


EDGES = [(i, j) for i in range(5) for j in range(i)]
