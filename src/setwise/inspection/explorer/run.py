"""The page of a run: its results next to the paper's, learning curves, errors, and sets to explore."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setwise.experiments.base import ExampleSet, Experiment
from setwise.experiments.config import settings
from setwise.experiments.report import budgets, load_results, table
from setwise.inspection.explorer.content import Curve, PageContent, ShownSet, Table
from setwise.inspection.explorer.sections import (
    METHODS,
    NO_GRAPH,
    accuracy_sentence,
    analyse_set,
    choose_sets,
    confusion_matrix,
    importance_method,
    learning_curves,
    sample_elements,
    subset,
    top_classes,
)
from setwise.inspection.explorer.trained_run import Run, Trial, read_run, trials
from setwise.nn.blocks import SetDenoisingBlock
from setwise.nn.dmps import DMPS
from setwise.tasks import Binary, Classes, Count, Task
from setwise.training.loop import METRICS, entries_until, flush_denormals

MAX_COUNT_RANGE = 40
"""Up to this range, a confusion matrix of counts has a row for every count, not only for those that occur."""


@flush_denormals()
def page_content(folder: Path, *, sets: int = 12, seed: int = 0, results: Path | None = None) -> PageContent:
    """Collect the content of a page on a run.

    Args:
        folder: folder with configuration, metrics and checkpoint.
        sets: number of test sets to show.
        seed: random seed for the choice of sets.
        results: folder with the results of all rows; ``results`` next to the runs by default.
    """
    run = read_run(folder)
    experiment, task = run.experiment, run.experiment.task(run.row)
    trained = trials(run)
    tested = [(trial, example) for trial in trained for example in trial.examples]
    out = torch.cat([trial.out for trial in trained])
    names, decoded = experiment.classes, task.predict(out).tolist()
    labels = [_class_name(example.y, names) for _, example in tested]
    predictions = [_class_name(y, names) for y in decoded]
    correct = [a == b for a, b in zip(labels, predictions, strict=True)]
    scores = _scores(task, out, names)
    chosen = choose_sets(correct, sets, seed)
    shown = [
        replace(
            _shown(*tested[i], decoded[i], task),
            label=labels[i],
            prediction=predictions[i],
            correct=correct[i],
            scores=scores[i],
        )
        for i in chosen
    ]
    lead = (
        _about(experiment),
        _unfinished(run, trained),
        accuracy_sentence(correct, chosen, "test sets"),
        None if isinstance(trained[0].model, DMPS) else NO_GRAPH,
    )
    return PageContent(
        title=f"{run.title} · {experiment.name}",
        lead=" ".join(filter(None, lead)),
        facts=tuple(_facts(run, trained)),
        table=_table(run, results),
        curves=_curves(run),
        confusion=confusion_matrix(labels, predictions, _classes(names, labels, predictions))
        if tested
        else None,
        sets=tuple(shown),
    )


def _shown(trial: Trial, example: ExampleSet, predicted: int, task: Task) -> ShownSet:
    """A test set with its graph and importance."""
    index = sample_elements(len(example.x))
    shown = subset(example.draw(), index)
    if trial.name:
        shown = replace(shown, name=f"{shown.name} ({trial.name})")
    return analyse_set(
        shown,
        trial.model,
        example.x[index],
        output=predicted if isinstance(task, Classes) else 0,
        sign=-1.0 if isinstance(task, Binary) and not predicted else 1.0,
        whole=len(example.x),
    )


def _class_name(number: int, names: Sequence[str] | None) -> str:
    return str(number) if names is None else names[number]


def _classes(names: Sequence[str] | None, labels: Sequence[str], predictions: Sequence[str]) -> Sequence[str]:
    """The classes of the experiment, or the counts in their range; for a wide range, those that occur."""
    if names is not None:
        return names
    numbers = sorted({int(number) for number in (*labels, *predictions)})
    low, high = numbers[0], numbers[-1]
    return [str(number) for number in (range(low, high + 1) if high - low < MAX_COUNT_RANGE else numbers)]


def _scores(task: Task, out: Tensor, names: Sequence[str] | None) -> list[tuple[tuple[str, float], ...]]:
    """The probabilities of the top classes, or the rate λ of a count."""
    if isinstance(task, Count):
        return [(("λ", rate),) for rate in out.squeeze(-1).exp().tolist()]
    if isinstance(task, Binary | Classes):
        p = task.probabilities(out)
        return [top_classes(row, names or [str(i) for i in range(p.shape[1])]) for row in p.tolist()]
    return [()] * len(out)


def _about(experiment: Experiment) -> str:
    return (experiment.__doc__ or "").splitlines()[0]


def _unfinished(run: Run, trained: Sequence[Trial]) -> str | None:
    if run.result is not None:
        return None
    folds, steps = len(run.experiment.trials(run.seed)), run.experiment.training.steps
    done = f", {len(trained)} of {folds} folds" if folds > 1 else ""
    return f"This run has not finished: {trained[-1].steps:,} of {steps:,} batches{done}."


def _facts(run: Run, trained: Sequence[Trial]) -> list[tuple[str, str]]:
    """Pairs (name, value) on the run and its models."""
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
        facts.append(("Recorded test accuracy", f"{result['accuracy']:.4f}"))
    if isinstance(model, DMPS):
        facts += _learned_scalars([trial.model for trial in trained if isinstance(trial.model, DMPS)])
    if examples := trained[0].examples:
        facts.append(("Importance", METHODS[importance_method(model, len(examples[0].x))]))
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
        return "fitted by a solver, without batches"
    steps = " + ".join(f"{budget['steps']:,}" for budget in spent)
    sets, minutes = (sum(budget[key] for budget in spent) for key in ("sets", "seconds"))
    return f"{steps} batches, {sets:,} sets, {minutes / 60:.1f} minutes"


def _learned_scalars(models: Sequence[DMPS]) -> list[tuple[str, str]]:
    """The diffusion coefficients γ of the blocks and the bandwidths σ of the kernels, if there are any."""
    gammas = [b.gamma.value.item() for m in models for b in m.blocks if isinstance(b, SetDenoisingBlock)]
    sigmas = [sigma.item() for m in models if (sigma := getattr(m.graph, "sigma", None)) is not None]
    return [(name, _span(values)) for name, values in (("γ", gammas), ("σ", sigmas)) if values]


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _curves(run: Run) -> tuple[Curve, ...]:
    """The learning curves of all folds."""
    paths = {name: run.folder / name / METRICS for name in run.experiment.trials(run.seed)}
    steps = run.experiment.training.steps
    return learning_curves(
        {name: entries_until(path, steps) for name, path in paths.items() if path.exists()}
    )


def _table(run: Run, results: Path | None) -> Table | None:
    """The recorded results on the same data, including this run."""
    kind, parents = type(run.experiment), run.folder.resolve().parents
    if results is None and len(parents) > 3:
        results = parents[3] / "results"
    recorded = []
    if results is not None and any((results / kind.name).glob("*.json")):
        recorded = [result for result in load_results(results, kind) if result["data"] == run.data]
    if run.result is not None and _key(run.result, kind) not in [_key(r, kind) for r in recorded]:
        recorded.append(dict(run.result))
    if not recorded:
        return None
    headings, rows = table(kind, recorded)
    value = getattr(run.experiment, kind.varied)
    caption = f"Data: {run.data}. This page shows {run.title}, {kind.varied} {value}, seed {run.seed}."
    return Table(tuple(headings), tuple(tuple(row) for row in rows), caption)


def _key(result: Mapping[str, Any], kind: type[Experiment]) -> tuple[Any, ...]:
    return result["row"], result["seed"], result[kind.varied], settings(result, kind)
