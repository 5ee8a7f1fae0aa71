"""mma, wmma, ldmatrix and stmatrix: every form against NumPy, the layouts as the PTX manual's formulas give them."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_oracle import oracle_matrix

import tilewright as tw
from tilewright import emu
from tilewright.emu.isa.tensor_sum import Rule
from tilewright.errors import EmulatorFault, PtxError, UnknownInstruction

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
LANE = np.arange(32)
GROUP, IN_GROUP = LANE >> 2, LANE % 4


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """bf16 bits of values that bf16 holds exactly."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16)


def bits_of(values: np.ndarray, kind: str) -> np.ndarray:
    return bf16_bits(values) if kind == "bf16" else np.asarray(values, np.float16).view(np.uint16)


def small_integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Different everywhere, exact in every type, and so are sums of 16 products of them."""
    return rng.integers(-12, 13, shape).astype(np.float32)


def packed(pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """(low, high) uint16 [32] of each register -> uint32 [registers, 32]."""
    return np.array([low.astype(np.uint32) | high.astype(np.uint32) << 16 for low, high in pairs])


# --- mma: the manual's formulas, form by form -------------------------------------------------------------------------


def a_registers(a: np.ndarray, kind: str) -> np.ndarray:
    """The registers of A of m16n8k8 and m16n8k16 for 16-bit types, and of m16n8k4 and m16n8k8 for tf32."""
    k = a.shape[1]
    if kind == "tf32":
        bits = a.view(np.uint32)
        columns = range(0, k, 4)
        return np.array([bits[GROUP + down, IN_GROUP + along] for along in columns for down in (0, 8)])
    bits = bits_of(a, kind)
    out = []
    for i in range(k // 4):  # a_2i, a_2i+1: row groupID, or groupID + 8 for i odd; 8 columns on for i >= 2
        row = GROUP + (8 if i % 2 else 0)
        col = IN_GROUP * 2 + (8 if i >= 2 else 0)
        out.append((bits[row, col], bits[row, col + 1]))
    return packed(out)


def b_registers(b: np.ndarray, kind: str) -> np.ndarray:
    k = b.shape[0]
    if kind == "tf32":
        bits = b.view(np.uint32)
        return np.array([bits[IN_GROUP + along, GROUP] for along in range(0, k, 4)])
    bits = bits_of(b, kind)
    rows = [IN_GROUP * 2 + 8 * i for i in range(k // 8)]
    return packed([(bits[row, GROUP], bits[row + 1, GROUP]) for row in rows])


def d_places(register: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of the fp32 accumulator number `register`."""
    return GROUP + (8 if register >= 2 else 0), IN_GROUP * 2 + register % 2


