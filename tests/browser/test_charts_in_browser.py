"""Charts in headless Chromium: all are drawn at every width, none cuts its words, and every mark tells its figure."""

from __future__ import annotations

import json

import pytest

DRAWN = """() => [...document.querySelectorAll('.chart')].filter(e => e.checkVisibility()).map(e => {
  const svg = e.querySelector('svg');
  const told = svg.querySelector('desc').textContent;
  const [title, role, width] = ['aria-label', 'role', 'width'].map(name => svg.getAttribute(name));
  return {title, role, told, width: Number(width), room: e.clientWidth};
})"""
# words and marks that leave their drawing, and words that cover one another by more than a touch
CROWDED = """() => [...document.querySelectorAll('.chart svg')].filter(e => e.checkVisibility()).flatMap(svg => {
  const box = e => e.getBoundingClientRect();
  const all = box(svg);
  const leaves = e => box(e).left < all.left - 1 || box(e).right > all.right + 1
    || box(e).top < all.top - 1 || box(e).bottom > all.bottom + 1;
  const covers = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  const out = [...svg.querySelectorAll('text, rect, circle, line, path')].filter(leaves);
  const words = [...svg.querySelectorAll('text')].filter(e => e.textContent);
  const places = words.map(box);
  const covered = words.filter((_, i) => places.slice(i + 1).some(place => covers(places[i], place)));
  return [...out, ...covered].map(e => `${svg.getAttribute('aria-label')}: ${e.textContent || e.tagName}`);
})"""
OPEN = "() => document.querySelectorAll('details.card').forEach(card => { card.open = true; })"
ALL_DRAWN = "() => [...document.querySelectorAll('.chart')].every(e => e.querySelector('svg'))"


@pytest.fixture(scope="session")
def charts(browser, address) -> list[dict]:
    """What the page's charts show, from its HTML: no script has run."""
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(address)
    found = [json.loads(text) for text in page.locator(".chart").all_text_contents()]
    page.context.close()
    return found


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (768, "dark"), (1280, "light")])
def test_every_chart_is_drawn_as_wide_as_there_is_room_and_whole(visit, charts, width, scheme):
    page = visit("", scheme, {"width": width, "height": 900})
    page.evaluate(OPEN)
    page.wait_for_function(ALL_DRAWN)
    drawn = page.evaluate(DRAWN)
    assert [one["title"] for one in drawn] == [chart["title"] for chart in charts]
    for one in drawn:
        assert one["role"] == "img"
        assert one["told"], f"{one['title']} tells a screen reader nothing"
        assert one["width"] == one["room"]
    assert page.evaluate(CROWDED) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_charts_follow_the_width_of_the_window(visit):
    page = visit(viewport={"width": 1100, "height": 900})
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function(
        "() => [...document.querySelectorAll('.chart svg')].every(e => +e.getAttribute('width') < 500)"
    )


def chart(page, title: str):
    return page.locator(f'.chart svg[aria-label="{title}"]')


def test_bars_are_as_long_as_their_figures(visit, charts):
    page = visit()
    for wanted in (one for one in charts if one["kind"] == "bars" and all(r["before"] is None for r in one["rows"])):
        if not chart(page, wanted["title"]).count():
            continue  # in a card that is closed
        values = [value for row in wanted["rows"] for value, _, _ in row["parts"]]
        lengths = (
            chart(page, wanted["title"]).locator("rect").evaluate_all("all => all.map(e => +e.getAttribute('width'))")
        )
        scale = max(lengths) / max(values)
        assert lengths == pytest.approx([value * scale for value in values], abs=0.01), wanted["title"]


