"""The page of charts: every mark is a figure of a record, the file needs nothing else, and its HTML is whole."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tilewright.errors import InvalidOperand, TilewrightError
from tilewright.lab.record import find_records, read_records, write_json
from tilewright.report import interactive
from tilewright.report.charts import Bar, Bars, decades, doublings, linear, place
from tilewright.report.page import build, charts_of
from tilewright.report.tables import PAGES, markdown

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
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

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return build(RESULTS)


def markup(page: str) -> str:
    """The page without its scripts."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def charts(page: str) -> dict[str, dict]:
    """Title -> what is drawn of every chart."""
    found = re.findall(r'<div class="chart"><script type="application/json">(.*?)</script></div>', page)
    return {chart["title"]: chart for chart in map(json.loads, found)}


def test_the_file_is_whole_small_and_loads_nothing(page):
    parser = Whole()
    parser.feed(page)
    assert not parser.open
    assert not parser.loads
    assert len(parser.ids) == len(set(parser.ids))
    filled = {"traces", "roofs", *(name for name, _ in interactive.PARTS.values())}
    assert {link.removeprefix("#") for link in parser.links} == set(parser.ids) - filled
    assert filled <= set(parser.ids)
    code = re.sub(r"<!--.*?-->", "", page, count=1, flags=re.DOTALL)  # without the licenses
    assert set(re.findall(r"https?://[\w.]+", code)) == {"http://www.w3.org"}, "names of XML, which nothing loads"
    assert "Observable, Inc." in page
    assert "@import" not in page
    assert "url(" not in markup(page)
    assert not re.search(r"\bfetch\(", page), "tma_prefetch( is a kernel's"
    assert len(page.encode()) < 6e6


def test_the_page_serves_phones_dark_screens_keyboards_and_screen_readers(page):
    assert 'name="viewport" content="width=device-width' in page
    assert "prefers-color-scheme: dark" in page
    assert page.count('<div class="scroll" tabindex="0">') == markup(page).count("<table>")
    assert '<html lang="en">' in page
    used = set(re.findall(r"var\((--\w+)\)", page))
    for block in re.findall(r":root \{(.*?)\}", page, re.DOTALL):
        assert used <= set(re.findall(r"(--\w+):", block)), "a colour is missing in light or in dark"


def test_every_chart_has_its_figures_and_its_origin(page):
    assert len(charts(page)) >= 12
    page = markup(page)
    assert page.count("<figcaption") == page.count("<figure>") == page.count("Figures of:")
    assert page.count("Figures of the bars") == page.count('<details class="card">')
    assert "NVIDIA H200" in page
    assert re.search(r"\d+ to \d+ MHz", page)
    assert re.search(r"\d+ to \d+ W", page)


def test_bars_are_the_figures_of_the_records(page):
    drawn = [row["parts"][0][0] for row in charts(page)["fp32, from a naive loop"]["rows"]]
    assert drawn == [record["result"]["ratio"] for record in read_records(RESULTS / "fp32-ladder-H200.json")]


def test_stalls_are_in_climbing_order_each_rung_once_and_short_bars_have_a_chart_of_their_own(page):
    titles = [title for title in charts(page) if title.startswith("Stalls of")]
    assert len(titles) == 5
    for title in titles:
        rungs = [row["label"] for row in charts(page)[title]["rows"]]
        assert rungs == sorted(set(rungs))
    assert charts(page)["Stalls of f05 and above"]["rows"][0]["label"] == "f05_tile2d"


def test_an_empty_cell_is_explained(page):
    empty = [title for title, chart in charts(page).items() if chart["kind"] == "heat"
             and any(None in shares for _, shares in chart["rows"])]  # fmt: skip
    assert page.count("Empty: not measured.") == len(empty)


def test_the_hardwares_count_and_the_emulators_stand_together(page):
    words = [row["text"] for row in charts(page)["Sectors per global load"]["rows"]]
    (f01,) = (r for r in read_records(RESULTS / "counters-H200.json") if r["case"]["rung"] == "f01_naive")
    sides = f01["result"]["ratios"]["sectors_per_load"]
    assert f"{sides['hardware']:.3g}, {sides['emulator']:.3g}" in words


def test_a_column_meets_one_bank_and_swizzled_every_bank(page):
    (_, plain), (_, swizzled) = charts(page)["Banks of a tile of 32 x 32 floats"]["panels"]
    assert [len(set(column)) for column in zip(*plain, strict=True)] == [1] * 32
    assert [len(set(column)) for column in zip(*swizzled, strict=True)] == [32] * 32


