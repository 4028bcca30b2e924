"""Training and evaluation loop, independent of the data set and the model class.

A batch is a function of its number, ``batches(step) → (SetBatch, y)``. The checkpoint holds the weights, the
optimizer, the schedule and the global random state; the data have no state. A resumed run of one process
therefore continues bit for bit. Several processes that ``torchrun`` started train one model through
``DistributedDataParallel``: each is given the same batch and computes its part of it, and the first process
writes. A resumed run of several processes agrees with an uninterrupted one to about 1e-6, because
``DistributedDataParallel`` may add gradients in a different order.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from setwise import collectives
from setwise._files import append, clear_unfinished, locked, write_atomically
from setwise.nn._modes import eval_mode
from setwise.nn.health import CollapseWatch, graph_health
from setwise.sets import SetBatch
from setwise.tasks import Task
from setwise.training.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from setwise.training.config import Training
from setwise.training.distributed import fabric_setup
from setwise.training.divergence import report_divergence
from setwise.training.progress import NoProgress
from setwise.training.seeding import generator
from setwise.training.signals import catch_stop_signals

Batch = tuple[SetBatch, Tensor]
Batches = Callable[[int], Batch]

METRICS = "metrics.jsonl"
LOCK = ".training"
MIN_IMPROVEMENT = 1e-4
"""Decrease of the validation loss that resets the patience counter."""


@dataclass(frozen=True)
class History:
    """Metrics and cost of a training run; time and counts include the part before a resumption."""

    metrics: list[dict[str, float]]
    """One entry per evaluation: step, loss, lr, the scores on validation data if there are any, and the
    health of the learned graph if there is one (`setwise.graph_health`)."""
    steps: int
    """Number of batches trained on."""
    sets: int
    """Number of sets in these batches."""
    seconds: float
    """Training time."""


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Temporarily flush denormal numbers to zero, which are many times slower to multiply.

    The kernel of distant elements is such a number, so a trained graph has many of them.
    """
    before = (torch.tensor(1e-40) * 1).item() == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@flush_denormals()
def fit(
    model: nn.Module,
    task: Task,
    batches: Batches,
    training: Training,
    *,
    validation: Iterable[Batch] | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    progress: NoProgress | None = None,
    optimizer: Optimizer | None = None,
) -> History:
    """Train ``model`` in place; it stays on the device and in the precision that it was trained in.

    While the loop runs in the main thread, SIGINT and SIGTERM end it after the current step, with a
    checkpoint if there is a folder; the previous signal handlers are restored afterwards. Random layers such
    as dropout draw from torch's global random state and advance it. A resumed run sets it to the state in the
    checkpoint, and a process of rank > 0 to a state of its own.

    Args:
        model: called as ``model(x, mask)``; returns raw outputs.
        task: computes the loss and the scores.
        batches: returns the batch of a step, counted from 1.
        training: steps, optimizer, schedule, precision and so on.
        validation: batches to score at each evaluation; an iterable that can be iterated over repeatedly.
            Their loss controls the plateau schedule. Without them, the mean training loss since the last
            evaluation does.
        folder: where to write metrics and the checkpoint; without one nothing is written.
        resume: continue from the checkpoint in the folder, if there is one; otherwise it is deleted.
        progress: displays the progress.
        optimizer: optimizer of the model's parameters to continue with; by default a new one.

    Returns:
        The metrics over time, and the cost of the training.
    """
    folder = None if folder is None else Path(folder)
    if training.patience is not None and validation is None:
        raise ValueError("training.patience needs validation data, got none")
    adam = _optimizer(model, training) if optimizer is None else optimizer
    schedule = _schedule(adam, training)
    best = None if training.patience is None else _Best(model, training.patience)
    run = _TrainingState(model, adam, schedule, best)
    display = progress if progress and collectives.is_first() else NoProgress()
    log = _Log(folder, tensorboard=training.tensorboard)
    watch = CollapseWatch()
    with (
        fabric_setup(model, adam, training) as (fabric, network, stepper),
        _locked_folder(folder),
        closing(log),
        catch_stop_signals() as stop,
        display as bar,
    ):
        if collectives.rank():  # random layers such as dropout differ between processes
            torch.set_rng_state(generator("rank", collectives.rank(), torch.initial_seed()).get_state())
        if folder is not None:
            run.resume_from(folder / CHECKPOINT, resume=resume, steps=training.steps)
        log.begin(run.step)
        network.train()
        bar.begin(training.steps, run.step)
        last = best is not None and best.exhausted  # the resumed run may have ended already
        for step in range(run.step + 1, training.steps + 1) if not last else ():
            batch, y = to_model(batches(step), model)
            random_state = torch.get_rng_state()
            loss = task.loss(network(batch.x, batch.mask), y)
            value = loss.item()
            if not math.isfinite(value):
                raise FloatingPointError(
                    report_divergence(model, batch, y, value, step, random_state, folder)
                )
            fabric.backward(loss)
            if training.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), training.clip)
            stepper.step()
            stepper.zero_grad()
            if isinstance(schedule, LambdaLR):
                schedule.step()
            run.count(value, len(batch))
            bar.advance(step)

            if step % training.interval == 0 or step == training.steps:
                entry = {"step": step, "loss": run.mean_loss(), "lr": adam.param_groups[0]["lr"]}
                if validation is not None:
                    scores = evaluate(network, task, validation)
                    entry |= {f"validation_{name}": score for name, score in scores.items()}
                health = _health(model, batch, whole=training.split != "shares")
                if collectives.is_first():
                    watch.look(health)
                entry |= health
                if isinstance(schedule, ReduceLROnPlateau):
                    schedule.step(entry.get("validation_loss", entry["loss"]))
                log.write(entry)
                bar.report(entry)
                if best is not None:
                    best.update(entry["validation_loss"])
                last = step == training.steps or (best is not None and best.exhausted)
                if folder is not None and collectives.any_of(
                    last or run.seconds_since_save() >= training.checkpoint_seconds
                ):
                    run.save(folder / CHECKPOINT)
            if collectives.any_of(stop.requested):
                if folder is not None:
                    run.save(folder / CHECKPOINT)
                stop.exit()
            if last:
                break
        if collectives.any_of(stop.requested):  # after the last step
            stop.exit()
    if best is not None:
        best.restore()
    return History(log.entries, run.step, run.sets, run.seconds)


