"""Records of what the compiler makes of configs: registers, spills, and machine code counted. They need no GPU."""

from __future__ import annotations

from typing import Any

from ..gpus import find_gpu
from .inspection import Inspection, Part, inspect
from .ladder import Progress, silent
from .record import provenance
from .sass import find_disassembler, listings
from .subject import every_rung, of_rung, read_config

_COUNTED = ("LDGSTS", "LDSM", "HMMA", "MOV", "IMAD.MOV", "CS2R", "LOP3", "SHF", "IMAD.SHL", "FMUL", "FADD", "FFMA")


def compiled_records(name: str, cases: list[dict[str, Any]], gpu: str, say: Progress = silent) -> list[dict[str, Any]]:
    """One record per config of each case's rung, compiled for a board. Raises MissingDependency."""
    find_disassembler()  # a record has what it counts, or there is none
    records: list[dict[str, Any]] = []
    origin = provenance(machine_kind="compiler", arch=find_gpu(gpu).arch.name)
    for case in cases:
        for config in case["configs"]:
            say(len(records), f"{case['rung']} {config}")
            found = inspect(case["rung"], config=config, gpu=gpu)
            result = _result(found) | {"opcodes": _opcodes(case["rung"], config, gpu)}
            told = {"rung": found.name, "config_text": found.config}
            records.append({"suite": name, "case": told, "result": result, "provenance": origin})
    return records


def _result(found: Inspection) -> dict[str, Any]:
    loop = found.main_loop
    return {
        "right": None,  # nothing was run
        "registers": found.registers, "spill_store_bytes": found.spill_store_bytes,
        "spill_load_bytes": found.spill_load_bytes, "stack_bytes": found.stack_bytes,
        "shared_bytes": found.shared_bytes, "threads": found.threads, "all": _part(found.parts[0]),
        "loop": None if loop is None else _part(loop),
    }  # fmt: skip


def _part(part: Part) -> dict[str, Any]:
    """Return what of a part is kept: instructions by group, how many address registers, distances."""
    return {
        "instructions": part.instructions, "groups": part.groups,
        "address_registers": {opcode: len(uses) for opcode, uses in part.address_registers.items()},
        "accesses": {opcode: sum(uses.values()) for opcode, uses in part.address_registers.items()},
        "distances": {load: list(spread) for load, spread in part.distances.items()},
    }  # fmt: skip


def _opcodes(name: str, config: str, gpu: str) -> dict[str, int]:
    """Return how often some opcodes are in the whole kernel."""
    rung, board = every_rung(name), find_gpu(gpu)
    assert rung is not None
    subject = of_rung(rung, read_config(rung, config, board.arch), board.arch)
    opcodes = [instruction.opcode for instruction in listings(subject.cubin)[subject.entry]]
    return {
        counted: sum(opcode == counted or opcode.startswith(f"{counted}.") for opcode in opcodes)
        for counted in _COUNTED
    }
