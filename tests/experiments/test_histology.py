"""The histology experiment: folds, rows, batches, test scores, heat maps on record, table and figures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import setwise as sw
from setwise.cli.main import main
from setwise.experiments import histology, report, runner
from setwise.experiments.data.histology import PatchedImages, load_histology, random_orientation
from setwise.experiments.data.stains import random_stain
from setwise.experiments.histology import ARCHITECTURES, Histology
from tests.experiments.data.test_tissue import REAL

QUICK = sw.Training(steps=2, evaluations=1, lr=1e-4)
SMALL = Histology(folds=2, patches=5, training=QUICK)
every_row = pytest.mark.parametrize("row", Histology.ROWS)


@pytest.fixture(scope="module")
def drawn() -> PatchedImages:
    """Twelve images of four slides of the stand-in, whatever data this machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SETWISE_DATA", "nowhere")
        images = load_histology()
    index = [i for i, slide in enumerate(images.slides) if slide in ("slide0", "slide1", "slide2", "slide3")]
    return images.subset(torch.tensor([i for i in index if i % 5 in (0, 1, 4)]))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, drawn: PatchedImages) -> None:
    histology._fold_split.cache_clear()
    if "realdata" not in request.keywords:
        monkeypatch.setattr(histology, "_images", lambda: drawn)


def run(folder: Path, row: str = "d-dmps-ldc", experiment: Histology = SMALL, **more: Any) -> dict[str, Any]:
    return runner.run(experiment, row, 0, out=folder / "runs", results=folder / "results", show=False, **more)


# Rows


def test_rows_come_in_the_papers_order_with_its_numbers() -> None:
    assert list(Histology.ROWS) == list(Histology.PAPER) == list(ARCHITECTURES)
    assert [paper for row in Histology.ROWS if (paper := Histology.paper(row, "image"))] == [
        (0.745, 0.018), (0.755, 0.016), (0.800, 0.023), (0.818, 0.029), (0.846, 0.019), (0.836, 0.023)
    ]  # fmt: skip
    assert {Histology.paper(row, "slide") for row in Histology.ROWS} == {None}


@every_row
def test_every_row_learns(row: str) -> None:
    model = SMALL.model(row, 0)
    before = [p.detach().clone() for p in model.parameters()]
    sw.fit(model, SMALL.task(row), SMALL.batches(0), SMALL.training)
    after = list(model.parameters())
    assert sum(torch.equal(a, b) for a, b in zip(before, after, strict=True)) <= 1  # attention's last bias
    batch, _ = SMALL.batches(0)(1)
    assert model(batch.x).shape == (1, 1)


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
    }
    for row, kind in kinds.items():
        model = SMALL.model(row, 0)
        assert isinstance(model, sw.DMPS)
        shapes = [tuple(p.shape) for p in model.encoder.parameters() if p.dim() > 1]
        assert shapes == [(36, 3, 4, 4), (48, 36, 3, 3), (512, 1728), (512, 512)]
        assert [tuple(p.shape) for p in model.graph.parameters() if p.dim() > 1] == [(512, 512), (1024, 512)]
        assert [type(block) for block in model.blocks] == [kind] * 3
        assert {block.dense.activation for block in model.blocks} == {"tanh"}
        assert isinstance(model.pool, sw.nn.MeanPool)
        assert tuple(model.head.linear.weight.shape) == (1, 512)
    fixed, learned = (SMALL.model(row, 0).blocks[0].gamma for row in ("d-dmps-fdc", "d-dmps-ldc"))
    assert (fixed.learn, fixed.value.item(), learned.learn) == (False, 0.5, True)


