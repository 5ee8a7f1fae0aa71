"""The host's time of calls, wherever their arrays come from, and of the library's own call, round by round.

A case is {"call": a name of CALLS, "goal": {...}}. A goal holds where ours takes at most `of_reference` times the
library's time plus `more_us`, or at most `us`. A library that is not here makes a record that says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from ..errors import MissingDependency, TilewrightError
from .bench import percentile
from .ladder import Progress, silent
from .record import provenance

ROUNDS = 9
PASSES = 2
ROUND_S = 0.02
"""About how long one side of a round lasts."""
MOST_CALLS = 1000
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
    from ..gemm.matmul import matmul

    a, b = (_normal(torch, device, SIZE, SIZE) for _ in range(2))
    return lambda: matmul(a, b), lambda: torch.mm(a, b)


def _matmul_out(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from ..gemm.matmul import matmul

    a, b, mine, its = (_normal(torch, device, SIZE, SIZE) for _ in range(4))
    return lambda: matmul(a, b, out=mine), lambda: torch.mm(a, b, out=its)


def _fused(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from ..gemm.matmul import matmul

    a, b = (_normal(torch, device, SIZE, SIZE) for _ in range(2))
    bias = _normal(torch, device, SIZE)
    silu = torch.nn.functional.silu
    return lambda: matmul(a, b, bias=bias, activation="silu"), lambda: silu(torch.addmm(bias, a, b))


def _lambda(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from ..epilogue import silu
    from ..gemm.matmul import matmul

    a, b = (_normal(torch, device, SIZE, SIZE) for _ in range(2))
    bias = _normal(torch, device, SIZE)
    its = torch.nn.functional.silu
    return (
        lambda: matmul(a, b, epilogue=lambda acc, bias: silu(acc + bias), bias=bias),
        lambda: its(torch.addmm(bias, a, b)),
    )


def _verified(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from ..gemm.matmul import matmul

    a, b = (_normal(torch, device, SIZE, SIZE) for _ in range(2))
    wait = _torch_wait(torch, device)

    def theirs() -> Any:
        result = torch.mm(a, b)
        wait()  # verify=True waits for its verdict too
        return result

    return lambda: matmul(a, b, verify=True), theirs


def _attention(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from ..attn.attention import attention

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
    from ..gemm.matmul import matmul

    wait = _torch_wait(torch, device)
    return {"the product of two tensors, and the wait": lambda: (matmul(*tensors, out=out), wait())}


def _dlpack(torch: Any, device: str) -> tuple[Any, ...]:
    from ..gemm.matmul import matmul

    tensors = [_normal(torch, device, SIZE, SIZE, dtype="float32") for _ in range(2)]
    a, b = map(_Dlpack, tensors)
    out = torch.empty_like(tensors[0])
    stream = 1 if device == "cuda" else None
    return (
        lambda: matmul(a, b, out=out),
        lambda: torch.mm(torch.from_dlpack(a), torch.from_dlpack(b), out=out),
        {"two capsules of torch's": lambda: [x.__dlpack__(max_version=(1, 0), stream=stream) for x in (a, b)]}
        | _waited(torch, device, tensors, out),
    )


def _interface(torch: Any, device: str) -> tuple[Any, ...]:
    from ..gemm.matmul import matmul

    tensors = [_normal(torch, device, SIZE, SIZE, dtype="float32") for _ in range(2)]
    a, b = map(_Interface, tensors) if device == "cuda" else tensors
    out = torch.empty_like(tensors[0])

    def theirs() -> Any:
        return torch.mm(torch.as_tensor(a, device=device), torch.as_tensor(b, device=device), out=out)

    parts = {"two interfaces of torch's": lambda: [getattr(x, "__cuda_array_interface__", None) for x in (a, b)]}
    return lambda: matmul(a, b, out=out), theirs, parts | _waited(torch, device, tensors, out)


def _cupy(device: str) -> Pair:
    import cupy

    from ..gemm.matmul import matmul

    a, b = (cupy.random.standard_normal((SIZE, SIZE), dtype=cupy.float32) for _ in range(2))
    return Pair(
        lambda: matmul(a, b), lambda: cupy.matmul(a, b), cupy.cuda.runtime.deviceSynchronize, lambda x: cupy.asnumpy(x)
    )


def _numpy(device: str) -> Pair:
    from ..gemm.matmul import matmul

    torch = _torch(device)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2))

    def theirs() -> np.ndarray:
        return torch.mm(torch.from_numpy(a).to(device), torch.from_numpy(b).to(device)).cpu().numpy()

    return Pair(lambda: matmul(a, b), theirs, _torch_wait(torch, device), np.asarray)


def _jax(device: str) -> Pair:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes the memory of all the others
    import jax

    from ..gemm.matmul import matmul

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
        from ..gemm.matmul import matmul
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


_FIRST_PLAN = """
import sys, time
from tilewright.gemm.problem import GemmProblem
from tilewright.gpus import find_gpu
from tilewright.gemm.family import plan_for
gpu, taken = find_gpu(sys.argv[1]), []
for m in (1000, 1001):
    problem = GemmProblem.dense(m, 4096, 4096, dtype="bf16")
    start = time.perf_counter()
    plan_for(problem, gpu)
    taken.append(time.perf_counter() - start)
