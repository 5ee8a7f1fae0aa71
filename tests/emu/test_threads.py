"""Emulators in several threads at once leave one another's results alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tilewright import emu
from tilewright.emu import compiled

THREADS = 4
AGAIN_AND_AGAIN = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .f32 a, .param .f32 b, .param .f32 c, .param .u64 out)
{
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p;
mov.u32 %r0, %tid.x; ld.param.u64 %rd2, [out]; mul.wide.u32 %rd3, %r0, 4; add.u64 %rd2, %rd2, %rd3;
ld.param.f32 %f0, [a]; ld.param.f32 %f1, [b]; ld.param.f32 %f2, [c];
mov.u32 %r3, 0; mov.u32 %r4, 0;
LOOP:
fma.rn.f32 %f3, %f0, %f1, %f2;
mov.b32 %r5, %f3; or.b32 %r4, %r4, %r5;
add.u32 %r3, %r3, 1; setp.lt.u32 %p, %r3, 50;
@%p bra LOOP;
st.global.b32 [%rd2], %r4;
ret;
}
"""
"""The bits of all results of one fma.rn.f32, or-ed together."""


def test_a_subnormal_result_is_rounded_once_whatever_other_threads_do(monkeypatch):
    """The sum is 2^-127 + 1.5 x 2^-149 less 2^-196, which float64 cannot hold: rounded twice it goes up, once down.

    That a result is an inexact subnormal, NumPy says by a callback. One thread waits between the rounding and the look
    at what was said until the others, whose results are normal, have rounded several times.
    """
    monkeypatch.setenv(compiled.VARIABLE, "0")  # it is the NumPy form's callback
    a, b = 2.0**-75 * (1 + 2.0**-23), 2.0**-75 * (1 - 2.0**-23)
    c = np.uint32(0x00400001)
    subnormal = [a, b, float(c.view(np.float32))]
    start, turns, finished, waits = threading.Barrier(THREADS), [0], [], []
    first = threading.local()
    shift = np.left_shift

    def left_shift(*args, **kwargs):
        if getattr(first, "waits", False):
            seen = turns[0]
            while turns[0] < seen + 2 * THREADS and len(finished) < THREADS - 1:
                time.sleep(0.0001)
            waits.append(turns[0] - seen)
        else:
            turns[0] += 1
        return shift(*args, **kwargs)

    def work(number: int) -> list[int]:
        start.wait()
        first.waits = number == 0
        rounds = 1 if number == 0 else 40
        for _ in range(rounds):
            given = subnormal if number == 0 else [1.5, 0.1, 2.0]
            done = emu.emulate(AGAIN_AND_AGAIN, "k", 1, 64, [*given, np.zeros(64, np.uint32)])
        if number:
            finished.append(number)
        return np.unique(done.arrays[0]).tolist()

    monkeypatch.setattr(np, "left_shift", left_shift)
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    assert max(waits) >= 2 * THREADS, "nothing ran in between"
    assert results[0] == [int(c)]
    normal = int(np.float32(np.float64(np.float32(0.1)) * 1.5 + 2).view(np.uint32))
    assert results[1:] == [[normal]] * (THREADS - 1)
