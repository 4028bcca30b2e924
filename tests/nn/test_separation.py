"""The learned graph separates drawings of different characters, from the counts of sets alone."""

import pytest
import torch
from torch import Tensor, nn

import setwise as sw
from setwise.experiments.data.characters import CharacterSets, split_by_image, synthetic_characters

SCRIPT = synthetic_characters(20)
SPLIT = split_by_image(SCRIPT, validation=0.0)
SIZES = (4, 6)


def counting_model() -> sw.DMPS:
    """D-DMPS of the counting experiment, σ at the median distance over a first batch."""
    first, *rest = (sw.nn.ConvPool(channels, 10) for channels in (1, 10, 10, 10))
    encoder = sw.nn.ElementEncoder(nn.Sequential(sw.nn.InkConvPool(first, rest[0]), *rest[1:], nn.Flatten()))
    model = sw.DMPS.build(
        160, 1, dim=160, hidden=(256, 512), activation="tanh", pool="max", encoder=encoder
    )  # fmt: skip
    sw.nn.initialize(model, sw.training.generator("weights", 1))
    batch, _ = batches(1)
    return model.initialize_bandwidth(batch.x, batch.mask)


def batches(step: int) -> tuple[sw.SetBatch, Tensor]:
    sets = CharacterSets(SCRIPT, SPLIT.train, SIZES)
    return sets.pool_batch(32, sw.training.generator("separation", step), characters=8, drawings=6)


def ratios(model: sw.DMPS) -> tuple[float, float]:
    """Mean kernel and mean weight between drawings of one character, divided by those of two characters.

    The drawings are other ones than those of the training.
    """
    sets = CharacterSets(SCRIPT, SPLIT.test, SIZES)
    numbers, mask, _ = sets.sample(100, sw.training.generator("separation", "test"))
    with torch.no_grad():
        log_K = model.graph.log_kernel(model.encoder(sets.images(numbers), mask), mask)
        W = model.graph.normalize(log_K, mask)
    character = numbers // SCRIPT.drawings
    same = character.unsqueeze(1) == character.unsqueeze(2)
    pair = mask.unsqueeze(1) & mask.unsqueeze(2) & ~torch.eye(mask.shape[1], dtype=torch.bool)
    return tuple((A[pair & same].mean() / A[pair & ~same].mean()).item() for A in (log_K.exp(), W))


def test_a_few_steps_of_counting_separate_characters(caplog: pytest.LogCaptureFixture) -> None:
    """With W = softmax(K) and Xavier's start, the ratio of the weights is 1.3 and that of the kernel 2."""
    model = counting_model()
    assert max(ratios(model)) < 2
    history = sw.fit(model, sw.Count(), batches, sw.Training(steps=75, lr=1e-3, evaluations=3))
    kernel, weight = ratios(model)
    assert kernel > 5
    assert weight > 5
    health = history.metrics[-1]
    assert 0.1 < health["evenness"] < 0.8
    assert health["effective_neighbours"] > 1.2
    assert health["saturated"] < 0.2
    assert not [r for r in caplog.records if "collapsed" in r.getMessage()]
