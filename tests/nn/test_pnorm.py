"""p-norm message passing: values against plain loops, descent of its energy, edges that stay."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import setwise as sw
from setwise.functional import rows_to_one, squared_distances
from tests import oracle

POWERS = [1.0, 1.25, 1.5, 1.9]
every_power = pytest.mark.parametrize("p", POWERS)


def reweighted(x: oracle.Matrix, W: oracle.Matrix, p: float, eps: float) -> list[list[float]]:
    n, R = len(x), []
    for i in range(n):
        a = [W[i][j] * (oracle.distance(x[i], x[j]) ** 2 + eps**2) ** ((p - 2) / 2) for j in range(n)]
        total = sum(a[j] for j in range(n) if j != i)
        R.append([W[i][i] if j == i else (1 - W[i][i]) * a[j] / total for j in range(n)])
    return R


def energy(x: oracle.Matrix, W: oracle.Matrix, p: float, eps: float) -> float:
    total = 0.0
    for i in range(len(x)):
        for j in range(i):
            length = (oracle.distance(x[i], x[j]) ** 2 + eps**2) ** (p / 2)
            total += (W[i][j] + W[j][i]) / 2 * (length - eps**p)
    return total / p


def symmetric(b: int, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Weights of edges with no structure at all, some of them zero, self-edges small to large."""
    F = torch.rand(b, n, n, dtype=torch.float64, generator=generator) ** 3
    F = (F + F.mT) * (F + F.mT > 0.1)
    own = torch.rand(b, n, dtype=torch.float64, generator=generator)
    return F + torch.diag_embed(own * n * (own > 0.3))


def example(n: int = 6, d: int = 3) -> tuple[Tensor, Tensor]:
    """Features and a W that is not symmetric, one edge of which is missing."""
    F = torch.rand(2, n, n, dtype=torch.float64) + 0.05
    F[:, 0, 1] = 0
    return torch.randn(2, n, d, dtype=torch.float64), rows_to_one(F)


# Values


@every_power
@pytest.mark.parametrize("eps", [1e-3, 0.1, 3.0])
def test_weights_match_plain_loops(p: float, eps: float) -> None:
    x, W = example()
    for R, features, weights in zip(sw.nn.pnorm_reweighted(x, W, p, eps), x, W, strict=True):
        expected = torch.tensor(reweighted(features.tolist(), weights.tolist(), p, eps)).double()
        assert torch.allclose(R, expected, atol=1e-12)


@pytest.mark.parametrize("p", [*POWERS, 2.0])
@pytest.mark.parametrize("eps", [0.0, 0.1, 3.0])
def test_the_energy_matches_plain_loops(p: float, eps: float) -> None:
    x, W = example()
    expected = [energy(u.tolist(), w.tolist(), p, eps) for u, w in zip(x, W, strict=True)]
    assert sw.nn.pnorm_energy(x, W, p, eps).tolist() == pytest.approx(expected, rel=1e-10)


def test_an_element_keeps_its_own_weight_and_the_row_its_sum() -> None:
    x, W = example()
    R = sw.nn.pnorm_reweighted(x, W, 1.0, 0.1)
    assert torch.equal(R.diagonal(dim1=1, dim2=2), W.diagonal(dim1=1, dim2=2))
    assert torch.allclose(R.sum(-1), torch.ones(2, 6, dtype=torch.float64), atol=1e-12)
    assert (R[:, 0, 1] == 0).all()
    assert (R >= 0).all()
    assert not torch.allclose(R, W, atol=0.01)


def test_a_square_is_the_usual_graph_and_the_usual_energy() -> None:
    x, W = example()
    assert sw.nn.pnorm_reweighted(x, W, 2.0, 0.1) is W
    for eps in (0.0, 0.1):
        assert torch.equal(sw.nn.pnorm_energy(x, W, 2.0, eps), sw.functional.dirichlet_energy(x, W))
    almost = 2 - 1e-9
    assert torch.allclose(sw.nn.pnorm_reweighted(x, W, almost, 0.1), W, atol=1e-8)
    assert torch.allclose(
        sw.nn.pnorm_energy(x, W, almost, 0.1), sw.functional.dirichlet_energy(x, W), rtol=1e-7
    )


