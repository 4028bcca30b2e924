"""The commands of `endurance`: they would notice, and what they found is on record."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import endurance
from endurance.bytes_moved import on_the_wire, payload
from endurance.equality import largest_difference
from endurance.kills import descendants, file_digest, readable, sets, stamps
from endurance.long_run import Round, assess
from setwise._files import read_json
from setwise.training.checkpoint import CHECKPOINT, save_checkpoint

RESULTS = Path(endurance.__file__).parent.parent / "results"


def found(name: str) -> dict:
    return read_json(RESULTS / "reliability" / f"{name}.json")


def test_a_leak_is_noticed() -> None:
    flat = [Round(i / 10, 500.0 + i % 2, 6, 60.0, 5000.0) for i in range(100)]
    result = assess(flat)
    assert result["memory_growth"] == pytest.approx(0, abs=2e-3)
    assert (result["files_growth"], result["rounds"], result["steps"]) == (0, 100, 15_000)
    assert result["speed_change"] == {"trained": 0, "predicted": 0}
    leaking = [Round(i / 10, 500.0 + i, 6 + i // 50, 60.0 - i / 10, 5000.0) for i in range(100)]
    result = assess(leaking)
    assert result["memory_growth"] == pytest.approx((583.5 / 525.5) - 1, abs=0.01)
    assert result["largest_memory_growth"] == pytest.approx(599 / 509 - 1, abs=0.01)
    assert result["files_growth"] == 1
    assert result["speed_change"]["trained"] < -0.08
    slow_start = [Round(i / 10, 400.0 + min(i, 9), 6, 60.0, 5000.0) for i in range(100)]
    assert assess(slow_start)["memory_growth"] == 0  # that was the warm-up


def test_differences_are_told_apart() -> None:
    one = {
        "head.linear.bias": torch.tensor([1.0, 200.0]),
        "graph.kernel.embed.layers.1.linear.bias": torch.tensor([1.0]),
    }
    other = {name: value + 0.5 for name, value in one.items()}
    assert largest_difference(other, one) == (0.5 / 200, 0.5)
    with pytest.raises(ValueError, match="expected"):
        largest_difference({}, one)


def test_damaged_checkpoints_are_counted(tmp_path: Path) -> None:
    assert readable(tmp_path) == (0, 0)
    for number in (3, 7):
        (tmp_path / str(number)).mkdir()
        save_checkpoint(tmp_path / str(number) / CHECKPOINT, {"model": {}, "step": number})
    assert readable(tmp_path) == (7, 0)
    (tmp_path / "7" / CHECKPOINT).write_bytes(b"PK")
    assert readable(tmp_path) == (3, 1)
    assert stamps(tmp_path) == set()
    (tmp_path / "metrics.jsonl").write_text("")
    assert len(stamps(tmp_path)) == 1


def test_no_child_is_spared() -> None:
    inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE) as process:
        while not (found := descendants(process.pid)):
            pass
        assert len(found) == 1
        assert found == [
            int(child)
            for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
        process.communicate(b"\n")


def test_jobs_are_the_same_each_time(tmp_path: Path) -> None:
    assert sets() == sets()
    assert sets().splitlines()[0] == "set,x,y,label"
    (tmp_path / "model.safetensors").write_bytes(b"1")
    assert file_digest(tmp_path).startswith("6b86b273")


def test_the_formula() -> None:
    assert payload(64, 64, 3)["block"] == 4 * 65 * 64
    assert payload(64, 64, 3, sets=2)["blocks"] == 2 * 3 * 2 * 4 * 65 * 64
    assert (on_the_wire(10, 2), on_the_wire(10, 3), on_the_wire(10, 1)) == (20, 40, 0)


class TestWhatIsOnRecord:
    def test_several_processes(self) -> None:
        scenarios = found("equality")["scenarios"]
        assert {one["processes"] for one in scenarios} == {2, 3}
        assert all(one["difference"] <= 1e-5 for one in scenarios)

    def test_bytes(self) -> None:
        for one in found("bytes_moved")["steps"]:
            assert one["formula"] == payload(one["dim"], one["features"], one["depth"])
            assert round(one["given"]) == sum(one["formula"][part] for part in ("blocks", "graph", "pool"))
            assert 1 <= one["measured_on_the_wire"] / one["formula_on_the_wire"] < 1.2

    def test_kills(self) -> None:
        jobs = found("kills")["jobs"]
        assert [jobs[name]["kills"] for name in ("run", "fit")] == [20, 20]
        assert all(job["bit_equal"] and not job["unreadable"] for job in jobs.values())

    def test_full_disk(self) -> None:
        one = found("full_disk")
        assert (one["bit_equal"], one["exit_code"], one["unreadable"], one["unfinished_left"]) == (
            True,
            2,
            0,
            0,
        )
        assert "No space left on device" in one["message"]

    def test_sweeps(self) -> None:
        one = found("sweeps")
        assert one["same_results"]
        assert one["same_results_after_the_kill"]

    def test_hostile_files(self) -> None:
        report = found("hostile")
        assert report["faults"] == 0
        assert all(one["mutants"] >= 500 for one in report["formats"].values())
        assert all(case["kind"] == "refused" for case in report["cases"])

    def test_long_hours(self) -> None:
        one = found("long_run")
        assert one["minutes"] >= 30
        assert one["memory_growth"] <= 0.02
        assert one["files_growth"] == 0

    def test_two_processes_are_worth_it(self) -> None:
        found = read_json(RESULTS / "benchmarks" / "together.json")
        assert all(found[batch]["efficiency"] > 0.7 for batch in ("fresh_128", "fresh_32", "pool_128"))
