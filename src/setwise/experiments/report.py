"""Tables of recorded results, beside the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from setwise._files import read_json
from setwise.experiments.base import CrossValidated
from setwise.experiments.config import settings
from setwise.experiments.scores import score, spread

if TYPE_CHECKING:
    from setwise.experiments.base import Experiment


MISSING = object()


def load_results(folder: Path, experiment: type[Experiment]) -> list[dict[str, Any]]:
    """All results of an experiment on record in ``folder``, with at least one."""
    results = []
    for path in sorted((folder / experiment.name).glob("*.json")):
        result = read_json(path)
        if fault := fault_of(result, experiment):
            raise ValueError(f"{path} is not a result of {experiment.name}: {fault}")
        results.append(result)
    if not results:
        raise FileNotFoundError(
            f"no results in {folder / experiment.name}: make some with 'setwise run {experiment.name}'"
        )
    return results


def by_data(results: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The results apart by the data that they come from, stand-ins last: a table never mixes them."""
    names = sorted({r["data"] for r in results}, key=lambda name: ("stand-in" in name, name))
    return {name: [r for r in results if r["data"] == name] for name in names}


def fault_of(result: Any, experiment: type[Experiment]) -> str | None:
    """What is wrong with a result, if anything."""
    if not isinstance(result, dict):
        return "it is not an object"
    numbers = {key: result.get(key) for key in ("accuracy", "seed")}
    default, value = getattr(experiment(), experiment.varied), result.get(experiment.varied)
    if isinstance(default, str):
        if not isinstance(value, str):
            return f"{experiment.varied} must be a name, got {value!r}"
    else:
        numbers[experiment.varied] = value
    found = {key: score(result, key, MISSING) for key in experiment.COLUMNS}
    numbers |= {key: value for key, value in found.items() if value is not MISSING}
    for key, value in numbers.items():
        if fault := _no_number(key, value):
            return fault
    if fault := _folds_fault(result, experiment) or _budget_fault(result):
        return fault
    if result.get("experiment") != experiment.name:
        return f"its experiment is {result.get('experiment')!r}"
    if not isinstance(result.get("data"), str):
        return f"data must be a name, got {result.get('data')!r}"
    if result.get("row") not in experiment.ROWS:
        return f"row must be one of {', '.join(experiment.ROWS)}, got {result.get('row')!r}"
    return experiment.fault(result)


def _no_number(key: str, value: Any) -> str | None:
    if isinstance(value, int | float) and math.isfinite(value):
        return None
    return f"{key} must be a number, got {value!r}"


def _folds_fault(result: Mapping[str, Any], experiment: type[Experiment]) -> str | None:
    """What is wrong with the folds of a result, where it must have them."""
    if not issubclass(experiment, CrossValidated):
        return None
    folds = result.get("folds")
    if not isinstance(folds, list) or not folds:
        return f"folds must be a list of scores, got {folds!r}"
    for fold in folds:
        if not isinstance(fold, dict):
            return f"a fold must be an object, got {fold!r}"
        for key in ["accuracy", *(column for column in experiment.COLUMNS if column in fold)]:
            if fault := _no_number(key, fold.get(key)):
                return f"in a fold, {fault}"
    return None


def _budget_fault(result: Mapping[str, Any]) -> str | None:
    """What is wrong with the budget of a result, or of one that it went on from."""
    budget = result.get("budget")
    if not isinstance(budget, dict):
        return f"budget must be an object, got {budget!r}"
    for key in ("steps", "sets", "seconds"):
        if fault := _no_number(key, budget.get(key)):
            return fault
    if "start" not in result:
        return None
    if not isinstance(result["start"], dict):
        return f"start must be an object, got {result['start']!r}"
    return _budget_fault(result["start"])


def table(
    experiment: type[Experiment], results: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: one line for each row, varied value, budget and settings; seeds are averaged.

    The rows come in the paper's order. Numbers are the mean over seeds ± their standard deviation or, with
    cross-validation, over all folds of all seeds ± the standard error. A run that went on from another counts
    what that one had cost.
    """
    if (own := experiment.table(results)) is not None:
        return own
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
            spread(group, "accuracy"),
            _published(paper),
            *(spread(group, column) for column in experiment.COLUMNS),
            " + ".join(f"{budget['steps']:,}" for budget in budgets(group[0])),
            f"{sum(budget['sets'] for budget in budgets(group[0])):,}",
            f"{fmean(sum(budget['seconds'] for budget in budgets(r)) for r in group) / 60:.1f}",
            _trials(group),
        ])  # fmt: skip
    return headings, lines


def _published(paper: tuple[float, float | None] | None) -> str:
    """A number of the paper with its deviation, as far as it has them."""
    if paper is None:
        return "—"
    mean, deviation = paper
    return f"{mean:.4f}" if deviation is None else f"{mean:.4f} ± {deviation:.4f}"


def budgets(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a result cost, after what the runs cost that it went on from."""
    return [*(budgets(result["start"]) if "start" in result else []), result["budget"]]


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The table as Markdown.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    rows = [list(headings), *lines]
    text = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([text[0], "|" + "---|" * len(headings), *text[1:]])


def _trials(group: Sequence[Mapping[str, Any]]) -> str:
    """How many seeds there are, and folds of each."""
    folds = len(group[0].get("folds", ()))
    return f"{len(group)} × {folds} folds" if folds else str(len(group))
