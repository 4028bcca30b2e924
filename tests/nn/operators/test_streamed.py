"""The graph in tiles: the same numbers as the dense one, in little memory."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import setwise as sw
from benchmarks.measure import peak_megabytes
from setwise.nn.operators import streamed
from setwise.nn.operators.base import normal_form
from tests.cases import DIM, padded

FORMS = [
    sw.functional.row_softmax,
    sw.functional.row_normalize,
    partial(sw.functional.row_softmax, temperature=0.3),
    partial(sw.functional.row_normalize, temperature=2.5),
]
every_form = pytest.mark.parametrize("normalize", FORMS, ids=["softmax", "normalize", "cold", "warm"])


def pair(
    normalize: Callable[..., Tensor] = sw.functional.row_normalize,
) -> tuple[sw.LatentGraph, sw.nn.StreamedGraph]:
    """A dense and a streamed graph with the same parameters, in double precision."""
    torch.manual_seed(1)
    dense = sw.LatentGraph(DIM, (6, 5), activation="tanh", sigma=0.8, normalize=normalize).double()
    tiled = sw.nn.StreamedGraph(DIM, (6, 5), activation="tanh", normalize=normalize).double()
    tiled.load_state_dict(dense.state_dict())
    dense.load_state_dict(tiled.state_dict())
    return dense, tiled


def outcome(graph: sw.LatentGraph, x: Tensor, mask: Tensor | None) -> list[Tensor]:
    """W x after a nonlinearity, and the gradients of some function of it."""
    graph.zero_grad()
    x = x.clone().requires_grad_()
    heard = graph(x, mask) @ x.sin()
    real = heard if mask is None else heard[mask]
    (real * torch.arange(real.numel()).view(real.shape).cos()).sum().backward()
    assert x.grad is not None
    return [real.detach(), x.grad, *(p.grad for p in graph.parameters() if p.grad is not None)]


@every_form
@pytest.mark.parametrize("tile", [2, 3, 5, 768])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_dense_graph_and_so_do_all_gradients(
    normalize: Callable[..., Tensor], tile: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "TILE", tile)
    x, mask = padded([8, 5, 1, 0, 7])
    dense, tiled = pair(normalize)
    found, expected = (outcome(graph, x.double(), mask if masked else None) for graph in (tiled, dense))
    assert len(found) == len(expected) == 2 + len(list(dense.parameters()))
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
        assert b.abs().max() > 0


@every_form
def test_gradcheck_across_tiles(normalize: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """In slow mode: every entry of every gradient, that of σ included."""
    monkeypatch.setattr(streamed, "TILE", 2)
    _, tiled = pair(normalize)
    x = torch.randn(2, 5, DIM, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, y, *_: tiled(x) @ y, (x, y, *tiled.parameters()))


def test_the_operator_keeps_the_rules_of_torch() -> None:
    z, x = (torch.randn(2, 5, 3, requires_grad=True) for _ in range(2))
    for softmax in (True, False):
        torch.library.opcheck(streamed.kernel_product, (z, x, softmax, 1.0))
        torch.library.opcheck(streamed.kernel_product, (z.detach(), x, softmax, 2.0))


def test_the_normalized_kernel_is_attention_with_one_more_key_dimension() -> None:
    """softmax_j(z_i · z_j − ½ ‖z_j‖²), by torch's own fused attention."""
    _, tiled = pair(sw.functional.row_normalize)
    x = torch.randn(2, 9, DIM, dtype=torch.float64)
    z = tiled.kernel.scaled(x)
    query = torch.nn.functional.pad(z, (0, 1), value=1.0)
    key = torch.cat([z, -0.5 * z.square().sum(-1, keepdim=True)], dim=-1)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, x, scale=1.0)
    assert torch.allclose(tiled(x) @ x, expected)


def test_far_apart_and_cold_stays_finite_in_single_precision() -> None:
    x = torch.randn(1, 6, DIM) * 1e3
    for normalize in (partial(sw.functional.row_softmax, temperature=0.005), sw.functional.row_normalize):
        graph = sw.nn.StreamedGraph(DIM, sigma=1e-3, normalize=normalize)
        out = graph(x) @ x
        out.sum().backward()
        assert torch.allclose(out, x, rtol=1e-4)  # each hears itself alone
        assert all(p.grad is not None and p.grad.isfinite().all() for p in graph.parameters())


def test_no_gradient_to_the_graph_where_none_is_asked_for() -> None:
    _, tiled = pair()
    tiled.requires_grad_(False)
    x = torch.randn(1, 5, DIM, dtype=torch.float64)
    y = torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True)
    (tiled(x) @ y).square().sum().backward()
    W = tiled(x).to_dense()
    assert torch.allclose(y.grad, W.mT @ (2 * W @ y.detach()))


def test_memory_is_that_of_the_features_and_not_of_the_pairs() -> None:
    n = 3000
    x = torch.randn(1, n, 8)
    models = {name: sw.DMPS.build(8, 1, dim=8, hidden=(8,), graph=name) for name in ("latent", "streamed")}
    peaks = {name: peak_megabytes(lambda m=m: m(x).sum().backward()) for name, m in models.items()}
    matrix = n * n * 4 / 2**20
    assert peaks["latent"] > 2 * matrix
    assert peaks["streamed"] < matrix / 2


