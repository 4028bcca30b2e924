"""The story of a run: its place in the paper's table, how training went, mistakes, and sets to look into."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setwise.experiments.base import ExampleSet, Experiment
from setwise.experiments.config import settings
from setwise.experiments.report import budgets, load_results, table
from setwise.inspection.explorer.content import Curve, ShownSet, Story, Table
from setwise.inspection.explorer.sections import (
    METHODS,
    NO_GRAPH,
    chosen,
    confusion,
    curves,
    drawn,
    few,
    likeliest,
    method_of,
    part,
    share_right,
)
from setwise.inspection.explorer.trained_run import Run, Trial, read_run, trials
from setwise.nn.blocks import SetDenoisingBlock
from setwise.nn.dmps import DMPS
from setwise.tasks import Binary, Classes, Count, Task
from setwise.training.loop import METRICS, entries_until, flush_denormals

COUNTS = 40
"""Counts that a confusion matrix has a line for, whether they occur or not."""


@flush_denormals()
def story(folder: Path, *, sets: int = 12, seed: int = 0, results: Path | None = None) -> Story:
    """Gather what a page tells of a run.

    Args:
        folder: with configuration, metrics and checkpoint.
        sets: how many test sets to show.
        seed: decides which.
        results: where the results of all rows are on record; ``results`` beside the runs unless given.
    """
    run = read_run(folder)
    experiment, task = run.experiment, run.experiment.task(run.row)
    trained = trials(run)
    tested = [(trial, exhibit) for trial in trained for exhibit in trial.exhibits]
    out = torch.cat([trial.out for trial in trained])
    names, predicted = experiment.classes, task.predict(out).tolist()
    truth, said = [_named(exhibit.y, names) for _, exhibit in tested], [_named(y, names) for y in predicted]
    correct = [a == b for a, b in zip(truth, said, strict=True)]
    scores = _scores(task, out, names)
    picked = chosen(correct, sets, seed)
    shown = [
        replace(
            _shown(*tested[i], predicted[i], task),
            label=truth[i],
            prediction=said[i],
            correct=correct[i],
            scores=scores[i],
        )
        for i in picked
    ]
    lead = (
        _about(experiment),
        _unfinished(run, trained),
        share_right(correct, picked, "test sets"),
        None if isinstance(trained[0].model, DMPS) else NO_GRAPH,
    )
    return Story(
        title=f"{run.title} · {experiment.name}",
        lead=" ".join(filter(None, lead)),
        facts=tuple(_facts(run, trained)),
        table=_table(run, results),
        curves=_curves(run),
        confusion=confusion(truth, said, _classes(names, truth, said)) if tested else None,
        sets=tuple(shown),
    )


def _shown(trial: Trial, exhibit: ExampleSet, predicted: int, task: Task) -> ShownSet:
    """A set with what the model sees in it."""
    index = few(len(exhibit.x))
    shown = part(exhibit.draw(), index)
    if trial.name:
        shown = replace(shown, name=f"{shown.name} ({trial.name})")
    return drawn(
        shown,
        trial.model,
        exhibit.x[index],
        output=predicted if isinstance(task, Classes) else 0,
        sign=-1.0 if isinstance(task, Binary) and not predicted else 1.0,
        whole=len(exhibit.x),
    )


def _named(number: int, names: Sequence[str] | None) -> str:
    return str(number) if names is None else names[number]


def _classes(names: Sequence[str] | None, truth: Sequence[str], said: Sequence[str]) -> Sequence[str]:
    """Those of the experiment, or all counts from the least to the largest; of many, those that occur."""
    if names is not None:
        return names
    numbers = sorted({int(number) for number in (*truth, *said)})
    low, high = numbers[0], numbers[-1]
    return [str(number) for number in (range(low, high + 1) if high - low < COUNTS else numbers)]


def _scores(task: Task, out: Tensor, names: Sequence[str] | None) -> list[tuple[tuple[str, float], ...]]:
    """What the model gives to each class, or the rate of its count."""
    if isinstance(task, Count):
        return [(("λ", rate),) for rate in out.squeeze(-1).exp().tolist()]
    if isinstance(task, Binary | Classes):
        p = task.probabilities(out)
        return [likeliest(row, names or [str(i) for i in range(p.shape[1])]) for row in p.tolist()]
    return [()] * len(out)


def _about(experiment: Experiment) -> str:
    return (experiment.__doc__ or "").splitlines()[0]


def _unfinished(run: Run, trained: Sequence[Trial]) -> str | None:
    if run.result is not None:
        return None
    folds, steps = len(run.experiment.trials(run.seed)), run.experiment.training.steps
    done = f", and {len(trained)} of {folds} folds" if folds > 1 else ""
    return f"This run has not finished: {trained[-1].steps:,} of {steps:,} batches{done}."


def _facts(run: Run, trained: Sequence[Trial]) -> list[tuple[str, str]]:
    """Names and values, on the run and on its models."""
    experiment, result = run.experiment, run.result or {}
    model = trained[0].model
    facts = [
        ("Row", run.title),
        (experiment.varied, str(getattr(experiment, experiment.varied))),
        ("Data", run.data),
        ("Seed", str(run.seed)),
        ("Training", _budget(run, trained)),
        ("Parameters", f"{sum(p.numel() for p in model.parameters()):,}"),
    ]
    if "accuracy" in result:
        facts.append(("Test accuracy on record", f"{result['accuracy']:.4f}"))
    if isinstance(model, DMPS):
        facts += _learned([trial.model for trial in trained if isinstance(trial.model, DMPS)])
    if exhibits := trained[0].exhibits:
        facts.append(("Importance", METHODS[method_of(model, len(exhibits[0].x))]))
    if revision := result.get("revision"):
        facts.append(("Source revision", str(revision)))
    if versions := result.get("versions"):
        facts.append(("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return facts


def _budget(run: Run, trained: Sequence[Trial]) -> str:
    if run.result is None:
        return f"{trained[-1].steps:,} of {run.experiment.training.steps:,} batches"
    spent = budgets(run.result)
    if not any(budget["steps"] for budget in spent):
        return "solved for at once"
    steps = " + ".join(f"{budget['steps']:,}" for budget in spent)
    sets, minutes = (sum(budget[key] for budget in spent) for key in ("sets", "seconds"))
    return f"{steps} batches, {sets:,} sets, {minutes / 60:.1f} minutes"


def _learned(models: Sequence[DMPS]) -> list[tuple[str, str]]:
    """The diffusion coefficients of the blocks and the bandwidth of the kernel, as far as there are any."""
    gammas = [b.gamma.value.item() for m in models for b in m.blocks if isinstance(b, SetDenoisingBlock)]
    sigmas = [sigma.item() for m in models if (sigma := getattr(m.graph, "sigma", None)) is not None]
    return [(name, _span(values)) for name, values in (("γ", gammas), ("σ", sigmas)) if values]


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _curves(run: Run) -> tuple[Curve, ...]:
    """Those of all folds."""
    paths = {name: run.folder / name / METRICS for name in run.experiment.trials(run.seed)}
    steps = run.experiment.training.steps
    return curves({name: entries_until(path, steps) for name, path in paths.items() if path.exists()})


def _table(run: Run, results: Path | None) -> Table | None:
    """All rows on record on the same data, this run among them."""
    kind, parents = type(run.experiment), run.folder.resolve().parents
    if results is None and len(parents) > 3:
        results = parents[3] / "results"
    there = results is not None and any((results / kind.name).glob("*.json"))
    recorded = [r for r in load_results(results, kind) if r["data"] == run.data] if there and results else []
    if run.result is not None and _key(run.result, kind) not in [_key(r, kind) for r in recorded]:
        recorded.append(dict(run.result))
    if not recorded:
        return None
    headings, lines = table(kind, recorded)
    value = getattr(run.experiment, kind.varied)
    caption = f"On {run.data}. This page is on {run.title}, {kind.varied} {value}, seed {run.seed}."
    return Table(tuple(headings), tuple(tuple(line) for line in lines), caption)


def _key(result: Mapping[str, Any], kind: type[Experiment]) -> tuple[Any, ...]:
    return result["row"], result["seed"], result[kind.varied], settings(result, kind)
