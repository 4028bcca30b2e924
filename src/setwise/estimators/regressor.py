"""SetRegressor: a scikit-learn regressor of sets."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from setwise.estimators.base import Network, SetEstimator, checked_targets, one_a_set
from setwise.nn.dmps import DMPS
from setwise.sets import LARGEST
from setwise.tasks import Count, Regression

try:
    from sklearn.base import RegressorMixin
    from sklearn.utils._param_validation import StrOptions
    from sklearn.utils.validation import column_or_1d
except ImportError as error:
    raise ModuleNotFoundError("the estimators need scikit-learn: pip install 'setwise[sklearn]'") from error


class SetRegressor(RegressorMixin, SetEstimator):  # type: ignore[misc]
    """Predict numbers from sets: real ones by least squares, or counts by Poisson regression.

    The network is that of `SetClassifier`, and so are all arguments but for the first.

    Args:
        loss: ``"squared_error"`` for real targets, one a set or several; ``"poisson"`` for counts, whose mean
            is predicted.
        block: as in `SetClassifier`, and so for all that follow.
        depth: how many times messages are passed.
        layers: widths of the encoder's layers.
        hidden: widths of the deep kernel's layers.
        pool: how elements become a set. A sum suits counts and totals.
        graph: how the graph is computed.
        network: ``(in_dim, out_dim) → module`` instead of all of the above.
        dropout: share of each layer of the encoder that is left out at random in training.
        standardize: whether to bring features to standard units.
        max_epochs: passes over the sets.
        batch_size: sets in a batch.
        max_elements: at most so many elements of a set at a time in training.
        lr: learning rate at the start.
        weight_decay: how much weights are drawn to zero.
        early_stopping: whether to watch the loss on sets set aside, and keep the best network.
        validation_fraction: share of the sets that are set aside for that.
        n_iter_no_change: epochs without progress on them after which training stops.
        warm_start: whether `fit` goes on from the network that is there.
        random_state: seed of the weights, the batches and the dropout.
        device: where to train.
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
        """Go on learning with one pass over these sets, at a constant rate.

        Args:
            X: the sets.
            y: their targets.
            sample_weight: how much each set counts.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> Float[np.ndarray, " b"] | Float[np.ndarray, "b k"]:
        """The target of each set; of counts, their mean λ."""
        out = self._outputs(X).double()
        out = out.exp() if isinstance(self.task_, Count) else out
        return np.asarray(out if self._several else out[:, 0])

    def _targets(self, y: Any, count: int, *, reset: bool) -> np.ndarray:
        """Numbers ``[b]`` or ``[b, k]``; settles what the task is."""
        y = checked_targets(y, self, dtype=np.float64)
        several = y.ndim == 2 and y.shape[1] > 1
        y = y if several else column_or_1d(y, warn=True)
        one_a_set(y, count)
        if np.abs(y).max() > LARGEST:
            raise ValueError(f"y must hold numbers of single precision, got {np.abs(y).max():g}")
        if reset:
            self.task_ = Regression() if self.loss == "squared_error" else Count()
            self._several, self._out_dim = several, y.shape[1] if several else 1
        if several != self._several or (several and y.shape[1] != self._out_dim):
            raise ValueError(
                f"y must hold {self._out_dim} numbers a set as in the first call, got {list(y.shape)}"
            )
        if isinstance(self.task_, Count) and (several or y.min() < 0):
            raise ValueError("y must hold one count a set, not negative, for loss='poisson', got others")
        return np.asarray(y)

    def _out_units(self, targets: Tensor) -> dict[str, Tensor]:
        if isinstance(self.task_, Count):
            return {}
        std, mean = torch.std_mean(targets.view(len(targets), -1), dim=0, correction=0)
        return {"out_mean": mean, "out_std": std}

    def _in_network_units(self, targets: Tensor) -> Tensor:
        if self.module_.out_mean is None or self.module_.out_std is None:
            return targets.float()
        scaled = (targets.view(len(targets), -1) - self.module_.out_mean.cpu()) / self.module_.out_std.cpu()
        return scaled.view(targets.shape).float()

    def _start_output(self, network: DMPS, targets: Tensor) -> None:
        if isinstance(self.task_, Count):  # from the mean count, however large
            bias = network.get_parameter("head.linear.bias")
            nn.init.constant_(bias, float(targets.mean().clamp(min=1e-3).log()))

    def _described(self) -> dict[str, Any]:
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
        tags.regressor_tags.poor_score = True  # of a table: a set of numbers has no first and second column
        return tags
