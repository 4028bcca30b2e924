"""Graphs ``(x [b, n, d], mask) → W [b, n, n]``: who listens to whom, and how much.

Rows of real elements sum to one; ``W[i, j]`` is zero unless both ends are real. Any module that keeps
this contract can stand in a model: the ablations of the paper are such substitutions.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise._memory import prepare
from setwise.functional import (
    Propagator,
    center,
    log_rbf_kernel,
    median_distance,
    pair_mask,
    row_normalize,
    rows_to_one,
)
from setwise.nn.layers import MLP, expand_shared
from setwise.sets import Shared

Encoded = Float[Tensor, "b n d"] | Shared
"""What a graph reads: encoded elements, which sets may share."""

MEDIAN_OF = 2048
"""Elements whose distances tell a bandwidth to start from, if there are more."""


class LatentGraph(nn.Module):
    """The latent graph, learned by a deep kernel: K_ij = k_σ(MLP(x_i), MLP(x_j)), W_ij = K_ij / Σ_l K_il.

    This is the paper's DKL(d_i, d_m, d_o, f, f, σ), with the softmax taken over log K: only then can W reach
    the identity, as the paper's proof of universality needs. ``normalize=row_softmax`` takes it over K, as
    printed. Elements that sets share (`setwise.Shared`) are embedded once.

    Args:
        in_dim: features of an encoded element (d_i).
        hidden: widths of the layers of the embedding (d_m, d_o).
        activation: of both layers.
        sigma: bandwidth to start from; see `initialize_bandwidth` for a start from data.
        kernel: ``(z, sigma) → log K`` with values up to 0, which the diagonal has.
        normalize: ``(log_K, mask) → W``.

    >>> W = LatentGraph(3)(torch.randn(2, 5, 3))
    >>> W.shape, W.sum(-1).allclose(torch.ones(2, 5))
    (torch.Size([2, 5, 5]), True)
    """

    def __init__(
        self,
        in_dim: int,
        hidden: tuple[int, ...] = (64, 128),
        *,
        activation: str = "relu",
        sigma: float = 1.0,
        kernel: Callable[[Tensor, Tensor], Tensor] = log_rbf_kernel,
        normalize: Callable[[Tensor, Tensor | None], Tensor] = row_normalize,
    ) -> None:
        super().__init__()
        if not 0 < sigma < float("inf"):
            raise ValueError(f"sigma must be positive and finite, got {sigma}")
        self.embed = MLP(in_dim, *hidden, activation=activation)
        self.log_sigma = nn.Parameter(torch.tensor(float(sigma)).log())
        self.kernel = kernel
        self.normalize = normalize

    @property
    def sigma(self) -> Tensor:
        """The bandwidth σ > 0."""
        return self.log_sigma.exp()

    def similarity(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The kernel matrix K before normalisation; zero where an end is padding."""
        K = self.log_kernel(x, mask).exp()
        return K if mask is None else K.masked_fill(~pair_mask(mask), 0)

    def log_kernel(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """Log K; what stands where an end is padding has no meaning."""
        return self.kernel(center(self.embedded(x, mask), mask), self.sigma)

    def embedded(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n e"]:
        """The points z_i = MLP(x_i) whose distances the kernel measures."""
        return expand_shared(self.embed(x, mask), mask)

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Propagator:
        """The weights W."""
        prepare(x.shape[0] * x.shape[1] ** 2, x.device)
        return self.normalize(self.log_kernel(x, mask), mask).to(x.dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if "seed" not in self._buffers:  # of random features, for which this graph may stand in
            state_dict.pop(f"{prefix}seed", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    @torch.no_grad()
    def initialize_bandwidth(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> "LatentGraph":
        """Set σ to the median distance between embedded elements of a first batch.

        Far from that scale the graph starts as the uniform graph or the identity, with almost no gradient.
        Takes what ``forward`` takes: encoded elements. Of larger sets, some thousand do.
        """
        x = expand_shared(x, mask)
        if x.shape[1] > MEDIAN_OF:
            order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0), device="cpu")
            order = order.to(x.device)
            some = (order if mask is None else order[mask.any(0)[order]])[:MEDIAN_OF]
            x, mask = x[:, some], None if mask is None else mask[:, some]
        self.log_sigma.copy_(median_distance(self.embedded(x, mask), mask).log())
        return self


class UniformGraph(nn.Module):
    """The graph of the paper's ablation (UG): every element hears every element alike, W_ij = 1/n.

    >>> UniformGraph()(torch.randn(1, 2, 3))
    tensor([[[0.5000, 0.5000], [0.5000, 0.5000]]])
    """

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The weights W."""
        b, n, _ = x.shape
        W = torch.ones(b, n, n, dtype=x.dtype, device=x.device)
        return rows_to_one(W if mask is None else W.masked_fill(~pair_mask(mask), 0))


class GivenGraph(nn.Module):
    """Prior knowledge: a graph given by the user, its rows scaled to sum to one.

    Args:
        adjacency: non-negative weights, ``[n, n]`` for every set alike or ``[b, n, n]`` one a set. An
            element without neighbours listens to itself.

    >>> GivenGraph(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))(torch.randn(1, 2, 8))
    tensor([[[0.2500, 0.7500], [0.0000, 1.0000]]])
    """

    adjacency: Tensor

    def __init__(self, adjacency: Float[Tensor, "... n n"]) -> None:
        super().__init__()
        if adjacency.dim() not in (2, 3) or adjacency.shape[-1] != adjacency.shape[-2]:
            raise ValueError(f"adjacency must be [n, n] or [b, n, n], got {list(adjacency.shape)}")
        if not (adjacency.isfinite() & (adjacency >= 0)).all():
            raise ValueError("adjacency must hold finite, non-negative weights, got others")
        self.register_buffer("adjacency", adjacency.clone()[None].flatten(0, -3))

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The weights W."""
        b, n, _ = x.shape
        if self.adjacency.shape[-1] != n or self.adjacency.shape[0] not in (1, b):
            raise ValueError(
                f"this graph was given for {list(self.adjacency.shape)} weights, "
                f"got a batch of {b} sets of {n} elements"
            )
        W = self.adjacency.to(x.dtype).expand(b, n, n)
        if mask is not None:
            W = W.masked_fill(~pair_mask(mask), 0)
        alone = W.sum(-1, keepdim=True) == 0
        W = W + alone * torch.eye(n, dtype=x.dtype, device=x.device)
        return rows_to_one(W if mask is None else W.masked_fill(~mask.unsqueeze(-1), 0))


class IdentityGraph(nn.Module):
    """No messages, W = I: on this graph DMPS is DeepSets (the paper's proof of universality).

    >>> IdentityGraph()(torch.randn(1, 2, 3))
    tensor([[[1., 0.], [0., 1.]]])
    """

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The weights W."""
        b, n, _ = x.shape
        W = torch.eye(n, dtype=x.dtype, device=x.device).expand(b, n, n)
        return W if mask is None else W.masked_fill(~mask.unsqueeze(-1), 0)
