"""Baselines: what they compute, against plain loops; how they start; what they refuse."""

import math
import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import setwise as sw
from setwise.nn.baselines import set_transformer as baselines
from setwise.nn.baselines.set_transformer import multihead_attention
from tests import oracle
from tests.cases import DIM, deepsets, padded, set_transformer

Rows = list[list[float]]


def weights(linear: nn.Linear) -> tuple[Rows, list[float]]:
    bias = linear.bias.tolist() if linear.bias is not None else [0.0] * linear.out_features
    return linear.weight.tolist(), bias


def dense(
    x: oracle.Matrix, layer: sw.nn.Dense, activation: Callable[[float], float] = oracle.identity
) -> Rows:
    return oracle.dense(x, *weights(layer.linear), activation)


def mlp(x: oracle.Matrix, layer: nn.Module, activation: Callable[[float], float] = oracle.identity) -> Rows:
    assert isinstance(layer, sw.nn.MLP)
    [only] = layer.layers
    assert isinstance(only, sw.nn.Dense)
    return dense(x, only, activation)


def slow_equivariant(x: oracle.Matrix, layer: sw.nn.EquivariantLayer, pool: str) -> Rows:
    own = oracle.dense(x, *weights(layer.Gamma), oracle.identity)
    [common] = oracle.dense([oracle.pooled(x, pool)], *weights(layer.Lambda), oracle.identity)
    return [[math.tanh(a - b) for a, b in zip(u, common, strict=True)] for u in own]


def slow_norm(x: Rows, norm: nn.Module) -> Rows:
    if not isinstance(norm, nn.LayerNorm):
        return x
    return oracle.layer_norm(x, norm.weight.tolist(), norm.bias.tolist())


def slow_mab(x: oracle.Matrix, y: oracle.Matrix, block: sw.nn.MultiheadAttentionBlock) -> Rows:
    Q, K, V = dense(x, block.query), dense(y, block.key), dense(y, block.value)
    H = slow_norm(oracle.added(Q, oracle.attention(Q, K, V, block.heads)), block.norm_attention)
    return slow_norm(oracle.added(H, dense(H, block.feedforward, oracle.relu)), block.norm_out)


def slow_block(x: oracle.Matrix, block: nn.Module) -> Rows:
    if isinstance(block, sw.nn.InducedSetAttentionBlock):
        return slow_mab(x, slow_mab(block.points[0].tolist(), x, block.gather), block.spread)
    assert isinstance(block, sw.nn.SetAttentionBlock)
    return slow_mab(x, x, block.attend)


def slow_pma(x: oracle.Matrix, pool: sw.nn.MultiheadAttentionPool) -> list[float]:
    return [value for row in slow_mab(pool.seeds[0].tolist(), x, pool.attend) for value in row]


def scramble(model: nn.Module) -> nn.Module:
    """In double precision, with every parameter (biases, norms) at some value that shows."""
    for parameter in model.double().parameters():
        nn.init.normal_(parameter, std=0.7)
    return model


def same(found: Tensor, expected: object) -> bool:
    return torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1, 5, DIM, dtype=torch.float64)


