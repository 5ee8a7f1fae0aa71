"""One view of any array: where it lies, its shape and strides, its dtype and device, and who keeps it alive.

No array library is imported here: an array of a library can only exist once its own module is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ..errors import InvalidOperand
from ..jit import device_calls
from . import dlpack
from .dtypes import DTYPE_NAMES, ITEM_BYTES, SHORT_NAMES
from .float8 import Float8Array
from .loaded import loaded


@dataclass(frozen=True, init=False)
class Operand:
    """A strided view of memory. Strides are in elements, 0 for an axis of at most one element; any may be negative."""

    name: str
    """What the caller calls it: "a", "b", "c" or "out"."""
    kind: str
    """ "numpy", "torch", "cupy", "jax", "dlpack" or "cuda_array_interface"."""
    address: int
    """The address of the element whose every index is 0; with negative strides others lie before it."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    """As dtypes.ITEM_BYTES."""
    device: int | None
    """The GPU's ordinal; None on the host."""
    read_only: bool = False
    stream: int | None = None
    """The CUstream that orders work on this array; None when nothing is under way on it."""
    owner: Any = field(default=None, repr=False, compare=False)
    """Kept so that the memory lives as long as the view."""

    def __init__(
        self, name: str, kind: str, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str,
        device: int | None, read_only: bool = False, stream: int | None = None, owner: Any = None,
    ) -> None:  # fmt: skip
        # a frozen dataclass sets its fields one by one, which takes four times as long; a call makes several
        self.__dict__.update(
            name=name, kind=kind, address=address, shape=shape, strides=strides, dtype=dtype, device=device,
            read_only=read_only, stream=stream, owner=owner,
        )  # fmt: skip

    @property
    def given(self) -> Any:
        """The caller's array."""
        if self.owner is None:  # a buffer that XLA passes
            return self
        return self.owner[0] if self.kind in ("dlpack", "jax") else self.owner

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def size(self) -> int:
        """The number of elements, repeated ones counted each time."""
        return prod(self.shape)

    def __str__(self) -> str:
        place = "the host" if self.device is None else f"GPU {self.device}"
        dtype = DTYPE_NAMES[self.dtype]
        return f"{self.name} ({self.kind}, {dtype}, shape {self.shape}, strides {self.strides}, on {place})"

    def view(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Operand:
        """The same memory under another shape."""
        return replace(self, shape=shape, strides=strides)


def broadcast(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """The view repeated to `shape` by strides of 0. Raises InvalidOperand where NumPy's broadcasting would."""
    if operand.shape == shape:
        return operand
    lead = len(shape) - len(operand.shape)
    own = (1,) * lead + operand.shape
    if lead < 0 or any(have not in (1, want) for have, want in zip(own, shape, strict=False)):
        raise InvalidOperand(f"{operand.name} {operand.shape} does not broadcast to the result's shape {shape}.")
    strides = (0,) * lead + operand.strides
    return operand.view(shape, tuple(0 if have == 1 else step for have, step in zip(own, strides, strict=True)))


def refuse_proxy(value: Any, name: str) -> None:
    """Raises InvalidOperand for what torch.fx.symbolic_trace passes, which has any attribute that it is asked for."""
    if type(value).__module__.startswith("torch.fx."):
        raise InvalidOperand(
            f"{name} is a value that torch.fx traces ({type(value).__name__}), not an array. Trace with make_fx, "
            "torch.export or torch.compile, or call this in a function of yours that torch.fx.wrap leaves whole."
        )


def as_operand(value: Any, name: str, stream: int = 0) -> Operand:
    """The view of `value`, which the caller knows as `name`.

    NumPy arrays, torch tensors, CuPy and JAX arrays, and whatever has `__dlpack__` or `__cuda_array_interface__`.
    DLPack producers order what they have under way before `stream`. Raises InvalidOperand, in the caller's terms, for
    other types, dtypes that are not in dtypes.SHORT_NAMES, and memory that cannot be viewed.
    """
    if isinstance(value, np.ndarray):
        return _from_numpy(value, name, SHORT_NAMES)
    if isinstance(value, Operand):  # a buffer that XLA passes
        return value if value.name == name else replace(value, name=name)
    torch = loaded("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value, name, torch)
    cupy = loaded("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        return _from_cupy(value, name, cupy, SHORT_NAMES)
    if isinstance(value, Float8Array):
        return _from_bytes(value, name, cupy)
    refuse_proxy(value, name)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        jax = loaded("jax")
        kind = "jax" if jax is not None and isinstance(value, jax.Array) else "dlpack"
        return _from_dlpack(value, name, kind, stream)
    interface = getattr(value, "__cuda_array_interface__", None)  # asked once: libraries make it anew each time
    if interface is not None:
        return _from_interface(value, name, interface)
    if isinstance(value, (np.generic, int, float, complex)):
        raise InvalidOperand(f"{name} is a scalar ({type(value).__name__}), not an array. To scale, use alpha or beta.")
    if type(value).__module__.startswith("jax.") and type(value).__name__.endswith("Tracer"):
        raise InvalidOperand(
            f"{name} is a value that JAX traces ({type(value).__name__}), not an array: tilewright cannot be called "
            "inside jax.jit, jax.grad or jax.vmap. Call tilewright.jax there, or this on the arrays themselves."
        )
    raise InvalidOperand(
        f"{name} is of type {type(value).__name__}, not an array. Pass a NumPy, torch, CuPy or JAX array, or anything "
        f"with __dlpack__ or __cuda_array_interface__; np.asarray({name}, np.float32) makes an array of numbers."
    )


# --- what every kind is held to --------------------------------------------------------------------------------------


def _refuse_dtype(name: str, dtype: str, shape: Sequence[int], cast: str) -> InvalidOperand:
    advice = f"Convert it: {cast}."
    if name == "out":
        advice = "Pass an out of one of these, or none."
    elif "complex" in dtype:
        advice = "Multiply its real and imaginary parts apart."
    elif "int" in dtype:
        advice = f"Convert it: {cast} (float32 holds integers up to 2**24 exactly)."
    able = ", ".join(DTYPE_NAMES[short] for short in DTYPE_NAMES)
    return InvalidOperand(f"{name} (shape {tuple(shape)}) has dtype {dtype}; kernels multiply {able}. {advice}")


def _advice(name: str, copy: str) -> str:
    return "Pass another out, or none." if name == "out" else f"Copy it first: {copy}."


def _operand(
    name: str, kind: str, address: int, shape: Sequence[int], strides: Sequence[int], dtype: str, copy: str,
    **rest: Any,
) -> Operand:  # fmt: skip
    """Hold a view to the rules that all kinds share. `copy` is how the caller would write a dense copy of it."""
    shape = tuple(map(int, shape))
    empty = 0 in shape
    steps = tuple([0 if empty or extent == 1 else int(step) for extent, step in zip(shape, strides, strict=True)])
    if not empty and not address:
        raise InvalidOperand(f"{name} (shape {shape}) has no memory: its address is 0. Fake tensors cannot be read.")
    if not empty and address % ITEM_BYTES[dtype]:
        raise InvalidOperand(
            f"{name} (shape {shape}) starts at address {address:#x}, not a multiple of its item's "
            f"{ITEM_BYTES[dtype]} bytes. {_advice(name, copy)}"
        )
    return Operand(name, kind, 0 if empty else int(address), shape, steps, dtype, **rest)


def _element_strides(name: str, shape: Sequence[int], byte_strides: Sequence[int], item: int, copy: str) -> list[int]:
    uneven = [s for extent, s in zip(shape, byte_strides, strict=True) if s % item and extent > 1]
    if uneven and 0 not in shape:
        raise InvalidOperand(
            f"{name} (shape {tuple(shape)}) has strides of {tuple(byte_strides)} bytes, not multiples of its item's "
            f"{item} bytes. {_advice(name, copy)}"
        )
    return [s // item for s in byte_strides]


# --- one function a kind ---------------------------------------------------------------------------------------------


def _from_bytes(array: Float8Array, name: str, cupy: Any) -> Operand:
    """Owned by the whole array, so that no one takes it for an array of uint8 (gemm/warm.py)."""
    names = {"uint8": array.dtype}
    if isinstance(array.bits, np.ndarray):
        return replace(_from_numpy(array.bits, name, names), owner=array)
    if cupy is not None and isinstance(array.bits, cupy.ndarray):
        return replace(_from_cupy(array.bits, name, cupy, names), owner=array)
    raise InvalidOperand(f"{name} is a Float8Array of {type(array.bits).__name__}; its bits are NumPy's or CuPy's.")


def refuse_masked(array: Any, name: str) -> None:
    """Raise InvalidOperand for an array of numpy.ma, called `name`."""
    masked = loaded("numpy.ma")  # loaded wherever an array is masked; np.ma would load it, which takes a while
    if masked is not None and isinstance(array, masked.MaskedArray):
        advice = "Pass another out, or none." if name == "out" else f"Fill it: {name}.filled(0)."
        raise InvalidOperand(f"{name} is a masked array, and the mask would be ignored. {advice}")


def _from_numpy(array: np.ndarray, name: str, names: Mapping[str, str]) -> Operand:
    """`names`: the dtypes that are taken, by NumPy's names for them."""
    refuse_masked(array, name)
    dtype, described, _ = _numpy_type(array.dtype)
    if names is not SHORT_NAMES:
        dtype = names.get(described, "")
    if not dtype:
        raise _refuse_dtype(name, described, array.shape, f"{name}.astype(np.float32)")
    copy = f"{name}.copy()"
    strides = _element_strides(name, array.shape, array.strides, array.itemsize, copy)
    return _operand(
        name, "numpy", array.ctypes.data, array.shape, strides, dtype, copy,
        device=None, read_only=not array.flags.writeable, owner=array,
    )  # fmt: skip


def _from_torch(tensor: Any, name: str, torch: Any) -> Operand:
    if tensor.is_nested or tensor.layout != torch.strided:
        layout = "nested" if tensor.is_nested else str(tensor.layout)
        raise InvalidOperand(f"{name} is a {layout} tensor; only dense, strided ones can be multiplied.")
    shape = tuple(tensor.shape)
    if tensor.device.type not in ("cuda", "cpu"):
        raise InvalidOperand(f"{name} (shape {shape}) is on {tensor.device}. Move it to a CUDA GPU: {name}.cuda().")
    dtype = SHORT_NAMES.get(str(tensor.dtype).removeprefix("torch."), "")
    if not dtype:
        raise _refuse_dtype(name, str(tensor.dtype).removeprefix("torch."), shape, f"{name}.float()")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InvalidOperand(
            f"{name} (shape {shape}) requires a gradient, which this call does not give. Pass {name}.detach(), or call "
            "under torch.no_grad()."
        )
    duals = torch.autograd.forward_ad
    if getattr(duals, "_current_level", 0) >= 0 and duals.unpack_dual(tensor).tangent is not None:
        raise InvalidOperand(
            f"{name} (shape {shape}) has a forward-mode tangent, which would be lost. Pass "
            f"torch.autograd.forward_ad.unpack_dual({name}).primal."
        )
    if tensor.is_neg():
        raise InvalidOperand(
            f"{name} (shape {shape}) is a lazily negated view (of a conjugate). Write it out: {name}.resolve_neg()."
        )
    on_gpu = tensor.device.type == "cuda"
    ordinal = tensor.get_device() if on_gpu else None
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # a fake, meta or functorch tensor
        raise InvalidOperand(
            f"{name} (shape {shape}) has no memory that can be read: it is fake, or inside one of torch.func's "
            "transforms. For gradients use backward() or torch.autograd.grad; instead of vmap pass batches, which "
            "broadcast."
        ) from error
    return _operand(
        name, "torch", address, shape, tensor.stride(), dtype, f"{name}.contiguous()", device=ordinal,
        stream=torch_stream(torch, ordinal) if on_gpu else None, owner=tensor,
    )  # fmt: skip


def torch_stream(torch: Any, ordinal: Any) -> int:
    """torch's current stream on a GPU, as a CUstream."""
    quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the public way's time
    return quick(ordinal) if quick is not None else torch.cuda.current_stream(ordinal).cuda_stream


def _from_cupy(array: Any, name: str, cupy: Any, names: Mapping[str, str]) -> Operand:
    dtype = names.get(array.dtype.name, "")
    if not dtype:
        raise _refuse_dtype(name, array.dtype.name, array.shape, f"{name}.astype(cupy.float32)")
    copy = f"{name}.copy()"
    strides = _element_strides(name, array.shape, array.strides, array.itemsize, copy)
    ordinal = int(array.device.id)
    return _operand(
        name, "cupy", int(array.data.ptr), array.shape, strides, dtype, copy, device=ordinal,
        stream=int(cupy.cuda.get_current_stream(ordinal).ptr), owner=array,
    )  # fmt: skip


def _from_dlpack(value: Any, name: str, kind: str, stream: int) -> Operand:
    tensor = dlpack.take(value, name, stream)
    if tensor.dtype not in DTYPE_NAMES:
        raise _refuse_dtype(name, tensor.dtype, tensor.shape, f"{name}.astype('float32')")
    return _operand(
        name, kind, tensor.address, tensor.shape, tensor.strides, tensor.dtype, f"{name}.copy()",
        device=tensor.device, read_only=tensor.read_only or kind == "jax", owner=(value, tensor),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _numpy_type(described: Any) -> tuple[str, str, int]:
    """(our short name or "", NumPy's, bytes of an item) of a dtype or a type string. NumPy takes 3 us for a name."""
    kind = np.dtype(described)
    name = kind.name if kind.isnative else str(described)  # the name hides the byte order
    return SHORT_NAMES.get(kind.name, "") if kind.isnative else "", name, kind.itemsize


def _from_interface(value: Any, name: str, interface: Mapping[str, Any]) -> Operand:
    shape = tuple(interface["shape"])
    if interface.get("version", 0) < 2:
        raise InvalidOperand(
            f"{name} offers __cuda_array_interface__ version {interface.get('version')}; 2 and 3 are read here."
        )
    if interface.get("mask") is not None:
        raise InvalidOperand(f"{name} (shape {shape}) carries a mask, which would be ignored. Fill it first.")
    dtype, described, item = _numpy_type(interface["typestr"])
    if not dtype:
        raise _refuse_dtype(name, described, shape, f"{name}.astype('float32')")
    copy = f"{name}.copy()"
    byte_strides = interface.get("strides")
    if byte_strides is None:
        strides: Sequence[int] = dlpack.dense_strides(shape)
    else:
        strides = _element_strides(name, shape, byte_strides, item, copy)
    address, read_only = interface["data"]
    stream = interface.get("stream")
    if stream == 0:
        raise InvalidOperand(f"{name} names stream 0 in __cuda_array_interface__, which its version 3 forbids.")
    if stream == 1:  # the legacy default stream; a launch names it 0
        stream = 0
    # the interface does not say which GPU the memory is on
    ordinal = device_calls.ordinal_of(int(address)) if address else 0
    return _operand(
        name, "cuda_array_interface", int(address or 0), shape, strides, dtype, copy,
        device=ordinal, read_only=bool(read_only), stream=stream, owner=value,
    )  # fmt: skip
