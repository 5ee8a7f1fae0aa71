"""The warm path of matmul: a product of a kind seen before, at the least host time that Python allows (run/warm.py)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..arrays.dlpack import dense_strides
from ..arrays.extents import byte_extent, same_view
from ..arrays.result import as_callers_kind, empty_like, result_operand
from ..arrays.streams import in_order
from ..arrays.view import Operand, as_operand
from ..arrays.written import mark_written
from ..epilogue.expression import expression_of
from ..errors import InvalidOperand
from ..jit import device, device_calls, gpu_executor
from ..jit.launch import current_executor
from ..jit.params import WORK, number_names
from ..run import libraries
from ..run.glance import Glance, glance
from ..run.lately import Lately, Ways
from ..run.runner import Ran
from ..run.warm import MISS, Calls, Remembered, remembered
from .freivalds import seed
from .fusion import Request
from .params import fused_base
from .problem import INDEX
from .verify import WarmCheck, warm_check
from .warm_host import MOST_ALPHA, Copies, copies_of, remember_numpy, run_copied

if TYPE_CHECKING:
    from ..epilogue.codegen import Expression
    from .call import Call

_SCALARS = struct.Struct("<2f")  # alpha, beta, as kernels take them
_NUMBERS = (float, int)
_ZEROS = (b"\0\0\0\0", b"\0\0\0\x80")


@dataclass(frozen=True)
class WarmProduct:
    """The part of a product that is the same for every call with one key. Extents are bytes from an array's address."""

    launches: Remembered
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a new result: dense, row-major, in elements."""
    dtype: Any
    a_extent: int
    b_extent: int
    c_extent: int
    out_extent: int
    c_has_outs_layout: bool
    fused: tuple[str | None, ...] = ()
    """The caller's name for each of the epilogue's inputs; None: an index, which starts at 0."""
    apart: tuple[tuple[str, int, bool], ...] = ()
    """Of the epilogue's arrays: the caller's name, extent, and whether it may be out's very view."""
    check: WarmCheck | None = None
    """How its results are verified; None until one was."""
    copies: Copies | None = None
    """Where arrays of the host lie on the GPU; None for arrays on one."""


calls: Calls[WarmProduct] = Calls()
_lately: Lately[WarmProduct] = Lately()


def key_of(
    library: libraries.Library, a: Any, b: Any, c: Any, uses_c: bool, out: Any, options: tuple[Any, ...],
    asked: Request | None, form: Any,
) -> Any:  # fmt: skip
    """The key of a call. `form`: as form_of. Numbers are in no key: each launch is given its own.

    Raises RuntimeError or AttributeError for what has no strides or memory.
    """
    signature = library.signature
    of_c, of_out = c is not None and signature(c), out is not None and signature(out)
    if asked is None:
        return library.pair(a, b), options, uses_c, of_c, of_out
    return library.pair(a, b), options, uses_c, of_c, of_out, form, fused_signatures(library, asked)


def fused_signatures(library: libraries.Library, asked: Request) -> tuple[Any, ...]:
    """Each array that is fused: its name, and how it is read."""
    function, _, operands = asked
    found: tuple[Any, ...] = ()
    for name, value in operands.items():
        if function is None or type(value) not in _NUMBERS:
            found += name, library.signature(value)
    return found


def form_of(asked: Request) -> tuple[Any, tuple[float, ...]]:
    """Return what is to be fused, but for its numbers; and those. Raises InvalidEpilogue as expression_of does."""
    function, activation, operands = asked
    if function is None:
        return activation, ()
    given = {name: value if type(value) in _NUMBERS else None for name, value in operands.items()}
    expression = expression_of(function, given)
    return _form(expression), expression.numbers


def _form(expression: Expression) -> Any:
    return expression.code, expression.inputs


def own_form(call: Call, asked: Request | None) -> tuple[Any, tuple[float, ...]]:
    """Do as form_of, by a call's own trace: another might say something else."""
    if asked is None or call.fusion is None:
        return None, ()
    expression = call.fusion.expression
    return asked.activation if asked.function is None else _form(expression), expression.numbers


