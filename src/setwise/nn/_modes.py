"""Temporarily switch a model to eval mode."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Temporarily switch a model to eval mode; afterwards, restore the mode of each submodule.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with eval_mode(model):
    ...     print([part.training for part in model])
    [False, False]
    >>> [part.training for part in model]
    [True, False]
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
