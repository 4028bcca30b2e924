"""Checkpoints: the state of a training run in one file. Loading one executes no code."""

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
    """Write a checkpoint atomically.

    Args:
        path: the file.
        state: tensors, numbers and strings, in dicts and lists.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    try:
        with zipfile.ZipFile(buffer) as archive:
            _refuse_pickles(archive)
    except ValueError as error:
        raise TypeError(
            f"a checkpoint must contain tensors, numbers and strings in dicts and lists: {error}"
        ) from error
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read a checkpoint without executing code in it.

    Its entry ``"model"`` is the state dict of the trained model.
    """
    path = Path(path)
    with path.open("rb"):
        pass  # raises the system's error for a missing or unreadable file
    try:
        state = read_tensors(path)
    except Exception as error:  # damaged files raise errors of many types
        raise ValueError(f"{path} is not a readable checkpoint: it is damaged or another format") from error
    if not isinstance(state, dict) or "model" not in state:
        raise ValueError(f"{path} is not a checkpoint: it has no entry 'model'")
    return state


def read_tensors(path: Path) -> Any:
    """Read tensors, numbers and strings, in dicts and lists, that `torch.save` wrote.

    Files that claim more content than their size allows, or whose pickle calls functions other than those
    that rebuild tensors, are refused before torch opens them. The format of torch before 1.6 is not
    supported, since loading it allocates as much memory as the file claims. Errors do not name the file.
    """
    _refuse_hostile(path)
    # A mapped tensor cannot extend beyond the file, whatever it claims; the copy releases the file.
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    for tensor in _tensors(state, set()):
        # Strides of zero let one number represent many, until the tensor is copied.
        refuse_claim(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
    return copy.deepcopy(state)


def trained_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Return the final weights of a run: the best ones with early stopping, else the last."""
    best: dict[str, Tensor] = checkpoint.get("best", {}).get("weights", {})
    last: dict[str, Tensor] = checkpoint["model"]
    return best or last


def _refuse_hostile(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(_START)) != _START:
            raise ValueError("expected a file in the zip format of torch.save (torch 1.6 or newer)")
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise ValueError("expected an uncompressed archive, as torch.save writes it")
            refuse_claim(sum(member.file_size for member in members), path.stat().st_size)
            if damaged := archive.testzip():
                raise ValueError(f"its entry {damaged} has a wrong checksum")
            _refuse_pickles(archive)


def _refuse_pickles(archive: zipfile.ZipFile) -> None:
    for member in archive.infolist():
        if member.filename.lower().endswith(".pkl"):
            _refuse_calls(archive.read(member))


def _refuse_calls(pickled: bytes) -> None:
    """Refuse a pickle that names any function but those that rebuild tensors."""
    for opcode, argument, _ in pickletools.genops(pickled):
        named = opcode.name in ("GLOBAL", "INST", "STACK_GLOBAL") or opcode.name.startswith("EXT")
        if named and argument not in _KNOWN:
            raise ValueError(f"it contains more than tensors: {argument or opcode.name}")


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield the tensors in dicts, lists and tuples; containers that occur repeatedly are visited once."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part, seen)
