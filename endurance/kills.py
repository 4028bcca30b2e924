"""Kill jobs (SIGKILL) at random moments and compare the weights of the resumed run with an undisturbed one.

Three jobs are run once undisturbed and once with repeated kills of all their processes during training: a
row of an experiment (``setwise run``), a cross-validation with dropout (``setwise fit``), and the row by
two processes (``torchrun``). After each kill, the checkpoint must be readable. The
record of two processes is older than their training through `DistributedDataParallel`.
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endurance.recording import arguments, record
from setwise._files import read_json
from setwise.training.checkpoint import CHECKPOINT, load_checkpoint, trained_weights

RUN = ["-m", "setwise", "run", "gaussian", "--row", "v-dmps", "--test-sets", "2000", "--threads", "1"]
RUN += ["--training.steps", "3000", "--training.evaluations", "150", "--training.checkpoint-seconds", "0"]
FIT = [
    "-m",
    "setwise",
    "fit",
    "sets.csv",
    "--folds",
    "3",
    "--max-epochs",
    "1000",
    "--threads",
    "1",
    "--quiet",
]
FIT += ["--dropout", "0.3"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@dataclass(frozen=True)
class Job:
    """A command that can be killed and resumed."""

    command: Sequence[str]
    kills: int
    digest: Callable[[Path], str]
    """Returns the digest of the weights in a folder."""
    longest: float
    """Maximum number of seconds before a kill."""


def main() -> int:
    options = {
        "kills": (20, "of each job"),
        "seed": (0, "of the moments"),
        "only": ("", "job; all unless given"),
    }
    given = arguments("endurance.kills", __doc__, **options)
    jobs = {
        "run": Job(RUN, given.kills, checkpoint_digest, longest=2.0),
        "fit": Job(FIT, given.kills, file_digest, longest=5.0),
        "run by two processes": Job(
            [*TORCHRUN, *RUN], max(1, given.kills // 4), checkpoint_digest, longest=6.0
        ),
    }
    chosen = [given.only] if given.only else list(jobs)
    known = read_json(given.out)["jobs"] if given.only and given.out.exists() else {}
    found: dict[str, Any] = {name: known.get(name) for name in jobs if name in known or name in chosen}
    found |= {name: tried(name, jobs[name], given.seed) for name in chosen}
    command = f"python -m endurance.kills --kills {given.kills} --seed {given.seed}"
    record(given.out, command, {"jobs": found})
    return 0 if all(one["bit_equal"] and not one["unreadable"] for one in found.values()) else 1


def tried(name: str, job: Job, seed: int) -> dict[str, Any]:
    """Run a job once undisturbed and once with kills and resumptions, and compare the results."""
    moment = random.Random(seed)
    found: dict[str, Any] = {"kills": 0, "unreadable": 0, "while_writing": 0, "steps": []}
    with tempfile.TemporaryDirectory() as here:
        peaceful, disturbed = Path(here, "peaceful"), Path(here, "disturbed")
        for folder in (peaceful, disturbed):
            folder.mkdir()
            (folder / "sets.csv").write_text(sets())
        finish(job, peaceful)
        while found["kills"] < job.kills:
            process = start(job, disturbed, resume=bool(found["kills"]))
            wait_for_training(process, disturbed)
            time.sleep(moment.uniform(0, job.longest))
            if process.poll() is not None:
                raise RuntimeError(
                    f"{name} was done before its {found['kills'] + 1}. kill: give it more to do"
                )
            for victim in (process.pid, *descendants(process.pid)):
                os.kill(victim, signal.SIGKILL)
            process.wait()
            found["kills"] += 1
            found["while_writing"] += any(disturbed.rglob("*.unfinished"))
            step, unreadable = readable(disturbed)
            found["steps"].append(step)
            found["unreadable"] += unreadable
            print(
                f"{name}: kill {found['kills']} of {job.kills}, at step {step}", file=sys.stderr, flush=True
            )
        finish(job, disturbed, resume=True)
        expected, came_to = job.digest(peaceful), job.digest(disturbed)
    return found | {"bit_equal": expected == came_to, "sha256": came_to}


def start(job: Job, folder: Path, *, resume: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, *job.command, *(["--resume"] if resume else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = (folder / "log.txt").open("ab")
    with log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def descendants(process: int) -> list[int]:
    """Return all descendants of a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, _, rest = stat.read_text().partition(" (")
            parents[int(number)] = int(rest.rpartition(") ")[2].split()[1])
    found = [process]
    for parent in found:  # which grows meanwhile
        found += [child for child, its in parents.items() if its == parent]
    return found[1:]


def finish(job: Job, folder: Path, *, resume: bool = False) -> None:
    if start(job, folder, resume=resume).wait():
        raise RuntimeError((folder / "log.txt").read_text())


def wait_for_training(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until a run has written metrics, so that it is killed while it trains."""
    before = stamps(folder)
    while stamps(folder) == before and process.poll() is None:
        time.sleep(0.01)


def stamps(folder: Path) -> set[tuple[str, int]]:
    """Return the modification times of the metrics files."""
    found = set()
    for path in folder.rglob("metrics.jsonl"):
        try:
            found.add((str(path), path.stat().st_mtime_ns))
        except FileNotFoundError:
            continue  # it has been removed meanwhile
    return found


def readable(folder: Path) -> tuple[int, int]:
    """Return the step of the last checkpoint and the number of unreadable checkpoints."""
    steps, damaged = [0], 0
    for path in folder.rglob(CHECKPOINT):
        try:
            steps.append(int(load_checkpoint(path)["step"]))
        except ValueError:
            damaged += 1
    return max(steps), damaged


def checkpoint_digest(folder: Path) -> str:
    """Return the digest of the weights in a run's checkpoint."""
    (path,) = folder.rglob(CHECKPOINT)
    weights = trained_weights(load_checkpoint(path))
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in weights.values())).hexdigest()


def file_digest(folder: Path) -> str:
    """Return the digest of a fitted model."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def sets() -> str:
    """Return a CSV table of labelled sets."""
    drawn = random.Random(0)
    rows = ["set,x,y,label"]
    for number in range(120):
        for _ in range(drawn.randint(3, 12)):
            x, y = drawn.gauss(number % 2, 1), drawn.gauss(0, 1)
            rows.append(f"{number},{x:.4f},{y:.4f},{number % 2}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
