"""Reading people's files: tables, npz files, folders, and what is wrong with them."""

import gzip
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from setwise.io.readers import LabelledSets, read_sets
from tests.io.test_bags import exactly, numbered, write


def lists(data: LabelledSets) -> list[list[list[float]]]:
    return [x.tolist() for x in data.sets]


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# Tables

TABLE = (
    "size,label, set ,round\n"
    "0.1,ill,007,1\n"
    "2, well ,NA,-2e3\n"
    "\n"
    " 3 ,ill, 007 ,5\n"
    "0.30000000000000004,well,NA,7\n"
)


@pytest.mark.parametrize("kind", ["cells.csv", "cells.tsv", "CELLS.CSV", "cells.csv.gz", "cells.tsv.gz"])
def test_a_table_in_text(tmp_path: Path, kind: str) -> None:
    text = "\ufeff" + (TABLE.replace(",", "\t") if ".tsv" in kind else TABLE)
    (tmp_path / kind).write_bytes(gzip.compress(text.encode()) if kind.endswith(".gz") else text.encode())
    data = read_sets(tmp_path / kind)
    assert (data.ids, data.columns) == (("007", "NA"), ("size", "round"))  # no numbers, no gaps
    assert data.labels is not None
    assert data.labels.tolist() == ["ill", "well"]
    assert lists(data) == [[[0.1, 1], [3, 5]], [[2, -2000], [0.30000000000000004, 7]]]
    assert data.sets.sizes.tolist() == [2, 2]
    assert (data.groups, data.left_out) == (None, {})


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "f": [1.5, 2.5, 3.5, 4.5],
            "set": [12, 3, 12, 5],
            "label": [2, 0, 2, 0],
            "patient": ["p", "q", "p", "p"],
            "g": [True, False, True, True],
        }
    )


def test_a_parquet_table(tmp_path: Path) -> None:
    path = tmp_path / "cells.parquet"
    frame().to_parquet(path)
    data = read_sets(str(path), group_column="patient")
    assert data.ids == ("12", "3", "5")
    assert data.columns == ("f", "g")
    assert lists(data) == [[[1.5, 1], [3.5, 1]], [[2.5, 0]], [[4.5, 1]]]
    assert data.labels is not None
    assert data.groups is not None
    assert (data.labels.dtype.kind, data.labels.tolist()) == ("i", [2, 0, 0])
    assert data.groups.tolist() == ["p", "q", "p"]
    frame().set_index("set").to_parquet(path)  # an index with a name is a column
    assert read_sets(path, features=["g", "f"]).ids == data.ids
    assert lists(read_sets(path, features=["g", "f"]))[0] == [[1, 1.5], [1, 3.5]]


def test_columns_by_other_names(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    frame().to_csv(path, index=False)
    data = read_sets(path, set_column="patient", label_column="g", features=["f", "label"])
    assert (data.ids, data.columns) == (("p", "q"), ("f", "label"))
    assert data.labels is not None
    assert data.labels.tolist() == ["True", "False"]
    both = read_sets(path, label_column=("label", "g"), features=["f"])
    assert both.labels is not None
    assert both.labels.tolist() == [[2, 1], [0, 0], [0, 1]]
    with pytest.raises(ValueError, match="groups and features must be distinct, got 'f' twice"):
        read_sets(path, label_column="f", features=["f"])
    with pytest.raises(ValueError, match="label_column must name at least one column, got none"):
        read_sets(path, label_column=())


def test_names_of_sets_and_groups_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text("set,label,site,f\n007,0,01,1\n7,0,1,2\n")
    data = read_sets(path, group_column="site")
    assert data.ids == ("007", "7")
    assert data.groups is not None
    assert data.groups.tolist() == ["01", "1"]


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", "2"], "i", [1, 2]),
        (["1.5", "2"], "f", [1.5, 2.0]),
        (["1", "b"], "U", ["1", "b"]),
        (["True", "False"], "U", ["True", "False"]),
        (["nan", "NA"], "U", ["nan", "NA"]),
    ],
)
def test_labels_are_as_they_were_found(
    tmp_path: Path, cells: list[str], kind: str, values: list[Any]
) -> None:
    path = tmp_path / "cells.csv"
    path.write_text(f"set,label,f\na,{cells[0]},0\nb,{cells[1]},1\n")
    found = read_sets(path).labels
    assert found is not None
    assert (found.dtype.kind, found.tolist()) == (kind, values)


