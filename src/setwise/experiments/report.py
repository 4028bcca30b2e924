"""Tables of recorded results with the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from setwise._files import read_json
from setwise.experiments.base import CrossValidated
from setwise.experiments.config import settings
from setwise.experiments.scores import format_mean, score

if TYPE_CHECKING:
    from setwise.experiments.base import Experiment


MISSING = object()


def load_results(folder: Path, experiment: type[Experiment]) -> list[dict[str, Any]]:
    """Load all recorded results of an experiment from ``folder``; raise if there are none."""
    results = []
    for path in sorted((folder / experiment.name).glob("*.json")):
        result = read_json(path)
        if error := result_error(result, experiment):
            raise ValueError(f"{path} is not a valid result of {experiment.name}: {error}")
        results.append(result)
    if not results:
        raise FileNotFoundError(
            f"no results in {folder / experiment.name}: create them with 'setwise run {experiment.name}'"
        )
    return results


def by_data(results: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group results by data set, stand-ins last; a table never mixes data sets."""
    names = sorted({r["data"] for r in results}, key=lambda name: ("stand-in" in name, name))
    return {name: [r for r in results if r["data"] == name] for name in names}


def result_error(result: Any, experiment: type[Experiment]) -> str | None:
    """Describe what is wrong with a result; None if it is valid."""
    if not isinstance(result, dict):
        return "it is not an object"
    numbers = {key: result.get(key) for key in ("accuracy", "seed")}
    default, value = getattr(experiment(), experiment.varied), result.get(experiment.varied)
    if isinstance(default, str):
        if not isinstance(value, str):
            return f"{experiment.varied} must be a string, got {value!r}"
    else:
        numbers[experiment.varied] = value
    columns = {key: score(result, key, MISSING) for key in experiment.COLUMNS}
    numbers |= {key: value for key, value in columns.items() if value is not MISSING}
    for key, value in numbers.items():
        if error := _number_error(key, value):
            return error
    if error := _folds_error(result, experiment) or _budget_error(result):
        return error
    if result.get("experiment") != experiment.name:
        return f"experiment must be {experiment.name!r}, got {result.get('experiment')!r}"
    if not isinstance(result.get("data"), str):
        return f"data must be a string, got {result.get('data')!r}"
    if result.get("row") not in experiment.ROWS:
        return f"row must be one of {', '.join(experiment.ROWS)}, got {result.get('row')!r}"
    return experiment.result_error(result)


def _number_error(key: str, value: Any) -> str | None:
    if isinstance(value, int | float) and math.isfinite(value):
        return None
    return f"{key} must be a number, got {value!r}"


def _folds_error(result: Mapping[str, Any], experiment: type[Experiment]) -> str | None:
    """Describe what is wrong with the folds of a cross-validated result."""
    if not issubclass(experiment, CrossValidated):
        return None
    folds = result.get("folds")
    if not isinstance(folds, list) or not folds:
        return f"folds must be a list of scores, got {folds!r}"
    for fold in folds:
        if not isinstance(fold, dict):
            return f"a fold must be an object, got {fold!r}"
        for key in ["accuracy", *(column for column in experiment.COLUMNS if column in fold)]:
            if error := _number_error(key, fold.get(key)):
                return f"in a fold, {error}"
    return None


def _budget_error(result: Mapping[str, Any]) -> str | None:
    """Describe what is wrong with the budget of a result, or of the run it started from."""
    budget = result.get("budget")
    if not isinstance(budget, dict):
        return f"budget must be an object, got {budget!r}"
    for key in ("steps", "sets", "seconds"):
        if error := _number_error(key, budget.get(key)):
            return error
    if "start" not in result:
        return None
    if not isinstance(result["start"], dict):
        return f"start must be an object, got {result['start']!r}"
    return _budget_error(result["start"])


def table(
    experiment: type[Experiment], results: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: one row per model, varied value, budget and settings; seeds are averaged.

    The rows follow the order of the paper. Numbers are the mean over seeds ± standard deviation or, with
    cross-validation, the mean over all folds of all seeds ± standard error. The budget of a run includes that
    of the run it started from.
    """
    if (custom := experiment.table(results)) is not None:
        return custom
    groups: dict[tuple[int, Any, tuple[int, ...], str], list[Mapping[str, Any]]] = {}
    order = list(experiment.ROWS)
    for r in results:
        steps = tuple(budget["steps"] for budget in budgets(r))
        key = (order.index(r["row"]), r[experiment.varied], steps, settings(r, experiment))
        groups.setdefault(key, []).append(r)
    headings = [
        "Row", experiment.varied, "Test accuracy", "Paper", *experiment.COLUMNS.values(),
        "Batches", "Sets", "Minutes", "Seeds",
    ]  # fmt: skip
    lines = []
    for (_, value, *_), group in sorted(groups.items()):
        row = group[0]["row"]
        paper = experiment.paper(row, value)
        lines.append([
            experiment.ROWS[row],
            value if isinstance(value, str) else f"{value:g}",
            format_mean(group, "accuracy"),
            _format_paper(paper),
            *(format_mean(group, column) for column in experiment.COLUMNS),
            " + ".join(f"{budget['steps']:,}" for budget in budgets(group[0])),
            f"{sum(budget['sets'] for budget in budgets(group[0])):,}",
            f"{fmean(sum(budget['seconds'] for budget in budgets(r)) for r in group) / 60:.1f}",
            _format_seeds(group),
        ])  # fmt: skip
    return headings, lines


def _format_paper(paper: tuple[float, float | None] | None) -> str:
    """Format a number of the paper with its standard deviation, where given."""
    if paper is None:
        return "—"
    mean, deviation = paper
    return f"{mean:.4f}" if deviation is None else f"{mean:.4f} ± {deviation:.4f}"


def budgets(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Budgets of the runs a result started from, followed by its own."""
    return [*(budgets(result["start"]) if "start" in result else []), result["budget"]]


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format the table as Markdown.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    rows = [list(headings), *lines]
    text = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([text[0], "|" + "---|" * len(headings), *text[1:]])


def _format_seeds(group: Sequence[Mapping[str, Any]]) -> str:
    """Format the number of seeds, and of folds per seed."""
    folds = len(group[0].get("folds", ()))
    return f"{len(group)} × {folds} folds" if folds else str(len(group))
