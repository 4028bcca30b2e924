"""The documentation site builds without warnings, is complete and loads nothing from the network."""

import doctest
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


class Page(HTMLParser):
    """The text of a page, and its tags with their attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def all(self, tag: str, attribute: str) -> list[str]:
        return [values[attribute] for name, values in self.tags if name == tag and attribute in values]


Site = dict[str, Page]


def test_site(tmp_path: Path) -> None:
    """One test, so that the site is built once even if several processes run the tests."""
    for package in ("material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package)
    # A separate process, because MkDocs warns about itself; not --quiet, which would disable --strict.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    messages = [line for line in f"{done.stdout}{done.stderr}".splitlines() if not line.startswith("INFO ")]
    assert (done.returncode, messages) == (0, [])
    site = {path.relative_to(tmp_path).as_posix(): Page(path) for path in tmp_path.rglob("*.html")}
    every_page_is_in_the_navigation(site, tmp_path)
    public_names_are_in_the_reference(site)
    nothing_is_loaded_from_the_network(site, tmp_path)
    docstrings_are_rendered(site)
    formulas_are_typeset(site)
    names_in_guides_link_to_the_reference(site)
    search_works_without_a_server(site, tmp_path)


def every_page_is_in_the_navigation(site: Site, folder: Path) -> None:
    reached = {
        (site[start].path.parent / link).resolve().relative_to(folder).as_posix()
        for start in ("index.html", "api/index.html")
        for link in site[start].all("a", "href")
        if link and not link.startswith("http") and "#" not in link
    }
    for page in PAGES:
        made = page.removesuffix(".md") + ".html"
        assert len(site[made].text) > 5_000, page
        assert made in reached, f"{page} is not in the navigation"
    assert not list(folder.rglob("*.py"))


def public_names_are_in_the_reference(site: Site) -> None:
    reference = [page for name, page in site.items() if name.startswith("api/")]
    anchors = {values["id"] for page in reference for _, values in page.tags if "id" in values}
    package = import_module("setwise")
    names = [name for name in package.__all__ if not isinstance(getattr(package, name), ModuleType)]
    assert not [name for name in names if f"setwise.{name}" not in anchors]
    assert {
        "setwise.DMPS.build",
        "setwise.nn.LocalMoments",
        "setwise.functional.propagate",
        "setwise.inspection.strongest_neighbours",
        "setwise.SetClassifier.predict_proba",
        "setwise.inspection.plots.set_graph",
    } <= anchors
    assert "setwise.SetClassifier.fit" in anchors  # inherited


def nothing_is_loaded_from_the_network(site: Site, folder: Path) -> None:
    for name, page in site.items():
        fetched = [page.all(tag, "src") for tag in ("script", "img", "iframe", "source")]
        fetched.append(
            [f["href"] for tag, f in page.tags if tag == "link" and f["rel"] not in ("prev", "next")]
        )
        for asset in chain(*fetched):
            assert not re.match(r"(https?:)?//", asset), f"{name} fetches {asset}"
            there = page.path.parent / asset if name != "404.html" else folder / asset.lstrip("/")
            assert asset.startswith("data:") or there.is_file(), f"{name} has no {asset}"
    styles = list(folder.rglob("*.css"))
    assert any(style.name == "site.css" for style in styles)
    for style in styles:
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text()), style


def docstrings_are_rendered(site: Site) -> None:
    for name, page in site.items():
        if name.startswith("api/"):
            assert not re.search(r"<p>[^<]*&gt;&gt;&gt;", page.text), name  # a doctest as prose
            assert not re.search(r"<p>(Args|Returns|Attributes):", page.text), name
            assert "<blockquote>" not in page.text, name
    text = site["api/graphs.html"].text
    assert re.search(r'<span class="gp">&gt;&gt;&gt; ?</span>', text)
    assert "Parameters:" in text
    assert 'href="nn.html#setwise.nn.AutoGraph"' in text  # `AutoGraph` in a docstring


def formulas_are_typeset(site: Site) -> None:
    page = site["paper.html"]
    formulas = [values["alt"] for tag, values in page.tags if tag == "img" and values.get("class") == "math"]
    assert any(r"\Vert x_i - x_j \Vert" in formula for formula in formulas), formulas


def names_in_guides_link_to_the_reference(site: Site) -> None:
    links = site["guides/bags.html"].all("a", "href")
    assert "../api/estimators.html#setwise.SetClassifier" in links
    assert "../api/graphs.html#setwise.importance" in links
    assert "scale.html" in site["changelog.html"].all("a", "href")
    assert "Keep a Changelog" in site["changelog.html"].text


def search_works_without_a_server(site: Site, folder: Path) -> None:
    index = (folder / "search" / "search_index.js").read_text(encoding="utf-8")
    assert index.startswith("var __index = ")
    assert "guides/bags.html#heat-maps" in index
    assert "assets/iframe-worker.js" in site["index.html"].all("script", "src")


def test_the_install_page_lists_all_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (DOCS / "install.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) == set(extras) - {"dev"}


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)


def test_the_command_line_guide_shows_the_actual_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unchecked: None
) -> None:
    from setwise.cli.main import main

    monkeypatch.chdir(tmp_path)
    (make_data,) = blocks("guides/cli.md", "python")
    exec(make_data, {})
    shown = "".join(blocks("guides/cli.md", "console"))
    steps = re.findall(r"^\$ setwise (.*)\n((?:(?!\$ ).*\n)*)", shown, flags=re.MULTILINE)
    assert [command.split()[0] for command, _ in steps] == ["fit", "predict", "inspect", "explore", "export"]
    for command, expected in steps:
        main(command.split())
        output = capsys.readouterr().out
        same = doctest.OutputChecker().check_output(
            expected, output, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
        assert same, f"setwise {command}\n{output}"


@pytest.mark.parametrize("page", PAGES)
def test_options_of_commands_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    from setwise.cli.main import COMMANDS, main

    helps: dict[str, str] = {}
    for line in re.findall(r"^ *setwise (.*?)(?:  +#.*)?$", "".join(blocks(page, "sh")), flags=re.MULTILINE):
        command, *words = line.split()
        if command.startswith("-"):
            continue
        assert command in COMMANDS, line
        if command not in helps:
            experiment = [words[0]] if command == "run" else []
            with pytest.raises(SystemExit):
                main([command, *experiment, "--help"])
            helps[command] = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", helps[command]), f"setwise {command} has no {option}"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [
        t for page in PAGES for t in re.findall(r"^make (\w+)", (DOCS / page).read_text(), re.MULTILINE)
    ]
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
