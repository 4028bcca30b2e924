"""Classifying point clouds: which of forty things is it, by 100 or 1000 points of its surface?

The paper's third experiment (table 2, figure 4, and the appendix): FL(3, 512), three blocks with a 512 / 1024
deep kernel, a pool, FL(512, 40). `PointCloud` is the table; `Diffusion` is the study of γ between DeepSets
(γ = 0) and plain message passing (γ = 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import setwise as sw
from setwise.experiments.base import ExampleSet, Experiment, some
from setwise.experiments.contrast_model import contrast_dmps
from setwise.training.config import Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Generator, Tensor, nn

    from setwise.experiments.data.point_clouds import PointClouds
    from setwise.inspection.explorer.content import ShownSet
    from setwise.training.loop import Batch, Batches


DIM, HIDDEN = 512, (512, 1024)
TEST_BATCH = 100
ROUGHNESS_SHAPES = 200
EXAMPLES = ("airplane", "chair", "lamp", "guitar")
EXAMPLE_POINTS = 256
SHOWN = ("d-dmps-ldc", "contrast")


@dataclass(frozen=True)
class PointCloud(Experiment):
    """Tell the shapes of ModelNet40 apart by points on their surface."""

    points: int = 100
    """Points of a shape; the paper takes 100 and 1000."""
    few_points: int = 32
    """Points of a shape in the first part of the training, which makes it that much quicker."""
    few_share: float = 0.8
    """How large that part is, between 0 and 1; the paper has none."""
    sets: int = 32
    """Shapes in a batch."""
    start_points: int | None = None
    """Start from this row's finished run with so many points, in the same --out."""
    start_steps: int = 11_080
    """How many batches that run had."""
    training: Training = field(
        default_factory=lambda: Training(steps=11_080, lr=1e-3, schedule="cosine", evaluations=16)
    )
    """How each row is trained: by default on every shape 40 times."""
    threads: int | None = 1
    """CPU threads; two runs side by side gain more from two cores than one run does."""

    name: ClassVar[str] = "pointcloud"
    varied: ClassVar[str] = "points"
    ROWS: ClassVar[Mapping[str, str]] = {
        "deepsets-max": "DeepSets w/ max ET",
        "set-transformer": "Set Transformer (ISAB + PMA)",
        "set-transformer-pooling": "Set Transformer (ISAB + pooling)",
        "pointnet++": "PointNet++",
        "v-dmps": "V-DMPS",
        "r-dmps": "R-DMPS",
        "d-dmps-fdc": "D-DMPS w/ FDC",
        "d-dmps-ldc": "D-DMPS w/ LDC",
        "d-dmps-ldc-tanh": "D-DMPS w/ LDC, tanh of the logits",
        "contrast": "Contrast DMPS, local moments (ours)",
    }
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]] = {
        "deepsets-max": (0.82, 0.02),
        "set-transformer": (0.8454, 0.0144),
        "set-transformer-pooling": None,
        "pointnet++": None,
        "v-dmps": (0.8367, 0.0047),
        "r-dmps": (0.8475, 0.0036),
        "d-dmps-fdc": (0.8564, 0.0031),
        "d-dmps-ldc": (0.8571, 0.0062),
        "d-dmps-ldc-tanh": None,
        "contrast": None,
    }
    """With 100 points."""
    PAPER_1000: ClassVar[Mapping[str, tuple[float, float | None] | None]] = {
        "deepsets-max": (0.87, 0.01),
        "set-transformer": None,
        "set-transformer-pooling": (0.8915, 0.0144),
        "pointnet++": (0.907, None),
        "v-dmps": (0.8751, 0.0029),
        "r-dmps": (0.8935, 0.0016),
        "d-dmps-fdc": (0.8783, 0.0032),
        "d-dmps-ldc": (0.8798, 0.0020),
        "d-dmps-ldc-tanh": None,
        "contrast": None,
    }
    """With 1000 points."""
    COLUMNS: ClassVar[Mapping[str, str]] = {"class_accuracy": "Mean over classes"}

    def __post_init__(self) -> None:
        """Refuse absurd values."""
        super().__post_init__()
        for name in ("points", "few_points", "sets", "start_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.few_share <= 1:
            raise ValueError(f"few_share must lie between 0 and 1, got {self.few_share}")
        if self.start_points is not None and not 1 <= self.start_points < self.points:
            expected = f"between 1 and {self.points - 1}, below points"
            raise ValueError(f"start_points must lie {expected}, got {self.start_points}")

    @classmethod
    def paper(cls, row: str, value: Any) -> tuple[float, float | None] | None:
        """The paper's number for so many points, if it has one."""
        return {100: cls.PAPER, 1000: cls.PAPER_1000}[value][row] if value in (100, 1000) else None

    @property
    def data(self) -> str:
        """Which data the experiment really uses."""
        return _shapes().test.name

    @property
    def start(self) -> PointCloud | None:
        """The run with fewer points whose weights this one goes on with."""
        if self.start_points is None:
            return None
        training = replace(self.training, steps=self.start_steps)
        return replace(self, points=self.start_points, start_points=None, training=training)

    def task(self, row: str) -> sw.Classes:
        """One of the classes; ours is trained with softened labels."""
        return sw.Classes(label_smoothing=0.1 if row == "contrast" else 0.0)

    def model(self, row: str, seed: int) -> nn.Module:
        """The appendix's architecture with the row's own blocks, or a published baseline."""
        model = ARCHITECTURES[row](self.points, len(_shapes().test.classes))
        return self._started(model, seed)

    def batches(self, seed: int) -> Batches:
        """Each shape once an epoch; n of its points at random, turned, stretched and normalised."""
        from setwise.experiments.data.point_clouds import augment, normalize

        train = _shapes().train

        def batch(step: int) -> Batch:
            index = sw.training.epochs(len(train), self.sets, step, "pointcloud", seed)
            generator = sw.training.generator("pointcloud", "train", seed, step)
            few = step <= self.few_share * self.training.steps
            n = min(self.few_points, self.points) if few else self.points
            x = augment(train.sample(index, n, generator), generator, up=train.up)
            return sw.SetBatch(normalize(x)), train.labels[index]

        return batch

    def validation(self, seed: int) -> list[Batch]:
        """Training shapes that are set aside, the same points of them for every seed."""
        return self._fixed(_shapes().validation, "validation")

    def test(self, model: nn.Module, seed: int) -> dict[str, Any]:
        """Accuracy over shapes and over classes; for a latent graph, what it does and how it looks."""
        from setwise.training.loop import outputs

        out, y = outputs(model, self._fixed(_shapes().test, "test"))
        right = sw.Classes().predict(out) == y
        per_class = [right[y == label].double().mean().item() for label in y.unique()]
        scores: dict[str, Any] = dict(sw.Classes().score(out, y))
        scores["class_accuracy"] = fmean(per_class)
        if isinstance(model, sw.DMPS):
            scores |= self._inside(model)
        return scores

    @property
    def classes(self) -> tuple[str, ...]:
        """What the shapes are of."""
        return _shapes().test.classes

    def exhibits(self, seed: int, count: int, generator: Generator) -> list[ExampleSet]:
        """Test shapes by the points that they are tested on, upright in space."""
        import torch

        test = _shapes().test
        points = torch.cat([batch.elements for batch, _ in self._fixed(test, "test")])
        return [
            ExampleSet(points[i], int(test.labels[i]), partial(_drawn, i, points[i], test.up))
            for i in some(len(test), count, generator)
        ]

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """A few shapes, coloured by the weight of their points for one of them."""
        shown = [r for r in results if "examples" in r]
        return {"pointcloud-graph": _graph_figure(shown, cls.ROWS)} if shown else {}

    def _started(self, model: nn.Module, seed: int) -> nn.Module:
        sw.nn.initialize(model, sw.training.generator("weights", seed))
        if isinstance(model, sw.DMPS):
            first, _ = self.batches(seed)(1)
            model.initialize_bandwidth(first.x)
        return model

    def _fixed(self, clouds: PointClouds, purpose: str) -> list[Batch]:
        """Every shape once, by the same points each time."""
        import torch

        from setwise.experiments.data.point_clouds import normalize

        index = torch.arange(len(clouds)).split(TEST_BATCH)
        return [
            (
                sw.SetBatch(
                    normalize(
                        clouds.sample(some, self.points, sw.training.generator("pointcloud", purpose, i))
                    )
                ),
                clouds.labels[some],
            )
            for i, some in enumerate(index)
        ]

    def _inside(self, model: sw.DMPS) -> dict[str, Any]:
        """γ, how rough the features are before and after each block, and the weights of a few shapes."""
        import torch

        from setwise.experiments.data.point_clouds import normalize
        from setwise.training.loop import to_model

        model.eval()
        test = _shapes().test
        gammas = [b.gamma.value.item() for b in model.blocks if isinstance(b, sw.nn.SetDenoisingBlock)]
        with torch.no_grad():
            some = test.subset(torch.arange(len(test))[:: max(len(test) // ROUGHNESS_SHAPES, 1)])
            values = []
            for pair in self._fixed(some, "roughness"):
                batch, _ = to_model(pair, model)
                values.append(_roughness(model, batch.elements).cpu())
            mean = torch.cat(values).mean(0).tolist()
            found: dict[str, Any] = {"roughness": mean, "roughness_left": mean[-1]}
            if gammas:
                found["gammas"] = gammas
            if isinstance(model.graph, sw.LatentGraph):
                index = torch.tensor([_first(test, name) for name in _examples(test)])
                n = min(test.points.shape[1], EXAMPLE_POINTS)  # more than in training make a better picture
                x = normalize(test.sample(index, n, sw.training.generator("pointcloud", "examples")))
                batch, _ = to_model((sw.SetBatch(x), index), model)
                W = model.latent_graph(batch.x)
                assert isinstance(W, torch.Tensor)
                found["sigma"] = model.graph.sigma.item()
                found["examples"] = {
                    test.classes[int(test.labels[i])]: _example(x[k], W[k].float().cpu(), test.up)
                    for k, i in enumerate(index)
                }
        return found


@dataclass(frozen=True)
class Diffusion(PointCloud):
    """Accuracy against the diffusion coefficient: from DeepSets (γ = 0) to plain message passing (γ = 1)."""

    gamma: float = 0.5
    """The diffusion coefficient of all blocks, fixed."""
    training: Training = field(
        default_factory=lambda: Training(steps=831, lr=1e-3, schedule="cosine", evaluations=3)
    )
    """How each value is trained: by default on every shape three times."""

    name: ClassVar[str] = "diffusion"
    varied: ClassVar[str] = "gamma"
    ROWS: ClassVar[Mapping[str, str]] = {"d-dmps-fdc": "D-DMPS w/ FDC"}
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]] = {"d-dmps-fdc": None}
    COLUMNS: ClassVar[Mapping[str, str]] = {"roughness_left": "Roughness left"}

    def __post_init__(self) -> None:
        """Refuse absurd values."""
        super().__post_init__()
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie between 0 and 1, got {self.gamma}")
        if self.start_points is not None:
            raise ValueError(f"start_points belongs to pointcloud, got {self.start_points} with diffusion")

    @classmethod
    def paper(cls, row: str, value: Any) -> None:
        """The paper has a figure and no numbers."""

    def model(self, row: str, seed: int) -> nn.Module:
        """D-DMPS with this γ."""
        model = _dmps(len(_shapes().test.classes), block="denoising", gamma=self.gamma)
        return self._started(model, seed)

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """Figure 4, accuracy against γ, and what γ does to the roughness of the features."""
        return {"diffusion": _diffusion_figure(results)}


class Shapes(NamedTuple):
    """The parts of the data: shapes to train on, to validate with and to test on."""

    train: PointClouds
    validation: PointClouds
    test: PointClouds


@cache
def _shapes() -> Shapes:
    from setwise.experiments.data.modelnet import load_point_clouds
    from setwise.experiments.data.point_clouds import hold_out

    train, test = load_point_clouds()
    return Shapes(*hold_out(train), test)


def _drawn(i: int, x: Tensor, up: int) -> ShownSet:
    """Points in space; the third axis leads upwards."""
    from setwise.inspection.explorer.content import ShownSet

    places = x.roll(2 - up, dims=-1).double().numpy()
    return ShownSet(name=f"shape {i}", kind="points", places=places)


def _dmps(classes: int, **parts: Any) -> sw.DMPS:
    """FL(3, 512, tanh) and three SDB(512, 512, 1024, tanh, tanh, tanh, σ, γ) or others; SP(512) is max."""
    return sw.DMPS.build(3, classes, dim=DIM, hidden=HIDDEN, activation="tanh", pool="max", **parts)


def _tanh_of_logits(classes: int) -> sw.DMPS:
    """To the letter of the appendix, which ends in FL(512, 40, tanh)."""
    model = _dmps(classes, block="denoising")
    model.head = sw.nn.Dense(DIM, classes, activation="tanh")
    return model


def _contrast(classes: int) -> sw.DMPS:
    """Ours: local moments, a row-normalised kernel, contrast blocks, maximum and mean; half as wide."""
    dim, scales = DIM // 2, (0.1, 0.2, 0.4)
    read = sw.nn.MLP(sw.nn.LocalMoments.features(3, len(scales)), dim, dim, activation="gelu")
    return contrast_dmps(sw.nn.LocalMoments(read, scales=scales), dim, classes)


def _deepsets(classes: int) -> sw.DeepSets:
    """Zaheer et al.'s for point clouds: three layers of 256 with max ET, a maximum, two with dropout."""
    from torch import nn

    layers = [sw.nn.EquivariantLayer(dim, 256, pool="max", activation="tanh") for dim in (3, 256, 256)]
    return sw.DeepSets(
        encoder=sw.nn.ElementEncoder(nn.Identity()),
        layers=layers,
        pool=sw.nn.MaxPool(),
        head=nn.Sequential(
            nn.Dropout(0.5),
            sw.nn.Dense(256, 256, activation="tanh"),
            nn.Dropout(0.5),
            sw.nn.Dense(256, classes, activation="identity"),
        ),
    )


def _set_transformer(classes: int, pool: Any) -> sw.SetTransformer:
    """Lee et al.'s for point clouds: two ISABs with 16 inducing points, 256 wide, and a pool with dropout."""
    from torch import nn

    model = sw.SetTransformer.build(3, classes, dim=256, heads=4, depth=2, inducing=16, pool=pool)
    model.head = nn.Sequential(nn.Dropout(0.5), model.head)
    return model


def _pointnet(points: int, classes: int) -> nn.Module:
    """Qi et al.'s with one scale; the same share of the points are centres as of 1024."""
    wider = (1024 / points) ** 0.5  # a ball holds as many points of a surface as it does there
    return sw.nn.PointNetPlusPlus.build(
        3, classes, centers=(max(points // 2, 1), max(points // 8, 1)), radius=(0.2 * wider, 0.4 * wider)
    )


ARCHITECTURES: Mapping[str, Callable[[int, int], nn.Module]] = {
    "deepsets-max": lambda points, classes: _deepsets(classes),
    "set-transformer": lambda points, classes: _set_transformer(classes, "attention"),
    "set-transformer-pooling": lambda points, classes: _set_transformer(classes, "max"),
    "pointnet++": _pointnet,
    "v-dmps": lambda points, classes: _dmps(classes, block="message-passing"),
    "r-dmps": lambda points, classes: _dmps(classes, block="residual"),
    "d-dmps-fdc": lambda points, classes: _dmps(classes, block="denoising", gamma=0.5),
    "d-dmps-ldc": lambda points, classes: _dmps(classes, block="denoising"),
    "d-dmps-ldc-tanh": lambda points, classes: _tanh_of_logits(classes),
    "contrast": lambda points, classes: _contrast(classes),
}


def _roughness(model: sw.DMPS, x: Tensor) -> Tensor:
    """Dirichlet energy over the squared length of all features, E / Σ_i ‖x_i‖², at each step of each set.

    The energy alone grows with the features, which training makes larger; this is the same for X and 2X. It
    is zero where all elements have become alike.
    """
    import torch

    steps, W = model.trajectory(x)
    return torch.stack([sw.functional.dirichlet_energy(f, W) / f.square().sum((1, 2)) for f in steps], dim=-1)


def _examples(clouds: PointClouds) -> tuple[str, ...]:
    """The classes to show, if the data have them, and else the first four."""
    return EXAMPLES if set(EXAMPLES) <= set(clouds.classes) else clouds.classes[:4]


def _first(clouds: PointClouds, name: str) -> int:
    """The first shape of a class."""
    return int((clouds.labels == clouds.classes.index(name)).nonzero()[0])


def _example(x: Tensor, W: Tensor, up: int) -> dict[str, Any]:
    """The points of a shape, upright, and what each of them weighs for the farthest one from the centre."""
    chosen = int(x.norm(dim=-1).argmax())
    x = x.roll(2 - up, dims=-1)
    return {
        "points": [[round(value, 3) for value in point] for point in x.tolist()],
        "chosen": chosen,
        "weights": [round(weight, 6) for weight in W[chosen].tolist()],
    }


def _graph_figure(results: Sequence[Mapping[str, Any]], rows: Mapping[str, str]) -> Figure:
    """Shapes side by side, coloured by weight: a line for the paper's best row and one for ours."""
    from matplotlib.figure import Figure

    from setwise.inspection.plots import weighted_points

    found = {r["row"] for r in results}
    chosen = {
        row: max((r for r in results if r["row"] == row), key=lambda r: (r["budget"]["steps"], -r["seed"]))
        for row in [row for row in SHOWN if row in found] or sorted(found)[:1]
    }
    names = list(next(iter(chosen.values()))["examples"])
    figure = Figure(figsize=(2.9 * len(names), 3.0 * len(chosen)), layout="constrained")
    lines = figure.subfigures(len(chosen), 1, squeeze=False)[:, 0]
    for line, (row, result) in zip(lines, chosen.items(), strict=True):
        line.suptitle(rows[row])
        axes = line.subplots(1, len(names), subplot_kw={"projection": "3d"}, squeeze=False)[0]
        for ax, name in zip(axes, names, strict=True):
            example = result["examples"][name]
            weighted_points(example["points"], example["weights"], chosen=example["chosen"], ax=ax)
            ax.set_title(name, fontsize=9)
    return figure


def _diffusion_figure(results: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy against γ at the largest budget, and how rough the features are after each block."""
    from matplotlib.figure import Figure

    from setwise.inspection.plots import accuracy_curve

    steps = max(r["budget"]["steps"] for r in results)
    results = sorted((r for r in results if r["budget"]["steps"] == steps), key=lambda r: r["gamma"])
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    accuracy_curve([(r["gamma"], r["accuracy"]) for r in results], ax=left)
    left.set(xlabel="diffusion coefficient γ", ylabel="test accuracy")
    left.set_title(f"{results[0]['config']['points']} points, {steps:,} batches a run")
    for block in range(len(results[0]["roughness"])):
        label = f"after block {block}" if block else "before the blocks"
        accuracy_curve([(r["gamma"], r["roughness"][block]) for r in results], ax=right, label=label)
    right.set(xlabel="diffusion coefficient γ", ylabel="Dirichlet energy / squared length", ylim=(0, None))
    right.set_title("Over-smoothing: how rough the features are")
    right.legend(frameon=False)
    return figure
