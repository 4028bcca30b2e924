"""Commands for the experiments of the paper: run, table, figure, rows, download."""

import sys
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional

from setwise.cli.arguments import Name, need_writable
from setwise.experiments import EXPERIMENTS

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
    need_writable(out)
    need_writable(results)
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
    from setwise.experiments.data.omniglot import download_omniglot

    for path in download_omniglot():
        print(path)
