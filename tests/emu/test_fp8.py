"""Products of fp8 on the emulator: exact ones, random ones within what the hardware's rule may lose, every scale."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from fp8_reference import BLOCK, E4M3, E5M2, dequantised, most_lost, normal, product, scales
from wrong_launches import launch_wrongly, scaled_by

import tilewright as tw
from tilewright.arrays.float8 import LARGEST, Float8Array, to_bits
from tilewright.emu.isa.tensor_sum import fp8_values
from tilewright.errors import InvalidOperand, WrongResult
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung, rungs_of
from tilewright.gemm.rungs.fp8 import FP8_RUNGS

OWN_SUMS = tuple(rung.id for rung in FP8_RUNGS if rung.precision == "fast")
PROMOTED = ("q02_promoted", "q03_tma", "q04_cluster")
EVERY = tuple(rung.id for rung in FP8_RUNGS)


def how(rung: str) -> dict[str, str]:
    return {"rung": rung, "precision": "fast" if rung in OWN_SUMS else "ieee"}


def lies(values: np.ndarray, layout: str) -> np.ndarray:
    """The same values, rows contiguous ("n") or columns ("t")."""
    return values if layout == "n" else np.ascontiguousarray(values.T).T


# --- every rung -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", EVERY)
@pytest.mark.parametrize(
    ("sizes", "layouts"),
    [((64, 64, 128), "nt"), ((70, 100, 200), "nn"), ((33, 65, 131), "tn"), ((5, 24, 48), "tt"), ((1, 1, 1), "nn")],
    ids=str,
)
def test_small_integers_are_multiplied_exactly(rung, sizes, layouts):
    """Sizes that nothing divides, k odd too, in every layout: what tensor cores cannot read is packed first."""
    m, n, k = sizes
    rng = np.random.default_rng(k)
    if k == 1 and find_rung(rung).loaders:
        pytest.skip("TMA has no line to read along k")
    a = lies(rng.integers(-2, 3, (m, k)).astype(E4M3), layouts[0])
    b = lies(rng.integers(-2, 3, (k, n)).astype(E5M2), layouts[1])
    with tw.emulator():
        out = tw.matmul(a, b, out_dtype="f32", **how(rung))
    np.testing.assert_array_equal(out, product(a, b))


@pytest.mark.parametrize("rung", ["q01_convert", *PROMOTED, "q07_cluster_k"])
@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)], ids=str)
def test_every_mixture_is_within_what_the_rule_may_lose(rung, dtypes):
    a, b = normal((70, 300), dtypes[0]), normal((72, 300), dtypes[1]).T
    with tw.emulator():
        out = tw.matmul(a, b, out_dtype="f32", rung=rung)
    error = np.abs(out - product(a, b))
    if rung == "q01_convert":  # fp16's rule: fp8's bits are all there
        assert (error <= 2.0**-20 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))).all()
    else:
        assert (error <= most_lost(a, b) + 1e-6).all()
        assert error.max() > 2.0**-18 * np.abs(out).max(), "tensor cores do lose bits"


@pytest.mark.parametrize("rung", OWN_SUMS)
def test_sums_of_all_of_k_lose_more_and_no_more_than_the_rule_says(rung):
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.5, 1, (64, 1024)).astype(E4M3) for _ in range(2))
    with tw.emulator():
        fast = tw.matmul(a, b.T, out_dtype="f32", **how(rung))
        kept = tw.matmul(a, b.T, out_dtype="f32", rung="q03")
    exact = product(a, b.T)
    lost, lost_promoted = np.abs(fast - exact).max(), np.abs(kept - exact).max()
    assert (np.abs(fast - exact) <= most_lost(a, b.T, chain=1024) + 1e-6).all()
    assert lost > 3 * lost_promoted > 0


def test_the_promoted_rungs_give_the_same_bits():
    a, b = normal((130, 700)), normal((200, 700)).T
    with tw.emulator():
        first, *others = (tw.matmul(a, b, out_dtype="f32", rung=rung) for rung in PROMOTED)
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize(
    "config",
    [
        GemmConfig(128, 192, 128, warp_m=16, warp_n=192, stages=4, part_n=192),
        GemmConfig(128, 192, 128, warp_m=16, warp_n=192, stages=4, part_n=96),
        GemmConfig(128, 256, 128, warp_m=16, warp_n=256, stages=3, part_n=128),
        GemmConfig(256, 128, 128, warp_m=32, warp_n=128, stages=3, part_n=128),
        GemmConfig(192, 128, 128, warp_m=16, warp_n=128, stages=4, part_n=64, staged=1),
        GemmConfig(64, 128, 128, warp_m=16, warp_n=128, stages=3, part_n=128, min_blocks=2, staged=1),
        GemmConfig(64, 64, 64, warp_m=16, warp_n=64, stages=4, part_n=64, split_k=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("blocks", [False, True], ids=["rows and columns", "blocks"])
def test_every_way_to_take_partial_sums_is_right(config, blocks):
    m, n, k = 140, 200, 520
    a, b = normal((m, k)), normal((n, k)).T
    down, across = ceil(k / BLOCK), ceil(n / BLOCK)
    a_scale, b_scale = (scales(m, down), scales(down, across)) if blocks else (scales(m, 1), scales(1, n))
    with tw.emulator():
        out = tw.matmul(a, b, a_scale=a_scale, b_scale=b_scale, out_dtype="f32", rung="q03", config=config)
    exact = product(a, b, a_scale, b_scale)
    assert np.abs(out - exact).max() < 2e-3 * np.abs(exact).max()


@pytest.mark.parametrize("blocks", [2, 3, 8])
@pytest.mark.parametrize("scaled", ["rows and columns", "blocks"])
@pytest.mark.parametrize("k", [0, 100, 128 * 5, 128 * 13 + 16])
def test_a_cluster_adds_up_its_parts_of_k(blocks, scaled, k):
    """More blocks than steps, and than groups of columns; scales of blocks begin where a block's part does."""
    config = GemmConfig(64, 96, 128, warp_m=16, warp_n=96, stages=4, part_n=96, cluster_k=blocks)
    m, n = 70, 136
    a, b, bias = normal((m, k)), normal((n, k)).T, np.arange(n, dtype=np.float32)
    down, across = ceil(k / BLOCK), ceil(n / BLOCK)
    a_scale, b_scale = (scales(m, down), scales(down, across)) if scaled == "blocks" else (scales(m, 1), scales(1, n))
    with tw.emulator():
        out = tw.matmul(a, b, a_scale=a_scale, b_scale=b_scale, bias=bias, out_dtype="f32", rung="q07", config=config)
    exact = product(a, b, a_scale, b_scale) if k else np.zeros((m, n))
    assert np.abs(out - exact - bias).max() <= 2e-3 * np.abs(exact).max()


