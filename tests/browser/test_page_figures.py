"""The drawings of the page show what the emulator's rules, the library's calculators and real kernels give."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright.emu.coalesce import sectors
from tilewright.gemm.problem import GemmProblem
from tilewright.gpus import GPUS
from tilewright.lab.bounds import tiled_bytes
from tilewright.lab.subject import every_rung, read_config


def address(part: str, **values) -> str:
    return "&".join(f"{part}.{name}={value}" for name, value in values.items())


# --- banks ------------------------------------------------------------------------------------------------------------


def places(item: int, columns: int, pad: int, access: str, at: int) -> tuple[list[int], int]:
    """(the element of each lane, elements per lane) of an access to a tile whose rows are `columns` and `pad` long."""
    pitch, unit = columns + pad, 16 // item if access in ("vectors", "matrix") else 1
    if access in ("column", "matrix"):
        return [lane * pitch + at for lane in range(32)], unit
    if access == "row":
        return [lane // columns * pitch + lane % columns for lane in range(32)], unit
    per = min(8, columns // unit)
    return [lane // per * pitch + lane % per * unit for lane in range(32)], unit


@pytest.mark.parametrize(
    ("tile", "swizzle"),
    [
        ({"item": 4, "columns": 32, "pad": 0, "access": "column", "at": 3}, (5, 0, 5)),
        ({"item": 4, "columns": 32, "pad": 1, "access": "column", "at": 0}, (0, 0, 0)),
        ({"item": 4, "columns": 64, "pad": 4, "access": "vectors", "at": 0}, (3, 2, 4)),
        ({"item": 4, "columns": 16, "pad": 2, "access": "row", "at": 0}, (2, 1, 3)),
        ({"item": 2, "columns": 64, "pad": 0, "access": "matrix", "at": 8}, (3, 3, 3)),
        ({"item": 2, "columns": 32, "pad": 8, "access": "matrix", "at": 0}, (2, 3, 3)),
        ({"item": 2, "columns": 128, "pad": 0, "access": "column", "at": 5}, (3, 3, 4)),
    ],
)
def test_banks_of_a_tile_are_those_of_the_calculator(visit, tile, swizzle):
    bits, base, shift = swizzle
    page = visit(address("banks", **tile, bits=bits, base=base, shift=shift))
    told = page.locator("#play-banks p").first.inner_text()
    lanes, unit = places(**tile)
    access = "matrix" if tile["access"] == "matrix" else "load"
    wanted = tw.lab.banks(
        item=tile["item"], width=unit, access=access, offsets=lanes, swizzle=swizzle if bits else None
    )
    found = [int(number) for number in re.findall(r": (\d+) wavefront", told)]
    assert found == [side.wavefronts for side in (wanted.before, wanted.after) if side is not None]


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("down", "side", "thread"), [(True, 8, 5), (True, 32, 700), (False, 32, 700), (False, 16, 255), (False, 4, 15)]
)  # fmt: skip
def test_sectors_of_a_mapping_are_the_emulators(visit, down, side, thread):
    page = visit(address("threads", map="down" if down else "along", side=side, thread=thread))
    cells = page.locator("#play-threads tbody td").all_inner_texts()
    first, count = thread // 32 * 32, side * side
    numbers = np.arange(first, first + 32)
    inner, outer = numbers % side, numbers // side
    row, column = (inner, outer) if down else (outer, inner)
    active = (numbers < count)[None]
    for place, elements in enumerate((row * 4096, column, row * 4096 + column)):
        asked = np.where(active, 4 * elements[None], 0)
        wanted = int(sectors(asked, 4, active)[0])
        bytes_used = 4 * len(set(elements[active[0]].tolist()))
        assert int(cells[2 * place].split()[0]) == wanted
        assert cells[2 * place + 1] == f"{bytes_used} of {32 * wanted}"


# --- tiles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rung", "config"),
    [
        ("f04", "tile_m=64,tile_n=64,tile_k=8,thread_m=8,thread_n=1"),
        ("f04", "tile_m=32,tile_n=64,tile_k=16,thread_m=4,thread_n=1"),
        ("f05", "tile_m=64,tile_n=64,tile_k=8,thread_m=8,thread_n=4"),
        ("f05", "tile_m=32,tile_n=64,tile_k=16,thread_m=4,thread_n=4"),
    ],
)
def test_what_a_tile_costs_is_what_its_kernel_does(visit, rung, config):
    """Threads and shared memory of the config; shared loads and barriers as the emulator counts them."""
    kernel = every_rung(rung)
    chosen = read_config(kernel, config, GPUS["H200"].arch)
    m, n, k, tm, tn = chosen.tile_m, chosen.tile_n, chosen.tile_k, chosen.thread_m, chosen.thread_n
    page = visit(address("tiles", m=m, n=n, k=k, tm=tm, tn=tn))
    rows = dict(
        zip(
            page.locator("#play-tiles th").all_inner_texts(),
            page.locator("#play-tiles td").all_inner_texts(),
            strict=True,
        )
    )
    assert rows["threads per block"] == str(chosen.threads)
    assert rows["sums in registers, per thread"] == str(tm * tn)
    padding = 4 * m  # f04 and f05 have one more word per row of A
    unpadded = kernel.shared_bytes(chosen, GemmProblem.dense(m, n, k)) - padding
    assert rows["shared memory of one stage, fp32, unpadded"] == f"{unpadded} bytes"
    problem = GemmProblem.dense(m, n, 4 * k)
    assert float(rows["intensity: FLOP per byte of global memory"]) == pytest.approx(
        problem.flops / (tiled_bytes(problem, m, n) - 4 * m * n), rel=0.01
    )
    a, b = (np.ones(shape, np.float32) for shape in ((m, 4 * k), (4 * k, n)))
    with tw.emulator(gpu="H200") as emu:
        tw.matmul(a, b, rung=rung, config=chosen)
    counts = emu.last.counters
    products = m * n * 4 * k / 32  # a warp's instruction makes 32
    per_product = float(rows["shared loads per product"].split(": ")[1])
    assert counts.shared_load_requests / products == pytest.approx(per_product, rel=0.01)


# --- roofline ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("board", "kind", "m", "n"), [("H200", "f32", 64, 64), ("RTX 4090", "f32", 8, 16), ("A100", "bf16", 256, 128)]
)  # fmt: skip
def test_the_roof_over_a_tile_is_the_calculators(visit, board, kind, m, n):
    page = visit(address("roof", board=board, kind=kind, m=m, n=n))
    told = page.locator("#play-roof p").first.inner_text()
    intensity = 2 * m * n / ((4 if kind == "f32" else 2) * (m + n))
    (point,) = tw.lab.roofline(board, kind, intensity=intensity).points
    shown = re.search(r"per ([\d.]+) FLOP: at most ([\d.]+) TFLOP/s, bound by (\w+)", told)
    assert float(shown[1]) == pytest.approx(intensity, rel=0.005)
    assert float(shown[2]) == pytest.approx(point.bound_tflops, rel=0.005)
    assert (shown[3] == "memory") == (point.roof == "memory")
