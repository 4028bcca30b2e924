"""Ratios of training-step times on large sets, measured in one process with interleaved rounds.

The models are those of `benchmarks.contenders`. Memory is measured in two ways: the peak of all tensors, and
the peak of a separate process without model and inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import tyro
from torch import nn

import setwise as sw
from benchmarks.contenders import CONTENDERS, Step, train
from benchmarks.isolated import Limits, measure
from benchmarks.measure import peak_megabytes, record, side_by_side

INSTANCE = 512
"""Number of features of an instance of a large bag."""


@dataclass(frozen=True)
class ScaleRatios:
    """Compare training steps of our graphs with their peers.

    Args:
        sets: sets per batch of small sets.
        small: set size for the dense graph and full attention.
        exact: set size for the streamed and the dense graph.
        large: set size for the linear graph and inducing points; also twice and four times as many.
        small_rounds: rounds for the batch of small sets.
        rounds: rounds for all other measurements.
    """

    sets: int = 16
    small: int = 1000
    exact: int = 20_000
    large: int = 100_000
    small_rounds: int = 12
    rounds: int = 5


def steps(requested: Mapping[str, tuple[str, int]], sets: int = 1) -> tuple[dict[str, Step], dict[str, str]]:
    """Steps of contenders by name, and the errors of those that failed."""
    made, faults = {}, {}
    for key, (name, n) in requested.items():
        try:
            step = CONTENDERS[name].make(n, sets)
            step()
            made[key] = step
        except Exception as error:  # a missing peer must not stop the others
            faults[key] = f"{type(error).__name__}: {error}".splitlines()[0]
    return made, faults


def over(times: Mapping[str, float], below: str, above: Sequence[str]) -> dict[str, float | None]:
    """Ratios ``above / below``; None if one of the two is missing."""
    return {
        f"{name}_over_{below}": times[name] / times[below] if {name, below} <= times.keys() else None
        for name in above
    }


def full_attention(sizes: ScaleRatios) -> dict[str, Any]:
    """Dense graph compared with full attention."""
    peers = ("encoder", "sab", "pyg-sab")
    made, faults = steps({name: (name, sizes.small) for name in ("latent", *peers)}, sizes.sets)
    times = side_by_side(made, sizes.small_rounds)
    return over(times, "latent", peers) | {"seconds": times, "faults": faults}


def inducing_points(sizes: ScaleRatios) -> dict[str, Any]:
    """Linear graph compared with inducing points."""
    peers = ("isab", "pyg-isab")
    made, faults = steps({name: (name, sizes.large) for name in ("linear", *peers)})
    times = side_by_side(made, sizes.rounds)
    return over(times, "linear", peers) | {"seconds": times, "faults": faults}


def growth(sizes: ScaleRatios) -> dict[str, Any]:
    """Linear graph with two and four times as many elements."""
    made, faults = steps({name: ("linear", k * sizes.large) for name, k in (("n", 1), ("2n", 2), ("4n", 4))})
    times = side_by_side(made, sizes.rounds)
    return over(times, "n", ("2n",)) | over(times, "2n", ("4n",)) | {"seconds": times, "faults": faults}


def without_matrix(sizes: ScaleRatios) -> dict[str, Any]:
    """Streamed graph compared with the dense one, which gives the same result."""
    names = ("streamed", "latent")
    alone = {name: measure(CONTENDERS[name].make, sizes.exact, Limits(seconds=600)) for name in names}
    made, faults = steps({name: (name, sizes.exact) for name in names})
    times = side_by_side(made, sizes.rounds)
    return over(times, "latent", ("streamed",)) | {
        "seconds": times,
        "tensor_megabytes": {name: peak_megabytes(step) for name, step in made.items()},
        "process_megabytes": {name: alone[name]["peak_megabytes"] for name in names},
        "faults": faults | {f"{n} alone": alone[n]["fault"] for n in names if alone[n]["fault"]},
    }


def bag() -> nn.Module:
    return sw.DMPS.build(INSTANCE, 2, graph="auto")


def large_bag(sizes: ScaleRatios) -> dict[str, Any]:
    """Large bag of instances with many features, for a model with default settings."""
    return {"features": INSTANCE} | measure(partial(train, bag, dim=INSTANCE), sizes.large, Limits())


def main(sizes: ScaleRatios) -> None:
    record(
        "scale_ratios",
        {
            "settings": asdict(sizes),
            "full_attention": full_attention(sizes),
            "inducing_points": inducing_points(sizes),
            "growth": growth(sizes),
            "without_matrix": without_matrix(sizes),
            "large_bag": large_bag(sizes),
            "versions": {c.package: c.version for c in CONTENDERS.values()},
        },
    )


if __name__ == "__main__":
    main(tyro.cli(ScaleRatios))
