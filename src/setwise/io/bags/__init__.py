"""Bags of instances with one label per bag, as in multiple-instance learning.

`Bags` is a data set of bags from arrays in memory (`Bags.from_arrays`), the classic benchmarks (`load_mil`,
`bags_from_npz`), a table with one row per instance (`bags_from_csv`) or a folder with one file per bag
(`bags_from_folder`). An invalid bag does not affect the others: ``bags[i]`` raises its error,
``bags.check()`` lists all errors, and ``bags.usable()`` leaves invalid bags out.

`to_torchmil` and `from_torchmil` exchange batches with torchmil. `SetBatch.to_index` and
`SetBatch.from_index` convert to and from PyTorch Geometric's ``(x, batch)``.
"""

from setwise.io.bags.dataset import Bag, Bags, Reader
from setwise.io.bags.folder import bags_from_folder
from setwise.io.bags.tables import bags_from_csv, bags_from_npz
from setwise.io.bags.torchmil import from_torchmil, to_torchmil

__all__ = [
    "Bag",
    "Bags",
    "Reader",
    "bags_from_csv",
    "bags_from_folder",
    "bags_from_npz",
    "from_torchmil",
    "to_torchmil",
]