@contextmanager
def _locked_folder(folder: Path | None) -> Iterator[None]:
    """Lock the folder by the first process; the other processes wait until it is locked."""
    with locked(folder, LOCK) if folder is not None and collectives.is_first() else nullcontext():
        if folder is not None and collectives.is_first():
            clear_unfinished(folder)
        collectives.barrier()
        yield


def to_model(batch: Batch, model: nn.Module) -> Batch:
    """Move the batch to the model's device, and its elements to the model's precision."""
    sets, y = batch
    weight = next(model.parameters(), sets.x)
    dtype = weight.dtype if sets.x.is_floating_point() else sets.x.dtype
    return sets.to(weight.device, dtype), y.to(weight.device)


@torch.no_grad()
@flush_denormals()
def outputs(model: nn.Module, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """Return the raw outputs in eval mode for all batches, ``[sets, k]``, and their targets."""
    outs, targets = [], []
    with eval_mode(model):
        for pair in batches:
            batch, y = to_model(pair, model)
            outs.append(model(batch.x, batch.mask).cpu())
            targets.append(y.cpu())
    if not outs:
        raise ValueError("expected at least one batch to evaluate, got none")
    return torch.cat(outs), torch.cat(targets)


def _health(model: nn.Module, batch: SetBatch, *, whole: bool) -> dict[str, float]:
    """Measure the learned graph on the first process; only γ if no process holds whole sets."""

    def measure() -> bytes:
        inputs = (batch.x, batch.mask) if whole else (torch.zeros(0, 0, 0), None)
        return json.dumps(graph_health(model, *inputs)).encode()

    health: dict[str, float] = json.loads(collectives.run_on_first(measure))
    return health


def evaluate(model: nn.Module, task: Task, batches: Iterable[Batch]) -> dict[str, float]:
    """Return the task's scores over all batches."""
    return task.score(*outputs(model, batches))


def _optimizer(model: nn.Module, training: Training) -> Optimizer:
    make = AdamW if training.optimizer == "adamw" else Adam
    return make(model.parameters(), lr=training.lr, weight_decay=training.weight_decay, fused=True)


def _schedule(optimizer: Optimizer, training: Training) -> LambdaLR | ReduceLROnPlateau | None:
    if training.schedule == "plateau":
        return ReduceLROnPlateau(
            optimizer, factor=training.plateau_factor, patience=training.plateau_patience
        )
    if training.schedule == "constant" and not training.warmup:
        return None

    def factor(step: int) -> float:
        if step < training.warmup:
            return (step + 1) / training.warmup
        if training.schedule == "constant":
            return 1.0
        share = (step - training.warmup) / max(training.steps - training.warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))

    return LambdaLR(optimizer, factor)


