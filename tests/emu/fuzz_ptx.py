"""Damaged and made-up PTX for the emulator: `python tests/emu/fuzz_ptx.py --seed 7 --count 100000`.

A module either runs or is refused by an error of tilewright's own. Anything else, or SECONDS of CPU time, is a failure;
the command prints the module that caused it. The same seed gives the same modules.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import numpy as np

from tilewright import emu
from tilewright.errors import TilewrightError

SECONDS = 20
HEADER = ".version 8.3\n.target sm_90a\n.address_size 64\n"
ENTRY = ".visible .entry k(.param .u64 k_0, .param .u64 k_1, .param .u32 k_2)\n"
SEEDS = (
    f"""{HEADER}.global .align 4 .b8 table[16] = {{1, 2, 3, 0xff}};
.const .align 8 .u64 place[2] = {{generic(table), table+8}};
.func (.param .b32 back) twice(.param .b32 x)
{{
.reg .b32 %r<4>;
ld.param.u32 %r1, [x];
add.s32 %r2, %r1, %r1;
st.param.b32 [back], %r2;
ret;
}}
{ENTRY}.maxntid 64, 1, 1
{{
.reg .pred %p<5>;
.reg .b32 %r<20>;
.reg .b64 %rd<9>;
.reg .f32 %f<9>;
.shared .align 16 .b8 tile[512];
.local .align 4 .b8 own[16];
ld.param.u64 %rd1, [k_0];
ld.param.u64 %rd2, [k_1];
ld.param.u32 %r1, [k_2];
cvta.to.global.u64 %rd3, %rd1;
mov.u32 %r2, %tid.x;
setp.ge.s32 %p1, %r2, %r1;
@%p1 bra $L2;
mul.wide.s32 %rd4, %r2, 4;
add.s64 %rd5, %rd3, %rd4;
ld.global.nc.f32 %f1, [%rd5];
fma.rn.f32 %f2, %f1, 0f40000000, %f1;
mov.u32 %r3, tile;
shl.b32 %r4, %r2, 2;
add.s32 %r5, %r3, %r4;
st.shared.f32 [%r5], %f2;
bar.sync 0;
ld.shared.v2.f32 {{%f3, %f4}}, [tile+8];
shfl.sync.bfly.b32 %r6|%p2, %r2, 16, 31, -1;
vote.sync.ballot.b32 %r7, %p2, 0xffffffff;
atom.shared.add.u32 %r8, [tile+64], 1;
{{.reg.b32 t;
mov.b32 t, %f3;
add.cc.u32 %r9, t, %r8;
addc.u32 %r10, %r9, 0;}}
st.local.u32 [own+4], %r10;
cvt.rn.f16.f32 %r11, %f4;
{{ .param .b32 given; .param .b32 got;
st.param.b32 [given], %r10;
call.uni (got), twice, (given);
ld.param.b32 %r12, [got]; }}
prmt.b32 %r13, %r12, %r7, 0x5410;
$L1: sub.s32 %r13, %r13, 1;
setp.gt.u32 %p3|%p4, %r13, 4000000000;
@!%p3 bra $L2;
bra.uni $L1;
$L2:
$T: .branchtargets $L3, $L3;
brx.idx %r2, $T;
$L3: st.global.f32 [%rd5], %f2;
ret;
}}
""",
    f"""{HEADER}{ENTRY}{{
.reg .b16 %rs<5>;
.reg .b32 %r<40>;
.reg .b64 %rd<9>;
.reg .f32 %f<40>;
.reg .f64 %fd<5>;
.reg .pred %p<3>;
.shared .align 128 .b8 s[4096];
ld.param.u64 %rd1, [k_0];
mov.u32 %r1, s;
cvt.u64.u32 %rd2, %r1;
cp.async.ca.shared.global [%r1], [%rd1], 16;
cp.async.commit_group;
cp.async.wait_group 0;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r2, %r3, %r4, %r5}}, [%r1];
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{%f1, %f2, %f3, %f4}}, {{%r2, %r3, %r4, %r5}}, {{%r6, %r7}},
 {{%f1, %f2, %f3, %f4}};
