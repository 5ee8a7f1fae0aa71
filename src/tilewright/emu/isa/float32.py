"""Arithmetic in fp32. Everything but the `approx` forms is correctly rounded, so it equals the GPU bit for bit.

NumPy's float32 operations round to nearest even as the GPU's do. A fused multiply-add has one rounding: the product of
two fp32 numbers is exact in float64, so is the sum up to 53 bits; that sum is then rounded to fp32. Rounding twice
differs from rounding once only where the float64 sum lies exactly between two fp32 numbers, or where the result is
subnormal and keeps fewer bits: those lanes are done again with the sum rounded to odd, which is safe to round twice.
NaN results are 0x7fffffff, as on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from ..ptx import Instruction
from .registry import Compute, Step, elementwise, executes

NAN = np.uint32(0x7FFFFFFF)
_HALF_WAY = np.iinfo(np.int64).min
_TINY = np.float32(2.0**-126)


def canonical(out: np.ndarray) -> None:
    """Make every NaN of a float32 array the GPU's own."""
    if np.isnan(np.add.reduce(out) if len(out) else 0.0):
        np.copyto(out.view(np.uint32), NAN, where=np.isnan(out))


def flush(values: np.ndarray) -> np.ndarray:
    """Subnormals as zeros of their sign."""
    return np.where(np.abs(values) < _TINY, np.copysign(np.float32(0), values), values)


def round_to_odd(product: np.ndarray, addend: np.ndarray, total: np.ndarray) -> np.ndarray:
    """product + addend in float64, rounded to odd; `total` is the sum rounded to nearest."""
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)  # exact: Knuth's two-sum
    even = (total.view(np.int64) & 1) == 0
    nudge = np.isfinite(total) & (error != 0) & even
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(nudge, np.nextafter(total, towards), total)


def round_directed(exact_sum: np.ndarray, mode: str) -> np.ndarray:
    """float64 (rounded to odd, or exact) -> float32 in one of the modes rz, rm, rp."""
    nearest = exact_sum.astype(np.float32)
    wide = nearest.astype(np.float64)
    if mode == "rz":
        over = np.abs(wide) > np.abs(exact_sum)
        down = np.where(exact_sum > 0, np.float32(-np.inf), np.float32(np.inf))
    elif mode == "rm":
        over = wide > exact_sum
        down = np.float32(-np.inf)
    else:
        over = wide < exact_sum
        down = np.float32(np.inf)
    return np.where(over, np.nextafter(nearest, down), nearest).astype(np.float32)


def finish(fields: dict[str, str]) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return what .ftz and .sat do to a result; None when neither is there."""
    ftz, sat = bool(fields.get("ftz")), bool(fields.get("sat"))
    if not (ftz or sat):
        return None

    def done(values: np.ndarray) -> np.ndarray:
        if ftz:
            values = flush(values)
        if sat:
            values = np.where(np.isnan(values), np.float32(0), np.clip(values, np.float32(0), np.float32(1)))
            values = np.where(values == 0, np.float32(0), values)
        return values

    return done


def _modified(fields: dict[str, str], compute: Compute, temporary: np.ndarray) -> Compute:
    """`compute` with .ftz on its sources and .ftz and .sat on its result."""
    done = finish(fields)
    if done is None:
        return compute
    ftz = bool(fields.get("ftz"))

    def whole(out: np.ndarray, *sources: np.ndarray) -> None:
        compute(temporary, *(flush(a) if ftz else a for a in sources))
        np.copyto(out, done(temporary))
        canonical(out)

    return whole


def _fused(machine: Machine, rows: int = 1) -> Compute:
    """compute(out, a, b, c) of `rows` lanes' worth of elements; `out` may be one of the sources."""
    product, addend = machine.scratch("f64", "product", rows), machine.scratch("f64", "addend", rows)
    total, shifted = machine.scratch("f64", "sum", rows), machine.scratch("s64", "shifted", rows)
    bits, underflow = total.view(np.int64), machine.underflow

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        np.multiply(a, b, out=product, dtype=np.float64)
        np.copyto(addend, c)
        np.add(product, addend, out=total)
        underflow.seen = False
        np.copyto(out, total, casting="same_kind")
        # The lowest 29 bits of a sum between two fp32 numbers are 1 and 28 zeros.
        np.left_shift(bits, 35, out=shifted)
        if underflow.seen or np.minimum.reduce(shifted) == _HALF_WAY:
            doubtful = (shifted == _HALF_WAY) | (np.abs(out) <= _TINY)
            odd = round_to_odd(product[doubtful], addend[doubtful], total[doubtful])
            out[doubtful] = odd.astype(np.float32)
        canonical(out)

    return compute


