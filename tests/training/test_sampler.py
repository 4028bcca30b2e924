"""Batches by size: every set once an epoch, within the budget, with little padding, the same when resumed."""

import math
import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader

import setwise as sw
from setwise.io.bags import Bags


def lognormal(sets: int, sigma: float, seed: int) -> list[int]:
    sizes = np.random.default_rng(seed).lognormal(math.log(300), sigma, sets)
    return [int(n) for n in sizes.clip(10, 100_000)]


def check(
    sampler: sw.training.ElementBudgetSampler, epoch: list[list[int]], elements: int, max_sets: int
) -> None:
    """Every set once, no batch empty, none over the budget unless it is a single set."""
    sizes = sampler.sizes.tolist()
    assert sorted(chain(*epoch)) == list(range(len(sizes)))
    assert len(epoch) == len(sampler)
    for batch in epoch:
        assert 1 <= len(batch) <= max_sets
        assert len(batch) == 1 or len(batch) * max(sizes[i] for i in batch) <= elements


def together(epoch: list[list[int]]) -> set[frozenset[int]]:
    return {frozenset(batch) for batch in epoch}


@given(
    st.lists(st.one_of(st.integers(0, 20), st.integers(0, 3_000)), min_size=1, max_size=80),
    st.integers(1, 2_000),
    st.one_of(st.none(), st.integers(1, 9)),
    st.sampled_from([0.0, 0.03, 0.1, 0.5, 0.95]),
    st.booleans(),
    st.integers(0, 5),
)
def test_any_sizes_come_once_within_the_budget_and_the_padding_allowed(
    sizes: list[int], elements: int, max_sets: int | None, waste: float, shuffle: bool, seed: int
) -> None:
    sampler = sw.training.ElementBudgetSampler(
        sizes, elements=elements, max_sets=max_sets, waste=waste, shuffle=shuffle, seed=seed
    )
    for _ in range(4):
        epoch = list(sampler)
        check(sampler, epoch, elements, max_sets or len(sizes))
        assert sw.training.padding_waste(sizes, epoch) <= waste + 1e-12


@pytest.mark.parametrize("max_sets", [None, 64])
@pytest.mark.parametrize("elements", [8_192, 131_072])
@pytest.mark.parametrize(
    ("sets", "sigma", "seed"),
    [(300, 1.5, 0), (3_000, 0.5, 1), (3_000, 1.5, 2), (3_000, 1.5, 3), (3_000, 2.0, 4)],
)
def test_sizes_from_10_to_100_000_waste_at_most_a_tenth(
    sets: int, sigma: float, seed: int, elements: int, max_sets: int | None
) -> None:
    sizes = lognormal(sets, sigma, seed)
    sampler = sw.training.ElementBudgetSampler(sizes, elements=elements, max_sets=max_sets, seed=seed)
    for _ in range(3):
        epoch = list(sampler)
        check(sampler, epoch, elements, max_sets or sets)
        assert sw.training.padding_waste(sizes, epoch) <= 0.1
        shared = [batch for batch in epoch if len(batch) > 1]  # without those that need no padding
        assert sw.training.padding_waste(sizes, shared) <= 0.1


def test_at_random_it_would_be_most_of_the_batch() -> None:
    sizes = lognormal(3_000, 1.5, 0)
    order = sw.training.epochs(len(sizes), len(sizes), 1, "any")
    assert sw.training.padding_waste(sizes, [part.tolist() for part in order.split(40)]) > 0.8


def test_batches_are_nearly_full_where_sets_are_many() -> None:
    sizes = lognormal(20_000, 1.0, 0)
    for shuffle, more in ((False, 1.07), (True, 1.13)):
        sampler = sw.training.ElementBudgetSampler(sizes, elements=32_768, shuffle=shuffle)
        assert len(sampler) <= more * sum(sizes) / 32_768


def test_in_order_batches_go_from_large_to_small_and_fill_the_budget() -> None:
    sizes = [3, 100, 8, 50, 8, 49, 3, 50, 0, 25, 101]
    sampler = sw.training.ElementBudgetSampler(sizes, elements=100, shuffle=False)
    assert list(sampler) == [[10], [1], [3, 7], [5], [9], [2, 4, 0, 6], [8]]
    assert list(sampler) == list(sampler)
    by_two = sw.training.ElementBudgetSampler(sizes, elements=100, max_sets=2, shuffle=False)
    assert list(by_two) == [[10], [1], [3, 7], [5], [9], [2, 4], [0, 6], [8]]
    few = sw.training.ElementBudgetSampler(sizes, elements=200, waste=0.5, shuffle=False)
    assert list(few) == [[10], [1, 3], [7, 5, 9, 2], [4, 0, 6, 8]]


