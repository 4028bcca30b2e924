"""The graph by random features: close to the exact one, the closer the more there are."""

import logging
import math
from functools import partial

import pytest
import torch
from torch import Tensor

import setwise as sw
from setwise.nn.operators.random_features import apportion, orthogonal_frequencies, series
from tests.cases import DIM, padded


def exact_and_linear(**changes: object) -> tuple[sw.LatentGraph, sw.nn.RandomFeatureGraph]:
    """With a bandwidth of about the median distance between embedded elements that are standard normal."""
    torch.manual_seed(1)
    normalize = changes.get("normalize", sw.functional.row_normalize)
    exact = sw.LatentGraph(DIM, (16, 8), activation="tanh", sigma=0.8, normalize=normalize)
    linear = sw.nn.RandomFeatureGraph(DIM, (16, 8), activation="tanh", **changes)
    linear.load_state_dict(exact.state_dict())
    return exact, linear


def error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(
    ("normalize", "limit"),
    [
        (sw.functional.row_softmax, 0.001),
        (partial(sw.functional.row_softmax, temperature=0.5), 0.003),
        (sw.functional.row_normalize, 0.004),
        (partial(sw.functional.row_normalize, temperature=2.0), 0.0015),
    ],
    ids=["softmax", "cold", "normalize", "warm"],
)
def test_the_error_falls_with_the_root_of_the_number_of_features(normalize: object, limit: float) -> None:
    x, y = torch.randn(2, 200, DIM), torch.rand(2, 200, 3)
    errors = {}
    for features in (64, 1024):
        found = []
        for seed in range(8):
            exact, linear = exact_and_linear(normalize=normalize, features=features, seed=seed)
            found.append(error(linear(x) @ y, exact(x) @ y))
        errors[features] = sum(found) / len(found)
    W = exact(x)
    assert (W.amax(-1) / W.amin(-1)).median() > 2  # a uniform graph would be no test
    assert errors[1024] < limit
    assert 2.2 < errors[64] / errors[1024] < 8  # 4, but for chance


@pytest.mark.parametrize("normalize", [sw.functional.row_softmax, sw.functional.row_normalize])
def test_the_kernel_is_right_on_average(normalize: object) -> None:
    x = torch.randn(1, 6, DIM)
    total = torch.zeros(6, 6)
    for seed in range(100):
        exact, linear = exact_and_linear(normalize=normalize, features=256, seed=seed)
        z = linear.kernel.scaled(x)
        phi = linear.random_features.phi(z)[0]
        if normalize is sw.functional.row_normalize:  # known up to a common factor
            omega = linear.random_features.frequencies
            exponents = torch.cat([z @ omega.mT, -z @ omega.mT], -1) - z.square().sum(-1, keepdim=True)
            phi = phi * (exponents.max().exp() / 256**0.5)
        total += phi @ phi.mT / 100
    K = exact.similarity(x)[0]
    expected = K.exp() - 1 if normalize is sw.functional.row_softmax else K
    assert torch.allclose(total, expected, atol=0.03 if normalize is sw.functional.row_softmax else 0.12)


def test_equal_elements_weigh_e_times_what_far_ones_do() -> None:
    x = torch.cat([torch.zeros(1, 3, DIM), torch.full((1, 3, DIM), 10.0)], dim=1)
    graph = sw.nn.RandomFeatureGraph(DIM, sigma=0.1, features=4096, normalize=sw.functional.row_softmax)
    W = graph(x).to_dense()[0]
    assert torch.allclose(W[0, 0] / W[0, 5], torch.tensor(math.e), rtol=0.1)
    assert torch.allclose(W[0, 0], W[0, 1])


def test_rows_of_the_kernel_divided_by_their_sums_are_right_for_a_wide_kernel() -> None:
    """The default, with a bandwidth of two to three median distances, by how it departs from uniform."""
    x = torch.randn(1, 40, DIM)
    for factor in (2.0, 3.0):
        exact, linear = exact_and_linear(features=4096)
        exact.initialize_bandwidth(x)
        with torch.no_grad():
            exact.kernel.log_sigma += math.log(factor)
        linear.load_state_dict(exact.state_dict())
        W = exact(x)
        assert linear.normalize is sw.functional.row_normalize
        assert W.max() > 1.15 * W.min()
        assert error(linear(x).to_dense() - 1 / 40, W - 1 / 40) < 0.06


