"""Bags of instances: reading them one at a time, telling what is wrong with one, and going to torchmil."""

import os
import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from setwise.data.bags import (
    MIL_NAMES,
    Bag,
    Bags,
    Reader,
    bags_from_csv,
    bags_from_folder,
    bags_from_npz,
    from_torchmil,
    load_mil,
    to_torchmil,
)
from setwise.data.bags import folder as files
from setwise.sets import SetBatch

REAL = Path(os.environ.get("SETWISE_DATA") or "nowhere") / "mil" / "mil_classic.npz"
SUFFIXES = [".h5", ".hdf5", ".npy", ".npz", ".pt", ".pth"]
WITH_COORDS = [suffix for suffix in SUFFIXES if suffix != ".npy"]


def numbered(number: int, n: int = 4, d: int = 3) -> np.ndarray:
    """Features of bag ``number``, all different and different from those of other bags."""
    return (100 * number + np.arange(n * d).reshape(n, d)).astype(np.float32)


def write(path: Path, features: Any, coords: Any = None, **others: Any) -> Path:
    """One bag in the format that its suffix tells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {"features": features, "coords": coords, **others}
    parts = {name: value for name, value in parts.items() if value is not None}
    if path.suffix.lower() in (".h5", ".hdf5"):
        with h5py.File(path, "w") as file:
            for name, value in parts.items():
                file[name] = value
    elif path.suffix == ".npy":
        np.save(path, features)
    elif path.suffix == ".npz":
        np.savez(path, **parts)
    elif list(parts) == ["features"]:
        torch.save(torch.as_tensor(features), path)
    else:
        torch.save({name: torch.as_tensor(value) for name, value in parts.items()}, path)
    return path


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was read."""
    counts: Counter[str] = Counter()

    def counting(read: Callable[[Path], dict[str, Any]]) -> Callable[[Path], dict[str, Any]]:
        def counted(path: Path) -> dict[str, Any]:
            counts[path.name] += 1
            return read(path)

        return counted

    for suffix, read in files._FORMATS.items():
        monkeypatch.setitem(files._FORMATS, suffix, counting(read))
    return counts


# The data set


def three(**options: Any) -> Bags:
    sets = [numbered(0), numbered(1, 2), numbered(2, 5)]
    return Bags.from_arrays(sets, ["b", "a", "b"], names=["x", "y", "z"], name="three", **options)


def test_bags_from_arrays() -> None:
    coords = [np.array([[i, 2 * i]] * n) for i, n in enumerate((4, 2, 5))]
    bags = three(coords=coords)
    assert (len(bags), bags.name, bags.names, bags.classes, bags.dim) == (
        3,
        "three",
        tuple("xyz"),
        ("a", "b"),
        3,
    )
    assert bags.labels.dtype == torch.int64
    assert bags.labels.tolist() == [1, 0, 1]
    for i, (n, y) in enumerate(((4, 1), (2, 0), (5, 1))):
        bag = bags[i]
        assert isinstance(bag, Bag)
        assert (bag.x.dtype, bag.y, bag.name) == (torch.float32, y, "xyz"[i])
        assert bag.x.tolist() == numbered(i, n).tolist()
        assert bag.coords is not None
        assert bag.coords.tolist() == [[i, 2 * i]] * n
        assert bag.coords.dtype == torch.int64
    assert bags[-1].name == "z"
    assert bags[torch.tensor(1)].name == bags[np.int64(1)].name == "y"
    assert [bag.name for bag in bags] == ["x", "y", "z"]
    assert three()[0].coords is None
    assert bags.check() == {}
    assert bags.usable().names == bags.names
    assert repr(bags) == "Bags(name='three', classes=('a', 'b'))"
    for i in (3, -4):
        with pytest.raises(IndexError, match=f"^expected the number of one of 3 bags, got {i}$"):
            bags[i]


def test_a_bag_is_a_copy() -> None:
    x = torch.ones(2, 2)
    bags = Bags.from_arrays([x, x.numpy()], [0, 1])
    for i in (0, 1):
        bags[i].x.add_(1)
    assert x.eq(1).all()
    assert bags[1].x.eq(1).all()


