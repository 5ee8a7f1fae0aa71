"""Tracing: a Python function called once with symbols, each operation noted in a graph in the order of evaluation."""

from __future__ import annotations

import linecache
import math
import numbers
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidEpilogue
from .ops import CHOSEN, COMPARED, NUMBERS, OPS, TRUTHS, WHOLE, of_numpy

FLOAT, INT, BOOL = "float", "int", "bool"
"""Kinds of values: fp32; 64-bit integers, which indices and their sums are; truth values."""

PASS_OPERANDS = (
    "Arrays come in as operands: name a parameter of the function and pass it, epilogue=lambda acc, x: ..., x=x."
)

_PACKAGE = str(Path(__file__).parents[1])


class Node(NamedTuple):
    """One operation. `args` are numbers of earlier nodes; `value` is a constant's, an operand's or an index's name."""

    op: str
    kind: str
    args: tuple[int, ...] = ()
    value: Any = None


class Graph:
    """The operations of one trace, each kept once, in order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[Any, int] = {}

    def add(self, node: Node) -> Traced:
        # constants by their bits: -0.0 and 0.0 differ, and NaN equals itself
        bits = node.value.hex() if isinstance(node.value, float) else node.value
        number = self._numbers.setdefault((node.op, node.kind, node.args, bits), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return Traced(self, number)

    def constant(self, value: float | int | bool) -> Traced:
        """A number of the caller's; floats are rounded to float32."""
        if isinstance(value, bool):
            return self.add(Node("constant", BOOL, (), value))
        if isinstance(value, int):
            if abs(value) >= 2**62:
                raise refuse(f"the integer {value} is out of range", "Write it as a float.")
            return self.add(Node("constant", INT, (), value))
        return self.add(Node("constant", FLOAT, (), _rounded(value)))


