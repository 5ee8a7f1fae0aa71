"""Products and attention as XLA's foreign calls, and their gradients.

On GPUs XLA calls a handler (call_frame.py) that launches on XLA's stream, and XLA waits for nothing. On the CPU jax's
own operations run, or, inside `emulated()`, the handler runs the emulator.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays.dlpack import dense_strides
from ..arrays.dtypes import DTYPE_NAMES, ITEM_BYTES, SHORT_NAMES
from ..arrays.view import Operand
from ..attn.arguments import read_window
from ..attn.attention import attention as run_attention
from ..attn.call import read_attention
from ..errors import InvalidOperand, suggests
from ..gemm.call import Options, read_call
from ..gemm.family import PRODUCTS
from ..gemm.fusion import Request, check_activation, request
from ..gemm.matmul import matmul as run_matmul
from ..gemm.warm import known_views
from ..jit.device_calls import ordinal_of
from ..jit.launch import Executor, current_executor, use_executor
from ..run import foreign
from ..run.warm import MISS, Calls, Remembered
from ..words import Activation, Precision
from . import call_frame
from .call_frame import View

_ACTIVATIONS: dict[str, Any] = {
    "relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True), "silu": jax.nn.silu, "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}  # fmt: skip
"""What is fused, as jax computes it, for gradients and the CPU."""
_DTYPES = tuple(DTYPE_NAMES[short] for short in call_frame.DTYPES.values())
_emulators: dict[int, Executor] = {}
"""The last MOST emulators by number: what was traced inside `emulated` may run after its end; jax does not wait."""
MOST = 8
_inside: list[int] = []
"""The numbers of the emulators in force, the innermost last."""


@contextlib.contextmanager
def emulated(gpu: str | None = None) -> Iterator[Any]:
    """Run what is traced inside on an emulated GPU: `gpu` is a board's name, as tilewright.emulator takes it.

    For arrays on the CPU. A function that jax.jit has compiled outside keeps to jax's own operations: make a new one.
    """
    from .. import emulator as emulators

    with emulators(gpu) if gpu else emulators() as emulator:
        number = max(_emulators, default=0) + 1
        _emulators[number] = emulator
        _emulators.pop(number - MOST, None)
        _inside.append(number)
        try:
            yield emulator
        finally:
            _inside.pop()


# --- the calls that XLA makes -----------------------------------------------------------------------------------------


def _host(view: View) -> np.ndarray:
    """A buffer of the host as an array over its memory."""
    size = math.prod(view.shape) * ITEM_BYTES[view.dtype]
    kind = jnp.dtype(DTYPE_NAMES[view.dtype])
    if not size:
        return np.empty(view.shape, kind)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(view.address)).view(kind).reshape(view.shape)


def _device_of(views: list[View]) -> int:
    """The GPU that all of them are on."""
    return next((ordinal_of(view.address) for view in views if view.address), 0)


def _arrays(views: list[View], stream: int | None, names: Sequence[str]) -> list[Any]:
    """The buffers as the core takes them: operands, and the result last. They are all on one GPU."""
    for view in views:
        if view.dtype not in DTYPE_NAMES:
            raise InvalidOperand(f"an array is of {view.dtype}; kernels take {', '.join(_DTYPES)}")
    if stream is None:
        return [_host(view) for view in views]
    device = _device_of(views)
    return [view.operand(name, device, stream) for view, name in zip(views, names, strict=True)]


def _turned(array: Any) -> Any:
    """Its last two axes exchanged."""
    if isinstance(array, np.ndarray):
        return np.swapaxes(array, -1, -2)
    *batch, rows, cols = range(len(array.shape))
    order = (*batch, cols, rows)
    return array.view(tuple(array.shape[n] for n in order), tuple(array.strides[n] for n in order))


@lru_cache(maxsize=1024)
def _read(options: str) -> dict[str, Any]:
    return dict(json.loads(options))


class _Launches(NamedTuple):
    """A product that XLA asked for before, in a stream: that is one GPU's."""

    launches: Remembered
    bases: tuple[int, ...]
    """Which of the buffers each base is; -1: none."""


