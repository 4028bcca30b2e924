"""The folds of the experiments `histology` and `mil`.

Their recorded results belong to these folds, which scikit-learn's splitters would not reproduce. Use
`sklearn.model_selection.StratifiedKFold` or `StratifiedGroupKFold` everywhere else.
"""

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
    """Assign each bag to one of k folds at random, stratified by class.

    Without groups, the folds differ by at most one bag per class and by at most one bag in size. With groups,
    a greedy algorithm assigns the groups in order of size, the largest first and ties in random order, to
    the fold that least increases Σ_f Σ_c (fraction of class c in fold f)². All bags together count as one
    more class, which balances the sizes of the folds.

    Args:
        labels: the class of each bag. A class of fewer than k bags is missing in some folds.
        k: number of folds.
        seed: random seed.
        groups: group of each bag, e.g. its patient or slide; a group never spans two folds.

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
        raise ValueError(f"labels must have one value per bag, got shape {list(labels.shape)}")
    bags = len(labels)
    if k < 2:
        raise ValueError(f"k must be at least 2, got {k}")
    if k > bags:
        raise ValueError(f"k must be at most {bags}, the number of bags, got {k}")
    group, members = _numbered(range(bags) if groups is None else groups, bags)
    if members < k:
        raise ValueError(f"expected at least {k} groups, one per fold, got {members}")

    classes, number = labels.unique(return_inverse=True)
    counts = torch.zeros(members, len(classes) + 1, dtype=torch.int64)  # per group: bags by class, all bags
    counts.index_put_((group, number.cpu()), torch.ones(bags, dtype=torch.int64), accumulate=True)
    counts[:, -1] = counts.sum(1)

    random = generator("folds", seed)
    shuffled = torch.randperm(members, generator=random).tolist()
    # Single bags are sorted by class, so that each class is spread evenly over the folds.
    order = sorted(shuffled, key=lambda i: (-int(counts[i, -1]), counts[i].tolist()))
    weight = counts.sum(0).double() ** -2
    assigned = torch.zeros(k, len(classes) + 1, dtype=torch.int64)
    fold_of = torch.empty(members, dtype=torch.int64)
    for i in order:
        growth = (assigned * (counts[i] * weight)).sum(1)  # half the increase of the sum, up to a constant
        even = growth == growth.min()
        fold = int(assigned[:, -1].masked_fill(~even, bags + 1).argmin())
        assigned[fold] += counts[i]
        fold_of[i] = fold
    return torch.randperm(k, generator=random)[fold_of][group]


def _numbered(
    groups: Sequence[Hashable] | Shaped[Tensor, " bags"] | Shaped[np.ndarray, " bags"], bags: int
) -> tuple[Int[Tensor, " bags"], int]:
    """The group of each bag as a number, and the number of groups."""
    if len(groups) != bags:
        raise ValueError(f"groups must have one value for each of {bags} bags, got {len(groups)}")
    # Tensors are hashed by identity, not by value.
    keys = [group.item() if isinstance(group, Tensor) else group for group in groups]
    for i, group in enumerate(keys):
        if group != group:
            raise ValueError(f"every bag must have a group, got {group} for bag {i}")
    number = {group: i for i, group in enumerate(dict.fromkeys(keys))}
    return torch.tensor([number[group] for group in keys]), len(number)
