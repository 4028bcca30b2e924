"""The house rules that a machine can check."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import setwise

SOURCE = Path(setwise.__file__).parent
# From the bottom up: a module imports only from the layers before its own.
LAYERS = [
    [
        "config",
        "files",
        "memory",
        "randomness",
        "functional",
        "progress",
        "sheets",
        "stopping",
        "nn.convpool",
        "nn.modes",
    ],
    [
        "checkpoint",
        "ranks",
        "sets",
        "nn.dense",
        "nn.standardize",
        "nn.weights",
        "nn.search",
        "plots",
        "data.folders",
        "data.strokes",
        "data.download",
        "data.distortion",
        "data.stains",
    ],
    ["nn.encoders", "nn.norm", "nn.blocks", "nn.pool", "nn.split_sets", "tasks", "data.*"],
    [
        "nn.graph",
        "nn.contrast",
        "nn.pnorm",
        "nn.images",
        "nn.pointnet",
        "data.omniglot",
        "data.solids",
        "data.bags.tables",
    ],
    ["nn.sparse", "nn.streamed", "nn.features", "nn.health"],
    ["nn.auto", "nn.neighbours"],
    ["nn.models", "data.modelnet", "data.histology", "data.bags.folder"],
    ["nn.baselines", "nn.distinct", "nn.split_elements", "data.bags"],
    ["nn.mil"],
    ["devices", "divergence"],
    ["train", "explain", "modelfile", "ragged", "nn.framed", "explore.story", "explore.layout"],
    ["learning", "export", "graphs", "data.reading", "explore.page"],
    ["estimating"],
    ["estimators"],
    ["experiments.base", "experiments.scores", "experiments.contrast"],
    ["experiments.configs", "experiments.counting_models"],
    ["experiments.*"],
    ["experiments.smoothing"],
    ["experiments"],
    ["experiments.runner", "experiments.report"],
    ["experiments.worker"],
    ["experiments.sweep"],
    ["explore.parts", "explore.trained", "practice"],
    ["explore.judged", "using"],
    ["explore.*"],
    ["explore"],
    ["cli"],
    ["__main__"],
]


def modules() -> list[str]:
    found = []
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found.append(".".join(part for part in parts if part != "__init__"))
    return sorted(found)


def layer(module: str) -> int:
    """The layer of a module; a name of its own goes before a star."""
    for exact in (True, False):
        for number, names in enumerate(LAYERS):
            for name in names:
                if module == name or (not exact and name.endswith("*") and module.startswith(name[:-1])):
                    return number
    raise AssertionError(f"{module} has no place in the layers: give it one")


def imports(module: str) -> set[str]:
    """The package's own modules that a module imports anywhere in it, type checking included."""
    path = SOURCE.joinpath(*module.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("setwise"):
            base = node.module.removeprefix("setwise").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".strip(".")
                found.add(inner if inner in modules() else base)
    return found - {""}


@pytest.mark.parametrize("module", [m for m in modules() if m not in ("", "nn", "data")])
def test_imports_point_downward(module: str) -> None:
    for other in imports(module):
        assert layer(other) < layer(module), f"{module} imports {other}"


def test_public_names_are_where_they_are_said_to_be() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    typed = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("setwise."):
            typed |= {alias.name: node.module for alias in node.names}
    assert typed == setwise._HOME
    for name in setwise.__all__:
        assert getattr(setwise, name).__name__ == name
        assert name in dir(setwise)
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        _ = setwise.magic


def test_submodules_are_there_without_being_imported() -> None:
    code = "import setwise; setwise.functional.rbf_kernel, setwise.nn.dmps, setwise.experiments.data"
    subprocess.run([sys.executable, "-c", code.replace("setwise.nn.dmps", "setwise.nn")], check=True)


def test_importing_the_package_and_using_its_models_stays_light() -> None:
    code = (
        "import sys, setwise\n"
        "assert 'torch' not in sys.modules\n"
        "setwise.DMPS, setwise.SetBatch, setwise.Binary\n"
        "loaded = {'matplotlib', 'sklearn', 'lightning', 'lightning_fabric', 'tyro'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_said_once() -> None:
    text = (SOURCE.parent.parent / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
