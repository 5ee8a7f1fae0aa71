"""Libraries whose arrays may come in: callers have loaded them, or there are none."""

from __future__ import annotations

import sys
from typing import Any


def loaded(name: str) -> Any:
    """The module of that name once its import is done; None before. While one thread imports a library, others see it
    with half of its names; no array of it can come in yet."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module
