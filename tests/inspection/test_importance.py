"""What each element counts, against really leaving it out, one model run at a time."""

import math
import re
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import setwise as sw
from setwise.inspection.importance import importance, strongest_neighbours
from setwise.nn.dmps import DMPS
from setwise.sets import Elements
from tests.cases import (
    BASELINES,
    COUNTERS,
    DIM,
    MODELS,
    Case,
    contrast,
    convolution,
    deepsets,
    dmps,
    padded,
    set_transformer,
)

SIZES = [5, 3, 1, 0]
EVERY = [*MODELS, *COUNTERS, *BASELINES]
METHODS = ["leave-one-out", "integrated-gradients"]

every_model = pytest.mark.parametrize("case", EVERY, ids=str)


def made(case: Case) -> nn.Module:
    torch.manual_seed(1)
    return case.make().double()


def batch(garbage: float = math.nan) -> tuple[Tensor, Tensor]:
    x, mask = padded(SIZES, garbage)
    return x.double(), mask


def slowly_left_out(model: nn.Module, x: Tensor, mask: Tensor, output: int = 0) -> Tensor:
    """One element taken out of one set, no mask, no batch: what `importance` must agree with."""
    values = torch.zeros(mask.shape, dtype=torch.float64)
    for i in range(len(x)):
        real = [j for j in range(mask.shape[1]) if mask[i, j]]
        whole = model(x[i, real].unsqueeze(0))[0, output]
        for j in real:
            others = [k for k in real if k != j]
            values[i, j] = whole - model(x[i, others].unsqueeze(0))[0, output]
    return values.detach()


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> bool:
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


class Images(nn.Module):
    """A network of images that counts how many it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten())
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        out: Tensor = self.layers(x.double())
        return out


class Ready(nn.Module):
    """An encoder for elements that need none."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


def of_images(**changes: Any) -> sw.DMPS:
    torch.manual_seed(1)
    model = sw.DMPS.build(1, 2, dim=16, hidden=(5, 7), encoder=sw.nn.ElementEncoder(Images()), **changes)
    return model.double()


@every_model
def test_leaving_out_by_mask_is_really_leaving_out(case: Case) -> None:
    model, (x, mask) = made(case), batch()
    values = importance(model, x, mask, method="leave-one-out", output=1)
    assert values.dtype == torch.float64
    assert not values.requires_grad
    assert close(values, slowly_left_out(model, x, mask, output=1))
    assert (values[~mask] == 0).all()
    assert values.abs().sum() > 0


def test_leaving_out_images_encodes_each_of_them_once() -> None:
    model = of_images()
    x = torch.randint(256, (2, 6, 3, 4, 4), dtype=torch.uint8)
    mask = torch.arange(6) < torch.tensor([[6], [4]])
    expected = slowly_left_out(model.eval(), x, mask)
    model.encoder.network.seen = 0
    assert close(importance(model, x, mask), expected)
    assert model.encoder.network.seen == 10


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 100])
def test_chunks_bound_the_batch_and_share_one_set(chunk: int) -> None:
    model, (x, mask) = dmps().double(), batch()
    runs: list[Tensor] = []
    model.graph.register_forward_pre_hook(lambda _, inputs: runs.append(inputs[0]))
    values = importance(model, x, mask, chunk=chunk)
    first, *parts = runs
    assert len(first) == len(SIZES)
    assert [len(part) for part in parts] == [
        min(chunk, n - start) for n in SIZES for start in range(0, n, chunk)
    ]
    assert all(part.stride(0) == 0 for part in parts if len(part) > 1)  # not copied
    assert close(values, slowly_left_out(model, x, mask))


def test_without_a_chunk_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = deepsets(), torch.randn(1, 9, DIM)
    sizes: list[int] = []
    model.pool.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    importance(model, x)
    assert sizes == [1, 9]
    for pairs, largest in ((81 * 4 + 80, 4), (10, 1)):
        monkeypatch.setattr(import_module("setwise.inspection.importance"), "PAIRS", pairs)
        sizes.clear()
        importance(model, x)
        assert max(sizes) == largest


