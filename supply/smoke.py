"""Does the wheel work where nothing else is? ``python -m supply.smoke`` installs it in a clean environment.

First bare, then with every extra, and each time its commands are run from a folder outside of the checkout,
so that neither its sources nor its environment can step in. Needs ``python -m supply.wheel`` before.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from supply import ROOT, RUNTIME

CLEAN = ROOT / "build" / "clean"
BIN = CLEAN / "venv" / "bin"
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
# What is not there says so, and how to get it.
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
        r"model\.onnx: x \[batch, elements, 2\]",
    ),
    (("setwise", "explore", "model.safetensors", "bags.csv", "-o", "page.html"), r"page\.html"),
    (("python", "-c", "import dask.distributed, faiss, h5py, matplotlib, tensorboard, trimesh"), r"^$"),
    (("pip", "check"), r"No broken requirements found"),
]
WRITTEN = {"out.csv": b"set,prediction", "model.onnx": b"", "page.html": b"<!doctype html>"}


def bags() -> str:
    """A table of 24 small sets of two classes, which lie apart."""
    draw = random.Random(0)
    lines = [
        f"s{number},{'yes' if number % 2 else 'no'},{draw.gauss(3 * (number % 2)):.3f},{draw.gauss():.3f}"
        for number in range(24)
        for _ in range(3 + number % 3)
    ]
    return "\n".join(["set,label,a,b", *lines]) + "\n"


def call(command: Sequence[str], folder: Path, expected: str, fails: bool = False) -> None:
    """Run a command of the clean environment and compare what it says.

    Args:
        command: A program of the environment, and its arguments.
        folder: Where to run it.
        expected: A regular expression to find in the output.
        fails: Whether it should fail.
    """
    start = time.monotonic()
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=folder,
        env=kept | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    short = " ".join(command).replace(f"{ROOT}{os.sep}", "")[:90]
    if bool(done.returncode) != fails or not re.search(expected, said, flags=re.MULTILINE):
        outcome = "fail" if fails else "work"
        raise SystemExit(f"{short} must {outcome} and say {expected!r}, got {done.returncode}:\n{said}")
    print(f"{time.monotonic() - start:6.1f} s  {short}", flush=True)


def install(report: str, *packages: str) -> None:
    """Install with pip under the constraints, and keep its report of what came from where."""
    path = CLEAN / "reports" / f"{report}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Compiling all of torch takes longer than compiling what is imported.
    options = (
        "--quiet",
        "--no-compile",
        "--report",
        str(path),
        "--constraint",
        str(ROOT / "constraints.txt"),
    )
    call(("pip", "install", *packages, *options), CLEAN, "")


def torch_version(makefile: Path = ROOT / "Makefile") -> str:
    """The torch that the Makefile installs, such as ``torch==2.13.0``."""
    found = re.search(r"torch==\S+", makefile.read_text())
    if found is None:
        raise ValueError(f"{makefile.name} must install torch by its version, got no torch==…")
    return found[0]


def main() -> None:
    """Install and try."""
    start = time.monotonic()
    wheels = sorted((ROOT / "dist").glob("setwise-*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"dist must hold one wheel (make wheel), got {len(wheels)}")
    shutil.rmtree(CLEAN, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(CLEAN / "venv")], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bags.csv").write_text(bags())
        install("1-torch", torch_version())
        install("2-bare", str(wheels[0]))
        for command, expected in BARE:
            call(command, folder, expected)
        for command, expected in MISSING:
            call(command, folder, expected, fails=True)
        install("3-extras", f"setwise[{','.join(RUNTIME)}] @ {wheels[0].as_uri()}")
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
