"""A page in headless Chromium: built once, each visit in a context of its own, and none may complain."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilewright.report.page import build

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP = {"width": 1100, "height": 900}


@pytest.fixture(scope="session")
def address(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(build(ROOT / "benchmarks" / "results"), encoding="utf-8")
    return file.as_uri()


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install '.[test]')"
    )
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on the PATH, so the page's controls are not tested")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, address):
    """visit(state, scheme=, viewport=): a page; at the end none may have complained or asked for anything."""
    contexts, complaints = [], []

    def go(state: str = "", scheme: str = "light", viewport=DESKTOP):
        context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda told: complaints.append(told.text) if told.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith("file:") else complaints.append(asked.url))
        page.goto(f"{address}#{state}")
        return page

    yield go
    for context in contexts:
        context.close()
    assert not complaints
