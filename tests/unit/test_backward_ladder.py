"""The gradients of attention as data: configs and their grammar, what rungs refuse, the packed parameters."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.attn import backward_kernels
from tilewright.attn.backward_config import BackwardConfig, Tile, walks_of
from tilewright.attn.backward_kernels import _ARGS, WalkKernel, parts_of, section_of
from tilewright.attn.backward_plan import plan_backward
from tilewright.attn.backward_problem import BackwardProblem
from tilewright.attn.backward_rungs import BACKWARD_RUNGS, find_backward_rung
from tilewright.attn.backward_stages import backward_program
from tilewright.attn.config import D_HEADS
from tilewright.attn.problem import AttentionProblem, HeadRows
from tilewright.errors import ConfigRejected
from tilewright.gpus import find_arch
from tilewright.jit import nvrtc
from tilewright.jit.compile import BASE_OPTIONS
from tilewright.jit.params import _fields
from tilewright.jit.source import CUDA_ROOT, render

H200, A100, ADA = (find_arch(name) for name in ("sm_90a", "sm_80", "sm_89"))


def problem(d=64, seq=300, **options):
    p = AttentionProblem.dense(1, 2, seq, seq, d, **options)
    return BackwardProblem(p, p.q, p.q, p.k, p.v, (2 * seq, seq, 1))


@pytest.mark.parametrize(
    "text",
    [
        "d128: keys 128x64/8, queries 128x64/8", "d64: keys 64x64/4+buffer+2_blocks, sums 4",
        "d256: apart keys 64x32/4, queries 64x32/4+3_blocks", "d96 in 128: keys 128x64/8, sums 4 in order",
    ],
)  # fmt: skip
def test_a_config_reads_back_what_it_prints(text):
    assert str(BackwardConfig.parse(text)) == text


@pytest.mark.parametrize("text", ["keys 128x64/8, sums 4", "d64: keys 128x64/8", "d64: keys 128x64, sums 4", ""])
def test_another_text_is_refused(text):
    with pytest.raises(ConfigRejected, match="not a backward config"):
        BackwardConfig.parse(text)


@pytest.mark.parametrize("arch", [H200, A100, ADA], ids=str)
@pytest.mark.parametrize("d", D_HEADS)
def test_every_head_size_has_a_deterministic_plan_on_every_gpu(arch, d):
    plan = plan_backward(problem(d), arch, True)
    assert plan.config.deterministic
    assert plan.rung.why_not(problem(d), plan.config, arch) is None


@pytest.mark.parametrize("rung", BACKWARD_RUNGS, ids=str)
@pytest.mark.parametrize("d", D_HEADS)
def test_every_rung_has_a_config_for_every_head_size(rung, d):
    if d not in {config.d_head for config in rung.defaults}:
        assert rung.wgmma or rung.alone
        assert d not in rung.planned or rung.planned == D_HEADS
        with pytest.raises(ConfigRejected, match=f"cannot run d_head={d}"):
            rung.default(problem(d), H200)
        return
    assert rung.default(problem(d, seq=60), H200).d_head == d
    assert all(config.why_not() is None for config in rung.defaults)


@pytest.mark.parametrize(
    ("rung", "text", "reason"),
    [
        ("b01", "d32 in 64: keys 64x32/4, queries 64x32/4", "TMA alone fills the columns after a row"),
        ("b02", "d96 in 128: keys 64x32/4, sums 2", "TMA alone fills the columns after a row"),
        ("b03", "d32 in 64: keys 128x128/8, sums 8", "TMA alone fills the columns after a row"),
        ("b07", "d32 in 64: keys 64x32/4, sums 2 in order", "TMA alone fills the columns after a row"),
        ("b07", "d64: apart keys 64x32/4, sums 2", "its walk makes all gradients"),
        ("b02", "d64: keys 64x32/4+1_stages, sums 2", "takes 2 stages; it has 1"),
        ("b04", "d64: keys 128x128/8+1_stages, sums 8", "takes 2 stages; it has 1"),
        ("b06", "d64: apart keys 128x64/8, queries 128x64/8+0_stages", "takes 2 stages; it has 0"),
    ],
)
def test_a_config_that_would_leave_its_arrays_or_never_end_is_refused(rung, text, reason):
    config = BackwardConfig.parse(text)
    with pytest.raises(ConfigRejected, match=reason):
        plan_backward(problem(config.d_head, seq=60), H200, rung=rung, config=config)


@pytest.mark.parametrize(
    ("d", "one", "same_bits"),
    [
        (32, "b04", "b05"), (64, "b04", "b05"), (96, "b05", "b05"), (128, "b04", "b05"), (192, "b06", "b06"),
        (256, "b06", "b06"),
    ],
)  # fmt: skip
def test_plans_take_what_was_measured_to_be_the_fastest(d, one, same_bits):
    assert plan_backward(problem(d, is_causal=True), H200).rung is find_backward_rung(one)
    assert plan_backward(problem(d), H200, True).rung is find_backward_rung(same_bits)
    assert plan_backward(problem(d), A100).rung is find_backward_rung("b02")


def few_keys(d, keys, queries=70, **options):
    p = AttentionProblem.dense(2, 4, queries, keys, d, **options)
    return BackwardProblem(p, p.out, p.q, p.k, p.v, (4 * queries, queries, 1))


@pytest.mark.parametrize("arch", [H200, A100], ids=str)
@pytest.mark.parametrize("deterministic", [False, True])
def test_few_keys_take_one_launch_that_borrows_nothing(arch, deterministic):
    for d, keys in ((32, 128), (64, 1), (64, 128), (96, 64), (128, 128)):
        plan = plan_backward(few_keys(d, keys), arch, deterministic)
        assert plan.rung is find_backward_rung("b07"), (d, keys)
        made = backward_program(few_keys(d, keys), plan)
        assert [stage.name for stage in made.stages] == ["dQ dK dV"]
        assert made.workspace_bytes == 0
    many = replace(few_keys(64, 100).forward, batch=67), replace(few_keys(64, 60).forward, batch=67)
    many_128, many_64 = (replace(few_keys(64, 100), forward=forward) for forward in many)
    assert plan_backward(many_64, arch, deterministic).rung.alone
    for other in (
        few_keys(64, 129),
        few_keys(96, 65),
        few_keys(64, 60, 129),
        few_keys(64, 60, 40, heads_kv=1),
        many_128,
    ):
        assert not plan_backward(other, arch, deterministic).rung.alone


def test_a_plan_looks_at_the_mask_and_at_lengths():
    assert plan_backward(problem(128), H200).rung is find_backward_rung("b05")
    windowed = replace(problem(128).forward, window=(9, 5))
    assert plan_backward(replace(problem(128), forward=windowed), H200).rung is find_backward_rung("b04")
    assert plan_backward(problem(256), H200).config.apart
    assert plan_backward(problem(256, seq=4096, is_causal=True), H200).config.apart
    assert not plan_backward(problem(256, is_causal=True), H200).config.apart
    capped = replace(problem(256, is_causal=True).forward, softcap=2.0)
    assert plan_backward(replace(problem(256), forward=capped), H200).config.apart


def test_one_walk_makes_dk_and_dv_where_registers_hold_both():
    of = problem(192, d_v=128, is_causal=True)
    plan = plan_backward(of, H200, True)
    assert [walk.name for walk in walks_of(plan.config)] == ["dK dV", "dQ"]
    assert plan_backward(problem(192), H200).config.apart, "384 columns"
    assert "these are 384" in plan.rung.why_not(problem(192), plan.config, H200)
    capped = replace(of, forward=replace(of.forward, softcap=2.0))
    assert plan_backward(capped, H200).config.apart
    packed = replace(of, forward=replace(of.forward, totals=(300, 300)))
    assert plan_backward(packed, H200).config.apart
    assert plan.rung.why_not(packed, plan.config, H200) is None


def shared(heads, heads_kv, seq, is_causal, d=128):
    p = AttentionProblem.dense(1, heads, seq, seq, d, heads_kv=heads_kv, is_causal=is_causal)
    of = BackwardProblem(p, p.out, p.q, p.k, p.v, (heads * seq, seq, 1))
    plan = plan_backward(of, H200)
    walk = next(walk for walk in walks_of(plan.config) if walk.by_keys)
    return parts_of(of, plan.rung, walk), section_of(of, walk, heads_kv)


def test_blocks_share_queries_where_there_are_fewer_than_a_gpu_has_room_for():
    assert shared(64, 8, 2048, True) == (2, 8), "128 blocks, of which the first has twice the mean to do"
    assert shared(64, 8, 2048, False)[0] == 1
    assert shared(8, 1, 8192, True)[0] == 4
    assert shared(8, 1, 8192, False)[0] == 2
    assert shared(64, 8, 8192, True) == (1, 8), "the first tiles of all heads begin before the others"
    assert shared(1, 1, 128, True)[0] == 1, "too little to share"


@pytest.mark.parametrize("d", [64, 96, 256])
def test_what_tma_cannot_read_is_planned_for_copies_by_threads(d):
    rows = replace(problem(d).grad, head_stride=1 << 40)
    for same_bits in (False, True):
        plan = plan_backward(replace(problem(d), grad=rows), H200, same_bits)
        assert not plan.rung.produced


def test_a_rung_says_why_it_cannot():
    b01, b02 = BACKWARD_RUNGS[:2]
    config = BackwardConfig(64, Tile(128, 64, 8), Tile(128, 64, 8))
    sums = BackwardConfig(64, Tile(128, 64, 8), sums=4)
    assert "it makes dQ by queries" in b01.why_not(problem(), sums, H200)
    assert "the operands have 128" in b02.why_not(problem(128), sums, H200)
    assert "multiple of 128" in b01.why_not(problem(), replace(config, keys=Tile(96, 64, 8)), H200)
    assert "must divide 128" in b01.why_not(problem(), replace(config, queries=Tile(256, 64, 8)), H200)
    assert "shared evenly" in b02.why_not(problem(96), BackwardConfig(96, Tile(128, 64, 8), sums=4), H200)
    assert "7.5" in b01.why_not(problem(), config, replace(H200, compute_capability=(7, 5)))
    wide = BackwardConfig(128, Tile(128, 64, 8), sums=4)
    one_warp = BackwardConfig(64, Tile(16, 32, 1), sums=1)
    assert "copy 4 rows of 64 columns in a step" in b02.why_not(problem(), one_warp, H200)
    assert b02.why_not(problem(96), replace(one_warp, d_head=96), H200) is None
    assert "164864 B" in b02.why_not(problem(128), wide, ADA)
    odd = replace(problem(), dk=HeadRows(2 * 300 * 68, 300 * 68, 68))
    assert "rows of dk" in b01.why_not(odd, config, H200)
    with pytest.raises(ConfigRejected, match="no backward rung"):
        find_backward_rung("b99")


def test_a_deterministic_plan_takes_no_rung_that_is_not():
    with pytest.raises(ConfigRejected, match="b02_once cannot run d_head=64, deterministic,"):
        plan_backward(problem(), H200, True, "b02")


def assert_holds(source, *held):
    """Have the compiler's front end alone, a tenth of a compilation, look at static assertions after a source."""
    text = "\n".join([source.text, *held])
    nvrtc.build(replace(source, text=text), "compute_90a", (*BASE_OPTIONS, "-fdevice-syntax-only"))


