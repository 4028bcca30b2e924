"""Tables to print in a terminal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TextTable:
    """A table with a title, optional column headings, and rows of text."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __rich__(self) -> Any:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text  # prints brackets in labels as they are

        table = Table(show_header=bool(self.headings), box=box.SIMPLE_HEAD if self.headings else None)
        for heading in self.headings or self.rows[0]:
            table.add_column(Text(heading), overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return Group(Text(self.title, style="bold"), table) if self.title else table


def nonempty_rows(facts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Rows of names and values; drop entries with an empty value."""
    return tuple((name, value) for name, value in facts.items() if value)


def with_error(mean: float, error: float | None) -> str:
    """A mean and, if known, its standard error as text."""
    return f"{mean:.4g}" if error is None else f"{mean:.4g} ± {error:.2g}"