@pytest.mark.parametrize(
    "x",
    [
        np.array([[1, 2], [3, 4]], ">f4"),
        np.array([[1, 2], [3, 4]], "f2"),
        np.array([[1, 2], [3, 4]], np.uint16),
        np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]),
        np.array([[3.0, 4.0], [1.0, 2.0]])[::-1],
        [[1, 2], [3, 4]],
        torch.tensor([[1, 2], [3, 4]], dtype=torch.bfloat16),
        torch.tensor([[1.0, 3.0], [2.0, 4.0]], dtype=torch.double, requires_grad=True).T,
        torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8),
    ],
)
def test_all_types_of_numbers_come_in_single_precision(x: Any) -> None:
    bag = Bags.from_arrays([x], [0], coords=[x])[0]
    assert (bag.x.dtype, bag.x.requires_grad) == (torch.float32, False)
    assert bag.x.tolist() == [[1, 2], [3, 4]]
    assert bag.coords is not None
    assert bag.coords.tolist() == [[1, 2], [3, 4]]
    torch.set_default_dtype(torch.double)
    try:
        assert Bags.from_arrays([x], [0])[0].x.dtype == torch.double
    finally:
        torch.set_default_dtype(torch.float32)


def test_double_precision_is_kept_where_it_is_the_default() -> None:
    torch.set_default_dtype(torch.double)
    try:
        assert Bags.from_arrays([np.array([[0.1]])], [0])[0].x.item() == 0.1
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "index",
    [
        [2, 0], (2, 0), torch.tensor([2, 0]), np.array([2, 0]), [-1, -3], range(2, -1, -2),
        torch.tensor([2, 0], dtype=torch.int32),
    ],
)  # fmt: skip
def test_subsets_and_batches(index: Any) -> None:
    bags = three(coords=[np.zeros((4, 2)), None, None])
    some = bags.subset(index)
    assert (some.name, some.names, some.classes, some.labels.tolist()) == (
        "three",
        ("z", "x"),
        ("a", "b"),
        [1, 1],
    )
    assert some[0].x.tolist() == numbered(2, 5).tolist()
    assert some[1].coords is not None
    assert some.subset([1])[0].x.tolist() == numbered(0).tolist()  # a part of a part
    batch, y = bags.batch(index)
    assert (batch.sizes.tolist(), y.tolist(), y.dtype) == ([5, 4], [1, 1], torch.int64)
    assert [x.tolist() for x in batch.to_list()] == [numbered(2, 5).tolist(), numbered(0).tolist()]
    assert batch.elements[1, 4].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_a_choice_by_true_and_false(kind: Callable[[list[bool]], Any]) -> None:
    bags = three()
    assert bags.subset(kind([True, False, True])).names == ("x", "z")
    assert bags.batch(kind([False, True, False]))[1].tolist() == [0]
    with pytest.raises(ValueError, match=exactly("expected True or False for each of 3 bags, got 2")):
        bags.subset(kind([True, False]))


def test_wrong_choices(unchecked: None) -> None:
    bags = three()
    assert len(bags.subset([])) == 0
    for wrong in ([3], [0, -4]):
        with pytest.raises(IndexError, match=f"^expected numbers of 3 bags, got {wrong[-1]}$"):
            bags.subset(wrong)
    with pytest.raises(ValueError, match=r"^expected a list of numbers of bags, got torch.float32 \[1\]$"):
        bags.batch([1.0])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"^expected a list of numbers of bags, got torch.int64 \[1, 1\]$"):
        bags.batch(torch.tensor([[1]]))
    with pytest.raises(ValueError, match="expected at least one set"):
        bags.batch([])


CLASSES: dict[str, tuple[Any, tuple[str, ...], list[int]]] = {
    "numbers": ([10, 2, 10], ("2", "10"), [1, 0, 1]),
    "numbers as text": (["10", "2", " 1 "], ("1", "2", "10"), [2, 1, 0]),
    "signs": (np.array([1, -1, -1], np.int8), ("-1", "1"), [1, 0, 0]),
    "floats": (torch.tensor([1.0, -1.0, 0.0]), ("-1", "0", "1"), [2, 0, 1]),
    "tensors": ([torch.tensor(3), np.float32(1), 2], ("1", "2", "3"), [2, 0, 1]),
    "truth": ([True, False, True], ("0", "1"), [1, 0, 1]),
    "names": (np.array(["b", "10", "2"]), ("10", "2", "b"), [2, 0, 1]),
    "one class": ([7, 7, 7], ("7",), [0, 0, 0]),
}


