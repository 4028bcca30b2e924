"""Bags from a folder: a file a bag, and a manifest of labels."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from setwise.io.bags import bags_from_folder
from tests.io.test_bags import WITH_COORDS, exactly, numbered, write


@pytest.mark.parametrize("suffix", WITH_COORDS)
def test_features_and_coords_of_a_file(tmp_path: Path, suffix: str) -> None:
    coords = np.arange(8).reshape(4, 2)
    write(tmp_path / f"a{suffix}", numbered(1), coords, more=np.zeros(3))
    write(tmp_path / f"b{suffix}", numbered(2)[None], coords[None])  # as some tools write them
    write(tmp_path / f"c{suffix}", numbered(3).astype(np.float16), coords.astype(np.float64) + 0.5)
    write(tmp_path / f"d{suffix}", numbered(4, 1)[None])  # one instance is no additional axis
    bags = bags_from_folder(tmp_path, dict.fromkeys("abcd", 0))
    assert bags.check() == {}
    for i, offset in enumerate((0, 0, 0.5)):
        assert bags[i].x.tolist() == numbered(i + 1).tolist()
        found = bags[i].coords
        assert found is not None
        assert found.dtype == (torch.float32 if offset else torch.int64)
        assert found.tolist() == (coords + offset).tolist()
    assert bags[3].x.tolist() == numbered(4, 1).tolist()
    assert bags[3].coords is None


@pytest.mark.parametrize("suffix", WITH_COORDS)
def test_a_file_without_features(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a{suffix}", None, np.zeros((4, 2)), feats=np.zeros(3))
    sentence = f"{path}: expected an array 'features', got coords, feats"
    assert bags_from_folder(tmp_path, {"a": 0}).check() == {"a": sentence}


def test_a_file_of_another_kind_of_thing(tmp_path: Path) -> None:
    torch.save([torch.zeros(2, 3)], tmp_path / "a.pt")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_group("features")
    faults = bags_from_folder(tmp_path, {"a": 0, "b": 0}).check()
    assert faults["a"] == f"{tmp_path / 'a.pt'}: expected an array 'features', got no arrays"
    assert faults["b"].startswith(
        f"{tmp_path / 'b.h5'}: expected a readable .h5 file, got an error: TypeError: "
    )


def manifest(folder: Path, text: str) -> Path:
    path = folder / "manifest.csv"
    path.write_text(text)
    return path


def test_names_in_a_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "slides"
    write(folder / "a.1.h5", numbered(0))
    write(folder / "b.pt", numbered(1))
    write(folder / "deep" / "c.npy", numbered(2))
    write(folder / "deep" / "d.npz", numbered(3))
    write(folder / "e.h5", numbered(4))
    write(folder / "e.h5.npy", numbered(5))
    write(folder / "F.H5", numbered(6))
    write(tmp_path / "outside.npy", numbered(7))
    (folder / "notes.txt").write_text("nothing")
    write(folder / ".hidden.npy", numbered(0))
    text = "label,bag,age\nwell,a.1,3\nill,b.pt,4\nwell,deep/c,5\nwell,./deep/../deep/d.npz,6\nill,e.h5,7\n"
    path = manifest(folder, text + "ill,e.h5.npy,\nill,F,8\nill,../outside,9\n")
    for given in (path, str(path)):
        bags = bags_from_folder(str(folder), given)
        assert bags.name == "slides"
        assert bags.names[:4] == ("a.1", "b.pt", "deep/c", "./deep/../deep/d.npz")
        assert bags.names[4:] == ("e.h5", "e.h5.npy", "F", "../outside")
        assert bags.classes == ("ill", "well")
        assert bags.labels.tolist() == [1, 0, 1, 1, 0, 0, 0, 0]
        assert [int(bag.x[0, 0]) for bag in bags] == [0, 100, 200, 300, 400, 500, 600, 700]
        assert bags.check() == {}


def test_other_columns_and_a_mark_at_the_beginning(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", numbered(0))
    path = tmp_path / "list.csv"
    path.write_bytes(b"\xef\xbb\xbfslide_id,case_id,grade\r\na,p1,10\r\n\r\nb,p2,9\r\n")
    bags = bags_from_folder(tmp_path, path, bag="slide_id", label="grade", classes=["10", "9"])
    assert (bags.names, bags.classes, bags.labels.tolist()) == (("a", "b"), ("10", "9"), [0, 1])


def test_files_and_manifest_that_do_not_agree(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy", "c.npy", "d.npy", "two.npy", "two.pt", "sub/e.npy", "other/f.npy"):
        write(tmp_path / name, numbered(1))
    text = "bag,label\na,0\nmissing,1\nc,\nd,0\nd.npy,1\ntwo,1\nsub/gone.h5,1\na.npy,0\n"
    path = manifest(tmp_path, text)
    bags = bags_from_folder(tmp_path, path)
    assert bags.names == ("a", "missing", "two", "sub/gone.h5")  # a is mentioned twice, but alike
    assert bags.labels.tolist() == [0, 1, 1, 1]
    file = "a file of this name, with or without .h5, .hdf5, .npy, .npz, .pt, .pth"
    expected = {
        "missing": f"{tmp_path / 'missing'}: expected {file}, got none",
        "sub/gone.h5": f"{tmp_path / 'sub/gone.h5'}: expected {file}, got none",
        "two": f"{tmp_path / 'two'}: expected one file of this name, got two.npy, two.pt",
        "b.npy": f"{tmp_path / 'b.npy'}: expected a label in {path}, got none",
        "c": f"{tmp_path / 'c.npy'}: expected a label in {path}, got none",
        "d": f"{tmp_path / 'd.npy'}: expected one label in {path}, got '0' and '1'",
        "sub/e.npy": f"{tmp_path / 'sub/e.npy'}: expected a label in {path}, got none",
    }  # nothing in the folder other, which the manifest does not name
    assert bags.check() == expected
    for i in (1, 2, 3):
        with pytest.raises(ValueError, match=exactly(expected[bags.names[i]])):
            bags[i]
    assert bags[0].x.tolist() == numbered(1).tolist()
    assert bags.usable().names == ("a",)


def test_a_mapping_as_manifest(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.npy", numbered(0))
    bags = bags_from_folder(tmp_path, {"b": np.int64(3), "a": None})
    assert (bags.names, bags.classes) == (("b",), ("3",))
    assert bags.check() == {
        name: f"{tmp_path / file}: expected a label in the manifest, got none"
        for name, file in (("a", "a.npy"), ("c.npy", "c.npy"))
    }


def test_a_folder_or_manifest_that_is_not_there(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    sentence = f"expected a folder with one file per bag, got {nowhere}, which is not a folder"
    with pytest.raises(FileNotFoundError, match=exactly(sentence)):
        bags_from_folder(nowhere, {})
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        bags_from_folder(tmp_path, tmp_path / "nowhere.csv")


def test_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "here" / "a.npy", numbered(0))
    write(tmp_path / "here" / "b.npy", numbered(0))
    monkeypatch.chdir(tmp_path / "here")
    bags = bags_from_folder(".", {"a": 0})
    assert (bags.name, bags[0].x.tolist()) == ("here", numbered(0).tolist())
    assert bags.check() == {"b.npy": "b.npy: expected a label in the manifest, got none"}


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.h5", numbered(0))
    write(tmp_path / "b.npy", numbered(1))
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert bags_from_folder(tmp_path, {"b": 0})[0].x.shape == (4, 3)
    sentence = "reading HDF5 files needs h5py: pip install 'setwise[data]'"
    for name in ("a", "a.h5"):
        with pytest.raises(ModuleNotFoundError, match=exactly(sentence)):
            bags_from_folder(tmp_path, {"b": 0, name: 0})
