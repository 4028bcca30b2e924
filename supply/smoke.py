"""Smoke test of the wheel in ``dist``: ``make wheel`` builds it and runs this script.

The wheel must contain the package alone. It is installed into the clean environment ``build/clean``, first
without and then with the extras, and its commands are run from a folder outside of the checkout.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLEAN = ROOT / "build" / "clean"
BIN = CLEAN / "bin"
EXTRAS = ("data", "neighbours", "plots", "sklearn", "tables", "export", "cluster", "tensorboard")
WHERE = "import setwise, sys; print(setwise.__version__, setwise.__file__.startswith(sys.prefix))"
BARE = [
    (("python", "-c", WHERE), r"^\d+\.\d+\.\d+ True$"),
    (("python", "-c", "import setwise as sw; print(sw.DMPS.build(in_dim=3, out_dim=1, dim=8))"), r"DMPS"),
    (("setwise", "--help"), r"fit,predict,inspect,export,explore,run"),
    (("setwise", "rows", "gaussian"), r"deepsets(.|\n)*v-dmps"),
    (
        (*("setwise", "run", "gaussian", "--row", "v-dmps", "--training.steps", "20"), "--test-sets", "2000"),
        r"V-DMPS .*test accuracy 0\.\d+",
    ),
]
# Commands that need an extra name it.
MISSING = [
    (("python", "-c", "import setwise; setwise.SetClassifier"), r"need scikit-learn.*setwise\[sklearn\]"),
    (("setwise", "fit", "bags.csv", "-o", "model.safetensors"), r"needs? .*pip install 'setwise\[\w+\]'"),
]
WHOLE = [
    (
        ("setwise", "fit", "bags.csv", "-o", "model.safetensors", "--max-epochs", "30"),
        r"accuracy +(1|0\.\d+)",
    ),
    (
        ("setwise", "predict", "model.safetensors", "bags.csv", "-o", "out.csv"),
        r"24 sets, accuracy (1|0\.[89])",
    ),
    (("setwise", "inspect", "model.safetensors", "bags.csv"), r"prediction +(yes|no)"),
    (
        ("setwise", "export", "model.safetensors", "-o", "model.onnx"),
        r"model\.onnx: .*x \[batch, elements, 2\]",
    ),
    (("setwise", "explore", "model.safetensors", "bags.csv", "-o", "page.html"), r"page\.html"),
    (("python", "-c", "import dask.distributed, faiss, h5py, matplotlib, tensorboard, trimesh"), r"^$"),
    (("pip", "check"), r"No broken requirements found"),
]
WRITTEN = {"out.csv": b"set,prediction", "model.onnx": b"", "page.html": b"<!doctype html>"}


def bags() -> str:
    """Return a CSV table of 24 small sets of two well-separated classes."""
    draw = random.Random(0)
    lines = [
        f"s{number},{'yes' if number % 2 else 'no'},{draw.gauss(3 * (number % 2)):.3f},{draw.gauss():.3f}"
        for number in range(24)
        for _ in range(3 + number % 3)
    ]
    return "\n".join(["set,label,a,b", *lines]) + "\n"


def call(command: Sequence[str], folder: Path, expected: str, fails: bool = False) -> None:
    """Run a command of the clean environment and check its output.

    Args:
        command: a program of the environment, and its arguments.
        folder: working directory.
        expected: regular expression that the output must match.
        fails: whether the command must fail.
    """
    start = time.monotonic()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=folder,
        env=environment | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    short = " ".join(command).replace(f"{ROOT}{os.sep}", "")[:90]
    if bool(done.returncode) != fails or not re.search(expected, output, flags=re.MULTILINE):
        outcome = "fail" if fails else "work"
        raise SystemExit(f"{short} must {outcome} and print {expected!r}, got {done.returncode}:\n{output}")
    print(f"{time.monotonic() - start:6.1f} s  {short}", flush=True)


def install(*packages: str) -> None:
    """Install packages with pip under the constraints."""
    # Compiling all of torch takes longer than compiling what is imported.
    options = ("--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt"))
    call(("pip", "install", *packages, *options), CLEAN, "")


def stray_files(wheel: Path) -> list[str]:
    """Return the files of a wheel that belong neither to the package nor to its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return [name for name in names if not re.match(r"setwise/|setwise-[^/]+\.dist-info/", name)]


def torch_version(makefile: Path = ROOT / "Makefile") -> str:
    """Return the torch that the Makefile installs, such as ``torch==2.13.0``."""
    match = re.search(r"torch==\S+", makefile.read_text())
    if match is None:
        raise ValueError(f"{makefile.name} must install torch by its version, got no torch==…")
    return match[0]


def main() -> None:
    """Check the wheel, install it, and run its commands."""
    start = time.monotonic()
    wheels = sorted((ROOT / "dist").glob("setwise-*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"dist must contain one wheel (make wheel), got {len(wheels)}")
    if stray := stray_files(wheels[0]):
        raise SystemExit(f"{wheels[0].name} must contain the package alone, got {', '.join(stray)}")
    shutil.rmtree(CLEAN, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(CLEAN)], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bags.csv").write_text(bags())
        install(torch_version())
        install(str(wheels[0]))
        for command, expected in BARE:
            call(command, folder, expected)
        for command, expected in MISSING:
            call(command, folder, expected, fails=True)
        install(f"setwise[{','.join(EXTRAS)}] @ {wheels[0].as_uri()}")
        for command, expected in WHOLE:
            call(command, folder, expected)
        for file, head in WRITTEN.items():
            if not (folder / file).read_bytes().lower().startswith(head):
                raise SystemExit(
                    f"{file} must begin with {head!r}, got {(folder / file).read_bytes()[:40]!r}"
                )
    print(f"{time.monotonic() - start:6.1f} s  in all: {wheels[0].name} works in a clean environment")


if __name__ == "__main__":
    main()