@pytest.mark.parametrize("what", CLASSES)
def test_labels_become_numbers_of_classes_in_order(what: str) -> None:
    labels, classes, numbers = CLASSES[what]
    bags = Bags.from_arrays([numbered(0)] * 3, labels)
    assert (bags.names, bags.name) == (("0", "1", "2"), "bags")
    assert bags.classes == classes
    assert bags.labels.tolist() == numbers


def test_the_order_of_the_classes_can_be_given() -> None:
    bags = Bags.from_arrays([numbered(0)], ["ill"], classes=["well", "ill"])
    assert (bags.classes, bags.labels.tolist()) == (("well", "ill"), [1])
    with pytest.raises(ValueError, match=exactly("bag '0' of bags: expected a label among a, b, got 'ill'")):
        Bags.from_arrays([numbered(0)], ["ill"], classes=("a", "b"))


def test_bags_without_a_label_are_no_part_of_the_data_set() -> None:
    bags = Bags.from_arrays(
        [numbered(i) for i in range(5)], [None, 1, "", float("nan"), 0], coords=[None] * 5
    )
    assert bags.names == ("1", "4")
    assert bags.labels.tolist() == [1, 0]
    assert bags[1].x.tolist() == numbered(4).tolist()
    sentence = "bag '{}' of bags: expected a label, got none"
    assert bags.check() == {name: sentence.format(name) for name in ("0", "2", "3")}
    assert bags.usable().names == ("1", "4")
    assert bags.usable().check() == bags.subset([0]).check() == {}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "labels": ({"labels": [0]}, "labels must be 2, one a bag, got 1"),
    "names": ({"names": ["a", "b", "c"]}, "names must be 2, one a bag, got 3"),
    "twice": ({"names": ["a", "a"]}, "names must be different, got 'a' twice"),
    "coords": ({"coords": [None]}, "coords must be 2, one a bag, got 1"),
    "share": ({"labels": [0, 0.5]}, "labels must be whole numbers or names, got 0.5"),
    "endless": ({"labels": [0, float("inf")]}, "labels must be whole numbers or names, got inf"),
    "list": ({"labels": [0, [1]]}, "labels must be whole numbers or names, got [1]"),
    "dim": ({"dim": 0}, "dim must be at least 1, got 0"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments(what: str) -> None:
    change, sentence = WRONG[what]
    with pytest.raises(ValueError, match=exactly(sentence)):
        Bags.from_arrays(**({"sets": [numbered(0), numbered(1)], "labels": [0, 1]} | change))  # type: ignore[arg-type]


def test_wrong_bags(unchecked: None) -> None:
    reader = Reader(lambda i: (numbered(i), None), ("first", "second"))
    fine = {"names": ("a", "b"), "labels": torch.tensor([0, 1]), "rows": (0, 1)}
    assert len(Bags("fine", classes=("x", "y"), reader=reader, **fine)) == 2  # type: ignore[arg-type]
    for change, sentence in (
        ({"labels": torch.tensor([0])}, "labels must be 2, one a bag, got 1"),
        ({"rows": (0, 1, 1)}, "rows must be 2, one a bag, got 3"),
        ({"labels": torch.tensor([0, 2])}, "labels must lie between 0 and 1, got 0 to 2"),
        ({"labels": torch.tensor([-1, 1])}, "labels must lie between 0 and 1, got -1 to 1"),
    ):
        with pytest.raises(ValueError, match=exactly(sentence)):
            Bags("wrong", classes=("x", "y"), reader=reader, **(fine | change))  # type: ignore[arg-type]


# What can be wrong with a bag

BAD: dict[str, tuple[Any, Any, str]] = {
    "nan": (
        np.array([[1, 2, np.nan]]),
        None,
        "expected finite features, got 1 of 3 that are NaN or infinite",
    ),
    "inf": (
        np.array([[1, np.inf, 3], [-np.inf, 2, 3]]),
        None,
        "expected finite features, got 2 of 6 that are NaN or infinite",
    ),
    "large": (
        np.array([[1, 1e300, 3]]),
        None,
        "expected finite features, got 1 of 3 that are NaN or infinite",
    ),
    "width": (numbered(0, 4, 5), None, "expected 3 features an instance, got 5"),
    "empty": (numbered(0, 0), None, "expected at least one instance and one feature, got [0, 3]"),
    "no features": (numbered(0, 4, 0), None, "expected at least one instance and one feature, got [4, 0]"),
    "flat": (np.ones(3), None, "expected features [instances, features], got [3]"),
    "cube": (np.ones((2, 4, 3)), None, "expected features [instances, features], got [2, 4, 3]"),
    "text": (np.array([["a", "b", "c"]]), None, "expected features that are numbers, got <U1"),
    "complex": (np.ones((4, 3), complex), None, "expected features that are numbers, got complex128"),
    "short coords": (numbered(0), np.zeros((3, 2)), "expected coords [4, 2], got [3, 2]"),
    "coords of three": (numbered(0), np.zeros((4, 3)), "expected coords [4, 2], got [4, 3]"),
    "flat coords": (numbered(0), np.zeros(4), "expected coords [4, 2], got [4]"),
    "nan coords": (numbered(0), np.full((4, 2), np.nan), "expected finite coords, got NaN or infinite ones"),
    "text coords": (numbered(0), np.full((4, 2), "a"), "expected coords that are numbers, got <U1"),
}


def spoilt(bags: Bags, sentence: str) -> None:
    """The second of three bags is bad, and nothing else is."""
    for part, i in ((bags, 1), (bags.subset([1]), 0)):
        with pytest.raises(ValueError, match=exactly(sentence)):
            part[i]
    with pytest.raises(ValueError, match=exactly(sentence)):
        bags.batch([0, 1])
    assert (len(bags), bags.dim, bags.labels.tolist()) == (3, 3, [0, 1, 1])
    assert bags[0].x.tolist() == numbered(7).tolist()
    assert bags[2].x.tolist() == numbered(9).tolist()
    assert bags.batch([2, 0])[1].tolist() == [1, 0]
    name = bags.names[1]
    assert bags.check() == {name: sentence}
    good = bags.usable()
    assert (good.names, good.labels.tolist()) == ((bags.names[0], bags.names[2]), [0, 1])
    assert good.check() == {}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_bag_in_memory_spoils_no_other(what: str) -> None:
    x, coords, sentence = BAD[what]
    bags = Bags.from_arrays(
        [numbered(7), x, numbered(9)], [0, 1, 1], coords=[None, coords, None], name="some"
    )
    spoilt(bags, f"bag '1' of some: {sentence}")


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_spoils_no_other(tmp_path: Path, what: str) -> None:
    x, coords, sentence = BAD[what]
    for name, features, where in (("a", numbered(7), None), ("b", x, coords), ("c", numbered(9), None)):
        write(tmp_path / f"{name}.npz", features, where)
    bags = bags_from_folder(tmp_path, {"a": 0, "b": 1, "c": 1})
    spoilt(bags, f"{tmp_path / 'b.npz'}: {sentence}")


@pytest.mark.parametrize("cut", [0, 20, 0.5, -5])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_truncated_file_spoils_no_other(tmp_path: Path, suffix: str, cut: float) -> None:
    for i, name in ((7, "a"), (8, "b"), (9, "c")):
        write(tmp_path / f"{name}{suffix}", numbered(i))
    path = tmp_path / f"b{suffix}"
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data)) if 0 < cut < 1 else int(cut)])
    bags = bags_from_folder(tmp_path, {"a": 0, "b": 1, "c": 1})
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(path))}: expected a readable {suffix} file, got an error: [^.]+"
    ) as caught:
        bags[1]
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 200
    spoilt(bags, str(caught.value))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_something_else(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_text("These are no features at all, but a text of some length about something else.")
    bags = bags_from_folder(tmp_path, {"a": 0})
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(path))}: expected a readable {suffix} file, got an"
    ):
        bags[0]
    with pytest.raises(ValueError, match=exactly("expected at least one readable bag, got none among 1")):
        _ = bags.dim
    with pytest.raises(
        ValueError, match=f"^expected at least one usable bag in {tmp_path.name}, got none: {path}"
    ):
        bags.usable()


