"""Training and evaluation: a loop that knows no data set and no model class.

A batch is a function of its number, ``batches(step) → (SetBatch, y)``. A run that was stopped at any moment
thus continues bit for bit: the checkpoint holds the weights, the optimiser, the schedule and the global
random state, and the data need none. Several processes that ``torchrun`` started train one model together:
each is given the same batch and sees its share of it, and the first one writes.
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
from setwise.training.distributed import set_up
from setwise.training.divergence import diverged
from setwise.training.progress import NoProgress
from setwise.training.seeding import generator
from setwise.training.signals import heeded

Batch = tuple[SetBatch, Tensor]
Batches = Callable[[int], Batch]

METRICS = "metrics.jsonl"
LOCK = ".training"
PROGRESS = 1e-4
"""How much lower a validation loss must be for patience to begin anew."""


@dataclass(frozen=True)
class History:
    """What a training run has to tell; time and counts include what came before a resumption."""

    metrics: list[dict[str, float]]
    """One entry per evaluation: step, loss, lr, the scores on validation data where there are any, and the
    health of the learned graph where there is one (`setwise.graph_health`)."""
    steps: int
    """Batches trained on."""
    sets: int
    """Sets in them."""
    seconds: float
    """Time spent."""


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Take numbers that underflow for zero: with them, products take a processor many times as long.

    The kernel of elements that lie far apart is such a number, and so a trained graph is full of them.
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

    Args:
        model: called as ``model(x, mask)``; returns raw outputs.
        task: gives the loss and the scores.
        batches: the batch of each step, counted from 1.
        training: steps, optimiser, schedule, precision and so on.
        validation: batches to score at each evaluation; any iterable that can be gone through again.
            Their loss steers the plateau schedule. Without them, the mean training loss since the last
            evaluation does.
        folder: where metrics and the checkpoint go; without one nothing is written.
        resume: continue from the folder's checkpoint, if there is one; else it is removed.
        progress: shows how far it has come.
        optimizer: of the model's parameters, to go on with; made anew unless given.

    Returns:
        The metrics over time, and what the training cost.
    """
    folder = None if folder is None else Path(folder)
    if training.patience is not None and validation is None:
        raise ValueError("training.patience needs validation data to watch, got none")
    adam = _optimizer(model, training) if optimizer is None else optimizer
    schedule = _schedule(adam, training)
    fabric, network, stepper = set_up(model, adam, training)
    best = None if training.patience is None else _Best(model, training.patience)
    run = _Run(model, adam, schedule, best)
    shown = progress if progress and collectives.is_first() else NoProgress()
    log = _Log(folder, tensorboard=training.tensorboard)
    watch = CollapseWatch()
    with _kept(folder), closing(log), heeded() as request, shown as bar:
        if collectives.rank():  # what is drawn at random, as in dropout, differs from process to process
            torch.set_rng_state(generator("rank", collectives.rank(), torch.initial_seed()).get_state())
        if folder is not None:
            run.take_up(folder / CHECKPOINT, resume=resume, steps=training.steps)
        log.begin(run.step)
        network.train()
        bar.begin(training.steps, run.step)
        last = best is not None and best.over  # a run that is taken up may have ended already
        for step in range(run.step + 1, training.steps + 1) if not last else ():
            batch, y = matched(batches(step), model)
            random = torch.get_rng_state()
            loss = task.loss(network(batch.x, batch.mask), y)
            value = loss.item()
            if not math.isfinite(value):
                raise FloatingPointError(diverged(model, batch, y, value, step, random, folder))
            fabric.backward(loss)
            stopping = collectives.average_gradients(model.parameters(), bool(request))
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
                    collectives.same(model.buffers())
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
                    best.look(entry["validation_loss"])
                last = step == training.steps or (best is not None and best.over)
                if folder is not None and collectives.any_of(
                    last or run.since_saved() >= training.checkpoint_seconds
                ):
                    run.save(folder / CHECKPOINT)
            if stopping or (request and collectives.world() == 1):
                if folder is not None:
                    run.save(folder / CHECKPOINT)
                request.obey()
            if last:
                break
        if collectives.any_of(bool(request)):  # while there was no step left to take
            request.obey()
    if best is not None:
        best.restore()
    collectives.same(model.buffers())
    return History(log.entries, run.step, run.sets, run.seconds)


@contextmanager
def _kept(folder: Path | None) -> Iterator[None]:
    """Keep the folder to oneself, and let the other processes wait until it is."""
    with locked(folder, LOCK) if folder is not None and collectives.is_first() else nullcontext():
        if folder is not None and collectives.is_first():
            clear_unfinished(folder)
        collectives.wait()
        yield


def matched(batch: Batch, model: nn.Module) -> Batch:
    """The batch on the model's device, and its elements in the model's precision."""
    sets, y = batch
    weight = next(model.parameters(), sets.x)
    dtype = weight.dtype if sets.x.is_floating_point() else sets.x.dtype
    return sets.to(weight.device, dtype), y.to(weight.device)


