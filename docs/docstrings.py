"""Docstrings as the site shows them: parameters become a list, and indented lines below a sentence keep their form.

mkdocs.yml names it as an extension of griffe, which reads the docstrings.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_PARAMETERS = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): ")


def as_markdown(text: str) -> str:
    """The text of a docstring as Markdown."""
    return "\n\n".join(map(_paragraph, text.split("\n\n")))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    indented = [line.startswith("    ") for line in lines]
    starts = [_PARAMETERS.match(line) for line in lines]
    if not starts[0] or not (any(indented) or all(starts)):
        first = indented.index(True) if True in indented else 0
        return "\n".join([*lines[:first], "", *lines[first:]]) if first else text
    listed = (
        "- **{}**: {}".format(start[1].replace("*", r"\*"), line[start.end() :]) if start else line
        for start, line in zip(starts, lines, strict=True)
    )
    return "\n".join(listed)


class Parameters(griffe.Extension):
    """Rewrites each docstring when it has been read."""

    def on_object(self, *, obj: griffe.Object, **given: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
