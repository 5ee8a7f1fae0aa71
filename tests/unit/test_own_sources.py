"""People's own CUDA files: names as C++ knows them, headers included out of habit, and what is said without them."""

from __future__ import annotations

from importlib import metadata

import pytest

from tilewright.errors import CompileError
from tilewright.jit import compile_source, wheels
from tilewright.jit.compile import kernel_cache
from tilewright.jit.host_code import device_part
from tilewright.jit.wheels import STANDARD, advice


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


NAMES = """
__global__ void scale(float *x) { x[threadIdx.x] *= 2; }
namespace ours { __global__ void scale(float *x) { x[threadIdx.x] *= 3; } }
template <class T, int N> __global__ __launch_bounds__(64) void fill(T *x) { x[threadIdx.x] = N; }
extern "C" __global__ void plain(float *x) { *x = 1; }
"""


@pytest.mark.parametrize(
    ("entry", "in_ptx"),
    [
        ("scale", "_Z5scalePf"),
        ("ours::scale", "_ZN4ours5scaleEPf"),
        ("fill<double, 7>", "_Z4fillIdLi7EEvPT_"),
        ("plain", "plain"),
        ("_Z5scalePf", "_Z5scalePf"),
    ],
)
def test_a_kernel_is_found_by_its_name_in_cpp_also_from_the_cache(entry, in_ptx):
    for _ in range(2):
        kernel = compile_source(NAMES, entry=entry)
        assert kernel.entry == in_ptx
        assert f".entry {in_ptx}(" in kernel.ptx
        assert kernel.resources.registers > 0


def test_a_kernel_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(CompileError, match="no kernel 'skale'; it has scale, fill, plain"):
        compile_source(NAMES, entry="skale")
    with pytest.raises(CompileError, match=r"Several kernels have this name") as caught:
        compile_source("__global__ void k(int *x) {} __global__ void k(float *x) {}", entry="k")
    assert "__nv_name_map" not in str(caught.value)


def test_an_error_of_the_source_is_not_mistaken_for_a_wrong_name():
    with pytest.raises(CompileError, match='"zzz" is undefined'):
        compile_source("__global__ void k(int *x) { *x = zzz; }", entry="k")


def test_what_nvrtc_says_of_its_own_line_is_not_shown_beside_errors_of_the_source():
    source = "__global__ void k(int *x) { *x = zzz; }\n__global__ void l(int *x) { *x = yyy; }"
    with pytest.raises(CompileError) as caught:
        compile_source(source, entry="m")
    for word in ("zzz", "yyy"):
        assert f'"{word}" is undefined' in str(caught.value)
    for noise in ("__nv_name_map", "pragma", "errors detected"):
        assert noise not in str(caught.value)


def test_habitual_headers_macros_and_128_bit_integers_are_there():
    includes = "".join(f"#include <{name}>\n" for name in STANDARD)
    body = """__global__ void k(float *f, uint8_t *b, int64_t *l) {
        assert(threadIdx.x < 32); f[0] = -INFINITY; f[1] = NAN; f[2] = M_PI; f[3] = FLT_MAX; f[4] = sqrtf(f[5]);
        *b = UINT8_MAX; *l = (int64_t)(((unsigned __int128)*l * *l) >> 64) + INT_MAX + INT64_MIN + LLONG_MAX;
    }"""
    compile_source(includes + body, entry="k")
    compile_source("__global__ void k(float *f) { *f = INFINITY + NAN + M_PI + INT_MAX; }", entry="k")
    own = "typedef unsigned long long uint64_t;\n#define M_PI 3.14159265358979\n"
    compile_source(own + "__global__ void k(double *f) { *f = M_PI + (uint64_t)f; }", entry="k")


def test_a_quoted_include_is_also_found_beside_the_file_that_includes_it(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "outer.h").write_text('#include "leaf.h"\n')
    (tmp_path / "inner" / "leaf.h").write_text("#define LEAF 5\n")
    kernel = compile_source('#include "inner/outer.h"\n__global__ void k(int *x) { *x = LEAF; }', entry="k",
                            include=[tmp_path])  # fmt: skip
    assert ", 5;" in kernel.ptx


