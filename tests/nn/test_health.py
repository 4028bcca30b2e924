"""Health of a learned graph: effective neighbours against plain loops, and the warning of a collapse."""

import json
import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import setwise as sw
from setwise.nn import health as module
from setwise.nn.health import CollapseWatch, collapse_message, mean_entropy, saturation, weight_rows
from setwise.training.distributed import SplitSets
from tests import oracle
from tests.cases import padded

KEYS = {"effective_neighbours", "evenness", "gamma", "saturated", "sigma"}
FORMS: dict[str, Callable[..., sw.nn.LearnedGraph]] = {
    "latent": sw.LatentGraph,
    "streamed": sw.nn.StreamedGraph,
    "linear": sw.nn.RandomFeatureGraph,
    "auto": sw.nn.AutoGraph,
    "auto-streamed": partial(sw.nn.AutoGraph, memory=0.0),
    "auto-linear": partial(sw.nn.AutoGraph, exact_up_to=0),
    "neighbours": partial(sw.nn.NeighbourGraph, k=3),
}
every_form = pytest.mark.parametrize("form", FORMS)


class Plain(nn.Module):
    """A graph over points that are embedded as they are, as a model: no encoder, no blocks."""

    def __init__(self, graph: sw.nn.LearnedGraph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, x: sw.Shared | Tensor, mask: Tensor | None = None) -> Tensor:
        return self.graph(x, mask) @ (x.expand() if isinstance(x, sw.Shared) else x)


def plain(sigma: float, form: str = "latent", dim: int = 2, **changes: object) -> Plain:
    graph = FORMS[form](dim, (dim,), sigma=sigma, activation="identity", **changes)
    with torch.no_grad():
        graph.kernel.embed.layers[0].linear.weight.copy_(torch.eye(dim))
        graph.kernel.embed.layers[0].linear.bias.zero_()
    return Plain(graph).double()


def entropy(row: list[float]) -> float:
    return -sum(w * math.log(w) for w in row if w > 0)


def expected(sets: list[Tensor], sigma: float, *, softmax: bool = False) -> tuple[float, float]:
    """Effective neighbours and evenness of sets without padding, in plain loops; sets of one are left out."""
    entropies, largest = [], []
    for x in sets:
        if len(x) > 1:
            K = oracle.kernel_matrix(x.tolist(), sigma, oracle.rbf)
            W = oracle.softmax_rows(K) if softmax else oracle.normalized_rows(K)
            entropies += [entropy(row) for row in W]
            largest += [math.log(len(x))] * len(x)
    mean = sum(entropies) / len(entropies)
    return math.exp(mean), mean / (sum(largest) / len(largest))


def measured(model: nn.Module, x: Tensor | sw.Shared, mask: Tensor | None = None) -> tuple[float, float]:
    health = sw.graph_health(model, x, mask)
    return health["effective_neighbours"], health["evenness"]


