"""Where elements are drawn on a page, and a line of text on each.

All places are the same for the same input: no chance is involved, and the signs of axes are fixed.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

SMALLEST = 1e-4
"""Kernel values below this are all alike far: their logarithms are mostly rounding."""
ROUNDS = 200


def principal_axes(x: Float[np.ndarray, "n d"], axes: int = 2) -> Float[np.ndarray, "n axes"]:
    """The elements along the directions in which they differ most.

    The sign of an axis is such that its largest component is positive.

    Args:
        x: the elements.
        axes: how many directions; zeros where the elements do not differ in so many.

    >>> principal_axes(np.array([[0.0, 5.0, 0.0], [2.0, 5.0, 0.0], [4.0, 5.0, 0.0]])).tolist()
    [[-2.0, 0.0], [0.0, 0.0], [2.0, 0.0]]
    """
    centred = np.asarray(x, dtype=float) - np.mean(x, axis=0, dtype=float)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    there = lengths > 1e-9 * max(float(lengths.max(initial=0.0)), np.finfo(float).tiny)
    directions = directions[there][:axes]
    largest = np.abs(directions).argmax(axis=1, keepdims=True)
    directions = directions * np.sign(np.take_along_axis(directions, largest, axis=1))
    places = np.zeros((len(centred), axes))
    places[:, : len(directions)] = centred @ directions.T
    return places + 0.0  # no negative zeros


def by_kernel(kernel: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n 2"]:
    """Places at which elements lie the closer, the more alike the kernel finds them.

    The places are fitted to the distances d_ij of K_ij = exp(−d_ij² / 2), as a Gaussian kernel has them, by
    stress majorisation. Then elements that would cover each other are moved apart, so far that pictures of
    one unit each lie side by side.

    Args:
        kernel: symmetric, with values from 0 to 1 and ones on the diagonal.

    >>> K = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> a, b, c = by_kernel(K)
    >>> bool(np.linalg.norm(a - b) < np.linalg.norm(a - c) / 2)
    True
    """
    n = len(kernel)
    wanted = np.sqrt(-2 * np.log(np.clip((kernel + kernel.T) / 2, SMALLEST, 1.0)))
    np.fill_diagonal(wanted, 0.0)
    if n < 3 or not wanted.any():
        return grid(n)
    places = principal_axes(wanted) + wanted.max() / 4 * _circle(n)  # which parts what falls together
    for _ in range(ROUNDS):
        found = _distances(places)
        ratio = np.divide(wanted, found, out=np.zeros_like(found), where=found > 0)
        places = (ratio.sum(1, keepdims=True) * places - ratio @ places) / n
    return _apart(places * np.sqrt(n) / max(np.abs(places).max(), 1e-9))


def line(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n 2"]:
    """Numbers from left to right, one a step below the other and the sixth on top again.

    On one level, all edges between them would fall together.

    >>> line(np.array([3.0, -1.0])).tolist()
    [[3.0, 0.0], [-1.0, -0.8]]
    """
    step = float(np.ptp(values)) / 5 if len(values) else 0.0
    return np.stack([values, -(step or 1.0) * (np.arange(len(values)) % 5)], axis=1) + 0.0


def grid(n: int) -> Float[np.ndarray, "n 2"]:
    """Places side by side, line by line from the upper left, about as many lines as columns.

    >>> grid(3).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, -1.0]]
    """
    line, column = np.divmod(np.arange(n), max(int(np.ceil(np.sqrt(n))), 1))
    return np.stack([column, 0 - line], axis=1).astype(float)


def described(
    values: Float[np.ndarray, "n d"],
    standard: Float[np.ndarray, "n d"],
    names: Sequence[str],
    *,
    most: int = 4,
) -> tuple[str, ...]:
    """A line on each element: the features in which it is least ordinary, farthest first.

    Args:
        values: the features as they are.
        standard: how many standard deviations each is from its mean.
        names: of the features.
        most: how many features to name.

    >>> described(np.array([[20.0, 3.5]]), np.array([[0.2, -2.0]]), ["age", "size"])
    ('size 3.5 (−2.0 sd), age 20 (+0.2 sd)',)
    """
    order = np.argsort(-np.abs(standard), axis=1, kind="stable")[:, :most]
    return tuple(
        ", ".join(f"{names[j]} {_number(values[i, j])} ({_signed(standard[i, j])} sd)" for j in features)
        for i, features in enumerate(order)
    )


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")  # without negative zeros


def _circle(n: int) -> Float[np.ndarray, "n 2"]:
    angle = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _distances(places: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n n"]:
    distances: Float[np.ndarray, "n n"] = np.linalg.norm(places[:, None] - places[None], axis=-1)
    return distances


def _apart(places: Float[np.ndarray, "n 2"], least: float = 1.0) -> Float[np.ndarray, "n 2"]:
    """Push places that are closer than ``least`` away from each other, little by little."""
    n = len(places)
    away = _circle(n)[:, None] - _circle(n)[None]  # for those at one and the same place
    for _ in range(ROUNDS):
        between = places[:, None] - places[None]
        distance = _distances(places)
        missing = np.where(distance < least, least - distance, 0.0)
        np.fill_diagonal(missing, 0.0)
        if missing.max() < 1e-3:
            break
        direction = np.where(distance[..., None] > 1e-9, between, away)
        length = np.linalg.norm(direction, axis=-1, keepdims=True)
        np.divide(direction, length, out=direction, where=length > 0)
        places = places + 0.3 * (missing[..., None] * direction).sum(1)
    return places
