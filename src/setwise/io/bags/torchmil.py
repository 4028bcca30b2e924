"""Conversion of batches to and from torchmil."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from setwise.sets import SetBatch


def to_torchmil(
    batch: SetBatch,
    y: Shaped[Tensor, "b ..."] | Sequence[int],
    coords: Shaped[Tensor, "b n axes"] | None = None,
) -> dict[str, Tensor]:
    """Convert a batch to the format of torchmil's ``collate_fn``: ``X``, ``Y``, ``mask`` and ``coords``.

    The mask is 1 for instances and 0 for padding, which is filled with zeros.

    Args:
        batch: the bags.
        y: the label of each.
        coords: coordinates of the instances, padded like the batch: for ``bags`` at ``index``,
            ``SetBatch.from_list([bags[i].coords for i in index]).x``.

    >>> batch = SetBatch.from_list([torch.ones(1, 3), torch.ones(2, 3)])
    >>> converted = to_torchmil(batch, torch.tensor([0, 1]))
    >>> list(converted), converted["mask"].tolist()
    (['X', 'Y', 'mask'], [[1, 0], [1, 1]])
    """
    x, y = batch.elements, torch.as_tensor(y)
    if y.shape[:1] != x.shape[:1]:
        raise ValueError(f"y must be [{len(x)}], one label per bag, got {list(y.shape)}")
    if coords is not None and (coords.dim() != 3 or coords.shape[:2] != x.shape[:2]):
        raise ValueError(f"coords must be [{x.shape[0]}, {x.shape[1]}, 2], got {list(coords.shape)}")
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if batch.mask is None else batch.mask
    converted = {"X": _zero_padding(x, mask), "Y": y, "mask": mask.to(torch.uint8)}
    return converted if coords is None else {**converted, "coords": _zero_padding(coords, mask)}


def from_torchmil(
    batch: Mapping[str, Any],
) -> tuple[SetBatch, Shaped[Tensor, "b ..."], Shaped[Tensor, "b n axes"] | None]:
    """Convert a batch from torchmil: the bags, the labels, and the coordinates or None.

    The mask may be boolean or hold ones and zeros; without it, all instances are real. Labels ``[b, 1]``,
    which torchmil makes from label files of shape ``(1,)``, become ``[b]``. Other keys are ignored.

    >>> x, y = torch.ones(2, 4, 3), torch.tensor([0, 1])
    >>> mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    >>> bags, labels, coords = from_torchmil({"X": x, "Y": y, "mask": mask})
    >>> bags.sizes.tolist(), labels.tolist(), coords
    ([2, 4], [0, 1], None)
    """
    keys = [str(key) for key in batch.keys()]  # noqa: SIM118 (a TensorDict iterates over its batch)
    if not {"X", "Y"} <= set(keys):
        raise ValueError(f"expected a batch with X and Y, got {', '.join(sorted(keys)) or 'nothing'}")
    x, y = torch.as_tensor(batch["X"]), torch.as_tensor(batch["Y"])
    if x.dim() < 3:
        raise ValueError(f"X must be [bags, instances, features], got {list(x.shape)}")
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.shape[:1] != x.shape[:1]:
        raise ValueError(f"Y must be [{len(x)}], one label per bag, got {list(y.shape)}")
    mask = torch.as_tensor(batch["mask"]) if "mask" in keys else None
    if mask is not None and not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"mask must be 1 for instances and 0 for padding, got {mask.unique().tolist()}")
    coords = torch.as_tensor(batch["coords"]) if "coords" in keys else None
    if coords is not None and (coords.dim() != 3 or coords.shape[:2] != x.shape[:2]):
        raise ValueError(f"coords must be [{x.shape[0]}, {x.shape[1]}, 2], got {list(coords.shape)}")
    return SetBatch(x, None if mask is None else mask.bool()), y, coords


def _zero_padding(values: Tensor, mask: Tensor) -> Tensor:
    values = values.clone()
    values[~mask] = 0
    return values
