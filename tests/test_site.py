"""The documentation site: it builds without a warning, is complete, and fetches nothing."""

import doctest
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest

import setwise

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))

needs_mkdocs = pytest.mark.skipif(
    not (find_spec("mkdocs") and find_spec("mkdocstrings") and find_spec("material")),
    reason="the site needs mkdocs-material and mkdocstrings-python",
)


class Tags(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def all(self, tag: str, attribute: str) -> list[str]:
        return [found[attribute] for name, found in self.found if name == tag and attribute in found]

    def ids(self) -> set[str]:
        return {found["id"] for _, found in self.found if "id" in found}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; a process of its own, since MkDocs has warnings about itself."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@needs_mkdocs
def test_every_page_is_there_and_in_the_navigation(site: Path) -> None:
    reached = {
        (page.parent / unquote(link)).resolve().relative_to(site)
        for page in [site / "index.html", site / "api/index.html"]
        for link in Tags(page).all("a", "href")
        if link and not link.startswith(("http", "#")) and "#" not in link
    }
    for page in PAGES:
        made = Path(page).with_suffix(".html")
        assert (site / made).stat().st_size > 5_000, page
        assert made in reached, f"{page} is not in the navigation"
    assert not list(site.rglob("*.py"))


@needs_mkdocs
def test_public_names_are_in_the_reference(site: Path) -> None:
    anchors = {id for page in (site / "api").glob("*.html") for id in Tags(page).ids()}
    missing = [name for name in setwise.__all__ if f"setwise.{name}" not in anchors]
    assert not missing
    assert {"setwise.DMPS.build", "setwise.SetClassifier.predict_proba", "setwise.plots.set_graph"} <= anchors
    assert "setwise.SetClassifier.fit" in anchors  # which it inherits


@needs_mkdocs
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        tags = Tags(page)
        links = [
            found["href"]
            for name, found in tags.found
            if name == "link" and found.get("rel") not in ("prev", "next", "canonical")
        ]
        sources = [tags.all(tag, "src") for tag in ("script", "img", "iframe", "source")]
        for asset in [*links, *sum(sources, [])]:
            assert not re.match(r"(https?:)?//", asset), f"{page.name} fetches {asset}"
            assert (
                asset.startswith("data:")
                or (page.parent / unquote(asset)).is_file()
                or page.name == "404.html"
            )
    own = [path for path in site.rglob("*.css")]
    assert own
    for style in own:
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text()), style


@needs_mkdocs
def test_docstrings_are_rendered(site: Path) -> None:
    text = (site / "api/graphs.html").read_text(encoding="utf-8")
    assert not re.search(r"<p>[^<]*&gt;&gt;&gt;", text)  # a doctest as prose
    assert "<blockquote>" not in text
    assert re.search(r'<span class="gp">&gt;&gt;&gt; ?</span>', text)
    assert "language-pycon" in text
    assert "Parameters:" in text
    assert 'href="nn.html#setwise.AutoGraph"' in text  # `AutoGraph` in a docstring
    assert "Args:" not in text


@needs_mkdocs
def test_names_in_guides_lead_to_the_reference(site: Path) -> None:
    text = (site / "guides/bags.html").read_text(encoding="utf-8")
    assert 'href="../api/estimators.html#setwise.SetClassifier"' in text
    assert 'href="../api/graphs.html#setwise.importance"' in text
    assert "Keep a Changelog" in (site / "changelog.html").read_text(encoding="utf-8")


@needs_mkdocs
def test_search_knows_the_pages_without_a_server(site: Path) -> None:
    index = (site / "search/search_index.js").read_text(encoding="utf-8")
    assert index.startswith("var __index = ")
    assert "guides/bags.html#heat-maps" in index
    assert "window.Worker" in (site / "assets/iframe-worker.js").read_text()
    assert any(src.endswith("iframe-worker.js") for src in Tags(site / "index.html").all("script", "src"))


def test_extras_are_all_named() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (DOCS / "install.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) == set(extras) - {"dev"}


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)


def test_the_guide_to_the_command_line_shows_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unchecked: None
) -> None:
    from setwise.cli import main

    monkeypatch.chdir(tmp_path)
    (make_data,) = blocks("guides/cli.md", "python")
    exec(make_data, {})
    shown = "".join(blocks("guides/cli.md", "console"))
    steps = re.findall(r"^\$ setwise (.*)\n((?:(?!\$ ).*\n)*)", shown, flags=re.MULTILINE)
    assert [command.split()[0] for command, _ in steps] == ["fit", "predict", "inspect", "explore", "export"]
    for command, expected in steps:
        main(command.split())
        told = capsys.readouterr().out
        same = doctest.OutputChecker().check_output(
            expected, told, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
        assert same, f"setwise {command}\n{told}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_these_options(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    from setwise.cli import COMMANDS, main

    helped: dict[str, str] = {}
    for line in re.findall(r"^ *setwise (.*?)(?:  +#.*)?$", "".join(blocks(page, "sh")), flags=re.MULTILINE):
        command, *words = line.split()
        if command.startswith("-"):
            continue
        assert command in COMMANDS, line
        if command not in helped:
            experiment = [words[0]] if command == "run" else []
            with pytest.raises(SystemExit):
                main([command, *experiment, "--help"])
            helped[command] = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", helped[command]), f"setwise {command} has no {option}"


def test_commands_of_make_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [
        t for page in PAGES for t in re.findall(r"^make (\w+)", (DOCS / page).read_text(), re.MULTILINE)
    ]
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
