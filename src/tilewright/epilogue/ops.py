"""The operations of an epilogue: one table, a row each. Tracing, code, derivatives, ranges and costs all read it.

To add an operation add a row; if its C++ needs a helper, add that to cuda/tile/fused_math.cuh, and its interval form to
cuda/tile/range.cuh. A row with a docstring (`doc`) is a function of users: `tilewright.epilogue` names it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

FLOATS, NUMBERS, COMPARED, TRUTHS, CHOSEN, WHOLE = "floats", "numbers", "compared", "truths", "chosen", "whole"
"""What an operation takes and gives:

    floats      floats; integers become floats               -> a float
    numbers     integers, if all are; else floats            -> the same
    compared    integers, if all are; else floats            -> a truth value
    truths      truth values                                 -> a truth value
    chosen      a truth value, then as numbers               -> as numbers
    whole       an integer and a positive integer constant   -> an integer
"""

Parts = tuple[Any, ...]
"""For each argument of an operation its gradient; None where it has none."""


@dataclass(frozen=True)
class Op:
    """One operation."""

    name: str
    """Its name in a graph. An operator's is its sign in Python."""
    arity: int
    numpy: Callable[..., Any]
    """Its value of float64 arrays. A function of NumPy's own is also one that callers may write in an epilogue."""
    cuda: str
    """Its C++, {} for each argument (cuda/tile/fused_math.cuh)."""
    range: str
    """Its C++ in interval arithmetic (cuda/tile/range.cuh)."""
    cost: int
    """Machine instructions per element on sm_90, for results of 16 bits; 0 where another instruction absorbs it."""
    torch: Callable[..., Any] | None
    """Its value of torch's tensors; the first argument is the module torch. None: a conversion, which takes the dtype
    that all else is computed in."""
    derivative: Callable[..., Parts] | None = None
    """The gradients of its arguments, from (f, g, z, *arguments): g is the gradient of the result z; f has every
    operation as an attribute, and f.exactly(number), a constant that is not rounded. None: it has no gradient.

    Rules are written so that nothing finite becomes infinite or NaN on the way, that no difference of near numbers is
    multiplied by a large one, and that no sum has two products, either of which a compiler could take into an FMA:
    bits would then depend on the kernel. At infinities they are NaN where torch's are."""
    takes: str = FLOATS
    activation: bool = False
    """True where matmul's `activation` may name it."""
    doc: str = ""
    """The docstring of the function that users call; "" for what they write as an operator."""


# --- torch's functions, which only a call with the module can find ----------------------------------------------------


def _torch(path: str, **options: Any) -> Callable[..., Any]:
    """A function of torch by its path below the module."""
    find = operator.attrgetter(path)
    return lambda torch, *args: find(torch)(*args, **options)


