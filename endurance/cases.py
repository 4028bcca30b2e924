"""Files made with intent: claims, bombs, names that lead elsewhere, and pickles in disguise."""

import gzip
import importlib
import io
import json
import os
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from endurance.formats import FORMATS
from endurance.mutations import png_chunk
from setwise._files import LARGE

__all__ = ["CASES", "FORMATS"]

Write = Callable[[Path], object]
MANY = 10**12


class Opens:
    """Starts a process when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


def content(data: bytes) -> Write:
    """A file with this content."""
    return lambda path: path.write_bytes(data)


PICKLE = pickle.dumps({"model": Opens(), "features": Opens()}, protocol=2)
DEEP = b"[" * 100_000 + b"]" * 100_000


def zipped(change: Callable[[str, bytes], Mapping[str, bytes]], method: int = zipfile.ZIP_STORED) -> Write:
    """An archive whose members were changed, its checksums right."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w", method, compresslevel=6) as archive:
            for name, data in members.items():
                for other, changed in change(name, data).items():
                    archive.writestr(other, changed)

    return write


def with_member(name: str | zipfile.ZipInfo, data: bytes = b"hello") -> Write:
    """An archive with one more member."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr(name, data)

    return write


def link(name: str) -> zipfile.ZipInfo:
    """A member that is a symbolic link."""
    member = zipfile.ZipInfo(name)
    member.create_system, member.external_attr = 3, 0o120777 << 16
    return member


# What torch.save wrote


def pickled(data: bytes) -> Write:
    """An archive of torch's with another pickle in it."""
    return zipped(lambda name, old: {name: data if name.endswith("data.pkl") else old})


def larger_storage(name: str, data: bytes) -> Mapping[str, bytes]:
    """Storages and tensors claim two thousand million numbers."""
    if not name.endswith("data.pkl"):
        return {name: data}
    many = b"J\xff\xff\xff\x7f"
    data = re.sub(rb"(?<=cpuq.)K.", lambda _: many, data, flags=re.DOTALL)
    return {name: re.sub(rb"K.(?=K\x03\x86)", lambda _: many, data, flags=re.DOTALL)}


def saved(value: Callable[[], Any], **options: Any) -> Write:
    """A file of torch's with a value in it."""
    return lambda path: torch.save(value(), path, **options)


