"""Bags from a folder with a file a bag, each read when it is asked for, and a manifest of labels."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from setwise._files import shortened
from setwise.io.arrays import check_dataset, h5py_for, read_npy, read_npz
from setwise.io.bags.dataset import Bags, Found, as_label, collected, few, in_short
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
    """Read bags from files, one a bag, each when it is asked for; nothing in a file is executed.

    Files may be HDF5 (``.h5``, ``.hdf5``) or ``.npz`` with ``features`` and, if known, ``coords``, as
    pathology tools such as CLAM write them, ``.npy``, or ``.pt`` and ``.pth`` with a tensor or a dict of
    tensors with these names. An additional first axis of length one is taken away. A file that claims to
    hold far more than one of its size can is refused before there is memory for it.

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
        dim: how many features an instance has; as many as most bags have unless given.

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
        said, entries = "the manifest", [(str(name), as_label(value)) for name, value in manifest.items()]
    else:
        header, rows = read_table(Path(manifest), [bag, label])
        said = str(manifest)
        entries = [(row[header.index(bag)], as_label(row[header.index(label)])) for _, row in rows]
    files = _files(folder, [name for name, _ in entries])
    mentions = _mentions(folder, files, entries)
    found = [_mentioned(path, mention, said) for path, mention in mentions.items()]
    if any(one.label is not None and one.content.suffix.lower() in (".h5", ".hdf5") for one in found):
        h5py_for("HDF5 files")  # tell now that it is missing rather than bag by bag
    taken = {path for mention in mentions.values() for path in mention.files}
    for path in files:
        if path not in taken:
            shown = path.relative_to(folder) if path.is_relative_to(folder) else path
            fault = f"{path}: expected a label in {said}, got none"
            found.append(Found(shown.as_posix(), str(path), None, path, fault))
    return collected(folder.resolve().name, found, _Files, classes, dim)


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


def _mentioned(path: Path, mention: _Mention, said: str) -> "Found":
    label, *others = dict.fromkeys(mention.labels)
    fault = ""
    if others:
        got = " and ".join(repr(shortened(one)) for one in (label, *others))
        label, fault = None, f"{path}: expected one label in {said}, got {got}"
    elif label is None:
        fault = f"{path}: expected a label in {said}, got none"
    elif not mention.files:
        fault = f"{path}: expected a file of this name, with or without {', '.join(_FORMATS)}, got none"
    elif len(mention.files) > 1:
        fault = f"{path}: expected one file of this name, got {', '.join(p.name for p in mention.files)}"
    return Found(mention.name, str(path), label, path, fault)


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


def _read_hdf5(path: Path) -> dict[str, Any]:
    with h5py_for("HDF5 files").File(path, "r") as file:
        return {name: check_dataset(file, name)[()] if name in _PARTS else None for name in file}


def _read_npy(path: Path) -> dict[str, Any]:
    return {"features": read_npy(path)}


def _read_npz(path: Path) -> dict[str, Any]:
    return read_npz(path, _PARTS)


def _read_torch(path: Path) -> dict[str, Any]:
    found = read_tensors(path)
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
            reason = f"expected a readable {path.suffix} file, got an error: {in_short(error)}"
            raise ValueError(reason) from error
        if found.get("features") is None:
            raise ValueError(
                f"expected features in it, got {few(sorted(found)) if found else 'something else'}"
            )
        return _without_first_axis(found["features"]), _without_first_axis(found.get("coords"))


def _without_first_axis(array: Any) -> Any:
    is_array = isinstance(array, Tensor | np.ndarray)
    return array[0] if is_array and array.ndim == 3 and array.shape[0] == 1 else array
