"""Omniglot: 1,623 characters of 50 alphabets, each drawn by twenty people, read from its public archives."""

import hashlib
import io
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8

from setwise._files import write_atomically
from setwise._text import shortened
from setwise.experiments.data.characters import DRAWINGS, SIDE, Characters, drawn_strokes
from setwise.experiments.data.download import download
from setwise.experiments.data.folders import cache_folder, data_folder
from setwise.io.arrays import read_npz

PARTS = {"images_background": (30, 964), "images_evaluation": (20, 659)}  # alphabets and characters in each
ADDRESS = "https://github.com/brendenlake/omniglot (folder python)"
FILES = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
CHECKSUMS = {
    "images_background": "68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation": "6b91aef0f799c5bb55b94e3f2daec811",
}

_PNG = re.compile(r"(?P<part>\w+)/(?P<label>\w[^/\\]*/character\d\d)/\d{4}_(?P<drawing>\d\d)\.png")
_PNG_END = b"IEND\xaeB`\x82"
_LARGEST_FILE = 1 << 16  # bytes; Omniglot's drawings have some hundred
_CACHE_FORMAT = 1  # raise it when the cached arrays change their meaning


def load_characters(folder: Path | None = None) -> Characters:
    """Omniglot where it is at hand, and else the stand-in; ``name`` tells which.

    Args:
        folder: where Omniglot's archives are; ``omniglot`` in the data folder unless given.
    """
    found = _omniglot_folder(folder)
    # Half of Omniglot is a mistake to be told of, not a reason to take something else.
    if any(path.exists() for part in PARTS for path in _candidates(found, part)):
        return load_omniglot(found)
    return drawn_strokes()


def load_omniglot(folder: Path | None = None) -> Characters:
    """Omniglot's 1,623 characters of 50 alphabets, twenty drawings each, checked for completeness.

    Either half may be the public archive, ``images_background.zip`` and ``images_evaluation.zip``, or the
    folder that it holds. The drawings are decoded once; later calls read them from the user's cache
    folder, as long as size and time of the files stay the same.

    Args:
        folder: where the archives are; ``omniglot`` in the data folder unless given.
    """
    folder = _omniglot_folder(folder)
    sources = {part: _source(folder, part) for part in PARTS}
    key = _key(sources)
    cached = cache_folder() / "packed" / "omniglot.npz"
    if (omniglot := _read_cache(cached, key)) is not None:
        return omniglot
    omniglot = _decode(sources)
    try:
        _write_cache(cached, key, omniglot)
    except OSError as error:
        warnings.warn(f"Omniglot will be decoded anew each time, as {cached} fails: {error}", stacklevel=2)
    return omniglot


def download_omniglot(folder: Path | None = None) -> list[Path]:
    """Fetch the two public archives, 14 MB, unless they are there; their checksums are verified.

    Args:
        folder: where to put them; ``omniglot`` in the data folder unless given.
    """
    folder = _omniglot_folder(folder)
    return [
        download(f"{FILES}/{part}.zip", folder / f"{part}.zip", md5=md5) for part, md5 in CHECKSUMS.items()
    ]


def _omniglot_folder(folder: Path | None) -> Path:
    return data_folder() / "omniglot" if folder is None else Path(folder)


def _candidates(folder: Path, part: str) -> tuple[Path, Path]:
    return folder / f"{part}.zip", folder / part


def _source(folder: Path, part: str) -> Path:
    for path in _candidates(folder, part):
        if path.exists():
            return path
    raise FileNotFoundError(
        f"{part}.zip is missing: put it, or the folder {part} that it holds, into {folder} "
        f"(set SETWISE_DATA for another data folder); it is public at {ADDRESS}, "
        "and 'setwise download omniglot' fetches it"
    )


def _decode(sources: dict[str, Path]) -> Characters:
    halves = [_read_part(source, part) for part, source in sources.items()]
    labels = tuple(label for names, _ in halves for label in names)
    return Characters("omniglot", np.concatenate([bits for _, bits in halves]), labels)


