"""The page's traces are what the emulator does today, in seconds each, and small."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tilewright.emu import banks, coalesce
from tilewright.report import traces

SHIPPED = {trace["key"]: trace for trace in json.loads(traces.shipped())}


def behaviour(trace: dict) -> dict:
    """A trace without its source lines and their hash: they may have changed where the instructions have not."""
    ops = [{key: value for key, value in op.items() if key not in ("file", "code")} for op in trace["ops"]]
    return trace | {"ops": ops, "kernels": ""}


@pytest.mark.parametrize("scene", traces.SCENES, ids=lambda scene: scene.key)
def test_a_shipped_trace_is_what_the_emulator_does(scene):
    made = json.loads(json.dumps(traces.record(scene)))
    assert behaviour(made) == behaviour(SHIPPED[scene.key]), "run: tilewright report --write"


def test_the_shipped_file_has_the_scenes_in_order_and_is_small():
    assert list(SHIPPED) == [scene.key for scene in traces.SCENES]
    assert traces.SHIPPED.stat().st_size < 3e6


def lanes_of(trace: dict, access: list, warp: int) -> tuple[np.ndarray, np.ndarray]:
    """(addresses, which lanes are active) of a warp, [1, 32]."""
    pattern, base = next((p, b) for w, p, b in access[3] if w == warp)
    row = trace["patterns"][pattern]
    active = np.array([[offset is not None for offset in row]])
    return np.array([[base + (offset or 0) for offset in row]]), active


def events(key: str, opcode: str) -> list:
    trace = SHIPPED[key]
    return [event for event in trace["events"] if trace["ops"][event[0]]["op"].startswith(opcode)]


def test_a_column_of_threads_asks_for_32_sectors_and_a_row_for_4():
    for key, wanted in (("f01", 32), ("f02", 4)):
        (store,) = events(key, "st.global")
        addresses, active = lanes_of(SHIPPED[key], store[2][0], 0)
        assert coalesce.sectors(addresses, 4, active).tolist() == [wanted], key


def test_the_swizzle_of_b_takes_an_eighth_of_the_wavefronts():
    def worst(key: str) -> int:
        found = []
        for event in events(key, "ldmatrix"):
            addresses, active = lanes_of(SHIPPED[key], event[2][0], 0)
            if "trans" in SHIPPED[key]["ops"][event[0]]["op"]:
                found.append(int(banks.wavefronts(addresses, 16, active, "matrix")[0]))
        return max(found)

    assert worst("h08") > worst("h09")


@pytest.mark.parametrize("key", [key for key in SHIPPED if SHIPPED[key]["swizzles"]])
def test_without_its_swizzle_a_tile_lies_row_after_row(key):
    """Copies of 16 bytes: rows of a matrix become rows of a region, once the swizzle is undone."""
    trace = SHIPPED[key]
    seen = 0
    for event in (*events(key, "cp.async.ca"), *events(key, "cp.async.cg")):
        to, source = event[2]
        name, _, columns, item = trace["arrays"][source[0]]
        if name not in trace["swizzles"]:
            continue
        bits, base, shift = trace["swizzles"][name]
        for warp, _, _ in to[3]:
            near, active = lanes_of(trace, to, warp)
            far, _ = lanes_of(trace, source, warp)
            near, far = near[active], far[active]
            start = next(s for n, s, size in trace["regions"] if s <= near[0] < s + size)
            plain = start + ((near - start) ^ ((near - start) >> shift & ((1 << bits) - 1) << base))
            row, column = far // (columns * item), far % (columns * item)
            same = (row == row[0]) & (column // 128 == column[0] // 128)
            assert (plain[same] - plain[0] == column[same] - column[0]).all(), "neighbours of a row stay neighbours"
            seen += 1
    assert seen or not events(key, "cp.async.cg")


def test_a_deeper_ring_has_more_copies_under_way():
    def most(key: str) -> int:
        trace = SHIPPED[key]
        count = len(trace["events"])
        return max(sum(first <= at < last for _, first, last, _ in trace["fills"]) for at in range(count))

    assert most("f12-tile_k8-stages2") < most("f12-tile_k8-stages3") < most("f12-tile_k8-stages4")


def test_eager_keys_are_under_way_during_products_and_late_ones_are_not():
    def hidden(key: str) -> bool:
        trace = SHIPPED[key]
        products = {n for n, e in enumerate(trace["events"]) if trace["ops"][e[0]]["op"].startswith("mma")}
        keys = [
            (first, last)
            for region, first, last, tile in trace["fills"]
            if trace["regions"][region][0].startswith("K") and tile > 0
        ]
        return all(any(first < at < last for at in products) for first, last in keys)

    assert hidden("a03")
    assert not hidden("a02")