def test_only_encoders_known_to_be_per_element_work_ahead() -> None:
    class Centered(sw.nn.MLP):
        def forward(self, x: Any, mask: Tensor | None = None) -> Tensor:
            return super().forward(sw.functional.center(x, mask), mask)

    class Foreign(nn.Module):
        """Has an encoder, but not for the elements as they come."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = sw.nn.MLP(DIM, 5)
            self.pool = sw.nn.SumPool()

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            out: Tensor = self.pool(self.encoder(sw.functional.center(x, mask), mask), mask)
            return out

    x, mask = batch()
    models = [dmps(encoder=Centered(DIM, 6)), deepsets(encoder=Centered(DIM, 6)), Foreign(), contrast()]
    for model in models:
        model.double()
        runs: list[int] = []
        model.encoder.register_forward_hook(lambda _, inputs, out, runs=runs: runs.append(1))
        values = importance(model, x, mask)
        assert len(runs) == 1 + 3
        assert close(values, slowly_left_out(model, x, mask))


@pytest.mark.parametrize(
    "make",
    [
        partial(dmps, pool="attention", block="denoising"),
        partial(deepsets, pool="attention"),
        partial(set_transformer, pool=sw.nn.AttentionPool(6)),
        partial(dmps, pool=sw.nn.GatedAttentionPool(6)),
        partial(sw.DistinctDMPS.build, DIM, 3, dim=6, pool="attention"),
    ],
)
def test_attention_is_that_of_the_pool(make: Any) -> None:
    model, (x, mask) = make().double(), batch()
    into_pool: list[Tensor] = []
    hook = model.pool.register_forward_pre_hook(lambda _, inputs: into_pool.append(inputs[0]))
    model(x, mask)
    hook.remove()
    expected = model.pool.attention(into_pool[0], mask)
    for method in ("attention", "auto"):
        values = importance(model, x, mask, method=method)
        assert close(values, expected)
        assert not values.requires_grad
    assert close(values.sum(1), mask.any(1).double())
    assert values[0].std() > 1e-4
    assert (values[~mask] == 0).all()
    assert not model.pool._forward_pre_hooks
    assert close(importance(model, x[:1]), expected[:1])


def test_attention_comes_after_the_blocks() -> None:
    model, (x, mask) = dmps(pool="attention").double(), batch()
    steps, _ = model.trajectory(x, mask)
    assert close(importance(model, x, mask), model.pool.attention(steps[-1], mask))
    assert not close(importance(model, x, mask), model.pool.attention(steps[0], mask))


def test_a_foreign_model_may_call_its_pool_as_it_likes() -> None:
    class Keywords(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = sw.nn.AttentionPool(DIM)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            out: Tensor = self.pool(x=x, mask=mask)
            return out

    model, (x, mask) = Keywords().double(), batch()
    assert close(importance(model, x, mask), model.pool.attention(x, mask))


def test_padding_counts_zero_whatever_a_pool_says() -> None:
    class Everything(sw.nn.SumPool):
        def attention(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return torch.ones(x.shape[:2], dtype=x.dtype)

    x, mask = batch()
    assert torch.equal(importance(dmps(pool=Everything()).double(), x, mask), mask.double())


def local_moments() -> sw.DMPS:
    network = sw.nn.MLP(sw.nn.LocalMoments.features(DIM, 1), 6, activation="tanh")
    return dmps(encoder=sw.nn.LocalMoments(network, dim=DIM, scales=(2.0,)))


@pytest.mark.parametrize(
    ("make", "baseline"),
    [
        (partial(dmps, block="message-passing"), "mean"),
        (partial(dmps, block="residual"), "zeros"),
        (partial(dmps, pool="attention"), "mean"),
        (partial(dmps, dim=9, encoder=sw.nn.ElementEncoder(convolution())), "mean"),
        (deepsets, "mean"),
        (deepsets, "zeros"),
        (local_moments, "mean"),
        (local_moments, "zeros"),
    ],
)
def test_integrated_gradients_are_complete(make: Any, baseline: Any) -> None:
    model, (x, mask) = make().double(), batch()
    with torch.no_grad():
        model.head.linear.weight *= 3  # outputs of order one
    values = importance(model, x, mask, method="integrated-gradients", output=2, baseline=baseline)
    assert values.dtype == torch.float64
    assert not values.requires_grad
    assert (values[~mask] == 0).all()
    ahead = not isinstance(model.encoder, sw.nn.LocalMoments)
    elements = (model.encoder(x, mask) if ahead else x).masked_fill(~mask[..., None], 0)
    start = torch.zeros_like(elements)
    if baseline == "mean":
        start = start + elements.sum(1, keepdim=True) / mask.sum(1).clamp(min=1).view(-1, 1, 1)
    out = model(x, mask)
    if ahead:
        model.encoder = Ready()
    gained = (out - model(start, mask))[:, 2]
    assert torch.allclose(values.sum(1), gained, atol=5e-4)
    assert gained.abs().max() > 0.01


class Product(nn.Module):
    """(Σ_i x_i1)² Σ_i x_i2³: elements meet, features differ, and no rule is exact."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        a, b = sw.functional.fill_padding(x, mask)[..., :2].unbind(-1)
        return (a.sum(1) ** 2 * (b**3).sum(1)).unsqueeze(1)


