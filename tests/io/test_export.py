import copy
import logging
import sys
from types import SimpleNamespace

import onnx
import pytest
import torch
from jaxtyping import config
from onnxruntime import InferenceSession
from torch import nn

from setwise import DMPS, DeepSets, LatentGraph, SetTransformer
from setwise.io import export
from setwise.io.export import to_onnx, to_torch_export
from setwise.nn import (
    MLP,
    AutoGraph,
    Gamma,
    GatedAttentionPool,
    MaxPool,
    MeanPool,
    MessagePassingBlock,
    RandomFeatureGraph,
    SetDenoisingBlock,
    SetResidualBlock,
    SumPool,
    UniformGraph,
)
from setwise.nn.layers import RescaledNetwork

SIZES = [(1, 1), (3, 17), (2, 300), (5, 3), (1, 64)]


class Parts(nn.Module):
    """All pools of all blocks, and all graphs: in one model, as every export takes seconds."""

    def __init__(self, dim):
        super().__init__()
        self.encoder = MLP(3, dim)
        self.graphs = nn.ModuleList(
            [AutoGraph(dim, (6, 6)), RandomFeatureGraph(dim, (6, 6), features=16), UniformGraph()]
        )
        self.blocks = nn.ModuleList(
            [MessagePassingBlock(dim), SetDenoisingBlock(dim, gamma=Gamma(0.7)), SetResidualBlock(dim)]
        )
        self.pools = nn.ModuleList([SumPool(), MeanPool(), MaxPool(), GatedAttentionPool(dim, 4)])

    def forward(self, x, mask=None):
        x = self.encoder(x, mask)
        W, *others = [graph(x, mask) for graph in self.graphs]
        heard = [block(x, W) for block in self.blocks]
        out = [pool(h, mask) for pool in self.pools for h in heard]
        return torch.cat(out + [MeanPool()(W @ x, mask) for W in others], dim=-1)


@pytest.fixture(scope="module", autouse=True)
def _plain():
    """Checks of shapes would become part of the program."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


def sets(b, n):
    """A batch with padding of NaN in which the first of several sets is empty."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(b, n, 3, generator=generator)
    mask = torch.rand(b, n, generator=generator) < 0.6
    mask[:, -1] = True
    mask[0] = b == 1
    x[~mask] = torch.nan
    return x, mask


def close(found, expected):
    assert expected.isfinite().all()
    assert torch.allclose(found.to(expected.dtype), expected, rtol=1e-5, atol=1e-4)


def run(path, x, mask):
    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {"x": x.numpy(), "mask": mask.numpy()})
    return torch.from_numpy(out)


@pytest.fixture(scope="module")
def framed(folder):
    """Every part in the units of data, some in training, in double precision; and the files made of it."""
    torch.manual_seed(1)
    model = RescaledNetwork(
        Parts(4),
        mean=torch.tensor([2e3, 0.0, -1e3]),
        std=torch.tensor([1e3, 3e3, 2e3]),
        out_mean=torch.full((56,), 5.0),
        out_std=torch.full((56,), 10.0),
    ).double()
    model.network.blocks.eval()
    before = copy.deepcopy(model)
    onnx_file = to_onnx(model, folder / "new" / "model.onnx", in_dim=3, metadata={"classes": '["a", "ö"]'})
    program = to_torch_export(model, str(folder / "model.pt2"), in_dim=3)
    return SimpleNamespace(model=model, before=before, onnx=onnx_file, program=program)


@pytest.fixture(scope="module")
def loaded(framed):
    return torch.export.load(framed.program).module()


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_an_onnx_file_says_what_the_model_says(framed, size):
    x, mask = sets(*size)
    close(run(framed.onnx, 1e3 * x, mask), framed.model(1e3 * x, mask))


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_a_program_of_torch_says_what_the_model_says(framed, loaded, size):
    x, mask = sets(*size)
    close(loaded(1e3 * x, mask), framed.model(1e3 * x, mask))


@torch.no_grad()
def test_the_set_transformer_can_be_exported(folder):
    model = SetTransformer.build(3, 2, dim=4, heads=2, depth=0)
    path = to_torch_export(model, folder / "transformer.pt2", in_dim=3)
    x, mask = sets(4, 11)
    close(torch.export.load(path).module()(x, mask), model(x, mask))


