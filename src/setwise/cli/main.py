"""The command line: parsing, exit codes, signals."""

import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

import tyro
from tyro.conf import CascadeSubcommandArgs, FlagCreatePairsOff

from setwise.cli.experiments import download, figure, rows, run, table
from setwise.cli.memory import keep_freed_memory
from setwise.cli.models import explore, export, fit, inspect, predict
from setwise.training.signals import Terminated, ended_by_signals

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
        keep_freed_memory()
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
    from setwise import collectives

    return collectives.is_first()


def _leave() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from setwise import collectives

        collectives.leave()


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
