"""How far W x by random features is from the exact one, against their number, on trained models.

Needs finished runs of the experiments (``setwise run …``) below ``--runs`` and takes the longest one of each
row. The error is ‖Ŵ x − W x‖ / ‖W x‖ over the elements of some validation or training sets, where x are the
features that a block of the exact model hears: the mean over blocks and seeds of the frequencies, and the
worst.
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
from setwise.training.loop import matched

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
        runs: where the finished runs are.
        draw: only draw the figure from the results on record.
    """

    runs: Path = Path("runs")
    draw: bool = False


def trained(runs: Path) -> Iterator[tuple[str, sw.DMPS, sw.SetBatch]]:
    """The label, model and some sets of the longest finished run of each row."""
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
            batch, _ = matched(next(iter(trial.validation(seed) or [trial.batches(seed)(1)])), model.eval())
            n = batch.x.shape[1]
            yield f"{name}, {experiment.ROWS[row]}, n = {n}", model, batch


@torch.no_grad()
def errors(model: sw.DMPS, batch: sw.SetBatch, features: int) -> list[float]:
    """The error of each block's W x for each seed."""
    x: Tensor = model.encoder(batch.x, batch.mask)[:SETS]
    mask = None if batch.mask is None else batch.mask[:SETS]
    assert isinstance(model.graph, sw.LatentGraph)
    exact = model.graph(x, mask)
    found = []
    for seed in range(SEEDS):
        graph = sw.nn.RandomFeatureGraph(model.graph.kernel, features=features, seed=seed)
        W, features_of = graph(x, mask), x
        for block in model.blocks:
            heard = exact @ features_of
            found.append(((W @ features_of - heard).norm() / heard.norm()).item())
            features_of = block(features_of, exact)
    return found


def figure(result: dict[str, Any]) -> "Figure":
    """A line a model, and the slope that chance alone would have."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(8.5, 4.6), layout="constrained")
    ax = drawn.subplots()
    for number, (label, found) in enumerate(result["models"].items()):
        counts = [int(count) for count in found]
        mean = [entry["mean"] for entry in found.values()]
        ax.plot(counts, mean, "os^D"[number // 3 % 4] + "-", label=label, markersize=4)
    ax.plot(FEATURES, [0.4 * f**-0.5 for f in FEATURES], "k:", label="slope of 1 / √features")
    ax.axhline(0.03, color="grey", linewidth=0.8)
    ax.set(xscale="log", yscale="log", xlabel="random features", ylabel="relative error of W X")
    ax.set_xticks(FEATURES, [str(f) for f in FEATURES])
    ax.set_xticks([], minor=True)
    ax.set_title("Random features against the exact graph of trained models (grey: 3 %)", fontsize=10)
    ax.legend(frameon=False, fontsize=8, bbox_to_anchor=(1.01, 1), loc="upper left")
    return drawn


def main(options: FeatureError) -> None:
    if not options.draw:
        models = {}
        for label, model, batch in trained(options.runs):
            found = {f: errors(model, batch, f) for f in FEATURES}
            models[label] = {str(f): {"mean": fmean(e), "worst": max(e)} for f, e in found.items()}
        if not models:
            raise SystemExit(f"found no finished runs below {options.runs}: see 'setwise run --help'")
        record("feature_error", {"models": models, "seeds": SEEDS, "sets": SETS})
    path = FIGURES / "feature-error.png"
    figure(read_json(RESULTS / "feature_error.json")).savefig(path, dpi=150)
    print(path)


if __name__ == "__main__":
    main(tyro.cli(FeatureError))
