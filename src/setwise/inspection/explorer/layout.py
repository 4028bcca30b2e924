"""Coordinates of the elements on a page, and one line of text per element.

The layouts are deterministic, and the signs of the axes are fixed.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

MIN_KERNEL = 1e-4
"""Smaller kernel values are clipped: their logarithms are mostly rounding error."""
ITERATIONS = 200


def principal_axes(x: Float[np.ndarray, "n d"], axes: int = 2) -> Float[np.ndarray, "n axes"]:
    """Project elements onto their first principal axes.

    The sign of an axis is chosen such that its largest component is positive.

    Args:
        x: the elements.
        axes: number of axes; coordinates beyond the rank of x are zero.

    >>> principal_axes(np.array([[0.0, 5.0, 0.0], [2.0, 5.0, 0.0], [4.0, 5.0, 0.0]])).tolist()
    [[-2.0, 0.0], [0.0, 0.0], [2.0, 0.0]]
    """
    centred = np.asarray(x, dtype=float) - np.mean(x, axis=0, dtype=float)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    nonzero = lengths > 1e-9 * max(float(lengths.max(initial=0.0)), np.finfo(float).tiny)
    directions = directions[nonzero][:axes]
    largest = np.abs(directions).argmax(axis=1, keepdims=True)
    directions = directions * np.sign(np.take_along_axis(directions, largest, axis=1))
    places = np.zeros((len(centred), axes))
    places[:, : len(directions)] = centred @ directions.T
    return places + 0.0  # no negative zeros


def by_kernel(kernel: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n 2"]:
    """Place elements such that similar ones lie close together.

    Stress majorisation fits the places to the distances d_ij of a Gaussian kernel, K_ij = exp(−d_ij² / 2).
    Elements closer than one unit are then moved apart, so that images of one unit do not overlap.

    Args:
        kernel: symmetric, with values from 0 to 1 and ones on the diagonal.

    >>> K = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> a, b, c = by_kernel(K)
    >>> bool(np.linalg.norm(a - b) < np.linalg.norm(a - c) / 2)
    True
    """
    n = len(kernel)
    target = np.sqrt(-2 * np.log(np.clip((kernel + kernel.T) / 2, MIN_KERNEL, 1.0)))
    np.fill_diagonal(target, 0.0)
    if n < 3 or not target.any():
        return grid(n)
    places = principal_axes(target) + target.max() / 4 * _circle(n)  # the circle separates equal places
    for _ in range(ITERATIONS):
        current = _distances(places)
        ratio = np.divide(target, current, out=np.zeros_like(current), where=current > 0)
        places = (ratio.sum(1, keepdims=True) * places - ratio @ places) / n
    return _separate(places * np.sqrt(n) / max(np.abs(places).max(), 1e-9))


def line(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n 2"]:
    """Place numbers along the x axis, staggered over five levels of y so that edges do not overlap.

    >>> line(np.array([3.0, -1.0])).tolist()
    [[3.0, 0.0], [-1.0, -0.8]]
    """
    step = float(np.ptp(values)) / 5 if len(values) else 0.0
    return np.stack([values, -(step or 1.0) * (np.arange(len(values)) % 5)], axis=1) + 0.0


def grid(n: int) -> Float[np.ndarray, "n 2"]:
    """Place n elements in a nearly square grid, row by row from the upper left.

    >>> grid(3).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, -1.0]]
    """
    row, column = np.divmod(np.arange(n), max(int(np.ceil(np.sqrt(n))), 1))
    return np.stack([column, 0 - row], axis=1).astype(float)


def describe_elements(
    values: Float[np.ndarray, "n d"],
    standard: Float[np.ndarray, "n d"],
    names: Sequence[str],
    *,
    count: int = 4,
) -> tuple[str, ...]:
    """Describe each element by the features that lie farthest from their mean, in one line.

    Args:
        values: the features.
        standard: the standardized features, in standard deviations from the mean.
        names: of the features.
        count: number of features to name.

    >>> describe_elements(np.array([[20.0, 3.5]]), np.array([[0.2, -2.0]]), ["age", "size"])
    ('size 3.5 (−2.0 sd), age 20 (+0.2 sd)',)
    """
    order = np.argsort(-np.abs(standard), axis=1, kind="stable")[:, :count]
    return tuple(
        ", ".join(f"{names[j]} {_number(values[i, j])} ({_signed(standard[i, j])} sd)" for j in features)
        for i, features in enumerate(order)
    )


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")  # no negative zeros


def _circle(n: int) -> Float[np.ndarray, "n 2"]:
    angle = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _distances(places: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n n"]:
    distances: Float[np.ndarray, "n n"] = np.linalg.norm(places[:, None] - places[None], axis=-1)
    return distances


def _separate(places: Float[np.ndarray, "n 2"], gap: float = 1.0) -> Float[np.ndarray, "n 2"]:
    """Move places apart in small steps until their distances are at least ``gap``."""
    n = len(places)
    fallback = _circle(n)[:, None] - _circle(n)[None]  # directions for equal places
    for _ in range(ITERATIONS):
        difference = places[:, None] - places[None]
        distance = _distances(places)
        missing = np.where(distance < gap, gap - distance, 0.0)
        np.fill_diagonal(missing, 0.0)
        if missing.max() < 1e-3:
            break
        direction = np.where(distance[..., None] > 1e-9, difference, fallback)
        length = np.linalg.norm(direction, axis=-1, keepdims=True)
        np.divide(direction, length, out=direction, where=length > 0)
        places = places + 0.3 * (missing[..., None] * direction).sum(1)
    return places
