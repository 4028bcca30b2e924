"""Convolutions with pooling: the plain way, and by looking up patterns."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

import setwise as sw
from setwise.nn import convpool
from setwise.nn.convpool import conv_pool


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers of few channels take the way of many: the tests are faster."""
    monkeypatch.setattr(convpool, "FEW", 1)


def drawing(m: int = 5, height: int = 23, width: int = 30, seed: int = 0) -> torch.Tensor:
    return torch.rand(m, 1, height, width, generator=torch.Generator().manual_seed(seed)) < 0.3


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(5, 5), (6, 9), (23, 30), (22, 31)])
def test_black_and_white_images_give_what_grey_ones_give(kernel: int, size: tuple[int, int]) -> None:
    layer = sw.ConvPool(1, 6, kernel=kernel).double()
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
    layer = sw.ConvPool(3, 4, kernel=kernel)
    x = torch.randn(2, 3, 20, 17)
    paper = nn.functional.max_pool2d(layer.convolution(x).relu(), 2)
    assert torch.allclose(layer(x), paper, atol=1e-6)
    assert layer(x).shape == paper.shape


def test_patterns_are_told_apart_under_autocast() -> None:
    """bfloat16 has eight bits for the sixteen pixels of a pattern."""
    layer = sw.ConvPool(1, 6)
    x = drawing()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert torch.allclose(out.float(), layer(x), atol=0.05)


def test_colours_of_black_and_white_are_convolved() -> None:
    layer = sw.ConvPool(2, 6)
    x = torch.rand(3, 2, 9, 9) < 0.5
    assert torch.equal(layer(x), layer(x.float()))


def test_batch_normalisation_stands_before_the_relu() -> None:
    layer = sw.ConvPool(1, 6, norm=True)
    x = drawing(20)
    out = layer(x)
    assert (out >= 0).all()
    pooled = nn.functional.max_pool2d(layer.convolution(x.float()), 2)
    mean, spread = pooled.mean((0, 2, 3), keepdim=True), pooled.std((0, 2, 3), correction=0, keepdim=True)
    assert torch.allclose(out, ((pooled - mean) / spread).relu(), atol=1e-3)


def test_the_signal_keeps_its_scale() -> None:
    layers = nn.Sequential(*(sw.ConvPool(i, 64) for i in (64, 64, 64)))
    sw.initialize(layers, sw.generator("weights", 0))
    x = torch.randn(8, 64, 40, 40).relu()
    assert 1 < layers(x).square().mean() / x.square().mean() < 10  # the maximum of four is larger than one
    assert all((layer.convolution.bias == 0).all() for layer in layers)


def test_a_seed_fixes_the_weights() -> None:
    a, b, c = (sw.initialize(sw.ConvPool(1, 3), sw.generator("weights", seed)) for seed in (0, 0, 1))
    assert torch.equal(a.convolution.weight, b.convolution.weight)
    assert not torch.equal(a.convolution.weight, c.convolution.weight)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="out_channels must be at least 1, got 0"):
        sw.ConvPool(1, 0)
    with pytest.raises(ValueError, match=r"at least 4 × 4 pixels, got \[2, 1, 3, 9\]"):
        sw.ConvPool(1, 3)(torch.zeros(2, 1, 3, 9))


