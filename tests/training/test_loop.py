"""The loop: it learns, it schedules, it stops and goes on as if it had not."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import setwise as sw
from setwise.training.checkpoint import CHECKPOINT, load_checkpoint, trained_weights
from setwise.training.loop import METRICS, Batch, History, outputs
from setwise.training.progress import NoProgress

ROOT = Path(__file__).parents[2]


def batches(step: int, sets: int = 16) -> Batch:
    """Which sets have a positive sum? Sizes vary, so that masks are in play."""
    generator = sw.training.generator("test", step)
    sizes = torch.randint(1, 6, (sets,), generator=generator)
    batch = sw.SetBatch.pack([torch.randn(int(n), 2, generator=generator) for n in sizes])
    return batch, (batch.x.sum((1, 2)) > 0).long()


def model() -> sw.DMPS:
    return sw.nn.initialize(
        sw.DMPS.build(2, 1, dim=8, hidden=(8, 8), pool="sum"), sw.training.generator("weights")
    )


def fit(network: nn.Module, training: sw.Training, **more: Any) -> History:
    return sw.fit(network, sw.Binary(), batches, training, **more)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_it_learns(precision: Any, optimizer: Any) -> None:
    network = model()
    validation = [batches(-step) for step in range(1, 20)]
    training = sw.Training(steps=150, lr=1e-2, evaluations=3, precision=precision, optimizer=optimizer)
    history = fit(network, training, validation=validation)
    assert [entry["step"] for entry in history.metrics] == [50, 100, 150]
    assert history.metrics[-1]["loss"] < history.metrics[0]["loss"]
    assert history.metrics[-1]["validation_accuracy"] > 0.9
    assert (history.steps, history.sets) == (150, 150 * 16)
    assert history.seconds > 0
    assert sw.evaluate(network, sw.Binary(), validation)["accuracy"] == pytest.approx(
        history.metrics[-1]["validation_accuracy"], abs=0.02
    )


def test_the_same_seed_gives_the_same_run() -> None:
    a, b = model(), model()
    fit(a, sw.Training(steps=20))
    fit(b, sw.Training(steps=20))
    assert same(a, b)
    assert not same(a, model())


def test_one_step_is_one_step_of_adam() -> None:
    ours, theirs = model(), model()
    fit(ours, sw.Training(steps=1, lr=0.01))
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01)
    batch, y = batches(1)
    sw.Binary().loss(theirs(batch.x, batch.mask), y).backward()
    optimizer.step()
    assert all(
        torch.allclose(p, q, atol=1e-6) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True)
    )


def rates(network: nn.Module, training: sw.Training, **more: Any) -> list[float]:
    return [entry["lr"] for entry in fit(network, training, **more).metrics]


def test_cosine_with_warmup() -> None:
    found = rates(model(), sw.Training(steps=10, lr=1.0, warmup=4, schedule="cosine", evaluations=10))
    expected = [0.5, 0.75, 1.0, 1.0, *(0.5 * (1 + math.cos(math.pi * k / 6)) for k in range(1, 7))]
    assert found == pytest.approx(expected)


def test_constant_with_and_without_warmup() -> None:
    assert rates(model(), sw.Training(steps=4, lr=0.5, evaluations=4)) == [0.5] * 4
    found = rates(model(), sw.Training(steps=4, lr=0.5, warmup=2, evaluations=4))
    assert found == pytest.approx([0.5, 0.5, 0.5, 0.5])


def test_warmup_starts_small() -> None:
    network = model()
    before = [p.clone() for p in network.parameters()]
    fit(network, sw.Training(steps=1, lr=0.1, warmup=10))
    moved = max((p - q).abs().max().item() for p, q in zip(network.parameters(), before, strict=True))
    assert moved == pytest.approx(0.01, rel=0.01)


class Worse(sw.Binary):
    """A task whose loss never falls: its gradient is that of a constant."""

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return 0 * out.sum() + 1


def test_plateau_reduces_after_its_patience() -> None:
    training = sw.Training(
        steps=6, lr=1.0, schedule="plateau", plateau_factor=0.5, plateau_patience=1, evaluations=6
    )
    history = sw.fit(model(), Worse(), batches, training)
    assert [entry["lr"] for entry in history.metrics] == [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]


def test_plateau_watches_the_validation_loss_when_there_is_one() -> None:
    class Twofold(sw.Binary):
        def score(self, out: Tensor, y: Tensor) -> dict[str, float]:
            self_loss.append(-float(len(self_loss)))  # always better
            return {"loss": self_loss[-1], "accuracy": 0.0}

        loss = Worse.loss

    self_loss: list[float] = []
    training = sw.Training(steps=6, lr=1.0, schedule="plateau", plateau_patience=0, evaluations=6)
    history = sw.fit(model(), Twofold(), batches, training, validation=[batches(0)])
    assert [entry["lr"] for entry in history.metrics] == [1.0] * 6


def test_gradients_are_clipped() -> None:
    norms: list[float] = []

    class Steep(sw.Binary):
        def loss(self, out: Tensor, y: Tensor) -> Tensor:
            return 1e6 * super().loss(out, y)

    def run(clip: float | None) -> float:
        network = nn.Linear(2, 1)
        nn.init.ones_(network.weight)

        class Mean(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = network

            def forward(self, x: Tensor, mask: Tensor) -> Tensor:
                out: Tensor = self.inner(x.mean(1))
                return out

        step = torch.optim.Adam.step
        try:

            def spy(self: torch.optim.Adam, closure: Any = None) -> Any:
                norms.append(
                    torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
                    .norm()
                    .item()
                )
                return step(self, closure)

            torch.optim.Adam.step = spy
            sw.fit(Mean(), Steep(), batches, sw.Training(steps=1, clip=clip))
        finally:
            torch.optim.Adam.step = step
        return norms[-1]

    assert run(None) > 1e3
    assert run(0.5) == pytest.approx(0.5, rel=1e-3)


def test_a_loss_that_is_no_number_stops_the_run_with_advice() -> None:
    class Broken(sw.Binary):
        def loss(self, out: Tensor, y: Tensor) -> Tensor:
            return super().loss(out, y) * math.nan

    with pytest.raises(FloatingPointError, match="the loss became nan at step 1: lower the learning rate"):
        sw.fit(model(), Broken(), batches, sw.Training(steps=6, evaluations=2))


def test_evaluation_leaves_the_mode_as_it_was_and_wants_data() -> None:
    network = nn.Sequential()
    network.forward = lambda x, mask: x.sum((1, 2)).unsqueeze(1)
    for mode in (True, False):
        network.train(mode)
        outputs(network, [batches(1)])
        assert network.training is mode
    with pytest.raises(ValueError, match="expected at least one batch to evaluate, got none"):
        outputs(network, [])


def test_training_is_in_training_mode_and_evaluation_is_not() -> None:
    seen: list[tuple[bool, bool]] = []

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            seen.append((self.training, torch.is_grad_enabled()))
            return self.scale * x.sum((1, 2)).unsqueeze(1)

    fit(Spy().eval(), sw.Training(steps=2, evaluations=2), validation=[batches(0)])
    assert seen == [(True, True), (False, False)] * 2


class Stop(Exception):
    """Stands for whatever ends a run early."""


class StopAt(NoProgress):
    def __init__(self, step: int) -> None:
        self.last = step

    def advance(self, step: int) -> None:
        if step == self.last:
            raise Stop


class Dropout(nn.Module):
    """A model that draws from the global generator, whose state must survive too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out: Tensor = self.inner(nn.functional.dropout(x, 0.3, training=self.training), mask)
        return out