@pytest.mark.parametrize("k", [0, 128, 256, 384, 512, 640])
def test_sums_that_take_turns_are_all_added_whatever_their_number(k):
    a, b = np.ones((64, k), E4M3), np.ones((64, k), E4M3).T
    with tw.emulator():
        for rung in PROMOTED:
            assert (tw.matmul(a, b, out_dtype="f32", rung=rung) == k).all()


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["A100", "RTX 4090", "H200"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_all_256_patterns_are_read_right(gpu, dtype):
    """Infinities and NaN, subnormal numbers, both zeros; on sm_80 without instructions for fp8."""
    a, one = np.arange(256, dtype=np.uint8).view(dtype)[:, None], np.ones((1, 1), dtype)
    with tw.emulator(gpu):
        out = tw.matmul(a, one, out_dtype="f32")
    np.testing.assert_array_equal(out[:, 0], fp8_values("e4m3" if dtype == E4M3 else "e5m2"))


@pytest.mark.parametrize("gpu", ["A100", "H200"])
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize("columns", [1, 16], ids=["one by one", "in vectors"])
def test_results_in_fp8_are_rounded_to_nearest_and_held_at_the_largest(gpu, dtype, columns):
    rng = np.random.default_rng(0)
    halves = fp8_values(dtype)[np.isfinite(fp8_values(dtype))]
    middles = (np.sort(halves)[1:] + np.sort(halves)[:-1]) / 2
    wanted = np.concatenate([
        halves, middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf)),
        rng.standard_normal(200).astype(np.float32) * np.exp2(rng.integers(-20, 16, 200)), [1e9, -1e9, np.inf, np.nan],
    ]).astype(np.float32)  # fmt: skip
    a, one = np.ones((len(wanted), 1), E4M3), np.ones((1, columns), E4M3)
    with tw.emulator(gpu):
        out = tw.matmul(a, one, a_scale=wanted[:, None], out_dtype=dtype)
    expected = to_bits(np.clip(wanted, -LARGEST[dtype], LARGEST[dtype]), dtype)
    for column in range(columns):
        np.testing.assert_array_equal(np.where(np.isnan(wanted), 0x7F, out.view(np.uint8)[:, column]), expected)