@pytest.mark.parametrize("spelling", ["<cuda_fp16.h>", '"cuda_fp16.h"'])
def test_headers_of_the_toolkit_come_from_their_wheels(spelling):
    pytest.importorskip("nvidia", reason="needs the wheel nvidia-cuda-runtime")
    kernel = compile_source(f"#include {spelling}\n__global__ void k(__half *x) {{ *x = __hadd(*x, *x); }}", entry="k")
    assert "add.f16" in kernel.ptx or "fma.rn.f16" in kernel.ptx


@pytest.mark.parametrize("spelling", ["<cuda_fp16.h>", '"cuda_fp16.h"'])
def test_without_the_wheels_the_error_names_them(spelling, monkeypatch):
    monkeypatch.setattr("tilewright.jit.wheels.toolkit", lambda: ())
    with pytest.raises(CompileError, match=r"pip install 'nvidia-cuda-runtime==\d+\.\d+\.\*' 'nvidia-cuda-crt"):
        compile_source(f"#include {spelling}\n__global__ void k(__half *x) {{ }}", entry="k")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#include <vector>\n__device__ std::vector<int> kept;", "host's C"),
        ('#include "ours.h"\nint main() {}', "ours.h was not found. Name its folder"),
        ("#include <cub/cub.cuh>\nint main() {}", "cub/cub.cuh is one of CUDA's headers"),
    ],
)
def test_what_run_time_compilation_cannot_read_is_explained(text, says, monkeypatch):
    monkeypatch.setattr("tilewright.jit.wheels.toolkit", lambda: ())
    with pytest.raises(CompileError, match=says):
        compile_source(text + "\n__global__ void k(int *x) { *x = cub::PtxVersion(*x) + zzz; }", entry="k")


def test_headers_that_hold_host_code_are_told_apart_from_those_that_are_not_there():
    log = (
        "cub/device_for.cuh(9): error: A function explicitly marked as a __host__ function is not allowed in JIT mode\n"
    )
    log += 'cub/dispatch.cuh(68): catastrophic error: cannot open source file "iterator"'
    assert "cub/block/block_reduce.cuh" in advice(log, "13.0")


@pytest.mark.parametrize(
    ("header", "version", "install"),
    [
        ("cuda_fp16.h", "13.5", "'nvidia-cuda-runtime==13.5.*' 'nvidia-cuda-crt==13.5.*' 'nvidia-cuda-cccl>=13.0,<14'"),
        ("mma.h", "13.0", "'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl>=13.0,<14'"),
        ("cub/cub.cuh", "12.9",
         "'nvidia-cuda-runtime-cu12==12.9.*' 'nvidia-cuda-nvcc-cu12==12.9.*' 'nvidia-cuda-cccl-cu12>=12.0,<13'"),
        ("curand_kernel.h", "13.5", "nvidia-curand"),
        ("cublas_v2.h", "12.8", "nvidia-cublas-cu12"),
        ("cudnn.h", "13.0", "nvidia-cudnn-cu13"),
        ("nvtx3/nvToolsExt.h", "13.0", "nvidia-nvtx"),
    ],
)  # fmt: skip
def test_a_header_that_is_missing_is_named_with_the_wheels_that_hold_it(header, version, install):
    told = advice(f'k.cu(1): catastrophic error: cannot open source file "{header}"', version)
    assert told.endswith(f": pip install {install}")


@pytest.mark.parametrize("header", ["cuda_utils.cuh", "cuda_check.h", "custom.h"])
def test_a_persons_own_header_is_not_said_to_be_cudas(header):
    told = advice(f'k.cu(1): catastrophic error: cannot open source file "{header}"', "13.0")
    assert told.startswith(f"{header} was not found. Name its folder with include= (on the command line --include;")


def test_cutlass_headers_are_not_said_to_be_cudas():
    told = advice('k.cu(1): catastrophic error: cannot open source file "cute/tensor.hpp"', "13.0")
    assert "The wheel nvidia-cutlass has them in cutlass_library/source/include" in told


def test_each_header_that_is_installed_is_in_the_wheel_that_is_named_for_it():
    for wheel, folders in wheels.TOOLKITS[13]:
        for folder in folders:
            for name in sorted(headers_of(wheel, folder)):
                told = advice(f'cannot open source file "{name}"', "13.0")
                assert wheel in told, f"{name} is in {wheel}; {told!r}"


