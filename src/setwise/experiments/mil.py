"""The classic multiple-instance learning benchmarks: musk molecules, animal images, tissue.

Not in the paper, but the standard comparison of bag methods since 1997. A bag is positive or negative; its
instances have features and no labels. Each data set has 58 to 200 bags, so all bags are tested by ten-fold
cross-validation. All rows share the encoder and the budget, except for two: logistic regression on the mean
of a bag's instances, the baseline, and `SetClassifier` with default settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import setwise as sw
from setwise.experiments.base import CrossValidated, ExampleSet, random_indices
from setwise.experiments.config import settings
from setwise.experiments.scores import standard_error, values
from setwise.training.config import Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Generator, Tensor, nn

    from setwise.inspection.explorer.content import ShownSet
    from setwise.io.bags import Bags
    from setwise.training.loop import Batch, Batches


FIVE = ("musk1", "musk2", "fox", "tiger", "elephant")
NAMES = (*FIVE, "ucsb")
WIDTHS, HIDDEN = (128, 64), (64, 64)
TEST_BATCH = 8
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # candidate values of C in logistic regression
SOURCE = "Ilse et al. 2018"
PUBLISHED: Mapping[str, Mapping[str, float]] = {  # table 1 there; most numbers are from Wang et al. 2018
    f"{label} ({SOURCE})": dict(zip(FIVE, numbers, strict=True))
    for label, numbers in {
        "mi-SVM": (0.874, 0.836, 0.582, 0.784, 0.822),
        "MI-Kernel": (0.880, 0.893, 0.603, 0.842, 0.843),
        "EM-DD": (0.849, 0.869, 0.609, 0.730, 0.771),
        "mi-Graph": (0.889, 0.903, 0.620, 0.860, 0.869),
        "miVLAD": (0.871, 0.872, 0.620, 0.811, 0.850),
        "miFV": (0.909, 0.884, 0.621, 0.813, 0.852),
        "MI-Net": (0.887, 0.859, 0.622, 0.830, 0.862),
        "MI-Net with DS": (0.894, 0.874, 0.630, 0.845, 0.872),
        "MI-Net with RC": (0.898, 0.873, 0.619, 0.836, 0.857),
        "Attention": (0.892, 0.858, 0.615, 0.839, 0.868),
        "Gated Attention": (0.900, 0.863, 0.603, 0.845, 0.857),
    }.items()
}
REFERENCE = f"Gated Attention ({SOURCE})"


@dataclass(frozen=True)
class MIL(CrossValidated):
    """Classify positive and negative bags on the classic multiple-instance benchmarks."""

    bags: str = "all"
    """Data set: musk1, musk2, fox, tiger, elephant, ucsb, or all."""
    folds: int = 10
    """Number of cross-validation folds."""
    instances: int = 16
    """Maximum number of instances per bag in a training batch, drawn at random."""
    sets: int = 16
    """Bags per batch."""
    training: Training = field(
        default_factory=lambda: Training(steps=160, lr=1e-3, weight_decay=5e-3, evaluations=1)
    )
    """Training configuration of each fold."""
    threads: int | None = 1
    """CPU threads; two parallel runs with one thread each are faster than one run with two."""

    name: ClassVar[str] = "mil"
    varied: ClassVar[str] = "bags"
    ROWS: ClassVar[Mapping[str, str]] = {
        "logistic": "Mean + logistic regression",
        "mean": "Mean pooling",
        "max": "Max pooling",
        "attention": "Attention",
        "gated-attention": "Gated Attention",
        "v-dmps": "V-DMPS",
        "r-dmps": "R-DMPS",
        "d-dmps-fdc": "D-DMPS w/ FDC",
        "d-dmps-ldc": "D-DMPS w/ LDC",
        "attentive": "D-DMPS, gated attention (ours)",
        "estimator": "SetClassifier(), default settings",
    }
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]] = dict.fromkeys(ROWS)
    COLUMNS: ClassVar[Mapping[str, str]] = {"auc": "AUC"}

    def __post_init__(self) -> None:
        """Validate the fields."""
        super().__post_init__()
        if self.bags not in ("all", *NAMES):
            raise ValueError(f"bags must be one of all, {', '.join(NAMES)}, got {self.bags!r}")
        for name in ("instances", "sets"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def values(self) -> tuple[str, ...]:
        """Data sets of a run."""
        return NAMES if self.bags == "all" else (self.bags,)

    @classmethod
    def result_error(cls, result: Mapping[str, Any]) -> str | None:
        """Describe what is wrong with a result; None if it is valid."""
        bags = result["bags"]
        return None if bags in NAMES else f"bags must be one of {', '.join(NAMES)}, got {bags!r}"

    @property
    def data(self) -> str:
        """Name of the data set that is used."""
        return "classic MIL benchmarks"

    def task(self, row: str) -> sw.Binary:
        """Positive or negative."""
        return sw.Binary()

    def model(self, row: str, seed: int) -> nn.Module:
        """Network of the row; features are standardised by the training instances."""
        from setwise.nn._modes import eval_mode

        train, _ = self._parts(seed)
        mean, std = _scale(train)
        model = ARCHITECTURES[row](mean, std)
        sw.nn.initialize(model, sw.training.generator("weights", seed))
        if isinstance(model, sw.DMPS):
            first, _ = self.batches(seed)(1)
            with eval_mode(model):  # dropout would distort the distances
                model.initialize_bandwidth(first.x, first.mask)
        return model

    def fitted_model(self, row: str, seed: int) -> nn.Module | None:
        """Rows fitted without the training loop: logistic regression and `SetClassifier`."""
        train, _ = self._parts(seed)
        if row == "estimator":
            return sw.SetClassifier(random_state=seed).fit([bag.x for bag in train], train.labels).module_
        return _logistic(train) if row == "logistic" else None

    def batches(self, seed: int) -> Batches:
        """Each bag once per epoch, with at most ``instances`` random instances."""
        import torch

        train, _ = self._parts(seed)
        instances = [bag.x for bag in train]

        def batch(step: int) -> Batch:
            index = sw.training.epochs(len(train), self.sets, step, "mil", seed)
            generator = sw.training.generator("mil", "train", seed, step)
            samples = [
                instances[i][torch.randperm(len(instances[i]), generator=generator)[: self.instances]]
                for i in index.tolist()
            ]
            return sw.SetBatch.from_list(samples), train.labels[index]

        return batch

    def test(self, model: nn.Module, seed: int) -> dict[str, Any]:
        """Accuracy and AUC; each bag is tested with all its instances."""
        import torch

        from setwise.training.loop import outputs

        _, test = self._parts(seed)
        index = torch.arange(len(test)).split(TEST_BATCH)
        return dict(sw.Binary().score(*outputs(model, [test.batch(chunk) for chunk in index])))

    @property
    def classes(self) -> tuple[str, str]:
        """Class names."""
        return "negative", "positive"

    def example_sets(self, seed: int, count: int, generator: Generator) -> list[ExampleSet]:
        """Test bags, their instances projected on the first two principal axes."""
        train, test = self._parts(seed)
        scale = sw.nn.Rescale(*_scale(train))
        return [
            ExampleSet(test[i].x, int(test.labels[i]), partial(_shown_set, test.names[i], test[i].x, scale))
            for i in random_indices(len(test), count, generator)
        ]

    @classmethod
    def table(cls, results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
        """One row per model, one column per data set, and published results."""
        return _table(cls, results)

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """Accuracies of all rows on all data sets."""
        return {"mil": _figure(cls, results)}

    def _parts(self, seed: int) -> tuple[Bags, Bags]:
        """Training bags and test bags of the fold."""
        self.check_folds(len(_bags(self.bags)), "bags")
        return _fold_split(self.bags, self.folds, *self.fold(seed))


@cache
def _bags(name: str) -> Bags:
    from setwise.experiments.data.mil import load_mil

    return load_mil(name)


@cache
def _fold_split(name: str, folds: int, seed: int, fold: int) -> tuple[Bags, Bags]:
    from setwise.experiments.folds import stratified_folds

    bags = _bags(name)
    number = stratified_folds(bags.labels, folds, seed=seed)
    return bags.subset(number != fold), bags.subset(number == fold)


def _scale(bags: Bags) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature over all instances."""
    import torch

    std, mean = torch.std_mean(torch.cat([bag.x for bag in bags]), dim=0)
    return mean, std


