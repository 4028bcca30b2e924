"""The latent graph in the form that suits the size of the sets."""

import logging
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from setwise.functional import Propagator, row_normalize
from setwise.nn.graph import Encoded, LatentGraph
from setwise.nn.operators.base import scaled
from setwise.nn.operators.random_features import RandomFeatureGraph
from setwise.nn.operators.streamed import StreamedWeights

MATRICES = 4
"""Matrices n × n that a training step of a dense graph holds at a time (`benchmarks.scale_ratios`)."""
GIB = 2**30

log = logging.getLogger("setwise")


class AutoGraph(RandomFeatureGraph):
    """`LatentGraph` as a matrix, in tiles or by random features, whichever suits the batch at hand.

    A matrix is fastest for small sets. Where a training step with it would take more than ``memory``, tiles
    give the same result; above ``exact_up_to`` elements, whose pairs take too long, random features give an
    approximate one in linear time. ``took`` names what the last batch took; the first time that a graph takes
    a form the logger ``setwise`` says so, as a warning if the result is approximate.

    Args:
        in_dim: features of an encoded element (d_i).
        hidden: widths of the layers of the embedding (d_m, d_o).
        activation: of both layers.
        sigma: bandwidth to start from.
        normalize: see `RandomFeatureGraph`, and so for ``features`` and ``seed``.
        features: columns of Φ, an even number.
        seed: of the random frequencies.
        memory: GiB that the matrices of a dense graph may take.
        exact_up_to: elements of the largest set that is not approximated.

    >>> graph = AutoGraph(3)
    >>> [graph.choice(1, n) for n in (1_000, 10_000, 100_000)]
    ['dense', 'streamed', 'linear']
    >>> _ = graph(torch.randn(2, 5, 3))
    >>> graph.took
    'dense'
    """

    def __init__(
        self,
        in_dim: int,
        hidden: tuple[int, ...] = (64, 128),
        *,
        activation: str = "relu",
        sigma: float = 1.0,
        normalize: Callable[[Tensor, Tensor | None], Tensor] = row_normalize,
        features: int = 64,
        seed: int = 0,
        memory: float = 0.5,
        exact_up_to: int = 20_000,
    ) -> None:
        super().__init__(
            in_dim,
            hidden,
            activation=activation,
            sigma=sigma,
            normalize=normalize,
            features=features,
            seed=seed,
        )
        if not memory >= 0:
            raise ValueError(f"memory must not be negative, got {memory}")
        if exact_up_to < 0:
            raise ValueError(f"exact_up_to must not be negative, got {exact_up_to}")
        self.memory = memory
        self.exact_up_to = exact_up_to
        self.took: str | None = None
        self._said: set[str] = set()

    def choice(self, sets: int, elements: int) -> Literal["dense", "streamed", "linear"]:
        """The form that a batch takes: so many sets with room for so many elements each."""
        if elements > self.exact_up_to:
            return "linear"
        itemsize = self.log_sigma.element_size()
        return "dense" if MATRICES * itemsize * sets * elements**2 <= self.memory * GIB else "streamed"

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Propagator:
        """The weights W."""
        choice = self.choice(*x.shape[:2])
        if not torch.compiler.is_compiling():
            self._say(choice, x.shape[1])
        if choice == "dense":
            return LatentGraph.forward(self, x, mask)
        if choice == "linear":
            return super().forward(x, mask)
        return StreamedWeights(
            scaled(self.embedded(x, mask), self.sigma, mask),
            mask,
            softmax=self.softmax,
            temperature=self.temperature,
            dtype=x.dtype,
        )

    def _say(self, choice: str, elements: int) -> None:
        self.took = choice
        if choice in self._said:
            return
        self._said.add(choice)
        if choice == "linear":
            log.warning(
                "graph='auto' took random features for sets of %d elements: the result is approximate "
                "(exact up to %d, see exact_up_to)", elements, self.exact_up_to,
            )  # fmt: skip
        else:
            log.info("graph='auto' took the %s graph for sets of %d elements", choice, elements)
