"""Blocks ``(x [b, n, d], W) → [b, n, d]``: one step of message passing on the graph, then a layer.

Blocks read no mask: W is zero wherever an end is padding. All blocks of a model share one W. The layer of a
block that replaces the features is initialised near the identity, so that a new block changes its input
little beyond the messages. The layer of a block that adds to the features is initialised like any other.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from setwise.functional import (
    Propagator,
    center,
    dirichlet_energy,
    propagate,
    squared_distances,
)
from setwise.nn.layers import Dense, NearIdentity


class Gamma(nn.Module):
    """The diffusion coefficient γ: the step size from the features to the mean of their neighbours.

    One module is shared by all blocks of a model (the paper's choice); give each block its own for one γ per
    block.

    Args:
        value: initial value of a learned γ (strictly between 0 and 1), or the fixed γ (0 to 1).
        learn: whether γ is a parameter (the paper's LDC) or a constant (FDC).

    >>> Gamma(0.25).value
    tensor(0.2500, grad_fn=<SigmoidBackward0>)
    >>> Gamma(1.0, learn=False).value
    tensor(1.)
    """

    fixed: Tensor

    def __init__(self, value: float = 0.5, *, learn: bool = True) -> None:
        super().__init__()
        if learn:
            if not 0 < value < 1:
                raise ValueError(f"gamma must lie strictly between 0 and 1, got {value}")
            self.logit = nn.Parameter(torch.tensor(math.log(value / (1 - value))))
        else:
            if not 0 <= value <= 1:
                raise ValueError(f"a fixed gamma must lie between 0 and 1, got {value}")
            self.register_buffer("fixed", torch.tensor(float(value)))
        self.learn = learn

    @property
    def value(self) -> Tensor:
        """γ, between 0 and 1."""
        return self.logit.sigmoid() if self.learn else self.fixed


class MessagePassingBlock(nn.Module):
    """Plain message passing (V-DMPS): τ(W X H).

    >>> block = MessagePassingBlock(4)
    >>> block(torch.randn(1, 3, 4), torch.full((1, 3, 3), 1 / 3)).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, dim: int, *, activation: str = "relu") -> None:
        super().__init__()
        self.dense = NearIdentity(dim, activation=activation)

    def forward(self, x: Float[Tensor, "b n d"], W: Propagator) -> Float[Tensor, "b n d"]:
        """One step."""
        out: Tensor = self.dense(W @ x)
        return out


class SetDenoisingBlock(nn.Module):
    """Set-denoising block (D-DMPS): τ(((1 − γ) X + γ W X) H), as in Algorithm 1.

    Args:
        dim: input and output features of an element.
        gamma: the diffusion coefficient; by default a learned one of its own.
        activation: τ.

    >>> shared = Gamma(0.5)
    >>> blocks = [SetDenoisingBlock(4, gamma=shared) for _ in range(3)]
    """

    def __init__(self, dim: int, *, gamma: Gamma | None = None, activation: str = "relu") -> None:
        super().__init__()
        self.gamma = Gamma() if gamma is None else gamma
        self.dense = NearIdentity(dim, activation=activation)

    def forward(self, x: Float[Tensor, "b n d"], W: Propagator) -> Float[Tensor, "b n d"]:
        """One step."""
        out: Tensor = self.dense(propagate(x, W, self.gamma.value))
        return out


class SetResidualBlock(nn.Module):
    """Set-residual block (R-DMPS): X + τ(W X H)."""

    def __init__(self, dim: int, *, activation: str = "relu") -> None:
        super().__init__()
        self.dense = Dense(dim, dim, activation=activation)

    def forward(self, x: Float[Tensor, "b n d"], W: Propagator) -> Float[Tensor, "b n d"]:
        """One step."""
        out: Tensor = x + self.dense(W @ x)
        return out


class SetContrastBlock(nn.Module):
    """Ours: X + τ([X̂, W X̂ − X̂] H) with X̂ = LayerNorm(X): an element and its difference to its neighbours.

    A residual block reads only the neighbours; a denoising block mixes element and neighbours before H. This
    block reads both separately: every γ of a denoising step corresponds to one value of H.

    Args:
        dim: input and output features of an element.
        activation: τ.

    >>> SetContrastBlock(4)(torch.randn(1, 3, 4), torch.full((1, 3, 3), 1 / 3)).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, dim: int, *, activation: str = "relu") -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.dense = Dense(2 * dim, dim, activation=activation)

    def forward(self, x: Float[Tensor, "b n d"], W: Propagator) -> Float[Tensor, "b n d"]:
        """One step."""
        y = self.norm(x)
        messages = (W @ y).to(y.dtype)
        out: Tensor = x + self.dense(torch.cat([y, messages - y], dim=-1))
        return out


EPS = 0.1  # see PNormBlock


def pnorm_energy(
    x: Float[Tensor, "b n d"], W: Float[Tensor, "b n n"], p: float, eps: float = EPS
) -> Float[Tensor, " b"]:
    """Roughness over the graph by the p-norm: E = 1/p Σ_edges w_ij ((‖x_i − x_j‖² + ε²)^(p/2) − ε^p).

    Each edge counts once, with the mean weight of both directions, so p = 2 is `dirichlet_energy`; p = 1 is
    the total variation. E = 0 means that all elements are equal.

    Args:
        x: the features.
        W: weights, not necessarily with rows that sum to one; rows of padding are zero.
        p: 1 to 2.
        eps: length below which the norm is smoothed; may be zero here.

    >>> x, W = torch.tensor([[[0.0], [4.0]]]), torch.full((1, 2, 2), 0.5)
    >>> pnorm_energy(x, W, 2.0), pnorm_energy(x, W, 1.0, eps=0.0)
    (tensor([4.]), tensor([2.]))
    """
    check_norm(p, eps, zero=True)
    if p == 2:
        return dirichlet_energy(x, W)
    squared = _squared_distances(x, W)
    alike = (squared == 0) | _diagonal(W)  # exactly 0: √ would amplify a rounding error
    lengths = (squared.masked_fill(alike, 1) + eps**2).pow(p / 2) - eps**p  # √ has no finite slope at 0
    energy: Tensor = (W * lengths.masked_fill(alike, 0)).sum((-2, -1)) / (2 * p)
    return energy


def pnorm_reweighted(
    x: Float[Tensor, "b n d"], W: Float[Tensor, "b n n"], p: float, eps: float = EPS
) -> Float[Tensor, "b n n"]:
    """The graph whose messages descend the p-norm energy: R_ij ∝ w_ij (‖x_i − x_j‖² + ε²)^(p/2 − 1), j ≠ i.

    The diagonal is unchanged, R_ii = w_ii, and the rest 1 − w_ii is divided anew among the others; p = 2
    returns W itself. An Euler step along −∇E would be unstable, as its weights have no bound for p < 2. This
    is a step of iteratively reweighted least squares (for p = 1 Weiszfeld's): with a_ij = F_ij (…)^(p/2 − 1),
    L = D − A is the Laplacian of a quadratic that touches E from above, and (1 − γ) X + γ R X goes from X by
    γ(1 − w_ii) ≤ 1 times −D⁻¹ L X. As L ≤ 2D, no such step can raise the quadratic, nor E. So for a W whose
    rows are those of a symmetric F, scaled (`row_softmax` and `row_normalize` make no others), and any γ from
    0 to 1, ``pnorm_energy(x, F, p, eps)`` never rises.

    Args:
        x: the features.
        W: weights with rows that sum to one, or zero at padding.
        p: 1 to 2.
        eps: the weights of elements closer than this are about those for p = 2.

    >>> pnorm_reweighted(torch.tensor([[[0.0], [1.0], [5.0]]]), torch.full((1, 3, 3), 1 / 3), 1.0)
    tensor([[[0.3333, 0.5551, 0.1116], [0.5328, 0.3333, 0.1338], [0.2963, 0.3704, 0.3333]]])
    """
    check_norm(p, eps)
    if p == 2:
        return W
    diagonal = _diagonal(W)
    squared = _squared_distances(x, W)
    others = W.to(squared.dtype).masked_fill(diagonal, 0)
    a = others * (squared + eps**2).pow(p / 2 - 1)
    total = a.sum(-1, keepdim=True)
    rest = others.sum(-1, keepdim=True) / (total + (total == 0))  # 0 without other edges
    return torch.where(diagonal, W, (rest * a).to(W.dtype))


class PNormBlock(SetDenoisingBlock):
    """Ours: a denoising block that keeps edges, τ(((1 − γ) X + γ R(X) X) H) with R from `pnorm_reweighted`.

    The graph W is the same for all blocks; each block reweights it by the distances of its input features,
    and gradients flow through the new weights. For p = 2 it is `SetDenoisingBlock`.

    Args:
        dim: input and output features of an element.
        p: 1 (preserves edges best) to 2 (not at all).
        gamma: the diffusion coefficient; by default a learned one of its own.
        eps: the distance below which elements count as equal. Features after an activation are about 1 apart
            or more, where 0.1 has no effect. A much smaller value is near the rounding error of squared
            distances, about 1e-7 ‖x‖², and increases the gradient of log a_ij, which is up to (2 − p) / 2ε.
        activation: τ.

    >>> block = PNormBlock(4, p=1.0, gamma=Gamma(0.5))
    >>> block(torch.randn(1, 3, 4), torch.full((1, 3, 3), 1 / 3)).shape
    torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        dim: int,
        *,
        p: float = 1.0,
        gamma: Gamma | None = None,
        eps: float = EPS,
        activation: str = "relu",
    ) -> None:
        check_norm(p, eps)
        super().__init__(dim, gamma=gamma, activation=activation)
        self.p = p
        self.eps = eps

    def forward(self, x: Float[Tensor, "b n d"], W: Propagator) -> Float[Tensor, "b n d"]:
        """One step."""
        return super().forward(x, self.reweighted(x, W))

    def reweighted(self, x: Float[Tensor, "b n d"], W: Propagator) -> Propagator:
        """The graph R that this block passes its messages on."""
        if self.p == 2:
            return W
        if isinstance(W, Tensor):
            return pnorm_reweighted(x, W, self.p, self.eps)
        return W.reweighted(x, p=self.p, eps=self.eps)

    def extra_repr(self) -> str:
        """The settings that the submodules do not show."""
        return f"p={self.p}, eps={self.eps}"


def _diagonal(W: Tensor) -> Tensor:
    return torch.eye(W.shape[-1], dtype=torch.bool, device=W.device)


def _squared_distances(x: Tensor, W: Tensor) -> Tensor:
    """Between all elements, in single precision or better; padding (rows of W that are zero) is at 0."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return squared_distances(center(x, W.sum(-1) > 0))


def check_norm(p: float, eps: float, *, zero: bool = False) -> None:
    """Raise unless p lies between 1 and 2 and eps is positive (or zero, if allowed) and finite."""
    if not 1 <= p <= 2:
        raise ValueError(f"p must lie between 1 and 2, got {p}")
    if not 0 <= eps < float("inf") or (eps == 0 and not zero):
        raise ValueError(f"eps must be {'not negative' if zero else 'positive'} and finite, got {eps}")
