"""Point clouds: drawing, splitting and turning them; reading ModelNet40; the solids that stand in for it."""

import math
import os
import shutil
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from setwise.experiments.data import modelnet as module
from setwise.experiments.data import solids as solids_module
from setwise.experiments.data.folders import cache_folder
from setwise.experiments.data.modelnet import load_meshes, load_modelnet, load_point_clouds, upright_axis
from setwise.experiments.data.point_clouds import PointClouds, augment, hold_out, normalize
from setwise.experiments.data.solids import SIDES, sample_surface, solids, triangles

Load = Callable[[], tuple[PointClouds, PointClouds]]

REAL = Path(os.environ.get("SETWISE_DATA") or "nowhere") / "modelnet40"


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chi_square(found: Tensor, expected: Tensor) -> float:
    """Distance of counts from their expectation; about the number of counts where they agree."""
    return float(((found - expected) ** 2 / expected).sum())


# Clouds


def numbered(shapes: int = 6, points: int = 40, classes: int = 3, up: int = 1) -> PointClouds:
    """Point i of shape s is (s, i, 0), in half precision."""
    s, i = torch.meshgrid(torch.arange(shapes), torch.arange(points), indexing="ij")
    x = torch.stack([s, i, torch.zeros_like(s)], -1).half()
    names = tuple(f"class {c}" for c in range(classes))
    return PointClouds("numbered", x, torch.arange(shapes) % classes, names, up)


def test_a_sample_has_different_points_of_the_right_shapes() -> None:
    clouds = numbered()
    index = torch.tensor([4, 0, 4])
    x = clouds.sample(index, 25, random())
    assert x.dtype == torch.float32
    assert clouds.points.dtype == torch.float16
    assert x[..., 0].tolist() == [[4.0] * 25, [0.0] * 25, [4.0] * 25]
    for row in x[..., 1].tolist():
        assert len(set(row)) == 25
        assert set(row) <= set(range(40))
    assert set(x[0, :, 1].tolist()) != set(x[2, :, 1].tolist())  # the same shape, drawn anew
    assert torch.equal(clouds.sample(index, 25, random()), x)
    assert not torch.equal(clouds.sample(index, 25, random(1)), x)


def test_all_points_of_a_sample_are_equally_likely() -> None:
    x = numbered(points=8).sample(torch.zeros(4000, dtype=torch.long), 2, random())
    counts = x[..., 1].long().flatten().bincount(minlength=8).double()
    assert chi_square(counts, torch.full((8,), 1000.0)) < 24
    everything = numbered(points=8).sample(torch.tensor([2]), 8, random())
    assert sorted(everything[0, :, 1].tolist()) == list(range(8))


@pytest.mark.parametrize("n", [0, 41])
def test_too_many_or_no_points(n: int) -> None:
    with pytest.raises(ValueError, match=rf"n must lie between 1 and 40, the points of a shape, got {n}"):
        numbered().sample(torch.tensor([0]), n, random())


def test_a_subset_keeps_everything_else() -> None:
    clouds = numbered(up=0)
    some = clouds.subset(torch.tensor([5, 1]))
    assert (some.name, some.classes, some.up, len(some)) == (clouds.name, clouds.classes, 0, 2)
    assert some.labels.tolist() == [2, 1]
    assert some.points.dtype == torch.float16
    assert torch.equal(some.points[0], clouds.points[5])
    assert torch.equal(some.points[1], clouds.points[1])


def test_there_may_be_no_shapes() -> None:
    assert len(numbered().subset(torch.tensor([], dtype=torch.long))) == 0


WRONG = {
    "flat": ({"points": torch.zeros(2, 3)}, r"points must be \[shapes, points, 3\], got \[2, 3\]"),
    "plane": ({"points": torch.zeros(2, 5, 2)}, r"points must be .* got \[2, 5, 2\]"),
    "no points": ({"points": torch.zeros(2, 0, 3)}, r"points must be .* got \[2, 0, 3\]"),
    "labels": ({"labels": torch.tensor([0])}, r"labels must be \[2\], one per shape, got \[1\]"),
    "label matrix": ({"labels": torch.zeros(2, 1).long()}, r"labels must be \[2\], .* got \[2, 1\]"),
    "high": ({"labels": torch.tensor([0, 2])}, "labels must lie between 0 and 1, got 0 to 2"),
    "low": ({"labels": torch.tensor([-1, 1])}, "labels must lie between 0 and 1, got -1 to 1"),
    "up": ({"up": 3}, "up must be 0, 1 or 2, got 3"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_clouds(what: str, unchecked: None) -> None:
    change, message = WRONG[what]
    fine = {"points": torch.zeros(2, 5, 3), "labels": torch.tensor([0, 1]), "classes": ("a", "b")}
    assert len(PointClouds("fine", **fine)) == 2  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        PointClouds("wrong", **(fine | change))  # type: ignore[arg-type]


# Splits


def uneven() -> PointClouds:
    """Classes of 100, 50 and 10 shapes; the first coordinate is the number of the shape."""
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate((100, 50, 10))])
    points = torch.arange(160.0).half().view(160, 1, 1).repeat(1, 4, 3)
    return PointClouds("uneven", points, labels, ("a", "b", "c"), 0)


def numbers(clouds: PointClouds) -> list[int]:
    return clouds.points[:, 0, 0].long().tolist()


def test_every_class_gives_the_same_share() -> None:
    rest, aside = hold_out(uneven(), 0.2)
    assert rest.labels.bincount().tolist() == [80, 40, 8]
    assert aside.labels.bincount().tolist() == [20, 10, 2]
    assert sorted(numbers(rest) + numbers(aside)) == list(range(160))  # so they are disjoint
    for part in (rest, aside):
        assert torch.equal(part.labels, uneven().labels[numbers(part)])
        assert (part.name, part.up, part.points.dtype) == ("uneven", 0, torch.float16)
    assert hold_out(uneven())[1].labels.bincount().tolist() == [10, 5, 1]


def test_what_is_set_aside_is_random_but_the_same_for_a_seed() -> None:
    first, again, other = (numbers(hold_out(uneven(), 0.5, seed=seed)[1]) for seed in (0, 0, 1))
    assert first == again
    assert 20 < len(set(first) & set(other)) < 60
    assert 10 < sum(n < 50 for n in first) < 40  # of the hundred in the first class
    rest, aside = hold_out(uneven(), 0.0)
    assert (len(rest), len(aside)) == (160, 0)


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_wrong_shares(share: float) -> None:
    with pytest.raises(ValueError, match=f"share must be at least 0 and below 1, got {share}"):
        hold_out(uneven(), share)


# Moving


