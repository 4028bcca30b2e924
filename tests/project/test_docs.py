"""What README and docs say is true: tables, links, names, commands."""

import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest

from docs import refresh

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("page", refresh.pages(), ids=lambda p: p.name)
def test_tables_are_those_of_the_results_on_record(page: Path) -> None:
    text = page.read_text()
    assert len(re.findall("<!-- end -->", text)) > 0
    assert text == refresh.refreshed(text), "run 'make docs'"
    assert "<!-- end -->" in refresh.refreshed("<!-- benchmarks -->rubbish<!-- end -->")
    assert "rubbish" not in refresh.refreshed("<!-- benchmarks -->rubbish<!-- end -->")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_names_in_the_map_of_the_paper_exist() -> None:
    text = (ROOT / "docs" / "paper.md").read_text()
    for name in re.findall(r"`((?:functional|tasks|data\.gaussian|data\.characters)\.\w+)", text):
        module, attribute = name.rsplit(".", 1)
        assert hasattr(import_module(f"setwise.{module}"), attribute), name
    for name, attribute in re.findall(r"`([A-Z]\w+)(?:\.(\w+))?[`(]", text):
        homes = ("setwise", "setwise.experiments", "setwise.experiments.data.characters")
        found = next(
            getattr(import_module(home), name) for home in homes if hasattr(import_module(home), name)
        )
        assert not attribute or hasattr(found, attribute), f"{name}.{attribute}"
    for file, test in re.findall(r"`(tests/\w+\.py)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / file).read_text(), test


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
    left = [float(x) for x in re.findall(r": (\S+) of the energy is left", capsys.readouterr().out)]
    assert left[0] < 1e-10 < 1e-7 < left[1] < 1e-3 < 0.5 < left[2]


def test_the_project_speaks_of_itself_alone() -> None:
    for path in [*ROOT.glob("*.*"), *(p for d in ("src", "docs", "tests") for p in (ROOT / d).rglob("*.*"))]:
        if path.suffix in {".py", ".md", ".toml", ".txt", ".cff"} and path.name != "test_docs.py":
            assert not re.search(r"/work/|/root/|/tmp/|/home/", path.read_text()), path
