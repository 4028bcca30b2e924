"""Telling malignant tissue from benign by the patches of an image, with one label for all of them.

The paper's fourth experiment (table 3 and the appendix): two convolutions, FL(1728, 512), FL(512, 512), three
blocks with a 512 / 1024 deep kernel, a pool, FL(512, 1). As there are 58 images only, all of them are tested
on, by cross-validation; folds are dealt by image, as the paper does, or by slide, so that no slide is both
trained and tested on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import setwise as sw
from setwise.experiments.base import CrossValidated, ExampleSet, some
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
EXAMPLES = (  # to be drawn with the weight of each patch; the first of each class in other data
    "ytma12_010804_benign3_ccd",
    "ytma10_010704_benign2_ccd",
    "ytma23_022103_malignant2_ccd",
    "ytma49_042403_malignant2_ccd",
)
NEIGHBOURS = 12
SHOWN = (  # of each kind, the first that there is; not ours, whose layer norms bend the gradient's path
    ("gated-attention", "attention"),
    ("d-dmps-ldc", "d-dmps-fdc", "r-dmps", "v-dmps"),
)


@dataclass(frozen=True)
class Histology(CrossValidated):
    """Tell malignant breast tissue from benign by its patches."""

    by: Literal["image", "slide"] = "image"
    """What is dealt into folds: single images, as in the paper, or whole slides."""
    patches: int = 64
    """Patches drawn from an image for a batch, which makes it that much quicker; the paper takes all 672."""
    stain: float = 0.0
    """How much stronger or weaker stains are made in training, below 1; the paper leaves them as they are."""
    training: Training = field(default_factory=lambda: Training(steps=3000, lr=1e-4, evaluations=6))
    """How each fold is trained."""
    threads: int | None = 1
    """CPU threads; two runs side by side gain more from two cores than one run does."""

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
    """With folds by image."""
    COLUMNS: ClassVar[Mapping[str, str]] = {"auc": "AUC"}

    def __post_init__(self) -> None:
        """Refuse absurd values."""
        super().__post_init__()
        if self.by not in SCHEMES:
            raise ValueError(f"by must be one of {', '.join(SCHEMES)}, got {self.by!r}")
        if self.patches < 1:
            raise ValueError(f"patches must be at least 1, got {self.patches}")
        if not 0 <= self.stain < 1:
            raise ValueError(f"stain must be at least 0 and below 1, got {self.stain}")

    @classmethod
    def fault(cls, result: Mapping[str, Any]) -> str | None:
        """What else is wrong with a result."""
        if result["by"] not in SCHEMES:
            return f"by must be one of {', '.join(SCHEMES)}, got {result['by']!r}"
        for fold in result["folds"]:
            examples, log_odds = fold.get("examples"), fold.get("log_odds")
            if not isinstance(examples, dict) or not isinstance(log_odds, dict):
                return "a fold must have examples and log_odds, got others"
            for name, example in examples.items():
                if name not in log_odds or not {"method", "importance"} <= set(example):
                    return f"example {name!r} must have log-odds, a method and importance, got less"
        return None

    @classmethod
    def paper(cls, row: str, value: Any) -> tuple[float, float | None] | None:
        """The paper deals by image."""
        return cls.PAPER[row] if value == "image" else None

    @property
    def data(self) -> str:
        """Which data the experiment really uses."""
        return _images().name

    def task(self, row: str) -> sw.Binary:
        """Malignant or not."""
        return sw.Binary()

    def model(self, row: str, seed: int) -> nn.Module:
        """The appendix's architecture with the row's own blocks, or a published baseline."""
        train, _ = self._parts(seed)
        model = ARCHITECTURES[row](*_colours(train))
        sw.nn.initialize(model, sw.training.generator("weights", seed))
        if isinstance(model, sw.DMPS):
            first, _ = self.batches(seed)(1)
            model.initialize_bandwidth(first.x)
        return model

    def batches(self, seed: int) -> Batches:
        """Each image once an epoch, one a batch; its patches turned and mirrored, each by itself."""
        import torch

        from setwise.experiments.data.histology import turned
        from setwise.experiments.data.stains import restained

        train, _ = self._parts(seed)

        def batch(step: int) -> Batch:
            index = sw.training.epochs(len(train), 1, step, "histology", seed)
            generator = sw.training.generator("histology", "train", seed, step)
            x = train.patches[int(index)]
            x = x[torch.randperm(len(x), generator=generator)[: self.patches]]
            if self.stain:
                x = restained(x, generator, strength=self.stain)
            return sw.SetBatch(turned(x, generator).unsqueeze(0)), train.labels[index]

        return batch

    def test(self, model: nn.Module, seed: int) -> dict[str, Any]:
        """Accuracy, area under the curve, the output for each image, and which patches of some counted."""
        from setwise.training.loop import outputs

        _, test = self._parts(seed)
        out, y = outputs(model, _whole(test))
        scores: dict[str, Any] = dict(sw.Binary().score(out, y))
        log_odds = [round(value, 4) for value in out[:, 0].tolist()]
        scores["log_odds"] = dict(zip(test.names, log_odds, strict=True))
        scores["examples"] = {
            test.names[i]: _example(model, test.patches[i]) for i in _examples(_images(), test)
        }
        return scores

    @property
    def classes(self) -> tuple[str, ...]:
        """What tissue is."""
        return _images().classes

    def exhibits(self, seed: int, count: int, generator: Generator) -> list[ExampleSet]:
        """Images of the fold with all their patches, each at its place."""
        _, test = self._parts(seed)
        return [
            ExampleSet(test.patches[i], int(test.labels[i]), partial(_drawn, test, i))
            for i in some(len(test), count, generator)
        ]

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """Which patches counted, which of them are connected, and accuracies beside the paper's."""
        return {"histology": _accuracy_figure(cls, results)} | _tissue_figures(cls, results)

    def _parts(self, seed: int) -> tuple[PatchedImages, PatchedImages]:
        """The images to train on and those of the fold, to test on."""
        images = _images()
        self.at_most(len(set(images.slides)) if self.by == "slide" else len(images), f"{self.by}s")
        return _dealt(self.by, self.folds, *self.fold(seed))


