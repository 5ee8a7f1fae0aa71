"""Tuning attention: space, classes, results in the store, what a plan makes of them, the command, with no GPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fake_bench import FakeBench

import tilewright as tw
from tilewright.attn.classes import AttentionClass, attention_class_of, attention_columns, attention_distances
from tilewright.attn.config import D_HEADS, AttentionConfig
from tilewright.attn.family import ATTENTION, plan_attention
from tilewright.attn.hopper import HOPPER_RUNGS
from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import ATTENTION_RUNGS, find_attention_rung
from tilewright.attn.space import explore_attention
from tilewright.attn.split import SplitConfig
from tilewright.attn.work import work_of
from tilewright.errors import CacheError, ConfigRejected, DeviceError, InvalidOperand
from tilewright.gemm.family import PRODUCTS
from tilewright.gpus import GPUS
from tilewright.plan.choose import choose
from tilewright.plan.demands import Demands
from tilewright.plan.entries import Entry, Timed, decode, encode, table_of
from tilewright.plan.estimate import predict
from tilewright.plan.store import Store
from tilewright.plan.tables import results_changed
from tilewright.tuning import run as run_module
from tilewright.tuning.attention import TunableAttention, attention_kernels, tune_attention_problems
from tilewright.tuning.families import entries_of

H200 = GPUS["H200"]
A17 = find_attention_rung("a17")
WIDE, NARROW = AttentionConfig(128, 128, 64, 4, 2, 2, 2), AttentionConfig(128, 64, 64, 4, 0, 2, 2)


def problem(batch: int = 4, heads: int = 16, length: int = 2048, d_head: int = 128, **more) -> AttentionProblem:
    return AttentionProblem.dense(batch, heads, length, length, d_head, **more)


def entry(of: AttentionProblem, *times: tuple[AttentionConfig, float], rung: str = A17.id) -> Entry:
    timed = tuple(Timed(rung, config, ms) for config, ms in sorted(times, key=lambda t: t[1]))
    shape = (of.batch, of.heads_q, of.heads_kv, of.seq_q, of.seq_k)
    return Entry(attention_class_of(of), shape, timed, when="2026-01-01")


def table(*entries: Entry) -> dict[str, Entry]:
    return {e.key: e for e in entries}


# --- the space -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["RTX 3090", "H200"])
@pytest.mark.parametrize("d_head", D_HEADS)
def test_every_candidate_kept_can_run_and_the_count_adds_up(gpu, d_head):
    of = problem(1, 3, 777, d_head, is_causal=True)
    space = explore_attention(of, GPUS[gpu], ATTENTION_RUNGS, 12)
    assert 1 <= len(space.kept) <= 12
    assert len(space.kept) + sum(space.pruned.values()) == space.considered
    for candidate in space.kept:
        assert candidate.rung.why_not(of, candidate.config, GPUS[gpu].arch) is None
        assert candidate.prediction.resident >= 1
    assert space == explore_attention(of, GPUS[gpu], ATTENTION_RUNGS, 12)


@pytest.mark.parametrize("d_head", D_HEADS[:-1])
def test_what_a_sweep_on_an_h200_found_best_is_kept(d_head):
    """A rung's defaults are such results. Of d_head 256 the model thinks otherwise; what a plan would run is kept."""
    of = problem(16, 2048 // d_head, 4096, d_head)
    space = explore_attention(of, H200, ATTENTION_RUNGS)
    assert A17.default(of, H200.arch) in [c.config for c in space.kept if c.rung is A17]


def test_what_is_asked_for_is_kept_whatever_the_model_says():
    of = problem(16, 8, 4096, 256)
    assert A17.default(of, H200.arch) not in [c.config for c in explore_attention(of, H200, [A17], 3).kept]
    with_default = explore_attention(of, H200, ATTENTION_RUNGS, 3, [(A17, A17.default(of, H200.arch))])
    assert A17.default(of, H200.arch) in [candidate.config for candidate in with_default.kept]


def test_the_model_knows_waves_masks_and_spills():
    def ms(of: AttentionProblem, config: AttentionConfig = WIDE) -> float:
        return predict(work_of(of, A17, config), H200).ms

    assert ms(problem(2)) < ms(problem(4)) < ms(problem(8))
    assert ms(problem(is_causal=True)) < 0.7 * ms(problem())
    tight = dataclasses.replace(WIDE, b_r=256, n_warps=4)
    assert predict(work_of(problem(), A17, tight), H200).limiter == "spills"
    assert ms(problem(1, 1, 256), NARROW) < ms(problem(1, 1, 256), WIDE), "two blocks share what one would do alone"


def test_the_model_orders_kernels_on_a_gpu_whose_tensor_peak_is_not_known():
    unlisted = dataclasses.replace(GPUS["A100"], name="A10", bf16_tflops=0.0)
    assert explore_attention(problem(), unlisted, ATTENTION_RUNGS, 4).kept


# --- classes and the store -------------------------------------------------------------------------------------------


def test_what_takes_another_path_is_another_class_and_what_does_not_is_not():
    own = attention_class_of(problem())
    assert str(own) == "attention bf16 full d128 64 heads 2048x2048"
    assert attention_class_of(problem(8, 8)) == own, "heads of all entries count"
    assert attention_class_of(dataclasses.replace(problem(), with_lse=True, softcap=3.0, scale=1.0)) == own
    assert attention_class_of(problem(is_causal=True)) != own
    assert attention_class_of(problem(heads_kv=4)) != own
    assert attention_class_of(dataclasses.replace(problem(), window=(255, 0))).keys == 256
    assert AttentionClass.from_dict(own.to_dict()) == own
    others = [own, attention_class_of(problem(8)), attention_class_of(problem(d_head=64))]
    found = attention_distances(own, attention_columns([klass.to_dict() for klass in others]))
    assert list(found) == [0, pytest.approx(2.0), float("inf")]


def test_results_stand_beside_products_in_one_table(tmp_path):
    from tilewright.gemm.classes import class_of
    from tilewright.gemm.problem import GemmProblem

    h11 = tw.ladder.find_rung("h11")
    product = GemmProblem.dense(256, 256, 256, dtype="bf16")
    other = Entry(class_of(product), (256, 256, 256, 1), (Timed(h11.id, h11.default, 1.0),), when="2026-01-01")
    both = table(entry(problem(), (WIDE, 1.0), (NARROW, 2.0)), other)
    data = encode(table_of(both.values(), "H200", "cuda13"))
    assert entries_of(decode(data)) == both
    told = decode(data).of(ATTENTION)
    assert told.classes == {str(attention_class_of(problem())): attention_class_of(problem())}
    assert choose(ATTENTION, problem(4, 16, 1024), H200, [("here", told)]).config == WIDE
    assert set(told.decoded) == {str(attention_class_of(problem()))}, "no product was looked at"
    assert set(told) == set(told.decoded)
    store = Store("H200", "cuda13", tmp_path)
    assert store.add(both.values())
    assert entries_of(Store("H200", "cuda13", tmp_path).table) == both
    products = [("here", decode(data).of(PRODUCTS))]
    assert choose(PRODUCTS, product, H200, products).config == h11.default
    assert choose(PRODUCTS, GemmProblem.dense(250, 250, 250, dtype="bf16"), H200, products).config.tile_m


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b"(128, 128, 64, 4)", b"(128, 17, 64, 4)"),
        lambda data: data.replace(b'"d_head":128', b'"d_head":127'),
        lambda data: data.replace(b'"shape":[4,16', b'"shape":[4'),
        lambda data: data.replace(b'"is_causal":false', b'"is_causal":0'),
        lambda data: data.replace(b'"attention":"(128, 128, 64, 4): load_2_2_2_fragments"', b'"tile_m":64,"tile_n":64'),
    ],
)
def test_what_is_no_result_of_attention_is_refused(damage):
    data = encode(table_of(table(entry(problem(), (WIDE, 1.0))).values(), "H200", "cuda13"))
    assert damage(data) != data
    with pytest.raises(CacheError, match="not a table of tuning results"):
        entries_of(decode(damage(data)))


