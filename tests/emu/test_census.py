"""How far kernels of other projects come, from a folder that holds them."""

from __future__ import annotations

import pytest

from tilewright.lab.census import STAGES, census_records, kernels_of
from tilewright.lab.corpus import VARIABLE

SOURCE = """
#include <vector>
namespace fast { // __global__ void not_me() {}
template <typename T, int N = 4>
__global__ void __launch_bounds__(64, 2) fill(T *x, int n) { if (threadIdx.x < n) x[threadIdx.x] = N; }
}
__global__ void past_the_end(float *x) { x[1 << 20] = 1; }
template <int N> __global__ void only_of_eight(float *x) { static_assert(N == 8); x[0] = N; }
template <int N> __global__ void never_launched(float *x) { static_assert(N == 7); x[0] = N; }
#ifdef NEVER
__global__ void left_out(float *x) {}
#endif
int main() { constexpr int EIGHT = 8; only_of_eight<EIGHT><<<1, 32>>>(nullptr); }
"""
WRONG = "__global__ void wrong(float *x) { x[0] = undeclared; }"
CASE = {"project": "somebody/kernels", "commit": "0" * 40, "files": ["src/*.cu"]}


def test_kernels_are_found_with_their_namespaces_and_templates():
    assert [(name, bool(template)) for name, template in kernels_of(SOURCE)] == [
        ("fast::fill", True), ("past_the_end", False), ("only_of_eight", True), ("never_launched", True),
        ("left_out", False),
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "kernels" / "src").mkdir(parents=True)
    (tmp_path / "kernels" / "src" / "all.cu").write_text(SOURCE)
    (tmp_path / "kernels" / "src" / "wrong.cu").write_text(WRONG)
    (tmp_path / "kernels" / "src" / "none.cu").write_text("int main() {}")
    monkeypatch.setenv(VARIABLE, str(tmp_path))


def test_each_kernel_is_compiled_and_run_as_far_as_it_comes(folder):
    record, wrong = census_records("census", [CASE])
    kernels = {kernel["name"]: kernel for kernel in record["result"]["kernels"]}
    came = {name: (one["there"], one["compiled"], one["known"], one["ran"]) for name, one in kernels.items()}
    assert came == {
        "fast::fill<float>": (1, 1, 1, 1), "past_the_end": (1, 1, 1, 1), "only_of_eight<8>": (1, 1, 1, 1),
        "never_launched<32>": (0, 0, 0, 0), "left_out": (0, 0, 0, 0),
    }  # fmt: skip
    assert kernels["past_the_end"]["faults"] == ["out_of_bounds"]
    assert [record["result"][stage] for stage in STAGES] == [3, 3, 3, 3]
    assert [wrong["result"][stage] for stage in STAGES] == [1, 0, 0, 0]
    assert "undeclared" in wrong["result"]["kernels"][0]["why"]
