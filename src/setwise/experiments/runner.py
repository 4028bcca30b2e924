"""Running one row of an experiment from its configuration to a result on record."""

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
from setwise.experiments.config import difference, filled
from setwise.training.checkpoint import CHECKPOINT, load_checkpoint, trained_weights
from setwise.training.divergence import DIVERGED
from setwise.training.loop import LOCK, METRICS, History, fit
from setwise.training.progress import NoProgress, ProgressBar

WRITTEN = ("config.json", METRICS, "events.out.tfevents.*")
"""Files that a run writes before its first checkpoint."""
HEALTH = ("effective_neighbours", "evenness", "saturated", "sigma", "gamma")
"""What a record keeps of the learned graph."""
LEFT = (".lock", LOCK, DIVERGED)
"""Files in the folder of a run that do not make it one."""


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
    """Train and test one row with one seed; an already finished run is only read when resuming.

    Args:
        experiment: the configuration.
        row: which model, one of ``experiment.ROWS``.
        seed: of the weights and the data.
        out: where configuration, metrics and checkpoint go, in a folder of the run's own.
        results: where the result goes on record.
        resume: continue what is in the folder already.
        show: whether to show a progress bar.

    Returns:
        The result, as on record.
    """
    collectives.initialize()
    folder = folder_of(out, experiment, row, seed)
    record = record_of(results, experiment, row, seed)
    start = None if experiment.start is None else folder_of(out, experiment.start, row, seed)
    with locked(folder) if collectives.is_first() else nullcontext():
        if collectives.is_first():
            _refuse_other(record, experiment, "--results")
            if start is not None:
                _finished(start, experiment)
            _claim(folder, experiment, resume=resume)
        try:
            result = _known_result(folder) or _run(
                experiment, row, seed, folder, start=start, resume=resume, show=show
            )
        except Exception:
            if collectives.is_first():
                _leave(folder)
            raise
        if collectives.is_first():
            write_json(folder / "result.json", result)
            write_json(record, result)
    return result


def _known_result(folder: Path) -> dict[str, Any] | None:
    """The result of a run that was finished before."""
    path = folder / "result.json"
    text = collectives.run_on_first(lambda: path.read_bytes() if path.exists() else b"")
    result: dict[str, Any] | None = json.loads(text) if text else None
    return result


def folder_of(out: Path, experiment: Experiment, row: str, seed: int) -> Path:
    """The folder of a run, whose name also names its result."""
    value = getattr(experiment, experiment.varied)
    variant = f"{experiment.varied}-{value}_steps-{experiment.training.steps}_seed-{seed}"
    return out / experiment.name / row / variant