def test_integrated_gradients_follow_the_midpoint_rule() -> None:
    """A slow one: each step and element by itself, with differences for derivatives."""

    x = torch.tensor([[[1.0, 2.0], [3.0, -1.0], [5.0, 0.5], [9.0, 9.0]]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False]])
    for baseline, start in (("mean", [3.0, 0.5]), ("zeros", [0.0, 0.0])):
        for steps in (1, 3):
            expected = torch.zeros(4, dtype=torch.float64)
            for step in range(steps):
                t = (2 * step + 1) / (2 * steps)
                at = torch.tensor(start).double() + t * (x - torch.tensor(start))
                for i in range(3):
                    for d in range(2):
                        nudge = torch.zeros_like(x)
                        nudge[0, i, d] = 1e-5
                        rise = Product()(at + nudge, mask) - Product()(at - nudge, mask)
                        expected[i] += (x[0, i, d] - start[d]) * rise.item() / 2e-5 / steps
            found = importance(
                Product(), x, mask, method="integrated-gradients", steps=steps, baseline=baseline
            )
            assert torch.allclose(found[0], expected, rtol=1e-6, atol=1e-6)
            assert found[0, :3].abs().min() > 1e-3


def test_integrated_gradients_take_32_steps_from_the_mean_unless_told() -> None:
    ways = partial(importance, Product(), *batch(), method="integrated-gradients")
    assert torch.equal(ways(), ways(steps=32, baseline="mean"))
    assert not close(ways(), ways(steps=31))
    assert not close(ways(), ways(baseline="zeros"))


def test_integrated_gradients_of_images_are_those_of_their_features() -> None:
    model, x = of_images().eval(), torch.randint(256, (2, 5, 3, 4, 4), dtype=torch.uint8)
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    rest = sw.DMPS(Ready(), model.graph, list(model.blocks), model.pool, model.head)
    ways = partial(importance, mask=mask, method="integrated-gradients", output=1, steps=4)
    values = ways(model, x)
    assert model.encoder.network.seen == 8
    assert close(values, ways(rest, model.encoder(x, mask).detach()))
    assert values.abs().sum() > 0


def test_raw_images_work_where_the_model_takes_them() -> None:
    class Brightness(nn.Module):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            out: Tensor = sw.nn.SumPool()(x.flatten(2), mask).sum(1, keepdim=True)
            return out

    x, mask = torch.rand(2, 3, 3, 2, 2), torch.tensor([[True] * 3, [True, False, True]])
    expected = x.sum((2, 3, 4)) * mask
    assert torch.allclose(importance(Brightness(), x, mask), expected, atol=1e-5)
    found = importance(Brightness(), x, mask, method="integrated-gradients", baseline="zeros")
    assert torch.allclose(found, expected, atol=1e-5)


def test_elements_may_be_single_numbers() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return (x * mask).sum(1, keepdim=True)

    x = torch.tensor([[1.0, 2.0, 6.0]])
    assert importance(Sum(), x).tolist() == [[1, 2, 6]]
    assert importance(Sum(), x, method="integrated-gradients").tolist() == [[-2, -1, 3]]


