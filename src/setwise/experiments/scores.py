"""Scores of several results as one number and how far it spreads."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any


def values(results: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """A score of each result that has it, or of each fold of it where there are folds.

    >>> values([{"auc": 0.5}, {"folds": [{"auc": 0.7}, {"auc": 0.8}], "auc": 0.75}, {}], "auc")
    [0.5, 0.7, 0.8]
    """
    parts = [part for result in results for part in result.get("folds", [result])]
    return [value for part in parts if (value := score(part, key)) is not None]


def score(result: Mapping[str, Any], key: str, missing: Any = None) -> Any:
    """A score by its name, in which a dot leads into a part of the result.

    >>> score({"graph": {"sigma": 2.0}}, "graph.sigma")
    2.0
    """
    value: Any = result
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return missing
        value = value[name]
    return value


def standard_error(found: Sequence[float]) -> float:
    """The standard error of the mean, as if all values were independent; zero for a single one.

    >>> round(standard_error([0.5, 0.7, 0.6, 1.0]), 4)
    0.108
    """
    return stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0


def spread(results: Sequence[Mapping[str, Any]], key: str) -> str:
    """The mean of a score ± its standard deviation over seeds or, with folds, its standard error over them.

    >>> spread([{"auc": 0.5}, {"auc": 0.7}], "auc")
    '0.6000 ± 0.1414'
    """
    found = values(results, key)
    if not found:
        return "—"
    shown = f"{fmean(found):.4f}"
    if len(set(found)) > 1:
        shown += f" ± {standard_error(found) if 'folds' in results[0] else stdev(found):.4f}"
    folds = sum(len(result.get("folds", ())) for result in results)
    return f"{shown} ({len(found)} of {folds} folds)" if 0 < len(found) < folds else shown
