"""The bill of materials, CycloneDX 1.6: ``python -m supply.sbom`` writes it, the same every time.

Packages, licences and who needs whom come from the environment of the tests; the hashes from pip's reports
on the clean environment of ``supply.smoke``, which holds the same versions.
"""

import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

import setwise
from setwise._files import read_json, write_json
from supply import ROOT
from supply.licences import licence
from supply.tree import Package, asked, packages

BILL = Path(__file__).parent / "sbom.cdx.json"
REPORTS = ROOT / "build" / "clean" / "reports"


def reference(name: str, version: str) -> str:
    """The address of a package, as package URLs have it.

    >>> reference("torch", "2.13.0+cpu")
    'pkg:pypi/torch@2.13.0%2Bcpu'
    """
    return f"pkg:pypi/{name}@{quote(version)}"


def environment() -> str:
    """What a bill depends on besides the packages, such as ``Python 3.11, linux x86_64``."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor}, {sys.platform} {platform.machine()}"


def hashes(reports: Iterable[Path]) -> dict[tuple[str, str], str]:
    """The SHA-256 of each file that pip installed, by normalised name and version."""
    found: dict[tuple[str, str], str] = {}
    for report in reports:
        for item in read_json(report)["install"]:
            about, archive = item["metadata"], item["download_info"].get("archive_info", {})
            if digest := archive.get("hashes", {}).get("sha256"):
                found[canonicalize_name(about["name"]), about["version"]] = digest
    return found


def component(name: str, package: Package, digest: str | None) -> dict[str, Any]:
    """A package as CycloneDX describes it."""
    return {
        "type": "library",
        "bom-ref": reference(name, package.version),
        "name": name,
        "version": package.version,
        **({"hashes": [{"alg": "SHA-256", "content": digest}]} if digest else {}),
        "licenses": [{"expression": licence(package.distribution)}],
        "purl": reference(name, package.version),
        "properties": [{"name": "setwise:extra", "value": extra} for extra in package.extras],
    }


def bill(found: Mapping[str, Package], digests: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """The bill of materials; it says neither when nor by whom, so that the same packages give the same."""
    own = reference("setwise", setwise.__version__)
    roots = {canonicalize_name(r.name) for requirements in asked().values() for r in requirements}
    needs = {"setwise": sorted(roots)} | {name: list(package.requires) for name, package in found.items()}
    addresses = {"setwise": own} | {name: reference(name, p.version) for name, p in found.items()}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "setwise",
                "version": setwise.__version__,
                "licenses": [{"expression": "MIT"}],
                "purl": own,
            },
            "properties": [{"name": "setwise:environment", "value": environment()}],
        },
        "components": [
            component(name, package, digests.get((name, package.version))) for name, package in found.items()
        ],
        "dependencies": [
            {"ref": addresses[name], "dependsOn": [addresses[other] for other in others]}
            for name, others in needs.items()
        ],
    }


def without_hashes(given: Mapping[str, Any]) -> dict[str, Any]:
    """A bill as it is on a machine that has not downloaded the files."""
    parts = [{k: v for k, v in part.items() if k != "hashes"} for part in given["components"]]
    return {**given, "components": parts}


def main() -> None:
    """Write the bill; files that no report knows keep the hash that the last bill had."""
    known: dict[tuple[str, str], str] = {}
    if BILL.exists():
        for part in read_json(BILL)["components"]:
            for digest in part.get("hashes", ()):
                known[part["name"], part["version"]] = digest["content"]
    found = packages()
    digests = known | hashes(sorted(REPORTS.glob("*.json")))
    write_json(BILL, bill(found, digests))
    without = [name for name, package in found.items() if (name, package.version) not in digests]
    print(f"{BILL.name}: {len(found)} packages, without a hash: {', '.join(without) or 'none'}")


if __name__ == "__main__":
    main()
