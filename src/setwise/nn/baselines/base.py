"""Base class of the baselines: encoder, layers, pool, head."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor, nn

from setwise.nn.layers import expand_shared
from setwise.sets import Elements


class Layered(nn.Module):
    """Encoder, equivariant layers, pool and head, applied in this order.

    Args:
        encoder: ``(x, mask) → [b, n, d]``.
        layers: modules ``(x, mask) → x``, applied in order.
        pool: ``(x, mask) → [b, d]``.
        head: ``[b, d] → [b, k]``, raw outputs.
    """

    def __init__(
        self, encoder: nn.Module, layers: Sequence[nn.Module], pool: nn.Module, head: nn.Module
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.layers = nn.ModuleList(layers)
        self.pool = pool
        self.head = head

    def forward(self, x: Elements, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b k"]:
        """Raw outputs, one row per set."""
        return self.read_out(expand_shared(self.encoder(x, mask), mask), mask)

    def read_out(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b k"]:
        """The raw outputs from encoded elements."""
        for layer in self.layers:
            x = layer(x, mask)
        out: Tensor = self.head(self.pool(x, mask))
        return out
