"""Strangers' sources are compiled in another process, which may die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

import pytest

from tilewright.errors import CompileError
from tilewright.jit import cache, compile_source, nvrtc, workers

FILL = 'extern "C" __global__ void fill(float* x) {{ x[threadIdx.x] = {}; }}'

DYING = """
import os, signal
from tilewright.jit import nvrtc
build = nvrtc.build
def dies_of_seven(source, *rest):
    if "= 7" in source.text:
        os.kill(os.getpid(), signal.SIGSEGV)
    return build(source, *rest)
nvrtc.build = dies_of_seven
serve = nvrtc.serve
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(workers, "_idle", {})
    yield
    workers._end_all()


@pytest.fixture
def a_compiler_that_dies_of_seven(tmp_path, monkeypatch):
    (tmp_path / "dying_compiler.py").write_text(DYING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(nvrtc, "SERVER", "dying_compiler")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_a_source_that_nvrtc_dies_of_is_an_error_and_the_next_one_compiles(a_compiler_that_dies_of_seven):
    for _ in range(2):
        with pytest.raises(
            CompileError, match=r"seven\.cu does not compile for sm_90a: NVRTC .* ended by SIGSEGV"
        ) as e:
            compile_source(FILL.format(7), entry="fill", name="seven.cu")
        assert "nvcc -ptx" in str(e.value)
    assert compile_source(FILL.format(8), entry="fill").ptx


def test_one_process_compiles_one_source_after_another(monkeypatch):
    kernels = [compile_source(FILL.format(number), entry="fill") for number in (1, 2)]
    assert kernels[0].ptx != kernels[1].ptx
    (worker,) = workers._idle[nvrtc.SERVER]
    with pytest.raises(CompileError, match=r"fill\.cu\(1\): error"):
        compile_source(FILL.format("nonsense"), entry="fill", name="fill.cu")
    assert workers._idle[nvrtc.SERVER] == [worker]


@pytest.mark.parametrize("without", ["executable", "server"])
def test_where_no_process_can_be_started_nvrtc_runs_here(monkeypatch, without):
    if without == "executable":
        monkeypatch.setattr(sys, "executable", "")
    else:
        monkeypatch.setattr(nvrtc, "SERVER", "no_such_module")
    assert ".entry fill(" in compile_source(FILL.format(3), entry="fill").ptx
    assert not any(workers._idle.values())


def test_own_kernels_are_compiled_in_this_process(monkeypatch):
    from tilewright.jit.compile import compile_unit
    from tilewright.jit.source import Source

    monkeypatch.setattr(workers, "Worker", None)
    assert compile_unit(Source(FILL.format(4), "own.cu", "fill"), "sm_90a").ptx


def _compile_in_a_fork(answers) -> None:
    answers.put((os.getpid(), compile_source(FILL.format(6), entry="fill").ptx))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_takes_no_worker_of_its_parent():
    compile_source(FILL.format(5), entry="fill")
    (worker,) = workers._idle[nvrtc.SERVER]
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_compile_in_a_fork, args=(answers,))
    child.start()
    pid, ptx = answers.get(timeout=120)
    child.join()
    assert pid != os.getpid()
    assert ".entry fill(" in ptx
    assert worker.process.poll() is None
    assert compile_source(FILL.format(7), entry="fill").ptx
    assert workers._idle[nvrtc.SERVER] == [worker]
