"""The equations of the paper, as pure functions of tensors.

Throughout, ``b`` sets of ``n`` elements with ``d`` features are a tensor ``x [b, n, d]``; ``mask [b, n]``
is True at real elements and False at padding (no mask: all are real); ``K`` is a kernel matrix, given by its
logarithm, and ``W`` the row-stochastic matrix made from it. ``W[i, j]`` is zero unless both ends are real, so
that a product with ``W`` needs no mask.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@runtime_checkable
class Propagator(Protocol):
    """Whatever can be multiplied with the features: a dense ``W``, or an operator that stands for one."""

    def __matmul__(self, x: Any, /) -> Tensor:
        """Return ``W x`` for features ``x [b, n, d]``."""


def fill_padding(
    x: Float[Tensor, "b n *f"], mask: Bool[Tensor, "b n"] | None, value: float = 0.0
) -> Float[Tensor, "b n *f"]:
    """Put ``value`` wherever the mask is False, so that nothing there reaches an output or a gradient.

    >>> fill_padding(torch.tensor([[[1.0], [torch.nan]]]), torch.tensor([[True, False]])).tolist()
    [[[1.0], [0.0]]]
    """
    if mask is None:
        return x
    if mask.shape != x.shape[:2]:
        raise ValueError(f"mask must be {list(x.shape[:2])} as the sets are, got {list(mask.shape)}")
    return x.masked_fill(~mask.view(*mask.shape, *[1] * (x.dim() - 2)), value)


def center(z: Float[Tensor, "b n e"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n e"]:
    """Move each set so that its mean is zero: no distance changes, but what floats lose in it does.

    Padding moves to zero, too. The shift counts as a constant in gradients, as distances do not feel it.

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
    """Softmax over the last axis that gives exactly zero to what the mask excludes.

    Where it excludes everything the result is all zeros, not 0/0.

    >>> masked_softmax(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]]))
    tensor([[0.5000, 0.5000], [0.0000, 0.0000]])
    """
    if mask is None:
        return logits.softmax(-1)
    lowest = torch.finfo(logits.dtype).min  # not −inf, whose softmax is NaN where nothing is left
    return logits.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0)


def pair_mask(mask: Bool[Tensor, "b n"]) -> Bool[Tensor, "b n n"]:
    """True where both ends of a pair are real elements."""
    return mask.unsqueeze(-1) & mask.unsqueeze(-2)