def test_normalized_clouds_fill_the_unit_ball() -> None:
    x = torch.tensor([[[4.0, 1.0, 0.0], [0.0, 1.0, 0.0], [2.0, 4.0, 0.0]]])
    expected = torch.tensor([[[2.0, -1.0, 0.0], [-2.0, -1.0, 0.0], [0.0, 2.0, 0.0]]]) / math.sqrt(5)
    torch.testing.assert_close(normalize(x), expected)
    clouds = 5 + torch.tensor([1.0, 20.0]).view(2, 1, 1) * torch.randn(2, 100, 3)
    normal = normalize(clouds)
    torch.testing.assert_close(normal.mean(1), torch.zeros(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.norm(dim=-1).amax(1), torch.ones(2))
    torch.testing.assert_close(normal[1:], normalize(clouds[1:]))  # whatever else is in the batch


@pytest.mark.parametrize("n", [1, 4])
def test_points_in_one_place_are_moved_to_the_origin(n: int) -> None:
    assert normalize(torch.full((2, n, 3), 0.5)).eq(0).all()


def maps(clouds: int = 500, **options: object) -> Tensor:
    """What is done to each cloud, as a matrix: the rows are where the axes go."""
    axes = torch.eye(3, dtype=torch.double).repeat(clouds, 1, 1)
    moved = augment(axes, random(), **options)  # type: ignore[arg-type]
    assert moved.dtype == torch.double
    return moved


@pytest.mark.parametrize("up", [0, 1, 2])
def test_clouds_are_turned_about_the_upright_axis(up: int) -> None:
    turned = maps(up=up, stretch=(1.0, 1.0))
    identity = torch.eye(3, dtype=torch.double)
    torch.testing.assert_close(turned @ turned.mT, identity.expand(500, 3, 3), atol=1e-6, rtol=0)
    assert torch.linalg.det(turned).min() > 0.99
    assert torch.equal(turned[:, up], identity[up].expand(500, 3))
    assert torch.equal(turned[:, :, up], identity[up].expand(500, 3))
    ahead, aside = (up + 1) % 3, (up + 2) % 3
    angle = torch.atan2(turned[:, ahead, aside], turned[:, ahead, ahead])
    assert angle.abs().max() <= 0.1 * math.pi + 1e-6
    counts = angle.histc(5, -0.1 * math.pi, 0.1 * math.pi)
    assert chi_square(counts, torch.full((5,), 100.0)) < 20
    wide = maps(up=up, stretch=(1.0, 1.0), angle=math.pi)
    assert wide[:, ahead, ahead].min() < -0.99


def test_clouds_are_stretched_along_each_axis() -> None:
    stretched = maps(angle=0.0)
    factors = stretched.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(stretched, torch.diag_embed(factors))
    for axis in range(3):
        counts = factors[:, axis].histc(5, 0.8, 1.25)
        assert counts.sum() == 500  # none is outside
        assert chi_square(counts, torch.full((5,), 100.0)) < 20
    assert factors.T.corrcoef().fill_diagonal_(0).abs().max() < 0.2
    narrow = maps(angle=0.0, stretch=(2.0, 3.0)).diagonal(dim1=1, dim2=2)
    assert 2 <= narrow.min() < 2.05 < 2.95 < narrow.max() <= 3


def test_clouds_are_turned_first() -> None:
    both = maps()
    square = both.mT @ both  # diagonal if the axes along which it is stretched are not turned
    torch.testing.assert_close(square, torch.diag_embed(square.diagonal(dim1=1, dim2=2)), atol=1e-6, rtol=0)
    assert (both @ both.mT - torch.diag_embed(square.diagonal(dim1=1, dim2=2))).abs().max() > 0.05


def test_a_cloud_is_moved_as_a_whole() -> None:
    x = torch.randn(3, 50, 3)
    moved = augment(x, random(), up=1)
    assert moved.dtype == torch.float32
    linear = torch.linalg.lstsq(x, moved).solution
    torch.testing.assert_close(x @ linear, moved)
    assert torch.equal(augment(x, random(), up=1), moved)
    assert not torch.equal(augment(x, random(1), up=1), moved)


# ModelNet40 from HDF5 files

CLASSES = ["ball", "bottle", "box"]
Arrays = dict[str, np.ndarray]


def cloud_files(up: int = 1, points: int = 16) -> dict[str, Arrays]:
    """Three files with 3 + 2 + 3 shapes, of which the bottles are long along ``up``."""
    rng = np.random.default_rng(0)
    files = {}
    for name, labels in {"train0": [0, 1, 2], "train1": [1, 0], "test0": [2, 1, 0]}.items():
        x = rng.uniform(-1, 1, (len(labels), points, 3)).astype(np.float32)
        for i, label in enumerate(labels):
            x[i] *= (
                np.where(np.arange(3) == up, 1, 0.3) if label == 1 else np.where(np.arange(3) == up, 0.1, 1)
            )
        files[name] = {"data": x, "label": np.array(labels, np.uint8)[:, None]}
    return files


def write_hdf5(folder: Path, files: dict[str, Arrays], prefix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in files.items():
        with h5py.File(folder / f"ply_data_{name}.h5", "w") as file:
            for key, value in arrays.items():
                file.create_dataset(key, data=value, compression="gzip" if value.ndim else None)
    for part in ("train", "test"):
        names = [f"{prefix}ply_data_{name}.h5\n" for name in files if name.startswith(part)]
        (folder / f"{part}_files.txt").write_text("".join(names))
    (folder / "shape_names.txt").write_text("\n".join(CLASSES) + "\n\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for a small ModelNet of 5 + 3 shapes."""
    monkeypatch.setattr(module, "SHAPES", {"train": 5, "test": 3})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "modelnet40"
    folder.mkdir(parents=True)
    return folder


LISTS = ["", "data/modelnet40_ply_hdf5_2048/", "C:\\somewhere\\"]


@pytest.mark.parametrize("prefix", LISTS)
def test_hdf5(folder: Path, prefix: str) -> None:
    files = cloud_files()
    write_hdf5(folder, files, prefix)
    before = sorted(folder.parent.rglob("*"))
    for load in (load_modelnet, load_point_clouds, lambda: load_modelnet(folder)):
        for clouds, names in zip(load(), (["train0", "train1"], ["test0"]), strict=True):
            assert (clouds.name, clouds.classes, clouds.up) == ("modelnet40", tuple(CLASSES), 1)
            assert (clouds.points.dtype, clouds.labels.dtype) == (torch.float16, torch.int64)
            data = np.concatenate([files[name]["data"] for name in names]).astype(np.float16)
            assert np.array_equal(clouds.points.numpy(), data)
            label = np.concatenate([files[name]["label"] for name in names])
            assert clouds.labels.tolist() == label[:, 0].tolist()
    assert sorted(folder.parent.rglob("*")) == before
    assert not cache_folder().exists()


@pytest.mark.parametrize("dtype", [">f4", "f2", "f8"])
def test_other_types_and_flat_labels(folder: Path, dtype: str) -> None:
    files = cloud_files()
    for arrays in files.values():
        arrays["data"] = arrays["data"].astype(dtype)
        arrays["label"] = arrays["label"][:, 0].astype(np.int64)
    write_hdf5(folder, files)
    train, test = load_modelnet()
    assert np.array_equal(train.points[3:].numpy(), files["train1"]["data"].astype(np.float16))
    assert test.labels.tolist() == [2, 1, 0]


def test_the_order_of_the_list_counts(folder: Path) -> None:
    write_hdf5(folder, cloud_files())
    (folder / "train_files.txt").write_text("ply_data_train1.h5\r\n\r\nply_data_train0.h5")
    assert load_modelnet()[0].labels.tolist() == [1, 0, 0, 1, 2]


def test_the_folder_that_an_archive_unpacks_to(folder: Path) -> None:
    write_hdf5(folder / "modelnet40_ply_hdf5_2048", cloud_files())
    assert load_modelnet()[0].name == load_point_clouds()[0].name == "modelnet40"


@pytest.mark.parametrize(
    "missing",
    ["shape_names.txt", "train_files.txt", "test_files.txt", "ply_data_train1.h5", "ply_data_test0.h5"],
)
def test_missing_files(folder: Path, missing: str) -> None:
    write_hdf5(folder, cloud_files())
    (folder / missing).unlink()
    for load in (load_modelnet, load_point_clouds):
        with pytest.raises(
            FileNotFoundError,
            match=rf"^{missing} is missing in .*modelnet40: copy it from https://.* SETWISE_DATA",
        ):
            load()


@pytest.mark.parametrize(
    "left", ["shape_names.txt", "train_files.txt", "test_files.txt", "ply_data_test0.h5"]
)
def test_one_file_of_modelnet_is_no_reason_for_the_stand_in(folder: Path, left: str) -> None:
    write_hdf5(folder, cloud_files())
    for path in folder.iterdir():
        if path.name != left:
            path.unlink()
    with pytest.raises(FileNotFoundError, match="is missing"):
        load_point_clouds()


def test_without_modelnet_the_stand_in_says_so(folder: Path) -> None:
    (folder / "notes.txt").write_text("nothing of ModelNet40's")
    train, test = load_point_clouds()
    assert train.name == test.name == "stand-in: solids"
    assert train.points.shape == (1000, 2048, 3)
    assert test.points.shape == (250, 2048, 3)
    assert torch.equal(train.points, solids().points)
    assert torch.equal(test.points, solids(25, seed=1).points)  # another draw, not the first quarter of it
    with pytest.raises(FileNotFoundError, match=r"shape_names\.txt is missing"):
        load_modelnet()


def changed(name: str, **arrays: np.ndarray) -> Callable[[Path], None]:
    """Write other arrays into a file, or none in place of some that are given as None."""

    def change(folder: Path) -> None:
        files = cloud_files()
        content = files[name] | arrays
        files[name] = {key: value for key, value in content.items() if value is not None}
        write_hdf5(folder, files)

    return change


def text(name: str, content: str | bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def point(value: float) -> np.ndarray:
    x = cloud_files()["train1"]["data"].astype(np.float64)
    x[1, 7, 2] = value
    return x


def cut(share: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "ply_data_train1.h5"
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])

    return change


def group(folder: Path) -> None:
    with h5py.File(folder / "ply_data_train1.h5", "w") as file:
        file.create_group("data")
        file["label"] = np.array([0, 1])


def names_as_points() -> np.ndarray:
    return np.zeros((2, 16, 3), [("x", "f4"), ("y", "f4")])


DAMAGED: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "empty": (cut(0), "ply_data_train1.h5", ""),
    "cut short": (cut(0.5), "ply_data_train1.h5", "truncated file"),
    "no HDF5": (text("ply_data_train1.h5", "points"), "ply_data_train1.h5", ""),
    "no points": (
        changed("train1", data=None),
        "ply_data_train1.h5",
        "datasets data and label, got ['label']",
    ),
    "no labels": (changed("train1", label=None), "ply_data_train1.h5", "data and label, got ['data']"),
    "a group": (group, "ply_data_train1.h5", "to be a data set, got Group"),
    "two dimensions": (
        changed("train1", data=np.zeros((2, 48), "f4")),
        "ply_data_train1.h5",
        "expected data [shapes, points, 3], got [2, 48]",
    ),
    "a number": (
        changed("train1", data=np.float32(1)),
        "ply_data_train1.h5",
        "expected data [shapes, points, 3], got []",
    ),
    "four coordinates": (
        changed("train1", data=np.zeros((2, 16, 4), "f4")),
        "ply_data_train1.h5",
        "[2, 16, 4]",
    ),
    "no shapes": (
        changed("train1", data=np.zeros((0, 16, 3), "f4"), label=np.zeros(0, int)),
        "ply_data_train1.h5",
        "expected data [shapes, points, 3], got [0, 16, 3]",
    ),
    "whole numbers": (
        changed("train1", data=np.zeros((2, 16, 3), int)),
        "ply_data_train1.h5",
        "expected data to be float16 to float64, got int64",
    ),
    "long doubles": (
        changed("train1", data=np.zeros((2, 16, 3), np.longdouble)),
        "ply_data_train1.h5",
        "expected data to be float16 to float64, got float128",
    ),
    "a record": (
        changed("train1", data=names_as_points()),
        "ply_data_train1.h5",
        "expected data to hold numbers, got [('x'",
    ),
    "broken labels": (
        changed("train1", label=np.array([0.5, 1])),
        "ply_data_train1.h5",
        "expected label to be integers, got float64",
    ),
    "words": (
        changed("train1", label=np.array([b"ball", b"box"])),
        "ply_data_train1.h5",
        "expected label to hold numbers, got |S4",
    ),
    "too few labels": (
        changed("train1", label=np.array([0])),
        "ply_data_train1.h5",
        "expected label [2, 1], got [1]",
    ),
    "one-hot labels": (
        changed("train1", label=np.zeros((2, 3), int)),
        "ply_data_train1.h5",
        "expected label [2, 1], got [2, 3]",
    ),
    "high label": (
        changed("train1", label=np.array([0, 3])),
        "ply_data_train1.h5",
        "expected labels from 0 to 2 as in shape_names.txt, got 0 to 3",
    ),
    "low label": (changed("train1", label=np.array([-1, 2])), "ply_data_train1.h5", "got -1 to 2"),
    "enormous label": (
        changed("train1", label=np.array([0, 2**64 - 1], np.uint64)),
        "ply_data_train1.h5",
        "got -1 to 0",
    ),
    "NaN": (
        changed("train1", data=point(math.nan)),
        "ply_data_train1.h5",
        "expected finite points below 65,504",
    ),
    "infinity": (changed("train1", data=point(-math.inf)), "ply_data_train1.h5", "expected finite points"),
    "far away": (
        changed("train1", data=point(1e5)),
        "ply_data_train1.h5",
        "expected finite points below 65,504",
    ),
    "other points": (
        changed("test0", data=np.zeros((3, 17, 3), "f4")),
        "ply_data_test0.h5",
        "expected 16 points per shape as in other files, got 17",
    ),
    "a shape too few": (
        changed("train1", data=np.zeros((1, 16, 3), "f4"), label=np.array([0])),
        "train_files.txt",
        "expected 5 train shapes in its files, got 4",
    ),
    "a shape too many": (
        changed("test0", data=np.zeros((4, 16, 3), "f4"), label=np.array([0, 1, 2, 0])),
        "test_files.txt",
        "expected 3 test shapes in its files, got 4",
    ),
    "a file too few": (
        text("train_files.txt", "ply_data_train0.h5"),
        "train_files.txt",
        "expected 5 train shapes in its files, got 3",
    ),
    "a file twice": (
        text("train_files.txt", "ply_data_train0.h5\nx/ply_data_train0.h5"),
        "train_files.txt",
        "expected unique file names, got ply_data_train0.h5 twice",
    ),
    "training shapes in the test": (
        text("test_files.txt", "ply_data_train0.h5"),
        "test_files.txt",
        "expected names like ply_data_test0.h5, got 'ply_data_train0.h5'",
    ),
    "elsewhere": (text("test_files.txt", "a/.."), "test_files.txt", "like ply_data_test0.h5, got '..'"),
    "no files": (text("test_files.txt", "\n \n"), "test_files.txt", "expected at least one name, got none"),
    "no classes": (text("shape_names.txt", ""), "shape_names.txt", "expected at least one name, got none"),
    "a class twice": (
        text("shape_names.txt", "box\nball\nbox"),
        "shape_names.txt",
        "expected unique class names",
    ),
    "no text": (text("shape_names.txt", b"\xff\xfe"), "shape_names.txt", "utf-8"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damage_is_named(folder: Path, what: str) -> None:
    write_hdf5(folder, cloud_files())
    damage, name, message = DAMAGED[what]
    damage(folder)
    for load in (load_modelnet, load_point_clouds):  # damage is no reason for the stand-in
        with pytest.raises(ValueError, match=rf"{name} is damaged or not part of ModelNet40 \(\S") as caught:
            load()
        assert message in str(caught.value)
        assert "from https://shapenet.cs.stanford.edu/" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_flipped_bit_in_the_points(folder: Path) -> None:
    write_hdf5(folder, cloud_files(points=2000))
    path = folder / "ply_data_train1.h5"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"ply_data_train1.h5 is damaged"):
        load_modelnet()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((10**9, 16, 3), "at most 268,435,456 bytes in a file of this size, got 192,000,000,000"),
        ((10**6, 16, 3), "got 1,000,003"),
        ((2, 10**5, 3), "expected at most 16384 points per shape, got 100000"),
    ],
)
def test_claims_of_hdf5_files_take_no_memory(folder: Path, shape: tuple[int, ...], message: str) -> None:
    write_hdf5(folder, cloud_files())
    with h5py.File(folder / "ply_data_train1.h5", "w") as file:  # a file of some kilobytes
        file.create_dataset("data", shape, "f4", chunks=(1, 16, 3))
        file.create_dataset("label", shape[:1], "u1", chunks=(1,))
    tracemalloc.start()
    with pytest.raises(ValueError, match=message):
        load_modelnet()
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_without_h5py(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hdf5(folder, cloud_files())
    monkeypatch.setitem(sys.modules, "h5py", None)
    for load in (load_modelnet, load_point_clouds):
        with pytest.raises(
            ModuleNotFoundError, match=r"^reading ModelNet40 requires h5py: pip install 'setwise\[data\]'$"
        ):
            load()


@pytest.mark.parametrize("up", [0, 1, 2])
def test_bottles_tell_which_axis_is_up(folder: Path, up: int) -> None:
    write_hdf5(folder, cloud_files(up))
    train, test = load_modelnet()
    assert train.up == test.up == up
    without = tuple("jug" if name == "bottle" else name for name in CLASSES)
    assert upright_axis(train.points, train.labels, without) == 2
    others = train.labels != 1
    assert upright_axis(train.points[others], train.labels[others], tuple(CLASSES)) == 2


def test_most_bottles_stand() -> None:
    """One may lie, and where it stands does not matter."""
    box = torch.tensor([[0.0, 0.0, 0.0], [0.2, 1.0, 0.3]])
    lying = torch.tensor([[0.0, 0.0, 9.0], [1.1, 0.2, 9.1]])
    x = torch.stack([box, lying, box]).half()
    assert upright_axis(x, torch.zeros(3).long(), ("bottle",)) == 1


# Meshes

CORNERS = [(x, y, z) for x in (0.0, 1.0) for y in (0.0, 2.0) for z in (0.0, 8.0)]
QUADS = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
HALVES = [triangle for a, b, c, d in QUADS for triangle in ((a, b, c), (a, c, d))]
Faces = list[tuple[int, ...]]


def off(vertices: list[tuple[float, ...]] = CORNERS, faces: Faces = HALVES, header: str = "OFF\n") -> str:  # type: ignore[assignment]
    lines = [f"{header}{len(vertices)} {len(faces)} 0"]
    lines += [" ".join(map(str, vertex)) for vertex in vertices]
    lines += [" ".join(map(str, (len(face), *face))) for face in faces]
    return "\n".join(lines) + "\n"


MESHES = {
    "ball/train/ball_0001.off": off(faces=QUADS),  # type: ignore[arg-type]
    "ball/test/ball_0002.off": off(),
    "bottle/train/bottle_0001.off": off(),
    "bottle/train/bottle_0002.off": off([(5 * x + 90, 5 * y, 5 * z - 7) for x, y, z in CORNERS]),
    "bottle/test/bottle_0003.off": off(),
}
FIRST = "ball/train/ball_0001.off"


def write_meshes(folder: Path, meshes: dict[str, str] = MESHES) -> None:
    for name, content in meshes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())


def test_meshes(folder: Path) -> None:
    write_meshes(folder)
    train, test = load_meshes(points=50)
    assert train.name == test.name == "meshes: 3 + 2 shapes of 2 classes"
    assert train.classes == test.classes == ("ball", "bottle")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 1], [0, 1])
    assert train.labels.dtype == torch.int64
    assert (train.points.shape, test.points.shape) == ((3, 50, 3), (2, 50, 3))
    assert train.points.dtype == test.points.dtype == torch.float16
    assert train.up == test.up == 2
    for clouds in (train, test):
        x = clouds.points.double()
        torch.testing.assert_close(x.mean(1), torch.zeros(len(x), 3).double(), atol=1e-3, rtol=0)
        torch.testing.assert_close(x.norm(dim=-1).amax(1), torch.ones(len(x)).double(), atol=1e-3, rtol=0)
    assert [clouds.points.shape[1] for clouds in load_meshes(folder)] == [2048, 2048]


