"""`Bags`, a data set of bags: names and labels are in memory, instances are read on access."""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from setwise._text import few, first_duplicate, shortened
from setwise.sets import SetBatch, Sets, offsets

Index = Shaped[Tensor, " some"] | Shaped[np.ndarray, " some"] | Sequence[int]
"""Bags by their indices, or by a boolean mask over all bags."""


@dataclass(frozen=True, eq=False)
class Bag:
    """One bag: the features of its instances, its class, its name and, optionally, coordinates.

    Args:
        x: features, one row per instance.
        y: index of the bag's class.
        name: name of the bag.
        coords: two coordinates per instance, or None.

    >>> Bag(torch.zeros(3, 5), 1, "slide 7").x.shape
    torch.Size([3, 5])
    """

    x: Float[Tensor, "n d"]
    y: int
    name: str
    coords: Shaped[Tensor, "n 2"] | None = None


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads and checks bags one at a time; errors are one sentence that begins with the location of the bag.

    All bags must have the same number of features per instance: ``width`` if it is given; otherwise, once
    all bags have been read, the most common number; before that, the number of the first readable bag.

    Args:
        source: returns the unchecked features ``[n, d]``, and coordinates ``[n, 2]`` or None, of bag i.
        places: location of each bag, for error messages.
        faults: errors that are known before reading, by bag.
        width: number of features per instance.
        widths: numbers of features found so far, by bag; None for a bag that cannot be read.
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
        """The number of features per instance."""
        if self.width is not None:
            return self.width
        if len(self.widths) == len(self.places):  # all bags have been read
            for width, _ in Counter(w for _, w in sorted(self.widths.items()) if w).most_common(1):
                return width
        for i in range(len(self.places)):
            if i not in self.widths:
                with suppress(ValueError):
                    self.read_any_width(i)
            if (first := self.widths[i]) is not None:
                return first
        raise ValueError(f"expected at least one readable bag, got none among {len(self.places)}")

    def read(self, i: int) -> tuple[Float[Tensor, "n d"], Shaped[Tensor, "n 2"] | None]:
        """Read a bag: its features, and its coordinates or None."""
        x, coords = self.read_any_width(i)
        if fault := self.width_fault(i):
            raise ValueError(fault)
        return x, coords

    def width_fault(self, i: int) -> str | None:
        """The error message if a bag, which has been read, differs in its number of features; else None."""
        if self.widths[i] == self.dim:
            return None
        return f"{self.places[i]}: expected {self.dim} features per instance, got {self.widths[i]}"

    def read_any_width(self, i: int) -> tuple[Tensor, Tensor | None]:
        """Read a bag and check everything except its number of features."""
        self.widths.setdefault(i, None)
        if i in self.faults:
            raise ValueError(self.faults[i])
        try:
            x, coords = _checked(*self.source(i))
        except Exception as error:  # damaged files can raise anything
            raise ValueError(f"{self.places[i]}: {error}") from error
        self.widths[i] = x.shape[1]
        return x, coords


