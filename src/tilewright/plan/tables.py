"""The tables that a plan asks: what was tuned here, then what ships with the package."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from time import monotonic
from typing import Any

from ..errors import CacheError, DeviceError
from ..gpus import GPUS, Gpu
from ..jit.locks import lock
from .entries import Table, View, trusted
from .family import Family
from .store import FOLDER_VARIABLES, FORMAT, Store, default_folder, file_name, stored_files

TUNED_HERE, SHIPPED = "tuned here", "shipped with the package"
"""What the tables are called. Of one that ships for another GPU, the name goes on to say so (`ships`)."""
SWEPT = "H200"
"""The GPU whose table knows the most classes. Others of its architecture with as many SMs take from it what their own
table lacks."""


def driver_name() -> str:
    """The driver's generation, such as cuda13: the CUDA version it serves. "" where there is no driver."""
    from ..jit.device import check, driver

    try:
        return f"cuda{int(check(driver().cuDriverGetVersion(), 'reading the driver version')) // 1000}"
    except DeviceError:
        return ""


_stores: dict[tuple[str, str, Path], Store] = {}
"""Those that were opened, by GPU, driver and folder."""
_opening = lock()


def store_of(gpu: Gpu, ordinal: int = 0) -> Store:
    """The store of a GPU of this machine. Read when it is first asked for, and when its file has changed (look)."""
    folder = default_folder()
    key = gpu.name, driver_name() or _newest_driver(gpu.name, folder), folder
    with _opening:
        if key not in _stores:
            _stores[key] = Store(*key)
        return _stores[key]


_unopened: set[tuple[str, Path]] = set()
"""GPUs and folders that hold no file of theirs: plans asked, and found nothing to open."""


def _tuned_here(gpu: Gpu) -> Store | None:
    """The store of a GPU; None while nothing was ever tuned for it here. Opening one takes the driver's version, and
    to load the driver takes longer than to plan."""
    asked = gpu.name, default_folder()
    if any(asked == (name, place) for name, _, place in tuple(_stores)):
        return store_of(gpu)
    if asked not in _unopened:  # else `look` notices a file
        if _has_files(*asked):
            return store_of(gpu)
        with _opening:
            _unopened.add(asked)
    return None


def _has_files(gpu: str, folder: Path) -> bool:
    """Return whether results of a GPU may lie in a folder, of whichever driver."""
    start = file_name(gpu, "").removesuffix(".json")
    try:
        with os.scandir(folder / FORMAT) as found:
            return any(entry.name.startswith(start) for entry in found)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # opening the store says what is wrong


def _newest_driver(gpu: str, folder: Path) -> str:
    """Without a driver, the one whose file was written last: to plan for a GPU that is elsewhere."""
    stem = file_name(gpu, "")[: -len(".json")]
    try:
        found = stored_files(folder, f"{stem}cuda*.json")
    except CacheError:
        found = []  # opening the store says so
    written: list[tuple[float, str]] = []
    for path in found:
        driver = path.stem[len(stem) :]
        with suppress(FileNotFoundError):  # another process may have set it aside meanwhile
            if driver[4:].isdigit():
                written.append((path.stat().st_mtime, driver))
    return max(written, default=(0.0, "cuda0"))[1]


@lru_cache(maxsize=8)
def shipped(gpu: str) -> Table:
    """The pre-tuned table of a GPU; empty where none ships. Raises CacheError, or later where it is damaged within."""
    name = gpu.lower().replace(" ", "_") + ".json"
    try:
        with open(os.path.join(os.path.dirname(__file__), "shipped", name), "rb") as file:
            return trusted(mmap(file.fileno(), 0, access=ACCESS_READ))
    except FileNotFoundError:
        return Table(gpu)


def ships(name: str) -> bool:
    """Return whether a table of this name ships with the package."""
    return name.startswith(SHIPPED)


def sources_for(family: Family[Any, Any, Any, Any], gpu: Gpu) -> list[tuple[str, View]]:
    """Return what a plan asks, in order: what each table is called, and the family's entries in it. What was tuned here
    is missing where nothing was; a table that ships, on a board with other SMs than the listed one's: it makes other
    waves."""
    listed, swept, tuned = GPUS.get(gpu.name), GPUS[SWEPT], _tuned_here(gpu)
    found = [] if tuned is None else [(TUNED_HERE, tuned.of(family))]
    if listed is None or listed.sm_count == gpu.sm_count:
        found.append((SHIPPED, shipped(gpu.name).of(family)))
    if gpu.name != SWEPT and (gpu.arch, gpu.sm_count) == (swept.arch, swept.sm_count):
        found.append((f"{SHIPPED} for the {SWEPT}", shipped(SWEPT).of(family)))
    return found


# --- the generation: what keys of plans and of warm calls carry -------------------------------------------------------

LOOK_EVERY = 0.25
"""Seconds between looks at what changes outside: files and the environment."""
_generation = 0
_next_look = 0.0
_folder_asked: tuple[str | None, ...] = ()
"""The environment's word on the folder when it was last looked at."""


def generation() -> int:
    """Return a number that changes with the tables: plans made before may be other ones now.

    What another process tuned, and another folder in the environment, are noticed within LOOK_EVERY seconds. Takes
    about 0.1 us.
    """
    if monotonic() >= _next_look:
        look()
    return _generation


def generation_now() -> int:
    """The same, where another folder in the environment is noticed at once: for who makes a plan. Takes 2 us."""
    if tuple(map(os.environ.get, FOLDER_VARIABLES)) != _folder_asked:
        look()
    return generation()


def look() -> None:
    """Notice another folder in the environment, stores whose files have changed (these are read again), and files
    where there was none."""
    global _next_look, _folder_asked
    _next_look = monotonic() + LOOK_EVERY
    asked = tuple(map(os.environ.get, FOLDER_VARIABLES))
    with _opening:
        changed = [store for store in _stores.values() if store.has_changed()]
        for store in changed:
            store.refresh()
        appeared = {unopened for unopened in _unopened if _has_files(*unopened)}
        _unopened.difference_update(appeared)
    if changed or appeared or asked != _folder_asked:
        _folder_asked = asked
        results_changed()


def results_changed() -> None:
    """Make plans and warm calls that rest on older results obsolete."""
    global _generation
    _generation += 1
