"""What the estimators share: taking sets, training, predicting, looking inside, and keeping it in a file."""

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
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, validate_data
from torch import Tensor, nn

from setwise import collectives
from setwise.estimators.batches import PackedSets, SetTask, TrainingBatches, Weighed, in_turn
from setwise.estimators.model_file import write_model
from setwise.estimators.network import build_network
from setwise.inspection.importance import Method, importance, method_for
from setwise.inspection.set_graph import SetGraph
from setwise.nn._modes import eval_mode
from setwise.nn.dmps import DMPS
from setwise.nn.layers import Framed, initialize
from setwise.sets import SetBatch, Sets, is_flat
from setwise.tasks import Binary, Classes, Count, Labels, Regression
from setwise.training.config import Training
from setwise.training.loop import fit, flush_denormals, outputs
from setwise.training.progress import NoProgress, ProgressBar
from setwise.training.seeding import generator

Network = Callable[[int, int], nn.Module]
"""Makes a network ``(x, mask) → [b, k]``, given the features of an element and the number of outputs."""

WIDEST = 2**16

ARCHITECTURE = (
    "block", "depth", "layers", "hidden", "pool", "graph", "dropout", "standardize", "network",
)  # fmt: skip
"""Arguments that a network is built with, and cannot change afterwards."""

TASKS: dict[str, type[SetTask]] = {
    task.__name__: task for task in (Binary, Labels, Classes, Count, Regression)
}


class SetEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What classifier and regressor share: taking sets, training, predicting, looking inside, keeping."""

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
    """Where to keep the state of a training, to go on from if it is interrupted; nowhere unless told."""
    module_: Framed
    task_: SetTask
    history_: list[dict[str, float]]
    n_iter_: int
    _optimizer: torch.optim.Optimizer | None
    _flat: bool  # whether fit was given one table
    _width: int  # features of an element
    _out_dim: int
    _built: dict[str, Any]  # the arguments that the network was built with

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from sets and their targets.

        Args:
            X: the sets: a list of ``[n_i, d]`` arrays, tensors or data frames; an array ``[b, n, d]``, or a
                pair of it and its mask; ``(values, ptr)``; or a 2-D array, a row a set of numbers.
            y: a target for each set.
            sample_weight: how much each set counts.
        """
        self._validate_params()
        with self._or_as_before():
            again = self.warm_start and hasattr(self, "module_")
            sets, targets, weights = self._examples(X, y, sample_weight, reset=not again)
            seed = self._draw_seed()
            if again:
                self._go_on()
            else:
                self._begin(sets, targets, seed)
            self._optimizer = None
            train, held_out = self._split(len(sets), targets, seed)
            self._train(sets, targets, weights, train, held_out, seed=seed, epochs=self.max_epochs)
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """One more pass, over these sets; units and network are those of the first ones."""
        self._validate_params()
        with self._or_as_before():
            first = not hasattr(self, "module_")
            sets, targets, weights = self._examples(X, y, sample_weight, reset=first)
            if first:
                self._begin(sets, targets, self._draw_seed())
            else:
                self._go_on()
            if self._optimizer is None:
                self._optimizer = torch.optim.Adam(
                    self.module_.network.parameters(), lr=self.lr, weight_decay=self.weight_decay, fused=True
                )
            everything, seed = np.arange(len(sets)), self._seed + self.n_iter_
            self._train(sets, targets, weights, everything, everything[:0], seed=seed, epochs=1)
        return self

    @contextmanager
    def _or_as_before(self) -> Iterator[None]:
        """A failed attempt leaves what had been learned; none leaves a trace in torch's random state."""
        before = self.__dict__.copy()
        try:
            with torch.random.fork_rng():
                yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _go_on(self) -> None:
        """Train a copy of the network that is there, so that a failure does not spoil it."""
        for name, built in self._built.items():
            if name != "network" and getattr(self, name) != built:
                found = f"{getattr(self, name)!r} after {built!r}"
                raise ValueError(f"{name} must stay what it was for a network that goes on, got {found}")
        self.module_, self._optimizer = copy.deepcopy((self.module_, self._optimizer))

    def _draw_seed(self) -> int:
        drawn = int(check_random_state(self.random_state).randint(2**31 - 1))
        collectives.initialize()
        self._seed = int(collectives.run_on_first(lambda: str(drawn).encode()))
        return self._seed

    def _examples(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Sets, Tensor, Tensor]:
        """The sets, and the target and the weight of each, checked."""
        name = type(self).__name__
        if y is None:
            raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None")
        sets = self._sets(X, reset=reset)
        targets = torch.from_numpy(self._targets(y, len(sets), reset=reset))
        weights = _check_sample_weight(
            sample_weight, sets.ptr[1:], dtype=np.float64, ensure_non_negative=True
        ) * self._class_weights(targets)
        if not 0 < weights.sum() < np.inf:
            raise ValueError(f"the weights of the sets must have a finite, positive sum, got {weights.sum()}")
        return sets, targets, torch.from_numpy(weights / weights.mean()).float()

    def _sets(self, X: Any, *, reset: bool) -> Sets:
        """Check X, against what fit was given unless this is fit."""
        if isinstance(X, Tensor) and not X.is_nested and X.layout is torch.strided:
            X = X.detach().cpu().numpy()
        flat = is_flat(X)
        if flat and (reset or self._flat):
            try:
                X = validate_data(self, X, dtype=[np.float64, np.float32], reset=reset)
            except (TypeError, ValueError):
                raise
            except Exception as error:  # objects fail in any way they like
                raise TypeError(f"X must be an array of numbers, got {type(X).__name__}: {error}") from error
        elif flat and self._width > 1:
            raise ValueError(
                f"X must be a list of sets whose elements have {self._width} features, as in fit, "
                "got a single table; of one set x it is [x]"
            )
        sets = Sets.of(X)
        if reset:
            self._flat, self._width = flat, sets.dim
            if not flat:
                self._remember_features(sets)
        elif sets.dim != self._width:
            raise ValueError(f"set 0 has elements of {sets.dim} features, expected {self._width} as in fit")
        elif not flat and sets.columns is not None and hasattr(self, "feature_names_in_"):
            for found, wanted in zip(sets.columns, self.feature_names_in_, strict=True):
                if found != wanted:
                    raise ValueError(f"the sets have a column {found!r} where fit had {wanted!r}")
        return sets

    def _remember_features(self, sets: Sets) -> None:
        self.n_features_in_ = sets.dim
        self.__dict__.pop("feature_names_in_", None)
        if sets.columns is not None:
            self.feature_names_in_ = np.array(sets.columns, dtype=object)

    def _begin(self, sets: Sets, targets: Tensor, seed: int) -> None:
        """A new network, in the units of these sets."""
        mean, std = sets.values.mean(0, dtype=np.float64), sets.values.std(0, dtype=np.float64)
        if not self.standardize:
            mean, std = np.zeros_like(mean), np.ones_like(std)
        self._built = {name: copy.deepcopy(getattr(self, name)) for name in ARCHITECTURE}
        torch.manual_seed(seed)  # from which a network of the user's draws its weights, unless it has some
        network = self._make_network(sets.dim, self._out_dim)
        if self.network is None:
            initialize(network, generator("weights", seed))
            self._start_output(network, targets)
        self.module_ = Framed(
            network, mean=torch.from_numpy(mean), std=torch.from_numpy(std), **self._out_units(targets)
        )
        self._optimizer = None
        self.n_iter_, self.history_ = 0, []
        batch, _ = next(in_turn(self._packed(sets[: min(len(sets), 64)])))
        if self.network is not None:
            _try_out(network, batch, self._out_dim)
        if isinstance(network, DMPS):
            with eval_mode(network), suppress(ValueError):  # sets of one element have no distances
                network.initialize_bandwidth(batch.x, batch.mask)

    def _make_network(self, in_dim: int, out_dim: int) -> Any:
        if self.network is not None:
            return _network_of(self.network, in_dim, out_dim)
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
            soften=self.standardize,
        )

    def _packed(self, sets: Sets) -> PackedSets:
        """What enters the network in training."""
        values = self.module_.standardized(torch.from_numpy(sets.values))
        return PackedSets(values, torch.from_numpy(sets.ptr))

    def _split(self, count: int, targets: Tensor, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Which sets to train on, and which to watch for early stopping."""
        everything = np.arange(count)
        if not self.early_stopping:
            return everything, everything[:0]
        held_out = int(np.ceil(self.validation_fraction * count))
        if not 0 < held_out < count:
            raise ValueError(
                f"early_stopping needs sets to train on and others to watch, got n_samples={count}"
            )
        classes = targets if isinstance(self.task_, Binary | Classes) else None
        if classes is not None:
            counts = classes.unique(return_counts=True)[1]
            if int(counts.min()) < 2 or min(held_out, count - held_out) < len(counts):
                classes = None
        train, watched = train_test_split(everything, test_size=held_out, random_state=seed, stratify=classes)
        return train, watched

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
        """Train for some epochs: with a rate that falls to zero or, given an optimiser, on with it."""
        if self.device in ("cuda", "mps") and not getattr(torch, self.device).is_available():
            raise ValueError(f"device must be one that this machine has, got {self.device!r}")
        packed = self._packed(sets)
        batches = TrainingBatches(
            packed, torch.from_numpy(train), batch_size=self.batch_size, most=self.max_elements, seed=seed
        )
        watched = list(in_turn(packed, torch.from_numpy(held_out))) if len(held_out) else None
        going_on = self._optimizer is not None
        training = Training(
            steps=epochs * len(batches),
            lr=float(self.lr),
            weight_decay=float(self.weight_decay),
            schedule="constant" if going_on else "cosine",
            clip=1.0,
            evaluations=epochs,
            patience=int(self.n_iter_no_change) if watched else None,
            checkpoint_seconds=2.0,
            device=self.device,
        )
        task = Weighed(self.task_, self._in_network_units(targets), weights, batches.sets_a_batch)
        network = self.module_.network
        title = self.verbose if isinstance(self.verbose, str) else type(self).__name__
        bar = ProgressBar(title, self.task_.metric) if self.verbose else NoProgress()
        torch.manual_seed(seed)  # of dropout
        try:
            history = fit(
                network,
                task,
                batches,
                training,
                validation=watched,
                folder=self.checkpoints,
                resume=True,
                progress=bar,
                optimizer=self._optimizer,
            )
        except FloatingPointError as error:
            raise ValueError(f"{type(self).__name__} could not learn from these sets: {error}") from error
        device = next(network.parameters()).device
        self.module_.to("cpu" if device.type == "mps" else device)  # which has no double precision
        before = int(self.history_[-1]["step"]) if self.history_ else 0
        self.history_ += [entry | {"step": before + entry["step"]} for entry in history.metrics]
        self.n_iter_ += len(history.metrics)

    def _outputs(self, X: Any) -> Float[Tensor, "b k"]:
        """Raw outputs for each set, in the precision that X came in: double unless it is single."""
        check_is_fitted(self)
        sets = self._sets(X, reset=False)
        values = torch.from_numpy(sets.values)
        module = self.module_ if values.dtype == torch.float32 else copy.deepcopy(self.module_).double()
        out, numbers = outputs(_InUnits(module), in_turn(PackedSets(values, torch.from_numpy(sets.ptr))))
        return out[numbers.argsort()]

    def latent_graph(self, x: Any) -> SetGraph:
        """The graph that the model sees in one set ``[n, d]``; warns where it relates no elements.

        Args:
            x: the set.
        """
        network, sets = self._dmps(), self._one(x)
        inside = self.module_.standardized(torch.from_numpy(sets.values))
        graph = SetGraph.of(network, inside, points=sets.values)
        graph.warn_if_uniform(stacklevel=3)
        return graph

    def element_importance(
        self, x: Any, output: int | None = None, *, method: Method = "auto"
    ) -> Float[np.ndarray, " n"]:
        """How much each element of one set ``[n, d]`` counts for what the model says of it.

        That is the weight of its attention where the model pools by attention, else by how much the output
        falls without the element or, of more than 1,000 elements, what integrated gradients tell of it: see
        `setwise.importance`.

        Args:
            x: the set.
            output: which class, label or target, by number; unless given, the class that is predicted, or
                the first.
            method: ``"auto"``, or one that `setwise.importance` knows.
        """
        check_is_fitted(self)
        sets, network = self._one(x), self.module_.network
        inside = self.module_.standardized(torch.from_numpy(sets.values)).unsqueeze(0)
        column, sign = self._meant(sets, output)
        method = method_for(network, len(sets.values)) if method == "auto" else method
        with flush_denormals():
            values = importance(network, inside, output=column, method=method)[0]
        if method != "attention":  # which says where the model looks, not what that speaks for
            values = sign * values
        return np.asarray(values.cpu().numpy(), dtype=np.float64)

    def _class_weights(self, targets: Tensor) -> Any:
        """What the classes add to the weights of the sets."""
        return 1.0

    def _out_units(self, targets: Tensor) -> dict[str, Tensor]:
        """The units of the targets, as `Framed` takes them; without any, the network has them."""
        return {}

    def _in_network_units(self, targets: Tensor) -> Tensor:
        """Targets as the network is trained on them."""
        return targets

    def _start_output(self, network: DMPS, targets: Tensor) -> None:
        """Start the network's outputs from where they will be."""

    def _meant(self, sets: Sets, output: int | None) -> tuple[int, float]:
        """The column of the raw outputs that an output is, and its sign."""
        return at_most("output", 0 if output is None else output, self._out_dim), 1.0

    def _dmps(self) -> DMPS:
        check_is_fitted(self)
        if not isinstance(self.module_.network, DMPS):
            kind = type(self.module_.network).__name__
            raise TypeError(f"latent_graph needs a network that learns a graph, a DMPS, got {kind}")
        return self.module_.network

    def _one(self, x: Any) -> Sets:
        """A single set; of one that holds plain numbers, a row of them will do."""
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
        """Write the fitted estimator to one file, which `setwise.load` reads without executing anything.

        Args:
            path: of the file, ``.safetensors`` by custom.
        """
        check_is_fitted(self)
        params = self.get_params(deep=False) | self._built | {"network": None}
        params |= {"class_weight": None} if "class_weight" in params else {}  # it has other keys than JSON's
        if not isinstance(params["random_state"], Integral | None):
            params["random_state"] = None
        description = {
            "estimator": type(self).__name__,
            "params": {name: plain(value) for name, value in params.items()},
            "own_network": self._built["network"] is not None,
            "task": type(self.task_).__name__,
            "in_dim": self._width,
            "out_dim": self._out_dim,
            "flat": self._flat,
            "n_features_in": int(self.n_features_in_),
            "feature_names_in": plain(getattr(self, "feature_names_in_", None)),
            "n_iter": self.n_iter_,
            "history": self.history_,
            "seed": self._seed,
            **self._described(),
        }
        write_model(Path(path), self.module_.state_dict(), description)

    def _described(self) -> dict[str, Any]:
        return {}

    def _restore(
        self, description: Mapping[str, Any], state: dict[str, Tensor], network: Network | None
    ) -> None:
        """Take up what `save` wrote."""
        self._width, self._out_dim = int(description["in_dim"]), int(description["out_dim"])
        self._flat, self._seed = bool(description["flat"]), int(description["seed"])
        self.n_features_in_ = int(description["n_features_in"])
        if not self._flat and self.n_features_in_ != self._width:
            raise ValueError(f"it describes {self.n_features_in_} features, but takes {self._width}")
        if (names := description["feature_names_in"]) is not None:
            if not isinstance(names, list) or len(names) != self.n_features_in_:
                raise ValueError(f"it must name {self.n_features_in_} features, or none")
            self.feature_names_in_ = np.array(list(map(str, names)), dtype=object)
        self.n_iter_, self.history_ = int(description["n_iter"]), list(description["history"])
        self.task_ = TASKS[description["task"]]()
        self._optimizer = None
        self.network = network
        for name in ("layers", "hidden"):
            setattr(self, name, tuple(getattr(self, name)))
        self._validate_params()
        self._built = {name: getattr(self, name) for name in ARCHITECTURE}
        self._refuse_larger(state)
        units = {name: torch.zeros(self._out_dim) for name in ("out_mean", "out_std") if name in state}
        frame = Framed(
            self._make_network(self._width, self._out_dim),
            mean=torch.zeros(self._width),
            std=torch.ones(self._width),
            **units,
        )
        expected = frame.state_dict()
        for name, value in state.items():
            if name in expected and value.dtype != expected[name].dtype:
                raise ValueError(f"{name} must be {expected[name].dtype}, got {value.dtype}")
        frame.load_state_dict(state)
        if not all(value.isfinite().all() for value in state.values()):
            raise ValueError("it holds numbers that are not finite")
        self.module_ = frame

    def _refuse_larger(self, state: Mapping[str, Tensor]) -> None:
        """Build nothing that is larger than what the file holds: a description is soon written."""
        held = sum(value.numel() for value in state.values())
        parts = self.pool.count("+")
        if max(self.depth, len(self.layers), len(self.hidden), parts) > len(state):
            raise ValueError("it describes more layers than it holds")
        chain = (self._width, *self.layers, *self.hidden)
        sizes = [i * o for i, o in (*pairwise(chain), (self.layers[-1], self._out_dim))]
        if self.network is None and max(sizes) > held:
            raise ValueError(f"it describes a layer of {max(sizes)} weights, but holds {held} in all")


class _InUnits(nn.Module):
    """A framed network whose outputs are in double precision, as large targets that vary little need it."""

    def __init__(self, framed: Framed) -> None:
        super().__init__()
        self.framed = framed

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.framed.in_units(self.framed.network(self.framed.standardized(x), mask))


def _network_of(make: Network, in_dim: int, out_dim: int) -> nn.Module:
    network = make(in_dim, out_dim)
    if not isinstance(network, nn.Module) or next(network.parameters(), None) is None:
        kind = type(network).__name__
        raise TypeError(f"network must make a torch module with parameters, got {kind}")
    return network


def _try_out(network: nn.Module, batch: SetBatch, out_dim: int) -> None:
    """Refuse a network of the user's that does not do what it must, before it is trained."""
    try:
        with eval_mode(network), torch.no_grad():
            shape = list(network(batch.x, batch.mask).shape)
    except Exception as error:  # it may fail in any way
        raise TypeError(
            f"network must make a module that takes (x [b, n, d], mask [b, n]): {error}"
        ) from error
    if shape != [len(batch), out_dim]:
        raise ValueError(f"network must give {out_dim} outputs for each of {len(batch)} sets, got {shape}")


def _widths(name: str, given: Any) -> tuple[int, ...]:
    widths = tuple(given)
    if not widths or not all(isinstance(width, Integral) and 1 <= int(width) <= WIDEST for width in widths):
        raise ValueError(f"{name} must be one or more widths from 1 to {WIDEST}, got {given!r}")
    return tuple(map(int, widths))


def _is_row_of_numbers(x: Any) -> bool:
    try:
        return np.ndim(x) == 1 and np.asarray(x).dtype.kind != "O"
    except Exception:  # objects fail in any way they like
        return False


def checked_targets(y: Any, estimator: Any, dtype: Any = None) -> np.ndarray:
    """Targets as an array of finite numbers, or of strings."""
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
    except Exception as error:  # objects fail in any way they like
        raise TypeError(f"y must be an array of targets, got {type(y).__name__}: {error}") from error
    if checked.ndim not in (1, 2):
        raise ValueError(
            f"y should be a 1d array, or 2d for several targets a set, got {list(checked.shape)}"
        )
    return checked


def one_a_set(y: np.ndarray, count: int) -> None:
    """Refuse targets that are not one a set."""
    if len(y) != count:
        raise ValueError(f"y must have one target for each of {count} sets, got {len(y)}")


def at_most(name: str, number: int, size: int) -> int:
    """A number that must be one of so many."""
    if not 0 <= number < size:
        raise ValueError(f"{name} must lie between 0 and below {size}, got {number}")
    return number


def plain(value: Any) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [plain(part) for part in value] if isinstance(value, tuple | list) else value