def headers_of(wheel: str, folder: str) -> set[str]:
    """Those by which a source includes what the wheel has under `folder`; none where it is not installed."""
    try:
        files = metadata.distribution(wheel).files or ()
    except metadata.PackageNotFoundError:
        return set()
    inner = [file.as_posix().removeprefix(folder + "/") for file in files if file.as_posix().startswith(folder + "/")]
    return {name for name in inner if wheels.is_of_cuda(name) and not name.startswith("cccl/")}


def test_builtins_of_the_hosts_compiler_are_told_with_what_devices_have():
    with pytest.raises(CompileError, match=r"__builtin_ctzll is of the host's compiler; .* write __ffs\(x\) - 1"):
        compile_source("__global__ void k(int *x) { *x = __builtin_ctzll(*x); }", entry="k")
    told = advice('k.cu(1): error: identifier "__builtin_trap" is undefined', "13.0")
    assert told.endswith("intrinsics of its own.")


def test_other_errors_get_no_advice():
    assert advice('k.cu(1): error: expected a ";"', "13.0") == ""


PROGRAM = """// a whole program, as samples are
#include <cstdio>
#include <vector>
#include <sys/time.h>
#include <cublas_v2.h>
using namespace std;
#define DEV __device__ __forceinline__
#define CEIL(a, b) (((a) + (b) - 1) / (b))
template <typename T = float> struct Pair { T a, b; DEV T sum() const { return a + b; } };
DEV float twice(float x = 1.f) { return 2 * x; /* } */ }
constexpr int blocks(int n) { return CEIL(n, 256); }
namespace ops {
__device__ float next(float x) { return x + 1; }
void of_host(vector<int>& v) { for (auto& x : v) x = '{'; }
}
__constant__ float table[4] = {1, 2, 3, 4};
template <int N>
__global__ void __launch_bounds__(256) scale(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { Pair<> p{twice(x[i]), ops::next(table[i & 3])}; x[i] = p.sum() * N + blocks(256); }
}
static void check(cudaError_t e, const char* what = "x");
double now() { timeval t; gettimeofday(&t, 0); return t.tv_sec + 1e-6 * t.tv_usec; }
template <class F> float bench(F f) { cudaEvent_t a; cudaEventCreate(&a); f(); return 0; }
int main(int argc, char **argv)
{
  vector<float> h(1024, 1.f); string s = "}{"; // {
  scale<3><<<CEIL(1024, 256), 256>>>(nullptr, 1024);
  auto t = now(); printf("%d %s\\n", (int)h.size(), R"x({ " )x");
  return 0;
}
int global_of_the_kernel = 7;
"""


def test_a_whole_program_is_taken_without_its_host_part():
    kernel = compile_source(PROGRAM, entry="scale<3>")
    assert ".entry _Z5scaleILi3EEvPfi(" in kernel.ptx
    assert "ld.const" in kernel.ptx


def test_what_is_left_of_a_program_stands_on_its_lines():
    left = device_part(PROGRAM, dropped=["vector"]).splitlines()
    whole = PROGRAM.splitlines()
    assert len(left) == len(whole)
    gone = [number for number, (a, b) in enumerate(zip(left, whole, strict=True), 1) if a != b]
    assert gone == [3, 6, 14, 22, 23, 24, *range(25, 33)]
    assert not any(left[number - 1].strip() for number in gone)


