"""A board's roofline with points on it: intensities, products, and the measured rungs of a record."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..arrays.dtypes import FP8
from ..attn.problem import AttentionProblem
from ..errors import InvalidOperand, TilewrightError, did_you_mean, suggests
from ..gemm.problem import PRECISIONS, GemmProblem
from ..gemm.rung import Rung
from ..gpus import DEFAULT_GPU, Gpu, find_gpu
from .bounds import bound, peak_tflops, tiled_bytes
from .emulated import Counted, count
from .record import find_records, newest, who
from .shown import Grid, Shown
from .subject import LENGTH, every_rung, named, problem_of, read_config
from .suite import benchmarks, suites
from .traffic import SECTOR, opcode, sectors_of

KINDS = ("f32", "f16", "bf16", "tf32", "fp32x3", "fp8")
"""What has a peak: a type of operands (fp8: e4m3 or e5m2), or a precision of float32 ones."""

_TENSOR = ("mma.", "wmma.mma.", "wgmma.mma_async.")


@dataclass(frozen=True)
class Point:
    """One point: FLOP per byte of device memory, the bound there in TFLOP/s, and which roof it is."""

    name: str
    intensity: float
    bound_tflops: float
    roof: str
    tflops: float | None = None
    """What was measured there; None for a point that is only calculated."""
    tile_intensity: float | None = None
    """FLOP per byte that blocks of its tile ask of L2 and memory together, where its tile is known."""


@dataclass(frozen=True, repr=False)
class RooflineReport(Shown):
    """The roofs of one board for one kind of product, and points under them."""

    gpu: str
    kind: str
    peak_tflops: float
    dram_gb_s: float
    ridge: float
    """The intensity (FLOP/B) from which on a kernel is bound by arithmetic."""
    points: tuple[Point, ...]
    source: str
    """Where the board's figures come from."""

    def grids(self) -> tuple[Grid, ...]:
        """The roofs, then the points."""
        roofs = f"{self.gpu}, {self.kind}: {self.peak_tflops:.1f} TFLOP/s, {self.dram_gb_s:.0f} GB/s"
        title = f"{roofs}; arithmetic is the limit from {self.ridge:.1f} FLOP/B on"
        if not self.points:
            rows = (("memory", f"{self.dram_gb_s * 1e-3:.3g} x FLOP/B"), ("compute", f"{self.peak_tflops:.1f}"))
            return (Grid(title, ("roof", "TFLOP/s"), rows, f"Source: {self.source}."),)
        measured = any(point.tflops is not None for point in self.points)
        tiled = any(point.tile_intensity is not None for point in self.points)
        names = ["point", "FLOP/B", "bound TFLOP/s", "roof"]
        names += ["tile FLOP/B"] * tiled + ["TFLOP/s", "of bound"] * measured
        lines = []
        for point in self.points:
            row = [point.name, _short(point.intensity), _short(point.bound_tflops), point.roof]
            row += ["-" if point.tile_intensity is None else _short(point.tile_intensity)] * tiled
            if measured and point.tflops is not None:
                row += [f"{point.tflops:.2f}", f"{point.tflops / point.bound_tflops:.1%}"]
            lines.append((*row, *("-",) * (len(names) - len(row))))
        note = "FLOP/B: every operand moved once. " * measured
        note += "tile FLOP/B: what blocks of that tile, or a file's accesses, ask of L2 and memory together." * tiled
        return (Grid(title, tuple(names), tuple(lines), note.strip()),)


