"""The deep kernel K_ij = k_σ(MLP(x_i), MLP(x_j)) that every learned graph contains."""

from collections.abc import Callable
from typing import TypedDict, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise.functional import center, log_rbf_kernel, median_distance, pair_mask
from setwise.nn.layers import MLP, expand_shared
from setwise.sets import Shared

Encoded = Float[Tensor, "b n d"] | Shared
"""Encoded elements; several sets may share them."""
KernelFunction = Callable[[Tensor, Tensor], Tensor]
"""``(z, sigma) → log K``."""

MEDIAN_OF = 2048
"""Number of elements from which the initial bandwidth of larger sets is estimated."""


class DeepKernel(nn.Module):
    """A kernel of embedded elements: K_ij = k_σ(z_i, z_j) with z_i = MLP(x_i).

    Elements that sets share (`setwise.Shared`) are embedded once.

    Args:
        in_dim: features of an encoded element (d_i).
        hidden: widths of the layers of the embedding (d_m, d_o).
        activation: activation of all layers of the embedding.
        sigma: initial bandwidth; see `initialize_bandwidth` for an initial value from data.
        kernel: ``(z, sigma) → log K`` with values up to 0, the value on the diagonal.

    >>> DeepKernel(3).similarity(torch.zeros(1, 2, 3))
    tensor([[[1., 1.], [1., 1.]]], grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        in_dim: int,
        hidden: tuple[int, ...] = (64, 128),
        *,
        activation: str = "relu",
        sigma: float = 1.0,
        kernel: KernelFunction = log_rbf_kernel,
    ) -> None:
        super().__init__()
        if not 0 < sigma < float("inf"):
            raise ValueError(f"sigma must be positive and finite, got {sigma}")
        self.embed = MLP(in_dim, *hidden, activation=activation)
        self.log_sigma = nn.Parameter(torch.tensor(float(sigma)).log())
        self.kernel = kernel
        self.out_dim = hidden[-1]

    @property
    def sigma(self) -> Tensor:
        """The bandwidth σ > 0."""
        return self.log_sigma.exp()

    @property
    def is_gaussian(self) -> bool:
        """Whether the kernel function is the Gaussian kernel, the only one that operators support."""
        return self.kernel is log_rbf_kernel

    def embedded(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n e"]:
        """The points z_i = MLP(x_i) between which the kernel measures distances."""
        return expand_shared(self.embed(x, mask), mask)

    def scaled(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n e"]:
        """The points z_i / σ, centred in each set, in single precision or better; padding is zero.

        The Gaussian kernel is then exp(−½ ‖z_i − z_j‖²).
        """
        z = self.embedded(x, mask)
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        return center(z, mask) * (1 / self.sigma.to(z.dtype))

    def log_kernel(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """Log K; entries of padding have no meaning."""
        return self.kernel(center(self.embedded(x, mask), mask), self.sigma)

    def similarity(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The kernel matrix K; entries of padding are zero."""
        K = self.log_kernel(x, mask).exp()
        return K if mask is None else K.masked_fill(~pair_mask(mask), 0)

    @torch.no_grad()
    def initialize_bandwidth(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> "DeepKernel":
        """Set σ to the median distance between the embedded elements of a first batch.

        Far from that scale the graph starts as the uniform graph or the identity, with almost no gradient.
        The elements are encoded ones, as for ``forward``. A sample is used if the sets are large.
        """
        x = expand_shared(x, mask)
        if x.shape[1] > MEDIAN_OF:
            order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0), device="cpu")
            order = order.to(x.device)
            sample = (order if mask is None else order[mask.any(0)[order]])[:MEDIAN_OF]
            x, mask = x[:, sample], None if mask is None else mask[:, sample]
        self.log_sigma.copy_(median_distance(self.embedded(x, mask), mask).log())
        return self


class KernelOptions(TypedDict, total=False):
    """The keyword arguments of `DeepKernel`."""

    activation: str
    sigma: float
    kernel: KernelFunction


def deep_kernel(
    in_dim: int | DeepKernel, hidden: tuple[int, ...] | None = None, **options: Unpack[KernelOptions]
) -> DeepKernel:
    """Build a `DeepKernel` from its arguments, or return the one that is given.

    >>> kernel = deep_kernel(3, (16, 8), sigma=2.0)
    >>> deep_kernel(kernel) is kernel
    True
    """
    if isinstance(in_dim, DeepKernel):
        given = [*(["hidden"] if hidden is not None else []), *options]
        if given:
            raise TypeError(f"a DeepKernel takes no further arguments, got also {', '.join(given)}")
        return in_dim
    return DeepKernel(in_dim, **options) if hidden is None else DeepKernel(in_dim, hidden, **options)
