"""Classifying Gaussian sets: does the latent graph find the correlated pair?

The paper's first experiment (section 5.1, figure 2, and the appendix): five scalars from N(0, I) or from
N(0, Σ) with correlation ρ between the second and the fourth; FL(1, 32), three message passing layers with
a 64 / 128 deep kernel, max pooling, FL(32, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import setwise as sw
from setwise.experiments.base import ExampleSet, Experiment, random_indices
from setwise.training.config import Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Generator, Tensor, nn

    from setwise.inspection.explorer.content import ShownSet
    from setwise.training.loop import Batch, Batches


HALF_BATCH = 64
TEST_BATCH = 10_000


@dataclass(frozen=True)
class Gaussian(Experiment):
    """Classify sets of five numbers by whether two of them are correlated."""

    rho: float = 0.95
    """Correlation of the second and fourth element in class 1."""
    test_sets: int = 200_000
    """Number of test sets, half of them in each class."""
    training: Training = field(
        default_factory=lambda: Training(
            steps=30_000, lr=1e-3, schedule="plateau", plateau_factor=0.9, plateau_patience=1
        )
    )
    """Training configuration of each row; 120,000 batches in the paper."""
    threads: int | None = 1
    """CPU threads; the model is too small to benefit from more than one."""

    name: ClassVar[str] = "gaussian"
    varied: ClassVar[str] = "rho"
    ROWS: ClassVar[Mapping[str, str]] = {"deepsets": "DeepSets (W = I)", "v-dmps": "V-DMPS"}
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]] = {"deepsets": None, "v-dmps": None}
    COLUMNS: ClassVar[Mapping[str, str]] = {
        "bayes_accuracy": "Bayes limit",
        "kernel_contrast": "Kernel contrast",
        "kernel_contrast_untrained": "Untrained",
        "kernel_contrast_rbf": "Plain RBF",
    }

    def __post_init__(self) -> None:
        """Validate the fields."""
        super().__post_init__()
        if not 0 <= self.rho < 1:
            raise ValueError(f"rho must be at least 0 and below 1, got {self.rho}")
        if self.test_sets < 2 or self.test_sets % 2:
            raise ValueError(f"test_sets must be a positive even number, got {self.test_sets}")

    @property
    def data(self) -> str:
        """Name of the data set that is used."""
        return "synthetic: fresh draws from N(0, I) and N(0, Σ)"

    def task(self, row: str) -> sw.Binary:
        """N(0, I) against N(0, Σ)."""
        return sw.Binary()

    def model(self, row: str, seed: int) -> sw.DMPS:
        """The appendix's architecture; DeepSets is the same without message passing."""
        model = sw.DMPS.build(
            in_dim=1,
            out_dim=1,
            dim=32,
            depth=3,
            block="message-passing",
            graph={"v-dmps": sw.LatentGraph(32, (64, 128)), "deepsets": sw.nn.IdentityGraph()}[row],
            pool="max",
            activation="relu",
        )
        sw.nn.initialize(model, sw.training.generator("weights", seed))
        first, _ = self.batches(seed)(1)
        return model.initialize_bandwidth(first.x)

    def batches(self, seed: int) -> Batches:
        """64 new sets of each class per batch."""
        return lambda step: self._sample(2 * HALF_BATCH, "train", seed, step)

    def validation(self, seed: int) -> list[Batch]:
        """20,000 validation sets."""
        return [self._sample(TEST_BATCH, "validation", seed, i) for i in range(2)]

    def test(self, model: nn.Module, seed: int) -> dict[str, Any]:
        """Accuracy, Bayes limit of invariant classifiers, and the mean kernel matrix of each class."""
        import torch

        from setwise.experiments.data.gaussian import bayes_logits
        from setwise.training.loop import outputs

        sizes = [min(TEST_BATCH, self.test_sets - i) for i in range(0, self.test_sets, TEST_BATCH)]
        batches = [self._sample(size, "test", i) for i, size in enumerate(sizes)]
        out, y = outputs(model, batches)
        best = torch.cat([bayes_logits(batch.elements, self.rho) for batch, _ in batches])
        scores: dict[str, Any] = dict(sw.Binary().score(out, y))
        scores["bayes_accuracy"] = sw.Binary().score(best, y)["accuracy"]
        if isinstance(model, sw.DMPS) and isinstance(model.graph, sw.LatentGraph):
            scores |= _kernel_scores(_mean_kernels(_deep_kernel(model), batches))
            untrained = self.model("v-dmps", seed)
            for name, kernel in (("untrained", _deep_kernel(untrained)), ("rbf", _plain_kernel(batches))):
                other = _kernel_scores(_mean_kernels(kernel, batches))
                scores[f"kernel_contrast_{name}"] = other["kernel_contrast"]
        return scores

    @property
    def classes(self) -> tuple[str, str]:
        """Distributions of the two classes."""
        return "N(0, I)", "N(0, Σ)"

    def example_sets(self, seed: int, count: int, generator: Generator) -> list[ExampleSet]:
        """Test sets, drawn by the values of their elements."""
        batch, y = self._sample(min(TEST_BATCH, self.test_sets), "test", 0)
        return [
            ExampleSet(batch.elements[i], int(y[i]), partial(_shown_set, i, batch.elements[i], int(y[i])))
            for i in random_indices(len(y), count, generator)
        ]

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """Figure 2: mean kernel matrix of each class, and accuracy against ρ with the Bayes limit."""
        figures = {"gaussian-accuracy": _accuracy_figure(results, cls.ROWS)}
        if with_kernel := [r for r in results if "kernel" in r]:
            figures["gaussian-kernel"] = _kernel_figure(with_kernel)
        return figures

    def _sample(self, sets: int, *purpose: str | int) -> Batch:
        from setwise.experiments.data.gaussian import sample

        x, y = sample(sets, self.rho, sw.training.generator("gaussian", *purpose))
        return sw.SetBatch(x), y


