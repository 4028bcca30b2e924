"""Containers of sets: ragged (`Sets`), padded with a mask (`SetBatch`), with shared elements (`Shared`)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from setwise._text import few

FLOAT32_MAX = float(np.finfo(np.float32).max)
FORMS = "a list of [n, d] arrays, a 3-D array, (x, mask), (values, ptr) or a 2-D array with one set per row"


class Shared:
    """Elements that several sets have in common, stored once: element j of set i is ``values[index[i, j]]``.

    Takes the place of ``x [b, n, …]`` in a `SetBatch`. `setwise.nn.ElementEncoder` encodes each value once,
    however many sets contain it. For networks without support for shared elements, use ``expand``.

    Args:
        values: the distinct elements. All of them are real, whatever the mask says.
        index: the position in ``values`` of each element; any valid position at padding.

    >>> x = Shared(torch.tensor([[1.0], [5.0]]), torch.tensor([[0, 1], [1, 1]]))
    >>> x.shape, x.expand().flatten().tolist()
    (torch.Size([2, 2, 1]), [1.0, 5.0, 5.0, 5.0])
    """

    def __init__(self, values: Shaped[Tensor, "values ..."], index: Int[Tensor, "b n"]) -> None:
        if index.dim() != 2 or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(
                f"index must hold integers of shape [sets, elements], got {index.dtype} {list(index.shape)}"
            )
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(values):
            raise ValueError(
                f"index must be at least 0 and below {len(values)}, the number of values, "
                f"got {int(index.min())} to {int(index.max())}"
            )
        self.values = values
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def dim(self) -> int:
        """The number of axes of ``x``."""
        return len(self.shape)

    @property
    def shape(self) -> torch.Size:
        """The shape of ``x``: sets, elements, features."""
        return self.index.shape + self.values.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """The data type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """The device of the values."""
        return self.values.device

    def is_floating_point(self) -> bool:
        """Whether the values are floating point."""
        return self.values.is_floating_point()

    def to(self, *args: Any, **kwargs: Any) -> "Shared":
        """Move or cast the values like ``Tensor.to``; the index moves to the same device."""
        values = self.values.to(*args, **kwargs)
        return Shared(values, self.index.to(values.device))

    def gather_values(self, features: Shaped[Tensor, "values ..."]) -> Shaped[Tensor, "b n *f"]:
        """Features of the values, repeated for each element: ``features[index]``."""
        rows = features.index_select(0, self.index.flatten())
        return rows.view(*self.index.shape, *features.shape[1:])

    def map(self, function: Callable[[Tensor], Tensor]) -> "Shared":
        """Apply a function ``[values, …] → [values, …]`` to the distinct elements."""
        return Shared(function(self.values), self.index)

    def expand(self) -> Shaped[Tensor, "b n *f"]:
        """``x`` as a tensor, with shared elements repeated."""
        return self.gather_values(self.values)


Elements = Shaped[Tensor, "b n *f"] | Shared
"""What a model takes as ``x``."""