def test_a_whole_model_gives_the_same_and_loads_the_same_weights() -> None:
    dense, tiled = (sw.DMPS.build(DIM, 2, graph=name) for name in ("latent", "streamed"))
    tiled.load_state_dict(dense.state_dict())
    x, mask = padded([6, 4])
    assert torch.allclose(tiled(x, mask), dense(x, mask), atol=1e-5)
    assert torch.allclose(tiled.dirichlet_energies(x, mask), dense.dirichlet_energies(x, mask), atol=1e-5)
    assert isinstance(tiled.latent_graph(x, mask), sw.nn.StreamedWeights)
    assert torch.equal(
        tiled.graph.similarity(x @ torch.ones(DIM, 64)), dense.graph.similarity(x @ torch.ones(DIM, 64))
    )


def test_weights_multiply_and_do_nothing_else() -> None:
    x, mask = padded([6, 4])
    W = pair()[1](x.double(), mask)
    assert W.shape == (2, 6, 6)
    assert W.dtype == torch.float64
    assert repr(W) == "StreamedWeights(shape=[2, 6, 6], dtype=torch.float64, device=cpu)"
    assert torch.equal(torch.matmul(W, x.double()), W @ x.double())
    assert (W @ x).dtype == torch.float32
    with pytest.raises(TypeError):
        x @ W
    with pytest.raises(TypeError):
        torch.add(W, x)


def test_diffusion_is_a_mixture_and_its_gradients_are() -> None:
    _, tiled = pair()
    x = torch.randn(2, 5, DIM, dtype=torch.float64, requires_grad=True)
    coefficient = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    W = tiled(x.detach())
    assert torch.allclose(sw.functional.propagate(x, W, coefficient), torch.lerp(x, W @ x, coefficient))
    assert torch.autograd.gradcheck(lambda x, g: sw.functional.propagate(x, W, g), (x, coefficient))


def test_the_energy_needs_no_entry_of_the_graph() -> None:
    x, mask = padded([6, 4, 1], 0.0)
    x = x.double() + 100  # far from the origin, where squares are large
    dense, tiled = pair()
    expected = sw.functional.dirichlet_energy(x, dense(x, mask))
    assert torch.allclose(sw.functional.dirichlet_energy(x, tiled(x, mask)), expected)
    assert torch.allclose(sw.functional.dirichlet_energy(x, tiled(x, mask), C=3.0), 3 * expected)
    assert expected[0] > 0


@pytest.mark.parametrize(
    ("normalize", "message"),
    [
        (torch.softmax, "normalize must be row_softmax or row_normalize .*, got <built-in"),
        (partial(sw.functional.row_softmax, None), "normalize must be row_softmax or row_normalize"),
        (partial(sw.functional.top_k, k=3), "normalize must be row_softmax or row_normalize"),
        (partial(sw.functional.row_softmax, mask=None), "normalize must be row_softmax or row_normalize"),
        (partial(sw.functional.row_softmax, temperature=0.0), "temperature must be positive, got 0.0"),
    ],
)
def test_refuses_what_it_cannot_stream(normalize: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.nn.StreamedGraph(DIM, normalize=normalize)


def test_forms_have_names() -> None:
    assert normal_form(sw.functional.row_softmax) == (True, 1.0)
    assert normal_form(partial(sw.functional.row_softmax, temperature=3)) == (True, 3.0)
    assert normal_form(sw.functional.row_normalize) == (False, 1.0)


@pytest.mark.parametrize(
    "build",
    [
        sw.nn.StreamedGraph,
        sw.nn.RandomFeatureGraph,
        sw.nn.AutoGraph,
        partial(sw.nn.NeighbourGraph, k=2),
    ],
    ids=["streamed", "linear", "auto", "neighbours"],
)
def test_only_the_gaussian_kernel_is_accepted(build: Callable[..., sw.nn.LearnedGraph]) -> None:
    with pytest.raises(ValueError, match="kernel must be log_rbf_kernel, got log_laplace_kernel"):
        build(DIM, kernel=sw.functional.log_laplace_kernel)
    build(sw.nn.DeepKernel(DIM))


def test_scaled_points_are_centred_and_padding_is_zero() -> None:
    x, mask = padded([5, 2])
    x = x.double().requires_grad_()
    kernel = sw.nn.DeepKernel(DIM, (DIM,), sigma=2.0).double()
    kernel.embed = sw.nn.MLP(DIM, DIM, activation="identity").double()
    z, found = kernel.embedded(x, mask), kernel.scaled(x, mask)
    assert torch.allclose(found.sum(1), torch.zeros(2, DIM).double(), atol=1e-12)
    assert (found[~mask] == 0).all()
    assert torch.allclose(found[:, 0] - found[:, 1], (z[:, 0] - z[:, 1]) / 2)
    assert torch.allclose(kernel.scaled(x[:1]), found[:1])
    assert kernel.bfloat16().scaled(x.bfloat16(), mask).dtype == torch.float32
