"""Layers of one element: dense layers, MLPs, element encoders, batch normalisation, rescaling."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from setwise.functional import fill_padding
from setwise.sets import Elements, Shared

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "relu": partial(nn.ReLU, inplace=True),
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
}


class Resettable(nn.Module):
    """A module with randomly initialised parameters of its own; `initialize` draws them again."""

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw this module's own parameters, not those of its submodules."""
        raise NotImplementedError(f"{type(self).__name__} must define reset_parameters(generator)")


def reset_linear(linear: nn.Linear, generator: torch.Generator | None = None) -> None:
    """Draw weights and biases uniformly within ±1/√in_features, as torch does."""
    bound = linear.in_features**-0.5
    for parameter in linear.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)


class Dense(Resettable):
    """Fully connected layer with its activation: f(x H + h), the paper's FL(d_i, d_o, f).

    Weights and biases are drawn uniformly within ±1/√d_i, as in torch. With larger initial weights, the tanh
    layers of a deep kernel saturate within a hundred steps, and the graph stops learning.

    Args:
        in_dim: input features.
        out_dim: output features.
        activation: one of ``"identity"``, ``"relu"``, ``"tanh"``, ``"gelu"``, ``"sigmoid"``.

    >>> Dense(3, 8, activation="tanh")(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, in_dim: int, out_dim: int, *, activation: str = "relu") -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")
        for name, size in (("in_dim", in_dim), ("out_dim", out_dim)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.activation = activation
        self.linear = nn.Linear(in_dim, out_dim)
        self.nonlinearity = ACTIVATIONS[activation]()
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights again."""
        reset_linear(self.linear, generator)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b o"]:
        """Map the last axis."""
        rows = self.linear(x.reshape(-1, x.shape[-1]))  # not a view, so the activation may work in place
        out: Tensor = self.nonlinearity(rows)
        return out.view(*x.shape[:-1], rows.shape[-1])


class NearIdentity(Dense):
    """A square fully connected layer initialised near the identity: f(x (I + H) + h), H and h as in `Dense`.

    Blocks that replace the features end in one, so that a new block changes its input little.

    Args:
        dim: input and output features.
        activation: see `Dense`.

    >>> layer = NearIdentity(64, activation="identity")
    >>> bool((layer.linear.weight.diagonal() > 0.8).all())
    True
    """

    def __init__(self, dim: int, *, activation: str = "relu") -> None:
        super().__init__(dim, dim, activation=activation)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights again."""
        super().reset_parameters(generator)
        with torch.no_grad():
            self.linear.weight.diagonal().add_(1)


def initialize(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Draw the weights of every layer from ``generator``: the same seed gives the same model.

    Randomly initialised layers of torch, such as convolutions, follow torch's own rule.

    >>> a, b = (initialize(Dense(2, 2), torch.Generator().manual_seed(7)) for _ in range(2))
    >>> torch.equal(a.linear.weight, b.linear.weight)
    True
    """
    drawn = [layer for layer in module.modules() if isinstance(layer, Resettable)]
    inside = {id(part) for layer in drawn for part in layer.children()}
    for layer in module.modules():
        reset = getattr(layer, "reset_parameters", None)
        if isinstance(layer, Resettable):
            layer.reset_parameters(generator)
        elif callable(reset) and id(layer) not in inside:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
                reset()
    return module


