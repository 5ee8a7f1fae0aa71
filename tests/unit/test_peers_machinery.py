"""What stands between a peer and the GPU: how products are described to cuBLASLt, races, kernels compiled ahead."""

from __future__ import annotations

import enum
import io
import pickle
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.errors import DeviceError
from tilewright.gemm.problem import GemmProblem
from tilewright.gpus import GPUS
from tilewright.lab.peers import build, cublaslt, cutlass, entrant
from tilewright.lab.peers.cublaslt_library import CublasLt
from tilewright.lab.peers.entrant import Entrant


class FakeLt:
    """cuBLASLt as its manual says: D = op(A) op(B) over columns, on arrays that stand for device memory."""

    MatmulDescAttribute = enum.IntEnum("MatmulDescAttribute", {"TRANSA": 3, "TRANSB": 4})
    MatmulPreferenceAttribute = enum.IntEnum("MatmulPreferenceAttribute", {"MAX_WORKSPACE_BYTES": 1})

    def __init__(self, memory: dict[int, np.ndarray], states: tuple[int, ...] = (0,)) -> None:
        self.memory, self.states, self.layouts, self.turned = memory, states, {}, {}

    def create(self):
        return 1

    def matmul_desc_create(self, compute, scale):
        assert (compute, scale) == (68, 0)
        return 2

    def matmul_desc_set_attribute(self, desc, attribute, place, size):
        assert size == 4
        self.turned[attribute] = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int32 * 1).from_address(place))[0] == 1

    def matrix_layout_create(self, kind, rows, cols, ld):
        assert ld == rows
        self.layouts[len(self.layouts) + 10] = (rows, cols)
        return len(self.layouts) + 9

    def matmul_preference_create(self):
        return 3

    def matmul_preference_set_attribute(self, preference, attribute, place, size):
        assert (attribute, size) == (1, 8)

    def matmul_preference_destroy(self, preference):
        pass

    def matmul_algo_get_heuristic(self, handle, desc, a, b, c, d, preference, limit, results, count):
        kind = np.ctypeslib.ctypes
        raw = (kind.c_uint8 * (96 * limit)).from_address(results)
        found = np.frombuffer(raw, cublaslt._RESULT)
        for number, state in enumerate(self.states):
            found[number]["state"], found[number]["algo"][0] = state, 100 + number
        kind.c_int32.from_address(count).value = len(self.states)

    def matmul(self, handle, desc, alpha, a, a_of, b, b_of, beta, c, c_of, d, d_of, algo, workspace, size, stream):
        def columns(address, layout):
            rows, cols = self.layouts[layout]
            return self.memory[address].reshape(cols, rows).T

        left, right = columns(a, a_of), columns(b, b_of)
        left, right = (left.T if self.turned[3] else left), (right.T if self.turned[4] else right)
        columns(d, d_of)[:] = left @ right
        self.used = np.ctypeslib.ctypes.c_uint64.from_address(algo).value


@pytest.fixture
def no_gpu(monkeypatch):
    for module in (cublaslt, entrant):
        monkeypatch.setattr(module, "bound_to", lambda ordinal: nullcontext())
    monkeypatch.setattr(cublaslt, "DeviceArray", lambda executor, shape, dtype: SimpleNamespace(address=99))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_product_described_to_cublaslt_is_ours(no_gpu, layout):
    problem, rng = GemmProblem.dense(3, 4, 5, layout=layout), np.random.default_rng(0)
    a, b, out = rng.standard_normal((3, 5)), rng.standard_normal((5, 4)), np.zeros((3, 4))
    stored = [np.ascontiguousarray(x.T if letter == "t" else x) for x, letter in zip((a, b), layout, strict=True)]
    lt = FakeLt({1: stored[0].reshape(-1), 2: stored[1].reshape(-1), 3: out.reshape(-1)})
    matmul = cublaslt._Matmul(lt, problem, SimpleNamespace(ordinal=0))
    buffers = SimpleNamespace(
        a=SimpleNamespace(address=1), b=SimpleNamespace(address=2), out=SimpleNamespace(address=3)
    )
    matmul.candidate(0, matmul.algorithms()).prepare(buffers)(0)
    np.testing.assert_allclose(out, a @ b)


