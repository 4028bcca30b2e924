"""Known vulnerabilities of all in constraints.txt: ``python -m supply.audit`` asks, and keeps the answer.

pip-audit asks first. A mirror of PyPI may not have the pages of single versions that it reads, and then it
passes packages over without failing. For those the page of the project is read, which speaks of the newest
version only. What neither answers is recorded as not known: no answer is never taken for a good one.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from packaging.utils import canonicalize_name

from setwise._files import read_json, write_json
from supply import ROOT
from supply.sbom import BILL
from supply.tree import pins

RECORD = Path(__file__).parent / "audit.json"
TOOL = ROOT / "build" / "auditor" / "bin" / "pip-audit"
Answers = dict[str, list[str]]


def from_tool(said: str) -> Answers:
    """What pip-audit found, a list of identifiers for each package that it could ask about.

    >>> from_tool('{"dependencies": [{"name": "a", "vulns": []}, {"name": "b", "skip_reason": "…"}]}')
    {'a': []}
    """
    try:
        found = json.loads(said)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        return {}  # it stopped half-way, as without a network
    return {
        canonicalize_name(one["name"]): [fault["id"] for fault in one["vulns"]]
        for one in found
        if "vulns" in one
    }


def from_page(page: Mapping[str, Any], version: str) -> list[str] | None:
    """What PyPI's page of a project says of a version, or None unless that is the newest.

    >>> page = {"info": {"version": "2.0"}, "vulnerabilities": [{"id": "GHSA-1", "withdrawn": None}]}
    >>> from_page(page, "2.0"), from_page(page, "1.9")
    (['GHSA-1'], None)
    """
    if page["info"]["version"] != version:
        return None
    return [fault["id"] for fault in page["vulnerabilities"] if not fault.get("withdrawn")]


def published(page: Mapping[str, Any], version: str) -> set[str]:
    """The SHA-256 of every file that PyPI has of a version."""
    return {file["digests"]["sha256"] for file in page.get("releases", {}).get(version, ())}


def fetch(name: str) -> dict[str, Any] | None:
    """PyPI's page of a project, or None if there is none or no network."""
    try:
        with urlopen(f"https://pypi.org/pypi/{name}/json", timeout=60) as answer:
            page: dict[str, Any] = json.load(answer)
            return page
    except (URLError, TimeoutError, json.JSONDecodeError):
        return None


def judge(pinned: Mapping[str, str], tool: Answers, pages: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """An entry a package: its version, who answered, and what is known against it."""
    found: dict[str, dict[str, Any]] = {}
    for name, version in pinned.items():
        page = pages.get(name)
        known = from_page(page, version) if page else None
        if name in tool:
            found[name] = {"version": version, "answer": "pip-audit", "vulnerabilities": tool[name]}
        elif known is not None:
            found[name] = {"version": version, "answer": "project page", "vulnerabilities": known}
        else:
            newest = page["info"]["version"] if page else None
            found[name] = {"version": version, "answer": "not known", "newest": newest}
    return found


def strangers(parts: Iterable[Mapping[str, Any]], pages: Mapping[str, Any]) -> list[str]:
    """The packages of the bill of materials of which PyPI has no file with that hash."""
    return [
        part["name"]
        for part in parts
        for digest in part.get("hashes", ())
        if digest["content"] not in published(pages.get(part["name"]) or {}, part["version"])
    ]


def main() -> None:
    """Ask, record, and fail if anything is known against a version."""
    pinned = pins()
    command = [TOOL, "--requirement", ROOT / "constraints.txt", "--no-deps", "--disable-pip"]
    options = ["--format", "json", "--progress-spinner", "off"]
    done = subprocess.run([*map(str, command), *options], capture_output=True, text=True, check=False)
    with ThreadPoolExecutor(6) as pool:
        pages = {n: page for n, page in zip(pinned, pool.map(fetch, pinned), strict=True) if page}
    tool = from_tool(done.stdout)
    if not tool and not pages:
        raise SystemExit("nothing was audited: neither pip-audit nor this program could reach PyPI")
    found = judge(pinned, tool, pages)
    foreign = strangers(read_json(BILL)["components"], pages)
    day = datetime.now(UTC).date().isoformat()
    write_json(RECORD, {"date": day, "packages": found, "files_not_on_pypi": foreign})
    answers = [entry["answer"] for entry in found.values()]
    unknown = [name for name, entry in found.items() if entry["answer"] == "not known"]
    print(f"pip-audit answered for {answers.count('pip-audit')} of {len(found)} packages,", end=" ")
    print(f"project pages for {answers.count('project page')}; not known: {', '.join(unknown) or 'none'}")
    print(f"files of the bill of materials that are not on PyPI: {', '.join(foreign) or 'none'}")
    if bad := {name: entry for name, entry in found.items() if entry.get("vulnerabilities")}:
        raise SystemExit(f"vulnerabilities are known of {json.dumps(bad, indent=2)}")


if __name__ == "__main__":
    main()
