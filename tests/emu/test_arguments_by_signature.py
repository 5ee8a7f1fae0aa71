"""Arguments against the kernel's C++ signature: what would only be reinterpreted is refused, numbers go by value."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import emu
from tilewright.emu import Struct, TensorMap
from tilewright.emu.arguments import as_numbers, parse_argument
from tilewright.errors import InvalidOperand
from tilewright.jit import compile_source
from tilewright.jit.entry import parameter_names

POINTERS = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
struct Own { float a, b; };
template <class T> __global__ void k(const T *__restrict__ a, long long n) {}
"""


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("float", ["f4", "c8"], ["f8", "f2", "i4", "u4"]),
        ("double", ["f8", "c16"], ["f4", "i8"]),
        ("float4", ["f4"], ["f8"]),
        ("int", ["i4", "u4"], ["i8", "f4", "bool"]),
        ("unsigned char", ["u1", "i1", "bool"], ["f4", "u2"]),
        ("bool", ["bool", "u1"], ["i4"]),
        ("size_t", ["u8", "i8"], ["u4", "f8"]),
        ("__half", ["f2"], ["f4", "u2", "i2"]),
        ("__nv_bfloat16", [ml_dtypes.bfloat16, "u2"], ["f2", "f4"]),
        ("void", ["f4", "f8", "u1"], []),
        ("Own", ["f4", "u1"], []),
        ("float *", ["u8"], []),
    ],
)
def test_an_array_has_to_be_of_the_type_that_the_parameter_points_to(kind, right, wrong):
    for dtype in right:
        tw.emulate(POINTERS, f"k<{kind}>", 1, 1, [np.zeros(4, dtype), 4])
    for dtype in wrong:
        with pytest.raises(InvalidOperand, match=r"argument 0, a, is an array of .*Convert it: array\.astype"):
            tw.emulate(POINTERS, f"k<{kind}>", 1, 1, [np.zeros(4, dtype), 4])


def test_numpys_default_for_a_float_pointer_is_refused_with_the_remedy():
    source = "__global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }"
    with pytest.raises(InvalidOperand, match=r"array of float64; .* is float32\*.*array\.astype\(np\.float32\)"):
        tw.emulate(source, "scale", 1, 32, [np.ones(32), 2.0])


def test_big_endian_arrays_are_converted():
    source = "__global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }"
    result = tw.emulate(source, "scale", 1, 4, [np.arange(4, dtype=">f4"), np.array(3, ">f8")])
    assert result.arrays[0].tolist() == [0, 3, 6, 9]
    ptx = compile_source(source, entry="_Z5scalePff").ptx
    assert tw.emulate(ptx, "_Z5scalePff", 1, 4, [np.ones(4, ">f4"), 2.0]).arrays[0].tolist() == [2] * 4


