"""SetBatch: sets of different sizes as one tensor and a mask, and the ways in and out of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


class Shared:
    """Elements that sets have in common, each held once: element j of set i is ``values[index[i, j]]``.

    Takes the place of ``x [b, n, …]`` in a `SetBatch`. `setwise.ElementEncoder` encodes every value once,
    however many sets it is in; ``written_out`` is the same for networks that know no sharing.

    Args:
        values: the different elements; all of them are real, whatever the mask says of their places.
        index: which of them stands where. Padding may point at any.

    >>> x = Shared(torch.tensor([[1.0], [5.0]]), torch.tensor([[0, 1], [1, 1]]))
    >>> x.shape, x.written_out().flatten().tolist()
    (torch.Size([2, 2, 1]), [1.0, 5.0, 5.0, 5.0])
    """

    def __init__(self, values: Shaped[Tensor, "values ..."], index: Int[Tensor, "b n"]) -> None:
        if index.dim() != 2 or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(
                f"index must be whole numbers [sets, elements], got {index.dtype} {list(index.shape)}"
            )
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(values):
            raise ValueError(
                f"index must lie between 0 and below the {len(values)} values, "
                f"got {int(index.min())} to {int(index.max())}"
            )
        self.values = values
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def dim(self) -> int:
        """How many axes ``x`` has."""
        return len(self.shape)

    @property
    def shape(self) -> torch.Size:
        """The shape of ``x``: sets, elements, features."""
        return self.index.shape + self.values.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    def is_floating_point(self) -> bool:
        """Whether the values are."""
        return self.values.is_floating_point()

    def to(self, *args: Any, **kwargs: Any) -> "Shared":
        """Move or cast the values as ``Tensor.to`` does; the index goes along to the device."""
        values = self.values.to(*args, **kwargs)
        return Shared(values, self.index.to(values.device))

    def placed(self, features: Shaped[Tensor, "values ..."]) -> Shaped[Tensor, "b n *f"]:
        """What was made of the values, in their places."""
        rows = features.index_select(0, self.index.flatten())
        return rows.view(*self.index.shape, *features.shape[1:])

    def map(self, function: Callable[[Tensor], Tensor]) -> "Shared":
        """Apply a function ``[values, …] → [values, …]`` to the elements; the sets still share them."""
        return Shared(function(self.values), self.index)

    def written_out(self) -> Shaped[Tensor, "b n *f"]:
        """``x`` with every element in its place."""
        return self.placed(self.values)


Elements = Shaped[Tensor, "b n *f"] | Shared
"""What a model takes for ``x``."""


@dataclass(frozen=True, eq=False)
class SetBatch:
    """A batch of sets: elements ``x [b, n, …]`` and ``mask [b, n]``, True at real elements.

    Without a mask all elements are real. Elements that many sets have in common may be `Shared`. `pack`
    takes whatever sets come in; `to_list`, `to_ptr`, `to_index` and `to_nested` lead back out.

    >>> batch = SetBatch.pack([np.ones((2, 3)), np.ones((4, 3))])
    >>> batch.x.shape, batch.sizes.tolist()
    (torch.Size([2, 4, 3]), [2, 4])
    >>> [len(s) for s in batch.to_list()]
    [2, 4]
    """

    x: Elements
    mask: Bool[Tensor, "b n"] | None = None

    def __post_init__(self) -> None:
        if self.x.dim() < 2:
            raise ValueError(f"x must be [sets, elements, …], got {list(self.x.shape)}")
        if self.mask is None:
            return
        if self.mask.dtype != torch.bool or self.mask.shape != self.x.shape[:2]:
            raise ValueError(
                f"mask must be bool {list(self.x.shape[:2])}, got {self.mask.dtype} {list(self.mask.shape)}"
            )

    @classmethod
    def pack(cls, sets: Any) -> "SetBatch":
        """Make a batch of what holds the sets.

        Args:
            sets: a list of ``[n_i, …]`` arrays or tensors, an array or tensor ``[b, n, …]`` of sets of
                one size, a pair ``(values [N, …], ptr [b + 1])`` in which set i is
                ``values[ptr[i]:ptr[i+1]]``, or a nested tensor.
        """
        if isinstance(sets, SetBatch):
            return cls(sets.x, sets.mask)
        if isinstance(sets, Tensor):
            return cls.from_list(list(sets.unbind())) if sets.is_nested else cls(sets)
        if isinstance(sets, np.ndarray) and sets.dtype != object:
            return cls(_tensor(sets, "the array of sets"))
        if isinstance(sets, tuple) and len(sets) == 2 and _is_ptr(sets[1]):
            return cls.from_ptr(*sets)
        if isinstance(sets, Sequence | np.ndarray) and not isinstance(sets, str | bytes):
            return cls.from_list(list(sets))
        raise TypeError(
            "sets must be a list of arrays, an array, (values, ptr) or a nested tensor, "
            f"got {type(sets).__name__}"
        )

    @classmethod
    def from_list(cls, sets: Sequence[Any]) -> "SetBatch":
        """Pack a list of ``[n_i, …]`` arrays or tensors."""
        if not len(sets):
            raise ValueError("expected at least one set, got an empty list")
        tensors = [_tensor(s, f"set {i}") for i, s in enumerate(sets)]
        for i, tensor in enumerate(tensors):
            if tensor.dim() == 0:
                raise ValueError(f"set {i} must be an array of elements, got a single number")
            if tensor.shape[1:] != tensors[0].shape[1:]:
                raise ValueError(
                    f"set {i} has elements of shape {list(tensor.shape[1:])}, "
                    f"expected {list(tensors[0].shape[1:])} as in set 0"
                )
        return cls._from_values(torch.cat(tensors), torch.tensor([len(t) for t in tensors]))

    @classmethod
    def from_ptr(cls, values: Any, ptr: Any) -> "SetBatch":
        """Pack concatenated elements ``values [N, …]`` with the boundaries ``ptr [b + 1]``.

        >>> SetBatch.from_ptr(torch.arange(5.0), [0, 2, 5]).x.tolist()
        [[0.0, 1.0, 0.0], [2.0, 3.0, 4.0]]
        """
        values, ptr = _tensor(values, "values"), _integers(ptr, "ptr")
        sizes = ptr.diff()
        if ptr.dim() != 1 or len(ptr) < 2 or (sizes < 0).any() or ptr[0] != 0:
            raise ValueError("ptr must rise from 0 to the number of elements, one step a set")
        if ptr[-1] != len(values):
            raise ValueError(f"ptr must end at the {len(values)} values there are, got {int(ptr[-1])}")
        return cls._from_values(values, sizes)

    @classmethod
    def from_index(cls, values: Any, index: Any, *, sets: int | None = None) -> "SetBatch":
        """Pack elements ``values [N, …]`` whose set is told by ``index [N]``, as in PyTorch Geometric.

        Args:
            values: the elements, in any order.
            index: the number of each element's set, from 0.
            sets: how many sets there are, if the last ones may be empty.

        >>> SetBatch.from_index(torch.arange(3.0), [1, 0, 1]).x.tolist()
        [[1.0, 0.0], [0.0, 2.0]]
        """
        values, index = _tensor(values, "values"), _integers(index, "index")
        if index.shape != values.shape[:1]:
            raise ValueError(
                f"index must name the set of each of {len(values)} elements, got {list(index.shape)}"
            )
        if len(index) and index.min() < 0:
            raise ValueError(f"index must not be negative, got {int(index.min())}")
        if not len(index) and not sets:
            raise ValueError("from_index needs elements or the number of sets, got neither")
        sizes = torch.bincount(index, minlength=sets or 0)
        if sets is not None and len(sizes) > sets:
            raise ValueError(f"index must stay below {sets} sets, got {len(sizes) - 1}")
        return cls._from_values(values[index.argsort(stable=True)], sizes)

    @classmethod
    def _from_values(cls, values: Tensor, sizes: Tensor) -> "SetBatch":
        n = int(sizes.max())
        mask = torch.arange(n, device=values.device) < sizes.to(values.device).unsqueeze(-1)
        x = values.new_zeros(len(sizes), n, *values.shape[1:])
        x[mask] = values
        return cls(x, mask)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def sizes(self) -> Int[Tensor, " b"]:
        """The number of real elements of each set."""
        return self._mask.sum(1)

    @property
    def elements(self) -> Shaped[Tensor, "b n *f"]:
        """``x`` as a tensor, with shared elements written out."""
        return self.x.written_out() if isinstance(self.x, Shared) else self.x

    @property
    def _mask(self) -> Tensor:
        if self.mask is None:
            return torch.ones(self.x.shape[:2], dtype=torch.bool, device=self.x.device)
        return self.mask

    def to(self, *args: Any, **kwargs: Any) -> "SetBatch":
        """Move or cast the elements as ``Tensor.to`` does; the mask goes along to the device."""
        x = self.x.to(*args, **kwargs)
        return SetBatch(x, None if self.mask is None else self.mask.to(x.device))

    def to_list(self) -> list[Tensor]:
        """The sets, each ``[n_i, …]``, without padding."""
        return [x[m] for x, m in zip(self.elements, self._mask, strict=True)]

    def to_ptr(self) -> tuple[Tensor, Tensor]:
        """Concatenated elements ``[N, …]`` and the boundaries ``ptr [b + 1]``."""
        return self.elements[self._mask], torch.nn.functional.pad(self.sizes.cumsum(0), (1, 0))

    def to_index(self) -> tuple[Tensor, Tensor]:
        """Concatenated elements ``[N, …]`` and the number of each one's set, as PyTorch Geometric has it."""
        return self.elements[self._mask], self._mask.nonzero()[:, 0]

    def to_nested(self) -> Tensor:
        """A nested (jagged) tensor of the sets."""
        return torch.nested.nested_tensor(self.to_list(), layout=torch.jagged)


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{what} must hold numbers, got {array.dtype}")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    plain = native.flags.c_contiguous and native.flags.writeable
    tensor = torch.from_numpy(native if plain else native.copy())
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor


def _integers(values: Any, what: str) -> Tensor:
    tensor = _tensor(values, what)
    if tensor.is_floating_point() and len(tensor):
        raise TypeError(f"{what} must hold integers, got {tensor.dtype}")
    return tensor.long()


def _is_ptr(values: Any) -> bool:
    if isinstance(values, Tensor):
        return values.dim() == 1 and not values.is_floating_point()
    array = np.asarray(values)
    return array.ndim == 1 and array.dtype.kind in "iu"