class _ScaledSquaredDistances(torch.autograd.Function):
    """a ‖z_i − z_j‖² from one product of z with itself.

    The gradient is written out because it is much cheaper than what automatic differentiation finds:
    D is symmetric, so with S = G + Gᵀ one matrix product serves both ends of a pair, and D is
    quadratic in z, so ⟨z, ∂z⟩ = 2a ∂a gives the gradient of the scale without another n × n pass.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, scale: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(z, dim=-1, keepdim=True).square()
        one = torch.ones_like(norms)
        left, right = torch.cat([-2 * z, norms, one], dim=-1), torch.cat([z, one, norms], dim=-1)
        return torch.bmm(left, right.mT).relu_().mul_(scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        z, scale = ctx.saved_tensors
        with torch.autocast(z.device.type, enabled=False):
            S = grads[0] + grads[0].mT
            grad = torch.baddbmm(S.sum(-1, keepdim=True) * z, S, z, alpha=-1)  # ∂z / 2a
            return grad * (2 * scale), torch.dot(grad.flatten(), z.flatten())


def squared_distances(
    z: Float[Tensor, "b n e"], scale: Float[Tensor, ""] | float = 1.0
) -> Float[Tensor, "b n n"]:
    """Scaled squared distances a ‖z_i − z_j‖² within each set, in single precision or better.

    Sets far from the origin should be moved there first, see `center`.

    >>> squared_distances(torch.tensor([[[0.0], [1.0], [3.0]]])).tolist()
    [[[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]]]
    """
    with torch.autocast(z.device.type, enabled=False):
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        scale = torch.as_tensor(scale, dtype=z.dtype, device=z.device)
        distances: Tensor = _ScaledSquaredDistances.apply(z, scale)  # type: ignore[no-untyped-call]
    return distances


def _distances(z: Tensor, sigma: Tensor) -> Tensor:
    squared = squared_distances(z, _inverse_square(sigma))
    oneself = torch.eye(z.shape[-2], dtype=torch.bool, device=z.device)
    squared = squared.masked_fill(oneself, 0)  # exactly: √ would amplify a rounding error
    apart = squared != 0  # √ has no slope at 0: where two elements coincide its gradient is set to 0
    distances = torch.where(apart, squared, 1.0).sqrt() * apart
    return distances.clamp(max=1e18)  # whose square is finite: log K must not become ∞ − ∞


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
    """Logarithm of the super-Gaussian: log K_ij = −(r² / 2)^order, flat near zero, then a steep fall.

    It separates alike (1) from different (0) more sharply than the Gaussian, which has order 1. For larger
    orders it is not positive definite; nothing here requires that.

    >>> log_super_gaussian_kernel(torch.tensor([[[0.0], [1.0], [2.0]]]), torch.tensor(1.0))[0, 0].exp()
    tensor([1.0000e+00, 9.3941e-01, 1.1254e-07])
    """
    if order < 1:
        raise ValueError(f"order must be at least 1, got {order}")
    squared = squared_distances(z, 0.5 * _inverse_square(sigma))
    largest = 1000 ** (1 / order)  # beyond, the kernel is 0; a larger power would overflow
    return -squared.clamp(max=largest).pow(order)


def median_distance(z: Float[Tensor, "b n e"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, ""]:
    """Median of ‖z_i − z_j‖ over all pairs of distinct real elements of a set: a start for σ.

    >>> median_distance(torch.tensor([[[0.0], [1.0], [3.0]]]))
    tensor(2.)
    """
    squared = squared_distances(center(z, mask))
    if not squared.isfinite().all():
        raise ValueError("a bandwidth from data needs finite elements, got NaN, infinite or huge ones")
    if mask is not None:
        squared = squared.masked_fill(~pair_mask(mask), 0)
    farthest = squared.max() if squared.numel() else squared.new_zeros(())
    apart = squared > 1e-6 * farthest  # what is less is the rounding error of a distance of zero
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

    Weights can differ without bound, from the uniform graph (K = 1) to the identity (K = I). The logarithm
    keeps the ratio of two weights, and its gradient, where the kernel itself underflows.

    Args:
        log_K: logarithm of the kernel.
        mask: which elements are real.
        temperature: T takes K^(1/T) instead of K.

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
        mask: which elements are real.
        temperature: T takes K / T instead of K.

    >>> row_softmax(torch.eye(2)[None].log())
    tensor([[[0.7311, 0.2689], [0.2689, 0.7311]]])
    """
    _check_temperature(temperature)
    pair = None if mask is None else pair_mask(mask)
    K = (log_K if pair is None else log_K.masked_fill(~pair, 0)).exp()  # 0 · NaN is no gradient for padding
    return masked_softmax(K if temperature == 1 else K / temperature, pair)


