"""ModelNet40: 12,311 shapes of 40 classes; reader of the public HDF5 files and of the meshes."""

import hashlib
import importlib
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float16, Int, Int64
from torch import Tensor

from setwise._files import write_atomically
from setwise._text import shortened
from setwise.experiments.data.folders import cache_folder, data_folder
from setwise.experiments.data.point_clouds import PointClouds, normalize
from setwise.experiments.data.solids import solids
from setwise.io.arrays import check_dataset, read_npz
from setwise.training.progress import ProgressBar
from setwise.training.seeding import generator

SHAPES = {"train": 9_843, "test": 2_468}  # shapes in the public training and test parts
CLASSES = 40
POINTS = 2048  # points per shape in the public HDF5 files
HDF5 = "https://shapenet.cs.stanford.edu/media/modelnet40_ply_hdf5_2048.zip"
MESHES = "https://modelnet.cs.princeton.edu"

_NAMES = "shape_names.txt"
_MAX_POINTS = 1 << 14  # points per shape in an HDF5 file, which limits all shapes to about a gigabyte
_HEADER = re.compile(rb"\s*OFF\s*(\d{1,15})\s+(\d{1,15})\s+\d{1,15}(?!\S)")
_COMMENT = re.compile(rb"#[^\r\n]*")
_CACHE_FORMAT = 1  # increment when the meaning of the cached arrays changes

Shapes = tuple[Float16[np.ndarray, "_ _ 3"], Int64[np.ndarray, " _"]]  # points and labels


def load_point_clouds(folder: Path | None = None) -> tuple[PointClouds, PointClouds]:
    """Load ModelNet40's training and test shapes if available, else synthetic ones; ``name`` says which.

    If both HDF5 files and meshes exist, the HDF5 files are read.

    Args:
        folder: folder of ModelNet40; by default ``modelnet40`` in the data folder.
    """
    # An incomplete ModelNet40 must raise an error instead of selecting the stand-in.
    if _contains(_hdf5_folder(folder), "ply_data_*.h5", *(f"{part}_files.txt" for part in SHAPES), _NAMES):
        return load_modelnet(folder)
    if _contains(_mesh_folder(folder), "**/*.off", *(f"*/{part}" for part in SHAPES)):
        return load_meshes(folder)
    return solids(seed=0), solids(25, seed=1)


def load_modelnet(folder: Path | None = None) -> tuple[PointClouds, PointClouds]:
    """Load ModelNet40's training and test shapes from HDF5 files, and check completeness.

    ``train_files.txt`` and ``test_files.txt`` list the files ``ply_data_{train,test}<k>.h5``, which contain
    ``data [shapes, points, 3]`` and ``label [shapes, 1]``; ``shape_names.txt`` lists the class names. Points
    are stored in half precision.

    Args:
        folder: folder of the files; by default ``modelnet40`` in the data folder.
    """
    folder = _hdf5_folder(folder)
    classes = _lines(folder / _NAMES)
    if len(set(classes)) < len(classes):
        raise ValueError(_damaged_message(folder / _NAMES, "expected unique class names, got a duplicate"))
    files = {part: _hdf5_files(folder, part) for part in SHAPES}
    _check_sizes(folder, files)
    train, test = (_concatenate([_read(path, len(classes)) for path in files[part]]) for part in SHAPES)
    return _point_clouds("modelnet40", train, test, tuple(classes))


def load_meshes(folder: Path | None = None, *, points: int = POINTS) -> tuple[PointClouds, PointClouds]:
    """Load training and test shapes from meshes, ``<class>/{train,test}/<name>.off``.

    Points are drawn from the surface uniformly by area, then centred and scaled to the unit ball. The points
    of a mesh depend only on the name and content of its file. They are cached in the user's cache folder and
    reused until the name, size or modification time of a file changes.

    Args:
        folder: folder of the classes; by default ``modelnet40`` in the data folder.
        points: points per mesh.
    """
    if points < 1:
        raise ValueError(f"points must be at least 1, got {points}")
    folder = _mesh_folder(folder)
    classes, files = _mesh_files(folder)
    key = _key(folder, files, points)
    cached = cache_folder() / "packed" / "modelnet40_meshes.npz"
    if (clouds := _read_cache(cached, key, classes)) is not None:
        return clouds
    train, test = (_sample_all(files[part], points) for part in SHAPES)
    try:
        _write_cache(cached, key, train, test)
    except OSError as error:
        warnings.warn(
            f"cannot write the cache {cached} ({error}): meshes will be sampled on each load", stacklevel=2
        )
    return _point_clouds(_mesh_name(train, test, classes), train, test, classes)


