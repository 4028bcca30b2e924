"""Random distortions of drawings, for data augmentation."""

import math

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


def distort(
    images: Bool[Tensor, "m c h w"], generator: torch.Generator, *, strength: float
) -> Bool[Tensor, "m c h w"]:
    """Rotate, stretch, shear and shift each binary image by random amounts of its own.

    Args:
        images: True for ink; areas from outside the image are filled with paper.
        generator: random generator.
        strength: maximum rotation in radians, maximum relative change of height, width and slant, and
            maximum shift in units of half the image side.

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
