"""The emulator: runs PTX on a machine with no GPU, counts what it does, and refuses what a GPU punishes."""

from ..jit.tensor_map import TensorMap
from .api import EmuResult, run
from .hazards import Hazard
from .memory import GlobalMemory
from .own_kernel import EmulateResult, emulate
from .parameters import Struct
from .python_kernels import emulate_cupy, emulate_numba
from .session import Emulator, emulator
from .textures import Surface, Texture
from .trace import Counters, InstructionRow
from .triton_kernel import emulate_triton

__all__ = [
    "Counters",
    "EmuResult",
    "EmulateResult",
    "Emulator",
    "GlobalMemory",
    "Hazard",
    "InstructionRow",
    "Struct",
    "Surface",
    "TensorMap",
    "Texture",
    "emulate",
    "emulate_cupy",
    "emulate_numba",
    "emulate_triton",
    "emulator",
    "run",
]