def test_closer_than_eps_all_powers_are_alike() -> None:
    x, W = example()
    assert torch.allclose(sw.nn.pnorm_reweighted(x, W, 1.0, 1e4), W, atol=1e-6)
    assert torch.allclose(sw.nn.pnorm_reweighted(1e-4 * x, W, 1.0, 0.1), W, atol=1e-4)


def test_eps_is_a_tenth_unless_given() -> None:
    x, W = example()
    assert torch.equal(sw.nn.pnorm_reweighted(x, W, 1.0), sw.nn.pnorm_reweighted(x, W, 1.0, 0.1))
    assert torch.equal(sw.nn.pnorm_energy(x, W, 1.0), sw.nn.pnorm_energy(x, W, 1.0, 0.1))
    assert (sw.nn.PNormBlock(3).p, sw.nn.PNormBlock(3).eps) == (1.0, 0.1)


def test_a_set_far_from_the_origin_has_the_same_graph_and_energy() -> None:
    x, W = (t.float() for t in example())
    for function in (sw.nn.pnorm_reweighted, sw.nn.pnorm_energy):
        assert torch.allclose(function(x + 1e3, W, 1.0, 0.1), function(x, W, 1.0, 0.1), atol=1e-2)


# Descent


def descent(x: Tensor, F: Tensor, p: float, eps: float, gamma: float, steps: int) -> list[Tensor]:
    """The energies along the way, with the edge weights F and the messages of W = F / row sums."""
    W, found = rows_to_one(F), []
    for _ in range(steps + 1):
        found.append(sw.nn.pnorm_energy(x, F, p, eps))
        x = sw.functional.propagate(x, sw.nn.pnorm_reweighted(x, W, p, eps), gamma)
    return found


