"""Convolution, 2 × 2 max pooling and ReLU as one function with a hand-written gradient, in chunks of images.

The plain layers are bound by memory: they write the output of the convolution, four times as large as the
pooled one, its gradient, and eight bytes per pooling index. Here these exist only for a chunk of images that
fits into the cache. Only the pooled output is stored, with one byte per value for the position of the
maximum.
`benchmarks.histology_step` measures the gain of the whole training step.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad, relu

CACHE = 2**21  # bytes of convolution outputs per chunk and thread
MIN_CHANNELS = 16  # with fewer output channels the plain layers are faster


def conv_pool(
    x: Float[Tensor, "m i h w"], weight: Float[Tensor, "o i k k"], bias: Float[Tensor, " o"]
) -> Float[Tensor, "m o v u"]:
    """relu(max_pool2d(conv2d(x, weight, bias), 2)).

    If several pixels of a pooling window are equal, only one of them receives the gradient. NaN propagates.

    >>> x, weight = torch.randn(2, 3, 9, 9), torch.randn(20, 3, 4, 4)
    >>> plain = relu(max_pool2d(conv2d(x, weight), 2))
    >>> torch.allclose(conv_pool(x, weight, torch.zeros(20)), plain, atol=1e-5)
    True
    """
    plain = x.device.type != "cpu" or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    if plain or len(weight) < MIN_CHANNELS:
        x = x.contiguous(memory_format=torch.channels_last)
        return relu(max_pool2d(conv2d(x, weight, bias), 2))
    y: Tensor = _ConvPool.apply(x, weight, bias, torch.is_grad_enabled())[0]  # type: ignore[no-untyped-call]
    return y


class _ConvPool(torch.autograd.Function):
    """CPU implementation.

    Comparisons are stored as floats, because writing or reading bool tensors takes torch ten times as long.
    The backward pass routes the gradient with ``hardtanh_backward``, which selects where a value is in a
    range.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, needs_grad: bool) -> tuple[Tensor, Tensor]:
        height, width = ((side - weight.shape[-1] + 1) // 2 for side in x.shape[2:])
        y = _channels_last(weight, len(x), len(weight), height, width)
        source = torch.empty_like(y, dtype=torch.int8) if needs_grad else y.new_empty(0)
        for chunk in _chunks(y):
            a, b, c, d = _pool_pixels(conv2d(_crop(x[chunk], weight, y), weight, bias))
            top, bottom = torch.maximum(a, b), torch.maximum(c, d)
            torch.maximum(top, bottom, out=y[chunk]).relu_()
            if needs_grad:
                number, other, low = torch.empty_like(top), torch.empty_like(top), torch.empty_like(top)
                torch.gt(b, a, out=number)
                torch.gt(d, c, out=other).add_(2)
                torch.gt(bottom, top, out=low)
                source[chunk] = torch.lerp(number, other, low, out=number)
        return y, source

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:2], *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (x, weight, y, source), grad = ctx.saved_tensors, grads[0]
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # for second derivatives and vmap
            return *_backward(x, weight, y, source, grad, (needs_x, needs_weight, needs_bias)), None
        out_channels, height, width = y.shape[1:]
        grad_x = _channels_last(weight, *x.shape).zero_() if needs_x else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        grad_bias = weight.new_zeros(out_channels) if needs_bias else None
        for chunk in _chunks(y):
            passed, number = torch.empty_like(y[chunk]), source[chunk].to(y.dtype)
            torch.ops.aten.threshold_backward(grad[chunk], y[chunk], 0, grad_input=passed)
            if grad_bias is not None:
                grad_bias += passed.sum((0, 2, 3))
            if not (needs_x or needs_weight):
                continue
            whole = _channels_last(weight, len(passed), out_channels, 2 * height, 2 * width)
            for i, pixels in enumerate(_pool_pixels(whole)):
                torch.ops.aten.hardtanh_backward(passed, number, i - 0.5, i + 0.5, grad_input=pixels)
            images = _crop(x[chunk], weight, y)
            chunk_x, chunk_weight = _convolution_backward(whole, images, weight, needs_x, needs_weight)
            if grad_weight is not None and chunk_weight is not None:
                grad_weight += chunk_weight
            if grad_x is not None and chunk_x is not None:
                grad_x[chunk, :, : images.shape[2], : images.shape[3]] = chunk_x
        return grad_x, grad_weight, grad_bias, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor, needs_grad: bool
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        def plain(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
            whole = conv2d(x, weight, bias)
            y, source = torch.stack(_pool_pixels(whole)).max(0)
            return relu(y), source.to(torch.int8)

        return torch.vmap(plain, dims[:3])(x, weight, bias), (0, 0)


def _channels_last(like: Tensor, *shape: int) -> Tensor:
    m, channels, height, width = shape
    return like.new_empty(m, height, width, channels).permute(0, 3, 1, 2)


def _chunks(y: Tensor) -> Iterator[slice]:
    """Slices of the batch whose convolution outputs fit into the cache."""
    image_bytes = 4 * y.element_size() * y.shape[1:].numel()
    step = max(1, CACHE * torch.get_num_threads() // image_bytes)
    return (slice(i, i + step) for i in range(0, len(y), step))


def _crop(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    """Drop the last row or column of the images if it does not affect the pooled output."""
    height, width = (2 * side + weight.shape[-1] - 1 for side in y.shape[2:])
    return x[:, :, :height, :width].contiguous(memory_format=torch.channels_last)


def _pool_pixels(whole: Tensor) -> list[Tensor]:
    """The four pixels of each 2 × 2 pooling window; a last odd row or column is dropped."""
    height, width = (side // 2 * 2 for side in whole.shape[2:])
    return [whole[:, :, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of a convolution without padding; None for inputs that need none."""
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [needs_x, needs_weight, False]
    )
    return grad_x, grad_weight


def _backward(
    x: Tensor, weight: Tensor, y: Tensor, source: Tensor, grad: Tensor, needs: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Backward pass in differentiable operations."""
    needs_x, needs_weight, needs_bias = needs
    passed = grad * (y > 0)
    grad_bias = passed.sum((0, 2, 3)) if needs_bias else None
    if not (needs_x or needs_weight):
        return None, None, grad_bias
    pixels = torch.stack([passed * (source == i) for i in range(4)], -1).unflatten(-1, (2, 2))
    whole = pixels.permute(0, 1, 2, 4, 3, 5).flatten(4).flatten(2, 3)
    height, width = (side + weight.shape[-1] - 1 for side in whole.shape[2:])
    grad_x, grad_weight = _convolution_backward(
        whole, x[:, :, :height, :width], weight, needs_x, needs_weight
    )
    if grad_x is not None:
        grad_x = pad(grad_x, (0, x.shape[3] - width, 0, x.shape[2] - height))
    return grad_x, grad_weight, grad_bias
