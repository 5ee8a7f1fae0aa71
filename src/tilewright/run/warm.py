"""Calls that were made before: their programs, remembered under all that decides them.

What decides a call's kernels, grids and parameters is in one key: shapes, strides, the low bits of addresses, dtypes,
the GPU, options. What is left for a call is a look-up, the result's memory, writing addresses and scalars into the
parameters, and the launches. What does not fit takes the full path, which gives the same result or says why not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ..errors import DeviceError
from ..jit import limits
from ..plan.tables import generation

if TYPE_CHECKING:
    from ..jit.device import Prepared
    from ..jit.tensor_map import TensorMap
    from .ready import Ready

MISS = object()
"""What a warm path returns for a call that it does not know."""


class Step(NamedTuple):
    """One launch of a remembered call."""

    prepared: Prepared
    addresses: tuple[tuple[int, int, int], ...]
    """(which 8 bytes of the parameters, which of the call's bases, bytes from there)."""
    scalars: tuple[tuple[int, int], ...]
    """(which 4 bytes of the parameters, which of the call's scalars)."""
    maps: tuple[tuple[int, TensorMap, int, int], ...] = ()
    """(which byte of the parameters, what is there, of which of the call's bases, bytes from there)."""


@dataclass(frozen=True)
class Remembered:
    """The launches of a call on one GPU. Bases are a sequence of addresses, in the order given to `remembered`."""

    ordinal: int
    steps: tuple[Step, ...]
    workspace_bytes: int

    def start(self, bases: Sequence[int], scalars: Sequence[float], stream: int) -> bool:
        """Launch all steps. False where this thread has no context yet and nothing was launched: it has one now.

        Raises DeviceError for a launch that fails after another was made.
        """
        step = None
        try:
            for step in self.steps:
                prepared, addresses, places, maps = step
                with prepared.lock:  # what else is in its parameters is the same at every call
                    words = prepared.words
                    for word, base, offset in addresses:
                        words[word] = bases[base] + offset
                    if places:
                        floats = prepared.floats
                        for place, scalar in places:
                            floats[place] = scalars[scalar]
                    for at, description, base, offset in maps:
                        prepared.put_map(at, description, bases[base] + offset)
                    prepared.start(stream)
        except DeviceError:
            if step is not self.steps[0]:
                raise
            from ..jit.device_calls import enter_context

            enter_context(self.ordinal)
            return False
        return True


def remembered(ready: Ready, ordinal: int, bases: Sequence[str], scalars: Sequence[str] = ()) -> Remembered:
    """A program that has run, for calls that name its bases and scalars by their places in these orders."""
    steps = []
    for run, prepared in zip(ready.runs, ready.prepared(ordinal), strict=True):
        offsets = dict(run.offsets)
        for stage, step in zip(ready.program.stages, prepared, strict=True):
            addresses = tuple(
                (at // 8, bases.index(place.base), place.offset + offsets.get(place.base, 0))
                for at, place in stage.params.addresses
            )
            places = tuple((at // 4, scalars.index(name)) for at, name in stage.params.scalars)
            maps = tuple(
                (at, description, bases.index(place.base), place.offset + offsets.get(place.base, 0))
                for at, description, place in stage.params.maps
            )
            steps.append(Step(step, addresses, places, maps))
    return Remembered(ordinal, tuple(steps), ready.program.workspace_bytes)


T = TypeVar("T")


class Calls(Generic[T]):
    """Remembered calls of one function, the most recently used ones.

    Two generations of at most half of them each: what is found in the old one moves to the young one, and when that is
    full the old one is dropped. A hit in the young one costs a look-up.
    """

    def __init__(self) -> None:
        self._young: dict[Hashable, T] = {}
        self._old: dict[Hashable, T] = {}
        self._tables = -1
        """The tuning tables' generation: what they have changed may choose other kernels now."""

    def get(self, key: Hashable) -> T | None:
        if self._tables != generation():
            self.forget()
            return None
        found = self._young.get(key)
        if found is not None:
            return found
        found = self._old.pop(key, None)
        if found is not None:
            self.put(key, found)
        return found

    def put(self, key: Hashable, call: T) -> None:
        most = limits.warm_calls() // 2
        if len(self._young) >= most:
            self._old, self._young = self._young, {}
        if most:
            self._young[key] = call

    def forget(self) -> None:
        """Let every call take the full path once more."""
        self._young, self._old, self._tables = {}, {}, generation()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
