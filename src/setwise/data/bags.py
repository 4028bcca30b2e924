"""Bags of instances with one label a bag, as in multiple-instance learning; a bag is read when asked for.

`Bags` is the data set, whatever it was read from: arrays in memory (`Bags.from_arrays`), the classic
benchmarks (`load_mil`, `bags_from_npz`), a table with a row an instance (`bags_from_csv`) or a folder with a
file a bag (`bags_from_folder`). One bad bag spoils no data set: what is wrong with it is one sentence, which
``bags[i]`` raises and ``bags.check()`` lists, and ``bags.usable()`` leaves it out.

`to_torchmil` and `from_torchmil` exchange batches with torchmil. PyTorch Geometric's ``(x, batch)`` is what
`SetBatch.to_index` gives and `SetBatch.from_index` takes. `setwise.data.folds` splits bags into folds.
"""

import csv
import importlib
import math
import operator
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from setwise.data.folders import data_folder
from setwise.sets import SetBatch

MIL_NAMES = ("musk1", "musk2", "elephant", "fox", "tiger", "ucsb")
"""The classic data sets that `load_mil` knows."""

Index = Shaped[Tensor, " some"] | Shaped[np.ndarray, " some"] | Sequence[int]
"""Which bags: their numbers, or True and False for each bag there is."""

_Rows = list[tuple[int, list[str]]]  # of a table: the number of the line, and the cells


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

    All bags must have instances of the same width: ``width`` if it is given, else that of the first bag that
    can be read. To find that out costs one more reading, once.

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
        for i in range(len(self.places)):
            if i not in self.widths:
                with suppress(ValueError):
                    self._alone(i)
            if (width := self.widths[i]) is not None:
                return width
        raise ValueError(f"expected at least one readable bag, got none among {len(self.places)}")

    def read(self, i: int) -> tuple[Float[Tensor, "n d"], Shaped[Tensor, "n 2"] | None]:
        """The features and the coordinates, if any, of a bag that nothing is wrong with."""
        x, coords = self._alone(i)
        if x.shape[1] != self.dim:
            raise ValueError(f"{self.places[i]}: expected {self.dim} features an instance, got {x.shape[1]}")
        return x, coords

    def _alone(self, i: int) -> tuple[Tensor, Tensor | None]:
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
    that of the first bag that can be read. A `DataLoader` reads in its workers if it is given the numbers
    of the bags, ``DataLoader(range(len(bags)), batch_size=8, collate_fn=bags.batch, num_workers=2)``.

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
            dim: how many features an instance has; as many as in the first readable bag unless given.

        >>> bags = Bags.from_arrays([torch.ones(2, 3), torch.ones(1, 4)], [0, 1], name="two")
        >>> bags.check()
        {'1': "bag '1' of two: expected 3 features an instance, got 4"}
        """
        x = list(sets)
        known = [_label(label) for label in _plain(labels)]
        names = [str(i) for i in range(len(x))] if names is None else list(names)
        where = [None] * len(x) if coords is None else list(coords)
        for what, given in (("labels", known), ("names", names), ("coords", where)):
            if len(given) != len(x):
                raise ValueError(f"{what} must be {len(x)}, one a bag, got {len(given)}")
        if len(set(names)) < len(names):
            raise ValueError(f"names must be different, got {_twice(names)!r} twice")
        found = [
            _Found(bag, f"bag {bag!r} of {name}", label, content)
            for bag, label, content in zip(names, known, zip(x, where, strict=True), strict=True)
        ]
        return _bags(name, found, _Memory, classes, dim)

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
        """How many features an instance has: as given, else as in the first bag that can be read.

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
        for i, name in enumerate(self.names):
            try:
                self[i]
            except ValueError as error:
                faults[name] = str(error)
        return faults

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


# Tables


def load_mil(name: str, folder: Path | str | None = None) -> Bags:
    """One of the classic data sets: molecules (musk1, musk2), images (elephant, fox, tiger), tissue (ucsb).

    Args:
        name: one of `MIL_NAMES`.
        folder: where ``mil_classic.npz`` is; ``mil`` in the data folder unless given.
    """
    if name not in MIL_NAMES:
        raise ValueError(f"name must be one of {', '.join(MIL_NAMES)}, got {name!r}")
    path = (data_folder() / "mil" if folder is None else Path(folder)) / "mil_classic.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"{path.name} is missing: put it into {path.parent} (set SETWISE_DATA for another data folder)"
        )
    return bags_from_npz(path, name)


