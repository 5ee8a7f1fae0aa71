"""tilewright.matmul on the emulator: the real kernels behind every shape rule, layout and option of the call."""

from __future__ import annotations

import contextvars
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.util import spec_from_loader

import numpy as np
import pytest
from test_rungs import SMALL
from wrong_launches import launch_wrongly

import tilewright as tw
from tilewright.errors import EmulatorFault, InvalidOperand
from tilewright.gemm.rung import GemmConfig
from tilewright.lab.check import Guarded, check


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + 1).standard_normal(shape, dtype=np.float32)


def right(out, a, b, **options) -> None:
    verdict = check(np.asarray(out), a, b, **options)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((40, 24), (24, 36)), ((24,), (24, 36)), ((40, 24), (24,)), ((24,), (24,)), ((3, 10, 24), (24, 36)),
        ((2, 3, 10, 24), (3, 24, 8)), ((4, 1, 10, 24), (3, 24, 8)), ((1, 10, 24), (5, 24, 8)), ((5, 1, 24), (24, 8)),
        ((1, 1), (1, 1)), ((1, 70), (70, 1)), ((70, 1), (1, 70)),
    ],
)  # fmt: skip
def test_shapes_of_numpy(a, b):
    left, right_hand = normal(*a), normal(*b)
    with tw.emulator():
        out = np.asarray(tw.matmul(left, right_hand, rung="f02"))  # the plan's own are run by the tests below
    assert out.shape == (left @ right_hand).shape
    np.testing.assert_allclose(out, left.astype(np.float64) @ right_hand, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 4), (5, 0, 4), (5, 4, 0), (0, 0, 0), (1, 1, 0)])
def test_sizes_of_zero(m, n, k):
    a, b, c = normal(m, k), normal(k, n), normal(m, n)
    with tw.emulator() as emulator:
        right(tw.matmul(a, b), a, b)
        out = np.full((m, n), np.nan, np.float32)
        assert tw.matmul(a, b, c=c, beta=2.0, alpha=np.inf if k == 0 else 1.0, out=out) is out
        np.testing.assert_array_equal(out, 2 * c)
    assert len(emulator.results) == (2 if m * n else 0), "an empty result launches nothing"


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        *(((64, 64, 16), layout) for layout in ("nt", "os", "cr", "pp")),
        *(((65, 33, 20), layout) for layout in ("tn", "so", "rc", "pp")),
    ],
)
def test_layouts_of_the_operands(shape, layout):
    m, n, k = shape

    def place(rows: int, cols: int, kind: str) -> np.ndarray:
        return {
            "n": lambda: normal(rows, cols),
            "t": lambda: normal(cols, rows).T,
            "o": lambda: normal(rows * cols + 1)[1:].reshape(rows, cols),
            "p": lambda: normal(rows, cols + 3)[:, :cols],
            "s": lambda: normal(2 * rows + 1, 3 * cols)[1 : 2 * rows + 1 : 2, ::3],
            "r": lambda: np.broadcast_to(normal(1, cols), (rows, cols)),
            "c": lambda: np.broadcast_to(normal(rows, 1), (rows, cols)),
        }[kind]()

    a, b = place(m, k, layout[0]), place(k, n, layout[1])
    with tw.emulator():
        right(tw.matmul(a, b), a, b)


@pytest.mark.parametrize("rung", ["f01_naive", "f04_tile1d", "f06_vectorized", "f09_transposed", "f12_multistage"])
def test_alpha_beta_c_and_out_for_each_kind_of_kernel(rung):
    a, b, c = normal(33, 12), normal(12, 41), normal(41)
    target = Guarded((33, 41))
    out, how = target.view, {"rung": rung, "config": SMALL.get(rung)}
    with tw.emulator():
        assert tw.matmul(a, b, c=c, alpha=-1.5, beta=0.5, out=out, **how) is out
        right(out, a, b, c=np.broadcast_to(c, out.shape), alpha=-1.5, beta=0.5)
        assert target.intact()
        assert target.untouched() == 0
        nothing = np.full((33, 41), np.nan, np.float32)
        right(tw.matmul(a, b, c=nothing, beta=0, **how), a, b)
        held = out.copy()
        assert tw.matmul(a, b, c=out, beta=2.0, out=out, **how) is out
        right(out, a, b, c=held, beta=2.0)


@pytest.mark.parametrize("kind", ["transposed", "strided", "offset"])
def test_out_of_any_layout(kind):
    a, b = normal(33, 20), normal(20, 41)
    buffer = np.full(33 * 41 * 8 + 64, 7, np.float32)
    out = {
        "transposed": lambda: buffer[: 33 * 41].reshape(41, 33).T,
        "strided": lambda: buffer[: 66 * 123].reshape(66, 123)[::2, ::3],
        "offset": lambda: buffer[5 : 5 + 33 * 41].reshape(33, 41),
    }[kind]()
    with tw.emulator():
        tw.matmul(a, b, out=out)
    right(out, a, b)
    out[...] = 7
    assert (buffer == 7).all(), "written beside out"


def test_an_operand_offset_by_one_element_takes_the_edge_path_as_on_a_gpu():
    whole, b = normal(128 * 128 + 8), normal(128, 128)
    aligned_at = -whole.ctypes.data // 4 % 4
    requests = []
    for offset in (0, 1):
        a = whole[aligned_at + offset :][: 128 * 128].reshape(128, 128)
        assert a.ctypes.data % 16 == 4 * offset
        with tw.emulator() as emulator:
            right(tw.matmul(a, b, rung="f06"), a, b)
        requests.append(emulator.last.counters.global_load_requests)
    assert requests[1] > 2 * requests[0], "single elements take more requests than vectors"