_products: Calls[_Launches] = Calls()
_SCALARS = (1.0, 0.0)
"""Alpha and beta."""


def _call_matmul(operands: list[View], results: list[View], options: str, stream: int | None) -> None:
    views = [*operands, *results]
    if stream is None:
        _run_product(_arrays(views, stream, ()), _read(options))
        return
    key = options, stream, tuple([(shape, dtype, address & 15) for address, shape, dtype in views])
    known = _products.get(key)
    if known is not None:
        bases = [views[n].address if n >= 0 else 0 for n in known.bases]
        if known.launches.start(bases, _SCALARS, stream):
            return
    how = _read(options)
    made = known_views(*_run_product(_arrays(views, stream, ("a", "b", *how["names"], "out")), how))
    if made is not None and not made.launches.workspace_bytes:  # memory that is borrowed is waited for
        fused = tuple(-1 if name is None else 2 + how["names"].index(name) for name in made.fused)
        _products.put(key, _Launches(made.launches, (0, 1, -1, len(views) - 1, -1, *fused)))


def _run_product(arrays: list[Any], how: dict[str, Any]) -> tuple[Any, ...]:
    """Make a product; returns it as known_views takes it."""
    a, b, *rest, out = arrays
    a, b = (_turned(x) if turned else x for x, turned in ((a, how["turn_a"]), (b, how["turn_b"])))
    fused = dict(zip(how["names"], rest, strict=True))
    promised = {name: how[name] for name in ("precision", "deterministic", "batch_invariant")}
    run_matmul(a, b, out=out, activation=how["activation"], **fused, **promised)
    asked = Request(None, how["activation"], fused) if fused or how["activation"] else None
    return a, b, out, tuple(Options(**promised)), asked


def _call_attention(operands: list[View], results: list[View], options: str, stream: int | None) -> None:
    how = _read(options) | {}  # a copy
    del how["emulator"]
    biased = ("bias",) if len(operands) > 3 else ()
    q, k, v, *rest, out = _arrays([*operands, *results], stream, ("q", "k", "v", *biased, "out"))
    run_attention(q, k, v, bias=rest[0] if rest else None, out=out, **how)


def _on_emulator(function: Any) -> Any:
    def call(operands: list[View], results: list[View], options: str, stream: int | None) -> None:
        emulator = _emulators.get(_read(options)["emulator"])
        if emulator is None:
            raise InvalidOperand(
                "this function was traced inside a tilewright.jax.emulated() of long ago: trace it anew"
            )
        with use_executor(emulator):  # XLA calls from a thread of its own
            function(operands, results, options, stream)

    return call


_HANDLERS = {
    (name, platform): call_frame.handler(function if platform == "CUDA" else _on_emulator(function), platform == "CUDA")
    for name, function in (("tilewright_matmul", _call_matmul), ("tilewright_attention", _call_attention))
    for platform in ("CUDA", "cpu")
}
for (_name, _platform), _handler in _HANDLERS.items():
    jax.ffi.register_ffi_target(_name, jax.ffi.pycapsule(_handler), platform=_platform)


def _foreign(name: str, like: jax.ShapeDtypeStruct, operands: tuple[jax.Array, ...], own: Any, **options: Any) -> Any:
    """The call on a GPU, `own` on the CPU."""
    options["emulator"] = _inside[-1] if _inside else None
    call = partial(jax.ffi.ffi_call(name, like, vmap_method="sequential"), options=json.dumps(options, sort_keys=True))
    if _inside:
        return call(*operands)
    return jax.lax.platform_dependent(*operands, cuda=call, default=own)


# --- products ---------------------------------------------------------------------------------------------------------


