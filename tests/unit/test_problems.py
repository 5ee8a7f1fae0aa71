"""GemmProblem and Matrix: what counts as contiguous, how wide a vector may be, flops and bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import InvalidOperand
from tilewright.gemm.problem import GemmProblem, Matrix, col_major, row_major


def test_units_of_dense_strided_and_single_line_matrices():
    assert row_major(3, 5).unit(3, 5) == "col"
    assert col_major(3, 5).unit(3, 5) == "row"
    assert Matrix(10, 2).unit(3, 5) == "none"
    assert Matrix(10, 7).unit(3, 1) == "col", "a stride that no access uses suits"
    assert Matrix(1, 0).unit(3, 1) == row_major(3, 1).unit(3, 1) == "row", "neighbours in a column are a line"
    assert Matrix(1, 1).unit(1, 1) == "col"
    assert Matrix(9, 7).unit(1, 5) == "row"
    assert Matrix(0, 1).unit(3, 5) == "col", "one row repeated"


@given(
    row=st.integers(0, 40), batch=st.integers(0, 40), base=st.integers(0, 63), rows=st.integers(1, 6),
    item=st.sampled_from([2, 4]),
)  # fmt: skip
def test_vector_width_divides_every_lines_start(row, batch, base, rows, item):
    base *= item
    matrix = Matrix(row, 1, batch, alignment=base & -base if base else 16)
    width = matrix.vector_bytes(rows, 8, item)
    starts = [base + (r * row + b * batch) * item for r in range(rows) for b in range(3)]
    assert width in (2, 4, 8, 16)
    assert all(start % width == 0 for start in starts)


def test_lines_and_batches_that_start_at_sectors():
    assert Matrix(16, 1).whole_sectors(4, 16, 2)
    assert not Matrix(24, 1).whole_sectors(4, 16, 2)
    assert Matrix(24, 1).whole_sectors(1, 16, 2), "there is one line"
    assert not Matrix(1, 24).whole_sectors(16, 4, 2), "its lines are columns"
    assert Matrix(16, 1, 64).whole_sectors(4, 16, 2)
    assert not Matrix(16, 1, 72).whole_sectors(4, 16, 2), "the second of the batch starts in the middle of one"


def test_vector_width_of_aligned_and_offset_matrices():
    assert Matrix(64, 1).vector_bytes(4, 64, 4) == 16
    assert Matrix(65, 1).vector_bytes(4, 64, 4) == 4
    assert Matrix(66, 1).vector_bytes(4, 64, 4) == 8
    assert Matrix(65, 1).vector_bytes(1, 64, 4) == 16, "one line has no pitch"
    assert Matrix(64, 1, alignment=4).vector_bytes(4, 64, 4) == 4
    assert Matrix(64, 1, batch_stride=2).vector_bytes(4, 64, 4) == 8
    assert Matrix(1, 64).vector_bytes(64, 4, 4) == 16


def test_accesses_can_read_contiguous_lines_that_start_where_they_may():
    assert row_major(4, 64).readable(4, 64, 2, 16)
    assert Matrix(1, 0).readable(64, 1, 2, 16), "a vector"
    assert Matrix(65, 1).readable(4, 64, 4, 4)
    assert not Matrix(65, 1).readable(4, 64, 4, 16)
    assert not Matrix(64, 2).readable(4, 64, 4, 4), "no two elements are neighbours"


def test_flops_bytes_and_intensity():
    problem = GemmProblem.dense(4, 5, 6, batch=3)
    assert problem.flops == 2 * 4 * 5 * 6 * 3
    assert problem.bytes == 3 * 4 * (4 * 6 + 6 * 5 + 4 * 5)
    assert GemmProblem.dense(4, 5, 6, use_c=True).bytes == 4 * (4 * 6 + 6 * 5 + 2 * 4 * 5)
    assert problem.intensity == problem.flops / problem.bytes
    assert GemmProblem.dense(0, 0, 0).intensity == 0


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layout_letters_come_back(layout):
    assert GemmProblem.dense(4, 5, 6, layout=layout).layout == layout


def test_problems_out_of_range_are_refused():
    with pytest.raises(InvalidOperand, match="m=2147483648 is outside"):
        GemmProblem.dense(2**31, 1, 1)
    with pytest.raises(InvalidOperand, match="k=-1"):
        GemmProblem.dense(1, 1, -1)
    with pytest.raises(InvalidOperand, match=r"'f8' is not supported\. Supported: f32, f16, bf16, e4m3, e5m2\."):
        GemmProblem.dense(1, 1, 1, dtype="f8")
    with pytest.raises(InvalidOperand, match="'xy' is not one of nn"):
        GemmProblem.dense(1, 1, 1, layout="xy")


def test_problems_are_keys():
    assert len({GemmProblem.dense(4, 5, 6), GemmProblem.dense(4, 5, 6), GemmProblem.dense(4, 5, 7)}) == 2
