"""Convolutions with pooling: the plain way, and by looking up patterns."""

import pytest
import torch
from torch import nn

import setwise as sw


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
