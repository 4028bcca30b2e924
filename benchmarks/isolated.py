"""Measure time and peak memory of a step in a separate process.

The parent process stops a measurement that exceeds its limits. Peak memory is read from /proc on Linux,
because `getrusage` includes memory of the parent; on other systems it is unknown and only time is limited.
This module does not import torch, because its memory would count as well.
"""

import gc
import os
import re
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MEMORY, TIME = "memory", "time"
WARM_UP = 64
LONG_STEP, TOTAL_SECONDS = 20.0, 3.0  # longer steps are measured once; shorter ones for a total time
MIN_ROUNDS, MAX_ROUNDS = 3, 100

PHYSICAL = (
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20 if hasattr(os, "sysconf") else 8192.0
)

Result = dict[str, Any]
"""``seconds`` and ``peak_megabytes``, or None; ``fault``, or None; the number of ``rounds``."""


@dataclass(frozen=True)
class Limits:
    """Limits of a measurement.

    Args:
        seconds: time for all steps.
        megabytes: memory of the whole process.
        start: seconds before the first step, for imports and, with KeOps, a compiler.
    """

    seconds: float = 120.0
    megabytes: float = min(16 * 1024.0, 0.8 * PHYSICAL)
    start: float = 600.0


def failed(fault: str) -> Result:
    """Result of a failed measurement."""
    return {"seconds": None, "peak_megabytes": None, "fault": fault, "rounds": 0}


def measure(make: Callable[[int], Callable[[], object]], n: int, limits: Limits) -> Result:
    """Median time of ``make(n)()``, and its peak memory without that of inputs and model."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(theirs, make, n), daemon=True)
    process.start()
    theirs.close()
    deadline = time.monotonic() + limits.start
    try:
        while True:
            if ours.poll(0.05):
                message: Result | None = ours.recv()
                if message is not None:
                    process.join(10)  # KeOps writes its cache at exit
                    return message
                deadline = time.monotonic() + limits.seconds  # the first step starts now
            elif _resident(process.pid) > limits.megabytes:
                return failed(MEMORY)
            elif time.monotonic() > deadline:
                return failed(TIME)
    except EOFError:
        process.join()
        out_of_memory = process.exitcode == -signal.SIGKILL  # killed by the system
        return failed(MEMORY if out_of_memory else f"exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
        ours.close()


def _report(parent: Connection, make: Callable[[int], Callable[[], object]], n: int) -> None:
    """Send None before the first step, then the result."""
    try:
        make(WARM_UP)()  # exclude what is loaded or compiled at first use
        step = make(n)
        gc.collect()
        _reset_peak()
        before = _peak()
        parent.send(None)
        first = _timed(step)
        rounds = 1 if first > LONG_STEP else min(max(MIN_ROUNDS, int(TOTAL_SECONDS / first)), MAX_ROUNDS)
        times = [_timed(step) for _ in range(rounds)]
        peak = None if before is None else (_peak() or before) - before
        parent.send(
            {
                "seconds": statistics.median(times),
                "peak_megabytes": peak,
                "fault": None,
                "rounds": rounds,
            }
        )
    except Exception as error:  # report any failure to the parent
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        out_of_memory = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        parent.send(failed(MEMORY if out_of_memory else text))


def _timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _reset_peak() -> None:
    """Reset the peak memory to the memory in use."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")


def _peak() -> float | None:
    """Peak memory of this process in MB."""
    status = Path("/proc/self/status")
    match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(match[1]) / 1024 if match else None


def _resident(pid: int | None) -> float:
    """Memory of another process in MB; zero if unknown."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
