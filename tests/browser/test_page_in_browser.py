"""The page in headless Chromium, with real clicks: every control answers, the address keeps the state, none fails."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from tilewright.emu import banks, coalesce
from tilewright.lab.bank_map import swizzle_strides
from tilewright.lab.starters import new_kernel
from tilewright.report.page import build

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "docs" / "pictures"
DESKTOP, PHONE = {"width": 1100, "height": 900}, {"width": 360, "height": 740}
STEPPER = "#stepper"


def picture(page, where: str = STEPPER) -> str:
    """All that is drawn, as text."""
    return page.locator(where).inner_html()


def test_next_and_back_step_and_the_address_follows(visit):
    page = visit("k=f01")
    first = picture(page)
    page.click(f"{STEPPER} button[name=next]")
    assert picture(page) != first
    assert "step=1" in page.url
    page.click(f"{STEPPER} button[name=back]")
    assert "step=0" in page.url
    assert picture(page) == first


def test_every_kernel_and_config_can_be_chosen_and_drawn(visit):
    page = visit()
    rungs = page.locator(f"{STEPPER} select[name=rung] option").evaluate_all("all => all.map(o => o.value)")
    assert len(rungs) >= 15
    for rung in rungs:
        page.select_option(f"{STEPPER} select[name=rung]", rung)
        keys = page.locator(f"{STEPPER} select[name=k] option").evaluate_all("all => all.map(o => o.value)")
        for key in keys:
            page.select_option(f"{STEPPER} select[name=k]", key)
            assert f"k={key}&" in page.url + "&"
            last = int(page.get_attribute(f"{STEPPER} input[name=step]", "max"))
            for step in (last // 3, last):
                page.locator(f"{STEPPER} input[name=step]").fill(str(step))
                assert page.locator(f"{STEPPER} .told").inner_text()
                assert page.locator(f"{STEPPER} svg").count() >= 1


def test_each_control_changes_the_picture(visit):
    page = visit("k=f09-tile_k8&step=30")
    for name, value in (("warp", "2"), ("skip", "global")):
        before = picture(page)
        page.select_option(f"{STEPPER} select[name={name}]", value)
        assert picture(page) != before, name
        assert f"{name}={value}" in page.url
    before = picture(page)
    page.locator(f"{STEPPER} input[name=lane]").fill("13")
    assert picture(page) != before
    page.click(f"{STEPPER} button[name=next]")
    assert re.match("global", page.locator(f"{STEPPER} .told").inner_text())


def test_only_steps_that_a_kernel_has_can_be_stopped_at(visit):
    page = visit("k=f01&skip=product")  # of another kernel: f01 has no such step
    offered = page.locator(f"{STEPPER} select[name=skip] option").evaluate_all("all => all.map(o => o.value)")
    assert offered == ["any", "global"]
    assert page.locator(f"{STEPPER} select[name=skip]").input_value() == "any"
    page.select_option(f"{STEPPER} select[name=rung]", "h08_mma")
    assert page.locator(f"{STEPPER} select[name=skip]").input_value() == "product"


def test_a_button_that_leads_nowhere_says_so_and_keeps_its_focus(visit):
    page = visit("k=f01&step=1")
    page.focus(f"{STEPPER} button[name=back]")
    page.keyboard.press("Enter")
    assert page.get_attribute(f"{STEPPER} button[name=back]", "aria-disabled") == "true"
    assert page.get_attribute(f"{STEPPER} button[name=next]", "aria-disabled") is None
    assert page.evaluate("document.activeElement.name") == "back"


def test_a_word_that_two_wavefronts_serve_shows_both(visit):
    page = visit("k=f12-tile_k8-stages2&step=192")
    assert "2 wavefronts of shared memory" in page.locator(f"{STEPPER} .told").inner_text()
    assert ", wavefronts 1 and 2: lane" in picture(page)


def test_a_click_into_the_pipeline_goes_there(visit):
    page = visit("k=f12-tile_k8-stages3")
    pipeline = page.locator(f"{STEPPER} .timeline")
    box = pipeline.bounding_box()
    pipeline.click(position={"x": 0.5 * box["width"], "y": 0.5 * box["height"]})
    step = int(re.search(r"step=(\d+)", page.url)[1])
    assert 100 < step < 220


def test_play_goes_on_by_itself_until_it_is_stopped(visit):
    page = visit("k=f02")
    page.click(f"{STEPPER} button[name=play]")
    page.wait_for_function("location.hash.includes('step=2')")
    page.click(f"{STEPPER} button[name=play]")
    told = page.locator(f"{STEPPER} button[name=play]").inner_text()
    assert told == "Play"


def test_the_state_comes_back_from_the_address(visit):
    first = visit("k=h09&step=60")
    first.locator(f"{STEPPER} input[name=lane]").fill("21")
    first.select_option(f"{STEPPER} select[name=warp]", "3")
    again = visit(first.url.split("#")[1])
    assert picture(again) == picture(first)


def test_a_link_to_a_section_leaves_the_state_alone(visit):
    page = visit("k=f03&step=9")
    page.click("nav a[href='#ladders']")
    assert page.locator(f"{STEPPER} select[name=rung]").input_value() == "f03_shared"


def test_nonsense_in_the_address_is_harmless(visit):
    page = visit("k=nothing&step=-3&warp=x&lane=99&skip=%3Cb%3E")
    assert page.locator(f"{STEPPER} svg").count() >= 1


@pytest.mark.parametrize("state", ["%", "k=%", "k=f03&step=%zz", "threads.side=%E0%A4%A&k=f02", "=", "a=b=c"])
def test_a_broken_address_is_harmless(visit, state):
    page = visit(state)
    assert page.locator(f"{STEPPER} svg").count() >= 1
    assert page.locator("#play-threads svg").count() == 1


@pytest.mark.parametrize(
    "slider",
    [f"{STEPPER} input[name=step]", f"{STEPPER} input[name=lane]", "#play-threads input[name='threads.thread']",
     "#play-banks input[name='banks.pad']"],
)  # fmt: skip
def test_a_slider_follows_the_hand_to_its_end(visit, slider):
    page = visit("k=f02")
    control = page.locator(slider)
    control.scroll_into_view_if_needed()
    box = control.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 3, middle)
    page.mouse.down()
    for part in (0.2, 0.4, 0.6, 0.8, 1):
        page.mouse.move(box["x"] + part * box["width"], middle)
    page.mouse.up()
    assert control.input_value() == control.get_attribute("max")
    assert f"={control.input_value()}" in page.url


def test_the_keyboard_alone_reaches_and_moves_everything(visit):
    page = visit("k=f03")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.getAttribute('name') || document.activeElement.getAttribute('class')")
        )
    assert {"rung", "k", "warp", "lane", "back", "play", "next", "skip", "step", "panels"} <= reached
    page.locator(f"{STEPPER} .panels").focus()
    page.keyboard.press("ArrowRight")
    assert "step=1" in page.url
    page.locator(f"{STEPPER} button[name=next]").focus()
    page.keyboard.press("Enter")
    assert "step=2" in page.url
    assert page.evaluate("document.activeElement.name") == "next", "the focus stays"


def test_screen_readers_are_told(visit):
    page = visit("k=h15-stages3&step=40")
    assert page.locator(f"{STEPPER} [aria-live=polite]").count() == 1
    for control in page.locator(f"{STEPPER} select, {STEPPER} input, {STEPPER} button").all():
        assert control.evaluate("e => e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label')")
    for drawing in page.locator(f"{STEPPER} svg").all():
        assert drawing.get_attribute("role") == "img"
        assert drawing.get_attribute("aria-label")
    live = page.locator(f"{STEPPER} [aria-live=polite]")
    page.evaluate("window.kept = document.querySelector('#stepper [aria-live=polite]')")
    before = live.inner_text()
    page.click(f"{STEPPER} button[name=next]")
    assert live.inner_text() != before
    assert page.evaluate("window.kept.isConnected"), "what is read aloud changes in a place that stays"
    assert page.locator("h1").count() == 1
    assert page.locator("header, nav, main").count() == 3
    assert (
        page.locator("th").evaluate_all("all => all.filter(e => e.scope === 'col' && !e.textContent.trim()).length")
        == 0
    )


FAINT = """() => {
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).map(v => v / 255);
    const [r, g, b] = parts.map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.05 + 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = e => {
    const own = e && getComputedStyle(e).backgroundColor;
    return !e ? 'rgb(255, 255, 255)' : own.startsWith('rgb(') ? own : ground(e.parentElement);
  };
  const contrast = e => {
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    return Math.max(a, b) / Math.min(a, b);
  };
  const says = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  return [...document.querySelectorAll('body *')]
    .filter(e => !e.closest('svg, script') && says(e) && e.checkVisibility() && contrast(e) < 4.5)
    .map(e => [e.tagName, e.className, e.textContent.slice(0, 40), contrast(e)]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_ground(visit, scheme):
    """4.5 to 1, as WCAG asks of text, for every element with words of its own that is not drawn."""
    assert visit("k=no_barrier&step=8", scheme).evaluate(FAINT) == []


@pytest.mark.parametrize(
    "state",
    ["k=f01&banks.columns=128&threads.side=32", "k=h09&step=60&plain=1", "k=h15-stages3&step=50", "k=a03&step=20"],
)
def test_nothing_is_wider_than_a_phone(visit, state):
    page = visit(state, viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_what_scrolls_on_a_phone_can_be_reached_by_the_keyboard(visit):
    page = visit("k=h15-stages3&step=40", viewport=PHONE)
    unreached = """() => [...document.querySelectorAll('main *')]
      .filter(e => e.scrollWidth > e.clientWidth && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX))
      .filter(e => e.tabIndex < 0).map(e => e.outerHTML.slice(0, 80))"""
    assert page.evaluate(unreached) == []
    ring = page.locator(f"{STEPPER} .scroll").first
    before = ring.evaluate("e => e.scrollLeft")
    ring.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("before => document.querySelector('#stepper .scroll').scrollLeft > before", arg=before)
    assert "step=40" in page.url, "arrow keys scroll there"


def test_the_step_stays_in_sight_where_the_pipeline_is_wider_than_a_phone(visit):
    page = visit("k=h15-stages3&step=0", viewport=PHONE)
    last = page.get_attribute(f"{STEPPER} input[name=step]", "max")
    page.locator(f"{STEPPER} input[name=step]").fill(last)
    in_sight = """() => {
      const box = one => document.querySelector(`#stepper ${one}`).getBoundingClientRect();
      const [now, place] = [box('.timeline .now'), box('.scroll')];
      return now.left >= place.left && now.right <= place.right;
    }"""
    page.wait_for_function(in_sight)


def test_the_swizzle_is_shown_before_and_after(visit):
    page = visit("k=h11-stages3&step=17")
    page.check(f"{STEPPER} input[name=plain]")
    words = page.locator(f"{STEPPER} .panel p").all_inner_texts()
    after, before = (int(re.search(r"(\d+) wavefront", text)[1]) for text in words if "wavefront" in text)
    assert before > after


def test_the_pages_rules_are_the_emulators(visit):
    page = visit()
    rng = np.random.default_rng(7)
    cases = []
    for nbytes in (4, 8, 16):
        for access in ("load", "store", "matrix", "copy"):
            if access == "matrix" and nbytes != 16:
                continue
            for _ in range(12):
                words = rng.integers(0, int(rng.choice([8, 64, 512])), 32) * nbytes
                active = rng.random(32) < rng.choice([0.6, 1.0])
                cases.append(([int(w) if a else None for w, a in zip(words, active, strict=True)], nbytes, access))
        for stride in (1, 2, 3, 32, 33):
            cases.append(([lane * stride * nbytes for lane in range(32)], nbytes, "load"))
    found = page.evaluate(
        "cases => cases.map(([lanes, bytes, kind]) => { const f = tilewright.rules.fronts(lanes, bytes, kind);"
        " return [f.count, f.ideal, tilewright.rules.sectors(lanes, bytes).length]; })",
        cases,
    )
    for (lanes, nbytes, access), (count, least, sectors) in zip(cases, found, strict=True):
        at = np.array([[a or 0 for a in lanes]])
        active = np.array([[a is not None for a in lanes]])
        told = (lanes, nbytes, access)
        assert sectors == coalesce.sectors(at, nbytes, active)[0], told
        assert least == banks.ideal(at, nbytes, active)[0], told
        assert count == banks.wavefronts(at, nbytes, active, access)[0], told


def test_a_missing_barrier_is_shown_where_it_happens(visit):
    page = visit("k=no_barrier&step=8")
    assert "shared_race" in page.locator(f"{STEPPER} [role=alert]").inner_text()
    assert page.locator(f"{STEPPER} .hazard").count() >= 1
    page = visit("k=transpose&step=9")
    assert page.locator(f"{STEPPER} [role=alert], {STEPPER} .hazard").count() == 0


@pytest.fixture(scope="module")
def own_kernels(tmp_path_factory) -> str:
    """The address of a page with two kernels of a person's own."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("transpose", "transaction"):
        new_kernel(folder / f"{name}.cu", name)
    file = folder / "page.html"
    kernels = [folder / "transpose.cu", folder / "transaction.cu"]
    file.write_text(build(ROOT / "benchmarks" / "results", kernels), encoding="utf-8")
    return file.as_uri()


def test_a_persons_own_kernel_comes_first(browser, own_kernels):
    page = browser.new_page()
    page.goto(own_kernels)
    assert page.locator(f"{STEPPER} select[name=rung]").input_value() == "transpose.cu"
    page.locator(f"{STEPPER} input[name=step]").fill("7")
    assert "32 sectors" in page.locator(f"{STEPPER} .told").inner_text()
    page.close()


def test_bytes_that_were_not_announced_are_told_as_such(browser, own_kernels):
    page = browser.new_page()
    page.goto(own_kernels)
    page.select_option(f"{STEPPER} select[name=rung]", "transaction.cu")
    page.locator(f"{STEPPER} input[name=step]").fill("6")
    assert "3072 more than announced" in picture(page)
    page.close()


@pytest.mark.parametrize("part", ["threads", "tiles", "banks", "strides", "roof"])
def test_every_control_of_a_drawing_changes_it_and_the_address(visit, part):
    page = visit()
    where = f"#play-{part}"
    names = page.locator(f"{where} select, {where} input").evaluate_all("all => all.map(e => e.name)")
    assert names
    for name in names:
        before = picture(page, where)
        control = page.locator(f"{where} [name='{name}']")
        if control.evaluate("e => e.tagName") == "SELECT":
            now = control.input_value()
            others = control.locator("option").evaluate_all("all => all.map(o => o.value)")
            control.select_option(next(value for value in reversed(others) if value != now))
        else:
            control.focus()
            page.keyboard.press("ArrowRight" if control.input_value() != control.get_attribute("max") else "ArrowLeft")
        assert picture(page, where) != before, name
        assert name.split(".")[1] + "=" in page.url
    again = visit(page.url.split("#")[1])
    assert picture(again, where) == picture(page, where)


def test_a_card_opens_and_fits_a_phone(visit):
    page = visit(viewport=PHONE)
    card = page.locator("details.card").filter(has_text="f09_transposed").first
    card.locator("summary").first.click()
    card.locator("svg").first.wait_for()
    assert card.locator("svg").first.is_visible()
    assert "registers per thread" in card.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_toy_tile_takes_32_wavefronts_and_swizzled_one(visit):
    page = visit()
    words = page.locator("#play-banks p").first.inner_text()
    assert "As it lies: 32 wavefronts" in words
    assert "Swizzled: 1 wavefront" in words


def test_strides_are_those_of_the_library(visit):
    page = visit("strides.size=8")
    rows = page.locator("#play-strides tbody tr").all_inner_texts()
    wanted = swizzle_strides(8).rows
    for text, row in zip(rows, wanted, strict=True):
        assert [int(cell.replace("−", "-").replace(" ", "")) for cell in text.split("\t")] == [
            row.thread, row.base, *row.strides
        ]  # fmt: skip


# --- screenshots ------------------------------------------------------------------------------------------------------

VIEWS = {
    "coalesced-light": ("k=f02&step=4&lane=3", "light", DESKTOP),
    "banks-dark": ("k=h09&step=60&lane=9&plain=1", "dark", DESKTOP),
    "ring-light": ("k=h15-stages3&step=50", "light", DESKTOP),
    "keys-phone": ("k=a03&step=70", "light", PHONE),
    "shared-light": ("k=f03&step=2&lane=3", "light", DESKTOP),
    "thread-tiles-light": ("tiles.tm=8", "light", DESKTOP),
    "keys-light": ("k=a03&step=60", "light", DESKTOP),
    "pipeline-light": ("k=f12-tile_k8-stages3&step=150", "light", DESKTOP),
    "fragments-light": ("k=h09&step=50&lane=9", "light", DESKTOP),
    "threads-light": ("threads.thread=9", "light", DESKTOP),
    "warp-tiles-light": ("tiles.kind=warp&tiles.tn=8", "light", DESKTOP),
    "banks-play-dark": ("", "dark", DESKTOP),
    "tiles-play-phone": ("tiles.kind=warp&tiles.tn=8", "light", PHONE),
    "roof-play-dark": ("roof.kind=bf16", "dark", DESKTOP),
    "ladder-phone": ("", "light", PHONE),
    "sizes-light": ("", "light", DESKTOP),
    "stalls-dark": ("", "dark", {"width": 768, "height": 900}),
}
PARTS = {
    "banks-play-dark": "#play-banks", "tiles-play-phone": "#play-tiles", "roof-play-dark": "#play-roof",
    "ladder-phone": "#ladders figure >> nth=0", "sizes-light": "#sizes figure >> nth=0",
    "stalls-dark": "#what-warps-wait-for figure >> nth=0", "pipeline-light": f"{STEPPER} .panel >> nth=0",
    "keys-light": f"{STEPPER} .panel >> nth=0",
    "fragments-light": f"{STEPPER} .panel:has-text('Registers: fragments')", "threads-light": "#play-threads",
    "warp-tiles-light": "#play-tiles", "thread-tiles-light": "#play-tiles",
}  # fmt: skip
CELL = 16
"""Pixels whose mean is compared: fonts may differ, boxes and colours may not."""


def blocks(image) -> np.ndarray:
    """Means of squares of pixels, [rows, columns, 3], 0 to 255."""
    values = np.asarray(image.convert("RGB"), np.float32)
    high, wide = (size // CELL * CELL for size in values.shape[:2])
    return values[:high, :wide].reshape(high // CELL, CELL, wide // CELL, CELL, 3).mean((1, 3))


def different(a: np.ndarray, b: np.ndarray) -> float:
    """The share of squares that differ by more than a tenth; 1 for another width, or a height by a tenth."""
    if a.shape[1] != b.shape[1] or abs(len(a) - len(b)) > 0.1 * len(b):
        return 1.0
    high = min(len(a), len(b))
    return float((np.abs(a[:high] - b[:high]).max(-1) > 25).mean())


@pytest.mark.parametrize("name", VIEWS)
def test_the_page_looks_as_it_did(visit, name, tmp_path):
    """TILEWRIGHT_SHOTS=write takes the pictures anew: look at them before they are committed."""
    image = pytest.importorskip("PIL.Image")
    state, scheme, viewport = VIEWS[name]
    page = visit(state, scheme, viewport)
    shot = tmp_path / f"{name}.png"
    page.locator(PARTS.get(name, STEPPER)).screenshot(path=shot, animations="disabled")
    kept = SHOTS / f"page-{name}.png"
    if os.environ.get("TILEWRIGHT_SHOTS") == "write":
        image.open(shot).convert("P", palette=image.Palette.ADAPTIVE, colors=128).save(kept, optimize=True)
    share = different(blocks(image.open(shot)), blocks(image.open(kept)))
    assert share < 0.03, f"{share:.1%} of {kept.name} looks different; the picture of today is {shot}"


def test_another_picture_is_seen_as_another(visit, tmp_path):
    image = pytest.importorskip("PIL.Image")
    page = visit("k=f02&step=4&lane=3")
    page.locator(STEPPER).screenshot(path=tmp_path / "one.png")
    page.locator(f"{STEPPER} input[name=step]").fill("32")
    page.locator(STEPPER).screenshot(path=tmp_path / "two.png")
    one, two = (blocks(image.open(tmp_path / f"{name}.png")) for name in ("one", "two"))
    assert different(one, one) == 0
    assert different(one, two) > 0.03
