"""Memory that holds nothing: local arrays, malloc, empty buffers; dead local arrays, leaks, neighbouring arrays."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import tilewright as tw
from tilewright.cli.app import app

K = "__global__ void k"
I32 = "i32[64]=zeros"


def kinds(source: str, args: list, **options) -> list[str]:
    return [h.kind for h in tw.emulate(source, "k", 1, 32, args, hazards="collect", **options).hazards]


# With INIT the kernel is right, without it something is read that was never written.
LOCAL = {
    "a sum that starts from nothing": f"""{K}(int *a, int n) {{ int s[8]; INIT
        for (int i = 0; i < 8; ++i) s[(i + n) % 8] += i; a[threadIdx.x] = s[n % 8]; }}""",
    "one element is left out": f"""{K}(int *a, int n) {{ int s[8]; for (int i = 1; i < 8; ++i) s[(i * n) % 8] = i;
        INIT a[threadIdx.x] = s[n - 3]; }}""",
    "a table of which some lanes fill less": f"""{K}(int *a, int n) {{ int s[33]; INIT
        for (int i = 0; i < (int)threadIdx.x + n; ++i) s[i % 33] = i; a[threadIdx.x] = s[20 + n]; }}""",
    "a stack that is popped once too often": f"""{K}(int *a, int n) {{ int s[16], top = 0; INIT
        for (int i = 0; i < n; ++i) s[top++ & 15] = i;
        int sum = 0; for (int i = 0; i <= n; ++i) sum += s[top-- & 15]; a[threadIdx.x] = sum; }}""",
    "bytes of a message": f"""{K}(int *a, int n) {{ char s[16]; INIT for (int i = 0; i < n; ++i) s[i * 2 & 15] = i;
        a[threadIdx.x] = s[n * 2 - 1 & 15]; }}""",
    "a function's array": f"""__device__ __noinline__ int sum(int n) {{ int s[8]; INIT
            for (int i = 0; i < n; ++i) s[i & 7] = i;
            int t = 0; for (int i = 0; i < 8; ++i) t += s[i * n & 7]; return t; }}
        {K}(int *a, int n) {{ a[threadIdx.x] = sum(n) + sum(n - 1); }}""",
}  # fmt: skip


@pytest.mark.parametrize("name", LOCAL)
def test_a_local_array_that_was_not_filled_is_found(name):
    source = LOCAL[name]
    size, kind = ("16", "char") if "char s" in source else ("33", "int") if "s[33]" in source else ("8", "int")
    size = "16" if "s[16]" in source else size
    right = source.replace("INIT", f"for ({kind} i = 0; i < {size}; ++i) *(volatile {kind} *)(s + i) = 0;")
    assert kinds(right, [I32, 3]) == []
    assert set(kinds(source.replace("INIT", ""), [I32, 3])) == {"uninitialised_read"}


NEW = "__device__ __noinline__ int *fresh() { return (int *)malloc(64); }"
HEAP = {
    "never filled": "int *p = fresh(); INIT a[threadIdx.x] = p[threadIdx.x % 16];",
    "filled by half": """int *p = fresh(); INIT for (int i = 0; i < 8; ++i) p[i] = i;
        int s = 0; for (int i = 0; i < 16; ++i) s += p[i]; a[threadIdx.x] = s;""",
    "counted up from nothing": "int *p = fresh(); INIT p[3] += 1; a[threadIdx.x] = p[3];",
    "an atomic on nothing": "int *p = fresh(); INIT a[threadIdx.x] = atomicAdd(p + 3, 1);",
    "given again after free": """int *p = fresh(); for (int i = 0; i < 16; ++i) p[i] = i;
        free(p); p = fresh(); INIT a[threadIdx.x] = p[5];""",
}


@pytest.mark.parametrize("name", HEAP)
def test_memory_of_malloc_that_was_not_filled_is_found(name):
    source = f"{NEW} {K}(int *a) {{ {HEAP[name]} free(p); }}"
    assert kinds(source.replace("INIT", "for (int i = 0; i < 16; ++i) p[i] = 0;"), [I32]) == []
    assert set(kinds(source.replace("INIT", ""), [I32])) == {"uninitialised_read"}


# All read what nobody has written of `o`, if it is passed as empty.
GLOBAL = {
    "an output that is added to": f"{K}(float *x, float *o) {{ o[threadIdx.x] += x[threadIdx.x]; }}",
    "a sum by atomics": f"{K}(float *x, float *o) {{ atomicAdd(o, x[threadIdx.x]); }}",
    "beta times nothing": f"{K}(float *x, float *o) {{ o[threadIdx.x] = x[threadIdx.x] + 0.0f * o[threadIdx.x]; }}",
    "the edge that is not written": f"""{K}(float *x, float *o) {{
        if (threadIdx.x < 31) o[threadIdx.x] = x[threadIdx.x];
        __syncthreads(); x[threadIdx.x] = o[threadIdx.x]; }}""",
    "vectors": f"{K}(float4 *x, float4 *o) {{ if (threadIdx.x < 8) x[threadIdx.x] = o[threadIdx.x]; }}",
}  # fmt: skip


@pytest.mark.parametrize("name", GLOBAL)
def test_an_empty_buffer_that_is_read_is_found(name):
    assert kinds(GLOBAL[name], ["f32[32]=ones", "f32[32]=zeros"]) == []
    assert set(kinds(GLOBAL[name], ["f32[32]=ones", "f32[32]=empty"])) == {"uninitialised_read"}


def test_an_empty_buffer_that_is_written_first_is_right():
    source = f"{K}(float *x, float *o) {{ o[threadIdx.x] = 2 * x[threadIdx.x]; o[threadIdx.x] += 1; }}"
    result = tw.emulate(source, "k", 1, 32, {"x": "f32[32]=ones", "o": "f32[33]=empty"})
    assert result.named["o"][:32].tolist() == [3] * 32
    assert np.isnan(result.named["o"][32])


DEAD = """__device__ __noinline__ int *dead(int n) {
    int s[8]; for (int i = 0; i < 8; ++i) s[i * n & 7] = i;
    int *p = s; asm volatile("" : "+l"(p)); return p;
}
struct S { int *p; int n; };
__device__ __noinline__ S kept(int n) { S s = {dead(n), n}; return s; }
__device__ __noinline__ int inner(int n) { return dead(n)[n]; }
__device__ __noinline__ void through(int n, int **to) {
    int s[8]; for (int i = 0; i < 8; ++i) s[i * n & 7] = i; *to = s;
}
"""
DEAD_LOCAL = {
    "returned": "a[threadIdx.x] = dead(n)[n];",
    "written to": "dead(n)[n] = 1;",
    "kept in a struct": "S s = kept(n); a[threadIdx.x] = s.p[s.n];",
    "of an inner call": "a[threadIdx.x] = inner(n);",
    "kept through a pointer": "int *p; through(n, &p); a[threadIdx.x] = p[n];",
}


@pytest.mark.parametrize("name", DEAD_LOCAL)
def test_a_pointer_to_a_dead_local_array_is_found(name):
    assert "dead_local" in kinds(f"{DEAD} {K}(int *a, int n) {{ {DEAD_LOCAL[name]} }}", [I32, 3])


def test_arrays_that_callers_pass_down_and_recursion_are_right():
    source = f"""__device__ __noinline__ void fill(int *s, int n) {{ for (int i = 0; i < 8; ++i) s[i * n & 7] = i; }}
        __device__ __noinline__ int deep(int *s, int n) {{
            int own[4]; for (int i = 0; i < 4; ++i) own[i * n & 3] = s[i]; own[n & 3] = n;
            return n ? deep(own, n - 1) + own[n & 3] : s[0]; }}
        {K}(int *a, int n) {{ int s[8]; for (int i = 0; i < 8; ++i) s[i] = 0;
            fill(s, n); a[threadIdx.x] = s[n] + deep(s, n); }}"""
    assert "dead_local" not in kinds(source, [I32, 3])


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("int *p = (int *)malloc(64); p[0] = 1; a[0] = p[0];", 1),
        ("int *p = (int *)malloc(64); if (a) p = nullptr; free(p);", 1),
        ("for (int i = 0; i < 3; ++i) { int *p = (int *)malloc(8); *p = i; if (i) free(p); }", 1),
        ("char *p = (char *)malloc(8); p[1] = 1; a[1] = p[1]; if (a[1] == 2) free(p);", 1),
        ("int **p = (int **)malloc(8); *p = (int *)malloc(8); free(*p);", 1),
        ("int *p = (int *)malloc(64); p[0] = 1; free(p);", 0),
        ("*(void **)(a + 2) = malloc(64);", 0),  # for a later kernel
    ],
)
def test_memory_of_malloc_that_nobody_can_free_is_a_leak(body, count):
    hazards = tw.emulate(f"{K}(int *a) {{ if (threadIdx.x == 3) {{ {body} }} }}", "k", 1, 32, [I32]).hazards
    assert [h.kind for h in hazards] == ["leak"] * count
    assert all(h.level == "warning" and h.lanes == (3,) and h.line == 1 for h in hazards)


# Past the end of x lies y.
NEIGHBOURS = {
    "one element too many": "x[threadIdx.x + 1] = 1; __syncthreads(); v = y[threadIdx.x];",
    "a read past the end": "v = x[threadIdx.x + 5];",
    "a vector over the end": "v = ((float2 *)(x + 31))[threadIdx.x / 32].y;",
    "an atomic": "atomicAdd(x + 32 + threadIdx.x % 2, 1.0f);",
    "a row too wide": "for (int i = threadIdx.x; i < 34; i += 32) x[i] = i;",
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_red_zones_show_what_ends_in_the_neighbour(name):
    source = f"""{K}(float *a) {{ __shared__ __align__(8) float pair[64]; float *x = pair;
        if (threadIdx.x == 99) x = nullptr; __shared__ __align__(8) float other[64]; float *y = other; float v = 0;
        for (int i = threadIdx.x; i < 64; i += 32) pair[i] = other[i] = 0;
        __syncthreads(); x += 32; {NEIGHBOURS[name]}
        __syncthreads(); a[threadIdx.x] = v + y[0]; }}"""
    assert kinds(source, ["f32[32]=zeros"]) == []
    found = tw.emulate(source, "k", 1, 32, ["f32[32]=zeros"], hazards="collect", red_zones=True).hazards
    assert [h.kind for h in found][:1] == ["out_of_bounds"]
    assert "past the end of" in found[0].message


def test_red_zones_leave_right_kernels_alone_and_the_command_has_them(tmp_path):
    source = f"""{K}(float *a) {{ __shared__ float x[32], y[40]; extern __shared__ float z[]; int t = threadIdx.x;
        x[t] = t; y[t] = x[t]; y[32 + t % 8] = 1; z[t] = y[t];
        __syncthreads(); a[t] = z[t] + y[39 - t] + x[31 - t]; }}"""
    usual = tw.emulate(source, "k", 1, 32, ["f32[32]=zeros"], shared_bytes=128)
    apart = tw.emulate(source, "k", 1, 32, ["f32[32]=zeros"], shared_bytes=128, red_zones=True)
    assert usual.arrays[0].tolist() == apart.arrays[0].tolist()
    assert apart.hazards == []
    file = tmp_path / "k.cu"
    file.write_text(f"""{K}(float *a) {{ __shared__ float x[32], y[32]; int t = threadIdx.x;
        x[t] = y[t] = 1; __syncthreads(); a[t] = x[t + 3] + y[t]; }}""")
    words = ["emulate", str(file), "--entry", "k", "--arg", "a=f32[32]=empty"]
    assert CliRunner().invoke(app, [*words, "--red-zones"]).exit_code == 1
