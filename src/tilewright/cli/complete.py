"""Options and arguments whose words a shell completes: GPUs, kernels, suites, exercises. Names load when asked for."""

from __future__ import annotations

from typing import Any

import typer


def gpu_option(words: str) -> Any:
    """The option of a GPU; `words`: its help."""
    return typer.Option(help=words, autocompletion=known_gpus)


def kernel_argument(words: str, metavar: str = "RUNG|FILE") -> Any:
    """The argument of a kernel, or of several."""
    return typer.Argument(help=words, metavar=metavar, autocompletion=known_rungs)


def kernel_option(words: str) -> Any:
    """The option of another kernel."""
    return typer.Option(help=words, metavar="RUNG|FILE", autocompletion=known_rungs)


def known_gpus() -> list[str]:
    """The boards, without the blanks that a shell would split at."""
    from ..gpus import GPUS

    return [name.replace(" ", "") for name in GPUS]


def known_rungs() -> list[str]:
    """The numbers of all rungs and experiments; of files a shell knows the names."""
    from ..attn.rungs import EVERY_RUNG
    from ..gemm.rungs import GEMM_RUNGS
    from ..lab.subject import EVERY_EXPERIMENT

    return [rung.id.split("_")[0] for rung in (*GEMM_RUNGS, *EVERY_RUNG, *EVERY_EXPERIMENT)]


def known_suites() -> list[str]:
    """The suites of records."""
    from ..lab.suite import suites

    return list(suites())


def known_starters() -> list[str]:
    """The kernels to start from."""
    from ..lab.starters import STARTERS

    return list(STARTERS)