@given(
    n=st.integers(2, 9),
    p=st.floats(1, 2),
    eps=st.sampled_from([1e-6, 1e-3, 0.1, 10.0]),
    gamma=st.floats(0.01, 1),
    spread=st.sampled_from([1e-3, 1.0, 100.0]),
    seed=st.integers(0, 2**16),
)
def test_the_energy_never_rises(n: int, p: float, eps: float, gamma: float, spread: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = spread * torch.randn(4, n, 2, dtype=torch.float64, generator=generator)
    x[0, -1] = x[0, 0]  # two of them coincide
    F = symmetric(4, n, generator)
    energies = descent(x, F, p, eps, gamma, steps=40)
    error = 1e-14 * spread**2  # of a squared distance, and what it does to a length, which has its own
    rounding = F.sum((-2, -1)) * ((error + eps**2) ** (p / 2) - eps**p + 1e-14 * (spread**p + eps**p))
    for before, after in pairwise(energies):
        assert (after <= before + rounding).all()


@every_power
@pytest.mark.parametrize("gamma", [0.3, 1.0])
def test_the_energy_falls_until_all_are_alike(p: float, gamma: float) -> None:
    """With every element heard by every other: strictly, down to nothing."""
    x, F = torch.randn(3, 8, 2, dtype=torch.float64), torch.rand(3, 8, 8, dtype=torch.float64) + 0.2
    energies = torch.stack(descent(x, F + F.mT, p, 1e-2, gamma, steps=400))
    falling = energies[:-1] > 1e-10 * energies[0]
    assert falling[:5].all()
    assert (energies[1:] < energies[:-1])[falling].all()
    assert (energies[-1] < 1e-6 * energies[0]).all()


@pytest.mark.parametrize("normalize", [sw.functional.row_softmax, sw.functional.row_normalize])
@every_power
def test_the_graphs_of_the_library_are_such(p: float, normalize: object) -> None:
    """W of a kernel K is F / row sums, F = exp K for the softmax and F = K for the plain quotient."""
    torch.manual_seed(1)
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    graph = sw.LatentGraph(3, (8, 8), activation="tanh", normalize=normalize).double()
    K, W = graph.similarity(x).detach(), graph(x).detach()
    F = K.exp() if normalize is sw.functional.row_softmax else K
    energies = []
    for _ in range(30):
        energies.append(sw.nn.pnorm_energy(x, F, p, 1e-2))
        x = sw.functional.propagate(x, sw.nn.pnorm_reweighted(x, W, p, 1e-2))
    fallen = torch.stack(energies)
    assert (fallen[1:] <= fallen[:-1] * (1 + 1e-12)).all()
    assert (fallen[-1] < 0.3 * fallen[0]).all()


def test_a_bare_step_down_the_gradient_would_be_unstable() -> None:
    """Why the weights are divided anew: X − γ ∇E with the same γ goes up near an edge that has closed."""
    x = torch.tensor([[[0.0], [1e-3]]], dtype=torch.float64, requires_grad=True)
    F = torch.ones(1, 2, 2, dtype=torch.float64)
    before = sw.nn.pnorm_energy(x, F, 1.0, 1e-3)
    (slope,) = torch.autograd.grad(before.sum(), x)
    bare = sw.nn.pnorm_energy(x - 0.5 * slope, F, 1.0, 1e-3)
    ours = sw.nn.pnorm_energy(
        sw.functional.propagate(x, sw.nn.pnorm_reweighted(x, rows_to_one(F), 1.0, 1e-3), 0.5), F, 1.0, 1e-3
    )
    assert ours < before < bare


def test_the_step_goes_along_the_gradient_of_the_energy() -> None:
    """X − R X = (1 − w_ii) ∇E_i / Σ_j≠i a_ij, with the gradient that automatic differentiation finds."""
    x, F = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True), symmetric(2, 6) + 0.1
    W, p, eps = rows_to_one(F), 1.3, 0.2
    (slope,) = torch.autograd.grad(sw.nn.pnorm_energy(x, F, p, eps).sum(), x)
    a = F * (squared_distances(x) + eps**2) ** (p / 2 - 1)
    degree = a.sum(-1) - a.diagonal(dim1=1, dim2=2)
    step = (1 - W.diagonal(dim1=1, dim2=2)) / degree
    assert torch.allclose(
        x - sw.nn.pnorm_reweighted(x, W, p, eps) @ x, step.unsqueeze(-1) * slope, atol=1e-10
    )


def test_a_smaller_power_keeps_an_edge() -> None:
    """Two noisy clusters: the gap between them, in units of the noise within, after a few steps."""
    noise = 0.3 * torch.randn(1, 40, 2, dtype=torch.float64)
    start = noise + torch.tensor([0.0, 4.0]).double().repeat_interleave(20).view(1, 40, 1)
    W = torch.full((1, 40, 40), 1 / 40, dtype=torch.float64)

    def contrast(p: float) -> float:
        x = start
        for _ in range(4):
            x = sw.functional.propagate(x, sw.nn.pnorm_reweighted(x, W, p, 0.1), 0.5)
        left, right = x[0, :20], x[0, 20:]
        within = torch.cat([left - left.mean(0), right - right.mean(0)]).square().sum(-1).mean().sqrt()
        return ((left.mean(0) - right.mean(0)).norm() / within).item()

    at = {p: contrast(p) for p in (1.0, 1.5, 2.0)}
    assert at[1.0] > 1.5 * at[1.5] > 1.5 * 1.5 * at[2.0]


# Padding and other edges


