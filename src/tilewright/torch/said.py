"""The text of a function of somebody else's model, by which `accelerate` knows it, and what takes its place."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from torch import nn


def body(text: str) -> list[str]:
    """The statements of a text, in a form in which blanks and comments do not count."""
    return [ast.dump(line) for line in ast.parse(text).body]


def says(function: Any, arguments: Sequence[Sequence[str]], bodies: Sequence[list[str]]) -> bool:
    """Return whether a function takes one of these lists of arguments, and says one of these bodies, but for its
    docstring and annotations."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, SyntaxError, TypeError):
        return False
    if not isinstance(tree, ast.FunctionDef) or [one.arg for one in tree.args.args] not in arguments:
        return False
    own = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    return [ast.dump(line) for line in own] in bodies


def give(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Let a module run a function named "forward" in place of its class's. Copies do too; one out of a pickle does as
    its class."""
    module.__dict__["forward"] = MethodType(forward, module)


def take_back(module: nn.Module) -> None:
    """Undo `give`."""
    module.__dict__.pop("forward", None)
