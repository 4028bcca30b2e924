"""Reading labelled sets from tables, npz files, and folders with one file per set."""

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

from setwise._files import most_expanded, refuse_claim
from setwise._text import error_summary, few, first_duplicate, shortened
from setwise.io.arrays import read_npz
from setwise.io.bags import bags_from_folder
from setwise.io.bags.tables import read_table
from setwise.sets import FLOAT32_MAX, Sets, offsets

MANIFEST = "manifest.csv"
_PARQUET_ROWS = 1024  # per batch
Labels = Shaped[np.ndarray, " b"] | Shaped[np.ndarray, "b k"]


@dataclass(frozen=True, eq=False)
class LabelledSets:
    """Sets with their IDs and, optionally, labels and groups.

    Args:
        sets: the sets.
        labels: one number or string per set ``[b]``, or several ``[b, k]``; None if there are no labels.
        ids: the ID of each set.
        groups: the group of each set, or None.
        left_out: files that were left out for lack of a label, each with an error message.
    """

    sets: Sets
    labels: Labels | None
    ids: tuple[str, ...]
    groups: Shaped[np.ndarray, " b"] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The names of the features, or None."""
        return self.sets.columns


@dataclass(frozen=True)
class _Selection:
    """The columns to read, and whether labels are required."""

    set: str
    labels: tuple[str, ...]
    group: str | None
    features: tuple[str, ...] | None
    name: str | None
    labels_required: bool


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
    r"""Read sets and their labels from a file or a folder; no code in a file is executed.

    - A table (``.csv``, ``.csv.gz``, ``.tsv``, ``.tsv.gz``, ``.parquet``) has one row per element: a column
      with the set ID, one or more columns with the label of the set, and numeric feature columns. The rows of
      a set need not be consecutive. Sets are returned in the order of their first rows.
    - An ``.npz`` file has one of three forms: ``X [sets, elements, features]`` and, if sets differ in size,
      ``mask``, True at real elements; ``values [elements, features]`` and offsets ``ptr [sets + 1]``; or
      ``X [elements, features]`` and ``bag`` (or ``set``), the set ID of each element. ``y`` has one label per
      set; in the last form, in the sorted order of the IDs, which is also the order of the sets. Names may
      have the name of a data set as a prefix, as in ``musk1_X``, ``musk1_bag``, ``musk1_y``.
    - A folder has one file per set (``.npy``, ``.npz``, ``.h5``, ``.pt``; see `setwise.io.bags`). Its
      ``manifest.csv`` has a column with the names of the files and one with their labels. Without a manifest,
      the label of a file is the name of its sub-folder; files directly in the folder have no label. In this
      case, ``.csv`` files are read, too.

    Args:
        path: the file or folder.
        set_column: column with the set ID.
        label_column: column, or columns, with the label of the set, the same in all of its rows; in an npz
            file the name of an array, ``y`` if there is none.
        group_column: column with the group of the set, e.g. its patient; in an npz file the name of an array.
        features: feature columns of a table, in this order; by default all other columns.
        name: name of the data set in an npz file with several.
        labels: whether labels are required. Otherwise they are read only if every set has one.

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
    selection = _Selection(set_column, columns, group_column, chosen, name, labels)
    roles = [set_column, *columns, *filter(None, [group_column]), *(chosen or ())]
    if not columns:
        raise ValueError("label_column must name at least one column, got none")
    if (duplicate := first_duplicate(roles)) is not None:
        raise ValueError(
            f"the columns for sets, labels, groups and features must be distinct, got {duplicate!r} twice"
        )
    if path.is_dir():
        return _read_folder(path, selection)
    readers: dict[str, Callable[[Path, _Selection], LabelledSets]] = {
        ".npz": _read_npz,
        ".parquet": _read_parquet,
        **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), _read_csv),
    }
    for suffix, read in readers.items():
        if path.name.lower().endswith(suffix):
            return read(path, selection)
    suffixes = ", ".join(readers)
    raise ValueError(f"{path}: expected a folder or a file {suffixes}, got {path.suffix or 'no suffix'}")


# Tables


