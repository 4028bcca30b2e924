"""Safe reading of arrays from npy, npz and HDF5 files: no pickles, no declared size beyond the file's."""

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
"""Declared size in bytes that is always accepted, e.g. for empty arrays."""

_GZIP = 1  # filter IDs of HDF5
_FILTERS = {_GZIP: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
_GZIP_RATIO = 1032  # maximum compression ratio


def read_npz(path: Path, names: Container[str]) -> dict[str, Shaped[np.ndarray, "..."] | None]:
    """Read the requested arrays of an npz file; the value of all others is None.

    Their total size is limited, see `setwise._files.LARGE`. Error messages do not contain the path.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.savez(Path(folder, "a.npz"), x=np.eye(2), y=[3])
    ...     read_npz(Path(folder, "a.npz"), ["y"])
    {'x': None, 'y': array([3])}
    """
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        requested = {name: member for name, member in members.items() if name in names}
        size = sum(member.file_size for member in requested.values())
        refuse_claim(size, most_expanded(path.stat().st_size))
        arrays: dict[str, Any] = dict.fromkeys(members)
        for name, member in requested.items():
            with archive.open(member) as part:
                arrays[name] = _read_array(part, member.file_size)
        return arrays


def read_npy(path: Path) -> Shaped[np.ndarray, "..."]:
    """Read an npy file. Its declared size must not exceed its file size. Errors do not contain the path."""
    with path.open("rb") as file:
        return _read_array(file, path.stat().st_size)


def _read_array(file: Any, size: int) -> Shaped[np.ndarray, "..."]:
    read = np.lib.format.read_array_header_2_0  # also reads version 3
    if np.lib.format.read_magic(file) == (1, 0):
        read = np.lib.format.read_array_header_1_0
    shape, _, dtype = read(file)
    refuse_claim(_bytes(shape, dtype), max(size, SMALL))
    file.seek(0)
    array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _bytes(shape: Sequence[int], dtype: Any) -> int:
    """Declared size of an array; axes of length 0 count as 1, because the others may still be huge."""
    size: int = max(dtype.itemsize, 1)
    return size * math.prod(max(abs(int(n)), 1) for n in shape)


def import_h5py(what: str) -> Any:
    """Import h5py."""
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise ModuleNotFoundError(f"reading {what} needs h5py: pip install 'setwise[data]'") from error


def check_dataset(file: Any, name: str) -> Any:
    """Check a numeric data set of an open HDF5 file before it is read.

    It must be stored in this file, because links and virtual data sets can refer to any other file. A
    contiguous data set must not be larger than the file; the size of a chunked one is limited, see
    `setwise._files.LARGE`. Chunks may be compressed with gzip or lzf. HDF5 decompresses gzip chunks without
    a size limit, so chunks that could exhaust the memory are tested here first. Error messages do not contain
    the path.
    """
    h5py = import_h5py("HDF5 files")
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"expected {name} in the file itself, got a link")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise TypeError(f"expected {name} to be a data set, got {type(dataset).__name__}")
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"expected {name} in the file itself, got a data set that is stored in other files")
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
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    if not set(filters) <= set(_FILTERS) or len(set(filters)) < len(filters):
        known = ", ".join(_FILTERS.values())
        raise ValueError(f"expected {name} with filters among {known}, each at most once, got IDs {filters}")
    stored: list[Any] = []
    dataset.id.chunk_iter(stored.append)
    for info in stored:
        refuse_claim(info.size, size)
        if _GZIP in filters and info.size * _GZIP_RATIO > max(chunk, LARGE):
            skipped, packed = dataset.id.read_direct_chunk(info.chunk_offset)
            if skipped >> filters.index(_GZIP) & 1:
                continue
            if len(zlib.decompressobj().decompress(packed, chunk + 5)) > chunk + 4:  # 4 bytes of checksum
                raise ValueError(f"expected chunks of {chunk:,} bytes in {name}, got a larger one")
