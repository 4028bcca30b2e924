"""What the documentation site makes of Markdown and of docstrings; MkDocs and griffe load this file.

Doctests become code blocks, a name of the library in backquotes becomes a link to its reference, and the
changelog, which lies beside the README, becomes a page.
"""

import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parent.parent
FENCED = re.compile(r"^ *```.*?^ *```$", flags=re.DOTALL | re.MULTILINE)
NAME = re.compile(r"(?<![`\[])`([\w.]+)`(?![`\]])")
REFERENCE = {
    name
    for page in (ROOT / "docs" / "api").glob("*.md")
    for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
}


def with_links(text: str) -> str:
    """The text with names that are in the reference as links; those in small letters need their module.

    >>> with_links("a `DMPS`, `DMPS.build` and `sw.fit`, but `fit`")
    'a [`DMPS`][setwise.DMPS], [`DMPS.build`][setwise.DMPS.build] and [`sw.fit`][setwise.fit], but `fit`'
    """

    def link(match: re.Match[str]) -> str:
        name = re.sub(r"^sw\.", "setwise.", match[1])
        if name[0].isupper():
            name = f"setwise.{name}"
        known = {name, name.rpartition(".")[0]} & REFERENCE
        return f"[{match[0]}][{name}]" if known else match[0]

    pieces, end = [], 0
    for start, stop in [*(block.span() for block in FENCED.finditer(text)), (len(text), len(text))]:
        pieces += [NAME.sub(link, text[end:start]), text[start:stop]]
        end = stop
    return "".join(pieces)


def with_code_blocks(text: str) -> str:
    r"""The text with its doctests as blocks of code.

    >>> with_code_blocks("Adds.\n\n>>> 1 + 1\n2\n\nEnd.")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nEnd.'
    """
    paragraph = re.compile(r"^( *)>>> .*?(?=\n\s*\n|\Z)", flags=re.DOTALL | re.MULTILINE)
    return paragraph.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)


class Docstrings(griffe.Extension):
    """Docstrings as the site shows them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change a docstring when it has been read."""
        if obj.docstring is not None:
            obj.docstring.value = with_links(with_code_blocks(obj.docstring.value))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change a page before it is rendered."""
    if page.file.src_uri == "changelog.md":
        markdown = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return with_links(markdown.replace("```python\n>>>", "```pycon\n>>>"))
