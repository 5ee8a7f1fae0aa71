"""Kernels to start from, with what they must compute: `tilewright new`. The files are in lab/exercises."""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidOperand, did_you_mean, in_shell, suggests
from .record import check_writable, write_text

_HEAD = """// Score it without a GPU:  tilewright check {name}
// Time it on a GPU:        tilewright bench {name}{against}
//
"""
_AGAINST = {"matmul": " --against f02 --set n=4096", "transpose": " --set n=8192"}
_FOLDER = Path(__file__).parent / "exercises"
FREE = ("transpose", "matmul", "sum")
"""Those that are right as they stand and can be improved; every other belongs to a lesson and does not pass yet."""
STARTERS = {name: _FOLDER / f"{name}.cu" for name in (*FREE, *sorted({f.stem for f in _FOLDER.glob("*.cu")} - {*FREE}))}


@suggests
def new_kernel(path: str | Path, kind: str = "transpose", *, force: bool = False) -> Path:
    """Write a kernel to start from, whose comments say how to check it. Return its path.

    kind: transpose, matmul, sum, or the exercise of a lesson (docs/learn): one of STARTERS. force: replace a file that
    is there. Raises InvalidOperand.
    """
    place = Path(path)
    if kind not in STARTERS:
        raise InvalidOperand(f"kind {kind!r} is not one of {', '.join(STARTERS)}.{did_you_mean(kind, STARTERS)}")
    if place.name in ("", ".."):
        raise InvalidOperand(f"{str(path)!r} is a folder, or no name. Name a file, such as mine.cu.")
    if place.suffix != ".cu":
        raise InvalidOperand(f"{place} is not a .cu file: name it {place.with_suffix('.cu')}.")
    if place.exists() and not force:
        raise InvalidOperand(f"{place} is there already. Choose another name, or replace it with --force.")
    check_writable(place)
    head = _HEAD.format(name=in_shell(place.name), against=_AGAINST.get(kind, ""))
    write_text(place, head + STARTERS[kind].read_text(encoding="utf-8"))
    return place
