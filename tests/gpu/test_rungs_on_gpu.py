"""Every fp32 rung at 40 shapes and layouts: right against float64, all of the result written, nothing beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import tilewright as tw
from tilewright.lab.check import check
from tilewright.ladder import rungs_for

pytestmark = pytest.mark.gpu

RUNGS = [rung.id for rung in rungs_for("f32")]
POISON = 0x7FC0BEEF
"""A NaN of its own: a stray NaN written over it is seen."""


@dataclass(frozen=True)
class Case:
    """A product. Layouts: n row-major, t transposed, p rows padded, s every other element, o from one element on,
    r one row repeated, c one column repeated."""

    m: int
    n: int
    k: int
    a: str = "n"
    b: str = "n"
    out: str = "n"
    alpha: float = 1.0
    beta: float | None = None
    c: str = "n"
    batch: tuple[int, ...] = ()
    b_batch: tuple[int, ...] | None = None

    def __str__(self) -> str:
        text = f"{self.m}x{self.n}x{self.k}-{self.a}{self.b}{self.out}"
        if self.batch:
            text += "-batch" + "x".join(map(str, self.batch))
        return text + (f"-beta{self.beta}{self.c}" if self.beta is not None else "")


CASES = [
    # whole tiles, every layout, every kind of result
    Case(256, 256, 256), Case(256, 256, 256, "n", "t"), Case(256, 256, 256, "t", "n"), Case(256, 512, 128, "t", "t"),
    Case(512, 256, 64, out="t"), Case(256, 256, 256, out="p"), Case(256, 256, 128, out="o"),
    Case(256, 256, 128, out="s"),
    # ragged sizes
    Case(255, 257, 63), Case(129, 130, 131, "n", "t"), Case(1000, 1000, 100), Case(100, 36, 1000, "t", "t"),
    Case(333, 64, 77, out="p"), Case(33, 65, 17, out="t"), Case(260, 260, 20), Case(36, 20, 12, "t", "n"),
    # thin and tiny
    Case(1, 1, 1), Case(1, 512, 300), Case(512, 1, 300), Case(1, 300, 1), Case(3, 1000, 5),
    Case(1000, 2, 700, "t", "t"), Case(64, 64, 1), Case(128, 256, 1, "t", "t"), Case(256, 256, 0),
    Case(5, 7, 0, beta=2.0), Case(1, 1, 4096),
    # operands that vectors cannot read
    Case(256, 256, 256, "p", "p"), Case(256, 256, 256, "o", "n"), Case(256, 256, 256, "n", "o"),
    Case(130, 140, 150, "s", "s"), Case(256, 256, 64, "r", "c"), Case(128, 128, 96, "c", "r"),
    # alpha, beta and C
    Case(256, 256, 128, alpha=1.5, beta=-0.5), Case(200, 120, 40, alpha=-2.0, beta=0.25, c="t", out="p"),
    Case(256, 256, 64, alpha=0.5, beta=0.0), Case(77, 55, 33, alpha=0.0, beta=1.0, c="r"),
    # batches
    Case(64, 64, 64, batch=(5,)), Case(70, 30, 20, "t", "p", batch=(3, 2), b_batch=(2,), beta=0.5),
    Case(128, 128, 32, batch=(4, 3), b_batch=()),
]  # fmt: skip


def test_there_are_forty_cases():
    assert len(CASES) == len(set(CASES)) == 40


def place(torch, shape: tuple[int, ...], layout: str):
    """Random normal elements of `shape` under a layout of their last two axes."""
    *batch, rows, cols = shape

    def normal(*extents: int):
        return torch.randn(*batch, *extents, device="cuda")

    if layout == "t":
        return normal(cols, rows).transpose(-1, -2)
    if layout == "p":
        return normal(rows, cols + 5)[..., :cols]
    if layout == "s":
        return normal(2 * rows + 1, 2 * cols + 3)[..., 1 : 2 * rows + 1 : 2, 3 : 2 * cols + 3 : 2]
    if layout == "o":
        return torch.randn(int(np.prod(shape)) + 1, device="cuda")[1:].view(shape)
    if layout == "r":
        return normal(1, cols).expand(*batch, rows, cols)
    if layout == "c":
        return normal(rows, 1).expand(*batch, rows, cols)
    return normal(rows, cols)


class Target:
    """A poisoned result inside a poisoned buffer: bands before, behind and, where padded, between its elements."""

    BAND = 1024

    def __init__(self, torch, shape: tuple[int, ...], layout: str) -> None:
        like = place(torch, shape, layout)
        reach = sum((e - 1) * s for e, s in zip(shape, like.stride(), strict=True)) + 1 if like.numel() else 0
        self.torch = torch
        self.bits = torch.full((self.BAND * 2 + reach,), POISON, dtype=torch.int32, device="cuda")
        start = self.BAND + like.storage_offset() % 4
        self.view = self.bits.view(torch.float32).as_strided(shape, like.stride(), start)
        self.view_bits = self.bits.as_strided(shape, like.stride(), start)

    def unwritten(self) -> int:
        return int((self.view_bits == POISON).sum())

    def intact_around(self) -> bool:
        self.view_bits.fill_(POISON)
        return bool((self.bits == POISON).all())


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_is_right_and_stays_inside(torch, rung, case):
    torch.manual_seed(case.m * 7 + case.n * 5 + case.k)
    a = place(torch, (*case.batch, case.m, case.k), case.a)
    b_batch = case.batch if case.b_batch is None else case.b_batch
    b = place(torch, (*b_batch, case.k, case.n), case.b)
    target = Target(torch, (*case.batch, case.m, case.n), case.out)
    c = None
    if case.beta is not None:
        c = place(torch, (*case.batch, case.m, case.n), case.c)
        if case.beta == 0:
            c = torch.full_like(c, float("nan"))  # must not be read
    out = tw.matmul(a, b, c=c, alpha=case.alpha, beta=case.beta, out=target.view, rung=rung)
    assert out is target.view
    torch.cuda.synchronize()
    verdict = check(
        out.cpu().numpy(), a.cpu().numpy(), b.cpu().numpy(), c=None if c is None else c.cpu().numpy(),
        alpha=case.alpha, beta=case.beta or 0.0,
    )  # fmt: skip
    assert verdict.ok, verdict.reason
    assert target.unwritten() == 0
    assert target.intact_around(), "written beside the result"


@pytest.mark.parametrize("size", [128, 500, 512, 1000, 2048])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_what_the_plan_chooses_is_right(torch, size, layout):
    torch.manual_seed(size)
    a, b = place(torch, (size, size), layout[0]), place(torch, (size, size), layout[1])
    verdict = check(tw.matmul(a, b).cpu().numpy(), a.cpu().numpy(), b.cpu().numpy())
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("shape", [(256, 256, 64), (67, 45, 33), (1, 130, 20)], ids=str)
def test_the_emulator_gives_the_gpus_very_bits(torch, gpu, rung, layout, shape):
    from tilewright.arch import GPUS

    if gpu.name not in GPUS:
        pytest.skip(f"{gpu.name} is not a GPU that the emulator knows")
    m, n, k = shape
    torch.manual_seed(m)
    a, b, c = place(torch, (m, k), layout[0]), place(torch, (k, n), layout[1]), place(torch, (m, n), "n")
    hardware = tw.matmul(a, b, c=c, alpha=1.25, beta=-0.75, rung=rung).cpu().numpy()
    with tw.emulator(gpu=gpu.name):
        emulated = tw.matmul(a.cpu(), b.cpu(), c=c.cpu(), alpha=1.25, beta=-0.75, rung=rung).numpy()
    different = int((hardware.view(np.uint32) != emulated.view(np.uint32)).sum())
    assert different == 0, f"{different} of {hardware.size} elements differ"
