"""Render the content of a page as one self-contained HTML file.

Numbers are stored as JSON, arrays as compressed bytes in base64, images as data URIs. Strings of users are
only inserted as text. A content security policy forbids the page to load any resource or to run any script
but its own.
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

from setwise.inspection.explorer.content import Curve, PageContent, ShownSet

SCRIPTS = ("helpers", "graph", "chart", "report", "edges", "view", "panel", "interaction", "page")
"""The scripts of the page, in the order in which they are joined."""
MAX_ELEMENTS = 2_000
"""Size of the largest set that a page can show; the page holds its whole n × n graph."""
MAX_FINE_WEIGHTS = 2**18
"""Graphs with up to this many weights are stored with 65,535 levels, larger ones with 255, one byte each."""
MIN_WEIGHT = 1e-6
"""Weights below this fraction of the largest are stored as zero."""
UNCHANGED = ("name", "kind", "label", "prediction", "correct", "scores", "energies", "elements", "patch")
"""Fields of a set that are stored unchanged."""
MAX_POINTS = 1_000
"""Maximum number of points per curve."""
MAX_PIXELS = 2_048
"""Longest side of a contact sheet of images, and of a slide."""
MAX_SLIDE_BYTES = 1_000_000
"""Maximum size of the image of a slide."""


def render(content: PageContent) -> str:
    """Render a page as one HTML string.

    Images need pillow. The weights of a graph are quantized on a logarithmic scale. The relative error is at
    most 0.02 % with 65,535 levels. With 255 levels, for large graphs, it is 0.4 % if the largest weight is e²
    times the smallest, and below 3 % in any case.

    >>> page = render(PageContent("Counting", lead="How many kinds are in a set?"))
    >>> "<title>Counting</title>" in page, "://" in page
    (True, False)
    """
    data = {
        "title": content.title,
        "lead": content.lead,
        "facts": content.facts,
        "table": content.table and vars(content.table),
        "curves": [_curve(curve) for curve in content.curves],
        "confusion": content.confusion and vars(content.confusion),
        "sets": [_shown(shown) for shown in content.sets],
    }
    style = _read("page.css")
    script = "\n".join(_read(f"{name}.js") for name in SCRIPTS)
    parts = {
        "title": html.escape(content.title).encode("ascii", "xmlcharrefreplace").decode(),
        "policy": (
            f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; "
            f"script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
        ),
        "style": style,
        "script": script,
        "content": json.dumps(_finite(data), allow_nan=False).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("page.html"))


def _read(name: str) -> str:
    return files("setwise.inspection.explorer").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _finite(value: Any) -> Any:
    """Replace non-finite numbers by None, which JSON can hold."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _packed(array: Shaped[np.ndarray, "..."]) -> str:
    """The little-endian bytes of an array, compressed, in base64."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()


def _curve(curve: Curve) -> dict[str, Any]:
    """A curve; a long one is reduced to the minimum and the maximum of each segment."""
    points = [(float(step), float(value)) for step, value in curve.points]
    if len(points) > MAX_POINTS:
        segments = np.array_split(np.arange(len(points)), MAX_POINTS // 2)
        values = np.array([value for _, value in points])
        extremes = [
            {*segment[[0, -1]]}
            if np.isnan(values[segment]).all()
            else {segment[np.nanargmin(values[segment])], segment[np.nanargmax(values[segment])]}
            for segment in segments
        ]
        points = [points[i] for i in sorted(set().union(*extremes, {0, len(points) - 1}))]
    return {"panel": curve.panel, "name": curve.name, "points": points}


def _shown(shown: ShownSet) -> dict[str, Any]:
    _check(shown)
    places, unplaced = _places(shown)
    groups = [name for name, _ in Counter(shown.groups).most_common()]
    graphless = shown.weights is None and shown.kernel is None
    return {name: getattr(shown, name) for name in UNCHANGED} | {
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
    """Check the shapes and types of a set."""
    n, where = len(shown.places), f"of set {shown.name!r}"
    if n > MAX_ELEMENTS:
        raise ValueError(f"places {where} must have at most {MAX_ELEMENTS} elements, got {n}")
    if shown.places.ndim != 2 or shown.places.shape[1] not in ((2,) if shown.kind == "patches" else (2, 3)):
        raise ValueError(
            f"places {where} must be [n, 2], or [n, 3] except for patches, got {list(shown.places.shape)}"
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
            raise ValueError(f"{name} {where} must have one entry per element, {n}, got {len(part)}")
    for name, pixels in (("images", shown.images), ("background", shown.background)):
        if pixels is not None and pixels.dtype != np.uint8:
            raise ValueError(f"{name} {where} must be uint8, got {pixels.dtype}")
    if shown.images is not None and shown.images.shape[3:] not in ((), (3,)):
        raise ValueError(f"images {where} must be [n, h, w] or [n, h, w, 3], got {list(shown.images.shape)}")
    if shown.background is not None and shown.background.shape[2:] != (3,):
        raise ValueError(f"background {where} must be [h, w, 3], got {list(shown.background.shape)}")
    if shown.kind == "images" and shown.images is None:
        raise ValueError(f"images {where} are required for the kind 'images', got None")
    if shown.kind == "patches" and not shown.patch:
        raise ValueError(f"patch {where} must be the side of a patch in pixels, got {shown.patch}")


def _places(shown: ShownSet) -> tuple[Float[np.ndarray, "n axes"], int]:
    """The coordinates as the page needs them, and the number of elements without finite ones.

    Those elements are placed at the median. Patches keep their pixel coordinates; others are shifted and
    scaled to the range from −1 to 1.
    """
    places = np.array(shown.places, dtype=np.float64)
    finite = np.isfinite(places).all(1)
    if not finite.all():
        places[~finite] = np.median(places[finite], axis=0) if finite.any() else 0.0
    if shown.kind != "patches" and len(places):
        low, high = places.min(0), places.max(0)
        places -= low / 2 + high / 2
        places /= max(float(np.abs(places).max()), np.finfo(float).tiny)
    return places.astype(np.float32), int((~finite).sum())


def _graph(weights: Float[np.ndarray, "n n"] | None) -> dict[str, Any] | None:
    """A graph, quantized to levels on a logarithmic scale from ``low`` to ``high``; level 0 is no weight.

    Of a symmetric graph, only the pairs above the diagonal are stored. The diagonal is stored separately.
    """
    if weights is None:
        return None
    W = np.array(weights, dtype=np.float64)
    nonfinite = int((~np.isfinite(W)).sum())
    W[~np.isfinite(W)] = 0.0
    diagonal = W.diagonal().astype(np.float32)
    np.fill_diagonal(W, 0.0)
    high = W.max(initial=0.0)
    W[MIN_WEIGHT * high > W] = 0.0
    low = W.min(where=W > 0, initial=high)
    symmetric = np.allclose(W, W.T, rtol=1e-5, atol=0.0)
    stored = W[np.triu_indices(len(W), 1)] if symmetric else W.ravel()
    positive = stored > 0
    steps = (65_535 if positive.sum() <= MAX_FINE_WEIGHTS else 255) - 1
    levels = np.zeros(len(stored), np.min_scalar_type(steps))
    levels[positive] = 1 + np.rint(
        steps * np.log(stored[positive] / low) / (math.log(high / low) if low < high else 1)
    )
    return {
        "low": low,
        "high": high,
        "steps": steps,
        "symmetric": symmetric,
        "levels": _packed(levels),
        "diagonal": _packed(diagonal),
        "error": (high / low) ** (0.5 / steps) - 1 if high > 0 else 0.0,
        "nonfinite": nonfinite,
    }


def _sheet(images: UInt8[np.ndarray, "n h w *c"]) -> dict[str, Any]:
    """All images of a set on one sheet, row by row; large images are scaled down."""
    n, height, width = images.shape[:3]
    columns = max(math.ceil(math.sqrt(n)), 1)
    shrink = min(1.0, MAX_PIXELS / (columns * max(height, width)))
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
    """The image of a slide, scaled down; ``width`` and ``height`` are those of the original."""
    height, width = pixels.shape[:2]
    picture = _pillow().fromarray(pixels).convert("RGB")
    picture.thumbnail((MAX_PIXELS, MAX_PIXELS))
    while len(uri := _uri(picture, "JPEG", quality=85)) > MAX_SLIDE_BYTES * 4 / 3 and max(picture.size) > 1:
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
        raise ModuleNotFoundError("images on a page need pillow: pip install 'setwise[data]'") from error
    return Image
