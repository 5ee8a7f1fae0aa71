"""`emulate`: one kernel of a CUDA C++ or PTX source on NumPy arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays.scalar import flag
from ..errors import EmulatorFault, InvalidOperand, suggests
from ..gpus import DEFAULT_GPU, find_gpu
from ..jit.entry import ParameterType, parameter_names
from ..words import Hazards, Told
from .api import decoded, run
from .arguments import parse_argument, whole_number
from .hazards import Hazard
from .memory import GlobalMemory
from .orders import Order
from .parameters import described, pack
from .task import LIMIT, Triple
from .trace import Counters


@dataclass(repr=False)
class EmulateResult(Told):
    """The result of `emulate`; `str()` tells it.

    arrays: what each buffer argument holds at the end, in order.
    counters: what the launch did: instructions, memory requests, sectors, wavefronts, FLOP.
    hazards: the faults and warnings found.
    seconds: how long emulating took on the host; this says nothing about a GPU.
    printed: what printf wrote.
    """

    arrays: list[np.ndarray]
    counters: Counters
    hazards: list[Hazard]
    seconds: float
    printed: str = ""
    named: dict[str, np.ndarray] = field(default_factory=dict)
    """The same arrays by the names of their parameters, where the source tells them."""
    allowed: list[Hazard] = field(default_factory=list)
    """Hazards that a comment at their line allows."""
    explored: int = 0
    """How many other orders were run."""
    differing: dict[int, EmulateResult] = field(default_factory=dict)
    """Number of an order -> what it left, of the first few orders whose arrays differ from these."""
    alone: str = ""
    """Why one process ran the launch although jobs= asks for more."""

    def __str__(self) -> str:
        names = self.named if len(self.named) == len(self.arrays) else range(len(self.arrays))
        lines = [f"{name}: {x.dtype} {x.shape}" for name, x in zip(names, self.arrays, strict=True)]
        return "\n".join([*lines, str(self.counters), *map(str, self.hazards), *filter(None, [self.printed])])


@dataclass(frozen=True)
class Kernel:
    """A kernel ready to launch: its PTX, and what is known of its parameters."""

    ptx: str
    entry: str
    called: str
    """As the caller named it."""
    types: tuple[ParameterType, ...] | None
    names: Sequence[str]
    sources: dict[str, str]


def load(
    source_or_ptx: str | Path, entry: str, gpu: str, include: Sequence[str | Path], options: Sequence[str] = ()
) -> Kernel:
    """Read and compile a source, or take its PTX. Raises InvalidOperand and CompileError."""
    text, name, beside = str(source_or_ptx), "kernel.cu", []
    if isinstance(source_or_ptx, Path) or not ("{" in text or "\n" in text):  # a source has at least one brace
        path = Path(source_or_ptx)
        try:
            text, name, beside = path.read_text(encoding="utf-8-sig"), str(path), [path.parent]
        except (OSError, ValueError) as error:
            raise InvalidOperand(
                f"{str(path)!r} could not be read as a source ({error}). Give the path of a text file in UTF-8."
            ) from error
    if name.endswith(".ptx") or (".version" in text and ".address_size" in text):
        names = [parameter.name for parameter in decoded(text, entry).entry.parameters]
        return Kernel(text, entry, entry, None, names, {})
    from ..jit import compile_source

    kernel = compile_source(
        text, entry=entry, arch=find_gpu(gpu).arch.name, name=name, include=[*beside, *include], options=options
    )
    texts = (text, *(body for _, body in kernel.source.headers))
    found = (known for body in texts if (known := parameter_names(body, entry)))
    sources = {**dict(kernel.source.headers), name: text}
    return Kernel(kernel.ptx, kernel.entry, entry, kernel.types, next(found, ()), sources)


def in_order(args: Sequence[Any] | Mapping[str, Any], kernel: Kernel) -> list[Any]:
    """The arguments in the order of the kernel's parameters. Raises InvalidOperand where they are not these."""
    declared = decoded(kernel.ptx, kernel.entry).entry.parameters
    types = kernel.types or (None,) * len(declared)
    listed = [described(parameter, known) for parameter, known in zip(declared, types, strict=True)]
    names = kernel.names if len(kernel.names) == len(declared) else [""] * len(declared)
    shown = ", ".join(f"{kind} {name}".strip() for kind, name in zip(listed, names, strict=True)) or "none"
    if isinstance(args, Mapping):
        if not all(names):
            raise InvalidOperand(
                f"the names of {kernel.called}'s parameters ({shown}) are not known. Give them in order."
            )
        if wrong := [*(f"{name} is missing" for name in names if name not in args),
                     *(f"{name} is not one of them" for name in args if name not in names)]:  # fmt: skip
            raise InvalidOperand(
                f"{kernel.called} takes {shown}: {', '.join(wrong)}. Give one for each by its name: an array or "
                "f32[1024]=random for a pointer, a number for a number."
            )
        return [args[name] for name in names]
    if len(args) != len(declared):
        raise InvalidOperand(
            f"{len(args)} arguments, but {kernel.called} takes {len(declared)} ({shown}). Give one for each, in order: "
            "an array or f32[1024]=random for a pointer, a number or i32=1024 for a number."
        )
    return list(args)


