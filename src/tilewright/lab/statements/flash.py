"""Statements of documents 000 and 002, Flash Attention from Scratch."""

from __future__ import annotations

from ..bank_map import swizzle_strides
from .figures import ALIKE as LIKE
from .figures import AT_LEAST, EQUAL, SAME_WAY, Figure, about, calculated, change, of, percent, within
from .statement import Statement

_WHOLE, _SLICED, _MIXED = "load_0_0_0_fragments", "load_2_2_2_fragments", "load_0_2_2_fragments"
_CLOCKS = "other GPU, other scheduler: here the record shows no such change"


def _buffered(config: str) -> Figure:
    """a17's speed with a config, +buffer or not."""
    return of("attention-buffer", "a17", "tflops", config_text=config)


def _time(rung: str, name: str) -> Figure:
    return of("attention-ladder", rung, name)


def _stall(rung: str, name: str) -> Figure:
    return of("attention-stalls", rung, f"stalls/{name}")


def _pipe(rung: str, name: str) -> Figure:
    return of("attention-stalls", rung, name)


def _built(rung: str, tile: str, loads: str, name: str) -> Figure:
    return of("compiled", rung, name, config_text=f"(128, {tile}, 4): {loads}")


def _interleaved(tile: str, name: str) -> Figure:
    """Return what slices change against whole tiles."""
    return change(_built("a03", tile, _WHOLE, name), _built("a04", tile, _SLICED, name))


def _large(rung: str, name: str) -> Figure:
    return _built(rung, "128, 64", _SLICED, name)


def _tuned(rung: str, name: str) -> Figure:
    return _built(rung, "64, 64", _MIXED, name)


def _per_row(opcode: str) -> Figure:
    """Return how often a warp's loop does it per row of a block: a07 with 64 rows, a08 with 128."""
    name = f"loop/accesses/{opcode}"
    return change(_tuned("a07", name) / 64, _large("a08", name) / 128)


def _fragments(rows: int, columns: int, kept: bool) -> float:
    """Products per fragment loaded of rows x columns of them: each loaded once, or the columns once for every row."""
    return rows * columns / (rows + columns if kept else rows * (1 + columns))


def _tables_agree(size: int) -> float:
    """1 where the stride table gives each thread the columns thread ^ step, as the swizzle does."""
    rows = swizzle_strides(size).rows
    return float(all(row.columns == tuple(row.thread ^ step for step in range(size)) for row in rows))


PART_5 = (
    Statement("000", "long_scoreboard, from 15.15% to 0.95%", 100 * (0.95 / 15.15 - 1), "% more",
              change(_stall("a02", "long_scoreboard"), _stall("a03", "long_scoreboard")), about(0.15)),
    Statement("000", "98.3% → 99.4% of the reference implementation", 1.1, "points",
              percent(_time("a03", "ratio")) - percent(_time("a02", "ratio")), within(1)),
    Statement("000", "a dramatic 2x performance improvement by eliminating bank conflicts", 2, "x",
              _time("a01", "ms") / _time("a02", "ms"), AT_LEAST),
    Statement("000", "Fragment intensity: 0.891 computations per memory transfer", 0.891, "",
              calculated(lambda: _fragments(2, 8, False), "2 x 8 fragments, columns loaded for each row"),
              about(0.01)),
    Statement("000", "Fragment intensity: 1.62 computations per memory transfer", 1.62, "",
              calculated(lambda: _fragments(2, 8, True), "2 x 8 fragments, each loaded once"), about(0.02)),
    Statement("000", "(128, 64, 32, 4) | False | 0 | 0 | 0 | 212 → 168", 100 * (168 / 212 - 1), "% more",
              _interleaved("64, 32", "registers"), LIKE,
              note="registers"),
    Statement("000", "Current config (64,64): 242 → 207 registers", 100 * (207 / 242 - 1), "% more",
              _interleaved("64, 64", "registers"), LIKE),
    Statement("000", "Reference config (128,32): 304 → 0", -100, "% more",
              _interleaved("128, 32", "stack_bytes"), LIKE,
              note="stack frame"),
    Statement("000", "(128, 128, 64, 4) | True | 728 → 272 | 964 → 336", 100 * (336 / 964 - 1), "% more",
              _interleaved("128, 64", "spill_store_bytes"), LIKE,
              note="spill stores"),
    Statement("000", "728 → 272 | 964 → 336", 100 * (272 / 728 - 1), "% more",
              _interleaved("128, 64", "stack_bytes"), LIKE,
              note="stack frame"),
    Statement("000", "964 → 336 | 840 → 304", 100 * (304 / 840 - 1), "% more",
              _interleaved("128, 64", "spill_load_bytes"), LIKE,
              note="spill loads"),
    Statement("000", "2208 → 1312 bytes spill stores (-40.6% reduction)", -40.6, "% more",
              _interleaved("128, 128", "spill_store_bytes"), LIKE),
    Statement("000", "2208 → 1312 | 1868 → 1120", 100 * (1120 / 1868 - 1), "% more",
              _interleaved("128, 128", "spill_load_bytes"), LIKE,
              note="spill loads"),
    Statement("000", "(128, 128, 128, 4) | True | 1360 → 840", 100 * (840 / 1360 - 1), "% more",
              _interleaved("128, 128", "stack_bytes"), LIKE,
              note="stack frame"),
    Statement("000", "100.0% of reference performance", 100, "%", percent(_time("a04", "ratio")), about(),
              "tiles of 64 rows keep the shared-memory pipe busy on an H200; a08's 128 rows relieve it"),
    Statement("000", "from 100% → 99.6% of reference", -0.4, "points",
              percent(_time("a05", "ratio")) - percent(_time("a04", "ratio")), within(1)),
    Statement("000", "other block configurations in the final kernel show up to 4% improvement", 4, "% more",
              change(_buffered("(128, 64, 64, 4): load_2_2_2_fragments"),
                     _buffered("(128, 64, 64, 4): load_2_2_2_fragments+buffer")), LIKE,
              "the compiler gives kernels with and without +buffer the same registers and spills: it moves loads ahead "
              "by itself. This is the best of five tiles"),
    Statement("000", "barrier | 3.66% | 4.37%", 100 * (4.37 / 3.66 - 1), "% more",
              change(_stall("a04", "barrier"), _stall("a05", "barrier")), LIKE, _CLOCKS,
              note="kernels 4 and 5, share of stalls"),
    Statement("000", "surpass reference performance by ~1.5% on the RTX 3090", 101.5, "%",
              percent(_time("a07", "ratio")), about(0.03),
              "the kernel still has tiles of 64 rows; with 128 (a08) and no moves (a09) it passes the reference"),
)  # fmt: skip

