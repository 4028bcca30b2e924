"""Reading one file under watch: what came of it, what it did besides, and how much memory it took."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MOST_MEGABYTES = 512.0
"""That reading a file of some kilobytes may take: twice what a compressed file may hold at least."""
LONGEST_MESSAGE = 1500

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
    *("tempfile.mkstemp", "tempfile.mkdtemp", "shutil.rmtree", "shutil.move", "shutil.copyfile"),
}
_DANGERS = {
    *("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.spawn", "os.posix_spawn"),
    *("ctypes.dlopen", "pickle.find_class", "socket.__new__", "socket.connect", "socket.bind"),
    *("urllib.Request", "webbrowser.open", "pty.spawn", "builtins.input"),
}
_KNOWN_PACKAGES = {
    *("setwise", "endurance", "numpy", "torch", "pandas", "pyarrow", "h5py", "PIL", "safetensors", "trimesh"),
    *("sklearn", "scipy", "jaxtyping", "dateutil", "networkx", "olefile", "defusedxml", "beartype"),
}


@dataclass(frozen=True)
class Outcome:
    """What came of reading a file: ``read``, ``refused`` or ``fault``, why, and the memory it took in MB."""

    kind: str
    message: str
    megabytes: float

    def as_dict(self) -> dict[str, Any]:
        """In terms of JSON."""
        return asdict(self)


class _Watch:
    """Notes what the interpreter does while it is on; an audit hook stays for good, so there is but one."""

    def __init__(self) -> None:
        self.on = False
        self.installed = False
        self.allowed = ""
        self.seen: list[str] = []

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, _, flags = args
            if isinstance(path, int):
                return  # it was opened before, by its name
            if isinstance(flags, int) and flags & _WRITES and not self._is_allowed(path):
                self.seen.append(f"opened {path!r} for writing")
        elif event in _CHANGES:
            if not any(self._is_allowed(path) for path in args):
                self.seen.append(f"{event} {args[:2]!r}")
        elif event in _DANGERS or (event in ("exec", "marshal.loads") and not _expected()):
            self.seen.append(f"{event} {args[:2]!r}"[:200])
        elif event == "import" and args[0].partition(".")[0] not in _KNOWN_PACKAGES | sys.stdlib_module_names:
            self.seen.append(f"import {args[0]}")

    def _is_allowed(self, path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        place = os.path.realpath(os.fsdecode(path))
        return bool(self.allowed) and place.startswith(self.allowed + os.sep)

    @contextmanager
    def watching(self, allowed: Path | None) -> Iterator[list[str]]:
        if not self.installed:
            sys.addaudithook(self.hook)
            self.installed = True
        self.allowed = "" if allowed is None else os.path.realpath(allowed)
        self.seen, self.on = [], True
        try:
            yield self.seen
        finally:
            self.on = False


_WATCH = _Watch()


def _expected() -> bool:
    """Whether code is executed by an import, or by the libraries that check types in the tests."""
    caller = sys._getframe(2).f_code.co_filename
    return caller.startswith("<frozen importlib") or any(
        f"{os.sep}{package}{os.sep}" in caller for package in ("beartype", "jaxtyping")
    )


def observe(
    read: Callable[[Path], object],
    path: Path,
    *,
    by_folder: bool = False,
    writes: Path | None = None,
    most_megabytes: float = MOST_MEGABYTES,
) -> Outcome:
    """Read a file, which may fail with a ValueError or OSError that names it, and with nothing else.

    Args:
        read: reads it.
        path: the file.
        by_folder: whether the error may name its folder instead.
        writes: the one folder that may be written to, such as a cache.
        most_megabytes: of memory that reading may take.
    """
    before = _reset_peak()
    kind, message = "read", ""
    with _WATCH.watching(writes) as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(path)
        except (ValueError, OSError) as error:
            kind, message = "refused", str(error)
            if fault := _fault_of(error, (path.name, path.parent.name) if by_folder else (path.name,)):
                kind, message = "fault", f"{fault}: {type(error).__name__}: {message[:LONGEST_MESSAGE]}"
        except BaseException as error:
            kind, message = "fault", f"{type(error).__name__}: {str(error)[:LONGEST_MESSAGE]}"
    grown = max(_peak() - before, 0.0)
    if grown > most_megabytes:
        kind, message = "fault", f"it took {grown:.0f} MB: {message}"
    if seen:
        kind, message = "fault", f"{'; '.join(seen[:5])}: {message}"
    return Outcome(kind, message, grown)


def _fault_of(error: BaseException, names: tuple[str, ...]) -> str | None:
    """What is wrong with the way in which a file was refused."""
    message = str(error)
    if not any(name in message for name in names):
        return "the message does not name the file"
    if "\n" in message or len(message) > LONGEST_MESSAGE:
        return "the message is more than a sentence"
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if isinstance(cause, MemoryError) or "can't allocate" in text or "unable to allocate" in text:
            return "it asked for memory that is not there"
        cause = cause.__cause__ or cause.__context__
    return None


def _reset_peak() -> float:
    """Forget the peak of memory so far, where the system can; the megabytes in use now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def _status(name: str) -> float:
    """A figure of this process in megabytes, as Linux tells it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    return 0.0
