"""Training on a device, in a precision, by one or several processes, through Lightning Fabric.

Several processes train by ``DistributedDataParallel``. Each is given the same batch and computes a part of
it; the outputs, and thus the loss, are those of the whole batch on every process.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from setwise import collectives
from setwise.sets import Elements, Shared
from setwise.training.config import Training
from setwise.training.split_elements import SplitElements


@contextmanager
def fabric_setup(
    model: nn.Module, optimizer: Optimizer, training: Training
) -> Iterator[tuple[Fabric, Any, Any]]:
    """Yield Fabric, the network to call and the optimizer to step, on the chosen device and in the precision.

    With several processes, the batch norms of the model are synchronized while the context lasts.
    """
    if collectives.world_size() == 1:
        fabric = Fabric(accelerator=training.device, devices=1, precision=training.precision)
        yield fabric, *fabric.setup(model, optimizer)
        return
    collectives.initialize()
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    fabric = Fabric(
        accelerator=training.device,
        devices=local,
        num_nodes=collectives.world_size() // local,
        strategy=DDPStrategy(find_unused_parameters=True),
        precision=training.precision,
    )
    fabric.launch()
    split: nn.Module
    if training.split == "sets":
        split, normalized = SplitSets(model), model
    else:
        split = SplitElements(model, whole=training.split == "elements")
        normalized = split.model.encoder  # later layers see whole sets, the same on every process
    # torch prints a warning if it looks for unused parameters and there are none
    split.register_parameter("unused", nn.Parameter(torch.zeros(())))
    with synchronized_batch_norms(normalized, fabric.device):
        yield fabric, *fabric.setup(split, optimizer)
    collectives.broadcast(model.buffers())


class SplitSets(nn.Module):
    """A network whose batches are divided among processes, set by set.

    Each process is given the whole batch, computes its own sets, and returns the outputs for all sets. A
    process without a set calls the network with an empty batch, since all processes must take part in every
    collective.

    Elements that sets share are divided as well: each is encoded by one process, for all of them, so that
    batch statistics count it once.

    Args:
        network: called as ``network(x, mask)``; the outputs for a set must depend on that set alone.

    >>> SplitSets(nn.Identity()).network
    Identity()
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b k"]:
        """Return the outputs for all sets."""
        own = assigned_sets(len(x), mask).to(x.device)
        part = SharedPart.of(x, own) if isinstance(x, Shared) else x[own]
        out: Tensor = self.network(part, None if mask is None else mask[own])
        return collectives.all_sum(out.new_zeros(len(x), *out.shape[1:]).index_copy(0, own, out))


def assigned_sets(count: int, mask: Tensor | None) -> Tensor:
    """Return the indices of this process's sets, such that all processes have about the same sizes.

    Sets are sorted by size and assigned to the ranks 0, 1, …, 1, 0, 0, 1, ….
    """
    sizes = torch.zeros(count) if mask is None else mask.sum(1).cpu()
    order = sizes.argsort(descending=True, stable=True)
    world_size = collectives.world_size()
    turn = torch.arange(count) % (2 * world_size)
    own: Tensor = order[torch.minimum(turn, 2 * world_size - 1 - turn) == collectives.rank()]
    return own


class SharedPart(Shared):
    """Elements that sets share, of which each process holds a part.

    Args:
        values: the part of this process.
        index: as of `Shared`, into the values of all processes.
        count: number of values of all processes.
    """

    def __init__(self, values: Tensor, index: Tensor, count: int) -> None:
        self.values = values
        self.index = index
        self.count = count

    @staticmethod
    def of(x: Shared, sets: Tensor) -> "SharedPart":
        """Return this process's part of the values, with the index of some sets."""
        return SharedPart(x.values[collectives.share(len(x.values))], x.index[sets], len(x.values))

    def gather_values(self, features: Tensor) -> Tensor:
        """Return the features of all values, in the places that the index gives."""
        own = torch.arange(self.count, device=features.device)[collectives.share(self.count)]
        padded = features.new_zeros(self.count, *features.shape[1:]).index_copy(0, own, features)
        return collectives.all_sum(padded)[self.index]

    def map(self, function: Callable[[Tensor], Tensor]) -> "SharedPart":
        """Apply a function to the values of this process."""
        return SharedPart(function(self.values), self.index, self.count)

    def to(self, *args: object, **kwargs: object) -> "SharedPart":
        """Move or cast the values as ``Tensor.to`` does; the index follows to the device."""
        values = self.values.to(*args, **kwargs)  # type: ignore[call-overload]
        return SharedPart(values, self.index.to(values.device), self.count)

    def expand(self) -> Tensor:
        """Return ``x`` with every element in its place."""
        numbers = self.values.to(torch.uint8) if self.values.dtype == torch.bool else self.values
        return self.gather_values(numbers).to(self.values.dtype)


class GPUSyncBatchNorm(nn.SyncBatchNorm):
    """``torch.nn.SyncBatchNorm`` that uses the running statistics if there are fewer than two rows in all."""

    def forward(self, x: Float[Tensor, "rows d *image"]) -> Float[Tensor, "rows d *image"]:
        """Normalize each feature by the statistics of all processes."""
        if self.training and _total_rows(x) < 2:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class CPUSyncBatchNorm(_BatchNorm):
    """The same for CPUs, which ``torch.nn.SyncBatchNorm`` refuses: statistics are differentiable sums."""

    def forward(self, x: Float[Tensor, "rows d *image"]) -> Float[Tensor, "rows d *image"]:
        """Normalize each feature by the statistics of all processes."""
        if not self.training:
            return super().forward(x)
        count = _total_rows(x)
        if count < 2:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        axes, dtype = [0, *range(2, x.dim())], x.dtype
        x = x.to(torch.promote_types(dtype, torch.float32))
        mean = collectives.all_sum(x.sum(axes, keepdim=True)) / count
        variance = collectives.all_sum((x - mean).square().sum(axes, keepdim=True)) / count
        self._update(mean.detach().flatten(), variance.detach().flatten() * (count / (count - 1)))
        out = (x - mean) * (variance + self.eps).rsqrt()
        if self.affine:
            out = out * self.weight.view_as(mean) + self.bias.view_as(mean)
        return out.to(dtype)

    def _update(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        factor = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (its name in torch)
        """Accept rows and images."""


def _total_rows(x: Tensor) -> int:
    """Return the number of rows on all processes; pixels of an image are rows."""
    return int(collectives.all_sum(torch.tensor(x.numel() // x.shape[1])))


def _synchronized(norm: _BatchNorm, kind: type[GPUSyncBatchNorm | CPUSyncBatchNorm]) -> _BatchNorm:
    """Return a synchronized batch norm that shares the parameters and buffers of ``norm``."""
    synced = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    synced._parameters, synced._buffers = norm._parameters, norm._buffers
    return synced.train(norm.training)


@contextmanager
def synchronized_batch_norms(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Temporarily replace the batch norms of a model by synchronized ones with the same parameters."""
    kind = GPUSyncBatchNorm if device.type == "cuda" else CPUSyncBatchNorm
    places = [
        (parent, name, norm)
        for parent in model.modules()
        for name, norm in parent.named_children()
        if isinstance(norm, _BatchNorm) and not isinstance(norm, nn.SyncBatchNorm)
    ]
    synced = {norm: _synchronized(norm, kind) for _, _, norm in places}
    try:
        for parent, name, norm in places:
            setattr(parent, name, synced[norm])
        yield
    finally:
        for parent, name, norm in places:
            setattr(parent, name, norm.train(synced[norm].training))
