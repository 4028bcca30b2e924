"""The state of a training run as one file. Reading one executes nothing."""

import copy
import io
import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setwise._files import refuse_claim, write_atomically

CHECKPOINT = "checkpoint.pt"

_START = b"PK\x03\x04"  # of a zip file
_KNOWN = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"}
_REAL = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_KNOWN |= {f"torch {kind}Storage" for kind in (*_REAL, "ComplexDouble", "ComplexFloat")}


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, which is there as a whole or not at all.

    Args:
        path: where to.
        state: tensors, numbers and strings, in dicts and lists.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    try:
        with zipfile.ZipFile(buffer) as archive:
            _refuse_pickles(archive)
    except ValueError as error:
        raise TypeError(
            f"a checkpoint takes tensors, numbers and strings in dicts and lists, but {error}"
        ) from error
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read a checkpoint without executing anything in it.

    Its ``"model"`` is the state dict of the trained model.
    """
    path = Path(path)
    with path.open("rb"):
        pass  # a file that is missing or must not be read says so itself
    try:
        state = read_tensors(path)
    except Exception as error:  # reading damaged bytes may fail in any way there is
        raise ValueError(f"{path} is not a readable checkpoint: damaged, or something else") from error
    if not isinstance(state, dict) or "model" not in state:
        raise ValueError(f"{path} is not a checkpoint: it holds no model")
    return state


def read_tensors(path: Path) -> Any:
    """What `torch.save` wrote: tensors, numbers and strings, in dicts and lists, and nothing else.

    A file larger than it can be, or with anything that is called when it is read but for tensors, is refused
    before torch opens it. Files as torch wrote them before version 1.6 are not read: to load one allocates
    whatever it asks for. Errors do not name the file.
    """
    _refuse_hostile(path)
    # Mapped, since then no tensor reaches beyond the file, whatever size it claims; copied, to let go of it.
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    for tensor in _tensors(state, set()):
        # One number may stand for any number of them, until somebody copies the tensor.
        refuse_claim(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
    return copy.deepcopy(state)


def trained_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The weights that a run came to: the best ones where it looked for them, else the last."""
    best: dict[str, Tensor] = checkpoint.get("best", {}).get("weights", {})
    last: dict[str, Tensor] = checkpoint["model"]
    return best or last


def _refuse_hostile(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(_START)) != _START:
            raise ValueError("expected a file that torch.save of torch 1.6 or newer wrote")
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise ValueError("expected nothing compressed, as torch.save leaves it")
            refuse_claim(sum(member.file_size for member in members), path.stat().st_size)
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} in it is damaged, as its checksum tells")
            _refuse_pickles(archive)


def _refuse_pickles(archive: zipfile.ZipFile) -> None:
    for member in archive.infolist():
        if member.filename.lower().endswith(".pkl"):
            _refuse_calls(archive.read(member))


def _refuse_calls(pickled: bytes) -> None:
    """Refuse a pickle that names any function but those that put a tensor together."""
    for opcode, argument, _ in pickletools.genops(pickled):
        named = opcode.name in ("GLOBAL", "INST", "STACK_GLOBAL") or opcode.name.startswith("EXT")
        if named and argument not in _KNOWN:
            raise ValueError(f"it holds more than tensors: {argument or opcode.name}")


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """The tensors in dicts, lists and tuples, each looked at once, however often it is in them."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part, seen)
