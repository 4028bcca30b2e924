"""Sparse graphs: who listens to few others."""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn


class SparseGraph(nn.Module):
    """Another graph with its weak edges removed.

    Args:
        graph: the graph to thin out.
        rule: ``W → W``, e.g. ``partial(sparsify, delta=0.01)`` or ``partial(top_k, k=16)``.

    >>> import torch
    >>> from functools import partial
    >>> from setwise.functional import top_k
    >>> from setwise.nn.graph import LatentGraph
    >>> W = SparseGraph(LatentGraph(3), partial(top_k, k=2))(torch.randn(1, 5, 3))
    >>> (W > 0).sum(-1)
    tensor([[2, 2, 2, 2, 2]])
    """

    def __init__(self, graph: nn.Module, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.graph = graph
        self.rule = rule

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n n"]:
        """The weights W."""
        return self.rule(self.graph(x, mask))

    def initialize_bandwidth(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> "SparseGraph":
        """Start the bandwidth of the graph inside, if it has one."""
        start = getattr(self.graph, "initialize_bandwidth", None)
        if callable(start):
            start(x, mask)
        return self
