"""Downloads from a local server."""

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from setwise.cli.main import main
from setwise.experiments.data import omniglot
from setwise.experiments.data.download import download


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """URL of a local server, and the folder that it serves."""
    folder = tmp_path / "public"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}", folder
        http.shutdown()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def test_a_file_arrives_whole_and_only_once(server: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = server
    data = bytes(range(256)) * 10_000
    (folder / "x.zip").write_bytes(data)
    path = download(f"{address}/x.zip", tmp_path / "new" / "x.zip", md5=md5(data))
    assert path.read_bytes() == data
    (folder / "x.zip").unlink()
    assert download(f"{address}/x.zip", path, md5=md5(data)) == path


def test_a_file_with_a_wrong_checksum_is_not_kept(server: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = server
    (folder / "x.zip").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"not the expected file: .*checksum 00, got [0-9a-f]{32}"):
        download(f"{address}/x.zip", tmp_path / "x.zip", md5="00")
    assert not (tmp_path / "x.zip").exists()


def test_a_file_that_is_too_large_is_refused(server: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = server
    (folder / "x.zip").write_bytes(bytes(100))
    with pytest.raises(ValueError, match="larger than 99 bytes"):
        download(f"{address}/x.zip", tmp_path / "x.zip", md5=md5(bytes(100)), max_bytes=99)


def test_a_failed_download_names_the_target(server: tuple[str, Path], tmp_path: Path) -> None:
    address, _ = server
    with pytest.raises(ConnectionError, match=r"cannot download .*/x\.zip .*404.* save it as .*x\.zip"):
        download(f"{address}/x.zip", tmp_path / "x.zip", md5="00")


def test_omniglot_from_the_command_line(
    server: tuple[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address, folder = server
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(omniglot, "FILES", address)
    monkeypatch.setattr(omniglot, "CHECKSUMS", {part: md5(part.encode()) for part in omniglot.PARTS})
    for part in omniglot.PARTS:
        (folder / f"{part}.zip").write_bytes(part.encode())
    main(["download", "omniglot"])
    paths = [tmp_path / "data" / "omniglot" / f"{part}.zip" for part in omniglot.PARTS]
    assert capsys.readouterr().out.split() == [str(path) for path in paths]
    assert all(path.read_bytes() == path.stem.encode() for path in paths)
    paths[0].unlink()
    (folder / paths[0].name).unlink()
    with pytest.raises(SystemExit, match="2"):
        main(["download", "omniglot"])
    assert "setwise: cannot download" in capsys.readouterr().err


def test_checksums_are_of_both_halves() -> None:
    assert omniglot.CHECKSUMS.keys() == omniglot.PARTS.keys()
    assert all(len(bytes.fromhex(md5)) == 16 for md5 in omniglot.CHECKSUMS.values())