@suggests
def matmul(
    a: jax.Array, b: jax.Array, *, bias: jax.Array | None = None, activation: Activation | None = None,
    residual: jax.Array | None = None, out_dtype: Any = None, precision: Precision = "ieee",
    deterministic: bool = False, batch_invariant: bool = False,
) -> jax.Array:  # fmt: skip
    """activation(a @ b + bias) + residual in one kernel, inside jax.jit and jax.grad too.

    a [..., m, k] and b [..., k, n]: float32, float16 or bfloat16, of one dtype; batch axes broadcast. bias [n];
    residual broadcasts to the result. out_dtype: a's by default. The other options are those of tilewright.matmul.
    Gradients are products by tilewright, and have gradients; an activation's product is made again for its own. Under
    jax.vmap one product runs after another: pass batches. Raises as tilewright.matmul does, when it is traced.
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise InvalidOperand(f"a {a.shape} and b {b.shape} are not [..., m, k] and [..., k, n].")
    if a.dtype != b.dtype or a.dtype.name not in _DTYPES:
        raise InvalidOperand(f"a is {a.dtype} and b {b.dtype}. Pass two of one dtype: {', '.join(_DTYPES)}.")
    check_activation(activation, "apply any other function to the result")
    bias, residual = (None if x is None else jnp.asarray(x) for x in (bias, residual))
    asked = request(None, activation, _view("bias", bias), _view("residual", residual), None, None, {})
    options = Options(out_dtype, deterministic, batch_invariant, None, None, precision)
    call = read_call(_view("a", a), _view("b", b), None, 1.0, None, None, options, asked)
    PRODUCTS.rungs(call.product.problem, call.options.demands)  # refuses what cannot be had together
    how = (precision, call.options.deterministic, call.options.batch_invariant)
    return _matmul(a, b, bias, residual, activation, DTYPE_NAMES[call.out.dtype], how)


def _view(name: str, x: Any) -> Operand | None:
    """What the core checks of a value that may be traced."""
    if x is None:
        return None
    dtype = SHORT_NAMES.get(x.dtype.name, "")
    if DTYPE_NAMES.get(dtype) not in _DTYPES:
        raise InvalidOperand(f"{name} is {x.dtype}. Pass {', '.join(_DTYPES)}.")
    return Operand(name, "jax", 0, x.shape, dense_strides(x.shape), dtype, None)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _matmul(a: Any, b: Any, bias: Any, residual: Any, activation: Any, dtype: str, how: tuple[Any, ...]) -> Any:
    return _product(a, b, dtype, how, bias=bias, residual=residual, activation=activation)


def _product(
    a: Any, b: Any, dtype: str, how: tuple[Any, ...], turn_a: bool = False, turn_b: bool = False, bias: Any = None,
    residual: Any = None, activation: Any = None,
) -> Any:  # fmt: skip
    """turn_a, turn_b: their last axes are exchanged in place: no copy is made."""
    m, n = a.shape[-1 if turn_a else -2], b.shape[-2 if turn_b else -1]
    shape = (*jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2]), m, n)
    fused = {name: x for name, x in (("bias", bias), ("residual", residual)) if x is not None}

    def own(a: Any, b: Any, *rest: Any) -> Any:
        left, right = (jnp.swapaxes(x, -1, -2) if turn else x for x, turn in ((a, turn_a), (b, turn_b)))
        given = dict(zip(fused, rest, strict=True))
        found = jnp.matmul(left, right, preferred_element_type=jnp.float32, precision="highest")
        found = found + given.get("bias", 0.0)
        found = found if activation is None else _ACTIVATIONS[activation](found)
        return (found + given.get("residual", 0.0)).astype(dtype)

    precision, deterministic, batch_invariant = how
    return _foreign(
        "tilewright_matmul", jax.ShapeDtypeStruct(shape, dtype), (a, b, *fused.values()), own, turn_a=turn_a,
        turn_b=turn_b, names=list(fused), activation=activation, precision=precision, deterministic=deterministic,
        batch_invariant=batch_invariant,
    )  # fmt: skip


def _keep(a: Any, b: Any, bias: Any, residual: Any, activation: Any, dtype: str, how: Any) -> Any:
    return _matmul(a, b, bias, residual, activation, dtype, how), (a, b, bias, residual)


def _gradients(activation: Any, dtype: str, how: Any, kept: Any, grad: Any) -> tuple[Any, ...]:
    a, b, bias, residual = kept
    inner = grad
    if activation is not None:
        made = _matmul(a, b, bias, None, None, "float32", how)
        (inner,) = jax.vjp(_ACTIVATIONS[activation], made)[1](grad.astype(jnp.float32))
    of_a, of_b = _gradients_of_turned(dtype, how, False, False, (a, b), inner)
    return of_a, of_b, _summed(inner, bias), _summed(grad, residual)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _turned_product(a: Any, b: Any, dtype: str, how: tuple[Any, ...], turn_a: bool, turn_b: bool) -> Any:
    return _product(a, b, dtype, how, turn_a, turn_b)


def _keep_turned(a: Any, b: Any, dtype: str, how: tuple[Any, ...], turn_a: bool, turn_b: bool) -> Any:
    return _turned_product(a, b, dtype, how, turn_a, turn_b), (a, b)


def _gradients_of_turned(
    dtype: str, how: tuple[Any, ...], turn_a: bool, turn_b: bool, kept: Any, grad: Any
) -> tuple[Any, Any]:  # fmt: skip
    """Both gradients, products of the same kind, so that they have gradients too. b's is a sum over all rows."""
    a, b = kept
    grad, name, of_b_how = grad.astype(a.dtype), a.dtype.name, (how[0], how[1], False)
    if turn_a:
        of_a = _turned_product(b, grad, name, how, turn_b, True)
    else:
        of_a = _turned_product(grad, b, name, how, False, not turn_b)
    if turn_b:
        of_b = _turned_product(grad, a, name, of_b_how, True, turn_a)
    else:
        of_b = _turned_product(a, grad, name, of_b_how, not turn_a, False)
    return _summed(of_a, a), _summed(of_b, b)


