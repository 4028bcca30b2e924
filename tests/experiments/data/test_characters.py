"""Reading Omniglot, splitting it, and drawing sets of it as the paper does."""

import io
import itertools
import math
import os
import random
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import setwise as sw
from setwise.experiments.data import omniglot as module
from setwise.experiments.data.characters import (
    Characters,
    CharacterSets,
    Split,
    sample_counts,
    sample_elements,
    split_by_character,
    split_by_image,
    synthetic_characters,
)
from setwise.experiments.data.folders import cache_folder, data_folder
from setwise.experiments.data.omniglot import load_characters, load_omniglot
from setwise.experiments.data.strokes import draw

Files = dict[str, bytes]

BACKGROUND, EVALUATION = "images_background", "images_evaluation"
LABELS = {BACKGROUND: ["Angles/character01", "Bends/character01", "Bends/character02"]}
LABELS |= {EVALUATION: ["Curves_(round)/character01", "Curves_(round)/character02"]}
REAL = Path(os.environ.get("SETWISE_DATA") or "nowhere") / "omniglot"


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def drawing(number: int, *, mode: str = "1", side: int = 105) -> bytes:
    """White paper with a black row that tells the number."""
    image = Image.new(mode, (side, side), 1 if mode == "1" else 255)
    image.paste(0, (3, number, 50, number + 1))
    return png(image)


def omniglot_files() -> dict[str, Files]:
    """Twenty drawings of each of five characters; drawing i of character c has its ink in row 20 c + i."""
    number = itertools.count()
    return {
        part: {
            f"{part}/{label}/{1000 + c:04}_{i + 1:02}.png": drawing(next(number))
            for c, label in enumerate(labels)
            for i in range(20)
        }
        for part, labels in LABELS.items()
    }


def write_zip(path: Path, files: Files) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def write_folder(path: Path, files: Files) -> None:
    for name, data in files.items():
        file = path.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def write(folder: Path, files: dict[str, Files], *layouts: str) -> None:
    for (part, content), layout in zip(files.items(), layouts, strict=True):
        if layout == "zip":
            write_zip(folder / f"{part}.zip", content)
        else:
            write_folder(folder / part, content)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for a small Omniglot of 2 + 1 alphabets with 3 + 2 characters."""
    monkeypatch.setattr(module, "PARTS", {BACKGROUND: (2, 3), EVALUATION: (1, 2)})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "omniglot"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to forbid any more decoding."""

    def refuse(data: bytes) -> None:
        raise AssertionError("a drawing was decoded again")

    return lambda: monkeypatch.setattr(module, "_ink", refuse)


def tree(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(p.relative_to(folder)), p.stat().st_size) for p in folder.rglob("*"))


# Reading


@pytest.mark.parametrize("layouts", [("zip", "zip"), ("folder", "folder"), ("zip", "folder")])
def test_either_layout(folder: Path, layouts: tuple[str, str]) -> None:
    write(folder, omniglot_files(), *layouts)
    before = tree(folder.parent)
    omniglot = load_omniglot()
    assert (omniglot.name, len(omniglot), omniglot.drawings) == ("omniglot", 5, 20)
    assert list(omniglot.labels) == LABELS[BACKGROUND] + LABELS[EVALUATION]
    expected = torch.zeros(100, 105, 105, dtype=torch.uint8)
    for i in range(100):
        expected[i, i, 3:50] = 1  # ink is 1, although the files have it black
    pixels = omniglot.pixels(omniglot.index)
    assert pixels.dtype == torch.uint8
    assert torch.equal(pixels, expected.view(5, 20, 105, 105))
    assert tree(folder.parent) == before  # the data folder is left as it was


def test_the_order_of_the_files_does_not_matter(folder: Path) -> None:
    files = omniglot_files()
    write(folder, files, "zip", "zip")
    forward = load_omniglot()
    write(folder, {part: dict(reversed(content.items())) for part, content in files.items()}, "zip", "zip")
    backward = load_omniglot(folder)
    assert backward.labels == forward.labels
    assert np.array_equal(backward.bits, forward.bits)


