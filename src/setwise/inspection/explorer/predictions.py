"""What a fitted model says of sets, and how often that is so: of classes, of several labels, of numbers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped

from setwise.estimators.classifier import SetClassifier
from setwise.estimators.regressor import SetRegressor
from setwise.inspection.explorer.content import Confusion, Table
from setwise.inspection.explorer.sections import confusion, likeliest
from setwise.io.readers import LabelledSets
from setwise.tasks import Binary, Labels, Regression, roc_auc

Estimator = SetClassifier | SetRegressor
SEEN = "Sets that the model was trained on are easier for it than new ones."


class Verdict(NamedTuple):
    """What a model says of a set, and whether that is so."""

    said: str
    truth: str | None = None
    correct: bool | None = None
    scores: tuple[tuple[str, float], ...] = ()
    output: int = 0
    """The raw output that it was said by."""
    sign: float = 1.0
    """−1 where what was said is what speaks against that output."""


class Judged(NamedTuple):
    """What a model says of all sets, and how often that is so."""

    verdicts: list[Verdict]
    table: Table | None = None
    confusion: Confusion | None = None


def judge(estimator: Estimator, data: LabelledSets) -> Judged:
    """Let a model say what sets are, and compare that with their labels if they have any."""
    if isinstance(estimator, SetRegressor):
        return _numbers(estimator, data)
    return _labels(estimator, data) if isinstance(estimator.task_, Labels) else _classes(estimator, data)


def _classes(estimator: SetClassifier, data: LabelledSets) -> Judged:
    """One class a set: which, and how often each was found."""
    names = [class_name(value) for value in estimator.classes_]
    p = estimator.predict_proba(data.sets)
    numbers = p.argmax(1).tolist()
    binary = isinstance(estimator.task_, Binary)
    verdicts = [
        Verdict(
            said=names[number],
            scores=likeliest(row, names),
            output=0 if binary else number,
            sign=-1.0 if binary and not number else 1.0,
        )
        for number, row in zip(numbers, p.tolist(), strict=True)
    ]
    if data.labels is None:
        return Judged(verdicts)
    if data.labels.ndim > 1:
        raise ValueError(f"expected one label for each set, got {data.labels.shape[1]}")
    truth, said = [class_name(value) for value in data.labels], [names[number] for number in numbers]
    verdicts = [
        v._replace(truth=true, correct=v.said == true) for v, true in zip(verdicts, truth, strict=True)
    ]
    known = [*names, *sorted({*truth} - {*names})]
    is_true, is_said = (np.array(some)[:, None] == np.array(known) for some in (truth, said))
    p = np.pad(p, ((0, 0), (0, len(known) - len(names))))
    return Judged(verdicts, _shares("Class", known, is_true, is_said, p), confusion(truth, said, known))


def _labels(estimator: SetClassifier, data: LabelledSets) -> Judged:
    """Several labels at a time: which, and how often each was found."""
    names = [class_name(value) for value in estimator.classes_]
    p = estimator.predict_proba(data.sets)
    said = estimator.decide(p).astype(bool)
    verdicts = [
        Verdict(_joined(row, names), scores=likeliest(shares, names), output=int(np.argmax(shares)))
        for row, shares in zip(said, p.tolist(), strict=True)
    ]
    if data.labels is None:
        return Judged(verdicts)
    if data.labels.shape != said.shape:
        raise ValueError(f"expected {said.shape[1]} labels that are 0 or 1 for each set, got others")
    truth = data.labels.astype(float) > 0.5
    verdicts = [
        v._replace(truth=_joined(true, names), correct=bool((true == row).all()))
        for v, true, row in zip(verdicts, truth, said, strict=True)
    ]
    return Judged(verdicts, _shares("Label", names, truth, said, p))


def _numbers(estimator: SetRegressor, data: LabelledSets) -> Judged:
    """Numbers: how far off they are."""
    said = np.asarray(estimator.predict(data.sets), dtype=float)
    verdicts = [Verdict(_number(value)) for value in said]
    if data.labels is None:
        return Judged(verdicts)
    try:
        truth = data.labels.astype(float).reshape(said.shape)
    except ValueError as error:
        expected = "a number" if said.ndim == 1 else f"{said.shape[1]} numbers"
        raise ValueError(f"expected {expected} for each set as label, got others: {error}") from error
    verdicts = [v._replace(truth=_number(true)) for v, true in zip(verdicts, truth, strict=True)]
    out, y = (torch.from_numpy(values.reshape(len(values), -1)) for values in (said, truth))
    scores = Regression().score(out, y)
    lines = (
        ("R²", f"{scores['r2']:.4f}"),
        ("Mean absolute error", f"{scores['absolute_error']:.4g}"),
        ("Root of the mean squared error", f"{scores['loss'] ** 0.5:.4g}"),
        ("Standard deviation of the labels", f"{truth.std():.4g}"),
        ("Sets", f"{len(truth):,}"),
    )
    return Judged(verdicts, Table(("Score", "Value"), lines, SEEN))


def _shares(
    what: str,
    names: Sequence[str],
    truth: Bool[np.ndarray, "b k"],
    said: Bool[np.ndarray, "b k"],
    p: Float[np.ndarray, "b k"],
) -> Table:
    """How often sets of each class or label were found, and how often it was right to name it."""
    auc = [_auc(p[:, k], truth[:, k]) for k in range(len(names))]
    known = [value for value in auc if value is not None]
    mean = sum(known) / len(known) if known else None
    lines = [("all", f"{len(truth):,}", _share((truth == said).all(1)), "—", _rounded(mean))]
    for k, name in enumerate(names):
        found, right = said[truth[:, k], k], truth[said[:, k], k]
        lines.append((name, f"{truth[:, k].sum():,}", _share(found), _share(right), _rounded(auc[k])))
    return Table((what, "Sets", "Right", "Precision", "AUC"), tuple(lines), SEEN)


def class_name(value: Any) -> str:
    """What to call a class: a whole number is the same whether it was read as one or not."""
    plain = value.item() if isinstance(value, np.generic) else value
    return str(int(plain)) if isinstance(plain, float) and plain.is_integer() else str(plain)


def _joined(which: Bool[np.ndarray, " k"], names: Sequence[str]) -> str:
    return ", ".join(name for name, there in zip(names, which, strict=True) if there) or "none"


def _number(value: Float[np.ndarray, "*k"] | float) -> str:
    return ", ".join(f"{number:.4g}" for number in np.atleast_1d(value))


def _auc(scores: Float[np.ndarray, " b"], truth: Bool[np.ndarray, " b"]) -> float | None:
    """Of sets with and without it; None where there are only the one or the other."""
    if truth.all() or not truth.any():
        return None
    return roc_auc(torch.from_numpy(scores), torch.from_numpy(truth).long())


def _share(hits: Shaped[np.ndarray, " some"]) -> str:
    return _rounded(float(hits.mean()) if hits.size else None)


def _rounded(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"
