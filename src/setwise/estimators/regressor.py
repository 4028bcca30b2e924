"""SetRegressor: a scikit-learn regressor of sets."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from setwise.estimators.base import Network, SetEstimator, check_target_count, check_targets
from setwise.nn.dmps import DMPS
from setwise.sets import FLOAT32_MAX
from setwise.tasks import Count, Regression

# estimators.base must come first: it reports a missing scikit-learn.
# isort: split
from sklearn.base import RegressorMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import column_or_1d


class SetRegressor(RegressorMixin, SetEstimator):  # type: ignore[misc]
    """Regressor of sets: real targets by least squares, or counts by Poisson regression.

    The network and all arguments except ``loss`` are those of `SetClassifier`.

    Args:
        loss: ``"squared_error"`` for one or several real targets per set; ``"poisson"`` for counts, in which
            case predictions are mean counts.
        block: type of block.
        depth: number of blocks.
        layers: widths of the encoder's layers.
        hidden: widths of the deep kernel's layers.
        pool: pooling. ``"sum"`` is suitable for counts and totals.
        graph: type of graph.
        network: function ``(in_dim, out_dim) → module`` that builds a network in place of all of the above.
        dropout: dropout rate of the encoder.
        standardize: whether to standardise features.
        max_epochs: number of epochs.
        batch_size: maximum number of sets per batch.
        max_elements: maximum number of elements per set in training; None takes all.
        lr: initial learning rate.
        weight_decay: weight decay (L2 penalty).
        early_stopping: whether to stop when the loss on held-out sets no longer improves.
        validation_fraction: fraction of the sets to hold out for early stopping.
        n_iter_no_change: epochs without improvement after which training stops.
        warm_start: whether `fit` continues training the fitted network.
        random_state: random seed of weights, batches and dropout.
        device: device to train on.
        verbose: whether to show a progress bar; a string is its title.

    >>> rng = np.random.default_rng(0)
    >>> X = [rng.normal(size=(rng.integers(3, 9), 2)) + i / 10 for i in range(60)]
    >>> y = [x.mean() for x in X]
    >>> SetRegressor(max_epochs=30, random_state=0).fit(X, y).score(X, y) > 0.8
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SetEstimator._parameter_constraints,
        "loss": [StrOptions({"squared_error", "poisson"})],
    }

    def __init__(
        self,
        *,
        loss: Literal["squared_error", "poisson"] = "squared_error",
        block: Literal["denoising", "message-passing", "residual"] = "denoising",
        depth: int = 1,
        layers: tuple[int, ...] = (128, 64),
        hidden: tuple[int, ...] = (64, 64),
        pool: str = "mean",
        graph: Literal["auto", "latent", "streamed", "linear", "uniform"] = "auto",
        network: Network | None = None,
        dropout: float | Literal["auto"] = "auto",
        standardize: bool = True,
        max_epochs: int = 100,
        batch_size: int = 16,
        max_elements: int | None = None,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        warm_start: bool = False,
        random_state: Any = None,
        device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
        verbose: bool | int | str = False,
    ) -> None:
        self.loss = loss
        self.block = block
        self.depth = depth
        self.layers = layers
        self.hidden = hidden
        self.pool = pool
        self.graph = graph
        self.network = network
        self.dropout = dropout
        self.standardize = standardize
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.max_elements = max_elements
        self.lr = lr
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch on these sets, at a constant learning rate.

        Args:
            X: the sets.
            y: their targets.
            sample_weight: one weight per set; all 1 by default.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> Float[np.ndarray, " b"] | Float[np.ndarray, "b k"]:
        """The predicted target of each set; for counts, their mean λ."""
        out = self._outputs(X).double()
        out = out.exp() if isinstance(self.task_, Count) else out
        return np.asarray(out if self._several else out[:, 0])

    def _targets(self, y: Any, count: int, *, reset: bool) -> np.ndarray:
        """Numbers ``[b]`` or ``[b, k]``; determines the task if ``reset``."""
        y = check_targets(y, self, dtype=np.float64)
        several = y.ndim == 2 and y.shape[1] > 1
        y = y if several else column_or_1d(y, warn=True)
        check_target_count(y, count)
        if np.abs(y).max() > FLOAT32_MAX:
            raise ValueError(f"y must be at most {FLOAT32_MAX:g} in magnitude, got {np.abs(y).max():g}")
        if reset:
            self.task_ = Regression() if self.loss == "squared_error" else Count()
            self._several, self._out_dim = several, y.shape[1] if several else 1
        if several != self._several or (several and y.shape[1] != self._out_dim):
            raise ValueError(
                f"y must have {self._out_dim} targets per set as in the first call, got shape {list(y.shape)}"
            )
        if isinstance(self.task_, Count) and (several or y.min() < 0):
            got = f"shape {list(y.shape)}" if several else f"{y.min():g}"
            raise ValueError(f"loss='poisson' needs one count per set, 0 or more, got {got}")
        return np.asarray(y)

    def _target_statistics(self, targets: Tensor) -> dict[str, Tensor]:
        if isinstance(self.task_, Count):
            return {}
        std, mean = torch.std_mean(targets.view(len(targets), -1), dim=0, correction=0)
        return {"out_mean": mean, "out_std": std}

    def _scale_targets(self, targets: Tensor) -> Tensor:
        if (rescale := self.module_.outputs) is None:
            return targets.float()
        scaled: Tensor = rescale(targets.view(len(targets), -1).to(rescale.mean.device))
        return scaled.view(targets.shape).float().cpu()

    def _initialize_output(self, network: DMPS, targets: Tensor) -> None:
        if isinstance(self.task_, Count):  # start at the mean count
            bias = network.get_parameter("head.linear.bias")
            nn.init.constant_(bias, float(targets.mean().clamp(min=1e-3).log()))

    def _description(self) -> dict[str, Any]:
        return {"several": self._several}

    def _restore(
        self, description: Mapping[str, Any], state: dict[str, Tensor], network: Network | None
    ) -> None:
        self._several = bool(description["several"])
        super()._restore(description, state, network)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = True  # on tables: sets have no order
        return tags
