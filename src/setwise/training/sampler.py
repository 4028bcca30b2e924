"""Batches of sets of similar size, within a budget of elements."""

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.utils.data import Sampler

from setwise.sets import SetBatch
from setwise.training.seeding import generator

TRAINING_ELEMENTS = 2**15
"""Elements of a training batch, padding included."""
EVALUATION_ELEMENTS = 2**12
"""Elements of a batch without gradients, padding included."""

Sizes = Shaped[Tensor, " sets"] | Shaped[np.ndarray, " sets"] | Sequence[SupportsIndex]
"""Number of elements of each set."""


class ElementBudgetSampler(Sampler[list[int]]):
    """Group sets by size into batches whose padded size, sets × largest set, stays within a budget.

    A set that is larger than the budget has a batch of its own. Each set occurs once per epoch. The padding
    of an epoch is bounded for any sizes: padding ≤ waste · (elements + padding).

    Sets of similar size are exchanged between batches from epoch to epoch; the number of batches,
    ``len(sampler)``, is the same for all epochs. Each iteration is the next epoch, or that of ``set_epoch``.
    For `setwise.fit`, where a batch is a function of its step, use ``batch(step)``, or `budgeted`.

    The number b of sets in a batch varies, and the mean loss of a batch weights each set by 1/b. For equal
    weights, multiply the loss by b · len(sampler) / len(sizes).

    Args:
        sizes: the number of elements of each set; may be 0.
        elements: the budget: maximum number of elements in a batch, including padding.
        max_sets: maximum number of sets in a batch; by default unlimited.
        waste: maximum share of padding in an epoch. A larger value gives fewer and more varied batches.
        shuffle: draw batches and their order at random; otherwise sort from the largest sets to the smallest.
        seed: random seed of the order.

    >>> sizes = [2, 90, 3, 700, 2, 95, 100, 3, 5000]
    >>> sampler = ElementBudgetSampler(sizes, elements=1000, shuffle=False)
    >>> [[sizes[i] for i in batch] for batch in sampler]
    [[5000], [700], [100, 95, 90], [3, 3, 2, 2]]
    >>> round(padding_waste(sizes, sampler), 3)
    0.003

    As the ``batch_sampler`` of a `DataLoader`, whose workers read the sets:

    >>> from torch.utils.data import DataLoader
    >>> sets = [torch.randn(n, 4) for n in sizes]
    >>> def read(index):
    ...     return SetBatch.pack([sets[i] for i in index])
    >>> loader = DataLoader(range(len(sets)), batch_sampler=sampler, collate_fn=read)
    >>> [list(batch.x.shape) for batch in loader]
    [[1, 5000, 4], [1, 700, 4], [3, 100, 4], [4, 3, 4]]
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        elements: SupportsIndex,
        max_sets: SupportsIndex | None = None,
        waste: float = 0.1,
        shuffle: bool = True,
        seed: SupportsIndex = 0,
    ) -> None:
        known = _whole_numbers(sizes)
        if not known:
            raise ValueError("sizes must contain at least one set, got none")
        if not 0 <= waste < 1:
            raise ValueError(f"waste must be at least 0 and below 1, got {waste}")
        self.sizes = torch.tensor(known, dtype=torch.int64)
        self.shuffle = shuffle
        self.seed = operator.index(seed)
        self.epoch = 0
        budget = _at_least_one("elements", elements)
        most = len(known) if max_sets is None else _at_least_one("max_sets", max_sets)

        # A set of more than half the budget has its own batch, without padding; the bound ignores it.
        small = [n for n in known if 2 * n <= budget]
        padding = int(sum(small) * waste / (1 - waste))
        # Half of the allowed padding is for shuffling: sizes are reduced by up to `_blur` before sorting.
        self._blur = padding // (2 * len(small)) if shuffle and small else 0
        known.sort(reverse=True)
        self._bounds = _cut(known, budget, most, self._blur, padding - len(small) * self._blur)
        self._drawn: tuple[int, Tensor, list[int]] | None = None

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __iter__(self) -> Iterator[list[int]]:
        first = self.epoch * len(self) + 1
        self.epoch += 1
        return map(self.batch, range(first, first + len(self)))

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Set the epoch of the next iteration, counted from 0."""
        number = operator.index(epoch)
        if number < 0:
            raise ValueError(f"epoch must not be negative, got {number}")
        self.epoch = number

    def batch(self, step: SupportsIndex) -> list[int]:
        """Return the indices of the sets in the batch of a step, counted from 1 through all epochs."""
        epoch, place = divmod(_at_least_one("step", step) - 1, len(self))
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = (epoch, *self._draw(epoch))
        _, order, places = self._drawn
        begin, end = self._bounds[places[place]], self._bounds[places[place] + 1]
        index: list[int] = order[begin:end].tolist()
        return index

    def _draw(self, epoch: int) -> tuple[Int[Tensor, " sets"], list[int]]:
        """Return all sets, sorted by blurred size in descending order, and the order of the batches."""
        if not self.shuffle:
            return self.sizes.argsort(descending=True, stable=True), list(range(len(self)))
        random = generator("buckets", self.seed, epoch)
        shuffled = torch.randperm(len(self.sizes), generator=random)  # exchanges sets of equal size
        less = torch.randint(self._blur + 1, shuffled.shape, generator=random)
        falling = (self.sizes[shuffled] - less).argsort(descending=True, stable=True)
        return shuffled[falling], torch.randperm(len(self), generator=random).tolist()