@pytest.mark.parametrize("garbage", [0.0, 1e30, math.nan, math.inf])
@every_power
def test_padding_is_silent(p: float, garbage: float) -> None:
    x, W = example(4)
    padded = torch.nn.functional.pad(x, (0, 0, 0, 2), value=garbage).requires_grad_()
    wide = torch.nn.functional.pad(W, (0, 2, 0, 2)).requires_grad_()
    R = sw.nn.pnorm_reweighted(padded, wide, p, 0.1)
    assert torch.allclose(R[:, :4, :4], sw.nn.pnorm_reweighted(x, W, p, 0.1), atol=1e-12)
    assert (R[:, 4:] == 0).all()
    assert (R[:, :, 4:] == 0).all()
    E = sw.nn.pnorm_energy(padded, wide, p, 0.1)
    assert torch.allclose(E, sw.nn.pnorm_energy(x, W, p, 0.1), atol=1e-12)
    (R.square().sum() + E.sum()).backward()
    assert padded.grad.isfinite().all()
    assert (padded.grad[:, 4:] == 0).all()
    assert wide.grad.isfinite().all()


@pytest.mark.parametrize("n", [0, 1])
@every_power
def test_nobody_and_one_alone(p: float, n: int) -> None:
    x, W = torch.randn(2, n, 3, requires_grad=True), torch.ones(2, n, n, requires_grad=True)
    R = sw.nn.pnorm_reweighted(x, W, p, 0.1)
    assert torch.equal(R, W)
    E = sw.nn.pnorm_energy(x, W, p, 0.1)
    assert E.tolist() == [0, 0]
    (R.sum() + E.sum()).backward()
    assert x.grad.isfinite().all()
    assert W.grad.isfinite().all()


def test_who_hears_nobody_else_stays_so() -> None:
    x, W = torch.randn(1, 3, 2, requires_grad=True), torch.eye(3)[None].requires_grad_()
    R = sw.nn.pnorm_reweighted(x, W, 1.0, 0.1)
    assert torch.equal(R, W)
    R.square().sum().backward()
    assert x.grad.isfinite().all()
    assert W.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-3, 0.1])
@every_power
def test_elements_that_coincide(p: float, eps: float, dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 3, dtype=dtype)
    x[:, 1:4] = x[:, :1]
    x[1] = 1.0  # one set in which all do
    x.requires_grad_()
    W = rows_to_one(torch.rand(2, 5, 5, dtype=dtype))
    R = sw.nn.pnorm_reweighted(x, W, p, eps)
    assert torch.allclose(R[1], W[1], atol=1e-6)
    assert torch.allclose(R.sum(-1), torch.ones(2, 5, dtype=dtype), atol=1e-6)
    assert sw.nn.pnorm_energy(x, W, p, eps)[1].item() == pytest.approx(0, abs=1e-6)
    (R @ x).square().sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() < 1e3 / eps


@every_power
def test_without_eps_the_energy_of_coinciding_elements_has_a_finite_slope(p: float) -> None:
    x = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]]], dtype=torch.float64, requires_grad=True)
    E = sw.nn.pnorm_energy(x, torch.ones(1, 3, 3, dtype=torch.float64), p, 0.0)
    assert E.item() == pytest.approx(2 * 5**p / p)
    E.sum().backward()
    pull = 5 ** (p - 1)
    expected = [[-0.6 * pull, -0.8 * pull], [-0.6 * pull, -0.8 * pull], [1.2 * pull, 1.6 * pull]]
    assert torch.allclose(x.grad[0], torch.tensor(expected).double())


@every_power
def test_not_even_where_the_distance_is_zero_to_the_last_bit(p: float) -> None:
    x = torch.tensor([[[0.0], [0.0], [1.0], [-1.0]]], requires_grad=True)
    sw.nn.pnorm_energy(x, torch.ones(1, 4, 4), p, 0.0).sum().backward()
    assert torch.allclose(x.grad.flatten(), torch.tensor([0.0, 0.0, 2 + 2 ** (p - 1), -2 - 2 ** (p - 1)]))


def test_an_element_is_at_no_distance_from_itself() -> None:
    """To the last bit: the root of a rounding error is none."""
    x = torch.randn(1, 50, 64) + 5
    alone = torch.eye(50)[None]
    assert sw.nn.pnorm_energy(x, alone, 1.0, 0.0).item() == 0


