"""Distinct pooling: alike elements count as one."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import setwise as sw


def clusters(labels: list[int]) -> Tensor:
    """The kernel that is one among equal labels and zero elsewhere."""
    label = torch.tensor(labels)
    return (label.unsqueeze(0) == label.unsqueeze(1)).double().unsqueeze(0)


@given(labels=st.lists(st.integers(0, 4), max_size=9))
def test_shares_sum_to_the_number_of_different_elements(labels: list[int]) -> None:
    K = clusters(labels)
    share = sw.functional.shares(K)
    assert torch.allclose(share.sum(1), torch.tensor(float(len(set(labels)))).double())
    mask = torch.tensor([[True] * len(labels) + [False] * 2])
    padded = nn.functional.pad(K, (0, 2, 0, 2), value=math.nan)
    assert torch.equal(sw.functional.shares(padded, mask)[:, : len(labels)], share)
    assert (sw.functional.shares(padded, mask)[:, len(labels) :] == 0).all()


def test_shares_lie_between_one_for_all_and_one_for_each() -> None:
    K = sw.functional.rbf_kernel(torch.randn(20, 6, 3), torch.tensor(1.0))
    number = sw.functional.shares(K).sum(1)
    assert (number > 1).all()
    assert (number < 6).all()


def model(**changes: object) -> sw.DistinctDMPS:
    torch.manual_seed(0)
    arguments: dict[str, object] = {"dim": 8, "hidden": (8, 8), "activation": "tanh", "pool": "sum"}
    built = sw.DistinctDMPS.build(2, 1, **(arguments | changes)).double()
    built.graph.kernel.log_sigma.data.fill_(math.log(1e-3))  # so narrow that K is 0 or 1
    return built


SET = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(0)).double()


def repeated(times: int) -> Tensor:
    return torch.cat([SET, SET[:, 1:2].expand(1, times, 2)], 1)


def test_the_effective_number_ignores_repetition() -> None:
    found = [model().effective_number(repeated(times)).item() for times in range(5)]
    assert found == pytest.approx([4] * 5)


@pytest.mark.parametrize("normalize", [sw.functional.row_softmax, sw.functional.row_normalize])
def test_a_repeated_element_changes_nothing_where_k_is_zero_or_one(normalize: object) -> None:
    """Without messages; and with a row-normalised graph also with them, as its rows see copies as one."""
    graph = sw.LatentGraph(8, (8, 8), activation="tanh", normalize=normalize)
    built = model(depth=3 if normalize is sw.functional.row_normalize else 0, graph=graph)
    once = built(SET)
    for times in range(1, 5):
        assert torch.allclose(built(repeated(times)), once)
    assert not torch.allclose(built(torch.cat([SET, SET[:, :1] + 1], 1)), once)


def test_the_count_starts_at_the_effective_number() -> None:
    built = model()
    nn.init.zeros_(built.head.linear.weight)
    nn.init.zeros_(built.head.linear.bias)
    assert built(repeated(3)).exp().item() == pytest.approx(4)


@pytest.mark.parametrize("normalize", [None, sw.functional.row_softmax], ids=["default", "softmax"])
def test_the_forward_pass_is_the_formula(normalize: object) -> None:
    changes = {} if normalize is None else {"normalize": normalize}
    built = model(graph=sw.LatentGraph(8, (8, 8), activation="tanh", **changes))
    x = torch.randn(3, 5, 2).double()
    features = built.encoder(x)
    built.graph.initialize_bandwidth(features)
    K = built.graph.similarity(features)
    assert K.min() < 0.5
    share = 1 / K.sum(-1)
    F = K if normalize is None else K.exp()
    W = F / F.sum(-1, keepdim=True)
    for block in built.blocks:
        features = block(features, W)
    for i in range(3):
        N = sum(share[i])
        z = sum(share[i, j] * features[i, j] for j in range(5))
        assert torch.allclose(built(x)[i], N.log() + built.head(z / N))
        assert torch.allclose(built.effective_number(x)[i], N)


def test_the_kernel_learns_to_count() -> None:
    """Points of three places: the number of different places, from the counts alone."""
    built = sw.DistinctDMPS.build(2, 1, dim=8, hidden=(8, 8), activation="tanh", pool="sum", depth=1)
    sw.nn.initialize(built, sw.training.generator("weights", 0))
    places = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])

    def batches(step: int) -> tuple[sw.SetBatch, Tensor]:
        generator = sw.training.generator("distinct", step)
        place = torch.randint(3, (64, 5), generator=generator)
        noise = 0.1 * torch.randn(64, 5, 2, generator=generator)
        return sw.SetBatch(places[place] + noise), torch.tensor([len(set(row)) for row in place.tolist()])

    sw.fit(built, sw.Count(), batches, sw.Training(steps=300, lr=1e-2))
    assert sw.evaluate(built, sw.Count(), [batches(-1)])["accuracy_round"] > 0.95


def test_an_empty_set_counts_none() -> None:
    out = model()(torch.zeros(1, 0, 2).double())
    assert out.isfinite().all()
    assert out.exp().item() == pytest.approx(0)


def test_it_needs_a_kernel() -> None:
    for graph, name in (("uniform", "UniformGraph"), ("linear", "RandomFeatureGraph")):
        with pytest.raises(TypeError, match=f"must be a LatentGraph .*, got {name}"):
            sw.DistinctDMPS.build(2, 1, graph=graph)
