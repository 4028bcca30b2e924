"""Where a model is trained: on this device, or by several processes together."""

import os
from itertools import chain
from typing import Any

from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn
from torch.optim import Optimizer

from setwise import ranks
from setwise.config import Training
from setwise.nn.split_elements import SplitElements
from setwise.nn.split_sets import SplitSets


class _Together(DDPStrategy):
    """Processes whose gradients are averaged by `setwise.ranks.average_gradients`, always in one order.

    ``DistributedDataParallel`` would sort them anew after the first step of each run, and so add them up in
    another order after a resumption.
    """

    def setup_module(self, module: nn.Module) -> Any:
        """Leave it as it is."""
        return module


def set_up(model: nn.Module, optimizer: Optimizer, training: Training) -> tuple[Fabric, Any, Any]:
    """Fabric, the network to call and the optimiser to step: on the device, in the precision asked for.

    With several processes the network divides each batch among them; their gradients are to be averaged.
    """
    if ranks.world() == 1:
        fabric = Fabric(accelerator=training.device, devices=1, precision=training.precision)
        return fabric, *fabric.setup(model, optimizer)
    ranks.join()
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    fabric = Fabric(
        accelerator=training.device,
        devices=here,
        num_nodes=ranks.world() // here,
        strategy=_Together(),
        precision=training.precision,
    )
    fabric.launch()
    ranks.same(chain(model.parameters(), model.buffers()))
    if training.split != "sets":
        divided = SplitElements(model, whole=training.split == "elements")
        return fabric, *fabric.setup(divided, optimizer)
    network, stepper = fabric.setup(model, optimizer)
    return fabric, SplitSets(network), stepper
