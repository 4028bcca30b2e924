"""Elements that sets share: encoded and embedded once, with the outputs and gradients of plain tensors."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import setwise as sw
from setwise.nn.layers import expand_shared
from tests.cases import DIM

INDEX = torch.tensor([[0, 3, 1, 3, 5], [3, 2, 2, 0, 0], [4, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
SIZES = torch.tensor([5, 3, 1, 0])
MASK = torch.arange(5) < SIZES.unsqueeze(1)  # padding points at elements that other sets use
SCATTERED = torch.tensor([[True, False, True, True, False]] * 4)
MASKS = {"no-mask": None, "padding": MASK, "scattered": SCATTERED}
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)

latent = partial(sw.LatentGraph, 6, (5, 7), activation="tanh")
GRAPHS: dict[str, Callable[[], nn.Module]] = {
    "latent": latent,
    "softmax": partial(latent, normalize=sw.functional.row_softmax),
    "streamed": partial(sw.nn.StreamedGraph, 6, (5, 7), activation="tanh"),
    "linear": partial(sw.nn.RandomFeatureGraph, 6, (5, 7), activation="tanh"),
    "linear-softmax": partial(
        sw.nn.RandomFeatureGraph, 6, (5, 7), activation="tanh", normalize=sw.functional.row_softmax
    ),
    "auto": partial(sw.nn.AutoGraph, 6, (5, 7), activation="tanh"),
    "auto-streamed": partial(sw.nn.AutoGraph, 6, (5, 7), activation="tanh", memory=0.0),
    "auto-linear": partial(sw.nn.AutoGraph, 6, (5, 7), activation="tanh", exact_up_to=0),
    "neighbours": partial(sw.nn.NeighbourGraph, 6, (5, 7), activation="tanh", k=9),
    "sparse": lambda: sw.nn.SparseGraph(latent(), partial(sw.functional.sparsify, delta=0.2)),
    "uniform": sw.nn.UniformGraph,
    "identity": sw.nn.IdentityGraph,
    "given": lambda: sw.nn.GivenGraph(torch.arange(1.0, 26).view(5, 5)),
}
SIZE: dict[str, object] = {"dim": 6, "pool": "sum"}
MODELS: dict[str, Callable[[], nn.Module]] = {
    **{f"dmps-{name}": lambda make=make: dmps(graph=make()) for name, make in GRAPHS.items()},
    "v-dmps": lambda: dmps(block="message-passing"),
    "r-dmps": lambda: dmps(block="residual", pool="max"),
    "dmps-images": lambda: dmps(encoder=sw.nn.ElementEncoder(nn.Sequential(nn.Linear(DIM, 6), nn.Tanh()))),
    "distinct": lambda: sw.DistinctDMPS.build(DIM, 2, hidden=(5, 7), activation="tanh", **SIZE),
    "distinct-super-gaussian": lambda: sw.DistinctDMPS.build(
        DIM, 2, graph=latent(kernel=sw.functional.log_super_gaussian_kernel), activation="tanh", **SIZE
    ),
    "deepsets-mean": lambda: sw.DeepSets.build(DIM, 2, activation="tanh", **SIZE),
    "deepsets-max": lambda: sw.DeepSets.build(DIM, 2, transformation="max", activation="tanh", **SIZE),
    "set-transformer": lambda: sw.SetTransformer.build(DIM, 2, dim=6, heads=2),
    "set-transformer-isab": lambda: sw.SetTransformer.build(DIM, 2, heads=2, inducing=3, **SIZE),
    "attention-mil": lambda: sw.nn.PooledMIL.build(DIM, 2, dim=6, hidden=5, activation="tanh"),
}


def dmps(**changes: object) -> sw.DMPS:
    arguments: dict[str, object] = {"hidden": (5, 7), "depth": 2, "activation": "tanh"}
    return sw.DMPS.build(DIM, 2, **(arguments | SIZE | changes))


def elements() -> Tensor:
    """Six elements; number 5 stands in one set, number 3 in several."""
    return torch.randn(6, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def outcome(model: nn.Module, mask: Tensor | None, *, shared: bool) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of a function of it to the elements and to all parameters."""
    values = elements().requires_grad_()
    model.zero_grad()
    out = model(sw.Shared(values, INDEX) if shared else values[INDEX], mask)
    (out * torch.linspace(-1, 2, out.numel()).to(out).view_as(out)).square().sum().backward()
    grads = [p.grad for p in [values, *model.parameters()]]
    return out.detach(), [torch.zeros(()) if g is None else g.clone() for g in grads]


@every_mask
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_are_those_of_the_elements_written_out(name: str, mask: Tensor | None) -> None:
    torch.manual_seed(1)
    model = MODELS[name]().double()
    (found, grads), (expected, wanted) = (outcome(model, mask, shared=shared) for shared in (True, False))
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-11)
    for a, b in zip(grads, wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-11)
    assert grads[0].abs().max() > 0
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("name", [name for name in GRAPHS if name not in ("uniform", "identity", "given")])
def test_encoder_and_embedding_see_each_shared_element_once(name: str) -> None:
    model = dmps(graph=GRAPHS[name]()).double()
    graph = next(part for part in model.modules() if isinstance(part, sw.nn.LearnedGraph))
    rows: dict[str, list[int]] = {"encoder": [], "embedding": []}
    for what, layers in (("encoder", model.encoder.layers), ("embedding", graph.kernel.embed.layers)):
        for layer in layers:
            layer.linear.register_forward_hook(
                lambda _, inputs, out, what=what: rows[what].append(inputs[0].shape[0])
            )
    for call in (model, model.latent_graph, model.dirichlet_energies, model.initialize_bandwidth):
        rows["encoder"].clear()
        rows["embedding"].clear()
        call(sw.Shared(elements(), INDEX), MASK)
        assert rows["encoder"] == [6]
        if call != model.initialize_bandwidth:
            assert rows["embedding"] == [6, 6]
    model(elements()[INDEX], MASK)
    assert rows["embedding"][-1] == 20


