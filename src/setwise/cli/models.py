"""Commands for your own sets: fit, predict, inspect, export, explore."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from setwise.cli.arguments import (
    Data,
    Flag,
    Fraction,
    MaybeData,
    Model,
    Name,
    Names,
    Number,
    OptionalNames,
    Out,
)


@dataclass(frozen=True)
class ReadingOptions:
    """How to read the data."""

    set_column: Annotated[str, tyro.conf.arg(metavar="NAME")] = "set"
    """Column with the set ID."""
    label_column: Names = ("label",)
    """Column with the label of the set; several columns for several labels."""
    name: Name = None
    """Data set to read from a .npz file that has several: musk1 reads musk1_X, musk1_bag and musk1_y."""

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for `setwise.io.readers.read_sets`."""
        one = len(self.label_column) == 1
        return asdict(self) | {"label_column": self.label_column[0] if one else self.label_column}


@dataclass(frozen=True)
class NetworkOptions:
    """Architecture of the network."""

    block: Literal["denoising", "message-passing", "residual"] = "denoising"
    """Type of the message-passing blocks."""
    depth: int = 1
    """Number of blocks."""
    layers: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (128, 64)
    """Widths of the encoder's layers."""
    pool: str = "mean"
    """Pooling: mean, max, sum, attention, gated, or several joined by plus signs."""
    graph: Literal["auto", "latent", "streamed", "linear", "uniform"] = "auto"
    """How the graph is computed; auto is exact up to 20,000 elements per set."""
    dropout: float | Literal["auto"] = "auto"
    """Dropout rate in the encoder; auto is 0.5 for more than 32 features, else 0."""


@dataclass(frozen=True)
class TrainingOptions:
    """Training of the network."""

    max_epochs: int = 100
    """Maximum number of epochs."""
    batch_size: int = 16
    """Number of sets per batch."""
    max_elements: Number = None
    """Maximum number of elements per set in a batch, drawn at random (default: all)."""
    lr: float = 1e-3
    """Initial learning rate; it decays to zero."""
    weight_decay: float = 1e-4
    """Weight decay."""
    early_stopping: Flag = False
    """Hold out a tenth of the sets for validation and keep the network with the lowest loss on them."""
    balanced: Flag = False
    """Weight the classes inversely to their number of sets."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to train on; auto uses a GPU if there is one."""
    threads: Number = None
    """Number of CPU threads (default: all); one is often fastest for small sets."""


def fit(
    data: Data,
    out: Out = Path("model.safetensors"),
    task: Literal["auto", "classify", "regress", "count"] = "auto",
    folds: int = 5,
    holdout: Fraction = None,
    group: Name = None,
    features: OptionalNames = (),
    seed: int = 0,
    overwrite: Flag = False,
    resume: Flag = False,
    quiet: Flag = False,
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = ReadingOptions(),  # noqa: B008 (frozen)
    network: Annotated[NetworkOptions, tyro.conf.OmitArgPrefixes] = NetworkOptions(),  # noqa: B008
    training: Annotated[TrainingOptions, tyro.conf.OmitArgPrefixes] = TrainingOptions(),  # noqa: B008
) -> None:
    """Cross-validate a model on labelled sets, fit it to all of them, and save it.

    Args:
        data: Table with one row per element (.csv, .tsv, .parquet),
            a .npz file, or a folder with one file per set.
        out: File for the model; the report is written next to it.
        task: What to predict: classes, numbers or counts; auto infers the task from the labels.
        folds: Number of cross-validation folds; 0 skips the test.
        holdout: Fraction of the sets to test on, instead of cross-validation.
        group: Column with group labels, such as a patient ID; a group is kept in one fold.
        features: Feature columns (default: all other columns).
        seed: Random seed for the folds and the training.
        overwrite: Replace an existing model file.
        resume: Continue an interrupted run.
        quiet: Do not show progress.
        reading: How to read the data.
        network: Architecture of the network.
        training: Training of the network.
    """
    from setwise.cli.fit import fit_model

    options = asdict(network) | asdict(training)
    settings = {key: value for key, value in options.items() if value is not None}
    threads = settings.pop("threads", None)
    if settings.pop("balanced"):
        settings["class_weight"] = "balanced"
    report = fit_model(
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
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = ReadingOptions(),  # noqa: B008
) -> None:
    """Write the prediction for each set; print the scores if the data have labels.

    Args:
        model: Model file.
        data: Sets in a format of 'setwise fit'; labels are optional.
        out: File for the predictions (.csv, .parquet or .npz); - prints them as CSV.
        reading: How to read the data.
    """
    from setwise.cli.predict import predict_file

    summary = predict_file(model, data, out, **reading.options())
    if out == Path("-"):
        print(summary, file=sys.stderr)
    else:
        print(f"{out}: {summary}", flush=True)


def inspect(
    model: Model,
    data: MaybeData = None,
    set: Name = None,  # noqa: A002 (the name of the flag)
    k: int = 10,
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = ReadingOptions(),  # noqa: B008
) -> None:
    """Print a summary of a model, or the graph and importance of one set.

    Args:
        model: Model file.
        data: Sets in a format of 'setwise fit'; without data, the model is summarized.
        set: ID of the set (default: the first).
        k: Number of edges and elements to list.
        reading: How to read the data.
    """
    from setwise.cli.predict import inspect_file

    _print(*inspect_file(model, data, set_id=set, k=k, **reading.options()))


def export(model: Model, out: Out = Path("model.onnx")) -> None:
    """Export a model to ONNX or torch.export.

    Args:
        model: Model file.
        out: Output file; the suffix (.onnx or .pt2) selects the format.
    """
    from setwise.cli.predict import export_file

    print(export_file(model, out), flush=True)


def explore(
    source: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN|MODEL", help_behavior_hint="")],
    data: MaybeData = None,
    out: Out = Path("page.html"),
    sets: int = 12,
    seed: int = 0,
    reading: Annotated[ReadingOptions, tyro.conf.OmitArgPrefixes] = ReadingOptions(),  # noqa: B008
) -> None:
    """Write an interactive HTML page: learning curves, errors, latent graphs.

    Args:
        source: Folder of a run (runs/EXPERIMENT/ROW/VARIANT) or model file.
        data: Sets to show with a model, in a format of 'setwise fit'.
        out: File for the page; it works offline.
        sets: Number of sets to show.
        seed: Random seed for the choice of sets.
        reading: How to read the data.
    """
    from setwise.inspection.explorer import write_page

    print(write_page(source, data, out, sets=sets, seed=seed, **reading.options()))


def _print(*tables: Any) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 110)
    for table in tables:
        console.print(table)
