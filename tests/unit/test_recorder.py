"""The recorder: which lanes of one block touch what, what mbarriers hold, and that it changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.emu.recorder import Recorder
from tilewright.emu.session import Emulator
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import find_rung
from tilewright.lab.ladder import Step, climb_on_emulator, prepare


def recorded(name: str, size: tuple[int, int, int], block: int = 0, most: int = 20_000):
    rung = find_rung(name)
    recorder = Recorder(block, most)
    machine = Emulator("H200", recorder=recorder)
    step = Step(rung, rung.default, GemmProblem.dense(*size, dtype="bf16" if "bf16" in rung.dtypes else "f32"))
    assert step.run_checked(step.compile(machine.arch), machine, prepare(step.problem)).ok
    return recorder, machine


def only(recorder: Recorder, opcode: str):
    return [event for event in recorder.events if event.instruction.opcode.startswith(opcode)]


def test_a_store_of_each_element_by_its_thread_is_recorded():
    recorder, _ = recorded("f02", (64, 64, 8), block=3)
    (store,) = only(recorder, "st.global")
    (access,) = store.accesses
    start, _ = recorder.buffers["out"]
    at = access.addresses - start
    row, column = at // (64 * 4) - 256 // 64, at // 4 % 64
    assert (access.lanes == np.arange(1024)).all()
    assert (row == 32 + access.lanes // 32).all(), "block 3 is the last of four"
    assert (column == 32 + access.lanes % 32).all()


def test_counts_are_the_same_with_a_recorder():
    _, machine = recorded("f09", (64, 128, 32))
    rung = find_rung("f09")
    (record,) = climb_on_emulator([Step(rung, rung.default, GemmProblem.dense(64, 128, 32))], machine.gpu)
    counters = machine.last.counters.to_dict()
    assert {k: v for k, v in record["result"]["counters"].items() if k in counters} == {
        k: counters[k] for k in record["result"]["counters"] if k in counters
    }


def test_a_copy_has_both_sides_and_a_wait_what_it_leaves():
    recorder, _ = recorded("h09", (128, 128, 64))
    copy, wait = only(recorder, "cp.async.cg")[0], only(recorder, "cp.async.wait_group")[0]
    to, source = copy.accesses
    assert (to.space, to.writes, source.space, source.writes) == ("shared", True, "global", False)
    assert to.nbytes == source.nbytes == 16
    assert len(to.lanes) == len(source.lanes) == 128
    assert wait.told["left"] == 0


def test_a_ring_of_mbarriers_shows_arrivals_and_bytes_under_way():
    recorder, _ = recorded("h15", (128, 256, 128))
    expect = only(recorder, "mbarrier.arrive.expect_tx")[0]
    (place,) = expect.told["mbarrier"]
    states = {state[0]: state[1:] for state in expect.mbarriers}
    phase, pending, expected, missing = states[place]
    assert (phase, pending, expected) == (0, 0, 1)
    assert missing == (128 + 256) * 64 * 2
    boxes = [box for event in only(recorder, "cp.async.bulk.tensor") for box in event.told["boxes"]]
    loads = [box for box in boxes if box["mbarrier"] == place]
    assert sum(box["bytes"] for box in loads) == missing
    assert all(box["swizzle"] for box in loads)
    last = {state[0]: state[1:] for state in recorder.events[-1].mbarriers}
    assert last[place][0] == 1
    assert last[place][3] == 0


def test_products_of_a_warpgroup_name_their_operands():
    recorder, _ = recorded("h12", (128, 256, 64))
    product = only(recorder, "wgmma.mma_async")[0]
    operands = product.told["operands"]
    assert len(operands) == 2, "two warpgroups"
    assert {row for pair in operands for _, row in pair} == {128}
    assert operands[0][1] == operands[1][1], "B is shared"
    assert operands[0][0] != operands[1][0]


def test_what_is_beyond_the_most_is_counted():
    recorder, _ = recorded("f02", (64, 64, 8), most=5)
    assert len(recorder.events) == 5
    assert recorder.left_out == 17 - 5


@pytest.mark.parametrize("block", [7])
def test_a_block_that_is_not_there_leaves_nothing(block):
    recorder, _ = recorded("f02", (64, 64, 8), block=block)
    assert not recorder.events
