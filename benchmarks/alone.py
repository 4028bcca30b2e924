"""The time and memory of a step, measured in a process of its own, so that its memory is all its own.

The parent watches: a process that takes too long or too much memory ends there, and not the machine. Peak
memory is read from Linux' /proc, as `getrusage` counts what the parent had taken before; on another system
it stays unknown and only time is limited. This module does not import torch, which would count as well.
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
LONG_STEP, ENOUGH = 20.0, 3.0  # seconds: a step that is measured once, and all rounds of a short one
FEWEST, MOST = 3, 100  # rounds

PHYSICAL = (
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20 if hasattr(os, "sysconf") else 8192.0
)

Result = dict[str, Any]
"""``seconds`` and ``peak_megabytes``, or None; ``fault``, or None; the number of ``rounds``."""


@dataclass(frozen=True)
class Limits:
    """What a measurement may take.

    Args:
        seconds: for all its steps.
        megabytes: of the whole process.
        start: seconds before the first step: imports and, with KeOps, a compiler.
    """

    seconds: float = 120.0
    megabytes: float = min(16 * 1024.0, 0.8 * PHYSICAL)
    start: float = 600.0


def failed(fault: str) -> Result:
    """The result of a measurement that did not end well."""
    return {"seconds": None, "peak_megabytes": None, "fault": fault, "rounds": 0}


def measure(make: Callable[[int], Callable[[], object]], n: int, limits: Limits) -> Result:
    """The median time and the peak memory of ``make(n)()``, beyond what inputs and model take."""
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
                    process.join(10)  # to end by itself: KeOps writes its cache then
                    return message
                deadline = time.monotonic() + limits.seconds  # it is about to start
            elif _resident(process.pid) > limits.megabytes:
                return failed(MEMORY)
            elif time.monotonic() > deadline:
                return failed(TIME)
    except EOFError:
        process.join()
        out_of_memory = process.exitcode == -signal.SIGKILL  # the system's doing, as it was not ours
        return failed(MEMORY if out_of_memory else f"exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
        ours.close()


def _report(parent: Connection, make: Callable[[int], Callable[[], object]], n: int) -> None:
    """Say None when about to start, and then the result."""
    try:
        make(WARM_UP)()  # what is loaded or compiled at first use does not count
        step = make(n)
        gc.collect()
        _forget_peak()
        before = _peak()
        parent.send(None)
        first = _timed(step)
        rounds = 1 if first > LONG_STEP else min(max(FEWEST, int(ENOUGH / first)), MOST)
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
    except Exception as error:  # whatever it is, the parent has to hear of it
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        out_of_memory = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        parent.send(failed(MEMORY if out_of_memory else text))


def _timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _forget_peak() -> None:
    """Let the peak start anew from what is in use now."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")


def _peak() -> float | None:
    """The most memory that this process ever had, in MB."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) / 1024 if found else None


def _resident(pid: int | None) -> float:
    """The memory of another process, in MB; zero where it cannot be known."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
