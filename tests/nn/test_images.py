"""Convolutions with pooling: in chunks, and by looking up patterns."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

import setwise as sw
from setwise.nn import _conv_pool as convpool
from setwise.nn import images as nn_images
from setwise.nn._conv_pool import conv_pool
from setwise.nn.images import InkConvPool, distinct_patches, rows_as_channels


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the chunked implementation for few channels, too: the tests are faster."""
    monkeypatch.setattr(convpool, "MIN_CHANNELS", 1)


def drawing(m: int = 5, height: int = 23, width: int = 30, seed: int = 0) -> torch.Tensor:
    return torch.rand(m, 1, height, width, generator=torch.Generator().manual_seed(seed)) < 0.3


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(5, 5), (6, 9), (23, 30), (22, 31)])
def test_black_and_white_images_give_what_grey_ones_give(kernel: int, size: tuple[int, int]) -> None:
    layer = sw.nn.ConvPool(1, 6, kernel=kernel).double()
    nn.init.normal_(layer.convolution.bias)
    x = drawing(3, *size)
    grads = []
    outs = []
    for images in (x, x.double()):
        out = layer(images)
        layer.zero_grad()
        (out * torch.linspace(-1, 2, out.numel()).double().view_as(out)).sum().backward()
        outs.append(out.detach())
        grads.append([p.grad.clone() for p in layer.parameters()])
    assert torch.allclose(*outs, atol=1e-12)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(*grads, strict=True))
    assert outs[0].abs().sum() > 0


@pytest.mark.parametrize("kernel", [3, 5])
def test_pooling_first_is_the_papers_layer(kernel: int) -> None:
    layer = sw.nn.ConvPool(3, 4, kernel=kernel)
    x = torch.randn(2, 3, 20, 17)
    paper = nn.functional.max_pool2d(layer.convolution(x).relu(), 2)
    assert torch.allclose(layer(x), paper, atol=1e-6)
    assert layer(x).shape == paper.shape


def test_patterns_are_told_apart_under_autocast() -> None:
    """bfloat16 has eight bits for the sixteen pixels of a pattern."""
    layer = sw.nn.ConvPool(1, 6)
    x = drawing()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert torch.allclose(out.float(), layer(x), atol=0.05)


def test_colours_of_black_and_white_are_convolved() -> None:
    layer = sw.nn.ConvPool(2, 6)
    x = torch.rand(3, 2, 9, 9) < 0.5
    assert torch.equal(layer(x), layer(x.float()))


def test_batch_normalisation_stands_before_the_relu() -> None:
    layer = sw.nn.ConvPool(1, 6, norm=True)
    x = drawing(20)
    out = layer(x)
    assert (out >= 0).all()
    pooled = nn.functional.max_pool2d(layer.convolution(x.float()), 2)
    mean, spread = pooled.mean((0, 2, 3), keepdim=True), pooled.std((0, 2, 3), correction=0, keepdim=True)
    assert torch.allclose(out, ((pooled - mean) / spread).relu(), atol=1e-3)


def test_the_signal_keeps_its_scale() -> None:
    layers = nn.Sequential(*(sw.nn.ConvPool(i, 64) for i in (64, 64, 64)))
    sw.nn.initialize(layers, sw.training.generator("weights", 0))
    x = torch.randn(8, 64, 40, 40).relu()
    assert 1 < layers(x).square().mean() / x.square().mean() < 10  # the maximum of four is larger than one
    assert all((layer.convolution.bias == 0).all() for layer in layers)