def warm_matmul(
    a: Any, b: Any, c: Any, alpha: float, beta: float | None, out: Any, options: tuple[Any, ...],
    asked: Request | None = None, verify: bool = False,
) -> Any:  # fmt: skip
    """The result, or MISS. `options`: as call.Options, in its order; `asked`: what is to be fused.

    Raises WrongResult where `verify` finds one.
    """
    library = libraries.known.get(type(a))
    if library is None:
        return MISS
    kinds = library.types
    if type(b) not in kinds:
        return MISS
    address, call = library.address, None
    ways: Ways[WarmProduct] | None = None  # where the call may be told by guards
    torchs = library if isinstance(library, libraries.TorchArrays) else None
    if torchs is not None and torchs.modes() and torchs.is_recorded():
        return MISS
    try:
        if c is beta is None and type(alpha) is float and abs(alpha) < MOST_ALPHA:
            uses_c, scale = False, 0.0
            quick = not verify and (asked is None or asked.function is None)  # a check may come to what is remembered
            if quick and torchs is not None:
                form = None
                tensors: tuple[Any, ...] = (a, b) if out is None else (a, b, out)
                if asked is not None:
                    _, activation, operands = asked
                    tensors, form = (*tensors, *operands.values()), (activation, *operands)
                # b is often the same weight
                ways = _lately.of((id(b), a.numel(), torchs.is_graded(), options, form, out is None))
                call = ways.find(*tensors)
        elif type(alpha) in kinds or type(beta) in kinds:
            return MISS
        else:
            scale = (c is not None) if beta is None else beta
            uses_c = _SCALARS.pack(alpha, scale)[4:] not in _ZEROS  # as the kernel would see it, rounded to float32
        numbers: tuple[float, ...] = ()
        if call is None:
            if torchs is not None and torchs.is_recorded():  # by torch.jit.trace, say, under which guards say no
                return MISS
            form, numbers = (None, ()) if asked is None else form_of(asked)
            call = calls.get(key_of(library, a, b, c, uses_c, out, options, asked, form))
            if ways is not None:
                ways.note(call, *tensors)
    except (AttributeError, RuntimeError, TypeError, OverflowError, struct.error):
        return MISS
    if call is None or current_executor() is not None or (verify and call.check is None):
        return MISS
    launches = call.launches
    ordinal = launches.ordinal
    if library.device() != ordinal or library.duals._current_level >= 0:  # as library.is_plain
        return MISS  # another GPU's context is current, say: the full path changes it for the launch
    stream = library.stream(ordinal)
    if verify and device_calls.is_capturing(stream, ordinal):
        return MISS
    a_at, b_at = address(a), address(b)
    c_at = address(c) if uses_c else 0
    if out is None:
        result = library.new(call.shape, call.strides, call.dtype)
        out_at = address(result)
    else:
        result, out_at = out, address(out)
        if not _is_apart(call, out_at, a_at, b_at, c_at):
            return MISS
        if call.apart and not _fused_is_apart(call, library, out, out_at, asked):
            return MISS
        library.mark_written(out)
    held, work = library.scratch(launches.workspace_bytes) if launches.workspace_bytes else (None, 0)
    bases = [a_at, b_at, c_at, out_at, work]
    for name in call.fused:
        bases.append(0 if name is None else address(asked.operands[name]))  # type: ignore[union-attr]
    scalars = (alpha, scale, *numbers) if numbers else (alpha, scale)
    if not launches.start(bases, scalars, stream):
        return MISS
    del held  # given back now: the library's pool keeps it apart until the stream has passed
    if verify and call.check is not None:
        _check(call.check, library, (a_at, b_at, c_at, out_at), (alpha, scale, seed()), stream)
    return result


def _check(
    check: WarmCheck, library: libraries.Library, bases: tuple[int, ...], scalars: tuple[float, ...], stream: int
) -> None:
    held, work = library.scratch(check.launches.workspace_bytes)
    check.launches.start((*bases, work), scalars, stream)
    check.judge(work, stream)
    del held


def _is_apart(call: WarmProduct, out: int, a: int, b: int, c: int) -> bool:
    """Return whether `out` surely overlaps no input in a way that matters."""
    end = out + call.out_extent
    return (
        (end <= a or a + call.a_extent <= out)
        and (end <= b or b + call.b_extent <= out)
        and (c == 0 or end <= c or c + call.c_extent <= out or (c == out and call.c_has_outs_layout))
    )


def _fused_is_apart(call: WarmProduct, library: libraries.Library, out: Any, at: int, asked: Request | None) -> bool:
    """The same of the epilogue's arrays, which may be out itself where their loads stay before the stores."""
    end = at + call.out_extent
    for name, extent, may_be_out in call.apart:
        array = asked.operands[name]  # type: ignore[union-attr]
        address = library.address(array)
        same = may_be_out and address == at and library.signature(array) == library.signature(out)
        if not (end <= address or address + extent <= at or same):
            return False
    return True


