"""What wgmma punishes: every catch on a kernel that is right, with one thing at a time done wrong."""

from __future__ import annotations

import numpy as np
import pytest
from test_wgmma import PRELUDE, descriptor, image_of, places, product

from tilewright import emu
from tilewright.errors import EmulatorFault, PtxError
from tilewright.jit import compile_source

# Two warpgroups multiply 128 x 16 by 16 x 8 for each tile along k; 3 stages of A (two operands of 64 rows) and B.
PIPELINE = (
    PRELUDE
    + """
const int stage_bytes = 2 * 2048 + 256;
enum { right, no_proxy_fence, no_barrier, same_stage, two_stages, no_copy_wait, no_last_wait, no_commit, no_fence,
       around_it, no_first_copy, writes_after_own_wait, scales_too_early, other_descriptor, overwrites_d,
       no_barrier_after_wait, blocks_apart, one_starts_anew };
__device__ u32 *tile_at(int stage) { return tile + stage * stage_bytes / 4; }
__device__ void start(const u32 *from, int tile, int stage) {
    const u32 to = __cvta_generic_to_shared(tile_at(stage));
    for (int i = threadIdx.x; i < stage_bytes / 16; i += 256)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::
            "r"(to + 16 * i), "l"(from + tile * stage_bytes / 4 + 4 * i) : "memory");
}
extern "C" __global__ void k(const u32 *from, float *out, int tiles, int wrong, u64 a0, u64 b0) {
    float d[4] = {};
    const int adds = wrong != one_starts_anew || threadIdx.x < 128;
    const int skew = wrong == blocks_apart ? blockIdx.x : 0;
    if (wrong != no_first_copy) start(from, 0, skew % 3);
    ORDER("cp.async.commit_group;");
    if (wrong != no_fence) ORDER("wgmma.fence.sync.aligned;");
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
        if (wrong != no_copy_wait) ORDER("cp.async.wait_group 0;");
        if (wrong != no_proxy_fence) ORDER("fence.proxy.async;");
        if (wrong != no_barrier) __syncthreads();
        const int stages = wrong == two_stages ? 2 : 3, here = (t + skew) % 3;
        u64 a = a0 + (here * stage_bytes + threadIdx.x / 128 * 2048 >> 4), b = b0 + (here * stage_bytes >> 4);
        if (wrong == other_descriptor && threadIdx.x == 77) b += 1;
        if (wrong != around_it || threadIdx.x / 32 != 5) {
            MULTIPLY
        }
        if (wrong != no_commit) ORDER("wgmma.commit_group.sync.aligned;");
        if (wrong == scales_too_early) d[1] *= 2;
        if (wrong == overwrites_d && t == 1) d[2] = 0;
        if (t + 1 < tiles) start(from, t + 1, wrong == same_stage ? here : (t + 1 + skew) % stages);
        ORDER("cp.async.commit_group;");
        ORDER("wgmma.wait_group.sync.aligned 1;");
    }
    if (wrong != no_last_wait) ORDER("wgmma.wait_group.sync.aligned 0;");
    if (wrong == no_barrier_after_wait && threadIdx.x == 200) tile_at((tiles - 1) % 3)[1024] = 1;  // B, which both read
    if (wrong == writes_after_own_wait && threadIdx.x == 200) tile_at((tiles - 1) % 3)[512] = 1;  // its own A
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}
"""
).replace("MULTIPLY", product(8, "f32.f16.f16", "1, 1, 0, 0"))
NAMES = PIPELINE[PIPELINE.index("enum {") + 6 : PIPELINE.index("};")].replace(",", " ").split()