class TestEffectiveNeighbours:
    @every_form
    @pytest.mark.parametrize("n", [2, 7])
    def test_all_elements_of_a_uniform_graph_and_one_of_the_identity(self, form: str, n: int) -> None:
        x = torch.randn(3, n, 2, dtype=torch.float64)
        assert measured(plain(1e6, form), x) == pytest.approx((n, 1))
        assert measured(plain(1e-6, form), x) == pytest.approx((1, 0), abs=1e-9)

    def test_a_case_by_hand(self) -> None:
        """Two elements with K_12 = 1/4: weights 0.8 and 0.2."""
        distance = math.sqrt(2 * math.log(4))
        x = torch.tensor([[[0.0, 0.0], [distance, 0.0]]], dtype=torch.float64)
        bits = -(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
        assert measured(plain(1.0), x) == pytest.approx((math.exp(bits), bits / math.log(2)))
        assert math.exp(bits) == pytest.approx(1.6494, abs=1e-4)

    def test_two_groups_far_apart_have_the_neighbours_of_their_group(self) -> None:
        x = torch.tensor([[[0.0, 0.0]] * 3 + [[100.0, 0.0]] * 3], dtype=torch.float64)
        assert measured(plain(1.0), x) == pytest.approx((3, math.log(3) / math.log(6)))

    @every_form
    @pytest.mark.parametrize("normalize", [sw.functional.row_normalize, sw.functional.row_softmax])
    def test_every_form_of_graph_matches_plain_loops(self, form: str, normalize: object) -> None:
        """Of a graph by random features or nearest neighbours, the full kernel is measured."""
        x = torch.randn(4, 9, 2, dtype=torch.float64)
        model = plain(0.8, form, normalize=normalize)
        wanted = expected(list(x), 0.8, softmax=normalize is sw.functional.row_softmax)
        assert measured(model, x) == pytest.approx(wanted, rel=1e-6)

    def test_another_kernel_and_a_temperature(self) -> None:
        x = torch.randn(1, 6, 2, dtype=torch.float64)
        model = plain(
            0.8,
            kernel=sw.functional.log_laplace_kernel,
            normalize=partial(sw.functional.row_normalize, temperature=2.0),
        )
        K = oracle.kernel_matrix(x[0].tolist(), 0.8, oracle.laplace)
        mean = sum(entropy(row) for row in oracle.normalized_rows(K, 2.0)) / 6
        assert measured(model, x)[0] == pytest.approx(math.exp(mean), rel=1e-6)

    @pytest.mark.parametrize("garbage", [0.0, math.nan, 1e30])
    def test_padding_does_not_count(self, garbage: float) -> None:
        x, mask = padded([6, 1, 3, 0, 2], garbage)
        x = x[..., :2].double()
        sets = [one[real] for one, real in zip(x, mask, strict=True)]
        assert measured(plain(0.8), x, mask) == pytest.approx(expected(sets, 0.8))

    def test_any_mask_means_the_same_as_leaving_the_elements_out(self) -> None:
        x = torch.randn(5, 8, 2, dtype=torch.float64)
        mask = torch.rand(5, 8, generator=torch.Generator().manual_seed(0)) < 0.5
        sets = [one[real] for one, real in zip(x, mask, strict=True)]
        assert min(len(one) for one in sets) < 5
        assert measured(plain(0.8), x, mask) == pytest.approx(expected(sets, 0.8))

    def test_sets_of_one_element_have_no_neighbours_to_tell(self) -> None:
        x = torch.randn(3, 1, 2, dtype=torch.float64)
        health = sw.graph_health(plain(0.8), x)
        assert set(health) == {"saturated", "sigma"}
        assert health["sigma"] == pytest.approx(0.8)
        mask = torch.tensor([[True, False], [True, False]])
        assert set(sw.graph_health(plain(0.8), torch.randn(2, 2, 2).double(), mask)) == {"saturated", "sigma"}

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
    def test_nothing_is_known_of_no_elements(self, shape: tuple[int, int]) -> None:
        assert sw.graph_health(plain(0.8), torch.zeros(*shape, 2).double()) == {}
        x, mask = torch.zeros(2, 3, 2).double(), torch.zeros(2, 3, dtype=torch.bool)
        assert sw.graph_health(plain(0.8), x, mask) == {}

    def test_shared_elements(self) -> None:
        values = torch.randn(5, 2, dtype=torch.float64)
        index = torch.tensor([[0, 3, 1, 4], [3, 2, 2, 0], [1, 0, 0, 0]])
        mask = torch.arange(4) < torch.tensor([[4], [3], [1]])
        for model in (plain(0.8), sw.DMPS.build(2, 1, activation="tanh").double()):
            found = sw.graph_health(model, sw.Shared(values, index), mask)
            assert found == pytest.approx(sw.graph_health(model, values[index], mask))
            assert found == pytest.approx(
                sw.graph_health(model, values[index].masked_fill(~mask[..., None], 9), mask)
            )
        sets = [one[real] for one, real in zip(values[index], mask, strict=True)]
        assert measured(plain(0.8), sw.Shared(values, index), mask) == pytest.approx(expected(sets, 0.8))


class TestLargeSets:
    """Some rows of W stand for all of them, and few sets of a batch for the others."""

    n = 1500

    def points(self) -> Tensor:
        """On a circle, where all elements have about as many neighbours."""
        angle = 2 * math.pi * torch.rand(1, self.n, 1, generator=torch.Generator().manual_seed(0)).double()
        return torch.cat([angle.cos(), angle.sin()], dim=-1)

    @every_form
    @pytest.mark.parametrize("normalize", [sw.functional.row_normalize, sw.functional.row_softmax])
    def test_some_rows_agree_with_all_of_them(
        self, form: str, normalize: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, x = plain(0.1, form, normalize=normalize), self.points()
        some = measured(model, x)
        monkeypatch.setattr(module, "ELEMENTS", self.n)
        dense = measured(model, x)
        assert some == pytest.approx(dense, rel=0.01)
        assert some != dense
        assert 10 < dense[0] < 0.99 * self.n

    def test_rows_are_those_of_the_dense_graph(self) -> None:
        model, x = plain(0.5), self.points()
        mask = torch.rand(1, self.n, generator=torch.Generator().manual_seed(1)) < 0.7
        for normalize in (
            sw.functional.row_normalize,
            sw.functional.row_softmax,
            partial(sw.functional.row_normalize, temperature=3.0),
        ):
            model.graph.normalize = normalize
            rows = weight_rows(model.graph, x, mask)
            assert rows is not None
            assert rows.shape == (1, 128, self.n)
            W = model.graph(x, mask)[0]
            assert torch.allclose(rows.sum(-1), torch.ones(1, 128).double())
            assert (rows[:, :, ~mask[0]] == 0).all()
            distances = torch.cdist(rows[0], W)
            assert distances.amin(1).max() < 1e-7  # each is a row of W,
            assert len(set(distances.argmin(1).tolist())) == 128  # and no two are the same
            assert mask[0, distances.argmin(1)].all()

    def test_rows_of_padding_are_zero_in_each_set(self) -> None:
        """Of several sets the same places are taken, some of which are padding in one of them."""
        x = self.points().expand(2, -1, -1)
        mask = torch.arange(self.n) < torch.tensor([[self.n], [700]])
        rows = weight_rows(plain(0.5).graph, x, mask)
        assert rows is not None
        total = rows.sum(-1)
        assert torch.allclose(total[0], torch.ones(128).double())
        assert set(total[1].round(decimals=9).tolist()) == {0.0, 1.0}
        assert total[1].sum().item() == pytest.approx(128 * 700 / self.n, abs=1)

    def test_padding_does_not_count(self) -> None:
        """Also where real elements are few, or the first places are padding."""
        x = self.points()
        for real in (slice(0, 700), slice(1, 9), slice(1400, 1500)):
            mask = torch.zeros(1, self.n, dtype=torch.bool)
            mask[:, real] = True
            dirty = x.masked_fill(~mask[..., None], math.nan)
            assert measured(plain(0.5), dirty, mask) == pytest.approx(
                measured(plain(0.5), x[:, real]), rel=0.05
            )
        mask = torch.zeros(1, self.n, dtype=torch.bool)
        assert sw.graph_health(plain(0.5), x, mask) == {}
        mask[0, 77] = True
        assert set(sw.graph_health(plain(0.5), x, mask)) == {"saturated", "sigma"}

    def test_uniform_and_identity(self) -> None:
        assert measured(plain(1e6), self.points()) == pytest.approx((self.n, 1))
        assert measured(plain(1e-9), self.points()) == pytest.approx((1, 0), abs=1e-6)

    def test_rows_of_unknown_form_are_not_guessed(self) -> None:
        x = self.points()
        for changes in (
            {"kernel": sw.functional.log_laplace_kernel},
            {"normalize": lambda K, mask: K.softmax(-1)},
        ):
            assert set(sw.graph_health(plain(0.5, **changes), x)) == {"saturated", "sigma"}
            assert set(sw.graph_health(plain(0.5, **changes), x[:, :50])) > {"effective_neighbours"}

    def test_a_few_sets_of_a_batch_are_measured(self) -> None:
        seen: list[int] = []

        class Counted(Plain):
            def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
                seen.append(len(x))
                return super().forward(x, mask)

        model = Counted(plain(0.5).graph)
        x = torch.randn(300, 10, 2, dtype=torch.float64)
        assert measured(model, x) == pytest.approx(measured(model, x[:102]))
        assert measured(model, x, torch.ones(300, 10, dtype=torch.bool)) == pytest.approx(measured(model, x))
        assert set(seen) == {102}  # about 1024 elements


class TestModels:
    def test_the_keys_of_a_model_with_denoising_blocks(self) -> None:
        model = sw.DMPS.build(3, 1, gamma=[sw.nn.Gamma(g) for g in (0.1, 0.2, 0.6)])
        health = sw.graph_health(model, torch.randn(4, 10, 3))
        assert set(health) == KEYS
        assert health["gamma"] == pytest.approx(0.3)
        assert health["sigma"] == pytest.approx(1.0)
        assert all(isinstance(value, float) for value in health.values())
        assert sw.graph_health(sw.DMPS.build(3, 1, gamma=0.25), torch.randn(4, 10, 3))["gamma"] == 0.25

    def test_models_without_gamma(self) -> None:
        for block in ("message-passing", "residual"):
            assert set(sw.graph_health(sw.DMPS.build(3, 1, block=block), torch.randn(4, 10, 3))) == KEYS - {
                "gamma"
            }

    @pytest.mark.parametrize(
        "make",
        [
            partial(sw.DMPS.build, 3, 1, graph="uniform"),
            partial(sw.DMPS.build, 3, 1, graph=sw.nn.IdentityGraph()),
            partial(sw.DeepSets.build, 3, 1),
            partial(sw.SetTransformer.build, 3, 1),
        ],
    )
    def test_models_without_a_learned_graph_have_gamma_at_most(self, make: Callable[[], nn.Module]) -> None:
        model = make()
        expected = {"gamma": 0.5} if isinstance(model, sw.DMPS) else {}
        assert sw.graph_health(model, torch.randn(2, 5, 3)) == expected

    def test_a_graph_that_the_model_does_not_use(self) -> None:
        model = sw.DMPS.build(3, 1, block="residual", graph="uniform")
        model.unused = sw.LatentGraph(3)
        assert sw.graph_health(model, torch.randn(2, 5, 3)) == {}

    @pytest.mark.parametrize(
        "make",
        [
            partial(sw.DistinctDMPS.build, 3, 1, dim=8),
            partial(sw.DMPS.build, 3, 1, dim=8, depth=0),
            lambda: sw.DMPS.build(
                3, 1, dim=8, graph=sw.nn.SparseGraph(sw.LatentGraph(8), partial(sw.functional.top_k, k=2))
            ),
        ],
        ids=["distinct", "depth-0", "sparse"],
    )  # fmt: skip
    def test_the_kernel_inside_is_measured(self, make: Callable[[], sw.DMPS]) -> None:
        model, x = make(), torch.randn(2, 5, 3)
        graph = next(part for part in model.modules() if isinstance(part, sw.LatentGraph))
        W = graph(model.encoder(x))
        assert measured(model, x)[0] == pytest.approx(math.exp(mean_entropy(W)), rel=1e-5)

    def test_the_model_is_measured_as_in_use_and_left_as_it_was(self) -> None:
        network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        model = sw.DMPS.build(3, 1, dim=8, encoder=sw.nn.ElementEncoder(network))
        model.graph.eval()
        x = torch.randn(4, 10, 3, requires_grad=True)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        modes = [part.training for part in model.modules()]
        random = torch.get_rng_state()
        first = sw.graph_health(model, x)
        assert sw.graph_health(model, x) == first
        assert torch.equal(torch.get_rng_state(), random)
        assert [part.training for part in model.modules()] == modes
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert all(p.grad is None for p in [x, *model.parameters()])
        assert not model.graph.kernel.embed._forward_hooks

    def test_the_hook_is_removed_when_the_model_fails(self) -> None:
        model = sw.DMPS.build(3, 1)
        model.head = nn.Linear(5, 1)
        with pytest.raises(RuntimeError):
            sw.graph_health(model, torch.randn(2, 5, 3))
        assert not model.graph.kernel.embed._forward_hooks
        assert model.training

    def test_a_wrapper_may_sort_the_sets(self) -> None:
        """`SplitSets` deals sets by size: the mask of the graph counts, not that of the batch."""
        x, mask = padded([2, 6, 1, 4])
        model = sw.DMPS.build(4, 1)
        assert sw.graph_health(SplitSets(model), x, mask) == pytest.approx(sw.graph_health(model, x, mask))

    def test_low_precision(self) -> None:
        model, x = (
            sw.DMPS.build(3, 1, activation="tanh").initialize_bandwidth(torch.randn(4, 10, 3)),
            torch.randn(4, 10, 3),
        )
        exact = sw.graph_health(model, x)
        assert sw.graph_health(model.bfloat16(), x.bfloat16()) == pytest.approx(exact, rel=0.05, abs=0.01)


class TestSaturation:
    def test_tanh(self) -> None:
        z = torch.tensor([[0.96, -0.5, 0.0], [-0.99, 0.94, 0.951]])
        assert saturation(z, "tanh") == pytest.approx(3 / 6)

    def test_sigmoid(self) -> None:
        """Where tanh of half the argument would be saturated: σ(u) = (1 + tanh(u / 2)) / 2."""
        u = torch.linspace(-8, 8, 101).view(-1, 1)
        assert saturation(u.sigmoid(), "sigmoid") == saturation((u / 2).tanh(), "tanh")
        assert 0.3 < saturation(u.sigmoid(), "sigmoid") < 0.7

    @pytest.mark.parametrize("activation", ["relu", "gelu"])
    def test_units_that_are_zero_for_every_element(self, activation: str) -> None:
        z = torch.tensor([[0.0, 0.0, 2.0, 0.0], [0.0, 1.0, 3.0, 0.0]])
        assert saturation(z, activation) == 0.5

    def test_a_layer_without_activation_always_has_slope(self) -> None:
        assert saturation(torch.full((2, 3), 1e9), "identity") == 0

    def test_padding_does_not_count(self) -> None:
        """Real elements saturate one unit of two; padding, which is filled with zeros, none."""
        model = plain(1.0)
        model.graph.kernel.embed = sw.nn.MLP(2, 2, activation="tanh").double()
        with torch.no_grad():
            model.graph.kernel.embed.layers[0].linear.weight.copy_(torch.tensor([[1e3, 0.0], [0.0, 1e-3]]))
            model.graph.kernel.embed.layers[0].linear.bias.zero_()
        mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
        x = torch.ones(2, 4, 2, dtype=torch.float64)
        assert sw.graph_health(model, x, mask)["saturated"] == 0.5
        assert sw.graph_health(model, sw.Shared(x[0, :1], torch.zeros(2, 4).long()), mask)["saturated"] == 0.5

    def test_of_a_model(self) -> None:
        """Padding does not count, nor does the layer before the last."""
        model = sw.DMPS.build(4, 1, dim=8, hidden=(8, 10), activation="tanh")
        x, mask = padded([5, 3], 1e9)
        assert sw.graph_health(model, x, mask)["saturated"] == 0
        with torch.no_grad():
            model.graph.kernel.embed.layers[-1].linear.bias[:3] = 100.0
        assert sw.graph_health(model, x, mask)["saturated"] == pytest.approx(0.3)
        dead = sw.DMPS.build(4, 1, dim=8, hidden=(8, 10))
        with torch.no_grad():
            dead.graph.kernel.embed.layers[-1].linear.bias[:] = torch.tensor([-100.0] * 4 + [100.0] * 6)
        assert sw.graph_health(dead, x, mask)["saturated"] == pytest.approx(0.4)


def test_mean_entropy() -> None:
    W = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3] * 3])
    assert mean_entropy(W) == pytest.approx((0 + math.log(2) + math.log(3)) / 3, rel=1e-6)
    assert mean_entropy(W[None]) == mean_entropy(W)


