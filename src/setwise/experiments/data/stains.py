"""Stain separation of tissue images, and random changes of stain strength for data augmentation.

By the Beer-Lambert law, the transmitted light is I = 255 exp(−c S) in red, green and blue, with the amounts c
of the dyes and the absorption of one unit of each dye as the rows of S (Ruifrok and Johnston, 2001).
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

HAEMATOXYLIN = (0.650, 0.704, 0.286)
EOSIN = (0.072, 0.990, 0.105)


def stain_matrix() -> Float[Tensor, "3 3"]:
    """S: absorption of red, green and blue by haematoxylin, eosin and a residual, as rows of norm one.

    The third row is orthogonal to the others and explains what they cannot.

    >>> stain_matrix().norm(dim=1)
    tensor([1., 1., 1.])
    """
    stains = torch.tensor([HAEMATOXYLIN, EOSIN])
    rest = torch.linalg.cross(stains[0], stains[1])
    stains = torch.cat([stains, rest.unsqueeze(0)])
    length: Tensor = torch.linalg.vector_norm(stains, dim=1, keepdim=True)
    return stains / length


def to_stains(pixels: UInt8[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
    """Amounts c = −log(I / 255) S⁻¹ of the dyes in each pixel; zero intensity counts as 1.

    >>> to_stains(torch.tensor([[255, 255, 255]], dtype=torch.uint8)).abs()
    tensor([[0., 0., 0.]])
    """
    density = -(torch.arange(256).clamp(min=1) / 255).log()
    amounts: Tensor = density[pixels.long()] @ torch.linalg.inv(stain_matrix())
    return amounts


def from_stains(amounts: Float[Tensor, "*n 3"]) -> UInt8[Tensor, "*n 3"]:
    """Pixels with the given amounts of the dyes.

    >>> from_stains(torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])).tolist()
    [[255, 255, 255], [133, 126, 192]]
    """
    light = torch.exp(-(amounts @ stain_matrix()))
    return (255 * light).round().clamp(0, 255).byte()


def random_stain(
    patches: UInt8[Tensor, "n 3 s s"], generator: torch.Generator, *, strength: float = 0.2
) -> UInt8[Tensor, "n 3 s s"]:
    """Randomly change the strength of each stain of an image, because staining varies between slides.

    Args:
        patches: patches of one image; each dye has one factor for all of them.
        generator: random generator of the factors, uniform on [1 − strength, 1 + strength].
        strength: maximum relative change, in [0, 1).

    >>> patches = torch.randint(1, 256, (2, 3, 32, 32), dtype=torch.uint8)
    >>> torch.equal(random_stain(patches, torch.Generator(), strength=0.0), patches)
    True
    """
    if not 0 <= strength < 1:
        raise ValueError(f"strength must be at least 0 and below 1, got {strength}")
    factors = 1 + strength * (2 * torch.rand(3, generator=generator) - 1)
    return from_stains(to_stains(patches.movedim(1, -1)) * factors).movedim(-1, 1)
