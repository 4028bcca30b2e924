"""Classifying breast tissue as malignant or benign from the patches of an image, with one label per image.

The paper's fourth experiment (table 3 and appendix): two convolutions, FL(1728, 512), FL(512, 512), three
blocks with a 512 / 1024 deep kernel, a pool, FL(512, 1). With only 58 images, all of them are tested by
cross-validation. Folds are split by image, as in the paper, or by slide, so that the images of a slide are
never in both training and test data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import setwise as sw
from setwise.experiments.base import CrossValidated, ExampleSet, random_indices
from setwise.experiments.contrast_model import contrast_dmps
from setwise.experiments.scores import standard_error, values
from setwise.training.config import Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Generator, Tensor, nn

    from setwise.experiments.data.histology import PatchedImages
    from setwise.inspection.explorer.content import ShownSet
    from setwise.training.loop import Batch, Batches


DIM, HIDDEN = 512, (512, 1024)
SCHEMES = ("image", "slide")
EXAMPLES = (  # images of the heat-map figure; other data sets use the first two images of each class
    "ytma12_010804_benign3_ccd",
    "ytma10_010704_benign2_ccd",
    "ytma23_022103_malignant2_ccd",
    "ytma49_042403_malignant2_ccd",
)
NEIGHBOURS = 12
FIGURE_ROWS = (  # first available row of each kind; layer norms make gradients of contrast rows unreliable
    ("gated-attention", "attention"),
    ("d-dmps-ldc", "d-dmps-fdc", "r-dmps", "v-dmps"),
)


@dataclass(frozen=True)
class Histology(CrossValidated):
    """Classify breast tissue as malignant or benign from patches."""

    by: Literal["image", "slide"] = "image"
    """Split folds by image, as in the paper, or by slide."""
    patches: int = 64
    """Random patches per training image; fewer are faster; the paper uses all 672."""
    stain: float = 0.0
    """Range of the random change in stain strength in training, in [0, 1); 0 in the paper."""
    training: Training = field(default_factory=lambda: Training(steps=3000, lr=1e-4, evaluations=6))
    """Training configuration of each fold."""
    threads: int | None = 1
    """CPU threads; two parallel runs with one thread each are faster than one run with two."""

    name: ClassVar[str] = "histology"
    varied: ClassVar[str] = "by"
    ROWS: ClassVar[Mapping[str, str]] = {
        "mean": "Mean pooling",
        "max": "Max pooling",
        "attention": "Attention",
        "gated-attention": "Gated Attention",
        "v-dmps": "V-DMPS",
        "r-dmps": "R-DMPS",
        "d-dmps-fdc": "D-DMPS w/ FDC",
        "d-dmps-ldc": "D-DMPS w/ LDC",
        "contrast": "Contrast DMPS (ours)",
    }
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]] = {
        "mean": None,
        "max": None,
        "attention": (0.745, 0.018),
        "gated-attention": (0.755, 0.016),
        "v-dmps": (0.800, 0.023),
        "r-dmps": (0.818, 0.029),
        "d-dmps-fdc": (0.846, 0.019),
        "d-dmps-ldc": (0.836, 0.023),
        "contrast": None,
    }
    """Folds by image."""
    COLUMNS: ClassVar[Mapping[str, str]] = {"auc": "AUC"}

    def __post_init__(self) -> None:
        """Validate the fields."""
        super().__post_init__()
        if self.by not in SCHEMES:
            raise ValueError(f"by must be one of {', '.join(SCHEMES)}, got {self.by!r}")
        if self.patches < 1:
            raise ValueError(f"patches must be at least 1, got {self.patches}")
        if not 0 <= self.stain < 1:
            raise ValueError(f"stain must be at least 0 and below 1, got {self.stain}")

    @classmethod
    def result_error(cls, result: Mapping[str, Any]) -> str | None:
        """Describe what is wrong with a result; None if it is valid."""
        if result["by"] not in SCHEMES:
            return f"by must be one of {', '.join(SCHEMES)}, got {result['by']!r}"
        for fold in result["folds"]:
            examples, log_odds = fold.get("examples"), fold.get("log_odds")
            if not isinstance(examples, dict) or not isinstance(log_odds, dict):
                return "a fold must have examples and log_odds, got others"
            for name, example in examples.items():
                if name not in log_odds or not {"method", "importance"} <= set(example):
                    return (
                        f"example {name!r} must have log_odds, method and importance, got {sorted(example)}"
                    )
        return None

    @classmethod
    def paper(cls, row: str, value: Any) -> tuple[float, float | None] | None:
        """The paper splits by image."""
        return cls.PAPER[row] if value == "image" else None

    @property
    def data(self) -> str:
        """Name of the data set that is used."""
        return _images().name

    def task(self, row: str) -> sw.Binary:
        """Malignant or benign."""
        return sw.Binary()

    def model(self, row: str, seed: int) -> nn.Module:
        """The appendix's architecture with the blocks of the row, or a published baseline."""
        train, _ = self._parts(seed)
        model = ARCHITECTURES[row](*_channel_statistics(train))
        sw.nn.initialize(model, sw.training.generator("weights", seed))
        if isinstance(model, sw.DMPS):
            first, _ = self.batches(seed)(1)
            model.initialize_bandwidth(first.x)
        return model

    def batches(self, seed: int) -> Batches:
        """Each image once per epoch, one per batch; each patch is randomly rotated and flipped."""
        import torch

        from setwise.experiments.data.histology import random_orientation
        from setwise.experiments.data.stains import random_stain

        train, _ = self._parts(seed)

        def batch(step: int) -> Batch:
            index = sw.training.epochs(len(train), 1, step, "histology", seed)
            generator = sw.training.generator("histology", "train", seed, step)
            x = train.patches[int(index)]
            x = x[torch.randperm(len(x), generator=generator)[: self.patches]]
            if self.stain:
                x = random_stain(x, generator, strength=self.stain)
            return sw.SetBatch(random_orientation(x, generator).unsqueeze(0)), train.labels[index]

        return batch

    def test(self, model: nn.Module, seed: int) -> dict[str, Any]:
        """Accuracy, AUC, the log-odds of each image, and the patch importance of the example images."""
        from setwise.training.loop import outputs

        _, test = self._parts(seed)
        out, y = outputs(model, _test_batches(test))
        scores: dict[str, Any] = dict(sw.Binary().score(out, y))
        log_odds = [round(value, 4) for value in out[:, 0].tolist()]
        scores["log_odds"] = dict(zip(test.names, log_odds, strict=True))
        scores["examples"] = {
            test.names[i]: _explain_image(model, test.patches[i]) for i in _example_indices(_images(), test)
        }
        return scores

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names."""
        return _images().classes

    def example_sets(self, seed: int, count: int, generator: Generator) -> list[ExampleSet]:
        """Test images with all their patches at their positions."""
        _, test = self._parts(seed)
        return [
            ExampleSet(test.patches[i], int(test.labels[i]), partial(_shown_set, test, i))
            for i in random_indices(len(test), count, generator)
        ]

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """Heat maps, neighbours of the most important patch, and accuracies with the paper's."""
        return {"histology": _accuracy_figure(cls, results)} | _tissue_figures(cls, results)

    def _parts(self, seed: int) -> tuple[PatchedImages, PatchedImages]:
        """Training images and test images of the fold."""
        images = _images()
        self.check_folds(len(set(images.slides)) if self.by == "slide" else len(images), f"{self.by}s")
        return _fold_split(self.by, self.folds, *self.fold(seed))


