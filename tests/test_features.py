"""Counting through a trained encoder."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import setwise as sw
from setwise.experiments import features, runner
from setwise.experiments.features import Features
from setwise.train import load_checkpoint
from tests.test_counting import SMALL, run, stand_in  # noqa: F401


@pytest.fixture
def experiment(tmp_path: Path, stand_in: object) -> Features:  # noqa: F811
    """With the encoder of a short run."""
    features._features.cache_clear()
    run(tmp_path, "distinct")
    (path,) = (tmp_path / "runs").rglob("checkpoint.pt")
    return Features(checkpoint=str(path), sets=6, test_sets=120, training=sw.Training(steps=3, evaluations=1))


def test_elements_are_what_the_encoder_makes_of_the_drawings(experiment: Features) -> None:
    model = SMALL.model("distinct", 0)
    model.load_state_dict(load_checkpoint(Path(experiment.checkpoint))["model"])
    for batch in ("fresh", "pool"):
        same = {"batch": batch, "pool_characters": 10}
        encoded, y = replace(experiment, **same).batches(0)(1)
        drawn, count = replace(SMALL, **same).batches(0)(1)
        with torch.no_grad():
            expected = model.encoder(drawn.x, drawn.mask)
        assert torch.allclose(encoded.elements[encoded.mask], expected[drawn.mask], atol=1e-6)
        assert torch.equal(y, count)
    fresh, _ = experiment.batches(0)(1)
    assert (fresh.elements[~fresh.mask] == 0).all()


def test_a_row_is_trained_without_its_encoder(experiment: Features, tmp_path: Path) -> None:
    result = runner.run(
        experiment, "d-dmps-ldc", 0, out=tmp_path / "runs", results=tmp_path / "results", show=False
    )
    assert result["experiment"] == "features"
    assert result["data"] == "stand-in: drawn strokes, encoded"
    assert result["weight_ratio"] > 1
    assert not any(name.startswith("encoder") for name, _ in experiment.model("v-dmps", 0).named_parameters())
    assert (tmp_path / "results" / "features" / "d-dmps-ldc_split-image_steps-3_seed-0.json").exists()


def test_a_missing_or_other_checkpoint(experiment: Features, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none.pt is missing: train an encoder with 'setwise run"):
        replace(experiment, checkpoint=str(tmp_path / "none.pt")).batches(0)
    torch.save({"model": sw.MLP(3, 4).state_dict()}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other.pt is not of a counting run: its encoder is another one"):
        replace(experiment, checkpoint=str(tmp_path / "other.pt")).batches(0)
