"""The page of charts: every mark is a figure of a record, the file needs nothing else, and its HTML is whole."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tilewright.errors import InvalidOperand, TilewrightError
from tilewright.lab.record import read_records, write_json
from tilewright.report import charts, interactive
from tilewright.report.charts import Bar, Dot, Line, axis, doublings
from tilewright.report.page import build

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}


class Whole(HTMLParser):
    """Finds tags that are not closed, ids, links, and whatever would be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attributes):
        told = dict(attributes)
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)
        self.ids += [told["id"]] if "id" in told else []
        self.links += [told["href"]] if tag == "a" else []
        self.loads += [tag] if tag in ("link", "img", "iframe", "object") or "src" in told else []

    def handle_startendtag(self, tag, attributes):
        assert tag in ("line", "rect", "circle", "polyline"), "only drawings close themselves"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return build(RESULTS)


def markup(page: str) -> str:
    """The page without its scripts."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def drawings(page: str) -> dict[str, ElementTree.Element]:
    found = [ElementTree.fromstring(text) for text in re.findall(r"<svg .*?</svg>", markup(page), re.DOTALL)]
    return {drawing.find(f"{SVG}title").text: drawing for drawing in found}


def test_the_file_is_whole_small_and_loads_nothing(page):
    parser = Whole()
    parser.feed(page)
    assert not parser.open
    assert not parser.loads
    assert len(parser.ids) == len(set(parser.ids))
    filled = {"traces", "roofs", *(name for name, _ in interactive.PARTS.values())}
    assert {link.removeprefix("#") for link in parser.links} == set(parser.ids) - filled
    assert filled <= set(parser.ids)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "@import" not in page
    assert "url(" not in page
    assert "fetch(" not in page
    assert len(page.encode()) < 6e6


def test_the_page_serves_phones_dark_screens_keyboards_and_screen_readers(page):
    assert 'name="viewport" content="width=device-width' in page
    assert "prefers-color-scheme: dark" in page
    assert page.count('<div class="scroll" tabindex="0">') == markup(page).count("<table>")
    assert '<html lang="en">' in page
    for title, drawing in drawings(page).items():
        assert drawing.get("role") == "img"
        assert title
        assert drawing.find(f"{SVG}desc").text
    used = set(re.findall(r"var\((--\w+)\)", page))
    for block in re.findall(r":root \{(.*?)\}", page, re.DOTALL):
        assert used <= set(re.findall(r"(--\w+):", block)), "a colour is missing in light or in dark"


def test_every_chart_has_its_figures_and_its_origin(page):
    page = markup(page)
    assert page.count("<svg ") >= 12
    assert page.count("<figcaption") == page.count("<figure>") == page.count("Figures of:")
    assert "NVIDIA H200" in page
    assert re.search(r"\d+ to \d+ MHz", page)
    assert re.search(r"\d+ to \d+ W", page)


def test_bars_are_as_long_as_their_figures(page):
    drawing = drawings(page)["fp32, from a naive loop"]
    widths = [float(rect.get("width")) for rect in drawing.iter(f"{SVG}rect")]
    ratios = [record["result"]["ratio"] for record in read_records(RESULTS / "fp32-ladder-H200.json")]
    assert len(widths) == len(ratios)
    scale = max(widths) / max(ratios)
    assert widths == pytest.approx([ratio * scale for ratio in ratios], abs=0.06)


def test_the_hardwares_count_and_the_emulators_stand_together(page):
    drawing = drawings(page)["Sectors per global load"]
    words = [node.text for node in drawing.iter(f"{SVG}text")]
    (f01,) = (r for r in read_records(RESULTS / "counters-H200.json") if r["case"]["rung"] == "f01_naive")
    sides = f01["result"]["ratios"]["sectors_per_load"]
    assert f"{sides['hardware']:.3g}, {sides['emulator']:.3g}" in words


def test_a_column_meets_one_bank_and_swizzled_every_bank(page):
    cells = list(drawings(page)["Banks of a tile of 32 x 32 floats"].iter(f"{SVG}rect"))
    plain, swizzled = cells[:1024], cells[1024:]
    assert len(swizzled) == 1024
    for column in range(32):
        assert len({cell.get("fill") for cell in plain[column::32]}) == 1
        assert len({cell.get("fill") for cell in swizzled[column::32]}) == 32


def test_planned_attention_is_drawn_for_every_head_size_next_to_cudnn(page):
    heading = "Attention as planned by length"
    lines = [line.find(f"{SVG}title").text for line in drawings(page)[heading].iter(f"{SVG}polyline")]
    sizes = sorted({r["case"]["d_head"] for r in read_records(RESULTS / "attention-planned-H200.json")})
    assert lines == [f"d_head {d}{mask}" for d in sizes for mask in ("", ", causal")]
    assert f"<h3>{heading}</h3><p>The share of cuDNN" in page


def test_every_config_of_a_sweep_is_a_tick(page):
    drawing = drawings(page)["Configs of f12"]
    count = sum(len(record["result"]["configs"]) for record in read_records(RESULTS / "fp32-f12-sweep-H200.json"))
    assert len(list(drawing.iter(f"{SVG}rect"))) == count


def test_no_mark_lies_outside_its_drawing(page):
    for title, drawing in drawings(page).items():
        _, _, width, height = map(float, drawing.get("viewBox").split())
        for mark in drawing.iter():
            for name in ("x", "cx", "x1", "x2", "y", "cy", "y1", "y2"):
                most = width if "x" in name else height
                if mark.get(name) is not None:
                    assert -1 <= float(mark.get(name)) <= most, title
        for line in drawing.iter(f"{SVG}polyline"):
            for point in line.get("points").split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width, title
                assert 0 <= y <= height, title


def test_the_page_follows_its_records(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(RESULTS / "fp32-ladder-H200.json", folder)
    records = read_records(folder / "fp32-ladder-H200.json")
    records[4]["result"]["ratio"] = 0.123456
    records[4]["case"]["config_text"] = "<script>alert(1)</script>"
    write_json(folder / "fp32-ladder-H200.json", records)
    page = build(folder)
    assert "12.3%" in page
    assert "<script>alert" not in page
    assert "bf16 on tensor cores" not in page, "what has no record is left out"
    (tmp_path / "empty").mkdir()
    with pytest.raises(TilewrightError, match="no records that the page shows"):
        build(tmp_path / "empty")


def test_a_kernel_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidOperand, match=r"mine\.cu cannot be read .* Make one: tilewright new"):
        build(RESULTS, [tmp_path / "mine.cu"])


@pytest.mark.parametrize(("gpu", "roofs"), [("NVIDIA H100 80GB HBM3", True), ("NVIDIA L40S", False)])
def test_a_page_of_another_gpu_has_its_roofs_where_they_are_known(tmp_path, gpu, roofs):
    folder = tmp_path / "results"
    folder.mkdir()
    records = read_records(RESULTS / "fp32-ladder-H200.json")
    for record in records:
        record["provenance"]["gpu"] = gpu
    write_json(folder / "fp32-ladder-mine.json", records)
    page = build(folder)
    assert gpu in page
    assert ("fp32 rungs under the roofs" in page) == roofs


# --- drawing ----------------------------------------------------------------------------------------------------------


def test_axes_hold_their_values_with_round_ticks():
    assert axis("y", [0.3, 1.33]).ticks == pytest.approx((0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4))
    assert axis("y", [0, 66.9]).ticks == pytest.approx(tuple(range(0, 71, 10)))
    log = axis("x", [0.5, 53.1], is_log=True)
    assert (log.low, log.high) == (0.1, 100)
    assert log.at(log.low) == 0
    assert log.at(log.high) == pytest.approx(1)
    assert log.at(10**0.5) == pytest.approx(0.5)
    assert doublings("n", [512, 1024, 512]).ticks == (512, 1024)


def test_a_point_lies_where_its_axes_put_it():
    text = charts.plot("t", axis("x", [0, 10]), axis("y", [0, 10]), [Dot(0, 0, "low"), Dot(10, 10, "high")],
                       [Line("l", ((0, 0), (10, 10)))])  # fmt: skip
    low, high = ElementTree.fromstring(text).iter(f"{SVG}circle")
    assert float(low.get("cx")) < float(high.get("cx"))
    assert float(low.get("cy")) > float(high.get("cy")), "up is more"


def test_labels_that_would_cover_one_another_become_one():
    text = charts.plot("t", axis("x", [0, 10]), axis("y", [0, 100]), [
        Dot(5, 50, "a", label="a"), Dot(5, 50.5, "b", label="b"), Dot(5, 90, "c", label="c"),
    ])  # fmt: skip
    words = [node.text for node in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert "a, b" in words
    assert "c" in words


def test_words_are_escaped_and_no_bars_are_refused():
    assert "&lt;b&gt;" in charts.bars("<b>", [Bar("<b>", ((1.0, 0, "<b>"),), "1")])
    with pytest.raises(ValueError, match="at least one"):
        charts.bars("t", [])
