"""Pytest fixtures for kernels. `emulate` fails the test with the fault's report, or with where a result is wrong;
`check_kernel` runs a file as its `// check:` lines say, and fails below a score:

    def test_mine(check_kernel):
        check_kernel("mine.cu", least_score=90)

    def test_axpy(emulate):
        x, y = np.arange(256, dtype=np.float32), np.ones(256, np.float32)
        args = {"x": x, "y": y, "a": 2.5, "n": 256}
        emulate("axpy.cu", "axpy", grid=2, block=128, args=args, expect={"y": 2.5 * x + y})

pytest loads this from the installed package (entry point `tilewright`); `-p no:tilewright` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..emu import EmulateResult
    from .exercise import CheckReport


@pytest.fixture
def emulate(request: pytest.FixtureRequest) -> Callable[..., EmulateResult]:
    """`tilewright.emulate`, with the path of a source taken from the folder of the test.

    expect: what buffers hold after the launch, by parameter name or by the number of the buffer argument. tolerance:
    relative and absolute; by default by the buffer's type (1e-5 for float32). Returns the EmulateResult.
    """
    folder = request.path.parent

    def run(
        source: str | Path,
        entry: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any] | Mapping[str, Any],
        *,
        expect: Mapping[str | int, Any] | None = None,
        tolerance: float | None = None,
        **options: Any,
    ) -> EmulateResult:
        __tracebackhide__ = True
        import numpy as np

        from ..emu import emulate as emulate_kernel
        from ..emu.reference import differences
        from ..errors import EmulatorFault

        beside = folder / str(source) if len(str(source)) < 1024 and "\n" not in str(source) else None
        try:
            found = beside if beside is not None and beside.is_file() else source
            result = emulate_kernel(found, entry, grid, block, args, **options)
        except EmulatorFault as fault:
            pytest.fail(str(fault), pytrace=False)
        wrong = []
        for name, value in (expect or {}).items():
            known: Mapping[Any, Any] = dict(enumerate(result.arrays)) if isinstance(name, int) else result.named
            if name not in known:
                pytest.fail(f"expect names {name!r}; the buffers are {', '.join(map(str, known))}", pytrace=False)
            got, want = known[name], np.asarray(value)
            if want.shape != got.shape:
                want = np.broadcast_to(want, got.shape)
            wrong.append(differences(str(name), got, want, tolerance))
        if any(wrong):
            pytest.fail("\n".join(filter(None, [f"{entry} is wrong:", *wrong])), pytrace=False)
        return result

    return run


@pytest.fixture
def check_kernel(request: pytest.FixtureRequest) -> Callable[..., CheckReport]:
    """`tilewright.lab.check_kernel`, with the path of the file taken from the folder of the test.

    least_score: fails the test below it; by default what the file asks for. Returns the CheckReport. Raises
    InvalidOperand for a score that is no whole number.
    """
    folder = request.path.parent

    def run(file: str | Path, *, least_score: int = 0, **options: Any) -> CheckReport:
        __tracebackhide__ = True
        from ..emu.arguments import whole_number
        from .exercise import check_kernel as score

        least_score = whole_number(least_score, "least_score", 0)
        report = score(folder / file, **options)
        if not report.passed or report.score < least_score:
            asked = f"\nThe test asks for {least_score} of 100." if report.passed else ""
            pytest.fail(f"{report}{asked}", pytrace=False)
        return report

    return run