def upright_axis(
    points: Float[Tensor, "shapes points 3"], labels: Int[Tensor, " shapes"], classes: tuple[str, ...]
) -> int:
    """Index of the upright axis: the one along which bottles are longest on average.

    It is y in the widely used HDF5 files, and z in the meshes and other copies; the files do not say.

    Args:
        points: points of every shape.
        labels: class index of each shape.
        classes: class names; without "bottle" the upright axis is z.

    >>> bottle = torch.tensor([[[0.0, 0.0, 0.0], [0.3, 1.0, 0.3]]])
    >>> upright_axis(bottle, torch.tensor([1]), ("ball", "bottle"))
    1
    """
    bottles = points[labels == classes.index("bottle")] if "bottle" in classes else points[:0]
    if not len(bottles):
        return 2
    return int((bottles.amax(1) - bottles.amin(1)).double().mean(0).argmax())


def _point_clouds(
    name: str, train: Shapes, test: Shapes, classes: tuple[str, ...]
) -> tuple[PointClouds, PointClouds]:
    (x, y), (x_test, y_test) = (tuple(map(torch.from_numpy, part)) for part in (train, test))
    up = upright_axis(x, y, classes)
    return PointClouds(name, x, y, classes, up), PointClouds(name, x_test, y_test, classes, up)


def _hdf5_folder(folder: Path | None) -> Path:
    return _modelnet_folder(folder, "modelnet40_ply_hdf5_2048")


def _mesh_folder(folder: Path | None) -> Path:
    return _modelnet_folder(folder, "ModelNet40")


def _modelnet_folder(folder: Path | None, archive: str) -> Path:
    """Folder of the files: the given one, or its subfolder extracted from a public archive."""
    folder = data_folder() / "modelnet40" if folder is None else Path(folder)
    return folder / archive if (folder / archive).is_dir() else folder


def _contains(folder: Path, *patterns: str) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def _damaged_message(path: Path, reason: str, address: str = HDF5) -> str:
    reason = shortened(reason, 300)
    return f"{path} is damaged or not part of ModelNet40 ({reason}): replace it by the one from {address}"


def _import_optional(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"reading ModelNet40 requires {module}: pip install 'setwise[data]'"
        ) from error


# HDF5


def _lines(path: Path) -> list[str]:
    """Non-empty lines of a text file."""
    _check_present(path)
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(_damaged_message(path, str(error))) from error
    if not lines:
        raise ValueError(_damaged_message(path, "expected at least one name, got none"))
    return lines


def _hdf5_files(folder: Path, part: str) -> list[Path]:
    """HDF5 files of one part; directories in their list are ignored."""
    listing = folder / f"{part}_files.txt"
    names = [PureWindowsPath(line).name for line in _lines(listing)]
    for i, name in enumerate(names):
        if not re.fullmatch(rf"ply_data_{part}\d+\.h5", name):
            raise ValueError(
                _damaged_message(listing, f"expected names like ply_data_{part}0.h5, got {name!r}")
            )
        if name in names[:i]:
            raise ValueError(_damaged_message(listing, f"expected unique file names, got {name} twice"))
        _check_present(folder / name)
    return [folder / name for name in names]


