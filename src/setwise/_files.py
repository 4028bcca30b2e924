"""Writing files so that nobody ever finds half of one, and reading those that others wrote."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

UNFINISHED = ".unfinished"
"""What the name of a file ends with until it is whole."""
LARGE, RATIO = 2**28, 200
"""What a compressed file may hold: 256 MB or, where that is more, 200 times its size.

Numbers that were measured compress by less than that, and a file made to fill the memory by more.
"""
LONGEST_JSON = 2**27
"""Bytes of a JSON file: what is longer was not written here."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same folder, flush to disk, then rename over ``path``.

    Whatever interrupts it, ``path`` holds the old content or the new.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = None
    with named_errors(path):
        try:
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o666 & ~_mask())
            Path(name).replace(path)
            _sync(path.parent)
        except BaseException:
            if name is not None:
                Path(name).unlink(missing_ok=True)
            raise


def _mask() -> int:
    """What files may not be for others, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync(folder: Path) -> None:
    """Let a new name survive a power cut, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append(path: Path, text: str) -> None:
    """Add text to the end of a file."""
    with named_errors(path), path.open("a") as file:
        file.write(text)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Let errors of writing, such as a full disk, name the file that was to be written."""
    try:
        yield
    except OSError as error:
        kept = "; what was there is kept" if path.is_file() else ""
        raise OSError(error.errno, f"{error.strerror or error}{kept}", str(path)) from error


def clear_unfinished(folder: Path) -> None:
    """Remove what `write_atomically` was killed over; nobody else may be at work in the folder."""
    for path in folder.glob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)


def refuse_same(out: Path, *read: Path | None) -> None:
    """Refuse to write over what is being read."""
    for path in read:
        if path is not None and path.exists() and out.exists() and out.samefile(path):
            raise ValueError(f"out must be another file than what is read, got {out} for both")


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Keep a folder to oneself; the lock ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(f"another run is at work in {folder}") from error
        yield


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file of at most `LONGEST_JSON` bytes; damage is reported with the file's name."""
    with path.open("rb") as file:
        data = file.read(LONGEST_JSON + 1)
    try:
        if len(data) > LONGEST_JSON:
            raise ValueError(f"it is longer than {LONGEST_JSON} bytes")
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from error


def most_expanded(stored: int) -> int:
    """How many bytes a compressed file of ``stored`` bytes may hold; see `LARGE`."""
    return max(LARGE, RATIO * stored)


def refuse_claim(claimed: int, most: int) -> None:
    """Refuse what claims to be larger than it can be, before there is memory for it."""
    if claimed > most:
        raise ValueError(f"expected at most {most:,} bytes in a file of its size, got a claim of {claimed:,}")
