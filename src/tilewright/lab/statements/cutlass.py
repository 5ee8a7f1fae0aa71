"""Statements of document 004, Learn CUTLASS the hard way!"""

from __future__ import annotations

from ...gemm.problem import GemmProblem
from ...gpus import ARCHS, GPUS
from ..residency import occupancy
from ..rooflines import roofline
from .figures import ALIKE as LIKE
from .figures import AT_LEAST, AT_MOST, EQUAL, Figure, about, calculated, change, of, percent
from .statement import Statement

_ADA = "RTX 4090"
_SCALAR = "f03 to f05 read shared memory a word at a time on purpose, so that vectors are f06's gain"
_CEILING = "on Hopper cuBLAS multiplies by wgmma; CUTLASS's mma.sync kernels, like ours, stop at its ceiling"

_FEW_BLOCKS = "tiles of 128 x 128 make 16 blocks of 512 x 512 and 64 of 1024 x 1024, for 132 SMs"


def _f(rung: str, name: str) -> Figure:
    return of("fp32-ladder", rung, name)


def _gain(after: str, before: str) -> Figure:
    return _f(after, "tflops") / _f(before, "tflops")


def _peer(name: str, size: int) -> Figure:
    return of("bf16-peers", name, "ratio", m=size, layout="nn")


def _grown(name: str, size: int) -> Figure:
    return of("bf16-ladder-sizes", name, "ratio", m=size)


def _wmma(kind: str, size: int) -> Figure:
    return of(f"{kind}-ladder-sizes", "h03", "tflops", m=size)


def _cube(rung: str, size: int, layout: str) -> Figure:
    return of("bf16-cubes", rung, "ratio", m=size, layout=layout)


def _bandwidth(rung: str) -> Figure:
    """Every operand moved once, over the time: GB/s."""
    moved = 3 * 4096**2 * 4 * 1e-6
    time = _f(rung, "ms")
    return Figure(lambda results: moved / time.work_out(results), f"{time.origin}, 201 MB")


def _share(threads: int, registers: int = 32, shared: int = 0) -> Figure:
    how = f"occupancy of {threads} threads, {registers} registers, {shared} B on an {_ADA}"
    return calculated(lambda: 100 * occupancy(threads, registers, shared, _ADA).fraction, how)


def _blocks(threads: int, registers: int = 32, shared: int = 0) -> Figure:
    how = f"occupancy of {threads} threads, {registers} registers, {shared} B on an {_ADA}"
    return calculated(lambda: occupancy(threads, registers, shared, _ADA).blocks, how)


def _bytes_per_sector(rung: str) -> Figure:
    """Return what of each sector a warp's store of floats fills."""
    sectors = of("counters", rung, "ratios/sectors_per_store/hardware")
    return Figure(lambda results: 32 * 4 / sectors.work_out(results), sectors.origin)


def _loads_of_shared(rung: str) -> Figure:
    """Shared loads as a share of a rung's main loop."""
    whole = of("compiled", rung, "loop/instructions")
    return percent(of("compiled", rung, "loop/groups/shared loads") / whole)


