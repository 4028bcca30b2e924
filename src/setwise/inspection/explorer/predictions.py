"""Predictions of a fitted model for sets, and their scores: classes, several labels, or numbers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped

from setwise.estimators.classifier import SetClassifier
from setwise.estimators.regressor import SetRegressor
from setwise.inspection.explorer.content import Confusion, Table
from setwise.inspection.explorer.sections import confusion_matrix, top_classes
from setwise.io.readers import LabelledSets
from setwise.tasks import Binary, Labels, Regression, roc_auc

Estimator = SetClassifier | SetRegressor
OPTIMISTIC = "Scores are optimistic if the model was trained on these sets."


class Prediction(NamedTuple):
    """The prediction for one set, and its label."""

    predicted: str
    label: str | None = None
    correct: bool | None = None
    scores: tuple[tuple[str, float], ...] = ()
    output: int = 0
    """Index of the raw output behind the prediction."""
    sign: float = 1.0
    """−1 if a low output favours the prediction."""


class Evaluation(NamedTuple):
    """The predictions for all sets, and their scores if labels are known."""

    predictions: list[Prediction]
    table: Table | None = None
    confusion: Confusion | None = None


def evaluate(estimator: Estimator, data: LabelledSets) -> Evaluation:
    """Predict sets, and compare the predictions with the labels if there are any."""
    if isinstance(estimator, SetRegressor):
        return _numbers(estimator, data)
    return _labels(estimator, data) if isinstance(estimator.task_, Labels) else _classes(estimator, data)


def _classes(estimator: SetClassifier, data: LabelledSets) -> Evaluation:
    """Evaluate predictions of one class per set."""
    names = [class_name(value) for value in estimator.classes_]
    p = estimator.predict_proba(data.sets)
    numbers = p.argmax(1).tolist()
    binary = isinstance(estimator.task_, Binary)
    predictions = [
        Prediction(
            predicted=names[number],
            scores=top_classes(row, names),
            output=0 if binary else number,
            sign=-1.0 if binary and not number else 1.0,
        )
        for number, row in zip(numbers, p.tolist(), strict=True)
    ]
    if data.labels is None:
        return Evaluation(predictions)
    if data.labels.ndim > 1:
        raise ValueError(f"expected one label per set, got {data.labels.shape[1]}")
    labels, predicted = [class_name(value) for value in data.labels], [names[number] for number in numbers]
    predictions = [
        one._replace(label=label, correct=one.predicted == label)
        for one, label in zip(predictions, labels, strict=True)
    ]
    known = [*names, *sorted({*labels} - {*names})]
    truth, chosen = (np.array(some)[:, None] == np.array(known) for some in (labels, predicted))
    p = np.pad(p, ((0, 0), (0, len(known) - len(names))))
    table = _class_scores("Class", known, truth, chosen, p)
    return Evaluation(predictions, table, confusion_matrix(labels, predicted, known))


def _labels(estimator: SetClassifier, data: LabelledSets) -> Evaluation:
    """Evaluate predictions of several labels per set."""
    names = [class_name(value) for value in estimator.classes_]
    p = estimator.predict_proba(data.sets)
    predicted = estimator.decide(p).astype(bool)
    predictions = [
        Prediction(_joined(row, names), scores=top_classes(scores, names), output=int(np.argmax(scores)))
        for row, scores in zip(predicted, p.tolist(), strict=True)
    ]
    if data.labels is None:
        return Evaluation(predictions)
    if data.labels.shape != predicted.shape:
        raise ValueError(
            f"expected labels 0 or 1 of shape {list(predicted.shape)}, got shape {list(data.labels.shape)}"
        )
    truth = data.labels.astype(float) > 0.5
    predictions = [
        one._replace(label=_joined(true, names), correct=bool((true == row).all()))
        for one, true, row in zip(predictions, truth, predicted, strict=True)
    ]
    return Evaluation(predictions, _class_scores("Label", names, truth, predicted, p))


def _numbers(estimator: SetRegressor, data: LabelledSets) -> Evaluation:
    """Evaluate predictions of one or several numbers per set."""
    predicted = np.asarray(estimator.predict(data.sets), dtype=float)
    predictions = [Prediction(_number(value)) for value in predicted]
    if data.labels is None:
        return Evaluation(predictions)
    try:
        truth = data.labels.astype(float).reshape(predicted.shape)
    except ValueError as error:
        expected = "one number" if predicted.ndim == 1 else f"{predicted.shape[1]} numbers"
        raise ValueError(f"expected {expected} per set as label: {error}") from error
    predictions = [one._replace(label=_number(true)) for one, true in zip(predictions, truth, strict=True)]
    out, y = (torch.from_numpy(values.reshape(len(values), -1)) for values in (predicted, truth))
    scores = Regression().score(out, y)
    rows = (
        ("R²", f"{scores['r2']:.4f}"),
        ("Mean absolute error", f"{scores['absolute_error']:.4g}"),
        ("Root mean squared error", f"{scores['loss'] ** 0.5:.4g}"),
        ("Standard deviation of the labels", f"{truth.std():.4g}"),
        ("Sets", f"{len(truth):,}"),
    )
    return Evaluation(predictions, Table(("Score", "Value"), rows, OPTIMISTIC))


def _class_scores(
    heading: str,
    names: Sequence[str],
    truth: Bool[np.ndarray, "b k"],
    predicted: Bool[np.ndarray, "b k"],
    p: Float[np.ndarray, "b k"],
) -> Table:
    """Recall, precision and AUC of each class or label; accuracy and mean AUC in the first row."""
    auc = [_auc(p[:, k], truth[:, k]) for k in range(len(names))]
    known = [value for value in auc if value is not None]
    mean = sum(known) / len(known) if known else None
    rows = [("all", f"{len(truth):,}", _fraction((truth == predicted).all(1)), "—", _rounded(mean))]
    for k, name in enumerate(names):
        recall, precision = _fraction(predicted[truth[:, k], k]), _fraction(truth[predicted[:, k], k])
        rows.append((name, f"{truth[:, k].sum():,}", recall, precision, _rounded(auc[k])))
    caption = f"The first row has the accuracy and the mean AUC. {OPTIMISTIC}"
    return Table((heading, "Sets", "Recall", "Precision", "AUC"), tuple(rows), caption)


def class_name(value: Any) -> str:
    """Name a class; 1 and 1.0 have the same name."""
    plain = value.item() if isinstance(value, np.generic) else value
    return str(int(plain)) if isinstance(plain, float) and plain.is_integer() else str(plain)


def _joined(which: Bool[np.ndarray, " k"], names: Sequence[str]) -> str:
    return ", ".join(name for name, present in zip(names, which, strict=True) if present) or "none"


def _number(value: Float[np.ndarray, "*k"] | float) -> str:
    return ", ".join(f"{number:.4g}" for number in np.atleast_1d(value))


def _auc(scores: Float[np.ndarray, " b"], truth: Bool[np.ndarray, " b"]) -> float | None:
    """The area under the ROC curve; None if only one class occurs."""
    if truth.all() or not truth.any():
        return None
    return roc_auc(torch.from_numpy(scores), torch.from_numpy(truth).long())


def _fraction(hits: Shaped[np.ndarray, " some"]) -> str:
    return _rounded(float(hits.mean()) if hits.size else None)


def _rounded(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"
