"""The package's supply chain: what is built, what comes with it, and what is written down about it."""

import doctest
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from supply import ROOT, RUNTIME, audit, licences, sbom, smoke, tree, wheel

BILL = json.loads(sbom.BILL.read_text())
same_platform = pytest.mark.skipif(
    BILL["metadata"]["properties"][0]["value"] != sbom.environment(),
    reason="the bill of materials is of another Python or platform",
)


class Named:
    """An installed package, as far as its licence goes."""

    def __init__(self, **fields: str | list[str]) -> None:
        self.metadata, self.files = Message(), []
        for name, values in fields.items():
            for value in [values] if isinstance(values, str) else values:
                self.metadata[name.replace("_", "-")] = value


def public(text: str) -> str:
    """Without the label of a local build, in which torch's may differ."""
    return re.sub(r"(\+|%2B)cpu", "", text)


@pytest.mark.parametrize("module", [audit, licences, sbom, wheel], ids=lambda m: m.__name__)
def test_examples_hold(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert done.failed == 0
    assert done.attempted > 0


# The tree


def test_the_tree_holds_what_is_asked_for_and_what_that_needs() -> None:
    found = tree.packages()
    assert list(found) == sorted(found)
    asked = {r.name for requirements in tree.asked().values() for r in requirements}
    assert {"torch", "scikit-learn", "dask"} <= asked <= set(found)
    assert found["torch"].extras == ("core",)
    assert found["matplotlib"].extras == ("plots",)
    assert found["pillow"].extras == ("data", "plots", "tensorboard")
    assert "sympy" in found["torch"].requires
    assert "distributed" in found["dask"].requires  # which only its extra asks for
    assert not {"pytest", "ruff", "mkdocs", "torch-geometric"} & set(found)
    for package in found.values():
        assert set(package.requires) <= set(found)


def test_a_marker_decides_whether_a_package_is_needed() -> None:
    plain, extra = (
        {r.name for r in tree.needed(Requirement(name))} for name in ("dask", "dask[distributed]")
    )
    assert extra - plain == {"distributed"}


@same_platform
def test_all_that_comes_along_is_pinned_and_installed_as_pinned() -> None:
    pins = tree.pins()
    for name, package in tree.packages().items():
        assert Version(package.version).public == pins[name], f"{name}: run 'make test' for an environment"


# The bill of materials


def test_the_bill_is_well_formed() -> None:
    assert (BILL["bomFormat"], BILL["specVersion"], BILL["version"]) == ("CycloneDX", "1.6", 1)
    assert not {"serialNumber", "timestamp"} & {*BILL, *BILL["metadata"]}
    own = BILL["metadata"]["component"]["bom-ref"]
    references = [own, *(part["bom-ref"] for part in BILL["components"])]
    assert len(set(references)) == len(references)
    assert [node["ref"] for node in BILL["dependencies"]] == references
    for node in BILL["dependencies"]:
        assert set(node["dependsOn"]) <= set(references)
    for part in BILL["components"]:
        assert part["purl"] == part["bom-ref"] == sbom.reference(part["name"], part["version"])
        assert re.fullmatch(r"[0-9a-f]{64}", part["hashes"][0]["content"])
        assert {p["value"] for p in part["properties"]} <= {"core", *RUNTIME}


def test_the_bill_has_the_versions_of_the_constraints() -> None:
    pins = tree.pins()
    for part in BILL["components"]:
        assert pins[part["name"]] == public(part["version"]), "run 'make supply'"
        assert public(version(part["name"])) == public(part["version"])


@same_platform
def test_the_bill_is_the_one_that_would_be_written() -> None:
    made = sbom.bill(tree.packages(), {})
    assert public(json.dumps(sbom.without_hashes(BILL))) == public(json.dumps(made)), "run 'make supply'"


def test_hashes_come_from_the_reports_of_pip(tmp_path: Path) -> None:
    def item(name: str, archive: dict[str, object]) -> dict[str, object]:
        return {"metadata": {"name": name, "version": "1"}, "download_info": {"archive_info": archive}}

    report = tmp_path / "report.json"
    known, unknown = item("My_Package", {"hashes": {"sha256": "ab"}}), item("other", {})
    report.write_text(json.dumps({"install": [known, unknown]}))
    assert sbom.hashes([report]) == {("my-package", "1"): "ab"}
    found = {"torch": tree.packages()["torch"]}
    digests = {("torch", found["torch"].version): "cd"}
    assert sbom.component("torch", found["torch"], "cd")["hashes"] == [{"alg": "SHA-256", "content": "cd"}]
    assert "hashes" not in sbom.component("torch", found["torch"], None)
    whole = {"components": [sbom.component("torch", found["torch"], digests[next(iter(digests))])]}
    assert sbom.without_hashes(whole)["components"] == [sbom.component("torch", found["torch"], None)]


# Licences


@same_platform
def test_all_licences_are_known_and_permissive() -> None:
    found = {name: licences.licence(package.distribution) for name, package in tree.packages().items()}
    assert licences.refused(found) == {}
    assert found["scipy"] == found["jinja2"] == "BSD-3-Clause"
    assert found["tyro"] == "MIT"
    assert found["matplotlib"] == "PSF-2.0"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License_Expression": "MIT", "License": "GPL-3.0-only"}, "MIT"),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        (
            {"License": "A long text\nof our own", "Classifier": "License :: OSI Approved :: MIT License"},
            "MIT",
        ),
        ({"Classifier": ["Topic :: MIT License", "License :: Other/Proprietary License"]}, "unknown"),
        ({"License": "BSD"}, "unknown"),
        ({"License": ["BSD", "Redistributions in binary form must …"]}, "BSD-2-Clause"),
        ({"License": ["BSD", "Redistributions in binary form …\n Neither the\n name of"]}, "BSD-3-Clause"),
        ({"License": "gpl-3.0-or-later"}, "GPL-3.0-or-later"),
        ({}, "unknown"),
    ],
)
def test_a_licence_is_found_however_it_is_spelled(fields: dict[str, str], expected: str) -> None:
    assert licences.licence(Named(**fields)) == expected


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ("MIT", True),
        ("MIT AND Zlib", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only OR MIT AND Zlib", True),
        ("MIT AND (Zlib OR ISC)", True),
        ("MIT AND (Zlib OR GPL-2.0-only)", False),
        ("AGPL-3.0-only", False),
        ("SSPL-1.0", False),
        ("MIT AND LGPL-2.1-only", False),
        ("GPL-3.0-only WITH GCC-exception-3.1", False),
        ("unknown", False),
    ],
)
def test_only_permissive_licences_are_accepted(expression: str, fine: bool) -> None:
    assert licences.accepted(expression) is fine
    assert licences.refused({"a": expression, "b": "MIT"}) == ({} if fine else {"a": expression})


