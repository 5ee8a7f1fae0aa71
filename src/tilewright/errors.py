"""Every error a user can meet. Each message says what failed, the values, why, and what to try."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class TilewrightError(Exception):
    """Base of all errors raised on purpose by tilewright."""


class InvalidOperand(TilewrightError, ValueError):
    """An array cannot be used as given: its shape, dtype, strides, device, or an overlap with another."""


class UnknownKeyword(TilewrightError, TypeError):
    """A call names a keyword that the function does not have; the message names the nearest one."""


class InvalidEpilogue(TilewrightError, ValueError):
    """An epilogue cannot be traced into device code, or its operands are not those that it names."""


class ConfigRejected(TilewrightError, ValueError):
    """A rung or a config cannot run the problem on the architecture; the message carries the numbers."""


class CompileError(TilewrightError):
    """NVRTC refused a source. `log` holds the compiler's own words."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class DeviceError(TilewrightError):
    """The CUDA driver reported a failure, or no usable GPU is there."""


class MissingDependency(TilewrightError, ImportError):
    """An optional package or a library is not installed; the message names how to get it."""


class CacheError(TilewrightError):
    """A cache archive or folder cannot be used. A corrupt entry alone never raises: it is recompiled."""


class PtxError(TilewrightError, ValueError):
    """PTX text could not be parsed. The message names the line."""


class UnknownInstruction(PtxError):
    """The emulator has no handler for this exact form. Nothing is ever skipped silently."""


class EmulatorFault(TilewrightError):
    """A kernel did on the emulator what a GPU punishes. `hazard` says what, where and who (see tilewright.emu)."""

    def __init__(self, message: str, hazard: Any = None) -> None:
        super().__init__(message)
        self.hazard = hazard


class WrongResult(TilewrightError):
    """A result failed its check against the float64 reference; it must not be used or timed."""


def install(extra: str) -> str:
    """The command that installs an optional part of this package, by the name of its extra in pyproject.toml."""
    return f"pip install 'tilewright[{extra}]' (in a clone: pip install '.[{extra}]')"


def in_shell(path: object) -> str:
    """A file's name as a shell takes it in a command: quoted where it must be, and never an option."""
    import shlex

    name = str(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'alpha'?" for the nearest known name, else one that is a word of `name` or the other way
    round; "" where none is near."""
    import re
    from difflib import get_close_matches

    def is_word(part: str, whole: str) -> bool:
        return len(part) > 2 and re.search(rf"(^|[^a-z0-9]){re.escape(part)}([^a-z0-9]|$)", whole) is not None

    names = {each.lower(): each for each in known}
    wanted = name.lower()
    close = get_close_matches(wanted, names, 1)
    part = [each for each in names if is_word(each, wanted) or is_word(wanted, each)]
    return f" Did you mean {names[found]!r}?" if (found := next(iter(close + part), "")) else ""


def near_rung(name: str, ids: Iterable[str]) -> str:
    """Do as did_you_mean among rungs' ids and their numbers, of which f13 is near those of its letter only; where none
    is near, return where the rungs of all ladders are listed."""
    numbered = name[1:].isdigit()
    alike = [each for each in ids if not numbered or each[0] == name[0].lower()]
    near = did_you_mean(name, [*(each.split("_")[0] for each in alike), *alike])
    return near or " Rungs: tilewright rungs."


def check_keywords(function: Callable[..., Any], options: Iterable[str]) -> None:
    """Raises UnknownKeyword for an option that the function does not have."""
    if unknown := [name for name in options if name not in _keywords(function)]:
        raise unknown_keyword(function, unknown)


def unknown_keyword(function: Callable[..., Any], names: Iterable[str], more: str = "") -> UnknownKeyword:
    """Return the error for keywords that a function does not have; `more` is said at its end."""
    known, name = _keywords(function), next(iter(names))
    takes = f"It takes {', '.join(known)}."
    return UnknownKeyword(f"{function.__name__} has no argument {name!r}.{did_you_mean(name, known)} {takes}{more}")


def _keywords(function: Callable[..., Any]) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def suggests(function: Function) -> Function:
    """Let a function without **options answer a misspelt keyword with the nearest one."""
    known = frozenset(_keywords(function))

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if not known.issuperset(options):
            raise unknown_keyword(function, [name for name in options if name not in known])
        return function(*args, **options)

    return call  # type: ignore[return-value]
