"""Hostile files are read or refused in a sentence, nothing unpickles, and the harness notices."""

import ast
import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import setwise
from endurance import hostile
from endurance.cases import CASES, FORMATS
from endurance.hostile import Child, Reader, damaged, main
from endurance.mutations import mutate
from endurance.watching import observe
from setwise.io.arrays import read_npy, read_npz

SOURCE = Path(setwise.__file__).parent
LARGE_ONES = ("a bomb", "one line that is a bomb", "a text in many rows", "a chunk that is a bomb")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield Reader(FORMATS, CASES, folder)


# Files


@pytest.mark.parametrize("name", FORMATS)
def test_mutants_are_read_or_refused(reader: Reader, name: str) -> None:
    found = [reader.mutant(name, number, seed=1) for number in range(20)]
    assert [outcome.message for outcome in found if outcome.kind == "fault"] == []
    assert sum(outcome.kind == "refused" for outcome in found) >= 2


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name, cases in CASES.items() for case in cases if case not in LARGE_ONES],
)
def test_files_made_with_intent_are_refused(reader: Reader, name: str, case: str) -> None:
    outcome = reader.case(name, case)
    assert outcome.kind == "refused", outcome.message
    if outcome.megabytes >= 128:  # pages that the kernel had reclaimed count as growth when they come back
        outcome = reader.case(name, case)
    assert outcome.megabytes < 128
    assert not Path("owned").exists()


@pytest.mark.parametrize(
    ("name", "case", "message"),
    [
        (
            "npz bag",
            "a bomb",
            " bytes in a file of this size, got 536,871,168",
        ),
        ("hdf5 bag", "a chunk that is a bomb", "expected chunks of 192 bytes in features, got a larger one"),
        ("csv.gz sets", "one line that is a bomb", " bytes in a file of this size, got "),
        ("parquet sets", "a text in many rows", "expected at most 268,435,456 bytes in a file of this size"),
        ("torch bag", "a bomb", "expected an uncompressed archive"),
    ],
)
def test_bombs_are_refused_before_they_go_off(reader: Reader, name: str, case: str, message: str) -> None:
    outcome = reader.case(name, case)
    assert (outcome.kind, message in outcome.message) == ("refused", True), outcome.message


@pytest.mark.parametrize(
    ("name", "case", "message"),
    [
        ("npy bag", "a claim", "got 12,000,000,000,000"),
        ("npy bag", "a negative claim", "got 12,000,000,000,000"),
        ("npy bag", "a claim of nothing, many times", "got 4,000,000,000,000"),
        ("npz sets", "the directory claims much", "got "),
        ("hdf5 bag", "a claim in one piece", "got 48,000,000,000,000"),
        ("hdf5 bag", "a link to another file", "expected features in the file itself, got a link"),
        ("hdf5 bag", "a virtual data set", "got a data set that is stored in other files"),
        ("hdf5 bag", "stored in another file", "got a data set that is stored in other files"),
        ("hdf5 bag", "an unusual filter", "each at most once, got IDs [6]"),
        ("torch bag", "a pickle", "expected a file in the zip format of torch.save"),
        ("torch bag", "a pickle that calls, in an archive", "it contains more than tensors: posix system"),
        ("torch bag", "a bytearray that claims much", "it contains more than tensors: __builtin__ bytearray"),
        ("torch bag", "one number as many", "got 4,000,000,000,000"),
        ("png", "as many pixels as pillow does not warn of", "tissue.png is not a readable image"),
        ("png", "a program in PostScript", "tissue.png is not a readable image"),
        ("omniglot zip", "a name that leads elsewhere", "../../x.png: expected images_background/<alphabet>"),
        ("json", "nested deeply", "maximum recursion depth"),
    ],
)
def test_what_is_said_of_them(reader: Reader, name: str, case: str, message: str) -> None:
    assert message in reader.case(name, case).message


def test_valid_files_of_every_format_are_read(reader: Reader) -> None:
    for name, kind in FORMATS.items():
        assert observe(kind.read, reader._fresh(name), writes=reader.folder / "cache").kind == "read", name


def test_arrays_that_are_as_large_as_they_say(tmp_path: Path) -> None:
    import numpy as np

    x = np.arange(2**19, dtype=np.float64)  # larger than what any file may claim
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x, y=np.zeros((0, 7)))
    assert (read_npy(tmp_path / "x.npy") == x).all()
    found = read_npz(tmp_path / "x.npz", ["x", "y"])
    assert (found["x"] == x).all()
    assert found["y"].shape == (0, 7)


# The source


