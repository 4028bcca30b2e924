"""LabelledSets sets from the files that people have: tables, npz files, and folders with a file a set."""

import gzip
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from setwise._files import most_expanded, refuse_claim, shortened
from setwise._text import few
from setwise.io.arrays import read_npz
from setwise.io.bags import bags_from_folder
from setwise.io.bags.dataset import in_short, twice
from setwise.io.bags.tables import read_table
from setwise.sets import LARGEST, Sets

MANIFEST = "manifest.csv"
_ROWS = 1024  # of a parquet file at a time
Labels = Shaped[np.ndarray, " b"] | Shaped[np.ndarray, "b k"]


@dataclass(frozen=True, eq=False)
class LabelledSets:
    """Sets as they were read, each with its name and, where known, its label.

    Args:
        sets: the elements.
        labels: one a set, strings or numbers as they were found; a row a set where there are several.
        ids: what each set is called.
        groups: what each set belongs to, if that was asked for.
        left_out: files without a label, which are no part of this, and a sentence about each.
    """

    sets: Sets
    labels: Labels | None
    ids: tuple[str, ...]
    groups: Shaped[np.ndarray, " b"] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The names of the features, if they have any."""
        return self.sets.columns


@dataclass(frozen=True)
class _Wanted:
    """What to look for in a file."""

    set: str
    labels: tuple[str, ...]
    group: str | None
    features: tuple[str, ...] | None
    name: str | None
    required: bool


def read_sets(
    path: Path | str,
    *,
    set_column: str = "set",
    label_column: str | Sequence[str] = "label",
    group_column: str | None = None,
    features: Sequence[str] | None = None,
    name: str | None = None,
    labels: bool = True,
) -> LabelledSets:
    r"""Read sets, and the label of each, from a file or a folder; nothing in a file is executed.

    - A table (``.csv``, ``.tsv``, either also with ``.gz``, ``.parquet``) has a row an element: a column with
      the set, one or more with its label, and numbers. Rows of a set need not follow each other; sets come in
      the order in which they first appear.
    - An ``.npz`` file holds ``X [sets, elements, features]`` and, if sets differ in size, ``mask``, True at
      real elements; or ``values [elements, features]`` and ``ptr [sets + 1]``, where each set begins; or
      ``X [elements, features]`` and ``bag`` (or ``set``), what each belongs to. Labels are ``y``, one a set.
      In the last form they are, and sets come, in the sorted order of what ``bag`` holds. Names may begin
      with that of a data set, as in ``musk1_X``, ``musk1_bag``, ``musk1_y``.
    - A folder has a file a set (``.npy``, ``.npz``, ``.h5``, ``.pt``; see `setwise.io.bags`). Its
      ``manifest.csv`` has a column with the names of the files, and one with their labels. Without one,
      files, which may be ``.csv`` too, lie in sub-folders that are called like their labels, or have none.

    Args:
        path: of the file or folder.
        set_column: in a table, the column that tells the set.
        label_column: the column, or columns, with the label of the set, the same in all of its rows; in an
            npz file an array of this name, otherwise ``y``.
        group_column: the column with what a set belongs to, such as a patient; in an npz file an array.
        features: the columns of a table to use, in this order; all others that are there unless given.
        name: which of several data sets in an npz file.
        labels: whether there must be labels. If not, they are taken where every set has one.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cells.csv"
    ...     _ = path.write_text("set,label,size\nfirst,well,1.5\nsecond,ill,4\nfirst,well,2.5\n")
    ...     data = read_sets(path)
    >>> data.ids, data.labels.tolist(), data.columns, data.sets[0].tolist()
    (('first', 'second'), ['well', 'ill'], ('size',), [[1.5], [2.5]])
    """
    path = Path(path)
    columns = (label_column,) if isinstance(label_column, str) else tuple(label_column)
    chosen = None if features is None else tuple(features)
    wanted = _Wanted(set_column, columns, group_column, chosen, name, labels)
    roles = [set_column, *columns, *filter(None, [group_column]), *(chosen or ())]
    if not columns:
        raise ValueError("label_column must be at least one column, got none")
    if len(set(roles)) < len(roles):
        raise ValueError(
            f"columns for sets, labels, groups and features must differ, got {twice(roles)!r} twice"
        )
    if path.is_dir():
        return _read_folder(path, wanted)
    readers: dict[str, Callable[[Path, _Wanted], LabelledSets]] = {
        ".npz": _read_npz,
        ".parquet": _read_parquet,
        **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), _read_csv),
    }
    for suffix, read in readers.items():
        if path.name.lower().endswith(suffix):
            return read(path, wanted)
    kinds = ", ".join(readers)
    raise ValueError(f"{path}: expected a folder or a file {kinds}, got {path.suffix or 'no suffix'}")


# Tables


def _read_csv(path: Path, wanted: _Wanted) -> LabelledSets:
    return _from_table(path, _csv(path, text=(wanted.set, wanted.group)), wanted)


def _read_parquet(path: Path, wanted: _Wanted) -> LabelledSets:
    pandas_with("pyarrow")
    table = _opened(path, ".parquet", partial(_parquet, path.stat().st_size))
    return _from_table(path, table.reset_index() if any(table.index.names) else table, wanted)


def _parquet(size: int, file: Any) -> Any:
    """The table in a parquet file, read a few rows at a time, as one value may stand for all that follow."""
    arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    content = parquet.ParquetFile(file)
    if len(set(names := content.schema_arrow.names)) < len(names):
        raise ValueError(f"columns must differ, got {shortened(twice(names))!r} twice")
    batches, there = [], 0
    for batch in content.iter_batches(_ROWS):
        refuse_claim(there := there + batch.nbytes, most_expanded(size))
        batches.append(batch)
    return arrow.Table.from_batches(batches, content.schema_arrow).to_pandas()


def _csv(path: Path, text: Sequence[str | None] = ()) -> Any:
    """The table in a CSV file; empty cells stay empty, and columns in ``text`` are not taken for numbers."""
    pandas = pandas_with()
    options = {
        "sep": "\t" if ".tsv" in path.name.lower() else ",",
        "na_filter": False,
        "skipinitialspace": True,
        "index_col": False,
        "low_memory": False,
    }

    def text_of(file: Any) -> Any:
        return _Unpacked(file, path.stat().st_size) if path.name.lower().endswith(".gz") else file

    def read(file: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a row longer than the header would lose its end
            strings = {name: str for name in names if name in text}
            return pandas.read_csv(text_of(file), header=0, names=names, dtype=strings, **options)

    header = _opened(
        path, "CSV", lambda file: pandas.read_csv(text_of(file), header=None, nrows=1, dtype=str, **options)
    )
    names = [name.strip() for name in header.iloc[0]]
    if len(set(names)) < len(names):
        raise ValueError(
            f"{path}: expected columns of different names, got {shortened(twice(names))!r} twice"
        )
    return _opened(path, "CSV", read)


class _Unpacked(gzip.GzipFile):
    """The text in a gzip file, up to an eighth of what it may hold: as a table it takes more memory."""

    def __init__(self, file: Any, size: int) -> None:
        super().__init__(fileobj=file, mode="rb")
        self.most = most_expanded(size) // 8

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes."""
        part = super().read(self.most + 1 if size is None or size < 0 else size)
        refuse_claim(self.tell(), self.most)
        return part

    read1 = read


