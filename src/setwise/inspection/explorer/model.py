"""The page of a fitted model: scores on data, learning curves, errors, and sets to explore."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from setwise.estimators.classifier import SetClassifier
from setwise.estimators.load import load
from setwise.inspection.explorer.content import Kind, PageContent, ShownSet
from setwise.inspection.explorer.layout import describe_elements, line, principal_axes
from setwise.inspection.explorer.predictions import Estimator, Prediction, class_name, evaluate
from setwise.inspection.explorer.sections import (
    METHODS,
    NO_GRAPH,
    accuracy_sentence,
    analyse_set,
    choose_sets,
    importance_method,
    learning_curves,
    sample_elements,
)
from setwise.io.readers import LabelledSets, read_for
from setwise.nn.dmps import DMPS
from setwise.tasks import Labels
from setwise.training.loop import flush_denormals


def read_page_content(
    path: Path,
    data: Path | None,
    *,
    sets: int = 12,
    seed: int = 0,
    name: str | None = None,
    set_column: str = "set",
    label_column: str = "label",
) -> PageContent:
    """Collect the content of a page on a model file.

    Args:
        path: the model file.
        data: sets to show, with or without labels; None for a page on the model only.
        sets: number of sets to show.
        seed: random seed for the choice of sets.
        name: data set to read from an npz file that has several.
        set_column: column with the set ID, for tables.
        label_column: column with the label of the set, for tables; required unless it is ``"label"``.
    """
    estimator = load(path)
    if data is None:
        return page_content(estimator, None, title=path.name)
    options = {"name": name, "set_column": set_column, "label_column": label_column}
    labelled = read_for(estimator, data, labels=label_column != "label", **options)
    content = page_content(estimator, labelled, title=path.name, sets=sets, seed=seed)
    return replace(content, facts=(("Data", data.name), *content.facts))


@flush_denormals()
def page_content(
    estimator: Estimator, data: LabelledSets | None, *, title: str, sets: int = 12, seed: int = 0
) -> PageContent:
    """Collect the content of a page on a fitted estimator.

    Args:
        estimator: a fitted estimator.
        data: sets to show, with or without labels; None for a page on the model only.
        title: display name of the model.
        sets: number of sets to show.
        seed: random seed for the choice of sets.
    """
    title = f"{type(estimator).__name__} · {title}"
    facts, curves = _model_facts(estimator), learning_curves({"": estimator.history_})
    if data is None:
        lead = "No data were given, so this page describes the model only."
        return PageContent(title, lead, facts, curves=curves)
    predictions, table, confusion = evaluate(estimator, data)
    chosen = choose_sets([one.correct for one in predictions], sets, seed)
    return PageContent(
        title=title,
        lead=_lead(predictions, chosen, graph=isinstance(estimator.module_.network, DMPS)),
        facts=facts + _data_facts(estimator, data),
        table=table,
        curves=curves,
        confusion=confusion,
        sets=tuple(_shown(estimator, data, i, predictions[i]) for i in chosen),
    )


def _shown(estimator: Estimator, data: LabelledSets, i: int, prediction: Prediction) -> ShownSet:
    """A set of the data with its prediction, graph and importance."""
    whole = data.sets[i]
    x = whole[sample_elements(len(whole)).numpy()]
    inside = estimator.module_.standardized(torch.from_numpy(x))
    units = inside.double().numpy() if estimator.standardize else _standard(x, data.sets.values)
    kind: Kind = "points" if x.shape[1] == 3 else "features"
    shown = ShownSet(
        name=f"set {data.ids[i]}" if data.ids[i].isdecimal() else data.ids[i],
        kind=kind,
        places=_places(x, units),
        label=prediction.label,
        prediction=prediction.predicted,
        correct=prediction.correct,
        scores=prediction.scores,
        elements=describe_elements(x, units, _feature_names(estimator, data)),
    )
    network = estimator.module_.network
    return analyse_set(
        shown, network, inside, output=prediction.output, sign=prediction.sign, whole=len(whole)
    )


def _places(x: Float[np.ndarray, "n d"], units: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n axes"]:
    """Up to three features are used as coordinates; more are projected onto two principal axes."""
    if x.shape[1] > 3:
        return principal_axes(units)
    return line(x[:, 0].astype(float)) if x.shape[1] == 1 else x.astype(float)


def _standard(x: Float[np.ndarray, "n d"], values: Float[np.ndarray, "N d"]) -> Float[np.ndarray, "n d"]:
    """Standardize x by the mean and standard deviation of all elements."""
    spread = values.std(0, dtype=float)
    units: Float[np.ndarray, "n d"] = (x - values.mean(0, dtype=float)) / np.where(spread > 0, spread, 1.0)
    return units


def _feature_names(estimator: Estimator, data: LabelledSets) -> Sequence[str]:
    names = getattr(estimator, "feature_names_in_", data.columns)
    if names is None or len(names) != data.sets.dim:  # the columns may describe sets, not elements
        return [f"f{k + 1}" for k in range(data.sets.dim)]
    return [str(name) for name in names]


def _lead(predictions: Sequence[Prediction], chosen: Sequence[int], *, graph: bool) -> str:
    """The accuracy if it is known, else the number of sets."""
    known = [one.correct for one in predictions if one.correct is not None]
    lead = accuracy_sentence(known, chosen, "sets")
    lead = lead or f"{len(chosen)} of {len(predictions):,} sets are shown below."
    return lead if graph else f"{lead} {NO_GRAPH}"


def _model_facts(estimator: Estimator) -> tuple[tuple[str, str], ...]:
    module = estimator.module_
    facts = [
        ("Features per element", f"{len(module.inputs.mean):,}"),
        ("Epochs", f"{estimator.n_iter_:,}"),
        ("Parameters", f"{sum(p.numel() for p in module.parameters()):,}"),
    ]
    if isinstance(estimator, SetClassifier):
        names = [class_name(value) for value in estimator.classes_]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        heading = "Labels" if isinstance(estimator.task_, Labels) else "Classes"
        facts.insert(0, (heading, ", ".join(names[:8]) + more))
    defaults = type(estimator)().get_params()
    changed = {k: v for k, v in estimator.get_params().items() if v != defaults[k] and k != "network"}
    if changed:
        facts.append(("Settings", ", ".join(f"{name} {value}" for name, value in changed.items())))
    return tuple(facts)


def _data_facts(estimator: Estimator, data: LabelledSets) -> tuple[tuple[str, str], ...]:
    sizes = data.sets.sizes
    low, median, high = (f"{int(size):,}" for size in (sizes.min(), np.median(sizes), sizes.max()))
    method = importance_method(estimator.module_.network, int(np.median(sizes)))
    return (
        ("Sets", f"{len(sizes):,} sets of {low} to {high} elements, median {median}"),
        ("Importance", METHODS[method]),
    )
