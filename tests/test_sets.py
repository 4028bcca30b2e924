"""Packing sets and getting them back."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from setwise import SetBatch, Shared

SETS = [torch.randn(3, 2), torch.randn(0, 2), torch.randn(1, 2), torch.randn(5, 2)]


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5), features=st.sampled_from([(), (2,), (1, 3, 3)])
)
def test_every_way_out_leads_back_in(sizes: list[int], features: tuple[int, ...]) -> None:
    sets = [torch.randn(n, *features) for n in sizes]
    batch = SetBatch.pack(sets)
    assert batch.x.shape == (len(sizes), max(sizes), *features)
    assert batch.sizes.tolist() == sizes
    assert len(batch) == len(sizes)
    assert batch.mask is not None
    assert (batch.x[~batch.mask] == 0).all()
    assert equal(batch.to_list(), sets)
    assert equal(SetBatch.pack(batch.to_ptr()).to_list(), sets)
    values, index = batch.to_index()
    assert equal(SetBatch.from_index(values, index, sets=len(sizes)).to_list(), sets)


def test_nested_tensors() -> None:
    nested = SetBatch.pack(SETS).to_nested()
    assert nested.is_nested
    assert equal(SetBatch.pack(nested).to_list(), SETS)
    assert equal(SetBatch.pack(torch.nested.nested_tensor(SETS, layout=torch.jagged)).to_list(), SETS)


def test_arrays_of_one_size_need_no_mask() -> None:
    for array in (np.ones((2, 3, 4)), torch.ones(2, 3, 4)):
        batch = SetBatch.pack(array)
        assert batch.mask is None
        assert batch.x.dtype == torch.float32
        assert batch.sizes.tolist() == [3, 3]
        assert equal(batch.to_list(), [torch.ones(3, 4)] * 2)


def test_numpy_objects_and_lists_of_lists() -> None:
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.ones((1, 2)), np.ones((3, 2))]
    assert SetBatch.pack(ragged).sizes.tolist() == [1, 3]
    assert SetBatch.pack([[[1.0, 2.0]], [[1.0, 2.0], [3.0, 4.0]]]).sizes.tolist() == [1, 2]


def test_arrays_that_torch_would_not_take() -> None:
    backwards = np.arange(6.0).reshape(3, 2)[::-1]
    frozen = np.arange(4.0).reshape(2, 2)
    frozen.flags.writeable = False
    swapped = np.arange(2.0).reshape(1, 2).astype(">f8")
    batch = SetBatch.pack([backwards, frozen, swapped])
    assert [s.tolist() for s in batch.to_list()] == [backwards.tolist(), frozen.tolist(), [[0.0, 1.0]]]


def test_ptr_may_be_any_integers_and_two_sets_in_a_tuple_are_sets() -> None:
    values = np.arange(6.0).reshape(3, 2)
    for ptr in ([0, 1, 3], np.array([0, 1, 3]), torch.tensor([0, 1, 3])):
        assert SetBatch.pack((values, ptr)).sizes.tolist() == [1, 2]
    assert SetBatch.pack((values, values[:1])).sizes.tolist() == [3, 1]


def test_index_need_not_be_sorted() -> None:
    batch = SetBatch.from_index(torch.arange(4.0), torch.tensor([2, 0, 2, 0]))
    assert equal(batch.to_list(), [torch.tensor([1.0, 3.0]), torch.tensor([]), torch.tensor([0.0, 2.0])])


def test_a_batch_is_a_batch_already() -> None:
    batch = SetBatch.pack(SETS)
    again = SetBatch.pack(batch)
    assert again.x is batch.x
    assert again.mask is batch.mask


def test_to_casts_the_elements_and_keeps_the_mask() -> None:
    batch = SetBatch.pack(SETS).to(torch.float64)
    assert batch.x.dtype == torch.float64
    assert batch.mask is not None
    assert batch.mask.dtype == torch.bool
    assert SetBatch(torch.ones(1, 2)).to(torch.float64).mask is None


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([], "expected at least one set, got an empty list"),
        (
            [np.ones((2, 3)), np.ones((2, 4))],
            r"set 1 has elements of shape \[4\], expected \[3\] as in set 0",
        ),
        ([np.ones((2, 3)), 5.0], "set 1 must be an array of elements, got a single number"),
        ([np.ones(2), np.array(["a"])], "set 1 must hold numbers, got <U1"),
        (np.array(["a"]), "array of sets must hold numbers"),
        (np.ones(3), r"x must be \[sets, elements, …\], got \[3\]"),
        ((np.ones(3), [0, 2]), "ptr must end at 3, .* got 2"),
        ((np.ones(3), [0, 3, 2]), "ptr must hold offsets .* that start at 0"),
        ((np.ones(3), [1, 3]), "ptr must hold offsets .* that start at 0"),
        ((np.ones(3), [0]), "ptr must hold offsets .* that start at 0"),
        ([np.array([None])], "set 0 must hold numbers, got object"),
        ("abc", "sets must be a list of arrays, .* got str"),
        (5, "sets must be a list of arrays, .* got int"),
    ],
)
def test_bad_sets_get_one_clear_sentence(sets: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        SetBatch.pack(sets)


@pytest.mark.usefixtures("unchecked")
def test_bad_masks_and_indices_too() -> None:
    with pytest.raises(ValueError, match=r"mask must be bool \[2, 3\], got torch.float32 \[2, 3\]"):
        SetBatch(torch.ones(2, 3, 1), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"mask must be bool \[2, 3\], got torch.bool \[3, 2\]"):
        SetBatch(torch.ones(2, 3, 1), torch.ones(3, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="index must name the set of each of 3 elements"):
        SetBatch.from_index(torch.ones(3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="index must not be negative, got -1"):
        SetBatch.from_index(torch.ones(2), torch.tensor([0, -1]))
    with pytest.raises(ValueError, match=r"index must be below 1, .* got 1"):
        SetBatch.from_index(torch.ones(2), torch.tensor([0, 1]), sets=1)
    with pytest.raises(TypeError, match="index must hold integers, got"):
        SetBatch.from_index(torch.ones(2), [0.2, 1.7])
    with pytest.raises(TypeError, match="ptr must hold integers, got"):
        SetBatch.from_ptr(torch.ones(2), [0.5, 2.0])
    with pytest.raises(ValueError, match="from_index needs elements or the number of sets"):
        SetBatch.from_index(torch.ones(0), torch.tensor([]))


def test_kinds_of_numbers_and_the_default_precision() -> None:
    assert SetBatch.pack([np.array([True, False])]).x.dtype == torch.bool
    assert SetBatch.pack([np.array([1, 2], dtype=np.uint8)]).x.dtype == torch.uint8
    torch.set_default_dtype(torch.float64)
    try:
        assert SetBatch.pack([np.ones((1, 2))]).x.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_three_sets_in_a_tuple_are_sets_and_so_are_two_of_reals() -> None:
    sets = (np.array([5, 6]), np.array([0, 2]), np.array([1]))
    assert SetBatch.pack(sets).sizes.tolist() == [2, 2, 1]
    assert SetBatch.pack((np.ones(2), np.ones(3))).sizes.tolist() == [2, 3]
    assert SetBatch.pack((torch.ones(2), torch.ones(3))).sizes.tolist() == [2, 3]
    assert SetBatch.pack((torch.ones(2, 2), torch.ones(3, 2).long().float())).sizes.tolist() == [2, 3]


def test_shared_elements_stand_for_those_they_point_at() -> None:
    values, index = torch.randn(3, 2, 2), torch.tensor([[2, 0], [1, 1], [0, 2]])
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    shared, plain = SetBatch(Shared(values, index), mask), SetBatch(values[index], mask)
    assert len(shared.x) == len(shared) == 3
    assert shared.x.shape == plain.x.shape == (3, 2, 2, 2)
    assert shared.x.dim() == 4
    assert (shared.x.dtype, shared.x.device) == (values.dtype, values.device)
    assert torch.equal(shared.elements, plain.elements)
    assert equal(shared.to_list(), plain.to_list())
    assert all(map(torch.equal, shared.to_ptr(), plain.to_ptr()))
    assert all(map(torch.equal, shared.to_index(), plain.to_index()))
    doubled = shared.to(torch.float64)
    assert doubled.x.is_floating_point()
    assert doubled.x.dtype == torch.float64
    assert torch.equal(doubled.x.index, index)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.tensor([0, 1]), r"integers of shape \[sets, elements\], got torch.int64 \[2\]"),
        (torch.zeros(1, 1), "integers .* got torch.float32"),
        (torch.zeros(1, 1, dtype=torch.bool), "integers .* got torch.bool"),
        (torch.tensor([[0, 3]]), "below 3, .* got 0 to 3"),
        (torch.tensor([[-1, 0]]), "below 3, .* got -1 to 0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_an_index_must_point_at_a_value(index: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shared(torch.zeros(3, 2), index)


def test_no_set_shares_nothing() -> None:
    assert Shared(torch.zeros(0, 2), torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 2)
