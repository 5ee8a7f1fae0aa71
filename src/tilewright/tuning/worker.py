"""A process that compiles: jobs come pickled on standard input, answers go pickled to standard output.

Own processes, not multiprocessing's: those import the caller's script anew, which a script without a `__main__` guard
does not survive. Compiled kernels land in the kernel cache, and in the answer.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from ..errors import CompileError, TilewrightError
from ..jit.compile import compile_rung


def answer(job: Any) -> Any:
    """A CompiledKernel, or ("compile", the first line of why not)."""
    try:
        return compile_rung(*job)
    except CompileError as error:
        return "compile", first_line(str(error), error.log)
    except TilewrightError as error:
        return "compile", first_line(str(error), "")


def first_line(message: str, log: str) -> str:
    """The first line of a log that names an error, else of the message."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower()]
    return (named or lines or message.strip().splitlines() or ["no reason was given"])[0][:300]


def main() -> None:
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may come between the answers
    while True:
        try:
            job = pickle.load(jobs)
        except (EOFError, KeyboardInterrupt):
            return
        pickle.dump(answer(job), answers)
        answers.flush()


if __name__ == "__main__":
    main()
