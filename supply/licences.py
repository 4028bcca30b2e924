"""The licence of each package at run time in SPDX's words; ``python -m supply.licences`` writes the table."""

import re
from collections.abc import Mapping
from importlib.metadata import Distribution
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from setwise._files import write_atomically
from setwise.experiments.report import markdown
from supply import ROOT
from supply.tree import Package, packages

PAGE = ROOT / "docs" / "supply.md"
UNKNOWN = "unknown"
# Permissive: an MIT library may depend on them, and may be used in anything that keeps their notices.
ACCEPTED = {
    *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0"),
    *("CC0-1.0", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Unlicense", "Zlib"),
}
# What packages write in place of SPDX's names; a BSD of no number of clauses is read from its text.
SPELLINGS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD",
    "bsd license": "BSD",
    "mit license": "MIT",
    "python software foundation license": "PSF-2.0",
}


def spelled(words: str) -> str | None:
    """SPDX's expression for what a package calls its licence, if it is known.

    >>> spelled("MIT License"), spelled("apache-2.0"), spelled("Our own terms")
    ('MIT', 'Apache-2.0', None)
    """
    if known := SPELLINGS.get(words.strip().lower()):
        return known
    try:
        return canonicalize_license_expression(words)
    except InvalidLicenseExpression:
        return None


def licence(distribution: Distribution) -> str:
    """The licence of a package: what it declares, else what its classifier says, else ``unknown``."""
    about = distribution.metadata
    classes = [c.split(" :: ")[-1] for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    declared = [*about.get_all("License-Expression", []), *about.get_all("License", []), *classes]
    name = next((known for words in declared if (known := spelled(words))), UNKNOWN)
    return bsd(text(distribution)) if name == "BSD" else name


def text(distribution: Distribution) -> str:
    """The words of a package's licence, from its metadata and its files."""
    files = [f for f in distribution.files or () if re.match(r"(LICEN[CS]E|COPYING)", f.name, re.IGNORECASE)]
    return " ".join([*distribution.metadata.get_all("License", []), *(f.read_text() for f in files)])


def bsd(words: str) -> str:
    r"""Which of the two BSD licences a text is: the third clause is the one about names.

    >>> bsd("Redistributions in binary form must reproduce … nor the names of its\n contributors")
    'BSD-3-Clause'
    >>> bsd("All rights reserved.")
    'unknown'
    """
    words = " ".join(words.split())
    if "Redistributions in binary form" not in words:
        return UNKNOWN
    third = r"(neither|nor) the names?|names? of .{1,80} (may not|to) (be used to )?endorse"
    return "BSD-3-Clause" if re.search(third, words, re.IGNORECASE) else "BSD-2-Clause"


def accepted(expression: str) -> bool:
    """Whether an MIT library may depend on it; of two to choose from, one is enough.

    >>> accepted("Apache-2.0 OR GPL-3.0-only"), accepted("MIT AND GPL-3.0-only"), accepted("unknown")
    (True, False, False)
    """
    if "(" in expression:  # rare: whatever is named in it has to be fine
        return all(part in ACCEPTED for part in re.split(r" AND | OR |[()]", expression) if part)
    return any(all(part in ACCEPTED for part in one.split(" AND ")) for one in expression.split(" OR "))


def refused(found: Mapping[str, str]) -> dict[str, str]:
    """The packages whose licence is unknown or asks for more than notices, such as GPL, AGPL or SSPL."""
    return {name: words for name, words in found.items() if not accepted(words)}


def table(found: Mapping[str, Package]) -> str:
    """A line a package."""
    lines = [
        [name, package.version, licence(package.distribution), ", ".join(package.extras)]
        for name, package in found.items()
    ]
    return markdown(["Package", "Version", "Licence", "Comes with"], lines)


def written(page: str, mark: str, content: str) -> str:
    """A page with what stands between ``<!-- mark -->`` and ``<!-- end -->`` replaced."""
    pattern = rf"(<!-- {mark} -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{content}\n{match[2]}", page, flags=re.DOTALL)


def main(page: Path = PAGE) -> None:
    """Write the table into the page; refuse to, if a licence is not fine."""
    found = packages()
    if wrong := refused({name: licence(package.distribution) for name, package in found.items()}):
        raise SystemExit(f"licences must be among those accepted in supply/licences.py, got {wrong}")
    write_atomically(page, written(page.read_text(), "licences", table(found)).encode())
    print(f"{len(found)} packages, all under permissive licences: {page.name}")


if __name__ == "__main__":
    main()
