"""The colours of stained tissue: how much of each dye a pixel holds, and how it would look with more of it.

By Lambert and Beer's law, light that passes dyes is I = 255 exp(−c S) in red, green and blue: the amounts c
of the dyes, times what one unit of each takes away, the rows of S (Ruifrok and Johnston, 2001).
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

HAEMATOXYLIN = (0.650, 0.704, 0.286)
EOSIN = (0.072, 0.990, 0.105)


def stain_matrix() -> Float[Tensor, "3 3"]:
    """S: what haematoxylin, eosin and the rest take away of red, green and blue, as rows of length one.

    The third row stands upright on the others, so that it explains what they cannot.

    >>> stain_matrix().norm(dim=1)
    tensor([1., 1., 1.])
    """
    stains = torch.tensor([HAEMATOXYLIN, EOSIN])
    rest = torch.linalg.cross(stains[0], stains[1])
    stains = torch.cat([stains, rest.unsqueeze(0)])
    length: Tensor = torch.linalg.vector_norm(stains, dim=1, keepdim=True)
    return stains / length


def to_stains(pixels: UInt8[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
    """The amounts c = −log(I / 255) S⁻¹ of the dyes in each pixel; black counts as 1/255.

    >>> to_stains(torch.tensor([[255, 255, 255]], dtype=torch.uint8)).abs()
    tensor([[0., 0., 0.]])
    """
    density = -(torch.arange(256).clamp(min=1) / 255).log()
    amounts: Tensor = density[pixels.long()] @ torch.linalg.inv(stain_matrix())
    return amounts


def from_stains(amounts: Float[Tensor, "*n 3"]) -> UInt8[Tensor, "*n 3"]:
    """The pixels with these amounts of the dyes.

    >>> from_stains(torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])).tolist()
    [[255, 255, 255], [133, 126, 192]]
    """
    light = torch.exp(-(amounts @ stain_matrix()))
    return (255 * light).round().clamp(0, 255).byte()


def restained(
    patches: UInt8[Tensor, "n 3 s s"], generator: torch.Generator, *, strength: float = 0.2
) -> UInt8[Tensor, "n 3 s s"]:
    """Make each stain of an image stronger or weaker, at random: slides are dyed by hand.

    Args:
        patches: of one image; its amounts of each dye are all multiplied by the same factor.
        generator: draws the factors from [1 − strength, 1 + strength].
        strength: at least 0 and below 1.

    >>> patches = torch.randint(1, 256, (2, 3, 32, 32), dtype=torch.uint8)
    >>> torch.equal(restained(patches, torch.Generator(), strength=0.0), patches)
    True
    """
    if not 0 <= strength < 1:
        raise ValueError(f"strength must be at least 0 and below 1, got {strength}")
    factors = 1 + strength * (2 * torch.rand(3, generator=generator) - 1)
    return from_stains(to_stains(patches.movedim(1, -1)) * factors).movedim(-1, 1)
