"""The latent graph of one set: arrays against the model's own, edges and clusters against slow searches."""

import copy
import pickle
import re
import sys
import warnings
from functools import partial
from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import setwise as sw
from setwise.functional import top_k
from setwise.inspection import plots
from setwise.inspection import set_graph as module
from setwise.inspection.importance import strongest_neighbours
from setwise.inspection.plots import set_graph
from setwise.inspection.set_graph import Edge, NearUniformGraph, SetGraph
from setwise.nn.dmps import DistinctDMPS
from setwise.nn.graph import GivenGraph, IdentityGraph, LatentGraph, UniformGraph
from setwise.nn.operators.auto import AutoGraph
from setwise.nn.operators.neighbours import NeighbourGraph
from setwise.nn.operators.random_features import RandomFeatureGraph
from setwise.nn.operators.sparse import SparseGraph
from setwise.nn.operators.streamed import StreamedGraph

DIM = 3
DENSE = {"latent": LatentGraph, "streamed": StreamedGraph, "auto": AutoGraph, "linear": RandomFeatureGraph}
GRAPHS: dict[str, Any] = {
    **{name: partial(kind, 6, (5, 7)) for name, kind in DENSE.items()},
    "auto in tiles": partial(AutoGraph, 6, (5, 7), memory=0.0),
    "auto by features": partial(AutoGraph, 6, (5, 7), exact_up_to=0),
    "neighbours": partial(NeighbourGraph, 6, (5, 7), k=3),
    "sparse": lambda: SparseGraph(
        SparseGraph(LatentGraph(6, (5, 7)), partial(top_k, k=4)), partial(top_k, k=3)
    ),
    "uniform": UniformGraph,
    "given": lambda: GivenGraph(torch.arange(1.0, 65).view(8, 8)),
    "identity": IdentityGraph,
}
WITHOUT_KERNEL = ("uniform", "given", "identity")

every_graph = pytest.mark.parametrize("kind", GRAPHS)


def dmps(graph: nn.Module, **changes: Any) -> sw.DMPS:
    torch.manual_seed(1)
    for parameter in graph.parameters():
        if parameter.dim():
            nn.init.normal_(parameter, std=0.6)
    return sw.DMPS.build(DIM, 2, dim=6, depth=2, graph=graph, **changes)


def drawn(weights: Any, kernel: Any = None, **fields: Any) -> SetGraph:
    kernel = None if kernel is None else np.asarray(kernel, dtype=float)
    return SetGraph(np.asarray(weights, dtype=float), kernel, np.array([2.0, 1.0]), **fields)


def softmax_of(kernel: Any, **fields: Any) -> SetGraph:
    F = np.exp(np.asarray(kernel, dtype=float))
    return drawn(F / F.sum(1, keepdims=True), kernel, **fields)


