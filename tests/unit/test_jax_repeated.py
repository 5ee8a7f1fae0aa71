"""Products that XLA asks for again, on a GPU whose memory is the host's, and those that are left to XLA."""

from __future__ import annotations

import ctypes
import json
import threading
import weakref

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")
import jax.numpy as jnp  # noqa: E402
from stub_gpu import MultiplyingBoard, aligned, stub_gpu  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.gemm.call import Options  # noqa: E402
from tilewright.gemm.fusion import Request  # noqa: E402
from tilewright.jax import call_frame, calls  # noqa: E402
from tilewright.jax.call_frame import View  # noqa: E402
from tilewright.run.warm import MISS  # noqa: E402

RNG = np.random.default_rng(0)
PLAIN = Options()


@pytest.fixture
def board():
    with stub_gpu(MultiplyingBoard()) as found:
        yield found


@pytest.fixture
def whole(monkeypatch):
    """The products that were not made by remembered launches."""
    found, run = [], calls.run_matmul
    monkeypatch.setattr(calls, "run_matmul", lambda *given, **how: found.append(1) or run(*given, **how))
    return found


def options(**more):
    how = {
        "turn_a": False, "turn_b": False, "names": [], "activation": None, "precision": "ieee", "deterministic": False,
        "batch_invariant": False, "emulator": None,
    }  # fmt: skip
    return json.dumps(how | more)


def buffer(*shape):
    array = aligned(*shape)
    array[...] = RNG.standard_normal(shape, dtype=np.float32)
    return array


def call(a, b, result, said):
    views = [View(x.ctypes.data, x.shape, "f32") for x in (a, b, result)]
    calls._call_matmul(views[:2], views[2:], said, 0)


def test_a_product_that_xla_asks_for_again_is_only_launched_and_right(board, whole):
    for _ in range(3):
        a, b, result = buffer(48, 32), buffer(32, 40), buffer(48, 40)
        call(a, b, result, options())
        np.testing.assert_allclose(result, a @ b, atol=1e-4)
    assert len(whole) == 1
    for _ in range(2):
        a, b, result = buffer(48, 32), buffer(40, 32), buffer(48, 40)
        call(a, b, result, options(turn_b=True))
        np.testing.assert_allclose(result, a @ b.T, atol=1e-4)
    assert len(whole) == 2
    a, b, result = buffer(48, 33).reshape(-1)[1 : 1 + 48 * 32].reshape(48, 32), buffer(32, 40), buffer(48, 40)
    call(a, b, result, options())
    np.testing.assert_allclose(result, a @ b, atol=1e-4)
    assert len(whole) == 3, "a starts at another multiple of bytes"


def arrays():
    return (jnp.asarray(RNG.standard_normal(shape, dtype=np.float32)) for shape in ((6, 8), (8, 5), (5,)))


def test_what_was_noted_is_made_by_a_compiled_function_and_nothing_else_is():
    a, b, bias = arrays()
    asked = Request(None, "relu", {"bias": bias})
    assert calls._repeat(a, b, PLAIN, None) is MISS
    calls._note(a, b, PLAIN, None)
    calls._note(a, b, PLAIN, asked)
    for _ in range(2):
        a, b, bias = arrays()
        np.testing.assert_allclose(calls._repeat(a, b, PLAIN, None), a @ b, rtol=1e-5, atol=1e-5)
        found = calls._repeat(a, b, PLAIN, Request(None, "relu", {"bias": bias}))
        np.testing.assert_allclose(found, np.maximum(a @ b + bias, 0), rtol=1e-5, atol=1e-5)
    assert calls._repeat(a[:4], b, PLAIN, None) is MISS
    assert calls._repeat(a, b, Options(deterministic=True), None) is MISS
    assert calls._repeat(np.asarray(a), b, PLAIN, None) is MISS
    assert calls._repeat(a, np.asarray(b), PLAIN, None) is MISS
    with tw.emulator():
        assert calls._repeat(a, b, PLAIN, None) is MISS


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (Options(out_dtype="bf16"), lambda: None),
        (Options(rung="f12"), lambda: None),
        (PLAIN, lambda: Request(None, None, {"row_scale": jnp.ones(6)})),  # made in the test: JAX takes a GPU's memory
        (PLAIN, lambda: Request(lambda acc: acc, None, {})),
    ],
    ids=["out_dtype", "rung", "row_scale", "epilogue"],
)
def test_what_a_compiled_function_cannot_make_is_not_noted(given, asked):
    (a, b, _), asked = arrays(), asked()
    calls._note(a, b, given, asked)
    assert calls._repeat(a, b, given, asked) is MISS


def on_a_thread_of_c(function):
    """Call a C function of one argument on a thread that Python did not start, and wait for its end."""
    libc, thread = ctypes.CDLL(None), ctypes.c_void_p()
    assert not libc.pthread_create(ctypes.byref(thread), None, function, None)
    assert not libc.pthread_join(thread, None)


def test_the_state_of_a_thread_of_xlas_outlives_a_call_so_that_the_next_one_makes_none(monkeypatch):
    monkeypatch.setattr(call_frame, "MOST_KEPT", len(call_frame._kept) + 1)
    here, alive = threading.local(), []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def called(_):
        here.held = found = type("Held", (), {})()
        alive.append(weakref.ref(found))
        call_frame.keep_thread_state()

    for _ in range(2):
        on_a_thread_of_c(called)
    assert [held() is not None for held in alive] == [True, False], "no more than MOST_KEPT"
    before = len(call_frame._kept)
    call_frame.keep_thread_state()
    assert len(call_frame._kept) == before, "Python keeps its own threads' state"
