"""The interface of weights W that are not written out as a matrix."""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from setwise.functional import center, row_normalize, row_softmax
from setwise.nn.graph import Normalize
from setwise.nn.kernel import DeepKernel


class Weights(ABC):
    """A matrix W [b, n, n] of non-negative rows that sum to one (zero at padding), defined by its products.

    A subclass defines ``W @ x``; the other methods follow from it. If the products are approximate, so are
    the signs and sums.

    Args:
        shape: ``(b, n, n)``.
        dtype: type of the features from which the graph was made.
        device: device of the operator's tensors.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.device = device

    @abstractmethod
    def __matmul__(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Return ``W x``."""

    def diffuse(self, x: Float[Tensor, "b n d"], gamma: Float[Tensor, ""]) -> Float[Tensor, "b n d"]:
        """Return ``(1 − γ) x + γ W x``."""
        return torch.lerp(x, (self @ x).to(x.dtype), gamma)

    def squared_differences(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, " b"]:
        """Σ_ij w_ij ‖x_i − x_j‖² of each set, by ‖x_i‖² − 2 ⟨x_i, x_j⟩ + ‖x_j‖²."""
        x = center(x, (self @ torch.ones_like(x[..., :1])).squeeze(-1) > 0)
        square = x.square().sum(-1, keepdim=True)
        messages = self @ torch.cat([x, square], dim=-1)
        rough = square.squeeze(-1) - 2 * (x * messages[..., :-1]).sum(-1) + messages[..., -1]
        return rough.clamp(min=0).sum(-1)

    def to_dense(self) -> Float[Tensor, "b n n"]:
        """The matrix, for inspection of small graphs."""
        b, n, _ = self.shape
        return self @ torch.eye(n, dtype=self.dtype, device=self.device).expand(b, n, n)

    def reweighted(self, x: Float[Tensor, "b n d"], *, p: float, eps: float) -> "Weights":
        """The graph R of `setwise.nn.PNormBlock`; only weights that are a list of edges have one."""
        raise TypeError(f"PNormBlock needs a matrix or SparseWeights, got {type(self).__name__}")

    def check(self, x: Tensor) -> None:
        """Raise unless the features are those of the graph's elements."""
        if x.dim() != 3 or x.shape[:2] != self.shape[:2]:
            b, n, _ = self.shape
            raise ValueError(f"x must be [{b}, {n}, d] as the graph is, got {list(x.shape)}")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Let ``torch.matmul(W, x)`` be ``W @ x``: a compiler calls it in this form, in either order."""
        if function in (torch.matmul, Tensor.matmul, Tensor.__matmul__):
            W, x = reversed(args) if torch.compiler.is_compiling() and isinstance(args[0], Tensor) else args
            if isinstance(W, Weights):
                return W.__matmul__(x)
        return NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={list(self.shape)}, dtype={self.dtype}, device={self.device})"


def normal_form(normalize: Normalize) -> tuple[bool, float]:
    """Whether a normalisation is a softmax of K (True) or of log K (False), and its temperature.

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


def gaussian_form(kernel: DeepKernel, normalize: Normalize) -> tuple[bool, float]:
    """The `normal_form` of a graph without a matrix, which must have the Gaussian kernel."""
    if not kernel.is_gaussian:
        name = getattr(kernel.kernel, "__name__", kernel.kernel)
        raise ValueError(f"without the matrix, the kernel must be log_rbf_kernel, got {name}")
    return normal_form(normalize)
