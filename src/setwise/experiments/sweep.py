"""Sweeps: many runs at the same time, in processes of this machine or on a cluster, through joblib.

Every run has a folder of its own, see `setwise.experiments.runner`; a sweep itself has no state. The same
sweep with ``resume`` skips finished runs and continues interrupted ones. Dask and Ray are joblib backends.
"""

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import joblib
import torch

from setwise import collectives
from setwise.experiments import runner
from setwise.experiments.base import Experiment
from setwise.experiments.config import difference
from setwise.experiments.sweep_progress import SweepProgress

MOST_JOBS = 1024
CONNECT_SECONDS = 10
SCHEMES = ("tcp", "tls", "ws", "wss", "inproc")

_PROCESS = threading.Lock()  # a worker with several threads makes one run at a time: random state is global


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    experiment: Experiment
    """The configuration, with its value of the varied field."""
    row: str
    """Name of the model."""
    seed: int
    """Random seed of the weights and the data."""

    @property
    def title(self) -> str:
        """Display title."""
        return runner.title(self.experiment, self.row, self.seed)

    def folder(self, out: Path) -> Path:
        """Return the folder of the run."""
        return runner.run_folder(out, self.experiment, self.row, self.seed)

    def record(self, results: Path) -> Path:
        """Return the file of its result."""
        return runner.result_path(results, self.experiment, self.row, self.seed)

    def run(self, out: Path, results: Path, *, resume: bool, show: bool) -> dict[str, Any]:
        """Train and test the model, see `setwise.experiments.runner.run`."""
        return runner.run(
            self.experiment, self.row, self.seed, out=out, results=results, resume=resume, show=show
        )


@dataclass(frozen=True)
class Sweep:
    """Settings that all runs of a sweep share."""

    out: Path
    """Folder of the runs' folders; the same path on every machine."""
    results: Path
    """Folder of the results; the same path on every machine."""
    resume: bool
    """Whether to continue interrupted runs."""
    threads: int | None
    """CPU threads of a run whose experiment does not set them; none leaves them unchanged."""


Results = Generator[tuple[Point, dict[str, Any]], None, None]
Outcome = tuple[int, dict[str, Any] | None, str]
"""Number of a point, and its result or an error message."""