LEARN_CUTLASS = (
    Statement("004", "2 \\times 4096^3 \\approx 137", 137, "GFLOP",
              calculated(lambda: GemmProblem.dense(4096, 4096, 4096).flops * 1e-9, "2 m n k"), about(0.01)),
    Statement("004", "3 \\times 4096^2 \\times 4$ bytes $\\approx$ 201 MB", 201, "MB",
              calculated(lambda: 3 * 4096**2 * 4e-6, "3 n^2 x 4 bytes"), about(0.01)),
    Statement("004", "| **FP32 Performance** | 82.6 TFLOPS |", 82.6, "TFLOP/s",
              calculated(lambda: GPUS[_ADA].ffma_tflops, "SMs x lanes x 2 x clock"), about(0.01)),
    Statement("004", "| **Memory Bandwidth** | 1,008 GB/s |", 1008, "GB/s",
              calculated(lambda: GPUS[_ADA].dram_gb_s, "table of boards"), EQUAL),
    Statement("004", "| **L2 Cache** | 72 MB |", 72, "MiB",
              calculated(lambda: GPUS[_ADA].l2 / 2**20, "table of boards"), EQUAL),
    Statement("004", "an arithmetic intensity of approximately **82 FLOP/byte**", 82, "FLOP/B",
              calculated(lambda: roofline(_ADA).ridge, "roofline of an RTX 4090"), about(0.01)),
    Statement("004", "The naive CUDA kernel is 133× slower than PyTorch", 133, "x",
              _f("f01", "ms") / _f("f01", "reference_ms"), about(),
              "PyTorch reaches all of an RTX 4090's fp32 peak, but three quarters of an H200's"),
    Statement("004", "0.90 GB/s vs 119.97 GB/s", 0.90, "GB/s", _bandwidth("f01"), about(),
              "f01 is bound by sectors per clock of an SM, and 128 SMs at 2520 MHz pass more than 132 at 1980"),
    Statement("004", "7.63× TFLOPS improvement (0.62 → 4.73 TFLOPS)", 7.63, "x", _gain("f02", "f01"), about(),
              "f01 is bound by sectors per clock of an SM, and the clock is lower here; f02, with 2.5 sectors per load "
              "and not 16.5, is not"),
    Statement("004", "**1.24× TFLOPS improvement** over coalesced", 1.24, "x", _gain("f03", "f02"), about()),
    Statement("004", "**3.03× TFLOPS improvement** over shared memory", 3.03, "x", _gain("f04", "f03"), about(),
              _SCALAR),
    Statement("004", "**1.66× TFLOPS improvement** over 1D block tiling", 1.66, "x", _gain("f05", "f04"), about(),
              "what f04 gained less, f05 gains more: " + _SCALAR),
    Statement("004", "**1.27× TFLOPS improvement** over 2D block tiling", 1.27, "x", _gain("f06", "f05"), about()),
    Statement("004", "**1.17× TFLOPS improvement** over vectorized kernel", 1.17, "x", _gain("f08", "f06"), about(0.1)),
    Statement("004", "**70.1× faster than naive**", 70.1, "x", _gain("f08", "f01"), about(),
              "the naive kernel is further behind here; see the gain of coalescing"),
    Statement("004", "**54.4% of PyTorch's performance**", 54.4, "%", percent(_f("f08", "ratio")), about(),
              "PyTorch reaches all of an RTX 4090's fp32 peak, but three quarters of an H200's"),
    Statement("004", "| 2048×2048 | 0.396 | 43.38 | 52.6% | 1.14× |", 52.6, "%",
              percent(of("fp32-ladder-sizes", "f08", "ratio", m=2048)), about(),
              "PyTorch reaches all of an RTX 4090's fp32 peak, but three quarters of an H200's",
              note="warp tiling: ms, TFLOP/s, of PyTorch"),
    Statement("004", "| 8192×8192 | 25.69 | 42.80 | 50.9% | 1.12× |", 50.9, "%",
              percent(of("fp32-ladder-sizes", "f08", "ratio", m=8192)), about(),
              "PyTorch reaches all of an RTX 4090's fp32 peak, but three quarters of an H200's",
              note="warp tiling: ms, TFLOP/s, of PyTorch"),
    Statement("004", "| 32 | 1,536 (limited by hardware max) | 48 | 100% |", 100, "%", _share(256, 32), EQUAL,
              note="registers, threads, warps, occupancy"),
    Statement("004", "| 64 | 1,024 | 32 | 66.7% |", 66.7, "%", _share(256, 64), about(0.01),
              note="registers, threads, warps, occupancy"),
    Statement("004", "| 128 | 512 | 16 | 33.3% |", 33.3, "%", _share(256, 128), about(0.01),
              note="registers, threads, warps, occupancy"),
    Statement("004", "| 0 KB | 32 | No shared memory usage |", 32, "blocks", _blocks(32), EQUAL,
              "the CUDA guide gives 24 blocks per SM for compute capability 8.9"),
    Statement("004", "| 24 KB | 4 | Good for moderate tiling |", 4, "blocks", _blocks(256, 32, 24 * 1024), EQUAL,
              note="shared memory, blocks"),
    Statement("004", "| 48 KB (max for RTX 4090) | 2 |", 2, "blocks", _blocks(256, 32, 48 * 1024), EQUAL),
    Statement("004", "48 KB (max for RTX 4090)", 48, "KiB",
              calculated(lambda: ARCHS["sm_89"].shared_per_block / 1024, "limits of sm_89"), EQUAL,
              "48 KB is the most without asking; with the opt-in attribute a block of sm_89 may have 99"),
    Statement("004", "| 128 | 4 | 12 | 48 | 100% |", 12, "blocks", _blocks(128), EQUAL,
              note="threads, warps, blocks, warps per SM"),
    Statement("004", "| 256 | 8 | 6 | 48 | 100% |", 6, "blocks", _blocks(256), EQUAL,
              note="threads, warps, blocks, warps per SM"),
    Statement("004", "| 512 | 16 | 3 | 48 | 100% |", 3, "blocks", _blocks(512), EQUAL,
              note="threads, warps, blocks, warps per SM"),
    Statement("004", "| 1024 | 32 | 1 | 32 | 66.7% |", 66.7, "%", _share(1024), about(0.01),
              note="threads, warps, blocks, warps per SM"),
    Statement("004", "\\frac{32}{48} = 66.7\\%", 66.7, "%", _share(1024, 32, 8192), about(0.01)),
    Statement("004", "only 4.0 of the 32 bytes transmitted per sector", 4, "B",
              _bytes_per_sector("f01"), EQUAL),
    Statement("004", "causes on average a 5.6 - way bank conflict", 5.6, "wavefronts",
              of("counters", "f05", "ratios/wavefronts_per_shared_load/hardware"), about(),
              "f05's lanes take neighbouring columns, so that its loads of shared memory conflict with nothing"),
    Statement("004", "warning related to MIO Throttle Stalls and Shared Store Bank Conflicts are gone now", 0.5,
              "warps",
              of("fp32-stalls", "f04", "stalls/mio_throttle"), AT_MOST, "it falls to a third in f04, and goes in f05: "
              + _SCALAR),
    Statement("004", "LDS dominates the instruction mix", 40, "%", _loads_of_shared("f03"), AT_LEAST),
    Statement("004", "LDS is no longer the majority of instruction mix", 50, "%", _loads_of_shared("f04"), AT_MOST),
    *(Statement("004", quote, fp16 / bf16, "x", _wmma("fp16", size) / _wmma("bf16", size), about(),
                note="WMMA: TFLOP/s in fp16 over bf16")
      for size, quote, fp16, bf16 in (
          (1024, "17.3        | 17.5        | 50.6      | 51.4", 17.3, 17.5),
          (2048, "67.9        | 73.4        | 99.5      | 107.6", 67.9, 73.4),
          (4096, "55.4        | 58.2        | 40.6      | 42.6", 55.4, 58.2),
      )),
    Statement("004", "| 1024×1024  | 17.3 | 17.5 | 50.6 | 51.4 | 17.8% | 14.9% |", 17.8, "%",
              percent(of("fp16-ladder-sizes", "h03", "ratio", m=1024)), about(), _CEILING,
              note="WMMA in fp16, of PyTorch"),
    Statement("004", "| 4096×4096 | 55.4 | 58.2 | 40.6 | 42.6 | 34.4% | 40.1% |", 40.1, "%",
              percent(of("bf16-ladder", "h03", "ratio")), about(), _CEILING,
              note="WMMA in fp16 and bf16, of PyTorch"),
    Statement("004", "a nice 30+% improvement in performance", 30, "% more",
              change(of("bf16-ladder", "h03", "tflops"), of("bf16-ladder", "h05", "tflops")), LIKE),
    Statement("004", "slower than previous double buffered kernel", 1, "x",
              of("bf16-ladder", "h06", "ratio") / of("bf16-ladder", "h05", "ratio"), AT_MOST),
    Statement("004", "| 4096×4096 | 146.418 | 152.904 | 83.852 | **1.04×** | 1.82× |", 1.82, "x",
              of("bf16-peers", "cutlass", "tflops", m=4096, layout="nn") / of("bf16-ladder", "h05", "tflops"), about(),
              "h05 keeps unswizzled tiles, whose conflicts cost more on an H200",
              note="CUTLASS over WMMA"),
    Statement("004", "vs. Tensor Core Double Buffered: **1.0-3.1× faster**", 3.1, "x",
              of("bf16-peers", "cutlass", "tflops", m=4096, layout="nn") / of("bf16-wmma-buffers", "h05x", "tflops"),
              AT_MOST, "h05x keeps unswizzled tiles, whose conflicts cost more on an H200",
              note="CUTLASS over WMMA with two buffers by registers, as theirs; at 4096"),
    Statement("004", "152.904 | 83.852 | **1.04×**", 1.04, "x", _peer("cutlass", 4096), about(), _CEILING,
              note="CUTLASS over PyTorch at 4096"),
    Statement("004", "153.085 | 84.604 | **1.02×**", 1.02, "x", _peer("cutlass", 8192), about(), _CEILING,
              note="CUTLASS over PyTorch at 8192"),
    Statement("004", "| 256×256 | 6.457 | 2.621 | 1.145 | 0.41× | 2.29× |", 0.41, "x", _grown("cutlass", 256),
              about(0.2), note="CUTLASS over PyTorch"),
    Statement("004", "| 512×512 | 26.479 | 14.411 | 5.690 | 0.54× | 2.53× |", 0.54, "x", _grown("cutlass", 512),
              about(0.2), _FEW_BLOCKS, note="CUTLASS over PyTorch"),
    Statement("004", "| 1024×1024 | 124.515 | 65.971 | 24.717 | 0.53× | 2.67× |", 0.53, "x", _grown("cutlass", 1024),
              about(0.2), _FEW_BLOCKS, note="CUTLASS over PyTorch"),
    Statement("004", "| 2048×2048 | 163.635 | 149.684 | 98.395 | 0.91× | 1.52× |", 0.91, "x", _grown("cutlass", 2048),
              about(0.2), _CEILING, note="CUTLASS over PyTorch"),
    Statement("004", "achieve up to **2.0× speedup compared to PyTorch**", 2.0, "x", _cube("h12", 64, "nt"),
              about(0.1)),
    Statement("004", "speedups ranging up to **1.09x**", 1.09, "x", _cube("h17", 2048, "nn"), about(0.05)),
    Statement("004", "Much better performance with upto 15% speedup!", 1.15, "x", _peer("cutlass_tuned", 8192), about(),
              _CEILING),
    Statement("004", "Performance is pretty bad", 0.9, "x", _peer("triton", 4096), AT_MOST,
              "Triton compiles to wgmma and TMA on Hopper, and takes the best of ten tilings here"),
)  # fmt: skip