@pytest.mark.parametrize("temperature", [0.2, 0.5, 1.0, 4.0])
def test_the_series_is_complete(temperature: float) -> None:
    terms = series(temperature)
    assert math.isclose(1 + sum(terms), math.exp(1 / temperature))
    for m, term in enumerate(terms[:-1], 1):
        assert math.isclose(term, temperature**-m / math.factorial(m))
    for K in (0.1, 0.5, 0.9):
        value = 1 + sum(c * K**m for m, c in enumerate(terms, 1))
        assert abs(value - math.exp(K / temperature)) < 0.011 * math.exp(1 / temperature)
    assert len(series(1.0)) == 4


def test_frequencies_are_dealt_in_proportion() -> None:
    assert apportion(10, [1.0, 1.0]) == [5, 5]
    assert apportion(8, [1.0, 0.001]) == [7, 1]
    assert apportion(4, [0.01, 0.02, 1.0, 0.1]) == [1, 1, 1, 1]
    assert sum(apportion(131, series())) == 131


def test_frequencies_are_normal_and_orthogonal_in_groups() -> None:
    omega = orthogonal_frequencies(20, 8, torch.Generator().manual_seed(0))
    assert omega.shape == (20, 8)
    for start, stop in ((0, 8), (8, 16), (16, 20)):
        products = omega[start:stop] @ omega[start:stop].mT
        assert products.fill_diagonal_(0).abs().max() < 1e-4
    assert (omega[:8] @ omega[8:16].mT).abs().max() > 0.1
    many = orthogonal_frequencies(4000, 8, torch.Generator().manual_seed(0))
    assert torch.allclose(many.mean(0), torch.zeros(8), atol=0.1)
    assert torch.allclose(many.mT @ many / 4000, torch.eye(8), atol=0.1)
    assert abs(many.square().sum(-1).var().item() - 16) < 2  # of a χ² with 8 degrees of freedom


def test_the_seed_determines_the_frequencies() -> None:
    graph, same, other = (sw.nn.RandomFeatureGraph(DIM, seed=seed) for seed in (5, 5, 6))
    assert set(graph.state_dict()) == set(sw.LatentGraph(DIM).state_dict())
    assert torch.equal(same.random_features.frequencies, graph.random_features.frequencies)
    assert not torch.equal(other.random_features.frequencies, graph.random_features.frequencies)
    same.load_state_dict(graph.state_dict())
    x = torch.randn(1, 7, DIM)
    assert torch.equal(same(x) @ x, graph(x) @ x)


def test_drawing_frequencies_leaves_the_random_state_alone() -> None:
    torch.manual_seed(3)
    sw.LatentGraph(DIM)
    expected = torch.rand(1)
    torch.manual_seed(3)
    sw.nn.RandomFeatureGraph(DIM)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("normalize", [sw.functional.row_softmax, sw.functional.row_normalize])
def test_diffusion_is_a_mixture_and_its_gradients_are(normalize: object) -> None:
    _, graph = exact_and_linear(normalize=normalize, features=32)
    graph.double()
    x, mask = padded([5, 3])
    x = x.double().requires_grad_()
    gamma = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    W = graph(x, mask)
    real = mask.unsqueeze(-1)
    assert torch.allclose(sw.functional.propagate(x, W, gamma) * real, torch.lerp(x, W @ x, gamma) * real)

    def mixed(x: Tensor, gamma: Tensor, *_: Tensor) -> Tensor:
        return sw.functional.propagate(x, graph(x, mask), gamma) * real

    assert torch.autograd.gradcheck(mixed, (x, gamma, *graph.parameters()))


