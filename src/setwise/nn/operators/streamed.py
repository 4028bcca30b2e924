"""The latent graph without its matrix: tiles of the matrix are computed when needed and discarded.

With z scaled by 1/σ and s_ij = −½ ‖z_i − z_j‖², both normalisations of a Gaussian kernel have one form:
W = F / (F 1), where F_ij = exp(exp(s_ij)) is the paper's softmax(K) and F_ij = exp(s_ij) the kernel divided
by its row sums. F is symmetric, so each tile serves both its rows and its columns, and W x needs only
F [x, 1]. A block stores only its x: recomputing a tile is cheaper than reading it from memory, so that this
is faster than the dense graph at ten thousand elements.
"""

import math
from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import Any, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from setwise.functional import fill_padding, row_normalize
from setwise.nn.graph import LearnedGraph, Normalize
from setwise.nn.kernel import DeepKernel, Encoded, KernelOptions, deep_kernel
from setwise.nn.operators.base import Weights, gaussian_form

TILE = 768
"""Elements along each side of a tile: about three tiles fit into a processor's cache."""


@torch.library.custom_op("setwise::kernel_product", mutates_args=())
def kernel_product(z: Tensor, x: Tensor, softmax: bool, temperature: float) -> Tensor:
    """F x for x [b, n, d] and z [b, n, e], in O(n (d + e)) memory.

    Args:
        z: embedded elements divided by σ.
        x: features, zero at padding.
        softmax: whether F is exp(K / T), up to a factor, or K^(1 / T).
        temperature: T.

    >>> kernel_product(torch.zeros(1, 2, 3), torch.tensor([[[1.0], [2.0]]]), False, 1.0)
    tensor([[[3.], [3.]]])
    """
    out = torch.zeros_like(x)
    with torch.autocast(x.device.type, enabled=False):
        left, right = _factors(z)
        for sets, rows, columns in _tiles(*x.shape[:2]):
            F, _ = _weigh(left[sets, rows] @ right[sets, columns].mT, rows is columns, softmax, temperature)
            out[sets, rows].baddbmm_(F, x[sets, columns])
            if rows is not columns:
                out[sets, columns].baddbmm_(F.mT, x[sets, rows])
    return out


@torch.library.custom_op("setwise::kernel_product_backward", mutates_args=())
def _backward(grad: Tensor, z: Tensor, x: Tensor, softmax: bool, temperature: float) -> tuple[Tensor, Tensor]:
    """The gradients of z and x: ∂x = F g and ∂z_i = Σ_j F'_ij (⟨g_i, x_j⟩ + ⟨g_j, x_i⟩) (z_j − z_i)."""
    e = z.shape[-1]
    grad_x, sums = torch.zeros_like(x), z.new_zeros(*z.shape[:-1], e + 1)
    with torch.autocast(x.device.type, enabled=False):
        left, right = _factors(z)
        ends = right[..., : e + 1].contiguous()  # z and a one
        pair, other = torch.cat([grad, x], dim=-1), torch.cat([x, grad], dim=-1)
        for sets, rows, columns in _tiles(*x.shape[:2]):
            F, slope = _weigh(
                left[sets, rows] @ right[sets, columns].mT, rows is columns, softmax, temperature
            )
            grad_x[sets, rows].baddbmm_(F, grad[sets, columns])
            U = (pair[sets, rows] @ other[sets, columns].mT).mul_(F)
            if slope is not None:
                U.mul_(slope)
            sums[sets, rows].baddbmm_(U, ends[sets, columns])
            if rows is not columns:
                grad_x[sets, columns].baddbmm_(F.mT, grad[sets, rows])
                sums[sets, columns].baddbmm_(U.mT, ends[sets, rows])
    return (sums[..., :e] - sums[..., e:] * z) / temperature, grad_x


def _factors(z: Tensor) -> tuple[Tensor, Tensor]:
    """Two matrices with the product s: −½ ‖z_i − z_j‖² = [z_i, −½ ‖z_i‖², 1] · [z_j, 1, −½ ‖z_j‖²]."""
    half = -0.5 * z.square().sum(-1, keepdim=True)
    one = torch.ones_like(half)
    return torch.cat([z, half, one], dim=-1), torch.cat([z, one, half], dim=-1)