@torch.no_grad()
def test_units_stay_exact_and_nothing_is_dropped(folder):
    times = torch.tensor([1.7e9], dtype=torch.float64)
    model = RescaledNetwork(DeepSets.build(1, 1, dim=4, depth=0), mean=times + 0.5, std=torch.tensor([300.0]))
    model.network.head = nn.Sequential(nn.Dropout(0.9), model.network.head)
    path = to_torch_export(model.double(), folder / "times.pt2", in_dim=1)
    model.eval()
    x, mask = (times + 256 * torch.arange(6.0)).float().view(1, 6, 1), torch.ones(1, 6, dtype=torch.bool)
    close(torch.export.load(path).module()(x, mask).double(), model(x, mask))


@torch.no_grad()
def test_neither_order_nor_padding_matters_to_an_onnx_file(framed):
    path = framed.onnx
    x, mask = sets(3, 20)
    x = 1e3 * x
    out = run(path, x, mask)
    order = torch.randperm(20)
    close(run(path, x[:, order], mask[:, order]), out)
    close(run(path, x.nan_to_num(1e30), mask), out)
    one = x[1][mask[1]]
    close(run(path, one[None], torch.ones(1, len(one), dtype=torch.bool)), out[1:2])
    assert (out[1] - out[2]).abs().max() > 1e-2


def test_an_onnx_file_tells_how_it_is_used(framed):
    path = framed.onnx
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]
    onnx.checker.check_model(path, full_check=True)
    session = InferenceSession(path)
    told = [
        (value.name, value.type, value.shape) for value in (*session.get_inputs(), *session.get_outputs())
    ]
    assert told == [
        ("x", "tensor(float)", ["batch", "elements", 3]),
        ("mask", "tensor(bool)", ["batch", "elements"]),
        ("out", "tensor(float)", ["batch", 56]),
    ]
    assert session.get_modelmeta().custom_metadata_map == {"classes": '["a", "ö"]'}
    proto = onnx.load(path)
    (opset,) = proto.opset_import  # no operators but those of the standard
    assert opset.domain == ""
    assert 18 <= opset.version <= 21
    assert not proto.functions


def test_files_tell_nothing_of_this_computer(framed):
    for path in (framed.onnx, framed.program):
        data = path.read_bytes()
        assert b".py" not in data
        assert b"setwise/" not in data


def test_graphs_in_tiles_or_by_choice_become_the_matrix():
    model = DMPS.build(3, 2, dim=8, hidden=(8, 8), depth=1, graph="streamed")
    model.graph.kernel.log_sigma.data.fill_(0.7)
    inside = nn.ModuleDict({"streamed": copy.deepcopy(model), "auto": DMPS.build(3, 2, graph="auto")})
    export._use_dense_graphs(inside)
    assert {type(inside[name].graph) for name in inside} == {LatentGraph}
    x, mask = sets(2, 9)
    close(inside["streamed"](x, mask).detach(), model(x, mask).detach())