def test_labels_that_need_not_be_there(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text("set,label,f\na,x,1\na,x,2\nb,y,3\n")
    data = read_sets(path, labels=False)
    assert data.columns == ("f",)
    assert data.labels is not None
    assert data.labels.tolist() == ["x", "y"]
    path.write_text("set,label,f\na,x,1\na,x,2\nb,,3\n")
    data = read_sets(path, labels=False)
    assert (data.labels, data.columns) == (None, ("f",))
    path.write_text("set,f\na,1\na,2\nb,3\n")
    assert (read_sets(path, labels=False).labels, read_sets(path, labels=False).columns) == (None, ("f",))
    path.write_text("set,u,f\na,4,1\n")
    several = read_sets(path, label_column=("u", "v"), labels=False)
    assert (several.labels, several.columns) == (None, ("f",))


ROWS = "set,label,f,g\na,0,1,2\nb,1,3,4\n"
WRONG: dict[str, tuple[str, str]] = {
    "two labels": (ROWS + "a,1,5,6", ", set 'a': expected one value in column 'label', got 0 and 1"),
    "no label": (ROWS + "b,,5,6", ", set 'b': expected one value in column 'label', got none"),
    "no set": (ROWS + " ,1,5,6", ", row 3: expected a set ID, got none"),
    "text": (ROWS + "b,1,5,six", ", set 'b', column 'g': expected a finite number, got 'six'"),
    "no cell": (ROWS + "b,1,,6", ", set 'b', column 'f': expected a finite number, got ''"),
    "nan": (ROWS + "b,1,5,NaN", ", set 'b', column 'g': expected a finite number, got 'NaN'"),
    "infinite": (ROWS + "b,1,-inf,6", ", set 'b', column 'f': expected a finite number, got '-inf'"),
    "too large": (ROWS + "b,1,5,1e39", ", set 'b', column 'g': expected a finite number, got '1e+39'"),
    "far too large": (
        ROWS + "b,1,5," + "9" * 400,
        ": expected finite numbers in column 'g', got one too large",
    ),
    "short row": (ROWS + "b,1,5", ", set 'b', column 'g': expected a finite number, got ''"),
    "words": (
        "set,label,f,g\na,0,1,Ann\n",
        ", set 'a', column 'g': expected a finite number, got 'Ann'; choose the feature columns if",
    ),
    "long row": (
        ROWS + "b,1,5,6,7",
        ": expected a readable CSV file, got an error: ParserError: Error tokenizing data",
    ),
    "long first row": (
        "set,label,f\na,0,1,2\n",
        ": expected a readable CSV file, got an error: ParserWarning: Length of header",
    ),
    "twice": (
        "set,label,f, f\na,0,1,2\n",
        ": expected distinct column names, got 'f' twice",
    ),
    "no set column": ("bag,label,f\na,0,1\n", ": expected a column 'set', got bag, label, f"),
    "no label column": ("set,class,f\na,0,1\n", ": expected a column 'label', got set, class, f"),
    "semicolons": ("set;label;f\na;0;1\n", ": expected a column 'set', got set;label;f"),
    "no features": ("set,label\na,0\n", ": expected at least one feature column, got only set, label"),
    "no rows": ("set,label,f\n", ": expected at least one row below the header, got none"),
    "nothing": ("", ": expected a readable CSV file, got an error: EmptyDataError: No columns to parse"),
    "a quote": (ROWS + 'b,1,"5,6', ": expected a readable CSV file, got an error: ParserError: "),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_table(tmp_path: Path, what: str) -> None:
    text, sentence = WRONG[what]
    path = tmp_path / "cells.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=exactly(f"{path}{sentence}")[:-1]):
        read_sets(path)


def test_many_columns_are_not_all_listed(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text(",".join(f"c{i}" for i in range(100)) + "\n" + ",".join("0" * 100) + "\n")
    with pytest.raises(ValueError, match=exactly("c0, c1, c2, c3, c4, c5, c6, c7 and 92 more")[1:]):
        read_sets(path)


def test_what_is_wrong_with_a_parquet_table(tmp_path: Path) -> None:
    path = tmp_path / "cells.parquet"
    for column, values, sentence in (
        ("f", pd.to_datetime(["2020-01-01"] * 4), ": expected numbers in column 'f', got datetime64[us]"),
        (
            "f",
            [[1], [2], [3], [4]],
            ", set '12', column 'f': expected a finite number, got '[1]'; choose the "
            "feature columns if this is not one",
        ),
        ("f", [1, None, 2, 3], ", set '3', column 'f': expected a finite number, got 'nan'"),
        ("f", ["1", "2", "3", "x"], ", set '5', column 'f': expected a finite number, got 'x'"),
        ("set", [1, None, 2, 3], ", row 2: expected a set ID, got none"),
        ("set", ["a", "a", None, "b"], ", row 3: expected a set ID, got none"),
        ("label", [None, "a", "b", "c"], ", set '12': expected one value in column 'label', got none"),
        ("label", [1.0, np.inf, 1, 2], ", set '3': expected one value in column 'label', got none"),
    ):
        frame().drop(columns="patient").assign(**{column: values}).to_parquet(path)
        with pytest.raises(ValueError, match=exactly(f"{path}{sentence}")):
            read_sets(path)
    twice = pyarrow.Table.from_arrays([pyarrow.array([1])] * 4, names=["set", "label", "f", "f"])
    pyarrow.parquet.write_table(twice, path)
    with pytest.raises(ValueError, match="ValueError: column names must be distinct, got 'f' twice"):
        read_sets(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"expected a readable \.parquet file, got an error: Arrow"):
        read_sets(path)


def test_a_large_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    number = rng.integers(0, 300, 20_000)
    table = pd.DataFrame(rng.normal(size=(20_000, 3)), columns=["a", "b", "c"])
    table.assign(set=number, label=number % 3).to_csv(tmp_path / "large.csv", index=False)
    data = read_sets(tmp_path / "large.csv")
    order = pd.unique(number)
    assert data.ids == tuple(map(str, order))
    for i in (0, 17, 299):
        assert np.array_equal(data.sets[i], table[number == order[i]].to_numpy())
    assert data.labels is not None
    assert np.array_equal(data.labels, order % 3)


# Arrays

X = np.arange(12, dtype=np.float32).reshape(2, 3, 2)


def test_sets_of_one_size(tmp_path: Path) -> None:
    data = read_sets(saved(tmp_path / "a.npz", X=X, y=[0.5, 1.5]))
    assert lists(data) == X.tolist()
    assert (data.ids, data.columns) == (("0", "1"), None)
    assert data.labels is not None
    assert data.labels.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("kind", [bool, np.uint8, float])
def test_sets_with_a_mask(tmp_path: Path, kind: Any) -> None:
    x = X.copy()
    x[0, 1] = np.nan  # padding
    mask = np.array([[1, 0, 1], [1, 1, 1]]).astype(kind)
    data = read_sets(saved(tmp_path / "a.npz", X=x, mask=mask, y=["b", "a"]))
    assert lists(data) == [[[0, 1], [4, 5]], X[1].tolist()]
    assert data.labels is not None
    assert data.labels.tolist() == ["b", "a"]


def test_values_and_where_sets_begin(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", values=X.reshape(6, 2), ptr=[0, 1, 6], y=np.eye(2, dtype=bool))
    data = read_sets(path)
    assert lists(data) == [[[0, 1]], X.reshape(6, 2)[1:].tolist()]
    assert data.labels is not None
    assert data.labels.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("key", ["bag", "set"])
def test_labels_come_in_the_sorted_order_of_the_bags(tmp_path: Path, key: str) -> None:
    for bag, ids in (([9, -2, 9, 5, 9, -2], ("-2", "5", "9")), (list("zbzczb"), ("b", "c", "z"))):
        arrays = {"X": X.reshape(6, 2), key: np.array(bag), "y": np.array([[7], [8], [9]]), "other": [1]}
        data = read_sets(saved(tmp_path / "a.npz", **arrays))
        assert data.ids == ids
        assert [x[:, 0].tolist() for x in data.sets] == [[2, 10], [6], [0, 4, 8]]
        assert data.labels is not None
        assert data.labels.tolist() == [7, 8, 9]


def test_one_of_several_data_sets(tmp_path: Path) -> None:
    one = {
        "m_X": X.reshape(6, 2),
        "m_bag": np.array([1, 1, 0, 0, 0, 0], np.int32),
        "m_y": np.array([True, False]),
    }
    path = saved(tmp_path / "a.npz", **one)
    for name in (None, "m"):
        data = read_sets(path, name=name)
        assert [len(x) for x in data.sets] == [4, 2]
        assert data.labels is not None
        assert data.labels.tolist() == ["True", "False"]
    path = saved(tmp_path / "a.npz", **one, n_X=X, n_y=np.array([3, 4]), n_site=np.array([b"s", b"t"]))
    data = read_sets(path, name="n", group_column="site")
    assert lists(data) == X.tolist()
    assert data.groups is not None
    assert data.groups.tolist() == ["s", "t"]
    with pytest.raises(
        ValueError, match=exactly(f"{path}: name must be one of the data sets m, n, got None")
    ):
        read_sets(path)
    with pytest.raises(ValueError, match=exactly(f"{path}: name must be one of the data sets m, n, got o")):
        read_sets(path, name="o")


def test_labels_by_another_name_and_none(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", X=X, y=[1, 2], grade=[3, 4])
    labels = read_sets(path, label_column="grade").labels
    assert labels is not None
    assert labels.tolist() == [3, 4]
    assert read_sets(saved(path, X=X), labels=False).labels is None
    assert read_sets(saved(path, X=X, y=[1, np.nan]), labels=False).labels is None


FORMS = "expected X [sets, elements, features], X [elements, features] and bag, or values and ptr"
ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, f"{FORMS}, got no arrays"),
    "flat": ({"X": X[0], "y": [1, 2]}, f"{FORMS}, got X, y"),
    "no labels": ({"X": X}, "expected an array 'y' with one value per set, got only X"),
    "few labels": ({"X": X, "y": [1]}, "expected y [2] with one number or string per set, got int64 [1]"),
    "deep labels": (
        {"X": X, "y": X},
        "expected y [2] with one number or string per set, got float32 [2, 3, 2]",
    ),
    "nan label": ({"X": X, "y": [1, np.nan]}, "expected y to be finite, got nan"),
    "nan": (
        {"X": np.where(X == 7, np.nan, X), "y": [1, 2]},
        "set 1 must hold finite numbers, got nan (element 0",
    ),
    "text": ({"X": X.astype(str), "y": [1, 2]}, "X must be an array of numbers, got <U"),
    "empty set": ({"X": X, "mask": [[1, 1, 1], [0, 0, 0]], "y": [1, 2]}, "set 1 of 2 is empty"),
    "odd mask": (
        {"X": X, "mask": np.full((2, 3), 2), "y": [1, 2]},
        "mask must be bool [2, 3], got int64 [2, 3]",
    ),
    "short mask": ({"X": X, "mask": [[1]], "y": [1, 2]}, "mask must be bool [2, 3], got bool [1, 1]"),
    "ptr": ({"values": X[0], "ptr": [0, 4], "y": [1]}, "ptr must rise from 0 to 3, "),
    "bags": (
        {"X": X[0], "bag": [0.5, 1, 1], "y": [1]},
        "expected X [elements, features] and bag [elements] of integers or strings, "
        "got [3, 2] and float64 [3]",
    ),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_what_is_wrong_with_arrays(tmp_path: Path, what: str) -> None:
    arrays, sentence = ARRAYS[what]
    path = saved(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=exactly(f"{path}: {sentence}")[:-1]):
        read_sets(path)


def test_groups_that_are_not_there(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", X=X, y=[1, 2])
    sentence = f"{path}: expected an array 'site' with one value per set, got only X, y"
    with pytest.raises(ValueError, match=exactly(sentence)):
        read_sets(path, group_column="site")


class Opens:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("executed",)


def test_nothing_in_a_file_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.npz", X=np.array([Opens()], dtype=object), y=[1])
    with pytest.raises(
        ValueError, match=r"expected a readable \.npz file, got an error: ValueError: Object arrays"
    ):
        read_sets(path)
    assert capsys.readouterr().out == ""


def test_an_array_that_claims_to_be_huge(tmp_path: Path) -> None:
    small = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        small, {"descr": "<f8", "fortran_order": False, "shape": (2**20, 2**20, 8)}
    )
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("X.npy", small.getvalue())
    with pytest.raises(ValueError, match=r"expected a readable \.npz file, got an error: "):
        read_sets(path)


@given(st.data())
def test_damaged_arrays(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, X=X, y=[1, 2])
    _damage(tmp_path_factory, data, "a.npz", buffer.getvalue())


@given(st.data())
def test_damaged_tables(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["a.csv", "a.csv.gz"]))
    text = TABLE.replace(" ", "").encode()
    _damage(tmp_path_factory, data, kind, gzip.compress(text) if kind.endswith(".gz") else text)


def _damage(factory: pytest.TempPathFactory, data: st.DataObject, name: str, good: bytes) -> None:
    """Damaged bytes are read all the same, or refused in one sentence with the name of the file."""
    bad = bytearray(good)
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(bad) - 1), st.integers(0, 255)), max_size=4)
    ):
        bad[place] = byte
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(bad)), st.integers(0, len(bad)))))
    if data.draw(st.booleans()):
        del bad[start:end]
    path = factory.mktemp("damaged") / name
    path.write_bytes(bad)
    try:
        found = read_sets(path)
    except ValueError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert np.isfinite(found.sets.values).all()
        assert len(found.sets) == len(found.ids)


