"""The warm path of a layer, activation(x @ weight.T + bias), and of its gradients (gemm/warm.py).

Both launch what products of the same operands launched, with no view of a transpose made for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..jit.launch import current_executor
from ..run import libraries
from ..run.lately import MOST_WAYS, Lately
from ..run.warm import MISS, Calls
from . import warm
from .fusion import request
from .warm import WarmProduct


class WarmGradients(NamedTuple):
    """The launches that make a layer's gradients."""

    asked: tuple[bool, bool]
    """Whether x's gradient is made, and whether the weight's."""
    lie_so: Callable[..., bool]
    """Whether the result's gradient, and what is multiplied by it, lie as they did (libraries.lying_as)."""
    low: list[int]
    """The low bits of their addresses."""
    run: Callable[[Any, Any, Any], Any]
    """run(grad, weight, x): both gradients, None for one that is not made; or MISS."""


Repeat = Callable[..., Any]
"""Makes a product of x and weight.T again, of x, weight and the epilogue's tensors: the result, or MISS where this
thread cannot launch it at once."""


@dataclass(eq=False)
class WarmLayer:
    """A layer that was made before."""

    call: Any
    """What the caller keeps with it."""
    wanted: bool = False
    """Whether a gradient is."""
    product: Repeat | None = None
    """Of x, weight and bias; None until its product was remembered."""
    gradients: tuple[WarmGradients, ...] = ()
    """For the ways in which the operands of its gradients lay of late."""


layer_calls: Calls[WarmLayer] = Calls()
layers_lately: Lately[WarmLayer] = Lately()


def _key(
    library: libraries.Library, x: Any, weight: Any, bias: Any, activation: str | None, options: tuple[Any, ...]
) -> Any:
    return library.pair(x, weight), bias is not None and library.signature(bias), activation, options


def find_layer(
    x: Any, weight: Any, bias: Any, activation: str | None, options: tuple[Any, ...], only_lately: bool = False
) -> WarmLayer | None:  # fmt: skip
    """The remembered layer of tensors that lie so, if there is one. `options`: as warm_matmul. `only_lately`: of layers
    like those of late, which are told by guards.

    Whether a gradient is wanted is in the tensors' signatures.
    """
    library = libraries.known.get(type(x))
    if not isinstance(library, libraries.TorchArrays) or type(weight) not in library.types:
        return None
    if bias is not None and type(bias) not in library.types:
        return None
    tensors = (x, weight) if bias is None else (x, weight, bias)
    try:
        ways = layers_lately.of((id(weight), x.numel(), library.is_graded(), bias is None, activation, options))
        found = ways.find(*tensors)
        if found is None and not only_lately:
            found = layer_calls.get(_key(library, x, weight, bias, activation, options))
            ways.note(found, *tensors)
        return found
    except (RuntimeError, TypeError):  # no memory of its own
        return None


def _repeat(product: WarmProduct, names: Sequence[str], numbers: tuple[float, ...] = ()) -> Repeat:
    """`names`, `numbers`: of the epilogue's tensors as they are given, and its numbers."""
    library, launches = libraries.learn("torch"), product.launches
    assert library is not None
    start, ordinal, nbytes = launches.start, launches.ordinal, launches.workspace_bytes
    like, scalars = (product.shape, product.strides, product.dtype), (1.0, 0.0, *numbers)
    fused = [names.index(name) for name in product.fused if name is not None]
    new, address, stream, device, duals = library.new, library.address, library.stream, library.device, library.duals

    def run(x: Any, weight: Any, *named: Any) -> Any:
        if current_executor() is not None or device() != ordinal or duals._current_level >= 0:  # as library.is_plain
            return MISS
        result = new(*like)
        held, work = library.scratch(nbytes) if nbytes else (None, 0)
        bases = [address(x), address(weight), 0, address(result), work]
        for place in fused:
            bases.append(address(named[place]))
        if not start(bases, scalars, stream(ordinal)):
            return MISS
        del held  # given back now: the library's pool keeps it apart until the stream has passed
        return result

    return run


def product_of(
    x: Any, weight: Any, bias: Any, activation: str | None, options: tuple[Any, ...]
) -> Repeat | None:  # fmt: skip
    """What repeats the product of a layer that was just made, if it was remembered. Arguments as of find_layer."""
    asked = request(None, activation, bias, None, None, None, {})
    call = warm.known(x, weight.t(), options, asked, activation if asked else None)
    return _repeat(call, ("bias",)) if call is not None and {*call.fused} <= {"bias"} else None


def fused_product_of(
    x: Any, weight: Any, epilogue: Any, named: dict[str, Any], options: tuple[Any, ...]
) -> Repeat | None:
    """What repeats the product of x and weight.T with an epilogue that was just made, if it was remembered. `named`:
    the epilogue's tensors."""
    asked = request(epilogue, None, None, None, None, None, named)
    assert asked is not None
    form, numbers = warm.form_of(asked)
    call = warm.known(x, weight.t(), options, asked, form)
    return _repeat(call, (*named,)) if call is not None and {*call.fused} <= {*named} and not numbers else None