@same_platform
def test_the_table_of_licences_is_up_to_date(tmp_path: Path) -> None:
    text = licences.PAGE.read_text()
    made = licences.written(text, "licences", licences.table(tree.packages()))
    assert public(made) == public(text), "run 'make supply'"
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- licences -->\nold\n<!-- end -->\nafter\n<!-- end -->\n")
    licences.main(page)
    assert re.match(
        r"before\n<!-- licences -->\n\| Package (.|\n)*\| zipp .*\|\n<!-- end -->\nafter", page.read_text()
    )
    assert "old" not in page.read_text()


def test_a_copyleft_package_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copyleft = tree.Package(Named(License="GPL-3.0-only"), (), ("core",))
    monkeypatch.setattr(licences, "packages", lambda: {"evil": copyleft})
    with pytest.raises(SystemExit, match=r"got \{'evil': 'GPL-3.0-only'\}"):
        licences.main(tmp_path / "unwritten.md")


def test_the_page_names_what_is_accepted() -> None:
    text = licences.PAGE.read_text()
    for name in licences.ACCEPTED - {"Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause"}:
        assert name in text, name


# Wheel and source distribution

METADATA = """Name: setwise
Version: 1
Summary: s
License-Expression: MIT
License-File: LICENSE
Requires-Python: >=3.11
Keywords: k
"""


