"""Timing two or more functions side by side, so that the machine's mood cancels out of their ratio."""

import itertools
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from setwise._files import write_json
from setwise.experiments.runner import revision

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks"


def side_by_side(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each function over rounds in which each of them runs once, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_megabytes(function: Callable[[], object]) -> float:
    """The most memory that tensors took at one time while the function ran, beyond what they took before."""
    function()  # what is made once, such as the state of an optimiser, does not count
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        function()
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes), default=0) / 2**20


def machine() -> dict[str, Any]:
    """What a result was measured on."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "processor": platform.machine(),
        "revision": revision(),
    }


def record(name: str, result: dict[str, Any]) -> None:
    """Print a result and keep it under results/benchmarks."""
    write_json(RESULTS / f"{name}.json", result | {"machine": machine()})
    for key, value in result.items():
        print(f"{name}: {key} = {value:.4g}" if isinstance(value, float) else f"{name}: {key} = {value}")