def _from_table(path: Path, table: Any, wanted: _Wanted) -> LabelledSets:
    table.columns = [str(column) for column in table.columns]
    labels = [column for column in wanted.labels if wanted.required or column in table]
    told = [wanted.set, *labels, *filter(None, [wanted.group])]
    features = wanted.features or tuple(column for column in table if column not in told)
    for column in (*told, *features):
        if column not in table:
            raise ValueError(f"{path}: expected a column {column!r}, got {few(list(table))}")
    if not features:
        raise ValueError(f"{path}: expected columns with features, got only {few(list(table))}")
    if not len(table):
        raise ValueError(f"{path}: expected at least one row below the names of columns, got none")

    names, missing = _values(table[wanted.set])
    if missing.any():
        raise ValueError(f"{path}, row {missing.argmax() + 1}: expected the name of a set, got none")
    number, ids = pandas_with().factorize(names)
    ids = tuple(map(str, ids))
    order = np.argsort(number, kind="stable")
    ptr = np.append(0, np.bincount(number).cumsum()).astype(np.int64)

    def of_each_set(column: str, *, required: bool) -> Any:
        values, missing = _values(table[column])
        first = values[order[ptr[:-1]]]
        bad = missing if missing.any() else values != first[number]
        if missing.any() and not required:
            return None
        if bad.any():
            row = bad.argmax()
            got = "none" if missing.any() else f"{shortened(first[number[row]])} and {shortened(values[row])}"
            place = f"{path}, set {shortened(ids[number[row]])!r}"
            raise ValueError(f"{place}: expected one value in column {shortened(column)!r}, got {got}")
        return first

    x = _matrix(path, table, features, lambda row: f"{path}, set {shortened(ids[number[row]])!r}")
    known = [of_each_set(column, required=wanted.required) for column in labels]
    found = None
    if len(known) == len(wanted.labels) and not any(one is None for one in known):
        found = _plain(known[0] if len(known) == 1 else np.column_stack(known))
    groups = None if wanted.group is None else _plain(of_each_set(wanted.group, required=True))
    return LabelledSets(Sets(x[order], ptr, tuple(features)), found, ids, groups)


