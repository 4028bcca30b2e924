"""The work behind ``setwise predict | inspect | export``: what to do with a model that is there."""

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
from setwise.cli.fit import beside, choose_task, measured
from setwise.cli.tables import Sheet, lines, with_error
from setwise.io.readers import LabelledSets, pandas_with, read_for


@dataclass(frozen=True)
class Predictions:
    """What a model said: of how many sets, how well it did, and why not if that cannot be told."""

    sets: int
    scores: dict[str, float]
    note: str = ""

    def __str__(self) -> str:
        told = [f"{name} {score:.4g}" for name, score in self.scores.items()]
        return ", ".join([f"{self.sets} sets", *told, *filter(None, [self.note])])


def predict_file(model: Path | str, data: Path | str, out: Path | str = "-", **reading: Any) -> Predictions:
    """Write what a model says of each set: its name, the prediction, probabilities, and its label if known.

    Args:
        model: the file of the model.
        data: a file or folder with sets. Of a table, the columns that the model knows by name are used.
        out: ``.csv``, ``.parquet`` or ``.npz``; ``-`` prints CSV.
        **reading: what else `read_sets` takes: ``set_column``, ``label_column``, ``name``.
    """
    out = Path(out)
    if out != Path("-") and out.suffix.lower() not in (".csv", ".parquet", ".npz"):
        raise ValueError(f"out must be a file .csv, .parquet or .npz, or -, got {out}")
    refuse_same(out, Path(model), Path(data))
    estimator = _load(model)
    known = read_for(estimator, data, **reading)
    chances = estimator.predict_proba(known.sets) if hasattr(estimator, "predict_proba") else None
    said = estimator.predict(known.sets) if chances is None else estimator.decide(chances)
    columns = {"set": np.array(known.ids), **_spread("prediction", said)}
    if chances is not None:
        columns |= {f"p_{one}": chance for one, chance in zip(estimator.classes_, chances.T, strict=True)}
    if known.labels is not None:
        columns |= _spread("label", known.labels)
    _write_columns(out, columns)
    if known.labels is None:
        return Predictions(len(known.ids), {})
    return Predictions(len(known.ids), *_agreement(estimator, known.labels, said, chances))


