"""Mean and spread of scores over several results."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any


def values(results: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """Collect a score from each result that has it, or from each of its folds.

    >>> values([{"auc": 0.5}, {"folds": [{"auc": 0.7}, {"auc": 0.8}], "auc": 0.75}, {}], "auc")
    [0.5, 0.7, 0.8]
    """
    parts = [part for result in results for part in result.get("folds", [result])]
    return [value for part in parts if (value := score(part, key)) is not None]


def score(result: Mapping[str, Any], key: str, missing: Any = None) -> Any:
    """Look up a score by name; dots separate nested keys.

    >>> score({"graph": {"sigma": 2.0}}, "graph.sigma")
    2.0
    """
    value: Any = result
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return missing
        value = value[name]
    return value


def standard_error(scores: Sequence[float]) -> float:
    """Standard error of the mean, assuming independent values; zero for a single value.

    >>> round(standard_error([0.5, 0.7, 0.6, 1.0]), 4)
    0.108
    """
    return stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else 0.0


def format_mean(results: Sequence[Mapping[str, Any]], key: str) -> str:
    """Mean of a score ± its standard deviation over seeds or, with folds, its standard error over folds.

    >>> format_mean([{"auc": 0.5}, {"auc": 0.7}], "auc")
    '0.6000 ± 0.1414'
    """
    scores = values(results, key)
    if not scores:
        return "—"
    text = f"{fmean(scores):.4f}"
    if len(set(scores)) > 1:
        text += f" ± {standard_error(scores) if 'folds' in results[0] else stdev(scores):.4f}"
    folds = sum(len(result.get("folds", ())) for result in results)
    return f"{text} ({len(scores)} of {folds} folds)" if 0 < len(scores) < folds else text
