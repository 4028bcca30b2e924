import json
import pickle
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save

from setwise import DMPS
from setwise.estimators.model_file import (
    CHECKSUM,
    FORMAT,
    MAX_DESCRIPTION,
    VERSION,
    _checksum,
    read_model,
    write_model,
)

DESCRIPTION = {"classes": ["cat", "dög", None], "depth": 3, "rate": 0.1, "nested": {"a": [1, [2, {}]]}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def test_a_model_comes_back_as_it_was(path):
    model = DMPS.build(3, 2, dim=8, hidden=(8, 8), depth=3, graph="auto")
    write_model(path, model.state_dict(), DESCRIPTION)
    state, description = read_model(path)
    assert description == DESCRIPTION
    other = DMPS.build(3, 2, dim=8, hidden=(8, 8), depth=3, graph="auto")
    x = torch.randn(2, 5, 3)
    assert not torch.equal(other(x), model(x))
    other.load_state_dict(state)
    assert torch.equal(other(x), model(x))


def test_a_tensor_with_two_names_is_stored_once(path):
    model = DMPS.build(3, 2, dim=8, hidden=(8, 8), depth=3)
    write_model(path, model.state_dict(), {})
    with safe_open(path, framework="pt") as file:
        assert [name for name in file.keys() if "gamma" in name] == ["blocks.0.gamma.logit"]  # noqa: SIM118
    state, _ = read_model(path)
    assert state.keys() == model.state_dict().keys()
    assert state["blocks.2.gamma.logit"] is state["blocks.0.gamma.logit"]


def test_views_of_one_tensor_are_tensors_of_their_own(path):
    whole = torch.arange(12.0).reshape(3, 4)
    views = {
        "whole": whole, "turned": whole.mT, "column": whole[:, 1], "start": whole[:1], "flat": whole.view(-1),
        "many": whole[0, :1].expand(5), "bits": whole.view(torch.int32),
    }  # fmt: skip
    write_model(path, views, {})
    state, _ = read_model(path)
    assert list(state) == sorted(views)
    for name, view in views.items():
        assert torch.equal(state[name], view)
        assert state[name].dtype == view.dtype
    state["whole"].zero_()
    assert state["turned"].sum() == 66


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.bool,
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3)])
def test_every_type_and_shape_comes_back(path, dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    write_model(path, {"a": tensor, "b": tensor.clone()}, {})
    state, _ = read_model(path)
    for found in state.values():
        assert found.dtype == dtype
        assert torch.equal(found, tensor)


def test_what_was_read_does_not_hang_on_the_file(path):
    write_model(path, {"a": torch.ones(1000), "seed": torch.tensor(2**62)}, {})
    state, _ = read_model(str(path))
    path.write_bytes(b"")
    assert state["a"].sum() == 1000
    assert state["seed"].item() == 2**62


def test_the_file_is_replaced_as_a_whole_or_not_at_all(path):
    write_model(path, {"a": torch.ones(1)}, {"first": True})
    with pytest.raises(ValueError, match="must be valid JSON, got an error: Object of type set"):
        write_model(path, {"a": torch.zeros(1)}, {"second": {1, 2}})
    with pytest.raises(ValueError, match="must be valid JSON, got an error: Out of range float"):
        write_model(path, {"a": torch.zeros(1)}, {"second": float("nan")})
    with pytest.raises(ValueError, match=f"at most {MAX_DESCRIPTION} characters long, got"):
        write_model(path, {"a": torch.zeros(1)}, {"second": "x" * MAX_DESCRIPTION})
    assert read_model(path)[1] == {"first": True}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_any_tool_for_such_files_reads_it(path):
    write_model(path, {"a": torch.ones(2)}, DESCRIPTION)
    with safe_open(path, framework="numpy") as file:
        assert file.get_tensor("a").tolist() == [1.0, 1.0]
        content = json.loads(file.metadata()["setwise_model"])
    assert content == {"version": VERSION, "shared": {}, "description": DESCRIPTION}


def test_what_the_system_refuses_stays_what_it_is(path):
    with pytest.raises(FileNotFoundError):
        read_model(path)
    with pytest.raises(IsADirectoryError):
        read_model(path.parent)


def written(text, **tensors):
    """A file with a checksum that is right, as only somebody with intent would make it."""
    return save(tensors, {FORMAT: text, CHECKSUM: _checksum(tensors, text)})


def raw(header, *, length=None):
    return struct.pack("<Q", len(header) if length is None else length) + header


def described(**content):
    return written(json.dumps({"version": VERSION, "shared": {}, "description": {}} | content))


HOSTILE = {
    "empty": (b"", "header too small"),
    "noise": (bytes(range(256)) * 4, "header"),
    "a huge header is claimed": (raw(b"{}", length=2**63), "header too large"),
    "a large header is claimed": (raw(b"{}", length=99_000_000), "invalid header length"),
    "a pickle": (pickle.dumps({"weight": [1.0]}), "header"),
    "somebody else's": (save({"a": torch.ones(1)}), "it has no metadata 'setwise_model'"),
    "no text": (raw(b'{"__metadata__": {"setwise_model": 1}}'), "invalid type"),
    "a header of brackets": (raw(b"[" * 100_000), "invalid"),
    "more numbers claimed": (
        raw(b'{"a": {"dtype": "F32", "shape": [1099511627776], "data_offsets": [0, 4398046511104]}}'),
        "header",
    ),
    "a shape beyond all": (
        raw(
            b'{"__metadata__": {"setwise_model": '
            b'"{\\"version\\": 3, \\"shared\\": {}, \\"description\\": {}}"},'
            b'"a": {"dtype": "F32", "shape": [0, 9223372036854775808], "data_offsets": [0, 0]}}'
        ),
        "[Oo]verflow",
    ),
    "no JSON": (written("{"), "Expecting property name"),
    "no object": (written("[]"), "must have the entries version, shared"),
    "nested deeply": (written("[" * 100_000 + "]" * 100_000), "recursion"),
    "endless": (written(f'"{"x" * MAX_DESCRIPTION}"'), f"at most {MAX_DESCRIPTION} characters long"),
    "an endless number": (written(f'{{"version": {"9" * 5000}}}'), "4300 digits"),
    "no version": (written("{}"), "must have the entries version, shared"),
    "an old version": (described(version=1), f"version 1, but .* version {VERSION}: fit it again"),
    "a new version": (described(version=99), f"version 99, but .* version {VERSION}: update setwise"),
    "a description that is a list": (described(description=[]), "must have the entries version, shared"),
    "shared that is a list": (described(shared=[]), "must have the entries version, shared"),
    "a second name for nothing": (described(shared={"a": "b"}), "b"),
    "a second name for a list": (described(shared={"a": [1]}), "unhashable"),
    "without a checksum": (
        save({}, {FORMAT: json.dumps({"version": VERSION, "shared": {}, "description": {}})}),
        "checksum does not match",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_are_no_models_are_refused_in_a_sentence(path, name):
    data, sentence = HOSTILE[name]
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"model.safetensors is not a setwise model: .*{sentence}") as e:
        read_model(path)
    assert "\n" not in str(e.value)


def test_a_checkpoint_of_torch_is_not_executed(path):
    torch.save({"a": torch.ones(3)}, path)
    with pytest.raises(ValueError, match="is not a setwise model"):
        read_model(path)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "model.safetensors"
    tensor = torch.arange(6.0).reshape(2, 3)
    write_model(path, {"weight": tensor, "again": tensor, "seed": torch.tensor(7)}, {"classes": ["a", "b"]})
    return path.read_bytes()


@given(data=st.data())
def test_no_damage_goes_unnoticed(good, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    place = data.draw(st.integers(0, len(good) - 1))
    change = data.draw(st.one_of(st.just(None), st.integers(1, 255)))
    if change is None:
        damaged = good[:place]
    else:
        damaged = good[:place] + bytes([good[place] ^ change]) + good[place + 1 :]
    path.write_bytes(damaged)
    try:
        state, description = read_model(path)
    except ValueError as error:
        assert "damaged.safetensors is not a setwise model" in str(error)  # noqa: PT017
    else:  # white space for other white space
        assert description == {"classes": ["a", "b"]}
        assert state["weight"].tolist() == state["again"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert state["seed"].item() == 7


def test_equal_models_are_equal_files(tmp_path):
    state = {"weight": torch.arange(3.0), "bias": torch.tensor([1, 2])}
    files = set()
    for number in range(20):
        write_model(tmp_path / str(number), state, {"classes": ["a", "ä"], "n": 1})
        files.add((tmp_path / str(number)).read_bytes())
    assert len(files) == 1
    (data,) = files
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert data[8 : 8 + length].decode().startswith('{"__metadata__":{"setwise_model":')
