"""Running one row of an experiment from its configuration to a result on record."""

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import setwise
from setwise.experiments.base import Experiment
from setwise.files import locked, read_json, write_json
from setwise.progress import Bar, Silent
from setwise.train import CHECKPOINT, fit, load_checkpoint


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
    folder = _folder(out, experiment, row, seed)
    record = results / experiment.name / f"{row}_{folder.name}.json"
    config = asdict(experiment)
    _refuse_other(record, experiment, "--results")
    start = None if experiment.start is None else _folder(out, experiment.start, row, seed)
    if start is not None:
        _finished(start, experiment)
    with locked(folder):
        return _run(experiment, row, seed, config, folder, record, start=start, resume=resume, show=show)


def _folder(out: Path, experiment: Experiment, row: str, seed: int) -> Path:
    """The folder of a run, whose name also names its result."""
    value = getattr(experiment, experiment.varied)
    variant = f"{experiment.varied}-{value}_steps-{experiment.training.steps}_seed-{seed}"
    return out / experiment.name / row / variant


def _run(
    experiment: Experiment,
    row: str,
    seed: int,
    config: Mapping[str, Any],
    folder: Path,
    record: Path,
    *,
    start: Path | None,
    resume: bool,
    show: bool,
) -> dict[str, Any]:
    _claim(folder, experiment, resume=resume)
    if (folder / "result.json").exists():
        result: dict[str, Any] = read_json(folder / "result.json")
        write_json(record, result)
        return result
    revision = _revision()
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    torch.manual_seed(seed)
    model, task = experiment.model(row, seed), experiment.task(row)
    before = {} if start is None else {"start": _take_over(model, start, experiment)}
    history = fit(
        model,
        task,
        experiment.batches(seed),
        experiment.training,
        validation=experiment.validation(seed),
        folder=folder,
        resume=resume,
        progress=Bar(title(experiment, row, seed), task.metric) if show else Silent(),
    )
    result = {
        "experiment": experiment.name,
        "row": row,
        "seed": seed,
        experiment.varied: getattr(experiment, experiment.varied),
        **experiment.test(model, seed),
        "validation": {
            name.removeprefix("validation_"): score
            for name, score in history.metrics[-1].items()
            if name.startswith("validation_")
        },
        "paper": experiment.paper(row, getattr(experiment, experiment.varied)),
        "config": config,
        "budget": {
            "steps": history.steps,
            "sets": history.sets,
            "seconds": round(history.seconds, 1),
            "threads": torch.get_num_threads(),
        },
        **before,
        "versions": {
            "python": platform.python_version(),
            "setwise": setwise.__version__,
            **{name: version(name) for name in ("torch", "numpy", "lightning-fabric")},
        },
        "revision": revision,
        "data": experiment.data,
    }
    write_json(folder / "result.json", result)
    write_json(record, result)
    return result


def _finished(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """The result of a run to go on from."""
    if not (folder / "result.json").exists():
        raise FileNotFoundError(f"{folder} holds no finished run to start from: make that one first")
    result: dict[str, Any] = read_json(folder / "result.json")
    if result["data"] != experiment.data:
        raise ValueError(f"{folder} holds a run on {result['data']!r}, expected one on {experiment.data!r}")
    return result


def _take_over(model: torch.nn.Module, folder: Path, experiment: Experiment) -> dict[str, Any]:
    """Give the model the weights of a finished run; returns what is to be known of it, for the record."""
    result = _finished(folder, experiment)
    try:
        model.load_state_dict(load_checkpoint(folder / CHECKPOINT)["model"])
    except RuntimeError as error:
        raise ValueError(f"{folder} holds a run of another model than this row's") from error
    kept = ("accuracy", "config", "budget", "start", "revision", "data")
    return {name: result[name] for name in kept if name in result}


def title(experiment: Experiment, row: str, seed: int) -> str:
    """What to call a run before people."""
    value = getattr(experiment, experiment.varied)
    return f"{experiment.ROWS[row]}  {experiment.varied} {value}  seed {seed}"


def _claim(folder: Path, experiment: Experiment, *, resume: bool) -> None:
    """Make the folder this run's own, or make sure that it already was."""
    if not resume and any(path.name != ".lock" for path in folder.iterdir()):
        raise FileExistsError(
            f"{folder} already holds a run: continue it with --resume, or choose another --out"
        )
    _refuse_other(folder / "result.json", experiment, "--out")
    path = folder / "config.json"
    wanted = {**asdict(experiment), "data": experiment.data}
    if path.exists():
        found = _filled(read_json(path), asdict(type(experiment)()))
        if found != wanted:
            raise ValueError(
                f"{folder} holds a run with another configuration ({_difference(found, wanted)}): "
                "choose another --out"
            )
    write_json(path, wanted)


def _refuse_other(path: Path, experiment: Experiment, option: str) -> None:
    """Never replace a result by that of another configuration, nor take it for this one's."""
    if not path.exists():
        return
    result = read_json(path)
    if not isinstance(result, dict) or "accuracy" not in result:
        raise ValueError(f"{path} is not a result: remove it, or choose another {option}")
    found, config = _filled(result.get("config"), asdict(type(experiment)())), asdict(experiment)
    if found != config:
        raise FileExistsError(
            f"{path} is the result of another configuration ({_difference(found, config)}): "
            f"choose another {option}"
        )
    if result.get("data") != experiment.data:
        on = f"{result.get('data')!r}, not on {experiment.data!r}"
        raise FileExistsError(f"{path} is a result on {on}: choose another {option}")


def _filled(found: Any, defaults: Mapping[str, Any]) -> Any:
    """A configuration on record, with the defaults of fields that are younger than it."""
    if not isinstance(found, Mapping):
        return found
    missing = {key: value for key, value in defaults.items() if key not in found}
    inner = {
        key: _filled(found[key], value)
        for key, value in defaults.items()
        if key in found and isinstance(value, Mapping)
    }
    return {**missing, **found, **inner}


def _difference(found: Any, wanted: Mapping[str, Any], prefix: str = "") -> str:
    if not isinstance(found, Mapping):
        return "unreadable"
    for key in [*wanted, *found]:
        if key not in wanted:
            return f"{prefix}{key} is {found[key]} there and unknown here"
        if isinstance(wanted[key], Mapping) and isinstance(found.get(key), Mapping):
            if inner := _difference(found[key], wanted[key], f"{prefix}{key}."):
                return inner
        elif found.get(key) != wanted[key]:
            return f"{prefix}{key} is {found.get(key)} there and {wanted[key]} here"
    return ""


@cache
def _revision() -> str | None:
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