def remember_layer(
    known: WarmLayer, x: Any, weight: Any, bias: Any, activation: str | None, options: tuple[Any, ...]
) -> None:
    """Let `known`, which has its product, be found for tensors like these."""
    layer_calls.put(_key(libraries.known[type(x)], x, weight, bias, activation, options), known)


# --- what an activation got, differentiated: its derivative is the epilogue of the same product -----------------------

derivative_calls: Calls[Repeat] = Calls()
"""Of x, weight, the bias and the gradient."""


def _derivative_key(
    library: libraries.Library, grad: Any, x: Any, weight: Any, bias: Any, activation: str, options: tuple[Any, ...]
) -> Any:
    signature = library.signature
    return library.pair(x, weight), signature(grad), bias is not None and signature(bias), activation, options


def warm_derivative(grad: Any, x: Any, weight: Any, bias: Any, activation: str, options: tuple[Any, ...]) -> Any:
    """The gradient of what the activation got, from that of the layer's result; or MISS."""
    library = libraries.known.get(type(grad))
    if library is None:
        return MISS
    for one in (x, weight) if bias is None else (x, weight, bias):
        if type(one) not in library.types:
            return MISS
    try:
        call = derivative_calls.get(_derivative_key(library, grad, x, weight, bias, activation, options))
    except RuntimeError:  # no memory: a batch of gradients in disguise, say
        return MISS
    return MISS if call is None else call(x, weight, bias, grad)


GRAD = "grad"
"""The name of the result's gradient among the epilogue's tensors."""


def remember_derivative(
    grad: Any, x: Any, weight: Any, bias: Any, activation: str, options: tuple[Any, ...], expression: Any, dtype: Any
) -> None:
    """Let later ones of this kind take the warm path, where the product just made did. `expression`: its epilogue;
    `dtype`: its out_dtype."""
    asked = request(expression, None, bias, None, None, None, {GRAD: grad})
    assert asked is not None
    form, numbers = warm.form_of(asked)
    call = warm.known(x, weight.t(), (dtype, *options[1:]), asked, form)
    if call is not None and set(call.fused) <= {"bias", GRAD}:
        library = libraries.known[type(x)]
        key = _derivative_key(library, grad, x, weight, bias, activation, options)
        derivative_calls.put(key, _repeat(call, ("bias", GRAD), numbers))


# --- its gradients ----------------------------------------------------------------------------------------------------


def warm_gradients(known: WarmLayer, grad: Any, x: Any, weight: Any) -> Any:
    """(grad @ weight, grad.T @ x), or MISS. x is None where weight needs no gradient, weight where x needs none."""
    if x is weight is None:  # the bias alone needs one
        return MISS
    given = (grad, weight) if x is None else (grad, x) if weight is None else (grad, x, weight)
    try:
        low = [one.data_ptr() & 15 for one in given]
    except RuntimeError:  # no memory: a batch of gradients in disguise, say
        return MISS
    asked = weight is not None, x is not None
    for way in known.gradients:
        # what torch.autograd.graph.saved_tensors_hooks gave back may lie otherwise than what was saved
        if way.asked == asked and way.low == low and way.lie_so(*given):
            return way.run(grad, weight, x)
    return MISS


def _runner(library: libraries.Library, products: Sequence[WarmProduct | None]) -> Callable[[Any, Any, Any], Any]:
    """WarmGradients.run with what it reads at hand; run.warm says why."""
    found = [(number, product) for number, product in enumerate(products) if product is not None]
    made = [(number, one.launches.start, (one.shape, one.strides, one.dtype)) for number, one in found]
    ordinal, nbytes = found[0][1].launches.ordinal, max(one.launches.workspace_bytes for _, one in found)
    new, address, stream, device, duals = library.new, library.address, library.stream, library.device, library.duals

    def run(grad: Any, *others: Any) -> Any:
        if current_executor() is not None or device() != ordinal or duals._current_level >= 0:  # as library.is_plain
            return MISS
        held, work = library.scratch(nbytes) if nbytes else (None, 0)
        results: list[Any] = [None, None]
        at, grad_at = stream(ordinal), address(grad)
        for number, start, like in made:
            results[number] = result = new(*like)
            if not start((grad_at, address(others[number]), 0, address(result), work), (1.0, 0.0), at):
                return MISS
        del held  # given back now: the library's pool keeps it apart until the stream has passed
        return results

    return run


def remember_gradients(
    known: WarmLayer, grad: Any, x: Any, weight: Any, of_x: tuple[Any, ...] | None, of_weight: tuple[Any, ...] | None
) -> None:
    """Let later gradients of this kind take the warm path, where the products just made did.

    of_x, of_weight: (a, b, options) of each product, with a at grad's address and b at the other operand's.
    """
    products = [None if made is None else warm.known(*made) for made in (of_x, of_weight)]
    if any(product is None and made is not None for product, made in zip(products, (of_x, of_weight), strict=True)):
        return
    if products == [None, None]:
        return
    given = [one for one in (grad, x, weight) if one is not None]
    low = [one.data_ptr() & 15 for one in given]
    asked = products[0] is not None, products[1] is not None
    way = WarmGradients(asked, libraries.lying_as(*given), low, _runner(libraries.known[type(grad)], products))
    known.gradients = (way, *known.gradients[: MOST_WAYS - 1])
