"""Importance of elements for the output of a model, and the strongest neighbours in a graph."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from setwise.functional import fill_padding
from setwise.nn._modes import eval_mode
from setwise.nn.baselines.base import Layered
from setwise.nn.dmps import DMPS, choose
from setwise.nn.layers import MLP, ElementEncoder, expand_shared
from setwise.sets import Elements, SetBatch, Shared

MAX_LEAVE_ONE_OUT = 1000
"""Size of the largest set whose elements are left out one by one."""
PAIRS = 2**21  # pairs of elements per chunk: about 100 MB, and partly still in the CPU cache

Method = Literal["auto", "attention", "leave-one-out", "integrated-gradients"]


def importance(
    model: nn.Module,
    x: Elements,
    mask: Bool[Tensor, "b n"] | None = None,
    *,
    method: Method = "auto",
    output: int = 0,
    chunk: int | None = None,
    steps: int = 32,
    baseline: Literal["mean", "zeros"] = "mean",
) -> Float[Tensor, "b n"]:
    """Importance of each element for an output of the model; zero for padding.

    - ``"attention"``: the weights a_i of the model's attention pool, the same for every output. They are
      non-negative: they do not show whether an element raises or lowers the output.
    - ``"leave-one-out"``: out(X) − out(X without i). Redundant elements each have a low importance.
    - ``"integrated-gradients"``: Σ_d (x_id − x'_d) ∫ ∂out/∂x_id over the straight path from X', in which
      every element is x', to X. They sum to out(X) − out(X'), up to the error of the midpoint rule.

    If an `MLP` or an `ElementEncoder` encodes the elements independently, they are encoded once and the
    methods use the encoded elements; for other encoders and models, they use the raw ones. The model is
    evaluated in eval mode and not changed.

    Args:
        model: any ``(x, mask) → [b, k]``.
        x: the elements.
        mask: True at real elements.
        method: ``"auto"`` chooses by `method_for`: attention, leave-one-out, or gradients for large sets.
        output: index of the output, from 0 to k − 1.
        chunk: for leave-one-out, the number of sets per forward pass, each without another element; by
            default, as many as have two million pairs of elements.
        steps: for integrated gradients, the number of points on the path. Models with layer norms or many
            kinks need more.
        baseline: for integrated gradients, x': the mean of the set's real elements, or zeros.

    >>> from setwise.nn.pool import MaxPool
    >>> x = torch.tensor([[[1.0], [4.0], [3.0], [9.0]]])
    >>> mask = torch.tensor([[True, True, True, False]])
    >>> importance(MaxPool(), x, mask)
    tensor([[0., 1., 0., 0.]])
    >>> importance(MaxPool(), x, mask, method="integrated-gradients", baseline="zeros")
    tensor([[0., 4., 0., 0.]])
    """
    SetBatch(x, mask)  # checks the shapes
    for name, size in (("chunk", chunk), ("steps", steps)):
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
    with eval_mode(model), torch.no_grad():
        rest, elements = _after_encoder(model, x, real)
        methods: dict[str, Callable[[], Tensor]] = {
            "attention": lambda: _attention(model, rest, elements, real, output),
            "leave-one-out": lambda: _leave_one_out(rest, elements, real, output, chunk),
            "integrated-gradients": lambda: _integrated_gradients(
                rest, elements, real, output, steps, baseline
            ),
        }
        suited = method_for(model, x.shape[1])
        if suited == "integrated-gradients" and not elements.is_floating_point():  # integers have no gradient
            suited = "leave-one-out"
        methods["auto"] = methods[suited]
        values = choose("method", method, methods)
    return values.masked_fill(~real, 0)


def strongest_neighbours(
    W: Float[Tensor, "n n"], element: int, k: int
) -> tuple[Int[Tensor, " m"], Float[Tensor, " m"]]:
    """The k strongest neighbours of an element in the graph of one set, and their weights.

    They are sorted by decreasing weight, ties by index. Elements without weight, such as padding, are left
    out, so there may be fewer than k.

    Args:
        W: the graph of one set, e.g. ``model.latent_graph(x)[0]``.
        element: index of the element, a row of W.
        k: number of neighbours.

    >>> W = torch.tensor([[0.5, 0.1, 0.4, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.0] * 4])
    >>> strongest_neighbours(W, 0, 3)
    (tensor([2, 1]), tensor([0.4000, 0.1000]))
    """
    if W.dim() != 2 or W.shape[0] != W.shape[1]:
        raise ValueError(f"W must be the graph [n, n] of one set, got {list(W.shape)}")
    if not 0 <= element < len(W):
        raise ValueError(f"element must be from 0 to {len(W) - 1}, got {element}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    row = W[element].detach().clone()
    row[element] = 0
    weights, elements = row.sort(descending=True, stable=True)
    count = min(k, int(weights.count_nonzero()))
    return elements[:count], weights[:count]


Rest = Callable[[Tensor, Tensor], Tensor]
"""``(elements, mask) → [b, k]``: a model, or the part of it after the encoder."""


def _after_encoder(model: nn.Module, x: Elements, mask: Tensor) -> tuple[Rest, Tensor]:
    """The part of the model after an element-wise encoder, and its input."""
    own = type(model).forward not in (DMPS.forward, Layered.forward)  # may use x in another way
    if own or not isinstance(model, DMPS | Layered) or type(model.encoder) not in (MLP, ElementEncoder):
        return model, x.expand() if isinstance(x, Shared) else x

    def rest(features: Tensor, mask: Tensor) -> Tensor:
        if isinstance(model, DMPS):
            features = model.pass_messages(features, model.graph(features, mask))
        return model.read_out(features, mask)

    return rest, expand_shared(model.encoder(x, mask), mask)


def _chosen(out: Tensor, output: int) -> Tensor:
    if not 0 <= output < out.shape[1]:
        raise ValueError(f"output must be from 0 to {out.shape[1] - 1}, got {output}")
    return out[:, output]


def method_for(model: nn.Module, elements: int, *, most: int = MAX_LEAVE_ONE_OUT) -> Method:
    """Choose an importance method: attention if the model has an attention pool, else by the size of the set.

    Args:
        model: any ``(x, mask) → [b, k]``.
        elements: number of elements of the largest set.
        most: leave-one-out is used up to this size, integrated gradients beyond.

    >>> method_for(nn.Identity(), 10), method_for(nn.Identity(), 10_000)
    ('leave-one-out', 'integrated-gradients')
    """
    if _attends(model):
        return "attention"
    return "leave-one-out" if elements <= most else "integrated-gradients"


def _attends(model: nn.Module) -> bool:
    return callable(getattr(getattr(model, "pool", None), "attention", None))


def _attention(model: nn.Module, rest: Rest, x: Tensor, mask: Tensor, output: int) -> Tensor:
    if not _attends(model):
        raise ValueError(f"attention needs a model with an attention pool, got {type(model).__name__}")
    weights: list[Tensor] = []

    def record(pool: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        weights.append(pool.attention(*inputs, **keywords))

    hook = model.get_submodule("pool").register_forward_pre_hook(record, with_kwargs=True)
    try:
        _chosen(rest(x, mask), output)
    finally:
        hook.remove()
    if weights[-1].shape != mask.shape:
        raise ValueError(
            f"attention must have one weight per element, {list(mask.shape)}, got {list(weights[-1].shape)}"
        )
    return weights[-1]


def _leave_one_out(model: Rest, x: Tensor, mask: Tensor, output: int, chunk: int | None) -> Tensor:
    n = mask.shape[1]
    chunk = max(1, PAIRS // max(1, n * n)) if chunk is None else chunk
    whole = _chosen(model(x, mask), output)
    values = whole.new_zeros(mask.shape)
    for i, real in enumerate(mask):
        elements = real.nonzero().squeeze(1)
        for start in range(0, len(elements), chunk):
            left_out = elements[start : start + chunk]
            others = real & (torch.arange(n, device=x.device) != left_out.unsqueeze(1))
            copies = x[i].expand(len(left_out), *x.shape[1:])  # without copying the memory
            values[i, left_out] = whole[i] - _chosen(model(copies, others), output)
    return values


def _integrated_gradients(
    model: Rest, x: Tensor, mask: Tensor, output: int, steps: int, baseline: str
) -> Tensor:
    if not x.is_floating_point():
        raise ValueError(f"integrated gradients need floating-point elements, got {x.dtype}")
    x = fill_padding(x, mask)
    size = mask.sum(1).clamp(min=1).view(-1, *[1] * (x.dim() - 1))
    starts: dict[str, Callable[[], Tensor]] = {
        "mean": lambda: x.sum(1, keepdim=True) / size,
        "zeros": lambda: torch.zeros_like(x[:, :1]),
    }
    start = choose("baseline", baseline, starts)
    slope = torch.zeros_like(x)
    for step in range(steps):
        with torch.enable_grad():
            between = torch.lerp(start, x, (step + 0.5) / steps).requires_grad_()
            out = _chosen(model(between, mask), output).sum()
        if out.requires_grad:  # the output of an empty set may not depend on x
            slope += torch.autograd.grad(out, between, materialize_grads=True)[0] / steps
    return ((x - start) * slope).unsqueeze(-1).flatten(2).sum(2)
