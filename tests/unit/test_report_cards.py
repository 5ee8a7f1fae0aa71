"""Cards and pictures: figures of records, next to those of the rung below; pictures are whole files of their own."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tilewright.lab.record import read_records, write_json
from tilewright.report.cards import as_html, cards
from tilewright.report.page import charts_of
from tilewright.report.pictures import PICTURES, draw, pictures, shows, why_not_drawn

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def decks():
    return cards(RESULTS, lambda folder, records: f"{len(records)} records")


def card(decks, name: str):
    return next(one for deck in decks for one in deck.cards if one.rung == name)


def test_each_rung_with_times_has_a_card_in_order(decks):
    wanted = [record["case"]["rung"] for record in read_records(RESULTS / "fp32-ladder-H200.json")]
    fp32 = next(deck for deck in decks if deck.title == "fp32")
    assert [one.rung for one in fp32.cards] == wanted
    assert [one.below for one in fp32.cards] == ["", *wanted[:-1]]
    assert {one.origin for one in fp32.cards} == {"3 records"}, "times, stalls and counters"


def test_a_card_has_its_own_figures_and_those_of_the_rung_below(decks):
    results = {r["case"]["rung"]: r["result"] for r in read_records(RESULTS / "fp32-ladder-H200.json")}
    f09 = card(decks, "f09_transposed")
    rows = {name: (old, new) for name, old, new in f09.rows}
    below, here = results["f08_warptile_sub"], results["f09_transposed"]
    assert rows["registers per thread"] == (str(below["registers"]), str(here["registers"]))
    assert rows["time"] == (f"{below['ms']:.4g} ms", f"{here['ms']:.4g} ms")
    assert rows["power"][1] == f"{here['conditions']['power_w']:.0f} W"
    counted = {r["case"]["rung"]: r["result"]["ratios"] for r in read_records(RESULTS / "counters-H200.json")}
    wavefronts = counted["f09_transposed"]["wavefronts_per_shared_load"]["hardware"]
    assert rows["wavefronts per shared load"][1] == f"{wavefronts:.3g}"
    assert f"{here['ratio']:.1%}" in f09.headline


def test_times_of_another_batch_do_not_stand_side_by_side(decks):
    attention = {card.rung: {name: (old, new) for name, old, new in card.rows} for card in decks[2].cards}
    assert attention["a18_wgmma"]["time"][0] == "-", "a17 was measured with another batch"
    assert attention["a18_wgmma"]["speed"][0].endswith("TFLOP/s")
    assert attention["a17_lazy_rescale"]["time"][0].endswith("ms")


def test_bars_compare_stalls_and_instructions(decks):
    f09 = card(decks, "f09_transposed")
    stalls = {r["case"]["rung"]: r["result"]["stalls"] for r in read_records(RESULTS / "fp32-stalls-H200.json")}
    for name, before, now in f09.bars["Warps that wait, per issued instruction"]:
        assert (before, now) == (stalls["f08_warptile_sub"][name], stalls["f09_transposed"][name])


def test_every_card_shows_the_loops_machine_code_next_to_that_of_the_rung_below(decks):
    for deck in decks:
        for one in deck.cards:
            bars = one.bars["SASS instructions in the main loop, sm_90a"]
            assert bars, one.rung
            assert not one.below or any(before is not None for _, before, _ in bars), one.rung


def test_every_card_shows_what_a_thread_executes_on_the_emulator(decks):
    executed = {r["case"]["rung"]: r["result"] for r in read_records(RESULTS / "executed-H200.json")}
    for deck in decks:
        for one in deck.cards:
            (bars,) = (bars for title, bars in one.bars.items() if title.startswith("Instructions of a thread at 256 "))
            instructions = executed[one.rung]["instructions_per_thread"]
            assert {name: now for name, _, now in bars if now} == {name: n for name, n in instructions.items() if n}
            rows = {name: now for name, _, now in one.rows}
            assert rows["FLOP per byte of global traffic, emulator"] == f"{executed[one.rung]['flop_per_byte']:.3g}"


def test_counts_are_the_emulators_where_the_hardwares_were_not_read(decks):
    name = "wavefronts per shared load, emulator"
    (_, _, base), (_, _, swizzled) = (
        next(row for row in card(decks, rung).rows if row[0] == name) for rung in ("a01_base", "a02_swizzle")
    )
    assert float(base) > 4 * float(swizzled) > 0
    assert not any(row[0] == name for row in card(decks, "f09_transposed").rows)


def test_the_first_rung_has_nothing_below(decks):
    first = card(decks, "f01_naive")
    assert first.below == ""
    assert {old for _, old, _ in first.rows} == {"-"}
    assert all(before is None for bars in first.bars.values() for _, before, _ in bars)


def test_cards_are_whole_html(decks):
    text = as_html(decks)
    count = sum(len(deck.cards) for deck in decks)
    assert text.count('<details class="card">') == count
    assert text.count("<details") == text.count("</details>") == 2 * count, "each has a table of its bars"
    assert not cards(ROOT / "nowhere", lambda folder, records: "")


def test_pictures_are_files_that_need_nothing_and_are_used():
    made = pictures(RESULTS)
    assert set(made) == set(PICTURES)
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    for name, chart in made.items():
        file = ROOT / "docs" / "pictures" / name
        assert shows(file, chart), "run: tilewright report --write"
        text = file.read_text(encoding="utf-8")
        drawing = ElementTree.fromstring(text)
        assert drawing.tag.endswith("svg")
        assert drawing.get("aria-label") == PICTURES[name]
        assert "prefers-color-scheme: dark" in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
        assert f"pictures/{name}" in pages, "nobody shows it"


def test_pictures_are_drawn_by_the_pages_script():
    if why := why_not_drawn(ROOT):
        pytest.skip(why)
    for name, drawn in draw(ROOT, pictures(RESULTS)).items():
        assert drawn == (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8"), (
            "run: tilewright report --write"
        )


def test_a_picture_of_other_figures_is_seen_as_old(tmp_path):
    (tmp_path / "a.svg").write_text("<svg/>")
    chart = pictures(RESULTS)["fp32-ladder.svg"]
    assert not shows(tmp_path / "a.svg", chart)
    assert not shows(tmp_path / "nowhere.svg", chart)
    assert not shows(ROOT / "docs" / "pictures" / "fp32-ladder.svg", chart.replace("f01", "f00"))


def test_a_card_and_the_page_show_how_a_rung_fares_by_size(tmp_path):
    ladder = read_records(RESULTS / "fp32-ladder-H200.json")
    grown = [
        record
        | {
            "suite": "fp32-ladder-sizes",
            "case": record["case"] | {"m": size, "n": size, "k": size},
            "result": record["result"] | {"ratio": size / 1000 + number / 100},
        }
        for size in (128, 256)
        for number, record in enumerate(ladder)
    ]
    write_json(tmp_path / "fp32-ladder-H200.json", ladder)
    write_json(tmp_path / "fp32-ladder-sizes-H200.json", grown)
    made = cards(tmp_path, lambda folder, records: "")
    bars = card(made, "f02_coalesced").bars["Share of cuBLAS's speed by m = n = k"]
    assert bars == [("128", 0.128, 0.138), ("256", 0.256, 0.266)]
    drawn = charts_of(tmp_path)
    heat, fastest = drawn["fp32 rungs by size"], drawn["fp32 rungs by size: the fastest"]
    assert heat.columns == ["128", "256", "4096"]
    assert dict(heat.rows)["f12_multistage"] == (0.238, 0.366, ladder[-1]["result"]["ratio"]), (
        "4096: of the other suite"
    )
    assert "f12_multistage, 256: 36.6% of cuBLAS" in {dot.words for dot in fastest.dots}
