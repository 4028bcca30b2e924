"""A page to explore a run of an experiment, or a fitted model: one HTML file that needs nothing else."""

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
    """Write a page on a run or a model: scores, learning curves, mistakes, and sets with their latent graphs.

    Args:
        source: the folder of a run, ``runs/<experiment>/<row>/<variant>``, or the file of a fitted model.
        data: sets to look at with the model, a file or folder that `setwise.io.readers.read_sets` reads; a
            run has its own.
        out: where the page goes.
        sets: how many sets to show: wrong ones for half of them, if there are so many.
        seed: decides which.
        name: which of several data sets in an npz file.
        set_column: of a table, which set an element belongs to.
        label_column: of a table, the label of a set.
        results: for a run, where the results of all rows are on record; beside its runs unless given.

    Returns:
        Where the page is.
    """
    source, out = Path(source), Path(out)
    if sets < 0:
        raise ValueError(f"sets must not be negative, got {sets}")
    if out.is_dir():
        raise IsADirectoryError(f"out must be a file for the page, got the folder {out}")
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"out must be a file .html, got {out}")
    _need_source(source)
    if source.is_dir():
        if data is not None:
            raise ValueError(f"a run knows its own data, got {data} with {source}")
        from setwise.inspection.explorer import run as runs

        told = runs.story(source, sets=sets, seed=seed, results=None if results is None else Path(results))
    else:
        from setwise.inspection.explorer import model as models

        told = models.read_story(
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

    write_atomically(out, render(told).encode())
    return out


def _need_source(source: Path) -> None:
    """Refuse what is neither a run nor a model, and tell where a run is if one is near."""
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist: expected a run's folder or a model's file")
    if (source / "config.json").exists() or source.suffix == ".safetensors":
        return
    if (source.parent / "config.json").exists():
        raise ValueError(f"{source} is a part of a run: explore {source.parent}")
    if source.is_dir():
        below = (path for depth in (1, 2, 3) for path in source.glob("*/" * depth + "config.json"))
        inside = next(below, None)
        hint = "" if inside is None else f", but one is in {inside.parent}"
        raise FileNotFoundError(f"{source} is not a run, as it has no config.json{hint}")
