"""Device, precision and several processes: one batch of sets, divided among processes."""

import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from jaxtyping import Bool, Float
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from setwise import collectives
from setwise.sets import Elements, Shared
from setwise.training.config import Training
from setwise.training.split_elements import SplitElements


class _Together(DDPStrategy):
    """Processes whose gradients are averaged by `setwise.collectives.average_gradients`, always in one order.

    ``DistributedDataParallel`` would sort them anew after the first step of each run, and so add them up in
    another order after a resumption.
    """

    def setup_module(self, module: nn.Module) -> Any:
        """Leave it as it is."""
        return module


def set_up(model: nn.Module, optimizer: Optimizer, training: Training) -> tuple[Fabric, Any, Any]:
    """Fabric, the network to call and the optimiser to step: on the device, in the precision asked for.

    With several processes the network divides each batch among them; their gradients are to be averaged.
    """
    if collectives.world() == 1:
        fabric = Fabric(accelerator=training.device, devices=1, precision=training.precision)
        return fabric, *fabric.setup(model, optimizer)
    collectives.join()
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    fabric = Fabric(
        accelerator=training.device,
        devices=here,
        num_nodes=collectives.world() // here,
        strategy=_Together(),
        precision=training.precision,
    )
    fabric.launch()
    collectives.same(chain(model.parameters(), model.buffers()))
    if training.split != "sets":
        divided = SplitElements(model, whole=training.split == "elements")
        return fabric, *fabric.setup(divided, optimizer)
    network, stepper = fabric.setup(model, optimizer)
    return fabric, SplitSets(network), stepper


class SplitSets(nn.Module):
    """A network of sets whose batches are divided among processes, set by set.

    Each process is given the whole batch, sees its share of it, and returns the outputs for all sets: what
    is made of them, a loss for instance, is the same as with one process. A process that has no set to see
    goes along with another's, so that all of them take the same steps; it does not count.

    Elements that sets have in common are divided, too: each is encoded by one process, for all of them.

    Args:
        network: called as ``network(x, mask)``; its outputs of a set must depend on that set alone.

    >>> SplitSets(nn.Identity()).network
    Identity()
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b k"]:
        """The outputs for all sets."""
        mine = dealt(len(x), mask).to(x.device)
        seen = mine if len(mine) else mine.new_zeros(1)
        part = Scattered.of(x, seen) if isinstance(x, Shared) else x[seen]
        with collectives.splitting(counts=len(mine) > 0):
            out: Tensor = self.network(part, None if mask is None else mask[seen])
        rows = out.new_zeros(len(x), *out.shape[1:]).index_copy(0, mine, out[: len(mine)])
        return collectives.all_sum(rows, alike=True)


def dealt(count: int, mask: Tensor | None) -> Tensor:
    """The numbers of this process's sets: large and small ones are dealt alike, to and fro."""
    sizes = torch.zeros(count) if mask is None else mask.sum(1).cpu()
    order = sizes.argsort(descending=True, stable=True)
    turn = torch.arange(count) % (2 * collectives.world())
    mine: Tensor = order[torch.minimum(turn, 2 * collectives.world() - 1 - turn) == collectives.rank()]
    return mine


class Scattered(Shared):
    """Elements that sets have in common, of which each process holds its share.

    Args:
        values: the share of this process.
        index: as of `Shared`, into the values of all processes together.
        count: how many values all processes have.
    """

    def __init__(self, values: Tensor, index: Tensor, count: int) -> None:
        self.values = values
        self.index = index
        self.count = count

    @staticmethod
    def of(x: Shared, sets: Tensor) -> Shared:
        """This process's share of the values, and these of the sets; of too few values each holds all."""
        if len(x.values) < collectives.world():
            return Shared(x.values, x.index[sets])
        return Scattered(x.values[collectives.share(len(x.values))], x.index[sets], len(x.values))

    def gather_values(self, features: Tensor) -> Tensor:
        """What was made of the values, in their places."""
        mine = collectives.share(self.count)
        before = features.new_zeros(mine.start, *features.shape[1:])
        after = features.new_zeros(self.count - mine.stop, *features.shape[1:])
        return collectives.all_sum(torch.cat([before, features, after]))[self.index]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Scattered":
        """Apply a function to the elements; each process still holds its share."""
        return Scattered(function(self.values), self.index, self.count)

    def to(self, *args: object, **kwargs: object) -> "Scattered":
        """Move or cast the values as ``Tensor.to`` does; the index goes along to the device."""
        moved = Shared.to(self, *args, **kwargs)
        return Scattered(moved.values, moved.index, self.count)

    def expand(self) -> Tensor:
        """``x`` with every element in its place."""
        kind = self.values.dtype
        numbers = self.values.to(torch.uint8) if kind == torch.bool else self.values
        return self.gather_values(numbers).to(kind)
