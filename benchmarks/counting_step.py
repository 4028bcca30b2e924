"""Training step on the paper's batch of 32 sets of drawings, compared with a plain implementation.

The plain step encodes every element of the padded batch in single precision with torch's layers, ReLU before
pooling, channels first. All layers after the encoder, the loss and the optimiser are the same. A third step
trains on batches of the experiment, 128 sets from a pool of 160 drawings. A fourth one is the third, but
convolves every pixel and embeds every element, instead of only the ink and each drawing once.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import setwise as sw
from benchmarks.measure import record, side_by_side
from setwise.experiments.counting import Counting
from setwise.experiments.counting_models import CHANNELS, DIM
from setwise.nn.layers import expand_shared
from setwise.training.loop import Batch

SETS, ROUNDS = 32, 15


class Plain(nn.Module):
    """Plain encoder."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (1, CHANNELS, CHANNELS, CHANNELS):
            layers += [nn.Conv2d(channels, CHANNELS, 3), nn.ReLU(), nn.MaxPool2d(2)]
        self.network = nn.Sequential(*layers, nn.Flatten())

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Encode every element, including padding."""
        out: Tensor = self.network(x.flatten(0, 1)).view(*x.shape[:2], DIM)
        return out


class Everywhere(nn.Module):
    """The package's encoder, but it convolves blank pixels and expands shared drawings."""

    def __init__(self) -> None:
        super().__init__()
        layers = (sw.nn.ConvPool(channels, CHANNELS) for channels in (1, CHANNELS, CHANNELS, CHANNELS))
        self.encoder = sw.nn.ElementEncoder(nn.Sequential(*layers, nn.Flatten()))

    def forward(self, x: sw.Shared, mask: Tensor) -> Tensor:
        """Encode the drawings and expand them to the elements of the sets."""
        return expand_shared(self.encoder(x, mask), mask)


def step(model: nn.Module, batch: Batch) -> Callable[[], None]:
    sets, y = batch
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def train() -> None:
        loss = sw.Count().loss(model(sets.x, sets.mask), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def main() -> None:
    fresh = Counting(batch="fresh", sets=SETS)
    pool = Counting()
    batch, y = fresh.batches(0)(1)
    plain = fresh.model("d-dmps-ldc", 0)
    plain.encoder = Plain()
    everywhere = pool.model("d-dmps-ldc", 0)
    everywhere.encoder = Everywhere()
    times = side_by_side(
        {
            "plain": step(plain, (sw.SetBatch(batch.elements.float(), batch.mask), y)),
            "ours": step(fresh.model("d-dmps-ldc", 0), (batch, y)),
            "pool": step(pool.model("d-dmps-ldc", 0), pool.batches(0)(1)),
            "everywhere": step(everywhere, pool.batches(0)(1)),
        },
        ROUNDS,
    )
    record(
        "counting_step",
        {
            "plain_over_ours": times["plain"] / times["ours"],
            "plain_over_pool_a_set": times["plain"] / SETS / (times["pool"] / pool.sets),
            "everywhere_over_pool": times["everywhere"] / times["pool"],
            "milliseconds": {name: 1e3 * seconds for name, seconds in times.items()},
            "sets": {"plain": SETS, "ours": SETS, "pool": pool.sets, "everywhere": pool.sets},
            "drawings": {"plain": batch.x.shape[0] * batch.x.shape[1], "ours": int(batch.sizes.sum())},
            "data": fresh.data,
            "rounds": ROUNDS,
        },
    )


if __name__ == "__main__":
    main()
