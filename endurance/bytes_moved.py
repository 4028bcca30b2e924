"""Traffic between processes that share the elements of a set: formula and measurement.

``python -m endurance.bytes_moved`` starts two processes, counts the bytes given to all-reduces and the bytes
that the loopback interface carries, and compares both with the formula. No other traffic may use it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import setwise as sw
from endurance.recording import arguments, record
from setwise import collectives
from setwise.training.split_elements import SplitElements

ELEMENTS, REPEATS, NUMBER = 4096, 50, 4
SIZES = [(64, 64, 3), (64, 256, 3), (128, 1024, 3), (64, 64, 6)]


def payload(dim: int, features: int, depth: int, *, embedded: int = 128, sets: int = 1) -> dict[str, int]:
    """Return the bytes that a process gives to all-reduces in a training step, by purpose.

    Args:
        dim: features of an element.
        features: columns of Φ.
        depth: blocks.
        embedded: width of the embedding.
        sets: in a batch.
    """
    block = NUMBER * sets * (features + 1) * dim  # Σ x and Φᵀ x
    return {
        "block": block,
        "blocks": 2 * depth * block,  # forward and backward
        "graph": NUMBER
        * sets
        * ((embedded + 1) + 2 * (features + 1) + 1),  # the mean, the row sums, the count
        "pool": NUMBER * sets * 2 * (dim + 1),
    }


def on_the_wire(given: float, processes: int) -> float:
    """Return the bytes that all processes send for a ring all-reduce: 2 (p − 1) times its size."""
    return 2 * (processes - 1) * given


def sent() -> int:
    """Return the bytes that the loopback interface has sent."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (loopback,) = (line.split() for line in lines if line.strip().startswith("lo:"))
    return int(loopback[9])


class CountedBytes(TorchDispatchMode):
    """Count the bytes given to all-reduces, forward and backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Add the size of the first argument of an all-reduce."""
        if func is torch.ops._c10d_functional.all_reduce.default:
            self.bytes += args[0].numel() * args[0].element_size()
        return func(*args, **(kwargs or {}))


def measure(path: str) -> None:
    """Measure training steps of models of several sizes, without the all-reduce of parameter gradients."""
    torch.set_num_threads(1)
    collectives.initialize()
    found = []
    for dim, features, depth in SIZES:
        torch.manual_seed(0)
        graph = sw.nn.RandomFeatureGraph(dim, features=features)
        model = SplitElements(sw.DMPS.build(3, 1, dim=dim, depth=depth, graph=graph))
        x = torch.randn(1, ELEMENTS, 3)
        model(x).sum().backward()
        collectives.barrier()
        before = sent()
        with CountedBytes() as counted:
            for _ in range(REPEATS):
                model(x).sum().backward()
        collectives.barrier()
        given = counted.bytes
        expected = payload(dim, features, depth)
        found.append(
            {
                "dim": dim,
                "features": features,
                "depth": depth,
                "formula": expected,
                "given": given / REPEATS,
                "formula_on_the_wire": on_the_wire(given / REPEATS, collectives.world_size()),
                "measured_on_the_wire": (sent() - before) / REPEATS,
            }
        )
        collectives.barrier()
    if collectives.is_first():
        Path(path).write_text(json.dumps(found))
    collectives.shutdown()


def main() -> int:
    if len(sys.argv) > 2 and sys.argv[1] == "--measure":
        measure(sys.argv[2])
        return 0
    given = arguments("endurance.bytes_moved", __doc__)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found.json")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*launcher, "-m", "endurance.bytes_moved", "--measure", str(path)]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, check=True)
        found = json.loads(path.read_text())
    record(
        given.out, "python -m endurance.bytes_moved", {"processes": 2, "elements": ELEMENTS, "steps": found}
    )
    for one in found:
        whole = sum(one["formula"][part] for part in ("blocks", "graph", "pool"))
        print(
            f"d {one['dim']}, f {one['features']}, depth {one['depth']}: {whole:,} bytes by formula, "
            f"{one['given']:,.0f} given; on the wire, "
            f"{one['measured_on_the_wire'] / one['formula_on_the_wire']:.3f} of what was expected"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
