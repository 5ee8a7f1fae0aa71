"""Grouped products on the emulator: groups of any size, wherever they start, in all four forms."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from ml_dtypes import bfloat16

import tilewright as tw
from tilewright.emu import Emulator
from tilewright.errors import ConfigRejected, InvalidOperand
from tilewright.gemm.config import GemmConfig
from tilewright.gemm.rung import Addresses
from tilewright.gpus import GPUS
from tilewright.grouped.call import read_grouped
from tilewright.grouped.family import plan_grouped
from tilewright.grouped.rungs import GROUPED_RUNGS, find_grouped_rung
from tilewright.grouped.stages import ENDS, params
from tilewright.jit import use_executor
from tilewright.jit.compile import compile_unit
from tilewright.jit.params import _fields
from tilewright.lab.numbers import POISON, STORED, from_stored, to_stored

MMA = GemmConfig(32, 32, 32, warp_m=16, warp_n=32, stages=3, group_m=2)
WGMMA = GemmConfig(128, 64, 32, warp_m=16, warp_n=64, stages=3, group_m=2)
TMA = GemmConfig(128, 64, 64, warp_m=16, warp_n=64, stages=3, group_m=2)
KERNELS = [("g01", MMA), ("g02", WGMMA)]
PING_PONG = GemmConfig(128, 64, 64, warp_m=32, warp_n=64, stages=3, group_m=2, turns=2)
BY_TMA = [("g03", TMA), ("g05", PING_PONG)]
TURNED = [
    GemmConfig(128, 64, 64, warp_m=16, warp_n=64, stages=3, group_m=2),
    GemmConfig(64, 256, 64, warp_m=16, warp_n=256, stages=2),
    GemmConfig(256, 192, 64, warp_m=32, warp_n=192, stages=2),
]
KINDS = {"f16": np.dtype(np.float16), "bf16": np.dtype(bfloat16), "f32": np.dtype(np.float32)}
BAND = 256


@dataclass(frozen=True)
class Case:
    """`form`: the axis that is cut. Layouts of a, b and out: n row-major, t column-major, p rows padded by 8 elements,
    q by 5, o from one element on."""

    form: str
    sizes: tuple[int, ...]
    layouts: str = "nnn"
    others: tuple[int, int] = (40, 72)
    rest: int = 0
    dtype: str = "f16"
    out_dtype: str = "f16"

    def __str__(self) -> str:
        return f"{self.form}-{self.layouts}-{len(self.sizes)}-{sum(self.sizes)}+{self.rest}-{self.others}-{self.dtype}"


class Placed:
    """An array in a buffer of poison that ends where it ends, but for `band` elements around a result."""

    def __init__(self, layout: str, shape: tuple[int, ...], dtype: str, band: int = 0) -> None:
        *_, rows, cols = shape
        pitch, lines = {"p": (cols + 8, rows), "q": (cols + 5, rows), "t": (rows, cols)}.get(layout, (cols, rows))
        steps = (1, pitch) if layout == "t" else (pitch, 1)
        steps = (pitch * lines, *steps) if len(shape) == 3 else steps
        reach = sum((e - 1) * s for e, s in zip(shape, steps, strict=True)) + 1 if 0 not in shape else 0
        first = band + (layout == "o")
        raw = np.empty(first + reach + band + 8, POISON[dtype].dtype)
        start = -raw.ctypes.data % 16 // raw.itemsize
        self.bits = raw[start : start + first + reach + band]
        self.bits[...] = POISON[dtype]
        self.dtype, self.shape, self.first = dtype, shape, first
        self.steps = tuple(step * raw.itemsize for step in steps)

    def of(self, bits: np.ndarray) -> np.ndarray:
        return np.ndarray(self.shape, KINDS[self.dtype], bits.data, self.first * bits.itemsize, self.steps)

    @property
    def view(self) -> np.ndarray:
        return self.of(self.bits)

    def fill(self, rng: np.random.Generator) -> np.ndarray:
        view = np.ndarray(self.shape, STORED[self.dtype], self.bits.data, self.first * self.bits.itemsize, self.steps)
        view[...] = to_stored(rng.standard_normal(self.shape).astype(np.float32), self.dtype)
        return from_stored(np.ascontiguousarray(view), self.dtype).astype(np.float64)


def shapes(case: Case, groups: int, total: int) -> tuple[tuple[int, ...], ...]:
    x, y = case.others
    return {
        "m": ((total, x), (groups, x, y), (total, y)),
        "n": ((groups, x, y), (y, total), (x, total)),
        "k": ((x, total), (total, y), (groups, x, y)),
    }[case.form]  # fmt: skip


def parts(case: Case, ends: list[int]):
    """(index into a, into b, into the result) of each group."""
    start = 0
    for group, end in enumerate(ends):
        cut = slice(start, end)
        yield {
            "m": (cut, group, cut), "n": (group, (slice(None), cut), (slice(None), cut)),
            "k": ((slice(None), cut), cut, group),
        }[case.form]  # fmt: skip
        start = end


def run(case: Case, rung: str | None, config: GemmConfig | None, ends: list[int] | None = None, sms: int = 3):
    """Launch on poisoned buffers, with the ends as a device would have them, and judge.

    `ends`: what lies there, where it is not what the sizes say. Returns the result's bits.
    """
    rng = np.random.default_rng(sum(case.sizes) + len(case.sizes))
    true = np.cumsum(case.sizes, dtype=np.int64).tolist()
    total = (true[-1] if true else 0) + case.rest
    of_a, of_b, of_out = shapes(case, len(true), total)
    a, b = Placed(case.layouts[0], of_a, case.dtype), Placed(case.layouts[1], of_b, case.dtype)
    out = Placed(case.layouts[2], of_out, case.out_dtype, BAND)
    x, y = a.fill(rng), b.fill(rng)
    call = read_grouped(a.view, b.view, np.array(true, np.int32), out.view, plan_with=(rung, config))
    emulator = Emulator()
    emulator.gpu = dataclasses.replace(emulator.gpu, sm_count=sms)
    at = {
        name: emulator.upload(placed.bits.view(np.uint8), name) for name, placed in (("a", a), ("b", b), ("out", out))
    }
    bases = {
        name: at[name] + placed.first * placed.bits.itemsize for name, placed in (("a", a), ("b", b), ("out", out))
    }
    given = np.array(true if ends is None else ends, np.int32)
    bases["ends"] = emulator.upload(given.view(np.uint8), "ends") if given.size else 0
    with use_executor(emulator):
        program = call.program(emulator.gpu)
        bases["work"] = emulator.upload(np.full(program.workspace_bytes + 16, 0xFF, np.uint8), "work")
        for stage in program.stages:
            emulator.launch(stage.compile(emulator.arch), stage.launch(bases, {}))
    out.bits[:] = emulator.download(at["out"], out.bits.nbytes).view(out.bits.dtype)
    expected, size = np.zeros(of_out), np.zeros(of_out)
    written = np.zeros(of_out, bool)
    for in_a, in_b, in_out in parts(case, true):
        expected[in_out], size[in_out] = x[in_a] @ y[in_b], np.abs(x[in_a]) @ np.abs(y[in_b])
        written[in_out] = True
    stored = np.ndarray(of_out, STORED[case.out_dtype], out.bits.data, out.first * out.bits.itemsize, out.steps)
    values = from_stored(np.ascontiguousarray(stored), case.out_dtype).astype(np.float64)
    bound = np.abs(expected) * {"f16": 2**-10, "bf16": 2**-7, "f32": 0}[case.out_dtype] + size * 2**-18 + 1e-7
    assert np.isfinite(values[written]).all()
    assert (np.abs(values - expected)[written] <= bound[written]).all()
    around = out.bits.copy()
    view = np.ndarray(of_out, around.dtype, around.data, out.first * out.bits.itemsize, out.steps)
    assert (view[~written] == POISON[case.out_dtype]).all(), "a row or column of no group is written"
    view[...] = POISON[case.out_dtype]
    assert (around == POISON[case.out_dtype]).all(), "something around the result is written"
    return values


SIZES = (0, 5, 0, 65, 1, 29, 130, 0)


@pytest.mark.parametrize(("rung", "config"), BY_TMA, ids=["g03", "g05"])
@pytest.mark.parametrize(
    ("form", "layouts"), [("m", "nnn"), ("m", "ntp"), ("n", "ttn"), ("n", "ntt"), ("k", "tnn"), ("k", "tnt")]
)
def test_tma_copies_beyond_a_groups_end_and_results_end_there(form, layouts, rung, config):
    """Lines are multiples of 16 bytes; groups start anywhere."""
    case = Case(form, SIZES, layouts, rest=10)
    for sms in (1, 3):
        run(case, rung, config, sms=sms)
    run(dataclasses.replace(case, sizes=(300, 1, 0, 129), others=(72, 136)), rung, config)


@pytest.mark.parametrize(
    ("form", "layouts", "name"), [("m", "qnn", "a"), ("m", "tnn", "a"), ("n", "nnn", "b"), ("k", "nnn", "a")]
)
def test_what_tma_cannot_address_is_refused(form, layouts, name):
    with pytest.raises(ConfigRejected, match=f"TMA cannot read {name}: its lines do not start at multiples of 16"):
        run(Case(form, SIZES, layouts, rest=10), "g03", TMA)


@pytest.mark.parametrize(("rung", "config"), BY_TMA, ids=["g03", "g05"])
@pytest.mark.parametrize("sms", [1, 3])
def test_results_along_k_leave_by_tma(sms, rung, config):
    config = dataclasses.replace(config, staged=2)
    run(Case("k", SIZES, "tnn", others=(136, 72)), rung, config, sms=sms)
    run(Case("k", (70,), "tnp", others=(136, 72)), rung, config, sms=sms)


@pytest.mark.parametrize(("rung", "config"), BY_TMA, ids=["g03", "g05"])
@pytest.mark.parametrize("layouts", ["nnn", "ntp"])
def test_rows_of_a_group_leave_by_tma_but_for_its_last_few(layouts, rung, config):
    config = dataclasses.replace(config, staged=2)
    for sms in (1, 3):
        run(Case("m", SIZES, layouts, others=(40, 136), rest=10), rung, config, sms=sms)
    run(Case("m", (300, 16, 0, 129, 32, 1), layouts, others=(40, 72)), rung, config)


@pytest.mark.parametrize("layouts", ["nnq", "nno", "nnt"])
def test_rows_that_tma_cannot_store_leave_by_lane(layouts):
    run(Case("m", SIZES, layouts, rest=10), "g03", dataclasses.replace(TMA, staged=2))


def test_columns_that_end_anywhere_do_not_leave_by_tma():
    with pytest.raises(ConfigRejected, match="which would run over a group's end; it can have staged=0"):
        run(Case("n", SIZES, "ttn"), "g03", dataclasses.replace(TMA, staged=2))


@pytest.mark.parametrize("first", [5, 16, 31, 33, 48, 63, 64, 75])
def test_infinities_of_the_next_group_do_not_reach_a_product_along_k(first):
    a, b = np.ones((64, 100), np.float16), np.ones((100, 64), np.float16)
    a[:, first:] = np.inf
    b[first:] = np.nan
    with tw.emulator():
        for rung, config in [*KERNELS, *BY_TMA]:
            out = tw.grouped_matmul(np.asfortranarray(a), b, [first, 100], rung=rung, config=config)
            assert (out[0] == first).all()
            assert np.isnan(out[1]).all()


@pytest.mark.parametrize(("rung", "config"), KERNELS, ids=["g01", "g02"])
@pytest.mark.parametrize("layouts", ["nnn", "ttp", "tnt", "qqq", "ooo"])
@pytest.mark.parametrize("form", ["m", "n", "k"])
def test_every_form_is_right_wherever_groups_start_and_however_operands_lie(form, layouts, rung, config):
    run(Case(form, SIZES, layouts, rest=7), rung, config)


@pytest.mark.parametrize("layouts", ["nnn", "ttp", "qqo"])
@pytest.mark.parametrize("form", ["m", "n", "k"])
def test_float32_operands_are_multiplied_in_float32(form, layouts):
    config = GemmConfig(32, 64, 32, 4, 4, 16, 32, stages=3, cache="ca", group_m=2)
    run(Case(form, SIZES, layouts, rest=7, dtype="f32", out_dtype="f32"), "g04", config)
    run(Case(form, SIZES, layouts, dtype="f32", out_dtype="bf16"), None, None)


@pytest.mark.parametrize("form", ["m", "n", "k"])
@pytest.mark.parametrize("types", [("bf16", "bf16"), ("bf16", "f32"), ("f16", "f32")], ids=str)
def test_results_are_rounded_once_to_their_own_type(form, types):
    for rung, config in KERNELS:
        run(Case(form, SIZES, dtype=types[0], out_dtype=types[1], others=(64, 64)), rung, config)


@pytest.mark.parametrize(("rung", "config"), KERNELS, ids=["g01", "g02"])
@pytest.mark.parametrize("form", ["m", "n", "k"])
def test_many_groups_are_found_over_several_windows_of_a_warp(form, rung, config):
    sizes = tuple(int(size) for size in np.random.default_rng(1).integers(0, 4, 200))
    run(Case(form, sizes, others=(16, 24), rest=3), rung, config, sms=2)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 65])
def test_the_last_group_is_found_at_a_windows_border(count):
    run(Case("m", (0,) * (count - 1) + (3,), others=(16, 24), rest=2), *KERNELS[0])
    run(Case("m", (3,) + (0,) * (count - 1), others=(16, 24)), *KERNELS[0])


@pytest.mark.parametrize("sms", [1, 2, 7, 200])
def test_blocks_that_stay_take_every_tile_once(sms):
    for rung, config in KERNELS:
        run(Case("m", (300, 1, 0, 129), others=(72, 136)), rung, config, sms=sms)


@pytest.mark.parametrize(("rung", "config"), KERNELS, ids=["g01", "g02"])
@pytest.mark.parametrize("form", ["m", "n", "k"])
def test_ends_that_fall_or_run_over_touch_nothing_outside(form, rung, config):
    """Each counts as the largest before it, and at most as the axis."""
    wild = [5, 3, -7, 40, 10, 2**31 - 1, -(2**31)]
    run(Case(form, (5, 0, 0, 35, 0, 30, 0)), rung, config, ends=wild)


@pytest.mark.parametrize(("rung", "config"), BY_TMA, ids=["g03", "g05"])
@pytest.mark.parametrize("form", ["m", "n", "k"])
def test_ends_that_fall_or_run_over_are_clamped_for_tma_too(form, rung, config):
    layouts = {"m": "nnn", "n": "ntn", "k": "tnn"}[form]
    run(Case(form, (5, 0, 0, 35, 0, 32, 0), layouts), rung, config, ends=[5, 3, -7, 40, 10, 2**31 - 1, -(2**31)])


@pytest.mark.parametrize("config", TURNED, ids=str)
@pytest.mark.parametrize("layouts", ["nnn", "ntn", "pnp", "ptn"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_turned_product_is_right_for_groups_of_every_size(dtype, layouts, config):
    sizes = (*SIZES, 15, 16, 17, 64, 65, 257)
    run(Case("m", sizes, layouts, others=(72, 136), rest=5, dtype=dtype, out_dtype=dtype), "g08", config)


def test_a_turned_product_has_the_bits_of_the_other():
    rng = np.random.default_rng(3)
    a = rng.standard_normal((130, 200)).astype(np.float16)
    b = rng.standard_normal((3, 72, 200)).astype(np.float16).swapaxes(1, 2)
    with tw.emulator("H200"):
        found = [tw.grouped_matmul(a, b, [7, 90, 130], rung=rung) for rung in ("g02", "g03", "g08")]
    np.testing.assert_array_equal(found[2].view(np.uint16), found[0].view(np.uint16))
    np.testing.assert_array_equal(found[2].view(np.uint16), found[1].view(np.uint16))


def test_a_turned_products_tile_is_whole_boxes_of_columns():
    config = GemmConfig(256, 144, 64, warp_m=32, warp_n=144, stages=2)
    with pytest.raises(ConfigRejected, match="32 at a time"):
        run(Case("m", (8, 8)), "g08", config)


def test_a_turned_products_ends_are_clamped_too():
    run(Case("m", (5, 0, 0, 35, 0, 32, 0)), "g08", TURNED[0], ends=[5, 3, -7, 40, 10, 2**31 - 1, -(2**31)])


@pytest.mark.parametrize(
    ("form", "layouts", "others", "out_dtype", "words"),
    [
        ("k", "tnn", (40, 72), "f16", "multiplies groups of rows; these are cut along k"),
        ("m", "nnn", (40, 72), "f32", "gives 16-bit results of 16-bit operands; these are f16 to f32"),
        ("m", "nnt", (40, 72), "f16", "stores 16 bytes of rows"), ("m", "nnn", (40, 60), "f16", "stores 16 bytes of"),
        ("m", "tnn", (40, 72), "f16", "reads rows of A along k"),
    ],
)  # fmt: skip
def test_what_a_turned_product_cannot_take_is_refused(form, layouts, others, out_dtype, words):
    with pytest.raises(ConfigRejected, match=words):
        run(Case(form, (8, 8), layouts, others=others, out_dtype=out_dtype), "g08", TURNED[0])


def test_a_group_without_k_gives_zeros():
    values = run(Case("k", (0, 8, 0)), *KERNELS[1])
    assert (values[[0, 2]] == 0).all()
    with tw.emulator():
        empty = np.empty((0, 5), np.float16)
        assert (tw.grouped_matmul(empty.T, empty, [0, 0, 0]) == np.zeros((3, 5, 5))).all()


def test_rows_of_no_group_are_zero_in_a_new_array_and_stay_in_out():
    a, b = np.ones((9, 16), np.float16), np.ones((2, 16, 8), np.float16)
    with tw.emulator():
        new = tw.grouped_matmul(a, b, [3, 5])
        out = np.full((9, 8), 7, np.float16)
        assert tw.grouped_matmul(a, b, [3, 5], out=out) is out
        columns = tw.grouped_matmul(b.transpose(0, 2, 1), a.T, [3, 5])
    assert (new[:5] == 16).all()
    assert (new[5:] == 0).all()
    assert (out[:5] == 16).all()
    assert (out[5:] == 7).all()
    assert (columns == new.T).all()


def test_whole_windows_of_groups_leave_the_rest_to_the_next():
    """The rest is a group of its own: the 33rd."""
    a, b = np.ones((40, 16), np.float16), np.ones((32, 16, 8), np.float16)
    with tw.emulator():
        new = tw.grouped_matmul(a, b, list(range(1, 33)))
    assert (new[:32] == 16).all()
    assert (new[32:] == 0).all()


@pytest.mark.parametrize("form", ["m", "n", "k"])
def test_a_group_has_the_bits_of_its_product_alone(form):
    """Wherever it starts, by every kernel: k is walked in one chain, from the group's first element."""
    rng = np.random.default_rng(3)
    case, ends = Case(form, (9, 70, 33)), [9, 79, 112]
    of_a, of_b, _ = shapes(case, 3, 112)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in (of_a, of_b))
    for rung, config in [*KERNELS, *([*BY_TMA, ("g08", TURNED[0])] if form == "m" else [])]:
        with tw.emulator():
            whole = tw.grouped_matmul(a, b, ends, rung=rung, config=config)
            for in_a, in_b, in_out in parts(case, ends):
                alone = tw.matmul(a[in_a], b[in_b], rung="h11", config=MMA)
                assert whole[in_out].tobytes() == alone.tobytes()


