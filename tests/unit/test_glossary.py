"""docs/glossary.md defines each word once, in order, in two short lines; and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "glossary.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^\*\*(.+?)\.\*\* (.*)\n(.*)$", PAGE, re.MULTILINE)


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_the_words_are_in_order_and_each_has_two_lines():
    words = [word.lower() for word, *_ in ENTRIES]
    assert words == sorted(set(words))
    assert len(words) == PAGE.count("**") // 2
    assert {"sector", "wavefront", "bank conflict", "fragment", "tile", "stage", "wave", "epilogue", "swizzle",
            "occupancy", "rung", "class"} <= set(words)  # fmt: skip
    assert all(len(line) <= 130 for _, *lines in ENTRIES for line in lines)


def test_links_of_the_pages_lead_to_files_and_headings():
    for page in DOCS.glob("*.md"):
        for name, fragment in re.findall(r"\]\((?!https?:)([\w./-]*)(?:#([\w-]+))?\)", page.read_text()):
            target = DOCS / name if name else page
            assert target.exists(), (page.name, name)
            assert DOCS in target.resolve().parents, f"{page.name}: the site has no {name}"
            if fragment:
                headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
                assert fragment in map(anchor, headings), (page.name, name, fragment)


def test_every_page_of_kernels_links_the_glossary():
    for name in ("ladder", "tensor-cores", "attention", "emulator", "tuning", "lab"):
        assert "(glossary.md)" in (DOCS / f"{name}.md").read_text(), name
