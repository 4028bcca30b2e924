"""Allocator settings of the command line's own process."""

import ctypes
import os

LARGEST = 128 * 2**20
"""Size in bytes of the largest block to keep; keeping larger ones would leave holes in the heap."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # from malloc.h


def keep_freed_memory() -> bool:
    """Keep freed heap blocks for reuse, in the whole process; return whether the C library supports it.

    By default, glibc returns blocks above 32 MB to the system at once, and the system fills each new block
    with zeros. With a hundred thousand elements nearly every tensor is that large, and a training step spends
    as much time on this as on its matrix products. The environment variable ``SETWISE_REUSE_MEMORY=0`` turns
    this setting off.
    """
    if os.environ.get("SETWISE_REUSE_MEMORY") == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library or system
        return False
    kept = bool(mallopt(MMAP_THRESHOLD, LARGEST))  # some versions refuse it
    return bool(mallopt(TRIM_THRESHOLD, 8 * LARGEST)) and kept
