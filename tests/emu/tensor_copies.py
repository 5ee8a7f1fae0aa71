"""One kernel that copies a box of a tensor in and out by TMA, and what it should leave, worked out by indexing."""

from __future__ import annotations

import itertools

import numpy as np
from hopper_prelude import PRELUDE

from tilewright.jit.tensor_map import TensorMap

NAN_BITS = {"f16": 0x7FF7, "bf16": 0x7FF7, "f32": 0x7FF77FF7, "f64": 0x7FF77FF77FF77FF7}
"""As an H200 fills."""


def source(rank: int, reduce: str = "") -> str:
    """Load the box at `load_at` into shared memory, copy that out as it lies, and store it to the box at `store_at`."""
    coordinates = ", ".join(f"%{k}" for k in range(2, 2 + rank))
    gives = ", ".join(f'"r"(c{k})' for k in range(rank))
    signature = ", ".join(f"int c{k}" for k in range(rank))
    where = ", ".join(f"{{at}}[{k}]" for k in range(rank))
    head = "cp.reduce.async.bulk.tensor" if reduce else "cp.async.bulk.tensor"
    stores = ", ".join(f"%{k}" for k in range(2, 2 + rank))
    return (
        PRELUDE
        + f"""
__device__ __forceinline__ void box_in(u32 to, const void *map, u64 *b, {signature}) {{
    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {{{coordinates}}}], [%{2 + rank}];" :: "r"(to), "l"(map), {gives}, "r"(at(b)) : "memory");
}}
__device__ __forceinline__ void box_out(u32 from, const void *map, {signature}) {{
    asm volatile("{head}.{rank}d.global.shared::cta{reduce}.bulk_group [%1, {{{stores}}}], [%0];"
        :: "r"(from), "l"(map), {gives} : "memory");
}}
extern "C" __global__ void k(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to,
        u32 *image, const int *load_at, const int *store_at, int box_bytes, int image_bytes, int skew, int stores) {{
    extern __shared__ __align__(1024) char tile[];
    __shared__ u64 full;
    for (int i = threadIdx.x; i < image_bytes / 4; i += 32) ((u32 *)tile)[i] = 0xAAAAAAAA;
    if (threadIdx.x == 0) {{ init(&full, 1); }}
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {{
        arrive_expect(&full, box_bytes);
        box_in(at(tile) + skew, &from, &full, {where.format(at="load_at")});
    }}
    wait(&full, 0);
    for (int i = threadIdx.x; i < image_bytes / 4; i += 32) image[i] = ((u32 *)tile)[i];
    __syncthreads();
    if (threadIdx.x == 0 && stores) {{
        box_out(at(tile) + skew, &to, {where.format(at="store_at")});
        commit(); wait_done<0>();
    }}
}}
"""
    )


