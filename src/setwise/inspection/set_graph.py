"""`SetGraph`: the latent graph of one set as arrays, clusters, edges and a plot."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike
from torch import Tensor, nn

from setwise.functional import Propagator, dirichlet_energy
from setwise.inspection.importance import strongest_neighbours
from setwise.nn._modes import eval_mode
from setwise.nn.dmps import DMPS
from setwise.nn.graph import LearnedGraph
from setwise.nn.operators.auto import AutoGraph
from setwise.nn.operators.sparse import SparseGraph
from setwise.nn.operators.streamed import StreamedGraph

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LARGEST = 20_000
"""Size of the largest set whose dense graph is computed."""
NEAR_UNIFORM = 0.05
"""Contrast below which a graph is reported as near uniform."""
NEAR_IDENTITY = 0.02
"""Effective neighbours besides the element itself below which a graph is reported as near the identity."""
LARGE_RATIO = 1000
"""Ratio of weights above which the number of effective neighbours is reported instead."""


class NearUniformGraph(UserWarning):
    """The latent graph of a set is near uniform: it relates no elements."""


class Edge(NamedTuple):
    """Two elements and the weight between them."""

    i: int
    j: int
    weight: float


@dataclass(frozen=True, eq=False, repr=False)
class SetGraph:
    """The latent graph of one set as arrays; `SetGraph.of` computes it from a model.

    Args:
        weights: W; W_ij is the weight of neighbour j for element i, and rows sum to one.
        kernel: K, the similarity of i and j from 0 to 1; None if the graph has no kernel.
        energies: Dirichlet energy of the features before the first block and after each one.
        points: coordinates of the elements for plots.
        names: names of the elements.
        bandwidth: σ of the kernel.

    >>> K = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    >>> graph = SetGraph(np.exp(K) / np.exp(K).sum(1, keepdims=True), K, energies=np.array([2.0, 0.5]))
    >>> graph
    SetGraph(3 elements, contrast 0.51, energies 2 → 0.5)
    >>> graph.top_edges(1)
    [Edge(i=0, j=1, weight=0.38...)]
    >>> graph.clusters()
    array([0, 0, 1])
    """

    weights: Float[np.ndarray, "n n"]
    kernel: Float[np.ndarray, "n n"] | None
    energies: Float[np.ndarray, " steps"]
    points: Float[np.ndarray, "n d"] | None = None
    names: Sequence[str] | None = None
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        n = len(self.weights)
        for what, given in (("weights", self.weights), ("kernel", self.kernel)):
            if given is not None and given.shape != (n, n):
                raise ValueError(f"{what} must be [{n}, {n}], got {list(given.shape)}")
            if given is not None and not np.isfinite(given).all():
                raise ValueError(f"{what} must be finite, got NaN or infinite values")
        if self.points is not None and (self.points.ndim != 2 or len(self.points) != n):
            raise ValueError(f"points must be [{n}, d], one row per element, got {list(self.points.shape)}")
        if self.names is not None and len(self.names) != n:
            raise ValueError(f"names must have one entry per element, {n}, got {len(self.names)}")

    @classmethod
    def of(
        cls,
        model: DMPS,
        x: Shaped[Tensor, "n ..."],
        *,
        names: Sequence[str] | None = None,
        points: ArrayLike | None = None,
    ) -> "SetGraph":
        """Compute the graph of one set with a model in eval mode; the model is not changed.

        The weights are those that the model uses; for an `AutoGraph`, they are always exact.

        Args:
            model: a DMPS with any graph.
            x: the elements as they enter the model, without padding.
            names: names of the elements.
            points: coordinates of the elements for plots; x by default if it is ``[n, d]``.

        >>> SetGraph.of(DMPS.build(3, 1, graph="uniform"), torch.randn(4, 3)).weights[0]
        array([0.25, 0.25, 0.25, 0.25], dtype=float32)
        """
        if not hasattr(model, "trajectory"):
            raise TypeError(f"a latent graph needs a DMPS, got {type(model).__name__}")
        if x.dim() < 2:
            raise ValueError(f"x must be the elements [n, d] of one set, got {list(x.shape)}")
        n = len(x)
        if n > LARGEST:
            size = 2 * n**2 * torch.promote_types(x.dtype, torch.float32).itemsize / 1e9
            raise ValueError(
                f"x must have at most {LARGEST:,} elements, got {n:,}: "
                f"the dense weights and kernel would need {size:,.1f} GB"
            )
        if not x.isfinite().all():
            raise ValueError("x must be finite, got NaN or infinite values")
        with eval_mode(model), torch.no_grad():
            steps, W = model.trajectory(_as_parameters(x, model).unsqueeze(0))
            energies = torch.stack([dirichlet_energy(features, W) for features in steps], dim=-1)
            weights = _dense_weights(model.graph, steps[0], W)
            graph = model.graph
            while isinstance(graph, SparseGraph):
                graph = graph.graph
            kernel, sigma = None, None
            if isinstance(graph, LearnedGraph):
                kernel, sigma = _numpy(graph.similarity(steps[0])[0]), float(graph.sigma)
        if points is None and x.dim() == 2:
            points = x
        if isinstance(points, Tensor):
            points = _numpy(points)
        return cls(
            weights=_numpy(weights[0]),
            kernel=kernel,
            energies=_numpy(energies[0]),
            points=None if points is None else np.array(points, dtype=float),
            names=None if names is None else tuple(names),
            bandwidth=sigma,
        )

    def __len__(self) -> int:
        return len(self.weights)

    def __repr__(self) -> str:
        n = len(self)
        parts = [f"{n} element{'s' * (n != 1)}", f"contrast {self.contrast:.2g}"]
        if self.bandwidth is not None:
            parts.append(f"σ {self.bandwidth:.3g}")
        if len(self.energies):
            parts.append("energies " + " → ".join(f"{energy:.3g}" for energy in self.energies))
        return f"SetGraph({', '.join(parts)})"

    def top_edges(self, k: int = 10) -> list[Edge]:
        """The k strongest pairs i < j by the mean weight of both directions; ties are sorted by index.

        Pairs without weight are not edges, so there may be fewer than k.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        mean = np.triu(self.weights + self.weights.T, 1).ravel() / 2
        k = min(k, int(np.sum(mean > 0)))
        if k == 0:
            return []
        least = np.partition(mean, mean.size - k)[mean.size - k]
        above = np.flatnonzero(mean > least)
        best = np.concatenate([above, np.flatnonzero(mean == least)[: k - len(above)]])
        best = best[np.argsort(-mean[best], kind="stable")]
        i, j = np.divmod(best, len(self))
        return [Edge(*edge) for edge in zip(i.tolist(), j.tolist(), mean[best].tolist(), strict=True)]

    def neighbours(self, i: int, k: int = 5) -> list[Edge]:
        """The k strongest neighbours j of element i and their weights, see `strongest_neighbours`."""
        W = torch.from_numpy(np.require(self.weights, requirements="W"))
        elements, weights = strongest_neighbours(W, i, k)
        return [Edge(i, j, weight) for j, weight in zip(elements.tolist(), weights.tolist(), strict=True)]

    def clusters(self, similarity: float = 0.5, *, count: int | None = None) -> Int[np.ndarray, " n"]:
        """The cluster of each element, numbered from 0 in order of appearance.

        Average linkage: clusters merge while the mean kernel between their elements is at least
        ``similarity``. Without a kernel, the weights are used, scaled to a maximum of one.

        Args:
            similarity: threshold on the mean kernel.
            count: number of clusters, instead of the threshold.
        """
        n = len(self)
        if not 0 <= similarity <= 1:
            raise ValueError(f"similarity must lie between 0 and 1, got {similarity}")
        if count is not None and not 1 <= count <= max(n, 1):
            raise ValueError(f"count must lie between 1 and the {n} elements, got {count}")
        if n < 2:
            return np.zeros(n, dtype=int)
        with _needing("scipy", "sklearn", what="clusters"):
            from scipy.cluster import hierarchy
            from scipy.spatial.distance import squareform
        kernel = self.weights if self.kernel is None else self.kernel
        kernel = (kernel + kernel.T) / 2
        if self.kernel is None:
            kernel = kernel / (kernel.max(initial=0, where=_others(n)) or 1)
        tree = hierarchy.linkage(squareform(1 - kernel, checks=False), "average")
        if count is None:
            clusters = hierarchy.fcluster(tree, 1 - similarity, "distance")
        else:
            clusters = hierarchy.cut_tree(tree, n_clusters=count)[:, 0]
        _, first, label = np.unique(clusters, return_index=True, return_inverse=True)
        numbers: Int[np.ndarray, " n"] = first.argsort().argsort()[label]
        return numbers

    @cached_property
    def contrast(self) -> float:
        """Relative spread of the weights: the mean over i of (max − min) / mean of W_ij, j ≠ i.

        It is 0 if all others have the same weight, as in a uniform graph, or if there are fewer than two
        others. It has no upper bound for the row-normalised kernel; softmax(K) of a kernel within (0, 1]
        bounds max / min by e, and so the contrast by e − 1 = 1.72.
        """
        most, least, mean = self._neighbour_weights()
        related = mean > 0
        return float(np.sum((most - least)[related] / mean[related]) / max(len(self), 1))

    @cached_property
    def effective_neighbours(self) -> float:
        """Effective neighbours, exp of the mean row entropy of W: from 1 (the identity) to n (uniform).

        >>> import torch
        >>> from setwise.nn.dmps import DMPS
        >>> SetGraph.of(DMPS.build(3, 1, graph="uniform"), torch.randn(4, 3)).effective_neighbours
        4.0
        """
        weights = self.weights[self.weights > 0].astype(np.float64)
        return round(float(np.exp(-np.sum(weights * np.log(weights)) / max(len(self), 1))), 6)

    @property
    def near_uniform(self) -> bool:
        """Whether the contrast is below 0.05; always False for fewer than three elements."""
        return len(self) > 2 and self.contrast < NEAR_UNIFORM

    def remark(self) -> str:
        """Summarize the graph in one or two sentences."""
        n = len(self)
        if n < 3:
            size = ("is empty", "has 1 element", "has 2 elements")[n]
            return f"The set {size}: comparing neighbours needs at least 3."
        most, least, mean = self._neighbour_weights()
        if not mean.any():
            return f"None of the {n} elements has a neighbour: the model treats the elements independently."
        with np.errstate(divide="ignore"):
            ratio = np.median(most[mean > 0] / least[mean > 0])
        if self.near_uniform:
            return (
                f"The graph of {n} elements is near uniform: the strongest neighbour's weight is {ratio:.2f} "
                "times the weakest's. It relates no elements, and the model treats them independently."
                + self._kernel_range()
            )
        near = self.effective_neighbours
        if near < 1 + NEAR_IDENTITY:
            return (
                f"The graph of {n} elements is near the identity: the mean self-weight is "
                f"{np.diagonal(self.weights).mean():.3g}, and the model treats the elements independently."
            )
        spread = f"the strongest neighbour's weight is {ratio:.3g} times the weakest's"
        if ratio > LARGE_RATIO:
            spread = f"an element has {near:.1f} effective neighbours, itself included"
        sizes = sorted(np.bincount(self.clusters()).tolist(), reverse=True)
        clusters = "one cluster" if len(sizes) == 1 else f"{len(sizes)} clusters, the largest of {sizes[0]}"
        return f"The graph relates {n} elements: {spread}. At a similarity of 0.5 it has {clusters}."

    def warn_if_uniform(self, *, stacklevel: int = 2) -> None:
        """Warn with the remark if the graph is near uniform."""
        if self.near_uniform:
            warnings.warn(self.remark(), NearUniformGraph, stacklevel=stacklevel)

    def to_networkx(self, threshold: float = 0.0) -> Any:
        """An undirected ``networkx.Graph``; edges have the mean weight of both directions, and the kernel.

        Args:
            threshold: δ; edges with a lower weight are left out. Unlike `sparsify`, this rescales nothing.
        """
        with _needing("networkx", "plots", what="to_networkx"):
            import networkx as nx
        graph = nx.Graph()
        names = range(len(self)) if self.names is None else self.names
        graph.add_nodes_from((i, {"name": str(name)}) for i, name in enumerate(names))
        mean = np.triu(self.weights + self.weights.T, 1) / 2
        i, j = np.nonzero((mean > 0) & (mean >= threshold))
        graph.add_weighted_edges_from(zip(i.tolist(), j.tolist(), mean[i, j].tolist(), strict=True))
        if self.kernel is not None:
            kernel = zip(i.tolist(), j.tolist(), self.kernel[i, j].tolist(), strict=True)
            graph.add_weighted_edges_from(kernel, weight="kernel")
        return graph

    def to_pyg(self) -> Any:
        """A ``torch_geometric.data.Data`` with the points as x and an edge from j to i for each W_ij > 0.

        PyG sends messages from source to target, so a sum weighted by ``edge_weight`` computes W x.
        """
        with _needing("torch_geometric", "peers", what="to_pyg"):
            from torch_geometric.data import Data
        W = torch.tensor(self.weights)
        i, j = W.nonzero(as_tuple=True)
        x = None if self.points is None else torch.tensor(self.points, dtype=W.dtype)
        return Data(x=x, edge_index=torch.stack([j, i]), edge_weight=W[i, j], num_nodes=len(self))

    def plot(self, ax: "Axes | None" = None, **options: Any) -> "Axes":
        """Draw the graph, by default coloured by cluster; ``options`` are those of `plots.set_graph`."""
        with _needing("matplotlib", "plots", what="plot"):
            from setwise.inspection.plots import set_graph
        if not options.keys() & {"labels", "values"}:
            options["labels"] = self.clusters()
        return set_graph(self.weights, self.points, ax=ax, **{"names": self.names, **options})

    def _neighbour_weights(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The largest, the smallest and the mean weight of the neighbours of each element."""
        n = len(self)
        if n < 2:
            return np.zeros(n), np.zeros(n), np.zeros(n)
        others = _others(n)
        most = self.weights.max(axis=1, initial=-np.inf, where=others)
        least = self.weights.min(axis=1, initial=np.inf, where=others)
        return most, least, self.weights.mean(axis=1, where=others)

    def _kernel_range(self) -> str:
        """A sentence on the kernel if it explains a near uniform graph."""
        if self.kernel is None:
            return ""
        others = _others(len(self))
        if (low := self.kernel.min(initial=1, where=others)) > 0.5:
            return f" All kernel values are at least {low:.2f}."
        high = self.kernel.max(initial=0, where=others)
        return f" All kernel values are at most {high:.2f}." if high < 0.5 else ""


@contextmanager
def _needing(package: str, extra: str, *, what: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs the {package} package: pip install 'setwise[{extra}]'"
        ) from error


def _others(n: int) -> np.ndarray:
    return ~np.eye(n, dtype=bool)


def _numpy(values: Tensor) -> np.ndarray:
    """Convert to NumPy, in single precision or better."""
    array: np.ndarray = values.detach().cpu().to(torch.promote_types(values.dtype, torch.float32)).numpy()
    return array


def _as_parameters(x: Tensor, model: nn.Module) -> Tensor:
    """Move elements to the device of the parameters, and to their dtype unless they are integers."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        return x
    return x.to(parameter) if x.is_floating_point() else x.to(parameter.device)


def _dense_weights(graph: nn.Module, features: Tensor, W: Propagator) -> Tensor:
    """The matrix W [1, n, n]."""
    if isinstance(W, Tensor):
        return W
    if isinstance(graph, AutoGraph | StreamedGraph):
        return graph.dense_weights(features)  # exact; W.to_dense() would take n³ steps
    return W.to_dense()
