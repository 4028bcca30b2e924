"""Which elements count: for the output of a model, and for an element of the latent graph."""

import copy
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

ONE_BY_ONE = 1000
"""Elements of the largest set of which each is left out in turn."""
PAIRS = 2**21  # of elements at once: about a hundred MB, and still in the processor's cache in part

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
    """How much each element counts for an output of the model; padding counts zero.

    - ``"attention"``: the weights a_i with which the model's attention pool takes the elements, whatever
      the output. They say where it looks, not whether that speaks for the output or against it.
    - ``"leave-one-out"``: out(X) − out(X without i), what an element adds to what the others say. Where
      many say the same, each of them counts little.
    - ``"integrated-gradients"``: Σ_d (x_id − x'_d) ∫ ∂out/∂x_id over the straight path from X', in which
      every element is x', to X. They sum to out(X) − out(X'), up to the error of the midpoint rule.

    Elements are the encoded ones where an `MLP` or an `ElementEncoder` encodes each on its own, once; for
    any other model or encoder they are the raw ones. The model is looked at as in use, not in training, and
    left as it was.

    Args:
        model: any ``(x, mask) → [b, k]``.
        x: the elements.
        mask: True at real elements.
        method: ``"auto"`` is what `method_for` takes: attention, leave-one-out, or gradients for large sets.
        output: which of the k outputs.
        chunk: for leave-one-out, how many sets go through the model at once, each without another element;
            if not given, as many as have two million pairs of elements.
        steps: for integrated gradients, the points of the path at which to take the gradient. A model
            with layer norms or many kinks needs more.
        baseline: for integrated gradients, x': the mean of the set's real elements, an ordinary element of
            this very set, or zeros.

    >>> from setwise.nn.pool import MaxPool
    >>> x = torch.tensor([[[1.0], [4.0], [3.0], [9.0]]])
    >>> mask = torch.tensor([[True, True, True, False]])
    >>> importance(MaxPool(), x, mask)
    tensor([[0., 1., 0., 0.]])
    >>> importance(MaxPool(), x, mask, method="integrated-gradients", baseline="zeros")
    tensor([[0., 4., 0., 0.]])
    """
    SetBatch(x, mask)  # checks that the two fit
    for name, size in (("chunk", chunk), ("steps", steps)):
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
    with eval_mode(model), torch.no_grad():
        rest, elements = _after_encoder(model, x, real)
        methods: dict[str, Callable[[], Tensor]] = {
            "attention": lambda: _attention(rest, elements, real, output),
            "leave-one-out": lambda: _leave_one_out(rest, elements, real, output, chunk),
            "integrated-gradients": lambda: _integrated_gradients(
                rest, elements, real, output, steps, baseline
            ),
        }
        suited = method_for(model, x.shape[1])
        whole = not elements.is_floating_point()  # which has no gradient
        methods["auto"] = methods["leave-one-out" if whole and suited != "attention" else suited]
        values = choose("method", method, methods)
    return values.masked_fill(~real, 0)