@cache
def _images() -> PatchedImages:
    from setwise.experiments.data.histology import load_histology

    return load_histology()


@cache
def _dealt(by: str, folds: int, seed: int, fold: int) -> tuple[PatchedImages, PatchedImages]:
    from setwise.experiments.folds import stratified_folds

    images = _images()
    groups = images.slides if by == "slide" else None
    number = stratified_folds(images.labels, folds, seed=seed, groups=groups)
    train, test = ((which.nonzero().squeeze(1)) for which in (number != fold, number == fold))
    return images.subset(train), images.subset(test)


def _whole(images: PatchedImages) -> list[Batch]:
    """Each image with all its patches, as it is."""
    return [
        (sw.SetBatch(x.unsqueeze(0)), y.unsqueeze(0))
        for x, y in zip(images.patches, images.labels, strict=True)
    ]


def _drawn(images: PatchedImages, i: int) -> ShownSet:
    """An image, and where its patches lie on it."""
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


def _colours(images: PatchedImages) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of red, green and blue over a sixteenth of the patches."""
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
    """The encoder and three SDB(512, 512, 1024, tanh, tanh, tanh, σ, γ) or others; SP(512) is the mean."""
    encoder = _encoder(mean, std)
    return sw.DMPS.build(
        3, 1, dim=DIM, hidden=HIDDEN, activation="tanh", pool="mean", encoder=encoder, **parts
    )


def _contrast(mean: Tensor, std: Tensor) -> sw.DMPS:
    """Ours: the same encoder, a row-normalised kernel, contrast blocks, maximum and mean; half as wide."""
    return contrast_dmps(_encoder(mean, std, DIM // 2), DIM // 2, 1)


def _pooled(mean: Tensor, std: Tensor, pool: Any) -> sw.nn.PooledMIL:
    """Ilse et al.'s: the same encoder, attention of width 128 or a plain pool, no blocks."""
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


