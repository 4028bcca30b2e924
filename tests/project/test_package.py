"""The package as a whole: its names, what importing it loads, its version."""

import ast
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

import setwise

SOURCE = Path(setwise.__file__).parent
PACKAGES = ["setwise", "setwise.estimators", "setwise.inspection", "setwise.io", "setwise.training"]


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_of_a_stub_exists(package: str) -> None:
    module = import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_nn_exports_every_public_layer() -> None:
    from torch import nn

    import setwise.nn

    exported = {name for name in vars(setwise.nn) if not name.startswith("_")}
    for path in (SOURCE / "nn").rglob("*.py"):
        module = ".".join(("setwise", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        if any(part.startswith("_") for part in module.split(".")):
            continue
        for name, value in vars(import_module(module)).items():
            layer = isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module
            if layer and not name.startswith("_"):
                assert name in exported, f"{module}.{name}"


def test_importing_the_package_and_its_models_stays_light() -> None:
    run(
        "import sys, setwise\n"
        "assert 'torch' not in sys.modules\n"
        "setwise.DMPS, setwise.SetBatch, setwise.Binary\n"
        "loaded = {'matplotlib', 'sklearn', 'lightning', 'lightning_fabric', 'tyro'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )


def test_importing_nn_costs_little_beside_torch() -> None:
    def seconds(code: str) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            run(code)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds("from setwise.nn import DMPS") < 2 * seconds("import torch")


def test_help_does_not_load_torch() -> None:
    run(
        "import sys\n"
        "from setwise.cli.main import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "assert 'torch' not in sys.modules\n"
    )


def test_importing_the_package_changes_no_process_state() -> None:
    run(
        "import os, random, signal, torch, numpy\n"
        "signals = [signal.SIGINT, signal.SIGTERM]\n"
        "def state():\n"
        "    handlers = [signal.getsignal(number) for number in signals]\n"
        "    return dict(os.environ), handlers, random.getstate(), torch.get_rng_state().tolist()\n"
        "before = state()\n"
        "import setwise.nn, setwise.tasks, setwise.sets, setwise.training.loop, setwise.estimators.base\n"
        "x = torch.randn(2, 5, 3, generator=torch.Generator())\n"
        "before = state()\n"
        "model = setwise.nn.DMPS.build(3, 1)\n"
        "torch.set_rng_state(torch.tensor(before[-1], dtype=torch.uint8))\n"
        "model(x).sum().backward()\n"
        "assert state() == before\n"
    )


def test_the_version_is_stated_once() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    names = [
        node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign) and hasattr(node.targets[0], "id")
    ]
    assert names.count("__version__") == 1
    assert 'dynamic = ["version"]' in (SOURCE.parents[1] / "pyproject.toml").read_text()
