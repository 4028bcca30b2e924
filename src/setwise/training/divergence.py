"""Diagnose a loss that is not finite, and save the batch and the weights to reproduce it."""

from pathlib import Path

from torch import Tensor, nn

from setwise import collectives
from setwise.functional import fill_padding
from setwise.sets import SetBatch, Shared
from setwise.training.checkpoint import save_checkpoint

DIVERGED = "diverged.pt"


def report_divergence(
    model: nn.Module,
    batch: SetBatch,
    y: Tensor,
    loss: float,
    step: int,
    random_state: Tensor,
    folder: Path | None,
) -> str:
    """Save the state of a step whose loss is not finite, and return a message with the likely cause.

    `setwise.training.checkpoint.load_checkpoint` reads the file: a dict with the weights ``"model"``, the
    batch ``"x"``, ``"mask"`` and ``"y"``, and the ``"random"`` state to set before the model is called.

    Args:
        model: with the parameters before the step.
        batch: of the step.
        y: its targets.
        loss: its loss.
        step: its number.
        random_state: torch's random state before the model was called.
        folder: where to save the file, if anywhere.
    """
    x = batch.x.expand() if isinstance(batch.x, Shared) else batch.x
    values = fill_padding(x, batch.mask).flatten(1)
    bad = (~values.isfinite().all(1)).nonzero().flatten().tolist()
    if bad:
        why = f"{len(bad)} of {len(batch)} sets contain values that are not finite, the first is set {bad[0]}"
    elif not all(weight.isfinite().all() for weight in model.parameters()):
        why = (
            "the weights are not finite after the previous step: clip the gradient or lower the learning rate"
        )
    else:
        why = "lower the learning rate, clip the gradient, or look for huge values in the data"
    message = f"the loss became {loss} at step {step}: {why}"
    if folder is None:
        return message
    if collectives.is_first():
        state = {"model": model.state_dict(), "x": x, "mask": batch.mask, "y": y}
        save_checkpoint(folder / DIVERGED, state | {"step": step, "loss": loss, "random": random_state})
    collectives.barrier()  # torchrun ends all processes as soon as one of them fails
    return f"{message}; the batch and the weights are in {folder / DIVERGED}"
