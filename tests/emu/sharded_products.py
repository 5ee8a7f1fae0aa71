"""What each of two processes checks of tensors that they share (test_torch_distributed.py starts them)."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)  # fmt: skip

import tilewright as tw
import tilewright.torch as tt
from tilewright.epilogue import silu


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed))


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    whole = found.full_tensor() if isinstance(found, DTensor) else found
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)


def products(mesh) -> None:
    a, b = tensor(6, 10, 8), tensor(8, 12)
    for of_a, of_b, of_out in (
        (Replicate(), Replicate(), Replicate()), (Shard(0), Replicate(), Shard(0)), (Shard(1), Replicate(), Shard(1)),
        (Replicate(), Shard(1), Shard(2)), (Shard(2), Shard(0), Partial()),
    ):  # fmt: skip
        out = tt.matmul(distribute_tensor(a, mesh, [of_a]), distribute_tensor(b, mesh, [of_b]))
        assert out.placements == (of_out,), (of_a, of_b, out.placements)
        same(out, a @ b)
    batch = tensor(6, 8, 12)
    out = tt.matmul(distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(batch, mesh, [Shard(0)]))
    assert out.placements == (Shard(0),)
    same(out, a @ batch)
    half = tt.matmul(distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Replicate()]),
                     out_dtype=torch.bfloat16)  # fmt: skip
    assert half.dtype == half.to_local().dtype == torch.bfloat16


def fused(mesh) -> None:
    a, b, bias, gate = tensor(10, 8), tensor(8, 12), tensor(12), tensor(10, 12)

    def shared(of_a, of_b, of_bias, of_gate, epilogue):
        return tt.matmul(
            distribute_tensor(a, mesh, [of_a]), distribute_tensor(b, mesh, [of_b]), epilogue=epilogue,
            bias=distribute_tensor(bias, mesh, [of_bias]), gate=distribute_tensor(gate, mesh, [of_gate]),
        )  # fmt: skip

    expected = torch.nn.functional.silu(a @ b + bias) * gate
    for of_a, of_b, of_bias, of_gate in (
        (Shard(0), Replicate(), Replicate(), Shard(0)), (Replicate(), Shard(1), Shard(0), Shard(1)),
        (Shard(1), Shard(0), Replicate(), Replicate()),
    ):  # fmt: skip
        out = shared(of_a, of_b, of_bias, of_gate, lambda acc, bias, gate: silu(acc + bias) * gate)
        assert not any(isinstance(one, Partial) for one in out.placements), "an activation of a part of the sum"
        same(out, expected)
    out = shared(Shard(0), Replicate(), Replicate(), Shard(0), lambda acc, bias, gate, row: (acc + bias) * gate + row)
    same(out, (a @ b + bias) * gate + torch.arange(10.0)[:, None])


class Layer(nn.Linear):
    """tt.Linear leaves a CPU's tensors to torch; this one does not."""

    activation = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = tt.matmul(x, self.weight.t(), bias=self.bias, activation=self.activation)
        LAID.append(getattr(result, "placements", None))
        return result


LAID: list = []


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = Layer(8, 16)
        self.up.activation = "silu"
        self.down = Layer(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.norm(x)))


def parallel_layers(mesh, rank: int) -> None:
    torch.manual_seed(3)
    alone, shared = Block(), Block()
    shared.load_state_dict(alone.state_dict())
    x = tensor(2, 6, 8)
    expected = alone(x)
    expected.square().sum().backward()
    for sequence in (False, True):
        shared.zero_grad()
        model = Block()
        model.load_state_dict(alone.state_dict())
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {
                "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            }  # fmt: skip
        model = parallelize_module(model, mesh, plan)
        given = x.chunk(2, 1)[rank] if sequence else x
        LAID.clear()
        out = model(given)
        assert LAID[0] == (Shard(2),), "columns of the first weight"
        assert LAID[1] in ((Partial(),), (Replicate(),)), "k of the second: nothing is gathered, parts are summed"
        same(out, expected.chunk(2, 1)[rank] if sequence else expected)
        out.square().sum().backward()
        for name, parameter in model.named_parameters():
            if name.startswith("norm") and sequence:
                continue  # a rank's own part of the rows: the trainer sums them
            same(parameter.grad, dict(alone.named_parameters())[name].grad)


def attention(mesh) -> None:
    """On the emulator: it has no kernel of torch's to fall back to."""
    q, k, v = (tensor(2, heads, 20, 32, seed=heads).bfloat16() for heads in (4, 2, 2))
    mask = tensor(1, 4, 20, 20).bfloat16()
    lists = [x.clone().requires_grad_() for x in (q, k, v)]
    expected, weights = tt.attention(*lists, is_causal=True), tensor(2, 4, 20, 32, seed=9).bfloat16()
    (expected * weights).sum().backward()
    with_mask = tt.attention(q, k, v, bias=mask)
    for placement, of_mask in ((Replicate(), Replicate()), (Shard(0), Replicate()), (Shard(1), Shard(1))):
        shared = [distribute_tensor(x, mesh, [placement]).requires_grad_() for x in (q, k, v)]
        out = tt.attention(*shared, is_causal=True)
        assert out.placements == (placement,)
        same(out.float(), expected.float())
        (out * distribute_tensor(weights, mesh, [placement])).sum().backward()
        for one, whole in zip(shared, lists, strict=True):
            assert one.grad.placements == (placement,)
            torch.testing.assert_close(one.grad.full_tensor(), whole.grad, rtol=0.02, atol=0.02)
        found = tt.attention(*(x.detach() for x in shared), bias=distribute_tensor(mask, mesh, [of_mask]))
        assert found.placements == (placement,)
        same(found.float(), with_mask.float())
    one_head = [distribute_tensor(x, mesh, [Shard(1)]) for x in (q, k[:, :1].contiguous(), v[:, :1].contiguous())]
    found = tt.attention(*one_head)  # one head of K: whole on each GPU, and Q with it
    same(found.float(), tt.attention(q, k[:, :1], v[:, :1]).float())


def main(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    products(mesh)
    fused(mesh)
    parallel_layers(mesh, rank)
    with tw.emulator():
        attention(mesh)
    dist.destroy_process_group()
    print("right")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
