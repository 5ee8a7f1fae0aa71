"""One tuning result, and tables of them as JSON.

    {"schema": 1, "gpu": "H200", "driver": "cuda13",
     "configs": {"1f0c...": {"rung": ..., "packs": ..., the config's own fields}},
     "entries": [{"class": {...}, "shape": [m, n, k, batch], "ms": {"1f0c...": 0.0123, ...}, "failed": [...], ...}]}

Configs stand once and are named by their content, so that tables merge without renaming. Results of all families stand
in one table; what a class, a shape and a config are, their family knows (family.Family), and a table that holds results
of a family that nobody asks for keeps them as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import isfinite
from mmap import mmap
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import CacheError
from .laid_out import CLASS_FIRST, CONFIGS, END, ENTRIES, LaidOut, by_rows, line

if TYPE_CHECKING:
    from .family import Family

K = TypeVar("K")
C = TypeVar("C")

SCHEMA = 1


@dataclass(frozen=True)
class Failure:
    """A candidate that was not timed. `kind`: compile, launch, wrong, or crash; `reason`: the first line of it."""

    rung: str
    config: str
    kind: str
    reason: str


def worded(config: Any, packs: tuple[str, ...]) -> str:
    """A config and what is packed before it, in words."""
    return str(config) + (f", {' and '.join(packs)} packed first" if packs else "")


@dataclass(frozen=True)
class Timed(Generic[C]):
    """A candidate's time on the device in ms, as a median of interleaved runs that all candidates shared."""

    rung: str
    config: C
    ms: float
    packs: tuple[str, ...] = ()
    """Operands copied to aligned lines first (plan.Plan.packs); the time holds that, and summing where k is split."""

    @property
    def one_launch(self) -> bool:
        return not self.packs and self.config.parts == 1  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return f"{self.rung} {worded(self.config, self.packs)}"


@dataclass(frozen=True)
class Entry(Generic[K, C]):
    """The results of tuning one problem. `timed` is sorted, the best first."""

    klass: K
    shape: tuple[int, ...]
    """m, n, k, batch; of attention batch, heads_q, heads_kv, seq_q, seq_k."""
    timed: tuple[Timed[C], ...]
    failed: tuple[Failure, ...] = ()
    kernels: str = ""
    """Hash of the device code that was measured (kernel_set)."""
    when: str = ""
    """ISO 8601, UTC."""
    finished: bool = True
    """False where tuning was stopped: what was measured until then."""
    seconds: float = 0.0
    """What tuning took, compiling included."""
    unknown: int = field(default=0, compare=False)
    """Results in the file of configs that this version does not know: left out of `timed`."""
    epilogue: str = ""
    """What was computed with the product while it was measured, as Epilogue.description; "" of a bare one."""
    duel: str = ""
    """How the best candidate did against what ran before, pair by pair; "" where nothing else ran before."""

    @property
    def key(self) -> str:
        return str(self.klass)

    @property
    def best(self) -> Timed[C]:
        return self.timed[0]


AnyEntry = Entry[Any, Any]
Row = dict[str, Any]
"""An entry as its JSON has it."""


def newer(one: Row, other: Row) -> Row:
    """Return which of two results for a class stands: a finished one of the same kernels, else the later one.

    Equal dates are decided by content, so that the order of merging does not matter.
    """
    if one["kernels"] == other["kernels"] and one["finished"] != other["finished"]:
        return one if one["finished"] else other
    return max(one, other, key=lambda row: (row["when"], line(row)))


def _named(timed: Timed[Any]) -> dict[str, Any]:
    packs = {"packs": "".join(timed.packs)} if timed.packs else {}
    return {"rung": timed.rung, **packs, **timed.config.to_dict()}


@lru_cache(maxsize=4096)
def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _id(named: Mapping[str, Any]) -> str:
    """A short name of what was timed, from its content."""
    return _hash(json.dumps(named, sort_keys=True))


def _class_text(values: Mapping[str, Any]) -> str:
    """Return what tells classes apart, whatever the order of their fields."""
    return json.dumps(values, sort_keys=True)


