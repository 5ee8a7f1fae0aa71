"""Races between blocks on global memory: each kind planted in several kernels, and right kernels that stay silent."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hopper_prelude import kernel

import tilewright as tw
from tilewright.emu.api import decoded
from tilewright.emu.global_words import is_one_place
from tilewright.errors import EmulatorFault

F32 = np.float32
K = 'extern "C" __global__ void k'


def hazards(source: str, grid, block, args, **options) -> list:
    return tw.emulate(source, "k", grid, block, args, hazards="collect", **options).hazards


def kinds(source: str, grid, block, args, **options) -> list[str]:
    return [hazard.kind for hazard in hazards(source, grid, block, args, **options)]


TREE = """
__device__ float block_sum(float v) {
    __shared__ float s[64];
    s[threadIdx.x] = v; __syncthreads();
    for (int d = 32; d > 0; d /= 2) { if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d]; __syncthreads(); }
    return s[0];
}
"""

GLOBAL_RACE = {
    "two blocks write one place": f"{K}(float *a) {{ a[threadIdx.x] = blockIdx.x; }}",
    "tiles that overlap": f"{K}(float *a) {{ a[blockIdx.x * 63 + threadIdx.x] = blockIdx.x + threadIdx.x; }}",
    "a stencil in place": f"""{K}(float *a) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x; float l = i ? a[i - 1] : 0, r = a[i + 1];
        __syncthreads(); a[i] = (l + r) / 2;
    }}""",
    "a transpose in place": f"""{K}(float *a) {{
        __shared__ float s[8][8];
        int x = threadIdx.x % 8, y = threadIdx.x / 8, bx = blockIdx.x % 2, by = blockIdx.x / 2;
        s[y][x] = a[(by * 8 + y) * 16 + bx * 8 + x]; __syncthreads();
        a[(bx * 8 + y) * 16 + by * 8 + x] = s[x][y];
    }}""",
    "another block's partial sum without waiting": f"""{TREE} {K}(float *a) {{
        float s = block_sum(a[blockIdx.x * 64 + threadIdx.x]);
        if (threadIdx.x == 0) a[256 + blockIdx.x] = s;
        __syncthreads();
        if (blockIdx.x == 0 && threadIdx.x == 0) a[260] = a[256] + a[257] + a[258] + a[259];
    }}""",
    "a start value from block 0": f"""{K}(float *a) {{
        if (blockIdx.x == 0) a[threadIdx.x] = 0;
        __syncthreads(); atomicAdd(a + threadIdx.x, 1.0f);
    }}""",
    "bytes of one word are fine, of one byte are not": f"""{K}(unsigned char *a) {{
        a[(blockIdx.x + threadIdx.x) % 64] = blockIdx.x * 64 + threadIdx.x;
    }}""",
}
LOST_UPDATE = {
    "a counter": f"{K}(float *a) {{ if (threadIdx.x == 0) a[0] += 1; }}",
    "a histogram": f"{K}(int *a) {{ a[threadIdx.x % 8]++; }}",
    "a running maximum": f"""{K}(int *a) {{
        int v = blockIdx.x * 64 + threadIdx.x; a[threadIdx.x % 32] = max(a[threadIdx.x % 32], v);
    }}""",
    "gradients of rows summed by blocks": f"""{TREE} {K}(float *a) {{
        float s = block_sum(blockIdx.x + threadIdx.x); if (threadIdx.x < 4) a[threadIdx.x] += s * 0.5f;
    }}""",
    "split k without an atomic": f"""{K}(float *a) {{
        float s = 0; for (int k = blockIdx.x * 8; k < blockIdx.x * 8 + 8; ++k) s += k * 0.25f * threadIdx.x;
        a[threadIdx.x] = a[threadIdx.x] + s;
    }}""",
    "a volatile counter is no atomic": f"{K}(int *a) {{ atomicAdd(a + 1, 1); if (threadIdx.x == 0) a[0] -= 3; }}",
}
MESSAGE = f"""{TREE} __device__ volatile float parts[64]; __device__ unsigned done;
{K}(float *a) {{
    __shared__ bool last;
    float s = block_sum(a[blockIdx.x * 64 + threadIdx.x]);
    if (threadIdx.x == 0) {{
        parts[blockIdx.x] = s;
        FENCE;
        last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
    }}
    __syncthreads();
    if (last && threadIdx.x == 0) {{ float t = 0; for (int b = 0; b < gridDim.x; ++b) t += parts[b]; a[0] = t; }}
}}"""
PLAIN = MESSAGE.replace("volatile float parts", "float parts")
FLAG = f"""{K}(int *a, int *flag) {{
    if (blockIdx.x == 0) {{ a[threadIdx.x] = threadIdx.x + 3; __syncthreads(); if (threadIdx.x == 0) {{ TELL }} }}
    else {{ if (threadIdx.x == 0) {{ HEAR }} __syncthreads(); a[32 * blockIdx.x + threadIdx.x] = 2 * a[threadIdx.x]; }}
}}"""
SPIN = "while (atomicAdd(flag, 0) == 0) {}"
VOLATILE = "while (*(volatile int *)flag == 0) {}"
ACQUIRE = 'int v; do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory"); while (!v);'


def release(scope: str) -> str:
    return f'asm volatile("st.release.{scope}.global.s32 [%0], %1;" :: "l"(flag), "r"(1) : "memory");'


def flag(tell: str, hear: str) -> str:
    return FLAG.replace("TELL", tell).replace("HEAR", hear)


A512, FLAGS = "f32[512]=ones", ["i32[128]=zeros", "i32[1]=zeros"]
FENCE_MISSING = {
    "the last block's sum without a fence": (PLAIN.replace("FENCE;", ""), 4, 64, [A512]),
    "a fence of the block only": (PLAIN.replace("FENCE", "__threadfence_block()"), 4, 64, [A512]),
    "a flag by an atomic": (flag("atomicExch(flag, 1);", SPIN), 4, 32, FLAGS),
    "a volatile flag": (flag("*(volatile int *)flag = 1;", VOLATILE), 4, 32, FLAGS),
    "a fence after the flag": (flag("atomicExch(flag, 1); __threadfence();", SPIN), 4, 32, FLAGS),
    "a release of the block only": (flag(release("cta"), ACQUIRE), 4, 32, FLAGS),
    "an atomic of the block only": (
        f"{K}(int *a) {{ atomicAdd_block(a + threadIdx.x % 4, 1); }}", 4, 32, ["i32[4]=zeros"]
    ),
}  # fmt: skip
FLAG_RACE = {
    "every block sets a flag": f"{K}(int *a) {{ if (threadIdx.x == 3) *a = 1; }}",
    "a plain look before the atomic": f"{K}(int *a) {{ if (a[0] < 100) atomicAdd(a, 1); }}",
    "visited": f"{K}(int *a) {{ if (a[threadIdx.x] == 0) a[threadIdx.x] = 1; }}",
    "the same border twice": f"{K}(float *a) {{ int i = blockIdx.x * 63 + threadIdx.x; a[i] = 0.5f * i; }}",
    "a lock given back by a plain store": f"""{K}(int *a) {{
        if (threadIdx.x == 0) {{
            while (atomicCAS(a, 0, 1) != 0) {{}}
            __threadfence(); a[1] += 1; __threadfence(); *a = 0;
        }}
    }}""",
}
RIGHT = {
    "each block its own part": (f"{K}(float *a) {{ a[blockIdx.x * blockDim.x + threadIdx.x] *= 2; }}", 4, 64, [A512]),
    "neighbours' bytes": (f"{K}(char *a) {{ a[threadIdx.x * 4 + blockIdx.x] = 1; }}", 4, 64, ["i8[256]=zeros"]),
    "halves of vectors": (
        f"{K}(float4 *a) {{ ((float2 *)(a + threadIdx.x))[blockIdx.x] = make_float2(1, 2); }}", 2, 32, [A512]),
    "a histogram by atomics": (f"{K}(int *a) {{ atomicAdd(a + threadIdx.x % 8, 1); }}", 8, 64, ["i32[8]=zeros"]),
    "places handed out by an atomic": (
        f"{K}(int *n, int *a) {{ if (threadIdx.x & 1) a[atomicAdd(n, 1)] = threadIdx.x; }}", 4, 64,
        ["i32[1]=zeros", "i32[128]=zeros"]),
    "the last block sums, as threadFenceReduction does": (PLAIN.replace("FENCE", "__threadfence()"), 4, 64, [A512]),
    "the same with volatile parts": (MESSAGE.replace("FENCE", "__threadfence()"), 4, 64, [A512]),
    "a flag after a fence": (flag("__threadfence(); atomicExch(flag, 1);", SPIN), 4, 32, FLAGS),
    "a volatile flag after a fence": (flag("__threadfence(); *(volatile int *)flag = 1;", VOLATILE), 4, 32, FLAGS),
    "release and acquire": (flag(release("gpu"), ACQUIRE), 4, 32, FLAGS),
    "each thread's fence before the barrier": (
        flag("atomicExch(flag, 1);", SPIN).replace("+ 3;", "+ 3; __threadfence();"), 4, 32, FLAGS),
    "blocks in turns": (
        f"""{K}(int *turn, int *a) {{
            if (threadIdx.x == 0) while (atomicAdd(turn, 0) != blockIdx.x) {{}}
            __syncthreads(); __threadfence();
            a[threadIdx.x] += blockIdx.x; __threadfence(); __syncthreads();
            if (threadIdx.x == 0) atomicAdd(turn, 1);
        }}""", 5, 64, ["i32[1]=zeros", "i32[64]=zeros"]),
    "decoupled look-back": (
        f"""__device__ volatile int status[16]; __device__ int total[16], prefix[16]; __device__ unsigned next;
        {K}(const int *x, int *out) {{
            __shared__ int tile, before, s[32];
            if (threadIdx.x == 0) tile = atomicAdd(&next, 1);
            __syncthreads();
            s[threadIdx.x] = x[tile * 32 + threadIdx.x]; __syncthreads();
            if (threadIdx.x == 0) {{
                for (int i = 1; i < 32; ++i) s[i] += s[i - 1];
                total[tile] = s[31]; __threadfence(); status[tile] = 1;
                int sum = 0;
                for (int p = tile - 1; p >= 0; --p) {{
                    int seen; while ((seen = status[p]) == 0) {{}}
                    __threadfence();
                    if (seen == 2) {{ sum += prefix[p]; break; }}
                    sum += total[p];
                }}
                prefix[tile] = sum + s[31]; __threadfence(); status[tile] = 2; before = sum;
            }}
            __syncthreads();
            out[tile * 32 + threadIdx.x] = before + s[threadIdx.x];
        }}""", 16, 32, ["i32[512]=ones", "i32[512]=zeros"]),
    "two lists that a lock guards": (
        f"""{K}(int *lock, int *a) {{
            if (threadIdx.x == 0) {{
                while (atomicCAS(lock, 0, 1) != 0) {{}}
                __threadfence(); a[0] += 1; a[1] += a[0]; __threadfence(); atomicExch(lock, 0);
            }}
        }}""", 6, 32, ["i32[1]=zeros", "i32[2]=zeros"]),
    "a grid that waits for itself": (
        f"""#include <cooperative_groups.h>
        namespace cg = cooperative_groups;
        {K}(int *a) {{
            int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
            for (int round = 0; round < 3; ++round) {{
                int v = a[(i + 7) % n];
                cg::this_grid().sync();
                a[i] = v + 1;
                cg::this_grid().sync();
            }}
        }}""", 4, 64, ["i32[256]=arange"]),
    "blocks of a cluster between its barriers": (
        kernel("int *a", """
            a[blockIdx.x * 32 + threadIdx.x] = threadIdx.x;
            asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
            int v = a[(blockIdx.x ^ 1) * 32 + threadIdx.x];
            asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
            a[blockIdx.x * 32 + threadIdx.x] = v;
        """), 4, 32, ["i32[128]=zeros"]),
}  # fmt: skip
ARGS = {"unsigned char *a": ["u8[64]=zeros"], "float *a": ["f32[512]=ones"], "int *a": ["i32[512]=zeros"]}


ALONE_TOO = {LOST_UPDATE["a histogram"], LOST_UPDATE["a running maximum"], FLAG_RACE["a plain look before the atomic"]}
"""Threads of one block race as well."""


def planted(group: dict[str, str], kind: str) -> list:
    return [pytest.param(source, kind, id=name) for name, source in group.items()]


@pytest.mark.parametrize(
    ("source", "kind"),
    [*planted(GLOBAL_RACE, "global_race"), *planted(LOST_UPDATE, "lost_update"), *planted(FLAG_RACE, "flag_race")],
)
def test_blocks_that_race_are_found(source, kind):
    args = ARGS[re.search(r"void k\((.*?)\)", source)[1]]
    found = hazards(source, 4, 64, args)
    assert {hazard.kind for hazard in found} == {kind}
    assert {hazard.level for hazard in found} == {"warning" if kind == "flag_race" else "error"}
    if source not in ALONE_TOO:
        assert kinds(source, 1, 64, args) == []


@pytest.mark.parametrize("name", FENCE_MISSING)
def test_a_message_without_a_fence_of_enough_scope_is_named(name):
    source, grid, block, args = FENCE_MISSING[name]
    found = hazards(source, grid, block, args)
    assert {hazard.kind for hazard in found} == {"fence_missing"}
    assert "scope" in found[0].details or "__threadfence" in found[0].details["missing"]


@pytest.mark.parametrize("name", RIGHT)
def test_blocks_that_share_rightly_are_silent_in_any_order(name):
    source, grid, block, args = RIGHT[name]
    options = {"cluster": 2} if "cluster" in name else {}
    result = tw.emulate(source, "k", grid, block, args, hazards="collect", explore=6, **options)
    assert result.hazards == []


def test_both_sides_are_named():
    source = f"""{K}(float *a) {{
        int i = blockIdx.x * 64 + threadIdx.x;
        a[i] = i; // first
        if (blockIdx.x == 1 && threadIdx.x == 40) a[5] = 0; // second
    }}"""
    with pytest.raises(EmulatorFault) as caught:
        tw.emulate(source, "k", 3, 64, [np.zeros(192, F32)])
    hazard = caught.value.hazard
    assert (hazard.kind, hazard.line, hazard.cta, hazard.warp, hazard.lanes) == ("global_race", 4, (1, 0, 0), 1, (8,))
    assert "byte 20 of 'a'" in hazard.message
    assert "kernel.cu:3: st.global" in hazard.details["other_access"]
    assert hazard.details["other_thread"] == "block (0, 0, 0), warp 0, lane 5"


def test_blocks_of_different_batches_race_too():
    source = f"{K}(float *a) {{ if (threadIdx.x == 0 && blockIdx.x % 300 == 0) a[0] = blockIdx.x; }}"
    assert kinds(source, 400, 256, ["f32[1]=zeros"]) == ["global_race"]
    late = f"{K}(float *a, float *b) {{ b[blockIdx.x] = a[blockIdx.x]; if (blockIdx.x == 399) a[3] = 1; }}"
    assert kinds(late, 400, 256, ["f32[400]=ones", "f32[400]=zeros"])[0] == "flag_race"


def test_bulk_copies_race_with_stores_of_other_blocks():
    source = kernel(
        "int *a, int *out",
        """
        __shared__ u64 bar; __shared__ __align__(128) int s[32];
        if (threadIdx.x == 0) { init(&bar, 1); init_fence(); }
        __syncthreads();
        if (threadIdx.x == 0) { arrive_expect(&bar, 128); load(s, a + 32 * PART, 128, &bar); }
        wait(&bar, 0);
        a[32 * blockIdx.x + threadIdx.x] = s[threadIdx.x] + 1;
        """,
    )
    args = ["i32[128]=arange", "i32[1]=zeros"]
    assert kinds(source.replace("PART", "blockIdx.x"), 4, 32, args) == []
    assert kinds(source.replace("PART", "(blockIdx.x ^ 1)"), 4, 32, args) == ["global_race"]
    store = kernel(
        "int *a",
        """
        __shared__ __align__(128) int s[32];
        s[threadIdx.x] = blockIdx.x; proxy_fence(); __syncthreads();
        if (threadIdx.x == 0) { store(a + 32 * PART, s, 128); commit(); wait_done<0>(); }
        """,
    )
    assert kinds(store.replace("PART", "blockIdx.x"), 4, 32, args[:1]) == []
    assert kinds(store.replace("PART", "(blockIdx.x / 2)"), 4, 32, args[:1]) == ["global_race"]


@pytest.mark.parametrize(
    "place", ["a", "a + 1", "a + n - 1", "&((Pair *)a)->sum", "a + (threadIdx.x & 1) + 1", "shared + 1"]
)
def test_the_first_guess_of_a_compare_and_swap_is_told_wherever_its_word_lies(place):
    """NVRTC loads from [%rd1+8] and swaps at a register that it has added 8 to."""
    source = f"""struct Pair {{ int n; double sum; }};
    {K}(double *a, int n) {{
        __shared__ double shared[4];
        if (threadIdx.x < 4) shared[threadIdx.x] = 0;
        __syncthreads();
        unsigned long long *p = (unsigned long long *)({place}), old = *p, assumed;
        do {{
            assumed = old;
            old = atomicCAS(p, assumed, __double_as_longlong(1 + __longlong_as_double(assumed)));
        }} while (assumed != old);
        __syncthreads();
        if (gridDim.x == 99) a[3] = shared[1];
    }}"""
    assert kinds(source, 1, 64, ["f64[4]=zeros", "2"]) == []
    assert kinds(source, 3, 64, ["f64[4]=zeros", "2"]) == []


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    "body",
    ["int v = *(volatile int *)a; atomicExch(a, v + 1);",
     "if (*(volatile int *)a == 0) atomicExch(a, blockIdx.x + 1);",
     "int v = *(volatile int *)a; atomicCAS(a, v, v + blockIdx.x + 1);",
     "int v = blockIdx.x * 7 % 5; if (v > *(volatile int *)a) atomicExch(a, v);"],
)  # fmt: skip
def test_an_update_in_two_steps_is_lost_wherever_its_word_lies(body, offset):
    source = f"{K}(int *p) {{ int *a = p + {offset}; if (threadIdx.x == 0) {{ {body} }} }}"
    assert kinds(source, 4, 32, ["i32[4]=zeros"]) == ["lost_update"]


@pytest.mark.parametrize(
    ("body", "told"),
    [("""if (!blockIdx.x) atomicAdd(a + 1, 1);
         int *b = a, old = b[1], was;
         asm volatile("add.s64 %0, %0, 4;" : "+l"(b));
         do { was = old; old = atomicCAS(b + 1, was, was + 1); } while (was != old);""", ["flag_race"]),
     ("""if (!blockIdx.x) atomicAdd(a, 1);
         int *b = a;
         while (n--) {
             int old = *b, was; ++b;
             do { was = old; old = atomicCAS(b, was, was + 1); } while (was != old);
         }""", ["flag_race"]),
     ("""int v = *(volatile int *)(a + 1);
         asm volatile("add.s64 %0, %0, 4;" : "+l"(a)); atomicExch(a + 1, v + 1);""", []),
     ("int *p = a; while (n--) { int v = *(volatile int *)p; ++p; atomicExch(p, v + 1); }", [])],
    ids=["a guess, then on by an add", "a guess, then on in a loop", "an exchange after an add", "one in a loop"],
)  # fmt: skip
def test_a_register_that_is_written_between_names_another_place(body, told):
    assert kinds(f"{K}(int *a, int n) {{ {body} }}", 2, 1, ["i32[4]=zeros", "1"]) == told


def test_lanes_that_reach_several_buffers_are_judged_in_each():
    source = f"""{K}(float *a, float *b) {{
        float *p = threadIdx.x & 1 ? a : b; int i = (PART * 32 + threadIdx.x); p[i] += blockIdx.x;
    }}"""
    args = ["f32[128]=zeros", "f32[128]=zeros"]
    assert kinds(source.replace("PART", "blockIdx.x"), 4, 32, args) == []
    assert kinds(source.replace("PART", "(blockIdx.x / 2)"), 4, 32, args) == ["lost_update"] * 2  # of a, and of b
    own = f"{K}(int *a) {{ int *p = new int; *p = 3; a[blockIdx.x * 32 + threadIdx.x] = *p; delete p; }}"
    assert kinds(own, 4, 32, ["i32[128]=zeros"]) == []


def test_launches_one_after_another_do_not_race():
    with tw.emulator() as machine:
        a = np.random.default_rng(0).normal(size=(64, 64)).astype(F32)
        out = np.zeros_like(a)
        tw.matmul(a, a, out=out)
        tw.matmul(a, out, out=out.T.copy())
    assert all(result.hazards == [] for result in machine.results)


PLACES = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {
    .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %q;
    ld.param.u64 %rd1, [p];
    setp.eq.s32 %q, %r1, 0;
    LINES
    ld.global.u32 %r2, [ONE];
    atom.global.exch.b32 %r3, [OTHER], %r2;
    ret;
}"""