def fma_together(machine: Machine, instructions: list[Instruction]) -> Step:
    """Several independent multiply-adds as one."""
    fields, count, lanes = instructions[0].fields, len(instructions), machine.lanes
    compute = _modified(fields, _fused(machine, count), machine.scratch("f32", "modified", count))
    bank = machine.banks[4]
    to, *places = (
        np.array([machine.program.rows[i.operands[k]] for i in instructions])  # type: ignore[index]
        for k in range(4)
    )
    sources = [machine.scratch("f32", f"source{k}", count) for k in range(3)]
    grids = [source.view(np.uint32).reshape(count, lanes) for source in sources]
    result = machine.scratch("f32", "together", count)
    result_grid = result.view(np.uint32).reshape(count, lanes)

    def step() -> None:
        for place, grid in zip(places, grids, strict=True):
            bank.take(place, axis=0, out=grid, mode="clip")
        compute(result, *sources)
        mask = machine.mask
        if mask is None:
            bank[to] = result_grid
        else:
            bank[to] = np.where(mask, result_grid, bank[to])

    return step


@executes(
    "fma.rn{ftz:.ftz|}{sat:.sat|}.f32",
    "mad{.rn|}{ftz:.ftz|}{sat:.sat|}.f32",
    kind="fp32",
    flops=("ffma", 2),
    together=fma_together,
)
@elementwise(types=("f32", "f32", "f32", "f32"))
def fma(machine: Machine, fields: dict[str, str]) -> Compute:
    """a * b + c, rounded once."""
    return _modified(fields, _fused(machine), machine.scratch("f32", "modified"))


@executes("fma.{mode:rz|rm|rp}{ftz:.ftz|}{sat:.sat|}.f32", kind="fp32", flops=("ffma", 2))
@elementwise(types=("f32", "f32", "f32", "f32"))
def fma_directed(machine: Machine, fields: dict[str, str]) -> Compute:
    """a * b + c, rounded towards zero, down or up."""

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        product = np.broadcast_to(np.multiply(a, b, dtype=np.float64), out.shape)
        addend = np.broadcast_to(c.astype(np.float64), out.shape)
        total = product + addend
        odd = round_to_odd(product, addend, total)
        if fields["mode"] == "rm":  # an exact zero from operands of opposite signs is negative when rounding down
            cancelled = (total == 0) & (np.signbit(product) != np.signbit(addend))
            odd = np.where(cancelled, -0.0, odd)
        np.copyto(out, round_directed(odd, fields["mode"]))
        canonical(out)

    return _modified(fields, compute, machine.scratch("f32", "modified"))


_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _arithmetic(name: str) -> Callable[[Machine, dict[str, str]], Compute]:
    function = _FUNCTIONS[name]

    def factory(machine: Machine, fields: dict[str, str]) -> Compute:
        def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
            function(a, b, out=out)
            canonical(out)

        return _modified(fields, compute, machine.scratch("f32", "modified"))

    return factory


