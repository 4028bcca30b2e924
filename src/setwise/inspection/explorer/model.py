"""The story of a fitted model: scores on some data, how training went, mistakes, and sets to look into."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from setwise.estimators.classifier import SetClassifier
from setwise.estimators.load import load
from setwise.inspection.explorer.content import Kind, ShownSet, Story
from setwise.inspection.explorer.layout import described, line, principal_axes
from setwise.inspection.explorer.predictions import Estimator, Verdict, class_name, judge
from setwise.inspection.explorer.sections import (
    METHODS,
    NO_GRAPH,
    chosen,
    curves,
    drawn,
    few,
    method_of,
    share_right,
)
from setwise.io.readers import LabelledSets, read_for
from setwise.nn.dmps import DMPS
from setwise.tasks import Labels
from setwise.training.loop import flush_denormals


def read_story(
    path: Path,
    data: Path | None,
    *,
    sets: int = 12,
    seed: int = 0,
    name: str | None = None,
    set_column: str = "set",
    label_column: str = "label",
) -> Story:
    """Gather what a page tells of a model in a file.

    Args:
        path: of the model.
        data: sets to look at, with labels or without; none for a page on the model alone.
        sets: how many of them to show.
        seed: decides which.
        name: which of several data sets in an npz file.
        set_column: of a table, which set an element belongs to.
        label_column: of a table, the label of a set; it must be there unless it has the usual name.
    """
    estimator = load(path)
    if data is None:
        return story(estimator, None, title=path.name)
    named = {"name": name, "set_column": set_column, "label_column": label_column}
    known = read_for(estimator, data, labels=label_column != "label", **named)
    told = story(estimator, known, title=path.name, sets=sets, seed=seed)
    return replace(told, facts=(("Data", data.name), *told.facts))


@flush_denormals()
def story(
    estimator: Estimator, data: LabelledSets | None, *, title: str, sets: int = 12, seed: int = 0
) -> Story:
    """Gather what a page tells of an estimator.

    Args:
        estimator: fitted.
        data: sets to look at, with labels or without; none for a page on the model alone.
        title: what to call the model.
        sets: how many of them to show.
        seed: decides which.
    """
    title = f"{type(estimator).__name__} · {title}"
    facts, history = _about(estimator), curves({"": estimator.history_})
    if data is None:
        return Story(title, "This page is on the model alone, as no data were given.", facts, curves=history)
    judged = judge(estimator, data)
    picked = chosen([verdict.correct for verdict in judged.verdicts], sets, seed)
    return Story(
        title=title,
        lead=_lead(judged.verdicts, picked, graph=isinstance(estimator.module_.network, DMPS)),
        facts=facts + _about_data(estimator, data),
        table=judged.table,
        curves=history,
        confusion=judged.confusion,
        sets=tuple(_shown(estimator, data, i, judged.verdicts[i]) for i in picked),
    )


def _shown(estimator: Estimator, data: LabelledSets, i: int, verdict: Verdict) -> ShownSet:
    """A set of the data with what the model sees in it."""
    whole = data.sets[i]
    x = whole[few(len(whole)).numpy()]
    inside = estimator.module_.standardized(torch.from_numpy(x))
    units = inside.double().numpy() if estimator.standardize else _standard(x, data.sets.values)
    kind: Kind = "points" if x.shape[1] == 3 else "features"
    shown = ShownSet(
        name=f"set {data.ids[i]}" if data.ids[i].isdecimal() else data.ids[i],
        kind=kind,
        places=_places(x, units),
        label=verdict.truth,
        prediction=verdict.said,
        correct=verdict.correct,
        scores=verdict.scores,
        elements=described(x, units, _feature_names(estimator, data)),
    )
    network = estimator.module_.network
    return drawn(shown, network, inside, output=verdict.output, sign=verdict.sign, whole=len(whole))


def _places(x: Float[np.ndarray, "n d"], units: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n axes"]:
    """Up to three features are places themselves; more are seen from where they differ most."""
    if x.shape[1] > 3:
        return principal_axes(units)
    return line(x[:, 0].astype(float)) if x.shape[1] == 1 else x.astype(float)


def _standard(x: Float[np.ndarray, "n d"], values: Float[np.ndarray, "N d"]) -> Float[np.ndarray, "n d"]:
    """In standard deviations from the mean of all elements."""
    spread = values.std(0, dtype=float)
    units: Float[np.ndarray, "n d"] = (x - values.mean(0, dtype=float)) / np.where(spread > 0, spread, 1.0)
    return units


def _feature_names(estimator: Estimator, data: LabelledSets) -> Sequence[str]:
    names = getattr(estimator, "feature_names_in_", data.columns)
    if (
        names is None or len(names) != data.sets.dim
    ):  # those of a table whose rows are sets are not of elements
        return [f"f{k + 1}" for k in range(data.sets.dim)]
    return [str(name) for name in names]


def _lead(verdicts: Sequence[Verdict], picked: Sequence[int], *, graph: bool) -> str:
    """How many are right, where that is known."""
    known = [v.correct for v in verdicts if v.correct is not None]
    told = share_right(known, picked, "sets") or f"{len(picked)} of {len(verdicts):,} sets are shown below."
    return told if graph else f"{told} {NO_GRAPH}"


def _about(estimator: Estimator) -> tuple[tuple[str, str], ...]:
    """What there is to know of the model."""
    module = estimator.module_
    facts = [
        ("Features of an element", f"{len(module.inputs.mean):,}"),
        ("Epochs", f"{estimator.n_iter_:,}"),
        ("Parameters", f"{sum(p.numel() for p in module.parameters()):,}"),
    ]
    if isinstance(estimator, SetClassifier):
        names = [class_name(value) for value in estimator.classes_]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        what = "Labels" if isinstance(estimator.task_, Labels) else "Classes"
        facts.insert(0, (what, ", ".join(names[:8]) + more))
    defaults = type(estimator)().get_params()
    changed = {k: v for k, v in estimator.get_params().items() if v != defaults[k] and k != "network"}
    if changed:
        facts.append(("Settings", ", ".join(f"{name} {value}" for name, value in changed.items())))
    return tuple(facts)


def _about_data(estimator: Estimator, data: LabelledSets) -> tuple[tuple[str, str], ...]:
    """What there is to know of the sets."""
    sizes = data.sets.sizes
    low, middle, high = (f"{int(size):,}" for size in (sizes.min(), np.median(sizes), sizes.max()))
    method = method_of(estimator.module_.network, int(np.median(sizes)))
    return (
        ("Sets", f"{len(sizes):,} with {low} to {high} elements, mostly about {middle}"),
        ("Importance", METHODS[method]),
    )
