"""Nearest neighbours within sets: the edges of a sparse graph, without a matrix of all pairs.

An exact search compares tiles of some rows with all columns; an approximate search by the library faiss is
faster beyond some ten thousand elements. A search has no gradient: it selects edges, not their weights.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from setwise.functional import fill_padding

Search = Literal["auto", "exact", "faiss"]

TILE = 2**22
"""Distances that an exact search holds at a time: 16 MB."""
EXACT = 30_000
"""Number of elements up to which ``auto`` is exact on a CPU, where that takes a few seconds."""
RECALL = 0.95
"""Minimum share of the true neighbours that an approximate search finds."""


def nearest(
    z: Float[Tensor, "b n e"], k: int, mask: Bool[Tensor, "b n"] | None = None, *, search: Search = "auto"
) -> Int[Tensor, "b n m"]:
    """The indices of the k nearest elements of each element, itself first, then by distance; −1 if fewer.

    Args:
        z: the elements, centred in each set (see `setwise.functional.center`).
        k: number of neighbours; m = min(k, n).
        mask: True at real elements.
        search: ``exact`` compares all pairs. ``faiss`` builds an index of each set (HNSW) and widens its
            search until it finds 95 % of the neighbours of a sample; it compares all pairs if that is faster.
            ``auto`` is exact up to 30,000 elements, and always on a GPU; beyond that it uses faiss, if it is
            installed.

    >>> nearest(torch.tensor([[[0.0], [1.0], [3.0]]]), 2).tolist()
    [[[0, 1], [1, 0], [2, 1]]]
    >>> nearest(torch.tensor([[[0.0], [1.0], [3.0]]]), 2, torch.tensor([[True, False, True]])).tolist()
    [[[0, 2], [-1, -1], [2, 0]]]
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    check_search(search)
    index: Tensor = _nearest(fill_padding(z.detach(), mask), mask, min(k, z.shape[1]), search)
    return index


def pairs_above(
    z: Float[Tensor, "b n e"],
    delta: float,
    mask: Bool[Tensor, "b n"] | None = None,
    *,
    softmax: bool,
    temperature: float = 1.0,
) -> tuple[Int[Tensor, " offsets"], Int[Tensor, " edges"]]:
    """The pairs whose weight in the full graph is δ or more, and the largest weight of each row.

    Args:
        z: embedded elements divided by σ, centred in each set.
        delta: the threshold δ.
        mask: True at real elements.
        softmax: see `affinity`.
        temperature: T.

    Returns:
        The position of the first pair of each row, and the column of each pair; elements are numbered over
        all sets: element j of set i is n i + j.

    >>> z = torch.tensor([[[0.0], [1.0], [9.0]]])
    >>> [part.tolist() for part in pairs_above(z, 0.3, softmax=False)]
    [[0, 2, 4, 5], [0, 1, 0, 1, 2]]
    """
    offsets, columns = _pairs_above(fill_padding(z.detach(), mask), mask, delta, softmax, temperature)
    return offsets, columns


def affinity(squared: Tensor, softmax: bool, temperature: float) -> Tensor:
    """Unnormalised weights of a row: exp((K − 1) / T) or K^(1/T) with K = exp(−½ ‖z_i − z_j‖²).

    An element's affinity to itself is one at any temperature, so that row sums neither overflow nor vanish.

    >>> affinity(torch.tensor([0.0, 2.0]), False, 1.0), affinity(torch.tensor([0.0, 2.0]), True, 1.0)
    (tensor([1.0000, 0.3679]), tensor([1.0000, 0.5315]))
    """
    if softmax:
        return ((-0.5 * squared).expm1() / temperature).exp()
    return (squared * (-0.5 / temperature)).exp()


def check_search(search: str) -> None:
    """Raise if the search is unknown or its package is not installed."""
    if search not in get_args(Search):
        raise ValueError(f"search must be one of {list(get_args(Search))}, got {search!r}")
    if search == "faiss":
        load_faiss()