@pytest.mark.parametrize(
    ("lines", "one", "other", "same"),
    [("add.s64 %rd2, %rd1, 8;", "%rd1+8", "%rd2", True),
     ("add.s64 %rd2, %rd1, -8; mov.u64 %rd3, %rd2;", "%rd1+-8", "%rd3", True),
     ("add.s64 %rd2, %rd1, 0xFFFFFFFFFFFFFFF8;", "%rd1+-8", "%rd2", True),
     ("add.s64 %rd2, %rd1, 8;", "%rd1+4", "%rd2", False),
     ("@%q add.s64 %rd2, %rd1, 8;", "%rd1+8", "%rd2", False),
     ("mov.u64 %rd2, %rd1; mov.u64 %rd3, %rd2; add.s64 %rd2, %rd2, 4;", "%rd3", "%rd2", False),
     ("mov.u64 %rd2, %rd1; mov.u64 %rd3, %rd2; add.s64 %rd2, %rd2, 4; mov.u64 %rd4, %rd2;", "%rd3", "%rd4", False),
     ("add.s64 %rd2, %rd3, 4; add.s64 %rd3, %rd2, 4;", "%rd1", "%rd2", False)],
)  # fmt: skip
def test_places_are_one_by_what_their_registers_were_made_from(lines, one, other, same):
    text = PLACES.replace("LINES", lines).replace("ONE", one).replace("OTHER", other)
    program = decoded(text, "k", False, False)
    load, swap = program.instructions[-3:-1]
    assert is_one_place(program, load.index, load.operands[1], swap.index, swap.operands[1]) is same
