"""cuBLASLt's best algorithm: all that its heuristics offer, each timed here, as bare cublasLtMatmul calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arrays.device_array import DeviceArray
from ...errors import ConfigRejected, DeviceError, MissingDependency, install
from ...gemm.problem import GemmProblem
from ...jit.device import bound_to
from ...jit.gpu_executor import GpuExecutor
from ...jit.timing import Start
from ..ground import Buffers, Ground
from .cublaslt_library import cublaslt
from .entrant import Contender, Entrant, Peer

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALGORITHMS = 32
"""How many the heuristics are asked for; often they know fewer."""
WORKSPACE = 32 << 20
"""Bytes that an algorithm may use: what cuBLAS itself takes on Hopper."""

_TYPES = {"f32": 0, "f16": 2, "bf16": 14}
"""cudaDataType_t: CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF."""
_COMPUTE_32F = 68
"""CUBLAS_COMPUTE_32F: fp32 sums, and fp32 products of fp32 operands (no tf32)."""
_RESULT = np.dtype(
    [("algo", "<u8", 8), ("workspace", "<u8"), ("state", "<i4"), ("waves", "<f4"), ("reserved", "<i4", 4)]
)
"""cublasLtMatmulHeuristicResult_t."""


class _Matmul:
    """One product described to cuBLASLt. It reads columns: out = A B is asked for as out^T = B^T A^T."""

    def __init__(self, lt: Any, problem: GemmProblem, executor: GpuExecutor) -> None:
        self.lt, self.problem, self.ordinal = lt, problem, executor.ordinal
        self.workspace = DeviceArray(executor, (WORKSPACE // 4,), "f32")  # one for all: launches follow one another
        self.one, self.zero = np.ones(1, np.float32), np.zeros(1, np.float32)
        m, n, k, of_a, of_b = problem.m, problem.n, problem.k, problem.layout[0], problem.layout[1]
        with bound_to(self.ordinal):
            self.handle = lt.create()
        self.operation = lt.matmul_desc_create(_COMPUTE_32F, _TYPES["f32"])
        for attribute, letter in (("TRANSA", of_b), ("TRANSB", of_a)):
            self._set(lt.matmul_desc_set_attribute, self.operation, lt.MatmulDescAttribute[attribute], letter == "t")
        in_type, out_type = _TYPES[problem.dtype], _TYPES[problem.out_dtype]
        self.first = self._layout(in_type, (n, k) if of_b == "n" else (k, n))
        self.second = self._layout(in_type, (k, m) if of_a == "n" else (m, k))
        self.result = self._layout(out_type, (n, m))

    def _layout(self, kind: int, shape: tuple[int, int]) -> Any:
        """Dense columns: the leading dimension is the number of rows."""
        return self.lt.matrix_layout_create(kind, shape[0], shape[1], shape[0])

    def _set(self, setter: Callable[..., None], thing: Any, attribute: Any, value: int, kind: Any = np.int32) -> None:
        held = np.array([value], kind)
        setter(thing, int(attribute), held.ctypes.data, held.nbytes)

    def algorithms(self) -> NDArray[Any]:
        """Return what the heuristics offer, in their order: records of _RESULT."""
        lt, found, count = self.lt, np.zeros(ALGORITHMS, _RESULT), np.zeros(1, np.int32)
        wishes = lt.matmul_preference_create()
        limit = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        self._set(lt.matmul_preference_set_attribute, wishes, limit, WORKSPACE, np.uint64)
        with bound_to(self.ordinal):
            lt.matmul_algo_get_heuristic(
                self.handle, self.operation, self.first, self.second, self.result, self.result, wishes, ALGORITHMS,
                found.ctypes.data, count.ctypes.data,
            )  # fmt: skip
        lt.matmul_preference_destroy(wishes)
        found = found[: int(count[0])]
        return found[found["state"] == 0]

    def launch_of(self, algorithm: NDArray[Any], buffers: Buffers) -> Start:
        """A bare call with everything at hand. `algorithm`: one record of _RESULT, in an array."""
        call, workspace, place = self.lt.matmul, self.workspace.address, algorithm.ctypes.data
        arguments = (
            self.handle, self.operation, self.one.ctypes.data, buffers.b.address, self.first, buffers.a.address,
            self.second, self.zero.ctypes.data, buffers.out.address, self.result, buffers.out.address, self.result,
            place, workspace, WORKSPACE,
        )  # fmt: skip

        def launch(stream: int, keep: Any = (algorithm, buffers)) -> None:
            with bound_to(self.ordinal):
                call(*arguments, stream)

        return launch

    def candidate(self, number: int, algorithms: NDArray[Any]) -> Entrant:
        algorithm = algorithms[number : number + 1].copy()  # its algo lies at the front
        used = int(algorithm["workspace"][0])
        text = f"heuristic {number + 1} of {len(algorithms)}" + (f", {used} B workspace" if used else "")
        config = {"heuristic": number, "workspace_bytes": used, "algo": algorithm["algo"][0].tolist()}
        return Entrant(text, lambda buffers: self.launch_of(algorithm, buffers), config)


def cublaslt_candidates(problem: GemmProblem, executor: GpuExecutor) -> Contender:
    """Every algorithm that the heuristics offer for a product. Raises MissingDependency, ConfigRejected."""
    lt = cublaslt()
    try:
        matmul = _Matmul(lt, problem, executor)
        algorithms = matmul.algorithms()
    except DeviceError as error:  # one that does not know the types
        raise MissingDependency(
            f"cuBLASLt {lt.get_version()} cannot be used: {error} Another version: {install('cublaslt')}"
        ) from error
    if not len(algorithms):
        raise ConfigRejected(f"cuBLASLt's heuristics know no algorithm for {problem.dtype} {problem.layout}.")
    return Contender(f"cuBLASLt {lt.get_version()}", [matmul.candidate(i, algorithms) for i in range(len(algorithms))])


def _enter(ground: Ground) -> Contender:
    return cublaslt_candidates(ground.problem, ground.executor)


CUBLASLT_BEST = Peer("cublaslt_best", "cuBLASLt's fastest algorithm of those its heuristics offer", _enter)
