"""The hashes of what a record measured: of the kernels it may have run, and of the suite's definition.

A kernel's hash covers every file of device code that its rung includes, with what runs around it (packing, splitting,
sums of parts), the constants of its default config, and an epilogue's generated code. Comments and the way that lines
are broken do not count: they change nothing that runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from ..arrays.dtypes import FP8
from ..attn.backward_config import walks_of
from ..attn.backward_kernels import constants_of
from ..attn.backward_problem import BackwardProblem
from ..attn.backward_rung import BackwardRung
from ..attn.backward_rungs import BACKWARD_RUNGS
from ..attn.problem import AttentionProblem
from ..attn.rung import AttentionRung
from ..attn.rungs import ATTENTION_RUNGS, EVERY_RUNG
from ..attn.split import SplitRung
from ..errors import InvalidOperand
from ..gemm.fused import fused_headers
from ..gemm.gated import text_of as gate_text
from ..gemm.problem import GemmProblem
from ..gemm.rung import Rung
from ..gemm.rungs import GEMM_RUNGS, rungs_beside, rungs_for
from ..gpus import find_gpu
from ..grouped.rungs import GROUPED_RUNGS
from ..jit.source import CUDA_ROOT, gather
from ..plan.estimate import FITTED
from ..tuning.fused import with_epilogue
from .kinds import KINDS
from .subject import EVERY_EXPERIMENT

AnyRung = Rung | AttentionRung
HashedRung = AnyRung | BackwardRung
_BLANKS = re.compile(r"\s*([^\w\s])\s*|\s+")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_AROUND_PRODUCTS = ("gemm/pack.cuh", "gemm/sum_parts.cuh")
_AROUND_ATTENTION = ("copy/rows.cuh",)
_AROUND_GRADIENTS = (
    *(f"attention/backward_{name}.cuh" for name in ("rows", "finish", "parts")),
    *_AROUND_ATTENTION,
)
_PEERS = ("peers/cutlass.cuh",)
_OF_OTHERS = {"thread_m": 1, "thread_n": 1, "subtiles_m": 1, "subtiles_n": 1, "cache_all": False}
"""Constants of other families, with which every product was once compiled: the hashes of records hold them."""


def _files(includes: Iterable[str]) -> Iterator[str]:
    for include in includes:
        for name, text in gather(f'#include "{include}"\n', [CUDA_ROOT]):
            yield f"{name}\0{_BLANKS.sub(lambda found: found[1] or ' ', _COMMENT.sub(' ', text)).strip()}"


def _parts(rung: HashedRung) -> Iterator[str]:
    if isinstance(rung, BackwardRung):
        yield from _files((*(f"attention/{name}" for name in rung.files), *_AROUND_GRADIENTS))
        for tiles in rung.defaults:
            forward = AttentionProblem.dense(1, 1, 4096, 4096, tiles.d_head)
            of_grad = BackwardProblem(forward, forward.q, forward.q, forward.k, forward.v, (4096, 4096, 1))
            for walk in walks_of(tiles):
                yield f"{tiles}\0{sorted(constants_of(of_grad, rung, walk).items())}"
        return
    if isinstance(rung, AttentionRung):
        merge = ("attention/merge.cuh",) if isinstance(rung, SplitRung) else ()
        yield from _files((rung.include, *merge, *_AROUND_ATTENTION))
        for config in rung.defaults:
            problem = AttentionProblem.dense(1, 1, 4096, 4096, config.d_head)
            yield f"{config}\0{sorted(rung.constants(problem, config).items())}"
        return
    yield from _files((rung.include, *_AROUND_PRODUCTS, *_prepares(rung)))
    product = GemmProblem.dense(4096, 4096, 4096, dtype=rung.dtypes[0], precision=rung.precision)
    yield f"{rung.default}\0{sorted((_OF_OTHERS | rung.constants(product, rung.default)).items())}"
    fused = with_epilogue(product, frozenset({"bias", "residual"}), "silu")
    yield from (f"{name}\0{text}" for name, text in sorted(fused_headers(fused).items()))


def _prepares(rung: Rung) -> tuple[str, ...]:
    """Kernels that prepare the operands of some rungs."""
    if rung.halves:
        return ("gemm/halve.cuh",)
    return ("gemm/split.cuh",) if rung.splits else ("gemm/turn.cuh",) if rung.dtypes == FP8 else ()


def _of_block(block: str) -> Iterator[str]:
    """What a block runs besides the kernels of rungs: what generated epilogues include, and Llama's own passes."""
    yield from _files(("tile/fused.cuh", "tile/fused_math.cuh"))
    if block == "llama":
        yield from _files(("gemm/gated.cuh", "attention/rotary.cuh"))
        yield from (gate_text("silu", True, backward) for backward in (False, True))


@lru_cache(maxsize=256)
def _digest(rung: HashedRung) -> str:
    return hashlib.sha256("\0".join(_parts(rung)).encode()).hexdigest()