cvt.f64.f32 %fd1, %f1;
div.rn.f64 %fd2, %fd1, 0d4000000000000000;
cvt.rn.bf16x2.f32 %r8, %f1, %f2;
mov.b32 {{%rs1, %rs2}}, %r8;
fma.rn.f16 %rs3, %rs1, %rs2, %rs1;
lop3.b32 %r9, %r8, %r7, %r6, 0xca;
bfe.u32 %r10, %r9, 3, 5;
selp.b32 %r11, %r10, %r9, %p1;
mad.lo.cc.u32 %r12, %r11, %r10, %r9;
dp4a.u32.u32 %r13, %r12, %r11, %r10;
fns.b32 %r14, %r13, 3, 1;
redux.sync.add.s32 %r15, %r14, -1;
match.any.sync.b32 %r16, %r15, -1;
ex2.approx.ftz.f32 %f5, %f4;
@%p1 exit;
trap;
}}
""",
)
_WORDS = re.compile(r"[%$\w.]+|[^\s\w]|\s+")
_NUMBERS = (
    "0", "1", "-1", "7", "16", "31", "33", "255", "4096", "65536", "2147483648", "0xffffffff", "-9223372036854775808",
    "18446744073709551615", "0f7FC00000", "0d3FF0000000000000", "1.5", "WARP_SZ",
)  # fmt: skip
_GRAINS = (
    "", "-1", "0", "99999999999999999999", "0x", "08", "1e999", "0f3F80", "%r99999999", "%tid.w", "_", "!%p1", "{", "}",
    "[", "]", "(", ")", ";", ",", "|", "<99999999>", ".v4", ".align 0", "bar.sync", "%p1", ".reg .b32 %q<9>;", "$L9",
    "ret;", "/*", "//", '"', "\0", "generic(", "+-", "@", ".b128", ".pred", "call", "brx.idx", "%rd1", "\x80",
)  # fmt: skip


def mutants(seed: int, count: int) -> Iterator[str]:
    """`count` modules: seeds with one to four changes, now and then words without order."""
    choose = random.Random(seed)
    opcodes = sorted({re.sub(r"\{(?:\w+:)?([^|}]*)[^}]*\}", r"\1", form) for form in emu_forms()})
    opcodes += [line.split()[0] for text in SEEDS for line in text.splitlines() if re.match("[a-z]", line)]
    words = [_WORDS.findall(text) for text in SEEDS]
    flat = [word for text in words for word in text if not word.isspace()]
    for _ in range(count):
        if choose.randrange(20) == 0:
            body = " ".join(choose.choice((*flat, *_GRAINS)) for _ in range(choose.randrange(60)))
            yield choose.choice((body, f"{HEADER}{body}", f"{HEADER}{ENTRY}{{ {body} }}"))
            continue
        text = list(choose.choice(words))
        if choose.randrange(3):  # keep the grammar: other registers, numbers, opcodes
            for _ in range(choose.randint(1, 3)):
                at = choose.choice([k for k, word in enumerate(text) if word[0] == "%" or word[0].isalnum()])
                word = text[at]
                if word[0] == "%":
                    text[at] = choose.choice([other for other in flat if other[0] == "%"])
                elif word[0].isdigit():
                    text[at] = choose.choice(_NUMBERS)
                elif "." in word:
                    text[at] = choose.choice(opcodes)
            yield "".join(text)
            continue
        for _ in range(choose.randint(1, 4)):
            at = choose.randrange(len(text))
            kind = choose.randrange(8)
            if kind == 0:
                del text[at : at + choose.randint(1, 6)]
            elif kind == 1:
                text[at] = choose.choice(_GRAINS)
            elif kind == 2:
                text[at] = choose.choice(flat)
            elif kind == 3:
                text.insert(at, choose.choice((*_GRAINS, *flat)))
            elif kind == 4:
                text[at : at + 1] = text[at : at + 1] * choose.choice((2, 3, 50))
            elif kind == 5:
                other = choose.randrange(len(text))
                text[at], text[other] = text[other], text[at]
            elif kind == 6:
                text.insert(
                    at, f"\n{choose.choice(opcodes)} {', '.join(choose.choices(flat, k=choose.randrange(5)))};\n"
                )
            else:
                word = text[at]
                spot = choose.randrange(len(word) + 1)
                text[at] = (
                    word[:spot] + chr(choose.choice((0, 48, 57, 46, 95, 233, choose.randrange(33, 127)))) + word[spot:]
                )
        yield "".join(text)


def emu_forms() -> list[str]:
    """Every form that the emulator executes."""
    from tilewright.emu.isa import registry

    return registry.forms()


class Hang(Exception):
    """A module that takes longer than SECONDS."""


def verdict(ptx: str) -> str:
    """What became of a module: "ran", or the name of the error. Raises what is not tilewright's, or Hang."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        memory = emu.GlobalMemory()
        places = [memory.add(np.ones(256, np.uint8)), memory.add(np.zeros(256, np.uint8))]
        params = struct.pack("<QQI", *places, 32)
        emu.run(ptx, "k", grid=(2, 1, 1), block=(32, 1, 1), params=params, memory=memory, hazards="collect", limit=3000)
        return "ran"
    except TilewrightError as error:
        return type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def main() -> int:
    """Run modules and print the first of each failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    given = parser.parse_args()
    told: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    start = time.perf_counter()
    for ptx in mutants(given.seed, given.count):
        try:
            told[verdict(ptx)] += 1
        except Exception:
            text = traceback.format_exc()
            last = "\n".join(text.strip().splitlines()[-3:])
            failures[last] += 1
            if failures[last] == 1:
                print(f"--- {ptx}\n--- {text}", flush=True)
    print(f"{given.count} modules in {time.perf_counter() - start:.1f} s: {dict(told)}; {failures.total()} failures")
    for text, count in failures.most_common():
        print(f"{count} times: {text}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
