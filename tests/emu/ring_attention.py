"""What each of two processes checks of attention over a shared context (test_torch_distributed.py starts them)."""

from __future__ import annotations

import math
import sys

import torch
import torch.distributed as dist

import tilewright as tw
import tilewright.torch as tt

ROWS = 20


def formula(q, k, v, is_causal):
    """(out, lse) in float64."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    s = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    if is_causal:
        s = s.masked_fill(torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1), -math.inf)
    return s.softmax(-1) @ v, s.logsumexp(-1)


def check(rank: int, is_causal: bool, zigzag: bool, group=None, runs: int = 1) -> None:
    generator = torch.Generator().manual_seed(5)
    whole = [torch.randn((1, heads, ROWS, 32), generator=generator).bfloat16() for heads in (2, 1, 1, 2)]
    weights = torch.randn((1, 2, ROWS), generator=generator)  # of the LSE
    exact = [x.double().requires_grad_() for x in whole[:3]]
    out, lse = formula(*exact, is_causal)
    right = torch.autograd.grad((out * whole[3].double()).sum() + (lse * weights).sum(), exact)
    own = tt.context_rows(ROWS, 2, rank, zigzag)
    found = []
    for _ in range(runs):
        mine = [x[:, :, own].clone().requires_grad_() for x in whole[:3]]
        part, part_lse = tt.ring_attention(*mine, group, is_causal=is_causal, zigzag=zigzag, return_lse=True)
        gradients = torch.autograd.grad(
            (part.float() * whole[3][:, :, own]).sum() + (part_lse * weights[:, :, own]).sum(), mine
        )
        found.append([part.detach(), part_lse.detach(), *gradients])
    assert all(torch.equal(one, other) for one, other in zip(found[0], found[-1], strict=True)), "not the same bits"
    for one, expected in zip(found[0], (out, lse, *right), strict=True):
        expected = expected[:, :, own].detach()
        torch.testing.assert_close(one.double(), expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


def main(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    with tw.emulator():
        check(rank, False, False)
        check(rank, True, False)
        check(rank, True, True, dist.new_group([0, 1]), runs=2)
    dist.destroy_process_group()
    print("right")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
