"""The result that a kernel should have computed: NumPy expressions of its arguments, or a Python file that judges the
arrays."""

from __future__ import annotations

import re
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidOperand
from .arguments import as_numbers
from .own_kernel import EmulateResult

_TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}
"""Relative and absolute; of other types none."""


@dataclass(frozen=True)
class Reference:
    """`buffer = expression` of the arguments as they were before the launch, or a Python file.

    The file defines check(before, after), which gets dicts of arrays and numbers by parameter name, and raises
    AssertionError, or returns False or a text, for what is wrong.
    """

    text: str
    buffer: str = ""
    expression: str = ""

    @classmethod
    def of(cls, text: str) -> Reference:
        """Read `y = a * x` or FILE.py. Raises InvalidOperand."""
        if text.endswith(".py"):
            if not Path(text).is_file():
                raise InvalidOperand(f"the reference {text!r} is not a file.")
            return cls(text)
        match = re.fullmatch(r"\s*(\w+)\s*==?\s*(\S.*)", text, re.DOTALL)
        if match is None:
            raise InvalidOperand(f"the reference {text!r} is not NAME = EXPRESSION, such as 'y = 2 * x', nor FILE.py.")
        try:
            compile(match[2], "<reference>", "eval")
        except SyntaxError as error:
            raise InvalidOperand(f"the reference {text!r} is not a Python expression: {error.msg}.") from error
        return cls(text, match[1], match[2])

    def wrong(self, before: Mapping[str, Any], after: Mapping[str, np.ndarray], tolerance: float | None) -> str:
        """Return what is wrong with the arrays after the launch; "" for nothing. Raises InvalidOperand for a bad
        reference."""
        if not self.buffer:
            return self._judged(before, after)
        if self.buffer not in after:
            raise InvalidOperand(f"the reference names {self.buffer!r}; the buffers are {', '.join(after) or 'none'}.")
        try:
            want = np.asarray(eval(self.expression, {"np": np, "numpy": np, **before}))
            got = np.asarray(after[self.buffer])
            return differences(self.text, got, np.broadcast_to(want, got.shape), tolerance)
        except (Exception, SystemExit) as error:  # an exit would end the command as if nothing were wrong
            raise InvalidOperand(
                f"the reference {self.text!r} failed ({type(error).__name__}: {error}). It may name np and "
                f"{', '.join(before)}, as they were before the launch."
            ) from error

    def _judged(self, before: Mapping[str, Any], after: Mapping[str, np.ndarray]) -> str:
        try:
            check = runpy.run_path(self.text).get("check")
            if not callable(check):
                raise InvalidOperand(f"{self.text} defines no check(before, after).")
            said = check(dict(before), dict(after))
        except AssertionError as error:
            return f"{self.text}: {error or 'an assertion failed'}"
        except InvalidOperand:
            raise
        except (Exception, SystemExit) as error:
            raise InvalidOperand(f"{self.text} failed ({type(error).__name__}: {error}).") from error
        if isinstance(said, str) and said:
            return f"{self.text}: {said}"
        return f"{self.text}: check returned False" if said is not None and said is not True and not said else ""


def differences(name: str, got: np.ndarray, want: np.ndarray, tolerance: float | None = None) -> str:
    """Return how two arrays differ beyond a tolerance, relative and absolute; "" where they do not. NaN equals NaN."""
    limit = _TOLERANCE.get(got.dtype.name, 0.0) if tolerance is None else tolerance
    if limit == 0 and got.dtype.kind in "iub" and want.dtype.kind in "iub":
        bad, apart = got != want, np.abs(got.astype(object) - want.astype(object)).astype(np.float64)
    else:
        wide = np.complex128 if "c" in (got.dtype.kind, want.dtype.kind) else np.float64
        a, b = got.astype(wide), want.astype(wide)
        with np.errstate(all="ignore"):
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            apart = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
            near = np.isfinite(a) & np.isfinite(b) & (apart <= limit + limit * np.abs(b))
            bad = ~(same | near)
    count = int(np.count_nonzero(bad))
    if not count:
        return ""
    worst = np.unravel_index(int(np.argmax(np.where(bad, apart, -1))), got.shape)
    place = f"[{', '.join(str(int(k)) for k in worst)}]"
    return (
        f"{name}: {count} of {got.size} elements differ by more than {limit:g} (absolute and relative); the most at "
        f"{place}: {got[worst]}, expected {want[worst]}"
    )


def after_of(result: EmulateResult, names: list[str], kinds: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The buffers after a launch as numbers: bf16 as float32. `names`: of the buffer arguments in order."""
    return {name: as_numbers(array, kinds.get(name, "")) for name, array in zip(names, result.arrays, strict=True)}
