"""Synthetic tissue images: a stand-in for the breast tissue images."""

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from setwise.experiments.data.stains import from_stains
from setwise.training.seeding import generator

SLIDES, EACH = 8, 5  # slides, and images per slide, of which two or three are malignant
HEIGHT, WIDTH = 128, 160
NUCLEI = 60
RADIUS = 3.0  # radius of a benign nucleus in pixels


def tissue(seed: int = 0) -> tuple[list[UInt8[Tensor, "h w 3"]], Int[Tensor, " images"], tuple[str, ...]]:
    """Synthetic images of pink fibres and blue nuclei; malignant images have a cluster of large nuclei.

    The strength of the stains varies between slides. The result is reproducible from the seed.

    Returns:
        The images, their labels (1 is malignant), and the slide name of each.

    >>> images, labels, slides = tissue()
    >>> len(images), images[0].shape, int(labels.sum()), len(set(slides))
    (40, torch.Size([128, 160, 3]), 20, 8)
    """
    images, labels, slides = [], [], []
    for slide in range(SLIDES):
        random = generator("tissue", slide, seed)
        dye = 0.8 + 0.4 * torch.rand(2, generator=random)
        for number in range(EACH):
            malignant = number < 2 + slide % 2
            images.append(_image(malignant, dye, random))
            labels.append(int(malignant))
            slides.append(f"slide{slide}")
    return images, torch.tensor(labels), tuple(slides)


def _image(malignant: bool, dye: Float[Tensor, " 2"], random: torch.Generator) -> UInt8[Tensor, "h w 3"]:
    extent = torch.tensor([WIDTH, HEIGHT])
    center = extent * torch.rand(NUCLEI, 2, generator=random)
    radius = RADIUS * (0.9 + 0.2 * torch.rand(NUCLEI, generator=random))
    if malignant:
        cluster = extent * (0.3 + 0.4 * torch.rand(2, generator=random))
        inside = (center - cluster).norm(dim=1) < 0.35 * HEIGHT
        radius = torch.where(inside, radius * (1.2 + torch.rand(NUCLEI, generator=random)), radius)
    row, column = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    pixel = torch.stack([column, row], dim=-1).view(-1, 2).float()
    depth = (1 - torch.cdist(pixel, center) / radius).amax(1).view(HEIGHT, WIDTH)
    haematoxylin = 1.5 * dye[0] * (3 * depth).clamp(0, 1)
    fibres = (0.25 * row + 3 * torch.sin(0.05 * column + 6 * torch.rand((), generator=random))).sin()
    eosin = 0.35 * dye[1] * (1 + 0.4 * fibres)
    grain = 0.05 * torch.randn(HEIGHT, WIDTH, generator=random)
    return from_stains(torch.stack([haematoxylin + grain, eosin + grain, 0 * grain], dim=-1))
