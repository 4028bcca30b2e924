"""Convolution, 2 × 2 max pooling and ReLU as one function, some images at a time.

The plain layers spend their time on memory more than on arithmetic: on the convolution's output, four times
what pooling leaves of it, on its gradient, on eight bytes for each index. These are made for as many images
here as the cache holds. Only the pooled output stays, and a byte for each: which of four pixels it was.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad, relu

CACHE = 2**21  # bytes of convolution outputs at a time for each thread
FEW = 16  # channels so few that comparing them pixel by pixel is slower than the plain layers


def conv_pool(
    x: Float[Tensor, "m i h w"], weight: Float[Tensor, "o i k k"], bias: Float[Tensor, " o"]
) -> Float[Tensor, "m o v u"]:
    """relu(max_pool2d(conv2d(x, weight, bias), 2)).

    Where pixels of a pooled output are equal, one of them gets its gradient. NaN in makes NaN out.

    >>> x, weight = torch.randn(2, 3, 9, 9), torch.randn(20, 3, 4, 4)
    >>> plain = relu(max_pool2d(conv2d(x, weight), 2))
    >>> torch.allclose(conv_pool(x, weight, torch.zeros(20)), plain, atol=1e-5)
    True
    """
    plain = x.device.type != "cpu" or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    if plain or len(weight) < FEW:
        x = x.contiguous(memory_format=torch.channels_last)
        return relu(max_pool2d(conv2d(x, weight, bias), 2))
    y: Tensor = _ConvPool.apply(x, weight, bias, torch.is_grad_enabled())[0]  # type: ignore[no-untyped-call]
    return y


class _ConvPool(torch.autograd.Function):
    """The function for processors.

    Comparisons are written as 0.0 and 1.0: torch takes ten times as long to write bool, or to read it in
    ``where``. The gradient finds its way by the derivative of hardtanh: this where that lies between.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, learns: bool) -> tuple[Tensor, Tensor]:
        height, width = ((side - weight.shape[-1] + 1) // 2 for side in x.shape[2:])
        y = _channels_last(weight, len(x), len(weight), height, width)
        source = torch.empty_like(y, dtype=torch.int8) if learns else y.new_empty(0)
        for some in _parts(y):
            a, b, c, d = _quarters(conv2d(_seen(x[some], weight, y), weight, bias))
            top, bottom = torch.maximum(a, b), torch.maximum(c, d)
            torch.maximum(top, bottom, out=y[some]).relu_()
            if learns:
                number, other, low = torch.empty_like(top), torch.empty_like(top), torch.empty_like(top)
                torch.gt(b, a, out=number)
                torch.gt(d, c, out=other).add_(2)
                torch.gt(bottom, top, out=low)
                source[some] = torch.lerp(number, other, low, out=number)
        return y, source

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:2], *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        (x, weight, y, source), grad = ctx.saved_tensors, grads[0]
        pixels = ctx.needs_input_grad[0]
        if torch.is_grad_enabled():  # to be differentiated once more, or vectorised
            return *_backward(x, weight, y, source, grad, pixels), None
        outs, height, width = y.shape[1:]
        grad_x = _channels_last(weight, *x.shape).zero_() if pixels else None
        grad_weight, grad_bias = torch.zeros_like(weight), weight.new_zeros(outs)
        for some in _parts(y):
            passed, number = torch.empty_like(y[some]), source[some].to(y.dtype)
            torch.ops.aten.threshold_backward(grad[some], y[some], 0, grad_input=passed)
            whole = _channels_last(weight, len(passed), outs, 2 * height, 2 * width)
            for i, quarter in enumerate(_quarters(whole)):
                torch.ops.aten.hardtanh_backward(passed, number, i - 0.5, i + 0.5, grad_input=quarter)
            images = _seen(x[some], weight, y)
            part_x, part_weight = _convolution_backward(whole, images, weight, pixels)
            grad_weight += part_weight
            grad_bias += passed.sum((0, 2, 3))
            if grad_x is not None and part_x is not None:
                grad_x[some, :, : images.shape[2], : images.shape[3]] = part_x
        return grad_x, grad_weight, grad_bias, None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor, learns: bool
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        def plain(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
            whole = conv2d(x, weight, bias)
            y, source = torch.stack(_quarters(whole)).max(0)
            return relu(y), source.to(torch.int8)

        return torch.vmap(plain, dims[:3])(x, weight, bias), (0, 0)


def _channels_last(like: Tensor, *shape: int) -> Tensor:
    m, channels, height, width = shape
    return like.new_empty(m, height, width, channels).permute(0, 3, 1, 2)


def _parts(y: Tensor) -> Iterator[slice]:
    """Runs of images whose convolutions fit into the cache."""
    one = 4 * y.element_size() * y.shape[1:].numel()
    step = max(1, CACHE * torch.get_num_threads() // one)
    return (slice(i, i + step) for i in range(0, len(y), step))


def _seen(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    """The images without the last row and column where pooling would drop what comes of them."""
    height, width = (2 * side + weight.shape[-1] - 1 for side in y.shape[2:])
    return x[:, :, :height, :width].contiguous(memory_format=torch.channels_last)


def _quarters(whole: Tensor) -> list[Tensor]:
    """The four pixels of each 2 × 2 square; a last odd row or column belongs to none."""
    height, width = (side // 2 * 2 for side in whole.shape[2:])
    return [whole[:, :, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, pixels: bool
) -> tuple[Tensor | None, Tensor]:
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [pixels, True, False]
    )
    return grad_x, grad_weight


def _backward(
    x: Tensor, weight: Tensor, y: Tensor, source: Tensor, grad: Tensor, pixels: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The backward pass in operations that have derivatives themselves."""
    passed = grad * (y > 0)
    quarters = torch.stack([passed * (source == i) for i in range(4)], -1).unflatten(-1, (2, 2))
    whole = quarters.permute(0, 1, 2, 4, 3, 5).flatten(4).flatten(2, 3)
    height, width = (side + weight.shape[-1] - 1 for side in whole.shape[2:])
    images = x[:, :, :height, :width]
    grad_x, grad_weight = _convolution_backward(whole, images, weight, pixels)
    if grad_x is not None:
        grad_x = pad(grad_x, (0, x.shape[3] - width, 0, x.shape[2] - height))
    return grad_x, grad_weight, passed.sum((0, 2, 3))
