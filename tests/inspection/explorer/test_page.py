"""Tests of the explorer page: the data in it, and its behaviour in a browser."""

import base64
import io
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from setwise.functional import sparsify
from setwise.inspection.explorer import page as module
from setwise.inspection.explorer.content import Confusion, Curve, PageContent, ShownSet, Table
from setwise.inspection.explorer.page import render
from setwise.inspection.importance import strongest_neighbours
from tests.browser import Visit, chromium

EVIL = '</script><img src=x onerror="window.broken = 1"><!--<script>'


def graph(n: int, seed: int = 0, spread: float = 1.0) -> Any:
    """Rows that sum to one; an element's own weight is its largest."""
    K = np.random.default_rng(seed).random((n, n)) * spread
    np.fill_diagonal(K, 2 * spread)
    return (np.exp(K) / np.exp(K).sum(1, keepdims=True)).astype(np.float32)


def digits() -> ShownSet:
    shades = np.array([0, 50, 100, 150, 200, 250], dtype=np.uint8)
    return ShownSet(
        "digits",
        "images",
        np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, -1.0], [1.0, -1.0], [2.0, -1.0]]),
        graph(6),
        label="two",
        prediction="two",
        correct=True,
        scores=(("one", 0.25), ("two", 0.75)),
        energies=(4.0, 2.0, 0.5),
        elements=tuple(f"drawing {i}" for i in range(6)),
        groups=("zero", "zero", "zero", "one", "one", "one"),
        images=np.repeat(shades, 4 * 3).reshape(6, 4, 3),
        remark="A graph to look at.",
    )


def cloud(n: int = 40, name: str = "cloud") -> ShownSet:
    x = np.random.default_rng(1).normal(size=(n, 3))
    K = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / 2)
    W = np.exp(K) / np.exp(K).sum(1, keepdims=True)
    truth = {"label": "one", "prediction": "two", "correct": False}
    return ShownSet(name, "points", x, W, K, **truth, importance=x[:, 0] - 0.2)


def slide() -> ShownSet:
    background = np.zeros((90, 120, 3), dtype=np.uint8)
    background[:, :60] = (200, 40, 80)
    background[:, 60:] = (40, 80, 200)
    places = np.array([(x, y) for y in (0, 30, 60) for x in (0, 30, 60, 90)], dtype=float)
    importance = np.arange(12) / 11
    truth = {"label": "two", "prediction": "one", "correct": False}
    look = {"importance": importance, "background": background, "patch": 20}
    return ShownSet("slide", "patches", places, graph(12, 2), **truth, **look)


def bag() -> ShownSet:
    return ShownSet("bag", "features", np.random.default_rng(3).normal(size=(9, 2)))


CONTENT = PageContent(
    "Counting",
    "How many kinds are in a set?",
    (("Data", "drawings"), ("Seed", "0")),
    Table(("Model", "Accuracy"), (("D-DMPS", "0.98"), ("DeepSets", "0.91")), "Mean of five."),
    (
        Curve("loss", "training", ((0.0, 4.0), (100.0, 2.0), (200.0, float("nan")), (300.0, 1.0))),
        Curve("loss", "validation", ((0.0, 5.0), (300.0, 2.5))),
        Curve("accuracy", "validation", ((0.0, -0.1), (300.0, 0.9))),
    ),
    Confusion(("one", "two"), ((3, 1), (2, 4))),
    (digits(), cloud(), slide(), bag()),
)


# ---- Data of the page


def data_of(html: str) -> Any:
    return json.loads(re.search(r'id="content">(.*?)</script>', html)[1])


def decoded(packed: Any, n: int) -> Any:
    """Decode a graph independently of the page."""
    kind = np.uint8 if packed["steps"] == 254 else np.dtype("<u2")
    levels = np.frombuffer(zlib.decompress(base64.b64decode(packed["levels"])), kind).astype(float)
    if packed["symmetric"]:
        full = np.zeros((n, n))
        full[np.triu_indices(n, 1)] = levels
        levels = (full + full.T).ravel()
    ratio = packed["high"] / packed["low"]
    values = np.where(levels > 0, packed["low"] * ratio ** ((levels - 1) / packed["steps"]), 0)
    own = np.frombuffer(zlib.decompress(base64.b64decode(packed["diagonal"])), "<f4")
    return values.reshape(n, n) + np.diag(own)


@pytest.mark.parametrize(
    ("W", "steps", "symmetric", "error"),
    [
        (graph(30, spread=1.0), 65_534, False, 3e-5),
        (graph(30, spread=1.0) + graph(30, spread=1.0).T, 65_534, True, 3e-5),
        (graph(600, spread=2.0), 254, False, 0.0045),
        (graph(600, spread=13.0), 254, False, 0.028),
    ],
    ids=["fine", "symmetric", "large", "wide"],
)
def test_weights_are_stored_to_within_the_stated_error(
    W: Any, steps: int, symmetric: bool, error: float
) -> None:
    n = len(W)
    packed = data_of(render(PageContent("x", sets=(ShownSet("a", "features", np.zeros((n, 2)), W),))))
    packed = packed["sets"][0]["weights"]
    assert (packed["steps"], packed["symmetric"]) == (steps, symmetric)
    assert 0 < packed["error"] < error
    values, off = decoded(packed, n), ~np.eye(n, dtype=bool)
    small = off & (1e-6 * W[off].max() > W)
    assert not values[small].any()
    there = off & ~small
    assert np.abs(values[there] / W[there] - 1).max() < packed["error"] + 1e-6
    assert np.allclose(values[~off], W[~off])


