"""The entry point: parses arguments, runs a command, and handles Ctrl-C, SIGTERM and errors."""

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
from setwise.training.signals import Terminated, raise_on_sigterm

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
TRAINING_COMMANDS = ("fit", "run")
"""Commands that use every process of torchrun, and that have a --resume flag."""
ERROR_DELAY = 3.0
"""Seconds that a process other than the first waits before it prints an error of its own."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit.

    The exit code is 0 after success, 2 after an error, 130 after Ctrl-C, 143 after SIGTERM, and 141 if the
    reader of the output has gone. Errors are printed as one line; with the environment variable SETWISE_DEBUG
    set, the traceback is shown instead.

    Args:
        arguments: the words of the command line; those of this process by default.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    trains = bool(words) and words[0] in TRAINING_COMMANDS
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print ? where the terminal lacks a character
    first = _is_first()
    if not (first or trains):
        return  # commands without training run in one process
    try:
        keep_freed_memory()
        with raise_on_sigterm(), nullcontext() if first else _silenced():
            _run_command(words)
        _leave()
    except KeyboardInterrupt:  # Ctrl-C
        _exit_interrupted("interrupted", 130, resumable=trains, show=first)
    except Terminated as ended:
        _exit_interrupted("terminated", ended.code, resumable=trains, show=first)
    except BrokenPipeError:  # e.g. 'setwise table gaussian | head'
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ValueError, TypeError, OSError, ModuleNotFoundError, FloatingPointError) as error:
        if os.environ.get("SETWISE_DEBUG"):
            raise
        print(f"setwise: {_message(error)}", file=sys.stderr)
        sys.exit(2)


def _run_command(words: Sequence[str]) -> None:
    config = (CascadeSubcommandArgs, FlagCreatePairsOff)
    if words and words[0] in COMMANDS:  # parsing one command is faster than building the parsers of all
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


def _exit_interrupted(what: str, code: int | str | None, *, resumable: bool, show: bool) -> None:
    """Print that the command was stopped and how to continue it, then exit."""
    if show:
        hint = "; --resume continues from the last checkpoint" if resumable else ""
        print(f"setwise: {what}{hint}", file=sys.stderr)
    sys.exit(code)


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot use {error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


# Several processes, started by torchrun


def _is_first() -> bool:
    """Whether this process prints; torch is imported only under torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return True
    from setwise import collectives

    return collectives.is_first()


def _leave() -> None:
    """Leave the process group, if there is one."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from setwise import collectives

        collectives.shutdown()


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress the output of a process other than the first.

    If all processes fail, the first prints the error, and torchrun ends the others while they wait. If only
    this process fails, its error is printed after the delay.
    """
    errors = io.StringIO()
    try:
        with Path(os.devnull).open("w") as null, redirect_stdout(null), redirect_stderr(errors):
            yield
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | Terminated)
        if not stopped and getattr(error, "code", 2) not in (0, None):
            time.sleep(ERROR_DELAY)
            sys.stderr.write(errors.getvalue())
        raise
