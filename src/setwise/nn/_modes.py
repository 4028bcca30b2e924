"""Looking at a model as it is in use, whatever it is doing now."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Every module of the model in evaluation mode, and then each in its own again: a part may be frozen.

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
