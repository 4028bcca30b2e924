"""Processes that work on one thing together, as ``torchrun`` starts them; one alone is the first of one.

What they compute together is a sum over them. Its gradient is a sum over them, too: each process derives the
sum of all their losses, and their mean gradient is that of the loss that they all come to.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from setwise.training.signals import end_with_parent

_part: bool | None = None
_PROCESS = "SETWISE_PROCESS"
if (_run := os.environ.get("TORCHELASTIC_RUN_ID")) and not os.environ.get(_PROCESS, "").startswith(
    f"{_run} "
):
    os.environ[_PROCESS] = f"{_run} {os.getpid()}"  # whatever this process starts is not one of torchrun's


def world() -> int:
    """How many processes work together.

    >>> world(), rank(), is_first()
    (1, 0, True)
    """
    started = os.environ.get("TORCHELASTIC_RUN_ID")
    if started is None or os.environ.get(_PROCESS, f"{started} {os.getpid()}") != f"{started} {os.getpid()}":
        return 1
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of them this is, counted from 0."""
    return int(os.environ["RANK"]) if world() > 1 else 0


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


def join() -> None:
    """Meet the other processes, if there are any: over NCCL for what lies on a GPU, else over gloo."""
    if world() > 1 and not dist.is_initialized():
        end_with_parent(os.getppid())
        gpu = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")


def leave() -> None:
    """Part from the others."""
    if world() > 1 and dist.is_initialized():
        dist.destroy_process_group()


def share(count: int) -> slice:
    """This process's part of so many things: parts differ by one at most, and no two overlap.

    >>> share(5)
    slice(0, 5, None)
    """
    return slice(rank() * count // world(), (rank() + 1) * count // world())


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alike: bool) -> Tensor:
        ctx.alike = alike
        return total(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * world() if ctx.alike else total(grads[0]), None


def all_sum(x: Tensor, *, alike: bool = False) -> Tensor:
    """The sum over all processes, on each of them; gradients are summed as well.

    Args:
        x: what this process adds.
        alike: whether all processes do the same with the sum, so that their gradients are known to be equal.
    """
    if world() == 1:
        return x
    summed: Tensor = _Sum.apply(x, alike)  # type: ignore[no-untyped-call]
    return summed


def total(x: Tensor) -> Tensor:
    """The sum over all processes, without a gradient."""
    return _reduced(x, dist.ReduceOp.SUM)


def largest(x: Tensor) -> Tensor:
    """The largest over all processes, without a gradient."""
    return _reduced(x, dist.ReduceOp.MAX)


def _reduced(x: Tensor, how: Any) -> Tensor:
    if world() == 1:
        return x
    reduced = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(reduced, how)
    return reduced


def any_of(flag: bool) -> bool:
    """Whether it is true for any of the processes, each of which waits for the others."""
    return flag if world() == 1 else bool(largest(torch.tensor(int(flag))))


def wait() -> None:
    """Go on when all processes have come here."""
    any_of(False)


def average_gradients(parameters: Iterable[Tensor], request: bool = False) -> bool:
    """Give all processes the mean of their gradients; tell whether any of them has a request.

    What none of them has used keeps no gradient.
    """
    if world() == 1:
        return request
    known = [weight for weight in parameters if weight.requires_grad]
    if not known:
        return any_of(request)
    grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in known]
    flags = torch.tensor([request, *(weight.grad is not None for weight in known)]).to(grads[0])
    summed = total(torch.cat([flags, *(grad.flatten() for grad in grads)]))
    flags, *sums = summed.split([len(flags), *(weight.numel() for weight in known)])
    requested, *used = flags.tolist()
    for weight, grad, any_used, total_grad in zip(known, grads, used, sums, strict=True):
        grad.copy_(total_grad.view_as(grad) / world())  # in place: it may lie otherwise than a new one would
        weight.grad = grad if any_used else None
    return bool(requested)


def same(tensors: Iterable[Tensor]) -> None:
    """Give all processes the values that the first one has, in place."""
    if world() > 1:
        for tensor in tensors:
            values = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(values, 0)
            tensor.detach().copy_(values)


def rows(x: Tensor) -> Tensor:
    """What each process has, ``[world, …]``."""
    whole = x.new_zeros(world(), *x.shape)
    whole[rank()] = x
    return total(whole)


def on_first(work: Callable[[], bytes]) -> bytes:
    """Let the first process do something, and tell all of them what came of it."""
    if world() == 1:
        return work()
    said = torch.tensor(list(work()) if is_first() else [], dtype=torch.uint8)
    size = torch.tensor(len(said))
    dist.broadcast(size, 0)
    told = said if is_first() else torch.empty(int(size), dtype=torch.uint8)
    if len(told):
        dist.broadcast(told, 0)
    return told.numpy().tobytes()


@contextmanager
def splitting(*, counts: bool = True) -> Iterator[None]:
    """Within, what a network sees is a part of a batch that all processes work on.

    Args:
        counts: whether the part is this process's own, or one of another's that it goes along with.
    """
    global _part
    before, _part = _part, counts if world() > 1 else None
    try:
        yield
    finally:
        _part = before


def is_split() -> bool:
    """Whether the batch at hand is but a part of one: see `splitting`."""
    return _part is not None


def counts() -> bool:
    """Whether the part at hand counts in what is summed over processes."""
    return _part is not False
