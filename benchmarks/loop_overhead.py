"""Overhead of the training loop for the Gaussian model, compared with a minimal loop.

Both train the same model on the same batches with the same optimiser for the same number of steps; ours also
records metrics, writes checkpoints and shows progress.
"""

import tempfile
from pathlib import Path

import torch

import setwise as sw
from benchmarks.measure import record, side_by_side
from setwise.experiments.gaussian import Gaussian
from setwise.training.progress import ProgressBar

STEPS, ROUNDS = 1_000, 9


def main() -> None:
    torch.set_num_threads(1)
    experiment = Gaussian(training=sw.Training(steps=STEPS, evaluations=2))
    batches, task = experiment.batches(0), experiment.task("v-dmps")

    def by_hand() -> None:
        model = experiment.model("v-dmps", 0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        for step in range(1, STEPS + 1):
            batch, y = batches(step)
            loss = task.loss(model(batch.x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            sw.fit(
                experiment.model("v-dmps", 0), task, batches, experiment.training,
                folder=Path(folder), progress=ProgressBar("loop", "accuracy"),
            )  # fmt: skip

    times = side_by_side({"by_hand": by_hand, "ours": ours}, ROUNDS)
    record(
        "loop_overhead",
        {
            "overhead": times["ours"] / times["by_hand"] - 1,
            "milliseconds_a_step": {name: 1e3 * t / STEPS for name, t in times.items()},
            "steps": STEPS,
            "rounds": ROUNDS,
        },
    )


if __name__ == "__main__":
    main()
