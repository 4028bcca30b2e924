"""The network that the estimators train."""

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from setwise.nn.dmps import DMPS, choose, pools
from setwise.nn.layers import MLP, Dense
from setwise.nn.pool import GatedAttentionPool, JoinedPool

FEW_FEATURES = 32
"""Number of features per element up to which the default is no dropout."""
OUTLIER = 5.0
"""Standard deviations beyond which a feature is compressed."""


def build_network(
    in_dim: int,
    out_dim: int,
    *,
    layers: Sequence[int] = (128, 64),
    dropout: float | Literal["auto"] = "auto",
    pool: str = "mean",
    compress_outliers: bool = True,
    **parts: Any,
) -> DMPS:
    """A DMPS for standardised features, with dropout in the encoder and one or several pools.

    Args:
        in_dim: number of features per element.
        out_dim: number of outputs.
        layers: widths of the encoder's layers.
        dropout: dropout rate of the encoder; see `default_dropout`.
        pool: ``"mean"``, ``"max"``, ``"sum"``, ``"attention"``, ``"gated"``, or several joined by plus signs.
        compress_outliers: whether the encoder starts with `CompressOutliers`.
        **parts: ``depth``, ``block``, ``graph`` and ``hidden`` of `DMPS.build`.

    >>> build_network(3, 2, layers=(8,), pool="mean+max", hidden=(8, 8), depth=1).head.linear.in_features
    16
    """
    dim = layers[-1]
    rate = default_dropout(in_dim) if dropout == "auto" else dropout
    encoder = MLP(in_dim, *layers)
    encoder.layers = nn.Sequential(
        *([CompressOutliers()] if compress_outliers else []),
        *(part for layer in encoder.layers for part in (layer, nn.Dropout(rate))),
    )
    known = pools(dim) | {"gated": lambda: GatedAttentionPool(dim)}
    chosen = [choose("pool", name, known) for name in pool.split("+")]
    joined = chosen[0] if len(chosen) == 1 else JoinedPool(*chosen)
    model = DMPS.build(in_dim, out_dim, dim=dim, encoder=encoder, pool=joined, **parts)
    model.head = Dense(dim * len(chosen), out_dim, activation="identity")
    return model


class CompressOutliers(nn.Module):
    """Compress values beyond ±5 logarithmically: sign(x) · (5 + log(1 + |x| − 5)) if |x| > 5, else x.

    >>> import torch
    >>> CompressOutliers()(torch.tensor([-2.0, 5.0, 6.0, -105.0]))
    tensor([-2.0000,  5.0000,  5.6931, -9.6151])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Compress each value."""
        beyond = (x.abs() - OUTLIER).clamp(min=0)
        return x.clamp(-OUTLIER, OUTLIER) + x.sign() * beyond.log1p()


def default_dropout(in_dim: int) -> float:
    """The default dropout rate: 0.5 for more than 32 features per element, against overfitting, else 0.

    >>> default_dropout(3), default_dropout(166)
    (0.0, 0.5)
    """
    return 0.5 if in_dim > FEW_FEATURES else 0.0
