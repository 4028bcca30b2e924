"""DMPS with contrast blocks, as used by several experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import setwise as sw

if TYPE_CHECKING:
    from torch import nn


def contrast_dmps(encoder: nn.Module, dim: int, out_dim: int) -> sw.DMPS:
    """Row-normalised kernel, three contrast blocks, max and mean pooling, and a head with dropout.

    Args:
        encoder: ``(x, mask) → [b, n, dim]``.
        dim: features of an encoded element.
        out_dim: outputs of the model.
    """
    from torch import nn

    return sw.DMPS(
        encoder=encoder,
        graph=sw.LatentGraph(dim, (dim, dim), activation="tanh", normalize=sw.functional.row_normalize),
        blocks=[sw.nn.SetContrastBlock(dim, activation="gelu") for _ in range(3)],
        pool=sw.nn.JoinedPool(sw.nn.MaxPool(), sw.nn.MeanPool()),
        head=nn.Sequential(
            nn.LayerNorm(2 * dim),
            sw.nn.Dense(2 * dim, dim, activation="gelu"),
            nn.Dropout(0.3),
            sw.nn.Dense(dim, out_dim, activation="identity"),
        ),
    )
