"""The work behind ``setwise fit``: from people's files to a tested model."""

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
from setwise.cli.tables import Sheet, lines, with_error
from setwise.experiments.config import difference
from setwise.io.readers import LabelledSets, read_sets
from setwise.training.checkpoint import CHECKPOINT

Task = Literal["auto", "classify", "regress", "count"]
CLASSES = 20
"""Different whole numbers up to which they are taken for classes."""
RESAMPLES = 200
"""For the standard error of a score on sets held out."""


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
            "classes": few([f"{name}: {count}" for name, count in self.classes.items()]),
            "tested": self.tested,
            "note": "; ".join(self.notes),
            "time": f"{self.seconds:.0f} s",
            "model": self.model,
        }
        rows = [(s.name, with_error(s.mean, s.error), f"{s.trivial:.4g}") for s in self.scores]
        told = Sheet(f"{self.estimator} on {self.data}", (), lines(facts))
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

    Until the model is there, finished folds are kept beside it, in ``<out>.folds.json``, and the state of the
    one at work in the folder ``.<out>.work``; the report goes to ``<out>.report.json``.

    Args:
        data: a file or folder, as `setwise.io.read_sets` takes it.
        out: the file of the model.
        task: what the labels are: classes, numbers or counts; ``"auto"`` tells by their looks.
        folds: of the cross-validation; 0 does without.
        holdout: instead of folds, a share of the sets to test on.
        settings: of `SetClassifier` or `SetRegressor`.
        seed: of the folds and of all that is random in training.
        threads: of the processor to use; as many as torch takes unless given.
        overwrite: whether to replace a model that is there.
        resume: whether to take up a run that was interrupted.
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
    if threads is not None:
        torch.set_num_threads(threads)
    collectives.initialize()
    if collectives.is_first():
        _need_free(out, data, overwrite=overwrite)
    known = read_sets(data, **reading)
    chosen, why, labels = choose_task(known.labels, task)
    testing = {"task": chosen, "folds": folds, "holdout": holdout, "seed": seed, "sha256": _digest(data)}
    config = json.loads(json.dumps({**testing, "reading": reading, "settings": dict(settings or {})}))

    work = out.with_name(f".{out.name}.work")

    def fitted(index: Any, title: str) -> Any:
        shown = title if verbose else False
        estimator = _estimator(chosen, {**(settings or {}), "random_state": seed, "verbose": shown})
        estimator.checkpoints = work / title.replace(" ", "-")
        return estimator.fit(known.sets[index], labels[index]).set_params(verbose=False)

    splits, tested, notes = _splits(known, labels, chosen, folds=folds, holdout=holdout, seed=seed)
    with _kept_to_oneself(work):
        kept = _Kept(beside(out, "folds"), work, config, resume=resume)
        with kept.cleared_if_nothing_was_done():
            for number in range(len(kept.folds), len(splits)):
                title = f"fold {number + 1} of {len(splits)}" if holdout is None else "held out"
                fold = _tested(fitted, title, known.sets, labels, *splits[number], alone=holdout is not None)
                kept.add(fold)
            whole = fitted(slice(None), "all sets")
        if collectives.is_first():
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
    if collectives.is_first():
        write_json(beside(out, "report"), asdict(report))
        kept.forget()
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
    from setwise.estimators.classifier import SetClassifier
    from setwise.estimators.regressor import SetRegressor

    if task == "classify":
        return SetClassifier(**settings)
    if "class_weight" in settings:
        raise ValueError(f"class_weight belongs to classes, got it to {task}")
    return SetRegressor(loss="poisson" if task == "count" else "squared_error", **settings)


