"""A CUDA driver of one GPU, made of Python: what it says of the board, and nothing that runs."""

from __future__ import annotations

import types

from tilewright.jit import device as device_module

_ASKED = (
    "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MULTIPROCESSOR_COUNT", "L2_CACHE_SIZE",
    "MEMORY_CLOCK_RATE", "GLOBAL_MEMORY_BUS_WIDTH", "CLOCK_RATE",
)  # fmt: skip


class Board:
    """The driver. Clocks in kHz, the bus in bits, L2 in bytes, as the driver has them."""

    CUdevice_attribute = types.SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{name}": name for name in _ASKED})

    def __init__(self, name, capability, sms, l2, memory_khz, bus, khz, cuda) -> None:
        self.name, self.cuda = name, cuda
        self.attributes = dict(zip(_ASKED, (*capability, sms, l2, memory_khz, bus, khz), strict=True))

    def cuDriverGetVersion(self):
        return 0, self.cuda

    def cuDeviceGetCount(self):
        return 0, 1

    def cuDeviceGet(self, ordinal):
        return 0, ordinal

    def cuDeviceGetName(self, length, handle):
        return 0, self.name.encode() + b"\0"

    def cuDeviceGetAttribute(self, key, handle):
        return 0, self.attributes[key]

    def cuDevicePrimaryCtxRetain(self, handle):
        return 0, 1


def board(monkeypatch, name, capability, sms, l2, memory_khz, bus, khz, cuda=13000) -> None:
    """Let this process find this GPU, and a driver that serves this version of CUDA."""
    found = Board(name, capability, sms, l2, memory_khz, bus, khz, cuda)
    monkeypatch.setattr(device_module, "driver", lambda: found)
    if hasattr(device_module.device, "__wrapped__"):
        monkeypatch.setattr(device_module, "device", device_module.device.__wrapped__)


def old_board(monkeypatch) -> None:
    board(monkeypatch, "Tesla T4", (7, 5), 40, 4 << 20, 5001000, 256, 1590000)
