"""About how long the emulator takes for a launch: for a warning before a long climb, never for a record."""

from __future__ import annotations

START_S = 0.15
SECONDS_PER = {
    "instruction": 0.35e-9,  # of a thread, where fp32 units multiply
    "multiply-add": 0.36e-9,  # of tensor cores, in a product
    "copied multiply-add": 1.3e-9,  # the same where warps have roles, and mbarriers decide who runs next
    "attention's multiply-add": 0.35e-9,  # with its share of a softmax
}
"""Fitted to the processor's time of whole ladders on one core, with the compiled loops: at 512 and 1024 cubed, and at
512 and 2048 queries, estimates were 1.0 to 1.3 of it."""


def emulation_seconds(what: str, count: float) -> float:
    """About the seconds of one launch that executes so many of `what`, a row of SECONDS_PER."""
    return START_S + count * SECONDS_PER[what]