def test_shared_elements_are_encoded_once_and_alike() -> None:
    seen = []

    class Spy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            return x.flatten(1).cumsum(1)

    encoder = sw.ElementEncoder(Spy())
    values, index = torch.randn(4, 1, 2, 2), torch.tensor([[0, 3, 1], [3, 3, 2], [0, 0, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    shared = encoder(sw.Shared(values, index), mask)
    assert seen == [4]
    assert torch.equal(shared, encoder(values[index], mask))
    assert torch.equal(encoder(sw.Shared(values, index)), encoder(values[index]))


def test_models_take_shared_elements() -> None:
    values, index = torch.randn(4, 3), torch.tensor([[0, 3, 1], [3, 2, 2]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    x = sw.Shared(values, index)
    for build in (sw.DMPS.build, sw.DistinctDMPS.build, sw.DeepSets.build, sw.SetTransformer.build):
        model = build(3, 2, dim=8, pool="sum")
        assert torch.allclose(model(x, mask), model(values[index], mask), atol=1e-6)
    model = sw.DMPS.build(3, 1, dim=8).initialize_bandwidth(x, mask)
    assert torch.allclose(model.latent_graph(x, mask), model.latent_graph(values[index], mask))
    assert torch.allclose(model.dirichlet_energies(x, mask), model.dirichlet_energies(values[index], mask))


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return max_pool2d(conv2d(x, weight, bias).relu(), 2)


def operands(m: int, channels: int, kernel: int, size: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    shapes = [(m, channels, *size), (5, channels, kernel, kernel), (5,)]
    return [torch.randn(s, generator=draw, dtype=dtype).requires_grad_() for s in shapes]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
@pytest.mark.parametrize("size", [(8, 8), (9, 8), (8, 11), (9, 9)])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_some_images_at_a_time_give_what_plain_layers_give(
    kernel: int, size: tuple[int, int], dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convpool, "CACHE", 2000)  # several parts, the last of them smaller
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


def test_few_channels_take_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = operands(3, 2, 3, (8, 9), torch.float64)
    ours = conv_pool(*inputs)
    monkeypatch.setattr(convpool, "FEW", 6)
    assert "ConvPool" not in str(conv_pool(*inputs).grad_fn)
    assert torch.allclose(conv_pool(*inputs), ours)


def test_first_and_second_derivatives() -> None:
    inputs = operands(2, 2, 3, (7, 8), torch.float64)
    assert torch.autograd.gradcheck(conv_pool, inputs)
    assert torch.autograd.gradgradcheck(conv_pool, inputs)


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
    layer = sw.ConvPool(3, 20, kernel=4, norm=norm)
    x = torch.randint(0, 256, (5, 3, 11, 12), dtype=torch.uint8)
    assert torch.equal(layer.eval()(x), layer(x.float()))


def test_one_of_equal_pixels_gets_the_gradient() -> None:
    layer = sw.ConvPool(1, 1, kernel=3)
    nn.init.ones_(layer.convolution.weight)
    x = torch.ones(2, 1, 8, 8, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert x.grad.sum() == 9 * layer(x).numel()
    assert layer.convolution.bias.grad.item() == layer(x).numel()


def test_nothing_passes_where_the_relu_cuts() -> None:
    layer = sw.ConvPool(2, 3)
    nn.init.constant_(layer.convolution.bias, -100.0)
    x = torch.randn(2, 2, 8, 8, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert all(
        (t == 0).all() for t in (out, x.grad, layer.convolution.weight.grad, layer.convolution.bias.grad)
    )


def test_not_a_number_shows() -> None:
    layer = sw.ConvPool(2, 3)
    x = torch.randn(2, 2, 8, 8)
    x[0, 1, 7, 7] = torch.nan
    expected = torch.zeros(2, 3, 3, 3, dtype=torch.bool)
    expected[0, :, 2, 2] = True
    assert torch.equal(layer(x).isnan(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_no_images(dtype: torch.dtype) -> None:
    layer = sw.ConvPool(3, 4)
    out = layer(torch.zeros(0, 3, 9, 8, dtype=dtype))
    out.sum().backward()
    assert out.shape == (0, 4, 3, 3)
    assert all((p.grad == 0).all() for p in layer.parameters())


def test_bfloat16_autocast_trains() -> None:
    layer, x = sw.ConvPool(3, 4), torch.randn(2, 3, 9, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert torch.allclose(out.float(), layer(x), atol=0.1)
    out.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_copies_of_layers_agree() -> None:
    layer, x = sw.ConvPool(3, 4), torch.randn(2, 3, 9, 9)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))


def test_compiles_without_graph_breaks() -> None:
    """In a process of its own: the run-time type checks of the other tests cannot be traced."""
    program = """
import torch, setwise as sw
layer, x = sw.ConvPool(3, 16, kernel=4), torch.randn(2, 3, 9, 9)
compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
assert torch.allclose(compiled(x), layer(x), atol=1e-5)
a, b = (torch.autograd.grad(f(x).square().sum(), layer.convolution.weight)[0] for f in (compiled, layer))
assert torch.allclose(a, b, atol=1e-4)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
