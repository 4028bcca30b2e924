"""Every set function of the package, for the tests that all of them must pass."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

import setwise as sw

DIM = 4


@dataclass(frozen=True)
class Case:
    """A set function, how to make one, and what becomes of its output when the elements are permuted."""

    name: str
    make: Callable[[], nn.Module]
    kind: Literal["invariant", "equivariant", "graph"]
    smooth: bool = True
    """Whether finite differences find its gradient (a maximum or a threshold has kinks)."""
    constant: bool = False
    """Whether its output depends on the mask alone, so that there is nothing to differentiate."""

    def __str__(self) -> str:
        return self.name


def convolution() -> nn.Module:
    """Elements of DIM features as DIM × 1 images: an encoder that must not see padding."""
    return nn.Sequential(nn.Unflatten(-1, (1, DIM)), nn.Conv1d(1, 3, 2), nn.Tanh(), nn.Flatten())


def graph(**changes: object) -> sw.LatentGraph:
    return sw.LatentGraph(DIM, (6, 5), activation="tanh", **changes)


class WrittenOut(nn.Module):
    """A graph of many elements, whose weights are written out to be looked at like those of the others."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.graph(x, mask).to_dense()


def streamed(**changes: object) -> nn.Module:
    return WrittenOut(sw.nn.StreamedGraph(DIM, (6, 5), activation="tanh", **changes))


def linear(**changes: object) -> nn.Module:
    return WrittenOut(sw.nn.RandomFeatureGraph(DIM, (6, 5), activation="tanh", **changes))


def neighbours(**changes: object) -> nn.Module:
    return WrittenOut(sw.nn.NeighbourGraph(DIM, (6, 5), activation="tanh", **changes))


def dmps(**changes: object) -> sw.DMPS:
    arguments: dict[str, object] = {"dim": 6, "hidden": (5, 7), "activation": "tanh", "pool": "sum"}
    return sw.DMPS.build(DIM, 3, **(arguments | changes))


def contrast() -> sw.DMPS:
    moments = sw.nn.MLP(sw.nn.LocalMoments.features(DIM, 1), 6, activation="tanh")
    model = dmps(
        depth=0,
        encoder=sw.nn.LocalMoments(moments, dim=DIM, scales=(0.7,)),
        graph=sw.LatentGraph(6, (5, 7), activation="tanh"),
        pool=sw.nn.JoinedPool(sw.nn.MeanPool(), sw.nn.SumPool()),
    )
    model.blocks = nn.ModuleList(sw.nn.SetContrastBlock(6, activation="tanh") for _ in range(2))
    model.head = sw.nn.Dense(12, 3, activation="identity")
    return model


def distinct(**changes: object) -> nn.Module:
    arguments: dict[str, object] = {"dim": 6, "hidden": (5, 7), "activation": "tanh", "pool": "sum"}
    return sw.DistinctDMPS.build(DIM, 3, **(arguments | changes))


def deepsets(**changes: object) -> sw.DeepSets:
    arguments: dict[str, object] = {"dim": 6, "activation": "tanh", "pool": "sum"}
    return sw.DeepSets.build(DIM, 3, **(arguments | changes))


def set_transformer(**changes: object) -> sw.SetTransformer:
    arguments: dict[str, object] = {"dim": 6, "heads": 2}
    return sw.SetTransformer.build(DIM, 3, **(arguments | changes))


def pooled(**changes: object) -> sw.nn.PooledMIL:
    arguments: dict[str, object] = {"dim": 6, "hidden": 5, "activation": "tanh"}
    return sw.nn.PooledMIL.build(DIM, 3, **(arguments | changes))


def pointnet(**changes: object) -> nn.Module:
    """As in use, not in training, where batch norms let sets meet; and with statistics that show."""
    arguments: dict[str, object] = {
        "centers": (4, 2),
        "radius": (1.5, 2.5),
        "neighbours": (3, 2),
        "dims": ((5, 6), (6, 7), (7, 8)),
        "hidden": (6,),
    }
    model = sw.nn.PointNetPlusPlus.build(DIM, 3, **(arguments | changes))
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            nn.init.normal_(layer.running_mean, std=0.3)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return model.eval()