def test_a_config_of_another_grammar_is_left_out_and_counted():
    data = encode(table_of(table(entry(problem(), (WIDE, 1.0), (NARROW, 2.0))).values(), "H200", "cuda13"))
    (found,) = entries_of(decode(data.replace(b"(128, 128, 64, 4)", b"<128, 128, 64, 4>"))).values()
    assert [timed.config for timed in found.timed] == [NARROW]
    assert found.unknown == 1


# --- the choice ------------------------------------------------------------------------------------------------------


def test_the_class_itself_decides_and_the_other_type_takes_it():
    here = [("here", table(entry(problem(), (WIDE, 2.0), (NARROW, 1.0))))]
    found = choose(ATTENTION, problem(), H200, here)
    assert (found.rung, found.config, found.source) == (A17, NARROW, "here")
    assert "fastest of 2 kernels measured at 4 x 16 heads, 2048 x 2048" in found.why
    assert found.runners_up == ((A17.id, str(WIDE), "2 ms, 2.00 of the fastest's"),)
    assert choose(ATTENTION, problem(dtype="f16"), H200, here).config == NARROW
    assert choose(ATTENTION, dataclasses.replace(problem(), softcap=9.0, with_lse=True), H200, here).config == NARROW


def test_a_class_never_tuned_takes_its_neighbours_word_and_waves_count():
    for fast, slow in ((WIDE, NARROW), (NARROW, WIDE)):
        near = [
            entry(of, *((c, predict(work_of(of, A17, c), H200).ms * f) for c, f in ((fast, 0.5), (slow, 2.0))))
            for of in (problem(4), problem(16))
        ]
        found = choose(ATTENTION, problem(8), H200, [("here", table(*near))])
        assert (found.config, found.source) == (fast, "heuristic from what is here")
        assert found == choose(ATTENTION, problem(8), H200, [("here", table(*reversed(near)))])
    equal = [entry(problem(), *((c, predict(work_of(problem(), A17, c), H200).ms) for c in (WIDE, NARROW)))]
    few = AttentionProblem.dense(1, 16, 512, 2048, 128)
    assert choose(ATTENTION, few, H200, [("here", table(*equal))]).config == NARROW


