"""Processes that ``torchrun`` started: rank, world size, and collectives for tensors that lie on many ranks.

Without ``torchrun`` there is one process of rank 0, and every collective returns its input. Sums are
differentiable: the gradient of a sum over the processes is the sum of their gradients. If all processes
compute the same loss, the mean of their gradients, as ``DistributedDataParallel`` takes it, is the gradient
of that loss.
"""

import os
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional_collectives

_OWNER = "SETWISE_PROCESS"
"""Environment variable with the run ID and the process ID of a rank; its child processes are no ranks."""


def world_size() -> int:
    """Return the number of processes.

    >>> world_size(), rank(), is_first()
    (1, 0, True)
    """
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    this = f"{run} {os.getpid()}"
    owner = os.environ.get(_OWNER, this)
    if run is None or (owner.startswith(f"{run} ") and owner != this):
        return 1
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return the number of this process, counted from 0."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def is_first() -> bool:
    """Return whether this is the process that writes files and prints."""
    return rank() == 0


def initialize() -> None:
    """Join the process group, if there are several processes: NCCL for tensors on a GPU, else gloo."""
    if world_size() > 1 and not dist.is_initialized():
        os.environ[_OWNER] = f"{os.environ['TORCHELASTIC_RUN_ID']} {os.getpid()}"
        gpu = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")


def shutdown() -> None:
    """Leave the process group."""
    if world_size() > 1 and dist.is_initialized():
        dist.destroy_process_group()


def share(count: int) -> slice:
    """Return this process's part of ``count`` items; the parts differ in size by at most 1.

    >>> share(5)
    slice(0, 5, None)
    """
    return slice(rank() * count // world_size(), (rank() + 1) * count // world_size())


def all_sum(x: Tensor) -> Tensor:
    """Return the sum over all processes, with gradient."""
    return x if world_size() == 1 else _all_reduce(x, "sum")


def all_max(x: Tensor) -> Tensor:
    """Return the maximum over all processes, without gradient."""
    return x if world_size() == 1 else _all_reduce(x.detach(), "max")


def _all_reduce(x: Tensor, operation: str) -> Tensor:
    """Call torch's differentiable all-reduce, which supports gradients of sums."""
    group = dist.group.WORLD
    assert group is not None, "call initialize first"
    reduced = functional_collectives.all_reduce(x.contiguous(), operation, group)
    done: Tensor = functional_collectives.wait_tensor(reduced)
    return done


def any_of(flag: bool) -> bool:
    """Return whether the flag is true on any process."""
    return flag if world_size() == 1 else bool(all_max(torch.tensor(int(flag))))


def barrier() -> None:
    """Wait until all processes have reached this call."""
    any_of(False)


def gather_rows(x: Tensor) -> Tensor:
    """Return the tensors of all processes, ``[world_size, …]``, without gradient."""
    if world_size() == 1:
        return x.detach().unsqueeze(0)
    gathered = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world_size())]
    dist.all_gather(gathered, x.detach().contiguous())
    return torch.stack(gathered)


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Overwrite the tensors in place with those of the first process."""
    if world_size() > 1:
        for tensor in tensors:
            values = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(values, 0)
            tensor.detach().copy_(values)


def run_on_first(compute: Callable[[], bytes]) -> bytes:
    """Call ``compute`` on the first process and return its result on all processes."""
    if world_size() == 1:
        return compute()
    result = [compute() if is_first() else b""]
    dist.broadcast_object_list(result, 0, device=torch.device("cpu"))
    return result[0]
