"""Products that wait for one another: a launch may start under the one ahead of it, and must see all of its result."""

from __future__ import annotations

from itertools import pairwise

import pytest

import tilewright as tw

pytestmark = pytest.mark.gpu


def test_a_chain_of_dependent_products_gives_the_same_bits_as_one_at_a_time(torch):
    turn = torch.linalg.qr(torch.randn(256, 256, device="cuda"))[0]
    chain = [torch.randn(256, 256, device="cuda")] + [torch.empty(256, 256, device="cuda") for _ in range(40)]

    def run(wait: bool) -> None:
        for source, target in pairwise(chain):
            tw.matmul(source, turn, out=target)
            if wait:
                torch.cuda.synchronize()

    run(True)
    expected = [link.clone() for link in chain]
    for _ in range(50):
        for link in chain[1:]:
            link.fill_(float("nan"))
        run(False)
        torch.cuda.synchronize()
        assert all(torch.equal(link, other) for link, other in zip(chain, expected, strict=True))


def test_a_chain_replayed_from_a_graph_gives_the_same_bits(torch):
    turn = torch.linalg.qr(torch.randn(256, 256, device="cuda"))[0]
    chain = [torch.randn(256, 256, device="cuda")] + [torch.empty(256, 256, device="cuda") for _ in range(40)]

    def run() -> None:
        for source, target in pairwise(chain):
            tw.matmul(source, turn, out=target)

    run()
    torch.cuda.synchronize()
    expected = [link.clone() for link in chain]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(50):
        for link in chain[1:]:
            link.fill_(float("nan"))
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(link, other) for link, other in zip(chain, expected, strict=True))