def c_registers(c: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f32":
        return np.array([c[d_places(r)].view(np.uint32) for r in range(4)])
    bits = c.astype(np.float16).view(np.uint16)
    return packed([(bits[d_places(2 * r)], bits[d_places(2 * r + 1)]) for r in range(2)])


def d_matrix(registers: np.ndarray, kind: str) -> np.ndarray:
    out = np.full((16, 8), np.nan)
    for r in range(4):
        if kind == "f32":
            out[d_places(r)] = registers[r].view(np.float32)
        else:
            halves = np.ascontiguousarray(registers[r // 2]).view(np.float16).reshape(32, 2)
            out[d_places(r)] = halves[:, r % 2]
    return out


def braces(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def around(body: str, inputs: int, outputs: int, shared: int = 0, prologue: str = "") -> str:
    """An entry k(in, out): registers r0.. from in[i][thread], `body`, registers r100.. to out[i][thread]."""
    lines = [
        HEAD, ".visible .entry k(.param .u64 in, .param .u64 out)", "{", ".reg .pred %p<9>;", ".reg .b32 %r<200>;",
        ".reg .b64 %rd<20>;", ".reg .f32 %f<64>;", f".shared .align 128 .b8 tile[{shared or 16}];",
        "mov.u32 %r199, %tid.x;", "ld.param.u64 %rd0, [in];", "ld.param.u64 %rd1, [out];",
        "mad.wide.u32 %rd2, %r199, 4, %rd0;", "mad.wide.u32 %rd3, %r199, 4, %rd1;", prologue,
    ]  # fmt: skip
    lines += [f"ld.global.b32 %r{i}, [%rd2+{128 * i}];" for i in range(inputs)]
    lines += [body]
    lines += [f"st.global.b32 [%rd3+{128 * i}], %r{100 + i};" for i in range(outputs)]
    return "\n".join([*lines, "ret;", "}"])


def run(
    ptx: str, given: np.ndarray, outputs: int, threads: int = 32, gpu: str = "H200"
) -> tuple[np.ndarray, emu.Counters]:
    out = np.full((outputs, 32), 0xDEADBEEF, np.uint32)
    done = emu.emulate(ptx, "k", 1, threads, [np.ascontiguousarray(given), out], gpu=gpu)
    return done.arrays[1].reshape(outputs, 32), done.counters


MMA = [
    (16, "bf16", "f32"), (8, "bf16", "f32"), (16, "f16", "f32"), (8, "f16", "f32"), (16, "f16", "f16"),
    (8, "f16", "f16"), (8, "tf32", "f32"), (4, "tf32", "f32"),
]  # fmt: skip


def mma(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: str, c_kind: str, gpu: str = "H200"
) -> tuple[np.ndarray, emu.Counters]:
    given = [a_registers(a, kind), b_registers(b, kind), c_registers(c, c_kind)]
    counts = [len(part) for part in given]
    outputs = counts[2]
    body = (
        f"mma.sync.aligned.m16n8k{a.shape[1]}.row.col.{c_kind}.{kind}.{kind}.{c_kind} {braces(100, outputs)}, "
        f"{braces(0, counts[0])}, {braces(counts[0], counts[1])}, {braces(counts[0] + counts[1], counts[2])};"
    )
    registers, counters = run(around(body, sum(counts), outputs), np.concatenate(given), outputs, gpu=gpu)
    return d_matrix(registers, c_kind), counters


@pytest.mark.parametrize(("k", "kind", "c_kind"), MMA)
def test_mma_multiplies_matrices_laid_out_as_the_manual_says(k, kind, c_kind):
    rng = np.random.default_rng(k)
    a, b, c = small_integers(rng, 16, k), small_integers(rng, k, 8), small_integers(rng, 16, 8)
    out, counters = mma(a, b, c, kind, c_kind)
    exact = a @ b + c
    np.testing.assert_array_equal(out, exact if c_kind == "f32" else exact.astype(np.float16))
    assert counters.by_class["tensor"] == 32
    assert counters.flops == {"hmma": 2 * 16 * 8 * k}


def test_mma_may_overwrite_its_own_accumulator():
    rng = np.random.default_rng(5)
    a, b, c = small_integers(rng, 16, 16), small_integers(rng, 16, 8), small_integers(rng, 16, 8)
    body = "\n".join([
        *(f"mov.b32 %f{i}, %r{6 + i};" for i in range(4)),
        *(["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0,%f1,%f2,%f3}, " + braces(0, 4) + ", "
           + braces(4, 2) + ", {%f0,%f1,%f2,%f3};"] * 2),
        *(f"mov.b32 %r{100 + i}, %f{i};" for i in range(4)),
    ])  # fmt: skip
    given = np.concatenate([a_registers(a, "bf16"), b_registers(b, "bf16"), c_registers(c, "f32")])
    registers, _ = run(around(body, 10, 4), given, 4)
    np.testing.assert_array_equal(d_matrix(registers, "f32"), 2 * (a @ b) + c)


@pytest.mark.parametrize(("gpu", "rule"), [("H200", Rule(25, 16)), ("A100", Rule(24, 8))])
def test_mma_sums_with_the_bits_of_the_architecture(gpu, rule):
    rng = np.random.default_rng(6)
    a = (rng.standard_normal((16, 16)) * 2.0 ** rng.integers(-12, 12, (16, 16))).astype(np.float16).astype(np.float32)
    b = rng.standard_normal((16, 8)).astype(np.float16).astype(np.float32)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    out, _ = mma(a, b, c, "f16", "f32", gpu)
    expected = oracle_matrix(bits_of(a, "f16"), bits_of(b, "f16"), c.view(np.uint32), "f16", rule)
    np.testing.assert_array_equal(out, expected.view(np.float32))


def test_mma_gives_infinities_and_the_canonical_nan():
    a, b, c = np.ones((16, 16), np.float32), np.ones((16, 8), np.float32), np.zeros((16, 8), np.float32)
    a[3, 5], b[7, 2] = np.inf, np.nan
    c[8, 1], c[3, 4] = -np.inf, -np.inf
    out, _ = mma(a, b, c, "bf16", "f32")
    assert np.isnan(out[:, 2]).all()
    assert np.isnan(out[3, 4])
    assert out[3, 0] == np.inf
    assert out[8, 1] == -np.inf
    assert out[0, 0] == 16
    given = np.concatenate([a_registers(a, "bf16"), b_registers(b, "bf16"), c_registers(c, "f32")])
    body = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {braces(100, 4)}, {braces(0, 4)}, {braces(4, 2)}, "
        f"{braces(6, 4)};"
    )
    registers, _ = run(around(body, 10, 4), given, 4)
    nans = registers[np.isnan(registers.view(np.float32))]
    assert len(nans)
    assert (nans == 0x7FFFFFFF).all()


def test_tf32_ignores_the_low_thirteen_bits():
    rng = np.random.default_rng(7)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (8, 8), (16, 8)))
    out, _ = mma(a, b, c, "tf32", "f32")
    cut_a, cut_b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    again, _ = mma(cut_a, cut_b, c, "tf32", "f32")
    np.testing.assert_array_equal(out, again)
    np.testing.assert_allclose(out, cut_a.astype(np.float64) @ cut_b + c, rtol=0, atol=2e-6)
    expected = oracle_matrix(a.view(np.uint32), b.view(np.uint32), c.view(np.uint32), "tf32", Rule(25, 8))
    np.testing.assert_array_equal(out, expected.view(np.float32))


def test_mma_under_a_condition_of_some_lanes_is_reported():
    given = np.zeros((10, 32), np.uint32)
    body = (
        "setp.lt.u32 %p1, %r199, 20;\n@!%p1 bra SKIP;\n"
        f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {braces(100, 4)}, {braces(0, 4)}, {braces(4, 2)}, "
        f"{braces(6, 4)};\nSKIP:"
    )
    with pytest.raises(EmulatorFault, match="runs with some lanes of the warp") as fault:
        run(around(body, 10, 4), given, 4)
    assert fault.value.hazard.kind == "warp_divergence"
    assert fault.value.hazard.lanes == tuple(range(20))


def test_a_warp_that_skips_the_product_keeps_its_registers():
    ptx = around(
        "mov.b32 %r100, 7;\nsetp.lt.u32 %p1, %r199, 32;\n@!%p1 bra SKIP;\n"
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%r100, %r101, %r102, %r103}, {%r0, %r1}, {%r2}, "
        "{%r0, %r0, %r0, %r0};\nSKIP:", 3, 1
    )  # fmt: skip
    out = np.full(64, 1, np.uint32)
    done = emu.emulate(ptx, "k", 1, 64, [np.zeros(200, np.uint32), out])
    assert done.arrays[1].tolist() == [0] * 32 + [7] * 32


