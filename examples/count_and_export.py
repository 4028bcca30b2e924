"""Count groups of points, export the model to ONNX, and run it in onnxruntime without torch.

Each set has points in the plane in one to six groups; the target is the number of groups. Two estimators
learn it by Poisson regression: one with the default network, and one with a custom network (`network=`) in
which similar elements count as one. The second is exported to ONNX and run on sets much larger than those in
training.

    python examples/count_and_export.py --out counting.png
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from onnxruntime import InferenceSession
from rich.console import Console
from rich.table import Table

import setwise as sw
from setwise.inspection.plots import kernel_heatmap


def distinct(in_dim: int, out_dim: int) -> sw.DMPS:
    """Network for `network=`: m similar elements count as one."""
    return sw.DistinctDMPS.build(in_dim, out_dim, dim=32, hidden=(32, 32), depth=1, pool="sum")


def groups(
    sets: int, seed: int, *, smallest: int = 8, largest: int = 16
) -> tuple[list[np.ndarray], np.ndarray]:
    """Sets of points around one to six separated centres, and the number of centres."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 7, size=sets)
    X = []
    for count in counts:
        cells = rng.choice(16, size=count, replace=False)
        centres = np.stack([cells % 4, cells // 4], axis=1) + rng.uniform(-0.2, 0.2, size=(count, 2))
        others = rng.integers(0, count, size=rng.integers(smallest, largest + 1) - count)
        member = np.concatenate([np.arange(count), others])  # no group is empty
        X.append(centres[member] + 0.04 * rng.normal(size=(len(member), 2)))
    return X, counts.astype(float)


def pad(X: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs of an exported model; the values in the padding do not matter."""
    mask = np.arange(max(map(len, X))) < np.array([[len(x)] for x in X])
    elements = np.full((*mask.shape, X[0].shape[1]), np.nan, dtype=np.float32)
    elements[mask] = np.concatenate(X)
    return {"x": elements, "mask": mask}


def draw(path: Path, truth: np.ndarray, predictions: dict[str, np.ndarray], K: np.ndarray) -> None:
    """Draw predictions against the true counts, and the kernel of one set."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    jitter = np.random.default_rng(0).uniform(-0.15, 0.15, size=len(truth))
    for name, mean in predictions.items():
        left.plot(truth + jitter, mean, ".", label=name, alpha=0.7)
    left.plot([1, 6], [1, 6], color="0.6", linewidth=1, zorder=0)
    left.set(xlabel="true count", ylabel="predicted mean λ", title="Test sets")
    left.legend(frameon=False)
    kernel_heatmap(K, ax=right)
    right.set_title("Kernel of a set with four groups (distinct model)")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train, compare, export, and compare again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=30, help="training epochs (default: %(default)s)")
    parser.add_argument(
        "--sets", type=int, default=400, help="number of training sets (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("counting.png"), help="figure file; the model is saved next to it"
    )
    options = parser.parse_args()
    if options.sets < 20:
        parser.error(f"--sets must be at least 20, got {options.sets}")
    options.out.parent.mkdir(parents=True, exist_ok=True)

    X, y = groups(options.sets, seed=0)
    tests = {
        "8 to 16 points": groups(200, seed=1),
        "100 to 200 points": groups(100, seed=2, smallest=100, largest=200),
    }
    settings = {
        "loss": "poisson",
        "lr": 0.01,
        "max_epochs": options.epochs,
        "random_state": 0,
        "verbose": True,
    }
    plain = sw.SetRegressor(pool="mean+max", **settings).fit(X, y)
    best = sw.SetRegressor(network=distinct, **settings).fit(X, y)
    file = sw.to_onnx(best.module_, options.out.with_suffix(".onnx"), in_dim=2)
    session = InferenceSession(file)

    def exported(sets: list[np.ndarray]) -> np.ndarray:
        out: np.ndarray = session.run(["out"], pad(sets))[0]
        return np.asarray(np.exp(out[:, 0]))  # the output is the logarithm of the mean count

    counters: dict[str, Callable[[list[np.ndarray]], np.ndarray]] = {
        "mean and max": plain.predict,
        "distinct": best.predict,
        "distinct, ONNX": exported,
    }
    table = Table("model", title="Accuracy, and mean absolute error")
    predictions: dict[tuple[str, str], np.ndarray] = {}
    for size in tests:
        table.add_column(size)
    for name, count in counters.items():
        cells = []
        for size, (sets, truth) in tests.items():
            mean = predictions[name, size] = count(sets)
            cells.append(f"{np.mean(mean.round() == truth):.1%}  {np.abs(mean - truth).mean():.3f}")
        table.add_row(name, *cells)
    Console().print(table)
    size = "8 to 16 points"
    difference = np.abs(predictions["distinct", size] - predictions["distinct, ONNX", size]).max()
    print(f"onnxruntime and torch differ by at most {difference:.1e}")

    sets, truth = tests[size]
    four = max((x for x, count in zip(sets, truth, strict=True) if count == 4), key=len)
    graph = best.latent_graph(four)
    assert graph.kernel is not None
    order = np.argsort(graph.clusters(), kind="stable")
    compared = {name: predictions[name, size] for name in ("mean and max", "distinct")}
    draw(options.out, truth, compared, graph.kernel[np.ix_(order, order)])
    print(file, options.out, sep="\n")


if __name__ == "__main__":
    main()
