import copy

import pytest
import torch
from torch import Tensor, nn

from setwise import DMPS, SetBatch
from setwise.nn.layers import Rescale, RescaledNetwork


class Keep(nn.Module):
    """Remembers what entered, and returns the sum of the first features."""

    seen: Tensor

    def forward(self, x, mask=None):
        self.seen = x
        return x[..., :2].sum(1)


@pytest.fixture
def rescaled():
    return RescaledNetwork(
        Keep(),
        mean=torch.tensor([1.0, -2.0, 5.0]),
        std=torch.tensor([2.0, 0.5, 0.0]),
        out_mean=torch.tensor([10.0, 20.0]),
        out_std=torch.tensor([3.0, 0.0]),
    )


def test_inputs_and_outputs_are_rescaled(rescaled):
    out = rescaled(torch.tensor([[[5.0, -1.0, 6.0], [1.0, -2.0, 5.0]]]))
    assert rescaled.network.seen.tolist() == [[[2.0, 2.0, 1.0], [0.0, 0.0, 0.0]]]  # the constant is shifted
    assert out.tolist() == [[10 + 3 * 2.0, 20 + 1 * 2.0]]


def test_outputs_are_unchanged_without_output_statistics():
    rescaled = RescaledNetwork(Keep(), mean=torch.zeros(2), std=torch.full((2,), 2.0))
    assert rescaled(torch.tensor([[[4.0, 6.0]]])).tolist() == [[2.0, 3.0]]
    assert set(rescaled.state_dict()) == {"inputs.mean", "inputs.std"}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float16, torch.float64])
def test_elements_of_any_type_are_taken(rescaled, dtype):
    x = torch.tensor([[[5, 1, 6]]]).to(dtype)
    assert rescaled.standardized(x).tolist() == [[[2.0, 6.0, 1.0]]]
    assert rescaled.standardized(x).dtype == torch.float32


def test_double_precision_inputs_are_shifted_in_double_precision():
    rescaled = RescaledNetwork(Keep(), mean=torch.tensor([2.0**30]), std=torch.tensor([2.0**11]))
    x = torch.tensor([[2.0**30 + 1.0]], dtype=torch.float64)
    assert rescaled.standardized(x).item() == 2.0**-11


def test_large_numbers_that_vary_little_keep_their_digits():
    seconds = 1.7e9 + torch.arange(5, dtype=torch.float64)[:, None]
    rescaled = RescaledNetwork(Keep(), mean=seconds.mean(0), std=seconds.std(0))
    assert torch.allclose(rescaled.standardized(seconds).std(0), torch.ones(1))
    assert rescaled.standardized(seconds).dtype == torch.float32


def test_the_callers_numbers_are_copied():
    mean, std = torch.zeros(1), torch.ones(1)
    rescaled = RescaledNetwork(Keep(), mean=mean, std=std)
    mean.fill_(7), std.fill_(7)
    assert rescaled.standardized(torch.tensor([3.0])).item() == 3.0


def test_output_precision_is_that_of_the_network():
    network = DMPS.build(3, 2, dim=8, hidden=(8, 8), depth=1)
    rescaled = RescaledNetwork(network, mean=torch.ones(3), std=torch.ones(3)).double()
    x = torch.randn(1, 4, 3, dtype=torch.float64)
    assert rescaled.standardized(x).dtype == rescaled(x).dtype == torch.float64
    assert rescaled.float()(x).dtype == torch.float32


def test_around_a_model_it_is_the_model_on_standardised_sets():
    network = DMPS.build(3, 2, dim=8, hidden=(8, 8), depth=1)
    raw = [1e3 * torch.randn(n, 3) + 500 for n in (4, 7)]
    values = torch.cat(raw)
    rescaled = RescaledNetwork(network, mean=values.mean(0), std=values.std(0))
    batch = SetBatch.pack(raw)
    expected = SetBatch.pack([(x - values.mean(0)) / values.std(0) for x in raw])
    assert torch.allclose(rescaled(batch.x, batch.mask), network(expected.x, expected.mask), atol=1e-5)