# Folders


def test_a_folder_with_a_manifest(tmp_path: Path) -> None:
    write(tmp_path / "one.npy", numbered(1))
    write(tmp_path / "two.h5", numbered(2, 2))
    write(tmp_path / "more" / "three.npz", numbered(3))
    write(tmp_path / "loose.pt", numbered(4))
    manifest = tmp_path / "manifest.csv"
    manifest.write_text("set,label,site\ntwo,1.5,x\none.npy,2,y\nmore/three,1.5,x\n")
    data = read_sets(tmp_path, group_column="site")
    assert data.ids == ("two", "one.npy", "more/three")
    assert lists(data) == [numbered(2, 2).tolist(), numbered(1).tolist(), numbered(3).tolist()]
    assert data.labels is not None
    assert data.groups is not None
    assert (data.labels.tolist(), data.groups.tolist()) == ([1.5, 2.0, 1.5], ["x", "y", "x"])
    assert data.left_out == {"loose.pt": f"{tmp_path / 'loose.pt'}: expected a label in {manifest}, got none"}

    everything = read_sets(tmp_path, labels=False)
    assert everything.ids == ("loose.pt", "more/three.npz", "one.npy", "two.h5")
    assert (everything.labels, everything.left_out) == (None, {})
    (tmp_path / "loose.pt").unlink()
    labels = read_sets(tmp_path, labels=False).labels
    assert labels is not None
    assert labels.tolist() == [1.5, 2.0, 1.5]
    manifest.write_text("set,site\ntwo,x\n")
    assert read_sets(tmp_path, labels=False).ids == ("more/three.npz", "one.npy", "two.h5")
    with pytest.raises(ValueError, match=f"{manifest}: expected columns set, label, got set, site"):
        read_sets(tmp_path)
    manifest.write_text("set,label\nthere is none,x\n")
    with pytest.raises(ValueError, match="there is none: expected a file of this name"):
        read_sets(tmp_path)
    manifest.write_text("set,label\none,\n")
    with pytest.raises(
        ValueError, match=exactly(f"{tmp_path}: expected at least one set with a label, got none")
    ):
        read_sets(tmp_path)