def _examples(images: PatchedImages, test: PatchedImages) -> list[int]:
    """Where the images to show are among those to test on; the first two of each class in other data."""
    names: tuple[str, ...] = EXAMPLES
    if not set(EXAMPLES) <= set(images.names):
        of_class = [[n for n, y in zip(images.names, images.labels, strict=True) if y == c] for c in (0, 1)]
        names = tuple(name for some in of_class for name in some[:2])
    return [i for i, name in enumerate(test.names) if name in names]


def _example(model: nn.Module, patches: Tensor) -> dict[str, Any]:
    """How much each patch counts and, on a latent graph, what the one that counts most is connected to."""
    import torch

    from setwise.inspection.importance import importance, strongest_neighbours
    from setwise.nn._modes import eval_mode

    x = patches.unsqueeze(0)
    attends = isinstance(getattr(model, "pool", None), sw.nn.AttentionPool)
    method: Any = "attention" if attends else "integrated-gradients"
    values = importance(model, x, method=method)[0]
    found: dict[str, Any] = {"method": method, "importance": [float(f"{v:.3g}") for v in values.tolist()]}
    if isinstance(model, sw.DMPS):
        chosen = int(values.argmax())
        with eval_mode(model), torch.no_grad():
            W = model.latent_graph(x)
        assert isinstance(W, torch.Tensor)
        index, weights = strongest_neighbours(W[0], chosen, NEIGHBOURS)
        found["chosen"] = chosen
        found["neighbours"] = index.tolist()
        found["weights"] = [float(f"{w:.4g}") for w in weights.tolist()]
    return found


