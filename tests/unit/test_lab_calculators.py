"""The calculators, held to tables that the documents print and to figures worked out by hand."""

from __future__ import annotations

import json

import pytest

import tilewright as tw
from tilewright.errors import InvalidOperand, TilewrightError
from tilewright.lab.expression import whole
from tilewright.swizzle import Swizzle


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "warps", "share"),
    [
        (256, 32, 0, 6, 48, 1.0),
        (256, 64, 0, 4, 32, 2 / 3),
        (256, 128, 0, 2, 16, 1 / 3),
        (256, 32, 24 * 1024, 4, 32, 2 / 3),  # 24 KB: 4 blocks
        (256, 32, 48 * 1024, 2, 16, 1 / 3),  # 48 KB: 2 blocks
        (128, 32, 0, 12, 48, 1.0),
        (512, 32, 0, 3, 48, 1.0),
        (1024, 32, 0, 1, 32, 2 / 3),
        (1024, 32, 8 * 1024, 1, 32, 2 / 3),  # the shared-memory kernel's worked example
    ],
)
def test_the_occupancy_tables_of_document_004(threads, registers, shared, blocks, warps, share):
    found = tw.lab.occupancy(threads, registers, shared, "RTX 4090")
    assert (found.blocks, found.warps) == (blocks, warps)
    assert found.fraction == pytest.approx(share)


def test_an_sm_of_ada_holds_24_blocks_where_document_004_has_32():
    found = tw.lab.occupancy(32, 32, 0, "RTX 4090")
    assert (found.blocks, found.limiter, found.arch) == (24, "blocks", "sm_89")


def test_a_hint_is_the_least_change_that_raises_occupancy():
    found = tw.lab.occupancy(256, 64, 49152, "RTX 4090")
    assert found.limiter == "shared memory"
    assert "33024 B of shared memory or less: 50.0%" in found.hints
    assert tw.lab.occupancy(256, 64, 33024, "RTX 4090").fraction == 0.5
    assert tw.lab.occupancy(256, 64, 33025, "RTX 4090").fraction < 0.5
    assert tw.lab.occupancy(256, 32, 0, "H200").hints == ()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [((2000,), "threads=2000"), ((32, 256), "registers=256"), ((32, 32, 10**6), "shared=1000000"),
     ((32, 32, 0, "Voodoo"), "sm_121"), ((32, 32, 0, "4090"), "Did you mean 'RTX 4090'"),
     ((32, 32, 0, "H1000"), "Did you mean 'H100'"), ((32, 32, 0, "NVIDIA L40S"), "sm_89")],
)  # fmt: skip
def test_an_impossible_kernel_is_refused(arguments, word):
    with pytest.raises(InvalidOperand, match=word):
        tw.lab.occupancy(*arguments)


