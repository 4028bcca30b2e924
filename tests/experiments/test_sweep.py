"""Sweeps: parallel runs give the results of sequential ones, resume, and stop with the sweep."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import joblib
import pytest
import torch

import setwise as sw
from setwise._files import locked
from setwise.experiments import runner, sweep, sweep_progress
from setwise.experiments.gaussian import Gaussian
from setwise.experiments.sweep import Point, Sweep, attempt, run_all
from setwise.experiments.sweep_progress import SweepProgress, last_step
from setwise.training.checkpoint import load_checkpoint

SMALL = Gaussian(test_sets=1_000, training=sw.Training(steps=30, evaluations=2))


def points(*seeds: int, experiment: Gaussian = SMALL) -> list[Point]:
    return [Point(experiment, "deepsets", seed) for seed in seeds]


def by_seed(
    folder: Path, chosen: list[Point], found: dict[int, dict[str, Any]] | None = None, **options: Any
) -> dict[int, dict[str, Any]]:
    """The results of a sweep, but for the time it took."""
    found = {} if found is None else found
    for point, result in run_all(chosen, out=folder / "runs", results=folder / "results", **options):
        del result["budget"]["seconds"]
        found[point.seed] = result
    return found


def eventually(true: Callable[[], bool]) -> None:
    for _ in range(3600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("waited for three minutes")


def free(folder: Path) -> bool:
    """Whether nobody is at work there."""
    try:
        with locked(folder):
            return True
    except BlockingIOError:
        return False


def test_two_jobs_do_what_one_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    one = by_seed(tmp_path / "one", points(0, 1), show=False)
    in_the_way = points(2)[0].folder(tmp_path / "two" / "runs")
    in_the_way.mkdir(parents=True)
    (in_the_way / "something").touch()
    unsaid = Point(replace(SMALL, threads=None), "deepsets", 3)
    two: dict[int, dict[str, Any]] = {}
    with pytest.raises(ValueError, match=r"^1 of 4 runs failed: --resume"):
        by_seed(tmp_path / "two", [*points(0, 1, 2, 1), unsaid], jobs=2, found=two)
    told = capsys.readouterr().err
    assert f"setwise: DeepSets (W = I)  rho 0.95  seed 2: {in_the_way} already contains a run" in told
    assert sorted(two) == [0, 1, 3]
    assert two[3]["budget"]["threads"] == max(1, joblib.cpu_count() // 2)
    for point in points(0, 1):
        assert two[point.seed] == one[point.seed]
        weights = [
            load_checkpoint(point.folder(tmp_path / way / "runs") / "checkpoint.pt")["model"]
            for way in ("one", "two")
        ]
        for name, weight in weights[0].items():
            assert torch.equal(weight, weights[1][name])
    records = {path.name for path in (tmp_path / "two" / "results" / "gaussian").iterdir()}
    assert records == {f"deepsets_rho-0.95_steps-30_seed-{seed}.json" for seed in (0, 1, 3)}


def test_what_is_finished_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = by_seed(tmp_path, points(0, 1), show=False)
    monkeypatch.setattr(sweep, "_parallel", None)  # nothing is left for another process
    assert by_seed(tmp_path, points(0, 1), resume=True, jobs=2, show=False) == first


COMMAND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
COMMAND += "from setwise.cli.main import main; main()"


def test_no_run_outlives_its_sweep(tmp_path: Path) -> None:
    training = ["--training.steps", "100000000", "--training.evaluations", "10000000"]
    training += ["--training.checkpoint-seconds", "0", "--test-sets", "100"]
    words = ["run", "gaussian", "--row", "deepsets", "--jobs", "2", *training]
    runs = tmp_path / "runs" / "gaussian" / "deepsets"

    def started(*more: str, beyond: int) -> subprocess.Popen[str]:
        def under_way() -> bool:
            assert process.poll() is None, process.communicate()
            steps = [last_step(file) for file in runs.glob("*/metrics.jsonl")]
            saved = len(list(runs.glob("*/checkpoint.pt")))
            return sum(step > beyond for step in steps) == saved == 2

        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words, *more],
            cwd=tmp_path,
            start_new_session=True,  # a process group that signals go to, as from a terminal
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        eventually(under_way)
        return process

    def at_work() -> list[Path]:
        return [folder for folder in runs.iterdir() if not free(folder)]

    sweeping = started("--seeds", "0", "1", "2", beyond=0)
    assert len(at_work()) == 2
    os.killpg(sweeping.pid, signal.SIGINT)
    _, told = sweeping.communicate(timeout=60)
    assert sweeping.returncode == 130
    assert told.splitlines()[-1] == "setwise: interrupted; --resume continues from the last checkpoint"
    assert "Traceback" not in told
    assert at_work() == []

    before = max(last_step(file) for file in runs.glob("*/metrics.jsonl"))
    sweeping = started("--resume", "--seeds", "0", "1", beyond=before)
    os.killpg(sweeping.pid, signal.SIGTERM)
    sweeping.communicate(timeout=60)
    eventually(lambda: at_work() == [])
    for file in runs.glob("*/metrics.jsonl"):
        steps = [json.loads(line)["step"] for line in file.read_text().splitlines()[:-1]]
        assert steps == list(range(10, 10 * len(steps) + 1, 10))  # continued, not restarted


def test_a_dask_cluster_does_what_one_process_does(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    expected = by_seed(tmp_path / "here", points(0, 1, 2), show=False)
    half = by_seed(tmp_path, points(0), show=False)
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
    ):
        warnings.simplefilter("ignore")
        address = cluster.scheduler_address
        found = by_seed(tmp_path, points(0, 1), resume=True, cluster=address)
        with distributed.Client(cluster) as client, joblib.parallel_config("dask"):
            found |= by_seed(tmp_path, points(2), jobs=None, show=False)
            pids = client.run(os.getpid)
            loaded = client.run(lambda: "setwise.experiments.sweep" in sys.modules)
            assert any(loaded.values())  # it was they who did the work
            assert os.getpid() not in pids.values()
    assert found == expected
    assert found[0] == half[0]


def test_a_ray_cluster_does_what_one_process_does(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    expected = by_seed(tmp_path / "here", points(0, 1), show=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            assert by_seed(tmp_path, points(0, 1), cluster="ray", show=False) == expected
    finally:
        ray.shutdown()


def elsewhere(tmp_path: Path) -> Sweep:
    return Sweep(out=tmp_path / "runs", results=tmp_path / "results", resume=False, threads=None)


def test_machines_must_share_a_file_system(tmp_path: Path) -> None:
    number, result, error = attempt(7, points(0)[0], elsewhere(tmp_path))
    assert (number, result) == (7, None)
    assert "all machines must share this folder" in error
    assert not (tmp_path / "runs").exists()


def test_a_result_that_is_not_on_record_here_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "run", Mock(return_value={"accuracy": 1.0}))
    with pytest.raises(ValueError, match="2 of 2 runs failed"):
        by_seed(tmp_path, points(0, 1), jobs=None, show=False)
    assert "seed 1: " + str(tmp_path / "results") + " has no record of it" in capsys.readouterr().err


def test_errors_of_all_kinds_come_as_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    for error, expected in (
        (ValueError("a must be b"), "a must be b"),
        (RuntimeError("no memory"), "RuntimeError: no memory"),
        (KeyError("k"), "KeyError: 'k'"),
    ):
        monkeypatch.setattr(runner, "run", Mock(side_effect=error))
        assert attempt(0, points(0)[0], elsewhere(tmp_path)) == (0, None, expected)


def test_the_board_reads_what_runs_write(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    board = SweepProgress({a: ([""], 100), b: (["fold-0", "fold-1"], 50), c: ([""], 100)})
    for folder in (a, b / "fold-0", b / "fold-1"):
        folder.mkdir(parents=True)
    assert (board.total, board.done()) == (300, 0)
    (a / "metrics.jsonl").write_text('{"step": 10}\n{"step": 20}\n{"step": 3')
    (b / "fold-0" / "metrics.jsonl").write_text("x" * 10_000 + '\n{"step": 50}\n')
    (b / "fold-1" / "metrics.jsonl").write_text('{"step": 5}\n')
    assert board.done() == 75
    board.first = 25
    assert board.state(75, 10.0) == ("0/3 runs", "0:00:45 left")
    assert board.state(25, 10.0) == ("0/3 runs", "")
    (b / "result.json").touch()
    board.end(c)  # it failed
    assert board.done() == 220
    assert board.state(220, 10.0)[0] == "2/3 runs"
    assert last_step(tmp_path / "nowhere") == 0


def test_the_board_tells_a_log_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep_progress, "LINE_SECONDS", 0.0)
    (tmp_path / "metrics.jsonl").write_text('{"step": 10}\n')
    board = SweepProgress({tmp_path: ([""], 40)})
    told = []

    def said() -> bool:
        told.append(capsys.readouterr().err)
        return "steps" in told[-1]

    with board:
        eventually(said)
    assert told[-1].splitlines()[0] == "sweep  0/1 runs  25% of all steps"


def test_points_share_no_folder(tmp_path: Path) -> None:
    other = replace(SMALL, test_sets=10)
    with pytest.raises(ValueError, match=r"two points .* same folder .*seed-0 \(test_sets differs: 1000"):
        run_all([*points(0), *points(0, experiment=other)], out=tmp_path, results=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobs": 0}, "jobs must lie between 1 and 1024, got 0"),
        ({"jobs": -1}, "jobs must lie between 1 and 1024, got -1"),
        ({"jobs": 1025}, "jobs must lie between 1 and 1024, got 1025"),
        (
            {"jobs": 2, "cluster": "ray"},
            "jobs must not be set on a cluster.*, got 2",
        ),
        ({"cluster": "tcp://127.0.0.1:1"}, "got no answer at 'tcp://127.0.0.1:1'"),
        ({"cluster": "no such/thing"}, "got no answer at 'no such/thing'"),
        ({"cluster": ""}, "got no answer at ''"),
    ],
)
def test_absurd_sweeps_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(sweep, "CONNECT_SECONDS", 0.3)
    if "cluster" in options:
        pytest.importorskip("distributed")
    with pytest.raises(ValueError, match=message):
        list(run_all(points(0), out=tmp_path / "runs", results=tmp_path / "results", **options))
    assert not (tmp_path / "runs").exists()


def test_torchrun_is_no_place_for_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="in torchrun must have one job and no cluster, got 4 processes"):
        run_all(points(0), out=tmp_path, results=tmp_path, jobs=2)
    run_all(points(0), out=tmp_path, results=tmp_path, jobs=1)


@pytest.mark.parametrize(("package", "cluster"), [("distributed", "tcp://x:1"), ("ray", "ray")])
def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, cluster: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=f"needs the {package} package: pip install"):
        list(run_all(points(0), out=tmp_path, results=tmp_path, cluster=cluster))
