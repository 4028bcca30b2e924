"""Distorting drawings at random, as another hand might have drawn them."""

import math

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


def distort(
    images: Bool[Tensor, "m c h w"], generator: torch.Generator, *, strength: float
) -> Bool[Tensor, "m c h w"]:
    """Turn, stretch, shear and shift each black and white image a little, by its own random amounts.

    Args:
        images: True where there is ink; paper comes in at the edges.
        generator: the source of randomness.
        strength: largest turn in radians, largest relative change of height, width and slant, and largest
            shift in halves of the image's side.

    >>> images = torch.zeros(1, 1, 9, 9, dtype=torch.bool)
    >>> images[..., 2:7, 4] = True
    >>> distort(images, torch.Generator().manual_seed(0), strength=0.0).equal(images)
    True
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must lie between 0 and 1, got {strength}")
    m = len(images)
    angle, slant, tall, wide, right, down = strength * (2 * torch.rand(6, m, generator=generator) - 1)
    cosine, sine = angle.cos(), angle.sin()
    tall, wide = (math.e**amount for amount in (tall, wide))
    maps = torch.stack(
        [
            torch.stack([wide * cosine, tall * (slant * cosine - sine), right], 1),
            torch.stack([wide * sine, tall * (slant * sine + cosine), down], 1),
        ],
        dim=1,
    )
    grid = affine_grid(maps, list(images.shape), align_corners=False)
    return grid_sample(images.float(), grid, mode="nearest", align_corners=False) > 0.5
