"""Tests neither see nor touch what the user of this machine has tuned; those that need the GPU do not share it."""

from __future__ import annotations

import gc
import os
import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "everywhere", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("everywhere")  # a busy machine fails nothing, and one that passes passes again
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes the memory of the tests beside it
if "PYTEST_XDIST_WORKER" in os.environ:  # a process a core already: more of them, and threads, only wait
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ.setdefault(_name, "1")
gc.set_threshold(200_000, 20, 50)  # the emulator's programs are many small objects that live on: a sixth of its time
_FOLDER = tempfile.TemporaryDirectory(prefix="tilewright-tuned-")
os.environ["TILEWRIGHT_TUNED"] = _FOLDER.name


MATRICES = {
    "test_split_attention.py", "test_hopper_attention.py", "test_hopper_attention_compiled.py",
    "test_attention_backward.py", "test_backward_ladder.py", "test_tma_rungs.py", "test_tma_compiled.py", "test_fp8.py",
    "test_fp8_compiled.py", "test_grouped.py", "test_grouped_fp8.py", "test_tensor_rungs.py", "test_tensor32_rungs.py",
    "test_quantize.py", "test_page_traces.py", "test_halves_rungs.py", "test_random_grouped.py", "test_random_fp8.py",
    "test_random_programs.py", "test_quantize_kernels.py", "test_tensor_forms.py", "test_attention_rungs.py",
    "test_attention_op.py",
    "test_rungs.py", "test_matmul_16bit.py", "test_matmul_on_emulator.py",
}  # fmt: skip
"""Files whose tests cross many shapes with many rungs, or draw many. CI runs the last line's whole, by name."""
EVERY = 12
EVERY_ON_GPU, MANY_ON_GPU = 3, 40
"""On a GPU, a test of more than MANY_ON_GPU cases runs every third of them."""


def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true", help="every case of the largest matrices, not a part of them")
    parser.addoption(
        "--skips", metavar="FILE", help="write down what torch or jax is missing for: run it by pytest @FILE"
    )


def pytest_sessionstart(session):
    """Have the emulator's compiled loops, where there is a compiler, so that every test runs on them."""
    if not hasattr(session.config, "workerinput"):
        from tilewright.emu import compiled

        compiled.build()


def pytest_collection_modifyitems(config, items):
    """Of a test of MATRICES keep every twelfth case (all of them take two cores over a quarter of an hour), of one with
    many cases on a GPU every third. What is named on the command line runs whole, as everything does with `--whole`."""
    if config.getoption("--whole") or config.option.markexpr not in ("gpu", "not gpu"):
        return
    if any("::" in argument or argument.endswith(".py") for argument in config.args):
        return
    cases = Counter(_test(item) for item in items)
    seen: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        test = _test(item)
        every = _every(item, cases[test])
        (kept if seen[test] == 0 or seen[test] % every == len(test) % every else left).append(item)
        seen[test] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_collection_finish():
    gc.freeze()  # all that was imported and collected stays to the end: a test that collects garbage passes it by


def _test(item) -> str:
    return item.nodeid.split("[")[0]


def _every(item, cases: int) -> int:
    """1 for every case, 3 for every third."""
    if item.path.parent.name == "gpu":
        return EVERY_ON_GPU if cases > MANY_ON_GPU else 1
    return EVERY if item.path.name in MATRICES and "[" in item.nodeid else 1


def pytest_terminal_summary(terminalreporter, config):
    if file := config.getoption("--skips"):
        skipped = [report for report in terminalreporter.stats.get("skipped", ()) if not hasattr(report, "wasxfail")]
        wanted = [report.nodeid for report in skipped if re.search("torch|jax|transformers", report.longrepr[2])]
        Path(file).write_text("".join(f"{name}\n" for name in wanted))


@pytest.fixture
def tuned_folder(tmp_path, monkeypatch):
    """An empty folder that tuning results go to."""
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    return tmp_path / "tuned"


@pytest.fixture
def store(tuned_folder, monkeypatch):
    """The empty store of an H200 for which no table ships."""
    from tilewright.gpus import GPUS
    from tilewright.plan import tables
    from tilewright.plan.entries import table_of

    monkeypatch.setattr(tables, "shipped", lambda gpu: table_of([]))
    monkeypatch.setattr(tables, "driver_name", lambda: "cuda13")
    tables._stores.clear()
    tables.results_changed()
    yield tables.store_of(GPUS["H200"])
    tables._stores.clear()
    tables.results_changed()


def pytest_ignore_collect(collection_path, config):
    """Tests that need the GPU are not read where they are left out; by name they still are."""
    return True if collection_path.name == "gpu" and config.option.markexpr == "not gpu" else None


def pytest_xdist_auto_num_workers(config):
    """Of `-n auto`: a process a core (None leaves it to xdist); for the tests that need the GPU one alone."""
    return None if "not gpu" in config.option.markexpr else 0
