"""Synthetic characters made of random strokes: a stand-in for Omniglot."""

import math

import torch
from jaxtyping import UInt8
from torch import Tensor

from setwise.training.seeding import generator

STROKES = 4  # maximum per character; the minimum is two
STEPS = 160  # points along a stroke; less than a pixel apart on images of about 100 pixels
PEN = 1.5  # pen radius in pixels


def draw(
    characters: int, drawings: int, *, side: int = 105, seed: int = 0
) -> UInt8[Tensor, "characters drawings {side} {side}"]:
    """Draw every character several times; ink is 1, paper 0.

    A character is two to four cubic Bézier strokes p(t) = Σ_k C(3,k) t^k (1−t)^(3−k) p_k. Each drawing adds
    noise to every control point p_k and applies a small random affine map.

    Args:
        characters: number of characters.
        drawings: drawings per character.
        side: height and width in pixels.
        seed: random seed.

    >>> draw(3, 2).shape
    torch.Size([3, 2, 105, 105])
    """
    random = generator("strokes", seed)
    controls = _script(characters, random).unsqueeze(1)
    controls = controls + 0.026 * _normal(random, characters, drawings, STROKES, 4, 2)
    bend = torch.eye(2) + 0.1 * _normal(random, characters, drawings, 1, 2, 2)
    shift = 0.5 + 0.04 * _normal(random, characters, drawings, 1, 1, 2)
    controls = (controls - 0.5) @ bend + shift
    # Characters with fewer strokes repeat their first ones.
    count = torch.randint(2, STROKES + 1, (characters, 1), generator=random)
    stroke = (torch.arange(STROKES) % count).view(characters, 1, STROKES, 1, 1)
    controls = controls.take_along_dim(stroke, 2)

    t = torch.linspace(0, 1, STEPS, dtype=torch.double).unsqueeze(-1)
    k = torch.arange(4)
    bernstein = torch.tensor([1.0, 3.0, 3.0, 1.0]) * t**k * (1 - t) ** (3 - k)
    points = (bernstein @ controls).flatten(2, 3) * (side - 1)
    image = torch.arange(characters * drawings).view(characters, drawings, 1)
    pixels = torch.zeros(characters * drawings, side, side, dtype=torch.uint8)
    for right, down in _pen():
        column, row = (points + torch.tensor([right, down])).round().long().clamp(0, side - 1).unbind(-1)
        pixels[image, row, column] = 1
    return pixels.view(characters, drawings, side, side)


def _script(characters: int, random: torch.Generator) -> Tensor:
    """Control points of every stroke, ``[characters, STROKES, 4, 2]`` in the unit square."""
    middle = 0.3 + 0.4 * _uniform(random, characters, STROKES, 1, 2)
    length = 0.35 + 0.4 * _uniform(random, characters, STROKES, 1, 1)
    angle = 2 * math.pi * _uniform(random, characters, STROKES, 1, 1)
    along = torch.cat([angle.cos(), angle.sin()], -1)
    across = torch.cat([-angle.sin(), angle.cos()], -1)
    position = torch.tensor([-0.5, -0.2, 0.2, 0.5]).view(4, 1)
    bulge = torch.tensor([0.0, 1.0, 1.0, 0.0]).view(4, 1) * _normal(random, characters, STROKES, 4, 1)
    return (middle + length * position * along + 0.45 * bulge * across).clamp(0.08, 0.92)


def _pen() -> list[tuple[int, int]]:
    reach = range(-math.floor(PEN), math.floor(PEN) + 1)
    return [(i, j) for i in reach for j in reach if i * i + j * j <= PEN * PEN]


def _normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=random, dtype=torch.double)


def _uniform(random: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=random, dtype=torch.double)
