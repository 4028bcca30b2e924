"""Layers and models: what they compute, how they start, what they refuse."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import setwise as sw
from setwise.functional import rows_to_one
from setwise.nn.layers import NearIdentity
from tests import oracle
from tests.cases import padded


def weights(layer: sw.nn.Dense) -> tuple[list[list[float]], list[float]]:
    return layer.linear.weight.tolist(), layer.linear.bias.tolist()


def randomize(model: nn.Module) -> None:
    """Weights and biases of order one, so that kernels and messages differ from element to element."""
    for name, parameter in model.named_parameters():
        if name.endswith(("weight", "bias")):
            nn.init.normal_(parameter)


latent = partial(sw.LatentGraph, 3, (4, 5), activation="tanh")


@pytest.mark.parametrize("block", ["message-passing", "denoising", "residual"])
@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
@pytest.mark.parametrize("normalize", [None, sw.functional.row_softmax], ids=["default", "softmax"])
def test_a_whole_model_matches_plain_loops(
    block: str, pool: str, normalize: Callable[..., Tensor] | None
) -> None:
    model = sw.DMPS.build(
        2, 2, dim=3, hidden=(4, 5), depth=2, block=block, pool=pool, activation="tanh",
        gamma=sw.nn.Gamma(0.3) if block == "denoising" else None,
        graph="latent" if normalize is None else latent(normalize=normalize),
    ).double()  # fmt: skip
    randomize(model)
    with torch.no_grad():
        model.graph.kernel.log_sigma.fill_(math.log(0.7))
    raw = torch.randn(1, 4, 2, dtype=torch.float64)

    x = oracle.dense(raw[0].tolist(), *weights(model.encoder.layers[0]), math.tanh)
    z: oracle.Matrix = x
    for layer in model.graph.kernel.embed.layers:
        z = oracle.dense(z, *weights(layer), math.tanh)
    K = oracle.kernel_matrix(z, 0.7, oracle.rbf)
    W = oracle.normalized_rows(K) if normalize is None else oracle.softmax_rows(K)
    assert max(K[0]) - min(K[0]) > 0.1
    energies = [oracle.energy(x, W)]
    for step in model.blocks:
        messages = oracle.messages(W, x)
        if block == "denoising":
            x = oracle.dense(oracle.blend(x, messages, 0.3), *weights(step.dense), math.tanh)
        else:
            new = oracle.dense(messages, *weights(step.dense), math.tanh)
            if block == "residual":
                new = [[a + b for a, b in zip(u, v, strict=True)] for u, v in zip(x, new, strict=True)]
            x = new
        energies.append(oracle.energy(x, W))
    expected = oracle.dense([oracle.pooled(x, pool)], *weights(model.head), lambda value: value)

    assert torch.allclose(model(raw), torch.tensor(expected, dtype=torch.float64))
    assert torch.allclose(model.latent_graph(raw), torch.tensor([W], dtype=torch.float64))
    assert torch.allclose(model.dirichlet_energies(raw), torch.tensor([energies], dtype=torch.float64))


def test_latent_graph_and_energies_respect_the_mask() -> None:
    x, mask = padded([4, 2], math.nan)
    model = sw.DMPS.build(4, 1)
    W = model.latent_graph(x, mask)
    assert isinstance(W, Tensor)
    assert torch.allclose(W[1, :2, :2], model.latent_graph(x[1:, :2])[0], atol=1e-6)
    energies = model.dirichlet_energies(x, mask)
    assert torch.allclose(energies[1], model.dirichlet_energies(x[1:, :2])[0], atol=1e-6)
    assert energies.shape == (2, 4)


def test_gamma_one_is_message_passing_and_gamma_zero_sends_no_messages() -> None:
    x, W = torch.randn(2, 5, 3), torch.rand(2, 5, 5).softmax(-1)
    plain = sw.nn.MessagePassingBlock(3)
    one = sw.nn.SetDenoisingBlock(3, gamma=sw.nn.Gamma(1.0, learn=False))
    zero = sw.nn.SetDenoisingBlock(3, gamma=sw.nn.Gamma(0.0, learn=False))
    one.dense.load_state_dict(plain.dense.state_dict())
    zero.dense.load_state_dict(plain.dense.state_dict())
    assert torch.equal(one(x, W), plain(x, W))
    assert torch.equal(zero(x, W), plain.dense(x))


def test_without_messages_dmps_is_deepsets() -> None:
    """W = I and sum pooling: ρ(Σ φ(x_i)), the paper's proof that DMPS is universal."""
    model = sw.DMPS.build(
        3, 2, dim=4, depth=1, block="message-passing", graph=sw.nn.IdentityGraph(), pool="sum"
    )
    x = torch.randn(2, 5, 3)
    phi = nn.Sequential(model.encoder, model.blocks[0].dense)
    assert torch.allclose(model(x), model.head(phi(x).sum(1)), atol=1e-6)