# Gradients and number formats


@every_power
def test_gradcheck(p: float) -> None:
    x, W = example(4)
    inputs = (x.requires_grad_(), W.requires_grad_())
    for function in (sw.nn.pnorm_reweighted, sw.nn.pnorm_energy):
        assert torch.autograd.gradcheck(lambda x, W, f=function: f(x, W, p, 0.1), inputs)


@every_power
def test_how_steep_the_weights_can_be(p: float) -> None:
    """The logarithm of a quotient of weights has a slope of at most (2 − p) / 2ε, which distance ε has."""
    eps, steepest = 0.1, 0.0
    for distance in (0.01, 0.05, 0.1, 0.2, 1.0):
        x = torch.tensor([[[0.0], [distance], [9.0]]], dtype=torch.float64, requires_grad=True)
        R = sw.nn.pnorm_reweighted(x, torch.full((1, 3, 3), 1 / 3, dtype=torch.float64), p, eps)
        (slope,) = torch.autograd.grad((R[0, 0, 1] / R[0, 0, 2]).log(), x)
        steepest = max(steepest, slope[0, 1].abs().item())
    assert steepest == pytest.approx((2 - p) / (2 * eps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_graph_keeps_its_dtype(dtype: torch.dtype) -> None:
    x, W = example()
    R = sw.nn.pnorm_reweighted(x.to(dtype), W.to(dtype), 1.0, 0.1)
    assert R.dtype == dtype
    assert torch.allclose(R.double(), sw.nn.pnorm_reweighted(x, W, 1.0, 0.1), atol=2e-2)
    mixed = sw.nn.pnorm_reweighted(x.bfloat16(), W.float(), 1.0, 0.1)
    assert mixed.dtype == torch.float32


def test_distances_keep_their_digits_under_autocast() -> None:
    x, W = (t.float() for t in example())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        R, E = sw.nn.pnorm_reweighted(x, W, 1.0, 1e-2), sw.nn.pnorm_energy(x, W, 1.0, 1e-2)
    assert torch.equal(R, sw.nn.pnorm_reweighted(x, W, 1.0, 1e-2))
    assert torch.equal(E, sw.nn.pnorm_energy(x, W, 1.0, 1e-2))
    coarse = x.bfloat16()  # features of few digits: no more may be lost in moving them
    exact = sw.nn.pnorm_reweighted(coarse.double(), W.double(), 1.0, 0.1)
    assert torch.allclose(sw.nn.pnorm_reweighted(coarse, W, 1.0, 0.1).double(), exact, atol=1e-5)


def test_rows_of_few_digits_keep_their_sum() -> None:
    x, W = torch.randn(20, 50, 4), rows_to_one(torch.rand(20, 50, 50)).bfloat16()
    lost = sw.nn.pnorm_reweighted(x, W, 1.0).float().sum(-1) - W.float().sum(-1)
    assert lost.abs().mean() < 5e-4


# Blocks


def blocks(p: float, **more: object) -> tuple[sw.nn.PNormBlock, sw.nn.SetDenoisingBlock]:
    ours = sw.nn.PNormBlock(3, p=p, activation="tanh", **more)
    usual = sw.nn.SetDenoisingBlock(3, activation="tanh")
    usual.load_state_dict(ours.state_dict())
    return ours, usual


def test_with_a_square_it_is_the_denoising_block_bit_for_bit() -> None:
    x, W = (t.float().requires_grad_() for t in example())
    ours, usual = blocks(2.0)
    assert torch.equal(ours(x, W), usual(x, W))
    found, expected = (
        torch.autograd.grad(block(x, W).square().sum(), (x, W, *block.parameters()))
        for block in (ours, usual)
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@every_power
def test_a_block_passes_its_messages_on_the_reweighted_graph(p: float) -> None:
    x, W = (t.float() for t in example())
    ours, usual = blocks(p, eps=0.3, gamma=sw.nn.Gamma(0.7))
    R = sw.nn.pnorm_reweighted(x, W, p, 0.3)
    assert torch.equal(ours(x, W), usual(x, R))
    assert torch.equal(ours.reweighted(x, W), R)
    assert not torch.allclose(ours(x, W), usual(x, W), atol=1e-3)


def test_gradients_flow_through_the_weights() -> None:
    x, W = (t.float() for t in example())
    x.requires_grad_()
    ours, usual = blocks(1.0)
    through, around = (
        torch.autograd.grad(block(x, graph).square().sum(), x)[0]
        for block, graph in ((ours, W), (usual, sw.nn.pnorm_reweighted(x, W, 1.0).detach()))
    )
    assert not torch.allclose(through, around, atol=1e-3)


def test_gamma_is_shared_or_its_own() -> None:
    shared = sw.nn.Gamma(0.25)
    assert sw.nn.PNormBlock(3, gamma=shared).gamma is shared
    assert sw.nn.PNormBlock(3).gamma.learn
    assert sw.nn.PNormBlock(3, activation="tanh").dense.activation == "tanh"
    assert "p=1.5, eps=0.2" in repr(sw.nn.PNormBlock(3, p=1.5, eps=0.2))


class Products(sw.nn.Weights):
    """A dense matrix that shows nothing but its products."""

    def __init__(self, W: Tensor) -> None:
        super().__init__(tuple(W.shape), W.dtype, W.device)
        self.W = W

    def __matmul__(self, x: Tensor) -> Tensor:
        return self.W @ x


class Reweightable(Products):
    """One that knows how to be divided anew."""

    def reweighted(self, x: Tensor, *, p: float, eps: float) -> Products:
        return Products(sw.nn.pnorm_reweighted(x, self.W, p, eps))


def test_weights_that_are_no_tensor() -> None:
    x, W = (t.float() for t in example())
    ours, usual = blocks(1.5, eps=0.2)
    assert torch.allclose(ours(x, Reweightable(W)), ours(x, W), atol=1e-6)
    with pytest.raises(TypeError, match="needs a matrix or SparseWeights, got Products"):
        ours(x, Products(W))
    square, usual = blocks(2.0)
    assert torch.allclose(square(x, Products(W)), usual(x, W), atol=1e-6)


@pytest.mark.parametrize("graph", ["streamed", "linear", "auto"])
def test_a_model_refuses_graphs_without_edges(graph: str) -> None:
    with pytest.raises(TypeError, match=r"PNormBlock needs a graph with single edges, .* got [SRA]"):
        sw.DMPS.build(3, 1, dim=4, graph=graph, block=lambda: sw.nn.PNormBlock(4))
    sw.DMPS.build(3, 1, dim=4, graph=graph, block=lambda: sw.nn.PNormBlock(4, p=2.0))


@pytest.mark.parametrize(
    ("p", "eps", "message"),
    [
        (3.0, 0.1, r"^p must lie between 1 and 2, got 3\.0$"),
        (0.9, 0.1, r"^p must lie between 1 and 2, got 0\.9$"),
        (math.nan, 0.1, "^p must lie between 1 and 2, got nan$"),
        (1.0, 0.0, r"^eps must be positive and finite, got 0\.0$"),
        (2.0, 0.0, r"^eps must be positive and finite, got 0\.0$"),
        (1.0, -0.1, r"^eps must be positive and finite, got -0\.1$"),
        (1.0, math.inf, "^eps must be positive and finite, got inf$"),
        (1.0, math.nan, "^eps must be positive and finite, got nan$"),
    ],
)
def test_absurd_values(p: float, eps: float, message: str) -> None:
    x, W = example()
    with pytest.raises(ValueError, match=message):
        sw.nn.PNormBlock(3, p=p, eps=eps)
    with pytest.raises(ValueError, match=message):
        sw.nn.pnorm_reweighted(x, W, p, eps)
    if eps != 0:
        with pytest.raises(ValueError, match=message.replace("positive", "not negative")):
            sw.nn.pnorm_energy(x, W, p, eps)