def remember(call: Call, result: Any, ran: Ran, asked: Request | None) -> WarmProduct | None:
    """Let later products of this kind take the warm path. Returns what they find; None where they cannot."""
    if call.fuses_c:
        return None  # its beta is a number of the expression, which the key does not see
    if call.product.problem.k == 0:
        return None  # launches take alpha for 0 then, whatever the next call's is
    if call.out_is_given and any(step < 0 for view in (call.a, *call.others) for step in view.strides):
        return None  # an extent does not begin at the address then, and whether out is apart could not be told from it
    form, numbers = own_form(call, asked)
    options, c, out = tuple(call.options), call.given_c, call.given_out
    operands = (call.a, *call.others)
    library = libraries.learn(call.a.kind)
    if library is not None and all(type(x.owner) in library.types for x in operands):
        try:
            key = key_of(library, call.a.owner, call.others[0].owner, c, call.c is not None, out, options, asked, form)
        except (AttributeError, RuntimeError, TypeError):
            return None
        known = _warm(call, result.dtype, ran, numbers)
        if call.verify:
            known = replace(known, check=warm_check(call, ran))
        calls.put(key, known)
    else:
        for operand in operands:
            libraries.learn(operand.kind)
        try:
            seen = [glance(operand.given, call.a.stream or 0) for operand in operands]
            key = _views_key(seen, c is not None, call.c is not None, out is not None, options, asked, form)
            hash(key)
        except _UNSEEN:
            return None
        known = _warm(call, call.out.dtype, ran, numbers)
        if call.a.device is None:
            views = call.fusion.views if call.fusion is not None else ()
            fused = (None if view.dtype == INDEX else view for view in views)
            inputs = (call.a, call.others[0], call.c, *fused)
            known = replace(known, copies=copies_of(inputs, call.out, known.launches.workspace_bytes))
            if asked is c is out is None:
                remember_numpy(call.a.owner, call.others[0].owner, result, known, options)
        view_calls.put(key, known)
    return known


def known(a: Any, b: Any, options: tuple[Any, ...], asked: Request | None = None, form: Any = None) -> Any:
    """Return the remembered product of a and b, without c or out; None where there is none. `form`: as form_of."""
    library = libraries.known.get(type(a))
    return None if library is None else calls.get(key_of(library, a, b, None, False, None, options, asked, form))


