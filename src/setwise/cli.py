"""The command line: ``setwise fit | predict | inspect | export | explore`` for sets of one's own.

And ``setwise run | table | figure | rows EXPERIMENT``, ``setwise download DATA`` for the paper's experiments.
"""

import io
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import CascadeSubcommandArgs, FlagCreatePairsOff, Positional

from setwise.experiments import EXPERIMENTS
from setwise.stopping import Terminated, ended_by_signals

if TYPE_CHECKING:
    from setwise.experiments.base import Experiment as Configured

    Experiment = str
else:
    Configured = tyro.extras.subcommand_type_from_defaults(
        {name: experiment() for name, experiment in EXPERIMENTS.items()},
        descriptions={name: experiment.__doc__ for name, experiment in EXPERIMENTS.items()},
        prefix_names=False,
    )
    Experiment = Literal[tuple(EXPERIMENTS)]


Data = Annotated[Positional[Path], tyro.conf.arg(metavar="DATA", help_behavior_hint="")]
MaybeData = Annotated[Positional[Path | None], tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")]
Model = Annotated[Positional[Path], tyro.conf.arg(metavar="MODEL", help_behavior_hint="")]
Out = Annotated[Path, tyro.conf.arg(metavar="FILE", aliases=("-o",))]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]
Number = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Share = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]


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
        """As `setwise.data.reading.read_sets` takes them."""
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
    from setwise import practice

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
    _print(*report.sheets())


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
    from setwise import using

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
    from setwise import using

    _print(*using.inspect_file(model, data, set_id=set, k=k, **reading.options()))


def export(model: Model, out: Out = Path("model.onnx")) -> None:
    """Write a model for other programs: ONNX, or a program of torch.export.

    Args:
        model: File of the model.
        out: Where to, .onnx or .pt2.
    """
    from setwise import using

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
    from setwise.explore import write_page

    print(write_page(source, data, out, sets=sets, seed=seed, **reading.options()))


def _print(*sheets: Any) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 110)
    for sheet in sheets:
        console.print(sheet)


def run(
    experiment: Annotated[Configured, tyro.conf.arg(name="")],
    row: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0,),
    sweep: tuple[str, ...] = (),
    resume: bool = False,
    jobs: int = 1,
    cluster: Name = None,
    out: Path = Path("runs"),
    results: Path = Path("results"),
) -> None:
    """Train and test rows of an experiment, and put the results on record.

    Args:
        experiment: What to run.
        row: Rows to run ('setwise rows EXPERIMENT' lists them); all of them unless given.
        seeds: Seeds to run each row with.
        sweep: Values of what the experiment varies (rho for gaussian, split for counting, points for
            pointcloud, gamma for diffusion, depth for smoothing, by for histology, bags for mil), one run
            each.
        resume: Continue interrupted runs, skip finished ones.
        jobs: Runs to make at the same time, each in a process of its own.
        cluster: Where to make them instead of here: address of a Dask scheduler, ray, or ray://ADDRESS.
        out: Where configuration, metrics and checkpoint of each run go.
        results: Where the results go on record, a JSON file a run.
    """
    rows = row or tuple(experiment.ROWS)
    for name in rows:
        if name not in experiment.ROWS:
            raise ValueError(
                f"row must be one of {', '.join(experiment.ROWS)} for {experiment.name}, got {name!r}"
            )
    if not seeds:
        raise ValueError("seeds must name at least one seed, got none")
    _need_writable(out)
    _need_writable(results)
    named = [value for given in sweep for value in experiment.vary(given).values] or experiment.values
    variants = [experiment.vary(value) for value in named]

    from setwise.experiments.sweep import Point, run_all

    points = [Point(variant, name, seed) for variant in variants for name in rows for seed in seeds]
    found = run_all(points, out=out, results=results, resume=resume, jobs=jobs, cluster=cluster)
    with closing(found):
        for point, result in found:
            print(f"{point.title}  test accuracy {result['accuracy']:.4f}  on {result['data']}", flush=True)


def table(
    experiment: Positional[Experiment], results: Path = Path("results"), markdown: bool = False
) -> None:
    """Print the results of an experiment on record, beside the paper's numbers.

    Args:
        experiment: Which experiment.
        results: Where the results are on record.
        markdown: Print it as Markdown.
    """
    from setwise.experiments import report

    chosen = EXPERIMENTS[experiment]
    for data, recorded in report.by_data(report.load_results(results, chosen)).items():
        headings, lines = report.table(chosen, recorded)
        if markdown:
            print(report.markdown(headings, lines))
            continue
        from rich.console import Console
        from rich.table import Table

        grid = Table(*headings, title=(chosen.__doc__ or "").splitlines()[0], caption=data)
        for line in lines:
            grid.add_row(*line)
        Console(width=None if sys.stdout.isatty() else 240).print(grid)


