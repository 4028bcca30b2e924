"""Solids of random proportions: a stand-in for the shapes of ModelNet40."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from setwise.experiments.data.point_clouds import PointClouds, normalize, rotations
from setwise.training.seeding import generator

ROUND = 32  # corners of the polygon that approximates a circle
SIDES = {  # corners of the cross-section of each solid
    "box": 4,
    "capsule": ROUND,
    "cone": ROUND,
    "cylinder": ROUND,
    "octahedron": 4,
    "prism": 3,
    "pyramid": 4,
    "sphere": ROUND,
    "torus": ROUND,
    "tube": ROUND,
}
STRETCH = (0.75, 1.25)
TILT = 0.1  # standard deviation in radians
NOISE = 0.01  # standard deviation relative to the radius


def solids(shapes_per_class: int = 100, points: int = 2048, seed: int = 0) -> PointClouds:
    """Points on the surface of ten kinds of solids, reproducible from the seed.

    A solid is a profile (r, z) swept about the upright axis along a circle or polygon, and stretched along
    each axis. Points are drawn uniformly by area, rotated about the upright axis, slightly tilted, and
    perturbed by noise; then the cloud is centred and scaled to the unit ball.

    Args:
        shapes_per_class: number of solids of each kind.
        points: number of points per solid.
        seed: random seed.

    >>> clouds = solids(shapes_per_class=2, points=100)
    >>> clouds.name, len(clouds), clouds.points.dtype
    ('stand-in: solids', 20, torch.float16)
    """
    if min(shapes_per_class, points) < 1:
        raise ValueError(f"expected at least 1 shape and 1 point, got {shapes_per_class} and {points}")
    clouds = []
    for kind in SIDES:
        random = generator("solids", kind, seed)
        x = sample_surface(triangles(kind, shapes_per_class, random), points, random)
        x = x @ _pose(shapes_per_class, random)
        clouds.append(normalize(normalize(x) + NOISE * torch.randn(x.shape, generator=random)).half())
    labels = torch.arange(len(SIDES)).repeat_interleave(shapes_per_class)
    return PointClouds("stand-in: solids", torch.cat(clouds), labels, tuple(SIDES))


def triangles(kind: str, shapes: int, random: torch.Generator) -> Float[Tensor, "{shapes} triangles 3 3"]:
    """Surfaces of solids of one kind with random proportions: triangles × corners × xyz.

    Args:
        kind: a key of ``SIDES``.
        shapes: number of solids.
        random: random generator of the proportions.
    """
    profile = _profile(kind, torch.rand(shapes, 2, generator=random))
    low, high = STRETCH
    stretch = low + (high - low) * torch.rand(shapes, 1, 1, 3, generator=random)
    sides = SIDES[kind]
    angle = 2 * math.pi / sides * (torch.arange(sides + 1) + 0.5)
    circle = torch.stack([angle.cos(), angle.sin()], -1)
    rings = profile[:, :, None, :1] * circle
    heights = profile[:, :, None, 1:].expand(-1, -1, sides + 1, -1)
    vertices = torch.cat([rings, heights], -1) * stretch
    here, above = vertices[:, :-1], vertices[:, 1:]
    a, b, c, d = here[:, :, :-1], here[:, :, 1:], above[:, :, 1:], above[:, :, :-1]
    return torch.stack([torch.stack([a, b, c], -2), torch.stack([a, c, d], -2)], 1).flatten(1, 3)


def sample_surface(
    corners: Float[Tensor, "shapes triangles 3 3"], points: int, random: torch.Generator
) -> Float[Tensor, "shapes {points} 3"]:
    """Draw points uniformly by area: first a triangle with probability ∝ area, then a point on it.

    For u, v ~ U(0, 1), replaced by 1 − u, 1 − v if u + v > 1, the point a + u (b − a) + v (c − a) is uniform
    on the triangle abc.

    Args:
        corners: corners of the triangles of each shape.
        points: number of points per shape.
        random: random generator.
    """
    a, b, c = corners.unbind(2)
    area = torch.linalg.vector_norm(torch.linalg.cross(b - a, c - a), dim=-1)
    upto = area.double().cumsum(1)
    place = upto[:, -1:] * torch.rand(len(corners), points, generator=random, dtype=torch.double)
    chosen = torch.searchsorted(upto, place, right=True)
    a, b, c = corners[torch.arange(len(corners)).unsqueeze(1), chosen].unbind(2)
    u, v = torch.rand(2, len(corners), points, 1, generator=random)
    beyond = u + v > 1
    u, v = torch.where(beyond, 1 - u, u), torch.where(beyond, 1 - v, v)
    return a + u * (b - a) + v * (c - a)


def _profile(kind: str, proportions: Float[Tensor, "shapes 2"]) -> Float[Tensor, "shapes m 2"]:
    """Points (r, z) of the profile that is swept about the axis; proportions are in [0, 1]."""
    slim, hollow = proportions.split(1, -1)
    zero, one = torch.zeros_like(slim), torch.ones_like(slim)
    height = 0.5 + 0.7 * slim
    if kind in ("capsule", "sphere"):
        angle = math.pi * torch.linspace(0, 1, ROUND // 2 + 2)  # even, so that no point lies on the equator
        apart = (0.5 + slim if kind == "capsule" else zero) * torch.sign(angle - math.pi / 2)
        return torch.stack([angle.sin().expand_as(apart), apart - angle.cos()], -1)
    if kind == "torus":
        angle = 2 * math.pi * torch.linspace(0, 1, ROUND + 1)
        thick = 0.2 + 0.3 * slim
        return torch.stack([1 + thick * angle.cos(), thick * angle.sin()], -1)
    if kind == "tube":
        inner = 0.5 + 0.3 * hollow
        line = [(inner, -height), (one, -height), (one, height), (inner, height), (inner, -height)]
    elif kind in ("cone", "pyramid"):
        line = [(zero, -height), (one, -height), (zero, height)]
    elif kind == "octahedron":
        line = [(zero, -height), (one, zero), (zero, height)]
    else:
        line = [(zero, -height), (one, -height), (one, height), (zero, height)]
    return torch.stack([torch.cat(point, -1) for point in line], 1)


def _pose(shapes: int, random: torch.Generator) -> Float[Tensor, "{shapes} 3 3"]:
    """Random rotations about the upright axis, followed by a small tilt about a horizontal axis."""
    turn = 2 * math.pi * torch.rand(shapes, generator=random)
    tilt = TILT * torch.randn(shapes, generator=random)
    return rotations(turn, 0, 1) @ rotations(tilt, 1, 2)
