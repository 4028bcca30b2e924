"""Classify bags of instances with one label per bag, and show which instances are important.

The bags are synthetic images with random tint and noise, cut into patches. Half of the images have a small
spot of stronger noise; the label only says whether there is one. A patch has six features, the mean and
standard deviation of each colour channel. The table shows the accuracy of each fold, and that of logistic
regression on the mean patch. The last line says how well the heat maps locate the spots, which were never
labelled.

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

PATCH, PATCHES = 8, 10  # side of a patch in pixels, and of an image in patches
CORNERS = [(PATCH * x, PATCH * y) for y in range(PATCHES) for x in range(PATCHES)]


def make_image(spotted: bool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Image with or without a spot of stronger noise, and a mask of the patches in the spot."""
    side = PATCH * PATCHES
    noise = rng.normal(size=(side, side, 1)) * np.ones(3)
    spot = np.zeros((PATCHES, PATCHES), dtype=bool)
    if spotted:
        x, y = rng.integers(0, PATCHES - 2, size=2)
        spot[y : y + 2, x : x + 3] = True
        noise[spot.repeat(PATCH, 0).repeat(PATCH, 1)] *= 1.7
    tint = rng.uniform(0.4, 0.7, size=3)
    return np.clip(tint + rng.uniform(0.04, 0.08) * noise, 0, 1), spot.ravel()


def patches(image: np.ndarray) -> np.ndarray:
    """Patches of an image as instances: mean and standard deviation of each colour channel."""
    pixels = np.stack([image[y : y + PATCH, x : x + PATCH].reshape(-1, 3) for x, y in CORNERS])
    return np.hstack([pixels.mean(1), pixels.std(1)])


def cross_validate(
    X: list[np.ndarray], y: np.ndarray, epochs: int
) -> tuple[Table, sw.SetClassifier, np.ndarray]:
    """Five-fold cross-validation; return the table, the last model, and the indices of its test bags."""
    table = Table("fold", "accuracy", "AUC", "mean instance + logistic regression", title="Cross-validation")
    means = np.stack([x.mean(0) for x in X])
    baseline = make_pipeline(StandardScaler(), LogisticRegression())
    rows = []
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    for train, test in track(list(folds.split(means, y)), description="folds", console=Console(stderr=True)):
        clf = sw.SetClassifier(  # the weights of gated attention are the importance of the instances
            pool="gated", block="residual", max_epochs=epochs, lr=3e-3, random_state=0
        )
        clf.fit([X[i] for i in train], y[train])
        X_test = [X[i] for i in test]
        auc = roc_auc_score(y[test], clf.predict_proba(X_test)[:, 1])
        baseline_accuracy = baseline.fit(means[train], y[train]).score(means[test], y[test])
        rows.append((clf.score(X_test, y[test]), auc, baseline_accuracy))
    for name, row in [*enumerate(rows, 1), ("mean", np.mean(rows, axis=0))]:
        table.add_row(str(name), *(f"{value:.3f}" for value in row))
    return table, clf, test


def draw_heatmaps(path: Path, images: list[np.ndarray], importance: list[np.ndarray]) -> None:
    """Draw images in the first row, and the importance of their patches in the second."""
    figure = Figure(figsize=(2.4 * len(images), 5), layout="constrained")
    axes = figure.subplots(2, len(images), squeeze=False)
    for above, below, image, weights in zip(*axes, images, importance, strict=True):
        above.imshow(image)
        above.set_axis_off()
        patch_heatmap(image, CORNERS, weights, size=PATCH, ax=below)
    figure.suptitle("Images with a spot, and the importance of their patches")
    figure.savefig(path, dpi=120)


def draw_graphs(path: Path, clf: sw.SetClassifier, bags: list[np.ndarray]) -> None:
    """Draw the latent graphs of bags; colour shows the importance of an instance."""
    figure = Figure(figsize=(3 * len(bags), 3.2), layout="constrained")
    for ax, bag in zip(figure.subplots(1, len(bags)), bags, strict=True):
        clf.latent_graph(bag).plot(ax, values=clf.element_importance(bag))
    figure.suptitle("Latent graphs of test bags, coloured by importance")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Create or load bags, cross-validate, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=30, help="training epochs (default: %(default)s)")
    parser.add_argument("--sets", type=int, default=120, help="number of images (default: %(default)s)")
    parser.add_argument(
        "--bags", choices=["made", *MIL_NAMES], default="made", help="data set (default: synthetic images)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("bags.png"), help="figure file (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.sets < 20:
        parser.error(f"--sets must be at least 20, got {options.sets}")
    options.out.parent.mkdir(parents=True, exist_ok=True)

    if options.bags != "made":
        bags = load_mil(options.bags)
        X, y = [bag.x.numpy() for bag in bags], bags.labels.numpy()
        table, clf, test = cross_validate(X, y, options.epochs)
        Console().print(table)
        draw_graphs(options.out, clf, sorted((X[i] for i in test), key=len)[-4:])
    else:
        rng = np.random.default_rng(0)
        y = np.arange(options.sets) % 2
        images, spots = zip(*(make_image(bool(spotted), rng) for spotted in y), strict=True)
        X = [patches(image) for image in images]
        table, clf, test = cross_validate(X, y, options.epochs)
        Console().print(table)
        positive = [i for i in test if y[i]]
        importance = [clf.element_importance(X[i], output=1) for i in positive]
        auc = np.mean(
            [roc_auc_score(spots[i], weights) for i, weights in zip(positive, importance, strict=True)]
        )
        print(f"patches of the spot are more important than other patches in {auc:.1%} of all pairs")
        draw_heatmaps(options.out, [images[i] for i in positive[:4]], importance[:4])
    print(options.out)


if __name__ == "__main__":
    main()
