"""Stained tissue as sets: an image is cut into patches, and one label speaks for all of them.

The paper's fourth experiment: 58 images of breast tissue (UCSB), 896 × 768 pixels, each 672 patches of
32 × 32; benign or malignant. Ten slides are behind them, which the names of the files tell. In training, each
patch is turned and mirrored by itself (`turned`), and the stains of an image may be made stronger or weaker
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
IMAGES = 58  # in the public archive
FORMATS = ("PNG", "TIFF", "JPEG", "JPEG2000", "BMP", "GIF", "PPM", "WEBP")
"""Of image files: plain pixels. Pillow knows more, and runs another program for one of them."""
ARCHIVE = "https://bioimage.ucsb.edu/research/bio-segmentation"

_NAME = re.compile(rf"(?P<slide>ytma\d+_\d+)_(?P<label>{'|'.join(CLASSES)})\d+_ccd\.\w+", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class PatchedImages:
    """Images as sets of patches with their places, in bytes: the 58 of the paper take 120 MB.

    Args:
        name: which data these are.
        patches: of each image, ``[n, 3, size, size]``.
        coords: the column and the row of the upper left pixel of each patch, ``[n, 2]`` an image.
        labels: the class of each image, a number below ``len(classes)``.
        classes: their names.
        names: of the images.
        slides: which slide each image was taken from.
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
                found = f"{len(getattr(self, what))} for {len(self.labels)}"
                raise ValueError(f"{what} must be one for each label, got {found}")
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            found = f"{int(self.labels.min())} to {int(self.labels.max())}"
            raise ValueError(f"labels must lie between 0 and {len(self.classes) - 1}, got {found}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> int:
        """The side of a patch."""
        return self.patches[0].shape[-1]

    def subset(self, index: Int[Tensor, " some"]) -> "PatchedImages":
        """Some of the images."""
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
        """An image as it was, without what was cut off at its right and lower edge."""
        return assembled(self.patches[i], self.coords[i])


def load_histology(folder: Path | None = None) -> PatchedImages:
    """The 58 images where they are at hand, else the stand-in; ``name`` tells.

    Args:
        folder: with one file an image, ``ytma<slide>_<date>_{benign,malignant}<k>_ccd.<any format>``;
            ``breast_cancer`` in the data folder unless given.
    """
    given = folder is not None
    folder = data_folder() / "breast_cancer" if folder is None else Path(folder)
    found = {path: match for path in _files(folder) if (match := _NAME.fullmatch(path.name))}
    if not found:
        if given:
            raise FileNotFoundError(f"{folder} holds no ytma…_ccd image: the public archive is at {ARCHIVE}")
        return _stand_in()
    if len(found) != IMAGES:
        raise ValueError(f"{folder} must hold {IMAGES} images, got {len(found)}: see {ARCHIVE}")
    return read_images(
        list(found),
        labels=[match["label"].lower() for match in found.values()],
        slides=[match["slide"].lower() for match in found.values()],
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
    """Cut image files of the usual formats (`FORMATS`) into patches.

    Args:
        paths: the files.
        labels: the name of each image's class.
        slides: which slide, or patient, each image belongs to; its own unless given.
        classes: the names of the classes in order; those that occur, sorted, unless given.
        size: the side of a patch in pixels.
        name: what to call the data.
    """
    files = [Path(path) for path in paths]
    if len(labels) != len(paths):
        raise ValueError(f"expected a label for each of {len(paths)} images, got {len(labels)}")
    classes = tuple(sorted(set(labels))) if classes is None else classes
    if unknown := set(labels) - set(classes):
        raise ValueError(f"labels must be of {', '.join(classes)}, got {min(unknown)!r}")
    cut = []
    for path in files:
        try:
            cut.append(patched(read_image(path), size))
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
    """The pixels of an image file, red, green and blue."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ModuleNotFoundError("images need pillow: pip install 'setwise[data]'") from error
    try:
        with Image.open(path, formats=FORMATS) as image:
            refuse_claim(3 * image.width * image.height, most_expanded(Path(path).stat().st_size))
            mode, pixels = image.mode, np.array(image.convert("RGB"))
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        limit = f"{Image.MAX_IMAGE_PIXELS:,} pixels (PIL.Image.MAX_IMAGE_PIXELS)"
        raise ValueError(f"{path} is larger than pillow opens: expected at most about {limit}") from error
    except Exception as error:  # a damaged file may fail in any way there is
        raise ValueError(f"{path} is not a readable image: damaged, or of an unknown format") from error
    if mode.startswith(("I", "F")):
        raise ValueError(f"{path}: expected pixels of at most 8 bits a colour, got pillow's mode {mode}")
    return torch.from_numpy(pixels)


def patched(
    image: UInt8[Tensor, "h w 3"], size: int = SIZE
) -> tuple[UInt8[Tensor, "n 3 {size} {size}"], Int[Tensor, "n 2"]]:
    """Cut an image into patches, row by row; what does not fill a patch at its edges is left out.

    Returns:
        The patches, and the column and the row of the upper left pixel of each.

    >>> patches, coords = patched(torch.zeros(768, 896, 3, dtype=torch.uint8))
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


def assembled(patches: UInt8[Tensor, "n 3 s s"], coords: Int[Tensor, "n 2"]) -> UInt8[Tensor, "h w 3"]:
    """Put patches back to their places; white where there is none.

    >>> image = torch.randint(256, (64, 96, 3), dtype=torch.uint8)
    >>> torch.equal(assembled(*patched(image)), image)
    True
    """
    size = patches.shape[-1]
    width, height = (int(coords[:, axis].max()) + size for axis in (0, 1))
    image = torch.full((height, width, 3), 255, dtype=torch.uint8)
    for patch, (column, row) in zip(patches, coords.tolist(), strict=True):
        image[row : row + size, column : column + size] = patch.permute(1, 2, 0)
    return image


def turned(patches: UInt8[Tensor, "n 3 s s"], generator: torch.Generator) -> UInt8[Tensor, "n 3 s s"]:
    """Turn each patch by a multiple of 90° and mirror every other one, at random: tissue has no upside.

    >>> patch = torch.randint(256, (1, 3, 4, 4), dtype=torch.uint8)
    >>> len({turned(patch, torch.Generator().manual_seed(i)).numpy().tobytes() for i in range(100)})
    8
    """
    way = torch.randint(8, (len(patches),), generator=generator)
    out = torch.empty_like(patches)
    for number in range(8):
        chosen = way == number
        some = patches[chosen].rot90(number % 4, (2, 3))
        out[chosen] = some.flip(3) if number >= 4 else some
    return out


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_file()) if folder.is_dir() else []


def _stand_in() -> PatchedImages:
    """Resettable tissue in place of the 58 images."""
    images, labels, slides = tissue()
    cut = [patched(image) for image in images]
    return PatchedImages(
        name="stand-in: drawn tissue",
        patches=[patches for patches, _ in cut],
        coords=[coords for _, coords in cut],
        labels=labels,
        classes=CLASSES,
        names=tuple(f"{slide}_{i}" for i, slide in enumerate(slides)),
        slides=slides,
    )