@torch.no_grad()
@flush_denormals()
def outputs(model: nn.Module, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """The raw outputs for all batches, ``[sets, k]``, with their targets; the model is in eval mode."""
    outs, targets = [], []
    with eval_mode(model):
        for pair in batches:
            batch, y = matched(pair, model)
            outs.append(model(batch.x, batch.mask).cpu())
            targets.append(y.cpu())
    if not outs:
        raise ValueError("expected at least one batch to evaluate, got none")
    return torch.cat(outs), torch.cat(targets)


def _health(model: nn.Module, batch: SetBatch, *, whole: bool) -> dict[str, float]:
    """Health of the learned graph, measured by the first process; γ alone where none holds whole sets."""

    def measured() -> bytes:
        known = (batch.x, batch.mask) if whole else (torch.zeros(0, 0, 0), None)
        return json.dumps(graph_health(model, *known)).encode()

    health: dict[str, float] = json.loads(collectives.on_first(measured))
    return health


def evaluate(model: nn.Module, task: Task, batches: Iterable[Batch]) -> dict[str, float]:
    """The task's scores over all batches together."""
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


class _Run:
    """The state of a run, as the checkpoint holds it."""

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
        self.before = 0.0
        self.started = self.saved = time.perf_counter()
        self._forget_losses()

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.started

    def since_saved(self) -> float:
        return time.perf_counter() - self.saved

    def _forget_losses(self) -> None:
        self.losses = 0.0
        self.counted = 0

    def count(self, loss: float, sets: int) -> None:
        self.step += 1
        self.sets += sets
        self.losses += loss
        self.counted += 1

    def mean_loss(self) -> float:
        """The mean loss since this was asked last."""
        mean = self.losses / self.counted
        self._forget_losses()
        return mean

    def save(self, path: Path) -> None:
        state: dict[str, Any] = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"step": self.step, "sets": self.sets, "seconds": self.seconds}
        state |= {"losses": self.losses, "counted": self.counted}
        state["random"] = collectives.rows(torch.get_rng_state())
        if collectives.is_first():
            save_checkpoint(path, state)
        collectives.wait()  # nobody goes on before it is there
        self.saved = time.perf_counter()

    def take_up(self, path: Path, *, resume: bool, steps: int) -> None:
        """Continue from the state in ``path``, or see to it that nobody will."""
        if not resume and collectives.is_first():
            path.unlink(missing_ok=True)
        collectives.wait()
        if path.exists():
            self._load(path, steps)
        if collectives.any_of(bool((collectives.rows(torch.tensor(self.step)) != self.step).any())):
            raise ValueError(f"{path} must be on a file system that all processes share, got different ones")

    def _load(self, path: Path, steps: int) -> None:
        state = load_checkpoint(path)
        try:
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
            self.step, self.sets = int(state["step"]), int(state["sets"])
            self.before = float(state["seconds"])
            self.losses, self.counted = float(state.get("losses", 0.0)), int(state.get("counted", 0))
            _take_up_random(torch.atleast_2d(state["random"]), self.step)
        except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} does not belong to this model and training: {error}") from error
        if not 0 <= self.step <= steps:
            raise ValueError(f"{path} is at step {self.step}, beyond the {steps} steps of this training")


def _take_up_random(states: Tensor, step: int) -> None:
    """Go on with the random numbers of this process; others than they were begin anew."""
    if len(states) == collectives.world():
        torch.set_rng_state(states[collectives.rank()].clone())
    else:
        torch.set_rng_state(generator("rank", collectives.rank(), collectives.world(), step).get_state())


class _Best:
    """The weights with the lowest validation loss so far."""

    def __init__(self, model: nn.Module, patience: int) -> None:
        self.model = model
        self.patience = patience
        self.loss = self.mark = math.inf
        self.since = 0
        self.weights: dict[str, Tensor] = {}

    @property
    def over(self) -> bool:
        """Whether patience has run out."""
        return self.since >= self.patience

    def look(self, loss: float) -> None:
        """Take note of an evaluation."""
        self.since += 1
        if loss < self.mark - PROGRESS:
            self.mark, self.since = loss, 0
        if loss < self.loss:
            self.loss = loss
            self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}

    def restore(self) -> None:
        if self.weights:
            self.model.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss, "mark": self.mark, "since": self.since, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss, self.mark = float(state["loss"]), float(state["mark"])
        self.since, self.weights = int(state["since"]), state["weights"]


class _Log:
    """The metrics of a run: a JSON line an evaluation and, if wanted, TensorBoard events."""

    def __init__(self, folder: Path | None, *, tensorboard: bool) -> None:
        if folder is None and tensorboard:
            raise ValueError("training.tensorboard needs a folder to write to, got none")
        self.path = None if folder is None else folder / METRICS
        self.tensorboard = tensorboard
        self.entries: list[dict[str, float]] = []
        self.board: Any = None

    def begin(self, step: int) -> None:
        """Go on after a step: what was written later will be written again."""
        if self.path is not None and step and self.path.exists():
            self.entries = entries_until(self.path, step)
        collectives.wait()  # all have read it
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
    """The metrics that a run had written by a step."""
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
