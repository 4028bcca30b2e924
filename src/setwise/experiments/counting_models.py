"""Models of the counting experiment: the paper's rows, ablations, and our own."""

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
    """Untrained model of a row; σ starts at the median distance in the first batch."""
    model = ARCHITECTURES[row]()
    sw.nn.initialize(model, sw.training.generator("weights", seed))
    if isinstance(model.pool, sw.nn.SumPool):
        nn.init.zeros_(next(model.head.parameters()))  # otherwise a sum over ten elements gives extreme rates
    if isinstance(model, sw.DMPS):
        if row == "xavier":
            _xavier_initialize(model, sw.training.generator("weights", "xavier", seed))
        model.initialize_bandwidth(first.x, first.mask)
        if row == "fixed-sigma" and isinstance(model.graph, sw.LatentGraph):
            nn.init.constant_(model.graph.kernel.log_sigma, -0.5 * math.log(2))
    return model


def _encoder() -> sw.nn.ElementEncoder:
    """Four Conv(·, 10, 3, ReLU, MaxPool(2, 2)) layers, 105 × 105 → 10 × 4 × 4 = 160 features."""
    first, *rest = (sw.nn.ConvPool(i, CHANNELS) for i in (1, CHANNELS, CHANNELS, CHANNELS))
    return sw.nn.ElementEncoder(nn.Sequential(sw.nn.InkConvPool(first, rest[0]), *rest[1:], nn.Flatten()))


def _dmps(**parts: Any) -> sw.DMPS:
    """Three blocks SDB(160, 256, 512, tanh, tanh, tanh, σ, γ) or variants; SP(160) is max pooling."""
    defaults: dict[str, Any] = {"activation": "tanh", "pool": "max", "encoder": _encoder()}
    return sw.DMPS.build(DIM, 1, dim=DIM, hidden=HIDDEN, **(defaults | parts))


def _deepsets(transformation: Literal["mean", "max"]) -> sw.DeepSets:
    return sw.DeepSets.build(
        DIM, 1, dim=DIM, transformation=transformation, activation="tanh", pool="max", encoder=_encoder()
    )


def _set_transformer() -> sw.SetTransformer:
    """Two attention blocks and PMA, as in Lee et al.; eight heads of 20 features."""
    return sw.SetTransformer.build(DIM, 1, dim=DIM, heads=8, encoder=_encoder())


class _TwoLayerBlock(nn.Module):
    """Set-denoising block as written in the appendix: τ(((1 − γ) X + γ τ(W X H)) H′)."""

    def __init__(self, dim: int, gamma: sw.nn.Gamma) -> None:
        super().__init__()
        self.gamma = gamma
        self.message = sw.nn.MessagePassingBlock(dim, activation="tanh")
        self.dense = sw.nn.NearIdentity(dim, activation="tanh")

    def forward(self, x: Tensor, W: Any) -> Tensor:
        """Apply the block."""
        out: Tensor = self.dense(torch.lerp(x, self.message(x, W), self.gamma.value))
        return out


def _two_layers() -> sw.DMPS:
    gamma = sw.nn.Gamma(0.5, learn=False)
    return _dmps(block=lambda: _TwoLayerBlock(DIM, gamma))


def _softmax_of_kernel() -> sw.DMPS:
    """W = softmax(K), as printed in the paper."""
    graph = sw.LatentGraph(DIM, HIDDEN, activation="tanh", normalize=sw.functional.row_softmax)
    return _dmps(block="denoising", gamma=0.5, graph=graph)


def _xavier_initialize(model: sw.DMPS, generator: torch.Generator) -> None:
    """Initialise the linear layers of graph and blocks with Xavier's uniform distribution, gain of tanh."""
    for part in (model.graph, model.blocks):
        for layer in part.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight, gain=5 / 3, generator=generator)
                nn.init.zeros_(layer.bias)


def _distinct() -> sw.DMPS:
    """Ours: D-DMPS w/ LDC with distinct pooling and a super-Gaussian kernel."""
    graph = sw.LatentGraph(DIM, HIDDEN, activation="tanh", kernel=sw.functional.log_super_gaussian_kernel)
    return sw.DistinctDMPS.build(
        DIM, 1, dim=DIM, graph=graph, activation="tanh", pool="sum", encoder=_encoder()
    )


class _Downsample(nn.Module):
    """Downsample drawings of 105 × 105 pixels to grey images of 26 × 26 by averaging 4 × 4 pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """Downsample images ``[m, 1, 105, 105]``."""
        return avg_pool2d(x.float(), 4).contiguous(memory_format=torch.channels_last)


def _stage(channels: int, out_channels: int) -> nn.Sequential:
    """Convolution, 2 × 2 max pooling, batch norm, ReLU; pooling first quarters the cost of the norm."""
    convolution = nn.Conv2d(channels, out_channels, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.MaxPool2d(2), BatchNorm(out_channels), nn.ReLU(inplace=True))


def _distinct_wide() -> sw.DMPS:
    """Ours: distinct pooling over the features of a wider encoder, as used in few-shot learning.

    The embedding is one linear layer, which cannot saturate.
    """
    stages = [_stage(i, o) for i, o in pairwise((1, *WIDE))]
    dim = 3 * 3 * WIDE[-1]  # 26 → 13 → 6 → 3
    graph = sw.LatentGraph(dim, (128,), activation="identity", kernel=sw.functional.log_super_gaussian_kernel)
    encoder = sw.nn.ElementEncoder(nn.Sequential(_Downsample(), *stages, nn.Flatten()))
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
    "distinct-wide": _distinct_wide,
    "softmax-k": _softmax_of_kernel,
    "sum-pooling": lambda: _dmps(block="denoising", gamma=0.5, pool="sum"),
    "xavier": lambda: _dmps(block="denoising", gamma=0.5),
    "fixed-sigma": lambda: _dmps(block="denoising", gamma=0.5),
    "two-layers": _two_layers,
    "fresh": lambda: _dmps(block="denoising", gamma=0.5),
}