def test_a_nan_or_an_infinity_reaches_its_row_and_column_and_no_more():
    a, b = np.ones((64, 128), E5M2), np.ones((64, 128), E4M3).T
    a[3, 5], a[9, 0], b[7, 11] = np.inf, np.nan, np.nan
    for rung in EVERY:
        with tw.emulator():
            out = tw.matmul(a, b, out_dtype="f32", **how(rung))
        expected = np.full((64, 64), 128.0)
        expected[3], expected[9], expected[:, 11] = np.inf, np.nan, np.nan
        np.testing.assert_array_equal(out, expected)


# --- scales -----------------------------------------------------------------------------------------------------------


def every_scale(m: int, n: int, k: int):
    down, across = ceil(k / BLOCK), ceil(n / BLOCK)
    of_a = {"none": None, "tensor": scales(), "rows": scales(m, 1), "blocks": scales(m, down)}
    of_b = {"none": None, "tensor": scales(), "columns": scales(1, n), "blocks": scales(down, across)}
    return [(f"{x} by {y}", of_a[x], of_b[y]) for x in of_a for y in of_b]


@pytest.mark.parametrize("rung", ["q01_convert", "q02_promoted", "q03_tma"])
@pytest.mark.parametrize("which", range(16))
def test_scales_of_every_shape(rung, which):
    m, n, k = 70, 140, 300
    _, a_scale, b_scale = every_scale(m, n, k)[which]
    a, b = normal((m, k)), normal((n, k), E5M2).T
    with tw.emulator():
        out = tw.matmul(a, b, a_scale=a_scale, b_scale=b_scale, out_dtype="f32", rung=rung)
    exact = product(a, b, a_scale, b_scale)
    assert np.abs(out - exact).max() < (1e-5 if rung == "q01_convert" else 2e-3) * np.abs(exact).max()


@pytest.mark.parametrize("blocks", [False, True])
def test_batches_with_scales_of_their_own_and_shared_ones(blocks):
    m, n, k = 40, 48, 200
    a, b = normal((2, 3, m, k)), normal((3, n, k)).swapaxes(-1, -2)
    down = ceil(k / BLOCK)
    a_scale = scales(2, 1, m, down) if blocks else scales(2, 3, m, 1)
    b_scale = scales(3, down, 1) if blocks else scales(1, n)
    with tw.emulator():
        out = tw.matmul(a, b, a_scale=a_scale, b_scale=b_scale, out_dtype="f32", rung="q01")
    exact = product(a, b, a_scale, b_scale)
    assert np.abs(out - exact).max() < 1e-5 * np.abs(exact).max()


def test_rows_of_a_batch_fold_into_one_product_with_their_scales():
    a, b = normal((3, 20, 256)), normal((64, 256)).T
    a_scale, b_scale = scales(3, 20, 2), scales(2, 1)
    with tw.emulator() as emulator:
        out = tw.matmul(a, b, a_scale=a_scale, b_scale=b_scale, out_dtype="f32", rung="q01")
    assert len(emulator.results) == 1
    exact = product(a, b, a_scale, b_scale)
    assert np.abs(out - exact).max() < 1e-5 * np.abs(exact).max()


def test_vectors_numbers_and_scales_of_one_element():
    a, b = normal((300,)), normal((300,))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    with tw.emulator():
        out = tw.matmul(a, b, a_scale=0.5, b_scale=np.float32(4), out_dtype="f32")
        of_arrays = tw.matmul(a, b, a_scale=np.full(1, 0.5, np.float32), b_scale=np.full((1, 1), 4, np.float32))
        blocks = tw.matmul(
            a, b, a_scale=np.full(3, 0.5, np.float32), b_scale=np.full(3, 4, np.float32), out_dtype="f32"
        )
    assert abs(out - 2 * exact) < 1e-2
    assert of_arrays.dtype.name == "bfloat16", "the default of a result"
    assert abs(blocks - 2 * exact) < 1e-2


