"""Model files: weights and a JSON description in one ``.safetensors`` file, read without executing code.

The metadata in the header of the file has two entries: a JSON object with the version of the format, the
names of shared tensors and the description; and a checksum, which detects damaged weights.
"""

import hashlib
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from setwise._files import write_atomically

FORMAT = "setwise_model"
CHECKSUM = f"{FORMAT}_sha256"
VERSION = 3
"""Version 1 had graphs softmax(K); version 2 had other names of tensors and tasks."""
MAX_DESCRIPTION = 2**24
"""Maximum length of a description in characters."""


def write_model(
    path: str | PathLike[str], state: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Write a model to one file, atomically.

    Args:
        path: the file, usually ``….safetensors``.
        state: the tensors, e.g. ``module.state_dict()``; a tensor with several names is stored once.
        description: anything that JSON can represent.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "model.safetensors")
    ...     write_model(path, {"weight": torch.tensor([1.0, 2.0])}, {"classes": ["cat", "dog"]})
    ...     read_model(path)
    ({'weight': tensor([1., 2.])}, {'classes': ['cat', 'dog']})
    """
    stored: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and key in first:
            shared[name] = first[key]
        else:
            first[key] = name
            stored[name] = tensor.detach().to("cpu", copy=True).contiguous()
    try:
        text = json.dumps(
            {"version": VERSION, "shared": shared, "description": dict(description)}, allow_nan=False
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the description of a model must be valid JSON, got an error: {error}") from error
    if len(text) > MAX_DESCRIPTION:
        raise ValueError(
            f"the description of a model must be at most {MAX_DESCRIPTION} characters long, got {len(text)}"
        )
    data = save(stored, {FORMAT: text, CHECKSUM: _checksum(stored, text)})
    write_atomically(Path(path), _with_sorted_header(data))


def _with_sorted_header(data: bytes) -> bytes:
    """Sort the header, whose order in safetensors is random, so that equal models give equal bytes."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # keeps the tensors aligned
    return len(header).to_bytes(8, "little") + header + data[end:]


def read_model(path: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the state and the description that `write_model` wrote.

    Raises a `ValueError` that names the file if it is not a valid model file.
    """
    with Path(path).open("rb"):
        pass  # raises an OSError with the path if the file cannot be read
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if FORMAT not in metadata:
                raise ValueError(f"it has no metadata {FORMAT!r}")
            shared, description = _content(metadata[FORMAT])
            stored = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if metadata.get(CHECKSUM) != _checksum(stored, metadata[FORMAT]):
            raise ValueError("the checksum does not match, so the file is damaged")
        return stored | {name: stored[of] for name, of in shared.items()}, description
    except (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} is not a setwise model: {reason}") from error


def _content(text: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The names of shared tensors and the description."""
    if len(text) > MAX_DESCRIPTION:
        raise ValueError(
            f"the description must be at most {MAX_DESCRIPTION} characters long, got {len(text)}"
        )
    match json.loads(text):
        case {"version": int(version)} if version > VERSION:
            raise ValueError(
                f"it has format version {version}, but this setwise reads version {VERSION}: update setwise"
            )
        case {"version": int(version)} if version < VERSION:
            raise ValueError(
                f"it has format version {version}, but this setwise reads version {VERSION}: fit it again"
            )
        case {"version": 3, "shared": dict(shared), "description": dict(description)}:
            return shared, description
        case _:
            raise ValueError("the description must have the entries version, shared and description")


def _checksum(stored: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 of names, data types, shapes, values and description."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(stored.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
