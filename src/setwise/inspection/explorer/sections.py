"""Sections that the pages of runs and of models share."""

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

MAX_ELEMENTS = 1_000
"""Elements shown per set; of a larger set, this many are drawn at random."""
MAX_LEAVE_ONE_OUT = 499
"""Size of the largest set whose elements are left out one by one; larger sets use integrated gradients."""
GRADIENT_STEPS = 8
"""Steps of integrated gradients."""
MAX_PLACED_BY_KERNEL = 60
"""Size of the largest set of images that is laid out by the kernel; larger sets are laid out in a grid."""
TOP_CLASSES = 5
NO_GRAPH = "The model has no latent graph, so sets are shown without edges."

METHODS: Mapping[str, str] = {
    "attention": "attention weight of the element",
    "leave-one-out": "decrease of the predicted score when the element is left out",
    "integrated-gradients": "integrated gradients of the predicted score, from the mean element",
}


def importance_method(model: nn.Module, elements: int) -> Method:
    """The importance method for sets of this size; pages with many sets need a fast one."""
    return method_for(model, elements, most=MAX_LEAVE_ONE_OUT)


def analyse_set(
    shown: ShownSet,
    model: nn.Module,
    x: Shaped[Tensor, "n ..."],
    *,
    output: int,
    sign: float = 1.0,
    whole: int,
) -> ShownSet:
    """Add the latent graph, the energies and the importance of each element to a set.

    Args:
        shown: the set without them.
        model: any ``(x, mask) → [b, k]``; only a DMPS has a graph.
        x: the elements as the model takes them.
        output: index of the output behind the prediction.
        sign: −1 if a low output favours the prediction.
        whole: number of elements of the whole set; ``x`` may be a part of it.
    """
    shown = replace(shown, importance=_importance(model, x, output, sign))
    part = f"Only {len(x):,} of its {whole:,} elements and the graph between them are shown."
    remarks = [part] if len(x) < whole else []
    if isinstance(model, DMPS):
        graph = SetGraph.of(model, x)
        remarks.insert(0, _remark(graph))
        shown = replace(
            shown,
            weights=graph.weights,
            kernel=graph.kernel,
            energies=tuple(graph.energies.tolist()),
        )
        if shown.kind == "images" and graph.kernel is not None and len(x) <= MAX_PLACED_BY_KERNEL:
            shown = replace(shown, places=by_kernel(graph.kernel))
    return replace(shown, remark=" ".join(filter(None, remarks)) or None)


def sample_elements(n: int) -> Int[Tensor, " some"]:
    """Indices of the elements to show: all n of them, or a random sample of a large set."""
    if n <= MAX_ELEMENTS:
        return torch.arange(n)
    return torch.randperm(n, generator=generator("shown elements", n))[:MAX_ELEMENTS].sort().values


def _importance(model: nn.Module, x: Tensor, output: int, sign: float) -> Float[np.ndarray, " n"] | None:
    """The importance of each element for an output; None for elements without a gradient."""
    method = importance_method(model, len(x))
    try:
        values = importance(model, x.unsqueeze(0), method=method, output=output, steps=GRADIENT_STEPS)[0]
    except ValueError:  # integers have no gradient
        return None
    signed: Float[np.ndarray, " n"] = (1.0 if method == "attention" else sign) * values.double().cpu().numpy()
    return signed


def _remark(graph: SetGraph) -> str:
    try:
        return graph.remark()
    except ModuleNotFoundError:  # without scipy there are no clusters
        return ""


def subset(shown: ShownSet, index: Int[Tensor, " some"]) -> ShownSet:
    """Keep some elements of a set."""
    if len(index) == len(shown.places):
        return shown
    return replace(
        shown,
        places=shown.places[index.numpy()],
        images=None if shown.images is None else shown.images[index.numpy()],
        elements=tuple(shown.elements[i] for i in index.tolist()) if shown.elements else (),
        groups=tuple(shown.groups[i] for i in index.tolist()) if shown.groups else (),
    )


