"""Batches of weighted sets for the estimators."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from setwise.sets import SetBatch
from setwise.tasks import Binary, Classes, Count, Labels, Regression
from setwise.training.loop import Batch
from setwise.training.sampler import ElementBudgetSampler
from setwise.training.seeding import generator

SetTask = Binary | Labels | Classes | Count | Regression

IN_A_BATCH = 2**15
"""Elements, padding included, of a training batch; of large sets it has fewer than were asked for."""
AT_ONCE = 2**12
"""Elements, padding included, that are predicted for at once."""


@dataclass(frozen=True, eq=False)
class PackedSets:
    """Sets as one tensor of elements, from which batches are cut.

    Args:
        values: the elements of all sets, one after the other.
        ptr: where each set begins, and where the last one ends.

    >>> sets = PackedSets(torch.arange(5.0).view(5, 1), torch.tensor([0, 2, 5]))
    >>> batch = sets.batch(torch.tensor([1, 0]))
    >>> batch.x[..., 0].tolist(), batch.sizes.tolist()
    ([[2.0, 3.0, 4.0], [0.0, 1.0, 0.0]], [3, 2])
    """

    values: Float[Tensor, "N d"]
    ptr: Int[Tensor, " bounds"]

    @property
    def sizes(self) -> Int[Tensor, " b"]:
        """The number of elements of each set."""
        return self.ptr.diff()

    def batch(self, numbers: Int[Tensor, " b"]) -> SetBatch:
        """The sets of these numbers."""
        sizes = self.sizes[numbers]
        within = torch.arange(int(sizes.max()))
        mask = within < sizes.unsqueeze(1)
        place = (self.ptr[numbers].unsqueeze(1) + within).masked_fill_(~mask, 0)
        x = self.values[place].masked_fill_(~mask.unsqueeze(-1), 0)
        return SetBatch(x, None if bool(mask.all()) else mask)

    def thinned(self, most: int, random: torch.Generator) -> "PackedSets":
        """The same sets with at most so many elements each, drawn at random."""
        sizes = self.sizes
        if int(sizes.max()) <= most:
            return self
        number = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        order = torch.randperm(len(self.values), generator=random)
        order = order[number[order].argsort(stable=True)]  # random within each set
        rank = torch.arange(len(order)) - torch.repeat_interleave(self.ptr[:-1], sizes)
        kept = sizes.clamp(max=most)
        return PackedSets(self.values[order[rank < most]], torch.cat([kept.new_zeros(1), kept.cumsum(0)]))


class TrainingBatches:
    """The training batch of each step: every set once an epoch, those of similar size together.

    Args:
        sets: all of them, those for validation included.
        chosen: the numbers of those to train on.
        batch_size: at most so many sets in a batch.
        most: at most so many elements of a set, drawn anew each epoch.
        seed: tells one order from another.
    """

    def __init__(
        self, sets: PackedSets, chosen: Int[Tensor, " some"], *, batch_size: int, most: int | None, seed: int
    ) -> None:
        self.sets = sets
        self.chosen = chosen
        self.most = most
        self.seed = seed
        sizes = sets.sizes[chosen]
        self.sampler = ElementBudgetSampler(
            sizes if most is None else sizes.clamp(max=most),
            elements=IN_A_BATCH,
            max_sets=batch_size,
            waste=0.5,
            seed=seed,
        )
        self._epoch: tuple[int, PackedSets] | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    @property
    def sets_a_batch(self) -> float:
        """How many sets a batch has on average."""
        return len(self.chosen) / len(self)

    def __call__(self, step: int) -> Batch:
        """The batch, and the numbers of its sets instead of their targets: see `Weighed`."""
        numbers = self.chosen[self.sampler.batch(step)]
        return self._thinned((step - 1) // len(self)).batch(numbers), numbers

    def _thinned(self, epoch: int) -> PackedSets:
        if self.most is None:
            return self.sets
        if self._epoch is None or self._epoch[0] != epoch:
            random = generator("elements", self.seed, epoch)
            self._epoch = epoch, self.sets.thinned(self.most, random)
        return self._epoch[1]


def in_turn(sets: PackedSets, numbers: Int[Tensor, " some"] | None = None) -> Iterator[Batch]:
    """Batches of these sets, or of all, with their numbers, with little padding."""
    numbers = torch.arange(len(sets.sizes)) if numbers is None else numbers
    for index in ElementBudgetSampler(sets.sizes[numbers], elements=AT_ONCE, max_sets=1024, shuffle=False):
        yield sets.batch(numbers[index]), numbers[index]


@dataclass(frozen=True, eq=False)
class Weighed:
    """A task whose sets have weights; a batch names them by number, and their targets are looked up.

    The loss of a batch is Σ w_i ℓ_i over its sets, divided by how many a batch has on average: so all sets
    count by their weights alone, however many others share their batch.

    Args:
        task: what the outputs mean.
        targets: of all sets.
        weights: of all sets.
        sets_a_batch: on average.
    """

    task: SetTask
    targets: Shaped[Tensor, "b ..."]
    weights: Float[Tensor, " b"]
    sets_a_batch: float = 1.0
    metric: ClassVar[str] = "loss"

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch."""
        numbers = y.to(self.targets.device)
        losses: Tensor = self.task.losses(out, self.targets[numbers].to(out.device))
        return (self.weights[numbers].to(out) * losses).sum() / self.sets_a_batch

    def predict(self, out: Tensor) -> Tensor:
        """The decoded predictions."""
        return self.task.predict(out)

    def score(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """The task's scores, and the weighed mean as loss."""
        weights = self.weights[y]
        losses = self.task.losses(out, self.targets[y])
        loss = (weights * losses).sum() / weights.sum().clamp(min=1e-12)
        return self.task.score(out, self.targets[y]) | {"loss": loss.item()}