def test_a_wrong_number_of_registers_is_refused():
    body = f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {braces(100, 4)}, {braces(0, 3)}, {braces(4, 2)}, " \
           f"{braces(6, 4)};"  # fmt: skip
    with pytest.raises(PtxError, match="needs 4 registers of an operand"):
        run(around(body, 10, 4), np.zeros((10, 32), np.uint32), 4)


def quad_places(operand: str, layout: str, kind: str) -> list[list[tuple[int, int, int, int]]]:
    """By the manual's figures of m8n8k4: of each lane, of each of its elements (product, row, column, element)."""
    out = []
    for lane in range(32):
        product, upper = lane % 16 // 4, 4 * (lane >= 16)
        inner = (operand == "a") == (layout == "row")
        if operand in "ab":
            places = [(lane % 4 + upper, i) if inner else (i + upper, lane % 4) for i in range(4)]
            places = [place if operand == "a" else place[::-1] for place in places]
        elif kind == "f16":
            places = [(lane % 4 + upper, i) for i in range(8)]
        else:
            places = [((lane & 1) + (i & 2) + upper, (i & 4) + (lane & 2) + (i & 1)) for i in range(8)]
        out.append([(product, *place, i) for i, place in enumerate(places)])
    return out


@pytest.mark.parametrize("layouts", ["row.col", "row.row", "col.col", "col.row"])
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_voltas_mma_makes_four_products(layouts, kind):
    rng = np.random.default_rng(4)
    a, b, c = small_integers(rng, 4, 8, 4), small_integers(rng, 4, 4, 8), small_integers(rng, 4, 8, 8)

    def held(matrices: np.ndarray, operand: str, layout: str, wide: bool) -> np.ndarray:
        places = quad_places(operand, layout, "f32" if wide else "f16")
        dtype = np.float32 if wide else np.float16
        elements = np.array([[matrices[q, row, column] for q, row, column, _ in lane] for lane in places], dtype)
        return np.ascontiguousarray(elements.view(np.uint32).T)

    wide = kind == "f32"
    of_a, of_b = layouts.split(".")
    given = [held(a, "a", of_a, False), held(b, "b", of_b, False), held(c, "c", "", wide)]
    count = len(given[2])
    body = (
        f"mma.sync.aligned.m8n8k4.{layouts}.{kind}.f16.f16.{kind} {braces(100, count)}, {braces(0, 2)}, "
        f"{braces(2, 2)}, {braces(4, count)};"
    )
    registers, counters = run(around(body, 4 + count, count), np.concatenate(given), count)
    np.testing.assert_array_equal(registers, held(a @ b + c, "d", "", wide))
    assert counters.flops == {"hmma": 2 * 4 * 8 * 8 * 4}