@pytest.mark.parametrize("schedule", ["constant", "plateau", "cosine"])
def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path, schedule: Any) -> None:
    warmup = 0 if schedule == "plateau" else 7
    training = sw.Training(
        steps=60, lr=1e-2, evaluations=12, schedule=schedule, warmup=warmup, checkpoint_seconds=0
    )
    torch.manual_seed(5)
    straight = Dropout()
    expected = fit(straight, training, validation=[batches(0)], folder=tmp_path / "straight")

    torch.manual_seed(5)
    with pytest.raises(Stop):
        fit(Dropout(), training, validation=[batches(0)], folder=tmp_path / "b", progress=StopAt(33))
    torch.manual_seed(99)
    resumed = Dropout()
    found = fit(resumed, training, validation=[batches(0)], folder=tmp_path / "b", resume=True)

    assert same(straight, resumed)
    assert found.metrics == expected.metrics
    assert (found.steps, found.sets) == (expected.steps, expected.sets)
    lines = (tmp_path / "b" / METRICS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected.metrics


KILLED = """
import sys, time
from pathlib import Path
import torch, setwise as sw
from tests.training.test_loop import batches, model
torch.set_num_threads(1)
def slow(step):
    if step == int(sys.argv[2]): print("now", flush=True); time.sleep(60)
    return batches(step)
sw.fit(model(), sw.Binary(), slow, sw.Training(steps=200, evaluations=20, checkpoint_seconds=0),
       folder=Path(sys.argv[1]), resume=True)
"""


def test_kill_9_and_resume_gives_the_same_weights(tmp_path: Path) -> None:
    """200 steps straight = 100 and some, kill −9, and the rest."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), "104"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert load_checkpoint(tmp_path / CHECKPOINT)["step"] == 100

    training = sw.Training(steps=200, evaluations=20, checkpoint_seconds=0)
    resumed, straight = model(), model()
    fit(resumed, training, folder=tmp_path, resume=True)
    fit(straight, training)
    assert same(resumed, straight)


def test_checkpoints_are_only_as_frequent_as_asked(tmp_path: Path) -> None:
    fit(model(), sw.Training(steps=10, evaluations=10, checkpoint_seconds=1e6), folder=tmp_path)
    first = load_checkpoint(tmp_path / CHECKPOINT)
    assert first["step"] == 10
    with pytest.raises(Stop):
        fit(
            model(), sw.Training(steps=10, evaluations=10, checkpoint_seconds=1e6),
            folder=tmp_path / "b", progress=StopAt(9),
        )  # fmt: skip
    assert not (tmp_path / "b" / CHECKPOINT).exists()


def test_at_a_constant_rate_a_longer_run_begins_as_the_shorter_one(tmp_path: Path) -> None:
    """What was trained for some steps may go on to more: it ends where one that was meant for more does."""
    short, long = (sw.Training(steps=steps, lr=1e-2, evaluations=4) for steps in (30, 60))
    torch.manual_seed(5)
    straight = Dropout()
    fit(straight, long)
    torch.manual_seed(5)
    fit(Dropout(), short, folder=tmp_path)
    extended = Dropout()
    assert fit(extended, long, folder=tmp_path, resume=True).steps == 60
    assert same(straight, extended)


def test_a_finished_run_resumes_to_itself(tmp_path: Path) -> None:
    training = sw.Training(steps=10, evaluations=2)
    first, again = model(), model()
    expected = fit(first, training, folder=tmp_path)
    found = fit(again, training, folder=tmp_path, resume=True)
    assert same(first, again)
    assert found.metrics == expected.metrics
    assert found.seconds == pytest.approx(expected.seconds, abs=1.0)


def test_time_spent_before_counts(tmp_path: Path) -> None:
    training = sw.Training(steps=4, evaluations=4, checkpoint_seconds=0)
    slow = time.sleep
    with pytest.raises(Stop):
        sw.fit(
            model(), sw.Binary(), lambda step: (slow(0.2), batches(step))[1], training,
            folder=tmp_path, progress=StopAt(4),
        )  # fmt: skip
    assert fit(model(), training, folder=tmp_path, resume=True).seconds > 0.6


def test_without_resume_an_old_checkpoint_is_forgotten(tmp_path: Path) -> None:
    fit(model(), sw.Training(steps=10, evaluations=1), folder=tmp_path)
    with pytest.raises(Stop):
        fit(model(), sw.Training(steps=10, evaluations=1), folder=str(tmp_path), progress=StopAt(5))
    assert not (tmp_path / CHECKPOINT).exists()


def test_a_checkpoint_beyond_the_last_step_is_refused(tmp_path: Path) -> None:
    fit(model(), sw.Training(steps=10), folder=tmp_path)
    with pytest.raises(ValueError, match=r"at a step up to 4 .*, got 10"):
        fit(model(), sw.Training(steps=4), folder=tmp_path, resume=True)


def test_evaluation_keeps_frozen_parts_frozen() -> None:
    network = Dropout().train()
    network.inner.encoder.eval()
    outputs(network, [batches(1)])
    assert network.training
    assert not network.inner.encoder.training


def test_batches_in_double_precision_are_cast_to_the_model() -> None:
    def double(step: int) -> Batch:
        batch, y = batches(step)
        return batch.to(torch.float64), y

    assert sw.fit(model(), sw.Binary(), double, sw.Training(steps=2)).steps == 2


def test_without_resume_a_run_starts_anew(tmp_path: Path) -> None:
    training = sw.Training(steps=10, evaluations=2)
    fit(model(), training, folder=tmp_path)
    history = fit(model(), training, folder=tmp_path)
    assert [entry["step"] for entry in history.metrics] == [5, 10]
    assert len((tmp_path / METRICS).read_text().splitlines()) == 2


@pytest.mark.parametrize("damage", [b"", b"rubbish", "cut"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, damage: bytes | str) -> None:
    path = tmp_path / CHECKPOINT
    fit(model(), sw.Training(steps=2), folder=tmp_path)
    path.write_bytes(path.read_bytes()[:1000] if isinstance(damage, str) else damage)
    with pytest.raises(ValueError, match=f"{path} is not a readable checkpoint"):
        fit(model(), sw.Training(steps=2), folder=tmp_path, resume=True)


def test_a_checkpoint_executes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "owned",))

    torch.save({"model": Evil()}, path)
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        load_checkpoint(path)
    assert not (tmp_path / "owned").exists()


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="has no entry 'model'"):
        load_checkpoint(tmp_path / "list.pt")
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "nothing.pt")


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    fit(model(), sw.Training(steps=2), folder=tmp_path)
    with pytest.raises(ValueError, match="no checkpoint of this model and training"):
        fit(sw.DMPS.build(2, 1, dim=9), sw.Training(steps=4), folder=tmp_path, resume=True)


def test_a_cut_last_line_of_the_metrics_is_forgotten(tmp_path: Path) -> None:
    training = sw.Training(steps=10, evaluations=5, checkpoint_seconds=0)
    with pytest.raises(Stop):
        fit(model(), training, folder=tmp_path, progress=StopAt(7))
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 7, "lo')
    history = fit(model(), training, folder=tmp_path, resume=True)
    assert [entry["step"] for entry in history.metrics] == [2, 4, 6, 8, 10]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    fit(model(), sw.Training(steps=4, evaluations=2, tensorboard=True), folder=tmp_path)
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_tensorboard_wants_a_folder() -> None:
    with pytest.raises(ValueError, match=r"training\.tensorboard needs a folder"):
        fit(model(), sw.Training(steps=1, tensorboard=True))


def test_tensorboard_missing_is_said_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'setwise\[tensorboard\]'"):
        fit(model(), sw.Training(steps=1, tensorboard=True), folder=tmp_path)


class Known(sw.Binary):
    """A task whose loss is the number of its batch, whatever the model says."""

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return 0 * out.sum() + y.float().mean()


def numbered(step: int) -> Batch:
    batch, y = batches(step)
    return batch, torch.full_like(y, step)


def test_the_loss_on_record_is_the_mean_since_the_last_evaluation_and_the_last_step_is_one() -> None:
    history = sw.fit(model(), Known(), numbered, sw.Training(steps=10, evaluations=3))
    assert [(entry["step"], entry["loss"]) for entry in history.metrics] == [(4, 2.5), (8, 6.5), (10, 9.5)]


@pytest.mark.parametrize(("optimizer", "moved"), [("adamw", 1 - 0.1 * 0.5), ("adam", 0.9)])
def test_weight_decay_is_that_of_the_optimizer(optimizer: Any, moved: float) -> None:
    """Without a gradient, AdamW shrinks a weight of one by lr · decay, and Adam takes a whole step of lr."""

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.weight * torch.ones(len(x), 1)

    one = One()
    sw.fit(one, Worse(), batches, sw.Training(steps=1, lr=0.1, optimizer=optimizer, weight_decay=0.5))
    assert one.weight.item() == pytest.approx(moved, abs=1e-5)


@pytest.mark.parametrize(
    ("precision", "autocast", "dtype"),
    [
        ("32-true", False, torch.float32),
        ("bf16-mixed", True, torch.bfloat16),
        ("64-true", False, torch.float64),
    ],
)
def test_precision_is_what_was_asked_for(precision: Any, autocast: bool, dtype: torch.dtype) -> None:
    seen: list[tuple[bool, torch.dtype]] = []

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            seen.append((torch.is_autocast_enabled("cpu"), x.dtype))
            return self.weight * x.sum((1, 2)).unsqueeze(1)

    fit(Spy(), sw.Training(steps=1, precision=precision))
    assert seen == [(autocast, dtype)]


def test_an_infinite_loss_stops_the_run_too() -> None:
    class Broken(sw.Binary):
        def loss(self, out: Tensor, y: Tensor) -> Tensor:
            return super().loss(out, y) * math.inf

    with pytest.raises(FloatingPointError, match="the loss became inf at step 1"):
        sw.fit(model(), Broken(), batches, sw.Training(steps=2, evaluations=2))


def test_a_full_disk_costs_the_new_checkpoint_and_not_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = sw.Training(steps=10, evaluations=2, checkpoint_seconds=0)
    with pytest.raises(Stop):
        fit(model(), training, folder=tmp_path, progress=StopAt(7))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fit(model(), training, folder=tmp_path, resume=True)
    assert load_checkpoint(tmp_path / CHECKPOINT)["step"] == 5


@pytest.mark.parametrize("change", [{"optimizer": None}, {"step": "a"}, {"random": 3}])
def test_a_checkpoint_with_a_part_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    fit(model(), sw.Training(steps=2), folder=tmp_path)
    state = load_checkpoint(tmp_path / CHECKPOINT) | change
    torch.save({key: value for key, value in state.items() if value is not None}, tmp_path / CHECKPOINT)
    with pytest.raises(ValueError, match="no checkpoint of this model and training"):
        fit(model(), sw.Training(steps=4), folder=tmp_path, resume=True)


def test_a_file_of_something_else_holds_no_model(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="has no entry 'model'"):
        load_checkpoint(tmp_path / "other.pt")


def test_elements_that_are_numbers_of_things_stay_whole() -> None:
    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 1)

        def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
            out: Tensor = self.table(x).sum(1)
            return out

    pair = sw.SetBatch(torch.tensor([[0, 1], [2, 4]])), torch.tensor([0, 1])
    assert outputs(Embedding(), [pair])[0].shape == (2, 1)


@pytest.mark.parametrize("before", [True, False])
def test_what_underflows_is_zero_in_training_and_testing_only(before: bool) -> None:
    def underflows() -> bool:
        return (torch.tensor([1e-40]) * 1).item() == 0

    seen: list[bool] = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            seen.append(underflows())
            return super().forward(x).sum(1)

    if not torch.set_flush_denormal(before):
        pytest.skip("this processor cannot")
    try:
        model = Watched(3, 1)
        batch = sw.SetBatch(torch.randn(4, 2, 3)), torch.tensor([0, 1, 0, 1])
        sw.fit(model, sw.Binary(), lambda step: batch, sw.Training(steps=2, evaluations=1))
        sw.evaluate(model, sw.Binary(), [batch])
        assert seen == [True] * 3
        assert underflows() == before
    finally:
        torch.set_flush_denormal(False)


class Rising(sw.Binary):
    """Scores a fresh model best: the more it has learned, the worse."""

    def score(self, out: Tensor, y: Tensor) -> dict[str, float]:
        return {"loss": out.abs().mean().item(), "accuracy": 0.5}


def patient(network: nn.Module, **more: Any) -> History:
    training = sw.Training(steps=60, lr=1e-2, evaluations=30, patience=4, checkpoint_seconds=0)
    return sw.fit(network, Rising(), batches, training, validation=[batches(-1)], **more)


def test_patience_ends_the_run_and_keeps_the_best_weights() -> None:
    network = model()
    history = patient(network)
    losses = [entry["validation_loss"] for entry in history.metrics]
    best = losses.index(min(losses))
    assert len(losses) == best + 1 + 4 < 30
    assert history.steps == 2 * len(losses)
    shorter = model()
    fit(shorter, sw.Training(steps=2 * (best + 1), lr=1e-2))
    assert same(network, shorter)


def test_a_patient_run_resumes_bit_for_bit_and_a_finished_one_stays(tmp_path: Path) -> None:
    whole = model()
    history = patient(whole)

    def stopping(step: int) -> Batch:
        if step == 6:
            raise KeyboardInterrupt
        return batches(step)

    cut, training = (
        model(),
        sw.Training(steps=60, lr=1e-2, evaluations=30, patience=4, checkpoint_seconds=0),
    )
    with pytest.raises(KeyboardInterrupt):
        sw.fit(cut, Rising(), stopping, training, validation=[batches(-1)], folder=tmp_path)
    again = model()
    assert patient(again, folder=tmp_path, resume=True).metrics == history.metrics
    assert same(again, whole)
    finished = model()
    assert patient(finished, folder=tmp_path, resume=True).steps == history.steps
    assert same(finished, whole)


def test_a_checkpoint_tells_the_best_weights_where_they_were_looked_for(tmp_path: Path) -> None:
    network = model()
    patient(network, folder=tmp_path)
    found = trained_weights(load_checkpoint(tmp_path / CHECKPOINT))
    assert all(torch.equal(found[name], value) for name, value in network.state_dict().items())
    assert not torch.equal(
        found["head.linear.weight"], load_checkpoint(tmp_path / CHECKPOINT)["model"]["head.linear.weight"]
    )
    fit(network, sw.Training(steps=2), folder=tmp_path / "plain")
    plain = load_checkpoint(tmp_path / "plain" / CHECKPOINT)
    assert trained_weights(plain) is plain["model"]


def test_patience_wants_something_to_watch() -> None:
    with pytest.raises(ValueError, match=r"training.patience needs validation data, got none"):
        fit(model(), sw.Training(steps=1, patience=1))
    with pytest.raises(ValueError, match=r"training.patience must be at least 1, got 0"):
        sw.Training(patience=0)


def test_an_optimiser_can_be_gone_on_with() -> None:
    whole, parts = model(), model()
    fit(whole, sw.Training(steps=8, lr=1e-2))
    adam = torch.optim.Adam(parts.parameters(), lr=1e-2, fused=True)
    fit(parts, sw.Training(steps=5, lr=7.0), optimizer=adam)  # whose rate is its own
    sw.fit(parts, sw.Binary(), lambda step: batches(step + 5), sw.Training(steps=3), optimizer=adam)
    assert same(parts, whole)


def test_the_device_is_one_of_those_known() -> None:
    with pytest.raises(
        ValueError, match=r"training.device must be one of auto, cpu, cuda, mps, got 'abacus'"
    ):
        sw.Training(device="abacus")  # type: ignore[arg-type]
    network = model()
    fit(network, sw.Training(steps=1, device="cpu"))
    assert {p.device.type for p in network.parameters()} == {"cpu"}
