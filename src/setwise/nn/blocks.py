"""Blocks ``(x [b, n, d], W) → [b, n, d]``: one step of messages over the graph, then a layer.

Blocks never see a mask: W is zero wherever an end is padding. All blocks of a model share one W. A new block
hardly changes its input beyond the messages: the layer of a block that replaces the features starts near the
identity, the layer of a block that adds to them starts as any other.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from setwise.functional import Propagator, propagate
from setwise.nn.dense import Dense, NearIdentity


class Gamma(nn.Module):
    """The diffusion coefficient γ: how far one step goes from the features to their neighbours' mean.

    One such module is shared by all blocks of a model (the paper's choice); give each block its own for
    a γ per block.

    Args:
        value: where γ starts (learned, strictly between 0 and 1) or stays (fixed, 0 to 1).
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
        dim: features of an element; they keep their number.
        gamma: the diffusion coefficient; its own and learned unless a shared one is given.
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