def _read_part(source: Path, part: str) -> tuple[list[str], UInt8[np.ndarray, "characters drawings bytes"]]:
    """The labels and packed drawings of one half of Omniglot, in alphabetical order."""
    found: dict[str, dict[int, np.ndarray]] = {}
    name = "the list of files"
    try:
        for name, size, read in _files(source, part):
            match = _PNG.fullmatch(name)
            if match is None or match["part"] != part:
                raise ValueError(f"expected {part}/<alphabet>/character<NN>/<id>_<drawing>.png")
            if size > _LARGEST_FILE:
                raise ValueError(f"expected at most {_LARGEST_FILE} bytes, got {size}")
            drawings = found.setdefault(match["label"], {})
            if int(match["drawing"]) in drawings:
                raise ValueError("expected one file for each drawing, got a second one")
            drawings[int(match["drawing"])] = np.packbits(_ink(read()))
    except ModuleNotFoundError:
        raise
    except Exception as error:  # reading damaged bytes may fail in any way there is
        reason = str(error) or type(error).__name__
        raise ValueError(_unusable(source, f"{name}: {reason}")) from error

    labels = sorted(found)
    counts = len({label.split("/")[0] for label in labels}), len(labels)
    if counts != PARTS[part]:
        expected = "{} alphabets with {} characters".format(*PARTS[part])
        raise ValueError(_unusable(source, f"expected {expected}, got {counts[0]} with {counts[1]}"))
    for label in labels:
        if sorted(found[label]) != list(range(1, DRAWINGS + 1)):
            there = f"expected drawings 1 to {DRAWINGS}, got {len(found[label])} of them"
            raise ValueError(_unusable(source, f"{label}: {there}"))
    return labels, np.stack([np.stack([found[label][i + 1] for i in range(DRAWINGS)]) for label in labels])


def _unusable(source: Path, reason: str) -> str:
    reason = shortened(reason, 300)
    return f"{source} is damaged or not Omniglot's ({reason}): put the public one from {ADDRESS} in its place"


def _files(source: Path, part: str) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size and content of the images in an archive or a folder; nothing is ever unpacked to disk."""
    if source.is_dir():
        for path in _images_below(source):
            yield f"{part}/{path.relative_to(source).as_posix()}", path.stat().st_size, path.read_bytes
        return
    with zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            if _is_image(member.filename):
                yield member.filename, member.file_size, partial(archive.read, member)


def _images_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.png") if _is_image(path.name))


def _is_image(name: str) -> bool:
    """Whether to look at the file: archives and folders gather clutter, such as the Finder's ``._x.png``."""
    return name.endswith(".png") and not name.rpartition("/")[2].startswith(".")


def _ink(data: bytes) -> Bool[np.ndarray, "side side"]:
    """Where a PNG is dark."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ModuleNotFoundError("reading Omniglot needs Pillow: pip install 'setwise[data]'") from error

    if not data.endswith(_PNG_END):  # Pillow may not notice
        raise ValueError("expected a whole PNG, got one without its end")
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        if image.size != (SIDE, SIDE):  # before any pixel is decoded
            raise ValueError(f"expected {SIDE} × {SIDE} pixels, got {image.width} × {image.height}")
        return np.asarray(image.convert("L")) < 128


def _key(sources: dict[str, Path]) -> str:
    """Changes whenever a file does: in its name, its size or its time."""
    digest = hashlib.blake2b(repr((_CACHE_FORMAT, PARTS)).encode(), digest_size=16)
    for part, source in sources.items():
        for path in _images_below(source) if source.is_dir() else [source]:
            status = path.stat()
            name = path.relative_to(source.parent).as_posix()
            digest.update(repr((part, name, status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest()


def _read_cache(path: Path, key: str) -> Characters | None:
    try:
        if str(read_npz(path, ["key"])["key"]) != key:
            return None
        arrays: dict[str, Any] = read_npz(path, ["bits", "labels"])
        return Characters("omniglot", arrays["bits"], tuple(arrays["labels"].tolist()))
    except Exception:  # missing, cut short or overwritten: whatever it is, it can be made again
        return None


def _write_cache(path: Path, key: str, omniglot: Characters) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, key=np.array(key), labels=np.array(omniglot.labels), bits=omniglot.bits)
    write_atomically(path, buffer.getvalue())