def kernel_hash(rungs: Iterable[HashedRung], more: Iterable[str] = ()) -> str:
    """A short hash of the device code of rungs, and of `more`; of CUTLASS's kernel where there are no rungs."""
    known = sorted(rungs, key=lambda rung: rung.id)
    told = [*(_digest(rung) for rung in known), *more] or list(_files(_PEERS))
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:12]


def measured_hash(case: dict[str, Any]) -> str:
    """A short hash of what a case measured: its kernels, or the model of time and the tables that judge it; "" where no
    code of this package's was compiled for a GPU: other libraries, other projects' files, the emulator's own rows."""
    if not _is_of_the_model(case):
        rungs = rungs_of(case)
        more = _of_block(case["block"]) if "block" in case else ()
        return kernel_hash(rungs, more) if rungs or str(case.get("peer")).startswith("cutlass") else ""
    files = (FITTED, *sorted(FITTED.parent.glob("shipped/*.json")))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _is_of_the_model(case: dict[str, Any]) -> bool:
    return "chosen_by" in case


def suite_hash(suite: dict[str, Any]) -> str:
    """A short hash of a suite's definition."""
    return hashlib.sha256(json.dumps(suite, sort_keys=True).encode()).hexdigest()[:12]


def rungs_of(case: dict[str, Any]) -> tuple[HashedRung, ...]:
    """The rungs that a record's case may have run: its own, none for a peer, else all of its type and precision.

    Random shapes, which a case with a seed has, may be so thin that they run the rungs of no ladder too.
    """
    name = str(case.get("rung", ""))
    every: tuple[HashedRung, ...] = (
        *GEMM_RUNGS, *GROUPED_RUNGS, *EVERY_RUNG, *BACKWARD_RUNGS, *EVERY_EXPERIMENT,
    )  # fmt: skip
    if own := tuple(rung for rung in every if name in (rung.id, rung.id.split("_")[0])):
        return own
    if "peer" in case or "row" in case:  # rows of the emulator run kernels of their own
        return ()
    if "d_head" in case:
        return ATTENTION_RUNGS
    wanted = case.get("dtype", "f32"), case.get("precision", "ieee")
    thin = rungs_beside(*wanted) if "seed" in case else ()
    attends: tuple[HashedRung, ...] = (*EVERY_RUNG, *BACKWARD_RUNGS) if case.get("attention") else ()
    return (*rungs_for(*wanted), *thin, *attends) or GEMM_RUNGS


def case_hash(suite: dict[str, Any], case: dict[str, Any]) -> str:
    """A short hash of one case of a suite, with all that the suite says besides its other cases."""
    return suite_hash(suite | {"cases": [case]})


def stamp(
    records: Iterable[dict[str, Any]], suite: dict[str, Any], seconds: float, case: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The records of a run of `suite`, or of one case of it, with what it took and the hashes of what they measured."""
    of_case = {} if case is None else {"case": case_hash(suite, case)}
    hashes = {"suite": suite_hash(suite), "run_seconds": round(seconds, 1)} | of_case
    return [
        record | {"provenance": record["provenance"] | {"kernels": measured_hash(record["case"])} | hashes}
        for record in records
    ]


UNKNOWN = "made before records carried hashes"
CHANGED = "its kernels have changed since"
REPLANNED = "its plan has changed since"
REFITTED = "the table or the model's constants have changed since"
REDEFINED = "its suite has changed since"
NO_SUITE = "no suite makes these records, so they are not measured again"


def why_stale(record: dict[str, Any], suite: dict[str, Any] | None) -> str:
    """Why a record may no longer hold, in a few words; "" where its kernels, its plan and its suite are the same."""
    origin = record["provenance"]
    if suite is None:
        return NO_SUITE
    if "kernels" not in origin or "suite" not in origin:
        return UNKNOWN
    if (now := measured_hash(record["case"])) and origin["kernels"] != now:
        return REFITTED if _is_of_the_model(record["case"]) else CHANGED
    named = _named_cases(json.dumps(suite))
    case = named.get(origin.get("case", ""))
    if case is None:
        return "" if origin["suite"] == suite_hash(suite) else REDEFINED
    return REPLANNED if _is_replanned(record, KINDS[suite["kind"]].planned, case) else ""


@lru_cache(maxsize=64)
def _named_cases(suite: str) -> dict[str, dict[str, Any]]:
    read = json.loads(suite)
    return {case_hash(read, case): case for case in read["cases"]}


def _is_replanned(record: dict[str, Any], planned: Any, case: dict[str, Any]) -> bool:
    """Return whether a call would now run another kernel or config than was measured, on the same GPU."""
    if planned is None or "rung" not in record["case"]:
        return False
    try:
        plan = planned(case, find_gpu(record["provenance"]["gpu"]))
    except InvalidOperand:  # a GPU whose figures nobody listed
        return False
    ran = record["case"]
    return plan is not None and (ran["rung"], ran["config_text"]) != (plan.rung.id, str(plan.config))