def test_sub_folders_called_like_labels(tmp_path: Path) -> None:
    write(tmp_path / "ill" / "a.npy", numbered(1))
    write(tmp_path / "well" / "a.npz", numbered(2))
    write(tmp_path / ".hidden" / "a.npz", numbered(2))
    write(tmp_path / "well" / ".b.npz", numbered(2))
    (tmp_path / "well" / "c.csv").write_text("f,g,h\n1,2,3\n4,5,6\n")
    (tmp_path / "well" / "notes.txt").write_text("nothing")
    for required in (True, False):
        data = read_sets(tmp_path, labels=required)
        assert data.ids == ("ill/a.npy", "well/a.npz", "well/c.csv")
        assert lists(data) == [numbered(1).tolist(), numbered(2).tolist(), [[1, 2, 3], [4, 5, 6]]]
        assert data.columns is None
        assert data.labels is not None
        assert data.labels.tolist() == ["ill", "well", "well"]
    write(tmp_path / "d.npy", numbered(3))
    data = read_sets(tmp_path)
    assert data.ids == ("ill/a.npy", "well/a.npz", "well/c.csv")
    sentence = f"{tmp_path / 'd.npy'}: expected a sub-folder named after its label, got none"
    assert data.left_out == {"d.npy": sentence}
    data = read_sets(tmp_path, labels=False)
    assert (data.ids[0], data.labels) == ("d.npy", None)


