"""Over-smoothing: does a smaller p smooth less? Deep p-norm denoising blocks on ModelNet40.

The paper ends with this question. Its energy is quadratic, p = 2, and many blocks reduce it until all
elements are alike. Only p varies here: a narrow model, γ = 1/2 in every block, two to sixteen blocks.
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
    """Accuracy and over-smoothing against the number of blocks, for several powers p of the energy."""

    depth: int = 8
    """Number of blocks."""
    training: Training = field(
        default_factory=lambda: Training(steps=831, lr=1e-3, schedule="cosine", evaluations=3)
    )
    """Training configuration; the default is three epochs."""

    name: ClassVar[str] = "smoothing"
    varied: ClassVar[str] = "depth"
    ROWS: ClassVar[Mapping[str, str]] = {
        "p-1": "p = 1 (ours)",
        "p-1.5": "p = 1.5 (ours)",
        "p-2": "p = 2 (D-DMPS w/ FDC)",
    }
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]] = dict.fromkeys(ROWS)
    COLUMNS: ClassVar[Mapping[str, str]] = {"roughness_left": "Final roughness"}

    def __post_init__(self) -> None:
        """Validate the fields."""
        super().__post_init__()
        if self.depth < 1:
            raise ValueError(f"depth must be at least 1, got {self.depth}")
        if self.start_points is not None:
            raise ValueError(
                f"start_points is only valid for pointcloud, got {self.start_points} with smoothing"
            )

    @classmethod
    def paper(cls, row: str, value: Any) -> None:
        """The paper reports no numbers."""

    def model(self, row: str, seed: int) -> sw.DMPS:
        """Narrow D-DMPS whose blocks use this p and share one fixed γ."""
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
        self._initialized(model, seed)
        return model

    def test(self, model: nn.Module, seed: int) -> dict[str, Any]:
        """Accuracy, and the roughness of the features after each block, trained and untrained."""
        assert isinstance(model, sw.DMPS)
        scores = super().test(model, seed)
        del scores["examples"]
        row = next(row for row, p in POWERS.items() if model.blocks[0].p == p)
        return scores | {"roughness_untrained": self._graph_scores(self.model(row, seed))["roughness"]}

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """Accuracy and final roughness of the features against depth."""
        return {"smoothing": _figure(results)}


def _figure(results: Sequence[Mapping[str, Any]]) -> Figure:
    """One line per p at the largest budget; dashed for untrained models."""
    from matplotlib.figure import Figure

    from setwise.inspection.plots import accuracy_curve

    steps = max(r["budget"]["steps"] for r in results)
    results = [r for r in results if r["budget"]["steps"] == steps]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (row, label) in enumerate(Smoothing.ROWS.items()):
        runs = [r for r in results if r["row"] == row]
        if not runs:
            continue
        solid, dashed = f"C{number}o-", f"C{number}o--"
        accuracy_curve([(r["depth"], r["accuracy"]) for r in runs], ax=left, label=label, style=solid)
        trained, untrained = (
            [(r["depth"], r[key][-1]) for r in runs] for key in ("roughness", "roughness_untrained")
        )
        accuracy_curve(trained, ax=right, label=label, style=solid)
        accuracy_curve(untrained, ax=right, label=f"{label}, untrained", style=dashed)
    depths = sorted({r["depth"] for r in results})
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xticks(depths, [str(depth) for depth in depths])
        ax.set_xticks([], minor=True)
        ax.legend(frameon=False, fontsize="small")
    left.set(xlabel="number of blocks", ylabel="test accuracy")
    left.set_title(f"{results[0]['config']['points']} points, {steps:,} batches per run")
    right.set(xlabel="number of blocks", ylabel="Dirichlet energy / squared norm", yscale="log")
    right.set_title("Over-smoothing: roughness after the last block")
    return figure
