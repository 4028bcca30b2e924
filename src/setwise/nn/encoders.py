"""Encoders ``(x [b, n, …], mask) → [b, n, d]``: features of each element, on its own."""

from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise.functional import fill_padding
from setwise.nn.dense import Dense
from setwise.sets import Elements, Shared


def placed(x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n *f"]:
    """Features with shared ones written out in their places, and zeros at their padding.

    >>> placed(Shared(torch.tensor([[1.0], [5.0]]), torch.tensor([[0, 1], [1, 1]]))).flatten().tolist()
    [1.0, 5.0, 5.0, 5.0]
    """
    return fill_padding(x.written_out(), mask) if isinstance(x, Shared) else x


class MLP(nn.Module):
    """Fully connected layers applied to each element.

    Args:
        in_dim: features of a raw element.
        *dims: the width of each layer.
        activation: after every layer, the last one included.

    >>> MLP(3, 32, 64)(torch.randn(2, 5, 3)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(self, in_dim: int, *dims: int, activation: str = "relu") -> None:
        super().__init__()
        if not dims:
            raise ValueError("MLP needs the width of at least one layer, got none")
        self.activation = activation
        self.layers = nn.Sequential(
            *(Dense(i, o, activation=activation) for i, o in pairwise((in_dim, *dims)))
        )

    def forward(
        self, x: Float[Tensor, "b n i"] | Shared, mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n d"] | Shared:
        """Encode the elements; those that sets share stay shared."""
        if x.dim() != 3 or not x.is_floating_point():
            raise ValueError(
                f"elements must be floating point [sets, elements, features], got {x.dtype} {list(x.shape)}"
            )
        if isinstance(x, Shared):
            return x.map(self.layers)
        out: Tensor = self.layers(fill_padding(x, mask))
        return out


class ElementEncoder(nn.Module):
    """Any network ``[m, …] → [m, d]`` (images, say), applied to the real elements only.

    Padding costs nothing, does not enter batch statistics, and comes out as zeros. Elements that sets
    share (`setwise.Shared`) are encoded once.

    >>> images = torch.randn(2, 3, 1, 8, 8)
    >>> mask = torch.tensor([[True, True, False], [True, False, False]])
    >>> encoder = ElementEncoder(nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten()))
    >>> encoder(images, mask).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, x: Elements, mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n d"] | Shared:
        """Encode the real elements and put them back in their places; those that sets share stay shared."""
        if isinstance(x, Shared):
            return x.map(self.network)
        if mask is None:
            out: Tensor = self.network(x.flatten(0, 1))
            return out.view(*x.shape[:2], out.shape[-1])
        real = self.network(x[mask])
        features = torch.zeros(*x.shape[:2], real.shape[-1], dtype=real.dtype, device=real.device)
        return features.index_put((mask,), real)
