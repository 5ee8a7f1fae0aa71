"""Figures in sentences, out of records: `<!-- figure: SUITE [WHO] [KEY VALUE]... NAME -->1.05<!-- end -->`.

The record is the one of a suite whose subject is WHO and whose case has these values (* is any); NAME is a figure of
its result. `mean`, `least` or `most` before the suite takes it of several records (the mean is the geometric one),
`count` how many there are, and ` / ` between two of these is their ratio.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean

from ..errors import TilewrightError
from ..lab.fingerprint import why_stale
from ..lab.record import find_records, who
from ..lab.suite import read_suite
from .cells import DAGGER

OVER: dict[str, Callable[[list[float]], float]] = {"mean": geometric_mean, "least": min, "most": max, "count": len}
_FIGURE = re.compile(r"(<!-- figure: (.+?) -->)([^<]*)(<!-- end -->)")


def fill_figures(text: str, folder: Path) -> str:
    """`text` with every figure made anew from the records in `folder`, two digits after the point.

    A figure of records that may no longer hold gets a dagger. Raises TilewrightError where no record, or more than one,
    is meant.
    """

    def made(match: re.Match[str]) -> str:
        parts = [_value(words.split(), folder) for words in match[2].split(" / ")]
        value = parts[0][0] / parts[1][0] if len(parts) > 1 else parts[0][0]
        mark = DAGGER if any(stale for _, stale in parts) else ""
        return f"{match[1]}{value if isinstance(value, int) else f'{value:.2f}{mark}'}{match[4]}"

    return _FIGURE.sub(made, text)


def _value(words: list[str], folder: Path) -> tuple[float, bool]:
    """(the figure that words name, whether one of its records may no longer hold)."""
    over = OVER[words.pop(0)] if words[0] in OVER else None
    suite, *rest, name = words
    subject = rest.pop(0) if len(rest) % 2 else ""
    wanted = dict(zip(rest[::2], rest[1::2], strict=True))
    records = [
        record
        for record in find_records(folder, suite)
        if who(record).startswith(subject)
        and record["result"].get(name) is not None
        and all(key in record["case"] and value in ("*", str(record["case"][key])) for key, value in wanted.items())
    ]
    if not records or (over is None and len(records) > 1):
        raise TilewrightError(f"figure {' '.join(words)!r}: {len(records)} records in {folder} are meant.")
    made_by = folder.parent / f"{suite}.json"
    definition = read_suite(made_by) if made_by.is_file() else None
    values = [record["result"][name] for record in records]
    stale = any(why_stale(record, definition) for record in records)
    return (values[0] if over is None else over(values)), stale
