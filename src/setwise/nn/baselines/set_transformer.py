"""Set Transformer (Lee et al., 2019): SAB, ISAB and PMA."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from setwise.functional import fill_padding
from setwise.nn.baselines.base import Layered
from setwise.nn.dmps import choose, pools
from setwise.nn.layers import MLP, Dense, Resettable


def multihead_attention(
    Q: Float[Tensor, "b m d"],
    K: Float[Tensor, "b n d"],
    V: Float[Tensor, "b n d"],
    mask: Bool[Tensor, "b n"] | None = None,
    *,
    heads: int,
) -> Float[Tensor, "b m d"]:
    """Multihead attention: the concatenation of softmax(Q_h K_hᵀ / √d) V_h over all heads h.

    As in the Set Transformer, the scale uses the number d of features of all heads together. The result is
    zero for sets without real elements.

    >>> x = torch.tensor([[[0.0, 0.0], [2.0, 4.0]]])
    >>> multihead_attention(torch.zeros(1, 1, 2), x, x, heads=2).tolist()
    [[[1.0, 2.0]]]
    """
    if K.shape[1] == 0:
        return torch.zeros_like(Q)
    d = Q.shape[-1]
    q, k, v = (t.reshape(*t.shape[:2], heads, d // heads).transpose(1, 2) for t in (Q, K, V))
    if mask is None:
        out = scaled_dot_product_attention(q, k, v, scale=d**-0.5)
    else:
        # A softmax over no keys may give NaN: let empty sets attend to the padding, and zero the result.
        empty = ~mask.any(1).view(-1, 1, 1, 1)
        attended = mask[:, None, None] | empty
        out = scaled_dot_product_attention(q, k, v, attn_mask=attended, scale=d**-0.5)
        out = out.masked_fill(empty, 0)
    return out.transpose(1, 2).flatten(2)


class MultiheadAttentionBlock(nn.Module):
    """Set Transformer's MAB(X, Y): the elements of X attend to those of Y.

    H = Q + attention(Q, K, V) with Q = X W_q, K = Y W_k, V = Y W_v, and MAB(X, Y) = H + relu(H W_o). This
    follows the published code. The paper's equations add X instead of Q, multiply the heads by an output
    matrix before that sum, and normalise H and the result; ``norm=True`` adds only the normalisation.

    Args:
        dim: number of features of X, Y and the result.
        heads: number of attention heads.
        norm: apply a layer norm after each of the two sums.

    >>> MultiheadAttentionBlock(8, heads=2)(torch.randn(2, 3, 8), torch.randn(2, 5, 8)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, dim: int, *, heads: int = 4, norm: bool = False) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"heads must be at least 1, got {heads}")
        if dim % heads:
            raise ValueError(f"dim must be a multiple of heads, got dim={dim} and heads={heads}")
        self.heads = heads
        self.query = Dense(dim, dim, activation="identity")
        self.key = Dense(dim, dim, activation="identity")
        self.value = Dense(dim, dim, activation="identity")
        self.feedforward = Dense(dim, dim, activation="relu")
        self.norm_attention = nn.LayerNorm(dim) if norm else nn.Identity()
        self.norm_out = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "b m d"],
        y: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b m d"]:
        """Apply the block; the mask is that of Y."""
        y = fill_padding(y, mask)
        Q = self.query(x)
        H = self.norm_attention(
            Q + multihead_attention(Q, self.key(y), self.value(y), mask, heads=self.heads)
        )
        out: Tensor = self.norm_out(H + self.feedforward(H))
        return out