def run_all(
    points: Iterable[Point],
    *,
    out: Path,
    results: Path,
    resume: bool = False,
    jobs: int | None = 1,
    cluster: str | None = None,
    show: bool = True,
) -> Results:
    """Train and test all points of a sweep, and yield results as they are ready.

    With one job, the first error ends the sweep. With several, the error of a run is printed to stderr and
    the other runs continue; a `ValueError` at the end tells how many failed. The order of the runs is then
    arbitrary, so no run may start from another run of the same sweep. Closing the generator stops the
    processes of this machine; a run on a cluster continues until it is finished.

    Args:
        points: the runs; duplicates are dropped.
        out: folder of the runs' folders.
        results: folder of the results.
        resume: continue interrupted runs and only read finished ones.
        jobs: number of processes; each run has the threads that its experiment sets, otherwise its share of
            the cores. None uses the backend of `joblib.parallel_config`.
        cluster: address of a Dask scheduler, or ``ray`` or ``ray://…``; the number of workers is the number
            of simultaneous runs. All machines must share ``out`` and ``results`` under the same path.
        show: whether to display progress.
    """
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise ValueError(f"jobs must lie between 1 and {MOST_JOBS}, got {jobs}")
    if cluster is not None and jobs not in (None, 1):
        raise ValueError(f"jobs must not be set on a cluster, whose workers determine it, got {jobs}")
    sequential = jobs == 1 and cluster is None
    processes = collectives.world_size()
    if not sequential and processes > 1:
        raise ValueError(f"a sweep in torchrun must have one job and no cluster, got {processes} processes")
    distinct = _distinct(points, out)
    if sequential:
        return _one_by_one(distinct, out, results, resume=resume, show=show)
    if cluster is not None:
        jobs = None
    threads = None if jobs is None else max(1, joblib.cpu_count() // jobs)
    sweep = Sweep(out=out.absolute(), results=results.absolute(), resume=resume, threads=threads)
    return _in_parallel(distinct, sweep, jobs, cluster, show=show)


def _distinct(points: Iterable[Point], out: Path) -> list[Point]:
    """Drop duplicates; refuse different points with the same folder."""
    by_folder: dict[Path, Point] = {}
    for point in points:
        other = by_folder.setdefault(point.folder(out), point)
        if other != point:
            differs = difference(asdict(other.experiment), asdict(point.experiment))
            raise ValueError(f"two points of the sweep have the same folder {point.folder(out)} ({differs})")
    return list(by_folder.values())


def _one_by_one(points: Sequence[Point], out: Path, results: Path, *, resume: bool, show: bool) -> Results:
    for point in points:
        yield point, point.run(out, results, resume=resume, show=show)


def _in_parallel(
    points: Sequence[Point], sweep: Sweep, jobs: int | None, cluster: str | None, *, show: bool
) -> Results:
    folders = [point.folder(sweep.out) for point in points]
    trainings = [
        (list(point.experiment.trials(point.seed)), point.experiment.training.steps) for point in points
    ]
    progress = SweepProgress(dict(zip(folders, trainings, strict=True))) if show else None
    failed = 0
    with (
        _connected(cluster) as backend,
        progress or nullcontext(),
        closing(_outcomes(points, sweep, jobs, backend)) as outcomes,
    ):
        for number, result, error in outcomes:
            point = points[number]
            if progress is not None:
                progress.end(folders[number])
            if result is not None and not point.record(sweep.results).exists():
                error = f"{sweep.results} has no record of it: all machines must share this folder"
            if result is None or error:
                failed += 1
                print(f"setwise: {point.title}: {error}", file=sys.stderr, flush=True)
            else:
                yield point, result
    if failed:
        raise ValueError(f"{failed} of {len(points)} runs failed: --resume repeats them, not the others")


def _outcomes(
    points: Sequence[Point], sweep: Sweep, jobs: int | None, backend: dict[str, Any]
) -> Generator[Outcome, None, None]:
    """Yield the outcome of each point, in any order."""
    sweep.out.mkdir(parents=True, exist_ok=True)
    tasks = []
    for number, point in enumerate(points):
        if sweep.resume and (point.folder(sweep.out) / "result.json").exists():
            yield attempt(number, point, sweep)  # only reads the result
        else:
            tasks.append(joblib.delayed(attempt)(number, point, sweep))
    if not tasks:
        return
    try:
        with joblib.parallel_config(**backend) if backend else nullcontext():
            stream = _parallel(jobs if jobs is None else min(jobs, len(tasks)))(tasks)
        with _closed(stream):
            yield from stream
    except Exception as error:  # of joblib, for instance if a worker was killed; errors of runs are outcomes
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise ValueError(f"the sweep was interrupted ({reason}); --resume continues it") from error


def attempt(number: int, point: Point, sweep: Sweep) -> Outcome:
    """Make a run in a worker; errors are returned as text, since not every exception can be pickled."""
    try:
        if not sweep.out.is_dir():
            raise FileNotFoundError(f"{sweep.out} does not exist here: all machines must share this folder")
        with _PROCESS:
            if sweep.threads is not None and point.experiment.threads is None:
                torch.set_num_threads(sweep.threads)
            return number, point.run(sweep.out, sweep.results, resume=sweep.resume, show=False), ""
    except Exception as error:
        if os.environ.get("SETWISE_DEBUG"):
            traceback.print_exc()
        plain = isinstance(error, ValueError | TypeError | OSError | ImportError | FloatingPointError)
        return number, None, str(error) if plain else f"{type(error).__name__}: {error}"


def _parallel(jobs: int | None) -> joblib.Parallel:
    options: dict[str, Any] = {"batch_size": 1, "pre_dispatch": "all"}
    if jobs is not None:  # Ctrl-C reaches all processes: workers leave it to this one, which stops them
        options |= {"n_jobs": jobs, "backend": "loky", "initializer": signal.signal}
        options |= {"initargs": (signal.SIGINT, signal.SIG_IGN)}
    try:
        return joblib.Parallel(return_as="generator_unordered", **options)
    except ValueError:  # Ray returns all results at the end
        return joblib.Parallel(**options)


@contextmanager
def _closed(stream: Any) -> Iterator[None]:
    """Close a generator of joblib in the end, without its warning that results are lost."""
    try:
        yield
    finally:
        if hasattr(stream, "close"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                stream.close()


@contextmanager
def _connected(cluster: str | None) -> Iterator[dict[str, Any]]:
    """Connect to a cluster and yield the arguments of `joblib.parallel_config`."""
    if cluster is None:
        yield {}
    elif cluster == "ray" or cluster.startswith("ray://"):
        with _ray(cluster):
            yield {"backend": "ray", "n_jobs": -1}
    else:
        with _dask(cluster) as client:
            yield {"backend": "dask", "client": client}


@contextmanager
def _dask(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ModuleNotFoundError(
            "a Dask cluster needs the distributed package: pip install 'setwise[cluster]'"
        ) from error
    scheme, _, rest = address.partition("://")
    if rest and scheme not in SCHEMES:
        raise ValueError(f"cluster must be an address with {', '.join(SCHEMES)} or ray, got {address!r}")
    open_client: Any = Client  # untyped
    try:
        client = open_client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cluster must be the address of a Dask scheduler, got no answer at {address!r}"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError as error:
            raise ValueError(f"the Dask scheduler at {address} has no workers") from error
        yield client


@contextmanager
def _ray(address: str) -> Iterator[None]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise ModuleNotFoundError("a Ray cluster needs the ray package: pip install ray") from error
    register_ray()
    if not ray.is_initialized():
        try:
            ray.init(None if address == "ray" else address, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise ValueError(
                f"cluster must be the address of a Ray cluster, got no answer at {address!r}"
            ) from error
    yield
