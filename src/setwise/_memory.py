"""Memory that was freed, kept for what is made next.

The C library of most Linux systems gives blocks above 32 MB back to the system as soon as they are freed, and
asks for new ones, page by page, each of which the system first fills with zeros. With a hundred thousand
elements nearly every tensor is such a block, and a training step spends as long on this as on its products.
"""

import ctypes
import os
from functools import cache

import torch

LARGEST = 128 * 2**20
"""Blocks up to this size are used again; the few that are larger would leave holes that do not fit others."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
MANY = 2**22
"""Numbers in a tensor from which on this matters."""


def prepare(numbers: int, device: torch.device) -> None:
    """Get ready for tensors of so many numbers, on this device."""
    if not torch.compiler.is_compiling() and device.type == "cpu" and numbers > MANY:
        reuse_freed_memory()


@cache
def reuse_freed_memory() -> bool:
    """Ask the C library, once and for the whole process, to keep freed blocks; tell whether it can.

    As with the caching allocator of a GPU, memory is given back to the system later than it is freed. The
    environment variable ``SETWISE_REUSE_MEMORY=0`` turns it off.
    """
    if os.environ.get("SETWISE_REUSE_MEMORY") == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    kept = bool(mallopt(MMAP_THRESHOLD, LARGEST))  # which some versions refuse
    return bool(mallopt(TRIM_THRESHOLD, 8 * LARGEST)) and kept
