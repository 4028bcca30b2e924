"""Settings of a training run: a frozen dataclass, from which the command line is made."""

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints


@dataclass(frozen=True)
class Training:
    """Settings of a training run; the default is Adam with a constant learning rate.

    >>> Training(steps=0)
    Traceback (most recent call last):
    ...
    ValueError: training.steps must be at least 1, got 0
    """

    steps: int = 30_000
    """Number of batches."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Adam, or Adam with decoupled weight decay (AdamW)."""
    lr: float = 1e-3
    """Initial learning rate."""
    weight_decay: float = 0.0
    """Weight decay."""
    schedule: Literal["constant", "plateau", "cosine"] = "constant"
    """Learning rate over time: constant, reduced when the loss stops falling, or a cosine to zero."""
    plateau_factor: float = 0.9
    """Factor by which a plateau reduces the learning rate."""
    plateau_patience: int = 1
    """Evaluations without improvement before the learning rate is reduced."""
    warmup: int = 0
    """Number of batches over which the learning rate increases to its full value (constant and cosine)."""
    clip: float | None = None
    """Maximum norm of the gradient; none means no clipping."""
    patience: int | None = None
    """Early stopping: end after this many evaluations without a validation loss lower by 1e-4, and restore
    the weights of the lowest loss; none trains to the end and keeps the last weights."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device; auto uses a GPU if there is one."""
    split: Literal["sets", "elements", "shares"] = "sets"
    """How several processes divide a batch: by sets; by the elements of each set (linear graph only); or not
    at all, since the batches of each process contain its share of the elements already."""
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true"
    """Floating-point precision: single, mixed with bfloat16, or double."""
    evaluations: int = 60
    """Approximate number of evaluations over the training."""
    checkpoint_seconds: float = 20.0
    """Save a checkpoint at the first evaluation after this many seconds; 0 saves at every evaluation."""
    tensorboard: bool = False
    """Also write TensorBoard events."""

    def __post_init__(self) -> None:
        """Validate the values."""
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
            raise ValueError(f"training.warmup must be 0 with schedule plateau, got {self.warmup}")
        if not 0 < self.plateau_factor < 1:
            raise ValueError(f"training.plateau_factor must lie between 0 and 1, got {self.plateau_factor}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"training.clip must be positive and finite, got {self.clip}")

    @property
    def interval(self) -> int:
        """Number of batches between two evaluations."""
        return -(-self.steps // self.evaluations)
