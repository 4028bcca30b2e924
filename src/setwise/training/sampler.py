"""Batches of sets of very different sizes: as many of a similar size as fit a budget of elements."""

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
"""How many elements each set has."""


class ElementBudgetSampler(Sampler[list[int]]):
    """Deals sets into batches by size, such that sets × largest, with the padding, stays within a budget.

    A set that is larger than the budget comes alone. Each set comes once an epoch. The padding of an epoch
    is bounded for any sizes there are: padding ≤ waste · (elements + padding).

    Sets of similar size change places, so that batches differ from one epoch to the next, but their number
    does not: ``len(sampler)`` is the same for all epochs. Iteration goes from epoch to epoch;
    ``set_epoch(e)`` chooses the next. For `setwise.fit`, where a batch is a function of its step, there is
    ``batch(step)``, and `budgeted` around it.

    Batches differ in how many sets they hold, b, and the mean loss of a batch counts each as 1/b: those of
    large sets count for more. To count all alike, multiply the loss by b · len(sampler) / len(sizes).

    Args:
        sizes: the number of elements of each set; 0 is one too.
        elements: the budget: how many elements, padding included, a batch may have.
        max_sets: at most so many sets in a batch; without it, small sets come by the thousand.
        waste: the largest share of padding in an epoch. More makes fewer and more varied batches.
        shuffle: draw batches and their order at random; else go from the largest sets to the smallest.
        seed: tells one order from another.

    >>> sizes = [2, 90, 3, 700, 2, 95, 100, 3, 5000]
    >>> sampler = ElementBudgetSampler(sizes, elements=1000, shuffle=False)
    >>> [[sizes[i] for i in batch] for batch in sampler]
    [[5000], [700], [100, 95, 90], [3, 3, 2, 2]]
    >>> round(padding_waste(sizes, sampler), 3)
    0.003

    The numbers of the sets are all that a `DataLoader` need know, to read them in its workers:

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
            raise ValueError("expected the size of at least one set, got none")
        if not 0 <= waste < 1:
            raise ValueError(f"waste must be at least 0 and below 1, got {waste}")
        self.sizes = torch.tensor(known, dtype=torch.int64)
        self.shuffle = shuffle
        self.seed = operator.index(seed)
        self.epoch = 0
        budget = _at_least_one("elements", elements)
        most = len(known) if max_sets is None else _at_least_one("max_sets", max_sets)

        # A set of more than half the budget comes alone: it has no padding, and pays for that of no others.
        small = [n for n in known if 2 * n <= budget]
        padding = int(sum(small) * waste / (1 - waste))
        # Half of the padding goes for chance: each size is blurred by up to so many elements before sorting.
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
        """Go on with this epoch, counted from 0, when iterated over next."""
        number = operator.index(epoch)
        if number < 0:
            raise ValueError(f"epoch must not be negative, got {number}")
        self.epoch = number

    def batch(self, step: SupportsIndex) -> list[int]:
        """The numbers of the sets in the batch of a step, counted from 1: epoch after epoch.

        It depends on nothing that was asked before.
        """
        epoch, place = divmod(_at_least_one("step", step) - 1, len(self))
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = (epoch, *self._draw(epoch))
        _, order, places = self._drawn
        begin, end = self._bounds[places[place]], self._bounds[places[place] + 1]
        index: list[int] = order[begin:end].tolist()
        return index

    def _draw(self, epoch: int) -> tuple[Int[Tensor, " sets"], list[int]]:
        """All sets from large to small, nearly, and the order in which their batches come."""
        if not self.shuffle:
            return self.sizes.argsort(descending=True, stable=True), list(range(len(self)))
        random = generator("buckets", self.seed, epoch)
        shuffled = torch.randperm(len(self.sizes), generator=random)  # or equal sizes would keep their order
        less = torch.randint(self._blur + 1, shuffled.shape, generator=random)
        falling = (self.sizes[shuffled] - less).argsort(descending=True, stable=True)
        return shuffled[falling], torch.randperm(len(self), generator=random).tolist()


def _cut(sizes: Sequence[int], elements: int, max_sets: int, blur: int, padding: int) -> list[int]:
    """Where to cut sets of falling sizes into few batches of at most so much padding.

    They stay within the budget when the sets are sorted by blurred sizes instead: blurring makes no size
    larger, so the k-th largest blurred size is at most the k-th largest size, and its set is larger than that
    by ``blur`` at most.
    """
    before = [0, *accumulate(sizes)]

    def padded(begin: int, end: int) -> int:
        return (end - begin) * sizes[begin] - before[end] + before[begin]

    allowance = padding  # of one batch; the less there is, the more batches
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
    """The share of padding among all elements of some batches: 1 − Σ n / Σ b · max n.

    Args:
        sizes: the number of elements of each set.
        batches: the numbers of the sets in each of them.

    >>> padding_waste([1, 4, 4], [[0, 1], [2]])
    0.25
    """
    known = _whole_numbers(sizes)
    found = [[known[i] for i in batch] for batch in batches]
    padded = sum(len(batch) * max(batch, default=0) for batch in found)
    return 1 - sum(map(sum, found)) / padded if padded else 0.0


def budgeted(
    sets: Sequence[Any], y: Any, sampler: ElementBudgetSampler
) -> Callable[[int], tuple[SetBatch, Shaped[Tensor, "b ..."]]]:
    """The batch of each step, as `setwise.fit` asks for it, from a list of sets and the target of each.

    Args:
        sets: an array or tensor ``[n_i, …]`` each.
        y: the targets, one a set.
        sampler: made of the sizes of these sets.

    >>> sets, y = [torch.randn(n, 4) for n in (3, 50, 4, 60)], [0, 1, 0, 1]
    >>> sampler = ElementBudgetSampler([len(x) for x in sets], elements=128, waste=0.2)
    >>> batches = budgeted(sets, y, sampler)
    >>> sorted((batch.sizes.tolist(), y.tolist()) for batch, y in map(batches, (1, 2)))
    [([4, 3], [0, 0]), ([60, 50], [1, 1])]
    """
    targets = torch.as_tensor(y)
    for what, given in (("sets", sets), ("targets", targets)):
        if len(given) != len(sampler.sizes):
            raise ValueError(f"{what} must be {len(sampler.sizes)}, as many as sizes, got {len(given)}")
    for i, (x, n) in enumerate(zip(sets, sampler.sizes.tolist(), strict=True)):
        if len(x) != n:
            raise ValueError(f"set {i} must have {n} elements, as the sampler was told, got {len(x)}")

    def batch(step: int) -> tuple[SetBatch, Tensor]:
        index = sampler.batch(step)
        return SetBatch.from_list([sets[i] for i in index]), targets[index]

    return batch


def _whole_numbers(sizes: Sizes) -> list[int]:
    found = []
    for i, n in enumerate(sizes.tolist() if isinstance(sizes, Tensor | np.ndarray) else sizes):
        try:
            found.append(operator.index(n))
        except TypeError as error:
            raise TypeError(f"sizes must be whole numbers, got {type(n).__name__} for set {i}") from error
        if found[-1] < 0:
            raise ValueError(f"sizes must not be negative, got {n} for set {i}")
    return found


def _at_least_one(name: str, value: SupportsIndex) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from error
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number
