"""A run read back: its experiment, its trained models, and what they say of sets that they were tested on."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from setwise._files import read_json
from setwise.experiments import EXPERIMENTS
from setwise.experiments.base import ExampleSet, Experiment
from setwise.experiments.config import filled
from setwise.experiments.report import fault_of
from setwise.sets import SetBatch
from setwise.training.checkpoint import CHECKPOINT, load_checkpoint, trained_weights
from setwise.training.config import Training
from setwise.training.loop import outputs
from setwise.training.sampler import EVALUATION_ELEMENTS, ElementBudgetSampler
from setwise.training.seeding import generator

TESTED = 500
"""Test sets to count mistakes over, at most."""
ELEMENTS = 200_000
"""Elements that they have together, at most."""

_VARIANT = re.compile(r".*_seed-(?P<seed>\d+)")


@dataclass(frozen=True, eq=False)
class Run:
    """What the folder of a run says of it."""

    folder: Path
    experiment: Experiment
    row: str
    seed: int
    data: str
    """Which data it was trained and tested on."""
    result: Mapping[str, Any] | None
    """None as long as it has not finished."""

    @property
    def title(self) -> str:
        """What to call the row."""
        return self.experiment.ROWS[self.row]


@dataclass(frozen=True, eq=False)
class Trial:
    """A trained model of a run, and what it says of sets that it was tested on."""

    name: str
    """Of its fold; empty where there is but one training."""
    model: nn.Module
    steps: int
    """Batches that it was trained on."""
    exhibits: Sequence[ExampleSet]
    out: Float[Tensor, "b k"]
    """The raw outputs for them."""


def read_run(folder: Path) -> Run:
    """Find out which run a folder holds, by its result or, if it has not finished, by its name."""
    path = folder / "result.json"
    result = read_json(path) if path.exists() else None
    names = folder.resolve().parts[-3:]
    known = dict(zip(("seed", "row", "experiment"), reversed(names), strict=False))
    if match := _VARIANT.fullmatch(known["seed"]):
        known["seed"] = match["seed"]
    if isinstance(result, dict):
        known |= {key: str(result.get(key)) for key in ("experiment", "row", "seed")}
    kind = EXPERIMENTS.get(known.get("experiment", ""))
    if kind is None or known["row"] not in kind.ROWS or not known["seed"].isdecimal():
        expected = "expected a folder <experiment>/<row>/…_seed-<number>"
        raise ValueError(f"{folder} does not tell which run it holds: {expected}, got {'/'.join(names)}")
    if result is not None and (fault := fault_of(result, kind)):
        raise ValueError(f"{path} is not a result of {kind.name}: {fault}")
    experiment, data = _configured(kind, folder / "config.json")
    return Run(folder, experiment, known["row"], int(known["seed"]), data, result)


def _configured(kind: type[Experiment], path: Path) -> tuple[Experiment, str]:
    """An experiment as it was configured, and its data; what is younger than that has its default."""
    config = read_json(path)
    try:
        known = filled(config, asdict(kind()))
        data = str(known.pop("data"))
        if unknown := known.keys() - {field.name for field in fields(kind)}:
            raise ValueError(f"{min(unknown)} is unknown")
        return kind(**known | {"training": Training(**known["training"])}), data
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a configuration of {kind.name}: {error}") from error


def trials(run: Run) -> list[Trial]:
    """The trained models that there are, one a fold, each with test sets of its own."""
    experiment, seeds = run.experiment, run.experiment.trials(run.seed)
    if run.data != experiment.data:
        raise FileNotFoundError(
            f"{run.folder} is a run on {run.data!r}, and this machine has {experiment.data!r}: "
            "set SETWISE_DATA to the folder with its data"
        )
    found = []
    for name, seed in seeds.items():
        model, steps = experiment.solved(run.row, seed), 0
        if model is None:
            path = run.folder / name / CHECKPOINT
            if not path.exists():
                continue
            model, steps = _loaded(experiment.model(run.row, seed), path, run)
        exhibits = experiment.exhibits(seed, math.ceil(TESTED / len(seeds)), generator("exhibits", seed))
        exhibits = _thinned(exhibits, ELEMENTS // len(seeds))
        found.append(Trial(name, model, steps, exhibits, _outputs(model, exhibits)))
    if not found:
        state = "has not come to its first one" if run.result is None else "has finished, and it is gone"
        raise FileNotFoundError(f"{run.folder} holds no {CHECKPOINT} to look into: the run {state}")
    return found


def _loaded(model: nn.Module, path: Path, run: Run) -> tuple[nn.Module, int]:
    """The model with the weights of a checkpoint, and how many batches it has been trained on."""
    state = load_checkpoint(path)
    try:
        model.load_state_dict(trained_weights(state))
        return model, int(state["step"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} does not hold weights of {run.row} of {run.experiment.name}") from error


def _thinned(exhibits: list[ExampleSet], elements: int) -> list[ExampleSet]:
    """Evenly fewer of them, if they have more elements than that."""
    return exhibits[:: max(math.ceil(sum(len(e.x) for e in exhibits) / elements), 1)]


def _outputs(model: nn.Module, exhibits: Sequence[ExampleSet]) -> Float[Tensor, "b k"]:
    """The raw outputs, in order; sets of similar size go through the model together."""
    if not exhibits:
        return torch.zeros(0, 1)
    batches = list(
        ElementBudgetSampler([len(e.x) for e in exhibits], elements=EVALUATION_ELEMENTS // 2, shuffle=False)
    )
    y = torch.tensor([e.y for e in exhibits])
    out, _ = outputs(model, ((SetBatch.from_list([exhibits[i].x for i in b]), y[b]) for b in batches))
    return out[torch.tensor([i for batch in batches for i in batch]).argsort()]
