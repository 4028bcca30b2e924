"""Tasks: the loss, the predictions and the scores of a model's raw outputs ``out [b, k]``.

Models and tasks are independent of each other.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
    smooth_l1_loss,
)


class Task(Protocol):
    """The interface that training and evaluation use."""

    metric: ClassVar[str]
    """The main score, shown during training."""

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch, to be minimised."""

    def predict(self, out: Tensor) -> Tensor:
        """The decoded predictions."""

    def score(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """Scores over all evaluated sets, by name, including ``loss``."""


class _MeanLoss:
    """A task whose loss is the mean of the losses of the sets."""

    def loss(self, out: Float[Tensor, "b k"], y: Shaped[Tensor, "b ..."]) -> Float[Tensor, ""]:
        """The mean loss of a batch."""
        return self.losses(out, y).mean()

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of each set."""
        raise NotImplementedError


def _fraction(hits: Tensor) -> float:
    return hits.double().mean().item()


def roc_auc(scores: Float[Tensor, " b"], y: Shaped[Tensor, " b"]) -> float:
    """Area under the ROC curve: P(score of class 1 > score of class 0) + P(tie) / 2.

    >>> roc_auc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    hits = y == 1
    ones, zeros = int(hits.sum()), int((~hits).sum())
    if not ones or not zeros:
        raise ValueError(
            f"the ROC curve needs sets of both classes, got {zeros} of class 0 and {ones} of class 1"
        )
    _, position, count = scores.unique(return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count - 1) / 2)[position].double()  # equal scores share their mean rank
    below = rank[hits].sum().item() - ones * (ones + 1) / 2
    return float(below / (ones * zeros))


def _check_targets(out: Tensor, y: Tensor) -> None:
    """Refuse targets of another shape, which torch would broadcast silently."""
    if y.shape != out.shape[:1]:
        raise ValueError(f"expected one target for each of {len(out)} sets, got {list(y.shape)}")


