"""Compiled kernels on disk: one folder an entry, named by the hash of all that made it.

An entry is written to a temporary folder and renamed into place, so a reader sees all of it or nothing; the loser of
a race uses the winner's. Every file's hash stands in the entry's index: a truncated or altered entry is dropped and
made again. A cache that cannot be written (read-only home, full disk) is said once and done without.

The entries together stay within limits.cache_bytes(): whoever stores one adds to a running total, under a lock, and
where that is too much removes those that were used longest ago. An entry's folder carries the time of its last use.
A reader whose entry goes meanwhile compiles anew. The total is a hint: without one the entries are counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from ..errors import CacheError
from . import limits

ENVIRONMENT_VARIABLE = "TILEWRIGHT_CACHE"
FORMAT = "v1"
_INDEX = "index.json"
_MANIFEST = "manifest.json"
_TOTAL = ".bytes"
_LEFT_SECONDS = 3600.0
"""A temporary folder this old is of a process that was killed."""
_LOCK_SECONDS = 10.0
"""How long to wait for another process that makes room, before it is left to later stores."""


def default_folder() -> Path:
    """$TILEWRIGHT_CACHE, else the platform's cache folder for this user."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(os.path.expanduser(chosen)) if chosen else platformdirs.user_cache_path("tilewright")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: _hash(data) for name, data in files.items()}


def _is_exported(archive: Path) -> bool:
    """Return whether a file is an archive that `export` wrote."""
    try:
        with zipfile.ZipFile(archive) as source:
            return _MANIFEST in source.namelist()
    except zipfile.BadZipFile:
        return False


FILES = ("kernel.cubin", "kernel.ptx", "kernel.log", "kernel.entry", "kernel.types")
"""What an entry may hold besides its index; the last only where the kernel was named as C++ names it."""