@cache
def _images() -> PatchedImages:
    from setwise.experiments.data.histology import load_histology

    return load_histology()


@cache
def _fold_split(by: str, folds: int, seed: int, fold: int) -> tuple[PatchedImages, PatchedImages]:
    from setwise.experiments.folds import stratified_folds

    images = _images()
    groups = images.slides if by == "slide" else None
    number = stratified_folds(images.labels, folds, seed=seed, groups=groups)
    train, test = ((which.nonzero().squeeze(1)) for which in (number != fold, number == fold))
    return images.subset(train), images.subset(test)


def _test_batches(images: PatchedImages) -> list[Batch]:
    """One batch per image, with all its patches."""
    return [
        (sw.SetBatch(x.unsqueeze(0)), y.unsqueeze(0))
        for x, y in zip(images.patches, images.labels, strict=True)
    ]


def _shown_set(images: PatchedImages, i: int) -> ShownSet:
    """Image and positions of its patches."""
    from setwise.inspection.explorer.content import ShownSet

    coords, size = images.coords[i], images.size
    return ShownSet(
        name=images.names[i],
        kind="patches",
        places=coords.double().numpy(),
        elements=tuple(f"patch in column {c // size + 1}, row {r // size + 1}" for c, r in coords.tolist()),
        background=images.image(i).numpy(),
        patch=size,
    )


