"""PointNet++: sampling, grouping and layers against plain loops; what it must not see; what it refuses."""

import math
import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import setwise as sw
from setwise.nn.baselines.pointnet import NormedLayer, Readout
from setwise.nn.layers import BatchNorm
from tests import oracle
from tests.cases import DIM, padded, pointnet

Rows = list[list[float]]
Points = tuple[oracle.Matrix, oracle.Matrix]
"""Coordinates and features of one set."""


def slow_farthest(points: oracle.Matrix, m: int) -> list[int]:
    mean = [sum(column) / len(points) for column in zip(*points, strict=True)]
    taken = [max(range(len(points)), key=lambda j: oracle.distance(points[j], mean))]
    while len(taken) < min(m, len(points)):
        rest = [j for j in range(len(points)) if j not in taken]
        taken.append(max(rest, key=lambda j: min(oracle.distance(points[j], points[i]) for i in taken)))
    return taken


def slow_ball(points: oracle.Matrix, centre: oracle.Vector, radius: float, k: int) -> list[int]:
    inside = [j for j in range(len(points)) if oracle.distance(points[j], centre) < radius]
    return sorted(inside, key=lambda j: oracle.distance(points[j], centre))[:k]


def slow_norm(rows: Rows, norm: nn.Module) -> Rows:
    if not isinstance(norm, nn.BatchNorm1d):
        return rows
    means, variances = norm.running_mean.tolist(), norm.running_var.tolist()
    if norm.training and len(rows) > 1:
        columns = list(zip(*rows, strict=True))
        means = [sum(c) / len(c) for c in columns]
        variances = [sum((a - mean) ** 2 for a in c) / len(c) for c, mean in zip(columns, means, strict=True)]
    parameters = list(zip(means, variances, norm.weight.tolist(), norm.bias.tolist(), strict=True))
    return [
        [
            (a - mean) / math.sqrt(variance + 1e-5) * w + b
            for a, (mean, variance, w, b) in zip(row, parameters, strict=True)
        ]
        for row in rows
    ]


def slow_layer(rows: Rows, layer: NormedLayer) -> Rows:
    linear = oracle.dense(rows, layer.linear.weight.tolist(), layer.linear.bias.tolist(), oracle.identity)
    return [[oracle.relu(a) for a in row] for row in slow_norm(linear, layer.norm)]


def slow_abstraction(sets: list[Points], layer: sw.nn.SetAbstraction) -> list[Points]:
    """All groups of all sets go through the layers together, as the batch norms of training need."""
    rows, sizes, centres = [], [], []
    for points, features in sets:
        if layer.centers is None:
            groups = [([0.0, 0.0, 0.0], range(len(points)))] if points else []
        else:
            chosen = [points[i] for i in (slow_farthest(points, layer.centers) if points else [])]
            groups = [(c, slow_ball(points, c, layer.radius, layer.neighbours)) for c in chosen]
        centres.append([c for c, _ in groups])
        sizes.append([len(group) for _, group in groups])
        for c, group in groups:
            rows += [[*(a - b for a, b in zip(points[j], c, strict=True)), *features[j]] for j in group]
    for part in layer.layers:
        rows = slow_layer(rows, part)
    found, rest = [], iter(rows)
    for coordinates, lengths in zip(centres, sizes, strict=True):
        found.append(
            (coordinates, [oracle.pooled([next(rest) for _ in range(size)], "max") for size in lengths])
        )
    return found


def slow_model(sets: list[Rows], model: sw.nn.PointNetPlusPlus) -> Rows:
    points: list[Points] = [([row[:3] for row in rows], [row[3:] for row in rows]) for rows in sets]
    for layer in model.layers:
        points = slow_abstraction(points, layer)
    width = model.head.linear.in_features
    z = [oracle.pooled(features, "max") if features else [0.0] * width for _, features in points]
    *hidden, last = model.head.layers
    for part in hidden:
        z = slow_layer(z, part[0])
    return oracle.dense(z, last.linear.weight.tolist(), last.linear.bias.tolist(), oracle.identity)