def _shown_set(i: int, x: Tensor, y: int) -> ShownSet:
    """Five points on a line, placed by value; the colour marks the correlated pair."""
    from setwise.experiments.data.gaussian import PAIR, SIZE
    from setwise.inspection.explorer.content import ShownSet
    from setwise.inspection.explorer.layout import line

    values = x.squeeze(-1).numpy().astype(float)
    groups = ["correlated" if y and element in PAIR else "independent" for element in range(SIZE)]
    return ShownSet(
        name=f"set {i}",
        kind="features",
        places=line(values),
        elements=tuple(
            f"{value:.2f}, {group}".replace("-", "−") for group, value in zip(groups, values, strict=True)
        ),
        groups=tuple(groups),
    )


def _deep_kernel(model: sw.DMPS) -> Callable[[Tensor], Tensor]:
    """Learned kernel matrix as a function of raw sets."""
    graph = model.graph
    assert isinstance(graph, sw.LatentGraph)
    return lambda x: graph.similarity(model.encoder(x.to(graph.kernel.log_sigma)))


def _plain_kernel(batches: Sequence[Batch]) -> Callable[[Tensor], Tensor]:
    """Gaussian kernel of the raw values with σ at their median distance: a baseline without learning."""
    from setwise.functional import median_distance

    sigma = median_distance(batches[0][0].elements)
    return lambda x: sw.functional.rbf_kernel(x, sigma)


def _mean_kernels(kernel: Callable[[Tensor], Tensor], batches: Sequence[Batch]) -> Tensor:
    """Mean kernel matrix of each class, N(0, I) first."""
    import torch

    from setwise.experiments.data.gaussian import SIZE

    sums = torch.zeros(2, SIZE, SIZE, dtype=torch.double)
    with torch.no_grad():
        for batch, y in batches:
            sums.index_add_(0, y, kernel(batch.elements).double().cpu())
    return sums / sum((y == 1).sum() for _, y in batches)


def _kernel_scores(means: Tensor) -> dict[str, Any]:
    """Mean kernel matrices, and the kernel at the correlated pair relative to the mean of other pairs."""
    import torch

    from setwise.experiments.data.gaussian import PAIR, SIZE

    independent, correlated = means
    rest = ~torch.eye(SIZE, dtype=torch.bool)
    rest[PAIR] = rest[PAIR[::-1]] = False
    return {
        "kernel": {"correlated": correlated.tolist(), "independent": independent.tolist()},
        "kernel_contrast": (correlated[PAIR] / correlated[rest].mean()).item(),
        "kernel_contrast_independent": (independent[PAIR] / independent[rest].mean()).item(),
    }


def _kernel_figure(results: Sequence[Mapping[str, Any]]) -> Figure:
    """Figures 2a and 2b, at the recorded ρ closest to the paper's 0.95, with the largest budget."""
    from matplotlib.figure import Figure

    from setwise.inspection.plots import kernel_heatmap

    rho = min((r["rho"] for r in results), key=lambda rho: abs(rho - 0.95))
    steps = max(r["budget"]["steps"] for r in results if r["rho"] == rho)
    kernels = [r["kernel"] for r in results if (r["rho"], r["budget"]["steps"]) == (rho, steps)]
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    for ax, name, title in zip(
        figure.subplots(1, 2), ("correlated", "independent"), ("N(0, Σ)", "N(0, I)"), strict=True
    ):
        rows = zip(*(kernel[name] for kernel in kernels), strict=True)
        mean = [[fmean(cell) for cell in zip(*row, strict=True)] for row in rows]
        image = kernel_heatmap(mean, ax=ax).images[0]
        ax.set_title(title)
    figure.colorbar(image, ax=figure.axes, label="mean kernel K", shrink=0.8)
    runs = f"{len(kernels)} run{'s' if len(kernels) > 1 else ''} of {steps:,} batches"
    figure.suptitle(f"Mean learned kernel, ρ = {rho:g} ({runs})")
    return figure


def _accuracy_figure(results: Sequence[Mapping[str, Any]], rows: Mapping[str, str]) -> Figure:
    """Figure 2c at the budget with the most values of ρ, with the Bayes limit of invariant classifiers."""
    from matplotlib.figure import Figure

    from setwise.experiments.data.gaussian import bayes_accuracy
    from setwise.inspection.plots import accuracy_curve

    values: dict[int, set[float]] = {}
    for r in results:
        values.setdefault(r["budget"]["steps"], set()).add(r["rho"])
    steps = max(values, key=lambda steps: (len(values[steps]), steps))
    results = [r for r in results if r["budget"]["steps"] == steps]
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    grid = [i / 40 for i in range(40)] + [0.985, 0.99]
    limit = [(rho, bayes_accuracy(rho)) for rho in grid if rho <= max(r["rho"] for r in results)]
    accuracy_curve(limit, ax=ax, label="Bayes limit of invariant classifiers", style="k--")
    for row, label in rows.items():
        if points := [(r["rho"], r["accuracy"]) for r in results if r["row"] == row]:
            accuracy_curve(points, ax=ax, label=label, style="o-")
    ax.axhline(0.5, color="0.7", linewidth=1, label="chance")
    ax.set(xlabel="correlation ρ", ylabel="test accuracy")
    ax.set_title(f"Gaussian sets, {steps:,} batches per run")
    ax.legend(frameon=False)
    return figure