@suggests
def emulate(
    source_or_ptx: str | Path,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any] | Mapping[str, Any],
    *,
    gpu: str = DEFAULT_GPU,
    shared_bytes: int = 0,
    cluster: int | Sequence[int] | None = None,
    include: Sequence[str | Path] = (),
    options: Sequence[str] = (),
    constants: Mapping[str, Any] | None = None,
    hazards: Hazards = "raise",
    seed: int = 0,
    limit: int = LIMIT,
    progress: Callable[[int, int], None] | None = None,
    explore: int | str = 0,
    order: int | None = None,
    red_zones: bool = False,
    strict: bool = False,
    jobs: int = 1,
) -> EmulateResult:
    """Run one kernel on NumPy arrays, without a GPU.

    source_or_ptx: CUDA C++ or PTX text, or the path of a file of either.
    entry: the kernel's name, as C++ knows it (`scale<float>`) or as the PTX does.
    grid, block: blocks of the grid and threads of a block, one to three sizes each.
    args: one for each parameter of the kernel, in order or by name:
            a NumPy array              a device buffer of the type that the C++ parameter points to; the caller's array
                                       stays as it is. The same array twice is one buffer; arrays that overlap are
                                       refused
            a number                   passed by value
            None                       a null pointer
            bytes, Struct              fill a struct; a Struct (tilewright.emu) may hold arrays and tensor maps
            "f32[1024]=random", "f32[4,8]=nan", "i32=1024", "x.npy"
                                       a buffer or a number; bf16 buffers come back as uint16 (docs/emulator.md)
            TensorMap                  for a CUtensorMap or a pointer to one. TensorMap.of(array) is over that array's
                                       buffer: an earlier argument's, if the array is one, else a buffer of its own
            Texture, Surface           for a cudaTextureObject_t or cudaSurfaceObject_t; a surface is a buffer too
    gpu: the name of the GPU whose limits and target hold (tilewright.gpus.GPUS).
    shared_bytes: dynamic shared memory of a block, in bytes.
    cluster: blocks of a cluster, one to three sizes, where the kernel's __cluster_dims__ does not say.
    include: folders of headers.
    options: options of the compiler, such as "--std=c++20" or "-DTILE=32".
    constants: initial values of `__constant__` and `__device__` variables by name, as arrays or strings.
    hazards: "raise" the first as EmulatorFault, or "collect" them in the result and go on as a GPU might.
    seed: the seed of "random", and of orders.
    limit: the most instructions that the launch may take; those of blocks that run side by side count once.
    progress: called with (blocks done, all blocks), each second if nothing else has happened.
    explore: how many more times to run the launch, or "20s" for so many seconds, each time in another legal order of
        warps, blocks and asynchronous completions. Orders are numbered from 1. The first that shows a hazard is
        raised, or all are collected. The result is that of the usual order; its `differing` holds other results.
    order: run this order alone. An order is a function of `seed` and its number.
    red_zones: put shared arrays 256 bytes apart, so that an access past the end of one is out of bounds.
    strict: treat warnings as errors. A comment `// tilewright: allow(kind) reason` at a line moves what is found there
        to the result's `allowed`.
    jobs: the number of processes that may share the blocks of the launch, where those do not talk to one another. The
        result is the same for any number; its `alone` says why one process ran all of them.

    Raises CompileError, PtxError, UnknownInstruction, InvalidOperand, ConfigRejected, and EmulatorFault unless
    hazards="collect".
    """
    _check_kinds(source_or_ptx, entry, args, include, options, constants, gpu, progress)
    shared_bytes, seed = whole_number(shared_bytes, "shared_bytes", 0), whole_number(seed, "seed", 0)
    limit = whole_number(limit, "limit", 1)
    if isinstance(explore, str):
        _seconds(explore)
    else:
        explore = whole_number(explore, "explore", 0)
    kernel = load(source_or_ptx, entry, gpu, include, options)
    launch = _Launch(
        kernel,
        in_order(args, kernel),
        seed,
        {
            "grid": _triple(grid, "grid"),
            "block": _triple(block, "block"),
            "shared_bytes": shared_bytes,
            "cluster": None if cluster is None else _triple(cluster, "cluster"),
            "gpu": gpu,
            "hazards": hazards,
            "limit": limit,
            "constants": {name: _constant(name, value, seed) for name, value in (constants or {}).items()},
            "progress": progress,
            "sources": kernel.sources,
            "red_zones": flag(red_zones, "red_zones"),
            "strict": flag(strict, "strict"),
            "jobs": whole_number(jobs, "jobs", 1),
        },
    )
    if order is not None:
        return launch.run(Order(seed, whole_number(order, "order", 1)))
    result = launch.run(None)
    for number in _numbers(explore):
        other = launch.run(Order(seed, number))
        result.explored = number
        known = {(hazard.kind, hazard.ptx) for hazard in result.hazards}
        result.hazards += [hazard for hazard in other.hazards if (hazard.kind, hazard.ptx) not in known]
        if len(result.differing) < KEPT and not _alike(result.arrays, other.arrays):
            result.differing[number] = other
    return result


