"""PointNet++ for classification (Qi et al., 2017; single scale), with the interface ``(x, mask) → out``.

A set abstraction layer samples centres, groups the points around each centre, and applies a small network
with max pooling to each group. Two such layers are followed by one over all remaining points. The published
code depends on the order of the points; this one differs in two ways: sampling starts at the point farthest
from the mean of the set instead of the first or a random one, and a group holds the nearest points of the
ball instead of the first ones. The order then matters only for exactly equal distances.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from setwise.functional import center, fill_padding
from setwise.nn.layers import BatchNorm, Dense, Resettable, reset_linear
from setwise.nn.pool import MaxPool
from setwise.sets import Elements, Shared


@torch.no_grad()
def farthest_points(
    x: Float[Tensor, "b n c"], m: int, mask: Bool[Tensor, "b n"] | None = None
) -> tuple[Int[Tensor, "b m"], Bool[Tensor, "b m"]]:
    """Farthest point sampling: i_1 = argmax_j ‖x_j − mean‖, then i_t = argmax_j min_{s<t} ‖x_j − x_{i_s}‖.

    No point is sampled twice; a set of at most m points is returned whole. The published code starts with the
    first point, other implementations with a random one; here the sample does not depend on the order.

    Args:
        x: coordinates of the points.
        m: number of points to sample; limited to n.
        mask: True for real points.

    Returns:
        Indices of the sampled points, and which of them are real: min(m, r) for a set of r points.

    >>> x = torch.tensor([[[0.0], [1.0], [4.0], [10.0]]])
    >>> farthest_points(x, 3)[0].tolist()
    [[3, 0, 2]]
    >>> farthest_points(x, 3, torch.tensor([[True, True, False, False]]))[1].tolist()
    [[True, True, False]]
    """
    if m < 1:
        raise ValueError(f"m must be at least 1, got {m}")
    b, n, _ = x.shape
    m = min(m, n)
    real = x.new_ones(b, n, dtype=torch.bool) if mask is None else mask
    order = torch.arange(m, device=x.device)
    index = torch.zeros(b, m, dtype=torch.long, device=x.device)
    if m == 0:
        return index, real[:, :0]
    # Contiguous coordinates: the loop below reads all points m times.
    coordinates = center(x.to(torch.promote_types(x.dtype, torch.float32)), mask).permute(2, 0, 1)
    coordinates = coordinates.contiguous()
    distance = coordinates.square().sum(0).masked_fill(~real, -1)
    chosen = distance.argmax(1, keepdim=True)
    distance = torch.full_like(distance, torch.inf).masked_fill(~real, -1)
    for t in range(m):
        index[:, t] = chosen[:, 0]
        sampled = coordinates.gather(2, chosen.expand(len(coordinates), -1, -1))
        torch.minimum(distance, (coordinates - sampled).square_().sum(0), out=distance)
        distance.scatter_(1, chosen, -1)  # below the distance 0 of a duplicate point
        chosen = distance.argmax(1, keepdim=True)
    return index, order < real.sum(1, keepdim=True)


@torch.no_grad()
def ball_query(
    x: Float[Tensor, "b n c"],
    centers: Float[Tensor, "b m c"],
    radius: float,
    k: int,
    mask: Bool[Tensor, "b n"] | None = None,
) -> tuple[Int[Tensor, "b m k"], Bool[Tensor, "b m k"]]:
    """The k nearest points within the radius of each centre: ‖x_j − c_i‖ < r.

    The published code takes the first k points of the ball in the given order, and repeats the first one if
    there are fewer. Here missing neighbours are masked, which is equivalent under max pooling.

    Args:
        x: coordinates of the points.
        centers: coordinates of the centres.
        radius: radius of the balls.
        k: maximum number of neighbours; limited to n.
        mask: True for real points.

    Returns:
        Indices of the points, nearest first, and which of them lie in the ball.

    >>> x = torch.tensor([[[0.0], [1.0], [4.0], [10.0]]])
    >>> index, inside = ball_query(x, torch.tensor([[[1.5]]]), 3.0, 3)
    >>> index.tolist(), inside.tolist()
    ([[[1, 0, 2]]], [[[True, True, True]]])
    """
    if not radius > 0:
        raise ValueError(f"radius must be positive, got {radius}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    dtype = torch.promote_types(x.dtype, torch.float32)
    # Distances by matrix products suffer from cancellation, which would matter at the boundary of a ball.
    mode = "donot_use_mm_for_euclid_dist"
    distance = torch.cdist(centers.to(dtype), fill_padding(x, mask).to(dtype), compute_mode=mode)
    if mask is not None:
        distance = distance.masked_fill(~mask.unsqueeze(1), torch.inf)
    nearest = distance.topk(min(k, x.shape[1]), largest=False)
    return nearest.indices, nearest.values < radius


class NormedLayer(Resettable):
    """Linear layer with batch norm, norm(x H + h), without the ReLU that follows in PointNet++.

    Args:
        in_dim: number of input features.
        out_dim: number of output features.
        norm: use a batch norm.

    >>> NormedLayer(3, 8)(torch.randn(5, 3)).shape
    torch.Size([5, 8])
    """

    def __init__(self, in_dim: int, out_dim: int, *, norm: bool = True) -> None:
        super().__init__()
        for name, size in (("in_dim", in_dim), ("out_dim", out_dim)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.linear = nn.Linear(in_dim, out_dim)
        self.norm = BatchNorm(out_dim) if norm else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise the weights as `Dense` does, and the norm as the identity."""
        reset_linear(self.linear, generator)
        if isinstance(self.norm, BatchNorm):
            self.norm.reset_parameters()

    def forward(self, x: Float[Tensor, "rows d"]) -> Float[Tensor, "rows o"]:
        """Apply the layer to each row."""
        out: Tensor = self.norm(self.linear(x))
        return out


