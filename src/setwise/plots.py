"""Figures: functions that draw data on ``ax`` and return it; none of them shows or saves anything."""

from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import Axes3D
from numpy.typing import ArrayLike


def _axes(ax: Axes | None) -> Axes:
    return Figure(layout="constrained").subplots() if ax is None else ax


def kernel_heatmap(K: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw a kernel matrix with its values in [0, 1] as colours; a small one with numbers too.

    >>> kernel_heatmap([[1.0, 0.3], [0.3, 1.0]]).get_xlabel()
    'element'
    """
    ax = _axes(ax)
    K = np.asarray(K.detach().cpu() if hasattr(K, "detach") else K)
    n = len(K)
    ax.imshow(K, vmin=0, vmax=1, cmap="viridis")
    ax.set(xlabel="element", ylabel="element")
    if n <= 12:
        ticks = range(n)
        ax.set_xticks(ticks, [str(i + 1) for i in ticks])
        ax.set_yticks(ticks, [str(i + 1) for i in ticks])
        for i, row in enumerate(K):
            for j, value in enumerate(row):
                color = "white" if value < 0.6 else "black"
                ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=color, fontsize=9)
    return ax


def latent_graph(
    W: ArrayLike,
    images: Sequence[ArrayLike],
    *,
    groups: Sequence[object] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a graph over images: the stronger an edge, the darker it is and the closer its ends.

    Where the nodes lie is found from the weights alone, by springs; so clusters on paper are clusters of the
    graph. An edge has the mean weight of its two directions, drawn on the scale of this graph's own weights.

    Args:
        W: weights between the elements.
        images: the picture of each element, shown at its node with dark ink for large values.
        groups: what each element truly is, as the colour of its frame.
        ax: where to draw.

    >>> ax = latent_graph([[0.6, 0.4], [0.4, 0.6]], [np.eye(8), np.eye(8)], groups="ab")
    >>> len(ax.lines), len(ax.artists)
    (1, 2)
    """
    import networkx as nx
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    ax = _axes(ax)
    W = np.asarray(W)
    n = len(W)
    weights = {(i, j): float(W[i, j] + W[j, i]) / 2 for i in range(n) for j in range(i)}
    low, high = min(weights.values(), default=0), max(weights.values(), default=0)
    strength = {ends: (w - low) / (high - low) if high > low else 1.0 for ends, w in weights.items()}
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_weighted_edges_from((*ends, 0.1 + 0.5 * s) for ends, s in strength.items())
    start = {i: (np.cos(2 * np.pi * i / n), np.sin(2 * np.pi * i / n)) for i in range(n)}
    place = nx.spring_layout(graph, pos=start or None, k=2.4 / max(n, 1) ** 0.5, iterations=300, seed=0)
    for ends, s in strength.items():
        line = zip(*(place[i] for i in ends), strict=True)
        ax.plot(*line, color="tab:blue", alpha=s, linewidth=2.5, zorder=1)
    colors = {group: f"C{1 + k}" for k, group in enumerate(dict.fromkeys(groups or ()))}
    for i, image in enumerate(images):
        box = AnnotationBbox(
            OffsetImage(np.asarray(image), zoom=0.32, cmap="gray_r"),
            tuple(place[i]),
            pad=0.15,
            bboxprops={"edgecolor": colors[groups[i]] if groups else "0.3", "linewidth": 2},
        )
        ax.add_artist(box)
    ax.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    ax.set_axis_off()
    return ax


def weighted_points(
    points: ArrayLike, weights: ArrayLike, *, chosen: int | None = None, ax: Axes3D | None = None
) -> Axes3D:
    """Draw points in space, coloured by weight: bright ones are heard most.

    Args:
        points: ``[n, 3]``, the last axis upright.
        weights: one a point; the colours span from the least to the largest.
        chosen: the point that listens, marked with a star; its own weight is left out of the colours.
        ax: where to draw, an axes with ``projection="3d"``.

    >>> weighted_points([[0, 0, 0], [0, 0, 1]], [0.2, 0.8], chosen=0).name
    '3d'
    """
    ax = Figure(layout="constrained").add_subplot(projection="3d") if ax is None else ax
    x, y, z = np.asarray(points, dtype=float).T
    if len(x) != len(np.asarray(weights)):
        raise ValueError(f"weights must be one a point, {len(x)}, got {len(np.asarray(weights))}")
    heard = np.argsort(weights)  # the heavy ones on top
    if chosen is not None:
        heard = heard[heard != range(len(x))[chosen]]
    color = np.asarray(weights)[heard]
    ax.scatter(x[heard], y[heard], z[heard], c=color, cmap="viridis", s=9, depthshade=False, clip_on=False)
    if chosen is not None:
        star = {"marker": "*", "markersize": 12, "color": "crimson", "clip_on": False}
        ax.plot(x[[chosen]], y[[chosen]], z[[chosen]], **star)
    for artist in (*ax.collections, *ax.lines):
        artist.set_in_layout(False)  # else what sticks out of the box would push the boxes around
    ax.set_box_aspect((np.ptp(x) + 1e-6, np.ptp(y) + 1e-6, np.ptp(z) + 1e-6), zoom=1.15)
    ax.set_axis_off()
    return ax


def accuracy_curve(
    points: Sequence[tuple[float, float]],
    *,
    ax: Axes | None = None,
    label: str | None = None,
    style: str = "o-",
) -> Axes:
    """Draw the mean of y over equal x as a line, with ± one standard deviation as a band.

    Args:
        points: pairs (x, y), several with one x where there were several seeds.
        ax: where to draw.
        label: for the legend.
        style: matplotlib's short form of marker, line and colour.

    >>> accuracy_curve([(0.5, 0.8), (0.5, 0.9), (1.0, 0.7)]).lines[0].get_ydata().round(2).tolist()
    [0.85, 0.7]
    """
    ax = _axes(ax)
    at: dict[float, list[float]] = {}
    for x, y in sorted(points):
        at.setdefault(x, []).append(y)
    means = [fmean(ys) for ys in at.values()]
    spreads = [stdev(ys) if len(ys) > 1 else 0.0 for ys in at.values()]
    (line,) = ax.plot(list(at), means, style, label=label, markersize=4)
    low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
    if any(spreads):
        ax.fill_between(list(at), low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    return ax