def test_a_vector_is_read_by_wide_accesses_as_a_row_is():
    a, x = normal(64, 256).astype(np.float16), normal(256).astype(np.float16)
    config = GemmConfig(32, 32, 64, warp_m=16, warp_n=16, stages=3)
    for left, right_hand in ((a, x), (x, a.T), (a, x[:, None])):
        with tw.emulator() as emulator:
            out = tw.matmul(left, right_hand, config=config)
        np.testing.assert_allclose(out.reshape(64), a.astype(np.float64) @ x, rtol=2e-2, atol=2e-2)
        counters = emulator.last.counters
        assert counters.async_copy_requests > 0
        assert counters.global_load_requests == 0, "all of it by 16-byte copies"


def test_threads_may_share_an_emulator(monkeypatch):
    """An upload that makes room waits for a launch that is under way: else what that writes would be lost."""
    from tilewright.emu import session

    under_way, run = [], session.run

    def slow(*arguments, **options):
        under_way.append(1)
        time.sleep(0.05)
        result = run(*arguments, **options)
        under_way.pop()
        assert not under_way
        return result

    monkeypatch.setattr(session, "run", slow)
    rows = [33, 200, 97]
    operands = [(normal(m, 70), normal(70, 40 + m)) for m in rows]
    with tw.emulator(gpu="H200") as emulator:
        contexts = [contextvars.copy_context() for _ in rows]
        with ThreadPoolExecutor(len(rows)) as pool:
            made = list(pool.map(lambda of: of[0].run(tw.matmul, *of[1]), zip(contexts, operands, strict=True)))
    assert len(emulator.results) >= len(rows)
    for out, (a, b) in zip(made, operands, strict=True):
        right(out, a, b)


def test_a_not_a_number_in_an_operand_reaches_its_row_alone():
    a, b = normal(20, 12), normal(12, 8)
    a[3, 4] = np.nan
    a[7, 1] = np.inf
    with tw.emulator():
        out = tw.matmul(a, b)
    assert np.isnan(out[3]).all()
    assert np.isinf(out[7]).all()
    assert np.isfinite(np.delete(out, [3, 7], axis=0)).all()


def test_results_hold_one_entry_a_launch_and_memory_is_given_back():
    a, b = normal(3, 4, 5, 6), normal(2, 1, 1, 6, 7)
    with tw.emulator() as emulator:
        out = tw.matmul(a[:, ::2], b)
        launches = len(emulator.results)
        assert not emulator.memory._buffers
    np.testing.assert_allclose(out, a[:, ::2] @ b, rtol=1e-4, atol=1e-5)
    assert launches == tw.explain(a[:, ::2], b).launches > 1


def test_refusals_leave_the_emulator_as_it_was():
    a = normal(8, 8)
    with tw.emulator() as emulator:
        with pytest.raises(InvalidOperand, match="overlaps a"):
            tw.matmul(a, a, out=a)
        right(tw.matmul(a, a), a, a)
        assert len(emulator.results) == 1


def test_a_fault_in_a_kernel_gives_its_uploads_back(monkeypatch):
    a = normal(64, 64)

    def grown(template, problem, rung):
        return replace(template, data=template.data[:128] + (4096).to_bytes(4, "little") + template.data[132:])  # m

    launch_wrongly(
        monkeypatch, params=grown, shape=lambda launch: replace(launch, grid=(launch.grid[0] + 8, *launch.grid[1:]))
    )
    with tw.emulator() as emulator:
        with pytest.raises(EmulatorFault, match=r"out_of_bounds: .* past the end of 'a'"):
            tw.matmul(a, a, rung="f01")
        assert not emulator.memory._buffers


def test_an_emulator_can_be_entered_again_and_in_itself_and_decorates():
    a = np.eye(4, dtype=np.float32)
    held = tw.emulator()
    with held as first:
        tw.matmul(a, a)
    with held as second, held:
        tw.matmul(a, a)
    assert first is second
    assert len(first.results) == 2

    @tw.emulator()
    def product():
        return tw.matmul(a, a)

    assert (product() == a).all()
    assert (product() == a).all()


def test_a_way_to_treat_hazards_that_is_not_known_is_refused_before_with():
    with pytest.raises(tw.errors.InvalidOperand, match="ignore"):
        tw.emulator(hazards="ignore")


class HalfLoaded(MetaPathFinder, Loader):
    """Imports an empty module by that name, and on the way does what another thread may do: it calls a function."""

    def __init__(self, name, call):
        self.name, self.call = name, call

    def find_spec(self, fullname, path=None, target=None):
        return spec_from_loader(fullname, self) if fullname == self.name else None

    def exec_module(self, module):
        self.call()


@pytest.mark.parametrize("library", ["numpy.ma", "torch", "cupy"])
def test_calls_pass_while_another_thread_imports_a_library(monkeypatch, library):
    a, q = np.ones((2, 3), np.float32), np.ones((1, 1, 4, 32), np.float16)
    results = []

    def calls():
        with tw.emulator():
            results.append(tw.matmul(a, a.T, alpha=np.float32(2)))
            results.append(tw.grouped_matmul(a, a.T[None], [2]))
            results.append(tw.attention(q, q, q, bias=np.ones((4, 4), bool)))
            results.append(tw.quantize(a)[1])

    monkeypatch.setattr(np, "ma", np.ma)  # an import binds a module to its parent's name
    monkeypatch.delitem(sys.modules, library, raising=False)
    monkeypatch.setattr(sys, "meta_path", [HalfLoaded(library, calls), *sys.meta_path])
    try:
        import_module(library)
    finally:
        sys.modules.pop(library, None)  # before monkeypatch brings the right one back
    product, grouped, weighted, scale = results
    assert (product == 6).all()
    assert (grouped == 3).all()
    assert (weighted == 1).all()
    assert scale == np.float32(1) / 448
