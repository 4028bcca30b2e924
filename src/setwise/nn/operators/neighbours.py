"""The latent graph with edges to near elements only, for large sets."""

from typing import Unpack

import torch
from jaxtyping import Bool
from torch import Tensor

from setwise.functional import row_normalize
from setwise.nn.graph import LearnedGraph, Normalize
from setwise.nn.kernel import DeepKernel, Encoded, KernelOptions, deep_kernel
from setwise.nn.operators.base import gaussian_form
from setwise.nn.operators.search import Search, affinity, check_search, nearest, pairs_above
from setwise.nn.operators.sparse import SparseWeights, edge_distances, row_sums, rows_of


class NeighbourGraph(LearnedGraph):
    """`LatentGraph` without its weak edges, which are never computed: the same parameters, memory O(edges).

    With E_i the k nearest elements of i in the embedding (itself included), or those whose weight in the full
    graph is δ or more, W_ij = F_ij / Σ_{l ∈ E_i} F_il for j ∈ E_i and zero elsewhere; F_ij = exp(K_ij) for
    the paper's softmax. This is ``SparseGraph(LatentGraph(…), rule)`` with ``partial(top_k, k=k)`` or
    ``partial(sparsify, delta=delta)``, except that ``k`` keeps exactly k of several neighbours at the same
    distance. Gradients treat the choice of neighbours as a constant.

    The k nearest are exact up to 30,000 elements, so that W does not depend on the order of the elements.
    Beyond, an approximate search finds at least about 95 % of them, and its result depends slightly on the
    order. A threshold compares all pairs, tile by tile. As weights of softmax(K) lie between 1 / (e n) and
    e / n, only a δ between these bounds removes some edges and keeps others; with
    ``normalize=row_normalize`` any δ may.

    Args:
        in_dim: features of an encoded element (d_i), or a `DeepKernel`.
        hidden: widths of the layers of the embedding (d_m, d_o).
        k: number of neighbours of each element; all elements of a smaller set.
        delta: the threshold δ. Give either ``k`` or ``delta``.
        search: how to find the k nearest, see `setwise.nn.operators.search.nearest`.
        normalize: `row_normalize` or `row_softmax`; ``partial(…, temperature=T)`` of either.
        **options: ``activation`` and ``sigma`` of the `DeepKernel`.

    >>> W = NeighbourGraph(3, k=2)(torch.randn(2, 5, 3))
    >>> W
    SparseWeights(shape=[2, 5, 5], dtype=torch.float32, device=cpu)
    >>> W.nnz, (W @ torch.ones(2, 5, 1)).allclose(torch.ones(2, 5, 1))
    (20, True)
    """

    def __init__(
        self,
        in_dim: int | DeepKernel,
        hidden: tuple[int, ...] | None = None,
        *,
        k: int | None = None,
        delta: float | None = None,
        search: Search = "auto",
        normalize: Normalize = row_normalize,
        **options: Unpack[KernelOptions],
    ) -> None:
        super().__init__(deep_kernel(in_dim, hidden, **options), normalize)
        self.softmax, self.temperature = gaussian_form(self.kernel, normalize)
        if (k is None) == (delta is None):
            raise ValueError(f"give either k or delta, got k={k} and delta={delta}")
        if k is not None and k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if delta is not None and not 0 < delta <= 1:
            raise ValueError(f"delta must lie between 0 and 1, got {delta}")
        check_search(search)
        if delta is not None and search == "faiss":
            raise ValueError(
                "search must not be given with delta, which compares all pairs, got search='faiss'"
            )
        self.k = k
        self.delta = delta
        self.search = search

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> SparseWeights:
        """The weights W."""
        b, n, _ = x.shape
        z = self.kernel.scaled(x, mask)
        offsets, columns, valid = self._edges(z, mask)
        rows = rows_of(offsets, columns)
        F = affinity(edge_distances(z.flatten(0, 1), offsets, columns), self.softmax, self.temperature)
        if valid is not None:
            F = F * valid
        total = row_sums(F, rows, offsets)
        values = F / (total + (total == 0))[rows]
        return SparseWeights(offsets, columns, values, shape=(b, n, n), dtype=x.dtype)

    def _edges(self, z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The start of each row, the columns, and which edges are valid (None: all).

        The k nearest always give k edges per element. Where there are fewer neighbours, the rest are invalid
        edges from an element to itself.
        """
        if self.delta is not None:
            offsets, columns = pairs_above(
                z, self.delta, mask, softmax=self.softmax, temperature=self.temperature
            )
            return offsets, columns, None
        assert self.k is not None
        index = nearest(z, self.k, mask, search=self.search)
        b, n, k = index.shape
        places = torch.arange(b * n, device=z.device).view(b, n, 1)
        valid = index >= 0
        columns = torch.where(valid, index + places[:, :1], places)
        offsets = k * torch.arange(b * n + 1, device=z.device)
        return offsets, columns.flatten(), valid.flatten()

    def extra_repr(self) -> str:
        """The settings that the submodules do not show."""
        rule = f"delta={self.delta}" if self.k is None else f"k={self.k}, search={self.search!r}"
        return f"{rule}, softmax={self.softmax}, temperature={self.temperature}"
