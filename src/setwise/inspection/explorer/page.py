"""A story as one HTML page: it stands alone, loads nothing and asks nobody.

Numbers go into the page as JSON, arrays as compressed bytes in base64, pictures as data URIs. What users
write is only ever shown as text. A content security policy forbids the page to load anything at all, and to
run any script but its own.
"""

import base64
import hashlib
import html
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped, UInt8

from setwise.inspection.explorer.content import Curve, ShownSet, Story

SCRIPTS = ("basics", "edges", "chart", "report", "view", "panel", "hands", "page")
"""The parts of the page's script, in the order in which they need each other."""
LARGEST = 2_000
"""Elements of a set that a page can show: its graph has the square of that, and all of it is in the page."""
FINE = 2**18
"""Weights of a graph that are kept to 65,535 levels; larger graphs have 255, one byte a weight."""
SPAN = 1e-6
"""Weights below this share of the largest count as none."""
AS_THEY_ARE = ("name", "kind", "label", "prediction", "correct", "scores", "energies", "elements", "patch")
"""Parts of a set that go into the page unchanged."""
POINTS = 1_000
"""Points of a curve that are drawn."""
PIXELS = 2_048
"""Longest side of a sheet of pictures, and of the picture of a slide."""
SLIDE = 1_000_000
"""Bytes of the picture of a slide."""


def render(story: Story) -> str:
    """A page that tells a story: all that a browser needs, in one string.

    Pictures need pillow. The graph of a set is kept on a logarithmic scale, each weight to within half a step
    of it. With 65,535 levels that is 0.02 % at most; with 255, where the graph is large, it is 0.4 % of a
    weight if the largest is e² times the smallest, and below 3 % in any case.

    >>> page = render(Story("Counting", lead="How many kinds are in a set?"))
    >>> "<title>Counting</title>" in page, "://" in page
    (True, False)
    """
    data = {
        "title": story.title,
        "lead": story.lead,
        "facts": story.facts,
        "table": story.table and vars(story.table),
        "curves": [_curve(curve) for curve in story.curves],
        "confusion": story.confusion and vars(story.confusion),
        "sets": [_shown(shown) for shown in story.sets],
    }
    style = _read("page.css")
    script = "\n".join(_read(f"{name}.js") for name in SCRIPTS)
    parts = {
        "title": html.escape(story.title).encode("ascii", "xmlcharrefreplace").decode(),
        "policy": (
            f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; "
            f"script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
        ),
        "style": style,
        "script": script,
        "story": json.dumps(_finite(data), allow_nan=False).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("page.html"))


def _read(name: str) -> str:
    return files("setwise.inspection.explorer").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _finite(value: Any) -> Any:
    """The same data as JSON can hold it: what is no finite number is null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _packed(array: Shaped[np.ndarray, "..."]) -> str:
    """The bytes of an array, low ones first, compressed, in base64."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()