def _read_csv(path: Path, selection: _Selection) -> LabelledSets:
    return _from_table(path, _csv(path, text=(selection.set, selection.group)), selection)


def _read_parquet(path: Path, selection: _Selection) -> LabelledSets:
    import_pandas("pyarrow")
    table = _read(path, ".parquet", partial(_parquet, path.stat().st_size))
    return _from_table(path, table.reset_index() if any(table.index.names) else table, selection)


def _parquet(size: int, file: Any) -> Any:
    """Read a parquet file in batches, to limit its size: run-length encoding can compress without bound."""
    arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    content = parquet.ParquetFile(file)
    if (duplicate := first_duplicate(content.schema_arrow.names)) is not None:
        raise ValueError(f"column names must be distinct, got {shortened(duplicate)!r} twice")
    batches, size_read = [], 0
    for batch in content.iter_batches(_PARQUET_ROWS):
        refuse_claim(size_read := size_read + batch.nbytes, most_expanded(size))
        batches.append(batch)
    return arrow.Table.from_batches(batches, content.schema_arrow).to_pandas()


def _csv(path: Path, text: Sequence[str | None] = ()) -> Any:
    """Read a CSV file. Empty cells stay empty strings; columns in ``text`` are read as strings."""
    pandas = import_pandas()
    options = {
        "sep": "\t" if ".tsv" in path.name.lower() else ",",
        "na_filter": False,
        "skipinitialspace": True,
        "index_col": False,
        "low_memory": False,
    }

    def text_of(file: Any) -> Any:
        return _LimitedGzip(file, path.stat().st_size) if path.name.lower().endswith(".gz") else file

    def read(file: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # pandas truncates rows longer than the header
            strings = {name: str for name in names if name in text}
            return pandas.read_csv(text_of(file), header=0, names=names, dtype=strings, **options)

    header = _read(
        path, "CSV", lambda file: pandas.read_csv(text_of(file), header=None, nrows=1, dtype=str, **options)
    )
    names = [name.strip() for name in header.iloc[0]]
    if (duplicate := first_duplicate(names)) is not None:
        raise ValueError(f"{path}: expected distinct column names, got {shortened(duplicate)!r} twice")
    return _read(path, "CSV", read)


class _LimitedGzip(gzip.GzipFile):
    """A gzip file with limited content: an eighth of the usual limit, because a table needs more memory."""

    def __init__(self, file: Any, size: int) -> None:
        super().__init__(fileobj=file, mode="rb")
        self.most = most_expanded(size) // 8

    def read(self, size: int | None = -1) -> bytes:
        """Read the next bytes."""
        part = super().read(self.most + 1 if size is None or size < 0 else size)
        refuse_claim(self.tell(), self.most)
        return part

    read1 = read


def _from_table(path: Path, table: Any, selection: _Selection) -> LabelledSets:
    table.columns = [str(column) for column in table.columns]
    labels = [column for column in selection.labels if selection.labels_required or column in table]
    others = [selection.set, *labels, *filter(None, [selection.group])]
    features = selection.features or tuple(column for column in table if column not in others)
    for column in (*others, *features):
        if column not in table:
            raise ValueError(f"{path}: expected a column {column!r}, got {few(list(table))}")
    if not features:
        raise ValueError(f"{path}: expected at least one feature column, got only {few(list(table))}")
    if not len(table):
        raise ValueError(f"{path}: expected at least one row below the header, got none")

    names, missing = _values(table[selection.set])
    if missing.any():
        raise ValueError(f"{path}, row {missing.argmax() + 1}: expected a set ID, got none")
    set_of_row, ids = import_pandas().factorize(names)
    ids = tuple(map(str, ids))
    order = np.argsort(set_of_row, kind="stable")
    ptr = offsets(np.bincount(set_of_row))

    def place(row: int) -> str:
        return f"{path}, set {shortened(ids[set_of_row[row]])!r}"

    def per_set(column: str, *, required: bool) -> Any:
        values, missing = _values(table[column])
        first = values[order[ptr[:-1]]]
        bad = missing if missing.any() else values != first[set_of_row]
        if missing.any() and not required:
            return None
        if bad.any():
            row = int(bad.argmax())
            both = f"{shortened(first[set_of_row[row]])} and {shortened(values[row])}"
            got = "none" if missing.any() else both
            raise ValueError(f"{place(row)}: expected one value in column {shortened(column)!r}, got {got}")
        return first

    x = _matrix(path, table, features, place)
    columns = [per_set(column, required=selection.labels_required) for column in labels]
    y = None
    if len(columns) == len(selection.labels) and not any(column is None for column in columns):
        y = _numbers_or_strings(columns[0] if len(columns) == 1 else np.column_stack(columns))
    groups = None
    if selection.group is not None:
        groups = _numbers_or_strings(per_set(selection.group, required=True))
    return LabelledSets(Sets(x[order], ptr, tuple(features)), y, ids, groups)


def _values(column: Any) -> tuple[Shaped[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """The values of a column as numbers or strings, and where they are missing."""
    missing = column.isna().to_numpy(bool)
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
        values = column.to_numpy()
        return values, missing | ~np.isfinite(values)
    text = column.astype(str).str.strip().to_numpy(object)
    return text, missing | (text == "")


def _matrix(
    path: Path, table: Any, features: Sequence[str], place: Callable[[int], str]
) -> Float[np.ndarray, "rows features"]:
    """The numbers in these columns, which must be finite."""
    x = np.column_stack([_to_floats(path, table[column]) for column in features])
    for column, numbers in zip(features, x.T, strict=True):
        if (bad := ~(np.abs(numbers) <= FLOAT32_MAX)).any():
            row = int(bad.argmax())
            hint = "; choose the feature columns if this is not one" if bad.all() else ""
            got = f"got {shortened(table[column].iloc[row])!r}{hint}"
            raise ValueError(f"{place(row)}, column {shortened(column)!r}: expected a finite number, {got}")
    return x


def _to_floats(path: Path, column: Any) -> Float[np.ndarray, " rows"]:
    """The numbers in a column; NaN for cells that are not numbers."""
    types = import_pandas().api.types
    try:
        if types.is_numeric_dtype(column.dtype):
            return np.asarray(column.to_numpy(np.float64, na_value=np.nan))
        if types.is_string_dtype(column.dtype) or column.dtype == object:
            return np.asarray(import_pandas().to_numeric(column, errors="coerce").to_numpy(np.float64))
    except OverflowError as error:
        raise ValueError(
            f"{path}: expected finite numbers in column {shortened(column.name)!r}, got one too large"
        ) from error
    raise ValueError(f"{path}: expected numbers in column {shortened(column.name)!r}, got {column.dtype}")


# Arrays


def _read_npz(path: Path, selection: _Selection) -> LabelledSets:
    label = selection.labels[0] if len(selection.labels) == 1 else "y"
    parts = dict.fromkeys(("X", "mask", "values", "ptr", "bag", "set", "y", label, selection.group))

    def read(_: Any) -> dict[str, Any]:
        content = read_npz(path, [f"{prefix}{part}" for part in parts])
        return {str(part): content[f"{prefix}{part}"] for part in parts if f"{prefix}{part}" in content}

    names = _read(path, ".npz", lambda _: list(read_npz(path, ())))
    prefix = _prefix(path, names, selection.name)
    arrays = _read(path, ".npz", read)
    ids: Any = None
    try:
        if {"values", "ptr"} <= set(arrays):
            sets = Sets.of((arrays["values"], arrays["ptr"]))
        elif "X" in arrays and arrays["X"].ndim == 3:
            sets = Sets.of(arrays["X"], _mask(arrays["mask"]) if "mask" in arrays else None)
        elif "X" in arrays and {"bag", "set"} & set(arrays):
            sets, ids = _grouped(arrays["X"], arrays["bag"] if "bag" in arrays else arrays["set"])
        else:
            forms = "X [sets, elements, features], X [elements, features] and bag, or values and ptr"
            raise ValueError(f"expected {forms}, got {few(arrays) or 'no arrays'}")
        labels = _per_set(
            arrays, label if label in arrays else "y", len(sets), required=selection.labels_required
        )
        groups = _per_set(arrays, selection.group, len(sets), required=True) if selection.group else None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return LabelledSets(sets, labels, tuple(map(str, range(len(sets)) if ids is None else ids)), groups)


def _prefix(path: Path, names: Sequence[str], name: str | None) -> str:
    """The prefix of the names of the arrays."""
    known = [array.removesuffix("_X") for array in names if array.endswith("_X")]
    if name is None and ({"X", "values"} & set(names) or not known):
        return ""
    if name not in known and (name is not None or len(known) > 1):
        raise ValueError(f"{path}: name must be one of the data sets {few(known)}, got {name}")
    return f"{name or known[0]}_"


def _mask(mask: Any) -> Any:
    return mask.astype(bool) if mask.dtype.kind in "iuf" and np.isin(mask, (0, 1)).all() else mask


def _grouped(x: Any, bag: Any) -> tuple[Sets, Any]:
    if x.ndim != 2 or bag.shape != x.shape[:1] or bag.dtype.kind not in "iuUS":
        expected = "X [elements, features] and bag [elements] of integers or strings"
        raise ValueError(f"expected {expected}, got {list(x.shape)} and {bag.dtype} {list(bag.shape)}")
    ids, sizes = np.unique(_numbers_or_strings(bag), return_counts=True)
    return Sets.of((x[np.argsort(bag, kind="stable")], np.append(0, sizes.cumsum()))), ids


def _per_set(arrays: Mapping[str, Any], name: str, sets: int, *, required: bool) -> Any:
    if name not in arrays:
        if required:
            raise ValueError(f"expected an array {name!r} with one value per set, got only {few(arrays)}")
        return None
    values = arrays[name]
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim not in (1, 2) or len(values) != sets or values.dtype.kind not in "iufbUS":
        expected = f"{name} [{sets}] with one number or string per set"
        raise ValueError(f"expected {expected}, got {values.dtype} {list(values.shape)}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        if required:
            raise ValueError(f"expected {name} to be finite, got {values[~np.isfinite(values)][0]}")
        return None
    return _numbers_or_strings(values)


# Folders


def _read_folder(folder: Path, selection: _Selection) -> LabelledSets:
    if len(selection.labels) > 1:
        raise ValueError(f"{folder}: expected one label column for a folder, got {few(selection.labels)}")
    if (folder / MANIFEST).is_file() and (data := _read_manifest(folder, selection)):
        return data
    if selection.group is not None:
        raise ValueError(
            f"{folder}: expected a {MANIFEST} with a column {selection.group!r} of groups, got no manifest"
        )
    files = _files(folder)
    loose = {name: path for name, path in files.items() if path.parent == folder}
    left_out = {}
    if selection.labels_required:
        if len(loose) == len(files):
            expected = f"a {MANIFEST} with labels, or files in sub-folders named after their labels"
            raise ValueError(f"{folder}: expected {expected}, got neither")
        left_out = {
            name: f"{path}: expected a sub-folder named after its label, got none"
            for name, path in loose.items()
        }
        files = {name: path for name, path in files.items() if name not in loose}
    labels = (
        None
        if loose and not selection.labels_required
        else _parse_labels([path.parent.name for path in files.values()])
    )
    return LabelledSets(_read_files(folder, files, selection.features), labels, tuple(files), None, left_out)


def _read_manifest(folder: Path, selection: _Selection) -> LabelledSets | None:
    """The sets in a manifest; None if labels are optional and some are missing."""
    manifest, label = folder / MANIFEST, selection.labels[0]
    header, rows = read_table(manifest, [selection.set, *filter(None, [selection.group])])
    if not selection.labels_required and label not in header:
        return None
    bags = bags_from_folder(folder, manifest, bag=selection.set, label=label)
    if not selection.labels_required and bags.unlabelled:
        return None
    groups = None
    if selection.group is not None:
        group = {row[header.index(selection.set)]: row[header.index(selection.group)] for _, row in rows}
        groups = np.array([group[name] for name in bags.names])
    labels = _parse_labels([bags.classes[i] for i in bags.labels.tolist()])
    sets = _concatenate(folder, {name: bags[i].x.numpy() for i, name in enumerate(bags.names)})
    return LabelledSets(sets, labels, bags.names, groups, bags.unlabelled)


def _files(folder: Path) -> dict[str, Path]:
    """Files in the folder and its sub-folders in alphabetical order, without hidden files."""
    suffixes = (".h5", ".hdf5", ".npy", ".npz", ".pt", ".pth", ".csv")
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted([*folder.glob("[!.]*"), *folder.glob("[!.]*/[!.]*")])
        if path.suffix.lower() in suffixes and path.is_file() and path != folder / MANIFEST
    }
    if not files:
        raise ValueError(f"{folder}: expected files {', '.join(suffixes)}, one per set, got none")
    return files


def _read_files(folder: Path, files: Mapping[str, Path], features: Sequence[str] | None) -> Sets:
    others = [name for name, path in files.items() if path.suffix.lower() != ".csv"]
    bags = bags_from_folder(folder, dict.fromkeys(others, "any"))
    arrays = {name: bags[i].x.numpy() for i, name in enumerate(others)}
    columns: tuple[str, ...] | None = None
    for name, path in files.items():
        if name in arrays:
            continue
        table = _csv(path)
        chosen = tuple(features or table.columns)
        if (columns is not None and chosen != columns) or not set(chosen) <= set(table.columns):
            expected = few(columns or chosen)
            raise ValueError(f"{path}: expected columns {expected}, got {few(list(table))}")
        if not len(table) or _parse_labels(list(table)).dtype.kind in "if":
            raise ValueError(
                f"{path}: expected a header and at least one row of numbers, got no header or no rows"
            )
        columns = chosen
        arrays[name] = _matrix(path, table, columns, partial(_row, path))
    return _concatenate(folder, {name: arrays[name] for name in files}, None if others else columns)


def _row(path: Path, row: int) -> str:
    return f"{path}, row {row + 1}"


def _concatenate(folder: Path, arrays: Mapping[str, Any], columns: tuple[str, ...] | None = None) -> Sets:
    if not arrays:
        raise ValueError(f"{folder}: expected at least one set with a label, got none")
    width = next(iter(arrays.values())).shape[1]
    for name, x in arrays.items():
        if x.shape[1] != width:
            raise ValueError(f"{folder / name}: expected {width} features per element, got {x.shape[1]}")
    values = np.concatenate(list(arrays.values()))
    return Sets(values, offsets([len(x) for x in arrays.values()]), columns)


def _parse_labels(labels: Sequence[str]) -> Shaped[np.ndarray, " b"]:
    """Labels as integers or floats if all are numbers and stay distinct, else as strings."""
    for kind in (np.int64, np.float64):
        try:
            numbers = np.array([kind(label) for label in labels])
        except (ValueError, OverflowError):
            continue
        if np.isfinite(numbers).all() and len(np.unique(numbers)) == len(set(labels)):
            return numbers
    return np.array(labels, dtype=str)


# Helpers


def _numbers_or_strings(values: Any) -> Any:
    """Keep numbers, convert everything else to strings; several booleans per set become 0 and 1."""
    if values.dtype.kind == "b" and values.ndim == 2:
        return values.astype(np.int64)
    return values if values.dtype.kind in "iuf" else values.astype(str)


def _read(path: Path, kind: str, read: Callable[[Any], Any]) -> Any:
    """Call ``read`` on the open file, and summarise any error in one sentence."""
    with path.open("rb") as file:
        try:
            return read(file)
        except Exception as error:  # damaged files can raise anything
            got = f"got an error: {error_summary(error)}"
            raise ValueError(f"{path}: expected a readable {kind} file, {got}") from error


def import_pandas(*others: str) -> Any:
    """Import pandas, after checking that the other packages can be imported."""
    for package in ("pandas", *others):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"reading tables needs the {package} package: pip install 'setwise[tables]'"
            ) from error
    return importlib.import_module("pandas")


def read_for(estimator: Any, data: Path | str, *, labels: bool = False, **reading: Any) -> LabelledSets:
    """Read sets for a fitted estimator: of a table, the columns with which it was fitted."""
    names = getattr(estimator, "feature_names_in_", None)
    return read_sets(data, features=None if names is None else list(names), labels=labels, **reading)
