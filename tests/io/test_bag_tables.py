"""Bags from CSV tables, and the classic data sets from an npz file."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from setwise.experiments.data.mil import MIL_NAMES, load_mil
from setwise.io.bags import bags_from_csv, bags_from_npz
from tests.io.test_bags import check_one_invalid, exactly, numbered

REAL = Path(os.environ.get("SETWISE_DATA") or "nowhere") / "mil" / "mil_classic.npz"


def table(folder: Path, *lines: str) -> Path:
    path = folder / "cells.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "x,label,size,bag,y,round",
        "1,ill,0.5,b,2,7",
        "3,well,1e3,a,4,-8",
        "",
        " 5 , ill ,2, b ,6,9",
    )
    bags = bags_from_csv(str(path), coords=("y", "x"))
    assert (bags.name, bags.names, bags.classes, bags.dim) == ("cells", ("b", "a"), ("ill", "well"), 2)
    assert bags.labels.tolist() == [0, 1]
    assert bags[0].x.tolist() == [[0.5, 7], [2, 9]]
    assert bags[0].coords is not None
    assert bags[0].coords.tolist() == [[2, 1], [6, 5]]
    assert bags[1].x.tolist() == [[1000, -8]]
    plain = bags_from_csv(path, bag="label", label="bag", classes=["a", "b", "c"])
    assert (plain.names, plain.classes, plain.labels.tolist()) == (("ill", "well"), ("a", "b", "c"), [1, 0])
    assert plain[0].x.tolist() == [[1, 0.5, 2, 7], [5, 2, 6, 9]]
    assert plain[0].coords is None


@pytest.mark.parametrize("cell", ["abc", "", "nan", "-inf", "0,5"])
def test_a_cell_that_is_no_number_spoils_its_bag(tmp_path: Path, cell: str) -> None:
    rows = [f"a,0,{','.join(map(str, row))}" for row in numbered(7).tolist()]
    rows += ["b,1,1,2,3", f'b,1,4,"{cell}",6', "b,1,x,y,z"]
    rows += [f"c,1,{','.join(map(str, row))}" for row in numbered(9).tolist()]
    path = table(tmp_path, "bag,label,f,g,h", *rows)
    sentence = f"{path}, line 7: expected a finite number in column 'g' of bag 'b', got {cell!r}"
    check_one_invalid(bags_from_csv(path), sentence)
    assert bags_from_csv(path, coords=("f", "g")).check() == {"b": sentence}


def test_a_number_too_large_for_single_precision(tmp_path: Path) -> None:
    path = table(tmp_path, "bag,label,f", "a,0,1", "b,1,1e300")
    sentence = f"{path}, bag 'b': expected finite features, got NaN or infinity in 1 of 1"
    assert bags_from_csv(path).check() == {"b": sentence}


def test_labels_in_a_table_that_do_not_agree(tmp_path: Path) -> None:
    path = table(
        tmp_path, "bag,label,f", "a,0,1", "b,0,2", "c,1,3", "a,1,4", "b,,5", "d,,6", "c,1,7", "a,2,8"
    )
    bags = bags_from_csv(path)
    assert (bags.names, bags.labels.tolist(), bags.classes) == (("c",), [0], ("1",))
    assert bags[0].x.tolist() == [[3], [7]]
    assert bags.check() == {
        "a": f"{path}, line 5: expected label '0' of bag 'a' as in line 2, got '1'",
        "b": f"{path}, line 6: expected a label for bag 'b', got an empty cell",
        "d": f"{path}, line 7: expected a label for bag 'd', got an empty cell",
    }
    assert bags.usable().names == ("c",)


TABLES: dict[str, tuple[list[str], str]] = {
    "short row": (["bag,label,f", "a,0,1", "", "b,1"], ", line 4: expected 3 cells as in the header, got 2"),
    "long row": (["bag,label,f", "a,0,1,5"], ", line 2: expected 3 cells as in the header, got 4"),
    "no bag": (["bag,label,f", "a,0,1", ",0,1"], ", line 3: expected the name of a bag, got an empty cell"),
    "no rows": (["bag,label,f"], ": expected a header and at least one row, got 1 lines"),
    "nothing": ([], ": expected a header and at least one row, got 0 lines"),
    "no column": (["bag,class,f", "a,0,1"], ": expected columns bag, label, got bag, class, f"),
    "no features": (["bag,label", "a,0"], ": expected at least one feature column, got only bag, label"),
    "twice": (["bag,label,f,f", "a,0,1,2"], ": expected distinct column names, got 'f' twice"),
}


@pytest.mark.parametrize("what", TABLES)
def test_what_concerns_a_whole_table(tmp_path: Path, what: str) -> None:
    lines, sentence = TABLES[what]
    path = table(tmp_path, *lines)
    with pytest.raises(ValueError, match=exactly(f"{path}{sentence}")):
        bags_from_csv(path)


def test_coords_that_a_table_does_not_have(tmp_path: Path) -> None:
    path = table(tmp_path, "bag,label,f,x", "a,0,1,2")
    with pytest.raises(
        ValueError, match=exactly(f"{path}: expected columns bag, label, x, y, got bag, label, f, x")
    ):
        bags_from_csv(path, coords=("x", "y"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"bag,label,f\na,0,\xff\n", "UnicodeDecodeError: "),
        (b'bag,label,f\na,0,"1\n', "Error: unexpected end of data"),
    ],
)
def test_a_table_that_is_none(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "cells.csv"
    path.write_bytes(data)
    start = f"{path}: expected a CSV file in UTF-8, got an error: {reason}"
    with pytest.raises(ValueError, match=f"^{re.escape(start)}"):
        bags_from_csv(path)


# The classic data sets


def classic(**changes: Any) -> dict[str, Any]:
    """Three bags in mixed order: number -2 with label 1, 5 with -1 and 9 with 1."""
    bag = np.array([5, 9, -2, 5, 9, 9, -2], np.int32)
    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    return {"m_X": x, "m_bag": bag, "m_y": np.array([1, -1, 1], np.int8), "other_X": np.zeros(3)} | changes


def test_bags_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", **classic())
    bags = bags_from_npz(str(tmp_path / "all.npz"), "m")
    assert (bags.name, bags.names, bags.classes, bags.dim) == ("m", ("-2", "5", "9"), ("-1", "1"), 2)
    assert bags.labels.tolist() == [1, 0, 1]
    assert [bag.x[:, 0].tolist() for bag in bags] == [[4, 12], [0, 6], [2, 8, 10]]
    np.savez(tmp_path / "all.npz", **classic(m_y=np.array(["b", "a", "b"])))
    assert bags_from_npz(tmp_path / "all.npz", "m").classes == ("a", "b")


def test_a_bad_bag_in_an_npz_file(tmp_path: Path) -> None:
    arrays = classic(m_y=np.array([1.0, np.nan, 0.0]))
    arrays["m_X"][5] = np.inf
    path = tmp_path / "all.npz"
    np.savez(path, **arrays)
    bags = bags_from_npz(path, "m")
    assert (bags.names, bags.classes, bags.labels.tolist()) == (("-2", "9"), ("0", "1"), [1, 0])
    assert bags.check() == {
        "5": f"{path}, bag 5 of m: expected a label, got none",
        "9": f"{path}, bag 9 of m: expected finite features, got NaN or infinity in 2 of 6",
    }
    assert bags.usable()[0].x[:, 0].tolist() == [4, 12]


FITTING = "m_X [instances, features] and integers m_bag [instances]"
LABELS = "m_y [3], one label per bag in m_bag"
ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "flat": ({"m_X": np.ones(7)}, f"{FITTING}, got [7] and int32 [7]"),
    "short": ({"m_bag": np.arange(6)}, f"{FITTING}, got [7, 2] and int64 [6]"),
    "fractions": ({"m_bag": np.ones(7)}, f"{FITTING}, got [7, 2] and float64 [7]"),
    "nothing": (
        {"m_X": np.ones((0, 2)), "m_bag": np.ones(0, int), "m_y": []},
        f"{FITTING}, got [0, 2] and int64 [0]",
    ),
    "labels": ({"m_y": np.ones(4)}, f"{LABELS}, got [4]"),
    "label matrix": ({"m_y": np.ones((3, 1))}, f"{LABELS}, got [3, 1]"),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_arrays_that_do_not_fit(tmp_path: Path, what: str) -> None:
    change, sentence = ARRAYS[what]
    path = tmp_path / "all.npz"
    np.savez(path, **classic(**change))
    with pytest.raises(ValueError, match=exactly(f"{path}: expected {sentence}")):
        bags_from_npz(path, "m")


def test_an_npz_file_that_is_damaged_or_something_else(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, **classic())
    with pytest.raises(
        ValueError, match=exactly(f"{path}: expected arrays n_X, n_bag, n_y, got m_X, m_bag, m_y, other_X")
    ):
        bags_from_npz(path, "n")
    path.write_bytes(path.read_bytes()[:-30])
    sentence = f"{path}: expected a readable .npz file, got an error: BadZipFile: File is not a zip file"
    with pytest.raises(ValueError, match=exactly(sentence)):
        bags_from_npz(path, "m")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz"):
        bags_from_npz(tmp_path / "nowhere.npz", "m")


def test_the_classic_data_sets_are_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path))
    folder = tmp_path / "mil"
    sentence = f"mil_classic.npz is missing: copy it to {folder}, or set SETWISE_DATA to another data folder"
    with pytest.raises(FileNotFoundError, match=exactly(sentence)):
        load_mil("fox")
    folder.mkdir()
    np.savez(
        folder / "mil_classic.npz", **{key.replace("m_", "fox_"): value for key, value in classic().items()}
    )
    for bags in (load_mil("fox"), load_mil("fox", folder), load_mil("fox", str(folder))):
        assert (bags.name, len(bags), bags.dim) == ("fox", 3, 2)
    with pytest.raises(FileNotFoundError, match=re.escape(f"copy it to {tmp_path}, or set")):
        load_mil("fox", tmp_path)
    names = "musk1, musk2, elephant, fox, tiger, ucsb"
    with pytest.raises(ValueError, match=exactly(f"name must be one of {names}, got 'wolf'")):
        load_mil("wolf")
    assert ", ".join(MIL_NAMES) == names


@pytest.mark.realdata
@pytest.mark.skipif(not REAL.exists(), reason="SETWISE_DATA has no mil/mil_classic.npz")
@pytest.mark.parametrize(
    ("name", "bags", "instances", "dim", "positive", "smallest", "largest"),
    [
        ("musk1", 92, 476, 166, 47, 2, 40),
        ("musk2", 102, 6598, 166, 39, 1, 1044),
        ("elephant", 200, 1391, 230, 100, 2, 13),
        ("fox", 200, 1320, 230, 100, 2, 13),
        ("tiger", 200, 1220, 230, 100, 1, 13),
        ("ucsb", 58, 2002, 708, 26, 21, 40),
    ],
)
def test_the_classic_data_sets(
    name: str, bags: int, instances: int, dim: int, positive: int, smallest: int, largest: int
) -> None:
    found = load_mil(name)
    assert (found.name, len(found), found.dim, found.classes) == (name, bags, dim, ("0", "1"))
    assert found.labels.sum() == positive
    assert found.check() == {}
    sizes = [len(found[i].x) for i in range(bags)]
    assert (sum(sizes), min(sizes), max(sizes)) == (instances, smallest, largest)
