"""The classic multiple-instance benchmarks: musk, elephant, fox, tiger, UCSB breast cancer."""

from pathlib import Path

from setwise.experiments.data.folders import data_folder
from setwise.io.bags.dataset import Bags
from setwise.io.bags.tables import bags_from_npz

MIL_NAMES = ("musk1", "musk2", "elephant", "fox", "tiger", "ucsb")
"""Data sets that `load_mil` can load."""


def load_mil(name: str, folder: Path | str | None = None) -> Bags:
    """Load a classic data set: molecules (musk1, musk2), images (elephant, fox, tiger), tissue (ucsb).

    Args:
        name: one of `MIL_NAMES`.
        folder: folder of ``mil_classic.npz``; by default ``mil`` in the data folder.
    """
    if name not in MIL_NAMES:
        raise ValueError(f"name must be one of {', '.join(MIL_NAMES)}, got {name!r}")
    path = (data_folder() / "mil" if folder is None else Path(folder)) / "mil_classic.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"{path.name} is missing: copy it to {path.parent}, or set SETWISE_DATA to another data folder"
        )
    return bags_from_npz(path, name)
