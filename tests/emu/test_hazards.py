"""Every catch, on a small kernel written wrong on purpose, beside the same kernel written right."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import emu
from tilewright.emu.api import decoded
from tilewright.errors import EmulatorFault, UnknownInstruction
from tilewright.jit import compile_source

HEAD = 'extern "C" __global__ void k'
COPY = """
__device__ __forceinline__ void copy(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::
                 "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
"""


def source(body: str, head: str = "") -> str:
    return f"{head}{HEAD}{body}"


def hazard_of(text: str, grid, block, args, **options) -> emu.Hazard:
    with pytest.raises(EmulatorFault) as caught:
        emu.emulate(text, "k", grid, block, args, **options)
    assert caught.value.hazard is not None
    return caught.value.hazard


def runs_clean(text: str, grid, block, args, **options) -> None:
    assert emu.emulate(text, "k", grid, block, args, **options).hazards == []


def line_of(text: str, marker: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if marker in line)


INDEX = """(float *a, int n) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    GUARD a[i] = i; // here
}"""


def test_out_of_bounds_names_line_block_warp_and_lanes():
    text = source(INDEX.replace("GUARD", ""))
    hazard = hazard_of(text, 2, 128, [np.zeros(250, np.float32), 250])
    assert hazard.kind == "out_of_bounds"
    assert (hazard.file, hazard.line) == ("kernel.cu", line_of(text, "// here"))
    assert "a[i] = i" in hazard.source_text
    assert "st.global.f32" in hazard.ptx
    assert (hazard.cta, hazard.warp, hazard.lanes) == ((1, 0, 0), 3, tuple(range(26, 32)))
    assert "just past the end of 'a' (1000 bytes)" in str(hazard)
    runs_clean(source(INDEX.replace("GUARD", "if (i < n)")), 2, 128, [np.zeros(250, np.float32), 250])


def test_one_byte_past_a_buffer_is_out_of_bounds_though_another_follows():
    hazard = hazard_of(source("(char *a, char *b) { a[threadIdx.x] = 1; }"), 1, 17, ["i8[16]=zeros", "i8[4096]=zeros"])
    assert hazard.kind == "out_of_bounds"
    assert hazard.lanes == (16,)


def test_null_pointer_is_out_of_bounds():
    hazard = hazard_of(source("(float *a) { *a = 1; }"), 1, 1, [0])
    assert hazard.kind == "out_of_bounds"
    assert "null" in hazard.message


def test_shared_out_of_bounds():
    text = source("(int *a, int n) { __shared__ int s[32]; s[threadIdx.x + n] = 1; __syncthreads(); a[0] = s[n]; }")
    hazard = hazard_of(text, 1, 32, ["i32[1]=zeros", 1])
    assert (hazard.kind, hazard.address, hazard.lanes) == ("out_of_bounds", 128, (31,))
    runs_clean(text, 1, 32, ["i32[1]=zeros", 0])


@pytest.mark.parametrize("memory", ["global", "shared"])
def test_misaligned_vector_access(memory):
    where = "a" if memory == "global" else "s"
    text = source(f"""(const float *a, float *out, int shift) {{
        __shared__ __align__(16) float s[256]; for (int i = 0; i < 256; ++i) s[i] = i; __syncthreads();
        float4 v = *(float4 *)({where} + 4 * threadIdx.x + shift); // here
        out[threadIdx.x] = v.x + v.w;
    }}""")
    hazard = hazard_of(text, 1, 32, ["f32[256]=random", "f32[32]=zeros", 1])
    assert (hazard.kind, hazard.line) == ("misaligned", line_of(text, "// here"))
    assert "16 bytes" in hazard.message
    runs_clean(text, 1, 32, ["f32[256]=random", "f32[32]=zeros", 4])


def test_write_to_read_only():
    kernel = source("(float *a) { a[threadIdx.x] = 1; }")
    from tilewright.jit import compile_source

    memory = emu.GlobalMemory()
    address = memory.add(np.zeros(32, np.float32), "weights", read_only=True)
    ptx = compile_source(kernel, entry="k").ptx
    with pytest.raises(EmulatorFault, match="weights") as caught:
        emu.run(ptx, "k", grid=(1, 1, 1), block=(32, 1, 1), params=address.to_bytes(8, "little"), memory=memory)
    assert caught.value.hazard.kind == "write_to_read_only"


def test_uninitialised_shared_read():
    body = """(float *a, int n) {
        __shared__ float s[64]; int t = threadIdx.x;
        if (t < n) s[t] = t;
        __syncthreads();
        a[t] = s[t]; // here
    }"""
    hazard = hazard_of(source(body), 1, 64, ["f32[64]=zeros", 40])
    assert (hazard.kind, hazard.line) == ("uninitialised_shared_read", line_of(source(body), "// here"))
    assert (hazard.warp, hazard.lanes) == (1, tuple(range(8, 32)))
    runs_clean(source(body), 1, 64, ["f32[64]=zeros", 64])


def test_uninitialised_half_of_a_word_is_seen():
    body = """(short *a, int n) { __shared__ short s[64]; if (threadIdx.x % 2 < n) s[threadIdx.x] = 1;
        __syncthreads(); a[threadIdx.x] = s[threadIdx.x]; }"""
    assert hazard_of(source(body), 1, 64, ["i16[64]=zeros", 1]).kind == "uninitialised_shared_read"
    runs_clean(source(body), 1, 64, ["i16[64]=zeros", 2])


def test_shared_memory_of_the_block_before_is_not_seen_by_the_next():
    body = """(float *a) { __shared__ float s[32]; if (blockIdx.x == 0) s[threadIdx.x] = 1; __syncthreads();
        a[threadIdx.x] = s[threadIdx.x]; }"""
    hazard = hazard_of(source(body), 400, 1024 // 32, ["f32[32]=zeros"])
    assert (hazard.kind, hazard.cta) == ("uninitialised_shared_read", (1, 0, 0))


RACE = """(float *a) {{
    __shared__ float s[64]; int t = threadIdx.x;
    s[t] = t; // write
    {first}
    float v = s[63 - t]; // read
    {second}
    s[t] = v * 2; // again
    __syncthreads();
    a[64 * blockIdx.x + t] = s[t];
}}"""


def test_missing_barrier_between_write_and_read():
    text = source(RACE.format(first="", second="__syncthreads();"))
    hazard = hazard_of(text, 3, 64, ["f32[192]=zeros"])
    assert hazard.kind == "shared_race"
    assert hazard.line == line_of(text, "// read")
    assert f"kernel.cu:{line_of(text, '// write')}" in hazard.details["other_access"]
    assert {hazard.warp, hazard.details["other_warp"]} == {0, 1}


def test_missing_barrier_between_read_and_write():
    text = source(RACE.format(first="__syncthreads();", second=""))
    hazard = hazard_of(text, 3, 64, ["f32[192]=zeros"])
    assert hazard.kind == "shared_race"
    assert {hazard.line, line_of(text, "// again")} == {line_of(text, "// read"), line_of(text, "// again")}
    assert f"kernel.cu:{line_of(text, '// again')}" in hazard.details["other_access"]


def test_the_same_kernel_with_both_barriers_is_clean():
    runs_clean(source(RACE.format(first="__syncthreads();", second="__syncthreads();")), 3, 64, ["f32[192]=zeros"])


def test_one_warp_needs_no_barrier():
    body = (
        "(float *a) { __shared__ float s[32]; s[threadIdx.x] = 1; __syncwarp(); "
        "a[32 * blockIdx.x + threadIdx.x] = s[31 - threadIdx.x]; }"
    )
    runs_clean(source(body), 2, 32, ["f32[64]=zeros"])


def test_two_warps_that_write_one_word_in_one_step():
    body = """(float *a) {{ __shared__ float s[64]; s[threadIdx.x % {n}] = threadIdx.x; __syncthreads();
        a[threadIdx.x] = s[threadIdx.x % {n}]; }}"""
    hazard = hazard_of(source(body.format(n=32)), 1, 64, ["f32[64]=zeros"])
    assert hazard.kind == "shared_race"
    assert "the same instruction" in hazard.message
    runs_clean(source(body.format(n=64)), 1, 64, ["f32[64]=zeros"])


@pytest.mark.parametrize("sync", ["__syncthreads();", 'asm volatile("bar.sync 1, 128;" ::: "memory");'])
@pytest.mark.parametrize("value", ["1", "3 * n + blockIdx.x"])
def test_warps_that_store_one_value_to_one_place_are_warned_of_and_who_reads_it_races(sync, value):
    body = f"""(int *a, int n) {{ __shared__ int s; if (threadIdx.x == 0) s = 0; {sync}
        if (threadIdx.x % 8 == 3) s = {value}; SYNC a[threadIdx.x] = s; }}"""
    right, options = source(body.replace("SYNC", sync)), {"hazards": "collect"}
    (warning,) = emu.emulate(right, "k", 1, 128, ["i32[128]=zeros", 5], **options).hazards
    assert (warning.kind, warning.level) == ("flag_race", "warning")
    assert "both of one value" in warning.message
    wrong = emu.emulate(source(body.replace("SYNC", "")), "k", 1, 128, ["i32[128]=zeros", 5], **options)
    assert "shared_race" in {hazard.kind for hazard in wrong.hazards}
    other = right.replace(f"s = {value};", f"s = {value} + threadIdx.x / 32;")
    assert "shared_race" in {
        hazard.kind for hazard in emu.emulate(other, "k", 1, 128, ["i32[128]=zeros", 5], **options).hazards
    }


@pytest.mark.parametrize("value", ["atomicAdd(a, 1)", "threadIdx.x < 64 ? 7 : n", "(int)__activemask()"])
@pytest.mark.parametrize("sync", ["__syncthreads();", 'asm volatile("bar.sync 1, 128;" ::: "memory");'])
def test_warps_that_store_values_which_may_differ_race(value, sync):
    body = f"""(int *a, int n) {{ __shared__ int s; if (threadIdx.x % 32 == 3) s = {value}; {sync}
        a[threadIdx.x] = s; }}"""
    assert hazard_of(source(body), 1, 128, ["i32[128]=zeros", 5]).kind == "shared_race"


def test_neighbouring_bytes_of_one_word_are_no_race():
    body = """(char *a) { __shared__ char s[64]; s[threadIdx.x % 32 * 2 + threadIdx.x / 32] = 1;
        __syncthreads(); a[threadIdx.x] = s[threadIdx.x]; }"""
    runs_clean(source(body), 1, 64, ["i8[64]=zeros"])


def test_race_in_the_last_of_many_equal_iterations_is_seen():
    body = """(float *a, int last) {
        __shared__ float s[64]; int t = threadIdx.x; float sum = 0;
        for (int i = 0; i < 20; ++i) {
            s[t] = i; __syncthreads();
            sum += s[i == last ? t ^ 32 : t];
            if (i != 19 || last < 0) __syncthreads();
            else s[t] = 0;
        }
        a[t] = sum;
    }"""
    hazard = hazard_of(source(body), 1, 64, ["f32[64]=zeros", 19])
    assert hazard.kind == "shared_race"
    runs_clean(source(body), 1, 64, ["f32[64]=zeros", -1])


def test_atomics_do_not_race_with_one_another_but_with_plain_reads():
    body = """(int *a) {{ __shared__ int s; if (threadIdx.x == 0) s = 0; __syncthreads(); atomicAdd(&s, 1);
        {barrier} a[threadIdx.x] = s; }}"""
    runs_clean(source(body.format(barrier="__syncthreads();")), 1, 128, ["i32[128]=zeros"])
    assert hazard_of(source(body.format(barrier="")), 1, 128, ["i32[128]=zeros"]).kind == "shared_race"


NAMED = """(float *a) {{
    __shared__ float s[96]; int t = threadIdx.x;
    s[t] = t;
    if (t < 64) {{ asm volatile("bar.sync 1, 64;" ::: "memory"); a[96 * blockIdx.x + t] = s[{index}]; }}
}}"""


def test_a_named_barrier_orders_only_the_warps_that_take_part():
    runs_clean(source(NAMED.format(index="63 - t")), 2, 96, ["f32[192]=zeros"])
    hazard = hazard_of(source(NAMED.format(index="95 - t")), 2, 96, ["f32[192]=zeros"])
    assert hazard.kind == "shared_race"
    assert hazard.details["other_warp"] == 2


def test_a_consumer_that_frees_a_buffer_too_early_races_with_the_producer():
    body = """(float *a) {{
        __shared__ float s[32]; int t = threadIdx.x;
        for (int i = 0; i < 3; ++i) {{
            if (t < 32) {{
                s[t] = i; asm volatile("bar.arrive 1, 64;" ::: "memory");
                asm volatile("bar.sync 2, 64;" ::: "memory");
            }}
            else {{
                asm volatile("bar.sync 1, 64;" ::: "memory");
                {early}
                a[t] += s[63 - t];
                {late}
            }}
        }}
    }}"""
    arrive = 'asm volatile("bar.arrive 2, 64;" ::: "memory");'
    runs_clean(source(body.format(early="", late=arrive)), 1, 64, ["f32[64]=zeros"])
    assert hazard_of(source(body.format(early=arrive, late="")), 1, 64, ["f32[64]=zeros"]).kind == "shared_race"


PIPELINE = """(float *a) {{
    __shared__ float s[64]; int t = threadIdx.x; {init}
    copy(s + t, a + t); commit(); // copy
    {wait}
    {barrier}
    a[64 + t] = s[63 - t]; // read
}}"""


@pytest.mark.parametrize("init", ["", "s[t] = 0; __syncthreads();"])
@pytest.mark.parametrize("wait", ["", "wait<1>();"])
def test_asynchronous_copy_read_before_its_wait(init, wait):
    text = source(PIPELINE.format(init=init, wait=wait, barrier="__syncthreads();"), COPY)
    hazard = hazard_of(text, 2, 64, ["f32[128]=arange"])
    assert (hazard.kind, hazard.line) == ("async_copy_not_waited", line_of(text, "// read"))
    assert "cp.async" in hazard.details["the_copy"]


def test_asynchronous_copy_read_by_another_warp_before_a_barrier():
    text = source(PIPELINE.format(init="", wait="wait<0>();", barrier=""), COPY)
    hazard = hazard_of(text, 2, 64, ["f32[128]=arange"])
    assert hazard.kind == "shared_race"
    assert "asynchronous copy" in hazard.message


def test_asynchronous_copy_waited_for_by_its_threads_before_the_barrier_is_clean():
    runs_clean(
        source(PIPELINE.format(init="", wait="wait<0>();", barrier="__syncthreads();"), COPY),
        1,
        64,
        ["f32[128]=arange"],
    )


def test_asynchronous_copy_into_a_buffer_that_others_still_read():
    body = """(float *a) {{
        __shared__ float s[64]; int t = threadIdx.x; s[t] = t; __syncthreads();
        a[64 + t] = s[63 - t];
        {barrier}
        copy(s + t, a + t); commit(); wait<0>(); __syncthreads();
        a[t] = s[t];
    }}"""
    assert hazard_of(source(body.format(barrier=""), COPY), 1, 64, ["f32[128]=arange"]).kind == "shared_race"
    runs_clean(source(body.format(barrier="__syncthreads();"), COPY), 1, 64, ["f32[128]=arange"])


def test_bytes_of_a_copy_in_flight_must_not_be_written():
    body = """(float *a) {
        __shared__ float s[32]; int t = threadIdx.x;
        copy(s + t, a + t); commit();
        s[t] = 1; // here
        wait<0>(); __syncthreads(); a[t] = s[t];
    }"""
    hazard = hazard_of(source(body, COPY), 1, 32, ["f32[32]=arange"])
    assert (hazard.kind, hazard.line) == ("async_copy_not_waited", line_of(source(body, COPY), "// here"))


def test_data_of_a_copy_lands_at_the_wait_and_not_before():
    body = """(float *a) {
        __shared__ float s[32]; int t = threadIdx.x; s[t] = -1;
        copy(s + t, a + t); commit();
        float before = s[t];
        wait<0>(); a[t] = before * 1000 + s[t];
    }"""
    result = emu.emulate(source(body, COPY), "k", 1, 32, ["f32[32]=arange"], hazards="collect")
    assert result.arrays[0].tolist() == [-1000 + t for t in range(32)]
    assert {hazard.kind for hazard in result.hazards} == {"async_copy_not_waited"}


def test_barrier_not_reached_by_all_warps():
    body = "(float *a) { a[threadIdx.x] = 1;\n if (threadIdx.x < 32) __syncthreads(); // here\n a[threadIdx.x] = 2; }"
    hazard = hazard_of(source(body), 1, 96, ["f32[96]=zeros"])
    assert (hazard.kind, hazard.line) == ("barrier_divergence", line_of(source(body), "// here"))
    assert ";;" not in str(hazard)
    waits = hazard.details["where_each_waits"]
    assert "wait at kernel.cu:2: bar.sync 0;" in waits[0]
    assert ["exited" in line for line in waits] == [False, True, True]


def test_deadlock_says_where_each_warp_waits():
    body = """(float *a) {
        if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); // one
        else asm volatile("bar.sync 2, 64;"); // two
        a[threadIdx.x] = 1;
    }"""
    hazard = hazard_of(source(body), 1, 64, ["f32[64]=zeros"])
    assert hazard.kind == "deadlock"
    waits = hazard.details["where_each_waits"]
    assert f"kernel.cu:{line_of(source(body), '// one')}: bar.sync 1, 64;" in waits[0]
    assert f"kernel.cu:{line_of(source(body), '// two')}: bar.sync 2, 64;" in waits[1]


def test_lanes_of_one_warp_at_different_barriers():
    body = """(float *a) { if (threadIdx.x & 1) { a[0] = 1; __syncthreads(); a[1] = 2; } else { a[2] = 3;
        __syncthreads(); a[3] = 4; } }"""
    assert hazard_of(source(body), 1, 64, ["f32[64]=zeros"]).kind == "barrier_divergence"


def test_a_shuffle_that_waits_for_lanes_that_never_come_is_a_deadlock():
    body = """(int *a) { int v = threadIdx.x; if (v < 16) v = __shfl_xor_sync(~0u, v, 1);
        else asm volatile("bar.sync 3, 64;"); a[threadIdx.x] = v; }"""
    assert hazard_of(source(body), 1, 32, ["i32[32]=zeros"]).kind == "deadlock"


def test_unknown_instruction_names_the_line():
    with pytest.raises(UnknownInstruction, match=r"kernel.cu:1, PTX line \d+: 'pmevent.mask 1;'"):
        emu.emulate(source('() { asm volatile("pmevent.mask 1;"); }'), "k", 1, 32, [])


def test_trap_is_reported():
    hazard = hazard_of(source("() { if (threadIdx.x == 35) __trap(); }"), 1, 64, [])
    assert (hazard.kind, hazard.warp, hazard.lanes) == ("illegal", 1, (3,))


def test_division_by_zero_is_no_fault():
    runs_clean(source("(int *a, int zero) { a[threadIdx.x] = a[threadIdx.x] / zero; }"), 1, 32, ["i32[32]=ones", 0])


def test_collecting_keeps_one_hazard_a_kind_and_place_and_runs_to_the_end():
    body = """(float *a, int n) {
        __shared__ float s[64]; int t = threadIdx.x;
        for (int i = 0; i < 3; ++i) a[t + 32] = 1; // out of bounds for the upper half
        float v = s[t];
        a[t] = v;
    }"""
    result = emu.emulate(source(body), "k", 1, 32, ["f32[48]=zeros", 48], hazards="collect")
    assert sorted(hazard.kind for hazard in result.hazards) == ["out_of_bounds", "uninitialised_shared_read"]
    assert result.arrays[0][32:].tolist() == [1] * 16
    assert np.isnan(result.arrays[0][:32]).all()  # never written shared memory reads as NaN


def test_a_line_of_an_inlined_function_names_its_call():
    text = source(
        "(float *a) {\n put(a + 1000); // call\n}",
        "__device__ __forceinline__ void put(float *p) { *p = 1; } // body\n",
    )
    hazard = hazard_of(text, 1, 1, ["f32[1]=zeros"])
    assert hazard.line == line_of(text, "// body")
    assert hazard.details["inlined_at"] == f"kernel.cu:{line_of(text, '// call')}"


ENDLESS = [
    ("(volatile int *o) { while (o[0] == 0); }", 1),
    ("(volatile int *o) { if (threadIdx.x == 5)\n while (o[0] == 0); __syncthreads(); o[1] = 1; }", 2),
    ("(volatile int *o) { if (blockIdx.x == 0) while (o[0] != gridDim.x); else if (!threadIdx.x) o[0] += 0; }", 1),
]


@pytest.mark.parametrize(("body", "line"), ENDLESS)
def test_a_loop_without_end_is_reported_with_where_everybody_is(body, line):
    hazard = hazard_of(source(body), 2, 64, ["i32[64]=zeros"])
    assert (hazard.kind, hazard.line) == ("endless_loop", line)
    assert "run at kernel.cu" in "".join(hazard.details["where_each_is"])


def test_an_endless_loop_ends_a_run_that_collects():
    collected = emu.emulate(source(ENDLESS[0][0]), "k", 2, 64, ["i32[64]=zeros"], hazards="collect")
    assert [hazard.kind for hazard in collected.hazards] == ["endless_loop"]


def test_a_long_loop_and_one_that_waits_for_another_block_are_not_taken_for_endless():
    body = """(volatile int *o, int n) { int x = 0; for (int i = 0; i < n; i++) x = x * 5 + 1 & 7;
        if (blockIdx.x == 0) while (o[1] == 0); else if (threadIdx.x == 0) {
            for (int i = 0; i < n; i++) o[2] = 0;
            o[1] = 1; }
        o[0] = x; }"""
    runs_clean(source(body), 2, 32, ["i32[3]=zeros", 20000])


def test_a_spin_lock_that_lanes_of_one_warp_fight_for_is_no_endless_loop():
    body = "(int *lock, int *count) { while (atomicCAS(lock, 0, 1)); count[0]++; atomicExch(lock, 0); }"
    result = emu.emulate(source(body), "k", 1, 8, ["i32[1]=zeros", "i32[1]=zeros"])
    assert result.arrays[1][0] == 8


def test_a_loop_that_counts_for_ever_ends_at_the_limit():
    body = "(unsigned *o) { for (unsigned i = 5; i >= 0; i--) o[i % 32] += i; }"
    hazard = hazard_of(source(body), 1, 1, ["u32[32]=zeros"], limit=20000)
    assert hazard.kind == "endless_loop"
    assert "limit" in hazard.message


def test_padding_of_structs_may_be_copied_though_nobody_wrote_it():
    head = "struct P { int a; char c; };"
    body = """(int *o, P *g) { __shared__ P s[64]; P p; p.a = 1; p.c = 3; int t = threadIdx.x;
        if (t < o[0]) s[t] = p;
        __syncthreads(); P q = s[63 - t]; g[t] = q; o[t] = q.a + q.c; }"""
    args = [np.full(64, 64, np.int32), np.zeros(128, np.int32)]
    runs_clean(source(body, head), 1, 64, args)
    args[0][:] = 40
    assert hazard_of(source(body, head), 1, 64, args).kind == "uninitialised_shared_read"


def test_pairs_of_bytes_are_tracked_by_byte():
    body = """(uchar2 *o, int n) { __shared__ uchar2 s[64]; int t = threadIdx.x;
        if (t % 2 < n) s[t] = make_uchar2(t, 1);
        __syncthreads(); o[t] = s[t]; }"""
    runs_clean(source(body), 1, 64, ["u8[128]=zeros", 2])
    assert hazard_of(source(body), 1, 64, ["u8[128]=zeros", 1]).kind == "uninitialised_shared_read"
    split = """(uchar2 *o) { __shared__ uchar2 s[64]; int t = threadIdx.x, k = t % 32 * 2 + t / 32;
        s[k] = make_uchar2(t, 1); __syncthreads(); o[t] = s[t]; }"""
    runs_clean(source(split), 1, 64, ["u8[128]=zeros"])


@pytest.mark.parametrize(
    ("kind", "granule"),
    [("char", 1), ("short", 1), ("float", 4), ("char4", 4), ("double", 8), ("float2", 8), ("float4", 16)],
)
def test_neighbours_in_shared_memory_do_not_race_whatever_their_size(kind, granule):
    text = f"""extern "C" __global__ void k(void *given, int apart) {{
        __shared__ {kind} s[128]; {kind} *x = ({kind} *)given;
        s[threadIdx.x] = x[threadIdx.x]; x[threadIdx.x] = s[threadIdx.x ^ apart]; }}"""
    ptx = compile_source(text, entry="k").ptx
    assert decoded(ptx, "k").shared_granule == granule
    x = np.zeros(128 * 16, np.uint8)
    assert not emu.emulate(text, "k", 1, 64, [x, 0], hazards="collect").hazards
    found = emu.emulate(text, "k", 1, 64, [x, 32], hazards="collect").hazards
    assert [hazard.kind for hazard in found] == ["shared_race"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_undefined_value_of_a_shuffle_is_raised_only_where_the_result_depends_on_it(jobs):
    source = """extern "C" __global__ void sum(const float *x, float *y) {
        float v = x[blockIdx.x * 24 + threadIdx.x];
        for (int d = FROM; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
        if (threadIdx.x == 0) y[blockIdx.x] = v;
    }"""
    x = np.arange(24 * 300, dtype=np.float32)
    args = [x, "f32[300]=zeros"]
    right = emu.emulate(source.replace("FROM", "8"), "sum", 300, 24, args, jobs=jobs)
    assert right.hazards == []
    with pytest.raises(EmulatorFault, match=r"shuffle_source.*\n(.*\n)*.*another value makes another result"):
        emu.emulate(source.replace("FROM", "16"), "sum", 300, 24, args, jobs=jobs)
