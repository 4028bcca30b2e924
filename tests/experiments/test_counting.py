"""The counting experiment: rows, batches, test scores, results on record, table and figure."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import setwise as sw
from setwise.cli.main import main
from setwise.experiments import counting, report, runner
from setwise.experiments.counting import Counting
from setwise.experiments.counting_models import ARCHITECTURES
from setwise.experiments.data.characters import Characters, synthetic_characters
from tests.experiments.data.test_characters import REAL

SMALL = Counting(
    sets=6,
    pool_characters=10,
    test_sets=120,
    training=sw.Training(steps=3, evaluations=1, schedule="cosine"),
)
SCRIPT = synthetic_characters(100)
GRAPHS = ("v-dmps", "r-dmps", "d-dmps-fdc", "softmax-k", "distinct", "distinct-wide")
PAPERS = [row for row, paper in Counting.PAPER.items() if paper is not None]
every_row = pytest.mark.parametrize("row", Counting.ROWS)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Characters]:
    """The drawn strokes, whatever data this machine has."""
    monkeypatch.setattr(counting, "_characters", lambda: SCRIPT)
    counting._split.cache_clear()
    yield SCRIPT
    counting._split.cache_clear()


def run(folder: Path, row: str = "d-dmps-ldc", experiment: Counting = SMALL, **more: Any) -> dict[str, Any]:
    return runner.run(experiment, row, 0, out=folder / "runs", results=folder / "results", show=False, **more)


# Rows


def test_rows_come_in_the_papers_order_with_its_numbers() -> None:
    assert list(Counting.ROWS) == list(Counting.PAPER) == list(ARCHITECTURES)
    numbers = [paper[0] for paper in Counting.PAPER.values() if paper is not None]
    assert numbers == [0.4617, 0.4359, 0.6037, 0.1357, 0.4661, 0.6446, 0.66, 0.6748, 0.6674]


@every_row
@pytest.mark.usefixtures("stand_in")
def test_every_row_counts_and_learns(row: str) -> None:
    model = SMALL.model(row, 0)
    batch, y = SMALL.batches(0)(1)
    before = [p.detach().clone() for p in model.parameters()]
    sw.fit(model, SMALL.task(row), SMALL.batches(0), SMALL.training)
    changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert all(changed)
    assert model(batch.x, batch.mask).shape == (6, 1)
    assert y.shape == (6,)


@pytest.mark.usefixtures("stand_in")
def test_all_rows_start_from_the_same_encoder() -> None:
    first = SMALL.model("deepsets-mean", 0).encoder.state_dict()
    for row in (*PAPERS, *Counting.ABLATION, "distinct"):
        model = SMALL.model(row, 0)
        found = model.encoder.state_dict()
        assert all(torch.equal(found[name], value) for name, value in first.items())
        summed = isinstance(model.pool, sw.nn.SumPool)
        assert bool((model.head.linear.weight == 0).all()) == summed
    other = SMALL.model("deepsets-mean", 1).encoder.state_dict()
    assert not any(torch.equal(other[name], first[name]) for name in first if name.endswith("weight"))


@pytest.mark.usefixtures("stand_in")
def test_the_rows_are_those_of_the_appendix() -> None:
    for row in (*PAPERS, *Counting.ABLATION, "distinct"):
        model = SMALL.model(row, 0)
        convolutions = [m for m in model.encoder.modules() if isinstance(m, nn.Conv2d)]
        assert [(c.in_channels, c.out_channels, c.kernel_size) for c in convolutions] == [
            (1, 10, (3, 3)), (10, 10, (3, 3)), (10, 10, (3, 3)), (10, 10, (3, 3)),
        ]  # fmt: skip
        assert model.head.linear.in_features == 160
        if row not in ("set-transformer", "sum-pooling", "distinct"):
            assert isinstance(model.pool, sw.nn.MaxPool)
    kinds = {
        "v-dmps": sw.nn.MessagePassingBlock,
        "v-dmps-ug": sw.nn.MessagePassingBlock,
        "r-dmps": sw.nn.SetResidualBlock,
        "d-dmps-fdc": sw.nn.SetDenoisingBlock,
        "d-dmps-ldc": sw.nn.SetDenoisingBlock,
        "d-dmps-ldc-ug": sw.nn.SetDenoisingBlock,
        "distinct": sw.nn.SetDenoisingBlock,
    }
    for row, kind in kinds.items():
        model = SMALL.model(row, 0)
        assert [type(block) for block in model.blocks] == [kind] * 3
        assert {block.dense.activation for block in model.blocks} == {"tanh"}
        assert isinstance(model.graph, sw.nn.UniformGraph if row.endswith("ug") else sw.LatentGraph)
        if kind is sw.nn.SetDenoisingBlock:
            assert len({id(block.gamma) for block in model.blocks}) == 1
            assert model.blocks[0].gamma.learn == (row != "d-dmps-fdc")
            assert model.blocks[0].gamma.value.item() == 0.5
        if isinstance(model.graph, sw.LatentGraph):
            widths = [(d.linear.in_features, d.linear.out_features) for d in model.graph.kernel.embed.layers]
            assert widths == [(160, 256), (256, 512)]
            assert {d.activation for d in model.graph.kernel.embed.layers} == {"tanh"}
    transformations = {"deepsets-mean": sw.nn.MeanPool, "deepsets-max": sw.nn.MaxPool}
    for row, kind in transformations.items():
        assert [type(layer.pool) for layer in SMALL.model(row, 0).layers] == [kind] * 3
    transformer = SMALL.model("set-transformer", 0)
    assert [type(layer) for layer in transformer.layers] == [sw.nn.SetAttentionBlock] * 2
    assert isinstance(transformer.pool, sw.nn.MultiheadAttentionPool)


@pytest.mark.usefixtures("stand_in")
def test_an_ablation_changes_one_thing() -> None:
    base = SMALL.model("d-dmps-fdc", 0)
    same = {"sum-pooling": ("graph", "blocks"), "softmax-k": ("graph", "blocks", "head"), "fresh": ("",)}
    same |= {"fixed-sigma": ("blocks", "head", "graph.kernel.embed"), "two-layers": ("graph",)}
    for row, parts in same.items():
        model = SMALL.model(row, 0)
        for part in parts:
            ours, theirs = (m.get_submodule(part).state_dict() for m in (base, model))
            assert ours.keys() == theirs.keys()
            assert all(ours[name].shape == theirs[name].shape for name in ours)
    assert SMALL.model("softmax-k", 0).graph.normalize is sw.functional.row_softmax
    assert base.graph.normalize is sw.functional.row_normalize
    assert isinstance(SMALL.model("sum-pooling", 0).pool, sw.nn.SumPool)
    assert SMALL.model("fixed-sigma", 0).graph.sigma.item() == pytest.approx(0.5**0.5)
    xavier = SMALL.model("xavier", 0)
    for layer in (xavier.blocks[0].dense.linear, *(d.linear for d in xavier.graph.kernel.embed.layers)):
        bound = 5 / 3 * (6 / (layer.in_features + layer.out_features)) ** 0.5
        assert 0.9 * bound < layer.weight.abs().max() <= bound
        assert (layer.bias == 0).all()


@pytest.mark.usefixtures("stand_in")
def test_two_layers_per_block_are_those_of_the_appendix() -> None:
    block = SMALL.model("two-layers", 0).blocks[0]
    x, W = torch.randn(2, 3, 160), torch.full((2, 3, 3), 1 / 3)
    inner = torch.tanh(block.message.dense.linear(W @ x))
    assert torch.allclose(block(x, W), torch.tanh(block.dense.linear(0.5 * x + 0.5 * inner)), atol=1e-6)


def test_only_our_own_rows_depart_from_poisson_regression() -> None:
    robust = [row for row in Counting.ROWS if type(SMALL.task(row)) is sw.tasks.RobustCount]
    assert robust == ["distinct", "distinct-wide"]
    assert all(SMALL.task(row).decode == "mode" for row in Counting.ROWS)


# Batches


@pytest.mark.usefixtures("stand_in")
def test_batches_depend_on_seed_and_number_alone() -> None:
    def drawn(seed: int, step: int) -> torch.Tensor:
        return SMALL.batches(seed)(step)[0].elements

    assert torch.equal(drawn(0, 1), drawn(0, 1))
    assert not torch.equal(drawn(0, 1), drawn(0, 2))
    assert not torch.equal(drawn(0, 1), drawn(1, 1))


@pytest.mark.usefixtures("stand_in")
def test_fresh_batches_are_those_of_the_paper() -> None:
    fresh = replace(SMALL, batch="fresh", sets=32)
    batch, y = fresh.batches(0)(1)
    assert isinstance(batch.x, torch.Tensor)
    assert (len(batch), len(y)) == (32, 32)
    pooled, _ = SMALL.batches(0)(1)
    assert isinstance(pooled.x, sw.Shared)
    assert len(pooled.x.values) == 100


@pytest.mark.parametrize("batch", ["pool", "fresh"])
@pytest.mark.usefixtures("stand_in")
def test_distortion_is_for_training_alone(batch: Any) -> None:
    plain, distorted = (replace(SMALL, batch=batch, distortion=d) for d in (0.0, 0.2))
    (a, y), (b, z) = plain.batches(0)(1), distorted.batches(0)(1)
    assert torch.equal(y, z)
    assert torch.equal(a.mask, b.mask)
    assert b.x.dtype == torch.bool
    changed = (a.elements != b.elements).flatten(2).any(2)
    assert changed[a.mask].double().mean() > 0.9
    assert torch.equal(plain.validation(0)[0][0].elements, distorted.validation(0)[0][0].elements)


@pytest.mark.usefixtures("stand_in")
def test_rotation_turns_all_drawings_of_a_character_alike() -> None:
    turns = []
    for step in (1, 2):
        (plain, y), (turned, z) = (replace(SMALL, rotation=r).batches(0)(step) for r in (False, True))
        assert torch.equal(y, z)
        assert torch.equal(plain.x.index, turned.x.index)
        for before, after in zip(plain.x.values.split(10), turned.x.values.split(10), strict=True):
            (turn,) = (k for k in range(4) if torch.equal(before.rot90(k, (-2, -1)), after))
            turns.append(turn)
    assert set(turns) == {0, 1, 2, 3}


@pytest.mark.parametrize("split", ["image", "character"])
@pytest.mark.usefixtures("stand_in")
def test_no_drawing_is_in_two_parts(split: Any) -> None:
    parts = [replace(SMALL, split=split)._sets(name).part for name in ("train", "validation", "test")]
    drawings = [set(part.flatten().tolist()) for part in parts]
    assert len(set.union(*drawings)) == sum(map(len, drawings)) > 0
    characters = [{number // 20 for number in part} for part in drawings]
    assert (characters[0] & characters[2] == set()) == (split == "character")
    assert characters[0] & characters[1] == set()


@pytest.mark.usefixtures("stand_in")
def test_validation_is_of_its_own_part() -> None:
    batches = SMALL.validation(0)
    assert sum(len(batch) for batch, _ in batches) == 2_000
    part = SMALL._sets("validation")
    allowed = {image.numpy().tobytes() for image in part.images(part.part.flatten())}
    assert {image.numpy().tobytes() for image in batches[0][0].x.values} <= allowed
    again = SMALL.validation(1)
    assert all(torch.equal(a.x.values, b.x.values) for (a, _), (b, _) in zip(batches, again, strict=True))


# The test


class Oracle(nn.Module):
    """Knows the drawings, and says λ = their true count + 0.4."""

    def __init__(self) -> None:
        super().__init__()
        self.known = {
            image.numpy().tobytes(): i // 20
            for i, image in enumerate(SCRIPT.pixels(SCRIPT.index.flatten()).bool())
        }
        self.sets = 0

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.sets += len(x)
        counts = [
            len({self.known[image.numpy().tobytes()] for image in images[real]})
            for images, real in zip(x.squeeze(2), mask, strict=True)
        ]
        return (torch.tensor(counts) + 0.4).log().unsqueeze(1)


@pytest.mark.usefixtures("stand_in")
def test_a_perfect_model_scores_perfectly() -> None:
    model = Oracle()
    scores = SMALL.test(model, 0)
    assert model.sets == 120
    assert (scores["accuracy"], scores["accuracy_mode"], scores["accuracy_round"]) == (1, 1, 1)
    assert scores["absolute_error"] == pytest.approx(0.4, abs=1e-5)
    assert "weight_ratio" not in scores


@pytest.mark.usefixtures("stand_in")
def test_test_sets_are_fixed_and_of_the_test_part() -> None:
    seen: list[torch.Tensor] = []

    class Spy(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            seen.append(x[mask])
            return torch.zeros(len(x), 1)

    SMALL.test(Spy(), 0)
    SMALL.test(Spy(), 1)
    half = len(seen) // 2
    assert all(torch.equal(a, b) for a, b in zip(seen[:half], seen[half:], strict=True))
    part = SMALL._sets("test")
    allowed = {image.numpy().tobytes() for image in part.images(part.part.flatten())}
    assert {image.numpy().tobytes() for images in seen for image in images} <= allowed


@pytest.mark.parametrize("row", GRAPHS)
@pytest.mark.usefixtures("stand_in")
def test_the_weight_ratio_is_what_it_says(row: str) -> None:
    experiment = replace(SMALL, test_sets=40)
    model = experiment.model(row, 0)
    scores = experiment.test(model, 0)
    part = experiment._sets("test")
    numbers, mask, _ = part.sample(40, sw.training.generator("counting", "test", 0))
    W = model.latent_graph(part.images(numbers), mask)
    same, different = [], []
    for i in range(40):
        for j in range(10):
            for k in range(10):
                if j != k and mask[i, j] and mask[i, k]:
                    alike = numbers[i, j] // 20 == numbers[i, k] // 20
                    (same if alike else different).append(W[i, j, k].item())
    expected = (sum(same) / len(same)) / (sum(different) / len(different))
    assert scores["weight_ratio"] == pytest.approx(expected, rel=1e-4)
    assert scores["weight_ratio"] > 1  # drawings of one character are alike even before any training
    assert 0 < scores["kernel_different"] <= scores["kernel_same"] <= 1


@pytest.mark.usefixtures("stand_in")
def test_examples_are_nine_drawings_of_three_characters() -> None:
    experiment = replace(SMALL, test_sets=2_000)
    model = experiment.model("d-dmps-ldc", 0)
    nn.init.constant_(model.head.linear.bias, 1.2)
    nn.init.normal_(model.head.linear.weight, std=0.01, generator=torch.Generator().manual_seed(0))
    examples = experiment.test(model, 0)["examples"]
    assert examples.keys() == {"right", "wrong"}
    for name, example in examples.items():
        drawings = torch.tensor(example["drawings"])
        assert len(set(example["drawings"])) == 9
        assert len(set((drawings // 20).tolist())) == example["count"] == 3
        assert (round(example["rate"]) == 3) == (name == "right")
        x = experiment._sets("test").images(drawings).unsqueeze(0)
        with torch.no_grad():
            assert torch.allclose(
                torch.tensor(example["weights"]), model.latent_graph(x).squeeze(0), atol=1e-4
            )
            assert model(x).exp().item() == pytest.approx(example["rate"], abs=1e-2)
    assert set(drawings.tolist()) <= set(experiment._sets("test").part.flatten().tolist())


# On record


@pytest.mark.usefixtures("stand_in")
def test_from_a_run_to_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = replace(SMALL, test_sets=2_000)
    result = run(tmp_path, "d-dmps-ldc", experiment)
    assert result["data"] == "stand-in: drawn strokes"
    assert result["paper"] == (0.6674, 0.0080)
    assert result["budget"]["sets"] == 18
    (path,) = (tmp_path / "results" / "counting").iterdir()
    assert path.name == "d-dmps-ldc_split-image_steps-3_seed-0.json"
    results = str(tmp_path / "results")
    main(["table", "counting", "--results", results])
    table = capsys.readouterr().out
    assert "stand-in: drawn strokes" in table
    assert "0.6674 ± 0.0080" in table
    main(["figure", "counting", "--results", results, "--out", str(tmp_path / "figures")])
    for name in ("counting-graph", "counting-training"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 10_000
    assert result["graph"].keys() == {"effective_neighbours", "evenness", "saturated", "sigma", "gamma"}
    assert result["history"][-1]["effective_neighbours"] == result["graph"]["effective_neighbours"]
    with pytest.raises(FileNotFoundError, match="drawings of 'omniglot', found only 'stand-in"):
        Counting.figures([result | {"data": "omniglot"}])


def test_a_table_never_mixes_data(
    tmp_path: Path, stand_in: Characters, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path)
    folder = tmp_path / "results" / "counting"
    other = result | {"data": "omniglot", "row": "v-dmps"}
    (folder / "other.json").write_text(json.dumps(other))
    groups = report.by_data(report.load_results(tmp_path / "results", Counting))
    assert list(groups) == ["omniglot", "stand-in: drawn strokes"]
    assert [[r["row"] for r in group] for group in groups.values()] == [["v-dmps"], ["d-dmps-ldc"]]
    main(["table", "counting", "--markdown", "--results", str(tmp_path / "results")])
    assert capsys.readouterr().out.count("| Row |") == 2


def test_a_run_is_not_continued_on_other_data(
    tmp_path: Path, stand_in: Characters, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    other = Characters("other", stand_in.bits, stand_in.labels)
    monkeypatch.setattr(counting, "_characters", lambda: other)
    with pytest.raises(FileExistsError, match="is a result on 'stand-in: drawn strokes', expected 'other'"):
        run(tmp_path, resume=True)
    for path in (tmp_path / "results" / "counting").iterdir():
        path.unlink()
    for path in (tmp_path / "runs").rglob("result.json"):
        path.unlink()
    with pytest.raises(ValueError, match=r"configuration .data differs: stand-in: drawn strokes and other"):
        run(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sets": 0}, "sets must be at least 1, got 0"),
        ({"pool_characters": 9}, "pool_characters must be at least 10, got 9"),
        ({"test_sets": 0}, "test_sets must be at least 1, got 0"),
        ({"distortion": 1.5}, "distortion must lie between 0 and 1, got 1.5"),
        ({"split": "alphabet"}, "split must be image or character, got 'alphabet'"),
        ({"batch": "big"}, "batch must be pool or fresh, got 'big'"),
        ({"batch": "fresh", "rotation": True}, "rotation requires batch='pool', got batch='fresh'"),
    ],
)
def test_invalid_configurations(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Counting(**changes)


def test_a_split_can_be_swept() -> None:
    assert Counting().vary("character").split == "character"
    with pytest.raises(ValueError, match="split must be image or character, got 'both'"):
        Counting().vary("both")


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="SETWISE_DATA has no omniglot")
def test_distinct_pooling_learns_omniglot_quickly(tmp_path: Path) -> None:
    experiment = Counting(
        sets=64,
        pool_characters=10,
        test_sets=400,
        training=sw.Training(steps=80, evaluations=1, lr=2e-3, schedule="cosine"),
    )
    result = run(tmp_path, "distinct", experiment)
    assert result["data"] == "omniglot"
    assert result["accuracy_round"] > 0.2  # 0.15 for those who only know the size of the set
    assert result["weight_ratio"] > 1.2