def make_wheel(path: Path, *names: str, metadata: str = METADATA) -> Path:
    info = "setwise-1.dist-info"
    files = dict.fromkeys(names, "") | {
        f"{info}/METADATA": metadata,
        f"{info}/licenses/LICENSE": "",
        f"{info}/entry_points.txt": "",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    expected = ["setwise/a.py", "setwise/py.typed"]
    assert wheel.wheel_faults(make_wheel(tmp_path / "good.whl", *expected), expected) == []
    bad = make_wheel(
        tmp_path / "bad.whl", "setwise/a.py", "tests/b.py", metadata="Name: setwise\nVersion: 1\n"
    )
    assert wheel.wheel_faults(bad, expected) == [
        "the wheel must hold setwise/py.typed",
        "the wheel must not hold tests/b.py",
        *(f"the wheel's metadata must have {field}" for field in wheel.METADATA[2:]),
    ]
    with zipfile.ZipFile(tmp_path / "empty.whl", "w"):
        pass
    said = wheel.wheel_faults(tmp_path / "empty.whl", [])
    assert "the wheel must hold its licenses/LICENSE" in said
    assert "the wheel's metadata must have Name" in said


def test_a_source_distribution_holds_what_is_under_version_control(tmp_path: Path) -> None:
    path = tmp_path / "setwise-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("README.md", "PKG-INFO", "src/stray.txt"):
            archive.addfile(tarfile.TarInfo(f"setwise-1/{name}"))
    assert wheel.sdist_faults(path, ["README.md", "src/stray.txt"]) == []
    assert wheel.sdist_faults(path, ["README.md", "LICENSE"]) == [
        "the source distribution must hold LICENSE",
        "the source distribution must not hold src/stray.txt",
    ]


def test_the_package_has_the_explorers_files() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()]
    found = set(wheel.package_files(files))
    assert {"setwise/py.typed", "setwise/explore/page.html", "setwise/explore/page.css"} <= found
    assert "setwise/explore/view.js" in found
    assert not [name for name in found if "__pycache__" in name]


def test_a_command_that_fails_says_all() -> None:
    assert wheel.run(sys.executable, "-c", "print('fine')") == "fine\n"
    with pytest.raises(SystemExit, match=r"failed:\nout\nerr"):
        wheel.run(sys.executable, "-c", "import sys; print('out', flush=True); sys.exit('err')")


# The clean environment


