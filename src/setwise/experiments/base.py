"""What every experiment says of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from setwise.training.config import Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Generator, Tensor, nn

    from setwise.inspection.explorer.content import ShownSet
    from setwise.tasks import Task
    from setwise.training.loop import Batch, Batches


@dataclass(frozen=True, eq=False)
class ExampleSet:
    """A set that a row is tested on, to be looked into."""

    x: Tensor
    """Its elements ``[n, …]``, as the model takes them."""
    y: int
    """Its target."""
    draw: Callable[[], ShownSet]
    """What a page shows of it, whatever the model; asked only of those that are shown."""


@dataclass(frozen=True)
class Experiment(ABC):
    """One section of the paper: its data, its rows, how they are trained and tested.

    The fields are the configuration that a result carries with it.
    """

    training: Training = field(default_factory=Training)
    """How each row is trained."""
    threads: int | None = None
    """CPU threads; torch's own choice unless given."""

    name: ClassVar[str]
    """Names the experiment on the command line and in folders."""
    varied: ClassVar[str]
    """The field whose values the table keeps apart: what the paper varies, or a protocol."""
    ROWS: ClassVar[Mapping[str, str]]
    """The rows of its table: names for the command line, and as the paper prints them."""
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]]
    """The paper's own accuracies and their deviations, by row; none where it prints no number."""
    COLUMNS: ClassVar[Mapping[str, str]] = {}
    """More scores to show in the table, with their headings."""

    def __post_init__(self) -> None:
        """Refuse absurd values."""
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ValueError(f"threads must lie between 1 and 1024, got {self.threads}")

    def vary(self, value: str | float) -> Self:
        """The same experiment with another value of what it varies.

        Args:
            value: as a string it is read as the field's own type.
        """
        kind = type(getattr(self, self.varied))
        try:
            changes: dict[str, Any] = {self.varied: kind(value)}
        except ValueError as error:
            raise ValueError(f"{self.varied} must be a number, got {value!r}") from error
        return replace(self, **changes)

    @property
    def values(self) -> Sequence[Any]:
        """The values of what is varied that a run goes through unless it is told others: its own."""
        return (getattr(self, self.varied),)

    @classmethod
    def table(cls, results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]] | None:
        """Headings and lines of a table in a form of its own; none where the usual one will do."""
        return None

    @classmethod
    def fault(cls, result: Mapping[str, Any]) -> str | None:
        """What else is wrong with a result on record that table and figures would stumble over."""
        return None

    @classmethod
    def paper(cls, row: str, value: Any) -> tuple[float, float | None] | None:
        """The paper's accuracy of a row and its deviation, at this value of what is varied."""
        return cls.PAPER[row]

    def trials(self, seed: int) -> Mapping[str, int]:
        """What a run of one seed is made of: the names of its trainings, and the seed of each.

        One training with that very seed, unless the experiment cross-validates: see `CrossValidated`.
        """
        return {"": seed}

    @property
    def start(self) -> Experiment | None:
        """The experiment whose finished run of the same row and seed this one goes on from, if any."""
        return None

    @property
    @abstractmethod
    def data(self) -> str:
        """Which data the experiment really uses."""

    @abstractmethod
    def task(self, row: str) -> Task:
        """What a row's outputs mean."""

    @abstractmethod
    def model(self, row: str, seed: int) -> nn.Module:
        """The untrained model of a row."""

    @abstractmethod
    def batches(self, seed: int) -> Batches:
        """The training batches, by their number."""

    def solved(self, row: str, seed: int) -> nn.Module | None:
        """The finished model of a row that is solved for at once; none where it is to be trained."""
        return None

    @abstractmethod
    def validation(self, seed: int) -> Iterable[Batch] | None:
        """Batches to watch the training with, if any are set aside; never test data."""

    @abstractmethod
    def test(self, model: "nn.Module", seed: int) -> dict[str, Any]:
        """The scores that go on record; ``accuracy`` is one of them."""

    @property
    def classes(self) -> Sequence[str] | None:
        """The names of the classes, by number; none where the target is no class."""
        return None

    def exhibits(self, seed: int, count: int, generator: Generator) -> list[ExampleSet]:
        """Some of the sets that `test` scores, and how to draw them; none unless the experiment says how.

        Args:
            seed: of the training, as `trials` has it.
            count: at most so many.
            generator: decides which.
        """
        return []

    @classmethod
    @abstractmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """The paper's figures by name, drawn from recorded results."""


@dataclass(frozen=True)
class CrossValidated(Experiment):
    """An experiment on few data: each seed deals them into folds, and every fold is tested on once."""

    folds: int = 5
    """Into how many parts the data are dealt; each is tested on by a model trained on all the others."""

    def __post_init__(self) -> None:
        """Refuse absurd values."""
        super().__post_init__()
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2, got {self.folds}")

    def trials(self, seed: int) -> Mapping[str, int]:
        """A training a fold; its seed tells both the deal and the fold, see `fold`."""
        return {f"fold-{fold}": seed * self.folds + fold for fold in range(self.folds)}

    def at_most(self, there: int, what: str) -> None:
        """Refuse more folds than there are things to deal."""
        if self.folds > there:
            raise ValueError(f"folds must be at most {there}, the number of {what}, got {self.folds}")

    def fold(self, seed: int) -> tuple[int, int]:
        """The deal and the fold within it that a training's seed stands for."""
        return divmod(seed, self.folds)

    def validation(self, seed: int) -> None:
        """Nothing is set aside: with so few data all of the other folds are trained on."""


def some(there: int, count: int, generator: Generator) -> list[int]:
    """At most ``count`` of so many things, drawn at random; their numbers, in order."""
    import torch

    return sorted(torch.randperm(there, generator=generator)[:count].tolist())
