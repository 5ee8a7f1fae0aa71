"""A word to libraries that keep track of changes, about an array that was written to without them."""

from __future__ import annotations

from typing import Any

from .loaded import loaded


def mark_written(array: Any) -> None:
    """Bump the version of a torch tensor, so that a backward pass that saved its old values raises an error."""
    torch = loaded("torch")
    if torch is not None and isinstance(array, torch.Tensor) and not array.is_inference():
        torch.autograd.graph.increment_version(array)
