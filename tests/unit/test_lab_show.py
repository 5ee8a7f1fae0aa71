"""A rung's source as a lesson: its new lines, what they bring in, and what each line became."""

from __future__ import annotations

import json

import pytest

import tilewright as tw
from tilewright.errors import ConfigRejected, InvalidOperand, MissingDependency
from tilewright.jit.source import CUDA_ROOT
from tilewright.lab.kernel_source import ptx_by_line
from tilewright.lab.sass import find_disassembler
from tilewright.lab.starters import new_kernel
from tilewright.ladder import ATTENTION_RUNGS, GEMM_RUNGS, SPLIT_RUNGS

EVERY = [rung.id for rung in (*GEMM_RUNGS, *ATTENTION_RUNGS, *SPLIT_RUNGS)]
FIRST = [name for n, name in enumerate(EVERY) if name[0] not in {other[0] for other in EVERY[:n]}]
"""The first of each ladder, which has a letter of its own."""
ONLY_A_CONFIG = ("f08",)
"""Its file is f07's: pieces are a matter of the config."""


@pytest.mark.parametrize("rung", EVERY)
def test_every_rung_but_the_first_has_new_lines(rung):
    found = tw.lab.show(rung)
    new = [line for line in found.lines if line.new]
    assert bool(found.below) == (rung not in FIRST)
    assert bool(new) == (rung not in FIRST and rung.split("_")[0] not in ONLY_A_CONFIG)
    assert not any(line.text.strip().startswith("//") for line in new), "a comment is no code"
    assert found.text in (CUDA_ROOT / found.file).read_text()


def test_new_lines_of_f09_are_those_that_transpose():
    found = tw.lab.show("f09")
    new = [line.text.strip() for line in found.lines if line.new]
    assert "CopyATransposed<Cfg, Tiles::a_pitch, true> copy_a;" in new
    assert "__syncthreads();" not in new
    (use,) = (use for use in found.uses if use.name == "CopyATransposed")
    assert "CopyATransposed" in (CUDA_ROOT / use.file).read_text().splitlines()[use.line - 1]


@pytest.mark.parametrize("rung", EVERY)
def test_a_definition_is_where_it_is_said_to_be(rung):
    for use in tw.lab.show(rung).uses:
        assert use.name in (CUDA_ROOT / use.file).read_text().splitlines()[use.line - 1]


def test_ptx_alone_needs_no_disassembler(monkeypatch):
    def missing(*_):
        raise MissingDependency("no disassembler here")

    monkeypatch.setattr("tilewright.lab.sass.find_disassembler", missing)
    found = tw.lab.show("f02", compiled=True, sass=False)
    assert sum("fma.rn" in text for line in found.lines for text in line.ptx)
    assert not any(line.sass for line in found.lines)
    with pytest.raises(MissingDependency, match="no disassembler here"):
        tw.lab.show("f02", compiled=True)


def test_every_instruction_belongs_to_a_line_of_the_rung():
    try:
        find_disassembler()
    except MissingDependency as missing:
        pytest.skip(str(missing))
    found = tw.lab.show("f09", compiled=True)
    made = sum(len(line.sass) for line in found.lines)
    assert made == sum(count for _, count in found.by_file)
    assert made == tw.lab.inspect("f09").parts[0].instructions
    (product,) = (line for line in found.lines if "multiply_tiles" in line.text)
    assert dict(product.groups)["fp32 and exp"] == 64 * 128 * 16 // 128
    assert sum("fma.rn" in text for text in product.ptx) == 64 * 128 * 16 // 128
    (barrier, _) = (line for line in found.lines if "__syncthreads" in line.text)
    assert [text.split()[1].split(".")[0] for text in barrier.sass] == ["BAR"]
    assert "PTX" not in str(found)
    assert json.dumps(found.to_dict())


def test_a_file_that_a_rung_includes_is_shown_by_line_too():
    found = tw.lab.show("f08", file="gemm/warp_tiled.cuh")
    assert found.text.startswith("#pragma once")
    with pytest.raises(InvalidOperand, match=r"gemm/warp_tiled\.cuh"):
        tw.lab.show("f08", file="gemm/f01_naive.cuh")


def test_ptx_is_told_by_the_outermost_line_of_the_file():
    ptx = """.file 1 "/x/gemm/k.cuh"
.file 2 "/x/tile/in.cuh"
.entry k(
){
.loc 1 7 0
mov.u32 %r1, %tid.x;
.loc 2 5 3, function_name $L, inlined_at 1 9 3
add.u32 %r2, %r1, 1;
.loc 2 30 3, function_name $L, inlined_at 2 5 3
mul.lo.u32 %r2, %r1, 3;
$L__1:
@%p1 bra $L__1;
.loc 2 40 3
ret;
}
"""
    found = ptx_by_line(ptx, "k", "gemm/k.cuh", range(1, 20))
    assert found == {
        7: ["mov.u32 %r1, %tid.x;"], 9: ["add.u32 %r2, %r1, 1;", "mul.lo.u32 %r2, %r1, 3;", "@%p1 bra $L__1;"],
    }  # fmt: skip


def test_a_rung_that_is_not_there_is_refused():
    with pytest.raises(ConfigRejected, match="Did you mean 'f12'"):
        tw.lab.show("f112")


@pytest.mark.parametrize(("rung", "name"), [("a09", "k_order"), ("a20", "overlaps"), ("a24", "by_old_maximum")])
def test_a_constant_that_a_rung_switches_is_told_with_where_it_is_read(rung, name):
    found = tw.lab.show(rung)
    assert {each.name for each in found.switches} == {name}
    for each in found.switches:
        assert f"Rung::{name}" in (CUDA_ROOT / each.file).read_text().splitlines()[each.line - 1]


def test_constants_of_no_rung_are_not_switches():
    assert tw.lab.show("q02").switches == ()


def test_a_rung_that_only_sets_a_constant_has_its_code_where_that_is_read():
    own = tw.lab.show("a24", compiled=True)
    assert not any(line.sass for line in own.lines)
    read = own.switches[0]
    shared = tw.lab.show("a24", compiled=True, file=read.file)
    assert any(line.sass for line in shared.lines if line.number > read.line)


def test_lines_of_a_file_beyond_ascii_have_their_ptx_and_machine_code(tmp_path):
    try:
        find_disassembler()
    except MissingDependency as error:
        pytest.skip(str(error))
    places = tmp_path / "plain.cu", tmp_path / "用户" / "日本.cu"
    places[1].parent.mkdir()
    plain, other = (
        [(len(line.ptx), len(line.sass)) for line in tw.lab.show(new_kernel(place), compiled=True).lines]
        for place in places
    )
    assert plain == other
    assert any(ptx and sass for ptx, sass in plain)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "mine.cu").write_bytes(b"\xff")
    for asked in (lambda: tw.lab.show(tmp_path / "mine.cu"), lambda: tw.lab.show("f02", diff=tmp_path / "mine.cu")):
        with pytest.raises(InvalidOperand, match=r"mine\.cu is not text in UTF-8"):
            asked()
