"""The tables that a plan asks: what was tuned here, then what ships with the package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from ..errors import CacheError, DeviceError
from ..gpus import Gpu
from .choice import Source
from .entries import AnyEntry, stored
from .store import Store, default_folder, file_name, stored_files

TUNED_HERE, SHIPPED = "tuned here", "shipped with the package"


def driver_name() -> str:
    """The driver's generation, such as cuda13: the CUDA version it serves. "" where there is no driver."""
    from ..jit.device import check, driver

    try:
        return f"cuda{int(check(driver().cuDriverGetVersion(), 'reading the driver version')) // 1000}"
    except DeviceError:
        return ""


@lru_cache(maxsize=8)
def _store(gpu: str, driver: str, folder: Path) -> Store:
    return Store(gpu, driver, folder)


def store_of(gpu: Gpu, ordinal: int = 0) -> Store:
    """The store of a GPU of this machine. Read once a process."""
    return _store(gpu.name, driver_name() or _newest_driver(gpu.name, default_folder()), default_folder())


def _newest_driver(gpu: str, folder: Path) -> str:
    """Without a driver, the one whose file was written last: to plan for a GPU that is elsewhere."""
    stem = file_name(gpu, "")[: -len(".json")]
    try:
        found = stored_files(folder, f"{stem}cuda*.json")
    except CacheError:
        found = []  # opening the store says so
    files = [path for path in found if path.stem[len(stem) :][4:].isdigit()]
    newest = max(files, key=lambda path: (path.stat().st_mtime, path.name), default=None)
    return newest.stem[len(stem) :] if newest is not None else "cuda0"


@lru_cache(maxsize=8)
def shipped(gpu: str) -> Mapping[str, AnyEntry]:
    """The pre-tuned table of a GPU; empty where none ships. Raises CacheError, or later where it is damaged within."""
    name = gpu.lower().replace(" ", "_") + ".json"
    place = Path(__file__).with_name("shipped") / name
    return stored(place.read_bytes()) if place.is_file() else {}


def sources_for(gpu: Gpu) -> list[Source]:
    """What `choice.choose` asks, in order."""
    return [(TUNED_HERE, store_of(gpu).table), (SHIPPED, shipped(gpu.name))]


_generation = 0


def generation() -> int:
    """Changes whenever results were added in this process: plans made before may be other ones now."""
    return _generation


def results_changed() -> None:
    """Forget plans and warm calls that rest on older results."""
    global _generation
    _generation += 1
    from ..attn import warm as attention_warm
    from ..run import warm

    warm.forget()
    attention_warm.forget()
