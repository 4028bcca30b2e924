"""The knobs of a training run, as a frozen dataclass that is also its command line."""

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints


@dataclass(frozen=True)
class Training:
    """How to train: by default Adam with a constant learning rate.

    >>> Training(steps=0)
    Traceback (most recent call last):
    ...
    ValueError: training.steps must be at least 1, got 0
    """

    steps: int = 30_000
    """Batches to train on."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Adam, or Adam with decoupled weight decay."""
    lr: float = 1e-3
    """Learning rate to start from."""
    weight_decay: float = 0.0
    """Weight decay."""
    schedule: Literal["constant", "plateau", "cosine"] = "constant"
    """Learning rate over time: constant, reduced when the loss stops falling, or a cosine to zero."""
    plateau_factor: float = 0.9
    """What a plateau multiplies the learning rate with."""
    plateau_patience: int = 1
    """Evaluations without progress that are forgiven before that."""
    warmup: int = 0
    """Batches over which the learning rate rises to its full value (constant and cosine)."""
    clip: float | None = None
    """Largest norm of the gradient; none means no clipping."""
    patience: int | None = None
    """Evaluations without a validation loss lower by 1e-4 after which training ends, with the weights of the
    lowest; none means to train to the end and keep the last."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train: on a GPU if there is one, or as told."""
    split: Literal["sets", "elements", "shares"] = "sets"
    """What processes that train together divide: the sets of a batch; with a linear graph, the elements of
    each set; or nothing, as the batches that each process makes hold its share of the elements already."""
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true"
    """Arithmetic: single precision, bfloat16 where it is safe, or double."""
    evaluations: int = 60
    """About how many times over the training to evaluate, and to look for a plateau."""
    checkpoint_seconds: float = 20.0
    """Save at the first evaluation after this many seconds; 0 saves at each one."""
    tensorboard: bool = False
    """Write TensorBoard events beside the metrics."""

    def __post_init__(self) -> None:
        """Refuse absurd values, in one sentence each."""
        for name, least in (
            ("steps", 1),
            ("evaluations", 1),
            ("warmup", 0),
            ("plateau_patience", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"training.{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("weight_decay", "checkpoint_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"training.{name} must be finite and not negative, got {getattr(self, name)}"
                )
        if not 0 < self.lr < math.inf:
            raise ValueError(f"training.lr must be positive and finite, got {self.lr}")
        for name in ("optimizer", "schedule", "device", "split", "precision"):
            choices = get_args(get_type_hints(type(self))[name])
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"training.{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"training.patience must be at least 1, got {self.patience}")
        if self.warmup and self.schedule == "plateau":
            raise ValueError(f"training.warmup goes with constant and cosine, got {self.warmup} with plateau")
        if not 0 < self.plateau_factor < 1:
            raise ValueError(f"training.plateau_factor must lie between 0 and 1, got {self.plateau_factor}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"training.clip must be positive and finite, got {self.clip}")

    @property
    def interval(self) -> int:
        """Batches from one evaluation to the next."""
        return -(-self.steps // self.evaluations)
