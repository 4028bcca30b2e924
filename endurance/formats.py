"""Every kind of file that the library reads: a small valid one, and the public function that reads it."""

import gzip
import importlib
import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image

import setwise
from endurance.mutations import Damage, in_gzip, in_png, in_zip
from setwise._files import read_json, write_json
from setwise.cli.fit import _RunProgress
from setwise.experiments import EXPERIMENTS
from setwise.experiments.data import modelnet, omniglot
from setwise.experiments.data.characters import DRAWINGS, SIDE
from setwise.experiments.data.histology import read_images
from setwise.inspection.explorer.trained_run import read_run
from setwise.io.bags import bags_from_csv, bags_from_folder, bags_from_npz
from setwise.io.readers import read_sets
from setwise.training.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Args:
        write: makes a valid file, and what goes with it, in an empty folder; returns the file to damage.
        read: reads the file and all that is in it.
        inside: damages it below its checksums, if it has any.
        by_folder: whether errors may name the folder instead of the file, since it is what was given.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    inside: Damage | None = None
    by_folder: bool = False


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@contextmanager
def _smaller(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Data sets of a few files instead of thousands."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


# Models


def _checkpoint(folder: Path) -> Path:
    network = torch.nn.Linear(3, 4)
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "score": 0.5}
    save_checkpoint(folder / CHECKPOINT, state | {"random": torch.get_rng_state()})
    return folder / CHECKPOINT


def _model(folder: Path) -> Path:
    sets = [_numbers(3 + i % 3, 2) for i in range(12)]
    settings: dict[str, Any] = {"max_epochs": 1, "layers": (4,), "hidden": (4,), "random_state": 0}
    estimator = setwise.SetClassifier(**settings)
    estimator.fit(sets, [i % 2 for i in range(12)]).save(folder / "model.safetensors")
    return folder / "model.safetensors"


