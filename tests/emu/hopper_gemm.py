"""A warp-specialised product of the kind that Hopper's fastest kernels are, and ways to get it wrong.

C = A B' in bf16, tiles of 128 x 128 x 64. Roles: warpgroup 0 gives registers away, and one of its threads copies tiles
by TMA; warpgroups 1 and 2 multiply 64 rows each, put C into shared memory, and one thread of each stores it by TMA.
full[s]: 1 arrival and the bytes of A and B of stage s. empty[s]: 1 arrival of each warpgroup that multiplies.
The blocks stay: each takes every gridDim.x-th tile, so that C's buffer is used again and again.
"""

from __future__ import annotations

import numpy as np
from hopper_prelude import PRELUDE

from tilewright import emu
from tilewright.jit.tensor_map import TensorMap

TILE, DEPTH, STAGES = 128, 64, 4
WRONG = {
    "missing_wait": ("wait(full + s, round & 1); // full", "if (warp == 0) wait(full + s, round & 1);"),
    "wrong_byte_count": ("arrive_expect(full + s, 2 * tile_bytes);", "arrive_expect(full + s, 2 * tile_bytes + 128);"),
    "missing_proxy_fence": ("proxy_fence(); // C", ";"),
    "missing_empty_wait": ("wait(empty + s, round + 1 & 1); // empty", ";"),
    "store_not_waited": ("wait_read<0>(); // C", ";"),
    "wrong_parity": ("wait(empty + s, round + 1 & 1); // empty", "wait(empty + s, round & 1);"),
    "no_wait_at_all": ("wait(full + s, round & 1); // full", ";"),
    "empty_too_early": (
        'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");',
        'if (s == 3) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");',
    ),
}
"""Name -> (what is written, what is written instead)."""

SOURCE = (
    PRELUDE
    + """
constexpr int stages = 4, depth = 64, tile_bytes = 128 * 64 * 2, c_bytes = 64 * 128 * 2;
__device__ __forceinline__ u64 descriptor(u32 address) {  // rows of 128 bytes, swizzled, 1024 bytes to the next eight
    return (u64)(address >> 4 & 0x3fff) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
#define D4(j) "+f"(d[j]), "+f"(d[j + 1]), "+f"(d[j + 2]), "+f"(d[j + 3])
#define D16(j) D4(j), D4(j + 4), D4(j + 8), D4(j + 12)
__device__ __forceinline__ void multiply(float (&d)[64], u64 a, u64 b, int adds) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23,"
        "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45,"
        "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},"
        "%64, %65, p, 1, 1, 0, 0; }"
        : D16(0), D16(16), D16(32), D16(48) : "l"(a), "l"(b), "r"(adds));
}
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
extern "C" __global__ void __launch_bounds__(384, 1) k(
    const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
    const __grid_constant__ CUtensorMap c_map, int rows, int columns, int k_size) {
    extern __shared__ __align__(1024) char shared[];
    char *a_tile = shared, *b_tile = shared + stages * tile_bytes, *c_tile = shared + 2 * stages * tile_bytes;
    __shared__ u64 full[stages], empty[stages];
    const int group = threadIdx.x / 128, tiles = rows / 128 * (columns / 128), steps = k_size / depth;
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; ++s) { init(full + s, 1); init(empty + s, 2); }
        init_fence();
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            int s = 0, round = 0;
            for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                const int x = tile % (columns / 128) * 128, y = tile / (columns / 128) * 128;
                for (int step = 0; step < steps; ++step) {
                    wait(empty + s, round + 1 & 1); // empty
                    arrive_expect(full + s, 2 * tile_bytes);
                    load_box(a_tile + s * tile_bytes, &a_map, step * depth, y, full + s);
                    load_box(b_tile + s * tile_bytes, &b_map, step * depth, x, full + s);
                    if (++s == stages) { s = 0; ++round; }
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    char *mine = c_tile + (group - 1) * c_bytes;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    int s = 0, round = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int x = tile % (columns / 128) * 128, y = tile / (columns / 128) * 128;
        float d[64];
        for (int step = 0; step < steps; ++step) {
            wait(full + s, round & 1); // full
            const u32 a = at(a_tile + s * tile_bytes) + (group - 1) * 64 * 128, b = at(b_tile + s * tile_bytes);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            #pragma unroll
            for (int part = 0; part < 4; ++part)
                multiply(d, descriptor(a + 32 * part), descriptor(b + 32 * part), step || part);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (threadIdx.x % 128 == 0) arrive(empty + s);
            if (++s == stages) { s = 0; ++round; }
        }
        if (threadIdx.x % 128 == 0) wait_read<0>(); // C
        asm volatile("bar.sync %0, 128;" :: "r"(group) : "memory");
        #pragma unroll
        for (int j = 0; j < 16; ++j)
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = 16 * warp + 8 * h + lane / 4, column = 8 * j + lane % 4 * 2;
                *(u32 *)(mine + (row * 128 + column) * 2) = pack(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
            }
        proxy_fence(); // C
        asm volatile("bar.sync %0, 128;" :: "r"(group) : "memory");
        if (threadIdx.x % 128 == 0) { store_box(&c_map, x, y + (group - 1) * 64, mine); commit(); }
    }
    if (threadIdx.x % 128 == 0) wait_done<0>();
}
"""
)
SHARED = 2 * STAGES * TILE * DEPTH * 2 + 2 * 64 * 128 * 2


def bf16(values: np.ndarray) -> np.ndarray:
    """The bits of bf16 numbers, rounded to the nearest."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def wide(bits: np.ndarray) -> np.ndarray:
    """The fp32 numbers of such bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def operands(rows: int, columns: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B and a C of NaN, as bits of bf16."""
    random = np.random.default_rng(7)
    a, b = (bf16(random.standard_normal((n, k))) for n in (rows, columns))
    return a, b, np.full((rows, columns), 0x7FC0, np.uint16)


def maps_of(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[TensorMap]:
    """The tensor maps of the kernel."""
    return [
        TensorMap.of(a, (TILE, DEPTH), dtype="bf16", swizzle=128),
        TensorMap.of(b, (TILE, DEPTH), dtype="bf16", swizzle=128),
        TensorMap.of(c, (64, TILE), dtype="bf16"),
    ]


def product(
    rows: int, columns: int, k: int, *, wrong: str | None = None, blocks: int = 2
) -> tuple[emu.EmulateResult, np.ndarray, np.ndarray]:
    """(what the kernel leaves, its C in fp32, C as it should be in float64)."""
    a, b, c = operands(rows, columns, k)
    source = SOURCE
    if wrong:
        assert source.count(WRONG[wrong][0]) == 1
        source = source.replace(*WRONG[wrong])
    result = emu.emulate(source, "k", blocks, 384, [*maps_of(a, b, c), rows, columns, k], shared_bytes=SHARED)
    return result, wide(result.arrays[2]), wide(a).astype(np.float64) @ wide(b).astype(np.float64).T
