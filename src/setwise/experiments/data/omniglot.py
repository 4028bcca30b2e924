"""Omniglot: 1,623 characters of 50 alphabets, each drawn by twenty people; reader of the public archives."""

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
from setwise.experiments.data.characters import DRAWINGS, SIDE, Characters, synthetic_characters
from setwise.experiments.data.download import download
from setwise.experiments.data.folders import cache_folder, data_folder
from setwise.io.arrays import read_npz

PARTS = {"images_background": (30, 964), "images_evaluation": (20, 659)}  # alphabets, characters
ADDRESS = "https://github.com/brendenlake/omniglot (folder python)"
FILES = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
CHECKSUMS = {
    "images_background": "68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation": "6b91aef0f799c5bb55b94e3f2daec811",
}

_PNG = re.compile(r"(?P<part>\w+)/(?P<label>\w[^/\\]*/character\d\d)/\d{4}_(?P<drawing>\d\d)\.png")
_PNG_END = b"IEND\xaeB`\x82"
_MAX_FILE_BYTES = 1 << 16  # Omniglot's drawings have a few hundred
_CACHE_FORMAT = 1  # increment when the meaning of the cached arrays changes


def load_characters(folder: Path | None = None) -> Characters:
    """Load Omniglot if available, else the synthetic stand-in; ``name`` says which.

    Args:
        folder: folder of Omniglot's archives; by default ``omniglot`` in the data folder.
    """
    folder = _omniglot_folder(folder)
    # An incomplete Omniglot must raise an error instead of selecting the stand-in.
    if any(path.exists() for part in PARTS for path in _candidates(folder, part)):
        return load_omniglot(folder)
    return synthetic_characters()


def load_omniglot(folder: Path | None = None) -> Characters:
    """Load Omniglot's 1,623 characters of 50 alphabets, twenty drawings each, and check completeness.

    Each half may be a public archive, ``images_background.zip`` or ``images_evaluation.zip``, or the folder
    extracted from it. Decoded drawings are cached in the user's cache folder and reused until the size or
    modification time of a file changes.

    Args:
        folder: folder of the archives; by default ``omniglot`` in the data folder.
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
        warnings.warn(
            f"cannot write the cache {cached} ({error}): Omniglot will be decoded on each load", stacklevel=2
        )
    return omniglot


def download_omniglot(folder: Path | None = None) -> list[Path]:
    """Download the two public archives, 14 MB, unless they exist, and verify their checksums.

    Args:
        folder: target folder; by default ``omniglot`` in the data folder.
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
        f"{part}.zip is missing in {folder}: run 'setwise download omniglot', or copy the archive, or the "
        f"folder {part} extracted from it, from {ADDRESS}; set SETWISE_DATA to use another data folder"
    )


def _decode(sources: dict[str, Path]) -> Characters:
    halves = [_read_part(source, part) for part, source in sources.items()]
    labels = tuple(label for names, _ in halves for label in names)
    return Characters("omniglot", np.concatenate([bits for _, bits in halves]), labels)


def _read_part(source: Path, part: str) -> tuple[list[str], UInt8[np.ndarray, "characters drawings bytes"]]:
    """Labels and packed drawings of one half of Omniglot, in alphabetical order."""
    characters: dict[str, dict[int, np.ndarray]] = {}
    name = "list of files"
    try:
        for name, size, read in _files(source, part):
            match = _PNG.fullmatch(name)
            if match is None or match["part"] != part:
                raise ValueError(f"expected {part}/<alphabet>/character<NN>/<id>_<drawing>.png")
            if size > _MAX_FILE_BYTES:
                raise ValueError(f"expected at most {_MAX_FILE_BYTES} bytes, got {size}")
            drawings = characters.setdefault(match["label"], {})
            if int(match["drawing"]) in drawings:
                raise ValueError("expected one file per drawing, got a second one")
            drawings[int(match["drawing"])] = np.packbits(_ink(read()))
    except ModuleNotFoundError:
        raise
    except Exception as error:  # damaged files can raise any exception
        reason = str(error) or type(error).__name__
        raise ValueError(_damaged_message(source, f"{name}: {reason}")) from error

    labels = sorted(characters)
    counts = len({label.split("/")[0] for label in labels}), len(labels)
    if counts != PARTS[part]:
        expected = "{} alphabets with {} characters".format(*PARTS[part])
        raise ValueError(_damaged_message(source, f"expected {expected}, got {counts[0]} with {counts[1]}"))
    for label in labels:
        if sorted(characters[label]) != list(range(1, DRAWINGS + 1)):
            reason = f"{label}: expected drawings 1 to {DRAWINGS}, got {len(characters[label])} of them"
            raise ValueError(_damaged_message(source, reason))
    return labels, np.stack(
        [np.stack([characters[label][i + 1] for i in range(DRAWINGS)]) for label in labels]
    )


def _damaged_message(source: Path, reason: str) -> str:
    reason = shortened(reason, 300)
    return f"{source} is damaged or not part of Omniglot ({reason}): replace it by the one from {ADDRESS}"


def _files(source: Path, part: str) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size and content of the images in an archive or folder; archives are not extracted to disk."""
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
    """Whether a file is an image; hidden files such as the Finder's ``._x.png`` are skipped."""
    return name.endswith(".png") and not name.rpartition("/")[2].startswith(".")


def _ink(data: bytes) -> Bool[np.ndarray, "side side"]:
    """Dark pixels of a PNG image."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ModuleNotFoundError("reading Omniglot requires Pillow: pip install 'setwise[data]'") from error

    if not data.endswith(_PNG_END):  # Pillow does not always detect truncation
        raise ValueError("expected a complete PNG file, got a truncated one")
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        if image.size != (SIDE, SIDE):  # checked before decoding
            raise ValueError(f"expected {SIDE} × {SIDE} pixels, got {image.width} × {image.height}")
        return np.asarray(image.convert("L")) < 128


def _key(sources: dict[str, Path]) -> str:
    """Cache key that depends on the name, size and modification time of each file."""
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
    except Exception:  # missing or damaged in any way: the cache is rebuilt
        return None


def _write_cache(path: Path, key: str, omniglot: Characters) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, key=np.array(key), labels=np.array(omniglot.labels), bits=omniglot.bits)
    write_atomically(path, buffer.getvalue())
