"""A layer whose weights two or more processes share, beside the same layer in one process.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

On GPUs each process takes one (NCCL); without GPUs they share the CPU (gloo), and torch multiplies.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tilewright.torch as tt

WIDTH, HIDDEN = 64, 256


class FeedForward(nn.Module):
    """Two products; the activation is part of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.up = tt.Linear(WIDTH, HIDDEN, activation="silu")
        self.down = tt.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x))


def main() -> None:
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    kind = "cuda" if on_gpu else "cpu"
    dist.init_process_group("nccl" if on_gpu else "gloo")
    if on_gpu:
        torch.cuda.set_device(dist.get_rank())
    mesh = init_device_mesh(kind, (dist.get_world_size(),))

    torch.manual_seed(0)  # the same weights and rows in every process
    layer = FeedForward().to(kind)
    x = torch.randn(8, WIDTH, device=kind)
    expected = layer(x)

    # Each process keeps some columns of the first weight, and the rows of the second that meet them.
    layer = parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    out = layer(x)
    out.square().mean().backward()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    if dist.get_rank() == 0:
        share = tuple(layer.up.weight.to_local().shape)
        print(f"right on {dist.get_world_size()} processes ({kind}); the first weight's share is {share}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
