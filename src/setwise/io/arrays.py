"""Arrays of numpy's and of HDF5's files: no pickles, and no more memory than the file can fill."""

import importlib
import math
import zipfile
import zlib
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from setwise._files import LARGE, most_expanded, refuse_claim

SMALL = 2**20
"""Bytes that an array may claim whatever its file holds: empty arrays have a shape, too."""

_GZIP = 1  # HDF5's numbers of filters
_FILTERS = {_GZIP: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
_GZIP_RATIO = 1032  # bytes that one byte may become


def read_npz(path: Path, wanted: Container[str]) -> dict[str, Shaped[np.ndarray, "..."] | None]:
    """The wanted arrays of an npz file, and None for each of the others.

    Together they may be as large as `setwise._files.LARGE` allows, and none larger than its own part of the
    file, unpacked. Errors do not name the file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.savez(Path(folder, "a.npz"), x=np.eye(2), y=[3])
    ...     read_npz(Path(folder, "a.npz"), ["y"])
    {'x': None, 'y': array([3])}
    """
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        asked = {name: member for name, member in members.items() if name in wanted}
        refuse_claim(sum(member.file_size for member in asked.values()), most_expanded(path.stat().st_size))
        found: dict[str, Any] = dict.fromkeys(members)
        for name, member in asked.items():
            with archive.open(member) as part:
                found[name] = _read_array(part, member.file_size)
        return found


def read_npy(path: Path) -> Shaped[np.ndarray, "..."]:
    """The array of an npy file, if it is no larger than the file. Errors do not name the file."""
    with path.open("rb") as file:
        return _read_array(file, path.stat().st_size)


def _read_array(file: Any, size: int) -> Shaped[np.ndarray, "..."]:
    read = np.lib.format.read_array_header_2_0  # of version 3, too, which differs in the names of fields only
    if np.lib.format.read_magic(file) == (1, 0):
        read = np.lib.format.read_array_header_1_0
    shape, _, dtype = read(file)
    refuse_claim(_bytes(shape, dtype), max(size, SMALL))
    file.seek(0)
    array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _bytes(shape: Sequence[int], dtype: Any) -> int:
    """What an array takes; one that is empty counts as if it were not, as its shape may be huge as well."""
    size: int = max(dtype.itemsize, 1)
    return size * math.prod(max(abs(int(n)), 1) for n in shape)


def h5py_for(what: str) -> Any:
    """The module h5py, if it is there."""
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise ModuleNotFoundError(f"reading {what} needs h5py: pip install 'setwise[data]'") from error


def check_dataset(file: Any, name: str) -> Any:
    """A data set of numbers in an open HDF5 file, checked before any of it is read.

    It must lie in this very file, since links and virtual data sets may lead to any other. What is stored as
    it is can be no larger than the file; what is stored in chunks, as large as `setwise._files.LARGE` allows.
    Chunks may be compressed with gzip or lzf; those that could fill the memory are inflated to their
    size here first, which HDF5 itself does without a limit. Errors do not name the file.
    """
    h5py = h5py_for("HDF5 files")
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"expected {name} in the file itself, got a link to somewhere else")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise TypeError(f"expected {name} to be a data set, got a group or a type")
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"expected {name} in the file itself, got one that is stored in others")
    if dataset.dtype.kind not in "fiub" or dataset.shape is None:
        raise ValueError(f"expected {name} to hold numbers, got {dataset.dtype}")
    size = Path(file.filename).stat().st_size
    most = max(size, SMALL) if dataset.chunks is None else most_expanded(size)
    refuse_claim(_bytes(dataset.shape, dataset.dtype), most)
    if dataset.chunks is not None:
        _check_chunks(dataset, name, size)
    return dataset


def _check_chunks(dataset: Any, name: str, size: int) -> None:
    chunk = _bytes(dataset.chunks, dataset.dtype)
    refuse_claim(chunk, most_expanded(size))
    made = dataset.id.get_create_plist()
    filters = [made.get_filter(i)[0] for i in range(made.get_nfilters())]
    if not set(filters) <= set(_FILTERS) or len(set(filters)) < len(filters):
        known = ", ".join(_FILTERS.values())
        raise ValueError(f"expected {name} with filters {known}, each once at most, got numbers {filters}")
    stored: list[Any] = []
    dataset.id.chunk_iter(stored.append)
    for info in stored:
        refuse_claim(info.size, size)
        if _GZIP in filters and info.size * _GZIP_RATIO > max(chunk, LARGE):
            skipped, packed = dataset.id.read_direct_chunk(info.chunk_offset)
            if skipped >> filters.index(_GZIP) & 1:
                continue
            if len(zlib.decompressobj().decompress(packed, chunk + 5)) > chunk + 4:  # or with a checksum
                raise ValueError(f"expected chunks of {chunk:,} bytes in {name}, got a larger one")
