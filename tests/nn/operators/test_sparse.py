"""Sparse graphs of many elements: against the dense ones they stand for, and the searches behind them."""

import copy
import doctest
import math
import pickle
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import setwise as sw
from benchmarks.measure import peak_megabytes
from setwise.nn.operators import search, sparse
from setwise.nn.operators.search import nearest
from setwise.nn.operators.sparse import edge_distances, edge_products, edge_sum, rows_of, transposed
from tests.cases import DIM, padded

SIZES = [9, 6, 1, 0]
NORMALISATIONS: dict[str, Callable[..., Tensor]] = {
    "softmax": sw.functional.row_softmax,
    "normalize": sw.functional.row_normalize,
    "cold-softmax": partial(sw.functional.row_softmax, temperature=0.2),
    "warm-normalize": partial(sw.functional.row_normalize, temperature=2.0),
}
every_normalisation = pytest.mark.parametrize("normalize", NORMALISATIONS.values(), ids=NORMALISATIONS)


def sparse_and_dense(
    rule: str, value: float, normalize: Callable[..., Tensor] = sw.functional.row_normalize, dim: int = DIM
) -> tuple[sw.nn.NeighbourGraph, sw.nn.SparseGraph]:
    torch.manual_seed(1)
    rules = {
        "k": partial(sw.functional.top_k, k=value),
        "delta": partial(sw.functional.sparsify, delta=value),
    }
    arguments = {"activation": "tanh", "sigma": 0.7, "normalize": normalize}
    found = sw.nn.NeighbourGraph(dim, (6, 5), **arguments, **{rule: value}).double()
    dense = sw.LatentGraph(dim, (6, 5), **arguments).double()
    dense.load_state_dict(found.state_dict(), strict=True)
    return found, sw.nn.SparseGraph(dense, rules[rule])


def value_and_gradients(graph: nn.Module, x: Tensor, mask: Tensor | None) -> list[Tensor]:
    """W x, W itself, and the gradient of a function of W x to the elements and to all parameters."""
    x = x.clone().requires_grad_()
    graph.zero_grad()
    W = graph(x, mask)
    out = W @ x
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).square().sum().backward()
    written = W if isinstance(W, Tensor) else W.to_dense()
    return [out, written, *(p.grad for p in [x, *graph.parameters()])]


@every_normalisation
@pytest.mark.parametrize(
    ("rule", "value"),
    [("k", 1), ("k", 2), ("k", 5), ("k", 99), ("delta", 0.05), ("delta", 0.15), ("delta", 1.0)],
)
@pytest.mark.parametrize("tile", [search.TILE, 20], ids=["batch", "tiles"])
def test_it_is_the_dense_graph_with_weak_edges_removed(
    rule: str, value: float, tile: int, normalize: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "TILE", tile)
    monkeypatch.setattr(sparse, "CHUNK", 7 * 5)
    found, dense = sparse_and_dense(rule, value, normalize)
    mask = padded(SIZES)[1]
    x = torch.randn(*mask.shape, DIM)  # no two alike, where dense graphs keep all
    for given in (None, mask, torch.rand(mask.shape) < 0.6):
        pairs = zip(
            value_and_gradients(found, x.double(), given),
            value_and_gradients(dense, x.double(), given),
            strict=True,
        )
        for a, b in pairs:
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-11)


def test_a_threshold_keeps_what_the_full_row_says() -> None:
    found, dense = sparse_and_dense("delta", 0.2, sw.functional.row_normalize)
    x = padded([7])[0].double()
    W, full = found(x), dense.graph(x)
    index, values = W.edges()
    kept = torch.zeros(7, 7, dtype=torch.bool)
    kept[index[0], index[1]] = True
    assert torch.equal(kept, (full[0] >= 0.2) | torch.eye(7, dtype=torch.bool))
    assert 7 < W.nnz == len(values) < 49


@pytest.mark.parametrize("rule", [{"k": 3}, {"delta": 0.1, "normalize": sw.functional.row_normalize}])
def test_gradcheck_where_no_neighbourhood_changes(rule: dict[str, object]) -> None:
    torch.manual_seed(1)
    graph = sw.nn.NeighbourGraph(DIM, (6, 5), activation="tanh", **rule).double()
    x, mask = padded([5, 3])

    def function(x: Tensor, *_: Tensor) -> Tensor:
        return graph(x, mask) @ x

    arguments = (x.double().requires_grad_(), *graph.parameters())
    assert torch.autograd.gradcheck(function, arguments)
    assert torch.autograd.gradgradcheck(function, arguments, atol=1e-4)


