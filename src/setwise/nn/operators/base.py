"""Weights W that are never written out as a matrix: all that can be done with them is to multiply.

Blocks cannot tell such weights from a tensor; what a graph of many elements returns is a kind of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from setwise.functional import center, row_normalize, row_softmax


class _Mixture(torch.autograd.Function):
    """(1 − γ) X + γ Y, whose gradient of γ is ⟨G, Y⟩ − ⟨G, X⟩: no difference is written out."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, gamma: Tensor) -> Tensor:
        return torch.lerp(x, y, gamma)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        (x, y, gamma), (grad,) = ctx.saved_tensors, grads
        flat = grad.flatten()
        coefficient = torch.dot(flat, y.flatten()) - torch.dot(flat, x.flatten())
        return (1 - gamma) * grad, gamma * grad, coefficient


class Weights(ABC):
    """A matrix W [b, n, n] of non-negative rows that sum to one (to zero at padding), known by its products.

    Where these are approximate, so are the signs and sums.

    Args:
        shape: ``(b, n, n)``.
        dtype: of the features that it was made from.
        device: where its parts are.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.device = device

    @abstractmethod
    def __matmul__(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Return ``W x``."""

    def check(self, x: Tensor) -> None:
        """Refuse features of other elements than the graph's."""
        if x.dim() != 3 or x.shape[:2] != self.shape[:2]:
            b, n, _ = self.shape
            raise ValueError(f"x must be [{b}, {n}, d] as the graph is, got {list(x.shape)}")

    def diffuse(self, x: Float[Tensor, "b n d"], gamma: Float[Tensor, ""]) -> Float[Tensor, "b n d"]:
        """Return ``(1 − γ) x + γ W x``."""
        mixed: Tensor = _Mixture.apply(x, (self @ x).to(x.dtype), gamma)  # type: ignore[no-untyped-call]
        return mixed

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Let ``torch.matmul(W, x)`` be ``W @ x``, which is how a compiler sees it (in either order)."""
        if function in (torch.matmul, Tensor.matmul, Tensor.__matmul__):
            W, x = reversed(args) if torch.compiler.is_compiling() and isinstance(args[0], Tensor) else args
            if isinstance(W, Weights):
                return W.__matmul__(x)
        return NotImplemented

    def to_dense(self) -> Float[Tensor, "b n n"]:
        """The matrix written out, for those who want to look at a small one."""
        b, n, _ = self.shape
        return self @ torch.eye(n, dtype=self.dtype, device=self.device).expand(b, n, n)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={list(self.shape)}, dtype={self.dtype}, device={self.device})"


class _Scaled(torch.autograd.Function):
    """(z − z₀) / σ, which keeps z alone, as the layer that made it does, too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, origin: Tensor, scale: Tensor) -> Tensor:
        return torch.sub(z, origin).mul_(scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor]:
        (z, origin, scale), (grad,) = ctx.saved_tensors, grads
        moved = torch.dot(grad.flatten(), z.flatten()) - (grad.sum(1, keepdim=True) * origin).sum()
        return grad * scale, None, moved


def scaled(
    z: Float[Tensor, "b n e"], sigma: Float[Tensor, ""], mask: Bool[Tensor, "b n"] | None = None
) -> Float[Tensor, "b n e"]:
    """Embedded elements over σ, each set moved to the origin, in single precision or better.

    The Gaussian kernel of width σ is one of their distances. Padding is zero.

    >>> scaled(torch.tensor([[[1.0], [5.0]]]), torch.tensor(2.0)).tolist()
    [[[-1.0], [1.0]]]
    """
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    if mask is not None:
        z = center(z, mask)
    origin = z.detach().mean(1, keepdim=True) if mask is None and z.shape[1] else z.new_zeros(())
    over: Tensor = _Scaled.apply(z, origin, 1 / sigma.to(z.dtype))  # type: ignore[no-untyped-call]
    return over


def normal_form(normalize: Callable[..., Tensor]) -> tuple[bool, float]:
    """Whether a normalisation is a softmax of K or of log K, and its temperature.

    >>> normal_form(partial(row_normalize, temperature=2.0))
    (False, 2.0)
    """
    function, arguments = normalize, {}
    if isinstance(normalize, partial) and not normalize.args:
        function, arguments = normalize.func, normalize.keywords
    if function not in (row_softmax, row_normalize) or arguments.keys() - {"temperature"}:
        raise ValueError(
            "without the matrix, normalize must be row_softmax or row_normalize "
            f"(or one of them with a temperature), got {normalize}"
        )
    temperature = float(arguments.get("temperature", 1.0))
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    return function is row_softmax, temperature
