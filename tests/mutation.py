"""Mutation testing: change one expression of the source at a time and see whether the tests notice.

    python -m tests.mutation --sample 60 --seed 0 --out build/mutants.json

A mutant is killed if a test fails or takes too long. Survivors are listed with their line: each is either
equivalent to the original or a test that is missing.
"""

import argparse
import ast
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = {
    "functional": ["tests/test_functional.py"],
    "sets": ["tests/test_sets.py", "tests/test_ragged_sets.py", "tests/test_shared_elements.py"],
    "tasks": ["tests/test_tasks.py"],
    "nn/operators": ["tests/nn/operators", "tests/nn/test_layers.py"],
    "nn/baselines": ["tests/nn/baselines"],
    "nn": ["tests/nn"],
}
"""Tests that are run for a mutant, by the longest prefix of its module; the contract suite follows."""
CONTRACT = [
    "tests/test_contract.py",
    "--deselect",
    "tests/test_contract.py::test_compiles_without_graph_breaks",
]

SWAPS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def sites(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every place that can be mutated: the number of its node and the kind of change."""
    nodes = list(ast.walk(tree))
    annotations = {
        id(inner)
        for node in nodes
        for field in ("annotation", "returns")
        if getattr(node, field, None) is not None
        for inner in ast.walk(getattr(node, field))
    }
    for number, node in enumerate(nodes):
        if id(node) not in annotations:
            yield from ((number, change) for change in changes(node))


def mutate(tree: ast.Module, number: int, change: str) -> tuple[int, str]:
    """Change one node of a tree in place; return its line and a description."""
    node: Any = list(ast.walk(tree))[number]
    before = ast.unparse(node).splitlines()[0]
    change_node(node, change)
    ast.fix_missing_locations(tree)
    return node.lineno, f"{before}  →  {ast.unparse(node).splitlines()[0]}"


def changes(node: ast.AST) -> Iterator[str]:
    """The ways to change a node."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        yield "operator"
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield "comparison"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "boolean"
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "number"
    elif isinstance(node, ast.If | ast.IfExp):
        yield "condition"


def change_node(node: Any, change: str) -> None:
    """Apply one change in place."""
    if change == "operator":
        node.op = SWAPS[type(node.op)]()
    elif change == "comparison":
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif change == "boolean":
        node.value = not node.value
    elif change == "number":
        node.value = node.value + 1
    elif change == "condition":
        node.test = ast.UnaryOp(ast.Not(), node.test)


def passes(scratch: Path, tests: list[str], seconds: float) -> bool:
    """Whether all tests pass on the copy of the package in a folder, in a process of its own."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        import pytest

        sys.path.insert(0, str(scratch))
        sys.dont_write_bytecode = True
        options = ["-x", "-q", "-k", "not compiles", "-p", "no:cacheprovider"]
        os._exit(int(pytest.main([*tests, *CONTRACT, *options]) != 0))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            return status == 0
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def tests_of(path: str) -> list[str]:
    """The tests for a file of the package, by the longest matching prefix."""
    return TESTS[max((prefix for prefix in TESTS if path.startswith(prefix)), key=len)]


def main() -> None:
    """Draw mutants at random, test each, and report the share that was killed."""
    parser = argparse.ArgumentParser(description="mutation testing of functional, sets, tasks and nn")
    parser.add_argument("--sample", type=int, default=60, help="number of mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the sample")
    parser.add_argument("--seconds", type=float, default=300, help="time limit per mutant")
    parser.add_argument(
        "--out", type=Path, default=Path("build/mutants.json"), help="where to write the report"
    )
    options = parser.parse_args()
    os.chdir(ROOT)
    source = ROOT / "src" / "setwise"
    paths = [source / f"{name}.py" for name in ("functional", "sets", "tasks")]
    paths += sorted((source / "nn").rglob("*.py"))
    drawn = [(path, *site) for path in paths for site in sites(ast.parse(path.read_text()))]
    total = len(drawn)
    random.Random(options.seed).shuffle(drawn)
    import torch  # once, for all processes that are forked

    assert torch
    scratch = Path(tempfile.mkdtemp()) / "src"
    shutil.copytree(source, scratch / "setwise", ignore=shutil.ignore_patterns("__pycache__"))
    if not passes(scratch, TESTS["tasks"], options.seconds):
        raise SystemExit("the tests must pass on the original source before a mutant can count")
    survivors = []
    for count, (path, number, change) in enumerate(drawn[: options.sample], 1):
        tree = ast.parse(path.read_text())
        line, description = mutate(tree, number, change)
        where = path.relative_to(source).as_posix()
        (scratch / "setwise" / where).write_text(ast.unparse(tree))
        alive = passes(scratch, tests_of(where), options.seconds)
        shutil.copy(path, scratch / "setwise" / where)
        if alive:
            survivors.append({"file": where, "line": line, "change": description})
        verdict = "SURVIVED" if alive else "killed"
        print(f"{count}/{options.sample} {where}:{line} {description} {verdict}", flush=True)
    tested = min(options.sample, total)
    report = {"mutants": total, "tested": tested, "killed": tested - len(survivors), "survivors": survivors}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(f"killed {report['killed']} of {tested} ({report['killed'] / max(tested, 1):.0%})")


if __name__ == "__main__":
    main()