def _channel_statistics(images: PatchedImages) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each colour channel over a sixteenth of the patches."""
    import torch

    pixels = torch.cat([patches[::16] for patches in images.patches]).float()
    std, mean = torch.std_mean(pixels, dim=(0, 2, 3))
    return mean, std


def _encoder(mean: Tensor, std: Tensor, dim: int = DIM) -> sw.nn.ElementEncoder:
    """Conv(3, 36, 4) and Conv(36, 48, 3) with ReLU and pooling, FL(1728, 512, tanh), FL(512, 512, tanh)."""
    from torch import nn

    return sw.nn.ElementEncoder(
        nn.Sequential(
            sw.nn.Rescale(mean, std, axis=1),
            sw.nn.ConvPool(3, 36, kernel=4),
            sw.nn.ConvPool(36, 48, kernel=3),
            nn.Flatten(),
            sw.nn.Dense(48 * 6 * 6, DIM, activation="tanh"),
            sw.nn.Dense(DIM, dim, activation="tanh"),
        )
    )


def _dmps(mean: Tensor, std: Tensor, **parts: Any) -> sw.DMPS:
    """Encoder and three SDB(512, 512, 1024, tanh, tanh, tanh, σ, γ) or variants; SP(512) is the mean."""
    encoder = _encoder(mean, std)
    return sw.DMPS.build(
        3, 1, dim=DIM, hidden=HIDDEN, activation="tanh", pool="mean", encoder=encoder, **parts
    )


def _contrast(mean: Tensor, std: Tensor) -> sw.DMPS:
    """Ours at half the width: same encoder, row-normalised kernel, contrast blocks, max and mean pools."""
    return contrast_dmps(_encoder(mean, std, DIM // 2), DIM // 2, 1)


def _pooled(mean: Tensor, std: Tensor, pool: Any) -> sw.nn.PooledMIL:
    """Model of Ilse et al.: the same encoder, attention of width 128 or a plain pool, no blocks."""
    return sw.nn.PooledMIL.build(3, 1, dim=DIM, hidden=128, pool=pool, encoder=_encoder(mean, std))


ARCHITECTURES: Mapping[str, Callable[[Tensor, Tensor], nn.Module]] = {
    "mean": lambda mean, std: _pooled(mean, std, "mean"),
    "max": lambda mean, std: _pooled(mean, std, "max"),
    "attention": lambda mean, std: _pooled(mean, std, "attention"),
    "gated-attention": lambda mean, std: _pooled(mean, std, "gated"),
    "v-dmps": lambda mean, std: _dmps(mean, std, block="message-passing"),
    "r-dmps": lambda mean, std: _dmps(mean, std, block="residual"),
    "d-dmps-fdc": lambda mean, std: _dmps(mean, std, block="denoising", gamma=0.5),
    "d-dmps-ldc": lambda mean, std: _dmps(mean, std, block="denoising"),
    "contrast": _contrast,
}


def _example_indices(images: PatchedImages, test: PatchedImages) -> list[int]:
    """Indices of the example images in the test data; for other data sets, two images of each class."""
    names: tuple[str, ...] = EXAMPLES
    if not set(EXAMPLES) <= set(images.names):
        of_class = [[n for n, y in zip(images.names, images.labels, strict=True) if y == c] for c in (0, 1)]
        names = tuple(name for members in of_class for name in members[:2])
    return [i for i, name in enumerate(test.names) if name in names]


def _explain_image(model: nn.Module, patches: Tensor) -> dict[str, Any]:
    """Importance of each patch and, with a latent graph, the neighbours of the most important patch."""
    import torch

    from setwise.inspection.importance import importance, strongest_neighbours
    from setwise.nn._modes import eval_mode

    x = patches.unsqueeze(0)
    attends = isinstance(getattr(model, "pool", None), sw.nn.AttentionPool)
    method: Any = "attention" if attends else "integrated-gradients"
    values = importance(model, x, method=method)[0]
    example: dict[str, Any] = {"method": method, "importance": [float(f"{v:.3g}") for v in values.tolist()]}
    if isinstance(model, sw.DMPS):
        chosen = int(values.argmax())
        with eval_mode(model), torch.no_grad():
            W = model.latent_graph(x)
        assert isinstance(W, torch.Tensor)
        index, weights = strongest_neighbours(W[0], chosen, NEIGHBOURS)
        example["chosen"] = chosen
        example["neighbours"] = index.tolist()
        example["weights"] = [float(f"{w:.4g}") for w in weights.tolist()]
    return example


def _accuracy_figure(experiment: type[Histology], results: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy of each row for both ways to split, with standard errors and the paper's numbers."""
    from matplotlib.figure import Figure

    budgets = Counter(r["budget"]["steps"] for r in results)
    steps = max(budgets, key=lambda steps: (budgets[steps], steps))  # the most frequent budget
    results = [r for r in results if r["budget"]["steps"] == steps]
    rows = [row for row in experiment.ROWS if any(r["row"] == row for r in results)]
    figure = Figure(figsize=(7.5, 1.2 + 0.45 * len(rows)), layout="constrained")
    ax = figure.subplots()
    for scheme, shift in zip(SCHEMES, (-0.15, 0.15), strict=True):
        at, means, errors = [], [], []
        for place, row in enumerate(rows):
            scores = values([r for r in results if r["row"] == row and r["by"] == scheme], "accuracy")
            if scores:
                at.append(place + shift)
                means.append(fmean(scores))
                errors.append(standard_error(scores))
        if at:
            ax.errorbar(means, at, xerr=errors, fmt="o", capsize=3, label=f"folds by {scheme}")
    published = {place: paper[0] for place, row in enumerate(rows) if (paper := experiment.PAPER[row])}
    ax.plot(list(published.values()), list(published), "|", color="0.4", markersize=14, label="paper")
    ax.set_yticks(range(len(rows)), [experiment.ROWS[row] for row in rows])
    ax.invert_yaxis()
    ax.set(xlabel="test accuracy ± standard error over folds")
    ax.set_title(f"{results[0]['data']}, {steps:,} batches per fold", fontsize=10)
    ax.grid(axis="x", alpha=0.3)
    figure.legend(frameon=False, loc="outside lower center", ncols=3)
    return figure


