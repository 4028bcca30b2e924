"""Tables for a terminal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sheet:
    """A table to print: its title, its headings if it has any, and its rows."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __rich__(self) -> Any:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text  # a label in brackets is no markup

        table = Table(show_header=bool(self.headings), box=box.SIMPLE_HEAD if self.headings else None)
        for heading in self.headings or self.rows[0]:
            table.add_column(Text(heading), overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return Group(Text(self.title, style="bold"), table) if self.title else table


def lines(facts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Those facts that there are."""
    return tuple((what, told) for what, told in facts.items() if told)


def with_error(mean: float, error: float | None) -> str:
    """A mean and its standard error, as text."""
    return f"{mean:.4g}" if error is None else f"{mean:.4g} ± {error:.2g}"
