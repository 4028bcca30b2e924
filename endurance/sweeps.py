"""Compare a sweep in two processes with a sequential one: speed, results, and results after a kill.

The same runs are made one at a time and two at a time, each with one thread. A third sweep is killed
(SIGKILL) with all its processes and continued with ``--resume``.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from endurance.recording import arguments, record

RUN = [sys.executable, "-m", "setwise", "run", "gaussian", "--row", "v-dmps", "--seeds", "0", "1"]
RUN += ["--sweep", "0.5", "0.9", "--threads", "1", "--test-sets", "5000", "--training.steps", "600"]
RUN += ["--training.checkpoint-seconds", "1"]


def results(folder: Path) -> dict[str, Any]:
    """Return the results of the runs, without their times."""
    found = {path.name: json.loads(path.read_text()) for path in (folder / "results").rglob("*.json")}
    for result in found.values():
        result["budget"].pop("seconds")
    return found


def timed(folder: Path, *more: str) -> float:
    folder.mkdir(exist_ok=True)
    began = time.perf_counter()
    subprocess.run(
        [*RUN, *more], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def main() -> int:
    given = arguments("endurance.sweeps", __doc__)
    with tempfile.TemporaryDirectory() as here:
        one, two, killed = Path(here, "one"), Path(here, "two"), Path(here, "killed")
        alone, together = timed(one), timed(two, "--jobs", "2")
        killed.mkdir()
        process = subprocess.Popen(
            [*RUN, "--jobs", "2"], cwd=killed, start_new_session=True, stderr=subprocess.DEVNULL
        )
        time.sleep(together / 2)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        done_before = len(results(killed))
        resumed = timed(killed, "--jobs", "2", "--resume")
        found = {
            "runs": len(results(one)),
            "speed_up": alone / together,
            "same_results": results(one) == results(two),
            "done_before_the_kill": done_before,
            "resumed_over_whole": resumed / together,
            "same_results_after_the_kill": results(one) == results(killed),
        }
    record(given.out, "python -m endurance.sweeps", found)
    print(found)
    return 0 if found["same_results"] and found["same_results_after_the_kill"] else 1


if __name__ == "__main__":
    sys.exit(main())
