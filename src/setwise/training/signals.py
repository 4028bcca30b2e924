"""Being asked to stop: by Ctrl-C, or by a system that shuts down."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

GRACE = 10.0
"""Seconds to put things in order, for a process whose parent has died."""


class Terminated(SystemExit):
    """The process was asked to end by SIGTERM, and has put its things in order."""


class Request:
    """Whether the process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def obey(self) -> NoReturn:
        """Stop."""
        stop(signal.SIGTERM if self.signal is None else self.signal)


def stop(number: int, frame: FrameType | None = None) -> NoReturn:
    """Stop as a signal demands: as on Ctrl-C, or with the exit code of a process that it ended."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(128 + number)


UNHANDLED = (signal.SIG_DFL, signal.default_int_handler, stop)
"""What is done about a signal if nobody says otherwise."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within, SIGTERM ends the work as an exception does, so that nothing is left half-done."""
    with _handled(stop, (signal.SIGTERM,)):
        yield


@contextmanager
def heeded() -> Iterator[Request]:
    """Within, SIGINT and SIGTERM are requests that the work looks at when it suits; a second Ctrl-C is not.

    A program that handles or ignores a signal itself goes on doing so. Only the main thread hears signals;
    elsewhere this does nothing.

    >>> with heeded() as request:
    ...     signal.raise_signal(signal.SIGINT)
    ...     bool(request)
    True
    """
    request = Request()

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT == request.signal:
            raise KeyboardInterrupt
        request.signal = number

    with _handled(note, (signal.SIGINT, signal.SIGTERM)):
        yield request


def end_with_parent(parent: int) -> None:
    """From now on, end with the process that started this one: by SIGTERM or, if that is not heeded, soon.

    Whoever is killed cannot end what it has started, which would work on, or wait for ever.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], signals: Sequence[int]) -> Iterator[None]:
    """Handle signals that nobody else handles or ignores; only the main thread hears them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    free = [number for number in signals if signal.getsignal(number) in UNHANDLED]
    before = [(number, signal.signal(number, handler)) for number in free]
    try:
        yield
    finally:
        for number, handled in before:
            signal.signal(number, handled)