def test_the_model_is_left_as_it_was(framed):
    model, before = framed.model, framed.before
    modes = [part.training for part in model.modules()]
    assert modes == [part.training for part in before.modules()]
    assert set(modes) == {True, False}
    assert type(model.network.graphs[0]) is AutoGraph
    assert all(parameter.requires_grad for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == before.state_dict()[name].dtype
        assert torch.equal(tensor, before.state_dict()[name])


class Told(nn.Module):
    """Says one thing to whoever traces it and another one to others."""

    def __init__(self, traced, otherwise):
        super().__init__()
        self.traced, self.otherwise = traced, otherwise

    def forward(self, x, mask):
        return (self.traced if torch.compiler.is_exporting() else self.otherwise)(x, mask)


def test_what_is_not_the_model_is_not_written(folder):
    path = folder / "other.pt2"
    path.write_text("what was there")
    wrong = Told(lambda x, mask: MeanPool()(x, mask) + 1e-3, MeanPool())
    with pytest.raises(
        ValueError, match=r"differ from the model by at most 0.0001 of the range of an output, got 0.00"
    ):
        to_torch_export(wrong, path, in_dim=2)
    assert path.read_text() == "what was there"
    to_torch_export(Told(lambda x, mask: MeanPool()(x, mask) + 1e-5, MeanPool()), path, in_dim=2)
    assert path.read_bytes().startswith(b"PK")
    assert not list(folder.glob(".other*"))


def test_what_only_fits_the_size_that_was_traced_is_not_written(folder):
    fixed = Told(lambda x, mask: x.reshape(3, -1, 2).sum(1), MeanPool())
    with pytest.raises(
        ValueError, match=r"Told cannot be exported for sets of any size: |fails for 2 sets of 7 el"
    ):
        to_torch_export(fixed, folder / "fixed.pt2", in_dim=2)
    assert not (folder / "fixed.pt2").exists()


class Branches(nn.Module):
    def forward(self, x, mask):
        return x[:, 0] if x[0, 0, 0] > 0 else x[:, -1]


@pytest.mark.parametrize("to", [to_onnx, to_torch_export])
@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Branches(), "Branches cannot be exported for sets of any size: Could not guard on data-dep"),
        (
            nn.Linear(3, 2),
            r"Linear must take \(x \[b, n, 3\], mask \[b, n\]\) and return \[b, k\], got an error",
        ),
        (DMPS.build(4, 2), "DMPS must take .*, got an error: mat1 and mat2 shapes cannot be multiplied"),
        (Told(None, lambda x, mask: x), r"Told must take .*, got \[2, 7, 3\] for 2 sets"),
        (Told(None, lambda x, mask: (x,)), r"Told must take .*, got tuple for 2 sets"),
        (Told(None, lambda x, mask: x.sum(1) / 0), r"with finite outputs, got NaN or infinity"),
    ],
)
def test_models_that_cannot_be_exported_are_told_so(folder, capfd, to, model, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        to(model, folder / "none", in_dim=3)
    assert "\n" not in str(error.value)
    assert not (folder / "none").exists()
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("torch").level != logging.CRITICAL


@pytest.mark.parametrize(
    ("said", "error", "got"),
    [
        ([[1e-9, 0.0], [-1e-9, 0.0]], [1e-11, 0.0], "0.005"),
        ([[1e9, 1e-9], [-1e9, -1e-9]], [0.0, 1e-11], "0.005"),
        ([[2000.0, 0.0], [2001.0, 0.0]], [0.05, 0.0], "0.00025"),
        ([[1.0, 0.0], [-1.0, 0.0]], [0.0, 1e-30], None),
        ([[1.0, 0.0], [-1.0, 0.0]], [0.0, 1e-3], "0.001"),
        ([[1.0, 0.0], [-1.0, 0.0]], [torch.nan, 0.0], "inf"),
        ([[1.0, torch.nan], [-1.0, torch.inf]], [0.0, 0.0], None),
        ([[1.0, torch.inf], [-1.0, 0.0]], [0.0, torch.nan], "inf"),
        ([[1.0, torch.nan], [-1.0, torch.nan]], [1e-5, 0.0], None),
    ],
)
def test_every_output_is_compared_in_its_own_unit(folder, said, error, got):
    x, mask, said = torch.ones(2, 5, 1), torch.ones(2, 5, dtype=torch.bool), torch.tensor(said)

    def write():
        return export._write_if_equal(
            folder / "unit", b"", lambda x, mask: said + torch.tensor(error), [(x, mask, said)]
        )

    if got is None:
        assert write().exists()
    else:
        with pytest.raises(ValueError, match=f"of an output, got {got} for 2 sets of 5 elements"):
            write()


def test_what_comes_out_must_have_its_shape(folder):
    x, mask, said = torch.ones(2, 5, 1), torch.ones(2, 5, dtype=torch.bool), torch.ones(2, 1)
    with pytest.raises(ValueError, match=r"must return \[2, 1\] for 2 sets of 5 elements, got \[1, 1\]"):
        export._write_if_equal(folder / "shape", b"", lambda x, mask: said[:1], [(x, mask, said)])


def test_wrong_arguments_are_refused(folder, monkeypatch):
    model = DeepSets.build(3, 2, dim=4, depth=0)
    with pytest.raises(ValueError, match="in_dim must be at least 1, got 0"):
        to_torch_export(model, folder / "none", in_dim=0)
    with pytest.raises(TypeError, match="metadata must map strings to strings, got 'classes': 3"):
        to_onnx(model, folder / "none", in_dim=3, metadata={"classes": 3})
    monkeypatch.setattr(export, "ONNX_LIMIT", 100)
    with pytest.raises(ValueError, match=r"must be smaller than 2 GiB, got a model of 0.0 GiB"):
        to_onnx(model, folder / "none", in_dim=3)


def test_missing_packages_are_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ModuleNotFoundError, match=r"the onnxscript package: pip install 'setwise\[export\]'"):
        to_onnx(DeepSets.build(3, 2), folder / "none", in_dim=3)


@pytest.mark.parametrize("export", [to_onnx, to_torch_export])
def test_an_estimator_is_told_where_its_module_is(export, tmp_path):
    class Fitted:
        module_ = None

    with pytest.raises(TypeError, match="model must be a torch module, got Fitted; pass its module_"):
        export(Fitted(), tmp_path / "model", in_dim=3)
