"""Classifying point clouds: 40 classes of shapes, from 100 or 1000 points of the surface.

The paper's third experiment (table 2, figure 4, appendix): FL(3, 512), three blocks with a 512 / 1024 deep
kernel, a pool, FL(512, 40). `PointCloud` is the table; `Diffusion` studies γ between DeepSets (γ = 0) and
plain message passing (γ = 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import setwise as sw
from setwise.experiments.base import ExampleSet, Experiment, random_indices
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
EXAMPLE_POINTS = 256  # more than in training, for a clear picture
FIGURE_ROWS = ("d-dmps-ldc", "contrast")


@dataclass(frozen=True)
class PointCloud(Experiment):
    """Classify the shapes of ModelNet40 from points on their surface."""

    points: int = 100
    """Points per shape; 100 and 1000 in the paper."""
    few_points: int = 32
    """Points per shape in the first part of the training, for speed."""
    few_share: float = 0.8
    """Share of the training that uses few_points, between 0 and 1; 0 in the paper."""
    sets: int = 32
    """Shapes per batch."""
    start_points: int | None = None
    """Start from the weights of this row's finished run with this many points, in the same --out."""
    start_steps: int = 11_080
    """Training steps of the run to start from."""
    training: Training = field(
        default_factory=lambda: Training(steps=11_080, lr=1e-3, schedule="cosine", evaluations=16)
    )
    """Training configuration of each row; the default is 40 epochs."""
    threads: int | None = 1
    """CPU threads; two parallel runs with one thread each are faster than one run with two."""

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
    """100 points."""
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
    """1000 points."""
    COLUMNS: ClassVar[Mapping[str, str]] = {"class_accuracy": "Mean over classes"}

    def __post_init__(self) -> None:
        """Validate the fields."""
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
        """The paper's accuracy for 100 or 1000 points."""
        return {100: cls.PAPER, 1000: cls.PAPER_1000}[value][row] if value in (100, 1000) else None

    @property
    def data(self) -> str:
        """Name of the data set that is used."""
        return _shapes().test.name

    @property
    def start(self) -> PointCloud | None:
        """Run with fewer points that this one starts from."""
        if self.start_points is None:
            return None
        training = replace(self.training, steps=self.start_steps)
        return replace(self, points=self.start_points, start_points=None, training=training)

    def task(self, row: str) -> sw.Classes:
        """Classification; the contrast row is trained with label smoothing."""
        return sw.Classes(label_smoothing=0.1 if row == "contrast" else 0.0)

    def model(self, row: str, seed: int) -> nn.Module:
        """The appendix's architecture with the blocks of the row, or a published baseline."""
        model = ARCHITECTURES[row](self.points, len(_shapes().test.classes))
        return self._initialized(model, seed)

    def batches(self, seed: int) -> Batches:
        """Each shape once per epoch: random points, rotated, stretched and normalised."""
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
        """Held-out training shapes, with the same points for every seed."""
        return self._fixed_batches(_shapes().validation, "validation")

    def test(self, model: nn.Module, seed: int) -> dict[str, Any]:
        """Accuracy over shapes and over classes; for a DMPS, also roughness and example graphs."""
        from setwise.training.loop import outputs

        out, y = outputs(model, self._fixed_batches(_shapes().test, "test"))
        right = sw.Classes().predict(out) == y
        per_class = [right[y == label].double().mean().item() for label in y.unique()]
        scores: dict[str, Any] = dict(sw.Classes().score(out, y))
        scores["class_accuracy"] = fmean(per_class)
        if isinstance(model, sw.DMPS):
            scores |= self._graph_scores(model)
        return scores

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names."""
        return _shapes().test.classes

    def example_sets(self, seed: int, count: int, generator: Generator) -> list[ExampleSet]:
        """Test shapes with the points they are tested on, upright in space."""
        import torch

        test = _shapes().test
        points = torch.cat([batch.elements for batch, _ in self._fixed_batches(test, "test")])
        return [
            ExampleSet(points[i], int(test.labels[i]), partial(_shown_set, i, points[i], test.up))
            for i in random_indices(len(test), count, generator)
        ]

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """A few shapes; colour shows the weight of each point for one chosen point."""
        with_examples = [r for r in results if "examples" in r]
        return {"pointcloud-graph": _graph_figure(with_examples, cls.ROWS)} if with_examples else {}

    def _initialized(self, model: nn.Module, seed: int) -> nn.Module:
        sw.nn.initialize(model, sw.training.generator("weights", seed))
        if isinstance(model, sw.DMPS):
            first, _ = self.batches(seed)(1)
            model.initialize_bandwidth(first.x)
        return model

    def _fixed_batches(self, clouds: PointClouds, purpose: str) -> list[Batch]:
        """Batches of every shape once, with the same points each time."""
        import torch

        from setwise.experiments.data.point_clouds import normalize

        batches = []
        for i, index in enumerate(torch.arange(len(clouds)).split(TEST_BATCH)):
            generator = sw.training.generator("pointcloud", purpose, i)
            x = normalize(clouds.sample(index, self.points, generator))
            batches.append((sw.SetBatch(x), clouds.labels[index]))
        return batches

    def _graph_scores(self, model: sw.DMPS) -> dict[str, Any]:
        """γ, roughness of the features before and after each block, and the weights of the example shapes."""
        import torch

        from setwise.experiments.data.point_clouds import normalize
        from setwise.training.loop import to_model

        model.eval()
        test = _shapes().test
        gammas = [b.gamma.value.item() for b in model.blocks if isinstance(b, sw.nn.SetDenoisingBlock)]
        with torch.no_grad():
            sample = test.subset(torch.arange(len(test))[:: max(len(test) // ROUGHNESS_SHAPES, 1)])
            values = []
            for pair in self._fixed_batches(sample, "roughness"):
                batch, _ = to_model(pair, model)
                values.append(_roughness(model, batch.elements).cpu())
            mean = torch.cat(values).mean(0).tolist()
            scores: dict[str, Any] = {"roughness": mean, "roughness_left": mean[-1]}
            if gammas:
                scores["gammas"] = gammas
            if isinstance(model.graph, sw.LatentGraph):
                index = torch.tensor([_first_of_class(test, name) for name in _example_classes(test)])
                n = min(test.points.shape[1], EXAMPLE_POINTS)
                x = normalize(test.sample(index, n, sw.training.generator("pointcloud", "examples")))
                batch, _ = to_model((sw.SetBatch(x), index), model)
                W = model.latent_graph(batch.x)
                assert isinstance(W, torch.Tensor)
                scores["sigma"] = model.graph.sigma.item()
                scores["examples"] = {
                    test.classes[int(test.labels[i])]: _example(x[k], W[k].float().cpu(), test.up)
                    for k, i in enumerate(index)
                }
        return scores


@dataclass(frozen=True)
class Diffusion(PointCloud):
    """Accuracy against the diffusion coefficient, from DeepSets (γ = 0) to plain message passing (γ = 1)."""

    gamma: float = 0.5
    """Diffusion coefficient of all blocks; not learned."""
    training: Training = field(
        default_factory=lambda: Training(steps=831, lr=1e-3, schedule="cosine", evaluations=3)
    )
    """Training configuration; the default is three epochs."""

    name: ClassVar[str] = "diffusion"
    varied: ClassVar[str] = "gamma"
    ROWS: ClassVar[Mapping[str, str]] = {"d-dmps-fdc": "D-DMPS w/ FDC"}
    PAPER: ClassVar[Mapping[str, tuple[float, float | None] | None]] = {"d-dmps-fdc": None}
    COLUMNS: ClassVar[Mapping[str, str]] = {"roughness_left": "Final roughness"}

    def __post_init__(self) -> None:
        """Validate the fields."""
        super().__post_init__()
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie between 0 and 1, got {self.gamma}")
        if self.start_points is not None:
            raise ValueError(
                f"start_points is only valid for pointcloud, got {self.start_points} with diffusion"
            )

    @classmethod
    def paper(cls, row: str, value: Any) -> None:
        """The paper has a figure without numbers."""

    def model(self, row: str, seed: int) -> nn.Module:
        """D-DMPS with this γ."""
        model = _dmps(len(_shapes().test.classes), block="denoising", gamma=self.gamma)
        return self._initialized(model, seed)

    @classmethod
    def figures(cls, results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
        """Figure 4: accuracy and roughness of the features against γ."""
        return {"diffusion": _diffusion_figure(results)}


class Shapes(NamedTuple):
    """Training, validation and test shapes."""

    train: PointClouds
    validation: PointClouds
    test: PointClouds


@cache
def _shapes() -> Shapes:
    from setwise.experiments.data.modelnet import load_point_clouds
    from setwise.experiments.data.point_clouds import hold_out

    train, test = load_point_clouds()
    return Shapes(*hold_out(train), test)


def _shown_set(i: int, x: Tensor, up: int) -> ShownSet:
    """Points in space; the third axis points up."""
    from setwise.inspection.explorer.content import ShownSet

    places = x.roll(2 - up, dims=-1).double().numpy()
    return ShownSet(name=f"shape {i}", kind="points", places=places)


def _dmps(classes: int, **parts: Any) -> sw.DMPS:
    """FL(3, 512, tanh) and three SDB(512, 512, 1024, tanh, tanh, tanh, σ, γ) or variants; SP(512) is max."""
    return sw.DMPS.build(3, classes, dim=DIM, hidden=HIDDEN, activation="tanh", pool="max", **parts)


def _tanh_of_logits(classes: int) -> sw.DMPS:
    """The appendix taken literally, which ends with FL(512, 40, tanh)."""
    model = _dmps(classes, block="denoising")
    model.head = sw.nn.Dense(DIM, classes, activation="tanh")
    return model


def _contrast(classes: int) -> sw.DMPS:
    """Ours at half the width: local moments, a row-normalised kernel, contrast blocks, max and mean pools."""
    dim, scales = DIM // 2, (0.1, 0.2, 0.4)
    read = sw.nn.MLP(sw.nn.LocalMoments.features(3, len(scales)), dim, dim, activation="gelu")
    return contrast_dmps(sw.nn.LocalMoments(read, scales=scales), dim, classes)


def _deepsets(classes: int) -> sw.DeepSets:
    """Zaheer et al. for point clouds: three layers of 256 with max ET, max pooling, two with dropout."""
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
    """Lee et al. for point clouds: two ISABs with 16 inducing points and width 256, a pool with dropout."""
    from torch import nn

    model = sw.SetTransformer.build(3, classes, dim=256, heads=4, depth=2, inducing=16, pool=pool)
    model.head = nn.Sequential(nn.Dropout(0.5), model.head)
    return model


def _pointnet(points: int, classes: int) -> nn.Module:
    """Qi et al. with one scale; the ratio of centres to points is that of 1024 points."""
    wider = (1024 / points) ** 0.5  # keeps the mean number of surface points per ball
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
    """Dirichlet energy over the squared norm of all features, E / Σ_i ‖x_i‖², at each step of each set.

    The energy grows with the norm of the features; this ratio is invariant to scaling. It is zero if all
    elements are equal.
    """
    import torch

    steps, W = model.trajectory(x)
    return torch.stack([sw.functional.dirichlet_energy(f, W) / f.square().sum((1, 2)) for f in steps], dim=-1)


def _example_classes(clouds: PointClouds) -> tuple[str, ...]:
    """Classes of the example shapes, if the data have them; otherwise the first four."""
    return EXAMPLES if set(EXAMPLES) <= set(clouds.classes) else clouds.classes[:4]


def _first_of_class(clouds: PointClouds, name: str) -> int:
    """Index of the first shape of a class."""
    return int((clouds.labels == clouds.classes.index(name)).nonzero()[0])


def _example(x: Tensor, W: Tensor, up: int) -> dict[str, Any]:
    """Points of a shape, upright, and their weights for the point farthest from the centre."""
    chosen = int(x.norm(dim=-1).argmax())
    x = x.roll(2 - up, dims=-1)
    return {
        "points": [[round(value, 3) for value in point] for point in x.tolist()],
        "chosen": chosen,
        "weights": [round(weight, 6) for weight in W[chosen].tolist()],
    }


def _graph_figure(results: Sequence[Mapping[str, Any]], rows: Mapping[str, str]) -> Figure:
    """Shapes coloured by weight: one row for the paper's best model and one for ours."""
    from matplotlib.figure import Figure

    from setwise.inspection.plots import weighted_points

    found = {r["row"] for r in results}
    chosen = {
        row: max((r for r in results if r["row"] == row), key=lambda r: (r["budget"]["steps"], -r["seed"]))
        for row in [row for row in FIGURE_ROWS if row in found] or sorted(found)[:1]
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
    """Accuracy at the largest budget, and roughness after each block, against γ."""
    from matplotlib.figure import Figure

    from setwise.inspection.plots import accuracy_curve

    steps = max(r["budget"]["steps"] for r in results)
    results = sorted((r for r in results if r["budget"]["steps"] == steps), key=lambda r: r["gamma"])
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    accuracy_curve([(r["gamma"], r["accuracy"]) for r in results], ax=left)
    left.set(xlabel="diffusion coefficient γ", ylabel="test accuracy")
    left.set_title(f"{results[0]['config']['points']} points, {steps:,} batches per run")
    for block in range(len(results[0]["roughness"])):
        label = f"after block {block}" if block else "before the blocks"
        accuracy_curve([(r["gamma"], r["roughness"][block]) for r in results], ax=right, label=label)
    right.set(xlabel="diffusion coefficient γ", ylabel="Dirichlet energy / squared norm", ylim=(0, None))
    right.set_title("Over-smoothing: roughness of the features")
    right.legend(frameon=False)
    return figure