def pipelined(wrong: str = "right", tiles: int = 4, a0: int | None = None, b0: int | None = None, hazards="raise"):
    """(the result, the float64 product of each tile)."""
    rng = np.random.default_rng(5)
    a = rng.integers(-50, 51, (tiles, 128, 16)).astype(np.float16)
    b = rng.integers(-50, 51, (tiles, 8, 16)).astype(np.float16)
    images = []
    for tile in range(tiles):
        images += [image_of(part.view(np.uint16), 16, False)[0] for part in (a[tile, :64], a[tile, 64:], b[tile])]
    _, leading, stride, _ = image_of(a[0, :64].view(np.uint16), 16, False)
    _, b_leading, b_stride, _ = image_of(b[0].view(np.uint16), 16, False)
    result = emu.emulate(
        PIPELINE, "k", 3, 256,
        [np.concatenate(images).view(np.uint32), np.full(1024, np.nan, np.float32), tiles, NAMES.index(wrong),
         descriptor(0, leading, stride, 16) if a0 is None else a0,
         descriptor(4096, b_leading, b_stride, 16) if b0 is None else b0],
        shared_bytes=3 * 4352, hazards=hazards,
    )  # fmt: skip
    return result, np.einsum("tmk,tnk->tmn", a.astype(float), b.astype(float))


def caught(run, *args, **options) -> emu.Hazard:
    with pytest.raises(EmulatorFault) as fault:
        run(*args, **options)
    assert fault.value.hazard is not None
    return fault.value.hazard


@pytest.mark.parametrize("way", ["right", "writes_after_own_wait", "blocks_apart", "one_starts_anew"])
def test_a_right_pipeline_passes_and_is_right(way):
    result, products = pipelined(way)
    halves = result.arrays[1].reshape(2, 128, 1, 2, 2)
    for half, got in enumerate(halves):
        expected = (products[-1] if half and way == "one_starts_anew" else products.sum(axis=0))[64 * half :][:64]
        assert np.array_equal(got, expected[places(8)])
    assert result.counters.flops == {"hgmma": 3 * 4 * 2 * 128 * 8 * 16}
    assert result.counters.by_class["tensor"] == 3 * 4 * 256
    assert result.counters.shared_load_requests == 0


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        ("no_barrier", "shared_race", "wgmma's read at shared address"),
        ("same_stage", "wgmma_not_waited", "asynchronous copy of 16 bytes to shared address"),
        ("two_stages", "wgmma_not_waited", "asynchronous copy of 16 bytes to shared address"),
        ("no_copy_wait", "async_copy_not_waited", "wgmma's read of"),
        ("no_last_wait", "wgmma_not_waited", "an accumulator of a wgmma that this warp has not waited for"),
        ("no_commit", "wgmma_not_waited", "an accumulator of a wgmma"),
        ("scales_too_early", "wgmma_not_waited", "an accumulator of a wgmma"),
        ("overwrites_d", "wgmma_not_waited", "an accumulator of a wgmma"),
        ("no_fence", "wgmma_fence_missing", "no wgmma.fence lies before the first wgmma"),
        ("around_it", "deadlock", "nothing can come to let it go"),
        ("no_first_copy", "uninitialised_shared_read", "wgmma reads shared address 0x0, which no thread"),
        ("other_descriptor", "bad_descriptor", "is not the same in all threads"),
        ("no_barrier_after_wait", "shared_race", "a wgmma's read by warp 0"),
    ],
)
def test_each_wrong_turn_is_caught(wrong, kind, says):
    hazard = caught(pipelined, wrong, 1 if wrong in ("no_commit", "no_last_wait") else 4)
    assert hazard.kind == kind
    assert says in str(hazard)


def test_a_copy_that_no_proxy_fence_follows_is_a_warning():
    (hazard,) = (one for one in pipelined("no_proxy_fence")[0].hazards if one.kind != "flag_race")
    assert (hazard.kind, hazard.level) == ("copy_fence_missing", "warning")
    assert "which wrote it, has run no fence.proxy.async since" in str(hazard)


