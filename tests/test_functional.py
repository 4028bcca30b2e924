"""The equations against plain loops, and the paper's identities."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from setwise import functional as fn
from setwise.nn import Weights
from tests import oracle

LogKernel = Callable[[Tensor, Tensor], Tensor]
KERNELS: list[tuple[LogKernel, oracle.Kernel]] = [
    (fn.log_rbf_kernel, oracle.rbf),
    (fn.log_laplace_kernel, oracle.laplace),
    (fn.log_matern32_kernel, oracle.matern32),
    (fn.log_matern52_kernel, oracle.matern52),
    (fn.log_super_gaussian_kernel, oracle.super_gaussian),
]
every_kernel = pytest.mark.parametrize(("log_kernel", "slow"), KERNELS, ids=lambda f: f.__name__)


def points(n: int = 6, d: int = 3, b: int = 1) -> Tensor:
    return torch.randn(b, n, d, dtype=torch.float64)


def same(a: Tensor, b: object) -> bool:
    return torch.allclose(a, torch.as_tensor(b, dtype=a.dtype), atol=1e-12)


@every_kernel
@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
def test_kernels_match_plain_loops(log_kernel: LogKernel, slow: oracle.Kernel, sigma: float) -> None:
    z = points(b=2)
    log_K = log_kernel(z, torch.tensor(sigma, dtype=z.dtype))
    expected = [oracle.kernel_matrix(u.tolist(), sigma, slow) for u in z]
    assert same(log_K.exp(), expected)
    if log_kernel is fn.log_rbf_kernel:
        assert same(fn.rbf_kernel(z, torch.tensor(sigma, dtype=z.dtype)), expected)


@every_kernel
def test_logarithms_of_kernels_are_exact_where_the_kernel_is_small(
    log_kernel: LogKernel, slow: oracle.Kernel
) -> None:
    """At distances where K lies between 1 and 1e-300, relative to log K itself."""
    z = torch.tensor([[[0.0], [0.5], [2.0], [3.0]]], dtype=torch.float64)
    log_K = log_kernel(z, torch.tensor(1.0, dtype=z.dtype))
    expected = [[math.log(slow(u, v, 1.0)) for v in z[0].tolist()] for u in z[0].tolist()]
    assert torch.allclose(log_K[0], torch.tensor(expected, dtype=z.dtype), rtol=1e-9, atol=1e-12)


@every_kernel
def test_kernels_are_one_at_distance_zero_and_never_above(log_kernel: LogKernel, slow: oracle.Kernel) -> None:
    z = torch.randn(1, 50, 8)
    z[0, 7] = z[0, 3]
    log_K = log_kernel(z, torch.tensor(0.5))
    assert (log_K <= 0).all()
    assert log_K.isfinite().all()
    K = log_K.exp()
    assert (K.diagonal(dim1=1, dim2=2) > 1 - 1e-4).all()
    assert K[0, 3, 7] > 0.99


@every_kernel
def test_kernels_have_first_and_second_derivatives(log_kernel: LogKernel, slow: oracle.Kernel) -> None:
    inputs = points(4, 2).requires_grad_(), torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    for function in (log_kernel, lambda z, sigma: log_kernel(z, sigma).exp()):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


def test_distances_survive_a_large_common_shift() -> None:
    z = torch.randn(1, 20, 3)
    exact = fn.squared_distances(z.double())
    assert torch.allclose(fn.squared_distances(fn.center(z + 1e4)).double(), exact, atol=0.1)
    assert torch.allclose(fn.squared_distances(z).double(), exact, atol=1e-5)


def test_distances_are_computed_in_single_precision_under_autocast() -> None:
    z = 10 * torch.randn(1, 20, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = fn.squared_distances(z)
        half = fn.squared_distances(z.bfloat16())
    assert found.dtype == half.dtype == torch.float32
    assert torch.equal(found, fn.squared_distances(z))


def test_gradient_of_distances_is_exact_when_backward_runs_under_autocast() -> None:
    def gradient(autocast: bool) -> Tensor:
        z = torch.randn(1, 20, 8, generator=torch.Generator().manual_seed(3), requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            fn.squared_distances(z).square().sum().backward()
        assert z.grad is not None
        return z.grad

    assert torch.equal(gradient(autocast=True), gradient(autocast=False))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_row_softmax_matches_plain_loops(temperature: float) -> None:
    K = torch.rand(1, 5, 5, dtype=torch.float64)
    expected = oracle.softmax_rows(K[0].tolist(), temperature)
    assert same(fn.row_softmax(K.log(), temperature=temperature), [expected])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_row_normalize_matches_plain_loops_and_is_the_softmax_of_the_logarithm(temperature: float) -> None:
    K = torch.rand(1, 5, 5, dtype=torch.float64)
    W = fn.row_normalize(K.log(), temperature=temperature)
    assert same(W, [oracle.normalized_rows(K[0].tolist(), temperature)])
    assert same(W, (K.log() / temperature).softmax(-1))
    assert same(W, fn.rows_to_one(K ** (1 / temperature)))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(
    ("normalize", "slow"),
    [(fn.row_normalize, oracle.normalized_rows), (fn.row_softmax, oracle.softmax_rows)],
)
def test_normalisations_leave_masked_elements_out(
    normalize: Callable[..., Tensor], slow: Callable[..., list[list[float]]], temperature: float
) -> None:
    K = torch.rand(2, 5, 5, dtype=torch.float64)
    mask = torch.tensor([[True, False, True, True, False], [False] * 5])
    log_K = K.log().masked_fill(~fn.pair_mask(mask), math.nan).requires_grad_()
    W = normalize(log_K, mask, temperature=temperature)
    real = mask[0].nonzero().squeeze(1)
    assert same(W[0][real][:, real], slow(K[0][real][:, real].tolist(), temperature))
    assert (W[~fn.pair_mask(mask)] == 0).all()
    W.square().sum().backward()
    assert log_K.grad is not None
    assert (log_K.grad[~fn.pair_mask(mask)] == 0).all()
    assert log_K.grad.isfinite().all()


def test_the_weights_of_a_row_softmax_differ_by_a_factor_of_e_at_most() -> None:
    W = fn.row_softmax(fn.log_rbf_kernel(10 * points(30), torch.tensor(0.1, dtype=torch.float64)))
    ratio = W.amax(-1) / W.amin(-1)
    assert (ratio <= math.e + 1e-9).all()
    assert (ratio > 2.7).all()


def test_row_normalize_reaches_the_identity_and_the_uniform_graph() -> None:
    z = 10 * points(30)
    narrow, wide = (fn.log_rbf_kernel(z, torch.tensor(sigma).double()) for sigma in (0.01, 1e6))
    assert same(fn.row_normalize(narrow), torch.eye(30))
    assert same(fn.row_normalize(wide), torch.full((30, 30), 1 / 30))


class TestUnderflow:
    """Distances of 50 σ, where K = exp(−1250) is zero in every floating-point type."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_the_ratio_of_two_weights_and_its_gradient_remain(self, dtype: torch.dtype) -> None:
        rows = [[-1250.0, -1251.0, -1249.0], [-1250.0] * 3, [-2000.0, -2000.0, -1250.0]]
        log_K = torch.tensor([rows], dtype=dtype, requires_grad=True)
        assert (log_K.exp() == 0).all()
        W = fn.row_normalize(log_K)
        first = oracle.normalized_rows([[1.0, math.exp(-1), math.e]])[0]
        expected = torch.tensor([first, [1 / 3] * 3, [0.0, 0.0, 1.0]], dtype=dtype)
        assert torch.allclose(W[0], expected, rtol=1e-5 if dtype == torch.float32 else 1e-12)
        W[0, 0, 0].backward()
        assert log_K.grad is not None
        slope = torch.tensor([first[0] * ((i == 0) - w) for i, w in enumerate(first)], dtype=dtype)
        assert torch.allclose(log_K.grad[0, 0], slope, rtol=1e-5)

    def test_a_temperature_widens_the_kernel_of_far_elements(self) -> None:
        """The Gaussian kernel to the power 1/T is that of bandwidth σ √T."""
        sigma, temperature = 0.1, 1000.0
        z = torch.tensor([[[0.0], [5.0], [11.0]]], dtype=torch.float64, requires_grad=True)
        log_K = fn.log_rbf_kernel(z, torch.tensor(sigma, dtype=z.dtype))
        assert same(log_K.exp(), torch.eye(3))
        W = fn.row_normalize(log_K, temperature=temperature)
        K = oracle.kernel_matrix(z[0].tolist(), sigma * temperature**0.5, oracle.rbf)
        assert same(W, [oracle.normalized_rows(K)])
        (gradient,) = torch.autograd.grad(W[0, 0, 1], z)
        assert (gradient[0, :2].abs() > 1e-3).all()
        assert torch.autograd.gradcheck(
            lambda z: fn.row_normalize(fn.log_rbf_kernel(z, torch.tensor(sigma).double()), temperature=1e3), z
        )

    def test_elements_that_only_see_far_ones_compare_them(self) -> None:
        """With itself left out, an element weighs its neighbours at 50 σ and 50.01 σ by exp(−0.5)."""
        z = torch.tensor([[[0.0], [50.0], [-50.01]]], dtype=torch.float64, requires_grad=True)
        log_K = fn.log_rbf_kernel(z, torch.tensor(1.0).double())
        W = fn.row_normalize(log_K.masked_fill(torch.eye(3, dtype=torch.bool), -math.inf))
        ratio = W[0, 0, 2] / W[0, 0, 1]
        assert ratio.item() == pytest.approx(math.exp((50**2 - 50.01**2) / 2), rel=1e-9)
        (gradient,) = torch.autograd.grad(W[0, 0, 1], z)
        assert gradient[0, 1].abs() > 1

    @every_kernel
    def test_rows_and_gradients_are_finite_and_the_row_is_that_of_the_identity(
        self, log_kernel: LogKernel, slow: oracle.Kernel
    ) -> None:
        """Laplace and Matérn kernels at 50 σ are small but not zero: rows are exact in single precision."""
        z = torch.tensor([[[0.0, 0.0], [50.0, 0.0], [0.0, 60.0]]], requires_grad=True)
        W = fn.row_normalize(log_kernel(z, torch.tensor(1.0)))
        K = oracle.kernel_matrix(z[0].tolist(), 1.0, slow)
        assert torch.allclose(W[0], torch.tensor(oracle.normalized_rows(K)), rtol=1e-3, atol=1e-30)
        assert same(W.sum(-1), torch.ones(1, 3))
        W[0, 0, 1].backward()
        assert z.grad is not None
        assert z.grad.isfinite().all()


