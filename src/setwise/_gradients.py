"""Hand-written gradients of two formulas of `setwise.functional`, faster than automatic differentiation.

Both compute the plain formula in their docstring; `tests/test_gradients.py` compares them with it.
"""

from typing import Any

import torch
from torch import Tensor


class _ScaledSquaredDistances(torch.autograd.Function):
    """D_ij = a ‖z_i − z_j‖² from one product of z with itself.

    D is symmetric, so with S = G + Gᵀ one matrix product serves both ends of a pair. D is quadratic in z,
    so ⟨z, ∂z⟩ = 2a ∂a gives the gradient of the scale without another n × n pass.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, scale: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(z, dim=-1, keepdim=True).square()
        one = torch.ones_like(norms)
        left, right = torch.cat([-2 * z, norms, one], dim=-1), torch.cat([z, one, norms], dim=-1)
        return torch.bmm(left, right.mT).relu_().mul_(scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        z, scale = ctx.saved_tensors
        need_z, need_scale = ctx.needs_input_grad
        with torch.autocast(z.device.type, enabled=False):
            S = grads[0] + grads[0].mT
            grad = torch.baddbmm(S.sum(-1, keepdim=True) * z, S, z, alpha=-1)  # ∂z / 2a
            return (
                grad * (2 * scale) if need_z else None,
                torch.dot(grad.flatten(), z.flatten()) if need_scale else None,
            )


class _Diffusion(torch.autograd.Function):
    """(1 − γ) X + γ W X without keeping W X.

    Automatic differentiation keeps W X in each block for the gradient of γ. That gradient is ⟨G, W X − X⟩ =
    ⟨Wᵀ G − G, X⟩ for an incoming gradient G, and the gradient of X needs Wᵀ G anyway.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, W: Tensor, gamma: Tensor) -> Tensor:
        return torch.lerp(x, W @ x, gamma)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (x, W, gamma), (grad,) = ctx.saved_tensors, grads
        need_x, need_W, need_gamma = ctx.needs_input_grad
        grad_x = grad_W = grad_gamma = None
        with torch.autocast(x.device.type, enabled=False):
            if need_x or need_gamma:
                messages = W.mT @ grad
                grad_x = torch.lerp(grad, messages, gamma) if need_x else None
                grad_gamma = torch.dot((messages - grad).flatten(), x.flatten()) if need_gamma else None
            if need_W:
                grad_W = gamma * grad @ x.mT
        return grad_x, grad_W, grad_gamma


def scaled_squared_distances(z: Tensor, scale: Tensor) -> Tensor:
    """Scaled squared distances a ‖z_i − z_j‖² for z [b, n, e] and a scalar a."""
    distances: Tensor = _ScaledSquaredDistances.apply(z, scale)  # type: ignore[no-untyped-call]
    return distances


def diffusion(x: Tensor, W: Tensor, gamma: Tensor) -> Tensor:
    """(1 − γ) X + γ W X for x [b, n, d], W [b, n, n] of the same type, and a scalar γ."""
    mixed: Tensor = _Diffusion.apply(x, W, gamma)  # type: ignore[no-untyped-call]
    return mixed
