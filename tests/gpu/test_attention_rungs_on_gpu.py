"""Every attention rung on the GPU: right against float64 at every kind of shape, outputs whole, guard bands intact."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.attn.config import D_HEADS
from tilewright.attn.hopper import HOPPER_RUNGS, ONLY_ON, HopperConfig
from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import ATTENTION_RUNGS, find_attention_rung
from tilewright.jit.device import bound_to
from tilewright.jit.gpu_executor import executor_for
from tilewright.lab.attention import AttentionStep, prepare_attention, run_attention_checked
from tilewright.lab.attention_gpu import launches_of, make_buffers

pytestmark = pytest.mark.gpu

RUNGS = [rung.id for rung in (*ATTENTION_RUNGS, *HOPPER_RUNGS)]
SHAPES = [  # batch, query heads, key heads, queries, keys
    (1, 1, 1, 1, 1), (2, 4, 2, 17, 200), (1, 3, 1, 333, 200), (2, 2, 2, 256, 512), (1, 2, 1, 700, 701),
    (3, 1, 1, 128, 64),
]  # fmt: skip


def verdict(rung: str, shape: tuple[int, ...], d_head: int, config: HopperConfig | None = None, **options):
    batch, heads_q, heads_kv, seq_q, seq_k = shape
    problem = AttentionProblem.dense(batch, heads_q, seq_q, seq_k, d_head, heads_kv=heads_kv, with_lse=True, **options)
    executor, chosen = executor_for(0), find_attention_rung(rung)
    if chosen in HOPPER_RUNGS and executor.arch.name != ONLY_ON:
        pytest.skip(f"{chosen} runs on {ONLY_ON} alone")
    step = AttentionStep(chosen, config or chosen.default(problem, executor.arch), problem)
    kernel = chosen.compile(problem, step.config, executor.arch)
    return run_attention_checked(step, kernel, executor, prepare_attention(problem))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_is_right_and_stays_inside(rung, shape, is_causal):
    found = verdict(rung, shape, d_head=128, dtype="f16" if shape[0] == 2 else "bf16", is_causal=is_causal)
    assert found.ok, found.reason


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("d_head", D_HEADS)
@pytest.mark.parametrize("rung", ["a03", "a07", "a09", "a17", "a20", "a23"])
def test_every_head_size_is_right(rung, d_head, is_causal):
    found = verdict(rung, (2, 4, 2, 130, 257), d_head=d_head, dtype="bf16", is_causal=is_causal)
    assert found.ok, found.reason


@pytest.mark.parametrize("scale", [-0.3, 0.0, 0.5, 3.0])
@pytest.mark.parametrize("rung", ["a01", "a17", "a21"])
def test_every_scale_is_right(rung, scale):
    found = verdict(rung, (1, 2, 2, 300, 300), d_head=64, dtype="f16", scale=scale)
    assert found.ok, found.reason


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("turns", ["", "products", "exponentials"])
@pytest.mark.parametrize("tile", [(64, 128), (128, 80), (128, 176), (192, 64)], ids=str)
@pytest.mark.parametrize("rung", ["a21", "a22", "a23"])
def test_every_turn_and_number_of_warpgroups_is_right(rung, tile, turns, is_causal):
    if tile[0] == 64 and turns:
        pytest.skip("one warpgroup takes no turns")
    config = HopperConfig(128, *tile, 2, turns)
    found = verdict(rung, (3, 8, 2, 1100, 1300), d_head=128, config=config, is_causal=is_causal)
    assert found.ok, found.reason


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("d_head", "d_v", "b_c"), [(192, 128, 128), (64, 128, 96), (128, 64, 128), (96, 32, 80)])
@pytest.mark.parametrize("rung", ["a18", "a21", "a24"])
def test_values_of_another_width_than_keys_are_right(rung, d_head, d_v, b_c, is_causal):
    config = HopperConfig(d_head, 128, b_c, 1 if d_head > 128 else 2, d_v=d_v)
    found = verdict(rung, (2, 4, 2, 300, 457), d_head=d_head, config=config, is_causal=is_causal, d_v=d_v)
    assert found.ok, found.reason


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("d_head", "b_r", "b_c"), [(64, 128, 128), (64, 192, 64), (128, 128, 112)])
def test_room_for_the_next_q_changes_no_result(d_head, b_r, b_c, is_causal):
    config = HopperConfig(d_head, b_r, b_c, 2, "products", 2)
    for shape in ((30, 8, 2, 500, 500), (2, 8, 8, 1100, 1300)):
        found = verdict("a24", shape, d_head=d_head, config=config, is_causal=is_causal)
        assert found.ok, found.reason


@pytest.mark.parametrize("rung", RUNGS)
def test_the_same_call_gives_the_same_bits(rung):
    problem = AttentionProblem.dense(4, 16, 1000, 1000, 128, is_causal=True)
    executor, chosen = executor_for(0), find_attention_rung(rung)
    if chosen in HOPPER_RUNGS and executor.arch.name != ONLY_ON:
        pytest.skip(f"{chosen} runs on {ONLY_ON} alone")
    step = AttentionStep(chosen, chosen.default(problem, executor.arch), problem)
    buffers = make_buffers(problem, 0, 0)
    (launch,) = launches_of(step, chosen.compile(problem, step.config, executor.arch), [buffers], 0)
    results = []
    for fill in (0xFF, 0x00, 0xFF):
        executor.write(buffers.out.address, np.full(buffers.out.nbytes, fill, np.uint8))
        with bound_to(0):
            launch(executor.stream)
        results.append(executor.download(buffers.out.address, buffers.out.nbytes))
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


@pytest.mark.parametrize("rung", ["a22", "a23", "a24"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_launches_one_after_another_end_where_a_warpgroup_has_no_rows(rung, is_causal):
    """512 rows in tiles of 192: the third warpgroup of the last tile only lets keys pass. One warp of it could be left
    behind for good."""
    problem = AttentionProblem.dense(32, 32, 512, 512, 64, is_causal=is_causal)
    executor, chosen = executor_for(0), find_attention_rung(rung)
    if executor.arch.name != ONLY_ON:
        pytest.skip(f"{chosen} runs on {ONLY_ON} alone")
    step = AttentionStep(chosen, chosen.default(problem, executor.arch), problem)
    assert step.config.b_r == 192
    buffers = make_buffers(problem, 0, 0)
    (launch,) = launches_of(step, chosen.compile(problem, step.config, executor.arch), [buffers], 0)
    results = []
    for _ in range(3):
        executor.write(buffers.out.address, np.full(buffers.out.nbytes, 0xFF, np.uint8))
        with bound_to(0):
            for _ in range(60):
                launch(executor.stream)
        results.append(executor.download(buffers.out.address, buffers.out.nbytes))
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()