def bags_from_npz(path: Path | str, name: str) -> Bags:
    """Read bags from the arrays ``<name>_X``, ``<name>_bag`` and ``<name>_y`` of an npz file.

    They hold the instances ``[instances, features]``, the number of each one's bag (any whole numbers, in any
    order), and the labels of the bags in the order of their numbers. Labels come out as class numbers, so
    -1 and 1 as 0 and 1; ``classes`` has what they were called. Instances that are not finite are a fault of
    their bag; arrays that do not fit each other are one of the file, which cannot be opened then.

    Args:
        path: of the file.
        name: what the names of the arrays begin with.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "two.npz"
    ...     np.savez(path, two_X=np.eye(3), two_bag=[7, 4, 7], two_y=[1, -1])
    ...     bags = bags_from_npz(path, "two")
    >>> bags.names, bags.classes, bags.labels.tolist(), bags[1].x.tolist()
    (('4', '7'), ('-1', '1'), [1, 0], [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    """
    path = Path(path)
    wanted = [f"{name}_{part}" for part in ("X", "bag", "y")]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            there = {key: arrays[key] if key in wanted else None for key in arrays.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # reading damaged bytes may fail in any way there is
        raise ValueError(f"{path}: expected a readable .npz file, got an error: {_reason(error)}") from error
    if not set(wanted) <= set(there):
        raise ValueError(
            f"{path}: expected arrays {', '.join(wanted)}, got {', '.join(sorted(there)) or 'none'}"
        )
    x, bag, y = (np.asarray(there[key]) for key in wanted)
    if x.ndim != 2 or not len(x) or bag.shape != x.shape[:1] or bag.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: expected {wanted[0]} [instances, features] and whole numbers {wanted[1]} [instances], "
            f"got {list(x.shape)} and {bag.dtype} {list(bag.shape)}"
        )
    numbers, sizes = np.unique(bag, return_counts=True)
    if y.shape != numbers.shape:
        raise ValueError(
            f"{path}: expected {wanted[2]} [{len(numbers)}], a label for each number in {wanted[1]}, "
            f"got {list(y.shape)}"
        )
    sets = np.split(x[np.argsort(bag, kind="stable")], np.cumsum(sizes)[:-1])
    found = [
        _Found(str(number), f"{path}, bag {number} of {name}", _label(label), (its, None))
        for number, label, its in zip(numbers.tolist(), y.tolist(), sets, strict=True)
    ]
    return _bags(name, found, _Memory)


def bags_from_csv(
    path: Path | str,
    *,
    bag: str = "bag",
    label: str = "label",
    coords: tuple[str, str] | None = None,
    classes: Sequence[str] | None = None,
) -> Bags:
    r"""Read bags from a table with a row an instance: its bag, the bag's label, and numbers.

    A cell that is no finite number is a fault of its bag. A bag whose rows have different labels, or none,
    is listed by ``check()`` and no part of the data set. What leaves open to which bags it belongs concerns
    the whole file, which cannot be opened then: a missing column, a row with more or fewer cells than the
    header (as where the file was cut off), a row without a bag. All of them are told with their line.

    Args:
        path: of the CSV file, which begins with the names of the columns.
        bag: the column with the name of the bag; rows of a bag need not follow each other.
        label: the column with the label of the bag, the same in all of its rows.
        coords: the two columns with the coordinates of the instance, if there are any. All other columns
            are features.
        classes: in the order of their numbers; sorted unless given.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cells.csv"
    ...     _ = path.write_text("bag,label,size\nfirst,well,1.5\nfirst,well,2.5\nsecond,ill,4\n")
    ...     bags = bags_from_csv(path)
    >>> bags.names, bags.classes, bags.labels.tolist(), bags[0].x.tolist()
    (('first', 'second'), ('ill', 'well'), [1, 0], [[1.5], [2.5]])
    """
    path = Path(path)
    pair = [] if coords is None else list(coords)
    header, rows = _table(path, [bag, label, *pair])
    features = [column for column in header if column not in (bag, label, *pair)]
    if not features:
        raise ValueError(f"{path}: expected columns with features, got only {', '.join(header)}")
    members: dict[str, _Rows] = {}
    for line, row in rows:
        members.setdefault(row[header.index(bag)], []).append((line, row))
    found = []
    for name, its in members.items():
        place = f"{path}, bag {name!r}"
        known, fault = _common_label(path, name, header.index(label), its)
        if known is None:
            found.append(_Found(name, place, None, None, fault))
            continue
        numbers, fault = _finite(path, name, {c: header.index(c) for c in features + pair}, its)
        x, where = np.split(numbers, [len(features)], axis=1)
        found.append(_Found(name, place, known, (x, where if pair else None), fault))
    return _bags(path.stem, found, _Memory, classes)


