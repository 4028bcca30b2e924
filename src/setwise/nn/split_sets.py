"""A batch of sets that several processes work on: each sees some of its sets, all know all outputs."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise import ranks
from setwise.sets import Elements, Shared


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
        with ranks.splitting(counts=len(mine) > 0):
            out: Tensor = self.network(part, None if mask is None else mask[seen])
        rows = out.new_zeros(len(x), *out.shape[1:]).index_copy(0, mine, out[: len(mine)])
        return ranks.all_sum(rows, alike=True)


def dealt(count: int, mask: Tensor | None) -> Tensor:
    """The numbers of this process's sets: large and small ones are dealt alike, to and fro."""
    sizes = torch.zeros(count) if mask is None else mask.sum(1).cpu()
    order = sizes.argsort(descending=True, stable=True)
    turn = torch.arange(count) % (2 * ranks.world())
    mine: Tensor = order[torch.minimum(turn, 2 * ranks.world() - 1 - turn) == ranks.rank()]
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
        if len(x.values) < ranks.world():
            return Shared(x.values, x.index[sets])
        return Scattered(x.values[ranks.share(len(x.values))], x.index[sets], len(x.values))

    def placed(self, features: Tensor) -> Tensor:
        """What was made of the values, in their places."""
        mine = ranks.share(self.count)
        before = features.new_zeros(mine.start, *features.shape[1:])
        after = features.new_zeros(self.count - mine.stop, *features.shape[1:])
        return ranks.all_sum(torch.cat([before, features, after]))[self.index]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Scattered":
        """Apply a function to the elements; each process still holds its share."""
        return Scattered(function(self.values), self.index, self.count)

    def to(self, *args: object, **kwargs: object) -> "Scattered":
        """Move or cast the values as ``Tensor.to`` does; the index goes along to the device."""
        moved = Shared.to(self, *args, **kwargs)
        return Scattered(moved.values, moved.index, self.count)

    def written_out(self) -> Tensor:
        """``x`` with every element in its place."""
        kind = self.values.dtype
        numbers = self.values.to(torch.uint8) if kind == torch.bool else self.values
        return self.placed(numbers).to(kind)
