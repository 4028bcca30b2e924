"""SetClassifier: a scikit-learn classifier of sets."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
from jaxtyping import Float, Shaped
from torch import Tensor

from setwise._text import few
from setwise.estimators.base import (
    Network,
    SetEstimator,
    check_index,
    check_target_count,
    check_targets,
    to_json,
)
from setwise.sets import Sets
from setwise.tasks import Binary, Classes, Labels

# estimators.base must come first: it reports a missing scikit-learn.
# isort: split
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_sample_weight
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d

MAX_NAME = 2**16
"""Maximum size in bytes of a class name in a model file."""


class SetClassifier(ClassifierMixin, SetEstimator):  # type: ignore[misc]
    """Classifier of sets: two classes, several classes, or several labels per set.

    A `setwise.DMPS` network encodes the elements, learns a latent graph over them, passes messages along its
    edges, pools the elements and classifies the set. Features are standardised over all elements first.

    Args:
        block: type of block: ``"denoising"``, ``"message-passing"`` or ``"residual"``.
        depth: number of blocks.
        layers: widths of the encoder's layers.
        hidden: widths of the deep kernel's layers.
        pool: pooling: ``"mean"``, ``"max"``, ``"sum"``, ``"attention"``, ``"gated"`` (gated attention), or
            several joined by plus signs.
        graph: type of graph: ``"auto"`` is exact up to 20,000 elements per set, and linear in the number of
            elements beyond.
        network: function ``(in_dim, out_dim) → module`` that builds a network in place of all of the above.
        dropout: dropout rate of the encoder; ``"auto"`` is 0.5 for more than 32 features, else 0.
        standardize: whether to standardise features over all elements. Beyond five standard deviations,
            standardised values grow logarithmically.
        max_epochs: number of epochs.
        batch_size: maximum number of sets per batch.
        max_elements: maximum number of elements per set in training, redrawn every epoch; None takes all.
        lr: initial learning rate; it decays to zero.
        weight_decay: weight decay (L2 penalty).
        early_stopping: whether to hold out sets for validation, stop when their loss no longer improves, and
            keep the best network.
        validation_fraction: fraction of the sets to hold out for early stopping.
        n_iter_no_change: epochs without improvement after which training stops.
        class_weight: ``"balanced"``, or a dict with the weight of each class.
        warm_start: whether `fit` continues training the fitted network.
        random_state: random seed of weights, batches and dropout.
        device: device to train on; ``"auto"`` takes a GPU if there is one.
        verbose: whether to show a progress bar; a string is its title.

    Attributes:
        classes_: the classes; with several labels per set, their indices.
        n_features_in_: number of features per element; if X is a 2-D array, its number of columns.
        feature_names_in_: names of the features, if the sets were data frames.
        module_: the trained network for raw features; ``module_.network`` takes standardised features.
        history_: the loss of each epoch and, with early stopping, the scores on the validation sets.
        n_iter_: number of epochs trained.

    >>> rng = np.random.default_rng(0)
    >>> X = [rng.normal(size=(rng.integers(3, 9), 2)) + 2 * (i % 2) for i in range(40)]
    >>> y = ["near", "far"] * 20
    >>> clf = SetClassifier(max_epochs=5, random_state=0).fit(X, y)
    >>> clf.score(X, y) > 0.9, clf.predict_proba(X[:2]).shape
    (True, (2, 2))
    >>> clf.latent_graph(X[0]).weights.shape == (len(X[0]), len(X[0]))
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SetEstimator._parameter_constraints,
        "class_weight": [StrOptions({"balanced"}), dict, list, None],
    }

    def __init__(
        self,
        *,
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
        class_weight: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
        verbose: bool | int | str = False,
    ) -> None:
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
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on these sets, at a constant learning rate.

        Args:
            X: the sets.
            y: their classes.
            classes: all classes that will occur; required in the first call unless y contains them all.
            sample_weight: one weight per set; all 1 by default.
        """
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all sets at once, as in fit; use a dict of weights instead"
            )
        if classes is not None:
            known = np.unique(classes)
            if not hasattr(self, "module_"):
                self._announced = known
            elif not np.array_equal(known, self.classes_):
                raise ValueError(
                    f"classes must be the same as in the first call, {few(self.classes_)}, got {few(known)}"
                )
        try:
            return self._partial_fit(X, y, sample_weight)
        finally:
            self.__dict__.pop("_announced", None)

    def decision_function(self, X: Any) -> Float[np.ndarray, " b"] | Float[np.ndarray, "b k"]:
        """The log-odds of the second class ``[b]``, or the logit of each class or label ``[b, k]``."""
        out = np.asarray(self._outputs(X).double())
        return out[:, 0] if isinstance(self.task_, Binary) else out

    def predict_proba(self, X: Any) -> Float[np.ndarray, "b k"]:
        """The probability of each class, or of each label."""
        out = self._outputs(X).double()
        assert isinstance(self.task_, Binary | Classes | Labels)
        return np.asarray(self.task_.probabilities(out))

    def decide(
        self, probabilities: Float[np.ndarray, "b k"]
    ) -> Shaped[np.ndarray, " b"] | Shaped[np.ndarray, "b k"]:
        """The predictions that follow from the output of `predict_proba`."""
        check_is_fitted(self)
        if isinstance(self.task_, Labels):
            return (probabilities > 0.5).astype(np.int64)
        return np.asarray(self.classes_[probabilities.argmax(1)])

    def predict(self, X: Any) -> Shaped[np.ndarray, " b"] | Shaped[np.ndarray, "b k"]:
        """The most probable class of each set, or its labels ``[b, k]``."""
        check_is_fitted(self)
        predictions = self.task_.predict(self._outputs(X)).numpy()
        return np.asarray(predictions if isinstance(self.task_, Labels) else self.classes_[predictions])

    def _targets(self, y: Any, count: int, *, reset: bool) -> np.ndarray:
        """Class indices, or a 0/1 matrix of labels; determines the task if ``reset``."""
        y = check_targets(y, self)
        kind = type_of_target(y, input_name="y")
        check_classification_targets(y)
        if kind == "multiclass-multioutput":
            raise ValueError("Unknown label type: y must have one class per set, or labels 0 or 1")
        several = kind == "multilabel-indicator"
        y = y if several else column_or_1d(y, warn=True)
        check_target_count(y, count)
        if reset:
            announced = getattr(self, "_announced", None)
            self.classes_ = (
                np.arange(y.shape[1]) if several else np.unique(y) if announced is None else announced
            )
            if len(self.classes_) < 2 and not several:
                raise ValueError(f"expected at least two classes, got 1 class: {few(self.classes_)}")
            self.task_ = Labels() if several else Binary() if len(self.classes_) == 2 else Classes()
            self._out_dim = 1 if isinstance(self.task_, Binary) else len(self.classes_)
        if several != isinstance(self.task_, Labels) or (several and y.shape[1] != self._out_dim):
            raise ValueError(
                f"y must have labels of the same kind as in the first call, {few(self.classes_)}, got {kind}"
            )
        if several:
            return np.asarray(y, dtype=np.int64)
        if len(unknown := np.setdiff1d(y, self.classes_)):
            raise ValueError(f"the classes in y must be among {few(self.classes_)}, got {few(unknown)}")
        index: np.ndarray = np.searchsorted(self.classes_, y).astype(np.int64)
        return index

    def _class_weights(self, targets: Tensor) -> Any:
        if self.class_weight is None:
            return 1.0
        y = targets.numpy() if isinstance(self.task_, Labels) else self.classes_[targets.numpy()]
        return compute_sample_weight(self.class_weight, y)

    def _output_column(self, sets: Sets, output: int | None) -> tuple[int, float]:
        if isinstance(self.task_, Labels):
            return super()._output_column(sets, output)
        if output is None:
            output = int(self.task_.predict(self._outputs(sets))[0])
        check_index("output", output, len(self.classes_))
        return (0, 1.0 if output else -1.0) if isinstance(self.task_, Binary) else (output, 1.0)

    def _description(self) -> dict[str, Any]:
        weights = self.class_weight if isinstance(self.class_weight, list) else [self.class_weight]
        return {
            "classes": to_json(self.classes_),
            "classes_type": self.classes_.dtype.str,
            "class_weights": [
                [[to_json(name), float(weight)] for name, weight in one.items()]
                if isinstance(one, Mapping)
                else one
                for one in weights
            ],
        }

    def _restore(
        self, description: Mapping[str, Any], state: dict[str, Tensor], network: Network | None
    ) -> None:
        kind = np.dtype(description["classes_type"])
        if kind.kind not in "biufUO" or kind.itemsize > MAX_NAME:
            raise ValueError(f"classes must be numbers or strings, got {kind}")
        self.classes_ = np.array(description["classes"], dtype=kind)
        if len({str(name) for name in self.classes_}) != len(self.classes_):
            raise ValueError(f"classes must be distinct, got {few(self.classes_)}")
        weights = [dict(one) if isinstance(one, list) else one for one in description["class_weights"]]
        self.class_weight = weights if len(weights) > 1 else weights[0]
        super()._restore(description, state, network)
        outs = {Binary: 2, Classes: self._out_dim, Labels: self._out_dim}
        if self.classes_.shape != (outs.get(type(self.task_)),):
            raise ValueError(f"{self._out_dim} outputs do not match {len(self.classes_)} classes")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.poor_score = True  # on tables: sets have no order
        return tags
