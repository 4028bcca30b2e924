"""Sets too large for one machine: processes hold parts of the elements and exchange only sums.

Messages depend on the other elements through Σ_j x_j and Φᵀ x, see `setwise.nn.operators.random_features`.
Each process sums over its own elements, and an all-reduce of (f + 1) · d numbers per block and direction adds
the results, regardless of the number of elements.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise import collectives
from setwise.functional import fill_padding
from setwise.nn.dmps import DMPS
from setwise.nn.graph import UniformGraph
from setwise.nn.layers import MLP, ElementEncoder, expand_shared
from setwise.nn.operators.auto import AutoGraph
from setwise.nn.operators.random_features import LowRankWeights, RandomFeatureGraph
from setwise.nn.pool import AttentionPool, JoinedPool, MaxPool, MeanPool, SumPool
from setwise.sets import Elements, Shared


class SplitElements(nn.Module):
    """A `DMPS` with a linear or uniform graph, for sets whose elements are divided among processes.

    Each process computes on its part of the elements and returns the outputs for the whole sets. With the
    mean of all processes' gradients, as in ``DistributedDataParallel``, training equals that of one process.

    Args:
        model: a model that encodes each element separately, with a linear or uniform graph and a sum, mean,
            max or attention pool, or a `JoinedPool` of them.
        whole: whether each process receives the whole sets and selects its part; otherwise it receives only
            its part, for sets that no machine can hold.

    >>> model, x = DMPS.build(3, 1, graph="linear"), torch.randn(2, 9, 3)
    >>> torch.allclose(SplitElements(model)(x), model(x), atol=1e-5)
    True
    """

    def __init__(self, model: nn.Module, *, whole: bool = True) -> None:
        super().__init__()
        if not isinstance(model, DMPS):
            raise TypeError(f"to split elements, the model must be a DMPS, got {type(model).__name__}")
        for what, part, known in (
            ("encoder", model.encoder, (MLP, ElementEncoder)),
            ("graph", model.graph, (RandomFeatureGraph, AutoGraph, UniformGraph)),
            *(("pool", pool, tuple(POOLS)) for pool in _joined(model.pool)),
        ):
            if not isinstance(part, known):
                names = ", ".join(kind.__name__ for kind in known)
                raise TypeError(
                    f"to split elements, {what} must be one of {names}, got {type(part).__name__}"
                )
        self.model = model
        self.whole = whole

    def forward(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b k"]:
        """The outputs for whole sets."""
        if isinstance(x, Shared):
            x = x.expand()
        if self.whole:
            part = collectives.share(x.shape[1])
            x, mask = x[:, part], None if mask is None else mask[:, part]
        features = expand_shared(self.model.encoder(x, mask), mask)
        features = self.model.pass_messages(features, weights(self.model.graph, features, mask))
        pooled = [pooled_over_all(pool, features, mask) for pool in _joined(self.model.pool)]
        out: Tensor = self.model.head(torch.cat(pooled, dim=-1))
        return out


def weights(graph: nn.Module, x: Tensor, mask: Tensor | None) -> LowRankWeights:
    """The graph over the elements of all processes."""
    if isinstance(graph, UniformGraph):
        return LowRankWeights(x.new_zeros(*x.shape[:2], 1), mask, constant=1.0, dtype=x.dtype, across=True)
    assert isinstance(graph, RandomFeatureGraph | AutoGraph)
    if isinstance(graph, AutoGraph):
        count = int(collectives.all_sum(torch.tensor(x.shape[1])))
        if graph.choice(len(x), count) != "linear":
            raise ValueError(
                f"graph='auto' is exact for sets of {count} elements, and an exact graph cannot be split "
                "among processes: use graph='linear' or exact_up_to=0"
            )
    features = graph.random_features
    with torch.autocast(x.device.type, enabled=False):
        z = graph.kernel.embedded(x, mask)
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        z = _centered(z, mask, shift=z.detach()) / graph.sigma.to(z.dtype)
        if not features.softmax:  # exponentials depend on the origin: its gradient counts
            z = _centered(z, mask, shift=z)
    return features.weights(z, mask, dtype=x.dtype, across=True)


def _centered(z: Tensor, mask: Tensor | None, *, shift: Tensor) -> Tensor:
    """Subtract the mean of ``shift`` over the elements of all processes; padding is zero."""
    mean = mean_over_all(MeanPool(), shift, mask)
    return fill_padding(z - mean.unsqueeze(1), mask)


# Pools, over the elements of all processes


def pooled_over_all(pool: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Pool the elements of all processes."""
    for kind, over_all in POOLS.items():
        if isinstance(pool, kind):
            return over_all(pool, fill_padding(x, mask), mask)
    raise TypeError(f"pool must be one of {[kind.__name__ for kind in POOLS]}, got {type(pool).__name__}")


def sum_over_all(pool: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_i x_i."""
    return collectives.all_sum(x.sum(1))


def mean_over_all(pool: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_i x_i / n."""
    x = fill_padding(x, mask)
    real = x.new_full((len(x), 1), x.shape[1]) if mask is None else mask.sum(1, keepdim=True).to(x.dtype)
    together = collectives.all_sum(torch.cat([x.sum(1), real], dim=-1))
    return together[:, :-1] / together[:, -1:].clamp(min=1)


def max_over_all(pool: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """The largest x_i of each feature; equal elements share the gradient."""
    known = fill_padding(x.detach(), mask, -torch.inf)
    lowest = known.new_full((len(x), x.shape[2]), -torch.inf)
    top = collectives.all_max(known.amax(1) if x.shape[1] else lowest)
    tops = (known == top.unsqueeze(1)) & top.isfinite().unsqueeze(1)
    ties = collectives.all_sum(tops.sum(1)).clamp(min=1)
    return collectives.all_sum((x * tops).sum(1) / ties)


def attention_over_all(pool: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Σ_i a_i x_i with a the softmax of the scores over all elements."""
    assert isinstance(pool, AttentionPool)
    scores = pool.scores(x)
    known = fill_padding(scores, mask, -torch.inf)
    top = collectives.all_max(known.detach().amax(1) if x.shape[1] else known.new_full((len(x),), -torch.inf))
    a = fill_padding((scores - top.masked_fill(top.isinf(), 0).unsqueeze(1)).exp(), mask).unsqueeze(1)
    together = collectives.all_sum(torch.cat([(a @ x).squeeze(1), a.sum(-1)], dim=-1))
    total = together[:, -1:]
    return together[:, :-1] / (total + (total == 0))


POOLS = {
    SumPool: sum_over_all,
    MeanPool: mean_over_all,
    MaxPool: max_over_all,
    AttentionPool: attention_over_all,
}


def _joined(pool: nn.Module) -> list[nn.Module]:
    return list(pool.pools) if isinstance(pool, JoinedPool) else [pool]
