"""Two processes that train one model together, against one process: the counting task, one thread each.

Both train the paper's best row for the same steps on the same batches, so that two processes would take half
the time if they lost none. They are measured in turn, through the command that everyone uses. The share that
is lost is what both must do (draw the batch, step the optimiser), and the exchange of sums.
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
    """What a training step takes, the first ones and the tests left out."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={processes}", "-m", "benchmarks.together", *settings]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "SETWISE_TIMES": str(Path(folder, "times.json"))}
        subprocess.run(command, env=environment, check=True)
        return float(statistics.median(json.loads(Path(folder, "times.json").read_text())))


def measured(*settings: str) -> dict[str, float]:
    """The times of one process and of two, in turn, and what follows from them."""
    one, two = zip(*((seconds(1, *settings), seconds(2, *settings)) for _ in range(ROUNDS)), strict=True)
    alone, together = statistics.median(one), statistics.median(two)
    return {
        "one_process": alone,
        "two_processes": together,
        "speed_up": alone / together,
        "efficiency": statistics.median(a / b / 2 for a, b in zip(one, two, strict=True)),
    }


def train(batch: str, sets: int) -> None:
    """Train as `setwise.fit` does, and let the first process write down the time of each step."""
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
            **{name: measured(batch, str(sets)) for name, (batch, sets) in BATCHES.items()},
        },
    )


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else main()