def names_of(views: int, numbers: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a product's bases and scalars in the order of the warm path."""
    return (
        ("a", "b", "c", "out", WORK, *(fused_base(number) for number in range(views))),
        ("alpha", "beta", *number_names(numbers)),
    )


def _warm(call: Call, dtype: Any, ran: Ran, numbers: tuple[float, ...]) -> WarmProduct:
    problem, views = call.product.problem, call.fusion.views if call.fusion is not None else ()
    laid = problem.epilogue.operands if problem.epilogue is not None else ()
    return WarmProduct(
        remembered(ran.ready, ran.ordinal, *names_of(len(views), len(numbers))),
        call.shapes.result, dense_strides(call.shapes.result), dtype,
        _extent(call.a), _extent(call.b), _extent(call.c), _extent(call.out),
        call.c is not None and same_view(replace(call.c, address=0), replace(call.out, address=0)),
        tuple(None if view.dtype == INDEX else view.name for view in views),
        tuple(
            (view.name, _extent(view), operand.is_out)
            for view, operand in zip(views, laid, strict=True)
            if view.dtype != INDEX
        ),
    )  # fmt: skip


# --- arrays without a library of their own here: NumPy, JAX, DLPack, __cuda_array_interface__ -------------------------

view_calls: Calls[WarmProduct] = Calls()
"""By how the arrays are read."""
_UNSEEN = (InvalidOperand, AttributeError, LookupError, RuntimeError, TypeError, ValueError, BufferError)
"""What may be raised for arrays of which a glance tells nothing."""


def _views_key(
    views: Iterable[Glance], has_c: bool, uses_c: bool, has_out: bool, options: tuple[Any, ...],
    asked: Request | None, form: Any,
) -> Any:  # fmt: skip
    """`views`: of a, b, c, out and the epilogue's arrays, as far as they are there."""
    names = None if asked is None else (asked.function is None, tuple(asked.operands))
    return tuple([x.signature for x in views]), has_c, uses_c, has_out, options, names, form


def known_views(a: Any, b: Any, out: Any, options: tuple[Any, ...], asked: Request | None) -> WarmProduct | None:
    """The remembered product of arrays that are read as views, without c; None where there is none."""
    form, _ = (None, ()) if asked is None else form_of(asked)
    given = (a, b, out, *(() if asked is None else asked.operands.values()))
    return view_calls.get(_views_key(map(glance, given), False, False, True, options, asked, form))


def warm_views(
    a: Any, b: Any, c: Any, alpha: float, beta: float | None, out: Any, options: tuple[Any, ...],
    asked: Request | None = None,
) -> Any:  # fmt: skip
    """Do as warm_matmul, of arrays that are read as views."""
    if not len(view_calls) or type(alpha) not in _NUMBERS or current_executor() is not None:
        return MISS
    try:
        first = glance(a)
        stream = first.stream or 0
        others = [glance(x, stream) for x in (b, c, out) if x is not None]
        fused: dict[str, Glance] = {}
        form, numbers = (None, ()) if asked is None else form_of(asked)
        for name, value in asked.operands.items() if asked is not None else ():
            if type(value) not in _NUMBERS:
                fused[name] = glance(value, stream)
        scale = (c is not None) if beta is None else beta
        uses_c = _SCALARS.pack(alpha, scale)[4:] not in _ZEROS
    except (*_UNSEEN, OverflowError, struct.error):
        return MISS  # the full path says what is wrong
    views = (first, *others, *fused.values())
    try:
        call = view_calls.get(_views_key(views, c is not None, uses_c, out is not None, options, asked, form))
    except TypeError:  # a part of an interface that is not a number
        return MISS
    if call is None:
        return MISS
    c_view = others[1] if uses_c else None
    out_view = others[-1] if out is not None else None
    if out_view is not None:
        c_at = c_view.address if c_view is not None else 0
        if call.apart or not _is_apart(call, out_view.address, first.address, others[0].address, c_at):
            return MISS
    inputs = [first, others[0], c_view, *(None if name is None else fused[name] for name in call.fused)]
    scalars = (alpha, scale, *numbers)
    run = _copied_warm if first.device is None else _in_place_warm
    return run(call, inputs, views[1:], out, out_view, scalars)


def _in_place_warm(
    call: WarmProduct, inputs: Sequence[Glance | None], others: Sequence[Glance], out: Any, out_view: Glance | None,
    scalars: Sequence[float],
) -> Any:  # fmt: skip
    first, launches = inputs[0], call.launches
    assert first is not None
    result = empty_like(first.operand(), call.shape, call.dtype) if out_view is None else out
    at = out_view.address if out_view is not None else result_operand(result, first.operand()).address
    addresses = [0 if view is None else view.address for view in inputs]
    with device.bound_to(launches.ordinal), in_order(first, others) as stream:
        pool = gpu_executor.pool_of(launches.ordinal) if launches.workspace_bytes else None
        work = pool.take(launches.workspace_bytes) if pool is not None else 0
        try:
            started = launches.start((*addresses[:3], at, work, *addresses[3:]), scalars, stream)
            if out_view is not None:
                mark_written(out)  # before the wait, which hides it
        finally:
            if pool is not None:
                device_calls.synchronize(stream)
                pool.give_back(work)
    if not started:
        return MISS
    return result if out_view is not None else as_callers_kind(result, first.operand())


def _copied_warm(
    call: WarmProduct, inputs: Sequence[Glance | None], others: Sequence[Glance], out: Any, out_view: Glance | None,
    scalars: Sequence[float],
) -> Any:  # fmt: skip
    first = inputs[0]
    assert first is not None
    assert call.copies is not None
    like = first.operand()
    result = empty_like(like, call.shape, call.dtype) if out_view is None else out
    at = out_view.address if out_view is not None else result.ctypes.data
    view = None if call.copies.is_dense else as_operand(result, "out")
    addresses = [0 if operand is None else operand.address for operand in inputs]
    if not run_copied(call.launches, call.copies, addresses, scalars, at, view):
        return MISS
    if out_view is not None:
        mark_written(out)
    return result if out_view is not None else as_callers_kind(result, like)


def _extent(operand: Operand | None) -> int:
    low, high = byte_extent(operand) if operand is not None else (0, 0)
    return high - low
