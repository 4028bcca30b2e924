"""Shapes as sets of points on their surface, with class labels.

The paper's third experiment: n random points of a shape, centred and scaled to the unit ball; in training
they are first rotated and stretched. `setwise.experiments.data.modelnet` reads the shapes of ModelNet40. If
it is not available, synthetic solids are used instead (`setwise.experiments.data.solids`), as their name
says.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from setwise.training.seeding import generator as generator_of

ANGLE = 0.1 * math.pi
STRETCH = (0.8, 1.25)


@dataclass(frozen=True, eq=False)
class PointClouds:
    """Labelled shapes with the same number of points each; ModelNet40 takes 150 MB in half precision.

    Args:
        name: name of the data set.
        points: points of every shape, in any order.
        labels: class index of each shape, below ``len(classes)``.
        classes: class names.
        up: index of the upright axis, 0 to 2.

    >>> clouds = PointClouds("two", torch.randn(2, 50, 3), torch.tensor([0, 1]), ("ball", "box"))
    >>> len(clouds), clouds.sample(torch.tensor([1, 0, 1]), 20, torch.Generator()).shape
    (2, torch.Size([3, 20, 3]))
    """

    name: str
    points: Float[Tensor, "shapes points 3"]
    labels: Int[Tensor, " shapes"]
    classes: tuple[str, ...]
    up: int = 2

    def __post_init__(self) -> None:
        if self.points.dim() != 3 or self.points.shape[1] < 1 or self.points.shape[2] != 3:
            raise ValueError(f"points must be [shapes, points, 3], got {list(self.points.shape)}")
        if self.labels.shape != self.points.shape[:1]:
            raise ValueError(
                f"labels must be [{len(self.points)}], one per shape, got {list(self.labels.shape)}"
            )
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            labels = f"{int(self.labels.min())} to {int(self.labels.max())}"
            raise ValueError(f"labels must lie between 0 and {len(self.classes) - 1}, got {labels}")
        if self.up not in (0, 1, 2):
            raise ValueError(f"up must be 0, 1 or 2, got {self.up}")

    def __len__(self) -> int:
        return len(self.points)

    def subset(self, index: Int[Tensor, " some"]) -> "PointClouds":
        """Subset of the shapes."""
        return replace(self, points=self.points[index], labels=self.labels[index])

    def sample(
        self, index: Int[Tensor, " b"], n: int, generator: torch.Generator
    ) -> Float[Tensor, "b {n} 3"]:
        """Draw n different points of each of the given shapes, in single precision.

        Args:
            index: indices of the shapes.
            n: points per shape, at most the number stored.
            generator: random generator.
        """
        available = self.points.shape[1]
        if not 1 <= n <= available:
            raise ValueError(f"n must lie between 1 and {available}, the points of a shape, got {n}")
        chosen = torch.rand(len(index), available, generator=generator).topk(n, sorted=False).indices
        return self.points[index.unsqueeze(1), chosen].float()


def hold_out(clouds: PointClouds, share: float = 0.1, *, seed: int = 0) -> tuple[PointClouds, PointClouds]:
    """Split off validation shapes, the same share of every class; return the training and validation shapes.

    Args:
        clouds: data to split.
        share: share of the shapes to split off.
        seed: random seed.

    >>> clouds = PointClouds("", torch.zeros(30, 5, 3), torch.arange(30) % 2, ("ball", "box"))
    >>> [part.labels.bincount().tolist() for part in hold_out(clouds, 0.2)]
    [[12, 12], [3, 3]]
    """
    if not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1, got {share}")
    order = torch.randperm(len(clouds), generator=generator_of("hold out", seed))
    aside = torch.zeros(len(clouds), dtype=torch.bool)
    for label in range(len(clouds.classes)):
        members = order[clouds.labels[order] == label]
        aside[members[: round(share * len(members))]] = True
    return clouds.subset((~aside).nonzero().squeeze(1)), clouds.subset(aside.nonzero().squeeze(1))


def normalize(x: Float[Tensor, "b n 3"]) -> Float[Tensor, "b n 3"]:
    """Centre each cloud and scale it so that the farthest point has distance one from the origin.

    >>> normalize(torch.tensor([[[1.0, 5.0, 0.0], [5.0, 5.0, 0.0]]])).tolist()
    [[[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]]
    """
    x = x - x.mean(1, keepdim=True)
    radius: Tensor = torch.linalg.vector_norm(x, dim=-1).amax(1)
    return x / radius.clamp(min=torch.finfo(x.dtype).tiny).view(-1, 1, 1)


def augment(
    x: Float[Tensor, "b n 3"],
    generator: torch.Generator,
    *,
    up: int = 2,
    angle: float = ANGLE,
    stretch: tuple[float, float] = STRETCH,
) -> Float[Tensor, "b n 3"]:
    """Rotate each cloud about the upright axis and stretch it along each axis, at random.

    The paper only says "rotate and scale". The ranges are those used to train DeepSets on ModelNet40, where
    shapes stand upright and mostly face the same way.

    Args:
        x: point clouds.
        generator: random generator.
        up: index of the rotation axis.
        angle: maximum rotation in either direction, in radians.
        stretch: minimum and maximum factor along an axis.
    """
    if up not in (0, 1, 2):
        raise ValueError(f"up must be 0, 1 or 2, got {up}")
    low, high = stretch
    if not 0 < low <= high < math.inf:
        raise ValueError(f"stretch must be two positive factors in order, got {stretch}")
    turn = angle * (2 * torch.rand(len(x), generator=generator) - 1)
    factors = low + (high - low) * torch.rand(len(x), 1, 3, generator=generator)
    return (x @ rotations(turn, (up + 1) % 3, (up + 2) % 3).to(x.dtype)) * factors.to(x.dtype)


def rotations(angle: Float[Tensor, " b"], i: int, j: int) -> Float[Tensor, "b 3 3"]:
    """Rotation matrices for row vectors in the plane of axes i and j, from i towards j.

    >>> rotations(torch.tensor([math.pi / 2]), 0, 1)[0, 0].round().tolist()
    [-0.0, 1.0, 0.0]
    """
    matrix = torch.eye(3).repeat(len(angle), 1, 1)
    matrix[:, i, i] = matrix[:, j, j] = angle.cos()
    matrix[:, i, j] = angle.sin()
    matrix[:, j, i] = -angle.sin()
    return matrix
