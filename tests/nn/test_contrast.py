"""Local moments, contrast blocks and joined pools, against plain loops."""

import math

import pytest
import torch
from torch import Tensor, nn

import setwise as sw
from setwise.inspection import plots


class Verbatim(nn.Module):
    """A network that shows what it was given."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


def moments_of(points: list[list[float]], sigma: float) -> list[list[float]]:
    """(mu - x) / sigma and the upper triangle of the covariance / sigma^2, point by point."""
    d, out = len(points[0]), []
    for x in points:
        w = [math.exp(-(math.dist(x, y) ** 2) / (2 * sigma**2)) for y in points]
        w = [v / sum(w) for v in w]
        mean = [sum(v * y[k] for v, y in zip(w, points, strict=True)) for k in range(d)]
        spread = [
            sum(v * (y[i] - mean[i]) * (y[j] - mean[j]) for v, y in zip(w, points, strict=True))
            for i in range(d)
            for j in range(i, d)
        ]
        out.append([(m - c) / sigma for m, c in zip(mean, x, strict=True)] + [s / sigma**2 for s in spread])
    return out


def test_moments_match_plain_loops() -> None:
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    encoder = sw.nn.LocalMoments(Verbatim(), scales=(0.3, 1.2)).double()
    found = encoder(x)
    assert found.shape == (2, 7, sw.nn.LocalMoments.features(3, 2)) == (2, 7, 21)
    for cloud, features in zip(x, found, strict=True):
        expected = [
            [*point.tolist(), *near, *far]
            for point, near, far in zip(
                cloud, moments_of(cloud.tolist(), 0.3), moments_of(cloud.tolist(), 1.2), strict=True
            )
        ]
        assert torch.allclose(features, torch.tensor(expected, dtype=torch.float64), atol=1e-6)


def test_a_sheet_has_no_thickness_and_a_rim_is_drawn_to_the_middle() -> None:
    grid = torch.linspace(-1, 1, 21)
    sheet = torch.cartesian_prod(grid, grid, torch.zeros(1)).unsqueeze(0)
    features = sw.nn.LocalMoments(Verbatim(), scales=(0.2,))(sheet)[0]
    middle, rim = features[220], features[0]
    offset, covariance = middle[3:6], middle[6:]
    assert torch.allclose(offset, torch.zeros(3), atol=1e-5)
    assert covariance[[0, 3]].min() > 0.8  # xx and yy, in units of the scale
    assert covariance[[1, 2, 4, 5]].abs().max() < 1e-5  # xy, xz, yz, zz
    assert rim[3] > 0.3  # at the corner (-1, -1): inwards along x
    assert rim[4] > 0.3  # and along y


def test_where_the_cloud_is_changes_only_its_coordinates() -> None:
    x = torch.randn(1, 30, 3)
    encoder = sw.nn.LocalMoments(Verbatim())
    assert torch.allclose(encoder(x + 100)[..., 3:], encoder(x)[..., 3:], atol=1e-3)


def test_moments_keep_their_digits_under_autocast() -> None:
    x = torch.nn.functional.normalize(torch.randn(2, 200, 3), dim=-1)
    encoder = sw.nn.LocalMoments(Verbatim(), scales=(0.1,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = encoder(x)
    assert torch.allclose(found, encoder(x), atol=1e-5)


def test_scales_are_learned() -> None:
    encoder = sw.nn.LocalMoments(sw.nn.MLP(12, 4, activation="tanh"), scales=(0.5,))
    encoder(torch.randn(2, 9, 3)).square().sum().backward()
    assert encoder.log_scales.grad is not None
    assert encoder.log_scales.grad.abs().item() > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"scales": ()}, "scales must be positive and finite, at least one, got"),
        ({"scales": (0.1, 0.0)}, "scales must be positive and finite"),
        ({"scales": (math.inf,)}, "scales must be positive and finite"),
    ],
)
def test_absurd_moments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.nn.LocalMoments(Verbatim(), **arguments)


def test_points_must_have_their_coordinates() -> None:
    with pytest.raises(ValueError, match=r"points must be \[sets, points, 3\], got \[2, 5, 4\]"):
        sw.nn.LocalMoments(Verbatim())(torch.randn(2, 5, 4))


def test_a_contrast_block_matches_its_formula() -> None:
    block = sw.nn.SetContrastBlock(4, activation="tanh").double()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    x, W = torch.randn(2, 5, 4).double(), torch.rand(2, 5, 5).double().softmax(-1)
    y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    y = y * block.norm.weight + block.norm.bias
    H, h = block.dense.linear.weight.mT, block.dense.linear.bias
    expected = x + (y @ H[:4] + (W @ y - y) @ H[4:] + h).tanh()
    assert torch.allclose(block(x, W), expected)


def test_a_contrast_block_can_be_a_denoising_step_of_any_gamma() -> None:
    block, step = (
        sw.nn.SetContrastBlock(4, activation="tanh"),
        sw.nn.SetDenoisingBlock(4, gamma=sw.nn.Gamma(0.3)),
    )
    step.dense = sw.nn.Dense(4, 4, activation="tanh")
    H = step.dense.linear.weight
    with torch.no_grad():
        block.dense.linear.weight.copy_(torch.cat([H, 0.3 * H], 1))
        block.dense.linear.bias.copy_(step.dense.linear.bias)
    x, W = torch.randn(2, 5, 4), torch.rand(2, 5, 5).softmax(-1)
    assert torch.allclose(block(x, W) - x, step(block.norm(x), W), atol=1e-6)


def test_joined_pools_stand_side_by_side() -> None:
    x, mask = torch.randn(3, 5, 2), torch.arange(5) < torch.tensor([[5], [2], [0]])
    pool = sw.nn.JoinedPool(sw.nn.MaxPool(), sw.nn.SumPool(), sw.nn.MeanPool())
    expected = torch.cat([p(x, mask) for p in (sw.nn.MaxPool(), sw.nn.SumPool(), sw.nn.MeanPool())], 1)
    assert torch.equal(pool(x, mask), expected)
    with pytest.raises(ValueError, match="JoinedPool needs at least one pool, got none"):
        sw.nn.JoinedPool()


def test_points_are_drawn_with_a_weight_each() -> None:
    points, weights = [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [0.5, 0.2, 0.3]
    for chosen in (0, -3):
        ax = plots.weighted_points(points, weights, chosen=chosen)
        assert ax.collections[0].get_array().tolist() == [0.2, 0.3]
    assert plots.weighted_points(points, weights).collections[0].get_array().tolist() == [0.2, 0.3, 0.5]
    with pytest.raises(ValueError, match="weights must have one entry per point, 3, got 2"):
        plots.weighted_points(points, weights[:2])
