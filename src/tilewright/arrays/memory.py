"""The memory of this process, to read other libraries' structures of C by address."""

from __future__ import annotations

import ctypes

WORDS = memoryview((ctypes.c_uint64 * (1 << 53)).from_address(0)).cast("B").cast("q")
"""WORDS[address >> 3] is the word of 64 bits at a multiple of 8, as a signed number. It takes a tenth of the time of
ctypes.string_at and struct. Only addresses that are this process's may be read, as everywhere in C."""
LOW = (1 << 32) - 1
"""word & LOW is the first of two fields of 32 bits, word >> 32 the second."""