@pytest.mark.parametrize(
    ("operands", "kind", "says"),
    [
        ({"b0": descriptor(3 * 4352 - 128, 128, 256, 16)}, "out_of_bounds", "the block has 13056 bytes of it"),
        ({"a0": descriptor(64, 0, 512, 64)}, "misaligned", "64-byte swizzle starts at shared address 0x40"),
        ({"a0": descriptor(0, 128, 256, 16) | 1 << 50}, "bad_descriptor", "the base offset 2, which is not modelled"),
        ({"b0": 1 << 14}, "bad_descriptor", "bits set that mean nothing (0x4000)"),
    ],
)  # fmt: skip
def test_what_a_descriptor_names_is_checked(operands, kind, says):
    hazard = caught(pipelined, "right", 1, **operands)
    assert hazard.kind == kind
    assert says in str(hazard)


@pytest.mark.parametrize("row", [0, 1, 6])
def test_an_operand_of_128_byte_swizzle_may_start_at_any_row_as_on_a_gpu(row):
    text = """extern "C" __global__ void k(float *d, const float *a, const float *b, int row) {
        extern __shared__ __align__(1024) unsigned char s[];
        unsigned at = (unsigned)__cvta_generic_to_shared(s), A = at + row * 128, B = at + 12288 + row * 128;
        for (int i = threadIdx.x; i < 72 * 64; i += 128) {
            unsigned place = (i < 4096 ? A : B - 8192) + i / 64 * 128 + i % 64 * 2;
            float v = i < 4096 ? a[i] : b[i - 4096];
            *(unsigned short *)(s + ((place ^ (place >> 3 & 112)) - at)) = __float_as_uint(v) >> 16;
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        float c[4] = {};
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < 4; ++k) {
            unsigned long long rest = 64ull << 32 | 1ull << 62;
            asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                : "l"(A + 32 * k >> 4 | rest), "l"(B + 32 * k >> 4 | rest));
        }
        asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        for (int i = 0; i < 4; ++i) d[(warp * 16 + lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
    }"""
    rng = np.random.default_rng(row)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((64, 64), (8, 64)))
    result = emu.emulate(text, "k", 1, 128, [np.zeros((64, 8), np.float32), a, b, row], shared_bytes=15360)
    assert np.array_equal(result.arrays[0], a @ b.T)


def test_wrong_descriptors_give_nan_when_hazards_are_collected():
    result, _ = pipelined("right", 1, b0=1 << 14, hazards="collect")
    # not a number: its blocks' equal writes to one place differ in no bit, but nobody can tell that they do not
    assert {hazard.kind for hazard in result.hazards} - {"flag_race"} == {"bad_descriptor"}
    assert np.isnan(result.arrays[1]).all()


def test_lanes_that_are_missing_from_a_warpgroup_are_named():
    text = (
        PRELUDE
        + 'extern "C" __global__ void k(u64 a, u64 b, int adds) { float d[4] = {}; if (threadIdx.x >= 96) return;'
    )
    text += product(8, "f32.f16.f16", "1, 1, 0, 0") + "}"
    hazard = caught(emu.emulate, text, "k", 1, 128, [0, 0, 0], shared_bytes=4096)
    assert (hazard.kind, hazard.warp) == ("warp_divergence", 0)
    assert "it is the work of all 128 of four warps" in str(hazard)


