"""The allocator settings of the command line."""

import pytest

from setwise.cli.memory import keep_freed_memory


def test_freed_memory_is_kept_if_the_system_supports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    limit = 0

    class Library:
        def __init__(self, name: object) -> None:
            assert name is None

        def mallopt(self, option: int, value: int) -> int:
            calls.append((option, value))
            return int(option == -1 or value <= limit)

    monkeypatch.delenv("SETWISE_REUSE_MEMORY", raising=False)
    monkeypatch.setattr("ctypes.CDLL", Library)
    assert not keep_freed_memory()  # an older library with a limit of its own
    assert calls == [(-3, 2**27), (-1, 2**30)]
    limit = 2**30
    assert keep_freed_memory()
    monkeypatch.setenv("SETWISE_REUSE_MEMORY", "0")
    calls.clear()
    assert not keep_freed_memory()
    assert not calls
    monkeypatch.delenv("SETWISE_REUSE_MEMORY")
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not keep_freed_memory()
