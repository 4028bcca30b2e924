"""The hand-written gradients against automatic differentiation of the plain formulas."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from setwise import _gradients
from setwise.nn.operators.random_features import LowRankWeights, RandomFeatures


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def low_rank(phi: Tensor, x: Tensor, gamma: Tensor) -> Tensor:
    return LowRankWeights(phi, None, constant=1.0, dtype=x.dtype).diffuse(x, gamma)


def plain_low_rank(phi: Tensor, x: Tensor, gamma: Tensor) -> Tensor:
    F = 1 + phi @ phi.mT
    return (1 - gamma) * x + gamma * (F @ x) / F.sum(-1, keepdim=True).clamp(min=x.shape[1])


WAVES = RandomFeatures(3, 16, softmax=True, seed=1).double()


def plain_waves(z: Tensor) -> Tensor:
    angles = z @ WAVES.frequencies.mT
    return torch.cat([WAVES.amplitudes * angles.cos(), WAVES.amplitudes * angles.sin()], dim=-1)


FORMULAS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "squared distances": (
        _gradients.scaled_squared_distances,
        lambda z, scale: scale * (z.unsqueeze(1) - z.unsqueeze(2)).square().sum(-1),
        (random(2, 5, 3), random(1).abs().squeeze()),
    ),
    "diffusion": (
        _gradients.diffusion,
        lambda x, W, gamma: (1 - gamma) * x + gamma * (W @ x),
        (random(2, 5, 3), random(2, 5, 5, seed=1), torch.tensor(0.3).double()),
    ),
    "low-rank diffusion": (
        low_rank,
        plain_low_rank,
        (0.3 * random(2, 5, 4), random(2, 5, 3, seed=1), torch.tensor(0.3).double()),
    ),
    "waves": (WAVES.phi, plain_waves, (random(2, 5, 3),)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_gradients_are_those_of_the_plain_formula(name: str) -> None:
    fast, plain, inputs = FORMULAS[name]
    expected = plain(*inputs)
    assert torch.allclose(fast(*inputs), expected, atol=1e-12)
    weights = random(*expected.shape, seed=2)
    for chosen in range(1, 2 ** len(inputs)):  # every subset of inputs that need a gradient
        leaves = [x.clone().requires_grad_(bool(chosen >> i & 1)) for i, x in enumerate(inputs)]
        wanted = [x for x in leaves if x.requires_grad]
        found, slopes = (torch.autograd.grad((f(*leaves) * weights).sum(), wanted) for f in (fast, plain))
        for a, b in zip(found, slopes, strict=True):
            assert torch.allclose(a, b, atol=1e-10)