def test_meshes_are_found(folder: Path) -> None:
    write_meshes(folder / "ModelNet40")
    train, _ = load_point_clouds()
    assert train.points.shape == (3, 2048, 3)
    shutil.rmtree(folder / "ModelNet40")
    write_meshes(folder)
    assert torch.equal(load_point_clouds(folder)[0].points, train.points)
    write_hdf5(folder, cloud_files())
    assert load_point_clouds()[0].name == "modelnet40"


def on_box(x: Tensor, size: Tensor) -> Tensor:
    """How many points lie on each side of a box, two a coordinate; all of them have to."""
    low, high = x.amin(0), x.amax(0)
    torch.testing.assert_close((high - low) / (high - low).max(), size / size.max(), atol=0.01, rtol=0)
    near = 0.003 * (high - low).max()
    sides = torch.cat([(x - low).abs() < near, (x - high).abs() < near], 1)
    assert sides.any(1).all()
    return sides.double().sum(0)


@pytest.mark.parametrize("mesh", [FIRST, "bottle/train/bottle_0001.off", "bottle/train/bottle_0002.off"])
def test_points_on_a_mesh_are_uniform_by_area(folder: Path, mesh: str) -> None:
    write_meshes(folder, {FIRST: MESHES[mesh], "ball/test/ball_0002.off": off()})
    x = load_meshes(points=20_000)[0].points[0].double()
    areas = torch.tensor([16.0, 8.0, 2.0, 16.0, 8.0, 2.0])
    counts = on_box(x, torch.tensor([1.0, 2.0, 8.0]).double())
    assert chi_square(counts, 20_000 * areas / 52) < 40  # the points on edges are counted twice
    scale = 8 / (x[:, 2].amax() - x[:, 2].amin())
    wide = x[(x[:, 0] - x[:, 0].amin()).abs() < 0.001]  # the side of 2 × 8
    torch.testing.assert_close(
        scale * wide.std(0)[1:], torch.tensor([2.0, 8.0]).double() / 12**0.5, rtol=0.03, atol=0
    )
    quarters = torch.histc(wide[:, 2].float(), 4)
    assert chi_square(quarters, quarters.mean().expand(4)) < 20


