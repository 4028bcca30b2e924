"""Folds for cross-validation: the same share of every class in each, and no group in two of them."""

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from setwise.training.seeding import generator


def stratified_folds(
    labels: Int[Tensor, " bags"] | Int[np.ndarray, " bags"] | Sequence[int],
    k: int,
    *,
    seed: int,
    groups: Sequence[Hashable] | Shaped[Tensor, " bags"] | Shaped[np.ndarray, " bags"] | None = None,
) -> Int[Tensor, " bags"]:
    """The fold of each bag, from 0 to k - 1, drawn at random.

    The numbers of bags of a class differ by at most one between folds, and so do the sizes of the folds.
    With groups, that is so as far as they allow. They come one after the other, the largest first and
    otherwise at random, each to the fold with which Σ_f Σ_c (share of class c that is in fold f)² grows
    least; all bags together count as a class too, so that this keeps the sizes even.

    Args:
        labels: the class of each bag. A class of fewer than k bags is missing in some folds.
        k: how many folds.
        seed: tells one split from another.
        groups: what each bag belongs to and must not be torn from, such as its patient or slide.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> folds = stratified_folds(labels, 2, seed=0)
    >>> [labels[folds == fold].tolist() for fold in (0, 1)]
    [[0, 0, 1], [0, 0, 1]]
    >>> folds = stratified_folds(labels, 2, seed=0, groups=["a", "a", "b", "b", "a", "b"])
    >>> [labels[folds == fold].tolist() for fold in (0, 1)]
    [[0, 0, 1], [0, 0, 1]]
    """
    labels = torch.as_tensor(labels)
    if labels.dim() != 1:
        raise ValueError(f"labels must be one a bag, got {list(labels.shape)}")
    bags = len(labels)
    if k < 2:
        raise ValueError(f"k must be at least 2, got {k}")
    if k > bags:
        raise ValueError(f"k must be at most {bags}, the number of bags, got {k}")
    group, members = _numbered(range(bags) if groups is None else groups, bags)
    if members < k:
        raise ValueError(f"groups must be at least {k}, one a fold, got {members}")

    classes, number = labels.unique(return_inverse=True)
    counts = torch.zeros(members, len(classes) + 1, dtype=torch.int64)  # of each group: by class, and all
    counts.index_put_((group, number.cpu()), torch.ones(bags, dtype=torch.int64), accumulate=True)
    counts[:, -1] = counts.sum(1)

    random = generator("folds", seed)
    shuffled = torch.randperm(members, generator=random).tolist()
    # Groups of the same classes follow each other, so that bags on their own are dealt out like cards.
    order = sorted(shuffled, key=lambda i: (-int(counts[i, -1]), counts[i].tolist()))
    weight = counts.sum(0).double() ** -2
    there = torch.zeros(k, len(classes) + 1, dtype=torch.int64)
    fold_of = torch.empty(members, dtype=torch.int64)
    for i in order:
        growth = (there * (counts[i] * weight)).sum(1)  # half of what the squares grow by, but for a constant
        even = growth == growth.min()
        fold = int(there[:, -1].masked_fill(~even, bags + 1).argmin())
        there[fold] += counts[i]
        fold_of[i] = fold
    return torch.randperm(k, generator=random)[fold_of][group]


def _numbered(
    groups: Sequence[Hashable] | Shaped[Tensor, " bags"] | Shaped[np.ndarray, " bags"], bags: int
) -> tuple[Int[Tensor, " bags"], int]:
    """The number of each bag's group, and how many groups there are."""
    if len(groups) != bags:
        raise ValueError(f"groups must be {bags}, one a bag, got {len(groups)}")
    # A tensor is hashed by which object it is, not by its value.
    plain = [group.item() if isinstance(group, Tensor) else group for group in groups]
    for i, group in enumerate(plain):
        if group != group:
            raise ValueError(f"groups must be known for every bag, got {group} for bag {i}")
    number = {group: i for i, group in enumerate(dict.fromkeys(plain))}
    return torch.tensor([number[group] for group in plain]), len(number)
