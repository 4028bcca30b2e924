"""Share of padding in batches of sets of 10 to 100,000 elements: batching by size against random batches.

Both split the same log-normal sizes into the same number of batches. Random batches also exceed the element
budget; the size of the largest one is recorded.
"""

import math
import time
from statistics import median
from typing import Any

import numpy as np
import torch

import setwise as sw
from benchmarks.measure import record

SETS, MEDIAN, SMALLEST, LARGEST, SEED = 10_000, 300, 10, 100_000, 0
SIGMAS, BUDGETS, MAX_SETS = (1.0, 1.5, 2.0), (8_192, 32_768, 131_072), 64
EPOCHS, MILLION, ROUNDS = 5, 1_000_000, 3


def lognormal(sets: int, sigma: float) -> np.ndarray:
    sizes = np.random.default_rng(SEED).lognormal(math.log(MEDIAN), sigma, sets)
    return sizes.clip(SMALLEST, LARGEST).astype(np.int64)


def compare(sigma: float, elements: int, max_sets: int | None) -> dict[str, Any]:
    """Maximum share of padding over several epochs, and statistics of the batches."""
    sizes = lognormal(SETS, sigma)
    sampler = sw.training.ElementBudgetSampler(sizes, elements=elements, max_sets=max_sets)
    ours = [list(sampler) for _ in range(EPOCHS)]
    shuffled = [sw.training.epochs(len(sizes), len(sizes), 1, "padding", epoch) for epoch in range(EPOCHS)]
    theirs = [[part.tolist() for part in order.tensor_split(len(sampler))] for order in shuffled]
    shared = [[batch for batch in batches if len(batch) > 1] for batches in ours]
    return {
        "sigma": sigma,
        "elements": elements,
        "max_sets": max_sets,
        "waste": max(sw.training.padding_waste(sizes, batches) for batches in ours),
        "waste_of_two_or_more": max(sw.training.padding_waste(sizes, batches) for batches in shared),
        "waste_at_random": min(sw.training.padding_waste(sizes, batches) for batches in theirs),
        "largest_batch": max(area(sizes, batches) for batches in shared),
        "largest_batch_at_random": max(area(sizes, batches) for batches in theirs),
        "batches": len(sampler),
        "mates_again": shared_mates(*ours[:2]),
    }


def area(sizes: np.ndarray, batches: list[list[int]]) -> int:
    """Number of elements, including padding, of the largest batch."""
    return max(len(batch) * int(sizes[batch].max()) for batch in batches)


def shared_mates(before: list[list[int]], after: list[list[int]]) -> float:
    """Mean share of a set's batch mates that are in its batch again in the next epoch."""
    place = {i: number for number, batch in enumerate(before) for i in batch}
    shares = {i: 0.0 for batch in before for i in batch if len(batch) > 1}
    for batch in after:
        previous = [place[i] for i in batch]
        for i in set(batch) & set(shares):
            shares[i] = (previous.count(place[i]) - 1) / (len(before[place[i]]) - 1)
    return sum(shares.values()) / len(shares)


def planning() -> dict[str, float]:
    """Seconds to construct a sampler for a million sizes, and to draw the batches of an epoch."""
    sizes = lognormal(MILLION, 1.5)
    made, drawn = [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        sampler = sw.training.ElementBudgetSampler(sizes, elements=BUDGETS[-1])
        made.append(time.perf_counter() - start)
        list(sampler)
        drawn.append(time.perf_counter() - start - made[-1])
    return {"once": median(made), "each_epoch": median(drawn)}


def main() -> None:
    torch.set_num_threads(1)
    cases = [
        compare(sigma, elements, max_sets)
        for sigma in SIGMAS
        for elements in BUDGETS
        for max_sets in (None, MAX_SETS)
    ]
    record(
        "padding",
        {
            "worst_waste": max(case["waste"] for case in cases),
            "least_waste_at_random": min(case["waste_at_random"] for case in cases),
            "cases": cases,
            "seconds_for_a_million_sets": planning(),
            "sizes": {"sets": SETS, "median": MEDIAN, "smallest": SMALLEST, "largest": LARGEST, "seed": SEED},
            "epochs": EPOCHS,
        },
    )


if __name__ == "__main__":
    main()
