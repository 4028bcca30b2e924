"""Folds are stratified by class, of equal size, and keep groups together."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from setwise.experiments.folds import stratified_folds


def counts(labels: Tensor, folds: Tensor, k: int) -> Tensor:
    """Bags of each class in each fold, ``[k, classes]``."""
    classes, number = labels.unique(return_inverse=True)
    found: Tensor = (folds * len(classes) + number).bincount(minlength=k * len(classes))
    return found.view(k, len(classes))


def spread(numbers: Tensor) -> int:
    """By how much the folds differ at most."""
    return int((numbers.amax(0) - numbers.amin(0)).max())


@given(st.lists(st.integers(-2, 3), min_size=2, max_size=40), st.integers(2, 8), st.integers(0, 3))
def test_classes_and_sizes_differ_by_one_at_most(values: list[int], k: int, seed: int) -> None:
    labels, k = torch.tensor(values), min(k, len(values))
    for groups in (None, list(range(len(values)))):
        folds = stratified_folds(labels, k, seed=seed, groups=groups)
        assert (folds.dtype, folds.shape) == (torch.int64, labels.shape)
        assert 0 <= folds.min() <= folds.max() < k
        assert spread(counts(labels, folds, k)) <= 1
        assert spread(counts(torch.zeros_like(labels), folds, k)) <= 1


@given(st.data(), st.integers(2, 5), st.integers(0, 3))
def test_no_group_is_in_two_folds_and_no_fold_is_empty(data: st.DataObject, k: int, seed: int) -> None:
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=k, max_size=15))
    groups = [f"patient {i}" for i, size in enumerate(sizes) for _ in range(size)]
    order = data.draw(st.permutations(range(len(groups))))
    groups = [groups[i] for i in order]
    labels = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(groups), max_size=len(groups))))
    folds = stratified_folds(labels, k, seed=seed, groups=groups)
    assert len(set(zip(groups, folds.tolist(), strict=True))) == len(sizes)
    assert folds.unique().tolist() == list(range(k))
    assert spread(folds.bincount(minlength=k).unsqueeze(1)) <= 2 * max(sizes)


def test_even_groups_are_dealt_out_evenly() -> None:
    """Twelve patients of a class each, four bags a patient: three folds take two of each class."""
    labels = torch.arange(12).repeat_interleave(4) % 2
    groups = torch.arange(12).repeat_interleave(4)
    for seed in range(5):
        folds = stratified_folds(labels, 3, seed=seed, groups=groups)
        assert counts(labels, folds, 3).tolist() == [[8, 8]] * 3


def test_large_groups_go_first() -> None:
    """One patient has half of the bags; the others make up the other fold."""
    groups = ["large"] * 10 + [f"small {i}" for i in range(10)]
    for seed in range(5):
        folds = stratified_folds(torch.zeros(20, dtype=torch.long), 2, seed=seed, groups=groups)
        assert folds[:10].unique().numel() == folds[10:].unique().numel() == 1
        assert folds[0] != folds[-1]
        labels = torch.tensor([0] * 18 + [1] * 2)  # of the rare class, one goes to either fold
        folds = stratified_folds(labels, 2, seed=seed, groups=groups)
        assert sorted(folds.bincount().tolist()) == [9, 11]
        assert folds[18] != folds[19]


def test_rare_classes_are_spread_before_sizes() -> None:
    """Two patients with the rare class must not meet, although one of them is small."""
    labels = torch.tensor([1] + [0] * 9 + [1] + [0] * 2 + [0] * 8)
    groups = ["a"] * 10 + ["b"] * 3 + list(range(8))
    for seed in range(5):
        folds = stratified_folds(labels, 2, seed=seed, groups=groups)
        assert counts(labels, folds, 2)[:, 1].tolist() == [1, 1]
        assert spread(folds.bincount().unsqueeze(1)) <= 1


def quality(labels: Tensor, folds: Tensor, k: int) -> float:
    """The sum of squares that the greedy order keeps low."""
    both = torch.cat([counts(labels, folds, k), folds.bincount(minlength=k).unsqueeze(1)], 1).double()
    return float(((both / both.sum(0)) ** 2).sum())


def test_balance_is_near_the_best_there_is() -> None:
    random = torch.Generator().manual_seed(0)
    ratios = []
    for seed in range(20):
        groups = torch.arange(7).repeat_interleave(torch.randint(1, 6, (7,), generator=random))
        labels = torch.randint(0, 2, (len(groups),), generator=random)
        labels[:2] = torch.tensor([0, 1])
        found = quality(labels, stratified_folds(labels, 2, seed=seed, groups=groups), 2)
        every = itertools.product((0, 1), repeat=6)
        best = min(quality(labels, torch.tensor((0, *choice))[groups], 2) for choice in every)
        ratios.append(found / best)
    assert max(ratios) < 1.15
    assert sum(ratios) / 20 < 1.03


def test_a_seed_gives_the_same_folds_and_another_seed_others() -> None:
    labels = torch.arange(60) % 3
    first, again, other = (stratified_folds(labels, 5, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    groups = (torch.arange(60) // 2).tolist()
    first, again, other = (stratified_folds(labels, 5, seed=seed, groups=groups) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_every_bag_may_be_in_every_fold() -> None:
    """Also the one that is over, and the largest group."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    found = torch.stack([stratified_folds(labels, 3, seed=seed) for seed in range(60)])
    for bag in found.T:
        assert bag.bincount(minlength=3).min() >= 8  # of twenty
    assert {tuple(folds.bincount().tolist()) for folds in found} == {(3, 2, 2), (2, 3, 2), (2, 2, 3)}
    groups = ["large"] * 4 + ["a", "b", "c"]
    large = torch.stack([stratified_folds(labels, 3, seed=seed, groups=groups)[0] for seed in range(60)])
    assert large.bincount(minlength=3).min() >= 8


def test_groups_of_all_kinds() -> None:
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    numbers = [3, 3, 1, 1, 2, 2]
    expected = stratified_folds(labels, 3, seed=0, groups=numbers)
    assert expected.view(3, 2).unique(dim=1).shape == (3, 1)
    kinds: list[Any] = [
        torch.tensor(numbers),
        np.array(numbers),
        [torch.tensor(number) for number in numbers],
        [("slide", number) for number in numbers],
        [{3: None, 1: "a", 2: 5}[number] for number in numbers],
    ]
    for groups in kinds:
        assert torch.equal(stratified_folds(labels, 3, seed=0, groups=groups), expected)


def test_wrong_arguments(unchecked: None) -> None:
    labels = torch.tensor([0, 1, 0, 1])
    assert stratified_folds(labels, 4, seed=0).sort().values.tolist() == [0, 1, 2, 3]
    for k, groups, sentence in (
        (1, None, "k must be at least 2, got 1"),
        (5, None, "k must be at most 4, the number of bags, got 5"),
        (3, ["a", "b", "b", "a"], "expected at least 3 groups, one per fold, got 2"),
        (2, ["a", "b", "b"], "groups must have one value for each of 4 bags, got 3"),
        (2, ["a", "b", float("nan"), "a"], "every bag must have a group, got nan for bag 2"),
    ):
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            stratified_folds(labels, k, seed=0, groups=groups)
