"""Many runs at the same time: in processes of this machine, or on a cluster.

Every run keeps to a folder of its own, as `setwise.experiments.runner` has it. A sweep thus needs no memory:
whatever stopped it, the same sweep with ``resume`` goes on where it was. joblib spreads the runs, so that
Dask and Ray are other backends of the same call.
"""

import os
import socket
import sys
import uuid
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import joblib

from setwise import collectives
from setwise.experiments.config import difference
from setwise.experiments.sweep_progress import Board
from setwise.experiments.sweep_worker import Outcome, Point, Sweep, alive, attempt

__all__ = ["Point", "run_all"]

MOST_JOBS = 1024
CONNECT_SECONDS = 10
SCHEMES = ("tcp", "tls", "ws", "wss", "inproc")

Results = Generator[tuple[Point, dict[str, Any]], None, None]


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
    """Train and test all points of a sweep; results come as they are ready.

    One at a time, the first error ends the sweep. Several at a time, a run that fails is told of on stderr
    and the others go on; a `ValueError` at the end says how many failed. Their order is open then, so that
    none may go on from another one of the same sweep. Closing the generator stops what still runs.

    Args:
        points: what to run; the same point twice is one run.
        out: where the folders of the runs go.
        results: where the results go on record.
        resume: continue interrupted runs, only read finished ones.
        jobs: runs at the same time, each in a process of its own, with the threads that its experiment asks
            for, else its share of the cores; none leaves it to `joblib.parallel_config`.
        cluster: address of a Dask scheduler, or ``ray`` or ``ray://…``; it makes as many runs at the same
            time as it has workers. All machines must see ``out`` and ``results`` under the same path.
        show: whether to show how far it has come.
    """
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise ValueError(f"jobs must lie between 1 and {MOST_JOBS}, got {jobs}")
    if cluster is not None and jobs not in (None, 1):
        raise ValueError(f"jobs must be left out on a cluster, whose workers decide, got {jobs}")
    alone = jobs == 1 and cluster is None
    if not alone and collectives.world() > 1:
        raise ValueError(
            f"a sweep within torchrun must have one job and no cluster, got {collectives.world()} processes"
        )
    chosen = _distinct(points, out)
    if alone:
        return _one_by_one(chosen, out, results, resume=resume, show=show)
    if cluster is not None:
        jobs = None
    sweep = Sweep(
        out=out.absolute(),
        results=results.absolute(),
        resume=resume,
        threads=None if jobs is None else max(1, joblib.cpu_count() // jobs),
        sign=out.absolute() / f".sweep-{uuid.uuid4().hex}",
        machine=socket.gethostname(),
        process=os.getpid(),
    )
    return _at_once(chosen, sweep, jobs, cluster, show=show)


def _distinct(points: Iterable[Point], out: Path) -> list[Point]:
    """Every point once; refuses different ones that would share a folder."""
    found: dict[Path, Point] = {}
    for point in points:
        other = found.setdefault(point.folder(out), point)
        if other != point:
            differs = difference(asdict(other.experiment), asdict(point.experiment))
            raise ValueError(f"two points of the sweep would share {point.folder(out)} ({differs})")
    return list(found.values())


def _one_by_one(points: Sequence[Point], out: Path, results: Path, *, resume: bool, show: bool) -> Results:
    for point in points:
        yield point, point.run(out, results, resume=resume, show=show)


def _at_once(
    points: Sequence[Point], sweep: Sweep, jobs: int | None, cluster: str | None, *, show: bool
) -> Results:
    folders = [point.folder(sweep.out) for point in points]
    trainings = [
        (list(point.experiment.trials(point.seed)), point.experiment.training.steps) for point in points
    ]
    board = Board(dict(zip(folders, trainings, strict=True))) if show else None
    failed = 0
    with (
        _connected(cluster) as backend,
        alive(sweep.sign),
        board or nullcontext(),
        closing(_outcomes(points, sweep, jobs, backend)) as outcomes,
    ):
        for number, result, trouble in outcomes:
            point = points[number]
            if board is not None:
                board.over(folders[number])
            if result is not None and not point.record(sweep.results).exists():
                trouble = f"{sweep.results} got no record of it: all machines must share that folder"
            if result is None or trouble:
                failed += 1
                print(f"setwise: {point.title}: {trouble}", file=sys.stderr, flush=True)
            else:
                yield point, result
    if failed:
        raise ValueError(
            f"{failed} of {len(points)} runs failed: --resume tries them again and skips the finished ones"
        )


def _outcomes(
    points: Sequence[Point], sweep: Sweep, jobs: int | None, backend: dict[str, Any]
) -> Generator[Outcome, None, None]:
    """What becomes of the points, in whatever order."""
    waiting = []
    for number, point in enumerate(points):
        if sweep.resume and (point.folder(sweep.out) / "result.json").exists():
            yield attempt(number, point, sweep)  # to read it takes no other process
        else:
            waiting.append(joblib.delayed(attempt)(number, point, sweep))
    if not waiting:
        return
    try:
        with joblib.parallel_config(**backend) if backend else nullcontext():
            stream = _parallel(jobs if jobs is None else min(jobs, len(waiting)))(waiting)
        with _stopped(stream):
            yield from stream
    except Exception as error:  # of what makes the runs, not of a run: perhaps a process that was killed
        what = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise ValueError(f"the sweep was cut short, and --resume goes on with it ({what})") from error


def _parallel(jobs: int | None) -> joblib.Parallel:
    where = {} if jobs is None else {"n_jobs": jobs, "backend": "loky"}
    options = {"batch_size": 1, "pre_dispatch": "all", **where}
    try:
        return joblib.Parallel(return_as="generator_unordered", **options)
    except ValueError:  # Ray hands over all results at the end
        return joblib.Parallel(**options)


@contextmanager
def _stopped(stream: Any) -> Iterator[None]:
    """In the end, stop what still runs; joblib would warn that somebody may want it."""
    try:
        yield
    finally:
        if hasattr(stream, "close"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                stream.close()


@contextmanager
def _connected(cluster: str | None) -> Iterator[dict[str, Any]]:
    """What `joblib.parallel_config` must be told of a cluster, while connected to it."""
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
        raise ValueError(f"cluster must be an address by {', '.join(SCHEMES)} or ray, got {address!r}")
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
