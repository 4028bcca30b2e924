"""Implementation of ``setwise predict``, ``setwise inspect`` and ``setwise export``."""

import csv
import io
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from setwise._files import read_json, refuse_same, write_atomically
from setwise._text import few
from setwise.cli.fit import choose_task, score, sidecar
from setwise.cli.tables import TextTable, nonempty_rows, with_error
from setwise.io.readers import LabelledSets, import_pandas, read_for


@dataclass(frozen=True)
class PredictionSummary:
    """The number of sets, the scores, and the reason if there are none although there are labels."""

    sets: int
    scores: dict[str, float]
    note: str = ""

    def __str__(self) -> str:
        scores = [f"{name} {value:.4g}" for name, value in self.scores.items()]
        return ", ".join([f"{self.sets} sets", *scores, *filter(None, [self.note])])


def predict_file(
    model: Path | str, data: Path | str, out: Path | str = "-", **reading: Any
) -> PredictionSummary:
    """Write one row per set: its ID, the prediction, the probabilities, and the label if there is one.

    Args:
        model: the model file.
        data: a file or folder with sets. In a table, features are selected by the names used in training.
        out: a ``.csv``, ``.parquet`` or ``.npz`` file; ``-`` prints CSV.
        **reading: further arguments of `read_sets`: ``set_column``, ``label_column``, ``name``.
    """
    out = Path(out)
    if out != Path("-") and out.suffix.lower() not in (".csv", ".parquet", ".npz"):
        raise ValueError(f"--out must be a .csv, .parquet or .npz file, or -, got {out}")
    refuse_same(out, Path(model), Path(data))
    estimator = _load(model)
    labelled = read_for(estimator, data, **reading)
    probabilities = None
    if hasattr(estimator, "predict_proba"):
        probabilities = estimator.predict_proba(labelled.sets)
        predictions = estimator.decide(probabilities)
    else:
        predictions = estimator.predict(labelled.sets)
    columns = {"set": np.array(labelled.ids), **_as_columns("prediction", predictions)}
    if probabilities is not None:
        columns |= {f"p_{name}": p for name, p in zip(estimator.classes_, probabilities.T, strict=True)}
    if labelled.labels is not None:
        columns |= _as_columns("label", labelled.labels)
    _write_columns(out, columns)
    if labelled.labels is None:
        return PredictionSummary(len(labelled.ids), {})
    scores, note = _compare(estimator, labelled.labels, predictions, probabilities)
    return PredictionSummary(len(labelled.ids), scores, note)


