"""Calls whose time on the host is compared: ours, and the library's own on the same arrays (lab/host_calls.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import MissingDependency

SIZE = 64
"""Of the products: the GPU's part must be shorter than the host's, so that its queue does not fill."""
NEW_K = 4096
"""k and n of the products whose m was not seen."""
FIRST_M, NEW_MS = 257, 48


@dataclass(frozen=True)
class Pair:
    """Our call and the library's, and how to wait for the GPU. Each call gives its result as float32 in `read`.

    `once`: each call is another one (another m): calls are timed one by one and none is warmed. `parts`: what ours
    cannot do without, by name, to be timed apart.
    """

    ours: Callable[[], Any]
    theirs: Callable[[], Any] | None
    wait: Callable[[], None]
    read: Callable[[Any], np.ndarray]
    once: int = 0
    parts: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def _torch(device: str) -> Any:
    import torch

    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def _torch_wait(torch: Any, device: str) -> Callable[[], None]:
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def _read_torch(result: Any) -> np.ndarray:
    return result.detach().float().cpu().numpy()


def _normal(torch: Any, device: str, *shape: int, dtype: str = "bfloat16", grad: bool = False) -> Any:
    return torch.randn(*shape, device=device).to(getattr(torch, dtype)).requires_grad_(grad)


def _on_torch(make: Callable[[Any, str], tuple[Any, ...]]) -> Callable[[str], Pair]:
    """A pair of calls on torch tensors: ours, torch's, and the parts of ours, if there are any."""

    def pair(device: str) -> Pair:
        torch = _torch(device)
        ours, theirs, *parts = make(torch, device)
        return Pair(ours, theirs, _torch_wait(torch, device), _read_torch, parts=parts[0] if parts else {})

    return pair


