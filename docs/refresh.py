"""Write the tables of README and docs from the results on record; a test makes sure that it was done.

A table stands between ``<!-- NAME -->`` and ``<!-- end -->``, and is replaced by what NAME says.
"""

import re
from collections.abc import Callable
from pathlib import Path

from setwise.experiments import EXPERIMENTS
from setwise.experiments.gaussian import Gaussian
from setwise.experiments.report import by_data, load_results, markdown, table
from setwise.files import read_json, write_atomically

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def gaussian(rho: float | None) -> str:
    """The Gaussian table, at one ρ or at all of them."""
    results = load_results(RESULTS, Gaussian)
    return markdown(*table(Gaussian, [r for r in results if rho is None or r["rho"] == rho]))


def whole(name: str) -> str:
    """All results of an experiment on its real data."""
    results = by_data(load_results(RESULTS, EXPERIMENTS[name]))
    return markdown(*table(EXPERIMENTS[name], next(iter(results.values()))))


def benchmarks() -> str:
    """The ratios that `make bench` measured."""
    dense = read_json(RESULTS / "benchmarks" / "dense_step.json")
    loop = read_json(RESULTS / "benchmarks" / "loop_overhead.json")
    counting = read_json(RESULTS / "benchmarks" / "counting_step.json")
    points = read_json(RESULTS / "benchmarks" / "pointcloud_step.json")
    tissue = read_json(RESULTS / "benchmarks" / "histology_step.json")
    lines = [
        ["Training step / its matrix products alone", f"{dense['step_over_products']:.2f}"],
        ["Training step / plain `cdist → exp → softmax → matmul`", f"{dense['step_over_plain']:.2f}"],
        ["Training loop / a loop written by hand", f"{1 + loop['overhead']:.2f}"],
        ["Plain / our training step on 32 sets of drawings", f"{counting['plain_over_ours']:.2f}"],
        ["Plain / our time a set, with a shared pool", f"{counting['plain_over_pool_a_set']:.1f}"],
        ["Set Transformer (SAB) / D-DMPS, step on 1000 points", f"{points['transformer_over_dmps']:.2f}"],
        ["Its memory / that of D-DMPS", f"{points['transformer_over_dmps_memory']:.2f}"],
        ["Preparing 1000 points / that step of D-DMPS", f"{points['preparation_over_dmps']:.3f}"],
        *(
            [f"Plain / our training step on 672 patches, threads: {threads}", f"{ratio:.2f}"]
            for threads, ratio in tissue["plain_over_ours_by_threads"].items()
        ),
    ]
    return markdown(["Ratio", "Measured"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "gaussian at 0.95": lambda: gaussian(0.95),
    "gaussian": lambda: gaussian(None),
    "counting": lambda: whole("counting"),
    "pointcloud": lambda: whole("pointcloud"),
    "diffusion": lambda: whole("diffusion"),
    "histology": lambda: whole("histology"),
    "mil": lambda: whole("mil"),
    "benchmarks": benchmarks,
}


def refreshed(text: str) -> str:
    """The text with all its tables made anew."""

    def fill(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(rf"<!-- ({'|'.join(TABLES)}) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)


def pages() -> list[Path]:
    """The pages that hold such tables."""
    return [ROOT / "README.md", ROOT / "docs" / "paper.md"]


if __name__ == "__main__":
    for page in pages():
        write_atomically(page, refreshed(page.read_text()).encode())
