"""Read a run: its experiment, its trained models, and their outputs for test sets."""

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
from setwise.experiments.config import with_defaults
from setwise.experiments.report import result_error
from setwise.sets import SetBatch
from setwise.training.checkpoint import CHECKPOINT, load_checkpoint, trained_weights
from setwise.training.config import Training
from setwise.training.loop import outputs
from setwise.training.sampler import EVALUATION_ELEMENTS, ElementBudgetSampler
from setwise.training.seeding import generator

MAX_TEST_SETS = 500
"""Maximum number of test sets to evaluate."""
MAX_TEST_ELEMENTS = 200_000
"""Maximum number of elements in all of them."""

_VARIANT = re.compile(r".*_seed-(?P<seed>\d+)")


@dataclass(frozen=True, eq=False)
class Run:
    """A run as its folder describes it."""

    folder: Path
    experiment: Experiment
    row: str
    seed: int
    data: str
    """Name of the data that it was trained and tested on."""
    result: Mapping[str, Any] | None
    """None if the run has not finished."""

    @property
    def title(self) -> str:
        """Display title of the row."""
        return self.experiment.ROWS[self.row]


@dataclass(frozen=True, eq=False)
class Trial:
    """A trained model of a run, and its outputs for test sets."""

    name: str
    """Name of the fold; empty if there is only one training."""
    model: nn.Module
    steps: int
    """Number of batches that it was trained on."""
    examples: Sequence[ExampleSet]
    """Test sets."""
    out: Float[Tensor, "b k"]
    """The raw outputs for them."""


def read_run(folder: Path) -> Run:
    """Read the folder of a run; the path names the experiment, row and seed of an unfinished run."""
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
        expected = "expected a path <experiment>/<row>/…_seed-<number>"
        raise ValueError(f"cannot identify the run in {folder}: {expected}, got {'/'.join(names)}")
    if result is not None and (fault := result_error(result, kind)):
        raise ValueError(f"{path} is not a result of {kind.name}: {fault}")
    experiment, data = _configured(kind, folder / "config.json")
    return Run(folder, experiment, known["row"], int(known["seed"]), data, result)


def _configured(kind: type[Experiment], path: Path) -> tuple[Experiment, str]:
    """The experiment and its data as recorded; fields added since then have their defaults."""
    config = read_json(path)
    try:
        known = with_defaults(config, asdict(kind()))
        data = str(known.pop("data"))
        if unknown := known.keys() - {field.name for field in fields(kind)}:
            raise ValueError(f"unknown field {min(unknown)}")
        return kind(**known | {"training": Training(**known["training"])}), data
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a configuration of {kind.name}: {error}") from error


def trials(run: Run) -> list[Trial]:
    """The trained models of a run, one per fold, each with its own test sets."""
    experiment, seeds = run.experiment, run.experiment.trials(run.seed)
    if run.data != experiment.data:
        raise FileNotFoundError(
            f"{run.folder} is a run on {run.data!r}, but the data found here are {experiment.data!r}: "
            "set SETWISE_DATA to the folder with the data of the run"
        )
    trained = []
    for name, seed in seeds.items():
        model, steps = experiment.fitted_model(run.row, seed), 0
        if model is None:
            path = run.folder / name / CHECKPOINT
            if not path.exists():
                continue
            model, steps = _load_weights(experiment.model(run.row, seed), path, run)
        count = math.ceil(MAX_TEST_SETS / len(seeds))
        examples = experiment.example_sets(seed, count, generator("exhibits", seed))
        examples = _thin_out(examples, MAX_TEST_ELEMENTS // len(seeds))
        trained.append(Trial(name, model, steps, examples, _outputs(model, examples)))
    if not trained:
        state = "has not written one yet" if run.result is None else "has finished, but the file is missing"
        raise FileNotFoundError(f"{run.folder} has no {CHECKPOINT}: the run {state}")
    return trained


def _load_weights(model: nn.Module, path: Path, run: Run) -> tuple[nn.Module, int]:
    """Load the weights of a checkpoint; returns the model and its number of training batches."""
    state = load_checkpoint(path)
    try:
        model.load_state_dict(trained_weights(state))
        return model, int(state["step"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{path} does not match the model of row {run.row} of {run.experiment.name}"
        ) from error


def _thin_out(examples: list[ExampleSet], elements: int) -> list[ExampleSet]:
    """Keep every k-th set, such that they have about this many elements at most."""
    return examples[:: max(math.ceil(sum(len(e.x) for e in examples) / elements), 1)]


def _outputs(model: nn.Module, examples: Sequence[ExampleSet]) -> Float[Tensor, "b k"]:
    """The raw outputs in the order of the sets; a batch holds sets of similar size."""
    if not examples:
        return torch.zeros(0, 1)
    sizes = [len(example.x) for example in examples]
    batches = list(ElementBudgetSampler(sizes, elements=EVALUATION_ELEMENTS // 2, shuffle=False))
    y = torch.tensor([e.y for e in examples])
    out, _ = outputs(model, ((SetBatch.from_list([examples[i].x for i in b]), y[b]) for b in batches))
    return out[torch.tensor([i for batch in batches for i in batch]).argsort()]
