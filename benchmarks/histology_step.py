"""A training step of D-DMPS on the patches of one histology image, against the same step written plainly.

The plain one has torch's own layers in single precision, channels first, ReLU before pooling, and the
textbook graph; its patches are numbers, ours are bytes. Both have the same weights, blocks, loss and
optimiser. They are timed with one thread and with two, under the allocator's default settings.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import setwise as sw
from benchmarks.dense_step import PlainGraph
from benchmarks.measure import record, side_by_side

PATCHES, SIDE, DIM, EMBEDDING, ROUNDS = 672, 32, 512, 1024, 11


def convolutions() -> nn.Module:
    """The encoder as it is here."""
    return sw.ElementEncoder(
        nn.Sequential(
            sw.ConvPool(3, 36, kernel=4),
            sw.ConvPool(36, 48, kernel=3),
            nn.Flatten(),
            sw.Dense(1728, DIM, activation="tanh"),
            sw.Dense(DIM, DIM, activation="tanh"),
        )
    )


class Plain(nn.Module):
    """The encoder as one would write it first."""

    def __init__(self) -> None:
        super().__init__()
        first = [nn.Conv2d(3, 36, 4), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(36, 48, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        dense = [nn.Linear(1728, DIM), nn.Tanh(), nn.Linear(DIM, DIM), nn.Tanh()]
        self.network = nn.Sequential(*first, *second, *dense)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode every patch."""
        out: Tensor = self.network(x.flatten(0, 1)).view(*x.shape[:2], DIM)
        return out


def build(encoder: nn.Module, graph: type[sw.LatentGraph]) -> sw.DMPS:
    """D-DMPS at the size of the experiment."""
    kernel = graph(DIM, (DIM, EMBEDDING), activation="tanh")
    return sw.DMPS.build(3, 1, dim=DIM, graph=kernel, activation="tanh", encoder=encoder)


def step(model: nn.Module, x: Tensor) -> Callable[[], None]:
    y = torch.ones(1, dtype=torch.long)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def train() -> None:
        sw.Binary().loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def main() -> None:
    patches = torch.randint(0, 256, (1, PATCHES, 3, SIDE, SIDE), dtype=torch.uint8)
    numbers = patches / 255
    ours = build(convolutions(), sw.LatentGraph).initialize_bandwidth(patches)
    plain = build(Plain(), PlainGraph)
    with torch.no_grad():
        for p, q in zip(plain.parameters(), ours.parameters(), strict=True):
            p.copy_(q)
        gap = (ours(patches) - plain(numbers)).abs().max().item()
    milliseconds = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        times = side_by_side({"plain": step(plain, numbers), "ours": step(ours, patches)}, ROUNDS)
        milliseconds[threads] = {name: 1e3 * seconds for name, seconds in times.items()}
    ratios = {threads: times["plain"] / times["ours"] for threads, times in milliseconds.items()}
    record(
        "histology_step",
        {
            "plain_over_ours": min(ratios.values()),
            "plain_over_ours_by_threads": ratios,
            "milliseconds_by_threads": milliseconds,
            "largest_difference": gap,
            "patches": PATCHES,
            "data": "random bytes",
            "rounds": ROUNDS,
        },
    )


if __name__ == "__main__":
    main()
