"""Records -> rows -> tables. Every figure shown stands in a record; a missing one is a dash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from ..lab.fingerprint import NO_SUITE
from ..lab.record import went_wrong
from . import (
    attention,
    beside_torch,
    blocks,
    by_size,
    census,
    compiled,
    fp8,
    grouped,
    landscapes,
    precision,
    profiles,
    sanitizer,
    terminal,
)
from .cells import DAGGER, DASH, Column, Record, number, percent, stall, verdict
from .cells import config as _config
from .cells import milliseconds as _milliseconds
from .cells import result as _result
from .cells import rung as _rung
from .cells import share as _share
from .cells import spread as _spread


def _instructions(kind: str) -> Callable[[Record], str]:
    def cell(record: Record) -> str:
        value = record["result"].get("instructions_per_thread", {}).get(kind)
        return number(value, ".2g" if value is not None and 0 < value < 1 else ".0f")  # most threads have none, not all

    return cell


def _bound(record: Record) -> str:
    share = record["result"].get("bound_share_of_peak")
    return percent(share, 1 if share is not None and share < 0.1 else 0)


COMPILER: tuple[Column, ...] = (
    ("rung", _rung),
    ("check", verdict),
    ("max error", _result("max_error", ".1e")),
    ("registers", _result("registers", "d")),
    ("spill B", _result("spill_bytes", "d")),
    ("shared B", _result("shared_bytes", "d")),
    ("occupancy", _share("occupancy", 0)),
    ("limited by", lambda record: str(record["result"].get("limited_by", DASH))),
)
_EXECUTED: tuple[Column, ...] = (
    ("fp32", _instructions("fp32")),
    ("int", _instructions("int")),
    ("memory", _instructions("memory")),
    ("other", _instructions("other")),
    ("sectors", _result("sectors_per_request", ".2f")),
    ("wavefronts", _result("wavefronts_per_request", ".2f")),
    ("ideal", _result("ideal_wavefronts_per_request", ".2f")),
    ("FLOP/B", _result("flop_per_byte", ".2f")),
    ("bound", _bound),
    ("roof", lambda record: str(record["result"].get("bound_by", DASH))),
)
EXECUTED: tuple[Column, ...] = (("rung", _rung), *_EXECUTED)
EXECUTED_TENSOR: tuple[Column, ...] = (
    ("rung", _rung),
    ("tensor", _instructions("tensor")),
    *_EXECUTED,
)
"""For the 16-bit rungs."""
MEASURED: tuple[Column, ...] = (
    ("rung", _rung),
    ("check", verdict),
    ("ms", _milliseconds),
    ("TFLOP/s", _result("tflops", ".2f")),
    ("of cuBLAS", _share("ratio")),
    ("of peak", _share("share_of_peak")),
    ("regs", _result("registers", "d")),
    ("spill B", _result("spill_bytes", "d")),
    ("shared B", _result("shared_bytes", "d")),
    ("occup.", _share("occupancy", 0)),
)
LADDER_PAGE: tuple[Column, ...] = (
    ("rung", _rung),
    ("config", _config),
    ("ms", _milliseconds),
    ("TFLOP/s", _result("tflops", ".2f")),
    ("of cuBLAS", _share("ratio")),
    ("p10..p90", _spread),
    ("of FFMA peak", _share("share_of_peak")),
    ("registers", _result("registers", "d")),
)
SIZES_PAGE: tuple[Column, ...] = (
    ("m x n x k", lambda record: "{m} x {n} x {k}".format(**record["case"])),
    ("layout", lambda record: str(record["case"]["layout"]).upper()),
    ("config", _config),
    ("ms", _milliseconds),
    ("TFLOP/s", _result("tflops", ".1f")),
    ("of cuBLAS", _share("ratio")),
    ("p10..p90", _spread),
)


def _parts(us: dict[str, float]) -> str:
    return "; ".join(f"{value:.0f} us: {name}" for name, value in us.items()) or DASH


HOST_CALLS_PAGE: tuple[Column, ...] = (
    ("call", lambda record: f"`{record['case']['call']}`"),
    ("host us", _result("host_us", ".1f")),
    ("the library's us", _result("reference_us", ".1f")),
    ("times as fast", _result("ratio", ".2f")),
    ("p10..p90", _spread),
    ("goal: at most", lambda record: str(record["result"].get("goal") or record["result"]["reason"] or DASH)),
    ("met", lambda record: {True: "yes", False: "no"}.get(record["result"].get("met"), DASH)),
    ("of ours, timed apart", lambda record: _parts(record["result"].get("parts_us", {}))),
)
COLD_PAGE: tuple[Column, ...] = (
    ("kernel cache", lambda record: str(record["case"]["cache"])),
    ("dtype", lambda record: str(record["case"]["dtype"])),
    ("m x n x k", lambda record: "{m} x {n} x {k}".format(**record["case"])),
    ("s to the first product", _result("seconds", ".2f")),
    ("of them import", _result("import_seconds", ".2f")),
)


SUMS_PAGE: tuple[Column, ...] = (
    ("what", lambda record: str(record["case"]["what"])),
    ("shapes", _result("shapes", "d")),
    ("errors over twice cuBLAS's", _result("over_twice", "d")),
    ("of them over 4 half-ulps", _result("beyond", "d")),
    ("times as fast as without the rule", _result("ratio", ".3f")),
    ("least", _result("least", ".3f")),
)
EPILOGUE_PAGE: tuple[Column, ...] = (
    ("fused, or the call", lambda record: f"`{record['case'].get('call') or record['case']['epilogue']}`"),
    ("compared with", lambda record: str(record["case"]["against"])),
    ("dtype", lambda record: str(record["case"]["dtype"])),
    ("m x n x k", lambda record: "{m} x {n} x {k}".format(**record["case"])),
    ("config", lambda record: str(record["case"].get("config_text", DASH))),
    ("ms", _milliseconds),
    ("times as fast", _result("ratio", ".3f")),
    ("p10..p90", _spread),
    ("host us per call", _result("host_us", ".1f")),
)


def _stages(record: Record) -> str:
    return ", ".join(record["case"]["stages"])


SPREAD_PAGE: tuple[Column, ...] = (
    ("m x n x k", lambda record: "{m} x {n} x {k}".format(**record["case"])),
    ("layout", lambda record: str(record["case"]["layout"]).upper()),
    ("config", _config),
    ("blocks", _result("blocks")),
    ("an SM's share", _result("even")),
    ("may stay on an SM", _result("stay")),
    ("us", lambda record: number(record["result"]["ms"] * 1e3, ".1f")),
    ("times as fast", _result("ratio", ".3f")),
    ("p10..p90", _spread),
)
PRODUCTS_PAGE: tuple[Column, ...] = (
    ("m x n x k", lambda record: "{m} x {n} x {k}".format(**record["case"])),
    ("layout", lambda record: str(record["case"]["layout"]).upper()),
    ("config", _config),
    ("launches", _stages),
    ("us", lambda record: number(record["result"]["ms"] * 1e3, ".1f")),
    ("TFLOP/s", _result("tflops", ".1f")),
    ("GB/s", _result("gb_s", ".0f")),
    ("of cuBLAS", _share("ratio")),
    ("p10..p90", _spread),
)


def _pair(name: str) -> Callable[[Record], str]:
    def text(record: Record) -> str:
        pair = record["result"]["ratios"][name]
        return f"{number(pair['emulator'], '.3f')} / {number(pair['hardware'], '.3f')}"

    return text


def _counts(name: str) -> Callable[[Record], str]:
    return lambda record: f"{record['result']['emulator'][name]} / {record['result']['hardware'][name]}"


COUNTERS_PAGE: tuple[Column, ...] = (
    ("rung", _rung),
    ("sectors per load", _pair("sectors_per_load")),
    ("sectors per store", _pair("sectors_per_store")),
    ("wavefronts per shared load", _pair("wavefronts_per_shared_load")),
    ("wavefronts of shared loads", _counts("shared_load_wavefronts")),
    ("wavefronts of shared stores", _counts("shared_store_wavefronts")),
)


STALLS_PAGE: tuple[Column, ...] = (
    ("rung", _rung),
    ("issue slots used", _share("issue_active", 0)),
    ("FMA pipe", _share("fma_pipe", 0)),
    ("shared data pipe", _share("shared_pipe", 0)),
    *((name.replace("_", " "), stall(name)) for name in
      ("long_scoreboard", "short_scoreboard", "mio_throttle", "barrier", "dispatch_stall", "not_selected")),
)  # fmt: skip
LADDER16_PAGE: tuple[Column, ...] = tuple(
    ("of bf16 peak" if name == "of FFMA peak" else name, cell) for name, cell in LADDER_PAGE
)
STALLS16_PAGE: tuple[Column, ...] = (
    ("rung", _rung),
    ("cycles per product", _result("cycles_per_product", ".1f")),
    ("issue slots used", _share("issue_active", 0)),
    ("shared data pipe", _share("shared_pipe", 0)),
    *((name.replace("_", " "), stall(name)) for name in
      ("long_scoreboard", "short_scoreboard", "mio_throttle", "barrier", "math_pipe_throttle")),
)  # fmt: skip


def _mebibytes(record: Record) -> str:
    """Return what a call of ours holds at most, and one of cuDNN's."""
    held = [record["result"].get(name) for name in ("held_bytes", "held_bytes_cudnn")]
    return ", ".join("-" if one is None else f"{one >> 20}" for one in held)


