"""What a reader of help() meets first: docstrings of public names begin with an imperative or a noun phrase."""

from __future__ import annotations

import inspect

import pytest

import tilewright as tw
import tilewright.emu
import tilewright.epilogue
import tilewright.lab
import tilewright.ladder

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
