"""What the stories of runs and of models have in common."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from setwise.inspection.explorer.content import Confusion, Curve, ShownSet
from setwise.inspection.explorer.layout import by_kernel
from setwise.inspection.importance import Method, importance, method_for
from setwise.inspection.set_graph import SetGraph
from setwise.nn.dmps import DMPS
from setwise.training.seeding import generator

LARGEST = 1_000
"""Elements of a set that are shown; of a larger one, so many drawn at random."""
MANY = 500
"""Elements from which on leaving out each one would take too long."""
STEPS = 8
"""Gradients on the way from a set of ordinary elements, where there are many."""
MOVED = 60
"""Pictures that find their places by the kernel; more of them lie in a grid."""
LIKELIEST = 5
NO_GRAPH = "It has no latent graph, so that sets are shown without edges."

METHODS: Mapping[str, str] = {
    "attention": "the weight that the model's attention gives to an element",
    "leave-one-out": "what the prediction would lose without an element",
    "integrated-gradients": "gradients of the prediction, integrated on the way from equal elements to these",
}


def method_of(model: nn.Module, elements: int) -> Method:
    """How a page, which has many sets, tells what counts in one of so many elements."""
    return method_for(model, elements, most=MANY - 1)


def drawn(
    shown: ShownSet,
    model: nn.Module,
    x: Shaped[Tensor, "n ..."],
    *,
    output: int,
    sign: float = 1.0,
    whole: int,
) -> ShownSet:
    """The set with the graph that a model sees in it, and with how much each element counts.

    Args:
        shown: what is known without the model.
        model: any ``(x, mask) → [b, k]``; only a DMPS has a graph.
        x: the elements, as the model takes them.
        output: the number of the output that the prediction was made by.
        sign: −1 where the prediction is what speaks against that output.
        whole: how many elements the set has, of which these may be a part.
    """
    shown = replace(shown, importance=_importance(model, x, output, sign))
    some = f"These are {len(x):,} of its {whole:,} elements, and the graph over these alone."
    remarks = [some] if len(x) < whole else []
    if isinstance(model, DMPS):
        graph = SetGraph.of(model, x)
        remarks.insert(0, _remark(graph))
        shown = replace(
            shown,
            weights=graph.weights,
            kernel=graph.kernel,
            energies=tuple(graph.energies.tolist()),
        )
        if shown.kind == "images" and graph.kernel is not None and len(x) <= MOVED:
            shown = replace(shown, places=by_kernel(graph.kernel))
    return replace(shown, remark=" ".join(filter(None, remarks)) or None)


def few(n: int) -> Int[Tensor, " some"]:
    """Which of n elements to show: all, or of very many some that are drawn at random."""
    if n <= LARGEST:
        return torch.arange(n)
    return torch.randperm(n, generator=generator("shown elements", n))[:LARGEST].sort().values


def _importance(model: nn.Module, x: Tensor, output: int, sign: float) -> Float[np.ndarray, " n"] | None:
    """How much each element counts for an output; None where that cannot be told."""
    method = method_of(model, len(x))
    try:
        found = importance(model, x.unsqueeze(0), method=method, output=output, steps=STEPS)[0]
    except ValueError:  # pixels that are no floating-point numbers have no gradient
        return None
    values: Float[np.ndarray, " n"] = (1.0 if method == "attention" else sign) * found.double().cpu().numpy()
    return values


def _remark(graph: SetGraph) -> str:
    try:
        return graph.remark()
    except ModuleNotFoundError:  # it counts clusters with scipy, which a page can do without
        return ""


def part(shown: ShownSet, index: Int[Tensor, " some"]) -> ShownSet:
    """The same set with some of its elements."""
    if len(index) == len(shown.places):
        return shown
    return replace(
        shown,
        places=shown.places[index.numpy()],
        images=None if shown.images is None else shown.images[index.numpy()],
        elements=tuple(shown.elements[i] for i in index.tolist()) if shown.elements else (),
        groups=tuple(shown.groups[i] for i in index.tolist()) if shown.groups else (),
    )


def chosen(correct: Sequence[bool | None], count: int, seed: int) -> list[int]:
    """Which sets to show: wrong ones for half of them if there are so many, drawn at random; in order.

    >>> correct = [True] * 6 + [False] * 3
    >>> sorted(correct[i] for i in chosen(correct, 4, seed=0))
    [False, False, True, True]
    """
    if count < 0:
        raise ValueError(f"sets must not be negative, got {count}")
    order = torch.randperm(len(correct), generator=generator("shown", seed)).tolist()
    wrong = [i for i in order if correct[i] is False]
    others = [i for i in order if correct[i] is not False]
    mistakes = wrong[: max(count // 2, count - len(others))]
    return sorted(mistakes + others[: count - len(mistakes)])


def confusion(truth: Sequence[str], said: Sequence[str], classes: Iterable[str]) -> Confusion:
    """How often each class was taken for which, over sets whose truth is known.

    >>> confusion(["a", "a", "b"], ["a", "b", "b"], "ab").counts
    ((1, 1), (0, 1))
    """
    names = tuple(classes)
    place = {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)), dtype=int)
    for true, predicted in zip(truth, said, strict=True):
        counts[place[true], place[predicted]] += 1
    return Confusion(names, tuple(tuple(row) for row in counts.tolist()))


def share_right(correct: Sequence[bool], picked: Sequence[int], what: str) -> str | None:
    """A sentence on how many there are, are right, and are shown.

    >>> share_right([True, True, True, False], [0, 3], "sets")
    'Of 4 sets it gets 75.0% right; 2 of them are shown below, 1 of which it gets wrong.'
    """
    if not correct:
        return None
    wrong = sum(not correct[i] for i in picked)
    return (
        f"Of {len(correct):,} {what} it gets {sum(correct) / len(correct):.1%} right; "
        f"{len(picked)} of them are shown below, {wrong} of which it gets wrong."
    )


def likeliest(probabilities: Sequence[float], classes: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """The classes with the largest probabilities: two, or five of many.

    >>> likeliest([0.2, 0.8], ["cat", "dog"])
    (('dog', 0.8), ('cat', 0.2))
    """
    pairs = zip(classes, probabilities, strict=True)
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:LIKELIEST])


HEALTH = {
    "effective_neighbours": "effective neighbours",
    "saturated": "saturated share of the embedding",
    "sigma": "bandwidth σ",
    "gamma": "diffusion coefficient γ",
}
"""Panels of the measurements of a learned graph."""


def curves(metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Curve, ...]:
    """Loss, scores, learning rate and health of the graph over training.

    Curves of a single point, constant settings and duplicates are left out.

    Args:
        metrics: the entries of each training, with their steps; the name of a single one is empty.
    """
    found: dict[tuple[str, tuple[tuple[float, float], ...]], Curve] = {}
    for training, entries in metrics.items():
        for key in dict.fromkeys(
            key for entry in entries for key in entry if key not in ("step", "evenness")
        ):
            points = tuple((float(e["step"]), float(e[key])) for e in entries if key in e)
            constant = len({value for _, value in points}) == 1
            if len(points) > 1 and not (key in ("lr", "gamma") and constant):
                panel, name = _place(key, training)
                found.setdefault((panel, points), Curve(panel, name, points))
    return tuple(found.values())


def _place(key: str, training: str) -> tuple[str, str]:
    """The panel and the name of a metric's curve."""
    if key == "lr":
        return "learning rate", "learning rate"
    if key in HEALTH:
        return HEALTH[key], training or HEALTH[key]
    score = key.removeprefix("validation_").replace("_", " ")
    panel = "accuracy" if score.startswith("accuracy") else score
    words = ("validation" if key.startswith("validation_") else "training", score[len(panel) :], training)
    return panel, ", ".join(word.strip() for word in words if word)
