"""Progress of a sweep: one bar on a terminal, or lines in a log, for runs in many processes."""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from setwise.training.loop import METRICS

TAIL = 8192
"""Bytes to read at the end of a metrics file; they contain its last complete line."""

LINE_SECONDS = 10.0
"""Time between two lines if there is no terminal."""


class SweepProgress:
    """One bar for all runs of a sweep: number of ended runs, share of all steps, remaining time.

    It reads the metrics in the runs' folders, so the runs may be made by any process or machine.

    Args:
        runs: maps the folder of each run to the names of its trainings and their number of steps.
    """

    def __init__(self, runs: Mapping[Path, tuple[Sequence[str], int]]) -> None:
        self.runs = {
            folder: ([folder / name / METRICS for name in names], steps)
            for folder, (names, steps) in runs.items()
        }
        self.total = sum(steps * len(files) for files, steps in self.runs.values())
        self.ended: set[Path] = set()
        self.bar = _bar()
        self.task = self.bar.add_task("sweep", total=self.total, runs="", left="")
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self.first, self.began = self.done(), time.perf_counter()
        self.bar.start()
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.closed.set()
        self.thread.join()
        self.bar.stop()

    def end(self, folder: Path) -> None:
        """Mark a run as finished or failed."""
        self.ended.add(folder)

    def done(self) -> int:
        """Return the number of steps done, including those before a resumption."""
        taken = 0
        for folder, (files, steps) in self.runs.items():
            if (folder / "result.json").exists():
                self.ended.add(folder)
            ended = folder in self.ended
            taken += sum(steps if ended else min(steps, last_step(file)) for file in files)
        return taken

    def state(self, done: int, seconds: float) -> tuple[str, str]:
        """Return the number of ended runs and the remaining time as text.

        Args:
            done: steps done.
            seconds: time since the sweep began.
        """
        left = (self.total - done) * seconds / (done - self.first) if done > self.first else None
        runs = f"{len(self.ended)}/{len(self.runs)} runs"
        return runs, "" if left is None else f"{_clock(left)} left"

    def _follow(self) -> None:
        last_line, pause = self.began, 0.5
        while not self.closed.wait(pause):
            start = time.perf_counter()
            done = self.done()
            now = time.perf_counter()
            pause = max(0.5, 10 * (now - start))  # read many files less often
            runs, left = self.state(done, now - self.began)
            self.bar.update(self.task, completed=done, runs=runs, left=left)
            if self.bar.disable and now - last_line > LINE_SECONDS:
                last_line = now
                line = f"sweep  {runs}  {done / self.total:.0%} of all steps  {left}"
                print(line.rstrip(), file=sys.stderr, flush=True)


def last_step(path: Path) -> int:
    """Return the step of the last complete line of a metrics file, or 0 if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().split(b"\n")
        return int(json.loads(lines[-2])["step"])
    except (OSError, IndexError, ValueError, KeyError, TypeError):
        return 0


def _clock(seconds: float) -> str:
    """Format seconds as h:mm:ss.

    >>> _clock(3723.4), _clock(59.6)
    ('1:02:03', '0:01:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TextColumn("{task.fields[runs]}"),
        TextColumn("{task.fields[left]}"),
        disable=not sys.stderr.isatty(),
        console=Console(stderr=True),
        redirect_stdout=sys.stdout.isatty(),  # redirected results must not appear on the terminal
    )
