"""What compute-sanitizer said of every rung, as it was recorded on a GPU."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from tilewright.gemm.rungs.simt import GEMM_RUNGS
from tilewright.lab.record import find_records

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_memcheck_and_racecheck_ran_over_every_rung_and_found_nothing():
    records = find_records(RESULTS, "sanitizer")
    ran = {(record["case"]["rung"], record["case"]["tool"]) for record in records}
    assert ran == set(product((rung.id.split("_")[0] for rung in GEMM_RUNGS), ("memcheck", "racecheck")))
    assert all(record["result"] == {"right": True, "errors": 0} for record in records)
