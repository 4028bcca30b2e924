"""Batches as torchmil has them, and back."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from setwise.io.bags import from_torchmil, to_torchmil
from setwise.sets import SetBatch
from tests.io.test_bags import exactly, three


class TensorDict(Mapping[str, Any]):
    """Like that of the tensordict package, whose iteration goes over the batch and which knows no ``in``."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def __getitem__(self, key: str) -> Any:
        return self.parts[key]

    def __iter__(self) -> Any:
        raise NotImplementedError

    def __contains__(self, key: object) -> bool:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.parts["X"])

    def keys(self) -> Any:
        return self.parts.keys()


def test_to_torchmil_and_back(unchecked: None) -> None:
    batch, y = three().batch([1, 2])
    coords = torch.arange(20).view(2, 5, 2)
    dirty = SetBatch(batch.elements.masked_fill(~batch._mask.unsqueeze(-1), torch.nan), batch.mask)
    found = to_torchmil(dirty, y, coords)
    assert list(found) == ["X", "Y", "mask", "coords"]
    assert found["X"].tolist() == batch.elements.tolist()  # with zeros in the padding
    assert found["Y"].tolist() == [0, 1]
    assert found["mask"].dtype == torch.uint8
    assert found["mask"].tolist() == [[1, 1, 0, 0, 0], [1] * 5]
    assert found["coords"][0].tolist() == [[0, 1], [2, 3], [0, 0], [0, 0], [0, 0]]
    assert found["coords"][1].tolist() == coords[1].tolist()
    assert coords[0, 2].tolist() == [4, 5]  # what was given stays
    assert dirty.elements.isnan().any()
    back, labels, place = from_torchmil(TensorDict(**found, adj=torch.eye(5).to_sparse(), y_inst=None))
    assert back.mask is not None
    assert back.mask.dtype == torch.bool
    assert back.mask.tolist() == batch._mask.tolist()
    assert back.elements.tolist() == batch.elements.tolist()
    assert labels.tolist() == [0, 1]
    assert place is not None
    assert place.tolist() == found["coords"].tolist()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_masks_of_torchmil(dtype: torch.dtype) -> None:
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]], dtype=dtype)
    batch, _, coords = from_torchmil({"X": torch.ones(2, 3, 4), "Y": torch.tensor([0, 1]), "mask": mask})
    assert batch.sizes.tolist() == [1, 3]
    assert coords is None


def test_a_batch_without_a_mask() -> None:
    batch, y, _ = from_torchmil({"X": torch.ones(2, 3, 4), "Y": torch.tensor([[0.0], [1.0]])})
    assert (batch.mask, batch.sizes.tolist()) == (None, [3, 3])
    assert y.tolist() == [0.0, 1.0]
    several = from_torchmil({"X": torch.ones(2, 3, 4), "Y": torch.eye(2)})[1]
    assert several.tolist() == [[1, 0], [0, 1]]
    found = to_torchmil(SetBatch(torch.ones(2, 3, 4)), y)
    assert list(found) == ["X", "Y", "mask"]
    assert found["mask"].tolist() == [[1] * 3] * 2
    as_list = from_torchmil({"X": torch.ones(2, 3, 4), "Y": [torch.tensor(1), torch.tensor(0)]})[1]
    assert as_list.tolist() == [1, 0]


def test_wrong_batches_of_torchmil(unchecked: None) -> None:
    x, y = torch.ones(2, 3, 4), torch.tensor([0, 1])
    for wrong, sentence in (
        ({"X": x}, "expected a batch with X and Y, got X"),
        ({}, "expected a batch with X and Y, got nothing"),
        ({"X": x[0], "Y": y}, "X must be [bags, instances, features], got [3, 4]"),
        ({"X": x, "Y": y[:1]}, "Y must be [2], one label per bag, got [1]"),
        (
            {"X": x, "Y": y, "mask": torch.full((2, 3), -1)},
            "mask must be 1 for instances and 0 for padding, got [-1]",
        ),
        ({"X": x, "Y": y, "mask": torch.ones(2, 4)}, "mask must be bool [2, 3], got torch.bool [2, 4]"),
    ):
        with pytest.raises(ValueError, match=exactly(sentence)):
            from_torchmil(wrong)
    with pytest.raises(ValueError, match=exactly("y must be [2], one label per bag, got [3]")):
        to_torchmil(SetBatch(x), torch.zeros(3))
    for shape in ((2, 4, 2), (2, 3)):
        with pytest.raises(ValueError, match=exactly(f"coords must be [2, 3, 2], got {list(shape)}")):
            to_torchmil(SetBatch(x), y, torch.zeros(shape))
