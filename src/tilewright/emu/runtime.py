"""Functions that the CUDA runtime provides to kernels: printf, assert, malloc, free.

Each takes the machine, the call and the calling lanes, and gives the lanes that end there as a mask, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .memory import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES

if TYPE_CHECKING:
    from .calls import Site
    from .machine import Machine

Function = Callable[["Machine", "Site", np.ndarray], "np.ndarray | None"]
_FORMAT = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+)?)?(hh|h|ll|l|L|q|j|z|t)?([diouxXeEfFgGaAcspn%])")
LONGEST = 4096


def _arguments(machine: Machine, site: Site, lane: int) -> list[int]:
    area = machine.calls.area[lane]
    return [int.from_bytes(area[start : start + size].tobytes(), "little") for start, size in site.arguments]


def _give(machine: Machine, site: Site, lanes: np.ndarray, values: list[int]) -> None:
    for start, size in site.results[:1]:
        raw = b"".join(value.to_bytes(8, "little", signed=value < 0)[:size] for value in values)
        machine.calls.area[lanes, start : start + size] = np.frombuffer(raw, np.uint8).reshape(-1, size)


def _read(machine: Machine, lane: int, address: int, nbytes: int) -> bytes:
    """Bytes at a generic address as far as they are mapped, without counting or judging the access."""
    if LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW_BYTES:
        start = address - LOCAL_WINDOW - int(machine.local.slots[lane])
        data = machine.local.data[lane * machine.local.stride :][: machine.local.bytes]
        return bytes(data[start : start + nbytes]) if start >= 0 else b""
    if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES:
        return b""
    buffer = machine.memory.find(address)
    return b"" if buffer is None else machine.memory.read(address, min(nbytes, buffer.end - address)).tobytes()


def _string(machine: Machine, lane: int, address: int) -> str:
    return _read(machine, lane, address, LONGEST).split(b"\0")[0].decode(errors="replace") if address else "(null)"


def formatted(text: str, packed: bytes, string: Callable[[int], str]) -> str:
    """`text` with its arguments, which lie packed as C++ promotes them. `string` reads the text at an address."""
    at = 0

    def word(nbytes: int) -> bytes:
        nonlocal at
        at = -(-at // nbytes) * nbytes
        at += nbytes
        return packed[at - nbytes : at].ljust(nbytes, b"\0")

    def one(match: re.Match[str]) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        if width == "*":  # a negative one means "to the left"
            width = str(int.from_bytes(word(4), "little", signed=True))
        if precision == "*":
            precision = str(int.from_bytes(word(4), "little", signed=True))
            precision = None if precision.startswith("-") else precision
        elif "." in match[0]:
            precision = precision or "0"
        spec = f"%{flags}{width or ''}" + ("" if precision is None else f".{precision}")
        if kind in "diuoxXc":
            nbytes = 8 if length in ("l", "ll", "q", "j", "z", "t") else 4
            value = int.from_bytes(word(nbytes), "little", signed=kind in "di")
            if length in ("h", "hh"):
                bits = 16 if length == "h" else 8
                value &= (1 << bits) - 1
                value -= (1 << bits) if kind in "di" and value >> bits - 1 else 0
            if kind == "c":
                return (spec + "c") % chr(value & 0xFF)
            return _integer(value, kind, flags, int(width or 0), None if precision is None else int(precision))
        if kind == "p":
            return f"{int.from_bytes(word(8), 'little'):#x}"
        if kind == "s":
            return (spec + "s") % string(int.from_bytes(word(8), "little"))
        if kind == "n":
            word(8)
            return ""
        number = float(np.frombuffer(word(8), np.float64)[0])
        if kind in "aA":
            digits, power = number.hex().split("p") if np.isfinite(number) else (str(number), "")
            text = f"{digits.rstrip('0').rstrip('.')}p{power}" if power else digits
            return text.upper() if kind == "A" else text
        return (spec + kind) % number

    return _FORMAT.sub(one, text)


def _integer(value: int, kind: str, flags: str, width: int, precision: int | None) -> str:
    """A whole number as C writes it, which Python does differently for # and for a precision of 0."""
    digits = format(abs(value), kind if kind in "oxX" else "d")
    if precision is not None:
        digits = "" if value == precision == 0 else digits.rjust(precision, "0")
    front = "-" if value < 0 else next((sign for sign in "+ " if sign in flags and kind in "di"), "")
    if "#" in flags and kind == "o" and not digits.startswith("0"):
        digits = "0" + digits
    if "#" in flags and kind in "xX" and value:
        front += "0" + kind
    if width < 0 or "-" in flags:
        return (front + digits).ljust(abs(width))
    if "0" in flags and precision is None:
        digits = digits.rjust(width - len(front), "0")
    return (front + digits).rjust(width)


def _printf(machine: Machine, site: Site, lanes: np.ndarray) -> None:
    for lane in lanes.tolist():
        text, packed = _arguments(machine, site, lane)
        words = _read(machine, lane, packed, LONGEST) if packed else b""
        line = formatted(_string(machine, lane, text), words, partial(_string, machine, lane))
        machine.reporter.printed.append(line)
    _give(machine, site, lanes, [0] * len(lanes))


def _assert_fail(machine: Machine, site: Site, lanes: np.ndarray) -> np.ndarray:
    lane = int(lanes[0])
    what, file, line, function, _ = _arguments(machine, site, lane)
    names = [_string(machine, lane, address) for address in (what, file, function)]
    machine.report("illegal", f"assertion {names[0]!r} failed in {names[2]} ({names[1]}:{line & 0xFFFFFFFF})",
                   site.instruction, lanes, None)  # fmt: skip
    gone = np.zeros(machine.lanes, bool)
    gone[lanes] = True
    return gone


def _malloc(machine: Machine, site: Site, lanes: np.ndarray) -> None:
    sizes = [_arguments(machine, site, lane)[0] for lane in lanes.tolist()]
    room = machine.heap_bytes
    places = []
    for size in sizes:  # no room, or nothing asked for: null, as on a GPU
        fits = 0 < size <= room
        places.append(machine.memory.add(np.full(size, 0xFF, np.uint8), "malloc", empty=True) if fits else 0)
        room -= size if fits else 0
    machine.heap_bytes = room
    for lane, address in zip(lanes.tolist(), places, strict=True):
        if address:
            cta = machine.coordinates(int(machine.cta_of_lane[lane]))
            machine.heap[address] = site.instruction, cta, int(machine.warp_of_lane[lane]), lane % 32
    _give(machine, site, lanes, places)


def _free(machine: Machine, site: Site, lanes: np.ndarray) -> None:
    for lane in lanes.tolist():
        (address,) = _arguments(machine, site, lane)
        if address in machine.heap:
            buffer = machine.memory.find(address)
            machine.heap_bytes += buffer.bytes if buffer else 0
            del machine.heap[address]
            machine.memory.release(address, rest=True)
        elif address:
            machine.report("illegal", f"free({address:#x}), which malloc did not give, or which was freed before",
                           site.instruction, np.array([lane]), address)  # fmt: skip


FUNCTIONS: dict[str, Function] = {
    "vprintf": _printf, "__assertfail": _assert_fail, "malloc": _malloc, "free": _free,
}  # fmt: skip