def _short(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


@suggests
def roofline(
    gpu: str = DEFAULT_GPU,
    dtype: str | None = None,
    *,
    shape: Sequence[int] | None = None,
    tile: Sequence[int] | None = None,
    intensity: float | Sequence[float] = (),
    records: str | Path | Sequence[dict[str, Any]] | None = None,
    kernels: Sequence[str | Path] = (),
) -> RooflineReport:
    """Return the roofline of a board, with points on it.

    dtype: f32, f16, bf16, fp8, or a precision of float32 operands (tf32, fp32x3); by default that of the first rung
    among the kernels, else what the first file's tensor-core instructions multiply, or f32. shape: m, n, k of a
    product. tile: m, n of a block's part of it, which adds the traffic that such blocks ask for. intensity: FLOP per
    byte, one or several. records: a suite's name ("fp32-ladder"), a file of records, or records: their measured
    products of this dtype.
    kernels: rungs ("f09", "f09:tile_k=8"), which multiply `shape` (by default 4096 cubed) in tiles of their own, or
    attend (16 x 16 heads, 4096 rows, d_head 128), with what a record of this board measured of that config; or .cu and
    .ptx files, which the emulator runs as their `// check:` lines say: every buffer moved once, and as tile intensity
    what their accesses ask for. Raises InvalidOperand, and TilewrightError for records that cannot be read or hold no
    such product.
    """
    if isinstance(gpu, str) and every_rung(gpu) is not None:
        raise InvalidOperand(f"gpu={gpu!r} is a rung, not a GPU. Write kernels=[{gpu!r}].")
    board = find_gpu(gpu)
    runs = {what: count(what, board) for what in kernels if named(what)[0] is None}
    if dtype is None:
        rungs = (problem_of(rung).kind for what in kernels if (rung := named(what)[0]) is not None)
        dtype = next(itertools.chain(rungs, filter(None, map(_multiplied, runs.values()))), "f32")
    if dtype not in KINDS:
        raise InvalidOperand(f"dtype={dtype!r} has no peak here. Known: {', '.join(KINDS)}.")
    if dtype == "fp8" and board.arch.compute_capability < (8, 9):
        raise InvalidOperand(f"{board.name} ({board.arch}) has no fp8: tensor cores multiply it from sm_89 on.")
    peak = peak_tflops(board, dtype)
    points = []
    for value in [intensity] if isinstance(intensity, (int, float)) else list(intensity):
        if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            raise InvalidOperand(f"intensity={value!r} is not a positive number of FLOP per byte.")
        points.append(_point(f"{value:g} FLOP/B", value, board, peak))
    if kernels:
        if tile is not None:
            raise InvalidOperand("a kernel brings its tile: omit tile, or kernels.")
        sizes = None if shape is None else _sizes("shape", shape, 3)
        points += [
            _of_run(runs[each], board, peak) if each in runs else _of_rung(str(each), sizes, dtype, board, peak)
            for each in kernels
        ]
    elif shape is not None:
        points.append(_of_shape(_sizes("shape", shape, 3), None if tile is None else _sizes("tile", tile, 2),
                                dtype, board, peak))  # fmt: skip
    elif tile is not None:
        raise InvalidOperand("tile is a block's part of a product: give shape too.")
    if records is not None:
        points += _of_records(records, dtype, board, peak)
    ridge = peak / (board.dram_gb_s * 1e-3)
    return RooflineReport(board.name, dtype, peak, board.dram_gb_s, ridge, tuple(points), board.source)


def _point(name: str, intensity: float, gpu: Gpu, peak: float, **more: float | None) -> Point:
    roof = bound(intensity, gpu, peak)
    return Point(name, intensity, roof.tflops, roof.roof, **more)


def _sizes(what: str, values: Sequence[int], count: int) -> tuple[int, ...]:
    found = tuple(values)
    if len(found) != count or not all(isinstance(v, int) and v >= 1 for v in found):
        raise InvalidOperand(f"{what}={values!r} is not {count} whole numbers of at least 1.")
    return found


def _problem(sizes: Sequence[int], kind: str, layout: str = "nn") -> GemmProblem:
    m, n, k = sizes
    if kind in PRECISIONS:
        return GemmProblem.dense(m, n, k, layout=layout, precision=kind)
    return GemmProblem.dense(m, n, k, layout=layout, dtype="e4m3" if kind == "fp8" else kind)


def _of_shape(sizes: Sequence[int], tile: Sequence[int] | None, kind: str, gpu: Gpu, peak: float) -> Point:
    problem = _problem(sizes, kind)
    asked = None if tile is None else problem.flops / tiled_bytes(problem, *tile)
    name = "x".join(map(str, sizes)) + ("" if tile is None else f" in {tile[0]}x{tile[1]}")
    return _point(name, problem.intensity, gpu, peak, tile_intensity=asked)


def _of_rung(what: str, sizes: Sequence[int] | None, kind: str, gpu: Gpu, peak: float) -> Point:
    rung, words = named(what)
    assert rung is not None
    config: Any = read_config(rung, words, gpu.arch)
    case: dict[str, Any] = {"rung": rung.id, "config": asdict(config)}
    problem: GemmProblem | AttentionProblem
    asked = None
    if isinstance(rung, Rung):
        problem = _problem(sizes or (LENGTH,) * 3, kind)
        case |= {"m": problem.m, "n": problem.n, "k": problem.k, "layout": "nn"}
        asked = problem.flops / tiled_bytes(problem, config.tile_m, config.tile_n)
    else:
        if sizes is not None:
            raise InvalidOperand(f"{rung.id} is attention, and shape that of a product: omit shape.")
        problem = AttentionProblem.dense(16, 16, LENGTH, LENGTH, 128, dtype=kind)
        case |= {"seq_q": LENGTH, "seq_k": LENGTH, "d_head": 128, "is_causal": False}
    if problem.dtype not in rung.dtypes or (kind in PRECISIONS and kind != getattr(rung, "precision", "")):
        known, name = ", ".join(rung.dtypes), rung.id.split("_")[0]
        raise InvalidOperand(
            f"{rung.id} multiplies {known}, not {kind}, and a roofline has one type. Ask for {name} alone."
        )
    case["dtype"] = problem.dtype
    held = newest(benchmarks() / "results", gpu.name)
    measured = [
        record["result"]["tflops"]
        for suite in sorted(held, key=lambda name: (not name.endswith("-ladder"), name))
        for record in held[suite][1]
        if all(record["case"].get(name) == value for name, value in case.items()) and record["result"].get("tflops")
    ]
    return _point(what, problem.intensity, gpu, peak, tile_intensity=asked, tflops=next(iter(measured), None))


def _multiplied(found: Counted) -> str | None:
    """Return what a kernel's tensor-core instructions multiply, as KINDS names it; None where it has none of those."""
    names = [opcode(row) for row in found.counters.per_instruction if row.warps]
    parts = {part for name in names if name.startswith(_TENSOR) for part in name.split(".")}
    kinds = (("fp8", {*FP8}), ("tf32", {"tf32"}), ("bf16", {"bf16"}))
    others = {"s8", "u8", "s4", "u4", "b1", "f64"}
    return next((kind for kind, types in kinds if parts & types), "f16" if parts and not parts & others else None)


def _of_run(found: Counted, gpu: Gpu, peak: float) -> Point:
    flops, moved = sum(found.counters.flops.values()), SECTOR * sum(map(sectors_of, found.counters.per_instruction))
    if not (flops and moved):
        raise InvalidOperand(
            f"{found.name} has no place under a roof: {flops} FLOP, {moved} bytes of global memory. Omit it, or take a "
            "kernel that multiplies and adds: tilewright new product.cu --kind matmul."
        )
    asked = flops / moved
    return _point(found.name, flops / (SECTOR * found.once), gpu, peak, tile_intensity=asked)


def board_of(record: dict[str, Any]) -> str:
    """The known board on which a record was measured; "" for another, whose roofs are not known."""
    try:
        return find_gpu(str(record["provenance"].get("gpu"))).name
    except InvalidOperand:
        return ""


def _of_records(records: Any, kind: str, gpu: Gpu, peak: float) -> list[Point]:
    """The products of `kind` that records measured, in their order."""
    if isinstance(records, Path) or (isinstance(records, str) and Path(records).is_file()):
        from .record import read_records

        found, where = read_records(Path(records)), str(records)
    elif isinstance(records, str):
        folder, where = benchmarks() / "results", f"suite {records!r}"
        found = find_records(folder, records, gpu.name) or find_records(folder, records)
    else:
        found, where = list(records), "these records"
    if not found:
        near = did_you_mean(records, suites()) if isinstance(records, str) else ""
        raise TilewrightError(f"there are no records of {where} in {benchmarks() / 'results'}.{near}")
    points = []
    for record in found:
        case, result = record["case"], record["result"]
        precision = case.get("precision", "ieee")
        operands = case.get("dtype", "f32")
        held = precision if precision != "ieee" else "fp8" if operands in FP8 else operands
        measured = result.get("tflops")
        if held != kind or measured is None or not {"m", "n", "k"} <= case.keys():
            continue
        on = record["provenance"].get("gpu")
        if on is not None and board_of(record) != gpu.name:
            raise InvalidOperand(f"{where} was measured on {on}, not on {gpu.name}: name that GPU.")
        sizes = [case["m"], case["n"], case["k"]]
        problem = _problem(sizes, kind, case.get("layout", "nn"))
        tiles = case.get("config")
        known = isinstance(tiles, dict)
        asked = problem.flops / tiled_bytes(problem, tiles["tile_m"], tiles["tile_n"]) if known else None
        name = who(record) if "rung" in case else f"{who(record)} {'x'.join(map(str, sizes))}"
        points.append(_point(name, problem.intensity, gpu, peak, tflops=measured, tile_intensity=asked))
    if not points:
        raise TilewrightError(f"{where} hold no measured product of {kind}. Try another dtype.")
    return points
