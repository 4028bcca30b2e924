"""Progress of a training run: a bar on a terminal, lines in a log, or nothing."""

import sys
import time
from typing import Any, Self


class NoProgress:
    """Display nothing; base class of other displays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def begin(self, steps: int, done: int) -> None:
        """Start at step ``done`` of ``steps``."""

    def advance(self, step: int) -> None:
        """Report that step ``step`` is done."""

    def report(self, entry: dict[str, float]) -> None:
        """Report the metrics of an evaluation."""


class ProgressBar(NoProgress):
    """A bar with loss, score, speed and remaining time; without a terminal, a line every ten seconds.

    Args:
        title: label of the bar.
        metric: name of the score to display.
    """

    def __init__(self, title: str, metric: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.title = title
        self.metric = metric
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[scores]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(compact=True),
            disable=not sys.stderr.isatty(),
            console=_stderr(),
        )
        self.task = self.bar.add_task(title, total=1, scores="", speed="")
        self.last_update = self.started = self.last_line = time.perf_counter()
        self.done = self.steps = 0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def begin(self, steps: int, done: int) -> None:
        """Set the length of the bar."""
        self.done, self.steps = done, steps
        self.started = time.perf_counter()
        self.bar.update(self.task, total=steps, completed=done)

    def advance(self, step: int) -> None:
        """Move the bar, at most ten times per second."""
        now = time.perf_counter()
        if now - self.last_update > 0.1 or step == self.steps:
            self.last_update = now
            speed = f"{(step - self.done) / (now - self.started):,.0f}/s"
            self.bar.update(self.task, completed=step, speed=speed)

    def report(self, entry: dict[str, float]) -> None:
        """Display the latest loss and score; without a terminal, as a line every ten seconds."""
        scores = f"loss {entry['loss']:.4f}"
        if (score := entry.get(f"validation_{self.metric}")) is not None:
            scores += f"  {self.metric} {score:.4f}"
        if (neighbours := entry.get("effective_neighbours")) is not None:
            scores += f"  neighbours {neighbours:.3g}"
        self.bar.update(self.task, scores=scores)
        now, step = time.perf_counter(), int(entry["step"])
        if self.bar.disable and (now - self.last_line > 10 or step == self.steps):
            self.last_line = now
            speed = (step - self.done) / (now - self.started)
            left = (self.steps - step) / speed
            print(
                f"{self.title}  {step:,}/{self.steps:,}  {scores}  {speed:,.0f}/s  {left:,.0f} s left",
                file=sys.stderr,
                flush=True,
            )


def _stderr() -> Any:
    from rich.console import Console

    return Console(stderr=True)
