"""Implementation of ``setwise fit``: read sets, cross-validate an estimator, fit it and save it."""

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import setwise
from setwise import collectives
from setwise._files import locked, read_json, refuse_same, write_atomically, write_json
from setwise._text import few
from setwise.cli.tables import TextTable, nonempty_rows, with_error
from setwise.experiments.config import difference
from setwise.io.readers import LabelledSets, read_sets
from setwise.training.checkpoint import CHECKPOINT

Task = Literal["auto", "classify", "regress", "count"]
MAX_INTEGER_CLASSES = 20
"""Integer labels with more distinct values than this are regression targets by default."""
RESAMPLES = 200
"""Bootstrap samples for the standard error of a score on held-out sets."""


@dataclass(frozen=True)
class Score:
    """A score: mean, standard error and values over the folds, and the mean of a constant prediction."""

    name: str
    mean: float
    error: float | None
    trivial: float
    folds: tuple[float, ...]


@dataclass(frozen=True)
class Report:
    """The report of a fit, which is also written to a JSON file; `tables` is the part to print."""

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

    def tables(self) -> list[TextTable]:
        """A table about the data and the model, and a table of scores."""
        smallest, median, largest = self.sizes
        facts = {
            "task": f"{self.task}: {self.why}",
            "sets": str(self.sets),
            "elements": f"{self.elements}, {smallest} to {largest} per set (median {median})",
            "features": str(self.features),
            "classes": few([f"{name}: {count}" for name, count in self.classes.items()]),
            "tested": self.tested,
            "note": "; ".join(self.notes),
            "time": f"{self.seconds:.0f} s",
            "model": self.model,
        }
        rows = [(s.name, with_error(s.mean, s.error), f"{s.trivial:.4g}") for s in self.scores]
        about = TextTable(f"{self.estimator} on {self.data}", (), nonempty_rows(facts))
        return [about, TextTable("", ("score", "model", "baseline"), tuple(rows))] if rows else [about]


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
    """Choose an estimator for labelled sets, cross-validate it, fit it to all sets and save it.

    While the run is in progress, finished folds are stored in ``<out>.folds.json`` and checkpoints in the
    folder ``.<out>.work``. The report is written to ``<out>.report.json``.

    Args:
        data: a file or folder that `setwise.io.read_sets` can read.
        out: the model file to write.
        task: ``"classify"``, ``"regress"`` or ``"count"``; ``"auto"`` infers the task from the labels.
        folds: number of cross-validation folds; 0 skips the evaluation.
        holdout: fraction of the sets to test on, instead of cross-validation.
        settings: arguments of `SetClassifier` or `SetRegressor`.
        seed: random seed of the folds and of the training.
        threads: number of CPU threads; by default torch decides.
        overwrite: whether to replace an existing model.
        resume: whether to continue an interrupted run.
        verbose: whether to show progress.
        **reading: further arguments of `read_sets`: ``set_column``, ``label_column``, ``group_column``,
            ``features``, ``name``. All sets of a group are kept in one fold.
    """
    start = time.perf_counter()
    data, out = Path(data), Path(out)
    if holdout is not None and not 0 < holdout < 1:
        raise ValueError(f"holdout must lie between 0 and 1, got {holdout}")
    if folds < 0 or folds == 1:
        raise ValueError(f"folds must be at least 2, or 0 for none, got {folds}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must lie between 0 and 2^32, got {seed}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if threads is not None:
        torch.set_num_threads(threads)
    collectives.initialize()
    if collectives.is_first():
        _check_out(out, data, overwrite=overwrite)
    labelled = read_sets(data, **reading)
    chosen, why, labels = choose_task(labelled.labels, task)
    evaluation = {"task": chosen, "folds": folds, "holdout": holdout, "seed": seed, "sha256": _digest(data)}
    config = json.loads(json.dumps({**evaluation, "reading": reading, "settings": dict(settings or {})}))

    work = out.with_name(f".{out.name}.work")

    def fit_to(index: Any, title: str) -> Any:
        bar = title if verbose else False
        estimator = _estimator(chosen, {**(settings or {}), "random_state": seed, "verbose": bar})
        estimator.checkpoints = work / title.replace(" ", "-")
        return estimator.fit(labelled.sets[index], labels[index]).set_params(verbose=False)

    splits, tested, notes = _splits(labelled, labels, chosen, folds=folds, holdout=holdout, seed=seed)
    with _locked(work):
        progress = _RunProgress(sidecar(out, "folds"), work, config, resume=resume)
        with progress.removed_on_early_failure():
            for i in range(len(progress.folds), len(splits)):
                title = f"fold {i + 1} of {len(splits)}" if holdout is None else "held out"
                bootstrap = holdout is not None
                progress.add(_evaluate(fit_to, title, labelled.sets, labels, *splits[i], bootstrap=bootstrap))
            final = fit_to(slice(None), "all sets")
        if collectives.is_first():
            final.save(out)

    if left_out := tuple(labelled.left_out.values()):
        notes = (*notes, f"{len(left_out)} files were left out for lack of a label, first: {left_out[0]}")
    one_class_per_set = chosen == "classify" and labels.ndim == 1
    classes, counts = np.unique(labels, return_counts=True) if one_class_per_set else ((), ())
    sizes = labelled.sets.sizes
    report = Report(
        data=f"{data} ({reading['name']})" if reading.get("name") else str(data),
        model=str(out),
        task=chosen,
        why=why,
        estimator=type(final).__name__,
        scores=_summarize(progress.folds),
        tested=tested,
        notes=notes,
        sets=len(sizes),
        elements=int(sizes.sum()),
        features=labelled.sets.dim,
        sizes=(int(sizes.min()), int(np.median(sizes)), int(sizes.max())),
        classes={str(name): int(count) for name, count in zip(classes, counts, strict=True)},
        seconds=round(time.perf_counter() - start, 1),
        config=config,
        versions={"python": platform.python_version(), "setwise": setwise.__version__}
        | {package: version(package) for package in ("torch", "numpy", "scikit-learn")},
    )
    if collectives.is_first():
        write_json(sidecar(out, "report"), asdict(report))
        progress.remove()
    return report


# The task, the estimator and the evaluation


def choose_task(labels: Any, task: Task = "auto") -> tuple[str, str, Any]:
    """The task, the reason for it, and the labels converted for the estimator.

    >>> choose_task(np.array(["ill", "well"]))[:2]
    ('classify', 'the labels are strings')
    >>> choose_task(np.array([0.5, 2.0, 1.0]))[:2]
    ('regress', 'the labels are not integers')
    """
    strings = labels.dtype.kind == "U"
    integers = not strings and bool((labels == np.floor(labels)).all())
    chosen: str = task
    why = "chosen by the user"
    if task == "auto":
        chosen, why = _infer_task(labels, strings=strings, integers=integers)
    if chosen not in ("classify", "regress", "count"):
        raise ValueError(f"task must be auto, classify, regress or count, got {chosen!r}")
    if chosen != "classify" and strings:
        raise ValueError(f"task {chosen} needs labels that are numbers, got {str(labels.flat[0])!r}")
    if chosen == "count" and not (integers and labels.min() >= 0):
        bad = labels[(labels < 0) | (labels != np.floor(labels))]
        raise ValueError(f"task count needs labels that are integers, 0 or more, got {bad.flat[0]}")
    if chosen == "classify":
        return chosen, why, labels.astype(np.int64) if integers else labels
    return chosen, why, labels.astype(np.float64)


def _infer_task(labels: Any, *, strings: bool, integers: bool) -> tuple[str, str]:
    if labels.ndim == 2:
        binary = not strings and bool(np.isin(labels, (0, 1)).all())
        several = f"there are {labels.shape[1]} labels per set"
        return ("classify", f"{several}, all 0 or 1") if binary else ("regress", f"{several}, all numbers")
    if strings:
        return "classify", "the labels are strings"
    if not integers:
        return "regress", "the labels are not integers"
    counts = np.unique(labels, return_counts=True)[1]
    distinct = len(counts)
    if distinct <= 2 or (distinct <= min(MAX_INTEGER_CLASSES, len(labels) // 5) and counts.min() > 1):
        return "classify", f"the labels are integers with {distinct} distinct values"
    return "regress", f"the labels are integers with {distinct} distinct values, too many for classes"


def _estimator(task: str, settings: Mapping[str, Any]) -> Any:
    from setwise.estimators.classifier import SetClassifier
    from setwise.estimators.regressor import SetRegressor

    if task == "classify":
        return SetClassifier(**settings)
    if "class_weight" in settings:
        raise ValueError(f"class_weight (--balanced) is only for the task classify, got the task {task}")
    return SetRegressor(loss="poisson" if task == "count" else "squared_error", **settings)


def _splits(
    labelled: LabelledSets, labels: Any, task: str, *, folds: int, holdout: float | None, seed: int
) -> tuple[list[tuple[Any, Any]], str, tuple[str, ...]]:
    """Indices of training and test sets of each fold, a description of the evaluation, and notes on it."""
    from sklearn.model_selection import (
        GroupShuffleSplit,
        StratifiedGroupKFold,
        StratifiedKFold,
        train_test_split,
    )

    if holdout is None and not folds:
        return [], "not evaluated", ()
    index, groups = np.arange(len(labels)), labelled.groups
    limits = {f"there are {len(labels)} sets": len(labels) // 2}  # R² needs two sets per fold
    classes = np.zeros(len(labels), np.int64)
    if task == "classify" and labels.ndim == 1:
        names, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if len(names) < 2:
            raise ValueError(f"expected labels of at least two classes, got {names[0]} for every set")
        limits = {f"class {names[counts.argmin()]} has {counts.min()} sets": int(counts.min())}
    if groups is not None:
        distinct = len(np.unique(groups))
        limits[f"there are {distinct} groups"] = distinct
    why, most = min(limits.items(), key=lambda limit: limit[1])
    if most < 2:
        raise ValueError(
            f"expected enough sets to train and test on, but {why}; --folds 0 skips the evaluation"
        )
    if holdout is not None:
        if groups is None:
            split = train_test_split(index, test_size=holdout, random_state=seed, stratify=classes)
        else:
            split = next(
                GroupShuffleSplit(1, test_size=holdout, random_state=seed).split(index, groups=groups)
            )
        tested = f"on {len(split[1])} held-out sets; ± is a standard error over {RESAMPLES} bootstrap samples"
        return [(split[0], split[1])], tested, ()
    notes = (f"{most} folds instead of {folds}, because {why}",) if most < folds else ()
    splitter = StratifiedKFold if groups is None else StratifiedGroupKFold
    folded = splitter(min(folds, most), shuffle=True, random_state=seed).split(index, classes, groups)
    splits = [(train, test) for train, test in folded]
    if groups is not None and classes.any() and any(np.ptp(classes[train]) == 0 for train, _ in splits):
        raise ValueError(
            "expected groups such that the training sets of every fold have two classes, "
            f"got {len(np.unique(groups))} groups for {len(splits)} folds"
        )
    together = "" if groups is None else ", each group kept in one fold"
    return splits, f"in {len(splits)} folds{together}; ± is a standard error over folds", notes


def _evaluate(
    fit_to: Callable[[Any, str], Any],
    title: str,
    sets: Any,
    labels: Any,
    train: Any,
    test: Any,
    *,
    bootstrap: bool,
) -> dict[str, Any]:
    """Fit to the training sets, and score the model and a constant prediction on the test sets."""
    model = fit_to(train, title)
    truth, predictions, probability = labels[test], model.predict(sets[test]), None
    if labels.dtype.kind == "f":
        constant = labels[train].mean(0)
    else:
        values, counts = np.unique(labels[train], return_counts=True, axis=0)
        constant = values[counts.argmax()]
        if labels.ndim == 1 and len(model.classes_) == 2:
            probability = model.predict_proba(sets[test])[:, 1]
    no_information = None if probability is None else np.zeros(len(truth))
    fold: dict[str, Any] = {
        "sets": len(test),
        "scores": score(truth, predictions, probability),
        "trivial": score(truth, np.broadcast_to(constant, truth.shape), no_information),
    }
    if bootstrap:
        samples = np.random.default_rng(0).integers(0, len(truth), (RESAMPLES, len(truth)))
        scores = [
            score(truth[i], predictions[i], None if probability is None else probability[i]) for i in samples
        ]
        fold["errors"] = {
            name: float(np.std([s[name] for s in scores if name in s])) for name in fold["scores"]
        }
    return fold


def score(truth: Any, predictions: Any, probability: Any = None) -> dict[str, float]:
    """Scores of predictions, without those that are undefined because all labels are equal."""
    from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score

    if truth.dtype.kind == "f":
        varies = len(truth) > 1 and bool(np.ptp(truth, axis=0).all())
        scores = {"R²": float(r2_score(truth, predictions))} if varies else {}
        return scores | {"mean absolute error": float(mean_absolute_error(truth, predictions))}
    correct = truth == predictions
    scores = {"accuracy": float((correct.all(1) if correct.ndim == 2 else correct).mean())}
    if correct.ndim == 2:
        scores["accuracy of single labels"] = float(correct.mean())
    if probability is not None and len(classes := np.unique(truth)) == 2:
        scores["ROC AUC"] = float(roc_auc_score(truth == classes[1], probability))
    return scores


def _summarize(folds: Sequence[Mapping[str, Any]]) -> tuple[Score, ...]:
    """Means and standard errors of all scores over the folds."""
    scores = []
    for name in dict.fromkeys(name for fold in folds for name in fold["scores"]):
        values = [fold["scores"][name] for fold in folds if name in fold["scores"]]
        trivial = [fold["trivial"][name] for fold in folds if name in fold["scores"]]
        error = folds[0].get("errors", {}).get(name)
        if len(values) > 1:
            error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
        scores.append(Score(name, float(np.mean(values)), error, float(np.mean(trivial)), tuple(values)))
    return tuple(scores)


class _RunProgress:
    """The progress of a run on disk: its finished folds, and checkpoints of the current fit."""

    def __init__(self, path: Path, work: Path, config: Mapping[str, Any], *, resume: bool) -> None:
        self.path = path
        self.work = work
        self.config = config
        self.folds: list[dict[str, Any]] = json.loads(
            collectives.run_on_first(lambda: self._finished_folds(resume))
        )

    def _finished_folds(self, resume: bool) -> bytes:
        if not resume or not self.path.exists():
            self._save([])  # stores the configuration
            for checkpoint in self.work.rglob(CHECKPOINT):
                checkpoint.unlink()
            return b"[]"
        match read_json(self.path):
            case {"config": dict(config)} if config != self.config:
                raise ValueError(
                    f"{self.path} belongs to a run with other settings ({difference(config, self.config)}); "
                    "run without --resume"
                )
            case {"config": dict(), "folds": list(folds)} if all(map(_is_fold, folds)):
                return json.dumps(folds).encode()
        raise ValueError(f"{self.path} is not a valid file of finished folds; run without --resume")

    def add(self, fold: dict[str, Any]) -> None:
        """Store a finished fold."""
        self.folds.append(fold)
        if collectives.is_first():
            self._save(self.folds)

    def _save(self, folds: list[dict[str, Any]]) -> None:
        write_json(self.path, {"config": self.config, "folds": folds})

    @contextmanager
    def removed_on_early_failure(self) -> Iterator[None]:
        """Remove all files if the run fails before there is anything to resume from."""
        try:
            yield
        except Exception:
            if collectives.is_first() and not self.folds and not any(self.work.rglob(CHECKPOINT)):
                self.remove()
            raise

    def remove(self) -> None:
        """Remove all files."""
        self.path.unlink(missing_ok=True)
        shutil.rmtree(self.work, ignore_errors=True)


def _is_fold(fold: Any) -> bool:
    """Whether this has the form of a result of `_evaluate`."""
    match fold:
        case {"scores": dict(scores), "trivial": dict(trivial), **more} if scores.keys() <= trivial.keys():
            errors = more.get("errors", {})
            numbers = [
                *scores.values(),
                *trivial.values(),
                *(errors.values() if isinstance(errors, dict) else [None]),
            ]
            return all(isinstance(number, int | float) for number in numbers)
    return False


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Prevent another run from writing the same model at the same time."""
    try:
        with locked(work) if collectives.is_first() else nullcontext():
            yield
    except BlockingIOError as error:
        model = work.name[1:].removesuffix(".work")
        raise BlockingIOError(
            f"another run is writing {model}; wait for it or choose another --out"
        ) from error


def _digest(data: Path) -> str:
    """A hash of the content of a file or, for a folder, of the names, sizes and times of its files."""
    if data.is_file():
        with data.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    files = sorted(path for path in data.rglob("*") if path.is_file())
    listing = [f"{path.relative_to(data)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return hashlib.sha256("\n".join(listing).encode()).hexdigest()


def _check_out(out: Path, data: Path, *, overwrite: bool) -> None:
    """Check before training that the model can be written."""
    if out == Path("-"):
        raise ValueError("--out must be a file, got -: a model cannot be printed")
    refuse_same(out, data)
    if out.is_dir():
        raise IsADirectoryError(f"--out must be a file, got the folder {out}")
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out} exists; choose another --out, or use --overwrite")
    write_atomically(trial := out.with_name(f".{out.name}.trial"), b"")
    trial.unlink()


def sidecar(model: Path, what: str) -> Path:
    """The path of the JSON file ``what`` of a model."""
    return model.with_name(f"{model.name}.{what}.json")
