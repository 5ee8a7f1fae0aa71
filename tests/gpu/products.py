"""Products on a GPU for tests of rungs: cases, operands of any layout, poisoned and guarded results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.lab.numbers import POISON


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


def torch_type(torch, dtype: str):
    return {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]


def values(tensor) -> np.ndarray:
    """A tensor's elements as float32 on the host."""
    return tensor.float().cpu().numpy()


def place(torch, shape: tuple[int, ...], layout: str, dtype: str = "f32"):
    """Random normal elements of `shape` under a layout of their last two axes."""
    *batch, rows, cols = shape

    def normal(*extents: int):
        return torch.randn(*batch, *extents, device="cuda", dtype=torch_type(torch, dtype))

    if layout == "t":
        return normal(cols, rows).transpose(-1, -2)
    if layout == "p":
        return normal(rows, cols + 5)[..., :cols]
    if layout == "s":
        return normal(2 * rows + 1, 2 * cols + 3)[..., 1 : 2 * rows + 1 : 2, 3 : 2 * cols + 3 : 2]
    if layout == "o":
        whole = torch.randn(int(np.prod(shape)) + 1, device="cuda", dtype=torch_type(torch, dtype))
        return whole[1:].view(shape)
    if layout == "r":
        return normal(1, cols).expand(*batch, rows, cols)
    if layout == "c":
        return normal(rows, 1).expand(*batch, rows, cols)
    return normal(rows, cols)


class Target:
    """A poisoned result inside a poisoned buffer: bands before, behind and, where padded, between its elements."""

    BAND = 1024

    def __init__(self, torch, shape: tuple[int, ...], layout: str, dtype: str = "f32") -> None:
        like = place(torch, shape, layout, dtype)
        reach = sum((e - 1) * s for e, s in zip(shape, like.stride(), strict=True)) + 1 if like.numel() else 0
        bits = {2: torch.int16, 4: torch.int32}[like.element_size()]
        self.poison = int(POISON[dtype])  # positive, so the same number signed
        self.bits = torch.full((self.BAND * 2 + reach,), self.poison, dtype=bits, device="cuda")
        start = self.BAND + like.storage_offset() % 8
        self.view = self.bits.view(like.dtype).as_strided(shape, like.stride(), start)
        self.view_bits = self.bits.as_strided(shape, like.stride(), start)

    def unwritten(self) -> int:
        return int((self.view_bits == self.poison).sum())

    def intact_around(self) -> bool:
        self.view_bits.fill_(self.poison)
        return bool((self.bits == self.poison).all())