# Warpgroup 1 fills the operands, warpgroup 0 multiplies; its warps come to the product one after another. They wait for
# each other by named barriers, so that clocks judge.
ROLES = (
    PRELUDE
    + """
enum { right, writes_own, no_proxy_fence, reads_early, frees_early, writes_early, writes_own_early };
extern "C" __global__ void k(const u32 *from, float *out, int tiles, int wrong, u64 a, u64 b) {
    const int adds = 1;
    if (threadIdx.x >= 128) {
#pragma unroll 1
        for (int t = 0; t < tiles; ++t) {
            if (t && wrong != writes_early) ORDER("bar.sync 2, 256;");
            for (int i = threadIdx.x - 128; i < 576; i += 128) tile[i] = from[576 * t + i];
            if (wrong != no_proxy_fence) ORDER("fence.proxy.async;");
            if (t && wrong == writes_early) ORDER("bar.sync 2, 256;");
            ORDER("bar.arrive 1, 256;");
        }
        return;
    }
    float d[4] = {};
    ORDER("wgmma.fence.sync.aligned;");
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
        if (t == 0 || wrong != reads_early) ORDER("bar.sync 1, 256;");
        for (int i = 0; i < 9 * (threadIdx.x / 32); ++i) ORDER("nanosleep.u32 1;");
        if (wrong == writes_own_early && threadIdx.x == 40) tile[0] = 7;
        ORDER("fence.proxy.async;");
        MULTIPLY
        ORDER("wgmma.commit_group.sync.aligned;");
        if (wrong != frees_early) ORDER("wgmma.wait_group.sync.aligned 0;");
        if (wrong == writes_own && threadIdx.x == 40) tile[0] = 7;
        if (t + 1 < tiles) ORDER("bar.arrive 2, 256;");
    }
    ORDER("wgmma.wait_group.sync.aligned 0;");
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}
"""
).replace("MULTIPLY", product(8, "f32.f16.f16", "1, 1, 0, 0"))


def in_roles(wrong: int):
    rng = np.random.default_rng(6)
    a = rng.integers(-50, 51, (3, 64, 16)).astype(np.float16)
    b = rng.integers(-50, 51, (3, 8, 16)).astype(np.float16)
    images = [image_of(part.view(np.uint16), 16, False) for tile in range(3) for part in (a[tile], b[tile])]
    result = emu.emulate(
        ROLES, "k", 2, 256,
        [np.concatenate([image[0] for image in images]).view(np.uint32), np.full(512, np.nan, np.float32), 3, wrong,
         descriptor(0, *images[0][1:3], 16), descriptor(2048, *images[1][1:3], 16)],
        shared_bytes=2304,
    )  # fmt: skip
    return result.arrays[1], np.einsum("tmk,tnk->mn", a.astype(float), b.astype(float))


@pytest.mark.parametrize("way", [0, 1])
def test_warpgroups_in_roles_and_warps_that_come_late(way):
    got, expected = in_roles(way)
    assert np.array_equal(got.reshape(128, 1, 2, 2), expected[places(8)])


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (2, "proxy_fence_missing"),
        (3, "shared_race"),
        (4, "wgmma_not_waited"),
        (5, "shared_race"),
        (6, "shared_race"),
    ],
)
def test_roles_that_do_not_wait_for_one_another_are_caught(wrong, kind):
    assert caught(in_roles, wrong).kind == kind


# fp16 accumulators that are the A of the next product.
CHAIN = (
    PRELUDE
    + """
enum { right, no_wait, reads_d, other_shape };
extern "C" __global__ void k(const u32 *image, int words, u32 *out, int wrong, u64 b) {
    fill(image, words);
    u32 a[4] = {0x3c003c00, 0x3c003c00, threadIdx.x, 0};
    const int adds = 0;
    u32 kept = 0;
    ORDER("wgmma.fence.sync.aligned;");
    u32 first[4], second[4];
    { u32 (&d)[4] = first; FIRST }
    ORDER("wgmma.commit_group.sync.aligned;");
    if (wrong == reads_d) asm volatile("add.u32 %0, %1, 1;" : "=r"(kept) : "r"(first[2]));
    if (wrong == other_shape) { u32 (&d)[4] = first; u64 a = b; NARROW }
    if (wrong != no_wait) ORDER("wgmma.wait_group.sync.aligned 0;");
    ORDER("wgmma.fence.sync.aligned;");
    { u32 (&d)[4] = second; u32 (&a)[4] = first; FIRST }
    ORDER("wgmma.commit_group.sync.aligned;");
    ORDER("wgmma.wait_group.sync.aligned 0;");
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = second[i] + kept;
}
"""
)
CHAIN = CHAIN.replace("FIRST", product(16, "f16.f16.f16", "1, 1, 0", "registers"))
CHAIN = CHAIN.replace("NARROW", product(8, "f16.f16.f16", "1, 1, 0, 0"))