def _tissue_figures(experiment: type[Histology], results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Heat maps of the example images, and the neighbours of their most important patches."""
    import warnings

    images = _images()
    if results[0]["data"] != images.name:
        warnings.warn(f"heat maps skipped: the images of {results[0]['data']} were not found", stacklevel=2)
        return {}
    candidates = [r for r in results if _fold_examples(r)]
    candidates = [r for r in candidates if r["by"] == "image"] or candidates
    found = {r["row"] for r in candidates}
    if not found:
        return {}
    rows = [next((row for row in kind if row in found), "") for kind in FIGURE_ROWS]
    chosen = {
        row: max((r for r in candidates if r["row"] == row), key=lambda r: (r["budget"]["steps"], -r["seed"]))
        for row in [row for row in rows if row] or sorted(found)[:1]
    }
    graphs = {row: r for row, r in chosen.items() if "chosen" in next(iter(_fold_examples(r).values()))}
    figures = {"histology-heatmaps": _heatmaps(experiment, images, chosen)}
    if graphs:
        figures["histology-neighbours"] = _neighbours(experiment, images, graphs)
    return figures


def _fold_examples(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Examples of all folds, each with the log-odds of its image."""
    return {
        name: example | {"log_odds": fold["log_odds"][name]}
        for fold in result["folds"]
        for name, example in fold["examples"].items()
    }


def _heatmaps(
    experiment: type[Histology], images: PatchedImages, chosen: Mapping[str, Mapping[str, Any]]
) -> Figure:
    """A row of images, followed by one row of heat maps per model."""
    from setwise.inspection.plots import patch_heatmap

    descriptions = {
        "attention": "attention weights (darker is larger)",
        "integrated-gradients": "integrated gradients (red: malignant, blue: benign)",
    }
    numbers = _example_images(images, next(iter(chosen.values())))
    figure, lines = _subfigure_rows(1 + len(chosen), len(numbers))
    for i, ax in zip(numbers, lines[0][1], strict=True):
        ax.imshow(images.image(i).numpy())
        ax.set_title(images.classes[int(images.labels[i])], fontsize=10)
        ax.set_axis_off()
    for (row, result), (line, axes) in zip(chosen.items(), lines[1:], strict=True):
        examples = _fold_examples(result)
        method = next(iter(examples.values()))["method"]
        line.suptitle(f"{experiment.ROWS[row]}: {descriptions[method]}", fontsize=11)
        for i, ax in zip(numbers, axes, strict=True):
            example = examples[images.names[i]]
            patch_heatmap(images.image(i), images.coords[i], example["importance"], size=images.size, ax=ax)
            ax.set_title(f"log-odds (malignant) {example['log_odds']:+.1f}", fontsize=9)
    return figure


def _neighbours(
    experiment: type[Histology], images: PatchedImages, chosen: Mapping[str, Mapping[str, Any]]
) -> Figure:
    """For each model and image, the most important patch and its strongest neighbours."""
    from setwise.inspection.plots import patch_neighbours

    numbers = _example_images(images, next(iter(chosen.values())))
    figure, lines = _subfigure_rows(len(chosen), len(numbers))
    for (row, result), (line, axes) in zip(chosen.items(), lines, strict=True):
        line.suptitle(f"{experiment.ROWS[row]}: strongest neighbours of the red patch", fontsize=11)
        for i, ax in zip(numbers, axes, strict=True):
            example = _fold_examples(result)[images.names[i]]
            weights = [0.0] * len(images.patches[i])
            for neighbour, weight in zip(example["neighbours"], example["weights"], strict=True):
                weights[neighbour] = weight
            patch_neighbours(
                images.image(i), images.coords[i], weights, example["chosen"], size=images.size, ax=ax
            )
            ax.set_title(images.classes[int(images.labels[i])], fontsize=9)
    return figure


def _example_images(images: PatchedImages, result: Mapping[str, Any]) -> list[int]:
    """Indices of the images that a result has examples of."""
    return [i for i, name in enumerate(images.names) if name in _fold_examples(result)]


def _subfigure_rows(lines: int, columns: int) -> tuple[Figure, list[tuple[Any, Any]]]:
    """Figure with rows of axes; each row has its own title."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.4 * columns, 2.5 * lines), layout="constrained")
    parts = figure.subfigures(lines, 1, squeeze=False)[:, 0]
    return figure, [(part, part.subplots(1, columns, squeeze=False)[0]) for part in parts]