class Table:
    """Tuning results of any family, by class, as JSON has them: a family decodes its own when it asks.

    Rows and configs may still be text, which is parsed when it is asked for. Immutable.
    """

    def __init__(
        self, gpu: str = "", driver: str = "", rows: Iterable[Any] = (), configs: Mapping[str, Any] | None = None,
        text: LaidOut | None = None,
    ) -> None:  # fmt: skip
        """`rows`: whole entries, of which the last of a class counts. `text`: where rows and configs are instead."""
        self.gpu, self.driver, self.text = gpu, driver, text
        self._given = tuple(rows), dict(configs or {})
        self._views: dict[str, View] = {}

    @cached_property
    def _listed(self) -> tuple[Any, ...]:
        """The rows."""
        return self._given[0] if self.text is None else self.text.rows()

    @cached_property
    def _configs(self) -> dict[str, Any]:
        return self._given[1] if self.text is None else self.text.configs()

    @cached_property
    def _classes(self) -> list[dict[str, Any]]:
        """The class of each row. Of rows that are text all are parsed at once, which takes a fifth of the time."""
        start = len(CLASS_FIRST) - 1
        texts = [row[start : row.index("}") + 1] for row in self._listed if isinstance(row, str)]
        parsed = json.loads(f"[{','.join(texts)}]")
        if len(parsed) != len(texts):
            raise ValueError("a class is not one JSON object")
        of_texts = iter(parsed)
        return [next(of_texts) if isinstance(row, str) else dict(row["class"]) for row in self._listed]

    @cached_property
    def _rows(self) -> dict[str, Any]:
        """The rows by the text of their class (_class_text)."""
        return {_class_text(values): row for values, row in zip(self._classes, self._listed, strict=True)}

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, family: Family[Any, Any, Any, Any]) -> View:
        """A family's entries, decoded as they are asked for. Raises CacheError where a class is damaged."""
        if family.name not in self._views:
            self._views[family.name] = View(family, self)
        return self._views[family.name]

    def classed(self) -> Iterable[tuple[dict[str, Any], Any]]:
        """The class of each row, and the row."""
        return zip(self._classes, self._listed, strict=True)

    def row(self, text: str) -> Row:
        return dict(_parsed(self._rows[text]))

    def config(self, name: str) -> dict[str, Any]:
        found = None if self.text is None else self.text.config(name)
        return dict(_parsed(self._configs[name] if found is None else found))

    def merged(self, other: Table, replace: bool = False) -> Table:
        """Both tables' entries; of two for one class the newer, or, with `replace`, the other table's."""
        rows = dict(self._rows)
        for text, row in other._rows.items():
            known = text in rows and not replace
            rows[text] = newer(self.row(text), other.row(text)) if known else row
        return Table(self.gpu, self.driver, rows.values(), self._configs | other._configs)

    def differing(self, other: Table) -> int:
        """Return how many classes have another result than in the other table, or none there."""
        return sum(text not in other._rows or self.row(text) != other.row(text) for text in self._rows)

    def check(self) -> None:
        """Raise CacheError for rows that are none, whatever their family."""
        with saying_what_is_wrong():
            for text in self._rows:
                row = self.row(text)
                for name, wanted in _FIELDS:
                    if not isinstance(row[name], wanted):
                        raise TypeError(f"{name} is {row[name]!r}")
                for name in row["ms"]:
                    self.config(name)


_FIELDS: tuple[tuple[str, type], ...] = (
    ("class", dict), ("shape", list), ("ms", dict), ("failed", list), ("kernels", str), ("when", str),
    ("finished", bool),
)  # fmt: skip


class View(Mapping[str, AnyEntry]):
    """One family's entries in a table, by the key of their class; decoded when first asked for.

    Entries without a result that this version knows are not there. Raises CacheError for a damaged entry when that is
    asked for.
    """

    def __init__(self, family: Family[Any, Any, Any, Any], table: Table) -> None:
        self._family, self._table = family, table
        self._known: dict[str, tuple[str, Any, tuple[str, ...]] | None] = {}
        self.decoded: dict[str, AnyEntry] = {}
        """Those that were asked for."""
        self._sound = False

    @cached_property
    def _rows(self) -> dict[str, tuple[dict[str, Any], Any]]:
        """The values of each entry's class and the entry, by the key of the class."""
        family = self._family
        with saying_what_is_wrong():
            classed = self._table.classed()
            return {family.class_key(values): (values, row) for values, row in classed if family.owns(values)}

    def of_class(self, klass: Any) -> AnyEntry | None:
        """The entry of a class, None where there is none; of a table that is still text nothing else is parsed."""
        key, text = str(klass), self._table.text
        if text is not None and "_rows" not in self.__dict__ and key not in self.decoded:
            with saying_what_is_wrong():
                row = text.row(klass.to_dict())
                if row is None:
                    return None
                entry = _entry(klass, _parsed(row), self._config, self._family.shape_extents)
            entry = self.decoded.setdefault(key, entry)
            return entry if entry.timed else None
        return self.get(key)

    @property
    def classes(self) -> dict[str, Any]:
        """The classes by key, those without a known result too."""
        with saying_what_is_wrong():
            return {key: self._family.read_class(values) for key, (values, _) in self._rows.items()}

    @cached_property
    def columns(self) -> tuple[Sequence[str], Any]:
        """The keys, and the classes as Family.distances takes them: none of them is made for that."""
        with saying_what_is_wrong():
            return tuple(self._rows), self._family.columns([values for values, _ in self._rows.values()])

    def __getitem__(self, key: str) -> AnyEntry:
        entry = self.decoded.get(key)
        if entry is None:
            values, row = self._rows[key]
            with saying_what_is_wrong():
                klass = self._family.read_class(values)
                entry = _entry(klass, _parsed(row), self._config, self._family.shape_extents)
            entry = self.decoded.setdefault(key, entry)  # another thread may have been first
        if not entry.timed:
            raise KeyError(key)
        return entry

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._rows if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def check(self) -> None:
        """Decode all, once. Raises CacheError where an entry, or a config of the table's, is damaged."""
        if not self._sound:
            for key in self._rows:
                self.get(key)
            self._sound = True

    def _config(self, name: str) -> tuple[str, Any, tuple[str, ...]] | None:
        """(rung, config, what is packed); None for one of another version's making."""
        if name not in self._known:
            values = self._table.config(name)
            rung, packs = values.pop("rung"), values.pop("packs", "")
            if not isinstance(rung, str):
                raise ValueError(f"rung={rung!r} is not a name")
            if packs not in ("", "a", "b", "ab"):
                raise ValueError(f"packs={packs!r} names no operands")
            config = self._family.read_config(rung, values)
            self._known[name] = None if config is None else (rung, config, tuple(packs))
        return self._known[name]


