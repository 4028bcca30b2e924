"""Counting unique characters: how many different characters are among six to ten drawings?

The paper's second experiment (table 1, figure 3, appendix): four convolutions with pooling map a drawing of
105 × 105 pixels to 160 features, three blocks with a 256 / 512 deep kernel pass messages, and the maximum
over the set gives the rate of a Poisson distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import lgamma, log
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import setwise as sw
from setwise.experiments.base import ExampleSet, Experiment, random_indices
from setwise.training.config import Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Generator, Tensor, nn

    from setwise.experiments.data.characters import Characters, CharacterSets, Split
    from setwise.inspection.explorer.content import ShownSet
    from setwise.training.loop import Batch, Batches


VALIDATION_SETS, VALIDATION_POOLS = 2_000, 8
TEST_BATCH = 100
SIZES = range(6, 11)
EXAMPLE = (9, 3)  # numbers of images and characters of the example set in the paper


@dataclass(frozen=True)
class Counting(Experiment):
    """Count the different characters in sets of handwritten characters."""

    split: Literal["image", "character"] = "image"
    """Test on new drawings of the training characters (the paper), or on new characters (Set Transformer)."""
    batch: Literal["pool", "fresh"] = "pool"
    """Draw the sets of a batch from a pool of drawings (pool) or from all drawings (fresh, the paper)."""
    sets: int = 128
    """Sets per batch; 32 in the paper."""
    pool_characters: int = 16
    """Characters in the pool of a batch, with ten drawings each."""
    distortion: float = 0.0
    """Strength of random distortions of training drawings; 0 in the paper."""
    rotation: bool = False
    """Rotate each character of a pool by a random multiple of 90° to create new ones; not in the paper."""
    test_sets: int = 10_000
    """Number of test sets."""
    training: Training = field(
        default_factory=lambda: Training(
            steps=20_000, optimizer="adamw", lr=1e-3, weight_decay=0.3, schedule="cosine", evaluations=40
        )
    )
    """Training configuration of each row; the paper: 200,000 batches of 32 sets, learning rate 0.0001."""
    threads: int | None = 1
    """CPU threads; two parallel runs with one thread each are faster than one run with two."""

    name: ClassVar[str] = "counting"
    varied: ClassVar[str] = "split"
    ROWS: ClassVar[Mapping[str, str]] = {
        "deepsets-mean": "DeepSets w/ mean ET",
        "deepsets-max": "DeepSets w/ max ET",
        "set-transformer": "Set Transformer",
        "v-dmps-ug": "V-DMPS w/ UG",
        "d-dmps-ldc-ug": "D-DMPS w/ LDC & UG",
        "v-dmps": "V-DMPS",
        "r-dmps": "R-DMPS",
        "d-dmps-fdc": "D-DMPS w/ FDC",
        "d-dmps-ldc": "D-DMPS w/ LDC",
        "distinct": "Distinct DMPS (ours)",
        "distinct-wide": "Distinct DMPS, wide (ours)",
        "softmax-k": "D-DMPS w/ FDC, softmax(K)",
        "sum-pooling": "D-DMPS w/ FDC, sum pooling",
        "xavier": "D-DMPS w/ FDC, Xavier start",
        "fixed-sigma": "D-DMPS w/ FDC, σ starts at 1/√2",
        "two-layers": "D-DMPS w/ FDC, two layers per block",
        "fresh": "D-DMPS w/ FDC, the paper's batches",
    }
    ABLATION: ClassVar[tuple[str, ...]] = (
        "softmax-k", "sum-pooling", "xavier", "fixed-sigma", "two-layers", "fresh",
    )  # fmt: skip
    """Rows that change one part of D-DMPS w/ FDC."""
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]] = {
        "deepsets-mean": (0.4617, 0.0076),
        "deepsets-max": (0.4359, 0.0077),
        "set-transformer": (0.6037, 0.0075),
        "v-dmps-ug": (0.1357, 0.0),
        "d-dmps-ldc-ug": (0.4661, 0.0085),
        "v-dmps": (0.6446, 0.0174),
        "r-dmps": (0.6600, 0.0103),
        "d-dmps-fdc": (0.6748, 0.0120),
        "d-dmps-ldc": (0.6674, 0.0080),
        "distinct": None,
        "distinct-wide": None,
        **dict.fromkeys(ABLATION),
    }
    COLUMNS: ClassVar[Mapping[str, str]] = {
        "accuracy_round": "Accuracy (rounded)",
        "weight_ratio": "Same / different",
        "kernel_same": "K same",
        "kernel_different": "K different",
        "graph.effective_neighbours": "Effective neighbours",
        "graph.sigma": "σ",
        "graph.gamma": "γ",
        "config.training.weight_decay": "Weight decay",
    }

    def __post_init__(self) -> None:
        """Validate the fields."""
        super().__post_init__()
        for name, least in (("sets", 1), ("pool_characters", 10), ("test_sets", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.rotation and self.batch != "pool":
            raise ValueError(f"rotation requires batch='pool', got batch={self.batch!r}")
        if not 0 <= self.distortion <= 1:
            raise ValueError(f"distortion must lie between 0 and 1, got {self.distortion}")
        for name, choices in (("split", ("image", "character")), ("batch", ("pool", "fresh"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be {' or '.join(choices)}, got {getattr(self, name)!r}")

    @property
    def data(self) -> str:
        """Name of the data set that is used."""
        return _characters().name

    def task(self, row: str) -> sw.Count:
        """Poisson regression as in the paper, or robust regression for distinct rows; decoded by the mode."""
        return sw.tasks.RobustCount() if row.startswith("distinct") else sw.Count()

    def model(self, row: str, seed: int) -> nn.Module:
        """The appendix's architecture with the blocks, graph and pool of the row."""
        from setwise.experiments.counting_models import build

        first, _ = self.batches(seed)(1)
        return build(row, seed, first)

    def batches(self, seed: int) -> Batches:
        """Sets of training drawings."""
        part = self._sets("train")

        def batch(step: int) -> Batch:
            generator = sw.training.generator("counting", "train", seed, step)
            if self.batch == "fresh":
                batch, y = part.batch(self.sets, generator)
            else:
                batch, y = part.pool_batch(self.sets, generator, characters=self.pool_characters)
            if self.rotation:
                batch = _rotate_characters(batch, generator, self.pool_characters)
            return _distort_batch(batch, generator, self.distortion) if self.distortion else batch, y

        return batch

    def validation(self, seed: int) -> list[Batch]:
        """Sets of held-out training drawings, the same for every seed."""
        part = self._sets("validation")
        return [
            part.pool_batch(
                VALIDATION_SETS // VALIDATION_POOLS,
                sw.training.generator("counting", "validation", i),
                characters=min(26, len(part.part)),
            )
            for i in range(VALIDATION_POOLS)
        ]

    def test(self, model: nn.Module, seed: int) -> dict[str, Any]:
        """Accuracy of both decodings, graph weights between equal and different characters, two examples."""
        import torch

        from setwise.training.loop import outputs

        part, batches = self._sets("test"), self._test_sets()
        out, y = outputs(
            model, ((sw.SetBatch(part.images(numbers), mask), y) for numbers, mask, y in batches)
        )
        scores: dict[str, Any] = dict(sw.Count().score(out, y))
        if isinstance(model, sw.DMPS) and isinstance(model.graph, sw.LatentGraph):
            numbers = torch.cat([numbers for numbers, _, _ in batches])
            scores |= _graph_scores(model, part, numbers, out, y)
        return scores

    def example_sets(self, seed: int, count: int, generator: Generator) -> list[ExampleSet]:
        """Sets of test drawings, coloured by character."""
        part = self._sets("test")
        sets = [
            (row[real], int(y)) for batch in self._test_sets() for row, real, y in zip(*batch, strict=True)
        ]
        return [
            ExampleSet(part.images(numbers), y, partial(_shown_set, i, numbers))
            for i in random_indices(len(sets), count, generator)
            for numbers, y in [sets[i]]
        ]

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """Figure 3 (latent graphs over nine drawings), and loss and effective neighbours during training."""
        figures = {}
        if with_examples := [r for r in results if "examples" in r]:
            figures["counting-graph"] = _graph_figure(with_examples, cls.ROWS)
        if with_history := [r for r in results if "history" in r]:
            figures["counting-training"] = _training_figure(with_history, cls.ROWS)
        return figures

    def _test_sets(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Drawing numbers, mask and count of each batch of test sets."""
        part = self._sets("test")
        return [
            part.sample(min(TEST_BATCH, self.test_sets - i), sw.training.generator("counting", "test", i))
            for i in range(0, self.test_sets, TEST_BATCH)
        ]

    def _sets(self, name: Literal["train", "validation", "test"]) -> CharacterSets:
        from setwise.experiments.data.characters import CharacterSets

        return CharacterSets(_characters(), getattr(_split(self.split), name))


def _rotate_characters(batch: sw.SetBatch, generator: Generator, characters: int) -> sw.SetBatch:
    """Rotate all drawings of a character by the same random multiple of 90°."""
    import torch

    assert isinstance(batch.x, sw.Shared)
    values = batch.x.values.unflatten(0, (characters, -1))
    turns = torch.randint(4, (characters,), generator=generator)
    for turn in range(1, 4):
        values[turns == turn] = values[turns == turn].rot90(turn, (-2, -1))
    return sw.SetBatch(sw.Shared(values.flatten(0, 1), batch.x.index), batch.mask)


def _distort_batch(batch: sw.SetBatch, generator: Generator, strength: float) -> sw.SetBatch:
    """Distort each drawing of the batch once."""
    from setwise.experiments.data.distortion import distort

    if isinstance(batch.x, sw.Shared):
        values = distort(batch.x.values, generator, strength=strength)
        return sw.SetBatch(sw.Shared(values, batch.x.index), batch.mask)
    images = distort(batch.x.flatten(0, 1), generator, strength=strength)
    return sw.SetBatch(images.view_as(batch.x), batch.mask)


@cache
def _characters() -> Characters:
    from setwise.experiments.data.omniglot import load_characters

    return load_characters()


@cache
def _split(by: str) -> Split:
    from setwise.experiments.data.characters import split_by_character, split_by_image

    return {"image": split_by_image, "character": split_by_character}[by](_characters())


def _shown_set(i: int, numbers: Tensor) -> ShownSet:
    """Black drawings on white, in a grid until a graph layout is known."""
    from setwise.inspection.explorer.content import ShownSet
    from setwise.inspection.explorer.layout import grid

    characters = _characters()
    names = [characters.labels[number // characters.drawings] for number in numbers.tolist()]
    return ShownSet(
        name=f"set {i}",
        kind="images",
        places=grid(len(numbers)),
        elements=tuple(
            f"{name}, drawing {number % characters.drawings + 1}"
            for name, number in zip(names, numbers.tolist(), strict=True)
        ),
        groups=tuple(names),
        images=255 * (1 - characters.pixels(numbers).numpy()),
    )


def _graph_scores(
    model: sw.DMPS, part: CharacterSets, numbers: Tensor, out: Tensor, y: Tensor
) -> dict[str, Any]:
    """Mean weight and kernel between drawings of equal and different characters; two example graphs."""
    import torch

    mask = numbers >= 0
    graphs = [
        _kernel_and_weights(model, part.images(chunk), real)
        for chunk, real in zip(numbers.split(TEST_BATCH), mask.split(TEST_BATCH), strict=True)
    ]
    K, W = (torch.cat(matrices) for matrices in zip(*graphs, strict=True))
    character = numbers // part.characters.drawings
    pair = mask.unsqueeze(1) & mask.unsqueeze(2) & ~torch.eye(mask.shape[1], dtype=torch.bool)
    same = character.unsqueeze(1) == character.unsqueeze(2)
    scores = {
        "weight_ratio": (W[pair & same].mean() / W[pair & ~same].mean()).item(),
        "kernel_same": K[pair & same].mean().item(),
        "kernel_different": K[pair & ~same].mean().item(),
    }

    rate = out.squeeze(1).exp()
    candidates = (mask.sum(1) == EXAMPLE[0]) & (y == EXAMPLE[1])
    right = sw.Count(decode="round").predict(out) == y
    examples = {}
    for name, chosen in (("right", candidates & right), ("wrong", candidates & ~right)):
        if chosen.any():
            i = int(chosen.nonzero()[0])
            real = mask[i]
            examples[name] = {
                "drawings": numbers[i, real].tolist(),
                "weights": [[round(w, 5) for w in row] for row in W[i][real][:, real].tolist()],
                "count": int(y[i]),
                "rate": round(rate[i].item(), 3),
            }
    return scores | {"examples": examples}


def _kernel_and_weights(model: sw.DMPS, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Kernel K and weights W of a batch of sets."""
    import torch

    assert isinstance(model.graph, sw.LatentGraph)
    model.eval()
    with torch.no_grad():
        device = next(model.parameters()).device
        features = model.encoder(x.to(device), mask.to(device))
        log_K = model.graph.log_kernel(features, mask.to(device))
        return log_K.exp().float().cpu(), model.graph.normalize(log_K, mask.to(device)).float().cpu()


def _graph_figure(results: Sequence[Mapping[str, Any]], rows: Mapping[str, str]) -> Figure:
    """Figure 3: a set of nine drawings of three characters, predicted correctly, and another, wrongly."""
    import torch
    from matplotlib.figure import Figure

    from setwise.inspection.plots import latent_graph

    characters, data = _characters(), results[0]["data"]
    if not data.startswith(characters.name):
        raise FileNotFoundError(f"the figure needs the drawings of {data!r}, found only {characters.name!r}")
    names = [row for row in ("d-dmps-fdc", "distinct-wide") if any(r["row"] == row for r in results)]
    chosen = [
        max((r for r in results if r["row"] == row), key=lambda r: (r["budget"]["steps"], -r["seed"]))
        for row in names or [results[0]["row"]]
    ]
    figure = Figure(figsize=(9, 4.8 * len(chosen)), layout="constrained")
    for line, result in zip(figure.subfigures(len(chosen), 1, squeeze=False)[:, 0], chosen, strict=True):
        line.suptitle(f"{rows[result['row']]}, {result['budget']['steps']:,} batches")
        for ax, name in zip(line.subplots(1, 2), ("right", "wrong"), strict=True):
            ax.set_axis_off()
            if (example := result["examples"].get(name)) is None:
                continue
            drawings = torch.tensor(example["drawings"])
            latent_graph(
                example["weights"],
                list(characters.pixels(drawings).numpy()),
                groups=(drawings // characters.drawings).tolist(),
                ax=ax,
            )
            outcome = "Correct" if name == "right" else "Wrong"
            ax.set_title(f"{outcome} prediction: {example['count']} characters, λ = {example['rate']:.2f}")
    return figure


def _minimum_loss() -> float:
    """Expected Poisson loss if the predicted rate equals each set's count: E[c − c log c + log c!]."""
    return fmean(fmean(c - c * log(c) + lgamma(c + 1) for c in range(1, n + 1)) for n in SIZES)


def _training_figure(results: Sequence[Mapping[str, Any]], rows: Mapping[str, str]) -> Figure:
    """Validation loss and effective neighbours during training, for the longest run of each row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    loss, neighbours = figure.subplots(1, 2)
    for row, label in rows.items():
        runs = [r for r in results if r["row"] == row and r["config"]["split"] == "image"]
        if not runs or row.startswith("distinct"):  # trained with a different loss
            continue
        longest = max(runs, key=lambda r: (r["budget"]["steps"], -r["seed"]))
        history = longest["history"]
        steps = [entry["step"] for entry in history]
        (line,) = loss.plot(steps, [entry["validation_loss"] for entry in history], label=label)
        if "effective_neighbours" in history[-1]:
            values = [entry["effective_neighbours"] for entry in history]
            neighbours.plot(steps, values, color=line.get_color())
    minimum, uniform = _minimum_loss(), geometric_mean(SIZES)
    for ax, height, text in (
        (loss, minimum, "rate = true count"),
        (neighbours, 1, "identity graph"),
        (neighbours, uniform, "uniform graph"),
    ):
        ax.axhline(height, color="0.7", linewidth=1)
        place = ax.get_yaxis_transform()
        ax.text(0.99, height, text, color="0.5", ha="right", va="bottom", fontsize="small", transform=place)
    loss.set(xlabel="batches", ylabel="validation loss", title="Poisson loss")
    neighbours.set(xlabel="batches", ylabel="effective neighbours", title="Learned graph")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return figure
