"""Weights W that are never written out as a matrix: all that can be done with them is to multiply.

Blocks cannot tell such weights from a tensor; what a graph of many elements returns is a kind of them.
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor


class Weights(ABC):
    """A matrix W [b, n, n] of non-negative rows that sum to one (to zero at padding), known by its products.

    Args:
        shape: ``(b, n, n)``.
        dtype: of the features that it was made from.
        device: where its parts are.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.device = device

    @abstractmethod
    def __matmul__(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Return ``W x``."""

    def to_dense(self) -> Float[Tensor, "b n n"]:
        """The matrix written out, for those who want to look at a small one."""
        b, n, _ = self.shape
        return self @ torch.eye(n, dtype=self.dtype, device=self.device).expand(b, n, n)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={list(self.shape)}, dtype={self.dtype}, device={self.device})"
