"""Deep Sets (Zaheer et al., 2017): equivariant layers with mean or max, followed by pooling."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise.functional import fill_padding
from setwise.nn.baselines.base import Layered
from setwise.nn.dmps import choose, pools
from setwise.nn.layers import ACTIVATIONS, MLP, Dense, Resettable, reset_linear
from setwise.nn.pool import MaxPool, MeanPool


class EquivariantLayer(Resettable):
    """Equivariant transformation of DeepSets (mean ET, max ET): τ(X Γ + β − 1 pool(X) Λ).

    This is the general form; the published code also has a tied one, τ((X − 1 pool(X)) Γ + β).

    Args:
        dim: number of input features.
        out_dim: number of output features.
        pool: ``"mean"`` or ``"max"`` over the set.
        activation: τ.

    >>> EquivariantLayer(3, 8, pool="max")(torch.randn(2, 5, 3)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self, dim: int, out_dim: int, *, pool: Literal["mean", "max"] = "mean", activation: str = "relu"
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")
        for name, size in (("dim", dim), ("out_dim", out_dim)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.activation = activation
        self.pool = choose("pool", pool, {"mean": MeanPool, "max": MaxPool})
        self.Gamma = nn.Linear(dim, out_dim)
        self.Lambda = nn.Linear(dim, out_dim, bias=False)
        self.nonlinearity = ACTIVATIONS[activation]()
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise Γ and Λ."""
        reset_linear(self.Gamma, generator)
        reset_linear(self.Lambda, generator)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n o"]:
        """Transform each element, given the pooled set."""
        pooled = self.pool(x, mask).unsqueeze(1)
        out: Tensor = self.nonlinearity(self.Gamma(fill_padding(x, mask)) - self.Lambda(pooled))
        return out


class DeepSets(Layered):
    """Encoder, equivariant layers, pool and head: ρ(pool_i φ(X)_i).

    Without layers, or with `MLP` layers, it is ρ(pool_i φ(x_i)).
    """

    @classmethod
    def build(
        cls,
        in_dim: int,
        out_dim: int,
        *,
        dim: int = 64,
        depth: int = 3,
        transformation: Literal["mean", "max", "none"] = "mean",
        pool: Literal["sum", "mean", "max", "attention"] | nn.Module = "mean",
        encoder: nn.Module | None = None,
        activation: str = "relu",
    ) -> "DeepSets":
        """Build a model from sizes and names.

        Args:
            in_dim: number of features of an element.
            out_dim: number of outputs.
            dim: number of features of an encoded element.
            depth: number of layers.
            transformation: pooling inside each `EquivariantLayer`; ``"none"`` uses `MLP` layers instead.
            pool: name of the pooling, or a module ``(x, mask) → [b, dim]``.
            encoder: module ``(x, mask) → [b, n, dim]``; by default one fully connected layer.
            activation: activation of every layer except the last.

        >>> DeepSets.build(3, 40, dim=16, transformation="max", pool="max")(torch.randn(2, 100, 3)).shape
        torch.Size([2, 40])
        """
        if depth < 0:
            raise ValueError(f"depth must not be negative, got {depth}")
        layers: dict[str, Callable[[], list[nn.Module]]] = {
            "mean": lambda: [
                EquivariantLayer(dim, dim, pool="mean", activation=activation) for _ in range(depth)
            ],
            "max": lambda: [
                EquivariantLayer(dim, dim, pool="max", activation=activation) for _ in range(depth)
            ],
            "none": lambda: [MLP(dim, dim, activation=activation) for _ in range(depth)],
        }
        return cls(
            encoder=MLP(in_dim, dim, activation=activation) if encoder is None else encoder,
            layers=choose("transformation", transformation, layers),
            pool=choose("pool", pool, pools(dim)) if isinstance(pool, str) else pool,
            head=Dense(dim, out_dim, activation="identity"),
        )
