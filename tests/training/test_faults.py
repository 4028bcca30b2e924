"""Faults: signals, full disks, losses that are no numbers, two runs in one place. Nothing may be lost."""

import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import setwise as sw
from setwise import _files as files
from setwise.training.checkpoint import CHECKPOINT, load_checkpoint
from setwise.training.divergence import DIVERGED
from setwise.training.loop import METRICS
from setwise.training.progress import NoProgress
from setwise.training.signals import Terminated, catch_stop_signals, raise_on_sigterm
from tests.training.test_loop import Dropout, batches, model, same

ROOT = Path(__file__).parents[2]
TRAINING = sw.Training(steps=40, evaluations=4, checkpoint_seconds=1e6, schedule="cosine")


def fit(network: nn.Module, given: Any = batches, **more: Any) -> sw.training.History:
    return sw.fit(network, sw.Binary(), given, more.pop("training", TRAINING), **more)


def at(step: int, event: Callable[[], object]) -> Any:
    """The batches, with something that happens while one of them is drawn."""

    def given(number: int) -> Any:
        if number == step:
            event()
        return batches(number)

    return given


@pytest.mark.parametrize(
    ("number", "ending"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
@pytest.mark.parametrize("step", [7, 10, 40])
def test_a_signal_lets_the_step_end_and_saves(
    tmp_path: Path, number: int, ending: type[BaseException], step: int
) -> None:
    torch.manual_seed(5)
    straight = Dropout()
    expected = fit(straight, folder=tmp_path / "straight", validation=[batches(0)])
    torch.manual_seed(5)
    stopped = at(step, lambda: signal.raise_signal(number))
    before = signal.getsignal(number)
    with pytest.raises(ending) as ended:
        fit(Dropout(), stopped, folder=tmp_path / "b", validation=[batches(0)])
    assert signal.getsignal(number) is before
    if ending is Terminated:
        assert ended.value.code == 143
    assert load_checkpoint(tmp_path / "b" / CHECKPOINT)["step"] == step
    torch.manual_seed(99)
    resumed = Dropout()
    found = fit(resumed, folder=tmp_path / "b", validation=[batches(0)], resume=True)
    assert same(straight, resumed)
    assert found.metrics == expected.metrics  # the mean loss over an interruption, too
    assert [
        json.loads(line) for line in (tmp_path / "b" / METRICS).read_text().splitlines()
    ] == expected.metrics


def test_without_a_folder_a_signal_just_ends_it() -> None:
    steps = []
    counting = at(3, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        fit(model(), lambda step: (steps.append(step), counting(step))[1])
    assert steps == [1, 2, 3]


def test_a_second_interrupt_is_not_waited_for_but_a_termination_is_no_second_one() -> None:
    with catch_stop_signals() as request:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert request.requested
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_handles_a_signal_goes_on_to_do_so(number: int) -> None:
    """Be it a program of one's own, or nohup."""
    seen = []
    before = signal.signal(number, lambda *_: seen.append(1))
    try:
        assert fit(model(), at(3, lambda: signal.raise_signal(number))).steps == 40
        signal.signal(number, signal.SIG_IGN)
        assert fit(model(), at(3, lambda: signal.raise_signal(number))).steps == 40
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert seen == [1]


def test_a_signal_is_heard_when_no_step_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(model(), folder=tmp_path)
    begin = NoProgress.begin
    monkeypatch.setattr(NoProgress, "begin", lambda *_: (begin(*_), signal.raise_signal(signal.SIGTERM)))
    with pytest.raises(Terminated):
        fit(model(), folder=tmp_path, resume=True)


def test_a_thread_hears_no_signals_but_trains() -> None:
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(fit(model()).steps))
    thread.start()
    thread.join()
    assert done == [40]


def test_a_signal_outside_of_training_ends_the_work() -> None:
    with pytest.raises(Terminated) as ended, raise_on_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143


@pytest.mark.parametrize(
    ("number", "code", "word"), [("INT", 130, "interrupted"), ("TERM", 143, "terminated")]
)
def test_the_command_says_how_to_go_on(tmp_path: Path, number: str, code: int, word: str) -> None:
    command = [sys.executable, "-m", "setwise", "run", "gaussian", "--row", "v-dmps", "--test-sets", "64"]
    command += ["--threads", "1", "--training.steps", "100000", "--training.evaluations", "10000"]
    process = subprocess.Popen(
        [*command, "--training.checkpoint-seconds", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    checkpoint = tmp_path / "runs/gaussian/v-dmps/rho-0.95_steps-100000_seed-0" / CHECKPOINT
    while not checkpoint.exists():
        assert process.poll() is None
    process.send_signal(getattr(signal, f"SIG{number}"))
    _, said = process.communicate()
    assert process.returncode == code
    assert said.splitlines()[-1] == f"setwise: {word}; --resume continues from the last checkpoint"
    assert load_checkpoint(checkpoint)["step"] > 0
    assert not list(checkpoint.parent.glob("*.unfinished"))


# Full disks

FULL = """
import resource, sys
from pathlib import Path
import setwise as sw
from setwise.cli.main import main
from tests.training.test_loop import batches, model
folder = Path(sys.argv[1])
def given(step):
    if step == 25:  # from now on no file may be larger than 2,000 bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    return batches(step)
try:
    training = sw.Training(steps=40, evaluations=4, checkpoint_seconds=0)
    sw.fit(model(), sw.Binary(), given, training, folder=folder)
except OSError as error:
    print(error.errno, error.filename, error.strerror)
"""


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before(tmp_path: Path) -> None:
    straight, resumed = model(), model()
    training = sw.Training(steps=40, evaluations=4, checkpoint_seconds=0)
    fit(straight, training=training)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    note = "the previous file is unchanged"
    expected = f"{errno.EFBIG} {tmp_path / CHECKPOINT} {os.strerror(errno.EFBIG)}; {note}"
    assert done.stdout.strip() == expected
    assert load_checkpoint(tmp_path / CHECKPOINT)["step"] == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == [".training", CHECKPOINT, METRICS]
    fit(resumed, training=training, folder=tmp_path, resume=True)
    assert same(straight, resumed)


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files.write_atomically(tmp_path / "old", b"1")
    monkeypatch.setattr(os, "fsync", full)
    for name, kept in (("old", "; the previous file is unchanged"), ("new", "")):
        with pytest.raises(OSError, match="No space left on device") as told:
            files.write_atomically(tmp_path / name, b"2")
        assert (told.value.errno, told.value.filename) == (errno.ENOSPC, str(tmp_path / name))
        assert told.value.strerror == f"No space left on device{kept}"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_bytes() == b"1"


def test_metrics_that_find_no_room_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("0123456789")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large") as told:
            files.append(tmp_path / "metrics", "more")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert told.value.filename == str(tmp_path / "metrics")


def test_what_a_killed_run_left_unfinished_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.pt.abc.unfinished").write_bytes(b"half")
    (tmp_path / "mine.unfinished").write_bytes(b"not hidden, so not ours")
    fit(model(), folder=tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"mine.unfinished", ".training", CHECKPOINT, METRICS}


# Two at once


def test_files_are_as_private_as_the_user_is(tmp_path: Path) -> None:
    for mask, mode in ((0o077, 0o600), (0o022, 0o644), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            files.write_atomically(tmp_path / "file", b"1")
            assert os.umask(mask) == mask
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == mode


class WithMore(nn.Module):
    """A model that keeps something else than tensors."""

    def __init__(self, more: Any) -> None:
        super().__init__()
        self.inner, self.more = model(), more

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out: Tensor = self.inner(x, mask)
        return out

    def get_extra_state(self) -> Any:
        return self.more

    def set_extra_state(self, state: Any) -> None:
        self.more = state


def test_no_checkpoint_is_written_that_could_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match="a checkpoint must contain tensors, numbers and strings in dicts and lists: "
    ):
        fit(WithMore(Path("x")), folder=tmp_path)
    assert not (tmp_path / CHECKPOINT).exists()
    fit(WithMore({"phase": torch.tensor(1j), "names": ["a"]}), folder=tmp_path)
    again = WithMore(None)
    fit(again, folder=tmp_path, resume=True)
    assert again.more == {"phase": torch.tensor(1j), "names": ["a"]}


def test_two_trainings_in_one_folder(tmp_path: Path) -> None:
    told = []

    def second() -> None:
        with pytest.raises(BlockingIOError, match="is in use by another process") as error:
            fit(model(), folder=tmp_path, resume=True)
        told.append(str(error.value))

    fit(model(), at(15, second), folder=tmp_path)
    assert told == [f"{tmp_path} is in use by another process"]
    assert load_checkpoint(tmp_path / CHECKPOINT)["step"] == 40


# Losses that are no numbers


def test_bad_data_are_found_and_kept(tmp_path: Path) -> None:
    def given(step: int) -> Any:
        batch, y = batches(step)
        x = batch.x.clone()
        if step == 13:
            x[3, 0, 0] = math.nan
            x[5, 0, 1] = math.inf
        x[~batch.mask] = math.nan  # which padding may be
        return sw.SetBatch(x, batch.mask), y

    network = model()
    with pytest.raises(FloatingPointError) as told:
        fit(network, given, folder=tmp_path)
    path = tmp_path / DIVERGED
    assert str(told.value) == (
        "the loss became nan at step 13: "
        "2 of 16 sets contain values that are not finite, the first is set 3; "
        f"the batch and the weights are in {path}"
    )
    kept, again = load_checkpoint(path), model()
    assert (kept["step"], math.isnan(kept["loss"])) == (13, True)
    again.load_state_dict(kept["model"])
    out = again(kept["x"], kept["mask"])
    assert out.isnan().flatten().nonzero().flatten().tolist() == [3, 5]
    assert torch.equal(kept["y"], batches(13)[1])
    assert same(again, network)  # the step was not taken


class Exploding(nn.Module):
    """Fine for some steps; then the gradient, not the loss, is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()
        self.calls = 0

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        self.calls += 1
        out: Tensor = self.inner(x, mask)
        return out + ((out - out).abs().sqrt() if self.calls == 4 else 0)


def test_weights_that_are_no_numbers_are_told_from_data_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match="at step 5: the weights are not finite"):
        fit(Exploding(), folder=tmp_path)
    assert load_checkpoint(tmp_path / DIVERGED)["step"] == 5


def test_the_random_state_of_the_step_is_kept(tmp_path: Path) -> None:
    class Unlucky(Dropout):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            out = super().forward(x, mask)
            self.drawn = torch.rand(())
            return out / (self.drawn > 0.1)

    network = Unlucky()
    torch.manual_seed(3)
    with pytest.raises(
        FloatingPointError, match="lower the learning rate, clip the gradient, or look for huge"
    ):
        fit(network, folder=tmp_path)
    kept, again = load_checkpoint(tmp_path / DIVERGED), Unlucky()
    again.load_state_dict(kept["model"])
    torch.set_rng_state(kept["random"])
    assert not again(kept["x"], kept["mask"]).isfinite().all()
    assert torch.equal(again.drawn, network.drawn)


def test_elements_in_common_are_kept_written_out(tmp_path: Path) -> None:
    values = torch.tensor([[1.0], [math.nan]])
    batch = sw.SetBatch(sw.Shared(values, torch.tensor([[0, 0], [0, 1]])))
    network = sw.DeepSets.build(1, 1, dim=4)
    with pytest.raises(FloatingPointError, match="1 of 2 sets contain values that are not finite"):
        sw.fit(network, sw.Binary(), lambda step: (batch, torch.tensor([0, 1])), TRAINING, folder=tmp_path)
    assert load_checkpoint(tmp_path / DIVERGED)["x"].shape == (2, 2, 1)


def test_a_diverged_run_does_not_block_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from setwise.experiments import EXPERIMENTS, runner

    experiment = EXPERIMENTS["gaussian"](test_sets=64, training=sw.Training(steps=4, evaluations=2))
    where = {"out": tmp_path / "runs", "results": tmp_path / "results", "show": False}
    with monkeypatch.context() as patched:
        patched.setattr(sw.Binary, "loss", lambda self, out, y: out.sum() * math.nan)
        with pytest.raises(FloatingPointError, match="at step 1"):
            runner.run(experiment, "v-dmps", 0, **where)
    (kept,) = (tmp_path / "runs").rglob(DIVERGED)
    assert not (kept.parent / "config.json").exists()
    runner.run(experiment, "v-dmps", 0, **where)
    assert kept.exists()
