"""Figures: functions that draw data on ``ax`` and return it; none of them shows or saves anything."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from mpl_toolkits.mplot3d import Axes3D
from numpy.typing import ArrayLike, NDArray


def _axes(ax: Axes | None) -> Axes:
    return Figure(layout="constrained").subplots() if ax is None else ax


def _array(values: ArrayLike) -> NDArray[Any]:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def kernel_heatmap(K: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw a kernel matrix with its values in [0, 1] as colours; a small one with numbers too.

    >>> kernel_heatmap([[1.0, 0.3], [0.3, 1.0]]).get_xlabel()
    'element'
    """
    ax = _axes(ax)
    K = _array(K)
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


def patch_heatmap(
    image: ArrayLike, coords: ArrayLike, values: ArrayLike, *, size: int, ax: Axes | None = None
) -> Axes:
    """Draw an image in grey with the value of each patch as a tint: the stronger, the less of the grey.

    Values of one sign go from pale to red, or to blue where they are negative. Values of both signs are red
    above zero and blue below, on one scale. Scales end at the 99th percentile (and begin at the first), lest
    one patch drown the others. Where patches overlap, their mean is drawn. ``ax.images[-1]`` is what a colour
    bar needs.

    Args:
        image: ``[h, w, 3]``, bytes or numbers from 0 to 1.
        coords: the column and the row of the upper left pixel of each patch, ``[n, 2]``.
        values: one a patch.
        size: side of a patch in pixels.
        ax: where to draw.

    >>> ax = patch_heatmap(np.ones((2, 4, 3)), [[0, 0], [2, 0]], [-0.5, 0.5], size=1)
    >>> ax.images[-1].get_array().tolist()
    [[-0.5, None, 0.5, None], [None, None, None, None]]
    """
    ax = _axes(ax)
    pixels, corners, numbers = _patches(image, coords, values, size)
    total, count = np.zeros(pixels.shape[:2]), np.zeros(pixels.shape[:2])
    for (x, y), value in zip(corners, numbers, strict=True):
        total[y : y + size, x : x + size] += value
        count[y : y + size, x : x + size] += 1
    tint = np.ma.masked_array(total / np.maximum(count, 1), count == 0)
    if numbers.min() < 0 < numbers.max():
        high = np.percentile(np.abs(numbers), 99) or np.abs(numbers).max()
        low, weakest, cmap = -high, 0, "coolwarm"
    else:
        low, high = np.percentile(numbers, (1, 99))
        if low == high:  # a few patches only, which percentiles do not see
            low, high = numbers.min(), numbers.max()
        weakest, cmap = (low, "YlOrRd") if numbers.min() >= 0 else (high, "YlGnBu_r")
    strength = np.abs(tint.clip(low, high) - weakest) / (max(high - weakest, weakest - low) or 1)
    _show(ax, 0.25 + 0.75 * _grey(pixels))
    alpha = 0.7 * strength.filled(0)  # the tissue stays visible
    ax.imshow(tint, cmap=cmap, vmin=low, vmax=high, alpha=alpha, interpolation="nearest")
    return ax


