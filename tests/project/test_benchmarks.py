"""Scaling benchmarks: processes with limits, resumed sweeps, tables and the figure."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scale_figure, scale_ratios
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.isolated import Limits, measure
from benchmarks.scale import Scale, line, ratios, sweep
from docs import refresh
from tests import contenders as fakes

LIMITS = Limits(seconds=30, megabytes=2000)
linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from /proc")


def fake(make: Any, package: str = "setwise") -> Contender:
    return Contender(make.__name__, package, make, "ours")


def made_up(contender: str, n: int, seconds: float | None, fault: str | None = None) -> dict[str, Any]:
    c = CONTENDERS[contender]
    return {
        "contender": contender, "label": c.label, "kind": c.kind, "package": c.package, "version": "1",
        "n": n, "seconds": seconds, "peak_megabytes": None if seconds is None else 100 * seconds,
        "fault": fault, "rounds": 3,
    }  # fmt: skip


def test_a_sweep_from_end_to_end_and_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # for the processes that it starts
    out = tmp_path / "scale.json"
    first = sweep(Scale(sizes=(40, 20), only=("latent",), out=out))
    assert json.loads(out.read_text()) == first | {"settings": json.loads(json.dumps(first["settings"]))}
    assert [(r["contender"], r["n"]) for r in first["measurements"]] == [("latent", 20), ("latent", 40)]
    again = sweep(Scale(sizes=(20,), only=("latent", "encoder"), out=out, resume=True))["measurements"]
    assert again[:2] == first["measurements"]  # as they were
    assert [(r["contender"], r["n"]) for r in again[2:]] == [("encoder", 20)]
    for r in again:
        assert r["fault"] is None
        assert r["seconds"] > 0
        assert r["rounds"] >= 3
    assert {(r["package"], r["version"]) for r in again} == {
        (c.package, c.version) for c in (CONTENDERS["latent"], CONTENDERS["encoder"])
    }
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_contender_over_the_limit_is_not_measured_at_larger_sizes(tmp_path: Path) -> None:
    field = {f.__name__: fake(f) for f in (fakes.sleepy, fakes.refused)}
    scale = Scale(sizes=(50, 200, 300), out=tmp_path / "scale.json", timeout=1.0, memory=2000)
    found = sweep(scale, field)["measurements"]
    assert [(r["contender"], r["n"], r["fault"]) for r in found] == [
        ("sleepy", 50, None), ("refused", 50, None),
        ("sleepy", 200, "time"), ("refused", 200, "memory"),
        ("sleepy", 300, "time"), ("refused", 300, "memory"),
    ]  # fmt: skip
    assert all((r["seconds"] is None) == (r["rounds"] == 0) == (r["n"] > 50) for r in found)


@linux
def test_a_process_that_takes_too_much_is_stopped() -> None:
    assert measure(fakes.greedy, 200, Limits(seconds=60, megabytes=400))["fault"] == "memory"


def test_errors_are_reported_and_tried_again(tmp_path: Path) -> None:
    scale = Scale(sizes=(10, 20), out=tmp_path / "scale.json", resume=True)
    field = {"broken": fake(fakes.broken), "missing": fake(fakes.sleepy, "no-such-package")}
    found = sweep(scale, field)["measurements"]
    assert [r["fault"] for r in found] == ["ValueError: no such graph", "not installed"] * 2
    assert found[1]["version"] is None
    healed = sweep(scale, {"broken": fake(fakes.sleepy), "missing": fake(fakes.sleepy)})["measurements"]
    assert [(r["n"], r["fault"]) for r in healed] == [(10, None), (10, None), (20, None), (20, None)]
    assert measure(fakes.gone, 10, LIMITS)["fault"] == "exit code 3"


@linux
def test_memory_is_counted_from_the_first_step_on() -> None:
    assert measure(fakes.taking, 2000, LIMITS)["peak_megabytes"] == pytest.approx(2000 / 1024 * 2, abs=2.5)


def test_unknown_contenders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"among latent, .*, got lattent"):
        sweep(Scale(only=("lattent",), out=tmp_path / "scale.json"))


def test_ratios_of_a_sweep() -> None:
    records = [
        made_up("latent", 1000, 0.5),
        made_up("encoder", 1000, 2.0),
        made_up("sab", 1000, None, "time"),
    ]
    records += [made_up("linear", 100_000, 1.0), made_up("linear", 200_000, 2.5)]
    assert ratios(records) == {
        "encoder_over_latent_at_1000": 4.0,
        "sab_over_latent_at_1000": None,
        "isab_over_linear_at_100000": None,
        "linear_200000_over_100000": 2.5,
    }
    assert line(records[2]).endswith(" time")
    assert "0.5000 s" in line(records[0])


def test_the_figure_has_one_line_per_model() -> None:
    records = [made_up(name, n, n / 1000) for n in (100, 1000) for name in CONTENDERS]
    records[-len(CONTENDERS)] = made_up("latent", 1000, None, "memory")
    figure = scale_figure.scale_figure(records)
    models = [c.label for c in CONTENDERS.values() if c.kind != "product"]
    for ax in figure.axes:
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        drawn = [drawn for drawn in ax.lines if drawn.get_linestyle() != "None"]
        assert len(drawn) == len(models)
        assert len({(x.get_color(), x.get_marker()) for x in drawn}) == len(models)
        assert drawn[0].get_xdata().tolist() == [100]  # it stops
        assert drawn[-1].get_xdata().tolist() == [100, 1000]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[: len(models)] == models


def test_the_figure_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, out = tmp_path / "scale.json", tmp_path / "scale.png"
    scale_figure.main(results, out)
    assert "no results in" in capsys.readouterr().out
    results.write_text(json.dumps({"measurements": [made_up("latent", 100, 0.1)]}))
    scale_figure.main(results, out)
    assert out.stat().st_size > 1000


def test_the_table_of_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "RESULTS", tmp_path)
    assert "make bench" in refresh.TABLES["scale"]()
    assert "make bench" in refresh.TABLES["scale ratios"]()
    records = [
        made_up("latent", 1000, 0.5),
        made_up("latent", 10_000, None, "memory"),
        made_up("keops", 1000, 12.0),
    ]
    records.append(made_up("keops", 10_000, None, "RuntimeError: no compiler"))
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "scale.json").write_text(json.dumps({"measurements": records}))
    assert refresh.TABLES["scale"]().splitlines()[2:] == [
        "| D-DMPS, dense | 0.50 s, 50 MB | memory | — | — |",
        "| Gaussian product, KeOps | 12 s, 1,200 MB | error | — | — |",
    ]


def test_ratios_side_by_side_and_their_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.RESULTS", tmp_path / "benchmarks")
    monkeypatch.setattr(refresh, "RESULTS", tmp_path)
    monkeypatch.setattr(
        scale_ratios, "measure", lambda make, n, limits: {"peak_megabytes": 7.0, "fault": None}
    )
    monkeypatch.setitem(scale_ratios.CONTENDERS, "pyg-sab", fake(fakes.broken))
    monkeypatch.setitem(scale_ratios.CONTENDERS, "pyg-isab", fake(fakes.broken))
    small = scale_ratios.ScaleRatios(sets=2, small=20, exact=20, large=20, small_rounds=1, rounds=1)
    scale_ratios.main(small)
    found = json.loads((tmp_path / "benchmarks" / "scale_ratios.json").read_text())
    full = found["full_attention"]
    assert full["encoder_over_latent"] == full["seconds"]["encoder"] / full["seconds"]["latent"]
    assert full["pyg-sab_over_latent"] is None
    assert set(full["faults"]) == {"pyg-sab"}
    assert found["settings"]["sets"] == 2
    assert found["without_matrix"]["process_megabytes"] == {"streamed": 7.0, "latent": 7.0}
    table = refresh.TABLES["scale ratios"]()
    assert "| PyG ISAB / linear graph, 20 elements | — |" in table
    assert "| Peak memory, dense graph, 20 elements, process | 7 MB |" in table