def load_faiss() -> Any:
    """Import faiss, or raise with the install command."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from its bindings
            import faiss
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "search='faiss' needs the package faiss-cpu: pip install 'setwise[neighbours]'"
        ) from error
    return faiss


@torch.library.custom_op("setwise::nearest", mutates_args=())
def _nearest(z: Tensor, mask: Tensor | None, k: int, search: str) -> Tensor:
    b, n, _ = z.shape
    real = z.new_ones(b, n, dtype=torch.bool) if mask is None else mask
    if search != "faiss" and b * n * n <= TILE:
        return _exact(z, real, k)
    index = torch.full((b, n, k), -1, device=z.device)
    for i, members in _members(real):
        find = _finder(search, z.device, len(members))
        places = find(z[i, members], min(k, len(members)))
        index[i, members, : places.shape[1]] = torch.where(places < 0, -1, members[places])
    return index


@torch.library.custom_op("setwise::pairs_above", mutates_args=())
def _pairs_above(
    z: Tensor, mask: Tensor | None, delta: float, softmax: bool, temperature: float
) -> tuple[Tensor, Tensor]:
    b, n, _ = z.shape
    real = z.new_ones(b, n, dtype=torch.bool) if mask is None else mask
    if b * n * n <= TILE:
        sets, rows, columns = _above(z, real, delta, softmax, temperature)
        rows, columns = n * sets + rows, n * sets + columns
    else:
        pairs = [torch.empty(2, 0, dtype=torch.long, device=z.device)]
        for i, members in _members(real):
            alone = z[i, members].unsqueeze(0)
            _, *ends = _above(alone, torch.ones_like(alone[..., 0]).bool(), delta, softmax, temperature)
            pairs.append(n * i + members[torch.stack(ends)])
        rows, columns = torch.cat(pairs, dim=1)
    offsets = torch.zeros(b * n + 1, dtype=torch.long, device=z.device)
    offsets[1:] = rows.bincount(minlength=b * n).cumsum(0)
    return offsets, columns.contiguous()


@_nearest.register_fake
def _(z: Tensor, mask: Tensor | None, k: int, search: str) -> Tensor:
    return z.new_empty(*z.shape[:2], k, dtype=torch.long)


@_pairs_above.register_fake
def _(
    z: Tensor, mask: Tensor | None, delta: float, softmax: bool, temperature: float
) -> tuple[Tensor, Tensor]:
    edges = torch.library.get_ctx().new_dynamic_size()
    rows = z.shape[0] * z.shape[1]
    return z.new_empty(rows + 1, dtype=torch.long), z.new_empty(edges, dtype=torch.long)


def _members(real: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The index of each non-empty set, and the places of its real elements."""
    for i, row in enumerate(real):
        members = row.nonzero().squeeze(1)
        if len(members):
            yield i, members


def _finder(search: str, device: torch.device, n: int) -> Callable[[Tensor, int], Tensor]:
    """The function that finds the k nearest elements within one set."""
    if search == "faiss":
        return _approximate
    if search == "auto" and n > EXACT and device.type == "cpu":
        try:
            load_faiss()
        except ModuleNotFoundError:
            return _exact_alone
        return _approximate
    return _exact_alone


def _tiles(z: Tensor, real: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows, and ‖z_j‖² − 2 ⟨z_i, z_j⟩ between them and all elements: infinite if j is padding."""
    b, n, _ = z.shape
    norms = z.square().sum(-1).masked_fill(~real, torch.inf).unsqueeze(1)
    step = max(1, TILE // max(1, b * n))
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        with torch.autocast(z.device.type, enabled=False):
            tile = torch.baddbmm(norms, z[:, rows], z.mT, alpha=-2)
        yield rows, tile


def _exact(z: Tensor, real: Tensor, k: int) -> Tensor:
    """Compare all pairs; −∞ keeps an element first in its own row, +∞ marks padding."""
    index = torch.empty(*z.shape[:2], k, dtype=torch.long, device=z.device)
    for rows, distances in _tiles(z, real):
        distances[:, :, rows].diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        closest = distances.topk(k, largest=False)
        index[:, rows] = closest.indices.masked_fill_(closest.values == torch.inf, -1)
    return index.masked_fill_(~real.unsqueeze(-1), -1)


def _exact_alone(z: Tensor, k: int) -> Tensor:
    return _exact(z.unsqueeze(0), torch.ones_like(z[None, :, 0]).bool(), k)[0]


def _above(z: Tensor, real: Tensor, delta: float, softmax: bool, temperature: float) -> tuple[Tensor, ...]:
    """Set, row and column of the kept pairs; ordered by row for a single set or tile."""
    kept_pairs = [torch.empty(0, 3, dtype=torch.long, device=z.device)]
    norms = z.square().sum(-1, keepdim=True)
    for rows, distances in _tiles(z, real):
        distances += norms[:, rows]
        distances[:, :, rows].diagonal(dim1=1, dim2=2).fill_(0)
        W = affinity(distances.relu_(), softmax, temperature).masked_fill_(~real.unsqueeze(1), 0)
        W /= W.sum(-1, keepdim=True)
        kept = (delta <= W) | (W.amax(-1, keepdim=True) <= W)
        kept &= real[:, rows].unsqueeze(-1)
        place = kept.nonzero()
        place[:, 1] += rows.start
        kept_pairs.append(place)
    return torch.cat(kept_pairs).unbind(1)


def _approximate(z: Tensor, k: int) -> Tensor:
    """Search by a navigable graph (HNSW), widened until the recall suffices."""
    faiss = load_faiss()
    points = z.float().contiguous().cpu().numpy()
    n = len(points)
    index = faiss.IndexHNSWFlat(points.shape[1], 24)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # several threads would build a different index each time
    try:
        index.add(points)
    finally:
        faiss.omp_set_num_threads(threads)
    sample = points[:: max(1, n // 256)]
    true = points[faiss.knn(sample, points, k)[1]]
    farthest = ((sample[:, None] - true) ** 2).sum(-1).max(1, keepdims=True) * (1 + 1e-5)
    width = max(32, 2 * k)
    while True:
        index.hnsw.efSearch = width
        if (index.search(sample, k)[0] <= farthest).mean() >= RECALL:
            break
        width *= 2
        if width > max(256, n // 256):  # as slow as all pairs
            return _exact_alone(z, k)
    neighbours = torch.from_numpy(index.search(points, k)[1]).to(z.device)
    own = torch.arange(n, device=z.device).unsqueeze(1)
    others = neighbours.gather(1, (neighbours == own).int().argsort(dim=1, stable=True))[:, : k - 1]
    return torch.cat([own, others], dim=1)
