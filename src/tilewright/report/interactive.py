"""The parts of the page that answer clicks: their places in the HTML, their data, and the script built from page/."""

from __future__ import annotations

from pathlib import Path

from . import traces

SCRIPT = Path(__file__).with_name("built") / "page.js"
PARTS = {
    "Step through a kernel": (
        "stepper",
        "What one block does, instruction by instruction, as the emulator ran it. Choose a kernel, a warp and a lane; "
        "arrow keys step. The address of this page keeps the choice.",
    ),
}
"""Title -> (the id of what the script fills, words above it)."""
_WITHOUT = "<noscript><p>This part needs JavaScript. The charts do not.</p></noscript>"


def part(title: str) -> str:
    """What stands under a title until the script fills it."""
    name, words = PARTS[title]
    return f'<p>{words}</p>{_WITHOUT}<div id="{name}"></div>'


def scripts() -> str:
    """The data and the script, at the end of the page."""
    data = {"traces": traces.shipped()}
    told = "".join(_data(name, text) for name, text in data.items())
    return f"{told}<script>{SCRIPT.read_text(encoding='utf-8')}</script>"


def _data(name: str, text: str) -> str:
    """JSON in the page, where no text of it can end the element."""
    escaped = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{escaped}</script>'