def test_a_window_is_a_class_of_the_keys_that_it_leaves():
    def windowed(left: int) -> AttentionProblem:
        return dataclasses.replace(problem(length=8192), window=(left, 0))

    held = table(entry(windowed(511), (NARROW, 0.4), (WIDE, 0.5)), entry(problem(length=8192), (WIDE, 5.0)))
    assert len(held) == 2
    assert choose(ATTENTION, windowed(511), H200, [("here", held)], ignored=[]).config == NARROW
    assert choose(ATTENTION, problem(length=8192), H200, [("here", held)], ignored=[]).config == WIDE
    near = choose(ATTENTION, windowed(600), H200, [("here", held)], ignored=[])
    assert near.source == "heuristic from what is here"
    assert near.config == NARROW


def test_what_is_unknown_or_cannot_run_is_passed_over_and_told():
    huge = AttentionConfig(128, 256, 128, 8, 2, 2, 2)
    held = entry(problem(), (huge, 0.5), (WIDE, 1.0))
    held = dataclasses.replace(held, timed=(Timed("a99_future", WIDE, 0.1), *held.timed))
    small = dataclasses.replace(H200, arch=dataclasses.replace(H200.arch, shared_per_block=99 * 1024))
    told: list[str] = []
    found = choose(ATTENTION, problem(), small, [("here", table(held))], ignored=told)
    assert found.config == WIDE
    ((rung, config, reason),) = found.refused
    assert (rung, config) == (A17.id, str(huge))
    assert "B of shared memory" in reason
    assert told == ["1 result here: of rungs or configs that this version lacks (a99_future)"]
    assert choose(ATTENTION, problem(d_head=64), H200, [("here", table(held))]) is None
    assert choose(ATTENTION, problem(length=65536), H200, [("here", table(held))]) is None, "too far"