def test_sparsify_drops_and_renormalizes() -> None:
    W = torch.rand(2, 6, 6, dtype=torch.float64).softmax(-1)
    found = fn.sparsify(W, 0.17)
    for i in range(2):
        for j in range(6):
            row = W[i, j].tolist()
            kept = [w if w >= 0.17 or w == max(row) else 0.0 for w in row]
            assert same(found[i, j], [w / sum(kept) for w in kept])
    assert same(fn.sparsify(W, 0.0), W.tolist())
    assert same(fn.sparsify(W, 2.0).amax(-1), torch.ones(2, 6))


def test_top_k_keeps_the_largest() -> None:
    W = torch.rand(2, 6, 6, dtype=torch.float64).softmax(-1)
    found = fn.top_k(W, 2)
    for i in range(2):
        for j in range(6):
            row = W[i, j].tolist()
            kept = [w if w in sorted(row)[-2:] else 0.0 for w in row]
            assert same(found[i, j], [w / sum(kept) for w in kept])
    assert torch.equal(fn.top_k(W, 6), W)
    assert torch.equal(fn.top_k(W, 99), W)


def test_top_k_keeps_ties_so_that_order_does_not_matter() -> None:
    assert same(fn.top_k(torch.full((1, 4, 4), 0.25), 2), torch.full((1, 4, 4), 0.25))


