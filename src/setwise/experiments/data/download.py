"""Fetching public files, and making sure that they are the ones meant."""

import hashlib
import urllib.request
from pathlib import Path

from setwise._files import write_atomically

LARGEST = 1 << 30  # bytes
_PIECE = 1 << 20


def download(address: str, path: Path, *, md5: str) -> Path:
    """Fetch a file unless it is there already; nothing is kept that has not the right checksum.

    Args:
        address: where the file is public.
        path: where to put it.
        md5: the checksum that its publishers or common libraries give for it.
    """
    if path.exists():
        return path
    digest, pieces, size = hashlib.md5(usedforsecurity=False), [], 0
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            while piece := answer.read(_PIECE):
                size += len(piece)
                if size > LARGEST:
                    raise ValueError(f"{address} is larger than {LARGEST} bytes: not the file meant")
                digest.update(piece)
                pieces.append(piece)
    except OSError as error:
        raise ConnectionError(
            f"cannot download {address} ({error}): fetch it by other means and put it at {path}"
        ) from error
    if digest.hexdigest() != md5:
        raise ValueError(
            f"{address} is not the file meant: expected the checksum {md5}, got {digest.hexdigest()}"
        )
    write_atomically(path, b"".join(pieces))
    return path