BACKWARD_PAGE: tuple[Column, ...] = (
    *attention.SIZES,
    ("same bits", lambda record: "yes" if record["case"]["deterministic"] else "no"),
    ("MiB held, cuDNN's", _mebibytes),
)
PEERS_PAGE: tuple[Column, ...] = (SIZES_PAGE[0], SIZES_PAGE[1], ("who", _rung), *SIZES_PAGE[2:])
TILES_PAGE: tuple[Column, ...] = (
    *SIZES_PAGE[:2],
    ("rung", _rung),
    ("config", _config),
    ("blocks per SM", lambda record: str(record["case"]["min_blocks"])),
    ("ms", _milliseconds),
    *SIZES_PAGE[-2:],
)
TUNING_TIME_PAGE: tuple[Column, ...] = (
    ("type", lambda record: str(record["case"]["dtype"])),
    ("m x n x k", lambda record: "{m} x {n} x {k}".format(**record["case"])),
    ("candidates", _result("candidates", "d")),
    ("cores", _result("cores", "d")),
    ("s from cold", _result("seconds", ".1f")),
)
HELDOUT_PAGE: tuple[Column, ...] = (
    ("type", lambda record: str(record["case"]["dtype"])),
    ("shapes held out", _result("shapes", "d")),
    ("classes in the table", _result("classes", "d")),
    ("geometric mean loss", _share("mean_loss")),
    ("median", _share("median_loss")),
    ("90th percentile", _share("p90_loss")),
    ("largest", _share("largest_loss", 0)),
    ("fastest chosen", _result("fastest", "d")),
)
MODEL_PAGE: tuple[Column, ...] = (
    ("kind", lambda record: str(record["case"]["kind"])),
    ("chosen by", lambda record: str(record["case"]["chosen_by"])),
    ("problems", _result("cases", "d")),
    ("within 5%", _share("within_5", 0)),
    ("within 10%", _share("within_10", 0)),
    ("median", _result("median", ".3f")),
    ("90th percentile", _result("p90", ".3f")),
    ("geometric mean", _result("mean", ".3f")),
)
EMULATOR_PAGE: tuple[Column, ...] = (
    ("kernel", lambda record: str(record["case"]["row"])),
    ("thread instructions", _result("instructions", ",d")),
    ("millions per second", _result("rate", ".1f")),
    ("processor seconds", _result("seconds", ".2f")),
    ("in NumPy alone", _result("numpy_seconds", ".2f")),
    ("NumPy's time / this", _result("ratio", ".2f")),
)
CORPUS_PAGE: tuple[Column, ...] = (
    ("project", lambda record: f"{record['case']['project']} at {record['case']['commit'][:7]}"),
    ("kernel", lambda record: f"`{record['case']['row']}`"),
    ("faults", lambda record: ", ".join(f"`{kind}`" for kind in record["result"]["found"]) or "none"),
    ("at", lambda record: ", ".join(record["result"]["places"]) or DASH),
    ("result", lambda record: "wrong" if record["result"]["wrong"] else "right"),
    ("thread instructions", _result("instructions", ",d")),
)
LATENCY_PAGE: tuple[Column, ...] = (
    ("values in", lambda record: str(record["case"]["values"])),
    ("cycles", _result("cycles", ".1f")),
)
Page = tuple[Column, ...] | Callable[[Sequence[Record], Sequence[str]], list[str]]
PAGES: dict[str, Page] = {
    "sanitizer": sanitizer.sentences,
    "latency": LATENCY_PAGE,
    "fp32-ladder": LADDER_PAGE,
    "fp32-ladder-sizes": by_size.shares,
    "bf16-ladder-sizes": by_size.shares,
    "fp16-ladder-sizes": by_size.shares,
    "fp32-f08-threads": LADDER_PAGE,
    "fp32-cp-async": LADDER_PAGE,
    "fp32-wide-loads": LADDER_PAGE,
    "fp32-f12": SIZES_PAGE,
    "host-calls": HOST_CALLS_PAGE,
    "fp32-sums": SUMS_PAGE,
    "cold-start": COLD_PAGE,
    "epilogue": EPILOGUE_PAGE,
    "counters": COUNTERS_PAGE,
    "fp32-stalls": STALLS_PAGE,
    "bf16-ladder": LADDER16_PAGE,
    "bf16-wmma-shapes": LADDER16_PAGE,
    "bf16-wmma-buffers": LADDER16_PAGE,
    "bf16-simt": LADDER16_PAGE,
    "bf16-stalls": STALLS16_PAGE,
    "bf16-counters": COUNTERS_PAGE,
    "bf16-wgmma-tiles": TILES_PAGE,
    "fp32-f12-sweep": landscapes.page(),
    "bf16-h17-sweep": landscapes.page(landscapes.tile),
    "bf16-products": PRODUCTS_PAGE,
    "bf16-cubes": PRODUCTS_PAGE,
    "hopper-products": beside_torch.summary,
    "hopper-products-heldout": beside_torch.summary,
    "hopper-products-others": beside_torch.summary,
    "hopper-products-training": beside_torch.summary,
    "hopper-cublaslt": beside_torch.summary,
    "hopper-power": beside_torch.POWER,
    "hopper-one-row": beside_torch.COPIES,
    "fp32-products": PRODUCTS_PAGE,
    "fp32-spread": SPREAD_PAGE,
    "attention-ladder": attention.LADDER,
    "attention-causal": attention.LADDER,
    "attention-a24-sweep": landscapes.page(landscapes.attention_tile),
    "attention-buffer": attention.LADDER,
    "attention-swizzle": attention.LADDER,
    "attention-hopper": attention.SIZES,
    "attention-sizes": attention.SIZES,
    "attention-planned": attention.SIZES,
    "attention-windows": attention.SIZES,
    "attention-backward": BACKWARD_PAGE,
    "attention-backward-ampere": BACKWARD_PAGE,
    "attention-decode": attention.DECODE,
    "attention-packed": attention.PACKED,
    "attention-stalls": attention.STALLS,
    "attention-hopper-stalls": (attention.SIZES[0], *attention.STALLS),
    "profile": profiles.PAGE,
    "bf16-peers": PEERS_PAGE,
    "fp32-peers": PEERS_PAGE,
    "torch-blocks": blocks.TIMES,
    "llama-training": blocks.TIMES,
    "grouped": grouped.TIMES,
    "fp8": fp8.TIMES,
    "tune-heldout": HELDOUT_PAGE,
    "model-fit": MODEL_PAGE,
    "tune-cold": TUNING_TIME_PAGE,
    "compiled": compiled.BUILT,
    "compiled-hopper": compiled.BUILT,
    "emulator": EMULATOR_PAGE,
    "corpus": CORPUS_PAGE,
    "census": census.projects,
    "strangers": census.judged,
    "precision": precision.TIMES,
    "precision-accuracy": precision.ACCURACY,
    "precision-ranges": precision.RANGES,
    "precision-sizes": precision.SIZES,
}
"""Which columns a suite's records have in README and docs."""


