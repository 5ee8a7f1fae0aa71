"""cuBLAS's own choice: what the reference of all pairs is, as a row of its own. Its ratio to itself shows the noise."""

from __future__ import annotations

from ...errors import ConfigRejected, MissingDependency, install
from ..ground import Ground
from ..ladder import values_of
from .entrant import Contender, Entrant, Peer


def _enter(ground: Ground) -> Contender:
    library, problem = ground.library, ground.problem
    if library is None:
        raise MissingDependency(f"no library here brings cuBLAS. Install one with: {install('bench')}")
    if (prepared := library.for_values(values_of(problem))) is None:
        raise ConfigRejected(f"{library.name} multiplies {', '.join(library.dtypes)} here, not {values_of(problem)}.")
    own = Entrant("its own choice", lambda s: prepared(s.a, s.b, s.out, problem.layout))
    return Contender(library.version, (own,))


CUBLAS = Peer("cublas", "the kernel that cuBLAS's heuristics choose", _enter)