def test_an_element_that_is_far_from_all_others_hears_something_finite() -> None:
    x = torch.randn(1, 5, DIM)
    x[0, 0] = 1e3
    graph = sw.nn.RandomFeatureGraph(DIM, normalize=sw.functional.row_normalize)
    out = graph(x) @ x
    out.sum().backward()
    assert out.isfinite().all()
    assert torch.allclose(graph(x).to_dense().sum(-1), torch.ones(1, 5), atol=1e-4)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in graph.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": 14}, "features must be even and at least 16, got 14"),
        ({"features": 65}, "features must be even and at least 16, got 65"),
        (
            {"normalize": partial(sw.functional.row_softmax, temperature=0.01)},
            "temperature must be at least 0.05, got 0.01",
        ),
        (
            {"features": 16, "normalize": partial(sw.functional.row_softmax, temperature=0.1)},
            r"at least \d\d, got 16",
        ),
        ({"normalize": torch.softmax}, "normalize must be row_softmax or row_normalize"),
    ],
)
def test_refuses_in_one_sentence(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.nn.RandomFeatureGraph(DIM, **arguments)


def test_auto_takes_what_suits_the_size() -> None:
    graph = sw.nn.AutoGraph(DIM, memory=0.5, exact_up_to=20_000)
    assert graph.choice(1, 5_000) == "dense"
    assert graph.choice(2, 5_000) == "streamed"
    assert graph.choice(1, 20_000) == "streamed"
    assert graph.choice(1, 20_001) == "linear"
    assert graph.double().choice(1, 5_000) == "streamed"  # twice as large
    matrix = 4 * 4 * 100**2 / 2**30
    assert sw.nn.AutoGraph(DIM, memory=matrix).choice(1, 100) == "dense"
    assert sw.nn.AutoGraph(DIM, memory=matrix * 0.999).choice(1, 100) == "streamed"


@pytest.mark.parametrize("normalize", [sw.functional.row_softmax, sw.functional.row_normalize])
def test_auto_gives_what_the_graph_that_it_takes_would_give(normalize: object) -> None:
    x, mask = padded([6, 4])
    exact, linear = exact_and_linear(normalize=normalize)
    for took, limits in {
        "dense": {},
        "streamed": {"memory": 0.0},
        "linear": {"exact_up_to": 5},
    }.items():
        graph = sw.nn.AutoGraph(DIM, (16, 8), activation="tanh", normalize=normalize, **limits)
        graph.load_state_dict(exact.state_dict())
        assert graph.last_choice is None
        found = graph(x, mask) @ x
        assert graph.last_choice == took
        expected = (linear if took == "linear" else exact)(x, mask) @ x
        assert torch.allclose(found, expected, atol=1e-5), took


def test_auto_says_once_what_it_took(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="setwise")
    graph = sw.nn.AutoGraph(DIM, memory=0.0, exact_up_to=5)
    for n in (4, 5, 6, 7, 4):
        graph(torch.randn(1, n, DIM))
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "graph='auto' uses the streamed graph for sets of 4 elements"),
        (
            "WARNING",
            "graph='auto' uses random features for sets of 6 elements: the result is approximate "
            "(exact up to 5, see exact_up_to)",
        ),
    ]
    assert graph.last_choice == "streamed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": -1.0}, "memory must not be negative, got -1.0"),
        ({"memory": math.nan}, "memory must not be negative, got nan"),
        ({"exact_up_to": -1}, "exact_up_to must not be negative, got -1"),
    ],
)
def test_auto_refuses_in_one_sentence(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.nn.AutoGraph(DIM, **arguments)


def test_a_bag_of_many_trains_by_itself() -> None:
    """With random features of the default, the kernel divided by its row sums."""
    model = sw.DMPS.build(8, 2, dim=8, hidden=(8,), graph="auto")
    x = torch.randn(1, 70_000, 8)
    model.initialize_bandwidth(x)
    loss = torch.nn.functional.cross_entropy(model(x), torch.tensor([1]))
    loss.backward()
    assert model.graph.last_choice == "linear"
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_bandwidth_for_many_elements_comes_from_some_of_them() -> None:
    torch.manual_seed(0)
    graph, x = sw.LatentGraph(DIM), torch.randn(1, 3000, DIM)
    few = graph.initialize_bandwidth(x[:, :2048]).sigma.item()
    many = graph.initialize_bandwidth(x).sigma.item()
    assert many != few
    assert abs(many / few - 1) < 0.05
    shifted = torch.cat([x, torch.full_like(x, math.nan)], dim=1)
    real = torch.arange(6000).unsqueeze(0) < 3000
    assert abs(graph.initialize_bandwidth(shifted, real).sigma.item() / few - 1) < 0.1


@pytest.mark.parametrize("sigma", [0.15, 0.03])
def test_padding_does_not_matter_to_a_narrow_kernel(sigma: float) -> None:
    graph = sw.nn.RandomFeatureGraph(
        DIM, (6, 5), activation="tanh", sigma=sigma, normalize=sw.functional.row_normalize
    )
    x = torch.randn(1, 4, DIM)
    wide = torch.cat([x, torch.zeros(1, 3, DIM)], dim=1)
    mask = torch.arange(7).unsqueeze(0) < 4
    assert torch.allclose(graph(wide, mask).to_dense()[:, :4, :4], graph(x).to_dense(), atol=1e-5)


@pytest.mark.parametrize("normalize", [sw.functional.row_softmax, sw.functional.row_normalize])
def test_second_derivatives_are_right(normalize: object) -> None:
    _, graph = exact_and_linear(features=16, normalize=normalize)
    graph.double()
    x = torch.randn(1, 4, DIM, dtype=torch.float64, requires_grad=True)
    gamma = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, g: sw.functional.propagate(x, graph(x), g), (x, gamma))