class KernelCache:
    """Entries of named byte files under `folder`, by key (64 hexadecimal digits)."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or default_folder()) / "kernels" / FORMAT
        self._told = False

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def _say_once(self, message: str) -> None:
        if not self._told:
            self._told = True
            warnings.warn(message, RuntimeWarning, stacklevel=4)

    def load(self, key: str) -> dict[str, bytes] | None:
        """The entry's files, or None when there is none or it was corrupt (then it is removed)."""
        path = self.path(key)
        try:
            index = json.loads((path / _INDEX).read_bytes())
            files = {name: (path / name).read_bytes() for name in index["files"]}
            if index["key"] == key and all(_hash(files[name]) == digest for name, digest in index["files"].items()):
                with contextlib.suppress(OSError):  # where the folder is read-only nothing makes room either
                    os.utime(path)
                return files
            reason = "its files do not match its index"
        except FileNotFoundError:
            if not path.is_dir():
                return None
            reason = "a file is missing"
        except NotADirectoryError:
            if not path.parent.is_dir():
                return None  # no cache can be there at all: store() says so
            reason = "it is not a folder"
        except PermissionError as error:
            self._say_once(f"kernel cache entry {path} cannot be read ({error}); compiling instead.")
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
        self._say_once(f"kernel cache entry {path} was corrupt ({reason}); it is made again.")
        self._discard(path)
        return None

    def _discard(self, path: Path) -> bool:
        """Rename away first: another reader sees the whole entry or none. False where that is not allowed."""
        trash = path.with_name(f".trash-{uuid.uuid4().hex}")
        try:
            path.rename(trash)
        except OSError:
            return False
        if trash.is_dir():
            shutil.rmtree(trash, ignore_errors=True)
        else:
            trash.unlink(missing_ok=True)
        return True

    def store(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Write an entry; True when it stands afterwards. Never raises for a cache it cannot write.

        An entry larger than the whole cache may be is not stored.
        """
        path = self.path(key)
        index = json.dumps({"key": key, "files": _digests(files)}, indent=1, sort_keys=True)
        nbytes = len(index) + sum(map(len, files.values()))
        if nbytes > limits.cache_bytes():
            return False
        temporary: Path | None = None
        try:
            for folder in reversed([path.parent, *path.parent.parents]):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
            for name, data in files.items():
                (temporary / name).write_bytes(data)
            (temporary / _INDEX).write_text(index)
            try:
                temporary.rename(path)
            except OSError:
                if not path.is_dir():
                    raise
                shutil.rmtree(temporary, ignore_errors=True)  # lost the race: the winner's entry serves
            else:
                self._keep_within(limits.cache_bytes(), path, nbytes)
            return True
        except OSError as error:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            self._say_once(
                f"the kernel cache {self.folder} cannot be written ({error}); kernels are compiled anew in each "
                f"process. Point {ENVIRONMENT_VARIABLE} at a folder that can be written."
            )
            return False

    def _keep_within(self, limit: int, stored: Path, nbytes: int) -> None:
        """Remove the entries used longest ago, where with the one just stored there are more bytes than `limit`."""
        from filelock import FileLock, Timeout  # 25 ms, which a process that compiles nothing does not spend

        try:
            with FileLock(self.folder / ".lock", timeout=_LOCK_SECONDS):
                total = self._total()
                total = self._make_room(limit, stored) if total is None or total + nbytes > limit else total + nbytes
                (self.folder / _TOTAL).write_text(f"{total}\n")
        except (OSError, Timeout):
            return  # a later store tries again

    def _total(self) -> int | None:
        """Bytes of all entries by the running total, or None where there is no whole one."""
        try:
            text = (self.folder / _TOTAL).read_text()
            return int(text) if text.endswith("\n") else None
        except (OSError, ValueError):
            return None

    def _make_room(self, limit: int, stored: Path) -> int:
        """Count the entries, remove what is too much and a tenth of the limit more; the bytes that stay."""
        found = []
        for path in self.folder.glob("??/*"):
            try:
                used = path.stat().st_mtime
                if path.name.startswith("."):  # being written, being removed, or left by a process that was killed
                    if time.time() - used > _LEFT_SECONDS:
                        shutil.rmtree(path, ignore_errors=True)
                    continue
                found.append((used, sum(file.stat().st_size for file in path.iterdir()), path))
            except OSError:  # another process removed it
                continue
        total = sum(size for _, size, _ in found)
        if total <= limit:
            return total
        for _, size, path in sorted(found):
            if path != stored and self._discard(path):
                total -= size
            if total <= limit - limit // 10:
                break
        return total

    def keys(self) -> list[str]:
        """The keys of all entries. Raises CacheError where the folder may not be read."""
        try:
            return sorted(p.name for p in self.folder.glob("??/*") if not p.name.startswith(".") and p.is_dir())
        except OSError as error:
            raise CacheError(
                f"the kernel cache {self.folder} cannot be read ({error.strerror}). Point {ENVIRONMENT_VARIABLE} at "
                "another folder."
            ) from error

    def size(self) -> int:
        """Bytes of all files below the folder that can be seen."""
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(OSError):  # another process may remove it meanwhile
                    total += os.stat(os.path.join(folder, name)).st_size
        return total

    def clear(self) -> int:
        """Remove every entry; the number removed. Raises CacheError for those that may not be."""
        keys = self.keys()
        removed = sum(self._discard(self.path(key)) for key in keys)
        left = len(self.keys()) if removed < len(keys) else 0
        with contextlib.suppress(OSError):
            (self.folder / _TOTAL).unlink()
        if left:
            raise CacheError(
                f"{removed} kernels removed; {left} in {self.folder} may not be. Remove them as the folder's owner."
            )
        return removed

    def export(self, archive: Path) -> int:
        """Write every sound entry to a zip archive, new or in the place of an older one; the number written.

        Raises CacheError where it cannot be written, or where another file is there.
        """
        archive = archive.absolute()
        partial = archive.parent / f".{archive.name}-{uuid.uuid4().hex}"
        try:
            if archive.exists() and not archive.is_file():  # before the work, not after it
                raise FileExistsError("it is not a regular file")
            if archive.exists() and archive.stat().st_size and not _is_exported(archive):
                raise FileExistsError("a file is there that is not an exported kernel cache")
            with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as out:
                manifest = {}
                for key in self.keys():
                    files = self.load(key)
                    if files is not None:
                        manifest[key] = _digests(files)
                        for name, data in files.items():
                            out.writestr(f"{key}/{name}", data)
                out.writestr(_MANIFEST, json.dumps(manifest))
            partial.replace(archive)
        except OSError as error:
            raise CacheError(
                f"the cache could not be exported to {archive} ({error.strerror or error}). Name a zip file in a "
                "folder that can be written."
            ) from error
        finally:
            partial.unlink(missing_ok=True)
        return len(manifest)

    def load_archive(self, archive: Path) -> int:
        """Take over every entry of an exported archive; the number taken.

        Raises CacheError for what is not an archive, and for a cache that cannot be written.
        """
        entries: dict[str, dict[str, bytes]] = {}
        try:
            with zipfile.ZipFile(archive) as source:
                members = source.namelist()
                for member in members:
                    key, _, name = member.partition("/")
                    sound = len(key) == 64 and all(c in "0123456789abcdef" for c in key)
                    if member != _MANIFEST and not (sound and name in FILES):
                        raise CacheError(f"{archive} is not an exported kernel cache: it holds {member!r}.")
                    if member != _MANIFEST:
                        entries.setdefault(key, {})[name] = source.read(member)
                if _MANIFEST not in members:
                    raise CacheError(f"{archive} is not an exported kernel cache: it holds no {_MANIFEST}.")
                manifest = json.loads(source.read(_MANIFEST))
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
            raise CacheError(f"{archive} cannot be read as an exported kernel cache: {error}") from error
        if manifest != {key: _digests(files) for key, files in entries.items()}:
            raise CacheError(f"{archive} is damaged: its kernels are not those that its {_MANIFEST} lists.")
        taken = sum(self.store(key, files) for key, files in entries.items())
        if taken < len(entries):
            raise CacheError(
                f"{taken} of the {len(entries)} kernels in {archive} could be written to {self.folder}, which holds "
                f"kernels of at most {limits.cache_bytes()} bytes together ({limits.CACHE_SIZE_VARIABLE})."
            )
        return taken
