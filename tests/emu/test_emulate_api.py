"""tw.emulate, emu.run, the argument grammar and the emulator as an executor."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import emu
from tilewright.emu import kept_patterns, memory
from tilewright.emu.api import decoded
from tilewright.emu.arguments import parse_argument
from tilewright.emu.engine import Engine
from tilewright.emu.global_races import GlobalRaces
from tilewright.emu.global_tracks import Track
from tilewright.emu.hazards import KINDS
from tilewright.emu.machine import Machine
from tilewright.emu.shadow import Shadow
from tilewright.emu.shared_memory import SharedPattern
from tilewright.errors import CompileError, ConfigRejected, InvalidOperand, PtxError
from tilewright.jit import Launch, compile_source, current_executor
from tilewright.lab.emulator_speed import ROWS, run_row

ADD = """extern "C" __global__ void add(const float *a, float *out, int n) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) out[i] = a[i] + 1;
}"""


def test_strings_of_the_grammar():
    result = tw.emulate(ADD, "add", (4, 1), 256, ["f32[1024]=arange", "f32[1024]=nan", "i32=1000"])
    a, out = result.arrays
    assert (a == np.arange(1024)).all()
    assert (out[:1000] == np.arange(1000) + 1).all()
    assert np.isnan(out[1000:]).all()
    assert result.hazards == []
    assert result.seconds > 0


def test_numpy_arrays_are_copied_in_and_come_back_in_their_shape():
    given = np.zeros((4, 8), np.float32)
    result = emu.emulate(ADD, "add", 1, 32, [np.ones((4, 8), np.float32), given, np.int32(32)])
    assert result.arrays[1].shape == (4, 8)
    assert (result.arrays[1] == 2).all()
    assert (given == 0).all()


def test_ptx_and_files_are_taken_as_well(tmp_path):
    ptx = compile_source(ADD, entry="add").ptx
    path = tmp_path / "add.cu"
    path.write_text(ADD)
    for source in (ptx, path, str(path)):
        assert emu.emulate(source, "add", 1, 32, ["f32[32]=zeros", "f32[32]=nan", 32]).arrays[1].tolist() == [1] * 32


def test_a_fault_in_a_file_names_that_file(tmp_path):
    path = tmp_path / "add.cu"
    path.write_text(ADD.replace("if (i < n)", ""))
    with pytest.raises(tw.errors.EmulatorFault) as caught:
        emu.emulate(path, "add", 1, 32, ["f32[32]=zeros", "f32[31]=nan", 31])
    assert (caught.value.hazard.file, caught.value.hazard.line) == (str(path), 3)
    assert "out[i] = a[i] + 1" in str(caught.value)


def test_random_is_the_same_for_the_same_seed():
    def first(seed):
        return emu.emulate(ADD, "add", 1, 1, ["f32[64]=random", "f32[64]=random", 0], seed=seed).arrays

    assert all((a == b).all() for a, b in zip(first(3), first(3), strict=True))
    assert (first(3)[0] != first(4)[0]).any()
    assert (first(3)[0] != first(3)[1]).any()


@pytest.mark.parametrize(
    ("text", "dtype", "values"),
    [
        ("f16[3]=ones", np.float16, [1, 1, 1]),
        ("bf16[2]=ones", np.uint16, [0x3F80, 0x3F80]),
        ("bf16[1]=nan", np.uint16, [0x7FFF]),
        ("f64[2,2]=arange", np.float64, [[0, 1], [2, 3]]),
        ("u8[300]=arange", np.uint8, [k % 256 for k in range(300)]),
        ("i64[2]=zeros", np.int64, [0, 0]),
        (" f32 [ 2 , 1 ] = ones ", np.float32, [[1], [1]]),
    ],
)
def test_buffers(text, dtype, values):
    array = parse_argument(text).array
    assert array.dtype == dtype
    assert array.tolist() == values


def test_random_integers_take_the_whole_range():
    array = parse_argument("i8[4000]=random").array
    assert (array.min(), array.max()) == (-128, 127)


def test_buffer_from_a_file(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.float64).reshape(2, 3))
    assert parse_argument(f"f32[2,3]={path}").array.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(InvalidOperand, match=r"holds the shape \(2, 3\), not \(3, 2\)"):
        parse_argument(f"f32[3,2]={path}")
    with pytest.raises(InvalidOperand, match="would cut"):
        parse_argument(f"i32[2,3]={path}")


@pytest.mark.parametrize(
    ("text", "value", "nbytes"),
    [
        ("i32=-5", -5, 4),
        ("u64=0xffffffffffffffff", 2**64 - 1, 8),
        ("f32=1.5", 1.5, 4),
        ("f32=nan", None, 4),
        ("bf16=2", 0x4000, 2),
    ],
)
def test_scalars(text, value, nbytes):
    scalar = parse_argument(text).scalar
    assert scalar.dtype.itemsize == nbytes
    assert np.isnan(scalar) if value is None else scalar == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f33[4]=zeros", "'f33' is not a type"),
        ("f32[4]=wibble", "'wibble' is not a fill. Fills: random"),
        ("f32[4]=rand", "Did you mean 'random'"),
        ("f32[a]=zeros", "is not a shape"),
        ("f32[²]=zeros", "is not a shape"),
        ("f32[99999999999,99999999999]=arange", "a buffer has"),
        (f"f32[{'9' * 5000}]=zeros", "that large"),
        (f"f32[{'1,' * 99}1]=zeros", "that large"),
        ("i32[4]=nan", "cannot be NaN"),
        ("i8=300", "outside i8"),
        ("i32=1.5", "not a value of i32"),
        ("hello", "not understood"),
        ("f32[2]=missing.npy", "could not be read"),
    ],
)
def test_arguments_that_are_refused(text, message):
    with pytest.raises(InvalidOperand, match=message):
        parse_argument(text)


@pytest.mark.parametrize(
    ("array", "kind", "message"),
    [
        (np.array([2**40, 1]), "i32", "would cut"),
        (np.array([-1, 1]), "u64", "would cut"),
        (np.ones(2, complex), "f32", "complex128"),
        (None, "f32", "could not be read"),
        ({"a": np.ones(2), "b": np.ones(3)}, "f32", "holds the arrays a, b"),
    ],
)
def test_files_that_are_no_such_buffer_are_refused(tmp_path, array, kind, message):
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        if isinstance(array, dict):
            np.savez(file, **array)
        elif array is not None:
            np.save(file, array)
    with pytest.raises(InvalidOperand, match=message):
        parse_argument(f"{kind}[2]={path}")


def test_the_emulators_page_names_every_kind_of_hazard():
    page = (Path(__file__).parents[2] / "docs" / "emulator.md").read_text(encoding="utf-8")
    assert set(KINDS) == set(re.findall(r"^\| `(\w+)` \|", page.split("## How it decides")[0], re.MULTILINE))


def test_a_ptx_file_that_is_damaged_is_read_as_ptx(tmp_path):
    path = tmp_path / "x.ptx"
    path.write_text(".version 9.0\n.target sm_80\nnonsense\n")
    with pytest.raises(PtxError, match="line 3"):
        emu.emulate(path, "add", 1, 32, [])


BUFFERS = ["f32[32]=zeros", "f32[32]=zeros"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"args": BUFFERS}, InvalidOperand, "2 arguments, but add takes 3"),
        ({"args": [*BUFFERS, "i64=1"]}, InvalidOperand, "is i64; the kernel's parameter is int32, of 4 bytes"),
        ({"args": [*BUFFERS, 2**40]}, InvalidOperand, "outside -2147483648 to 2147483647"),
        ({"args": [*BUFFERS, "f32[4]=zeros"]}, InvalidOperand, "int32, which is passed by value"),
        ({"args": [*BUFFERS, object()]}, InvalidOperand, "object is not understood"),
        ({"block": 2048}, InvalidOperand, "block"),
        ({"block": (32, 32, 2)}, ConfigRejected, "2048 threads"),
        ({"grid": 0}, InvalidOperand, "grid"),
        ({"grid": (1, 1, 1, 1)}, InvalidOperand, "4 sizes"),
        ({"entry": "nope"}, CompileError, "nope"),
        ({"shared_bytes": 300_000}, ConfigRejected, "300000 bytes of shared memory"),
        ({"gpu": "Voodoo 2"}, InvalidOperand, "Voodoo 2"),
        ({"hazards": "ignore"}, InvalidOperand, "ignore"),
        ({"strict": "no"}, InvalidOperand, "strict='no' is not True or False"),
        ({"red_zones": None}, InvalidOperand, "red_zones=None is not True or False"),
    ],
)
def test_launches_that_are_refused(change, error, message):
    call = {"entry": "add", "grid": 1, "block": 32, "args": [*BUFFERS, 32]} | change
    entry, grid, block, args = (call.pop(name) for name in ("entry", "grid", "block", "args"))
    with pytest.raises(error, match=message):
        emu.emulate(ADD, entry, grid, block, args, **call)


def test_a_source_that_does_not_compile_and_a_file_that_is_not_there():
    with pytest.raises(CompileError):
        emu.emulate("void k() { this is no C++ }", "k", 1, 1, [])
    with pytest.raises(InvalidOperand, match=r"missing\.cu"):
        emu.emulate("missing.cu", "k", 1, 1, [])
    with pytest.raises(PtxError):
        emu.emulate(".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() { wibble", "k", 1, 1, [])


def test_launch_bounds_of_the_kernel_hold():
    source = 'extern "C" __global__ void __launch_bounds__(64) k() {}'
    with pytest.raises(ConfigRejected, match="at most 64"):
        emu.emulate(source, "k", 1, 96, [])
    emu.emulate(source, "k", 1, 64, [])


def test_dynamic_shared_memory():
    source = """extern "C" __global__ void k(int *out) {
        extern __shared__ int s[]; __shared__ int fixed[8];
        s[threadIdx.x] = threadIdx.x; if (threadIdx.x < 8) fixed[threadIdx.x] = 100; __syncthreads();
        out[threadIdx.x] = s[31 - threadIdx.x] + fixed[threadIdx.x % 8];
    }"""
    assert emu.emulate(source, "k", 1, 32, ["i32[32]=zeros"], shared_bytes=128).arrays[0][0] == 131
    with pytest.raises(tw.errors.EmulatorFault, match="out_of_bounds"):
        emu.emulate(source, "k", 1, 32, ["i32[32]=zeros"], shared_bytes=124)


def test_progress_is_told_in_blocks():
    seen = []
    emu.emulate(ADD, "add", 500, 128, [*BUFFERS, 0], progress=lambda done, all_: seen.append((done, all_)))
    assert seen[-1] == (500, 500)
    assert seen == sorted(seen)


def test_progress_is_told_while_the_only_block_runs(monkeypatch):
    seen = []
    monkeypatch.setattr("tilewright.emu.machine.PULSE", 0.0)
    emu.emulate(ADD, "add", 1, 128, [*BUFFERS, 0], progress=lambda done, all_: seen.append((done, all_)))
    assert seen[0] == (0, 1)
    assert seen[-1] == (1, 1)


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("text", [".version 8.0\n.target sm_90\n.visible .entry k()\n{\nret;\n}\n", "nonsense"])
def test_reading_a_kernel_leaves_the_garbage_collector_as_it_was(on, text):
    gc.enable() if on else gc.disable()
    try:
        with contextlib.suppress(PtxError):
            decoded(f"{text}// {on}", "k")
        assert gc.isenabled() == on
    finally:
        gc.enable()


@pytest.mark.parametrize("row", ["atomics", "cp.async", "TMA"])
def test_a_launch_leaves_nothing_to_the_garbage_collector(row):
    kinds = Machine | Engine | GlobalRaces | Track | Shadow | SharedPattern

    def parts():
        return [one for one in gc.get_objects() if isinstance(one, kinds)]

    before = {id(one): one for one in parts()}
    gc.disable()
    try:
        run_row(next(name for name in ROWS if name.startswith(row)))
        kept_patterns.forget()
        assert not [one for one in parts() if id(one) not in before]
    finally:
        gc.enable()


@pytest.mark.parametrize(("first", "seldom"), [(500, 50_000), (60_000, 60_000), (0, 0)])
@pytest.mark.parametrize("fails", [True, False])
def test_a_launch_is_seldom_looked_through_for_garbage_and_others_as_before(first, seldom, fails):
    seen, before = [], gc.get_threshold()
    gc.set_threshold(first, 7, 8)
    try:
        with contextlib.suppress(tw.errors.EmulatorFault):
            array = np.zeros(1 if fails else 128, np.float32)
            tw.emulate(ADD, "add", 2, 64, [array, array, 128], progress=lambda *_: seen.append(gc.get_threshold()))
        assert set(seen) == (set() if fails else {(seldom, 7, 8)})
        assert gc.get_threshold() == (first, 7, 8)
    finally:
        gc.set_threshold(*before)


def test_the_emulator_is_an_executor():
    kernel = compile_source(ADD, entry="add")
    with tw.emulator(gpu="A100") as machine:
        assert current_executor() is machine
        assert machine.arch.name == "sm_80"
        a = machine.upload(np.arange(32, dtype=np.float32).view(np.uint8))
        out = machine.upload(np.zeros(128, np.uint8))
        params = a.to_bytes(8, "little") + out.to_bytes(8, "little") + (32).to_bytes(4, "little")
        machine.launch(kernel, Launch((1, 1, 1), (32, 1, 1), params))
        assert machine.download(out, 128).view(np.float32).tolist() == list(range(1, 33))
        assert machine.last.counters.global_store_requests == 1
        assert machine.results == [machine.last]
        machine.release(a)
        with pytest.raises(tw.errors.EmulatorFault, match="out_of_bounds"):
            machine.launch(kernel, Launch((1, 1, 1), (32, 1, 1), params))
    assert current_executor() is None


def test_an_executors_reports_call_uploads_by_their_names_and_progress_is_told_for_each_launch():
    kernel, seen = compile_source(ADD, entry="add"), []
    with tw.emulator(progress=lambda done, blocks: seen.append((done, blocks))) as machine:
        a, out = (machine.upload(np.zeros(400, np.uint8), name) for name in ("first", "second"))
        params = a.to_bytes(8, "little") + out.to_bytes(8, "little") + (400).to_bytes(4, "little")
        machine.launch(kernel, Launch((1, 1, 1), (100, 1, 1), params))
        machine.launch(kernel, Launch((1, 1, 1), (100, 1, 1), params))
        assert seen == [(1, 1)] * 2
        with pytest.raises(tw.errors.EmulatorFault, match="past the end of 'first'"):
            machine.launch(kernel, Launch((2, 1, 1), (100, 1, 1), params))


def test_last_before_any_launch_says_so():
    with tw.emulator() as machine, pytest.raises(IndexError, match="nothing has been launched"):
        _ = machine.last


def test_memory_keeps_buffers_apart_and_reuses_what_was_given_back():
    memory = emu.GlobalMemory()
    first, second = memory.add(np.zeros(100, np.uint8)), memory.add(np.ones(100, np.uint8))
    assert first % 256 == second % 256 == 0
    assert second - (first + 100) >= 256
    memory.release(first)
    assert memory.add(b"x" * 100) == first
    assert memory.read(second, 100).tolist() == [1] * 100
    with pytest.raises(IndexError, match="do not lie in one buffer"):
        memory.read(second, 101)
    with pytest.raises(KeyError):
        memory.release(second + 1)


def test_a_buffer_goes_to_the_lowest_place_with_room_for_it():
    rng, memory, first = np.random.default_rng(3), emu.GlobalMemory(), emu.GlobalMemory().add(b"")
    held: dict[int, int] = {}
    for _ in range(500):
        if held and rng.random() < 0.4:
            at = int(rng.choice(list(held)))
            memory.release(at)
            del held[at]
            continue
        nbytes = int(rng.choice([0, 1, 200, 256, 257, 1000, 5000]))
        taken = sorted(held.items())
        ends = [first, *(-(-(at + size + 256) // 256) * 256 for at, size in taken)]
        limits = [*(at - 256 for at, _ in taken), 1 << 62]
        expected = next(at for at, limit in zip(ends, limits, strict=True) if at + nbytes <= limit)
        assert memory.add(bytes(nbytes)) == expected
        held[expected] = nbytes


def test_memory_grows_and_keeps_what_it_held():
    memory = emu.GlobalMemory()
    addresses = [memory.add(np.full(10_000, k, np.uint8)) for k in range(40)]
    assert all((memory.read(address, 10_000) == k).all() for k, address in enumerate(addresses))


def test_two_runs_give_the_same_bits():
    source = """extern "C" __global__ void k(float *out) {
        __shared__ float s; if (threadIdx.x == 0) s = 0; __syncthreads();
        atomicAdd(&s, sinf(threadIdx.x) * 1e-3f + 1.0f / (threadIdx.x + 1)); __syncthreads();
        atomicAdd(out, s * blockIdx.x);
    }"""
    results = [emu.emulate(source, "k", 100, 96, ["f32[1]=zeros"]).arrays[0] for _ in range(2)]
    assert results[0] == results[1]


def test_sizes_may_be_numpy_integers_and_nothing_that_is_no_whole_number():
    array = np.zeros(64, np.float32)
    text = 'extern "C" __global__ void k(float *x) { x[blockIdx.x * 32 + threadIdx.x] = 1; }'
    assert emu.emulate(text, "k", np.int64(2), np.array([32, 1]), [array]).arrays[0].all()
    for wrong in (1.5, None, "4", (1, 2.0)):
        with pytest.raises(InvalidOperand, match="whole numbers"):
            emu.emulate(text, "k", wrong, 32, [array])


def test_a_number_takes_the_type_of_its_parameter_or_is_refused():
    text = 'extern "C" __global__ void k(double *x, float f, int i, double d) { x[0] = f; x[1] = i; x[2] = d; }'
    assert emu.emulate(text, "k", 1, 1, ["f64[3]=nan", 4, True, 7]).arrays[0].tolist() == [4, 1, 7]
    for f, i in ((2.5, 4.0), (2.5, "f32=4"), ("i32=4", 4), (2.5, np.float32(4))):
        with pytest.raises(InvalidOperand, match=r"is (a float|f32|i32); the kernel's parameter"):
            emu.emulate(text, "k", 1, 1, ["f64[3]=nan", f, i, 0.0])


def test_a_file_finds_what_lies_beside_it(tmp_path):
    (tmp_path / "two.h").write_text("#define TWO 2\n")
    (tmp_path / "k.cu").write_text('#include "two.h"\ntemplate <int N> __global__ void k(int *x) { *x = TWO * N; }\n')
    assert emu.emulate(tmp_path / "k.cu", "k<21>", 1, 1, ["i32[1]=zeros"]).arrays[0].tolist() == [42]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"source_or_ptx": None}, "source_or_ptx is None"),
        ({"entry": 3}, "entry is 3"),
        ({"args": 3}, "args is 3"),
        ({"include": "folder"}, "include is 'folder'"),
        ({"hazards": "ignore"}, "hazards='ignore'"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named(changed, told):
    arguments = {"source_or_ptx": "__global__ void k() {}", "entry": "k", "grid": 1, "block": 32, "args": []}
    with pytest.raises(InvalidOperand, match=re.escape(told)):
        tw.emulate(**{**arguments, **changed})


def test_an_emulator_knows_its_ways_before_the_first_launch():
    with pytest.raises(InvalidOperand, match="hazards='ignore'"), tw.emulator(hazards="ignore"):
        pass


def test_more_static_shared_memory_than_a_kernel_may_declare_is_refused_as_the_assembler_does():
    source = """extern "C" __global__ void flip(float *o) {
        __shared__ float all[SIZE];
        all[threadIdx.x] = o[threadIdx.x];
        __syncthreads();
        o[threadIdx.x] = all[blockDim.x - 1 - threadIdx.x];
    }"""
    fits = emu.emulate(source.replace("SIZE", "12288"), "flip", 1, 64, ["f32[64]=arange"])
    assert fits.arrays[0].tolist() == list(range(63, -1, -1))
    with pytest.raises(ConfigRejected, match=r"49156 bytes of static shared memory.*extern __shared__"):
        emu.emulate(source.replace("SIZE", "12289"), "flip", 1, 64, ["f32[64]=arange"])


def test_without_triton_emulate_triton_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(InvalidOperand, match="pip install triton"):
        tw.emulate_triton(None, 1, {})


class OfAnotherLibrary:
    """An array that is known by DLPack alone, as a torch tensor is."""

    def __init__(self, array, refuses=""):
        self.array, self.refuses = array, refuses

    def __dlpack__(self, **options):
        if self.refuses:
            raise BufferError(self.refuses)
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_an_array_of_another_library_is_copied_in_and_stays_as_it_is():
    held = np.arange(32, dtype=np.float32)
    source = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }"
    result = emu.emulate(source, "twice", 1, 32, [OfAnotherLibrary(held)])
    assert (result.arrays[0] == 2 * np.arange(32)).all()
    assert (held == np.arange(32)).all()
    with pytest.raises(InvalidOperand, match=r"type OfAnotherLibrary cannot be read.*requires grad.*detach"):
        emu.emulate(source, "twice", 1, 32, [OfAnotherLibrary(held, "it requires grad")])


@pytest.mark.parametrize("nbytes", [1, 7, 2**21 + 1, 2**21 + 13])
def test_buffers_of_any_number_of_bytes_have_room(nbytes):
    source = 'extern "C" __global__ void last(unsigned char *x, int n) { if (threadIdx.x == 0) x[n - 1] += 1; }'
    x = np.zeros(nbytes, np.uint8)
    assert tw.emulate(source, "last", 1, 32, [x, nbytes]).arrays[0][-1] == 1


def test_a_large_table_for_which_no_pages_can_be_had_is_asked_of_numpy(monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "no memory")

    shape = (1 << 10, 1 << 10)
    pages = memory.sparse_zeros(shape, np.int32)
    assert not pages.flags.owndata
    assert pages.flags.writeable
    monkeypatch.setattr(memory.mmap, "mmap", refuse)
    for table in (pages, memory.sparse_zeros(shape, np.int32)):
        assert (table.shape, table.dtype, table.any()) == (shape, np.int32, False)


@pytest.mark.parametrize("read", ["clock64()", "clock()", "globaltimer()", "low_timer()"])
@pytest.mark.parametrize("compiled", ["1", "0"])
def test_clocks_step_on_within_a_straight_run(monkeypatch, read, compiled):
    monkeypatch.setenv("TILEWRIGHT_EMULATOR_C", compiled)
    source = f"""
    __device__ long long globaltimer() {{
        long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t;
    }}
    __device__ unsigned low_timer() {{
        unsigned t; asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(t)); return t;
    }}
    extern "C" __global__ void k(long long *out, float x) {{
        long long a = {read}; __nanosleep(10); long long b = {read};
        for (int i = 0; i < 50; ++i) x = __fadd_rn(x, 1.5f);
        asm volatile("" : "+f"(x) :: "memory");
        out[0] = b - a, out[1] = {read} - b, out[2] = x;
    }}"""
    short, long, _ = tw.emulate(source, "k", 1, 1, [np.zeros(3, np.int64), np.float32(2)]).arrays[0]
    assert short > 0
    assert long >= 50
