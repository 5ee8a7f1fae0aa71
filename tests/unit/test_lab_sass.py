"""Machine code as a list: the disassembler's listing is read right, and its absence is said with a way out."""

from __future__ import annotations

import sysconfig

import pytest

from tilewright.errors import MissingDependency, TilewrightError
from tilewright.jit import compile_source
from tilewright.lab import sass

LISTING = """
\t.section\t.text.gemm,"ax",@progbits
        /*0000*/                   LDC R1, c[0x0][0x28] ;                 /* 0x00000a00ff017b82 */
                                                                          /* 0x000fe20000000800 */
        /*0010*/              @!P0 BRA `(.L_x_1) ;                        /* 0x0000000400000947 */
        /*0020*/         @UP1 UIADD3 UR4, UR4, 0x1, URZ ;                 /* 0x0000000104047890 */
        /*0030*/              @!PT LDS RZ, [RZ] ;                         /* 0x00000000fffff984 */
        /*0040*/                   LDGSTS.E.BYPASS.128 [R5], desc[UR8][R2.64] ; /* 0x0 */
        /*0050*/                   FFMA R4, R8, R12, R4 ;                 /* 0x0000000c08047223 */
        /*0060*/                   FFMA.FTZ R4, R8, R12.reuse, R4 ;       /* 0x0000000c08047223 */
        /*0070*/                   EXIT ;                                 /* 0x000000000000794d */
.L_x_1:
"""


def test_every_instruction_of_a_listing_is_read_with_its_guard():
    (found,) = sass.parse(LISTING).values()
    assert [i.address for i in found] == list(range(0, 0x80, 0x10))
    assert [i.opcode for i in found] == [
        "LDC", "BRA", "UIADD3", "LDS", "LDGSTS.E.BYPASS.128", "FFMA", "FFMA.FTZ", "EXIT",
    ]  # fmt: skip
    assert [i.guard.strip() for i in found] == ["", "@!P0", "@UP1", "@!PT", "", "", "", ""]
    assert found[5].operands == "R4, R8, R12, R4"
    assert found[7].operands == ""


def test_instructions_are_counted_without_their_modifiers():
    counts = sass.count(sass.parse(LISTING)["gemm"])
    assert counts["FFMA"] == 2
    assert counts["LDGSTS"] == 1
    assert sum(counts.values()) == 8


def test_a_kernel_of_ones_own_is_disassembled():
    try:
        sass.find_disassembler()
    except MissingDependency as missing:
        pytest.skip(f"no disassembler: {missing}")
    text = 'extern "C" __global__ void k(float* x, float a) { x[threadIdx.x] = fmaf(x[threadIdx.x], a, a); }'
    counts = sass.count(sass.disassemble(compile_source(text, entry="k", arch="sm_80").cubin))
    assert (counts["FFMA"], counts["LDG"], counts["STG"]) == (1, 1, 1)
    with pytest.raises(TilewrightError, match="nvdisasm"):
        sass.disassemble(b"no cubin at all")


def test_without_a_disassembler_the_error_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="pip install nvidia-cuda-nvdisasm"):
        sass.find_disassembler()