EDGES = torch.tensor([0, 3, 3, 4, 6]), torch.tensor([0, 2, 4, 1, 0, 2])
"""Four rows, one of them without edges, and five columns, one without."""


def matrix(values: Tensor) -> Tensor:
    offsets, columns = EDGES
    return values.new_zeros(4, 5).index_put((rows_of(offsets, columns), columns), values)


def test_operations_along_edges_are_those_of_matrices() -> None:
    values, x, a = (torch.randn(*size, dtype=torch.float64) for size in ((6,), (5, 3), (4, 3)))
    C, there = matrix(values), matrix(torch.ones(6)) > 0
    assert torch.allclose(edge_sum(x, values, *EDGES), C @ x)
    assert torch.allclose(edge_products(a, x, *EDGES), (a @ x.T)[there])
    assert torch.allclose(edge_distances(x, *EDGES), torch.cdist(x[:4], x).square()[there])
    order, begin, rows = transposed(*EDGES, 5)
    assert torch.allclose(edge_sum(a, values[order], begin, rows), C.T @ a)


def test_operations_along_edges_are_differentiable_twice() -> None:
    def double(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, requires_grad=True)

    offsets, columns = EDGES
    square = torch.cat([offsets, offsets[-1:]])  # distances are within one set of elements
    for function, inputs, begin in (
        (edge_sum, (double(5, 3), double(6)), offsets),
        (edge_products, (double(4, 3), double(5, 3)), offsets),
        (edge_distances, (double(5, 3),), square),
    ):
        along = partial(lambda f, begin, *tensors: f(*tensors, begin, columns), function, begin)
        assert torch.autograd.gradcheck(along, inputs)
        assert torch.autograd.gradgradcheck(along, inputs)


@pytest.mark.parametrize("operation", [edge_sum, edge_products, edge_distances], ids=lambda op: op._name)
def test_examples_of_operations(operation: torch.library.CustomOpDef) -> None:
    """Which doctest does not see, as they are no functions."""
    (example,) = doctest.DocTestFinder().find(operation._init_fn, "operation", globs=vars(sparse).copy())
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_small_distances_between_far_elements_are_exact() -> None:
    z = torch.tensor([[1000.0], [1000.0 + 2**-10]])
    offsets, columns = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
    assert edge_distances(z, offsets, columns).tolist() == [2**-20, 2**-20]


def slow_nearest(z: Tensor, k: int) -> list[list[int]]:
    distance = [[math.dist(a, b) for b in z.tolist()] for a in z.tolist()]
    return [sorted(range(len(z)), key=row.__getitem__)[:k] for row in distance]


@pytest.mark.parametrize("tile", [search.TILE, 1, 30, 700])
@pytest.mark.parametrize("k", [1, 4, 12, 50])
def test_an_exact_search_finds_the_nearest(k: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "TILE", tile)
    z, mask = torch.randn(3, 12, 5, dtype=torch.float64), torch.rand(3, 12) < 0.7
    mask[2] = False
    found = nearest(z.masked_fill(~mask.unsqueeze(-1), math.nan), k, mask)
    assert found.shape == (3, 12, min(k, 12))
    assert torch.equal(nearest(z, k)[0], torch.tensor(slow_nearest(z[0], k)))
    for i, row in enumerate(mask):
        members = row.nonzero().squeeze(1)
        expected = torch.full((12, min(k, 12)), -1)
        if len(members):
            expected[members, : min(k, len(members))] = members[torch.tensor(slow_nearest(z[i, row], k))]
        assert torch.equal(found[i], expected)


def test_one_is_the_nearest_to_oneself_also_among_copies() -> None:
    z = torch.zeros(1, 6, 2)
    found = nearest(z, 3)[0]
    assert torch.equal(found[:, 0], torch.arange(6))
    assert all(len(set(row)) == 3 for row in found.tolist())
    far = 1e3 + torch.randn(1, 50, 8) * 1e-4  # where rounding hides all distances
    assert torch.equal(nearest(far, 2)[0, :, 0], torch.arange(50))


