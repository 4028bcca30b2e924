"""Interleaved timing of several functions, so that changes in machine load cancel out of their ratios."""

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
    """Median time of each function in seconds, over rounds in which each function runs once."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if number:  # the first round is a warm-up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_megabytes(function: Callable[[], object]) -> float:
    """Peak memory of tensors that are allocated while the function runs."""
    function()  # exclude one-time allocations such as optimiser state
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        function()
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes), default=0) / 2**20


def machine() -> dict[str, Any]:
    """Hardware and software of a measurement."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "processor": platform.machine(),
        "revision": revision(),
    }


def record(name: str, result: dict[str, Any]) -> None:
    """Print a result and save it in results/benchmarks."""
    write_json(RESULTS / f"{name}.json", result | {"machine": machine()})
    for key, value in result.items():
        print(f"{name}: {key} = {value:.4g}" if isinstance(value, float) else f"{name}: {key} = {value}")
