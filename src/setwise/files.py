"""Writing files so that nobody ever finds half of one."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

UNFINISHED = ".unfinished"


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same folder, flush to disk, then rename over ``path``.

    Whatever interrupts it, ``path`` holds the old content or the new.
    """
    name = None
    with named_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            if name is not None:
                Path(name).unlink(missing_ok=True)
            raise


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
    """Read a JSON file; damage is reported with the file's name."""
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from error