def test_no_neighbours_in_an_empty_set() -> None:
    assert nearest(torch.zeros(2, 0, 3), 4).shape == (2, 0, 0)
    W = sw.nn.NeighbourGraph(3, delta=0.1)(torch.zeros(2, 0, 3))
    assert W.nnz == 0
    assert (W @ torch.zeros(2, 0, 5)).shape == (2, 0, 5)


def embedded(n: int, *, dim: int, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    with torch.no_grad():
        return sw.functional.center(sw.nn.MLP(dim, 32, 64)(torch.randn(1, n, dim)))


def recall(found: Tensor, true: Tensor) -> float:
    hits = [len(set(a) & set(b)) for a, b in zip(found[0].tolist(), true[0].tolist(), strict=True)]
    return sum(hits) / true.numel()


@pytest.mark.parametrize("dim", [4, 16, 64])
def test_faiss_finds_most_neighbours_and_the_same_each_time(dim: int) -> None:
    pytest.importorskip("faiss")
    z = embedded(3000, dim=dim)
    found, true = nearest(z, 16, search="faiss"), nearest(z, 16, search="exact")
    assert recall(found, true) >= 0.93  # of all, where 0.95 was reached in a sample
    assert torch.equal(found[0, :, 0], torch.arange(3000))
    assert all(len(set(row)) == 16 for row in found[0, ::50].tolist())
    assert torch.equal(nearest(z, 16, search="faiss"), found)


def test_faiss_looks_at_each_set_alone_and_never_at_padding() -> None:
    pytest.importorskip("faiss")
    z = torch.randn(3, 40, 6)
    mask = torch.arange(40) < torch.tensor([[40], [3], [0]])
    found = nearest(z.masked_fill(~mask.unsqueeze(-1), math.nan), 5, mask, search="faiss")
    expected = nearest(z, 5, mask, search="exact")
    assert torch.equal(found[1:], expected[1:])
    assert recall(found[:1], expected[:1]) > 0.95


def test_faiss_compares_all_pairs_where_it_would_miss_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    z = embedded(600, dim=64)
    monkeypatch.setattr(search, "RECALL", 1.1)
    assert torch.equal(nearest(z, 8, search="faiss"), nearest(z, 8, search="exact"))


def test_auto_takes_faiss_for_many_elements_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        search, "_approximate", lambda z, k: calls.append(len(z)) or search._exact_alone(z, k)
    )
    monkeypatch.setattr(search, "load_faiss", lambda: None)
    monkeypatch.setattr(search, "TILE", 10)
    monkeypatch.setattr(search, "EXACT", 20)
    z = torch.randn(2, 30, 3)
    mask = torch.arange(30) < torch.tensor([[30], [20]])
    found = nearest(z, 4, mask)
    assert calls == [30]
    nearest(z, 4, mask, search="exact")
    assert calls == [30]
    monkeypatch.undo()
    assert torch.equal(nearest(z, 4, mask), found)


def test_without_faiss_auto_is_exact_and_faiss_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(search, "TILE", 10)
    monkeypatch.setattr(search, "EXACT", 5)
    z = torch.randn(1, 30, 3)
    assert torch.equal(nearest(z, 4), nearest(z, 4, search="exact"))
    for call in (lambda: nearest(z, 4, search="faiss"), lambda: sw.nn.NeighbourGraph(3, k=4, search="faiss")):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'setwise\[neighbours\]'"):
            call()


def test_a_graph_by_faiss_is_nearly_the_exact_one() -> None:
    pytest.importorskip("faiss")
    x = torch.randn(1, 2000, 8)
    exact, approximate = (sw.nn.NeighbourGraph(8, (16, 16), k=8, search=s) for s in ("exact", "faiss"))
    approximate.load_state_dict(exact.state_dict())
    exact, approximate = exact(x) @ x, approximate(x) @ x
    assert (exact - approximate).norm() < 0.1 * exact.norm()


def test_memory_grows_with_the_edges_and_not_with_the_pairs() -> None:
    n = 6000
    model = sw.DMPS.build(8, 1, dim=16, hidden=(16, 16), graph=sw.nn.NeighbourGraph(16, (16, 16), k=8))
    x = torch.randn(1, n, 8)
    dense = n * n * 4 / 2**20
    assert peak_megabytes(lambda: model(x).sum().backward()) < dense / 3
    model.graph = sw.nn.NeighbourGraph(
        16, (16, 16), delta=0.01, normalize=sw.functional.row_normalize, sigma=0.1
    )
    assert model.latent_graph(x).nnz < 100 * n
    assert peak_megabytes(lambda: model(x).sum().backward()) < dense