def test_each_candidate_runs_its_own_algorithm_and_failed_ones_are_left_out(no_gpu):
    assert cublaslt._RESULT.itemsize == 96
    memory = {1: np.zeros(64), 2: np.zeros(64), 3: np.zeros(64)}
    lt = FakeLt(memory, states=(0, 7, 0))
    matmul = cublaslt._Matmul(lt, GemmProblem.dense(8, 8, 8), SimpleNamespace(ordinal=0))
    algorithms = matmul.algorithms()
    buffers = SimpleNamespace(
        a=SimpleNamespace(address=1), b=SimpleNamespace(address=2), out=SimpleNamespace(address=3)
    )
    used = []
    for number in range(len(algorithms)):
        matmul.candidate(number, algorithms).prepare(buffers)(0)
        used.append(lt.used)
    assert used == [100, 102]


class FakeLibrary:
    """cuBLASLt's functions as a C library has them: a status is returned, a handle is written through a pointer."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.given = status, []

    def __getattr__(self, name: str):
        def function(*arguments):
            self.given.append((name, [getattr(each, "value", each) for each in arguments]))
            if hasattr(arguments[0], "_obj"):
                arguments[0]._obj.value = 7
            return self.status

        function.restype = None
        self.__dict__[name] = function
        return function


def test_cublaslts_functions_take_sizes_of_64_bits_and_give_handles():
    library = FakeLibrary()
    library.cublasLtGetVersion = lambda: 130200
    lt = CublasLt(library)
    assert lt.get_version() == 130200
    assert lt.create() == lt.matrix_layout_create(14, 1 << 33, 2, 1 << 33) == 7
    assert library.given[-1] == ("cublasLtMatrixLayoutCreate", [library.given[-1][1][0], 14, 1 << 33, 2, 1 << 33])
    lt.matmul(*range(1, 17))
    assert library.given[-1] == ("cublasLtMatmul", list(range(1, 17)))
    lt.matmul_algo_get_heuristic(1, 2, 3, 4, 5, 6, 7, 32, 9, 10)
    assert library.given[-1] == ("cublasLtMatmulAlgoGetHeuristic", [1, 2, 3, 4, 5, 6, 7, 32, 9, 10])


def test_a_function_of_cublaslt_that_fails_is_named_with_its_status():
    library = FakeLibrary(status=15)
    library.cublasLtGetVersion = lambda: 130200
    with pytest.raises(DeviceError, match="cublasLtMatmulDescCreate failed with status 15"):
        CublasLt(library).matmul_desc_create(68, 0)


@pytest.mark.parametrize("scale", [1.0, 0.01])  # long products one by one, short ones as a graph of all sets
def test_a_race_gives_each_candidate_its_own_time_in_whatever_order_they_run(no_gpu, monkeypatch, scale):
    class Watch:
        def __init__(self, ordinal):
            pass

        def close(self):
            pass

        @contextmanager
        def graph_of(self, launches):
            yield sum(launches)

        def measure(self, launches):
            return list(launches)

    monkeypatch.setattr(entrant, "Stopwatch", Watch)
    times = [3.0 * scale, 1.0 * scale, 2.0 * scale, 5.0 * scale]
    entrants = [Entrant(str(ms), lambda buffers, ms=ms: ms) for ms in times]  # a launch here is what it takes
    ground = SimpleNamespace(where=SimpleNamespace(ordinal=0), sets=[None] * 3)
    assert entrant.race(entrants, ground, rounds=5) == pytest.approx(times)


def test_every_kernel_is_handed_to_exactly_one_process(monkeypatch):
    tasks = []

    class Process:
        def __init__(self, command, stdin, stderr):
            self.stdin = io.BytesIO()
            self.stdin.close = lambda: tasks.append(pickle.loads(self.stdin.getvalue()))  # type: ignore[method-assign]

        def wait(self):
            pass

    monkeypatch.setattr(build.subprocess, "Popen", Process)
    monkeypatch.setattr(build.os, "cpu_count", lambda: 6)
    problem, arch = GemmProblem.dense(64, 64, 64, dtype="bf16"), GPUS["H200"].arch
    build.compile_ahead(problem, cutlass.SWEEP, arch)
    assert len(tasks) == 6
    assert sorted(map(str, cutlass.SWEEP)) == sorted(str(config) for task in tasks for config in task[1])
    assert all(task[0] == problem and task[2] == arch for task in tasks)
    build.compile_ahead(problem, cutlass.SWEEP[: build.FEWEST - 1], arch)
    assert len(tasks) == 6
