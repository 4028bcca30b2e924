"""The models of the counting experiment: the paper's rows, their ablations, and our own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import setwise as sw
from setwise.nn.layers import BatchNorm

CHANNELS, DIM, HIDDEN, WIDE = 10, 160, (256, 512), (48, 64, 64)


def build(row: str, seed: int, first: sw.SetBatch) -> nn.Module:
    """The untrained model of a row; σ starts at the median distance over the first batch."""
    model = ARCHITECTURES[row]()
    sw.nn.initialize(model, sw.training.generator("weights", seed))
    if isinstance(model.pool, sw.nn.SumPool):
        nn.init.zeros_(next(model.head.parameters()))  # a sum over ten elements would start at absurd rates
    if isinstance(model, sw.DMPS):
        if row == "xavier":
            _start_by_xavier(model, sw.training.generator("weights", "xavier", seed))
        model.initialize_bandwidth(first.x, first.mask)
        if row == "fixed-sigma" and isinstance(model.graph, sw.LatentGraph):
            nn.init.constant_(model.graph.kernel.log_sigma, -0.5 * math.log(2))
    return model


def _encoder() -> sw.nn.ElementEncoder:
    """Conv(1, 10, 3, ReLU, MaxPool(2, 2)) and three more, 105 × 105 → 10 × 4 × 4 = 160."""
    first, *rest = (sw.nn.ConvPool(i, CHANNELS) for i in (1, CHANNELS, CHANNELS, CHANNELS))
    return sw.nn.ElementEncoder(nn.Sequential(sw.nn.InkConvPool(first, rest[0]), *rest[1:], nn.Flatten()))


def _dmps(**parts: Any) -> sw.DMPS:
    """SDB(160, 256, 512, tanh, tanh, tanh, σ, γ) and its relatives, three of them; SP(160) is the maximum."""
    usual: dict[str, Any] = {"activation": "tanh", "pool": "max", "encoder": _encoder()}
    return sw.DMPS.build(DIM, 1, dim=DIM, hidden=HIDDEN, **(usual | parts))


def _deepsets(transformation: Literal["mean", "max"]) -> sw.DeepSets:
    return sw.DeepSets.build(
        DIM, 1, dim=DIM, transformation=transformation, activation="tanh", pool="max", encoder=_encoder()
    )


def _set_transformer() -> sw.SetTransformer:
    """Two blocks and PMA, as Lee et al. count; 160 features are eight heads of twenty."""
    return sw.SetTransformer.build(DIM, 1, dim=DIM, heads=8, encoder=_encoder())


class _TwoLayerBlock(nn.Module):
    """The set-denoising block as the appendix words it: τ(((1 − γ) X + γ τ(W X H)) H′)."""

    def __init__(self, dim: int, gamma: sw.nn.Gamma) -> None:
        super().__init__()
        self.gamma = gamma
        self.message = sw.nn.MessagePassingBlock(dim, activation="tanh")
        self.dense = sw.nn.NearIdentity(dim, activation="tanh")

    def forward(self, x: Tensor, W: Any) -> Tensor:
        """One step."""
        out: Tensor = self.dense(torch.lerp(x, self.message(x, W), self.gamma.value))
        return out


def _two_layers() -> sw.DMPS:
    gamma = sw.nn.Gamma(0.5, learn=False)
    return _dmps(block=lambda: _TwoLayerBlock(DIM, gamma))


def _softmax_of_kernel() -> sw.DMPS:
    """W = softmax(K), as the paper prints it."""
    graph = sw.LatentGraph(DIM, HIDDEN, activation="tanh", normalize=sw.functional.row_softmax)
    return _dmps(block="denoising", gamma=0.5, graph=graph)


def _start_by_xavier(model: sw.DMPS, generator: torch.Generator) -> None:
    """Draw all linear layers of a DMPS but the last from Xavier's law with the gain of tanh."""
    for part in (model.graph, model.blocks):
        for layer in part.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, gain=5 / 3, generator=generator)
                nn.init.zeros_(layer.bias)


def _distinct() -> sw.DMPS:
    """Ours: as D-DMPS w/ LDC, with distinct pooling and a kernel that falls more steeply."""
    graph = sw.LatentGraph(DIM, HIDDEN, activation="tanh", kernel=sw.functional.log_super_gaussian_kernel)
    return sw.DistinctDMPS.build(
        DIM, 1, dim=DIM, graph=graph, activation="tanh", pool="sum", encoder=_encoder()
    )


class _Reduced(nn.Module):
    """Drawings of 105 × 105 pixels as grey images of 26 × 26, each pixel the mean of 4 × 4."""

    def forward(self, x: Tensor) -> Tensor:
        """Reduce the images ``[m, 1, 105, 105]``."""
        return avg_pool2d(x.float(), 4).contiguous(memory_format=torch.channels_last)


def _stage(channels: int, out_channels: int) -> nn.Sequential:
    """Convolution, 2 × 2 max pooling, batch norm, ReLU; pooling first leaves a quarter to normalise."""
    convolution = nn.Conv2d(channels, out_channels, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.MaxPool2d(2), BatchNorm(out_channels), nn.ReLU(inplace=True))


def _wide() -> sw.DMPS:
    """Ours: distinct pooling over the features of a wider encoder, as few-shot learning has it.

    The embedding is one linear layer, which cannot saturate.
    """
    stages = [_stage(i, o) for i, o in pairwise((1, *WIDE))]
    dim = 3 * 3 * WIDE[-1]  # 26 → 13 → 6 → 3
    graph = sw.LatentGraph(dim, (128,), activation="identity", kernel=sw.functional.log_super_gaussian_kernel)
    encoder = sw.nn.ElementEncoder(nn.Sequential(_Reduced(), *stages, nn.Flatten()))
    return sw.DistinctDMPS.build(dim, 1, dim=dim, depth=0, graph=graph, pool="sum", encoder=encoder)


ARCHITECTURES: Mapping[str, Callable[[], sw.DMPS | sw.DeepSets | sw.SetTransformer]] = {
    "deepsets-mean": lambda: _deepsets("mean"),
    "deepsets-max": lambda: _deepsets("max"),
    "set-transformer": _set_transformer,
    "v-dmps-ug": lambda: _dmps(block="message-passing", graph="uniform"),
    "d-dmps-ldc-ug": lambda: _dmps(block="denoising", graph="uniform"),
    "v-dmps": lambda: _dmps(block="message-passing"),
    "r-dmps": lambda: _dmps(block="residual"),
    "d-dmps-fdc": lambda: _dmps(block="denoising", gamma=0.5),
    "d-dmps-ldc": lambda: _dmps(block="denoising"),
    "distinct": _distinct,
    "distinct-wide": _wide,
    "softmax-k": _softmax_of_kernel,
    "sum-pooling": lambda: _dmps(block="denoising", gamma=0.5, pool="sum"),
    "xavier": lambda: _dmps(block="denoising", gamma=0.5),
    "fixed-sigma": lambda: _dmps(block="denoising", gamma=0.5),
    "two-layers": _two_layers,
    "fresh": lambda: _dmps(block="denoising", gamma=0.5),
}