def _check_present(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(
            f"{path.name} is missing in {path.parent}: copy it from {HDF5}, or set SETWISE_DATA to another "
            "data folder"
        )


def _check_sizes(folder: Path, files: dict[str, list[Path]]) -> None:
    """Check the numbers of shapes and points before any of them is read."""
    points: int | None = None
    for part, paths in files.items():
        shapes = 0
        for path in paths:
            with _datasets(path) as (data, _):
                points = points or data.shape[1]
                if data.shape[1] != points:
                    raise ValueError(
                        f"expected {points} points per shape as in other files, got {data.shape[1]}"
                    )
                shapes += data.shape[0]
        if shapes != SHAPES[part]:
            counts = f"expected {SHAPES[part]:,} {part} shapes in its files, got {shapes:,}"
            raise ValueError(_damaged_message(folder / f"{part}_files.txt", counts))


def _read(path: Path, classes: int) -> Shapes:
    with _datasets(path) as (data, label):
        with np.errstate(over="ignore"):  # checked below
            points = data[:].astype(np.float16)
        if not np.isfinite(points).all():
            raise ValueError(
                f"expected finite points below {np.finfo(np.float16).max:,.0f}, got larger or non-finite ones"
            )
        labels = label[:].reshape(-1).astype(np.int64)
        if not 0 <= labels.min() <= labels.max() < classes:
            got = f"{labels.min()} to {labels.max()}"
            raise ValueError(f"expected labels from 0 to {classes - 1} as in {_NAMES}, got {got}")
    return points, labels


@contextmanager
def _datasets(path: Path) -> Iterator[tuple[Any, Any]]:
    """Points and labels of an HDF5 file, with shapes and types checked, as unread datasets."""
    h5py = _import_optional("h5py")
    try:
        with h5py.File(path, "r") as file:
            datasets = []
            for name, kinds in (("data", "f"), ("label", "iu")):
                if name not in file:
                    raise ValueError(f"expected datasets data and label, got {sorted(file)}")
                dataset = check_dataset(file, name)
                if dataset.dtype.kind not in kinds or dataset.dtype.itemsize > 8:
                    expected = "float16 to float64" if kinds == "f" else "integers"
                    raise ValueError(f"expected {name} to be {expected}, got {dataset.dtype}")
                datasets.append(dataset)
            data, label = datasets
            if len(data.shape) != 3 or data.shape[2] != 3 or min(data.shape) < 1:
                raise ValueError(f"expected data [shapes, points, 3], got {list(data.shape)}")
            if data.shape[1] > _MAX_POINTS:
                raise ValueError(f"expected at most {_MAX_POINTS} points per shape, got {data.shape[1]}")
            if label.shape not in (data.shape[:1], (data.shape[0], 1)):
                raise ValueError(f"expected label [{data.shape[0]}, 1], got {list(label.shape)}")
            yield data, label
    except Exception as error:  # damaged files can raise any exception
        raise ValueError(_damaged_message(path, str(error) or type(error).__name__)) from error


def _concatenate(files: list[Shapes]) -> Shapes:
    points, labels = zip(*files, strict=True)
    return np.concatenate(points), np.concatenate(labels)


# Meshes


def _mesh_files(folder: Path) -> tuple[tuple[str, ...], dict[str, list[tuple[Path, int]]]]:
    """Class names, and the files of each part with their class index, in alphabetical order."""
    folders = [path for path in _visible_files(folder, "*") if path.is_dir()]
    if not folders:
        raise FileNotFoundError(
            f"no meshes in {folder}: expected <class>/train/<name>.off and <class>/test/<name>.off; download "
            f"ModelNet40 from {MESHES}, or set SETWISE_DATA to another data folder"
        )
    files: dict[str, list[tuple[Path, int]]] = {part: [] for part in SHAPES}
    for label, path in enumerate(folders):
        for part in SHAPES:
            meshes = _visible_files(path, f"{part}/*.off")
            if not meshes:
                raise FileNotFoundError(f"expected meshes <name>.off in {path / part}, got none")
            files[part] += [(mesh, label) for mesh in meshes]
    return tuple(path.name for path in folders), files


def _visible_files(folder: Path, pattern: str) -> list[Path]:
    """Matching files, without hidden ones such as the Finder's ``__MACOSX`` and ``._x.off``."""
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith((".", "__")))


def _mesh_name(train: Shapes, test: Shapes, classes: tuple[str, ...]) -> str:
    """Name of the data set: ModelNet40 if complete, else the numbers of shapes and classes."""
    counts = {"train": len(train[1]), "test": len(test[1])}
    if counts == SHAPES and len(classes) == CLASSES:
        return "modelnet40: meshes"
    return f"meshes: {counts['train']} + {counts['test']} shapes of {len(classes)} classes"


def _sample_all(meshes: list[tuple[Path, int]], points: int) -> Shapes:
    sampled = np.empty((len(meshes), points, 3), np.float16)
    with ProgressBar("sampling meshes", "") as bar:
        bar.begin(len(meshes), 0)
        for i, (path, _) in enumerate(meshes):
            sampled[i] = _sample(path, points)
            bar.advance(i + 1)
    return sampled, np.array([label for _, label in meshes], np.int64)


def _sample(path: Path, points: int) -> Float16[np.ndarray, "points 3"]:
    """Points on one mesh, uniform by area and reproducible."""
    trimesh = _import_optional("trimesh")
    try:
        vertices, faces = _parse_off(path.read_bytes())
        vertices = vertices / (np.abs(vertices).max() or 1)  # avoids overflow and underflow of areas
        mesh = trimesh.Trimesh(vertices, faces, process=False)
        if not mesh.area > 0:
            raise ValueError("expected a surface, got faces with zero area")
    except Exception as error:  # damaged files can raise any exception
        raise ValueError(_damaged_message(path, str(error) or type(error).__name__, MESHES)) from error
    seed = generator("mesh", path.name).initial_seed()
    x, _ = trimesh.sample.sample_surface(mesh, points, seed=seed)
    normalized: np.ndarray = normalize(torch.from_numpy(np.asarray(x)).unsqueeze(0))[0].half().numpy()
    return normalized


