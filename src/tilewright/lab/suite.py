"""Suites: benchmark cases as data (benchmarks/*.json), run on a GPU into records.

Also a command for machines without the command line's packages: python -m tilewright.lab.suite SUITE --out DIR
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from ..attn.problem import AttentionProblem
from ..attn.rung import AttentionConfig
from ..errors import ConfigRejected, TilewrightError
from ..gemm.problem import GemmProblem
from ..gemm.rung import Rung
from ..gemm.rungs.simt import GEMM_RUNGS, find_rung, rungs_for
from .attention import AttentionStep, select_attention_rungs
from .ladder import Progress, Step, silent
from .peers import select_peers
from .record import went_wrong, who, write_json
from .select import select

KINDS = (
    "times", "counters", "stalls", "host", "products", "cold", "accuracy", "epilogue", "attention", "attention-stalls",
    "attention-host", "peers", "duels", "heldout", "tuning-time", "blocks",
)  # fmt: skip


def select_rungs(text: str | None, dtype: str, precision: str = "ieee") -> tuple[Rung, ...]:
    """Rungs of a dtype and precision by "f05..f09", "f05..", "f01,f12", or several of these; all for None.

    Raises ConfigRejected with the known ids.
    """
    known = rungs_for(dtype, precision)
    if not known:
        dtypes = sorted({d for rung in GEMM_RUNGS for d in rung.dtypes})
        told = "" if precision == "ieee" else f" and precision {precision!r}"
        raise ConfigRejected(f"there is no ladder for dtype {dtype!r}{told}. There is one for: {', '.join(dtypes)}.")

    def find(name: str) -> Rung:
        rung = find_rung(name)
        if rung not in known:
            raise ConfigRejected(
                f"{rung} does not multiply {dtype} with precision {precision!r}; it multiplies "
                f"{', '.join(rung.dtypes)} with precision {rung.precision!r}."
            )
        return rung

    return select(text, known, find)


SUITES = Path("benchmarks")
"""Where suites are looked for by name, below the working folder."""


def find_suite(name: str) -> Path:
    """The file of a suite by its name in benchmarks/, or by its path. Raises TilewrightError with the names there."""
    for path in (Path(name), SUITES / f"{name}.json"):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in SUITES.glob("*.json"))) or f"none: there is no {SUITES}/*.json here"
    raise TilewrightError(f"no suite {name!r}. Known by name: {known}. Or give a suite's file.")


def read_suite(path: Path) -> dict[str, Any]:
    """{"name", "kind", "cases"} of a suite's file. Raises TilewrightError naming what is wrong with it."""
    try:
        suite = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TilewrightError(f"{path} cannot be read as a suite: {error}") from error
    if not isinstance(suite, dict) or not {"name", "kind", "cases"} <= suite.keys() or suite["kind"] not in KINDS:
        raise TilewrightError(f'{path} is no suite: it needs "name", "cases", and a "kind" of {", ".join(KINDS)}.')
    if suite["kind"] == "duels" and "against" not in suite:
        raise TilewrightError(f'{path} is no suite: one of duels needs "against", names of peers.')
    if not re.fullmatch(r"[\w.-]+", suite["name"]):
        raise TilewrightError(f"{path}: the name {suite['name']!r} is no file name.")
    return suite


def steps_of(suite: dict[str, Any], gpu: Any) -> list[Step]:
    """The suite's cases: rungs with their defaults, or, for "planned" cases, what plan_for chooses on `gpu`."""
    from ..plan.plan import plan_for

    steps = []
    for case in suite["cases"]:
        dtype, precision = case.get("dtype", "f32"), case.get("precision", "ieee")
        problem = GemmProblem.dense(
            case["m"], case["n"], case["k"], layout=case.get("layout", "nn"), dtype=dtype, precision=precision
        )
        if case.get("planned"):
            plan = plan_for(problem, gpu)
            steps.append(Step(plan.rung, plan.config, problem))
        else:
            steps.extend(
                Step(rung, rung.default, problem) for rung in select_rungs(case.get("rungs"), dtype, precision)
            )
    return steps


def attention_steps(suite: dict[str, Any], gpu: Any) -> list[AttentionStep]:
    """The suite's attention cases: their rungs with the best config known, or with the case's own."""
    steps = []
    for case in suite["cases"]:
        problem = AttentionProblem.dense(
            case["batch"], case["heads"], case["seq"], case["seq"], case["d_head"],
            dtype=case.get("dtype", "bf16"), is_causal=case.get("causal", False),
        )  # fmt: skip
        for rung in select_attention_rungs(case.get("rungs")):
            config = AttentionConfig.parse(case["config"]) if "config" in case else rung.default(problem, gpu.arch)
            steps.append(AttentionStep(rung, config, problem))
    return steps


