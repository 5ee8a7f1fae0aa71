"""CUTLASS 2.x's device::Gemm as a kernel like our own: NVIDIA's headers, compiled by NVRTC, launched by us."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib import metadata

from ...arrays.dtypes import CPP_TYPES, ITEM_BYTES, ceil_div
from ...errors import ConfigRejected, MissingDependency, install
from ...gemm.config import GemmConfig, MmaConfig
from ...gemm.problem import GemmProblem, Matrix
from ...gemm.rung import Rung
from ...jit.source import Constant, Library
from ...jit.wheels import library
from ..ground import Ground
from ..ladder import Step
from .build import compile_ahead
from .entrant import Contender, Peer, rung_candidate

GET = install("cutlass")


def _tensor(tile_m: int, tile_n: int, tile_k: int, warp_m: int, warp_n: int, stages: int) -> MmaConfig:
    return MmaConfig(tile_m, tile_n, tile_k, warp_m=warp_m, warp_n=warp_n, stages=stages)


DEFAULT = _tensor(128, 128, 32, 64, 64, 3)
"""device::Gemm's own number of stages for sm_80, around the tile that most examples take."""
SWEEP: tuple[MmaConfig, ...] = tuple(
    _tensor(*shape)
    for shape in (
        (128, 256, 64, 64, 64, 3), (64, 256, 32, 32, 64, 4), (128, 128, 32, 64, 64, 4), (128, 64, 32, 64, 32, 4),
        (64, 128, 32, 32, 64, 4), (128, 32, 32, 64, 32, 4), (64, 32, 32, 32, 32, 5), (32, 64, 32, 32, 32, 5),
        (128, 128, 64, 64, 64, 4), (128, 64, 64, 64, 32, 4), (64, 128, 64, 32, 64, 4), (256, 256, 32, 64, 64, 3),
        (256, 128, 32, 64, 64, 3), (128, 256, 32, 64, 64, 3), (64, 64, 32, 32, 32, 5), (256, 256, 64, 64, 64, 3),
        (256, 128, 64, 64, 64, 3), (128, 256, 64, 64, 64, 4), (256, 256, 64, 64, 64, 4), (128, 128, 64, 64, 64, 3),
    )
)  # fmt: skip
"""20 tilings of 16-bit operands, from a published tuning of this very class for an RTX 4090. One, four stages of
256 x 256 x 64, needs more shared memory than an SM has; 19 run."""

FP32_DEFAULT = MmaConfig(128, 128, 8, warp_m=32, warp_n=64, stages=2)
"""DefaultGemmConfiguration's, for OpClassSimt."""
FP32_SWEEP: tuple[MmaConfig, ...] = tuple(
    MmaConfig(tile_m, tile_n, 8, warp_m=warp_m, warp_n=warp_n, stages=stages)
    for tile_m, tile_n, warp_m, warp_n in (
        (128, 128, 32, 64),
        (128, 128, 64, 64),
        (128, 256, 64, 64),
        (256, 128, 64, 64),
    )
    for stages in (2, 4)
)
"""OpClassSimt: two stages by registers, four by cp.async."""


@lru_cache(maxsize=1)
def libraries() -> tuple[Library, ...]:
    """Headers of CUTLASS, libcu++, CUDA's runtime and compiler, from their wheels.

    Raises MissingDependency naming what is not there.
    """
    found, missing = [], []
    for name, inner in (
        ("nvidia-cutlass", ("cutlass_library/source/include",)),
        ("nvidia-cuda-cccl", ("nvidia/cu13/include/cccl",)),
        ("nvidia-cuda-runtime", ("nvidia/cu13/include",)),
        ("nvidia-cuda-crt", ("nvidia/cu13/include",)),  # what the runtime's headers include, beside them
    ):
        try:
            found.append(library(name, inner))
        except (metadata.PackageNotFoundError, FileNotFoundError) as error:
            missing.append(f"{name} ({error})")
    if missing:
        raise MissingDependency(f"CUTLASS's headers are not all there: {', '.join(missing)}. Install them: {GET}")
    return tuple(found)


def version() -> str:
    """CUTLASS's version, as its wheel says. Raises MissingDependency."""
    libraries()
    return f"CUTLASS {metadata.version('nvidia-cutlass')}"


# --- what the kernel is compiled for ---------------------------------------------------------------------------------


def _elements(matrix: Matrix, rows: int, cols: int, dtype: str) -> int:
    """Return how many elements one access moves: what lines and base allow, at most 16 bytes."""
    lines = cols if matrix.unit(rows, cols) == "col" else rows
    width = matrix.vector_bytes(rows, cols, ITEM_BYTES[dtype]) // ITEM_BYTES[dtype]
    return max(1, min(width, lines & -lines))