for _name, _pipe in (("add", "fadd"), ("sub", "fadd"), ("mul", "fmul")):
    executes(f"{_name}{{.rn|}}{{ftz:.ftz|}}{{sat:.sat|}}.f32", kind="fp32", flops=(_pipe, 1))(
        elementwise(_arithmetic(_name), types=("f32", "f32", "f32"))
    )


@executes("{op:add|sub|mul}.{mode:rz|rm|rp}{ftz:.ftz|}{sat:.sat|}.f32", kind="fp32", flops=("fadd", 1))
@elementwise(types=("f32", "f32", "f32"))
def arithmetic_directed(machine: Machine, fields: dict[str, str]) -> Compute:
    """Sums, differences and products rounded towards zero, down or up."""
    op, mode = fields["op"], fields["mode"]

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        x, y = (np.broadcast_to(v.astype(np.float64), out.shape) for v in (a, b))
        if op == "mul":
            odd = x * y  # exact
        else:
            y = -y if op == "sub" else y
            total = x + y
            odd = round_to_odd(x, y, total)
            if mode == "rm":
                odd = np.where((total == 0) & (np.signbit(x) != np.signbit(y)), -0.0, odd)
        np.copyto(out, round_directed(odd, mode))
        canonical(out)

    return _modified(fields, compute, machine.scratch("f32", "modified"))


@executes("div.rn{ftz:.ftz|}.f32", kind="fp32", flops=("fdiv", 1))
@elementwise(types=("f32", "f32", "f32"))
def divide(machine: Machine, fields: dict[str, str]) -> Compute:
    """a / b, correctly rounded."""

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        np.divide(a, b, out=out)
        canonical(out)

    return _modified(fields, compute, machine.scratch("f32", "modified"))


@executes("{op:sqrt|rcp}.rn{ftz:.ftz|}.f32", kind="fp32", flops=("fspecial", 1))
@elementwise(types=("f32", "f32"))
def root_or_reciprocal(machine: Machine, fields: dict[str, str]) -> Compute:
    """Square root or reciprocal, correctly rounded."""
    one = np.float32(1)

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        if fields["op"] == "sqrt":
            np.sqrt(a, out=out)
        else:
            np.divide(one, a, out=out)
        canonical(out)

    return _modified(fields, compute, machine.scratch("f32", "modified"))


def move(nearest: np.ndarray, side: np.ndarray, mode: str) -> np.ndarray:
    """Results rounded to nearest, moved to where `mode` wants them; side: > 0 where the exact result lies above."""
    up = (side > 0) & ((nearest < 0) if mode == "rz" else mode == "rp")
    down = (side < 0) & ((nearest > 0) if mode == "rz" else mode == "rm")
    towards = np.where(up, np.inf, -np.inf).astype(nearest.dtype)
    return np.where(up | down, np.nextafter(nearest, towards), nearest)


@executes("div.{mode:rz|rm|rp}{ftz:.ftz|}.f32", kind="fp32", flops=("fdiv", 1))
@elementwise(types=("f32", "f32", "f32"))
def divide_directed(machine: Machine, fields: dict[str, str]) -> Compute:
    """a / b, rounded towards zero, down or up."""

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        nearest = np.divide(a, b)
        finite = np.isfinite(a) & np.isfinite(b) & (b != 0)
        rest = a.astype(np.float64) - nearest.astype(np.float64) * b  # of an infinity it is one, too
        np.copyto(out, move(nearest, np.where(finite, rest * np.sign(b), 0), fields["mode"]))
        canonical(out)

    return _modified(fields, compute, machine.scratch("f32", "modified"))