def test_grey_images_and_clutter(folder: Path) -> None:
    files = omniglot_files()
    name = f"{BACKGROUND}/Angles/character01/1000_01.png"
    files[BACKGROUND][name] = drawing(0, mode="L")
    clutter = {f"{BACKGROUND}/": b"", f"{BACKGROUND}/.DS_Store": b"x", f"__MACOSX/{BACKGROUND}/._1.png": b"x"}
    write(folder, {BACKGROUND: files[BACKGROUND] | clutter, EVALUATION: files[EVALUATION]}, "zip", "zip")
    assert load_omniglot().pixels(torch.tensor(0)).sum() == 47


@pytest.mark.parametrize("missing", [BACKGROUND, EVALUATION])
def test_a_missing_half(folder: Path, missing: str) -> None:
    write(folder, omniglot_files(), "zip", "zip")
    (folder / f"{missing}.zip").unlink()
    for load in (load_omniglot, load_characters):
        with pytest.raises(
            FileNotFoundError, match=rf"{missing}.zip is missing in .*omniglot: .*setwise download omniglot"
        ):
            load()


def test_without_omniglot_the_stand_in_says_so(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"from https://github\.com/brendenlake"):
        load_omniglot()
    assert load_characters().name == "stand-in: drawn strokes"
    write(folder, omniglot_files(), "zip", "zip")
    assert load_characters().name == "omniglot"


FIRST = f"{BACKGROUND}/Angles/character01/1000_01.png"
DAMAGED: dict[str, tuple[Callable[[Files], Files], str]] = {
    "truncated image": (lambda f: f | {FIRST: f[FIRST][:-20]}, f"{FIRST}: "),
    "cut inside the pixels": (lambda f: f | {FIRST: f[FIRST][:60]}, f"{FIRST}: "),
    "no image": (lambda f: f | {FIRST: b"ink"}, f"{FIRST}: expected a complete PNG"),
    "no bytes": (lambda f: f | {FIRST: b""}, f"{FIRST}: expected a complete PNG"),
    "another format": (lambda f: f | {FIRST: b"GIF89a" + f[FIRST]}, f"{FIRST}: cannot identify"),
    "hole in the pixels": (lambda f: f | {FIRST: f[FIRST][:48] + f[FIRST][60:]}, f"{FIRST}: "),
    "wrong size": (
        lambda f: f | {FIRST: drawing(0, side=28)},
        f"{FIRST}: expected 105 × 105 pixels, got 28 × 28",
    ),
    "huge image": (
        lambda f: f | {FIRST: png(Image.new("1", (9000, 9000)))},
        "105 × 105 pixels, got 9000 × 9000",
    ),
    "huge file": (lambda f: f | {FIRST: bytes(70_000)}, f"{FIRST}: expected at most 65536 bytes, got 70000"),
    "missing drawing": (
        lambda f: {name: data for name, data in f.items() if name != FIRST},
        "Angles/character01: expected drawings 1 to 20, got 19 of them",
    ),
    "missing character": (
        lambda f: {name: data for name, data in f.items() if "Bends/character02" not in name},
        "expected 2 alphabets with 3 characters, got 2 with 2",
    ),
    "missing alphabet": (
        lambda f: {name: data for name, data in f.items() if "Angles" not in name},
        "expected 2 alphabets with 3 characters, got 1 with 2",
    ),
    "21 drawings": (
        lambda f: f | {FIRST.replace("_01", "_21"): f[FIRST]},
        "expected drawings 1 to 20, got 21",
    ),
    "the same drawing twice": (
        lambda f: f | {FIRST.replace("1000_", "2000_"): f[FIRST]},
        "expected one file per drawing, got a second one",
    ),
    "strange name": (
        lambda f: f | {f"{BACKGROUND}/notes.png": f[FIRST]},
        "expected images_background/<alphabet>/character<NN>/<id>_<drawing>.png",
    ),
}


@pytest.mark.parametrize("layout", ["zip", "folder"])
@pytest.mark.parametrize("what", DAMAGED)
def test_damage_is_named(folder: Path, what: str, layout: str) -> None:
    damage, message = DAMAGED[what]
    files = omniglot_files()
    files[BACKGROUND] = damage(files[BACKGROUND])
    write(folder, files, layout, "zip")
    for load in (load_omniglot, load_characters):  # damage is no reason for the stand-in
        with pytest.raises(
            ValueError, match=r"images_background.* is damaged or not part of Omniglot"
        ) as caught:
            load()
        assert message in str(caught.value)
        assert "from https://github.com/brendenlake/omniglot" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not cache_folder().exists()


