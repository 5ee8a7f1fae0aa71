"""One tuning result, and tables of them as JSON.

    {"schema": 1, "gpu": "H200", "driver": "cuda13",
     "configs": {"1f0c...": {"rung": ..., "packs": ..., the config's fields that are not default}},
     "entries": [{"class": {...}, "shape": [m, n, k, batch], "ms": {"1f0c...": 0.0123, ...}, "failed": [...], ...}]}

Configs stand once and are named by their content, so that tables merge without renaming. Attention's stand in the same
table, their configs as text, {"rung": ..., "attention": "(128, 128, 64, 4): load_2_2_2_fragments"}; the shape of its
problems is [batch, heads_q, heads_kv, seq_q, seq_k].
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import CacheError, ConfigRejected
from ..gemm.classes import ATTENTION, ProblemClass
from ..gemm.rung import GemmConfig

if TYPE_CHECKING:
    from ..attn.classes import AttentionClass
    from ..attn.rung import AttentionConfig

K = TypeVar("K", ProblemClass, "AttentionClass")
C = TypeVar("C", GemmConfig, "AttentionConfig")

SCHEMA = 1
MOST = 1 << 16
"""No number of a config is larger."""
_DEFAULTS = {f.name: f.default for f in fields(GemmConfig)}


@dataclass(frozen=True)
class Failure:
    """A candidate that was not timed. `kind`: compile, launch, wrong, or crash; `reason`: the first line of it."""

    rung: str
    config: str
    kind: str
    reason: str


def worded(config: GemmConfig | AttentionConfig, packs: tuple[str, ...]) -> str:
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
        return not self.packs and not (isinstance(self.config, GemmConfig) and self.config.split_k > 1)

    def __str__(self) -> str:
        return f"{self.rung} {worded(self.config, self.packs)}"


@dataclass(frozen=True)
class Entry(Generic[K, C]):
    """What tuning one problem found. `timed` is sorted, the best first."""

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

    @property
    def key(self) -> str:
        return str(self.klass)

    @property
    def best(self) -> Timed[C]:
        return self.timed[0]


GemmEntry = Entry[ProblemClass, GemmConfig]
AttentionEntry = Entry["AttentionClass", "AttentionConfig"]
AnyEntry = Entry[Any, Any]
Table = dict[str, AnyEntry]
"""Entries by the key of their class."""


def newer(one: AnyEntry, other: AnyEntry) -> AnyEntry:
    """Which of two results for a class stands: a finished one of the same kernels, else the later one.

    Equal dates are decided by content, so that the order of merging does not matter.
    """
    if one.kernels == other.kernels and one.finished != other.finished:
        return one if one.finished else other
    return max(one, other, key=lambda entry: (entry.when, repr(entry)))


def config_to_dict(config: GemmConfig) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    return {name: getattr(config, name) for name in config.given}


def _named(timed: Timed[Any]) -> dict[str, Any]:
    if not isinstance(timed.config, GemmConfig):
        return {"rung": timed.rung, "attention": str(timed.config)}
    packs = {"packs": "".join(timed.packs)} if timed.packs else {}
    return {"rung": timed.rung, **packs, **config_to_dict(timed.config)}


def _id(timed: Timed[Any]) -> str:
    """A short name of what was timed, from its content."""
    return _hash(json.dumps(_named(timed), sort_keys=True))


@lru_cache(maxsize=4096)
def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def encode(table: Mapping[str, AnyEntry], gpu: str, driver: str) -> bytes:
    """A table as JSON, one entry a line, always the same for the same entries."""
    configs = {_id(timed): _named(timed) for entry in table.values() for timed in entry.timed}
    entries = [
        {
            "class": entry.klass.to_dict(),  # first: _class_in
            "shape": list(entry.shape),
            "ms": {_id(timed): float(f"{timed.ms:.5g}") for timed in entry.timed},
            "failed": [[f.rung, f.config, f.kind, f.reason] for f in entry.failed],
            "kernels": entry.kernels,
            "when": entry.when,
            "finished": entry.finished,
            "seconds": round(entry.seconds, 2),
            **({"epilogue": entry.epilogue} if entry.epilogue else {}),
        }
        for _, entry in sorted(table.items())
    ]

    def line(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    head = f'{{"schema":{SCHEMA},"gpu":{line(gpu)},"driver":{line(driver)}'
    rows = ",\n".join(f"{line(key)}:{line(configs[key])}" for key in sorted(configs))
    return (head + _CONFIGS + rows + _ENTRIES + ",\n".join(line(entry) for entry in entries) + _END).encode()


_CONFIGS, _ENTRIES, _END = ',\n"configs":{\n', '},\n"entries":[\n', "]}\n"


def _by_rows(data: bytes) -> dict[str, Any]:
    """A table's JSON with each config and entry still as text, where it is laid out as `encode` does; else all parsed.

    JSON's own text holds no line ends, so a row ends where its line does. Parsing all takes three times as long.
    """
    text = data.decode()
    head, _, rest = text.partition(_CONFIGS)
    configs, _, entries = rest.partition(_ENTRIES)
    known = [row for row in configs.split(",\n") if row]
    found = [row for row in entries.removesuffix(_END).split(",\n") if row]
    if not entries.endswith(_END) or not _are_rows('"', known) or not _are_rows(_CLASS_FIRST, found):
        return dict(json.loads(text))
    rows = (row.partition('":') for row in known)
    return json.loads(head + "}") | {
        "configs": {key[1:]: row for key, _, row in rows},  # names are hashes (_id): nothing is escaped in them
        "entries": found,
    }


_CLASS_FIRST = '{"class":{'


def _are_rows(start: str, rows: list[str]) -> bool:
    return all(row.startswith(start) and row.endswith("}") for row in rows)


def _parsed(row: Any) -> Any:
    return json.loads(row) if isinstance(row, str) else row


def _class_in(entry: Any) -> dict[str, Any]:
    """The class of an entry, of one that is still text without parsing the rest: it stands first."""
    if not isinstance(entry, str):
        return dict(entry["class"])
    return dict(json.loads(entry[len(_CLASS_FIRST) - 1 : entry.index("}") + 1]))


class Stored(Mapping[str, AnyEntry]):
    """A table as its JSON has it: an entry is decoded when it is first asked for, since a plan asks for few of them.

    `found`: the JSON, parsed or by rows (`stored`). Raises CacheError: at once for what is no table or of another
    schema; for damaged classes when one of their op is asked for; for a damaged entry when that is. Entries without a
    result that this version knows are not there.
    """

    def __init__(self, found: Any) -> None:
        with _saying_what_is_wrong():
            if found["schema"] != SCHEMA:
                raise ValueError(f"schema {found['schema']!r} instead of {SCHEMA}")
            self.gpu, self.driver = found["gpu"], found["driver"]
            if not isinstance(self.gpu, str) or not isinstance(self.driver, str):
                raise TypeError("gpu and driver must be text")
            self._configs: dict[str, Any] = dict(found["configs"].items())
            self._rows: dict[bool, list[tuple[dict[str, Any], Any]]] = {False: [], True: []}
            for row in found["entries"]:
                klass = _class_in(row)
                self._rows["d_head" in klass].append((klass, row))
        self._entries: dict[bool, dict[str, tuple[Any, Any]]] = {}
        self._known: dict[str, _Known | None] = {}
        self.decoded: dict[str, AnyEntry] = {}
        """Those that were asked for."""

    def of_op(self, attention: bool) -> dict[str, tuple[Any, Any]]:
        """(class, row) of all entries for attention, or for products, by key."""
        if attention not in self._entries:
            read = _attention_class if attention else ProblemClass.from_dict
            with _saying_what_is_wrong():
                pairs = [(read(klass), row) for klass, row in self._rows[attention]]
            self._entries[attention] = {str(pair[0]): pair for pair in pairs}
        return self._entries[attention]

    def __getitem__(self, key: str) -> AnyEntry:
        entry = self.decoded.get(key)
        if entry is None:
            klass, row = self.of_op(key.startswith(ATTENTION))[key]
            with _saying_what_is_wrong():
                entry = _entry(klass, _parsed(row), self._config)
            entry = self.decoded.setdefault(key, entry)  # a thread beside us may have been first
        if not entry.timed:
            raise KeyError(key)
        return entry

    def __iter__(self) -> Iterator[str]:
        return (key for attention in (False, True) for key in self.of_op(attention) if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _config(self, name: str) -> _Known | None:
        if name not in self._known:
            self._known[name] = _config(_parsed(self._configs[name]))
        return self._known[name]

    def whole(self) -> Table:
        """All entries decoded, and all configs looked at. Raises CacheError."""
        with _saying_what_is_wrong():
            for name in self._configs:
                self._config(name)
        return dict(self)


@contextmanager
def _saying_what_is_wrong() -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CacheError(f"it is no table of tuning results ({type(error).__name__}: {error})") from error


def classes_in(table: Mapping[str, AnyEntry], kind: type[K]) -> list[tuple[str, K]]:
    """(key, class) of the entries for one op. Decodes none."""
    if isinstance(table, Stored):
        return [(key, klass) for key, (klass, _) in table.of_op(kind is not ProblemClass).items()]
    return [(key, entry.klass) for key, entry in table.items() if isinstance(entry.klass, kind)]


def decode(data: bytes) -> Table:
    """The entries of a table's JSON. Raises CacheError with what is wrong with it.

    Configs with fields that this version does not know are left out: a newer version may have written them.
    """
    return decode_named(data)[0]


def decode_named(data: bytes) -> tuple[Table, str, str]:
    """(entries, GPU, driver) of a table's JSON. See decode."""
    with _saying_what_is_wrong():
        found = json.loads(data)
    table = Stored(found)
    return table.whole(), table.gpu, table.driver


