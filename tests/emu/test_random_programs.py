"""Random programs: the compiled loops leave the memory, the counters and the reports that NumPy alone leaves.

Straight arithmetic, loads and stores of every width under guards, divergent branches, loops, barriers, atomics; some
accesses lie outside, race, or read what nobody wrote.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tilewright import emu
from tilewright.emu import compiled
from tilewright.emu.orders import Order

pytestmark = pytest.mark.skipif(not compiled.build(), reason="no C compiler")
BYTES = 4096
"""Of each of the two buffers, and of shared memory."""
BINARY = ("add.u32", "sub.s32", "mul.lo.u32", "and.b32", "or.b32", "xor.b32", "min.s32", "max.u32", "add.f32",
          "mul.f32", "min.f32", "shl.b32", "shr.s32", "div.u32", "rem.u32")  # fmt: skip
TYPES = {"b8": 1, "u16": 2, "b32": 4, "f32": 4, "b64": 8, "v2.b32": 8, "v4.b32": 16, "v2.b64": 16, "v4.b16": 8}


class Writer:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.random, self.lines, self.labels = Random(seed), [], 0
        self.wild = self.random.random() < 0.2
        """Whether addresses may lie outside."""

    def register(self) -> str:
        return f"%r{self.random.randrange(8)}"

    def guard(self) -> str:
        if self.random.random() < 0.75:
            return ""
        return f"@{self.random.choice(['', '!'])}%p{self.random.randrange(3)} "

    def label(self) -> str:
        self.labels += 1
        return f"$L{self.labels}"

    def arithmetic(self) -> None:
        chance = self.random.random()
        a = self.random.choice([self.register(), self.register(), str(self.random.choice([0, 1, 3, 31, 255, 65537]))])
        if chance < 0.2:
            test = self.random.choice(["eq.s32", "lt.s32", "gt.u32", "le.f32", "ne.b32"])
            a = self.register() if "f32" in test else a
            self.lines.append(f"setp.{test} %p{self.random.randrange(3)}, {self.register()}, {a};")
        elif chance < 0.3:
            self.lines.append(
                f"{self.guard()}fma.rn.f32 {self.register()}, {self.register()}, {self.register()}, {self.register()};"
            )
        else:
            operation = self.random.choice(BINARY)
            a = self.register() if "f32" in operation else a
            self.lines.append(f"{self.guard()}{operation} {self.register()}, {self.register()}, {a};")

    def access(self) -> None:
        random = self.random
        kind, size = random.choice(list(TYPES.items()))
        space = random.choice(["shared", "shared", "global", "global", ""])
        how = random.choice(["lane", "lane", "register", "one", "stride"])
        most = BYTES // size * (2 if self.wild and random.random() < 0.3 else 1)
        index = {"lane": "%r15", "register": self.register(), "one": str(random.randrange(64)), "stride": "%r15"}[how]
        self.lines.append(f"mov.b32 %r10, {index};")
        if how == "stride":
            self.lines.append(f"mul.lo.u32 %r10, %r10, {random.choice([2, 3, 33])};")
        self.lines.append(f"and.b32 %r10, %r10, {most - 1};")
        if space == "shared" and random.random() < 0.5:
            self.lines += [f"mul.lo.u32 %r10, %r10, {size};", "mov.u32 %r11, held;", "add.u32 %r10, %r10, %r11;"]
            where = "[%r10]"
        else:
            base = random.choice(["%rd1", "%rd2"]) if space != "shared" else "%rd3"
            self.lines.append(f"mad.wide.u32 %rd8, %r10, {size}, {base};")
            where = f"[%rd8{random.choice(['', f'+{size}'])}]"
        count = int(kind[1]) if kind[0] == "v" else 1
        names = {"b8": "%h", "u16": "%h", "b16": "%h", "b64": "%q"}.get(kind.split(".")[-1], "%r")
        places = random.sample(range(4), count)
        items = ", ".join(f"{names}{k}" for k in places)
        items = f"{{{items}}}" if count > 1 else items
        spelled = f".{space}" if space else ""
        if random.random() < 0.5:
            self.lines.append(f"{self.guard()}ld{spelled}.{kind} {items}, {where};")
        else:
            self.lines.append(f"{self.guard()}st{spelled}.{kind} {where}, {items};")
        if names == "%h":
            self.lines.append(f"cvt.u32.u16 %r{random.randrange(8)}, %h{places[0]};")
        elif names == "%q":
            self.lines.append(f"cvt.u32.u64 %r{random.randrange(8)}, %q{places[0]};")

    def atomic(self) -> None:
        random = self.random
        self.lines += [f"and.b32 %r10, {self.register()}, {random.choice([3, 63])};",
                       "mad.wide.u32 %rd8, %r10, 4, %rd2;"]  # fmt: skip
        operation = random.choice(["add.u32", "max.s32", "exch.b32", "add.f32", "xor.b32"])
        self.lines.append(f"{self.guard()}atom.global.{operation} {self.register()}, [%rd8], {self.register()};")

    def some(self, depth: int) -> None:
        random = self.random
        for _ in range(random.randrange(1, 7)):
            chance = random.random()
            if chance < 0.45:
                self.arithmetic()
            elif chance < 0.75:
                self.access()
            elif chance < 0.79:
                self.atomic()
            elif chance < 0.88 and depth:
                other, end = self.label(), self.label()
                self.lines.append(f"@{random.choice(['', '!'])}%p{random.randrange(3)} bra {other};")
                self.some(depth - 1)
                self.lines += [f"bra {end};", f"{other}:"]
                self.some(depth - 1)
                self.lines.append(f"{end}:")
            elif chance < 0.94 and depth:
                head, counter = self.label(), f"%r{11 + depth}"
                count = random.choice(["3", "5", "%r15"])
                self.lines += [f"mov.b32 {counter}, {count};", f"and.b32 {counter}, {counter}, 7;", f"{head}:"]
                self.some(depth - 1)
                self.lines += [
                    f"add.s32 {counter}, {counter}, -1;", f"setp.gt.s32 %p3, {counter}, 0;", f"@%p3 bra {head};",
                ]  # fmt: skip
            elif chance < 0.97 and depth == 2:
                self.lines.append("bar.sync 0;")
            elif chance > 0.99 and depth == 2:
                self.lines.append(f"@%p{random.randrange(3)} exit;")

    def program(self) -> str:
        head = f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b)
{{
.shared .align 16 .b8 held[{BYTES}];
.reg .pred %p<4>;
.reg .b16 %h<4>;
.reg .b32 %r<16>;
.reg .b64 %rd<9>;
.reg .b64 %q<4>;
ld.param.u64 %rd1, [a];
ld.param.u64 %rd2, [b];
mov.u64 %rd3, held;
mov.u32 %r15, %tid.x;
mov.u32 %r14, %ctaid.x;
mad.lo.u32 %r15, %r14, 64, %r15;"""
        for k in range(8):
            self.lines.append(f"mad.lo.u32 %r{k}, %r15, {self.random.randrange(1, 99)}, {self.random.randrange(99)};")
        self.lines += [f"setp.lt.u32 %p{k}, %r15, {64 * k + 30};" for k in range(3)]
        if self.random.random() < 0.7:  # else what is read was often never written
            self.lines += [f"mad.wide.u32 %rd8, %r15, {BYTES // 128}, %rd3;", "mov.u32 %r9, %tid.x;"]
            self.lines += [f"mad.wide.u32 %rd8, %r9, {BYTES // 64}, %rd3;"]
            self.lines += [f"st.shared.v4.b32 [%rd8+{at}], {{%r0, %r1, %r2, %r3}};" for at in range(0, 64, 16)]
            self.lines.append("bar.sync 0;")
        for _ in range(6):
            self.some(2)
        for k in range(8):
            self.lines += ["mad.wide.u32 %rd8, %r15, 4, %rd1;", f"st.global.b32 [%rd8+{k * 512}], %r{k};"]
        return "\n".join([head, *self.lines, "ret;", "}"])


def run(ptx: str, seed: int, order: int | None) -> tuple[bytes, emu.EmuResult]:
    memory, rng = emu.GlobalMemory(), np.random.default_rng(seed)
    places = [memory.add(rng.integers(0, 256, BYTES + 64, np.uint8)) for _ in range(2)]
    result = emu.run(
        ptx, "k", grid=(2, 1, 1), block=(64, 1, 1), params=np.array(places, np.uint64).tobytes(), memory=memory,
        hazards="collect", limit=20_000, order=None if order is None else Order(seed, order),
    )  # fmt: skip
    return b"".join(memory.read(place, BYTES + 64).tobytes() for place in places), result


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_run_alike(seed, monkeypatch):
    ptx = Writer(seed).program()
    order = 1 if seed % 4 == 3 else None
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    held, fast = run(ptx, seed, order)
    monkeypatch.setenv(compiled.VARIABLE, "0")
    expected, slow = run(ptx, seed, order)
    assert [str(hazard) for hazard in fast.hazards] == [str(hazard) for hazard in slow.hazards]
    assert fast.counters == slow.counters
    assert held == expected
