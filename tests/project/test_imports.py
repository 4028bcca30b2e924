"""Importing the package works without Unix-only modules and changes nothing in the process."""

import subprocess
import sys

IMPORT_ALL = """
import importlib, os, pkgutil, random, signal, sys, threading
import joblib, lightning_fabric, numpy, rich.progress, sklearn.utils.estimator_checks, torch, tyro
import setwise

masked = ("fcntl", "resource", "pwd", "grp", "termios")
sys.modules.update(dict.fromkeys(masked))


def state():
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    draws = (random.getstate(), repr(numpy.random.get_state()), torch.get_rng_state().tolist())
    return dict(os.environ), handlers, draws, torch.get_num_threads(), torch.get_default_dtype()


before = state()
missing = []
for module in pkgutil.walk_packages(setwise.__path__, "setwise."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        missing.append((module.name, error.name))
after = state()
assert [name for _, name in missing if name in masked] == [], missing
assert all(name is not None and not name.startswith("setwise") for _, name in missing), missing
for a, b in zip(before, after, strict=True):
    assert a == b, (a, b)
assert threading.active_count() == 1
from setwise._files import locked
with locked(__import__("pathlib").Path(sys.argv[1])):
    pass
print(len([name for name in sys.modules if name.startswith("setwise.")]))
"""


def test_modules_import_without_unix_modules_and_without_side_effects(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80