def test_the_attention_rows_have_the_same_encoder_and_the_published_width() -> None:
    shapes = {
        row: [tuple(p.shape) for p in SMALL.model(row, 0).encoder.parameters()]
        for row in ("mean", "max", "attention", "gated-attention", "d-dmps-ldc")
    }
    assert len({str(s) for s in shapes.values()}) == 1
    for row, pool in (("attention", sw.nn.AttentionPool), ("gated-attention", sw.nn.GatedAttentionPool)):
        model = SMALL.model(row, 0)
        assert type(model.pool) is pool
        assert tuple(model.pool.score[0].linear.weight.shape) == (128, 512)
    assert isinstance(SMALL.model("mean", 0).pool, sw.nn.MeanPool)
    assert isinstance(SMALL.model("max", 0).pool, sw.nn.MaxPool)


def test_colours_are_standardised_by_the_images_trained_on() -> None:
    train, _ = SMALL._parts(0)
    first = next(m for m in SMALL.model("mean", 0).modules() if isinstance(m, sw.nn.Rescale))
    pixels = torch.cat([p[::16] for p in train.patches]).float()
    torch.testing.assert_close(first.mean, pixels.mean((0, 2, 3)))
    torch.testing.assert_close(first.std, pixels.std((0, 2, 3)), atol=1e-3, rtol=1e-3)


def test_the_bandwidth_starts_from_the_first_batch() -> None:
    model = SMALL.model("d-dmps-ldc", 0)
    sigma = model.graph.sigma.item()
    batch, _ = SMALL.batches(0)(1)
    model.graph.kernel.log_sigma.data.fill_(0.0)
    assert model.initialize_bandwidth(batch.x).graph.sigma.item() == pytest.approx(sigma)


# Folds and batches


@pytest.mark.parametrize("by", ["image", "slide"])
def test_each_image_is_tested_on_once_and_never_trained_on_then(by: str, drawn: PatchedImages) -> None:
    experiment = replace(SMALL, by=by, folds=3)
    trials = experiment.trials(4)
    assert trials == {"fold-0": 12, "fold-1": 13, "fold-2": 14}
    tested: list[str] = []
    for number in trials.values():
        train, test = experiment._parts(number)
        assert not set(train.names) & set(test.names)
        assert set(train.names) | set(test.names) == set(drawn.names)
        if by == "slide":
            assert not set(train.slides) & set(test.slides)
        tested += test.names
    assert sorted(tested) == sorted(drawn.names)


def test_another_seed_gives_another_split() -> None:
    first, other = ([SMALL._parts(n)[1].names for n in SMALL.trials(seed).values()] for seed in (0, 1))
    assert first != other


def test_a_batch_is_one_image_with_augmented_patches(drawn: PatchedImages) -> None:
    train, _ = SMALL._parts(0)
    seen = []
    for step in range(1, 1 + len(train)):
        batch, y = SMALL.batches(0)(step)
        assert batch.x.shape == (1, 5, 3, 32, 32)
        assert batch.x.dtype == torch.uint8
        index = int(sw.training.epochs(len(train), 1, step, "histology", 0))
        generator = sw.training.generator("histology", "train", 0, step)
        some = train.patches[index][torch.randperm(20, generator=generator)[:5]]
        assert torch.equal(batch.x[0], random_orientation(some, generator))
        assert y.tolist() == [int(train.labels[index])]
        seen.append(index)
    assert sorted(seen) == list(range(len(train)))


def test_stains_change_if_asked_to() -> None:
    train, _ = SMALL._parts(0)
    batch, _ = replace(SMALL, stain=0.3).batches(0)(1)
    generator = sw.training.generator("histology", "train", 0, 1)
    index = int(sw.training.epochs(len(train), 1, 1, "histology", 0))
    some = train.patches[index][torch.randperm(20, generator=generator)[:5]]
    assert torch.equal(batch.x[0], random_orientation(random_stain(some, generator, strength=0.3), generator))


def test_there_is_no_validation_data() -> None:
    assert SMALL.validation(0) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"folds": 1}, "folds must be at least 2, got 1"),
        ({"by": "patch"}, "by must be one of image, slide, got 'patch'"),
        ({"patches": 0}, "patches must be at least 1, got 0"),
        ({"stain": 1.0}, "stain must be at least 0 and below 1, got 1.0"),
        ({"threads": 0}, "threads must lie between 1 and 1024, got 0"),
    ],
)
def test_invalid_values_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        replace(SMALL, **changes)