def test_a_product_keeps_nothing_the_size_of_edges_times_features() -> None:
    n, k, d = 2000, 16, 64
    offsets, columns = k * torch.arange(n + 1), torch.randint(n, (n * k,))
    values, x = torch.rand(n * k, requires_grad=True), torch.randn(1, n, d, requires_grad=True)

    def step() -> None:
        W = sw.nn.SparseWeights(offsets, columns, values, shape=(1, n, n), dtype=torch.float32)
        (W @ x).sum().backward()

    assert peak_megabytes(step) < n * k * d * 4 / 2**20 / 2


def test_parameters_are_those_of_a_latent_graph_both_ways() -> None:
    ours, latent = sw.nn.NeighbourGraph(3, k=2), sw.LatentGraph(3)
    ours.load_state_dict(latent.state_dict(), strict=True)
    latent.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(1, 30, 3)
    assert torch.equal(ours.initialize_bandwidth(x).sigma, latent.initialize_bandwidth(x).sigma)
    assert torch.equal(ours.similarity(x), latent.similarity(x))


def test_copies_of_a_graph_agree() -> None:
    graph = sw.nn.NeighbourGraph(3, k=2, normalize=partial(sw.functional.row_softmax, temperature=0.5))
    x = torch.randn(1, 30, 3)
    for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert torch.equal(other(x).to_dense(), graph(x).to_dense())
    assert "k=2, search='auto', softmax=True, temperature=0.5" in repr(graph)
    assert "delta=0.1" in repr(sw.nn.NeighbourGraph(3, delta=0.1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "give either k or delta, got k=None and delta=None"),
        ({"k": 2, "delta": 0.1}, "give either k or delta, got k=2 and delta=0.1"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"delta": 0.0}, "delta must lie between 0 and 1, got 0.0"),
        ({"delta": 1.5}, "delta must lie between 0 and 1, got 1.5"),
        ({"k": 2, "search": "brute"}, r"search must be one of \['auto', 'exact', 'faiss'\], got 'brute'"),
        ({"delta": 0.1, "search": "faiss"}, "search must not be given with delta"),
        ({"k": 2, "normalize": torch.softmax}, "normalize must be row_softmax or row_normalize"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_arguments_that_make_no_graph(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.nn.NeighbourGraph(3, **changes)


@pytest.mark.usefixtures("unchecked")
def test_arguments_that_make_no_search_or_product() -> None:
    z = torch.randn(1, 5, 3)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        nearest(z, 0)
    with pytest.raises(ValueError, match="search must be one of"):
        nearest(z, 2, search="brute")
    with pytest.raises(ValueError, match=r"x must be \[1, 5, d\] as the graph is, got \[1, 4, 3\]"):
        sw.nn.NeighbourGraph(3, k=2)(z) @ z[:, :4]


def test_edges_leave_out_those_that_only_fill_a_row() -> None:
    x, mask = padded([5, 2, 0])
    W = sw.nn.NeighbourGraph(DIM, k=3)(x, mask)
    index, values = W.edges()
    assert index.shape[1] == len(values) == 5 * 3 + 2 * 2
    assert W.nnz == 3 * 5 * 3
    assert (index[0] // 5).tolist() == (index[1] // 5).tolist() == [0] * 15 + [1] * 4
    assert torch.equal(W.to_dense()[index[0] // 5, index[0] % 5, index[1] % 5], values)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0])
@pytest.mark.parametrize(("rule", "value"), [("k", 3), ("k", 1), ("k", 99), ("delta", 0.15)])
def test_reweighting_is_that_of_the_dense_graph(rule: str, value: float, p: float) -> None:
    found, dense = sparse_and_dense(rule, value, sw.functional.row_normalize)
    mask = padded(SIZES)[1]
    x = torch.randn(*mask.shape, DIM)

    class Reweighted(nn.Module):
        def __init__(self, graph: nn.Module) -> None:
            super().__init__()
            self.block, self.graph = sw.nn.PNormBlock(DIM, p=p, eps=0.1), graph

        def forward(self, x: Tensor, mask: Tensor | None) -> sw.functional.Propagator:
            return self.block.reweighted(x, self.graph(x, mask))

    for given in (None, mask):
        modules = [Reweighted(graph).double().requires_grad_(True) for graph in (found, dense)]
        for module in modules:
            module.block.requires_grad_(False)  # which is not called itself
        a, b = (
            [g for g in value_and_gradients(module, x.double(), given) if g is not None] for module in modules
        )
        for one, other in zip(a, b, strict=True):
            assert torch.allclose(one, other, rtol=1e-8, atol=1e-10)


def test_reweighting_against_loops() -> None:
    x = torch.tensor([[[0.0], [1.0], [5.0]]], dtype=torch.float64)
    values = torch.tensor([0.2, 0.3, 0.5, 0.9, 0.1, 1.0]).double()
    offsets, columns = torch.tensor([0, 3, 5, 6]), torch.tensor([0, 1, 2, 2, 0, 2])
    W = sw.nn.SparseWeights(offsets, columns, values, shape=(1, 3, 3), dtype=torch.float64)
    expected, eps, p = torch.zeros(3, 3).double(), 0.3, 1.2
    for i, row in enumerate(W.to_dense()[0].tolist()):
        a = [w * ((x[0, i, 0] - x[0, j, 0]) ** 2 + eps**2) ** (p / 2 - 1) for j, w in enumerate(row)]
        others = sum(a) - a[i]
        for j in range(3):
            expected[i, j] = row[i] if i == j else (1 - row[i]) * a[j] / others if others else 0
    R = W.reweighted(x, p=p, eps=eps)
    assert torch.allclose(R.to_dense()[0], expected)
    assert torch.allclose(R.to_dense().sum(-1), torch.ones(1, 3).double())
    assert torch.allclose(W.reweighted(x, p=2.0, eps=eps).values, values)


def test_weights_stay_in_single_precision_beside_features_that_are_not() -> None:
    graph, x = sw.nn.NeighbourGraph(DIM, k=3).bfloat16(), padded([6])[0].bfloat16()
    W = graph(x)
    assert W.dtype == torch.bfloat16
    assert W.values.dtype == torch.float32
    assert (W @ x).dtype == W.to_dense().dtype == torch.bfloat16
    assert (W @ x.double()).dtype == torch.float64
    assert torch.allclose((W @ x).float(), W @ x.float(), atol=1e-2)
    assert W.reweighted(x, p=1.0, eps=0.1).values.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(W @ x.float(), sw.nn.SparseWeights.__matmul__(W, x.float()))
        assert (W @ x.float()).dtype == torch.float32


def test_dirichlet_energy_of_a_sparse_graph() -> None:
    found, dense = sparse_and_dense("k", 3)
    x, mask = padded(SIZES)
    energies = [
        sw.functional.dirichlet_energy(x.double(), graph(x.double(), mask)) for graph in (found, dense)
    ]
    assert torch.allclose(*energies)


def test_a_model_learns_on_neighbours() -> None:
    """To tell sets of two clusters from sets of one, which near elements alone do show."""
    torch.manual_seed(0)
    model = sw.DMPS.build(2, 1, dim=8, hidden=(8, 8), graph=sw.nn.NeighbourGraph(8, (8, 8), k=4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    y = torch.arange(32) % 2
    spread = y.view(-1, 1, 1) * torch.randn(32, 20, 1).sign() * 2
    x = torch.randn(32, 20, 2) * 0.3 + spread
    losses = []
    for _ in range(60):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert model.graph.kernel.log_sigma.grad.abs() > 0


def test_the_energy_of_a_sparse_graph_is_exact_between_far_clusters() -> None:
    x, mask = padded([6, 4, 0])
    x = x.double()
    x[:, ::2] += 1e4
    graph = sw.nn.NeighbourGraph(DIM, k=3).double()
    W = graph(x, mask)
    expected = sw.functional.dirichlet_energy(x, W.to_dense())
    assert torch.allclose(sw.functional.dirichlet_energy(x, W), expected, rtol=1e-6)
    assert torch.allclose(
        sw.functional.dirichlet_energy(x, W, C=2.0), 2 * sw.functional.dirichlet_energy(x, W)
    )
    dense = W.to_dense()
    by_hand = sum(dense[0, i, j] * (x[0, i] - x[0, j]).square().sum() for i in range(6) for j in range(6))
    assert torch.allclose(sw.functional.dirichlet_energy(x, W)[0], by_hand / 4, rtol=1e-12)
