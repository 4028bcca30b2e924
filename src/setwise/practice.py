"""The work behind ``setwise fit | predict | inspect | export``: from people's files to a model and back."""

import csv
import hashlib
import io
import json
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import setwise
from setwise.data.reading import Labelled, pandas_with, read_sets
from setwise.experiments.configs import difference
from setwise.files import read_json, write_atomically, write_json

Task = Literal["auto", "classify", "regress", "count"]
CLASSES = 20
"""Different whole numbers up to which they are taken for classes."""
RESAMPLES = 200
"""For the standard error of a score on sets held out."""
ONE_BY_ONE = 2000
"""Elements of the largest set of which each is left out in turn."""


@dataclass(frozen=True)
class Sheet:
    """A table to print: its title, its headings if it has any, and its rows."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __rich__(self) -> Any:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text  # a label in brackets is no markup

        table = Table(show_header=bool(self.headings), box=box.SIMPLE_HEAD if self.headings else None)
        for heading in self.headings or self.rows[0]:
            table.add_column(Text(heading), overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return Group(Text(self.title, style="bold"), table) if self.title else table


@dataclass(frozen=True)
class Score:
    """A score over the folds: its mean and standard error, and the mean for the trivial guess."""

    name: str
    mean: float
    error: float | None
    trivial: float
    folds: tuple[float, ...]


@dataclass(frozen=True)
class Report:
    """What came of fitting a model; the file beside it has all of this, `sheets` the part to print."""

    data: str
    model: str
    task: str
    why: str
    estimator: str
    scores: tuple[Score, ...]
    tested: str
    notes: tuple[str, ...]
    sets: int
    elements: int
    features: int
    sizes: tuple[int, int, int]
    classes: dict[str, int]
    seconds: float
    config: dict[str, Any]
    versions: dict[str, str]

    def sheets(self) -> list[Sheet]:
        """Scores, and the facts about them."""
        least, median, most = self.sizes
        facts = {
            "task": f"{self.task}: {self.why}",
            "sets": str(self.sets),
            "elements": f"{self.elements}, {least} to {most} a set (median {median})",
            "features": str(self.features),
            "classes": _few([f"{name}: {count}" for name, count in self.classes.items()]),
            "tested": self.tested,
            "note": "; ".join(self.notes),
            "time": f"{self.seconds:.0f} s",
            "model": self.model,
        }
        rows = [(s.name, _with_error(s.mean, s.error), f"{s.trivial:.4g}") for s in self.scores]
        told = Sheet(f"{self.estimator} on {self.data}", (), _lines(facts))
        return [told, Sheet("", ("score", "model", "trivial guess"), tuple(rows))] if rows else [told]


def fit_model(
    data: Path | str,
    out: Path | str,
    *,
    task: Task = "auto",
    folds: int = 5,
    holdout: float | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    threads: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    verbose: bool = False,
    **reading: Any,
) -> Report:
    """Choose an estimator for labelled sets, cross-validate it, fit it to all of them and save it.

    Finished folds are kept beside the model, in ``<out>.folds.json``, until it is there; the report goes to
    ``<out>.report.json``.

    Args:
        data: a file or folder, as `setwise.data.reading.read_sets` takes it.
        out: the file of the model.
        task: what the labels are: classes, numbers or counts; ``"auto"`` tells by their looks.
        folds: of the cross-validation; 0 does without.
        holdout: instead of folds, a share of the sets to test on.
        settings: of `SetClassifier` or `SetRegressor`.
        seed: of the folds and of all that is random in training.
        threads: of the processor to use; as many as torch takes unless given.
        overwrite: whether to replace a model that is there.
        resume: whether to take up the finished folds of a run that was interrupted.
        verbose: whether to show progress.
        **reading: what else `read_sets` takes: ``set_column``, ``label_column``, ``group_column``,
            ``features``, ``name``. No group is torn apart between folds.
    """
    began = time.perf_counter()
    data, out = Path(data), Path(out)
    if holdout is not None and not 0 < holdout < 1:
        raise ValueError(f"holdout must lie between 0 and 1, got {holdout}")
    if folds < 0 or folds == 1:
        raise ValueError(f"folds must be at least 2, or 0 for none, got {folds}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must lie between 0 and 2^32, got {seed}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    _need_free(out, overwrite=overwrite)
    if threads is not None:
        torch.set_num_threads(threads)
    known = read_sets(data, **reading)
    chosen, why, labels = choose_task(known.labels, task)
    testing = {"task": chosen, "folds": folds, "holdout": holdout, "seed": seed, "sha256": _digest(data)}
    config = json.loads(json.dumps({**testing, "reading": reading, "settings": dict(settings or {})}))

    def fitted(index: Any, title: str) -> Any:
        estimator = _estimator(chosen, {**(settings or {}), "random_state": seed, "verbose": verbose})
        estimator._title = title  # of its progress bar
        return estimator.fit(known.sets[index], labels[index])

    splits, tested, notes = _splits(known, labels, chosen, folds=folds, holdout=holdout, seed=seed)
    kept = _Kept(_beside(out, "folds"), config, resume=resume)
    for number in range(len(kept.folds), len(splits)):
        title = f"fold {number + 1} of {len(splits)}" if holdout is None else "held out"
        kept.add(_tested(fitted, title, known.sets, labels, *splits[number], alone=holdout is not None))
    whole = fitted(slice(None), "all sets")
    whole.save(out)

    if left := tuple(known.left_out.values()):
        notes = (*notes, f"{len(left)} files have no label and were left out, the first is {left[0]}")
    classes = chosen == "classify" and labels.ndim == 1
    named, counts = np.unique(labels, return_counts=True) if classes else ((), ())
    sizes = known.sets.sizes
    report = Report(
        data=f"{data} ({reading['name']})" if reading.get("name") else str(data),
        model=str(out),
        task=chosen,
        why=why,
        estimator=type(whole).__name__,
        scores=_over_folds(kept.folds),
        tested=tested,
        notes=notes,
        sets=len(sizes),
        elements=int(sizes.sum()),
        features=known.sets.dim,
        sizes=(int(sizes.min()), int(np.median(sizes)), int(sizes.max())),
        classes={str(name): int(count) for name, count in zip(named, counts, strict=True)},
        seconds=round(time.perf_counter() - began, 1),
        config=config,
        versions={"python": platform.python_version(), "setwise": setwise.__version__}
        | {package: version(package) for package in ("torch", "numpy", "scikit-learn")},
    )
    write_json(_beside(out, "report"), asdict(report))
    kept.path.unlink(missing_ok=True)
    return report


# What to learn, and how to test it


def choose_task(labels: Any, task: Task = "auto") -> tuple[str, str, Any]:
    """What the labels are, why that is thought, and the labels as an estimator takes them.

    >>> choose_task(np.array(["ill", "well"]))[:2]
    ('classify', 'the labels are names')
    >>> choose_task(np.array([0.5, 2.0, 1.0]))[:2]
    ('regress', 'the labels have fractions')
    """
    names = labels.dtype.kind == "U"
    whole = not names and bool((labels == np.floor(labels)).all())
    found, why = (task, "as told") if task != "auto" else _looks(labels, names=names, whole=whole)
    if found not in ("classify", "regress", "count"):
        raise ValueError(f"task must be auto, classify, regress or count, got {found!r}")
    if found != "classify" and names:
        raise ValueError(f"labels must be numbers to {found}, got {str(labels.flat[0])!r}")
    if found == "count" and not (whole and labels.min() >= 0):
        raise ValueError("labels must be whole numbers from 0 on to count, got others")
    if found == "classify":
        return found, why, labels.astype(np.int64) if whole else labels
    return found, why, labels.astype(np.float64)


def _looks(labels: Any, *, names: bool, whole: bool) -> tuple[str, str]:
    counts = np.unique(labels, return_counts=True)[1]
    different = len(counts)
    if labels.ndim == 2:
        yes_or_no = not names and bool(np.isin(labels, (0, 1)).all())
        what = f"there are {labels.shape[1]} labels a set, "
        return ("classify", what + "zeros and ones") if yes_or_no else ("regress", what + "numbers")
    if names:
        return "classify", "the labels are names"
    if not whole:
        return "regress", "the labels have fractions"
    if different <= 2 or (different <= min(CLASSES, len(labels) // 5) and counts.min() > 1):
        return "classify", f"the labels are {different} different whole numbers"
    return "regress", f"the labels are {different} different whole numbers, too many for classes"


def _estimator(task: str, settings: Mapping[str, Any]) -> Any:
    from setwise.estimators import SetClassifier, SetRegressor

    if task == "classify":
        return SetClassifier(**settings)
    if "class_weight" in settings:
        raise ValueError(f"class_weight belongs to classes, got it to {task}")
    return SetRegressor(loss="poisson" if task == "count" else "squared_error", **settings)


def _splits(
    known: Labelled, labels: Any, task: str, *, folds: int, holdout: float | None, seed: int
) -> tuple[list[tuple[Any, Any]], str, tuple[str, ...]]:
    """Which sets to train and to test on, what to call that, and remarks on it."""
    from sklearn.model_selection import GroupShuffleSplit, train_test_split

    from setwise.data.folds import stratified_folds

    if holdout is None and not folds:
        return [], "not at all", ()
    everything = np.arange(len(labels))
    limits = {f"there are {len(labels)} sets": len(labels) // 2}  # one in a fold has no variance to explain
    classes = np.zeros(len(labels), np.int64)
    if task == "classify" and labels.ndim == 1:
        named, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if len(named) < 2:
            raise ValueError(f"expected labels of at least two classes, got {named[0]} for every set")
        limits = {f"class {named[counts.argmin()]} has {counts.min()} of the sets": int(counts.min())}
    if known.groups is not None:
        groups = len(np.unique(known.groups))
        limits[f"there are {groups} groups"] = groups
    why, most = min(limits.items(), key=lambda limit: limit[1])
    if most < 2:
        raise ValueError(
            f"expected enough sets to train and to test on, but {why}; 0 folds do without a test"
        )
    if holdout is not None:
        if known.groups is None:
            split = train_test_split(everything, test_size=holdout, random_state=seed, stratify=classes)
        else:
            shuffle = GroupShuffleSplit(1, test_size=holdout, random_state=seed)
            split = next(shuffle.split(everything, groups=known.groups))
        tested = f"on {len(split[1])} sets, held out; ± is a standard error over {RESAMPLES} resamples"
        return [(split[0], split[1])], tested, ()
    notes = (f"{most} folds instead of {folds}, as {why}",) if most < folds else ()
    fold = stratified_folds(classes, min(folds, most), seed=seed, groups=known.groups).numpy()
    splits = [(everything[fold != i], everything[fold == i]) for i in range(min(folds, most))]
    if classes.any() and any(np.ptp(classes[train]) == 0 for train, _ in splits):
        raise ValueError(
            f"expected groups that leave two classes to train on in {len(splits)} folds, got others"
        )
    apart = "" if known.groups is None else ", no group in two of them"
    return splits, f"in {len(splits)} folds{apart}; ± is a standard error over folds", notes


def _tested(
    fitted: Callable[[Any, str], Any],
    title: str,
    sets: Any,
    labels: Any,
    train: Any,
    test: Any,
    *,
    alone: bool,
) -> dict[str, Any]:
    """Fit to some sets, and the scores on others: of the model, and of the trivial guess."""
    model = fitted(train, title)
    truth, said, chance = labels[test], model.predict(sets[test]), None
    if labels.dtype.kind == "f":
        guess = labels[train].mean(0)
    else:
        values, counts = np.unique(labels[train], return_counts=True, axis=0)
        guess = values[counts.argmax()]
        if labels.ndim == 1 and len(model.classes_) == 2:
            chance = model.predict_proba(sets[test])[:, 1]
    none = None if chance is None else np.zeros(len(truth))
    found: dict[str, Any] = {"sets": len(test), "scores": _measured(truth, said, chance)}
    found["trivial"] = _measured(truth, np.broadcast_to(guess, truth.shape), none)
    if alone:
        random = np.random.default_rng(0)
        drawn = random.integers(0, len(truth), (RESAMPLES, len(truth)))
        again = [_measured(truth[i], said[i], None if chance is None else chance[i]) for i in drawn]
        found["errors"] = {
            name: float(np.std([one[name] for one in again if name in one])) for name in found["scores"]
        }
    return found


def _measured(truth: Any, said: Any, chance: Any = None) -> dict[str, float]:
    """Scores of predictions; what is not defined, as where all labels are alike, is left out."""
    from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score

    if truth.dtype.kind == "f":
        varies = len(truth) > 1 and bool(np.ptp(truth, axis=0).all())
        scores = {"R²": float(r2_score(truth, said))} if varies else {}
        return scores | {"mean absolute error": float(mean_absolute_error(truth, said))}
    right = truth == said
    scores = {"accuracy": float((right.all(1) if right.ndim == 2 else right).mean())}
    if right.ndim == 2:
        scores["accuracy of single labels"] = float(right.mean())
    if chance is not None and len(classes := np.unique(truth)) == 2:
        scores["ROC AUC"] = float(roc_auc_score(truth == classes[1], chance))
    return scores


def _over_folds(folds: Sequence[Mapping[str, Any]]) -> tuple[Score, ...]:
    found = []
    for name in dict.fromkeys(name for fold in folds for name in fold["scores"]):
        values = [fold["scores"][name] for fold in folds if name in fold["scores"]]
        trivial = [fold["trivial"][name] for fold in folds if name in fold["scores"]]
        error = folds[0].get("errors", {}).get(name)
        if len(values) > 1:
            error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
        found.append(Score(name, float(np.mean(values)), error, float(np.mean(trivial)), tuple(values)))
    return tuple(found)


class _Kept:
    """The finished folds of a run, on disk until it is over."""

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool) -> None:
        self.path = path
        self.config = config
        self.folds: list[dict[str, Any]] = []
        if not resume or not path.exists():
            return
        match read_json(path):
            case {"config": dict(found), "folds": list(folds)} if found == config:
                self.folds = folds
            case {"config": dict(found)}:
                raise ValueError(
                    f"{path} is of another run ({difference(found, config)}): leave out --resume"
                )
            case _:
                raise ValueError(f"{path} holds no finished folds: leave out --resume")

    def add(self, fold: dict[str, Any]) -> None:
        self.folds.append(fold)
        write_json(self.path, {"config": self.config, "folds": self.folds})


def _digest(data: Path) -> str:
    """Tells one state of the data from another: by content or, of a folder, by sizes and times of files."""
    if data.is_file():
        with data.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    files = sorted(path for path in data.rglob("*") if path.is_file())
    listing = [f"{path.relative_to(data)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return hashlib.sha256("\n".join(listing).encode()).hexdigest()


def _need_free(out: Path, *, overwrite: bool) -> None:
    """Fail before the work, not after it."""
    if out.is_dir():
        raise IsADirectoryError(f"out must be a file for the model, got the folder {out}")
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out} is there already: choose another --out, or --overwrite it")
    write_atomically(trial := out.with_name(f".{out.name}.trial"), b"")
    trial.unlink()


def _beside(model: Path, what: str) -> Path:
    return model.with_name(f"{model.name}.{what}.json")


# What to do with a model


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
    estimator = _load(model)
    known = _read_for(estimator, data, reading)
    said, chances = estimator.predict(known.sets), None
    columns = {"set": np.array(known.ids), **_spread("prediction", said)}
    if hasattr(estimator, "predict_proba"):
        chances = estimator.predict_proba(known.sets)
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
    known = _read_for(estimator, data, reading)
    if set_id is not None and set_id not in known.ids:
        raise ValueError(f"{data}: expected a set called {set_id!r}, got {_few(known.ids)}")
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

    from setwise.export import TOLERANCE, to_onnx, to_torch_export

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
        "Classes": f"a logit for each of the classes {_few(classes)}",
        "Labels": "the log-odds of each label",
        "Count": "the logarithm of the mean count",
        "Regression": "the prediction",
    }
    return (
        f"{out}: x [batch, elements, {width}] and mask [batch, elements] in, {meaning[task]} out; "
        f"differs from the model by less than {TOLERANCE:g} of its largest output"
    )


def _load(model: Path | str) -> Any:
    from setwise.estimators import load

    return load(model)


def _read_for(estimator: Any, data: Path | str, reading: Mapping[str, Any]) -> Labelled:
    names = getattr(estimator, "feature_names_in_", None)
    return read_sets(data, features=None if names is None else list(names), labels=False, **reading)


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
        return _measured(labels.astype(np.float64), said), ""
    if labels.ndim == 2:
        return _measured(labels.astype(np.int64), said), ""
    classes, said = estimator.classes_.astype(str), said.astype(str)
    truth = choose_task(labels, "classify")[2].astype(str)
    if not np.isin(truth, classes).any():
        return {}, f"no score, as no label, such as {truth[0]}, is among the classes {_few(classes)}"
    if len(classes) == 2 and set(truth) == set(classes):
        return _measured(truth == classes[1], said == classes[1], chances[:, 1]), ""
    return _measured(truth, said), ""


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
        "classes": _few(getattr(estimator, "classes_", ())),
        "features": f"{len(module.mean)}{': ' if names else ''}{_few(names)}",
        "network": f"{params['depth']} × {params['block']}, {params['graph']} graph, {params['pool']} pool",
        "layers": f"{_few(params['layers'])} in the encoder, {_few(params['hidden'])} in the kernel",
        "weights": f"{sum(weight.numel() for weight in module.parameters()):,}",
        "γ": _few([f"{gamma:.3g}" for gamma in gammas.values()]),
        "σ": "" if sigma is None else f"{float(sigma.detach()):.3g}",
        "trained": f"{estimator.n_iter_} epochs",
        "settings": ", ".join(f"{name} {value}" for name, value in changed.items()),
    }
    sheets = [Sheet(str(model), (), _lines(facts))]
    if _beside(model, "report").is_file():
        match read_json(_beside(model, "report")):
            case {
                "scores": [{"name": _, "mean": _, "error": _, "trivial": _}, *_] as scores,
                "tested": tested,
            }:
                rows = [
                    (s["name"], _with_error(s["mean"], s["error"]), f"{s['trivial']:.4g}") for s in scores
                ]
                sheets.append(Sheet(f"tested {tested}", ("score", "model", "trivial guess"), tuple(rows)))
    return sheets


def _one_set(estimator: Any, known: Labelled, i: int, k: int) -> list[Sheet]:
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
        "label": "" if known.labels is None else _few(np.atleast_1d(known.labels[i])),
        "prediction": _few(np.atleast_1d(estimator.predict(one)[0])),
        "probability": likely,
        "graph": graph.remark(),
        "cluster sizes": _few([f"{c}: {sizes[c]}" for c in np.argsort(-sizes, kind="stable")]),
        "energy": " → ".join(f"{energy:.3g}" for energy in graph.energies) + " over the blocks",
    }
    alike = np.full((n, n), np.nan) if graph.kernel is None else graph.kernel
    edges = [
        (f"{a}", f"{b}", f"{w:.4g}", f"{w * n:.3g}", f"{alike[a, b]:.3g}") for a, b, w in graph.top_edges(k)
    ]
    headings = ("element", "element", "mean weight", "× uniform", "kernel")
    sheets = [Sheet(f"set {known.ids[i]}", (), _lines(facts))]
    if edges:
        sheets.append(Sheet("strongest edges", headings, tuple(edges)))
    if n <= ONE_BY_ONE:
        counts = estimator.element_importance(one)
        first = np.argsort(-np.abs(counts), kind="stable")[:k]
        rows = [(f"{j}", f"{counts[j]:+.3g}", f"{clusters[j]}") for j in first]
        title = "elements that count most for the prediction"
        sheets.append(Sheet(title, ("element", "importance", "cluster"), tuple(rows)))
    return sheets


def _lines(facts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Those facts that there are."""
    return tuple((what, told) for what, told in facts.items() if told)


def _with_error(mean: float, error: float | None) -> str:
    return f"{mean:.4g}" if error is None else f"{mean:.4g} ± {error:.2g}"


def _few(values: Any) -> str:
    values = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in values]
    return ", ".join(values[:8]) + (f" and {len(values) - 8} more" if len(values) > 8 else "")
