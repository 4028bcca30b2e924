"""Deep Message Passing on Sets: Algorithm 1 of the paper, and a variant that counts distinct elements."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, finfo, nn

from setwise.functional import Propagator, dirichlet_energy, shares
from setwise.nn.blocks import Gamma, MessagePassingBlock, PNormBlock, SetDenoisingBlock, SetResidualBlock
from setwise.nn.graph import LatentGraph, UniformGraph
from setwise.nn.kernel import DeepKernel
from setwise.nn.layers import MLP, Dense, expand_shared
from setwise.nn.operators.auto import AutoGraph
from setwise.nn.operators.random_features import RandomFeatureGraph
from setwise.nn.operators.streamed import StreamedGraph
from setwise.nn.pool import AttentionPool, MaxPool, MeanPool, SumPool
from setwise.sets import Elements

T = TypeVar("T")


class DMPS(nn.Module):
    """Encode the elements, learn one graph over them, pass messages along it, pool, and read out.

    Every part is a module and can be replaced; `build` combines the usual ones.

    Args:
        encoder: ``(x, mask) → [b, n, d]``.
        graph: ``(x, mask) → W``, the same for all blocks.
        blocks: ``(x, W) → x``, applied in sequence.
        pool: ``(x, mask) → [b, d]``.
        head: ``[b, d] → [b, k]``, raw outputs; see `setwise.tasks` for their meaning.
    """

    def __init__(
        self,
        encoder: nn.Module,
        graph: nn.Module,
        blocks: Sequence[nn.Module],
        pool: nn.Module,
        head: nn.Module,
    ) -> None:
        super().__init__()
        without_edges = (StreamedGraph, RandomFeatureGraph, AutoGraph)
        if isinstance(graph, without_edges) and any(isinstance(b, PNormBlock) and b.p != 2 for b in blocks):
            raise TypeError(
                "PNormBlock needs a graph with single edges, such as LatentGraph or NeighbourGraph, "
                f"got {type(graph).__name__}"
            )
        self.encoder = encoder
        self.graph = graph
        self.blocks = nn.ModuleList(blocks)
        self.pool = pool
        self.head = head

    @classmethod
    def build(
        cls,
        in_dim: int,
        out_dim: int,
        *,
        dim: int = 64,
        hidden: tuple[int, ...] = (64, 128),
        depth: int = 3,
        block: Literal["message-passing", "denoising", "residual"] | Callable[[], nn.Module] = "denoising",
        gamma: float | Gamma | Sequence[Gamma] | None = None,
        graph: Literal["latent", "streamed", "linear", "auto", "uniform"] | nn.Module = "latent",
        pool: Literal["sum", "mean", "max", "attention"] | nn.Module = "mean",
        encoder: nn.Module | None = None,
        activation: str = "relu",
    ) -> "DMPS":
        """Build a model from sizes and names.

        Args:
            in_dim: features of a raw element.
            out_dim: outputs of the model.
            dim: features of an encoded element.
            hidden: widths of the deep kernel's layers (d_m, d_o).
            depth: number of blocks.
            block: kind of block, or a function that returns a module ``(x, W) → x``.
            gamma: γ of denoising blocks. Learned and shared by default; a number fixes it; a `Gamma`
                is shared by all blocks; a sequence has one per block.
            graph: the learned graph as a matrix (``"latent"``), in tiles (``"streamed"``: exact, little
                memory), by random features (``"linear"``: linear time) or chosen by size (``"auto"``); the
                ``"uniform"`` graph; or a module ``(x, mask) → W``.
            pool: pooling of the elements, or a module ``(x, mask) → [b, dim]``.
            encoder: a module ``(x, mask) → [b, n, dim]`` instead of one fully connected layer.
            activation: activation of all layers except the last.

        >>> model = DMPS.build(3, 40, dim=16, block="denoising", pool="max")
        >>> model(torch.randn(2, 100, 3)).shape
        torch.Size([2, 40])
        >>> model.latent_graph(torch.randn(2, 100, 3)).shape
        torch.Size([2, 100, 100])
        """
        if depth < 0:
            raise ValueError(f"depth must not be negative, got {depth}")
        if gamma is not None and block != "denoising":
            raise ValueError(f"gamma must be used with block='denoising', got block={block!r}")
        blocks: dict[str, Callable[[], list[nn.Module]]] = {
            "message-passing": lambda: [
                MessagePassingBlock(dim, activation=activation) for _ in range(depth)
            ],
            "denoising": lambda: [
                SetDenoisingBlock(dim, gamma=g, activation=activation) for g in _gamma_per_block(gamma, depth)
            ],
            "residual": lambda: [SetResidualBlock(dim, activation=activation) for _ in range(depth)],
        }

        def kernel() -> DeepKernel:
            return DeepKernel(dim, hidden, activation=activation)

        graphs: dict[str, Callable[[], nn.Module]] = {
            "latent": lambda: LatentGraph(kernel()),
            "streamed": lambda: StreamedGraph(kernel()),
            "linear": lambda: RandomFeatureGraph(kernel()),
            "auto": lambda: AutoGraph(kernel()),
            "uniform": UniformGraph,
        }
        return cls(
            encoder=MLP(in_dim, dim, activation=activation) if encoder is None else encoder,
            graph=choose("graph", graph, graphs) if isinstance(graph, str) else graph,
            blocks=choose("block", block, blocks)
            if isinstance(block, str)
            else [block() for _ in range(depth)],
            pool=choose("pool", pool, pools(dim)) if isinstance(pool, str) else pool,
            head=Dense(dim, out_dim, activation="identity"),
        )

    def forward(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b k"]:
        """Raw outputs, one row per set."""
        x, W = self.encode(x, mask)  # [b, n, d], and one static graph for all blocks
        x = self.pass_messages(x, W)
        return self.read_out(x, mask)  # [b, k]

    def encode(
        self, x: Elements, mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], Propagator]:
        """The encoded elements and the graph W over them."""
        features = self.encoder(x, mask)
        W: Propagator = self.graph(features, mask)  # embeds an element that sets share once
        return expand_shared(features, mask), W

    def pass_messages(
        self, x: Float[Tensor, "b n d"], W: Propagator, steps: list[Tensor] | None = None
    ) -> Float[Tensor, "b n d"]:
        """Apply the blocks to encoded elements; append the features after each one to ``steps``, if given."""
        for block in self.blocks:
            x = block(x, W)
            if steps is not None:
                steps.append(x)
        return x

    def read_out(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b k"]:
        """The raw outputs from the features after the last block."""
        out: Tensor = self.head(self.pool(x, mask))
        return out

    def latent_graph(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Propagator:
        """The graph W over the elements of each set."""
        _, W = self.encode(x, mask)
        return W

    def dirichlet_energies(
        self, x: Elements, mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b steps"]:
        """Roughness of the features over the graph, before the first block and after each one.

        Over-smoothing shows as a decrease towards zero, where all elements are equal.
        """
        steps, W = self.trajectory(x, mask)
        return torch.stack([dirichlet_energy(features, W) for features in steps], dim=-1)

    def trajectory(
        self, x: Elements, mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[list[Tensor], Propagator]:
        """The features before the first block and after each one, and the graph W."""
        features, W = self.encode(x, mask)
        steps = [features]
        self.pass_messages(features, W, steps)
        return steps, W

    @torch.no_grad()
    def initialize_bandwidth(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> "DMPS":
        """Initialise the kernel's bandwidth from a first batch of raw sets; call it once before training.

        See `DeepKernel.initialize_bandwidth`. A graph without a bandwidth is left unchanged.

        >>> model = DMPS.build(3, 1).initialize_bandwidth(1e3 * torch.randn(8, 20, 3))
        >>> bool(model.graph.sigma > 100)
        True
        """
        start = getattr(self.graph, "initialize_bandwidth", None)
        if callable(start):
            start(self.encoder(x, mask), mask)
        return self


def pools(dim: int) -> dict[str, Callable[[], nn.Module]]:
    """Constructors of the pools by their names in `build`."""
    return {"sum": SumPool, "mean": MeanPool, "max": MaxPool, "attention": lambda: AttentionPool(dim)}


def choose(what: str, name: str, table: Mapping[str, Callable[[], T]]) -> T:
    """Call the table's entry of this name.

    >>> choose("pool", "median", pools(8))
    Traceback (most recent call last):
    ValueError: pool must be one of ['attention', 'max', 'mean', 'sum'], got 'median'
    """
    if name not in table:
        raise ValueError(f"{what} must be one of {sorted(table)}, got {name!r}")
    return table[name]()


def _gamma_per_block(gamma: float | Gamma | Sequence[Gamma] | None, depth: int) -> Sequence[Gamma]:
    if isinstance(gamma, Sequence):
        if len(gamma) != depth:
            raise ValueError(f"expected one gamma for each of {depth} blocks, got {len(gamma)}")
        return gamma
    if gamma is None:
        gamma = Gamma()
    elif not isinstance(gamma, Gamma):
        gamma = Gamma(gamma, learn=False)
    return [gamma] * depth


class DistinctDMPS(DMPS):
    """DMPS in which similar elements count as one: log λ = log N + head(z / N).

    With deg_i = Σ_j K_ij from the learned kernel, an element has the share 1 / deg_i, so that m similar
    elements weigh as much as one. N = Σ_i 1 / deg_i is the effective number of distinct elements, and
    z = Σ_i x_i / deg_i is their sum (distinct pooling). The head learns a positive factor to N from the mean
    z / N. The count is therefore present, and differentiable through the kernel, from the first step on.

    Args:
        encoder: ``(x, mask) → [b, n, d]``.
        graph: a `LatentGraph`; its kernel gives the shares, its weights pass the messages.
        blocks: ``(x, W) → x``, applied in sequence.
        pool: ``(x, mask) → [b, d]`` of the elements x_i / (N deg_i), usually `SumPool`.
        head: ``[b, d] → [b, k]``, the logarithm of the factor.

    >>> import torch
    >>> model = DistinctDMPS.build(3, 1, dim=16, pool="sum")
    >>> model(torch.randn(2, 5, 3)).shape
    torch.Size([2, 1])
    >>> bool((model.effective_number(torch.ones(1, 5, 3)) - 1).abs() < 1e-5)  # five equal elements
    True
    """

    graph: LatentGraph

    def __init__(
        self,
        encoder: nn.Module,
        graph: nn.Module,
        blocks: Sequence[nn.Module],
        pool: nn.Module,
        head: nn.Module,
    ) -> None:
        if not isinstance(graph, LatentGraph):
            raise TypeError(f"graph must be a LatentGraph for distinct pooling, got {type(graph).__name__}")
        super().__init__(encoder, graph, blocks, pool, head)

    def forward(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b k"]:
        """The logarithm of the count, one row per set."""
        encoded = self.encoder(x, mask)
        log_K = self.graph.log_kernel(encoded, mask)
        features = expand_shared(encoded, mask)
        features = self.pass_messages(features, self.graph.normalize(log_K, mask).to(features.dtype))
        share = shares(log_K.exp(), mask).unsqueeze(-1)
        N = share.sum(1).clamp(min=finfo(share.dtype).tiny)  # zero for an empty set
        return N.log() + self.read_out(features * (share / N.unsqueeze(1)).to(features.dtype), mask)

    def effective_number(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, " b"]:
        """N = Σ_i 1 / deg_i: the effective number of distinct elements in each set."""
        return shares(self.graph.similarity(self.encoder(x, mask), mask), mask).sum(1)
