"""One run of a sweep, in whatever process: alone in it, and never longer than the sweep lives."""

import ctypes
import os
import signal
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from setwise.experiments import runner
from setwise.experiments.base import Experiment
from setwise.training.signals import end_with_parent

PULSE = 1.0
"""Seconds from one sign of life to the next, and from one look at it to the next."""
PATIENCE = 120
"""Looks at a sign that does not change after which a sweep is taken for dead."""

Outcome = tuple[int, dict[str, Any] | None, str]
"""The number of a point and its result, or else what went wrong."""

_ALONE = threading.Lock()  # random state and threads belong to a process: a run shares it with no other


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    experiment: Experiment
    """The configuration, with its own value of what is varied."""
    row: str
    """Which model."""
    seed: int
    """Of the weights and the data."""

    @property
    def title(self) -> str:
        """What to call it before people."""
        return runner.title(self.experiment, self.row, self.seed)

    def folder(self, out: Path) -> Path:
        """Where it keeps what it needs to go on."""
        return runner.run_folder(out, self.experiment, self.row, self.seed)

    def record(self, results: Path) -> Path:
        """Where its result goes on record."""
        return runner.result_path(results, self.experiment, self.row, self.seed)

    def run(self, out: Path, results: Path, *, resume: bool, show: bool) -> dict[str, Any]:
        """Train and test it, see `setwise.experiments.runner.run`."""
        return runner.run(
            self.experiment, self.row, self.seed, out=out, results=results, resume=resume, show=show
        )


@dataclass(frozen=True)
class Sweep:
    """What a process must know of the sweep that it works for."""

    out: Path
    """Where the folders of the runs are; as seen from every machine."""
    results: Path
    """Where the results go on record; as seen from every machine."""
    resume: bool
    """Whether to go on with what is there."""
    threads: int | None
    """CPU threads of a run whose experiment does not say; none leaves them as they are."""
    sign: Path
    """A file that changes with every pulse while the sweep is alive, and goes with it."""
    machine: str
    """Where the sweep was started."""
    process: int
    """And by which process there."""


class _StoppedError(BaseException):
    """The sweep is over; no `Exception`, for the run has not failed and can be resumed."""


@contextmanager
def alive(sign: Path) -> Iterator[None]:
    """Give signs of life."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(PULSE):
            with suppress(OSError):
                sign.touch()

    sign.parent.mkdir(parents=True, exist_ok=True)
    sign.touch()
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        sign.unlink(missing_ok=True)


def attempt(number: int, point: Point, sweep: Sweep) -> Outcome:
    """Make a run; what goes wrong comes back as a sentence, since not every error can travel."""
    try:
        with _ALONE, _bound(sweep):
            if sweep.threads is not None and point.experiment.threads is None:
                torch.set_num_threads(sweep.threads)
            return number, point.run(sweep.out, sweep.results, resume=sweep.resume, show=False), ""
    except _StoppedError:
        return number, None, "stopped with its sweep"
    except Exception as error:
        if os.environ.get("SETWISE_DEBUG"):
            traceback.print_exc()
        plain = isinstance(error, ValueError | TypeError | OSError | ImportError | FloatingPointError)
        return number, None, str(error) if plain else f"{type(error).__name__}: {error}"


@contextmanager
def _bound(sweep: Sweep) -> Iterator[None]:
    """Let a run in another process end with its sweep, however that ends."""
    machine = socket.gethostname()
    if (machine, os.getpid()) == (sweep.machine, sweep.process):
        yield
        return
    if not sweep.sign.exists():
        raise FileNotFoundError(
            f"{sweep.out} is not the same folder on {machine} as on {sweep.machine}: "
            "all machines of a cluster must share the file system of out and results"
        )
    if (machine, os.getppid()) == (sweep.machine, sweep.process):
        _serve(sweep.process)
    over, lock, thread = threading.Event(), threading.Lock(), threading.get_ident()

    def watch() -> None:
        last, same = -1, 0
        while not over.wait(PULSE):
            seen = last
            try:
                seen = sweep.sign.stat().st_mtime_ns
            except FileNotFoundError:
                same = PATIENCE
            except OSError:  # a file system that is away for a moment
                pass
            last, same = seen, same + 1 if seen == last else 0
            if same > PATIENCE:
                with lock:
                    if not over.is_set():
                        _raise_in(thread)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with lock:
            over.set()


@cache
def _serve(process: int) -> None:
    """Be a child from now on: leave interruptions to the parent, and end when it does, busy or idle."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(process)


def _raise_in(thread: int) -> None:
    """Stop what a thread is at: the only way, where the process is another's and must live on."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_StoppedError))
