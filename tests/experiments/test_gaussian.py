"""Gaussian sets: the data are what they say, and the Bayes classifier is the best there is."""

import math
from itertools import combinations

import pytest
import torch
from scipy import stats

import setwise as sw
from setwise.experiments.data.gaussian import PAIR, bayes_accuracy, bayes_logits, covariance, sample

# The best accuracy of any permutation-invariant classifier, by a Monte Carlo of 4·10⁵ sets a class.
LIMITS = {0.1: 0.505, 0.3: 0.517, 0.5: 0.531, 0.7: 0.549, 0.8: 0.562, 0.9: 0.584, 0.95: 0.6075, 0.99: 0.669}


def accuracy(out: torch.Tensor, y: torch.Tensor) -> float:
    return sw.Binary().score(out, y)["accuracy"]


def test_each_class_has_its_covariance() -> None:
    x, y = sample(200_000, 0.8, sw.training.generator("covariance"))
    assert x.shape == (200_000, 5, 1)
    for label, expected in ((0, torch.eye(5)), (1, covariance(0.8))):
        values = x[y == label, :, 0]
        assert len(values) == 100_000
        assert torch.allclose(torch.cov(values.T), expected, atol=0.02)
        assert values.mean(0).abs().max() < 0.02
    assert covariance(0.8)[1, 3] == covariance(0.8)[3, 1] == pytest.approx(0.8)
    assert PAIR == (1, 3)


def test_sampling_depends_on_the_generator_alone() -> None:
    a, b, c = (sample(8, 0.5, sw.training.generator("x", seed))[0] for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_the_bayes_classifier_matches_densities_by_scipy() -> None:
    rho = 0.7
    x, _ = sample(20, rho, sw.training.generator("bayes"))
    logits = bayes_logits(x.double(), rho)
    for values, logit in zip(x[..., 0].double().tolist(), logits[:, 0].tolist(), strict=True):
        likelihoods = []
        for i, j in combinations(range(5), 2):
            sigma = torch.eye(5).double()
            sigma[i, j] = sigma[j, i] = rho
            likelihoods.append(stats.multivariate_normal(cov=sigma.numpy()).pdf(values))
        null = stats.multivariate_normal(cov=torch.eye(5).numpy()).pdf(values)
        assert logit == pytest.approx(math.log(sum(likelihoods) / 10 / null), abs=1e-6)


def test_the_bayes_classifier_does_not_see_the_order() -> None:
    x, _ = sample(20, 0.9, sw.training.generator("order"))
    assert torch.allclose(bayes_logits(x[:, torch.randperm(5)], 0.9), bayes_logits(x, 0.9), atol=1e-5)


@pytest.mark.parametrize(("rho", "limit"), LIMITS.items())
def test_the_bayes_limit_has_the_known_value(rho: float, limit: float) -> None:
    x, y = sample(200_000, rho, sw.training.generator("limit", 0))
    assert accuracy(bayes_logits(x, rho), y) == pytest.approx(limit, abs=0.004)
    assert bayes_accuracy(rho) == pytest.approx(limit, abs=0.0015)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rho", [-0.1, 1.0, math.nan])
def test_invalid_correlations_are_refused(rho: float) -> None:
    with pytest.raises(ValueError, match=f"rho must be at least 0 and below 1, got {rho}"):
        sample(2, rho, sw.training.generator())


@pytest.mark.parametrize("sets", [0, 3, -2])
def test_invalid_numbers_of_sets_are_refused(sets: int) -> None:
    with pytest.raises(ValueError, match=f"positive even number, got {sets}"):
        sample(sets, 0.5, sw.training.generator())


def test_zero_correlation_is_valid() -> None:
    x, _ = sample(4, 0.0, sw.training.generator("zero"))
    assert bayes_logits(x, 0.0).abs().max() < 1e-6
    assert bayes_logits(x.double(), 0.9).dtype == torch.float64
