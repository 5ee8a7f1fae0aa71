"""Every form of mma, wmma and wgmma: a kernel that runs many cases of one, operands that try its sum, and its result.

A case is one product: by a warp (mma, wmma) or a warpgroup (wgmma). Matrices are the bits of their elements, A
[cases, m, k], B [cases, k, n], C and D [cases, m, n].
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from tilewright.emu.isa import fragments
from tilewright.emu.isa.mma import SIZE
from tilewright.emu.isa.tensor_sum import Rule, arithmetic, fp8_values
from tilewright.jit import CompiledKernel, compile_source
from tilewright.jit.launch import Executor, Launch

WARPS = 4
"""Of a block; those of wgmma work on one case, others each on its own."""
HELD = {"f32": ("float", "f", "f32"), "f64": ("double", "d", "f64")}
"""Type -> how CUDA C++, an asm constraint and PTX hold a register of it; others are 32 bits of anything."""


@dataclass(frozen=True)
class Form:
    """One instruction; `kinds` of D, A, B and C."""

    unit: str
    m: int
    n: int
    k: int
    kinds: tuple[str, str, str, str]
    saturate: bool = False

    def __str__(self) -> str:
        end = ".satfinite" if self.saturate else ""
        return f"{self.unit}.m{self.m}n{self.n}k{self.k}.{'.'.join(self.kinds)}{end}"

    @property
    def quads(self) -> bool:
        """Whether a warp makes four products, one a case each."""
        return self.unit == "mma" and self.m == 8 and self.kinds[1] == "f16"

    def registers(self, operand: int) -> int:
        """Of a lane, for D, A, B or C."""
        elements = (self.m * self.n, self.m * self.k, self.k * self.n, self.m * self.n)[operand]
        size = SIZE[self.kinds[operand]]
        lanes = 128 if self.unit == "wgmma" else 8 if self.quads else 32
        held = elements * size // (lanes * max(size, 4))
        return 8 if self.unit == "wmma" and self.kinds[operand] == "f16" and operand in (1, 2) else held

    def sums(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, rule: Rule | None = None) -> np.ndarray:
        """D as the emulator has it on Hopper."""
        unit = "quads" if self.quads else self.unit
        compute = arithmetic(unit, self.kinds, (9, 0), self.saturate, rule=rule)
        assert compute is not None
        left = np.ascontiguousarray(a.transpose(2, 1, 0))[:, :, None]
        right = np.ascontiguousarray(b.transpose(1, 2, 0))[:, None]
        return compute(left, right, np.ascontiguousarray(c.transpose(1, 2, 0))).transpose(2, 0, 1)


def _forms() -> list[Form]:
    floats = [("f32", "bf16", "bf16", "f32"), ("f32", "f16", "f16", "f32"), ("f16", "f16", "f16", "f16")]
    fp8 = [(d, x, y, d) for d in ("f32", "f16") for x, y in (("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2"))]
    tf32, f64 = ("f32", "tf32", "tf32", "f32"), ("f64",) * 4
    forms = [Form("mma", 16, 8, k, kinds) for k in (8, 16) for kinds in floats]
    forms += [Form("mma", 16, 8, k, tf32) for k in (4, 8)]
    forms += [Form("mma", 16, 8, k, kinds) for k in (16, 32) for kinds in fp8]
    forms += [Form("mma", 8, 8, 16, ("s32", "s8", "u8", "s32")), Form("mma", 16, 8, 16, ("s32", "u8", "s8", "s32"))]
    forms += [Form("mma", 16, 8, 32, ("s32", "s8", "s8", "s32"), saturate) for saturate in (False, True)]
    forms += [Form("mma", *shape, f64) for shape in ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16))]
    forms += [Form("mma", 8, 8, 4, ("f32", "f16", "f16", "f32")), Form("mma", 8, 8, 4, ("f16",) * 4)]
    mixed = [("f16", "f16", "f16", "f32"), ("f32", "f16", "f16", "f16")]
    for shape in ((16, 16, 16), (32, 8, 16), (8, 32, 16)):
        forms += [Form("wmma", *shape, kinds) for kinds in floats + mixed]
        forms += [Form("wmma", *shape, ("s32", kind, kind, "s32")) for kind in ("s8", "u8")]
    forms += [Form("wmma", 16, 16, 8, tf32), Form("wmma", 8, 8, 4, f64)]
    forms += [Form("wgmma", 64, 8, 16, kinds) for kinds in floats]
    forms += [Form("wgmma", 64, 8, 8, tf32)]
    forms += [Form("wgmma", 64, 8, 32, kinds) for kinds in fp8]
    forms += [Form("wgmma", 64, 8, 32, ("s32", x, y, "s32")) for x, y in (("s8", "s8"), ("u8", "s8"))]
    return forms


FORMS = _forms()


# --- kernels ----------------------------------------------------------------------------------------------------------


def source(form: Form) -> str:
    """CUDA C++ of k(d, a, b, c, cases)."""
    counts = [form.registers(i) for i in range(4)]
    types = [HELD.get(kind, ("unsigned", "r", "b32")) for kind in form.kinds]
    lists, first = [], 0
    for count in counts:
        lists.append("{" + ", ".join(f"%{first + i}" for i in range(count)) + "}")
        first += count
    d, a, b, c = lists

    def given(i: int, name: str) -> str:
        return ", ".join(f'"{types[i][1]}"({name}[{r}])' for r in range(counts[i]))

    def results(i: int, name: str, how: str = "=") -> str:
        return ", ".join(f'"{how}{types[i][1]}"({name}[{r}])' for r in range(counts[i]))

    def copies(line: str, count: int) -> str:
        return " ".join(line.format(r=r) for r in range(count))

    shape = f"m{form.m}n{form.n}k{form.k}"
    kinds, end = ".".join(form.kinds), ".satfinite" if form.saturate else ""
    used = "da" if form.unit == "wgmma" else "dabc"
    declared = " ".join(f"{types[i][0]} {name}[{counts[i]}];" for i, name in enumerate(used))
    parameters = ", ".join(f"{'const ' * (i > 0)}{types[i][0]} *__restrict__ {name}s" for i, name in enumerate("dabc"))
    head = f'extern "C" __global__ void k({parameters}, int cases) {{ {declared}\n int lane = threadIdx.x % 32;\n'
    lanes = 32
    if form.unit == "wgmma":
        lanes = 128
        head += " long unit = blockIdx.x; lane = threadIdx.x;\n"
    else:
        head += f" long unit = blockIdx.x * {WARPS}L + threadIdx.x / 32;\n if (unit >= cases) return;\n"
    loads = [
        copies(f"{name}[{{r}}] = {name}s[(unit * {counts[i]} + {{r}}) * {lanes} + lane];", counts[i])
        for i, name in ((1, "a"), (2, "b"), (3, "c"))
    ]
    store = copies(f"ds[(unit * {counts[0]} + {{r}}) * {lanes} + lane] = d[{{r}}];", counts[0])
    if form.unit == "mma":
        order = f"{end}.{kinds}" if form.kinds[0] == "s32" else f".{kinds}"
        body = f'asm volatile("mma.sync.aligned.{shape}.row.col{order} {d}, {a}, {b}, {c};" : {results(0, "d")} : '
        return head + "\n".join(loads) + body + f"{given(1, 'a')}, {given(2, 'b')}, {given(3, 'c')});\n{store} }}"
    if form.unit == "wgmma":
        count = counts[0]
        d = "{" + ", ".join(f"%{i}" for i in range(count)) + "}"
        a = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        words = form.n * 8  # rows of 32 bytes
        tail = "" if form.kinds[0] == "s32" else ", 1, 1, 0" if form.k == 16 else ", 1, 1"
        copied = copies(f"d[{{r}}] = cs[(unit * {count} + {{r}}) * 128 + lane];", count)
        return (
            head + f"__shared__ __align__(128) unsigned tile[{words}];\n{loads[0]} {copied}\n"
            f"for (int i = lane; i < {words}; i += 128) tile[i] = bs[unit * {words} + i];\n"
            'asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncthreads();\n'
            "unsigned at = (unsigned)__cvta_generic_to_shared(tile);\n"
            f"unsigned long long b_at = at >> 4 | {form.n}ull << 16 | 8ull << 32;\n"
            'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n'
            f'asm volatile("{{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.{shape}.'
            f'{".".join(form.kinds[:3])} {d}, {a}, %{count + 4}, p{tail};}}" : {results(0, "d", "+")} : '
            f'{given(1, "a")}, "l"(b_at) : "memory");\n'
            'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");\n'
            'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");\n' + store + "}"
        )
    named = kinds if form.kinds[1] != "f16" else f"{form.kinds[0]}.{form.kinds[3]}"
    lines = []
    places = (("a", 1, form.m * form.k, form.k, "row"), ("b", 2, form.k * form.n, form.k, "col"))
    for name, i, elements, pitch, layout in (*places, ("c", 3, form.m * form.n, form.n, "row")):
        held = "{" + ", ".join(f"%{r}" for r in range(counts[i])) + "}"
        address = f"(const char *){name}s + unit * {elements * SIZE[form.kinds[i]]}"
        lines.append(
            f'asm volatile("wmma.load.{name}.sync.aligned.{layout}.{shape}.{form.kinds[i]} {held}, [%{counts[i]}], '
            f'{pitch};" : {results(i, name)} : "l"({address}) : "memory");'
        )
    held = "{" + ", ".join(f"%{1 + r}" for r in range(counts[0])) + "}"
    lines.append(
        f'asm volatile("wmma.mma.sync.aligned.row.col.{shape}.{named}{end} {d}, {a}, {b}, {c};" : {results(0, "d")} : '
        f"{given(1, 'a')}, {given(2, 'b')}, {given(3, 'c')});"
    )
    lines.append(
        f'asm volatile("wmma.store.d.sync.aligned.row.{shape}.{form.kinds[0]} [%0], {held}, {form.n};" :: '
        f'"l"((char *)ds + unit * {form.m * form.n * SIZE[form.kinds[0]]}), {given(0, "d")} : "memory");'
    )
    return head + "\n".join(lines) + "}"


def compiled(form: Form, arch: str) -> CompiledKernel:
    return compile_source(source(form), entry="k", arch=arch, name=f"{form}.cu")


# --- between matrices and registers -----------------------------------------------------------------------------------


def _places(to_matrix: Callable[[np.ndarray], np.ndarray], registers: int, size: int) -> np.ndarray:
    """Where each element of a matrix lies in the flat (register, lane, part) of one warp."""
    width = max(size, 4)
    ids = np.arange(registers * 32 * (width // size))
    found = 0
    for byte in range(2):  # ids may not fit in an element
        part = (ids >> 8 * byte & 255).astype(f"u{size}")
        found = found + (to_matrix(part.view(f"u{width}").reshape(registers, 32)).astype(np.int64) << 8 * byte)
    return found


@cache
def layout(form: Form, operand: int) -> np.ndarray:
    """Places of the elements of D, A, B or C, in the order of the matrix [rows, columns], in a warp's registers."""
    size, count = SIZE[form.kinds[operand]], form.registers(operand)
    m, n, k = form.m, form.n, form.k
    if form.unit == "wgmma":  # 128 lanes
        thread, r = np.ogrid[:128, :count]
        row = 16 * (thread // 32) + thread % 32 // 4
        if operand == 1:
            e = 4 // size
            rows, columns = np.broadcast_arrays(
                (row + 8 * (r % 2))[..., None], (4 * e * (r // 2) + e * (thread % 4))[..., None] + np.arange(e)
            )
        else:
            e = 2 if size == 2 else 1
            pair = r if size == 2 else r // 2
            rows = np.broadcast_to((row + 8 * (pair % 2))[..., None], (128, count, e))
            columns = (8 * (pair // 2) + 2 * (thread % 4))[..., None] + (np.arange(2) if e == 2 else (r % 2)[..., None])
            columns = np.broadcast_to(columns, (128, count, e))
        at = (r[..., None] * 128 + thread[..., None]) * e + np.arange(e)
        out = np.empty((m, k if operand == 1 else n), np.int64)
        out[rows, columns] = at
        return out
    if form.quads:
        if operand in (1, 2):
            found = _places(lambda words: fragments.quad_factor(words, True), count, size)  # [k, 8, 4]
            return (found.transpose(2, 1, 0) if operand == 1 else found.transpose(2, 0, 1)).reshape(4, -1)
        return _places(fragments.quad_matrix, count, size).transpose(2, 0, 1).reshape(4, -1)
    if operand == 1:
        return _places(lambda words: fragments.a_matrix(words, m, size), count, size)[:, :, 0, 0].T
    if operand == 2:
        return _places(lambda words: fragments.b_matrix(words, n, size), count, size)[:, 0, :, 0]
    return _places(lambda words: fragments.d_matrix(words, m, n, size), count, size)[:, :, 0]


def packed(form: Form, operand: int, matrices: np.ndarray) -> np.ndarray:
    """What the kernel is given of an operand, as bytes."""
    if form.unit == "wmma":
        return np.ascontiguousarray(matrices.swapaxes(1, 2) if operand == 2 else matrices).view(np.uint8).reshape(-1)
    if form.unit == "wgmma" and operand == 2:  # 8 columns by 16 bytes of k at a time, the next 16 bytes of k behind
        lines = np.ascontiguousarray(matrices.swapaxes(1, 2)).view(np.uint8)  # [cases, n, 32]
        return np.ascontiguousarray(lines.reshape(len(lines), form.n, 2, 16).swapaxes(1, 2)).reshape(-1)
    places = layout(form, operand).reshape(-1)
    units = matrices.reshape(-1, len(places))
    out = np.empty_like(units)
    out[:, places] = units
    return out.view(np.uint8).reshape(-1)


def unpacked(form: Form, data: np.ndarray, cases: int) -> np.ndarray:
    """D's matrices from what the kernel wrote."""
    words = data.view(f"u{SIZE[form.kinds[0]]}")
    if form.unit != "wmma":
        places = layout(form, 0).reshape(-1)
        words = words.reshape(-1, len(places))[:, places]
    return words.reshape(cases, form.m, form.n)


def run(
    form: Form, executor: Executor, kernel: CompiledKernel, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """D of the cases, from the executor; of quads their number is a multiple of 4."""
    cases = len(a)
    units = cases // 4 if form.quads else cases
    nbytes = cases * form.m * form.n * SIZE[form.kinds[0]]
    places = [executor.upload(np.full(nbytes, 0xA5, np.uint8), "d")]
    places += [executor.upload(packed(form, i, x), "dabc"[i]) for i, x in ((1, a), (2, b), (3, c))]
    blocks = units if form.unit == "wgmma" else -(-units // WARPS)
    try:
        executor.launch(kernel, Launch((blocks, 1, 1), (32 * WARPS, 1, 1), struct.pack("<4Qi", *places, units)))
        return unpacked(form, executor.download(places[0], nbytes), cases)
    finally:
        for place in places:
            executor.release(place)


# --- operands that try the sum ----------------------------------------------------------------------------------------

WIDTHS = {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 23), "f32": (8, 23), "e4m3": (4, 3), "e5m2": (5, 2),
          "f64": (11, 52)}  # fmt: skip
"""Bits of exponent and mantissa."""


def floats(
    rng: np.random.Generator, kind: str, shape: tuple[int, ...], low: int, high: int, powers: bool = False
) -> np.ndarray:
    """Bits of finite numbers with exponents from low to high, as far as the type has them; `powers` of two."""
    wide, mantissa = WIDTHS[kind]
    size, bias = SIZE[kind], 2 ** (wide - 1) - 1
    top = 2**wide - 1 if kind == "e4m3" else 2**wide - 2
    field = rng.integers(max(low + bias, 0), max(min(high + bias, top), 0) + 1, shape) if high + bias > 0 else 0
    words = rng.integers(0, 2**mantissa, shape, dtype=np.uint64) * np.uint64(not powers)
    words = words | np.asarray(field).astype(np.uint64) << np.uint64(mantissa)
    words |= rng.integers(0, 2, shape, dtype=np.uint64) << np.uint64(wide + mantissa)
    if kind == "e4m3":  # all ones is NaN
        words -= words & np.uint64(127) == np.uint64(127)
    return words.astype(f"u{size}")


def as_bits(values: np.ndarray, kind: str) -> np.ndarray:
    """The nearest of f16, f32 or f64."""
    return values.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]).view(f"u{SIZE[kind]}")


def values_of(words: np.ndarray, kind: str) -> np.ndarray:
    if kind in ("e4m3", "e5m2"):
        return fp8_values(kind).take(words).astype(np.float64)
    if kind == "bf16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return np.ascontiguousarray(words).view(f"f{SIZE[kind]}").astype(np.float64)


def sprinkled(rng: np.random.Generator, kind: str, words: np.ndarray, share: float) -> np.ndarray:
    """With infinities, NaN and zeros here and there."""
    wide, mantissa = WIDTHS[kind]
    infinity = (2**wide - 1) << mantissa
    nan = infinity | (127 & (2**mantissa - 1)) if kind == "e4m3" else infinity | 1 << mantissa - 1
    sign = 1 << wide + mantissa
    special = [nan, nan | sign, 0, sign] if kind == "e4m3" else [infinity, infinity | sign, nan, 0, sign]
    chosen = rng.choice(np.array(special, np.uint64), words.shape).astype(words.dtype)
    return np.where(rng.random(words.shape) < share, chosen, words)


MODES = ("near", "medium", "wide", "cancelling", "subnormal", "large C", "C cancels", "powers of two", "zeros",
         "overflowing", "special", "vanishing", "any bits")  # fmt: skip
"""How operands are drawn."""


def operands(form: Form, mode: str, cases: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B and C of so many cases."""
    _, a_kind, b_kind, c_kind = form.kinds
    shapes = (cases, form.m, form.k), (cases, form.k, form.n), (cases, form.m, form.n)
    if c_kind == "s32":
        a, b = (rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes[:2])
        if mode in ("wide", "overflowing"):
            a, b = (rng.choice(np.array([0, 127, 128, 255], np.uint8), shape) for shape in shapes[:2])
        c = rng.integers(-(2**31), 2**31, shapes[2], dtype=np.int64)
        c = np.clip(c * 2, -(2**31), 2**31 - 1) if mode == "overflowing" else c
        return a, b, c.astype(np.int32).view(np.uint32)

    def draw(low: int, high: int, c_low: int, c_high: int, powers: bool = False) -> list[np.ndarray]:
        exponents = ((low, high), (low, high), (c_low, c_high))
        kinds = (a_kind, b_kind, c_kind)
        return [floats(rng, kind, shape, *e, powers) for kind, shape, e in zip(kinds, shapes, exponents, strict=True)]

    smallest = 2 - 2 ** (min(WIDTHS[a_kind][0], WIDTHS[b_kind][0]) - 1)  # of normal numbers
    if mode == "near":
        return tuple(draw(-2, 2, -2, 4))
    if mode == "medium":
        return tuple(draw(-8, 8, -10, 14))
    if mode == "wide":
        return tuple(draw(-2000, 2000, -2000, 2000))
    if mode == "cancelling":
        a, b, c = draw(-2, 2, -16, -6)
        half = form.k // 2
        a[:, :, half:], b[:, half:] = a[:, :, :half], b[:, :half] ^ b.dtype.type(1 << 8 * b.itemsize - 1)
        for words, kind in ((a, a_kind), (b, b_kind)):
            np.copyto(words, floats(rng, kind, words.shape, -12, -6), where=rng.random(words.shape) < 0.15)
        return a, b, np.where(rng.random(c.shape) < 0.5, c, 0).astype(c.dtype)
    if mode == "subnormal":
        return tuple(draw(smallest - 1, smallest + 2, 2 * smallest - 6, 2 * smallest + 6))
    if mode == "large C":
        return tuple(draw(-3, 1, 4, 30))
    if mode == "C cancels":
        a, b, c = draw(-3, 3, 0, 0)
        near = as_bits(-(values_of(a, a_kind) @ values_of(b, b_kind)), c_kind)
        return a, b, near + rng.integers(0, 3, near.shape).astype(near.dtype)
    if mode == "powers of two":
        a, b, c = draw(-3, 3, -4, 12, True)
        return a, np.where(rng.random(b.shape) < 0.3, 0, b).astype(b.dtype), c
    if mode == "zeros":
        a, b, c = draw(-2000, 2000, -2000, 2000)
        kept = [np.where(rng.random(x.shape) < share, 0, x).astype(x.dtype) for x, share in ((a, 0.5), (b, 0.5))]
        return *kept, np.where(rng.random(c.shape) < 0.7, 0, c).astype(c.dtype)
    if mode == "overflowing":
        limit = 16 if "f16" in (c_kind, form.kinds[0]) else 128 if c_kind == "f32" else 1024
        reach = min(limit // 2, 2 ** (min(WIDTHS[a_kind][0], WIDTHS[b_kind][0]) - 1))
        return tuple(draw(reach - 4, reach, limit - 4, limit))
    if mode == "special":
        a, b, c = draw(-3, 3, -3, 6)
        return sprinkled(rng, a_kind, a, 0.01), sprinkled(rng, b_kind, b, 0.01), sprinkled(rng, c_kind, c, 0.02)
    if mode == "vanishing":
        deep = {"f16": -13, "f32": -75, "f64": -540}["f16" if form.kinds[0] == "f16" else c_kind]
        a, b, c = draw(deep - 3, deep + 3, 2 * deep - 4, 2 * deep + 4)
        return a, b, np.where(rng.random(c.shape) < 0.5, c & c.dtype.type(1 << 8 * c.itemsize - 1), c)
    assert mode == "any bits"
    return tuple(
        rng.integers(0, 2 ** (8 * SIZE[kind]), shape, dtype=f"u{SIZE[kind]}")
        for kind, shape in zip((a_kind, b_kind, c_kind), shapes, strict=True)
    )  # fmt: skip


SAMPLES = 3
"""Recorded with every mode of every form."""
SLOW_MODES = ("wide", "subnormal", "zeros", "overflowing", "special", "vanishing", "any bits")
"""Of fp64 the emulator does these in Python's rationals, one by one: few of them."""
Place = tuple[int, int, int]


def compared_operands(
    form: Form, results: int
) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray], list[Place]]]:
    """Each mode with the operands that tests/gpu/tensor_bits.py compares and the (case, row, column) it samples."""
    rng, each = np.random.default_rng(7), form.m * form.n
    weights = [0.002 if form.kinds[0] == "f64" and mode in SLOW_MODES else 1.0 for mode in MODES]
    for mode, weight in zip(MODES, weights, strict=True):
        cases = max(4, -(-int(results * weight / sum(weights) + each) // each // 4) * 4)
        given = operands(form, mode, cases, rng)
        sampled = [rng.integers(0, size, SAMPLES).tolist() for size in given[2].shape]
        yield mode, given, list(zip(*sampled, strict=True))


def hexadecimal(words: np.ndarray) -> str:
    return " ".join(f"{int(word):0{2 * words.itemsize}x}" for word in words.reshape(-1))