@executes("{op:sqrt|rcp}.{mode:rz|rm|rp}{ftz:.ftz|}.f32", kind="fp32", flops=("fspecial", 1))
@elementwise(types=("f32", "f32"))
def root_or_reciprocal_directed(machine: Machine, fields: dict[str, str]) -> Compute:
    """Square root or reciprocal, rounded towards zero, down or up."""

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        wide = a.astype(np.float64)
        if fields["op"] == "sqrt":
            nearest = np.sqrt(a)
            side = np.where(np.isfinite(a), wide - np.square(nearest, dtype=np.float64), 0)
        else:
            nearest = np.divide(np.float32(1), a)
            rest = 1 - nearest.astype(np.float64) * wide
            side = np.where(np.isfinite(a) & (a != 0), rest * np.sign(a), 0)
        np.copyto(out, move(nearest, side, fields["mode"]))
        canonical(out)

    return _modified(fields, compute, machine.scratch("f32", "modified"))


@executes("{op:neg|abs}{ftz:.ftz|}.f32", kind="fp32")
@elementwise(types=("f32", "f32"))
def sign(machine: Machine, fields: dict[str, str]) -> Compute:
    """The sign flipped, or cleared; of a NaN too."""
    top = np.array([0x80000000], np.uint32)

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        a = flush(a).astype(np.float32) if fields["ftz"] else a
        if fields["op"] == "neg":
            np.bitwise_xor(a.view(np.uint32), top, out=out.view(np.uint32))
        else:
            np.bitwise_and(a.view(np.uint32), ~top, out=out.view(np.uint32))

    return compute


def least_or_greatest(op: str, nan: bool, bits: np.dtype, quiet: int) -> Callable[..., np.ndarray]:
    """The function (a, b) of min or max: -0 < +0; of one NaN the other operand unless `nan`; of two NaN a NaN."""

    def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = np.broadcast_arrays(a, b)
        first = (a < b) | ((a == b) & np.signbit(a)) if op == "min" else (a > b) | ((a == b) & ~np.signbit(a))
        picked = np.where(first, a, b)
        if nan:
            lost = np.isnan(a) | np.isnan(b)
        else:
            picked = np.where(np.isnan(a), b, np.where(np.isnan(b), a, picked))
            lost = np.isnan(picked)
        return np.where(lost, np.array(quiet, bits).view(a.dtype), picked)

    return function


@executes("{op:min|max}{ftz:.ftz|}{nan:.NaN|}{abs:.xorsign.abs|}.f32", kind="fp32")
@elementwise(types=("f32", "f32", "f32"))
def extreme(machine: Machine, fields: dict[str, str]) -> Compute:
    """The smaller or the larger; with .xorsign.abs of the magnitudes, under the product of the signs."""
    function = least_or_greatest(fields["op"], bool(fields["nan"]), np.dtype(np.uint32), int(NAN))

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        if fields["ftz"]:
            a, b = flush(a).astype(np.float32), flush(b).astype(np.float32)
        if not fields["abs"]:
            np.copyto(out, function(a, b))
            return
        negative = np.signbit(a) != np.signbit(b)
        result = function(np.abs(a), np.abs(b))
        np.copyto(out, np.where(negative & ~np.isnan(result), -result, result))

    return compute


@executes("copysign.f32", kind="fp32")
@elementwise(types=("f32", "f32", "f32"))
def copy_sign(machine: Machine, fields: dict[str, str]) -> Compute:
    """b with the sign of a."""
    top = np.uint32(0x80000000)

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        np.copyto(out.view(np.uint32), (a.view(np.uint32) & top) | (b.view(np.uint32) & ~top))

    return compute


@executes("testp.{what:finite|infinite|number|notanumber|normal|subnormal}.{type:f32|f64}", kind="fp32")
def test_property(machine: Machine, instruction: Instruction) -> Step:
    """Test of what kind a float is."""
    kind = instruction.fields["type"]
    tiny = np.finfo(np.float32 if kind == "f32" else np.float64).tiny
    tests: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": lambda a: (np.abs(a) < tiny) & (a != 0),
    }
    test = tests[instruction.fields["what"]]
    to, what = instruction.operands
    source = machine.source(instruction, what, kind)
    return machine.keep(instruction, to, "pred", lambda out, a: np.copyto(out, test(a)), [source])
