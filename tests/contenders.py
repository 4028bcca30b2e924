"""Contenders that fail in known ways, for the tests of benchmarks; without torch they start at once."""

import time
from collections.abc import Callable

ENOUGH = 100  # larger ones go wrong; the warm-up is smaller


def sleepy(n: int) -> Callable[[], None]:
    return lambda: time.sleep(60 if n > ENOUGH else 0)


def greedy(n: int) -> Callable[[], None]:
    def step() -> None:
        kept = []
        while n > ENOUGH:
            kept.append(b"x" * 2**20)

    return step


def refused(n: int) -> Callable[[], None]:
    def step() -> None:
        if n > ENOUGH:
            raise RuntimeError("can't allocate memory: you tried to allocate 4000000000000 bytes")

    return step


def broken(n: int) -> Callable[[], None]:
    raise ValueError(f"no such graph\nof {n}")


def gone(n: int) -> Callable[[], None]:
    raise SystemExit(3)


def taking(n: int) -> Callable[[], None]:
    """Takes n kilobytes in its step, after it took a hundred times as much before."""
    bytearray(b"x" * (100 * n * 1024))
    return lambda: time.sleep(0 * len(bytearray(b"x" * (n * 1024))))
