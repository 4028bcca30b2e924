"""A data set of bags, whatever it was read from: names and labels at once, instances when asked for."""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from setwise._files import shortened
from setwise.sets import SetBatch

Index = Shaped[Tensor, " some"] | Shaped[np.ndarray, " some"] | Sequence[int]
"""Which bags: their numbers, or True and False for each bag there is."""


@dataclass(frozen=True, eq=False)
class Bag:
    """One bag: the features of its instances, its label, its name and, if known, where the instances lie.

    Args:
        x: features, a row an instance.
        y: the number of the bag's class.
        name: of the bag.
        coords: two coordinates of each instance.

    >>> Bag(torch.zeros(3, 5), 1, "slide 7").x.shape
    torch.Size([3, 5])
    """

    x: Float[Tensor, "n d"]
    y: int
    name: str
    coords: Shaped[Tensor, "n 2"] | None = None


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads bags one at a time and says in one sentence, which begins with its place, what is wrong with one.

    All bags must have instances of the same width: ``width`` if it is given; else, once all have been read,
    what most of them have; until then, that of the first that can be read, which costs one more reading.

    Args:
        source: gives features ``[n, d]`` and coords ``[n, 2]`` or None of the bag of a number, unchecked.
        places: where each bag is, for the errors.
        faults: what is known to be wrong with some of them before they are read.
        width: how many features an instance has.
        widths: what has been found out so far; None for a bag that cannot be read.
    """

    source: Callable[[int], tuple[Any, Any]]
    places: tuple[str, ...]
    faults: Mapping[int, str] = field(default_factory=dict)
    width: int | None = None
    widths: dict[int, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.width is not None and self.width < 1:
            raise ValueError(f"dim must be at least 1, got {self.width}")

    @property
    def dim(self) -> int:
        """How many features an instance has."""
        if self.width is not None:
            return self.width
        if len(self.widths) == len(self.places):  # every bag has been looked at
            for width, _ in Counter(w for _, w in sorted(self.widths.items()) if w).most_common(1):
                return width
        for i in range(len(self.places)):
            if i not in self.widths:
                with suppress(ValueError):
                    self.alone(i)
            if (first := self.widths[i]) is not None:
                return first
        raise ValueError(f"expected at least one readable bag, got none among {len(self.places)}")

    def read(self, i: int) -> tuple[Float[Tensor, "n d"], Shaped[Tensor, "n 2"] | None]:
        """The features and the coordinates, if any, of a bag that nothing is wrong with."""
        x, coords = self.alone(i)
        if fault := self.mismatch(i):
            raise ValueError(fault)
        return x, coords

    def mismatch(self, i: int) -> str | None:
        """What is wrong with the width of a bag that has been read."""
        if self.widths[i] == self.dim:
            return None
        return f"{self.places[i]}: expected {self.dim} features an instance, got {self.widths[i]}"

    def alone(self, i: int) -> tuple[Tensor, Tensor | None]:
        """Read a bag and check all that can be told without the others."""
        self.widths.setdefault(i, None)
        if i in self.faults:
            raise ValueError(self.faults[i])
        try:
            x, coords = _checked(*self.source(i))
        except Exception as error:  # reading damaged bytes may fail in any way there is
            raise ValueError(f"{self.places[i]}: {error}") from error
        self.widths[i] = x.shape[1]
        return x, coords


@dataclass(frozen=True, eq=False)
class Bags:
    """A data set of bags. Names and labels are known at once, the instances of a bag when it is asked for.

    All bags must have instances with the same number of features: the ``dim`` that a reader was given, else
    that of the first bag that can be read or, after ``check()`` or ``usable()`` has read them all, that of
    most bags. A `DataLoader` reads in its workers if it is given the numbers of the bags,
    ``DataLoader(range(len(bags)), batch_size=8, collate_fn=bags.batch, num_workers=2)``.

    Args:
        name: which data these are.
        names: of the bags.
        labels: the class of each bag, a number below ``len(classes)``.
        classes: their names.
        reader: reads bags.
        rows: what the reader's number of each bag is.
        unlabelled: what was found without a label, and a sentence about it: listed by `check`, no part of
            the data set.

    >>> bags = Bags.from_arrays([np.ones((2, 3)), np.zeros((4, 3))], ["benign", "malignant"])
    >>> len(bags), bags.dim, bags.classes, bags[1].x.shape, bags[1].y
    (2, 3, ('benign', 'malignant'), torch.Size([4, 3]), 1)
    >>> batch, y = bags.batch([1, 0])
    >>> batch.sizes.tolist(), y.tolist()
    ([4, 2], [1, 0])
    """

    name: str
    names: tuple[str, ...] = field(repr=False)
    labels: Int[Tensor, " bags"] = field(repr=False)
    classes: tuple[str, ...]
    reader: Reader = field(repr=False)
    rows: tuple[int, ...] = field(repr=False)
    unlabelled: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_arrays(
        cls,
        sets: Iterable[Any],
        labels: Iterable[Any],
        *,
        names: Sequence[str] | None = None,
        coords: Sequence[Any] | None = None,
        name: str = "bags",
        classes: Sequence[str] | None = None,
        dim: int | None = None,
    ) -> "Bags":
        """Make a data set of arrays or tensors in memory.

        Args:
            sets: the features of each bag, ``[n_i, d]``.
            labels: a whole number or a name for each bag; None if it is not known.
            names: of the bags; their numbers unless given.
            coords: ``[n_i, 2]`` for each bag, or None.
            name: of the data set.
            classes: in the order of their numbers; sorted unless given.
            dim: how many features an instance has; as many as most bags have unless given.

        >>> bags = Bags.from_arrays([torch.ones(2, 3), torch.ones(1, 4)], [0, 1], name="two")
        >>> bags.check()
        {'1': "bag '1' of two: expected 3 features an instance, got 4"}
        """
        x = list(sets)
        known = [as_label(label) for label in _plain(labels)]
        names = [str(i) for i in range(len(x))] if names is None else list(names)
        where = [None] * len(x) if coords is None else list(coords)
        for what, given in (("labels", known), ("names", names), ("coords", where)):
            if len(given) != len(x):
                raise ValueError(f"{what} must be {len(x)}, one a bag, got {len(given)}")
        if len(set(names)) < len(names):
            raise ValueError(f"names must be different, got {twice(names)!r} twice")
        found = [
            Found(bag, f"bag {bag!r} of {name}", label, content)
            for bag, label, content in zip(names, known, zip(x, where, strict=True), strict=True)
        ]
        return collected(name, found, Memory, classes, dim)

    def __post_init__(self) -> None:
        for what, given in (("labels", self.labels), ("rows", self.rows)):
            if len(given) != len(self.names):
                raise ValueError(f"{what} must be {len(self.names)}, one a bag, got {len(given)}")
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            found = f"{int(self.labels.min())} to {int(self.labels.max())}"
            raise ValueError(f"labels must lie between 0 and {len(self.classes) - 1}, got {found}")

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: SupportsIndex) -> Bag:
        number = operator.index(i)
        if not -len(self) <= number < len(self):
            raise IndexError(f"expected the number of one of {len(self)} bags, got {number}")
        x, coords = self.reader.read(self.rows[number])
        return Bag(x, int(self.labels[number]), self.names[number], coords)

    def __iter__(self) -> Iterator[Bag]:
        return (self[i] for i in range(len(self)))

    @property
    def dim(self) -> int:
        """How many features an instance has: as given, else as in the first bag, or in most; see above.

        A part of a data set has the width of the whole.
        """
        return self.reader.dim

    def subset(self, index: Index) -> "Bags":
        """Some of the bags: by their numbers, or by True and False for each.

        >>> bags = Bags.from_arrays([np.ones((1, 2))] * 3, ["a", "b", "a"])
        >>> bags.subset(bags.labels == 0).names
        ('0', '2')
        """
        numbers = self._numbers(index)
        return replace(
            self,
            names=tuple(self.names[i] for i in numbers),
            labels=self.labels[numbers],
            rows=tuple(self.rows[i] for i in numbers),
            unlabelled={},
        )

    def batch(self, index: Index) -> tuple[SetBatch, Int[Tensor, " b"]]:
        """Read these bags: a padded batch, and the label of each."""
        numbers = self._numbers(index)
        return SetBatch.from_list([self[i].x for i in numbers]), self.labels[numbers]

    def check(self) -> dict[str, str]:
        """Read every bag once; returns the names of the bad ones, each with a sentence what is wrong.

        Bags without a label are listed too, although they are no part of the data set.
        """
        faults = dict(self.unlabelled)
        readable = {}
        for row, name in zip(self.rows, self.names, strict=True):
            try:
                self.reader.alone(row)
                readable[name] = row
            except ValueError as error:
                faults[name] = str(error)
        # Only now it is known how wide most of them are.
        return faults | {
            name: fault for name, row in readable.items() if (fault := self.reader.mismatch(row))
        }

    def usable(self) -> "Bags":
        """The bags that `check` finds no fault with.

        >>> bags = Bags.from_arrays([np.ones((1, 2)), np.ones((0, 2))], [0, 1], names=["a", "b"])
        >>> bags.usable().names
        ('a',)
        """
        faults = self.check()
        good = [i for i, name in enumerate(self.names) if name not in faults]
        if not good:
            reason = next(iter(faults.values()), "there is no bag")
            raise ValueError(f"expected at least one usable bag in {self.name}, got none: {reason}")
        return self.subset(good)

    def _numbers(self, index: Index) -> list[int]:
        numbers = torch.as_tensor(index)
        if numbers.dtype == torch.bool and numbers.shape != (len(self),):
            raise ValueError(f"expected True or False for each of {len(self)} bags, got {numbers.numel()}")
        if numbers.dtype == torch.bool:
            numbers = numbers.nonzero().squeeze(1)
        if numbers.dim() != 1 or (numbers.is_floating_point() and len(numbers)):
            raise ValueError(f"expected a list of numbers of bags, got {numbers.dtype} {list(numbers.shape)}")
        found = [int(i) for i in numbers.tolist()]
        for i in found:
            if not -len(self) <= i < len(self):
                raise IndexError(f"expected numbers of {len(self)} bags, got {i}")
        return found


# For the readers of files


@dataclass(frozen=True, eq=False)
class Found:
    """A bag that was found: its content, which may not be read yet, and what is wrong with it already."""

    name: str
    place: str
    label: str | None
    content: Any
    fault: str = ""


@dataclass(frozen=True, eq=False)
class Memory:
    """Gives bags that are in memory."""

    bags: tuple[tuple[Any, Any], ...]

    def __call__(self, i: int) -> tuple[Any, Any]:
        """Features and coordinates of a bag."""
        return self.bags[i]


def _checked(features: Any, coords: Any) -> tuple[Tensor, Tensor | None]:
    """Features and coords of one bag as tensors, if they are what they must be."""
    x = _tensor(features, "features").to(torch.get_default_dtype())
    if x.dim() != 2:
        raise ValueError(f"expected features [instances, features], got {list(x.shape)}")
    if not x.numel():
        raise ValueError(f"expected at least one instance and one feature, got {list(x.shape)}")
    if bad := int((~x.isfinite()).sum()):
        raise ValueError(f"expected finite features, got {bad} of {x.numel()} that are NaN or infinite")
    if coords is None:
        return x, None
    place = _tensor(coords, "coords")
    if place.shape != (len(x), 2):
        raise ValueError(f"expected coords [{len(x)}, 2], got {list(place.shape)}")
    if not place.isfinite().all():
        raise ValueError("expected finite coords, got NaN or infinite ones")
    return x, place


def _tensor(values: Any, what: str) -> Tensor:
    """A copy: whole numbers as int64, others in the default type."""
    if isinstance(values, Tensor):
        kind = "c" if values.is_complex() else "f" if values.is_floating_point() else "i"
    else:
        values = np.asarray(values)
        kind = values.dtype.kind
    if kind not in "fiub":
        raise ValueError(f"expected {what} that are numbers, got {values.dtype}")
    dtype = torch.get_default_dtype() if kind == "f" else torch.int64
    if isinstance(values, Tensor):
        return values.detach().to("cpu", dtype, copy=True)
    # A type that torch knows, whatever the byte order and the layout were; half precision comes last.
    wide = np.int64 if kind != "f" else np.float64 if dtype == torch.float64 else np.float32
    with np.errstate(over="ignore"):  # found right after this
        return torch.from_numpy(np.array(values, wide, order="C")).to(dtype)


def collected(
    name: str,
    found: Sequence[Found],
    source: Callable[[tuple[Any, ...]], Callable[[int], tuple[Any, Any]]],
    classes: Sequence[str] | None = None,
    dim: int | None = None,
) -> Bags:
    """The data set of the bags that have a label."""
    kept = [bag for bag in found if bag.label is not None]
    order = tuple(_sorted({str(bag.label) for bag in kept}) if classes is None else classes)
    for bag in kept:
        if bag.label not in order:
            raise ValueError(
                f"{bag.place}: expected a label among {few(order)}, got {shortened(bag.label)!r}"
            )
    number = {label: i for i, label in enumerate(order)}
    others = [bag for bag in found if bag.label is None]
    reader = Reader(
        source(tuple(bag.content for bag in kept)),
        tuple(bag.place for bag in kept),
        {i: bag.fault for i, bag in enumerate(kept) if bag.fault},
        dim,
    )
    return Bags(
        name,
        tuple(bag.name for bag in kept),
        torch.tensor([number[str(bag.label)] for bag in kept], dtype=torch.int64),
        order,
        reader,
        tuple(range(len(kept))),
        {bag.name: bag.fault or f"{bag.place}: expected a label, got none" for bag in others},
    )


def as_label(value: Any) -> str | None:
    """What a class is called; None if that is not known."""
    if isinstance(value, Tensor | np.generic):
        value = value.item()
    if isinstance(value, str):
        return value.strip() or None
    if value is None or value != value:
        return None
    if isinstance(value, int | float) and float(value).is_integer():
        return str(int(value))
    raise ValueError(f"labels must be whole numbers or names, got {value!r}")


def _sorted(classes: Iterable[str]) -> list[str]:
    """In alphabetical order, but 2 before 10."""
    order = sorted(classes)
    try:
        return sorted(order, key=float)
    except ValueError:
        return order


def _plain(values: Iterable[Any]) -> list[Any]:
    return list(values.tolist() if isinstance(values, Tensor | np.ndarray) else values)


def twice(names: Sequence[str]) -> str:
    """The first name that is there before."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise ValueError(f"expected a name twice, got {len(names)} different ones")


def in_short(error: Exception) -> str:
    """The first sentence of what another library says."""
    said = shortened(" ".join(str(error).split()).partition(". ")[0], 200)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def few(names: Sequence[Any]) -> str:
    """The first names of a list.

    >>> few("abc"), few(range(20)), few([])
    ('a, b, c', '0, 1, 2, 3, 4, 5, 6, 7 and 12 more', 'nothing')
    """
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(map(shortened, names[:8])) + more if len(names) else "nothing"
