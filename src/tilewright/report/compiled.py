"""Records of compiled configs (lab/compiled.py) as a table."""

from __future__ import annotations

from collections.abc import Callable

from .cells import DASH, Column, Record, config, result, rung


def _of_loop(name: str, key: str) -> Callable[[Record], str]:
    """A figure of the main loop; a dash where there is none."""
    return lambda record: str((record["result"]["loop"] or {}).get(name, {}).get(key, DASH))


BUILT: tuple[Column, ...] = (
    ("rung", rung),
    ("config", config),
    ("registers", result("registers", "d")),
    ("stack B", result("stack_bytes", "d")),
    ("spill stores B", result("spill_store_bytes", "d")),
    ("spill loads B", result("spill_load_bytes", "d")),
    ("moves in the loop", _of_loop("groups", "moves")),
    ("logic and shifts", _of_loop("groups", "logic and shifts")),
    ("LDGSTS address registers", _of_loop("address_registers", "LDGSTS")),
    ("LDSM address registers", _of_loop("address_registers", "LDSM")),
)