def test_top_k_wants_a_positive_k() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        fn.top_k(torch.ones(1, 2, 2), 0)


@pytest.mark.parametrize("thin", [lambda W: fn.sparsify(W, 0.17), lambda W: fn.top_k(W, 3)])
def test_gradients_flow_through_what_is_kept(thin: Callable[[Tensor], Tensor]) -> None:
    W = torch.rand(1, 6, 6, dtype=torch.float64).softmax(-1).requires_grad_()
    out = thin(W)
    out.square().sum().backward()
    assert W.grad is not None
    assert (W.grad[out == 0] == 0).all()
    assert (W.grad[out > 0] != 0).any()
    assert torch.autograd.gradcheck(thin, (W.detach().requires_grad_(),))


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_propagate_matches_plain_loops(gamma: float) -> None:
    x, W = points(), torch.rand(1, 6, 6, dtype=torch.float64).softmax(-1)
    messages = oracle.messages(W[0].tolist(), x[0].tolist())
    assert same(fn.propagate(x, W, gamma), [oracle.blend(x[0].tolist(), messages, gamma)])


def test_the_gradient_of_a_diffusion_step_is_that_of_its_formula() -> None:
    """Also to second order, for a learned and a fixed W, and at both ends of γ."""
    x, W = points(b=2), torch.rand(2, 6, 6, dtype=torch.float64).softmax(-1)
    for gamma in (0.0, 0.3, 1.0):
        inputs = [t.clone().requires_grad_() for t in (x, W, torch.tensor(gamma, dtype=torch.float64))]
        plain = (1 - inputs[2]) * inputs[0] + inputs[2] * (inputs[1] @ inputs[0])
        found = fn.propagate(*inputs)
        assert torch.allclose(found, plain, atol=1e-12)
        wanted = torch.autograd.grad(plain.square().sum(), inputs)
        assert all(
            torch.allclose(a, b, atol=1e-11)
            for a, b in zip(torch.autograd.grad(found.square().sum(), inputs), wanted, strict=True)
        )
        torch.autograd.gradgradcheck(fn.propagate, inputs)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(fn.propagate(x, W, 0.3).sum(), x)
    assert same(gradient, torch.autograd.grad((0.7 * x + 0.3 * (W @ x)).sum(), x)[0])


