"""Random accesses to shared memory by two warps: what is reported is the same with the compiled loops and without.

The programs differ in what orders the warps: barriers of the block, judged by epochs, or an mbarrier or flags too,
judged by vector clocks. Nearly all of them have faults.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilewright import emu
from tilewright.emu import compiled
from tilewright.errors import EmulatorFault

pytestmark = pytest.mark.skipif(not compiled.build(), reason="no C compiler")
BYTES = 4096


class Writer:
    """A program as PTX, drawn from a seed."""

    def __init__(self, seed: int, how: str) -> None:
        self.random, self.bulk, self.flags = random.Random(seed), how == "bulk copies", how == "flags"
        self.lines: list[str] = []
        self.phases = 0

    def place(self) -> str:
        return f"[%r{self.random.randrange(2, 7)}+{self.random.choice([0, 0, 1024])}]"

    def statement(self) -> None:
        draw, guard = self.random, self.random.choice(["", "", "@%p1 ", "@!%p1 ", "@%p2 "])
        kinds = [*["st", "ld", "bar"] * 2, "wide", "matrix", "atom", "copy", "wait", "meet", *["bulk"] * 3 * self.bulk]
        kinds += ["fence", "tell", "hear"] * self.flags
        kind = draw.choice(kinds)
        if kind == "st":
            self.lines.append(f"{guard}st.shared.b32 {self.place()}, %r1;")
        elif kind == "ld":
            self.lines.append(f"{guard}ld.shared.b32 %r9, {self.place()};")
        elif kind == "wide":
            self.lines.append(f"{guard}st.shared.v4.b32 {self.place()}, {{%r1, %r1, %r1, %r1}};")
            self.lines.append(f"{guard}ld.shared.v2.b32 {{%r9, %r8}}, {self.place()};")
        elif kind == "matrix":
            self.lines.append(f"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r9}}, {self.place()};")
        elif kind == "atom":
            self.lines.append(f"{guard}red.shared.add.u32 {self.place()}, 1;")
        elif kind == "copy":
            size = draw.choice([4, 16])
            self.lines.append(f"{guard}cp.async.ca.shared.global {self.place()}, [%rd1], {size};")
            self.lines += ["cp.async.commit_group;"] * draw.randrange(2)
        elif kind == "wait":
            self.lines.append(draw.choice(["cp.async.wait_all;", "cp.async.wait_group 0;", "cp.async.wait_group 1;"]))
        elif kind == "fence":
            self.lines.append("fence.acq_rel.cta;")
        elif kind in ("tell", "hear"):
            place = self.place()
            self.lines.append(
                f"{guard}st.volatile.shared.b32 {place}, %r1;" if kind == "tell" else
                f"{guard}ld.volatile.shared.b32 %r9, {place};"
            )  # fmt: skip
        elif kind == "bar":
            self.lines.append("bar.sync 0;")
        elif kind == "meet":
            self.lines.append(draw.choice(["bar.warp.sync -1;", "@%p4 bar.warp.sync 0xffff;"]))
        elif draw.random() < 0.5:
            self.phases += 1
            self.lines += [
                "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [told], 512;",
                f"@%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [held+{512 * draw.randrange(3)}], "
                "[%rd1], 512, [told];",
            ]
        elif self.phases:
            head = f"W{len(self.lines)}"
            self.lines += [
                "setp.eq.u32 %p3, 0, 0;",
                f"{head}: {guard}mbarrier.try_wait.parity.shared::cta.b64 %p3, [told], {(self.phases - 1) & 1};",
                f"@!%p3 bra {head};",
            ]

    def program(self) -> str:
        head = f"""
.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a)
{{
.shared .align 16 .b8 held[{BYTES}];
.shared .align 8 .b8 told[8];
.reg .pred %p<5>;
.reg .b32 %r<10>;
.reg .b64 %rd<3>;
ld.param.u64 %rd1, [a];
mov.u32 %r1, %tid.x;
mov.u32 %r9, held;
mad.lo.u32 %r2, %r1, 16, %r9;
xor.b32 %r8, %r1, 32;
mad.lo.u32 %r3, %r8, 16, %r9;
and.b32 %r8, %r1, 31;
mad.lo.u32 %r4, %r8, 16, %r9;
xor.b32 %r8, %r1, 1;
mad.lo.u32 %r5, %r8, 16, %r9;
mov.u32 %r6, %r2;
setp.eq.u32 %p0, %r1, 0;
setp.lt.u32 %p1, %r1, 32;
and.b32 %r8, %r1, 31;
setp.lt.u32 %p4, %r8, 16;
and.b32 %r8, %r1, 1;
setp.eq.u32 %p2, %r8, 0;"""
        for at in range(0, BYTES, 1024):
            self.lines.append(f"st.shared.v4.b32 [%r2+{at}], {{%r1, %r1, %r1, %r1}};")
        if self.bulk:
            self.lines.append("@%p0 mbarrier.init.shared::cta.b64 [told], 1;")
        self.lines += ["fence.proxy.async;", "bar.sync 0;"]
        for _ in range(3):
            part = len(self.lines)
            for _ in range(self.random.randrange(3, 10)):
                self.statement()
            if not self.bulk and not self.flags:  # an epoch that is known already
                self.lines += self.lines[part:]
        return "\n".join([head, *self.lines, "cp.async.wait_all;", "bar.sync 0;", "ret;", "}"])


def told(ptx: str) -> list[str]:
    memory = emu.GlobalMemory()
    place = memory.add(np.zeros(BYTES, np.uint8))
    params = np.array([place], np.uint64).tobytes()
    try:
        found = emu.run(
            ptx, "k", grid=(2, 1, 1), block=(64, 1, 1), params=params, memory=memory, hazards="collect", limit=20_000
        ).hazards
    except EmulatorFault as error:
        return [str(error)]
    return [str(hazard) for hazard in found]


@pytest.mark.parametrize("how", ["barriers", "bulk copies", "flags"])
@pytest.mark.parametrize("seed", range(80))
def test_what_is_reported_of_random_epochs_is_the_same(seed, how, monkeypatch):
    ptx = Writer(seed, how).program()
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    found = told(ptx)
    monkeypatch.setenv(compiled.VARIABLE, "0")
    assert told(ptx) == found