def expand_shared(x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n *f"]:
    """Features with shared elements copied to their places, and zeros at padding.

    >>> expand_shared(Shared(torch.tensor([[1.0], [5.0]]), torch.tensor([[0, 1], [1, 1]]))).flatten().tolist()
    [1.0, 5.0, 5.0, 5.0]
    """
    return fill_padding(x.expand(), mask) if isinstance(x, Shared) else x


class MLP(nn.Module):
    """Fully connected layers applied to each element.

    Args:
        in_dim: features of a raw element.
        *dims: the width of each layer.
        activation: activation after every layer, including the last.

    >>> MLP(3, 32, 64)(torch.randn(2, 5, 3)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(self, in_dim: int, *dims: int, activation: str = "relu") -> None:
        super().__init__()
        if not dims:
            raise ValueError("MLP needs the width of at least one layer, got none")
        self.activation = activation
        self.layers = nn.Sequential(
            *(Dense(i, o, activation=activation) for i, o in pairwise((in_dim, *dims)))
        )

    def forward(
        self, x: Float[Tensor, "b n i"] | Shared, mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n d"] | Shared:
        """Encode the elements; shared elements stay shared."""
        if x.dim() != 3 or not x.is_floating_point():
            raise ValueError(
                f"elements must be floating point [sets, elements, features], got {x.dtype} {list(x.shape)}"
            )
        if isinstance(x, Shared):
            return x.map(self.layers)
        out: Tensor = self.layers(fill_padding(x, mask))
        return out


class ElementEncoder(nn.Module):
    """Any network ``[m, …] → [m, d]``, e.g. for images, applied to the real elements only.

    Padding costs nothing, does not affect batch statistics, and is zero in the output. Elements that sets
    share (`setwise.Shared`) are encoded once.

    >>> images = torch.randn(2, 3, 1, 8, 8)
    >>> mask = torch.tensor([[True, True, False], [True, False, False]])
    >>> encoder = ElementEncoder(nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten()))
    >>> encoder(images, mask).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, x: Elements, mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n d"] | Shared:
        """Encode the real elements in their places; shared elements stay shared."""
        if isinstance(x, Shared):
            return x.map(self.network)
        if mask is None:
            out: Tensor = self.network(x.flatten(0, 1))
            return out.view(*x.shape[:2], out.shape[-1])
        real = self.network(x[mask])
        features = torch.zeros(*x.shape[:2], real.shape[-1], dtype=real.dtype, device=real.device)
        return features.index_put((mask,), real)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of rows or images that accepts batches of fewer than two rows.

    torch refuses to train on such a batch, since it has no variance; here the running statistics are used.
    When several processes train, `setwise.fit` replaces batch norms by synchronized ones.

    Args:
        features: number of features of a row, or channels of an image.
        eps: added to variances.
        momentum: of the running statistics.

    >>> BatchNorm(3)(torch.zeros(1, 3)).tolist()
    [[0.0, 0.0, 0.0]]
    """

    def __init__(self, features: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(features, eps, momentum)

    def forward(self, x: Float[Tensor, "rows d *image"]) -> Float[Tensor, "rows d *image"]:
        """Normalize each feature."""
        if self.training and x.numel() // x.shape[1] < 2:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (its name in torch)
        """Accept rows and images."""


class Rescale(nn.Module):
    """Shift and scale each feature by fixed numbers, e.g. those of the training data: (x − μ) / σ.

    The arithmetic is done in the precision of ``mean``.

    Args:
        mean: μ of each feature.
        std: σ of each feature. A feature whose σ is within rounding error of zero is shifted but not scaled.
        axis: the axis of ``x`` that holds the features; 1 for images ``[m, d, h, w]``.

    >>> rescale = Rescale(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 0.0]))
    >>> rescale(torch.tensor([[5, 5]]))
    tensor([[2., 0.]])
    >>> rescale.inverse(torch.tensor([[2.0, 0.0]]))
    tensor([[5., 5.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Float[Tensor, " d"], std: Float[Tensor, " d"], *, axis: int = -1) -> None:
        super().__init__()
        if mean.shape != std.shape or mean.dim() != 1:
            raise ValueError(
                "mean and std must each have one value per feature, "
                f"got shapes {list(mean.shape)} and {list(std.shape)}"
            )
        if not mean.is_meta and (bad := ~(mean.isfinite() & std.isfinite() & (std >= 0))).any():
            i = int(bad.nonzero()[0])
            raise ValueError(
                "mean and std must be finite and std must not be negative, "
                f"got mean {mean[i]:g} and std {std[i]:g} for feature {i}"
            )
        self.axis = axis
        rounding = 1e-12 if mean.dtype == torch.float64 else 1e-6
        varies = std > (rounding * mean.abs()).clamp(min=1e-30)
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", torch.where(varies, std, 1.0))

    def forward(self, x: Shaped[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return (x − μ) / σ; integers become floating point."""
        mean, std = self._aligned_with(x)
        return (x.to(mean.dtype) - mean).div_(std)

    def inverse(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return μ + σ · x."""
        mean, std = self._aligned_with(x)
        return mean + std * x

    def _aligned_with(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """μ and σ in a shape that broadcasts along the feature axis of ``x``."""
        if not -x.dim() <= self.axis < x.dim() or x.shape[self.axis] != len(self.mean):
            raise ValueError(f"x must have {len(self.mean)} features, got shape {list(x.shape)}")
        shape = (-1, *[1] * (x.dim() - 1 - self.axis % x.dim()))
        return self.mean.view(shape), self.std.view(shape)


class RescaledNetwork(nn.Module):
    """A network with raw features as input and, optionally, outputs in the units of the targets.

    out = m + s · network((x − μ) / σ, mask). Without ``out_mean`` and ``out_std``, the outputs are those of
    the network. Padding is passed on as it is: the network's encoder masks it. All statistics are stored in
    double precision, because features may be large and vary little (e.g. Unix timestamps).

    Args:
        network: ``(x, mask) → [b, k]``.
        mean: μ of each feature.
        std: σ of each feature; see `Rescale`.
        out_mean: m of each output; requires ``out_std``.
        out_std: s of each output; see `Rescale`.

    >>> class Sum(nn.Module):
    ...     def forward(self, x, mask=None):
    ...         return x.sum(1)
    >>> model = RescaledNetwork(Sum(), mean=torch.tensor([1.0]), std=torch.tensor([2.0]))
    >>> model(torch.tensor([[[3], [7]]]))
    tensor([[4.]])
    """

    outputs: Rescale | None

    def __init__(
        self,
        network: nn.Module,
        *,
        mean: Float[Tensor, " d"],
        std: Float[Tensor, " d"],
        out_mean: Float[Tensor, " k"] | None = None,
        out_std: Float[Tensor, " k"] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.inputs = Rescale(mean.double(), std.double())
        if out_mean is not None and out_std is not None:
            self.outputs = Rescale(out_mean.double(), out_std.double())
        elif out_mean is None and out_std is None:
            self.outputs = None
        else:
            given = "out_mean" if out_std is None else "out_std"
            raise ValueError(f"out_mean and out_std must be given together, got only {given}")

    def standardized(self, x: Shaped[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """The network's input (x − μ) / σ, in the precision of the network's parameters."""
        weight = next(self.network.parameters(), None)
        dtype = torch.get_default_dtype() if weight is None else weight.dtype
        scaled: Tensor = self.inputs(x)
        return scaled.to(dtype)

    def in_target_units(self, out: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        """The network's raw outputs as m + s · out, in double precision."""
        if self.outputs is None:
            return out
        if out.shape[-1] != len(self.outputs.mean):
            raise ValueError(
                f"the network must have {len(self.outputs.mean)} outputs, one per value of out_mean, "
                f"got shape {list(out.shape)}"
            )
        return self.outputs.inverse(out)

    def forward(
        self, x: Shaped[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b k"]:
        """Outputs in the units of the targets, one row per set."""
        out: Tensor = self.network(self.standardized(x), mask)
        return self.in_target_units(out).to(out.dtype)
