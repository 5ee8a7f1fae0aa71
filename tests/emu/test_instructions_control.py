"""Divergence, barriers, exchange within a warp, atomics and memory, on kernels written in CUDA C++."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import emu

HEAD = 'extern "C" __global__ void k'


def run(body: str, grid, block, args, head: str = "", **options):
    return emu.emulate(head + HEAD + body, "k", grid, block, args, **options)


def test_nested_divergence_and_trip_counts_that_differ_by_lane():
    body = """(int *out) {
        int t = threadIdx.x + blockIdx.x * blockDim.x, sum = 0;
        for (int i = 0; i < t % 13; ++i) {
            if (i & 1) { if (t & 2) sum += i; else sum -= 3 * i; }
            else if (t % 5 == 0) { sum ^= i; continue; }
            if (sum > 40) break;
        }
        out[t] = sum;
    }"""

    def want(t):
        total = 0
        for i in range(t % 13):
            if i & 1:
                total += i if t & 2 else -3 * i
            elif t % 5 == 0:
                total ^= i
                continue
            if total > 40:
                break
        return total

    out = run(body, 3, 100, [np.zeros(300, np.int32)]).arrays[0]
    assert out.tolist() == [want(t) for t in range(300)]


def test_threads_that_return_early_leave_the_others_running():
    body = "(int *out, int n) { int t = threadIdx.x; if (t % 3 == 0) return; for (int i = 0; i < t; ++i) out[t] += i; }"
    out = run(body, 1, 70, [np.zeros(70, np.int32), 70]).arrays[0]
    assert out.tolist() == [0 if t % 3 == 0 else t * (t - 1) // 2 for t in range(70)]


def test_switch_through_a_jump_table():
    cases = "".join(f"case {k}: r = t * {k + 3} + (r ^ {k}); break;" for k in range(12))
    out = run(f"(int *out) {{ int t = threadIdx.x, r = 7; switch (t % 14) {{ {cases} }} out[t] = r; }}", 1, 64,
              [np.zeros(64, np.int32)]).arrays[0]  # fmt: skip
    assert out.tolist() == [t * (t % 14 + 3) + (7 ^ t % 14) if t % 14 < 12 else 7 for t in range(64)]


def test_jump_table_of_ptx():
    ptx = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<8>; .reg .b64 %rd<4>;
  mov.u32 %r1, %tid.x;
  rem.u32 %r2, %r1, 3;
  table: .branchtargets L0, L1, L2;
  brx.idx %r2, table;
L0: mov.u32 %r3, 100; bra.uni DONE;
L1: mov.u32 %r3, 200; bra.uni DONE;
L2: mov.u32 %r3, 300;
DONE:
  ld.param.u64 %rd1, [out];
  mad.wide.u32 %rd1, %r1, 4, %rd1;
  st.global.u32 [%rd1], %r3;
  ret;
}"""
    out = emu.emulate(ptx, "k", 1, 32, [np.zeros(32, np.uint32)]).arrays[0]
    assert out.tolist() == [100 * (t % 3 + 1) for t in range(32)]


def test_grid_and_block_of_three_dimensions():
    body = """(int *out) {
        int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        out[block * 30 + t] = blockIdx.z * 100000 + blockIdx.y * 10000 + blockIdx.x * 1000
                            + threadIdx.z * 100 + threadIdx.y * 10 + threadIdx.x;
    }"""
    out = run(body, (3, 2, 2), (5, 3, 2), [np.zeros(360, np.int32)]).arrays[0]
    want = [
        bz * 100000 + by * 10000 + bx * 1000 + tz * 100 + ty * 10 + tx
        for bz in range(2) for by in range(2) for bx in range(3)
        for tz in range(2) for ty in range(3) for tx in range(5)
    ]  # fmt: skip
    assert out.tolist() == want


