"""Distributed training with two processes compared with one: the counting task, one thread per process.

Both train the paper's best row for the same steps on the same batches, so the ideal time of two processes is
half. They are measured alternately with torchrun. The loss of efficiency comes from work that both must do
(draw the batch, optimiser step) and from communication.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from benchmarks.measure import record

STEPS, WARM_UP, ROUNDS, ROW = 24, 4, 2, "d-dmps-ldc"
BATCHES = {"fresh_128": ("fresh", 128), "fresh_32": ("fresh", 32), "pool_128": ("pool", 128)}


def seconds(processes: int, *settings: str) -> float:
    """Median time of a training step, without warm-up and evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={processes}", "-m", "benchmarks.distributed_step", *settings]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "SETWISE_TIMES": str(Path(folder, "times.json"))}
        subprocess.run(command, env=environment, check=True)
        return float(statistics.median(json.loads(Path(folder, "times.json").read_text())))


def measure(*settings: str) -> dict[str, float]:
    """Times of one and of two processes, measured alternately; speed-up and efficiency."""
    one, two = zip(*((seconds(1, *settings), seconds(2, *settings)) for _ in range(ROUNDS)), strict=True)
    alone, together = statistics.median(one), statistics.median(two)
    return {
        "one_process": alone,
        "two_processes": together,
        "speed_up": alone / together,
        "efficiency": statistics.median(a / b / 2 for a, b in zip(one, two, strict=True)),
    }


def train(batch: str, sets: int) -> None:
    """Train with `setwise.fit`; the first process writes the time of each step to a file."""
    import time

    import torch

    from setwise import collectives
    from setwise.experiments.counting import Counting
    from setwise.training.config import Training
    from setwise.training.loop import fit

    torch.set_num_threads(1)
    experiment = Counting(batch="fresh" if batch == "fresh" else "pool", sets=sets)
    model = experiment.model(ROW, 0)
    batches, times = experiment.batches(0), []

    def timed(step: int) -> object:
        times.append(time.perf_counter())
        return batches(step)

    fit(model, experiment.task(ROW), timed, Training(steps=STEPS, evaluations=1, device="cpu"))  # type: ignore[arg-type]
    if collectives.is_first():
        steps = [after - before for before, after in pairwise(times[WARM_UP:])]
        Path(os.environ["SETWISE_TIMES"]).write_text(json.dumps(steps))
    collectives.shutdown()


def main() -> None:
    record(
        "together",
        {
            "row": ROW,
            "steps": STEPS,
            "rounds": ROUNDS,
            **{name: measure(batch, str(sets)) for name, (batch, sets) in BATCHES.items()},
        },
    )


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else main()