def test_large_graphs_take_few_bytes_and_sparse_ones_fewer() -> None:
    x, W = np.zeros((1000, 2)), graph(1000)
    empty = len(render(PageContent("x")))
    dense = len(render(PageContent("x", sets=(ShownSet("a", "features", x, W),)))) - empty
    assert 1_000_000 < dense < 1_450_000
    W[np.random.default_rng(0).random(W.shape) > 0.02] = 0
    html = render(PageContent("x", sets=(ShownSet("a", "features", x, W),)))
    assert len(html) - empty < 200_000
    packed = data_of(html)["sets"][0]["weights"]
    assert packed["steps"] == 65_534
    assert np.array_equal(decoded(packed, 1000) > 0, W > 0)


def test_nonfinite_values_are_counted_and_replaced() -> None:
    W, places = graph(5), np.arange(10.0).reshape(5, 2)
    W[0, 1], W[2, 2], W[3, 4], places[3, 0] = np.nan, np.inf, 1e-9, np.nan
    shown = data_of(render(PageContent("x", sets=(ShownSet("a", "features", places, W),))))["sets"][0]
    assert (shown["weights"]["nonfinite"], shown["unplaced"]) == (2, 1)
    values = decoded(shown["weights"], 5)
    assert values[0, 1] == values[2, 2] == values[3, 4] == 0
    assert shown["weights"]["error"] < 1e-4  # tiny weights do not widen the scale
    assert values[1, 0] == pytest.approx(W[1, 0], rel=1e-4)
    kept = np.frombuffer(zlib.decompress(base64.b64decode(shown["places"])), "<f4").reshape(5, 2)
    others = np.delete(places, 3, axis=0)
    assert np.allclose(kept[3], (np.median(others, axis=0) - 4.5) / 4 - [-0.125, 0.125], atol=0.2)
    assert np.abs(kept).max() == 1


def test_long_curves_keep_their_extremes_and_ends() -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    values[[777, 9_999]] = 50, -50
    values[5_000:5_200] = np.nan
    curve = Curve("loss", "training", tuple(zip(map(float, range(20_000)), values.tolist(), strict=True)))
    points = data_of(render(PageContent("x", curves=(curve,))))["curves"][0]["points"]
    assert len(points) <= 1_002
    assert [777.0, 50.0] in points
    assert [9_999.0, -50.0] in points
    assert [points[0][0], points[-1][0]] == [0, 19_999]
    assert [value for step, value in points if 5_000 <= step < 5_200] == [None] * 10
    assert all(value == pytest.approx(values[int(step)]) for step, value in points if value is not None)


def picture(uri: str) -> Any:
    image = pytest.importorskip("PIL.Image")
    return image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))


def test_images_share_one_sheet_and_slides_are_bounded() -> None:
    shown = digits()
    sheet = data_of(render(PageContent("x", sets=(shown,))))["sets"][0]["pictures"]
    assert (sheet["columns"], sheet["width"], sheet["height"]) == (3, 3, 4)
    pixels = np.asarray(picture(sheet["uri"]))
    assert pixels.shape == (8, 9)
    assert np.array_equal(pixels[4:, 3:6], shown.images[4])
    large = np.zeros((100, 300, 200, 3), dtype=np.uint8)
    kept = replace(cloud(100), images=large)
    sheet = data_of(render(PageContent("x", sets=(kept,))))["sets"][0]["pictures"]
    assert (sheet["width"], sheet["height"]) == (136, 204)  # ten per side, 2,048 pixels at most
    noise = np.random.default_rng(0).integers(0, 256, (2_400, 1_200, 3), dtype=np.uint8)
    stored = data_of(render(PageContent("x", sets=(replace(slide(), background=noise),))))["sets"][0][
        "background"
    ]
    assert (stored["width"], stored["height"]) == (1_200, 2_400)
    assert len(stored["uri"]) < 1_400_000
    width, height = picture(stored["uri"]).size
    assert height == pytest.approx(2 * width, rel=0.01)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": graph(5)}, r"weights of set 'digits' must be \[6, 6\], got \[5, 5\]"),
        ({"kernel": graph(5)}, r"kernel of set 'digits' must be \[6, 6\], got \[5, 5\]"),
        ({"places": np.zeros((6, 4))}, r"places of set 'digits' must be .*, got \[6, 4\]"),
        ({"kind": "patches", "places": np.zeros((6, 3))}, r"places of set 'digits' must be .*, got \[6, 3\]"),
        ({"importance": np.zeros(2)}, "importance .* must have one entry per element, 6, got 2"),
        ({"groups": ("a",)}, "groups .* must have one entry per element, 6, got 1"),
        ({"elements": ("a",)}, "elements .* must have one entry per element, 6, got 1"),
        ({"images": np.zeros((6, 4, 4))}, "images .* must be uint8, got float64"),
        (
            {"images": np.zeros((6, 4, 4, 2), np.uint8)},
            r"must be \[n, h, w\] or \[n, h, w, 3\], got \[6, 4, 4, 2\]",
        ),
        ({"background": np.zeros((4, 4), np.uint8)}, r"background .* must be \[h, w, 3\], got \[4, 4\]"),
        ({"images": None}, "images of set 'digits' are required for the kind 'images', got None"),
        ({"kind": "patches"}, "patch of set 'digits' must be .* in pixels, got None"),
        ({"places": np.zeros((2001, 2))}, "must have at most 2000 elements, got 2001"),
    ],
)
def test_inconsistent_sets_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render(PageContent("x", sets=(replace(digits(), **changes),)))


def test_images_without_pillow_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    render(PageContent("x", sets=(bag(),)))
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'setwise[data]'")):
        render(PageContent("x", sets=(digits(),)))


def test_titles_are_escaped() -> None:
    html = render(PageContent("\udc80 </title>", curves=(Curve("\udc80", "\0", ()),)))
    assert "<title>&#56448; &lt;/title&gt;</title>" in html
    html.encode()


def test_every_script_is_part_of_the_page() -> None:
    folder = Path(module.__file__).parent
    assert {path.stem for path in folder.glob("*.js")} == {*module.SCRIPTS}


