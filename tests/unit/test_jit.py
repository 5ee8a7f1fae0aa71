"""From constants to a compiled kernel: rendering, includes, keys, ptxas's report, errors, the parameter struct."""

from __future__ import annotations

import contextlib
import re
import shutil
import struct
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tilewright import emu
from tilewright.errors import CompileError
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import _ARGS
from tilewright.gemm.rungs import find_rung
from tilewright.gpus import ARCHS
from tilewright.jit import cache as cache_module
from tilewright.jit import compile as compile_module
from tilewright.jit import compile_source, nvrtc
from tilewright.jit import source as source_module
from tilewright.jit.compile import BASE_OPTIONS, cache_key, compile_unit
from tilewright.jit.launch import current_executor, use_executor
from tilewright.jit.source import CUDA_ROOT, Source, gather, literal, render

FILL = 'extern "C" __global__ void fill(float* x) { x[threadIdx.x] = 1.0f; }'


# --- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (True, "bool", "true"),
        (False, "bool", "false"),
        (0, "int", "0"),
        (-7, "int", "-7"),
        (1.5, "float", "1.5f"),
        (1e-30, "float", "1e-30f"),
        (1.0, "float", "1.0f"),
        ("unsigned short", "type", "unsigned short"),
    ],
)
def test_constants_become_cpp_literals(value, kind, text):
    assert literal(value) == (kind, text)


def test_a_unit_names_its_constants_and_gathers_every_include():
    source = render("gemm/f12_multistage.cuh", {"tile_m": 128, "edge": True, "Item": "float"}, "gemm")
    assert "static constexpr int tile_m = 128;" in source.text
    assert "static constexpr bool edge = true;" in source.text
    assert "using Item = float;" in source.text
    assert source.name == "f12_multistage.cu"
    names = [name for name, _ in source.headers]
    assert {"gemm/f12_multistage.cuh", "gemm/args.cuh", "ptx/cp_async.cuh"} <= set(names)
    assert len(names) == len(set(names))


def test_an_include_that_is_nowhere_is_named_with_the_folders_searched(tmp_path):
    with pytest.raises(CompileError, match=rf'"mine/lost\.cuh" was not found in {re.escape(str(tmp_path))}'):
        gather('#include "mine/lost.cuh"\n', [tmp_path])


def test_includes_are_found_through_includes_and_once(tmp_path):
    (tmp_path / "one.cuh").write_text('#include "two.cuh"\n')
    (tmp_path / "two.cuh").write_text('#pragma once\n#include "one.cuh"\n')
    assert [name for name, _ in gather('#include "one.cuh"', [tmp_path])] == ["one.cuh", "two.cuh"]


# --- keys ------------------------------------------------------------------------------------------------------------


def key(text: str = FILL, **changes) -> str:
    values = {"arch": "sm_90a", "options": BASE_OPTIONS, "version": "13.0", "headers": (), "name": "f.cu"} | changes
    source = Source(text, values["name"], "fill", values["headers"])
    return cache_key(source, values["arch"], values["options"], values["version"])


