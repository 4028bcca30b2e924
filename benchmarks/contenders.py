"""Models of the scaling benchmarks: our graphs, the package's baselines, and peers from other packages.

All models have width 64 and three layers, map [b, n, 64] with an encoder layer, and predict two classes. The
feed-forward part of a TransformerEncoder layer has width 64, too, as in SAB and in our blocks. torchmil's
models have one output by design and are trained with binary cross-entropy. The peers are optional, ``pip
install 'setwise[peers]'``, and imported when built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import torch
from torch import Tensor, nn

import setwise as sw

DIM, HIDDEN, DEPTH, HEADS, INDUCING, NEIGHBOURS, CLASSES = 64, (64, 128), 3, 4, 32, 16, 2
SIGMA = 8.0  # bandwidth of the kernel products, where distances are about √128

Step = Callable[[], None]


@dataclass(frozen=True)
class Contender:
    """A model to compare.

    Args:
        label: name in tables and figures.
        package: package that provides it.
        make: ``(n, sets=1) → step``; a step is one forward and backward pass. Must be picklable.
        kind: ours, a baseline of this package, a peer, or a product with a kernel matrix alone.
    """

    label: str
    package: str
    make: Callable[..., Step]
    kind: Literal["ours", "baseline", "peer", "product"]

    @property
    def version(self) -> str | None:
        """Version of the package; None if it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


def train(build: Callable[[], nn.Module], n: int, sets: int = 1, dim: int = DIM) -> Step:
    """Training step without optimiser on sets of n elements."""
    torch.manual_seed(0)
    x, y = torch.randn(sets, n, dim), torch.arange(sets) % CLASSES
    model = build()
    if isinstance(model, sw.DMPS):
        model.initialize_bandwidth(x[:, :512])

    def step() -> None:
        out = model(x)
        if out.dim() == 1:
            nn.functional.binary_cross_entropy_with_logits(out, y.float()).backward()
        else:
            nn.functional.cross_entropy(out, y).backward()
        model.zero_grad()

    return step


def dmps(graph: Any) -> nn.Module:
    return sw.DMPS.build(
        DIM, CLASSES, dim=DIM, hidden=HIDDEN, depth=DEPTH, block="denoising", graph=graph, pool="mean"
    )


def waves(features: int) -> nn.Module:
    return dmps(sw.nn.RandomFeatureGraph(DIM, HIDDEN, features=features))


def nearest() -> nn.Module:
    return dmps(sw.nn.NeighbourGraph(DIM, HIDDEN, k=NEIGHBOURS))


def set_transformer(inducing: int | None) -> nn.Module:
    return sw.SetTransformer.build(
        DIM, CLASSES, dim=DIM, heads=HEADS, depth=DEPTH, inducing=inducing, pool="mean"
    )


def encoder() -> nn.Sequential:
    """First layer of a peer, the same as that of DMPS."""
    return nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU())


class Averaged(nn.Module):
    """Encoder, layers of a peer, mean pooling, linear head."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.encoder, self.layers, self.head = encoder(), layers, nn.Linear(DIM, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Raw outputs."""
        out: Tensor = self.head(self.layers(self.encoder(x)).mean(1))
        return out


def transformer_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, dim_feedforward=DIM, dropout=0.0, batch_first=True)
    return Averaged(nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False))


class Aggregated(nn.Module):
    """Encoder, PyG's Set Transformer with its pool (PMA, one seed), linear head."""

    def __init__(self) -> None:
        from torch_geometric.nn.aggr import SetTransformerAggregation

        super().__init__()
        self.encoder, self.head = encoder(), nn.Linear(DIM, CLASSES)
        self.aggregation = SetTransformerAggregation(
            DIM, num_seed_points=1, num_encoder_blocks=DEPTH, num_decoder_blocks=0, heads=HEADS
        )

    def forward(self, x: Tensor) -> Tensor:
        """Raw outputs; PyG expects the elements of all sets concatenated, with their set index."""
        b, n, _ = x.shape
        index = torch.arange(b).repeat_interleave(n)
        out: Tensor = self.head(self.aggregation(self.encoder(x).flatten(0, 1), index))
        return out


