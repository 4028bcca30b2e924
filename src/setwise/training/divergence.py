"""What is left of a training whose loss is no number: the batch and the weights, to see it happen again."""

from pathlib import Path

from torch import Tensor, nn

from setwise import collectives
from setwise.functional import fill_padding
from setwise.sets import SetBatch, Shared
from setwise.training.checkpoint import save_checkpoint

DIVERGED = "diverged.pt"


def diverged(
    model: nn.Module, batch: SetBatch, y: Tensor, loss: float, step: int, random: Tensor, folder: Path | None
) -> str:
    """Keep what is needed to see it again, and say what may have been wrong.

    `setwise.training.checkpoint.load_checkpoint` reads the file: a dict with the weights ``"model"``, the
    batch ``"x"``, ``"mask"`` and ``"y"``, and the ``"random"`` state to set before the model is called.

    Args:
        model: with the parameters that it had before the step.
        batch: of the step.
        y: its targets.
        loss: what came out.
        step: its number.
        random: the random state before the model was called.
        folder: where to keep them, if anywhere.
    """
    x = batch.x.expand() if isinstance(batch.x, Shared) else batch.x
    seen = fill_padding(x, batch.mask).flatten(1)
    bad = (~seen.isfinite().all(1)).nonzero().flatten().tolist()
    if bad:
        why = f"{len(bad)} of {len(batch)} sets hold values that are not finite, the first is number {bad[0]}"
    elif not all(weight.isfinite().all() for weight in model.parameters()):
        why = "the step before made weights that are not finite: clip the gradient or lower the learning rate"
    else:
        why = "lower the learning rate, clip the gradient, or look for huge values in the data"
    said = f"the loss became {loss} at step {step}: {why}"
    if folder is None:
        return said
    if collectives.is_first():
        state = {"model": model.state_dict(), "x": x, "mask": batch.mask, "y": y}
        save_checkpoint(folder / DIVERGED, state | {"step": step, "loss": loss, "random": random})
    collectives.wait()  # a process that fails ends the others
    return f"{said}; the batch and the weights are in {folder / DIVERGED}"