class TestAgainstPlainLoops:
    @pytest.mark.parametrize("pool", ["mean", "max"])
    def test_equivariant_layer(self, x: Tensor, pool: str) -> None:
        layer = sw.nn.EquivariantLayer(DIM, 3, pool=pool, activation="tanh")
        scramble(layer)
        assert same(layer(x), [slow_equivariant(x[0].tolist(), layer, pool)])

    @pytest.mark.parametrize("norm", [False, True])
    @pytest.mark.parametrize("heads", [1, 2, 4])
    def test_attention_blocks_and_pool(self, x: Tensor, heads: int, norm: bool) -> None:
        y, rows = torch.randn(1, 3, DIM, dtype=torch.float64), x[0].tolist()
        mab = sw.nn.MultiheadAttentionBlock(DIM, heads=heads, norm=norm)
        sab = sw.nn.SetAttentionBlock(DIM, heads=heads, norm=norm)
        isab = sw.nn.InducedSetAttentionBlock(DIM, inducing=2, heads=heads, norm=norm)
        pma = sw.nn.MultiheadAttentionPool(DIM, seeds=2, heads=heads, norm=norm)
        for module in (mab, sab, isab, pma):
            scramble(module)
        assert same(mab(x, y), [slow_mab(rows, y[0].tolist(), mab)])
        assert same(sab(x), [slow_block(rows, sab)])
        assert same(isab(x), [slow_block(rows, isab)])
        assert same(pma(x), [slow_pma(rows, pma)])

    @pytest.mark.parametrize("transformation", ["mean", "max", "none"])
    @pytest.mark.parametrize("pool", ["sum", "mean", "max"])
    def test_deepsets(self, x: Tensor, transformation: str, pool: str) -> None:
        model = deepsets(transformation=transformation, pool=pool)
        scramble(model)
        rows = mlp(x[0].tolist(), model.encoder, math.tanh)
        assert len(model.layers) == 3
        for layer in model.layers:
            if isinstance(layer, sw.nn.EquivariantLayer):
                rows = slow_equivariant(rows, layer, transformation)
            else:
                rows = mlp(rows, layer, math.tanh)
        assert same(model(x), dense([oracle.pooled(rows, pool)], model.head))

    @pytest.mark.parametrize("inducing", [None, 3])
    @pytest.mark.parametrize("pool", ["attention", "sum", "mean", "max"])
    @pytest.mark.parametrize("norm", [False, True])
    def test_set_transformer(self, x: Tensor, inducing: int | None, pool: str, norm: bool) -> None:
        model = set_transformer(inducing=inducing, pool=pool, norm=norm)
        scramble(model)
        rows = mlp(x[0].tolist(), model.encoder)
        assert len(model.layers) == 2
        for block in model.layers:
            rows = slow_block(rows, block)
        if isinstance(model.pool, sw.nn.MultiheadAttentionPool):
            z = slow_pma(rows, model.pool)
        else:
            z = oracle.pooled(rows, pool)
        assert same(model(x), dense([z], model.head))


