"""Networks of images: the convolution layers that the paper's encoders are made of."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, relu

from setwise.nn.convpool import conv_pool
from setwise.nn.dense import Drawn
from setwise.nn.norm import BatchNorm


class ConvPool(Drawn):
    """Convolution, 2 × 2 max pooling, ReLU: the paper's Conv(c_i, c_o, k, ReLU, MaxPool(2, 2)).

    Pooling before the ReLU gives the same result and leaves a quarter of it to do. Weights start from
    Kaiming's uniform law, biases at zero, so that the signal neither fades nor explodes on its way.

    Images of type bool have black and white pixels only. An output sees (k + 1) × (k + 1) of them, and few
    of the 2^((k + 1)²) patterns ever occur in drawings: with one channel and k ≤ 3 each pattern that does
    is convolved once, and the outputs are looked up.

    Args:
        in_channels: channels that come in.
        out_channels: channels that go out.
        kernel: side of the convolution, without padding.
        norm: whether to normalise over the batch before the ReLU.

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
        """Draw the weights anew."""
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
            return relu(self.norm(self._look_up(x, side)))
        x = x.to(weight.dtype)
        if isinstance(self.norm, nn.Identity) and bias is not None:
            return conv_pool(x, weight, bias)
        return relu(self.norm(self._convolve(x.contiguous(memory_format=torch.channels_last))))

    def _convolve(self, x: Tensor) -> Tensor:
        return max_pool2d(self.convolution(x), 2)

    def _look_up(self, x: Tensor, side: int) -> Tensor:
        pattern = _patterns(x, side)
        seen = torch.zeros(2 ** (side * side), dtype=torch.bool, device=x.device)
        seen[pattern] = True
        numbers = seen.nonzero().squeeze(1)
        bits = (numbers.unsqueeze(1) >> torch.arange(side * side, device=x.device)) & 1
        patches = bits.view(-1, 1, side, side).to(self.convolution.weight.dtype)
        table = self._convolve(patches).flatten(1)
        row = (seen.cumsum(0) - 1)[pattern]
        y = table.index_select(0, row.flatten())
        return y.view(*pattern.shape, -1).permute(0, 3, 1, 2)  # channels last, as convolutions like it


def _patterns(x: Bool[Tensor, "m 1 h w"], side: int) -> Int[Tensor, "m v u"]:
    """The number of the pattern below each output: pixel i of the patch, row by row, is bit i."""
    powers = 2.0 ** torch.arange(side * side, device=x.device, dtype=torch.float32)
    with torch.autocast(x.device.type, enabled=False):  # bfloat16 cannot tell 2^16 numbers apart
        return conv2d(x.float(), powers.view(1, 1, side, side), stride=2).squeeze(1).long()