def patch_neighbours(
    image: ArrayLike,
    coords: ArrayLike,
    weights: ArrayLike,
    chosen: int,
    *,
    size: int,
    k: int = 12,
    ax: Axes | None = None,
) -> Axes:
    """Draw whom a patch listens to: it and its strongest neighbours keep their colours, all else is pale.

    The chosen patch has a red frame; the frame of a neighbour is the darker, the more weight it has.
    ``ax.collections[0]`` is what a colour bar needs.

    Args:
        image: ``[h, w, 3]``, bytes or numbers from 0 to 1.
        coords: the column and the row of the upper left pixel of each patch, ``[n, 2]``.
        weights: what each patch weighs for the chosen one, its row of a graph.
        chosen: the patch that listens; its own weight is left out.
        size: side of a patch in pixels.
        k: how many neighbours to show; what has no weight is none.
        ax: where to draw.

    >>> ax = patch_neighbours(np.ones((2, 6, 3)), [[0, 0], [2, 0], [4, 0]], [0.2, 0.5, 0.3], 1, size=2, k=1)
    >>> ax.collections[0].get_array().tolist()
    [0.3]
    """
    ax = _axes(ax)
    pixels, corners, numbers = _patches(image, coords, weights, size)
    if not 0 <= chosen < len(corners):
        raise ValueError(f"chosen must lie between 0 and below the {len(corners)} patches, got {chosen}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    others = [i for i in np.argsort(-numbers, kind="stable") if i != chosen and numbers[i] > 0][:k]
    shown = 0.5 + 0.5 * _grey(pixels)
    for x, y in corners[[chosen, *others]]:
        shown[y : y + size, x : x + size] = pixels[y : y + size, x : x + size]
    _show(ax, shown)
    frames = [Rectangle((x - 0.5, y - 0.5), size, size) for x, y in corners]  # pixels are centred on numbers
    style: dict[str, Any] = {"facecolor": "none", "linewidth": 2.5, "clip_on": False}
    heard = PatchCollection([frames[i] for i in others], cmap="viridis_r", **style)
    heard.set_array(numbers[others])
    ax.add_collection(heard)
    ax.add_collection(PatchCollection([frames[chosen]], edgecolor="crimson", **style))
    return ax


def patch_gallery(
    image: ArrayLike,
    coords: ArrayLike,
    values: ArrayLike,
    *,
    size: int,
    count: int = 8,
    ax: Axes | None = None,
) -> Axes:
    """Draw the patches with the highest values side by side, the highest first, each above its value.

    Args:
        image: ``[h, w, 3]``, bytes or numbers from 0 to 1.
        coords: the column and the row of the upper left pixel of each patch, ``[n, 2]``.
        values: one a patch.
        size: side of a patch in pixels.
        count: how many to show, if there are as many.
        ax: where to draw.

    >>> ax = patch_gallery(np.ones((2, 4, 3)), [[0, 0], [2, 0]], [0.25, 0.5], size=2)
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['0.5', '0.25']
    """
    ax = _axes(ax)
    pixels, corners, numbers = _patches(image, coords, values, size)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    best = np.argsort(-numbers, kind="stable")[:count]
    places = 1.08 * np.arange(len(best))  # with a gap between them
    for left, (x, y) in zip(places, corners[best], strict=True):
        patch = pixels[y : y + size, x : x + size]
        ax.imshow(patch, extent=(left, left + 1, 0, 1), interpolation="bicubic")
    ax.set(xlim=(0, places[-1] + 1), ylim=(0, 1))
    ax.set_xticks(places + 0.5, [f"{value:.3g}" for value in numbers[best]])
    ax.tick_params(length=0)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    return ax


def _patches(
    image: ArrayLike, coords: ArrayLike, values: ArrayLike, size: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The image in numbers from 0 to 1, the corners in whole ones, and the values."""
    pixels, corners, numbers = _array(image), _array(coords), _array(values)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or (pixels.dtype != np.uint8 and pixels.dtype.kind != "f"):
        raise ValueError(
            f"image must be [h, w, 3] of bytes or floats, got {pixels.dtype} {list(pixels.shape)}"
        )
    if corners.ndim != 2 or corners.shape[1] != 2 or not len(corners):
        raise ValueError(f"coords must be [n, 2] with n at least 1, got {list(corners.shape)}")
    if numbers.shape != (len(corners),):
        raise ValueError(f"expected one number for each of {len(corners)} patches, got {list(numbers.shape)}")
    for what, given in (("coords", corners), ("values", numbers)):
        if not np.isfinite(given).all():
            raise ValueError(f"{what} must be finite, got NaN or infinite ones")
    if pixels.dtype.kind == "f" and not ((pixels >= 0) & (pixels <= 1)).all():
        found = f"{pixels.min():g} to {pixels.max():g}"
        raise ValueError(f"an image of floats must lie between 0 and 1, got {found}")
    h, w, _ = pixels.shape
    if size < 1 or corners.min() < 0 or (corners + size > (w, h)).any():
        found = f"corners from {corners.min(0).tolist()} to {corners.max(0).tolist()}"
        raise ValueError(f"patches of side {size} must lie within the image of {w} × {h} pixels, got {found}")
    pixels = pixels / 255 if pixels.dtype == np.uint8 else pixels
    return pixels, corners.astype(int), numbers.astype(float)


def _show(ax: Axes, pixels: NDArray[Any]) -> None:
    ax.imshow(pixels)
    ax.set_axis_off()


def _grey(pixels: NDArray[Any]) -> NDArray[Any]:
    return np.repeat(pixels @ np.array([[0.299], [0.587], [0.114]]), 3, axis=2)  # as bright as the eye has it


def set_graph(
    weights: ArrayLike,
    points: ArrayLike | None = None,
    *,
    labels: ArrayLike | None = None,
    values: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    edges: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the graph of one set: its elements, and the strongest edges of each.

    An edge has the mean weight of its two directions. It is the darker, the more it weighs beyond the weakest
    pair, so that over a uniform graph no edge is seen. ``ax.collections[-1]`` is what a colour bar of
    ``values`` needs.

    Args:
        weights: between the elements, ``[n, n]``.
        points: where the elements lie, ``[n, d]``: one feature goes along x, with edges as arcs; two are
            drawn as they are, of more the first two principal axes. Without points, springs find places.
        labels: the group of each element, as its colour; beyond the ten largest groups it is grey.
        values: a number for each element, as its colour.
        names: of the elements, written beside them where there are no more than 25.
        edges: how many to draw at most; three for each element if not given, and no more than 3,000.
        ax: where to draw.

    >>> W = [[0.5, 0.5, 0.0], [0.4, 0.5, 0.1], [0.0, 0.1, 0.9]]
    >>> ax = set_graph(W, [[0, 0], [0, 1], [5, 5]], values=[1, 2, 3])
    >>> len(ax.collections[0].get_segments()), ax.collections[-1].get_array().tolist()
    (2, [1.0, 2.0, 3.0])
    """
    ax = _axes(ax)
    W = _array(weights)
    n = len(W)
    if W.shape != (n, n):
        raise ValueError(f"weights must be [n, n], got {list(W.shape)}")
    named = None if names is None else list(names)
    for what, given in (("points", points), ("labels", labels), ("values", values), ("names", named)):
        if given is not None and len(_array(given)) != n:
            raise ValueError(f"{what} must be one an element, {n}, got {len(_array(given))}")
    if labels is not None and values is not None:
        raise ValueError("labels and values both stand for colours, got both")
    ends, weight, alpha = _strong_edges(W, min(3 * n, 3000) if edges is None else edges)
    place = _springs(n, ends, weight) if points is None else _plane(_array(points))
    arcs = points is not None and _array(points).shape[1] == 1
    lines = _arcs(place, ends) if arcs else place[ends]
    grey = np.insert(alpha[:, None], [0, 0, 0], 0.25, axis=1)  # and how opaque it is
    ax.add_collection(LineCollection(list(lines), colors=grey, linewidths=np.clip(40 / max(n, 1), 0.7, 2)))
    size = np.clip(5000 / max(n, 1), 14, 130)
    style: dict[str, Any] = {"s": size, "zorder": 2, "edgecolor": "white", "linewidth": size**0.5 / 12}
    if labels is None:
        color = {"color": "tab:blue"} if values is None else {"c": _array(values), "cmap": "viridis"}
        ax.scatter(place[:, 0], place[:, 1], **style, **color)
    else:
        _scatter_groups(ax, place, _array(labels), style)
    if named is not None and n <= 25:
        beside: dict[str, Any] = {"xytext": (0.6 * size**0.5, 0), "textcoords": "offset points"}
        for name, (x, y) in zip(named, place, strict=True):
            ax.annotate(str(name), (x, y), va="center", fontsize=9, **beside)
    ax.margins(0.08)
    if arcs:
        ax.set_ylim(-0.15, 1.05)
    ax.set_axis_off()
    return ax


def _strong_edges(W: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Of the strongest edges of each element so many in all, weak ones first.

    Their ends [m, 2], their weights, and how dark to draw them. The strongest of all pairs would not do: most
    of them lie in one cluster, the smallest.
    """
    if count < 0:
        raise ValueError(f"edges must not be negative, got {count}")
    n = len(W)
    mean = (W + W.T) / 2
    pairs = mean[~np.eye(n, dtype=bool)]
    low, high = (pairs.min(), pairs.max()) if n > 2 else (0.0, pairs.max(initial=0))
    np.fill_diagonal(mean, -np.inf)
    each = min(math.ceil(count / max(n, 1)), n)
    i = np.repeat(np.arange(n), each)
    j = np.argpartition(mean, n - each, axis=1)[:, n - each :].ravel() if each else i
    ends = np.unique(np.stack([np.minimum(i, j), np.maximum(i, j)], axis=-1), axis=0)
    weight = mean[ends[:, 0], ends[:, 1]]
    order = np.argsort(weight, kind="stable")
    best = order[weight[order] > 0][-count:]
    return ends[best], weight[best], np.minimum(1.5 * (weight[best] - low) / high, 1)


def _plane(points: NDArray[Any]) -> NDArray[Any]:
    """Points [n, d] as [n, 2]: as they are, or along the first two principal axes."""
    if points.ndim != 2 or not points.shape[1]:
        raise ValueError(f"points must be [n, d] with d at least 1, got {list(points.shape)}")
    if not np.isfinite(points).all():
        raise ValueError("points must be finite, got NaN or infinite ones")
    points = points.astype(float)
    if points.shape[1] > 2 and len(points):
        centred = points - points.mean(0)
        axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
        largest = np.abs(axes).argmax(1, keepdims=True)
        points = centred @ (axes * np.sign(np.take_along_axis(axes, largest, 1))).T  # else ± would be chance
    place = np.zeros((len(points), 2))
    place[:, : points.shape[1]] = points[:, :2]
    return place


def _springs(n: int, ends: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
    """Places [n, 2] that springs along the edges find, the same ones each time."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    pull = weight / weight.max(initial=1e-30)
    graph.add_weighted_edges_from((*pair, p) for pair, p in zip(ends.tolist(), pull.tolist(), strict=True))
    place = nx.spring_layout(graph, seed=0)
    return np.array([place[i] for i in range(n)]).reshape(n, 2)


def _arcs(place: NDArray[Any], ends: NDArray[Any]) -> NDArray[Any]:
    """Arcs [m, 30, 2] over a line of elements, the wider the higher; one as wide as the line has height 1."""
    left, right = place[ends[:, :1], 0], place[ends[:, 1:], 0]
    angle = np.linspace(0, np.pi, 30)
    height = np.sqrt(np.abs(right - left) / (np.ptp(place[:, 0]) or 1 if len(ends) else 1))
    x = (left + right) / 2 - (right - left) / 2 * np.cos(angle)
    return np.stack([x, height * np.sin(angle)], axis=-1)


def _scatter_groups(ax: Axes, place: NDArray[Any], labels: NDArray[Any], style: dict[str, Any]) -> None:
    groups, first, counts = np.unique(labels, return_index=True, return_counts=True)
    large = np.lexsort((first, -counts))[:10]  # of equal ones, those that appear first
    rest = ~np.isin(labels, groups[large])
    x, y = place.T
    ax.scatter(x[rest], y[rest], color="0.75", **style)
    for number, group in enumerate(large[np.argsort(first[large])]):
        own = labels == groups[group]
        ax.scatter(x[own], y[own], color=f"C{number}", label=str(groups[group]), **style)
    if 1 < len(groups) <= 10:
        size = (60 / style["s"]) ** 0.5
        ax.legend(frameon=False, markerscale=size, loc="center left", bbox_to_anchor=(1, 0.5))
