"""The latent graph in linear time: inner products of random features approximate the kernel.

The weights are W = F / (F 1) with F ≈ c + Φ Φᵀ, so that F x = c Σ_j x_j + Φ (Φᵀ x) costs O(n) for a fixed
number of features. For the paper's softmax(K), exp(K) = 1 + K + K²/2! + … and K^m is a Gaussian kernel of
bandwidth σ/√m, whose features are cosines and sines of random projections; c is one. For the kernel
divided by its row sums, the features are exponentials of random projections, which are positive, and c = 0.
"""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise import collectives
from setwise.functional import fill_padding, row_normalize
from setwise.nn.graph import LearnedGraph, Normalize
from setwise.nn.kernel import DeepKernel, Encoded, KernelOptions, deep_kernel
from setwise.nn.operators.base import Weights, gaussian_form

REST = 0.01
"""The share of exp(K / T) at K = 1 that the omitted powers of K may have; the last power carries it."""
COLDEST = 0.05
"""The lowest temperature: features cannot represent a weight ratio of more than exp(1 / T)."""
LEAST = -40.0
"""The exponent of the smallest positive feature relative to the largest: products must not underflow."""


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


def apportion(count: int, weights: Sequence[float]) -> list[int]:
    """Divide a count in proportion to the weights, with at least one for each.

    >>> apportion(128, series())
    [75, 37, 12, 4]
    """
    shares = [max(1, round(count * weight / sum(weights))) for weight in weights]
    shares[shares.index(max(shares))] += count - sum(shares)
    return shares


def orthogonal_frequencies(count: int, dim: int, generator: torch.Generator) -> Float[Tensor, "f e"]:
    """Standard normal row vectors, orthogonal to each other in groups of ``dim``.

    They cover the directions more evenly than independent vectors, which reduces the error of averages.

    >>> omega = orthogonal_frequencies(3, 4, torch.Generator().manual_seed(0))
    >>> (omega @ omega.mT).fill_diagonal_(0).abs().max() < 1e-5
    tensor(True)
    """
    groups = math.ceil(count / dim)
    gaussian = torch.randn(groups, dim, dim, generator=generator, dtype=torch.float64, device="cpu")
    Q, R = torch.linalg.qr(gaussian)
    Q = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # makes every direction equally likely
    directions: Tensor = Q.mT.reshape(groups * dim, dim)[:count]
    other = torch.randn(count, dim, generator=generator, dtype=torch.float64, device="cpu")
    lengths: Tensor = torch.linalg.vector_norm(other, dim=-1, keepdim=True)
    return (lengths * directions).float()


class _Waves(torch.autograd.Function):
    """Φ = [a cos(z ωᵀ), a sin(z ωᵀ)]; its columns are its derivatives, so only Φ is stored."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, omega: Tensor, amplitude: Tensor) -> Tensor:
        quarter = torch.full_like(amplitude, math.pi / 2)
        phase = torch.cat([quarter, torch.zeros_like(quarter)])  # cos(t) = sin(t + π/2)
        waves = torch.matmul(z, torch.cat([omega, omega]).mT).add_(phase).sin_()
        return waves.mul_(torch.cat([amplitude, amplitude]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        omega, waves = ctx.saved_tensors
        (cos, sin), (to_cos, to_sin) = waves.chunk(2, dim=-1), grads[0].chunk(2, dim=-1)
        with torch.autocast(omega.device.type, enabled=False):
            return (cos * to_sin).addcmul_(sin, to_cos, value=-1) @ omega, None, None


class _Diffused(torch.autograd.Function):
    """(1 − γ) x + γ y with y = (c Σ_j x_j + Φ (Φᵀ x)) / t, which is recomputed instead of stored."""

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
            if torch.is_grad_enabled():  # for second derivatives
                summary = _summary(phi, x, ctx.across)
            share = grad * (gamma / total)
            to_summary = _summary(phi, share, ctx.across)
            if ctx.needs_input_grad[1]:
                grad_x = _sums(phi, to_summary, ctx.constant).addcmul_(grad, 1 - gamma)
            if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
                along = torch.linalg.vecdot(grad, _sums(phi, summary, ctx.constant)).unsqueeze(-1) / total
                if ctx.needs_input_grad[2]:
                    grad_total = -along * (gamma / total)
                if ctx.needs_input_grad[3]:
                    grad_gamma = along.sum() - torch.dot(grad.flatten(), x.flatten())
            if ctx.needs_input_grad[0]:
                grad_phi = (share @ summary[:, 1:].mT).baddbmm_(x, to_summary[:, 1:].mT)
        return grad_phi, grad_x, grad_total, grad_gamma, None, None


def _summary(phi: Tensor, x: Tensor, across: bool) -> Tensor:
    """Σ_j x_j and Φᵀ x, stacked: the only quantities that combine elements."""
    summary = torch.cat([x.sum(1, keepdim=True), phi.mT @ x], dim=1)
    return collectives.all_sum(summary) if across else summary


def _sums(phi: Tensor, summary: Tensor, constant: float) -> Tensor:
    """The product F x = c Σ_j x_j + Φ (Φᵀ x) from the two sums."""
    return torch.baddbmm(constant * summary[:, :1], phi, summary[:, 1:])


class LowRankWeights(Weights):
    """The weights of a `RandomFeatureGraph`: W = c + Φ Φᵀ with rows divided by their sums.

    Args:
        phi: features Φ, zero at padding.
        mask: True at real elements.
        constant: c.
        dtype: type of the features.
        across: whether each process holds a part of the elements: see `SplitElements`.
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
        self.phi = phi
        self.mask = mask
        self.constant = constant
        self.across = across
        one = torch.ones_like(phi[..., :1])
        real = fill_padding(one, mask)
        count = real.sum(1, keepdim=True)
        least = constant * (collectives.all_sum(count) if across else count)
        total = self._diffused(real, one, one.new_ones(())).clamp(min=least)
        self.total = total + (total == 0)  # zero for an empty set

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