def chained(wrong: int):
    eye = image_of(np.eye(16, dtype=np.float16).view(np.uint16), 16, False)
    out = np.zeros(512, np.uint32)
    b = descriptor(0, *eye[1:3], 16)
    image = np.concatenate([eye[0], np.zeros(2048 - len(eye[0]), np.uint8)]).view(np.uint32)
    return emu.emulate(CHAIN, "k", 1, 128, [image, 512, out, wrong, b], shared_bytes=2048).arrays[1]


def test_accumulators_may_be_the_a_of_the_next_product_once_waited_for():
    got = chained(0).reshape(128, 4)
    assert (got[:, :2] == 0x3C003C00).all()
    assert (got[:, 2] == np.arange(128)).all()  # subnormal numbers pass an identity unchanged


@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_accumulators_in_flight_may_not_be_used_otherwise(wrong):
    hazard = caught(chained, wrong)
    assert hazard.kind == "wgmma_not_waited"
    assert "is an accumulator of a wgmma" in str(hazard)


def test_setmaxnreg_is_checked():
    text = 'extern "C" __global__ void __launch_bounds__(128, 1) k() {ORDER("setmaxnreg.dec.sync.aligned.u32 40;"); }'
    ptx = compile_source(PRELUDE + text, entry="k", arch="sm_90a").ptx
    emu.emulate(ptx, "k", 1, 128, [])
    with pytest.raises(PtxError, match="a multiple of 8"):
        emu.emulate(ptx.replace("u32 40", "u32 41"), "k", 1, 128, [])
    assert caught(emu.emulate, ptx, "k", 1, 96, []).kind == "warp_divergence"


ALL = "wgmma.wait_group.sync.aligned 0;"


def in_ptx(*body: str) -> np.ndarray:
    """Runs `body` of a warpgroup with B all zeros at %rd1, A in %r4 and registers for accumulators; %r9 goes out."""
    lines = [
        ".version 8.0\n.target sm_90a\n.address_size 64", ".visible .entry k(.param .u64 out)\n{",
        ".reg .b32 %r<10>;\n.reg .f32 %f<40>;\n.reg .b64 %rd<4>;\n.shared .align 128 .b8 tile[512];",
        "mov.u32 %r0, %tid.x;", "mov.u32 %r1, tile;", "mad.lo.u32 %r2, %r0, 4, %r1;", "st.shared.u32 [%r2], 0;",
        "fence.proxy.async;", "bar.sync 0;", f"mov.u64 %rd1, {descriptor(0, 128, 256, 16)};", "mov.u32 %r4, 0;",
        "wgmma.fence.sync.aligned;", *body, "ld.param.u64 %rd2, [out];",
        "mad.wide.u32 %rd2, %r0, 4, %rd2;", "st.global.u32 [%rd2], %r9;", "ret;\n}",
    ]  # fmt: skip
    return emu.emulate("\n".join(lines), "k", 1, 128, [np.ones(128, np.uint32)]).arrays[0]


