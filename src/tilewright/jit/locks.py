"""Locks that the child of a fork finds open: the threads that held them are not in it."""

from __future__ import annotations

import os
import threading
import weakref

_made: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def lock() -> threading.Lock:
    """A lock, open in whatever is forked from this process."""
    made = threading.Lock()
    _made.add(made)
    return made


def _open_all() -> None:
    for made in list(_made):
        made._at_fork_reinit()  # type: ignore[attr-defined]  # as threading does with its own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_all)