def test_one_gamma_for_all_blocks_or_one_each() -> None:
    shared = sw.DMPS.build(3, 1, block="denoising")
    assert len({id(b.gamma) for b in shared.blocks}) == 1
    assert sum(name.endswith("logit") for name, _ in shared.named_parameters()) == 1
    own = sw.DMPS.build(3, 1, block="denoising", gamma=[sw.nn.Gamma(g) for g in (0.1, 0.5, 0.9)])
    assert [round(b.gamma.value.item(), 3) for b in own.blocks] == [0.1, 0.5, 0.9]
    fixed = sw.DMPS.build(3, 1, block="denoising", gamma=0.25)
    assert not any("gamma" in name for name, _ in fixed.named_parameters())
    assert all(b.gamma.value.item() == 0.25 for b in fixed.blocks)
    assert sw.nn.SetDenoisingBlock(3).gamma is not sw.nn.SetDenoisingBlock(3).gamma


def test_gamma_learns() -> None:
    block = sw.nn.SetDenoisingBlock(3)
    block(torch.randn(1, 4, 3), torch.full((1, 4, 4), 0.25)).sum().backward()
    assert block.gamma.logit.grad is not None
    assert block.gamma.logit.grad != 0
    assert block.gamma.value.item() == 0.5


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_learned_gamma_lies_strictly_between_0_and_1(value: float) -> None:
    with pytest.raises(ValueError, match=f"gamma must lie strictly between 0 and 1, got {value}"):
        sw.nn.Gamma(value)


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan])
def test_a_fixed_gamma_lies_between_0_and_1(value: float) -> None:
    with pytest.raises(ValueError, match=f"fixed gamma must lie between 0 and 1, got {value}"):
        sw.nn.Gamma(value, learn=False)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block": "magic"}, r"block must be one of \['denoising', .*, 'residual'\], got 'magic'"),
        ({"graph": "magic"}, r"graph must be one of \['auto', 'latent', .*\], got 'magic'"),
        ({"pool": "magic"}, r"pool must be one of \['attention', 'max', 'mean', 'sum'\], got 'magic'"),
        ({"depth": -1}, "depth must not be negative, got -1"),
        ({"dim": 0}, "out_dim must be at least 1, got 0"),
        ({"activation": "magic"}, "activation must be one of .*, got 'magic'"),
        ({"block": "residual", "gamma": 0.5}, "gamma must be used with block='denoising', got"),
        ({"gamma": [sw.nn.Gamma()]}, "expected one gamma for each of 3 blocks, got 1"),
        ({"hidden": ()}, "at least one layer, got none"),
    ],
)  # fmt: skip
def test_build_refuses_in_one_sentence(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.DMPS.build(3, 1, **arguments)


def test_build_takes_modules() -> None:
    graph, pool, encoder = sw.nn.UniformGraph(), sw.nn.AttentionPool(8), sw.nn.MLP(3, 5, 8)
    model = sw.DMPS.build(3, 2, dim=8, graph=graph, pool=pool, encoder=encoder)
    assert (model.graph, model.pool, model.encoder) == (graph, pool, encoder)
    assert model(torch.randn(2, 5, 3)).shape == (2, 2)


def test_the_uniform_graph_is_one_over_n() -> None:
    x, mask = padded([4, 2])
    W = sw.nn.UniformGraph()(x, mask)
    assert torch.allclose(W[0], torch.full((4, 4), 0.25))
    assert torch.allclose(W[1, :2, :2], torch.full((2, 2), 0.5))


class TestGivenGraph:
    adjacency = torch.tensor([[1.0, 3.0, 0.0], [2.0, 0.0, 2.0], [0.0, 0.0, 0.0]])

    def test_rows_are_scaled_and_the_lonely_listen_to_themselves(self) -> None:
        W = sw.nn.GivenGraph(self.adjacency)(torch.randn(2, 3, 4))
        expected = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])
        assert torch.equal(W, expected.expand(2, 3, 3))

    def test_padding_is_left_out(self) -> None:
        mask = torch.tensor([[True, True, False]])
        W = sw.nn.GivenGraph(self.adjacency)(torch.full((1, 3, 4), math.nan), mask)
        assert torch.equal(W[0], torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))

    def test_one_graph_a_set(self) -> None:
        both = torch.stack([self.adjacency, torch.eye(3)])
        W = sw.nn.GivenGraph(both)(torch.randn(2, 3, 4))
        assert torch.equal(W[1], torch.eye(3))
        assert W[0, 0, 1] == 0.75

    def test_it_travels_with_the_model(self) -> None:
        model = sw.DMPS.build(4, 1, graph=sw.nn.GivenGraph(self.adjacency))
        assert torch.equal(model.state_dict()["graph.adjacency"][0], self.adjacency)
        assert model.initialize_bandwidth(torch.randn(2, 3, 4)) is model

    @pytest.mark.usefixtures("unchecked")
    def test_absurd_graphs_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"must be \[n, n\] or \[b, n, n\], got \[2, 3\]"):
            sw.nn.GivenGraph(torch.zeros(2, 3))
        with pytest.raises(ValueError, match="finite and non-negative"):
            sw.nn.GivenGraph(-torch.ones(2, 2))
        with pytest.raises(ValueError, match="finite and non-negative"):
            sw.nn.GivenGraph(torch.full((2, 2), math.nan))
        with pytest.raises(ValueError, match="got a batch of 1 sets of 5 elements"):
            sw.nn.GivenGraph(self.adjacency)(torch.randn(1, 5, 4))
        with pytest.raises(ValueError, match="got a batch of 3 sets of 3 elements"):
            sw.nn.GivenGraph(torch.stack([self.adjacency] * 2))(torch.randn(3, 3, 4))