@pytest.fixture
def sources(monkeypatch):
    """Of a kernel that is asked for, its source."""
    monkeypatch.setattr(backward_kernels, "compile_rung", lambda *given, generated: render(*given[:3], generated))


def test_every_field_is_packed_where_the_struct_has_it():
    text = (CUDA_ROOT / "attention" / "backward_args.cuh").read_text()
    body = re.search(r"struct BackwardArgs : ScoreNumbers {\n(.*?)\n};", text, re.DOTALL)[1]
    body = re.sub(r"//[^\n]*", "", body)
    names, lengths = [], []
    for line in body.split(";"):
        for one in line.split(","):
            if one.strip():
                found = re.search(r"(\w+)(?:\[(\d+)\])?\s*$", one)
                names.append(found[1])
                lengths.append(int(found[2] or 1))
    places = _fields(_ARGS)
    assert len(places) == sum(lengths)
    starts = [places[sum(lengths[:n])] for n in range(len(lengths))]
    held = [
        f'static_assert(__INTADDR__(&((BackwardArgs*)0)->{name}) == {at}, "{name}");'
        for name, at in zip(names, starts, strict=True)
    ]
    held.append(f'static_assert(sizeof(BackwardArgs) == {struct.calcsize(_ARGS)}, "all");')
    assert_holds(render("attention/backward_args.cuh", {}, "k"), *held)


