"""The library that rungs are timed against is judged like a rung before anything is timed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.errors import WrongResult
from tilewright.gemm.problem import GemmProblem
from tilewright.lab.ground import verify_reference
from tilewright.lab.ladder import prepare
from tilewright.lab.reference import find_reference

PROBLEM = GemmProblem.dense(24, 40, 30, layout="nt")


class Memory:
    """What verify_reference asks of a GPU: one buffer."""

    stream = 0

    def __init__(self) -> None:
        self.bytes = np.zeros(0, np.uint8)

    def write(self, address: int, data: np.ndarray) -> None:
        self.bytes = data.copy()

    def download(self, address: int, nbytes: int) -> np.ndarray:
        return self.bytes[:nbytes].copy()


def verify(change) -> None:
    given, memory = prepare(PROBLEM), Memory()
    product = change(given.library.copy())
    verify_reference(
        "a library", lambda stream: memory.write(0, product.view(np.uint8).reshape(-1)), 0, memory, PROBLEM, given
    )


def test_a_right_product_is_accepted():
    verify(lambda product: product)


def wrong_element(product):
    product[3, 4] += 1
    return product


def unwritten(product):
    product.view(np.uint32)[0, 0] = 0x7FC0BEEF
    return product


@pytest.mark.parametrize("change", [wrong_element, unwritten, lambda product: product[::-1].copy()])
def test_a_wrong_or_unfinished_product_is_not_timed_against(change):
    with pytest.raises(WrongResult, match="24 x 40 x 30 nt in f32"):
        verify(change)


def test_a_reference_that_launches_nothing_is_not_timed_against():
    given, memory = prepare(PROBLEM), Memory()
    with pytest.raises(WrongResult):
        verify_reference("a library", lambda stream: None, 0, memory, PROBLEM, given)


def test_without_a_library_the_reason_names_each_and_the_way_out(monkeypatch):
    import tilewright.lab.reference as module

    def missing(name: str):
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", missing)
    library, why = find_reference(0)
    assert library is None
    assert all(name in why for name in ("torch", "cupy", "nvmath", "pip install"))


def test_a_library_that_cannot_use_the_gpu_gives_its_own_reason(monkeypatch):
    import tilewright.lab.reference as module

    monkeypatch.setattr(module, "import_module", lambda name: SimpleNamespace())
    library, why = find_reference(0)
    assert library is None
    assert "torch cannot use the GPU (AttributeError" in why
