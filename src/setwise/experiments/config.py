"""Compare recorded configurations with current ones."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from setwise.experiments.base import Experiment

IGNORED_FIELDS = {"threads", "evaluations", "checkpoint_seconds", "tensorboard"}


def settings(result: Mapping[str, Any], experiment: type[Experiment]) -> str:
    """Configuration of a result as JSON, without the varied field and fields that do not affect the result.

    Results are repetitions of each other only if this is equal.
    """
    config = with_defaults(result.get("config", {}), asdict(experiment()))
    return json.dumps(_without(config, IGNORED_FIELDS | {experiment.varied}), sort_keys=True)


def _without(config: Any, without: set[str]) -> Any:
    if not isinstance(config, Mapping):
        return config
    return {key: _without(value, without) for key, value in config.items() if key not in without}


def with_defaults(config: Any, defaults: Mapping[str, Any]) -> Any:
    """Add the defaults of fields that a recorded configuration lacks because they were introduced later."""
    if not isinstance(config, Mapping):
        return config
    missing = {key: value for key, value in defaults.items() if key not in config}
    inner = {
        key: with_defaults(config[key], value)
        for key, value in defaults.items()
        if key in config and isinstance(value, Mapping)
    }
    return {**missing, **config, **inner}


def difference(first: Any, second: Mapping[str, Any], prefix: str = "") -> str:
    """Describe the first field in which two configurations differ; empty if they are equal.

    >>> difference({"steps": 3}, {"steps": 4})
    'steps differs: 3 and 4'
    """
    if not isinstance(first, Mapping):
        return "unreadable"
    for key in [*second, *first]:
        if key not in second:
            return f"unknown field {prefix}{key} = {first[key]}"
        if isinstance(second[key], Mapping) and isinstance(first.get(key), Mapping):
            if inner := difference(first[key], second[key], f"{prefix}{key}."):
                return inner
        elif first.get(key) != second[key]:
            return f"{prefix}{key} differs: {first.get(key)} and {second[key]}"
    return ""