def choose_sets(correct: Sequence[bool | None], count: int, seed: int) -> list[int]:
    """Draw the sets to show at random, half of them wrong predictions if there are enough; sorted.

    >>> correct = [True] * 6 + [False] * 3
    >>> sorted(correct[i] for i in choose_sets(correct, 4, seed=0))
    [False, False, True, True]
    """
    if count < 0:
        raise ValueError(f"sets must not be negative, got {count}")
    order = torch.randperm(len(correct), generator=generator("shown", seed)).tolist()
    wrong = [i for i in order if correct[i] is False]
    others = [i for i in order if correct[i] is not False]
    errors = wrong[: max(count // 2, count - len(others))]
    return sorted(errors + others[: count - len(errors)])


def confusion_matrix(labels: Sequence[str], predicted: Sequence[str], classes: Iterable[str]) -> Confusion:
    """Count the sets of each pair (label, predicted class).

    >>> confusion_matrix(["a", "a", "b"], ["a", "b", "b"], "ab").counts
    ((1, 1), (0, 1))
    """
    names = tuple(classes)
    index = {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)), dtype=int)
    for label, prediction in zip(labels, predicted, strict=True):
        counts[index[label], index[prediction]] += 1
    return Confusion(names, tuple(tuple(row) for row in counts.tolist()))


def accuracy_sentence(correct: Sequence[bool], chosen: Sequence[int], what: str) -> str | None:
    """State the accuracy, the number of sets shown, and the number of errors among them.

    >>> accuracy_sentence([True, True, True, False], [0, 3], "sets")
    'Accuracy 75.0% on 4 sets. Sets shown below: 2, wrong predictions among them: 1.'
    """
    if not correct:
        return None
    wrong = sum(not correct[i] for i in chosen)
    return (
        f"Accuracy {sum(correct) / len(correct):.1%} on {len(correct):,} {what}. "
        f"Sets shown below: {len(chosen)}, wrong predictions among them: {wrong}."
    )


def top_classes(probabilities: Sequence[float], classes: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """The five most probable classes.

    >>> top_classes([0.2, 0.8], ["cat", "dog"])
    (('dog', 0.8), ('cat', 0.2))
    """
    pairs = zip(classes, probabilities, strict=True)
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:TOP_CLASSES])


GRAPH_METRICS = {
    "effective_neighbours": "effective neighbours",
    "saturated": "saturated fraction of the embedding",
    "sigma": "bandwidth σ",
    "gamma": "diffusion coefficient γ",
}
"""Panel titles of the metrics of a learned graph."""


def learning_curves(metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Curve, ...]:
    """Loss, scores, learning rate and graph metrics over training.

    Curves with a single point, constant settings and duplicates are left out.

    Args:
        metrics: the log entries of each training, by name; the name of a single training is empty.
    """
    curves: dict[tuple[str, tuple[tuple[float, float], ...]], Curve] = {}
    for training, entries in metrics.items():
        for key in dict.fromkeys(
            key for entry in entries for key in entry if key not in ("step", "evenness")
        ):
            points = tuple((float(e["step"]), float(e[key])) for e in entries if key in e)
            constant = len({value for _, value in points}) == 1
            if len(points) > 1 and not (key in ("lr", "gamma") and constant):
                panel, name = _panel_and_name(key, training)
                curves.setdefault((panel, points), Curve(panel, name, points))
    return tuple(curves.values())


def _panel_and_name(key: str, training: str) -> tuple[str, str]:
    if key == "lr":
        return "learning rate", "learning rate"
    if key in GRAPH_METRICS:
        return GRAPH_METRICS[key], training or GRAPH_METRICS[key]
    score = key.removeprefix("validation_").replace("_", " ")
    panel = "accuracy" if score.startswith("accuracy") else score
    words = ("validation" if key.startswith("validation_") else "training", score[len(panel) :], training)
    return panel, ", ".join(word.strip() for word in words if word)