def test_a_block_that_is_no_multiple_of_a_warp():
    body = """(int *out) {
        __shared__ int s[45];
        s[threadIdx.x] = threadIdx.x * threadIdx.x; __syncthreads();
        out[blockIdx.x * 45 + threadIdx.x] = s[44 - threadIdx.x];
    }"""
    out = run(body, 4, 45, [np.zeros(180, np.int32)]).arrays[0]
    assert out.tolist() == [(44 - t) ** 2 for _ in range(4) for t in range(45)]


def test_a_grid_larger_than_one_batch():
    body = "(int *out) { out[blockIdx.x * blockDim.x + threadIdx.x] += blockIdx.x; }"
    out = run(body, 300, 96, [np.zeros(300 * 96, np.int32)]).arrays[0]
    assert (out == np.repeat(np.arange(300), 96)).all()


def test_parameters_passed_as_a_struct():
    head = "struct P { char tag; int n; double scale; const float *in; float *out; short last; };"
    body = """(const __grid_constant__ P p) { int t = threadIdx.x;
        if (t < p.n) p.out[t] = p.in[t] * (float)p.scale + p.tag + p.last; }"""
    ptx_source = head + HEAD + body
    import struct

    from tilewright.jit import compile_source

    kernel = compile_source(ptx_source, entry="k")
    memory = emu.GlobalMemory()
    values = np.arange(64, dtype=np.float32)
    a, out = memory.add(values, "in", read_only=True), memory.add(np.zeros(64, np.float32), "out")
    params = struct.pack("<b3xid QQ h6x".replace(" ", ""), 5, 60, 0.5, a, out, -3)
    emu.run(kernel.ptx, "k", grid=(1, 1, 1), block=(64, 1, 1), params=params, memory=memory)
    got = memory.read(out, 256).view(np.float32)
    assert got.tolist() == [t * 0.5 + 2 if t < 60 else 0 for t in range(64)]


def test_local_memory_arrays_and_generic_addresses():
    body = """(int *out, int n) {
        int local[16]; __shared__ int s[64];
        for (int i = 0; i < 16; ++i) local[i] = i * threadIdx.x;
        s[threadIdx.x] = -1; __syncthreads();
        int sum = 0;
        for (int i = 0; i < n; ++i) sum += local[(i * 5 + threadIdx.x) & 15];
        int *where = threadIdx.x & 1 ? &s[threadIdx.x] : &out[64 + threadIdx.x];
        if (threadIdx.x % 4 == 2) where = &local[3];
        *where = sum; out[threadIdx.x] = s[threadIdx.x] + local[3];
    }"""
    result = run(body, 1, 64, [np.zeros(128, np.int32), 9])
    out = result.arrays[0]
    for t in range(64):
        total = sum((i * 5 + t) % 16 * t for i in range(9))
        assert out[t] == (total if t & 1 else -1) + (total if t % 4 == 2 else 3 * t)
        assert out[64 + t] == (total if t % 4 == 0 else 0)
    assert result.counters.local_load_bytes >= 64 * 9 * 4
    # The store through `where` goes to all three memories, and counts in each.
    rows = [row for row in result.counters.per_instruction if row.ptx.startswith("st.u32")]
    assert [row.requests for row in rows] == [2 * 2]
    assert result.counters.shared_store_requests == 2 + 2


def test_constants_and_module_variables():
    head = """__constant__ float table[4] = {1, 20, 300, 4000}; __device__ int counter = 41;
        __device__ const int *where = &counter;"""
    body = "(float *out) { out[threadIdx.x] = table[threadIdx.x & 3] + counter + *where; }"
    out = run(body, 1, 32, [np.zeros(32, np.float32)], head).arrays[0]
    assert out.tolist() == [[1, 20, 300, 4000][t & 3] + 82 for t in range(32)]


