"""Training step on 1000 points: D-DMPS compared with a Set Transformer of the same width and depth.

Eight shapes, width 512, three layers, float32, Adam. The Set Transformer has full attention (SAB, eight
heads, torch's fused kernel) and its own pool (PMA); D-DMPS has max pooling. Memory is the peak memory of all
tensors of a step. A third ratio is the time to prepare the data: sample, rotate, stretch and normalise the
points.
"""

from collections.abc import Callable

import torch
from torch import nn

import setwise as sw
from benchmarks.measure import peak_megabytes, record, side_by_side
from setwise.experiments.data.solids import solids
from setwise.experiments.pointcloud import DIM, HIDDEN
from setwise.training.loop import Batch

SETS, POINTS, DEPTH, CLASSES, ROUNDS = 8, 1000, 3, 40, 12


def dmps(first: Batch) -> nn.Module:
    model = sw.DMPS.build(
        3, CLASSES, dim=DIM, hidden=HIDDEN, depth=DEPTH, block="denoising", pool="max", activation="tanh"
    )
    return model.initialize_bandwidth(first[0].x)


def set_transformer() -> nn.Module:
    return sw.SetTransformer.build(3, CLASSES, dim=DIM, heads=8, depth=DEPTH)


def step(model: nn.Module, batch: Batch) -> Callable[[], None]:
    sets, y = batch
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def train() -> None:
        nn.functional.cross_entropy(model(sets.x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def example() -> Batch:
    return sw.SetBatch(torch.randn(SETS, POINTS, 3)), torch.randint(0, CLASSES, (SETS,))


def main() -> None:
    from setwise.experiments.data.point_clouds import augment, normalize

    clouds = solids(20)

    def prepare() -> None:
        generator = sw.training.generator("benchmark")
        index = sw.training.epochs(len(clouds), SETS, 1, "benchmark")
        normalize(augment(clouds.sample(index, POINTS, generator), generator))

    batch = example()
    steps = {"dmps": step(dmps(batch), batch), "transformer": step(set_transformer(), batch)}
    times = side_by_side({**steps, "prepare": prepare}, ROUNDS)
    memory = {name: peak_megabytes(train) for name, train in steps.items()}
    record(
        "pointcloud_step",
        {
            "size": f"{SETS} shapes, {POINTS} points, {DIM} wide, {DEPTH} layers, float32",
            "transformer_over_dmps": times["transformer"] / times["dmps"],
            "transformer_over_dmps_memory": memory["transformer"] / memory["dmps"],
            "preparation_over_dmps": times["prepare"] / times["dmps"],
            "seconds": times,
            "megabytes": memory,
            "rounds": ROUNDS,
        },
    )


if __name__ == "__main__":
    main()
