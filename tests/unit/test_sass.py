"""What the compiler made of the rungs, read from their machine code."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

import pytest

from tilewright.errors import MissingDependency
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.gpus import ARCHS
from tilewright.jit import CompiledKernel
from tilewright.lab import sass


def code_of(kernel: CompiledKernel) -> list[sass.Instruction]:
    """The kernel's machine code; the test is skipped where no disassembler is installed."""
    try:
        sass.find_disassembler()
    except MissingDependency as missing:
        pytest.skip(str(missing))
    return disassembled_once(kernel.cubin)


disassembled_once = lru_cache(maxsize=64)(sass.disassemble)
"""The tool starts for half a second, whatever the kernel."""


def disassembled(rung: str, config: GemmConfig | None = None, layout: str = "nn", arch: str = "sm_90a"):
    rung_ = find_rung(rung)
    problem = GemmProblem.dense(4096, 4096, 4096, layout=layout)
    return code_of(rung_.compile(problem, config or rung_.default, ARCHS[arch]))


def opcodes(*args, **kwargs) -> list[str]:
    return [instruction.opcode for instruction in disassembled(*args, **kwargs)]


@pytest.mark.parametrize(("cache", "arch"), [("cg", "sm_80"), ("ca", "sm_90a")])
def test_f11_copies_without_registers(arch, cache):
    """LDGSTS stands in the SASS; no load that passes through registers is left; .cg and .ca are what was asked for."""
    seen = opcodes("f11_cp_async", replace(find_rung("f11").default, cache=cache), arch=arch)
    wide = [op for op in seen if op.startswith("LDGSTS") and op.endswith(".128")]
    assert wide
    assert all(("BYPASS" in op) == (cache == "cg") for op in wide)
    assert any(op.startswith("LDGSTS") and not op.endswith(".128") for op in seen), "A is transposed element by element"
    assert not any(op.split(".")[0] in ("LDG", "STS") for op in seen)


def test_f11_turns_to_its_other_buffer_by_one_bit_of_the_address():
    loop = sass.main_loop(disassembled("f11_cp_async"), "FFMA")
    assert any(one.opcode.startswith("LOP3") and ", 0x2000, " in one.operands for one in loop), "B's buffers are 8 KiB"
    assert len(loop) < 1200


def test_f10_still_passes_through_registers():
    seen = opcodes("f10_double_buffer")
    assert any(op.startswith("LDG.") for op in seen)
    assert any(op.startswith("STS") for op in seen)
    assert not any(op.startswith("LDGSTS") for op in seen)


@pytest.mark.parametrize("rung", ["f09_transposed", "f12_multistage"])
def test_fragments_of_both_operands_are_128_bit_loads(rung):
    loads = [op for op in opcodes(rung) if op.startswith("LDS") and op != "LDS"]
    assert loads
    assert set(loads) == {"LDS.128"}


def test_f12_spends_nine_tenths_of_its_main_loop_on_products():
    """A fall means that address arithmetic or register moves came back."""
    instructions = disassembled("f12_multistage")
    loops = []
    for last, instruction in enumerate(instructions):
        target = re.search(r"0x([0-9a-f]+)$", instruction.operands) if instruction.opcode.startswith("BRA") else None
        if target and int(target[1], 16) < instruction.address:
            first = next(i for i, other in enumerate(instructions) if other.address == int(target[1], 16))
            loops.append([other.opcode for other in instructions[first : last + 1]])
    main = max(loops, key=lambda body: sum(opcode.startswith("LDGSTS") for opcode in body))
    assert any(opcode.startswith("LDGSTS") for opcode in main)
    assert main.count("FFMA") / len(main) > 0.9
