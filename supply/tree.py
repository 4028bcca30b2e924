"""Every package that an installation of setwise brings along, read from the environment of the tests."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply import ROOT, RUNTIME


@dataclass(frozen=True)
class Package:
    """An installed package: what it needs itself, and which extras ask for it (``core`` is no extra)."""

    distribution: Distribution
    requires: tuple[str, ...]
    extras: tuple[str, ...]

    @property
    def version(self) -> str:
        """As installed, a local label such as ``+cpu`` included."""
        return self.distribution.version


def asked(project: Path = ROOT / "pyproject.toml") -> dict[str, list[Requirement]]:
    """What the project asks for: the core's requirements, then those of each runtime extra."""
    table = tomllib.loads(project.read_text())["project"]
    wanted = {"core": table["dependencies"]} | {
        extra: table["optional-dependencies"][extra] for extra in RUNTIME
    }
    return {extra: [Requirement(line) for line in lines] for extra, lines in wanted.items()}


def needed(requirement: Requirement) -> list[Requirement]:
    """What an installed package needs here, with the extras that are asked of it."""
    extras = {"", *requirement.extras}
    found = [Requirement(line) for line in distribution(requirement.name).requires or ()]
    return [r for r in found if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)]


def closure(roots: Iterable[Requirement]) -> dict[str, set[str]]:
    """All packages that the roots bring along, each with the names of those it needs."""
    edges: dict[str, set[str]] = {}
    seen, waiting = set(), list(roots)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        below = needed(requirement)
        # dask[distributed] and dask[array] are one package, and a package may ask for its own extras.
        edges.setdefault(name, set()).update({canonicalize_name(r.name) for r in below} - {name})
        waiting += below
    return edges


def packages() -> dict[str, Package]:
    """Every package at run time by its normalised name, in alphabetical order."""
    parts = {extra: closure(roots) for extra, roots in asked().items()}
    edges: dict[str, set[str]] = {}
    for part in parts.values():
        for name, below in part.items():
            edges.setdefault(name, set()).update(below)
    return {
        name: Package(
            distribution(name),
            tuple(sorted(edges[name])),
            ("core",) if name in parts["core"] else tuple(e for e in parts if name in parts[e]),
        )
        for name in sorted(edges)
    }


def pins(path: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """The versions that the tests run with, by normalised name."""
    found = re.findall(r"^([\w.-]+)==(\S+)$", path.read_text(), flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}