@pytest.mark.parametrize(
    "name",
    [
        "../../escaped.png",
        f"../{FIRST}",
        f"/{FIRST}",
        f"{BACKGROUND}/../character01/1000_01.png",
        f"{BACKGROUND}/..\\Angles/character01/1000_01.png",
        FIRST.replace(BACKGROUND, EVALUATION),
        FIRST.replace("Angles", "Angles/deeper"),
    ],
)
def test_names_that_lead_elsewhere(folder: Path, name: str) -> None:
    files = omniglot_files()
    files[BACKGROUND][name] = drawing(0)
    write(folder, files, "zip", "zip")
    before = tree(folder.parent)
    with pytest.raises(ValueError, match="expected images_background/<alphabet>"):
        load_omniglot()
    assert tree(folder.parent) == before


@pytest.mark.parametrize("keep", [0, 100, 5000, -1])
def test_damaged_archives(folder: Path, keep: int) -> None:
    write(folder, omniglot_files(), "zip", "zip")
    archive = folder / f"{EVALUATION}.zip"
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"images_evaluation.zip is damaged .*zip"):
        load_omniglot()


def test_a_flipped_bit_in_an_archive(folder: Path) -> None:
    write(folder, omniglot_files(), "zip", "zip")
    archive = folder / f"{BACKGROUND}.zip"
    data = bytearray(archive.read_bytes())
    data[data.index(b"1000_01.png") + 50] ^= 1
    archive.write_bytes(data)
    with pytest.raises(ValueError, match=r"is damaged .*1000_01.png"):
        load_omniglot()


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, omniglot_files(), "zip", "zip")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"requires Pillow: pip install 'setwise\[data\]'"):
        load_omniglot()


# The cache


@pytest.mark.parametrize("layout", ["zip", "folder"])
def test_drawings_are_decoded_once(folder: Path, undecoded: Callable[[], None], layout: str) -> None:
    write(folder, omniglot_files(), layout, layout)
    first = load_omniglot()
    assert [p.name for p in cache_folder().rglob("*") if p.is_file()] == ["omniglot.npz"]
    undecoded()
    second = load_omniglot()
    assert (second.name, second.labels) == (first.name, first.labels)
    assert np.array_equal(second.bits, first.bits)


@pytest.mark.parametrize("layout", ["zip", "folder"])
@pytest.mark.parametrize("change", ["time", "size"])
def test_changed_files_are_decoded_anew(folder: Path, layout: str, change: str) -> None:
    files = omniglot_files()
    write(folder, files, layout, layout)
    before = load_omniglot()
    path = folder / f"{BACKGROUND}.zip" if layout == "zip" else folder / FIRST
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    if change == "time":  # another drawing in as many bytes
        files[BACKGROUND][FIRST] = files[EVALUATION][f"{EVALUATION}/{LABELS[EVALUATION][0]}/1000_01.png"]
        times = times[0], times[1] + 1
    else:
        files[BACKGROUND][FIRST] = drawing(7, mode="L")
    write(folder, files, layout, layout)
    os.utime(path, ns=times)
    after = load_omniglot()
    assert (before.bits != after.bits).any(-1).sum() == 1


