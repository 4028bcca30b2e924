"""Batches of sets, and the weighted loss that the estimators minimise."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from setwise.sets import Sets
from setwise.tasks import Binary, Classes, Count, Labels, Regression
from setwise.training.loop import Batch
from setwise.training.sampler import EVALUATION_ELEMENTS, TRAINING_ELEMENTS, ElementBudgetSampler
from setwise.training.seeding import generator

SetTask = Binary | Labels | Classes | Count | Regression


class TrainingBatches:
    """The training batch of each step: each set once per epoch, sets of similar size together.

    Args:
        sets: all sets, including those held out for validation.
        train: indices of the sets to train on.
        batch_size: maximum number of sets per batch; batches of large sets have fewer.
        max_elements: maximum number of elements per set, redrawn every epoch; None takes all.
        seed: random seed of the order and of the elements drawn.
    """

    def __init__(
        self,
        sets: Sets,
        train: Int[Tensor, " some"],
        *,
        batch_size: int,
        max_elements: int | None,
        seed: int,
    ) -> None:
        self.sets = sets
        self.train = train
        self.max_elements = max_elements
        self.seed = seed
        sizes = torch.from_numpy(sets.sizes)[train]
        self.sampler = ElementBudgetSampler(
            sizes if max_elements is None else sizes.clamp(max=max_elements),
            elements=TRAINING_ELEMENTS,
            max_sets=batch_size,
            waste=0.5,
            seed=seed,
        )
        self._subsampled: tuple[int, Sets] | None = None  # the sets of an epoch

    def __len__(self) -> int:
        return len(self.sampler)

    @property
    def mean_batch_size(self) -> float:
        """The mean number of sets per batch."""
        return len(self.train) / len(self)

    def __call__(self, step: int) -> Batch:
        """The batch and, in place of targets, the indices of its sets: see `WeightedTask`."""
        index = self.train[self.sampler.batch(step)]
        return self._sets_of_epoch((step - 1) // len(self)).batch(index), index

    def _sets_of_epoch(self, epoch: int) -> Sets:
        if self.max_elements is None:
            return self.sets
        if self._subsampled is None or self._subsampled[0] != epoch:
            random = generator("elements", self.seed, epoch)
            self._subsampled = epoch, self.sets.subsample(self.max_elements, random)
        return self._subsampled[1]


def evaluation_batches(sets: Sets, index: Int[Tensor, " some"] | None = None) -> Iterator[Batch]:
    """Batches with little padding that cover the sets at ``index``, or all sets, once; with their indices."""
    index = torch.arange(len(sets)) if index is None else index
    sizes = torch.from_numpy(sets.sizes)[index]
    for chosen in ElementBudgetSampler(sizes, elements=EVALUATION_ELEMENTS, max_sets=1024, shuffle=False):
        yield sets.batch(index[chosen]), index[chosen]


@dataclass(frozen=True, eq=False)
class WeightedTask:
    """A task with one weight per set. The targets of a batch are given as indices of sets.

    The loss of a batch is Σ w_i ℓ_i / b̄ over its sets, where b̄ is the mean batch size. Dividing by the mean
    instead of the actual batch size makes the influence of a set independent of the size of its batch.

    Args:
        task: the task without weights.
        targets: the targets of all sets.
        weights: the weights of all sets.
        mean_batch_size: b̄.
    """

    task: SetTask
    targets: Shaped[Tensor, "b ..."]
    weights: Float[Tensor, " b"]
    mean_batch_size: float = 1.0
    metric: ClassVar[str] = "loss"

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """The weighted loss of a batch."""
        index = y.to(self.targets.device)
        losses: Tensor = self.task.losses(out, self.targets[index].to(out.device))
        return (self.weights[index].to(out) * losses).sum() / self.mean_batch_size

    def predict(self, out: Tensor) -> Tensor:
        """The decoded predictions."""
        return self.task.predict(out)

    def score(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """The scores of the task, with the weighted mean as loss."""
        weights = self.weights[y]
        losses = self.task.losses(out, self.targets[y])
        loss = (weights * losses).sum() / weights.sum().clamp(min=1e-12)
        return self.task.score(out, self.targets[y]) | {"loss": loss.item()}