def test_the_table_of_the_smoke_test_is_small_and_clear() -> None:
    head, *lines = smoke.bags().splitlines()
    assert head == "set,label,a,b"
    assert len(lines) == 96
    assert {line.split(",")[1] for line in lines} == {"yes", "no"}
    assert smoke.bags() == smoke.bags()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of one program, which says where it is and fails if told to."""
    file = tmp_path / "bin" / "program"
    file.parent.mkdir()
    file.write_text('#!/bin/sh\necho "here: $PWD, path: $PYTHONPATH."\nexit $1\n')
    file.chmod(0o755)
    monkeypatch.setattr(smoke, "BIN", file.parent)
    monkeypatch.setenv("PYTHONPATH", "leak")
    return tmp_path


def test_commands_run_outside_of_the_checkout(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    smoke.call(("program", "0"), program, rf"^here: {program}, path: \.$")
    assert re.search(r"\d\.\d s  program 0$", capsys.readouterr().out.strip())
    smoke.call(("program", "3"), program, "here", fails=True)


@pytest.mark.parametrize(
    ("code", "expected", "fails"), [("1", "here", False), ("0", "here", True), ("0", "elsewhere", False)]
)
def test_what_is_unexpected_ends_the_smoke_test(program: Path, code: str, expected: str, fails: bool) -> None:
    with pytest.raises(SystemExit, match=rf"(?s)program {code} must .* got {code}:.here"):
        smoke.call(("program", code), program, expected, fails=fails)


def test_the_clean_environment_has_the_torch_of_the_makefile(tmp_path: Path) -> None:
    assert smoke.torch_version() == f"torch=={tree.pins()['torch']}"
    (tmp_path / "Makefile").write_text("pip install torch\n")
    with pytest.raises(ValueError, match="Makefile must install torch by its version"):
        smoke.torch_version(tmp_path / "Makefile")


def test_the_smoke_test_asks_for_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"dist must hold one wheel \(make wheel\), got 0"):
        smoke.main()


# The audit


def test_no_answer_is_not_a_good_answer() -> None:
    pinned = {"a": "1", "b": "1", "c": "1", "d": "1", "e": "1"}
    faults = [{"id": "GHSA-1", "withdrawn": None}, {"id": "GHSA-2", "withdrawn": "2026-01-01"}]
    pages = {
        name: {"info": {"version": newest}, "vulnerabilities": faults}
        for name, newest in {"a": "1", "b": "1", "c": "2"}.items()
    }
    found = audit.judge(pinned, {"a": [], "e": ["PYSEC-3"]}, pages)
    assert found == {
        "a": {"version": "1", "answer": "pip-audit", "vulnerabilities": []},
        "b": {"version": "1", "answer": "project page", "vulnerabilities": ["GHSA-1"]},
        "c": {"version": "1", "answer": "not known", "newest": "2"},
        "d": {"version": "1", "answer": "not known", "newest": None},
        "e": {"version": "1", "answer": "pip-audit", "vulnerabilities": ["PYSEC-3"]},
    }
    assert audit.from_tool("a traceback") == audit.from_tool("{}") == {}


def test_a_file_that_pypi_does_not_publish_is_named() -> None:
    page = {"releases": {"1": [{"digests": {"sha256": "ab"}}]}}
    parts = [
        {"name": name, "version": v, "hashes": [{"content": digest}]}
        for name, v, digest in [("a", "1", "ab"), ("b", "1", "cd"), ("c", "2", "ab"), ("d", "1", "ab")]
    ]
    assert audit.strangers(parts, {"a": page, "b": page, "c": page}) == ["b", "c", "d"]


def test_without_a_network_the_audit_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise audit.URLError("no route")

    monkeypatch.setattr(audit, "urlopen", no_network)
    monkeypatch.setattr(audit, "RECORD", tmp_path / "audit.json")
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="ConnectionError")
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SystemExit, match=r"^nothing was audited: neither pip-audit nor this program"):
        audit.main()
    assert not (tmp_path / "audit.json").exists()


def test_the_audit_on_record_is_of_what_is_pinned_and_is_told_on_the_page() -> None:
    record = json.loads(audit.RECORD.read_text())
    found = record["packages"]
    assert {n: e["version"] for n, e in found.items()} == tree.pins(), "run 'make audit'"
    text = licences.PAGE.read_text()
    year, month, day = record["date"].split("-")
    assert re.search(rf"Done on {int(day)} \w+ {year}", text), month
    answered = [entry for entry in found.values() if entry["answer"] != "not known"]
    assert f"{len(answered)} of {len(found)} pinned packages" in text
    for name, entry in found.items():
        if entry["answer"] == "not known":
            assert f"| {name} {entry['version']} |" in text, f"look into {name} by hand"
        for fault in entry.get("vulnerabilities", ()):
            assert fault in text, f"explain {fault} of {name}"
    assert record["files_not_on_pypi"] == ["torch"]


def test_the_wheel_is_tried_before_a_change_lands() -> None:
    assert "make wheel\n" in (ROOT / ".ci" / "run").read_text()
    recipe = re.search(r"^wheel:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert "supply.wheel" in recipe[1]
    assert "supply.smoke" in recipe[1]
