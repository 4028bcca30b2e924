"""Bags from tables that hold them all: the classic benchmarks in an npz file, and CSV files."""

import csv
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Float

from setwise._files import shortened
from setwise.io.arrays import read_npz
from setwise.io.bags.dataset import Bags, Found, Memory, as_label, collected, few, in_short, twice

_Rows = list[tuple[int, list[str]]]  # of a table: the number of the line, and the cells


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
        there = read_npz(path, wanted)
    except FileNotFoundError:
        raise
    except Exception as error:  # reading damaged bytes may fail in any way there is
        raise ValueError(f"{path}: expected a readable .npz file, got an error: {in_short(error)}") from error
    if not set(wanted) <= set(there):
        raise ValueError(
            f"{path}: expected arrays {', '.join(wanted)}, got {few(sorted(there)) if there else 'none'}"
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
        Found(str(number), f"{path}, bag {number} of {name}", as_label(label), (its, None))
        for number, label, its in zip(numbers.tolist(), y.tolist(), sets, strict=True)
    ]
    return collected(name, found, Memory)


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
    header, rows = read_table(path, [bag, label, *pair])
    features = [column for column in header if column not in (bag, label, *pair)]
    if not features:
        raise ValueError(f"{path}: expected columns with features, got only {few(header)}")
    members: dict[str, _Rows] = {}
    for line, row in rows:
        members.setdefault(row[header.index(bag)], []).append((line, row))
    found = []
    for name, its in members.items():
        place = f"{path}, bag {shortened(name)!r}"
        known, fault = _common_label(path, name, header.index(label), its)
        if known is None:
            found.append(Found(name, place, None, None, fault))
            continue
        numbers, fault = _finite(path, name, {c: header.index(c) for c in features + pair}, its)
        x, where = np.split(numbers, [len(features)], axis=1)
        found.append(Found(name, place, known, (x, where if pair else None), fault))
    return collected(path.stem, found, Memory, classes)


def read_table(path: Path, columns: Sequence[str]) -> tuple[list[str], _Rows]:
    """The names of all columns, and the rows; the cells of the first of ``columns`` are not empty."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            rows = [(lines.line_num, [cell.strip() for cell in row]) for row in lines if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: expected a CSV file in UTF-8, got an error: {in_short(error)}") from error
    if len(rows) < 2:
        raise ValueError(f"{path}: expected the names of columns and at least one row, got {len(rows)} rows")
    header = rows.pop(0)[1]
    if not set(columns) <= set(header):
        raise ValueError(f"{path}: expected columns {', '.join(columns)}, got {few(header)}")
    if len(set(header)) < len(header):
        raise ValueError(
            f"{path}: expected columns of different names, got {shortened(twice(header))!r} twice"
        )
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
            return (
                None,
                f"{path}, line {line}: expected a label of bag {shortened(name)!r}, got an empty cell",
            )
        if row[column] != first[column]:
            expected = (
                f"label {shortened(first[column])!r} of bag {shortened(name)!r} as in line {first_line}"
            )
            return None, f"{path}, line {line}: expected {expected}, got {shortened(row[column])!r}"
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
                expected = f"a finite number in column {shortened(column)!r} of bag {shortened(name)!r}"
                return numbers, f"{path}, line {line}: expected {expected}, got {shortened(row[place])!r}"
    return numbers, ""
