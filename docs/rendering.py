"""Hooks of the documentation site, loaded by MkDocs and griffe.

Doctests become code blocks, names of the library in backquotes become links to the reference, formulas become
pictures, and CHANGELOG.md in the root folder becomes a page.
"""

import base64
import io
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
CLASSES = {  # those of the experiments are shown without their members
    name.rpartition(".")[2]: name
    for name in REFERENCE
    if name.rpartition(".")[2][0].isupper() and not name.startswith("setwise.experiments.")
}


def with_links(text: str) -> str:
    """Link names to the reference; classes may stand without their module, functions may not.

    >>> with_links("a `DMPS`, `DMPS.build` and `sw.fit`, but `fit`")
    'a [`DMPS`][setwise.DMPS], [`DMPS.build`][setwise.DMPS.build] and [`sw.fit`][setwise.fit], but `fit`'
    >>> with_links("`AutoGraph`, `functional.propagate`")
    '[`AutoGraph`][setwise.nn.AutoGraph], [`functional.propagate`][setwise.functional.propagate]'
    """

    def link(match: re.Match[str]) -> str:
        name = re.sub(r"^sw\.", "setwise.", match[1])
        first, *rest = name.split(".")
        if first in CLASSES:
            name = ".".join((CLASSES[first], *rest))
        elif first != "setwise" and rest and rest[-1] != "py":
            name = f"setwise.{name}"
        known = {name, name.rpartition(".")[0]} & REFERENCE
        return f"[{match[0]}][{name}]" if known else match[0]

    pieces, end = [], 0
    for start, stop in [*(block.span() for block in FENCED.finditer(text)), (len(text), len(text))]:
        pieces += [NAME.sub(link, text[end:start]), text[start:stop]]
        end = stop
    return "".join(pieces)


def with_code_blocks(text: str) -> str:
    r"""Turn doctests into code blocks.

    >>> with_code_blocks("Adds.\n\n>>> 1 + 1\n2\n\nEnd.")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nEnd.'
    """
    paragraph = re.compile(r"^( *)>>> .*?(?=\n\s*\n|\Z)", flags=re.DOTALL | re.MULTILINE)
    return paragraph.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)


def with_formulas(text: str) -> str:
    r"""Replace blocks of ``math`` by pictures, so that the site needs no script to typeset them.

    >>> with_formulas("```math\nx_i\n```")[:49]
    '<img class="math" alt="x&#95;i" src="data:image/s'
    """
    block = re.compile(r"^( *)```math\n(.*?)\n *```$", flags=re.DOTALL | re.MULTILINE)
    return block.sub(lambda match: match[1] + picture(" ".join(match[2].split())), text)


def picture(formula: str) -> str:
    """Typeset a LaTeX formula as an image that is part of the page."""
    from matplotlib import rc_context
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import math_to_image

    svg = io.BytesIO()
    with rc_context({"mathtext.fontset": "stix", "savefig.transparent": True, "svg.hashsalt": formula}):
        displayed = formula.replace(r"\frac", r"\dfrac")
        math_to_image(f"${displayed}$", svg, prop=FontProperties(size=12), dpi=72, format="svg")
    plain = re.sub(rb"<metadata>.*?</metadata>", b"", svg.getvalue(), flags=re.DOTALL)
    source = f"data:image/svg+xml;base64,{base64.b64encode(plain).decode()}"
    # Entities, because Markdown would interpret backslashes, underscores and brackets in the text.
    alt = "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in formula)
    return f'<img class="math" alt="{alt}" src="{source}">'


class Docstrings(griffe.Extension):
    """Rewrite docstrings for the site."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = with_links(with_code_blocks(obj.docstring.value))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite a page before it is rendered."""
    if page.file.src_uri == "changelog.md":
        markdown = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return with_formulas(with_links(markdown.replace("```python\n>>>", "```pycon\n>>>")))