@pytest.mark.parametrize(
    "head", ["mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32"]
)
def test_sparse_products_and_those_of_four_bits_are_refused_by_name(head):
    body = f"{head} {braces(100, 4)}, {braces(0, 4)}, {braces(4, 4)}, {braces(8, 4)}, %r12, 0x0;"
    with pytest.raises(UnknownInstruction, match=head.replace(".", r"\.")):
        run(around(body, 12, 4), np.zeros((12, 32), np.uint32), 4)


def test_a_product_that_the_architecture_lacks_is_refused():
    head = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"
    body = f"{head} {braces(100, 4)}, {braces(0, 4)}, {braces(4, 2)}, {braces(6, 4)};"
    with pytest.raises(PtxError, match="does not exist on sm_80"):
        run(around(body, 10, 4), np.zeros((10, 32), np.uint32), 4, gpu="A100")


# --- ldmatrix and stmatrix --------------------------------------------------------------------------------------------

PITCH = 24  # elements: rows of 48 bytes, so that a wrong stride shows


def fill_tile(rows: int) -> str:
    """Threads copy in[0..] words to the tile, word i by thread i % 32."""
    words = rows * PITCH // 2
    lines = ["mov.u32 %r190, tile;", "mad.lo.u32 %r191, %r199, 4, %r190;"]
    for first in range(0, words, 32):
        lines += [f"ld.global.b32 %r192, [%rd2+{4 * first}];", f"st.shared.b32 [%r191+{4 * first}], %r192;"]
    return "\n".join([*lines, "bar.sync 0;"])