def scramble(model: nn.Module) -> nn.Module:
    """In double precision, with every parameter and statistic at some value that shows."""
    for parameter in model.double().parameters():
        nn.init.normal_(parameter, std=0.7)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            nn.init.normal_(buffer, std=0.3)
        elif name.endswith("running_var"):
            nn.init.uniform_(buffer, 0.5, 2)
    return model


def sets_of(x: Tensor, mask: Tensor) -> list[Rows]:
    return [rows[real].tolist() for rows, real in zip(x, mask, strict=True)]


def same(found: Tensor, expected: object) -> bool:
    return torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-11)


def abstraction(**changes: object) -> sw.nn.SetAbstraction:
    arguments: dict[str, object] = {"centers": 4, "radius": 1.6, "neighbours": 3}
    return scramble(sw.nn.SetAbstraction(DIM - 3, 6, 5, **(arguments | changes)))


@pytest.fixture
def points() -> Tensor:
    """Far from the origin, so that the centre of the set is not where the coordinates are zero."""
    return torch.randn(3, 20, 3, dtype=torch.float64) + torch.tensor([5.0, -3.0, 2.0])


class TestFarthestPoints:
    @pytest.mark.parametrize("m", [1, 2, 7, 20, 30])
    def test_against_plain_loops(self, points: Tensor, m: int) -> None:
        index, real = sw.nn.farthest_points(points, m)
        assert index.tolist() == [slow_farthest(rows, m) for rows in points.tolist()]
        assert real.shape == index.shape == (3, min(m, 20))
        assert real.all()

    @pytest.mark.parametrize("garbage", [0.0, 100.0, math.nan, math.inf])
    def test_padding_is_never_taken(self, points: Tensor, garbage: float) -> None:
        mask = torch.rand(3, 20) < torch.tensor([[0.8], [0.3], [0.0]])
        assert 5 < mask[0].sum() < 20
        assert 0 < mask[1].sum() < 10
        index, real = sw.nn.farthest_points(points.masked_fill(~mask[..., None], garbage), 10, mask)
        for i in range(3):
            places = mask[i].nonzero().flatten()
            rows = points[i, places].tolist()
            expected = places[slow_farthest(rows, 10)].tolist() if rows else []
            assert index[i, real[i]].tolist() == expected
            assert real[i].tolist() == [j < len(expected) for j in range(10)]

    def test_the_order_of_the_points_does_not_matter(self, points: Tensor) -> None:
        order = torch.randperm(20)
        index, _ = sw.nn.farthest_points(points, 8)
        shuffled, _ = sw.nn.farthest_points(points[:, order], 8)
        assert torch.equal(order[shuffled], index)

    def test_no_point_is_taken_twice_even_where_several_lie_in_one_place(self) -> None:
        x = torch.zeros(1, 5, 3)
        x[0, 3] = 1
        index, real = sw.nn.farthest_points(x, 5)
        assert index[0, 0] == 3
        assert sorted(index[0].tolist()) == list(range(5))
        assert real.all()

    def test_half_precision_is_lifted_and_nothing_is_differentiated(self) -> None:
        coarse = torch.randn(1, 100, 3).bfloat16()
        index, _ = sw.nn.farthest_points(coarse.requires_grad_(), 20)
        assert index.tolist() == [slow_farthest(coarse[0].tolist(), 20)]

    def test_a_lone_point_is_found_wherever_it_stands(self) -> None:
        index, real = sw.nn.farthest_points(torch.randn(4, 4, 3), 2, torch.eye(4, dtype=torch.bool))
        assert index[:, 0].tolist() == [0, 1, 2, 3]
        assert real.tolist() == [[True, False]] * 4

    def test_of_no_points_there_is_no_sample(self) -> None:
        index, real = sw.nn.farthest_points(torch.zeros(2, 0, 3), 4)
        assert index.shape == real.shape == (2, 0)


