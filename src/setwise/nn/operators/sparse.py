"""Sparse graphs: weights as a list of edges, row by row.

With C the matrix of some numbers c_ij on the edges, three operations are needed: C x, the products ⟨a_i, b_j⟩
along the edges, and the squared distances ‖z_i − z_j‖² along the edges. Their time is proportional to the
number of edges, and they store nothing larger than n × d. Their gradients are the same three operations, with
the edges in either direction.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from setwise.functional import center
from setwise.nn.blocks import check_norm
from setwise.nn.graph import LatentGraph, LearnedGraph
from setwise.nn.kernel import Encoded
from setwise.nn.operators.base import Weights

CHUNK = 2**18
"""Numbers gathered along the edges at a time."""


@torch.library.custom_op("setwise::edge_sum", mutates_args=())
def edge_sum(x: Tensor, values: Tensor, offsets: Tensor, columns: Tensor) -> Tensor:
    """C x: the sum Σ_j c_ij x_j over the edges of each row.

    Args:
        x: features of the columns ``[m, d]``.
        values: c ``[edges]``.
        offsets: position of the first edge of each row, and the number of edges ``[rows + 1]``.
        columns: j of each edge.

    >>> x, values = torch.tensor([[1.0], [10.0]]), torch.tensor([0.5, 0.5, 2.0])
    >>> edge_sum(x, values, torch.tensor([0, 2, 3, 3]), torch.tensor([0, 1, 1])).tolist()
    [[5.5], [20.0], [0.0]]
    """
    with torch.autocast(x.device.type, enabled=False):
        return embedding_bag(
            columns, x.contiguous(), offsets, mode="sum", per_sample_weights=values, include_last_offset=True
        )


@torch.library.custom_op("setwise::edge_products", mutates_args=())
def edge_products(a: Tensor, b: Tensor, offsets: Tensor, columns: Tensor) -> Tensor:
    """⟨a_i, b_j⟩ along each edge.

    >>> a, b = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [5.0]])
    >>> edge_products(a, b, torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])).tolist()
    [3.0, 5.0, 10.0]
    """
    return _along_edges(lambda a, b: a.mul_(b), a, b, offsets, columns)


@torch.library.custom_op("setwise::edge_distances", mutates_args=())
def edge_distances(z: Tensor, offsets: Tensor, columns: Tensor) -> Tensor:
    """‖z_i − z_j‖² along each edge, from the differences: small distances are as accurate as large ones.

    >>> z = torch.tensor([[1.0], [3.0]])
    >>> edge_distances(z, torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])).tolist()
    [0.0, 4.0, 0.0]
    """
    return _along_edges(lambda a, b: a.sub_(b).square_(), z, z, offsets, columns)


def _along_edges(
    function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, offsets: Tensor, columns: Tensor
) -> Tensor:
    """Σ_d f(a_id, b_jd) for the edges, in chunks."""
    out = a.new_empty(len(columns))
    step = max(1, CHUNK // max(1, a.shape[1]))
    parts = (part.split(step) for part in (rows_of(offsets, columns), columns, out))
    for i, j, place in zip(*parts, strict=True):
        torch.sum(function(a.index_select(0, i), b.index_select(0, j)), dim=1, out=place)
    return out


def rows_of(offsets: Int[Tensor, " offsets"], columns: Int[Tensor, " edges"]) -> Int[Tensor, " edges"]:
    """The row of each edge.

    >>> rows_of(torch.tensor([0, 2, 2, 3]), torch.tensor([0, 1, 1])).tolist()
    [0, 0, 2]
    """
    return torch.repeat_interleave(offsets.diff(), output_size=columns.shape[0])


def row_sums(
    values: Float[Tensor, " edges"], rows: Int[Tensor, " edges"], offsets: Int[Tensor, " offsets"]
) -> Float[Tensor, " rows"]:
    """The sum Σ_j c_ij of each row.

    >>> row_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), torch.tensor([0, 2, 2, 3])).tolist()
    [3.0, 0.0, 4.0]
    """
    return values.new_zeros(offsets.shape[0] - 1).index_add(0, rows, values)


def transposed(
    offsets: Int[Tensor, " offsets"], columns: Int[Tensor, " edges"], m: int
) -> tuple[Int[Tensor, " edges"], Int[Tensor, " reverse"], Int[Tensor, " edges"]]:
    """The same edges column by column: their new order, the start of each of the m columns, and their rows.

    >>> [part.tolist() for part in transposed(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0]), 2)]
    [[0, 2, 1], [0, 2, 3], [0, 1, 0]]
    """
    order = columns.argsort(stable=True)
    begin = torch.searchsorted(columns[order], torch.arange(m + 1, device=columns.device))
    return order, begin, rows_of(offsets, columns)[order]


def _transposed_sum(x: Tensor, values: Tensor, offsets: Tensor, columns: Tensor, m: int) -> Tensor:
    """Cᵀ x: many times faster than the gradient of embedding_bag."""
    order, begin, rows = transposed(offsets, columns, m)
    out: Tensor = edge_sum(x, values[order], begin, rows)
    return out


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _sum_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    x, values, offsets, columns = ctx.saved_tensors
    need_x, need_values, _, _ = ctx.needs_input_grad
    grad = grad.contiguous()
    return (
        _transposed_sum(grad, values, offsets, columns, x.shape[0]) if need_x else None,
        edge_products(grad, x, offsets, columns) if need_values else None,
        None,
        None,
    )


def _product_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    a, b, offsets, columns = ctx.saved_tensors
    need_a, need_b, _, _ = ctx.needs_input_grad
    grad = grad.contiguous()
    return (
        edge_sum(b, grad, offsets, columns) if need_a else None,
        _transposed_sum(a, grad, offsets, columns, b.shape[0]) if need_b else None,
        None,
        None,
    )


def _distance_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    """∂z_i = 2 Σ_j (c_ij + c_ji) (z_i − z_j), with the sums of c from a column of ones appended to z."""
    z, offsets, columns = ctx.saved_tensors
    grad = grad.contiguous()
    wide = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)
    sums = edge_sum(wide, grad, offsets, columns)
    sums = sums + _transposed_sum(wide, grad, offsets, columns, z.shape[0])
    return 2 * (sums[:, -1:] * z - sums[:, :-1]), None, None


edge_sum.register_fake(lambda x, values, offsets, columns: x.new_empty(offsets.shape[0] - 1, x.shape[1]))
edge_products.register_fake(lambda a, b, offsets, columns: a.new_empty(columns.shape[0]))
edge_distances.register_fake(lambda z, offsets, columns: z.new_empty(columns.shape[0]))
edge_sum.register_autograd(_sum_gradients, setup_context=_keep)
edge_products.register_autograd(_product_gradients, setup_context=_keep)
edge_distances.register_autograd(_distance_gradients, setup_context=_keep)


class SparseWeights(Weights):
    """Weights W as a list of edges, in O(edges) memory; ``W @ x`` takes O(edges · d) time.

    Elements are numbered over all sets: element j of set i is n i + j.

    Args:
        offsets: position of the first edge of each of the b n rows, and the number of edges.
        columns: the neighbour j of each edge.
        values: the weight w_ij of each edge, in single precision or better.
        shape: ``(b, n, n)``.
        dtype: type of the features.

    >>> offsets, columns = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    >>> values = torch.tensor([0.5, 0.5, 1.0])
    >>> W = SparseWeights(offsets, columns, values, shape=(1, 2, 2), dtype=torch.float32)
    >>> (W @ torch.tensor([[[1.0], [3.0]]])).tolist()
    [[[2.0], [3.0]]]
    >>> W.to_dense()
    tensor([[[0.5000, 0.5000], [0.0000, 1.0000]]])
    """

    def __init__(
        self,
        offsets: Int[Tensor, " offsets"],
        columns: Int[Tensor, " edges"],
        values: Float[Tensor, " edges"],
        *,
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        super().__init__(shape, dtype, values.device)
        self.offsets = offsets
        self.columns = columns
        self.values = values

    def __matmul__(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Return ``W x``."""
        self.check(x)
        dtype = torch.promote_types(x.dtype, self.values.dtype)
        flat = x.to(dtype).flatten(0, 1)
        out: Tensor = edge_sum(flat, self.values.to(dtype), self.offsets, self.columns)
        return out.view(x.shape).to(x.dtype)

    @property
    def nnz(self) -> int:
        """Number of edges, including those of zero weight."""
        return self.columns.shape[0]

    @property
    def rows(self) -> Int[Tensor, " edges"]:
        """The row i of each edge."""
        return rows_of(self.offsets, self.columns)

    def edges(self) -> tuple[Int[Tensor, "2 edges"], Float[Tensor, " edges"]]:
        """The edges (i, j) of positive weight, row by row, and their weights.

        Elements are numbered over all sets; ``index // n`` is the set and ``index % n`` the place in it.
        """
        positive = self.values > 0
        return torch.stack([self.rows, self.columns])[:, positive], self.values[positive]

    def squared_differences(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, " b"]:
        """Σ_ij w_ij ‖x_i − x_j‖² of each set, from the differences along the edges."""
        self.check(x)
        flat = x.to(torch.promote_types(x.dtype, self.values.dtype)).flatten(0, 1)
        weighted: Tensor = self.values * edge_distances(flat, self.offsets, self.columns)
        b, n, _ = self.shape
        return weighted.new_zeros(b).index_add(0, self.rows // max(n, 1), weighted)

    def reweighted(self, x: Float[Tensor, "b n d"], *, p: float, eps: float) -> "SparseWeights":
        """The graph of `setwise.nn.pnorm_reweighted`: R_ij ∝ w_ij (‖x_i − x_j‖² + ε²)^(p/2 − 1) for j ≠ i.

        The diagonal is unchanged; the rest of each row is divided anew among its edges. The energy may rise
        if neighbours are not mutual.
        """
        check_norm(p, eps)
        rows = self.rows
        real = row_sums(self.values, rows, self.offsets).view(self.shape[:2]) > 0
        x = center(x.to(torch.promote_types(x.dtype, self.values.dtype)), real)
        squared = edge_distances(x.flatten(0, 1), self.offsets, self.columns)
        diagonal = rows == self.columns
        others = self.values.masked_fill(diagonal, 0)
        a = others * (squared + eps**2).pow(p / 2 - 1)
        total = row_sums(a, rows, self.offsets)
        rest = row_sums(others, rows, self.offsets) / (total + (total == 0))  # 0 without other edges
        values = torch.where(diagonal, self.values, rest[rows] * a)
        return SparseWeights(self.offsets, self.columns, values, shape=self.shape, dtype=self.dtype)


class SparseGraph(nn.Module):
    """A dense graph with its weak edges removed.

    Args:
        graph: a graph that returns a matrix.
        rule: ``W → W``, e.g. ``partial(sparsify, delta=0.01)`` or ``partial(top_k, k=16)``.

    >>> from functools import partial
    >>> from setwise.functional import top_k
    >>> W = SparseGraph(LatentGraph(3), partial(top_k, k=2))(torch.randn(1, 5, 3))
    >>> (W > 0).sum(-1)
    tensor([[2, 2, 2, 2, 2]])
    """

    def __init__(self, graph: nn.Module, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        if isinstance(graph, LearnedGraph) and not isinstance(graph, LatentGraph):
            raise TypeError(
                f"SparseGraph needs a graph with a matrix, such as LatentGraph, got {type(graph).__name__}"
            )
        self.graph = graph
        self.rule = rule

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The weights W."""
        return self.rule(self.graph(x, mask))

    def initialize_bandwidth(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> "SparseGraph":
        """Initialise the bandwidth of the inner graph, if it has one."""
        start = getattr(self.graph, "initialize_bandwidth", None)
        if callable(start):
            start(x, mask)
        return self
