"""Columns of the precisions' records: errors, hard ranges, times."""

from __future__ import annotations

from collections.abc import Callable

from .cells import DASH, Column, Record, config, milliseconds, number, result, rung, share, spread


def _error(of: str, name: str, form: str = ".2e") -> Callable[[Record], str]:
    return lambda record: number(record["result"]["errors"].get(of, {}).get(name), form)


def _kinds(record: Record) -> str:
    found = record["result"]["errors"]["fp32x3"].get("kinds")
    return DASH if found is None else "yes" if found else "NO"


def _rung_of_parts(record: Record) -> str:
    return str(record["case"]["rungs"]["fp32x3"])


def _size(record: Record) -> str:
    return "{m} x {n} x {k}".format(**record["case"])


def _layout(record: Record) -> str:
    return str(record["case"]["layout"]).upper()


ACCURACY: tuple[Column, ...] = (
    ("m x n x k", _size),
    ("fp32x3 by", _rung_of_parts),
    ("fp32x3 rms", _error("fp32x3", "rms")),
    ("cuBLAS fp32 rms", _error("cuBLAS fp32", "rms")),
    ("fp32x3 max", _error("fp32x3", "max")),
    ("cuBLAS fp32 max", _error("cuBLAS fp32", "max")),
    ("tf32 rms", _error("tf32", "rms")),
    ("cuBLAS tf32 rms", _error("cuBLAS tf32", "rms")),
)
RANGES: tuple[Column, ...] = (
    ("operands", lambda record: str(record["case"]["values"])),
    ("fp32x3 by", _rung_of_parts),
    ("fp32x3", _error("fp32x3", "share", ".2f")),
    ("cuBLAS fp32", _error("cuBLAS fp32", "share", ".2f")),
    ("infinite, NaN and finite where float64 is", _kinds),
)
TIMES: tuple[Column, ...] = (
    ("m x n x k", _size),
    ("rung", rung),
    ("ms", milliseconds),
    ("config", config),
    ("layout", _layout),
    ("TFLOP/s", result("tflops", ".1f")),
    ("of cuBLAS in its precision", share("ratio")),
    ("p10..p90", spread),
    ("registers", result("registers", "d")),
    ("spill B", result("spill_bytes", "d")),
)


def _fastest(rung_id: str, name: str, form: str = "") -> Callable[[Record], str]:
    """The figures of a rung's fastest config at a size."""

    def text(record: Record) -> str:
        configs = [config for config in record["result"]["configs"] if config["rung"] == rung_id]
        return format(min(configs, key=lambda config: config["us"])[name], form) if configs else DASH

    return text


SIZES: tuple[Column, ...] = (
    ("m x n x k", _size),
    *(column for rung_id in ("t02_fp32x3", "t03_fp32x3_split", "t05_fp32x3_pairs") for column in (
        (f"{rung_id[:3]}'s fastest config", _fastest(rung_id, "config_text")),
        ("us", _fastest(rung_id, "us", ".1f")),
        ("of cuBLAS fp32", _fastest(rung_id, "ratio_to_cublas", ".1%")),
    )),
)  # fmt: skip