def test_an_exact_fit_fits_and_one_element_more_does_not() -> None:
    for n, batches in ((10, 1), (11, 2)):
        assert len(sw.training.ElementBudgetSampler([n] * 5, elements=50)) == batches
    assert len(sw.training.ElementBudgetSampler([1] * 50, elements=50)) == 1
    assert [
        len(batch) for batch in sw.training.ElementBudgetSampler([7] * 7, elements=28, shuffle=False)
    ] == [4, 3]


def test_padding_is_allowed_up_to_the_limit() -> None:
    """Nine elements and one of padding are a tenth; half of the allowance is not for the plan if shuffled."""
    assert list(sw.training.ElementBudgetSampler([5, 4], elements=10, shuffle=False)) == [[0, 1]]
    assert len(sw.training.ElementBudgetSampler([5, 4], elements=10, waste=0.0999, shuffle=False)) == 2
    assert len(sw.training.ElementBudgetSampler([50, 40], elements=200, shuffle=False)) == 1
    assert len(sw.training.ElementBudgetSampler([50, 40], elements=200)) == 2
    assert len(sw.training.ElementBudgetSampler([50, 45], elements=200)) == 1


def test_sets_that_come_alone_pay_for_no_padding() -> None:
    """A giant has most elements of all: a tenth of it would blur and pad the small ones beyond measure."""
    sizes = [10**8, *range(10, 110)]
    sampler = sw.training.ElementBudgetSampler(sizes, elements=10**4)
    for epoch in (list(sampler), list(sampler)):
        assert [0] in epoch
        assert sw.training.padding_waste(sizes, [batch for batch in epoch if batch != [0]]) <= 0.1
    assert len(sw.training.ElementBudgetSampler([10**8, *[10] * 1000], elements=10**4)) == 2
    giants = sw.training.ElementBudgetSampler([11, 12, 13], elements=10)
    assert sorted(giants) == [[0], [1], [2]]


def test_empty_sets_are_sets() -> None:
    sizes = [0, 5, 0, 5, 0]
    sampler = sw.training.ElementBudgetSampler(sizes, elements=10, shuffle=False)
    assert list(sampler) == [[1, 3], [0, 2, 4]]
    assert list(sw.training.ElementBudgetSampler([0, 0], elements=1, max_sets=1, shuffle=False)) == [[0], [1]]
    assert sw.training.padding_waste([0, 0], [[0, 1]]) == 0
    assert sorted(chain(*sw.training.ElementBudgetSampler([0] * 7, elements=3))) == list(range(7))


def test_epochs_differ_in_order_and_in_who_is_with_whom() -> None:
    sizes = [1_000 + i for i in range(400)]  # no two alike: only blurring can mix them
    sampler = sw.training.ElementBudgetSampler(sizes, elements=20_000)
    first, second, third = (list(sampler) for _ in range(3))
    shared = len(together(first) & together(second)) + len(together(second) & together(third))
    assert shared == 0
    assert [len(batch) for batch in first] != [len(batch) for batch in second]  # batches change places
    assert max(max(sizes[i] for i in b) - min(sizes[i] for i in b) for b in first) > 40  # beyond neighbours
    place = [np.argmax([max(batch) for batch in epoch]) for epoch in (first, second, third)]
    assert len(set(place)) > 1


def test_sets_of_one_size_are_dealt_anew() -> None:
    sampler = sw.training.ElementBudgetSampler([3] * 60, elements=30)
    first, second = list(sampler), list(sampler)
    assert [len(batch) for batch in first] == [10] * 6
    assert not together(first) & together(second)


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    sizes = lognormal(500, 1.5, 0)

    def make(seed: int = 0) -> sw.training.ElementBudgetSampler:
        return sw.training.ElementBudgetSampler(sizes, elements=8_192, seed=seed)

    state = torch.get_rng_state()
    a, b = make(), make()
    first, second = list(a), list(a)
    torch.manual_seed(7)
    assert [list(b), list(b)] == [first, second]
    assert first != second
    assert list(make(seed=1)) != first
    assert list(sw.training.ElementBudgetSampler(sizes, elements=8_192)) == first
    a.set_epoch(0)
    assert a.epoch == 0
    assert list(a) == first
    b.set_epoch(np.int64(1))
    assert list(b) == second
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(pickle.loads(pickle.dumps(make()))) == first


