"""Tests of the commands for the experiments, of exit codes and of error messages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from setwise.cli import main as cli

SMALL = ["--training.steps", "40", "--training.evaluations", "2", "--test-sets", "1000"]


def setwise(*words: str, expect: int = 0) -> None:
    """Run a command in this process."""
    try:
        cli.main(words)
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == expect


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_run_table_figure(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setwise("run", "gaussian", "--row", "v-dmps", "--seeds", "0", "1", "--sweep", "0.5", "0.9", *SMALL)
    out = capsys.readouterr()
    assert out.out.count("test accuracy 0.") == 4
    assert "V-DMPS  rho 0.9  seed 1  40/40  loss" in out.err
    names = {path.name for path in (here / "results" / "gaussian").iterdir()}
    assert names == {f"v-dmps_rho-{rho}_steps-40_seed-{seed}.json" for rho in (0.5, 0.9) for seed in (0, 1)}
    run = here / "runs" / "gaussian" / "v-dmps" / "rho-0.9_steps-40_seed-1"
    expected = {".lock", ".training", "checkpoint.pt", "config.json", "metrics.jsonl", "result.json"}
    assert {p.name for p in run.iterdir()} == expected

    setwise("table", "gaussian")
    table = capsys.readouterr().out
    assert table.count("V-DMPS") == 2
    assert "Bayes limit" in table
    setwise("table", "gaussian", "--markdown")
    assert capsys.readouterr().out.count("| V-DMPS |") == 2

    setwise("figure", "gaussian")
    drawn = capsys.readouterr().out.split()
    assert drawn == [str(Path("figures") / f"gaussian-{name}.png") for name in ("accuracy", "kernel")]
    assert all(Path(path).stat().st_size > 10_000 for path in drawn)


def test_run_defaults_to_all_rows_and_resume_skips_finished_ones(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setwise("run", "gaussian", *SMALL)
    assert len(list((here / "results" / "gaussian").iterdir())) == 2
    setwise("run", "gaussian", *SMALL, expect=2)
    assert "already contains a run: continue it with --resume" in capsys.readouterr().err
    setwise("run", "gaussian", "--resume", *SMALL)
    assert "loss" not in capsys.readouterr().err


def test_duplicate_runs_are_skipped(here: Path) -> None:
    words = ["--row", "deepsets", "deepsets", "--seeds", "0", "0", "--sweep", "0.5", "0.5"]
    setwise("run", "gaussian", *words, *SMALL)
    assert len(list((here / "results" / "gaussian").iterdir())) == 1


def test_table_prints_to_an_ascii_terminal_and_to_a_closed_pipe(here: Path) -> None:
    setwise("run", "gaussian", "--row", "deepsets", *SMALL)
    command = [sys.executable, "-c", "from setwise.cli.main import main; main()", "table", "gaussian"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert b"Test accuracy" in done.stdout
    reader, writer = os.pipe()
    os.close(reader)
    broken = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert broken.returncode in (1, 141)  # rich exits with 1 while it prints the table
    assert broken.stderr == b""


def test_options_may_precede_the_experiment(here: Path) -> None:
    setwise("run", "--row", "deepsets", "gaussian", *SMALL)
    assert len(list((here / "results" / "gaussian").iterdir())) == 1


def test_rows(capsys: pytest.CaptureFixture[str]) -> None:
    setwise("rows", "gaussian")
    assert capsys.readouterr().out.splitlines() == ["deepsets  DeepSets (W = I)", "v-dmps    V-DMPS"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run gaussian --row magic", "--row must be one of deepsets, v-dmps for gaussian, got 'magic'"),
        ("run gaussian --seeds", "--seeds needs at least one seed, got none"),
        ("run gaussian --rho 2", "rho must be at least 0 and below 1, got 2.0"),
        ("run gaussian --sweep 0.5 2", "rho must be at least 0 and below 1, got 2.0"),
        ("run gaussian --training.steps 0", "training.steps must be at least 1, got 0"),
        ("run gaussian --training.steps many", "many"),
        ("run gaussian --out blocked/x", "cannot use blocked"),
        ("run gaussian --results blocked", "cannot use blocked"),
        ("figure gaussian --out blocked", "no results in results"),
        ("table gaussian", "no results in results"),
        ("rows magic", "magic"),
        ("magic", "magic"),
        ("run", "Expected one of {gaussian, counting, pointcloud, diffusion, smoothing, histology, mil}"),
    ],
)
def test_errors_name_the_wrong_value(
    here: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    (here / "blocked").write_text("a file, not a folder")
    setwise(*words.split(), expect=2)
    out = capsys.readouterr()
    printed = " ".join((out.out + out.err).replace("│", " ").split())
    assert message in printed
    assert "Traceback" not in printed
    assert not list(here.glob("results/gaussian/*"))


def test_ctrl_c_exits_130_and_names_resume(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("setwise.experiments.runner.run", interrupt)
    setwise("run", "gaussian", expect=130)
    assert "--resume" in capsys.readouterr().err


def test_setwise_debug_shows_the_traceback(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETWISE_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        cli.main(["table", "gaussian"])


HELP = ["--help", "run --help", "run gaussian --help", "table --help", "rows gaussian", "fit --help"]
HELP += ["predict --help", "inspect --help", "export --help", "explore --help"]


@pytest.mark.parametrize("words", HELP)
def test_help_lists_the_options_without_importing_torch(words: str, tmp_path: Path) -> None:
    code = (
        "import sys; from setwise.cli import main as cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'matplotlib', 'sklearn', 'pandas', 'lightning_fabric'} & set(sys.modules)\n"
    )
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True,
        cwd=tmp_path, env=environment,
    )  # fmt: skip
    if words == "run gaussian --help":
        for option in ("--row", "--seeds", "--sweep", "--resume", "--out", "--rho", "--training.steps"):
            assert option in done.stdout
    if words == "fit --help":
        for option in ("DATA", "-o FILE", "--label-column", "--folds", "--max-epochs", "network options"):
            assert option in done.stdout