def health(evenness: float, **changes: float) -> dict[str, float]:
    usual = {"effective_neighbours": 9.97, "saturated": 0.42, "sigma": 1.25, "gamma": 0.5}
    return usual | {"evenness": evenness} | changes


class TestCollapseWatch:
    def test_it_warns_once_after_two_evaluations_in_a_row(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, logger="setwise")
        watch = CollapseWatch()
        assert [watch.look(health(e)) for e in (1.0, 0.4, 1.0, 0.9995, 1.0, 1.0, 0.4, 1.0, 1.0)] == [
            False, False, False, True, False, False, False, False, False,
        ]  # fmt: skip
        assert [(r.name, r.levelname) for r in caplog.records] == [("setwise", "WARNING")]
        assert caplog.records[0].getMessage() == collapse_message(health(0.9995))

    @pytest.mark.parametrize(
        ("evenness", "collapsed"),
        [
            (0.0, True),
            (0.01, True),
            (0.011, False),
            (0.5, False),
            (0.998, False),
            (0.999, True),
            (math.nan, False),
        ],
    )
    def test_from_where_a_graph_counts_as_collapsed(self, evenness: float, collapsed: bool) -> None:
        watch = CollapseWatch()
        assert not watch.look(health(evenness))
        assert watch.look(health(evenness)) is collapsed

    @pytest.mark.parametrize("n", [5, 10, 100])
    @pytest.mark.parametrize("dim", [2, 20])
    def test_a_graph_whose_bandwidth_is_the_median_distance_has_not_collapsed(self, n: int, dim: int) -> None:
        x = torch.randn(8, n, dim)
        for activation in ("tanh", "relu"):
            model = sw.DMPS.build(dim, 1, activation=activation).initialize_bandwidth(x)
            watch = CollapseWatch()
            assert not any(watch.look(sw.graph_health(model, x)) for _ in range(2))

    def test_both_ends_in_turn_are_a_collapse(self) -> None:
        watch = CollapseWatch()
        assert [watch.look(health(e)) for e in (0.0, 1.0)] == [False, True]

    def test_an_evaluation_that_tells_nothing_comes_between(self, caplog: pytest.LogCaptureFixture) -> None:
        watch = CollapseWatch()
        assert not any(
            watch.look(h) for h in (health(1.0), {}, health(1.0), {"sigma": 1.0, "saturated": 0.0})
        )
        assert not caplog.records

    def test_the_message_names_the_numbers_and_what_to_do(self) -> None:
        uniform = collapse_message(health(1.0))
        for part in ("uniform graph", "9.97 effective neighbours", "sigma 1.25", "42 % of the embedding"):
            assert part in uniform
        assert "only receive the mean of their set" in uniform
        assert "initialize_bandwidth" in uniform
        assert "lower the learning rate" in uniform
        identity = collapse_message(health(0.0, effective_neighbours=1.004))
        for part in ("the identity", "1.00 effective neighbours", "sigma 1.25", "42 % of the embedding"):
            assert part in identity
        assert "receive no messages" in identity
        assert "larger sigma" in identity
        assert "depth=0" in identity
        assert "\n" not in uniform + identity