class TestBandwidth:
    def test_it_starts_at_the_median_distance_of_the_embedded_elements(self) -> None:
        graph = sw.LatentGraph(3, (8, 8))
        x = 100 * torch.randn(4, 10, 3)
        z = graph.kernel.embed(x)
        distances = torch.stack([torch.pdist(u) for u in z]).flatten()
        assert graph.initialize_bandwidth(x) is graph
        assert torch.isclose(graph.sigma, distances.median(), rtol=1e-4)
        assert 0.5 < graph.similarity(x).median() < 0.7

    def test_padding_does_not_count(self) -> None:
        graph, (x, mask) = sw.LatentGraph(4), padded([5, 3], 1e6)
        y, _ = padded([5, 3])
        sigma = graph.initialize_bandwidth(x, mask).sigma.item()
        assert sigma == graph.initialize_bandwidth(y, mask).sigma.item()

    def test_sigma_is_learned_and_positive(self) -> None:
        graph = sw.LatentGraph(3, sigma=0.25)
        assert math.isclose(graph.sigma.item(), 0.25, rel_tol=1e-6)
        graph(torch.randn(1, 5, 3))[0, 0, 1].backward()
        assert graph.kernel.log_sigma.grad is not None
        assert graph.kernel.log_sigma.grad != 0

    @pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
    def test_absurd_bandwidths_are_refused(self, sigma: float) -> None:
        with pytest.raises(ValueError, match=f"sigma must be positive and finite, got {sigma}"):
            sw.LatentGraph(3, sigma=sigma)


def test_similarity_is_the_kernel_and_zero_at_padding() -> None:
    graph, (x, mask) = sw.LatentGraph(4, sigma=0.2), padded([4, 2])
    K = graph.similarity(x, mask)
    assert (K[1, 2:] == 0).all()
    assert (K[1, :, 2:] == 0).all()
    assert K[0].min() < 0.7
    assert torch.allclose(K[1, :2, :2], graph.similarity(x[1:, :2])[0], atol=1e-6)
    assert torch.allclose(rows_to_one(K), graph(x, mask), atol=1e-6)
    assert torch.allclose(graph.log_kernel(x, mask).exp()[0], K[0])
    assert torch.allclose(
        graph.log_kernel(x, mask)[0],
        sw.functional.log_rbf_kernel(graph.kernel.embedded(x)[:1], graph.sigma)[0],
        atol=1e-4,
    )
    printed = sw.LatentGraph(4, sigma=0.2, normalize=sw.functional.row_softmax)
    printed.load_state_dict(graph.state_dict())
    expected = K.exp().masked_fill(K == 0, 0)
    assert torch.allclose(rows_to_one(expected), printed(x, mask), atol=1e-6)


LEARNED = [
    sw.LatentGraph,
    sw.nn.StreamedGraph,
    sw.nn.RandomFeatureGraph,
    sw.nn.AutoGraph,
    partial(sw.nn.NeighbourGraph, k=2),
]  # fmt: skip


