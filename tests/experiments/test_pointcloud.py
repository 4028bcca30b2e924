"""The point cloud experiment: rows, batches, test scores, going on with more points, table and figures."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import setwise as sw
from setwise.cli.main import main
from setwise.experiments import pointcloud, report, runner
from setwise.experiments.data import modelnet
from setwise.experiments.data.point_clouds import PointClouds, hold_out, normalize
from setwise.experiments.data.solids import solids
from setwise.experiments.pointcloud import ARCHITECTURES, Diffusion, PointCloud, Shapes
from tests.experiments.data.test_point_clouds import REAL

load_shapes = pointcloud._shapes.__wrapped__
QUICK = sw.Training(steps=3, evaluations=1, schedule="cosine")
SMALL = PointCloud(points=24, few_points=12, few_share=0.4, sets=5, start_steps=3, training=QUICK)
STUDY = Diffusion(points=16, few_points=8, sets=5, training=QUICK)
SOLIDS = Shapes(*hold_out(solids(10, 64, seed=0)), solids(2, 64, seed=1))
DMPS_ROWS = [row for row in PointCloud.ROWS if "dmps" in row]
every_row = pytest.mark.parametrize("row", PointCloud.ROWS)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A few solids, whatever data this machine has."""
    if "realdata" not in request.keywords:
        monkeypatch.setattr(pointcloud, "_shapes", lambda: SOLIDS)


def run(folder: Path, row: str = "d-dmps-ldc", experiment: PointCloud = SMALL, **more: Any) -> dict[str, Any]:
    return runner.run(experiment, row, 0, out=folder / "runs", results=folder / "results", show=False, **more)


# Rows


def test_rows_come_in_the_papers_order_with_its_numbers() -> None:
    assert (
        list(PointCloud.ROWS) == list(PointCloud.PAPER) == list(PointCloud.PAPER_1000) == list(ARCHITECTURES)
    )
    with_100 = [paper for row in PointCloud.ROWS if (paper := PointCloud.paper(row, 100))]
    assert with_100 == [
        (0.82, 0.02), (0.8454, 0.0144), (0.8367, 0.0047), (0.8475, 0.0036), (0.8564, 0.0031), (0.8571, 0.0062)
    ]  # fmt: skip
    with_1000 = [paper for row in PointCloud.ROWS if (paper := PointCloud.paper(row, 1000))]
    assert with_1000 == [
        (0.87, 0.01), (0.8915, 0.0144), (0.907, None), (0.8751, 0.0029), (0.8935, 0.0016), (0.8783, 0.0032),
        (0.8798, 0.0020),
    ]  # fmt: skip
    assert PointCloud.paper("v-dmps", 500) is None
    assert Diffusion.paper("d-dmps-fdc", 0.5) is None


@every_row
def test_every_row_learns(row: str) -> None:
    model = SMALL.model(row, 0)
    before = [p.detach().clone() for p in model.parameters()]
    sw.fit(model, SMALL.task(row), SMALL.batches(0), SMALL.training)
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    batch, _ = SMALL.batches(0)(1)
    assert model(batch.x).shape == (5, 10)