def _curve(curve: Curve) -> dict[str, Any]:
    """A curve, of a long one only the lowest and the highest point of each stretch."""
    points = [(float(step), float(value)) for step, value in curve.points]
    if len(points) > POINTS:
        stretches = np.array_split(np.arange(len(points)), POINTS // 2)
        values = np.array([value for _, value in points])
        ends = [
            {*stretch[[0, -1]]}
            if np.isnan(values[stretch]).all()
            else {stretch[np.nanargmin(values[stretch])], stretch[np.nanargmax(values[stretch])]}
            for stretch in stretches
        ]
        points = [points[i] for i in sorted(set().union(*ends, {0, len(points) - 1}))]
    return {"panel": curve.panel, "name": curve.name, "points": points}


def _shown(shown: ShownSet) -> dict[str, Any]:
    _check(shown)
    places, unplaced = _places(shown)
    groups = [name for name, _ in Counter(shown.groups).most_common()]
    graphless = shown.weights is None and shown.kernel is None
    return {name: getattr(shown, name) for name in AS_THEY_ARE} | {
        "remark": shown.remark,
        "size": len(places),
        "axes": places.shape[1],
        "places": _packed(places),
        "unplaced": unplaced,
        "graphless": graphless,
        "weights": _graph(np.zeros((len(places),) * 2) if graphless else shown.weights),
        "kernel": _graph(shown.kernel),
        "importance": None if shown.importance is None else np.asarray(shown.importance).tolist(),
        "groups": groups,
        "group": [groups.index(name) for name in shown.groups],
        "pictures": None if shown.images is None else _sheet(shown.images),
        "background": None if shown.background is None else _slide(shown.background),
    }


def _check(shown: ShownSet) -> None:
    """All parts of a set must fit together."""
    n, where = len(shown.places), f"of the set {shown.name!r}"
    if n > LARGEST:
        raise ValueError(f"a page shows sets of at most {LARGEST} elements, got {n}: give a part {where}")
    if shown.places.ndim != 2 or shown.places.shape[1] not in ((2,) if shown.kind == "patches" else (2, 3)):
        raise ValueError(
            f"places {where} must be two or three coordinates each, got {list(shown.places.shape)}"
        )
    for name, matrix in (("weights", shown.weights), ("kernel", shown.kernel)):
        if matrix is not None and matrix.shape != (n, n):
            raise ValueError(f"{name} {where} must be [{n}, {n}], got {list(matrix.shape)}")
    parts: dict[str, Sequence[object] | np.ndarray | None] = {
        "importance": shown.importance,
        "elements": shown.elements or None,
        "groups": shown.groups or None,
        "images": shown.images,
    }
    for name, part in parts.items():
        if part is not None and len(part) != n:
            raise ValueError(f"{name} {where} must be one for each of the {n} elements, got {len(part)}")
    for name, pixels in (("images", shown.images), ("background", shown.background)):
        if pixels is not None and pixels.dtype != np.uint8:
            raise ValueError(f"{name} {where} must be bytes, uint8, got {pixels.dtype}")
    if shown.images is not None and shown.images.shape[3:] not in ((), (3,)):
        raise ValueError(f"images {where} must be [n, h, w] or [n, h, w, 3], got {list(shown.images.shape)}")
    if shown.background is not None and shown.background.shape[2:] != (3,):
        raise ValueError(f"background {where} must be [h, w, 3], got {list(shown.background.shape)}")
    if shown.kind == "images" and shown.images is None:
        raise ValueError(f"images {where} are missing, which its kind 'images' needs")
    if shown.kind == "patches" and not shown.patch:
        raise ValueError(f"patch {where} must be a side in pixels, got {shown.patch}")


def _places(shown: ShownSet) -> tuple[Float[np.ndarray, "n axes"], int]:
    """Places as the page needs them, and how many are none and lie in the middle instead.

    Patches keep their pixels; all else is moved and scaled to lie between −1 and 1.
    """
    places = np.array(shown.places, dtype=np.float64)
    there = np.isfinite(places).all(1)
    if not there.all():
        places[~there] = np.median(places[there], axis=0) if there.any() else 0.0
    if shown.kind != "patches" and len(places):
        low, high = places.min(0), places.max(0)
        places -= low / 2 + high / 2
        places /= max(float(np.abs(places).max()), np.finfo(float).tiny)
    return places.astype(np.float32), int((~there).sum())


def _graph(weights: Float[np.ndarray, "n n"] | None) -> dict[str, Any] | None:
    """A graph as levels on a logarithmic scale from ``low`` to ``high``; level 0 is no weight.

    A symmetric one is kept as the pairs above its diagonal. What elements weigh for themselves is kept apart.
    """
    if weights is None:
        return None
    W = np.array(weights, dtype=np.float64)
    strange = int((~np.isfinite(W)).sum())
    W[~np.isfinite(W)] = 0.0
    own = W.diagonal().astype(np.float32)
    np.fill_diagonal(W, 0.0)
    high = W.max(initial=0.0)
    W[SPAN * high > W] = 0.0
    low = W.min(where=W > 0, initial=high)
    symmetric = np.allclose(W, W.T, rtol=1e-5, atol=0.0)
    kept = W[np.triu_indices(len(W), 1)] if symmetric else W.ravel()
    there = kept > 0
    steps = (65_535 if there.sum() <= FINE else 255) - 1
    levels = np.zeros(len(kept), np.min_scalar_type(steps))
    levels[there] = 1 + np.rint(
        steps * np.log(kept[there] / low) / (math.log(high / low) if low < high else 1)
    )
    return {
        "low": low,
        "high": high,
        "steps": steps,
        "symmetric": symmetric,
        "levels": _packed(levels),
        "own": _packed(own),
        "error": (high / low) ** (0.5 / steps) - 1 if high > 0 else 0.0,
        "strange": strange,
    }


def _sheet(images: UInt8[np.ndarray, "n h w *c"]) -> dict[str, Any]:
    """All pictures of a set on one sheet, line by line; large ones smaller than they were."""
    n, height, width = images.shape[:3]
    columns = max(math.ceil(math.sqrt(n)), 1)
    shrink = min(1.0, PIXELS / (columns * max(height, width)))
    width, height = max(int(width * shrink), 1), max(int(height * shrink), 1)
    Image = _pillow()
    sheet = Image.new("RGB" if images.ndim == 4 else "L", (columns * width, math.ceil(n / columns) * height))
    for i, image in enumerate(images):
        picture = Image.fromarray(image)
        if shrink < 1:
            picture = picture.resize((width, height))
        sheet.paste(picture, (i % columns * width, i // columns * height))
    return {"columns": columns, "width": width, "height": height, "uri": _uri(sheet, "PNG", optimize=True)}


def _slide(pixels: UInt8[np.ndarray, "h w c"]) -> dict[str, Any]:
    """The picture of a slide, as small as need be; ``width`` and ``height`` are the true ones."""
    height, width = pixels.shape[:2]
    picture = _pillow().fromarray(pixels).convert("RGB")
    picture.thumbnail((PIXELS, PIXELS))
    while len(uri := _uri(picture, "JPEG", quality=85)) > SLIDE * 4 / 3 and max(picture.size) > 1:
        picture.thumbnail((picture.width * 3 // 4, picture.height * 3 // 4))
    return {"width": width, "height": height, "uri": uri}


def _uri(picture: Any, kind: str, **options: Any) -> str:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pictures on a page need pillow: pip install 'setwise[data]'") from error
    return Image
