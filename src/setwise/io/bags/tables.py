"""Bags from a single file: npz files of the classic benchmarks, and CSV files."""

import csv
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Float

from setwise._text import error_summary, few, first_duplicate, shortened
from setwise.io.arrays import read_npz
from setwise.io.bags.dataset import BagEntry, Bags, collect_in_memory, label_name

_Rows = list[tuple[int, list[str]]]  # line number and cells


def bags_from_npz(path: Path | str, name: str) -> Bags:
    """Read bags from the arrays ``<name>_X``, ``<name>_bag`` and ``<name>_y`` of an npz file.

    They hold the instances ``[instances, features]``, the bag ID of each instance (integers in any order),
    and the labels of the bags in order of their IDs. Labels become class indices, e.g. 0 and 1 for -1 and 1;
    ``classes`` has the original labels. Values that are not finite make their bag invalid; arrays whose
    shapes do not match make the whole file invalid.

    Args:
        path: the npz file.
        name: prefix of the names of the arrays.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "two.npz"
    ...     np.savez(path, two_X=np.eye(3), two_bag=[7, 4, 7], two_y=[1, -1])
    ...     bags = bags_from_npz(path, "two")
    >>> bags.names, bags.classes, bags.labels.tolist(), bags[1].x.tolist()
    (('4', '7'), ('-1', '1'), [1, 0], [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    """
    path = Path(path)
    keys = [f"{name}_{part}" for part in ("X", "bag", "y")]
    try:
        arrays = read_npz(path, keys)
    except FileNotFoundError:
        raise
    except Exception as error:  # damaged files can raise anything
        reason = f"expected a readable .npz file, got an error: {error_summary(error)}"
        raise ValueError(f"{path}: {reason}") from error
    if not set(keys) <= set(arrays):
        raise ValueError(f"{path}: expected arrays {', '.join(keys)}, got {few(sorted(arrays)) or 'none'}")
    x, bag, y = (np.asarray(arrays[key]) for key in keys)
    if x.ndim != 2 or not len(x) or bag.shape != x.shape[:1] or bag.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: expected {keys[0]} [instances, features] and integers {keys[1]} [instances], "
            f"got {list(x.shape)} and {bag.dtype} {list(bag.shape)}"
        )
    ids, sizes = np.unique(bag, return_counts=True)
    if y.shape != ids.shape:
        raise ValueError(
            f"{path}: expected {keys[2]} [{len(ids)}], one label per bag in {keys[1]}, got {list(y.shape)}"
        )
    sets = np.split(x[np.argsort(bag, kind="stable")], np.cumsum(sizes)[:-1])
    entries = [
        BagEntry(str(bag_id), f"{path}, bag {bag_id} of {name}", label_name(label), (features, None))
        for bag_id, label, features in zip(ids.tolist(), y.tolist(), sets, strict=True)
    ]
    return collect_in_memory(name, entries)


def bags_from_csv(
    path: Path | str,
    *,
    bag: str = "bag",
    label: str = "label",
    coords: tuple[str, str] | None = None,
    classes: Sequence[str] | None = None,
) -> Bags:
    r"""Read bags from a CSV file with one row per instance: its bag, the bag's label, and features.

    A cell that is not a finite number makes its bag invalid. A bag with no label or with several labels is
    not part of the data set, but ``check()`` lists it. A missing column, a row with more or fewer cells than
    the header, or a row without a bag make the whole file invalid. All errors give the line number.

    Args:
        path: the CSV file; its first line has the column names.
        bag: column with the name of the bag; the rows of a bag need not be consecutive.
        label: column with the label of the bag, the same in all of its rows.
        coords: the two columns with the coordinates of the instance, or None. All other columns are
            features.
        classes: names of the classes in order of their indices; sorted by default.

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
        raise ValueError(f"{path}: expected at least one feature column, got only {few(header)}")
    members: dict[str, _Rows] = {}
    for line, row in rows:
        members.setdefault(row[header.index(bag)], []).append((line, row))
    entries = []
    for name, its_rows in members.items():
        place = f"{path}, bag {shortened(name)!r}"
        common, fault = _common_label(path, name, header.index(label), its_rows)
        if common is None:
            entries.append(BagEntry(name, place, None, None, fault))
            continue
        numbers, fault = _parse_numbers(path, name, {c: header.index(c) for c in features + pair}, its_rows)
        x, positions = np.split(numbers, [len(features)], axis=1)
        entries.append(BagEntry(name, place, common, (x, positions if pair else None), fault))
    return collect_in_memory(path.stem, entries, classes)


def read_table(path: Path, columns: Sequence[str]) -> tuple[list[str], _Rows]:
    """Column names and rows of a CSV file; no cell in the first of ``columns`` is empty."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            rows = [(lines.line_num, [cell.strip() for cell in row]) for row in lines if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{path}: expected a CSV file in UTF-8, got an error: {error_summary(error)}"
        ) from error
    if len(rows) < 2:
        raise ValueError(f"{path}: expected a header and at least one row, got {len(rows)} lines")
    header = rows.pop(0)[1]
    if not set(columns) <= set(header):
        raise ValueError(f"{path}: expected columns {', '.join(columns)}, got {few(header)}")
    if (duplicate := first_duplicate(header)) is not None:
        raise ValueError(f"{path}: expected distinct column names, got {shortened(duplicate)!r} twice")
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: expected {len(header)} cells as in the header, got {len(row)}"
            )
        if not row[header.index(columns[0])]:
            raise ValueError(f"{path}, line {line}: expected the name of a bag, got an empty cell")
    return header, rows


def _common_label(path: Path, name: str, column: int, rows: _Rows) -> tuple[str | None, str]:
    """The label of all rows of a bag and no error message, or None and an error message."""
    first_line, first = rows[0]
    for line, row in rows:
        if not row[column]:
            return (
                None,
                f"{path}, line {line}: expected a label for bag {shortened(name)!r}, got an empty cell",
            )
        if row[column] != first[column]:
            expected = (
                f"label {shortened(first[column])!r} of bag {shortened(name)!r} as in line {first_line}"
            )
            return None, f"{path}, line {line}: expected {expected}, got {shortened(row[column])!r}"
    return first[column], ""


def _parse_numbers(
    path: Path, name: str, columns: dict[str, int], rows: _Rows
) -> tuple[Float[np.ndarray, "rows columns"], str]:
    """The numbers in these columns, and an error message if a cell is not a finite number, else ''."""
    numbers = np.full((len(rows), len(columns)), math.nan)
    for i, (line, row) in enumerate(rows):
        for j, (column, position) in enumerate(columns.items()):
            with suppress(ValueError):
                numbers[i, j] = float(row[position])
            if not math.isfinite(numbers[i, j]):
                expected = f"a finite number in column {shortened(column)!r} of bag {shortened(name)!r}"
                return numbers, f"{path}, line {line}: expected {expected}, got {shortened(row[position])!r}"
    return numbers, ""
