"""`SetEstimator`, the common base of the estimators: checks, training, prediction, inspection, saving."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from setwise import collectives
from setwise._text import shortened
from setwise.estimators.batches import SetTask, TrainingBatches, WeightedTask, evaluation_batches
from setwise.estimators.model_file import write_model
from setwise.estimators.network import build_network
from setwise.inspection.importance import Method, importance, method_for
from setwise.inspection.set_graph import SetGraph
from setwise.nn._modes import eval_mode
from setwise.nn.dmps import DMPS
from setwise.nn.layers import RescaledNetwork, initialize
from setwise.sets import SetBatch, Sets, is_flat
from setwise.tasks import Binary, Classes, Count, Labels, Regression
from setwise.training.config import Training
from setwise.training.loop import fit, flush_denormals, outputs
from setwise.training.progress import NoProgress, ProgressBar
from setwise.training.seeding import generator

try:
    from sklearn.base import BaseEstimator
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state
    from sklearn.utils._param_validation import Interval, StrOptions
    from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, validate_data
except ImportError as error:
    raise ModuleNotFoundError("the estimators need scikit-learn: pip install 'setwise[sklearn]'") from error

Network = Callable[[int, int], nn.Module]
"""Builds a network ``(x, mask) → [b, k]`` from the number of features and the number of outputs."""

MAX_WIDTH = 2**16
"""Maximum width of a layer."""

ARCHITECTURE = (
    "block", "depth", "layers", "hidden", "pool", "graph", "dropout", "standardize", "network",
)  # fmt: skip
"""Arguments that define the network; they cannot change after it has been built."""

TASKS: dict[str, type[SetTask]] = {task.name: task for task in (Binary, Labels, Classes, Count, Regression)}


class SetEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Common base of `SetClassifier` and `SetRegressor`."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "block": [StrOptions({"message-passing", "denoising", "residual"})],
        "depth": [Interval(Integral, 0, 1000, closed="both")],
        "layers": ["array-like"],
        "hidden": ["array-like"],
        "pool": [str],
        "graph": [StrOptions({"latent", "streamed", "linear", "auto", "uniform"})],
        "network": [callable, None],
        "dropout": [Interval(Real, 0, 1, closed="left"), StrOptions({"auto"})],
        "standardize": ["boolean"],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_elements": [Interval(Integral, 1, None, closed="left"), None],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "device": [StrOptions({"auto", "cpu", "cuda", "mps"})],
        "verbose": ["verbose", str],
    }

    checkpoints: Path | None = None
    """Folder for checkpoints, from which an interrupted training resumes; None writes no checkpoints."""
    module_: RescaledNetwork
    task_: SetTask
    history_: list[dict[str, float]]
    n_iter_: int
    _optimizer: torch.optim.Optimizer | None
    _flat: bool  # whether fit was given a single table
    _width: int  # features per element
    _out_dim: int
    _built: dict[str, Any]  # the arguments with which the network was built

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the estimator to sets and their targets.

        Args:
            X: the sets: a list of ``[n_i, d]`` arrays, tensors or data frames; an array ``[b, n, d]``, or a
                pair of it and its mask; ``(values, ptr)``; or a 2-D array in which each row is a set of
                numbers.
            y: one target per set.
            sample_weight: one weight per set; all 1 by default.
        """
        self._validate_params()
        with self._restored_on_failure():
            warm = self.warm_start and hasattr(self, "module_")
            sets, targets, weights = self._examples(X, y, sample_weight, reset=not warm)
            seed = self._draw_seed()
            if warm:
                self._copy_module()
            else:
                self._build_module(sets, targets, seed)
            self._optimizer = None
            train, held_out = self._split(len(sets), targets, seed)
            self._train(sets, targets, weights, train, held_out, seed=seed, epochs=self.max_epochs)
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """One epoch over these sets, with the network and the statistics of the first call."""
        self._validate_params()
        with self._restored_on_failure():
            first = not hasattr(self, "module_")
            sets, targets, weights = self._examples(X, y, sample_weight, reset=first)
            if first:
                self._build_module(sets, targets, self._draw_seed())
            else:
                self._copy_module()
            if self._optimizer is None:
                self._optimizer = torch.optim.Adam(
                    self.module_.network.parameters(), lr=self.lr, weight_decay=self.weight_decay, fused=True
                )
            index, seed = np.arange(len(sets)), self._seed + self.n_iter_
            self._train(sets, targets, weights, index, index[:0], seed=seed, epochs=1)
        return self

    @contextmanager
    def _restored_on_failure(self) -> Iterator[None]:
        """Restore the estimator if fitting fails, and torch's global random state in any case."""
        before = self.__dict__.copy()
        try:
            with torch.random.fork_rng():
                yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _copy_module(self) -> None:
        """Copy the trained network, so that the old one survives if training fails."""
        for name, built in self._built.items():
            if name != "network" and getattr(self, name) != built:
                raise ValueError(
                    f"{name} cannot change when training continues, "
                    f"expected {built!r} as before, got {getattr(self, name)!r}"
                )
        self.module_, self._optimizer = copy.deepcopy((self.module_, self._optimizer))

    def _draw_seed(self) -> int:
        drawn = int(check_random_state(self.random_state).randint(2**31 - 1))
        collectives.initialize()
        self._seed = int(collectives.run_on_first(lambda: str(drawn).encode()))
        return self._seed

    def _examples(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Sets, Tensor, Tensor]:
        """Check sets, targets and weights."""
        name = type(self).__name__
        if y is None:
            raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None")
        sets = self._sets(X, reset=reset)
        targets = torch.from_numpy(self._targets(y, len(sets), reset=reset))
        weights = _check_sample_weight(
            sample_weight, sets.ptr[1:], dtype=np.float64, ensure_non_negative=True
        ) * self._class_weights(targets)
        if not 0 < weights.sum() < np.inf:
            raise ValueError(f"the sample weights must have a finite, positive sum, got {weights.sum()}")
        return sets, targets, torch.from_numpy(weights / weights.mean()).float()

    def _sets(self, X: Any, *, reset: bool) -> Sets:
        """Check X and, unless ``reset``, that it has the same features as in fit."""
        if isinstance(X, Tensor) and not X.is_nested and X.layout is torch.strided:
            X = X.detach().cpu().numpy()
        flat = is_flat(X)
        if flat and (reset or self._flat):
            try:
                X = validate_data(self, X, dtype=[np.float64, np.float32], reset=reset)
            except (TypeError, ValueError):
                raise
            except Exception as error:  # arbitrary objects can raise anything
                raise TypeError(f"X must be an array of numbers, got {type(X).__name__}: {error}") from error
        elif flat and self._width > 1:
            raise ValueError(
                f"X must be a list of sets whose elements have {self._width} features as in fit, "
                "got a single table; pass one set x as [x]"
            )
        sets = Sets.of(X)
        if reset:
            self._flat, self._width = flat, sets.dim
            if not flat:
                self._store_feature_names(sets)
        elif sets.dim != self._width:
            raise ValueError(f"set 0 has elements of {sets.dim} features, expected {self._width} as in fit")
        elif not flat and sets.columns is not None and hasattr(self, "feature_names_in_"):
            for i, (got, expected) in enumerate(zip(sets.columns, self.feature_names_in_, strict=True)):
                if got != expected:
                    raise ValueError(f"column {i} of the sets must be {expected!r} as in fit, got {got!r}")
        return sets

    def _store_feature_names(self, sets: Sets) -> None:
        self.n_features_in_ = sets.dim
        self.__dict__.pop("feature_names_in_", None)
        if sets.columns is not None:
            self.feature_names_in_ = np.array(sets.columns, dtype=object)

    def _build_module(self, sets: Sets, targets: Tensor, seed: int) -> None:
        """Build a network, and rescale its inputs and outputs by the statistics of these sets."""
        mean, std = sets.values.mean(0, dtype=np.float64), sets.values.std(0, dtype=np.float64)
        if not self.standardize:
            mean, std = np.zeros_like(mean), np.ones_like(std)
        self._built = {name: copy.deepcopy(getattr(self, name)) for name in ARCHITECTURE}
        torch.manual_seed(seed)  # for the weights of a network that the user builds
        network = self._make_network(sets.dim, self._out_dim)
        if self.network is None:
            initialize(network, generator("weights", seed))
            self._initialize_output(network, targets)
        self.module_ = RescaledNetwork(
            network,
            mean=torch.from_numpy(mean),
            std=torch.from_numpy(std),
            **self._target_statistics(targets),
        )
        self._optimizer = None
        self.n_iter_, self.history_ = 0, []
        batch, _ = next(evaluation_batches(self._standardized(sets[:64])))
        if self.network is not None:
            _check_network(network, batch, self._out_dim)
        if isinstance(network, DMPS):
            with eval_mode(network), suppress(ValueError):  # sets of one element have no distances
                network.initialize_bandwidth(batch.x, batch.mask)

    def _make_network(self, in_dim: int, out_dim: int) -> Any:
        if self.network is not None:
            return _call_factory(self.network, in_dim, out_dim)
        return build_network(
            in_dim,
            out_dim,
            layers=_widths("layers", self.layers),
            hidden=_widths("hidden", self.hidden),
            dropout="auto" if self.dropout == "auto" else float(self.dropout),
            pool=self.pool,
            depth=self.depth,
            block=self.block,
            graph=self.graph,
            compress_outliers=self.standardize,
        )

    def _standardized(self, sets: Sets) -> Sets:
        """The sets as the network takes them in training."""
        values = torch.from_numpy(sets.values).to(self.module_.inputs.mean.device)
        return Sets(self.module_.standardized(values).cpu().numpy(), sets.ptr)

    def _split(self, count: int, targets: Tensor, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the sets to train on, and of those held out for early stopping."""
        index = np.arange(count)
        if not self.early_stopping:
            return index, index[:0]
        held_out = int(np.ceil(self.validation_fraction * count))
        if not 0 < held_out < count:
            raise ValueError(
                "early_stopping needs at least one set for training and one for validation, "
                f"got n_samples={count}"
            )
        classes = targets if isinstance(self.task_, Binary | Classes) else None
        if classes is not None:
            counts = classes.unique(return_counts=True)[1]
            if int(counts.min()) < 2 or min(held_out, count - held_out) < len(counts):
                classes = None
        train, validation = train_test_split(index, test_size=held_out, random_state=seed, stratify=classes)
        return train, validation

    def _train(
        self,
        sets: Sets,
        targets: Tensor,
        weights: Tensor,
        train: np.ndarray,
        held_out: np.ndarray,
        *,
        seed: int,
        epochs: int,
    ) -> None:
        """Train: with a cosine learning rate, or with a constant one if there is an optimizer already."""
        if self.device in ("cuda", "mps") and not getattr(torch, self.device).is_available():
            raise ValueError(f"device must be available on this machine, got {self.device!r}")
        inputs = self._standardized(sets)
        batches = TrainingBatches(
            inputs,
            torch.from_numpy(train),
            batch_size=self.batch_size,
            max_elements=self.max_elements,
            seed=seed,
        )
        validation = None
        if len(held_out):
            validation = list(evaluation_batches(inputs, torch.from_numpy(held_out)))
        training = Training(
            steps=epochs * len(batches),
            lr=float(self.lr),
            weight_decay=float(self.weight_decay),
            schedule="cosine" if self._optimizer is None else "constant",
            clip=1.0,
            evaluations=epochs,
            patience=int(self.n_iter_no_change) if validation else None,
            checkpoint_seconds=2.0,
            device=self.device,
        )
        scaled = self._scale_targets(targets)
        task = WeightedTask(self.task_, scaled, weights, batches.mean_batch_size)
        network = self.module_.network
        title = self.verbose if isinstance(self.verbose, str) else type(self).__name__
        bar = ProgressBar(title, self.task_.metric) if self.verbose else NoProgress()
        torch.manual_seed(seed)  # for dropout
        try:
            history = fit(
                network,
                task,
                batches,
                training,
                validation=validation,
                folder=self.checkpoints,
                resume=True,
                progress=bar,
                optimizer=self._optimizer,
            )
        except FloatingPointError as error:
            raise ValueError(f"training {type(self).__name__} failed: {error}") from error
        device = next(network.parameters()).device
        self.module_.to("cpu" if device.type == "mps" else device)  # MPS has no double precision
        before = int(self.history_[-1]["step"]) if self.history_ else 0
        self.history_ += [entry | {"step": before + entry["step"]} for entry in history.metrics]
        self.n_iter_ += len(history.metrics)

    def _outputs(self, X: Any) -> Float[Tensor, "b k"]:
        """Raw outputs for each set, computed in the precision of X: single if X is single, else double."""
        check_is_fitted(self)
        sets = self._sets(X, reset=False)
        single = sets.values.dtype == np.float32
        module = self.module_ if single else copy.deepcopy(self.module_).double()
        out, index = outputs(_DoubleOutputs(module), evaluation_batches(sets))
        return out[index.argsort()]

    def latent_graph(self, x: Any) -> SetGraph:
        """The latent graph of one set ``[n, d]``; warns if it is nearly uniform.

        Args:
            x: the set.
        """
        network, sets = self._dmps(), self._single_set(x)
        inputs = self.module_.standardized(torch.from_numpy(sets.values))
        graph = SetGraph.of(network, inputs, points=sets.values)
        graph.warn_if_uniform(stacklevel=3)
        return graph

    def element_importance(
        self, x: Any, output: int | None = None, *, method: Method = "auto"
    ) -> Float[np.ndarray, " n"]:
        """The importance of each element of one set ``[n, d]`` for an output of the model.

        The method is the attention weight if the model pools by attention, else the decrease of the output
        when the element is removed or, for more than 1,000 elements, integrated gradients: see
        `setwise.importance`.

        Args:
            x: the set.
            output: index of the class, label or target; by default the predicted class, or the first label
                or target.
            method: ``"auto"``, or a method of `setwise.importance`.
        """
        check_is_fitted(self)
        sets, network = self._single_set(x), self.module_.network
        inputs = self.module_.standardized(torch.from_numpy(sets.values)).unsqueeze(0)
        column, sign = self._output_column(sets, output)
        method = method_for(network, len(sets.values)) if method == "auto" else method
        with flush_denormals():
            values = importance(network, inputs, output=column, method=method)[0]
        if method != "attention":  # attention weights have no sign
            values = sign * values
        return np.asarray(values.cpu().numpy(), dtype=np.float64)

    def _class_weights(self, targets: Tensor) -> Any:
        """Factors of the sample weights that depend on the class."""
        return 1.0

    def _target_statistics(self, targets: Tensor) -> dict[str, Tensor]:
        """``out_mean`` and ``out_std`` of the `RescaledNetwork`; empty if outputs are not rescaled."""
        return {}

    def _scale_targets(self, targets: Tensor) -> Tensor:
        """Targets in the units of the network's raw outputs."""
        return targets

    def _initialize_output(self, network: DMPS, targets: Tensor) -> None:
        """Initialise the output layer from the targets."""

    def _output_column(self, sets: Sets, output: int | None) -> tuple[int, float]:
        """The column of the raw outputs that belongs to a class, label or target, and its sign."""
        return check_index("output", 0 if output is None else output, self._out_dim), 1.0

    def _dmps(self) -> DMPS:
        check_is_fitted(self)
        if not isinstance(self.module_.network, DMPS):
            kind = type(self.module_.network).__name__
            raise TypeError(f"latent_graph needs a network of type DMPS, got {kind}")
        return self.module_.network

    def _single_set(self, x: Any) -> Sets:
        """Check a single set; a set of numbers may be a 1-D array."""
        check_is_fitted(self)
        if isinstance(x, Sets):
            sets = self._sets(x, reset=False)
        elif self._width == 1 and _is_row_of_numbers(x):
            sets = self._sets([np.reshape(x, (-1, 1))], reset=False)
        else:
            sets = self._sets([x], reset=False)
        if len(sets) != 1:
            raise ValueError(f"x must be one set, got {len(sets)}")
        return sets

    def save(self, path: Path | str) -> None:
        """Write the fitted estimator to one file. `setwise.load` reads it without executing code.

        Args:
            path: the file, usually ``….safetensors``.
        """
        check_is_fitted(self)
        params = self.get_params(deep=False) | self._built | {"network": None}
        params |= {"class_weight": None} if "class_weight" in params else {}  # its keys need not be strings
        if not isinstance(params["random_state"], Integral | None):
            params["random_state"] = None
        description = {
            "estimator": type(self).__name__,
            "params": {name: to_json(value) for name, value in params.items()},
            "own_network": self._built["network"] is not None,
            "task": self.task_.name,
            "in_dim": self._width,
            "out_dim": self._out_dim,
            "flat": self._flat,
            "n_features_in": int(self.n_features_in_),
            "feature_names_in": to_json(getattr(self, "feature_names_in_", None)),
            "n_iter": self.n_iter_,
            "history": self.history_,
            "seed": self._seed,
            **self._description(),
        }
        write_model(Path(path), self.module_.state_dict(), description)

    def _description(self) -> dict[str, Any]:
        """What a subclass adds to the description in the model file."""
        return {}

    def _restore(
        self, description: Mapping[str, Any], state: dict[str, Tensor], network: Network | None
    ) -> None:
        """Restore the estimator from the content of a model file."""
        self._width, self._out_dim = int(description["in_dim"]), int(description["out_dim"])
        self._flat, self._seed = bool(description["flat"]), int(description["seed"])
        self.n_features_in_ = int(description["n_features_in"])
        if not self._flat and self.n_features_in_ != self._width:
            raise ValueError(f"n_features_in must be {self._width} as in_dim, got {self.n_features_in_}")
        if (names := description["feature_names_in"]) is not None:
            if not isinstance(names, list) or len(names) != self.n_features_in_:
                raise ValueError(
                    f"feature_names_in must be null or {self.n_features_in_} names, got {shortened(names)}"
                )
            self.feature_names_in_ = np.array(list(map(str, names)), dtype=object)
        self.n_iter_, self.history_ = int(description["n_iter"]), list(description["history"])
        self.task_ = TASKS[description["task"]]()
        self._optimizer = None
        self.network = network
        for name in ("layers", "hidden"):
            setattr(self, name, tuple(getattr(self, name)))
        self._validate_params()
        self._built = {name: getattr(self, name) for name in ARCHITECTURE}
        self._check_size(state)
        module = RescaledNetwork(
            self._make_network(self._width, self._out_dim),
            mean=torch.zeros(self._width),
            std=torch.ones(self._width),
            out_mean=torch.zeros(self._out_dim) if "outputs.mean" in state else None,
            out_std=torch.ones(self._out_dim) if "outputs.std" in state else None,
        )
        expected = module.state_dict()
        for name, value in state.items():
            if name in expected and value.dtype != expected[name].dtype:
                raise ValueError(f"{name} must be {expected[name].dtype}, got {value.dtype}")
        module.load_state_dict(state)
        if not all(value.isfinite().all() for value in state.values()):
            raise ValueError("its weights must be finite, got NaN or infinity")
        self.module_ = module

    def _check_size(self, state: Mapping[str, Tensor]) -> None:
        """Reject descriptions of networks larger than the stored weights, before memory is allocated."""
        stored = sum(value.numel() for value in state.values())
        layers = max(self.depth, len(self.layers), len(self.hidden), self.pool.count("+"))
        if layers > len(state):
            raise ValueError(f"the description has {layers} layers, but the file has {len(state)} tensors")
        chain = (self._width, *self.layers, *self.hidden)
        sizes = [i * o for i, o in (*pairwise(chain), (self.layers[-1], self._out_dim))]
        if self.network is None and max(sizes) > stored:
            raise ValueError(
                f"the description has a layer of {max(sizes)} weights, but the file has {stored} in total"
            )


class _DoubleOutputs(nn.Module):
    """A rescaled network with outputs in double precision, for targets that are large and vary little."""

    def __init__(self, module: RescaledNetwork) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.module.in_target_units(self.module.network(self.module.standardized(x), mask))


def _call_factory(factory: Network, in_dim: int, out_dim: int) -> nn.Module:
    network = factory(in_dim, out_dim)
    if not isinstance(network, nn.Module) or next(network.parameters(), None) is None:
        kind = type(network).__name__
        raise TypeError(f"network must return a torch module with parameters, got {kind}")
    return network


def _check_network(network: nn.Module, batch: SetBatch, out_dim: int) -> None:
    """Call a network that the user built, to report errors before training."""
    try:
        with eval_mode(network), torch.no_grad():
            shape = list(network(batch.x, batch.mask).shape)
    except Exception as error:  # any error of the user's code
        raise TypeError(
            f"network must return a module that takes (x [b, n, d], mask [b, n]), got an error: {error}"
        ) from error
    if shape != [len(batch), out_dim]:
        raise ValueError(f"the network must return outputs of shape {[len(batch), out_dim]}, got {shape}")


def _widths(name: str, given: Any) -> tuple[int, ...]:
    widths = tuple(given)
    if not widths or not all(isinstance(w, Integral) and 1 <= int(w) <= MAX_WIDTH for w in widths):
        raise ValueError(f"{name} must be one or more integers from 1 to {MAX_WIDTH}, got {given!r}")
    return tuple(map(int, widths))


def _is_row_of_numbers(x: Any) -> bool:
    try:
        return np.ndim(x) == 1 and np.asarray(x).dtype.kind != "O"
    except Exception:  # arbitrary objects can raise anything
        return False


def check_targets(y: Any, estimator: Any, dtype: Any = None) -> np.ndarray:
    """Convert targets to an array of finite numbers or strings."""
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    if hasattr(y, "toarray"):
        y = y.toarray()
    try:
        checked: np.ndarray = check_array(
            y, ensure_2d=False, dtype=dtype, ensure_min_samples=0, input_name="y", estimator=estimator
        )
    except (TypeError, ValueError):
        raise
    except Exception as error:  # arbitrary objects can raise anything
        raise TypeError(f"y must be an array of targets, got {type(y).__name__}: {error}") from error
    if checked.ndim not in (1, 2):
        raise ValueError(
            f"y should be a 1d array, or 2d for several targets per set, got shape {list(checked.shape)}"
        )
    return checked


def check_target_count(y: np.ndarray, count: int) -> None:
    """Refuse targets whose number differs from the number of sets."""
    if len(y) != count:
        raise ValueError(f"y must have one target for each of {count} sets, got {len(y)}")


def check_index(name: str, index: int, size: int) -> int:
    """Refuse an index outside 0, …, size - 1."""
    if not 0 <= index < size:
        raise ValueError(f"{name} must be at least 0 and below {size}, got {index}")
    return index


def to_json(value: Any) -> Any:
    """Convert arrays and tuples to lists, and numpy numbers to Python numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [to_json(part) for part in value] if isinstance(value, tuple | list) else value
