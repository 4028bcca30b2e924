"""Long run: train and predict without a pause, and watch memory, open files and speed.

In each round, a model trains on sets of varying sizes with checkpoints, an estimator predicts, and its file
is written and read. After the warm-up (a tenth of the time), the resident memory must not grow, no file may
stay open, and the last third must be as fast as the first. Speed is relative to that of fixed matrix
products in the same round, so that the load of the machine cancels.
"""

import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import setwise as sw
from endurance.recording import arguments, record

STEPS, SETS, PREDICTED = 150, 32, 400


@dataclass(frozen=True)
class Round:
    """Measurements of a round."""

    minute: float
    megabytes: float
    files: int
    trained: float
    """Training steps in the time of the reference."""
    predicted: float
    """Sets predicted in the time of the reference."""


def batches(step: int) -> tuple[sw.SetBatch, torch.Tensor]:
    """Return sets of 5 to 60 points, labelled by whether their mean is positive."""
    random = sw.training.generator("long run", step)
    sizes = torch.randint(5, 61, (SETS,), generator=random)
    sets = [torch.randn(int(n), 3, generator=random) for n in sizes]
    return sw.SetBatch.pack(sets), torch.tensor([int(x[:, 0].mean() > 0) for x in sets])


def later(before: int, step: int) -> tuple[sw.SetBatch, torch.Tensor]:
    """Return batches shifted by a number of steps."""
    return batches(before + step)


def rounds(minutes: float, folder: Path) -> list[Round]:
    """Train and predict in rounds until the time is over."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    sets = [random.normal(i % 2, 1, (random.integers(5, 60), 3)) for i in range(PREDICTED)]
    estimator = sw.SetClassifier(max_epochs=3, random_state=0).fit(sets, np.arange(PREDICTED) % 2)
    model = sw.DMPS.build(3, 1)
    adam = torch.optim.Adam(model.parameters(), fused=True)
    training = sw.Training(steps=STEPS, evaluations=3, checkpoint_seconds=0, device="cpu")
    found: list[Round] = []
    began = time.perf_counter()
    while time.perf_counter() - began < 60 * minutes:
        before = STEPS * len(found)
        reference = products()
        start = time.perf_counter()
        sw.fit(
            model,
            sw.Binary(),
            partial(later, before),
            training,
            folder=folder / "run",
            optimizer=adam,
        )
        trained = time.perf_counter()
        estimator.save(folder / "model.safetensors")
        sw.load(folder / "model.safetensors").predict(sets)
        done = time.perf_counter()
        found.append(
            Round(
                (done - began) / 60,
                resident_megabytes(),
                len(os.listdir("/proc/self/fd")),  # noqa: PTH208 (an iterator would be one more)
                STEPS * reference / (trained - start),
                PREDICTED * reference / (done - trained),
            )
        )
        if len(found) % 20 == 1:
            print(f"{found[-1]}", file=sys.stderr, flush=True)
    return found


def products() -> float:
    """Return the time of fixed matrix products."""
    x = torch.ones(256, 256)
    began = time.perf_counter()
    for _ in range(200):
        x = (x @ x) / 256
    return time.perf_counter() - began


def resident_megabytes() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def assess(found: list[Round]) -> dict[str, Any]:
    """Return the changes between the end of the warm-up and the end of the run."""
    warm = [one for one in found if one.minute >= found[-1].minute / 10]
    third = max(1, len(warm) // 3)
    first, last = warm[:third], warm[-third:]

    def middle(rows: list[Round], name: str) -> float:
        return float(statistics.median(getattr(row, name) for row in rows))

    def spread(name: str) -> float:
        values = [getattr(row, name) for row in warm]
        return float(statistics.pstdev(values) / statistics.fmean(values))

    speeds = ("trained", "predicted")
    return {
        "minutes": round(found[-1].minute, 1),
        "rounds": len(found),
        "steps": STEPS * len(found),
        "sets_predicted": PREDICTED * len(found),
        "memory_growth": middle(last, "megabytes") / middle(first, "megabytes") - 1,
        "largest_memory_growth": max(row.megabytes for row in warm) / warm[0].megabytes - 1,
        "files_growth": max(row.files for row in last) - max(row.files for row in first),
        "speed_change": {name: middle(last, name) / middle(first, name) - 1 for name in speeds},
        "speed_noise": {name: spread(name) for name in speeds},
    }


def main() -> int:
    given = arguments("endurance.long_run", __doc__, minutes=(30.0, "to go on for"))
    with tempfile.TemporaryDirectory() as folder:
        found = rounds(given.minutes, Path(folder))
    result = assess(found)
    seen = found[:: max(1, len(found) // 60)]
    command = f"python -m endurance.long_run --minutes {given.minutes:g}"
    record(given.out, command, result | {"seen": [asdict(row) for row in seen]})
    return 0 if result["memory_growth"] <= 0.02 and result["files_growth"] <= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
