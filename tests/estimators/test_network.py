import math

import numpy as np
import pytest
import torch

from setwise import Binary, Classes, Regression
from setwise.estimators.batches import TrainingBatches, WeightedTask, evaluation_batches
from setwise.estimators.network import CompressOutliers, build_network
from setwise.sets import Sets
from setwise.training.sampler import TRAINING_ELEMENTS


def numbered(*sizes: int) -> Sets:
    """The features of an element are the index of its set, and its own index in the set."""
    return Sets.of([np.array([[i, j] for j in range(n)], dtype=np.float32) for i, n in enumerate(sizes)])


def test_a_batch_holds_its_sets_and_zeros():
    batch = numbered(1, 3, 2).batch(torch.tensor([2, 1]))
    assert batch.sizes.tolist() == [2, 3]
    assert batch.x.tolist() == [[[2, 0], [2, 1], [0, 0]], [[1, 0], [1, 1], [1, 2]]]
    assert numbered(2, 2).batch(torch.tensor([0, 1])).mask is None


def test_subsamples_are_uniform_and_without_replacement():
    sets = numbered(2, 50, 10)
    assert sets.subsample(50, torch.Generator()) is sets
    counts = torch.zeros(50)
    for seed in range(200):
        some = sets.subsample(5, torch.Generator().manual_seed(seed))
        assert some.sizes.tolist() == [2, 5, 5]
        assert some.values[:, 0].tolist() == [0] * 2 + [1] * 5 + [2] * 5
        assert len(np.unique(some.values, axis=0)) == 12
        counts[some.values[2:7, 1].astype(int)] += 1
    assert counts.sum() == 1000
    assert counts.min() > 5
    assert counts.max() < 40


def test_every_set_comes_once_an_epoch_and_elements_change_with_the_epoch():
    sets = numbered(*range(1, 41))
    chosen = torch.arange(0, 40, 2)
    batches = TrainingBatches(sets, chosen, batch_size=4, max_elements=3, seed=1)
    seen = [batches(step) for step in range(1, len(batches) + 1)]
    assert sorted(torch.cat([numbers for _, numbers in seen]).tolist()) == chosen.tolist()
    assert max(int(batch.sizes.max()) for batch, _ in seen) == 3
    assert max(len(batch) for batch, _ in seen) == 4
    assert batches.mean_batch_size == len(chosen) / len(batches)
    for batch, numbers in seen:
        assert (batch.x[:, 0, 0] == numbers).all()
    again = TrainingBatches(sets, chosen, batch_size=4, max_elements=3, seed=1)
    assert torch.equal(again(2)[0].x, seen[1][0].x)
    drawn = []
    for epoch in range(8):
        for step in range(epoch * len(batches) + 1, (epoch + 1) * len(batches) + 1):
            batch, numbers = batches(step)
            drawn += [
                row[:, 1].tolist() for row, number in zip(batch.x, numbers, strict=True) if number == 38
            ]
    assert len({tuple(row) for row in drawn}) > 4


def test_batches_stay_within_their_budget_of_elements():
    sets = numbered(*[3000] * 20, *[5] * 20)
    batches = TrainingBatches(sets, torch.arange(40), batch_size=16, max_elements=None, seed=0)
    for step in range(1, len(batches) + 1):
        assert batches(step)[0].x.shape[:2].numel() <= TRAINING_ELEMENTS


def test_evaluation_batches_cover_all_sets_once():
    sets = numbered(*range(1, 30))
    found = torch.cat([numbers for _, numbers in evaluation_batches(sets)])
    assert sorted(found.tolist()) == list(range(29))
    some = torch.tensor([5, 3, 7])
    assert sorted(torch.cat([numbers for _, numbers in evaluation_batches(sets, some)]).tolist()) == [3, 5, 7]


@pytest.mark.parametrize("task", [Binary(), Classes(), Regression()])
def test_weights_count_as_repetition_does_whatever_the_batches(task):
    out = torch.randn(3, 2 if isinstance(task, Classes) else 1)
    targets = torch.tensor([0, 1, 1]) if not isinstance(task, Regression) else torch.randn(3)
    weighted = WeightedTask(task, targets, torch.tensor([2.0, 0.0, 1.0]), mean_batch_size=1.5)
    repeated = task.losses(out[[0, 0, 2]], targets[[0, 0, 2]]).sum()
    in_parts = sum(weighted.loss(out[[i]], torch.tensor([i])) for i in range(3))
    assert torch.allclose(in_parts, repeated / 1.5)
    assert torch.allclose(weighted.loss(out, torch.arange(3)), repeated / 1.5)
    scores = weighted.score(out, torch.arange(3))
    assert scores["loss"] == pytest.approx(repeated.item() / 3, rel=1e-5)
    assert scores[task.metric] == task.score(out, targets)[task.metric]
    assert torch.equal(weighted.predict(out), task.predict(out))


def test_the_network_has_the_parts_that_were_asked_for():
    network = build_network(3, 2, layers=(16, 8), dropout=0.25, pool="mean+gated", hidden=(4, 4), depth=2)
    kinds = [type(layer).__name__ for layer in network.encoder.layers]
    assert kinds == ["CompressOutliers", "Dense", "Dropout", "Dense", "Dropout"]
    assert network.encoder.layers[2].p == 0.25
    assert len(network.blocks) == 2
    assert network(torch.randn(4, 5, 3)).shape == (4, 2)
    assert network.head.linear.in_features == 16
    with pytest.raises(ValueError, match=r"pool must be one of .*'gated'.* got 'median'"):
        build_network(3, 2, pool="mean+median")


def test_outliers_are_drawn_in_and_not_lost():
    compress = CompressOutliers()
    x = torch.linspace(-50, 50, 1001, dtype=torch.float64)
    y = compress(x)
    assert torch.equal(y[x.abs() <= 5], x[x.abs() <= 5])
    assert (y.diff() > 0).all()
    assert y[-1].item() == pytest.approx(5 + math.log(46))
    assert torch.equal(y, -compress(-x).flip(0).flip(0))
    network = build_network(1, 1, layers=(8,), hidden=(4, 4), depth=1, compress_outliers=False)
    assert [type(layer).__name__ for layer in network.encoder.layers] == ["Dense", "Dropout"]