# ---- Behaviour in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened_browser:
        yield opened_browser


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page; it must not request anything or log an error."""
    visits: list[Visit] = []

    def open_page(content: PageContent = CONTENT, **options: Any) -> Any:
        path = tmp_path / f"page{len(visits)}.html"
        path.write_text(render(content), encoding="utf-8")
        visits.append(Visit(browser, path, **options))
        page = visits[-1].page
        if content.sets:
            until(page, "window.setwiseExplorer?.draws > 0")
        return page

    yield open_page
    for visited in visits:
        visited.leave()


def state(page: Any) -> Any:
    return page.evaluate("({...setwiseExplorer})")


def until(page: Any, condition: str) -> None:
    """Wait for a condition; playwright's own way of waiting evaluates strings, which the page forbids."""
    page.evaluate(
        f"""async () => {{
          for (let k = 0; !({condition}); k++) {{
            if (k > 1000) throw new Error(`timed out waiting for ${{{json.dumps(condition)}}}`);
            await new Promise((done) => setTimeout(done, 10));
          }}
        }}"""
    )


def opened(page: Any, name: str) -> None:
    until(page, f"setwiseExplorer.set?.name === {json.dumps(name)}")


def drawn(page: Any) -> None:
    """Wait until the last request is drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def choose(page: Any, name: str) -> None:
    page.locator("#list").get_by_role("option", name=name).first.click()
    opened(page, name)
    drawn(page)


def text(page: Any, selector: str) -> str:
    return " ".join(page.locator(selector).inner_text().split())


def pixels(page: Any, canvas: str = "base") -> str:
    drawn(page)
    return page.evaluate("(id) => document.getElementById(id).toDataURL()", canvas)


def middles(page: Any, n: int) -> list[list[int]]:
    """The RGB colour at the centre of each element."""
    drawn(page)
    code = """(n) => Array.from({ length: n }, (_, i) => {
      const pen = new OffscreenCanvas(1, 1).getContext("2d");
      const [x, y] = setwiseExplorer.at(i).map((at) => Math.round(at * devicePixelRatio));
      pen.drawImage(document.getElementById("base"), x, y, 1, 1, 0, 0, 1, 1);
      return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
    })"""
    return page.evaluate(code, n)


def places(page: Any, n: int) -> Any:
    """The positions of the elements on the canvas."""
    drawn(page)
    return np.array(page.evaluate("(n) => Array.from({ length: n }, (_, i) => setwiseExplorer.at(i))", n))


def point_at(page: Any, element: int, *, click: bool = False) -> None:
    page.locator("#overlay").scroll_into_view_if_needed()
    box = page.locator("#overlay").bounding_box()
    x, y = page.evaluate("(i) => setwiseExplorer.at(i)", element)
    page.mouse.move(box["x"] + x, box["y"] + y)
    if click:
        page.mouse.click(box["x"] + x, box["y"] + y)
    drawn(page)


def neighbours(page: Any) -> list[tuple[int, str]]:
    """The elements listed in the card, and their numbers."""
    who = page.locator("#element .neighbours .who").all_inner_texts()
    numbers = page.locator("#element .neighbours .weight").all_inner_texts()
    return [(int(name.split()[0]) - 1, number) for name, number in zip(who, numbers, strict=True)]


def strongest(W: Any, i: int) -> tuple[list[int], list[float]]:
    elements, weights = strongest_neighbours(torch.as_tensor(np.asarray(W)), i, 8)
    return elements.tolist(), weights.tolist()


def slide_to(page: Any, value: int) -> None:
    code = "(v) => { slider.value = v; slider.dispatchEvent(new Event('input', {bubbles: true})); }"
    page.evaluate(f"const slider = document.getElementById('slider'); ({code})({value})")


def test_page_shows_its_content(visit: Callable[..., Any]) -> None:
    page = visit()
    assert page.title() == text(page, "h1") == "Counting"
    assert text(page, "#lead") == "How many kinds are in a set?"
    assert text(page, "#facts") == "Data drawings Seed 0"
    lines = page.locator("#table tr").all_inner_texts()
    assert lines == ["Model\tAccuracy", "D-DMPS\t0.98", "DeepSets\t0.91"]
    assert text(page, "#table caption") == "Mean of five."
    assert page.locator("#table td.figure").count() == 2
    assert page.locator("#contents a").all_inner_texts() == [
        "Results",
        "Learning curves",
        "Confusion matrix",
        "Sets",
    ]
    assert text(page, "#name") == "digits"
    assert text(page, "#outcome") == "6 elements · label two · prediction two ✓ correct"
    assert text(page, "#remark") == "A graph to look at."
    assert text(page, "#scores") == "Model output two 0.750 one 0.250"
    assert page.locator("#list [aria-selected=true]").inner_text().split()[:2] == ["✓", "digits"]
    assert "digits, 6 elements" in text(page, "#announcement")


def test_empty_sections_are_hidden(visit: Callable[..., Any]) -> None:
    page = visit(PageContent("Alone"))
    assert page.locator("main > section:visible").count() == 0
    assert page.locator("#contents a, #lead:visible, #facts:visible, #skip:visible").count() == 0
    assert text(page, "body") == "Dark Alone"
    page = visit(PageContent("Sets only", sets=(bag(),)))
    assert page.locator("main > section:visible").count() == 1
    assert (
        page.locator("#remark:visible, #scores:visible, #energies:visible, #threshold:visible").count() == 0
    )
    assert page.locator("#graph").is_hidden()
    assert text(page, "#count") == "This model has no latent graph."
    assert page.locator("#colour option").all_inner_texts() == ["None"]
    page.locator("#overlay").press("ArrowRight")
    assert text(page, "#element") == "Element 1 Deselect (Esc)"
    assert text(page, "#announcement") == "Element 1."
    assert page.locator("#filter option").all_inner_texts() == ["All (1)"]


def test_sets_are_filtered(visit: Callable[..., Any]) -> None:
    page = visit()
    names = page.locator("#list .set-name")
    assert names.all_inner_texts() == ["digits", "cloud", "slide", "bag"]
    assert page.locator("#list .mark").all_inner_texts() == ["✓", "✗", "✗", "·"]
    assert page.locator("#filter option").all_inner_texts() == ["All (4)", "Wrong (2)", "two (2)", "one (1)"]
    page.locator("#filter").select_option(label="Wrong (2)")
    assert names.all_inner_texts() == ["cloud", "slide"]
    opened(page, "cloud")  # the open set is not among them
    page.locator("#filter").select_option(label="two (2)")
    assert names.all_inner_texts() == ["digits", "slide"]
    page.locator("#list").press("End")
    opened(page, "slide")
    assert page.locator("#list").get_attribute("aria-activedescendant") == "set-2"
    page.locator("#list").press("ArrowUp")
    opened(page, "digits")
    page.locator("#filter").select_option("all")
    assert state(page)["index"] == 0  # still listed, still open
    assert text(page, "#announcement") == "4 sets listed"
    code = """async () => {
      const slowly = () => new Promise((done) => setTimeout(done, 50));
      HTMLImageElement.prototype.decode = slowly;
      for (const i of [0, 3]) document.getElementById(`set-${i}`).click();
      await slowly().then(slowly).then(slowly);
    }"""
    page.evaluate(code)
    opened(page, "bag")
    assert text(page, "#name") == "bag"  # although the images of the first set were decoded later


def test_cells_of_the_confusion_matrix_filter_the_sets(visit: Callable[..., Any]) -> None:
    page = visit()
    cells = page.locator("#matrix button")
    assert cells.all_inner_texts() == ["3", "1", "2", "4"]
    assert page.locator("#matrix td.seen").count() == 3
    assert page.locator("#matrix td.right").all_inner_texts() == ["3", "4"]
    assert page.locator("#matrix td.wrong").all_inner_texts() == ["1", "2"]
    shares = page.locator("#matrix td:not(.corner)").evaluate_all(
        "(cells) => cells.map((cell) => cell.style.getPropertyValue('--share'))"
    )
    assert shares == [f"{round(100 * share**0.5)}%" for share in (3 / 4, 1 / 4, 2 / 6, 4 / 6)]
    assert cells.nth(1).get_attribute("aria-label") == "one, predicted as two: 1 of 4; 1 set on this page"
    cells.nth(1).click()
    opened(page, "cloud")
    assert page.locator("#list .set-name").all_inner_texts() == ["cloud"]
    assert page.locator("#filter option:checked").inner_text() == "one, predicted as two (1)"
    page.locator("#matrix button[tabindex='0']").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")  # already at the edge
    page.keyboard.press("Enter")
    assert page.locator("#no-sets").is_visible()
    assert page.locator("#list").is_hidden()
    assert page.locator("#filter option").last.inner_text() == "one, predicted as one (0)"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    opened(page, "slide")
    assert page.locator("#filter option").count() == 5
    assert page.locator("#matrix button[tabindex='0']").count() == 1


def kept(W: Any, delta: float) -> int:
    """The number of pairs of which sparsify keeps at least one direction."""
    left = sparsify(torch.as_tensor(np.asarray(W, dtype=np.float64))[None], delta)[0] > 0
    return int((left | left.T).triu(1).sum())


def test_the_threshold_keeps_what_sparsify_keeps(visit: Callable[..., Any]) -> None:
    page, W = visit(), digits().weights
    pairs = np.sort(np.maximum(W, W.T)[np.triu_indices(6, 1)])[::-1]
    assert state(page)["set"]["edges"] == 12  # two for each element
    assert page.locator("#delta").input_value() == f"{pairs[11]:#.4g}"
    for edges in (0, 1, 4, 15):
        delta = float((pairs[edges - 1] if edges else 1.0) + (pairs[edges] if edges < 15 else 0)) / 2
        page.locator("#delta").fill(f"{delta:.6f}")
        page.locator("#delta").press("Enter")
        assert state(page)["set"]["edges"] == kept(W, delta) == edges
        drawn(page)
        assert state(page)["drawn"] == edges
        assert text(page, "#count").startswith(f"{edges} of 15 pairs with weight ≥ δ")
    shown = pixels(page)
    slide_to(page, 1000)
    assert state(page)["set"]["edges"] == 1
    assert state(page)["delta"] == pytest.approx(pairs[0], rel=1e-4)
    assert page.locator("#slider").get_attribute("aria-valuetext") == f"δ {pairs[0]:#.4g}, 1 of 15 pairs"
    assert pixels(page) != shown
    slide_to(page, 500)
    assert state(page)["set"]["edges"] == round(15**0.5)
    slide_to(page, 0)
    assert state(page)["set"]["edges"] == 15
    assert pixels(page) == shown
    for wrong in ("much", "-1", ""):
        page.locator("#delta").fill(wrong)
        page.locator("#delta").press("Enter")
        assert page.locator("#delta").get_attribute("aria-invalid") == "true"
        assert state(page)["set"]["edges"] == 15
    page.locator("#slider").press("ArrowRight")
    assert page.locator("#delta").get_attribute("aria-invalid") is None


def test_the_slider_keeps_its_position_for_the_next_set(visit: Callable[..., Any]) -> None:
    page = visit()
    slide_to(page, 250)
    choose(page, "cloud")
    assert state(page)["set"]["edges"] == round((40 * 39 / 2) ** 0.75)


def test_pointing_at_an_element_shows_its_strongest_neighbours(visit: Callable[..., Any]) -> None:
    page, W = visit(), digits().weights
    before = pixels(page, "overlay")
    dim = "getComputedStyle(document.getElementById('base')).opacity"
    assert page.evaluate(dim) == "1"
    point_at(page, 4)
    assert page.evaluate(dim) == "0.32"
    elements, weights = strongest(W, 4)
    assert state(page)["set"]["neighbours"] == elements
    assert neighbours(page) == [(j, f"{w:#.3g}") for j, w in zip(elements, weights, strict=True)]
    assert text(page, "#element h4") == "Element 5"
    assert text(page, "#tip") == "Element 5 · drawing 4"
    assert f"Self-weight {W[4, 4]:#.3g}" in text(page, "#element")
    assert "Group one" in text(page, "#element")
    assert pixels(page, "overlay") != before
    page.mouse.move(5, 5)
    assert state(page)["set"]["focus"] is None
    assert pixels(page, "overlay") == before
    assert page.locator("#tip").is_hidden()
    received = W.sum(0) - W.diagonal()
    assert [j for j, _ in neighbours(page)] == np.argsort(-received).tolist()


def test_a_click_selects_and_escape_deselects(visit: Callable[..., Any]) -> None:
    page, W = visit(), digits().weights
    point_at(page, 2, click=True)
    elements, weights = strongest(W, 2)
    assert state(page)["selected"] == 2
    most = ", ".join(f"{j + 1} with {w:#.3g}" for j, w in zip(elements[:3], weights, strict=False))
    assert text(page, "#announcement") == f"Element 3, zero, drawing 2. Strongest neighbours: {most}."
    point_at(page, 5)
    assert state(page)["set"]["focus"] == 2  # pointing at another element compares the two
    assert text(page, "#tip").endswith(f"W(3, 6) = {W[2, 5]:#.3g}, W(6, 3) = {W[5, 2]:#.3g}")
    page.locator("#element .neighbours button").first.click()
    assert state(page)["selected"] == elements[0]
    assert page.evaluate("document.activeElement.id") == "element"
    page.keyboard.press("Escape")
    assert state(page)["selected"] is None
    assert text(page, "#announcement") == "No element selected"
    point_at(page, 2, click=True)
    page.locator("#element", has_text="Deselect").get_by_role("button").first.click()
    assert state(page)["selected"] is None
    point_at(page, 2, click=True)
    box = page.locator("#overlay").bounding_box()
    page.mouse.click(box["x"] + 3, box["y"] + 3)  # on the background
    assert state(page)["selected"] is None


def test_the_kernel_can_be_shown_instead_of_the_graph(visit: Callable[..., Any]) -> None:
    page = visit()
    choose(page, "cloud")
    page.locator("#graph").select_option(label="Learned kernel K")
    point_at(page, 7, click=True)
    elements, weights = strongest(cloud().kernel, 7)
    assert [j for j, _ in neighbours(page)] == elements
    assert [float(number) for _, number in neighbours(page)] == pytest.approx(weights, rel=5e-3)
    assert "Most similar elements" in text(page, "#element")
    assert "Self-weight 1" in text(page, "#element")
    page.locator("#delta").fill("0.5")
    page.locator("#delta").press("Enter")
    assert state(page)["set"]["edges"] == int((np.triu(cloud().kernel, 1) >= 0.5).sum())


def test_colour_schemes_and_legends(visit: Callable[..., Any]) -> None:
    page = visit()
    schemes = page.locator("#colour option").all_inner_texts()
    assert schemes == [
        "Group",
        "None",
        "Weight received from others",
        "Number of edges",
        "Weight for the selected element",
    ]
    assert text(page, "#colours") == "Group zero one"
    grouped = pixels(page)
    page.locator("#colour").select_option("plain")
    assert text(page, "#colours") == ""
    assert pixels(page) != grouped
    page.locator("#colour").select_option("degree")
    W = digits().weights
    edges = np.maximum(W, W.T) >= state(page)["delta"] * (1 - 1e-6)
    degrees = edges.sum(1) - 1
    assert text(page, "#colours") == f"Number of edges {degrees.min()} {degrees.max()}"
    page.locator("#colour").select_option("selected")
    assert text(page, "#colours") == "Select an element to see the weights of the others for it."
    point_at(page, 1, click=True)
    row = np.delete(W[1], 1)
    assert text(page, "#colours") == f"Weight for the selected element {row.min():#.3g} {row.max():#.3g}"
    choose(page, "cloud")  # has this scheme too, so it is kept
    assert page.locator("#colour").input_value() == "selected"
    page.locator("#colour").select_option("importance")
    far = np.abs(cloud().importance).max()
    assert text(page, "#colours") == f"Importance −{far:.2f} {far:.2f}"
    bar = page.locator("#colours .bar").evaluate("(bar) => getComputedStyle(bar).backgroundImage")
    ends = re.findall(r"rgb\(.*?\)", bar)
    assert (ends[0], ends[-1]) == ("rgb(194, 65, 12)", "rgb(11, 98, 164)")
    most = np.argsort(-cloud().importance)[:8].tolist()
    assert [j for j, _ in neighbours(page)] == most


def test_images_and_patches_are_drawn_at_their_places(visit: Callable[..., Any]) -> None:
    page = visit()
    assert middles(page, 6) == [[shade] * 3 for shade in (0, 50, 100, 150, 200, 250)]
    at = places(page, 6)
    assert at[0, 0] < at[1, 0] < at[2, 0]
    assert at[0, 1] < at[3, 1]  # the second row is below the first
    assert at[1, 0] - at[0, 0] == pytest.approx(at[3, 1] - at[0, 1])
    choose(page, "slide")
    page.locator("#delta").fill("1")  # edges would cover the patches
    page.locator("#delta").press("Enter")
    tinted = middles(page, 12)
    assert tinted[0] != tinted[1]  # by importance
    page.locator("#colour").select_option("plain")
    expected = [(200, 40, 80) if i % 4 < 2 else (40, 80, 200) for i in range(12)]
    assert np.abs(np.subtract(middles(page, 12), expected)).max() <= 6  # up to JPEG artefacts
    at = places(page, 12)
    assert (at[3, 0] - at[0, 0]) / (at[8, 1] - at[0, 1]) == pytest.approx(90 / 60)


def test_point_clouds_are_rotated(visit: Callable[..., Any]) -> None:
    page = visit()
    choose(page, "cloud")
    before, start = pixels(page), state(page)
    page.locator("#overlay").focus()
    page.keyboard.press("ArrowRight")
    turned = state(page)
    assert turned["yaw"] < start["yaw"]
    assert turned["pitch"] == start["pitch"]
    assert pixels(page) != before
    page.keyboard.press("ArrowLeft")
    assert pixels(page) == before
    for _ in range(10):
        page.keyboard.press("ArrowDown")
    assert state(page)["pitch"] == pytest.approx(np.pi / 2)  # seen from above
    drawn(page)
    x = cloud().places
    x = (x - (x.max(0) + x.min(0)) / 2) @ np.diag([1.0, 1.0, 0.0])
    cos, sin = np.cos(start["yaw"]), np.sin(start["yaw"])
    right, up = x[:, 0] * cos + x[:, 1] * sin, x[:, 1] * cos - x[:, 0] * sin
    at = places(page, 40)
    centre = [
        page.evaluate(f"document.getElementById('stage').client{side} / 2") for side in ("Width", "Height")
    ]
    assert np.array_equal(at[:, 0] > centre[0], right > 0)
    assert np.array_equal(at[:, 1] < centre[1], up > 0)
    page.keyboard.press("0")
    assert pixels(page) == before
    page.keyboard.press("Shift+ArrowRight")
    assert state(page)["selected"] == 0
    box = page.locator("#overlay").bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 90, box["y"] + 70, steps=4)
    page.mouse.up()
    assert state(page)["yaw"] == pytest.approx(start["yaw"] - 0.4)
    assert state(page)["pitch"] == pytest.approx(start["pitch"] + 0.2)
    assert state(page)["selected"] == 0  # a drag is not a click


def test_flat_graphs_are_zoomed_and_panned(visit: Callable[..., Any]) -> None:
    page = visit()
    page.locator("#overlay").scroll_into_view_if_needed()
    box = page.locator("#overlay").bounding_box()
    before = pixels(page)
    x, y = round(box["x"]) + 100, round(box["y"]) + 80  # the mouse moves by whole pixels
    page.mouse.move(x, y)
    at = page.evaluate("setwiseExplorer.at(0)")
    page.mouse.wheel(0, -100)
    until(page, "setwiseExplorer.zoom > 1")
    drawn(page)
    zoom = state(page)["zoom"]
    moved = page.evaluate("setwiseExplorer.at(0)")
    assert zoom == pytest.approx(np.exp(0.25))
    here = np.array([x - box["x"], y - box["y"]])
    assert moved == pytest.approx(here + (np.array(at) - here) * zoom, abs=0.01)
    page.mouse.down()
    page.mouse.move(x + 30, y - 10, steps=3)
    page.mouse.up()
    drawn(page)
    assert page.evaluate("setwiseExplorer.at(0)") == pytest.approx([moved[0] + 30, moved[1] - 10], abs=0.01)
    page.keyboard.press("Shift+ArrowLeft")
    drawn(page)
    assert page.evaluate("setwiseExplorer.at(0)")[0] == pytest.approx(moved[0] + 70, abs=0.01)
    page.get_by_role("button", name="Reset the view").click()
    assert pixels(page) == before
    page.get_by_role("button", name="Zoom in").click()
    assert state(page)["zoom"] == pytest.approx(1.3)
    page.locator("#overlay").press("Shift+ArrowDown")
    page.get_by_role("button", name="Zoom out").click()
    assert state(page)["zoom"] == 1
    assert pixels(page) == before  # zooming out fully resets the view
    code = """([box, events]) => events.forEach(([type, pointerId, x, y]) => {
      const overlay = document.getElementById("overlay");
      overlay.setPointerCapture = () => {};
      const place = { clientX: box.x + x, clientY: box.y + y };
      overlay.dispatchEvent(new PointerEvent(type, { pointerId, bubbles: true, ...place }));
    })"""
    fingers = [
        ("pointerdown", 1, 200, 200),
        ("pointerdown", 2, 300, 200),
        ("pointermove", 1, 150, 200),
        ("pointermove", 2, 350, 200),
        ("pointerup", 1, 150, 200),
        ("pointerup", 2, 350, 200),
    ]
    page.evaluate(code, [box, fingers])
    assert state(page)["zoom"] == pytest.approx(2)
    assert state(page)["selected"] is None


def test_the_wheel_scrolls_the_page_when_fully_zoomed_out(visit: Callable[..., Any]) -> None:
    page = visit(viewport={"width": 1400, "height": 500})
    page.locator("#overlay").scroll_into_view_if_needed()
    box = page.locator("#overlay").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, 60)
    until(page, f"scrollY > {before}")
    assert state(page)["zoom"] == 1
    code = """(steps) => steps.map((deltaY) => {
      const event = new WheelEvent("wheel", { deltaY, bubbles: true, cancelable: true });
      return document.getElementById("overlay").dispatchEvent(event);
    })"""
    page.evaluate("new Promise((done) => setTimeout(done, 300))")
    assert page.evaluate(code, [60, -60]) == [True, True]  # scrolling back belongs to the same gesture
    page.evaluate("new Promise((done) => setTimeout(done, 300))")
    assert page.evaluate(code, [-60, 60]) == [False, False]


def test_all_controls_are_reachable_by_keyboard(visit: Callable[..., Any]) -> None:
    page = visit()
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        here = page.evaluate(
            "[document.activeElement.id || document.activeElement.className || "
            "document.activeElement.textContent, getComputedStyle(document.activeElement).outlineStyle]"
        )
        if page.evaluate("document.activeElement === document.body"):
            break  # all elements visited
        reached.append(here[0])
        assert here[1] != "none", f"no visible focus on {here[0]}"
    order = [
        name for name in reached if name in ("skip", "theme", "filter", "list", "overlay", "slider", "delta")
    ]
    assert order == ["skip", "theme", "filter", "list", "overlay", "slider", "delta"]
    assert {"closer", "farther", "reset", "colour", "small", "plot-frame", "Results"} <= {*reached}
    assert sum(name in ("3", "1", "2", "4") for name in reached) == 1  # the matrix is one stop
    page.locator("#list").focus()
    page.keyboard.press("ArrowDown")
    opened(page, "cloud")
    page.keyboard.press("Home")
    opened(page, "digits")
    page.locator("#overlay").focus()
    steps = {"ArrowDown": 0, "ArrowRight": 1, "ArrowUp": 1, "ArrowLeft": 0}
    for key, element in steps.items():  # the first key selects the first element
        page.keyboard.press(key)
        assert state(page)["selected"] == element
    page.keyboard.press("ArrowDown")
    assert state(page)["selected"] == 3
    assert text(page, "#announcement").startswith("Element 4, one, drawing 3. Strongest neighbours: ")
    page.keyboard.press("+")
    assert state(page)["zoom"] == pytest.approx(1.3)
    page.keyboard.press("Escape")
    assert state(page)["selected"] is None


def test_curves_are_read_with_pointer_and_keys(visit: Callable[..., Any]) -> None:
    page = visit()
    loss = page.locator("#curves .chart").first
    assert page.locator("#curves .chart-title").all_inner_texts() == ["loss", "accuracy"]
    assert loss.locator(".key li").all_inner_texts() == ["training", "validation"]
    path = loss.locator("path").first.get_attribute("d")
    assert (path.count("M"), path.count("L")) == (2, 1)  # a gap at NaN
    assert loss.locator(".line circle").count() == 1  # the isolated point next to it
    frame = loss.locator(".plot-frame")
    frame.focus()
    for key, where, values in (
        ("ArrowRight", "step 0", ["4", "5"]),
        ("ArrowRight", "step 100", ["2", "5"]),
        ("ArrowRight", "step 200", ["–", "2.500"]),
        ("End", "step 300", ["1", "2.500"]),
    ):
        page.keyboard.press(key)
        assert text(page, "#curves .chart:first-child .where") == where
        assert loss.locator("output").all_inner_texts() == values
    assert text(page, "#announcement") == "step 300: training 1, validation 2.500"
    box = frame.bounding_box()
    page.mouse.move(box["x"] + 56, box["y"] + 100)
    assert loss.locator("output").all_inner_texts() == ["4", "5"]
    page.mouse.move(5, 5)
    assert loss.locator("output").all_inner_texts() == ["", ""]
    ticks = loss.locator(".tick text").all_text_contents()
    loss.get_by_role("button", name="log scale").click()
    assert loss.get_by_role("button", name="log scale").get_attribute("aria-pressed") == "true"
    assert loss.locator("path").first.get_attribute("d") != path
    assert loss.locator(".tick text").all_text_contents() != ticks
    heights = [
        float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", loss.locator("path").first.get_attribute("d"))
    ]
    assert heights[1] - heights[0] == pytest.approx((heights[2] - heights[0]) / 2, abs=0.2)  # 4, 2, 1
    negative = page.locator("#curves .chart").nth(1)
    assert negative.get_by_role("button").count() == 0  # no log scale for negative values
    energies = page.locator("#energies")
    assert energies.locator(".line circle").count() == 3
    assert energies.locator(".key").is_hidden()
    energies.locator(".plot-frame").focus()
    page.keyboard.press("End")
    assert text(page, "#energies .where") == "block 2: 0.5000"


def test_light_and_dark(visit: Callable[..., Any]) -> None:
    page = visit(color_scheme="dark")
    choose(page, "cloud")

    def look() -> tuple[str, str]:
        return page.evaluate("getComputedStyle(document.body).backgroundColor"), pixels(page)

    dark = look()
    assert dark[0] == "rgb(19, 22, 24)"
    assert text(page, "#theme") == "Light"
    page.emulate_media(color_scheme="light")
    light = look()
    assert light[0] == "rgb(251, 250, 247)"
    assert light[1] != dark[1]
    page.locator("#theme").click()
    assert text(page, "#theme") == "Light"
    assert look() == dark
    page.emulate_media(color_scheme="dark")  # the choice of the button is kept
    page.locator("#theme").click()
    assert look() == light


def test_reduced_motion_is_respected(visit: Callable[..., Any]) -> None:
    page = visit(PageContent("still"))
    for wish, behaviour in (("reduce", "auto"), ("no-preference", "smooth")):
        page.emulate_media(reduced_motion=wish)
        assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == behaviour
        duration = page.evaluate("getComputedStyle(document.getElementById('theme')).transitionDuration")
        assert (duration == "0s") == (wish == "reduce")


@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_nothing_overflows_the_window(visit: Callable[..., Any], width: int) -> None:
    page = visit(viewport={"width": width, "height": 800})
    for name in ("cloud", "slide", "digits"):
        choose(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") == width
    for part in ("stage", "slider", "element", "list", "scores"):
        box = page.locator(f"#{part}").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert page.locator("#overlay").bounding_box()["width"] > 0.4 * min(width, 1400)


def test_strings_are_never_interpreted_as_html(visit: Callable[..., Any]) -> None:
    shown = replace(
        digits(),
        name=EVIL,
        label=EVIL,
        prediction="{{script}}",
        elements=(EVIL,) * 6,
        groups=(EVIL,) * 6,
        scores=((EVIL, 1.0),),
        remark=EVIL,
    )
    content = PageContent(
        EVIL,
        EVIL,
        ((EVIL, EVIL),),
        Table((EVIL,), ((EVIL,),), EVIL),
        (Curve(EVIL, EVIL, ((0.0, 1.0), (1.0, 2.0))), Curve(EVIL, "b", ((0.0, 1.0),))),
        Confusion((EVIL, "{{script}}"), ((1, 1), (1, 1))),
        (shown,),
    )
    page = visit(content)
    page.locator("#matrix button").nth(1).click()
    point_at(page, 0, click=True)
    page.locator("#curves .plot-frame").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("window.broken") is None
    assert page.locator("img").count() == 0
    assert page.title() == EVIL
    for part in (
        "h1",
        "#lead",
        "#facts dt",
        "#table td, #table th",
        "#table caption",
        "#name",
        "#remark",
        "#tip",
    ):
        assert EVIL in page.locator(part).first.inner_text()
    for part in ("#scores", "#element", "#colours", "#curves", "#matrix", "#list", "#announcement"):
        assert EVIL in page.locator(part).text_content()
    assert page.locator("#filter option").last.text_content() == f"{EVIL}, predicted as {{{{script}}}} (1)"


def test_the_page_cannot_load_anything(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(render(CONTENT), encoding="utf-8")
    visited = Visit(browser, path)
    answers: list[str] = []
    visited.page.on("response", lambda response: answers.append(response.url))
    code = """async () => {
      const blocked = [];
      document.addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));
      const fetched = await fetch("https://example.org/").then(() => "loaded", () => "refused");
      document.body.append(Object.assign(new Image(), { src: "https://example.org/a.png" }));
      const script = document.createElement("script");
      script.textContent = "window.broken = 1";
      document.body.append(script);
      await new Promise((done) => setTimeout(done, 50));
      return [fetched, blocked.sort(), window.broken ?? null];
    }"""
    assert visited.page.evaluate(code) == ["refused", ["connect-src", "img-src", "script-src-elem"], None]
    assert answers == []
    visited.context.close()


def test_nonfinite_numbers_and_small_sets_are_drawn(visit: Callable[..., Any]) -> None:
    none = float("nan")
    W = graph(4)
    W[0, 1], W[1, 0] = none, float("inf")
    odd = ShownSet(
        "odd",
        "features",
        np.array([[none, 0.0], [1e300, 0.0], [-1e300, 1.0], [0.0, 2.0]]),
        W,
        scores=(("a", none), ("b", -2.0)),
        energies=(1.0, none, 3.0),
        importance=np.array([none, 1.0, -1.0, float("inf")]),
    )
    sets = (
        odd,
        ShownSet("one", "features", np.zeros((1, 2)), np.ones((1, 1))),
        ShownSet("none", "points", np.zeros((0, 3)), np.zeros((0, 0))),
        ShownSet("alike", "features", np.zeros((5, 2)), np.full((5, 5), 0.2)),
        ShownSet("unlinked", "points", np.eye(3), np.eye(3), energies=(none,)),
        ShownSet("kernel only", "features", np.zeros((3, 2)), None, graph(3)),
    )
    curves = (Curve("empty", "a", ()), Curve("none", "a", ((0.0, none),)), Curve("flat", "a", ((5.0, 1e-3),)))
    page = visit(PageContent("odd", curves=curves, sets=sets))
    assert page.locator("#curves .chart-title").all_inner_texts() == ["flat"]
    assert text(page, "#scores") == "Model output b −2 a –"
    notes = text(page, "#notes")
    assert "Non-finite weights shown as 0: 2." in notes
    assert "Elements without finite coordinates, drawn at the median: 1." in notes
    assert text(page, "#colours") == "Importance −1 1"
    expected = {
        "one": ("", "Element 1. No neighbours."),
        "none": ("", "none, 0 elements. "),
        "alike": (
            "10 of 10 pairs with weight ≥ δ",
            "Element 1. Strongest neighbours: 2 with 0.200, 3 with 0.200, 4 with 0.200.",
        ),
        "unlinked": ("0 of 3 pairs with weight ≥ δ", "Element 1. No neighbours."),
        "kernel only": ("3 of 3 pairs with weight ≥ δ", "Element 1. Most similar elements: "),
    }
    for name, (pairs, words) in expected.items():
        choose(page, name)
        slide_to(page, 0)
        page.locator("#overlay").focus()
        page.keyboard.press("Shift+ArrowRight" if name in ("none", "unlinked") else "ArrowRight")
        assert text(page, "#count").startswith(pairs)
        assert page.locator("#announcement").inner_text().startswith(words.strip())
        assert page.locator("#empty").is_visible() == (name == "none")
    assert page.locator("#energies").is_hidden()


def test_a_large_graph_is_redrawn_with_bounded_work(visit: Callable[..., Any]) -> None:
    shown = replace(cloud(1000), kernel=None)
    page = visit(PageContent("large", sets=(shown,)))
    W = shown.weights
    pairs = np.maximum(W, W.T)[np.triu_indices(1000, 1)]
    code = """async () => {
      const slider = document.getElementById("slider");
      const before = setwiseExplorer.draws;
      const drawn = [];
      for (let k = 0; k < 30; k++) {
        slider.value = 900 - 30 * k;
        slider.dispatchEvent(new Event("input"));
        slider.dispatchEvent(new Event("input"));
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
        drawn.push(setwiseExplorer.drawn);
      }
      return [setwiseExplorer.draws - before, drawn];
    }"""
    draws, counts = page.evaluate(code)
    assert draws <= 31  # at most one per frame
    assert counts == sorted(counts)
    assert max(counts) == 3000
    slide_to(page, 0)
    assert text(page, "#count").startswith("499,500 of 499,500 pairs with weight ≥ δ")
    assert text(page, "#count").endswith("the 3,000 strongest are drawn.")
    delta = float(np.quantile(pairs, 0.99))
    page.locator("#delta").fill(f"{delta:.8f}")
    page.locator("#delta").press("Enter")
    assert state(page)["set"]["edges"] == pytest.approx((pairs >= delta).sum(), rel=0.05)  # one of 255 levels
    page.locator("#overlay").focus()
    page.keyboard.press("Shift+ArrowRight")
    weights = strongest(W, 0)[1]
    assert [float(number) for _, number in neighbours(page)] == pytest.approx(weights, rel=0.01)
    assert W[0, [j for j, _ in neighbours(page)]] == pytest.approx(weights, rel=0.01)
