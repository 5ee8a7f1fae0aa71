"""CONTRIBUTING.md's map is the tree as it is, and files that pages and docstrings name are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from test_import import BELOW

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tilewright"
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MAP = PAGES[0].read_text(encoding="utf-8")
NAME = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|cuh))`")
"""A file, as pages write one."""
COMMENTED = re.compile(r"(?<![\w./*-])(?!cub/)(?:[\w-]+/)*[a-z]\w*\.(?:py|cuh)\b")
"""A file, as docstrings write one; not of CUB."""


def rows() -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in MAP.splitlines() if line.startswith("| `")
    ]


def first_cells() -> set[str]:
    return {name for row in rows() for name in re.findall(r"`([^`]+)`", row[0])}


def is_there(name: str, *folders: Path) -> bool:
    return any((folder / name).exists() for folder in (ROOT, PACKAGE, PACKAGE / "cuda", *folders))


def test_the_map_has_every_room_and_no_other():
    there = {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir()}
    there |= {path.name for path in PACKAGE.glob("*.py")}
    there |= {f"cuda/{path.name}/" for path in (PACKAGE / "cuda").iterdir() if path.is_dir()}
    assert first_cells() == there - {"__pycache__/"}


def test_the_map_says_what_each_room_of_the_core_imports():
    above: set[str] = set()
    for name, _, imported in (row for row in rows() if len(row) == 3):
        room = name.strip("`").removesuffix("/").removesuffix(".py")
        if room not in BELOW:
            continue
        words = imported.split(";")[0]
        all_but = re.fullmatch(r"all above(?: but (\w+))?", words)
        said = above - {all_but[1]} if all_but else None
        assert BELOW[room] - {room} == (set(filter(None, words.split(", "))) if said is None else said), room
        above |= {room}
    assert above == set(BELOW)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_that_a_page_names_are_there(page):
    named = NAME.findall(page.read_text(encoding="utf-8"))
    assert not [name for name in named if not is_there(name, PACKAGE / "emu")]


def test_files_that_docstrings_name_are_there():
    missing = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                around = (path.parent, path.parent.parent, PACKAGE / "cuda" / "gemm")
                names = COMMENTED.findall(node.value.value)
                missing += [f"{path.relative_to(PACKAGE)}: {name}" for name in names if not is_there(name, *around)]
    assert not missing
