"""Calls that were made before: their programs, remembered under all that decides them.

What decides a call's kernels, grids and parameters is in one key: shapes, strides, the low bits of addresses, dtypes,
the GPU, options. What is left for a call is a look-up, the result's memory, writing addresses and scalars into the
parameters, and the launches. What does not fit takes the full path, which gives the same result or says why not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arrays.extents import byte_extent
from ..arrays.view import Operand
from ..errors import DeviceError
from ..jit.launch import current_executor
from ..jit.params import WORK
from . import libraries
from .calls import MISS, Calls
from .lately import Lately

if TYPE_CHECKING:
    from ..jit.loaded import Prepared
    from ..jit.tensor_map import TensorMap
    from .ready import Ready
    from .runner import Call, Ran


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
    start: Callable[[Sequence[int], Sequence[float], int], bool] = field(init=False, repr=False, compare=False)
    """start(bases, scalars, stream) launches all steps. False where this thread has no context yet and nothing was
    launched: it has one now. Raises DeviceError for a launch that fails after another was made."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", _starter(self.ordinal, self.steps))


def _starter(ordinal: int, steps: tuple[Step, ...]) -> Callable[[Sequence[int], Sequence[float], int], bool]:
    """Remembered.start as a function that has what it reads at hand.

    Who calls has often waited for the GPU or for another thread, and then the core's caches are cold. Each object that
    is looked into costs more than what is done with it: with methods and attributes instead, a step of attention took
    the host a tenth longer.
    """
    laid = [(one.prepared.lock, one.prepared.words, one.prepared.start, *one[1:], one) for one in steps]

    def start(bases: Sequence[int], scalars: Sequence[float], stream: int) -> bool:
        one = None
        try:
            for lock, words, begin, addresses, places, maps, one in laid:
                with lock:  # what else is in its parameters is the same at every call
                    for word, base, offset in addresses:
                        words[word] = bases[base] + offset
                    for place, scalar in places:
                        one.prepared.floats[place] = scalars[scalar]
                    for at, description, base, offset in maps:
                        placed = description, bases[base] + offset
                        if one.prepared.placed.get(at) != placed:
                            one.prepared.put_map(at, *placed)
                    begin(stream)
        except DeviceError:
            if one is not steps[0]:
                raise
            from ..jit.device_calls import enter_context

            enter_context(ordinal)
            return False
        return True

    return start


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