def test_a_diffusion_step_keeps_no_messages_for_its_gradient() -> None:
    """Only the features, the graph and γ, which are there anyway."""
    x, W, gamma = (
        t.requires_grad_() for t in (points(), torch.rand(1, 6, 6).double(), torch.tensor(0.5).double())
    )
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        fn.propagate(x, W, gamma)
    assert set(kept) <= {t.data_ptr() for t in (x, W, gamma)}


def test_a_graph_that_all_sets_share_propagates_as_well() -> None:
    x, W = points(b=3), torch.rand(1, 6, 6, dtype=torch.float64).softmax(-1)
    expected = 0.5 * x + 0.5 * (W @ x)
    assert same(fn.propagate(x, W, 0.5), expected)
    assert same(fn.propagate(x, W[0], 0.5), expected)


def test_a_diffusion_step_can_be_differentiated_under_autocast() -> None:
    x, W, gamma = points().float(), torch.rand(1, 6, 6).softmax(-1), torch.tensor(0.5, requires_grad=True)
    loss = fn.propagate(x, W, gamma).square().sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = torch.autograd.grad(loss, gamma)
    plain = ((1 - gamma) * x + gamma * (W @ x)).square().sum()
    assert torch.allclose(found, torch.autograd.grad(plain, gamma)[0], rtol=1e-4)


def test_propagate_takes_any_operator() -> None:
    class Mean(Weights):
        def __matmul__(self, x: Tensor) -> Tensor:
            return x.mean(1, keepdim=True).expand_as(x)

    x = points()
    W, mean = torch.full((1, 6, 6), 1 / 6).double(), Mean((1, 6, 6), torch.float64, x.device)
    assert same(fn.propagate(x, mean, 0.5), fn.propagate(x, W, 0.5))
    assert same(fn.dirichlet_energy(x, mean), fn.dirichlet_energy(x, W))
    assert same(mean.to_dense(), W)