FORBIDDEN = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "joblib.load", "dill.load", "dill.loads"),
    *("cloudpickle.load", "cloudpickle.loads", "marshal.load", "marshal.loads", "shelve.open", "yaml.load"),
    *("eval", "exec", "compile", "os.system", "tarfile.open", "shutil.unpack_archive", "torch.jit.load"),
}
METHODS = {"extractall", "extract", "read_pickle", "unpack_archive", "Unpickler"}


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """Every call, by its full name, whatever the module was imported as."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            found.append((names.get(first, first) + dot + rest, node))
    return found


def dangers(tree: ast.AST) -> list[str]:
    found = []
    for name, call in calls(tree):
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if name in FORBIDDEN or ("." in name and name.rpartition(".")[2] in METHODS):
            found.append(name)
        if name in ("numpy.load", "numpy.lib.format.read_array") and given.get("allow_pickle") != "False":
            found.append(name)
        if name == "torch.load" and given.get("weights_only") != "True":
            found.append(name)
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_in_the_source_unpickles(path: Path) -> None:
    assert dangers(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import pickle\npickle.loads(x)", "pickle.loads"),
        ("from pickle import load as read\nread(x)", "pickle.load"),
        ("import numpy as np\nnp.load(x)", "numpy.load"),
        ("import numpy as np\nnp.load(x, allow_pickle=True)", "numpy.load"),
        ("import numpy as np\nnp.lib.format.read_array(x)", "numpy.lib.format.read_array"),
        ("import torch\ntorch.load(x)", "torch.load"),
        ("import torch\ntorch.load(x, weights_only=False)", "torch.load"),
        ("archive.extractall(x)", "archive.extractall"),
        ("import pandas\npandas.read_pickle(x)", "pandas.read_pickle"),
        ("eval(x)", "eval"),
    ],
)
def test_the_walk_finds_what_it_looks_for(code: str, name: str) -> None:
    assert dangers(ast.parse(code)) == [name]


# The harness


def test_the_same_seed_gives_the_same_mutants() -> None:
    data = bytes(range(256))
    mutants = [damaged(data, None, seed=3, name="a", number=i) for i in range(50)]
    assert mutants == [damaged(data, None, seed=3, name="a", number=i) for i in range(50)]
    assert len(set(mutants)) > 40
    assert mutants != [damaged(data, None, seed=4, name="a", number=i) for i in range(50)]
    assert isinstance(mutate(b"", hostile.random.Random(0)), bytes)


def writing(path: Path) -> None:
    path.with_name("other").write_text("x")


def failing(path: Path) -> None:
    raise KeyError(path.name)


def nameless(path: Path) -> None:
    raise ValueError("something is wrong")


def wordy(path: Path) -> None:
    raise ValueError(f"{path}: one\ntwo")


def greedy(path: Path) -> None:
    with mmap.mmap(-1, 150 * 2**20) as data:  # past what the process may have kept of freed memory
        for _ in range(150):
            data.write(bytes(2**20))
    raise ValueError(f"{path}: too much")


def asking(path: Path) -> None:
    try:
        raise MemoryError
    except MemoryError as error:
        raise ValueError(f"{path}: too large") from error


def starting(path: Path) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def unpickling(path: Path) -> None:
    import pickle

    pickle.loads(b"cbuiltins\nlen\n.")


def executing(path: Path) -> None:
    exec("1 + 1")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (writing, "for writing"),
        (failing, "KeyError"),
        (nameless, "does not name the file"),
        (wordy, "more than a sentence"),
        (greedy, "it took 1"),
        (asking, "memory that is not there"),
        (starting, "subprocess.Popen"),
        (unpickling, "pickle.find_class"),
        (executing, "exec"),
    ],
)
def test_a_reader_that_does_what_it_must_not_is_noticed(tmp_path: Path, read: Any, message: str) -> None:
    outcome = observe(read, tmp_path / "file.x", most_megabytes=100)
    assert outcome.kind == "fault"
    assert message in outcome.message


def test_what_is_allowed_is_no_fault(tmp_path: Path) -> None:
    assert observe(writing, tmp_path / "file.x", writes=tmp_path).kind == "read"
    assert observe(lambda path: path.read_bytes(), tmp_path / "file.x").kind == "refused"


BAD_FORMATS = """
import ctypes
import time
from dataclasses import dataclass
from pathlib import Path

def write(folder):
    (folder / "a.x").write_bytes(b"good")
    return folder / "a.x"

@dataclass
class Format:
    read: object
    write: object = write
    inside: object = None
    by_folder: bool = False

def only_good(then):
    return lambda path: None if path.read_bytes() == b"good" else then()

FORMATS = {
    "crash": Format(only_good(lambda: ctypes.string_at(0))),
    "hang": Format(only_good(lambda: time.sleep(60))),
    "fine": Format(lambda path: None),
}
CASES = {"fine": {"anything": lambda path: None}}
"""


def test_crashes_and_hangs_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad_formats.py").write_text(BAD_FORMATS)
    path = f"{tmp_path}:{Path(__file__).parents[2]}:{SOURCE.parent}"
    monkeypatch.setenv("PYTHONPATH", path)
    child = Child("bad_formats", hang=2.0)
    try:
        assert child.ask(name="fine", number=0, seed=0).kind == "read"
        crashed = child.ask(name="crash", number=0, seed=0)
        assert (crashed.kind, crashed.message) == ("fault", "the process ended with -11")
        assert child.ask(name="fine", number=0, seed=0).kind == "read"
        hung = child.ask(name="hang", number=0, seed=0)
        assert (hung.kind, hung.message) == ("fault", "it was still being read after 2 seconds")
        assert "as if it were a good one" in child.ask(name="fine", case="anything").message
    finally:
        child.close()
    assert not child.folder.exists()


def test_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}:{SOURCE.parent}")
    out = tmp_path / "hostile.json"
    code = main(["--mutations", "4", "--only", "folds.json", "--out", str(out)])
    report = json.loads(out.read_text())
    assert (code, report["faults"], report["seed"]) == (0, 0, 0)
    one = report["formats"]["folds.json"]
    assert (one["mutants"], one["read"] + one["refused"], one["fault_list"]) == (4, 4, [])
    assert [case["kind"] for case in report["cases"]] == ["refused"] * len(CASES["folds.json"])
    assert {"python", "torch", "numpy", "h5py"} <= set(report["versions"])
    assert "folds.json" in capsys.readouterr().out
