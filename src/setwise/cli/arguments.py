"""Argument types shared by several commands, and a check of output folders."""

import tempfile
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

Model = Annotated[Positional[Path], tyro.conf.arg(metavar="MODEL", help_behavior_hint="")]
Out = Annotated[Path, tyro.conf.arg(metavar="FILE", aliases=("-o",))]
Data = Annotated[Positional[Path], tyro.conf.arg(metavar="DATA", help_behavior_hint="")]
MaybeData = Annotated[Positional[Path | None], tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]
OptionalNames = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")]
Number = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Fraction = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]


def check_writable(folder: Path) -> None:
    """Create a folder and check that files can be written to it, before any work is done."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