class TestBallQuery:
    @pytest.mark.parametrize("radius", [0.1, 1.0, 2.5, math.inf])
    @pytest.mark.parametrize("k", [1, 4, 50])
    def test_against_plain_loops(self, points: Tensor, radius: float, k: int) -> None:
        centers = points[:, :6] + 0.05
        index, inside = sw.nn.ball_query(points, centers, radius, k)
        assert index.shape == inside.shape == (3, 6, min(k, 20))
        for i in range(3):
            for c in range(6):
                expected = slow_ball(points[i].tolist(), centers[i, c].tolist(), radius, k)
                assert index[i, c, inside[i, c]].tolist() == expected
                assert inside[i, c].tolist() == [j < len(expected) for j in range(inside.shape[2])]

    def test_the_rim_is_outside(self) -> None:
        x = torch.tensor([[[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.499, 0.0], [0.0, 0.0, 0.501]]])
        index, inside = sw.nn.ball_query(x, x[:, :1], 0.5, 4)
        assert index[inside].tolist() == [0, 2]

    @pytest.mark.parametrize("garbage", [0.0, math.nan, math.inf])
    def test_padding_is_in_no_ball(self, points: Tensor, garbage: float) -> None:
        mask = torch.rand(3, 20) < torch.tensor([[0.7], [0.2], [0.0]])
        centers = torch.zeros(3, 2, 3).double()
        dirty = (points / 10).masked_fill(~mask[..., None], garbage)
        index, inside = sw.nn.ball_query(dirty, centers, 100.0, 20, mask)
        for i in range(3):
            for c in range(2):
                assert sorted(index[i, c, inside[i, c]].tolist()) == mask[i].nonzero().flatten().tolist()

    def test_far_from_the_origin_a_small_ball_is_still_a_ball(self) -> None:
        """In single precision, where the squares of large numbers cancel."""
        x = 1000 + torch.rand(1, 60, 3)
        index, inside = sw.nn.ball_query(x, x, 0.4, 10)
        for i, row in enumerate(x[0].tolist()):
            assert index[0, i, inside[0, i]].tolist() == slow_ball(x[0].tolist(), row, 0.4, 10)

    def test_half_precision_is_lifted(self, points: Tensor) -> None:
        coarse = points.bfloat16()
        found = sw.nn.ball_query(coarse, coarse[:, :4], 1.0, 5)
        expected = sw.nn.ball_query(coarse.float(), coarse[:, :4].float(), 1.0, 5)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class TestAgainstPlainLoops:
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("norm", [True, False])
    @pytest.mark.parametrize("everything", [True, False])
    @pytest.mark.parametrize("sizes", [[9, 4, 1, 0], [1], [0, 0], [0]])
    def test_set_abstraction(self, sizes: list[int], everything: bool, norm: bool, training: bool) -> None:
        layer = abstraction(norm=norm)
        if everything:
            layer.centers = layer.radius = layer.neighbours = None
        layer.train(training)
        x, mask = padded(sizes, math.nan)
        x = x.double()
        sets: list[Points] = [([r[:3] for r in s], [r[3:] for r in s]) for s in sets_of(x, mask)]
        expected = slow_abstraction(sets, layer)
        coordinates, features, real = layer(x[..., :3], x[..., 3:], mask)
        places = 1 if everything else min(4, max(sizes))
        assert features.shape == (len(sizes), places, 5)
        assert real.sum(1).tolist() == [len(c) for c, _ in expected]
        assert (features[~real] == 0).all()
        assert (coordinates[~real] == 0).all()
        for i, (centres, values) in enumerate(expected):
            n = len(centres)
            assert real[i, :n].all()
            if n:
                assert same(coordinates[i, :n], centres)
                assert same(features[i, :n], values)

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("norm", [True, False])
    def test_model(self, norm: bool, training: bool) -> None:
        model = pointnet(norm=norm, dropout=0.0, hidden=(6, 5))
        scramble(model).train(training)
        x, mask = padded([12, 7, 3, 1, 0], math.inf)
        expected = slow_model(sets_of(x.double(), mask), model)
        assert same(model(x.double(), mask), expected)

    def test_without_further_features_only_coordinates_are_read(self) -> None:
        model = sw.nn.PointNetPlusPlus.build(
            3, 2, centers=(5,), radius=(1.0,), neighbours=(4,), dims=((4,), (6,)), hidden=()
        )
        scramble(model).eval()
        x = torch.randn(2, 9, 3).double()
        assert same(model(x), slow_model(x.tolist(), model))

    @pytest.mark.parametrize("training", [True, False])
    def test_gradients(self, training: bool) -> None:
        layer = abstraction(radius=1.2).train(training)
        x, mask = padded([6, 3, 0])
        inputs = [x.double()[..., :3].requires_grad_(), x.double()[..., 3:].requires_grad_()]

        def function(x: Tensor, features: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
            return layer(x, features, mask)[:2]

        assert torch.autograd.gradcheck(function, (*inputs, *layer.parameters()), fast_mode=True)


class TestBatchNorm:
    def test_statistics_are_those_of_the_points_that_are_there(self) -> None:
        layer = abstraction(radius=1.2)
        x, mask = padded([7, 3, 0, 1], math.nan)
        sets = [torch.tensor(rows, dtype=torch.float64) for rows in sets_of(x, mask) if rows]
        rows = [
            torch.cat([s[j, :3] - s[i, :3], s[j, 3:]])
            for s in sets
            for i in slow_farthest(s[:, :3].tolist(), 4)
            for j in slow_ball(s[:, :3].tolist(), s[i, :3].tolist(), 1.2, 3)
        ]
        assert 9 < len(rows) < 27  # some places of a group are missing, not all
        first = layer.layers[0]
        z = first.linear(torch.stack(rows))
        mean = 0.9 * first.norm.running_mean + 0.1 * z.mean(0)
        variance = 0.9 * first.norm.running_var + 0.1 * z.var(0)
        layer(x[..., :3].double(), x[..., 3:].double(), mask)
        assert torch.allclose(first.norm.running_mean, mean)
        assert torch.allclose(first.norm.running_var, variance)

    def test_padding_is_not_noticed_in_training_either(self) -> None:
        narrow, wide = (pointnet(dropout=0.0).double().train() for _ in range(2))
        wide.load_state_dict(narrow.state_dict())
        x, mask = padded([6, 3, 0])
        more = torch.cat([x, torch.full((3, 4, DIM), math.nan)], 1)
        found = wide(more.double(), torch.cat([mask, torch.zeros(3, 4, dtype=torch.bool)], 1))
        assert torch.allclose(found, narrow(x.double(), mask))
        for (name, a), b in zip(narrow.named_buffers(), wide.buffers(), strict=True):
            assert torch.allclose(a.double(), b.double()), name

    def test_training_uses_the_batch_and_evaluation_what_was_learned(self) -> None:
        model, (x, _) = pointnet(dropout=0.0), padded([6, 6, 6, 6])
        alone = model(x[:2])
        assert torch.allclose(model(x)[:2], alone, atol=1e-6)
        model.train()
        assert not torch.allclose(model(x)[:2], model(x[:2]), atol=1e-2)
        model.eval()
        assert not torch.allclose(model(x[:2]), alone, atol=1e-3)

    @pytest.mark.parametrize("rows", [0, 1])
    def test_without_a_variance_the_running_statistics_serve(self, rows: int) -> None:
        norm = BatchNorm(3, eps=0.1)
        scramble(norm)
        before = [buffer.clone() for buffer in norm.buffers()]
        x = torch.randn(rows, 3).double().requires_grad_()
        out = norm(x)
        out.sum().backward()
        assert all(torch.equal(a, b) for a, b in zip(norm.buffers(), before, strict=True))
        assert torch.equal(out, norm.eval()(x))
        assert x.grad is not None
        assert x.grad.isfinite().all()

    def test_two_rows_are_a_batch(self) -> None:
        norm, x = BatchNorm(3), torch.randn(2, 3)
        assert torch.allclose(norm(x), nn.BatchNorm1d(3)(x))
        assert norm.num_batches_tracked == 1

    @pytest.mark.parametrize("sizes", [[0], [1], [0, 0], [1, 0], [1, 1], [2], [5, 0, 0]])
    def test_training_on_hardly_anything_is_finite(self, sizes: list[int]) -> None:
        model = pointnet().train()
        x, mask = padded(sizes, math.nan)
        x.requires_grad_()
        out = model(x, mask)
        out.square().sum().backward()
        tensors = [out, *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
        assert all(t.isfinite().all() for t in tensors)
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert all(p.grad is not None for p in model.head.parameters())

    def test_training_in_bfloat16_is_finite(self) -> None:
        model, (x, mask) = pointnet().train(), padded([6, 3, 0])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x, mask)
        out.float().square().sum().backward()
        assert out.isfinite().all()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


class TestModel:
    def test_sizes_are_the_published_ones(self) -> None:
        model = sw.nn.PointNetPlusPlus.build(3, 40)
        shapes = [[tuple(part.linear.weight.shape) for part in layer.layers] for layer in model.layers]
        assert shapes == [
            [(64, 3), (64, 64), (128, 64)],
            [(128, 131), (128, 128), (256, 128)],
            [(256, 259), (512, 256), (1024, 512)],
        ]
        assert [(a.centers, a.radius, a.neighbours) for a in model.layers] == [
            (512, 0.2, 32),
            (128, 0.4, 64),
            (None, None, None),
        ]
        head = [part.in_features for part in model.head.modules() if isinstance(part, nn.Linear)]
        assert head == [1024, 512, 256]
        drops = [part.p for part in model.head.modules() if isinstance(part, nn.Dropout)]
        assert drops == [0.4, 0.4]
        assert sum(isinstance(part, BatchNorm) for part in model.modules()) == 11
        # Per layer of widths i → o: i·o weights, o biases, 2·o for the batch norm.
        assert sum(p.numel() for p in model.parameters()) == 1_475_688

    def test_norms_are_left_out_everywhere(self) -> None:
        assert not any(isinstance(part, BatchNorm) for part in pointnet(norm=False).modules())

    def test_normals_widen_the_first_layer_alone(self) -> None:
        shapes = [p.shape for p in sw.nn.PointNetPlusPlus.build(6, 40).parameters()]
        plain = [p.shape for p in sw.nn.PointNetPlusPlus.build(3, 40).parameters()]
        assert (shapes[0], plain[0]) == ((64, 6), (64, 3))
        assert shapes[1:] == plain[1:]

    def test_dropout_is_for_training(self) -> None:
        model, (x, _) = pointnet(norm=False, dropout=0.5, hidden=(50,)), padded([6, 6])
        assert torch.equal(model(x), model(x))
        model.train()
        assert not torch.equal(model(x), model(x))

    def test_what_lies_beyond_the_radius_is_not_seen(self) -> None:
        """Two clusters, one group each: a feature of one changes what is said of that one only."""
        layer = sw.nn.SetAbstraction(1, 8, centers=2, radius=1.0, neighbours=10).eval()
        scramble(layer)
        x = torch.cat([torch.rand(1, 5, 3) / 4, torch.rand(1, 5, 3) / 4 + 3], 1).double()
        features = torch.randn(1, 10, 1).double()
        coordinates, before, _ = layer(x, features)
        changed = features.clone()
        changed[0, 7:] += 5
        after = layer(x, changed)[1]
        near = coordinates[0].amax(1) < 1
        assert near.sum() == 1
        assert torch.equal(after[0, near], before[0, near])
        assert not torch.allclose(after[0, ~near], before[0, ~near])

    def test_moving_the_set_changes_only_what_the_last_layer_sees(self) -> None:
        layer = abstraction().eval()
        x, features = torch.randn(2, 9, 3).double(), torch.randn(2, 9, 1).double()
        here, there = layer(x, features), layer(x + 7, features)
        assert torch.allclose(here[0] + 7, there[0])
        assert torch.allclose(here[1], there[1])
        last = scramble(sw.nn.SetAbstraction(1, 5)).eval()
        assert not torch.allclose(last(x, features)[1], last(x + 7, features)[1])

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("everything", [True, False])
    def test_a_compiled_graph_repeats_a_point(
        self, everything: bool, training: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All of one size for the compiler; but never in training, where the norms would notice."""
        layer = abstraction(radius=1.2)
        if everything:
            layer = scramble(sw.nn.SetAbstraction(DIM - 3, 6, 50))
        layer.train(training)
        x, mask = (t.flip(1) for t in padded([6, 3, 1, 0], math.nan))  # the first places are padding
        arguments = x[..., :3].double(), x[..., 3:].double(), mask
        rows: list[int] = []
        layer.layers[0].norm.register_forward_hook(lambda *call: rows.append(len(call[1][0])))
        expected = layer(*arguments)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        found = layer(*arguments)
        assert all(torch.allclose(a, b) for a, b in zip(found, expected, strict=True))
        found, expected = (torch.autograd.grad(out[1].sum(), layer.parameters()) for out in (found, expected))
        assert all(torch.allclose(a, b) for a, b in zip(found, expected, strict=True))
        places = 4 * 6 if everything else 4 * 4 * 3
        assert rows[0] < places
        assert rows[1] == (rows[0] if training else places)

    def test_shared_elements_are_written_out(self) -> None:
        model = pointnet()
        shared = sw.Shared(torch.randn(7, DIM), torch.randint(7, (2, 5)))
        assert torch.equal(model(shared), model(shared.expand()))

    def test_takes_modules(self) -> None:
        layers = [sw.nn.SetAbstraction(1, 8, centers=3, radius=1.0, neighbours=4, norm=False)]
        model = sw.nn.PointNetPlusPlus(layers, sw.nn.MeanPool(), sw.nn.Dense(8, 2, activation="identity"))
        x, mask = padded([5, 2])
        _, features, real = layers[0](x[..., :3], x[..., 3:], mask)
        assert torch.equal(model(x, mask), model.head(sw.nn.MeanPool()(features, real)))

    def test_all_weights_come_from_the_generator(self) -> None:
        a, b, c = (
            dict(sw.nn.initialize(pointnet(), torch.Generator().manual_seed(seed)).named_parameters())
            for seed in (1, 1, 2)
        )
        for name, parameter in a.items():
            assert torch.equal(parameter, b[name]), name
            if "norm" in name:
                assert (parameter == (0 if name.endswith("bias") else 1)).all(), name
            else:
                assert (parameter != c[name]).all(), name

    def test_linear_layers_start_as_those_of_torch(self) -> None:
        layer = NormedLayer(400, 300, norm=False)
        for parameter in (layer.linear.weight, layer.linear.bias):
            assert 0.98 / 20 < parameter.abs().max() <= 1 / 20
        assert layer.linear.weight.std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.05)

    def test_a_deep_network_with_norms_neither_fades_nor_explodes(self) -> None:
        x = torch.randn(200, 64)
        for _ in range(6):
            x = NormedLayer(64, 64)(x).relu()
        assert 0.3 < x.std() < 3

    def test_learns_to_tell_balls_from_boxes(self) -> None:
        def clouds(count: int) -> tuple[Tensor, Tensor]:
            directions = torch.randn(count, 32, 3)
            balls = directions / directions.norm(dim=-1, keepdim=True)
            boxes = directions / directions.abs().amax(-1, keepdim=True)
            y = torch.arange(count) % 2
            flat = torch.tensor([0.6, 0.6, 0.3])
            return torch.where(y.view(-1, 1, 1) == 1, boxes * flat, balls * 0.8), y

        model = sw.nn.PointNetPlusPlus.build(
            3,
            2,
            centers=(12, 4),
            radius=(0.4, 0.8),
            neighbours=(8, 8),
            dims=((16, 16), (16, 32), (32, 64)),
            hidden=(32,),
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(70):  # so many for the running statistics: a tenth of them is replaced at a time
            x, y = clouds(16)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        x, y = clouds(100)
        model.eval()
        assert (model(x).argmax(1) == y).float().mean() > 0.85


Sa, Build, x = sw.nn.SetAbstraction, sw.nn.PointNetPlusPlus.build, torch.zeros(1, 4, 3)
ball = partial(Sa, 0, 4, centers=2, radius=0.5, neighbours=3)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sw.nn.farthest_points(x, 0), "m must be at least 1, got 0"),
        (lambda: sw.nn.ball_query(x, x, -1, 2), "radius must be positive, got -1"),
        (lambda: sw.nn.ball_query(x, x, 0.0, 2), "radius must be positive, got 0.0"),
        (lambda: sw.nn.ball_query(x, x, math.nan, 2), "radius must be positive, got nan"),
        (lambda: sw.nn.ball_query(x, x, 1.0, 0), "k must be at least 1, got 0"),
        (
            lambda: sw.nn.ball_query(x, x, 1.0, 2, torch.ones(1, 3).bool()),
            "mask must have the shape [1, 4] of the sets",
        ),
        (partial(Sa, 0), "dims must have at least one width, got none"),
        (partial(Sa, -1, 4), "in_dim must not be negative, got -1"),
        (partial(Sa, 0, 4, 0), "out_dim must be at least 1, got 0"),
        (partial(Sa, 0, 4, centers=3), "neighbours must be given together, got {'centers': 3, "),
        (partial(ball, centers=0), "centers must be positive, got 0"),
        (partial(ball, radius=-0.5), "radius must be positive, got -0.5"),
        (partial(ball, neighbours=0), "neighbours must be positive, got 0"),
        (lambda: ball()(x, torch.zeros(1, 4, 2)), "points must have 0 features, got 2"),
        (partial(Readout, 4), "dims must have at least the number of outputs, got none"),
        (partial(NormedLayer, 0, 4), "in_dim must be at least 1, got 0"),
        (partial(Build, 2, 5), "in_dim must be at least 3 (the coordinates), got 2"),
        (partial(Build, 3, 0), "out_dim must be at least 1, got 0"),
        (partial(Build, 3, 5, centers=(9,)), "one more entry, got lengths 1, 2, 2 and 3"),
        (partial(Build, 3, 5, radius=(0.1,)), "one more entry, got lengths 2, 1, 2 and 3"),
        (partial(Build, 3, 5, neighbours=(4,)), "one more entry, got lengths 2, 2, 1 and 3"),
        (partial(Build, 3, 5, dims=((4,), (4,))), "one more entry, got lengths 2, 2, 2 and 2"),
        (
            partial(Build, 3, 5, dims=((4,), (), (4,))),
            "at least one width per layer, got ((4,), (), (4,))",
        ),
        (lambda: pointnet()(torch.zeros(2, 5, 2)), "3 coordinates and more], got torch.float32 [2, 5, 2]"),
        (lambda: pointnet()(torch.zeros(5, 4)), "3 coordinates and more], got torch.float32 [5, 4]"),
        (lambda: pointnet()(torch.zeros(2, 5, 4).long()), "must be floating point [sets, points, "),
        (lambda: pointnet()(torch.zeros(2, 5, 3)), "points must have 1 features, got 0"),
    ],
)
def test_invalid_arguments_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        make()
    assert "\n" not in str(error.value)
