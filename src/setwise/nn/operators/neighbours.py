"""The latent graph of many elements, each of which listens to a few near ones."""

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor

from setwise.functional import row_normalize
from setwise.nn.graph import Encoded, LatentGraph
from setwise.nn.operators.base import normal_form, scaled
from setwise.nn.operators.search import Search, affinity, check_search, nearest, pairs_above
from setwise.nn.operators.sparse import SparseWeights, edge_distances, row_sums, rows_of


class NeighbourGraph(LatentGraph):
    """`LatentGraph` with its weak edges removed before they exist: the same parameters, memory O(edges).

    With E_i the k nearest elements of i in the embedding (itself included), or those whose weight in the full
    graph is δ or more, W_ij = F_ij / Σ_{l ∈ E_i} F_il for j ∈ E_i and zero elsewhere; F_ij = exp(K_ij) for
    the paper's softmax. This is ``SparseGraph(LatentGraph(…), rule)`` with ``partial(top_k, k=k)`` or
    ``partial(sparsify, delta=delta)``, except that of neighbours at the very same distance ``k`` stay k. Who
    is a neighbour counts as a constant in gradients.

    The k nearest are found exactly up to 30,000 elements, so that W does not depend on their order. Beyond,
    an approximate search finds at least about 95 % of them, and not quite the same in another order. A
    threshold compares all pairs, tile by tile. As softmax(K) gives nobody less than 1 / (e n) or more than
    e / n, only δ between these keeps some edges and drops others; with ``normalize=row_normalize`` any may.

    Args:
        in_dim: features of an encoded element (d_i).
        hidden: widths of the layers of the embedding (d_m, d_o).
        k: how many elements to listen to; of a smaller set, all.
        delta: the threshold δ. Give either ``k`` or ``delta``.
        search: how to find the k nearest, see `setwise.nn.operators.search.nearest`.
        activation: of both layers.
        sigma: bandwidth to start from.
        normalize: `row_normalize` or `row_softmax`; ``partial(…, temperature=T)`` of either.

    >>> W = NeighbourGraph(3, k=2)(torch.randn(2, 5, 3))
    >>> W
    SparseWeights(shape=[2, 5, 5], dtype=torch.float32, device=cpu)
    >>> W.nnz, (W @ torch.ones(2, 5, 1)).allclose(torch.ones(2, 5, 1))
    (20, True)
    """

    def __init__(
        self,
        in_dim: int,
        hidden: tuple[int, ...] = (64, 128),
        *,
        k: int | None = None,
        delta: float | None = None,
        search: Search = "auto",
        activation: str = "relu",
        sigma: float = 1.0,
        normalize: Callable[[Tensor, Tensor | None], Tensor] = row_normalize,
    ) -> None:
        super().__init__(in_dim, hidden, activation=activation, sigma=sigma, normalize=normalize)
        self.softmax, self.temperature = normal_form(normalize)
        if (k is None) == (delta is None):
            raise ValueError(f"give either k or delta, got k={k} and delta={delta}")
        if k is not None and k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if delta is not None and not 0 < delta <= 1:
            raise ValueError(f"delta must lie between 0 and 1, got {delta}")
        check_search(search)
        if delta is not None and search == "faiss":
            raise ValueError("delta compares all pairs and needs no search, got search='faiss'")
        self.k = k
        self.delta = delta
        self.search = search

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> SparseWeights:
        """The weights W."""
        b, n, _ = x.shape
        z = scaled(self.embedded(x, mask), self.sigma, mask)
        offsets, columns, there = self._edges(z, mask)
        rows = rows_of(offsets, columns)
        F = affinity(edge_distances(z.flatten(0, 1), offsets, columns), self.softmax, self.temperature)
        if there is not None:
            F = F * there
        total = row_sums(F, rows, offsets)
        values = F / (total + (total == 0))[rows]
        return SparseWeights(offsets, columns, values, shape=(b, n, n), dtype=x.dtype)

    def _edges(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Where the rows begin, the columns, and which of the edges there are if not all.

        The k nearest of each make a fixed number of edges, also where there are fewer: those are from an
        element to itself, and do not count.
        """
        if self.delta is not None:
            offsets, columns = pairs_above(
                z, self.delta, mask, softmax=self.softmax, temperature=self.temperature
            )
            return offsets, columns, None
        assert self.k is not None
        found = nearest(z, self.k, mask, search=self.search)
        b, n, k = found.shape
        places = torch.arange(b * n, device=z.device).view(b, n, 1)
        there = found >= 0
        columns = torch.where(there, found + places[:, :1], places)
        offsets = k * torch.arange(b * n + 1, device=z.device)
        return offsets, columns.flatten(), there.flatten()

    def extra_repr(self) -> str:
        """What the parts do not tell."""
        rule = f"delta={self.delta}" if self.k is None else f"k={self.k}, search={self.search!r}"
        return f"{rule}, softmax={self.softmax}, temperature={self.temperature}"