def strongest_neighbours(
    W: Float[Tensor, "n n"], element: int, k: int
) -> tuple[Int[Tensor, " m"], Float[Tensor, " m"]]:
    """The k other elements that an element listens to most over one set's graph, and their weights.

    They come in falling order, equal weights in the order of the elements. What has no weight, as padding,
    is left out; so there may be fewer than k.

    Args:
        W: the graph of one set, e.g. ``model.latent_graph(x)[0]``.
        element: who listens.
        k: how many to name.

    >>> W = torch.tensor([[0.5, 0.1, 0.4, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.0] * 4])
    >>> strongest_neighbours(W, 0, 3)
    (tensor([2, 1]), tensor([0.4000, 0.1000]))
    """
    if W.dim() != 2 or W.shape[0] != W.shape[1]:
        raise ValueError(f"W must be the graph [n, n] of one set, got {list(W.shape)}")
    if not 0 <= element < len(W):
        raise ValueError(f"element must lie between 0 and below the {len(W)} elements, got {element}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    row = W[element].detach().clone()
    row[element] = 0
    weights, elements = row.sort(descending=True, stable=True)
    heard = min(k, int(weights.count_nonzero()))
    return elements[:heard], weights[:heard]


class _Encoded(nn.Module):
    """Takes the place of an encoder whose work is done."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x


def _after_encoder(model: nn.Module, x: Elements, mask: Tensor) -> tuple[nn.Module, Tensor]:
    """The part of the model in which elements meet, and what enters it."""
    known = type(model).forward in (DMPS.forward, Layered.forward)  # an own one may do more with x
    if known and isinstance(model, DMPS | Layered) and type(model.encoder) in (MLP, ElementEncoder):
        rest = copy.copy(model)
        rest._modules = rest._modules.copy()  # else the model itself would lose its encoder
        rest.encoder = _Encoded()
        return rest, expand_shared(model.encoder(x, mask), mask)
    return model, x.expand() if isinstance(x, Shared) else x


def _chosen(out: Tensor, output: int) -> Tensor:
    if not 0 <= output < out.shape[1]:
        raise ValueError(f"output must lie between 0 and below the {out.shape[1]} of the model, got {output}")
    return out[:, output]


def method_for(model: nn.Module, elements: int, *, most: int = ONE_BY_ONE) -> Method:
    """How to tell what counts: by attention where the model has any, else at a cost that can be borne.

    Args:
        model: any ``(x, mask) → [b, k]``.
        elements: of the largest set.
        most: up to so many elements, each is left out in turn; of more, gradients are taken.

    >>> method_for(nn.Identity(), 10), method_for(nn.Identity(), 10_000)
    ('leave-one-out', 'integrated-gradients')
    """
    if _attends(model):
        return "attention"
    return "leave-one-out" if elements <= most else "integrated-gradients"


def _attends(model: nn.Module) -> bool:
    return callable(getattr(getattr(model, "pool", None), "attention", None))


def _attention(model: nn.Module, x: Tensor, mask: Tensor, output: int) -> Tensor:
    if not _attends(model):
        raise ValueError(f"attention needs a model with an attention pool, got {type(model).__name__}")
    weights: list[Tensor] = []

    def look(pool: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        weights.append(pool.attention(*inputs, **keywords))

    hook = model.get_submodule("pool").register_forward_pre_hook(look, with_kwargs=True)
    try:
        _chosen(model(x, mask), output)
    finally:
        hook.remove()
    if weights[-1].shape != mask.shape:
        raise ValueError(
            f"attention must have one weight for each element, {list(mask.shape)}, "
            f"got {list(weights[-1].shape)}"
        )
    return weights[-1]


def _leave_one_out(model: nn.Module, x: Tensor, mask: Tensor, output: int, chunk: int | None) -> Tensor:
    n = mask.shape[1]
    chunk = max(1, PAIRS // max(1, n * n)) if chunk is None else chunk
    whole = _chosen(model(x, mask), output)
    values = whole.new_zeros(mask.shape)
    for i, real in enumerate(mask):
        elements = real.nonzero().squeeze(1)
        for start in range(0, len(elements), chunk):
            left_out = elements[start : start + chunk]
            others = real & (torch.arange(n, device=x.device) != left_out.unsqueeze(1))
            alike = x[i].expand(len(left_out), *x.shape[1:])  # one set many times, without copying it
            values[i, left_out] = whole[i] - _chosen(model(alike, others), output)
    return values


def _integrated_gradients(
    model: nn.Module, x: Tensor, mask: Tensor, output: int, steps: int, baseline: str
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
        if out.requires_grad:  # what is left of an empty set may not depend on it
            slope += torch.autograd.grad(out, between, materialize_grads=True)[0] / steps
    return ((x - start) * slope).unsqueeze(-1).flatten(2).sum(2)
