"""What an explorer page tells: plain data, gathered from a run or a model, which the page then draws."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Float, Shaped

Kind = Literal["images", "points", "patches", "features"]
"""How the elements of a set are drawn: as pictures, in space, at their place in a slide, or as dots."""


@dataclass(frozen=True, eq=False)
class ShownSet:
    """One set, and what the model made of it.

    Args:
        name: what to call it.
        kind: how to draw its elements.
        places: where the elements lie: two coordinates, or three for points in space. Patches lie at their
            upper left pixel of ``background``.
        weights: the latent graph W; rows sum to one. None where the model has no graph.
        kernel: the learned kernel K behind it, if there is one.
        label: what the set truly is, if known.
        prediction: what the model says.
        correct: whether it is right; None where that cannot be said.
        scores: what the model gives to each class, or the like, by name.
        energies: Dirichlet energy of the features before the first block and after each one.
        importance: how much each element counts for the prediction.
        elements: a line of text on each element, shown when it is looked at.
        groups: what each element truly is, for its colour.
        images: the pictures of the elements, bytes ``[n, h, w]`` in grey or ``[n, h, w, 3]`` in colour.
        background: the slide that patches are cut from, bytes ``[h, w, 3]``.
        patch: side of a patch in pixels of the background.
        remark: a sentence on this graph, e.g. that it is near uniform.
    """

    name: str
    kind: Kind
    places: Float[np.ndarray, "n axes"]
    weights: Float[np.ndarray, "n n"] | None = None
    kernel: Float[np.ndarray, "n n"] | None = None
    label: str | None = None
    prediction: str | None = None
    correct: bool | None = None
    scores: tuple[tuple[str, float], ...] = ()
    energies: tuple[float, ...] = ()
    importance: Float[np.ndarray, " n"] | None = None
    elements: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    images: Shaped[np.ndarray, "n h w *c"] | None = None
    background: Shaped[np.ndarray, "h w c"] | None = None
    patch: int | None = None
    remark: str | None = None


@dataclass(frozen=True)
class Table:
    """A table, its cells as text."""

    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Curve:
    """A quantity over training, as pairs (step, value); curves of one panel share their axes."""

    panel: str
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Confusion:
    """How often sets of each true class (line) were given each class (column)."""

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Story:
    """All that a page shows.

    Args:
        title: of the page.
        lead: a sentence or two below it.
        facts: names and values: data, budget, seed, revision and so on.
        table: results against the paper or the labels.
        curves: learning curves.
        confusion: the confusion matrix, or None where there are no classes.
        sets: those to look into.
    """

    title: str
    lead: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    table: Table | None = None
    curves: tuple[Curve, ...] = ()
    confusion: Confusion | None = None
    sets: tuple[ShownSet, ...] = field(default_factory=tuple)
