"""Grouped products of fp8 operands: every form and scale against float64, within what wgmma may lose."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fp8_reference import E4M3, E5M2, most_lost, normal, scales, spread

import tilewright as tw
from tilewright.errors import InvalidOperand
from tilewright.gemm.config import GemmConfig

MMA = GemmConfig(32, 64, 64, warp_m=16, warp_n=32, stages=3, group_m=2)
TURNS = GemmConfig(128, 64, 128, warp_m=16, warp_n=64, stages=3, group_m=2, part_n=64)
PARTS = GemmConfig(128, 256, 128, warp_m=16, warp_n=256, stages=3, group_m=2, part_n=128)
KERNELS = [("g06", MMA), ("g07", TURNS), ("g07", PARTS), (None, None)]
SIZES = (5, 0, 130, 1, 40)


def operands(form, k, n, total, groups, turned=False, dtypes=(E4M3, E4M3)):
    """a and b, along k as tensor cores read them, or `turned` the other way."""
    of_a, of_b = {"m": ((total, k), (groups, k, n)), "n": ((groups, n, k), (k, total))}[form]
    a, b = normal(of_a, dtypes[0]), np.ascontiguousarray(normal(of_b, dtypes[1]).swapaxes(-1, -2)).swapaxes(-1, -2)
    if turned:
        a, b = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2), np.ascontiguousarray(b)
    return a, b


def made_scales(kind, form, k, n, total, groups):
    deep, wide = -(-k // 128), -(-n // 128)
    if form == "n":
        return {
            "none": (None, None), "groups": (scales(groups, 1, 1), scales(groups, 1, 1)), "number": (2.0, 0.5),
            "lines": (scales(groups, n, 1), scales(1, total)), "shared": (scales(n, 1), scales()),
            "blocks": (scales(groups, n, deep), scales(1, total)),
        }[kind]  # fmt: skip
    return {
        "none": (None, None), "groups": (scales(groups, 1, 1), scales(groups, 1, 1)), "number": (2.0, 0.5),
        "lines": (scales(total, 1), scales(groups, 1, n)), "shared": (scales(total, 1), scales(1, n)),
        "blocks": (scales(total, deep), scales(groups, deep, wide)),
        "columns": (np.ascontiguousarray(scales(deep, total)).T, scales(deep, wide)),
    }[kind]  # fmt: skip


def of_group(form, number, begin, end, a, b, a_scale, b_scale):
    """The operands of one group with their scales."""
    cut, all_of = slice(begin, end), slice(None)

    def part(scale, own, lines):
        if not isinstance(scale, np.ndarray) or scale.ndim < 2:
            return scale
        scale = scale[number] if scale.ndim == 3 else scale
        if not own or scale.shape == (1, 1):
            return scale
        return scale[cut] if lines == "a" else scale[:, cut]

    return {
        "m": (a[cut], b[number], part(a_scale, True, "a"), part(b_scale, False, "b")),
        "n": (a[number], b[:, cut], part(a_scale, False, "a"), part(b_scale, True, "b")),
    }[form], {"m": (cut, all_of), "n": (all_of, cut)}[form]  # fmt: skip


def judge(form, ends, a, b, a_scale, b_scale, out, exact_sums):
    begin = 0
    for number, end in enumerate(ends):
        (x, y, of_x, of_y), where = of_group(form, number, begin, end, a, b, a_scale, b_scale)
        begin = end
        left, right = spread(of_x, "a", *x.shape), spread(of_y, "b", *y.shape)
        wanted = (x.astype(np.float64) * left) @ (y.astype(np.float64) * right)
        size = np.abs(x.astype(np.float64) * left) @ np.abs(y.astype(np.float64) * right)
        if wanted.size == 0:
            continue
        lost = size * 2**-18 if exact_sums else most_lost(x, y) * left.max() * right.max() + size * 2**-18
        assert (np.abs(out[where] - wanted) <= lost).all(), number  # NaN fails


@pytest.mark.parametrize("kind", ["none", "number", "groups", "lines", "shared", "blocks", "columns"])
@pytest.mark.parametrize("form", ["m", "n"])
@pytest.mark.parametrize(("rung", "config"), KERNELS, ids=[f"{rung} {config}" for rung, config in KERNELS])
def test_every_form_and_scale_is_right(form, kind, rung, config):
    if (form, kind) == ("n", "columns"):
        pytest.skip("the groups' own scales of A's blocks, by rows, are tried")
    k, n, total, ends = 272, 136, sum(SIZES) + 3, np.cumsum(SIZES)
    a, b = operands(form, k, n, total, len(SIZES), dtypes=(E4M3, E5M2))
    a_scale, b_scale = made_scales(kind, form, k, n, total, len(SIZES))
    with tw.emulator():
        out = tw.grouped_matmul(a, b, ends, a_scale=a_scale, b_scale=b_scale, out_dtype="f32", rung=rung, config=config)
    judge(form, ends, a, b, a_scale, b_scale, out, rung == "g06")
    assert not (out[ends[-1] :] if form == "m" else out[:, ends[-1] :]).any()


@pytest.mark.parametrize("k", [77, 100])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("form", ["m", "n"])
@pytest.mark.parametrize("rung", ["g06", "g07"])
def test_operands_that_tensor_cores_cannot_read_are_packed_first(form, rung, turned, k):
    n, total, ends = 40, sum(SIZES), np.cumsum(SIZES)
    a, b = operands(form, k, n, total, len(SIZES), turned)
    a_scale, b_scale = made_scales("lines", form, k, n, total, len(SIZES))
    config = MMA if rung == "g06" else TURNS
    with tw.emulator() as emulator:
        out = tw.grouped_matmul(a, b, ends, a_scale=a_scale, b_scale=b_scale, out_dtype="f32", rung=rung, config=config)
        assert len(emulator.results) == 3 + (rung == "g07")  # the counter of tiles is set to 0 first
    judge(form, ends, a, b, a_scale, b_scale, out, rung == "g06")


@pytest.mark.parametrize("rung", ["g06", "g07"])
def test_scales_after_the_last_group_do_not_reach_the_zeros_there(rung):
    a, b = operands("m", 128, 64, 50, 2)
    a_scale = scales(50, 1)
    a_scale[20:] = np.nan
    b_scale = scales(2, 1, 64)
    with tw.emulator():
        out = tw.grouped_matmul(a, b, [7, 20], a_scale=a_scale, b_scale=b_scale, rung=rung)
    assert np.isfinite(out[:20].astype(np.float32)).all()
    assert not out[20:].any()


@pytest.mark.parametrize("rung", ["g06", "g07"])
@pytest.mark.parametrize("out_dtype", ["bf16", "f16", "e4m3", "e5m2"])
def test_results_are_rounded_once(out_dtype, rung):
    a, b = operands("m", 256, 72, 60, 3)
    with tw.emulator():
        exact = tw.grouped_matmul(a, b, [20, 21, 60], a_scale=0.01, out_dtype="f32", rung=rung)
        out = tw.grouped_matmul(a, b, [20, 21, 60], a_scale=0.01, out_dtype=out_dtype, rung=rung)
    assert np.array_equal(out, exact.astype(out.dtype))


@pytest.mark.parametrize("config", [TURNS, PARTS], ids=["turns", "parts"])
@pytest.mark.parametrize("kind", ["lines", "blocks"])
def test_rows_of_a_group_leave_by_tma_but_for_its_last_few(kind, config):
    sizes = (*SIZES, 32)
    ends, total = np.cumsum(sizes), sum(sizes) + 7
    a, b = operands("m", 256, 72, total, len(sizes))
    a_scale, b_scale = made_scales(kind, "m", 256, 72, total, len(sizes))
    staged = dataclasses.replace(config, staged=1)
    for out_dtype in ("bf16", "f32", "e4m3"):
        given = {"a_scale": a_scale, "b_scale": b_scale, "out_dtype": out_dtype, "rung": "g07"}
        with tw.emulator():
            plain, out = (tw.grouped_matmul(a, b, ends, **given, config=one) for one in (config, staged))
        assert np.array_equal(plain.astype(np.float32), out.astype(np.float32))


STAGED = GemmConfig(128, 192, 64, warp_m=32, warp_n=192, stages=4, group_m=8, turns=2, staged=1)


@pytest.mark.parametrize(
    ("rung", "config"), [("g01", None), ("g02", None), ("g03", None), ("g05", STAGED), (None, None)]
)
@pytest.mark.parametrize("out_dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize(("m", "n"), [(64, 128), (13, 33)])
def test_groups_along_k_may_have_results_in_fp8(m, n, out_dtype, rung, config):
    a, b, named = normal((m, 60)), normal((60, n), E5M2), {"rung": rung, "config": config}
    with tw.emulator():
        exact = tw.grouped_matmul(a, b, [20, 21, 60], a_scale=0.01, out_dtype="f32", **named)
        out = tw.grouped_matmul(a, b, [20, 21, 60], a_scale=0.01, out_dtype=out_dtype, **named)
    assert np.array_equal(out, exact.astype(out.dtype))


@pytest.mark.parametrize("kind", ["none", "number", "groups", "lines", "shared"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rung", ["g01", "g03", None])
def test_groups_along_k_are_multiplied_as_fp16(rung, turned, kind):
    groups, m, n, total, ends = len(SIZES), 40, 72, sum(SIZES) + 3, np.cumsum(SIZES)
    a, b = normal((m, total)), normal((total, n), E5M2)
    if turned:
        a, b = np.ascontiguousarray(a.T).T, np.ascontiguousarray(b.T).T
    a[:, ends[-1] :] = b[ends[-1] :] = np.nan  # of no group
    a_scale, b_scale = {
        "none": (None, None), "number": (2.0, 0.5), "groups": (scales(groups, 1, 1), scales(groups, 1, 1)),
        "lines": (scales(groups, m, 1), scales(groups, 1, n)), "shared": (scales(m, 1), scales()),
    }[kind]  # fmt: skip
    with tw.emulator():
        out = tw.grouped_matmul(a, b, ends, a_scale=a_scale, b_scale=b_scale, out_dtype="f32", rung=rung)
    begin = 0
    for group, end in enumerate(ends):
        x, y = a[:, begin:end].astype(np.float64), b[begin:end].astype(np.float64)
        factor = 1.0
        for scale in (a_scale, b_scale):
            if scale is not None:
                factor = factor * (scale[group] if np.ndim(scale) == 3 else scale)
        assert (np.abs(out[group] - x @ y * factor) <= np.abs(x) @ np.abs(y) * factor * 2**-18).all(), group
        begin = end


def test_groups_of_a_call_without_offsets_are_a_batch():
    a, b = normal((3, 20, 64)), np.ascontiguousarray(normal((3, 64, 40)).swapaxes(1, 2)).swapaxes(1, 2)
    a_scale, b_scale = scales(3, 20, 1), scales(3, 1, 40)
    with tw.emulator():
        out = tw.grouped_matmul(a, b, a_scale=a_scale, b_scale=b_scale, out_dtype="f32")
        same = tw.matmul(a, b, a_scale=a_scale, b_scale=b_scale, out_dtype="f32")
    assert np.array_equal(out, same)


def test_what_is_not_offered_is_refused_with_what_is():
    a, b = operands("m", 256, 64, 50, 2)
    along_k = normal((64, 50)), normal((50, 72))
    whole = np.ones((256, 50), np.float16), np.ones((50, 64), np.float16)
    refused = (
        ((a, b), {"a_scale": scales(50, 3)}, r"\(50, 1\) for rows; \(50, 2\) for blocks of 1 x 128"),
        ((a, b), {"a_scale": scales(2, 50, 1)}, r"a_scale has shape \(2, 50, 1\)"),
        ((a, b), {"b_scale": scales(3, 1, 64)}, r"\(2, 1, 64\) for those of each group"),
        ((a, b), {"b_scale": scales(64, 1).astype(np.float16)}, "scales are float32"),
        ((a, b), {"out_dtype": "f32", "rung": "g03"}, "g03_tma multiplies .*; the operands are e4m3"),
        (along_k, {"a_scale": scales(64, 1), "b_scale": scales(1, 50)}, r"b_scale has shape \(1, 50\)"),
        (whole, {"a_scale": scales(1, 1)}, "a_scale scales fp8 operands; these are"),
        (whole, {"a_scale": 2.0}, "a_scale scales fp8 operands; a has dtype float16"),
        ((whole[0], whole[1]), {"out_dtype": "e4m3"}, "results in fp8 are of fp8 operands"),
    )
    for (x, y), options, words in refused:
        with pytest.raises((InvalidOperand, tw.errors.ConfigRejected), match=words), tw.emulator():
            tw.grouped_matmul(x, y, [20, 50], **options)
    wide = np.ascontiguousarray(normal((2, 30, 256))), normal((50, 256)).T
    with pytest.raises(InvalidOperand, match=r"\(1, 50\) for columns\.$"), tw.emulator():
        tw.grouped_matmul(*wide, [20, 50], b_scale=scales(2, 1))


@pytest.mark.parametrize("form", ["m", "n"])
def test_without_groups_all_of_a_new_result_is_zero(form):
    a, b = operands(form, 64, 16, 5, 0, turned=True)
    with tw.emulator():
        out = tw.grouped_matmul(a, b, np.empty(0, np.int32))
    assert out.shape == {"m": (5, 16), "n": (16, 5)}[form]
    assert (out == 0).all()