def test_nothing_is_left_of_nothing() -> None:
    with pytest.raises(
        ValueError, match=exactly("expected at least one usable bag in bags, got none: there is no bag")
    ):
        Bags.from_arrays([], []).usable()


class Danger:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_nothing_is_executed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.save({"features": Danger()}, tmp_path / "a.pt")
    np.save(tmp_path / "b.npy", np.array([Danger()], object), allow_pickle=True)
    np.savez(tmp_path / "c.npz", features=np.array([Danger()], object))
    np.savez(tmp_path / "all.npz", m_X=np.array([Danger()], object), m_bag=[0], m_y=[0])
    faults = bags_from_folder(tmp_path, {"a": 0, "b": 0, "c": 0}).check()
    a = f"{tmp_path / 'a.pt'}: expected a readable .pt file, got an error: "
    assert faults["a"] == a + "ValueError: it is damaged or holds more than tensors"
    refused = "ValueError: Object arrays cannot be loaded when allow_pickle=False"
    for name in ("b.npy", "c.npz"):
        place = f"{tmp_path / name}: expected a readable {name[1:]} file, got an error: "
        assert faults[name[0]] == place + refused
    with pytest.raises(ValueError, match=refused):
        bags_from_npz(tmp_path / "all.npz", "m")
    assert "executed" not in capfd.readouterr().out


