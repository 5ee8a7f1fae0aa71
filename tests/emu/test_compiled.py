"""The compiled loops give the bits of the NumPy forms: each instruction on random and extreme operands, under masks."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from single_instruction import DTYPE, ptx_for

import tilewright as tw
from tilewright import emu
from tilewright.emu import banks, coalesce, compiled
from tilewright.emu.api import decoded
from tilewright.emu.clock_loops import ClockLoops
from tilewright.emu.clocks import ClockShadow
from tilewright.emu.isa.tensor_sum import arithmetic
from tilewright.emu.ptx import Instruction
from tilewright.emu.straight import FORMS, Straight
from tilewright.emu.tensor_tiles import Matrices, described, run_tiles, run_warpgroups
from tilewright.gpus import find_gpu
from tilewright.lab.emulator_speed import ROWS, run_row

pytestmark = pytest.mark.skipif(not compiled.build(), reason="no C compiler")
LANES = 1536
EXTREME = {
    4: [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 0x7F800000,
        0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001, 0x00800000, 0x00000001, 0x80000001, 0x4F000000, 0xCF000000,
        0x4F800000, 0x4EFFFFFF, 0x3F000000, 0x7F7FFFFF],
    2: [0, 1, 15, 16, 17, 0x7FFF, 0x8000, 0xFFFF],
    8: [0, 1, 63, 64, 65, 2**63 - 1, 2**63, 2**64 - 1, 2**31, 2**32, 2**32 - 1],
}  # fmt: skip


def values(rng: np.random.Generator, kind: str) -> np.ndarray:
    dtype = np.dtype(DTYPE[kind])
    found = rng.integers(0, 256, LANES * dtype.itemsize, np.uint8).view(f"u{dtype.itemsize}")
    extreme = np.array(EXTREME[dtype.itemsize], found.dtype)
    some = rng.random(LANES) < 0.5
    found[some] = rng.choice(extreme, int(some.sum()))
    if kind == "f32":
        near = rng.random(LANES) < 0.3
        found[near] = rng.standard_normal(int(near.sum())).astype(np.float32).view(np.uint32)
    return found.astype(dtype)


def run(ptx: str, arrays: list[np.ndarray], out: np.ndarray) -> np.ndarray:
    memory = emu.GlobalMemory()
    places = [memory.add(array) for array in (out, *arrays)]
    params = np.array(places, np.uint64).tobytes()
    emu.run(ptx, "k", grid=(1, 1, 1), block=(LANES // 3, 1, 1), params=params, memory=memory)
    return memory.read(places[0], out.nbytes).view(out.dtype)


TAKEN: set[str] = set()


def both_ways(ptx: str, arrays: list[np.ndarray], out: np.ndarray, monkeypatch) -> tuple[np.ndarray, np.ndarray]:
    """(the bits of the compiled loops, those of the NumPy forms); TAKEN are the instructions that the first took."""
    TAKEN.clear()
    take = Straight.take

    def noted(straight: Straight, instruction: Instruction) -> bool:
        taken = take(straight, instruction)
        TAKEN.update({instruction.opcode} if taken else ())
        return taken

    monkeypatch.setattr(Straight, "take", noted)
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    fast = run(ptx, arrays, out)
    monkeypatch.setenv(compiled.VARIABLE, "0")
    return fast, run(ptx, arrays, out)


CASES = [(opcode, kinds) for opcode, (_, kinds) in FORMS.items()] + [
    ("lop3.b32", ("b32",) * 4), ("mov.b64.pack", ("b64", "b32", "b32")), ("mov.b32.pack", ("b32", "b16", "b16")),
    ("mov.b64.unpack", ("b32", "b64")), ("mov.b32.unpack", ("b16", "b32")),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "kinds"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("how", ["all", "some", "guarded"])
def test_each_form_gives_the_same_bits(opcode, kinds, how, monkeypatch):
    rng = np.random.default_rng(len(opcode))
    held = {"pred": "u16"}
    ins = [held.get(kind, kind) for kind in kinds[1:]]
    out = held.get(kinds[0], kinds[0])
    names = [f"%{name}" for name, _ in zip("abcefgh", ins, strict=False)]
    lines = ["setp.lt.u32 %p7, %r15, 1000;", "selp.b16 %d, 1, 0, %p7;" if out in ("u16", "s16", "b16") else ""]
    for k, kind in enumerate(kinds[1:]):
        if kind == "pred":
            lines.append(f"setp.gt.u16 %p{k}, {names[k]}, 999;")
            names[k] = f"%p{k}"
    to = "%p6" if kinds[0] == "pred" else "%d"
    if kinds[0] == "pred":
        lines.append("setp.gt.u32 %p6, %r15, 77;")
    elif out not in ("u16", "s16", "b16"):
        lines.append({8: "cvt.u64.u32 %d, %r15;", 4: "mov.b32 %d, %r15;"}[np.dtype(DTYPE[out]).itemsize])
    if how == "some":
        lines += ["setp.gt.u32 %p5, %r15, 61;", "@%p5 bra INSIDE;", "bra END;", "INSIDE:"]
    elif how == "guarded":
        lines += ["setp.gt.u32 %p5, %r15, 61;"]
    guard = "@!%p5 " if how == "guarded" else ""
    if opcode == "lop3.b32":
        body = f"lop3.b32 {to}, {', '.join(names)}, 0x6A;"
    elif opcode.endswith(".unpack"):
        body = f"{opcode[:-7]} {{{to}, %q}}, {names[0]};"
        lines.insert(0, f".reg .b{8 * np.dtype(DTYPE[out]).itemsize} %q;")
    elif opcode.endswith(".pack"):
        body = f"{opcode[:-5]} {to}, {{{', '.join(names)}}};"
    else:
        body = f"{opcode} {to}, {', '.join(names)};"
    lines += [guard + body, "END:"]
    if kinds[0] == "pred":
        lines.append("selp.u16 %d, 1, 0, %p6;")
    ptx = ptx_for("\n".join(lines), out, ins).replace(
        "mov.u32 %r15, %tid.x;",
        f"mov.u32 %r15, %tid.x;\nmov.u32 %r14, %ctaid.x;\nmad.lo.u32 %r15, %r14, {LANES // 3}, %r15;",
    )
    arrays = [values(rng, kind) for kind in ins]
    fast, slow = both_ways(ptx, arrays, np.zeros(LANES, DTYPE[out]), monkeypatch)
    np.testing.assert_array_equal(fast, slow)
    assert opcode.removesuffix(".unpack").removesuffix(".pack") in TAKEN


def test_constants_and_special_registers_are_read_as_they_are(monkeypatch):
    line = """mov.u32 %r3, %ntid.x; mad.lo.u32 %r1, %r3, 7, %r15; mov.u32 %r4, %laneid; add.u32 %r1, %r1, %r4;
        fma.rn.f32 %d, %a, 0f3F99999A, 0fBF800000; mov.b32 %r2, %d; xor.b32 %r2, %r2, %r1; mov.b32 %d, %r2;"""
    arrays = [values(np.random.default_rng(0), "f32")]
    fast, slow = both_ways(ptx_for(line, "f32", ["f32"]), arrays, np.zeros(LANES, np.uint32), monkeypatch)
    np.testing.assert_array_equal(fast, slow)


@pytest.mark.parametrize(
    "name", [name for name in ROWS if not {"512", "1024", "2^22"} & set(name.replace(",", "").split())]
)
def test_counts_and_results_of_whole_kernels_are_the_same(name, monkeypatch):
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    fast = run_row(name)
    monkeypatch.setenv(compiled.VARIABLE, "0")
    slow = run_row(name)
    assert fast.counters == slow.counters
    for a, b in zip(fast.arrays, slow.arrays, strict=True):
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("reach", [128, 1024, 2048, 2080, 1 << 20, 1 << 40])
def test_sectors_are_those_of_the_definition(nbytes, reach):
    rng = np.random.default_rng(nbytes)
    addresses = np.sort(rng.integers(0, 2 * reach, (64, 32)), axis=0) // nbytes * nbytes
    library = compiled.library()
    for shift in (0, 1 << 33, 7 * nbytes, 1):
        expected = int(coalesce.sectors(addresses + shift, nbytes).sum())
        assert library.sectors(compiled.address(addresses), 0, addresses.size, nbytes, shift) == expected
    lanes = np.flatnonzero(rng.random(addresses.size) < 0.4)
    some = addresses.reshape(-1)[lanes]
    active = np.isin(np.arange(addresses.size), lanes).reshape(64, 32)
    expected = int(coalesce.sectors(addresses, nbytes, active).sum())
    assert library.sectors(compiled.address(some), compiled.address(lanes), len(lanes), nbytes, 0) == expected


@pytest.mark.parametrize("access", ["load", "store", "matrix", "copy"])
@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
def test_bank_conflicts_are_those_of_the_definition(nbytes, access):
    rng, library = np.random.default_rng(nbytes), compiled.library()
    for reach in (8, 64, 256, 4096):
        for share in (1.0, 0.6, 0.1):
            every = rng.integers(0, reach, (40, 32)) * nbytes
            every[20:, 1::2] = every[20:, ::2]  # lanes that pair up
            every[30:, 2::4] = every[30:, ::4]
            lanes = np.flatnonzero(rng.random(every.size) < share)
            active = np.zeros(every.shape, bool)
            active.reshape(-1)[lanes] = True
            fronts, least = banks.wavefronts(every, nbytes, active, access), banks.ideal(every, nbytes, active)
            expected = int(active.any(axis=1).sum()), int(fronts.sum()), int(least.sum())
            given = np.ascontiguousarray(every.reshape(-1)[lanes])
            assert library.conflicts(given, None if share == 1 else lanes, nbytes, access) == expected


@pytest.mark.parametrize("share", [None, 0.01, 0.6])
def test_the_extent_of_addresses_is_found(share):
    rng = np.random.default_rng(2)
    relative = rng.integers(-(1 << 35), 1 << 35, 2048) * 4
    relative[0] = 0
    lanes = None if share is None else np.flatnonzero(rng.random(2048) < share)
    some = relative if lanes is None else relative[: len(lanes)]
    warps = 64 if lanes is None else len(np.unique(lanes // 32))
    told = int(some.min()), int(some.max()), int(np.bitwise_or.reduce(some)), warps
    assert compiled.library().extent(some, lanes) == told


def test_addresses_are_those_of_the_interface():
    whole = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    for some in (whole, whole[1:, 2], whole.T[3], whole[:0], np.zeros(0), np.asfortranarray(whole)):
        assert compiled.address(some) == some.__array_interface__["data"][0]


def test_without_the_library_nothing_is_missing(monkeypatch):
    monkeypatch.setenv(compiled.VARIABLE, "0")
    assert compiled.library() is None
    assert run_row("one lone thread, 2^14 steps").counters.thread_instructions > 10**5


@pytest.mark.parametrize("damage", [
    lambda whole: b"no library", lambda whole: b"", lambda whole: whole[: len(whole) // 2], lambda whole: whole[:-1],
    lambda whole: whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2),
], ids=["other", "empty", "half", "a byte less", "half of zeros"])  # fmt: skip
def test_a_damaged_library_is_not_loaded_and_made_again(damage, monkeypatch, tmp_path):
    whole = compiled._target_now().read_bytes()
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    target = compiled._target_now()
    assert str(target).startswith(str(tmp_path))
    target.parent.mkdir(parents=True)
    target.write_bytes(damage(whole))
    assert compiled.library() is None
    target.write_bytes(whole)
    assert compiled.library() is not None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files")
def test_a_library_that_others_may_write_is_not_loaded(monkeypatch, tmp_path):
    made = compiled._target_now()
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    target = compiled._target_now()
    target.parent.mkdir(parents=True)
    shutil.copy(made, target)
    target.chmod(0o666)
    assert compiled.library() is None
    monkeypatch.setattr(compiled, "_state", compiled._State())
    target.chmod(0o644)
    assert compiled.library() is not None


def test_a_process_that_emulates_long_enough_compiles_in_the_background(monkeypatch, tmp_path):
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_state", compiled._State())
    compiled.emulated(compiled.WORTH_SECONDS / 2)
    assert compiled._state.making is None
    compiled.emulated(compiled.WORTH_SECONDS)
    assert compiled._state.making.wait() == 0
    assert compiled.library() is not None


@pytest.mark.parametrize(("of_a", "of_b"), [(3, 3), (1, 3), (3, 1), (1, 1)])
def test_warpgroups_may_share_a_factor(of_a, of_b):
    """Those of a block that stand side by side share A, those one under another B."""
    rng = np.random.default_rng(0)
    machine = SimpleNamespace(compiled=compiled.library(), gpu=find_gpu("H200"))
    kinds = ("f32", "bf16", "bf16", "f32")
    shapes = (16, 2, of_a, 64), (16, 2, of_b, 24)
    a, b = ((rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16) for shape in shapes)
    d = rng.standard_normal((2, 3, 64, 24)).astype(np.float32).view(np.uint32)
    expected = arithmetic("wgmma", kinds, (9, 0))(a[..., None], b[:, :, :, None], d)
    product = described(machine, "wgmma", (64, 24, 16), kinds)
    run_tiles(machine, product, a, b, d)
    np.testing.assert_array_equal(d, expected)


ALIKE = 1


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str, spread: int) -> np.ndarray:
    """Bits of numbers whose exponents lie `spread` apart, with zeros; spread 0: any bits at all; ALIKE: all of them the
    largest below 2, whose sums need more than 32 bits."""
    size = {"f32": 4, "tf32": 4, "e4m3": 1, "e5m2": 1}.get(kind, 2)
    if spread == ALIKE:
        return np.full(shape, {1: 0x3F, 2: 0x3FFF, 4: 0x3FFFFFFF}[size], f"u{size}")
    if not spread:
        return rng.integers(0, 256, (*shape, size), np.uint8).view(f"u{size}")[..., 0]
    values = (rng.standard_normal(shape) * 2.0 ** rng.integers(-spread // 2, spread // 2 + 1, shape)).astype(np.float32)
    values *= rng.random(shape) < 0.9
    if size == 4:
        return values.view(np.uint32)
    if kind == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    if kind == "f16":
        return np.clip(values, -60000, 60000).astype(np.float16).view(np.uint16)
    return rng.integers(0, 128, shape, np.uint8)


@pytest.mark.parametrize("spread", [2, 20, 90, 240, 0])
@pytest.mark.parametrize(
    ("unit", "kind", "k", "out"),
    [
        ("wgmma", "bf16", 16, "f32"),
        ("wgmma", "f16", 16, "f32"),
        ("wgmma", "f16", 16, "f16"),
        ("wgmma", "tf32", 8, "f32"),
        ("wgmma", "e4m3", 32, "f32"),
        ("wgmma", "e5m2", 32, "f16"),
        ("mma", "bf16", 16, "f32"),
        ("wmma", "tf32", 8, "f32"),
    ],
)
def test_compiled_sums_have_the_bits_of_the_rule(unit, kind, k, out, spread):
    rng = np.random.default_rng(spread)
    machine = SimpleNamespace(compiled=compiled.library(), gpu=find_gpu("H200"))
    kinds, m, n = (out, kind, kind, out), 32, 40
    a, b = (_numbers(rng, (k, 3, 2, size), kind, spread) for size in (m, n))
    d = _numbers(rng, (3, 2, m, n), out, spread)
    d[0] = 0
    for negative in (False, True):
        expected = arithmetic(unit, kinds, (9, 0), negative=negative)(a[..., None], b[:, :, :, None], d)
        product, sums = described(machine, unit, (m, n, k), kinds, negative), d.copy()
        run_tiles(machine, product, a, b, sums)
        np.testing.assert_array_equal(sums, expected)


RACES = r"""
#define REPEAT _Pragma("unroll 1") for (int k = 0; k < 3; ++k)  // the loops do again what Python has done
extern "C" __global__ void in_place(float *y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = 2 * y[i] + 1;
}
extern "C" __global__ void neighbour(float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    REPEAT if (i + 1 < n) y[i] = y[i + 1] + 1;
}
extern "C" __global__ void halves(float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    REPEAT y[i / 48] = i;
}
extern "C" __global__ void later(float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
    REPEAT y[(i + 48 * k) % all] = i;
}
extern "C" __global__ void bytes(float *z, int n) {
    char *y = (char *)z;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    REPEAT { y[i] = y[i ^ 64] + 1; __syncthreads(); }
}
extern "C" __global__ void wide(float4 *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    REPEAT { if (i % 3) y[i] = y[i]; ((float *)y)[4 * i + 4 - 4 * (k == 1)] = k; }
}
extern "C" __global__ void quads(float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    REPEAT { float *z = y + i / 4 * 8 + i % 4 + 4 * (k & 1); *z = *z + i; }
}
extern "C" __global__ void astride(float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    REPEAT y[(i / 4 * 2 + i % 4) % n] += i;
}
extern "C" __global__ void ordered(float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    REPEAT { y[i] = k; __syncthreads(); y[i ^ 32] += y[i ^ 32]; __syncthreads(); }
}
"""


@pytest.mark.parametrize(
    ("entry", "found"),
    [("in_place", False), ("neighbour", True), ("halves", True), ("later", True), ("bytes", True), ("wide", True),
     ("ordered", False), ("quads", False), ("astride", True)],
)  # fmt: skip
def test_what_is_reported_of_global_memory_is_the_same(entry, found):
    """Owners of its granules are asked by the loops themselves."""

    def told() -> tuple[list[str], bytes, str]:
        args = ["f32[8192]=zeros", 1024]
        result = emu.emulate(RACES, entry, 4, 128, args, hazards="collect")
        return [str(hazard) for hazard in result.hazards], result.arrays[0].tobytes(), str(result.counters)

    ours = told()
    assert bool(ours[0]) == found
    with compiled.without():
        assert told() == ours


SUMS_SHAPES = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32}


@pytest.mark.parametrize("spread", [2, 90, 240, 0, ALIKE])
@pytest.mark.parametrize("kind", SUMS_SHAPES)
def test_warpgroups_sum_in_their_accumulators_with_the_bits_of_the_rule(kind, spread):
    k, n, rng = SUMS_SHAPES[kind], 24, np.random.default_rng(spread)
    bank = rng.integers(0, 2**32, (n // 2 + 3, 2 * 128 + 32), np.uint32)
    machine = SimpleNamespace(compiled=compiled.library(), gpu=find_gpu("H200"), banks={4: bank[:, :256]})
    kinds = ("f32", kind, kind, "f32")
    a, b = _numbers(rng, (k, 2, 1, 64), kind, spread), _numbers(rng, (k, 2, 1, n), kind, spread)
    rows = rng.permutation(n // 2 + 3)[: n // 2]
    bank[rows[: n // 4]] = _numbers(rng, (n // 4, 288), "f32", spread)
    # register 4 j + 2 h + q of lane 4 g + t of warp w -> [team, 16 w + 8 h + g, 8 j + 2 t + q]
    held = bank[rows, :256].reshape(n // 8, 2, 2, 2, 4, 8, 4)
    before = held.transpose(3, 4, 1, 5, 0, 6, 2).reshape(2, 1, 64, n).copy()
    before[1] = 0
    others = np.delete(bank, rows, axis=0)
    told, operands = described(machine, "wgmma", (64, n, k), kinds), (Matrices.of(a, 2), Matrices.of(b, 2))
    run_warpgroups(machine, told, *operands, rows, np.array([0, 4]), np.array([True, False]))
    expected = arithmetic("wgmma", kinds, (9, 0))(a[..., None], b[:, :, :, None], before)
    held = bank[rows, :256].reshape(n // 8, 2, 2, 2, 4, 8, 4)
    np.testing.assert_array_equal(held.transpose(3, 4, 1, 5, 0, 6, 2).reshape(2, 1, 64, n), expected)
    np.testing.assert_array_equal(np.delete(bank, rows, axis=0), others)


MMA = """
extern "C" __global__ void products(const unsigned *a, const unsigned *b, unsigned *d, int warps) {
    int lane = threadIdx.x, at = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
    if (lane / 32 >= warps) return;
    unsigned c[2][4];
    for (int i = 0; i < 8; ++i) c[i / 4][i %% 4] = d[i * all + at];
    for (int j = 0; j < 2; ++j)
        asm volatile("mma.sync.aligned.m16n8k%s.row.col.f32.%s.%s.f32 {%%0, %%1, %%2, %%3}, {%%4, %%5, %%6, %%7}, "
            "{%%8, %%9}, {%%0, %%1, %%2, %%3};" : "+r"(c[j][0]), "+r"(c[j][1]), "+r"(c[j][2]), "+r"(c[j][3])
            : "r"(a[at]), "r"(a[all + at]), "r"(a[2 * all + at]), "r"(a[3 * all + at]),
              "r"(b[2 * j * all + at]), "r"(b[(2 * j + 1) * all + at]));
    for (int i = 0; i < 8; ++i) d[i * all + at] = c[i / 4][i %% 4];
}
"""


@pytest.mark.parametrize("gpu", ["H200", "A100"])
@pytest.mark.parametrize("spread", [2, 90, 240, 0, ALIKE])
@pytest.mark.parametrize("kind", ["bf16", "f16", "tf32"])
def test_warps_sum_in_the_order_of_lanes_with_the_same_bits(kind, spread, gpu):
    rng, lanes = np.random.default_rng(spread), 3 * 96
    a, b = (_numbers(rng, (4, lanes, 4 if kind == "tf32" else 2), kind, spread) for _ in range(2))
    a, b = (x[..., 0].copy() if kind == "tf32" else np.ascontiguousarray(x).view(np.uint32)[..., 0] for x in (a, b))
    d = _numbers(rng, (8, lanes), "f32", spread)
    source = MMA % ({"tf32": 8}.get(kind, 16), kind, kind)

    def run(warps: int) -> np.ndarray:
        result = emu.emulate(source, "products", 3, 96, [a, b, d, warps], gpu=gpu)
        return np.append(result.arrays[2].reshape(-1), result.counters.thread_instructions)

    for warps in (3, 2):
        ours = run(warps)
        with compiled.without():
            np.testing.assert_array_equal(run(warps), ours)


MANY_BARRIERS = r"""
extern "C" __global__ void grow(float *out) {
    __shared__ unsigned long long bars[40];
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = t;
    __syncthreads();
    if (t == 0)
        for (int i = 0; i < 40; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], 2;" ::"r"((unsigned)__cvta_generic_to_shared(bars + i)));
    __syncthreads();
    out[t] = s[63 - t];
}
"""


def test_the_loops_are_told_of_knowledge_that_has_grown_where_it_was(monkeypatch):
    """Memory that has been let go may be had again: that a table lies where one lay does not say that it is that."""
    space, grow, tell, widths = np.zeros(1 << 16, np.int32), ClockShadow.make_room, ClockLoops._tables, []

    def grow_in_place(self, columns):
        grow(self, columns)
        table = space[: self.known.size].reshape(self.known.shape)
        table[:] = self.known
        self.known, self.order = table, table[:, :, : self.warps]
        self.by_cta = table.reshape(self.machine.ctas, self.machine.warps_per_cta, -1)

    def tell_and_look(self):
        told = tell(self)
        widths.append((int(self._told[12]), self.shadow.known.shape[2]))
        return told

    monkeypatch.setattr(ClockShadow, "make_room", grow_in_place)
    monkeypatch.setattr(ClockLoops, "_tables", tell_and_look)
    monkeypatch.delenv("TILEWRIGHT_EMULATOR_C", raising=False)
    tw.emulate(MANY_BARRIERS, "grow", grid=1, block=64, args=[np.zeros(64, np.float32)])
    assert len(set(widths)) == 2
    assert all(told == width for told, width in widths)


_LOOPS = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k()
{{
.reg .pred %p<3>;
setp.eq.u32 %p0, 0, 1;
@%p0 bra SKIP;
mov.pred %p1, %p0;
SKIP: mov.pred %p1, %p0;
LOOP: @%p0 bra BODY;
mov.pred %p2, %p0;
BODY: @%p1 bra {target};
ret;
}}
"""


