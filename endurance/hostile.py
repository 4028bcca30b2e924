"""Damaged and hostile files: each must be read or refused in a sentence, and do nothing else.

``python -m endurance.hostile`` reads many mutants of a small file of each format, and files made with intent,
in a child process that watches what reading does. A crash, a hang, memory without bounds, a file opened for
writing, a process started, or an error that does not name the file is a fault; the same seed repeats it.
"""

import argparse
import contextlib
import importlib
import json
import os
import platform
import queue
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from endurance.mutations import mutate
from endurance.watching import Outcome, observe

HANG = 30.0
"""Seconds after which a file that is still being read counts as one that never ends."""
ADDRESS_SPACE = 6 * 2**30
"""Bytes that a child may ask for beyond what it has when all is loaded."""
PACKAGES = ("numpy", "torch", "safetensors", "h5py", "pandas", "pyarrow", "pillow", "trimesh")


def damaged(data: bytes, inside: Any, *, seed: int, name: str, number: int) -> bytes:
    """The mutant of a number; where there are checksums, every other one is damaged below them."""
    rng = random.Random(f"{seed} {name} {number}")
    return (mutate if inside is None or number % 2 else inside)(data, rng)


class Reader:
    """Reads one file after the other, each in a folder of its own that is new."""

    def __init__(
        self, formats: Mapping[str, Any], cases: Mapping[str, Mapping[str, Any]], folder: Path
    ) -> None:
        self.formats, self.cases, self.folder = formats, cases, folder
        self.templates: dict[str, tuple[Path, Path]] = {}

    def mutant(self, name: str, number: int, seed: int) -> Outcome:
        """What comes of a mutant."""
        path, kind = self._fresh(name), self.formats[name]
        path.write_bytes(damaged(path.read_bytes(), kind.inside, seed=seed, name=name, number=number))
        return self._observed(name, path)

    def case(self, name: str, case: str) -> Outcome:
        """What comes of a file made with intent, which must be refused."""
        path = self._fresh(name)
        self.cases[name][case](path)
        outcome = self._observed(name, path)
        if outcome.kind == "read":
            return Outcome("fault", "it was read as if it were a good one", outcome.megabytes)
        return outcome

    def _fresh(self, name: str) -> Path:
        """A valid file, read once before anything counts, as that loads what reading needs."""
        if name not in self.templates:
            template = self.folder / "valid" / str(len(self.templates))
            shutil.rmtree(template, ignore_errors=True)
            template.mkdir(parents=True)
            path = self.formats[name].write(template)
            self.formats[name].read(path)
            self._fail(name, path)
            self.templates[name] = template, path.relative_to(template)
        template, path = self.templates[name]
        place = self.folder / "now"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(template, place)
        return place / path

    def _fail(self, name: str, path: Path) -> None:
        """Read an empty file in its place, since failing loads modules, too."""
        good = path.read_bytes()
        path.write_bytes(b"")
        with contextlib.suppress(Exception):
            self.formats[name].read(path)
        path.write_bytes(good)

    def _observed(self, name: str, path: Path) -> Outcome:
        kind = self.formats[name]
        return observe(kind.read, path, by_folder=kind.by_folder, writes=self.folder / "cache")