def shares(K: Float[Tensor, "b n n"], mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n"]:
    """What each element counts when alike elements count as one: 1 / deg_i with deg_i = Σ_j K_ij.

    m copies of an element have 1/m each if K is one among them and zero elsewhere, so the shares sum to the
    number of different elements. Padding has none.

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
    """Non-negative weights divided by their row sums; a row of zeros (padding) stays zero.

    >>> rows_to_one(torch.tensor([[[1.0, 3.0], [0.0, 0.0]]]))
    tensor([[[0.2500, 0.7500], [0.0000, 0.0000]]])
    """
    total = W.sum(-1, keepdim=True)
    return W / (total + (total == 0))


def sparsify(W: Float[Tensor, "b n n"], delta: float) -> Float[Tensor, "b n n"]:
    """Drop the weights below the threshold δ and let each row sum to one again.

    A row whose weights all lie below δ keeps its largest. Gradients flow through what is kept.

    >>> sparsify(torch.tensor([[[0.6, 0.3, 0.1], [0.2, 0.4, 0.4], [0.3, 0.3, 0.4]]]), 0.25)
    tensor([[[0.6667, 0.3333, 0.0000], [0.0000, 0.5000, 0.5000], [0.3000, 0.3000, 0.4000]]])
    """
    if W.shape[-1] == 0:
        return W
    kept = (delta <= W) | (W.amax(-1, keepdim=True) <= W)
    return rows_to_one(W * kept)


def top_k(W: Float[Tensor, "b n n"], k: int) -> Float[Tensor, "b n n"]:
    """Keep the k largest weights of each row and let it sum to one again.

    Weights that tie with the k-th are all kept: choosing among them would depend on the order.

    >>> top_k(torch.tensor([[[0.6, 0.3, 0.1], [0.2, 0.4, 0.4], [0.3, 0.3, 0.4]]]), 1)
    tensor([[[1.0000, 0.0000, 0.0000], [0.0000, 0.5000, 0.5000], [0.0000, 0.0000, 1.0000]]])
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if k >= W.shape[-1]:
        return W
    return rows_to_one(W * (W.topk(k, dim=-1).values[..., -1:] <= W))


class _Diffusion(torch.autograd.Function):
    """(1 − γ) X + γ W X, which keeps no W X.

    Automatic differentiation would keep it in each block for the gradient of γ. But that is ⟨G, W X − X⟩ =
    ⟨Wᵀ G − G, X⟩ for a gradient G, and Wᵀ G has to be found anyway.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, W: Tensor, gamma: Tensor) -> Tensor:
        return torch.lerp(x, W @ x, gamma)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        (x, W, gamma), (grad,) = ctx.saved_tensors, grads
        _, graph, coefficient = ctx.needs_input_grad
        with torch.autocast(x.device.type, enabled=False):
            heard = W.mT @ grad
            grad_W = gamma * grad @ x.mT if graph else None
            grad_gamma = torch.dot((heard - grad).flatten(), x.flatten()) if coefficient else None
            return torch.lerp(grad, heard, gamma), grad_W, grad_gamma


def propagate(
    x: Float[Tensor, "b n d"], W: Propagator, gamma: float | Float[Tensor, ""] = 1.0
) -> Float[Tensor, "b n d"]:
    """One step of diffusion on the graph: (1 − γ) X + γ W X.

    It is the Euler step of the heat equation with γ = δt·C; γ = 1 is the plain message passing step.

    >>> propagate(torch.tensor([[[0.0], [4.0]]]), torch.full((1, 2, 2), 0.5), 0.5).tolist()
    [[[1.0], [3.0]]]
    """
    gamma = torch.as_tensor(gamma, dtype=x.dtype, device=x.device)
    alike = isinstance(W, Tensor) and (W.dtype, W.shape[:-1]) == (x.dtype, x.shape[:-1])
    if alike and not torch.is_autocast_enabled(x.device.type):
        mixed: Tensor = _Diffusion.apply(x, W, gamma)  # type: ignore[no-untyped-call]
        return mixed
    diffuse = getattr(W, "diffuse", None)  # weights that know a shorter way
    return diffuse(x, gamma) if diffuse is not None else torch.lerp(x, (W @ x).to(x.dtype), gamma)


def dirichlet_energy(x: Float[Tensor, "b n d"], W: Propagator, C: float = 1.0) -> Float[Tensor, " b"]:
    """Roughness of the features over the graph: E = C/2 Σ_edges w_ij ‖x_i − x_j‖².

    Each edge counts once; where W is not symmetric its weight is the mean of both directions, so that
    E = C/4 Σ_ij w_ij ‖x_i − x_j‖². Message passing lowers E; E = 0 means that all elements are alike.

    >>> dirichlet_energy(torch.tensor([[[0.0], [4.0]]]), torch.full((1, 2, 2), 0.5))
    tensor([4.])
    """
    if isinstance(W, Tensor):
        real = W.sum(-1) > 0  # rows of padding are zero
        return C / 4 * (W * squared_distances(center(x, real))).sum((-2, -1))
    if (differences := getattr(W, "squared_differences", None)) is not None:
        energy: Tensor = C / 4 * differences(x)
        return energy
    x = center(x, (W @ torch.ones_like(x[..., :1])).squeeze(-1) > 0)
    square = x.square().sum(-1, keepdim=True)
    heard = W @ torch.cat([x, square], dim=-1)  # Σ_j w_ij ‖x_i − x_j‖² needs no entry of W
    rough = square.squeeze(-1) - 2 * (x * heard[..., :-1]).sum(-1) + heard[..., -1]
    return C / 4 * rough.clamp(min=0).sum(-1)
