"""Counting unique characters through a trained encoder: what does the set function itself add?

From scratch, most of a training goes into learning to see: the encoder has to be found through a count, and
rows differ in how soon it is. Here every row reads the drawings through one and the same encoder, that of a
finished run of `Counting`, which stays as it is. Encoder and row together have the paper's architecture; the
row alone is trained, which takes a tenth of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import setwise as sw
from setwise.config import Training
from setwise.experiments import counting
from setwise.experiments.counting import Counting

if TYPE_CHECKING:
    from torch import Tensor

    from setwise.data.characters import CharacterSets

ENCODED = 500  # drawings at a time


@dataclass(frozen=True)
class Features(Counting):
    """Count the different characters in sets of handwritten ones, seen through a trained encoder."""

    checkpoint: str = "runs/counting/distinct/split-image_steps-20000_seed-0/checkpoint.pt"
    """Of a counting run, whose encoder to take."""
    batch: Literal["pool", "fresh"] = "fresh"
    """Draw the sets of a batch from a pool of drawings, or each from all drawings (the paper)."""
    training: Training = field(
        default_factory=lambda: Training(steps=20_000, lr=1e-3, schedule="cosine", evaluations=25)
    )
    """How each row is trained."""

    name: ClassVar[str] = "features"

    def __post_init__(self) -> None:
        """Refuse absurd values."""
        super().__post_init__()
        if self.distortion:
            raise ValueError(f"features cannot be distorted as drawings can, got {self.distortion}")

    @property
    def data(self) -> str:
        """Which data the experiment really uses."""
        return f"{super().data}, encoded"

    def _encoder(self) -> sw.ElementEncoder:
        """The elements are features already."""
        from torch import nn

        return sw.ElementEncoder(nn.Identity())

    def _sets(self, name: Literal["train", "validation", "test"]) -> CharacterSets:
        return replace(super()._sets(name), features=_features(self.checkpoint))


@cache
def _features(checkpoint: str) -> Tensor:
    """The features of all drawings, by number."""
    import torch

    from setwise.train import load_checkpoint

    path = Path(checkpoint)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: train an encoder with 'setwise run counting', or name another --checkpoint"
        )
    state = load_checkpoint(path)["model"]
    prefix = "encoder."
    encoder = Counting()._encoder()
    try:
        encoder.load_state_dict({k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)})
    except RuntimeError as error:
        raise ValueError(f"{path} is not of a counting run: its encoder is another one") from error
    characters = counting._characters()
    with torch.no_grad():
        return torch.cat([
            encoder.network(characters.pixels(numbers).bool().unsqueeze(1))
            for numbers in characters.index.flatten().split(ENCODED)
        ])  # fmt: skip