def figure(
    experiment: Positional[Experiment],
    results: Path = Path("results"),
    out: Path = Path("figures"),
) -> None:
    """Draw the figures of an experiment from the results on record.

    Args:
        experiment: Which experiment.
        results: Where the results are on record.
        out: Folder for the pictures.
    """
    from setwise.experiments import report

    chosen = EXPERIMENTS[experiment]
    groups = report.by_data(report.load_results(results, chosen))
    out.mkdir(parents=True, exist_ok=True)
    for number, recorded in enumerate(groups.values()):
        with warnings.catch_warnings(record=True) as said:
            pictures = chosen.figures(recorded)
        for warning in said:
            print(f"setwise: {warning.message}", file=sys.stderr)
        for name, picture in pictures.items():
            path = out / f"{name}{f'-{number + 1}' if number else ''}.png"
            picture.savefig(path, dpi=150)
            print(path)


def rows(experiment: Positional[Experiment]) -> None:
    """List the rows of an experiment: their names here, and in the paper.

    Args:
        experiment: Which experiment.
    """
    width = max(map(len, EXPERIMENTS[experiment].ROWS))
    for name, label in EXPERIMENTS[experiment].ROWS.items():
        print(f"{name:{width}}  {label}")


def download(data: Positional[Literal["omniglot"]]) -> None:
    """Fetch a public data set into the data folder (SETWISE_DATA, else the cache folder).

    Args:
        data: Which one.
    """
    from setwise.data.omniglot import download_omniglot

    for path in download_omniglot():
        print(path)


COMMANDS: dict[str, Callable[..., None]] = {
    "fit": fit,
    "predict": predict,
    "inspect": inspect,
    "export": export,
    "explore": explore,
    "run": run,
    "table": table,
    "figure": figure,
    "rows": rows,
    "download": download,
}


LATER = 3.0
"""Seconds that a process but the first waits before it tells of a failure."""
GO_ON = {
    "run": "; --resume continues from the last checkpoint",
    "fit": "; --resume continues from the last checkpoint",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; what is wrong with it comes as one sentence and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an old terminal gets a question mark, not a traceback
    first, go_on = _is_first(), GO_ON.get("".join(words[:1]), "")
    if not first and words[:1] not in (["run"], ["fit"]):
        return  # what takes no training takes one process
    try:
        with ended_by_signals(), nullcontext() if first else _quiet():
            _run_command(words)
        _leave()
    except KeyboardInterrupt:
        _tell(f"interrupted{go_on}", first)
        sys.exit(130)
    except Terminated as ended:
        _tell(f"terminated{go_on}", first)
        sys.exit(ended.code)
    except BrokenPipeError:  # the reader has gone, as in 'setwise table … | head'
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ValueError, TypeError, OSError, ModuleNotFoundError, FloatingPointError) as error:
        if os.environ.get("SETWISE_DEBUG"):
            raise
        print(f"setwise: {_sentence(error)}", file=sys.stderr)
        sys.exit(2)


def _tell(what: str, first: bool) -> None:
    if first:
        print(f"setwise: {what}", file=sys.stderr)


def _is_first() -> bool:
    """Whether this is the process that speaks; ranks load torch, which a process alone need not wait for."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return True
    from setwise import ranks

    return ranks.is_first()


def _leave() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from setwise import ranks

        ranks.leave()


def _run_command(words: Sequence[str]) -> None:
    config = (CascadeSubcommandArgs, FlagCreatePairsOff)
    if words and words[0] in COMMANDS:
        command = COMMANDS[words[0]]
        tyro.cli(command, prog=f"setwise {words[0]}", args=words[1:], config=config)
    else:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="setwise",
            description="Learning on sets by message passing over a latent graph.",
            args=words,
            config=config,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """One of several processes that torchrun started, but the first, which speaks for all of them.

    A failure of all is told by the first; then torchrun ends the others before they can. One of this process
    alone is told after a while.
    """
    said = io.StringIO()
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(said):
            yield
    except BaseException as error:
        asked_to_end = isinstance(error, KeyboardInterrupt | Terminated)
        if not asked_to_end and getattr(error, "code", 2) not in (0, None):
            time.sleep(LATER)
            sys.stderr.write(said.getvalue())
        raise


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot use {error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _need_writable(folder: Path) -> None:
    """Fail before the work, not after it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
