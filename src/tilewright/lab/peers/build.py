"""Many of CUTLASS's kernels at once: NVRTC compiles one at a time in a process, so others fill the cache on disk first.

Each is told what to compile on its standard input: python -m tilewright.lab.peers.build
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence

from ...gemm.config import GemmConfig
from ...gemm.problem import GemmProblem
from ...gpus import Arch

FEWEST = 4
"""Kernels from which on other processes are worth their start."""


def compile_ahead(problem: GemmProblem, configs: Sequence[GemmConfig], arch: Arch) -> None:
    """Compile CUTLASS's kernels into the cache, on as many cores as there are. What fails is left to the caller."""
    workers = min(os.cpu_count() or 1, len(configs))
    if len(configs) < FEWEST or workers < 2:
        return
    running = []
    for number in range(workers):
        process = subprocess.Popen(
            [sys.executable, "-m", "tilewright.lab.peers.build_worker"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps((problem, tuple(configs[number::workers]), arch)))
        process.stdin.close()
        running.append(process)
    for process in running:
        process.wait()
