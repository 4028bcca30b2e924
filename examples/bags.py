"""Bags of instances: one label for all, and a map of the instances that made the difference.

Pictures are made on the spot, each in a tint and a grain of its own. Half of them have a small spot of
coarser grain, and the only thing told is whether there is one. A picture becomes a bag of patches, a patch
becomes six numbers: mean and deviation of its colours. The table has the accuracy in each fold beside that of
logistic regression on the mean patch; the last line says how well heat maps find spots that nobody showed.

    python examples/bags.py --out heatmaps.png
    SETWISE_DATA=... python examples/bags.py --bags musk1      # a classic benchmark instead
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import setwise as sw
from setwise.experiments.data.mil import MIL_NAMES, load_mil
from setwise.inspection.plots import patch_heatmap

PATCH, PATCHES = 8, 10  # pixels of a patch, and patches a side
CORNERS = [(PATCH * x, PATCH * y) for y in range(PATCHES) for x in range(PATCHES)]


def picture(spotted: bool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A picture with or without a spot of coarser grain, and which of its patches are in it."""
    side = PATCH * PATCHES
    grain = rng.normal(size=(side, side, 1)) * np.ones(3)
    spot = np.zeros((PATCHES, PATCHES), dtype=bool)
    if spotted:
        x, y = rng.integers(0, PATCHES - 2, size=2)
        spot[y : y + 2, x : x + 3] = True
        grain[spot.repeat(PATCH, 0).repeat(PATCH, 1)] *= 1.7
    tint = rng.uniform(0.4, 0.7, size=3)
    return np.clip(tint + rng.uniform(0.04, 0.08) * grain, 0, 1), spot.ravel()


def patches(image: np.ndarray) -> np.ndarray:
    """The patches of a picture as instances: mean and deviation of each colour."""
    cut = np.stack([image[y : y + PATCH, x : x + PATCH].reshape(-1, 3) for x, y in CORNERS])
    return np.hstack([cut.mean(1), cut.std(1)])


def tested(X: list[np.ndarray], y: np.ndarray, epochs: int) -> tuple[Table, sw.SetClassifier, np.ndarray]:
    """Five folds; the model of the last one, and the bags that it has not seen."""
    table = Table("fold", "accuracy", "AUC", "mean instance + logistic regression", title="Tested in folds")
    means = np.stack([x.mean(0) for x in X])
    floor = make_pipeline(StandardScaler(), LogisticRegression())
    rows = []
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    for train, test in track(list(folds.split(means, y)), description="folds", console=Console(stderr=True)):
        clf = sw.SetClassifier(  # gated attention says where it looks
            pool="gated", block="residual", max_epochs=epochs, lr=3e-3, random_state=0
        )
        clf.fit([X[i] for i in train], y[train])
        unseen = [X[i] for i in test]
        auc = roc_auc_score(y[test], clf.predict_proba(unseen)[:, 1])
        plain = floor.fit(means[train], y[train]).score(means[test], y[test])
        rows.append((clf.score(unseen, y[test]), auc, plain))
    for name, row in [*enumerate(rows, 1), ("mean", np.mean(rows, axis=0))]:
        table.add_row(str(name), *(f"{value:.3f}" for value in row))
    return table, clf, test


def draw_heatmaps(path: Path, images: list[np.ndarray], importance: list[np.ndarray]) -> None:
    """Pictures above, the importance of their patches below."""
    figure = Figure(figsize=(2.4 * len(images), 5), layout="constrained")
    axes = figure.subplots(2, len(images), squeeze=False)
    for above, below, image, counts in zip(*axes, images, importance, strict=True):
        above.imshow(image)
        above.set_axis_off()
        patch_heatmap(image, CORNERS, counts, size=PATCH, ax=below)
    figure.suptitle("Pictures with a spot, and how much each patch counts")
    figure.savefig(path, dpi=120)


def draw_graphs(path: Path, clf: sw.SetClassifier, bags: list[np.ndarray]) -> None:
    """The latent graph of some bags, its nodes coloured by importance."""
    figure = Figure(figsize=(3 * len(bags), 3.2), layout="constrained")
    for ax, bag in zip(figure.subplots(1, len(bags)), bags, strict=True):
        clf.latent_graph(bag).plot(ax, values=clf.element_importance(bag))
    figure.suptitle("Bags never seen: latent graphs, and how much each instance counts")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Make or read bags, test, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=30, help="passes over the bags (default: %(default)s)")
    parser.add_argument("--sets", type=int, default=120, help="pictures to make (default: %(default)s)")
    parser.add_argument(
        "--bags", choices=["made", *MIL_NAMES], default="made", help="which bags to learn from"
    )
    parser.add_argument("--out", type=Path, default=Path("bags.png"), help="picture (default: %(default)s)")
    options = parser.parse_args()
    if options.sets < 20:
        parser.error(f"--sets must be at least 20, got {options.sets}")
    options.out.parent.mkdir(parents=True, exist_ok=True)

    if options.bags != "made":
        known = load_mil(options.bags)
        X, y = [bag.x.numpy() for bag in known], known.labels.numpy()
        table, clf, test = tested(X, y, options.epochs)
        Console().print(table)
        draw_graphs(options.out, clf, sorted((X[i] for i in test), key=len)[-4:])
    else:
        rng = np.random.default_rng(0)
        y = np.arange(options.sets) % 2
        images, spots = zip(*(picture(bool(spotted), rng) for spotted in y), strict=True)
        X = [patches(image) for image in images]
        table, clf, test = tested(X, y, options.epochs)
        Console().print(table)
        shown = [i for i in test if y[i]]
        importance = [clf.element_importance(X[i], output=1) for i in shown]
        found = np.mean(
            [roc_auc_score(spots[i], counts) for i, counts in zip(shown, importance, strict=True)]
        )
        print(f"patches of the spot count more than others in {found:.1%} of all pairs")
        draw_heatmaps(options.out, [images[i] for i in shown[:4]], importance[:4])
    print(options.out)


if __name__ == "__main__":
    main()
