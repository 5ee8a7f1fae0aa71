"""cuBLAS, through whichever library that brings it is installed; or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from typing import Any

import numpy as np

from ..arrays.device_array import DeviceArray
from ..errors import TilewrightError, install
from ..jit.device import bound_to
from ..jit.timing import Start

Prepare = Callable[[DeviceArray, DeviceArray, DeviceArray, str], Start]


@dataclass(frozen=True)
class Reference:
    """`prepare(a, b, out, layout)` gives a Start of out = a @ b; "t": that array is transposed."""

    name: str
    version: str
    dtypes: tuple[str, ...]
    """What it can multiply here."""
    prepare: Prepare
    prepare_tf32: Prepare | None = None
    """The same with float32 operands rounded to tf32, where that can be asked for."""

    def for_values(self, kind: str) -> Prepare | None:
        """Return what multiplies operands of a type, "tf32" for float32 ones rounded to it; None where nothing does."""
        if kind == "tf32":
            return self.prepare_tf32
        return self.prepare if kind in self.dtypes else None


def find_reference(ordinal: int) -> tuple[Reference | None, str]:
    """(the reference, "") from torch, CuPy or nvmath-python; (None, why) when none can use GPU `ordinal`."""
    reasons = []
    for name, build in (("torch", _torch), ("cupy", _cupy), ("nvmath.bindings.cublas", _nvmath)):
        try:
            module = import_module(name)
        except ImportError:
            reasons.append(f"{name.split('.')[0]} is not installed")
            continue
        try:
            return build(module, ordinal), ""
        except Exception as error:  # a build without CUDA, a driver it cannot use
            reasons.append(f"{name.split('.')[0]} cannot use the GPU ({type(error).__name__}: {error})")
    return None, f"no cuBLAS to compare with: {'; '.join(reasons)}. Install one with: {install('bench')}"


def needed_reference(ordinal: int) -> Reference:
    """Do as find_reference. Raises TilewrightError with the reasons when there is none."""
    library, why = find_reference(ordinal)
    if library is None:
        raise TilewrightError(why)
    return library


def torch_stream(torch: Any, stream: int, ordinal: int) -> Any:
    """A CUstream as torch knows it. ExternalStream(0) would be one of torch's own pool, not the default stream."""
    device = f"cuda:{ordinal}"
    return torch.cuda.ExternalStream(stream, device=device) if stream else torch.cuda.default_stream(device)


def _torch(torch: Any, ordinal: int) -> Reference:
    torch.zeros(1, device=f"cuda:{ordinal}")
    # Partial sums of a split k stay in fp32, as everybody's here: rounded to 16 bits they fail the check.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def prepare(a: DeviceArray, b: DeviceArray, out: DeviceArray, layout: str, tf32: bool = False) -> Start:
        views = [torch.from_dlpack(x) for x in (a, b, out)]
        left, right = (view.t() if letter == "t" else view for view, letter in zip(views[:2], layout, strict=True))

        def launch(stream: int) -> None:
            torch.backends.cuda.matmul.allow_tf32 = tf32  # a switch of the whole process: set before each product
            with torch.cuda.stream(torch_stream(torch, stream, ordinal)):
                torch.mm(left, right, out=views[2])

        return launch

    version = f"torch {torch.__version__}"
    return Reference(
        "cuBLAS through torch", version, ("f32", "f16", "bf16"), prepare, partial(prepare, tf32=True)
    )  # fmt: skip


def _cupy(cupy: Any, ordinal: int) -> Reference:
    cupy.cuda.Device(ordinal).use()
    cupy.zeros(1)

    def prepare(a: DeviceArray, b: DeviceArray, out: DeviceArray, layout: str) -> Start:
        views = [cupy.asarray(x) for x in (a, b, out)]
        left, right = (view.T if letter == "t" else view for view, letter in zip(views[:2], layout, strict=True))

        def launch(stream: int) -> None:
            with cupy.cuda.ExternalStream(stream, ordinal):
                cupy.matmul(left, right, out=views[2])

        return launch

    return Reference("cuBLAS through CuPy", f"cupy {cupy.__version__}", ("f32", "f16"), prepare)


def _nvmath(cublas: Any, ordinal: int) -> Reference:
    """cuBLAS's own sgemm. It reads columns: out = A B is asked for as out^T = B^T A^T."""
    with bound_to(ordinal):
        handle = cublas.create()
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def prepare(a: DeviceArray, b: DeviceArray, out: DeviceArray, layout: str) -> Start:
        m, n = out.shape
        k = a.shape[0] if layout[0] == "t" else a.shape[1]
        as_stored, turned = cublas.Operation.N, cublas.Operation.T

        def launch(stream: int) -> None:
            with bound_to(ordinal):
                cublas.set_stream(handle, stream)
                cublas.sgemm(
                    handle, turned if layout[1] == "t" else as_stored, turned if layout[0] == "t" else as_stored,
                    n, m, k, one.ctypes.data, b.address, b.shape[1], a.address, a.shape[1], zero.ctypes.data,
                    out.address, n,
                )  # fmt: skip

        return launch

    return Reference("cuBLAS through nvmath", f"nvmath-python {metadata.version('nvmath-python')}", ("f32",), prepare)