@pytest.mark.parametrize("build", LEARNED)
def test_learned_graphs_divide_the_kernel_by_its_row_sums_unless_given_another_rule(
    build: Callable[..., sw.nn.LearnedGraph],
) -> None:
    assert build(3).normalize is sw.functional.row_normalize
    assert build(3, normalize=sw.functional.row_softmax).normalize is sw.functional.row_softmax
    for name in ("latent", "streamed", "linear", "auto"):
        assert sw.DMPS.build(3, 1, graph=name).graph.normalize is sw.functional.row_normalize


class TestStart:
    """Dense layers start as those of torch, uniformly within ±1/√in; blocks that replace add the identity."""

    @pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "sigmoid", "identity"])
    def test_weights_and_biases_fill_the_interval_of_torch(self, activation: str) -> None:
        layer, bound = sw.nn.Dense(400, 600, activation=activation), 400**-0.5
        for parameter in (layer.linear.weight, layer.linear.bias):
            assert parameter.abs().max() <= bound
            assert parameter.abs().max() > 0.99 * bound
            assert math.isclose(parameter.std().item(), bound / 3**0.5, rel_tol=0.05)
            assert parameter.mean().abs() < 0.1 * bound

    def test_the_law_is_that_of_a_linear_layer(self) -> None:
        torch.manual_seed(3)
        plain = nn.Linear(50, 7)
        torch.manual_seed(3)
        expected = [torch.empty_like(p).uniform_(-(50**-0.5), 50**-0.5) for p in plain.parameters()]
        ours = sw.nn.initialize(sw.nn.Dense(50, 7), torch.Generator().manual_seed(3))
        assert [torch.allclose(p, q) for p, q in zip(plain.parameters(), expected, strict=True)] == [True] * 2
        assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), expected, strict=True))

    def test_near_identity_is_a_dense_layer_and_the_identity(self) -> None:
        dense, near = (
            sw.nn.initialize(layer, torch.Generator().manual_seed(5))
            for layer in (sw.nn.Dense(40, 40, activation="tanh"), NearIdentity(40, activation="tanh"))
        )
        assert torch.equal(near.linear.weight, dense.linear.weight + torch.eye(40))
        assert torch.equal(near.linear.bias, dense.linear.bias)
        x = torch.randn(2, 3, 40)
        expected = (x + dense.linear(x)).tanh()
        assert torch.allclose(near(x), expected, atol=1e-5)
        assert near.linear.weight.requires_grad
        assert near.linear.weight.is_leaf

    def test_near_identity_starts_anew_without_adding_up(self) -> None:
        layer = NearIdentity(40)
        for seed in (5, 6, 5):
            sw.nn.initialize(layer, torch.Generator().manual_seed(seed))
            assert (layer.linear.weight - torch.eye(40)).abs().max() <= 40**-0.5
        again = sw.nn.initialize(NearIdentity(40), torch.Generator().manual_seed(5))
        assert torch.equal(again.linear.weight, layer.linear.weight)
        layer.reset_parameters()
        assert (layer.linear.weight - torch.eye(40)).abs().max() <= 40**-0.5
        assert not torch.equal(again.linear.weight, layer.linear.weight)

    def test_blocks_that_replace_the_features_start_near_the_identity(self) -> None:
        """Not those that add to them, nor any other layer."""
        generator = torch.Generator().manual_seed(0)
        for name, near in (("message-passing", True), ("denoising", True), ("residual", False)):
            model = sw.nn.initialize(sw.DMPS.build(3, 1, dim=64, hidden=(64, 64), block=name), generator)
            for block in model.blocks:
                assert isinstance(block.dense, NearIdentity) is near
                diagonal = block.dense.linear.weight.diagonal()
                assert torch.allclose(diagonal.mean(), torch.tensor(float(near)), atol=0.05)
            found = [layer for layer in model.modules() if isinstance(layer, NearIdentity)]
            assert len(found) == 3 * near
            for layer in model.graph.kernel.embed.layers:
                assert layer.linear.weight.abs().max() <= layer.linear.in_features**-0.5

    @pytest.mark.parametrize("block", ["message-passing", "denoising"])
    def test_the_signal_of_many_blocks_neither_fades_nor_explodes(self, block: str) -> None:
        x = torch.randn(1, 200, 64)
        for activation in ("tanh", "relu"):
            model = sw.DMPS.build(
                64, 1, dim=64, depth=8, block=block, activation=activation, graph=sw.nn.IdentityGraph()
            )
            steps, _ = model.trajectory(x)
            assert 0.3 < steps[-1].std() / steps[0].std() < 10
            plain = sw.nn.MLP(64, *[64] * 8, activation=activation)
            assert plain(steps[0]).std() < 0.3 * steps[0].std()  # which layers without the identity lose

    def test_the_embedding_of_a_tanh_kernel_has_slope_at_the_start(self) -> None:
        graph = sw.LatentGraph(160, (256, 512), activation="tanh")
        x = torch.randn(4, 10, 160)
        assert graph.kernel.embed(x).abs().max() < 0.95
        for layer in graph.kernel.embed.layers:  # Xavier's start, with the gain of a tanh
            nn.init.xavier_uniform_(layer.linear.weight, gain=5 / 3)
        assert graph.kernel.embed(x).abs().max() > 0.99


