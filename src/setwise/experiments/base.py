"""Base classes of the experiments."""

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
    """A test set, to be shown by the explorer."""

    x: Tensor
    """Elements ``[n, …]``, in the format the model expects."""
    y: int
    """Target."""
    draw: Callable[[], ShownSet]
    """Build the drawing of the set; called only for the sets that are shown."""


@dataclass(frozen=True)
class Experiment(ABC):
    """One section of the paper: its data, its rows, and how they are trained and tested.

    The fields are the configuration that is stored with each result.
    """

    training: Training = field(default_factory=Training)
    """Training configuration of each row."""
    threads: int | None = None
    """CPU threads; torch's default if not given."""

    name: ClassVar[str]
    """Name of the experiment on the command line and in folder names."""
    varied: ClassVar[str]
    """Field that varies between the lines of the table."""
    ROWS: ClassVar[Mapping[str, str]]
    """Rows of the table: command-line name → name in the paper."""
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]]
    """The paper's accuracy and standard deviation by row; None if the paper reports no number."""
    COLUMNS: ClassVar[Mapping[str, str]] = {}
    """Additional scores of the table: key → heading."""

    def __post_init__(self) -> None:
        """Validate the fields."""
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ValueError(f"threads must lie between 1 and 1024, got {self.threads}")

    def vary(self, value: str | float) -> Self:
        """Copy of the experiment with another value of the varied field.

        Args:
            value: new value; a string is converted to the type of the field.
        """
        kind = type(getattr(self, self.varied))
        try:
            changes: dict[str, Any] = {self.varied: kind(value)}
        except ValueError as error:
            raise ValueError(f"{self.varied} must be a number, got {value!r}") from error
        return replace(self, **changes)

    @property
    def values(self) -> Sequence[Any]:
        """Default values of the varied field in a run: the field's own value."""
        return (getattr(self, self.varied),)

    @classmethod
    def table(cls, results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]] | None:
        """Headings and rows of a custom table; None for the default table."""
        return None

    @classmethod
    def result_error(cls, result: Mapping[str, Any]) -> str | None:
        """Describe what is wrong with a recorded result; None if it is valid."""
        return None

    @classmethod
    def paper(cls, row: str, value: Any) -> tuple[float, float | None] | None:
        """The paper's accuracy of a row and its standard deviation, at this value of the varied field."""
        return cls.PAPER[row]

    def trials(self, seed: int) -> Mapping[str, int]:
        """Name → seed of each training that a run with this seed consists of.

        By default one training with the same seed; with cross-validation one per fold, see `CrossValidated`.
        """
        return {"": seed}

    @property
    def start(self) -> Experiment | None:
        """Experiment whose finished run of the same row and seed initialises this one, if any."""
        return None

    @property
    @abstractmethod
    def data(self) -> str:
        """Name of the data set that is used."""

    @abstractmethod
    def task(self, row: str) -> Task:
        """Task of a row: loss, prediction and scores."""

    @abstractmethod
    def model(self, row: str, seed: int) -> nn.Module:
        """Untrained model of a row."""

    @abstractmethod
    def batches(self, seed: int) -> Batches:
        """Training batches as a function of the step."""

    def fitted_model(self, row: str, seed: int) -> nn.Module | None:
        """Model of a row that is fitted without the training loop; None if the row is trained by it."""
        return None

    @abstractmethod
    def validation(self, seed: int) -> Iterable[Batch] | None:
        """Validation batches, if any; never test data."""

    @abstractmethod
    def test(self, model: "nn.Module", seed: int) -> dict[str, Any]:
        """Test scores to record, including ``accuracy``."""

    @property
    def classes(self) -> Sequence[str] | None:
        """Class names by label; None if the target is not a class."""
        return None

    def example_sets(self, seed: int, count: int, generator: Generator) -> list[ExampleSet]:
        """Some of the test sets, with drawings for the explorer; empty if the experiment defines none.

        Args:
            seed: seed of the training, as in `trials`.
            count: maximum number of sets.
            generator: random generator that selects the sets.
        """
        return []

    @classmethod
    @abstractmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """Figures by name, drawn from recorded results."""


@dataclass(frozen=True)
class CrossValidated(Experiment):
    """Experiment with cross-validation: each seed splits the data into folds, each fold is tested once."""

    folds: int = 5
    """Number of cross-validation folds."""

    def __post_init__(self) -> None:
        """Validate the fields."""
        super().__post_init__()
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2, got {self.folds}")

    def trials(self, seed: int) -> Mapping[str, int]:
        """One training per fold; its seed encodes the split and the fold, see `fold`."""
        return {f"fold-{fold}": seed * self.folds + fold for fold in range(self.folds)}

    def check_folds(self, available: int, what: str) -> None:
        """Raise ValueError if there are more folds than items to split."""
        if self.folds > available:
            raise ValueError(f"folds must be at most {available}, the number of {what}, got {self.folds}")

    def fold(self, seed: int) -> tuple[int, int]:
        """Split seed and fold number that the seed of a training encodes."""
        return divmod(seed, self.folds)

    def validation(self, seed: int) -> None:
        """No validation data: all other folds are used for training, because data are scarce."""


def random_indices(size: int, count: int, generator: Generator) -> list[int]:
    """At most ``count`` random indices below ``size``, sorted."""
    import torch

    return sorted(torch.randperm(size, generator=generator)[:count].tolist())
