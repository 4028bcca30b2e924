"""Training step of D-DMPS on all patches of one histology image, compared with a plain implementation.

The plain step uses torch's layers in single precision, channels first, ReLU before pooling, and the plain
graph; its patches are floats already, ours are bytes. Weights, blocks, loss and optimiser are the same. Both
are timed with one and with two threads, with the allocator's default settings.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import setwise as sw
from benchmarks.dense_step import PlainKernel
from benchmarks.measure import record, side_by_side
from setwise.experiments.histology import DIM, HIDDEN, Histology
from setwise.training.loop import Batch

PATCHES, ROUNDS = 672, 11


class Plain(nn.Module):
    """Plain encoder."""

    def __init__(self) -> None:
        super().__init__()
        first = [nn.Conv2d(3, 36, 4), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(36, 48, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        dense = [nn.Linear(1728, DIM), nn.Tanh(), nn.Linear(DIM, DIM), nn.Tanh()]
        self.network = nn.Sequential(*first, *second, *dense)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode each patch."""
        out: Tensor = self.network(x.flatten(0, 1)).view(*x.shape[:2], DIM)
        return out


def step(model: nn.Module, batch: Batch) -> Callable[[], None]:
    sets, y = batch
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def train() -> None:
        sw.Binary().loss(model(sets.x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def main() -> None:
    experiment = Histology(patches=PATCHES)
    batch, y = experiment.batches(0)(1)
    ours = experiment.model("d-dmps-ldc", 0)
    graph = sw.LatentGraph(PlainKernel(DIM, HIDDEN, activation="tanh"))
    plain = sw.DMPS.build(3, 1, dim=DIM, graph=graph, activation="tanh", encoder=Plain())
    (scale,) = (layer for layer in ours.modules() if isinstance(layer, sw.nn.Rescale))
    numbers = sw.SetBatch(scale(batch.elements.flatten(0, 1)).view(batch.x.shape))
    with torch.no_grad():
        for p, q in zip(plain.parameters(), ours.parameters(), strict=True):
            p.copy_(q)
        gap = (ours(batch.x) - plain(numbers.x)).abs().max().item()
    milliseconds = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        times = side_by_side({"plain": step(plain, (numbers, y)), "ours": step(ours, (batch, y))}, ROUNDS)
        milliseconds[threads] = {name: 1e3 * seconds for name, seconds in times.items()}
    ratios = {threads: times["plain"] / times["ours"] for threads, times in milliseconds.items()}
    record(
        "histology_step",
        {
            "plain_over_ours": min(ratios.values()),
            "plain_over_ours_by_threads": ratios,
            "milliseconds_by_threads": milliseconds,
            "largest_difference": gap,
            "patches": batch.x.shape[1],
            "data": experiment.data,
            "rounds": ROUNDS,
        },
    )


if __name__ == "__main__":
    main()