def test_scales_come_before_alpha_c_and_what_is_fused():
    m, n, k = 40, 64, 256
    a, b, c = normal((m, k)), normal((n, k)).T, np.random.default_rng(0).standard_normal((m, n)).astype(np.float32)
    bias = np.arange(n, dtype=np.float32)
    for a_scale, b_scale in ((scales(m, 1), scales(1, n)), (scales(m, 2), scales(2, 1)), (None, None)):
        exact = 2 * product(a, b, a_scale, b_scale) + 0.5 * c
        given = {"a_scale": a_scale, "b_scale": b_scale, "c": c, "alpha": 2.0, "beta": 0.5, "out_dtype": "f32"}
        with tw.emulator():
            plain = tw.matmul(a, b, **given)
            relu = tw.matmul(a, b, bias=bias, activation="relu", **given)
            own = tw.matmul(a, b, bias=bias, epilogue=lambda acc, bias: acc * 3.0 - bias, **given)
            into = tw.matmul(a, b, out=c.copy(), **{**given, "out_dtype": None})
            out = c.copy()
            tw.matmul(a, b, out=out, **{**given, "c": out, "out_dtype": None})
        near = 2e-3 * np.abs(exact).max()
        assert np.abs(plain - exact).max() < near
        assert np.abs(relu - np.maximum(exact + bias, 0)).max() < near
        assert np.abs(own - (exact * 3 - bias)).max() < 3 * near
        np.testing.assert_array_equal(into, plain)
        np.testing.assert_array_equal(out, plain)


# --- checks, plans, refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", ["q01_convert", "q03_tma", "q05_fast"])
@pytest.mark.parametrize("which", [0, 5, 10, 15])
@pytest.mark.parametrize("out_dtype", ["f32", "e4m3"])
def test_right_results_pass_their_check(rung, which, out_dtype):
    m, n, k = 40, 70, 300
    name, a_scale, b_scale = every_scale(m, n, k)[which]
    if rung in OWN_SUMS and "blocks" in name:
        pytest.skip("its sums are of all of k")
    a, b = normal((m, k)), normal((n, k), E5M2).T
    with tw.emulator():
        tw.matmul(a, b, a_scale=a_scale, b_scale=b_scale, out_dtype=out_dtype, verify=True, **how(rung))


@pytest.mark.parametrize("blocks", [False, True])
def test_a_wrong_result_is_found(monkeypatch, blocks):
    launch_wrongly(monkeypatch, params=lambda template, problem, rung: scaled_by(template, 1.25))
    a, b = normal((40, 256)), normal((64, 256)).T
    a_scale, b_scale = (scales(40, 2), scales(2, 1)) if blocks else (scales(40, 1), scales(1, 64))
    with tw.emulator(), pytest.raises(WrongResult):
        tw.matmul(a, b, a_scale=a_scale, b_scale=b_scale, out_dtype="f32", rung="q01", verify=True)


def test_every_gpu_has_a_plan_and_hopper_multiplies_by_wgmma():
    a, b = normal((256, 512)), normal((512, 256))
    told = {gpu: tw.explain(a, b, gpu=gpu) for gpu in ("A100", "RTX 4090", "H200", "RTX 5070 Ti")}
    assert {gpu: one.plan.rung.id[:3] for gpu, one in told.items() if gpu != "H200"} == dict.fromkeys(
        ("A100", "RTX 4090", "RTX 5070 Ti"), "q01"
    )
    assert told["H200"].plan.rung.id in PROMOTED
    assert told["H200"].stages == ("pack b", "product")
    assert "tensor cores read fp8 along k" in " ".join(str(told["H200"]).split())
    assert tw.explain(a, np.ascontiguousarray(b.T).T, gpu="H200").stages == ("product",)


def test_the_same_bits_for_any_number_of_rows_where_they_are_asked_for():
    a, b = normal((200, 640)), normal((96, 640)).T
    with tw.emulator():
        all_rows = tw.matmul(a, b, out_dtype="f32", batch_invariant=True)
        some = tw.matmul(a[7:9], b, out_dtype="f32", batch_invariant=True)
        fast = tw.matmul(a, b, out_dtype="f32", batch_invariant=True, precision="fast")
    np.testing.assert_array_equal(all_rows[7:9], some)
    np.testing.assert_array_equal(all_rows, fast)