@pytest.mark.parametrize("rung", BACKWARD_RUNGS, ids=str)
@pytest.mark.parametrize("d", D_HEADS)
def test_shared_memory_is_what_the_kernel_counts(rung, d, sources):
    """Walk::shared_bytes in cuda/attention/backward.cuh."""
    if d not in {config.d_head for config in rung.defaults}:
        pytest.skip(f"{rung} has no config for it")
    one = problem(d, seq=60 if rung.alone else 300)
    config = rung.default(one, H200)
    for walk in walks_of(config):
        halves = rung.apart and walk.tile.along == 2
        struct = "ApartWalk" if rung.apart else "ProducedWalk" if rung.produced else "Walk"
        struct = "HalvesWalk" if halves else struct
        held = f"static_assert({struct}<Cfg>::shared_bytes == {rung.shared_bytes(one, walk)});"
        assert_holds(WalkKernel(rung, config, walk).compile(one, H200), held)


@pytest.mark.parametrize(("d", "dv"), [(192, 128), (64, 256)])
def test_shared_memory_of_values_of_another_width_is_what_the_kernel_counts(d, dv, sources):
    p = AttentionProblem.dense(1, 2, 300, 300, d, d_v=dv)
    of = BackwardProblem(p, p.out, p.q, p.k, p.v, (600, 300, 1))
    rung = find_backward_rung("b06")
    able = [config for config in rung.defaults if rung.why_not(of, config, H200) is None]
    assert len(able) == (3 if dv < d else 1), "of two warpgroups that make a gradient each, dV must fit where K was"
    for config, walk in ((one, walk) for one in able for walk in walks_of(one)):
        struct = "HalvesWalk" if walk.tile.along == 2 else "ApartWalk"
        held = f"static_assert({struct}<Cfg>::shared_bytes == {rung.shared_bytes(of, walk)});"
        assert_holds(WalkKernel(rung, config, walk).compile(of, H200), held)