def test_hoppers_rungs_are_tried_where_they_run_and_a_plan_takes_the_one_that_won(store):
    for gpu, tried in (("H200", True), ("A100", False)):
        rungs = {candidate.rung.id for candidate in TunableAttention().explore(problem(), GPUS[gpu]).kept}
        assert any(rung.id in rungs for rung in HOPPER_RUNGS) == tried
    a24 = HOPPER_RUNGS[-1]
    won = a24.default(problem(), H200.arch)
    store.add([entry(problem(), (won, 1.0), rung=a24.id)])
    results_changed()
    plan = plan_attention(problem(), H200)
    assert (plan.rung, plan.config, plan.source) == (a24, won, "tuned here")


def test_a_plan_follows_the_store_and_explain_says_so(store):
    before = plan_attention(problem(), H200)
    assert before.source == "cost model"
    store.add([entry(problem(dtype="f16"), (WIDE, 2.0), (NARROW, 1.0))])
    results_changed()
    plan = plan_attention(problem(), H200)
    assert (plan.config, plan.source) == (NARROW, "tuned here")
    assert plan_attention(problem(), H200) is plan
    assert plan_attention(problem(), H200, "a12").rung.id == "a12_block_index"
    q = np.zeros((4, 16, 2048, 128), np.float16)
    lines = str(tw.explain_attention(q, q, q, gpu="H200")).splitlines()
    text = " ".join(" ".join(lines).split())
    for words in ("source tuned here", "next a17_lazy_rescale, config (128, 128, 64, 4)", "2.00 of the fastest's",
                  "TFLOP/s at most", "refused none"):  # fmt: skip
        assert words in text
    assert max(map(len, lines)) <= 100


# --- tuning ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch) -> list[AttentionProblem]:
    """The problems that were measured, on a GPU and a compiler made of Python."""
    bench = FakeBench()
    bench.is_wrong = lambda config: getattr(config, "buffer", False)
    monkeypatch.setattr(run_module, "Bench", lambda ordinal: bench)
    monkeypatch.setattr("tilewright.jit.device.gpu_available", lambda: True)
    yield bench.measured
    assert set(bench.asked) <= {("attention/rungs.cuh", "attention"), ("attention/hopper.cuh", "attention")}


def test_what_was_measured_stands_in_the_store_and_a_second_run_measures_what_is_missing(measured, store):
    softer = dataclasses.replace(problem(), softcap=5.0, with_lse=True)
    (tuned,) = tune_attention_problems([softer, problem(8, 8)], store=store, kept=8)
    assert measured == [problem()], "one class, measured plain"
    assert tuned.entry.finished
    assert tuned.entry.kernels == attention_kernels()
    assert tuned.entry.timed
    assert {failure.reason for failure in tuned.entry.failed} <= {"5 elements are wrong"}
    assert len(tuned.entry.timed) + len(tuned.entry.failed) == 8
    assert "bf16 attention, 4 x 16 heads, 2048 x 2048, d_head 128: a" in str(tuned)
    assert plan_attention(problem(), H200).config == tuned.entry.best.config
    known, fresh = tune_attention_problems([problem(), problem(is_causal=True)], store=store, kept=8)
    assert known.space is None
    assert fresh.space is not None
    assert [p.is_causal for p in measured] == [False, True]


def test_tune_attention_reads_the_operands_as_attention_does(measured, store):
    q, k = np.zeros((2, 8, 100, 128), np.float16), np.zeros((2, 2, 300, 128), np.float16)
    tuned = tw.tune_attention(q, k, k, is_causal=True, rungs="a17")
    (one,) = measured
    assert (one.batch, one.heads_q, one.heads_kv, one.seq_q, one.seq_k, one.is_causal) == (2, 8, 2, 100, 300, True)
    assert {timed.rung for timed in tuned.entry.timed} == {A17.id}
    with tw.emulator(), pytest.raises(DeviceError, match="no times"):
        tw.tune_attention(q, k, k)
    with pytest.raises(InvalidOperand, match="nothing can be tuned"):
        tw.tune_attention(q[:0], k[:0], k[:0])