def stored(data: bytes) -> Stored:
    """A table's JSON, of which only what is asked for is looked at. Raises CacheError, as Stored says."""
    with _saying_what_is_wrong():
        found = _by_rows(data)
    return Stored(found)


_Known = tuple[str, Any, tuple[str, ...]]
"""A rung, its GemmConfig or AttentionConfig, and what is packed."""


def _config(values: dict[str, Any]) -> _Known | None:
    if not isinstance(values["rung"], str):
        raise ValueError(f"rung={values['rung']!r} is no name")
    if "attention" in values:
        from ..attn.rung import AttentionConfig

        try:
            tiles = AttentionConfig.parse(str(values["attention"]))
        except ConfigRejected:  # another version's grammar
            return None
        if reason := tiles.why_not():
            raise ValueError(f"no config: {reason}")
        return values["rung"], tiles, ()
    given = dict(values)
    rung, packs = given.pop("rung"), given.pop("packs", "")
    if not given.keys() <= _DEFAULTS.keys():
        return None
    for name, value in given.items():
        if not (isinstance(value, str) if name == "cache" else type(value) is int and abs(value) <= MOST):
            raise ValueError(f"{name}={value!r} is no value of a config")
    if packs not in ("", "a", "b", "ab"):
        raise ValueError(f"packs={packs!r} names no operands")
    config = GemmConfig(**given)
    if reason := config.no_block:
        raise ValueError(f"no config: {reason}")
    return rung, config, tuple(packs)


