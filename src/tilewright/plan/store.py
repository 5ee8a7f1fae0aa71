"""The store of tuning results: one JSON file a GPU and driver generation, safe to share between processes.

A file is written next to itself, flushed to the disk and renamed into place, so a reader sees the old file or the new
one. Whoever changes it holds a lock from reading to renaming, which the kernel releases when a process dies. A file
that cannot be read is set aside, said once. A folder that cannot be written is said once and done without: results
then live as long as the process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
import warnings
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from ..errors import CacheError
from ..jit.cache import ENVIRONMENT_VARIABLE as CACHE_VARIABLE
from .entries import AnyEntry, Table, View, decode, encode, table_of

if TYPE_CHECKING:
    from filelock import FileLock

    from .family import Family

ENVIRONMENT_VARIABLE = "TILEWRIGHT_TUNED"
FOLDER_VARIABLES = (ENVIRONMENT_VARIABLE, CACHE_VARIABLE)
"""What the environment may say of the folder."""
FORMAT = "v1"
"""Files of another format lie in another folder: an older version of this package never meets a newer file."""


def default_folder() -> Path:
    """$TILEWRIGHT_TUNED, else `tuned` in $TILEWRIGHT_CACHE, else the platform's data folder for this user."""
    if chosen := os.environ.get(ENVIRONMENT_VARIABLE):
        return Path(os.path.expanduser(chosen))
    if cache := os.environ.get(CACHE_VARIABLE):
        return Path(os.path.expanduser(cache)) / "tuned"
    return platformdirs.user_data_path("tilewright") / "tuned"


def file_name(gpu: str, driver: str) -> str:
    """Such as H200-cuda13.json."""
    words = "".join(letter if letter.isascii() and letter.isalnum() else " " for letter in gpu).split()
    plain = "-".join(words) or "gpu"
    return f"{plain}-{driver}.json"


class Store:
    """Results for one GPU and driver generation, by problem class.

    `table` is what this process knows: what the file held when it was last read, and what was added since.
    """

    def __init__(self, gpu: str, driver: str, folder: Path | None = None) -> None:
        self.gpu, self.driver = gpu, driver
        self.path = (folder or default_folder()) / FORMAT / file_name(gpu, driver)
        self._told: set[str] = set()
        self._unwritten = Table(gpu, driver)
        """What was added and could not be written."""
        self._seen = self._signature()
        self._data = b""
        self.table = self._read()

    @cached_property
    def _lock(self) -> FileLock:
        from filelock import FileLock  # 25 ms, which a process that only reads does not spend

        return FileLock(self.path.with_suffix(".lock"), mode=0o600)

    def _signature(self) -> tuple[int, int, int] | None:
        """Return what tells one version of the file from another; None where there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def has_changed(self) -> bool:
        """Return whether the file is not the one that was read: another process has written or removed it."""
        return self._signature() != self._seen

    def refresh(self) -> None:
        """Read the file again. What this process could not write to it stays."""
        self._seen = self._signature()  # before reading: what changes meanwhile is read the next time
        self.table = self._read().merged(self._unwritten)

    def of(self, family: Family[Any, Any, Any, Any]) -> View:
        """A family's entries. Where one is damaged the file is set aside, and there are none."""
        view = self.table.of(family)
        try:
            view.check()
        except CacheError as error:
            self.table = self._set_aside(self._data, str(error)).merged(self._unwritten)
            return self.table.of(family)
        return view

    def _say_once(self, kind: str, message: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            warnings.warn(message, RuntimeWarning, stacklevel=4)

    def _read(self) -> Table:
        """The file's entries; none where there is no file, or no sound one (it is then set aside)."""
        try:
            self._data = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return Table(self.gpu, self.driver)
        except OSError as error:
            self._say_once("read", f"tuning results {self.path} cannot be read ({error}); they are not used.")
            return Table(self.gpu, self.driver)
        try:
            table = decode(self._data)
            table.check()
            return table
        except CacheError as error:
            return self._set_aside(self._data, str(error))

    def _set_aside(self, corrupt: bytes, reason: str) -> Table:
        """Rename the file that held these bytes; what is there instead, where another process has replaced it."""
        aside = self.path.with_name(f"{self.path.stem}.corrupt-{uuid.uuid4().hex[:8]}")
        with contextlib.suppress(OSError), self._lock:
            if self.path.read_bytes() != corrupt:
                return self._read()
            self.path.rename(aside)
        self._say_once("corrupt", f"tuning results {self.path} were corrupt ({reason}); set aside as {aside.name}.")
        return Table(self.gpu, self.driver)

    def add(self, entries: Iterable[AnyEntry], replace: bool = False) -> bool:
        """Take entries over: see take_over."""
        return self.take_over(table_of(entries, self.gpu, self.driver), replace)

    def take_over(self, given: Table, replace: bool = False) -> bool:
        """Take a table's entries over, here and in the file. True when the file holds them; never raises for a file.

        What another process wrote meanwhile is kept; of two results for one class the newer stands, or, with
        `replace`, the one given.
        """
        self.table = self.table.merged(given, replace)
        try:
            for folder in reversed([self.path.parent, *self.path.parent.parents]):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
            with self._lock:
                merged = self._read().merged(self.table)
                if replace:
                    merged = merged.merged(given, replace)
                self._data = encode(merged)
                write_file(self.path, self._data)
                self._seen = self._signature()  # whoever else writes waits for the lock
                self.table = merged
            self._unwritten = Table(self.gpu, self.driver)
            return True
        except OSError as error:
            self._unwritten = self._unwritten.merged(given, replace)
            self._say_once(
                "write",
                f"tuning results cannot be written to {self.path} ({error}); they serve this process only. Point "
                f"{ENVIRONMENT_VARIABLE} at a folder that can be written.",
            )
            return False


def write_file(path: Path, data: bytes) -> None:
    """Write next to `path`, flush to the disk, rename. Raises OSError; leaves no temporary file then."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def stored_files(folder: Path | None = None, pattern: str = "*.json") -> list[Path]:
    """The files of all GPUs and drivers, or those whose names match, by name. Raises CacheError if it may not look."""
    place = (folder or default_folder()) / FORMAT
    try:
        return sorted(place.glob(pattern))
    except OSError as error:
        raise CacheError(
            f"tuning results in {place} cannot be read ({error.strerror}). Point {ENVIRONMENT_VARIABLE} at another "
            "folder."
        ) from error