# The width of all bags


def test_the_width_is_that_of_the_first_readable_bag(reads: Counter[str], tmp_path: Path) -> None:
    for i, d in enumerate((5, 3, 3)):
        write(tmp_path / f"{i}.npy", numbered(i, 4, d))
    write(tmp_path / "bad.npy", np.full((2, 9), np.nan))
    labels = {"missing": 0, "bad": 0, "0": 0, "1": 1, "2": 1}
    bags = bags_from_folder(tmp_path, labels)
    assert not reads
    assert bags.dim == 5
    assert reads == {"bad.npy": 1, "0.npy": 1}
    part = bags_from_folder(tmp_path, labels).subset([3, 4])  # has the width of the whole
    with pytest.raises(
        ValueError, match=exactly(f"{tmp_path / '1.npy'}: expected 5 features an instance, got 3")
    ):
        part[0]
    assert part.dim == 5


def test_the_width_is_that_of_most_bags_once_all_have_been_read(reads: Counter[str], tmp_path: Path) -> None:
    for i, d in enumerate((5, 3, 3, 4)):
        write(tmp_path / f"{i}.npy", numbered(i, 4, d))
    bags = bags_from_folder(tmp_path, {str(i): i % 2 for i in range(4)})
    assert bags.dim == 5
    assert bags.check() == {
        str(i): f"{tmp_path / f'{i}.npy'}: expected 3 features an instance, got {d}"
        for i, d in ((0, 5), (3, 4))
    }
    assert reads == {"0.npy": 2, "1.npy": 1, "2.npy": 1, "3.npy": 1}  # the first once more, for the width
    assert bags.dim == 3
    assert bags.usable().names == ("1", "2")
    assert Bags.from_arrays([numbered(0, 1, 3), numbered(1, 1, 2)], [0, 1]).usable().dim == 3  # a tie


def test_the_width_can_be_given(reads: Counter[str], tmp_path: Path) -> None:
    for i, d in enumerate((5, 3, 3)):
        write(tmp_path / f"{i}.npy", numbered(i, 4, d))
    bags = bags_from_folder(tmp_path, {"0": 0, "1": 1, "2": 1}, dim=3)
    assert bags.dim == 3
    assert not reads
    assert bags[2].x.shape == (4, 3)
    assert reads == {"2.npy": 1}
    assert bags.check() == {"0": f"{tmp_path / '0.npy'}: expected 3 features an instance, got 5"}
    assert Bags.from_arrays([numbered(0), numbered(1, 2, 4)], [0, 1], dim=4).usable().names == ("1",)


# Laziness


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_the_bag_that_is_asked_for_is_read(reads: Counter[str], tmp_path: Path, suffix: str) -> None:
    for i in range(4):
        write(tmp_path / f"{i}{suffix}", numbered(i))
    bags = bags_from_folder(tmp_path, {str(i): i % 2 for i in range(4)})
    assert (len(bags), bags.labels.tolist(), bags.classes) == (4, [0, 1, 0, 1], ("0", "1"))
    part = bags.subset([2, 3])
    assert not reads
    assert part[0].x.tolist() == numbered(2).tolist()
    assert reads == {f"0{suffix}": 1, f"2{suffix}": 1}  # the first for the width, once
    bags.batch([3, 2])
    assert reads == {f"0{suffix}": 1, f"2{suffix}": 2, f"3{suffix}": 1}


