"""Pooling ``(x [b, n, d], mask) → [b, d]``: sum, mean, max, attention, joined. Empty sets pool to zeros."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise.functional import fill_padding, masked_softmax
from setwise.nn.layers import Dense


class SumPool(nn.Module):
    """Sum of the elements.

    >>> import torch
    >>> SumPool()(torch.ones(1, 3, 2), torch.tensor([[True, True, False]]))
    tensor([[2., 2.]])
    """

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b d"]:
        """Pool."""
        return fill_padding(x, mask).sum(1)


class MeanPool(nn.Module):
    """Mean of the elements.

    >>> import torch
    >>> MeanPool()(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[2.]])
    """

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b d"]:
        """Pool."""
        if mask is None:
            return x.sum(1) / max(x.shape[1], 1)
        return fill_padding(x, mask).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


class MaxPool(nn.Module):
    """The largest value of each feature.

    >>> import torch
    >>> MaxPool()(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[3.]])
    """

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b d"]:
        """Pool."""
        if x.shape[1] == 0:
            return x.sum(1)
        if mask is None:
            return x.amax(1)
        largest = fill_padding(x, mask, float("-inf")).amax(1)
        return largest.masked_fill(~mask.any(1, keepdim=True), 0)


class AttentionPool(nn.Module):
    """Attention-weighted mean: Σ a_i x_i with a = softmax over the set of wᵀ tanh(V x_i).

    Args:
        dim: features of an element.
        hidden: width of the attention network.

    >>> import torch
    >>> AttentionPool(4)(torch.randn(2, 3, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.score = nn.Sequential(
            Dense(dim, hidden, activation="tanh"), Dense(hidden, 1, activation="identity")
        )

    def attention(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n"]:
        """The weights a, which sum to one over the real elements."""
        return masked_softmax(self.scores(fill_padding(x, mask)), mask)

    def scores(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
        """The scores before the softmax."""
        out: Tensor = self.score(x)
        return out.squeeze(-1)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b d"]:
        """Pool."""
        a = self.attention(x, mask).unsqueeze(1)
        return (a @ fill_padding(x, mask)).squeeze(1)


class GatedAttentionPool(AttentionPool):
    """Attention-weighted mean with a gate: a = softmax over the set of wᵀ (tanh(V x_i) ⊙ σ(U x_i)).

    The gate compensates for tanh being almost linear near zero.

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
        """The scores before the softmax."""
        hidden, last = self.score
        out: Tensor = last(hidden(x) * self.gate(x))
        return out.squeeze(-1)


class JoinedPool(nn.Module):
    """The concatenated results of several pools.

    Args:
        *pools: ``(x, mask) → [b, d]``; the result has the features of all pools.

    >>> from setwise.nn.pool import MaxPool, MeanPool
    >>> JoinedPool(MaxPool(), MeanPool())(torch.tensor([[[1.0], [3.0]]]))
    tensor([[3., 2.]])
    """

    def __init__(self, *pools: nn.Module) -> None:
        super().__init__()
        if not pools:
            raise ValueError("JoinedPool needs at least one pool, got none")
        self.pools = nn.ModuleList(pools)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Pool."""
        return torch.cat([pool(x, mask) for pool in self.pools], dim=-1)
