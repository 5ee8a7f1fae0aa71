"""`emulate_numba` and `emulate_cupy`: kernels of numba.cuda's and CuPy's RawKernels on NumPy arrays, with no GPU."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidOperand
from ..gpus import DEFAULT_GPU, find_gpu
from .arguments import Argument, parse_argument
from .own_kernel import EmulateResult, emulate

HARMLESS = ("-std=", "--std=", "-lineinfo", "--generate-line-info", "-w", "--disable-warnings", "-default-device")
"""Options of a RawKernel that change nothing here."""


def emulate_numba(
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any] | Mapping[str, Any],
    *,
    gpu: str = DEFAULT_GPU,
    **options: Any,
) -> EmulateResult:
    """Run one kernel of numba.cuda's on NumPy arrays. It needs numba-cuda, and no GPU.

    kernel: what @cuda.jit made. grid, block: as in kernel[grid, block]. args: one for each parameter, in order or by
    name: NumPy arrays, numbers, or the strings that `emulate` takes ("f32[128]=random"). Numba compiles for the types
    of these: a Python int is an int64, a float a float64. Faults name the Python line. options: those of `emulate`
    (shared_bytes, hazards, seed, explore, order, strict, limit, progress).

    Raises InvalidOperand without numba-cuda and for arguments that are not the kernel's, and what `emulate` raises.
    """
    try:
        import numba
        from numba import cuda
        from numba.cuda.dispatcher import CUDADispatcher
    except ImportError as error:
        raise InvalidOperand(
            'emulate_numba needs numba-cuda, which is not installed. Try pip install "numba-cuda[cu13]".'
        ) from error
    if not isinstance(kernel, CUDADispatcher):
        raise InvalidOperand(f"kernel is {kernel!r:.80}, not what @numba.cuda.jit makes.")
    names = list(inspect.signature(kernel.py_func).parameters)
    random = np.random.default_rng(options.get("seed", 0))
    types, given, buffers = [], [], []
    for name, value in zip(names, in_order_of(kernel.py_func.__name__, names, args), strict=True):
        if value is None:
            raise InvalidOperand(f"{name} is None; kernels of Numba's take arrays and numbers here.")
        argument = parse_argument(value, random)
        if argument.array is None:
            number = _number(name, argument)
            types.append(numba.typeof(number))
            given.append(number)
            continue
        array = np.ascontiguousarray(argument.array)
        types.append(numba.typeof(array))
        # What Numba makes of an array: two pointers of the host, how many items of how many bytes, the data, its shape
        # and strides.
        data = value if argument.empty else array
        given += [None, None, array.size, array.itemsize, data, *array.shape, *array.strides]
        buffers.append(name)
    arch = find_gpu(gpu).arch.compute_capability
    try:
        ptx, _ = cuda.compile_ptx(kernel.py_func, tuple(types), cc=arch, lineinfo=True)
    except numba.core.errors.NumbaError as error:
        raise InvalidOperand(f"Numba cannot compile {kernel.py_func.__name__} for {types}: {error}") from error
    entry = ptx.split(".visible .entry ", 1)[1].split("(", 1)[0].strip()
    result = emulate(ptx, entry, grid, block, given, gpu=gpu, **options)
    for one in (result, *result.differing.values()):
        one.named = dict(zip(buffers, one.arrays, strict=True))
    return result


def in_order_of(kernel: str, names: list[str], args: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    """The arguments in the order of the parameters. Raises InvalidOperand where they are not these."""
    shown = ", ".join(names)
    if isinstance(args, Mapping):
        if wrong := [*(f"{name} is missing" for name in names if name not in args),
                     *(f"{name} is not one of them" for name in args if name not in names)]:  # fmt: skip
            raise InvalidOperand(f"{kernel} takes {shown}: {', '.join(wrong)}")
        return [args[name] for name in names]
    if len(args) != len(names):
        raise InvalidOperand(f"{len(args)} arguments, but {kernel} takes {len(names)} ({shown}). Give one for each.")
    return list(args)


def _number(name: str, argument: Argument) -> Any:
    """A number as Numba is told of it. Raises InvalidOperand for anything else."""
    value = argument.scalar
    if isinstance(value, bool | int | float | np.bool_ | np.number) and not isinstance(value, np.complexfloating):
        return value
    raise InvalidOperand(f"{name} is {argument.text}; kernels of Numba's take arrays and numbers here.")


def emulate_cupy(
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any] | Mapping[str, Any],
    *,
    include: Sequence[Any] = (),
    **options: Any,
) -> EmulateResult:
    """Run one cupy.RawKernel on NumPy arrays, from its source. No GPU is needed, and nothing of CuPy's is called.

    kernel: a RawKernel, also one that RawModule.get_function gave. Its -D and -I options are followed. grid, block and
    args: as the RawKernel takes them, with NumPy arrays; also by name. Other options: those of `emulate`.

    Raises InvalidOperand for what is not a RawKernel with a source, and for compiler options that are not known here;
    and what `emulate` raises.
    """
    source, name = getattr(kernel, "code", None), getattr(kernel, "name", None)
    if not isinstance(source, str) or not isinstance(name, str):
        raise InvalidOperand(
            f"kernel is {kernel!r:.80}, not a cupy.RawKernel with a source. Of a kernel that was read from a file pass "
            "that file to emulate."
        )
    defined, folders = "", list(include)
    given = list(getattr(kernel, "options", ()) or ())
    while given:
        option = given.pop(0)
        flag, value = option[:2], option[2:]
        if flag in ("-D", "-I"):
            value = value or (given.pop(0) if given else "")
            if flag == "-I":
                folders.append(value)
            else:
                macro, _, text = value.partition("=")
                defined += f"#define {macro} {text or 1}\n"
        elif not option.startswith(HARMLESS):
            raise InvalidOperand(f"the RawKernel has the option {option!r}, which is not one of -D, -I and -std here.")
    text = f"{defined}#line 1\n{source}" if defined else source
    return emulate(text, name, grid, block, args, include=folders, **options)