def test_a_folder_of_tables(tmp_path: Path) -> None:
    for name, text in (("0/a", "g,f\n1,2\n"), ("1/b", "g,f\n3,4\n5,6\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.csv").write_text(text)
    data = read_sets(tmp_path)
    assert data.columns == ("g", "f")
    assert lists(data) == [[[1, 2]], [[3, 4], [5, 6]]]
    assert data.labels is not None
    assert (data.labels.dtype.kind, data.labels.tolist()) == ("i", [0, 1])
    assert lists(read_sets(tmp_path, features=["f"])) == [[[2]], [[4], [6]]]
    path = tmp_path / "1" / "b.csv"
    for text, sentence in (
        ("f,g\n1,2\n", ": expected columns g, f, got f, g"),
        ("g,f\n1,x\n", ", row 1, column 'f': expected a finite number, got 'x'"),
        ("g,f\n", ": expected a header and at least one row of numbers, got no header or no rows"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=exactly(f"{path}{sentence}")[:-1]):
            read_sets(tmp_path)
    path.unlink()
    (tmp_path / "0" / "a.csv").write_text("1,2\n3,4\n")  # a header is missing, and a row would be
    with pytest.raises(ValueError, match="expected a header and at least one row"):
        read_sets(tmp_path)


def test_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path}: expected files .h5, .*, one per set, got none"):
        read_sets(tmp_path)
    write(tmp_path / "a.npy", numbered(1))
    with pytest.raises(ValueError, match=f"{tmp_path}: expected a manifest.csv with labels, or files in"):
        read_sets(tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path}: expected a manifest.csv with a column '.*' of groups"):
        read_sets(tmp_path, group_column="site")
    with pytest.raises(ValueError, match=f"{tmp_path}: expected one label column for a folder, got "):
        read_sets(tmp_path, label_column=["a", "b"])
    (tmp_path / "b.csv").write_text("f,g\n1,2\n")
    with pytest.raises(
        ValueError, match=exactly(f"{tmp_path / 'b.csv'}: expected 3 features per element, got 2")
    ):
        read_sets(tmp_path, labels=False)
    write(tmp_path / "b.npy", numbered(1, d=4))
    with pytest.raises(ValueError, match=f"{tmp_path / 'b.npy'}: expected 3 features per instance, got 4"):
        read_sets(tmp_path, labels=False)
    write(tmp_path / "b.npy", numbered(1, n=0))
    with pytest.raises(ValueError, match=f"{tmp_path / 'b.npy'}: expected at least one instance"):
        read_sets(tmp_path, labels=False)


def test_a_file_of_another_kind_and_none(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_text("")
    expected = "expected a folder or a file .npz, .parquet, .csv, .csv.gz, .tsv, .tsv.gz, got .xlsx"
    with pytest.raises(ValueError, match=exactly(f"{tmp_path / 'a.xlsx'}: {expected}")):
        read_sets(tmp_path / "a.xlsx")
    for name in ("a.csv", "a.npz", "a.parquet"):
        with pytest.raises(FileNotFoundError, match=name):
            read_sets(tmp_path / name)


@pytest.mark.parametrize(("missing", "kind"), [("pandas", "csv"), ("pyarrow", "parquet")])
def test_what_tables_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, kind: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    sentence = f"reading tables needs the {missing} package: pip install 'setwise[tables]'"
    with pytest.raises(ModuleNotFoundError, match=exactly(sentence)):
        read_sets(tmp_path / f"a.{kind}")


def test_labels_that_are_one_number_written_twice_stay_apart(tmp_path: Path) -> None:
    for label in ("007", "7", "8"):
        (tmp_path / label).mkdir()
        np.save(tmp_path / label / "a.npy", np.ones((2, 3)))
    assert read_sets(tmp_path).labels.tolist() == ["007", "7", "8"]
