"""The command line: ``setwise run | table | figure | rows EXPERIMENT``, ``setwise download DATA``."""

import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import CascadeSubcommandArgs, FlagCreatePairsOff, Positional

from setwise.experiments import EXPERIMENTS

if TYPE_CHECKING:
    from setwise.experiments.base import Experiment as Configured

    Name = str
else:
    Configured = tyro.extras.subcommand_type_from_defaults(
        {name: experiment() for name, experiment in EXPERIMENTS.items()},
        descriptions={name: experiment.__doc__ for name, experiment in EXPERIMENTS.items()},
        prefix_names=False,
    )
    Name = Literal[tuple(EXPERIMENTS)]


def run(
    experiment: Annotated[Configured, tyro.conf.arg(name="")],
    row: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0,),
    sweep: tuple[str, ...] = (),
    resume: bool = False,
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
        out: Where configuration, metrics and checkpoint of each run go.
        results: Where the results go on record, a JSON file a run.
    """
    rows = dict.fromkeys(row or experiment.ROWS)
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
    variants = [experiment.vary(value) for value in dict.fromkeys(named)]

    from setwise.experiments import runner

    for variant in variants:
        for name in rows:
            for seed in dict.fromkeys(seeds):
                result = runner.run(variant, name, seed, out=out, results=results, resume=resume)
                title = runner.title(variant, name, seed)
                print(f"{title}  test accuracy {result['accuracy']:.4f}  on {result['data']}", flush=True)


def table(experiment: Positional[Name], results: Path = Path("results"), markdown: bool = False) -> None:
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
    experiment: Positional[Name],
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


def rows(experiment: Positional[Name]) -> None:
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
    "run": run,
    "table": table,
    "figure": figure,
    "rows": rows,
    "download": download,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; what is wrong with it comes as one sentence and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an old terminal gets a question mark, not a traceback
    config = (CascadeSubcommandArgs, FlagCreatePairsOff)
    try:
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
    except KeyboardInterrupt:
        print("setwise: interrupted; --resume continues from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader has gone, as in 'setwise table … | head'
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ValueError, OSError, ModuleNotFoundError, FloatingPointError) as error:
        if os.environ.get("SETWISE_DEBUG"):
            raise
        print(f"setwise: {_sentence(error)}", file=sys.stderr)
        sys.exit(2)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot use {error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _need_writable(folder: Path) -> None:
    """Fail before the work, not after it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
