"""The latent graph in the form that suits the size of the sets."""

import logging
from typing import Literal, Unpack

import torch
from jaxtyping import Bool
from torch import Tensor

from setwise.functional import Propagator, row_normalize
from setwise.nn.graph import LearnedGraph, Normalize
from setwise.nn.kernel import DeepKernel, Encoded, KernelOptions, deep_kernel
from setwise.nn.operators.base import gaussian_form
from setwise.nn.operators.random_features import LowRankWeights, RandomFeatures
from setwise.nn.operators.streamed import StreamedWeights

Form = Literal["dense", "streamed", "linear"]

MATRICES = 4
"""Number of n × n matrices in memory during a training step of a dense graph (`benchmarks.scale_ratios`)."""
GIB = 2**30

log = logging.getLogger("setwise")


class AutoGraph(LearnedGraph):
    """`LatentGraph` as a matrix, in tiles or by random features, depending on the size of the batch.

    A matrix is fastest for small sets. If a training step with it would need more than ``memory``, tiles give
    the same result; for more than ``exact_up_to`` elements, random features give an approximate result in
    linear time. ``last_choice`` is the form of the last batch. The logger ``setwise`` reports the first use
    of each form, as a warning if the result is approximate.

    Args:
        in_dim: features of an encoded element (d_i), or a `DeepKernel`.
        hidden: widths of the layers of the embedding (d_m, d_o).
        normalize: `row_normalize` or `row_softmax`; ``partial(…, temperature=T)`` of either.
        features: number of random features, see `RandomFeatureGraph`.
        seed: seed of the random frequencies.
        memory: GiB available for the matrices of a dense graph.
        exact_up_to: largest number of elements per set without approximation.
        **options: ``activation`` and ``sigma`` of the `DeepKernel`.

    >>> graph = AutoGraph(3)
    >>> [graph.choice(1, n) for n in (1_000, 10_000, 100_000)]
    ['dense', 'streamed', 'linear']
    >>> _ = graph(torch.randn(2, 5, 3))
    >>> graph.last_choice
    'dense'
    """

    def __init__(
        self,
        in_dim: int | DeepKernel,
        hidden: tuple[int, ...] | None = None,
        *,
        normalize: Normalize = row_normalize,
        features: int = 64,
        seed: int = 0,
        memory: float = 0.5,
        exact_up_to: int = 20_000,
        **options: Unpack[KernelOptions],
    ) -> None:
        super().__init__(deep_kernel(in_dim, hidden, **options), normalize)
        if not memory >= 0:
            raise ValueError(f"memory must not be negative, got {memory}")
        if exact_up_to < 0:
            raise ValueError(f"exact_up_to must not be negative, got {exact_up_to}")
        self.softmax, self.temperature = gaussian_form(self.kernel, normalize)
        self.random_features = RandomFeatures(
            self.kernel.out_dim, features, softmax=self.softmax, temperature=self.temperature, seed=seed
        )
        self.memory = memory
        self.exact_up_to = exact_up_to
        self.last_choice: Form | None = None
        self._reported: set[str] = set()

    def choice(self, sets: int, elements: int) -> Form:
        """The form for a batch of this many sets, padded to this many elements."""
        if elements > self.exact_up_to:
            return "linear"
        itemsize = self.kernel.log_sigma.element_size()
        return "dense" if MATRICES * itemsize * sets * elements**2 <= self.memory * GIB else "streamed"

    def forward(self, x: Encoded, mask: Bool[Tensor, "b n"] | None = None) -> Propagator:
        """The weights W."""
        choice = self.choice(*x.shape[:2])
        if not torch.compiler.is_compiling():
            self._report(choice, x.shape[1])
        if choice == "dense":
            return self.dense_weights(x, mask)
        z = self.kernel.scaled(x, mask)
        if choice == "linear":
            weights: LowRankWeights = self.random_features(z, mask, dtype=x.dtype)
            return weights
        return StreamedWeights(z, mask, softmax=self.softmax, temperature=self.temperature, dtype=x.dtype)

    def _report(self, choice: Form, elements: int) -> None:
        self.last_choice = choice
        if choice in self._reported:
            return
        self._reported.add(choice)
        if choice == "linear":
            log.warning(
                "graph='auto' uses random features for sets of %d elements: the result is approximate "
                "(exact up to %d, see exact_up_to)", elements, self.exact_up_to,
            )  # fmt: skip
        else:
            log.info("graph='auto' uses the %s graph for sets of %d elements", choice, elements)