def _splits(
    known: LabelledSets, labels: Any, task: str, *, folds: int, holdout: float | None, seed: int
) -> tuple[list[tuple[Any, Any]], str, tuple[str, ...]]:
    """Which sets to train and to test on, what to call that, and remarks on it."""
    from sklearn.model_selection import GroupShuffleSplit, train_test_split

    from setwise.estimators.folds import stratified_folds

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
    found: dict[str, Any] = {"sets": len(test), "scores": measured(truth, said, chance)}
    found["trivial"] = measured(truth, np.broadcast_to(guess, truth.shape), none)
    if alone:
        random = np.random.default_rng(0)
        drawn = random.integers(0, len(truth), (RESAMPLES, len(truth)))
        again = [measured(truth[i], said[i], None if chance is None else chance[i]) for i in drawn]
        found["errors"] = {
            name: float(np.std([one[name] for one in again if name in one])) for name in found["scores"]
        }
    return found


def measured(truth: Any, said: Any, chance: Any = None) -> dict[str, float]:
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
    """What a run has come to, on disk until it is over: its finished folds, and the state of one at work."""

    def __init__(self, path: Path, work: Path, config: Mapping[str, Any], *, resume: bool) -> None:
        self.path = path
        self.work = work
        self.config = config
        self.folds: list[dict[str, Any]] = json.loads(collectives.run_on_first(lambda: self._known(resume)))

    def _known(self, resume: bool) -> bytes:
        if not resume or not self.path.exists():
            self._save([])  # whose run this is, for what is kept of it from now on
            for checkpoint in self.work.rglob(CHECKPOINT):
                checkpoint.unlink()
            return b"[]"
        match read_json(self.path):
            case {"config": dict(found)} if found != self.config:
                raise ValueError(
                    f"{self.path} is of another run ({difference(found, self.config)}): leave out --resume"
                )
            case {"config": dict(), "folds": list(folds)} if all(map(_is_fold, folds)):
                return json.dumps(folds).encode()
        raise ValueError(f"{self.path} holds no finished folds: leave out --resume")

    def add(self, fold: dict[str, Any]) -> None:
        self.folds.append(fold)
        if collectives.is_first():
            self._save(self.folds)

    def _save(self, folds: list[dict[str, Any]]) -> None:
        write_json(self.path, {"config": self.config, "folds": folds})

    @contextmanager
    def cleared_if_nothing_was_done(self) -> Iterator[None]:
        """Leave nothing behind of a run that failed before there was anything to go on from."""
        try:
            yield
        except Exception:
            if collectives.is_first() and not self.folds and not any(self.work.rglob(CHECKPOINT)):
                self.forget()
            raise

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)
        shutil.rmtree(self.work, ignore_errors=True)


def _is_fold(fold: Any) -> bool:
    """Whether this is what `_tested` tells of a fold."""
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
def _kept_to_oneself(work: Path) -> Iterator[None]:
    """Let nobody else fit this model meanwhile."""
    try:
        with locked(work) if collectives.is_first() else nullcontext():
            yield
    except BlockingIOError as error:
        raise BlockingIOError(f"another run is at work on {work.name[1:].removesuffix('.work')}") from error


def _digest(data: Path) -> str:
    """Tells one state of the data from another: by content or, of a folder, by sizes and times of files."""
    if data.is_file():
        with data.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    files = sorted(path for path in data.rglob("*") if path.is_file())
    listing = [f"{path.relative_to(data)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return hashlib.sha256("\n".join(listing).encode()).hexdigest()


def _need_free(out: Path, data: Path, *, overwrite: bool) -> None:
    """Fail before the work, not after it."""
    if out == Path("-"):
        raise ValueError("out must be a file for the model, got -: a model cannot be printed")
    refuse_same(out, data)
    if out.is_dir():
        raise IsADirectoryError(f"out must be a file for the model, got the folder {out}")
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out} is there already: choose another --out, or --overwrite it")
    write_atomically(trial := out.with_name(f".{out.name}.trial"), b"")
    trial.unlink()


def beside(model: Path, what: str) -> Path:
    """The file of that kind that goes with a model."""
    return model.with_name(f"{model.name}.{what}.json")
