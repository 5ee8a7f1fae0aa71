"""Tuning from problems to the store, with a GPU and a compiler made of Python: what is kept, skipped, recorded."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import Future
from dataclasses import replace

import pytest
from fake_bench import FakeBench

from tilewright.errors import ConfigRejected, DeviceError, InvalidEpilogue, InvalidOperand
from tilewright.gemm.classes import class_of
from tilewright.gemm.fused import fused_headers
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.gpus import GPUS
from tilewright.plan.plan import Plan
from tilewright.plan.store import Store
from tilewright.tuning import build as build_module
from tilewright.tuning import products
from tilewright.tuning import run as run_module
from tilewright.tuning.build import Builder
from tilewright.tuning.duel import FEWEST, PAIRS, duel
from tilewright.tuning.families import entries_of
from tilewright.tuning.fused import read_words, with_epilogue
from tilewright.tuning.products import choose_rungs, kernel_set, tune_problems

H11 = find_rung("h11")


def problem(m: int = 512, n: int = 512, k: int = 512, **more) -> GemmProblem:
    return GemmProblem.dense(m, n, k, **{"dtype": "bf16", **more})


@pytest.fixture
def world(monkeypatch) -> FakeBench:
    bench = FakeBench()
    monkeypatch.setattr(run_module, "Bench", lambda ordinal: bench)
    monkeypatch.setattr("tilewright.jit.device.gpu_available", lambda: True)
    return bench


@pytest.fixture
def store(tmp_path) -> Store:
    return Store("H200", "cuda13", tmp_path)


def tune(store: Store, *problems: GemmProblem, **more) -> list:
    return list(tune_problems(problems, rungs=[H11], store=store, kept=8, **more))


def again(store: Store) -> Store:
    return Store(store.gpu, store.driver, store.path.parents[1])


def test_problems_of_a_precision_try_its_rungs_and_are_kept_apart(world, store):
    plain, parts = (GemmProblem.dense(512, 512, 512, precision=how) for how in ("ieee", "fp32x3"))
    first, second = tune_problems([parts, plain], store=store, kept=24)
    assert {candidate.rung.id for candidate in first.space.kept} == {"t02_fp32x3", "t03_fp32x3_split"}
    assert all(candidate.rung.id.startswith("f") for candidate in second.space.kept)
    assert first.entry.kernels == kernel_set("fp32x3") != second.entry.kernels
    assert str(first).startswith("fp32x3 nn 512 x 512 x 512: t0")
    assert len(entries_of(again(store).table)) == 2


def test_what_was_measured_stands_in_the_store_the_fastest_first(world, store):
    (tuned,) = tune(store, problem())
    entry = entries_of(again(store).table)[str(class_of(problem()))]
    assert entry == tuned.entry
    assert entry.finished
    assert entry.kernels == kernel_set("bf16")
    assert len(entry.timed) == 8
    assert [t.ms for t in entry.timed] == sorted(t.ms for t in entry.timed)
    fastest = min(tuned.space.kept, key=lambda candidate: candidate.prediction.ms)
    assert entry.best.config == fastest.config
    assert tuned.stored
    assert world.closed == 1
    assert "TFLOP/s" in str(tuned)


def test_a_second_run_measures_only_what_is_missing(world, store):
    tune(store, problem())
    first, second = tune(again(store), problem(), problem(k=1024))
    assert first.space is None
    assert second.space is not None
    assert [p.k for p in world.measured] == [512, 1024]
    tune(again(store), problem(), again=True)
    assert [p.k for p in world.measured] == [512, 1024, 512]


def test_other_device_code_is_measured_anew(world, store, monkeypatch):
    tune(store, problem())
    monkeypatch.setattr(products, "kernel_set", lambda *_: "other")
    tune(again(store), problem())
    assert len(world.measured) == 2


def fused(words: str = "bias,silu,residual", **more) -> GemmProblem:
    return with_epilogue(problem(**more), *read_words(words))


def test_a_product_with_an_epilogue_is_measured_with_it_and_stored_beside_the_bare_one(world, store):
    bare, with_it = tune(store, problem(), fused())
    assert [p.epilogue for p in world.measured] == [None, fused().epilogue]
    assert {bool(generated) for generated in world.generated[:8]} == {False}
    texts = [generated.get("gemm/fused.cuh", "") for generated in world.generated[8:]]
    whole = [c.config.split_k == 1 for c in with_it.space.kept]
    assert [("fused_silu" in text) for text in texts] == whole, "where k is split the sum of parts computes it"
    table = entries_of(again(store).table)
    assert set(table) == {str(class_of(problem())), str(class_of(fused()))}
    entry = table[str(class_of(fused()))]
    assert entry == with_it.entry
    assert (entry.klass.fused, entry.epilogue, entry.finished) == (True, "silu(acc + bias) + residual", True)
    assert entry.kernels == kernel_set("bf16", True) != bare.entry.kernels
    assert str(with_it).startswith("bf16 nn 512 x 512 x 512, silu(acc + bias) + residual: h11")


def test_one_result_serves_all_epilogues_of_a_class_until_it_is_asked_for_again(world, store):
    tune(store, fused())
    (known,) = tune(again(store), fused("bias,gelu"))
    assert known.space is None
    assert known.entry.epilogue == "silu(acc + bias) + residual"
    (anew,) = tune(again(store), fused("bias,gelu"), again=True)
    assert entries_of(again(store).table)[anew.entry.key].epilogue == "gelu(acc + bias)"


def test_an_epilogue_that_does_not_show_is_tuned_and_planned_as_none(world, store):
    """A bias or a relu; not a residual, which is read at the end of a block, nor a function."""
    (bare,) = tune(store, fused("bias,relu"))
    assert bare.entry.epilogue == ""
    assert not bare.entry.klass.fused
    assert world.measured[-1].epilogue is None
    for words in ("bias", "row_scale,col_scale,bias"):
        (known,) = tune(again(store), fused(words))
        assert known.space is None, "it is known"
    assert class_of(fused("residual")).fused
    assert class_of(fused("silu")).fused
    unknown = replace(fused("bias"), epilogue=replace(fused("bias").epilogue, nodes=()))
    assert class_of(unknown).fused, "code of which nothing is known"


def test_ctrl_c_and_failures_are_kept_with_an_epilogue_too(world, store):
    (plain,) = tune(store, fused(k=1024))
    world.wrong, world.passes_left = {str(plain.entry.timed[0].config)}, 4
    with pytest.raises(KeyboardInterrupt):
        tune(again(store), fused(k=1024), again=True)
    world.passes_left = 4
    with pytest.raises(KeyboardInterrupt):
        tune(again(store), fused())
    entry = entries_of(again(store).table)[str(class_of(fused()))]
    assert (entry.finished, entry.epilogue) == (False, "silu(acc + bias) + residual")
    assert {failure.kind for failure in entry.failed} <= {"wrong"}
    world.passes_left = 10**9
    (done,) = tune(again(store), fused())
    assert done.entry.finished


def test_problems_of_one_class_are_measured_once_and_c_and_outs_layout_do_not_count(world, store):
    tune(store, problem(1000, 1000, 1000), problem(1008, 1016, 1000), problem(1000, 1000, 1000, use_c=True))
    assert [(p.m, p.use_c) for p in world.measured] == [(1000, False)]


def test_ctrl_c_keeps_what_was_measured_and_the_next_run_finishes_it(world, store):
    world.passes_left = 4
    with pytest.raises(KeyboardInterrupt):
        tune(store, problem(), problem(k=1024))
    (entry,) = entries_of(again(store).table).values()
    assert not entry.finished
    assert len(entry.timed) == 8
    assert world.closed == 1
    world.passes_left = 10**9
    tune(again(store), problem(), problem(k=1024))
    assert [p.k for p in world.measured] == [512, 512, 1024]
    assert all(entry.finished for entry in entries_of(again(store).table).values())


def command_in_a_process(world, folder, said) -> None:
    """`tilewright tune`, with passes that last: for a signal to come in between."""
    from tilewright import cli
    from tilewright.cli import tune as command
    from tilewright.plan import tables

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background

    def slow_pass(number: int) -> None:
        if number == 3:
            said.set()
            time.sleep(600)

    world.on_pass = slow_pass
    command.why_no_gpu = lambda: None
    tables.driver_name = lambda: "cuda13"
    os.environ["TILEWRIGHT_TUNED"] = str(folder)
    sys.argv = ["tilewright", "tune", "--shapes", "512x512x512,64x64x64", "--dtype", "bf16", "--rungs", "h11"]
    sys.argv += ["--keep", "4"]
    cli.main()


def test_the_signal_of_ctrl_c_ends_the_command_with_130_and_what_was_measured_is_in_the_file(world, tmp_path):
    fork = multiprocessing.get_context("fork")
    said = fork.Event()
    process = fork.Process(target=command_in_a_process, args=(world, tmp_path, said))
    process.start()
    assert said.wait(300)
    os.kill(process.pid, signal.SIGINT)
    process.join(300)
    assert process.exitcode == 130
    (entry,) = entries_of(Store("H200", "cuda13", tmp_path).table).values()
    assert (entry.shape, entry.finished, len(entry.timed)) == ((512, 512, 512, 1), False, 4)


def test_failures_are_recorded_with_their_kind_and_the_rest_is_measured(world, store):
    (plain,) = tune(store, problem())
    configs = [timed.config for timed in plain.entry.timed]
    world.wrong = {str(configs[0])}
    tiles = [f"{c.tile_m}x{c.tile_n}x{c.tile_k}" for c in configs]
    world.broken = {next(tile for tile in tiles if tile != tiles[0])}
    (tuned,) = tune(again(store), problem(), again=True)
    kinds = {failure.kind for failure in tuned.entry.failed}
    assert kinds == {"wrong", "compile"}
    assert {f.reason for f in tuned.entry.failed} == {"5 elements are wrong", "error: no such tile"}
    assert len(tuned.entry.timed) + len(tuned.entry.failed) == 8
    assert configs[0] not in [timed.config for timed in tuned.entry.timed]
    assert entries_of(again(store).table)[tuned.entry.key].failed == tuned.entry.failed


def test_where_nothing_can_be_measured_nothing_is_stored_and_that_is_said(world, store):
    (plain,) = tune(store, problem())
    world.wrong = {str(candidate.config) for candidate in plain.space.kept}
    (tuned,) = tune(store, problem(k=1024))
    if tuned.entry.timed:  # the other problem has configs of its own
        world.wrong |= {str(candidate.config) for candidate in tuned.space.kept}
        (tuned,) = tune(store, problem(k=1024), again=True)
    assert not tuned.entry.timed
    assert not tuned.stored
    assert "no candidate could be measured" in str(tuned)


def test_a_fault_that_takes_the_gpu_along_ends_the_run_with_its_words(world, store):
    (plain,) = tune(store, problem())
    world.crashing = {str(plain.space.kept[3].config)}
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        tune(again(store), problem(), problem(k=1024), again=True)
    assert world.closed == 1, "there is nothing left to free"
    assert entries_of(again(store).table)[plain.entry.key].finished, "the older, finished result stands"


def test_a_problem_too_large_for_the_memory_is_told_and_the_next_is_measured(world, store):
    world.room = problem().bytes
    large, fits = tune(store, problem(k=65536), problem())
    assert not large.entry.timed
    ((kind, reason),) = [(failure.kind, failure.reason) for failure in large.entry.failed]
    assert (kind, "OUT_OF_MEMORY" in reason) == ("launch", True)
    assert fits.entry.timed
    assert set(entries_of(again(store).table)) == {fits.entry.key}


def test_a_compiling_process_that_nobody_hears_any_more_is_silent(tmp_path):
    """What is left of a command that a signal ended."""
    code = "import os, tilewright.tuning.worker as worker; worker.answer = lambda job: 'x' * 10**6; worker.main()"
    heard, answers = os.pipe()
    os.close(heard)
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(0), stdout=answers, stderr=subprocess.PIPE,
                          timeout=60, check=False)  # fmt: skip
    os.close(answers)
    assert (done.returncode, done.stderr) == (0, b"")


def tune_in_a_process(world, folder, number: int, begin, told) -> None:
    from tilewright.tuning.worker import answer

    class CompilesHere:
        """In this process: starting sixteen more would take longer than what is tested."""

        def __init__(self, jobs) -> None:
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None:
            pass

        def submit(self, include, constants, entry, arch, generated):
            future: Future = Future()
            built = answer((include, constants, entry, arch, (), generated))
            future.set_result("a kernel" if not isinstance(built, tuple) else built)
            return future

    world.builder = CompilesHere
    begin.wait()
    shared, own = problem(dtype="f32"), problem(k=32 * (number + 1), dtype="f32")
    f01, store = find_rung("f01"), Store("H200", "cuda13", folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = list(
            tune_problems(
                [shared, own], rungs=[f01], store=store, kept=1, planned=lambda *_: Plan(f01, f01.default, "", "")
            )
        )
    told.put((number, [len(tuned.entry.timed) for tuned in found], [tuned.stored for tuned in found]))


def test_sixteen_processes_tune_and_compile_at_once_and_lose_nothing(world, tmp_path, monkeypatch):
    from tilewright.jit.compile import kernel_cache

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "kernels"))
    fork = multiprocessing.get_context("fork")
    begin, told = fork.Barrier(16), fork.Queue()
    arguments = (world, tmp_path / "store")
    runs = [fork.Process(target=tune_in_a_process, args=(*arguments, i, begin, told)) for i in range(16)]
    for run in runs:
        run.start()
    heard = sorted(told.get(timeout=300) for _ in runs)
    for run in runs:
        run.join(300)
    assert [run.exitcode for run in runs] == [0] * 16
    assert [number for number, _, _ in heard] == list(range(16))
    assert all(min(timed) > 0 and all(stored) for _, timed, stored in heard)
    table = entries_of(Store("H200", "cuda13", tmp_path / "store").table)
    assert set(table) == {str(class_of(problem(k=k, dtype="f32"))) for k in range(32, 513, 32)}
    assert all(entry.finished for entry in table.values())
    kernels = kernel_cache().keys()
    assert len(kernels) == 1, "the same kernel for all: once, whoever asked for it"


# --- duels -----------------------------------------------------------------------------------------------------------


def runs_now(config: GemmConfig):
    """What is planned for every problem."""
    return lambda problem, gpu: Plan(H11, config, "a test", "")


def test_what_runs_now_stays_unless_it_loses_in_pairs(world, store):
    (found,) = tune(store, problem())
    best, second = (timed.config for timed in found.entry.timed[:2])

    def noisy(candidate, of: int, number: int) -> float:
        """In a race of many `second` seems slow; in pairs it is as fast as the best, now a little less, now more."""
        if candidate.config != second:
            return 1.0
        ratio = next(c.prediction.ms for c in found.space.kept if c.config == best) / candidate.prediction.ms
        return 1.2 if of > 2 else ratio * (1.01 if number % 2 else 0.99)

    world.slower = noisy
    (kept,) = tune(store, problem(), again=True, planned=runs_now(second))
    assert kept.entry.best.config == second
    assert f"{best} does not replace" in kept.entry.duel
    assert entries_of(again(store).table)[kept.entry.key].best.config == second
    assert entries_of(again(store).table)[kept.entry.key].duel == kept.entry.duel
    world.slower = lambda candidate, of, number: 1.2 if candidate.config == second else 1.0
    (anew,) = tune(store, problem(), again=True, planned=runs_now(second))
    assert anew.entry.best.config == best
    assert f"{best} replaces H11".replace("H11", f"{H11.id} {second}") in anew.entry.duel
    (same,) = tune(store, problem(), again=True, planned=runs_now(best))
    assert same.entry.duel == "", "it runs already"


@pytest.fixture(autouse=True)
def no_time_alone(monkeypatch):
    """A turn is a few passes."""
    monkeypatch.setattr("tilewright.tuning.duel.ALONE_S", 0.0)


class Pairs:
    """Times of two, and how many pairs were run. `alone`: the old one's time over the new one's without the other."""

    def __init__(self, ratios: list[float], alone: float = 1.0) -> None:
        self.ratios, self.alone, self.passes = ratios, alone, 0

    def one_pass(self, candidates, number):
        if len(candidates) == 1:
            return [self.alone if candidates == ["old"] else 1.0]
        self.passes += 1
        return [self.ratios[number % len(self.ratios)], 1.0]


@pytest.mark.parametrize(
    ("ratios", "is_won"),
    [([1.03], True), ([1.0], False), ([0.98], False), ([1.1, 0.92], False), ([1.05, 1.03, 1.04], True)],
)
def test_a_duel_is_won_by_more_than_its_noise(ratios, is_won):
    pairs = Pairs(ratios)
    found = duel(pairs, "old", "new")
    assert (found.is_won, pairs.passes) == (is_won, PAIRS)
    assert str(found).startswith("new replaces old: " if is_won else "new does not replace old: ")


@pytest.mark.parametrize(("alone", "is_won"), [(0.97, False), (1.02, True)])
def test_who_wins_in_pairs_and_is_slower_alone_loses(alone, is_won):
    """It draws more power, which lowers the clock of both in a pair."""
    found = duel(Pairs([1.03], alone), "old", "new")
    assert found.is_won_in_pairs
    assert found.is_won == is_won
    assert f"{alone:.3f} alone" in str(found)


def test_a_duel_ends_with_its_time():
    pairs = Pairs([1.03])
    assert duel(pairs, "old", "new", deadline=0.0).is_won
    assert pairs.passes == FEWEST


def test_rungs_that_do_not_multiply_the_type_are_refused():
    assert choose_rungs("bf16", [H11]) == (H11,)
    with pytest.raises(ConfigRejected, match="none of h11_mma_multistage multiplies f32"):
        choose_rungs("f32", [H11])


def test_the_kernel_set_is_that_of_the_sources():
    assert kernel_set("f32") != kernel_set("bf16") == kernel_set("f16")
    assert len(kernel_set("f32")) == 12


# --- compiling processes ---------------------------------------------------------------------------------------------


def test_kernels_compile_in_processes_of_their_own_and_the_same_one_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    f01 = find_rung("f01")
    values = f01.constants(problem(dtype="f32"), f01.default)
    with Builder(1) as builder:
        future = builder.submit(f01.include, values, f01.entry, "sm_90a")
        assert builder.submit(f01.include, dict(values), f01.entry, "sm_90a") is future
        wrong = builder.submit(f01.include, {**values, "threads": "no_such_type"}, f01.entry, "sm_90a")
        kernel = future.result(60)
        assert kernel.resources.registers > 0
        kind, reason = wrong.result(60)
    assert kind == "compile"
    assert "error" in reason
    assert "\n" not in reason
    assert list(tmp_path.rglob("kernel.cubin")), "the plan finds it in the cache"


def test_a_kernel_that_the_cache_has_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(build_module, "_COMMAND", (sys.executable, "-c", "raise SystemExit(7)"))
    f01, of = find_rung("f01"), problem(dtype="f32")
    values, arch = f01.constants(of, f01.default), GPUS["H200"].arch
    for kept, status in ((False, 7), (True, None)):
        if kept:
            kernel = f01.compile(of, f01.default, arch)
        with Builder(1) as builder:
            built = builder.submit(f01.include, values, f01.entry, arch.name).result(60)
        assert built == (kernel if kept else ("crash", f"the compiling process ended with status {status}"))


def test_an_epilogue_is_compiled_in_with_its_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    f01, of = find_rung("f01"), fused("bias,tanh", dtype="f32")
    values = f01.constants(of, f01.default)
    with Builder(1) as builder:
        bare = builder.submit(f01.include, values, f01.entry, "sm_90a")
        with_it = builder.submit(f01.include, values, f01.entry, "sm_90a", fused_headers(of))
        assert bare is not with_it
        assert with_it.result(60).key == f01.compile(of, f01.default, GPUS["H200"].arch).key != bare.result(60).key


DEATHS = {
    "before it reads its job": "import os; os.kill(os.getpid(), 9)",
    "with its job half read": "import os; os.read(0, 10); os.kill(os.getpid(), 9)",
    "with half its answer sent": "import os; os.write(1, b'half'); os.read(0, 2**21); os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_compiling_process_that_dies_is_a_failure_and_the_others_go_on(tmp_path, monkeypatch, death):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    f01 = find_rung("f01")
    values = f01.constants(problem(dtype="f32"), f01.default)
    with Builder(1) as builder:
        unsendable = {"x": lambda: 1}
        assert builder.submit("unpicklable", unsendable, "", "").exception(30) is not None  # type: ignore[dict-item]
        with monkeypatch.context() as patch:
            patch.setattr(build_module, "_COMMAND", (sys.executable, "-c", DEATHS[death]))
            more_than_a_pipe_holds = {"generated.cuh": "//" * 2**20}
            dead = builder.submit(f01.include, values, f01.entry, "sm_90a", more_than_a_pipe_holds)
            assert dead.result(300) == ("crash", "the compiling process ended with status -9")
        alive = builder.submit(f01.include, values, f01.entry, "sm_90a")
        assert not isinstance(alive.result(60), tuple)


def test_a_compilation_without_end_is_a_failure_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(build_module, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    with Builder(1, seconds=0.1) as builder:
        assert builder.submit("f01.cuh", {}, "f01", "sm_90a").result(300) == (
            "compile",
            "compiling took longer than 0.1 s",
        )


def test_leaving_the_builder_ends_what_still_compiles_and_starts_nothing_more(monkeypatch):
    monkeypatch.setattr(build_module, "_COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    with Builder(1) as builder:
        under_way, waiting = (builder.submit(f"f0{number}.cuh", {}, "f", "sm_90a") for number in (1, 2))
        while not builder._running:
            time.sleep(0.01)
    assert under_way.result(0)[0] == "crash"
    assert waiting.cancelled()
    assert not builder._running


# --- tw.tune ---------------------------------------------------------------------------------------------------------


def test_tune_refuses_the_emulator_machines_without_a_gpu_and_empty_products(monkeypatch):
    import numpy as np

    import tilewright as tw

    a = np.zeros((8, 8), np.float32)
    with tw.emulator(), pytest.raises(DeviceError, match="no times"):
        tw.tune(a, a)
    monkeypatch.setattr("tilewright.jit.device.gpu_available", lambda: False)
    with pytest.raises(DeviceError, match=r"measures on a CUDA GPU.*no times.*--merge FILE"):
        tw.tune(a, a)
    with pytest.raises(InvalidOperand, match="nothing can be tuned"):
        tw.tune(a[:0], a)


@pytest.mark.parametrize(("status", "refused"), [(0, False), (1, True), (2, True)])
def test_nothing_is_measured_while_a_graph_is_captured(monkeypatch, status, refused):
    from contextlib import nullcontext

    from tilewright import tuning
    from tilewright.jit import device as device_module

    asked = []

    class Driver:
        @staticmethod
        def cuStreamIsCapturing(stream):
            asked.append(stream)
            return 0, status

    monkeypatch.setattr(device_module, "driver", Driver)
    monkeypatch.setattr(device_module, "bound_to", lambda ordinal: nullcontext())
    with pytest.raises(DeviceError, match="Tune before the capture") if refused else nullcontext():
        tuning._refuse_capture(7, 0)
    assert asked == [7]


def test_tune_reads_the_operands_as_matmul_does(world, tuned_folder):
    import numpy as np

    import tilewright as tw

    a = np.zeros((3, 40, 64), np.float16)
    tuned = tw.tune(a, np.zeros((96, 64), np.float16).T, rungs=["h11"])
    (measured,) = world.measured
    assert (measured.m, measured.n, measured.k, measured.layout) == (120, 96, 64, "nt")  # the batch is folded into m
    assert tuned.entry.timed
    assert list(tuned_folder.rglob("*.json"))


def test_tune_measures_with_the_calls_epilogue(world, tuned_folder):
    import numpy as np

    import tilewright as tw
    from tilewright.epilogue import silu

    a, b, r = (np.zeros(shape, np.float16) for shape in ((64, 64), (64, 96), (64, 96)))
    tuned = tw.tune(a, b, epilogue=lambda acc, x, r: silu(acc * x) * r, x=np.ones(96, np.float32), r=r, rungs=["h11"])
    (measured,) = world.measured
    assert [(operand.name, operand.dtype) for operand in measured.epilogue.operands] == [("x", "f32"), ("r", "f16")]
    assert tuned.entry.klass.fused
    assert tuned.entry.epilogue == "silu(acc * x) * r"
    assert tw.explain(a, b, activation="tanh", gpu="H200").plan.source == "tuned here"
    assert tw.tune(a, b, bias=np.ones(96, np.float16), activation="gelu", rungs=["h11"]).space is None
    with pytest.raises(InvalidEpilogue, match="has no argument 'gate'"):
        tw.tune(a, b, gate=r)
    with pytest.raises(InvalidEpilogue, match="activation='swish' is not known"):
        tw.tune(a, b, activation="swish")
    with pytest.raises(InvalidOperand, match="does not broadcast to the result's shape"):
        tw.tune(a, b, bias=np.ones(64, np.float16))
