import copy

import pytest
import torch
from torch import Tensor, nn

from setwise import DMPS, SetBatch
from setwise.nn.layers import Framed


class Keep(nn.Module):
    """Remembers what entered, and returns the sum of the first features."""

    seen: Tensor

    def forward(self, x, mask=None):
        self.seen = x
        return x[..., :2].sum(1)


@pytest.fixture
def framed():
    return Framed(
        Keep(),
        mean=torch.tensor([1.0, -2.0, 5.0]),
        std=torch.tensor([2.0, 0.5, 0.0]),
        out_mean=torch.tensor([10.0, 20.0]),
        out_std=torch.tensor([3.0, 0.0]),
    )


def test_features_and_outputs_change_their_units(framed):
    out = framed(torch.tensor([[[5.0, -1.0, 6.0], [1.0, -2.0, 5.0]]]))
    assert framed.network.seen.tolist() == [[[2.0, 2.0, 1.0], [0.0, 0.0, 0.0]]]  # the constant one is shifted
    assert out.tolist() == [[10 + 3 * 2.0, 20 + 1 * 2.0]]


def test_without_output_units_the_network_speaks_for_itself():
    framed = Framed(Keep(), mean=torch.zeros(2), std=torch.full((2,), 2.0))
    assert framed(torch.tensor([[[4.0, 6.0]]])).tolist() == [[2.0, 3.0]]
    assert set(framed.state_dict()) == {"mean", "std"}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float16, torch.float64])
def test_elements_of_any_type_are_taken(framed, dtype):
    x = torch.tensor([[[5, 1, 6]]]).to(dtype)
    assert framed.standardized(x).tolist() == [[[2.0, 6.0, 1.0]]]
    assert framed.standardized(x).dtype == torch.float32


def test_digits_that_only_a_wide_type_holds_survive_the_shift():
    framed = Framed(Keep(), mean=torch.tensor([2.0**30]), std=torch.tensor([2.0**11]))
    x = torch.tensor([[2.0**30 + 1.0]], dtype=torch.float64)
    assert framed.standardized(x).item() == 2.0**-11


def test_large_numbers_that_vary_little_keep_their_digits():
    seconds = 1.7e9 + torch.arange(5, dtype=torch.float64)[:, None]
    framed = Framed(Keep(), mean=seconds.mean(0), std=seconds.std(0))
    assert torch.allclose(framed.standardized(seconds).std(0), torch.ones(1))
    assert framed.standardized(seconds).dtype == torch.float32


def test_the_callers_numbers_are_copied():
    mean, std = torch.zeros(1), torch.ones(1)
    framed = Framed(Keep(), mean=mean, std=std)
    mean.fill_(7), std.fill_(7)
    assert framed.standardized(torch.tensor([3.0])).item() == 3.0


def test_double_precision_goes_all_the_way():
    network = DMPS.build(3, 2, dim=8, hidden=(8, 8), depth=1)
    framed = Framed(network, mean=torch.ones(3), std=torch.ones(3)).double()
    x = torch.randn(1, 4, 3, dtype=torch.float64)
    assert framed.standardized(x).dtype == framed(x).dtype == torch.float64
    assert framed.float()(x).dtype == torch.float32


def test_around_a_model_it_is_the_model_on_standardised_sets():
    network = DMPS.build(3, 2, dim=8, hidden=(8, 8), depth=1)
    raw = [1e3 * torch.randn(n, 3) + 500 for n in (4, 7)]
    values = torch.cat(raw)
    framed = Framed(network, mean=values.mean(0), std=values.std(0))
    batch = SetBatch.pack(raw)
    expected = SetBatch.pack([(x - values.mean(0)) / values.std(0) for x in raw])
    assert torch.allclose(framed(batch.x, batch.mask), network(expected.x, expected.mask), atol=1e-5)


def test_what_stands_in_padding_changes_neither_output_nor_gradient():
    network = DMPS.build(2, 1, dim=8, hidden=(8, 8), depth=1)
    framed = Framed(network, mean=torch.ones(2), std=torch.full((2,), 3.0))
    mask = torch.tensor([[True, True, False]])
    results = []
    for filler in (0.0, torch.nan, torch.inf):
        x = torch.tensor([[[1.0, 2.0], [3.0, 5.0], [filler, filler]]], requires_grad=True)
        out = framed(x, mask)
        out.sum().backward()
        assert out.isfinite().all()
        assert x.grad.isfinite().all()
        assert (x.grad[0, :2] != 0).any()
        results.append(torch.cat([out.detach().flatten(), x.grad.flatten()]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_its_numbers_travel_with_the_state(framed):
    other = Framed(
        Keep(), mean=torch.zeros(3), std=torch.ones(3), out_mean=torch.zeros(2), out_std=torch.ones(2)
    )
    other.load_state_dict(framed.state_dict())
    x = torch.randn(2, 4, 3)
    assert torch.equal(other(x), framed(x))
    assert torch.equal(copy.deepcopy(framed)(x), framed(x))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"std": torch.ones(2)}, r"mean and std must be one a feature, got \[3\] and \[2\]"),
        ({"mean": torch.tensor([0.0, torch.nan, 0.0])}, "mean and std must be finite"),
        ({"out_std": torch.tensor([1.0, -1.0])}, "must be finite, and out_std not negative"),
        ({"out_std": None}, "belong together, got out_mean alone"),
        ({"out_mean": None}, "belong together, got out_std alone"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_numbers_are_refused(change, sentence):
    good = {
        "mean": torch.zeros(3), "std": torch.ones(3), "out_mean": torch.zeros(2), "out_std": torch.ones(2)
    }  # fmt: skip
    with pytest.raises(ValueError, match=sentence):
        Framed(Keep(), **(good | change))


@pytest.mark.usefixtures("unchecked")
def test_wrong_widths_are_refused(framed):
    with pytest.raises(ValueError, match=r"elements must have 3 features, got \[1, 4, 2\]"):
        framed(torch.zeros(1, 4, 2))
    with pytest.raises(ValueError, match=r"elements must have 3 features, got \[\]"):
        framed.standardized(torch.tensor(1.0))
    framed.network = nn.Module()
    framed.network.forward = lambda x, mask: x.sum(1)
    with pytest.raises(ValueError, match=r"the network must have 2 outputs as out_mean has, got \[1, 3\]"):
        framed(torch.zeros(1, 4, 3))
