"""A process that compiles CUTLASS kernels ahead (build.py): configs come on standard input."""

from __future__ import annotations

import pickle
import sys

from ...errors import TilewrightError
from .cutlass import rung_of


def main() -> None:
    problem, configs, arch = pickle.load(sys.stdin.buffer)
    for config in configs:
        try:
            rung_of(problem.dtype).compile(problem, config, arch)
        except TilewrightError:
            continue  # the caller compiles it again and hears why


if __name__ == "__main__":
    main()