def _weigh(s: Tensor, diagonal: bool, softmax: bool, temperature: float) -> tuple[Tensor, Tensor | None]:
    """F, computed in place of s, and T F' / F (None if it is one)."""
    s.clamp_(max=0)  # a positive value is a rounding error
    if diagonal:
        s.diagonal(dim1=-2, dim2=-1).zero_()
    if not softmax:
        return (s if temperature == 1 else s.div_(temperature)).exp_(), None
    K = s.exp_()
    # K − 1 instead of K avoids overflow at low temperatures; the common factor cancels in W.
    return (K.exp() if temperature == 1 else K.sub(1).div_(temperature).exp_()), K


def _tiles(b: int, n: int) -> Iterator[tuple[slice, slice, slice]]:
    """The tiles on and above the diagonal: sets, rows, columns."""
    together = max(1, TILE**2 // max(n, 1) ** 2)
    side = math.ceil(n / max(1, math.ceil(n / TILE))) or 1  # equal sizes: a narrow last tile would waste time
    parts = [slice(start, min(start + side, n)) for start in range(0, n, side)]
    for start in range(0, b, together):
        for rows, columns in combinations_with_replacement(parts, 2):
            yield slice(start, start + together), rows, columns


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, bool, float], output: Tensor) -> None:
    z, x, *ctx.form = inputs
    ctx.save_for_backward(z, x)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    z, x = ctx.saved_tensors
    grad = grad.contiguous()
    if not ctx.needs_input_grad[0]:
        return None, kernel_product(z, grad, *ctx.form), None, None
    grad_z, grad_x = _backward(grad, z, x, *ctx.form)
    return grad_z, grad_x, None, None


kernel_product.register_fake(lambda z, x, softmax, temperature: torch.empty_like(x))
_backward.register_fake(lambda grad, z, x, softmax, temperature: (torch.empty_like(z), torch.empty_like(x)))
kernel_product.register_autograd(_gradients, setup_context=_setup)


class StreamedWeights(Weights):
    """The weights of a `StreamedGraph`.

    Args:
        z: embedded elements divided by σ, centred, zero at padding: see `DeepKernel.scaled`.
        mask: True at real elements.
        softmax: see `kernel_product`.
        temperature: T.
        dtype: type of the features.
    """

    def __init__(
        self,
        z: Float[Tensor, "b n e"],
        mask: Bool[Tensor, "b n"] | None,
        *,
        softmax: bool,
        temperature: float,
        dtype: torch.dtype,
    ) -> None:
        b, n, _ = z.shape
        super().__init__((b, n, n), dtype, z.device)
        self.z = z
        self.mask = mask
        self.form = (softmax, temperature)

    def __matmul__(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Return ``W x``."""
        self.check(x)
        wide = fill_padding(x.to(self.z.dtype), self.mask)
        real = torch.ones_like(wide[..., :1]) if self.mask is None else self.mask.unsqueeze(-1).to(wide)
        sums: Tensor = kernel_product(self.z, torch.cat([wide, real], dim=-1), *self.form)
        total = sums[..., -1:]
        return fill_padding(sums[..., :-1] / (total + (total == 0)), self.mask).to(x.dtype)


class StreamedGraph(LearnedGraph):
    """`LatentGraph` in O(n) memory: the same parameters and weights, but the matrix is never written out.

    Exact up to rounding, for the Gaussian kernel. No second derivatives.

    Args:
        in_dim: features of an encoded element (d_i), or a `DeepKernel`.
        hidden: widths of the layers of the embedding (d_m, d_o).
        normalize: `row_normalize` or `row_softmax`; ``partial(…, temperature=T)`` of either.
        **options: ``activation`` and ``sigma`` of the `DeepKernel`.

    >>> from setwise.nn.graph import LatentGraph
    >>> kernel, x = DeepKernel(3), torch.randn(2, 5, 3)
    >>> torch.allclose(StreamedGraph(kernel)(x) @ x, LatentGraph(kernel)(x) @ x, atol=1e-6)
    True
    """

    def __init__(
        self,
        in_dim: int | DeepKernel,
        hidden: tuple[int, ...] | None = None,
        *,
        normalize: Normalize = row_normalize,
        **options: Unpack[KernelOptions],
    ) -> None:
        super().__init__(deep_kernel(in_dim, hidden, **options), normalize)
        self.softmax, self.temperature = gaussian_form(self.kernel, normalize)

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> StreamedWeights:
        """The weights W."""
        z = self.kernel.scaled(x, mask)
        return StreamedWeights(z, mask, softmax=self.softmax, temperature=self.temperature, dtype=x.dtype)
