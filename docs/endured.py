"""Tables of docs/reliability.md, from the reports of the `endurance` commands."""

from pathlib import Path
from typing import Any

from setwise._files import read_json
from setwise.experiments.report import markdown

RESULTS = Path(__file__).parent.parent / "results"


def report(name: str) -> Any:
    """Read the report of an endurance command."""
    return read_json(RESULTS / "reliability" / f"{name}.json")


def together() -> str:
    """Speed of two processes relative to one."""
    times = read_json(RESULTS / "benchmarks" / "together.json")
    names = {
        "fresh_128": "128 sets, each drawn from all drawings",
        "fresh_32": "32 sets, as in the paper",
        "pool_128": "128 sets of a shared pool, our default",
    }
    lines = [
        [what, f"{times[name]['speed_up']:.2f} ×", f"{times[name]['efficiency']:.2f}"]
        for name, what in names.items()
    ]
    return markdown(["Batch", "Speed of two processes", "Efficiency"], lines)


def equality() -> str:
    """Largest differences between several processes and one."""
    lines = [
        [
            one["scenario"].replace("_", " "),
            one["about"].rstrip("."),
            str(one["processes"]),
            f"{one['difference']:.0e}",
            f"{one['unfelt_difference']:.0e}",
        ]
        for one in sorted(report("equality")["scenarios"], key=lambda one: one["scenario"])
    ]
    return markdown(["Scenario", "What it is", "Processes", "Largest difference", "Not felt"], lines)


def bytes_moved() -> str:
    """Bytes by formula, passed to all-reduce, and on the wire."""
    lines = []
    for one in report("bytes_moved")["steps"]:
        formula = sum(one["formula"][part] for part in ("blocks", "graph", "pool"))
        wire, expected = one["measured_on_the_wire"], one["formula_on_the_wire"]
        lines.append(
            [
                f"{one['depth']} blocks, d = {one['dim']}, f = {one['features']}",
                f"{one['formula']['block']:,}",
                f"{formula:,}",
                f"{one['given']:,.0f}",
                f"{expected:,.0f}",
                f"{wire:,.0f} ({wire / expected:.3f} ×)",
            ]
        )
    headings = [
        "Model",
        "A block, one way",
        "A step by formula",
        "Given",
        "On the wire by formula",
        "Measured",
    ]
    return markdown(headings, lines)


def kills() -> str:
    """Jobs killed repeatedly."""
    lines = [
        [
            name,
            str(one["kills"]),
            str(one["while_writing"]),
            str(one["unreadable"]),
            "bit for bit the same" if one["bit_equal"] else "others",
        ]
        for name, one in report("kills")["jobs"].items()
    ]
    return markdown(["Job", "Kills", "Of them while writing", "Unreadable checkpoints", "Weights"], lines)


def full_disk() -> str:
    """A full disk during training."""
    one = report("full_disk")
    lines = [
        ["Message", one["message"]],
        ["Exit code", str(one["exit_code"])],
        ["Checkpoint that was there", f"readable, at step {one['step_kept']:,}"],
        ["Half-written files left", str(one["unfinished_left"])],
        [
            "With room again, `--resume` ends with",
            "the same weights" if one["bit_equal"] else "other weights",
        ],
    ]
    return markdown(["", "Found"], lines)


def sweeps() -> str:
    """A sweep in two processes, and its resumption."""
    one = report("sweeps")
    same = {True: "the same", False: "others"}
    lines = [
        ["Two at a time / one at a time, speed", f"{one['speed_up']:.2f} ×"],
        ["Results", same[one["same_results"]]],
        ["Runs done before the kill", f"{one['done_before_the_kill']} of {one['runs']}"],
        ["Results after the kill and `--resume`", same[one["same_results_after_the_kill"]]],
    ]
    return markdown(["", "Found"], lines)


def hostile() -> str:
    """Damaged files, by format."""
    files = report("hostile")
    lines = []
    for name, one in files["formats"].items():
        cases = [case for case in files["cases"] if case["format"] == name]
        refused = sum(case["kind"] == "refused" for case in cases)
        numbers = [str(one[key]) for key in ("mutants", "read", "refused", "faults")]
        largest = max([one["peak_megabytes"], *(case["megabytes"] for case in cases)])
        intent = f"{refused} of {len(cases)} refused" if cases else "—"
        lines.append([name, *numbers, intent, f"{largest:.0f} MB"])
    return markdown(
        ["Format", "Damaged files", "Read", "Refused", "Faults", "Made with intent", "Peak memory"], lines
    )


def long_run() -> str:
    """Memory, files and speed over a long run."""
    one = report("long_run")
    what = {"trained": "Speed of training", "predicted": "Speed of predicting"}
    speeds = [
        [text, f"{one['speed_change'][name]:+.1%} (noise between rounds: {one['speed_noise'][name]:.1%})"]
        for name, text in what.items()
    ]
    lines = [
        ["Time", f"{one['minutes']:.0f} minutes, {one['rounds']} rounds"],
        ["Work", f"{one['steps']:,} training steps, {one['sets_predicted']:,} sets predicted"],
        ["Resident memory", f"{one['memory_growth']:+.2%} (largest: {one['largest_memory_growth']:+.2%})"],
        ["Open files", f"{one['files_growth']:+d}"],
        *speeds,
    ]
    return markdown(["", "Found"], lines)
