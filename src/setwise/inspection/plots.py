"""Plots: each function draws on ``ax`` and returns it; none of them shows or saves a figure."""

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
    """Draw a kernel matrix with values in [0, 1] as colours; up to 12 elements, the values are printed too.

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
    """Draw a graph over images: strong edges are dark, and their ends are close together.

    A spring layout computes the positions from the weights only, so visible clusters are clusters of the
    graph. An edge has the mean weight of its two directions, on the scale of this graph's weights.

    Args:
        W: weights between the elements.
        images: one image per element, drawn at its node; large values are dark.
        groups: true group of each element, drawn as the colour of its frame.
        ax: axes to draw on.

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
    """Draw points in space, coloured by weight; bright points have a large weight.

    Args:
        points: ``[n, 3]``; the last axis is vertical.
        weights: one weight per point; the colours range from the smallest to the largest.
        chosen: index of the point whose neighbours are shown, drawn as a star without its self-weight.
        ax: axes to draw on, with ``projection="3d"``.

    >>> weighted_points([[0, 0, 0], [0, 0, 1]], [0.2, 0.8], chosen=0).name
    '3d'
    """
    ax = Figure(layout="constrained").add_subplot(projection="3d") if ax is None else ax
    x, y, z = np.asarray(points, dtype=float).T
    if len(x) != len(np.asarray(weights)):
        raise ValueError(f"weights must have one entry per point, {len(x)}, got {len(np.asarray(weights))}")
    order = np.argsort(weights)  # draw large weights on top
    if chosen is not None:
        order = order[order != range(len(x))[chosen]]
    color = np.asarray(weights)[order]
    ax.scatter(x[order], y[order], z[order], c=color, cmap="viridis", s=9, depthshade=False, clip_on=False)
    if chosen is not None:
        star = {"marker": "*", "markersize": 12, "color": "crimson", "clip_on": False}
        ax.plot(x[[chosen]], y[[chosen]], z[[chosen]], **star)
    for artist in (*ax.collections, *ax.lines):
        artist.set_in_layout(False)  # points outside the box must not change the layout
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
        points: pairs (x, y), e.g. several per x for several seeds.
        ax: axes to draw on.
        label: label in the legend.
        style: format string of matplotlib: marker, line and colour.

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
    """Draw an image in grey, with the value of each patch as a transparent colour.

    Values of one sign range from pale to red, or to blue if they are negative. Values of both signs are red
    above zero and blue below, on a symmetric scale. Scales end at the 1st and 99th percentiles, so that
    outliers do not dominate. Overlapping patches are averaged. Pass ``ax.images[-1]`` to a colour bar.

    Args:
        image: ``[h, w, 3]``, uint8 or floats from 0 to 1.
        coords: column and row of the upper left pixel of each patch, ``[n, 2]``.
        values: one value per patch.
        size: side of a patch in pixels.
        ax: axes to draw on.

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
        if low == high:  # the percentiles miss values of a few patches
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
    """Draw a patch and its strongest neighbours in colour, and the rest of the image in pale grey.

    The chosen patch has a red frame; neighbours with a large weight have dark frames. Pass
    ``ax.collections[0]`` to a colour bar.

    Args:
        image: ``[h, w, 3]``, uint8 or floats from 0 to 1.
        coords: column and row of the upper left pixel of each patch, ``[n, 2]``.
        weights: the weight of each patch for the chosen one: its row of the graph.
        chosen: index of the patch whose neighbours are shown; its self-weight is ignored.
        size: side of a patch in pixels.
        k: number of neighbours to show; patches without weight are not neighbours.
        ax: axes to draw on.

    >>> ax = patch_neighbours(np.ones((2, 6, 3)), [[0, 0], [2, 0], [4, 0]], [0.2, 0.5, 0.3], 1, size=2, k=1)
    >>> ax.collections[0].get_array().tolist()
    [0.3]
    """
    ax = _axes(ax)
    pixels, corners, numbers = _patches(image, coords, weights, size)
    if not 0 <= chosen < len(corners):
        raise ValueError(f"chosen must be from 0 to {len(corners) - 1}, got {chosen}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    others = [i for i in np.argsort(-numbers, kind="stable") if i != chosen and numbers[i] > 0][:k]
    shown = 0.5 + 0.5 * _grey(pixels)
    for x, y in corners[[chosen, *others]]:
        shown[y : y + size, x : x + size] = pixels[y : y + size, x : x + size]
    _show(ax, shown)
    frames = [Rectangle((x - 0.5, y - 0.5), size, size) for x, y in corners]  # pixel centres are integers
    style: dict[str, Any] = {"facecolor": "none", "linewidth": 2.5, "clip_on": False}
    neighbours = PatchCollection([frames[i] for i in others], cmap="viridis_r", **style)
    neighbours.set_array(numbers[others])
    ax.add_collection(neighbours)
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
    """Draw the patches with the highest values in a row, in decreasing order, each above its value.

    Args:
        image: ``[h, w, 3]``, uint8 or floats from 0 to 1.
        coords: column and row of the upper left pixel of each patch, ``[n, 2]``.
        values: one value per patch.
        size: side of a patch in pixels.
        count: maximum number of patches.
        ax: axes to draw on.

    >>> ax = patch_gallery(np.ones((2, 4, 3)), [[0, 0], [2, 0]], [0.25, 0.5], size=2)
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['0.5', '0.25']
    """
    ax = _axes(ax)
    pixels, corners, numbers = _patches(image, coords, values, size)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    best = np.argsort(-numbers, kind="stable")[:count]
    places = 1.08 * np.arange(len(best))  # leave a gap between patches
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
    """Check the arguments; returns floats from 0 to 1, integer corners, and float values."""
    pixels, corners, numbers = _array(image), _array(coords), _array(values)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or (pixels.dtype != np.uint8 and pixels.dtype.kind != "f"):
        raise ValueError(
            f"image must be [h, w, 3] of uint8 or floats, got {pixels.dtype} {list(pixels.shape)}"
        )
    if corners.ndim != 2 or corners.shape[1] != 2 or not len(corners):
        raise ValueError(f"coords must be [n, 2] with n at least 1, got {list(corners.shape)}")
    if numbers.shape != (len(corners),):
        raise ValueError(f"values must have one entry per patch, {len(corners)}, got {list(numbers.shape)}")
    for what, given in (("coords", corners), ("values", numbers)):
        if not np.isfinite(given).all():
            raise ValueError(f"{what} must be finite, got NaN or infinite values")
    if pixels.dtype.kind == "f" and not ((pixels >= 0) & (pixels <= 1)).all():
        found = f"{pixels.min():g} to {pixels.max():g}"
        raise ValueError(f"image must have floats from 0 to 1, got {found}")
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
    return np.repeat(pixels @ np.array([[0.299], [0.587], [0.114]]), 3, axis=2)  # perceived brightness


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

    An edge has the mean weight of its two directions. Its opacity grows with the weight beyond that of the
    weakest pair, so the edges of a uniform graph are invisible. Pass ``ax.collections[-1]`` to a colour bar
    of ``values``.

    Args:
        weights: weights between the elements, ``[n, n]``.
        points: coordinates of the elements, ``[n, d]``. One feature is drawn along x, with edges as arcs; two
            are drawn unchanged; more are projected onto two principal axes. Without points, a spring layout
            is computed.
        labels: group of each element, drawn as its colour; all but the ten largest groups are grey.
        values: one number per element, drawn as its colour.
        names: names of the elements, written next to them for up to 25 elements.
        edges: maximum number of edges; by default three per element and at most 3,000.
        ax: axes to draw on.

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
            raise ValueError(f"{what} must have one entry per element, {n}, got {len(_array(given))}")
    if labels is not None and values is not None:
        raise ValueError("labels and values both set the colours: expected one of them, got both")
    ends, weight, alpha = _strong_edges(W, min(3 * n, 3000) if edges is None else edges)
    place = _springs(n, ends, weight) if points is None else _plane(_array(points))
    arcs = points is not None and _array(points).shape[1] == 1
    lines = _arcs(place, ends) if arcs else place[ends]
    grey = np.insert(alpha[:, None], [0, 0, 0], 0.25, axis=1)  # RGBA
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
    """Choose up to ``count`` edges among the strongest edges of each element, weak ones first.

    Returns their ends [m, 2], weights and opacities. The globally strongest pairs are not used: most of them
    lie in the smallest cluster.
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
    """Points [n, d] as [n, 2]: unchanged, or projected onto the first two principal axes."""
    if points.ndim != 2 or not points.shape[1]:
        raise ValueError(f"points must be [n, d] with d at least 1, got {list(points.shape)}")
    if not np.isfinite(points).all():
        raise ValueError("points must be finite, got NaN or infinite values")
    points = points.astype(float)
    if points.shape[1] > 2 and len(points):
        centred = points - points.mean(0)
        axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
        largest = np.abs(axes).argmax(1, keepdims=True)
        points = centred @ (axes * np.sign(np.take_along_axis(axes, largest, 1))).T  # fix the signs
    place = np.zeros((len(points), 2))
    place[:, : points.shape[1]] = points[:, :2]
    return place