def run_suite(
    suite: dict[str, Any], out: Path, seconds: float = 1.0, say: Progress = silent
) -> tuple[Path, list[dict[str, Any]]]:
    """Run a suite on GPU 0 and write its records to `out`. Needs a GPU: DeviceError without one."""
    from ..jit.device import device

    gpu = device(0).gpu
    if suite["kind"] == "host":
        from .host import host_records

        records = host_records(suite["name"], suite["cases"], say)
    elif suite["kind"] == "cold":
        from .cold import cold_records

        records = cold_records(suite["name"], suite["cases"], say)
    elif suite["kind"] == "tuning-time":
        from .tuning_time import tuning_time_records

        records = tuning_time_records(suite["name"], suite["cases"], say)
    elif suite["kind"] == "heldout":
        from .heldout import heldout_records

        records = heldout_records(suite["name"], suite["cases"], seconds=seconds, say=say)
    elif suite["kind"] == "accuracy":
        from .accuracy import accuracy_records

        records = accuracy_records(suite["name"], suite["cases"], say=say)
    elif suite["kind"] == "products":
        from .products import product_records

        records = product_records(suite["name"], suite["cases"], seconds=seconds, say=say)
    elif suite["kind"] == "attention-host":
        from .attention_host import attention_host_records

        records = attention_host_records(suite["name"], suite["cases"], say)
    elif suite["kind"].startswith("attention"):
        from .attention_gpu import attention_stalls, climb_attention_on_gpu

        steps = attention_steps(suite, gpu)
        if suite["kind"] == "attention":
            records = climb_attention_on_gpu(steps, suite=suite["name"], seconds=seconds, say=say)
        else:
            records = [r | {"suite": suite["name"]} for r in attention_stalls(steps, gpu, say)]
    elif suite["kind"] == "epilogue":
        from .epilogues import epilogue_records

        records = epilogue_records(suite["name"], suite["cases"], seconds=seconds, say=say)
    elif suite["kind"] == "blocks":
        from .blocks import block_records

        records = block_records(suite["name"], suite["cases"], seconds=seconds, say=say)
    elif suite["kind"] == "counters":
        from .counters import compare

        records = []
        for number, step in enumerate(steps_of(suite, gpu)):
            say(number, step.rung.id)
            records.append(compare(step.rung, step.problem, gpu) | {"suite": suite["name"]})
    elif suite["kind"] == "stalls":
        from .counters import stall_records

        records = [r | {"suite": suite["name"]} for r in stall_records(steps_of(suite, gpu), gpu, say)]
    elif suite["kind"] == "duels":
        from .climb_gpu import duels_on_gpu

        against = select_peers(suite["against"])
        records = duels_on_gpu(steps_of(suite, gpu), against, suite=suite["name"], seconds=seconds, say=say)
    else:
        from .climb_gpu import climb_on_gpu

        peers = select_peers(suite.get("peers", "all")) if suite["kind"] == "peers" else ()
        records = climb_on_gpu(steps_of(suite, gpu), suite=suite["name"], seconds=seconds, say=say, peers=peers)
    path = out / f"{suite['name']}-{gpu.name.replace(' ', '-')}.json"
    write_json(path, records)
    return path, records


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run benchmark suites on a GPU and write their records.")
    parser.add_argument("suite", nargs="+", help="names of suites in benchmarks/, or files")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the records")
    parser.add_argument("--seconds", type=float, default=1.0, help="measured time a case")
    given = parser.parse_args(arguments)
    wrong = 0
    for name in given.suite:
        try:
            written, records = run_suite(
                read_suite(find_suite(name)), given.out, given.seconds,
                lambda _, text: print(f"  {text}", file=sys.stderr, flush=True),
            )  # fmt: skip
        except TilewrightError as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            return 2
        for record in records:
            case, result = record["case"], record["result"]
            figures = {k: round(v, 4) for k, v in result.items() if isinstance(v, float)}
            print(who(record), case.get("config_text", ""), case.get("m"), case.get("layout"), figures, flush=True)
            if result.get("right", False) is not True:
                print(f"  {result.get('reason')}", flush=True)
            wrong += went_wrong(record)
        print(f"{len(records)} records in {written}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