def test_energy_matches_plain_loops_also_for_a_directed_graph() -> None:
    x, W = points(b=2), torch.rand(2, 6, 6, dtype=torch.float64)
    expected = [oracle.energy(u.tolist(), w.tolist(), C=1.5) for u, w in zip(x, W, strict=True)]
    assert same(fn.dirichlet_energy(x, W, C=1.5), expected)


def symmetric_graph(n: int, seed: int = 0) -> Tensor:
    """A symmetric W whose rows sum to one: a mixture of permutations and their inverses."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.eye(n, dtype=torch.float64)
    for _ in range(4):
        P = torch.eye(n, dtype=torch.float64)[torch.randperm(n, generator=generator)]
        W = W + P + P.mT
    return (W / 9).unsqueeze(0)


def test_the_euler_step_of_the_heat_equation_is_propagation() -> None:
    """x − δt ∂E/∂x = (1 − Cδt) x + Cδt W x: the paper's derivation, with E differentiated by machine."""
    C, dt = 1.7, 0.25
    x, W = points().requires_grad_(), symmetric_graph(6)
    (gradient,) = torch.autograd.grad(fn.dirichlet_energy(x, W, C).sum(), x)
    assert same(x - dt * gradient, fn.propagate(x, W, C * dt))
    assert same(x - gradient / C, W @ x)


@given(n=st.integers(2, 8), gamma=st.floats(0.05, 1.0), seed=st.integers(0, 999))
def test_propagation_over_a_symmetric_graph_lowers_the_energy(n: int, gamma: float, seed: int) -> None:
    x, W = points(n), symmetric_graph(n, seed)
    before, after = fn.dirichlet_energy(x, W), fn.dirichlet_energy(fn.propagate(x, W, gamma), W)
    assert (after <= before + 1e-12).all()


def test_one_step_with_sum_pooling_is_a_relation_network() -> None:
    """Σ_i (W X H)_i = Σ_ij g(x_i, x_j) with g = w_ij x_jᵀ H, as the paper says of related work."""
    x, W, H = points(), torch.rand(1, 6, 6, dtype=torch.float64).softmax(-1), torch.randn(3, 2).double()
    pairs = sum(W[0, i, j] * x[0, j] @ H for i in range(6) for j in range(6))
    assert same((W @ x @ H).sum(1)[0], pairs)


def test_median_distance() -> None:
    z = torch.tensor([[[0.0], [1.0], [3.0], [100.0]]])
    mask = torch.tensor([[True, True, True, False]])
    assert fn.median_distance(z, mask) == 2.0
    assert fn.median_distance(torch.cat([z[:, :3], z[:, :1]], 1)) == 2.0  # a repeated element is no pair


@pytest.mark.parametrize("z", [torch.zeros(1, 1, 2), torch.ones(2, 3, 2)])
def test_median_distance_of_nothing_is_refused(z: Tensor) -> None:
    with pytest.raises(ValueError, match="two distinct elements, got none"):
        fn.median_distance(z)