def test_the_others_may_be_gone(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / f"{i}.npz", numbered(i))
    bags = bags_from_folder(tmp_path, {"0": 0, "1": 1, "2": 1})
    for i in (0, 2):
        (tmp_path / f"{i}.npz").unlink()
    assert bags[1].x.tolist() == numbered(1).tolist()
    sentence = f"{tmp_path / '0.npz'}: expected a file, got none: it is no longer there"
    with pytest.raises(ValueError, match=exactly(sentence)):
        bags[0]


def test_a_check_reads_every_bag_once(reads: Counter[str], tmp_path: Path) -> None:
    for name in "abcd":
        write(tmp_path / f"{name}.npy", numbered(0, 0) if name < "c" else numbered(1))
    bags = bags_from_folder(tmp_path, dict.fromkeys("abcd", 0))
    assert list(bags.check()) == ["a", "b"]
    assert reads == {f"{name}.npy": 1 for name in "abcd"}


def test_the_width_stays_when_the_first_bag_goes(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", numbered(0, 4, 3))
    write(tmp_path / "b.npy", numbered(0, 4, 5))
    bags = bags_from_folder(tmp_path, {"a": 0, "b": 1})
    assert bags.dim == 3
    (tmp_path / "a.npy").unlink()
    assert list(bags.check()) == ["a", "b"]
    assert bags.dim == 3


# Copies for workers


def sources(folder: Path) -> Iterator[Bags]:
    sets = [numbered(0), numbered(1, 2), numbered(2, 5)]
    yield Bags.from_arrays(sets, [0, 1, 1])
    yield Bags.from_arrays([torch.from_numpy(x) for x in sets], [0, 1, 1])
    for suffix in SUFFIXES:
        for i, x in enumerate(sets):
            write(folder / suffix / f"{i}{suffix}", x)
        yield bags_from_folder(folder / suffix, {"0": 0, "1": 1, "2": 1})
    bag = np.repeat(np.arange(3), [4, 2, 5])
    np.savez(folder / "all.npz", m_X=np.concatenate(sets), m_bag=bag, m_y=[0, 1, 1])
    yield bags_from_npz(folder / "all.npz", "m")
    rows = [f"{i},{min(i, 1)},{','.join(map(str, row))}" for i, x in enumerate(sets) for row in x.tolist()]
    (folder / "all.csv").write_text("\n".join(["bag,label,f,g,h", *rows]))
    yield bags_from_csv(folder / "all.csv")


def test_all_sources_give_the_same_and_can_be_pickled(tmp_path: Path) -> None:
    seen = 0
    for bags in sources(tmp_path):
        for copy in (
            bags,
            pickle.loads(pickle.dumps(bags)),
            pickle.loads(pickle.dumps(bags.subset([0, 1, 2]))),
        ):
            assert type(copy) is Bags
            assert (copy.names, copy.classes, copy.dim) == (("0", "1", "2"), ("0", "1"), 3)
            assert copy.labels.tolist() == [0, 1, 1]
            batch, y = copy.batch([2, 1])
            assert [x.tolist() for x in batch.to_list()] == [numbered(2, 5).tolist(), numbered(1, 2).tolist()]
            assert y.tolist() == [1, 1]
            assert copy.check() == {}
        seen += 1
    assert seen == 10


def test_a_pickle_is_no_larger_than_the_data(tmp_path: Path) -> None:
    x, bag = np.ones((5000, 10), np.float32), np.repeat(np.arange(500), 10)
    np.savez(tmp_path / "all.npz", m_X=x, m_bag=bag, m_y=bag[::10] % 2)
    assert len(pickle.dumps(bags_from_npz(tmp_path / "all.npz", "m"))) < 2 * x.nbytes


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_reads_batches(tmp_path: Path, workers: int) -> None:
    for i in range(3):
        write(tmp_path / f"{i}.h5", numbered(i, i + 1))
    bags = bags_from_folder(tmp_path, {"0": 0, "1": 1, "2": 1})
    numbers: Any = range(3)
    loader = DataLoader(numbers, batch_size=2, collate_fn=bags.batch, num_workers=workers)
    batches = [(batch.sizes.tolist(), batch.x.sum().item(), y.tolist()) for batch, y in loader]
    sums = [float(numbered(i, i + 1).sum()) for i in range(3)]
    assert batches == [([1, 2], sums[0] + sums[1], [0, 1]), ([3], sums[2], [1])]


# Folders


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
    sentence = f"{path}: expected features in it, got coords, feats"
    assert bags_from_folder(tmp_path, {"a": 0}).check() == {"a": sentence}


def test_a_file_of_another_kind_of_thing(tmp_path: Path) -> None:
    torch.save([torch.zeros(2, 3)], tmp_path / "a.pt")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_group("features")
    faults = bags_from_folder(tmp_path, {"a": 0, "b": 0}).check()
    assert faults["a"] == f"{tmp_path / 'a.pt'}: expected features in it, got something else"
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
    sentence = f"expected a folder with one file a bag, got {nowhere}, which is none"
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


# Tables


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
    spoilt(bags_from_csv(path), sentence)
    assert bags_from_csv(path, coords=("f", "g")).check() == {"b": sentence}


def test_a_number_too_large_for_single_precision(tmp_path: Path) -> None:
    path = table(tmp_path, "bag,label,f", "a,0,1", "b,1,1e300")
    sentence = f"{path}, bag 'b': expected finite features, got 1 of 1 that are NaN or infinite"
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
        "b": f"{path}, line 6: expected a label of bag 'b', got an empty cell",
        "d": f"{path}, line 7: expected a label of bag 'd', got an empty cell",
    }
    assert bags.usable().names == ("c",)