# Results


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, drawn: PatchedImages) -> Path:
    folder = tmp_path_factory.mktemp("histology")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(histology, "_images", lambda: drawn)
        for row in ("gated-attention", "d-dmps-ldc"):
            for by in ("image", "slide"):
                run(folder, row, replace(SMALL, by=by))
    return folder


def test_a_result_has_the_scores_of_all_folds(recorded: Path, drawn: PatchedImages) -> None:
    path = recorded / "results" / "histology" / "d-dmps-ldc_by-image_steps-2_seed-0.json"
    result = json.loads(path.read_text())
    folds = result["folds"]
    assert len(folds) == 2
    assert result["accuracy"] == pytest.approx((folds[0]["accuracy"] + folds[1]["accuracy"]) / 2)
    assert result["auc"] == pytest.approx((folds[0]["auc"] + folds[1]["auc"]) / 2)
    assert result["budget"]["steps"] == 2
    assert result["budget"]["sets"] == 4
    assert result["paper"] == [0.836, 0.023]
    assert result["validation"] == {}
    log_odds = folds[0]["log_odds"] | folds[1]["log_odds"]
    assert sorted(log_odds) == sorted(drawn.names)
    for fold in folds:
        labels = {name: int(y) for name, y in zip(drawn.names, drawn.labels, strict=True)}
        right = [(value > 0) == bool(labels[name]) for name, value in fold["log_odds"].items()]
        assert fold["accuracy"] == pytest.approx(sum(right) / len(right))


def test_example_images_are_recorded_with_importance(recorded: Path, drawn: PatchedImages) -> None:
    for row, method in (("gated-attention", "attention"), ("d-dmps-ldc", "integrated-gradients")):
        path = recorded / "results" / "histology" / f"{row}_by-image_steps-2_seed-0.json"
        examples = {
            n: e for fold in json.loads(path.read_text())["folds"] for n, e in fold["examples"].items()
        }
        of_class = [[n for n, y in zip(drawn.names, drawn.labels, strict=True) if y == c][:2] for c in (0, 1)]
        assert sorted(examples) == sorted(of_class[0] + of_class[1])
        for example in examples.values():
            assert example["method"] == method
            assert len(example["importance"]) == 20
            if row == "d-dmps-ldc":
                assert example["importance"][example["chosen"]] == max(example["importance"])
                assert len(example["neighbours"]) == len(example["weights"]) == 12
                assert example["chosen"] not in example["neighbours"]
                assert example["weights"] == sorted(example["weights"], reverse=True)
            else:
                assert sum(example["importance"]) == pytest.approx(1, abs=0.02)


def test_the_table_shows_standard_errors_over_folds(recorded: Path) -> None:
    results = report.load_results(recorded / "results", Histology)
    headings, lines = report.table(Histology, results)
    assert headings[:5] == ["Row", "by", "Test accuracy", "Paper", "AUC"]
    assert [line[:2] for line in lines] == [
        ["Gated Attention", "image"], ["Gated Attention", "slide"],
        ["D-DMPS w/ LDC", "image"], ["D-DMPS w/ LDC", "slide"],
    ]  # fmt: skip
    assert {line[-1] for line in lines} == {"1 × 2 folds"}
    assert [line[3] for line in lines] == ["0.7550 ± 0.0160", "—", "0.8360 ± 0.0230", "—"]


def test_the_standard_error_is_that_of_all_folds() -> None:
    def result(seed: int, *values: float) -> dict[str, Any]:
        folds = [{"accuracy": value} for value in values]
        return {"row": "mean", "by": "image", "seed": seed, "accuracy": 0.0, "folds": folds,
                "budget": {"steps": 1, "sets": 2, "seconds": 3.0}}  # fmt: skip

    _, lines = report.table(Histology, [result(0, 0.5, 0.7), result(1, 0.6, 1.0)])
    assert lines[0][2] == "0.7000 ± 0.1080"  # standard deviation 0.216 over four folds, by their root
    assert lines[0][4] == "—"
    assert lines[0][-1] == "2 × 2 folds"


