"""The emulator's inner loops in C (emu/native/), made by this machine's own C compiler where there is one.

Nothing depends on them: without a compiler, or where anything fails, the same is done in NumPy, with the same bits. The
library is compiled once, in the background, when a process has emulated for long enough to be worth it, and lies in the
cache from then on. It is made for this very processor, so the name of the file has what tells processors apart.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..jit.cache import default_folder
from ..jit.locks import lock

VARIABLE = "TILEWRIGHT_EMULATOR_C"
"""0: do without."""
WORTH_SECONDS = 2.0
"""Seconds of emulation in one process after which the library is made."""
FOLDER = Path(__file__).parent / "native"
FLAGS = (
    "-O3", "-march=native", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing", "-ffp-contract=off",
    "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
_BUILD_SECONDS = 120


def _interface(array: np.ndarray) -> int:
    """The address of an array's first element, by its interface."""
    return int(array.__array_interface__["data"][0])


def _quickest() -> Callable[[np.ndarray], int]:
    """Return what gives the address of an array's first element in the least time.

    NumPy's binary interface has it as the first field of an array, after what every object begins with. To read it
    there takes a fourth of the time. A launch may ask thousands of times.
    """
    word, head = ctypes.c_size_t.from_address, object.__basicsize__

    def field(array: np.ndarray) -> int:
        return word(id(array) + head).value

    if sys.implementation.name != "cpython":
        return _interface
    tries = np.arange(24), np.arange(24, dtype=np.uint8)[5:], np.zeros((3, 4), np.float32).T[1:]
    return field if all(field(some) == _interface(some) for some in tries) else _interface


address = _quickest()
"""The address of an array's first element."""