@pytest.mark.parametrize(
    ("driver", "board"),
    [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA GeForce RTX 4090", "RTX 4090")],
)
def test_a_board_is_found_by_its_drivers_name(driver, board):
    assert tw.lab.occupancy(256, gpu=driver).gpu == board
    assert tw.lab.roofline(driver).gpu == board


def test_fp8_has_a_roof_from_ada_on():
    assert tw.lab.roofline("H100", "fp8").peak_tflops == pytest.approx(2 * 989.4)
    (point,) = tw.lab.roofline("H200", "fp8", shape=(4096, 4096, 4096)).points
    assert "1979" in str(tw.lab.roofline("H200", "fp8", shape=(4096, 4096, 4096)))
    assert (point.roof, point.intensity) == ("compute", pytest.approx(2 * 4096 / 4))  # A, B: 1 byte each; C: 2
    assert tw.lab.roofline("H200", "fp8", records="fp8").points
    with pytest.raises(InvalidOperand, match="from sm_89 on"):
        tw.lab.roofline("A100", "fp8")


def test_records_of_each_board_stand_under_its_own_roof():
    for board in ("H100", "H200"):
        assert tw.lab.roofline(board, "bf16", records="hopper-products").gpu == board


def test_the_ridge_of_documents_003_and_004():
    assert tw.lab.roofline("RTX 4090").ridge == pytest.approx(82, abs=0.1)
    assert tw.lab.roofline("RTX 4090").peak_tflops == pytest.approx(82.6, abs=0.05)
    assert tw.lab.roofline("RTX 5070 Ti").peak_tflops == pytest.approx(43.9, abs=0.05)
    low = tw.lab.roofline("RTX 5070 Ti", intensity=0.25).points[0]
    assert (low.bound_tflops, low.roof) == (pytest.approx(0.224), "memory")


def test_a_products_point_has_the_traffic_of_its_tiles():
    (point,) = tw.lab.roofline("H200", shape=(4096, 4096, 4096), tile=(32, 32)).points
    assert point.intensity == pytest.approx(4096 / 6)  # 2 n^3 / 12 n^2
    assert point.tile_intensity == pytest.approx(7.97, abs=0.005)
    assert point.roof == "compute"


def test_records_stand_under_their_roof():
    found = tw.lab.roofline("H200", records="fp32-ladder")
    assert [point.name.split("_")[0] for point in found.points] == [f"f{i:02d}" for i in range(1, 13)]
    assert all(0 < point.tflops < point.bound_tflops for point in found.points)
    with pytest.raises(InvalidOperand, match="NVIDIA H200"):
        tw.lab.roofline("A100", records="fp32-ladder")
    with pytest.raises(TilewrightError, match="no measured product of bf16"):
        tw.lab.roofline("H200", "bf16", records="fp32-ladder")
    with pytest.raises(TilewrightError, match="no-such"):
        tw.lab.roofline("H200", records="no-such")


def test_the_toy_swizzle_of_document_003():
    found = tw.lab.banks(1, pitch=32, down=32, swizzle=(5, 0, 5))
    assert (found.before.wavefronts, found.before.ways) == (32, 32)
    assert set(found.before.banks) == {0}
    assert found.after is not None
    assert (found.after.wavefronts, sorted(found.after.banks)) == (1, list(range(32)))


def test_ldmatrix_of_document_003_by_the_measured_rule():
    """It says that a swizzle cannot help an x4 load of A; by the rule 16 passes of the 64-byte lines become fewer."""
    a = tw.lab.banks(8, item=2, width=8, down=16, pitch=32, access="matrix", swizzle=(2, 3, 3))
    assert (a.before.wavefronts, a.before.ideal) == (16, 4)
    assert a.after is not None
    assert a.after.wavefronts < a.before.wavefronts
    b = tw.lab.banks(8, item=2, width=8, down=16, pitch=128, access="matrix", swizzle=Swizzle(3, 3, 3))
    assert b.before.wavefronts == 8 * 4
    assert b.after is not None
    assert b.after.wavefronts == 2 * 4  # 8-way becomes 2-way


@pytest.mark.parametrize(
    ("stride", "wavefronts"), [(1, 1), (2, 2), (3, 1), (4, 4), (8, 8), (16, 16), (32, 32), (33, 1)]
)
def test_strides_meet_in_as_many_banks_as_their_common_factor_leaves(stride, wavefronts):
    assert tw.lab.banks(stride).before.wavefronts == wavefronts


def test_lanes_of_wide_elements_are_neighbours_unless_a_stride_is_given():
    found = tw.lab.banks(width=4)
    assert (found.before.wavefronts, found.before.ideal) == (4, 4)
    assert found.before.banks[:9] == (0, 4, 8, 12, 16, 20, 24, 28, 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [("i ^ (i >> 3)", 21 ^ 2), ("i / 8", 2), ("(i & 7) << 2 | 1", 21), ("-i % 32", 11), ("2 ** 5 - i", 11)],
)
def test_an_element_is_an_expression_of_the_lane(text, value):
    assert whole(text, {"i": 21}) == value


@pytest.mark.parametrize(
    "text", ["j", "i.real", "__import__('os')", "i <<", "1 << 65", "1 / 0", "i if i else 0", "1.5"]
)
def test_nothing_but_whole_numbers_is_evaluated(text):
    with pytest.raises(InvalidOperand):
        whole(text, {"i": 1})


def test_the_stride_tables_of_document_002():
    four = tw.lab.swizzle_strides(4)
    assert [row.strides for row in four.rows] == [(2, 1), (2, -1), (-2, 1), (-2, -1)]
    assert [row.columns for row in four.rows] == [(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)]
    eight = tw.lab.swizzle_strides(8)
    assert [row.strides for row in eight.rows][3:5] == [(4, -2, -1), (-4, 2, 1)]
    for row in eight.rows:
        assert row.columns == tuple(row.thread ^ step for step in range(8))


@pytest.mark.parametrize(
    ("options", "word"),
    [({"access": "peek"}, "peek"), ({"width": 3}, "12 B per lane"), ({"down": 32}, "give pitch"),
     ({"width": 4, "stride": 4, "swizzle": (5, 0, 5)}, "apart"), ({"offsets": [0]}, "32 lanes"),
     ({"access": "matrix"}, "moves 16"), ({"stride": -1}, "lane 1 would take element -1"),
     ({"stride": 1, "width": 4}, "Elements must be multiples of 4"), ({"swizzle": (1, 2)}, r"\(bits, base, shift\)")],
)  # fmt: skip
def test_an_access_that_cannot_be_is_refused(options, word):
    with pytest.raises(InvalidOperand, match=word):
        tw.lab.banks(**options)


def test_results_show_themselves_in_notebooks_and_as_data():
    for found in (tw.lab.occupancy(256), tw.lab.roofline(intensity=1.0), tw.lab.banks(2, swizzle=(5, 0, 5)),
                  tw.lab.swizzle_strides(4)):  # fmt: skip
        assert "<table>" in found._repr_html_()
        assert json.loads(json.dumps(found.to_dict()))
        assert str(found)


def test_html_shows_words_as_they_are():
    assert "&lt;5,0,5&gt;" in tw.lab.banks(1, pitch=32, down=32, swizzle=(5, 0, 5))._repr_html_()


def test_a_rung_for_a_gpu_is_told_where_it_goes():
    with pytest.raises(InvalidOperand, match=r"kernels=\['f09'\]"):
        tw.lab.roofline("f09")


def test_a_rung_of_another_type_than_the_roofs_is_to_be_asked_for_alone():
    with pytest.raises(InvalidOperand, match=r"h16_cluster multiplies bf16, f16, not f32, and .* Ask for h16 alone\."):
        tw.lab.roofline("H200", kernels=["f09", "h16"])
    assert tw.lab.roofline("H200", kernels=["h16"]).kind == "bf16"
