"""Download public files and verify their checksums."""

import hashlib
import urllib.request
from pathlib import Path

from setwise._files import write_atomically

MAX_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20


def download(address: str, path: Path, *, md5: str, max_bytes: int = MAX_BYTES) -> Path:
    """Download a file unless it exists; a file with the wrong checksum is not kept.

    Args:
        address: URL of the file.
        path: where to save it.
        md5: expected checksum.
        max_bytes: maximum size of the file.
    """
    if path.exists():
        return path
    digest, chunks, size = hashlib.md5(usedforsecurity=False), [], 0
    try:
        with urllib.request.urlopen(address, timeout=60) as response:
            while chunk := response.read(_CHUNK_BYTES):
                size += len(chunk)
                if size > max_bytes:
                    raise ValueError(f"{address} is not the expected file: larger than {max_bytes} bytes")
                digest.update(chunk)
                chunks.append(chunk)
    except OSError as error:
        raise ConnectionError(
            f"cannot download {address} ({error}): download it manually and save it as {path}"
        ) from error
    if digest.hexdigest() != md5:
        raise ValueError(
            f"{address} is not the expected file: expected MD5 checksum {md5}, got {digest.hexdigest()}"
        )
    write_atomically(path, b"".join(chunks))
    return path
