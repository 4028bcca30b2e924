"""Local moments: what a point in space is surrounded by, before the encoder reads it."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise.functional import center, fill_padding, log_rbf_kernel, row_normalize
from setwise.sets import Elements, Shared


class LocalMoments(nn.Module):
    """Mean and covariance of the points around each point, at several scales, for a network to read.

    With w_ij ∝ exp(−‖x_i − x_j‖² / 2σ²), which sum to one over j, a point has μ_i = Σ_j w_ij x_j and
    Σ_i = Σ_j w_ij (x_j − μ_i)(x_j − μ_i)ᵀ. The covariance tells a rod from a sheet from a lump, and which way
    it lies; the mean tells the rim of a surface from its middle. The network reads x_i and, for every σ,
    (μ_i − x_i) / σ and the upper triangle of Σ_i / σ²: `features` numbers in all.

    Args:
        network: ``(x [b, n, features], mask) → [b, n, d]``, e.g. an `MLP`.
        dim: coordinates of a point.
        scales: where each σ starts; they are learned. Sets are supposed to fill the unit ball.

    >>> from setwise.nn.layers import MLP
    >>> encoder = LocalMoments(MLP(LocalMoments.features(3, 2), 16), scales=(0.1, 0.3))
    >>> encoder(torch.randn(2, 50, 3)).shape
    torch.Size([2, 50, 16])
    """

    def __init__(
        self, network: nn.Module, *, dim: int = 3, scales: tuple[float, ...] = (0.1, 0.2, 0.4)
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        if not scales or not all(0 < scale < float("inf") for scale in scales):
            raise ValueError(f"scales must be positive and finite, at least one, got {scales}")
        self.network = network
        self.dim = dim
        self.log_scales = nn.Parameter(torch.tensor(scales).log())

    @staticmethod
    def features(dim: int, scales: int) -> int:
        """How many numbers the network reads of each point: d + scales · (d + d(d + 1)/2).

        >>> LocalMoments.features(3, 3)
        30
        """
        return dim + scales * (dim + dim * (dim + 1) // 2)

    def forward(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n d"]:
        """Encode the points."""
        if isinstance(x, Shared):
            x = x.expand()
        if x.shape[2:] != (self.dim,):
            raise ValueError(f"points must be [sets, points, {self.dim}], got {list(x.shape)}")
        x = fill_padding(x, mask)
        moments = torch.cat(self.moments(x, mask), dim=-1).to(x.dtype)
        out: Tensor = self.network(torch.cat([x, moments], dim=-1), mask)
        return out

    def moments(self, x: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """(μ − x) / σ and the upper triangle of Σ / σ², for one σ after the other."""
        row, column = torch.triu_indices(self.dim, self.dim, device=x.device)
        found = []
        with torch.autocast(x.device.type, enabled=False):  # differences of like numbers need their digits
            x = center(x.to(torch.promote_types(x.dtype, torch.float32)), mask)
            known = torch.cat([x, x[..., row] * x[..., column]], dim=-1)
            for sigma in self.log_scales.to(x.dtype).exp():
                W = row_normalize(log_rbf_kernel(x, sigma), mask)
                mean, square = (W @ known).split([self.dim, len(row)], dim=-1)
                covariance = square - mean[..., row] * mean[..., column]
                found += [(mean - x) / sigma, covariance / sigma.square()]
        return found
