"""What the documentation site makes of Markdown and of docstrings; MkDocs and griffe load this file.

Doctests become code blocks, a name of the library in backquotes becomes a link to its reference, and the
changelog, which lies beside the README, becomes a page.
"""

import re
from pathlib import Path
from typing import Any

import griffe

import setwise

ROOT = Path(__file__).parent.parent
PUBLIC = set(setwise.__all__)
FENCED = re.compile(r"^ *```.*?^ *```$", flags=re.DOTALL | re.MULTILINE)
NAME = re.compile(r"(?<![`\[])`(?P<home>setwise\.|sw\.)?(?P<name>\w+)(?P<part>\.[a-z]\w*)?`(?![`\]])")


def with_links(text: str) -> str:
    """The text with names of the library as links; small letters need their home, as in `sw.fit`.

    >>> with_links("a `DMPS`, `DMPS.build` and `sw.fit`, but `fit`")
    'a [`DMPS`][setwise.DMPS], [`DMPS.build`][setwise.DMPS.build] and [`sw.fit`][setwise.fit], but `fit`'
    """

    def link(match: re.Match[str]) -> str:
        name, part = match["name"], match["part"] or ""
        if name not in PUBLIC or not (match["home"] or name[0].isupper()):
            return match[0]
        return f"[{match[0]}][setwise.{name}{part}]"

    kept = [match.span() for match in FENCED.finditer(text)]
    pieces, end = [], 0
    for start, stop in [*kept, (len(text), len(text))]:
        pieces += [NAME.sub(link, text[end:start]), text[start:stop]]
        end = stop
    return "".join(pieces)


def with_code_blocks(text: str) -> str:
    r"""The text with its doctests as blocks of code.

    >>> print(with_code_blocks("Adds.\n\n>>> 1 + 1\n2\n>>> 2\n2\n\nEnd.").replace("`", "'"))
    Adds.
    <BLANKLINE>
    '''pycon
    >>> 1 + 1
    2
    >>> 2
    2
    '''
    <BLANKLINE>
    End.
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
    return with_links(markdown)