@every_row
def test_a_seed_gives_the_same_start_and_another_seed_another(row: str) -> None:
    first, again, other = (SMALL.model(row, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_the_dmps_rows_are_those_of_the_appendix() -> None:
    kinds = {
        "v-dmps": sw.nn.MessagePassingBlock,
        "r-dmps": sw.nn.SetResidualBlock,
        "d-dmps-fdc": sw.nn.SetDenoisingBlock,
        "d-dmps-ldc": sw.nn.SetDenoisingBlock,
        "d-dmps-ldc-tanh": sw.nn.SetDenoisingBlock,
    }
    for row, kind in kinds.items():
        model = SMALL.model(row, 0)
        assert isinstance(model, sw.DMPS)
        layers = [
            *model.encoder.layers,
            *model.graph.kernel.embed.layers,
            *(b.dense for b in model.blocks),
            model.head,
        ]
        widths = [(layer.linear.in_features, layer.linear.out_features) for layer in layers]
        assert widths == [(3, 512), (512, 512), (512, 1024), *[(512, 512)] * 3, (512, 10)]
        assert {layer.activation for layer in layers[:-1]} == {"tanh"}
        assert model.head.activation == ("tanh" if row.endswith("tanh") else "identity")
        assert [type(block) for block in model.blocks] == [kind] * 3
        assert isinstance(model.pool, sw.nn.MaxPool)
        assert model.graph.normalize is sw.functional.row_normalize
        if kind is sw.nn.SetDenoisingBlock:
            assert len({id(block.gamma) for block in model.blocks}) == 1
            assert model.blocks[0].gamma.learn == (row != "d-dmps-fdc")
            assert model.blocks[0].gamma.value.item() == 0.5


def test_the_kernel_starts_at_the_scale_of_the_first_batch() -> None:
    model = SMALL.model("d-dmps-ldc", 0)
    batch, _ = SMALL.batches(0)(1)
    K = model.graph.similarity(model.encoder(batch.x))
    off = K[:, ~torch.eye(12, dtype=torch.bool)]
    assert off.median().item() == pytest.approx(math.exp(-0.5), abs=0.01)


def test_the_baselines_are_the_published_ones() -> None:
    deepsets = SMALL.model("deepsets-max", 0)
    sizes = [(layer.Gamma.in_features, layer.Gamma.out_features) for layer in deepsets.layers]
    assert sizes == [(3, 256), (256, 256), (256, 256)]
    assert {type(layer.pool) for layer in deepsets.layers} == {sw.nn.MaxPool}
    assert {layer.activation for layer in deepsets.layers} == {"tanh"}
    assert isinstance(deepsets.pool, sw.nn.MaxPool)
    assert [type(part).__name__ for part in deepsets.head] == ["Dropout", "Dense", "Dropout", "Dense"]
    assert [part.p for part in deepsets.head[::2]] == [0.5, 0.5]
    pools = {"set-transformer": sw.nn.MultiheadAttentionPool, "set-transformer-pooling": sw.nn.MaxPool}
    for row, pool in pools.items():
        transformer = SMALL.model(row, 0)
        assert [type(layer) for layer in transformer.layers] == [sw.nn.InducedSetAttentionBlock] * 2
        assert [layer.points.shape for layer in transformer.layers] == [(1, 16, 256)] * 2
        assert isinstance(transformer.pool, pool)
        assert transformer.head[0].p == 0.5
    for points, centers, radius in (
        (1024, [512, 128, None], [0.2, 0.4, None]),
        (256, [128, 32, None], [0.4, 0.8, None]),
    ):
        pointnet = replace(SMALL, points=points).model("pointnet++", 0)
        assert [layer.centers for layer in pointnet.layers] == centers
        assert [layer.radius for layer in pointnet.layers] == radius


def test_the_ends_of_gamma_are_deepsets_and_plain_message_passing() -> None:
    """The study's ends as identities of models: γ = 0 hears nobody, γ = 1 only the neighbours."""
    x = torch.randn(4, 20, 3)
    deaf, plain = (replace(STUDY, gamma=gamma).model("d-dmps-fdc", 0) for gamma in (0.0, 1.0))
    deepsets = sw.DeepSets(
        deaf.encoder,
        [sw.nn.MLP(512, 512, activation="tanh") for _ in range(3)],
        deaf.pool,
        deaf.head,
    )
    for layer, block in zip(deepsets.layers, deaf.blocks, strict=True):
        layer.layers[0].load_state_dict(block.dense.state_dict())
    assert torch.equal(deaf(x), deepsets(x))
    vanilla = SMALL.model("v-dmps", 0)
    state = {name: value for name, value in plain.state_dict().items() if not name.endswith("fixed")}
    vanilla.load_state_dict(state)
    assert torch.equal(plain(x), vanilla(x))
    assert not torch.allclose(plain(x), deaf(x), atol=1e-2)


# Batches


def test_batches_depend_on_seed_and_number_alone() -> None:
    def drawn(seed: int, step: int) -> torch.Tensor:
        return SMALL.batches(seed)(step)[0].x

    assert torch.equal(drawn(0, 2), drawn(0, 2))
    assert not torch.equal(drawn(0, 2), drawn(1, 2))
    assert drawn(0, 1).shape == (5, 12, 3)  # few points in the first 40 % of three batches
    assert drawn(0, 2).shape == drawn(0, 3).shape == (5, 24, 3)


def test_few_points_are_never_more_than_asked_for() -> None:
    experiment = replace(SMALL, points=10)
    assert [experiment.batches(0)(step)[0].x.shape[1] for step in (1, 3)] == [10, 10]
    everything = replace(SMALL, few_share=0.0)
    assert everything.batches(0)(1)[0].x.shape[1] == 24


def test_every_shape_comes_once_an_epoch_with_its_own_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training shapes are ninety; eighteen batches of five are an epoch."""
    shown = torch.linspace(0.1, 1, 90)[:, None, None] * torch.tensor([0.0, 0.0, 1.0]).repeat(64, 1)
    train = PointClouds("heights", shown, torch.arange(90), tuple(map(str, range(90))))
    monkeypatch.setattr(pointcloud, "_shapes", lambda: Shapes(train, *SOLIDS[1:]))
    labels = torch.cat([SMALL.batches(0)(step)[1] for step in range(1, 19)])
    assert sorted(labels.tolist()) == list(range(90))
    assert labels.tolist() != list(range(90))
    later = torch.cat([SMALL.batches(0)(step)[1] for step in range(19, 37)])
    assert sorted(later.tolist()) == list(range(90))
    assert later.tolist() != labels.tolist()


def test_training_clouds_are_turned_stretched_and_normalised() -> None:
    batch, y = SMALL.batches(0)(3)
    assert torch.allclose(batch.x.mean(1), torch.zeros(5, 3), atol=1e-6)
    assert torch.allclose(batch.x.norm(dim=-1).amax(1), torch.ones(5))
    index = sw.training.epochs(90, 5, 3, "pointcloud", 0)
    assert torch.equal(SOLIDS.train.labels[index], y)
    generator = sw.training.generator("pointcloud", "train", 0, 3)
    raw = normalize(SOLIDS.train.sample(index, 24, generator))
    gap = (batch.x - raw).norm(dim=-1).mean()
    assert 0.01 < gap < 0.5  # moved, but not by much


def test_validation_and_test_shapes_are_seen_whole_and_unmoved() -> None:
    for found, clouds, purpose in (
        (SMALL.validation(0), SOLIDS.validation, "validation"),
        (SMALL._fixed_batches(SOLIDS.test, "test"), SOLIDS.test, "test"),
    ):
        assert torch.equal(torch.cat([y for _, y in found]), clouds.labels)
        expected = clouds.sample(
            torch.arange(len(clouds)), 24, sw.training.generator("pointcloud", purpose, 0)
        )
        assert torch.equal(found[0][0].x, normalize(expected))
    assert torch.equal(SMALL.validation(0)[0][0].x, SMALL.validation(1)[0][0].x)


def test_validation_shapes_come_out_of_the_training_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = solids(10, 64, seed=0), solids(2, 64, seed=1)
    monkeypatch.setattr(modelnet, "load_point_clouds", lambda: (train, test))
    found = load_shapes()
    kept, aside, whole = (
        {tuple(cloud[0].tolist()) for cloud in part.points} for part in (found.train, found.validation, train)
    )
    assert (len(kept), len(aside)) == (90, 10)
    assert not kept & aside
    assert kept | aside == whole
    assert found.test is test


def test_our_row_is_the_documented_one() -> None:
    model = SMALL.model("contrast", 0)
    assert isinstance(model, sw.DMPS)
    assert isinstance(model.encoder, sw.nn.LocalMoments)
    assert model.encoder.log_scales.exp().tolist() == pytest.approx([0.1, 0.2, 0.4])
    read = [(d.linear.in_features, d.linear.out_features, d.activation) for d in model.encoder.network.layers]
    assert read == [(30, 256, "gelu"), (256, 256, "gelu")]
    embed = [
        (d.linear.in_features, d.linear.out_features, d.activation) for d in model.graph.kernel.embed.layers
    ]
    assert embed == [(256, 256, "tanh")] * 2
    assert model.graph.normalize is sw.functional.row_normalize
    assert [type(block) for block in model.blocks] == [sw.nn.SetContrastBlock] * 3
    assert {block.dense.activation for block in model.blocks} == {"gelu"}
    assert [type(pool) for pool in model.pool.pools] == [sw.nn.MaxPool, sw.nn.MeanPool]
    norm, layer, dropout, last = model.head
    assert (norm.normalized_shape, dropout.p) == ((512,), 0.3)
    assert (layer.linear.in_features, layer.linear.out_features, layer.activation) == (512, 256, "gelu")
    assert (last.linear.in_features, last.linear.out_features, last.activation) == (256, 10, "identity")
    smoothing = {row: SMALL.task(row).label_smoothing for row in PointCloud.ROWS}
    assert {row for row, value in smoothing.items() if value} == {"contrast"}
    assert smoothing["contrast"] == 0.1


# Test scores


class Known(torch.nn.Module):
    """Answers with the number that stands in for the shape, wherever it reads it."""

    def __init__(self, answers: torch.Tensor) -> None:
        super().__init__()
        self.answers = answers
        self.seen = 0

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        answers = self.answers[self.seen : self.seen + len(x)]
        self.seen += len(x)
        return torch.nn.functional.one_hot(answers, 10).float()


def test_accuracy_over_shapes_and_over_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    uneven = SOLIDS.test.subset(torch.tensor([0, 1, 2, 4, 5, 6]))
    assert uneven.labels.tolist() == [0, 0, 1, 2, 2, 3]
    monkeypatch.setattr(pointcloud, "_shapes", lambda: Shapes(*SOLIDS[:2], uneven))
    scores = SMALL.test(Known(torch.tensor([0, 9, 1, 9, 9, 3])), 0)
    assert scores["accuracy"] == pytest.approx(3 / 6)
    assert scores["class_accuracy"] == pytest.approx((0.5 + 1 + 0 + 1) / 4)
    assert set(scores) == {"accuracy", "class_accuracy", "loss"}


def test_graph_scores_are_recorded() -> None:
    model = SMALL.model("d-dmps-fdc", 0)
    scores = SMALL.test(model, 0)
    assert scores["gammas"] == [0.5] * 3
    assert scores["sigma"] == pytest.approx(model.graph.sigma.item())
    batch = SMALL._fixed_batches(SOLIDS.test, "roughness")[0][0]
    with torch.no_grad():
        steps, W = model.trajectory(batch.x)
        expected = [(sw.functional.dirichlet_energy(x, W) / (x**2).sum((1, 2))).mean().item() for x in steps]
    assert scores["roughness"] == pytest.approx(expected)
    assert scores["roughness_left"] == scores["roughness"][3]
    assert list(scores["examples"]) == list(SOLIDS.test.classes[:4])
    example = scores["examples"]["capsule"]
    x = torch.tensor(example["points"])
    assert x.shape == (64, 3)  # all that there are
    assert example["chosen"] == int(x.norm(dim=1).argmax())
    with torch.no_grad():
        W = model.latent_graph(x[None])[0]
    assert torch.allclose(torch.tensor(example["weights"]), W[example["chosen"]], atol=2e-4)
    assert "gammas" not in SMALL.test(SMALL.model("v-dmps", 0), 0)
    assert "examples" not in SMALL.test(SMALL.model("deepsets-max", 0), 0)


def test_examples_stand_upright_whatever_axis_that_is() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [0.1, 0.2, 0.3]])
    W = torch.eye(2)
    assert pointcloud._example(x, W, 2)["points"][0] == [1, 2, 3]
    assert pointcloud._example(x, W, 1)["points"][0] == [3, 1, 2]
    assert pointcloud._example(x, W, 0)["points"][0] == [2, 3, 1]


# Going on with more points


def test_a_run_starts_from_one_with_fewer_points(tmp_path: Path) -> None:
    first = run(tmp_path)
    more = replace(
        SMALL, points=40, start_points=24, few_share=0.0, training=replace(QUICK, steps=1, lr=1e-9)
    )
    result = run(tmp_path, experiment=more)
    assert result["start"]["budget"] == first["budget"]
    assert result["start"]["accuracy"] == first["accuracy"]
    assert result["start"]["config"] == first["config"]
    assert result["budget"]["steps"] == 1
    folder = tmp_path / "runs" / "pointcloud" / "d-dmps-ldc"
    before, after = (
        torch.load(folder / name / "checkpoint.pt", weights_only=True)["model"]
        for name in ("points-24_steps-3_seed-0", "points-40_steps-1_seed-0")
    )
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)


def test_the_start_run_must_exist(tmp_path: Path) -> None:
    more = replace(SMALL, points=40, start_points=24)
    with pytest.raises(
        FileNotFoundError, match=r"points-24_steps-3_seed-0 contains no finished run to start from"
    ):
        run(tmp_path, experiment=more)
    run(tmp_path)
    run(tmp_path, experiment=more)  # what failed has left nothing behind
    run(tmp_path, "v-dmps")
    folder = tmp_path / "runs" / "pointcloud"
    (folder / "v-dmps").rename(folder / "deepsets-max")
    with pytest.raises(ValueError, match=r"checkpoint in .*seed-0 does not fit the model of this row"):
        run(tmp_path, "deepsets-max", more)


def test_the_start_run_must_use_the_same_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path)
    other = Shapes(*SOLIDS[:2], replace(SOLIDS.test, name="other"))
    monkeypatch.setattr(pointcloud, "_shapes", lambda: other)
    with pytest.raises(ValueError, match="contains a run on 'stand-in: solids', expected 'other'"):
        run(tmp_path, experiment=replace(SMALL, points=40, start_points=24))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"points": 0}, "points must be at least 1, got 0"),
        ({"few_points": 0}, "few_points must be at least 1, got 0"),
        ({"few_share": 1.5}, "few_share must lie between 0 and 1, got 1.5"),
        ({"sets": 0}, "sets must be at least 1, got 0"),
        ({"start_steps": 0}, "start_steps must be at least 1, got 0"),
        ({"start_points": 100}, "start_points must lie between 1 and 99, below points, got 100"),
        ({"start_points": 0}, "start_points must lie between 1 and 99, below points, got 0"),
    ],
)
def test_invalid_configurations(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PointCloud(**changes)


def test_gamma_must_be_in_the_unit_interval() -> None:
    with pytest.raises(ValueError, match="start_points is only valid for pointcloud, got 20 with diffusion"):
        Diffusion(start_points=20)
    with pytest.raises(ValueError, match=r"gamma must lie between 0 and 1, got 1\.5"):
        Diffusion().vary("1.5")


def test_more_points_than_a_shape_has() -> None:
    with pytest.raises(ValueError, match="n must lie between 1 and 64, the points of a shape, got 100"):
        replace(SMALL, points=100).batches(0)(3)


# On record


def test_from_a_run_to_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path)
    assert result["data"] == "stand-in: solids"
    assert result["validation"].keys() == {"loss", "accuracy"}
    assert result["budget"]["sets"] == 15
    results = str(tmp_path / "results")
    main(["table", "pointcloud", "--results", results])
    assert "stand-in: solids" in capsys.readouterr().out
    main(["figure", "pointcloud", "--results", results, "--out", str(tmp_path / "figures")])
    assert (tmp_path / "figures" / "pointcloud-graph.png").stat().st_size > 10_000


def test_the_figure_shows_the_longest_run_of_the_papers_best_row_and_of_ours(tmp_path: Path) -> None:
    long, short = run(tmp_path), run(tmp_path, experiment=replace(SMALL, training=replace(QUICK, steps=2)))
    for example in short["examples"].values():
        example["points"] = [[0.0, 0.0, 0.0]] * 64
    other = run(tmp_path, "v-dmps")
    figure = PointCloud.figures([short, long, other])["pointcloud-graph"]
    (line,) = figure.subfigs
    assert line.get_suptitle() == "D-DMPS w/ LDC"
    assert [ax.get_title() for ax in line.axes] == list(SOLIDS.test.classes[:4])
    cloud, star = line.axes[0].collections[0], line.axes[0].lines[0]
    example = long["examples"]["box"]
    heard = [w for i, w in enumerate(example["weights"]) if i != example["chosen"]]
    assert cloud.get_array().tolist() == sorted(heard)
    assert [float(c[0]) for c in star.get_data_3d()] == example["points"][example["chosen"]]
    only = PointCloud.figures([other])["pointcloud-graph"]
    assert [line.get_suptitle() for line in only.subfigs] == ["V-DMPS"]
    both = PointCloud.figures([run(tmp_path, "contrast"), long])["pointcloud-graph"]
    assert [line.get_suptitle() for line in both.subfigs] == ["D-DMPS w/ LDC", PointCloud.ROWS["contrast"]]
    assert PointCloud.figures([run(tmp_path, "deepsets-max")]) == {}


def test_the_papers_number_depends_on_the_points() -> None:
    budget = {"steps": 1, "sets": 1, "seconds": 1.0}
    results = [
        {"row": "r-dmps", "points": points, "accuracy": 0.5, "budget": budget} for points in (100, 1000, 50)
    ]
    _, lines = report.table(PointCloud, results)
    assert [line[1] for line in lines] == ["50", "100", "1000"]
    assert [line[3] for line in lines] == ["—", "0.8475 ± 0.0036", "0.8935 ± 0.0016"]


def test_a_table_includes_the_budget_of_the_start_run() -> None:
    budgets = [{"steps": 1_200, "sets": 30, "seconds": 60.0}, {"steps": 7, "sets": 5, "seconds": 30.0}]
    result = {"row": "r-dmps", "points": 1000, "accuracy": 0.5, "budget": budgets[1]}
    _, (line,) = report.table(PointCloud, [result | {"start": {"budget": budgets[0]}}])
    assert line[-4:] == ["1,200 + 7", "35", "1.5", "1"]
    twice = {"start": {"budget": budgets[0], "start": {"budget": budgets[1]}}}
    _, (line,) = report.table(PointCloud, [result | twice])
    assert line[-4:] == ["7 + 1,200 + 7", "40", "2.0", "1"]
    _, lines = report.table(PointCloud, [result, result | {"start": {"budget": budgets[0]}}])
    assert [line[-4:] for line in lines] == [["7", "5", "0.5", "1"], ["1,200 + 7", "35", "1.5", "1"]]


@pytest.mark.parametrize(
    ("start", "fault"),
    [
        (None, "start must be an object, got None"),
        ({}, "budget must be an object, got None"),
        ({"budget": {"steps": 1, "sets": 2}}, "seconds must be a number, got None"),
    ],
)
def test_an_invalid_start_entry_is_refused(tmp_path: Path, start: Any, fault: str) -> None:
    result = run(tmp_path, "deepsets-max") | {"start": start}
    (path,) = (tmp_path / "results" / "pointcloud").iterdir()
    path.write_text(json.dumps(result))
    with pytest.raises(ValueError, match=f"is not a valid result of pointcloud: {fault}"):
        report.load_results(tmp_path / "results", PointCloud)


def test_the_study_of_gamma(tmp_path: Path) -> None:
    results = [run(tmp_path, "d-dmps-fdc", STUDY.vary(gamma)) for gamma in (1.0, 0.0)]
    assert [r["gammas"] for r in results] == [[1.0] * 3, [0.0] * 3]
    figure = Diffusion.figures(results)["diffusion"]
    left, right = figure.axes
    assert left.lines[0].get_xdata().tolist() == [0.0, 1.0]
    assert left.lines[0].get_ydata().tolist() == [results[1]["accuracy"], results[0]["accuracy"]]
    assert [line.get_label() for line in right.lines][:2] == ["before the blocks", "after block 1"]
    assert right.lines[3].get_ydata().tolist() == [results[1]["roughness"][3], results[0]["roughness"][3]]


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="SETWISE_DATA has no modelnet40")
def test_modelnet40_is_learned_quickly(tmp_path: Path) -> None:
    training = sw.Training(steps=250, evaluations=1, schedule="cosine")
    experiment = PointCloud(points=32, sets=16, training=training)
    result = run(tmp_path, "deepsets-max", experiment)
    assert result["data"] == "modelnet40"
    assert result["accuracy"] > 0.2  # 0.04 for those who always say chair