def _run(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        """The folder of a run that has come to its result."""
        run = folder / "gaussian" / "deepsets" / "rho-0.1_seed-0"
        kind = EXPERIMENTS["gaussian"]
        write_json(run / "config.json", asdict(kind()) | {"data": kind().data})
        result: dict[str, object] = {
            "experiment": "gaussian",
            "row": "deepsets",
            "seed": 0,
            "rho": 0.1,
            "accuracy": 0.5,
        }
        result |= {"data": kind().data, "budget": {"steps": 10, "sets": 320, "seconds": 1.5}}
        write_json(run / "result.json", result)
        return run / name

    return write


def _run_of(path: Path) -> object:
    return read_run(path.parent)


_CONFIG = {"task": "classify", "folds": 5, "seed": 0}


def _folds(folder: Path) -> Path:
    fold = {"sets": 3, "scores": {"accuracy": 0.5}, "trivial": {"accuracy": 0.25}}
    write_json(folder / "model.folds.json", {"config": _CONFIG, "folds": [fold, fold]})
    return folder / "model.folds.json"


def _kept(path: Path) -> object:
    return _RunProgress(path, path.parent, _CONFIG, resume=True).folds


# Arrays


def _sets_npz(folder: Path) -> Path:
    np.savez(folder / "sets.npz", X=_numbers(4, 5, 3), mask=np.ones((4, 5), bool), y=np.arange(4) % 2)
    return folder / "sets.npz"


def _grouped_npz(folder: Path) -> Path:
    path = folder / "grouped.npz"
    np.savez_compressed(path, m_X=_numbers(9, 3), m_bag=np.arange(9) // 3, m_y=np.array([0, 1, 1]))
    return path


def _bag(path: Path) -> object:
    return bags_from_folder(path.parent, {path.name: 0})[0]


def _npy(folder: Path) -> Path:
    np.save(folder / "a.npy", _numbers(6, 3))
    return folder / "a.npy"


def _bag_npz(folder: Path) -> Path:
    np.savez(folder / "a.npz", features=_numbers(6, 3), coords=np.arange(12).reshape(6, 2))
    return folder / "a.npz"


def _bag_hdf5(folder: Path) -> Path:
    with importlib.import_module("h5py").File(folder / "a.h5", "w") as file:
        file.create_dataset("features", data=_numbers(60, 3), chunks=(20, 3), compression="gzip")
        file.create_dataset("coords", data=np.arange(120).reshape(60, 2))
    return folder / "a.h5"


def _bag_torch(folder: Path) -> Path:
    torch.save({"features": torch.from_numpy(_numbers(6, 3)), "coords": torch.ones(6, 2)}, folder / "a.pt")
    return folder / "a.pt"


# Tables

_TABLE = "set,label,size,weight\n" + "".join(f"s{i // 3},{i // 6},{i}.5,{i * i}\n" for i in range(12))


def _text(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return write


def _csv_gz(folder: Path) -> Path:
    (folder / "table.csv.gz").write_bytes(gzip.compress(_TABLE.encode(), mtime=0))
    return folder / "table.csv.gz"


def _parquet(folder: Path) -> Path:
    table = importlib.import_module("pandas").DataFrame
    frame = table({"set": ["a", "a", "b", "b"] * 8, "label": [0, 0, 1, 1] * 8, "size": range(32)})
    frame.to_parquet(folder / "table.parquet")
    return folder / "table.parquet"


def _manifest(folder: Path) -> Path:
    for name in "abc":
        np.save(folder / f"{name}.npy", _numbers(4, 2))
    (folder / "manifest.csv").write_text("set,label\na,0\nb.npy,1\nc,1\n")
    return folder / "manifest.csv"


def _from_manifest(path: Path) -> object:
    return read_sets(path.parent)


# Images, meshes and point clouds


def _png(folder: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 36, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "tissue.png")
    return folder / "tissue.png"


def _image(path: Path) -> object:
    return read_images([path], ["benign"])


_CUBE = "OFF\n8 12 0\n" + "".join(f"{i & 1} {i >> 1 & 1} {i >> 2}\n" for i in range(8))
_CUBE += "".join(f"3 {i % 8} {(i + 1) % 8} {(i * 3 + 2) % 8}\n" for i in range(12))


def _off(folder: Path) -> Path:
    for kind in ("ball", "box"):
        for part in ("train", "test"):
            (folder / kind / part).mkdir(parents=True)
            (folder / kind / part / f"{kind}_{part}.off").write_text(_CUBE)
    return folder / "box" / "train" / "box_train.off"


def _meshes(path: Path) -> object:
    return modelnet.load_meshes(path.parents[2], points=16)


_SHAPES = {"train": 2, "test": 1}


def _modelnet(folder: Path) -> Path:
    for part, shapes in _SHAPES.items():
        with importlib.import_module("h5py").File(folder / f"ply_data_{part}0.h5", "w") as file:
            file.create_dataset("data", data=_numbers(shapes, 64, 3), compression="gzip")
            file.create_dataset("label", data=np.zeros((shapes, 1), np.uint8), compression="gzip")
        (folder / f"{part}_files.txt").write_text(f"data/ply_data_{part}0.h5\n")
    (folder / "shape_names.txt").write_text("ball\nbox\n")
    return folder / "ply_data_train0.h5"


def _clouds(path: Path) -> object:
    with _smaller(modelnet, "SHAPES", _SHAPES):
        return modelnet.load_modelnet(path.parent)


_PARTS = {"images_background": (1, 1), "images_evaluation": (1, 1)}


def _omniglot(folder: Path) -> Path:
    for part in _PARTS:
        with zipfile.ZipFile(folder / f"{part}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for i in range(DRAWINGS):
                pixels = np.full((SIDE, SIDE), 255, np.uint8)
                pixels[i, i:] = 0
                buffer = io.BytesIO()
                Image.fromarray(pixels).convert("1").save(buffer, "PNG")
                archive.writestr(f"{part}/Latin/character01/0001_{i + 1:02}.png", buffer.getvalue())
    return folder / "images_background.zip"


def _characters(path: Path) -> object:
    with _smaller(omniglot, "PARTS", _PARTS):
        return omniglot.load_omniglot(path.parent)


FORMATS = {
    "checkpoint": Format(_checkpoint, load_checkpoint, in_zip),
    "model": Format(_model, setwise.load),
    "npz sets": Format(_sets_npz, read_sets, in_zip),
    "npz bags": Format(_grouped_npz, lambda path: list(bags_from_npz(path, "m")), in_zip),
    "npz bag": Format(_bag_npz, _bag, in_zip),
    "npy bag": Format(_npy, _bag),
    "hdf5 bag": Format(_bag_hdf5, _bag),
    "torch bag": Format(_bag_torch, _bag, in_zip),
    "csv sets": Format(_text("table.csv", _TABLE), read_sets),
    "tsv sets": Format(_text("table.tsv", _TABLE.replace(",", "\t")), read_sets),
    "csv.gz sets": Format(_csv_gz, read_sets, in_gzip),
    "csv bags": Format(_text("bags.csv", _TABLE), lambda path: list(bags_from_csv(path, bag="set"))),
    "manifest": Format(_manifest, _from_manifest, by_folder=True),
    "parquet sets": Format(_parquet, read_sets),
    "png": Format(_png, _image, in_png),
    "off": Format(_off, _meshes),
    "hdf5 point clouds": Format(_modelnet, _clouds),
    "omniglot zip": Format(_omniglot, _characters, in_zip),
    "json": Format(_run("result.json"), read_json),
    "result.json": Format(_run("result.json"), _run_of, by_folder=True),
    "config.json": Format(_run("config.json"), _run_of, by_folder=True),
    "folds.json": Format(_folds, _kept),
}
