"""Programs ready to run: their kernels compiled, on a GPU loaded and shaped. Found again without rendering a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..gpus import Arch
from ..jit import CompiledKernel, Launch, limits
from ..jit.compile import circumstances
from ..jit.limits import Recent
from .program import Program

if TYPE_CHECKING:
    from ..jit.loaded import Prepared


class Ready:
    """A program with its kernels."""

    def __init__(self, program: Program, arch: Arch) -> None:
        """Raises ConfigRejected and CompileError."""
        self.program = program
        self.runs = program.each_run()
        self.kernels = tuple(stage.compile(arch) for stage in program.stages)
        self._prepared: dict[int, tuple[tuple[Prepared, ...], ...]] = {}
        """By GPU: for each run its stages. Runs of one shape share theirs."""

    def launches(
        self, bases: Mapping[str, int], scalars: Mapping[str, float]
    ) -> Iterator[tuple[CompiledKernel, Launch]]:
        """Each launch in order, its parameters filled in."""
        for run in self.runs:
            at = moved(bases, run.offsets)
            for stage, shape, kernel in zip(self.program.stages, run.shapes, self.kernels, strict=True):
                yield kernel, replace(shape, params=stage.params.fill(at, scalars), maps=stage.params.maps_at(at))

    def start(self, ordinal: int, stream: int, bases: Mapping[str, int], scalars: Mapping[str, float]) -> None:
        """Launch on a GPU whose context is current."""
        for run, steps in zip(self.runs, self.prepared(ordinal), strict=True):
            at = moved(bases, run.offsets)
            for stage, step in zip(self.program.stages, steps, strict=True):
                step.launch(stage.params.fill(at, scalars), stream, stage.params.maps_at(at))

    def prepared(self, ordinal: int) -> tuple[tuple[Prepared, ...], ...]:
        """For each run its stages, loaded and shaped. The GPU's context must be current."""
        found = self._prepared.get(ordinal)
        if found is None:
            from ..jit.loaded import Prepared

            made = []
            known: dict[tuple[Launch, ...], tuple[Prepared, ...]] = {}
            for run in self.runs:
                if run.shapes not in known:
                    known[run.shapes] = tuple(
                        Prepared(kernel, replace(shape, params=stage.params.data), ordinal)
                        for stage, shape, kernel in zip(self.program.stages, run.shapes, self.kernels, strict=True)
                    )
                made.append(known[run.shapes])
            found = self._prepared[ordinal] = tuple(made)
        return found

    def has_run(self, ordinal: int) -> bool:
        return ordinal in self._prepared


def moved(bases: Mapping[str, int], offsets: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """The bases of a run."""
    if not offsets:
        return bases
    at = dict(bases)
    for base, offset in offsets:
        at[base] += offset
    return at


_Key = tuple[int, str, tuple[bool, str]]
_kept: Recent[_Key, Ready] = Recent(limits.programs)
"""By the program's identity (which holds while it is kept here), the target, and circumstances."""


def _key(program: Program, arch: Arch) -> _Key:
    return id(program), arch.name, circumstances()


def _known(key: _Key, program: Program) -> Ready | None:
    found = _kept.get(key)
    return found if found is not None and found.program is program else None  # else the identity of one that is gone


def ready(program: Program, arch: Arch) -> Ready:
    """The program with its kernels compiled. Raises ConfigRejected and CompileError."""
    key = _key(program, arch)
    found = _known(key, program)
    if found is None:
        found = Ready(program, arch)
        _kept.put(key, found)
    return found


def has_run(program: Program, arch: Arch, ordinal: int) -> bool:
    """Return whether a GPU has run the program: its kernels are compiled and loaded."""
    found = _known(_key(program, arch), program)
    return found is not None and found.has_run(ordinal)
