"""Bags of instances with one label a bag, as in multiple-instance learning; a bag is read when asked for.

`Bags` is the data set, whatever it was read from: arrays in memory (`Bags.from_arrays`), the classic
benchmarks (`load_mil`, `bags_from_npz`), a table with a row an instance (`bags_from_csv`) or a folder with a
file a bag (`bags_from_folder`). One bad bag spoils no data set: what is wrong with it is one sentence, which
``bags[i]`` raises and ``bags.check()`` lists, and ``bags.usable()`` leaves it out.

`to_torchmil` and `from_torchmil` exchange batches with torchmil. PyTorch Geometric's ``(x, batch)`` is what
`SetBatch.to_index` gives and `SetBatch.from_index` takes. `setwise.estimators.folds` splits bags into folds.
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