GRAPHS = [
    Case("latent", graph, "graph"),
    Case("latent-laplace", partial(graph, kernel=sw.functional.log_laplace_kernel), "graph"),
    Case("latent-matern32", partial(graph, kernel=sw.functional.log_matern32_kernel), "graph"),
    Case("latent-matern52", partial(graph, kernel=sw.functional.log_matern52_kernel), "graph"),
    Case("latent-super-gaussian", partial(graph, kernel=sw.functional.log_super_gaussian_kernel), "graph"),
    Case("latent-softmax", partial(graph, normalize=sw.functional.row_softmax), "graph"),
    Case(
        "latent-tempered",
        partial(graph, normalize=partial(sw.functional.row_normalize, temperature=2.0)),
        "graph",
    ),
    Case("streamed", streamed, "graph"),
    Case("streamed-softmax", partial(streamed, normalize=sw.functional.row_softmax), "graph"),
    Case(
        "streamed-tempered",
        partial(streamed, normalize=partial(sw.functional.row_softmax, temperature=0.5)),
        "graph",
    ),
    Case("linear", linear, "graph"),
    Case("linear-softmax", partial(linear, normalize=sw.functional.row_softmax), "graph"),
    Case("auto", partial(sw.nn.AutoGraph, DIM, (6, 5), activation="tanh"), "graph"),
    Case("neighbours-2", partial(neighbours, k=2), "graph", smooth=False),
    Case("neighbours-all", partial(neighbours, k=9), "graph"),
    Case("neighbours-softmax", partial(neighbours, k=9, normalize=sw.functional.row_softmax), "graph"),
    Case("neighbours-delta", partial(neighbours, delta=0.2), "graph", smooth=False),
    Case("uniform", sw.nn.UniformGraph, "graph", constant=True),
    Case("identity", sw.nn.IdentityGraph, "graph", constant=True),
    Case(
        "sparsified",
        lambda: sw.nn.SparseGraph(graph(), partial(sw.functional.sparsify, delta=0.2)),
        "graph",
        smooth=False,
    ),
    Case(
        "top-2", lambda: sw.nn.SparseGraph(graph(), partial(sw.functional.top_k, k=2)), "graph", smooth=False
    ),
]
ENCODERS = [
    Case("mlp", lambda: sw.nn.MLP(DIM, 6, 5, activation="tanh"), "equivariant"),
    Case(
        "local-moments",
        lambda: sw.nn.LocalMoments(
            sw.nn.MLP(sw.nn.LocalMoments.features(DIM, 2), 5, activation="tanh"), dim=DIM, scales=(0.7, 1.5)
        ),
        "equivariant",
    ),
    Case("element-encoder", lambda: sw.nn.ElementEncoder(convolution()), "equivariant"),
    Case(
        "rescale",
        lambda: sw.nn.ElementEncoder(sw.nn.Rescale(torch.linspace(-1, 1, DIM), torch.linspace(0, 2, DIM))),
        "equivariant",
    ),
]
LAYERS = [
    Case("mean-et", lambda: sw.nn.EquivariantLayer(DIM, 5, pool="mean", activation="tanh"), "equivariant"),
    Case(
        "max-et",
        lambda: sw.nn.EquivariantLayer(DIM, 5, pool="max", activation="tanh"),
        "equivariant",
        smooth=False,
    ),
    Case("sab", lambda: sw.nn.SetAttentionBlock(DIM, heads=2), "equivariant"),
    Case("sab-norm", lambda: sw.nn.SetAttentionBlock(DIM, heads=2, norm=True), "equivariant"),
    Case("isab", lambda: sw.nn.InducedSetAttentionBlock(DIM, inducing=3, heads=2), "equivariant"),
    Case(
        "isab-norm",
        lambda: sw.nn.InducedSetAttentionBlock(DIM, inducing=3, heads=2, norm=True),
        "equivariant",
    ),
]
POOLS = [
    Case("sum-pool", sw.nn.SumPool, "invariant"),
    Case("mean-pool", sw.nn.MeanPool, "invariant"),
    Case("max-pool", sw.nn.MaxPool, "invariant", smooth=False),
    Case("attention-pool", lambda: sw.nn.AttentionPool(DIM, 5), "invariant"),
    Case("gated-attention-pool", lambda: sw.nn.GatedAttentionPool(DIM, 5), "invariant"),
    Case("joined-pool", lambda: sw.nn.JoinedPool(sw.nn.MeanPool(), sw.nn.SumPool()), "invariant"),
    Case("pma", lambda: sw.nn.MultiheadAttentionPool(DIM, heads=2), "invariant"),
    Case("pma-seeds", lambda: sw.nn.MultiheadAttentionPool(DIM, seeds=3, heads=2, norm=True), "invariant"),
]
MODELS = [
    Case("v-dmps", partial(dmps, block="message-passing"), "invariant"),
    Case("r-dmps", partial(dmps, block="residual"), "invariant"),
    Case("contrast", contrast, "invariant"),
    Case("d-dmps-ldc", partial(dmps, block="denoising"), "invariant"),
    Case("d-dmps-fdc", partial(dmps, block="denoising", gamma=0.5), "invariant"),
    Case("d-dmps-ug", partial(dmps, graph="uniform"), "invariant"),
    Case(
        "d-dmps-softmax",
        lambda: dmps(graph=sw.LatentGraph(6, (5, 7), activation="tanh", normalize=sw.functional.row_softmax)),
        "invariant",
    ),
    Case("pnorm-1", lambda: dmps(block=lambda: sw.nn.PNormBlock(6, p=1.0, activation="tanh")), "invariant"),
    Case("pnorm-1.5", lambda: dmps(block=lambda: sw.nn.PNormBlock(6, p=1.5, activation="tanh")), "invariant"),
    Case("dmps-streamed", partial(dmps, graph="streamed"), "invariant"),
    Case("dmps-linear", partial(dmps, graph="linear"), "invariant"),
    Case(
        "dmps-auto-streamed",
        lambda: dmps(graph=sw.nn.AutoGraph(6, (5, 7), activation="tanh", memory=0.0)),
        "invariant",
    ),
    Case(
        "dmps-auto-linear",
        lambda: dmps(graph=sw.nn.AutoGraph(6, (5, 7), activation="tanh", exact_up_to=0)),
        "invariant",
    ),
    Case(
        "dmps-neighbours",
        lambda: dmps(graph=sw.nn.NeighbourGraph(6, (5, 7), activation="tanh", k=3)),
        "invariant",
        smooth=False,
    ),
    Case("dmps-max", partial(dmps, pool="max"), "invariant", smooth=False),
    Case("dmps-mean", partial(dmps, pool="mean"), "invariant"),
    Case("dmps-attention", partial(dmps, pool="attention"), "invariant"),
    Case("dmps-depth-0", partial(dmps, depth=0), "invariant"),
    Case(
        "dmps-encoder",
        lambda: dmps(dim=9, encoder=sw.nn.ElementEncoder(convolution())),
        "invariant",
    ),
]
COUNTERS = [
    Case("distinct", distinct, "invariant"),
    Case(
        "distinct-super-gaussian",
        lambda: distinct(dim=DIM, graph=graph(kernel=sw.functional.log_super_gaussian_kernel), depth=1),
        "invariant",
    ),
]
BASELINES = [
    Case("deepsets-mean", partial(deepsets, transformation="mean"), "invariant"),
    Case("deepsets-max", partial(deepsets, transformation="max", pool="max"), "invariant", smooth=False),
    Case("deepsets-none", partial(deepsets, transformation="none"), "invariant"),
    Case("set-transformer-sab-pma", set_transformer, "invariant"),
    Case("set-transformer-isab-pma", partial(set_transformer, inducing=3), "invariant"),
    Case("set-transformer-isab-mean", partial(set_transformer, inducing=3, pool="mean"), "invariant"),
    Case("set-transformer-norm", partial(set_transformer, inducing=3, norm=True), "invariant"),
    Case("attention-mil", partial(pooled, pool="attention"), "invariant"),
    Case("gated-mil", partial(pooled, pool="gated"), "invariant"),
    Case("mean-mil", partial(pooled, pool="mean"), "invariant"),
    Case("max-mil", partial(pooled, pool="max"), "invariant", smooth=False),
    Case("pointnet++", pointnet, "invariant", smooth=False),
    Case("pointnet++-no-norm", partial(pointnet, norm=False), "invariant", smooth=False),
]
CASES = [*GRAPHS, *ENCODERS, *LAYERS, *POOLS, *MODELS, *COUNTERS, *BASELINES]


def padded(sizes: list[int], garbage: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random sets of these sizes, in one tensor, with ``garbage`` in the padding."""
    generator = torch.Generator().manual_seed(seed)
    batch = sw.SetBatch.pack([torch.randn(n, DIM, generator=generator) for n in sizes])
    assert batch.mask is not None
    return batch.x.masked_fill(~batch.mask[..., None], garbage), batch.mask