def _springs(n: int, ends: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
    """Positions [n, 2] of a deterministic spring layout."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    pull = weight / weight.max(initial=1e-30)
    graph.add_weighted_edges_from((*pair, p) for pair, p in zip(ends.tolist(), pull.tolist(), strict=True))
    place = nx.spring_layout(graph, seed=0)
    return np.array([place[i] for i in range(n)]).reshape(n, 2)


def _arcs(place: NDArray[Any], ends: NDArray[Any]) -> NDArray[Any]:
    """Arcs [m, 30, 2] over a line of elements; the height grows with the width, up to 1."""
    left, right = place[ends[:, :1], 0], place[ends[:, 1:], 0]
    angle = np.linspace(0, np.pi, 30)
    height = np.sqrt(np.abs(right - left) / (np.ptp(place[:, 0]) or 1 if len(ends) else 1))
    x = (left + right) / 2 - (right - left) / 2 * np.cos(angle)
    return np.stack([x, height * np.sin(angle)], axis=-1)


def _scatter_groups(ax: Axes, place: NDArray[Any], labels: NDArray[Any], style: dict[str, Any]) -> None:
    groups, first, counts = np.unique(labels, return_index=True, return_counts=True)
    large = np.lexsort((first, -counts))[:10]  # ties: in order of appearance
    rest = ~np.isin(labels, groups[large])
    x, y = place.T
    ax.scatter(x[rest], y[rest], color="0.75", **style)
    for number, group in enumerate(large[np.argsort(first[large])]):
        members = labels == groups[group]
        ax.scatter(x[members], y[members], color=f"C{number}", label=str(groups[group]), **style)
    if 1 < len(groups) <= 10:
        size = (60 / style["s"]) ** 0.5
        ax.legend(frameon=False, markerscale=size, loc="center left", bbox_to_anchor=(1, 0.5))
