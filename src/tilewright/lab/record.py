"""Records: one JSON object per result, with everything that says where it came from."""

from __future__ import annotations

import datetime
import fcntl
import io
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..errors import TilewrightError
from ..jit import nvrtc

FIELDS = ("suite", "case", "result", "provenance")


def provenance(**more: Any) -> dict[str, Any]:
    """Versions, machine and date; `more` adds the GPU, its driver and the reference library where there are any."""
    return {
        "tilewright": __version__,
        "nvrtc": nvrtc.version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **more,
    }


def _unwritable(path: Path, error: OSError) -> TilewrightError:
    return TilewrightError(f"{path} cannot be written ({error}). Choose another place.")


def descriptor_of(path: Path) -> int | None:
    """The number of the open file that a path stands for, such as 1 for /dev/stdout; None for any other path."""
    for _ in range(_MOST_LINKS):
        if match := _DESCRIPTOR.fullmatch(os.path.abspath(path)):
            return int(match[1])
        if not path.is_symlink():
            break
        path = path.parent / os.readlink(path)
    return None


_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")
_MOST_LINKS = 40


def write_bytes(path: Path, data: bytes) -> None:
    """Write to a temporary file next to `path` and rename it: a reader sees the old file or the new one, never a part.

    Makes the folder if it is not there. A link stays one. A device, a pipe or an open file (/dev/fd/3) is written to
    and never replaced. Raises TilewrightError when it cannot be written.
    """
    temporary = None
    try:
        number = descriptor_of(path)
        if number is not None or (path.exists() and not path.is_file() and not path.is_dir()):
            with open(path if number is None else os.dup(number), "wb") as stream:
                stream.write(data)
            return
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Do as write_bytes, in UTF-8; a file's name in it that is not text in this locale keeps its bytes."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_json(path: Path, value: Any) -> None:
    """Do as write_bytes; not-a-number and infinity are refused (ValueError): JSON has neither."""
    write_text(path, _as_json(value))


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


@contextmanager
def json_result(place: str | None, others: Iterable[str | Path | None] = ()) -> Iterator[Callable[[Any], None]]:
    """Check that `place` can be written (`others`: see check_writable), and yield the function that writes a value
    there as JSON.

    "-" is standard output, and so is /dev/stdout: while the context is open, everything else that is printed goes to
    standard error. None: the function does nothing. Raises TilewrightError.
    """
    if place is None:
        yield lambda value: None
    elif place == "-" or descriptor_of(Path(place)) == 1:
        stream = sys.stdout
        if stream is None:
            raise TilewrightError("--json: standard output is closed. Name a file.")

        def write(value: Any) -> None:
            stream.write(_as_json(value))
            stream.flush()

        with redirect_stdout(sys.stderr):
            yield write
    elif not place:
        raise TilewrightError("--json is empty. Name a file, or - for standard output.")
    else:
        check_report(Path(place), others)
        yield lambda value: write_json(Path(place), value)


def save_array(path: Path, array: np.ndarray) -> None:
    """Do as write_bytes, in NumPy's .npy format."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_bytes(path, buffer.getvalue())


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where it is not there yet. Raises TilewrightError when it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


_SOURCES = frozenset({".cu", ".cuh", ".h", ".hpp", ".inl", ".ptx", ".py", ".npy", ".npz", ".safetensors"})


def check_reports(places: Iterable[Path | None], others: Iterable[str | Path | None] = ()) -> list[Path]:
    """Return those that are given. Raises TilewrightError as check_report does; none may be another, either."""
    given = [place for place in places if place is not None]
    for number, place in enumerate(given):
        check_report(place, [*others, *given[:number]])
    return given


def check_report(path: Path, others: Iterable[str | Path | None] = ()) -> None:
    """Do as check_writable, of a file that tells what was found: it replaces no source and no array either, such as a
    header or a reference that the command comes to read."""
    check_writable(path, others)
    if path.suffix in _SOURCES and path.exists():
        raise _unwritable(path, FileExistsError("a source or an array is there"))


def check_writable(path: Path, others: Iterable[str | Path | None] = ()) -> None:
    """Raise TilewrightError now if a file `path` could not be written later: better before the work than after it.

    others: what the same command reads and writes besides; `path` must not be one of these files.
    """
    try:
        number = descriptor_of(path)
        if number is not None:
            if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise PermissionError("it is open for reading only")
            return
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        if path.exists() and not path.is_file():
            return
        if os.path.realpath(path) in {os.path.realpath(other) for other in others if other is not None}:
            raise FileExistsError("the same command reads it, or writes something else there")
        if not path.parent.exists():
            raise FileNotFoundError(f"there is no folder {path.parent}")
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


HOME = "H200"
"""The GPU whose records are shown where none is named."""


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file. Raises TilewrightError naming what is wrong with it."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TilewrightError(f"{path} cannot be read as records: {error}") from error
    validate(records, str(path))
    return records


def validate(records: Any, where: str) -> None:
    """Raise TilewrightError unless `records` is a list of objects with suite, case, result and provenance."""
    if not isinstance(records, list):
        raise TilewrightError(f"{where}: a list of records was expected, not {type(records).__name__}.")
    for index, record in enumerate(records):
        missing = [name for name in FIELDS if not isinstance(record, dict) or name not in record]
        if missing:
            raise TilewrightError(f"{where}: record {index} lacks {', '.join(missing)}.")


def who(record: dict[str, Any]) -> str:
    """The subject of a record: a rung, a peer, a call, what is compared with, a cache's state, values, what is told;
    where a suite's records have none, the suite."""
    case = record["case"]
    subjects = (case[name] for name in ("rung", "peer", "call", "against", "cache", "values", "what") if name in case)
    return str(next(subjects, record["suite"]))


def went_wrong(record: dict[str, Any]) -> bool:
    """Return whether a result is wrong. A peer that is missing, or cannot make the product, is not: "right" is None."""
    return record["result"].get("right", False) is False


def newest(folder: Path, gpu: str = "") -> dict[str, tuple[Path, list[dict[str, Any]]]]:
    """For each suite its newest file in a folder (by its records' date), and its records there.

    `gpu` leaves out what was measured on GPUs whose names do not hold it. Without it, records of HOME come before newer
    ones of another machine: a table is of one machine, the same one for as long as it has records.
    """
    found: dict[str, tuple[Path, list[dict[str, Any]]]] = {}
    for (suite, board), (path, records) in of_boards(folder).items():
        if gpu in board and (suite not in found or _rank(records[0]) > _rank(found[suite][1][0])):
            found[suite] = (path, records)
    return found


def of_boards(folder: Path) -> dict[tuple[str, str], tuple[Path, list[dict[str, Any]]]]:
    """For each suite and GPU ("" for none) the newest file in a folder, and the suite's records there."""
    found: dict[tuple[str, str], tuple[Path, list[dict[str, Any]]]] = {}
    for path in sorted(folder.glob("*.json")):
        of: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for record in read_records(path):
            of.setdefault((record["suite"], _board(record)), []).append(record)
        for key, records in of.items():
            if key not in found or _rank(records[0]) > _rank(found[key][1][0]):
                found[key] = (path, records)
    return found


def _board(record: dict[str, Any]) -> str:
    return record["provenance"].get("gpu") or ""


def _rank(record: dict[str, Any]) -> tuple[bool, str]:
    return HOME in _board(record), record["provenance"]["date"]


def find_records(folder: Path, suite: str, gpu: str = "") -> list[dict[str, Any]]:
    """The newest records of a suite (see `newest`); [] when there are none."""
    return newest(folder, gpu).get(suite, (None, []))[1]
