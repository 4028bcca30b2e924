"""Reports of stress tests: one JSON file per command, in results/reliability."""

import argparse
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from setwise._files import write_json
from setwise.experiments.runner import revision

RESULTS = Path(__file__).parent.parent / "results" / "reliability"


def arguments(module: str, about: str | None, **options: tuple[Any, str]) -> argparse.Namespace:
    """Parse the options of a command, given as (default, help), and the path of its report."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    for name, (default, meaning) in options.items():
        parser.add_argument(
            f"--{name}", type=type(default), default=default, help=f"{meaning} (default: {default})"
        )
    name = module.rsplit(".", 1)[-1]
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="file of the report")
    return parser.parse_args()


def record(path: Path, command: str, found: dict[str, Any]) -> None:
    """Write a report, with versions and revision."""
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "setwise": version("setwise"),
    }
    write_json(path, {"command": command, **found, "versions": versions, "revision": revision()})
    print(path)