_turned_product.defvjp(_keep_turned, _gradients_of_turned)


def _summed(gradient: Any, like: Any) -> Any:
    """Over the axes along which `like` was broadcast."""
    if like is None:
        return None
    lead = gradient.ndim - like.ndim
    axes = [*range(lead), *(lead + n for n, extent in enumerate(like.shape) if extent != gradient.shape[lead + n])]
    wide = gradient.astype(jnp.float32).sum(axes) if axes else gradient
    return wide.reshape(like.shape).astype(like.dtype)


_matmul.defvjp(_keep, _gradients)


# --- tilewright.matmul of JAX's arrays -------------------------------------------------------------------------------

_Array: Any = type(jnp.zeros(()))
_again: Calls[Any] = Calls()
"""Compiled functions by all that decides how a product that was made is read."""


def _key(a: Any, b: Any, options: Options, asked: Request | None) -> Any:
    """Return the key; None for what `matmul` here cannot make."""
    if options[:1] + options[3:5] != (None, None, None):  # out_dtype, rung, config
        return None
    names: tuple[str, ...] = ()
    given = [a, b]
    if asked is not None:
        names = tuple(asked.operands)
        given += asked.operands.values()
        if asked.function is not None or not {"bias", "residual"}.issuperset(names):
            return None
    if any(type(x) is not _Array for x in given):
        return None
    return tuple([(x.shape, x.dtype, x.sharding) for x in given]), options, asked and (asked.activation, names)


@lru_cache(maxsize=256)
def _compiled(names: tuple[str, ...], activation: Any, precision: Any, deterministic: bool, invariant: bool) -> Any:
    def product(a: Any, b: Any, *rest: Any) -> Any:
        return matmul(
            a, b, **dict(zip(names, rest, strict=True)), activation=activation, precision=precision,
            deterministic=deterministic, batch_invariant=invariant,
        )  # fmt: skip

    return jax.jit(product)


def _note(a: Any, b: Any, options: Options, asked: Request | None) -> None:
    key = _key(a, b, options, asked)
    if key is not None and a.ndim > 1 and b.ndim > 1:
        activation, names = (None, ()) if asked is None else (asked.activation, tuple(asked.operands))
        _again.put(key, _compiled(names, activation, options[5], *options[1:3]))


def _repeat(a: Any, b: Any, options: Options, asked: Request | None) -> Any:
    """The product in XLA's own stream, by a compiled function: XLA makes its memory, and nothing is waited for."""
    key = _key(a, b, options, asked)
    function = None if key is None else _again.get(key)
    if function is None or current_executor() is not None:
        return MISS
    return function(a, b, *(() if asked is None else asked.operands.values()))


foreign.register(_Array, foreign.Repeater(_repeat, _note))