@pytest.mark.parametrize("method", ["attention", *METHODS])
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_used_in_evaluation_and_left_as_it_was(method: Any, fails: bool) -> None:
    model = of_images(pool="attention")
    model.encoder.network.layers[1].eval()  # as one does with a frozen part
    model.head.requires_grad_(False)
    model.pool.score[0].linear.weight.grad = torch.ones(64, 16).double()
    modes = [m.training for m in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [p.grad for p in model.parameters()]
    learned = [p.requires_grad for p in model.parameters()]
    encoder = model.encoder
    during: list[bool] = []
    model.graph.register_forward_hook(lambda m, *_: during.extend(part.training for part in model.modules()))
    x = torch.rand(2, 3, 3, 4, 4)
    if fails:
        with pytest.raises(ValueError, match="output must be"):
            importance(model, x, method=method, output=9)
    else:
        importance(model, x, method=method, steps=2)
    assert during
    assert not any(during)
    assert modes == [m.training for m in model.modules()]
    assert True in modes
    assert False in modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(a is b for a, b in zip(grads, [p.grad for p in model.parameters()], strict=True))
    assert learned == [p.requires_grad for p in model.parameters()]
    assert model.encoder is encoder
    assert not model.pool._forward_pre_hooks


@pytest.mark.parametrize("method", METHODS)
def test_gradients_may_be_off_and_parameters_frozen(method: Any) -> None:
    model, (x, mask) = dmps().double(), batch()
    way = partial(importance, mask=mask, method=method, steps=2)
    values = way(model, x)
    with torch.no_grad():
        assert torch.equal(way(model, x), values)
    assert torch.equal(way(model, x.clone().requires_grad_()), values)
    assert torch.equal(way(model.requires_grad_(False), x), values)


@every_model
def test_the_smallest_sets(case: Case) -> None:
    model = made(case).requires_grad_(False)
    alone, none = torch.randn(1, 1, DIM).double(), torch.zeros(1, 0, DIM).double()
    nothing = torch.zeros(1, 1, dtype=torch.bool)
    for method in METHODS:
        way = partial(importance, model, method=method, steps=2)
        assert way(alone).isfinite().all()
        assert way(alone, nothing).tolist() == [[0]]
        assert way(none).shape == (1, 0)
        assert way(alone[:0]).shape == (0, 1)
    assert close(importance(model, alone, method="leave-one-out"), (model(alone) - model(none))[:, :1])
    assert importance(model, none).shape == (1, 0)


def test_what_does_not_depend_on_the_elements_has_no_gradient() -> None:
    """Whether there are parameters to learn or not."""
    model, none = set_transformer(), torch.zeros(1, 0, DIM)
    for learned in (True, False):
        model.requires_grad_(learned)
        assert importance(model, none, method="integrated-gradients", steps=1).shape == (1, 0)


def test_the_path_of_integrated_gradients_is_finite_whatever_stands_in_the_padding() -> None:
    seen: list[Tensor] = []
    model = sw.nn.SumPool()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    importance(model, *batch(math.nan), method="integrated-gradients", steps=2)
    assert len(seen) == 2
    assert all(x.isfinite().all() for x in seen)


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_shared_elements_count_as_if_they_were_written_out(method: Any) -> None:
    values, index = torch.randn(4, DIM).double(), torch.tensor([[0, 1, 2], [2, 2, 3], [1, 0, 0]])
    shared, mask = sw.Shared(values, index), torch.tensor([[True] * 3, [True] * 3, [True, True, False]])
    ahead = dmps(dim=9, encoder=sw.nn.ElementEncoder(convolution()))
    for model in (ahead, contrast(), sw.nn.MaxPool(), dmps(pool="attention")):
        model.double()
        expected = importance(model, shared.expand(), mask, method=method, steps=3)
        assert close(importance(model, shared, mask, method=method, steps=3), expected)


def test_no_mask_means_all_real() -> None:
    x = padded([4, 4])[0]
    for method in METHODS:
        way = partial(importance, dmps(), x, method=method, steps=2)
        assert torch.equal(way(), way(mask=torch.ones(2, 4, dtype=torch.bool)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"method": "magic"},
            "method must be one of ['attention', 'auto', 'integrated-gradients', 'leave-one-out'], "
            "got 'magic'",
        ),
        ({"method": "attention"}, "attention needs a model with an attention pool, got DMPS"),
        ({"output": 3}, "output must be from 0 to 2, got 3"),
        ({"output": -1}, "output must be from 0 to 2, got -1"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        (
            {"method": "integrated-gradients", "baseline": "median"},
            "baseline must be one of ['mean', 'zeros'], got 'median'",
        ),
        ({"mask": torch.ones(2, 4, dtype=torch.bool)}, "mask must be bool [2, 5], got torch.bool [2, 4]"),
        ({"mask": torch.ones(2, 5)}, "mask must be bool [2, 5], got torch.float32 [2, 5]"),
    ],
)
def test_errors_say_what_is_wrong(changes: Any, sentence: str, unchecked: None) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        importance(dmps(), torch.randn(2, 5, DIM), **changes)