def islands(n: int, groups: int = 3, seed: int = 0) -> tuple[Tensor, np.ndarray]:
    """Elements around far corners, group after group and round again."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(n) % groups
    x = 10 * torch.eye(groups, DIM)[group] + 0.1 * torch.randn(n, DIM, generator=generator)
    return x, group.numpy()


def untrained(x: Tensor, **changes: Any) -> sw.DMPS:
    """A model whose bandwidth is far below what lies between the islands, and far above what lies within."""
    torch.manual_seed(0)
    model = sw.DMPS.build(DIM, 1, dim=16, **changes).to(x.dtype).initialize_bandwidth(x[None])
    with torch.no_grad():
        model.graph.kernel.log_sigma -= 1
    return model


class TestConstruction:
    @every_graph
    def test_the_arrays_are_those_of_the_model(self, kind: str) -> None:
        model, x = dmps(GRAPHS[kind]()), torch.randn(8, DIM)
        graph = SetGraph.of(model, x, names="abcdefgh")
        features = model.encoder(x[None])
        W = model.latent_graph(x[None])
        if kind == "auto by features":
            assert model.graph.last_choice == "linear"
            W = model.graph.dense_weights(features)
        W = W if isinstance(W, Tensor) else W.to_dense()
        np.testing.assert_allclose(graph.weights, W[0].detach(), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(graph.weights.sum(1), 1, rtol=1e-5)
        energies = model.dirichlet_energies(x[None])[0].detach()
        np.testing.assert_allclose(graph.energies, energies, rtol=1e-5)
        assert graph.energies.shape == (3,)
        np.testing.assert_array_equal(graph.points, x)
        assert graph.names == tuple("abcdefgh")
        assert len(graph) == 8
        if kind in WITHOUT_KERNEL:
            assert graph.kernel is None
            assert graph.bandwidth is None
        else:
            inner = model.graph.graph.graph if kind == "sparse" else model.graph
            np.testing.assert_array_equal(graph.kernel, inner.similarity(features)[0].detach())
            assert 0 < graph.kernel.min() < 0.9
            assert graph.bandwidth == pytest.approx(inner.sigma.item())

    def test_row_i_is_what_i_hears(self) -> None:
        adjacency = torch.tensor([[0.0, 1.0, 3.0], [0.0, 1.0, 0.0], [2.0, 0.0, 2.0]])
        graph = SetGraph.of(dmps(GivenGraph(adjacency)), torch.randn(3, DIM))
        np.testing.assert_allclose(graph.weights, [[0, 0.25, 0.75], [0, 1, 0], [0.5, 0, 0.5]])

    def test_the_model_is_looked_at_as_in_use_and_left_as_it_was(self) -> None:
        network = nn.Sequential(nn.Linear(DIM, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        model = dmps(LatentGraph(6, (5, 7)), encoder=sw.nn.ElementEncoder(network))
        model.graph.eval()
        x = torch.randn(8, DIM, requires_grad=True)
        before = copy.deepcopy(model.state_dict())
        modes = [part.training for part in model.modules()]
        graph = SetGraph.of(model, x)
        assert [part.training for part in model.modules()] == modes
        assert True in modes
        assert False in modes
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
        expected = model.eval().latent_graph(x[None])[0].detach()
        np.testing.assert_allclose(graph.weights, expected, rtol=1e-6)

    def test_double_precision_stays(self) -> None:
        model, x = dmps(LatentGraph(6, (5, 7))).double(), torch.randn(8, DIM, dtype=torch.float64)
        graph = SetGraph.of(model, x)
        for array in (graph.weights, graph.kernel, graph.energies, graph.points):
            assert array.dtype == np.float64
        np.testing.assert_allclose(graph.weights.sum(1), 1, rtol=1e-14)
        np.testing.assert_allclose(graph.weights, model.latent_graph(x[None])[0].detach(), rtol=1e-14)

    def test_elements_take_the_type_of_the_model(self) -> None:
        model, x = dmps(LatentGraph(6, (5, 7))), torch.randn(8, DIM)
        expected = SetGraph.of(model, x).weights
        np.testing.assert_array_equal(SetGraph.of(model, x.double()).weights, expected)
        rough = SetGraph.of(model.bfloat16(), x)
        assert rough.weights.dtype == np.float32
        np.testing.assert_allclose(rough.weights, expected, atol=0.02)

    def test_images_are_elements_too(self) -> None:
        network = nn.Sequential(nn.Flatten(), nn.Linear(4, 6))
        model = dmps(LatentGraph(6, (5, 7)), encoder=sw.nn.ElementEncoder(network))
        images = torch.randn(5, 1, 2, 2)
        graph = SetGraph.of(model, images)
        assert graph.points is None
        np.testing.assert_allclose(graph.weights, model.latent_graph(images[None])[0].detach(), rtol=1e-6)

    def test_points_may_be_others(self) -> None:
        model, x = dmps(UniformGraph()), torch.randn(4, DIM)
        raw = np.arange(8).reshape(4, 2)
        graph = SetGraph.of(model, x, points=raw)
        raw[:] = 0
        np.testing.assert_array_equal(graph.points, np.arange(8.0).reshape(4, 2))
        own = SetGraph.of(model, x)
        kept = x.clone()
        x.zero_()
        np.testing.assert_array_equal(own.points, kept)

    def test_other_models_with_a_graph(self) -> None:
        x = torch.randn(5, DIM)
        model = DistinctDMPS.build(DIM, 1, dim=6, pool="sum")
        graph = SetGraph.of(model, x)
        effective = (1 / graph.kernel.sum(1)).sum()
        assert effective == pytest.approx(model.effective_number(x[None]).item(), rel=1e-5)

    def test_too_many_elements(self) -> None:
        model = dmps(AutoGraph(6))
        message = (
            "x must have at most 20,000 elements, got 30,000: the dense weights and kernel would need 7.2 GB"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            SetGraph.of(model, torch.zeros(30_000, DIM))
        with pytest.raises(ValueError, match=r"got 20,001: .* 6\.4 GB"):
            SetGraph.of(model, torch.zeros(20_001, DIM, dtype=torch.float64))

    def test_as_many_as_may_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "LARGEST", 5)
        assert len(SetGraph.of(dmps(UniformGraph()), torch.zeros(5, DIM))) == 5

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize(
        ("x", "options", "message"),
        [
            (torch.zeros(3), {}, "x must be the elements [n, d] of one set, got [3]"),
            (torch.tensor([[0.0, 1.0, torch.nan]]), {}, "x must be finite, got NaN or infinite values"),
            (torch.tensor([[0.0, 1.0, torch.inf]]), {}, "x must be finite, got NaN or infinite values"),
            (torch.zeros(3, DIM), {"names": "ab"}, "names must have one entry per element, 3, got 2"),
            (
                torch.zeros(3, DIM),
                {"points": [1, 2, 3]},
                "points must be [3, d], one row per element, got [3]",
            ),
            (
                torch.zeros(3, DIM),
                {"points": [[1], [2]]},
                "points must be [3, d], one row per element, got [2, 1]",
            ),
        ],
    )
    def test_what_cannot_be_looked_at(self, x: Tensor, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            SetGraph.of(dmps(LatentGraph(6)), x, **options)

    @pytest.mark.usefixtures("unchecked")
    def test_a_model_without_a_graph(self) -> None:
        with pytest.raises(TypeError, match=r"^a latent graph needs a DMPS, got DeepSets$"):
            SetGraph.of(sw.DeepSets.build(DIM, 1), torch.zeros(3, DIM))

    def test_a_broken_model(self) -> None:
        model = dmps(LatentGraph(6))
        nn.init.constant_(model.encoder.layers[0].linear.weight, torch.nan)
        with pytest.raises(ValueError, match=r"^weights must be finite, got NaN or infinite values$"):
            SetGraph.of(model, torch.ones(3, DIM))


@pytest.mark.usefixtures("unchecked")
def test_arrays_must_fit() -> None:
    with pytest.raises(ValueError, match=r"^weights must be \[2, 2\], got \[2, 3\]$"):
        drawn(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"^kernel must be \[2, 2\], got \[3, 3\]$"):
        drawn(np.ones((2, 2)), np.ones((3, 3)))


@every_graph
@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_elements(kind: str, n: int) -> None:
    graph = GivenGraph(torch.ones(n, n)) if kind == "given" else GRAPHS[kind]()
    found = SetGraph.of(dmps(graph), torch.randn(n, DIM))
    assert found.weights.shape == (n, n)
    assert found.energies.shape == (3,)
    assert np.isfinite(found.energies).all()
    np.testing.assert_allclose(found.weights.sum(1), 1, rtol=1e-5)
    assert found.contrast == 0
    assert not found.near_uniform
    assert found.clusters().tolist() in ([[]] if n == 0 else [[0]] if n == 1 else [[0, 0], [0, 1]])
    assert len(found.top_edges()) == (n == 2 and kind != "identity")
    assert "at least 3" in found.remark()
    assert len(found.to_networkx()) == n
    found.warn_if_uniform()
    found.plot()
    assert repr(found).startswith(f"SetGraph({n} element{'' if n == 1 else 's'}, contrast 0")


def test_identical_elements_hear_each_other_alike() -> None:
    x = torch.ones(6, DIM)
    graph = SetGraph.of(dmps(LatentGraph(6, (5, 7))), x)
    np.testing.assert_allclose(graph.weights, 1 / 6, rtol=1e-5)
    np.testing.assert_allclose(graph.kernel, 1, rtol=1e-5)
    np.testing.assert_allclose(graph.energies, 0, atol=1e-5)
    assert graph.clusters().tolist() == [0] * 6
    assert graph.near_uniform
    assert len(graph.top_edges(100)) == 15
    graph.plot()


@pytest.mark.parametrize("points", [None, 1, 2, 3])
def test_identical_points_can_be_drawn(points: int | None) -> None:
    place = None if points is None else np.ones((4, points))
    ax = set_graph(np.full((4, 4), 0.25), place)
    assert np.isfinite(ax.collections[-1].get_offsets()).all()


class TestEdges:
    def slowly(self, W: np.ndarray, k: int) -> list[Edge]:
        """One pair after the other."""
        pairs = [Edge(i, j, (W[i, j] + W[j, i]) / 2) for i, j in combinations(range(len(W)), 2)]
        return sorted((edge for edge in pairs if edge.weight > 0), key=lambda edge: -edge.weight)[:k]

    @pytest.mark.parametrize("k", [1, 2, 3, 7, 20, 44, 45, 46, 1000])
    def test_the_strongest_pairs_come_first_and_ties_in_order(self, k: int) -> None:
        generator = np.random.default_rng(0)
        W = generator.integers(0, 5, (10, 10)) / 8  # with many ties, and zeros
        assert drawn(W).top_edges(k) == self.slowly(W, k)
        W = generator.random((10, 10))
        assert drawn(W).top_edges(k) == self.slowly(W, k)
        assert len(drawn(W).top_edges(k)) == min(k, 45)

    def test_ties_of_a_uniform_graph(self) -> None:
        edges = drawn(np.full((50, 50), 0.02)).top_edges(51)
        assert [edge[:2] for edge in edges] == [*((0, j) for j in range(1, 50)), (1, 2), (1, 3)]
        assert edges[0].weight == pytest.approx(0.02)

    def test_an_edge_is_of_plain_numbers(self) -> None:
        (edge,) = drawn([[0.5, 0.5], [0.25, 0.75]]).top_edges(1)
        assert edge == (0, 1, 0.375)
        assert (type(edge.i), type(edge.j), type(edge.weight)) == (int, int, float)

    def test_neighbours_are_the_strongest_of_a_row(self) -> None:
        W = np.array([[0.5, 0.1, 0.4, 0], [0.3, 0.1, 0.3, 0.3], [0, 0, 1, 0], [0.7, 0.1, 0.2, 0]])
        graph = drawn(W)
        assert graph.neighbours(0) == [(0, 2, 0.4), (0, 1, 0.1)]
        assert graph.neighbours(1, k=2) == [(1, 0, 0.3), (1, 2, 0.3)]
        assert graph.neighbours(2) == []
        others, _ = strongest_neighbours(torch.from_numpy(W), 3, 2)
        assert [edge.j for edge in graph.neighbours(3, 2)] == others.tolist()
        W.setflags(write=False)  # as arrays come from a shared file
        assert graph.neighbours(3, 1) == [(3, 0, 0.7)]

    def test_errors(self) -> None:
        graph = drawn(np.full((3, 3), 1 / 3))
        with pytest.raises(ValueError, match=r"^k must be at least 1, got 0$"):
            graph.top_edges(0)
        with pytest.raises(ValueError, match=r"^k must be at least 1, got 0$"):
            graph.neighbours(0, 0)
        with pytest.raises(ValueError, match=r"^element must be from 0 to 2, got 3$"):
            graph.neighbours(3)


class TestClusters:
    @pytest.mark.parametrize("kind", DENSE)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_far_islands_are_found_without_training(self, kind: str, dtype: torch.dtype) -> None:
        x, group = islands(24)
        graph = SetGraph.of(untrained(x.to(dtype), graph=kind), x.to(dtype))
        assert graph.clusters().tolist() == group.tolist()
        assert graph.clusters(count=3).tolist() == group.tolist()
        assert not graph.near_uniform
        if kind != "linear":  # whose weights are approximate
            assert {group[e.i] == group[e.j] for e in graph.top_edges(3 * 8 * 7 // 2)} == {True}
            assert group[graph.top_edges(1000)[84].i] != group[graph.top_edges(1000)[84].j]

    def test_labels_count_from_zero_in_order_of_appearance(self) -> None:
        K = np.eye(6)
        for i, j in ((5, 1), (0, 3)):
            K[i, j] = K[j, i] = 0.9
        assert softmax_of(K).clusters().tolist() == [0, 1, 2, 0, 3, 1]

    def test_linkage_is_by_the_mean(self) -> None:
        """A chain whose ends are not alike: after the first pair, the mean is (0.6 + 0.2) / 2."""
        K = [[1, 0.7, 0.2], [0.7, 1, 0.6], [0.2, 0.6, 1]]
        graph = softmax_of(K)
        assert graph.clusters(0.71).tolist() == [0, 1, 2]
        assert graph.clusters(0.69).tolist() == graph.clusters(0.41).tolist() == [0, 0, 1]
        assert graph.clusters(0.39).tolist() == graph.clusters(0.0).tolist() == [0, 0, 0]
        assert graph.clusters().tolist() == [0, 0, 1]

    def test_so_many_clusters_even_of_equal_elements(self) -> None:
        graph = softmax_of(np.ones((5, 5)))
        for count in range(1, 6):
            assert len(set(graph.clusters(count=count))) == count
        assert graph.clusters(1.0).tolist() == [0] * 5

    def test_few_elements(self) -> None:
        assert softmax_of(np.eye(2)).clusters().tolist() == [0, 1]
        assert softmax_of(np.ones((2, 2))).clusters().tolist() == [0, 0]
        assert softmax_of(np.ones((1, 1))).clusters(count=1).tolist() == [0]
        assert softmax_of(np.ones((0, 0))).clusters(count=1).tolist() == []
        with pytest.raises(ValueError, match=r"^count must lie between 1 and the 1 elements, got 2$"):
            softmax_of(np.ones((1, 1))).clusters(count=2)

    def test_without_a_kernel_weights_stand_in(self) -> None:
        W = np.array([[0.8, 0.2, 0, 0], [0.1, 0.9, 0, 0], [0, 0.03, 0.87, 0.1], [0, 0, 0.1, 0.9]])
        graph = drawn(W)  # means of both directions over the largest: 1, 0.1 and 2/3
        assert graph.clusters().tolist() == [0, 0, 1, 1]
        assert graph.clusters(0.7).tolist() == [0, 0, 1, 2]
        assert graph.clusters(0.02).tolist() == [0, 0, 0, 0]
        assert drawn(np.eye(3)).clusters().tolist() == [0, 1, 2]
        assert drawn(np.full((3, 3), 1 / 3)).clusters().tolist() == [0, 0, 0]

    @pytest.mark.parametrize("similarity", [-0.1, 1.1, float("nan")])
    def test_a_similarity_lies_between_0_and_1(self, similarity: float) -> None:
        with pytest.raises(ValueError, match=f"^similarity must lie between 0 and 1, got {similarity}$"):
            softmax_of(np.eye(3)).clusters(similarity)

    @pytest.mark.parametrize("count", [0, 4])
    def test_there_are_no_more_clusters_than_elements(self, count: int) -> None:
        with pytest.raises(ValueError, match=f"^count must lie between 1 and the 3 elements, got {count}$"):
            softmax_of(np.eye(3)).clusters(count=count)


class TestContrast:
    def test_by_hand(self) -> None:
        W = [[0.4, 0.1, 0.2, 0.3], [0, 0.7, 0.3, 0], [0.2, 0.2, 0.4, 0.2], [0, 0, 0, 1]]
        expected = ((0.3 - 0.1) / 0.2 + 0.3 / 0.1 + 0 + 0) / 4
        assert drawn(W).contrast == pytest.approx(expected)

    @pytest.mark.parametrize("n", [3, 10, 101])
    def test_it_is_zero_where_all_others_are_alike(self, n: int) -> None:
        for graph in (drawn(np.full((n, n), 1 / n)), softmax_of(np.eye(n)), drawn(np.eye(n))):
            assert graph.contrast == pytest.approx(0, abs=1e-12)
            assert graph.near_uniform

    def test_what_a_softmax_of_a_kernel_may_reach(self) -> None:
        two = np.kron(np.eye(2), np.ones((500, 500)))
        assert softmax_of(two).contrast == pytest.approx(0.92, abs=0.01)
        twins = np.kron(np.eye(500), np.ones((2, 2)))
        assert 1.7 < softmax_of(twins).contrast < np.e - 1

    def test_a_kernel_divided_by_its_row_sums_has_no_bound(self) -> None:
        twins = np.kron(np.eye(50), np.ones((2, 2)))
        assert drawn(twins / 2, twins).contrast == pytest.approx(99)

    def test_the_limit_of_near_uniform(self) -> None:
        for spread, near in ((0.049, True), (0.051, False)):
            row = np.array([1 - spread / 2, 1.0, 1 + spread / 2]) / 4
            W = np.array([np.roll(np.append(0.25, row), i) for i in range(4)])
            assert drawn(W).contrast == pytest.approx(spread)
            assert drawn(W).near_uniform is near

    def test_a_wide_kernel_relates_nothing(self) -> None:
        x, _ = islands(12)
        graph = SetGraph.of(dmps(LatentGraph(6, sigma=1e3)), x)
        assert 0 < graph.contrast < module.NEAR_UNIFORM


class TestEffectiveNeighbours:
    def test_by_hand(self) -> None:
        assert drawn(np.full((5, 5), 0.2)).effective_neighbours == pytest.approx(5)
        assert drawn(np.eye(4)).effective_neighbours == 1
        assert drawn(np.kron(np.eye(2), np.ones((3, 3))) / 3).effective_neighbours == pytest.approx(3)
        entropy = -(0.8 * np.log(0.8) + 0.2 * np.log(0.2)) / 2
        assert drawn([[0.8, 0.2], [0, 1]]).effective_neighbours == pytest.approx(np.exp(entropy), abs=1e-6)

    def test_it_is_what_training_records(self) -> None:
        model, x = dmps(LatentGraph(6, (5, 7))), torch.randn(8, DIM)
        expected = sw.graph_health(model, x[None])["effective_neighbours"]
        assert 1 < SetGraph.of(model, x).effective_neighbours < 8
        assert SetGraph.of(model, x).effective_neighbours == pytest.approx(expected, rel=1e-4)


class TestRemark:
    def test_of_a_near_uniform_graph(self) -> None:
        K = np.full((4, 4), 0.99) + 0.01 * np.eye(4)
        K[0, 1] = K[1, 0] = K[2, 3] = K[3, 2] = 1.0
        assert softmax_of(K).remark() == (
            "The graph of 4 elements is near uniform: the strongest neighbour's weight is 1.01 times the "
            "weakest's. It relates no elements, and the model treats them independently. "
            "All kernel values are at least 0.99."
        )
        assert softmax_of(np.eye(4)).remark().endswith("All kernel values are at most 0.00.")
        assert softmax_of(0.2 + 0.8 * np.eye(4)).remark().endswith("All kernel values are at most 0.20.")
        assert drawn(np.full((4, 4), 0.25)).remark().endswith("independently.")

    def test_of_a_graph_that_relates(self) -> None:
        K = np.kron(np.eye(2), np.ones((4, 4)))[:7, :7]
        assert softmax_of(K).remark() == (
            "The graph relates 7 elements: the strongest neighbour's weight is 2.72 times the weakest's. "
            "At a similarity of 0.5 it has 2 clusters, the largest of 4."
        )
        K = [[1, 0.9, 0.5], [0.9, 1, 0.5], [0.5, 0.5, 1]]
        assert softmax_of(K).remark().endswith("At a similarity of 0.5 it has one cluster.")

    def test_of_few_edges(self) -> None:
        W = np.array([[0.5, 0.5, 0, 0], [0.2, 0.3, 0.5, 0], [0, 0, 1, 0], [0.5, 0, 0, 0.5]])
        assert drawn(W).remark() == (
            "The graph relates 4 elements: an element has 1.8 effective neighbours, itself included. "
            "At a similarity of 0.5 it has 3 clusters, the largest of 2."
        )
        assert drawn(np.eye(3)).remark() == (
            "None of the 3 elements has a neighbour: the model treats the elements independently."
        )

    def test_of_a_graph_near_the_identity(self) -> None:
        W = np.array([[1 - 2e-4, 1e-4, 1e-4], [1e-9, 1 - 2e-9, 1e-9], [0, 1e-4, 1 - 1e-4]])
        assert drawn(W).remark() == (
            "The graph of 3 elements is near the identity: the mean self-weight is 1, "
            "and the model treats the elements independently."
        )

    @pytest.mark.parametrize(("n", "size"), [(0, "is empty"), (1, "has 1 element"), (2, "has 2 elements")])
    def test_of_few_elements(self, n: int, size: str) -> None:
        expected = f"The set {size}: comparing neighbours needs at least 3."
        assert drawn(np.full((n, n), 0.5)).remark() == expected

    def test_a_warning_where_there_is_no_relation_only(self) -> None:
        uniform = drawn(np.full((4, 4), 0.25))
        assert issubclass(NearUniformGraph, UserWarning)
        with pytest.warns(NearUniformGraph, match=f"^{re.escape(uniform.remark())}$"):
            uniform.warn_if_uniform()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            softmax_of(np.kron(np.eye(2), np.ones((2, 2)))).warn_if_uniform()

    def test_a_warning_points_to_who_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        levels: list[int] = []
        monkeypatch.setattr(warnings, "warn", lambda text, kind, stacklevel: levels.append(stacklevel))
        uniform = drawn(np.full((4, 4), 0.25))
        uniform.warn_if_uniform()
        uniform.warn_if_uniform(stacklevel=3)
        assert levels == [2, 3]


@pytest.mark.parametrize("kind", ["latent", "neighbours", "uniform"])
def test_in_another_order_everything_is_in_that_order(kind: str) -> None:
    x, _ = islands(11)
    x = x + 0.3 * torch.randn(11, DIM)
    order = torch.randperm(11)
    model = dmps(GRAPHS[kind]()).double()
    graph, other = (SetGraph.of(model, elements.double()) for elements in (x, x[order]))
    o = order.numpy()
    np.testing.assert_allclose(other.weights, graph.weights[np.ix_(o, o)], atol=1e-12)
    np.testing.assert_allclose(other.energies, graph.energies, atol=1e-12)
    assert other.contrast == pytest.approx(graph.contrast, abs=1e-12)
    if kind == "uniform":
        return
    np.testing.assert_allclose(other.kernel, graph.kernel[np.ix_(o, o)], atol=1e-12)
    expected, found = graph.clusters()[o], other.clusters()
    assert len(set(expected)) > 1
    np.testing.assert_array_equal(found[:, None] == found, expected[:, None] == expected)
    for theirs, ours in zip(other.top_edges(12), graph.top_edges(12), strict=True):
        assert {o[theirs.i], o[theirs.j]} == {ours.i, ours.j}
    assert [o[e.j] for e in other.neighbours(3)] == [e.j for e in graph.neighbours(int(o[3]))]
    place, moved = (g.plot(labels=None).collections[-1].get_offsets() for g in (graph, other))
    np.testing.assert_allclose(moved, place[o], atol=1e-9)


class TestNetworkx:
    K = np.array([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]])
    W = np.array([[0.5, 0.3, 0.2], [0.1, 0.9, 0], [0, 0, 1]])

    def test_edges_have_the_mean_weight_and_the_kernel(self) -> None:
        graph = drawn(self.W, self.K, names=["a", "b", "c"]).to_networkx()
        assert type(graph) is nx.Graph
        assert dict(graph.nodes(data="name")) == {0: "a", 1: "b", 2: "c"}
        edges = {(i, j): values for i, j, values in graph.edges(data=True)}
        assert edges == {(0, 1): {"weight": 0.2, "kernel": 0.9}, (0, 2): {"weight": 0.1, "kernel": 0.1}}

    def test_weak_edges_can_be_left_out(self) -> None:
        graph = drawn(self.W).to_networkx(threshold=0.2)  # what weighs as much stays
        assert list(graph.edges(data=True)) == [(0, 1, {"weight": 0.2})]
        assert dict(graph.nodes(data="name")) == {0: "0", 1: "1", 2: "2"}
        assert drawn(self.W).to_networkx(0.21).number_of_edges() == 0


class TestPyG:
    def test_a_weighted_sum_of_messages_is_w_x(self) -> None:
        pytest.importorskip("torch_geometric", exc_type=ImportError)
        from torch_geometric.nn import MessagePassing

        class Sum(MessagePassing):
            def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
                return self.propagate(edge_index, x=x, edge_weight=edge_weight)

            def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
                return edge_weight.unsqueeze(-1) * x_j

        x = torch.randn(8, DIM)
        graph = SetGraph.of(dmps(NeighbourGraph(6, k=3)), x)
        data = graph.to_pyg()
        heard = Sum(aggr="add")(data.x, data.edge_index, data.edge_weight)
        np.testing.assert_allclose(heard, graph.weights @ x.numpy(), rtol=1e-4, atol=1e-6)
        assert not np.allclose(heard, graph.weights.T @ x.numpy(), atol=1e-2)
        assert data.num_nodes == 8
        assert data.num_edges == 24
        data.x.zero_()
        assert graph.points.any()

    def test_without_points(self) -> None:
        pytest.importorskip("torch_geometric", exc_type=ImportError)
        data = drawn([[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1]]).to_pyg()
        assert data.x is None
        assert data.num_nodes == 3
        assert data.edge_index.tolist() == [[0, 1, 1, 2], [0, 0, 1, 2]]  # from whom, to whom
        assert data.edge_weight.tolist() == [0.5, 0.5, 1, 1]


@pytest.mark.parametrize(
    ("method", "missing", "package", "extra"),
    [
        ("clusters", "scipy.cluster", "scipy", "sklearn"),
        ("to_networkx", "networkx", "networkx", "plots"),
        ("to_pyg", "torch_geometric.data", "torch_geometric", "peers"),
        ("plot", "setwise.inspection.plots", "matplotlib", "plots"),
    ],
)
def test_what_is_not_installed(
    method: str, missing: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    message = f"{method} needs the {package} package: pip install 'setwise[{extra}]'"
    with pytest.raises(ModuleNotFoundError, match=f"^{re.escape(message)}$"):
        getattr(softmax_of(np.eye(3)), method)()


def test_it_is_a_value_that_can_be_kept_and_shown() -> None:
    graph = SetGraph.of(untrained(islands(300)[0]), islands(300)[0])
    shown = repr(graph)
    assert re.fullmatch(r"SetGraph\(300 elements, contrast 3, σ [\d.]+, energies .* → .* → .* → .*\)", shown)
    assert len(shown) < 120
    again = pickle.loads(pickle.dumps(graph))
    np.testing.assert_array_equal(again.weights, graph.weights)
    assert graph == graph  # by identity: arrays have no truth
    assert graph != again
    with pytest.raises(AttributeError):
        graph.bandwidth = 1.0


class TestPlot:
    K = np.kron(np.eye(2), np.ones((3, 3)))

    def test_it_is_drawn_where_it_is_told(self) -> None:
        ax = Figure().subplots()
        assert softmax_of(self.K, points=np.random.default_rng(0).random((6, 2))).plot(ax) is ax

    def test_colours_are_clusters_unless_told_otherwise(self) -> None:
        graph = softmax_of(self.K, points=np.arange(12.0).reshape(6, 2), names=list("abcdef"))
        ax = graph.plot()
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0", "1"]
        rest, *groups = ax.collections[1:]
        assert len(rest.get_offsets()) == 0
        assert [drawn.get_offsets()[:, 0].tolist() for drawn in groups] == [[0, 2, 4], [6, 8, 10]]
        assert [text.get_text() for text in ax.texts] == list("abcdef")
        assert not graph.plot(names=None).texts
        ax = graph.plot(values=range(6))
        assert ax.get_legend() is None
        assert ax.collections[-1].get_array().tolist() == [*range(6)]
        ax = graph.plot(labels=["x", "y", "x", "y", "z", "x"])
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["x", "y", "z"]

    def test_beyond_ten_groups_elements_are_grey(self) -> None:
        labels = [*range(12), *range(1, 11)]
        points = np.stack([labels, np.zeros(22)], axis=1)
        rest, *groups = set_graph(np.full((22, 22), 1 / 22), points, labels=labels).collections[1:]
        assert rest.get_offsets()[:, 0].tolist() == [0, 11]
        assert rest.get_facecolor()[0].tolist() == [0.75, 0.75, 0.75, 1]
        assert [drawn.get_offsets()[0, 0] for drawn in groups] == [*range(1, 11)]
        assert len({tuple(drawn.get_facecolor()[0]) for drawn in groups}) == 10

    def test_many_names_are_not_written(self) -> None:
        for n, written in ((25, 25), (26, 0)):
            points = np.random.default_rng(0).random((n, 2))
            assert len(set_graph(np.eye(n), points, names=["x"] * n).texts) == written


def places(points: Any) -> np.ndarray:
    return np.asarray(set_graph(np.eye(len(points)), points).collections[-1].get_offsets())


class TestPlaces:
    def test_one_and_two_features_are_drawn_as_they_are(self) -> None:
        assert places([[3], [1], [2]]).tolist() == [[3, 0], [1, 0], [2, 0]]
        assert places(torch.tensor([[3.0, 1.0], [5.0, 2.0]])).tolist() == [[3, 1], [5, 2]]

    def test_of_more_the_principal_axes(self) -> None:
        generator = np.random.default_rng(0)
        rotation = np.linalg.qr(generator.normal(size=(5, 5)))[0]
        points = generator.normal(size=(200, 5)) * [1, 9, 0.1, 3, 0.5] @ rotation + 100
        found = places(points)
        centred = points - points.mean(0)
        values, vectors = np.linalg.eigh(centred.T @ centred)
        for axis in (1, 2):
            expected = centred @ vectors[:, -axis]
            sign = np.sign(vectors[np.abs(vectors[:, -axis]).argmax(), -axis])
            np.testing.assert_allclose(found[:, axis - 1], sign * expected, atol=1e-9)
        assert values[-1] > values[-2]

    def test_an_axis_points_where_its_largest_feature_grows(self) -> None:
        line = np.array([[0.0, 0, 0], [-1, 5, 0], [-2, 10, 0]])
        for points in (line, line[[2, 0, 1]]):
            assert np.corrcoef(places(points)[:, 0], points[:, 1])[0, 1] == pytest.approx(1)

    @pytest.mark.parametrize("n", [0, 1, 2])
    def test_few_elements_of_many_features(self, n: int) -> None:
        assert places(np.ones((n, 7))).tolist() == [[0, 0]] * n

    def test_springs_bring_together_what_is_related(self) -> None:
        W = np.kron(np.eye(3), np.full((6, 6), 1 / 6))
        first, second = (set_graph(W).collections[-1].get_offsets() for _ in range(2))
        np.testing.assert_array_equal(first, second)
        distance = np.linalg.norm(first[:, None] - first, axis=-1)
        assert distance[W > 0].mean() < 0.5 * distance[W == 0].mean()
        assert set_graph(np.zeros((0, 0))).collections[-1].get_offsets().shape == (0, 2)


def edges_of(ax: Any) -> dict[tuple[float, ...], float]:
    """The places of both ends along x, and how dark the line is."""
    lines = ax.collections[0]
    ends = [tuple(np.round(segment[[0, -1], 0], 6)) for segment in lines.get_segments()]
    return dict(zip(ends, lines.get_colors()[:, 3].tolist(), strict=True))


class TestDrawnEdges:
    def test_each_element_has_its_strongest(self) -> None:
        """Also those whose strongest edge weighs less than the weakest of others."""
        W = np.array([[0, 9, 8, 1], [9, 0, 7, 2], [8, 7, 0, 3], [1, 2, 3, 0]]) / 10
        points = np.arange(8.0).reshape(4, 2) / 2
        assert list(edges_of(set_graph(W, points, edges=4))) == [(2, 3), (0, 2), (0, 1)]
        assert list(edges_of(set_graph(W, points, edges=2))) == [(0, 2), (0, 1)]
        assert list(edges_of(set_graph(W, points, edges=0))) == []
        assert len(edges_of(set_graph(W, points))) == 6

    def test_three_an_element_and_no_more_than_3000(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counts: list[int] = []
        edges = plots._strong_edges
        monkeypatch.setattr(plots, "_strong_edges", lambda W, count: counts.append(count) or edges(W, count))
        groups = np.kron(np.eye(275), np.full((4, 4), 1 / 4))
        ax = set_graph(groups[:60, :60], np.random.default_rng(0).random((60, 2)))
        assert len(edges_of(ax)) == 15 * 6  # all within the groups, none beyond
        set_graph(groups, np.zeros((1100, 2)))
        set_graph(groups, np.zeros((1100, 2)), edges=4000)
        assert counts == [180, 3000, 4000]

    def test_the_stronger_the_darker(self) -> None:
        W = np.array([[0, 4, 3], [4, 0, 2], [3, 2, 0]])
        points = [[0, 0], [1, 1], [2, 0]]
        alpha = edges_of(set_graph(W, points))
        assert alpha == pytest.approx({(1, 2): 0, (0, 2): 1.5 / 4, (0, 1): 3 / 4})
        alone = edges_of(set_graph([[0.5, 0.5], [0.5, 0.5]], points[:2]))
        assert alone == {(0, 1): 1}

    def test_over_a_uniform_graph_none_is_seen(self) -> None:
        assert set(
            edges_of(set_graph(np.full((9, 9), 1 / 9), np.random.default_rng(0).random((9, 2)))).values()
        ) == {0}

    def test_no_weight_is_no_edge(self) -> None:
        W = [[0.5, 0.3, 0], [0.1, 0.9, 0], [0, 0, 1]]
        assert edges_of(set_graph(W, [[0, 0], [1, 1], [2, 0]])) == {(0, 1): 1}

    def test_both_directions_count(self) -> None:
        W = np.array([[0, 4, 0], [0, 0, 0], [3, 3, 0]])
        alpha = edges_of(set_graph(W, [[0, 0], [1, 1], [2, 0]]))
        assert alpha == pytest.approx({(0, 2): 0, (1, 2): 0, (0, 1): 1.5 / 4})

    def test_along_a_line_they_are_arcs(self) -> None:
        ax = set_graph([[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]], [[0.0], [1.0], [4.0]])
        wide, narrow = ax.collections[0].get_segments()
        assert wide[:, 1].max() == pytest.approx(0.75**0.5, rel=0.01)
        assert narrow[:, 1].max() == pytest.approx(0.25**0.5, rel=0.01)
        np.testing.assert_allclose(wide[[0, -1]], [[1, 0], [4, 0]], atol=1e-12)
        assert (np.diff(wide[:, 0]) > 0).all()
        assert ax.get_ylim() == (-0.15, 1.05)

    def test_weights_that_are_a_tensor_stay_as_they_are(self) -> None:
        W = torch.full((3, 3), 1 / 3)
        set_graph(W, torch.randn(3, 4))
        assert torch.equal(W, torch.full((3, 3), 1 / 3))


@pytest.mark.parametrize(
    ("weights", "points", "options", "message"),
    [
        (np.ones((2, 3)), None, {}, "weights must be [n, n], got [2, 3]"),
        (np.eye(2), [[1, 2]], {}, "points must have one entry per element, 2, got 1"),
        (np.eye(2), None, {"labels": [1]}, "labels must have one entry per element, 2, got 1"),
        (np.eye(2), None, {"values": [1, 2, 3]}, "values must have one entry per element, 2, got 3"),
        (np.eye(2), None, {"names": "a"}, "names must have one entry per element, 2, got 1"),
        (np.eye(2), [1, 2], {}, "points must be [n, d] with d at least 1, got [2]"),
        (np.eye(2), [[], []], {}, "points must be [n, d] with d at least 1, got [2, 0]"),
        (np.eye(2), [[1], [np.nan]], {}, "points must be finite, got NaN or infinite values"),
        (np.eye(2), None, {"edges": -1}, "edges must not be negative, got -1"),
        (
            np.eye(1),
            None,
            {"labels": [1], "values": [1]},
            "labels and values both set the colours: expected one of them, got both",
        ),
    ],
)
def test_what_cannot_be_drawn(weights: Any, points: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        set_graph(weights, points, **options)
