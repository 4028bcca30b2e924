"""Write the tables of README and docs from the recorded results; a test checks that they are up to date.

The table NAME stands between ``<!-- NAME -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from docs import endured
from setwise._files import read_json, write_atomically
from setwise.experiments import EXPERIMENTS
from setwise.experiments.counting import Counting
from setwise.experiments.gaussian import Gaussian
from setwise.experiments.report import by_data, load_results, markdown, table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def gaussian(rho: float | None) -> str:
    """The Gaussian table, for one ρ or for all."""
    results = load_results(RESULTS, Gaussian)
    return markdown(*table(Gaussian, [r for r in results if rho is None or r["rho"] == rho]))


def whole(name: str) -> str:
    """All results of an experiment on real data."""
    results = by_data(load_results(RESULTS, EXPERIMENTS[name]))
    return markdown(*table(EXPERIMENTS[name], next(iter(results.values()))))


def counting(*, ablation: bool) -> str:
    """Table 1 with our own rows, or the ablation with the rows that it changes, at the same budget."""
    results = next(iter(by_data(load_results(RESULTS, Counting)).values()))
    if ablation:
        rows = ("d-dmps-fdc", "d-dmps-ldc", *Counting.ABLATION)
        chosen = [r for r in results if r["row"] in rows and r["budget"]["steps"] == ABLATION_STEPS]
    else:
        chosen = [r for r in results if r["row"] not in Counting.ABLATION]
    return markdown(*table(Counting, chosen)) if chosen else UNMEASURED_ROWS


def benchmarks() -> str:
    """Ratios measured by `make bench`."""
    dense = read_json(RESULTS / "benchmarks" / "dense_step.json")
    loop = read_json(RESULTS / "benchmarks" / "loop_overhead.json")
    counting = read_json(RESULTS / "benchmarks" / "counting_step.json")
    points = read_json(RESULTS / "benchmarks" / "pointcloud_step.json")
    tissue = read_json(RESULTS / "benchmarks" / "histology_step.json")
    command = read_json(RESULTS / "benchmarks" / "predicting.json")
    lines = [
        ["Training step / its matrix products alone", f"{dense['step_over_products']:.2f}"],
        ["Training step / plain `cdist → exp → softmax → matmul`", f"{dense['step_over_plain']:.2f}"],
        ["Training loop / a loop written by hand", f"{1 + loop['overhead']:.2f}"],
        ["Plain / our training step on 32 sets of drawings", f"{counting['plain_over_ours']:.2f}"],
        ["Plain / our time per set, with a shared pool", f"{counting['plain_over_pool_a_set']:.1f}"],
        ["Shared pool: all pixels and places / ink and drawings", f"{counting['everywhere_over_pool']:.2f}"],
        ["Set Transformer (SAB) / D-DMPS, step on 1000 points", f"{points['transformer_over_dmps']:.2f}"],
        ["Its memory / that of D-DMPS", f"{points['transformer_over_dmps_memory']:.2f}"],
        ["Preparing 1000 points / that step of D-DMPS", f"{points['preparation_over_dmps']:.3f}"],
        *(
            [f"Plain / our training step on 672 patches, threads: {threads}", f"{ratio:.2f}"]
            for threads, ratio in tissue["plain_over_ours_by_threads"].items()
        ),
        *(
            [f"Sets a second of `setwise predict` / {what}", f"{command[f'command_over_{loop}_loop']:.1f}"]
            for what, loop in {
                "one set at a time": "estimator",
                "one at a time by the bare network": "network",
            }.items()
        ),
    ]
    return markdown(["Ratio", "Measured"], lines)


COLUMNS = (1000, 10_000, 100_000, 1_000_000)
ABLATION_STEPS = 10_000
UNMEASURED_ROWS = "*Not run yet: `setwise run counting --row NAME`.*"
UNMEASURED = "*Not measured yet: `make bench`.*"


def scale() -> str:
    """Time and memory of a training step by set size, one line per model."""
    path = RESULTS / "benchmarks" / "scale.json"
    if not path.exists():
        return UNMEASURED
    records = {(r["label"], r["n"]): r for r in read_json(path)["measurements"]}
    labels = dict.fromkeys(label for label, _ in records)
    lines = [[label, *(cost(records.get((label, n))) for n in COLUMNS)] for label in labels]
    return markdown(["Training step", *(f"n = {n:,}" for n in COLUMNS)], lines)


def cost(record: Mapping[str, Any] | None) -> str:
    """Format the time and memory of a measured step.

    >>> cost({"seconds": 0.12, "peak_megabytes": 84.7, "fault": None})
    '0.12 s, 85 MB'
    >>> cost({"seconds": 0.0021, "peak_megabytes": 0.2, "fault": None})
    '2.1 ms, <1 MB'
    >>> cost({"seconds": None, "peak_megabytes": None, "fault": "memory"})
    'memory'
    """
    if record is None:
        return "—"
    if fault := record["fault"]:
        return fault if fault in ("memory", "time", "not installed") else "error"
    seconds, peak = record["seconds"], record["peak_megabytes"]
    short = seconds < 0.1
    amount = 1000 * seconds if short else seconds
    text = f"{amount:.{0 if amount >= 10 else 1 if short or amount >= 1 else 2}f} {'ms' if short else 's'}"
    if peak is None:
        return text
    return f"{text}, <1 MB" if peak < 1 else f"{text}, {peak:,.0f} MB"


def scale_ratios() -> str:
    """Ratios on large sets, measured side by side."""
    path = RESULTS / "benchmarks" / "scale_ratios.json"
    if not path.exists():
        return UNMEASURED
    report = read_json(path)
    sizes, streams = report["settings"], report["without_matrix"]
    full, induced, growth = (report[key] for key in ("full_attention", "inducing_points", "growth"))
    small = f"{sizes['sets']} sets of {sizes['small']:,}"
    large, exact = f"{sizes['large']:,} elements", f"{sizes['exact']:,} elements"
    lines = [
        [f"torch TransformerEncoder / D-DMPS, {small}", full["encoder_over_latent"]],
        [f"Set Transformer (SAB) / D-DMPS, {small}", full["sab_over_latent"]],
        [f"PyG SetTransformerAggregation / D-DMPS, {small}", full["pyg-sab_over_latent"]],
        [f"Set Transformer (ISAB) / linear graph, {large}", induced["isab_over_linear"]],
        [f"PyG ISAB / linear graph, {large}", induced["pyg-isab_over_linear"]],
        [f"Linear graph, twice {large} / once", growth["2n_over_n"]],
        [f"Linear graph, four times {large} / twice", growth["4n_over_2n"]],
        [f"Streamed / dense graph, {exact}", streams["streamed_over_latent"]],
    ]
    memory = [
        [f"Peak memory, {name} graph, {exact}, {how}", streams[key].get(model)]
        for name, model in (("streamed", "streamed"), ("dense", "latent"))
        for how, key in (("tensors", "tensor_megabytes"), ("process", "process_megabytes"))
    ]
    bag = report["large_bag"]
    memory.append(
        [f'Peak memory, graph="auto", {large} of {bag["features"]} features', bag["peak_megabytes"]]
    )
    return markdown(
        ["Training step", "Measured"],
        [
            *([what, "—" if value is None else f"{value:.2f}"] for what, value in lines),
            *([what, "—" if value is None else f"{value:,.0f} MB"] for what, value in memory),
        ],
    )


def feature_error() -> str:
    """Error of W X with random features on trained models: the mean, and the worst block and seed."""
    models = read_json(RESULTS / "benchmarks" / "feature_error.json")["models"]
    counts = ("64", "256", "1024")
    lines = [
        [label, *(f"{100 * errors[c]['mean']:.1f} % ({100 * errors[c]['worst']:.1f} %)" for c in counts)]
        for label, errors in models.items()
    ]
    return markdown(["Mean error (worst)", *(f"{int(c):,} features" for c in counts)], lines)


def padding() -> str:
    """Share of padding in batches under an element budget, and in the same number of random batches."""
    cases = read_json(RESULTS / "benchmarks" / "padding.json")["cases"]
    lines = [
        [
            f"{case['sigma']:g}",
            f"{case['elements']:,}",
            f"{100 * case['waste']:.1f} %",
            f"{100 * case['waste_at_random']:.0f} %",
            f"{case['batches']:,}",
        ]
        for case in cases
        if case["max_sets"] is None
    ]
    return markdown(["σ of log n", "Budget", "Padding", "At random", "Batches"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "gaussian at 0.95": lambda: gaussian(0.95),
    "gaussian": lambda: gaussian(None),
    "counting": lambda: counting(ablation=False),
    "ablation": lambda: counting(ablation=True),
    "pointcloud": lambda: whole("pointcloud"),
    "diffusion": lambda: whole("diffusion"),
    "smoothing": lambda: whole("smoothing"),
    "histology": lambda: whole("histology"),
    "mil": lambda: whole("mil"),
    "benchmarks": benchmarks,
    "scale": scale,
    "scale ratios": scale_ratios,
    "feature error": feature_error,
    "padding": padding,
    "together": endured.together,
    "equality": endured.equality,
    "bytes": endured.bytes_moved,
    "kills": endured.kills,
    "full disk": endured.full_disk,
    "sweeps": endured.sweeps,
    "hostile": endured.hostile,
    "long run": endured.long_run,
}


def refreshed(text: str) -> str:
    """Regenerate all tables in a text."""

    def fill(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(rf"<!-- ({'|'.join(TABLES)}) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)


def pages() -> list[Path]:
    """The pages with generated tables."""
    candidates = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in candidates if "<!-- end -->" in page.read_text()]


if __name__ == "__main__":
    for page in pages():
        write_atomically(page, refreshed(page.read_text()).encode())