def _rounded(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        raise refuse(f"the constant {value!r} is beyond float32", "Results are computed in float32.") from None


def caller_line() -> str:
    """' (file:line: source)' of the nearest frame outside this package: where the caller's expression is."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or "/_dynamo/" in frame.f_code.co_filename:  # torch.compile follows the code, and tells lines
        return ""
    name, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(name, number).strip()
    return f" ({Path(name).name}:{number}{f': {text}' if text else ''})"


def refuse(what: str, instead: str) -> InvalidEpilogue:
    return InvalidEpilogue(f"epilogue: {what}{caller_line()}. {instead}")


def as_traced(graph: Graph, value: Any, what: str) -> Traced:
    """An argument of an operation. Raises InvalidEpilogue for what is neither traced nor a number."""
    if isinstance(value, Traced):
        if value.graph is not graph:
            raise refuse("a value of an earlier trace is used", "Do not keep traced values outside the function.")
        return value
    if type(value) is float:  # ahead of the slow questions
        return graph.constant(value)
    if isinstance(value, (bool, np.bool_)):
        return graph.constant(bool(value))
    if isinstance(value, numbers.Integral):
        return graph.constant(int(value))
    if isinstance(value, numbers.Real):
        return graph.constant(float(value))
    kind = type(value).__name__
    raise refuse(
        f"{what} got a {kind}, which is neither traced nor a number",
        PASS_OPERANDS,
    )


def as_float(value: Traced, what: str) -> Traced:
    """An integer becomes fp32, as a number in C would; a truth value does not."""
    if value.kind == BOOL:
        raise refuse(f"{what} got a truth value", "Choose numbers by it: tilewright.epilogue.where(condition, a, b).")
    if value.kind == FLOAT:
        return value
    node = value.node
    if node.op == "constant":
        return value.graph.constant(float(node.value))
    return value.graph.add(Node("to_float", FLOAT, (value.number,)))


def apply(name: str, *values: Any) -> Traced:
    """Note an operation of the table on what is traced, or numbers. Raises InvalidEpilogue for what it cannot take."""
    graph = next((value.graph for value in values if isinstance(value, Traced)), None)
    if graph is None:
        raise refuse(
            f"{name} got no traced value",
            "Of numbers alone use Python's own (math.exp, max); outside an epilogue those of your array library.",
        )
    takes = OPS[name].takes
    if takes == WHOLE:
        return _of_whole(graph, name, *values)
    args = [as_traced(graph, value, name) for value in values]
    kinds = {arg.kind for arg in args}
    if takes == TRUTHS:
        if kinds != {BOOL}:
            raise refuse(f"{name} joins truth values", "Compare first: (acc > 0) & (row < 8). Bits: (i // 2) % 2.")
        return _note(graph, name, BOOL, args)
    if takes == CHOSEN:
        return _chosen(graph, name, *args)
    if takes in (NUMBERS, COMPARED) and kinds == {INT}:
        return _note(graph, name, INT if takes == NUMBERS else BOOL, args)
    return _note(graph, name, BOOL if takes == COMPARED else FLOAT, [as_float(arg, name) for arg in args])


def _note(graph: Graph, name: str, kind: str, args: Sequence[Traced]) -> Traced:
    return graph.add(Node(name, kind, tuple([arg.number for arg in args])))


def _of_whole(graph: Graph, name: str, left: Any, right: Any) -> Traced:
    """// and % of an index by a positive number: the only divisor whose rounding C and Python agree on."""
    if not (isinstance(left, Traced) and left.kind == INT and isinstance(right, numbers.Integral) and int(right) > 0):
        raise refuse(f"{name} is for indices and positive integers", "Divide floats by /.")
    return _note(graph, name, INT, (left, graph.constant(int(right))))


def _chosen(graph: Graph, name: str, condition: Traced, yes: Traced, no: Traced) -> Traced:
    if condition.kind != BOOL:
        raise refuse(f"{name}'s first argument is not a condition", f"Compare: {name}(x != 0, a, b).")
    if yes.kind == no.kind == INT:
        return _note(graph, name, INT, (condition, yes, no))
    return _note(graph, name, FLOAT, (condition, as_float(yes, name), as_float(no, name)))


def power(base: Traced, exponent: Any) -> Traced:
    """base ** n for whole n within 64, by squaring, and for 0.5 and -0.5."""
    if isinstance(exponent, Traced) or not isinstance(exponent, numbers.Real):
        raise refuse("the exponent is not a number", "Write a ** b as tilewright.epilogue.exp(b * log(a)).")
    value = float(exponent)
    if value in (0.5, -0.5):
        return apply("sqrt" if value > 0 else "rsqrt", base)
    if value != int(value if math.isfinite(value) else 0) or abs(value) > 64:
        raise refuse(
            f"the exponent {exponent!r} is neither whole (up to 64) nor 0.5 or -0.5",
            "Write (x ** 50) ** 2 for x ** 100; for a positive x tilewright.epilogue.exp(n * log(x)).",
        )
    count, square, result = abs(int(value)), as_float(base, "**"), None
    while count:
        if count % 2:
            result = square if result is None else apply("*", result, square)
        count //= 2
        if count:
            square = apply("*", square, square)
    if result is None:
        return base.graph.constant(1.0)
    return result if value > 0 else apply("/", 1.0, result)


_NO_BRANCH = (
    "Python control flow on a traced value (if, and, or, not, min, max, a < b < c, while): the function runs once, for "
    "all elements"
)


class Traced:
    """A value of an epilogue that will exist once per element, on the device. Arithmetic on it is noted, not done."""

    __slots__ = ("graph", "number")
    __array_priority__ = 1000.0

    def __init__(self, graph: Graph, number: int) -> None:
        self.graph, self.number = graph, number

    @property
    def node(self) -> Node:
        return self.graph.nodes[self.number]

    @property
    def kind(self) -> str:
        return self.node.kind

    def __add__(self, other: Any) -> Traced:
        return apply("+", self, other)

    def __radd__(self, other: Any) -> Traced:
        return apply("+", other, self)

    def __sub__(self, other: Any) -> Traced:
        return apply("-", self, other)

    def __rsub__(self, other: Any) -> Traced:
        return apply("-", other, self)

    def __mul__(self, other: Any) -> Traced:
        return apply("*", self, other)

    def __rmul__(self, other: Any) -> Traced:
        return apply("*", other, self)

    def __truediv__(self, other: Any) -> Traced:
        return apply("/", self, other)

    def __rtruediv__(self, other: Any) -> Traced:
        return apply("/", other, self)

    def __floordiv__(self, other: Any) -> Traced:
        return apply("//", self, other)

    def __mod__(self, other: Any) -> Traced:
        return apply("%", self, other)

    def __rfloordiv__(self, other: Any) -> Traced:
        return apply("//", other, self)

    def __rmod__(self, other: Any) -> Traced:
        return apply("%", other, self)

    def __pow__(self, other: Any, modulus: Any = None) -> Traced:
        if modulus is not None:
            raise refuse("pow with a modulus", "Write base ** n, or % on an index.")
        return power(self, other)

    def __rpow__(self, other: Any) -> Traced:
        base = float(other) if isinstance(other, numbers.Real) else math.nan
        if not 0 < base < math.inf:
            raise refuse(
                f"the base {other!r} of a traced exponent is not a positive number",
                "Only those have all powers.",
            )
        return apply("exp2", self if base == 2 else apply("*", self, math.log2(base)))

    def __neg__(self) -> Traced:
        if self.kind == INT:
            return apply("-", 0, self)
        return apply("negative", self)

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return apply("abs", self)

    def __lt__(self, other: Any) -> Traced:
        return apply("<", self, other)

    def __le__(self, other: Any) -> Traced:
        return apply("<=", self, other)

    def __gt__(self, other: Any) -> Traced:
        return apply(">", self, other)

    def __ge__(self, other: Any) -> Traced:
        return apply(">=", self, other)

    def __eq__(self, other: Any) -> Traced:  # type: ignore[override]
        return apply("==", self, other)

    def __ne__(self, other: Any) -> Traced:  # type: ignore[override]
        return apply("!=", self, other)

    def __and__(self, other: Any) -> Traced:
        return apply("&", self, other)

    def __rand__(self, other: Any) -> Traced:
        return apply("&", other, self)

    def __or__(self, other: Any) -> Traced:
        return apply("|", self, other)

    def __ror__(self, other: Any) -> Traced:
        return apply("|", other, self)

    def __invert__(self) -> Traced:
        if self.kind != BOOL:
            raise refuse("~ of a number", "~ negates a truth value.")
        return apply("~", self)

    # --- what a symbol cannot do, and what to write instead ---

    def __bool__(self) -> bool:
        raise refuse(_NO_BRANCH, "Use tilewright.epilogue.where, maximum, minimum, and & | ~ on comparisons.")

    def _no_number(self, *_: Any) -> Any:
        raise refuse(
            "a traced value has no number yet (float(), int(), math.*)", "Use the functions of tilewright.epilogue."
        )

    def __index__(self) -> int:
        raise refuse(
            "a traced index cannot choose from a list or an array",
            "Compute the value by arithmetic and where().",
        )

    __float__ = __int__ = __complex__ = __round__ = __floor__ = __ceil__ = __trunc__ = _no_number
    __divmod__ = __rdivmod__ = __format__ = _no_number

    def __hash__(self) -> int:
        raise refuse(
            "a traced value has no number yet (a set, a key of a dict)", "Use tilewright.epilogue.where to choose."
        )

    def _no_array(self, *_: Any) -> Any:
        raise refuse(
            "a traced value is one element, not an array, and no index of one",
            "The expression is applied to each element by itself.",
        )

    def _no_bits(self, *_: Any) -> Any:
        raise refuse("bits of an index cannot be taken", "Use // and %: (i // 2) % 2 for (i >> 1) & 1.")

    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __xor__ = __rxor__ = _no_bits

    __iter__ = __len__ = __getitem__ = __matmul__ = __rmatmul__ = __array__ = _no_array

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what libraries probe for
            raise AttributeError(name)
        raise refuse(
            f"a traced value has no .{name}", f"Write tilewright.epilogue.{name}(x) if there is one, and arithmetic."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = of_numpy(ufunc)
        if method == "__call__" and not options:
            if ufunc is np.power:
                base, exponent = inputs
                return base**exponent if isinstance(base, Traced) else exponent.__rpow__(base)
            if ufunc is np.negative:
                return -self  # of an index an index
            if name is not None:
                return apply(name, *inputs)
        raise refuse(f"np.{ufunc.__name__} cannot be traced", "Use the functions of tilewright.epilogue.")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = of_numpy(function)
        if name is not None and not kwargs and len(args) == OPS[name].arity:
            return apply(name, *args)
        raise refuse(
            f"np.{function.__name__} cannot be traced", "Use the functions of tilewright.epilogue: where, maximum, ..."
        )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        raise refuse(
            f"torch's {name} met a traced value",
            "Use the functions of tilewright.epilogue, and pass tensors as operands: epilogue=lambda acc, x: ..., x=x.",
        )

    def __repr__(self) -> str:
        return f"<traced {self.node.op}>"