def expected(
    array: np.ndarray, what: TensorMap, at: tuple[int, ...], image_bytes: int, skew: int
) -> tuple[np.ndarray, np.ndarray]:
    """(shared memory after the load, as bytes; the box's elements as raw unsigned integers).

    Written element by element from the manual: `at` and everything of the map are innermost first.
    """
    size = what.itemsize
    raw = np.ascontiguousarray(array).view(f"u{size}")
    fill = NAN_BITS[what.dtype] if what.oob_fill == "nan" else 0
    image = np.full(image_bytes, 0xAA, np.uint8)
    steps = (1, *what.element_strides[1:])
    box = np.full(tuple(reversed(what.copied)), fill, f"u{size}")
    for number, place in enumerate(itertools.product(*(range(n) for n in reversed(what.copied)))):
        index = tuple(a + i * s for a, i, s in zip(reversed(at), place, reversed(steps), strict=True))
        if all(0 <= i < n for i, n in zip(index, array.shape, strict=True)):
            box[place] = raw[index]
        row, column = divmod(number, what.box[0])
        address = skew + row * (what.swizzle or what.box[0] * size) + column * size
        if what.swizzle:
            address ^= (address >> 7 & what.swizzle // 16 - 1) << 4
        image[address : address + size] = np.frombuffer(box[place].tobytes(), np.uint8)
    return image, box


def case(shape: tuple[int, ...], box: tuple[int, ...], at: tuple[int, ...], dtype: str, **more: object) -> dict:
    """A tensor and a box of it, all outermost first; `more` are options of TensorMap.of, and `skew`."""
    return {"shape": shape, "box": box, "at": at, "dtype": dtype, **more}


CASES = {
    "1d": case((100,), (32,), (8,), "f32"),
    "1d over the end": case((100,), (64,), (60,), "f32"),
    "2d": case((40, 48), (8, 16), (3, 4), "f32"),
    "2d before the start": case((40, 48), (8, 16), (-3, -8), "f32"),
    "2d over both ends, nan": case((40, 48), (8, 16), (36, 40), "f32", oob_fill="nan"),
    "2d bf16, nan": case((40, 48), (8, 16), (36, 40), "bf16", oob_fill="nan"),
    "2d f16, nan": case((40, 48), (8, 16), (36, 40), "f16", oob_fill="nan"),
    "2d far outside": case((40, 48), (8, 16), (1000, -1000), "f32"),
    "swizzle 128": case((64, 128), (16, 64), (7, 64), "bf16", swizzle=128),
    "swizzle 64": case((64, 128), (16, 32), (7, 32), "bf16", swizzle=64),
    "swizzle 32": case((64, 128), (16, 16), (7, 16), "bf16", swizzle=32),
    "swizzle 128 from an odd row": case((64, 128), (16, 64), (7, 64), "bf16", swizzle=128, skew=384),
    "swizzle 64 from an odd row": case((64, 128), (16, 32), (7, 32), "bf16", swizzle=64, skew=128),
    "swizzle over the end": case((64, 128), (16, 64), (55, 104), "bf16", swizzle=128),
    "narrow in a swizzle of 128": case((64, 128), (16, 32), (7, 32), "bf16", swizzle=128),
    "narrow in a swizzle of 64": case((64, 128), (16, 8), (7, 32), "bf16", swizzle=64),
    "3d": case((5, 6, 32), (2, 3, 16), (1, 2, 8), "f16"),
    "3d over ends": case((5, 6, 32), (2, 3, 16), (4, 5, 24), "f16"),
    "4d": case((3, 4, 5, 16), (2, 2, 3, 16), (1, 1, 3, 0), "u8"),
    "5d": case((2, 3, 4, 5, 16), (2, 2, 2, 2, 8), (0, 2, 1, 4, 4), "s32"),
    "steps": case((40, 48), (9, 16), (2, 4), "f32", element_strides=(2, 1)),
    "steps over the end": case((40, 48), (15, 16), (30, 40), "f32", element_strides=(4, 1)),
    "steps, a step inside": case((6, 40, 16), (3, 8, 16), (1, 3, 0), "f32", element_strides=(2, 3, 1)),
    "64-bit": case((20, 20), (4, 8), (18, 16), "f64", oob_fill="nan"),
    "8-bit": case((20, 64), (16, 32), (6, 48), "u8"),
}  # fmt: skip


def arrays_of(given: dict) -> tuple[np.ndarray, TensorMap, tuple[int, ...]]:
    """(the tensor, its map, the coordinates innermost first)."""
    case = dict(given)
    shape, at, dtype = case.pop("shape"), case.pop("at"), case.pop("dtype")
    case.pop("skew", None)
    size = {"u8": 1, "f16": 2, "bf16": 2, "f32": 4, "s32": 4, "f64": 8}[dtype]
    array = np.random.default_rng(5).integers(1, 200, shape).astype(f"u{size}")
    return array, TensorMap.of(array, case.pop("box"), dtype=dtype, **case), tuple(reversed(at))


def stored_at(what: TensorMap, at: tuple[int, ...]) -> tuple[int, ...]:
    """Where the box goes out again: 16 bytes before along dimension 0, one element along the others, but not before
    the tensor's start, which no store may."""
    return (max(at[0] - 16 // what.itemsize, 0), *(max(c - 1, 0) for c in at[1:]))


def stored(array: np.ndarray, what: TensorMap, box: np.ndarray, at: tuple[int, ...]) -> np.ndarray:
    """What a tensor of zeros holds once `box` has been stored to it at `at`, innermost first."""
    left = np.zeros_like(array)
    steps = (1, *what.element_strides[1:])
    for place in np.ndindex(*box.shape):
        index = tuple(a + i * s for a, i, s in zip(reversed(at), place, reversed(steps), strict=True))
        if all(0 <= i < n for i, n in zip(index, array.shape, strict=True)):
            left[index] = box[place]
    return left
