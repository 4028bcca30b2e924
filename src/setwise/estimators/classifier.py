"""SetClassifier: a scikit-learn classifier of sets."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
from jaxtyping import Float, Shaped
from torch import Tensor

from setwise._text import few
from setwise.estimators.base import Network, SetEstimator, at_most, checked_targets, one_a_set, plain
from setwise.sets import Sets
from setwise.tasks import Binary, Classes, Labels

try:
    from sklearn.base import ClassifierMixin
    from sklearn.utils import compute_sample_weight
    from sklearn.utils._param_validation import StrOptions
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ImportError as error:
    raise ModuleNotFoundError("the estimators need scikit-learn: pip install 'setwise[sklearn]'") from error

LONGEST_NAME = 2**16
"""Bytes of the name of a class in a file."""


class SetClassifier(ClassifierMixin, SetEstimator):  # type: ignore[misc]
    """Classify sets: two classes, many, or several labels at a time.

    A network encodes the elements, learns a latent graph over them, passes messages along it, pools and reads
    out: see `setwise.DMPS`. Features are brought to standard units over all elements first.

    Args:
        block: what elements do with the messages of others: ``"denoising"``, ``"message-passing"`` or
            ``"residual"``.
        depth: how many times messages are passed.
        layers: widths of the encoder's layers.
        hidden: widths of the deep kernel's layers.
        pool: how elements become a set: ``"mean"``, ``"max"``, ``"sum"``, ``"attention"``, ``"gated"``, or
            several joined by plus signs.
        graph: how the graph is computed: ``"auto"`` is exact up to 20,000 elements a set and linear beyond.
        network: ``(in_dim, out_dim) → module`` instead of all of the above.
        dropout: share of each layer of the encoder that is left out at random in training; ``"auto"`` is one
            half where elements have more than 32 features, else nothing.
        standardize: whether to bring features to standard units over all elements; those beyond five standard
            deviations then grow by their logarithm only.
        max_epochs: passes over the sets.
        batch_size: sets in a batch.
        max_elements: at most so many elements of a set at a time in training, drawn at random.
        lr: learning rate at the start; it falls to zero over the epochs.
        weight_decay: how much weights are drawn to zero.
        early_stopping: whether to set sets aside, watch the loss on them, and keep the best network.
        validation_fraction: share of the sets that are set aside for that.
        n_iter_no_change: epochs without progress on them after which training stops.
        class_weight: ``"balanced"``, or the weight of each class.
        warm_start: whether `fit` goes on from the network that is there.
        random_state: seed of the weights, the batches and the dropout.
        device: where to train: ``"auto"`` takes a GPU if there is one.
        verbose: whether to show a progress bar; a string is its title.

    Attributes:
        classes_: the classes; of several labels, their numbers.
        n_features_in_: features of an element; of a 2-D array, its columns.
        feature_names_in_: their names, if the sets were data frames.
        module_: the trained network, for features as they come; ``module_.network`` is the one inside.
        history_: the loss over the epochs and, with early stopping, the scores on the sets set aside.
        n_iter_: epochs trained.

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
        """Go on learning with one pass over these sets, at a constant rate.

        Args:
            X: the sets.
            y: their classes.
            classes: all that will ever come; needed the first time, unless y has them all.
            sample_weight: how much each set counts.
        """
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all sets at once, as fit has them: give weights by class"
            )
        if classes is not None:
            known = np.unique(classes)
            if not hasattr(self, "module_"):
                self._announced = known
            elif not np.array_equal(known, self.classes_):
                raise ValueError(
                    f"classes must be those of the first call, {few(self.classes_)}, got {few(known)}"
                )
        try:
            return self._partial_fit(X, y, sample_weight)
        finally:
            self.__dict__.pop("_announced", None)

    def decision_function(self, X: Any) -> Float[np.ndarray, " b"] | Float[np.ndarray, "b k"]:
        """Log-odds of the second class ``[b]``, or the logit of every class or label ``[b, k]``."""
        out = np.asarray(self._outputs(X).double())
        return out[:, 0] if isinstance(self.task_, Binary) else out

    def predict_proba(self, X: Any) -> Float[np.ndarray, "b k"]:
        """The probability of every class, or of every label."""
        out = self._outputs(X).double()
        assert isinstance(self.task_, Binary | Classes | Labels)
        return np.asarray(self.task_.probabilities(out))

    def decide(
        self, chances: Float[np.ndarray, "b k"]
    ) -> Shaped[np.ndarray, " b"] | Shaped[np.ndarray, "b k"]:
        """What `predict` says of sets with these probabilities, without another pass over them."""
        check_is_fitted(self)
        if isinstance(self.task_, Labels):
            return (chances > 0.5).astype(np.int64)
        return np.asarray(self.classes_[chances.argmax(1)])

    def predict(self, X: Any) -> Shaped[np.ndarray, " b"] | Shaped[np.ndarray, "b k"]:
        """The likeliest class of each set, or its labels ``[b, k]``."""
        out = self._outputs(X)
        numbers = self.task_.predict(out).numpy()
        return np.asarray(numbers if isinstance(self.task_, Labels) else self.classes_[numbers])

    def _targets(self, y: Any, count: int, *, reset: bool) -> np.ndarray:
        """Class numbers, or an indicator of labels; settles what the task is."""
        y = checked_targets(y, self)
        kind = type_of_target(y, input_name="y")
        check_classification_targets(y)
        if kind == "multiclass-multioutput":
            raise ValueError("Unknown label type: y must hold a class a set, or labels that are 0 or 1")
        several = kind == "multilabel-indicator"
        y = y if several else column_or_1d(y, warn=True)
        one_a_set(y, count)
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
                f"y must hold what it held in the first call, {few(self.classes_)}, got other labels"
            )
        if several:
            return np.asarray(y, dtype=np.int64)
        if len(unknown := np.setdiff1d(y, self.classes_)):
            raise ValueError(f"y must hold the classes {few(self.classes_)}, got {few(unknown)}")
        numbers: np.ndarray = np.searchsorted(self.classes_, y).astype(np.int64)
        return numbers

    def _class_weights(self, targets: Tensor) -> Any:
        if self.class_weight is None:
            return 1.0
        named = targets.numpy() if isinstance(self.task_, Labels) else self.classes_[targets.numpy()]
        return compute_sample_weight(self.class_weight, named)

    def _meant(self, sets: Sets, output: int | None) -> tuple[int, float]:
        if isinstance(self.task_, Labels):
            return super()._meant(sets, output)
        if output is None:
            output = int(self.task_.predict(self._outputs(sets))[0])
        at_most("output", output, len(self.classes_))
        return (0, 1.0 if output else -1.0) if isinstance(self.task_, Binary) else (output, 1.0)

    def _described(self) -> dict[str, Any]:
        weights = self.class_weight if isinstance(self.class_weight, list) else [self.class_weight]
        return {
            "classes": plain(self.classes_),
            "classes_type": self.classes_.dtype.str,
            "class_weights": [
                [[plain(name), float(weight)] for name, weight in one.items()]
                if isinstance(one, Mapping)
                else one
                for one in weights
            ],
        }

    def _restore(
        self, description: Mapping[str, Any], state: dict[str, Tensor], network: Network | None
    ) -> None:
        kind = np.dtype(description["classes_type"])
        if kind.kind not in "biufUO" or kind.itemsize > LONGEST_NAME:
            raise ValueError(f"classes must be numbers or names, got {kind}")
        self.classes_ = np.array(description["classes"], dtype=kind)
        if len({str(name) for name in self.classes_}) != len(self.classes_):
            raise ValueError("its classes must be different from each other")
        weights = [dict(one) if isinstance(one, list) else one for one in description["class_weights"]]
        self.class_weight = weights if len(weights) > 1 else weights[0]
        super()._restore(description, state, network)
        outs = {Binary: 2, Classes: self._out_dim, Labels: self._out_dim}
        if self.classes_.shape != (outs.get(type(self.task_)),):
            raise ValueError(f"{len(self.classes_)} classes do not fit {self._out_dim} outputs")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.poor_score = True  # of a table: a set of numbers has no first and second column
        return tags