def _parse_off(data: bytes) -> tuple[Float[np.ndarray, "vertices 3"], Int[np.ndarray, "triangles 3"]]:
    """Vertices and triangles of a mesh in the OFF format; polygons are split into triangles.

    Some of ModelNet40's files lack the first line break and begin like ``OFF123 456 0``.
    """
    data = _COMMENT.sub(b"", data)
    header = _HEADER.match(data)
    if header is None:
        raise ValueError(f"expected OFF and the numbers of vertices, faces and edges, got {data[:30]!r}")
    vertices, faces = int(header[1]), int(header[2])
    if vertices < 3 or faces < 1:
        raise ValueError(f"expected at least 3 vertices and 1 face, got {vertices} and {faces}")
    body = data[header.end() :].strip()
    needed = 3 * vertices + 4 * faces
    if 2 * needed > len(body) + 1:  # a number takes at least a digit and a space
        declared = f"{vertices} vertices and {faces} faces"
        raise ValueError(f"expected {declared} as declared in the header, got a shorter file")
    numbers = np.fromstring(body, sep=" ")
    if len(numbers) < needed:
        raise ValueError(f"expected at least {needed} numbers after the header, got {len(numbers)}")
    if not np.isfinite(numbers).all():
        raise ValueError("expected finite numbers, got non-finite ones")
    return numbers[: 3 * vertices].reshape(-1, 3), _triangles(numbers[3 * vertices :], vertices, faces)


def _triangles(
    numbers: Float[np.ndarray, " numbers"], vertices: int, faces: int
) -> Int[np.ndarray, "triangles 3"]:
    """Split each face ``k i_1 … i_k`` into the triangles (i_1, i_2, i_3), (i_1, i_3, i_4) and so on."""
    if len(numbers) == 4 * faces and (numbers[::4] == 3).all():  # true for nearly all files
        corners = numbers.reshape(-1, 4)[:, 1:]
    else:
        fans, start = [], 0
        for _ in range(faces):
            k = numbers[start] if start < len(numbers) else 0
            if k < 3 or k != int(k) or start + k >= len(numbers):
                raise ValueError(f"expected {faces} faces of at least 3 corners each, got other numbers")
            face = numbers[start + 1 : start + 1 + int(k)]
            start += 1 + int(k)
            fans.append(np.stack([np.broadcast_to(face[0], len(face) - 2), face[1:-1], face[2:]], 1))
        if start != len(numbers):
            raise ValueError(f"expected {start} numbers for {faces} faces, got {len(numbers)}")
        corners = np.concatenate(fans)
    if corners.min() < 0 or corners.max() >= vertices or (corners != corners.round()).any():
        raise ValueError(f"expected vertex indices from 0 to {vertices - 1}, got others")
    return corners.astype(np.int64)


def _key(folder: Path, files: dict[str, list[tuple[Path, int]]], points: int) -> str:
    """Cache key that depends on the number of points and each file's name, size and modification time."""
    digest = hashlib.blake2b(repr((_CACHE_FORMAT, points)).encode(), digest_size=16)
    for part in files.values():
        for path, _ in part:
            status = path.stat()
            name = path.relative_to(folder).as_posix()
            digest.update(repr((name, status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest()


def _read_cache(path: Path, key: str, classes: tuple[str, ...]) -> tuple[PointClouds, PointClouds] | None:
    try:
        if str(read_npz(path, ["key"])["key"]) != key:
            return None
        arrays: dict[str, Any] = read_npz(
            path, [name for part in SHAPES for name in (part, f"{part}_labels")]
        )
        train, test = ((arrays[part], arrays[f"{part}_labels"]) for part in SHAPES)
        return _point_clouds(_mesh_name(train, test, classes), train, test, classes)
    except Exception:  # missing or damaged in any way: the cache is rebuilt
        return None


def _write_cache(path: Path, key: str, train: Shapes, test: Shapes) -> None:
    (x, y), (x_test, y_test) = train, test
    buffer = io.BytesIO()
    np.savez(buffer, key=np.array(key), train=x, train_labels=y, test=x_test, test_labels=y_test)
    write_atomically(path, buffer.getvalue())