@dataclass(frozen=True, eq=False)
class SetBatch:
    """A batch of sets: elements ``x [b, n, …]`` and ``mask [b, n]``, True at real elements.

    Without a mask all elements are real. ``x`` may be `Shared`. `pack` takes sets in any form; `to_list`,
    `to_ptr`, `to_index` and `to_nested` convert back.

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
        """Make a batch from sets in any of these forms.

        Args:
            sets: a list of ``[n_i, …]`` arrays or tensors, an array or tensor ``[b, n, …]`` of sets of
                equal size, a pair ``(values [N, …], ptr [b + 1])`` where set i is
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
        """Make a batch from a list of ``[n_i, …]`` arrays or tensors."""
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
        """Make a batch from concatenated elements ``values [N, …]`` and offsets ``ptr [b + 1]``.

        >>> SetBatch.from_ptr(torch.arange(5.0), [0, 2, 5]).x.tolist()
        [[0.0, 1.0, 0.0], [2.0, 3.0, 4.0]]
        """
        values, ptr = _tensor(values, "values"), _integers(ptr, "ptr")
        sizes = ptr.diff()
        if ptr.dim() != 1 or len(ptr) < 2 or (sizes < 0).any() or ptr[0] != 0:
            raise ValueError(
                "ptr must hold offsets [sets + 1] that start at 0 and never decrease, "
                f"got {few(ptr.flatten().tolist()) or 'an empty array'}"
            )
        if ptr[-1] != len(values):
            raise ValueError(f"ptr must end at {len(values)}, the number of values, got {int(ptr[-1])}")
        return cls._from_values(values, sizes)

    @classmethod
    def from_index(cls, values: Any, index: Any, *, sets: int | None = None) -> "SetBatch":
        """Make a batch from elements ``values [N, …]`` and the set of each element, as in PyTorch Geometric.

        Args:
            values: the elements, in any order.
            index: the set of each element, counted from 0.
            sets: the number of sets; needed only if the last ones may be empty.

        >>> SetBatch.from_index(torch.arange(3.0), [1, 0, 1]).x.tolist()
        [[1.0, 0.0], [0.0, 2.0]]
        """
        values, index = _tensor(values, "values"), _integers(index, "index")
        if index.shape != values.shape[:1]:
            raise ValueError(
                f"index must name the set of each of {len(values)} elements, got shape {list(index.shape)}"
            )
        if len(index) and index.min() < 0:
            raise ValueError(f"index must not be negative, got {int(index.min())}")
        if not len(index) and not sets:
            raise ValueError("from_index needs elements or the number of sets, got neither")
        sizes = torch.bincount(index, minlength=sets or 0)
        if sets is not None and len(sizes) > sets:
            raise ValueError(f"index must be below {sets}, the number of sets, got {len(sizes) - 1}")
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
        """``x`` as a tensor, with shared elements repeated."""
        return self.x.expand() if isinstance(self.x, Shared) else self.x

    @property
    def _mask(self) -> Tensor:
        if self.mask is None:
            return torch.ones(self.x.shape[:2], dtype=torch.bool, device=self.x.device)
        return self.mask

    def to(self, *args: Any, **kwargs: Any) -> "SetBatch":
        """Move or cast the elements like ``Tensor.to``; the mask moves to the same device."""
        x = self.x.to(*args, **kwargs)
        return SetBatch(x, None if self.mask is None else self.mask.to(x.device))

    def to_list(self) -> list[Tensor]:
        """The sets, each ``[n_i, …]``, without padding."""
        return [x[m] for x, m in zip(self.elements, self._mask, strict=True)]

    def to_ptr(self) -> tuple[Tensor, Tensor]:
        """Concatenated elements ``[N, …]`` and the offsets ``ptr [b + 1]``."""
        return self.elements[self._mask], torch.nn.functional.pad(self.sizes.cumsum(0), (1, 0))

    def to_index(self) -> tuple[Tensor, Tensor]:
        """Concatenated elements ``[N, …]`` and the set of each, as in PyTorch Geometric."""
        return self.elements[self._mask], self._mask.nonzero()[:, 0]

    def to_nested(self) -> Tensor:
        """The sets as a nested (jagged) tensor."""
        return torch.nested.nested_tensor(self.to_list(), layout=torch.jagged)


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of different sizes, concatenated: set i is ``values[ptr[i]:ptr[i + 1]]``.

    `of` checks and converts sets in any supported form; `batch` pads some of them. A `Sets` is a sequence of
    arrays, so scikit-learn can split it: an index array or a slice gives `Sets` again.

    Args:
        values: the elements of all sets, one set after the other.
        ptr: offsets: where each set begins, and where the last one ends.
        columns: names of the features, or None.

    >>> sets = Sets.of([np.ones((2, 3)), np.zeros((4, 3))])
    >>> len(sets), sets[1].shape, sets.sizes.tolist()
    (2, (4, 3), [2, 4])
    """

    values: Float[np.ndarray, "N d"]
    ptr: Int[np.ndarray, " bounds"]
    columns: tuple[str, ...] | None = None

    @classmethod
    def of(cls, X: Any, mask: Any = None) -> "Sets":
        """Check sets in any of the forms that estimators take, and concatenate them.

        Args:
            X: a list of ``[n_i, d]`` arrays, tensors or data frames; an array ``[b, n, d]``, or a pair of it
                and its mask; ``(values [N, d], ptr [b + 1])``; a `SetBatch`; or a 2-D array or data
                frame in which each row is a set of numbers.
            mask: for a 3-D array: True at real elements.

        >>> Sets.of([np.ones((2, 3)), np.ones((2, 4))])
        Traceback (most recent call last):
        ...
        ValueError: set 1 has elements of 4 features, expected 3 as in set 0
        """
        if mask is not None:
            return cls._from_masked(X, mask)
        if isinstance(X, Sets):
            return X
        if isinstance(X, SetBatch):
            x = _array(X.elements, "X")
            return cls._from_masked(x, np.ones(x.shape[:2], bool) if X.mask is None else X.mask)
        if isinstance(X, tuple) and len(X) == 2 and _dimensions(X[0]) is not None:
            second = _array_or_none(X[1])
            if second is not None and second.dtype.kind == "b":
                return cls._from_masked(*X)
            if second is not None and second.dtype.kind in "iu" and second.ndim == 1:
                return cls._from_ptr(*X)
        if isinstance(X, Tensor) and X.is_nested:
            X = list(X.unbind())
        if is_flat(X):
            return cls._from_rows(X)
        if _dimensions(X) == 3:
            x = _array(X, "X")
            return cls._from_masked(x, np.ones(x.shape[:2], bool))
        if isinstance(X, Sequence) or _dimensions(X) == 1:
            return cls._from_list(list(X))
        raise TypeError(f"X must be {FORMS}, got {_described(X)}")

    @classmethod
    def _from_rows(cls, X: Any) -> "Sets":
        x = _array(X, "X")
        if x.ndim != 2:
            raise ValueError(
                f"X must be {FORMS}, got an array of shape {list(x.shape)}. Reshape your data: "
                "X.reshape(1, -1) is one set of numbers"
            )
        if not x.size:
            raise ValueError(f"expected at least one set with at least one element, got {list(x.shape)}")
        ptr = np.arange(len(x) + 1, dtype=np.int64) * x.shape[1]
        return cls(x.reshape(-1, 1), ptr, _columns(X, "X"))._checked()

    @classmethod
    def _from_masked(cls, x: Any, mask: Any) -> "Sets":
        x, real = _array(x, "X"), np.asarray(mask.cpu() if isinstance(mask, Tensor) else mask)
        if x.ndim != 3:
            raise ValueError(f"X with a mask must be [sets, elements, features], got {list(x.shape)}")
        if real.dtype != bool or real.shape != x.shape[:2]:
            raise ValueError(f"mask must be bool {list(x.shape[:2])}, got {real.dtype} {list(real.shape)}")
        return cls(x[real], offsets(real.sum(1)))._checked()

    @classmethod
    def _from_ptr(cls, values: Any, ptr: Any) -> "Sets":
        x, bounds = _array(values, "values"), np.asarray(ptr.cpu() if isinstance(ptr, Tensor) else ptr)
        if x.ndim != 2:
            raise ValueError(f"values must be [elements, features], got {list(x.shape)}")
        if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != len(x) or (bounds[1:] < bounds[:-1]).any():
            raise ValueError(
                f"ptr must rise from 0 to {len(x)}, the number of elements, got {few(bounds) or 'nothing'}"
            )
        return cls(x, bounds.astype(np.int64), _columns(values, "values"))._checked()

    @classmethod
    def _from_list(cls, sets: list[Any]) -> "Sets":
        if not sets:
            raise ValueError("expected at least one set, got an empty list")
        arrays = [_array(x, f"set {i}") for i, x in enumerate(sets)]
        columns = _columns(sets[0], "set 0")
        for i, x in enumerate(arrays):
            if x.ndim != 2:
                hint = " (a set of numbers is [n, 1]: reshape(-1, 1))" if x.ndim == 1 else ""
                raise ValueError(f"set {i} must be [elements, features], got shape {list(x.shape)}{hint}")
            if x.shape[1] != (width := arrays[0].shape[1]):
                raise ValueError(
                    f"set {i} has elements of {x.shape[1]} features, expected {width} as in set 0"
                )
            if (names := _columns(sets[i], f"set {i}")) != columns:
                raise ValueError(
                    f"set {i} has columns {_listed(names)}, expected {_listed(columns)} as in set 0"
                )
        return cls(np.concatenate(arrays), offsets([len(x) for x in arrays]), columns)._checked()

    def _checked(self) -> "Sets":
        if len(self.ptr) < 2:
            raise ValueError("expected at least one set, got none")
        if not self.values.shape[1]:
            raise ValueError("set 0 has elements of 0 features, expected at least 1")
        if (empty := np.flatnonzero(self.sizes == 0)).size:
            raise ValueError(f"set {empty[0]} of {len(self)} is empty, expected at least one element")
        largest = np.abs(self.values).max()  # NaN if any value is
        if not largest <= FLOAT32_MAX:
            element, feature = np.argwhere(~(np.abs(self.values) <= FLOAT32_MAX))[0]
            i = int(np.searchsorted(self.ptr, element, side="right")) - 1
            value = self.values[element, feature]
            got = f"{value:g}, too large for single precision" if np.isfinite(value) else f"{value}"
            place = f"element {element - self.ptr[i]}, feature {feature}"
            raise ValueError(f"set {i} must hold finite numbers, got {got} ({place})")
        return self

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __iter__(self) -> Iterator[Float[np.ndarray, "n d"]]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer):
            i = range(len(self))[index]
            return self.values[self.ptr[i] : self.ptr[i + 1]]
        chosen = np.arange(len(self))[index]
        values = np.concatenate([self.values[:0], *(self[i] for i in chosen)])
        return Sets(values, offsets(self.sizes[chosen]), self.columns)

    @property
    def sizes(self) -> Int[np.ndarray, " b"]:
        """The number of elements of each set."""
        return np.diff(self.ptr)

    @property
    def dim(self) -> int:
        """The number of features per element."""
        return int(self.values.shape[1])

    def batch(self, index: Int[Tensor, " b"] | Int[np.ndarray, " b"] | Sequence[int]) -> SetBatch:
        """The sets at ``index``, padded with zeros; the mask is None if there is no padding.

        >>> sets = Sets(np.arange(5.0).reshape(5, 1), np.array([0, 2, 5]))
        >>> batch = sets.batch([1, 0])
        >>> batch.x[..., 0].tolist(), batch.sizes.tolist()
        ([[2.0, 3.0, 4.0], [0.0, 1.0, 0.0]], [3, 2])
        """
        chosen, ptr = torch.as_tensor(index), torch.from_numpy(self.ptr)
        sizes = ptr.diff()[chosen]
        position = torch.arange(int(sizes.max()))
        mask = position < sizes.unsqueeze(1)
        rows = (ptr[chosen].unsqueeze(1) + position).masked_fill_(~mask, 0)
        x = torch.from_numpy(self.values)[rows].masked_fill_(~mask.unsqueeze(-1), 0)
        return SetBatch(x, None if bool(mask.all()) else mask)

    def subsample(self, most: int, generator: torch.Generator) -> "Sets":
        """The same sets with at most ``most`` elements each, drawn at random without replacement."""
        if int(self.sizes.max()) <= most:
            return self
        sizes, ptr = torch.from_numpy(self.sizes), torch.from_numpy(self.ptr)
        set_of = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        order = torch.randperm(len(self.values), generator=generator)
        order = order[set_of[order].argsort(stable=True)]  # random within each set
        rank = torch.arange(len(order)) - torch.repeat_interleave(ptr[:-1], sizes)
        return Sets(self.values[order[rank < most].numpy()], offsets(self.sizes.clip(max=most)), self.columns)


def is_flat(X: Any) -> bool:
    """Whether X is a single 1-D or 2-D table of numbers, as opposed to a collection of sets."""
    if isinstance(X, Tensor) and X.is_nested:
        return False
    if isinstance(X, list | tuple):
        return bool(X) and all(_is_row(row) for row in X)
    return (hasattr(X, "iloc") and hasattr(X, "columns")) or _dimensions(X) == 2 or _is_vector(X)


def _is_row(row: Any) -> bool:
    return np.isscalar(row) or (
        isinstance(row, list | tuple) and bool(row) and all(np.isscalar(number) for number in row)
    )


def _is_vector(X: Any) -> bool:
    array = _array_or_none(X) if _dimensions(X) == 1 else None
    return array is not None and array.dtype.kind != "O"


def offsets(sizes: Any) -> Int[np.ndarray, " bounds"]:
    """Where sets of these sizes begin, and where the last one ends."""
    return np.append(0, np.cumsum(sizes)).astype(np.int64)


def _dimensions(X: Any) -> int | None:
    """The number of axes of an array; None if X is not an array."""
    shape = getattr(X, "shape", None)
    if not isinstance(shape, tuple) and hasattr(X, "__array__") and not isinstance(X, type):
        shape = np.asarray(X).shape
    return len(shape) if isinstance(shape, tuple) else None


def _array_or_none(X: Any) -> np.ndarray | None:
    """X as a numpy array; None if numpy cannot convert it."""
    try:
        return np.asarray(X.detach().cpu() if isinstance(X, Tensor) else X)
    except Exception:  # arbitrary objects can raise anything
        return None


def _array(x: Any, what: str) -> Shaped[np.ndarray, "..."]:
    """An array of floats: single precision stays single, everything else becomes double."""
    if isinstance(x, Tensor):
        if x.layout is not torch.strided or x.is_nested:
            raise TypeError(f"{what} must be a dense array, got a {x.layout} tensor")
        x = x.detach().cpu()
        x = (x.float() if x.dtype in (torch.bfloat16, torch.float16) else x).numpy()
    if isinstance(x, str | bytes | dict | set) or x is None or hasattr(x, "tocsr"):
        raise TypeError(f"{what} must be an array of numbers, got {_described(x)}")
    try:
        array = np.asarray(x)
        if array.dtype.kind == "O":  # such as fractions, or no numbers at all
            array = np.asarray(array, dtype=np.float64)
    except OverflowError as error:
        raise ValueError(
            f"{what} must hold finite numbers, got one too large for double precision"
        ) from error
    except Exception as error:  # arbitrary objects can raise anything
        raise TypeError(f"{what} must be an array of numbers, got {_described(x)} ({error})") from error
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{what} must be an array of numbers, got {array.dtype}")
    if array.ndim == 0:
        raise TypeError(f"{what} must be an array of numbers, got {_described(x)}")
    return array if array.dtype == np.float32 else array.astype(np.float64)


def _columns(X: Any, what: str) -> tuple[str, ...] | None:
    """The column names of a data frame; None for an array."""
    names = getattr(X, "columns", None)
    if names is None:
        return None
    if not all(isinstance(name, str) for name in names):
        if any(isinstance(name, str) for name in names):
            raise TypeError(f"{what} must have column names that are all strings or none, got a mixture")
        return None
    return tuple(names)


def _described(X: Any) -> str:
    shape = getattr(X, "shape", None)
    return f"{type(X).__name__} {list(shape)}" if isinstance(shape, tuple) else type(X).__name__


def _listed(names: tuple[str, ...] | None) -> str:
    return "without names" if names is None else few(names)


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{what} must hold numbers, got {array.dtype}")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    usable = native.flags.c_contiguous and native.flags.writeable
    tensor = torch.from_numpy(native if usable else native.copy())
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
