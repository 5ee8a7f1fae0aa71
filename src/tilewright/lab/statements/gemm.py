"""Statements of documents 001 and 003: double buffering with cp.async, and a climb to cuBLAS."""

from __future__ import annotations

from ...gemm.problem import GemmProblem
from ...gemm.rungs import find_rung
from ...gpus import ARCHS, GPUS
from ..bank_map import banks
from ..bounds import tiled_bytes
from .figures import ALIKE as LIKE
from .figures import AT_LEAST, EQUAL, SAME_WAY, Figure, about, best_of_sweep, calculated, change, of, percent, within
from .statement import Statement

_NAIVE = "here f01 is uncoalesced (1%) and f02 coalesced; an H200 has more bandwidth for each FLOP than their GPU"
_BYTES = "an H200 has 3.5 times their GPU's bytes per fp32 operation; what each kernel waits for was not taken apart"
_NARROW = "h01 converts each operand as it is read from shared memory, with narrower loads than fp32's"
_WGMMA = "cuBLAS multiplies by wgmma on Hopper, which mma.sync and wmma do not reach; theirs has no wgmma"


def _f(rung: str, name: str) -> Figure:
    return of("fp32-ladder", rung, name)


def _h(rung: str, name: str) -> Figure:
    return of("bf16-ladder", rung, name)


def _stall(rung: str, name: str) -> Figure:
    return of("fp32-stalls", rung, name)


def _wmma(rung: str, fragments: str) -> Figure:
    """The speed with a warp's 64 x 64 made of so many fragments: 4x4 of 16 x 16, 8x2 of 8 x 32."""
    return of("bf16-wmma-shapes", rung, "tflops", config_text=f"128x128x32 warp 64x64/{fragments}")


def _simt(rung: str, warp: str = "") -> Figure:
    """The speed of a SIMT kernel on bf16; of h01 with a warp tile, in one piece, which makes it f06 or f07."""
    case = {"config_text": f"64x128x32 warp {warp} group 8"} if warp else {}
    return of("bf16-simt", rung, "tflops", **case)


SHAPES = (
    (8, 4, 1, 4, 25.39), (8, 4, 4, 1, 21.53), (4, 4, 1, 8, 21.53), (4, 4, 2, 4, 25.41), (4, 4, 4, 2, 28.73),
    (4, 4, 8, 1, 21.52), (4, 8, 1, 4, 21.51), (4, 8, 2, 2, 22.30), (4, 8, 4, 1, 26.23), (1, 16, 1, 8, 15.11),
    (1, 16, 2, 4, 19.99), (1, 16, 4, 2, 15.66), (1, 16, 8, 1, 15.59),
)  # fmt: skip
"""Document 003's sweep of kernel 06: TM, TN, WMITER, WNITER, TFLOP/s. Its own choice, 8 4 2 2, reached 28.70."""


def _thread_shape(thread_m: int, thread_n: int, subtiles_m: int, subtiles_n: int) -> Figure:
    warp = "64x64" if 32 // subtiles_m // thread_m < 2 else "32x128"
    text = f"128x128x16 warp {warp}/{subtiles_m}x{subtiles_n} thread {thread_m}x{thread_n} group 8"
    return of("fp32-f08-threads", "f08", "tflops", config_text=text)


def _shape(thread_m: int, thread_n: int, subtiles_m: int, subtiles_n: int, tflops: float) -> Statement:
    """One row of the sweep, over the row of their own choice."""
    shape = (thread_m, thread_n, subtiles_m, subtiles_n)
    quote = " ".join(map(str, (*shape, f"{tflops:.2f}")))
    ours = _thread_shape(*shape) / _thread_shape(8, 4, 2, 2)
    return Statement(
        "003", quote, tflops / 28.70, "x", ours, about(),
        "theirs kept kernel 06's stores for every shape, with wrong results; here each shape stores its own elements, "
        "and none spills. The order is much the same, the spread smaller",
        f"TM {thread_m}, TN {thread_n}, WMITER {subtiles_m}, WNITER {subtiles_n}, over 8 4 2 2",
    )  # fmt: skip


