"""Noticing results that fp32 holds only as inexact subnormals: NumPy says so while instructions run."""

from __future__ import annotations

import numpy as np


class Underflow:
    """One machine's. `seen` is set when a cast gave an inexact subnormal, and reset by who asks."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, error: str, flag: int) -> None:
        self.seen = True

    def watch(self) -> np.errstate:
        """The floating-point settings under which the machine's instructions run, in this thread: silent but for it."""
        return np.errstate(all="ignore", under="call", call=self)
