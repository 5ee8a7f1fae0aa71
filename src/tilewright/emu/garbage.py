"""The garbage collector, kept still while many objects are made that all stay, or that go by themselves: it would look
at them in vain."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 50_000
"""New objects, in place of the usual hundreds, after which a launch is looked through."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Run what is inside with few collections, in all threads. A launch makes objects of which nearly none is lost in a
    circle, and each collection may look at all that the process has."""
    before = gc.get_threshold()
    raised = 0 < before[0] < SELDOM  # 0: collections are off; not raised: they are seldom already, or in another thread
    if raised:
        gc.set_threshold(SELDOM, *before[1:])
    try:
        yield
    finally:
        if raised:
            gc.set_threshold(*before)


class uncollected:
    """Run what is inside without collections, in all threads; collections go on after it if they did before it."""

    def __enter__(self) -> None:  # written out: a launch may ask thousands of times
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self._was_on:
            gc.enable()