def test_masked_softmax_excludes_exactly() -> None:
    logits = torch.tensor([[1.0, 2.0, 1e30], [5.0, 5.0, 5.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    found = fn.masked_softmax(logits, mask)
    assert torch.allclose(found[0, :2], torch.tensor([1.0, 2.0]).softmax(0))
    assert found[0, 2] == 0
    assert (found[1] == 0).all()


def test_fill_padding_keeps_trailing_axes() -> None:
    x = torch.full((2, 2, 3, 3), math.nan)
    mask = torch.tensor([[True, False], [False, False]])
    filled = fn.fill_padding(x, mask, 7.0)
    assert filled[mask].isnan().all()
    assert (filled[~mask] == 7).all()


def test_center_moves_the_real_elements_to_mean_zero_and_leaves_gradients_alone() -> None:
    z = (points(5, b=2) + 7).requires_grad_()
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    moved = fn.center(z, mask)
    assert same(moved[0].mean(0), torch.zeros(3))
    assert same(moved[1, :2].mean(0), torch.zeros(3))
    assert (moved[1, 2:] == 0).all()
    assert same(fn.center(z)[1].mean(0), torch.zeros(3))
    (gradient,) = torch.autograd.grad((moved * torch.arange(5.0).view(1, 5, 1)).sum(), z)
    assert same(gradient[0], torch.arange(5.0).view(5, 1).expand(5, 3))


@every_kernel
def test_kernels_say_so_when_something_is_no_number_and_reach_zero_without_one(
    log_kernel: LogKernel, slow: oracle.Kernel
) -> None:
    assert log_kernel(points(3), torch.tensor(math.nan)).isnan().any()
    z = torch.tensor([[[0.0], [math.nan], [1.0]]])
    assert log_kernel(z, torch.tensor(1.0))[0, 0, 1].isnan()
    for sigma in (1e-6, 1e-12):  # for the second one, r² is beyond the largest number
        z = torch.tensor([[[0.0], [1e10]]], requires_grad=True)
        log_K = log_kernel(z, torch.tensor(sigma))
        assert same(log_K.exp(), torch.eye(2))
        W = fn.row_normalize(log_K)
        assert same(W, torch.eye(2))
        (W * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
        assert same(z.grad, torch.zeros(1, 2, 1))


def test_bandwidths_may_be_small_in_half_precision() -> None:
    K = fn.rbf_kernel(torch.tensor([[[0.0], [1e-3]]]).half(), torch.tensor(1e-3).half())
    assert K[0, 0, 1].item() == pytest.approx(math.exp(-0.5), abs=0.01)


@pytest.mark.parametrize("normalize", [fn.row_softmax, fn.row_normalize])
@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_absurd_temperatures_are_refused(normalize: Callable[..., Tensor], temperature: float) -> None:
    with pytest.raises(ValueError, match=f"temperature must be positive, got {temperature}"):
        normalize(torch.zeros(1, 2, 2), temperature=temperature)


def test_median_distance_wants_numbers() -> None:
    with pytest.raises(ValueError, match="needs finite elements"):
        fn.median_distance(torch.tensor([[[0.0], [math.nan], [1.0]]]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(2, 1), (1, 3), (3,), (3, 2)])
def test_masks_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"mask must have the shape \[2, 3\] of the sets, got"):
        fn.fill_padding(torch.zeros(2, 3, 4), torch.ones(shape, dtype=torch.bool))


def test_plain_message_passing_is_what_propagate_does_unless_told_otherwise() -> None:
    x, W = points(), torch.rand(1, 6, 6, dtype=torch.float64).softmax(-1)
    assert same(fn.propagate(x, W), W @ x)


def test_distances_are_never_negative() -> None:
    z = 30 + torch.randn(1, 1, 64).expand(1, 50, 64) + 1e-4 * torch.randn(1, 50, 64)
    assert (fn.squared_distances(z) >= 0).all()


def test_a_weight_at_the_threshold_is_kept() -> None:
    W = torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]])
    assert torch.equal(fn.sparsify(W, 0.25), W)


@pytest.mark.parametrize("normalize", [fn.row_normalize, fn.row_softmax])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_kernel_value_of_zero_has_a_finite_gradient_at_any_temperature(
    normalize: Callable[..., Tensor], temperature: float
) -> None:
    log_K = torch.tensor([[[0.0, -math.inf], [-math.inf, 0.0]]], requires_grad=True)
    W = normalize(log_K, temperature=temperature)
    weak = 0.0 if normalize is fn.row_normalize else 1 / (1 + math.exp(1 / temperature))
    assert torch.allclose(W, torch.tensor([[[1 - weak, weak], [weak, 1 - weak]]]))
    W.square().sum().backward()
    assert log_K.grad is not None
    assert log_K.grad.isfinite().all()


def test_rows_to_one_divides_by_the_sum_and_keeps_zeros() -> None:
    W = torch.rand(2, 4, 4, dtype=torch.float64)
    W[1, 2] = 0
    W.requires_grad_()
    found = fn.rows_to_one(W)
    assert same(found[0], oracle.normalized_rows(W[0].tolist()))
    assert (found[1, 2] == 0).all()
    assert same(found[1].sum(-1), [1.0, 1.0, 0.0, 1.0])
    found.square().sum().backward()
    assert W.grad is not None
    assert W.grad.isfinite().all()
