"""Over-smoothing: Dirichlet energy against depth in untrained models with three kinds of blocks.

Plain message passing makes the elements of a set alike within a few blocks; the set-denoising block slows
this down by γ, and the set-residual block preserves the features. There is no training; it takes about a
second.

    python examples/over_smoothing.py over_smoothing.png
"""

import sys

import torch
from matplotlib.figure import Figure

import setwise as sw

DEPTH = 12


def network(*blocks: torch.nn.Module) -> sw.DMPS:
    """Build a model from its parts; each part is a module that can be replaced."""
    return sw.DMPS(
        encoder=sw.nn.MLP(3, 32, activation="tanh"),
        graph=sw.LatentGraph(32, (64, 64), activation="tanh"),
        blocks=blocks,
        pool=sw.nn.MeanPool(),
        head=sw.nn.Dense(32, 1, activation="identity"),
    )


def main(path: str) -> None:
    """Compute the energies and draw them."""
    gamma = sw.nn.Gamma(0.5, learn=False)
    models = {
        "message passing": network(*(sw.nn.MessagePassingBlock(32, activation="tanh") for _ in range(DEPTH))),
        "set-denoising, γ = 1/2": network(
            *(sw.nn.SetDenoisingBlock(32, gamma=gamma, activation="tanh") for _ in range(DEPTH))
        ),
        "set-residual": network(*(sw.nn.SetResidualBlock(32, activation="tanh") for _ in range(DEPTH))),
    }
    points = torch.randn(64, 100, 3, generator=sw.training.generator("points"))
    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    for name, model in models.items():
        sw.nn.initialize(model, sw.training.generator("weights"))
        model.initialize_bandwidth(points)
        with torch.no_grad():
            energies = model.dirichlet_energies(points).mean(0)
        ax.semilogy(energies / energies[0], "o-", label=name)
        print(f"{name}: {energies[-1] / energies[0]:.2g} of the energy remains after {DEPTH} blocks")
    ax.set(xlabel="block", ylabel="relative Dirichlet energy", title="Over-smoothing in untrained models")
    ax.legend(frameon=False)
    figure.savefig(path, dpi=120)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "over_smoothing.png")
