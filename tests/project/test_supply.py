"""The smoke test of the wheel, and the Makefile's targets around it."""

import importlib.util
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def smoke() -> Any:
    spec = importlib.util.spec_from_file_location("smoke", ROOT / "supply" / "smoke.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stray_files_of_a_wheel_are_reported(smoke: Any, tmp_path: Path) -> None:
    path = tmp_path / "setwise-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("setwise/a.py", "setwise/py.typed", "setwise-1.dist-info/METADATA", "tests/b.py"):
            archive.writestr(name, "")
    assert smoke.stray_files(path) == ["tests/b.py"]


@pytest.fixture
def program(smoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an environment of one program, which prints its folder and exits with the given code."""
    file = tmp_path / "bin" / "program"
    file.parent.mkdir()
    file.write_text('#!/bin/sh\necho "here: $PWD, path: $PYTHONPATH."\nexit $1\n')
    file.chmod(0o755)
    monkeypatch.setattr(smoke, "BIN", file.parent)
    monkeypatch.setenv("PYTHONPATH", "leak")
    return tmp_path


def test_commands_run_outside_of_the_checkout(
    smoke: Any, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smoke.call(("program", "0"), program, rf"^here: {program}, path: \.$")
    assert re.search(r"\d\.\d s  program 0$", capsys.readouterr().out.strip())
    smoke.call(("program", "3"), program, "here", fails=True)


@pytest.mark.parametrize(
    ("code", "expected", "fails"), [("1", "here", False), ("0", "here", True), ("0", "elsewhere", False)]
)
def test_unexpected_output_ends_the_smoke_test(
    smoke: Any, program: Path, code: str, expected: str, fails: bool
) -> None:
    with pytest.raises(SystemExit, match=rf"(?s)program {code} must .* got {code}:.here"):
        smoke.call(("program", code), program, expected, fails=fails)


def test_the_clean_environment_has_the_torch_of_the_constraints(smoke: Any, tmp_path: Path) -> None:
    assert smoke.torch_version() in (ROOT / "constraints.txt").read_text().split()
    (tmp_path / "Makefile").write_text("pip install torch\n")
    with pytest.raises(ValueError, match="Makefile must install torch by its version"):
        smoke.torch_version(tmp_path / "Makefile")


def test_the_smoke_test_needs_a_wheel(smoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"dist must contain one wheel \(make wheel\), got 0"):
        smoke.main()
