import numpy as np
import pandas as pd
import pytest
import torch

from setwise import SetBatch
from setwise.sets import Sets, is_flat

A, B = np.arange(6.0).reshape(3, 2), np.arange(10.0, 14.0).reshape(2, 2)


def same(sets: Sets, *expected: np.ndarray) -> None:
    assert len(sets) == len(expected)
    for found, wanted in zip(sets, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "X",
    [
        [A, B],
        (A, B),
        [torch.tensor(A), torch.tensor(B)],
        [pd.DataFrame(A), pd.DataFrame(B)],
        [A.tolist(), B.tolist()],
        [A.astype(int), B.astype(np.uint8)],
        np.array([A, B], dtype=object),
        pd.Series([A, B]),
        (np.concatenate([A, B]), np.array([0, 3, 5])),
        (torch.tensor(np.concatenate([A, B])), [0, 3, 5]),
        (
            np.stack([A, np.pad(B, ((0, 1), (0, 0)), constant_values=np.nan)]),
            np.array([[1, 1, 1], [1, 1, 0]]) > 0,
        ),
        SetBatch.pack([A, B]),
        torch.nested.nested_tensor([torch.tensor(A), torch.tensor(B)], layout=torch.jagged),
        Sets.of([A, B]),
    ],
    ids=lambda X: type(X).__name__,
)
def test_sets_are_taken_in_any_form(X):
    sets = Sets.of(X)
    same(sets, A, B)
    assert sets.sizes.tolist() == [3, 2]
    assert sets.dim == 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_the_older_kind_are_taken_too():
    same(Sets.of(torch.nested.nested_tensor([torch.tensor(A), torch.tensor(B)])), A, B)


def test_an_array_is_sets_of_one_size_and_may_have_a_mask():
    x = np.stack([A, A + 7])
    same(Sets.of(x), A, A + 7)
    same(Sets.of(torch.tensor(x)), A, A + 7)
    same(Sets.of(x, mask=np.array([[True, False, True], [True] * 3])), A[[0, 2]], A + 7)
    same(Sets.of(x, mask=torch.tensor([[True, False, True], [True] * 3])), A[[0, 2]], A + 7)


def test_a_row_of_a_table_is_a_set_of_numbers():
    same(Sets.of(A), *(row.reshape(-1, 1) for row in A))
    same(Sets.of(A.tolist()), *(row.reshape(-1, 1) for row in A))
    frame = pd.DataFrame(A, columns=["a", "b"])
    same(Sets.of(frame), *(row.reshape(-1, 1) for row in A))
    assert Sets.of(frame).columns == ("a", "b")


@pytest.mark.parametrize(
    ("X", "flat"),
    [
        *((A, True), (A.tolist(), True), (np.ones(3), True), ([1, 2], True), (pd.DataFrame(A), True)),
        *(([A, B], False), ([A[0], A[1]], False), ([], False), ([A.tolist()], False), ("text", False)),
    ],
)
def test_tables_are_told_from_lists_of_sets(X, flat):
    assert is_flat(X) is flat


def test_single_precision_stays_and_all_else_becomes_double():
    assert Sets.of([A.astype(np.float32), B.astype(np.float32)]).values.dtype == np.float32
    assert Sets.of([A.astype(np.float32), B]).values.dtype == np.float64
    assert Sets.of([torch.tensor(A).bfloat16()]).values.dtype == np.float32
    assert Sets.of([A.astype(np.float16)]).values.dtype == np.float64
    assert Sets.of([A > 1]).values.tolist() == (A > 1).astype(float).tolist()


def test_an_index_gives_sets_again_and_a_number_a_view():
    sets = Sets.of([A, B, A + 1])
    same(sets[[2, 0]], A + 1, A)
    same(sets[1:], B, A + 1)
    same(sets[np.array([False, True, False])], B)
    assert sets[-1].base is not None
    np.testing.assert_array_equal(sets[-1], A + 1)
    with pytest.raises(IndexError):
        sets[3]


def test_columns_are_those_of_the_data_frames():
    frames = [pd.DataFrame(x, columns=["a", "b"]) for x in (A, B)]
    assert Sets.of(frames).columns == ("a", "b")
    assert Sets.of(frames)[[1]].columns == ("a", "b")
    assert Sets.of([pd.DataFrame(A)]).columns is None
    with pytest.raises(ValueError, match="set 1 has columns b, a, expected a, b as in set 0"):
        Sets.of([frames[0], frames[1][["b", "a"]]])
    with pytest.raises(TypeError, match="set 0 must have column names that are all strings"):
        Sets.of([pd.DataFrame(A, columns=["a", 1])])
    many = pd.DataFrame(np.ones((1, 10)), columns=list("abcdefghij"))
    with pytest.raises(
        ValueError, match="set 1 has columns without names, expected a, b, c, d, e, f, g, h and 2 more as"
    ):
        Sets.of([many, np.ones((1, 10))])


