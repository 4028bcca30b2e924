"""How a sweep shows where it stands: one bar, or lines in a log, for runs in many processes."""

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
"""Bytes at the end of a file of metrics that hold its last whole line."""

LINE_SECONDS = 10.0
"""From one line to the next, where there is no terminal for a bar."""


class Board:
    """One bar for all runs of a sweep: how many have ended, the share of all steps, the time left.

    It looks into the runs' folders, so that it matters not which process or machine makes them.

    Args:
        runs: their folders; with each, the names of its trainings and how many steps these take.
    """

    def __init__(self, runs: Mapping[Path, tuple[Sequence[str], int]]) -> None:
        self.runs = {
            folder: ([folder / name / METRICS for name in names], steps)
            for folder, (names, steps) in runs.items()
        }
        self.all = sum(steps * len(files) for files, steps in self.runs.values())
        self.ended: set[Path] = set()
        self.bar = _bar()
        self.task = self.bar.add_task("sweep", total=self.all, runs="", left="")
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

    def over(self, folder: Path) -> None:
        """A run has ended, for better or worse."""
        self.ended.add(folder)

    def done(self) -> int:
        """The steps taken so far, those before a resumption included."""
        taken = 0
        for folder, (files, steps) in self.runs.items():
            if (folder / "result.json").exists():
                self.ended.add(folder)
            ended = folder in self.ended
            taken += sum(steps if ended else min(steps, last_step(file)) for file in files)
        return taken

    def state(self, done: int, seconds: float) -> tuple[str, str]:
        """How many runs have ended, and the time left, in words.

        Args:
            done: steps taken.
            seconds: time since the sweep began.
        """
        left = (self.all - done) * seconds / (done - self.first) if done > self.first else None
        runs = f"{len(self.ended)}/{len(self.runs)} runs"
        return runs, "" if left is None else f"{_clock(left)} left"

    def _follow(self) -> None:
        told, pause = self.began, 0.5
        while not self.closed.wait(pause):
            asked = time.perf_counter()
            done = self.done()
            now = time.perf_counter()
            pause = max(0.5, 10 * (now - asked))  # looking at many files must not become the work
            runs, left = self.state(done, now - self.began)
            self.bar.update(self.task, completed=done, runs=runs, left=left)
            if self.bar.disable and now - told > LINE_SECONDS:
                told = now
                line = f"sweep  {runs}  {done / self.all:.0%} of all steps  {left}"
                print(line.rstrip(), file=sys.stderr, flush=True)


def last_step(path: Path) -> int:
    """The step of the last whole line in a file of metrics; 0 where there is none yet."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().split(b"\n")
        return int(json.loads(lines[-2])["step"])
    except (OSError, IndexError, ValueError, KeyError, TypeError):
        return 0


def _clock(seconds: float) -> str:
    """A time in hours, minutes and seconds.

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
        redirect_stdout=sys.stdout.isatty(),  # results that go to a file must not end up on the terminal
    )
