"""Random generators that are seeded by their purpose, independent of earlier draws."""

import hashlib
import operator
from typing import SupportsIndex

import torch
from jaxtyping import Int
from torch import Tensor


def generator(*purpose: SupportsIndex | str) -> torch.Generator:
    """Return a generator seeded by its purpose, e.g. ``generator("train", seed, step)``.

    Different purposes give independent streams, equal purposes the same stream. Batch number 1,000 can thus
    be drawn without the 999 batches before it: a resumed run needs no stored state, and ranks need no
    communication.

    >>> a, b = (torch.randn(2, generator=generator("train", 0, 17)) for _ in range(2))
    >>> torch.equal(a, b)
    True
    """
    words = tuple(word if isinstance(word, str) else operator.index(word) for word in purpose)
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def epochs(size: int, batch: int, step: int, *purpose: SupportsIndex | str) -> Int[Tensor, " batch"]:
    """Return the indices of a batch, such that each example occurs once per epoch, in random order.

    A batch that crosses the end of an epoch continues with the next. Like `generator`, this depends on no
    earlier batch.

    Args:
        size: number of examples.
        batch: number of examples in a batch.
        step: the number of the batch, counted from 1.
        *purpose: seeds the order, see `generator`.

    >>> torch.cat([epochs(6, 4, step, "train", 0) for step in (1, 2, 3)]).bincount()
    tensor([2, 2, 2, 2, 2, 2])
    """
    for name, number in (("size", size), ("batch", batch), ("step", step)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    place = torch.arange((step - 1) * batch, step * batch)
    first, last = int(place[0]) // size, int(place[-1]) // size
    orders = [
        torch.randperm(size, generator=generator("epoch", epoch, *purpose))
        for epoch in range(first, last + 1)
    ]
    return torch.cat(orders)[place - first * size]