def test_initialize_draws_everything_from_the_generator() -> None:
    a, b, c = (
        sw.nn.initialize(sw.DMPS.build(3, 1), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    weight = "graph.kernel.embed.layers.1.linear.weight"
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.state_dict()[weight], c.state_dict()[weight])


def test_element_encoder_never_shows_padding_to_the_network() -> None:
    seen: list[Tensor] = []

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return x.flatten(1)

    x = torch.arange(24.0).view(2, 3, 2, 2)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    out = sw.nn.ElementEncoder(Spy())(x, mask)
    assert torch.equal(seen[0], x[mask])
    assert torch.equal(out, x.flatten(2) * mask[..., None])


def test_attention_is_readable_and_sums_to_one() -> None:
    pool, (x, mask) = sw.nn.AttentionPool(4), padded([5, 2, 0])
    a = pool.attention(x, mask)
    assert torch.allclose(a.sum(1), torch.tensor([1.0, 1.0, 0.0]))
    assert (a[~mask] == 0).all()
    assert torch.allclose(pool(x, mask), (a[..., None] * x).sum(1), atol=1e-6)


def test_gradients_of_single_sets_by_vmap_are_those_of_a_loop() -> None:
    model = sw.DMPS.build(3, 1, dim=4, hidden=(5, 6), pool="sum", activation="tanh").double()
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    parameters = dict(model.named_parameters())

    def loss(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (one.unsqueeze(0),)).sum()

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(4):
        alone = torch.autograd.grad(loss(parameters, x[i]), list(parameters.values()))
        for name, gradient in zip(parameters, alone, strict=True):
            assert torch.allclose(together[name][i], gradient), name


def test_the_bandwidth_inside_a_sparse_graph_starts_too() -> None:
    x = 100 * torch.randn(4, 10, 3)
    graph = sw.nn.SparseGraph(sw.LatentGraph(8), partial(sw.functional.top_k, k=2))
    model = sw.DMPS.build(3, 1, dim=8, graph=graph).initialize_bandwidth(x)
    assert model.graph.graph.sigma.item() > 10
    given = sw.nn.SparseGraph(sw.nn.UniformGraph(), partial(sw.functional.top_k, k=2))
    assert given.initialize_bandwidth(x) is given


def test_initialize_draws_layers_of_torch_too_and_leaves_the_global_generator_alone() -> None:
    def build(seed: int) -> nn.Module:
        encoder = sw.nn.ElementEncoder(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), sw.nn.Dense(8, 4)))
        return sw.nn.initialize(encoder, torch.Generator().manual_seed(seed))

    state = torch.get_rng_state()
    a = build(1)
    torch.set_rng_state(state)
    torch.rand(5)
    b, c = build(1), build(2)
    before = torch.get_rng_state()
    sw.nn.initialize(b, torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    weights = [name for name, _ in a.named_parameters() if name.endswith("weight")]
    assert not any(torch.equal(a.state_dict()[name], c.state_dict()[name]) for name in weights)
    assert a.network[2].linear.weight.abs().max() <= 8**-0.5  # drawn by the rule of Dense


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "x", [torch.randn(8, 3), torch.randn(1, 2, 5, 3), torch.ones(1, 2, 3, dtype=torch.long)]
)
def test_elements_that_do_not_fit_are_refused(x: Tensor) -> None:
    with pytest.raises(
        ValueError, match=r"elements must be floating point \[sets, elements, features\], got"
    ):
        sw.DMPS.build(3, 2, dim=8)(x)


def test_a_given_graph_is_a_copy() -> None:
    adjacency = torch.eye(2)
    graph = sw.nn.GivenGraph(adjacency)
    adjacency.zero_()
    assert torch.equal(graph.adjacency[0], torch.eye(2))
