"""Counting what is different: the latent graph as a measure of how many distinct elements a set has."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor, finfo, nn

from setwise.functional import shares
from setwise.nn.encoders import placed
from setwise.nn.graph import LatentGraph
from setwise.nn.models import DMPS
from setwise.sets import Elements


class DistinctDMPS(DMPS):
    """DMPS in which alike elements count as one: log λ = log N + head(z / N).

    With deg_i = Σ_j K_ij from the learned kernel, an element has the share 1 / deg_i: m alike ones weigh as
    one. N = Σ_i 1 / deg_i is then the effective number of different elements, and z = Σ_i x_i / deg_i their
    sum (distinct pooling). The head learns a positive factor to N from their mean z / N; it starts at one.
    So the count is there, and differentiable through the kernel, from the first step.

    Args:
        encoder: ``(x, mask) → [b, n, d]``.
        graph: a `LatentGraph`; its kernel gives the shares, its weights carry the messages.
        blocks: ``(x, W) → x``, one after the other.
        pool: ``(x, mask) → [b, d]`` with x_i / (N deg_i) for elements: `SumPool`, as a rule.
        head: ``[b, d] → [b, k]``, the logarithm of the factor.

    >>> import torch
    >>> model = DistinctDMPS.build(3, 1, dim=16, pool="sum")
    >>> model(torch.randn(2, 5, 3)).shape
    torch.Size([2, 1])
    >>> bool((model.effective_number(torch.ones(1, 5, 3)) - 1).abs() < 1e-5)  # five times the same
    True
    """

    graph: LatentGraph

    def __init__(
        self,
        encoder: nn.Module,
        graph: nn.Module,
        blocks: Sequence[nn.Module],
        pool: nn.Module,
        head: nn.Module,
    ) -> None:
        if not isinstance(graph, LatentGraph):
            raise TypeError(f"distinct pooling needs the kernel of a LatentGraph, got {type(graph).__name__}")
        super().__init__(encoder, graph, blocks, pool, head)

    def forward(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b k"]:
        """The logarithm of the count, one row a set."""
        encoded = self.encoder(x, mask)
        log_K = self.graph.log_kernel(encoded, mask)
        features = placed(encoded, mask)
        W = self.graph.normalize(log_K, mask).to(features.dtype)
        for block in self.blocks:
            features = block(features, W)
        share = shares(log_K.exp(), mask).unsqueeze(-1)
        N = share.sum(1).clamp(min=finfo(share.dtype).tiny)  # an empty set has none
        weighted = features * (share / N.unsqueeze(1)).to(features.dtype)
        out: Tensor = N.log() + self.head(self.pool(weighted, mask))
        return out

    def effective_number(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, " b"]:
        """N = Σ_i 1 / deg_i: how many different elements the kernel sees in each set."""
        return shares(self.graph.similarity(self.encoder(x, mask), mask), mask).sum(1)
