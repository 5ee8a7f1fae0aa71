"""The page of instructions names every form that the emulator decodes."""

from __future__ import annotations

from pathlib import Path

from tilewright.emu.isa.registry import families, forms
from tilewright.report.instructions import markdown, spelled

PAGE = Path(__file__).parents[2] / "docs" / "instructions.md"


def test_each_form_has_a_family_and_is_on_the_page():
    lines = set(PAGE.read_text().splitlines())
    assert sorted(form for some in families().values() for form in some) == forms()
    assert {spelled(form) for form in forms()} <= lines
    assert markdown() in PAGE.read_text()