def test_an_explanation_names_what_runs_and_what_it_borrows():
    q, k, v = (np.zeros((1, heads, 300, 128), np.float16) for heads in (4, 2, 2))
    told = tw.explain_attention_backward(q, k, v, is_causal=True, gpu="H200", deterministic=True)
    text = str(told)
    assert told.plan.config.deterministic
    assert f"runs     {told.plan.rung.id}, config d128: keys" in text
    assert f"{told.program.workspace_bytes} B borrowed" in text
    assert "the same at every run" in text
    assert "b02_once cannot run d_head=128, deterministic," in text
    assert "nothing that multiplies" in str(tw.explain_attention_backward(q, k[:, :, :0], v[:, :, :0], gpu="H200"))
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"config": tw.AttentionConfig(64, 128, 64, 4)}, "is not a backward config"),
        ({"config": [1]}, "is not a backward config"),
        ({"rung": ["b01"]}, "rung is ['b01']; pass the name of one"),
    ],
    ids=["an attention config", "a list for a config", "a list for a rung"],
)
def test_what_names_no_kernels_is_refused_alike_when_it_is_explained(named, words):
    q = np.zeros((1, 1, 64, 64), np.float16)
    with pytest.raises(ConfigRejected, match=re.escape(words)):
        tw.explain_attention_backward(q, q, q, gpu="H200", **named)
