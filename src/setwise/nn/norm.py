"""Normalising over a batch, even if it is divided among processes or has too little in it."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from setwise import ranks


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of rows or images that knows two more cases.

    Where a batch has fewer than two rows, torch refuses, as they have no variance; here the running
    statistics are taken. Where it is divided among processes, the statistics are those of the whole batch.

    Args:
        features: of a row, or channels of an image.
        eps: added to variances.
        momentum: of the running statistics.

    >>> BatchNorm(3)(torch.zeros(1, 3)).tolist()
    [[0.0, 0.0, 0.0]]
    """

    def __init__(self, features: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(features, eps, momentum)

    def forward(self, x: Float[Tensor, "rows d *image"]) -> Float[Tensor, "rows d *image"]:
        """Normalise each feature."""
        if not self.training:
            return super().forward(x)
        count = x.numel() // x.shape[1]
        if ranks.is_split():
            count = int(ranks.total(torch.tensor(count if ranks.counts() else 0)))
        if count < 2:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return self._over_all(x, count) if ranks.is_split() else super().forward(x)

    def _over_all(self, x: Tensor, count: int) -> Tensor:
        """Normalise by the statistics of all processes."""
        others, kind = [0, *range(2, x.dim())], x.dtype
        x = x.to(torch.promote_types(kind, torch.float32))

        def mean_of(values: Tensor) -> Tensor:
            own = values if ranks.counts() else values[:0]
            return ranks.all_sum(own.sum(others, keepdim=True)) / count

        mean = mean_of(x)
        variance = mean_of((x - mean).square())
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        with torch.no_grad():
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(variance.flatten() * (count / (count - 1)), self.momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        scale, shift = (part.view_as(mean) for part in (self.weight, self.bias))
        return ((x - mean) * (variance + self.eps).rsqrt() * scale + shift).to(kind)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (its name in torch)
        """Rows or images, all are welcome."""
