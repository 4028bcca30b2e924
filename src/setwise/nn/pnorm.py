"""Message passing down a p-norm energy, which the paper leaves to future work: ours.

A denoising block descends Σ w_ij ‖x_i − x_j‖², to which far neighbours give most, so it blurs whatever sets
elements apart. With ‖x_i − x_j‖^p and p < 2 far ones count for less: the alike come together, edges stay.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from setwise.functional import Propagator, center, dirichlet_energy, squared_distances
from setwise.nn.blocks import Gamma, SetDenoisingBlock

EPS = 0.1  # see PNormBlock


def pnorm_energy(
    x: Float[Tensor, "b n d"], W: Float[Tensor, "b n n"], p: float, eps: float = EPS
) -> Float[Tensor, " b"]:
    """Roughness over the graph by the p-norm: E = 1/p Σ_edges w_ij ((‖x_i − x_j‖² + ε²)^(p/2) − ε^p).

    Each edge counts once, with the mean weight of both directions, so p = 2 is `dirichlet_energy`; p = 1 is
    the total variation. E = 0 means that all elements are alike.

    Args:
        x: the features.
        W: weights, not necessarily with rows that sum to one; rows of padding are zero.
        p: 1 to 2.
        eps: below this length the norm is rounded off; may be zero here.

    >>> x, W = torch.tensor([[[0.0], [4.0]]]), torch.full((1, 2, 2), 0.5)
    >>> pnorm_energy(x, W, 2.0), pnorm_energy(x, W, 1.0, eps=0.0)
    (tensor([4.]), tensor([2.]))
    """
    check_norm(p, eps, zero=True)
    if p == 2:
        return dirichlet_energy(x, W)
    squared = _squared_distances(x, W)
    alike = (squared == 0) | _oneself(W)  # exactly: √ would make much of a rounding error
    lengths = (squared.masked_fill(alike, 1) + eps**2).pow(p / 2) - eps**p  # √ has no slope at 0
    energy: Tensor = (W * lengths.masked_fill(alike, 0)).sum((-2, -1)) / (2 * p)
    return energy


def pnorm_reweighted(
    x: Float[Tensor, "b n d"], W: Float[Tensor, "b n n"], p: float, eps: float = EPS
) -> Float[Tensor, "b n n"]:
    """The graph whose messages descend the p-norm energy: R_ij ∝ w_ij (‖x_i − x_j‖² + ε²)^(p/2 − 1), j ≠ i.

    An element keeps its own weight, R_ii = w_ii, and divides the rest 1 − w_ii anew among the others; p = 2
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
        eps: elements closer than this hear each other as for p = 2.

    >>> pnorm_reweighted(torch.tensor([[[0.0], [1.0], [5.0]]]), torch.full((1, 3, 3), 1 / 3), 1.0)
    tensor([[[0.3333, 0.5551, 0.1116], [0.5328, 0.3333, 0.1338], [0.2963, 0.3704, 0.3333]]])
    """
    check_norm(p, eps)
    if p == 2:
        return W
    oneself = _oneself(W)
    squared = _squared_distances(x, W)
    others = W.to(squared.dtype).masked_fill(oneself, 0)
    a = others * (squared + eps**2).pow(p / 2 - 1)
    total = a.sum(-1, keepdim=True)
    rest = others.sum(-1, keepdim=True) / (total + (total == 0))  # 0 where one hears no other
    return torch.where(oneself, W, (rest * a).to(W.dtype))


class PNormBlock(SetDenoisingBlock):
    """Ours: a denoising block that keeps edges, τ(((1 − γ) X + γ R(X) X) H) with R from `pnorm_reweighted`.

    The graph W is the same for all blocks; each one reweights it by the distances of the features it gets,
    and gradients flow through that. For p = 2 it is `SetDenoisingBlock`.

    Args:
        dim: features of an element; they keep their number.
        p: 1 (edges are kept best) to 2 (not at all).
        gamma: the diffusion coefficient; its own and learned unless a shared one is given.
        eps: the distance below which elements count as alike. Features that an activation has just left are
            about 1 apart or more, where 0.1 does not show. Much less would meet the rounding error of squared
            distances, about 1e-7 ‖x‖², and let the gradient of log a_ij grow, which is up to (2 − p) / 2ε.
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
        own = getattr(W, "reweighted", None)
        if own is None:
            raise TypeError(f"W must be a tensor or have a method 'reweighted', got {type(W).__name__}")
        R: Propagator = own(x, p=self.p, eps=self.eps)
        return R

    def extra_repr(self) -> str:
        """What the parts do not tell."""
        return f"p={self.p}, eps={self.eps}"


def _oneself(W: Tensor) -> Tensor:
    return torch.eye(W.shape[-1], dtype=torch.bool, device=W.device)


def _squared_distances(x: Tensor, W: Tensor) -> Tensor:
    """Between all elements, in single precision or better; padding, whose rows of W are zero, lies at 0."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return squared_distances(center(x, W.sum(-1) > 0))


def check_norm(p: float, eps: float, *, zero: bool = False) -> None:
    """Refuse a power outside 1 to 2 and a rounding that is not positive."""
    if not 1 <= p <= 2:
        raise ValueError(f"p must lie between 1 and 2, got {p}")
    if not 0 <= eps < float("inf") or (eps == 0 and not zero):
        raise ValueError(f"eps must be {'not negative' if zero else 'positive'} and finite, got {eps}")