def test_three_axes_each_are_a_batch():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((3, 5, 16)).astype(np.float16), rng.standard_normal((3, 16, 7)).astype(np.float16)
    with tw.emulator():
        assert (tw.grouped_matmul(a, b) == tw.matmul(a, b)).all()


def test_no_groups_leave_nothing_but_zeros():
    with tw.emulator():
        a = np.ones((4, 16), np.float16)
        assert (tw.grouped_matmul(a, np.ones((0, 16, 8), np.float16), []) == 0).all()
        assert tw.grouped_matmul(a.T, a, []).shape == (0, 16, 16)


# --- what is refused -------------------------------------------------------------------------------------------------

A, B = np.ones((9, 16), np.float16), np.ones((2, 16, 8), np.float16)


@pytest.mark.parametrize(
    ("a", "b", "offs", "words"),
    [
        (A, B, [5, 3], "must not fall, from 0 to at most the 9 rows of a"),
        (A, B, [-1, 3], "must not fall"),
        (A, B, np.ma.masked_array([2, 4], mask=[1, 0]), "offs is a masked array"),
        (A, B, [5, 10], "it ends with 10"),
        (A, B, [1, 2, 3], "for 2 groups, and offs ends 3"),
        (A, B, [[1, 2]], "integers \\[groups\\]"),
        (A, B, [1.0, 2.0], "integers \\[groups\\]"),
        (A, B, None, "need offs"),
        (A, np.ones((2, 15, 8), np.float16), [1, 2], "do not fit"),
        (A, B.astype(np.float32), [1, 2], "Convert one to the other's dtype"),
        (B, B.transpose(0, 2, 1), [1, 2], "not both three"),
        (A[0], B, [1, 2], "two or three axes"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_its_values(a, b, offs, words):
    with tw.emulator(), pytest.raises(InvalidOperand, match=words):
        tw.grouped_matmul(a, b, offs)


def test_an_out_that_does_not_fit_is_refused():
    with tw.emulator():
        with pytest.raises(InvalidOperand, match="the result has exactly"):
            tw.grouped_matmul(A, B, [1, 2], out=np.empty((8, 9), np.float16))
        with pytest.raises(InvalidOperand, match="overlaps"):
            tw.grouped_matmul(A, np.ones((2, 16, 16), np.float16), [1, 2], out=A)
        room = np.empty((9, 8), np.float16)
        ends = room.ravel()[:4].view(np.int32)
        ends[:] = 4, 9
        with pytest.raises(InvalidOperand, match="overlaps offs"):
            tw.grouped_matmul(A, B, ends, out=room)
        with pytest.raises(InvalidOperand, match="out_dtype says float32"):
            tw.grouped_matmul(A, B, [1, 2], out=np.empty((9, 8), np.float16), out_dtype="f32")


def test_a_kernel_that_cannot_run_is_refused_with_the_reason():
    with tw.emulator():
        with pytest.raises(ConfigRejected, match="no such level"):
            tw.grouped_matmul(A, B, [1, 2], config=dataclasses.replace(MMA, split_k=2))
        with pytest.raises(
            ConfigRejected, match="Known: g01_mma, g02_wgmma, g08_turned, g03_tma, g05_ping_pong, g04_ffma"
        ):
            tw.grouped_matmul(A, B, [1, 2], rung="h13")
        with pytest.raises(InvalidOperand, match="a batch is a product of `matmul`"):
            tw.grouped_matmul(B, B.transpose(0, 2, 1), rung="g01")


# --- plans and parameters --------------------------------------------------------------------------------------------


def test_plans_follow_the_average_size_and_the_architecture():
    def plan(rows: int, groups: int, gpu: str, along_k: bool = False):
        a, b = np.empty((rows, 7168), np.float16), np.empty((groups, 1, 1), np.float16)
        b = np.lib.stride_tricks.as_strided(b, (groups, 7168, 4096), (0, 2, 14336) if along_k else (0, 8192, 2))
        ends = [rows // groups * (group + 1) for group in range(groups)]
        return plan_grouped(read_grouped(a, b, ends).problem, GPUS[gpu])

    for along_k in (False, True):
        assert plan(8 * 512, 8, "H200", along_k).rung is find_grouped_rung("g08")
        assert plan(8 * 4096, 8, "H200", along_k).rung is find_grouped_rung("g03")
    assert plan(64, 64, "A100").config.tile_m == 16
    assert plan(8 * 512, 8, "A100").config.tile_m >= 64
    assert plan(8 * 512, 8, "A100").rung is GROUPED_RUNGS[0]


def test_parameters_lie_as_the_kernels_struct_does():
    call = read_grouped(A, B, [1, 2])
    template = params(call.problem, call.plan(Emulator().gpu), Addresses(1, 2, 3), 4)
    size = len(template.data)
    (stage,) = call.program(Emulator().gpu).stages
    with use_executor(Emulator()):
        source = stage.compile(Emulator().arch).source
    held = [
        f'static_assert(__INTADDR__(&((GroupedArgs*)0)->{member}) == {size - 24 + place}, "{member}");'
        for member, place in zip(("ends", "groups", "drawn"), _fields(ENDS), strict=True)
    ]
    held.append(f'static_assert(sizeof(GroupedArgs) == {size}, "GroupedArgs");')
    with use_executor(Emulator()):
        compile_unit(dataclasses.replace(source, text="\n".join([source.text, *held])), Emulator().arch.name)


def test_a_part_that_starts_anywhere_along_contiguous_elements_is_not_read_in_vectors():
    lines, turned = (read_grouped(a, B, [1, 2]).problem for a in (A, np.asfortranarray(A)))
    assert (lines.product.a.alignment, turned.product.a.alignment) == (16, 2)


@pytest.mark.parametrize("turned", ["", "b", "ab"])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("form", ["m", "n", "k"])
def test_few_rows_in_float32_are_planned_and_right(form, groups, turned):
    rng = np.random.default_rng(groups)
    shapes = {"m": ((8, 40), (groups, 40, 12)), "n": ((groups, 12, 40), (40, 8)), "k": ((12, 8), (8, 40))}[form]
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    a, b = (  # lines along the other axis, as a layer's weights have them
        np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if name in turned else x
        for name, x in (("a", a), ("b", b))
    )
    ends = [5] if groups == 1 else [2, 5, 7]
    with tw.emulator():
        found = tw.grouped_matmul(a, b, ends)
    wanted = np.zeros_like(found)
    for group, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if form == "m":
            wanted[begin:end] = a[begin:end] @ b[group]
        elif form == "n":
            wanted[:, begin:end] = a[group] @ b[:, begin:end]
        else:
            wanted[group] = a[:, begin:end] @ b[begin:end]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    for gpu in GPUS:
        assert plan_grouped(read_grouped(a, b, ends).problem, GPUS[gpu]).rung in GROUPED_RUNGS
