"""Stained tissue images as sets of patches, with one label per image.

The paper's fourth experiment: 58 images of breast tissue (UCSB), 896 × 768 pixels, each cut into 672 patches
of 32 × 32; benign or malignant. The file names identify the ten slides. In training, each patch is rotated
and flipped at random (`random_orientation`), and the strength of the stains may be changed
(`setwise.experiments.data.stains`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from setwise._files import most_expanded, refuse_claim
from setwise.experiments.data.folders import data_folder
from setwise.experiments.data.tissue import tissue

SIZE = 32
CLASSES = ("benign", "malignant")
IMAGES = 58  # number in the public archive
FORMATS = ("PNG", "TIFF", "JPEG", "JPEG2000", "BMP", "GIF", "PPM", "WEBP")
"""Image formats that are read. Pillow supports more, but runs an external program for one of them."""
ARCHIVE = "https://bioimage.ucsb.edu/research/bio-segmentation"

_NAME = re.compile(rf"(?P<slide>ytma\d+_\d+)_(?P<label>{'|'.join(CLASSES)})\d+_ccd\.\w+", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class PatchedImages:
    """Images as sets of patches with their positions; the 58 images of the paper take 120 MB.

    Args:
        name: name of the data set.
        patches: patches of each image, ``[n, 3, size, size]``.
        coords: column and row of the upper left pixel of each patch, ``[n, 2]`` per image.
        labels: class index of each image, below ``len(classes)``.
        classes: class names.
        names: image names.
        slides: slide name of each image.
    """

    name: str
    patches: Sequence[UInt8[Tensor, "_ 3 _ _"]]
    coords: Sequence[Int[Tensor, "_ 2"]]
    labels: Int[Tensor, " images"]
    classes: tuple[str, ...]
    names: tuple[str, ...]
    slides: tuple[str, ...]

    def __post_init__(self) -> None:
        for what in ("patches", "coords", "names", "slides"):
            if len(getattr(self, what)) != len(self.labels):
                counts = f"{len(getattr(self, what))} for {len(self.labels)} labels"
                raise ValueError(f"{what} must have one entry per label, got {counts}")
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            labels = f"{int(self.labels.min())} to {int(self.labels.max())}"
            raise ValueError(f"labels must lie between 0 and {len(self.classes) - 1}, got {labels}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> int:
        """Side length of a patch in pixels."""
        return self.patches[0].shape[-1]

    def subset(self, index: Int[Tensor, " some"]) -> "PatchedImages":
        """Subset of the images."""
        chosen = index.tolist()
        return replace(
            self,
            patches=[self.patches[i] for i in chosen],
            coords=[self.coords[i] for i in chosen],
            labels=self.labels[index],
            names=tuple(self.names[i] for i in chosen),
            slides=tuple(self.slides[i] for i in chosen),
        )

    def image(self, i: int) -> UInt8[Tensor, "h w 3"]:
        """Original image, without the right and lower margins that did not fill a patch."""
        return assemble_image(self.patches[i], self.coords[i])


def load_histology(folder: Path | None = None) -> PatchedImages:
    """Load the 58 images if available, else the synthetic stand-in; ``name`` says which.

    Args:
        folder: one file per image, ``ytma<slide>_<date>_{benign,malignant}<k>_ccd.<any format>``;
            by default ``breast_cancer`` in the data folder.
    """
    given = folder is not None
    folder = data_folder() / "breast_cancer" if folder is None else Path(folder)
    files = {path: match for path in _files(folder) if (match := _NAME.fullmatch(path.name))}
    if not files:
        if given:
            raise FileNotFoundError(
                f"{folder} contains no ytma…_ccd image: download the public archive from {ARCHIVE}"
            )
        return _stand_in()
    if len(files) != IMAGES:
        raise ValueError(f"{folder} must contain {IMAGES} images, got {len(files)}: see {ARCHIVE}")
    return read_images(
        list(files),
        labels=[match["label"].lower() for match in files.values()],
        slides=[match["slide"].lower() for match in files.values()],
        classes=CLASSES,
        name="breast cancer (UCSB)",
    )


def read_images(
    paths: Sequence[Path | str],
    labels: Sequence[str],
    *,
    slides: Sequence[str] | None = None,
    classes: tuple[str, ...] | None = None,
    size: int = SIZE,
    name: str = "images",
) -> PatchedImages:
    """Read image files (see `FORMATS`) and cut them into patches.

    Args:
        paths: image files.
        labels: class name of each image.
        slides: slide or patient of each image; by default each image is its own.
        classes: class names in order; by default the sorted labels.
        size: side length of a patch in pixels.
        name: name of the data set.
    """
    files = [Path(path) for path in paths]
    if len(labels) != len(paths):
        raise ValueError(f"labels must have one entry per image, got {len(labels)} for {len(paths)} images")
    classes = tuple(sorted(set(labels))) if classes is None else classes
    if unknown := set(labels) - set(classes):
        raise ValueError(f"labels must be among {', '.join(classes)}, got {min(unknown)!r}")
    cut = []
    for path in files:
        try:
            cut.append(extract_patches(read_image(path), size))
        except ValueError as error:
            raise ValueError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from error
    return PatchedImages(
        name=name,
        patches=[patches for patches, _ in cut],
        coords=[coords for _, coords in cut],
        labels=torch.tensor([classes.index(label) for label in labels], dtype=torch.long),
        classes=classes,
        names=tuple(path.stem for path in files),
        slides=tuple(path.stem for path in files) if slides is None else tuple(slides),
    )


def read_image(path: Path | str) -> UInt8[Tensor, "h w 3"]:
    """RGB pixels of an image file."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ModuleNotFoundError("reading images requires pillow: pip install 'setwise[data]'") from error
    try:
        with Image.open(path, formats=FORMATS) as image:
            refuse_claim(3 * image.width * image.height, most_expanded(Path(path).stat().st_size))
            mode, pixels = image.mode, np.array(image.convert("RGB"))
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        limit = f"{Image.MAX_IMAGE_PIXELS:,} pixels (PIL.Image.MAX_IMAGE_PIXELS)"
        raise ValueError(f"{path} is too large for pillow: expected at most about {limit}") from error
    except Exception as error:  # a damaged file can raise any exception
        raise ValueError(f"{path} is not a readable image: damaged, or of an unsupported format") from error
    if mode.startswith(("I", "F")):
        raise ValueError(f"{path}: expected pixels with at most 8 bits per channel, got pillow mode {mode}")
    return torch.from_numpy(pixels)


