"""Classify solids from points on their surface, and draw their latent graphs.

The sets are points on boxes, cones, cylinders, spheres and tori of random proportions. A classifier is
trained on random subsets of the points. The table is the confusion matrix; the figure shows the weights of
the latent graph for the topmost point of each solid (bright: large).

    python examples/point_clouds.py --out shapes.png
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

import setwise as sw
from setwise.experiments.data.solids import solids
from setwise.inspection.plots import weighted_points

KINDS = ["box", "cone", "cylinder", "sphere", "torus"]


def shapes(each: int, points: int = 400) -> tuple[list[np.ndarray], np.ndarray]:
    """Points on solids, and the kind of each solid."""
    clouds = solids(shapes_per_class=each, points=points, seed=0)
    names = np.array(clouds.classes)[clouds.labels.numpy()]
    X = [cloud.float().numpy() for cloud, name in zip(clouds.points, names, strict=True) if name in KINDS]
    return X, names[np.isin(names, KINDS)]


def confusion(truth: np.ndarray, predictions: np.ndarray) -> Table:
    """Confusion matrix as a table: one row per true kind, one column per predicted kind."""
    accuracy = f"{np.mean(truth == predictions):.1%} accuracy on {len(truth)} test sets"
    table = Table("true \\ predicted", *KINDS, title=accuracy)
    for kind, counts in zip(KINDS, confusion_matrix(truth, predictions, labels=KINDS), strict=True):
        table.add_row(kind, *(str(count) if count else "·" for count in counts))
    return table


def draw(path: Path, clf: sw.SetClassifier, X: list[np.ndarray], y: np.ndarray) -> None:
    """Draw one solid of each kind, coloured by the weights of its topmost point."""
    figure = Figure(figsize=(11, 2.8), layout="constrained")
    for number, kind in enumerate(KINDS):
        ax = figure.add_subplot(1, len(KINDS), number + 1, projection="3d")
        points = X[int(np.argmax(y == kind))]
        top = int(points[:, 2].argmax())
        weighted_points(points, clf.latent_graph(points).weights[top], chosen=top, ax=ax)
        ax.set_title(kind)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train, test and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=40, help="training epochs (default: %(default)s)")
    parser.add_argument("--sets", type=int, default=80, help="solids of each kind (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("shapes.png"), help="figure file (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.sets < 8:
        parser.error(f"--sets must be at least 8, got {options.sets}")
    options.out.parent.mkdir(parents=True, exist_ok=True)

    X, y = shapes(options.sets)
    train_X, test_X, train_y, test_y = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)
    clf = sw.SetClassifier(
        pool="mean+max",
        max_elements=100,  # of 400, sampled in each epoch
        max_epochs=options.epochs,
        lr=3e-3,
        random_state=0,
        verbose=True,
    )
    clf.fit(train_X, train_y)
    Console().print(confusion(test_y, clf.predict(test_X)))
    print(f"one of the {KINDS[0]}es: {clf.latent_graph(test_X[int(np.argmax(test_y == KINDS[0]))]).remark()}")
    draw(options.out, clf, test_X, test_y)
    print(options.out)


if __name__ == "__main__":
    main()
