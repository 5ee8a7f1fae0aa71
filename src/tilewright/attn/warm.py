"""The warm path of attention: a call of a kind seen before, at little host time (run/warm.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..run.runner import Ran
from ..run.warm import MISS, WarmCalls
from .config import AttentionConfig
from .hopper import HopperConfig
from .split import SplitConfig

if TYPE_CHECKING:
    from .call import AttentionCall

calls = WarmCalls()
"""Their inputs: q, k, v, bias, both starts, seqused and block_table."""
backward_calls = WarmCalls()
"""Their inputs: q, k, v, bias, both starts, and the gradient, the result, the LSE and its gradient."""


def warm_attention(given: tuple[Any, ...], options: tuple[Any, ...], numbers: tuple[float, ...], out: Any) -> Any:
    """The result, with the LSE where it is asked for, or MISS. `given`: as `calls`; `numbers`: those of the function
    of a score, whose code is among the options."""
    return _unpacked(calls.run(given, options, numbers, out))


def _unpacked(results: Any) -> Any:
    return results if results is MISS else results[0] if len(results) == 1 else tuple(results)


def stays(option: Any) -> bool:
    """Return whether a key that holds it decides its value. A tensor as the scale is equal to itself with another
    number."""
    if type(option) is tuple:
        return all(map(stays, option))
    kinds = (int, float, str, np.generic, AttentionConfig, HopperConfig, SplitConfig)
    return option is None or isinstance(option, kinds)


def remember(
    call: AttentionCall, results: tuple[Any, ...], ran: Ran, given: tuple[Any, ...], options: tuple[Any, ...], out: Any
) -> None:
    """Let later calls of this kind take the warm path."""
    if all(map(stays, options)):
        calls.remember(call, results, ran, given, options, out)
