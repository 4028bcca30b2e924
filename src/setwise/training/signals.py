"""SIGINT (Ctrl-C) and SIGTERM: stop requests for a training loop, exceptions elsewhere."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(SystemExit):
    """SIGTERM has ended the work."""


class StopRequest:
    """The signal that asked the process to stop, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None

    def exit(self) -> NoReturn:
        """Raise the exception of the signal, or that of SIGTERM if another process received it."""
        raise_for_signal(signal.SIGTERM if self.signal is None else self.signal)


def raise_for_signal(number: int, frame: FrameType | None = None) -> NoReturn:
    """Raise `KeyboardInterrupt` for SIGINT, else `Terminated` with the exit code 128 + number."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(128 + number)


DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler, raise_for_signal)
"""Handlers that may be replaced; a program's own handler is kept."""


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Temporarily let SIGTERM raise `Terminated`, so that files are closed and temporary ones removed."""
    with _handler(raise_for_signal, (signal.SIGTERM,)):
        yield


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Temporarily record SIGINT and SIGTERM for the loop to check; a second Ctrl-C interrupts at once.

    Signals that the program handles or ignores itself are left alone. Python delivers signals to the main
    thread only; in other threads this does nothing.

    >>> with catch_stop_signals() as stop:
    ...     signal.raise_signal(signal.SIGINT)
    ...     stop.requested
    True
    """
    request = StopRequest()

    def record(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT == request.signal:
            raise KeyboardInterrupt
        request.signal = number

    with _handler(record, (signal.SIGINT, signal.SIGTERM)):
        yield request


@contextmanager
def _handler(handler: Callable[[int, FrameType | None], None], signals: Sequence[int]) -> Iterator[None]:
    """Install a handler for those signals that have a default one, and restore it afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    free = [number for number in signals if signal.getsignal(number) in DEFAULT_HANDLERS]
    previous = [(number, signal.signal(number, handler)) for number in free]
    try:
        yield
    finally:
        for number, before in previous:
            signal.signal(number, before)
