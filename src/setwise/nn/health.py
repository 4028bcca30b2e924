"""Health of a learned graph: does it separate elements, or has it collapsed?

A graph with equal weights passes on only the mean of the set; the identity passes on no messages. The loss
shows neither, but the number of effective neighbours does: it is exp of the mean row entropy of W, n for the
uniform graph and 1 for the identity.
"""

import logging
import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise.functional import center
from setwise.nn._modes import eval_mode
from setwise.nn.blocks import Gamma
from setwise.nn.graph import LearnedGraph
from setwise.nn.layers import expand_shared
from setwise.nn.operators.base import gaussian_form
from setwise.sets import Elements, Shared

ELEMENTS = 1024
"""Approximate number of elements to measure: a few sets, or some rows of a larger set."""
FLAT = 0.95
"""Absolute value from which a tanh output counts as saturated; its slope is below 0.1."""
UNIFORM, IDENTITY = 0.999, 0.01
"""Entropy relative to the uniform graph beyond which a graph counts as collapsed; with σ at the median
distance it starts at 0.9 to 0.999."""

log = logging.getLogger("setwise")


@torch.no_grad()
def graph_health(model: nn.Module, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> dict[str, float]:
    """Measure the learned graph of a model on some sets of a batch.

    Args:
        model: any model that contains a learned graph; the first one is measured.
        x: a batch of raw sets.
        mask: True at real elements.

    Returns:
        ``effective_neighbours``: exp of the mean row entropy of W. ``evenness``: that entropy divided by the
        uniform graph's, from 0 (identity) to 1. ``saturated``: the share of embedding outputs with almost no
        slope; for a relu, of units that are zero for every element. ``sigma``: the bandwidth. ``gamma``: the
        mean over the blocks, if they have one. A model without a learned graph has at most ``gamma``.

    >>> from setwise.nn.dmps import DMPS
    >>> health = graph_health(DMPS.build(3, 1), torch.randn(4, 10, 3))
    >>> sorted(health)
    ['effective_neighbours', 'evenness', 'gamma', 'saturated', 'sigma']
    >>> 1 <= health["effective_neighbours"] <= 10
    True
    """
    gammas = [part.value.item() for part in model.modules() if isinstance(part, Gamma)]
    health = {"gamma": sum(gammas) / len(gammas)} if gammas else {}
    graph = next((part for part in model.modules() if isinstance(part, LearnedGraph)), None)
    if graph is None or not all(x.shape[:2]):
        return health
    sets = slice(0, max(1, ELEMENTS // x.shape[1]))
    x = Shared(x.values, x.index[sets]) if isinstance(x, Shared) else x[sets]
    z, mask = _embedded(model, graph, x, None if mask is None else mask[sets])
    if z is None:
        return health
    real = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device) if mask is None else mask
    if not real.any():
        return health
    health |= {"saturated": saturation(z[real], graph.kernel.embed.activation), "sigma": graph.sigma.item()}
    W = weight_rows(graph, z, real)
    sizes = real.sum(1)
    if W is not None and (sizes > 1).any():
        several = (sizes > 1).nonzero().squeeze(1)
        shared = W[several].sum(-1) > 0.5  # rows of real elements
        entropy = mean_entropy(W[several][shared])
        largest = (shared * sizes[several].log().unsqueeze(1))[shared].mean().item()
        health |= {"effective_neighbours": math.exp(entropy), "evenness": entropy / largest}
    return health


def _embedded(
    model: nn.Module, graph: LearnedGraph, x: Elements, mask: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """The embedded elements of a forward pass and their mask; None if it embeds none."""
    embedded: list[tuple[Tensor, Tensor | None]] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...], z: Elements) -> None:
        real = inputs[1] if len(inputs) > 1 else None  # mask of the sets as the graph receives them
        embedded.append((expand_shared(z, real), real))

    hook = graph.kernel.embed.register_forward_hook(keep)
    try:
        with eval_mode(model):
            model(x, mask)
    finally:
        hook.remove()
    return embedded[0] if embedded else (None, None)


def mean_entropy(W: Float[Tensor, "*rows n"]) -> float:
    """The mean entropy of the rows of W.

    >>> round(math.exp(mean_entropy(torch.full((2, 5), 0.2))), 3)
    5.0
    """
    entropies: Tensor = torch.special.entr(W.double()).sum(-1)
    return entropies.mean().item()


def saturation(z: Float[Tensor, "m e"], activation: str) -> float:
    """The share of embedding outputs with almost no slope; for a relu, of units that are always zero.

    >>> saturation(torch.tensor([[0.99, -0.5], [-1.0, 0.2]]), "tanh")
    0.5
    """
    if activation == "tanh":
        flat = z.abs() > FLAT
    elif activation == "sigmoid":
        flat = (2 * z - 1).abs() > FLAT
    elif activation in ("relu", "gelu"):
        flat = (z <= 0).all(0)
    else:
        return 0.0
    return flat.float().mean().item()


def weight_rows(
    graph: LearnedGraph, z: Float[Tensor, "b n e"], mask: Bool[Tensor, "b n"]
) -> Float[Tensor, "b r n"] | None:
    """All rows of W for embedded elements, or a sample of a large set; None if W has no known form."""
    n = z.shape[1]
    if n <= ELEMENTS:
        return graph.normalize(graph.kernel.kernel(center(z, mask), graph.sigma), mask)
    try:
        softmax, temperature = gaussian_form(graph.kernel, graph.normalize)
    except ValueError:
        return None
    z = center(z, mask).double() / graph.sigma.double()
    real = mask.any(0).nonzero().squeeze(1)
    rows = real[torch.linspace(0, len(real) - 1, min(len(real), ELEMENTS // 8), device=z.device).long()]
    log_K = -0.5 * torch.cdist(z[:, rows], z).square()
    logits = (log_K.exp() if softmax else log_K) / temperature
    W = logits.masked_fill(~mask.unsqueeze(1), -math.inf).softmax(-1)
    return W.nan_to_num(0).masked_fill(~mask[:, rows].unsqueeze(2), 0)


class CollapseWatch:
    """Warn once if a graph is collapsed in two evaluations in a row.

    >>> watch = CollapseWatch()
    >>> [watch.look({"evenness": evenness}) for evenness in (1.0, 0.4, 1.0)]
    [False, False, False]
    """

    def __init__(self) -> None:
        self.before = False
        self.warned = False

    def look(self, health: dict[str, float]) -> bool:
        """Record an evaluation; return whether it gave a warning."""
        evenness = health.get("evenness", 0.5)
        collapsed = evenness <= IDENTITY or evenness >= UNIFORM  # NaN is neither
        warn = collapsed and self.before and not self.warned
        self.before = collapsed
        if warn:
            self.warned = True
            log.warning("%s", collapse_message(health))
        return warn


def collapse_message(health: dict[str, float]) -> str:
    """Describe a collapsed graph and what to do about it.

    >>> collapse_message({"evenness": 1.0, "effective_neighbours": 9.97, "saturated": 0.9, "sigma": 1.0})
    'the latent graph has collapsed to the uniform graph: 9.97 effective neighbours, sigma 1, 90 % of ...'
    """
    facts = (
        f"{health['effective_neighbours']:.2f} effective neighbours, sigma {health['sigma']:.3g}, "
        f"{health['saturated']:.0%} of the embedding saturated".replace("%", " %")
    )
    if health["evenness"] > 0.5:
        return (
            f"the latent graph has collapsed to the uniform graph: {facts}. Elements only receive the mean "
            "of their set. Initialise sigma from the data (initialize_bandwidth), or lower the learning rate"
        )
    return (
        f"the latent graph has collapsed to the identity: {facts}. Elements receive no messages. Start with "
        "a larger sigma, or compare with a model without blocks (depth=0): the task may not need messages"
    )