@pytest.mark.parametrize(
    "text",
    [
        "struct A { void f() { } int x; };\n",
        "typedef void (*Call)(int);\n",
        "#define KERNEL(n) __global__ void n\nKERNEL(k)(int *x) { *x = 1; }\n",
        "#define BOTH __host__ __device__\ntemplate <class T>\nBOTH T f(T x) { return x; }\n",
        'extern "C" { __device__ int g(int); }\n',
        'INSTANTIATE(float);\nstatic_assert(sizeof(int) == 4, "");\n',
        "__device__ bool operator==(Pair a, Pair b) { return a.x == b.x; }\n",
        "const int table[] = {1, 2};\n// int main() { }\n__constant__ float w[4];\nextern __shared__ float s[];\n",
        "template <class T> struct Box { T x; };\ntemplate <class T> using Pointer = T*;\nenum Kind { A, B };\n",
        "#ifdef FAST\n__device__ int f() { return 1; }\n#else\n__device__ int f() { return 2; }\n#endif\n",
        "template __global__ void k<3>(float *);\nnamespace cg = cooperative_groups;\nusing namespace cg;\n",
        "__device__ int unclosed() { return 1;\n",
    ],
)
def test_what_a_kernel_may_use_is_left(text):
    assert device_part(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "int main() { return 0; }",
        "static inline std::vector<int> f(int a = g(3)) { return {a}; }",
        "std::ostream& operator<<(std::ostream& o, A a) { return o; }",
        "void Timer::stop() const { }",
        "template <class T, int N = 3> T* make(T (&x)[N]) { return x; }",
        "__host__ int only() { return 1; }",
        "void later(int, float);",
        'extern "C" int puts(const char*);',
        "using std::vector;",
        "using namespace std::chrono;",
        "auto add = [](int a, int b) { return a + b; };",
        "static cublasHandle_t handle;",
        "StopWatchInterface *timer = NULL;",
        "int X = TILE_DIM, *y[3];",
        "unsigned long long total(5);",
        "template void reduce<int>(int n, int *in);",
        "struct Options { std::string name; cudaStream_t stream; };",
        "typedef std::vector<float> Floats;",
        'const std::string NAME = "x";',
        'PYBIND11_MODULE(NAME, m) { m.def("f", &f); }',
    ],
)
def test_what_only_the_host_can_use_is_blanked(text):
    assert device_part(text).strip() in ("", 'extern "C"')


def test_an_error_in_a_program_is_that_of_its_kernel():
    with pytest.raises(CompileError, match=r'own.cu\(19\): error: identifier "oops" is undefined') as caught:
        compile_source(PROGRAM.replace("threadIdx.x;", "threadIdx.x + oops;"), entry="scale<3>", name="own.cu")
    assert "gettimeofday" not in str(caught.value)


def test_an_exported_cache_keeps_the_names_of_kernels(tmp_path, monkeypatch):
    compile_source(NAMES, entry="fill<double, 7>")
    assert kernel_cache().export(tmp_path / "kernels.zip") == 1
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "elsewhere"))
    assert kernel_cache().load_archive(tmp_path / "kernels.zip") == 1
    kernel = compile_source(NAMES, entry="fill<double, 7>")
    assert (kernel.entry, kernel.from_cache) == ("_Z4fillIdLi7EEvPT_", True)


def test_conditions_are_kept_whole_where_a_host_function_stands_in_one_branch():
    text = """#if N > 1
void host() { int a; }
#else
#define ONE 1
void host(int) { int b; }
#endif
void cut(int n) {
#ifdef DEBUG
  if (n) {
#else
  {
#endif
  }
}
__global__ void k(int *x) { *x = 5; }
"""
    left = device_part(text)
    assert [line for line in left.splitlines() if line.strip()] == [
        "#if N > 1", "#else", "#define ONE 1", "#endif", "#ifdef DEBUG", "#else", "#endif", text.splitlines()[-1]
    ]  # fmt: skip
    assert ".entry k(" in compile_source(text.replace("__global__", 'extern "C" __global__'), entry="k").ptx


def test_short_names_of_types_and_a_byte_order_mark_are_taken():
    source = "\ufeff__global__ void k(uint *x, ushort y, ulong z) { *x = y + z; }\ntypedef unsigned int uint;"
    assert compile_source(source, entry="k").entry == "_Z1kPjtm"


def test_kernels_alone_are_taken_with_a_host_library_included():
    for header in (
        "cublas_v2.h",
        "curand.h",
        "cuda_gl_interop.h",
        "GL/gl.h",
        "thrust/device_vector.h",
        "iostream",
        "torch/extension.h",
    ):
        compile_source(f"#include <{header}>\n__global__ void k(int *x) {{ *x = 5; }}", entry="k")


def test_half_types_come_with_the_header_of_a_host_library_that_brings_them():
    pytest.importorskip("nvidia", reason="needs the wheel nvidia-cuda-runtime")
    source = "#include <cublas_v2.h>\n__global__ void k(__nv_bfloat16 *x, half y) { *x = __float2bfloat16(y); }"
    assert compile_source(source, entry="k").entry == "_Z1kP13__nv_bfloat166__half"