@pytest.mark.parametrize(
    ("folds", "expected"),
    [
        ([], r"folds must be a list of scores, got \[\]"),
        ([3], "a fold must be an object, got 3"),
        ([{"auc": 1}], "in a fold, accuracy must be a number, got None"),
    ],
)
def test_broken_folds_are_named(recorded: Path, tmp_path: Path, folds: Any, expected: str) -> None:
    path = recorded / "results" / "histology" / "d-dmps-ldc_by-image_steps-2_seed-0.json"
    (tmp_path / "histology").mkdir()
    broken = json.loads(path.read_text()) | {"folds": folds}
    (tmp_path / "histology" / "x.json").write_text(json.dumps(broken))
    with pytest.raises(ValueError, match=expected):
        report.load_results(tmp_path, Histology)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"folds": None}, "folds must be a list of scores, got None"),
        ({"by": "patient"}, "by must be one of image, slide, got 'patient'"),
        ({"folds": [{"accuracy": 1, "auc": "high"}]}, "in a fold, auc must be a number, got 'high'"),
        ({"folds": [{"accuracy": 1}]}, "a fold must have examples and log_odds, got others"),
        (
            {
                "folds": [
                    {"accuracy": 1, "log_odds": {}, "examples": {"a": {"method": "x", "importance": []}}}
                ]
            },
            "example 'a' must have log_odds, method and importance",
        ),
        (
            {"folds": [{"accuracy": 1, "log_odds": {"a": 1}, "examples": {"a": {"method": "x"}}}]},
            "example 'a' must have log_odds, method and importance",
        ),
    ],
)
def test_incomplete_examples_are_refused(
    recorded: Path, tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    path = recorded / "results" / "histology" / "d-dmps-ldc_by-image_steps-2_seed-0.json"
    (tmp_path / "histology").mkdir()
    (tmp_path / "histology" / "x.json").write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=f"x.json is not a valid result of histology: {expected}"):
        report.load_results(tmp_path, Histology)


def test_results_of_other_settings_are_separate_rows(recorded: Path) -> None:
    results = report.load_results(recorded / "results", Histology)
    (one,) = (r for r in results if r["row"] == "d-dmps-ldc" and r["by"] == "image")
    again, other, elsewhere = (json.loads(json.dumps(one)) for _ in range(3))
    other["config"]["stain"] = 0.5
    elsewhere["config"]["threads"] = 7  # does not change a result
    _, lines = report.table(Histology, [one, again, other, elsewhere])
    assert [line[-1] for line in lines] == ["3 × 2 folds", "1 × 2 folds"]


def test_a_column_shows_the_number_of_folds() -> None:
    folds = [{"accuracy": 0.5, "auc": 0.75}, {"accuracy": 1.0}]
    budget = {"steps": 1, "sets": 2, "seconds": 3.0}
    result = {"row": "mean", "by": "image", "seed": 0, "folds": folds, "budget": budget}
    _, lines = report.table(Histology, [result])
    assert lines[0][4] == "0.7500 (1 of 2 folds)"


def test_figures_take_the_largest_budget_and_the_first_seed(recorded: Path, drawn: PatchedImages) -> None:
    results = report.load_results(recorded / "results", Histology)
    longer, later = (json.loads(json.dumps(results)) for _ in range(2))
    for r in longer:
        r["budget"]["steps"] = 4
        r["folds"] = [fold | {"log_odds": dict.fromkeys(fold["log_odds"], 7.0)} for fold in r["folds"]]
    for r in later:
        r["budget"]["steps"], r["seed"] = 4, 1
    figures = Histology.figures([*results, *longer, *later])
    titles = [ax.get_title() for line in figures["histology-heatmaps"].subfigs[1:] for ax in line.axes]
    assert set(titles) == {"log-odds (malignant) +7.0"}
    (ax,) = figures["histology"].axes
    assert ax.get_title().endswith("4 batches per fold")
    assert [len(bar.lines[0].get_xdata()) for bar in ax.containers] == [2, 2]  # rows, by image and by slide


