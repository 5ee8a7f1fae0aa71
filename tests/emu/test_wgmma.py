"""wgmma against NumPy: every kind, width, major, swizzle and source of operands. Its hazards: test_wgmma_hazards.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright import emu
from tilewright.errors import UnknownInstruction

FULL = (8, 24, 64, 256)
SIZE = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
TYPE = {"f32": "float", "f16": "u32", "s32": "int"}
"""What holds D in CUDA C++."""


def product(n: int, kinds: str, tail: str, source: str = "memory") -> str:
    """The statement d += a b in CUDA C++: d, a, b and int `adds` are in scope."""
    count = n // 4 if kinds.startswith("f16") else n // 2
    held = 4 if source == "registers" else 1
    d = ", ".join(f"%{i}" for i in range(count))
    a = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if held == 4 else f"%{count}"
    k = 32 // SIZE[kinds.split(".")[1]]
    outs = ", ".join(f'"+{"f" if kinds.startswith("f32") else "r"}"(d[{i}])' for i in range(count))
    ins = ", ".join(f'"r"(a[{i}])' for i in range(4)) if held == 4 else '"l"(a)'
    return (
        f'asm volatile("{{.reg .pred p; setp.ne.b32 p, %{count + held + 1}, 0; wgmma.mma_async.sync.aligned.m64n{n}k{k}'
        f'.{kinds} {{{d}}}, {a}, %{count + held}, p{tail and ", " + tail};}}" '
        f': {outs} : {ins}, "l"(b), "r"(adds) : "memory");'
    )


PRELUDE = """
typedef unsigned u32;
typedef unsigned long long u64;
#define ORDER(text) asm volatile(text ::: "memory")
extern __shared__ __align__(1024) u32 tile[];
__device__ void fill(const u32 *image, int words) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) tile[i] = image[i];
    ORDER("fence.proxy.async.shared::cta;");
    __syncthreads();
}
"""


def variant(number: int, n: int, kinds: str, tail: str, source: str = "memory") -> str:
    count = n // 4 if kinds.startswith("f16") else n // 2
    a = (
        "u32 a[4] = {given[0], given[1], given[2], given[3]};"
        if source == "registers"
        else "u64 a = a0 + step * a_step;"
    )
    return f"""
    if (which == {number}) {{
        {TYPE[kinds.split(".")[0]]} d[{count}];
        for (int i = 0; i < {count}; ++i) d[i] = start[threadIdx.x * {count} + i];
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {{
            {a} u64 b = b0 + step * b_step; int adds = keep || step;
            ORDER("wgmma.fence.sync.aligned;");
            {product(n, kinds, tail, source)}
        }}
        ORDER("wgmma.commit_group.sync.aligned;");
        ORDER("wgmma.wait_group.sync.aligned 0;");
        for (int i = 0; i < {count}; ++i) out[threadIdx.x * {count} + i] = d[i];
    }}"""


def kernel(variants: list[tuple], number: str) -> str:
    head = f"""
