"""Run one row of an experiment: train, test, and record the result."""

import json
import platform
import subprocess
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import setwise
from setwise import collectives
from setwise._files import locked, read_json, write_json
from setwise.experiments.base import Experiment
from setwise.experiments.config import difference, with_defaults
from setwise.training.checkpoint import CHECKPOINT, load_checkpoint, trained_weights
from setwise.training.divergence import DIVERGED
from setwise.training.loop import LOCK, METRICS, History, fit
from setwise.training.progress import NoProgress, ProgressBar

INITIAL_FILES = ("config.json", METRICS, "events.out.tfevents.*")
"""Files that a run writes before its first checkpoint."""
GRAPH_METRICS = ("effective_neighbours", "evenness", "saturated", "sigma", "gamma")
"""Metrics of the learned graph that are recorded."""
IGNORED_FILES = (".lock", LOCK, DIVERGED)
"""Files that may exist in the folder of a new run."""


def run(
    experiment: Experiment,
    row: str,
    seed: int,
    *,
    out: Path,
    results: Path,
    resume: bool = False,
    show: bool = True,
) -> dict[str, Any]:
    """Train and test one row with one seed; when resuming, return the result of a finished run.

    Args:
        experiment: configuration.
        row: name of the model, one of ``experiment.ROWS``.
        seed: random seed of weights and data.
        out: parent of the run's folder, which holds configuration, metrics and checkpoint.
        results: folder of recorded results.
        resume: continue the run in the existing folder.
        show: show a progress bar.

    Returns:
        The recorded result.
    """
    collectives.initialize()
    folder = run_folder(out, experiment, row, seed)
    record = result_path(results, experiment, row, seed)
    start = None if experiment.start is None else run_folder(out, experiment.start, row, seed)
    with locked(folder) if collectives.is_first() else nullcontext():
        if collectives.is_first():
            _check_existing_result(record, experiment, "--results")
            if start is not None:
                _load_start(start, experiment)
            _prepare_folder(folder, experiment, resume=resume)
        try:
            result = _finished_result(folder) or _run(
                experiment, row, seed, folder, start=start, resume=resume, show=show
            )
        except Exception:
            if collectives.is_first():
                _remove_failed(folder)
            raise
        if collectives.is_first():
            write_json(folder / "result.json", result)
            write_json(record, result)
    return result


def _finished_result(folder: Path) -> dict[str, Any] | None:
    """Result of a run that has already finished."""
    path = folder / "result.json"
    text = collectives.run_on_first(lambda: path.read_bytes() if path.exists() else b"")
    result: dict[str, Any] | None = json.loads(text) if text else None
    return result


def run_folder(out: Path, experiment: Experiment, row: str, seed: int) -> Path:
    """Folder of a run; the result file has the same name."""
    value = getattr(experiment, experiment.varied)
    variant = f"{experiment.varied}-{value}_steps-{experiment.training.steps}_seed-{seed}"
    return out / experiment.name / row / variant


def result_path(results: Path, experiment: Experiment, row: str, seed: int) -> Path:
    """Path of the recorded result of a run."""
    return results / experiment.name / f"{row}_{run_folder(results, experiment, row, seed).name}.json"


def _run(
    experiment: Experiment,
    row: str,
    seed: int,
    folder: Path,
    *,
    start: Path | None,
    resume: bool,
    show: bool,
) -> dict[str, Any]:
    source = revision()
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    metric = experiment.task(row).metric
    trials = {
        name: _trial(
            experiment,
            row,
            number,
            folder / name,
            start=None if start is None else start / name,
            resume=resume,
            progress=ProgressBar(f"{title(experiment, row, seed)}  {name}".rstrip(), metric)
            if show
            else NoProgress(),
        )
        for name, number in experiment.trials(seed).items()
    }
    histories = [history for _, history in trials.values()]
    start_entry = {} if start is None else {"start": _start_summary(start, experiment)}
    return {
        "experiment": experiment.name,
        "row": row,
        "seed": seed,
        experiment.varied: getattr(experiment, experiment.varied),
        **_combine_trials({name: scores for name, (scores, _) in trials.items()}),
        "validation": _combine_trials(
            {name: _validation_scores(history) for name, (_, history) in trials.items()}
        ),
        "graph": _combine_trials({name: _graph_metrics(history) for name, (_, history) in trials.items()}),
        **({"history": histories[0].metrics} if len(histories) == 1 else {}),
        "paper": experiment.paper(row, getattr(experiment, experiment.varied)),
        "config": asdict(experiment),
        "budget": {
            "steps": max(history.steps for history in histories),
            "sets": sum(history.sets for history in histories),
            "seconds": round(sum(history.seconds for history in histories), 1),
            "threads": torch.get_num_threads(),
            **({"processes": collectives.world_size()} if collectives.world_size() > 1 else {}),
        },
        **start_entry,
        "versions": {
            "python": platform.python_version(),
            "setwise": setwise.__version__,
            **{name: version(name) for name in ("torch", "numpy", "lightning-fabric")},
        },
        "revision": source,
        "data": experiment.data,
    }


