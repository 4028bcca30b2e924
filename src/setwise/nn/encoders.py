"""Encoders ``(x [b, n, …], mask) → [b, n, d]``: features of each element, on its own."""

from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from setwise.functional import fill_padding
from setwise.nn.dense import Dense
from setwise.sets import Elements, Shared


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
        self.layers = nn.Sequential(
            *(Dense(i, o, activation=activation) for i, o in pairwise((in_dim, *dims)))
        )

    def forward(
        self, x: Float[Tensor, "b n i"] | Shared, mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """Encode the elements."""
        if isinstance(x, Shared):
            x = x.written_out()
        if x.dim() != 3 or not x.is_floating_point():
            raise ValueError(
                f"elements must be floating point [sets, elements, features], got {x.dtype} {list(x.shape)}"
            )
        out: Tensor = self.layers(fill_padding(x, mask))
        return out


class Standardize(nn.Module):
    """Shift and scale each feature by given numbers, those of the training data say: (x − μ) / s.

    Args:
        mean: μ of each feature, which is the second axis: ``[m, d]``, or images ``[m, d, h, w]``.
        std: s of each; a feature that does not vary is left unscaled.

    >>> Standardize(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 0.0]))(torch.tensor([[5, 5]])).tolist()
    [[2.0, 0.0]]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Float[Tensor, " d"], std: Float[Tensor, " d"]) -> None:
        super().__init__()
        if mean.shape != std.shape or mean.dim() != 1:
            raise ValueError(
                f"mean and std must be one a feature, got {list(mean.shape)} and {list(std.shape)}"
            )
        if not (mean.isfinite() & std.isfinite() & (std >= 0)).all():
            raise ValueError("mean and std must be finite, and std not negative, got others")
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", torch.where(std > 0, std, 1.0))

    def forward(self, x: Shaped[Tensor, "m d *s"]) -> Float[Tensor, "m d *s"]:
        """Standardised features, floating point whatever they were."""
        if x.dim() < 2 or x.shape[1] != len(self.mean):
            raise ValueError(f"elements must have {len(self.mean)} features, got {list(x.shape)}")
        shape = (-1, *[1] * (x.dim() - 2))
        return (x.to(self.mean.dtype) - self.mean.view(shape)) / self.std.view(shape)


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

    def forward(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n d"]:
        """Encode the real elements and put them back in their places."""
        if isinstance(x, Shared):
            return fill_padding(self.network(x.values)[x.index], mask)
        if mask is None:
            out: Tensor = self.network(x.flatten(0, 1))
            return out.view(*x.shape[:2], out.shape[-1])
        real = self.network(x[mask])
        features = torch.zeros(*x.shape[:2], real.shape[-1], dtype=real.dtype, device=real.device)
        return features.index_put((mask,), real)
