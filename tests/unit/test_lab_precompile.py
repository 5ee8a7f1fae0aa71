"""Suites compile their kernels at once, before the first case."""

from __future__ import annotations

import pytest

from tilewright.errors import CompileError
from tilewright.gpus import GPUS
from tilewright.lab.kinds import KINDS, Kind
from tilewright.lab.precompile import compile_together
from tilewright.lab.suite import read_suite, run_suite, suites

COMPILED_FIRST = [name for name, path in suites().items() if KINDS[read_suite(path)["kind"]].kernels is not None]


@pytest.mark.parametrize("name", COMPILED_FIRST)
def test_every_case_has_kernels(name):
    suite = read_suite(suites()[name])
    kernels = KINDS[suite["kind"]].kernels
    fewer = [case | {"shapes": 50} if "shapes" in case else case for case in suite["cases"]]  # of a thousand at random
    assert all(any(True for _ in kernels(suite | {"cases": [case]}, GPUS["H200"])) for case in fewer)


def test_kernels_that_do_not_compile_are_left_to_those_who_need_them():
    ran = []

    def wrong():
        ran.append("wrong")
        raise CompileError("no")

    compile_together([wrong, *(lambda n=n: ran.append(n) for n in range(9))])
    assert sorted(map(str, ran)) == sorted([*map(str, range(9)), "wrong"])


def test_a_suite_compiles_before_its_first_case(monkeypatch, tmp_path):
    told = []
    kind = Kind(
        lambda suite, run: told.append("case") or [],
        1,
        needs_gpu=False,
        kernels=lambda *_: [lambda: told.append("compiled")],
    )
    monkeypatch.setitem(KINDS, "made up", kind)
    run_suite({"name": "x", "kind": "made up", "gpu": "H200", "cases": [{}, {}]}, tmp_path)
    assert told == ["compiled", "case", "case"]
