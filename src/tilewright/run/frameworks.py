"""The way up to tilewright.torch and tilewright.jax, which stand on the core: who knows them says how to load one."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import MissingDependency


def _unknown(framework: str) -> None:
    raise MissingDependency(f"tilewright.{framework} is not loaded. Import it, or call what `import tilewright` names.")


_load: Callable[[str], object] = _unknown


def load_by(load: Callable[[str], object]) -> None:
    """Let `load` import the room of a framework, "torch" or "jax", which then registers itself where the core asks."""
    global _load
    _load = load


def load(framework: str) -> None:
    """Load the room of a framework. Raises what its import raises."""
    _load(framework)