class RandomFeatures(nn.Module):
    """Random features Φ of scaled points z, with Φ Φᵀ ≈ exp(K) − 1 or K: see the module's description.

    Args:
        dim: features of a point z.
        features: columns of Φ, an even number.
        softmax: whether Φ Φᵀ approximates exp(K / T) − 1 or, up to a common factor, K^(1 / T).
        temperature: T.
        seed: seed of the random frequencies, which are not part of the state dict.

    >>> W = RandomFeatures(3, 16, softmax=True)(torch.randn(2, 5, 3), dtype=torch.float32)
    >>> W.shape
    torch.Size([2, 5, 5])
    """

    frequencies: Tensor
    amplitudes: Tensor

    def __init__(
        self, dim: int, features: int, *, softmax: bool, temperature: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__()
        if temperature < COLDEST:
            raise ValueError(f"temperature must be at least {COLDEST}, got {temperature}")
        weights = series(temperature) if softmax else [1.0]
        least = max(16, 4 * len(weights))
        if features < least or features % 2:
            raise ValueError(f"features must be even and at least {least}, got {features}")
        self.softmax = softmax
        self.temperature = temperature
        generator, device = torch.Generator().manual_seed(seed), torch.get_default_device()
        counts = apportion(features // 2, weights)
        frequencies = [  # of K, K², …
            m**0.5 * orthogonal_frequencies(count, dim, generator) for m, count in enumerate(counts, 1)
        ]
        amplitudes = [
            torch.full((count,), (weight / count) ** 0.5, device="cpu")
            for weight, count in zip(weights, counts, strict=True)
        ]
        self.register_buffer("frequencies", torch.cat(frequencies).to(device), persistent=False)
        self.register_buffer("amplitudes", torch.cat(amplitudes).to(device), persistent=False)

    def forward(
        self, z: Float[Tensor, "b n e"], mask: Bool[Tensor, "b n"] | None = None, *, dtype: torch.dtype
    ) -> LowRankWeights:
        """The weights W for points z from `DeepKernel.scaled`."""
        if not self.softmax:  # exponentials, unlike waves, depend on the origin: its gradient counts
            real = z.shape[1] if mask is None else mask.sum(-1).clamp(min=1).view(-1, 1, 1)
            z = fill_padding(z - z.sum(1, keepdim=True) / real, mask)
        return self.weights(z, mask, dtype=dtype)

    def weights(
        self, z: Float[Tensor, "b n e"], mask: Tensor | None, *, dtype: torch.dtype, across: bool = False
    ) -> LowRankWeights:
        """The weights W for centred points z; ``across`` as in `LowRankWeights`."""
        with torch.autocast(z.device.type, enabled=False):
            phi = fill_padding(self.phi(z, mask, across=across), mask)
        constant = 1.0 if self.softmax else 0.0
        return LowRankWeights(phi, mask, constant=constant, dtype=dtype, across=across)

    def phi(
        self, z: Float[Tensor, "b n e"], mask: Bool[Tensor, "b n"] | None = None, *, across: bool = False
    ) -> Float[Tensor, "b n f"]:
        """The features Φ of centred points z; ``across`` as in `LowRankWeights`."""
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
        largest = largest.masked_fill(largest.isinf(), 0)  # infinite for an empty set
        return (exponents - largest.view(-1, 1, 1)).clamp(min=LEAST).exp()


class RandomFeatureGraph(LearnedGraph):
    """`LatentGraph` in O(n) time and memory, approximately: Φ Φᵀ replaces exp(K) or K.

    The error falls with the square root of the number of features. For the paper's softmax(K) and 64 features
    it is a few per cent of W x, and up to a fifth where W x is small compared with x; sixteen times as many
    features reduce it to a quarter. For the row-normalised kernel it grows with the spread of the elements in
    units of σ; use `NeighbourGraph` if the kernel is so narrow that an element has few neighbours.

    The frequencies follow from ``seed`` alone and are not part of the state dict.

    Args:
        in_dim: features of an encoded element (d_i), or a `DeepKernel`.
        hidden: widths of the layers of the embedding (d_m, d_o).
        normalize: `row_normalize` or `row_softmax`; ``partial(…, temperature=T)`` of either.
        features: columns of Φ, an even number.
        seed: seed of the random frequencies.
        **options: ``activation`` and ``sigma`` of the `DeepKernel`.

    >>> from setwise.nn.graph import LatentGraph
    >>> kernel, x = DeepKernel(3, sigma=6.0), torch.randn(2, 50, 3)  # a wide kernel
    >>> linear = RandomFeatureGraph(kernel, features=1024)
    >>> torch.allclose(linear(x) @ x, LatentGraph(kernel)(x) @ x, atol=0.05)
    True
    """

    def __init__(
        self,
        in_dim: int | DeepKernel,
        hidden: tuple[int, ...] | None = None,
        *,
        normalize: Normalize = row_normalize,
        features: int = 64,
        seed: int = 0,
        **options: Unpack[KernelOptions],
    ) -> None:
        super().__init__(deep_kernel(in_dim, hidden, **options), normalize)
        softmax, temperature = gaussian_form(self.kernel, normalize)
        self.random_features = RandomFeatures(
            self.kernel.out_dim, features, softmax=softmax, temperature=temperature, seed=seed
        )

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> LowRankWeights:
        """The weights W."""
        weights: LowRankWeights = self.random_features(self.kernel.scaled(x, mask), mask, dtype=x.dtype)
        return weights