def test_more_errors_say_what_is_wrong(unchecked: None) -> None:
    class Bright(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return (x.flatten(2).any(2) & mask).sum(1, keepdim=True).float()

    x = torch.ones(1, 2, 1, 4, 4, dtype=torch.bool)
    assert importance(Bright(), x).tolist() == [[1, 1]]
    with pytest.raises(
        ValueError, match=r"^integrated gradients need floating-point elements, got torch\.bool$"
    ):
        importance(Bright(), x, method="integrated-gradients")
    centers = sw.nn.PointNetPlusPlus.build(3, 2, centers=(2, 1), dims=((4,), (4,), (4,)), hidden=(4,))
    centers.pool = sw.nn.AttentionPool(4)
    sentence = "attention must have one weight per element, [2, 5], got [2, 1]"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        importance(centers, torch.randn(2, 5, 3))
    with pytest.raises(ValueError, match=r"attention pool, got Bright$"):
        importance(Bright(), x, method="attention")


def test_the_strongest_are_those_of_a_sorted_row() -> None:
    x, mask = padded([9, 6])
    W = dmps().latent_graph(x, mask)
    assert isinstance(W, Tensor)
    for graph, n in zip(W, (9, 6), strict=True):
        for element in range(n):
            row = sorted((-graph[element, j].item(), j) for j in range(n) if j != element)
            for k in (1, 3, n - 1, 20):
                elements, weights = strongest_neighbours(graph, element, k)
                assert elements.tolist() == [j for _, j in row][:k]
                assert weights.tolist() == [-w for w, _ in row][:k]
                assert not weights.requires_grad
    assert len(strongest_neighbours(W[1], 7, 3)[0]) == 0  # padding hears nobody


def test_the_strongest_leave_the_graph_as_it_is_and_keep_the_order_of_equals() -> None:
    W = torch.full((40, 40), 1 / 40)
    elements, weights = strongest_neighbours(W, 3, 5)
    assert elements.tolist() == [0, 1, 2, 4, 5]
    assert weights.tolist() == W[0, :5].tolist()
    assert (W == 1 / 40).all()


def test_the_strongest_refuse_what_is_no_graph_or_no_element(unchecked: None) -> None:
    W = torch.eye(3)
    for arguments, sentence in (
        ((W[None], 0, 1), "W must be the graph [n, n] of one set, got [1, 3, 3]"),
        ((W[:2], 0, 1), "W must be the graph [n, n] of one set, got [2, 3]"),
        ((W, 3, 1), "element must be from 0 to 2, got 3"),
        ((W, -1, 1), "element must be from 0 to 2, got -1"),
        ((W, 0, 0), "k must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            strongest_neighbours(*arguments)


def test_a_model_with_its_own_forward_is_not_taken_apart() -> None:
    class Both(DMPS):
        def forward(self, x: Elements, mask: Tensor | None = None) -> Tensor:
            return super().forward(x, mask) + x.sum((1, 2)).unsqueeze(1)

    x = torch.randn(2, 4, 3)
    model = DMPS.build(3, 1, dim=5)
    model.__class__ = Both
    wrapped = nn.Sequential()
    wrapped.forward = lambda x, mask=None: model(x, mask)
    for method in ("leave-one-out", "integrated-gradients"):
        torch.testing.assert_close(importance(model, x, method=method), importance(wrapped, x, method=method))