@dataclass(frozen=True)
class Binary(_MeanLoss):
    """Two classes: ``out [b, 1]`` is the log-odds of class 1.

    >>> task = Binary()
    >>> task.predict(torch.tensor([[-1.0], [2.0]]))
    tensor([0, 1])
    >>> task.score(torch.tensor([[-1.0], [2.0]]), torch.tensor([0, 0]))["accuracy"]
    0.5
    """

    name: ClassVar[str] = "binary"
    metric: ClassVar[str] = "accuracy"

    def losses(self, out: Float[Tensor, "b 1"], y: Shaped[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Cross-entropy."""
        _check_targets(out, y)
        if ((y != 0) & (y != 1)).any():
            raise ValueError(f"targets must be 0 or 1, got {y.unique().tolist()}")
        return binary_cross_entropy_with_logits(out.squeeze(-1), y.to(out.dtype), reduction="none")

    def predict(self, out: Float[Tensor, "b 1"]) -> Int[Tensor, " b"]:
        """The more probable class."""
        return (out.squeeze(-1) > 0).long()

    def probabilities(self, out: Float[Tensor, "b 1"]) -> Float[Tensor, "b 2"]:
        """The probability of either class."""
        p = out.sigmoid()
        return torch.cat([1 - p, p], dim=-1)

    def score(self, out: Float[Tensor, "b 1"], y: Shaped[Tensor, " b"]) -> dict[str, float]:
        """Accuracy and, where both classes occur, the area under the ROC curve."""
        scores = {"loss": self.loss(out, y).item(), "accuracy": _fraction(self.predict(out) == y)}
        if 0 < y.sum() < len(y):
            scores["auc"] = roc_auc(out.squeeze(-1), y)
        return scores


@dataclass(frozen=True)
class Labels(_MeanLoss):
    """Multi-label classification: ``out [b, k]`` are the log-odds of k labels.

    >>> task = Labels()
    >>> task.predict(torch.tensor([[-1.0, 2.0]]))
    tensor([[0, 1]])
    >>> task.score(torch.tensor([[-1.0, 2.0]]), torch.tensor([[1, 1]]))["accuracy_label"]
    0.5
    """

    name: ClassVar[str] = "labels"
    metric: ClassVar[str] = "accuracy"

    def losses(self, out: Float[Tensor, "b k"], y: Shaped[Tensor, "b k"]) -> Float[Tensor, " b"]:
        """Cross-entropy, averaged over the labels."""
        if y.shape != out.shape:
            raise ValueError(f"expected targets {list(out.shape)}, got {list(y.shape)}")
        if ((y != 0) & (y != 1)).any():
            raise ValueError(f"targets must be 0 or 1, got {y.unique().tolist()}")
        return binary_cross_entropy_with_logits(out, y.to(out.dtype), reduction="none").mean(-1)

    def predict(self, out: Float[Tensor, "b k"]) -> Int[Tensor, "b k"]:
        """The labels with a probability above one half."""
        return (out > 0).long()

    def probabilities(self, out: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        """The probability of each label."""
        return out.sigmoid()

    def score(self, out: Float[Tensor, "b k"], y: Shaped[Tensor, "b k"]) -> dict[str, float]:
        """The fraction of sets with all labels correct (accuracy), and of correct single labels."""
        hits = self.predict(out) == y
        return {
            "loss": self.loss(out, y).item(),
            "accuracy": _fraction(hits.all(-1)),
            "accuracy_label": _fraction(hits),
        }


@dataclass(frozen=True)
class Classes(_MeanLoss):
    """One of k classes: ``out [b, k]`` are logits.

    Args:
        label_smoothing: fraction of the target that is spread over all classes in training.

    >>> Classes().predict(torch.tensor([[0.0, 3.0, 1.0]]))
    tensor([1])
    """

    label_smoothing: float = 0.0
    name: ClassVar[str] = "classes"
    metric: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie between 0 and 1, got {self.label_smoothing}")

    def losses(self, out: Float[Tensor, "b k"], y: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Cross-entropy."""
        _check_targets(out, y)
        return cross_entropy(out, y, label_smoothing=self.label_smoothing, reduction="none")

    def predict(self, out: Float[Tensor, "b k"]) -> Int[Tensor, " b"]:
        """The likeliest class."""
        return out.argmax(-1)

    def probabilities(self, out: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        """The probability of each class."""
        return out.softmax(-1)

    def score(self, out: Float[Tensor, "b k"], y: Int[Tensor, " b"]) -> dict[str, float]:
        """Accuracy, and the cross-entropy without label smoothing as loss."""
        return {
            "loss": cross_entropy(out, y).item(),
            "accuracy": _fraction(self.predict(out) == y),
        }


@dataclass(frozen=True)
class Count(_MeanLoss):
    """A count by Poisson regression: ``out [b, 1]`` is log λ.

    The paper predicts the mode ⌊λ⌋. The loss is minimal at λ = E[count], which is the boundary between
    two modes if the count is certain; ``accuracy_round`` decodes by rounding λ instead.

    Args:
        decode: ``"mode"`` (as in the paper) or ``"round"``; applies to `predict` and ``accuracy``.

    >>> out = torch.tensor([[2.9]]).log()
    >>> Count().predict(out), Count(decode="round").predict(out)
    (tensor([2]), tensor([3]))
    """

    decode: str = "mode"
    name: ClassVar[str] = "count"
    metric: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        if self.decode not in ("mode", "round"):
            raise ValueError(f"decode must be 'mode' or 'round', got {self.decode!r}")

    def losses(self, out: Float[Tensor, "b 1"], y: Shaped[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Negative log-likelihood λ − y log λ + log y!."""
        _check_targets(out, y)
        log_rate, y = out.squeeze(-1), y.to(out.dtype)
        return log_rate.exp() - y * log_rate + torch.lgamma(y + 1)

    def predict(self, out: Float[Tensor, "b 1"]) -> Int[Tensor, " b"]:
        """The decoded count."""
        return self._decode(out, self.decode)

    def score(self, out: Float[Tensor, "b 1"], y: Shaped[Tensor, " b"]) -> dict[str, float]:
        """The fraction of exact counts with either decoding, and the mean absolute error of λ."""
        by = {d: _fraction(self._decode(out, d) == y) for d in ("mode", "round")}
        return {
            "loss": self.loss(out, y).item(),
            "accuracy": by[self.decode],
            "accuracy_mode": by["mode"],
            "accuracy_round": by["round"],
            "absolute_error": (out.squeeze(-1).exp() - y).abs().double().mean().item(),
        }

    @staticmethod
    def _decode(out: Tensor, how: str) -> Tensor:
        rate = out.squeeze(-1).exp()
        return (rate.floor() if how == "mode" else rate.round()).long()


@dataclass(frozen=True)
class RobustCount(Count):
    """A count trained with the Huber loss of λ − y instead of the Poisson likelihood.

    The loss is quadratic up to an error of 1/2, where rounding changes the count, and linear beyond. So
    outliers have less influence, and large and small counts have the same weight.

    >>> task = RobustCount()
    >>> task.loss(torch.tensor([[5.0]]).log(), torch.tensor([5])).item() < 1e-6
    True
    """

    name: ClassVar[str] = "robust count"

    def losses(self, out: Float[Tensor, "b 1"], y: Shaped[Tensor, " b"]) -> Float[Tensor, " b"]:
        """(λ − y)² where |λ − y| < 1/2, else |λ − y| − 1/4."""
        _check_targets(out, y)
        return smooth_l1_loss(out.squeeze(-1).exp(), y.to(out.dtype), beta=0.5, reduction="none")


@dataclass(frozen=True)
class Regression(_MeanLoss):
    """Real targets ``y [b]`` or ``[b, k]`` by least squares: ``out [b, k]``.

    >>> Regression().score(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 3.0]))["r2"]
    0.5
    """

    name: ClassVar[str] = "regression"
    metric: ClassVar[str] = "r2"

    def losses(
        self, out: Float[Tensor, "b k"], y: Shaped[Tensor, " b"] | Shaped[Tensor, "b k"]
    ) -> Float[Tensor, " b"]:
        """Squared error, averaged over the outputs."""
        return mse_loss(out, self._targets_like(out, y), reduction="none").mean(-1)

    def predict(self, out: Float[Tensor, "b k"]) -> Float[Tensor, " b"] | Float[Tensor, "b k"]:
        """The outputs; ``[b]`` if there is one output."""
        return out.squeeze(-1)

    def score(
        self, out: Float[Tensor, "b k"], y: Shaped[Tensor, " b"] | Shaped[Tensor, "b k"]
    ) -> dict[str, float]:
        """R², averaged over the outputs, and the mean absolute error."""
        out, y = out.double(), self._targets_like(out, y).double()
        residual = (out - y).square().sum(0)
        total = (y - y.mean(0)).square().sum(0)
        # R² of a constant target is 1 if all predictions are exact, else 0.
        explained = torch.where(total > 0, 1 - residual / total, (residual == 0).double())
        return {
            "loss": self.loss(out, y).item(),
            "r2": explained.mean().item(),
            "absolute_error": (out - y).abs().mean().item(),
        }

    @staticmethod
    def _targets_like(out: Tensor, y: Tensor) -> Tensor:
        if y.shape == out.shape:
            return y.to(out.dtype)
        if out.shape[-1] != 1:
            raise ValueError(f"expected targets {list(out.shape)}, got {list(y.shape)}")
        _check_targets(out, y)
        return y.to(out.dtype).unsqueeze(-1)