def test_what_no_branch_goes_back_over_runs_once():
    for target, first, last in (("LOOP", 3, 5), ("SKIP", 2, 5), ("BODY", 5, 5)):
        program = decoded(_LOOPS.format(target=target), "k")
        texts = [program.instructions[block.start].text for block in program.blocks]
        assert len(texts) == 7, texts
        assert program.repeats == [first <= index <= last for index in range(7)]


_ROUNDS = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 mask, .param .u32 least)
{
.reg .pred %p<4>; .reg .b16 %h<3>; .reg .b32 %r<12>; .reg .b64 %d<8>;
ld.param.u64 %d0, [out]; ld.param.u32 %r9, [mask]; ld.param.u32 %r10, [least];
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x;
mad.lo.u32 %r3, %r1, %r2, %r0;
mul.lo.u32 %r4, %r3, 2654435761; shr.u32 %r5, %r4, 20; and.b32 %r5, %r5, %r9; add.u32 %r5, %r5, %r10;
mov.u32 %r6, 0; mov.u32 %r7, 0; cvt.u16.u32 %h0, %r3; mul.wide.u32 %d1, %r3, 7; mov.u64 %d2, 1;
setp.eq.u32 %p2, %r0, 99;
@%p2 bra AROUND;
LOOP: add.u32 %r6, %r6, 1;
and.b32 %r8, %r6, 3; setp.eq.u32 %p1, %r8, %r1;
@%p1 add.u32 %r7, %r7, %r6;
@!%p1 mad.lo.s64 %d2, %d2, %d1, 3;
mul.lo.u16 %h0, %h0, 5; add.u16 %h0, %h0, 1; add.u32 %r7, %r7, %r0;
setp.lt.u32 %p0, %r6, %r5;
@%p0 bra LOOP;
AROUND: cvt.u64.u16 %d3, %h0; cvt.u64.u32 %d4, %r7; shl.b64 %d4, %d4, 16; xor.b64 %d3, %d3, %d4; xor.b64 %d2, %d2, %d3;
mul.wide.u32 %d5, %r3, 8; add.u64 %d0, %d0, %d5; st.global.u64 [%d0], %d2;
ret;
}
"""


@pytest.mark.parametrize(("mask", "least"), [(0, 300), (7, 1), (511, 1), (4095, 40), (2048, 3)])
@pytest.mark.parametrize("order", [{}, {"explore": 1}])
def test_lanes_that_leave_a_loop_one_by_one_take_nothing_along(mask, least, order):
    def told() -> tuple[bytes, str, list[str]]:
        args = [np.zeros(5 * 200, np.uint64), mask, least]
        result = emu.emulate(_ROUNDS, "k", 5, 200, args, **order)
        rows = [(row.ptx, row.warps, row.threads) for row in result.counters.per_instruction]
        return result.arrays[0].tobytes(), str(result.counters), rows

    ours = told()
    with compiled.without():
        assert told() == ours


@pytest.mark.parametrize("limit", [1000, 1001, 1005, 1009, 20_000])
def test_a_limit_is_met_in_the_same_round_of_a_loop(limit):
    def told() -> str:
        with pytest.raises(tw.errors.EmulatorFault) as raised:
            emu.emulate(_ROUNDS, "k", 5, 200, [np.zeros(1000, np.uint64), 4095, 40], limit=limit)
        return str(raised.value)

    ours = told()
    with compiled.without():
        assert told() == ours


def test_a_loop_that_some_lanes_never_leave_is_found_in_the_same_round():
    head, tail = _ROUNDS.split("LOOP: ")
    text = f"{head}LOOP: setp.lt.u32 %p0, 0, %r5;\n@%p0 bra LOOP;\n{tail[tail.index('AROUND:') :]}"

    def told() -> str:
        with pytest.raises(tw.errors.EmulatorFault, match="the same state as before") as raised:
            emu.emulate(text, "k", 5, 200, [np.zeros(1000, np.uint64), 1, 0])
        return str(raised.value)

    ours = told()
    with compiled.without():
        assert told() == ours