PART_8 = (
    Statement("002", "a solid 9.38% performance jump, from 149.71 TFLOPs to 163.76 TFLOPs", 9.38, "% more",
              change(_time("a07", "tflops"), _time("a08", "tflops")), LIKE),
    Statement("002", "8.51% improvement from 163.76 to 177.68 TFLOPs", 8.51, "% more",
              change(_time("a08", "tflops"), _time("a09", "tflops")), LIKE),
    Statement("002", "we regressed 1.46%, dropping from 177.68 to 175.10 TFLOPs", -1.46, "% more",
              change(_time("a09", "tflops"), _time("a10", "tflops")), SAME_WAY,
              "the compiler keeps loads further from their uses here (see the distances below): less waits for them"),
    Statement("002", "We improved 1.31%", 1.31, "% more",
              change(_time("a10", "tflops"), _time("a11", "tflops")), SAME_WAY,
              "results are stored once per block: at 4096 keys that is less than what runs differ by"),
    Statement("002", "18.6% performance improvement", 18.6, "% more",
              change(_time("a07", "tflops"), _time("a11", "tflops")), LIKE),
    Statement("002", "it only reached 80.3% of the reference", 80.3, "%", percent(_time("a07", "ratio")), about()),
    Statement("002", "95.2% to 99.2%", 4.0, "points",
              percent(_time("a16", "ratio")) - percent(_time("a11", "ratio")), SAME_WAY,
              "a11 is already ahead of the reference here, and what a12 to a16 save is hidden by the products"),
    Statement("002", "for LDSM, from 40 to 5", 100 * (5 / 40 - 1), "% more",
              change(_tuned("a07", "loop/address_registers/LDSM"), _tuned("a08", "loop/address_registers/LDSM")), LIKE),
    Statement("002", "for LDGSTS, from 14 to 1", 100 * (1 / 14 - 1), "% more",
              change(_tuned("a07", "loop/address_registers/LDGSTS"), _tuned("a08", "loop/address_registers/LDGSTS")),
              LIKE),
    Statement("002", "Kernel 7 (No Swizzling) All LDGSTS Instructions", 2, "registers",
              _tuned("a07x_unswizzled", "loop/address_registers/LDGSTS"), within(1),
              note="the listing takes addresses from two registers"),
    Statement("002", "In total for LDSM, the non-swizzled kernel only uses 3 registers", 3, "registers",
              _tuned("a07x_unswizzled", "loop/address_registers/LDSM"), LIKE),
    Statement("002", "12x-42x as many of these instructions", 12, "x",
              _tuned("a07", "loop/groups/logic and shifts") / _tuned("a07x_unswizzled", "loop/groups/logic and shifts"),
              AT_LEAST,
              "our compiler computes most addresses before the loop, and keeps them in registers",
              note="logic and shifts, kernel 7 swizzled over not swizzled; ours: those of the loop"),
    Statement("002", "Reduced address calculation instructions by 90%+", -90, "% more",
              change(_large("a07", "loop/groups/logic and shifts"), _large("a08", "loop/groups/logic and shifts")),
              LIKE),
    Statement("002", "7 | 272 | 336 | 304 | 8 | 16 | 32 | 16", 100 * (32 / 336 - 1), "% more",
              change(_large("a07", "spill_store_bytes"), _large("a08", "spill_store_bytes")), LIKE,
              note="kernels 7 and 8: stack frame, spill stores, spill loads"),
    Statement("002", "Reduction | 94.1% | 90.5% | 94.7%", -94.1, "% more",
              change(_large("a07", "stack_bytes"), _large("a08", "stack_bytes")), LIKE,
              note="stack frame, spill stores, spill loads"),
    Statement("002", "we halve our cp.async calls", -50, "% more", _per_row("LDGSTS"), within(1)),
    Statement("002", "cut ldmatrix calls by 37.5%", -37.5, "% more", _per_row("LDSM"), within(1)),
    Statement("002", "SMEM load utilization dropping 31.59%, from 60.49% to 41.38%", -31.59, "% more",
              change(_pipe("a07", "shared_pipe"), _pipe("a08", "shared_pipe")), LIKE),
    Statement("002", "L2 load utilization dropping 44.90%, from 42.53% to 23.43%", -44.9, "% more",
              change(_pipe("a07", "l2"), _pipe("a08", "l2")), LIKE),
    Statement("002", "ALU: down 17.98%, from 21.20% → 17.39%", -17.98, "% more",
              change(_pipe("a07", "alu_pipe"), _pipe("a08", "alu_pipe")), LIKE),
    Statement("002", "FMA: slightly up 3.19%, from 29.23% to 30.16%", 3.19, "% more",
              change(_pipe("a07", "fma_pipe"), _pipe("a08", "fma_pipe")), SAME_WAY,
              "their rise is register moves by IMAD.MOV, of which our compiler makes fewer in a08"),
    Statement("002", "tensor pipeline utilization increased 9.4%, from 60.47% to 66.15%", 9.4, "% more",
              change(_pipe("a07", "tensor_pipe"), _pipe("a08", "tensor_pipe")), LIKE),
    Statement("002", "over 100x more IMAD.MOV.U32 instructions", 100, "x",
              because="the reference's own machine code is not read here"),
    Statement("002", "8 | 187 | 159", 100 * (36 / 187 - 1), "% more",
              change(_large("a08", "opcodes/IMAD.MOV"), _large("a09", "opcodes/IMAD.MOV")), LIKE,
              note="IMAD.MOV.U32, kernels 8 and 9"),
    Statement("002", "9 | 36 | 18", 100 * (18 / 159 - 1), "% more",
              change(_large("a08", "opcodes/MOV"), _large("a09", "opcodes/MOV")), LIKE,
              note="MOV, kernels 8 and 9"),
    Statement("002", "FMA: down 26.75%, from 30.16% to 22.09%", -26.75, "% more",
              change(_pipe("a08", "fma_pipe"), _pipe("a09", "fma_pipe")), LIKE),
    Statement("002", "tensor pipeline utilization increased 8.51% from 66.15% to 71.78%", 8.51, "% more",
              change(_pipe("a08", "tensor_pipe"), _pipe("a09", "tensor_pipe")), LIKE),
    Statement("002", "The FP pipeline utilization dropped from 22.1% to 20.42%", 100 * (20.42 / 22.1 - 1), "% more",
              change(_pipe("a09", "fma_pipe"), _pipe("a10", "fma_pipe")), LIKE,
              "the same way by less: a09 spends half their share on FMA here, so the first tile's part of it is small"),
    Statement("002", "Time to eliminate those CS2R instructions", 0, "left", _large("a10", "opcodes/CS2R"), EQUAL,
              note="in kernel 10"),
    Statement("002", "short_scoreboard | 2.36% | 7.79%", 100 * (7.79 / 2.36 - 1), "% more",
              change(_stall("a09", "short_scoreboard"), _stall("a10", "short_scoreboard")), LIKE,
              "loads stay far from their uses here",
              note="kernels 9 and 10"),
    Statement("002", "wait | 36.99% | 38.48%", 100 * (38.48 / 36.99 - 1), "% more",
              change(_stall("a09", "wait"), _stall("a10", "wait")), SAME_WAY, _CLOCKS,
              note="kernels 9 and 10"),
    Statement("002", "It packs around 8 independent instructions", 8, "instructions",
              _large("a09", "loop/distances/LDSM/1"), AT_LEAST),
    Statement("002", "Kernel 10, on the other hand, only has 1-2 instructions", 2, "instructions",
              _large("a10", "loop/distances/LDSM/0"), about(0.5),
              "another compiler: the shortest distance from an LDSM to its use in a10's loop is longer"),
    Statement("002", "0 | (2, 1) | 0 | 1 | (2, -1) | 1 | 2 | (-2, 1) | 2 | 3 | (-2, -1) | 3", 1, "",
              calculated(lambda: _tables_agree(4), "4 x 4 tile"), EQUAL,
              note="thread, strides, base"),
    Statement("002", "3 | (4, -2, -1) | 3 | 4 | (-4, 2, 1) | 4", 1, "",
              calculated(lambda: _tables_agree(8), "8 x 8 tile"), EQUAL,
              note="thread, strides, base"),
)  # fmt: skip