def _constants(config: MmaConfig, problem: GemmProblem) -> dict[str, Constant]:
    simt = problem.dtype == "f32"
    return {
        "in_type": CPP_TYPES[problem.dtype],
        "a_elements": 1 if simt else _elements(problem.a, problem.m, problem.k, problem.dtype),
        "b_elements": 1 if simt else _elements(problem.b, problem.k, problem.n, problem.dtype),
        "out_elements": 1 if simt else _elements(problem.out, problem.m, problem.n, problem.out_dtype),
        "shared": _shared(config, problem),
    }


def _shared(config: MmaConfig, problem: GemmProblem) -> int:
    """sizeof(SharedStorage): the ring of tiles. Two stages by registers pad an operand that they transpose."""
    item, pad_m, pad_n = ITEM_BYTES[problem.dtype], 0, 0
    if problem.dtype == "f32" and config.stages == 2:
        pad_m = 0 if problem.a.unit(problem.m, problem.k) == "row" else 32 // config.tile_k
        pad_n = 32 // config.tile_k if problem.b.unit(problem.k, problem.n) == "row" else 0
    return item * config.stages * config.tile_k * (config.tile_m + pad_m + config.tile_n + pad_n)


def _check(config: MmaConfig, problem: GemmProblem) -> str | None:
    for name, matrix, rows, cols, dtype in (
        ("A", problem.a, problem.m, problem.k, problem.dtype),
        ("B", problem.b, problem.k, problem.n, problem.dtype),
        ("out", problem.out, problem.m, problem.n, problem.out_dtype),
    ):
        unit = matrix.unit(rows, cols)
        if unit == "none" or (name == "out" and unit != "col" and cols > 1):
            return f"{name}'s {'rows' if name == 'out' else 'lines'} do not lie contiguous"
        if name != "out" and dtype != "f32" and _elements(matrix, rows, cols, dtype) < 2:
            return f"it copies 4 bytes and more at a time; {name} of {rows} x {cols} {dtype} allows 2"
    if problem.epilogue is not None:
        return "it has no place for an epilogue of ours"
    if problem.batch != 1:
        return f"device::Gemm makes one product; the batch is {problem.batch}"
    if problem.dtype == "f32" and config.tile_k != 8:
        return f"its fp32 tiles are 8 deep here; the config says {config.tile_k}"
    return None


def _grid(config: MmaConfig, problem: GemmProblem) -> tuple[int, int, int]:
    """GemmIdentityThreadblockSwizzle<group_m>: columns of tiles taken 1, 2, 4 or 8 at a time, as there are enough."""
    tiles_m, tiles_n = ceil_div(problem.m, config.tile_m), ceil_div(problem.n, config.tile_n)
    width = next((w for w, least in ((8, 6), (4, 3), (2, 2)) if config.group_m >= w and tiles_n >= least), 1)
    return tiles_m * width, ceil_div(tiles_n, width), 1


def _rung(id: str, teaches: str, dtypes: tuple[str, ...], default: MmaConfig, space: tuple[MmaConfig, ...]) -> Rung:
    return Rung(
        id, teaches, "peers/cutlass.cuh", dtypes, default, lambda: space, _shared, _check, dynamic_shared=True,
        own_constants=_constants, grid=_grid, libraries=libraries,
    )  # fmt: skip


TENSOR = _rung("cutlass", "CUTLASS 2.x's device::Gemm for sm_80, 16-bit operands", ("bf16", "f16"), DEFAULT, SWEEP)
SIMT = _rung("cutlass", "CUTLASS 2.x's device::Gemm by fused multiply-adds", ("f32",), FP32_DEFAULT, FP32_SWEEP)


def rung_of(dtype: str) -> Rung:
    """CUTLASS's kernel for operands of a type."""
    return SIMT if dtype == "f32" else TENSOR


def _entry(ground: Ground, configs: tuple[GemmConfig, ...]) -> Contender:
    """Return those that can make the product. Raises ConfigRejected with the first reason when none can."""
    called = version()
    problem, arch = ground.problem, ground.where.arch
    rung = rung_of(problem.dtype)
    reasons = [rung.why_not(problem, config, arch) for config in configs]
    able = [config for config, reason in zip(configs, reasons, strict=True) if reason is None]
    if not able:
        raise ConfigRejected(f"{reasons[0]}.")
    compile_ahead(problem, able, arch)
    kernels = [(Step(rung, config, problem), rung.compile(problem, config, arch)) for config in able]
    return Contender(called, [rung_candidate(step, kernel, ground) for step, kernel in kernels])


CUTLASS = Peer(
    "cutlass",
    "CUTLASS 2.x's device::Gemm with a usual tile",
    lambda g: _entry(g, (rung_of(g.problem.dtype).default,)),
)
CUTLASS_SWIZZLED = Peer(
    "cutlass_swizzled",
    "the same tilings, columns of tiles walked eight at a time, so that they meet in L2",
    lambda g: _entry(g, tuple(replace(config, group_m=8) for config in rung_of(g.problem.dtype).space())),
)
CUTLASS_TUNED = Peer(
    "cutlass_tuned",
    "the fastest of its tilings, chosen in this run",
    lambda g: _entry(g, rung_of(g.problem.dtype).space()),
)