def induced() -> nn.Module:
    from torch_geometric.nn.aggr.utils import InducedSetAttentionBlock

    blocks = (InducedSetAttentionBlock(DIM, INDUCING, heads=HEADS, layer_norm=False) for _ in range(DEPTH))
    return Averaged(nn.Sequential(*blocks))


def abmil() -> nn.Module:
    from torchmil.models import ABMIL

    model: nn.Module = ABMIL(in_shape=(DIM,), att_dim=DIM, feat_ext=encoder())
    return model


def transmil() -> nn.Module:
    from torchmil.models import TransMIL

    model: nn.Module = TransMIL(
        in_shape=(DIM,), att_dim=DIM, n_layers=DEPTH, n_heads=HEADS, n_landmarks=INDUCING, feat_ext=encoder()
    )
    return model


def product(multiply: Callable[[], Callable[[Tensor], Tensor]], n: int, sets: int = 1) -> Step:
    """Forward and backward pass of D⁻¹ K(x, x) x with a Gaussian kernel K with row sums D and learned σ."""
    torch.manual_seed(0)
    x = torch.randn(sets, n, DIM, requires_grad=True)
    function = multiply()

    def step() -> None:
        function(x).square().mean().backward()
        x.grad = None

    return step


class NoEmbedding(nn.Module):
    """Identity embedding: the kernel reads the features directly."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return x."""
        return x


def streamed_product() -> Callable[[Tensor], Tensor]:
    graph: Any = sw.nn.StreamedGraph(DIM, (DIM,), sigma=SIGMA, normalize=sw.functional.row_normalize)
    graph.kernel.embed = NoEmbedding()

    def multiply(x: Tensor) -> Tensor:
        out: Tensor = graph(x) @ x
        return out

    return multiply


def keops_product() -> Callable[[Tensor], Tensor]:
    import pykeops
    from pykeops.torch import LazyTensor

    pykeops.set_verbose(False)
    log_sigma = torch.tensor(SIGMA).log().requires_grad_()

    def multiply(x: Tensor) -> Tensor:
        z = x / (2**0.5 * log_sigma.exp())
        K = (-((LazyTensor(z[:, :, None]) - LazyTensor(z[:, None])) ** 2).sum(-1)).exp()
        out: Tensor = K @ torch.cat([x, torch.ones_like(x[..., :1])], -1)  # row sums in the same pass
        return out[..., :-1] / out[..., -1:]

    return multiply


CONTENDERS = {
    "latent": Contender("D-DMPS, dense", "setwise", partial(train, partial(dmps, "latent")), "ours"),
    "streamed": Contender("D-DMPS, streamed", "setwise", partial(train, partial(dmps, "streamed")), "ours"),
    "linear": Contender(
        "D-DMPS, linear (64 features)", "setwise", partial(train, partial(dmps, "linear")), "ours"
    ),
    "linear-256": Contender(
        "D-DMPS, linear (256 features)", "setwise", partial(train, partial(waves, 256)), "ours"
    ),
    "neighbours": Contender(f"D-DMPS, {NEIGHBOURS} neighbours", "setwise", partial(train, nearest), "ours"),
    "auto": Contender("D-DMPS, auto", "setwise", partial(train, partial(dmps, "auto")), "ours"),
    "sab": Contender(
        "Set Transformer, SAB", "setwise", partial(train, partial(set_transformer, None)), "baseline"
    ),
    "isab": Contender(
        f"Set Transformer, ISAB({INDUCING})",
        "setwise",
        partial(train, partial(set_transformer, INDUCING)),
        "baseline",
    ),
    "encoder": Contender("torch TransformerEncoder", "torch", partial(train, transformer_encoder), "peer"),
    "pyg-sab": Contender(
        "PyG SetTransformerAggregation", "torch_geometric", partial(train, Aggregated), "peer"
    ),
    "pyg-isab": Contender(f"PyG ISAB({INDUCING})", "torch_geometric", partial(train, induced), "peer"),
    "abmil": Contender("torchmil ABMIL", "torchmil", partial(train, abmil), "peer"),
    "transmil": Contender("torchmil TransMIL", "torchmil", partial(train, transmil), "peer"),
    "product": Contender(
        "Gaussian product, streamed", "setwise", partial(product, streamed_product), "product"
    ),
    "keops": Contender("Gaussian product, KeOps", "pykeops", partial(product, keops_product), "product"),
}