@pytest.mark.parametrize(
    ("call", "source"),
    [
        ("__shfl_xor_sync(~0u, v, 5)", lambda t: t ^ 5),
        ("__shfl_sync(~0u, v, t * 7)", lambda t: t * 7 % 32),
        ("__shfl_up_sync(~0u, v, 3)", lambda t: t - 3 if t >= 3 else t),
        ("__shfl_down_sync(~0u, v, 9)", lambda t: t + 9 if t + 9 < 32 else t),
        ("__shfl_sync(~0u, v, t + 1, 8)", lambda t: t // 8 * 8 + (t + 1) % 8),
        ("__shfl_up_sync(~0u, v, 2, 16)", lambda t: t - 2 if t % 16 >= 2 else t),
        ("__shfl_down_sync(~0u, v, 5, 8)", lambda t: t + 5 if t % 8 + 5 < 8 else t),
        ("__shfl_xor_sync(~0u, v, 12, 8)", lambda t: t ^ 12 if (t ^ 12) <= t // 8 * 8 + 7 else t),
    ],
)
def test_shuffles(call, source):
    body = f"(int *out) {{ int t = threadIdx.x & 31, v = threadIdx.x * 10; out[threadIdx.x] = {call}; }}"
    out = run(body, 1, 64, [np.zeros(64, np.int32)]).arrays[0]
    assert out.tolist() == [(warp * 32 + source(t)) * 10 for warp in range(2) for t in range(32)]


def test_a_shuffle_waits_for_the_lanes_it_names():
    body = """(int *out) {
        int v = threadIdx.x;
        if (threadIdx.x & 1) { for (int i = 0; i < threadIdx.x; ++i) v = v * 3 + 1; }
        unsigned odd = __ballot_sync(~0u, threadIdx.x & 1);
        if (threadIdx.x < 8) v += __shfl_xor_sync(0xff, v, 1);
        out[threadIdx.x] = v + (odd == 0xaaaaaaaa);
    }"""

    def value(t):
        v = t
        for _ in range(t if t & 1 else 0):
            v = (v * 3 + 1) % 2**32
        return v

    out = run(body, 1, 32, [np.zeros(32, np.uint32)]).arrays[0]
    assert out.tolist() == [(value(t) + (value(t ^ 1) if t < 8 else 0) + 1) % 2**32 for t in range(32)]


def test_votes_matches_and_reductions():
    body = """(unsigned *out) {
        unsigned t = threadIdx.x; unsigned *o = out + t * 8;
        o[0] = __any_sync(~0u, t == 40); o[1] = __all_sync(~0u, t < 40);
        o[2] = __match_any_sync(~0u, t % 5);
        int same; o[3] = __match_all_sync(~0u, t / 32, &same); o[4] = same;
        o[5] = __reduce_add_sync(~0u, t); o[6] = __reduce_max_sync(~0u, (int)(t ^ 21) - 30); o[7] = __activemask();
    }"""
    out = run(body, 1, 64, [np.zeros(512, np.uint32)]).arrays[0].reshape(64, 8)
    for t in range(64):
        warp = range(t // 32 * 32, t // 32 * 32 + 32)
        match = sum(1 << (u % 32) for u in warp if u % 5 == t % 5)
        best = max((u ^ 21) - 30 for u in warp) % 2**32
        assert out[t].tolist() == [t >= 32, t < 32, match, 2**32 - 1, 1, sum(warp), best, 2**32 - 1]


def test_a_vote_may_be_spelled_with_sync_last():
    body = """(unsigned *out) {
        unsigned t = threadIdx.x, b; int p;
        asm("{.reg .pred q; setp.lt.u32 q, %2, 5; vote.ballot.sync.b32 %0, q, 0xffffffff;"
            "vote.any.sync.pred q, q, 0xffffffff; selp.s32 %1, 1, 0, q;}" : "=r"(b), "=r"(p) : "r"(t));
        out[t] = b + p;
    }"""
    assert run(body, 1, 64, [np.zeros(64, np.uint32)]).arrays[0].tolist() == [32] * 32 + [0] * 32


def test_barrier_reductions_and_named_barriers():
    body = """(int *out) {
        int t = threadIdx.x;
        __shared__ int s[128];
        int n = __syncthreads_count(t % 3 == 0);
        int any = __syncthreads_or(t == 5), all = __syncthreads_and(t < 100);
        if (t < 64) {  // the first two warps exchange through a barrier of their own
            s[t] = t; asm volatile("bar.sync 1, 64;" ::: "memory");
            out[t] = s[63 - t] + n * 1000 + any * 100000 + all * 1000000;
        } else {
            s[t] = 2 * t; asm volatile("bar.sync 2, 64;" ::: "memory"); out[t] = s[191 - t] + n * 1000;
        }
    }"""
    out = run(body, 2, 128, [np.zeros(128, np.int32)]).arrays[0]
    assert out.tolist() == [63 - t + 43000 + 100000 if t < 64 else 2 * (191 - t) + 43000 for t in range(128)]


def test_barriers_named_by_a_register_and_under_a_guard():
    body = """(int *out) {
        __shared__ int s[128]; int t = threadIdx.x, group = t / 64;
        s[t] = t;
        asm volatile("bar.sync %0, 64;" :: "r"(1 + group) : "memory");
        int v = s[group * 128 + 63 - t];
        asm volatile("{ .reg .pred p; setp.lt.u32 p, %0, 64; @p bar.sync 5, 64; }" :: "r"(t) : "memory");
        out[t] = v;
    }"""
    out = run(body, 3, 128, [np.zeros(128, np.int32)]).arrays[0]
    assert out.tolist() == [t // 64 * 128 + 63 - t for t in range(128)]


def test_producers_that_arrive_without_waiting():
    body = """(int *out) {
        __shared__ int s[32];
        int t = threadIdx.x;
        for (int round = 0; round < 3; ++round) {
            if (t < 32) {
                s[t] = t + round; asm volatile("bar.arrive 1, 64;" ::: "memory");
                asm volatile("bar.sync 2, 64;" ::: "memory");
            } else {
                asm volatile("bar.sync 1, 64;" ::: "memory"); out[t - 32] += s[63 - t];
                asm volatile("bar.arrive 2, 64;" ::: "memory");
            }
        }
    }"""
    out = run(body, 1, 64, [np.zeros(32, np.int32)]).arrays[0]
    assert out.tolist() == [3 * (31 - t) + 3 for t in range(32)]


def test_atomics_go_one_after_another():
    body = """(int *out, float *f, unsigned long long *u) {
        __shared__ int s[2];
        int t = threadIdx.x;
        if (t < 2) s[t] = 0;
        __syncthreads();
        out[8 + t] = atomicAdd(&s[t & 1], t);
        __syncthreads();
        if (t == 0) { out[0] = s[0]; out[1] = s[1]; }
        atomicMax(&out[2], t); atomicAdd(f, 0.5f); atomicAdd(u, (unsigned long long)t << 33);
        atomicXor(&out[3], t); atomicInc((unsigned *)&out[4], 9); atomicCAS(&out[5], t, t + 1); atomicExch(&out[6], t);
    }"""
    out, f, u = run(body, 1, 64, [np.zeros(72, np.int32), np.zeros(1, np.float32), np.zeros(1, np.uint64)]).arrays
    assert out[:7].tolist() == [sum(range(0, 64, 2)), sum(range(1, 64, 2)), 63, 0, 64 % 10, 64, 63]
    assert out[8:].tolist() == [sum(range(t & 1, t, 2)) for t in range(64)]
    assert f[0] == 32
    assert int(u[0]) == sum(range(64)) << 33


@pytest.mark.parametrize("kind", ["char", "unsigned char", "short", "float2", "int4", "double2"])
def test_loads_and_stores_of_every_width(kind):
    body = f"""({kind} *out, const {kind} *in) {{ __shared__ {kind} s[32];
        s[threadIdx.x] = in[threadIdx.x ^ 3]; __syncthreads(); out[threadIdx.x] = s[31 - threadIdx.x];
        }}"""
    size, dtype = {"char": (1, "i1"), "unsigned char": (1, "u1"), "short": (2, "i2"), "float2": (8, "f4"),
                   "int4": (16, "i4"), "double2": (16, "f8")}[kind]  # fmt: skip
    data = np.random.default_rng(0).integers(0, 256, (32, size), dtype=np.uint8)
    out = run(body, 1, 32, [np.zeros_like(data).view(dtype), data.view(dtype)]).arrays[0].view(np.uint8)
    assert (out == data[[(31 - t) ^ 3 for t in range(32)]]).all()


def test_spinning_lanes_do_not_starve_those_they_wait_for():
    body = """(volatile int *flag, int *out) {
        if (threadIdx.x == 0) { while (flag[0] == 0); out[0] = 7; flag[1] = 1; }
        else if (threadIdx.x == 33) {
            for (int i = 0; i < 50; ++i) out[2] += i;
            flag[0] = 1; while (flag[1] == 0); out[1] = 8;
        }
    }"""
    _, out = run(body, 1, 64, [np.zeros(2, np.int32), np.zeros(4, np.int32)]).arrays
    assert out.tolist() == [7, 8, 1225, 0]


PTX = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n"
STORE = "ld.param.u64 %rd1, [out];\nmad.wide.u32 %rd1, %r1, 4, %rd1;\nst.global.u32 [%rd1], %r3;\nret;\n"


def test_a_shuffle_waits_for_lanes_that_come_to_it_from_further_down():
    ptx = (
        PTX
        + f""".reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<2>;
        mov.u32 %r1, %tid.x; mov.u32 %r2, %r1; and.b32 %r4, %r1, 1; setp.eq.u32 %p1, %r4, 1;
        @%p1 bra LATER;
        JOIN: shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;
        {STORE}
        LATER: add.u32 %r2, %r2, 100; bra.uni JOIN;
    }}"""
    )
    out = emu.emulate(ptx, "k", 1, 64, [np.zeros(64, np.uint32)]).arrays[0]
    assert out.tolist() == [(t ^ 1) + (100 if (t ^ 1) & 1 else 0) for t in range(64)]


def test_a_value_made_further_down_survives_until_it_is_used():
    ptx = (
        PTX
        + f""".reg .b32 %r<8>; .reg .b64 %rd<2>;
        mov.u32 %r1, %tid.x; bra.uni LATER;
        BACK: add.u32 %r4, %r1, 5; add.u32 %r5, %r1, 7; add.u32 %r5, %r4, %r5; add.u32 %r3, %r2, %r5;
        {STORE}
        LATER: mul.lo.u32 %r2, %r1, 1000; bra.uni BACK;
    }}"""
    )
    out = emu.emulate(ptx, "k", 1, 32, [np.zeros(32, np.uint32)]).arrays[0]
    assert out.tolist() == [1000 * t + 2 * t + 12 for t in range(32)]


def test_inline_assembly_with_registers_of_its_own():
    body = """(int *out) {
        int v = threadIdx.x;
        asm volatile("{ .reg .pred p; .reg .b32 q; setp.gt.s32 p, %0, 10; @p mov.u32 q, 1; @!p mov.u32 q, 2;"
                     "{ .reg .b32 q; mov.u32 q, 99; } add.s32 %0, %0, q; }" : "+r"(v));
        out[threadIdx.x] = v;
    }"""
    out = run(body, 1, 32, [np.zeros(32, np.int32)]).arrays[0]
    assert out.tolist() == [t + (1 if t > 10 else 2) for t in range(32)]


COPY = """
__device__ void copy(void *to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::
                 "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ void wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
"""


def test_asynchronous_copies_fill_with_zeros_and_read_nothing_they_need_not():
    body = """(float4 *out, const float *in, int n) {
        __shared__ float4 s[32];
        int t = threadIdx.x, left = n - 4 * t, bytes = left >= 4 ? 16 : left > 0 ? 4 * left : 0;
        copy(&s[t], in + 4 * t, bytes); commit(); wait<0>(); __syncthreads();
        out[t] = s[t ^ 1];
    }"""
    data = np.arange(1, 51, dtype=np.float32)
    out = run(body, 1, 32, [np.full((32, 4), np.nan, np.float32), data, 50], COPY).arrays[0]
    padded = np.zeros(128, np.float32)
    padded[:50] = data
    assert (out == padded.reshape(32, 4)[[t ^ 1 for t in range(32)]]).all()


def test_a_pipeline_of_asynchronous_copies():
    body = """(float4 *out, const float4 *in, int tiles) {
        __shared__ float4 s[3][32];
        int t = threadIdx.x; float4 sum = make_float4(0, 0, 0, 0);
        for (int k = 0; k < 2; ++k) { if (k < tiles) copy(&s[k][t], in + k * 32 + t, 16); commit(); }
        for (int k = 0; k < tiles; ++k) {
            wait<1>(); __syncthreads();
            float4 v = s[k % 3][31 - t]; sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
            if (k + 2 < tiles) copy(&s[(k + 2) % 3][t], in + (k + 2) * 32 + t, 16);
            commit();
        }
        out[t] = sum;
    }"""
    data = np.random.default_rng(2).standard_normal((7, 32, 4)).astype(np.float32)
    result = run(body, 1, 32, [np.zeros((32, 4), np.float32), data, 7], COPY)
    want = np.zeros((32, 4), np.float32)
    for tile in data:
        want += tile[::-1]
    assert (result.arrays[0] == want).all()
    assert result.counters.async_copy_bytes == 7 * 32 * 16


def test_cache_policies_change_nothing():
    body = """(float4 *out, const float4 *in) {
        unsigned long long policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        __shared__ float4 s[32]; float4 v;
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::
                     "r"((unsigned)__cvta_generic_to_shared(&s[threadIdx.x])), "l"(in + threadIdx.x), "l"(policy)
                     : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(in + threadIdx.x), "l"(policy));
        v.x += s[threadIdx.x].x;
        asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::
                     "l"(out + threadIdx.x), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "l"(policy) : "memory");
    }"""
    data = np.arange(128, dtype=np.float32).reshape(32, 4)
    out = run(body, 1, 32, [np.zeros_like(data), data]).arrays[0]
    assert (out[:, 0] == 2 * data[:, 0]).all()
    assert (out[:, 1:] == data[:, 1:]).all()


def test_tiles_of_a_warp_vote_match_and_reduce_each_for_themselves():
    body = """(unsigned *out) {
        unsigned t = threadIdx.x, tile = 0xffu << (t & 24), *o = out + 6 * t; int all;
        o[0] = __ballot_sync(tile, t % 3 == 0);
        o[1] = __any_sync(tile, t == 9) * 2 + __all_sync(tile, t != 9);
        o[2] = __reduce_add_sync(tile, t);
        o[3] = __match_any_sync(tile, t % 16);
        o[4] = __match_all_sync(tile, t < 20, &all);
        o[5] = __reduce_min_sync(tile, t ^ 5);
    }"""
    out = run(body, 1, 64, ["u32[64,6]=zeros"]).arrays[0]
    for t in range(64):
        tile = range(t & ~7, (t & ~7) + 8)
        bits = [1 << k % 32 for k in tile]
        agree = len({k < 20 for k in tile}) == 1
        assert out[t].tolist() == [
            sum(b for k, b in zip(tile, bits, strict=True) if k % 3 == 0),
            (9 in tile) * 2 + (9 not in tile),
            sum(tile),
            1 << t % 32,
            sum(bits) if agree else 0,
            min(k ^ 5 for k in tile),
        ]
