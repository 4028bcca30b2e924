"""README and docs: tables, links, names and commands are correct."""

import re
import runpy
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

from docs import refresh

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
HOMES = (
    "setwise",
    "setwise.nn",
    "setwise.functional",
    "setwise.tasks",
    "setwise.training",
    "setwise.inspection",
    "setwise.experiments",
    *(
        f"setwise.experiments.data.{path.stem}"
        for path in sorted((ROOT / "src/setwise/experiments/data").glob("[a-z]*.py"))
    ),
)

PARTS = ("estimators", "functional", "inspection", "io", "nn", "tasks", "training")
REFERENCED = ("setwise", *(f"setwise.{part}" for part in PARTS))


@pytest.mark.parametrize("page", refresh.pages(), ids=lambda p: p.name)
def test_tables_match_the_recorded_results(page: Path) -> None:
    text = page.read_text()
    assert len(re.findall("<!-- end -->", text)) > 0
    assert text == refresh.refreshed(text), "run 'make docs'"
    assert "<!-- end -->" in refresh.refreshed("<!-- benchmarks -->rubbish<!-- end -->")
    assert "rubbish" not in refresh.refreshed("<!-- benchmarks -->rubbish<!-- end -->")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_link_targets_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_names_in_the_paper_page_exist() -> None:
    text = (ROOT / "docs" / "paper.md").read_text()
    names = re.findall(
        r"`(?:setwise\.)?((?:functional|tasks|nn|training|inspection|experiments)\.[\w.]+)", text
    )
    assert len(names) > 20
    for name in names:
        assert resolve_name(f"setwise.{name}") is not None
    for name, attribute in re.findall(r"`([A-Z]\w+)(?:\.(\w+))?[`(]", text):
        owners = [getattr(import_module(home), name, None) for home in HOMES]
        owner = next((owner for owner in owners if owner is not None), None)
        assert owner is not None, name
        assert not attribute or hasattr(owner, attribute), f"{name}.{attribute}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_source_and_test_files_in_the_text_exist(page: Path) -> None:
    text = page.read_text()
    for file, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / file).is_file(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(), test
    for file in re.findall(r"`((?:nn|training|experiments|inspection|io|cli)/[\w/]+\.py)`", text):
        assert (ROOT / "src" / "setwise" / file).is_file(), file


def public_names(module: str) -> list[str]:
    """The public names of a package, or what a module defines itself."""
    loaded = import_module(module)
    if "__all__" in vars(loaded):
        return list(loaded.__all__)
    names = {name: value for name, value in vars(loaded).items() if not name.startswith("_")}
    whole = module == "setwise.nn"
    return [
        name
        for name, value in names.items()
        if (callable(value) if whole else getattr(value, "__module__", None) == module)
    ]


@pytest.mark.parametrize("module", REFERENCED)
def test_the_reference_has_every_public_name(module: str) -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    reference = set(re.findall(r"^::: (\S+)", pages, flags=re.MULTILINE))
    for name in public_names(module):
        if not isinstance(getattr(import_module(module), name), ModuleType):
            assert {module, f"{module}.{name}", f"setwise.{name}"} & reference, f"{module}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", page.read_text(), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for command in re.findall(r"^setwise (\w+) gaussian", page.read_text(), flags=re.MULTILINE):
        assert command in import_module("setwise.cli.main").COMMANDS


def test_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture.png"
    monkeypatch.setattr(sys, "argv", ["over_smoothing.py", str(picture)])
    runpy.run_path(str(ROOT / "examples" / "over_smoothing.py"), run_name="__main__")
    assert picture.stat().st_size > 10_000
    left = [float(x) for x in re.findall(r": (\S+) of the energy remains", capsys.readouterr().out)]
    assert left[0] < 1e-10 < 1e-7 < left[1] < 1e-3 < 0.5 < left[2]


def test_no_file_names_a_local_folder() -> None:
    for path in [*ROOT.glob("*.*"), *(p for d in ("src", "docs", "tests") for p in (ROOT / d).rglob("*.*"))]:
        if path.suffix in {".py", ".md", ".toml", ".txt", ".cff"} and path.name != "test_docs.py":
            assert not re.search(r"/work/|/root/|/tmp/|/home/", path.read_text()), path
