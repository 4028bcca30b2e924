"""Graphs ``(x [b, n, d], mask) → W [b, n, n]``: the weights of the messages between elements.

Rows of real elements sum to one; ``W[i, j]`` is zero unless both ends are real. Any module that keeps
this contract can be used in a model; the ablations of the paper are such substitutions.
"""

from collections.abc import Callable
from typing import Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise.functional import pair_mask, row_normalize, rows_to_one
from setwise.nn.kernel import DeepKernel, Encoded, KernelOptions, deep_kernel

Normalize = Callable[[Tensor, Tensor | None], Tensor]
"""``(log_K, mask) → W``."""


class LearnedGraph(nn.Module):
    """Base of all graphs that contain a `DeepKernel`; it is no graph itself.

    All of them have the same state dict (that of the kernel), so each loads what another has saved.

    Args:
        kernel: the deep kernel.
        normalize: ``(log_K, mask) → W``.
    """

    def __init__(self, kernel: DeepKernel, normalize: Normalize) -> None:
        super().__init__()
        self.kernel = kernel
        self.normalize = normalize

    @property
    def sigma(self) -> Tensor:
        """The bandwidth σ > 0 of the kernel."""
        return self.kernel.sigma

    def log_kernel(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """Log K; entries of padding have no meaning."""
        return self.kernel.log_kernel(x, mask)

    def similarity(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The kernel matrix K before normalisation; entries of padding are zero."""
        return self.kernel.similarity(x, mask)

    def dense_weights(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The normalised kernel of all pairs as a matrix, exact in every form of the graph."""
        return self.normalize(self.log_kernel(x, mask), mask).to(x.dtype)

    def initialize_bandwidth(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> "LearnedGraph":
        """Set σ to the median distance between embedded elements: see `DeepKernel.initialize_bandwidth`."""
        self.kernel.initialize_bandwidth(x, mask)
        return self


class LatentGraph(LearnedGraph):
    """The latent graph, learned by a deep kernel: K_ij = k_σ(MLP(x_i), MLP(x_j)), W_ij = K_ij / Σ_l K_il.

    This is the paper's DKL(d_i, d_m, d_o, f, f, σ), with the softmax taken over log K: only then can W reach
    the identity, as the paper's proof of universality requires. ``normalize=row_softmax`` takes the softmax
    over K, as printed.

    Args:
        in_dim: features of an encoded element (d_i), or a `DeepKernel`.
        hidden: widths of the layers of the embedding (d_m, d_o).
        normalize: ``(log_K, mask) → W``.
        **options: ``activation``, ``sigma`` and ``kernel`` of the `DeepKernel`.

    >>> W = LatentGraph(3)(torch.randn(2, 5, 3))
    >>> W.shape, W.sum(-1).allclose(torch.ones(2, 5))
    (torch.Size([2, 5, 5]), True)
    >>> graph = LatentGraph(DeepKernel(3, (16, 8), sigma=2.0))
    """

    def __init__(
        self,
        in_dim: int | DeepKernel,
        hidden: tuple[int, ...] | None = None,
        *,
        normalize: Normalize = row_normalize,
        **options: Unpack[KernelOptions],
    ) -> None:
        super().__init__(deep_kernel(in_dim, hidden, **options), normalize)

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The weights W."""
        return self.dense_weights(x, mask)


class UniformGraph(nn.Module):
    """The graph of the paper's ablation (UG): every pair has the same weight, W_ij = 1/n.

    >>> UniformGraph()(torch.randn(1, 2, 3))
    tensor([[[0.5000, 0.5000], [0.5000, 0.5000]]])
    """

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The weights W."""
        b, n, _ = x.shape
        W = torch.ones(b, n, n, dtype=x.dtype, device=x.device)
        return rows_to_one(W if mask is None else W.masked_fill(~pair_mask(mask), 0))


class GivenGraph(nn.Module):
    """A graph given by the user (prior knowledge), its rows scaled to sum to one.

    Args:
        adjacency: non-negative weights, ``[n, n]`` for all sets or ``[b, n, n]`` with one matrix per set. An
            element without neighbours has the weight one for itself.

    >>> GivenGraph(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))(torch.randn(1, 2, 8))
    tensor([[[0.2500, 0.7500], [0.0000, 1.0000]]])
    """

    adjacency: Tensor

    def __init__(self, adjacency: Float[Tensor, "... n n"]) -> None:
        super().__init__()
        if adjacency.dim() not in (2, 3) or adjacency.shape[-1] != adjacency.shape[-2]:
            raise ValueError(f"adjacency must be [n, n] or [b, n, n], got {list(adjacency.shape)}")
        if not (adjacency.isfinite() & (adjacency >= 0)).all():
            raise ValueError(
                "adjacency must be finite and non-negative, got negative, NaN or infinite weights"
            )
        self.register_buffer("adjacency", adjacency.clone()[None].flatten(0, -3))

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b n n"]:
        """The weights W."""
        b, n, _ = x.shape
        if self.adjacency.shape[-1] != n or self.adjacency.shape[0] not in (1, b):
            raise ValueError(
                f"x must fit the adjacency of shape {list(self.adjacency.shape)}, "
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
