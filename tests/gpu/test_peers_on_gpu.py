"""Every peer that is installed makes right products, in every type and layout, without a write beside its output."""

from __future__ import annotations

import pytest

from tilewright.errors import MissingDependency
from tilewright.gemm.problem import GemmProblem
from tilewright.jit.device import device
from tilewright.lab.ground import Ground
from tilewright.lab.peers import PEERS
from tilewright.lab.peers.compete import hold_race
from tilewright.lab.peers.entrant import judge
from tilewright.lab.reference import find_reference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.id)
def test_a_peer_is_right(peer, dtype, layout):
    problem = GemmProblem.dense(264, 136, 72, layout=layout, dtype=dtype)  # no tile divides these; 16 bytes do
    ground = Ground(problem, device(0), find_reference(0)[0])
    try:
        entry = peer.enter(ground)
    except MissingDependency as error:
        pytest.skip(str(error))
    field = hold_race(entry, ground)
    assert all("esource" in reason for reason in field.refused.values()), field.refused  # too much shared memory, only
    assert field.best
    for candidate in field.best:
        verdict = judge(candidate, ground)
        assert verdict.ok, f"{candidate.text}: {verdict.reason}"
