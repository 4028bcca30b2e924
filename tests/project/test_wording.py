"""Phrases that the project avoids in its prose; `make lint` checks single words with codespell."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AVOIDED = {
    r"\b(?:a|one) (?:row|line|file|name|number|column) an? (?:element|set|bag|run|fold|block|class)\b": (
        "one row per element"
    ),
    r"\bis no (?:model|file|number|setwise)\b": "is not a …",
    r"\bTwice differentiable it is not\b": "No second derivatives",
    r"\bas people have them\b": "in any supported form",
    r"\bin the midst of\b": "during, within",
    r"\bbefore people\b": "on the screen",
    r"\bfor better or worse\b": "say what happened",
}
PAGES = [
    path
    for folder in ("src", "docs", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".js", ".html"}
] + [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


@pytest.mark.parametrize("pattern", AVOIDED, ids=AVOIDED.values())
def test_no_page_uses_an_avoided_phrase(pattern: str) -> None:
    hits = []
    for path in PAGES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            quoted = path.name == "CONTRIBUTING.md" and line.startswith("|")  # the examples of what to avoid
            if re.search(pattern, line) and not quoted:
                hits.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not hits, f"write {AVOIDED[pattern]!r} instead:\n" + "\n".join(hits)