@pytest.mark.parametrize("matrices", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("spelling", ["m8n8.x{}{}", "x{}{}.m8n8"])  # the manual's, and an older one, CUTLASS's
def test_ldmatrix_gives_each_lane_its_pair(matrices, transposed, spelling):
    rng = np.random.default_rng(8)
    tile = rng.integers(0, 2**16, (32, PITCH)).astype(np.uint16)
    order = rng.permutation(32)  # row r of matrix i starts at line order[8 i + r], column 8
    body = "\n".join([
        fill_tile(32), "mul.wide.u32 %rd4, %r199, 4;", "add.u64 %rd4, %rd4, %rd0;",
        f"ld.global.b32 %r193, [%rd4+{tile.nbytes}];", "add.u32 %r193, %r193, %r190;",
        f"ldmatrix.sync.aligned.{spelling.format(matrices, '.trans' if transposed else '')}.shared.b16 "
        f"{braces(100, matrices)}, [%r193+16];",
    ])  # fmt: skip
    given = np.concatenate([tile.reshape(-1).view(np.uint32), (order * PITCH * 2).astype(np.uint32)])
    # Lanes whose address is not asked for give one far outside: it must not be looked at.
    given[-32:][8 * matrices :] = 0x100000
    registers, counters = run(around(body, 0, matrices, shared=tile.nbytes), given, matrices)
    for i in range(matrices):
        matrix = tile[order[8 * i : 8 * i + 8], 8:16]
        matrix = matrix.T if transposed else matrix
        low, high = matrix[GROUP, 2 * IN_GROUP], matrix[GROUP, 2 * IN_GROUP + 1]
        np.testing.assert_array_equal(registers[i], packed([(low, high)])[0])
    assert counters.shared_load_requests == 1


@pytest.mark.parametrize("matrices", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("spelling", [".m8n8.x{0}{1}", ".x{0}{1}.m8n8"])
def test_stmatrix_is_the_inverse_of_ldmatrix(matrices, transposed, spelling):
    rng = np.random.default_rng(9)
    given = rng.integers(0, 2**32, (matrices, 32), dtype=np.uint32)
    trans = ".trans" if transposed else ""
    body = "\n".join([
        "mov.u32 %r190, tile;", f"mad.lo.u32 %r193, %r199, {2 * PITCH}, %r190;",
        f"stmatrix.sync.aligned{spelling.format(matrices, trans)}.shared.b16 [%r193], {braces(0, matrices)};",
        "bar.warp.sync -1;",
        f"ldmatrix.sync.aligned.m8n8.x{matrices}{trans}.shared.b16 {braces(100, matrices)}, [%r193];",
        f"ld.shared.b16 %rs, [tile+{2 * PITCH}];", "cvt.u32.u16 %r150, %rs;",
        f"mov.b32 %r{100 + matrices}, %r150;",
    ])  # fmt: skip
    ptx = around(body, matrices, matrices + 1, shared=32 * PITCH * 2).replace(".reg .b64", ".reg .b16 %rs;\n.reg .b64")
    registers, counters = run(ptx, given, matrices + 1)
    np.testing.assert_array_equal(registers[:matrices], given)
    # Element (1, 0) of matrix 0: in lane 4's low half, or, transposed, in lane 0's high half.
    expected = given[0, 0] >> 16 if transposed else given[0, 4] & 0xFFFF
    assert (registers[matrices] == expected).all()
    assert counters.shared_store_requests == 1


@pytest.mark.parametrize(("pitch_bytes", "wavefronts"), [(16, 4), (32, 8), (64, 16), (128, 32), (144, 4), (256, 32)])
def test_ldmatrix_counts_a_wavefront_for_every_row_that_meets_another_in_a_bank(pitch_bytes, wavefronts):
    body = "\n".join([
        "mov.u32 %r190, tile;", f"mad.lo.u32 %r193, %r199, {pitch_bytes}, %r190;",
        "st.shared.v4.b32 [%r193], {%r199, %r199, %r199, %r199};", "bar.warp.sync -1;",
        f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {braces(100, 4)}, [%r193];",
    ])  # fmt: skip
    _, counters = run(around(body, 0, 4, shared=32 * pitch_bytes), np.zeros(4, np.uint32), 4)
    assert counters.shared_load_wavefronts == wavefronts
    assert counters.shared_load_ideal == 4


LDMATRIX = f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {braces(100, 4)}, [%r193];"


@pytest.mark.parametrize(
    ("before", "kind"),
    [
        ("mad.lo.u32 %r193, %r199, 16, %r190;", "uninitialised_shared_read"),
        ("mad.lo.u32 %r193, %r199, 32, %r190;", "out_of_bounds"),
        ("mad.lo.u32 %r193, %r199, 8, %r190;", "misaligned"),
        (
            "mad.lo.u32 %r193, %r199, 16, %r190;\n"
            "cp.async.cg.shared.global [%r193], [%rd0], 16;\ncp.async.commit_group;",
            "async_copy_not_waited",
        ),
    ],
)
def test_ldmatrix_of_bytes_it_must_not_read_is_reported(before, kind):
    body = f"mov.u32 %r190, tile;\n{before}\n{LDMATRIX}"
    with pytest.raises(EmulatorFault) as fault:
        run(around(body, 0, 4, shared=512), np.zeros(8, np.uint32), 4)
    assert fault.value.hazard.kind == kind
    assert "ldmatrix" in fault.value.hazard.ptx


def test_ldmatrix_of_another_warps_bytes_without_a_barrier_is_a_race():
    body = "\n".join([
        "mov.u32 %r190, tile;", "xor.b32 %r194, %r199, 32;", "mad.lo.u32 %r191, %r199, 16, %r190;",
        "mad.lo.u32 %r193, %r194, 16, %r190;", "st.shared.v4.b32 [%r191], {%r199, %r199, %r199, %r199};", "BARRIER",
        LDMATRIX,
    ])  # fmt: skip
    out = np.zeros((4, 64), np.uint32)
    right = around(body.replace("BARRIER", "bar.sync 0;"), 0, 1, shared=1024)
    done = emu.emulate(right, "k", 1, 64, [np.zeros(4, np.uint32), out])
    assert done.arrays[1].reshape(-1)[:64].tolist() == [32 + i // 4 for i in range(32)] + [i // 4 for i in range(32)]
    wrong = around(body.replace("BARRIER", ""), 0, 1, shared=1024)
    with pytest.raises(EmulatorFault) as fault:
        emu.emulate(wrong, "k", 1, 64, [np.zeros(4, np.uint32), out])
    assert fault.value.hazard.kind == "shared_race"


# --- wmma -------------------------------------------------------------------------------------------------------------

WMMA_SHAPES = {"m16n16k16": (16, 16), "m32n8k16": (32, 8), "m8n32k16": (8, 32)}


def wmma_ptx(shape: str, kind: str, layouts: tuple[str, str, str], space: str, pitches: tuple[int, int, int],
             sizes: tuple[int, int, int]) -> str:  # fmt: skip
    """in: A, B, C one after the other (bytes `sizes`); out = A B + C in C's layout and pitch."""
    m, n = WMMA_SHAPES[shape]
    counts = (8, 8) if kind == "f16" else (m // 4, n // 4)
    types = "f32.f32" if kind == "f16" else "f32.bf16.bf16.f32"
    a, b, c = (braces(0, counts[0]), braces(10, counts[1]), "{" + ", ".join(f"%f{i}" for i in range(8)) + "}")
    total = sum(sizes)
    body = []
    where, base = "", ["%rd0", "%rd0", "%rd0", "%rd1"]
    if space == "global":
        where = ".global"
    if space in ("shared", "generic shared"):
        body += ["mov.u32 %r190, tile;", "mad.lo.u32 %r191, %r199, 4, %r190;"]
        for first in range(0, total, 128):
            body += [f"ld.global.b32 %r192, [%rd2+{first}];", f"st.shared.b32 [%r191+{first}], %r192;"]
        body += ["bar.sync 0;"]
        if space == "shared":
            where, base = ".shared", ["%r190"] * 4
        else:
            body += ["cvt.u64.u32 %rd5, %r190;", "cvta.shared.u64 %rd5, %rd5;"]
            base = ["%rd5"] * 4
    at = [f"[{base[0]}]", f"[{base[1]}+{sizes[0]}]", f"[{base[2]}+{sizes[0] + sizes[1]}]"]
    to = f"[{base[3]}+{sizes[0] + sizes[1]}]" if "shared" in space else f"[{base[3]}]"
    body += [
        f"mov.u32 %r180, {pitches[1]};",
        f"wmma.load.a.sync.aligned.{layouts[0]}.{shape}{where}.{kind} {a}, {at[0]}, {pitches[0]};",
        f"wmma.load.b.sync.aligned.{layouts[1]}.{shape}{where}.{kind} {b}, {at[1]}, %r180;",
        f"wmma.load.c.sync.aligned.{layouts[2]}.{shape}{where}.f32 {c}, {at[2]}, {pitches[2]};",
        f"wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{types} {c}, {a}, {b}, {c};",
        f"wmma.store.d.sync.aligned.{layouts[2]}.{shape}{where}.f32 {to}, {c}, {pitches[2]};",
    ]
    if "shared" in space:
        body += ["bar.sync 0;"]
        for first in range(0, sizes[2], 128):
            body += [f"ld.shared.b32 %r192, [%r191+{sizes[0] + sizes[1] + first}];",
                     f"st.global.b32 [%rd3+{first}], %r192;"]  # fmt: skip
    return around("\n".join(body), 0, 0, shared=total)


@pytest.mark.parametrize("shape", WMMA_SHAPES)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("layouts", ["row row row", "row col col", "col row row", "col col col"])
@pytest.mark.parametrize("space", ["global", "shared", "generic", "generic shared"])
def test_wmma_loads_multiplies_and_stores(shape, kind, layouts, space):
    rng = np.random.default_rng(11)
    m, n = WMMA_SHAPES[shape]
    a, b, c = small_integers(rng, m, 16), small_integers(rng, 16, n), small_integers(rng, m, n)
    parts, pitches = [], []
    for matrix, layout, pad in zip((a, b, c), layouts.split(), (8, 16, 4), strict=True):
        lines = matrix if layout == "row" else matrix.T
        held = np.full((len(lines), lines.shape[1] + pad), 99.0, np.float32)
        held[:, : lines.shape[1]] = lines
        parts.append(held if matrix is c else bits_of(held, kind))
        pitches.append(held.shape[1])
    sizes = tuple(-(-part.nbytes // 128) * 128 for part in parts)
    given = np.zeros(sum(sizes), np.uint8)
    for part, start in zip(parts, (0, sizes[0], sizes[0] + sizes[1]), strict=True):
        given[start : start + part.nbytes] = part.reshape(-1).view(np.uint8)
    ptx = wmma_ptx(shape, kind, tuple(layouts.split()), space, tuple(pitches), sizes)
    done = emu.emulate(ptx, "k", 1, 32, [given, np.zeros(sizes[2] // 4, np.float32)])
    out = done.arrays[1][: parts[2].size].reshape(parts[2].shape)
    got = out[:, : c.shape[1] if layouts.split()[2] == "row" else c.shape[0]]
    np.testing.assert_array_equal(got if layouts.split()[2] == "row" else got.T, a @ b + c)
    assert done.counters.flops == {"hmma": 2 * m * n * 16}
    if space == "shared":  # as the machine code: four 8 x 8 matrices a request of A or B
        matrices = [m // 4, n // 4]
        loads = [row for row in done.counters.per_instruction if row.ptx.startswith(("wmma.load.a", "wmma.load.b"))]
        assert [row.requests for row in loads] == [-(-count // 4) for count in matrices]


def test_wmma_store_outside_its_buffer_is_reported():
    sizes = (512, 512, 1024)
    ptx = wmma_ptx("m16n16k16", "bf16", ("row", "row", "row"), "global", (16, 16, 16), sizes)
    with pytest.raises(EmulatorFault) as fault:
        emu.emulate(ptx, "k", 1, 32, [np.zeros(2048, np.uint8), np.zeros(255, np.float32)])
    assert fault.value.hazard.kind == "out_of_bounds"
    assert "wmma.store.d" in fault.value.hazard.ptx


def test_wmma_with_fp16_accumulators():
    """Zeros in, so that only C comes through, rounded nowhere."""
    rng = np.random.default_rng(12)
    a, b, c = small_integers(rng, 16, 16), small_integers(rng, 16, 16), small_integers(rng, 16, 16)
    body = "\n".join([
        f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {braces(0, 8)}, [%rd0];",
        f"wmma.load.b.sync.aligned.row.m16n16k16.global.f16 {braces(10, 8)}, [%rd0+512];",
        f"wmma.load.c.sync.aligned.row.m16n16k16.global.f16 {braces(20, 4)}, [%rd0+1024];",
        f"wmma.mma.sync.aligned.row.row.m16n16k16.f16.f16 {braces(30, 4)}, {braces(0, 8)}, {braces(10, 8)}, "
        f"{braces(20, 4)};",
        f"wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%rd1], {braces(30, 4)};",
    ])  # fmt: skip
    given = np.concatenate([x.astype(np.float16) for x in (a, b, c)])
    done = emu.emulate(around(body, 0, 0), "k", 1, 32, [given, np.zeros((16, 16), np.float16)])
    np.testing.assert_array_equal(done.arrays[1], (a @ b + c).astype(np.float16))


def test_lanes_that_part_and_meet_again_many_times_make_their_products_together():
    """The turn that lanes further on get for fairness' sake is for those who are starved."""
    ptx = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .pred %p<3>; .reg .b32 %r<5>; .reg .f32 %f<6>; .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, 0;
    mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
    setp.lt.u32 %p0, %r0, 5;
$AGAIN:
    @%p0 bra $FEW;
    mov.b32 %r2, 0x3f800000;
    bra.uni $MEET;
$FEW:
    mov.b32 %r2, 0x40000000;
$MEET:
    mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32
        {%f0, %f1, %f2, %f3}, {%r2, %r2, %r2, %r2}, {%r2, %r2}, {%f0, %f1, %f2, %f3};
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 500;
    @%p1 bra $AGAIN;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd2, %rd0, %rd1;
    st.global.f32 [%rd2], %f0;
    ret;
}
"""
    out = emu.emulate(ptx, "k", 1, 32, [np.full(32, np.nan, np.float32)]).arrays[0]
    # row 0 and column 0 hold a 2 each k: 4 + 4 + 4 + 4 and so on; far from them all are 1
    assert out[0] == 500 * 2 * (4 * 4)
    assert out[31] == 500 * 8


def test_a_product_of_doubles_is_taken_as_the_compiler_spells_it():
    pytest.importorskip("nvidia", reason="needs the wheel nvidia-cuda-runtime")
    source = """
    #include <mma.h>
    using namespace nvcuda;
    __global__ void k(const double *a, const double *b, double *c) {
        wmma::fragment<wmma::matrix_a, 8, 8, 4, double, wmma::row_major> x;
        wmma::fragment<wmma::matrix_b, 8, 8, 4, double, wmma::col_major> y;
        wmma::fragment<wmma::accumulator, 8, 8, 4, double> z;
        wmma::load_matrix_sync(x, a, 4);
        wmma::load_matrix_sync(y, b, 4);
        wmma::fill_fragment(z, 0);
        wmma::mma_sync(z, x, y, z);
        wmma::store_matrix_sync(c, z, 8, wmma::mem_row_major);
    }"""
    a, b = np.random.default_rng(1).integers(-9, 9, (2, 8, 4)).astype(float)
    assert (tw.emulate(source, "k", 1, 32, [a, b, np.zeros((8, 8))]).arrays[2] == a @ b.T).all()