def _values(column: Any) -> tuple[Shaped[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Numbers, or strings, and where there is none."""
    missing = column.isna().to_numpy(bool)
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
        values = column.to_numpy()
        return values, missing | ~np.isfinite(values)
    text = column.astype(str).str.strip().to_numpy(object)
    return text, missing | (text == "")


def _matrix(
    path: Path, table: Any, features: Sequence[str], place: Callable[[int], str]
) -> Float[np.ndarray, "rows features"]:
    """The numbers in these columns, all of which must be finite."""
    x = np.column_stack([_numbers(path, table[column]) for column in features])
    for column, numbers in zip(features, x.T, strict=True):
        if (bad := ~(np.abs(numbers) <= LARGEST)).any():
            row = int(bad.argmax())
            hint = "; say which columns are features if this is none" if bad.all() else ""
            got = f"got {shortened(table[column].iloc[row])!r}{hint}"
            raise ValueError(f"{place(row)}, column {shortened(column)!r}: expected a finite number, {got}")
    return x


def _numbers(path: Path, column: Any) -> Float[np.ndarray, " rows"]:
    """The numbers in a column; NaN for what is none."""
    types = pandas_with().api.types
    try:
        if types.is_numeric_dtype(column.dtype):
            return np.asarray(column.to_numpy(np.float64, na_value=np.nan))
        if types.is_string_dtype(column.dtype) or column.dtype == object:
            return np.asarray(pandas_with().to_numeric(column, errors="coerce").to_numpy(np.float64))
    except OverflowError as error:
        raise ValueError(
            f"{path}: expected finite numbers in column {shortened(column.name)!r}, got one too large"
        ) from error
    raise ValueError(f"{path}: expected numbers in column {shortened(column.name)!r}, got {column.dtype}")


# Arrays


def _read_npz(path: Path, wanted: _Wanted) -> LabelledSets:
    label = wanted.labels[0] if len(wanted.labels) == 1 else "y"
    parts = dict.fromkeys(("X", "mask", "values", "ptr", "bag", "set", "y", label, wanted.group))

    def read(_: Any) -> dict[str, Any]:
        arrays = read_npz(path, [f"{start}{part}" for part in parts])
        return {str(part): arrays[f"{start}{part}"] for part in parts if f"{start}{part}" in arrays}

    names = _opened(path, ".npz", lambda _: list(read_npz(path, ())))
    start = _start(path, names, wanted.name)
    there = _opened(path, ".npz", read)
    ids: Any = None
    try:
        if {"values", "ptr"} <= set(there):
            sets = Sets.of((there["values"], there["ptr"]))
        elif "X" in there and there["X"].ndim == 3:
            sets = Sets.of(there["X"], _mask(there["mask"]) if "mask" in there else None)
        elif "X" in there and {"bag", "set"} & set(there):
            sets, ids = _grouped(there["X"], there["bag"] if "bag" in there else there["set"])
        else:
            forms = "X [sets, elements, features], X [elements, features] and bag, or values and ptr"
            raise ValueError(f"expected {forms}, got {few(list(there))}")
        labels = _of_each_set(there, label if label in there else "y", len(sets), required=wanted.required)
        groups = _of_each_set(there, wanted.group, len(sets), required=True) if wanted.group else None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return LabelledSets(sets, labels, tuple(map(str, range(len(sets)) if ids is None else ids)), groups)


def _start(path: Path, names: Sequence[str], name: str | None) -> str:
    """What the names of the wanted arrays begin with."""
    known = [array.removesuffix("_X") for array in names if array.endswith("_X")]
    if name is None and ({"X", "values"} & set(names) or not known):
        return ""
    if name not in known and (name is not None or len(known) > 1):
        raise ValueError(f"{path}: name must be that of a data set in it, {few(known)}, got {name}")
    return f"{name or known[0]}_"


def _mask(mask: Any) -> Any:
    return mask.astype(bool) if mask.dtype.kind in "iuf" and np.isin(mask, (0, 1)).all() else mask


def _grouped(x: Any, bag: Any) -> tuple[Sets, Any]:
    if x.ndim != 2 or bag.shape != x.shape[:1] or bag.dtype.kind not in "iuUS":
        expected = "X [elements, features] and bag [elements] of whole numbers or names"
        raise ValueError(f"expected {expected}, got {list(x.shape)} and {bag.dtype} {list(bag.shape)}")
    ids, sizes = np.unique(_plain(bag), return_counts=True)
    return Sets.of((x[np.argsort(bag, kind="stable")], np.append(0, sizes.cumsum()))), ids


def _of_each_set(there: Mapping[str, Any], name: str, sets: int, *, required: bool) -> Any:
    if name not in there:
        if required:
            raise ValueError(f"expected {name}, one a set, got only {few(list(there))}")
        return None
    found = there[name]
    found = found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found
    if found.ndim not in (1, 2) or len(found) != sets or found.dtype.kind not in "iufbUS":
        expected = f"{name} [{sets}] of numbers or strings, one a set"
        raise ValueError(f"expected {expected}, got {found.dtype} {list(found.shape)}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        if required:
            raise ValueError(f"expected {name} to be finite, got {found[~np.isfinite(found)][0]}")
        return None
    return _plain(found)


# Folders


def _read_folder(folder: Path, wanted: _Wanted) -> LabelledSets:
    if len(wanted.labels) > 1:
        raise ValueError(f"{folder}: expected one label for each set in a folder, got {len(wanted.labels)}")
    if (folder / MANIFEST).is_file() and (found := _manifested(folder, wanted)):
        return found
    if wanted.group is not None:
        raise ValueError(f"{folder}: expected a {MANIFEST} with the groups of the sets, got none")
    files = _files(folder)
    loose = {name: path for name, path in files.items() if path.parent == folder}
    left_out = {}
    if wanted.required:
        if len(loose) == len(files):
            expected = f"a {MANIFEST} with labels, or files in sub-folders called like their labels"
            raise ValueError(f"{folder}: expected {expected}, got neither")
        left_out = {
            name: f"{path}: expected it in a sub-folder, got no label" for name, path in loose.items()
        }
        files = {name: path for name, path in files.items() if name not in loose}
    labels = None if loose and not wanted.required else _typed([path.parent.name for path in files.values()])
    return LabelledSets(_file_a_set(folder, files, wanted.features), labels, tuple(files), None, left_out)


def _manifested(folder: Path, wanted: _Wanted) -> LabelledSets | None:
    """What a manifest names; None where there need be no labels and it does not have them all."""
    manifest, label = folder / MANIFEST, wanted.labels[0]
    header, rows = read_table(manifest, [wanted.set, *filter(None, [wanted.group])])
    if not wanted.required and label not in header:
        return None
    bags = bags_from_folder(folder, manifest, bag=wanted.set, label=label)
    if not wanted.required and bags.unlabelled:
        return None
    groups = None
    if wanted.group is not None:
        group = {row[header.index(wanted.set)]: row[header.index(wanted.group)] for _, row in rows}
        groups = np.array([group[name] for name in bags.names])
    labels = _typed([bags.classes[i] for i in bags.labels.tolist()])
    sets = _stacked(folder, {name: bags[i].x.numpy() for i, name in enumerate(bags.names)})
    return LabelledSets(sets, labels, bags.names, groups, bags.unlabelled)


def _files(folder: Path) -> dict[str, Path]:
    """The files with a set each, in the folder or one right below, in alphabetical order, but for clutter."""
    suffixes = (".h5", ".hdf5", ".npy", ".npz", ".pt", ".pth", ".csv")
    found = {
        path.relative_to(folder).as_posix(): path
        for path in sorted([*folder.glob("[!.]*"), *folder.glob("[!.]*/[!.]*")])
        if path.suffix.lower() in suffixes and path.is_file() and path != folder / MANIFEST
    }
    if not found:
        raise ValueError(f"{folder}: expected files {', '.join(suffixes)}, one a set, got none")
    return found


def _file_a_set(folder: Path, files: Mapping[str, Path], features: Sequence[str] | None) -> Sets:
    others = [name for name, path in files.items() if path.suffix.lower() != ".csv"]
    bags = bags_from_folder(folder, dict.fromkeys(others, "any"))
    arrays = {name: bags[i].x.numpy() for i, name in enumerate(others)}
    columns: tuple[str, ...] | None = None
    for name, path in files.items():
        if name in arrays:
            continue
        table = _csv(path)
        found = tuple(features or table.columns)
        if (columns is not None and found != columns) or not set(found) <= set(table.columns):
            expected = few(columns or found)
            raise ValueError(f"{path}: expected columns {expected}, got {few(list(table))}")
        if not len(table) or _typed(list(table)).dtype.kind in "if":
            raise ValueError(
                f"{path}: expected the names of columns, then rows of numbers, got no names or rows"
            )
        columns = found
        arrays[name] = _matrix(path, table, columns, partial(_row, path))
    return _stacked(folder, {name: arrays[name] for name in files}, None if others else columns)


def _row(path: Path, row: int) -> str:
    return f"{path}, row {row + 1}"


def _stacked(folder: Path, arrays: Mapping[str, Any], columns: tuple[str, ...] | None = None) -> Sets:
    if not arrays:
        raise ValueError(f"{folder}: expected at least one set with a label, got none")
    width = next(iter(arrays.values())).shape[1]
    for name, x in arrays.items():
        if x.shape[1] != width:
            raise ValueError(f"{folder / name}: expected {width} features an element, got {x.shape[1]}")
    ptr = np.append(0, np.cumsum([len(x) for x in arrays.values()])).astype(np.int64)
    return Sets(np.concatenate(list(arrays.values())), ptr, columns)


def _typed(labels: Sequence[str]) -> Shaped[np.ndarray, " b"]:
    """Whole numbers if all are, else numbers if all are, else strings, as where two names are one number."""
    for kind in (np.int64, np.float64):
        try:
            found = np.array([kind(label) for label in labels])
        except (ValueError, OverflowError):
            continue
        if np.isfinite(found).all() and len(np.unique(found)) == len(set(labels)):
            return found
    return np.array(labels, dtype=str)


# All of them


def _plain(values: Any) -> Any:
    """Numbers as they are, everything else as strings; True and False are numbers where there are several."""
    if values.dtype.kind == "b" and values.ndim == 2:
        return values.astype(np.int64)
    return values if values.dtype.kind in "iuf" else values.astype(str)


def _opened(path: Path, kind: str, read: Callable[[Any], Any]) -> Any:
    """What ``read`` makes of the file; whatever it fails with comes as one sentence."""
    with path.open("rb") as file:
        try:
            return read(file)
        except Exception as error:  # reading damaged bytes may fail in any way there is
            got = f"got an error: {in_short(error)}"
            raise ValueError(f"{path}: expected a readable {kind} file, {got}") from error


def pandas_with(*others: str) -> Any:
    """The module pandas, if it is there and so are the others."""
    for package in ("pandas", *others):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"reading tables needs the {package} package: pip install 'setwise[tables]'"
            ) from error
    return importlib.import_module("pandas")


def read_for(estimator: Any, data: Path | str, *, labels: bool = False, **reading: Any) -> LabelledSets:
    """Sets as an estimator knows them: of a table, the columns that it was fitted with."""
    names = getattr(estimator, "feature_names_in_", None)
    return read_sets(data, features=None if names is None else list(names), labels=labels, **reading)