TORCH: dict[str, Write] = {
    "a pickle": content(PICKLE),
    "a pickle that calls, in an archive": pickled(PICKLE),
    "a class, as torch saves it": saved(lambda: {"model": Opens(), "features": Opens()}),
    "a bytearray that claims much": pickled(b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\0\0\0\0\x02\x85R."),
    "a tensor that claims much": pickled(b"\x80\x02ctorch\nFloatTensor\n\x8a\x05\0\0\0\0\x02\x85R."),
    "a storage that claims much": zipped(larger_storage),
    "one number as many": saved(
        lambda: {"model": torch.zeros(1).expand(MANY), "features": torch.zeros(1, 1).expand(MANY, 1)}
    ),
    "as torch wrote before 1.6": saved(
        lambda: {"model": {}, "features": torch.ones(2, 3)}, _use_new_zipfile_serialization=False
    ),
    "compressed": zipped(lambda name, data: {name: data}, zipfile.ZIP_DEFLATED),
    "a bomb": with_member("archive/data/99", bytes(2**27)),
    "an archive of something else": zipped(lambda name, data: {f"{name}.txt": data}),
    "no dict": saved(lambda: [1, 2]),
    "nothing": content(b""),
    "nested deeply": pickled(b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b"."),
    "TorchScript": with_member("archive/constants.pkl", b"\x80\x02]."),
}


# Arrays


def npy(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """An array of which there is but the header."""
    buffer = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


def object_array() -> bytes:
    """An array that numpy keeps as a pickle."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([Opens()], object), allow_pickle=True)
    return buffer.getvalue()


ARRAY: dict[str, bytes] = {
    "a claim": npy((MANY, 3)),
    "a claim of a gigabyte": npy((2**28, 1)),
    "a claim of a long text": npy((2,), f"<U{2**28}"),
    "a claim of nothing, many times": npy((MANY, 0)),
    "a claim of empty texts": npy((MANY,), "<U0"),
    "a claim beyond all": npy((2**62, 2**62)),
    "a negative claim": npy((-MANY, -3)),
    "objects": object_array(),
    "a pickle": PICKLE,
    "a header of brackets": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000,
    "a header that claims much": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
    "nothing": b"",
}
NPY = {case: content(data) for case, data in ARRAY.items()}


def members(data: bytes) -> Write:
    """An npz file whose every array is this."""
    return zipped(lambda name, old: {name: data})


NPZ: dict[str, Write] = {case: members(data) for case, data in ARRAY.items()} | {
    "a bomb": zipped(lambda name, data: {name: npy((LARGE // 4, 1)) + bytes(LARGE)}, zipfile.ZIP_DEFLATED),
    "names that lead elsewhere": zipped(lambda name, data: {f"../../{name}": data}),
    "names of the system": zipped(lambda name, data: {f"/tmp/{name}": data}),
    "a pickle for an archive": content(PICKLE),
    "the directory claims much": lambda path: path.write_bytes(_claimed_sizes(path.read_bytes())),
}


def _claimed_sizes(data: bytes) -> bytes:
    """An archive whose directory says that each member unpacks to four gigabytes."""
    place = data.find(b"PK\x01\x02")
    while place >= 0:
        data = data[: place + 24] + b"\xfe\xff\xff\xff" + data[place + 28 :]
        place = data.find(b"PK\x01\x02", place + 4)
    return data


# HDF5


def hdf5(*names: str, make: Callable[[Any, str], object]) -> Write:
    """An HDF5 file in which each of the names was made anew."""

    def write(path: Path) -> None:
        with importlib.import_module("h5py").File(path, "r+") as file:
            for name in names:
                del file[name]
                make(file, name)

    return write


def larger_chunk(file: Any, name: str) -> None:
    """A chunk of some bytes that was inflated to half a gigabyte."""
    dataset = file.create_dataset(name, (4, 4, 3), "f4", chunks=(4, 4, 3), compression="gzip")
    dataset.id.write_direct_chunk((0, 0, 0), zlib.compress(bytes(2 * LARGE), 1))


def virtual(file: Any, name: str) -> None:
    h5py = importlib.import_module("h5py")
    layout = h5py.VirtualLayout((4, 4, 3), "f4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "data", (4, 4, 3))
    file.create_virtual_dataset(name, layout)


def outside(file: Any, name: str) -> None:
    file.create_dataset(name, (2, 3), "u1", external=[("/etc/hostname", 0, 6)])


def hdf5_cases(name: str) -> dict[str, Write]:
    """Hostile HDF5 files whose data set of this name is not what it should be."""
    h5py = importlib.import_module("h5py")
    makers: dict[str, Callable[[Any, str], object]] = {
        "a claim": lambda file, at: file.create_dataset(at, (MANY, 4, 3), "f4", chunks=(1, 4, 3)),
        "a claim in one piece": lambda file, at: file.create_dataset(at, (MANY, 4, 3), "f4"),
        "a claim, compressed": lambda file, at: file.create_dataset(
            at, (MANY, 4, 3), "f4", chunks=(2**20, 4, 3), compression="gzip"
        ),
        "a chunk that is a bomb": larger_chunk,
        "a virtual data set": virtual,
        "stored in another file": outside,
        "a link to another file": lambda file, at: file.__setitem__(
            at, h5py.ExternalLink("/etc/hostname", "data")
        ),
        "a link to itself": lambda file, at: file.__setitem__(at, h5py.SoftLink(f"/{at}")),
        "a group": lambda file, at: file.create_group(at),
        "texts": lambda file, at: file.create_dataset(at, data=["a" * 1000] * 4),
        "nothing": lambda file, at: file.create_dataset(at, data=h5py.Empty("f4")),
        "an unusual filter": lambda file, at: file.create_dataset(
            at, data=np.zeros((4, 4, 3), "i4"), chunks=(4, 4, 3), scaleoffset=1
        ),
    }
    return {case: hdf5(name, make=make) for case, make in makers.items()} | {
        "a pickle": content(PICKLE),
        "an empty file": content(b""),
    }


# Tables and texts


def repeated(path: Path) -> None:
    """A long text that is stored once and stands in many rows."""
    arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    text = arrow.array(["x" * 20_000] * 5_000)
    part = arrow.table({"set": text, "label": np.zeros(5_000), "size": np.zeros(5_000)})
    with parquet.ParquetWriter(path, part.schema) as writer:
        for _ in range(8):
            writer.write_table(part)


CSV: dict[str, Write] = {
    "not UTF-8": content(b"set,label,size\n\xff\xfe,1,2\n"),
    "a zero byte": content(b"set,label,size\na\0b,1,\0\n"),
    "a pickle": content(PICKLE),
    "an endless cell": content(b"set,label,size\na,1," + b"9" * 300_000 + b"\n"),
    "one name for many columns": content(b"set,label" + b",a" * 2_000 + b"\na,1" + b",1" * 2_000 + b"\n"),
    "a quote that never ends": content(b'set,label,size\n"a,1,2\n' + b"a,1,2\n" * 1000),
    "words for numbers": content(b"set,label,size\na,1,__import__('os').system('touch owned')\n"),
    "infinite": content(b"set,label,size\na,1,1e999\n"),
    "only names": content(b"set,label,size\n"),
    "nothing": content(b""),
    "names in several lines": content(b'"a\nb","c\nd"\n1,2\n'),
}
JSON: dict[str, Write] = {
    "nested deeply": content(DEEP),
    "an endless number": content(b'{"seed": ' + b"9" * 5000 + b"}"),
    "not UTF-8": content(b'{"seed": "\xff"}'),
    "a pickle": content(PICKLE),
    "nothing": content(b""),
    "cut off": content(b'{"seed": 1, "row": "dee'),
}


# Images and meshes


def png(width: int, height: int, *chunks: bytes) -> bytes:
    """A PNG that claims so many pixels."""
    start = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + b"".join(chunks) + png_chunk(b"IEND", b"")


PIXELS = png_chunk(b"IDAT", zlib.compress(bytes(2**20)))
TEXT = png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**27), 1))
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n(owned) (w) file\nshowpage\n"
IMAGES: dict[str, Write] = {
    "a claim": content(png(2**31 - 1, 2**31 - 1, PIXELS)),
    "as many pixels as pillow allows": content(png(13_000, 13_000, PIXELS)),
    "as many pixels as pillow does not warn of": content(png(9_400, 9_500, PIXELS)),
    "a text that is a bomb": content(png(64, 64, TEXT, PIXELS)),
    "a program in PostScript": content(POSTSCRIPT),
    "no pixels": content(png(0, 0)),
    "a pickle": content(PICKLE),
    "nothing": content(b""),
}
OFF: dict[str, Write] = {
    "a claim of vertices": content(b"OFF\n1000000000000 12 0\n0 0 0\n"),
    "a claim of faces": content(b"OFF\n3 1000000000000 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"),
    "a claim of corners": content(b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n1000000000000 0 1 2\n"),
    "an endless number": content(b"OFF\n" + b"9" * 10**6 + b" 1 0\n"),
    "corners that are not there": content(b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 -7\n"),
    "infinite": content(b"OFF\n3 1 0\n0 0 0\n1e999 0 0\n0 1 0\n3 0 1 2\n"),
    "a pickle": content(PICKLE),
    "nothing": content(b""),
}
PNG_BOMB = png(105, 105, png_chunk(b"IDAT", zlib.compress(bytes(2**20), 1)))
OMNIGLOT: dict[str, Write] = {
    "a name that leads elsewhere": with_member("../../x.png"),
    "a name of the system": with_member("/tmp/x.png"),
    "a name that leads elsewhere from within": with_member(
        "images_background/../../character02/0001_01.png", b"x"
    ),
    "a symbolic link": with_member(link("images_background/Latin/character01/0002_01.png"), b"/etc/passwd"),
    "a bomb": with_member("images_background/Latin/character02/0001_01.png", bytes(2**26)),
    "an image that is a bomb": with_member("images_background/Latin/character02/0001_01.png", PNG_BOMB),
    "the directory claims much": lambda path: path.write_bytes(_claimed_sizes(path.read_bytes())),
    "a pickle": content(PICKLE),
    "nothing": content(b""),
}


# Models


def safetensors(header: Mapping[str, Any], length: int | None = None) -> bytes:
    """A file of such a header, or one that claims another length."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def described(**params: Any) -> Write:
    """A model whose description says other things than its numbers, its checksum right."""

    def write(path: Path) -> None:
        from setwise.estimators.model_file import read_model, write_model

        state, description = read_model(path)
        description["params"] |= params.pop("params", {})
        write_model(path, state, description | params)

    return write


MODEL: dict[str, Write] = {
    "a pickle": content(PICKLE),
    "a checkpoint": saved(lambda: {"model": {}}),
    "a header that claims much": content(safetensors({}, 2**63)),
    "a header that claims much, but not too much": content(safetensors({}, 90_000_000)),
    "a tensor that claims much": content(
        safetensors({"a": {"dtype": "F32", "shape": [MANY], "data_offsets": [0, 4 * MANY]}})
    ),
    "a wide network": described(params={"layers": [2**20, 2**20]}),
    "a deep network": described(params={"depth": 10**9}),
    "many features": described(in_dim=MANY, n_features_in=MANY),
    "many outputs": described(out_dim=MANY),
    "another class": described(estimator="os.system"),
    "a network with other parts": described(params={"graph": "__import__('os')"}),
    "nothing": content(b""),
}

CASES: dict[str, dict[str, Write]] = {
    "checkpoint": TORCH,
    "torch bag": TORCH,
    "model": MODEL,
    "npz sets": NPZ,
    "npz bags": NPZ,
    "npz bag": NPZ,
    "npy bag": NPY,
    "hdf5 bag": hdf5_cases("features"),
    "hdf5 point clouds": hdf5_cases("data"),
    "csv sets": CSV,
    "csv bags": CSV,
    "manifest": {case: write for case, write in CSV.items() if case not in ("words for numbers", "infinite")},
    "csv.gz sets": {
        "a bomb": lambda path: path.write_bytes(
            gzip.compress(b"set,label,size\n" + b"a,1,1\n" * (2 * LARGE // 6), 1)
        ),
        "one line that is a bomb": lambda path: path.write_bytes(gzip.compress(bytes(2 * LARGE), 1)),
        "a pickle": content(PICKLE),
    },
    "parquet sets": {"a text in many rows": repeated, "a pickle": content(PICKLE), "nothing": content(b"")},
    "png": IMAGES,
    "off": OFF,
    "omniglot zip": OMNIGLOT,
    "json": JSON,
    "result.json": JSON,
    "config.json": JSON,
    "folds.json": JSON | {"other things": content(b'{"config": [], "folds": 3}')},
}
