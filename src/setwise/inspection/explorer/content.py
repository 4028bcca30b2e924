"""The content of an explorer page as plain data, collected from a run or a model."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Shaped

Kind = Literal["images", "points", "patches", "features"]
"""How elements are drawn: as images, as points in space, as patches of a slide, or as dots."""


@dataclass(frozen=True, eq=False)
class ShownSet:
    """One set and the model's output for it.

    Args:
        name: display name.
        kind: how to draw the elements.
        places: coordinates of the elements: two, or three for points in space. For patches, the upper left
            pixel in ``background``.
        weights: the latent graph W; rows sum to one. None if the model has no graph.
        kernel: the kernel K behind it, if there is one.
        label: true label, if known.
        prediction: predicted label.
        correct: whether the prediction is correct; None if that is unknown.
        scores: the model's score for each class, by name.
        energies: Dirichlet energy of the features before the first block and after each one.
        importance: importance of each element for the prediction.
        elements: one line of text per element.
        groups: true group of each element, drawn as its colour.
        images: images of the elements, uint8, ``[n, h, w]`` in grey or ``[n, h, w, 3]`` in colour.
        background: the slide that patches are cut from, uint8, ``[h, w, 3]``.
        patch: side of a patch in pixels of the background.
        remark: a sentence on the graph, e.g. that it is near uniform.
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
    """A table with text cells."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Curve:
    """A quantity over training as pairs (step, value); curves of one panel share their axes."""

    panel: str
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix: ``counts[i][j]`` sets of true class i were predicted as class j."""

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PageContent:
    """Everything that a page shows.

    Args:
        title: of the page.
        lead: one or two sentences below the title.
        facts: pairs (name, value): data, budget, seed, revision and so on.
        table: results next to those of the paper, or scores per class.
        curves: learning curves.
        confusion: the confusion matrix; None if there are no classes.
        sets: the sets to explore.
    """

    title: str
    lead: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    table: Table | None = None
    curves: tuple[Curve, ...] = ()
    confusion: Confusion | None = None
    sets: tuple[ShownSet, ...] = ()
