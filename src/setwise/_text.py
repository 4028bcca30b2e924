"""Wording shared by messages."""

from typing import Any


def few(values: Any) -> str:
    """The first of some values, as text."""
    values = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in values]
    return ", ".join(values[:8]) + (f" and {len(values) - 8} more" if len(values) > 8 else "")