def test_the_points_depend_on_the_name_of_the_file_only(folder: Path) -> None:
    write_meshes(folder, dict.fromkeys(MESHES, off()))
    train, test = load_meshes(points=30)
    everything = torch.cat([train.points, test.points])
    assert len({tuple(x.flatten().tolist()) for x in everything}) == 5
    os.utime(folder / FIRST, ns=(1, 1))  # sampled once more
    assert torch.equal(load_meshes(points=30)[0].points, train.points)
    elsewhere = folder / "elsewhere"
    write_meshes(elsewhere, {"a/train/0.off": off(), "a/test/ball_0001.off": off()})
    assert torch.equal(load_meshes(elsewhere, points=30)[1].points[0], train.points[0])


def test_units_do_not_matter(folder: Path) -> None:
    clouds = []
    for factor in (1, 1e-200, 1e200):
        scaled = off([(factor * x, factor * y, factor * z) for x, y, z in CORNERS])
        write_meshes(folder, {FIRST: scaled, "ball/test/ball_0002.off": off()})
        clouds.append(load_meshes(points=30)[0].points.float())
    torch.testing.assert_close(clouds[1], clouds[0], atol=1e-3, rtol=0)
    torch.testing.assert_close(clouds[2], clouds[0], atol=1e-3, rtol=0)


