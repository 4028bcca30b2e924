"""The equations of the paper, as pure functions of tensors.

``b`` sets of ``n`` elements with ``d`` features are a tensor ``x [b, n, d]``; ``mask [b, n]`` is True at real
elements and False at padding (no mask: all elements are real); ``K`` is a kernel matrix, given by its
logarithm, and ``W`` the row-stochastic matrix made from it. ``W[i, j]`` is zero unless both ends are real, so
that a product with ``W`` needs no mask.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from setwise._gradients import diffusion, scaled_squared_distances


@runtime_checkable
class Operator(Protocol):
    """A matrix W that is not written out; subclass `setwise.nn.Weights` to define one by its ``W @ x``."""

    def __matmul__(self, x: Any, /) -> Tensor:
        """Return ``W x`` for features ``x [b, n, d]``."""

    def diffuse(self, x: Tensor, gamma: Tensor) -> Tensor:
        """Return ``(1 − γ) x + γ W x``."""

    def squared_differences(self, x: Tensor) -> Tensor:
        """Return Σ_ij w_ij ‖x_i − x_j‖² of each set ``[b]``."""

    def to_dense(self) -> Tensor:
        """Return the matrix ``[b, n, n]``."""

    def reweighted(self, x: Tensor, *, p: float, eps: float) -> "Operator":
        """Return the graph R of `setwise.nn.PNormBlock`."""


Propagator = Tensor | Operator
"""The graph W: a matrix or an operator."""


def fill_padding(
    x: Float[Tensor, "b n *f"], mask: Bool[Tensor, "b n"] | None, value: float = 0.0
) -> Float[Tensor, "b n *f"]:
    """Replace padding by ``value``, so that no padding affects an output or a gradient.

    >>> fill_padding(torch.tensor([[[1.0], [torch.nan]]]), torch.tensor([[True, False]])).tolist()
    [[[1.0], [0.0]]]
    """
    if mask is None:
        return x
    if mask.shape != x.shape[:2]:
        raise ValueError(f"mask must have the shape {list(x.shape[:2])} of the sets, got {list(mask.shape)}")
    return x.masked_fill(~mask.view(*mask.shape, *[1] * (x.dim() - 2)), value)


def center(z: Float[Tensor, "b n e"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n e"]:
    """Subtract the mean of each set. Distances are unchanged; cancellation error shrinks.

    Padding becomes zero. The gradient treats the shift as a constant, as no distance depends on it.

    >>> center(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
    [[[-1.0], [1.0], [0.0]]]
    """
    if mask is None:
        return z - z.detach().mean(-2, keepdim=True) if z.shape[-2] else z
    mean = fill_padding(z, mask).detach().sum(-2) / mask.sum(-1, keepdim=True).clamp(min=1)
    return fill_padding(z - mean.unsqueeze(-2), mask)


def masked_softmax(
    logits: Float[Tensor, "*b n"], mask: Bool[Tensor, "*#b n"] | None
) -> Float[Tensor, "*b n"]:
    """Softmax over the last axis; entries that the mask excludes are exactly zero.

    A row without any included entry is all zeros, not 0/0.

    >>> masked_softmax(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]]))
    tensor([[0.5000, 0.5000], [0.0000, 0.0000]])
    """
    if mask is None:
        return logits.softmax(-1)
    lowest = torch.finfo(logits.dtype).min  # not −inf: a row of −inf has a NaN softmax
    return logits.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0)


def pair_mask(mask: Bool[Tensor, "b n"]) -> Bool[Tensor, "b n n"]:
    """True where both ends of a pair are real elements."""
    return mask.unsqueeze(-1) & mask.unsqueeze(-2)


def squared_distances(
    z: Float[Tensor, "b n e"], scale: Float[Tensor, ""] | float = 1.0
) -> Float[Tensor, "b n n"]:
    """Scaled squared distances a ‖z_i − z_j‖² within each set, in single precision or better.

    Centre sets that are far from the origin first, see `center`.

    >>> squared_distances(torch.tensor([[[0.0], [1.0], [3.0]]])).tolist()
    [[[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]]]
    """
    with torch.autocast(z.device.type, enabled=False):
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        scale = torch.as_tensor(scale, dtype=z.dtype, device=z.device)
        return scaled_squared_distances(z, scale)


def _distances(z: Tensor, sigma: Tensor) -> Tensor:
    squared = squared_distances(z, _inverse_square(sigma))
    diagonal = torch.eye(z.shape[-2], dtype=torch.bool, device=z.device)
    squared = squared.masked_fill(diagonal, 0)  # exactly 0: √ would amplify a rounding error
    apart = squared != 0  # √ has no finite slope at 0: the gradient of coinciding elements is set to 0
    distances = torch.where(apart, squared, 1.0).sqrt() * apart
    return distances.clamp(max=1e18)  # so that the square is finite: log K must not become ∞ − ∞


def _inverse_square(sigma: Tensor) -> Tensor:
    return sigma.to(torch.promote_types(sigma.dtype, torch.float32)) ** -2


def rbf_kernel(z: Float[Tensor, "b n e"], sigma: Float[Tensor, ""]) -> Float[Tensor, "b n n"]:
    """Gaussian kernel, the paper's KE(σ): K_ij = exp(−‖z_i − z_j‖² / 2σ²).

    >>> rbf_kernel(torch.tensor([[[0.0], [1.0]]]), torch.tensor(1.0))
    tensor([[[1.0000, 0.6065], [0.6065, 1.0000]]])
    """
    return log_rbf_kernel(z, sigma).exp()


def log_rbf_kernel(z: Float[Tensor, "b n e"], sigma: Float[Tensor, ""]) -> Float[Tensor, "b n n"]:
    """Logarithm of the Gaussian kernel: log K_ij = −r² / 2, r = ‖z_i − z_j‖ / σ.

    >>> log_rbf_kernel(torch.tensor([[[0.0], [1.0], [3.0]]]), torch.tensor(1.0))[0, 1].tolist()
    [-0.5, -0.0, -2.0]
    """
    return squared_distances(z, -0.5 * _inverse_square(sigma))


def log_laplace_kernel(z: Float[Tensor, "b n e"], sigma: Float[Tensor, ""]) -> Float[Tensor, "b n n"]:
    """Logarithm of the exponential kernel: log K_ij = −r, r = ‖z_i − z_j‖ / σ.

    >>> log_laplace_kernel(torch.tensor([[[0.0], [3.0]]]), torch.tensor(1.0))[0, 1].tolist()
    [-3.0, -0.0]
    """
    return -_distances(z, sigma)


def log_matern32_kernel(z: Float[Tensor, "b n e"], sigma: Float[Tensor, ""]) -> Float[Tensor, "b n n"]:
    """Logarithm of the Matérn kernel of smoothness 3/2: K_ij = (1 + √3 r) exp(−√3 r), r = ‖z_i − z_j‖ / σ.

    >>> log_matern32_kernel(torch.tensor([[[0.0], [1.0]]]), torch.tensor(1.0)).exp()
    tensor([[[1.0000, 0.4834], [0.4834, 1.0000]]])
    """
    s = 3**0.5 * _distances(z, sigma)
    return s.log1p() - s


def log_matern52_kernel(z: Float[Tensor, "b n e"], sigma: Float[Tensor, ""]) -> Float[Tensor, "b n n"]:
    """Logarithm of the Matérn kernel of smoothness 5/2: K_ij = (1 + √5 r + 5r²/3) exp(−√5 r).

    >>> log_matern52_kernel(torch.tensor([[[0.0], [1.0]]]), torch.tensor(1.0)).exp()
    tensor([[[1.0000, 0.5240], [0.5240, 1.0000]]])
    """
    s = 5**0.5 * _distances(z, sigma)
    return (s + s.square() / 3).log1p() - s


def log_super_gaussian_kernel(
    z: Float[Tensor, "b n e"], sigma: Float[Tensor, ""], *, order: int = 4
) -> Float[Tensor, "b n n"]:
    """Logarithm of the super-Gaussian: log K_ij = −(r² / 2)^order, flat near zero, then falling steeply.

    It separates similar elements (1) from different ones (0) more sharply than the Gaussian, which has order
    1. It is not positive definite for larger orders; no function here requires that.

    >>> log_super_gaussian_kernel(torch.tensor([[[0.0], [1.0], [2.0]]]), torch.tensor(1.0))[0, 0].exp()
    tensor([1.0000e+00, 9.3941e-01, 1.1254e-07])
    """
    if order < 1:
        raise ValueError(f"order must be at least 1, got {order}")
    squared = squared_distances(z, 0.5 * _inverse_square(sigma))
    largest = 1000 ** (1 / order)  # the kernel is 0 beyond it; a larger power would overflow
    return -squared.clamp(max=largest).pow(order)


def median_distance(z: Float[Tensor, "b n e"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, ""]:
    """Median of ‖z_i − z_j‖ over all pairs of distinct real elements of a set: an initial value for σ.

    >>> median_distance(torch.tensor([[[0.0], [1.0], [3.0]]]))
    tensor(2.)
    """
    squared = squared_distances(center(z, mask))
    if not squared.isfinite().all():
        raise ValueError("a bandwidth from data needs finite elements, got NaN, infinite or too large values")
    if mask is not None:
        squared = squared.masked_fill(~pair_mask(mask), 0)
    farthest = squared.max() if squared.numel() else squared.new_zeros(())
    apart = squared > 1e-6 * farthest  # a smaller value is the rounding error of a distance of zero
    noise = 8 * torch.finfo(squared.dtype).eps * fill_padding(z, mask).detach().abs().sum()
    if farthest.sqrt() <= noise or not apart.any():
        raise ValueError(
            "a bandwidth from data needs a set with two distinct elements, got none in this batch"
        )
    return squared[apart].median().sqrt()


def row_normalize(
    log_K: Float[Tensor, "b n n"], mask: Bool[Tensor, "b n"] | None = None, *, temperature: float = 1.0
) -> Float[Tensor, "b n n"]:
    """The kernel divided by its row sums, W_ij = K_ij / Σ_l K_il: a softmax over each row of log K.

    The ratio of two weights has no bound: W ranges from the uniform graph (K = 1) to the identity (K = I).
    The logarithm preserves that ratio, and its gradient, where the kernel itself underflows.

    Args:
        log_K: logarithm of the kernel.
        mask: True at real elements.
        temperature: T; K^(1/T) is used instead of K.

    >>> row_normalize(torch.tensor([[[1.0, 0.25], [0.25, 1.0]]]).log())
    tensor([[[0.8000, 0.2000], [0.2000, 0.8000]]])
    """
    _check_temperature(temperature)
    logits = log_K if temperature == 1 else log_K / temperature
    return masked_softmax(logits, None if mask is None else pair_mask(mask))


def row_softmax(
    log_K: Float[Tensor, "b n n"], mask: Bool[Tensor, "b n"] | None = None, *, temperature: float = 1.0
) -> Float[Tensor, "b n n"]:
    """The paper's W as printed: a softmax over the *values* of K, W_ij = exp(K_ij) / Σ_l exp(K_il).

    As K lies in (0, 1], two weights of a row differ by a factor of at most e; a ``temperature`` below
    one raises that bound to e^(1/temperature).

    Args:
        log_K: logarithm of the kernel.
        mask: True at real elements.
        temperature: T; K / T is used instead of K.

    >>> row_softmax(torch.eye(2)[None].log())
    tensor([[[0.7311, 0.2689], [0.2689, 0.7311]]])
    """
    _check_temperature(temperature)
    pair = None if mask is None else pair_mask(mask)
    K = (
        log_K if pair is None else log_K.masked_fill(~pair, 0)
    ).exp()  # padding must not get the gradient 0 · NaN
    return masked_softmax(K if temperature == 1 else K / temperature, pair)


def shares(K: Float[Tensor, "b n n"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n"]:
    """The weight of each element if similar elements count as one: 1 / deg_i with deg_i = Σ_j K_ij.

    Each of m copies of an element has the share 1/m if K is one among them and zero elsewhere, so the shares
    sum to the number of distinct elements. The share of padding is zero.

    >>> shares(torch.tensor([[[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]))
    tensor([[0.5000, 0.5000, 1.0000]])
    """
    if mask is not None:
        K = K.masked_fill(~pair_mask(mask), 0)
    degree = K.sum(-1)
    real = degree > 0
    return real / degree.masked_fill(~real, 1)


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")


def rows_to_one(W: Float[Tensor, "b n n"]) -> Float[Tensor, "b n n"]:
    """Divide non-negative weights by their row sums; a row of zeros (padding) stays zero.

    >>> rows_to_one(torch.tensor([[[1.0, 3.0], [0.0, 0.0]]]))
    tensor([[[0.2500, 0.7500], [0.0000, 0.0000]]])
    """
    total = W.sum(-1, keepdim=True)
    return W / (total + (total == 0))


def sparsify(W: Float[Tensor, "b n n"], delta: float) -> Float[Tensor, "b n n"]:
    """Set weights below the threshold δ to zero and rescale each row to sum to one.

    A row whose weights are all below δ keeps its largest weight. Gradients flow through the kept weights.

    >>> sparsify(torch.tensor([[[0.6, 0.3, 0.1], [0.2, 0.4, 0.4], [0.3, 0.3, 0.4]]]), 0.25)
    tensor([[[0.6667, 0.3333, 0.0000], [0.0000, 0.5000, 0.5000], [0.3000, 0.3000, 0.4000]]])
    """
    if W.shape[-1] == 0:
        return W
    kept = (delta <= W) | (W.amax(-1, keepdim=True) <= W)
    return rows_to_one(W * kept)


def top_k(W: Float[Tensor, "b n n"], k: int) -> Float[Tensor, "b n n"]:
    """Keep the k largest weights of each row and rescale the row to sum to one.

    All weights equal to the k-th are kept: a choice among them would depend on the order of the elements.

    >>> top_k(torch.tensor([[[0.6, 0.3, 0.1], [0.2, 0.4, 0.4], [0.3, 0.3, 0.4]]]), 1)
    tensor([[[1.0000, 0.0000, 0.0000], [0.0000, 0.5000, 0.5000], [0.0000, 0.0000, 1.0000]]])
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if k >= W.shape[-1]:
        return W
    return rows_to_one(W * (W.topk(k, dim=-1).values[..., -1:] <= W))


def propagate(
    x: Float[Tensor, "b n d"], W: Propagator, gamma: float | Float[Tensor, ""] = 1.0
) -> Float[Tensor, "b n d"]:
    """One step of diffusion on the graph: (1 − γ) X + γ W X.

    It is the Euler step of the heat equation with γ = δt·C; γ = 1 is the plain message passing step.

    >>> propagate(torch.tensor([[[0.0], [4.0]]]), torch.full((1, 2, 2), 0.5), 0.5).tolist()
    [[[1.0], [3.0]]]
    """
    gamma = torch.as_tensor(gamma, dtype=x.dtype, device=x.device)
    if not isinstance(W, Tensor):
        return W.diffuse(x, gamma)
    same = (W.dtype, W.shape[:-1]) == (x.dtype, x.shape[:-1])
    if same and not torch.is_autocast_enabled(x.device.type):
        return diffusion(x, W, gamma)
    return torch.lerp(x, (W @ x).to(x.dtype), gamma)


def dirichlet_energy(x: Float[Tensor, "b n d"], W: Propagator, C: float = 1.0) -> Float[Tensor, " b"]:
    """Roughness of the features over the graph: E = C/2 Σ_edges w_ij ‖x_i − x_j‖².

    Each edge counts once, with the mean weight of both directions, so that E = C/4 Σ_ij w_ij ‖x_i − x_j‖².
    Message passing lowers E; E = 0 means that all elements are equal.

    >>> dirichlet_energy(torch.tensor([[[0.0], [4.0]]]), torch.full((1, 2, 2), 0.5))
    tensor([4.])
    """
    if not isinstance(W, Tensor):
        return C / 4 * W.squared_differences(x)
    real = W.sum(-1) > 0  # rows of padding are zero
    return C / 4 * (W * squared_distances(center(x, real))).sum((-2, -1))