def _as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is written in the same way for tensors as for numbers."""
    return lambda torch, *args: function(*args)


# --- values in float64 ------------------------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Any) -> Any:
    less = np.exp(-np.abs(x))  # never above 1, whatever x is
    return np.where(x >= 0, 1.0, less) / (1 + less)


def _gelu(x: Any) -> Any:
    return x / 2 * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# --- the longer derivatives -------------------------------------------------------------------------------------------


def _to_larger(f: Any, g: Any, z: Any, x: Any, y: Any) -> Parts:
    """To the larger one; halves where they are equal, as in torch, and to y where one is NaN."""
    to_y = f.where(x == y, 0.5 * g, f.where(x > y, 0.0, g))
    return f.where(x == y, 0.5 * g, f.where(x > y, g, 0.0)), to_y


def _to_smaller(f: Any, g: Any, z: Any, x: Any, y: Any) -> Parts:
    to_y = f.where(x == y, 0.5 * g, f.where(x < y, 0.0, g))
    return f.where(x == y, 0.5 * g, f.where(x < y, g, 0.0)), to_y


def _silu_slope(f: Any, g: Any, z: Any, x: Any) -> Parts:
    share = f.sigmoid(x)
    return (g * (share * (1 + x * (1 - share))),)


def _gelu_slope(f: Any, g: Any, z: Any, x: Any) -> Parts:
    """The normal distribution up to x, and x times its density there; both times 2, until the end."""
    density = f.exp(-0.5 * (x * x)) * f.exactly(math.sqrt(2 / math.pi))
    return (g * (0.5 * ((1 + f.erf(x * f.exactly(math.sqrt(0.5)))) + x * density)),)


def _gelu_tanh_slope(f: Any, g: Any, z: Any, x: Any) -> Parts:
    """The slope of x sigmoid(v), v = c x + d x^3: share + x share (1 - share) (c + 3 d x^2). Where x^2 would be
    infinite, share (1 - share) is 0, and any finite number may stand for x^2."""
    c = math.sqrt(8 / math.pi)
    d = 0.044715 * c
    share = f.sigmoid(x * (f.exactly(c) + f.exactly(d) * (x * x)))
    slope = f.exactly(c) + f.exactly(3 * d) * f.minimum(x * x, 1e30)
    return (g * (share + x * (share * (1 - share)) * slope),)


# --- the table --------------------------------------------------------------------------------------------------------

_ROWS = (
    Op("+", 2, np.add, "{} + {}", "{} + {}", 1, _as_written(operator.add),
       lambda f, g, z, x, y: (g, g), takes=NUMBERS),
    Op("-", 2, np.subtract, "{} - {}", "{} - {}", 1, _as_written(operator.sub),
       lambda f, g, z, x, y: (g, -g), takes=NUMBERS),
    Op("*", 2, np.multiply, "{} * {}", "{} * {}", 1, _as_written(operator.mul), lambda f, g, z, x, y: (g * y, g * x),
       takes=NUMBERS),
    Op("/", 2, np.true_divide, "fused_divide({}, {})", "{} / {}", 8, _as_written(operator.truediv),
       lambda f, g, z, x, y: (g / y, -(g * z / y))),
    Op("//", 2, np.floor_divide, "fused_quotient({}, {})", "quotient({}, {})", 6, _as_written(operator.floordiv),
       takes=WHOLE),
    Op("%", 2, np.remainder, "fused_remainder({}, {})", "remainder_of({}, {})", 8, _as_written(operator.mod),
       takes=WHOLE),
    Op("<", 2, np.less, "{} < {}", "{} < {}", 1, _as_written(operator.lt), takes=COMPARED),
    Op("<=", 2, np.less_equal, "{} <= {}", "{} <= {}", 1, _as_written(operator.le), takes=COMPARED),
    Op(">", 2, np.greater, "{} > {}", "{} > {}", 1, _as_written(operator.gt), takes=COMPARED),
    Op(">=", 2, np.greater_equal, "{} >= {}", "{} >= {}", 1, _as_written(operator.ge), takes=COMPARED),
    Op("==", 2, np.equal, "{} == {}", "{} == {}", 1, _as_written(operator.eq), takes=COMPARED),
    Op("!=", 2, np.not_equal, "{} != {}", "{} != {}", 1, _as_written(operator.ne), takes=COMPARED),
    Op("&", 2, np.logical_and, "{} && {}", "both({}, {})", 1, _as_written(operator.and_), takes=TRUTHS),
    Op("|", 2, np.logical_or, "{} || {}", "either({}, {})", 1, _as_written(operator.or_), takes=TRUTHS),
    Op("~", 1, np.logical_not, "!{}", "!{}", 1, _as_written(operator.invert), takes=TRUTHS),
    Op("negative", 1, np.negative, "-{}", "-{}", 0, _as_written(operator.neg), lambda f, g, z, x: (-g,)),
    Op("abs", 1, np.absolute, "fabsf({})", "range_abs({})", 0, _torch("abs"),
       lambda f, g, z, x: (f.where(x > 0, g, f.where(x < 0, -g, 0.0)),)),
    Op("to_float", 1, np.float64, "static_cast<float>({})", "to_range({})", 1, None),
    Op("relu", 1, lambda x: np.maximum(x, 0), "fused_relu({})", "range_relu({})", 1, _torch("relu"),
       lambda f, g, z, x: (f.where(x <= 0, 0.0, g),), activation=True,
       doc="The larger of x and 0; NaN stays NaN."),
    Op("gelu", 1, _gelu, "fused_gelu({})", "range_gelu({})", 27, _torch("nn.functional.gelu"), _gelu_slope,
       activation=True,
       doc="x/2 (1 + erf(x / sqrt 2)): within 2^-22 |x|. Its relative error grows for x < -2, where 1 + erf "
           "cancels. NaN at -inf, as in torch."),
    Op("gelu_tanh", 1, _gelu_tanh, "fused_gelu_tanh({})", "range_gelu_tanh({})", 8,
       _torch("nn.functional.gelu", approximate="tanh"), _gelu_tanh_slope, activation=True,
       doc="The usual approximation of gelu by tanh, computed as x sigmoid(2 u): within (8 + 4 |u|) ulp, u being its "
           "tanh's argument, sqrt(2/pi) (x + 0.044715 x^3). NaN at -inf, as in torch."),
    Op("silu", 1, lambda x: x * _sigmoid(x), "fused_silu({})", "range_silu({})", 5, _torch("nn.functional.silu"),
       _silu_slope, activation=True,
       doc="x * sigmoid(x): within 5 ulp; 0 below x = -87.3, where it is above -1.2e-36. NaN at -inf, as in torch."),
    Op("sigmoid", 1, _sigmoid, "fused_sigmoid({})", "range_sigmoid({})", 4, _torch("sigmoid"),
       lambda f, g, z, x: (g * (z * f.sigmoid(-x)),), activation=True,
       doc="1 / (1 + exp(-x)): within 4 ulp; 0 below 2^-126."),
    Op("tanh", 1, np.tanh, "tanhf({})", "range_tanh({})", 16, _torch("tanh"),
       lambda f, g, z, x: (g * ((1 - z) * (1 + z)),), activation=True,
       doc="Hyperbolic tangent: within 2 ulp."),
    Op("exp", 1, np.exp, "fused_exp({})", "range_exp({})", 2, _torch("exp"), lambda f, g, z, x: (g * z,),
       doc="e to the x: within 2 ulp."),
    Op("exp2", 1, np.exp2, "exp2f({})", "range_exp2({})", 5, _torch("exp2"),
       lambda f, g, z, x: (g * (f.exactly(math.log(2)) * z),),
       doc="2 to the x: within 2 ulp."),
    Op("log", 1, np.log, "logf({})", "range_log({})", 25, _torch("log"), lambda f, g, z, x: (g / x,),
       doc="Natural logarithm: within 1 ulp. -inf at 0, NaN below."),
    Op("sqrt", 1, np.sqrt, "sqrtf({})", "range_sqrt({})", 18, _torch("sqrt"), lambda f, g, z, x: (g / (2 * z),),
       doc="Square root, correctly rounded."),
    Op("rsqrt", 1, lambda x: 1 / np.sqrt(x), "rsqrtf({})", "range_rsqrt({})", 4, _torch("rsqrt"),
       lambda f, g, z, x: (g * (-0.5 * z * (z * z)),),
       doc="1 / sqrt(x): within 2 ulp."),
    Op("erf", 1, _erf, "erff({})", "range_erf({})", 23, _torch("erf"),
       lambda f, g, z, x: (g * (f.exactly(2 / math.sqrt(math.pi)) * f.exp(-(x * x))),),
       doc="Error function: within 2 ulp."),
    Op("maximum", 2, np.maximum, "fused_max({}, {})", "range_max({}, {})", 1, _torch("maximum"), _to_larger,
       doc="The larger; NaN where either is NaN, as numpy.maximum."),
    Op("minimum", 2, np.minimum, "fused_min({}, {})", "range_min({}, {})", 1, _torch("minimum"), _to_smaller,
       doc="The smaller; NaN where either is NaN, as numpy.minimum."),
    Op("where", 3, np.where, "{} ? {} : {}", "choose({}, {}, {})", 1, _torch("where"),
       lambda f, g, z, chosen, x, y: (None, f.where(chosen, g, 0.0), f.where(chosen, 0.0, g)), takes=CHOSEN,
       doc="a where the condition (a comparison, or several joined by & | ~) holds, else b. Both are computed."),
)  # fmt: skip

OPS: dict[str, Op] = {op.name: op for op in _ROWS}
"""Every operation by its name."""


def of_numpy(function: Any) -> str | None:
    """The name of the operation that a function of NumPy's means; None where there is none."""
    return next((op.name for op in OPS.values() if op.numpy is function), None)