NUMBERS = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
__global__ void k(double *out, __half h, __nv_bfloat16 b, float f, int i, unsigned u, bool t, short s, long long l) {
  out[0] = __half2float(h); out[1] = __bfloat162float(b); out[2] = f; out[3] = i; out[4] = u; out[5] = t; out[6] = s;
  out[7] = l;
}"""
VALUES = [1.5, 2.25, 0.5, -7, 2**32 - 1, True, -3, 2**40]


@pytest.mark.parametrize("convert", [lambda v: v, np.asarray, lambda v: np.array([v])[0]])
def test_numbers_of_python_and_numpy_go_by_value(convert):
    out = tw.emulate(NUMBERS, "k", 1, 1, [np.zeros(8), *map(convert, VALUES)]).arrays[0]
    assert out.tolist() == VALUES
    whole = tw.emulate(NUMBERS, "k", 1, 1, [np.zeros(8), *map(convert, [1, 2, 3, 4, 5, 1, 7, 8])]).arrays[0]
    assert whole.tolist() == [1, 2, 3, 4, 5, 1, 7, 8]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (1, 70000.0, "larger than any float16"),
        (2, np.zeros(3, np.uint16), "is a buffer; the kernel's parameter is bfloat16"),
        (3, 1e39, "larger than any float32"),
        (3, "i32=4", "is i32; the kernel's parameter is float32"),
        (4, 2**31, "outside -2147483648 to 2147483647"),
        (4, 2.0, "is a float; the kernel's parameter is int32, an integer"),
        (5, -1, "outside 0 to 4294967295"),
        (6, 2, "outside 0 to 1"),
        (7, np.int64(40000), "outside -32768 to 32767"),
        (8, 2**63, "outside"),
        (0, 5, r"is a number; the kernel's parameter is float64\*"),
        (3, 1j, "complex"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(place, value, message):
    args = [np.zeros(8), *VALUES]
    args[place] = value
    with pytest.raises(InvalidOperand, match=message):
        tw.emulate(NUMBERS, "k", 1, 1, args)


def test_ptx_alone_does_not_tell_half_from_bits():
    ptx = compile_source(NUMBERS, entry="k")
    with pytest.raises(InvalidOperand, match=r"a struct of 2 bytes.*f16=1.5"):
        tw.emulate(ptx.ptx, ptx.entry, 1, 1, [np.zeros(8), *VALUES])
    args = [np.zeros(8), np.float16(1.5), "bf16=2.25", *VALUES[2:]]
    assert tw.emulate(ptx.ptx, ptx.entry, 1, 1, args).arrays[0].tolist() == VALUES


def test_null_pointers_and_structs():
    source = """struct Pair { int a; float b; };
    __global__ void k(float *x, float *maybe, Pair p) { x[0] = maybe == nullptr ? p.a + p.b : -1; }"""
    pair = np.array((3, 0.5), np.dtype([("a", "i4"), ("b", "f4")]))
    for given in (pair, pair.tobytes(), bytearray(pair.tobytes())):
        assert tw.emulate(source, "k", 1, 1, [np.zeros(1, np.float32), None, given]).arrays[0][0] == 3.5
    with pytest.raises(InvalidOperand, match="a struct of 8 bytes"):
        tw.emulate(source, "k", 1, 1, [np.zeros(1, np.float32), None, b"abc"])


@pytest.mark.parametrize("place", [1, 2, 3, 4, 6])
def test_no_number_is_not_zero(place):
    args = [np.zeros(8), *VALUES]
    args[place] = None
    with pytest.raises(InvalidOperand, match=r"is a null pointer; the kernel's parameter is .*Pass a number"):
        tw.emulate(NUMBERS, "k", 1, 1, args)


IN_PLACE = "__global__ void k(float *x, float *y) { int i = threadIdx.x; y[i] = x[i] + 1; x[i] = y[i] * 10; }"


def test_one_array_given_twice_is_one_buffer():
    z = np.arange(32, dtype=np.float32)
    both = tw.emulate(IN_PLACE, "k", 1, 32, [z, z]).arrays
    assert [x.tolist() for x in both] == [(10 * (z + 1)).tolist()] * 2
    assert z.tolist() == list(range(32))
    texts = tw.emulate(IN_PLACE, "k", 1, 32, ["f32[32]=ones", "f32[32]=ones"]).arrays
    assert [x[0] for x in texts] == [20, 2]


def test_arrays_that_overlap_are_refused_and_neighbours_are_not():
    z = np.arange(64, dtype=np.float32)
    for other in (z[:], z[:32], z[::2]):
        with pytest.raises(InvalidOperand, match="arguments 0 and 1 are two arrays over the same memory"):
            tw.emulate(IN_PLACE, "k", 1, 32, [z, other])
    assert tw.emulate(IN_PLACE, "k", 1, 32, [z[::2], z[1::2]]).arrays[0][1] == 30


HELD = """struct Held { float *p; };
__global__ void k(Held h, float *y, float a) { h.p[threadIdx.x] += 1; y[threadIdx.x] *= 2 + a; }"""


def test_an_array_in_a_struct_and_by_itself_is_one_buffer():
    z = np.arange(32, dtype=np.float32)
    both = tw.emulate(HELD, "k", 1, 32, [Struct({0: z}), z, 0.0]).arrays
    assert all(x.tolist() == (2 * (z + 1)).tolist() for x in both)


@pytest.mark.parametrize("take", [lambda z: z[::2], lambda z: z.reshape(8, 8).T], ids=["steps", "turned"])
def test_an_array_that_would_lie_in_two_ways_is_refused(take):
    z = take(np.arange(64, dtype=np.float32))
    with pytest.raises(InvalidOperand, match=r"arguments 0 and 1 are one array of strides .*ascontiguousarray"):
        tw.emulate(HELD, "k", 1, 8, [Struct({0: z}), z, 0.0])
    twice = tw.emulate(IN_PLACE, "k", 1, z.size, [z, z]).arrays
    assert twice[0].tolist() == twice[1].tolist() == (10 * (z + 1)).tolist()


def test_what_structs_hold_overlaps_nothing_and_runs_forwards():
    z = np.arange(64, dtype=np.float32)
    for args in ([Struct({0: z[:32]}), z[16:48], 0.0], [Struct({0: z}), z[:32], 0.0]):
        with pytest.raises(InvalidOperand, match="arguments 0 and 1 are two arrays over the same memory"):
            tw.emulate(HELD, "k", 1, 8, args)
    with pytest.raises(InvalidOperand, match=r"strides \(-4,\) in argument 0"):
        tw.emulate(HELD, "k", 1, 8, [Struct({0: z[::-1]}), z.copy(), 0.0])


def test_a_number_may_be_an_element_of_another_argument():
    z = np.ones(32, np.float32)
    assert tw.emulate(HELD, "k", 1, 32, [Struct({0: z.copy()}), z, z[0, ...]]).arrays[1].tolist() == [3.0] * 32
    first = "__global__ void k(float a, float *y) { y[threadIdx.x] += a; }"
    assert tw.emulate(first, "k", 1, 32, [z[0, ...], z]).arrays[0].tolist() == [2.0] * 32


def test_a_masked_array_is_no_buffer():
    with pytest.raises(InvalidOperand, match="the mask would be ignored"):
        tw.emulate(IN_PLACE, "k", 1, 1, [np.ma.zeros(4, np.float32), np.zeros(4, np.float32)])


def test_arguments_may_be_given_by_name():
    source = """/* void axpy(int wrong) */ __global__ void axpy(const float *__restrict__ x, float y[], float a = 2,
        int n /* , not this */ = 3) { int i = threadIdx.x; if (i < n) y[i] += a * x[i]; }"""
    x = np.arange(8, dtype=np.float32)
    result = tw.emulate(source, "axpy", 1, 8, {"n": 8, "a": 2.0, "x": x, "y": np.ones(8, np.float32)})
    assert list(result.named) == ["x", "y"]
    assert result.named["y"].tolist() == (1 + 2 * x).tolist()
    with pytest.raises(
        InvalidOperand, match=r"float32\* x, float32\* y, float32 a, int32 n: n is missing, m is not one"
    ):
        tw.emulate(source, "axpy", 1, 8, {"m": 8, "a": 2.0, "x": x, "y": x})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("template <class T> __global__ void __launch_bounds__(256) k(T *a, Map<int, T> b) {}", ("a", "b")),
        ("__global__ void k() {}", ()),
        ("void k(int x); __global__ void k(const int *x, float y) {}", ("x", "y")),
        ("#define K k\n__global__ void K(int x) {}", ()),
    ],
)
def test_names_are_read_from_the_declaration(text, names):
    assert parameter_names(text, "ns::k<float, 3>") == names


CONSTANTS = """namespace ours { __constant__ float table[4]; }
static __constant__ int scale; __device__ double offset;
__global__ void k(float *x) { x[threadIdx.x] = ours::table[threadIdx.x] * scale + offset; }"""


def test_constant_and_device_variables_are_filled_by_their_names():
    table = np.array([1, 2, 3, 4], np.float32)
    given = {"ours::table": table, "scale": "i32=10", "offset": np.float64(0.5)}
    out = tw.emulate(CONSTANTS, "k", 1, 4, [np.zeros(4, np.float32)], constants=given).arrays[0]
    assert out.tolist() == [10.5, 20.5, 30.5, 40.5]


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"tables": np.zeros(4)}, "'tables' is the name of 0 variables"),
        ({"table": np.zeros(4)}, "has 32 bytes .*; the variable has 16"),
        ([1], "constants is"),
    ],
)
def test_constants_that_are_not_there_or_of_another_size_are_refused(constants, message):
    with pytest.raises(InvalidOperand, match=message):
        tw.emulate(CONSTANTS, "k", 1, 4, [np.zeros(4, np.float32)], constants=constants)


@pytest.mark.parametrize(
    "change",
    [{"shared_bytes": 4.5}, {"shared_bytes": "4"}, {"shared_bytes": -4}, {"limit": None}, {"limit": "9"}, {"limit": 0},
     {"seed": -1}, {"seed": "x"}, {"include": [5]}, {"include": ["a\0b"]}, {"progress": 5}, {"gpu": 5},
     {"constants": {"x": object()}}, {"cluster": "2"}],
)  # fmt: skip
def test_options_of_a_wrong_kind_are_refused_by_an_error_of_ours(change):
    with pytest.raises(InvalidOperand):
        tw.emulate("__global__ void k(float *x) {}", "k", 1, 1, [np.zeros(1, np.float32)], **change)
    with pytest.raises(InvalidOperand, match="could not be read"):
        tw.emulate("a\0b.cu", "k", 1, 1, [])


def test_the_limit_is_one_of_the_whole_launch():
    source = "__global__ void k(int *x) { for (int i = 0; i < 100; i++) x[i] = i; }"
    emu.emulate(source, "k", 1, 32, [np.zeros(100, np.int32)], limit=2000)
    with pytest.raises(tw.errors.EmulatorFault, match=r"more than limit=2,000 allows"):
        emu.emulate(source, "k", 4096, 32, [np.zeros(100, np.int32)], limit=2000)


def test_a_file_of_arrays_is_taken_by_its_name(tmp_path):
    source = "__global__ void k(float *x, double *y) { x[threadIdx.x] += y[threadIdx.x]; }"
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.float32))
    np.savez(tmp_path / "z.npz", a=np.ones(4), b=np.full(4, 2.0))
    result = tw.emulate(source, "k", 1, 4, [f"{tmp_path}/x.npy", f"{tmp_path}/z.npz:b"])
    assert result.arrays[0].tolist() == [2, 3, 4, 5]
    with pytest.raises(InvalidOperand, match="holds the arrays a, b"):
        tw.emulate(source, "k", 1, 4, [f"{tmp_path}/x.npy", f"{tmp_path}/z.npz"])


STRUCT = """
struct Shape { int rows, columns; };
struct Matrix { const float *data; Shape shape; float scale; };
extern "C" __global__ void scaled(Matrix from, float *to) {
    int i = threadIdx.x;
    if (i < from.shape.rows * from.shape.columns) to[i] = from.scale * from.data[i];
}
struct Outputs { float *first; float *second; };
extern "C" __global__ void split(const float *in, Outputs out) {
    out.first[threadIdx.x] = in[threadIdx.x];
    out.second[threadIdx.x] = -in[threadIdx.x];
}
"""


def test_a_struct_holds_arrays_and_numbers_at_their_offsets():
    x = np.arange(24, dtype=np.float32)
    matrix = Struct({0: x, 8: np.int32(4), 12: np.int32(6), 16: np.float32(2)})
    result = tw.emulate(STRUCT, "scaled", 1, 32, {"from": matrix, "to": "f32[24]=nan"})
    np.testing.assert_array_equal(result.named["to"], 2 * x)
    np.testing.assert_array_equal(result.named["from_0"], x)


def test_arrays_of_one_struct_are_told_apart_by_their_offsets():
    x, out = np.arange(32, dtype=np.float32), Struct({0: np.zeros(32, np.float32), 8: np.zeros(32, np.float32)})
    result = tw.emulate(STRUCT, "split", 1, 32, [x, out])
    np.testing.assert_array_equal(result.named["out_0"], x)
    np.testing.assert_array_equal(result.named["out_8"], -x)


WRONG_STRUCTS = {
    "overlap": ({0: np.zeros(1, np.float32), 4: np.int32(1)}, r"4 bytes at offset 4 .* the part before ends at 8"),
    "too long": ({20: np.int64(1)}, r"8 bytes at offset 20 .* has 24 bytes"),
    "not bytes": ({0: 5}, r"the part at offset 0 is 5; give an array"),
    "not an offset": ({-8: np.int32(5)}, r"lies at -8"),
}


@pytest.mark.parametrize(("parts", "says"), WRONG_STRUCTS.values(), ids=WRONG_STRUCTS)
def test_a_struct_that_does_not_fit_is_refused(parts, says):
    with pytest.raises(InvalidOperand, match=says):
        tw.emulate(STRUCT, "scaled", 1, 32, [Struct(parts), "f32[24]=nan"])


def test_fp8_buffers_are_bytes_that_count_as_numbers():
    source = """extern "C" __global__ void copy(const unsigned char *x, unsigned char *y) {
        y[threadIdx.x] = x[threadIdx.x];
    }"""
    for kind in ("e4m3", "e5m2"):
        argument = parse_argument(f"{kind}[32]=random")
        values = as_numbers(argument.array, kind)
        assert 0.5 < np.abs(values).mean() < 1.2
        result = tw.emulate(source, "copy", 1, 32, [f"{kind}[32]=arange", f"{kind}[32]=zeros"])
        np.testing.assert_array_equal(as_numbers(result.arrays[1], kind)[:9], np.arange(9))
    with pytest.raises(InvalidOperand, match="is for buffers"):
        parse_argument("e4m3=1.5")


def test_options_reach_the_compiler():
    source = 'extern "C" __global__ void fill(int *x) { x[threadIdx.x] = WHAT + (int)(__cplusplus / 100); }'
    result = tw.emulate(source, "fill", 1, 32, ["i32[32]=zeros"], options=["-DWHAT=5", "--std=c++20"])
    assert set(result.arrays[0]) == {5 + 2020}
    with pytest.raises(InvalidOperand, match="options holds 'WHAT=5'"):
        tw.emulate(source, "fill", 1, 32, ["i32[32]=zeros"], options=["WHAT=5"])


BOX = """
#include <cuda.h>
extern "C" __global__ void box(const CUtensorMap *map, float *to) {
    __shared__ alignas(128) float tile[32];
    __shared__ alignas(8) unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(tile), full = (unsigned)__cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(full));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(full) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {4, 2}], [%2];"
                     ::"r"(at), "l"(map), "r"(full) : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done)
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
                     : "=r"(done) : "r"(full) : "memory");
    to[threadIdx.x] = tile[threadIdx.x];
}
"""


def test_a_tensor_map_may_lie_in_global_memory():
    pytest.importorskip("nvidia", reason="needs the wheel nvidia-cuda-runtime")
    x = np.arange(256, dtype=np.float32).reshape(16, 16)
    result = tw.emulate(BOX, "box", 1, 32, [TensorMap.of(x, (4, 8)), "f32[32]=nan"])
    np.testing.assert_array_equal(result.arrays[1].reshape(4, 8), x[2:6, 4:12])


def safetensors(path, **arrays):
    """A file of arrays as its format has them. Each: the format's type, a NumPy array."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (kind, array) in arrays.items():
        stop = len(data) + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), stop]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_arguments_come_from_safetensors(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    path = safetensors(
        tmp_path / "w.safetensors", x=("F32", x), layer=("BF16", bits), few=("F8_E5M2", bits.view(np.uint8))
    )
    plain = parse_argument(f"{path}:x")
    np.testing.assert_array_equal(plain.array, x)
    held = parse_argument(f"{path}:layer")
    assert (held.kind, held.array.dtype) == ("bf16", np.uint16)
    np.testing.assert_array_equal(as_numbers(held.array, held.kind), x)
    np.testing.assert_array_equal(parse_argument(f"f32[3,4]={path}:layer").array, x)
    assert parse_argument(f"{path}:few").kind == "e5m2"
    with pytest.raises(InvalidOperand, match="holds the arrays x, layer, few"):
        parse_argument(f"{path}:y")


def test_a_broken_safetensors_file_is_refused(tmp_path):
    whole = safetensors(tmp_path / "whole.safetensors", x=("F32", np.ones(8, np.float32))).read_bytes()
    broken = tmp_path / "broken.safetensors"
    cut = [b"", whole[:5], whole[:40], whole[:-4], b"\xff" * 64, whole[:8] + b"[" + whole[9:]]
    changes = {b"F32": b"F99", b"[8]": b"[9]", b'"dtype"': b'"dtyqe"', b"32]": b"99]", b"[0,": b"[9,"}
    for data in (*cut, *(whole.replace(old, new) for old, new in changes.items())):
        broken.write_bytes(data)
        with pytest.raises(InvalidOperand, match="could not be read"):
            parse_argument(f"{broken}:x")
