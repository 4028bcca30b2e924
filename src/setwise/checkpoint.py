"""The state of a training run as one file. Reading one executes nothing."""

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setwise.files import write_atomically

CHECKPOINT = "checkpoint.pt"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, which is there as a whole or not at all.

    Args:
        path: where to.
        state: tensors, numbers and strings, in dicts and lists.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without executing anything in it.

    Its ``"model"`` is the state dict of the trained model.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # reading damaged bytes may fail in any way there is
        raise ValueError(f"{path} is not a readable checkpoint: damaged, or something else") from error
    if not isinstance(state, dict) or "model" not in state:
        raise ValueError(f"{path} is not a checkpoint: it holds no model")
    return state


def trained_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The weights that a run came to: the best ones where it looked for them, else the last."""
    best: dict[str, Tensor] = checkpoint.get("best", {}).get("weights", {})
    last: dict[str, Tensor] = checkpoint["model"]
    return best or last
