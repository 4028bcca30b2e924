"""Prediction rate for many sets: the command ``setwise predict`` compared with one set at a time.

10,000 sets of 25 to 75 elements with 16 features, from file to file. The loops predict a sample of the same
sets in memory: with the estimator, and with its network alone, which is the minimum cost per set.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

import setwise as sw
from benchmarks.measure import record
from setwise.cli.predict import predict_file

SETS, SAMPLE, FEATURES, ROUNDS = 10_000, 500, 16, 3


def main() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(25, 76, size=SETS)
    ptr = np.append(0, sizes.cumsum())
    values = rng.normal(size=(ptr[-1], FEATURES)).astype(np.float32)
    sets = sw.Sets(values, ptr)
    y = np.array([x[:, 0].mean() > 0 for x in sets])
    clf = sw.SetClassifier(max_epochs=1, random_state=0).fit(sets[:1000], y[:1000])
    module = clf.module_.eval()

    def by_command(folder: Path) -> None:
        predict_file(folder / "model.safetensors", folder / "data.npz", folder / "out.csv")

    def by_estimator() -> None:
        for i in range(SAMPLE):
            clf.predict_proba([sets[i]])

    def by_network() -> None:
        with torch.no_grad():
            for i in range(SAMPLE):
                module(torch.from_numpy(sets[i]).unsqueeze(0)).sigmoid()

    rates: dict[str, list[float]] = {"command": [], "estimator": [], "network": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clf.save(folder / "model.safetensors")
        np.savez(folder / "data.npz", values=values, ptr=ptr)
        methods: dict[str, tuple[int, Callable[[], None]]] = {
            "command": (SETS, partial(by_command, folder)),
            "estimator": (SAMPLE, by_estimator),
            "network": (SAMPLE, by_network),
        }
        for _ in range(ROUNDS + 1):
            for method, (count, predict) in methods.items():
                start = time.perf_counter()
                predict()
                rates[method].append(count / (time.perf_counter() - start))
    rate = {name: float(np.median(values[1:])) for name, values in rates.items()}  # without the warm-up round
    record(
        "predicting",
        {
            "command_over_estimator_loop": rate["command"] / rate["estimator"],
            "command_over_network_loop": rate["command"] / rate["network"],
            "sets_a_second": rate,
            "sets": SETS,
            "mean_elements": float(sizes.mean()),
            "features": FEATURES,
        },
    )


if __name__ == "__main__":
    main()
