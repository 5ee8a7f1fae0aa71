"""What the compiler makes of the attention rungs (sm_80, NVRTC 13.0): each rung's purpose is in the machine code.

The bounds are ours, with a little room; docs/attention.md has our figures beside the documents'.
"""

from __future__ import annotations

import re
from functools import lru_cache

import pytest

from tilewright.attn.config import AttentionConfig
from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import find_attention_rung
from tilewright.errors import MissingDependency
from tilewright.gpus import find_arch
from tilewright.jit import CompiledKernel
from tilewright.lab.sass import Instruction, disassemble, find_disassembler, main_loop

WHOLE, SLICED, MIXED = "load_0_0_0_fragments", "load_2_2_2_fragments", "load_0_2_2_fragments"
SIZES = ("64, 64", "128, 32", "128, 64")


@pytest.fixture(scope="module", autouse=True)
def _disassembler():
    try:
        find_disassembler()
    except MissingDependency as error:
        pytest.skip(str(error))


def kernel(rung: str, config: str) -> CompiledKernel:
    problem = AttentionProblem.dense(1, 16, 4096, 4096, 128)
    return find_attention_rung(rung).compile(problem, AttentionConfig.parse(config), find_arch("sm_80"))


@lru_cache(maxsize=64)
def code(rung: str, config: str) -> list[Instruction]:
    return disassemble(kernel(rung, config).cubin)


@lru_cache(maxsize=64)
def loop(rung: str, config: str) -> list[Instruction]:
    return main_loop(code(rung, config), "HMMA")


def count(instructions: list[Instruction], *opcodes: str) -> int:
    """Instructions whose opcode is one of these, or begins with one and a dot."""
    return sum(i.opcode == o or i.opcode.startswith(f"{o}.") for i in instructions for o in opcodes)


def address_registers(instructions: list[Instruction], opcode: str) -> int:
    """Different registers that hold the shared address of these instructions."""
    found = [re.search(r"\[(R\d+)", i.operands) for i in instructions if i.opcode.startswith(opcode)]
    return len({match[1] for match in found if match})


def test_slices_take_fewer_registers_and_spill_less_than_whole_tiles():
    for size in SIZES:
        whole = kernel("a03", f"(128, {size}, 4): {WHOLE}").resources
        sliced = kernel("a04", f"(128, {size}, 4): {SLICED}").resources
        if whole.registers < 255:
            assert whole.spill_store_bytes == sliced.spill_store_bytes == 0
            assert sliced.registers < whole.registers - 8, size
        else:
            assert sliced.spill_store_bytes < 0.7 * whole.spill_store_bytes, size
            assert sliced.spill_store_bytes < 50 or size != "128, 32"


def test_fusing_takes_an_fmul_and_an_fadd_from_every_score():
    config = f"(128, 64, 64, 4): {SLICED}+buffer"
    before, after = (loop(rung, config) for rung in ("a05", "a06"))
    scores = 64 * 64 // 128  # of a thread
    assert count(before, "FMUL") - count(after, "FMUL") >= 2 * scores - 4
    assert count(before, "FADD") - count(after, "FADD") >= scores
    assert count(after, "FFMA") - count(before, "FFMA") >= scores


def test_strides_take_address_registers_and_integer_work_from_the_loop():
    config = f"(128, 64, 64, 4): {MIXED}"
    before, after = (loop(rung, config) for rung in ("a07", "a08"))
    assert address_registers(before, "LDSM") >= 30
    assert address_registers(after, "LDSM") <= 5
    assert address_registers(before, "LDGSTS") >= 8
    assert address_registers(after, "LDGSTS") == 1
    config = f"(128, 128, 64, 4): {SLICED}"
    before, after = (loop(rung, config) for rung in ("a07", "a08"))
    for work in (("LOP3", "SHF", "IMAD.SHL"), ("LOP3", "SHF", "IMAD.SHL", "LEA")):
        assert count(after, *work) <= 0.2 * count(before, *work)


def test_strides_leave_room_for_32_rows_a_warp():
    config = f"(128, 128, 64, 4): {SLICED}"
    before, after = (kernel(rung, config).resources.spill_store_bytes for rung in ("a07", "a08"))
    assert after <= 0.4 * before
    assert after <= 80


def test_fragments_read_in_the_order_of_the_product_need_no_moves():
    for config in (f"(128, 64, 64, 4): {MIXED}", f"(128, 128, 64, 4): {SLICED}"):
        before, after = (count(loop(rung, config), "MOV", "IMAD.MOV") for rung in ("a08", "a09"))
        assert before >= 100
        assert after <= 0.25 * before, config


def test_the_first_tile_apart_leaves_nothing_to_zero():
    config = f"(128, 128, 64, 4): {SLICED}"
    assert count(code("a09", config), "CS2R") >= 64
    assert count(code("a10", config), "CS2R") == 0


def test_strides_take_half_the_logic_of_storing_results():
    config = f"(128, 128, 64, 4): {SLICED}"
    assert count(code("a11", config), "LOP3") <= 0.6 * count(code("a10", config), "LOP3")


def test_the_swizzle_costs_logic_where_addresses_are_computed_anew():
    config = f"(128, 64, 64, 4): {WHOLE}"
    assert count(code("a02", config), "LOP3") >= 3 * count(code("a01", config), "LOP3")


def test_slices_bring_each_fragment_once_for_all_products_that_take_it():
    """A warp of 32 rows and 64 keys multiplies 2 x 8 fragments a step: 10 loads of them for 16 products, 1.6 products a
    load; row by row it would be 2 (1 + 8) loads, 0.889. One ldmatrix.x4 brings one fragment of Q or two of K."""
    instructions = loop("a08", f"(128, 128, 64, 4): {SLICED}")
    plain = [i for i in instructions if i.opcode.startswith("LDSM") and ".MT88" not in i.opcode]
    products, steps = count(instructions, "HMMA") // 2, 128 // 16  # half of them are P V's
    assert products == 2 * 8 * steps
    assert len(plain) == (2 + 8 // 2) * steps
    fragments = 2 * steps + 2 * (len(plain) - 2 * steps)
    assert products / fragments == pytest.approx(1.6)
