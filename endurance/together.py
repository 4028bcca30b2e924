"""Scenarios for several processes, whose results `endurance.equality` compares with those of one process.

``torchrun … -m endurance.together OUT NAME …`` saves the results of scenarios, which must be the same on all
processes.
"""

import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import setwise as sw
from setwise import collectives
from setwise.nn.images import ConvPool
from setwise.nn.layers import BatchNorm
from setwise.nn.pool import GatedAttentionPool, JoinedPool
from setwise.training.distributed import synchronized_batch_norms
from setwise.training.split_elements import SplitElements

Found = dict[str, Any]


def points_of(step: int, sets: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    random = sw.training.generator("together", step)
    x = torch.randn(sets, 7, 3, generator=random, dtype=dtype)
    mask = torch.arange(7) < torch.randint(1, 8, (sets, 1), generator=random)
    y = (x[..., 0] * mask).sum(1) > 0
    return x, mask, y.long()


def ragged(step: int, sets: int = 5) -> tuple[sw.SetBatch, Tensor]:
    x, mask, y = points_of(step, sets)
    return sw.SetBatch(x, mask), y


def seeded(make: Any) -> Any:
    torch.manual_seed(0)
    return make()


def trained(model: nn.Module, task: Any, batches: Any, **training: Any) -> Found:
    validation = training.pop("validation", None)
    history = sw.fit(model, task, batches, sw.Training(**training), validation=validation)
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    metrics = {
        f"{key}.{entry['step']}": torch.tensor(entry[key]) for entry in history.metrics for key in entry
    }
    return state | metrics | {"sets": torch.tensor(history.sets)}


def fifty_steps() -> Found:
    """Single precision, as the experiments train."""
    model = seeded(lambda: sw.DMPS.build(3, 1, dim=16, hidden=(16, 16)))
    return trained(
        model,
        sw.Binary(),
        partial(ragged, sets=16),
        steps=50,
        evaluations=2,
        validation=[ragged(-1), ragged(-2)],
    )


def few_sets() -> Found:
    """Batches of fewer sets than processes; the gradient is clipped."""
    model = seeded(lambda: sw.DMPS.build(3, 1, dim=8, hidden=(8, 8), pool="max"))

    def batches(step: int) -> tuple[sw.SetBatch, Tensor]:
        return ragged(step, sets=1 + step % 4)

    return trained(
        model, sw.Binary(), batches, steps=12, evaluations=3, clip=0.1, precision="64-true", optimizer="adamw"
    )


def shared_images() -> Found:
    """Images that sets share, and a batch norm over those of all processes."""

    def make() -> nn.Module:
        layers = nn.Sequential(ConvPool(1, 4), ConvPool(4, 4, norm=True), nn.Flatten())
        encoder = sw.nn.ElementEncoder(layers)
        return sw.DMPS.build(36, 1, dim=36, hidden=(8, 8), depth=1, pool="sum", encoder=encoder)

    def batches(step: int) -> tuple[sw.SetBatch, Tensor]:
        random = sw.training.generator("drawings", step)
        values = torch.rand(9, 1, 18, 18, generator=random) < 0.3
        index = torch.randint(len(values), (6, 5), generator=random)
        return sw.SetBatch(sw.Shared(values, index)), torch.randint(4, (6,), generator=random)

    return trained(seeded(make), sw.Count(), batches, steps=8, evaluations=2, precision="64-true", lr=1e-2)


def plain_encoder_of_shared() -> Found:
    """Elements that sets share, expanded for a model without shared encoding."""
    model = seeded(lambda: sw.DeepSets.build(3, 1, dim=8))

    def batches(step: int) -> tuple[sw.SetBatch, Tensor]:
        random = sw.training.generator("points", step)
        values = torch.randn(1 if step == 3 else 5, 3, generator=random)
        index = torch.randint(len(values), (6, 4), generator=random)
        return sw.SetBatch(sw.Shared(values, index)), torch.arange(6) % 2

    return trained(model, sw.Binary(), batches, steps=5, evaluations=1, precision="64-true")


def points() -> Found:
    """PointNet++, whose batch norms get neighbourhoods of different sizes."""
    sizes: Any = {"centers": (4, 2), "radius": (0.8, 1.5), "neighbours": (3, 2), "hidden": (6,)}
    dims = ((4, 5), (6,), (7,))
    model = seeded(lambda: sw.nn.PointNetPlusPlus.build(3, 2, dims=dims, dropout=0.0, **sizes))

    def batches(step: int) -> tuple[sw.SetBatch, Tensor]:
        return ragged(step, sets=1 if step == 3 else 6)

    return trained(model, sw.Classes(), batches, steps=4, evaluations=1, precision="64-true")


def norms() -> Found:
    """A batch norm of half-precision input, with statistics in single precision."""
    model, x = nn.Sequential(BatchNorm(3)), torch.arange(24.0).view(8, 3).bfloat16()
    with synchronized_batch_norms(model, torch.device("cpu")):
        out = model(x[collectives.share(8)])
    assert type(model[0]) is BatchNorm
    assert out.dtype == torch.bfloat16
    return dict(model[0].named_buffers())


def estimator() -> Found:
    """An estimator; every process can predict on its own."""
    x, mask, y = points_of(0, sets=24)
    sets = [values[real].numpy() for values, real in zip(x, mask, strict=True)]
    model = sw.SetClassifier(
        layers=(8,), hidden=(8, 8), max_epochs=4, dropout=0.0, early_stopping=True, random_state=0
    ).fit(sets, y.numpy())
    if collectives.is_first():
        model.predict(sets[:2])
    return {
        "chance": torch.from_numpy(model.predict_proba(sets)),
        "loss": torch.tensor(model.history_[-1]["loss"]),
    }


GRAPHS: dict[str, Any] = {
    "softmax": lambda: sw.nn.RandomFeatureGraph(8, (8, 8), normalize=sw.functional.row_softmax, seed=3),
    "normalize": lambda: sw.nn.RandomFeatureGraph(8, (8, 8)),
    "auto": lambda: sw.nn.AutoGraph(8, (8, 8), exact_up_to=0),
    "uniform": sw.nn.UniformGraph,
}
POOLS: dict[str, Any] = {
    "sum": sw.nn.SumPool,
    "mean": sw.nn.MeanPool,
    "max": sw.nn.MaxPool,
    "attention": lambda: sw.nn.AttentionPool(8),
    "gated": lambda: GatedAttentionPool(8),
}


def elements() -> Found:
    """Sets whose elements are divided: outputs and gradients for every graph, pool and block."""
    found = {}
    x, mask, y = points_of(7, sets=3, dtype=torch.float64)
    cases = [(graph, pool, "denoising") for graph in GRAPHS for pool in POOLS]
    cases += [("softmax", "mean", "residual"), ("normalize", "max", "message-passing")]
    for graph, pool, block in cases:
        for kind, batch in {
            "masked": sw.SetBatch(x, mask),
            "full": sw.SetBatch(x),
            "tied": sw.SetBatch(x.round(), mask),  # elements that tie for the largest
            "two": sw.SetBatch(x[:, :2]),
        }.items():
            torch.manual_seed(0)
            parts: Any = {"block": block, "graph": GRAPHS[graph](), "pool": POOLS[pool]()}
            model = sw.DMPS.build(3, 2, dim=8, depth=2, **parts).double()
            network = SplitElements(model) if collectives.world_size() > 1 else model
            out = network(batch.x, batch.mask)
            sw.Classes().loss(out, y).backward()
            name = f"{graph} {pool} {block} {kind}"
            found[f"{name} out"] = out.detach()
            for part, weight in model.named_parameters():
                assert weight.grad is not None
                found[f"{name} {part}"] = collectives.all_sum(weight.grad) / collectives.world_size()
    return found


def shares() -> Found:
    """Training by processes that hold only their share of each set, with joined pools."""

    def make() -> nn.Module:
        model = sw.DMPS.build(
            3, 1, dim=8, hidden=(8, 8), graph="linear", pool=JoinedPool(sw.nn.MeanPool(), sw.nn.MaxPool())
        )
        model.head = sw.nn.Dense(16, 1, activation="identity")
        return model

    def batches(step: int) -> tuple[sw.SetBatch, Tensor]:
        x, mask, y = points_of(step)
        mine = collectives.share(7)
        return sw.SetBatch(x[:, mine], mask[:, mine]), y

    settings = {"steps": 6, "evaluations": 2, "precision": "64-true"}
    mine = trained(seeded(make), sw.Binary(), batches, validation=[batches(-1)], split="shares", **settings)
    whole = trained(seeded(make), sw.Binary(), ragged, validation=[ragged(-1)], split="elements", **settings)
    return mine | {f"whole {name}": value for name, value in whole.items()}


def resumed() -> Found:
    """An interrupted and resumed run, with dropout that differs between processes."""

    def make() -> nn.Module:
        model = sw.DMPS.build(3, 1, dim=8, hidden=(8, 8))
        model.head = nn.Sequential(nn.Dropout(0.5), model.head)
        return model

    def until_seven(step: int) -> tuple[sw.SetBatch, Tensor]:
        if step == 8:
            raise InterruptedError
        return ragged(step)

    settings = sw.Training(steps=12, evaluations=4, checkpoint_seconds=0)
    with tempfile.TemporaryDirectory() as own:
        folder = Path(collectives.run_on_first(own.encode).decode())
        straight, first, second = seeded(make), seeded(make), seeded(make)
        torch.manual_seed(1)
        sw.fit(straight, sw.Binary(), ragged, settings)
        torch.manual_seed(1)
        with suppress(InterruptedError):
            sw.fit(first, sw.Binary(), until_seven, settings, folder=folder / "run")
        history = sw.fit(second, sw.Binary(), ragged, settings, folder=folder / "run", resume=True)
        files = sorted(path.name for path in (folder / "run").iterdir())
        collectives.barrier()
    drawn = collectives.gather_rows(torch.rand(4))
    apart = len(drawn.unique(dim=0)) == collectives.world_size()
    same = all(
        torch.allclose(a, b, rtol=0, atol=1e-6)
        for a, b in zip(straight.parameters(), second.parameters(), strict=True)
    )
    told = [entry["step"] for entry in history.metrics]
    return {
        "same": torch.tensor(same),
        "apart": torch.tensor(apart),
        "files": torch.tensor(len(files)),
        "told": torch.tensor(told),
    }


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        fifty_steps,
        few_sets,
        shared_images,
        plain_encoder_of_shared,
        points,
        norms,
        estimator,
        elements,
        shares,
        resumed,
    )
}


def main(out: str, *names: str) -> None:
    torch.set_num_threads(1)
    collectives.initialize()
    found = {name: SCENARIOS[name]() for name in names or SCENARIOS}
    for name, values in found.items():
        for key, value in values.items():
            if not torch.equal(collectives.gather_rows(value)[0], value):
                raise AssertionError(f"{name}: process {collectives.rank()} has another {key}")
    if collectives.is_first():
        torch.save(found, out)
    collectives.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
