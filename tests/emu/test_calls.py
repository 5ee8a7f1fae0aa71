"""Functions that are called and not inlined, recursion, pointers to functions, and what the CUDA runtime provides."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tilewright import emu
from tilewright.emu.runtime import formatted
from tilewright.errors import EmulatorFault, PtxError


def run(text: str, block, args, entry: str = "k", grid=1, **options):
    return emu.emulate(text, entry, grid, block, args, **options)


def hazard_of(text: str, block, args) -> emu.Hazard:
    with pytest.raises(EmulatorFault) as caught:
        run(text, block, args)
    return caught.value.hazard


def test_called_functions_keep_what_their_callers_hold():
    text = """
    __device__ __noinline__ float sum(float a, int n) { float s = 0; for (int i = 0; i < n; i++) s += a * i; return s; }
    __device__ __noinline__ float twice(float a, int n) { float x = sum(a, n); return x * 100 + sum(a + 1, n) + n; }
    __global__ void k(float *out, int n) {
        int t = threadIdx.x; float held = t * 7;
        if (t % 3 == 0) held += twice(1.5f, t % 5); else held += sum(t, n);
        out[t] = held + sum(held, 2);
    }"""

    def total(a, n):
        return sum(a * i for i in range(n))

    want = []
    for t in range(80):
        n = t % 5
        held = t * 7 + (total(1.5, n) * 100 + total(2.5, n) + n if t % 3 == 0 else total(t, 4))
        want.append(held + held)
    assert run(text, 80, ["f32[80]=nan", 4]).arrays[0].tolist() == want


def test_structs_are_passed_and_returned_by_value():
    text = """
    struct V { float x; double d; int a[5]; char c; };
    __device__ __noinline__ V change(V v, int i) {
        v.a[i] += 10; V r = v; r.x = v.a[(i + 1) % 5]; r.c = v.c + 1; return r; }
    __global__ void k(int *out, int n) {
        V v; v.x = 0; v.d = 2.5; v.c = 7; for (int i = 0; i < 5; i++) v.a[i] = i * n;
        int t = threadIdx.x; V w = change(change(v, t % 5), (t + 2) % 5);
        for (int i = 0; i < 5; i++) out[t * 8 + i] = w.a[i];
        out[t * 8 + 5] = w.x; out[t * 8 + 6] = w.c; out[t * 8 + 7] = w.d * 2 + v.a[t % 5];
    }"""
    got = run(text, 40, ["i32[40,8]=zeros", 3]).arrays[0]
    for t in range(40):
        a = [3 * i for i in range(5)]
        a[t % 5] += 10
        a[(t + 2) % 5] += 10
        assert got[t].tolist() == [*a, a[(t + 3) % 5], 9, 5 + 3 * (t % 5)]


def test_recursion_gives_each_call_registers_arguments_and_local_arrays_of_its_own():
    text = """
    __device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    __device__ __noinline__ int walk(int n, int k) {
        int own[4]; for (int i = 0; i < 4; i++) own[i] = n * 10 + i;
        int below = n > 0 ? walk(n - 1, k + 1) : 0;
        return below + own[k & 3];
    }
    __global__ void k(int *out) { int t = threadIdx.x; out[t] = fib(t % 9) * 1000 + walk(t % 6, t); }"""
    numbers = [0, 1, 1, 2, 3, 5, 8, 13, 21]

    def walk(n, k):
        return n * 10 + (k & 3) + (walk(n - 1, k + 1) if n else 0)

    got = run(text, 70, ["i32[70]=zeros"]).arrays[0].tolist()
    assert got == [numbers[t % 9] * 1000 + walk(t % 6, t) for t in range(70)]


def test_recursion_without_end_is_reported():
    text = """__device__ __noinline__ int down(int n, int *x) {
        x[n & 31] = n; return n == x[0] ? 0 : down(n + 1, x) * 3 ^ down(n + 2, x); }
    __global__ void k(int *out) { out[threadIdx.x] = down(threadIdx.x + 1, out); }"""
    hazard = hazard_of(text, 1, ["i32[32]=arange"])
    assert hazard.kind == "stack_overflow"
    assert hazard.line == 2
    assert "512 calls within calls" in hazard.message


def test_functions_are_reached_through_pointers_tables_and_virtual_calls():
    text = """
    typedef float (*function)(float);
    __device__ float square(float x) { return x * x; }
    __device__ float negate(float x) { return -x; }
    __device__ function table[2] = {square, negate};
    struct Base { __device__ virtual float at(float x) = 0; };
    struct Twice : Base { __device__ float at(float x) { return x * 2; } };
    struct Next : Base { float by = 1; __device__ float at(float x) { return x + by; } };
    __global__ void k(float *out) {
        int t = threadIdx.x; Twice twice; Next next; Base *one = t % 3 ? (Base *)&twice : (Base *)&next;
        out[t] = table[t & 1](t) * 1000 + one->at(t);
    }"""
    got = run(text, 40, ["f32[40]=nan"]).arrays[0].tolist()
    assert got == [(-t if t & 1 else t * t) * 1000 + (2 * t if t % 3 else t + 1) for t in range(40)]


def test_a_call_to_what_is_no_function_is_reported():
    text = """typedef void (*function)(float *);
    __device__ __noinline__ void set(float *x) { x[threadIdx.x] = 1; }
    __global__ void k(float *out, unsigned long long p) { function f = p ? (function)p : set; f(out); }"""
    assert run(text, 32, ["f32[32]=nan", 0]).arrays[0].tolist() == [1] * 32
    hazard = hazard_of(text, 32, ["f32[32]=nan", 12345])
    assert hazard.kind == "illegal"
    assert "0x3039" in hazard.message


def test_lanes_that_called_a_function_meet_the_others_again():
    text = """__device__ __noinline__ int slow(int n) { int s = 0; for (int i = 0; i < n; i++) s += i ^ n; return s; }
    __global__ void k(unsigned *out) {
        int t = threadIdx.x, v = 0;
        if (t & 1) v = slow(t);
        out[t] = __activemask() + (v == -1); }"""
    assert run(text, 32, ["u32[32]=zeros"]).arrays[0].tolist() == [0xFFFFFFFF] * 32


def test_barriers_and_shuffles_inside_functions():
    text = """__device__ __noinline__ float block_sum(float v, float *shared) {
        for (int step = 16; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
        __syncthreads(); float total = 0; for (int w = 0; w < blockDim.x / 32; w++) total += shared[w];
        __syncthreads(); return total; }
    __global__ void k(float *x) { __shared__ float s[8]; float a = x[threadIdx.x], b = block_sum(a, s);
        x[threadIdx.x] = a + block_sum(b, s); }"""
    x = np.arange(96, dtype=np.float32)
    assert run(text, 96, [x]).arrays[0].tolist() == (x + 96 * x.sum()).tolist()
    broken = text.replace("__syncthreads(); float total", "float total")
    assert hazard_of(broken, 96, [x]).kind == "shared_race"


def test_double_precision_pow_which_nvrtc_makes_a_function():
    a = np.linspace(0.1, 5, 64)
    text = "__global__ void k(double *x) { x[threadIdx.x] = pow(x[threadIdx.x], 1.7) + exp(-x[threadIdx.x]); }"
    np.testing.assert_allclose(run(text, 64, [a]).arrays[0], a**1.7 + np.exp(-a), rtol=1e-14)


def test_printf_writes_what_each_thread_says():
    text = r"""#include <stdio.h>
    __global__ void k(float x) { if (threadIdx.x % 2) printf("%d: %5.2f|%-4s|%llx|%c %u%%\n", (int)threadIdx.x - 2, x,
        "ab", 1ull << 40, 'z', 4000000000u); }"""
    said = run(text, 4, [1.25]).printed
    assert said == "".join(f"{t - 2}:  1.25|ab  |10000000000|z 4000000000%\n" for t in (1, 3))


@pytest.mark.parametrize(
    ("text", "packed", "want"),
    [
        ("plain", b"", "plain"),
        ("%*d|%.*f", struct.pack("<iii4xd", 5, 42, 1, 2.55), "   42|2.5"),
        ("%d %lld %d", struct.pack("<i4xqi", -1, -(2**40), 7), "-1 -1099511627776 7"),
        ("%hhd %hu", struct.pack("<ii", 0x1FF, 0x12345), "-1 9029"),
        ("%e %g", struct.pack("<dd", 12345.678, 1e-7), "1.234568e+04 1e-07"),
        ("%p %x %o", struct.pack("<Qii", 0xABC, 255, 8), "0xabc ff 10"),
        ("%f", struct.pack("<d", float("inf")), "inf"),
        ("%#o|%#x|%#5o|%#06o", struct.pack("<iiii", 8, 0, 8, 8), "010|0|  010|000010"),
        ("%+u|%.0d|%+5.3d|%#-8x|", struct.pack("<iiii", 5, 0, 7, 255), "5|| +007|0xff    |"),
        ("%a %a", struct.pack("<dd", 1.0, -10.5), "0x1p+0 -0x1.5p+3"),
        ("%-*d|", struct.pack("<ii", -4, 7), "7   |"),
    ],
)
def test_formats_are_those_of_c(text, packed, want):
    assert formatted(text, packed, lambda address: "?") == want


def test_an_assertion_that_fails_says_what_and_where():
    text = """__global__ void k(int *x, int n) {
        assert(threadIdx.x < n);
        x[threadIdx.x] = 1; }"""
    assert run(text, 8, ["i32[8]=zeros", 8]).arrays[0].sum() == 8
    hazard = hazard_of(text, 8, ["i32[8]=zeros", 5])
    assert (hazard.kind, hazard.line, hazard.lanes) == ("illegal", 2, (5, 6, 7))
    assert "'threadIdx.x < n' failed" in hazard.message


def test_malloc_and_free_and_their_misuse():
    body = """__global__ void k(int *x, int n) { int *p = (int *)malloc(n); if (!p) { x[threadIdx.x] = -1; return; }
        p[0] = threadIdx.x; EXTRA x[threadIdx.x] = p[0]; free(p); LAST }"""
    right = body.replace("EXTRA", "").replace("LAST", "")
    assert run(right, 40, ["i32[40]=zeros", 16]).arrays[0].tolist() == list(range(40))
    assert run(right, 2, ["i32[2]=zeros", 1 << 30]).arrays[0].tolist() == [-1, -1]
    assert hazard_of(right.replace("p[0] =", "p[n / 4] ="), 4, ["i32[4]=zeros", 16]).kind == "out_of_bounds"
    assert (
        hazard_of(body.replace("EXTRA", "free(p);").replace("LAST", ""), 4, ["i32[4]=zeros", 16]).kind
        == "out_of_bounds"
    )
    twice = hazard_of(body.replace("EXTRA", "").replace("LAST", "free(p);"), 4, ["i32[4]=zeros", 16])
    assert "freed before" in twice.message


def test_what_was_freed_is_found_by_an_instruction_that_read_it_before():
    body = """__global__ void k(int *x) { int *p = (int *)malloc(8), sum = 0; *p = 3;
        #pragma unroll 1
        for (int i = 0; i < 4; ++i) { sum += *(volatile int *)p;
            if (i == 1) free(p); }
        x[0] = sum; }"""
    hazard = hazard_of(body, 1, ["i32[1]=zeros"])
    assert (hazard.kind, hazard.line) == ("out_of_bounds", 3)


def test_a_function_that_is_only_declared_is_named():
    ptx = """.version 8.0
.target sm_90a
.address_size 64
.extern .func nowhere ( .param .b32 nowhere_param_0 ) .noreturn
;
.visible .entry k() { { .param .b32 p; st.param.b32 [p+0], 1; call.uni nowhere, (p); } ret; }"""
    with pytest.raises(PtxError, match="calls 'nowhere', which the PTX only declares"):
        run(ptx, 32, [])


def test_labels_of_inline_assembly_belong_to_their_braces():
    text = """__device__ __forceinline__ int count(int n) { int r;
        asm volatile("{ .reg .pred p; mov.u32 %0, 0; AGAIN: add.u32 %0, %0, 1; setp.lt.u32 p, %0, %1; @p bra AGAIN; }"
                     : "=&r"(r) : "r"(n)); return r; }
    __global__ void k(int *x) { int t = threadIdx.x; x[t] = count(t + 1) * 100; x[t] += count(t % 4 + 1); }"""
    assert run(text, 32, ["i32[32]=zeros"]).arrays[0].tolist() == [(t + 1) * 100 + t % 4 + 1 for t in range(32)]
