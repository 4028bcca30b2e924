"""The examples, at a small budget."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from onnxruntime import InferenceSession

pytestmark = pytest.mark.usefixtures("unchecked")  # as users run them

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run an example; return its output and the figure, which it writes to a new folder."""

    def run_example(name: str, *arguments: str) -> tuple[str, np.ndarray]:
        picture = tmp_path / "made" / "picture.png"
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--out", str(picture)])
        runpy.run_path(str(FOLDER / name), run_name="__main__")
        output = capsys.readouterr().out
        assert output.splitlines()[-1] == str(picture)
        return output, imread(picture)

    return run_example


def rows(output: str) -> dict[str, list[str]]:
    """Rows of a printed table by their first cell."""
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines() if "│" in line
    ]
    return {first: others for first, *others in cells}


def colours(image: np.ndarray) -> int:
    return len(np.unique((image[..., :3] * 8).astype(int).reshape(-1, 3), axis=0))


def test_bags(run) -> None:
    output, image = run("bags.py", "--sets", "60", "--epochs", "15")
    table = rows(output)
    assert list(table) == ["1", "2", "3", "4", "5", "mean"]
    folds = np.array([table[str(fold)] for fold in range(1, 6)], dtype=float)
    assert np.allclose(folds.mean(0), np.array(table["mean"], dtype=float), atol=1e-3)
    accuracy, auc, baseline = folds.mean(0)
    assert accuracy > 0.8 > 0.65 > baseline
    assert auc > 0.85
    auc_spots = float(re.search(r"are more important than other patches in (\S+)% of all pairs", output)[1])
    assert auc_spots > 95  # the spots are not labelled
    assert colours(image) > 20


def test_bags_of_the_benchmarks(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    bag = np.repeat(np.arange(40), 5)
    y = np.arange(40) % 2
    x = rng.normal(size=(200, 3)) + 3 * y[bag, None]
    (tmp_path / "mil").mkdir()
    np.savez(tmp_path / "mil" / "mil_classic.npz", musk1_X=x, musk1_bag=bag, musk1_y=y)
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path))
    output, image = run("bags.py", "--bags", "musk1", "--epochs", "5")
    assert float(rows(output)["mean"][0]) > 0.95
    assert "spot" not in output
    assert colours(image) > 3


def test_point_clouds(run) -> None:
    output, image = run("point_clouds.py", "--sets", "12", "--epochs", "12")
    table = rows(output)
    kinds = ["box", "cone", "cylinder", "sphere", "torus"]
    assert list(table) == kinds
    counts = np.array([[0 if cell == "·" else int(cell) for cell in table[kind]] for kind in kinds])
    assert counts.sum(1).tolist() == [3] * 5
    share, count = re.search(r"(\S+)% accuracy on (\d+) test sets", output).groups()
    assert int(count) == 15
    assert np.trace(counts) / 15 == pytest.approx(float(share) / 100, abs=1e-3)
    assert np.trace(counts) > 9
    assert "one of the boxes: The graph relates 400 elements" in output
    assert colours(image) > 20


def test_count_and_export(run, tmp_path: Path) -> None:
    output, image = run("count_and_export.py", "--sets", "120", "--epochs", "12")
    table = {name: [float(cell.split("%")[0]) for cell in cells] for name, cells in rows(output).items()}
    assert list(table) == ["mean and max", "distinct", "distinct, ONNX"]
    assert table["distinct"] == table["distinct, ONNX"]
    assert min(table["distinct"]) > 80 > max(table["mean and max"])
    assert float(re.search(r"differ by at most (\S+)", output)[1]) < 1e-3
    assert colours(image) > 3
    session = InferenceSession(tmp_path / "made" / "picture.onnx")
    x = np.zeros((1, 30, 2), dtype=np.float32)
    (out,) = session.run(["out"], {"x": x, "mask": np.ones((1, 30), dtype=bool)})
    assert np.exp(out.item()) == pytest.approx(1, abs=0.3)  # thirty equal elements


@pytest.mark.parametrize("name", ["bags.py", "point_clouds.py", "count_and_export.py"])
def test_too_few_sets_are_refused(run, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(name, "--sets", "7")
    assert "--sets must be at least" in capsys.readouterr().err


@pytest.mark.parametrize("example", sorted(FOLDER.glob("*.py")), ids=lambda p: p.name)
def test_every_example_documents_its_command(example: Path) -> None:
    assert f"python examples/{example.name} " in example.read_text()
