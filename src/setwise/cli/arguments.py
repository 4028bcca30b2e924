"""Types of arguments that several commands share."""

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
Number = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Share = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]


def need_writable(folder: Path) -> None:
    """Fail before the work, not after it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
