"""Error of W x by random features against the number of features, on trained models.

Requires finished runs of the experiments (``setwise run …``) in ``--runs`` and uses the longest one of each
row. The error is ‖Ŵ x − W x‖ / ‖W x‖ over the elements of validation or training sets, where x is the input
of a block of the exact model; reported are the mean and the maximum over blocks and frequency seeds.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import tyro
from torch import Tensor

import setwise as sw
from benchmarks.measure import RESULTS, record
from setwise._files import read_json
from setwise.experiments import EXPERIMENTS
from setwise.training.checkpoint import CHECKPOINT, load_checkpoint
from setwise.training.loop import to_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = ("v-dmps", "r-dmps", "d-dmps-ldc")
FEATURES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
SEEDS = 4
SETS = 16
FIGURES = Path(__file__).parent.parent / "docs" / "figures"


@dataclass(frozen=True)
class FeatureError:
    """Compare random features with the exact graphs of trained models.

    Args:
        runs: folder of the finished runs.
        draw: only draw the figure from the recorded results.
    """

    runs: Path = Path("runs")
    draw: bool = False


def trained(runs: Path) -> Iterator[tuple[str, sw.DMPS, sw.SetBatch]]:
    """Label, model and a batch of the longest finished run of each row."""
    for name in ("gaussian", "counting", "pointcloud", "histology"):
        experiment = EXPERIMENTS[name]
        for row in ROWS:
            finished = [p.parent for p in (runs / name / row).glob("*_seed-0/result.json")]
            if not finished:
                continue
            folder = max(finished, key=lambda p: int(re.findall(r"steps-(\d+)", p.name)[0]))
            value = folder.name.removeprefix(f"{experiment.varied}-").split("_")[0]
            trial = experiment().vary(value)
            part, seed = next(iter(trial.trials(0).items()))
            model = trial.model(row, seed)
            assert isinstance(model, sw.DMPS)
            model.load_state_dict(load_checkpoint(folder / part / CHECKPOINT)["model"])
            batch, _ = to_model(next(iter(trial.validation(seed) or [trial.batches(seed)(1)])), model.eval())
            n = batch.x.shape[1]
            yield f"{name}, {experiment.ROWS[row]}, n = {n}", model, batch


@torch.no_grad()
def relative_errors(model: sw.DMPS, batch: sw.SetBatch, features: int) -> list[float]:
    """Errors of W x for each block and seed."""
    x: Tensor = model.encoder(batch.x, batch.mask)[:SETS]
    mask = None if batch.mask is None else batch.mask[:SETS]
    assert isinstance(model.graph, sw.LatentGraph)
    exact = model.graph(x, mask)
    errors = []
    for seed in range(SEEDS):
        graph = sw.nn.RandomFeatureGraph(model.graph.kernel, features=features, seed=seed)
        W, z = graph(x, mask), x
        for block in model.blocks:
            messages = exact @ z
            errors.append(((W @ z - messages).norm() / messages.norm()).item())
            z = block(z, exact)
    return errors


def draw_figure(result: dict[str, Any]) -> "Figure":
    """One line per model, and the slope of Monte Carlo convergence."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    ax = figure.subplots()
    for number, (label, entries) in enumerate(result["models"].items()):
        counts = [int(count) for count in entries]
        mean = [entry["mean"] for entry in entries.values()]
        ax.plot(counts, mean, "os^D"[number // 3 % 4] + "-", label=label, markersize=4)
    ax.plot(FEATURES, [0.4 * f**-0.5 for f in FEATURES], "k:", label="∝ 1 / √features")
    ax.axhline(0.03, color="grey", linewidth=0.8)
    ax.set(xscale="log", yscale="log", xlabel="number of random features", ylabel="relative error of W X")
    ax.set_xticks(FEATURES, [str(f) for f in FEATURES])
    ax.set_xticks([], minor=True)
    ax.set_title("Random features against the exact graph of trained models (grey: 3 %)", fontsize=10)
    ax.legend(frameon=False, fontsize=8, bbox_to_anchor=(1.01, 1), loc="upper left")
    return figure


def main(options: FeatureError) -> None:
    if not options.draw:
        models = {}
        for label, model, batch in trained(options.runs):
            by_count = {f: relative_errors(model, batch, f) for f in FEATURES}
            models[label] = {str(f): {"mean": fmean(e), "worst": max(e)} for f, e in by_count.items()}
        if not models:
            raise SystemExit(f"no finished runs in {options.runs}: see 'setwise run --help'")
        record("feature_error", {"models": models, "seeds": SEEDS, "sets": SETS})
    path = FIGURES / "feature-error.png"
    draw_figure(read_json(RESULTS / "feature_error.json")).savefig(path, dpi=150)
    print(path)


if __name__ == "__main__":
    main(tyro.cli(FeatureError))