def _matmul(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from .. import matmul

    a, b = (_normal(torch, device, SIZE, SIZE) for _ in range(2))
    return lambda: matmul(a, b), lambda: torch.mm(a, b)


def _matmul_out(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from .. import matmul

    a, b, mine, its = (_normal(torch, device, SIZE, SIZE) for _ in range(4))
    return lambda: matmul(a, b, out=mine), lambda: torch.mm(a, b, out=its)


def _fused(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from .. import matmul

    a, b = (_normal(torch, device, SIZE, SIZE) for _ in range(2))
    bias = _normal(torch, device, SIZE)
    silu = torch.nn.functional.silu
    return lambda: matmul(a, b, bias=bias, activation="silu"), lambda: silu(torch.addmm(bias, a, b))


def _lambda(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from .. import matmul
    from ..epilogue import silu

    a, b = (_normal(torch, device, SIZE, SIZE) for _ in range(2))
    bias = _normal(torch, device, SIZE)
    its = torch.nn.functional.silu
    return (
        lambda: matmul(a, b, epilogue=lambda acc, bias: silu(acc + bias), bias=bias),
        lambda: its(torch.addmm(bias, a, b)),
    )


def _verified(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from .. import matmul

    a, b = (_normal(torch, device, SIZE, SIZE) for _ in range(2))
    wait = _torch_wait(torch, device)

    def theirs() -> Any:
        result = torch.mm(a, b)
        wait()  # verify=True waits for its verdict too
        return result

    return lambda: matmul(a, b, verify=True), theirs


def _attention(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from .. import attention

    q, k, v = (_normal(torch, device, 1, 8, SIZE, SIZE) for _ in range(3))
    its = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(q, k, v), lambda: its(q, k, v)


def _attention_training(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from ..torch import scaled_dot_product_attention as mine

    q, k, v = (_normal(torch, device, 1, 8, SIZE, SIZE, grad=True) for _ in range(3))
    seed = _normal(torch, device, 1, 8, SIZE, SIZE)
    its = torch.nn.functional.scaled_dot_product_attention

    def step(of: Any) -> Any:
        return torch.autograd.grad(of(q, k, v), (q, k, v), seed)[0]

    return lambda: step(mine), lambda: step(its)


def _layers(torch: Any, device: str) -> tuple[Any, Any]:
    from ..torch import Linear

    mine = Linear(SIZE, SIZE).to(device=device, dtype=torch.bfloat16)
    its = torch.nn.Linear(SIZE, SIZE).to(device=device, dtype=torch.bfloat16)
    its.load_state_dict(mine.state_dict())
    return mine, its


def _linear(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    mine, its = _layers(torch, device)
    x = _normal(torch, device, SIZE, SIZE)

    def forward(layer: Any) -> Any:
        with torch.no_grad():
            return layer(x)

    return lambda: forward(mine), lambda: forward(its)


def _linear_training(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    mine, its = _layers(torch, device)
    x, seed = _normal(torch, device, SIZE, SIZE, grad=True), _normal(torch, device, SIZE, SIZE)

    def step(layer: Any) -> Any:
        return torch.autograd.grad(layer(x), (x, *layer.parameters()), seed)[0]

    return lambda: step(mine), lambda: step(its)


class _Dlpack:
    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


class _Interface:
    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._tensor.__cuda_array_interface__


def _waited(torch: Any, device: str, tensors: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """The part of a call on foreign arrays that is the product itself."""
    from .. import matmul

    wait = _torch_wait(torch, device)
    return {"the product of two tensors, and the wait": lambda: (matmul(*tensors, out=out), wait())}


def _dlpack(torch: Any, device: str) -> tuple[Any, ...]:
    from .. import matmul

    tensors = [_normal(torch, device, SIZE, SIZE, dtype="float32") for _ in range(2)]
    a, b = map(_Dlpack, tensors)
    out = torch.empty_like(tensors[0])
    stream = 1 if device == "cuda" else None
    wait = _torch_wait(torch, device)

    def theirs() -> Any:
        result = torch.mm(torch.from_dlpack(a), torch.from_dlpack(b), out=out)
        wait()  # as ours does, since nothing orders what the arrays' owners do next
        return result

    capsules = {"two capsules of torch's": lambda: [x.__dlpack__(max_version=(1, 0), stream=stream) for x in (a, b)]}
    return lambda: matmul(a, b, out=out), theirs, capsules | _waited(torch, device, tensors, out)


def _interface(torch: Any, device: str) -> tuple[Any, ...]:
    from .. import matmul

    tensors = [_normal(torch, device, SIZE, SIZE, dtype="float32") for _ in range(2)]
    a, b = map(_Interface, tensors) if device == "cuda" else tensors
    out = torch.empty_like(tensors[0])

    wait = _torch_wait(torch, device)

    def theirs() -> Any:
        result = torch.mm(torch.as_tensor(a, device=device), torch.as_tensor(b, device=device), out=out)
        wait()  # as of DLPack
        return result

    parts = {"two interfaces of torch's": lambda: [getattr(x, "__cuda_array_interface__", None) for x in (a, b)]}
    return lambda: matmul(a, b, out=out), theirs, parts | _waited(torch, device, tensors, out)


def _cupy(device: str) -> Pair:
    import cupy

    from .. import matmul

    a, b = (cupy.random.standard_normal((SIZE, SIZE), dtype=cupy.float32) for _ in range(2))
    return Pair(
        lambda: matmul(a, b), lambda: cupy.matmul(a, b), cupy.cuda.runtime.deviceSynchronize, lambda x: cupy.asnumpy(x)
    )


def _numpy(device: str) -> Pair:
    from .. import matmul

    torch = _torch(device)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2))

    def theirs() -> np.ndarray:
        return torch.mm(torch.from_numpy(a).to(device), torch.from_numpy(b).to(device)).cpu().numpy()

    return Pair(lambda: matmul(a, b), theirs, _torch_wait(torch, device), np.asarray)


def _jax(device: str) -> Pair:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes the memory of all the others
    import jax

    from .. import matmul

    if device == "cuda" and jax.default_backend() != "gpu":
        raise MissingDependency("jax is installed without a GPU back end: pip install 'jax[cuda13]'")
    keys = jax.random.split(jax.random.key(0), 2)
    a, b = (jax.random.normal(key, (SIZE, SIZE), dtype=jax.numpy.float32) for key in keys)

    def theirs() -> Any:
        return jax.numpy.matmul(a, b, precision="highest").block_until_ready()

    def ours() -> Any:
        return matmul(a, b).block_until_ready()

    add = jax.jit(lambda a, b: a + b)
    parts = {"a compiled sum of two arrays, and the wait": lambda: add(a, b).block_until_ready()}
    return Pair(ours, theirs, lambda: None, lambda x: np.asarray(x, dtype=np.float32), parts=parts)


def _new_m(seen: bool) -> Callable[[str], Pair]:
    """Products of one weight and an m that was not seen, once it has the kernels of ENOUGH others; with `seen`, each m
    for the second time."""

    def pair(device: str) -> Pair:
        from .. import matmul
        from ..gemm.rows import ENOUGH

        torch = _torch(device)
        size = NEW_K if device == "cuda" else SIZE
        weight = _normal(torch, device, size, size)
        ms = [FIRST_M + 7 * number for number in range(NEW_MS)]
        rows = [_normal(torch, device, m, size) for m in ms]
        first = [_normal(torch, device, m + 1, size) for m in ms[: min(ENOUGH, len(ms))]]
        for x in [*first, *(rows if seen else ())]:
            matmul(x, weight)
        mine, its = iter(rows), iter(rows)
        wait = _torch_wait(torch, device)
        return Pair(lambda: matmul(next(mine), weight), lambda: torch.mm(next(its), weight), wait, _read_torch, len(ms))

    return pair


CALLS: dict[str, Callable[[str], Pair]] = {
    "torch: matmul(a, b)": _on_torch(_matmul),
    "torch: matmul(a, b, out=out)": _on_torch(_matmul_out),
    "torch: matmul(a, b, bias=bias, activation='silu')": _on_torch(_fused),
    "torch: matmul(a, b, epilogue=lambda ...)": _on_torch(_lambda),
    "torch: matmul(a, b, verify=True)": _on_torch(_verified),
    "torch: attention(q, k, v)": _on_torch(_attention),
    "torch: scaled_dot_product_attention, training": _on_torch(_attention_training),
    "torch: Linear, forward": _on_torch(_linear),
    "torch: Linear, training": _on_torch(_linear_training),
    "torch: an m that was not seen": _new_m(False),
    "torch: the same m again": _new_m(True),
    "CuPy: matmul(a, b)": _cupy,
    "NumPy: matmul(a, b)": _numpy,
    "JAX: matmul(a, b)": _jax,
    "DLPack: matmul(a, b, out=out)": _on_torch(_dlpack),
    "__cuda_array_interface__: matmul(a, b, out=out)": _on_torch(_interface),
}
"""What can be timed: the libraries' own calls stand in the functions."""
