"""Images of tissue as sets of patches: cutting, putting together, turning, staining, files."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from setwise.experiments.data import histology
from setwise.experiments.data.histology import (
    CLASSES,
    PatchedImages,
    assemble_image,
    extract_patches,
    load_histology,
    random_orientation,
    read_image,
    read_images,
)
from setwise.experiments.data.stains import from_stains, random_stain, stain_matrix, to_stains
from setwise.experiments.data.tissue import tissue

REAL = Path(os.environ.get("SETWISE_DATA", "")) / "breast_cancer"
realdata = pytest.mark.realdata


def random_image(height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (height, width, 3), dtype=torch.uint8, generator=generator)


def write(path: Path, image: torch.Tensor) -> Path:
    Image.fromarray(image.numpy()).save(path)
    return path


# Patches


def test_patches_are_where_their_coords_say() -> None:
    image = random_image(70, 101)
    patches, coords = extract_patches(image, 32)
    assert patches.shape == (6, 3, 32, 32)
    assert coords.tolist() == [[0, 0], [32, 0], [64, 0], [0, 32], [32, 32], [64, 32]]
    for patch, (column, row) in zip(patches, coords.tolist(), strict=True):
        assert torch.equal(patch.permute(1, 2, 0), image[row : row + 32, column : column + 32])
    assert torch.equal(assemble_image(patches, coords), image[:64, :96])


def test_a_missing_patch_is_white() -> None:
    patches, coords = extract_patches(random_image(64, 64), 32)
    image = assemble_image(patches[[0, 3]], coords[[0, 3]])
    assert (image[:32, 32:] == 255).all()
    assert torch.equal(image[32:, 32:], patches[3].permute(1, 2, 0))


def test_an_image_below_a_patch_is_refused() -> None:
    with pytest.raises(ValueError, match="an image must have at least 32 × 32 pixels, got 40 × 31"):
        extract_patches(random_image(31, 40))
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        extract_patches(random_image(31, 40), 0)
    assert extract_patches(random_image(32, 32))[0].shape == (1, 3, 32, 32)


def test_turning_gives_each_patch_one_of_its_eight_views() -> None:
    patches, _ = extract_patches(random_image(128, 160))
    out = random_orientation(patches, torch.Generator().manual_seed(0))
    seen = set()
    for before, after in zip(patches, out, strict=True):
        views = [t for k in range(4) for t in (before.rot90(k, (1, 2)), before.rot90(k, (1, 2)).flip(2))]
        (which,) = [i for i, view in enumerate(views) if torch.equal(view, after)]
        seen.add(which)
    assert len(seen) >= 6  # of 20 patches; all random_orientation alike would be one


def test_turning_is_the_generators_choice() -> None:
    patches, _ = extract_patches(random_image(128, 160))
    a, b, c = (random_orientation(patches, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


# Stains


def test_stains_are_those_of_lambert_and_beer() -> None:
    S = stain_matrix()
    torch.testing.assert_close(S[0] / S[0, 0], torch.tensor([0.650, 0.704, 0.286]) / 0.650)
    torch.testing.assert_close(S[1] / S[1, 1], torch.tensor([0.072, 0.990, 0.105]) / 0.990)
    torch.testing.assert_close(S[2] @ S[:2].T, torch.zeros(2), atol=1e-6, rtol=0)
    pixel = torch.tensor([[200, 100, 50]], dtype=torch.uint8)
    density = -torch.tensor([200 / 255, 100 / 255, 50 / 255]).log()
    torch.testing.assert_close(to_stains(pixel)[0] @ S, density)


def test_amounts_come_back() -> None:
    pixels = random_image(20, 20).clamp(min=1)
    assert torch.equal(from_stains(to_stains(pixels)), pixels)
    assert to_stains(torch.zeros(1, 3, dtype=torch.uint8)).isfinite().all()


def test_restaining_scales_the_amounts_of_a_whole_image() -> None:
    patches, _ = extract_patches(random_image(64, 64).clamp(min=128))  # pale enough to stay below black
    out = random_stain(patches, torch.Generator().manual_seed(3), strength=0.3)
    before, after = (to_stains(p.movedim(1, -1)).reshape(-1, 3) for p in (patches, out))
    factors = (before * after).sum(0) / before.square().sum(0)
    expected = 1 + 0.3 * (2 * torch.rand(3, generator=torch.Generator().manual_seed(3)) - 1)
    torch.testing.assert_close(factors, expected, atol=0.02, rtol=0)
    assert out.dtype == torch.uint8
    for strength in (-0.1, 1.0):
        with pytest.raises(ValueError, match="strength must be at least 0 and below 1, got"):
            random_stain(patches, torch.Generator(), strength=strength)


# Files


@pytest.mark.parametrize("suffix", ["png", "tif", "bmp", "webp"])
def test_any_format_will_do(tmp_path: Path, suffix: str) -> None:
    image = random_image(40, 70)
    options = {"lossless": True} if suffix == "webp" else {}
    Image.fromarray(image.numpy()).save(tmp_path / f"a.{suffix}", **options)
    assert torch.equal(read_image(tmp_path / f"a.{suffix}"), image)


def test_grey_images_become_coloured(tmp_path: Path) -> None:
    Image.fromarray(np.full((40, 40), 7, dtype=np.uint8)).save(tmp_path / "a.png")
    assert (read_image(tmp_path / "a.png") == 7).all()
    assert read_image(tmp_path / "a.png").shape == (40, 40, 3)


def test_read_images_keeps_what_belongs_together(tmp_path: Path) -> None:
    sizes = {"a": (64, 32), "b": (32, 96), "c": (33, 35)}
    images = {name: random_image(*size, seed=i) for i, (name, size) in enumerate(sizes.items())}
    paths = [write(tmp_path / f"{name}.png", image) for name, image in images.items()]
    found = read_images(paths, ["tumour", "healthy", "tumour"], slides=["s1", "s1", "s2"], name="mine")
    assert (found.name, found.names, found.slides) == ("mine", ("a", "b", "c"), ("s1", "s1", "s2"))
    assert found.classes == ("healthy", "tumour")
    assert found.labels.tolist() == [1, 0, 1]
    assert [len(p) for p in found.patches] == [2, 3, 1]
    assert (len(found), found.size) == (3, 32)
    assert torch.equal(found.image(1), images["b"])
    some = found.subset(torch.tensor([2, 0]))
    assert (some.names, some.slides, some.labels.tolist()) == (("c", "a"), ("s2", "s1"), [1, 1])
    assert torch.equal(some.image(1), images["a"])
    assert torch.equal(some.coords[1], found.coords[0])
    assert read_images(paths, ["x"] * 3, size=16).slides == ("a", "b", "c")


def test_a_bad_image_is_named(tmp_path: Path) -> None:
    good = write(tmp_path / "good.png", random_image(64, 64))
    cut = tmp_path / "cut.png"
    cut.write_bytes(good.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"cut\.png is not a readable image: damaged, or of an unsupported"):
        read_images([good, cut], ["a", "b"])
    small = write(tmp_path / "small.png", random_image(20, 64))
    with pytest.raises(
        ValueError, match=r"small\.png: an image must have at least 32 × 32 pixels, got 64 × 20"
    ):
        read_images([good, small], ["a", "b"])
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "none.png")
    with pytest.raises(ValueError, match="labels must have one entry per image, got 2 for 1"):
        read_images([good], ["a", "b"])
    with pytest.raises(ValueError, match="labels must be among a, c, got 'b'"):
        read_images([good], ["b"], classes=("a", "c"))


def test_paths_may_be_words(tmp_path: Path) -> None:
    path = write(tmp_path / "a.png", random_image(32, 32))
    assert read_images([str(path)], ["x"]).names == ("a",)


def test_pixels_of_more_than_8_bits_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((40, 40), 3000, dtype=np.uint16)).save(tmp_path / "deep.tif")
    with pytest.raises(
        ValueError, match=r"deep\.tif: expected pixels with at most 8 bits per channel, got pillow mode"
    ):
        read_image(tmp_path / "deep.tif")


def test_an_image_beyond_pillows_limit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "large.png", random_image(64, 64))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"large\.png is too large for pillow: expected at most about 1,000"):
        read_image(path)


def test_an_image_has_three_colours(unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"an image must be \[height, width, 3\], got \[40, 40, 4\]"):
        extract_patches(torch.zeros(40, 40, 4, dtype=torch.uint8))


def test_what_does_not_fit_together_is_refused() -> None:
    patches, coords = extract_patches(random_image(32, 32))

    def images(**changes: object) -> PatchedImages:
        arguments: dict[str, object] = {
            "name": "x", "patches": [patches], "coords": [coords], "labels": torch.tensor([0]),
            "classes": ("a", "b"), "names": ("i",), "slides": ("s",),
        }  # fmt: skip
        return PatchedImages(**(arguments | changes))  # type: ignore[arg-type]

    assert len(images()) == 1
    with pytest.raises(ValueError, match="slides must have one entry per label, got 2 for 1"):
        images(slides=("s", "t"))
    with pytest.raises(ValueError, match="labels must lie between 0 and 1, got 2 to 2"):
        images(labels=torch.tensor([2]))


# The public archive, and its stand-in


def archive(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        label = CLASSES[i % 2]
        write(folder / f"ytma{10 + i % 3}_010704_{label}{i}_ccd.png", random_image(32, 64, seed=i))


def test_the_archive_is_found_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path))
    assert load_histology().name == "stand-in: drawn tissue"
    archive(tmp_path / "breast_cancer", 5)
    (tmp_path / "breast_cancer" / "README.txt").write_text("not an image")
    with pytest.raises(ValueError, match="breast_cancer must contain 58 images, got 5: see"):
        load_histology()
    monkeypatch.setattr(histology, "IMAGES", 5)
    found = load_histology()
    assert found.name == "breast cancer (UCSB)"
    assert found.classes == ("benign", "malignant")
    assert sorted(set(found.slides)) == ["ytma10_010704", "ytma11_010704", "ytma12_010704"]
    assert [found.names[i].split("_")[2][:-1] for i in range(5)] == [
        CLASSES[y] for y in found.labels.tolist()
    ]


def test_an_empty_folder_that_was_asked_for_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="contains no ytma…_ccd image"):
        load_histology(tmp_path)


def test_the_stand_in_is_the_same_each_time_and_has_both_classes_on_every_slide() -> None:
    images, labels, slides = tissue()
    again, _, _ = tissue()
    other, _, _ = tissue(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(images, again, strict=True))
    assert not torch.equal(images[0], other[0])
    for slide in set(slides):
        here = {int(y) for y, s in zip(labels, slides, strict=True) if s == slide}
        assert here == {0, 1}


def test_malignant_tissue_holds_more_haematoxylin() -> None:
    images, labels, _ = tissue()
    amount = torch.stack([to_stains(image)[..., 0].mean() for image in images])
    assert amount[labels == 1].mean() > 1.1 * amount[labels == 0].mean()


@realdata
@pytest.mark.skipif(not REAL.is_dir(), reason="the images are not available")
def test_the_real_images() -> None:
    found = load_histology(REAL)
    assert len(found) == 58
    assert found.labels.bincount().tolist() == [32, 26]
    assert len(set(found.slides)) == 10
    assert {p.shape for p in found.patches} == {(672, 3, 32, 32)}
    assert found.image(0).shape == (768, 896, 3)
