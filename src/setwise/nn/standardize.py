"""A layer that brings features to a common scale, as the first of a network."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn


class Standardize(nn.Module):
    """Shift and scale each feature by given numbers, those of the training data say: (x − μ) / s.

    Args:
        mean: μ of each feature, which is the second axis: ``[m, d]``, or images ``[m, d, h, w]``.
        std: s of each; a feature that varies by no more than rounding is left unscaled.

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
        self.register_buffer("std", torch.where(std > (1e-6 * mean.abs()).clamp(min=1e-30), std, 1.0))

    def forward(self, x: Shaped[Tensor, "m d *s"]) -> Float[Tensor, "m d *s"]:
        """Standardised features, floating point whatever they were."""
        if x.dim() < 2 or x.shape[1] != len(self.mean):
            raise ValueError(f"elements must have {len(self.mean)} features, got {list(x.shape)}")
        shape = (-1, *[1] * (x.dim() - 2))
        return (x.to(self.mean.dtype) - self.mean.view(shape)).div_(self.std.view(shape))
