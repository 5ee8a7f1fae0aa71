"""The boards and architectures under the name that callers know: see gpus.py."""

from .gpus import ARCHS, DEFAULT_GPU, GPUS, Arch, Gpu, arch_of, find_arch, find_gpu

__all__ = ["ARCHS", "DEFAULT_GPU", "GPUS", "Arch", "Gpu", "arch_of", "find_arch", "find_gpu"]