def test_complex_types_come_with_the_header_of_a_host_library_that_brings_them():
    pytest.importorskip("nvidia", reason="needs the wheel nvidia-cuda-runtime")
    kernel = (
        "\n__global__ void k(const cufftComplex *x, float *y) { *y = cuCabsf(*x); }\nint main() { cufftHandle plan; }"
    )
    for headers in ("#include <cufft.h>", "#include <cublas_v2.h>\n#include <cufftXt.h>"):
        assert compile_source(headers + kernel, entry="k").entry == "_Z1kPK6float2Pf"


def test_names_of_opengl_are_the_hosts(tmp_path):
    (tmp_path / "helper_gl.h").write_text(
        "#include <GL/glext.h>\nstatic PFNGLBINDBUFFERPROC glBindBuffer;\nGLuint vbo;\n"
    )
    source = '#include "helper_gl.h"\n__global__ void k(int *x) { *x = 5; }'
    assert compile_source(source, entry="k", include=[tmp_path]).entry == "_Z1kPi"


def test_limits_that_the_hosts_compiler_defines_of_itself_are_there():
    source = "__global__ void k(float *x, int *y) { *x = -__FLT_MAX__ + __FLT_MIN__; *y = __INT_MAX__; }"
    assert compile_source(source, entry="k").entry == "_Z1kPfPi"


def test_a_line_of_a_macro_is_continued_over_blanks_after_its_backslash():
    source = "#define BIND(name) \\\nvoid name(Tensor a) { \\   \n  use(a); \\\n}\nBIND(f)\nint main() {}\n"
    assert compile_source(source + "__global__ void k(int *x) {}", entry="k").entry == "_Z1kPi"


def test_what_hides_from_the_scan_is_found_by_its_errors():
    source = """#include <iostream>
REGISTER(odd, 5);
__global__ void k(int *x) { *x = 5; }
static Odd<int> hidden = {1}, more;
int main() { k<<<1, 1>>>(nullptr); }
"""
    assert compile_source(source, entry="k").entry == "_Z1kPi"


@pytest.mark.parametrize("header", ["cstddef", "stddef.h"])
def test_the_offset_of_a_member_is_a_constant(header):
    source = f"""#include <{header}>
struct Pair {{ int a; float b[2]; }};
static_assert(offsetof(Pair, b) == 4);
__global__ void k(size_t *x) {{ *x = offsetof(Pair, b[1]); }}
"""
    assert "8;" in compile_source(source, entry="k").ptx


def test_a_file_may_ask_for_the_system_that_nvcc_runs_on():
    source = """#if defined(__linux__) && defined(__unix__)
__global__ void k(int *x) { *x = 5; }
#else
#error unsupported
#endif
"""
    assert compile_source(source, entry="k").entry == "_Z1kPi"


def test_a_header_in_brackets_is_found_in_the_folders_that_were_named(tmp_path):
    (tmp_path / "helper.h").write_bytes("\ufeff#define FIVE 5\n".encode())
    source = "#include <helper.h>\n__global__ void k(int *x) { *x = FIVE; }"
    assert ", 5;" in compile_source(source, entry="k", include=[tmp_path]).ptx
    with pytest.raises(CompileError, match=r"helper.h was not found. Name its folder"):
        compile_source(source, entry="k")


def test_members_of_std_come_from_libcudacxx_where_kernels_use_them():
    pytest.importorskip("nvidia", reason="needs the wheel nvidia-cuda-cccl")
    source = """#include <type_traits>
#include <cuda_fp16.h>
template <class T> __global__ void k(T *x) {
  if constexpr (std::is_same_v<T, __half>) *x = std::numeric_limits<int>::max() > 5 ? 1 : 2;
}"""
    assert compile_source(source, entry="k<__half>").entry == "_Z1kI6__halfEvPT_"


def test_a_template_whose_parameters_do_not_compile_is_an_error():
    """NVRTC 13.5 dies of a name expression for such a kernel: the name is asked for in another way."""
    with pytest.raises(CompileError, match='identifier "half" is undefined'):
        compile_source("template <int N> __global__ void k(half *a) { a[0] = 1; }", entry="k<3>")


