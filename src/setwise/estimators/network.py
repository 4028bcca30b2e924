"""The network that the estimators train."""

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from setwise.nn.dmps import DMPS, choose, pools
from setwise.nn.layers import MLP, Dense
from setwise.nn.pool import GatedAttentionPool, JoinedPool

FEW_FEATURES = 32
"""Features of an element up to which an encoder needs no dropout."""
OUTLIER = 5.0
"""Standard deviations beyond which a feature grows by its logarithm only."""


def build_network(
    in_dim: int,
    out_dim: int,
    *,
    layers: Sequence[int] = (128, 64),
    dropout: float | Literal["auto"] = "auto",
    pool: str = "mean",
    soften: bool = True,
    **parts: Any,
) -> DMPS:
    """A DMPS for features in standard units: an encoder with dropout, blocks, and one pool or several.

    Args:
        in_dim: features of an element.
        out_dim: outputs.
        layers: widths of the encoder's layers.
        dropout: share of each layer that is left out at random in training; see `share_left_out`.
        pool: ``"mean"``, ``"max"``, ``"sum"``, ``"attention"``, ``"gated"``, or several joined by plus signs.
        soften: whether to draw outliers in, see `Softened`.
        **parts: depth, block, graph and hidden of `DMPS.build`.

    >>> build_network(3, 2, layers=(8,), pool="mean+max", hidden=(8, 8), depth=1).head.linear.in_features
    16
    """
    dim = layers[-1]
    share = share_left_out(in_dim) if dropout == "auto" else dropout
    encoder = MLP(in_dim, *layers)
    encoder.layers = nn.Sequential(
        *([Softened()] if soften else []),
        *(part for layer in encoder.layers for part in (layer, nn.Dropout(share))),
    )
    known = pools(dim) | {"gated": lambda: GatedAttentionPool(dim)}
    chosen = [choose("pool", name, known) for name in pool.split("+")]
    joined = chosen[0] if len(chosen) == 1 else JoinedPool(*chosen)
    model = DMPS.build(in_dim, out_dim, dim=dim, encoder=encoder, pool=joined, **parts)
    model.head = Dense(dim * len(chosen), out_dim, activation="identity")
    return model


class Softened(nn.Module):
    """Features within five standard deviations as they are; beyond, they grow by their logarithm.

    A single value that is far out then neither drowns all others nor is lost.

    >>> Softened()(torch.tensor([-2.0, 5.0, 6.0, -105.0]))
    tensor([-2.0000,  5.0000,  5.6931, -9.6151])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Draw outliers in."""
        beyond = (x.abs() - OUTLIER).clamp(min=0)
        return x.clamp(-OUTLIER, OUTLIER) + x.sign() * beyond.log1p()


def share_left_out(in_dim: int) -> float:
    """The dropout that suits elements of so many features: a half of many, which are soon learned by heart.

    >>> share_left_out(3), share_left_out(166)
    (0.0, 0.5)
    """
    return 0.5 if in_dim > FEW_FEATURES else 0.0