def test_a_seed_fixes_the_weights() -> None:
    a, b, c = (
        sw.nn.initialize(sw.nn.ConvPool(1, 3), sw.training.generator("weights", seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(a.convolution.weight, b.convolution.weight)
    assert not torch.equal(a.convolution.weight, c.convolution.weight)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="out_channels must be at least 1, got 0"):
        sw.nn.ConvPool(1, 0)
    with pytest.raises(ValueError, match=r"at least 4 × 4 pixels, got \[2, 1, 3, 9\]"):
        sw.nn.ConvPool(1, 3)(torch.zeros(2, 1, 3, 9))


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return max_pool2d(conv2d(x, weight, bias).relu(), 2)


def operands(m: int, channels: int, kernel: int, size: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    shapes = [(m, channels, *size), (5, channels, kernel, kernel), (5,)]
    return [torch.randn(s, generator=draw, dtype=dtype).requires_grad_() for s in shapes]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
@pytest.mark.parametrize("size", [(8, 8), (9, 8), (8, 11), (9, 9)])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_chunks_give_the_same_result_as_plain_layers(
    kernel: int, size: tuple[int, int], dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convpool, "CACHE", 2000)  # several chunks, the last of them smaller
    inputs = operands(7, 3, kernel, size, dtype)
    for form in (torch.contiguous_format, torch.channels_last):
        inputs[0] = inputs[0].detach().contiguous(memory_format=form).requires_grad_()
        out, expected = conv_pool(*inputs), plain(*inputs)
        assert torch.allclose(out, expected, atol=tolerance)
        grad = torch.randn_like(expected)
        found, wanted = (torch.autograd.grad(y, inputs, grad) for y in (out, expected))
        assert all(torch.allclose(a, b, atol=tolerance * 10) for a, b in zip(found, wanted, strict=True))
        with torch.no_grad():
            assert torch.equal(conv_pool(*inputs), out)


def test_few_channels_use_the_plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = operands(3, 2, 3, (8, 9), torch.float64)
    ours = conv_pool(*inputs)
    monkeypatch.setattr(convpool, "MIN_CHANNELS", 6)
    assert "ConvPool" not in str(conv_pool(*inputs).grad_fn)
    assert torch.allclose(conv_pool(*inputs), ours)


def test_first_and_second_derivatives() -> None:
    inputs = operands(2, 1, 2, (5, 6), torch.float64)
    assert torch.autograd.gradcheck(conv_pool, inputs)
    assert torch.autograd.gradgradcheck(conv_pool, inputs)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_the_gradients_that_are_needed_are_computed(needed: tuple[int, ...], double: bool) -> None:
    inputs = [
        t.detach().requires_grad_(i in needed) for i, t in enumerate(operands(3, 2, 3, (8, 9), torch.float64))
    ]
    out, expected = conv_pool(*inputs), plain(*inputs)
    with torch.set_grad_enabled(double):
        returned = convpool._ConvPool.backward(out.grad_fn, torch.ones_like(out))
    assert [gradient is not None for gradient in returned[:3]] == [i in needed for i in range(3)]
    wanted = [inputs[i] for i in needed]
    gradients, reference = (
        torch.autograd.grad(y.sum(), wanted, create_graph=double) for y in (out, expected)
    )
    assert all(torch.allclose(a, b) for a, b in zip(gradients, reference, strict=True))


def test_functional_transforms() -> None:
    x, weight, bias = (t.detach() for t in operands(3, 2, 3, (6, 7), torch.float64))
    for argument in range(3):
        found, expected = (
            torch.func.jacrev(f, argnums=argument)(x, weight, bias) for f in (conv_pool, plain)
        )
        assert torch.allclose(found, expected)
    found, expected = (
        torch.vmap(torch.func.grad(lambda w, one, f=f: f(one[None], w, bias).square().sum()), (None, 0))(
            weight, x
        )
        for f in (conv_pool, plain)
    )
    assert torch.allclose(found, expected)
    with torch.no_grad():
        assert torch.allclose(
            torch.vmap(conv_pool, (0, None, None))(x[:, None], weight, bias)[:, 0], plain(x, weight, bias)
        )


@pytest.mark.parametrize("norm", [False, True])
def test_whole_numbers_are_read_as_numbers(norm: bool) -> None:
    layer = sw.nn.ConvPool(3, 20, kernel=4, norm=norm)
    x = torch.randint(0, 256, (5, 3, 11, 12), dtype=torch.uint8)
    assert torch.equal(layer.eval()(x), layer(x.float()))


def test_one_of_equal_pixels_gets_the_gradient() -> None:
    layer = sw.nn.ConvPool(1, 1, kernel=3)
    nn.init.ones_(layer.convolution.weight)
    x = torch.ones(2, 1, 8, 8, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert x.grad.sum() == 9 * layer(x).numel()
    assert layer.convolution.bias.grad.item() == layer(x).numel()


def test_no_gradient_passes_an_inactive_relu() -> None:
    layer = sw.nn.ConvPool(2, 3)
    nn.init.constant_(layer.convolution.bias, -100.0)
    x = torch.randn(2, 2, 8, 8, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert all(
        (t == 0).all() for t in (out, x.grad, layer.convolution.weight.grad, layer.convolution.bias.grad)
    )


def test_nan_propagates() -> None:
    layer = sw.nn.ConvPool(2, 3)
    x = torch.randn(2, 2, 8, 8)
    x[0, 1, 7, 7] = torch.nan
    expected = torch.zeros(2, 3, 3, 3, dtype=torch.bool)
    expected[0, :, 2, 2] = True
    assert torch.equal(layer(x).isnan(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_no_images(dtype: torch.dtype) -> None:
    layer = sw.nn.ConvPool(3, 4)
    out = layer(torch.zeros(0, 3, 9, 8, dtype=dtype))
    out.sum().backward()
    assert out.shape == (0, 4, 3, 3)
    assert all((p.grad == 0).all() for p in layer.parameters())


def test_bfloat16_autocast_trains() -> None:
    layer, x = sw.nn.ConvPool(3, 4), torch.randn(2, 3, 9, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert torch.allclose(out.float(), layer(x), atol=0.1)
    out.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_copies_of_layers_agree() -> None:
    layer, x = sw.nn.ConvPool(3, 4), torch.randn(2, 3, 9, 9)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))


def test_compiles_without_graph_breaks() -> None:
    """In a process of its own: the run-time type checks of the other tests cannot be traced."""
    program = """
import torch, setwise as sw
layer, x = sw.nn.ConvPool(3, 16, kernel=4), torch.randn(2, 3, 9, 9)
compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
assert torch.allclose(compiled(x), layer(x), atol=1e-5)
a, b = (torch.autograd.grad(f(x).square().sum(), layer.convolution.weight)[0] for f in (compiled, layer))
assert torch.allclose(a, b, atol=1e-4)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("side", [2, 3, 4])
@pytest.mark.parametrize("size", [(4, 4), (5, 7), (9, 12)])
def test_distinct_patches_are_those_of_a_plain_loop(side: int, size: tuple[int, int]) -> None:
    x = drawing(3, *size)
    patches, row = distinct_patches(x, side)
    assert row.shape == (3, (size[0] - side) // 2 + 1, (size[1] - side) // 2 + 1)
    seen = {tuple([False] * side * side)}
    for m in range(3):
        for i, line in enumerate(row[m]):
            for j, number in enumerate(line):
                patch = x[m, 0, 2 * i : 2 * i + side, 2 * j : 2 * j + side]
                assert torch.equal(patches[number, 0], patch)
                seen.add(tuple(patch.flatten().tolist()))
    assert not patches[0].any()
    assert len(patches) == len(seen) == len({tuple(p.flatten().tolist()) for p in patches})
    assert patches.dtype == torch.bool


@pytest.mark.parametrize("blank", [True, False])
def test_distinct_patches_of_images_of_one_colour(blank: bool) -> None:
    """The blank patch comes first even where no patch is blank."""
    patches, row = distinct_patches(torch.full((2, 1, 8, 8), not blank), 4)
    assert len(patches) == (1 if blank else 2)
    assert not patches[0].any()
    assert patches[1:].all()
    assert (row == (0 if blank else 1)).all()


def test_rows_are_placed_as_channels() -> None:
    table, row = torch.randn(5, 3), torch.randint(5, (2, 4, 6))
    found = rows_as_channels(table, row)
    assert found.shape == (2, 3, 4, 6)
    assert all(
        torch.equal(found[m, :, i, j], table[row[m, i, j]])
        for m in range(2)
        for i in range(4)
        for j in range(6)
    )
    assert rows_as_channels(table, row[:0]).shape == (0, 3, 4, 6)


class TestInk:
    @staticmethod
    def layers(channels: int = 6, kernels: tuple[int, int] = (3, 3)) -> InkConvPool:
        """In double precision, with biases that show where a window is blank."""
        first = sw.nn.ConvPool(1, channels, kernel=kernels[0])
        second = sw.nn.ConvPool(channels, 5, kernel=kernels[1])
        for layer in (first, second):
            nn.init.normal_(layer.convolution.bias, std=0.3)
        return InkConvPool(first, second).double()

    @staticmethod
    def images(kind: str, height: int = 23, width: int = 30) -> Tensor:
        blank = torch.zeros(4, 1, height, width, dtype=torch.bool)
        if kind == "blank":
            return blank
        if kind == "full":
            return ~blank
        if kind == "noise":
            return drawing(4, height, width)
        if kind == "corner":  # one pixel that only the first output sees, one that no output sees
            blank[0, 0, 0, 0] = blank[1, 0, -1, -1] = True
            return blank
        blank[0, 0, 3 : height - 4, width // 2] = True  # a stroke, a blank image, a full one, some noise
        blank[2] = True
        blank[3] = drawing(1, height, width)[0]
        return blank

    @staticmethod
    def outcome(network: InkConvPool, x: Tensor, plain: bool) -> list[Tensor]:
        """The output and the gradients of a function of it to all parameters."""
        network.zero_grad()
        out = network.second(network.first(x)) if plain else network(x)
        (out * torch.linspace(-1, 2, out.numel()).to(out).view_as(out)).square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in network.parameters())]

    @pytest.mark.parametrize("kind", ["blank", "full", "noise", "corner", "mixed"])
    @pytest.mark.parametrize("kernels", [(3, 3), (2, 3), (3, 4), (1, 2), (2, 1)])
    @pytest.mark.parametrize("size", [(23, 30), (12, 13), (13, 12)])
    def test_it_is_the_second_layer_after_the_first(
        self, kind: str, kernels: tuple[int, int], size: tuple[int, int]
    ) -> None:
        network, x = self.layers(kernels=kernels), self.images(kind, *size)
        found, expected = (self.outcome(network, x, plain) for plain in (False, True))
        grey = self.outcome(network, x.double(), plain=True)
        for a, b, c in zip(found, expected, grey, strict=True):
            assert a.shape == b.shape
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-10)
            assert torch.allclose(a, c, rtol=1e-9, atol=1e-10)
        assert found[0].abs().max() > 0
        assert len(found) == 5

    @pytest.mark.parametrize("kind", ["blank", "mixed"])
    def test_gradcheck(self, kind: str) -> None:
        network = self.layers(2)
        x = self.images(kind, 12, 12)
        assert torch.autograd.gradcheck(lambda *_: network(x), tuple(network.parameters()))

    def test_images_of_other_types_go_through_the_layers(self) -> None:
        network = self.layers().float()
        grey = torch.rand(3, 1, 23, 30)
        assert torch.equal(network(grey), network.second(network.first(grey)))
        bytes_ = (255 * grey).to(torch.uint8)
        assert torch.equal(network(bytes_), network.second(network.first(bytes_)))
        x = grey < 0.3
        assert torch.allclose(network(x), network(x.float()), atol=1e-5)
        assert network(x).dtype == torch.float32

    @pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
    def test_no_images(self, dtype: torch.dtype) -> None:
        """As where all elements of a batch are padding."""
        network = self.layers()
        out = network(torch.zeros(0, 1, 23, 30, dtype=dtype))
        assert out.shape == (0, 5, 4, 6)
        out.sum().backward()
        assert all(p.grad is not None and (p.grad == 0).all() for p in network.parameters())
        encoder = sw.nn.ElementEncoder(nn.Sequential(network, nn.Flatten()))
        features = encoder(torch.zeros(2, 3, 1, 23, 30, dtype=dtype), torch.zeros(2, 3, dtype=torch.bool))
        assert torch.equal(features, torch.zeros(2, 3, 120).double())
        assert sw.nn.ConvPool(1, 3)(torch.zeros(0, 1, 9, 9, dtype=torch.bool)).shape == (0, 3, 3, 3)

    def test_a_layer_without_a_bias(self) -> None:
        network, x = self.layers(), self.images("mixed")
        network.second.convolution.bias = None
        assert torch.allclose(network(x), network.second(network.first(x)))
        network = self.layers()
        network.first.convolution.bias = None
        assert torch.allclose(network(x), network.second(network.first(x)))

    def test_the_parameters_are_those_of_the_layers(self) -> None:
        network, x = self.layers(), self.images("mixed")
        assert {name.split(".")[0] for name in network.state_dict()} == {"first", "second"}
        for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
            assert torch.equal(other(x), network(x))
        a, b = (sw.nn.initialize(self.layers(), sw.training.generator("weights", 0)) for _ in range(2))
        assert torch.equal(a(x), b(x))

    def test_bfloat16_autocast_trains(self) -> None:
        network, x = self.layers().float(), self.images("mixed")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = network(x)
        assert torch.allclose(out.float(), network(x), atol=0.1)
        out.float().sum().backward()
        assert all(p.grad.isfinite().all() for p in network.parameters())

    def test_only_windows_with_ink_are_computed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The rows of the matrix product: windows that touch the stroke, and a blank one."""
        network, rows, windows = self.layers(), [], nn_images._windows

        def counted(row: Tensor, side: int) -> tuple[Tensor, Tensor]:
            found = windows(row, side)
            rows.append(len(found[1]))
            return found

        monkeypatch.setattr(nn_images, "_windows", counted)
        x = torch.zeros(10, 1, 105, 105, dtype=torch.bool)
        network(x)
        x[3, 0, 50, 50] = True
        network(x)
        assert rows[0] == 1
        assert 1 < rows[1] <= 1 + 3 * 3

    @pytest.mark.usefixtures("unchecked")
    def test_mistakes(self) -> None:
        with pytest.raises(ValueError, match="must not have a norm, got a layer with norm=True"):
            InkConvPool(sw.nn.ConvPool(1, 4, norm=True), sw.nn.ConvPool(4, 4))
        with pytest.raises(ValueError, match="must not have a norm, got a layer with norm=True"):
            InkConvPool(sw.nn.ConvPool(1, 4), sw.nn.ConvPool(4, 4, norm=True))
        with pytest.raises(ValueError, match=r"one input channel and a kernel .*, got 3 channels and side 3"):
            InkConvPool(sw.nn.ConvPool(3, 4), sw.nn.ConvPool(4, 4))
        with pytest.raises(ValueError, match=r"one input channel and a kernel .*, got 1 channels and side 4"):
            InkConvPool(sw.nn.ConvPool(1, 4, kernel=4), sw.nn.ConvPool(4, 4))
        with pytest.raises(ValueError, match=r"second must have 4 input channels, .* got 5"):
            InkConvPool(sw.nn.ConvPool(1, 4), sw.nn.ConvPool(5, 4))
        network = self.layers()
        for dtype in (torch.bool, torch.float64):
            with pytest.raises(ValueError, match=r"at least 4 × 4 pixels, got \[1, 6, 3, 10\]"):
                network(torch.zeros(1, 1, 9, 23, dtype=dtype))
            with pytest.raises(ValueError, match=r"at least 4 × 4 pixels, got \[1, 23, 23\]"):
                network(torch.zeros(1, 23, 23, dtype=dtype))
            assert network(torch.zeros(1, 1, 10, 10, dtype=dtype)).shape == (1, 5, 1, 1)
            with pytest.raises(RuntimeError, match=r"expected input.* to have 1 channels, but got 2"):
                network(torch.zeros(1, 2, 23, 23, dtype=dtype))