def test_what_stands_in_padding_changes_neither_output_nor_gradient():
    network = DMPS.build(2, 1, dim=8, hidden=(8, 8), depth=1)
    rescaled = RescaledNetwork(network, mean=torch.ones(2), std=torch.full((2,), 3.0))
    mask = torch.tensor([[True, True, False]])
    results = []
    for filler in (0.0, torch.nan, torch.inf):
        x = torch.tensor([[[1.0, 2.0], [3.0, 5.0], [filler, filler]]], requires_grad=True)
        out = rescaled(x, mask)
        out.sum().backward()
        assert out.isfinite().all()
        assert x.grad.isfinite().all()
        assert (x.grad[0, :2] != 0).any()
        results.append(torch.cat([out.detach().flatten(), x.grad.flatten()]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_state_dict_and_deepcopy_keep_the_statistics(rescaled):
    other = RescaledNetwork(
        Keep(), mean=torch.zeros(3), std=torch.ones(3), out_mean=torch.zeros(2), out_std=torch.ones(2)
    )
    other.load_state_dict(rescaled.state_dict())
    x = torch.randn(2, 4, 3)
    assert torch.equal(other(x), rescaled(x))
    assert torch.equal(copy.deepcopy(rescaled)(x), rescaled(x))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"std": torch.ones(2)}, r"mean and std must .*one value per feature, got shapes \[3\] and \[2\]"),
        ({"mean": torch.tensor([0.0, torch.nan, 0.0])}, "mean and std must be finite"),
        ({"out_std": torch.tensor([1.0, -1.0])}, "negative, got mean 0 and std -1 for feature 1"),
        ({"out_std": None}, "got only out_mean"),
        ({"out_mean": None}, "got only out_std"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_numbers_are_refused(change, sentence):
    good = {
        "mean": torch.zeros(3), "std": torch.ones(3), "out_mean": torch.zeros(2), "out_std": torch.ones(2)
    }  # fmt: skip
    with pytest.raises(ValueError, match=sentence):
        RescaledNetwork(Keep(), **(good | change))


@pytest.mark.usefixtures("unchecked")
def test_wrong_widths_are_refused(rescaled):
    with pytest.raises(ValueError, match=r"x must have 3 features, got shape \[1, 4, 2\]"):
        rescaled(torch.zeros(1, 4, 2))
    with pytest.raises(ValueError, match=r"x must have 3 features, got shape \[\]"):
        rescaled.standardized(torch.tensor(1.0))
    rescaled.network = nn.Module()
    rescaled.network.forward = lambda x, mask: x.sum(1)
    with pytest.raises(ValueError, match=r"must have 2 outputs.* got shape \[1, 3\]"):
        rescaled(torch.zeros(1, 4, 3))


def test_rescale_takes_bytes_and_images() -> None:
    layer = Rescale(torch.tensor([10.0, 20.0, 30.0]), torch.tensor([1.0, 2.0, 0.0]), axis=1)
    image = torch.tensor([12, 12, 33], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    assert layer(image)[0, :, 1, 0].tolist() == [2.0, -4.0, 3.0]
    assert torch.equal(layer.inverse(layer(image)), image.float())
    assert layer(torch.tensor([[10.0, 22.0, 30.0]])).tolist() == [[0.0, 1.0, 0.0]]
    assert layer.double()(image).dtype == torch.float64


def test_rescale_does_not_divide_by_rounding_errors() -> None:
    mean, std = torch.tensor([1000.0, 1000.0]), torch.tensor([1e-4, 1e-2])
    x = torch.tensor([[1001.0, 1001.0]])
    assert Rescale(mean, std)(x)[0].tolist() == pytest.approx([1.0, 100.0])
    assert Rescale(mean.double(), std.double())(x)[0].tolist() == pytest.approx([10_000.0, 100.0])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("axis", [-1, 1])
def test_rescale_refuses_other_numbers_of_features(axis) -> None:
    layer = Rescale(torch.zeros(3), torch.ones(3), axis=axis)
    for x in (torch.zeros(2, 4), torch.zeros(4)):
        with pytest.raises(ValueError, match="x must have 3 features, got shape"):
            layer(x)