class TestIdentities:
    def test_deepsets_without_transformation_is_dmps_without_messages(self, x: Tensor) -> None:
        plain = sw.DeepSets.build(DIM, 2, dim=6, transformation="none", pool="sum").double()
        messages = sw.DMPS.build(
            DIM, 2, dim=6, block="message-passing", graph=sw.nn.IdentityGraph(), pool="sum"
        ).double()
        assert len(plain.layers) == len(messages.blocks)
        for p, q in zip(messages.parameters(), plain.parameters(), strict=True):
            p.data.copy_(q.data)
        mask = torch.tensor([[True, True, False, True, False]])
        assert torch.allclose(plain(x, mask), messages(x, mask))

    @pytest.mark.parametrize("pool", ["mean", "max"])
    def test_alone_an_element_sees_itself_in_the_pool(self, pool: str) -> None:
        layer = sw.nn.EquivariantLayer(3, 2, pool=pool, activation="tanh")
        scramble(layer)
        x = torch.randn(4, 1, 3, dtype=torch.float64)
        own = x @ (layer.Gamma.weight - layer.Lambda.weight).mT + layer.Gamma.bias
        assert torch.allclose(layer(x), own.tanh())

    def test_mean_transformation_is_the_tied_form_where_both_matrices_agree(self, x: Tensor) -> None:
        layer = sw.nn.EquivariantLayer(DIM, 2, activation="identity").double()
        layer.Lambda.load_state_dict({"weight": layer.Gamma.weight})
        assert torch.allclose(layer(x), layer.Gamma(x - x.mean(1, keepdim=True)))

    def test_alike_elements_stay_alike_and_attention_returns_their_value(self) -> None:
        x = torch.randn(2, 1, DIM, dtype=torch.float64)
        block = sw.nn.SetAttentionBlock(DIM, heads=2).double()
        assert torch.allclose(block(x.expand(-1, 5, -1)), block(x).expand(-1, 5, -1))

    def test_attention_is_torch_s_but_for_the_scale(self, x: Tensor) -> None:
        """torch divides by the root of a head's features, the Set Transformer by that of all of them."""
        theirs = nn.MultiheadAttention(DIM, 2, bias=False, batch_first=True).double()
        with torch.no_grad():
            theirs.in_proj_weight.copy_(torch.eye(DIM).repeat(3, 1))
            theirs.out_proj.weight.copy_(torch.eye(DIM))
        expected, _ = theirs(x / 2**0.5, x, x)
        assert torch.allclose(multihead_attention(x, x, x, heads=2), expected)

    @pytest.mark.parametrize("garbage", [0.0, math.nan, math.inf])
    def test_induced_attention_never_hears_padding(self, garbage: float) -> None:
        block = sw.nn.InducedSetAttentionBlock(DIM, inducing=3, heads=2)
        scramble(block)
        x, mask = padded([5, 2, 1], garbage)
        for i, n in enumerate([5, 2, 1]):
            together = block(x.double(), mask)[i, :n]
            assert torch.allclose(together, block(x[i : i + 1, :n].double())[0])

    def test_without_keys_attention_adds_nothing(self) -> None:
        block, x = sw.nn.MultiheadAttentionBlock(DIM, heads=2), torch.randn(2, 3, DIM).double()
        scramble(block)
        H = block.query(x)
        expected = H + block.feedforward(H)
        y, nothing = torch.full((2, 4, DIM), math.nan).double(), torch.zeros(2, 4, dtype=torch.bool)
        assert torch.equal(block(x, y, nothing), expected)
        assert torch.equal(block(x, y[:, :0]), expected)

    def test_no_kernel_is_asked_for_a_softmax_over_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Here the kernel answers zero, but none is documented to: another may answer NaN."""

        def strict(
            q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *, scale: float
        ) -> Tensor:
            assert k.shape[-2] > 0
            assert attn_mask is None or attn_mask.any(-1).all()
            return scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, scale=scale)

        monkeypatch.setattr(baselines, "scaled_dot_product_attention", strict)
        x, mask = padded([3, 0])
        for model in (set_transformer(), set_transformer(inducing=2)):
            assert model(x, mask).isfinite().all()
            assert model(x[:, :0]).isfinite().all()

    @pytest.mark.parametrize("mask", [None, torch.zeros(2, 0, dtype=torch.bool)])
    def test_an_empty_set_pools_to_zeros(self, mask: Tensor | None) -> None:
        pool = sw.nn.MultiheadAttentionPool(DIM, seeds=2)
        scramble(pool)
        assert torch.equal(pool(torch.zeros(2, 0, DIM).double(), mask), torch.zeros(2, 2 * DIM).double())


class TestStart:
    @pytest.mark.parametrize(
        "make",
        [
            deepsets,
            lambda: deepsets(transformation="max", pool="attention"),
            lambda: deepsets(transformation="none"),
            set_transformer,
            lambda: set_transformer(inducing=3),
        ],
    )
    def test_all_parameters_come_from_the_generator(self, make: Callable[[], nn.Module]) -> None:
        a, b, c = (
            dict(sw.nn.initialize(make(), torch.Generator().manual_seed(seed)).named_parameters())
            for seed in (1, 1, 2)
        )
        for name, parameter in a.items():
            assert torch.equal(parameter, b[name]), name
            assert (parameter != c[name]).all(), name

    def test_linear_layers_start_as_those_of_torch(self) -> None:
        models = [deepsets(), deepsets(transformation="max"), set_transformer(), set_transformer(inducing=3)]
        for model in models:
            sw.nn.initialize(model, torch.Generator().manual_seed(0))
            layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
            assert len(layers) > 3
            for layer in layers:
                bound = layer.in_features**-0.5
                assert all(parameter.abs().max() <= bound for parameter in layer.parameters())
                assert layer.weight.abs().max() > 0.8 * bound
        layer = sw.nn.EquivariantLayer(400, 300)
        for matrix in (layer.Gamma.weight, layer.Lambda.weight):
            assert matrix.std().item() == pytest.approx(400**-0.5 / 3**0.5, rel=0.05)

    def test_layers_of_torch_start_by_their_own_rule(self) -> None:
        norm = nn.LayerNorm(3)
        nn.init.constant_(norm.weight, 5)
        sw.nn.initialize(nn.Sequential(norm, sw.nn.Dense(3, 3)), torch.Generator())
        assert (norm.weight == 1).all()

    @pytest.mark.usefixtures("unchecked")
    def test_a_drawn_module_must_say_how(self) -> None:
        with pytest.raises(NotImplementedError, match="Resettable must define reset_parameters"):
            sw.nn.initialize(sw.nn.Resettable(), torch.Generator())

    @pytest.mark.parametrize("pool", ["mean", "max"])
    @pytest.mark.parametrize("activation", ["tanh", "relu"])
    def test_three_equivariant_layers_neither_fade_nor_explode(self, pool: str, activation: str) -> None:
        """As many as `DeepSets.build` makes; torch's start halves the signal of a relu layer."""
        x = torch.randn(8, 50, 64)
        for _ in range(3):
            x = sw.nn.EquivariantLayer(64, 64, pool=pool, activation=activation)(x)
        assert 0.05 < x.std() < 10