def _shown_set(name: str, x: Tensor, scale: sw.nn.Rescale) -> ShownSet:
    """Instances projected on the principal axes of the bag; features are named by number."""
    from setwise.inspection.explorer.content import ShownSet
    from setwise.inspection.explorer.layout import describe_elements, principal_axes

    standard = scale(x).double().numpy()
    names = [f"f{feature + 1}" for feature in range(x.shape[1])]
    return ShownSet(
        name=f"bag {name}",
        kind="features",
        places=principal_axes(standard),
        elements=describe_elements(x.double().numpy(), standard, names),
    )


def _logistic(train: Bags) -> nn.Module:
    """Logistic regression on the mean instance; C is selected by cross-validation on the training bags."""
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV
    except ImportError as error:
        raise ModuleNotFoundError(
            "logistic regression needs scikit-learn: pip install 'setwise[sklearn]'"
        ) from error
    import torch
    from torch import nn

    means = torch.stack([bag.x.mean(0) for bag in train])
    std, mean = torch.std_mean(means, dim=0)
    scale = sw.nn.Rescale(mean, std)  # the mean of standardised instances is the standardised mean
    head = nn.Linear(train.dim, 1)
    with torch.no_grad():
        x = scale(means).numpy()
        search = GridSearchCV(LogisticRegression(solver="newton-cg"), {"C": STRENGTHS}, cv=5)
        fitted = search.fit(x, train.labels.numpy()).best_estimator_
        head.weight.copy_(torch.from_numpy(fitted.coef_))
        head.bias.copy_(torch.from_numpy(fitted.intercept_))
    return sw.nn.PooledMIL(encoder=sw.nn.ElementEncoder(scale), pool=sw.nn.MeanPool(), head=head)