def _check_kinds(
    source_or_ptx: Any, entry: Any, args: Any, include: Any, options: Any, constants: Any, gpu: Any, progress: Any
) -> None:
    """Raise InvalidOperand for an argument of `emulate` that is not what it can be at all."""
    for told, value, kinds, wanted in (
        ("source_or_ptx", source_or_ptx, (str, Path), "text, or the path of a file"),
        ("entry", entry, str, "the kernel's name"),
        ("args", args, (list, tuple, Mapping), "a list, one for each parameter of the kernel, or a dict by name"),
        ("include", include, (list, tuple), "a list of folders"),
        ("options", options, (list, tuple), "a list of options for the compiler"),
        ("constants", constants or {}, Mapping, "a dict of arrays by the variables' names"),
        ("gpu", gpu, str, "a GPU's name"),
    ):
        if not isinstance(value, kinds):
            raise InvalidOperand(f"{told} is {value!r:.60}; pass {wanted}.")
    if progress is not None and not callable(progress):
        raise InvalidOperand(f"progress is {progress!r:.60}; pass a function of blocks done and all blocks, or None.")
    if wrong := [folder for folder in include if not isinstance(folder, str | Path) or "\0" in str(folder)]:
        raise InvalidOperand(f"include holds {wrong[0]!r:.60}; pass folders.")
    if wrong := [option for option in options if not isinstance(option, str) or not option.startswith("-")]:
        raise InvalidOperand(f"options holds {wrong[0]!r:.60}; pass options of NVRTC such as '--std=c++20'.")