def serve(module: str, folder: Path) -> None:
    """Do what the lines of standard input ask for; an answer a line."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    known = importlib.import_module(module)
    reader = Reader(known.FORMATS, getattr(known, "CASES", {}), folder)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_SPACE,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            outcome = reader.mutant(**asked) if "number" in asked else reader.case(**asked)
        except Exception as error:  # of the harness itself, such as a valid file that is none
            outcome = Outcome("fault", f"it could not be tried: {type(error).__name__}: {error}", 0.0)
        print(json.dumps(outcome.as_dict()), file=answers, flush=True)


class Child:
    """A process that reads files; a new one takes its place where it crashes or hangs."""

    def __init__(self, module: str = "endurance.cases", hang: float = HANG) -> None:
        self.module, self.hang = module, hang
        self.process: subprocess.Popen[str] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="hostile"))
        self.answers: queue.Queue[str] = queue.Queue()

    def ask(self, **asked: Any) -> Outcome:
        """Have a file read."""
        fresh = self.process is None
        if self.process is None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        try:
            line = self.answers.get(timeout=self.hang + (120 if fresh else 0))
        except queue.Empty:
            self.close()
            return Outcome("fault", f"it was still being read after {self.hang:g} seconds", 0.0)
        if not line:
            code = self.process.wait()
            self.close()
            return Outcome("fault", f"the process ended with {code}", 0.0)
        return Outcome(**json.loads(line))

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()
            self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.answers = queue.Queue()
        command = [sys.executable, "-m", "endurance.hostile", "--serve", self.module, str(self.folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        threading.Thread(target=_pump, args=(self.process, self.answers), daemon=True).start()


def _pump(process: "subprocess.Popen[str]", answers: "queue.Queue[str]") -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # it was closed
        for line in process.stdout:
            answers.put(line)
    answers.put("")


def survey(
    child: Child, formats: Mapping[str, Any], mutations: int, seed: int, progress: Any
) -> dict[str, Any]:
    """Mutants of every format: how many were read and refused, and every fault."""
    found: dict[str, Any] = {}
    for name in formats:
        counts: Counter[str] = Counter()
        peak, faults = 0.0, []
        for number in range(mutations):
            outcome = child.ask(name=name, number=number, seed=seed)
            counts[outcome.kind] += 1
            peak = max(peak, outcome.megabytes)
            if outcome.kind == "fault":
                faults.append({"number": number, "message": outcome.message})
            progress(name)
        found[name] = {
            "mutants": mutations,
            "read": counts["read"],
            "refused": counts["refused"],
            "faults": counts["fault"],
            "peak_megabytes": round(peak, 1),
            "fault_list": faults,
        }
    return found


def main(arguments: list[str] | None = None) -> int:
    """Read hostile files of every format, print a table, and write a report; 1 if there are faults."""
    parser = argparse.ArgumentParser(prog="python -m endurance.hostile", description=__doc__)
    parser.add_argument("--mutations", type=int, default=500, help="of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="formats; all unless given")
    parser.add_argument("--out", type=Path, help="JSON file of the report")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        serve(given.serve[0], Path(given.serve[1]))
        return 0
    known = importlib.import_module("endurance.cases")
    formats = {name: kind for name, kind in known.FORMATS.items() if not given.only or name in given.only}
    cases = {(name, case): None for name in formats for case in known.CASES.get(name, {})}
    child = Child()
    try:
        report = _run(child, formats, list(cases), given)
    finally:
        child.close()
    if given.out:
        from setwise._files import write_json

        write_json(given.out, report)
    _show(report)
    return 1 if report["faults"] else 0


def _run(
    child: Child, formats: Mapping[str, Any], cases: list[tuple[str, str]], given: Any
) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("hostile files", total=given.mutations * len(formats) + len(cases))

        def progress(name: str) -> None:
            bar.update(task, advance=1, description=name)

        fuzzed = survey(child, formats, given.mutations, given.seed, progress)
        fixed = []
        for name, case in cases:
            outcome = child.ask(name=name, case=case)
            fixed.append({"format": name, "case": case, **_relative(outcome, child.folder)})
            progress(name)
    faults = sum(one["faults"] for one in fuzzed.values()) + sum(one["kind"] == "fault" for one in fixed)
    return {
        "command": f"python -m endurance.hostile --mutations {given.mutations} --seed {given.seed}",
        "seed": given.seed,
        "faults": faults,
        "formats": fuzzed,
        "cases": fixed,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }


def _relative(outcome: Outcome, folder: Path) -> dict[str, Any]:
    """Without the folder of this run, which is another one each time."""
    message = outcome.message.replace(str(folder / "now"), "…")
    return {**outcome.as_dict(), "message": message, "megabytes": round(outcome.megabytes, 1)}


def _show(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("format", "mutants", "read", "refused", "faults", "peak MB", "made with intent")
    for name, one in report["formats"].items():
        fixed = [case["kind"] for case in report["cases"] if case["format"] == name]
        numbers = (one[key] for key in ("mutants", "read", "refused", "faults", "peak_megabytes"))
        table.add_row(name, *map(str, numbers), f"{fixed.count('refused')} of {len(fixed)} refused")
    console = Console()
    console.print(table)
    for name, one in report["formats"].items():
        for fault in one["fault_list"][:5]:
            console.print(f"{name}, mutant {fault['number']}: {fault['message']}", markup=False)
    for case in report["cases"]:
        if case["kind"] == "fault":
            console.print(f"{case['format']}, {case['case']}: {case['message']}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