def test_fast_is_a_permission_that_other_gpus_do_not_need():
    a, b = normal((64, 256)), normal((64, 256)).T
    with tw.emulator("A100"):
        out = tw.matmul(a, b, precision="fast", out_dtype="f32")
    assert np.abs(out - product(a, b)).max() < 1e-4
    assert "fast" in {rung.precision for rung in rungs_of("fast")}
    assert find_rung("q01") in rungs_of("fast")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a_scale": np.ones((40, 3), np.float32)}, r"\(40, 1\) for its rows, or \(40, 2\) for its blocks of 1 x 128"),
        (
            {"b_scale": np.ones((64, 1), np.float32)},
            r"\(1, 64\) for its columns, or \(2, 1\) for its blocks of 128 x 128",
        ),
        ({"a_scale": np.ones((40, 1))}, "float64"),
        ({"a_scale": np.ones((40, 1), np.float16)}, "scales are float32"),
        ({"bias": np.ones(64, E4M3)}, "fp8 is for a, b and the result"),
        ({"precision": "tf32"}, "float32 operands"),
        ({"rung": "h13"}, "h13_persistent"),
        ({"b": np.ones((256, 64), np.float32)}, "Convert one to the other's dtype"),
    ],
)
def test_what_fp8_cannot_be_is_refused(change, words):
    given = {"a": normal((40, 256)), "b": normal((256, 64))} | change
    with tw.emulator(), pytest.raises((InvalidOperand, tw.errors.ConfigRejected), match=words):
        tw.matmul(**given)


def test_scales_results_and_precisions_of_fp8_are_refused_elsewhere():
    a = np.ones((4, 4), np.float32)
    with tw.emulator():
        with pytest.raises(InvalidOperand, match="a_scale scales fp8 operands; these are float32"):
            tw.matmul(a, a, a_scale=np.ones((4, 1), np.float32))
        with pytest.raises(InvalidOperand, match="b_scale scales fp8 operands; a has dtype float32"):
            tw.matmul(a, a, b_scale=2.0)
        with pytest.raises(InvalidOperand, match="results in fp8 are of fp8 operands"):
            tw.matmul(a, a, out_dtype="e4m3")
        with pytest.raises(InvalidOperand, match="precision 'fast' is a way to multiply fp8"):
            tw.matmul(a, a, precision="fast")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a_scale": 1e300}, "a_scale=1e.300 is not a number that float32 can hold"),
        ({"b_scale": np.complex64(1j)}, "b_scale=.* is not a number"),
        ({"a_scale": np.str_("x")}, "a_scale=.* is not a number"),
        ({"a_scale": 2.0, "alpha": "1"}, "alpha='1' is not a number"),
        ({"a_scale": 2.0, "alpha": None}, "alpha=None is not a number"),
        ({"a_scale": 2.0, "alpha": 10**400}, "10{59} is not a number that float32 can hold: it is too large"),
    ],
)
def test_scales_that_are_no_numbers_are_refused_by_name(given, words):
    a = normal((4, 4))
    with tw.emulator(), pytest.raises(InvalidOperand, match=words):
        tw.matmul(a, a, **given)


def test_out_may_not_be_a_scale_of_blocks():
    a, b = normal((128, 128 * 2)), normal((128 * 2, 2))
    scale = scales(128, 2)
    with tw.emulator(), pytest.raises(InvalidOperand, match="overlaps"):
        tw.matmul(a, b, a_scale=scale, out=scale)


def test_arrays_of_bytes_are_read_as_fp8():
    a, b = normal((40, 256)), normal((64, 256))
    with tw.emulator():
        expected = tw.matmul(a, b.T, out_dtype="f32")
        of_bytes = Float8Array(a.view(np.uint8), "e4m3"), Float8Array(b.view(np.uint8), "e4m3").T
        np.testing.assert_array_equal(tw.matmul(*of_bytes, out_dtype="f32"), expected)
        out = Float8Array(np.zeros((40, 64), np.uint8), "e5m2")
        assert tw.matmul(*of_bytes, out=out) is out
        np.testing.assert_array_equal(out.bits, tw.matmul(a, b.T, out_dtype="e5m2").view(np.uint8))
        with pytest.raises(InvalidOperand, match="uint8"):
            tw.matmul(a.view(np.uint8), b.T)
    with pytest.raises(InvalidOperand, match="uint8 array read as e4m3 or e5m2"):
        Float8Array(a, "e4m3")


def test_quantized_operands_multiply_to_nearly_what_they_were():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((40, 300), np.float32), rng.standard_normal((64, 300), np.float32)
    x[:, :128] *= 1000
    with tw.emulator():
        x8, x_scale = tw.quantize(x, "e4m3", block=(1, 128))
        w8, w_scale = tw.quantize(w, "e4m3", block=(128, 128))
        out = tw.matmul(x8, w8.T, a_scale=x_scale, b_scale=w_scale.T, out_dtype="f32")
    np.testing.assert_allclose(
        out, dequantised(x8, x_scale, "a") @ dequantised(w8.T, w_scale.T, "b"), atol=1e-3 * np.abs(out).max()
    )
    exact = x.astype(np.float64) @ w.T
    assert np.linalg.norm(out - exact) < 0.05 * np.linalg.norm(exact)
