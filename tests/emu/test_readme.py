"""The code of README.md and of docs runs as it stands, on the emulator, and prints what the pages say it prints.

A block's info string says what it needs besides: "python torch". The blocks of a page run in order, one after another,
as in a notebook. A ```text block below a block is its output. Commands: tests/unit/test_docs_commands.py; .ci/run runs
those of the README's first block.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = {"epilogues.md": "test_epilogue_page.py"}
"""Pages whose code other tests run."""
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WRITTEN = [page for page in PAGES if page.name not in OTHERS and "```python" in page.read_text(encoding="utf-8")]


def blocks(page: Path) -> list[tuple[str, str]]:
    """(info string, text) of a page's blocks."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_its_python_runs_and_prints_what_the_page_says(page):
    names: dict = {"__name__": "__main__"}
    found = blocks(page)
    for (info, text), (below, output) in zip(found, [*found[1:], ("", "")], strict=True):
        language, *needs = info.split() or [""]
        if language != "python":
            continue
        for package in needs:
            pytest.importorskip(package)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(text, page.name, "exec"), names)
        if below == "text":
            assert said.getvalue() == output
    assert "tw" in names


def test_the_readme_has_a_block_with_its_output():
    kinds = [info for info, _ in blocks(ROOT / "README.md")]
    assert ("python", "text") in itertools.pairwise(kinds)


def test_every_block_says_what_it_is():
    known = {"python", "python torch", "python transformers", "python jax", "bash", "text", "cuda", "c++", ""}
    for page in PAGES:
        if page.name not in OTHERS:
            assert {info for info, _ in blocks(page)} <= known, page


def test_pages_it_names_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith("https://"):
                assert (page.parent / target).exists(), (page.name, target)


def test_the_python_of_the_page_on_attention_prints_its_plan(capsys):
    page = ROOT / "docs" / "attention.md"
    examples = [text for info, text in blocks(page) if info == "python"]
    names: dict = {}
    for example in examples:
        exec(example, names)
    assert names["lse"].shape == (1, 4, 40)
    assert names["dk"].shape == names["k"].shape
    assert "runs     a17_lazy_rescale" in capsys.readouterr().out
