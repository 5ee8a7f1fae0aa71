"""All families, and what a table holds of them."""

from __future__ import annotations

from typing import Any

from ..attn.family import ATTENTION
from ..gemm.family import PRODUCTS
from ..plan.entries import AnyEntry, Table
from ..plan.family import Family

FAMILIES: tuple[Family[Any, Any, Any, Any], ...] = (PRODUCTS, ATTENTION)


def entries_of(table: Table) -> dict[str, AnyEntry]:
    """Every entry of a table, by the key of its class, in order. Raises CacheError where one is damaged."""
    table.check()
    found: dict[str, AnyEntry] = {}
    for family in FAMILIES:
        view = table.of(family)
        view.check()
        found |= view
    return dict(sorted(found.items()))