def _cut(sizes: Sequence[int], elements: int, max_sets: int, blur: int, padding: int) -> list[int]:
    """Return the bounds of few batches of sets of descending size, with at most ``padding`` in all.

    The batches stay within the budget when the sets are sorted by blurred sizes instead: blurring increases
    no size, so the k-th largest blurred size is at most the k-th largest size, and its set is larger by at
    most ``blur``.
    """
    before = [0, *accumulate(sizes)]

    def padded(begin: int, end: int) -> int:
        return (end - begin) * sizes[begin] - before[end] + before[begin]

    allowance = padding  # per batch; less padding needs more batches
    while True:
        bounds = [0]
        while (begin := bounds[-1]) < len(sizes):
            fitting = max(elements // max(sizes[begin] + blur, 1), 1)
            ends = range(begin + 1, min(begin + min(fitting, max_sets), len(sizes)) + 1)
            bounds.append(begin + bisect_right(ends, allowance, key=partial(padded, begin)))
        if sum(padded(begin, end) for begin, end in pairwise(bounds)) <= padding:
            return bounds
        allowance = allowance * 3 // 4


def padding_waste(sizes: Sizes, batches: Iterable[Iterable[SupportsIndex]]) -> float:
    """Return the share of padding in some batches: 1 − Σ n / Σ b · max n.

    Args:
        sizes: the number of elements of each set.
        batches: the indices of the sets in each batch.

    >>> padding_waste([1, 4, 4], [[0, 1], [2]])
    0.25
    """
    known = _whole_numbers(sizes)
    batch_sizes = [[known[i] for i in batch] for batch in batches]
    padded = sum(len(batch) * max(batch, default=0) for batch in batch_sizes)
    return 1 - sum(map(sum, batch_sizes)) / padded if padded else 0.0


def budgeted(
    sets: Sequence[Any], y: Any, sampler: ElementBudgetSampler
) -> Callable[[int], tuple[SetBatch, Shaped[Tensor, "b ..."]]]:
    """Return a function from step to batch, as `setwise.fit` takes it, for a list of sets and targets.

    Args:
        sets: arrays or tensors ``[n_i, …]``.
        y: one target per set.
        sampler: sampler for the sizes of these sets.

    >>> sets, y = [torch.randn(n, 4) for n in (3, 50, 4, 60)], [0, 1, 0, 1]
    >>> sampler = ElementBudgetSampler([len(x) for x in sets], elements=128, waste=0.2)
    >>> batches = budgeted(sets, y, sampler)
    >>> sorted((batch.sizes.tolist(), y.tolist()) for batch, y in map(batches, (1, 2)))
    [([4, 3], [0, 0]), ([60, 50], [1, 1])]
    """
    targets = torch.as_tensor(y)
    for what, given in (("sets", sets), ("targets", targets)):
        if len(given) != len(sampler.sizes):
            raise ValueError(
                f"{what} must have length {len(sampler.sizes)} (sampler.sizes), got {len(given)}"
            )
    for i, (x, n) in enumerate(zip(sets, sampler.sizes.tolist(), strict=True)):
        if len(x) != n:
            raise ValueError(f"set {i} must have {n} elements (sampler.sizes), got {len(x)}")

    def batch(step: int) -> tuple[SetBatch, Tensor]:
        index = sampler.batch(step)
        return SetBatch.from_list([sets[i] for i in index]), targets[index]

    return batch


def _whole_numbers(sizes: Sizes) -> list[int]:
    numbers = []
    for i, n in enumerate(sizes.tolist() if isinstance(sizes, Tensor | np.ndarray) else sizes):
        try:
            numbers.append(operator.index(n))
        except TypeError as error:
            raise TypeError(f"sizes must be whole numbers, got {type(n).__name__} for set {i}") from error
        if numbers[-1] < 0:
            raise ValueError(f"sizes must not be negative, got {n} for set {i}")
    return numbers


def _at_least_one(name: str, value: SupportsIndex) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from error
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number
