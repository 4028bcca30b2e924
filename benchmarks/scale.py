"""Time and memory of a training step against the size of the set, for our graphs and their peers.

A batch of one set, 64 features, float32, all cores. Each measurement runs in its own process; all contenders
of one size are measured in succession, so that their ratios are meaningful. A contender that exceeds the time
or memory limit is not measured at larger sizes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.isolated import MEMORY, TIME, Limits, failed, measure
from benchmarks.measure import RESULTS, machine
from setwise._files import read_json, write_json

SIZES = (100, 300, 1000, 3000, 10_000, 30_000, 100_000, 200_000, 300_000, 1_000_000)
MISSING = "not installed"

Records = dict[tuple[str, int], dict[str, Any]]


@dataclass(frozen=True)
class Scale:
    """Measure how a training step grows with the set.

    Args:
        sizes: numbers of elements per set.
        only: names of contenders; all by default.
        out: result file, written after each measurement.
        resume: keep the results in the file, and measure those that are missing or failed with an error.
        timeout: time limit for the steps of a measurement, in seconds.
        memory: memory limit for the process of a measurement, in megabytes.
    """

    sizes: tuple[int, ...] = SIZES
    only: tuple[str, ...] = ()
    out: Path = RESULTS / "scale.json"
    resume: bool = False
    timeout: float = Limits.seconds
    memory: float = Limits.megabytes


def sweep(scale: Scale, contenders: Mapping[str, Contender] = CONTENDERS) -> dict[str, Any]:
    """Run the measurements; return the content of the result file."""
    if unknown := set(scale.only) - set(contenders):
        raise ValueError(f"only must be among {', '.join(contenders)}, got {', '.join(sorted(unknown))}")
    limits = Limits(seconds=scale.timeout, megabytes=scale.memory)
    records: Records = {}
    if scale.resume and scale.out.exists():
        records = {(r["contender"], r["n"]): r for r in read_json(scale.out)["measurements"]}
    result = _result(scale, records)
    for n in sorted(scale.sizes):
        for name in scale.only or contenders:
            if (record := records.get((name, n))) and record["fault"] in (None, MEMORY, TIME):
                continue
            contender = contenders[name]
            records[name, n] = {
                "contender": name,
                "label": contender.label,
                "kind": contender.kind,
                "package": contender.package,
                "version": contender.version,
                "n": n,
                **_measure(name, contender, n, limits, records),
            }
            print(line(records[name, n]), flush=True)
            result = _result(scale, records)
            write_json(scale.out, result)
    return result


def _measure(name: str, contender: Contender, n: int, limits: Limits, records: Records) -> dict[str, Any]:
    """Measure, unless the package is missing or a smaller set exceeded the limits."""
    if contender.version is None:
        return failed(MISSING)
    for (other, smaller), record in records.items():
        if other == name and smaller < n and record["fault"] in (MEMORY, TIME):
            return failed(record["fault"])
    return measure(contender.make, n, limits)


def _result(scale: Scale, records: Records) -> dict[str, Any]:
    settings = asdict(scale) | {"out": scale.out.name, "batch": 1, "dtype": "float32"}
    return {
        "settings": settings,
        "measurements": list(records.values()),
        "ratios": ratios(records.values()),
        "machine": machine(),
    }


def ratios(records: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Ratios of times of interest, where both were measured."""
    seconds = {(r["contender"], r["n"]): r["seconds"] for r in records}

    def ratio(above: tuple[str, int], below: tuple[str, int]) -> float | None:
        a, b = seconds.get(above), seconds.get(below)
        return None if a is None or b is None else a / b

    return {
        "encoder_over_latent_at_1000": ratio(("encoder", 1000), ("latent", 1000)),
        "sab_over_latent_at_1000": ratio(("sab", 1000), ("latent", 1000)),
        "isab_over_linear_at_100000": ratio(("isab", 100_000), ("linear", 100_000)),
        "linear_200000_over_100000": ratio(("linear", 200_000), ("linear", 100_000)),
    }


def line(record: Mapping[str, Any]) -> str:
    """Format a measurement for the progress output."""
    start = f"n = {record['n']:>9,}  {record['label']:<32}"
    if record["fault"]:
        return f"{start}{record['fault']}"
    peak = record["peak_megabytes"]
    memory = "memory unknown" if peak is None else f"{peak:10.1f} MB"
    return f"{start}{record['seconds']:10.4f} s {memory}  ({record['rounds']} rounds)"


if __name__ == "__main__":
    sweep(tyro.cli(Scale))