def test_rungs_in_a_string_are_read_by_its_commas():
    x = np.zeros((1, 1, 64, 64), np.float16)
    with pytest.raises(ConfigRejected, match="'z99' is not known"):
        tw.tune(x[0, 0], x[0, 0], rungs="h11, z99")
    with pytest.raises(ConfigRejected, match="'z99' is not known"):
        tw.tune_attention(x, x, x, rungs="a17, z99")


# --- the command -----------------------------------------------------------------------------------------------------


def test_a_dry_run_prints_candidates_and_no_time(capsys):
    from tilewright.cli.tune import tune

    tune(attention="4x32/8x1024x128", causal=True, dry_run=True, keep=4)
    told = capsys.readouterr().out
    assert "bf16 causal attention, 4 x 32 heads on 8 of keys, 1024 x 1024, d_head 128 on" in " ".join(told.split())
    assert "nothing measured" in " ".join(told.split())
    assert "4 of " in told
    assert max(map(len, told.splitlines())) <= 100


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ("4x16", "is not batch x heads x length x d_head"),
        ("4x16x64x100", "d_head one of 32, 64"),
        ("4x16/0x64x64", "sizes must be at least 1"),
        ("0x16x64x64", "sizes must be at least 1"),
        ("4x16/5x64x64", "is not a multiple of heads_kv=5"),
        ("1x1x99999999999x64", "outside 1.."),
    ],
)
def test_shapes_that_are_none_are_refused(shapes, words):
    from tilewright.cli.tune import tune

    with pytest.raises(InvalidOperand, match=words):
        tune(attention=shapes, dry_run=True)


# --- few queries -----------------------------------------------------------------------------------------------------


FEW = AttentionProblem.dense(1, 32, 16, 32768, 128, heads_kv=8)


def test_keys_in_parts_are_tried_for_few_queries_and_for_them_alone():
    def tried(of: AttentionProblem, *rungs: str) -> set[str]:
        chosen = tuple(map(find_attention_rung, rungs))
        tunable = TunableAttention(chosen) if chosen else TunableAttention()
        return {candidate.rung.id[:3] for candidate in tunable.explore(of, H200).kept}

    assert "d01" in tried(FEW)
    assert len({c.config.parts for c in TunableAttention().explore(FEW, H200).kept if c.rung.id == "d01_split"}) > 1
    assert "d01" not in tried(problem())
    assert tried(problem(length=512), "d01") == {"d01"}


def test_a_result_for_few_queries_is_followed_whichever_rung_won(store):
    chosen = plan_attention(FEW, H200)
    assert chosen.rung.id == "d01_split"
    assert "parts" in chosen.why
    tuned = SplitConfig(128, 64, 32, 4, 2, 2, parts=12)
    for rung, config in (("a24_old_maximum", HOPPER_RUNGS[-1].default(FEW, H200.arch)), ("d01_split", tuned)):
        store.add([entry(FEW, (config, 0.1), rung=rung)])
        results_changed()
        plan = plan_attention(FEW, H200)
        assert (plan.rung.id, plan.config, plan.source) == (rung, config, "tuned here")
    near = plan_attention(dataclasses.replace(FEW, batch=2), H200)
    assert near.source == "heuristic from what is tuned here"
    assert near.rung.id == "d01_split"


def test_caches_and_calls_that_must_not_depend_on_the_batch_pass_tuned_results_by(store):
    store.add([entry(FEW, (HOPPER_RUNGS[-1].default(FEW, H200.arch), 0.1), rung="a24_old_maximum")])
    results_changed()
    assert plan_attention(dataclasses.replace(FEW, seqused=True), H200).rung.id == "d01_split"
    assert plan_attention(FEW, H200, demands=Demands(batch_invariant=True)).config.part_keys == 2048
