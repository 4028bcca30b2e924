"""Multiple-instance learning as it is mostly done: encode the instances of a bag, weigh them, read out.

Attention and gated attention follow Ilse, Tomczak and Welling, *Attention-based Deep Multiple Instance
Learning* (2018); mean and maximum are what they were compared with. No instance hears another one.
"""

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from setwise.nn.baselines import Layered
from setwise.nn.dense import Dense
from setwise.nn.encoders import MLP
from setwise.nn.models import choose
from setwise.nn.pool import AttentionPool, MaxPool, MeanPool


class GatedAttentionPool(AttentionPool):
    """Attention-weighted mean with a gate: a = softmax over the set of wᵀ (tanh(V x_i) ⊙ σ(U x_i)).

    The tangent is almost linear near zero; the gate makes up for it.

    Args:
        dim: features of an element.
        hidden: width of the attention network.

    >>> import torch
    >>> GatedAttentionPool(4)(torch.randn(2, 3, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, dim: int, hidden: int = 64) -> None:
        super().__init__(dim, hidden)
        self.gate = Dense(dim, hidden, activation="sigmoid")

    def scores(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
        """What the softmax is taken of."""
        tangent, read = self.score
        out: Tensor = read(tangent(x) * self.gate(x))
        return out.squeeze(-1)


class PooledMIL(Layered):
    """Encode each instance, pool the bag, read out. `setwise.importance` tells the weights of the instances.

    Args:
        encoder: ``(x, mask) → [b, n, d]``.
        pool: ``(x, mask) → [b, d]``.
        head: ``[b, d] → [b, k]``, raw outputs.
    """

    def __init__(self, encoder: nn.Module, pool: nn.Module, head: nn.Module) -> None:
        super().__init__(encoder, (), pool, head)

    @classmethod
    def build(
        cls,
        in_dim: int,
        out_dim: int,
        *,
        dim: int = 64,
        hidden: int = 128,
        pool: Literal["attention", "gated", "mean", "max"] | nn.Module = "gated",
        encoder: nn.Module | None = None,
        activation: str = "relu",
    ) -> "PooledMIL":
        """Build a model from sizes and names.

        Args:
            in_dim: features of a raw instance.
            out_dim: outputs of the model.
            dim: features of an encoded instance.
            hidden: width of the attention network, 128 as published.
            pool: how instances become a bag, or a module ``(x, mask) → [b, dim]``.
            encoder: a module ``(x, mask) → [b, n, dim]`` instead of one fully connected layer.
            activation: of that layer.

        >>> import torch
        >>> model = PooledMIL.build(166, 1, pool="gated")
        >>> model(torch.randn(2, 40, 166)).shape
        torch.Size([2, 1])
        """
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {hidden}")
        pools: dict[str, Callable[[], nn.Module]] = {
            "attention": lambda: AttentionPool(dim, hidden),
            "gated": lambda: GatedAttentionPool(dim, hidden),
            "mean": MeanPool,
            "max": MaxPool,
        }
        return cls(
            encoder=MLP(in_dim, dim, activation=activation) if encoder is None else encoder,
            pool=choose("pool", pool, pools) if isinstance(pool, str) else pool,
            head=Dense(dim, out_dim, activation="identity"),
        )
