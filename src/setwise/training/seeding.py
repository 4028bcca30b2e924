"""Random numbers that depend on what they are for, never on what was drawn before."""

import hashlib
import operator
from typing import SupportsIndex

import torch
from jaxtyping import Int
from torch import Tensor


def generator(*purpose: SupportsIndex | str) -> torch.Generator:
    """A generator seeded by its purpose, e.g. ``generator("train", seed, step)``.

    Different purposes give independent streams and equal ones the same. Batch number 1,000 can thus be
    drawn without the 999 before it: a resumed run needs no stored state, and ranks need not talk.

    >>> a, b = (torch.randn(2, generator=generator("train", 0, 17)) for _ in range(2))
    >>> torch.equal(a, b)
    True
    """
    words = tuple(word if isinstance(word, str) else operator.index(word) for word in purpose)
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def epochs(size: int, batch: int, step: int, *purpose: SupportsIndex | str) -> Int[Tensor, " batch"]:
    """Which of ``size`` examples make up a batch, so that each comes once an epoch, in random order.

    A batch that reaches over the end of an epoch goes on with the next. Like `generator`, this needs no
    memory of the batches before.

    Args:
        size: how many examples there are.
        batch: how many of them to take.
        step: the number of the batch, counted from 1.
        *purpose: tells one order from another.

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
