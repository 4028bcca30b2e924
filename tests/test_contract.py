"""What every set function must keep, whatever it computes (see cases.py for the list)."""

import copy
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import setwise as sw
from tests.cases import BASELINES, CASES, DIM, GRAPHS, MODELS, Case, padded

ROOT = Path(__file__).parent.parent
SIZES = [5, 3, 1, 0]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 0.1}

KERNELS = [
    sw.functional.log_rbf_kernel,
    sw.functional.log_laplace_kernel,
    sw.functional.log_matern32_kernel,
    sw.functional.log_matern52_kernel,
    sw.functional.log_super_gaussian_kernel,
]

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_graph = pytest.mark.parametrize("case", GRAPHS, ids=str)


def close(a: Tensor, b: Tensor) -> bool:
    tolerance = TOLERANCE[a.dtype]
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def module(case: Case, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return case.make().to(dtype)


def permuted(out: Tensor, order: Tensor, kind: str) -> Tensor:
    if kind == "invariant":
        return out
    return out[:, order] if kind == "equivariant" else out[:, order][:, :, order]


def real_part(out: Tensor, mask: Tensor, kind: str) -> Tensor:
    """The output without what stands at padding."""
    if kind == "invariant":
        return out
    return out[mask] if kind == "equivariant" else out[mask.unsqueeze(-1) & mask.unsqueeze(-2)]


def gradients(model: nn.Module, x: Tensor, mask: Tensor, kind: str) -> list[Tensor]:
    """The gradient of some non-trivial function of the output, to the input and to all parameters."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    value = real_part(model(x, mask), mask, kind).square().sum()
    if not value.requires_grad:
        return []
    value.backward()
    found = [x.grad, *(p.grad for p in model.parameters())]
    return [torch.zeros(()) if g is None else g for g in found]


@every_case
def test_permutation(case: Case) -> None:
    model, (x, mask) = module(case), padded(SIZES)
    order = torch.randperm(x.shape[1])
    out, shuffled = model(x.double(), mask), model(x.double()[:, order], mask[:, order])
    expected = permuted(out, order, case.kind)
    if case.kind == "equivariant":
        expected, shuffled = expected[mask[:, order]], shuffled[mask[:, order]]
    assert close(shuffled, expected)
    assert out.abs().sum() > 0


@every_case
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_padding_changes_no_output_and_no_gradient(case: Case, garbage: float) -> None:
    model = module(case)
    clean, mask = padded(SIZES)
    dirty, _ = padded(SIZES, garbage)
    out = real_part(model(clean.double(), mask), mask, case.kind)
    assert torch.equal(real_part(model(dirty.double(), mask), mask, case.kind), out)
    expected = gradients(model, clean.double(), mask, case.kind)
    found = gradients(model, dirty.double(), mask, case.kind)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(g.isfinite().all() for g in found)
    if found:
        assert (found[0][~mask] == 0).all()


@every_case
def test_padded_equals_unpadded_whatever_the_batch_mates(case: Case) -> None:
    model, (x, mask) = module(case), padded(SIZES)
    out = model(x.double(), mask)
    for i, n in enumerate(SIZES):
        alone = model(x[i : i + 1, :n].double())
        together = out[i : i + 1]
        if case.kind == "equivariant":
            together = together[:, :n]
        elif case.kind == "graph":
            together = together[:, :n, :n]
        assert close(alone, together), f"set {i} of size {n}"


@pytest.mark.parametrize("normalize", [sw.functional.row_softmax, sw.functional.row_normalize])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_amount_of_padding_does_not_matter_far_from_the_origin(kernel: Any, normalize: Any) -> None:
    """In single precision, where the distances between large numbers cancel."""
    torch.manual_seed(1)
    graph = sw.LatentGraph(DIM, kernel=kernel, normalize=normalize)
    x = padded([5])[0] + 1e3
    graph.initialize_bandwidth(x)
    wide = torch.cat([x, torch.zeros(1, 200, DIM)], 1)
    mask = torch.arange(205).unsqueeze(0) < 5
    assert torch.allclose(graph(wide, mask)[:, :5, :5], graph(x), atol=2e-3)
    assert graph(x).std() > 0.01
    energies = (
        sw.functional.dirichlet_energy(wide, graph(wide, mask)),
        sw.functional.dirichlet_energy(x, graph(x)),
    )
    assert torch.allclose(*energies, rtol=1e-2)


@every_case
def test_no_mask_means_all_real(case: Case) -> None:
    model, (x, _) = module(case), padded([5, 5])
    assert close(model(x.double()), model(x.double(), torch.ones(2, 5, dtype=torch.bool)))


@every_case
@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("masked", [None, True, False], ids=["no-mask", "all-real", "all-padding"])
def test_degenerate_sets_are_finite(case: Case, n: int, masked: bool | None) -> None:
    model, x = module(case), torch.randn(2, n, DIM, dtype=torch.float64, requires_grad=True)
    mask = None if masked is None else torch.full((2, n), masked)
    out = model(x, mask)
    assert out.isfinite().all()
    if out.requires_grad:
        out.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in [x, *model.parameters()])


@every_case
def test_alike_elements_have_finite_gradients(case: Case) -> None:
    model, x = module(case), torch.ones(1, 4, DIM, dtype=torch.float64, requires_grad=True)
    out = model(x)
    if out.requires_grad:
        out.square().sum().backward()
        assert x.grad is None or x.grad.isfinite().all()


@pytest.mark.parametrize("case", [*MODELS, *BASELINES], ids=str)
def test_an_empty_set_reads_as_zeros_through_the_head(case: Case) -> None:
    model = module(case)
    empty = model(torch.zeros(1, 0, DIM, dtype=torch.float64))
    assert torch.equal(empty, model.head(torch.zeros(1, model.head.linear.in_features).double()))


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_its_dtype(case: Case, dtype: torch.dtype) -> None:
    x, mask = padded(SIZES)
    assert module(case, dtype)(x.to(dtype), mask).dtype == dtype


@every_case
def test_bfloat16_autocast_stays_close(case: Case) -> None:
    model, (x, mask) = module(case, torch.float32), padded([5, 3])
    exact = real_part(model(x, mask), mask, case.kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x, mask)
    assert out.isfinite().all()
    if case.smooth:
        assert close(real_part(out, mask, case.kind).bfloat16(), exact.bfloat16())
    if out.requires_grad:
        out.float().sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("case", [c for c in CASES if c.smooth and not c.constant], ids=str)
def test_gradcheck(case: Case) -> None:
    model, (x, mask) = module(case), padded([3, 2])
    x = x.double().requires_grad_()
    parameters = [p for p in model.parameters() if p.requires_grad]

    def function(x: Tensor, *_: Tensor) -> Tensor:
        return real_part(model(x, mask), mask, case.kind)

    assert torch.autograd.gradcheck(function, (x, *parameters), fast_mode=True)


@every_case
def test_copies_agree(case: Case) -> None:
    model, (x, mask) = module(case, torch.float32), padded(SIZES)
    fresh = case.make()
    fresh.load_state_dict(model.state_dict())
    out = model(x, mask)
    for other in (fresh, copy.deepcopy(model)):
        assert torch.equal(other(x, mask), out)


@every_case
def test_pickle(case: Case) -> None:
    model, (x, mask) = module(case, torch.float32), padded(SIZES)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x, mask), model(x, mask))


def test_compiles_without_graph_breaks() -> None:
    """In a process of its own: the run-time type checks of the other tests cannot be traced."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.compiled"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [c.name for c in CASES]


@every_graph
def test_rows_of_a_graph_sum_to_one_and_padding_is_silent(case: Case) -> None:
    x, mask = padded(SIZES)
    W = module(case)(x.double(), mask)
    assert (W >= 0).all()
    assert close(W.sum(-1), mask.double())
    assert (W[~(mask.unsqueeze(-1) & mask.unsqueeze(-2))] == 0).all()


@given(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=4), seed=st.integers(0, 2**16))
def test_models_ignore_padding_and_order_at_any_size(sizes: list[int], seed: int) -> None:
    x, mask = padded(sizes, math.nan, seed)
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(seed))
    for case in [*MODELS[:3], *BASELINES]:
        model = module(case)
        out = model(x.double(), mask)
        assert out.isfinite().all()
        assert close(model(x.double()[:, order], mask[:, order]), out)
        for i, n in enumerate(sizes):
            assert close(model(x[i : i + 1, :n].double()), out[i : i + 1])


@given(mask=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=3))
def test_any_mask_means_the_same_as_leaving_the_elements_out(mask: list[list[bool]]) -> None:
    real = torch.tensor(mask)
    x = torch.randn(len(mask), 5, DIM, dtype=torch.float64)
    for case in [*MODELS[:3], *BASELINES]:
        model = module(case)
        out = model(x.masked_fill(~real[..., None], math.inf), real)
        for i in range(len(mask)):
            assert close(model(x[i, real[i]].unsqueeze(0)), out[i : i + 1])
