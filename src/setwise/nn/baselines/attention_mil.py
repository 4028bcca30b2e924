"""Attention-based multiple-instance learning (Ilse, Tomczak and Welling, 2018)."""

from collections.abc import Callable
from typing import Literal

from torch import nn

from setwise.nn.baselines.base import Layered
from setwise.nn.dmps import choose
from setwise.nn.layers import MLP, Dense
from setwise.nn.pool import AttentionPool, GatedAttentionPool, MaxPool, MeanPool


class PooledMIL(Layered):
    """Encode each instance, pool the bag, apply the head. `setwise.importance` returns the attention weights.

    Args:
        encoder: ``(x, mask) → [b, n, d]``.
        pool: ``(x, mask) → [b, d]``.
        head: ``[b, d] → [b, k]``, raw outputs.
    """

    def __init__(self, encoder: nn.Module, pool: nn.Module, head: nn.Module) -> None:
        super().__init__(encoder, (), pool, head)

    @classmethod
    def build(
        cls,
        in_dim: int,
        out_dim: int,
        *,
        dim: int = 64,
        hidden: int = 128,
        pool: Literal["attention", "gated", "mean", "max"] | nn.Module = "gated",
        encoder: nn.Module | None = None,
        activation: str = "relu",
    ) -> "PooledMIL":
        """Build a model from sizes and names.

        Args:
            in_dim: number of features of an instance.
            out_dim: number of outputs.
            dim: number of features of an encoded instance.
            hidden: width of the attention network; 128 as published.
            pool: name of the pooling, or a module ``(x, mask) → [b, dim]``.
            encoder: module ``(x, mask) → [b, n, dim]``; by default one fully connected layer.
            activation: activation of the default encoder.

        >>> import torch
        >>> model = PooledMIL.build(166, 1, pool="gated")
        >>> model(torch.randn(2, 40, 166)).shape
        torch.Size([2, 1])
        """
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {hidden}")
        pools: dict[str, Callable[[], nn.Module]] = {
            "attention": lambda: AttentionPool(dim, hidden),
            "gated": lambda: GatedAttentionPool(dim, hidden),
            "mean": MeanPool,
            "max": MaxPool,
        }
        return cls(
            encoder=MLP(in_dim, dim, activation=activation) if encoder is None else encoder,
            pool=choose("pool", pool, pools) if isinstance(pool, str) else pool,
            head=Dense(dim, out_dim, activation="identity"),
        )
