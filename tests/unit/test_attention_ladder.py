"""Attention as data: problems, configs and their grammar, what rungs refuse, the packed parameters."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import emu
from tilewright.attn.config import D_HEADS, AttentionConfig
from tilewright.attn.problem import AttentionProblem, BiasRows, HeadRows
from tilewright.attn.rung import _ARGS, AttentionAddresses
from tilewright.attn.rungs import ATTENTION_RUNGS, find_attention_rung
from tilewright.errors import ConfigRejected, InvalidOperand
from tilewright.gpus import find_arch
from tilewright.lab.attention_check import visible

H200, A100, ADA = (find_arch(name) for name in ("sm_90a", "sm_80", "sm_89"))


@given(
    st.sampled_from(D_HEADS), st.integers(1, 512), st.integers(1, 512), st.integers(1, 16),
    st.tuples(*[st.sampled_from([0, 2])] * 3), st.booleans(), st.integers(1, 8),
)  # fmt: skip
def test_a_config_reads_back_what_it_prints(d_head, b_r, b_c, warps, loads, buffer, blocks):
    config = AttentionConfig(d_head, b_r, b_c, warps, *loads, buffer, blocks)
    assert AttentionConfig.parse(str(config)) == config


def test_the_grammar_is_the_documents():
    config = AttentionConfig(128, 64, 32, 4, 0, 2, 2, buffer=True)
    assert str(config) == "(128, 64, 32, 4): load_0_2_2_fragments+buffer"
    for text in ("128, 64, 32, 4", "(128, 64, 32, 4): load_1_2_2_fragments", "(128, 64, 32, 4): load_0_2_2_fragments+"):
        with pytest.raises(ConfigRejected, match="not an attention config"):
            AttentionConfig.parse(text)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (5, 5), (3, 9), (9, 3), (1, 7), (7, 1)])
def test_operations_count_the_pairs_that_the_mask_leaves(seq_q, seq_k):
    full = AttentionProblem.dense(2, 3, seq_q, seq_k, 64)
    causal = replace(full, is_causal=True)
    assert full.flops == 4 * 2 * 3 * seq_q * seq_k * 64
    assert causal.visible_pairs == int(visible(causal).sum())
    assert causal.flops == 4 * 2 * 3 * causal.visible_pairs * 64


def test_a_problem_refuses_what_no_kernel_can_count():
    with pytest.raises(InvalidOperand, match="seq_q=0"):
        AttentionProblem.dense(1, 1, 0, 1, 64)
    with pytest.raises(InvalidOperand, match="heads_q=6 is not a multiple of heads_kv=4"):
        AttentionProblem.dense(1, 6, 1, 1, 64, heads_kv=4)
    with pytest.raises(InvalidOperand, match="f32"):
        AttentionProblem.dense(1, 1, 1, 1, 64, dtype="f32")
    with pytest.raises(InvalidOperand, match="finite"):
        AttentionProblem.dense(1, 1, 1, 1, 64, scale=float("nan"))


@pytest.mark.parametrize("arch", [H200, A100, ADA], ids=str)
@pytest.mark.parametrize("d_head", D_HEADS)
def test_every_rung_has_a_config_for_every_head_size_on_every_gpu(arch, d_head):
    problem = AttentionProblem.dense(1, 1, 100, 100, d_head)
    for rung in ATTENTION_RUNGS:
        config = rung.default(problem, arch)
        assert rung.why_not(problem, config, arch) is None
        assert all(c.why_not() is None and c.d_head == d_head for c in rung.space(d_head))


def test_a_rung_says_why_it_cannot():
    a02, a16 = find_attention_rung("a02"), find_attention_rung("a16")
    problem = AttentionProblem.dense(1, 2, 64, 64, 128)
    whole, sliced = AttentionConfig(128, 64, 64, 4), AttentionConfig(128, 64, 64, 4, 2, 2, 2)
    assert a02.why_not(problem, whole, H200) is None
    assert "load_0_0_0" in a02.why_not(problem, sliced, H200)
    assert "(33," in a16.why_not(problem, replace(whole, d_head=33), H200)
    assert "the operands have 128" in a16.why_not(problem, replace(sliced, d_head=64), H200)
    assert "multiple of 64" in a16.why_not(problem, replace(sliced, b_r=96), H200)
    odd = replace(problem, k=HeadRows(2 * 64 * 132, 64 * 132, 132))
    assert "rows of k must start at multiples of 16 bytes" in a16.why_not(odd, sliced, H200)
    assert "rows of q" in a16.why_not(replace(problem, q=replace(problem.q, alignment=8)), sliced, H200)
    assert "a grid holds 65535" in a16.why_not(AttentionProblem.dense(1, 70000, 1, 1, 128), sliced, H200)
    with pytest.raises(ConfigRejected, match="d_head=48"):
        a16.default(AttentionProblem.dense(1, 1, 1, 1, 48), H200)
    with pytest.raises(ConfigRejected, match="a16_static_strides"):
        find_attention_rung("a99")


def test_one_warp_is_refused_where_its_copies_step_by_part_of_a_swizzle():
    problem, config = AttentionProblem.dense(1, 1, 70, 70, 64), AttentionConfig(64, 16, 32, 1)
    for rung in ATTENTION_RUNGS:
        reason = rung.why_not(problem, config, find_arch("sm_80"))
        assert ("copy 4 rows of 64 columns in a step" in (reason or "")) == (rung.id >= "a08"), rung
    assert find_attention_rung("a08").why_not(AttentionProblem.dense(1, 1, 70, 70, 96), replace(config, d_head=96),
                                              find_arch("sm_80")) is None  # fmt: skip


def test_only_a16_is_compiled_for_strides_and_only_what_selects_a_path_counts():
    config = AttentionConfig(128, 64, 64, 4, 2, 2, 2)
    near, far = (AttentionProblem.dense(2, 4, seq, seq, 128) for seq in (128, 640))
    apart = AttentionProblem.dense(2, 4, 128, 128, 128, layout="bshd")
    for rung in ("a15", "a16"):
        constants = find_attention_rung(rung).constants
        assert constants(near, config) == constants(far, config)
        assert (constants(near, config) == constants(apart, config)) == (rung == "a15")


def test_the_packed_parameters_are_the_device_codes():
    fields = [
        *["q", "k", "v", "out", "lse"],
        *[f"{x}_{y}" for x in ("q", "k", "v", "out") for y in ("batch", "head", "row")],
        *["group", "seq_q", "seq_k"],
        *["bias_batch", "bias_head", "bias_row", "bias_col", "left", "right", "bias", "starts_q", "starts_k"],
        *["scale", "factor", "softcap", "scale_by_cap"],
    ]
    stores = "\n".join(f"  to[{i}] = (double)(long long)args.{name};" for i, name in enumerate(fields[:-4]))
    stores += "".join(f"  to[{len(fields) - 4 + i}] = args.{name};" for i, name in enumerate(fields[-4:]))
    source = f"""
    #include "attention/args.cuh"
    static_assert(sizeof(AttentionArgs) == {struct.calcsize(_ARGS)});
    extern "C" __global__ void k(const __grid_constant__ AttentionArgs args, double* to) {{
{stores}
    }}"""
    problem = AttentionProblem(
        1, 8, 2, 33, 44, 64, HeadRows(10, 11, 12), HeadRows(13, 14, 15), HeadRows(16, 17, 18), HeadRows(19, 20, 21),
        scale=0.25, window=(45, 46), softcap=2.0, bias=BiasRows(22, 23, 24, 25, "f32"),
    )  # fmt: skip
    config = AttentionConfig(64, 64, 64, 4)
    launch = ATTENTION_RUNGS[0].launch(problem, config, AttentionAddresses(1, 2, 3, 4, 5, 6, 7, 8))
    out = np.full(len(fields), np.nan)
    from tilewright.jit import compile_source

    kernel = compile_source(source, entry="k")
    memory = emu.GlobalMemory()
    params = launch.params + struct.pack("<Q", memory.add(out.view(np.uint8), "out"))
    emu.run(kernel.ptx, "k", grid=(1, 1, 1), block=(1, 1, 1), params=params, memory=memory)
    address = struct.unpack("<Q", params[-8:])[0]
    values = memory.read(address, out.nbytes).view(np.float64)
    ids = [*range(1, 6), *range(10, 22), 4, 33, 44, *range(22, 26), 45, 46, 6, 7, 8]
    assert list(values) == [*ids, 0.25, pytest.approx(1.442695), 2.0, 0.125]
    assert (launch.grid, launch.block) == ((1, 8, 1), (128, 1, 1))
    assert launch.shared_bytes == 2 * 64 * (64 + 128)