def terminal_tables(columns: Page | Sequence[Column], records: Sequence[Record], width: int) -> list[Any]:
    """The records as rich Tables that fit `width` characters (see report.terminal), and lines of text."""
    if callable(columns):
        return _terminal_lines(columns(records, [""] * len(records)), width)
    rows = [[cell(record) for _, cell in columns] for record in records]
    return terminal.tables([name for name, _ in columns], rows, width, wrong=list(map(went_wrong, records)))


def _terminal_lines(lines: Sequence[str], width: int) -> list[Any]:
    """Markdown's tables as rich Tables, and its other lines."""
    from rich.text import Text

    made: list[Any] = []
    for is_table, group in groupby(filter(None, lines), lambda line: line.startswith("|")):
        plain = [line.replace("**", "") for line in group]
        if is_table:
            names, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in plain)
            made += terminal.tables(names, rows, width, text={*terminal.TEXT, names[0], "the fastest of them"})
        else:
            made += map(Text, plain)
    return made


def markdown(columns: Page, records: Sequence[Record], stale: Sequence[str] = ()) -> str:
    """A Markdown table, a line that says where its figures come from, and which of them may no longer hold.

    `stale`: why each record may no longer hold, "" where it does (lab.fingerprint.why_stale).
    """
    stale = stale or [""] * len(records)
    some = any(stale) and not all(stale)
    if callable(columns):
        lines = columns(records, stale)
    else:
        lines = ["| " + " | ".join(name for name, _ in columns) + " |", "|" + "---|" * len(columns)]
        for record, why in zip(records, stale, strict=True):
            first, *others = (cell(record) for _, cell in columns)
            lines.append("| " + " | ".join([f"{first} {DAGGER}" if some and why else first, *others]) + " |")
    origin = records[0]["provenance"]
    words = [f"Measured on one {origin['gpu']}"] if origin.get("gpu") else []
    words += [f"driver {origin['driver']}"] if origin.get("driver") else []
    words += [f"NVRTC {origin['nvrtc']}"] if origin.get("nvrtc") else []
    words += [str(origin["reference_version"])] if origin.get("reference_version") else []
    lines += ["", "*" + ", ".join(words) + f", {days(records)}.*"]
    return "\n".join(lines + _told(stale))


def days(records: Sequence[Record]) -> str:
    """The day on which records were measured, or the first and the last."""
    found = sorted({str(record["provenance"]["date"])[:10] for record in records})
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _told(stale: Sequence[str]) -> list[str]:
    """The lines that say which figures may no longer hold, and why."""
    reasons = list(dict.fromkeys(filter(None, stale)))
    if not reasons:
        return []
    whole = "" if all(stale) else "The rows so marked are "
    text = f"{DAGGER} {whole}{'stale' if whole else 'Stale'}: {'; '.join(reasons)}."
    again = "" if reasons == [NO_SUITE] else " `tilewright bench --stale --run` measures again."
    return ["", f"*{text}{again}*"]
