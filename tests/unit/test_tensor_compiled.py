"""What the compiler made of the 16-bit rungs: registers, machine code, and that the space of h11 compiles."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

import pytest
from test_sass import code_of

from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung, rungs_for
from tilewright.gpus import ARCHS
from tilewright.jit import CompiledKernel

RUNGS = [rung.id for rung in rungs_for("bf16")]
# Kernels that one test compiles the others take, so that the defaults' are compiled once for each architecture.
BELOW_CP_ASYNC = ("h01_simt", "h02_wmma_naive", "h03_wmma_warptile")


def square(layout: str = "nn", out_dtype: str = "bf16") -> GemmProblem:
    return GemmProblem.dense(4096, 4096, 4096, layout=layout, dtype="bf16", out_dtype=out_dtype)


def compiled(rung: str, layout: str = "nn", arch: str = "sm_90a", config: GemmConfig | None = None, **problem):
    found = find_rung(rung)
    return found.compile(square(layout, **problem), config or found.default, ARCHS[arch])


def opcodes(kernel: CompiledKernel) -> Counter[str]:
    return Counter(instruction.opcode for instruction in code_of(kernel))


def with_prefix(counts: Counter[str], prefix: str) -> set[str]:
    return {opcode for opcode in counts if opcode.split(".")[0] == prefix}


@pytest.mark.parametrize(
    ("rung", "arch", "layout"),
    [
        *((rung, "sm_90a", "nn") for rung in RUNGS),
        *((rung, "sm_80", "nn") for rung in ("h03_wmma_warptile", "h07_wmma_three_stage", "h11_mma_multistage")),
        *((rung, "sm_90a", "nt") for rung in ("h01_simt", "h07_wmma_three_stage", "h11_mma_multistage")),
    ],
)
def test_no_default_spills(rung, arch, layout):
    resources = compiled(rung, layout, arch).resources
    assert (resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes) == (0, 0, 0)
    assert 0 < resources.registers <= 255


@pytest.mark.parametrize(("arch", "tile_k"), [("sm_80", 32), ("sm_90a", 16)])
def test_h07s_one_fragment_set_takes_fewer_registers_than_two(arch, tile_k):
    """A set is 4 fragments of A and 4 of B, 4 registers each, for each step of 16; a few of it may be saved elsewhere.

    Measured: about 180 against 218 at tile_k = 16.
    """
    base = dataclasses.replace(find_rung("h07").default, tile_k=tile_k, min_blocks=1)
    one, two = (
        compiled("h07", "nn", arch, dataclasses.replace(base, fragment_sets=sets)).resources.registers
        for sets in (1, 2)
    )
    assert one <= two - 16, (one, two)


@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung not in BELOW_CP_ASYNC])
def test_rungs_from_h04_on_copy_without_registers(rung):
    ptx = compiled(rung).ptx
    copies = re.findall(r"cp\.async\.(c[ag])\.shared\.global.*, (\d+);", ptx)
    by_tma = "cp.async.bulk.tensor" in ptx
    assert set(copies) == (set() if by_tma else {("cg", "16")})
    assert by_tma == (rung >= "h14")
    assert ("ld.global" in ptx) == (rung == "h18_stream_k"), "it reads other blocks' partial sums"


@pytest.mark.parametrize(
    ("rung", "arch"),
    [("h04_wmma_async", "sm_90a"), ("h11_mma_multistage", "sm_90a"), ("h07_wmma_three_stage", "sm_80")],
)
def test_such_copies_pass_through_none_in_machine_code(rung, arch):
    counts = opcodes(compiled(rung, arch=arch))
    copies = with_prefix(counts, "LDGSTS")
    assert copies
    assert all("BYPASS" in opcode and opcode.endswith(".128") for opcode in copies)
    assert not with_prefix(counts, "LDG")


@pytest.mark.parametrize("rung", BELOW_CP_ASYNC)
def test_rungs_below_h04_pass_through_registers(rung):
    counts = opcodes(compiled(rung))
    assert with_prefix(counts, "LDG")
    assert not with_prefix(counts, "LDGSTS")


@pytest.mark.parametrize(
    ("rung", "out_dtype"),
    [
        *((rung, "bf16") for rung in ("h08_mma", "h09_mma_swizzled", "h10_mma_three_stage", "h11_mma_multistage")),
        ("h08_mma", "f32"),
        ("h11_mma_multistage", "f32"),
    ],
)
def test_results_leave_the_accumulators_in_accesses_of_8_bytes(rung, out_dtype):
    """128 accumulators of 4 bytes a thread, or of 2: so many stores, and none of another width. Nothing is staged."""
    kernel = compiled(rung, out_dtype=out_dtype)
    config = find_rung(rung).default
    accumulators = config.warp_m * config.warp_n // 32
    counts = opcodes(kernel)
    assert {op: counts[op] for op in with_prefix(counts, "STG")} == {
        "STG.E.64": accumulators * (4 if out_dtype == "f32" else 2) // 8
    }
    assert not with_prefix(counts, "STS")


@pytest.mark.parametrize(
    ("rung", "layout", "plain", "transposed"),
    [
        ("h11_mma_multistage", "nn", "A", "B"), ("h11_mma_multistage", "nt", "AB", ""),
        ("h11_mma_multistage", "tn", "", "AB"), ("h11_mma_multistage", "tt", "B", "A"),
        ("h08_mma", "nn", "A", "B"), ("h08_mma", "tt", "B", "A"),
    ],
)  # fmt: skip
def test_fragments_come_four_matrices_at_a_time_transposed_where_k_is_not_contiguous(rung, layout, plain, transposed):
    """PTX and machine code agree: ldmatrix.x4 (LDSM.16.M88.4), with .trans (.MT88.4) where k is not contiguous."""
    kernel = compiled(rung, layout)
    forms = Counter(re.findall(r"ldmatrix\.sync\.aligned\.(\S+)", kernel.ptx))
    expected = {"m8n8.x4.shared.b16": plain, "m8n8.x4.trans.shared.b16": transposed}
    assert set(forms) == {form for form, operands in expected.items() if operands}
    counts = opcodes(kernel)
    expected = {"LDSM.16.M88.4": plain, "LDSM.16.MT88.4": transposed}
    assert with_prefix(counts, "LDSM") == {opcode for opcode, operands in expected.items() if operands}


@pytest.mark.parametrize(("arch", "least"), [("sm_80", 200), ("sm_90a", 200)])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_h11_offers_far_more_than_sixty_configs_that_fit(layout, arch, least):
    rung = find_rung("h11")
    reasons = [rung.why_not(square(layout), config, ARCHS[arch]) for config in rung.space()]
    assert reasons.count(None) >= least
    assert all(re.search(r"\d", reason) for reason in reasons if reason)


def test_a_sample_of_h11s_space_compiles_without_spills():
    """One config of every small block tile. All of the space compiles; a few configs ask for more blocks than fit."""
    space = find_rung("h11").space()
    sample = {(config.tile_m, config.tile_n): config for config in space if config.tile_m * config.tile_n <= 64 * 64}
    assert len(sample) >= 6
    for config in sample.values():
        resources = compiled("h11", config=config).resources
        assert resources.spill_store_bytes == 0, config