def inspect_file(
    model: Path | str,
    data: Path | str | None = None,
    *,
    set_id: str | None = None,
    k: int = 10,
    **reading: Any,
) -> list[Sheet]:
    """What is in the file of a model or, given data, what the model sees in one set.

    Args:
        model: the file of the model.
        data: a file or folder with sets.
        set_id: which of them; the first unless given.
        k: how many edges and elements to list.
        **reading: what else `read_sets` takes: ``set_column``, ``label_column``, ``name``.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    estimator = _load(model)
    if data is None:
        if set_id is not None:
            raise ValueError(f"expected data with the set {set_id!r} in it, got none")
        return _described(estimator, Path(model))
    known = read_for(estimator, data, **reading)
    if set_id is not None and set_id not in known.ids:
        raise ValueError(f"{data}: expected a set called {set_id!r}, got {few(known.ids)}")
    return _one_set(estimator, known, 0 if set_id is None else known.ids.index(set_id), k)


def export_file(model: Path | str, out: Path | str) -> str:
    """Write a model for other programs, ``.onnx`` or ``.pt2``; returns what there is to know about it.

    Args:
        model: the file of the model.
        out: where to.
    """
    out = Path(out)
    if out.suffix.lower() not in (".onnx", ".pt2"):
        raise ValueError(f"out must be a file .onnx or .pt2, got {out}")
    estimator = _load(model)

    from setwise.io.export import TOLERANCE, to_onnx, to_torch_export

    width, task = len(estimator.module_.mean), type(estimator.task_).__name__
    classes = getattr(estimator, "classes_", np.array([])).tolist()
    names = list(getattr(estimator, "feature_names_in_", ()))
    if out.suffix.lower() == ".onnx":
        told = {"task": task, "classes": json.dumps(classes), "features": json.dumps(names)}
        to_onnx(estimator.module_, out, in_dim=width, metadata=told)
    else:
        to_torch_export(estimator.module_, out, in_dim=width)
    meaning = {
        "Binary": f"the log-odds of class {classes[-1] if classes else ''}",
        "Classes": f"a logit for each of the classes {few(classes)}",
        "Labels": "the log-odds of each label",
        "Count": "the logarithm of the mean count",
        "Regression": "the prediction",
    }
    return (
        f"{out}: x [batch, elements, {width}] and mask [batch, elements] in, {meaning[task]} out; "
        f"differs from the model by less than {TOLERANCE:g} of its largest output"
    )


def _load(model: Path | str) -> Any:
    from setwise.estimators.load import load

    return load(model)


def _spread(name: str, values: Any) -> dict[str, Any]:
    """A column, or one for each of several."""
    return {name: values} if values.ndim == 1 else {f"{name}_{i}": v for i, v in enumerate(values.T)}


def _write_columns(out: Path, columns: Mapping[str, Any]) -> None:
    file = io.BytesIO()
    if out.suffix.lower() == ".npz":
        np.savez(file, **columns)
    elif out.suffix.lower() == ".parquet":
        pandas_with("pyarrow").DataFrame(dict(columns)).to_parquet(file, index=False)
    else:
        text = io.StringIO()
        cells = [[f"{v:.9g}" for v in c] if c.dtype.kind == "f" else c for c in columns.values()]
        csv.writer(text, lineterminator="\n").writerows([columns, *zip(*cells, strict=True)])
        if out == Path("-"):
            print(text.getvalue(), end="", flush=True)
            return
        file.write(text.getvalue().encode())
    write_atomically(out, file.getvalue())


def _agreement(estimator: Any, labels: Any, said: Any, chances: Any) -> tuple[dict[str, float], str]:
    """How predictions compare with labels, and why not if they do not."""
    if labels.shape != said.shape:
        return {}, f"no score, as there are labels {list(labels.shape)} and predictions {list(said.shape)}"
    if (labels.dtype.kind == "U") > (chances is not None):
        return {}, "no score, as the labels are names and the predictions numbers"
    if chances is None:
        return measured(labels.astype(np.float64), said), ""
    if labels.ndim == 2:
        return measured(labels.astype(np.int64), said), ""
    classes, said = estimator.classes_.astype(str), said.astype(str)
    truth = choose_task(labels, "classify")[2].astype(str)
    if not np.isin(truth, classes).any():
        return {}, f"no score, as no label, such as {truth[0]}, is among the classes {few(classes)}"
    if len(classes) == 2 and set(truth) == set(classes):
        return measured(truth == classes[1], said == classes[1], chances[:, 1]), ""
    return measured(truth, said), ""


def _described(estimator: Any, model: Path) -> list[Sheet]:
    module, params = estimator.module_, estimator.get_params(deep=False)
    names = list(getattr(estimator, "feature_names_in_", ()))
    usual = type(estimator)().get_params(deep=False)
    changed = {name: value for name, value in params.items() if value != usual[name] and name != "verbose"}
    gammas = {
        id(b.gamma): float(b.gamma.value.detach()) for b in module.network.blocks if hasattr(b, "gamma")
    }
    sigma = getattr(module.network.graph, "sigma", None)
    facts = {
        "model": f"{type(estimator).__name__}, {type(estimator.task_).__name__.lower()}",
        "classes": few(getattr(estimator, "classes_", ())),
        "features": f"{len(module.mean)}{': ' if names else ''}{few(names)}",
        "network": f"{params['depth']} × {params['block']}, {params['graph']} graph, {params['pool']} pool",
        "layers": f"{few(params['layers'])} in the encoder, {few(params['hidden'])} in the kernel",
        "weights": f"{sum(weight.numel() for weight in module.parameters()):,}",
        "γ": few([f"{gamma:.3g}" for gamma in gammas.values()]),
        "σ": "" if sigma is None else f"{float(sigma.detach()):.3g}",
        "trained": f"{estimator.n_iter_} epochs",
        "settings": ", ".join(f"{name} {value}" for name, value in changed.items()),
    }
    sheets = [Sheet(str(model), (), lines(facts))]
    if beside(model, "report").is_file():
        match read_json(beside(model, "report")):
            case {
                "scores": [{"name": _, "mean": _, "error": _, "trivial": _}, *_] as scores,
                "tested": tested,
            }:
                rows = [(s["name"], with_error(s["mean"], s["error"]), f"{s['trivial']:.4g}") for s in scores]
                sheets.append(Sheet(f"tested {tested}", ("score", "model", "trivial guess"), tuple(rows)))
    return sheets


def _one_set(estimator: Any, known: LabelledSets, i: int, k: int) -> list[Sheet]:
    one = known.sets[i : i + 1]
    n = len(one.values)
    likely = ""
    if hasattr(estimator, "predict_proba"):
        chance = estimator.predict_proba(one)[0]
        first = np.argsort(-chance, kind="stable")[:5]
        likely = ", ".join(f"{estimator.classes_[j]}: {chance[j]:.3g}" for j in first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the remark says it
        graph = estimator.latent_graph(one)
    clusters = graph.clusters()
    sizes = np.bincount(clusters)
    facts = {
        "elements": str(n),
        "label": "" if known.labels is None else few(np.atleast_1d(known.labels[i])),
        "prediction": few(np.atleast_1d(estimator.predict(one)[0])),
        "probability": likely,
        "graph": graph.remark(),
        "cluster sizes": few([f"{c}: {sizes[c]}" for c in np.argsort(-sizes, kind="stable")]),
        "energy": " → ".join(f"{energy:.3g}" for energy in graph.energies) + " over the blocks",
    }
    alike = np.full((n, n), np.nan) if graph.kernel is None else graph.kernel
    edges = [
        (f"{a + 1}", f"{b + 1}", f"{w:.4g}", f"{w * n:.3g}", f"{alike[a, b]:.3g}")
        for a, b, w in graph.top_edges(k)
    ]
    headings = ("element", "element", "mean weight", "× uniform", "kernel")
    sheets = [Sheet(f"set {known.ids[i]}", (), lines(facts))]
    if edges:
        sheets.append(Sheet("strongest edges, elements numbered from 1", headings, tuple(edges)))
    counts = estimator.element_importance(one)
    first = np.argsort(-np.abs(counts), kind="stable")[:k]
    rows = [(f"{j + 1}", f"{counts[j]:+.3g}", f"{clusters[j]}") for j in first]
    title = "elements that count most for the prediction, numbered from 1"
    sheets.append(Sheet(title, ("element", "importance", "cluster"), tuple(rows)))
    return sheets
