"""Fill the disk while a checkpoint is written: the previous checkpoint must survive.

The disk is a tmpfs of some megabytes in its own mount name space, which needs administrator rights. It is
filled, except for less than the size of a checkpoint, while a run trains, and emptied later.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from endurance.kills import RUN, checkpoint_digest, readable
from endurance.recording import arguments, record

SIZE, LEFT = "8m", 100_000


def main() -> int:
    given = arguments("endurance.full_disk", __doc__)
    if os.environ.get("SETWISE_MOUNTED") != "yes":
        inner = [sys.executable, "-m", "endurance.full_disk", "--out", str(given.out.resolve())]
        environment = {**os.environ, "SETWISE_MOUNTED": "yes"}
        done = subprocess.run(["unshare", "--mount", "--propagation", "private", *inner], env=environment)
        return done.returncode
    with tempfile.TemporaryDirectory() as here:
        peaceful, small = Path(here, "peaceful"), Path(here, "small")
        peaceful.mkdir()
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(small)], check=True)
        try:
            found = filled_up(peaceful, small)
        finally:
            subprocess.run(["umount", str(small)], check=True)
    record(given.out, "python -m endurance.full_disk", found)
    return 0 if found["bit_equal"] and not found["unreadable"] and found["exit_code"] == 2 else 1


def filled_up(peaceful: Path, small: Path) -> dict[str, object]:
    """Fill the disk while a run is at work there; then make room, and let it go on."""
    command = [sys.executable, *RUN]
    subprocess.run(command, cwd=peaceful, check=True, capture_output=True)
    process = subprocess.Popen(command, cwd=small, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not any(small.rglob("checkpoint.pt")):
        time.sleep(0.01)
    time.sleep(1)
    ballast = small / "ballast"
    with ballast.open("wb") as file:
        free = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
        file.write(bytes(max(0, free - LEFT)))
    _, said = process.communicate()
    step, unreadable = readable(small)
    ballast.unlink()
    subprocess.run([*command, "--resume"], cwd=small, check=True, capture_output=True)
    return {
        "disk": SIZE,
        "exit_code": process.returncode,
        "message": said.strip().splitlines()[-1].replace(str(small), "…"),
        "step_kept": step,
        "unreadable": unreadable,
        "unfinished_left": len(list(small.rglob("*.unfinished"))),
        "bit_equal": checkpoint_digest(peaceful) == checkpoint_digest(small),
    }


if __name__ == "__main__":
    sys.exit(main())
