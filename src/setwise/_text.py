"""Helpers for the text of messages."""

from collections.abc import Iterable, Sequence
from typing import Any


def shortened(value: Any, most: int = 80) -> str:
    r"""Text on one line, cut after ``most`` characters.

    >>> shortened("two\nlines"), shortened("x" * 1000, 3)
    ('two lines', 'xxx…')
    """
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[:most]}…"


def few(values: Iterable[Any]) -> str:
    """The first eight values as text, each shortened; empty text if there are none.

    >>> few("abc"), few(range(20)), few([0.123456789]), few([])
    ('a, b, c', '0, 1, 2, 3, 4, 5, 6, 7 and 12 more', '0.123457', '')
    """
    values = list(values)
    shown = [f"{value:.6g}" if isinstance(value, float) else shortened(value) for value in values[:8]]
    return ", ".join(shown) + (f" and {len(values) - 8} more" if len(values) > 8 else "")


def first_duplicate(names: Sequence[str]) -> str | None:
    """The first name that occurs a second time, or None.

    >>> first_duplicate("abcb"), first_duplicate("abc")
    ('b', None)
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def error_summary(error: Exception) -> str:
    """The type and the first sentence of an error that another library raised."""
    message = shortened(" ".join(str(error).split()).partition(". ")[0], 200)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