@dataclass(frozen=True)
class WarmCall:
    """The part of a call that is the same for every one with its key. Its launches' bases are the inputs, the
    workspace, the results."""

    library: libraries.Library
    launches: Remembered
    results: tuple[tuple[tuple[int, ...], tuple[int, ...], Any], ...]
    """Shape, strides in elements and dtype of each new result."""
    extents: tuple[tuple[int, int], ...]
    """Bytes from the address of each input, and of the first result, to its lowest byte and to its end."""
    run: Callable[..., Any] = field(init=False, repr=False, compare=False)
    """run(inputs, scalars=(), out=None), of addresses: the results, of which `out` is the first where it is given; MISS
    where this thread cannot launch at once, or `out` may overlap an input."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", _runner(self))


def _is_apart(extents: tuple[tuple[int, int], ...], out: int, inputs: Sequence[int]) -> bool:
    *own, (low, end) = extents
    return all(
        out + end <= address + first or address + last <= out + low
        for address, (first, last) in zip(inputs, own, strict=True)
    )


def _runner(call: WarmCall) -> Callable[..., Any]:
    """WarmCall.run, as `_starter`."""
    library, made, ordinal, start = call.library, call.results, call.launches.ordinal, call.launches.start
    nbytes, extents = call.launches.workspace_bytes, call.extents
    new, address, stream, device, duals = library.new, library.address, library.stream, library.device, library.duals

    def run(inputs: Sequence[int], scalars: Sequence[float] = (), out: Any = None) -> Any:
        if current_executor() is not None or device() != ordinal or duals._current_level >= 0:  # as library.is_plain
            return MISS  # another GPU's context is current, say: the full path changes it for the launch
        if out is None:
            results = [new(*one) for one in made]
        else:
            if not _is_apart(extents, address(out), inputs):
                return MISS  # the full path settles whether views overlap
            library.mark_written(out)
            results = [out, *[new(*one) for one in made[1:]]]
        held, work = library.scratch(nbytes) if nbytes else (None, 0)
        if not start((*inputs, work, *map(address, results)), scalars, stream(ordinal)):
            return MISS
        del held  # given back now: the library's pool keeps it apart until the stream has passed
        return results

    return run


class WarmCalls(Calls[WarmCall]):
    """Calls that are decided by how their arrays lie and by options. `given` are the inputs in the order of the
    family's Call, None for one that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self._lately: Lately[WarmCall] = Lately()

    def find(self, given: Sequence[Any], options: tuple[Any, ...], out: Any = None) -> WarmCall | None:
        """The remembered call of arrays that lie so, if there is one."""
        library = libraries.known.get(type(given[0]))
        try:
            return None if library is None else self.get(_key(library, given, options, out)[0])
        except (AttributeError, RuntimeError, TypeError):  # no memory of its own; an option that is a list
            return None

    def run(
        self, given: Sequence[Any], options: tuple[Any, ...], scalars: Sequence[float] = (), out: Any = None
    ) -> Any:
        """The results (as WarmCall.run), or MISS."""
        library = libraries.known.get(type(given[0]))
        if library is None:
            return MISS
        call = ways = None
        torchs = library if isinstance(library, libraries.TorchArrays) else None
        if torchs is not None and torchs.modes() and torchs.is_recorded():
            return MISS
        try:
            if torchs is not None:
                inputs: list[Any] = [one for one in given if one is not None]
                tensors = inputs if out is None else (*inputs, out)
                sizes = inputs[0].numel(), inputs[-1].numel()
                ways = self._lately.of((sizes, torchs.is_graded(), options, *map(type, given), out is None))
                call = ways.find(*tensors)
            if call is not None:
                inputs = [*map(library.address, inputs)]
            elif torchs is not None and torchs.is_recorded():  # by torch.jit.trace, say, under which guards say no
                return MISS
            else:
                key, inputs = _key(library, given, options, out)
                call = self.get(key)
                if ways is not None:
                    ways.note(call, *tensors)
        except (AttributeError, RuntimeError, TypeError):
            return MISS
        return MISS if call is None else call.run(inputs, scalars, out)

    def remember(
        self, call: Call, results: Sequence[Any], ran: Ran, given: Sequence[Any], options: tuple[Any, ...],
        out: Any = None,
    ) -> None:  # fmt: skip
        """Let later calls of this kind be found. `results`: of `call`, as the caller has them."""
        library = libraries.learn(call.first.kind)
        if library is None or type(given[0]) not in library.types:
            return
        try:
            key, _ = _key(library, given, options, out)
            hash(key)
        except (AttributeError, RuntimeError, TypeError):
            return
        inputs = [(name, view) for name, view in call.inputs if isinstance(view, Operand)]
        if len(inputs) != sum(one is not None for one in given):
            return
        outputs = call.outputs
        bases = (*(name for name, _ in inputs), WORK, *(one.base for one in outputs))
        launches = remembered(ran.ready, ran.ordinal, bases, tuple(call.scalars))
        made = ((tuple(x.shape), library.strides(x), x.dtype) for x in results)
        extents = [_extent(view) for _, view in inputs] + [_extent(outputs[0].view)]
        self.put(key, WarmCall(library, launches, tuple(made), tuple(extents)))


def _key(library: libraries.Library, given: Sequence[Any], options: tuple[Any, ...], out: Any) -> tuple[Any, list[int]]:
    """The key, and the addresses of what is given. Raises TypeError for an array that is not the library's, else as
    the library does."""
    types, signature, address = library.types, library.signature, library.address
    a, *rest = given
    if not rest:
        return (options, signature(a)), [address(a)]
    b, *rest = rest
    if type(b) not in types:
        raise TypeError
    key, inputs = [options, library.pair(a, b)], [address(a), address(b)]
    for one in rest:
        if one is not None:
            if type(one) not in types:
                raise TypeError
            inputs.append(address(one))
            one = signature(one)
        key.append(one)
    if out is not None:
        if type(out) not in types:
            raise TypeError
        key.append(signature(out))
    return tuple(key), inputs


def _extent(view: Operand) -> tuple[int, int]:
    low, high = byte_extent(view)
    return (low - view.address, high - view.address) if view.size else (0, 0)
