"""The notebooks run without a GPU, and print what they hold."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[tuple[str, str, list[str]]]:
    """(source, what it printed, the text of what it displayed) of each code cell."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            streams = "".join("".join(out["text"]) for out in cell["outputs"] if out["output_type"] == "stream")
            shown = ["".join(out["data"]["text/plain"]) for out in cell["outputs"] if "data" in out]
            found.append(("".join(cell["source"]), streams, shown))
    return found


def run_cell(source: str, names: dict[str, Any]) -> list[str]:
    """Execute a cell; the repr of its last expression, if it has one that is not None."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return [] if value is None else [repr(value)]


def test_there_are_three():
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_run_and_print_what_it_holds(path):
    displayed: list[str] = []
    names: dict[str, Any] = {"__name__": "__main__", "display": lambda value: displayed.append(repr(value))}
    for source, printed, shown in code_cells(path):
        displayed.clear()
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            value = run_cell(source, names)
        assert said.getvalue() == printed, source
        assert [*displayed, *value] == shown, source