def test_everything_that_changes_the_machine_code_changes_the_key():
    keys = [
        key(), key(FILL + " "), key(arch="sm_80"), key(options=(*BASE_OPTIONS, "-DX")), key(version="13.1"),
        key(headers=(("a.cuh", "int x;"),)), key(headers=(("a.cuh", "int y;"),)), key(headers=(("b.cuh", "int x;"),)),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert key() == key()
    assert re.fullmatch("[0-9a-f]{64}", key())


def test_the_key_and_the_machine_code_do_not_depend_on_where_the_package_lies(tmp_path, monkeypatch):
    moved = tmp_path / "elsewhere" / "cuda"
    shutil.copytree(CUDA_ROOT, moved)
    rung, problem = find_rung("f01"), GemmProblem.dense(64, 64, 64)
    constants = rung.constants(problem, rung.default)
    here = render("gemm/f01_naive.cuh", constants, "gemm")
    monkeypatch.setattr(source_module, "CUDA_ROOT", moved)
    there = render("gemm/f01_naive.cuh", constants, "gemm")
    assert here == there
    assert cache_key(here, "sm_80", (), "13.0") == cache_key(there, "sm_80", (), "13.0")
    assert str(CUDA_ROOT) not in here.text + "".join(text for _, text in here.headers)


# --- ptxas's report --------------------------------------------------------------------------------------------------

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, used 2 barriers, 8 bytes cumulative stack size, 49152 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 12.3 ms
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 360 bytes cmem[0]
"""


def test_resources_are_read_from_the_entrys_own_part_of_the_report():
    assert nvrtc.parse_resources(LOG, "first") == nvrtc.Resources(255, 16, 24, 8, 49152, 2)
    assert nvrtc.parse_resources(LOG, "second") == nvrtc.Resources(10, 0, 0, 0, 0, 0)


def test_a_report_without_the_entry_is_an_error_and_not_zeros():
    with pytest.raises(CompileError, match="no registers for entry 'third'"):
        nvrtc.parse_resources(LOG, "third")
    with pytest.raises(CompileError):
        nvrtc.parse_resources("", "first")


# --- compiling -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv(cache_module.ENVIRONMENT_VARIABLE, str(tmp_path))


@pytest.mark.parametrize("arch", ARCHS)
def test_every_known_architecture_gets_machine_code_and_ptx(fresh, arch):
    kernel = compile_source(FILL, entry="fill", arch=arch)
    assert kernel.cubin.startswith(b"\x7fELF")
    assert re.search(rf"^\.target {arch}", kernel.ptx, re.MULTILINE)
    assert ".visible .entry fill(" in kernel.ptx
    assert kernel.resources.registers > 0


def test_a_kernel_compiles_once_in_a_process_and_then_comes_from_memory(fresh):
    kernel = compile_source(FILL, entry="fill")
    assert not kernel.from_cache
    assert compile_source(FILL, entry="fill") is kernel


def test_a_kernel_that_is_cached_is_had_without_loading_nvrtc(fresh, monkeypatch):
    first = compile_source(FILL, entry="fill")
    compile_module._in_memory.clear()  # as a new process would find it

    def loaded() -> None:
        raise AssertionError("NVRTC was loaded")

    monkeypatch.setattr(nvrtc, "version", loaded)
    monkeypatch.setattr(nvrtc, "bindings", loaded)
    again = compile_source(FILL, entry="fill")
    assert (again.from_cache, again.key, again.cubin) == (True, first.key, first.cubin)
    with pytest.raises(AssertionError, match="NVRTC was loaded"):
        compile_source(FILL.replace("1.0f", "2.0f"), entry="fill")


def test_a_kernel_is_kept_under_the_version_that_made_it_where_that_is_not_the_wheels(fresh, monkeypatch):
    monkeypatch.setattr(nvrtc, "installed", lambda: "0.1")
    first = compile_source(FILL, entry="fill")
    assert not first.from_cache
    assert compile_source(FILL, entry="fill") is first
    for wheel in ("0.1", "", nvrtc.version()):
        compile_module._in_memory.clear()
        monkeypatch.setattr(nvrtc, "installed", lambda wheel=wheel: wheel)
        again = compile_source(FILL, entry="fill")
        assert (again.from_cache, again.key) == (True, first.key)


@pytest.mark.parametrize(
    ("bindings", "version"),
    [(["13.4.4"], "13.2"), (["12.9.4"], "12.9"), (["14.0.0"], ""), ([], ""), (["12.9.4", "13.4.4"], "")],
)
def test_the_version_is_that_of_the_wheel_that_cuda_bindings_loads(tmp_path, monkeypatch, bindings, version):
    assert nvrtc.installed() == nvrtc.version()
    for folder, built in (("cu13", "13.2"), ("cuda_nvrtc", "12.9")):
        (tmp_path / "nvidia" / folder / "lib").mkdir(parents=True)
        for name in ("libnvrtc.so.{}", "libnvrtc-builtins.so.{}", "libnvrtc-builtins.alt.so.{}"):
            (tmp_path / "nvidia" / folder / "lib" / name.format(built)).touch()
    for installed in bindings:
        (tmp_path / f"cuda_bindings-{installed}.dist-info").mkdir()
    monkeypatch.setattr(
        nvrtc, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path / name)])
    )
    assert nvrtc.installed.__wrapped__() == version


@pytest.mark.parametrize(
    ("bindings", "loads"), [("12.9.4", ["libnvrtc-builtins.so.12.9", "libnvrtc.so.12"]), ("13.4.4", [])]
)
def test_cuda_bindings_12_get_nvrtc_12_although_13_is_installed_too(tmp_path, monkeypatch, bindings, loads):
    for folder, built in (("cu13", "13.2"), ("cuda_nvrtc", "12.9")):
        (tmp_path / "nvidia" / folder / "lib").mkdir(parents=True)
        (tmp_path / "nvidia" / folder / "lib" / f"libnvrtc-builtins.so.{built}").touch()
    (tmp_path / f"cuda_bindings-{bindings}.dist-info").mkdir()
    loaded = []
    monkeypatch.setattr(
        nvrtc, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path / name)])
    )
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", lambda path: loaded.append(Path(path)))
    nvrtc._load_own_generation()
    assert [path.name for path in loaded] == loads
    assert all(path.parent == tmp_path / "nvidia" / "cuda_nvrtc" / "lib" for path in loaded)


def test_no_version_is_read_where_there_are_two_of_a_wheel_or_none(tmp_path, monkeypatch):
    (tmp_path / "cuda_bindings-13.0.0.dist-info").mkdir()
    places = [str(tmp_path / "one"), str(tmp_path / "other")]
    for place in places:
        (Path(place) / "cu13" / "lib").mkdir(parents=True)
        (Path(place) / "cu13" / "lib" / "libnvrtc-builtins.so.13.2").touch()

    def spec(name):
        return SimpleNamespace(submodule_search_locations=places if name == "nvidia" else [str(tmp_path / "cuda")])

    monkeypatch.setattr(nvrtc, "find_spec", spec)
    assert nvrtc.installed.__wrapped__() == ""
    monkeypatch.undo()
    for none in (None, ModuleType("nvidia")):
        monkeypatch.setitem(sys.modules, "nvidia", none)
        assert nvrtc.installed.__wrapped__() == ""


def test_an_architecture_that_the_compiler_does_not_know_is_named_with_those_it_does(fresh):
    with pytest.raises(CompileError, match=r"NVRTC .* does not compile for sm_70, but for sm_75, .*sm_120"):
        compile_source(FILL, entry="fill", arch="sm_70")


def test_threads_that_ask_at_once_get_one_compilation(fresh, monkeypatch):
    builds = []
    build = nvrtc.build

    def counted(*arguments):
        builds.append(arguments)
        time.sleep(0.05)
        return build(*arguments)

    monkeypatch.setattr(nvrtc, "build", counted)
    kernels = []
    threads = [threading.Thread(target=lambda: kernels.append(compile_source(FILL, entry="fill"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert len(kernels) == 4
    assert all(kernel is kernels[0] for kernel in kernels)


def test_a_source_that_does_not_compile_shows_the_compilers_words_and_line(fresh):
    with pytest.raises(CompileError, match=r"mine\.cu\(2\): error") as caught:
        compile_source(
            'extern "C" __global__ void fill(float* x) {\n  x[0] = nonsense;\n}', entry="fill", name="mine.cu"
        )
    assert "nonsense" in caught.value.log
    assert "mine.cu does not compile for sm_90a" in str(caught.value)


def test_an_entry_that_is_not_there_is_named_with_how_to_declare_it(fresh):
    with pytest.raises(CompileError, match=r"no kernel 'filll'; it has fill\. Give its name as C\+\+ knows it"):
        compile_source(FILL, entry="filll", name="mine.cu")
    assert compile_module.kernel_cache().keys() == [], "nothing half-known is stored"


class RunsPtx:
    runs_ptx = True


def test_an_executor_that_runs_ptx_gets_the_same_ptx_and_machine_code_only_when_asked(fresh, monkeypatch):
    targets, build = [], nvrtc.build
    monkeypatch.setattr(nvrtc, "build", lambda *arguments: targets.append(arguments[1]) or build(*arguments))
    with use_executor(RunsPtx()):
        kernel = compile_source(FILL, entry="fill")
        assert compile_source(FILL, entry="fill") is kernel
    assert (targets, kernel.arch) == (["compute_90a"], "sm_90a")
    whole = compile_source(FILL, entry="fill")
    assert targets == ["compute_90a", "sm_90a"]
    assert whole.ptx == kernel.ptx
    assert kernel.cubin == whole.cubin
    assert kernel.resources == whole.resources
    assert len(targets) == 2, "the machine's code is the one that was made"


def test_an_executor_that_runs_ptx_takes_the_ptx_of_a_kernel_that_is_there(fresh, monkeypatch):
    whole = compile_source(FILL, entry="fill")
    monkeypatch.setattr(nvrtc, "build", None)
    with use_executor(RunsPtx()):
        kernel = compile_source(FILL, entry="fill")
    assert kernel.from_cache
    assert (kernel.ptx, kernel.cubin) == (whole.ptx, whole.cubin)


def test_an_executor_that_runs_ptx_is_told_of_an_entry_that_is_not_there(fresh):
    with use_executor(RunsPtx()), pytest.raises(CompileError, match="no kernel 'filll'"):
        compile_source(FILL, entry="filll")


def test_a_persons_own_header_is_found_and_is_part_of_the_key(fresh, tmp_path):
    (tmp_path / "value.cuh").write_text("constexpr float value = 3.0f;")
    text = '#include "value.cuh"\n' + FILL.replace("1.0f", "value")
    first = compile_source(text, entry="fill", include=[tmp_path])
    source_module._read.cache_clear()
    (tmp_path / "value.cuh").write_text("constexpr float value = 4.0f;")
    second = compile_source(text, entry="fill", include=[tmp_path])
    assert first.key != second.key
    assert first.cubin != second.cubin


# --- the parameter struct --------------------------------------------------------------------------------------------


def test_the_packed_parameters_are_the_struct_of_the_device_code():
    """A kernel reads every field by name from bytes packed in pack_args' order, each field with a value of its own."""
    pointers = ["a", "b", "c", "out"]
    longs = [f"{name}_batch" for name in pointers]
    longs += [f"{name}_{axis}" for name in pointers for axis in ("row", "col")]
    scalars = ["m", "n", "k", "alpha", "beta"]
    names = [*pointers, *longs, *scalars]
    reads = [f"values[{i}] = (long long)args.{name};" for i, name in enumerate(names)]
    text = "\n".join([
        '#include "gemm/args.cuh"',
        f"static_assert(sizeof(GemmArgs) == {struct.calcsize(_ARGS)});",
        'extern "C" __global__ void probe(GemmArgs args, long long* values) {',
        *reads,
        "}",
    ])  # fmt: skip
    kernel = compile_unit(Source(text, "probe.cu", "probe", gather(text, (CUDA_ROOT,))), "sm_80")
    memory = emu.GlobalMemory()
    values = memory.add(np.zeros(len(names), np.int64), "values")
    params = struct.pack(_ARGS, *range(1, len(names) + 1)) + struct.pack("<Q", values)
    emu.run(kernel.ptx, "probe", grid=(1, 1, 1), block=(1, 1, 1), params=params, memory=memory)
    assert memory.read(values, 8 * len(names)).view(np.int64).tolist() == list(range(1, len(names) + 1))


# --- executors -------------------------------------------------------------------------------------------------------


def test_an_executor_is_in_force_inside_its_block_alone_also_after_an_error():
    outer, inner = object(), object()
    with use_executor(outer):
        with contextlib.suppress(KeyError), use_executor(inner):
            assert current_executor() is inner
            raise KeyError
        assert current_executor() is outer
    assert current_executor() is None


def test_an_executor_of_one_thread_is_not_in_force_in_another():
    seen = []
    with use_executor(object()):
        thread = threading.Thread(target=lambda: seen.append(current_executor()))
        thread.start()
        thread.join()
    assert seen == [None]
