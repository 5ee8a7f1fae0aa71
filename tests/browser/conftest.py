"""A page in headless Chromium: built once, loaded anew for each visit, and none may complain."""

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


@pytest.fixture(scope="session")
def pages(browser):
    """Open pages that no test uses, by scheme. To open another takes Chromium as long as to load one."""
    return {"light": [], "dark": []}


@pytest.fixture
def visit(browser, pages, address):
    """visit(state, scheme=, viewport=): a page; at the end none may have complained or asked for anything."""
    taken, complaints = [], []
    listeners = {
        "console": lambda told: complaints.append(told.text) if told.type in ("error", "warning") else None,
        "pageerror": lambda error: complaints.append(str(error)),
        "request": lambda asked: None if asked.url.startswith("file:") else complaints.append(asked.url),
    }

    def go(state: str = "", scheme: str = "light", viewport=DESKTOP):
        idle = pages[scheme]
        page = idle.pop() if idle else browser.new_context(color_scheme=scheme, reduced_motion="reduce").new_page()
        taken.append((scheme, page))
        page.set_viewport_size(viewport)
        for event, listener in listeners.items():
            page.on(event, listener)
        page.goto(f"{address}#{state}")
        return page

    yield go
    for scheme, page in taken:
        page.mouse.move(0, 0)  # else the next test would point at something
        page.goto("about:blank")
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        pages[scheme].append(page)
    assert not complaints
