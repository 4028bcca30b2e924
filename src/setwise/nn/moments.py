"""Local moments: mean and covariance of the neighbourhood of each point, as input of an encoder."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise.functional import center, fill_padding, log_rbf_kernel, row_normalize
from setwise.sets import Elements, Shared


class LocalMoments(nn.Module):
    """Encode each point from the mean and covariance of the points around it, at several scales.

    With w_ij ∝ exp(−‖x_i − x_j‖² / 2σ²), normalised over j, the moments of a point are μ_i = Σ_j w_ij x_j and
    Σ_i = Σ_j w_ij (x_j − μ_i)(x_j − μ_i)ᵀ. The covariance describes the local shape and its orientation; the
    mean separates the boundary of a surface from its interior. The network's input is x_i and, for every σ,
    (μ_i − x_i) / σ and the upper triangle of Σ_i / σ², in total `features` numbers.

    Args:
        network: ``(x [b, n, features], mask) → [b, n, d]``, e.g. an `MLP`.
        dim: number of coordinates of a point.
        scales: initial value of each σ; they are learned. Sets are assumed to fill the unit ball.

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
        """Number of input features of the network: d + scales · (d + d(d + 1)/2).

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
        """(μ − x) / σ and the upper triangle of Σ / σ², for each σ in turn."""
        row, column = torch.triu_indices(self.dim, self.dim, device=x.device)
        moments = []
        with torch.autocast(x.device.type, enabled=False):  # the differences need full precision
            x = center(x.to(torch.promote_types(x.dtype, torch.float32)), mask)
            products = torch.cat([x, x[..., row] * x[..., column]], dim=-1)
            for sigma in self.log_scales.to(x.dtype).exp():
                W = row_normalize(log_rbf_kernel(x, sigma), mask)
                mean, square = (W @ products).split([self.dim, len(row)], dim=-1)
                covariance = square - mean[..., row] * mean[..., column]
                moments += [(mean - x) / sigma, covariance / sigma.square()]
        return moments