def _trial(
    experiment: Experiment,
    row: str,
    seed: int,
    folder: Path,
    *,
    start: Path | None,
    resume: bool,
    progress: NoProgress,
) -> tuple[dict[str, Any], History]:
    """Train and test one model; return its scores and the training history."""
    began = time.perf_counter()
    model = experiment.fitted_model(row, seed)
    if model is not None:
        return experiment.test(model, seed), History([], 0, 0, time.perf_counter() - began)
    folder.mkdir(exist_ok=True)
    torch.manual_seed(seed)
    model = experiment.model(row, seed)
    if start is not None:
        _load_weights(model, start)
    history = fit(
        model,
        experiment.task(row),
        experiment.batches(seed),
        experiment.training,
        validation=experiment.validation(seed),
        folder=folder,
        resume=resume,
        progress=progress,
    )
    return experiment.test(model, seed), history


def _combine_trials(trials: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Scores of a single training unchanged; of several, the mean of each number, and all as ``folds``."""
    if list(trials) == [""]:
        return dict(trials[""])
    folds = list(trials.values())
    shared = [key for key in folds[0] if all(isinstance(fold.get(key), int | float) for fold in folds)]
    means = {key: fmean(fold[key] for fold in folds) for key in shared}
    return means | {"folds": [dict(fold) for fold in folds]} if any(folds) else {}


def _validation_scores(history: History) -> dict[str, float]:
    """Last validation scores, if any."""
    last = history.metrics[-1] if history.metrics else {}
    return {
        name.removeprefix("validation_"): score
        for name, score in last.items()
        if name.startswith("validation_")
    }


def _graph_metrics(history: History) -> dict[str, float]:
    """Last metrics of the learned graph, if any."""
    last = history.metrics[-1] if history.metrics else {}
    return {name: last[name] for name in GRAPH_METRICS if name in last}


def _load_start(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Result of the finished run to start from."""
    if not (folder / "result.json").exists():
        raise FileNotFoundError(f"{folder} contains no finished run to start from: run that one first")
    result: dict[str, Any] = read_json(folder / "result.json")
    if result["data"] != experiment.data:
        raise ValueError(f"{folder} contains a run on {result['data']!r}, expected {experiment.data!r}")
    return result


def _load_weights(model: torch.nn.Module, folder: Path) -> None:
    """Load the weights of a finished training into the model."""
    try:
        model.load_state_dict(trained_weights(load_checkpoint(folder / CHECKPOINT)))
    except RuntimeError as error:
        raise ValueError(f"the checkpoint in {folder} does not fit the model of this row") from error


def _start_summary(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Part of the start run's result that is recorded with this run."""
    result = _load_start(folder, experiment)
    keys = ("accuracy", "config", "budget", "start", "revision", "data")
    return {name: result[name] for name in keys if name in result}


def title(experiment: Experiment, row: str, seed: int) -> str:
    """Display title of a run."""
    value = getattr(experiment, experiment.varied)
    return f"{experiment.ROWS[row]}  {experiment.varied} {value}  seed {seed}"


def _prepare_folder(folder: Path, experiment: Experiment, *, resume: bool) -> None:
    """Check that the folder is new, or belongs to the same run, and write its configuration."""
    if not resume and any(path.is_file() and path.name not in IGNORED_FILES for path in folder.rglob("*")):
        raise FileExistsError(
            f"{folder} already contains a run: continue it with --resume, or choose another --out"
        )
    _check_existing_result(folder / "result.json", experiment, "--out")
    path = folder / "config.json"
    expected = {**asdict(experiment), "data": experiment.data}
    if path.exists():
        config = with_defaults(read_json(path), asdict(type(experiment)()))
        if config != expected:
            raise ValueError(
                f"{folder} contains a run with another configuration ({difference(config, expected)}): "
                "choose another --out"
            )
    write_json(path, expected)


def _remove_failed(folder: Path) -> None:
    """Remove the files of a run that failed before its first checkpoint, so that it can be started again."""
    if any(folder.rglob(CHECKPOINT)) or (folder / "result.json").exists():
        return
    for path in (path for name in INITIAL_FILES for path in folder.rglob(name)):
        path.unlink(missing_ok=True)


def _check_existing_result(path: Path, experiment: Experiment, option: str) -> None:
    """Raise if ``path`` holds the result of another configuration or other data."""
    if not path.exists():
        return
    result = read_json(path)
    if not isinstance(result, dict) or "accuracy" not in result:
        raise ValueError(f"{path} is not a result: remove it, or choose another {option}")
    recorded, config = with_defaults(result.get("config"), asdict(type(experiment)())), asdict(experiment)
    if recorded != config:
        raise FileExistsError(
            f"{path} is the result of another configuration ({difference(recorded, config)}): "
            f"choose another {option}"
        )
    if result.get("data") != experiment.data:
        data = f"{result.get('data')!r}, expected {experiment.data!r}"
        raise FileExistsError(f"{path} is a result on {data}: choose another {option}")


@cache
def revision() -> str | None:
    """Git revision of the source when it was loaded; a plus sign marks uncommitted changes."""
    source = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(source), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(source))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
