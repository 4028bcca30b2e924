"""Convolution layers of the paper's image encoders."""

from functools import reduce
from operator import or_

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad, relu

from setwise.nn._conv_pool import conv_pool
from setwise.nn.layers import BatchNorm, Resettable


class ConvPool(Resettable):
    """Convolution, 2 × 2 max pooling, ReLU: the paper's Conv(c_i, c_o, k, ReLU, MaxPool(2, 2)).

    Pooling before the ReLU gives the same result at a quarter of the cost. Weights are initialised with
    Kaiming's uniform distribution and biases with zero, which preserves the variance of the signal.

    Boolean images are black and white. An output depends on (k + 1) × (k + 1) pixels, and few of the
    2^((k + 1)²) patterns occur in drawings: with one channel and k ≤ 3 each pattern that occurs is convolved
    once, and the outputs are looked up.

    Args:
        in_channels: number of input channels.
        out_channels: number of output channels.
        kernel: side length of the kernel; there is no padding.
        norm: apply a batch norm before the ReLU.

    >>> images = torch.rand(2, 1, 105, 105) < 0.1
    >>> layer = ConvPool(1, 10)
    >>> layer(images).shape, layer(images).allclose(layer(images.float()), atol=1e-6)
    (torch.Size([2, 10, 51, 51]), True)
    """

    def __init__(self, in_channels: int, out_channels: int, *, kernel: int = 3, norm: bool = False) -> None:
        super().__init__()
        for name, size in (("in_channels", in_channels), ("out_channels", out_channels), ("kernel", kernel)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        self.convolution = nn.Conv2d(in_channels, out_channels, kernel)
        self.convolution.weight.data = self.convolution.weight.data.contiguous(
            memory_format=torch.channels_last
        )
        self.norm = BatchNorm(out_channels) if norm else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise the weights."""
        nn.init.kaiming_uniform_(self.convolution.weight, nonlinearity="relu", generator=generator)
        if self.convolution.bias is not None:
            nn.init.zeros_(self.convolution.bias)

    def forward(self, x: Shaped[Tensor, "m i h w"]) -> Float[Tensor, "m o v u"]:
        """Convolve and pool the images."""
        side = self.convolution.kernel_size[0] + 1
        if x.dim() != 4 or min(x.shape[2:]) < side:
            raise ValueError(f"expected images of at least {side} × {side} pixels, got {list(x.shape)}")
        weight, bias = self.convolution.weight, self.convolution.bias
        if x.dtype == torch.bool and x.shape[1] == 1 and side <= 4:
            return self._look_up(x, side)
        x = x.to(weight.dtype)
        if isinstance(self.norm, nn.Identity) and bias is not None:
            return conv_pool(x, weight, bias)
        return relu(self.norm(self._convolve(x.contiguous(memory_format=torch.channels_last))))

    def _convolve(self, x: Tensor) -> Tensor:
        return max_pool2d(self.convolution(x), 2)

    def _look_up(self, x: Tensor, side: int) -> Tensor:
        patches, row = distinct_patches(x, side)
        table = self._convolve(patches.to(self.convolution.weight.dtype)).flatten(1)
        if isinstance(self.norm, nn.Identity):  # batch statistics need every pixel, not every pattern
            return rows_as_channels(relu(table), row)
        return relu(self.norm(rows_as_channels(table, row)))


class InkConvPool(nn.Module):
    """Two `ConvPool` layers on black-and-white drawings, evaluated only where there is ink.

    Most of a drawing is blank, and both layers have a constant output on blank areas. The first layer is
    looked up as in `ConvPool`; the second one is a matrix product over the patches with ink. Images of other
    types pass through the two layers as usual.

    Args:
        first: layer with one input channel and kernel side at most 3, without norm.
        second: layer without norm.

    >>> images = torch.zeros(2, 1, 29, 29, dtype=torch.bool)
    >>> images[0, 0, 3:20, 14] = True
    >>> first, second = ConvPool(1, 8), ConvPool(8, 4)
    >>> InkConvPool(first, second)(images).allclose(second(first(images)), atol=1e-6)
    True
    """

    def __init__(self, first: ConvPool, second: ConvPool) -> None:
        super().__init__()
        if not all(isinstance(layer.norm, nn.Identity) for layer in (first, second)):
            raise ValueError("first and second must not have a norm, got a layer with norm=True")
        if first.convolution.in_channels != 1 or first.convolution.kernel_size[0] > 3:
            raise ValueError(
                "first must have one input channel and a kernel of side at most 3, "
                f"got {first.convolution.in_channels} channels and side {first.convolution.kernel_size[0]}"
            )
        if second.convolution.in_channels != first.convolution.out_channels:
            raise ValueError(
                f"second must have {first.convolution.out_channels} input channels, the outputs of first, "
                f"got {second.convolution.in_channels}"
            )
        self.first = first
        self.second = second

    def forward(self, x: Shaped[Tensor, "m 1 h w"]) -> Float[Tensor, "m o v u"]:
        """Convolve and pool the images twice."""
        first, second = (layer.convolution for layer in (self.first, self.second))
        min_side = first.kernel_size[0] + 2 * second.kernel_size[0] + 1
        fits = x.dim() == 4 and x.shape[1] == 1 and min(x.shape[2:]) >= min_side  # else the layers raise
        if x.dtype != torch.bool or second.bias is None or not fits:
            out: Tensor = self.second(self.first(x))
            return out
        patches, row = distinct_patches(x, first.kernel_size[0] + 1)
        table = relu(self.first._convolve(patches.to(first.weight.dtype)).flatten(1))
        positions, window = _windows(row, second.kernel_size[0] + 1)
        inputs = table.index_select(0, window.flatten()).view(len(window), -1)
        pooled = (inputs @ _shifted_kernels(second.weight)).unflatten(1, (4, -1)).amax(1)
        pooled = relu(pooled + second.bias)
        height, width = ((side - second.kernel_size[0] + 1) // 2 for side in row.shape[1:])
        blank = pooled[-1].expand(len(x) * height * width, -1)
        y = blank.index_copy(0, positions, pooled[:-1])
        return y.view(len(x), height, width, y.shape[1]).permute(0, 3, 1, 2)


def _windows(row: Int[Tensor, "m v u"], side: int) -> tuple[Int[Tensor, " p"], Int[Tensor, "q s"]]:
    """Indices of the outputs that depend on ink, and the patterns of each; the last row is a blank window."""
    height, width = row.shape[1:]
    ink = max_pool2d((row > 0).float().unsqueeze(1), side, stride=2).squeeze(1) > 0
    image, v, u = ink.nonzero(as_tuple=True)
    corner = (image * height + 2 * v) * width + 2 * u
    offset = torch.arange(side, device=row.device)
    window = row.flatten()[corner.unsqueeze(1) + (offset.unsqueeze(1) * width + offset).flatten()]
    return ink.flatten().nonzero().squeeze(1), torch.cat([window, window.new_zeros(1, side * side)])


def _shifted_kernels(weight: Float[Tensor, "o c k k"]) -> Float[Tensor, "s p"]:
    """The kernel at the four positions of a 2 × 2 pool, as a matrix for windows of (k + 1)² c values."""
    placed = [pad(weight, (x, 1 - x, y, 1 - y)) for y in (0, 1) for x in (0, 1)]
    return torch.stack(placed).permute(3, 4, 2, 0, 1).flatten(3).flatten(0, 2)


def distinct_patches(
    x: Bool[Tensor, "m 1 h w"], side: int
) -> tuple[Bool[Tensor, "t 1 {side} {side}"], Int[Tensor, "m v u"]]:
    """Distinct square patches at every second pixel, the blank one first, and the patch index per position.

    >>> patches, row = distinct_patches(torch.eye(6, dtype=torch.bool)[None, None], 4)
    >>> patches.shape, row.tolist()
    (torch.Size([4, 1, 4, 4]), [[[3, 2], [1, 3]]])
    """
    height, width = ((length - side) // 2 + 1 for length in x.shape[2:])
    bits = x.squeeze(1).int()
    lines = reduce(or_, (bits[:, :, j : j + 2 * width - 1 : 2] << j for j in range(side)))
    pattern = reduce(or_, (lines[:, i : i + 2 * height - 1 : 2] << (side * i) for i in range(side)))
    occurs = torch.zeros(2 ** (side * side), dtype=torch.bool, device=x.device)
    occurs[pattern.flatten()] = True
    occurs[0] = True
    numbers = occurs.nonzero()
    patches = (numbers >> torch.arange(side * side, device=x.device)) & 1
    return patches.view(-1, 1, side, side).bool(), (occurs.cumsum(0) - 1)[pattern]


def rows_as_channels(table: Float[Tensor, "t c"], row: Int[Tensor, "m v u"]) -> Float[Tensor, "m c v u"]:
    """Use the table row of each pixel as its channels, in the channels-last memory format."""
    return table.index_select(0, row.flatten()).view(*row.shape, table.shape[1]).permute(0, 3, 1, 2)
