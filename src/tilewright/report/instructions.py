"""The page of the PTX instructions that the emulator executes, from its registry."""

from __future__ import annotations

import re
from importlib import import_module

from ..emu.isa.registry import families


def markdown() -> str:
    """A heading and the forms of each family of instructions."""
    parts = []
    for name, forms in families().items():
        about = (import_module(name).__doc__ or name).split("\n\n")[0].replace("\n", " ")
        title = re.split(r"(?<=[^.])\.(?: |$)|: ", about, maxsplit=1)[0]
        rest = about[len(title) :].lstrip(".: ")
        shown = sorted({spelled(form) for form in forms})
        title = (
            title if title.split(".")[0].split()[0] in {re.split(r"\W", form)[0] for form in shown} else _upper(title)
        )
        said = f"{_upper(rest)}\n\n" if rest else ""
        parts.append(f"### {title}\n\n{said}```\n" + "\n".join(shown) + "\n```\n")
    return "\n".join(parts)


def spelled(form: str) -> str:
    """A form without the names of its fields."""
    return re.sub(r"\{([^|{}]*)\}", r"\1", re.sub(r"\{\w+:", "{", form))


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
