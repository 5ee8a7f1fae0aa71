"""Every attention rung on the emulator at its tuned tiles: d_head 128, 1, 17, 128 and 200 queries and keys, with and
without the causal mask, outputs and LSE whole, guard bands intact.

    python tests/emu/every_attention_rung.py
    python tests/emu/every_attention_rung.py a03 a17

Prints a line a rung and the time of all; exits with 1 if a result is wrong.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from attention_runs import run_attention

from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import ATTENTION_RUNGS

LENGTHS = (1, 17, 128, 200)


def run(number: int) -> tuple[str, list[str], float]:
    """The rung's id, what was wrong with it, and the seconds it took."""
    rung, start, wrong = ATTENTION_RUNGS[number], time.perf_counter(), []
    for seq in LENGTHS:
        for is_causal in (False, True):
            problem = AttentionProblem.dense(1, 1, seq, seq, 128, is_causal=is_causal, with_lse=True)
            verdict, _ = run_attention(rung, problem)
            if not verdict.ok:
                wrong.append(f"{seq}{' causal' if is_causal else ''}: {verdict.reason}")
    return rung.id, wrong, time.perf_counter() - start


def main(chosen: list[str]) -> int:
    """`chosen`: numbers of rungs; all of them if empty. A process a core."""
    numbers = [n for n, rung in enumerate(ATTENTION_RUNGS) if not chosen or rung.id.split("_")[0] in chosen]
    right, begun = True, time.perf_counter()
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, wrong, seconds in pool.map(run, numbers):
            right = right and not wrong
            print(f"{name}: {'; '.join(wrong) or 'right'}, {seconds:.1f} s", flush=True)
    print(f"all: {time.perf_counter() - begun:.0f} s", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
