"""What the estimators train: their network, and batches of weighed sets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from setwise.data.buckets import ElementBudgetSampler
from setwise.nn.contrast import JoinedPool
from setwise.nn.dense import Dense
from setwise.nn.encoders import MLP
from setwise.nn.mil import GatedAttentionPool
from setwise.nn.models import DMPS, choose, pools
from setwise.randomness import generator
from setwise.sets import SetBatch
from setwise.tasks import Binary, Classes, Count, Labels, Regression
from setwise.train import Batch

SetTask = Binary | Labels | Classes | Count | Regression

IN_A_BATCH = 2**15
"""Elements, padding included, of a training batch; of large sets it has fewer than were asked for."""
AT_ONCE = 2**12
"""Elements, padding included, that are predicted for at once."""
FEW_FEATURES = 32
"""Features of an element up to which an encoder needs no dropout."""
OUTLIER = 5.0
"""Standard deviations beyond which a feature grows by its logarithm only."""


def build_network(
    in_dim: int,
    out_dim: int,
    *,
    layers: Sequence[int] = (128, 64),
    dropout: float | Literal["auto"] = "auto",
    pool: str = "mean",
    soften: bool = True,
    **parts: Any,
) -> DMPS:
    """A DMPS for features in standard units: an encoder with dropout, blocks, and one pool or several.

    Args:
        in_dim: features of an element.
        out_dim: outputs.
        layers: widths of the encoder's layers.
        dropout: share of each layer that is left out at random in training; see `share_left_out`.
        pool: ``"mean"``, ``"max"``, ``"sum"``, ``"attention"``, ``"gated"``, or several joined by plus signs.
        soften: whether to draw outliers in, see `Softened`.
        **parts: depth, block, graph and hidden of `DMPS.build`.

    >>> build_network(3, 2, layers=(8,), pool="mean+max", hidden=(8, 8), depth=1).head.linear.in_features
    16
    """
    dim = layers[-1]
    share = share_left_out(in_dim) if dropout == "auto" else dropout
    encoder = MLP(in_dim, *layers)
    encoder.layers = nn.Sequential(
        *([Softened()] if soften else []),
        *(part for layer in encoder.layers for part in (layer, nn.Dropout(share))),
    )
    known = pools(dim) | {"gated": lambda: GatedAttentionPool(dim)}
    chosen = [choose("pool", name, known) for name in pool.split("+")]
    joined = chosen[0] if len(chosen) == 1 else JoinedPool(*chosen)
    model = DMPS.build(in_dim, out_dim, dim=dim, encoder=encoder, pool=joined, **parts)
    model.head = Dense(dim * len(chosen), out_dim, activation="identity")
    return model


class Softened(nn.Module):
    """Features within five standard deviations as they are; beyond, they grow by their logarithm.

    A single value that is far out then neither drowns all others nor is lost.

    >>> Softened()(torch.tensor([-2.0, 5.0, 6.0, -105.0]))
    tensor([-2.0000,  5.0000,  5.6931, -9.6151])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Draw outliers in."""
        beyond = (x.abs() - OUTLIER).clamp(min=0)
        return x.clamp(-OUTLIER, OUTLIER) + x.sign() * beyond.log1p()


def share_left_out(in_dim: int) -> float:
    """The dropout that suits elements of so many features: a half of many, which are soon learned by heart.

    >>> share_left_out(3), share_left_out(166)
    (0.0, 0.5)
    """
    return 0.5 if in_dim > FEW_FEATURES else 0.0


@dataclass(frozen=True, eq=False)
class PackedSets:
    """Sets as one tensor of elements, from which batches are cut.

    Args:
        values: the elements of all sets, one after the other.
        ptr: where each set begins, and where the last one ends.

    >>> sets = PackedSets(torch.arange(5.0).view(5, 1), torch.tensor([0, 2, 5]))
    >>> batch = sets.batch(torch.tensor([1, 0]))
    >>> batch.x[..., 0].tolist(), batch.sizes.tolist()
    ([[2.0, 3.0, 4.0], [0.0, 1.0, 0.0]], [3, 2])
    """

    values: Float[Tensor, "N d"]
    ptr: Int[Tensor, " bounds"]

    @property
    def sizes(self) -> Int[Tensor, " b"]:
        """The number of elements of each set."""
        return self.ptr.diff()

    def batch(self, numbers: Int[Tensor, " b"]) -> SetBatch:
        """The sets of these numbers."""
        sizes = self.sizes[numbers]
        within = torch.arange(int(sizes.max()))
        mask = within < sizes.unsqueeze(1)
        place = (self.ptr[numbers].unsqueeze(1) + within).masked_fill_(~mask, 0)
        x = self.values[place].masked_fill_(~mask.unsqueeze(-1), 0)
        return SetBatch(x, None if bool(mask.all()) else mask)

    def thinned(self, most: int, random: torch.Generator) -> "PackedSets":
        """The same sets with at most so many elements each, drawn at random."""
        sizes = self.sizes
        if int(sizes.max()) <= most:
            return self
        number = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        order = torch.randperm(len(self.values), generator=random)
        order = order[number[order].argsort(stable=True)]  # random within each set
        rank = torch.arange(len(order)) - torch.repeat_interleave(self.ptr[:-1], sizes)
        kept = sizes.clamp(max=most)
        return PackedSets(self.values[order[rank < most]], torch.cat([kept.new_zeros(1), kept.cumsum(0)]))


class TrainingBatches:
    """The training batch of each step: every set once an epoch, those of similar size together.

    Args:
        sets: all of them, those for validation included.
        chosen: the numbers of those to train on.
        batch_size: at most so many sets in a batch.
        most: at most so many elements of a set, drawn anew each epoch.
        seed: tells one order from another.
    """

    def __init__(
        self, sets: PackedSets, chosen: Int[Tensor, " some"], *, batch_size: int, most: int | None, seed: int
    ) -> None:
        self.sets = sets
        self.chosen = chosen
        self.most = most
        self.seed = seed
        sizes = sets.sizes[chosen]
        self.sampler = ElementBudgetSampler(
            sizes if most is None else sizes.clamp(max=most),
            elements=IN_A_BATCH,
            max_sets=batch_size,
            waste=0.5,
            seed=seed,
        )
        self._epoch: tuple[int, PackedSets] | None = None

    def __len__(self) -> int:
        return len(self.sampler)

    @property
    def sets_a_batch(self) -> float:
        """How many sets a batch has on average."""
        return len(self.chosen) / len(self)

    def __call__(self, step: int) -> Batch:
        """The batch, and the numbers of its sets instead of their targets: see `Weighed`."""
        numbers = self.chosen[self.sampler.batch(step)]
        return self._thinned((step - 1) // len(self)).batch(numbers), numbers

    def _thinned(self, epoch: int) -> PackedSets:
        if self.most is None:
            return self.sets
        if self._epoch is None or self._epoch[0] != epoch:
            random = generator("elements", self.seed, epoch)
            self._epoch = epoch, self.sets.thinned(self.most, random)
        return self._epoch[1]


def in_turn(sets: PackedSets, numbers: Int[Tensor, " some"] | None = None) -> Iterator[Batch]:
    """Batches of these sets, or of all, with their numbers, with little padding."""
    numbers = torch.arange(len(sets.sizes)) if numbers is None else numbers
    for index in ElementBudgetSampler(sets.sizes[numbers], elements=AT_ONCE, max_sets=1024, shuffle=False):
        yield sets.batch(numbers[index]), numbers[index]


@dataclass(frozen=True, eq=False)
class Weighed:
    """A task whose sets have weights; a batch names them by number, and their targets are looked up.

    The loss of a batch is Σ w_i ℓ_i over its sets, divided by how many a batch has on average: so all sets
    count by their weights alone, however many others share their batch.

    Args:
        task: what the outputs mean.
        targets: of all sets.
        weights: of all sets.
        sets_a_batch: on average.
    """

    task: SetTask
    targets: Shaped[Tensor, "b ..."]
    weights: Float[Tensor, " b"]
    sets_a_batch: float = 1.0
    metric: ClassVar[str] = "loss"

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch."""
        numbers = y.to(self.targets.device)
        losses: Tensor = self.task.losses(out, self.targets[numbers].to(out.device))
        return (self.weights[numbers].to(out) * losses).sum() / self.sets_a_batch

    def predict(self, out: Tensor) -> Tensor:
        """The decoded predictions."""
        return self.task.predict(out)

    def score(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """The task's scores, and the weighed mean as loss."""
        weights = self.weights[y]
        losses = self.task.losses(out, self.targets[y])
        loss = (weights * losses).sum() / weights.sum().clamp(min=1e-12)
        return self.task.score(out, self.targets[y]) | {"loss": loss.item()}