class TestFit:
    """What training writes down, and when it warns."""

    @staticmethod
    def batches(step: int) -> tuple[sw.SetBatch, Tensor]:
        generator = sw.training.generator("health", step)
        sets = [torch.randn(n, 3, generator=generator) for n in (6, 4, 1, 5)]
        return sw.SetBatch.pack(sets), torch.tensor([0, 1, 0, 1])

    def fit(self, model: nn.Module, folder: Path | None = None, **changes: object) -> list[dict[str, float]]:
        arguments: dict[str, object] = {"steps": 8, "evaluations": 4, "lr": 1e-5}
        training = sw.Training(**(arguments | changes))
        return sw.fit(model, sw.Classes(), self.batches, training, folder=folder).metrics

    def test_metrics_hold_the_health_of_the_graph(self, tmp_path: Path) -> None:
        model = sw.DMPS.build(3, 2, dim=8)
        metrics = self.fit(model, tmp_path)
        lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert lines == metrics
        assert [entry["step"] for entry in metrics] == [2, 4, 6, 8]
        assert all(entry.keys() >= KEYS for entry in metrics)
        batch, _ = self.batches(8)
        last = {name: metrics[-1][name] for name in KEYS}
        assert last == pytest.approx(sw.graph_health(model, batch.x, batch.mask), rel=1e-5)

    def test_measuring_changes_no_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Weights, with dropout and batch statistics, are those of a run that is not measured."""

        def trained() -> dict[str, Tensor]:
            torch.manual_seed(0)
            network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
            model = sw.DMPS.build(3, 2, dim=8, encoder=sw.nn.ElementEncoder(network))
            self.fit(model, lr=1e-2)
            return model.state_dict()

        found = trained()
        monkeypatch.setattr("setwise.training.loop.graph_health", lambda *_: {})
        expected = trained()
        assert all(torch.equal(found[name], expected[name]) for name in expected)

    def test_models_without_a_learned_graph_have_no_such_keys(self) -> None:
        for model, keys in (
            (sw.DeepSets.build(3, 2), set()),
            (sw.DMPS.build(3, 2, graph="uniform", block="residual"), set()),
            (sw.DMPS.build(3, 2, graph="uniform"), {"gamma"}),
        ):
            assert all(entry.keys() & KEYS == keys for entry in self.fit(model))

    def test_of_shares_of_sets_gamma_alone_is_known(self) -> None:
        """As where each process holds some elements of every set: its part of W is not W."""
        assert all(
            entry.keys() & KEYS == {"gamma"} for entry in self.fit(sw.DMPS.build(3, 2), split="shares")
        )

    @pytest.mark.parametrize(("sigma", "what"), [(1e6, "uniform graph"), (1e-6, "identity")])
    def test_a_collapsed_graph_is_warned_of_once(
        self, sigma: float, what: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        graph = sw.LatentGraph(8, sigma=sigma)
        self.fit(sw.DMPS.build(3, 2, dim=8, graph=graph))
        (record,) = [r for r in caplog.records if "collapsed" in r.getMessage()]
        assert record.levelname == "WARNING"
        assert f"collapsed to the {what}" in record.getMessage()
        assert f"sigma {graph.sigma.item():.3g}" in record.getMessage()

    def test_one_evaluation_and_a_healthy_graph_give_no_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.fit(sw.DMPS.build(3, 2, dim=8, graph=sw.LatentGraph(8, sigma=1e6)), evaluations=1)
        model = sw.DMPS.build(3, 2, dim=8)
        model.initialize_bandwidth(self.batches(1)[0].x, self.batches(1)[0].mask)
        self.fit(model)
        assert not [r for r in caplog.records if "collapsed" in r.getMessage()]
