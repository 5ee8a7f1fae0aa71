"""Profiles: what each kernel keeps busy, and what its warps wait for most."""

from __future__ import annotations

from typing import Any

from ..lab.record import who
from .cells import DASH, number


def _share(name: str) -> Any:
    def cell(record: dict[str, Any]) -> str:
        value = record["result"]["shares"].get(name)
        return DASH if value is None else f"{value:.0%}"

    return cell


def waits(record: dict[str, Any]) -> list[tuple[str, float]]:
    """(reason, warps per issued instruction), the most first."""
    return sorted(record["result"]["stalls"].items(), key=lambda item: -item[1])


def _most(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in waits(record)[:2])


PAGE: tuple[tuple[str, Any], ...] = (
    ("problem", lambda record: str(record["case"]["problem"])),
    ("kernel", who),
    ("ms", lambda record: number(record["result"]["ms"], ".3f")),
    ("tensor pipe", _share("tensor_pipe")),
    ("fp32 pipe", _share("fma_pipe")),
    ("issue slots", _share("issue_active")),
    ("shared memory", _share("shared_pipe")),
    ("L2", _share("l2")),
    ("device memory", _share("dram")),
    ("warps wait most for", _most),
)