def _attention_class(values: dict[str, Any]) -> AttentionClass:
    from ..attn.classes import AttentionClass  # products have no use for attention's modules

    return AttentionClass.from_dict(values)


def _entry(klass: Any, values: dict[str, Any], config_of: Callable[[str], _Known | None]) -> AnyEntry:
    is_attention = not isinstance(klass, ProblemClass)
    timed: list[Timed[Any]] = []
    for key, ms in values["ms"].items():
        known = config_of(key)
        if not isinstance(ms, (int, float)) or not isfinite(ms) or ms <= 0:
            raise ValueError(f"{ms!r} is no time")
        if known is not None:
            rung, config, packs = known
            if isinstance(config, GemmConfig) == is_attention:
                raise TypeError(f"{config} is no config for {klass}")
            timed.append(Timed(rung, config, float(ms), packs))
    shape = tuple(values["shape"])
    if len(shape) != (5 if is_attention else 4) or not all(type(e) is int and 1 <= e < 2**31 for e in shape):
        raise ValueError(f"{values['shape']!r} is no shape")
    return Entry(
        klass, shape, tuple(sorted(timed, key=lambda t: t.ms)),
        tuple(Failure(*map(str, failure)) for failure in values["failed"]), str(values["kernels"]),
        str(values["when"]), bool(values["finished"]), float(values["seconds"]), len(values["ms"]) - len(timed),
        str(values.get("epilogue", "")),
    )  # fmt: skip