def extract_patches(
    image: UInt8[Tensor, "h w 3"], size: int = SIZE
) -> tuple[UInt8[Tensor, "n 3 {size} {size}"], Int[Tensor, "n 2"]]:
    """Cut an image into patches, row by row; margins that do not fill a patch are dropped.

    Returns:
        The patches, and the column and row of the upper left pixel of each.

    >>> patches, coords = extract_patches(torch.zeros(768, 896, 3, dtype=torch.uint8))
    >>> patches.shape, coords[29].tolist()
    (torch.Size([672, 3, 32, 32]), [32, 32])
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if image.dim() != 3 or image.shape[2] != 3:
        raise ValueError(f"an image must be [height, width, 3], got {list(image.shape)}")
    height, width = image.shape[:2]
    if min(height, width) < size:
        raise ValueError(f"an image must have at least {size} × {size} pixels, got {width} × {height}")
    patches = image.unfold(0, size, size).unfold(1, size, size)
    rows, columns = patches.shape[:2]
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    coords = size * torch.stack([column.flatten(), row.flatten()], dim=-1)
    return patches.reshape(-1, 3, size, size), coords


def assemble_image(patches: UInt8[Tensor, "n 3 s s"], coords: Int[Tensor, "n 2"]) -> UInt8[Tensor, "h w 3"]:
    """Assemble an image from its patches; pixels without a patch are white.

    >>> image = torch.randint(256, (64, 96, 3), dtype=torch.uint8)
    >>> torch.equal(assemble_image(*extract_patches(image)), image)
    True
    """
    size = patches.shape[-1]
    width, height = (int(coords[:, axis].max()) + size for axis in (0, 1))
    image = torch.full((height, width, 3), 255, dtype=torch.uint8)
    for patch, (column, row) in zip(patches, coords.tolist(), strict=True):
        image[row : row + size, column : column + size] = patch.permute(1, 2, 0)
    return image


def random_orientation(
    patches: UInt8[Tensor, "n 3 s s"], generator: torch.Generator
) -> UInt8[Tensor, "n 3 s s"]:
    """Rotate each patch by a random multiple of 90° and flip it with probability 1/2.

    >>> patch = torch.randint(256, (1, 3, 4, 4), dtype=torch.uint8)
    >>> generators = [torch.Generator().manual_seed(i) for i in range(100)]
    >>> len({random_orientation(patch, g).numpy().tobytes() for g in generators})
    8
    """
    orientation = torch.randint(8, (len(patches),), generator=generator)
    out = torch.empty_like(patches)
    for number in range(8):
        chosen = orientation == number
        rotated = patches[chosen].rot90(number % 4, (2, 3))
        out[chosen] = rotated.flip(3) if number >= 4 else rotated
    return out


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_file()) if folder.is_dir() else []


def _stand_in() -> PatchedImages:
    """Synthetic tissue in place of the 58 images."""
    images, labels, slides = tissue()
    cut = [extract_patches(image) for image in images]
    return PatchedImages(
        name="stand-in: drawn tissue",
        patches=[patches for patches, _ in cut],
        coords=[coords for _, coords in cut],
        labels=labels,
        classes=CLASSES,
        names=tuple(f"{slide}_{i}" for i, slide in enumerate(slides)),
        slides=slides,
    )