def test_warnings_come_after_the_error():
    pytest.importorskip("nvidia", reason="needs the wheel nvidia-cuda-cccl")
    source = "#include <cooperative_groups.h>\n__global__ void k(int *x) { int unused = 1; *x = zzz; }"
    with pytest.raises(CompileError) as caught:
        compile_source(source, entry="k", name="own.cu")
    assert str(caught.value).splitlines()[1].startswith("own.cu(2): error")
    assert "SHRT_MIN" not in str(caught.value)


def test_a_kernels_parameters_are_told_by_their_types():
    source = """#include <cuda_bf16.h>
    #include <cuda_fp16.h>
    struct Own { int a[3]; }; enum E { A }; typedef const unsigned char Byte;
    __global__ void k(const float *a, double b, Byte *c, __half d, __nv_bfloat16 **e, float4 *f, int2 g, Own h, E i,
                      const bool j, long long k, size_t l, void *m, char n) {}"""
    types = compile_source(source, entry="k").types
    assert [(t.kind, t.bytes, t.pointers, t.vector) for t in types] == [
        ("f", 4, 1, False), ("f", 8, 0, False), ("u", 1, 1, False), ("f", 2, 0, False), ("b", 2, 2, False),
        ("f", 4, 1, True), ("i", 4, 0, True), ("", 0, 0, False), ("", 0, 0, False), ("B", 1, 0, False),
        ("i", 8, 0, False), ("u", 8, 0, False), ("", 0, 1, False), ("i", 1, 0, False),
    ]  # fmt: skip
    assert types[0].name == "float32"
    kernel = compile_source("__global__ void none() {}", entry="none")
    assert (kernel.types, "tilewright_" in kernel.ptx) == ((), False)
    assert compile_source('extern "C" __global__ void none() {}', entry="none").entry == "none"


def test_a_program_with_cooperative_groups_compiles_once(monkeypatch):
    pytest.importorskip("nvidia", reason="needs the wheel nvidia-cuda-cccl")
    from tilewright.jit import nvrtc

    built, build = [], nvrtc.build
    monkeypatch.setattr(nvrtc, "build", lambda *given: built.append(given) or build(*given))
    source = """#include <cooperative_groups.h>
#include <cublas_v2.h>
#include <iostream>
#include <vector>
#include "not_there.h"
namespace cg = cooperative_groups;
static cublasHandle_t handle;
__global__ void k(float *x, uint n) { cg::this_thread_block().sync(); x[0] = n; }
int main() { std::vector<float> v(5); k<<<1, 1>>>(nullptr, 5); std::cout << v[0]; }
"""
    assert compile_source(source, entry="k").entry == "_Z1kPfj"
    assert len(built) == 1


LIBRARY = """#pragma once
#ifndef __CUDACC_RTC__
#include <ostream>
#endif
template <bool B> struct Bool { static constexpr bool value = B; };
template <class T> Bool<(sizeof(T) > 4)> is_wide(T *);
struct Launcher {
  static constexpr int most = 8;
  __host__ static int launch(void const *kernel) { return cudaLaunch(kernel); }
private:
  __host__ static void told() { std::cout << most; }
};
inline std::ostream *none();
"""


def test_a_header_that_knows_run_time_compilation_keeps_all_but_what_says_host(tmp_path):
    (tmp_path / "library.h").write_text(LIBRARY.replace("inline std::ostream *none();", ""))
    source = """#include <cstdlib>
#include "library.h"
__global__ void k(int *x) { *x = decltype(is_wide((double *)nullptr))::value + Launcher::most; }
int main() { int *x; cudaMalloc(&x, 4); k<<<1, 1>>>(x); }
"""
    assert compile_source(source, entry="k", include=[tmp_path]).entry == "_Z1kPi"


def test_members_that_say_host_are_blanked_and_the_others_left():
    left = device_part(LIBRARY, whole=False)
    assert "launch" not in left
    assert "told" not in left
    assert "is_wide" in left
    assert "private:" in left
    assert "most = 8" in left


def test_braces_in_launch_bounds_do_not_end_a_kernel():
    text = "struct Tile { int size; };\ntemplate <class T> constexpr int of(T t) { return 64; }\n"
    text += "template <class T>\n__global__ void __launch_bounds__(of(T{})) k(int *x) { *x = 1; }\nint main() { }\n"
    assert "__launch_bounds__(of(T{})) k(int *x) { *x = 1; }" in device_part(text)