# ruff: noqa: E501
bad = {
    "widths": ([A, np.ones((2, 3))], ValueError, "set 1 has elements of 3 features, expected 2 as in set 0"),
    "nan": ([A, np.array([[1.0, 2.0], [np.nan, 0.0]])], ValueError, r"set 1 must hold finite.*nan \(element 1, feature 0"),
    "inf": ([np.array([[1.0, -np.inf]]), A], ValueError, r"set 0 must hold finite.*-inf \(element 0, feature 1\)"),
    "large": ([A, A * 1e300], ValueError, "set 1 must hold finite numbers, got 1e\\+300, too large for single"),
    "larger": ([A, [[10**400, 1]]], ValueError, "set 1 must hold finite numbers, got one too large for double"),
    "empty set": ([A, A[:0]], ValueError, "set 1 of 2 is empty"),
    "no features": ([A[:, :0]], ValueError, "set 0 has elements of 0 features"),
    "no sets": ([], ValueError, "at least one set, got an empty list"),
    "strings": ([A, [["a", "b"]]], TypeError, "set 1 must be an array of numbers, got <U1"),
    "string": ([A, "ab"], TypeError, "set 1 must be an array of numbers, got str"),
    "one axis": ([A, np.ones(4)], ValueError, r"set 1 must be \[elements, features\], got shape \[4\] .*reshape"),
    "three axes": ([A, np.ones((2, 2, 2))], ValueError, r"set 1 must be .* got shape \[2, 2, 2\]"),
    "none": ([A, None], TypeError, "set 1 must be an array of numbers, got NoneType"),
    "number": ([A, 3.0], TypeError, "set 1 must be an array of numbers, got float"),
    "object": ([A, object()], TypeError, "set 1 must be an array of numbers, got object"),
    "dict": ([A, {"a": 1}], TypeError, "set 1 must be an array of numbers, got dict"),
    "ragged": ([A, [[1, 2], [3]]], TypeError, "set 1 must be an array of numbers, got list"),
    "complex": ([A * 1j], TypeError, "set 0 must be an array of numbers, got complex128"),
    "sparse": ([A, torch.eye(2).to_sparse()], TypeError, "set 1 must be a dense array"),
    "not sets": ({"a": A}, TypeError, "X must be a list of .* got dict"),
    "iterator": ((x for x in [A]), TypeError, "X must be a list of .* got generator"),
    "text": ("text", TypeError, "set 0 must be an array of numbers, got str"),
    "vector": (np.ones(3), ValueError, "Reshape your data"),
    "axes": (np.ones((2, 2, 2, 2)), TypeError, r"X must be a list of .* got ndarray \[2, 2, 2, 2\]"),
    "empty table": (np.ones((0, 3)), ValueError, r"at least one set .* got \[0, 3\]"),
    "empty array": (np.ones((0, 3, 2)), ValueError, "at least one set, got none"),
    "values": ((np.ones(3), [0, 3]), ValueError, r"values must be \[elements, features\], got \[3\]"),
    "ptr": ((A, [0, 2]), ValueError, "ptr must rise from 0 to 3, .* got 0, 2"),
    "falling ptr": ((A, [0, 3, 2, 3]), ValueError, "ptr must rise"),
    "late ptr": ((A, [1, 3]), ValueError, "ptr must rise"),
    "mask": ((np.ones((2, 3, 2)), np.ones((2, 2), bool)), ValueError, r"mask must be bool \[2, 3\], got bool \[2, 2\]"),
    "masked table": ((A, np.ones((3, 2), bool)), ValueError, r"X with a mask must be \[sets, elements, features\]"),
    "masked away": ((np.ones((2, 2, 2)), np.array([[True, True], [False, False]])), ValueError, "set 1 of 2 is empty"),
}  # fmt: skip


@pytest.mark.parametrize(("X", "kind", "sentence"), bad.values(), ids=bad)
def test_what_is_wrong_is_one_sentence_that_names_the_set(X, kind, sentence):
    with pytest.raises(kind, match=sentence) as caught:
        Sets.of(X)
    assert "\n" not in str(caught.value)
