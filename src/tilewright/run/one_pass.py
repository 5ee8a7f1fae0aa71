"""A call of one launch that no table plans: a pass over arrays of one kind, with dense results of one shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..arrays.dlpack import dense_strides
from ..arrays.view import Operand
from ..gpus import Gpu
from .program import Program
from .runner import Output, Unchecked


@dataclass(frozen=True)
class OnePass(Unchecked):
    """A checked call. Results lie by rows, in the type of the first array."""

    what: str
    given: tuple[Operand, ...]
    """Named as the program's bases."""
    results: tuple[str, ...]
    """The bases of the results."""
    launches: Program

    @property
    def first(self) -> Operand:
        return self.given[0]

    @property
    def others(self) -> tuple[Operand, ...]:
        return self.given[1:]

    @property
    def inputs(self) -> tuple[tuple[str, Operand], ...]:
        return tuple((one.name, one) for one in self.given)

    @property
    def outputs(self) -> tuple[Output, ...]:
        x = self.first
        layout = Operand("out", x.kind, 0, x.shape, dense_strides(x.shape), x.dtype, x.device, stream=x.stream)
        return tuple(Output(base, layout, x.shape) for base in self.results)

    @property
    def scalars(self) -> Mapping[str, float]:
        return {}

    def program(self, gpu: Gpu) -> Program | None:
        """The launch; None for empty arrays."""
        return self.launches if self.first.size else None
