"""Configurations on record, compared with those of today."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from setwise.experiments.base import Experiment

NO_MATTER = {"threads", "evaluations", "checkpoint_seconds", "tensorboard"}


def settings(result: Mapping[str, Any], experiment: type[Experiment]) -> str:
    """What a result was made with, but for what is varied and what does not change it, as text.

    Results that differ here are no repetitions of each other.
    """
    config = filled(result.get("config", {}), asdict(experiment()))
    return json.dumps(_kept(config, NO_MATTER | {experiment.varied}), sort_keys=True)


def _kept(config: Any, without: set[str]) -> Any:
    if not isinstance(config, Mapping):
        return config
    return {key: _kept(value, without) for key, value in config.items() if key not in without}


def filled(found: Any, defaults: Mapping[str, Any]) -> Any:
    """A configuration on record, with the defaults of fields that are younger than it."""
    if not isinstance(found, Mapping):
        return found
    missing = {key: value for key, value in defaults.items() if key not in found}
    inner = {
        key: filled(found[key], value)
        for key, value in defaults.items()
        if key in found and isinstance(value, Mapping)
    }
    return {**missing, **found, **inner}


def difference(found: Any, wanted: Mapping[str, Any], prefix: str = "") -> str:
    """The first field in which two configurations differ, and how.

    >>> difference({"steps": 3}, {"steps": 4})
    'steps is 3 there and 4 here'
    """
    if not isinstance(found, Mapping):
        return "unreadable"
    for key in [*wanted, *found]:
        if key not in wanted:
            return f"{prefix}{key} is {found[key]} there and unknown here"
        if isinstance(wanted[key], Mapping) and isinstance(found.get(key), Mapping):
            if inner := difference(found[key], wanted[key], f"{prefix}{key}."):
                return inner
        elif found.get(key) != wanted[key]:
            return f"{prefix}{key} is {found.get(key)} there and {wanted[key]} here"
    return ""
