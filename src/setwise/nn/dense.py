"""The fully connected layer FL(d_i, d_o, f) that all others are made of, and how it starts."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "relu": partial(nn.ReLU, inplace=True),
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
}


class Drawn(nn.Module):
    """A module with parameters of its own that start at random; `initialize` draws them anew."""

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw this module's own parameters; those of its parts are the parts' business."""
        raise NotImplementedError(f"{type(self).__name__} must define reset_parameters(generator)")


def draw_linear(linear: nn.Linear, generator: torch.Generator | None = None) -> None:
    """Draw weights and biases as torch does, uniformly within ±1/√in_features."""
    bound = linear.in_features**-0.5
    for parameter in linear.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)


class Dense(Drawn):
    """Fully connected layer with its activation: f(x H + h), the paper's FL(d_i, d_o, f).

    Weights and biases start as torch starts them, uniformly within ±1/√d_i. With a larger start, the tanh
    layers of a deep kernel saturate within a hundred steps, and the graph stops learning.

    Args:
        in_dim: features that come in.
        out_dim: features that go out.
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
        """Draw the weights anew."""
        draw_linear(self.linear, generator)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b o"]:
        """Map the last axis."""
        rows = self.linear(x.reshape(-1, x.shape[-1]))  # no view: in place costs nothing extra
        out: Tensor = self.nonlinearity(rows)
        return out.view(*x.shape[:-1], rows.shape[-1])


class NearIdentity(Dense):
    """A square fully connected layer that starts near the identity: f(x (I + H) + h), H and h as in `Dense`.

    Blocks that replace the features end in one, so that a new block hardly changes what it is given.

    Args:
        dim: features that come in and go out.
        activation: see `Dense`.

    >>> layer = NearIdentity(64, activation="identity")
    >>> bool((layer.linear.weight.diagonal() > 0.8).all())
    True
    """

    def __init__(self, dim: int, *, activation: str = "relu") -> None:
        super().__init__(dim, dim, activation=activation)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights anew."""
        super().reset_parameters(generator)
        with torch.no_grad():
            self.linear.weight.diagonal().add_(1)


def initialize(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Draw the weights of every layer from ``generator``: the same seed gives the same model.

    Layers of torch that start at random (a convolution, say) start by torch's own rule.

    >>> a, b = (initialize(Dense(2, 2), torch.Generator().manual_seed(7)) for _ in range(2))
    >>> torch.equal(a.linear.weight, b.linear.weight)
    True
    """
    drawn = [layer for layer in module.modules() if isinstance(layer, Drawn)]
    inside = {id(part) for layer in drawn for part in layer.children()}
    for layer in module.modules():
        reset = getattr(layer, "reset_parameters", None)
        if isinstance(layer, Drawn):
            layer.reset_parameters(generator)
        elif callable(reset) and id(layer) not in inside:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
                reset()
    return module
