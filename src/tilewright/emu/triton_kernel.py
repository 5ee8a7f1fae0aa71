"""`emulate_triton`: a kernel of Triton's on NumPy arrays. Triton's compiler makes the PTX; it needs no GPU for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidOperand
from ..gpus import DEFAULT_GPU, find_gpu
from .api import decoded
from .arguments import Argument, parse_argument
from .own_kernel import EmulateResult, emulate
from .python_kernels import in_order_of

_TYPES = {
    "f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64", "float16": "fp16", "float32": "fp32",
    "float64": "fp64", "bool": "i1", **{f"{sign}{bits}": f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)},
    **{f"{word}{bits}": f"{word[0]}{bits}" for word in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""A type of arguments.py, or a dtype's name -> Triton's."""
DIVISIBLE = 16
"""Triton compiles pointers and whole numbers that are multiples of this as such."""


def emulate_triton(
    kernel: Any,
    grid: int | Sequence[int] | Callable[[dict[str, Any]], int | Sequence[int]],
    args: Mapping[str, Any],
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    num_ctas: int = 1,
    gpu: str = DEFAULT_GPU,
    **options: Any,
) -> EmulateResult:
    """Run one kernel of Triton's on NumPy arrays. It needs triton, and no GPU.

    kernel: what @triton.jit made. grid: one to three sizes, or a function of the arguments, as Triton takes it.
    args: every parameter by its name, constants (tl.constexpr) too: NumPy arrays for pointers, numbers, None, or the
    strings that `emulate` takes ("bf16[64,64]=random", "f32[128]=empty"). num_warps, num_stages, num_ctas: as a launch
    in Triton has them; an autotuned kernel's best ones are not looked for. options: those of `emulate` (hazards, seed,
    explore, order, strict, limit, progress).

    Raises InvalidOperand without triton and for arguments that are not the kernel's, and what `emulate` raises.
    """
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise InvalidOperand("emulate_triton needs triton, which is not installed. Try pip install triton.") from error
    if not isinstance(kernel, triton.runtime.JITFunction):
        raise InvalidOperand(
            f"kernel is {kernel!r:.80}, not what @triton.jit makes. Of an autotuned kernel or one with heuristics pass "
            "kernel.fn, and its constants in args."
        )
    names = [parameter.name for parameter in kernel.params]
    in_order_of(kernel.__name__, names, args)
    random = np.random.default_rng(options.get("seed", 0))
    signature, constants, attributes, given = {}, {}, {}, []
    for number, parameter in enumerate(kernel.params):
        value = args[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        argument = parse_argument(value, random)
        signature[parameter.name] = _type(parameter.name, argument)
        whole = isinstance(argument.scalar, int) and not isinstance(argument.scalar, bool)
        if argument.array is not None or (whole and argument.scalar % DIVISIBLE == 0):  # type: ignore[operator]
            attributes[(number,)] = [["tt.divisibility", DIVISIBLE]]
        given.append(value if argument.array is None or argument.empty else argument.array)
    arch = find_gpu(gpu).arch.name.removeprefix("sm_").rstrip("af")
    compiled = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", int(arch), 32),
        options={"num_warps": num_warps, "num_stages": num_stages, "num_ctas": num_ctas},
    )
    ptx, metadata = compiled.asm["ptx"], compiled.metadata
    blocks = grid(dict(args)) if callable(grid) else grid
    entry = decoded(ptx, metadata.name).entry
    scratch = getattr(metadata, "global_scratch_size", 0) * int(np.prod(blocks)) * num_ctas
    more: list[Any] = [np.zeros(scratch, np.uint8)] if scratch else []
    more += [None] * (len(entry.parameters) - len(given) - len(more))
    threads = entry.directives.get("reqntid", str(num_warps * 32)).split(",")[0]
    result = emulate(
        ptx, metadata.name, blocks if num_ctas == 1 else _wider(blocks, num_ctas), int(threads), [*given, *more],
        gpu=gpu, shared_bytes=metadata.shared, cluster=num_ctas if num_ctas > 1 else None, **options,
    )  # fmt: skip
    passed = [name for name in names if signature[name] != "constexpr"]
    for one in (result, *result.differing.values()):
        buffers = [name for name in passed if signature[name].startswith("*")]
        one.arrays = one.arrays[: len(buffers)]
        one.named = dict(zip(buffers, one.arrays, strict=True))
    return result


def _wider(grid: int | Sequence[int], num_ctas: int) -> list[int]:
    """The grid in blocks of the GPU, of which Triton's clusters have several."""
    x, *rest = [grid] if isinstance(grid, int) else list(grid)
    return [x * num_ctas, *rest]


def _type(name: str, argument: Argument) -> str:
    """Triton's name of an argument's type. Raises InvalidOperand."""
    if argument.array is not None:
        kind = _TYPES.get(argument.kind)
        if kind is None:
            raise InvalidOperand(f"{name} is an array of {argument.kind}, which Triton has no pointers to.")
        return f"*{kind}"
    value = argument.scalar
    if isinstance(value, bool | np.bool_):
        return "i1"
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return _TYPES[argument.kind or value.dtype.name]
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return "i32"
        return "i64" if value < 2**63 else "u64"
    if isinstance(value, float):
        return "fp32"
    raise InvalidOperand(f"{name} is {argument.text}; Triton's kernels take arrays and numbers.")
