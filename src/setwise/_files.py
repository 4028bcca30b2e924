"""Atomic writes, locks, and bounded reads of files from elsewhere."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

if sys.platform == "win32":
    import msvcrt
else:
    try:
        import fcntl
    except ImportError:  # a platform without file locks
        fcntl = None  # type: ignore[assignment]

UNFINISHED = ".unfinished"
"""Suffix of temporary files."""
LARGE, RATIO = 2**28, 200
"""Limit on the content of a compressed file: 256 MB or 200 times its size, whichever is larger.

Measured data compress by less than that; files made to exhaust the memory compress by more.
"""
LONGEST_JSON = 2**27
"""Largest JSON file to read, in bytes."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same folder, flush to disk, then rename over ``path``.

    If it is interrupted, ``path`` holds the old content or the new, never a part.
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
    """Return the umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync(folder: Path) -> None:
    """Flush a folder to disk, so that a new name survives a power cut, if the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append(path: Path, text: str) -> None:
    """Append text to a file."""
    with named_errors(path), path.open("a") as file:
        file.write(text)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Add the file name to errors of writing, such as a full disk."""
    try:
        yield
    except OSError as error:
        note = "; the previous file is unchanged" if path.is_file() else ""
        raise OSError(error.errno, f"{error.strerror or error}{note}", str(path)) from error


def clear_unfinished(folder: Path) -> None:
    """Delete temporary files of interrupted writes; no other process may use the folder."""
    for path in folder.glob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)


def refuse_same(out: Path, *read: Path | None) -> None:
    """Raise an error if the output file is one of the input files."""
    for path in read:
        if path is not None and path.exists() and out.exists() and out.samefile(path):
            raise ValueError(f"out must differ from the input file, got {out} for both")


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Lock a folder; the system releases the lock when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        try:
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            raise BlockingIOError(f"{folder} is in use by another process") from error
        yield


def _lock(file: IO[str]) -> None:
    """Take an exclusive lock without waiting; on platforms without file locks do nothing."""
    if sys.platform == "win32":
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    elif fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file of at most `LONGEST_JSON` bytes; errors name the file."""
    with path.open("rb") as file:
        data = file.read(LONGEST_JSON + 1)
    try:
        if len(data) > LONGEST_JSON:
            raise ValueError(f"expected at most {LONGEST_JSON} bytes")
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from error


def most_expanded(stored: int) -> int:
    """Return the largest allowed content of a compressed file of ``stored`` bytes; see `LARGE`."""
    return max(LARGE, RATIO * stored)


def refuse_claim(claimed: int, most: int) -> None:
    """Raise an error if a file claims to contain more than ``most`` bytes, before memory is allocated."""
    if claimed > most:
        raise ValueError(f"expected at most {most:,} bytes in a file of this size, got {claimed:,}")