def test_outliers_do_not_turn_the_sign_of_a_row() -> None:
    x = torch.cat([0.01 * torch.randn(1, 200, DIM), 5 * torch.randn(1, 5, DIM)], dim=1)
    y = torch.rand(1, 205, 1)
    for seed in range(10):
        graph = sw.nn.RandomFeatureGraph(
            DIM, sigma=0.05, seed=seed, normalize=partial(sw.functional.row_softmax, temperature=0.5)
        )
        assert (graph(x).total >= 205).all()
        assert (graph(x) @ y).abs().max() < 3


KINDS = {
    "latent": sw.LatentGraph,
    "streamed": sw.nn.StreamedGraph,
    "linear": sw.nn.RandomFeatureGraph,
    "auto": sw.nn.AutoGraph,
    "neighbours": partial(sw.nn.NeighbourGraph, k=3),
}


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_graphs_read_the_state_dicts_of_each_other(one: str, other: str) -> None:
    first, second = KINDS[one](DIM), KINDS[other](DIM)
    second.load_state_dict(first.state_dict())
    assert second.state_dict().keys() == first.state_dict().keys()
    for name, tensor in second.state_dict().items():
        assert torch.equal(tensor, first.state_dict()[name])
    model = sw.DMPS.build(DIM, 1, dim=DIM, graph=KINDS[one](DIM))
    sw.DMPS.build(DIM, 1, dim=DIM, graph=KINDS[other](DIM)).load_state_dict(model.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_weights_refuse_features_of_other_elements(kind: str) -> None:
    W = KINDS[kind](DIM)(torch.randn(1, 5, DIM))
    if not isinstance(W, Tensor):
        with pytest.raises(ValueError, match=r"x must be \[1, 5, d\] as the graph is, got \[1, 4, 2\]"):
            W @ torch.ones(1, 4, 2)


def test_frequencies_are_drawn_wherever_the_default_device_is() -> None:
    with torch.device("meta"):
        assert sw.nn.RandomFeatureGraph(DIM).random_features.frequencies.device.type == "meta"


def test_a_bandwidth_is_sampled_from_real_elements() -> None:
    x, mask = torch.zeros(4, 20_000, DIM), torch.arange(20_000).expand(4, -1) < 5
    x[:, :5] = torch.randn(4, 5, DIM)
    graph = sw.LatentGraph(DIM)
    few = graph.initialize_bandwidth(x[:, :5]).sigma.item()
    assert math.isclose(graph.initialize_bandwidth(x, mask).sigma.item(), few, rel_tol=1e-5)


def test_graphs_share_one_kernel() -> None:
    kernel, x = sw.nn.DeepKernel(DIM, (6, 5)), torch.randn(1, 7, DIM)
    dense, streamed, auto = (
        build(kernel) for build in (sw.LatentGraph, sw.nn.StreamedGraph, sw.nn.AutoGraph)
    )
    assert torch.equal(auto(x), dense(x))
    assert torch.allclose(streamed(x) @ x, dense(x) @ x, atol=1e-6)
    assert len(list(auto.parameters())) == len(list(kernel.parameters()))
    with pytest.raises(TypeError, match="takes no further arguments, got also hidden, sigma"):
        sw.LatentGraph(kernel, (6, 5), sigma=2.0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "latent"])
def test_pairings_that_need_a_matrix_are_refused(kind: str) -> None:
    graph = KINDS[kind](DIM)
    with pytest.raises(TypeError, match=f"SparseGraph needs a graph with a matrix, .*{type(graph).__name__}"):
        sw.nn.SparseGraph(graph, partial(sw.functional.top_k, k=2))
    with pytest.raises(TypeError, match=f"must be a LatentGraph .*, got {type(graph).__name__}"):
        sw.DistinctDMPS.build(DIM, 1, dim=DIM, graph=graph)