def _intensity(tile: int) -> float:
    problem = GemmProblem.dense(4096, 4096, 4096, use_c=True)
    return problem.flops / tiled_bytes(problem, tile, tile)


def _transposed_stores() -> float:
    """A warp's 32 lanes hold four lines of 32 of A, four elements each, and store them into columns of 128."""
    return banks(access="store", offsets=[4 * (i % 8) * 128 + i // 8 for i in range(32)]).before.wavefronts


def _a_loads(transposed: bool) -> float:
    """Two rows of threads read one element each, eight rows apart: down a line of 32, or along a column."""
    return banks(offsets=[(i // 16) * 8 * (1 if transposed else 32) for i in range(32)]).before.wavefronts


def _gain_of_swizzle(pitch: int, down: int) -> float:
    """Wavefronts of ldmatrix.x4 as 16-bit lines lie, over those with Swizzle<3,3,3>."""
    found = banks(8, item=2, width=8, pitch=pitch, down=down, access="matrix", swizzle=(3, 3, 3))
    assert found.after is not None
    return found.before.wavefronts / found.after.wavefronts


def _toy(swizzled: bool) -> float:
    found = banks(pitch=32, down=32, swizzle=(5, 0, 5))
    assert found.after is not None
    return (found.after if swizzled else found.before).wavefronts


DOUBLE_BUFFERING = (
    Statement("001", "pushes register usage to around 165–167 registers per thread", 166, "registers",
              _f("f07", "registers"), about()),
    Statement("001", "roughly 18% occupancy", 18, "%", percent(_f("f07", "occupancy")), about()),
    Statement("001", "past warptiling's 93.7%", 93.7, "%", percent(_f("f08", "ratio")), about(),
              "theirs reads A transposed already; here that is f09, the next rung, which reaches as much"),
    Statement("001", "to roughly 96% of cuBLAS", 96, "%", percent(_f("f11", "ratio")), about()),
    Statement("001", "a naive kernel at roughly 8% of cuBLAS", 8, "%", percent(_f("f02", "ratio")), about(), _NAIVE),
    Statement("001", "collapses toward zero", -100, "% more",
              change(_stall("f09", "stalls/long_scoreboard"), _stall("f11", "stalls/long_scoreboard")), about(0.2),
              note="the long scoreboard stall"),
    Statement("001", "it helped — a little", 1, "% more", change(_f("f09", "tflops"), _f("f10", "tflops")), SAME_WAY,
              "the next tile waits in registers: f10 takes far more of them than f09, and fewer blocks share an SM"),
    Statement("001", "The overlap is real but leaky", 0.1, "warps", _stall("f10", "stalls/long_scoreboard"), AT_LEAST,
              "f10's loads of the next tile are done before they are stored: no warp waits for memory. It loses by "
              "its registers instead"),
    Statement("001", "16 KiB + 8 KiB = 24 KiB per block", 24, "KiB", _f("f11", "shared_bytes") / 1024, about()),
    Statement("001", "into the 128×128×8 tile alone actually degraded performance", -1, "% more",
              change(of("fp32-cp-async", "f09", "tflops"), of("fp32-cp-async", "f11", "tflops")), SAME_WAY,
              "without cp.async f09 waits for its copies at this tile, and f10's second buffer takes so many registers "
              "that one block fits an SM; f11 fits two and waits for nothing"),
    Statement("001", "once combined with a bigger 128×256×8 tile", 1, "x", best_of_sweep("128x256x8"), AT_LEAST),
    Statement("001", "beating cuBLAS by 3–4% at locked clocks", 103.5, "%", percent(_f("f12", "ratio")), about(0.01)),
    Statement("001", "at about 12% higher power", 12, "% more",
              because="a share of power needs both kernels held at one clock, and clocks cannot be locked here"),
    Statement("001", "throttles it back below cuBLAS on large matrices", -1, "% more",
              change(of("fp32-f12", "f12", "ratio", m=4096, layout="nn"),
                     of("fp32-f12", "f12", "ratio", m=8192, layout="nn")), SAME_WAY,
              "the board has 700 W, of which fp32 does not take all: the share does not fall with size"),
    Statement("001", "three, four, five stages", 4, "stages",
              calculated(lambda: find_rung("f12").default.stages, "f12's default config"), about(0.25)),
    Statement("001", "On Hopper a GMEM access is roughly 400–600 cycles", 500, "cycles",
              of("latency", "device memory", "cycles"), about(0.2),
              "theirs lies between what L2 holds, which is nearer, and what it does not (tilewright report latency)"),
    Statement("001", "shared memory is ~20–30 cycles", 25, "cycles",
              of("latency", "shared memory", "cycles"), about(0.2)),
    Statement("001", "m64n64k16 fires 65,536 multiply-accumulates at once", 65536, "",
              calculated(lambda: 64 * 64 * 16, "64 x 64 x 16"), EQUAL),
    Statement("001", "the 228 KiB an H100 SM can devote to SMEM", 228, "KiB",
              calculated(lambda: ARCHS["sm_90a"].shared_per_sm / 1024, "limits of sm_90a"), EQUAL),
    Statement("001", "about 1 KiB per block goes to CUDA system use", 1, "KiB",
              calculated(lambda: ARCHS["sm_90a"].shared_reserved / 1024, "limits of sm_90a"), EQUAL),
)  # fmt: skip

CLIMB = (
    Statement("003", "kernel 01: naive | 2.05 | 6.47%", 6.47, "%", percent(_f("f02", "ratio")), about(), _NAIVE),
    Statement("003", "kernel 02: block tiling | 3.49 | 11.02%", 11.02, "%", percent(_f("f03", "ratio")), about(),
              "f03 is bound by the path to shared memory, cuBLAS by the fp32 units: both move with the chip, and what "
              "each does was not taken apart"),
    Statement("003", "kernel 03: 2D thread coarsening | 20.05 | 63.33%", 63.33, "%", percent(_f("f05", "ratio")),
              about()),
    Statement("003", "kernel 04: vectorized memory access | 26.16 | 82.63%", 82.63, "%", percent(_f("f06", "ratio")),
              about()),
    Statement("003", "kernel 05: warp tiling | 26.19 | 82.72%", 82.72, "%", percent(_f("f07", "ratio")), about()),
    Statement("003", "kernel 06: warp tiling, subdivided | 28.70 | 90.65%", 90.65, "%", percent(_f("f08", "ratio")),
              about()),
    Statement("003", "kernel 07: transposing As | 29.71 | 93.84%", 93.84, "%", percent(_f("f09", "ratio")), about()),
    Statement("003", "kernel 08: asynchronous copy + double buffering | 30.28 | 95.64%", 95.64, "%",
              percent(_f("f11", "ratio")), about()),
    Statement("003", "kernel 09: tensor cores (wmma API) | 65.38 | 73.62%", 73.62, "%", percent(_h("h03", "ratio")),
              about(), _WGMMA),
    Statement("003", "kernel 10: tensor cores + async gmem loads | 73.77 | 83.06%", 83.06, "%",
              percent(_h("h04", "ratio")), about(), _WGMMA),
    Statement("003", "kernel 11: tensor cores + double buffering | 80.33 | 90.45%", 90.45, "%",
              percent(_h("h05", "ratio")), about(), _WGMMA),
    Statement("003", "kernel 12: tensor cores + three-stage pipeline | 87.13 | 98.11%", 98.11, "%",
              percent(_h("h07", "ratio")), about(), _WGMMA),
    Statement("003", "kernel 13: tensor cores (mma) | 76.93 | 86.62%", 86.62, "%", percent(_h("h08", "ratio")), about(),
              _WGMMA),
    Statement("003", "kernel 14: tensor cores (mma) swizzled | 84.24 | 94.85%", 94.85, "%", percent(_h("h09", "ratio")),
              about(), _WGMMA),
    Statement("003", "kernel 15: tensor cores (mma) swizzled + three-stage pipeline | 90.31 | 101.69%", 101.69, "%",
              percent(_h("h10", "ratio")), about(), _WGMMA),
    Statement("003", "boosts throughput to 84.24 TFLOPs/s", 100 * (84.24 / 76.93 - 1), "% more",
              change(_h("h08", "tflops"), _h("h09", "tflops")), LIKE,
              "an H200's tensor cores leave the shared-memory pipe as the wall, so conflicts there cost more",
              note="over kernel 13"),
    Statement("003", "kernel 10: tensor cores + async gmem loads | 73.77", 100 * (73.77 / 65.38 - 1), "% more",
              change(_h("h03", "tflops"), _h("h04", "tflops")), LIKE,
              "both wait for shared memory, whose pipe is nearly always busy in h03: cp.async does not relieve it",
              note="over kernel 09"),
    Statement("003", "further increases it to 90.31 TFLOPs/s", 100 * (90.31 / 84.24 - 1), "% more",
              change(_h("h09", "tflops"), _h("h10", "tflops")), LIKE,
              note="over kernel 14"),
    Statement("003", "throughput of Kernel 06 is approximately 10% higher than Kernel 05", 10, "% more",
              change(_f("f07", "tflops"), _f("f08", "tflops")), LIKE,
              "the two differ by less than the compiler's schedule does: with f07's registers f08 is the slower here"),
    Statement("003", "12.84% instruction per cycles (IPC)", 12.84, "% more",
              change(_stall("f07", "issue_active"), _stall("f08", "issue_active")), LIKE,
              "the gap between the two kernels is smaller here (see the statement before)"),
    Statement("003", "it did not lead to any significant performance improvement", 0, "% more",
              change(of("fp32-wide-loads", "f08x", "tflops"), of("fp32-wide-loads", "f08y", "tflops")), within(3),
              "f08x asks for 16 words per 64 products, as many as shared memory serves meanwhile; theirs was not taken "
              "apart",
              note="vectors for loads of B alone, in kernel 06"),
    Statement("003", "We now achieve 26.01 TFLOP/s, which is about 80% of the cuBLAS performance", 80, "%",
              percent(_f("f06", "ratio")), about()),
    *(_shape(*row) for row in SHAPES),
    Statement("003", "the operational intensity is only 0.25 FLOPS/Byte", 0.25, "FLOP/B",
              calculated(lambda: _intensity(1), "traffic of one element per block"), about(0.01)),
    Statement("003", "7.94 FLOPs/B", 7.94, "FLOP/B", calculated(lambda: _intensity(32), "traffic of 32 x 32 tiles"),
              about(0.01)),
    Statement("003", "18.33 FLOPs/Byte", 18.33, "FLOP/B", _stall("f02", "flop_per_byte"), about(),
              "an H200's L2 holds 60 MB of the 201 MB that one such product has, theirs 48 MB; what else differs was "
              "not taken apart",
              note="the naive kernel, which reads lines of B as f02 does"),
    Statement("003", "a peak memory bandwidth of approximately 896 GB/s", 896, "GB/s",
              calculated(lambda: GPUS["RTX 5070 Ti"].dram_gb_s, "table of boards"), EQUAL),
    Statement("003", "a peak FP32 throughput of 43.9 TFLOPs/s", 43.9, "TFLOP/s",
              calculated(lambda: GPUS["RTX 5070 Ti"].ffma_tflops, "SMs x lanes x 2 x clock"), about(0.01)),
    Statement("003", "four consecutive rows, which results in 4-way bank conflicts", 4, "x",
              calculated(lambda: banks(4, width=4, access="store").before.ways, "float4 stores, over the fewest"),
              EQUAL, "512 bytes take four wavefronts at best: a float4 store of a whole line conflicts with nothing"),
    Statement("003", "BK-way bank conflicts, which is 32-way bank conflicts", 32, "wavefronts",
              calculated(_transposed_stores, "banks of the stores into columns"), EQUAL,
              "a warp holds four rows of A, which lie in four banks: eight words meet in each, not 32"),
    Statement("003", "TM = 8, this results in 2-way bank conflicts", 2, "wavefronts",
              calculated(lambda: _a_loads(False), "banks of the loads down A"), EQUAL),
    Statement("003", "bank conflicts are eliminated", 1, "wavefronts",
              calculated(lambda: _a_loads(True), "banks of the loads along columns"), EQUAL),
    Statement("003", "matching the conflict level observed without any swizzle", 1, "x",
              calculated(lambda: _gain_of_swizzle(16, 16), "ldmatrix.x4 of lines of 16, plain over swizzled"), EQUAL,
              "four 8 x 8 matrices take four wavefronts at best; as lines of 16 lie, they take eight",
              note="ldmatrix.x4 of A"),
    Statement("003", "from 16-way to 2-way", 8, "x",
              calculated(lambda: _gain_of_swizzle(128, 16), "ldmatrix.x4 of lines of 128, plain over swizzled"), EQUAL,
              "by the rule measured on an H200 eight rows meet in a bank before (not sixteen), and two after",
              note="ldmatrix of B"),
    Statement("003", "this results in a 32-way bank conflict", 32, "wavefronts",
              calculated(lambda: _toy(False), "banks of a column of 32 floats"), EQUAL),
    Statement("003", "All elements in each row is now mapped to different banks", 1, "wavefronts",
              calculated(lambda: _toy(True), "the same with Swizzle<5,0,5>"), EQUAL),
    Statement("003", "kernel 01: naive | 2.05 | 2.90", 2.90 / 2.05, "x", _simt("f02x_16bit") / _f("f02", "tflops"),
              about(), _BYTES, note="bf16 over fp32"),
    Statement("003", "kernel 02: block tiling | 3.49 | 2.80", 2.80 / 3.49, "x",
              _simt("f03x_16bit") / _f("f03", "tflops"), about(), _BYTES, note="bf16 over fp32"),
    Statement("003", "kernel 02: block tiling | 2.80 | 3.15%", 2.80 / 2.90, "x",
              _simt("f03x_16bit") / _simt("f02x_16bit"), about(), _BYTES, note="bf16: kernel 02 over kernel 01"),
    Statement("003", "kernel 04: vectorized memory access | 26.16 | 26.33", 26.33 / 26.16, "x",
              _simt("h01", "16x128 thread 8x8") / _f("f06", "tflops"), about(), _NARROW, note="bf16 over fp32"),
    Statement("003", "kernel 05: warp tiling | 26.19 | 26.81", 26.81 / 26.19, "x",
              _simt("h01", "32x64 thread 8x8") / _f("f07", "tflops"), about(), _NARROW, note="bf16 over fp32"),
    Statement("003", "kernel 06: warp tiling, subdivided | 28.70 | 27.23", 27.23 / 28.70, "x",
              _h("h01", "tflops") / _f("f08", "tflops"), about(),
              _NARROW,
              note="bf16 over fp32"),
    Statement("003", "chose 16x16x16 for all kernels", 1, "x", _wmma("h03", "4x4") / _wmma("h03", "8x2"), about(0.05),
              note="16x16x16 over the best of the three shapes, kernel 09"),
    Statement("003", "it consistently delivers strong performance", 1, "x", _wmma("h04", "4x4") / _wmma("h04", "8x2"),
              about(0.05), "fragments of 8 x 32 are a tenth faster in h04. On the emulator both shapes take as many "
              "wavefronts, so that counts do not say why",
              note="16x16x16 over the best of the three shapes, kernel 10"),
)  # fmt: skip