def _encoder(mean: Tensor, std: Tensor) -> sw.nn.ElementEncoder:
    """Standardised and clipped features, followed by fully connected layers with dropout 0.5."""
    from torch import nn

    layers: list[nn.Module] = [sw.nn.Rescale(mean, std), nn.Hardtanh(-5, 5)]
    for i, o in pairwise((len(mean), *WIDTHS)):
        layers += [sw.nn.Dense(i, o, activation="relu"), nn.Dropout(0.5)]
    return sw.nn.ElementEncoder(nn.Sequential(*layers))


def _dmps(mean: Tensor, std: Tensor, **parts: Any) -> sw.DMPS:
    """Encoder, one block with a 64 / 64 deep kernel, mean pooling."""
    parts = {"pool": "mean"} | parts
    encoder = _encoder(mean, std)
    return sw.DMPS.build(len(mean), 1, dim=WIDTHS[-1], hidden=HIDDEN, depth=1, encoder=encoder, **parts)


def _attentive(mean: Tensor, std: Tensor) -> sw.DMPS:
    """Ours: row-normalised kernel, and a head on mean and gated-attention pooling."""
    dim = WIDTHS[-1]
    graph = sw.LatentGraph(dim, HIDDEN, normalize=sw.functional.row_normalize)
    model = _dmps(
        mean, std, graph=graph, pool=sw.nn.JoinedPool(sw.nn.MeanPool(), sw.nn.GatedAttentionPool(dim))
    )
    model.head = sw.nn.Dense(2 * dim, 1, activation="identity")
    return model


def _pooled(mean: Tensor, std: Tensor, pool: Any) -> sw.nn.PooledMIL:
    """Encoder, and attention of width 64 or a plain pool."""
    encoder = _encoder(mean, std)
    return sw.nn.PooledMIL.build(len(mean), 1, dim=WIDTHS[-1], hidden=64, pool=pool, encoder=encoder)