class _TrainingState:
    """The state of a run that the checkpoint holds."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: LambdaLR | ReduceLROnPlateau | None,
        best: "_Best | None",
    ) -> None:
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "best": best}
        self.parts: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}
        self.step = 0
        self.sets = 0
        self.seconds_before = 0.0
        self.started = self.saved = time.perf_counter()
        self._reset_losses()

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def seconds_since_save(self) -> float:
        return time.perf_counter() - self.saved

    def _reset_losses(self) -> None:
        self.losses = 0.0
        self.counted = 0

    def count(self, loss: float, sets: int) -> None:
        self.step += 1
        self.sets += sets
        self.losses += loss
        self.counted += 1

    def mean_loss(self) -> float:
        """Return the mean loss since the last call."""
        mean = self.losses / self.counted
        self._reset_losses()
        return mean

    def save(self, path: Path) -> None:
        state: dict[str, Any] = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"step": self.step, "sets": self.sets, "seconds": self.seconds}
        state |= {"losses": self.losses, "counted": self.counted}
        state["random"] = collectives.gather_rows(torch.get_rng_state())
        if collectives.is_first():
            save_checkpoint(path, state)
        collectives.barrier()  # all processes continue from the same state
        self.saved = time.perf_counter()

    def resume_from(self, path: Path, *, resume: bool, steps: int) -> None:
        """Load the checkpoint if ``resume``, otherwise delete it."""
        if not resume and collectives.is_first():
            path.unlink(missing_ok=True)
        collectives.barrier()
        if path.exists():
            self._load(path, steps)
        if (collectives.gather_rows(torch.tensor(self.step)) != self.step).any():
            raise ValueError(f"{path} must be on a file system that all processes share, got different files")

    def _load(self, path: Path, steps: int) -> None:
        state = load_checkpoint(path)
        try:
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
            self.step, self.sets = int(state["step"]), int(state["sets"])
            self.seconds_before = float(state["seconds"])
            self.losses, self.counted = float(state.get("losses", 0.0)), int(state.get("counted", 0))
            _restore_random_state(torch.atleast_2d(state["random"]), self.step)
        except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no checkpoint of this model and training: {error}") from error
        if not 0 <= self.step <= steps:
            raise ValueError(f"{path} must be at a step up to {steps} (training.steps), got {self.step}")


def _restore_random_state(states: Tensor, step: int) -> None:
    """Restore the random state of this process; draw a new one if the number of processes has changed."""
    if len(states) == collectives.world_size():
        torch.set_rng_state(states[collectives.rank()].clone())
    else:
        torch.set_rng_state(generator("rank", collectives.rank(), collectives.world_size(), step).get_state())


class _Best:
    """The weights with the lowest validation loss so far."""

    def __init__(self, model: nn.Module, patience: int) -> None:
        self.model = model
        self.patience = patience
        self.loss = self.reference = math.inf
        self.evaluations = 0
        self.weights: dict[str, Tensor] = {}

    @property
    def exhausted(self) -> bool:
        """Whether the loss has not improved for ``patience`` evaluations."""
        return self.evaluations >= self.patience

    def update(self, loss: float) -> None:
        """Record the validation loss of an evaluation."""
        self.evaluations += 1
        if loss < self.reference - MIN_IMPROVEMENT:
            self.reference, self.evaluations = loss, 0
        if loss < self.loss:
            self.loss = loss
            self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}

    def restore(self) -> None:
        if self.weights:
            self.model.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "reference": self.reference,
            "evaluations": self.evaluations,
            "weights": self.weights,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss, self.reference = float(state["loss"]), float(state["reference"])
        self.evaluations, self.weights = int(state["evaluations"]), state["weights"]


class _Log:
    """Write metrics: one JSON line per evaluation and, on request, TensorBoard events."""

    def __init__(self, folder: Path | None, *, tensorboard: bool) -> None:
        if folder is None and tensorboard:
            raise ValueError("training.tensorboard needs a folder, got none")
        self.path = None if folder is None else folder / METRICS
        self.tensorboard = tensorboard
        self.entries: list[dict[str, float]] = []
        self.board: Any = None

    def begin(self, step: int) -> None:
        """Continue after a step; drop entries of later steps, which are written again."""
        if self.path is not None and step and self.path.exists():
            self.entries = entries_until(self.path, step)
        collectives.barrier()  # all processes have read the file
        if not collectives.is_first():
            self.path = None
        if self.path is not None:
            lines = "".join(json.dumps(entry) + "\n" for entry in self.entries)
            write_atomically(self.path, lines.encode())
            self.board = _summary_writer(self.path.parent, step) if self.tensorboard else None

    def close(self) -> None:
        if self.board is not None:
            self.board.close()

    def write(self, entry: dict[str, float]) -> None:
        self.entries.append(entry)
        if self.path is not None:
            append(self.path, json.dumps(entry) + "\n")
        if self.board is not None:
            for name, value in entry.items():
                self.board.add_scalar(name, value, entry["step"])
            self.board.flush()


def entries_until(path: Path, step: int) -> list[dict[str, float]]:
    """Return the metrics up to a step."""
    entries = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
            if entry["step"] <= step:
                entries.append(entry)
        except (json.JSONDecodeError, KeyError, TypeError):  # the last line of a killed run may be cut short
            break
    return entries


def _summary_writer(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ModuleNotFoundError(
            "training.tensorboard needs the tensorboard package: pip install 'setwise[tensorboard]'"
        ) from error
    return SummaryWriter(folder, purge_step=step + 1)
