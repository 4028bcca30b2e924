"""Compare the results of two and three processes with those of one: the largest difference per scenario.

Parameters that do not affect the loss are reported separately: distances do not depend on a shift of all
elements, nor batch norms on a shift of their input, so the gradients of such biases are rounding errors,
which Adam turns into steps.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from endurance.recording import arguments, record
from endurance.together import SCENARIOS

UNFELT = re.compile(r"(kernel\.embed\.layers\.1\.linear|convolution|layers\.\d\.layers\.\d\.linear)\.bias$")


def largest_difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[float, float]:
    """Return the largest relative difference, of parameters that affect the loss and of those that do not."""
    if found.keys() != expected.keys():
        raise ValueError(f"expected {sorted(expected)}, got {sorted(found)}")
    differences = {True: 0.0, False: 0.0}
    for key, value in expected.items():
        alone = value.double()
        difference = (found[key].double() - alone).abs().max() / alone.abs().max().clamp(min=1)
        felt = UNFELT.search(key) is None
        differences[felt] = max(differences[felt], difference.item())
    return differences[True], differences[False]


def main() -> int:
    given = arguments("endurance.equality", __doc__)
    torch.set_num_threads(1)
    alone = {name: scenario() for name, scenario in SCENARIOS.items() if name != "resumed"}
    found: list[dict[str, Any]] = []
    for processes in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "found.pt")
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
            command = [sys.executable, *launcher, "-m", "endurance.together", str(path), *alone]
            subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
            together = torch.load(path, weights_only=True)
        for name, expected in alone.items():
            felt, unfelt = largest_difference(together[name], expected)
            about = (SCENARIOS[name].__doc__ or "").partition("\n")[0]
            found.append({"processes": processes, "scenario": name, "about": about, "difference": felt})
            found[-1]["unfelt_difference"] = unfelt
            print(f"{processes} processes, {name}: {felt:.1e} (not felt: {unfelt:.1e})", file=sys.stderr)
    record(given.out, "python -m endurance.equality", {"scenarios": found})
    return 0 if all(one["difference"] <= 1e-5 for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
