"""Tests of the plots of patches on their image."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from setwise.inspection import plots

IMAGE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
COORDS = np.array([(x, y) for y in (0, 2, 4) for x in (0, 2, 4, 6)])  # columns first, all 12 of side 2
GREY = IMAGE / 255 @ [0.299, 0.587, 0.114]


def heatmap(values: Any, **changes: Any) -> Any:
    return plots.patch_heatmap(IMAGE, COORDS, values, **({"size": 2} | changes))


def painted(values: Any) -> Any:
    """The value of its patch at each pixel."""
    return np.array([[values[y // 2 * 4 + x // 2] for x in range(8)] for y in range(6)])


def test_heatmap_colours_each_patch_at_its_place() -> None:
    values = np.arange(12) / 12
    ax = heatmap(values)
    below, tint = ax.images
    assert not ax.patches
    assert not ax.axison
    assert np.allclose(below.get_array(), np.stack([0.25 + 0.75 * GREY] * 3, -1))
    assert np.allclose(tint.get_array(), painted(values))
    low, high = np.percentile(values, (1, 99))
    assert tint.get_clim() == (low, high)
    assert tint.get_cmap().name == "YlOrRd"
    strength = np.clip((painted(values) - low) / (high - low), 0, 1)
    assert np.allclose(tint.get_alpha(), 0.7 * strength)
    assert tint.get_alpha().max() == pytest.approx(0.7)  # the tissue stays visible
    assert tint.get_interpolation() == "nearest"


def test_scale_of_both_signs_is_symmetric() -> None:
    values = np.linspace(-1, 0.5, 12)
    tint = heatmap(values).images[-1]
    high = np.percentile(np.abs(values), 99)
    assert tint.get_clim() == (-high, high)
    assert high < 1
    assert tint.get_cmap().name == "coolwarm"
    assert np.allclose(tint.get_alpha(), 0.7 * np.clip(np.abs(painted(values)) / high, 0, 1))


def test_negative_values_are_blue_and_the_lowest_strongest() -> None:
    values = -np.arange(12) / 12
    tint = heatmap(values).images[-1]
    low, high = np.percentile(values, (1, 99))
    assert tint.get_clim() == (low, high)
    assert tint.get_cmap().name == "YlGnBu_r"
    assert np.allclose(tint.get_alpha(), 0.7 * np.clip((high - painted(values)) / (high - low), 0, 1))


def many(values: Any) -> Any:
    """The tint of 400 patches of one pixel."""
    coords = [(x, y) for y in range(20) for x in range(20)]
    return plots.patch_heatmap(np.ones((20, 20, 3)), coords, values, size=1).images[-1]


def test_outliers_do_not_dominate_the_colour_scale() -> None:
    values = np.linspace(1, 2, 400)
    values[7] = 1000
    assert many(values).get_clim()[1] < 2.01
    assert many(values * (-1) ** np.arange(400)).get_clim()[1] < 2.01
    assert many(-values).get_clim()[0] > -2.01


def test_values_outside_the_percentiles_are_drawn() -> None:
    values = np.zeros(400)
    values[7] = 3
    assert many(values).get_clim() == (0, 3)
    assert many(values).get_alpha()[0, 7] == pytest.approx(0.7)
    values[8] = -2
    assert many(values).get_clim() == (-3, 3)
    assert many(values).get_alpha()[0, 7] == pytest.approx(0.7)
    assert many(values).get_alpha()[0, 8] == pytest.approx(0.7 * 2 / 3)


def test_values_that_are_all_the_same_leave_the_image_as_it_is() -> None:
    for value in (0.0, 0.5, -0.5):
        assert (many(np.full(400, value)).get_alpha() == 0).all()
    assert many(np.zeros(400)).get_cmap().name == "YlOrRd"


def test_where_there_is_no_patch_there_is_no_tint_and_overlaps_are_averaged() -> None:
    ax = plots.patch_heatmap(IMAGE, [[0, 0], [1, 1]], [-1.0, 3.0], size=2)
    tint = ax.images[-1].get_array()
    expected = [[-1, -1, None], [-1, 1, 3], [None, 3, 3]]
    assert tint[:3, :3].tolist() == expected
    assert tint.mask.sum() == 48 - 7
    assert (ax.images[-1].get_alpha()[tint.mask] == 0).all()


def test_a_colour_bar_can_be_made_and_everything_can_be_drawn() -> None:
    figure = Figure(layout="constrained")
    first, second, third, fourth = figure.subplots(4)
    assert heatmap(np.linspace(-1, 1, 12), ax=first) is first
    figure.colorbar(first.images[-1], ax=first)
    assert plots.patch_neighbours(IMAGE, COORDS, np.arange(12), 3, size=2, ax=second) is second
    figure.colorbar(second.collections[0], ax=second)
    assert plots.patch_gallery(IMAGE, COORDS, np.arange(12), size=2, ax=third) is third
    assert heatmap(np.zeros(12), ax=fourth) is fourth
    figure.colorbar(fourth.images[-1], ax=fourth)
    figure.draw_without_rendering()


def test_images_are_bytes_or_floats_and_all_may_be_tensors() -> None:
    weights = torch.linspace(1, 2, 12)
    for draw in (
        plots.patch_heatmap,
        plots.patch_gallery,
        lambda *arguments, size: plots.patch_neighbours(*arguments, 3, size=size),
    ):
        expected = draw(IMAGE, COORDS, weights.numpy(), size=2)
        tensors = torch.tensor(IMAGE), torch.tensor(COORDS), weights.clone().requires_grad_()
        floats = IMAGE / 255, COORDS.tolist(), weights.tolist()
        for arguments in (tensors, floats):
            ax = draw(*arguments, size=2)
            for a, b in zip(ax.images, expected.images, strict=True):
                assert np.allclose(a.get_array(), b.get_array())


def test_neighbours_keep_their_colours_and_have_frames() -> None:
    weights = np.array([0.0, 0.1, 0.2, 0.9, 0.3, 0.3, 0.05, 0.0, 0.25, 0.01, 0.02, 0.03])
    ax = plots.patch_neighbours(IMAGE, COORDS, weights, 3, size=2, k=4)
    expected = np.stack([0.5 + 0.5 * GREY] * 3, -1)
    for i in (3, 4, 5, 8, 2):
        for x in (COORDS[i][0], COORDS[i][0] + 1):
            for y in (COORDS[i][1], COORDS[i][1] + 1):
                expected[y, x] = IMAGE[y, x] / 255
    (image,) = ax.images
    assert np.allclose(image.get_array(), expected)
    assert not ax.axison
    neighbours, chosen = ax.collections
    assert neighbours.get_array().tolist() == [0.3, 0.3, 0.25, 0.2]
    corners = [path.vertices.min(0).tolist() for path in neighbours.get_paths()]
    assert corners == [(COORDS[i] - 0.5).tolist() for i in (4, 5, 8, 2)]
    (frame,) = chosen.get_paths()
    assert frame.vertices.min(0).tolist() == [5.5, -0.5]
    assert frame.vertices.max(0).tolist() == [7.5, 1.5]
    assert to_rgba("crimson") == tuple(chosen.get_edgecolor()[0])
    assert neighbours.get_cmap().name == "viridis_r"
    for frames in (neighbours, chosen):
        assert len(frames.get_facecolor()) == 0
        assert not frames.get_clip_on()
        assert frames.get_linewidth().tolist() == [2.5]


def test_at_most_twelve_neighbours_with_weight_are_drawn() -> None:
    coords = [(x, 0) for x in range(20)]
    image = np.ones((1, 20, 3))
    ax = plots.patch_neighbours(image, coords, np.full(20, 0.05), 0, size=1)
    corners = [path.vertices.min(0)[0] + 0.5 for path in ax.collections[0].get_paths()]
    assert corners == list(range(1, 13))
    lonely = plots.patch_neighbours(image, coords, np.eye(20)[4], 4, size=1)
    assert len(lonely.collections[0].get_paths()) == 0
    lonely.figure.draw_without_rendering()


def test_a_gallery_shows_the_highest_first() -> None:
    values = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]) / 1000
    ax = plots.patch_gallery(IMAGE, COORDS, values, size=2, count=5)
    order = [5, 11, 7, 4, 8]
    for place, (i, shown) in enumerate(zip(order, ax.images, strict=True)):
        x, y = COORDS[i]
        assert np.allclose(shown.get_array(), IMAGE[y : y + 2, x : x + 2] / 255)
        assert shown.get_extent() == pytest.approx([1.08 * place, 1.08 * place + 1, 0, 1])
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        "0.009",
        "0.008",
        "0.006",
        "0.005",
        "0.005",
    ]
    assert ax.get_xticks().tolist() == pytest.approx([1.08 * place + 0.5 for place in range(5)])
    assert ax.get_xlim() == pytest.approx((0, 4 * 1.08 + 1))
    assert ax.get_ylim() == (0, 1)
    assert ax.get_yticks().tolist() == []
    assert not any(spine.get_visible() for spine in ax.spines.values())
    assert len(plots.patch_gallery(IMAGE, COORDS, values, size=2).images) == 8
    assert len(plots.patch_gallery(IMAGE, COORDS, values, size=2, count=50).images) == 12
    assert plots.patch_gallery(IMAGE, COORDS, [1 / 3] * 12, size=2).get_xticklabels()[0].get_text() == "0.333"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"image": IMAGE[0]}, "image must be [h, w, 3] of uint8 or floats, got uint8 [8, 3]"),
        ({"image": IMAGE[..., :1]}, "image must be [h, w, 3] of uint8 or floats, got uint8 [6, 8, 1]"),
        (
            {"image": IMAGE.astype(float)},
            f"image must have floats from 0 to 1, got {IMAGE.min()} to {IMAGE.max()}",
        ),
        ({"coords": np.full((len(COORDS), 2), np.nan)}, "coords must be finite, got NaN or infinite values"),
        ({"image": IMAGE.astype(int)}, "image must be [h, w, 3] of uint8 or floats, got int64 [6, 8, 3]"),
        ({"coords": COORDS[:, 0]}, "coords must be [n, 2] with n at least 1, got [12]"),
        ({"coords": np.ones((12, 3))}, "coords must be [n, 2] with n at least 1, got [12, 3]"),
        ({"coords": np.ones((0, 2))}, "coords must be [n, 2] with n at least 1, got [0, 2]"),
        ({"values": np.ones(11)}, "values must have one entry per patch, 12, got [11]"),
        ({"values": np.ones((12, 1))}, "values must have one entry per patch, 12, got [12, 1]"),
        (
            {"coords": COORDS[:, ::-1]},
            "patches of side 2 must lie within the image of 8 × 6 pixels, got corners from [0, 0] to [4, 6]",
        ),
        (
            {"coords": COORDS - 1},
            "patches of side 2 must lie within the image of 8 × 6 pixels, "
            "got corners from [-1, -1] to [5, 3]",
        ),
        (
            {"size": 3},
            "patches of side 3 must lie within the image of 8 × 6 pixels, got corners from [0, 0] to [6, 4]",
        ),
        (
            {"size": 0},
            "patches of side 0 must lie within the image of 8 × 6 pixels, got corners from [0, 0] to [6, 4]",
        ),
    ],
)
def test_inconsistent_arguments_are_rejected(changes: Any, sentence: str) -> None:
    call = {"image": IMAGE, "coords": COORDS, "values": np.ones(12), "size": 2} | changes
    arguments = call["image"], call["coords"], call["values"]
    for draw in (plots.patch_heatmap, plots.patch_gallery):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            draw(*arguments, size=call["size"])
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        plots.patch_neighbours(*arguments, 0, size=call["size"])


def test_numbers_out_of_range_are_rejected() -> None:
    for chosen in (-1, 12):
        with pytest.raises(ValueError, match=f"^chosen must be from 0 to 11, got {chosen}$"):
            plots.patch_neighbours(IMAGE, COORDS, np.ones(12), chosen, size=2)
    with pytest.raises(ValueError, match=r"^k must be at least 1, got 0$"):
        plots.patch_neighbours(IMAGE, COORDS, np.ones(12), 0, size=2, k=0)
    with pytest.raises(ValueError, match=r"^count must be at least 1, got 0$"):
        plots.patch_gallery(IMAGE, COORDS, np.ones(12), size=2, count=0)
