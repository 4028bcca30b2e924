"""Shapes as sets of points on their surface, to be told what they are.

The paper's third experiment: n points drawn at random from a shape, moved to its centre and scaled into the
unit ball; in training turned and stretched a little first. `setwise.experiments.data.modelnet` reads the
shapes of ModelNet40; where it is not at hand, solids stand in for it (`setwise.experiments.data.solids`) and
say so in their name.
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
    """Shapes of known classes, each as the same number of points: ModelNet40 takes 150 MB in half precision.

    Args:
        name: which data these are.
        points: of every shape, in whatever order.
        labels: the class of each shape, a number below ``len(classes)``.
        classes: their names.
        up: the axis that points upwards, 0 to 2.

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
                f"labels must be [{len(self.points)}], one a shape, got {list(self.labels.shape)}"
            )
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            found = f"{int(self.labels.min())} to {int(self.labels.max())}"
            raise ValueError(f"labels must lie between 0 and {len(self.classes) - 1}, got {found}")
        if self.up not in (0, 1, 2):
            raise ValueError(f"up must be 0, 1 or 2, got {self.up}")

    def __len__(self) -> int:
        return len(self.points)

    def subset(self, index: Int[Tensor, " some"]) -> "PointClouds":
        """Some of the shapes."""
        return replace(self, points=self.points[index], labels=self.labels[index])

    def sample(
        self, index: Int[Tensor, " b"], n: int, generator: torch.Generator
    ) -> Float[Tensor, "b {n} 3"]:
        """Draw n different points of each of these shapes, in single precision.

        Args:
            index: which shapes.
            n: points of each, at most as many as there are.
            generator: decides which.
        """
        there = self.points.shape[1]
        if not 1 <= n <= there:
            raise ValueError(f"n must lie between 1 and {there}, the points of a shape, got {n}")
        chosen = torch.rand(len(index), there, generator=generator).topk(n, sorted=False).indices
        return self.points[index.unsqueeze(1), chosen].float()


def hold_out(clouds: PointClouds, share: float = 0.1, *, seed: int = 0) -> tuple[PointClouds, PointClouds]:
    """Set shapes aside for validation, the same share of every class; returns the rest and them.

    Args:
        clouds: what to split.
        share: of the shapes to set aside.
        seed: tells one split from another.

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
    """Move each cloud's mean to the origin and its farthest point to distance one.

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
    """Turn each cloud about the upright axis and stretch it along each axis, at random.

    The paper says no more than "rotate and scale". The ranges here are those with which DeepSets was trained
    on ModelNet40: shapes stand upright there, and mostly face the same way.

    Args:
        x: the clouds.
        generator: decides how.
        up: the axis to turn about.
        angle: at most so far, to either side, in radians.
        stretch: the least and the largest factor of an axis.
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
    """Matrices that turn row vectors in the plane of axes i and j, from i towards j.

    >>> rotations(torch.tensor([math.pi / 2]), 0, 1)[0, 0].round().tolist()
    [-0.0, 1.0, 0.0]
    """
    matrix = torch.eye(3).repeat(len(angle), 1, 1)
    matrix[:, i, i] = matrix[:, j, j] = angle.cos()
    matrix[:, i, j] = angle.sin()
    matrix[:, j, i] = -angle.sin()
    return matrix
