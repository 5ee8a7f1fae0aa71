"""A peer in Triton: a persistent matmul of ours, with the tiles that suit the problem best."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...arrays.dtypes import ITEM_BYTES
from ...errors import ConfigRejected, MissingDependency, install
from ...jit.timing import Start
from ..ground import Buffers, Ground
from ..reference import torch_stream
from .entrant import Contender, Entrant, Peer

GET = install("triton")
TILES = (
    # tile_m, tile_n, tile_k, warps, stages
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4),
    (128, 64, 64, 4, 5), (64, 128, 64, 4, 5), (64, 64, 64, 4, 5), (64, 64, 32, 4, 4), (64, 32, 32, 4, 4),
)  # fmt: skip
FP32_TILES = ((128, 128, 16, 8, 3), (128, 64, 16, 8, 3), (64, 64, 16, 4, 3), (32, 64, 16, 4, 3))
"""By fused multiply-adds: Triton's tf32 would be another product."""
GROUP_M = 8


def _enter(ground: Ground) -> Contender:
    problem = ground.problem
    try:
        torch, triton = import_module("torch"), import_module("triton")
        descriptor = import_module("triton.tools.tensor_descriptor").TensorDescriptor
    except ImportError as error:
        raise MissingDependency(f"Triton is not installed ({error}). Install it with: {GET}") from error
    for name, matrix, rows, cols, dtype in (
        ("A", problem.a, problem.m, problem.k, problem.dtype), ("B", problem.b, problem.k, problem.n, problem.dtype),
        ("out", problem.out, problem.m, problem.n, problem.out_dtype),
    ):  # fmt: skip
        width = matrix.vector_bytes(rows, cols, ITEM_BYTES[dtype])
        if matrix.unit(rows, cols) == "none" or width < 16:
            raise ConfigRejected(f"tensor descriptors need lines at multiples of 16 bytes; {name}'s allow {width}.")
    kernel = import_module(f"{__package__}.triton_kernel").matmul
    ordinal, of_a, of_b = ground.where.ordinal, problem.layout[0] == "t", problem.layout[1] == "t"

    def candidate(tile_m: int, tile_n: int, tile_k: int, warps: int, stages: int) -> Entrant:
        a_block = [tile_k, tile_m] if of_a else [tile_m, tile_k]
        b_block = [tile_n, tile_k] if of_b else [tile_k, tile_n]

        def prepare(buffers: Buffers) -> Start:
            views = [torch.from_dlpack(array) for array in (buffers.a, buffers.b, buffers.out)]
            tiles = [
                descriptor.from_tensor(view, block)
                for view, block in zip(views, (a_block, b_block, [tile_m, tile_n]), strict=True)
            ]
            count = min(-(-problem.m // tile_m) * -(-problem.n // tile_n), ground.where.gpu.sm_count)

            def launch(stream: int) -> Any:
                with torch.cuda.stream(torch_stream(torch, stream, ordinal)):
                    kernel[(count,)](
                        *tiles, problem.m, problem.n, problem.k, TILE_M=tile_m, TILE_N=tile_n, TILE_K=tile_k,
                        GROUP_M=GROUP_M, PROGRAMS=count, A_TURNED=of_a, B_TURNED=of_b, num_warps=warps,
                        num_stages=stages,
                    )  # fmt: skip

            return launch

        config = {"tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k, "warps": warps, "stages": stages}
        text = f"{tile_m}x{tile_n}x{tile_k} {warps} warps {stages} stages"
        return Entrant(text, prepare, config)

    tried = FP32_TILES if problem.dtype == "f32" else TILES
    return Contender(f"Triton {triton.__version__}", [candidate(*tiles) for tiles in tried])


TRITON = Peer("triton", "a persistent matmul of ours in Triton", _enter)