class SetAbstraction(nn.Module):
    """Set abstraction: features of sampled centres, max_{j ∈ ball(i)} MLP([p_j − p_i, f_j]).

    The layers process only real points, so padding and missing neighbours neither cost time nor affect the
    batch norms. (The published code repeats a point for each missing one, which affects its norms.)

    Args:
        in_dim: number of features of a point besides its coordinates, at least 0.
        *dims: width of each layer.
        centers: number of centres; by default all points form one group around the origin.
        radius: radius of the ball around a centre; required with ``centers``.
        neighbours: maximum number of points per ball; required with ``centers``.
        norm: use batch norms.

    >>> layer = SetAbstraction(2, 16, 32, centers=4, radius=0.5, neighbours=8)
    >>> coordinates, features, mask = layer(torch.rand(5, 10, 3), torch.rand(5, 10, 2))
    >>> coordinates.shape, features.shape, mask.shape
    (torch.Size([5, 4, 3]), torch.Size([5, 4, 32]), torch.Size([5, 4]))
    """

    def __init__(
        self,
        in_dim: int,
        *dims: int,
        centers: int | None = None,
        radius: float | None = None,
        neighbours: int | None = None,
        norm: bool = True,
    ) -> None:
        super().__init__()
        if not dims:
            raise ValueError("dims must have at least one width, got none")
        if in_dim < 0:
            raise ValueError(f"in_dim must not be negative, got {in_dim}")
        given = {"centers": centers, "radius": radius, "neighbours": neighbours}
        if len({value is None for value in given.values()}) > 1:
            raise ValueError(f"centers, radius and neighbours must be given together, got {given}")
        for name, value in given.items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        self.in_dim, self.centers, self.radius, self.neighbours = in_dim, centers, radius, neighbours
        self.layers = nn.ModuleList(NormedLayer(i, o, norm=norm) for i, o in pairwise((3 + in_dim, *dims)))

    def forward(
        self,
        x: Float[Tensor, "b n 3"],
        features: Float[Tensor, "b n f"],
        mask: Bool[Tensor, "b n"] | None = None,
    ) -> tuple[Float[Tensor, "b m 3"], Float[Tensor, "b m o"], Bool[Tensor, "b m"]]:
        """Coordinates, features and mask of the centres; padding is zero."""
        if features.shape[-1] != self.in_dim:
            raise ValueError(f"points must have {self.in_dim} features, got {features.shape[-1]}")
        x, features = fill_padding(x, mask), fill_padding(features, mask)
        centers, real, index, inside = self.group(x, mask)
        out = self.describe(x, features, centers, index, inside)
        return centers, fill_padding(out, real), real

    def group(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Centres and their mask; indices and mask of the points in each group, real points first."""
        b, n, _ = x.shape
        if self.centers is None or self.radius is None or self.neighbours is None:
            whole = x.new_ones(b, n, dtype=torch.bool) if mask is None else mask
            index = whole.int().argsort(1, descending=True).unsqueeze(1)
            inside = whole.unsqueeze(1).gather(2, index)
            return x.new_zeros(b, 1, 3), inside.any(2), index, inside
        sample, real = farthest_points(x, self.centers, mask)
        centers = fill_padding(x.gather(1, sample.unsqueeze(2).expand(-1, -1, 3)), real)
        index, inside = ball_query(x, centers, self.radius, self.neighbours, mask)
        return centers, real, index, inside & real.unsqueeze(2)

    def describe(self, x: Tensor, features: Tensor, centers: Tensor, index: Tensor, inside: Tensor) -> Tensor:
        """Apply the layers to all pairs of a centre and a point of its group, and max-pool each group."""
        (b, n, _), (_, m, k) = x.shape, index.shape
        index = index + n * torch.arange(b, device=x.device).view(-1, 1, 1)  # into the points of all sets
        if torch.compiler.is_compiling() and not self.training:
            # A compiled graph needs a fixed number of pairs: repeat the first point.
            index, inside = torch.where(inside, index, index[..., :1]), torch.ones_like(inside)
            pairs = torch.arange(inside.numel(), device=x.device)
        else:
            pairs = inside.flatten().nonzero().squeeze(1)
        point, group = index.flatten()[pairs], pairs // k
        offset = x.flatten(0, 1).index_select(0, point) - centers.flatten(0, 1).index_select(0, group)

        first: NormedLayer = self.layers[0]  # type: ignore[assignment]
        weight, bias = first.linear.weight, first.linear.bias
        # Compute the feature part of the first layer once per point instead of once per pair.
        own = nn.functional.linear(features.flatten(0, 1), weight[:, 3:], bias)
        z = first.norm(torch.addmm(own.index_select(0, point), offset, weight[:, :3].mT))
        for layer in self.layers[1:]:
            z = layer(z.relu_())  # in place, because allocating memory would cost as much as the ReLU

        size = inside.flatten(0, 1).sum(1)
        start = size.cumsum(0) - size
        largest = embedding_bag(torch.arange(len(z), device=z.device), z, start, mode="max")
        return largest.relu().view(b, m, z.shape[1])  # max and ReLU commute


class Readout(nn.Module):
    """Head of PointNet++: layers with batch norm, ReLU and dropout, followed by a linear layer.

    Args:
        in_dim: number of features of a pooled set.
        *dims: widths of the layers; the last one is the number of outputs.
        dropout: dropout probability.
        norm: use batch norms.

    >>> Readout(16, 8, 3)(torch.randn(2, 16)).shape
    torch.Size([2, 3])
    """

    def __init__(self, in_dim: int, *dims: int, dropout: float = 0.4, norm: bool = True) -> None:
        super().__init__()
        if not dims:
            raise ValueError("dims must have at least the number of outputs, got none")
        *hidden, out_dim = dims
        widths = [in_dim, *hidden]
        parts = [
            nn.Sequential(NormedLayer(i, o, norm=norm), nn.ReLU(), nn.Dropout(dropout))
            for i, o in pairwise(widths)
        ]
        self.layers = nn.Sequential(*parts, Dense(widths[-1], out_dim, activation="identity"))

    @property
    def linear(self) -> nn.Linear:
        """First linear layer."""
        return next(layer for layer in self.modules() if isinstance(layer, nn.Linear))

    def forward(self, z: Float[Tensor, "b d"]) -> Float[Tensor, "b k"]:
        """Raw outputs."""
        out: Tensor = self.layers(z)
        return out


class PointNetPlusPlus(nn.Module):
    """Set abstraction layers, a pool and a head.

    The first three features of an element are its coordinates; further ones (normals, colours) are optional.

    Args:
        layers: modules ``(x, features, mask) → (x, features, mask)``, see `SetAbstraction`.
        pool: ``(features, mask) → [b, d]``.
        head: ``[b, d] → [b, k]``, raw outputs.
    """

    def __init__(self, layers: Sequence[nn.Module], pool: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.pool = pool
        self.head = head

    @classmethod
    def build(
        cls,
        in_dim: int,
        out_dim: int,
        *,
        centers: Sequence[int] = (512, 128),
        radius: Sequence[float] = (0.2, 0.4),
        neighbours: Sequence[int] = (32, 64),
        dims: Sequence[Sequence[int]] = ((64, 64, 128), (128, 128, 256), (256, 512, 1024)),
        hidden: Sequence[int] = (512, 256),
        dropout: float = 0.4,
        norm: bool = True,
    ) -> "PointNetPlusPlus":
        """Build a model from sizes; the defaults are the paper's, for about 1000 points.

        Args:
            in_dim: number of features of an element, including its three coordinates.
            out_dim: number of outputs.
            centers: number of centres per layer; for example (50, 12) for 100 points.
            radius: ball radius per layer; shapes are assumed to fill the unit ball.
            neighbours: maximum number of points per ball, for each layer.
            dims: widths of each layer's network, the last of which processes all remaining points.
            hidden: widths of the head.
            dropout: dropout probability in the head; 0.4 in a later version of the published code, first 0.5.
            norm: use batch norms.

        >>> PointNetPlusPlus.build(3, 40, centers=(50, 12))(torch.randn(2, 100, 3)).shape
        torch.Size([2, 40])
        """
        if in_dim < 3:
            raise ValueError(f"in_dim must be at least 3 (the coordinates), got {in_dim}")
        if not len(centers) == len(radius) == len(neighbours) == len(dims) - 1:
            raise ValueError(
                "centers, radius and neighbours must have equal lengths, and dims one more entry, "
                f"got lengths {len(centers)}, {len(radius)}, {len(neighbours)} and {len(dims)}"
            )
        if not all(dims):
            raise ValueError(f"dims must have at least one width per layer, got {dims}")
        widths = [in_dim - 3, *(layer[-1] for layer in dims)]
        layers = [
            SetAbstraction(width, *layer, centers=m, radius=r, neighbours=k, norm=norm)
            for width, layer, m, r, k in zip(widths, dims, centers, radius, neighbours, strict=False)
        ]
        last = SetAbstraction(widths[-2], *dims[-1], norm=norm)
        head = Readout(widths[-1], *hidden, out_dim, dropout=dropout, norm=norm)
        return cls([*layers, last], MaxPool(), head)

    def forward(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b k"]:
        """Raw outputs, one row per set."""
        if isinstance(x, Shared):
            x = x.expand()
        if x.dim() != 3 or x.shape[2] < 3 or not x.is_floating_point():
            raise ValueError(
                "elements must be floating point [sets, points, 3 coordinates and more], "
                f"got {x.dtype} {list(x.shape)}"
            )
        coordinates, features = x[..., :3], x[..., 3:]
        for layer in self.layers:
            coordinates, features, mask = layer(coordinates, features, mask)
        out: Tensor = self.head(self.pool(features, mask))
        return out