HEADERS: dict[str, Callable[[str], str]] = {
    "as it should be": lambda s: s,
    "no end of the first line": lambda s: s.replace("OFF\n", "OFF"),
    "one line": lambda s: s.replace("OFF\n", "OFF "),
    "comments": lambda s: (
        "# box\n" + s.replace("OFF\n", "OFF # 3 4 5\n\n# 1 2 3\n").replace("0\n", "0 # zero\n", 1)
    ),
    "blank lines": lambda s: "\n" + s.replace("\n", "\n\n \n") + "\n\n",
    "CRLF": lambda s: s.replace("\n", "\r\n"),
    "CRLF and comments": lambda s: "# box\r\n" + s.replace("\n", " # 7\r\n"),
    "no last end": lambda s: s.rstrip("\n"),
    "tabs": lambda s: s.replace(" ", "\t"),
    "edges": lambda s: s.replace("12 0\n", "12 18\n"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_ways_to_write_a_mesh(what: str) -> None:
    vertices, faces = module._parse_off(HEADERS[what](off()).encode())
    assert vertices.tolist() == [list(vertex) for vertex in CORNERS]
    assert faces.tolist() == [list(face) for face in HALVES]
    assert faces.dtype == np.int64


def test_numbers_in_every_notation() -> None:
    content = "OFF 3 1 0  -1e-3 +2.5E2 .5  1 2. 3  -0 4 5  3 2 1 0"
    vertices, faces = module._parse_off(content.encode())
    assert vertices.tolist() == [[-0.001, 250.0, 0.5], [1.0, 2.0, 3.0], [0.0, 4.0, 5.0]]
    assert faces.tolist() == [[2, 1, 0]]


def test_polygons_are_cut_into_fans() -> None:
    faces: Faces = [(0, 1, 3, 2), (4, 5, 6), (7, 6, 5, 4, 3)]
    _, cut_up = module._parse_off(off(faces=faces).encode())
    assert cut_up.tolist() == [[0, 1, 3], [0, 3, 2], [4, 5, 6], [7, 6, 5], [7, 5, 4], [7, 4, 3]]


FLAT = off([(0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (2.0, 2.0, 2.0)], [(0, 1, 2)])
BROKEN = {
    "nothing": ("", "expected OFF and the numbers of vertices, faces and edges, got b''"),
    "another format": ("ply\n3 1 0", "edges, got b'ply"),
    "colours": (off(header="COFF\n"), "edges, got b'COFF"),
    "no counts": ("OFF\n", "edges, got b'OFF"),
    "broken counts": ("OFF\n8.5 12 0\n", "edges, got b'OFF"),
    "negative counts": ("OFF\n-8 12 0\n", "edges, got b'OFF"),
    "no vertices": ("OFF\n0 0 0\n", "expected at least 3 vertices and 1 face, got 0 and 0"),
    "two vertices": ("OFF\n2 1 0\n0 0 0\n1 1 1\n3 0 1 1\n", "1 face, got 2 and 1"),
    "no faces": (off(faces=[]), "expected at least 3 vertices and 1 face, got 8 and 0"),
    "many vertices": (
        off().replace("8 12 0", "1000000000000 12 0"),
        "expected 1000000000000 vertices and 12 faces as declared in the header, got a shorter file",
    ),
    "many faces": (off().replace("8 12 0", "8 1000000000000 0"), "8 vertices and 1000000000000 faces as"),
    "too many to count": (off().replace("8 12 0", "1" * 5000 + " 12 0"), "edges, got b'OFF\\n1111"),
    "cut short": (off()[:130], "as declared in the header, got a shorter file"),
    "the last number missing": (off()[:-2], "expected at least 72 numbers after the header, got 71"),
    "a number too many": (off() + "7", "expected 48 numbers for 12 faces, got 49"),
    "words": (off().replace("8.0", "x.0", 1), ""),
    "zeros": (off() + "\0" * 100, ""),
    "binary": ("OFF BINARY\n" + "\0\1" * 500, "edges, got b'OFF BINARY"),
    "NaN": (off().replace("8.0", "nan", 1), "expected finite numbers"),
    "infinity": (off().replace("8.0", "1e999", 1), "expected finite numbers"),
    "high corner": (off().replace("3 0 1 3", "3 0 1 8"), "expected vertex indices from 0 to 7"),
    "negative corner": (off().replace("3 0 1 3", "3 0 1 -1"), "expected vertex indices from 0 to 7"),
    "half a corner": (off().replace("3 0 1 3", "3 0 1 2.5"), "expected vertex indices from 0 to 7"),
    "two corners": (
        off().replace("3 0 1 3", "2 0 1 3"),
        "expected 12 faces of at least 3 corners each, got other",
    ),
    "broken count": (off().replace("3 0 1 3", "3.5 0 1 3"), "12 faces of at least 3 corners each"),
    "endless face": (off().replace("3 0 1 3", "1e18 0 1 3"), "12 faces of at least 3 corners each"),
    "last face too long": (off()[:-8] + "4 1 7 3\n", "12 faces of at least 3 corners each"),
    "line": (FLAT, "expected a surface, got faces with zero area"),
    "point": (FLAT.replace("1.0", "0").replace("2.0", "0"), "expected a surface, got faces with zero area"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_meshes(folder: Path, what: str) -> None:
    content, message = BROKEN[what]
    write_meshes(folder, MESHES | {FIRST: content})
    for load in (load_meshes, load_point_clouds):
        with pytest.raises(
            ValueError, match=r"ball_0001.off is damaged or not part of ModelNet40 \(\S"
        ) as caught:
            load()
        assert message in str(caught.value)
        assert "from https://modelnet.cs.princeton.edu" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not cache_folder().exists()


@pytest.mark.parametrize("counts", ["1000000000000 12 0", "8 1000000000000 0"])
def test_claims_of_meshes_take_no_memory(counts: str) -> None:
    content = off().replace("8 12 0", counts).encode()
    tracemalloc.start()
    with pytest.raises(ValueError, match="got a shorter file"):
        module._parse_off(content)
    assert tracemalloc.get_traced_memory()[1] < 1e5
    tracemalloc.stop()


def test_the_shortest_way_to_write_a_mesh() -> None:
    """So tight that the file's length only just fits what its header says."""
    content = b"OFF3 1 0\n0 0 0 0 1 0 1 0 0 3 0 1 2"
    assert module._parse_off(content)[1].tolist() == [[0, 1, 2]]
    with pytest.raises(ValueError, match="got a shorter file"):
        module._parse_off(content[:-2])


def test_clutter_beside_the_meshes(folder: Path) -> None:
    write_meshes(folder)
    before = load_meshes(points=10)
    clutter = {"ball/train/._ball_0001.off": "x", "__MACOSX/ball/train/ball_0001.off": "x", ".git/x": "x"}
    write_meshes(folder, clutter | {"README": "x", "ball/train/notes.txt": "x"})
    after = load_meshes(points=10)
    assert after[0].classes == ("ball", "bottle")
    assert torch.equal(after[0].points, before[0].points)


@pytest.mark.parametrize("part", ["train", "test"])
def test_half_of_the_meshes(folder: Path, part: str) -> None:
    write_meshes(folder, {name: mesh for name, mesh in MESHES.items() if f"bottle/{part}" not in name})
    for load in (load_meshes, load_point_clouds):
        with pytest.raises(
            FileNotFoundError, match=rf"expected meshes <name>\.off in .*bottle/{part}, got none"
        ):
            load()


@pytest.mark.parametrize(
    "name", ["airplane_0001.off", "airplane/airplane_0001.off", "airplane/test/notes.txt"]
)
def test_other_layouts_are_no_reason_for_the_stand_in(folder: Path, name: str) -> None:
    write_meshes(folder, {name: off()})
    with pytest.raises(FileNotFoundError, match=r"expected .*<name>\.off"):
        load_point_clouds()


def test_no_meshes(folder: Path) -> None:
    expected = r"no meshes in .*modelnet40: expected <class>/train/<name>\.off .*from https://modelnet\.cs\."
    with pytest.raises(FileNotFoundError, match=expected):
        load_meshes()


def test_no_points_of_a_mesh(folder: Path) -> None:
    write_meshes(folder)
    with pytest.raises(ValueError, match="points must be at least 1, got 0"):
        load_meshes(points=0)
    assert load_meshes(points=1)[0].points.eq(0).all()


def test_without_trimesh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_meshes(folder)
    monkeypatch.setitem(sys.modules, "trimesh", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"^reading ModelNet40 requires trimesh: pip install 'setwise\[data\]'$"
    ):
        load_meshes()


# The cache of the meshes


@pytest.fixture
def unsampled(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to forbid any more sampling."""

    def refuse(path: Path, points: int) -> None:
        raise AssertionError("a mesh was sampled again")

    return lambda: monkeypatch.setattr(module, "_sample", refuse)


def same(a: tuple[PointClouds, PointClouds], b: tuple[PointClouds, PointClouds]) -> bool:
    return all(
        (x.name, x.classes, x.up, x.points.dtype) == (y.name, y.classes, y.up, y.points.dtype)
        and torch.equal(x.points, y.points)
        and torch.equal(x.labels, y.labels)
        for x, y in zip(a, b, strict=True)
    )


def test_meshes_are_sampled_once(folder: Path, unsampled: Callable[[], None]) -> None:
    write_meshes(folder)
    first = load_meshes(points=20)
    assert [p.name for p in cache_folder().rglob("*") if p.is_file()] == ["modelnet40_meshes.npz"]
    unsampled()
    assert same(load_meshes(points=20), first)
    with pytest.raises(AssertionError, match="sampled again"):
        load_meshes(points=21)


def renamed(folder: Path) -> None:
    (folder / FIRST).rename(folder / "ball/train/ball_0009.off")


def relabelled(folder: Path) -> None:
    (folder / "ball").rename(folder / "cup")


def longer(folder: Path) -> None:
    status = (folder / FIRST).stat()
    (folder / FIRST).write_text(MESHES[FIRST] + "\n")
    os.utime(folder / FIRST, ns=(status.st_atime_ns, status.st_mtime_ns))


def later(folder: Path) -> None:
    status = (folder / FIRST).stat()
    os.utime(folder / FIRST, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def fewer(folder: Path) -> None:
    (folder / "bottle/train/bottle_0002.off").unlink()


@pytest.mark.parametrize("change", [renamed, relabelled, longer, later, fewer])
def test_changed_meshes_are_sampled_anew(
    folder: Path, unsampled: Callable[[], None], change: Callable[[Path], None]
) -> None:
    write_meshes(folder)
    load_meshes(points=20)
    change(folder)
    unsampled()
    with pytest.raises(AssertionError, match="sampled again"):
        load_meshes(points=20)


def test_another_format_of_the_cache(
    folder: Path, unsampled: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_meshes(folder)
    load_meshes(points=20)
    monkeypatch.setattr(module, "_CACHE_FORMAT", 0)
    unsampled()
    with pytest.raises(AssertionError, match="sampled again"):
        load_meshes(points=20)


@pytest.mark.parametrize("damage", ["empty", "cut short", "flipped bit", "other bytes", "other arrays"])
def test_a_damaged_cache_is_made_again(
    folder: Path, unsampled: Callable[[], None], damage: str, unchecked: None
) -> None:
    write_meshes(folder)
    first = load_meshes(points=200)
    cached = cache_folder() / "packed" / "modelnet40_meshes.npz"
    data = cached.read_bytes()
    middle = len(data) // 2
    if damage == "other arrays":
        with np.load(cached) as arrays:
            other = dict(arrays)
        np.savez(cached, **(other | {"test": other["test"][:, :, :2]}))
    else:
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        options = {"empty": b"", "cut short": data[:middle], "flipped bit": flipped, "other bytes": b"points"}
        cached.write_bytes(options[damage])
    assert same(load_meshes(points=200), first)
    unsampled()
    assert same(load_meshes(points=200), first)


def test_a_cache_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_meshes(folder)
    blocked = folder.parent / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.warns(UserWarning, match=r"cannot write the cache .*modelnet40_meshes\.npz"):
        assert len(load_meshes(points=10)[0]) == 3


# Solids


def test_solids() -> None:
    clouds = solids(3, 300)
    assert (clouds.name, clouds.classes, clouds.up) == ("stand-in: solids", tuple(SIDES), 2)
    assert clouds.points.shape == (30, 300, 3)
    assert clouds.points.dtype == torch.float16
    assert clouds.labels.tolist() == [label for label in range(10) for _ in range(3)]
    x = clouds.points.double()
    torch.testing.assert_close(x.mean(1), torch.zeros(30, 3).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(x.norm(dim=-1).amax(1), torch.ones(30).double(), atol=1e-3, rtol=0)


def test_solids_are_the_same_for_a_seed() -> None:
    first = solids(2, 50)
    assert torch.equal(solids(2, 50, seed=0).points, first.points)
    other = solids(2, 50, seed=1)
    for i in range(20):
        assert not torch.equal(other.points[i], first.points[i])
        assert not torch.equal(first.points[i], first.points[i - 1])


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)])
def test_no_solids(sizes: tuple[int, int]) -> None:
    with pytest.raises(
        ValueError, match="expected at least 1 shape and 1 point, got {} and {}".format(*sizes)
    ):
        solids(*sizes)


def areas(corners: Tensor) -> Tensor:
    """The area of each triangle as a vector across it."""
    a, b, c = corners.double().unbind(-2)
    return torch.linalg.cross(b - a, c - a) / 2


def measures(kind: str, r: float, h: float) -> tuple[float, float]:
    """Area and volume of a solid of outer radius 1; r is the inner or the tube's radius, 2 h the height."""
    side = 2 * math.sin(math.pi / SIDES[kind])  # of the polygon seen from above
    inner = math.cos(math.pi / SIDES[kind])
    base = SIDES[kind] * side * inner / 2
    if kind == "sphere":
        return 4 * math.pi, 4 / 3 * math.pi
    if kind == "capsule":
        return 4 * math.pi + 4 * math.pi * (h - 1), math.pi * (4 / 3 + 2 * (h - 1))
    if kind == "torus":
        return 4 * math.pi**2 * h, 2 * math.pi**2 * h**2
    if kind == "tube":
        return 4 * math.pi * h * (1 + r) + 2 * math.pi * (1 - r**2), 2 * h * math.pi * (1 - r**2)
    if kind in ("cone", "pyramid"):
        return base + SIDES[kind] * side * math.hypot(inner, 2 * h) / 2, base * 2 * h / 3
    if kind == "octahedron":
        return SIDES[kind] * side * math.hypot(inner, h), base * 2 * h / 3
    return 2 * base + SIDES[kind] * side * 2 * h, base * 2 * h


@pytest.mark.parametrize("kind", SIDES)
def test_solids_are_what_they_are_called(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solids_module, "STRETCH", (1.0, 1.0))
    made = triangles(kind, 40, random())
    for corners in made:
        vectors = areas(corners)
        torch.testing.assert_close(vectors.sum(0), torch.zeros(3).double(), atol=1e-5, rtol=0)  # closed
        volume = (vectors * corners.double().mean(1)).sum() / 3
        radius = corners[..., :2].norm(dim=-1)
        expected = measures(kind, float(radius.min()), float(corners[..., 2].max()))
        found = float(vectors.norm(dim=-1).sum()), abs(float(volume))
        assert found == pytest.approx(expected, rel=0.03 if SIDES[kind] > 4 else 1e-5)
        assert float(corners[..., 2].max()) == pytest.approx(-float(corners[..., 2].min()), abs=1e-6)
    heights = made[..., 2].amax((1, 2))
    ends = {"sphere": (1, 1), "capsule": (1.5, 2.5), "torus": (0.2, 0.5)}.get(kind, (0.5, 1.2))
    assert ends[0] - 0.02 < heights.min()
    assert heights.max() < ends[1] + 0.02
    assert heights.max() - heights.min() >= 0.7 * (ends[1] - ends[0])
    if kind == "tube":
        inner = made[..., :2].norm(dim=-1).amin((1, 2))
        assert 0.49 < inner.min() < 0.55 < 0.75 < inner.max() < 0.81
        assert abs(float(torch.stack([inner, heights]).corrcoef()[0, 1])) < 0.5


def test_solids_are_stretched_along_each_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    stretched = triangles("sphere", 300, random()).flatten(1, 2).amax(1)
    monkeypatch.setattr(solids_module, "STRETCH", (1.0, 1.0))
    factors = stretched / triangles("sphere", 300, random()).flatten(1, 2).amax(1)
    assert factors.min() >= 0.75 - 1e-5
    assert factors.max() <= 1.25 + 1e-5
    for axis in range(3):
        counts = factors[:, axis].histc(3, 0.75, 1.25)
        assert chi_square(counts, torch.full((3,), 100.0)) < 15
    assert factors.T.corrcoef().fill_diagonal_(0).abs().max() < 0.2


def test_points_on_a_solid_box_are_uniform_by_area() -> None:
    boxes = triangles("box", 8, random())
    x = sample_surface(boxes, 20_000, random()).double()
    for points, corners in zip(x, boxes, strict=True):
        size = (corners.flatten(0, 1).amax(0) - corners.flatten(0, 1).amin(0)).double()
        sides = size.prod() / size
        expected = 20_000 * torch.cat([sides, sides]) / (2 * sides.sum())
        assert chi_square(on_box(points, size), expected) < 60  # the points on edges are counted twice


def test_points_on_triangles_are_uniform() -> None:
    """One triangle of no area, one of area 3 and one of area 1; the latter two beside each other."""
    corners = torch.tensor(
        [
            [[9.0, 9.0, 9.0], [9.0, 9.0, 9.0], [1.0, 0.0, 0.0]],
            [[0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 2.0, 0.0]],
            [[0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [0.0, 2.0, 1.0]],
        ]
    )
    x = sample_surface(corners.unsqueeze(0), 40_000, random())[0]
    below, above = x[x[:, 2] == 0], x[x[:, 2] == 1]
    assert len(below) + len(above) == 40_000
    assert len(below) == pytest.approx(30_000, abs=350)
    for points, width in ((below, 3), (above, 1)):
        u, v = points[:, 0] / width, points[:, 1] / 2
        assert min(u.min(), v.min()) >= 0
        assert (u + v).max() <= 1 + 1e-6
        # Quarters of a triangle cut along the middles of its sides: three at the corners, one within.
        quarters = torch.stack([u > 0.5, v > 0.5, u + v < 0.5]).double().sum(1)
        quarters = torch.cat([quarters, len(points) - quarters.sum(0, keepdim=True)])
        assert chi_square(quarters, torch.full((4,), len(points) / 4)) < 20


def test_points_on_a_torus_are_uniform_by_area(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solids_module, "STRETCH", (1.0, 1.0))
    corners = triangles("torus", 1, random())
    thick = float(corners[..., 2].max())
    x = sample_surface(corners, 40_000, random())[0]
    outside = (x[:, :2].norm(dim=-1) > 1).double().mean()
    assert float(outside) == pytest.approx(0.5 + thick / math.pi, abs=0.01)  # not a half
    around = torch.atan2(x[:, 1], x[:, 0]).histc(8, -math.pi, math.pi)
    assert chi_square(around, torch.full((8,), 5000.0)) < 30
    assert float((x[:, 2] > 0).double().mean()) == pytest.approx(0.5, abs=0.01)


def test_points_on_a_sphere_have_uniform_heights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solids_module, "STRETCH", (1.0, 1.0))
    x = sample_surface(triangles("sphere", 1, random()), 40_000, random())[0]
    heights = x[:, 2].histc(8, -1, 1)
    assert heights / 5000 == pytest.approx(torch.ones(8), abs=0.06)


def test_noise_moves_points_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = solids(5, 2000).points.double()
    monkeypatch.setattr(solids_module, "NOISE", 0.0)
    moved = (noisy - solids(5, 2000).points.double()).std(1)
    assert (moved > 0.008).all()
    assert (moved < 0.02).all()


def test_solids_stand_nearly_upright_and_face_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    rings = solids(200, 300)
    rings = rings.subset((rings.labels == rings.classes.index("torus")).nonzero().squeeze(1))
    across = torch.linalg.svd(rings.points.double()).Vh[:, 2]  # a torus is flattest along its axis
    tilt = across[:, 2].abs().clamp(max=1).arccos()
    assert 0.05 < tilt.mean() < 0.15
    monkeypatch.setattr(solids_module, "TILT", 0.0)
    rings = solids(200, 300)
    cones = rings.subset((rings.labels == rings.classes.index("cone")).nonzero().squeeze(1)).points.double()
    assert (cones[..., 2].amax(1) > -1.2 * cones[..., 2].amin(1)).all()  # the apex is above
    prisms = rings.subset((rings.labels == rings.classes.index("prism")).nonzero().squeeze(1)).points.double()
    farthest = prisms[..., :2].norm(dim=-1).argmax(1)
    x, y = prisms[torch.arange(200), farthest, :2].unbind(-1)
    counts = torch.atan2(y, x).histc(5, -math.pi, math.pi)
    assert chi_square(counts, torch.full((5,), 40.0)) < 20


def test_solids_can_be_told_apart() -> None:
    """The nearest neighbour by sorted distances, heights and radii, which do not depend on the heading."""

    def features(clouds: PointClouds) -> Tensor:
        x = clouds.points.float()
        distances = torch.cdist(x, x).flatten(1).sort(1).values[:, :: x.shape[1]]
        heights, radii = x[..., 2].sort(1).values, x[..., :2].norm(dim=-1).sort(1).values
        return torch.cat([distances, heights, radii], 1)

    known, asked = solids(40, 120), solids(10, 120, seed=1)
    nearest = torch.cdist(features(asked), features(known)).argmin(1)
    right = (known.labels[nearest] == asked.labels).view(10, 10).double().mean(1)
    assert right.mean() > 0.75
    assert right.min() >= 0.4


# The real ModelNet40


@pytest.mark.realdata
@pytest.mark.skipif(not REAL.exists(), reason="SETWISE_DATA has no modelnet40")
def test_modelnet() -> None:
    train, test = load_point_clouds()
    assert (train.name, len(train), len(test)) == ("modelnet40", 9843, 2468)
    assert train.classes == test.classes
    assert len(train.classes) == 40
    assert {"airplane", "bottle", "xbox"} <= set(train.classes)
    assert train.labels.bincount(minlength=40).min() == 64  # bowls
    assert train.classes[int(train.labels.bincount().argmin())] == "bowl"
    assert set(test.labels.bincount(minlength=40).tolist()) <= {20, 50, 86, 100}
    for clouds in (train, test):
        assert clouds.points.shape[1:] == (2048, 3)
        assert clouds.points.dtype == torch.float16
        for name in ("bottle", "door", "lamp", "person", "wardrobe"):  # all of these stand
            x = clouds.points[clouds.labels == clouds.classes.index(name)].float()
            assert (x.amax(1) - x.amin(1)).mean(0).argmax() == clouds.up
        radius = clouds.points[::50].float().norm(dim=-1).amax(1)
        torch.testing.assert_close(radius, torch.ones_like(radius), atol=1e-2, rtol=0)
    rest, aside = hold_out(train)
    assert len(rest) + len(aside) == 9843
    assert (aside.labels.bincount(minlength=40) / train.labels.bincount()).sub(0.1).abs().max() < 0.01


def test_invalid_augmentations_are_refused() -> None:
    x, generator = torch.randn(2, 5, 3), torch.Generator()
    with pytest.raises(ValueError, match="up must be 0, 1 or 2, got 5"):
        augment(x, generator, up=5)
    for stretch in ((0.0, 1.0), (2.0, 1.0), (1.0, math.inf)):
        with pytest.raises(ValueError, match="stretch must be two positive factors in order, got"):
            augment(x, generator, stretch=stretch)


def test_only_all_of_modelnet40_is_called_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_meshes(folder)
    monkeypatch.setattr(module, "SHAPES", {"train": 3, "test": 2})
    monkeypatch.setattr(module, "CLASSES", 2)
    assert load_meshes(points=5)[0].name == "modelnet40: meshes"
    for name, value in (("CLASSES", 3), ("SHAPES", {"train": 4, "test": 2})):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert load_meshes(points=5)[0].name == "meshes: 3 + 2 shapes of 2 classes"