TABLES: dict[str, tuple[list[str], str]] = {
    "short row": (["bag,label,f", "a,0,1", "", "b,1"], ", line 4: expected 3 cells as in the header, got 2"),
    "long row": (["bag,label,f", "a,0,1,5"], ", line 2: expected 3 cells as in the header, got 4"),
    "no bag": (["bag,label,f", "a,0,1", ",0,1"], ", line 3: expected the name of a bag, got an empty cell"),
    "no rows": (["bag,label,f"], ": expected the names of columns and at least one row, got 1 rows"),
    "nothing": ([], ": expected the names of columns and at least one row, got 0 rows"),
    "no column": (["bag,class,f", "a,0,1"], ": expected columns bag, label, got bag, class, f"),
    "no features": (["bag,label", "a,0"], ": expected columns with features, got only bag, label"),
    "twice": (["bag,label,f,f", "a,0,1,2"], ": expected columns of different names, got 'f' twice"),
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
        "9": f"{path}, bag 9 of m: expected finite features, got 2 of 6 that are NaN or infinite",
    }
    assert bags.usable()[0].x[:, 0].tolist() == [4, 12]


FITTING = "m_X [instances, features] and whole numbers m_bag [instances]"
LABELS = "m_y [3], a label for each number in m_bag"
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
    sentence = f"mil_classic.npz is missing: put it into {folder} (set SETWISE_DATA for another data folder)"
    with pytest.raises(FileNotFoundError, match=exactly(sentence)):
        load_mil("fox")
    folder.mkdir()
    np.savez(
        folder / "mil_classic.npz", **{key.replace("m_", "fox_"): value for key, value in classic().items()}
    )
    for bags in (load_mil("fox"), load_mil("fox", folder), load_mil("fox", str(folder))):
        assert (bags.name, len(bags), bags.dim) == ("fox", 3, 2)
    with pytest.raises(FileNotFoundError, match=re.escape(f"put it into {tmp_path} (set")):
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


# torchmil


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
        ({"X": x, "Y": y[:1]}, "Y must be [2], one a bag, got [1]"),
        (
            {"X": x, "Y": y, "mask": torch.full((2, 3), -1)},
            "mask must be 1 for instances and 0 for padding, got [-1]",
        ),
        ({"X": x, "Y": y, "mask": torch.ones(2, 4)}, "mask must be bool [2, 3], got torch.bool [2, 4]"),
    ):
        with pytest.raises(ValueError, match=exactly(sentence)):
            from_torchmil(wrong)
    with pytest.raises(ValueError, match=exactly("y must be [2], one a bag, got [3]")):
        to_torchmil(SetBatch(x), torch.zeros(3))
    for shape in ((2, 4, 2), (2, 3)):
        with pytest.raises(ValueError, match=exactly(f"coords must be [2, 3, 2], got {list(shape)}")):
            to_torchmil(SetBatch(x), y, torch.zeros(shape))