# --- attention --------------------------------------------------------------------------------------------------------


@suggests
def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, is_causal: bool = False, scale: float | None = None,
    window: tuple[int, int] | None = None, softcap: float = 0.0, bias: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """tilewright.attention inside jax.jit and jax.grad.

    q [batch, heads, rows, d_head], k and v [batch, shared heads, keys, d_head], v with another d_head if need be;
    float16 or bfloat16. bias is added to the scores, to which it broadcasts; of booleans it hides pairs where it is
    False. Options are those of tilewright.attention.
    Gradients are made by jax's own operations, which hold rows of q x rows of k. Raises as tilewright.attention does,
    when it is traced.
    """
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    if not q.ndim == k.ndim == 4 or k.shape[:3] != v.shape[:3] or q.shape[::3] != k.shape[::3]:
        raise InvalidOperand(
            f"q {q.shape}, k {k.shape} and v {v.shape} are not [batch, heads, rows, d_head], [batch, shared heads, "
            "keys, d_head], and the latter with any d_head."
        )
    if len({x.dtype for x in (q, k, v)}) > 1 or q.dtype.name not in ("float16", "bfloat16"):
        raise InvalidOperand(f"q, k and v are {q.dtype}, {k.dtype}, {v.dtype}; all must be float16, or bfloat16.")
    if bias is not None:
        bias = jnp.asarray(bias)
        bias = jnp.where(bias, 0.0, -jnp.inf).astype(jnp.float32) if bias.dtype == bool else bias
    given = (_view(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    read_attention(
        *given, bias=_view("bias", bias), is_causal=is_causal, scale=scale, window=window, softcap=softcap,
    )  # fmt: skip
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    return _attention(q, k, v, bias, (bool(is_causal), scale, read_window(window), float(softcap)))


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attention(q: Any, k: Any, v: Any, bias: Any, how: tuple[Any, ...]) -> Any:
    is_causal, scale, window, softcap = how
    given = (q, k, v) if bias is None else (q, k, v, bias)
    return _foreign(
        "tilewright_attention", jax.ShapeDtypeStruct((*q.shape[:3], v.shape[3]), q.dtype), given,
        lambda q, k, v, bias=None: _by_jax(q, k, v, bias, how), is_causal=is_causal, scale=scale, window=window,
        softcap=softcap,
    )  # fmt: skip


def _by_jax(q: Any, k: Any, v: Any, bias: Any, how: tuple[Any, ...]) -> Any:
    """The same by jax's operations, in float32."""
    is_causal, scale, window, softcap = how
    group = q.shape[1] // k.shape[1]
    wide = (q, *(jnp.repeat(x, group, axis=1) for x in (k, v)))
    q32, k32, v32 = (x.astype(jnp.float32) for x in wide)
    scores = scale * jnp.einsum("bhid,bhjd->bhij", q32, k32, precision="highest")
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.astype(jnp.float32)
    rows, keys = scores.shape[-2:]
    apart = jnp.arange(keys)[None, :] - jnp.arange(rows)[:, None] - (keys - rows)
    left, right = window
    right = 0 if is_causal else right
    seen = (apart >= -left if left >= 0 else True) & (apart <= right if right >= 0 else True)
    scores = jnp.where(seen, scores, -jnp.inf)
    most = jnp.max(scores, -1, keepdims=True, initial=-jnp.inf)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(most), most, 0.0))
    total = weights.sum(-1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1.0, total)
    return jnp.einsum("bhij,bhjd->bhid", weights, v32, precision="highest").astype(q.dtype)


def _keep_attention(q: Any, k: Any, v: Any, bias: Any, how: Any) -> Any:
    return _attention(q, k, v, bias, how), (q, k, v, bias)


def _attention_gradients(how: Any, kept: Any, grad: Any) -> tuple[Any, ...]:
    *given, bias = kept
    if bias is None:
        return (*jax.vjp(lambda q, k, v: _by_jax(q, k, v, None, how), *given)[1](grad), None)
    return tuple(jax.vjp(lambda q, k, v, bias: _by_jax(q, k, v, bias, how), *kept)[1](grad))


_attention.defvjp(_keep_attention, _attention_gradients)