ARCHITECTURES: Mapping[str, Callable[[Tensor, Tensor], nn.Module]] = {
    "mean": lambda mean, std: _pooled(mean, std, "mean"),
    "max": lambda mean, std: _pooled(mean, std, "max"),
    "attention": lambda mean, std: _pooled(mean, std, "attention"),
    "gated-attention": lambda mean, std: _pooled(mean, std, "gated"),
    "v-dmps": lambda mean, std: _dmps(mean, std, block="message-passing"),
    "r-dmps": lambda mean, std: _dmps(mean, std, block="residual"),
    "d-dmps-fdc": lambda mean, std: _dmps(mean, std, block="denoising", gamma=0.5),
    "d-dmps-ldc": lambda mean, std: _dmps(mean, std, block="denoising"),
    "attentive": _attentive,
}


def _table(experiment: type[MIL], results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """One row per model and budget, one column per data set, followed by published results."""
    order = list(experiment.ROWS)
    groups: dict[tuple[int, int, str], list[Mapping[str, Any]]] = {}
    for r in results:
        key = (order.index(r["row"]), r["budget"]["steps"], settings(r, experiment))
        groups.setdefault(key, []).append(r)
    headings = ["Row", *NAMES, "Mean of five", "Mean of six", "AUC of six", "Batches", "Minutes", "Seeds"]
    lines = []
    for (place, steps, _), group in sorted(groups.items()):
        on = {name: [r for r in group if r["bags"] == name] for name in NAMES}
        seeds = sorted({len(runs) for runs in on.values() if runs})
        lines.append([
            experiment.ROWS[order[place]],
            *(_format_accuracy(values(on[name], "accuracy")) for name in NAMES),
            *(_format_mean([values(on[name], "accuracy") for name in names]) for names in (FIVE, NAMES)),
            _format_mean([values(on[name], "auc") for name in NAMES]),
            f"{steps:,}" if steps else "—",
            f"{sum(r['budget']['seconds'] for r in group) / 60 / len({r['seed'] for r in group}):.1f}",
            f"{'–'.join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))} × {len(group[0]['folds'])} folds",
        ])  # fmt: skip
    for label, published in PUBLISHED.items():
        cells = [f"{published[name]:.3f}" if name in published else "—" for name in NAMES]
        means = [
            f"{fmean(published[name] for name in names):.3f}" if set(names) <= set(published) else "—"
            for names in (FIVE, NAMES)
        ]
        lines.append([label, *cells, *means, "—", "—", "—", "—"])
    return headings, lines


def _format_accuracy(scores: Sequence[float]) -> str:
    return f"{fmean(scores):.3f} ± {standard_error(scores):.3f}" if scores else "—"


def _format_mean(sets: Sequence[Sequence[float]]) -> str:
    """Mean over data sets ± its propagated standard error."""
    if not all(sets):
        return "—"
    error = sum(standard_error(scores) ** 2 for scores in sets) ** 0.5 / len(sets)
    return f"{fmean(fmean(scores) for scores in sets):.3f} ± {error:.3f}"


def _figure(experiment: type[MIL], results: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy of each row on each data set, with standard errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    axes = figure.subplots(2, 3, sharey=True)
    rows = [row for row in experiment.ROWS if any(r["row"] == row for r in results)]
    most = {row: max(r["budget"]["steps"] for r in results if r["row"] == row) for row in rows}
    results = [r for r in results if r["budget"]["steps"] == most[r["row"]]]
    for name, ax in zip(NAMES, axes.flat, strict=True):
        for place, row in enumerate(rows):
            scores = values([r for r in results if r["row"] == row and r["bags"] == name], "accuracy")
            if scores:
                color = "C1" if "dmps" in row or row in ("attentive", "estimator") else "C0"
                ax.errorbar(
                    fmean(scores), place, xerr=standard_error(scores), fmt="o", color=color, capsize=3
                )
        if name in PUBLISHED[REFERENCE]:
            ax.axvline(PUBLISHED[REFERENCE][name], color="0.5", linestyle=":", linewidth=1)
        ax.set_title(name, fontsize=10)
        ax.grid(axis="x", alpha=0.3)
    axes[0, 0].set_yticks(range(len(rows)), [experiment.ROWS[row] for row in rows])
    axes[0, 0].invert_yaxis()
    figure.supxlabel(f"test accuracy ± standard error over folds (dotted: {REFERENCE})", fontsize=9)
    return figure
