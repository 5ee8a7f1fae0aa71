"""What a reader of help() meets first: docstrings of public names begin with an imperative or a noun phrase."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tilewright as tw
import tilewright.emu
import tilewright.epilogue
import tilewright.lab
import tilewright.ladder

ROOT = Path(__file__).parents[2]
CLAUSES = {"Whether", "What", "Of", "How", "Where", "As", "Which", "Who", "That", "If"}
MODULES = (tw, tw.emu, tw.epilogue, tw.lab, tw.ladder)
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in MODULES
    for name in [*getattr(module, "__all__", ()), "__doc__"]
    if callable(getattr(module, name, None))
}


def documented(name: str) -> dict[str, str]:
    thing = PUBLIC[name]
    members = vars(thing).items() if inspect.isclass(thing) and thing.__module__.startswith("tilewright") else ()
    own = {name: thing, **{f"{name}.{member}": value for member, value in members if not member.startswith("_")}}
    return {name: text for name, value in own.items() if isinstance(text := getattr(value, "__doc__", None), str)}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_docstring_begins_with_an_imperative_or_a_noun(name):
    told = documented(name)
    assert told, f"{name} says nothing"
    assert not {where for where, text in told.items() if text.split()[:1] and text.split()[0].strip(",:") in CLAUSES}


RESULTS = {"Explanation", "GroupedExplanation", "AttentionExplanation", "BackwardExplanation", "EmulateResult", "Tuned"}
"""Types of results, which the functions that return them describe."""


def exported(package: str) -> set[str]:
    """The names of __all__, without an import: torch and jax need not be installed."""
    tree = ast.parse((ROOT / "src" / "tilewright" / package / "__init__.py").read_text(encoding="utf-8"))
    (names,) = (
        ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__"
    )
    return set(names)


@pytest.mark.parametrize("package", ["", "torch", "jax", "lab"])
def test_the_reference_has_every_public_name(package):
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    prefix = f"tilewright.{package}." if package else "tilewright."
    shown = {name.split(".")[-1] for name in re.findall(rf"^::: {re.escape(prefix)}([\w.]+)$", page, re.MULTILINE)}
    wanted = exported(package) - RESULTS - {"__version__"}
    assert wanted <= shown, wanted - shown


def test_the_reference_has_every_error():
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    errors = {name for name, each in vars(tw.errors).items() if inspect.isclass(each) and issubclass(each, Exception)}
    assert errors == set(re.findall(r"^        - (\w+)$", page, re.MULTILINE))


def test_parameters_become_a_list_on_the_site_and_indented_tables_stay(monkeypatch):
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object))  # which only the site needs
    found = importlib.util.spec_from_file_location("docstrings", ROOT / "docs" / "docstrings.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    for text, shown in (
        (
            "Do.\n\na, b: arrays\n    of x.\n*rest: others.",
            "Do.\n\n- **a, b**: arrays\n    of x.\n- **\\*rest**: others.",
        ),
        ("The result is\n    x   y", "The result is\n\n    x   y"),
        ("Note: no list\nhere.", "Note: no list\nhere."),
    ):
        assert module.as_markdown(text).endswith(shown)
