"""Multiple-instance models: attention as published, and what they are compared with."""

import pytest
import torch

import setwise as sw


def test_attention_is_that_of_the_equations() -> None:
    """Ilse et al., equations 8 and 9, written out instance by instance."""
    x = torch.randn(5, 4)
    for pool in (sw.nn.AttentionPool(4, 3), sw.nn.GatedAttentionPool(4, 3)):
        V, w = pool.score[0].linear, pool.score[1].linear
        scores = []
        for h in x:
            inner = torch.tanh(V.weight @ h + V.bias)
            if isinstance(pool, sw.nn.GatedAttentionPool):
                U = pool.gate.linear
                inner = inner / (1 + torch.exp(-(U.weight @ h + U.bias)))
            scores.append(w.weight @ inner + w.bias)
        weights = torch.exp(torch.cat(scores)) / sum(torch.exp(s) for s in scores)
        torch.testing.assert_close(pool.attention(x[None])[0], weights)
        torch.testing.assert_close(pool(x[None])[0], sum(a * h for a, h in zip(weights, x, strict=True)))


@pytest.mark.parametrize("pool", ["attention", "gated"])
def test_attention_of_a_model_weighs_its_instances(pool: str) -> None:
    model = sw.nn.PooledMIL.build(4, 2, dim=6, pool=pool)
    x = torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, True], [True, False, True]])
    a = sw.importance(model, x, mask)
    torch.testing.assert_close(a.sum(1), torch.ones(2))
    assert a[1, 1] == 0
    z = torch.einsum("bn,bnd->bd", a, model.encoder(x, mask))
    torch.testing.assert_close(model(x, mask), model.head(z))


@pytest.mark.parametrize(("pool", "reduce"), [("mean", torch.mean), ("max", torch.amax)])
def test_plain_pools(pool: str, reduce: object) -> None:
    model = sw.nn.PooledMIL.build(4, 1, dim=6, pool=pool)
    x = torch.randn(2, 3, 4)
    assert callable(reduce)
    torch.testing.assert_close(model(x), model.head(reduce(model.encoder(x), dim=1)))


def test_sizes_are_those_asked_for() -> None:
    model = sw.nn.PooledMIL.build(4, 2, dim=6, hidden=9, pool="gated")
    assert model.pool.gate.linear.weight.shape == (9, 6)
    assert model.pool.score[0].linear.weight.shape == (9, 6)
    assert sw.nn.PooledMIL.build(4, 2).pool.gate.linear.weight.shape == (128, 64)  # as published
    encoder = sw.nn.MLP(4, 6, 6)
    assert sw.nn.PooledMIL.build(4, 2, dim=6, encoder=encoder).encoder is encoder


def test_a_pool_may_be_a_module() -> None:
    pool = sw.nn.SumPool()
    assert sw.nn.PooledMIL.build(4, 2, pool=pool).pool is pool
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        sw.nn.PooledMIL.build(4, 2, hidden=0)


def test_an_unknown_pool_is_refused(unchecked: None) -> None:
    expected = r"pool must be one of \['attention', 'gated', 'max', 'mean'\], got 'median'"
    with pytest.raises(ValueError, match=expected):
        sw.nn.PooledMIL.build(4, 2, pool="median")
