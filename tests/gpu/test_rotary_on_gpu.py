"""Rotary positions on a GPU, against torch's operations in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.gpu

import tilewright.torch as tt  # noqa: E402
from tilewright.lab.block_models import apply_rotary_pos_emb  # noqa: E402

DTYPES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def values(dtype, batch, heads, shared, rows, d, angles, entries):
    q, k = (
        torch.randn(batch, rows, count, d, device="cuda").to(dtype).transpose(1, 2).requires_grad_()
        for count in (heads, shared)
    )
    turns = 6.3 * torch.rand(entries, rows, d, device="cuda")
    return q, k, turns.cos().to(angles), turns.sin().to(angles)


@pytest.mark.parametrize("own", [False, True], ids=["angles in fp32", "angles in x's type"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "sizes", [(2, 32, 8, 1024, 64, 1), (3, 5, 1, 77, 128, 3), (1, 3, 2, 9, 80, 1), (2, 1, 1, 5, 6, 2)]
)
def test_values_and_gradients_are_right_the_first_time_and_from_memory(sizes, dtype, own):
    *shape, entries = sizes
    for _ in range(3):
        q, k, cos, sin = values(dtype, *shape, dtype if own else torch.float32, entries)
        exact = [one.detach().double().requires_grad_() for one in (q, k)]
        right = apply_rotary_pos_emb(*exact, cos.double(), sin.double())
        found = tt.rotary(q, k, cos, sin)
        seeds = [torch.randn_like(one) for one in found]
        wanted = torch.autograd.grad(right, exact, [one.double() for one in seeds])
        for one, two in zip((*found, *torch.autograd.grad(found, (q, k), seeds)), (*right, *wanted), strict=True):
            assert one.dtype == dtype
            assert ((one.double() - two).abs() <= DTYPES[dtype] * (two.abs() + 3)).all()


def test_rows_are_turned_in_a_graph_and_on_a_side_stream():
    q, k, cos, sin = values(torch.bfloat16, 2, 4, 2, 64, 64, torch.bfloat16, 1)
    with torch.no_grad():
        tt.rotary(q, k, cos, sin)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = tt.rotary(q, k, cos, sin)
        q.copy_(torch.randn_like(q))
        graph.replay()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            again = tt.rotary(q, k, cos, sin)
        torch.cuda.synchronize()
        for one, two in zip(found, again, strict=True):
            assert torch.equal(one, two)
