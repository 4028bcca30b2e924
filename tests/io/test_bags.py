"""Bags of instances: reading them one at a time, telling what is wrong with one, and going to torchmil."""

import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from setwise.io.bags import Bag, Bags, Reader, bags_from_csv, bags_from_folder, bags_from_npz
from setwise.io.bags import folder as files

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
        with pytest.raises(IndexError, match=f"^expected an index into 3 bags, got {i}$"):
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
    with pytest.raises(ValueError, match=exactly("expected a mask over 3 bags, got 2 values")):
        bags.subset(kind([True, False]))


def test_wrong_choices(unchecked: None) -> None:
    bags = three()
    assert len(bags.subset([])) == 0
    for wrong in ([3], [0, -4]):
        with pytest.raises(IndexError, match=f"^expected indices into 3 bags, got {wrong[-1]}$"):
            bags.subset(wrong)
    with pytest.raises(ValueError, match=r"^expected a list of indices of bags, got torch.float32 \[1\]$"):
        bags.batch([1.0])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"^expected a list of indices of bags, got torch.int64 \[1, 1\]$"):
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
    "labels": ({"labels": [0]}, "labels must have one value for each of 2 bags, got 1"),
    "names": ({"names": ["a", "b", "c"]}, "names must have one value for each of 2 bags, got 3"),
    "twice": ({"names": ["a", "a"]}, "names must be distinct, got 'a' twice"),
    "coords": ({"coords": [None]}, "coords must have one value for each of 2 bags, got 1"),
    "share": ({"labels": [0, 0.5]}, "labels must be integers or strings, got 0.5"),
    "endless": ({"labels": [0, float("inf")]}, "labels must be integers or strings, got inf"),
    "list": ({"labels": [0, [1]]}, "labels must be integers or strings, got [1]"),
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
        ({"labels": torch.tensor([0])}, "labels must have one value for each of 2 bags, got 1"),
        ({"rows": (0, 1, 1)}, "rows must have one value for each of 2 bags, got 3"),
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
        "expected finite features, got NaN or infinity in 1 of 3",
    ),
    "inf": (
        np.array([[1, np.inf, 3], [-np.inf, 2, 3]]),
        None,
        "expected finite features, got NaN or infinity in 2 of 6",
    ),
    "large": (
        np.array([[1, 1e300, 3]]),
        None,
        "expected finite features, got NaN or infinity in 1 of 3",
    ),
    "width": (numbered(0, 4, 5), None, "expected 3 features per instance, got 5"),
    "empty": (numbered(0, 0), None, "expected at least one instance and one feature, got [0, 3]"),
    "no features": (numbered(0, 4, 0), None, "expected at least one instance and one feature, got [4, 0]"),
    "flat": (np.ones(3), None, "expected features [instances, features], got [3]"),
    "cube": (np.ones((2, 4, 3)), None, "expected features [instances, features], got [2, 4, 3]"),
    "text": (np.array([["a", "b", "c"]]), None, "expected features to be numbers, got <U1"),
    "complex": (np.ones((4, 3), complex), None, "expected features to be numbers, got complex128"),
    "short coords": (numbered(0), np.zeros((3, 2)), "expected coords [4, 2], got [3, 2]"),
    "coords of three": (numbered(0), np.zeros((4, 3)), "expected coords [4, 2], got [4, 3]"),
    "flat coords": (numbered(0), np.zeros(4), "expected coords [4, 2], got [4]"),
    "nan coords": (numbered(0), np.full((4, 2), np.nan), "expected finite coords, got NaN or infinity"),
    "text coords": (numbered(0), np.full((4, 2), "a"), "expected coords to be numbers, got <U1"),
}


def check_one_invalid(bags: Bags, sentence: str) -> None:
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
    check_one_invalid(bags, f"bag '1' of some: {sentence}")


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_spoils_no_other(tmp_path: Path, what: str) -> None:
    x, coords, sentence = BAD[what]
    for name, features, where in (("a", numbered(7), None), ("b", x, coords), ("c", numbered(9), None)):
        write(tmp_path / f"{name}.npz", features, where)
    bags = bags_from_folder(tmp_path, {"a": 0, "b": 1, "c": 1})
    check_one_invalid(bags, f"{tmp_path / 'b.npz'}: {sentence}")


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
    check_one_invalid(bags, str(caught.value))


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
        ValueError, match=exactly("expected at least one usable bag in bags, got none: the data set is empty")
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
    assert faults["a"] == a + "ValueError: it contains more than tensors: __builtin__ print"
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
        ValueError, match=exactly(f"{tmp_path / '1.npy'}: expected 5 features per instance, got 3")
    ):
        part[0]
    assert part.dim == 5


def test_the_width_is_that_of_most_bags_once_all_have_been_read(reads: Counter[str], tmp_path: Path) -> None:
    for i, d in enumerate((5, 3, 3, 4)):
        write(tmp_path / f"{i}.npy", numbered(i, 4, d))
    bags = bags_from_folder(tmp_path, {str(i): i % 2 for i in range(4)})
    assert bags.dim == 5
    assert bags.check() == {
        str(i): f"{tmp_path / f'{i}.npy'}: expected 3 features per instance, got {d}"
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
    assert bags.check() == {"0": f"{tmp_path / '0.npy'}: expected 3 features per instance, got 5"}
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
    sentence = f"{tmp_path / '0.npz'}: expected a file, but it no longer exists"
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