class SetAttentionBlock(nn.Module):
    """Set Transformer's SAB(X) = MAB(X, X): all elements attend to all elements.

    Args:
        dim: number of features.
        heads: number of attention heads.
        norm: use layer norms, see `MultiheadAttentionBlock`.

    >>> SetAttentionBlock(8)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, dim: int, *, heads: int = 4, norm: bool = False) -> None:
        super().__init__()
        self.attend = MultiheadAttentionBlock(dim, heads=heads, norm=norm)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """Apply the block."""
        x = fill_padding(x, mask)
        out: Tensor = self.attend(x, x, mask)
        return out


class InducedSetAttentionBlock(Resettable):
    """Set Transformer's ISAB_m(X) = MAB(X, MAB(I, X)): attention through m learned points I, in O(n m).

    Args:
        dim: number of features.
        inducing: number m of inducing points.
        heads: number of attention heads.
        norm: use layer norms, see `MultiheadAttentionBlock`.

    >>> InducedSetAttentionBlock(8, inducing=3)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, dim: int, *, inducing: int = 16, heads: int = 4, norm: bool = False) -> None:
        super().__init__()
        if inducing < 1:
            raise ValueError(f"inducing must be at least 1, got {inducing}")
        self.points = nn.Parameter(torch.empty(1, inducing, dim))
        self.gather = MultiheadAttentionBlock(dim, heads=heads, norm=norm)
        self.spread = MultiheadAttentionBlock(dim, heads=heads, norm=norm)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise the inducing points as in the published code."""
        nn.init.xavier_uniform_(self.points, generator=generator)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b n d"]:
        """Apply the block."""
        x = fill_padding(x, mask)
        summary = self.gather(self.points.expand(x.shape[0], -1, -1), x, mask)
        out: Tensor = self.spread(x, summary)
        return out


class MultiheadAttentionPool(Resettable):
    """Set Transformer's PMA_k(X) = MAB(S, X): k learned seeds S attend to the set.

    This follows the published code; the paper's equation first applies a layer to X. The features of several
    seeds are concatenated. As for every pool, an empty set gives zeros.

    Args:
        dim: number of features.
        seeds: number k of seeds; the result has k · dim features.
        heads: number of attention heads.
        norm: use layer norms, see `MultiheadAttentionBlock`.

    >>> MultiheadAttentionPool(8, seeds=2)(torch.randn(3, 5, 8)).shape
    torch.Size([3, 16])
    """

    def __init__(self, dim: int, *, seeds: int = 1, heads: int = 4, norm: bool = False) -> None:
        super().__init__()
        if seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {seeds}")
        self.seeds = nn.Parameter(torch.empty(1, seeds, dim))
        self.attend = MultiheadAttentionBlock(dim, heads=heads, norm=norm)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise the seeds as in the published code."""
        nn.init.xavier_uniform_(self.seeds, generator=generator)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, "b o"]:
        """Pool each set."""
        z: Tensor = self.attend(self.seeds.expand(x.shape[0], -1, -1), x, mask).flatten(1)
        if mask is None:
            return z if x.shape[1] else torch.zeros_like(z)
        return z.masked_fill(~mask.any(1, keepdim=True), 0)


class SetTransformer(Layered):
    """Encoder, self-attention blocks, attention pooling and head."""

    @classmethod
    def build(
        cls,
        in_dim: int,
        out_dim: int,
        *,
        dim: int = 64,
        heads: int = 4,
        depth: int = 2,
        inducing: int | None = None,
        norm: bool = False,
        pool: Literal["attention", "mean", "max", "sum"] | nn.Module = "attention",
        encoder: nn.Module | None = None,
    ) -> "SetTransformer":
        """Build a model from sizes and names.

        In the published code the projections of the first block read the raw elements. Here a linear encoder
        precedes them; with dim ≥ in_dim both compute the same functions.

        Args:
            in_dim: number of features of an element.
            out_dim: number of outputs.
            dim: number of features of an encoded element.
            heads: number of attention heads.
            depth: number of blocks.
            inducing: number of inducing points per block (ISAB); None for full attention (SAB).
            norm: use layer norms, as in the paper's equations but not in its code.
            pool: name of the pooling (``"attention"`` is PMA with one seed), or a module
                ``(x, mask) → [b, dim]``.
            encoder: module ``(x, mask) → [b, n, dim]``; by default one linear layer.

        >>> SetTransformer.build(3, 40, dim=16, inducing=8)(torch.randn(2, 100, 3)).shape
        torch.Size([2, 40])
        """
        if depth < 0:
            raise ValueError(f"depth must not be negative, got {depth}")

        def block() -> nn.Module:
            if inducing is None:
                return SetAttentionBlock(dim, heads=heads, norm=norm)
            return InducedSetAttentionBlock(dim, inducing=inducing, heads=heads, norm=norm)

        attention = {"attention": lambda: MultiheadAttentionPool(dim, heads=heads, norm=norm)}
        return cls(
            encoder=MLP(in_dim, dim, activation="identity") if encoder is None else encoder,
            layers=[block() for _ in range(depth)],
            pool=choose("pool", pool, pools(dim) | attention) if isinstance(pool, str) else pool,
            head=Dense(dim, out_dim, activation="identity"),
        )