@contextmanager
def saying_what_is_wrong() -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CacheError(f"it is not a table of tuning results ({type(error).__name__}: {error})") from error


def table_of(entries: Iterable[AnyEntry], gpu: str = "", driver: str = "") -> Table:
    """A table of these entries; of two for one class the last."""
    rows: dict[str, Any] = {}
    configs: dict[str, Any] = {}
    for entry in entries:
        named = [(_named(timed), timed.ms) for timed in entry.timed]
        configs |= {_id(values): values for values, _ in named}
        values = entry.klass.to_dict()
        rows[_class_text(values)] = {
            "class": values,  # first: Table._classes
            "shape": list(entry.shape),
            "ms": {_id(values): float(f"{ms:.5g}") for values, ms in named},
            "failed": [[f.rung, f.config, f.kind, f.reason] for f in entry.failed],
            "kernels": entry.kernels,
            "when": entry.when,
            "finished": entry.finished,
            "seconds": round(entry.seconds, 2),
            **({"epilogue": entry.epilogue} if entry.epilogue else {}),
            **({"duel": entry.duel} if entry.duel else {}),
        }
    return Table(gpu, driver, rows.values(), configs)


def encode(table: Table) -> bytes:
    """A table as JSON, one entry per line, always the same for the same entries."""
    rows = {text: table.row(text) for text in sorted(table._rows)}
    used = sorted({name for row in rows.values() for name in row["ms"]})
    head = f'{{"schema":{SCHEMA},"gpu":{line(table.gpu)},"driver":{line(table.driver)}'
    configs = ",\n".join(f"{line(name)}:{line(table.config(name))}" for name in used)
    return (head + CONFIGS + configs + ENTRIES + ",\n".join(map(line, rows.values())) + END).encode()


def trusted(data: bytes | mmap) -> Table:
    """Do as `decode`, of a table that ships: laid out as `encode` does, and what is damaged within is found when asked.
    Of a file that is mapped only what is looked at is read."""
    try:
        text = LaidOut(data)
        if text.head["schema"] != SCHEMA:
            raise ValueError(f"schema {text.head['schema']!r} instead of {SCHEMA}")
        return Table(text.head["gpu"], text.head["driver"], text=text)
    except (ValueError, KeyError):
        return decode(data[:])


def decode(data: bytes) -> Table:
    """A table's JSON, of which only what is asked for is looked at. Raises CacheError for what is not a table.

    Configs with fields that this version does not know are not shown: a newer version may have written them.
    """
    with saying_what_is_wrong():
        found = by_rows(data.decode())
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']!r} instead of {SCHEMA}")
        if not isinstance(found["gpu"], str) or not isinstance(found["driver"], str):
            raise TypeError("gpu and driver must be text")
        table = Table(found["gpu"], found["driver"], found["entries"], dict(found["configs"].items()))
        _ = table._classes  # damaged ones are found now
        return table


def _parsed(row: Any) -> Any:
    return json.loads(row) if isinstance(row, str) else row


def _entry(
    klass: Any, values: Row, config_of: Callable[[str], tuple[str, Any, tuple[str, ...]] | None], extents: int
) -> AnyEntry:
    timed: list[Timed[Any]] = []
    for key, ms in values["ms"].items():
        known = config_of(key)
        if not isinstance(ms, (int, float)) or not isfinite(ms) or ms <= 0:
            raise ValueError(f"{ms!r} is not a time")
        if known is not None:
            rung, config, packs = known
            timed.append(Timed(rung, config, float(ms), packs))
    shape = tuple(values["shape"])
    if len(shape) != extents or not all(type(e) is int and 1 <= e < 2**31 for e in shape):
        raise ValueError(f"{values['shape']!r} is not a shape")
    return Entry(
        klass, shape, tuple(sorted(timed, key=lambda t: t.ms)),
        tuple(Failure(*map(str, failure)) for failure in values["failed"]), str(values["kernels"]),
        str(values["when"]), bool(values["finished"]), float(values["seconds"]), len(values["ms"]) - len(timed),
        str(values.get("epilogue", "")), str(values.get("duel", "")),
    )  # fmt: skip