def test_distinct_pooling_embeds_each_shared_element_once() -> None:
    model, rows = MODELS["distinct"]().double(), []
    model.graph.kernel.embed.layers[0].linear.register_forward_hook(lambda _, x, out: rows.append(len(x[0])))
    model(sw.Shared(elements(), INDEX), MASK)
    model.effective_number(sw.Shared(elements(), INDEX), MASK)
    assert rows == [6, 6]


def test_an_element_encoder_encodes_each_shared_element_once() -> None:
    seen = []

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return x.flatten(1).cumsum(1)

    encoder = sw.nn.ElementEncoder(Spy())
    values, index = torch.randn(4, 1, 2, 2), torch.tensor([[0, 3, 1], [3, 3, 2], [0, 0, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    shared = encoder(sw.Shared(values, index), mask)
    assert seen == [4]
    assert isinstance(shared, sw.Shared)
    assert torch.equal(shared.index, index)
    assert torch.equal(expand_shared(shared, mask), encoder(values[index], mask))
    assert torch.equal(expand_shared(encoder(sw.Shared(values, index))), encoder(values[index]))


def test_an_mlp_keeps_shared_elements_shared() -> None:
    mlp, x = sw.nn.MLP(DIM, 5, 3).double(), sw.Shared(elements(), INDEX)
    out = mlp(x, MASK)
    assert isinstance(out, sw.Shared)
    assert out.shape == (4, 5, 3)
    assert torch.equal(out.index, INDEX)
    assert torch.allclose(expand_shared(out, MASK)[MASK], mlp(x.expand(), MASK)[MASK])


@pytest.mark.usefixtures("unchecked")
def test_placed_writes_shared_features_out_and_zeros_at_padding() -> None:
    x = sw.Shared(elements(), INDEX)
    assert torch.equal(expand_shared(x), elements()[INDEX])
    assert torch.equal(expand_shared(x, MASK), elements()[INDEX] * MASK.unsqueeze(-1))
    tensor = torch.full((4, 5, 2), math.nan)
    assert expand_shared(tensor, MASK) is tensor  # an encoder has dealt with its padding
    with pytest.raises(ValueError, match=r"mask must have the shape \[4, 5\] of the sets, got \[4, 3\]"):
        expand_shared(x, MASK[:, :3])


def test_map_applies_a_function_to_each_element_once() -> None:
    values = elements().requires_grad_()
    seen = []

    def doubled(x: Tensor) -> Tensor:
        seen.append(x.shape)
        return 2 * x[:, :3]

    mapped = sw.Shared(values, INDEX).map(doubled)
    assert seen == [(6, DIM)]
    assert mapped.shape == (4, 5, 3)
    assert torch.equal(mapped.expand(), 2 * values[INDEX][..., :3])
    mapped.expand().sum().backward()
    uses = torch.bincount(INDEX.flatten(), minlength=6).double()
    assert values.grad is not None
    assert torch.equal(values.grad[:, 0], 2 * uses)
    assert (values.grad[:, 3:] == 0).all()


@pytest.mark.parametrize("name", ["latent", "streamed", "auto-linear", "neighbours", "softmax"])
@every_mask
def test_graph_energies_and_bandwidth_are_those_of_the_elements_written_out(
    name: str, mask: Tensor | None
) -> None:
    model, x = dmps(graph=GRAPHS[name]()).double(), sw.Shared(elements(), INDEX)
    sigma = model.initialize_bandwidth(x, mask).graph.sigma.item()
    assert sigma == pytest.approx(model.initialize_bandwidth(x.expand(), mask).graph.sigma.item(), rel=1e-12)
    found, expected = model.latent_graph(x, mask), model.latent_graph(x.expand(), mask)
    if not isinstance(found, Tensor):
        found, expected = found.to_dense(), expected.to_dense()
    assert torch.allclose(found, expected)
    assert torch.allclose(model.dirichlet_energies(x, mask), model.dirichlet_energies(x.expand(), mask))


@pytest.mark.parametrize(
    "name", ["dmps-latent", "dmps-linear", "distinct", "deepsets-max", "set-transformer"]
)
@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_sets_without_elements_and_no_sets(name: str, shape: tuple[int, int]) -> None:
    model = MODELS[name]().double()
    for values in (elements(), elements()[:0]):
        out = model(sw.Shared(values, torch.zeros(shape, dtype=torch.long)))
        assert out.shape == (shape[0], 2)
        assert torch.equal(out, model(torch.zeros(*shape, DIM).double()))


def test_training_on_shared_elements_takes_the_same_steps() -> None:
    """Loss and weights after a few steps, in float64."""

    def batches(step: int, *, shared: bool) -> tuple[sw.SetBatch, Tensor]:
        x = sw.Shared(elements() + 0.1 * step, INDEX)
        return sw.SetBatch(x if shared else x.expand(), MASK), torch.tensor([2, 1, 1, 0])

    models = []
    for shared in (True, False):
        model = sw.nn.initialize(dmps(), torch.Generator().manual_seed(0)).double()
        model.head = sw.nn.initialize(
            sw.nn.Dense(6, 1, activation="identity"), torch.Generator().manual_seed(1)
        )
        model.double()
        history = sw.fit(model, sw.Count(), partial(batches, shared=shared), sw.Training(steps=5, lr=1e-2))
        models.append((model, history.metrics[-1]["loss"]))
    (a, loss), (b, expected) = models
    assert loss == pytest.approx(expected, rel=1e-9)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-6, atol=1e-9)
