"""A program: the launches that carry out a plan, over named operands and borrowed memory.

A stage is a kernel, a grid and a parameter template: the parameters' bytes, and the places in them where addresses and
scalars go. Families make programs (gemm/stages.py, attn/stages.py); run/runner.py fills them in and launches them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..gpus import Arch
from ..jit import CompiledKernel, Launch
from ..jit.params import WORK, Place, Template

SLOT = 256
"""Each part of a workspace starts at a multiple of this many bytes."""


class Kernel(Protocol):
    """The code that a stage launches: a rung with its config, or a helper."""

    def compile(self, problem: Any, arch: Arch) -> CompiledKernel:
        """Raises ConfigRejected with the reason, CompileError with the log."""
        ...

    def shape(self, problem: Any) -> Launch:
        """The grid, block and shared memory of a launch; its parameters are empty."""
        ...


@dataclass(frozen=True)
class Stage:
    """One launch of a program."""

    name: str
    """ "pack a", "split b", "product", "sum of parts", "copy q", "attention" ..."""
    kernel: Kernel
    problem: Any
    """What its parameters describe."""
    shape: Launch
    """Its grid, block and shared memory; the parameters are the template's."""
    params: Template

    def compile(self, arch: Arch) -> CompiledKernel:
        """Raises ConfigRejected with the reason, CompileError with the log."""
        return self.kernel.compile(self.problem, arch)

    def launch(self, bases: Mapping[str, int], scalars: Mapping[str, float]) -> Launch:
        """The launch with each base at its address."""
        return replace(self.shape, params=self.params.fill(bases, scalars), maps=self.params.maps_at(bases))


@dataclass(frozen=True)
class Run:
    """The stages once, for a part of the batch."""

    shapes: tuple[Launch, ...]
    """The shape of each stage."""
    offsets: tuple[tuple[str, int], ...] = ()
    """How far operands lie from their bases, in bytes, where it is not 0."""
    count: int = 1
    """Entries of the batch."""


@dataclass(frozen=True)
class Program:
    """The launches of one call, in order: every run launches every stage."""

    stages: tuple[Stage, ...]
    workspace_bytes: int = 0
    """What the stages pass on to one another; 0: nothing is borrowed."""
    main: int = 0
    """The number of the stage that does the work; the others prepare and finish."""
    runs: tuple[Run, ...] = ()
    """None stands for one run of the stages as they are."""

    @property
    def product(self) -> Stage:
        """The stage that does the work."""
        return self.stages[self.main]

    def each_run(self) -> tuple[Run, ...]:
        return self.runs or (Run(tuple(stage.shape for stage in self.stages)),)


class Workspace:
    """Memory that a program borrows, handed out in parts."""

    def __init__(self) -> None:
        self.bytes = 0

    def room(self, size: int) -> Place:
        """The place of `size` more bytes."""
        place = Place(WORK, self.bytes)
        self.bytes += -(-size // SLOT) * SLOT
        return place
