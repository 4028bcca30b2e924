"""Commands for your own sets: fit, predict, inspect, export, explore."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from setwise.cli.arguments import Data, Flag, MaybeData, Model, Name, Names, Number, Out, Share


@dataclass(frozen=True)
class Reading:
    """Where things are in the data."""

    set_column: Annotated[str, tyro.conf.arg(metavar="NAME")] = "set"
    """Column of a table that tells the set of an element."""
    label_column: Names = ("label",)
    """Column with the label of the set, or several of them."""
    name: Name = None
    """Which of several data sets in an npz file: musk1 for musk1_X, musk1_bag and musk1_y."""

    def options(self) -> dict[str, Any]:
        """As `setwise.io.readers.read_sets` takes them."""
        one = len(self.label_column) == 1
        return asdict(self) | {"label_column": self.label_column[0] if one else self.label_column}


@dataclass(frozen=True)
class Network:
    """What is learned."""

    block: Literal["denoising", "message-passing", "residual"] = "denoising"
    """What elements do with the messages of others."""
    depth: int = 1
    """How many times messages are passed."""
    layers: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (128, 64)
    """Widths of the encoder's layers."""
    pool: str = "mean"
    """How elements become a set: mean, max, sum, attention, gated, or several joined by plus signs."""
    graph: Literal["auto", "latent", "streamed", "linear", "uniform"] = "auto"
    """How the graph is computed; auto is exact up to 20,000 elements a set."""
    dropout: float | Literal["auto"] = "auto"
    """Share of the encoder that is left out at random in training; auto is one half for more than 32
    features, else none."""


@dataclass(frozen=True)
class Learning:
    """How it is learned."""

    max_epochs: int = 100
    """Passes over the sets."""
    batch_size: int = 16
    """Sets in a batch."""
    max_elements: Number = None
    """At most so many elements of a set at a time, drawn at random (default: all)."""
    lr: float = 1e-3
    """Learning rate at the start; it falls to zero."""
    weight_decay: float = 1e-4
    """How much weights are drawn to zero."""
    early_stopping: Flag = False
    """Set a tenth of the sets aside, watch the loss on them, and keep the best network."""
    balanced: Flag = False
    """Let all classes weigh the same, however many sets they have."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train: on a GPU if there is one, or as told."""
    threads: Number = None
    """Threads of the processor (default: all); for small sets one is often fastest."""


def fit(
    data: Data,
    out: Out = Path("model.safetensors"),
    task: Literal["auto", "classify", "regress", "count"] = "auto",
    folds: int = 5,
    holdout: Share = None,
    group: Name = None,
    features: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")] = (),
    seed: int = 0,
    overwrite: Flag = False,
    resume: Flag = False,
    quiet: Flag = False,
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = Reading(),  # noqa: B008 (frozen)
    network: Annotated[Network, tyro.conf.OmitArgPrefixes] = Network(),  # noqa: B008
    learning: Annotated[Learning, tyro.conf.OmitArgPrefixes] = Learning(),  # noqa: B008
) -> None:
    """Learn from labelled sets: test by cross-validation, fit to all of them, save model and report.

    Args:
        data: Table with a row an element (.csv, .tsv, .parquet), .npz file, or folder with a file a set.
        out: File for the model; its report goes beside it.
        task: What the labels are: classes, numbers or counts; auto tells by their looks.
        folds: Folds to test in; 0 does without a test.
        holdout: Test on this share of the sets instead of in folds.
        group: Column with what must not be torn apart between folds, such as a patient.
        features: Columns to use (default: all others).
        seed: Of the folds and of all that is random in training.
        overwrite: Replace the model that is there.
        resume: Go on with a run that was interrupted.
        quiet: Show no progress.
        reading: Where things are in the data.
        network: What is learned.
        learning: How it is learned.
    """
    from setwise.cli import fit as practice

    settings = {
        key: value for key, value in (asdict(network) | asdict(learning)).items() if value is not None
    }
    threads = settings.pop("threads", None)
    if settings.pop("balanced"):
        settings["class_weight"] = "balanced"
    report = practice.fit_model(
        data,
        out,
        task=task,
        folds=folds,
        holdout=holdout,
        settings=settings,
        seed=seed,
        threads=threads,
        overwrite=overwrite,
        resume=resume,
        verbose=not quiet,
        group_column=group,
        features=features or None,
        **reading.options(),
    )
    _print(*report.tables())


def predict(
    model: Model,
    data: Data,
    out: Out = Path("-"),
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = Reading(),  # noqa: B008
) -> None:
    """Say what a model predicts for each set and, if labels are there, how well that fits.

    Args:
        model: File of the model.
        data: Sets, as for 'setwise fit'; labels need not be there.
        out: File for the predictions, .csv, .parquet or .npz; - prints them.
        reading: Where things are in the data.
    """
    from setwise.cli import predict as using

    found = using.predict_file(model, data, out, **reading.options())
    if out == Path("-"):
        print(found, file=sys.stderr)
    else:
        print(f"{out}: {found}", flush=True)


def inspect(
    model: Model,
    data: MaybeData = None,
    set: Name = None,  # noqa: A002 (an option's name)
    k: int = 10,
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = Reading(),  # noqa: B008
) -> None:
    """Look into a model or, given data, into what it sees in one set: edges, clusters, what counts.

    Args:
        model: File of the model.
        data: Sets, as for 'setwise fit'; labels need not be there.
        set: Which set to look at (default: the first).
        k: How many edges and elements to list.
        reading: Where things are in the data.
    """
    from setwise.cli import predict as using

    _print(*using.inspect_file(model, data, set_id=set, k=k, **reading.options()))


def export(model: Model, out: Out = Path("model.onnx")) -> None:
    """Write a model for other programs: ONNX, or a program of torch.export.

    Args:
        model: File of the model.
        out: Where to, .onnx or .pt2.
    """
    from setwise.cli import predict as using

    print(using.export_file(model, out), flush=True)


def explore(
    source: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN|MODEL", help_behavior_hint="")],
    data: MaybeData = None,
    out: Out = Path("page.html"),
    sets: int = 12,
    seed: int = 0,
    reading: Annotated[Reading, tyro.conf.OmitArgPrefixes] = Reading(),  # noqa: B008
) -> None:
    """Write a page to explore a run, or a model and sets: curves, mistakes, latent graphs.

    Args:
        source: Folder of a run, runs/EXPERIMENT/ROW/VARIANT, or file of a model.
        data: Sets to look at with a model, as for 'setwise fit'.
        out: File for the page, which needs nothing else.
        sets: How many sets to show.
        seed: Decides which.
        reading: Where things are in the data.
    """
    from setwise.inspection.explorer import write_page

    print(write_page(source, data, out, sets=sets, seed=seed, **reading.options()))


def _print(*sheets: Any) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 110)
    for sheet in sheets:
        console.print(sheet)
