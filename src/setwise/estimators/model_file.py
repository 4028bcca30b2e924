"""A fitted model as one file: its numbers, and a description in words. Reading one executes nothing.

The file is a plain ``.safetensors`` file, which any tool for such files opens. Its header holds, under the
name of the format, a JSON object: the version of the format, which tensors have a second name, and what the
caller has to say about the model. A checksum stands beside it, as a damaged weight would go unnoticed.
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
VERSION = 2
"""Since 2, graphs are row-normalised kernels; weights of format 1 were trained with softmax(K)."""
LONGEST = 2**24
"""Characters of a description: what is longer is data, which belongs into tensors."""


def write_model(
    path: str | PathLike[str], state: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Write a model to one file, which is there as a whole or not at all.

    Args:
        path: where to; mostly ``….safetensors``.
        state: the numbers, e.g. ``module.state_dict()``; a tensor that has two names is stored once.
        description: what else there is to know, in terms of JSON.

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
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and place in first:
            shared[name] = first[place]
        else:
            first[place] = name
            stored[name] = tensor.detach().to("cpu", copy=True).contiguous()
    try:
        text = json.dumps(
            {"version": VERSION, "shared": shared, "description": dict(description)}, allow_nan=False
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the description of a model must be JSON, got what is not: {error}") from error
    if len(text) > LONGEST:
        raise ValueError(
            f"the description of a model must be at most {LONGEST} characters long, got {len(text)}"
        )
    data = save(stored, {FORMAT: text, CHECKSUM: _checksum(stored, text)})
    write_atomically(Path(path), _in_order(data))


def _in_order(data: bytes) -> bytes:
    """The file with its header in order, which safetensors leaves to chance: equal models, equal bytes."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that the numbers stay aligned
    return len(header).to_bytes(8, "little") + header + data[end:]


def read_model(path: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state and the description that `write_model` wrote.

    Whatever else the file holds, all that happens is a `ValueError` that names it.
    """
    with Path(path).open("rb"):
        pass  # a file that is missing or must not be read says so itself
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if FORMAT not in metadata:
                raise ValueError("it was not written by setwise")
            shared, description = _content(metadata[FORMAT])
            stored = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if metadata.get(CHECKSUM) != _checksum(stored, metadata[FORMAT]):
            raise ValueError("it was damaged, as its checksum tells")
        return stored | {name: stored[of] for name, of in shared.items()}, description
    except (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"{path} is no model file that can be read: {why}") from error


def _content(text: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The second names and the description, if the text is in the shape that `write_model` gave it."""
    if len(text) > LONGEST:
        raise ValueError(f"its description is longer than {LONGEST} characters")
    match json.loads(text):
        case {"version": int(version)} if version > VERSION:
            raise ValueError(f"it has format {version}, of a newer setwise; this one knows up to {VERSION}")
        case {"version": 1}:
            raise ValueError(
                "it has format 1, of a setwise whose graphs were normalised otherwise: fit it again"
            )
        case {"version": 2, "shared": dict(shared), "description": dict(description)}:
            return shared, description
        case _:
            raise ValueError("its description is not in the shape of the format")


def _checksum(stored: Mapping[str, Tensor], text: str) -> str:
    """One number for all that can be damaged: names, types, shapes, values, and what the header says."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(stored.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