def test_streams_never_change_from_one_version_to_the_next() -> None:
    sampler = sw.training.ElementBudgetSampler(range(90, 110), elements=500, seed=3)
    assert list(sampler) == [
        [9, 8, 3, 5], [15, 13, 11, 14], [17, 18, 19, 16], [2, 1, 4, 0], [10, 7, 12, 6],
    ]  # fmt: skip


def test_the_batch_of_a_step_is_that_of_iteration() -> None:
    sizes = lognormal(200, 1.0, 0)
    sampler, other = (sw.training.ElementBudgetSampler(sizes, elements=8_192) for _ in range(2))
    epochs = [list(sampler) for _ in range(3)]
    steps = range(1, 3 * len(sampler) + 1)
    assert [other.batch(step) for step in steps] == list(chain(*epochs))
    assert [other.batch(step) for step in reversed(steps)] == list(chain(*epochs))[::-1]
    assert other.epoch == 0
    assert other.batch(torch.tensor(1)) == epochs[0][0]


def test_iterators_side_by_side_do_not_disturb_each_other() -> None:
    sampler, other = (
        sw.training.ElementBudgetSampler(lognormal(200, 1.0, 0), elements=8_192) for _ in range(2)
    )
    pairs = list(zip(sampler, sampler, strict=True))
    assert [first for first, _ in pairs] == list(other)
    assert [second for _, second in pairs] == list(other)
    begun = iter(sampler)  # the third epoch, whatever happens before it is asked for
    sampler.set_epoch(7)
    assert list(begun) == list(other)


def test_sizes_may_be_of_any_kind() -> None:
    sizes = lognormal(50, 1.0, 0)
    kinds: list[Any] = [sizes, tuple(sizes), np.array(sizes), np.array(sizes, np.int32), torch.tensor(sizes)]
    kinds += [[np.int64(n) for n in sizes], list(torch.tensor(sizes))]
    found = [list(sw.training.ElementBudgetSampler(kind, elements=4_096)) for kind in kinds]
    assert all(one == found[0] for one in found)
    assert (
        sw.training.padding_waste(np.array(sizes), found[0]) == sw.training.padding_waste(sizes, found[0]) > 0
    )
    assert all(type(i) is int for i in chain(*found[0]))
    given = [5, 9, 1]
    sw.training.ElementBudgetSampler(given, elements=10)
    assert given == [5, 9, 1]


def test_waste_is_the_share_of_padding() -> None:
    assert sw.training.padding_waste([2, 3, 10], [[0, 1], [2]]) == pytest.approx(1 / 16)
    assert sw.training.padding_waste([2, 3, 10], [[2, 0]]) == pytest.approx(8 / 20)
    assert sw.training.padding_waste([2, 3, 10], [torch.tensor([0, 1]), []]) == pytest.approx(1 / 6)
    assert sw.training.padding_waste([2], []) == 0


