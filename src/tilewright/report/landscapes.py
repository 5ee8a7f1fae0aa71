"""Every config that was measured for a product, by the best one's speed: how much the choice matters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from .cells import Record

Part = Callable[[str], str]
"""Of a config's text what names its row."""
NEAR = 0.95


@dataclass(frozen=True)
class Row:
    """Configs of a product, or of a part of it: (text, us, share of the speed of the product's best)."""

    name: str
    product: str
    configs: tuple[tuple[str, float, float], ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """See NAMES."""
        text, us, _ = min(self.configs, key=lambda config: config[1])
        shares = [share for _, _, share in self.configs]
        near = sum(share >= NEAR for share in shares)
        return self.name, str(len(shares)), text, f"{us:.4g}", f"{max(shares):.1%}", str(near), f"{median(shares):.0%}"


NAMES = ("configs of", "number", "the fastest of them", "us", "of the best", f"above {NEAR:.0%}", "the median's share")


def tile(config: str) -> str:
    """The tile of a product's config, "128x256x64"."""
    return config.split()[0]


def attention_tile(config: str) -> str:
    """Queries and keys of a tile of attention's config, "128 x 64"."""
    _, queries, keys = re.findall(r"\d+", config)[:3]
    return f"{queries} x {keys}"


def rows(records: Sequence[Record], part: Part | None = None) -> list[Row]:
    """A row per product, or per part of a product's configs. A record holds many configs, or is of one."""
    best: dict[str, float] = {}
    held: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for record in records:
        product = _product(record)
        for text, us in _configs(record):
            held.setdefault((product, part(text) if part else product), []).append((text, us))
            best[product] = min(us, best.get(product, us))
    return [
        Row(name, product, tuple((text, us, best[product] / us) for text, us in configs))
        for (product, name), configs in held.items()
    ]


def _product(record: Record) -> str:
    case = record["case"]
    if "m" in case:
        return "{m}x{n}x{k} {layout}".format(**case)
    return "{batch} x {heads_q} heads, {seq_q} x {seq_k}, d_head {d_head}".format(**case)


def _configs(record: Record) -> list[tuple[str, float]]:
    case, result = record["case"], record["result"]
    one = [{"config_text": case.get("config_text"), "us": result["ms"] * 1e3}] if "ms" in result else []
    return [(str(config["config_text"]), float(config["us"])) for config in result.get("configs", one)]


def page(part: Part | None = None) -> Callable[[Sequence[Record], Sequence[str]], list[str]]:
    """Return what makes the rows' table for README and docs."""

    def lines(records: Sequence[Record], stale: Sequence[str] = ()) -> list[str]:
        table = [NAMES, ("---",) * len(NAMES), *(row.cells for row in rows(records, part))]
        return [f"| {' | '.join(cells)} |" for cells in table]

    return lines
