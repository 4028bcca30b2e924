"""Training step of D-DMPS at the paper's ModelNet40 size, compared with its matrix products alone.

Batch 8, 1000 elements, width 512, a 512 / 1024 deep kernel, three set-denoising blocks, float32. The matrix
products are those of the formulas: each product of the forward pass and the two products of its gradient. The
plain version is ``cdist → softmax → matmul``, differentiated by autograd.
"""

import torch
from torch import Tensor, nn

import setwise as sw
from benchmarks.measure import record, side_by_side

B, N, D, E, K = 8, 1000, 512, 1024, 40
ROUNDS = 12


class PlainKernel(sw.nn.DeepKernel):
    """The same kernel, written the plain way."""

    def log_kernel(self, x: Tensor | sw.Shared, mask: Tensor | None = None) -> Tensor:
        """Return log K."""
        z = self.embedded(x, mask)
        return -(torch.cdist(z, z) ** 2) / (2 * self.sigma**2)


def products() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Factors A, B of every matrix product of the forward pass, and a gradient of its result."""

    def factors(rows: int, inner: int, columns: int, *batch: int) -> tuple[Tensor, Tensor, Tensor]:
        return (
            torch.randn(*batch, rows, inner),
            torch.randn(*batch, inner, columns),
            torch.randn(*batch, rows, columns),
        )

    encoder, embedding = factors(B * N, 3, D), [factors(B * N, D, D), factors(B * N, D, E)]
    kernel = factors(N, E, N, B)
    blocks = [f for _ in range(3) for f in (factors(N, N, D, B), factors(B * N, D, D))]
    return [encoder, *embedding, kernel, *blocks, factors(B, D, K)]


def main() -> None:
    x, y = torch.randn(B, N, 3), torch.randint(0, K, (B,))

    def step(model: nn.Module) -> None:
        nn.functional.cross_entropy(model(x), y).backward()
        model.zero_grad()

    ours = sw.DMPS.build(3, K, dim=D, hidden=(D, E), block="denoising", pool="max", activation="tanh")
    ours.initialize_bandwidth(x)
    plain = sw.DMPS.build(
        3, K, dim=D, block="denoising", graph=sw.LatentGraph(PlainKernel(D, (D, E), activation="tanh")),
        pool="max", activation="tanh",
    )  # fmt: skip
    plain.load_state_dict(ours.state_dict())
    gap = (ours(x) - plain(x)).abs().max().item()
    triples = products()

    def multiply() -> None:
        for a, b, gradient in triples:
            _ = a @ b, gradient @ b.mT, a.mT @ gradient

    times = side_by_side(
        {"products": multiply, "ours": lambda: step(ours), "plain": lambda: step(plain)}, ROUNDS
    )
    record(
        "dense_step",
        {
            "size": f"batch {B}, {N} elements, {D} wide, {E}-wide embedding, 3 denoising blocks, float32",
            "step_over_products": times["ours"] / times["products"],
            "step_over_plain": times["ours"] / times["plain"],
            "plain_over_products": times["plain"] / times["products"],
            "largest_difference_to_plain": gap,
            "seconds": times,
            "rounds": ROUNDS,
        },
    )


if __name__ == "__main__":
    main()
