"""The latent graph in linear time: random features whose inner products are the kernel, on average.

The weights are W = F / (F 1) with F ≈ c + Φ Φᵀ, so that F x = c Σ_j x_j + Φ (Φᵀ x) costs O(n) for a fixed
number of features. For the paper's softmax(K), exp(K) = 1 + K + K²/2! + … and K^m is a Gaussian kernel of
bandwidth σ/√m, whose features are cosines and sines of random projections; c is the one. For the kernel
divided by its row sums, the features are exponentials of random projections, which are positive, and c = 0.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from setwise import collectives
from setwise._memory import prepare
from setwise.functional import Propagator, fill_padding, row_normalize
from setwise.nn.graph import Encoded, LatentGraph
from setwise.nn.operators.base import Weights, normal_form, scaled

REST = 0.01
"""The share of exp(K / T) at K = 1 that the last power of K may carry for all those that are left out."""
COLDEST = 0.05
"""The lowest temperature: a weight of exp(1 / T) times another is beyond what features can tell."""
LEAST = -40.0
"""The exponent of the smallest positive feature, beside the largest: products of two must not vanish."""


def series(temperature: float = 1.0) -> list[float]:
    """The coefficients of K, K², … in exp(K / T) − 1; the last one carries the rest of the series.

    >>> series()
    [1.0, 0.5, 0.1666..., 0.0516...]
    """
    whole, terms = math.expm1(1 / temperature), [1 / temperature]
    while whole - sum(terms) > REST * whole:
        terms.append(terms[-1] / (temperature * (len(terms) + 1)))
    terms[-1] += whole - sum(terms)
    return terms


def dealt(count: int, weights: Sequence[float]) -> list[int]:
    """Deal so many things in proportion to the weights, at least one to each.

    >>> dealt(128, series())
    [75, 37, 12, 4]
    """
    shares = [max(1, round(count * weight / sum(weights))) for weight in weights]
    shares[shares.index(max(shares))] += count - sum(shares)
    return shares


def orthogonal_frequencies(count: int, dim: int, generator: torch.Generator) -> Float[Tensor, "f e"]:
    """Rows with the law of a standard normal vector, orthogonal to each other in groups of ``dim``.

    They cover the directions more evenly than independent ones would, which lessens the error of what is
    averaged over them.

    >>> omega = orthogonal_frequencies(3, 4, torch.Generator().manual_seed(0))
    >>> (omega @ omega.mT).fill_diagonal_(0).abs().max() < 1e-5
    tensor(True)
    """
    groups = math.ceil(count / dim)
    gaussian = torch.randn(groups, dim, dim, generator=generator, dtype=torch.float64, device="cpu")
    Q, R = torch.linalg.qr(gaussian)
    Q = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # which makes every direction equally likely
    directions: Tensor = Q.mT.reshape(groups * dim, dim)[:count]
    other = torch.randn(count, dim, generator=generator, dtype=torch.float64, device="cpu")
    lengths: Tensor = torch.linalg.vector_norm(other, dim=-1, keepdim=True)
    return (lengths * directions).float()


class _Waves(torch.autograd.Function):
    """Φ = [a cos(z ωᵀ), a sin(z ωᵀ)], whose slopes are its own columns: nothing else is kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, omega: Tensor, amplitude: Tensor) -> Tensor:
        quarter = torch.full_like(amplitude, math.pi / 2)
        phase = torch.cat([quarter, torch.zeros_like(quarter)])  # a cosine is a sine, a quarter ahead
        waves = torch.matmul(z, torch.cat([omega, omega]).mT).add_(phase).sin_()
        return waves.mul_(torch.cat([amplitude, amplitude]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        omega, waves = ctx.saved_tensors
        (cos, sin), (to_cos, to_sin) = waves.chunk(2, dim=-1), grads[0].chunk(2, dim=-1)
        with torch.autocast(omega.device.type, enabled=False):
            return (cos * to_sin).addcmul_(sin, to_cos, value=-1) @ omega, None, None


class _Diffused(torch.autograd.Function):
    """(1 − γ) x + γ y, where y = (c Σ_j x_j + Φ (Φᵀ x)) / t is cheaper to make twice than to keep."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        phi: Tensor, x: Tensor, total: Tensor, gamma: Tensor, constant: float, across: bool
    ) -> tuple[Tensor, Tensor]:
        summary = _summary(phi, x, across)
        return _sums(phi, summary, constant).mul_(gamma / total).addcmul_(x, 1 - gamma), summary

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.constant, ctx.across = inputs
        ctx.save_for_backward(*tensors, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (phi, x, total, gamma, summary), (grad, *_) = ctx.saved_tensors, grads
        grad_phi = grad_x = grad_total = grad_gamma = None
        with torch.autocast(phi.device.type, enabled=False):
            if torch.is_grad_enabled():  # a derivative of this one is wanted
                summary = _summary(phi, x, ctx.across)
            share = grad * (gamma / total)
            to_summary = _summary(phi, share, ctx.across)
            if ctx.needs_input_grad[1]:
                grad_x = _sums(phi, to_summary, ctx.constant).addcmul_(grad, 1 - gamma)
            if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
                along = torch.linalg.vecdot(grad, _sums(phi, summary, ctx.constant)).unsqueeze(-1) / total
                grad_total = -along * (gamma / total)
                grad_gamma = along.sum() - torch.dot(grad.flatten(), x.flatten())
            if ctx.needs_input_grad[0]:
                grad_phi = (share @ summary[:, 1:].mT).baddbmm_(x, to_summary[:, 1:].mT)
        return grad_phi, grad_x, grad_total, grad_gamma, None, None


def _summary(phi: Tensor, x: Tensor, across: bool) -> Tensor:
    """Σ_j x_j and Φᵀ x, one below the other: all that elements need to know of each other."""
    summary = torch.cat([x.sum(1, keepdim=True), phi.mT @ x], dim=1)
    return collectives.all_sum(summary) if across else summary


def _sums(phi: Tensor, summary: Tensor, constant: float) -> Tensor:
    """C Σ_j x_j + Φ (Φᵀ x), of which the sums are known."""
    return torch.baddbmm(constant * summary[:, :1], phi, summary[:, 1:])


class LowRankWeights(Weights):
    """What `RandomFeatureGraph` returns: W = c + Φ Φᵀ, its rows divided by their sums.

    Args:
        phi: features Φ, zero at padding.
        mask: which elements are real.
        constant: c.
        dtype: what the weights stand for in products.
        across: whether the elements are a process's share of those of the sets: see `SplitElements`.
    """

    def __init__(
        self,
        phi: Float[Tensor, "b n f"],
        mask: Bool[Tensor, "b n"] | None,
        *,
        constant: float,
        dtype: torch.dtype,
        across: bool = False,
    ) -> None:
        b, n, _ = phi.shape
        super().__init__((b, n, n), dtype, phi.device)
        prepare(phi.numel(), phi.device)
        self.phi = phi
        self.mask = mask
        self.constant = constant
        self.across = across
        one = torch.ones_like(phi[..., :1])
        real = fill_padding(one, mask)
        count = real.sum(1, keepdim=True)
        least = constant * (collectives.all_sum(count) if across else count)
        total = self._diffused(real, one, one.new_ones(())).clamp(min=least)
        self.total = total + (total == 0)  # of a set without elements

    def __matmul__(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Return ``W x``."""
        return self.diffuse(x, torch.ones((), device=x.device))

    def diffuse(self, x: Float[Tensor, "b n d"], gamma: Float[Tensor, ""]) -> Float[Tensor, "b n d"]:
        """Return ``(1 − γ) x + γ W x``."""
        self.check(x)
        wide = fill_padding(x.to(self.phi.dtype), self.mask)
        return fill_padding(self._diffused(wide, self.total, gamma.to(wide.dtype)), self.mask).to(x.dtype)

    def _diffused(self, x: Tensor, total: Tensor, gamma: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            mixed: Tensor = _Diffused.apply(  # type: ignore[no-untyped-call]
                self.phi, x, total, gamma, self.constant, self.across
            )[0]
        return mixed


class RandomFeatureGraph(LatentGraph):
    """`LatentGraph` in O(n) time and memory, approximately: exp(K) or K becomes Φ Φᵀ.

    The error falls with the square root of the number of features. For the paper's softmax(K) and 64 features
    it is some per cent of W x, and up to a fifth where W x is small beside x; sixteen times as many make it a
    quarter. For the row-normalised kernel it grows with the spread of the elements in units of σ; a graph so
    narrow that an element hears but a few others is better served by `NeighbourGraph`.

    The frequencies follow from ``seed``, which is part of the state dict, so a model that was loaded gives
    what the saved one gave. The state dict of a `LatentGraph` can be loaded as well; the seed stays.

    Args:
        in_dim: features of an encoded element (d_i).
        hidden: widths of the layers of the embedding (d_m, d_o).
        activation: of both layers.
        sigma: bandwidth to start from.
        normalize: `row_normalize` or `row_softmax`; ``partial(…, temperature=T)`` of either.
        features: columns of Φ, an even number.
        seed: of the random frequencies.

    >>> dense, linear = LatentGraph(3, sigma=6.0), RandomFeatureGraph(3, features=1024)  # a wide kernel
    >>> _ = linear.load_state_dict(dense.state_dict())
    >>> x = torch.randn(2, 50, 3)
    >>> torch.allclose(linear(x) @ x, dense(x) @ x, atol=0.05)
    True
    """

    frequencies: Tensor
    amplitudes: Tensor
    seed: Tensor

    def __init__(
        self,
        in_dim: int,
        hidden: tuple[int, ...] = (64, 128),
        *,
        activation: str = "relu",
        sigma: float = 1.0,
        normalize: Callable[[Tensor, Tensor | None], Tensor] = row_normalize,
        features: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(in_dim, hidden, activation=activation, sigma=sigma, normalize=normalize)
        self.softmax, self.temperature = normal_form(normalize)
        if self.temperature < COLDEST:
            raise ValueError(f"temperature must be at least {COLDEST}, got {self.temperature}")
        terms = len(series(self.temperature)) if self.softmax else 1
        if features < max(16, 4 * terms) or features % 2:
            raise ValueError(f"features must be even and at least {max(16, 4 * terms)}, got {features}")
        self.features = features
        self.embed_dim = hidden[-1]
        self.register_buffer("seed", torch.tensor(seed))
        frequencies, amplitudes = self._drawn(seed)
        self.register_buffer("frequencies", frequencies.to(self.seed.device), persistent=False)
        self.register_buffer("amplitudes", amplitudes.to(self.seed.device), persistent=False)

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Propagator:
        """The weights W."""
        z = scaled(self.embedded(x, mask), self.sigma, mask)
        if not self.softmax:  # unlike waves, exponentials feel where the origin is: its gradient counts
            real = z.shape[1] if mask is None else mask.sum(-1).clamp(min=1).view(-1, 1, 1)
            z = fill_padding(z - z.sum(1, keepdim=True) / real, mask)
        with torch.autocast(x.device.type, enabled=False):
            phi = self.phi(z, mask)
        constant = 1.0 if self.softmax else 0.0
        return LowRankWeights(fill_padding(phi, mask), mask, constant=constant, dtype=x.dtype)

    def phi(
        self, z: Float[Tensor, "b n e"], mask: Bool[Tensor, "b n"] | None = None, *, across: bool = False
    ) -> Float[Tensor, "b n f"]:
        """The features Φ of embedded elements over σ; ``across`` as of `LowRankWeights`."""
        omega = self.frequencies.to(z.dtype)
        if self.softmax:
            waves: Tensor = _Waves.apply(z, omega, self.amplitudes.to(z.dtype))  # type: ignore[no-untyped-call]
            return waves
        z = z * self.temperature**-0.5
        projected = z @ omega.mT
        exponents = torch.cat([projected, -projected], dim=-1) - z.square().sum(-1, keepdim=True)
        largest = z.new_full(z.shape[:1], -math.inf)
        if exponents.numel():
            largest = fill_padding(exponents.detach(), mask, -math.inf).flatten(1).amax(-1)
        largest = collectives.all_max(largest) if across else largest
        largest = largest.masked_fill(largest.isinf(), 0)  # of a set without elements
        return (exponents - largest.view(-1, 1, 1)).clamp(min=LEAST).exp()

    def _drawn(self, seed: int) -> tuple[Tensor, Tensor]:
        """Frequencies and amplitudes from the seed: of the powers of K, or of K alone."""
        generator = torch.Generator().manual_seed(seed)
        dim = self.embed_dim
        if not self.softmax:
            count = self.features // 2
            return orthogonal_frequencies(count, dim, generator), torch.ones(count, device="cpu")
        weights = series(self.temperature)
        counts = dealt(self.features // 2, weights)
        frequencies = [
            m**0.5 * orthogonal_frequencies(count, dim, generator) for m, count in enumerate(counts, 1)
        ]
        amplitudes = [
            torch.full((c,), (w / c) ** 0.5, device="cpu") for w, c in zip(weights, counts, strict=True)
        ]
        return torch.cat(frequencies), torch.cat(amplitudes)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.setdefault(f"{prefix}seed", self.seed)
        super()._load_from_state_dict(state_dict, prefix, *args)
        frequencies, _ = self._drawn(int(self.seed))
        self.frequencies.copy_(frequencies)
