"""What a plan makes of tuning results: its own class, its neighbours, the order of the tables; always the same."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.gemm.classes import ProblemClass, class_of
from tilewright.gemm.family import PRODUCTS, Products, plan_for
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig, Rung
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.work import work_of
from tilewright.gpus import GPUS, as_found
from tilewright.lab.sums import AS_CHOSEN
from tilewright.plan import tables
from tilewright.plan.choose import choose, decide, estimates, neighbours, plan
from tilewright.plan.demands import Demands
from tilewright.plan.entries import Entry, Table, Timed, decode, table_of, trusted
from tilewright.plan.estimate import predict
from tilewright.plan.store import Store
from tilewright.plan.tables import generation, results_changed, sources_for
from tilewright.run.warm import Calls
from tilewright.tuning.families import entries_of
from tilewright.tuning.fused import read_words, with_epilogue

H200 = GPUS["H200"]
H11 = find_rung("h11")


def h11(tile_m: int, tile_n: int, warp_m: int, warp_n: int, tile_k: int = 64, **more) -> GemmConfig:
    return GemmConfig(tile_m, tile_n, tile_k, warp_m=warp_m, warp_n=warp_n, stages=3, group_m=8, **more)


SMALL, MIDDLE, LARGE = h11(32, 32, 16, 16), h11(64, 64, 32, 32), h11(128, 128, 64, 64)


def problem(m: int = 512, n: int = 512, k: int = 512, **more) -> GemmProblem:
    return GemmProblem.dense(m, n, k, **{"dtype": "bf16", **more})


def entry(of: GemmProblem, *times: tuple[GemmConfig, float]) -> Entry:
    timed = tuple(Timed("h11_mma_multistage", config, ms) for config, ms in sorted(times, key=lambda t: t[1]))
    return Entry(class_of(of), (of.m, of.n, of.k, of.batch), timed, when="2026-01-01")


def table(*entries: Entry) -> dict[str, Entry]:
    return {e.key: e for e in entries}


def test_the_class_itself_decides_where_it_was_tuned():
    here = table(entry(problem(), (SMALL, 2.0), (MIDDLE, 1.0), (LARGE, 1.5)))
    found = choose(PRODUCTS, problem(), H200, [("tuned here", here)])
    assert (found.rung, found.config, found.source) == (H11, MIDDLE, "tuned here")
    assert "fastest of 3 kernels measured at 512 x 512 x 512" in found.why
    assert [config for _, config, _ in found.runners_up] == [str(LARGE), str(SMALL)]
    assert "1.50 of the fastest's" in found.runners_up[0][2]
    alone = choose(PRODUCTS, problem(), H200, [("tuned here", table(entry(problem(), (MIDDLE, 1.0))))])
    assert alone.why.startswith("the one kernel measured at 512 x 512 x 512")


def test_results_of_a_precision_serve_that_precision_alone():
    parts = GemmProblem.dense(512, 512, 512, precision="fp32x3")
    config = GemmConfig(64, 64, 32, warp_m=32, warp_n=32, stages=2, group_m=4, min_blocks=3)
    found = Entry(class_of(parts), (512, 512, 512, 1), (Timed("t02_fp32x3", config, 1.0),), when="2026-01-01")
    known = [("tuned here", table(found))]
    assert str(class_of(parts)).startswith("f32 as fp32x3 nn ")
    assert ProblemClass.from_dict(class_of(parts).to_dict()) == class_of(parts)
    assert "precision" not in class_of(problem()).to_dict()
    assert choose(PRODUCTS, parts, H200, known).config == config
    near = choose(PRODUCTS, GemmProblem.dense(640, 512, 512, precision="fp32x3"), H200, known)
    assert near.rung.id == "t02_fp32x3"
    assert "neighbours" in near.why
    for other in ("ieee", "tf32"):
        assert choose(PRODUCTS, GemmProblem.dense(512, 512, 512, precision=other), H200, known) is None


def test_the_first_table_with_the_class_is_asked_before_any_neighbour():
    here = table(entry(problem(640), (SMALL, 1.0), (MIDDLE, 2.0)))
    shipped = table(entry(problem(), (SMALL, 2.0), (MIDDLE, 1.0)))
    assert choose(PRODUCTS, problem(), H200, [("here", here), ("shipped", shipped)]).source == "shipped"
    both = here | table(entry(problem(), (LARGE, 1.0)))
    assert choose(PRODUCTS, problem(), H200, [("here", both), ("shipped", shipped)]).config == LARGE


def test_what_a_gpu_or_this_version_cannot_run_is_passed_over():
    huge = h11(128, 256, 64, 64, tile_k=128)
    assert H11.why_not(problem(), dataclasses.replace(huge, stages=5), H200.arch) is not None
    unknown = Timed("h99_future", MIDDLE, 0.1)
    known = entry(problem(), (dataclasses.replace(huge, stages=5), 0.5), (MIDDLE, 1.0))
    found = choose(
        PRODUCTS, problem(), H200, [("here", table(dataclasses.replace(known, timed=(unknown, *known.timed))))]
    )
    assert found.config == MIDDLE
    only = dataclasses.replace(known, timed=(unknown,), unknown=2)
    told: list[str] = []
    assert choose(PRODUCTS, problem(), H200, [("here", table(only))], ignored=told) is None
    assert told == ["3 results here: of rungs or configs that this version lacks (h99_future)"]


def test_a_class_never_tuned_takes_its_neighbours_word():
    """Whatever the model thinks: all measured shapes say that SMALL is twice as fast as it predicts, LARGE as slow."""
    near = []
    for m in (256, 1024, 2048):
        of = problem(m, m, m)
        near.append(entry(of, *(
            (config, predict(work_of(of, H11, config), H200).ms * factor)
            for config, factor in ((SMALL, 0.2), (LARGE, 3.0))
        )))  # fmt: skip
    found = choose(PRODUCTS, problem(), H200, [("shipped", table(*near))])
    assert found.config == SMALL
    assert found.source == "heuristic from what is shipped"
    assert "was not tuned" in found.why
    reverse = [dataclasses.replace(e, timed=tuple(
        Timed(t.rung, LARGE if t.config == SMALL else SMALL, t.ms) for t in e.timed)) for e in near]  # fmt: skip
    assert choose(PRODUCTS, problem(), H200, [("shipped", table(*reverse))]).config == LARGE


def test_the_nearer_neighbour_counts_more():
    def said(m: int, fast: GemmConfig, slow: GemmConfig) -> Entry:
        of = problem(m, m, m)
        return entry(of, *((c, predict(work_of(of, H11, c), H200).ms * f) for c, f in ((fast, 0.5), (slow, 2.0))))

    results = table(said(256, SMALL, LARGE), said(4096, LARGE, SMALL))
    assert choose(PRODUCTS, problem(288, 288, 288), H200, [("here", results)]).config == SMALL
    assert choose(PRODUCTS, problem(3584, 3584, 3584), H200, [("here", results)]).config == LARGE


def test_waves_of_the_problem_itself_count():
    """Two tiles measured equal per product: the one that fills the SMs of this problem wins."""
    of = problem(4096, 4096, 1024)
    tall, wide = h11(128, 256, 64, 64), h11(128, 128, 64, 64)
    results = table(entry(of, *((c, predict(work_of(of, H11, c), H200).ms) for c in (tall, wide))))
    for_few = problem(128 * 11, 128 * 12, 1024)  # 132 tiles of 128 x 128, one an SM; 66 of the others
    assert choose(PRODUCTS, for_few, H200, [("here", results)]).config == wide


def test_a_smaller_gpu_takes_what_fits_and_is_told_what_does_not():
    small = dataclasses.replace(H200, arch=dataclasses.replace(H200.arch, shared_per_block=48 * 1024))
    results = [("here", table(entry(problem(), (LARGE, 1.0), (MIDDLE, 2.0), (SMALL, 3.0))))]
    exact, near = choose(PRODUCTS, problem(), small, results), choose(PRODUCTS, problem(600, 600, 600), small, results)
    assert exact.config == MIDDLE
    assert near.config in (SMALL, MIDDLE)
    for found in (exact, near):
        ((rung, config, reason),) = found.refused
        assert (rung, config) == ("h11_mma_multistage", str(LARGE))
        assert "B of shared memory" in reason


def test_batch_invariance_asks_for_one_chain_along_k():
    split, sliced = dataclasses.replace(MIDDLE, split_k=4), h11(32, 32, 16, 16, slices_k=2)
    held = entry(problem(), (split, 1.0), (sliced, 2.0), (MIDDLE, 3.0))
    lower = dataclasses.replace(held, timed=(Timed("h10_mma_three_stage", MIDDLE, 0.5), *held.timed))
    results = [("here", table(lower))]
    assert choose(PRODUCTS, problem(), H200, results).rung.id == "h10_mma_three_stage"
    assert choose(PRODUCTS, problem(), H200, results, demands=Demands(batch_invariant=True)).config == MIDDLE
    near = choose(PRODUCTS, problem(64, 64, 8192), H200, results, demands=Demands(batch_invariant=True))
    assert (near.rung, near.config.split_k, near.config.slices_k) == (H11, 1, 1)


def test_thin_grids_are_split_further_than_any_neighbour_was():
    results = [
        ("here", table(entry(problem(512, 512, 4096), (MIDDLE, 0.02), (dataclasses.replace(MIDDLE, split_k=2), 0.015))))
    ]
    assert choose(PRODUCTS, problem(64, 64, 16384), H200, results).config.split_k > 2
    assert choose(PRODUCTS, problem(4096, 4096, 4096), H200, results).config.split_k == 1


def test_an_operand_that_lies_unaligned_is_packed_only_where_it_does():
    ragged = problem(1001, 1001, 1001)
    packed = Timed("h11_mma_multistage", MIDDLE, 0.01, ("a", "b"))
    held = dataclasses.replace(entry(ragged, (MIDDLE, 0.05)), timed=(packed, Timed(packed.rung, MIDDLE, 0.05)))
    results = [("here", table(held))]
    assert choose(PRODUCTS, ragged, H200, results).packs == ("a", "b")
    assert choose(PRODUCTS, problem(1024, 1024, 1024), H200, results).packs == ()


def test_c_and_epilogues_take_the_plain_products_result():
    results = [("here", table(entry(problem(), (SMALL, 1.0), (MIDDLE, 2.0))))]
    assert choose(PRODUCTS, problem(use_c=True), H200, results).source == "here"
    assert choose(PRODUCTS, problem(use_c=True), H200, results).config == SMALL


def test_the_other_16_bit_type_takes_the_result_as_its_own():
    results = [("here", table(entry(problem(), (SMALL, 1.0), (MIDDLE, 2.0))))]
    half = choose(PRODUCTS, problem(dtype="f16"), H200, results)
    assert (half.source, half.config) == ("here", SMALL)
    own = table(entry(problem(), (SMALL, 1.0)), entry(problem(dtype="f16"), (MIDDLE, 1.0)))
    assert choose(PRODUCTS, problem(dtype="f16"), H200, [("here", own)]).config == MIDDLE


def test_fp32_operands_take_what_was_found_for_fp32_results_until_16_bits_are_tuned():
    few, many = GemmConfig(32, 32, 8, 4, 4, 16, 32, stages=3, cache="cg", group_m=8), find_rung("f12").default

    def of(config: GemmConfig, **more) -> Entry:
        wide = GemmProblem.dense(512, 512, 512, **more)
        return Entry(class_of(wide), (512, 512, 512, 1), (Timed("f12_multistage", config, 1.0),), when="2026-01-01")

    asked = GemmProblem.dense(512, 512, 512, out_dtype="bf16")
    found = choose(PRODUCTS, asked, H200, [("here", table(of(few)))])
    assert (found.config, found.source) == (few, "here")
    assert "the class of this problem (results in f32)" in found.why
    twin = table(of(few), of(many, out_dtype="f16"))
    assert choose(PRODUCTS, asked, H200, [("here", twin)]).config == many
    assert "results in" not in choose(PRODUCTS, asked, H200, [("here", twin)]).why
    assert choose(PRODUCTS, dataclasses.replace(asked, out_dtype="f32"), H200, [("here", twin)]).config == few
    fused = with_epilogue(asked, *read_words("bias,silu"))
    assert "(without an epilogue, results in f32)" in choose(PRODUCTS, fused, H200, [("here", table(of(few)))]).why


def test_one_chain_takes_no_kernel_of_another_order_along_k():
    split, sliced = dataclasses.replace(SMALL, split_k=4), h11(64, 64, 32, 32, slices_k=2)
    of = entry(problem(), (split, 1.0), (sliced, 1.5), (LARGE, 2.0))
    of = dataclasses.replace(of, timed=(Timed("h10_mma_three_stage", MIDDLE, 0.5), *of.timed))
    results = [("here", table(of))]
    assert choose(PRODUCTS, problem(), H200, results, demands=Demands(batch_invariant=True)).config == LARGE
    assert choose(PRODUCTS, problem(), H200, results).config != LARGE
    near = choose(
        PRODUCTS, problem(640), H200, results, demands=Demands(batch_invariant=True)
    )  # never tuned: its neighbours' word
    assert (near.rung, near.config.split_k, near.config.slices_k) == (H11, 1, 1)


def test_a_far_class_or_another_kind_of_type_says_nothing():
    results = table(entry(problem(), (SMALL, 1.0)))
    assert choose(PRODUCTS, GemmProblem.dense(512, 512, 512), H200, [("here", results)]) is None  # fp32
    assert choose(PRODUCTS, problem(1, 1, 10**9), H200, [("here", results)]) is None
    assert choose(PRODUCTS, problem(), H200, [("here", {}), ("shipped", {})]) is None
    assert choose(PRODUCTS, problem(dtype="f16"), H200, [("here", results)]).config == SMALL


def test_the_choice_does_not_depend_on_the_order_of_a_table():
    entries = [
        entry(problem(m, n, 512), (SMALL, 1.0 * m), (MIDDLE, 0.9 * m), (LARGE, 1.1 * m))
        for m in (128, 256, 1024)
        for n in (128, 2048)
    ]
    ahead = [("here", table(*entries))]
    behind = [("here", table(*reversed(entries)))]
    for m in (100, 300, 700, 1500):
        assert choose(PRODUCTS, problem(m), H200, ahead) == choose(PRODUCTS, problem(m), H200, behind)
    near = neighbours(PRODUCTS, class_of(problem(300)), table(*entries))
    assert estimates(PRODUCTS, problem(300), H200, near) == estimates(PRODUCTS, problem(300), H200, near)


# --- what a plan costs ------------------------------------------------------------------------------------------------


def shipped_file() -> Path:
    return Path(tables.__file__).with_name("shipped") / "h200.json"


@pytest.fixture
def work(monkeypatch) -> Counter[str]:
    """How often kernels are modelled and refusals are looked for."""
    done: Counter[str] = Counter()

    def counted(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def called(self, *args):
            done[f"{kind.__name__}.{name}"] += 1
            return real(self, *args)

        monkeypatch.setattr(kind, name, called)

    counted(Products, "work")
    counted(Rung, "why_not")
    return done


def test_a_plan_for_a_tuned_class_decodes_that_entry_and_models_nothing(work):
    shipped, asked = decode(shipped_file().read_bytes()).of(PRODUCTS), problem(4096, 4096, 4096)
    found = choose(PRODUCTS, asked, H200, [("shipped", shipped)])
    assert found.source == "shipped"
    assert set(shipped.decoded) == {str(class_of(asked))}
    assert work["Products.work"] == 0
    assert work["Rung.why_not"] == len(shipped[str(class_of(asked))].timed)


def test_a_plan_for_a_tuned_class_parses_little_of_the_table(monkeypatch):
    data, parsed, loads = shipped_file().read_bytes(), [], json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(len(text)) or loads(text))
    sources = [("shipped", decode(data).of(PRODUCTS))]
    assert choose(PRODUCTS, problem(4096, 4096, 4096), H200, sources).source == "shipped"
    assert sum(parsed) < len(data) / 4, "classes, and the entry with its configs"


def test_a_plan_by_the_model_parses_no_row_of_the_table_that_ships(monkeypatch):
    data, parsed, loads = shipped_file().read_bytes(), [], json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(len(text)) or loads(text))
    asked = GemmProblem.dense(1000, 4096, 4096, dtype="bf16")
    assert choose(PRODUCTS, asked, H200, [("shipped with the package", trusted(data).of(PRODUCTS))]) is None
    assert sum(parsed) < 100, "the head"


def test_each_class_of_the_table_that_ships_is_found_in_its_text():
    data = shipped_file().read_bytes()
    whole = decode(data).of(PRODUCTS)
    for key, klass in whole.classes.items():
        alone = trusted(data).of(PRODUCTS)
        assert alone.of_class(klass) == whole.get(key)
        assert "_rows" not in vars(alone)
    assert set(trusted(data).of(PRODUCTS)) == set(whole)


def test_a_shipped_table_in_another_layout_is_read_too():
    data = shipped_file().read_bytes()
    other = json.dumps(json.loads(data)).encode()
    asked = class_of(problem(4096, 4096, 4096))
    assert trusted(other).of(PRODUCTS).of_class(asked) == trusted(data).of(PRODUCTS).of_class(asked) is not None


def test_a_plan_by_neighbours_decodes_those_models_them_once_and_looks_for_few_refusals(work):
    shipped, asked = decode(shipped_file().read_bytes()).of(PRODUCTS), problem(1501, 613, 4099)
    near = neighbours(PRODUCTS, class_of(asked), shipped)
    assert set(shipped.decoded) == {entry.key for _, entry in near}
    assert len(near) == 10
    first = choose(PRODUCTS, asked, H200, [("shipped", shipped)])
    assert first.source == "heuristic from what is shipped"
    assert len(shipped.decoded) == 10
    made, ran = work["Products.work"], sum(len(entry.timed) for _, entry in near)
    refusals = work["Rung.why_not"]
    assert refusals <= ran + 10, "of neighbours' own results, and of the first few estimates"
    work.clear()
    again = choose(PRODUCTS, problem(1501, 613, 4099, use_c=True), H200, [("shipped", shipped)])
    assert again.config == first.config
    assert work["Products.work"] == made - ran, "neighbours are known by now"


def test_a_plan_by_the_model_looks_for_the_refusals_of_few_presets_until_they_are_asked_for(work):
    found = decide(PRODUCTS, problem(1000, 4096, 4096), H200, [])
    assert found.source == "cost model"
    assert 0 < work["Rung.why_not"] < 20
    assert found.refused == ()
    assert work["Rung.why_not"] > 40


# --- with an epilogue ------------------------------------------------------------------------------------------------


def fused(**more) -> GemmProblem:
    return with_epilogue(problem(**more), *read_words("bias,silu"))


def with_words(of: Entry) -> Entry:
    return dataclasses.replace(of, epilogue="silu(acc + bias) + residual")


def test_an_epilogues_own_class_is_asked_before_the_bare_one_wherever_it_was_tuned():
    bare, own = entry(problem(), (LARGE, 1.0), (SMALL, 1.1)), with_words(entry(fused(), (SMALL, 1.0), (LARGE, 1.2)))
    found = choose(PRODUCTS, fused(), H200, [("here", table(bare, own))])
    assert found.config == SMALL
    assert "the class of this problem (with silu(acc + bias) + residual): 1 ms" in found.why
    assert choose(PRODUCTS, problem(), H200, [("here", table(bare, own))]).config == LARGE
    told = choose(PRODUCTS, fused(), H200, [("here", table(bare))])
    assert told.config == LARGE
    assert "the class of this problem (without an epilogue)" in told.why
    shipped = choose(PRODUCTS, fused(), H200, [("here", table(bare)), ("shipped", table(own))])
    assert (shipped.config, shipped.source) == (SMALL, "shipped")
    halves = dataclasses.replace(fused(dtype="f16"), c=fused().out)
    both = table(own, entry(problem(dtype="f16"), (LARGE, 1.0)))
    assert choose(PRODUCTS, halves, H200, [("here", both)]).config == SMALL


def test_times_with_an_epilogue_say_nothing_of_bare_products():
    near, far = fused(k=576), problem(k=2048)
    of = [with_words(entry(near, (SMALL, 1.0), (LARGE, 2.0))), entry(far, (MIDDLE, 1.0), (LARGE, 0.9))]
    asked = [e.key for _, e in neighbours(PRODUCTS, class_of(problem(k=520)), table(*of))]
    assert asked == [str(class_of(far))]
    assert choose(PRODUCTS, problem(k=520), H200, [("here", table(of[0]))]) is None
    assert (
        choose(PRODUCTS, problem(k=520), H200, [("here", table(of[0])), ("shipped", table(of[1]))]).config.whole_k
        == LARGE
    )


def test_an_epilogue_goes_by_the_nearest_neighbours_kind():
    near, far = with_words(entry(fused(k=576), (SMALL, 1.0))), entry(problem(k=2048), (MIDDLE, 1.0))
    asked = [e.key for _, e in neighbours(PRODUCTS, class_of(fused(k=520)), table(near, far))]
    assert asked == [near.key]
    asked = [e.key for _, e in neighbours(PRODUCTS, class_of(fused(k=1900)), table(near, far))]
    assert asked == [far.key]


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_follows_the_store_and_says_so(store):
    before = plan_for(problem(), H200)
    store.add([entry(problem(), (SMALL, 2e-3), (MIDDLE, 1e-3))])
    assert plan_for(problem(), H200) == before, "plans change when the process is told, not in between"
    results_changed()
    plan = plan_for(problem(), H200)
    assert (plan.rung.id, plan.config, plan.source) == ("h11_mma_multistage", MIDDLE, "tuned here")
    assert plan_for(problem(), H200) is plan
    a = np.zeros((512, 512), np.float16)
    text = str(tw.explain(a[:300], a, gpu="H200"))
    assert "heuristic from what is tuned here" in text
    assert plan_for(problem(), H200, "h08").config == find_rung("h08").default, "a rung that is named runs its default"


def test_explain_tells_source_runners_up_and_bound(store):
    half = problem(dtype="f16")
    store.add([entry(half, (SMALL, 2e-3), (MIDDLE, 1e-3))])
    results_changed()
    a = np.zeros((512, 512), np.float16)
    text = " ".join(str(tw.explain(a, a, gpu="H200")).split())
    told = ("source tuned here", "next h11_mma_multistage, config 32x32x64", "2.00 of the fastest's", "fastest of 2")
    for words in (*told, "TFLOP/s at most"):
        assert words in text
    assert max(map(len, str(tw.explain(a, a, gpu="H200")).splitlines())) <= 100


def test_explain_says_in_a_line_what_it_passed_over_and_does_not_drown_in_refusals(store):
    deep = [
        dataclasses.replace(h11(128, 256, 64, 64, tile_k=1 << 14), group_m=i + 1) for i in range(12)
    ]  # none fits in shared memory
    held = entry(problem(), *((config, 1.0) for config in deep), (MIDDLE, 2.0))
    store.add([dataclasses.replace(held, timed=(Timed("h99_future", MIDDLE, 0.1), *held.timed))])
    results_changed()
    a = np.zeros((512, 512), np.float16)
    lines = str(tw.explain(a, a, gpu="H200")).splitlines()
    assert "ignored  1 result tuned here: of rungs or configs that this version lacks (h99_future)" in lines
    refused = [line for line in lines if line.startswith("refused")]
    assert len(refused) == 9
    assert refused[-1] == "refused  and 4 more; the plan's `refused` has them all"
    assert max(map(len, lines)) <= 100


def test_new_results_drop_warm_calls(store):
    remembered: Calls[int] = Calls()
    assert remembered.get("a key") is None
    remembered.put("a key", 1)
    assert remembered.get("a key") == 1
    before = generation()
    results_changed()
    assert generation() == before + 1
    assert remembered.get("a key") is None


def test_the_first_call_of_a_process_is_remembered_though_nobody_asked_for_it():
    remembered: Calls[int] = Calls()
    remembered.put("a key", 1)
    assert remembered.get("a key") == 1
    results_changed()
    assert remembered.get("a key") is None


def test_the_calls_used_last_are_remembered(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_WARM_CALLS", "8")
    remembered: Calls[int] = Calls()
    remembered.get(0)
    for key in range(100):
        remembered.put(key, key)
        remembered.get("used all along") or remembered.put("used all along", -1)
    assert len(remembered) <= 8
    assert remembered.get(99) == 99
    assert remembered.get("used all along") == -1
    assert remembered.get(50) is None


@pytest.fixture
def looking_always(monkeypatch):
    monkeypatch.setattr(tables, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(tables, "_next_look", 0.0)


def test_another_folder_in_the_environment_changes_plans_at_once(tuned_folder, monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "shipped", lambda gpu: table_of([]))
    tables.store_of(H200).add([entry(problem(), (SMALL, 1.0))])
    assert plan_for(problem(), H200).config == SMALL
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "other"))
    tables.store_of(H200).add([entry(problem(), (LARGE, 1.0))])
    assert plan_for(problem(), H200).config == LARGE
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tuned_folder))
    assert plan_for(problem(), H200).config == SMALL


def test_what_another_process_tunes_is_planned_with(looking_always, tuned_folder, monkeypatch):
    monkeypatch.setattr(tables, "shipped", lambda gpu: table_of([]))
    tables.store_of(H200)
    before = plan_for(problem(), H200)
    assert before.source.startswith("cost model")
    ours = tables.store_of(H200)
    theirs = Store(ours.gpu, ours.driver)  # as another process has it
    theirs.add([entry(problem(), (SMALL, 1.0))])
    assert plan_for(problem(), H200).config == SMALL
    number = generation()
    assert generation() == number  # nothing changed meanwhile
    theirs.add([dataclasses.replace(entry(problem(), (LARGE, 0.5)), when="2026-01-02")])
    assert plan_for(problem(), H200).config == LARGE
    theirs.path.unlink()
    assert plan_for(problem(), H200).source.startswith("cost model")


def test_a_file_that_goes_while_the_newest_is_looked_for_is_none(tuned_folder, monkeypatch):
    there, gone = tuned_folder / "H200-cuda12.json", tuned_folder / "H200-cuda13.json"
    tuned_folder.mkdir(exist_ok=True)
    there.write_text("")
    monkeypatch.setattr(tables, "stored_files", lambda *asked: [gone, there])
    assert tables._newest_driver("H200", tuned_folder) == "cuda12"


def test_a_store_that_another_thread_opens_while_plans_look_is_no_error(tuned_folder, monkeypatch):
    class Opening:
        """A folder that is compared while another thread opens a store."""

        def __eq__(self, other):
            tables._stores["another", "thread", Path()] = None
            return False

        __hash__ = object.__hash__

    monkeypatch.setattr(tables, "_stores", {("H200", "cuda13", Path()): None, ("H200", "cuda12", Path()): None})
    monkeypatch.setattr(tables, "default_folder", Opening)
    monkeypatch.setattr(tables, "_has_files", lambda *asked: False)
    monkeypatch.setattr(tables, "_unopened", set())
    assert tables._tuned_here(H200) is None


def test_a_plan_asks_no_driver_where_nothing_was_tuned_and_notices_the_first_file(
    looking_always, tuned_folder, monkeypatch
):
    monkeypatch.setattr(tables, "shipped", lambda gpu: table_of([]))
    asked = []
    monkeypatch.setattr(tables, "driver_name", lambda: asked.append(1) or "cuda13")
    results_changed()
    assert plan_for(problem(), H200).source.startswith("cost model")
    assert not asked
    Store("H200", "cuda13").add([entry(problem(), (SMALL, 1.0))])  # as another process has it
    assert plan_for(problem(), H200).config == SMALL
    number = generation()
    assert generation() == number


def test_files_are_looked_at_a_few_times_a_second_at_most(tuned_folder, monkeypatch):
    looks = []
    monkeypatch.setattr(tables, "_next_look", 0.0)
    monkeypatch.setattr(tables, "LOOK_EVERY", 3600.0)
    monkeypatch.setattr(tables.Store, "has_changed", lambda store: looks.append(store))
    store = tables.store_of(H200)
    for _ in range(100):
        generation()
    assert looks.count(store) == 1


def test_results_that_could_not_be_written_outlive_a_look(looking_always, tuned_folder, monkeypatch):
    from tilewright.plan import store as store_module

    monkeypatch.setattr(tables, "shipped", lambda gpu: table_of([]))
    store = tables.store_of(H200)

    def refuse(path, data):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_file", refuse)
        with pytest.warns(RuntimeWarning, match="cannot be written"):
            assert not store.add([entry(problem(), (SMALL, 1.0))])
    Store(store.gpu, store.driver).add([entry(problem(2048), (LARGE, 1.0))])
    assert plan_for(problem(2048), H200).config == LARGE
    assert plan_for(problem(), H200).config == SMALL


def test_the_users_store_is_asked_before_the_shipped_table(store, monkeypatch):
    ours = table_of([entry(problem(), (LARGE, 1.0))])
    monkeypatch.setattr(tables, "shipped", lambda gpu: ours if gpu == "H200" else Table(gpu))
    results_changed()
    assert plan_for(problem(), H200).source == "shipped with the package"
    store.add([entry(problem(), (SMALL, 5.0))])
    results_changed()
    assert plan_for(problem(), H200).config == SMALL
    assert [name for name, _ in sources_for(PRODUCTS, H200)] == ["tuned here", "shipped with the package"]


def test_a_board_without_a_table_takes_that_of_one_with_as_many_sms(monkeypatch):
    ours = table_of([entry(problem(), (SMALL, 1.0))])
    monkeypatch.setattr(tables, "shipped", lambda gpu: ours if gpu == "H200" else Table(gpu))
    results_changed()
    plan = plan_for(problem(), GPUS["H100"])
    assert (plan.config, plan.source) == (SMALL, "shipped with the package for the H200")
    own = table_of([entry(problem(), (LARGE, 1.0))])
    monkeypatch.setattr(tables, "shipped", lambda gpu: {"H200": ours, "H100": own}.get(gpu) or Table(gpu))
    results_changed()
    plan = plan_for(problem(), GPUS["H100"])
    assert (plan.config, plan.source) == (LARGE, "shipped with the package"), "its own comes first"
    few = table_of([entry(problem(256), (LARGE, 1.0))])
    monkeypatch.setattr(tables, "shipped", lambda gpu: {"H200": ours, "H100": few}.get(gpu) or Table(gpu))
    results_changed()
    near = plan_for(problem(288), GPUS["H100"])
    assert (near.config, near.source) == (SMALL, "heuristic from what is shipped with the package for the H200")


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_a_board_with_fewer_sms_than_its_names_takes_no_table_that_ships(name, monkeypatch):
    ours = table_of([entry(problem(), (SMALL, 1.0))])
    monkeypatch.setattr(tables, "shipped", lambda gpu: ours)
    results_changed()
    assert plan_for(problem(), GPUS[name]).source == "shipped with the package"
    assert "shipped" not in plan_for(problem(), as_found(GPUS[name], 114, 0, 0)).source, "fewer SMs make other waves"


def test_without_a_driver_the_newest_file_of_the_gpu_is_read(tuned_folder, monkeypatch):
    monkeypatch.setattr(tables, "driver_name", lambda: "")
    Store("H200", "cuda12").add([entry(problem(), (SMALL, 1.0))])
    tables._stores.clear()
    assert set(entries_of(tables.store_of(H200).table)) == {str(class_of(problem()))}
    tables._stores.clear()
    assert entries_of(tables.store_of(GPUS["A100"]).table) == {}


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if tables.shipped(gpu)])
def test_every_shipped_result_can_run_on_its_gpu(gpu):
    for held in tables.shipped(gpu).of(PRODUCTS).values():
        m, n, k, batch = held.shape
        of = GemmProblem.dense(
            m, n, k, layout=held.klass.layout, batch=batch, dtype=held.klass.dtype, out_dtype=held.klass.out_dtype,
            precision=held.klass.precision,
        )  # fmt: skip
        if held.klass.fused:
            of = with_epilogue(of, *read_words("bias,silu,residual"))
        assert class_of(of) == held.klass
        assert bool(held.epilogue) == held.klass.fused
        assert held.finished
        best = held.timed[0]
        packed = of.packed(best.config.tile, best.packs)
        assert find_rung(best.rung).why_not(packed, best.config, GPUS[gpu].arch) is None
        found = plan(AS_CHOSEN, of, GPUS[gpu])
        assert (found.rung.id, found.config, found.packs) == (best.rung, best.config, best.packs)


def test_a_plan_whose_rung_its_family_does_not_have_is_refused():
    class Strays(Products):
        def settled(self, problem, chosen, demands):
            return dataclasses.replace(chosen, rung=find_rung("f12"))

    with pytest.raises(tw.errors.ConfigRejected, match="f12_multistage was planned for products that it does not"):
        plan(Strays(), problem(), H200)