print(*taken)
"""


def first_plan_us(gpu: str) -> list[tuple[float, float]]:
    """Microseconds of the first plan of a process and of the next one, for ROUNDS processes."""
    samples = []
    for _ in range(ROUNDS):
        done = subprocess.run(
            [sys.executable, "-c", _FIRST_PLAN, gpu], capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            raise TilewrightError(f"a process that makes one plan failed: {done.stderr[-500:]}")
        first, second = (float(taken) * 1e6 for taken in done.stdout.split())
        samples.append((first, second))
    return samples


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
FIRST_PLAN = "the first plan of a process"


def agree(pair: Pair) -> str:
    """Why our result is not the library's; "" where both are the same but for rounding. NaN never passes."""
    assert pair.theirs is not None
    mine, its = pair.read(pair.ours()), pair.read(pair.theirs())
    if mine.shape != its.shape:
        return f"the result is {mine.shape}, the library's {its.shape}"
    scale = float(np.abs(its).max(initial=1.0))
    worst = float(np.abs(mine.astype(np.float64) - its).max(initial=0.0))
    return "" if worst <= 0.02 * scale else f"differs from the library's result by {worst:.3g} of {scale:.3g}"


def _once(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def _mean(call: Callable[[], Any], wait: Callable[[], None], calls: int) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    taken = (time.perf_counter() - start) / calls * 1e6
    wait()
    return taken


def _least(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """The least mean of a few rounds."""
    for _ in range(3):
        call()
    calls = max(1, min(MOST_CALLS, int(ROUND_S * 1e6 / max(_once(call, wait), 1.0))))
    return min(_mean(call, wait, calls) for _ in range(ROUNDS))


def samples_of(pair: Pair, rounds: int = ROUNDS) -> Iterator[tuple[float, float]]:
    """(our microseconds per call, the library's), round by round; who comes first changes from round to round."""
    sides = [pair.ours, pair.theirs]
    assert sides[1] is not None
    if pair.once:
        # agree has taken one of each; the last is left so that neither side ends first
        for number in range(pair.once - 2):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            taken = {side: _once(sides[side], pair.wait) for side in order}  # type: ignore[arg-type]
            yield taken[0], taken[1]
        return
    counts = []
    for side in sides:
        for _ in range(3):
            side()  # type: ignore[misc]
        counts.append(max(1, min(MOST_CALLS, int(ROUND_S * 1e6 / max(_once(side, pair.wait), 1.0)))))  # type: ignore[arg-type]
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        taken = {side: _mean(sides[side], pair.wait, counts[side]) for side in order}  # type: ignore[arg-type]
        yield taken[0], taken[1]


def least_disturbed(pair: Pair) -> list[tuple[float, float]]:
    """The samples of the pass in which the library's own call took the least: others may have used the host in the
    other one. What can be called once only has one pass."""
    passes = [list(samples_of(pair)) for _ in range(1 if pair.once else PASSES)]
    return min(passes, key=lambda samples: median(its for _, its in samples))


def met(goal: dict[str, float], us: float, reference_us: float | None) -> bool | None:
    """Return whether a goal holds; None without one."""
    limits = [goal["us"]] if "us" in goal else []
    if reference_us is not None and ("of_reference" in goal or "more_us" in goal):
        limits.append(goal.get("of_reference", 1.0) * reference_us + goal.get("more_us", 0.0))
    return us <= max(limits) if limits else None


def in_words(goal: dict[str, float]) -> str:
    """A goal as a table says it."""
    parts = []
    if "of_reference" in goal or "more_us" in goal:
        share = goal.get("of_reference", 1.0)
        text = "the library's" if share == 1.0 else f"{share:g} of the library's"
        parts.append(text + (f" and {goal['more_us']:g} us" if "more_us" in goal else ""))
    if "us" in goal:
        parts.append(f"{goal['us']:g} us")
    return " or ".join(parts)


def _timed(case: dict[str, Any], device: str, gpu: str) -> dict[str, Any]:
    goal = case.get("goal", {})
    samples: list[tuple[float, float | None]]
    if case["call"] == FIRST_PLAN:
        plans = first_plan_us(gpu)
        samples = [(first, None) for first, _ in plans]
        parts = {"a plan after it": median(second for _, second in plans)}
    else:
        pair = CALLS[case["call"]](device)
        if reason := agree(pair):
            return {"right": False, "reason": reason}
        samples = [*least_disturbed(pair)]
        parts = {name: _least(call, pair.wait) for name, call in pair.parts.items()}
    us = median(sample[0] for sample in samples)
    result: dict[str, Any] = {
        "right": True, "reason": "", "host_us": us, "host_us_p90": percentile([s[0] for s in samples], 0.9),
        "rounds": len(samples),
    }  # fmt: skip
    reference = None
    if samples[0][1] is not None:
        pairs = [(mine, its) for mine, its in samples if its is not None]
        ratios = [its / mine for mine, its in pairs]
        reference = median(its for _, its in pairs)
        result |= {
            "reference_us": reference, "ratio": median(ratios), "ratio_p10": percentile(ratios, 0.1),
            "ratio_p90": percentile(ratios, 0.9),
        }  # fmt: skip
    told = {"parts_us": parts} if parts else {}
    return result | told | {"goal": in_words(goal), "met": met(goal, us, reference)}


def host_call_records(
    suite: str, cases: list[dict[str, Any]], say: Progress = silent, device: str = "cuda", gpu: str | None = None
) -> list[dict[str, Any]]:
    """One record a case. A library that is not here, or sees no GPU, makes a record whose "right" is None, with why.

    `device` "cpu" is for tests, on the emulator.
    """
    from .climb_gpu import driver_version

    if gpu is None:
        from ..jit.device import device as device_of

        where = device_of(0)
        origin, gpu = provenance(machine_kind="gpu", gpu=where.name, driver=driver_version()), where.gpu.name
    else:
        origin = provenance(machine_kind="emulator", gpu=gpu)
    records = []
    for number, case in enumerate(cases):
        say(number, case["call"])
        try:
            result = _timed(case, device, gpu)
        except ImportError as error:
            result = {"right": None, "reason": f"{error.name or error} is not installed"}
        except MissingDependency as error:
            result = {"right": None, "reason": str(error)}
        told = {"call": case["call"], "dtype": "f32" if ":" in case["call"] and "torch" not in case["call"] else "bf16"}
        records.append({"suite": suite, "case": told, "result": result, "provenance": origin | _version(case["call"])})
    return records


def _version(call: str) -> dict[str, str]:
    """The version of the library that a call is compared with, where it is loaded."""
    name = {"CuPy": "cupy", "JAX": "jax"}.get(call.partition(":")[0], "torch")
    module = sys.modules.get(name)
    return {"reference_version": f"{name} {module.__version__}"} if module is not None else {}
