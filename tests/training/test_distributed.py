"""Several processes, started by torchrun as users start them, come to what one process comes to."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import setwise as sw
from endurance.equality import largest_difference
from endurance.kills import descendants
from endurance.together import SCENARIOS
from setwise import collectives
from setwise.training.checkpoint import load_checkpoint
from setwise.training.distributed import assigned_sets
from setwise.training.split_elements import SplitElements

ROOT = Path(__file__).parents[2]


def torchrun(processes: int, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | options.pop("env", {})
    return subprocess.run(
        [sys.executable, *launcher, *arguments],
        cwd=options.pop("cwd", ROOT),
        env=environment,
        capture_output=True,
        text=True,
        **options,
    )


@pytest.mark.parametrize(
    ("processes", "names"), [(2, list(SCENARIOS)), (3, ["few_sets", "elements", "shares", "resumed"])]
)
def test_they_come_to_what_one_comes_to(processes: int, names: list[str], tmp_path: Path) -> None:
    done = torchrun(processes, "-m", "endurance.together", str(tmp_path / "found.pt"), *names)
    assert done.returncode == 0, done.stderr
    together = torch.load(tmp_path / "found.pt", weights_only=True)
    assert list(together) == names
    for name, found in together.items():
        felt, unfelt = largest_difference(found, SCENARIOS[name]())
        assert felt <= 1e-5, name
        assert unfelt <= (1e-5 if name == "elements" else 1e-3), name
    if processes == 2:  # training moves the weights by far more than what is tolerated
        torch.manual_seed(0)
        start = sw.DMPS.build(3, 1, dim=16, hidden=(16, 16)).state_dict()
        found = together["fifty_steps"]
        assert all((found[f"model.{name}"] - value).abs().max() > 2e-3 for name, value in start.items())
    assert together["resumed"]["same"]
    assert together["resumed"]["apart"]
    assert together["resumed"]["files"] == 3  # the checkpoint, the metrics and the lock


def test_sets_are_dealt_without_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "3")
    sizes = torch.tensor([1, 9, 2, 8, 3, 7, 4, 6, 5])
    mask = torch.arange(9) < sizes.unsqueeze(1)
    parts, shares = [], []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        parts.append(assigned_sets(9, mask).tolist())
        shares.append(list(range(8))[collectives.share(8)])
    assert sorted(itertools.chain(*parts)) == list(range(9))
    assert [int(sizes[part].sum()) for part in parts] == [16, 15, 14]
    assert shares == [[0, 1], [2, 3, 4], [5, 6, 7]]
    monkeypatch.setenv("SETWISE_PROCESS", f"test {os.getpid()}")
    assert collectives.world_size() == 3
    monkeypatch.setenv("SETWISE_PROCESS", f"test {os.getppid()}")  # a process that one of them has started
    assert (collectives.world_size(), collectives.rank()) == (1, 0)
    monkeypatch.delenv("SETWISE_PROCESS")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")  # WORLD_SIZE alone may be of another program
    assert (collectives.world_size(), collectives.rank()) == (1, 0)


def test_run_works_unchanged(tmp_path: Path) -> None:
    """One writer, one line on the terminal, and the same accuracy as of one process."""
    command = ["-m", "setwise", "run", "gaussian", "--row", "v-dmps", "--test-sets", "64"]
    command += ["--training.steps", "6", "--training.evaluations", "2"]
    done = torchrun(2, *command, "--out", "runs", "--results", "results", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    (path,) = (tmp_path / "results").rglob("*.json")
    result = json.loads(path.read_text())
    assert result["budget"]["processes"] == 2


def test_a_signal_ends_all_of_them(tmp_path: Path) -> None:
    """They agree on the step, the first one saves and speaks, and nobody is left."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    command += ["setwise", "run", "gaussian", "--row", "v-dmps", "--training.steps", "100000"]
    command += ["--training.evaluations", "10000", "--training.checkpoint-seconds", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.rglob("checkpoint.pt")):
            assert process.poll() is None
            time.sleep(0.05)
        workers = descendants(process.pid)
        assert len(workers) == 2
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[1]
    assert said.count("setwise: terminated; --resume continues from the last checkpoint") == 1
    (checkpoint,) = tmp_path.rglob("checkpoint.pt")
    assert load_checkpoint(checkpoint)["random"].shape[0] == 2
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


SPEAKING = """
import sys
from setwise.cli import main as cli
cli.ERROR_DELAY = 20.0
cli.main(sys.argv[1:])
"""


def test_the_first_one_speaks_and_others_do_not_work_twice(tmp_path: Path) -> None:
    (tmp_path / "speak.py").write_text(SPEAKING)
    done = torchrun(2, "speak.py", "fit", "nothing.csv", cwd=tmp_path)
    assert done.returncode == 1
    assert len(re.findall("^setwise: ", done.stderr, re.M)) == 1
    done = torchrun(2, "speak.py", "rows", "gaussian", cwd=tmp_path)
    assert (done.returncode, done.stdout.count("V-DMPS")) == (0, 1)


def test_fit_works_unchanged(tmp_path: Path) -> None:
    rows = [f"{i},{(i % 2) + j / 10},{'ab'[i % 2]}" for i in range(12) for j in range(3)]
    (tmp_path / "sets.csv").write_text("\n".join(["set,x,label", *rows]))
    command = ["-m", "setwise", "fit", "sets.csv", "--folds", "2", "--max-epochs", "2", "--quiet"]
    done = torchrun(2, *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("baseline") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.safetensors",
        "model.safetensors.report.json",
        "sets.csv",
    ]
    pooled = [[[float(i % 2)], [i % 2 + 0.1]] for i in range(4)]
    assert len(sw.load(tmp_path / "model.safetensors").predict(pooled)) == 4


class TestSplitElements:
    def test_what_cannot_be_divided_is_refused(self) -> None:
        moments = sw.nn.LocalMoments(sw.nn.MLP(sw.nn.LocalMoments.features(3, 1), 64), dim=3, scales=(0.7,))
        for model, sentence in (
            (sw.DeepSets.build(3, 1), "the model must be a DMPS, got DeepSets"),
            (sw.DMPS.build(3, 1), "graph must be one of .*UniformGraph, got LatentGraph"),
            (
                sw.DMPS.build(3, 1, graph="linear", encoder=moments),
                "encoder must be one of MLP, ElementEncoder, got LocalMoments",
            ),
            (
                sw.DMPS.build(
                    3, 1, graph="linear", pool=sw.nn.JoinedPool(sw.nn.MeanPool(), sw.nn.IdentityGraph())
                ),
                "pool must be one of SumPool, MeanPool, MaxPool, AttentionPool, got IdentityGraph",
            ),
        ):
            with pytest.raises(TypeError, match=f"^to split elements, {sentence}$"):
                SplitElements(model)

    def test_an_exact_graph_is_not_approximated_unasked(self) -> None:
        with pytest.raises(ValueError, match="graph='auto' is exact for sets of 5 elements"):
            SplitElements(sw.DMPS.build(3, 1, graph="auto"))(torch.randn(2, 5, 3))

    @pytest.mark.parametrize("pool", ["sum", "mean", "max", "attention"])
    def test_a_set_without_elements(self, pool: Any) -> None:
        model = sw.DMPS.build(3, 2, graph="linear", pool=pool)
        x, mask = torch.randn(2, 4, 3), torch.tensor([[True] * 4, [False] * 4])
        torch.testing.assert_close(SplitElements(model)(x, mask), model(x, mask), atol=1e-5, rtol=0)
        torch.testing.assert_close(SplitElements(model)(x[:, :0]), model(x[:, :0]))