def _accuracy_figure(experiment: type[Histology], results: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy of each row by either way of dealing, with its standard error, beside the paper's."""
    from matplotlib.figure import Figure

    budgets = Counter(r["budget"]["steps"] for r in results)
    steps = max(budgets, key=lambda steps: (budgets[steps], steps))  # the one that most results have
    results = [r for r in results if r["budget"]["steps"] == steps]
    rows = [row for row in experiment.ROWS if any(r["row"] == row for r in results)]
    figure = Figure(figsize=(7.5, 1.2 + 0.45 * len(rows)), layout="constrained")
    ax = figure.subplots()
    for scheme, shift in zip(SCHEMES, (-0.15, 0.15), strict=True):
        at, means, errors = [], [], []
        for place, row in enumerate(rows):
            found = values([r for r in results if r["row"] == row and r["by"] == scheme], "accuracy")
            if found:
                at.append(place + shift)
                means.append(fmean(found))
                errors.append(standard_error(found))
        if at:
            ax.errorbar(means, at, xerr=errors, fmt="o", capsize=3, label=f"folds by {scheme}")
    published = {place: paper[0] for place, row in enumerate(rows) if (paper := experiment.PAPER[row])}
    ax.plot(list(published.values()), list(published), "|", color="0.4", markersize=14, label="paper")
    ax.set_yticks(range(len(rows)), [experiment.ROWS[row] for row in rows])
    ax.invert_yaxis()
    ax.set(xlabel="test accuracy ± standard error over folds")
    ax.set_title(f"{results[0]['data']}, {steps:,} batches a fold", fontsize=10)
    ax.grid(axis="x", alpha=0.3)
    figure.legend(frameon=False, loc="outside lower center", ncols=3)
    return figure


def _tissue_figures(experiment: type[Histology], results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """The example images, tinted by how much each patch counts, and what the foremost is connected to."""
    import warnings

    images = _images()
    if results[0]["data"] != images.name:
        warnings.warn(f"no heat maps: the images of {results[0]['data']} are not at hand", stacklevel=2)
        return {}
    dealt = [r for r in results if r["by"] == "image" and _shown(r)] or [r for r in results if _shown(r)]
    found = {r["row"] for r in dealt}
    if not found:
        return {}
    rows = [next((row for row in kind if row in found), "") for kind in SHOWN]
    chosen = {
        row: max((r for r in dealt if r["row"] == row), key=lambda r: (r["budget"]["steps"], -r["seed"]))
        for row in [row for row in rows if row] or sorted(found)[:1]
    }
    graphs = {row: r for row, r in chosen.items() if "chosen" in next(iter(_shown(r).values()))}
    figures = {"histology-heatmaps": _heatmaps(experiment, images, chosen)}
    if graphs:
        figures["histology-neighbours"] = _neighbours(experiment, images, graphs)
    return figures


def _shown(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The examples of all folds, each with the log-odds that its image is malignant."""
    return {
        name: example | {"log_odds": fold["log_odds"][name]}
        for fold in result["folds"]
        for name, example in fold["examples"].items()
    }


def _heatmaps(
    experiment: type[Histology], images: PatchedImages, chosen: Mapping[str, Mapping[str, Any]]
) -> Figure:
    """A line with the images, and one for each row with the weights that its patches have."""
    from setwise.inspection.plots import patch_heatmap

    said = {
        "attention": "attention, dark where there is more",
        "integrated-gradients": "integrated gradients, red for malignant, blue against",
    }
    numbers = _numbers(images, next(iter(chosen.values())))
    figure, lines = _lines(1 + len(chosen), len(numbers))
    for i, ax in zip(numbers, lines[0][1], strict=True):
        ax.imshow(images.image(i).numpy())
        ax.set_title(images.classes[int(images.labels[i])], fontsize=10)
        ax.set_axis_off()
    for (row, result), (line, axes) in zip(chosen.items(), lines[1:], strict=True):
        shown = _shown(result)
        method = next(iter(shown.values()))["method"]
        line.suptitle(f"{experiment.ROWS[row]}: {said[method]}", fontsize=11)
        for i, ax in zip(numbers, axes, strict=True):
            example = shown[images.names[i]]
            patch_heatmap(images.image(i), images.coords[i], example["importance"], size=images.size, ax=ax)
            ax.set_title(f"log-odds of malignant {example['log_odds']:+.1f}", fontsize=9)
    return figure


def _neighbours(
    experiment: type[Histology], images: PatchedImages, chosen: Mapping[str, Mapping[str, Any]]
) -> Figure:
    """For each row and image, the patch that counts most and those it listens to most."""
    from setwise.inspection.plots import patch_neighbours

    numbers = _numbers(images, next(iter(chosen.values())))
    figure, lines = _lines(len(chosen), len(numbers))
    for (row, result), (line, axes) in zip(chosen.items(), lines, strict=True):
        line.suptitle(f"{experiment.ROWS[row]}: what the red patch listens to most", fontsize=11)
        for i, ax in zip(numbers, axes, strict=True):
            example = _shown(result)[images.names[i]]
            weights = [0.0] * len(images.patches[i])
            for neighbour, weight in zip(example["neighbours"], example["weights"], strict=True):
                weights[neighbour] = weight
            patch_neighbours(
                images.image(i), images.coords[i], weights, example["chosen"], size=images.size, ax=ax
            )
            ax.set_title(images.classes[int(images.labels[i])], fontsize=9)
    return figure


def _numbers(images: PatchedImages, result: Mapping[str, Any]) -> list[int]:
    """Which images a result has examples of."""
    return [i for i, name in enumerate(images.names) if name in _shown(result)]


def _lines(lines: int, columns: int) -> tuple[Figure, list[tuple[Any, Any]]]:
    """A figure of lines with a title and axes each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.4 * columns, 2.5 * lines), layout="constrained")
    parts = figure.subfigures(lines, 1, squeeze=False)[:, 0]
    return figure, [(part, part.subplots(1, columns, squeeze=False)[0]) for part in parts]
