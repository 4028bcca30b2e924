"""Commands for the experiments of the paper: run, table, figure, rows, download."""

import sys
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional

from setwise.cli.arguments import Flag, Name, OptionalNames, check_writable
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
    Experiment = Annotated[
        Positional[Literal[tuple(EXPERIMENTS)]],
        tyro.conf.arg(metavar="EXPERIMENT", help=f"One of {', '.join(EXPERIMENTS)}.", help_behavior_hint=""),
    ]


def run(
    experiment: Annotated[Configured, tyro.conf.arg(name="")],
    row: OptionalNames = (),
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (0,),
    sweep: Annotated[tuple[str, ...], tyro.conf.arg(metavar="VALUE ...", help_behavior_hint="")] = (),
    resume: Flag = False,
    jobs: int = 1,
    cluster: Name = None,
    out: Path = Path("runs"),
    results: Path = Path("results"),
) -> None:
    """Train and test the models of an experiment, and save the results.

    Args:
        experiment: The experiment to run.
        row: Rows of the results table to run (default: all); 'setwise rows EXPERIMENT' lists them.
        seeds: Random seeds; each row is run once per seed.
        sweep: Values of the sweep parameter, one run per value:
            rho (gaussian), split (counting), points (pointcloud),
            gamma (diffusion), depth (smoothing), by (histology),
            bags (mil).
        resume: Continue interrupted runs and skip finished ones.
        jobs: Number of runs in parallel, one process each.
        cluster: Run on a cluster: the address of a Dask scheduler, 'ray', or ray://ADDRESS.
        out: Folder for the configuration, metrics and checkpoint of each run.
        results: Folder for the results, one JSON file per run.
    """
    rows = row or tuple(experiment.ROWS)
    for name in rows:
        if name not in experiment.ROWS:
            raise ValueError(
                f"--row must be one of {', '.join(experiment.ROWS)} for {experiment.name}, got {name!r}"
            )
    if not seeds:
        raise ValueError("--seeds needs at least one seed, got none")
    check_writable(out)
    check_writable(results)
    values = [value for given in sweep for value in experiment.vary(given).values] or experiment.values
    variants = [experiment.vary(value) for value in values]

    from setwise.experiments.sweep import Point, run_all

    points = [Point(variant, name, seed) for variant in variants for name in rows for seed in seeds]
    finished = run_all(points, out=out, results=results, resume=resume, jobs=jobs, cluster=cluster)
    with closing(finished):
        for point, result in finished:
            print(f"{point.title}  test accuracy {result['accuracy']:.4f}  on {result['data']}", flush=True)


def table(experiment: Experiment, results: Path = Path("results"), markdown: Flag = False) -> None:
    """Print the results of an experiment next to the numbers of the paper.

    Args:
        experiment: the name of the experiment.
        results: Folder with the results.
        markdown: Print a Markdown table.
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
    experiment: Experiment,
    results: Path = Path("results"),
    out: Path = Path("figures"),
) -> None:
    """Draw the figures of an experiment from its results.

    Args:
        experiment: the name of the experiment.
        results: Folder with the results.
        out: Folder for the figures.
    """
    from setwise.experiments import report

    chosen = EXPERIMENTS[experiment]
    groups = report.by_data(report.load_results(results, chosen))
    out.mkdir(parents=True, exist_ok=True)
    for number, recorded in enumerate(groups.values()):
        with warnings.catch_warnings(record=True) as caught:
            figures = chosen.figures(recorded)
        for warning in caught:
            print(f"setwise: {warning.message}", file=sys.stderr)
        for name, drawing in figures.items():
            path = out / f"{name}{f'-{number + 1}' if number else ''}.png"
            drawing.savefig(path, dpi=150)
            print(path)


def rows(experiment: Experiment) -> None:
    """List the rows of an experiment: the name for --row, and the name in the paper.

    Args:
        experiment: the name of the experiment.
    """
    width = max(map(len, EXPERIMENTS[experiment].ROWS))
    for name, label in EXPERIMENTS[experiment].ROWS.items():
        print(f"{name:{width}}  {label}")


def download(data: Positional[Literal["omniglot"]]) -> None:
    """Download a public data set to the folder SETWISE_DATA (default: the cache).

    Args:
        data: Name of the data set.
    """
    from setwise.experiments.data.omniglot import download_omniglot

    for path in download_omniglot():
        print(path)
