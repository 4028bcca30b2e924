"""A network between the units of the data and its own."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

ROUNDING = 1e-12
"""Standard deviation, relative to the mean, up to which a feature is taken for constant."""
SMALLEST = 1e-30


class Framed(nn.Module):
    """Raw features go in, are standardised for the network, and what it says comes out in the data's units.

    out = m + s · network((x − μ) / σ, mask), where m and s may be left out. Whatever stands in padding
    stays there: the network's encoder is what masks it. The units are held in double precision, as features
    that are large and vary little need it, times of the day in seconds since 1970 say.

    Args:
        network: ``(x, mask) → [b, k]``.
        mean: μ of each feature, over the training data say.
        std: σ of each; a feature that varies by no more than rounding is left unscaled.
        out_mean: m of each output, given together with ``out_std``.
        out_std: s of each; an output that varies by no more than rounding is left unscaled.

    >>> class Sums(nn.Module):
    ...     def forward(self, x, mask=None):
    ...         return x.sum(1)
    >>> framed = Framed(Sums(), mean=torch.tensor([1.0]), std=torch.tensor([2.0]))
    >>> framed(torch.tensor([[[3], [7]]]))
    tensor([[4.]])
    """

    mean: Tensor
    std: Tensor
    out_mean: Tensor | None
    out_std: Tensor | None

    def __init__(
        self,
        network: nn.Module,
        *,
        mean: Float[Tensor, " d"],
        std: Float[Tensor, " d"],
        out_mean: Float[Tensor, " k"] | None = None,
        out_std: Float[Tensor, " k"] | None = None,
    ) -> None:
        super().__init__()
        if (out_mean is None) != (out_std is None):
            given = "out_mean" if out_std is None else "out_std"
            raise ValueError(f"out_mean and out_std belong together, got {given} alone")
        self.network = network
        self._keep("mean", mean, "std", std)
        self.register_buffer("out_mean", None)
        self.register_buffer("out_std", None)
        if out_mean is not None and out_std is not None:
            self._keep("out_mean", out_mean, "out_std", out_std)

    def _keep(self, mean_name: str, mean: Tensor, std_name: str, std: Tensor) -> None:
        names = f"{mean_name} and {std_name}"
        if mean.shape != std.shape or mean.dim() != 1:
            raise ValueError(f"{names} must be one a feature, got {list(mean.shape)} and {list(std.shape)}")
        mean, std = mean.to(torch.float64, copy=True), std.to(torch.float64)
        if not mean.is_meta and not (mean.isfinite() & std.isfinite() & (std >= 0)).all():
            raise ValueError(f"{names} must be finite, and {std_name} not negative, got others")
        varies = std > (ROUNDING * mean.abs()).clamp(min=SMALLEST)
        self.register_buffer(mean_name, mean)
        self.register_buffer(std_name, torch.where(varies, std, 1.0))

    def standardized(self, x: Shaped[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """What enters the network: (x − μ) / σ over the last axis, in the precision of the network."""
        if x.dim() < 1 or x.shape[-1] != len(self.mean):
            raise ValueError(f"elements must have {len(self.mean)} features, got {list(x.shape)}")
        weight = next(self.network.parameters(), None)
        dtype = torch.get_default_dtype() if weight is None else weight.dtype
        return ((x.to(self.mean.dtype) - self.mean) / self.std).to(dtype)

    def forward(
        self, x: Shaped[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b k"]:
        """Outputs in the units of the data, one row a set."""
        out: Tensor = self.network(self.standardized(x), mask)
        return self.in_units(out).to(out.dtype)

    def in_units(self, out: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        """What the network says in the units of the data, with all their digits: m + s · out."""
        if self.out_mean is None or self.out_std is None:
            return out
        if out.shape[-1] != len(self.out_mean):
            raise ValueError(
                f"the network must have {len(self.out_mean)} outputs as out_mean has, got {list(out.shape)}"
            )
        return self.out_mean + self.out_std * out
