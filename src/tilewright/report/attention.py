"""Columns of attention's records."""

from __future__ import annotations

from .cells import Column, Record, stall, verdict
from .cells import config as _config
from .cells import milliseconds as _milliseconds
from .cells import result as _result
from .cells import rung as _rung
from .cells import share as _share
from .cells import spread as _spread

MEASURED: tuple[Column, ...] = (
    ("rung", _rung),
    ("check", verdict),
    ("ms", _milliseconds),
    ("TFLOP/s", _result("tflops", ".1f")),
    ("of FA2", _share("ratio")),
    ("of cuDNN", _share("ratio_cudnn")),
    ("regs", _result("registers", "d")),
    ("spill B", _result("spill_bytes", "d")),
    ("shared B", _result("shared_bytes", "d")),
)
_FIGURES: tuple[Column, ...] = (
    ("config", _config),
    ("ms", _milliseconds),
    ("TFLOP/s", _result("tflops", ".1f")),
    ("of FlashAttention-2", _share("ratio")),
    ("p10..p90", _spread),
    ("of cuDNN", _share("ratio_cudnn")),
)
LADDER: tuple[Column, ...] = (
    ("rung", _rung),
    *_FIGURES,
    ("registers", _result("registers", "d")),
    ("spill B", _result("spill_bytes", "d")),
)


def _shape(record: Record) -> str:
    shape, shared = "{batch} x {heads_q} x {seq_q}".format(**record["case"]), record["case"]["heads_kv"]
    return shape if shared == record["case"]["heads_q"] else f"{shape}, {shared} of keys"


def _mask(record: Record) -> str:
    mask = "causal" if record["case"]["is_causal"] else "full"
    return f"{mask}, window {tuple(window)}" if (window := record["case"].get("window")) else mask


def _columns(record: Record) -> str:
    """Columns of queries and keys, and of values where they are others."""
    case = record["case"]
    return f"{case['d_head']}/{case['d_v']}" if "d_v" in case else str(case["d_head"])


SIZES: tuple[Column, ...] = (
    ("d_head", _columns),
    ("mask", _mask),
    ("batch x heads x length", _shape),
    ("rung", _rung),
    *_FIGURES,
)
DECODE: tuple[Column, ...] = (
    ("batch x queries x keys", lambda record: "{batch} x {seq_q} x {seq_k}".format(**record["case"])),
    ("heads, of keys", lambda record: "{heads_q}, {heads_kv}".format(**record["case"])),
    ("d_head", lambda record: str(record["case"]["d_head"])),
    ("config", _config),
    ("us", lambda record: f"{record['result']['ms'] * 1e3:.1f}"),
    ("GB/s", _result("gb_s", ".0f")),
    ("of FlashAttention-2", _share("ratio")),
    ("of cuDNN", _share("ratio_cudnn")),
)
PACKED: tuple[Column, ...] = (
    ("entries of rows", lambda record: "{entries} of {shortest} to {longest}".format(**record["case"])),
    ("mask", lambda record: "causal" if record["case"]["is_causal"] else "full"),
    ("heads, of keys", lambda record: "{heads_q}, {heads_kv}".format(**record["case"])),
    ("d_head", lambda record: str(record["case"]["d_head"])),
    ("rung", _rung),
    ("config", _config),
    ("us", lambda record: f"{record['result']['ms'] * 1e3:.1f}"),
    ("TFLOP/s", _result("tflops", ".1f")),
    ("of varlen_attn", _share("ratio")),
    ("p10..p90", _spread),
    ("of a17", _share("ratio_a17")),
)
STALLS: tuple[Column, ...] = (
    ("rung", _rung),
    ("tensor pipe", _share("tensor_pipe", 0)),
    ("issue slots used", _share("issue_active", 0)),
    ("shared data pipe", _share("shared_pipe", 0)),
    ("exponentials", _share("xu_pipe", 0)),
    *((name.replace("_", " "), stall(name)) for name in
      ("wait", "math_pipe_throttle", "short_scoreboard", "long_scoreboard", "barrier", "not_selected")),
)  # fmt: skip