Layer, Sab, Isab = sw.nn.EquivariantLayer, sw.nn.SetAttentionBlock, sw.nn.InducedSetAttentionBlock
Pma = sw.nn.MultiheadAttentionPool
DIVISIBLE = "dim must be a multiple of heads, got dim=6 and heads=4"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(Layer, 3, 2, pool="sum"), "one of ['max', 'mean'], got 'sum'"),
        (partial(Layer, 3, 2, activation="elu"), "activation must be one of ['gelu', "),
        (partial(Layer, 3, 0), "out_dim must be at least 1, got 0"),
        (partial(Layer, 0, 3), "dim must be at least 1, got 0"),
        (partial(deepsets, transformation="sum", depth=0), "one of ['max', 'mean', 'none'], got 'sum'"),
        (partial(deepsets, depth=-1), "depth must not be negative, got -1"),
        (partial(deepsets, pool="median"), "one of ['attention', 'max', 'mean', 'sum'], got 'median'"),
        (partial(Sab, 6, heads=4), DIVISIBLE),
        (partial(Sab, 6, heads=0), "heads must be at least 1, got 0"),
        (partial(Isab, 6, inducing=0), "inducing must be at least 1, got 0"),
        (partial(Pma, 6, seeds=0), "seeds must be at least 1, got 0"),
        (partial(set_transformer, heads=4), DIVISIBLE),
        (partial(set_transformer, inducing=0), "inducing must be at least 1, got 0"),
        (partial(set_transformer, depth=-1), "depth must not be negative, got -1"),
        (partial(set_transformer, pool="median"), "one of ['attention', 'max', 'mean', 'sum'], got 'median'"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        make()
    assert "\n" not in str(error.value)


def test_build_takes_modules(x: Tensor) -> None:
    pool, encoder = sw.nn.AttentionPool(8), sw.nn.MLP(DIM, 5, 8)
    deep = sw.DeepSets.build(DIM, 2, dim=8, pool=pool, encoder=encoder)
    attentive = sw.SetTransformer.build(DIM, 2, dim=8, pool=pool, encoder=encoder)
    for model in (deep, attentive):
        assert (model.pool, model.encoder) == (pool, encoder)
        assert model(x.float()).shape == (1, 2)


def test_several_seeds_stand_side_by_side(x: Tensor) -> None:
    pool = sw.nn.MultiheadAttentionPool(DIM, seeds=3, heads=2)
    model = sw.SetTransformer(sw.nn.MLP(DIM, DIM), [], pool, sw.nn.Dense(3 * DIM, 2)).double()
    assert model(x).shape == (1, 2)
