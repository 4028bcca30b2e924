"""Losses, predictions and scores against what one works out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from setwise import Binary, Classes, Count, Labels, Regression
from setwise.tasks import RobustCount, Task, roc_auc


def test_binary() -> None:
    out, y = torch.tensor([[-1.0], [2.0], [0.5]]), torch.tensor([0, 1, 0])
    p = [1 / (1 + math.exp(-v)) for v in (-1.0, 2.0, 0.5)]
    expected = -(math.log(1 - p[0]) + math.log(p[1]) + math.log(1 - p[2])) / 3
    assert math.isclose(Binary().loss(out, y).item(), expected, rel_tol=1e-6)
    assert Binary().predict(out).tolist() == [0, 1, 1]
    assert Binary().probabilities(out)[:, 1].tolist() == pytest.approx(p)
    assert Binary().probabilities(out).sum(1).tolist() == pytest.approx([1, 1, 1])
    score = Binary().score(out, y)
    assert score == pytest.approx({"loss": expected, "accuracy": 2 / 3, "auc": 1.0})
    assert "auc" not in Binary().score(out[:1], y[:1])  # of one class alone there is none


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_area_under_the_curve_is_the_share_of_pairs_in_order(pairs: list[tuple[int, bool]]) -> None:
    scores, y = torch.tensor([float(s) for s, _ in pairs]), torch.tensor([int(label) for _, label in pairs])
    ones, zeros = scores[y == 1].tolist(), scores[y == 0].tolist()
    if not ones or not zeros:
        with pytest.raises(ValueError, match=f"both classes, got {len(zeros)} of class 0 and {len(ones)} of"):
            roc_auc(scores, y)
        return
    points = sum((a > b) + (a == b) / 2 for a in ones for b in zeros)
    assert roc_auc(scores, y) == pytest.approx(points / len(ones) / len(zeros))


def test_classes() -> None:
    out, y = torch.tensor([[0.0, 2.0, 1.0], [4.0, 0.5, 0.0]]), torch.tensor([1, 2])
    expected = -(out.softmax(1)[0, 1].log() + out.softmax(1)[1, 2].log()) / 2
    assert torch.isclose(Classes().loss(out, y), expected)
    assert Classes().predict(out).tolist() == [1, 0]
    assert Classes().probabilities(out).sum(1).tolist() == pytest.approx([1, 1])
    smooth = Classes(label_smoothing=0.3)
    spread = 0.7 * expected - 0.3 * out.log_softmax(1).mean()
    assert torch.isclose(smooth.loss(out, y), spread)
    assert not torch.isclose(spread, expected)
    assert smooth.score(out, y) == pytest.approx({"loss": expected.item(), "accuracy": 0.5})


def test_count() -> None:
    rates, y = [2.9, 0.4, 7.1], torch.tensor([3, 0, 6])
    out = torch.tensor(rates).log().unsqueeze(1)
    expected = -sum(stats.poisson.logpmf(k, rate) for k, rate in zip(y.tolist(), rates, strict=True)) / 3
    assert math.isclose(Count().loss(out, y).item(), expected, rel_tol=1e-5)
    assert Count().predict(out).tolist() == [2, 0, 7]
    assert Count(decode="round").predict(out).tolist() == [3, 0, 7]
    score = Count().score(out, y)
    assert score["accuracy"] == score["accuracy_mode"] == pytest.approx(1 / 3)
    assert score["accuracy_round"] == pytest.approx(2 / 3)
    assert Count(decode="round").score(out, y)["accuracy"] == pytest.approx(2 / 3)
    assert score["absolute_error"] == pytest.approx((0.1 + 0.4 + 1.1) / 3, abs=1e-5)


def test_count_decodes_by_mode_or_round_only() -> None:
    with pytest.raises(ValueError, match="decode must be 'mode' or 'round', got 'floor'"):
        Count(decode="floor")


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_regression(shape: tuple[int, ...]) -> None:
    out = torch.tensor([[1.0], [2.0], [4.0], [4.0]])
    y = torch.tensor([1.0, 3.0, 3.0, 5.0]).view(shape)
    assert Regression().loss(out, y).item() == pytest.approx(3 / 4)
    assert Regression().predict(out).tolist() == [1.0, 2.0, 4.0, 4.0]
    assert Regression().score(out, y) == pytest.approx(
        {"loss": 3 / 4, "r2": 1 - 3 / 8, "absolute_error": 3 / 4}
    )


def test_regression_on_several_targets() -> None:
    out, y = torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    assert Regression().predict(out).shape == (2, 2)
    assert Regression().score(out, y)["r2"] == pytest.approx((1 + 0.5) / 2)


def test_constant_targets_are_met_or_not() -> None:
    y = torch.ones(3)
    assert Regression().score(torch.ones(3, 1), y)["r2"] == 1.0
    assert Regression().score(torch.zeros(3, 1), y)["r2"] == 0.0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("task", "out", "y", "message"),
    [
        (Binary(), torch.zeros(3, 1), torch.zeros(3, 1), r"one target for each of 3 sets, got \[3, 1\]"),
        (Binary(), torch.zeros(2, 1), torch.tensor([-1, 1]), r"targets must be 0 or 1, got \[-1, 1\]"),
        (Classes(), torch.zeros(3, 4), torch.zeros(2).long(), r"one target for each of 3 sets, got \[2\]"),
        (Count(), torch.zeros(3, 1), torch.ones(3, 1), r"one target for each of 3 sets, got \[3, 1\]"),
        (Regression(), torch.zeros(2, 3), torch.zeros(3, 2), r"expected targets \[2, 3\], got \[3, 2\]"),
        (Regression(), torch.zeros(2, 1), torch.zeros(3), r"one target for each of 2 sets, got \[3\]"),
    ],
)
def test_targets_that_do_not_fit_are_refused(
    task: Task, out: torch.Tensor, y: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        task.loss(out, y)


@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan])
def test_absurd_label_smoothing_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"label_smoothing must lie between 0 and 1, got {share}"):
        Classes(label_smoothing=share)


def test_even_odds_are_class_0_and_the_metric_of_each_task_is_among_its_scores() -> None:
    assert Binary().predict(torch.zeros(1, 1)).tolist() == [0]
    y = torch.tensor([0, 1])
    for task, out in ((Binary(), torch.ones(2, 1)), (Classes(), torch.eye(2)), (Count(), torch.ones(2, 1))):
        assert task.metric == "accuracy"
        assert task.metric in task.score(out, y)
    assert Regression.metric == "r2"


def test_the_variance_of_each_target_is_its_own() -> None:
    y = torch.tensor([[0.0, 100.0], [2.0, 104.0]])
    out = torch.tensor([[1.0, 100.0], [1.0, 104.0]])
    assert Regression().score(out, y)["r2"] == pytest.approx((0 + 1) / 2)


def test_a_robust_count_is_squared_near_and_linear_far() -> None:
    task = RobustCount()
    for rate, y, expected in [(3.0, 3, 0.0), (3.2, 3, 0.04), (2.6, 3, 0.16), (5.0, 3, 1.75), (1.0, 9, 7.75)]:
        loss = task.loss(torch.tensor([[rate]]).double().log(), torch.tensor([y]))
        assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert task.loss(torch.zeros(2, 1), torch.tensor([1, 2])).item() == pytest.approx(0.375)
    assert task.score(torch.tensor([[2.9]]).log(), torch.tensor([3]))["accuracy_round"] == 1


@pytest.mark.usefixtures("unchecked")
def test_a_robust_count_needs_one_target_a_set() -> None:
    with pytest.raises(ValueError, match="one target for each of 2 sets"):
        RobustCount().loss(torch.zeros(2, 1), torch.zeros(2, 1))


@pytest.mark.usefixtures("unchecked")
def test_several_labels_are_as_many_binary_tasks() -> None:
    out, y = torch.tensor([[-1.0, 2.0], [0.5, -3.0]]), torch.tensor([[0, 1], [0, 0]])
    each = [Binary().losses(out[:, [k]], y[:, k]) for k in range(2)]
    assert Labels().losses(out, y).tolist() == pytest.approx(((each[0] + each[1]) / 2).tolist())
    assert Labels().predict(out).tolist() == [[0, 1], [1, 0]]
    assert Labels().probabilities(out).tolist()[0] == pytest.approx(
        [1 / (1 + math.e), 1 / (1 + math.exp(-2))]
    )
    score = Labels().score(out, y)
    assert (score["accuracy"], score["accuracy_label"]) == (0.5, 0.75)
    assert score["loss"] == pytest.approx(Labels().losses(out, y).mean().item())
    with pytest.raises(ValueError, match=r"expected targets \[2, 2\], got \[2\]"):
        Labels().losses(out, y[:, 0])
    with pytest.raises(ValueError, match=r"targets must be 0 or 1, got \[0, 2\]"):
        Labels().losses(out, 2 * y)


@pytest.mark.parametrize(
    ("task", "y"),
    [
        (Binary(), [0, 1, 1]), (Count(), [0, 3, 1]), (RobustCount(), [0, 3, 1]),
        (Regression(), [0.5, -3.0, 1.0]), (Classes(label_smoothing=0.1), [0, 1, 1]),
    ],
)  # fmt: skip
def test_the_loss_is_the_mean_of_each_sets_own(task: Task, y: list[float]) -> None:
    out = torch.randn(3, 2 if isinstance(task, Classes) else 1)
    losses = task.losses(out, torch.tensor(y))
    assert losses.shape == (3,)
    assert task.loss(out, torch.tensor(y)).item() == pytest.approx(losses.mean().item())
    alone = [task.losses(out[[i]], torch.tensor(y)[[i]]).item() for i in range(3)]
    assert losses.tolist() == pytest.approx(alone)