extern "C" __global__ void k(const u32 *image, int words, u64 a0, u64 b0, int a_step, int b_step, int steps, int keep,
                             const {number} *start, {number} *out, int which) {{
    fill(image, words);
    const u32 *given = image + words + 4 * threadIdx.x;"""
    return PRELUDE + head + "".join(variant(i, *v) for i, v in enumerate(variants)) + "}"


F32 = [(n, "f32.bf16.bf16", "1, 1, 0, 0") for n in FULL]
F32 += [(24, "f32.f16.f16", f"1, 1, {a}, {b}") for a, b in itertools.product((0, 1), repeat=2)]
F32 += [(64, "f32.f16.f16", "1, 1, 1, 1")]
F32 += [(8, "f32.f16.f16", tail) for tail in ("-1, 1, 0, 0", "1, -1, 0, 0", "-1, -1, 0, 0")]
F32 += [(16, "f32.tf32.tf32", "1, 1"), (8, "f32.e4m3.e5m2", "1, 1")]
F32 += [(24, "f32.bf16.bf16", "1, 1, 0", "registers"), (16, "f32.tf32.tf32", "1, 1", "registers")]
F32 += [(8, "f32.e4m3.e5m2", "1, 1", "registers")]
S32 = [(8, "s32.s8.u8", ""), (48, "s32.u8.s8", ""), (24, "s32.s8.s8", "", "registers")]
F16 = [(24, "f16.f16.f16", "1, 1, 0, 0"), (8, "f16.f16.f16", "1, -1, 1", "registers")]


# --- what lies where, brick by brick ----------------------------------------------------------------------------------


def image_of(matrix: np.ndarray, row: int, across: bool) -> tuple[np.ndarray, int, int, int]:
    """`matrix` [mn, k] (unsigned integers) -> (its bytes, leading and stride offsets, bytes from one 32 bytes of k to
    the next). Rows of `row` bytes (16: no swizzle) run along k, or along mn where `across`.
    """
    size = matrix.itemsize
    lines = matrix.T if across else matrix  # [lines, along]
    along = row // size
    if lines.shape[1] % along:
        lines = np.pad(lines, ((0, 0), (0, -lines.shape[1] % along)))
    panels = np.ascontiguousarray(lines.reshape(len(lines), -1, along).swapaxes(0, 1))  # [panel, line, row]
    units = panels.view(np.uint8).reshape(len(panels), len(lines), row // 16, 16)
    if row > 16:
        swizzled = np.empty_like(units)
        for line, unit in itertools.product(range(len(lines)), range(row // 16)):
            swizzled[:, line, unit ^ line // (128 // row) % (row // 16)] = units[:, line, unit]
        units = swizzled
    panel, brick = units[0].nbytes, 8 * row
    data = units.reshape(-1)
    if row == 16:  # the next 8 of k, the next 8 of m or n: panels and bricks, or bricks and panels
        leading, stride = (brick, panel) if across else (panel, brick)
        return data, leading, stride, 2 * leading
    return data, panel, brick, 2 * brick if across else panel if row == 32 else 32


def descriptor(at: int, leading: int, stride: int, row: int) -> int:
    swizzle = {16: 0, 128: 1, 64: 2, 32: 3}[row]
    return at >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62


def bits_of(values: np.ndarray, kind: str) -> np.ndarray:
    """Values that the type holds exactly, as its bits."""
    if kind == "tf32":
        return values.astype(np.float32).view(np.uint32) | np.uint32(0x1ABC)  # the low 13 bits are ignored
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind in ("s8", "u8"):
        return values.astype(np.int16).astype(np.uint8)
    if kind == "e5m2":
        return (values.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    table = np.array([(1 + f / 8) * 2.0 ** (e - 7) if e else f / 512 for e in range(16) for f in range(8)][:127])
    place = np.abs(table[None, :] - np.abs(values).reshape(-1, 1)).argmin(axis=1).reshape(values.shape)
    assert (table[place] == np.abs(values)).all()
    return (place | (values < 0) << 7).astype(np.uint8)


def numbers(rng: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    """Different everywhere, exact in the type."""
    if kind in ("s8", "u8"):
        return rng.integers(*((-128, 128) if kind == "s8" else (0, 256)), shape).astype(float)
    limit = {"e5m2": 4, "e4m3": 8}.get(kind, 100)
    return rng.integers(-limit, limit + 1, shape) / (8.0 if kind[0] == "e" else 64.0)


def places(n: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of D that [thread, j, h, p] holds."""
    thread, j, h, p = np.ogrid[:128, : n // 8, :2, :2]
    row = 16 * (thread // 32) + 8 * h + thread % 32 // 4
    return tuple(np.broadcast_arrays(row, 8 * j + 2 * (thread % 4) + p))


def run(
    variants: list[tuple], which: int, rows: tuple[int, int] = (128, 128), steps: int = 1, keep: int = 1,
    change=lambda a, b, c: None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(D, its float64 reference). `rows`: bytes of a row of A's and of B's image; `change` is shown the operands."""
    n, kinds, tail, *source = variants[which]
    rng = np.random.default_rng(which)
    d_kind, a_kind, b_kind = kinds.split(".")
    number = {"f32": np.float32, "s32": np.int32}.get(d_kind, np.uint32)
    flags = [int(flag) for flag in tail.split(", ")] if tail else [1, 1]
    majors = flags[2:] if len(flags) == 4 else [0, *flags[2:]] if len(flags) == 3 else [0, 0]
    k = 32 // SIZE[a_kind] * steps
    a, b, c = numbers(rng, a_kind, 64, k), numbers(rng, b_kind, n, k), numbers(rng, "f16", 64, n)
    if d_kind == "s32":
        c = np.where(c > 0, 2.0**31 - 1, -(2.0**31))
    change(a, b, c)
    a_data, *a_offsets, a_step = image_of(bits_of(a, a_kind), rows[0], bool(majors[0]))
    b_data, *b_offsets, b_step = image_of(bits_of(b, b_kind), rows[1], bool(majors[1]))
    b_at = -(-len(a_data) // 1024) * 1024
    image = np.concatenate([a_data, np.zeros(b_at - len(a_data), np.uint8), b_data]).view(np.uint32)
    held = np.zeros((128, 4), np.uint32)
    if source:  # register 2 q + h of a lane: e elements from (8 h + g, 4 e q + e t) of its warp's rows
        e = 4 // SIZE[a_kind]
        thread, r, part = np.ogrid[:128, :4, :e]
        row, col = 16 * (thread // 32) + 8 * (r % 2) + thread % 32 // 4, 4 * e * (r // 2) + e * (thread % 4) + part
        held = np.ascontiguousarray(bits_of(a, a_kind)[row, col]).view(np.uint32)[..., 0]
    start = c[places(n)]
    start = start.astype(np.float16).view(np.uint32) if d_kind == "f16" else start.astype(number)
    result = emu.emulate(
        kernel(variants, TYPE[d_kind]), "k", 1, 128,
        [np.concatenate([image, held.reshape(-1)]), len(image), descriptor(0, *a_offsets, rows[0]),
         descriptor(b_at, *b_offsets, rows[1]), a_step >> 4, b_step >> 4, steps, keep, start.reshape(-1),
         np.full(start.size, np.nan if d_kind == "f32" else 0x7E007E00).astype(number), which],
        shared_bytes=image.nbytes,
    )  # fmt: skip
    got = result.arrays[2].view(np.float16 if d_kind == "f16" else number).reshape(128, n // 8, 2, 2)
    d = np.full((64, n), np.nan)
    d[places(n)] = got
    sign = flags[0] * flags[1]
    return d, sign * (a @ b.T) + (c if keep else 0)


@pytest.mark.parametrize("which", range(len(F32)), ids=lambda i: " ".join(map(str, F32[i])))
def test_products_in_fp32_equal_numpys(which):
    d, expected = run(F32, which)
    assert np.array_equal(d, expected.astype(np.float32))


@pytest.mark.parametrize("which", range(len(F16)))
def test_products_in_fp16_are_rounded_once(which):
    d, expected = run(F16, which)
    assert np.array_equal(d, expected.astype(np.float16))


@pytest.mark.parametrize("row", [16, 32, 64, 128])
@pytest.mark.parametrize("which", [4, 5, 6, 7, 8])
def test_every_swizzle_of_every_major_over_several_steps_along_k(which, row):
    d, expected = run(F32, which, (row, row), steps=4 if row != 64 else 2)  # no further than a row reaches
    assert np.array_equal(d, expected.astype(np.float32))


@pytest.mark.parametrize("which", [0, 15])
def test_scale_d_0_leaves_the_accumulators_unread(which):
    def poison(a, b, c):
        c[:] = np.nan

    d, expected = run(F32, which, keep=0, change=poison)
    assert np.array_equal(d, expected.astype(np.float32))


def test_nan_and_infinity_are_those_of_the_products():
    def change(a, b, c):
        a[3, 2], a[9, 0], b[5, 0], b[5, 2] = np.inf, np.nan, 0.5, 0.0
        b[:, 0] = 0.5

    with np.errstate(invalid="ignore"):
        d, expected = run(F32, 0, change=change)
    assert np.array_equal(d, expected.astype(np.float32), equal_nan=True)
    assert np.isnan(d[9]).all()
    assert np.isnan(d[3, 5])
    assert not np.isfinite(d[3]).any()


@pytest.mark.parametrize("which", range(len(S32)))
def test_integers_add_up_modulo_2_to_the_32(which):
    d, expected = run(S32, which)
    assert np.array_equal(d, (expected + 2.0**31) % 2.0**32 - 2.0**31)
    assert np.abs(expected).max() > 2.0**31


def test_a_products_sum_is_cut_not_rounded():
    def change(a, b, c):
        a[:], b[:], c[:] = 0, 0, 2.0**24
        a[:, 0], b[:, 0] = 1, 3  # 2^24 + 3 would round to 2^24 + 4

    d, _ = run(F32, 0, change=change)
    assert (d == 2.0**24 + 2).all()


def test_fp8_keeps_13_bits_of_a_sum():
    def change(a, b, c):
        a[:], b[:], c[:] = 0, 0, 0
        a[:, 0], b[:, 0], a[:, 1], b[:, 1] = 8, 1, 2.0**-3, 2.0**-8  # 8 + 2^-11 has one bit too many

    d, _ = run([(8, "f32.e4m3.e4m3", "1, 1")], 0, change=change)
    assert (d == 8).all()


def test_forms_beyond_are_refused_by_name():
    text = product(8, "f32.f16.f16", "1, 1, 0, 0").replace("mma_async.sync", "mma_async.sp.sync").replace("k16", "k32")
    text = PRELUDE + 'extern "C" __global__ void k(u64 a, u64 b, int adds) { float d[4]; ' + text + "}"
    text = text.replace("%5, p,", "%5, %6, 0, p,")
    with pytest.raises(UnknownInstruction, match=r"wgmma\.mma_async\.sp\.sync\.aligned\.m64n8k32\.f32\.f16\.f16"):
        emu.emulate(text, "k", 1, 128, [0, 0, 0])