class Library:
    """The functions, and the codes of their operations."""

    def __init__(self, path: Path) -> None:
        self._dll = ctypes.CDLL(str(path))
        self.lanes = self._function("tw_lanes", 4)
        """(operations, how many, mask or 0, lanes)."""
        self.mma = self._function("tw_mma", 6, ctypes.c_int64)
        """(product, fragments, places or 0, instructions, warps or 0, how many) -> whether there was memory for it."""
        self.tiles = self._function("tw_tiles", 5, ctypes.c_int64)
        """(product, tiles, A and B as native/warps.c's Matrices, D) -> likewise."""
        self.warpgroups = self._function("tw_warpgroups", 5, ctypes.c_int64)
        """(product, warpgroups, A, B, D as its Accumulators) -> likewise."""
        self.apart = self._function("tw_apart", 4, ctypes.c_int64)
        """(addresses, lanes or 0, how many, relative addresses) -> whether they are those."""
        self.classes = self._function("tw_classes", 4)
        """(addresses, how many, bytes, out): of each warp how native/access.c says that they lie."""
        self.equal = self._function("tw_equal", 5, ctypes.c_int64)
        """(values, lanes or 0, how many, known values, bytes of one) -> whether they are those."""
        self.load = self._function("tw_load", 7)
        """(data, offsets, lanes or 0, how many, bytes of a part, parts, rows)."""
        self.store = self._function("tw_store", 8)
        """(data, offsets, lanes or 0, how many, bytes of a part, parts, rows, steps)."""
        self.fetch = self._function("tw_fetch", 5)
        """(data, offsets, how many, bytes of each, elements)."""
        self.land = self._function("tw_land", 7)
        """(data, marks of what is written, their shift, offsets, how many, bytes of each, elements)."""
        self.marked = self._function("tw_marked", 3, ctypes.c_int64)
        """(marks, granules, how many) -> whether all of them are marked."""
        self.newer = self._function("tw_newer", 7, ctypes.c_int64)
        """(table, granules, rows of them, granules a row, warps, known, own warps or 0) -> whether some clock is."""
        self.unseen = self._function("tw_unseen", 9, ctypes.c_int64)
        """(phases, columns, granules, rows, granules a row, known, its width, warps, how many each) -> likewise."""
        self.unwaited = self._function("tw_unwaited", 5, ctypes.c_int64)
        """(native/memory.c's Reads, granules, rows, granules a row, known) -> likewise."""
        self.reads_begin = self._function("tw_reads_begin", 6)
        """(Reads, granules, rows of them, granules a row, warpgroups, instruction)."""
        self.reads_end = self._function("tw_reads_end", 3)
        """(Reads, granules, how many)."""
        self.reads_wait = self._function("tw_reads_wait", 7)
        """(what reads_begin gets but the instruction, warps that are due, their clocks)."""
        self.product_starts = self._function("tw_product_starts", 7, ctypes.c_int64)
        """(native/memory.c's InFlight, registers, uses, how many, warps, how many, instruction) -> whether it is
        noted."""
        self.written = self._function("tw_written", 8)
        """(native/memory.c's Writes, granules, rows, granules a row, lanes, clocks of warps, time, instruction)."""
        self.unfenced = self._function("tw_unfenced", 3, ctypes.c_int64)
        """(Writes, granules, how many) -> whether some writer has run no fence since."""
        self.bulk_write = self._function("tw_bulk_write", 6, ctypes.c_int64)
        """(native/clocks.c's Clocks, from granule, to granule, warp, the block's first one, instruction) ->
        whether it is noted."""
        self.product_reads = self._function("tw_product_reads", 7, ctypes.c_int64)
        """(Clocks, granules, rows of them, granules a row, warps, warpgroups, 1 + instruction) -> likewise."""
        self.access = self._function("tw_access", 3, ctypes.c_int64)
        """(Clocks, its Lanes, its Touch) -> its answer."""
        self.epoch = self._function("tw_epoch", 6, ctypes.c_int64)
        """(native/epochs.c's Accessed, how many, events, how many, its table, a byte for each) -> its answer."""
        self.alike = self._function("tw_alike", 4, ctypes.c_int64)
        """(numbers, blocks, how many each, step) -> whether each block's are the first one's, so many steps further."""
        self.pick = self._function("tw_pick", 4)
        """(blocks, lanes, mask, out)."""
        self.atomic = self._function("tw_atomic", 2)
        """(code, what native/atomics.c calls Atomic)."""
        self.act = self._function("tw_act", 4, ctypes.c_int64)
        """(what native/control.c calls Act, units, flags, pairs) -> whether somebody learned something."""
        self.go = self._function("tw_go", 1, ctypes.c_int64)
        """(what native/engine.c calls State) -> what Python has to do."""
        self.sectors = self._function("tw_sectors", 5, ctypes.c_int64)
        """(addresses, lanes or 0, how many, bytes, shift) -> distinct sectors of each warp, summed."""
        self._conflicts = self._function("tw_conflicts", 6)
        self._extent = self._function("tw_extent", 4)
        self.claim = self._function("tw_claim", 8, ctypes.c_int64)
        """(owners, cells, lanes, cells a lane, shift, lanes' numbers, units' first, width) -> whether all were free."""
        self._firsts = self._function("tw_firsts", 4, ctypes.c_int64)
        self.piece = int(self._dll.tw_piece())
        """Elements that a constant source has."""
        self.codes = self._names("tw_operation")
        self.atomics = self._names("tw_atomic_name")

    def firsts(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where each different one of some keys (int64) is first, in that order, and which of them each key
        is."""
        first, which = np.empty((2, len(keys)), np.int64)
        count = self._firsts(address(keys), len(keys), address(first), address(which))
        if count < 0:
            raise MemoryError("no room for a table of addresses")
        return first[:count], which

    def extent(self, relative: np.ndarray, lanes: np.ndarray | None) -> tuple[int, int, int, int]:
        """Return the least and the greatest of some addresses relative to the first one's, all their bits together,
        and how many warps their lanes (None: all) are of."""
        told = np.empty(4, np.int64)
        self._extent(address(relative), 0 if lanes is None else address(lanes), len(relative), address(told))
        low, high, bits, warps = told.tolist()
        return low, high, bits, warps

    def conflicts(
        self, addresses: np.ndarray, lanes: np.ndarray | None, nbytes: int, access: str
    ) -> tuple[int, int, int]:
        """Return requests, wavefronts and the fewest that could do (banks.py), summed over the warps of some lanes
        (None: all), which are in ascending order. Addresses are int64."""
        told = np.empty(3, np.int64)
        places, code = 0 if lanes is None else address(lanes), {"load": 0, "copy": 2}.get(access, 1)
        self._conflicts(address(addresses), places, len(addresses), nbytes, code, address(told))
        requests, fronts, least = told.tolist()
        return requests, fronts, least

    def _names(self, listing: str) -> dict[str, int]:
        """Name -> code."""
        name = getattr(self._dll, listing)
        name.restype = ctypes.c_char_p
        codes: dict[str, int] = {}
        while (text := name(len(codes))) is not None:
            codes[text.decode()] = len(codes)
        return codes

    def _function(self, name: str, arguments: int, result: type | None = None) -> ctypes._FuncPointer:
        function = getattr(self._dll, name)
        function.argtypes = [ctypes.c_int64] * arguments
        function.restype = result
        return function


@lru_cache(maxsize=1)
def _processor() -> str:
    """Return what tells processors with different instructions apart."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = (line for line in file if line.startswith(("flags", "Features", "model name")))
            return "".join(sorted(set(lines)))
    except OSError:
        return platform.processor()


@lru_cache(maxsize=1)
def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def _target() -> Path:
    """Return where the library lies, or will."""
    parts = [path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in (".c", ".h")]
    told = "\0".join((*FLAGS, platform.machine(), platform.system(), _processor())).encode()
    return default_folder() / "emulator" / f"{hashlib.sha256(b''.join((*parts, told))).hexdigest()[:24]}.so"


def _start(target: Path) -> subprocess.Popen[bytes] | None:
    """Begin to compile: a process that puts the whole file, its SHA-256 at the end, into its place when it is done."""
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        target.parent.parent.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        command = shlex.join([compiler, *FLAGS, "-o", str(made), str(FOLDER / "native.c"), "-lm"])
        part, whole = shlex.quote(str(made)), shlex.quote(str(target))
        seal = f'digest=$(sha256sum < {part} || shasum -a 256 < {part}) && printf %.64s "$digest" >> {part}'
        return subprocess.Popen(
            ["sh", "-c", f"umask 022; {command} && {seal} && mv -f {part} {whole} || rm -f {part}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None


class _State:
    """The state of the library in this process."""

    def __init__(self) -> None:
        self.lock = lock()
        self.loaded: dict[Path, Library | None] = {}
        self.making: subprocess.Popen[bytes] | None = None
        self.seconds = 0.0


_state = _State()
_unwanted: ContextVar[bool] = ContextVar("unwanted", default=False)


@contextlib.contextmanager
def without() -> Iterator[None]:
    """Let what is emulated inside run in NumPy alone."""
    token = _unwanted.set(True)
    try:
        yield
    finally:
        _unwanted.reset(token)


def _wanted() -> bool:
    return os.environ.get(VARIABLE) != "0" and not _unwanted.get()


def library() -> Library | None:
    """The library if it is there; never waits for it."""
    if not _wanted():
        return None
    with _state.lock:
        target = _target_now()
        if target in _state.loaded:
            return _state.loaded[target]
        if not os.path.exists(target):
            return None
        try:
            if _is_private(target) and not _is_whole(target):  # a disk that was full, or lost its power
                target.unlink()
                return None  # it is compiled again
            _state.loaded[target] = Library(target) if _is_private(target) else None
        except (OSError, AttributeError):  # of another system: done without
            _state.loaded[target] = None
        return _state.loaded[target]


def _is_private(file: Path) -> bool:
    """Return whether nobody else could have written it: it is code that this process is going to run."""
    if not hasattr(os, "getuid"):
        return True
    told = file.stat()
    return told.st_uid in (os.getuid(), 0) and not told.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_whole(file: Path) -> bool:
    """Return whether it is what was compiled: one that is cut off may end the process that loads it."""
    data = file.read_bytes()
    return hashlib.sha256(data[:-_DIGEST]).hexdigest().encode() == data[-_DIGEST:]


_DIGEST = 64
"""Hexadecimal digits at a library's end, where loaders look at nothing."""


def _target_now() -> Path:
    return _target_in(default_folder())


@lru_cache(maxsize=8)
def _target_in(folder: Path) -> Path:
    return _target()


def emulated(seconds: float) -> None:
    """Note how long a launch took; begin to compile when that is worth it."""
    _state.seconds += seconds
    if _state.seconds < WORTH_SECONDS or _state.making is not None or not _wanted():
        return
    with _state.lock:
        target = _target_now()
        if _state.making is None and not os.path.exists(target):
            _state.making = _start(target)


def build() -> bool:
    """Compile now and wait, if it has not been; whether the library can be used."""
    target = _target_now()
    if not os.path.exists(target):
        process = _start(target)
        if process is None:
            return False
        try:
            process.wait(_BUILD_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    return library() is not None