def test_a_point_lies_where_its_axes_put_it(visit, charts):
    page = visit()
    (wanted,) = (one for one in charts if one["title"] == "fp32 rungs under the roofs")
    places = (
        chart(page, wanted["title"])
        .locator("circle")
        .evaluate_all("all => all.map(e => [+e.getAttribute('cx'), +e.getAttribute('cy')])")
    )
    assert len(places) == len(wanted["dots"])
    across = sorted(zip(wanted["dots"], places, strict=True), key=lambda pair: pair[0]["x"])
    assert [x for _, (x, _) in across] == sorted(x for x, _ in places)
    up = sorted(zip(wanted["dots"], places, strict=True), key=lambda pair: pair[0]["y"])
    assert [y for _, (_, y) in up] == sorted((y for _, y in places), reverse=True), "up is more"
    assert "f05 to f11" in chart(page, wanted["title"]).locator("text").all_text_contents(), (
        "labels that meet become one"
    )
    told = chart(page, "bf16 rungs under the roofs").locator("text").all_text_contents()
    assert {"h12 to h16, h18", "h17"} <= set(told), "a point aside keeps its own"


def test_a_cell_that_says_100_percent_is_green(visit, charts):
    page = visit()
    for heading in ("fp32 rungs by size", "bf16 rungs by size", "fp16 rungs by size"):
        cells = chart(page, heading).locator("rect[fill-opacity='0.6']")
        (wanted,) = (one for one in charts if one["title"] == heading)
        shares = [share for _, row in wanted["rows"] for share in row if share is not None]
        assert cells.count() == sum(share >= 0.995 for share in shares)


@pytest.mark.parametrize(
    "title", ["fp32, from a naive loop", "fp32 rungs under the roofs", "Configs of a24", "fp32 rungs by size"]
)  # fmt: skip
def test_every_mark_tells_its_figure_to_the_keyboard(visit, charts, title):
    (wanted,) = (one for one in charts if one["title"] == title)
    words = {
        "bars": lambda: [words for row in wanted["rows"] for _, _, words in row["parts"]],
        "plot": lambda: [one["name"] for one in wanted["lines"]] + [one["words"] for one in wanted["dots"]],
        "strips": lambda: [words for _, values in wanted["rows"] for _, words in values],
        "heat": lambda: [
            f"{name}, {size}: {100 * share:.1f}%"
            for name, shares in wanted["rows"] for size, share in zip(wanted["columns"], shares, strict=True)
            if share is not None
        ],
    }[wanted["kind"]]()  # fmt: skip
    page = visit()
    told = chart(page, title).locator("xpath=..").locator("output")
    chart(page, title).focus()
    page.keyboard.press("Home")
    heard = []
    for _ in words:
        assert told.is_visible()
        heard.append(told.inner_text())
        page.keyboard.press("ArrowRight")
    assert sorted(heard) == sorted(words)
    assert told.inner_text() == heard[0], "after the last comes the first"
    page.keyboard.press("Escape")
    assert not told.is_visible()


def test_a_mark_tells_its_figure_to_a_pointer_and_a_finger(visit, charts):
    wanted = charts[next(n for n, one in enumerate(charts) if one["title"] == "Attention")]
    page = visit()
    drawn = chart(page, "Attention")
    told = drawn.locator("xpath=..").locator("output")
    for number, row in enumerate(wanted["rows"][:3]):
        drawn.locator("rect").nth(number).hover()
        assert told.inner_text() == row["parts"][0][2]
    page.mouse.move(0, 0)
    assert not told.is_visible()
    drawn.locator("rect").nth(5).dispatch_event("pointerdown", {"pointerType": "touch"})
    assert told.inner_text() == wanted["rows"][5]["parts"][0][2]


@pytest.mark.parametrize(("scheme", "blue"), [("light", "rgb(47, 111, 179)"), ("dark", "rgb(106, 169, 234)")])
def test_charts_have_the_colours_of_the_reader(visit, scheme, blue):
    bar = chart(visit("", scheme), "Attention").locator("rect").first
    assert bar.evaluate("e => getComputedStyle(e).fill") == blue


def test_a_page_without_scripts_says_so_and_has_the_figures(browser, address, charts):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(address)
    assert "need JavaScript" in page.locator("header").inner_text()
    table = page.locator("details", has_text="Figures of: fp32, from a naive loop").locator("table")
    told = table.inner_text() if table.is_visible() else table.text_content()
    (wanted,) = (one for one in charts if one["title"] == "fp32, from a naive loop")
    assert all(row["text"] in told for row in wanted["rows"])
    page.context.close()