def group(first: int) -> str:
    """A product onto %f<first> to %f<first + 3>, as a group of its own."""
    d = ", ".join(f"%f{first + i}" for i in range(4))
    what = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    return f"{what} {{{d}}}, {{%r4, %r4, %r4, %r4}}, %rd1, 1, 1, 1, 0;\nwgmma.commit_group.sync.aligned;"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ((group(0), group(4), "wgmma.wait_group.sync.aligned 1;", "mov.b32 %r9, %f0;", "add.f32 %f9, %f1, %f1;"), None),
        ((group(0), group(4), "wgmma.wait_group.sync.aligned 1;", "add.f32 %f9, %f4, %f4;"), "%f4"),
        ((group(0), "mov.f32 %f8, %f0;", "wgmma.wait_group.sync.aligned 0;", "add.f32 %f9, %f8, %f8;"), None),
        ((group(0), "mov.f32 %f8, %f0;", "add.f32 %f9, %f8, %f8;"), "%f8"),
        ((group(0), "mov.f32 %f8, %f0;", group(4), "wgmma.wait_group.sync.aligned 1;", "add.f32 %f9, %f8, %f8;"), None),
        ((group(0), "mov.f32 %f8, %f0;", "mov.f32 %f8, %f20;"), "%f8"),
        ((group(0), "mov.b64 %rd3, {%f0, %f1};"), "%f0"),
        ((group(0), "add.u32 %r9, %r4, 0;", "mov.u32 %r5, %r4;", "add.u32 %r5, %r5, 1;"), None),
        ((group(0), "add.u32 %r4, %r9, 0;"), "%r4"),
        ((group(0), "mov.u32 %r4, %r9;"), "%r4"),
    ],
)
def test_registers_and_their_copies_are_in_flight_until_the_wait_that_covers_them(body, what):
    if what is None:
        assert not in_ptx(*body, ALL).any()
        return
    hazard = caught(in_ptx, *body, ALL)
    assert hazard.kind == "wgmma_not_waited"
    assert f"the register {what[1:]} is" in hazard.message or f"the register {what} is" in hazard.message


@pytest.mark.parametrize("body", [(group(0),), (group(0), group(4), "wgmma.wait_group.sync.aligned 1;")])
def test_a_warp_that_ends_before_its_product_is_caught(body):
    hazard = caught(in_ptx, *body)
    assert hazard.kind == "wgmma_not_waited"
    assert "the warp ends" in hazard.message


@pytest.mark.parametrize(
    "work", ["wgmma.fence.sync.aligned;", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r8];"]
)
@pytest.mark.parametrize("lone", ["eq", "ne"])
def test_lanes_of_a_warp_that_parted_wait_for_one_another_at_its_work(work, lone):
    """One lane, or all but one, come 3000 turns late, from a place that lies behind."""
    ptx = f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{{
.reg .b32 %r<12>; .reg .b64 %rd<4>; .reg .pred %p<4>; .shared .align 16 .b8 s[512];
mov.u32 %r0, %tid.x; mov.u32 %r8, s; mov.u32 %r1, 0; and.b32 %r2, %r0, 31; mad.lo.u32 %r3, %r2, 16, %r8;
st.shared.v4.b32 [%r3], {{%r0, %r0, %r0, %r0}}; bar.sync 0;
mad.lo.u32 %r8, %r2, 16, %r8;
setp.{lone}.u32 %p1, %r2, 0; @%p1 bra LATE;
WORK: {work}
ld.param.u64 %rd0, [out]; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1; st.global.b32 [%rd0], %r1; ret;
LATE: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 3000; @%p2 bra LATE;
bra WORK;
}}
"""
    result = emu.emulate(ptx, "k", 1, 32, [np.zeros(32, np.uint32)])
    late = (np.arange(32) == 0) == (lone == "eq")
    assert result.arrays[0].tolist() == np.where(late, 3000, 0).tolist()


FEW_WARPS = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x)
{
.reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .f32 %f<4>; .reg .pred %p<2>;
.shared .align 128 .b8 s[256];
mov.u32 %r0, %tid.x;
mov.u32 %r1, s;
mad.lo.u32 %r1, %r0, 4, %r1;
st.shared.u32 [%r1], %r0;
shr.u32 %r3, %r0, 5;
bar.sync %r3, 32;
st.shared.u32 [%r1], %r0;
setp.gt.u32 %p1, %r0, 99;
@!%p1 bra DONE;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd1, %rd2, %p1, 1, 1, 0, 0;
DONE:
ld.param.u64 %rd0, [x];
mad.wide.u32 %rd0, %r0, 4, %rd0;
ld.shared.u32 %r2, [%r1];
st.global.u32 [%rd0], %r2;
ret;
}
"""


def test_blocks_too_small_for_a_product_that_they_do_not_reach_run():
    result = emu.emulate(FEW_WARPS, "k", 1, 64, ["i32[64]=zeros"])
    assert result.arrays[0].tolist() == list(range(64))
