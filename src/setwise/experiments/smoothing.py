"""Does a smaller p smooth less? Deep denoising blocks that descend a p-norm, on the shapes of ModelNet40.

The paper ends with this question: its energy is the square, p = 2, which many blocks wear down until all
elements are alike. Here nothing but p differs: a narrow model, γ = 1/2 in every block, two to sixteen blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import setwise as sw
from setwise.experiments import pointcloud
from setwise.experiments.pointcloud import PointCloud
from setwise.training.config import Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn


DIM, HIDDEN = 64, (64, 64)
GAMMA = 0.5
POWERS = {"p-1": 1.0, "p-1.5": 1.5, "p-2": 2.0}


@dataclass(frozen=True)
class Smoothing(PointCloud):
    """Accuracy and over-smoothing against the number of blocks, by the power p of their energy."""

    depth: int = 8
    """Blocks of the model."""
    training: Training = field(
        default_factory=lambda: Training(steps=831, lr=1e-3, schedule="cosine", evaluations=3)
    )
    """How each depth is trained: by default on every shape three times."""

    name: ClassVar[str] = "smoothing"
    varied: ClassVar[str] = "depth"
    ROWS: ClassVar[Mapping[str, str]] = {
        "p-1": "p = 1 (ours)",
        "p-1.5": "p = 1.5 (ours)",
        "p-2": "p = 2 (D-DMPS w/ FDC)",
    }
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]] = dict.fromkeys(ROWS)
    COLUMNS: ClassVar[Mapping[str, str]] = {"roughness_left": "Roughness left"}

    def __post_init__(self) -> None:
        """Refuse absurd values."""
        super().__post_init__()
        if self.depth < 1:
            raise ValueError(f"depth must be at least 1, got {self.depth}")
        if self.start_points is not None:
            raise ValueError(f"start_points belongs to pointcloud, got {self.start_points} with smoothing")

    @classmethod
    def paper(cls, row: str, value: Any) -> None:
        """The paper has not tried it."""

    def model(self, row: str, seed: int) -> sw.DMPS:
        """A narrow D-DMPS whose blocks have this p; γ is the same for all, and fixed."""
        p, gamma = POWERS[row], sw.nn.Gamma(GAMMA, learn=False)
        model = sw.DMPS.build(
            3,
            len(pointcloud._shapes().test.classes),
            dim=DIM,
            hidden=HIDDEN,
            depth=self.depth,
            block=lambda: sw.nn.PNormBlock(DIM, p=p, gamma=gamma, activation="tanh"),
            pool="max",
            activation="tanh",
        )
        self._started(model, seed)
        return model

    def test(self, model: nn.Module, seed: int) -> dict[str, Any]:
        """Accuracy, and how rough the features are after each block: trained, and before any training."""
        assert isinstance(model, sw.DMPS)
        scores = super().test(model, seed)
        del scores["examples"]
        row = next(row for row, p in POWERS.items() if model.blocks[0].p == p)
        return scores | {"roughness_untrained": self._inside(self.model(row, seed))["roughness"]}

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """Accuracy, and what is left of the roughness of the features, against depth."""
        return {"smoothing": _figure(results)}


def _figure(results: Sequence[Mapping[str, Any]]) -> Figure:
    """A line for each p at the largest budget; dashed where the model has not been trained."""
    from matplotlib.figure import Figure

    from setwise.inspection.plots import accuracy_curve

    steps = max(r["budget"]["steps"] for r in results)
    results = [r for r in results if r["budget"]["steps"] == steps]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (row, label) in enumerate(Smoothing.ROWS.items()):
        mine = [r for r in results if r["row"] == row]
        if not mine:
            continue
        solid, dashed = f"C{number}o-", f"C{number}o--"
        accuracy_curve([(r["depth"], r["accuracy"]) for r in mine], ax=left, label=label, style=solid)
        trained, untrained = (
            [(r["depth"], r[key][-1]) for r in mine] for key in ("roughness", "roughness_untrained")
        )
        accuracy_curve(trained, ax=right, label=label, style=solid)
        accuracy_curve(untrained, ax=right, label=f"{label}, untrained", style=dashed)
    depths = sorted({r["depth"] for r in results})
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xticks(depths, [str(depth) for depth in depths])
        ax.set_xticks([], minor=True)
        ax.legend(frameon=False, fontsize="small")
    left.set(xlabel="blocks", ylabel="test accuracy")
    left.set_title(f"{results[0]['config']['points']} points, {steps:,} batches a run")
    right.set(xlabel="blocks", ylabel="Dirichlet energy / squared length", yscale="log")
    right.set_title("Over-smoothing: roughness after the last block")
    return figure