@pytest.mark.parametrize("damage", ["empty", "cut short", "flipped bit", "other bytes", "other arrays"])
def test_a_damaged_cache_is_made_again(folder: Path, undecoded: Callable[[], None], damage: str) -> None:
    write(folder, omniglot_files(), "zip", "zip")
    first = load_omniglot()
    cached = cache_folder() / "packed" / "omniglot.npz"
    data = bytearray(cached.read_bytes())
    if damage == "empty":
        data.clear()
    elif damage == "cut short":
        del data[len(data) // 2 :]
    elif damage == "flipped bit":
        data[len(data) // 2] ^= 1
    elif damage == "other bytes":
        data[:] = b"not an array"
    else:
        with np.load(cached) as arrays:
            other = dict(arrays) | {"bits": first.bits[:, :, 1:]}
        buffer = io.BytesIO()
        np.savez(buffer, **other)
        data[:] = buffer.getvalue()
    cached.write_bytes(data)
    assert np.array_equal(load_omniglot().bits, first.bits)
    undecoded()
    assert np.array_equal(load_omniglot().bits, first.bits)


def test_a_cache_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, omniglot_files(), "zip", "zip")
    blocked = folder.parent / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.warns(UserWarning, match="cannot write the cache .*omniglot"):
        assert len(load_omniglot()) == 5


def test_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SETWISE_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == data_folder() == Path.home() / ".cache" / "setwise"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == data_folder() == Path("/elsewhere/setwise")
    monkeypatch.setenv("SETWISE_DATA", "~/data")
    assert data_folder() == Path.home() / "data"
    assert cache_folder() == Path("/elsewhere/setwise")


# Drawings in memory


def numbered(characters: int = 30, drawings: int = 20) -> Characters:
    """Tiny images that spell their own number plus one."""
    number = 1 + torch.arange(characters * drawings).view(characters, drawings, 1)
    pixels = (number >> torch.arange(16)) & 1
    return Characters.from_pixels("numbered", pixels.view(characters, drawings, 4, 4).to(torch.uint8))


def numbers(images: Tensor) -> Tensor:
    """The numbers that such images spell; -1 for blank paper."""
    return (images.flatten(-3).long() << torch.arange(16)).sum(-1) - 1


def distinct(values: Tensor) -> set[int]:
    return set(values.flatten().tolist())


def test_packing_loses_nothing() -> None:
    pixels = torch.randint(2, (3, 4, 7, 7), dtype=torch.uint8)
    packed = Characters.from_pixels("noise", pixels)
    assert torch.equal(packed.pixels(packed.index), pixels)
    blank, fifth = packed.pixels(torch.tensor([-1, 5]))
    assert not blank.any()
    assert torch.equal(fifth, pixels[1, 1])


def test_wrong_bits(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"bits must be uint8 \[2, 20, 1379\], got uint8 \[2, 20, 1378\]"):
        Characters("wrong", np.zeros((2, 20, 1378), dtype=np.uint8), ("a", "b"))
    with pytest.raises(ValueError, match="got int64"):
        Characters("wrong", np.zeros((2, 20, 1379), dtype=np.int64), ("a", "b"))


# Splits


def parts(split: Split) -> list[set[int]]:
    return [distinct(part) for part in (split.train, split.validation, split.test)]


def test_split_by_image() -> None:
    script = numbered(100)
    split = split_by_image(script)
    train, validation, test = parts(split)
    assert (len(train), len(validation), len(test)) == (900, 100, 1000)
    assert train | validation | test == set(range(2000))  # so they are disjoint
    for part in (split.train, split.validation, split.test):
        assert part.shape[1] == 10
        assert (part // 20 == part[:, :1] // 20).all()  # a row is a character
    assert split.test[:, 0].div(20, rounding_mode="floor").tolist() == list(range(100))
    half, _, same = parts(split_by_image(script, validation=0.0))
    assert half == train | validation
    assert same == test


def test_split_by_character() -> None:
    script = numbered(100)
    split = split_by_character(script)
    assert [list(part.shape) for part in (split.train, split.validation, split.test)] == [
        [60, 20],
        [10, 20],
        [30, 20],
    ]
    train, validation, test = parts(split)
    assert train | validation | test == set(range(2000))
    ours = [{i // 20 for i in part} for part in (train, validation, test)]
    assert sum(map(len, ours)) == len(set.union(*ours)) == 100
    assert parts(split_by_character(script, validation=0.0))[2] == test


@pytest.mark.parametrize("split", [split_by_image, split_by_character])
def test_splits_are_fixed_by_their_seed(split: Callable[..., Split]) -> None:
    script = numbered()
    assert parts(split(script, seed=1)) == parts(split(script, seed=1))
    assert parts(split(script, seed=1)) != parts(split(script, seed=2))
    for validation in (-0.1, 1.0):
        with pytest.raises(ValueError, match="must sum to less than 1, got validation = "):
            split(script, validation=validation)


def test_every_drawing_is_as_likely_to_be_tested() -> None:
    script = numbered()
    tested = Counter(i for seed in range(300) for i in parts(split_by_image(script, seed=seed))[2])
    assert set(tested) == set(range(600))
    assert 100 < min(tested.values()) <= max(tested.values()) < 200  # 150 ± 8.7


# The distribution of sets

Element = tuple[int, int]


def plain_set(source: random.Random, characters: int, drawings: int) -> list[Element]:
    """The appendix's words, one after the other."""
    n = source.randint(6, 10)
    c = source.randint(1, n)
    chosen = source.sample(range(characters), c)
    who = chosen + [source.choice(chosen) for _ in range(n - c)]
    elements = [(i, j) for i in chosen for j in source.sample(range(drawings), who.count(i))]
    source.shuffle(elements)
    return elements


def from_batch(sets: CharacterSets, seed: int) -> Iterable[list[Element]]:
    batch, y = sets.batch(500, torch.Generator().manual_seed(seed))
    return elements_of(sets, [numbers(x) for x in batch.to_list()], y)


def from_pools(sets: CharacterSets, seed: int) -> Iterable[list[Element]]:
    """One set a pool: the others in the pool depend on it."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(200):
        batch, y = sets.pool_batch(1, generator, characters=11, drawings=10)
        yield from elements_of(sets, [numbers(x) for x in batch.to_list()], y)


def from_one_pool(sets: CharacterSets, seed: int) -> Iterable[list[Element]]:
    batch, y = sets.pool_batch(500, torch.Generator().manual_seed(seed), characters=11, drawings=10)
    return elements_of(sets, [numbers(x) for x in batch.to_list()], y)


def elements_of(sets: CharacterSets, found: Iterable[Tensor], y: Tensor) -> Iterable[list[Element]]:
    """Which row and column of the part each image was, with what must hold for every set checked."""
    places = {number: divmod(i, sets.part.shape[1]) for i, number in enumerate(sets.part.flatten().tolist())}
    for one, count in zip(found, y.tolist(), strict=True):
        elements = [places[number] for number in one.tolist()]
        assert len(set(elements)) == len(elements)  # no drawing twice
        assert len({i for i, _ in elements}) == count
        assert 6 <= len(elements) <= 10
        yield elements


def multiplicities(elements: list[Element]) -> Hashable:
    return tuple(sorted(Counter(i for i, _ in elements).values()))


def pattern(elements: list[Element]) -> Hashable:
    """Which of the first four elements and the last are of one character."""
    first = [i for i, _ in [*elements[:4], elements[-1]]]
    return len(elements), tuple(first.index(i) for i in first)


def first_element(elements: list[Element]) -> Hashable:
    return elements[0]


def first_and_last_character(elements: list[Element]) -> Hashable:
    return elements[0][0], elements[-1][0]


def last_columns(elements: list[Element]) -> Hashable:
    """The columns of two elements, and whether their characters are one."""
    (i, a), (j, b) = elements[-2:]
    return i == j, a, b


STATISTICS = [multiplicities, pattern, first_element, first_and_last_character, last_columns]


def assert_alike(a: Counter[Hashable], b: Counter[Hashable]) -> None:
    """Two-sample chi-square: within five standard deviations of its mean."""
    total_a, total_b = a.total(), b.total()
    rare = [key for key in a | b if a[key] + b[key] < 20]
    cells = [(a[key], b[key]) for key in a | b if key not in set(rare)]
    cells.append((sum(a[key] for key in rare), sum(b[key] for key in rare)))
    k = math.sqrt(total_b / total_a)
    statistic = sum((k * i - j / k) ** 2 / (i + j) for i, j in cells if i + j)
    freedom = len(cells) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("draw_sets", [from_batch, from_pools])
def test_sets_follow_the_appendix(
    draw_sets: Callable[[CharacterSets, int], Iterable[list[Element]]], unchecked: None
) -> None:
    sets = CharacterSets(numbered(13), numbered(13).index[:, 4:16])
    ours = [elements for seed in range(20) for elements in draw_sets(sets, seed)]
    source = random.Random(0)
    plain = [plain_set(source, *sets.part.shape) for _ in range(30_000)]
    for statistic in STATISTICS:
        assert_alike(Counter(map(statistic, ours)), Counter(map(statistic, plain)))


def test_sets_of_one_pool_are_each_right_but_share_their_characters() -> None:
    sets = CharacterSets(numbered(30), split_by_character(numbered(30)).train)
    ours = [list(from_one_pool(sets, seed)) for seed in range(20)]
    source = random.Random(1)
    plain = [plain_set(source, *sets.part.shape) for _ in range(30_000)]
    for statistic in (multiplicities, pattern):
        assert_alike(Counter(map(statistic, itertools.chain(*ours))), Counter(map(statistic, plain)))
    for pool in ours:
        assert len({i for elements in pool for i, _ in elements}) == 11


def test_the_chi_square_notices_other_distributions() -> None:
    source = random.Random(2)
    plain = Counter(multiplicities(plain_set(source, 20, 10)) for _ in range(10_000))
    alike = Counter(multiplicities(plain_set(source, 20, 10)) for _ in range(10_000))
    assert_alike(plain, alike)
    # Conditioned on at most eight drawings of a character, as a pool of eight would have it.
    fewer: Counter[Hashable] = Counter(
        {key: count for key, count in alike.items() if isinstance(key, tuple) and max(key) <= 8}
    )
    with pytest.raises(AssertionError):
        assert_alike(plain, fewer)


def test_counts_against_exact_probabilities() -> None:
    counts = sample_counts(60_000, torch.Generator().manual_seed(0))
    n, c = counts.sum(1), (counts > 0).sum(1)
    assert ((counts > 0) == (torch.arange(10) < c.unsqueeze(1))).all()  # the first c, each at least once
    for size in range(6, 11):
        for kinds in range(1, size + 1):
            p = 1 / 5 / size
            share = ((n == size) & (c == kinds)).double().mean().item()
            assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / len(n))
    three = counts[(n == 8) & (c == 3), :3].double() - 1  # Multinomial(5; 1/3, 1/3, 1/3)
    assert torch.allclose(three.mean(0), torch.full((3,), 5 / 3, dtype=torch.double), atol=0.15)
    expected = 5 / 3 * torch.eye(3).double() - 5 / 9
    assert torch.allclose(three.T.cov(), expected, atol=0.2)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 4), (7, 7)])
def test_other_sizes(sizes: tuple[int, int]) -> None:
    index, mask, y = sample_elements(
        200, torch.Generator().manual_seed(0), characters=7, drawings=7, sizes=sizes
    )
    assert index.shape == mask.shape == (200, sizes[1])
    assert set(mask.sum(1).tolist()) == set(range(sizes[0], sizes[1] + 1))
    assert (index[~mask] == 0).all()
    for i, m, count in zip(index, mask, y, strict=True):
        assert len(distinct(i[m])) == m.sum()
        assert len(distinct(i[m] // 7)) == count


# Batches


def test_batch_shapes_and_padding() -> None:
    script = synthetic_characters(20)
    batch, y = CharacterSets(script, split_by_image(script).train).batch(32, torch.Generator().manual_seed(0))
    assert batch.x.shape == (32, 10, 1, 105, 105)
    assert batch.x.dtype == torch.bool
    assert batch.mask is not None
    assert (batch.x[~batch.mask] == 0).all()
    assert (batch.x[batch.mask].flatten(1).sum(1) > 0).all()
    assert y.shape == (32,)
    assert y.dtype == torch.int64


def test_batches_come_from_their_part_only() -> None:
    script = numbered(100)
    split = split_by_image(script)
    for part in (split.train, split.validation, split.test):
        batch, _ = CharacterSets(script, part).batch(300, torch.Generator().manual_seed(0))
        seen = distinct(numbers(batch.to_ptr()[0]))
        assert seen <= distinct(part)
        assert len(seen) > 0.8 * part.numel()


def test_the_generator_decides_everything() -> None:
    sets = CharacterSets(numbered(), split_by_image(numbered(), validation=0.0).train)

    def drawn(seed: int) -> list[Tensor]:
        torch.manual_seed(seed + random.randrange(1000))  # the global state must not matter
        generator = torch.Generator().manual_seed(seed)
        batch, y = sets.batch(8, generator)
        pool, count = sets.pool_batch(8, generator)
        assert isinstance(pool.x, sw.Shared)
        return [batch.x, batch.mask, y, pool.x.values, pool.x.index, pool.mask, count]

    assert all(map(torch.equal, drawn(0), drawn(0)))
    assert not any(torch.equal(a, b) for a, b in zip(drawn(0), drawn(1), strict=True))


def test_pool_batches_are_made_of_their_pool() -> None:
    sets = CharacterSets(numbered(100), split_by_image(numbered(100)).train)
    batch, y = sets.pool_batch(256, torch.Generator().manual_seed(0))
    assert isinstance(batch.x, sw.Shared)
    assert batch.x.shape == (256, 10, 1, 4, 4)
    assert batch.x.values.shape == (260, 1, 4, 4)
    table = numbers(batch.x.values).view(26, 10)
    assert len(distinct(table)) == 260
    assert distinct(table) <= distinct(sets.part)
    assert (table // 20 == table[:, :1] // 20).all()  # ten drawings of each of 26 characters
    for x, count in zip(batch.to_list(), y, strict=True):
        assert len(distinct(numbers(x) // 20)) == count
        assert len(distinct(numbers(x))) == len(x)


def test_too_few_characters_or_drawings() -> None:
    script, random_state = numbered(9), torch.Generator()
    with pytest.raises(ValueError, match="need at least 10 characters of 10 drawings, got 9 of 20"):
        CharacterSets(script, script.index).batch(1, random_state)
    script = numbered(30)
    with pytest.raises(ValueError, match="need at least 10 characters of 10 drawings, got 30 of 8"):
        CharacterSets(script, script.index[:, :8]).batch(1, random_state)
    with pytest.raises(ValueError, match="26 characters with 10 drawings each, got only 25 with 20"):
        CharacterSets(script, script.index[:25]).pool_batch(1, random_state)
    with pytest.raises(ValueError, match="sets >= 1"):
        CharacterSets(script, script.index).batch(0, random_state)
    with pytest.raises(ValueError, match=r"smallest <= largest size, got 1 sets of \(4, 3\)"):
        CharacterSets(script, script.index, sizes=(4, 3)).batch(1, random_state)


# The stand-in


def test_the_stand_in_can_be_told_apart() -> None:
    pixels = draw(100, 20)
    ink = pixels.double().mean((-1, -2))
    assert 0.01 < ink.min() <= ink.max() < 0.25
    assert len({image.numpy().tobytes() for image in pixels.flatten(0, 1)}) == 2000  # no two drawings alike
    blurred = torch.nn.functional.avg_pool2d(pixels.view(2000, 1, 105, 105).float(), 9, stride=4).flatten(1)
    features = torch.nn.functional.normalize(blurred - blurred.mean(1, keepdim=True)).view(100, 20, -1)
    known, new = features[:, :10].flatten(0, 1), features[:, 10:].flatten(0, 1)
    nearest = (new @ known.T).argmax(1) // 10
    assert (nearest == torch.arange(1000) // 10).double().mean() > 0.8  # chance: 0.01


def test_the_stand_in_is_fixed_by_its_seed() -> None:
    assert np.array_equal(synthetic_characters(3, 2).bits, synthetic_characters(3, 2).bits)
    assert not np.array_equal(synthetic_characters(3, 2).bits, synthetic_characters(3, 2, seed=1).bits)


# The real thing


@pytest.mark.realdata
@pytest.mark.skipif(not REAL.exists(), reason="SETWISE_DATA has no omniglot")
def test_omniglot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    omniglot = load_characters()
    assert (omniglot.name, omniglot.bits.shape) == ("omniglot", (1623, 20, 1379))
    assert len({label.split("/")[0] for label in omniglot.labels}) == 50
    monkeypatch.setattr(module, "_decode", None)  # the second time, the cache is all it needs
    assert np.array_equal(load_characters().bits, omniglot.bits)
    ink = omniglot.pixels(omniglot.index[::7]).double().mean((-1, -2))
    assert ink.min() > 0
    assert 0.02 < ink.mean() < 0.1  # a few strokes on much paper
    split = split_by_image(omniglot)
    assert [len(part) for part in (split.train, split.validation, split.test)] == [1461, 162, 1623]
    batch, _ = CharacterSets(omniglot, split.validation).pool_batch(256, torch.Generator().manual_seed(0))
    assert batch.x.shape == (256, 10, 1, 105, 105)
    assert batch.x.values.shape == (260, 1, 105, 105)
