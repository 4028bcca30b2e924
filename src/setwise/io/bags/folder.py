"""Bags from a folder with one file per bag and a manifest of labels; files are read on access."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from setwise._text import error_summary, few, shortened
from setwise.io.arrays import check_dataset, import_h5py, read_npy, read_npz
from setwise.io.bags.dataset import BagEntry, Bags, collect, label_name
from setwise.io.bags.tables import read_table
from setwise.training.checkpoint import read_tensors


def bags_from_folder(
    folder: Path | str,
    manifest: Path | str | Mapping[str, Any],
    *,
    bag: str = "bag",
    label: str = "label",
    classes: Sequence[str] | None = None,
    dim: int | None = None,
) -> Bags:
    """Read bags from files, one file per bag, on access; no code in a file is executed.

    Files may be HDF5 (``.h5``, ``.hdf5``) or ``.npz`` with ``features`` and, optionally, ``coords``, as
    pathology tools such as CLAM write them; ``.npy``; or ``.pt`` and ``.pth`` with a tensor or a dict of
    tensors with these names. An additional first axis of length one is removed. A file whose header declares
    far more data than its size allows is refused before memory is allocated.

    Files that are not in the manifest, and bags with no label or with several labels, are not part of the
    data set, but ``check()`` lists them. Files are searched in the folder and in all folders that the
    manifest mentions.

    Args:
        folder: the folder with the files.
        manifest: labels of the bags: a CSV file, or a mapping from bags to labels. A bag is identified by the
            name of its file, with or without suffix, or by its path relative to the folder.
        bag: column of the CSV file with the bags.
        label: column of the CSV file with the labels.
        classes: names of the classes in order of their indices; sorted by default.
        dim: number of features per instance; by default the most common one.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.save(Path(folder) / "slide_1.npy", np.ones((5, 3)))
    ...     bags = bags_from_folder(folder, {"slide_1": "tumour", "slide_2": "normal"})
    ...     len(bags), bags.classes, bags[0].x.shape, bags.usable().names
    (2, ('normal', 'tumour'), torch.Size([5, 3]), ('slide_1',))
    """
    folder = _below(Path(folder), ".")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"expected a folder with one file per bag, got {folder}, which is not a folder"
        )
    if isinstance(manifest, Mapping):
        source, labels = "the manifest", [(str(name), label_name(value)) for name, value in manifest.items()]
    else:
        header, rows = read_table(Path(manifest), [bag, label])
        source = str(manifest)
        labels = [(row[header.index(bag)], label_name(row[header.index(label)])) for _, row in rows]
    files = _files(folder, [name for name, _ in labels])
    mentions = _mentions(folder, files, labels)
    entries = [_entry(path, mention, source) for path, mention in mentions.items()]
    if any(entry.label is not None and entry.content.suffix.lower() in (".h5", ".hdf5") for entry in entries):
        import_h5py("HDF5 files")  # report once, not for each bag, that it is missing
    mentioned = {path for mention in mentions.values() for path in mention.files}
    for path in files:
        if path not in mentioned:
            name = path.relative_to(folder) if path.is_relative_to(folder) else path
            fault = f"{path}: expected a label in {source}, got none"
            entries.append(BagEntry(name.as_posix(), str(path), None, path, fault))
    return collect(folder.resolve().name, entries, _Files, classes, dim)


@dataclass
class _Mention:
    """A bag in the manifest: its name, the files that match it, and all labels given for it."""

    name: str
    files: list[Path]
    labels: list[str | None] = field(default_factory=list)


def _mentions(folder: Path, files: list[Path], labels: list[tuple[str, str | None]]) -> dict[Path, _Mention]:
    """The bags in the manifest by file, or by expected path if no or several files match."""
    exact = set(files)
    without_suffix: dict[Path, list[Path]] = {}
    for path in files:
        without_suffix.setdefault(path.with_suffix(""), []).append(path)
    mentions: dict[Path, _Mention] = {}
    for name, label in labels:
        path = _below(folder, name)
        candidates = [path] if path in exact else without_suffix.get(path, [])
        path = candidates[0] if len(candidates) == 1 else path
        mentions.setdefault(path, _Mention(name, candidates)).labels.append(label)
    return mentions


def _entry(path: Path, mention: _Mention, source: str) -> BagEntry:
    label, *others = dict.fromkeys(mention.labels)
    fault = ""
    if others:
        got = " and ".join(repr(shortened(one)) for one in (label, *others))
        label, fault = None, f"{path}: expected one label in {source}, got {got}"
    elif label is None:
        fault = f"{path}: expected a label in {source}, got none"
    elif not mention.files:
        fault = f"{path}: expected a file of this name, with or without {', '.join(_FORMATS)}, got none"
    elif len(mention.files) > 1:
        fault = f"{path}: expected one file of this name, got {', '.join(p.name for p in mention.files)}"
    return BagEntry(mention.name, str(path), label, path, fault)


def _files(folder: Path, names: Iterable[str]) -> list[Path]:
    """The files with bags in alphabetical order, without hidden files."""
    folders = dict.fromkeys([folder, *(_below(folder, name).parent for name in names)])
    return [
        path
        for place in folders
        if place.is_dir()
        for path in sorted(place.iterdir())
        if path.suffix.lower() in _FORMATS and not path.name.startswith(".")
    ]


def _below(folder: Path, name: str) -> Path:
    return Path(os.path.normpath(folder / name))  # one path per file


def _read_hdf5(path: Path) -> dict[str, Any]:
    with import_h5py("HDF5 files").File(path, "r") as file:
        return {name: check_dataset(file, name)[()] if name in _PARTS else None for name in file}


def _read_npy(path: Path) -> dict[str, Any]:
    return {"features": read_npy(path)}


def _read_npz(path: Path) -> dict[str, Any]:
    return read_npz(path, _PARTS)


def _read_torch(path: Path) -> dict[str, Any]:
    content = read_tensors(path)
    if isinstance(content, Tensor):
        return {"features": content}
    return {str(name): content[name] for name in content} if isinstance(content, dict) else {}


_PARTS = ("features", "coords")
_FORMATS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
}


@dataclass(frozen=True, eq=False)
class _Files:
    """Reads bags from files."""

    paths: tuple[Path, ...]

    def __call__(self, i: int) -> tuple[Any, Any]:
        path = self.paths[i]
        if not path.is_file():
            raise ValueError("expected a file, but it no longer exists")
        try:
            parts = _FORMATS[path.suffix.lower()](path)
        except Exception as error:  # damaged files can raise anything
            reason = f"expected a readable {path.suffix} file, got an error: {error_summary(error)}"
            raise ValueError(reason) from error
        if parts.get("features") is None:
            raise ValueError(f"expected an array 'features', got {few(sorted(parts)) or 'no arrays'}")
        return _without_first_axis(parts["features"]), _without_first_axis(parts.get("coords"))


def _without_first_axis(array: Any) -> Any:
    is_array = isinstance(array, Tensor | np.ndarray)
    return array[0] if is_array and array.ndim == 3 and array.shape[0] == 1 else array