def test_a_header_next_to_its_includer_may_have_the_name_of_one_of_cuda(tmp_path):
    pytest.importorskip("nvidia", reason="needs the wheel nvidia-cuda-runtime")
    (tmp_path / "lib" / "arch").mkdir(parents=True)
    (tmp_path / "lib" / "arch" / "mma.h").write_text("#pragma once\nstruct OfLib { int x; };\n")
    (tmp_path / "lib" / "arch" / "all.h").write_text('#include "mma.h"\n#include "lib/arch/mma.h"\n')
    source = """#include "lib/arch/all.h"
#include <mma.h>
__global__ void k(OfLib a, int *x) { nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f; *x = a.x; }
"""
    assert compile_source(source, entry="k", include=[tmp_path]).entry == "_Z1k5OfLibPi"


def test_what_waits_for_the_kernel_before_is_known_without_a_header():
    source = """__global__ void k(int *x) {
        cudaGridDependencySynchronize();
        *x = 1;
        cudaTriggerProgrammaticLaunchCompletion();
    }"""
    assert "griddepcontrol.wait" in compile_source(source, entry="k").ptx


def test_declarations_of_the_host_go_out_of_a_block_of_c():
    text = """#ifdef __cplusplus
extern "C" {
#endif
Thread start(Routine, void *data);
__device__ int kept(int);
#ifdef __cplusplus
}
#endif
"""
    assert device_part(text) == text.replace("Thread start(Routine, void *data);", " " * 34)


def test_a_header_that_is_included_by_two_names_is_read_once(tmp_path):
    (tmp_path / "lib" / "ops").mkdir(parents=True)
    (tmp_path / "lib" / "base.h").write_text("#pragma once\nstruct Base { int value; };\n")
    (tmp_path / "lib" / "ops" / "sum.h").write_text('#pragma once\n#include "../../lib/base.h"\n')
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "k.h").write_text('#pragma once\n#include "../lib/base.h"\n')
    source = '#include "ops/sum.h"\n#include "base.h"\n#include "k.h"\n__global__ void k(Base *x) { x->value = 1; }\n'
    folders = [tmp_path / "lib", tmp_path / "kernels"]
    assert compile_source(source, entry="k", include=folders).entry == "_Z1kP4Base"


def test_two_headers_whose_places_have_one_name_are_two(tmp_path):
    for folder, value in (("lib", 3), ("more", 4)):
        (tmp_path / folder / "common").mkdir(parents=True)
        (tmp_path / folder / "common" / "value.h").write_text(f"#pragma once\nconstexpr int of_{folder} = {value};\n")
        (tmp_path / folder / "ops").mkdir()
        (tmp_path / folder / "ops" / f"{folder}.h").write_text('#pragma once\n#include "../common/value.h"\n')
    source = '#include "ops/lib.h"\n#include "ops/more.h"\n__global__ void k(int *x) { *x = of_lib * of_more; }\n'
    ptx = compile_source(source, entry="k", include=[tmp_path / "lib", tmp_path / "more"]).ptx
    assert ", 12;" in ptx


def test_a_host_function_that_the_compiler_runs_is_kept():
    source = "__host__ consteval int blocks() { return 2; }\n__global__ __launch_bounds__(64, blocks()) void k() {}\n"
    assert ".minnctapersm 2" in compile_source(source, entry="k", options=["--std=c++20"]).ptx


def test_a_macro_that_makes_kernels_does_not_hide_what_follows_it():
    macro = "#define KERNEL(name, T) __global__ void name(T *x) { *x *= T(2); }\n"
    text = device_part(macro + "KERNEL(doubled, float)\nKERNEL(twice, size_t(*))\nstatic cublasHandle_t handle;\n")
    assert text.splitlines()[1:] == ["KERNEL(doubled, float)", "KERNEL(twice, size_t(*))", " " * 29]


def test_numbers_may_be_narrowed_within_braces():
    source = "struct At { int x; };\n__global__ void k(int *y) { At at = {threadIdx.x}; *y = at.x; }\n"
    assert compile_source(source, entry="k").entry == "_Z1kPi"
