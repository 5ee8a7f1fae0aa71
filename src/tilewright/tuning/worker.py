"""A process that compiles one kernel: its job comes pickled on standard input, its answer goes to standard output.

The compiled kernel lands in the kernel cache, and in the answer.
"""

from __future__ import annotations

import contextlib
import os
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
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the compiler or a library prints goes elsewhere
    told = answer(pickle.load(sys.stdin.buffer))
    with contextlib.suppress(BrokenPipeError), answers:  # the process that asked may have been ended meanwhile
        pickle.dump(told, answers)


if __name__ == "__main__":
    main()
