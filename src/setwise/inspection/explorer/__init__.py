"""The explorer: one self-contained HTML page on a run of an experiment or on a fitted model."""

from pathlib import Path


def write_page(
    source: Path | str,
    data: Path | str | None = None,
    out: Path | str = Path("page.html"),
    *,
    sets: int = 12,
    seed: int = 0,
    name: str | None = None,
    set_column: str = "set",
    label_column: str = "label",
    results: Path | str | None = None,
) -> Path:
    """Write a page on a run or a model: scores, learning curves, errors, and sets with their latent graphs.

    Args:
        source: the folder of a run, ``runs/<experiment>/<row>/<variant>``, or a model file.
        data: sets to show with a model: a file or folder that `setwise.io.readers.read_sets` reads. A run
            uses its own test sets.
        out: file for the page.
        sets: number of sets to show; up to half of them are wrong predictions.
        seed: random seed for the choice of sets.
        name: data set to read from an npz file that has several.
        set_column: column with the set ID, for tables.
        label_column: column with the label of the set, for tables.
        results: for a run, the folder with the results of all rows; ``results`` next to the runs by default.

    Returns:
        The path of the page.
    """
    source, out = Path(source), Path(out)
    if sets < 0:
        raise ValueError(f"sets must not be negative, got {sets}")
    if out.is_dir():
        raise IsADirectoryError(f"out must be an .html file, got the folder {out}")
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"out must be an .html file, got {out}")
    _check_source(source)
    if source.is_dir():
        if data is not None:
            raise ValueError(f"data must be omitted for a run, which has its own test sets, got {data}")
        from setwise.inspection.explorer import run as runs

        content = runs.page_content(
            source, sets=sets, seed=seed, results=None if results is None else Path(results)
        )
    else:
        from setwise.inspection.explorer import model as models

        content = models.read_page_content(
            source,
            None if data is None else Path(data),
            sets=sets,
            seed=seed,
            name=name,
            set_column=set_column,
            label_column=label_column,
        )
    from setwise._files import write_atomically
    from setwise.inspection.explorer.page import render

    write_atomically(out, render(content).encode())
    return out


def _check_source(source: Path) -> None:
    """Reject paths that are neither a run nor a model; name a run nearby if there is one."""
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist: expected the folder of a run or a model file")
    if (source / "config.json").exists() or source.suffix == ".safetensors":
        return
    if (source.parent / "config.json").exists():
        raise ValueError(f"{source} is a part of a run: explore {source.parent}")
    if source.is_dir():
        configs = (path for depth in (1, 2, 3) for path in source.glob("*/" * depth + "config.json"))
        nested = next(configs, None)
        hint = "" if nested is None else f"; {nested.parent} is one"
        raise FileNotFoundError(f"{source} is not the folder of a run: it has no config.json{hint}")