@pytest.mark.parametrize(
    ("sizes", "options", "error", "message"),
    [
        ([], {}, ValueError, "sizes must contain at least one set, got none"),
        ([3, -1], {}, ValueError, "sizes must not be negative, got -1 for set 1"),
        ([3, 2.0], {}, TypeError, "sizes must be whole numbers, got float for set 1"),
        (np.ones(3), {}, TypeError, "sizes must be whole numbers, got float for set 0"),
        ([np.ones((4, 2)), np.ones((3, 2))], {}, TypeError, "sizes must be .*, got ndarray for set 0"),
        (np.ones((4, 2), int), {}, TypeError, "sizes must be whole numbers, got list for set 0"),
        ([3], {"elements": 0}, ValueError, "elements must be at least 1, got 0"),
        ([3], {"elements": 1e5}, TypeError, "elements must be a whole number, got 100000.0"),
        ([3], {"max_sets": 0}, ValueError, "max_sets must be at least 1, got 0"),
        ([3], {"waste": 1.0}, ValueError, "waste must be at least 0 and below 1, got 1.0"),
        ([3], {"waste": -0.1}, ValueError, "waste must be at least 0 and below 1, got -0.1"),
        ([3], {"waste": math.nan}, ValueError, "waste must be at least 0 and below 1, got nan"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unchecked")
def test_absurd_values_are_refused(
    sizes: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        sw.training.ElementBudgetSampler(sizes, **({"elements": 10} | options))


def test_steps_and_epochs_have_a_beginning() -> None:
    sampler = sw.training.ElementBudgetSampler([1], elements=1)
    with pytest.raises(ValueError, match="step must be at least 1, got 0"):
        sampler.batch(0)
    with pytest.raises(ValueError, match="epoch must not be negative, got -1"):
        sampler.set_epoch(-1)


def data(sets: int = 30) -> tuple[list[Tensor], Tensor]:
    """Sets whose every element tells which set it is, and so does the target."""
    sizes = torch.randint(1, 40, (sets,), generator=sw.training.generator("sizes"))
    return [torch.full((int(n), 2), float(i)) for i, n in enumerate(sizes)], torch.arange(sets)


def test_a_loader_reads_what_the_sampler_tells() -> None:
    sets, y = data()
    bags = Bags.from_arrays(sets, y)
    sampler = sw.training.ElementBudgetSampler([len(x) for x in sets], elements=64, max_sets=8)
    loader = DataLoader(range(len(bags)), batch_sampler=sampler, collate_fn=bags.batch, num_workers=0)
    assert len(loader) == len(sampler)
    for _ in range(2):
        found = []
        for batch, labels in loader:
            assert batch.x.shape[0] * batch.x.shape[1] <= 64
            assert [bags.classes[k] for k in labels] == [str(int(x[0, 0])) for x in batch.to_list()]
            found += labels.tolist()
        assert sorted(found) == list(range(30))


@pytest.mark.parametrize("kind", [list, np.asarray, torch.as_tensor])
def test_budgeted_batches_have_sets_and_their_targets(kind: Any) -> None:
    sets, y = data()
    sampler = sw.training.ElementBudgetSampler([len(x) for x in sets], elements=64)
    batches = sw.training.budgeted(sets, kind(y), sampler)
    for step in range(1, 2 * len(sampler) + 1):
        batch, targets = batches(step)
        assert targets.tolist() == sampler.batch(step)
        assert [x[0, 0].item() for x in batch.to_list()] == targets.tolist()
        assert batch.sizes.tolist() == sampler.sizes[targets].tolist()


def test_budgeted_refuses_what_does_not_belong_together() -> None:
    sets, y = data(3)
    sizes = [len(x) for x in sets]
    sampler = sw.training.ElementBudgetSampler(sizes, elements=64)
    with pytest.raises(ValueError, match=r"sets must have length 3 .*, got 2"):
        sw.training.budgeted(sets[:2], y, sampler)
    with pytest.raises(ValueError, match=r"targets must have length 3 .*, got 4"):
        sw.training.budgeted(sets, [0, 1, 2, 3], sampler)
    with pytest.raises(ValueError, match=f"set 1 must have {sizes[1]} elements .*, got 0"):
        sw.training.budgeted([sets[0], sets[1][:0], sets[2]], y, sampler)


def test_the_weights_in_the_docstring_count_all_sets_alike() -> None:
    sizes = lognormal(300, 1.5, 0)
    losses = torch.rand(300, dtype=torch.float64)
    sampler = sw.training.ElementBudgetSampler(sizes, elements=8_192)
    epoch = list(sampler)
    plain = [losses[batch].mean() for batch in epoch]
    weighted = [m * len(batch) * len(sampler) / len(sizes) for m, batch in zip(plain, epoch, strict=True)]
    assert torch.stack(weighted).mean() == pytest.approx(losses.mean().item())
    assert torch.stack(plain).mean() != pytest.approx(losses.mean().item(), rel=1e-3)


def model() -> nn.Module:
    return sw.nn.initialize(
        sw.DMPS.build(2, 1, dim=8, hidden=(8, 8), pool="mean"), sw.training.generator("weights")
    )


def batches(stop: int | None = None) -> Any:
    sets, y = data()
    sampler = sw.training.ElementBudgetSampler([len(x) for x in sets], elements=128, max_sets=6, seed=5)
    given = sw.training.budgeted([x / 30 for x in sets], y % 2, sampler)

    def batch(step: int) -> tuple[sw.SetBatch, Tensor]:
        if step == stop:
            raise KeyboardInterrupt
        return given(step)

    return batch


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    training = sw.Training(steps=40, lr=1e-2, evaluations=8, checkpoint_seconds=0)
    straight, killed, resumed = model(), model(), model()
    expected = sw.fit(straight, sw.Binary(), batches(), training)
    with pytest.raises(KeyboardInterrupt):
        sw.fit(killed, sw.Binary(), batches(stop=28), training, folder=tmp_path)
    found = sw.fit(resumed, sw.Binary(), batches(), training, folder=tmp_path, resume=True)
    assert found.metrics == expected.metrics
    assert found.sets == expected.sets
    pairs = zip(straight.parameters(), resumed.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)