def test_planned_attention_is_drawn_for_every_head_size_next_to_cudnn(page):
    heading = "Attention as planned by length"
    lines = [line["name"] for line in charts(page)[heading]["lines"]]
    sizes = sorted({r["case"]["d_head"] for r in read_records(RESULTS / "attention-planned-H200.json")})
    assert lines == [f"d_head {d}{mask}" for d in sizes for mask in ("", ", causal")]
    assert f"<h3>{heading}</h3><p>The share of cuDNN" in page


def test_every_config_of_a_sweep_is_a_tick(page):
    rows = charts(page)["Configs of f12"]["rows"]
    records = read_records(RESULTS / "fp32-f12-sweep-H200.json")
    assert [len(values) for _, values in rows] == [len(record["result"]["configs"]) for record in records]


CONFIGS = {
    "bf16-h17-sweep": ({"m": 64, "n": 64, "k": 64, "layout": "nn", "dtype": "bf16", "rung": "h17_ping_pong"},
                       ["128x128x64 warp 32x128 6 stages group 8", "128x96x64 warp 32x96 6 stages group 8",
                        "128x128x64 warp 32x128 5 stages group 4"], ["128x128x64", "128x96x64"]),
    "attention-a24-sweep": ({"batch": 1, "heads_q": 2, "seq_q": 64, "seq_k": 64, "d_head": 128, "rung": "a24"},
                            ["(128, 128, 64): 2_stages", "(128, 64, 96): 3_stages+products_in_turns",
                             "(128, 128, 64): 3_stages"], ["128 x 64", "64 x 96"]),
}  # fmt: skip
"""Suite -> case, configs that take 10, 20 and 40 us, and their rows."""


@pytest.mark.parametrize("suite", CONFIGS)
def test_a_landscape_of_one_product_has_a_row_per_tile_and_one_best(tmp_path, suite):
    case, configs, rows = CONFIGS[suite]
    origin = {"date": "2026-01-01T00:00:00+00:00", "gpu": "NVIDIA H200"}
    timed = [{"config_text": text, "us": us} for text, us in zip(configs, (10.0, 20.0, 40.0), strict=True)]
    if "m" in case:
        made = [{"case": case, "result": {"right": True, "configs": timed}}]
    else:
        made = [{"case": case | {"config_text": c["config_text"]}, "result": {"right": True, "ms": c["us"] / 1e3}}
                for c in timed]  # fmt: skip
    write_json(tmp_path / "made.json", [record | {"suite": suite, "provenance": origin} for record in made])
    (figure,) = (chart for heading, chart in charts_of(tmp_path).items() if heading.startswith("Configs of"))
    assert [(name, [round(share, 6) for share, _ in values]) for name, values in figure.rows] == [
        (rows[0], [1.0, 0.25]), (rows[1], [0.5])
    ]  # fmt: skip
    told = markdown(PAGES[suite], find_records(tmp_path, suite))
    assert f"| {rows[0]} | 2 | {configs[0]} | 10 | 100.0% | 1 | 62% |" in told
    assert f"| {rows[1]} | 1 | {configs[1]} | 20 | 50.0% | 0 | 50% |" in told


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
        interactive.scripts(RESULTS, [tmp_path / "mine.cu"])


def test_a_kernel_file_that_is_not_text_is_not_to_be_made_anew(tmp_path):
    (tmp_path / "mine.cu").write_bytes(b"\xff")
    with pytest.raises(InvalidOperand, match=r"mine\.cu cannot be read .*\)\. Give a text file in UTF-8\.$"):
        interactive.scripts(RESULTS, [tmp_path / "mine.cu"])


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


# --- data of charts ---------------------------------------------------------------------------------------------------


def test_axes_hold_their_values():
    assert (linear("y", [0.3, 1.33]).low, linear("y", [0.3, 1.33]).high) == (0, 1.33)
    log = decades("x", [0.5, 53.1])
    assert (log.low, log.high) == (0.1, 100)
    assert log.ticks == pytest.approx((0.1, 1, 10, 100))
    sizes = doublings("n", [512, 1024, 512])
    assert sizes.ticks == (512, 1024)
    assert sizes.low < 512 < 1024 < sizes.high


def test_words_of_a_chart_cannot_end_its_element():
    words = "</script><b>"
    text = place(Bars(words, [Bar(words, ((1.0, 0, words),), "1")]))
    assert text.count("</script>") == 1
    assert charts(text)[words]["rows"][0]["label"] == words
