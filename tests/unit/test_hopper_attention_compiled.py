"""What the compiler makes of Hopper's attention rungs (sm_90a, NVRTC 13.0): products in flight, registers, copies."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from functools import lru_cache

import pytest
from test_sass import code_of

from tilewright.attn.hopper import _ARGS, HOPPER_RUNGS
from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import find_attention_rung
from tilewright.gpus import ARCHS
from tilewright.jit import CompiledKernel, compile_source
from tilewright.lab.sass import Instruction


@lru_cache
def compiled(rung: str, d_head: int, turns: str = "", is_causal: bool = False) -> CompiledKernel:
    problem = AttentionProblem.dense(1, 16, 4096, 4096, d_head, is_causal=is_causal)
    chosen = find_attention_rung(rung)
    config = replace(chosen.default(problem, ARCHS["sm_90a"]), turns=turns)
    return chosen.compile(problem, config, ARCHS["sm_90a"])


def opcodes(kernel: CompiledKernel) -> list[str]:
    return [instruction.opcode for instruction in code_of(kernel)]


@pytest.mark.parametrize("d_head", [64, 128, 192, 256])
@pytest.mark.parametrize("rung", [rung.id for rung in HOPPER_RUNGS])
def test_products_stay_asynchronous_and_nothing_spills(rung, d_head):
    """ptxas says so where it waits for each product, or ignores that registers are handed over (C7508, C7510)."""
    kernel = compiled(rung, d_head, is_causal=d_head == 128)
    assert "(C75" not in kernel.log
    assert kernel.resources.spill_load_bytes == kernel.resources.stack_bytes == 0


def test_tiles_come_by_tma_one_copy_each_and_go_to_wgmma():
    seen = opcodes(compiled("a19", 128))
    assert sum(opcode.startswith("UTMALDG") for opcode in seen) == 2 + 1 + 2, "Q of two warpgroups, K, V and the last V"
    assert sum(opcode.startswith("HGMMA") for opcode in seen) == 8 + 8, "128 columns and 128 keys in steps of 16"
    assert sum(opcode.startswith("USETMAXREG") for opcode in seen) == 2
    assert not any(opcode.startswith(("LDGSTS", "STS", "LDSM", "HMMA")) for opcode in seen)


def one_pending(code: list[Instruction]) -> int:
    """Where Q K^T is waited for while P V runs."""
    waits = (n for n, i in enumerate(code) if i.opcode.startswith("WARPGROUP.DEPBAR"))
    return next(n for n in waits if code[n].operands.endswith("0x1"))


def under_way(code: list[Instruction]) -> int:
    """Exponentials between the wait for Q K^T and that for P V, in the loop that has both in flight."""
    first = one_pending(code)
    second = next(n for n, i in enumerate(code) if n > first and i.opcode.startswith("WARPGROUP.DEPBAR"))
    return sum(i.opcode.startswith("MUFU.EX2") for i in code[first:second])


@pytest.mark.parametrize("rung", ["a20", "a21", "a23", "a24"])
def test_exponentials_are_computed_while_products_run(rung):
    scores = 128 * 128 // 256  # of a thread
    assert under_way(code_of(compiled(rung, 128))) >= scores - 4


def test_exponentials_stay_within_their_turn():
    code = code_of(compiled("a21", 128, turns="exponentials"))
    first = one_pending(code)
    turns = [n for n, i in enumerate(code) if n > first and re.match(r"SYNCS\.(PHASECHK|ARRIVE)", i.opcode)]
    taken = next(n for n in turns if "PHASECHK" in code[n].opcode)
    passed = next(n for n in turns if n > taken and "ARRIVE" in code[n].opcode)
    assert sum(i.opcode.startswith("MUFU.EX2") for i in code[taken:passed]) >= 64


def test_the_packed_parameters_are_the_device_codes():
    """HopperArgs is AttentionArgs and what attn/hopper.py packs after it."""
    held = [f"sizeof(HopperArgs) == sizeof(AttentionArgs) + {struct.calcsize(_ARGS)}"]
    for place, name in enumerate(("heads", "row_tiles", "tiles")):
        held.append(f"__INTADDR__(&((HopperArgs*)0)->{name}) == sizeof(AttentionArgs) + {4 * place}")
    lines = ['#include "attention/hopper_args.cuh"', *(f'static_assert({one}, "");' for one in held)]
    compile_source("\n".join(lines) + '\nextern "C" __global__ void k(int* to) { *to = 0; }', entry="k")