def inspect_file(
    model: Path | str,
    data: Path | str | None = None,
    *,
    set_id: str | None = None,
    k: int = 10,
    **reading: Any,
) -> list[TextTable]:
    """Tables about a model or, if data are given, about its prediction for one set.

    Args:
        model: the model file.
        data: a file or folder with sets.
        set_id: ID of the set; by default the first.
        k: number of edges and elements to list.
        **reading: further arguments of `read_sets`: ``set_column``, ``label_column``, ``name``.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    estimator = _load(model)
    if data is None:
        if set_id is not None:
            raise ValueError(f"expected DATA with the set {set_id!r}, got no data")
        return _describe_model(estimator, Path(model))
    labelled = read_for(estimator, data, **reading)
    if set_id is not None and set_id not in labelled.ids:
        raise ValueError(f"{data}: expected a set with the ID {set_id!r}, got {few(labelled.ids)}")
    return _describe_set(estimator, labelled, 0 if set_id is None else labelled.ids.index(set_id), k)


def export_file(model: Path | str, out: Path | str) -> str:
    """Export a model to ONNX or `torch.export`; returns a description of its inputs and outputs.

    Args:
        model: the model file.
        out: the ``.onnx`` or ``.pt2`` file to write.
    """
    out = Path(out)
    if out.suffix.lower() not in (".onnx", ".pt2"):
        raise ValueError(f"--out must be a .onnx or .pt2 file, got {out}")
    estimator = _load(model)

    from setwise.io.export import TOLERANCE, to_onnx, to_torch_export
    from setwise.tasks import Binary, Classes, Count, Labels, Regression

    width, task = len(estimator.module_.inputs.mean), estimator.task_.name
    classes = getattr(estimator, "classes_", np.array([])).tolist()
    names = list(getattr(estimator, "feature_names_in_", ()))
    if out.suffix.lower() == ".onnx":
        metadata = {"task": task, "classes": json.dumps(classes), "features": json.dumps(names)}
        to_onnx(estimator.module_, out, in_dim=width, metadata=metadata)
    else:
        to_torch_export(estimator.module_, out, in_dim=width)
    meaning = {
        Binary.name: f"the log-odds of class {classes[-1] if classes else ''}",
        Classes.name: f"the logits of the classes {few(classes)}",
        Labels.name: "the log-odds of each label",
        Count.name: "the logarithm of the mean count",
        Regression.name: "the prediction",
    }
    return (
        f"{out}: inputs x [batch, elements, {width}] and mask [batch, elements], output {meaning[task]}; "
        f"outputs differ from those of the model by at most {TOLERANCE:g} of their range"
    )


def _load(model: Path | str) -> Any:
    from setwise.estimators.load import load

    return load(model)


def _as_columns(name: str, values: Any) -> dict[str, Any]:
    """One column ``name``, or columns ``name_0``, ``name_1``, … for several values per set."""
    return {name: values} if values.ndim == 1 else {f"{name}_{i}": v for i, v in enumerate(values.T)}


def _write_columns(out: Path, columns: Mapping[str, Any]) -> None:
    file = io.BytesIO()
    if out.suffix.lower() == ".npz":
        np.savez(file, **columns)
    elif out.suffix.lower() == ".parquet":
        import_pandas("pyarrow").DataFrame(dict(columns)).to_parquet(file, index=False)
    else:
        text = io.StringIO()
        cells = [[f"{v:.9g}" for v in c] if c.dtype.kind == "f" else c for c in columns.values()]
        csv.writer(text, lineterminator="\n").writerows([columns, *zip(*cells, strict=True)])
        if out == Path("-"):
            print(text.getvalue(), end="", flush=True)
            return
        file.write(text.getvalue().encode())
    write_atomically(out, file.getvalue())


def _compare(
    estimator: Any, labels: Any, predictions: Any, probabilities: Any
) -> tuple[dict[str, float], str]:
    """Scores of the predictions, or the reason why there are none."""
    if labels.shape != predictions.shape:
        shapes = f"labels have shape {list(labels.shape)} and predictions {list(predictions.shape)}"
        return {}, f"no score, because {shapes}"
    if labels.dtype.kind == "U" and probabilities is None:
        return {}, "no score, because the labels are strings and the predictions are numbers"
    if probabilities is None:
        return score(labels.astype(np.float64), predictions), ""
    if labels.ndim == 2:
        return score(labels.astype(np.int64), predictions), ""
    classes, predictions = estimator.classes_.astype(str), predictions.astype(str)
    truth = choose_task(labels, "classify")[2].astype(str)
    if not np.isin(truth, classes).any():
        return {}, f"no score, because no label (e.g. {truth[0]}) is among the classes {few(classes)}"
    if len(classes) == 2 and set(truth) == set(classes):
        return score(truth == classes[1], predictions == classes[1], probabilities[:, 1]), ""
    return score(truth, predictions), ""


def _describe_model(estimator: Any, model: Path) -> list[TextTable]:
    module, params = estimator.module_, estimator.get_params(deep=False)
    names = list(getattr(estimator, "feature_names_in_", ()))
    defaults = type(estimator)().get_params(deep=False)
    changed = {name: value for name, value in params.items() if value != defaults[name] and name != "verbose"}
    gammas = {
        id(b.gamma): float(b.gamma.value.detach()) for b in module.network.blocks if hasattr(b, "gamma")
    }
    sigma = getattr(module.network.graph, "sigma", None)
    facts = {
        "model": f"{type(estimator).__name__}, {estimator.task_.name}",
        "classes": few(getattr(estimator, "classes_", ())),
        "features": f"{len(module.inputs.mean)}{': ' if names else ''}{few(names)}",
        "network": f"{params['depth']} × {params['block']}, {params['graph']} graph, {params['pool']} pool",
        "layers": f"{few(params['layers'])} in the encoder, {few(params['hidden'])} in the kernel",
        "weights": f"{sum(weight.numel() for weight in module.parameters()):,}",
        "γ": few([f"{gamma:.3g}" for gamma in gammas.values()]),
        "σ": "" if sigma is None else f"{float(sigma.detach()):.3g}",
        "trained": f"{estimator.n_iter_} epochs",
        "settings": ", ".join(f"{name} {value}" for name, value in changed.items()),
    }
    tables = [TextTable(str(model), (), nonempty_rows(facts))]
    if sidecar(model, "report").is_file():
        match read_json(sidecar(model, "report")):
            case {
                "scores": [{"name": _, "mean": _, "error": _, "trivial": _}, *_] as scores,
                "tested": tested,
            }:
                rows = [(s["name"], with_error(s["mean"], s["error"]), f"{s['trivial']:.4g}") for s in scores]
                tables.append(TextTable(f"tested {tested}", ("score", "model", "baseline"), tuple(rows)))
    return tables


def _describe_set(estimator: Any, labelled: LabelledSets, i: int, k: int) -> list[TextTable]:
    one = labelled.sets[i : i + 1]
    n = len(one.values)
    probabilities = ""
    if hasattr(estimator, "predict_proba"):
        p = estimator.predict_proba(one)[0]
        largest = np.argsort(-p, kind="stable")[:5]
        probabilities = ", ".join(f"{estimator.classes_[j]}: {p[j]:.3g}" for j in largest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # graph.remark() has the same information
        graph = estimator.latent_graph(one)
    clusters = graph.clusters()
    sizes = np.bincount(clusters)
    facts = {
        "elements": str(n),
        "label": "" if labelled.labels is None else few(np.atleast_1d(labelled.labels[i])),
        "prediction": few(np.atleast_1d(estimator.predict(one)[0])),
        "probability": probabilities,
        "graph": graph.remark(),
        "cluster sizes": few([f"{c}: {sizes[c]}" for c in np.argsort(-sizes, kind="stable")]),
        "energy": " → ".join(f"{energy:.3g}" for energy in graph.energies) + " over the blocks",
    }
    kernel = np.full((n, n), np.nan) if graph.kernel is None else graph.kernel
    edges = [
        (f"{a + 1}", f"{b + 1}", f"{w:.4g}", f"{w * n:.3g}", f"{kernel[a, b]:.3g}")
        for a, b, w in graph.top_edges(k)
    ]
    headings = ("element", "element", "mean weight", "× uniform", "kernel")
    tables = [TextTable(f"set {labelled.ids[i]}", (), nonempty_rows(facts))]
    if edges:
        tables.append(TextTable("strongest edges, elements numbered from 1", headings, tuple(edges)))
    values = estimator.element_importance(one)
    largest = np.argsort(-np.abs(values), kind="stable")[:k]
    rows = [(f"{j + 1}", f"{values[j]:+.3g}", f"{clusters[j]}") for j in largest]
    title = "elements most important for the prediction, numbered from 1"
    tables.append(TextTable(title, ("element", "importance", "cluster"), tuple(rows)))
    return tables