@dataclass(frozen=True, eq=False)
class Bags:
    """A data set of bags. Names and labels are in memory; the instances of a bag are read on access.

    All bags must have the same number of features per instance: ``dim`` if it was given, otherwise the
    most common number. For bags in files, which are read lazily, it is the number of the first readable
    bag until ``check()`` or ``usable()`` has read all of them. To read bags in the workers of a
    `DataLoader`, pass their indices:
    ``DataLoader(range(len(bags)), batch_size=8, collate_fn=bags.batch, num_workers=2)``.

    Args:
        name: name of the data set.
        names: names of the bags.
        labels: class index of each bag, below ``len(classes)``.
        classes: names of the classes.
        reader: reads the bags.
        rows: index of each bag in the reader.
        unlabelled: bags without a label, each with an error message. They are not part of the data set, but
            `check` lists them.

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
        """Make a data set from arrays or tensors in memory, which are copied.

        Args:
            sets: the features of each bag, ``[n_i, d]``.
            labels: an integer or a string per bag; None if the label is unknown.
            names: names of the bags; by default their indices.
            coords: ``[n_i, 2]`` or None for each bag.
            name: name of the data set.
            classes: names of the classes in order of their indices; sorted by default.
            dim: number of features per instance; by default the most common one.

        >>> bags = Bags.from_arrays([torch.ones(2, 3), torch.ones(1, 4)], [0, 1], name="two")
        >>> bags.check()
        {'1': "bag '1' of two: expected 3 features per instance, got 4"}
        """
        x = list(sets)
        given = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else labels
        known = [label_name(label) for label in given]
        names = [str(i) for i in range(len(x))] if names is None else list(names)
        positions = [None] * len(x) if coords is None else list(coords)
        for what, values in (("labels", known), ("names", names), ("coords", positions)):
            if len(values) != len(x):
                raise ValueError(f"{what} must have one value for each of {len(x)} bags, got {len(values)}")
        if (duplicate := first_duplicate(names)) is not None:
            raise ValueError(f"names must be distinct, got {duplicate!r} twice")
        entries = [
            BagEntry(bag, f"bag {bag!r} of {name}", label, content)
            for bag, label, content in zip(names, known, zip(x, positions, strict=True), strict=True)
        ]
        return collect_in_memory(name, entries, classes, dim)

    def __post_init__(self) -> None:
        for what, given in (("labels", self.labels), ("rows", self.rows)):
            if len(given) != len(self.names):
                raise ValueError(
                    f"{what} must have one value for each of {len(self.names)} bags, got {len(given)}"
                )
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            got = f"{int(self.labels.min())} to {int(self.labels.max())}"
            raise ValueError(f"labels must lie between 0 and {len(self.classes) - 1}, got {got}")

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: SupportsIndex) -> Bag:
        index = operator.index(i)
        if not -len(self) <= index < len(self):
            raise IndexError(f"expected an index into {len(self)} bags, got {index}")
        x, coords = self.reader.read(self.rows[index])
        return Bag(x, int(self.labels[index]), self.names[index], coords)

    def __iter__(self) -> Iterator[Bag]:
        return (self[i] for i in range(len(self)))

    @property
    def dim(self) -> int:
        """The number of features per instance; a subset has that of the whole data set."""
        return self.reader.dim

    def subset(self, index: Index) -> "Bags":
        """Select bags by their indices or by a boolean mask.

        >>> bags = Bags.from_arrays([np.ones((1, 2))] * 3, ["a", "b", "a"])
        >>> bags.subset(bags.labels == 0).names
        ('0', '2')
        """
        chosen = self._indices(index)
        return replace(
            self,
            names=tuple(self.names[i] for i in chosen),
            labels=self.labels[chosen],
            rows=tuple(self.rows[i] for i in chosen),
            unlabelled={},
        )

    def batch(self, index: Index) -> tuple[SetBatch, Int[Tensor, " b"]]:
        """Read these bags: a padded batch, and the class index of each."""
        chosen = self._indices(index)
        return SetBatch.from_list([self[i].x for i in chosen]), self.labels[chosen]

    def check(self) -> dict[str, str]:
        """Read every bag once; return an error message for each invalid one, by name.

        Bags without a label are included, although they are not part of the data set.
        """
        faults = dict(self.unlabelled)
        readable = {}
        for row, name in zip(self.rows, self.names, strict=True):
            try:
                self.reader.read_any_width(row)
                readable[name] = row
            except ValueError as error:
                faults[name] = str(error)
        # The most common number of features is known only now.
        return faults | {
            name: fault for name, row in readable.items() if (fault := self.reader.width_fault(row))
        }

    def usable(self) -> "Bags":
        """The bags for which `check` reports no error.

        >>> bags = Bags.from_arrays([np.ones((1, 2)), np.ones((0, 2))], [0, 1], names=["a", "b"])
        >>> bags.usable().names
        ('a',)
        """
        faults = self.check()
        good = [i for i, name in enumerate(self.names) if name not in faults]
        if not good:
            reason = next(iter(faults.values()), "the data set is empty")
            raise ValueError(f"expected at least one usable bag in {self.name}, got none: {reason}")
        return self.subset(good)

    def _indices(self, index: Index) -> list[int]:
        chosen = torch.as_tensor(index)
        if chosen.dtype == torch.bool and chosen.shape != (len(self),):
            raise ValueError(f"expected a mask over {len(self)} bags, got {chosen.numel()} values")
        if chosen.dtype == torch.bool:
            chosen = chosen.nonzero().squeeze(1)
        if chosen.dim() != 1 or (chosen.is_floating_point() and len(chosen)):
            raise ValueError(f"expected a list of indices of bags, got {chosen.dtype} {list(chosen.shape)}")
        indices = [int(i) for i in chosen.tolist()]
        for i in indices:
            if not -len(self) <= i < len(self):
                raise IndexError(f"expected indices into {len(self)} bags, got {i}")
        return indices


# Helpers of the readers


@dataclass(frozen=True, eq=False)
class BagEntry:
    """A bag before its content is read; ``fault`` is an error that is known already."""

    name: str
    place: str
    label: str | None
    content: Any
    fault: str = ""


def collect(
    name: str,
    entries: Sequence[BagEntry],
    source: Callable[[tuple[Any, ...]], Callable[[int], tuple[Any, Any]]],
    classes: Sequence[str] | None = None,
    dim: int | None = None,
) -> Bags:
    """Make a data set of the entries that have a label; ``source`` reads their contents on access."""
    kept = [entry for entry in entries if entry.label is not None]
    order = tuple(_sorted({str(entry.label) for entry in kept}) if classes is None else classes)
    for entry in kept:
        if entry.label not in order:
            raise ValueError(
                f"{entry.place}: expected a label among {few(order)}, got {shortened(entry.label)!r}"
            )
    class_index = {label: i for i, label in enumerate(order)}
    reader = Reader(
        source(tuple(entry.content for entry in kept)),
        tuple(entry.place for entry in kept),
        {i: entry.fault for i, entry in enumerate(kept) if entry.fault},
        dim,
    )
    return Bags(
        name,
        tuple(entry.name for entry in kept),
        torch.tensor([class_index[str(entry.label)] for entry in kept], dtype=torch.int64),
        order,
        reader,
        tuple(range(len(kept))),
        {
            entry.name: entry.fault or f"{entry.place}: expected a label, got none"
            for entry in entries
            if entry.label is None
        },
    )


def collect_in_memory(
    name: str,
    entries: Sequence[BagEntry],
    classes: Sequence[str] | None = None,
    dim: int | None = None,
) -> Bags:
    """Make a data set of entries whose contents are features and coordinates in memory, which are copied."""
    entries = [_loaded(entry) for entry in entries]
    widths = Counter(entry.content[0].shape[1] for entry in entries if entry.content is not None)
    if dim is None and widths:
        dim = widths.most_common(1)[0][0]
    entries = [_with_width(entry, dim) for entry in entries]
    return collect(name, entries, partial(_InMemory.of, dim), classes, dim)


def _loaded(entry: BagEntry) -> BagEntry:
    """The entry with checked content; None if it has a fault or no label."""
    if entry.fault or entry.label is None:
        return replace(entry, content=None)
    try:
        x, coords = _checked(*entry.content)
    except Exception as error:  # arbitrary objects can raise anything
        return replace(entry, content=None, fault=f"{entry.place}: {error}")
    return replace(entry, content=((x if x.dtype == torch.float64 else x.float()).numpy(), coords))


def _with_width(entry: BagEntry, dim: int | None) -> BagEntry:
    """The entry, with a fault instead of its content if the number of features is not ``dim``."""
    if entry.content is None or (width := entry.content[0].shape[1]) == dim:
        return entry
    return replace(
        entry, content=None, fault=f"{entry.place}: expected {dim} features per instance, got {width}"
    )


@dataclass(frozen=True, eq=False)
class _InMemory:
    """Returns features and coordinates of bags in memory; bags with a fault are stored as empty sets."""

    sets: Sets
    coords: tuple[Any, ...]

    @classmethod
    def of(cls, dim: int | None, contents: tuple[Any, ...]) -> "_InMemory":
        empty = np.empty((0, dim or 0), np.float32)
        arrays = [empty if content is None else content[0] for content in contents]
        sets = Sets(np.concatenate([empty, *arrays]), offsets([len(x) for x in arrays]))
        return cls(sets, tuple(None if content is None else content[1] for content in contents))

    def __call__(self, i: int) -> tuple[Any, Any]:
        return self.sets[i], self.coords[i]


def _checked(features: Any, coords: Any) -> tuple[Tensor, Tensor | None]:
    """Check the features and coordinates of one bag, and convert them to tensors."""
    x = _tensor(features, "features").to(torch.get_default_dtype())
    if x.dim() != 2:
        raise ValueError(f"expected features [instances, features], got {list(x.shape)}")
    if not x.numel():
        raise ValueError(f"expected at least one instance and one feature, got {list(x.shape)}")
    if bad := int((~x.isfinite()).sum()):
        raise ValueError(f"expected finite features, got NaN or infinity in {bad} of {x.numel()}")
    if coords is None:
        return x, None
    positions = _tensor(coords, "coords")
    if positions.shape != (len(x), 2):
        raise ValueError(f"expected coords [{len(x)}, 2], got {list(positions.shape)}")
    if not positions.isfinite().all():
        raise ValueError("expected finite coords, got NaN or infinity")
    return x, positions


def _tensor(values: Any, what: str) -> Tensor:
    """A copy on the CPU: integers as int64, floating point in the default type."""
    if isinstance(values, Tensor):
        kind = "c" if values.is_complex() else "f" if values.is_floating_point() else "i"
    else:
        values = np.asarray(values)
        kind = values.dtype.kind
    if kind not in "fiub":
        raise ValueError(f"expected {what} to be numbers, got {values.dtype}")
    dtype = torch.get_default_dtype() if kind == "f" else torch.int64
    if isinstance(values, Tensor):
        return values.detach().to("cpu", dtype, copy=True)
    # Convert to a type, byte order and memory layout that torch supports; half precision comes last.
    wide = np.int64 if kind != "f" else np.float64 if dtype == torch.float64 else np.float32
    with np.errstate(over="ignore"):  # the caller checks for infinity
        return torch.from_numpy(np.array(values, wide, order="C")).to(dtype)


def label_name(value: Any) -> str | None:
    """A label as the name of its class; None if the label is missing."""
    if isinstance(value, Tensor | np.generic):
        value = value.item()
    if isinstance(value, str):
        return value.strip() or None
    if value is None or value != value:
        return None
    if isinstance(value, int | float) and float(value).is_integer():
        return str(int(value))
    raise ValueError(f"labels must be integers or strings, got {value!r}")


def _sorted(classes: Iterable[str]) -> list[str]:
    """Sort numerically if all names are numbers, else alphabetically."""
    order = sorted(classes)
    try:
        return sorted(order, key=float)
    except ValueError:
        return order