def test_figures_work_with_few_results(recorded: Path) -> None:
    results = report.load_results(recorded / "results", Histology)
    for r in results:
        r["row"] = {"gated-attention": "attention", "d-dmps-ldc": "v-dmps"}[r["row"]]
    lines = Histology.figures(results)["histology-heatmaps"].subfigs
    titles = [line.get_suptitle() for line in lines]
    assert [text.partition(":")[0] for text in titles] == ["", "Attention", "V-DMPS"]
    for r in results:
        r["folds"] = [fold | {"examples": {}} for fold in r["folds"]]
    assert list(Histology.figures(results)) == ["histology"]


def test_a_failed_run_can_be_started_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folds must be at most 12, the number of images, got 13"):
        run(tmp_path, "mean", replace(SMALL, folds=13))
    with pytest.raises(ValueError, match="folds must be at most 4, the number of slides, got 5"):
        run(tmp_path, "mean", replace(SMALL, folds=5, by="slide"))
    assert run(tmp_path, "mean")["accuracy"] >= 0


def test_a_run_that_failed_after_a_checkpoint_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Histology, model: Any, seed: int) -> dict[str, Any]:
        raise ValueError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Histology, "test", fail)
        with pytest.raises(ValueError, match="no"):
            run(tmp_path, "mean")
    with pytest.raises(FileExistsError, match="already contains a run: continue it with --resume"):
        run(tmp_path, "mean")
    assert run(tmp_path, "mean", resume=True)["accuracy"] >= 0


def test_a_stopped_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "a", "mean")
    tests = []

    def stop(self: Histology, model: Any, seed: int) -> dict[str, Any]:
        tests.append(seed)
        if len(tests) == 2:
            raise KeyboardInterrupt
        return original(self, model, seed)

    original = Histology.test
    monkeypatch.setattr(Histology, "test", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b", "mean")
    monkeypatch.setattr(Histology, "test", original)
    trained = []
    batches = Histology.batches
    monkeypatch.setattr(
        Histology,
        "batches",
        lambda self, seed: lambda step: trained.append(seed) or batches(self, seed)(step),
    )
    again = run(tmp_path / "b", "mean", resume=True)
    assert trained == []  # both folds had been trained
    assert again["folds"] == whole["folds"]
    assert (tmp_path / "b" / "runs" / "histology" / "mean" / "by-image_steps-2_seed-0" / "fold-1").is_dir()


def test_figures_from_the_command_line(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["figure", "histology", "--results", str(recorded / "results"), "--out", str(tmp_path)])
    drawn = [Path(line).name for line in capsys.readouterr().out.split()]
    assert drawn == ["histology.png", "histology-heatmaps.png", "histology-neighbours.png"]
    assert all((tmp_path / name).stat().st_size > 10_000 for name in drawn)


def test_figures_without_the_images(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, drawn: PatchedImages
) -> None:
    monkeypatch.setattr(histology, "_images", lambda: replace(drawn, name="others"))
    results = report.load_results(recorded / "results", Histology)
    with pytest.warns(UserWarning, match="heat maps skipped: the images of stand-in: drawn tissue"):
        assert list(Histology.figures(results)) == ["histology"]


@pytest.mark.realdata
@pytest.mark.skipif(not REAL.is_dir(), reason="the images are not available")
def test_the_real_images_are_split_evenly() -> None:
    for by in ("image", "slide"):
        experiment = Histology(by=by)
        assert experiment.data == "breast cancer (UCSB)"
        parts = [experiment._parts(number)[1] for number in experiment.trials(0).values()]
        malignant = [int(part.labels.sum()) for part in parts]
        assert sum(malignant) == 26
        if by == "image":
            assert sorted(len(part) for part in parts) == [11, 11, 12, 12, 12]
            assert set(malignant) == {5, 6}
        else:
            assert all(0 < m < len(part) for m, part in zip(malignant, parts, strict=True))