def record_of(results: Path, experiment: Experiment, row: str, seed: int) -> Path:
    """Where the result of a run goes on record."""
    return results / experiment.name / f"{row}_{folder_of(results, experiment, row, seed).name}.json"


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
    before = {} if start is None else {"start": _known(start, experiment)}
    return {
        "experiment": experiment.name,
        "row": row,
        "seed": seed,
        experiment.varied: getattr(experiment, experiment.varied),
        **_joined({name: scores for name, (scores, _) in trials.items()}),
        "validation": _joined({name: _watched(history) for name, (_, history) in trials.items()}),
        "graph": _joined({name: _health(history) for name, (_, history) in trials.items()}),
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
        **before,
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
    """Train and test one model; returns its scores, and what the training has to tell."""
    began = time.perf_counter()
    model = experiment.solved(row, seed)
    if model is not None:
        return experiment.test(model, seed), History([], 0, 0, time.perf_counter() - began)
    folder.mkdir(exist_ok=True)
    torch.manual_seed(seed)
    model = experiment.model(row, seed)
    if start is not None:
        _take_over(model, start)
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


def _joined(trials: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The scores of a single training as they are; of several, the means of all numbers and all ``folds``."""
    if list(trials) == [""]:
        return dict(trials[""])
    folds = list(trials.values())
    shared = [key for key in folds[0] if all(isinstance(fold.get(key), int | float) for fold in folds)]
    means = {key: fmean(fold[key] for fold in folds) for key in shared}
    return means | {"folds": [dict(fold) for fold in folds]} if any(folds) else {}


def _watched(history: History) -> dict[str, float]:
    """The last scores on validation data, if there were any."""
    last = history.metrics[-1] if history.metrics else {}
    return {
        name.removeprefix("validation_"): score
        for name, score in last.items()
        if name.startswith("validation_")
    }


def _health(history: History) -> dict[str, float]:
    """The last measurement of the learned graph, if there is one."""
    last = history.metrics[-1] if history.metrics else {}
    return {name: last[name] for name in HEALTH if name in last}


def _finished(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """The result of a run to go on from."""
    if not (folder / "result.json").exists():
        raise FileNotFoundError(f"{folder} holds no finished run to start from: make that one first")
    result: dict[str, Any] = read_json(folder / "result.json")
    if result["data"] != experiment.data:
        raise ValueError(f"{folder} holds a run on {result['data']!r}, expected one on {experiment.data!r}")
    return result


def _take_over(model: torch.nn.Module, folder: Path) -> None:
    """Give the model the weights of a finished training."""
    try:
        model.load_state_dict(trained_weights(load_checkpoint(folder / CHECKPOINT)))
    except RuntimeError as error:
        raise ValueError(f"{folder} holds a run of another model than this row's") from error


def _known(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """What is to be known of a run that was gone on from, for the record."""
    result = _finished(folder, experiment)
    kept = ("accuracy", "config", "budget", "start", "revision", "data")
    return {name: result[name] for name in kept if name in result}


def title(experiment: Experiment, row: str, seed: int) -> str:
    """What to call a run before people."""
    value = getattr(experiment, experiment.varied)
    return f"{experiment.ROWS[row]}  {experiment.varied} {value}  seed {seed}"


def _claim(folder: Path, experiment: Experiment, *, resume: bool) -> None:
    """Make the folder this run's own, or make sure that it already was."""
    if not resume and any(path.is_file() and path.name not in LEFT for path in folder.rglob("*")):
        raise FileExistsError(
            f"{folder} already holds a run: continue it with --resume, or choose another --out"
        )
    _refuse_other(folder / "result.json", experiment, "--out")
    path = folder / "config.json"
    wanted = {**asdict(experiment), "data": experiment.data}
    if path.exists():
        found = filled(read_json(path), asdict(type(experiment)()))
        if found != wanted:
            raise ValueError(
                f"{folder} holds a run with another configuration ({difference(found, wanted)}): "
                "choose another --out"
            )
    write_json(path, wanted)


def _leave(folder: Path) -> None:
    """Clear the folder of a run that failed before its first checkpoint, so that it blocks no other."""
    if any(folder.rglob(CHECKPOINT)) or (folder / "result.json").exists():
        return
    for path in (path for name in WRITTEN for path in folder.rglob(name)):
        path.unlink(missing_ok=True)


def _refuse_other(path: Path, experiment: Experiment, option: str) -> None:
    """Never replace a result by that of another configuration, nor take it for this one's."""
    if not path.exists():
        return
    result = read_json(path)
    if not isinstance(result, dict) or "accuracy" not in result:
        raise ValueError(f"{path} is not a result: remove it, or choose another {option}")
    found, config = filled(result.get("config"), asdict(type(experiment)())), asdict(experiment)
    if found != config:
        raise FileExistsError(
            f"{path} is the result of another configuration ({difference(found, config)}): "
            f"choose another {option}"
        )
    if result.get("data") != experiment.data:
        on = f"{result.get('data')!r}, not on {experiment.data!r}"
        raise FileExistsError(f"{path} is a result on {on}: choose another {option}")


@cache
def revision() -> str | None:
    """The git revision of the source as it was loaded, with a plus sign if it had uncommitted changes."""
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