def _table(path: Path, columns: Sequence[str]) -> tuple[list[str], _Rows]:
    """The names of all columns, and the rows; the cells of the first of ``columns`` are not empty."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            rows = [(lines.line_num, [cell.strip() for cell in row]) for row in lines if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: expected a CSV file in UTF-8, got an error: {_reason(error)}") from error
    if len(rows) < 2:
        raise ValueError(f"{path}: expected the names of columns and at least one row, got {len(rows)} rows")
    header = rows.pop(0)[1]
    if not set(columns) <= set(header):
        raise ValueError(f"{path}: expected columns {', '.join(columns)}, got {', '.join(header)}")
    if len(set(header)) < len(header):
        raise ValueError(f"{path}: expected columns of different names, got {_twice(header)!r} twice")
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: expected {len(header)} cells as in the header, got {len(row)}"
            )
        if not row[header.index(columns[0])]:
            raise ValueError(f"{path}, line {line}: expected the name of a bag, got an empty cell")
    return header, rows


def _common_label(path: Path, name: str, column: int, rows: _Rows) -> tuple[str | None, str]:
    """The label that all rows of a bag have, or None and what is wrong."""
    first_line, first = rows[0]
    for line, row in rows:
        if not row[column]:
            return None, f"{path}, line {line}: expected a label of bag {name!r}, got an empty cell"
        if row[column] != first[column]:
            expected = f"label {first[column]!r} of bag {name!r} as in line {first_line}"
            return None, f"{path}, line {line}: expected {expected}, got {row[column]!r}"
    return first[column], ""


def _finite(
    path: Path, name: str, columns: dict[str, int], rows: _Rows
) -> tuple[Float[np.ndarray, "rows columns"], str]:
    """The numbers in these columns, and what is wrong if one of them is none."""
    numbers = np.full((len(rows), len(columns)), math.nan)
    for i, (line, row) in enumerate(rows):
        for j, (column, place) in enumerate(columns.items()):
            with suppress(ValueError):
                numbers[i, j] = float(row[place])
            if not math.isfinite(numbers[i, j]):
                expected = f"a finite number in column {column!r} of bag {name!r}"
                return numbers, f"{path}, line {line}: expected {expected}, got {row[place]!r}"
    return numbers, ""


# Files


def bags_from_folder(
    folder: Path | str,
    manifest: Path | str | Mapping[str, Any],
    *,
    bag: str = "bag",
    label: str = "label",
    classes: Sequence[str] | None = None,
    dim: int | None = None,
) -> Bags:
    """Read bags from files, one a bag, each when it is asked for; nothing in a file is executed.

    Files may be HDF5 (``.h5``, ``.hdf5``) or ``.npz`` with ``features`` and, if known, ``coords``, as
    pathology tools such as CLAM write them, ``.npy``, or ``.pt`` and ``.pth`` with a tensor or a dict of
    tensors with these names. An additional first axis of length one is taken away.

    Files that the manifest does not mention, and bags for which it has no label or two, are listed by
    ``check()`` and no part of the data set. They are looked for in the folder and in those that the manifest
    names.

    Args:
        folder: where the files are.
        manifest: labels of the bags: a CSV file, or a mapping from bags to labels. A bag is told by the
            name of its file, with or without suffix, or its path below the folder.
        bag: the column of the CSV file with the bags.
        label: the column with the labels.
        classes: in the order of their numbers; sorted unless given.
        dim: how many features an instance has; as many as in the first readable bag unless given.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.save(Path(folder) / "slide_1.npy", np.ones((5, 3)))
    ...     bags = bags_from_folder(folder, {"slide_1": "tumour", "slide_2": "normal"})
    ...     len(bags), bags.classes, bags[0].x.shape, bags.usable().names
    (2, ('normal', 'tumour'), torch.Size([5, 3]), ('slide_1',))
    """
    folder = _below(Path(folder), ".")
    if not folder.is_dir():
        raise FileNotFoundError(f"expected a folder with one file a bag, got {folder}, which is none")
    if isinstance(manifest, Mapping):
        said, entries = "the manifest", [(str(name), _label(value)) for name, value in manifest.items()]
    else:
        header, rows = _table(Path(manifest), [bag, label])
        said = str(manifest)
        entries = [(row[header.index(bag)], _label(row[header.index(label)])) for _, row in rows]
    files = _files(folder, [name for name, _ in entries])
    mentions = _mentions(folder, files, entries)
    found = [_mentioned(path, mention, said) for path, mention in mentions.items()]
    if any(one.label is not None and one.content.suffix.lower() in (".h5", ".hdf5") for one in found):
        _h5py()  # tell now that it is missing rather than bag by bag
    taken = {path for mention in mentions.values() for path in mention.files}
    for path in files:
        if path not in taken:
            shown = path.relative_to(folder) if path.is_relative_to(folder) else path
            fault = f"{path}: expected a label in {said}, got none"
            found.append(_Found(shown.as_posix(), str(path), None, path, fault))
    return _bags(folder.resolve().name, found, _Files, classes, dim)


@dataclass
class _Mention:
    """What a manifest says of one bag, by whatever name and how often, and the files that it may mean."""

    name: str
    files: list[Path]
    labels: list[str | None] = field(default_factory=list)


def _mentions(folder: Path, files: list[Path], entries: list[tuple[str, str | None]]) -> dict[Path, _Mention]:
    """What is said of each file, or of each name that no file has."""
    exact = set(files)
    without_suffix: dict[Path, list[Path]] = {}
    for path in files:
        without_suffix.setdefault(path.with_suffix(""), []).append(path)
    mentions: dict[Path, _Mention] = {}
    for name, label in entries:
        path = _below(folder, name)
        candidates = [path] if path in exact else without_suffix.get(path, [])
        path = candidates[0] if len(candidates) == 1 else path
        mentions.setdefault(path, _Mention(name, candidates)).labels.append(label)
    return mentions


def _mentioned(path: Path, mention: _Mention, said: str) -> "_Found":
    label, *others = dict.fromkeys(mention.labels)
    fault = ""
    if others:
        got = " and ".join(map(repr, (label, *others)))
        label, fault = None, f"{path}: expected one label in {said}, got {got}"
    elif label is None:
        fault = f"{path}: expected a label in {said}, got none"
    elif not mention.files:
        fault = f"{path}: expected a file of this name, with or without {', '.join(_FORMATS)}, got none"
    elif len(mention.files) > 1:
        fault = f"{path}: expected one file of this name, got {', '.join(p.name for p in mention.files)}"
    return _Found(mention.name, str(path), label, path, fault)


def _files(folder: Path, names: Iterable[str]) -> list[Path]:
    """The files with bags, in alphabetical order, but for hidden clutter."""
    folders = dict.fromkeys([folder, *(_below(folder, name).parent for name in names)])
    return [
        path
        for place in folders
        if place.is_dir()
        for path in sorted(place.iterdir())
        if path.suffix.lower() in _FORMATS and not path.name.startswith(".")
    ]


def _below(folder: Path, name: str) -> Path:
    return Path(os.path.normpath(folder / name))  # so that every file has one path


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise ModuleNotFoundError("reading HDF5 files needs h5py: pip install 'setwise[data]'") from error


def _read_hdf5(path: Path) -> dict[str, Any]:
    with _h5py().File(path, "r") as file:
        return {name: file[name][()] if name in _PARTS else None for name in file}


def _read_npy(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"features": np.lib.format.read_array(file, allow_pickle=False)}


def _read_npz(path: Path) -> dict[str, Any]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] if name in _PARTS else None for name in arrays.files}


def _read_torch(path: Path) -> dict[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError("it is damaged or holds more than tensors") from error
    if isinstance(found, Tensor):
        return {"features": found}
    return {str(name): found[name] for name in found} if isinstance(found, dict) else {}


_PARTS = ("features", "coords")
_FORMATS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
}


# What sources have in common


@dataclass(frozen=True, eq=False)
class _Found:
    """A bag that was found: its content, which may not be read yet, and what is wrong with it already."""

    name: str
    place: str
    label: str | None
    content: Any
    fault: str = ""


@dataclass(frozen=True, eq=False)
class _Memory:
    """Gives bags that are in memory."""

    bags: tuple[tuple[Any, Any], ...]

    def __call__(self, i: int) -> tuple[Any, Any]:
        return self.bags[i]


@dataclass(frozen=True, eq=False)
class _Files:
    """Gives bags that are in files of their own."""

    paths: tuple[Path, ...]

    def __call__(self, i: int) -> tuple[Any, Any]:
        path = self.paths[i]
        if not path.is_file():
            raise ValueError("expected a file, got none: it is no longer there")
        try:
            found = _FORMATS[path.suffix.lower()](path)
        except Exception as error:  # reading damaged bytes may fail in any way there is
            reason = f"expected a readable {path.suffix} file, got an error: {_reason(error)}"
            raise ValueError(reason) from error
        if found.get("features") is None:
            raise ValueError(f"expected features in it, got {', '.join(sorted(found)) or 'something else'}")
        return _without_first_axis(found["features"]), _without_first_axis(found.get("coords"))


def _without_first_axis(array: Any) -> Any:
    is_array = isinstance(array, Tensor | np.ndarray)
    return array[0] if is_array and array.ndim == 3 and array.shape[0] == 1 else array


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


def _bags(
    name: str,
    found: Sequence[_Found],
    source: Callable[[tuple[Any, ...]], Callable[[int], tuple[Any, Any]]],
    classes: Sequence[str] | None = None,
    dim: int | None = None,
) -> Bags:
    """The data set of the bags that have a label."""
    kept = [bag for bag in found if bag.label is not None]
    order = tuple(_sorted({str(bag.label) for bag in kept}) if classes is None else classes)
    for bag in kept:
        if bag.label not in order:
            raise ValueError(f"{bag.place}: expected a label among {', '.join(order)}, got {bag.label!r}")
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


def _label(value: Any) -> str | None:
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


def _twice(names: Sequence[str]) -> str:
    return next(name for i, name in enumerate(names) if name in names[:i])


def _reason(error: Exception) -> str:
    """The first sentence of what another library says."""
    said = " ".join(str(error).split()).partition(". ")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


# torchmil


def to_torchmil(
    batch: SetBatch, y: Shaped[Tensor, "b ..."], coords: Shaped[Tensor, "b n axes"] | None = None
) -> dict[str, Tensor]:
    """A batch as torchmil's ``collate_fn`` makes it: ``X``, ``Y``, ``mask`` and, if given, ``coords``.

    The mask is 1 for instances and 0 for padding, which is filled with zeros, as there.

    Args:
        batch: the bags.
        y: the label of each.
        coords: where the instances lie, padded like the batch.

    >>> batch = SetBatch.from_list([torch.ones(1, 3), torch.ones(2, 3)])
    >>> found = to_torchmil(batch, torch.tensor([0, 1]))
    >>> list(found), found["mask"].tolist()
    (['X', 'Y', 'mask'], [[1, 0], [1, 1]])
    """
    x = batch.elements
    if len(y) != len(x):
        raise ValueError(f"y must be [{len(x)}], one a bag, got {list(y.shape)}")
    if coords is not None and (coords.dim() != 3 or coords.shape[:2] != x.shape[:2]):
        raise ValueError(f"coords must be [{x.shape[0]}, {x.shape[1]}, 2], got {list(coords.shape)}")
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if batch.mask is None else batch.mask
    found = {"X": _zero_padding(x, mask), "Y": y, "mask": mask.to(torch.uint8)}
    return found if coords is None else {**found, "coords": _zero_padding(coords, mask)}


def from_torchmil(
    batch: Mapping[str, Any],
) -> tuple[SetBatch, Shaped[Tensor, "b ..."], Shaped[Tensor, "b n axes"] | None]:
    """The bags, labels and, if there are any, coordinates of a batch of torchmil's.

    The mask may be bool or have ones and zeros; without it, all instances are real. Labels ``[b, 1]``, as
    torchmil makes of label files of shape ``(1,)``, become ``[b]``. Other keys, such as ``adj``, are ignored.

    >>> x, y = torch.ones(2, 4, 3), torch.tensor([0, 1])
    >>> mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    >>> found, labels, coords = from_torchmil({"X": x, "Y": y, "mask": mask})
    >>> found.sizes.tolist(), labels.tolist(), coords
    ([2, 4], [0, 1], None)
    """
    keys = [str(key) for key in batch.keys()]  # noqa: SIM118 (a TensorDict iterates over its batch)
    if not {"X", "Y"} <= set(keys):
        raise ValueError(f"expected a batch with X and Y, got {', '.join(sorted(keys)) or 'nothing'}")
    x, y = torch.as_tensor(batch["X"]), torch.as_tensor(batch["Y"])
    if x.dim() < 3:
        raise ValueError(f"X must be [bags, instances, features], got {list(x.shape)}")
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.shape[:1] != x.shape[:1]:
        raise ValueError(f"Y must be [{len(x)}], one a bag, got {list(y.shape)}")
    mask = torch.as_tensor(batch["mask"]) if "mask" in keys else None
    if mask is not None and not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"mask must be 1 for instances and 0 for padding, got {mask.unique().tolist()}")
    coords = torch.as_tensor(batch["coords"]) if "coords" in keys else None
    return SetBatch(x, None if mask is None else mask.bool()), y, coords


def _zero_padding(values: Tensor, mask: Tensor) -> Tensor:
    values = values.clone()
    values[~mask] = 0
    return values
