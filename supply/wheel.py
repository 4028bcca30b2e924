"""Wheel and source distribution: ``python -m supply.wheel`` builds both and looks into them.

The wheel is built from the source distribution and once more from the checkout. Both must be the same to the
last bit, so that the source distribution is complete and the build can be repeated by anyone.
"""

import email
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from supply import ROOT

DIST = ROOT / "dist"
AGAIN = ROOT / "build" / "again"
SOURCE = {".py", ".html", ".css", ".js", ".typed"}
METADATA = ("Name", "Version", "Summary", "License-Expression", "License-File", "Requires-Python", "Keywords")


def run(*command: str | Path) -> str:
    """Run a command in the checkout and return what it says; a failure shows all of it."""
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def tracked() -> list[str] | None:
    """The files under version control, or None where there is none, as in an unpacked source distribution."""
    return run("git", "ls-files").splitlines() if (ROOT / ".git").exists() else None


def wheel_faults(path: Path, source: Sequence[str]) -> list[str]:
    """What is wrong with a wheel, in words.

    Args:
        path: The wheel.
        source: The files it should hold, such as ``setwise/cli.py``.
    """
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        about = next((name for name in names if name.endswith(".dist-info/METADATA")), None)
        metadata = email.message_from_bytes(wheel.read(about) if about else b"")
    held = {name for name in names if ".dist-info/" not in name}
    return [
        *(f"the wheel must hold {name}" for name in sorted(set(source) - held)),
        *(f"the wheel must not hold {name}" for name in sorted(held - set(source))),
        *(f"the wheel's metadata must have {field}" for field in METADATA if not metadata[field]),
        *(f"the wheel must hold its {end}" for end in ("licenses/LICENSE", "entry_points.txt", "RECORD")
          if not any(name.endswith(f".dist-info/{end}") for name in names)),
    ]  # fmt: skip


def sdist_faults(path: Path, source: Sequence[str]) -> list[str]:
    """What is wrong with a source distribution: its tests can run if it holds all under version control."""
    with tarfile.open(path) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames()} - {"PKG-INFO"}
    return [
        *(f"the source distribution must hold {name}" for name in sorted(set(source) - held)),
        *(f"the source distribution must not hold {name}" for name in sorted(held - set(source))),
    ]


def package_files(source: Sequence[str]) -> list[str]:
    """The files of the package among those of the checkout, as a wheel names them.

    >>> package_files(["src/setwise/cli.py", "src/setwise/notes.txt", "tests/test_cli.py"])
    ['setwise/cli.py']
    """
    return [
        name.removeprefix("src/")
        for name in source
        if re.match(r"src/setwise/", name) and Path(name).suffix in SOURCE
    ]


def main() -> None:
    """Build, look inside, build again."""
    for folder in (DIST, AGAIN):
        for old in folder.glob("setwise-*"):
            old.unlink()
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir")
    run(*build, DIST)  # the source distribution, and the wheel from it
    run(*build, AGAIN, "--wheel")
    (wheel,), (sdist,), (again,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz"), AGAIN.glob("*.whl")
    faults = []
    if (source := tracked()) is not None:
        faults = wheel_faults(wheel, package_files(source)) + sdist_faults(sdist, source)
    if wheel.read_bytes() != again.read_bytes():
        faults.append("the wheel from the source distribution must be that from the checkout, got another")
    if faults:
        raise SystemExit("\n".join(faults))
    print(f"dist/{wheel.name}, dist/{sdist.name}: complete, nothing stray, built twice to the same bits")


if __name__ == "__main__":
    main()
