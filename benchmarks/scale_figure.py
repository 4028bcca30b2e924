"""Figure of the results of `benchmarks.scale`: time and memory of a training step against the set size."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.isolated import MEMORY, TIME
from benchmarks.measure import RESULTS
from setwise._files import read_json

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "scale.png"
PANELS = {"seconds": "time per training step (s)", "peak_megabytes": "peak memory without inputs (MB)"}
MINIMUM = {"seconds": 1e-6, "peak_megabytes": 0.1}  # lower limits for the logarithmic axes
STYLES = {"ours": "-", "baseline": "--", "peer": "--"}
COLOURS = {
    "ours": ["#08306b", "#2b8cbe", "#e6550d", "#a63603", "#31a354", "#111111"],
    "baseline": ["#c51b8a", "#756bb1"],
    "peer": ["#7f7f7f", "#d8a200", "#8c6d31", "#17becf", "#d62728"],
}
MARKERS = "os^vDPX<>*hdp8"


def scale_figure(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Two panels with one line per model: ours solid, others dashed; a cross marks an exceeded limit."""
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    panels = figure.subplots(1, len(PANELS))
    used = dict.fromkeys(COLOURS, 0)
    labels = list(dict.fromkeys(r["label"] for r in records if r["kind"] in STYLES))
    for label, marker in zip(labels, MARKERS, strict=False):
        runs = sorted((r for r in records if r["label"] == label), key=lambda r: r["n"])
        kind = runs[0]["kind"]
        style = {
            "color": COLOURS[kind][used[kind] % len(COLOURS[kind])],
            "linestyle": STYLES[kind],
            "linewidth": 2.2 if kind == "ours" else 1.3,
            "marker": marker,
            "markersize": 5,
            "zorder": 3 if kind == "ours" else 2,
        }
        used[kind] += 1
        for ax, quantity in zip(panels, PANELS, strict=True):
            _line(ax, runs, quantity, style | {"label": label if ax is panels[0] else None})
    for ax, title in zip(panels, PANELS.values(), strict=True):
        ax.set(xscale="log", yscale="log", xlabel="set size n")
        ax.set_title(title, fontsize=11)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    panels[0].plot([], [], "x", color="0.2", markersize=9, markeredgewidth=2, label="time or memory limit")
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=9, handlelength=3)
    return figure


def _line(ax: Axes, runs: Sequence[Mapping[str, Any]], quantity: str, style: Mapping[str, Any]) -> None:
    points = [(r["n"], max(r[quantity], MINIMUM[quantity])) for r in runs if r[quantity] is not None]
    if not points:
        return
    ax.plot(*zip(*points, strict=True), **style)
    if any(r["fault"] in (MEMORY, TIME) for r in runs):
        ax.plot(*points[-1], "x", color=style["color"], markersize=9, markeredgewidth=2)


def main(results: Path = RESULTS / "scale.json", out: Path = FIGURE) -> None:
    if not results.exists():
        print(f"no results in {results}: run 'make bench' first")
        return
    scale_figure(read_json(results)["measurements"]).savefig(out, dpi=130)
    print(out.name)


if __name__ == "__main__":
    main()