UNDEFINED = (0x7F7F_FFFF, 0xFF7F_FFFF)
"""What stands for undefined values: a large and a small number in fp32, bf16 and int32."""
KEPT = 8
"""Results that differ from the first one's of which `explore` keeps so many."""


@dataclass
class _Launch:
    """A launch that may be run more than once, each time on its arguments as they were given."""

    kernel: Kernel
    given: list[Any]
    seed: int
    options: dict[str, Any]

    def run(self, order: Order | None) -> EmulateResult:
        """Run it; in the usual order once or twice more where values are undefined, to see whether they matter."""
        result, suspects = self._run(order, self.options)
        if order is not None or not suspects:
            return result
        for bits in UNDEFINED:
            options = self.options | {"hazards": "collect", "jobs": 1, "undefined": bits}
            other, _ = self._run(None, options)
            if len(other.hazards) > len(result.hazards) or not _alike(result.arrays, other.arrays):
                result.hazards += suspects
                if self.options["hazards"] == "raise":
                    raise EmulatorFault(str(suspects[0]), suspects[0])
                break
        return result

    def _run(self, order: Order | None, options: Mapping[str, Any]) -> tuple[EmulateResult, list[Hazard]]:
        memory, kernel = GlobalMemory(), self.kernel
        declared = decoded(kernel.ptx, kernel.entry).entry.parameters
        packed = pack(self.given, declared, kernel.types, memory, self.seed, kernel.names)
        buffers = packed.buffers
        names = [b.name(kernel.names[b.number]) for b in buffers] if len(kernel.names) == len(declared) else []
        for buffer, name in zip(buffers, names, strict=False):
            if (held := memory.find(buffer.address)) is not None:
                held.name = name
        result = run(
            kernel.ptx, kernel.entry, params=packed.params, memory=memory, images=packed.images, order=order,
            **options,
        )  # fmt: skip
        arrays = [buffer.read(memory, last=True) for buffer in buffers]
        named = dict(zip(names, arrays, strict=False))
        found = result.hazards, result.seconds, result.printed
        told = EmulateResult(arrays, result.counters, *found, named, allowed=result.allowed, alone=result.alone)
        return told, result.suspects


def _alike(ours: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(ours, others, strict=True))


def _numbers(explore: int | str) -> Iterator[int]:
    """Numbers of orders: so many, or as many as begin within so many seconds ("20s"). Raises InvalidOperand."""
    if not isinstance(explore, str):
        yield from range(1, whole_number(explore, "explore", 0) + 1)
        return
    started = time.perf_counter()
    seconds = _seconds(explore)
    number = 0
    while time.perf_counter() - started < seconds:
        number += 1
        yield number


def _seconds(text: str) -> float:
    try:
        if text.endswith("s") and 0 < (seconds := float(text[:-1])) < inf:
            return seconds
    except ValueError:
        pass
    raise InvalidOperand(f"explore is {text!r}; pass a number of orders, or seconds such as '20s'.")


def _constant(name: str, value: Any, seed: int) -> np.ndarray:
    argument = parse_argument(value, seed)
    return np.asarray(argument.scalar if argument.array is None else argument.array)


def _triple(value: int | Sequence[int], what: str) -> Triple:
    try:
        sizes = tuple(index(v) for v in value) if isinstance(value, Sequence | np.ndarray) else (index(value),)
    except TypeError as error:
        raise InvalidOperand(f"{what} {value!r} is not one to three whole numbers") from error
    if not 1 <= len(sizes) <= 3:
        raise InvalidOperand(f"{what} {value!r} has {len(sizes)} sizes; give one to three")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
