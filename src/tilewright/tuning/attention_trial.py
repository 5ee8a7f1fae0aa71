"""Attention that is measured: operands on a GPU, rows that are known exactly, and a reference result.

A result is judged twice. Some rows, of the first and the last head and of others, are computed in float64, and each of
their elements must be as near as rounding the weights and the result to 16 bits allows. Every element of the whole is
compared on the GPU with the result of a02, which passed the same test, by a looser measure: nothing may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays.dtypes import ITEM_BYTES
from ..attn.problem import AttentionProblem, HeadRows
from ..attn.rung import AttentionAddresses
from ..attn.rungs import find_attention_rung
from ..attn.stages import program_of
from ..errors import WrongResult
from ..jit import CompiledKernel
from ..plan.plan import Plan
from ..plan.space import Candidate
from .measure import FILL, GpuTrial, Run
from .race import rounded_up
from .verify import DIGITS, Difference, Pattern, as_float64

_REFERENCE = "a02"
_ROWS = 16
"""Neighbouring rows that are checked together: the first, the last and some between, of each head chosen."""
_DEVIATIONS = 12
"""A sum of weights rounded at random is allowed so many of its standard deviations."""
_FP32 = 2.0**-13
"""What exponents and sums in fp32 add, over the sum of weights times |V|, up to 16384 keys and beyond."""


@dataclass(frozen=True)
class ExactRows:
    """Rows of a head from `first` on: what they must be [rows, d_head], and how far each element may be off."""

    batch: int
    head: int
    first: int
    values: np.ndarray
    allowed: np.ndarray

    def wrong(self, found: np.ndarray) -> int:
        """Return how many elements are not what they must be; a NaN is not."""
        return int((~(np.abs(found - self.values) <= self.allowed)).sum())


class AttentionTrial(GpuTrial[AttentionProblem, AttentionAddresses]):
    """See GpuTrial. The problem is dense and plain: nothing is done to its scores."""

    def __init__(self, problem: AttentionProblem, ordinal: int, pattern: Pattern) -> None:
        item, d = ITEM_BYTES[problem.dtype], problem.d_head
        elements = problem.batch * problem.heads_q * problem.seq_q * d
        self._q_bytes = rounded_up(elements * item)
        self._kv_bytes = rounded_up(problem.batch * problem.heads_kv * problem.seq_k * d * item)
        self._operand_bytes = self._q_bytes + 2 * self._kv_bytes
        self._work = self._work_bytes = 0
        super().__init__(problem, ordinal, pattern, self._operand_bytes, problem.dtype, elements)

    def place(self, count: int) -> None:
        self._operands = self._memory.filled(count * self._operand_bytes, self.pattern)

    def addresses(self, number: int, out: int) -> AttentionAddresses:
        q = self._operands + number * self._operand_bytes
        return AttentionAddresses(q, q + self._q_bytes, q + self._q_bytes + self._kv_bytes, out)

    # --- the reference -----------------------------------------------------------------------------------------------

    def _values(self, name: str, rows: HeadRows, batch: int, head: int, first: int, count: int) -> np.ndarray:
        """float64 [count, d_head] of an operand of the first set."""
        base = (getattr(self.sets[0], name) - self._operands) // self.pattern.item_bytes
        base += batch * rows.batch_stride + head * rows.head_stride
        places = base + (first + np.arange(count))[:, None] * rows.row_stride + np.arange(self.problem.d_head)[None, :]
        return self.pattern.values(places)

    def _exact_rows(self) -> list[ExactRows]:
        problem = self.problem
        random = np.random.default_rng(3)
        heads = {(0, 0), (problem.batch - 1, problem.heads_q - 1)}
        heads |= {(int(random.integers(problem.batch)), int(random.integers(problem.heads_q))) for _ in range(2)}
        count = min(_ROWS, problem.seq_q)
        last = problem.seq_q - count
        found = []
        for batch, head in sorted(heads):
            shared = head // problem.group
            keys = self._values("k", problem.k, batch, shared, 0, problem.seq_k)
            values = self._values("v", problem.v, batch, shared, 0, problem.seq_k)
            for first in sorted({0, last, int(random.integers(last + 1))}):
                queries = self._values("q", problem.q, batch, head, first, count)
                found.append(ExactRows(batch, head, first, *exact_attention(problem, queries, keys, values, first)))
        return found

    def make_reference(self) -> float:
        """a02's result. Raises WrongResult when it is not right."""
        self.exact = self._exact_rows()
        problem, rung = self.problem, find_attention_rung(_REFERENCE)
        config = rung.default(problem, self.gpu.arch)
        kernel = rung.compile(problem, config, self.gpu.arch)
        if reason := self.run_once(Candidate(rung, config, None), kernel):  # type: ignore[arg-type]
            raise WrongResult(
                f"{rung} is wrong for {problem.seq_q} x {problem.seq_k}, d_head {problem.d_head}: {reason}; so no "
                "candidate can be verified. Run `pytest -m gpu` to see which kernels are right here."
            )
        chunk = 1 << 24
        for start in range(0, self.elements, chunk):
            stop = min(start + chunk, self.elements)
            raw = self.executor.download(self.sets[0].out + 2 * start, 2 * (stop - start))
            values = as_float64(raw.view(self.pattern.stored.dtype), problem.dtype).astype(np.float32)
            self.executor.write(self.expected[0] + 4 * start, values.view(np.uint8))
        return 2 * max(float(rows.allowed.max()) for rows in self.exact)

    # --- candidates --------------------------------------------------------------------------------------------------

    def runs(self, candidate: Candidate, kernel: CompiledKernel, sets: Sequence[AttentionAddresses]) -> list[Run]:
        """The candidate's launches: one, or two where keys are in parts. The workspace is shared by all candidates."""
        program = program_of(self.problem, Plan(candidate.rung, candidate.config, "tuning", ""))
        if program.workspace_bytes > self._work_bytes:
            self._work, self._work_bytes = self._memory.allocate(program.workspace_bytes), program.workspace_bytes
        if program.workspace_bytes:
            self._memory.fill(self._work, FILL, program.workspace_bytes)
        kernels = [kernel if stage is program.product else stage.compile(self.gpu.arch) for stage in program.stages]
        return [
            [
                (made, stage.launch({"q": at.q, "k": at.k, "v": at.v, "out": at.out, "work": self._work}, {}))
                for made, stage in zip(kernels, program.stages, strict=True)
            ]
            for at in sets
        ]

    def judged(self) -> str:
        """The judgement of the rows that are known exactly."""
        out, rows = self.sets[0].out, self.problem.out
        assert isinstance(out, int)
        for exact in self.exact:
            first = exact.batch * rows.batch_stride + exact.head * rows.head_stride + exact.first * rows.row_stride
            raw = self.executor.download(out + 2 * first, 2 * exact.values.size)
            found = as_float64(raw.view(self.pattern.stored.dtype), self.problem.dtype).reshape(exact.values.shape)
            if wrong := exact.wrong(found):
                return (
                    f"{wrong} of {found.size} elements of rows {exact.first} to {exact.first + len(found) - 1}, head "
                    f"{exact.head} of batch entry {exact.batch}, are wrong or unwritten"
                )
        return ""

    def beside(self, found: Difference) -> str:
        return f"against {_REFERENCE}"


def exact_attention(
    problem: AttentionProblem, queries: np.ndarray, keys: np.ndarray, values: np.ndarray, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """(result in float64, what each element may be off) of the queries from `first` on, of one head.

    Each weight is rounded to 16 bits, at random: the sum is off by some deviations of sqrt(sum (weight v)^2) times the
    rounding, never by more than the sum of |weight v| times it; then comes fp32's share, and half a step of the result.
    """
    scores = problem.scale * (queries @ keys.T)
    place = (first + np.arange(len(queries)))[:, None] + problem.seq_k - problem.seq_q
    key = np.arange(len(keys))[None, :]
    if problem.window[0] >= 0:
        scores = np.where(key >= place - problem.window[0], scores, -np.inf)
    if problem.right >= 0:
        scores = np.where(key <= place + problem.right, scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(largest), 0.0, largest))
    total = weights.sum(-1, keepdims=True)
    weights /= np.where(total == 0, 1.0, total)
    result, size = weights @ values, weights @ np.abs(values)
    unit = 2.0 ** -DIGITS[problem.dtype]
    spread = np.sqrt((weights**2) @ (values**2))
    allowed = np.minimum(_DEVIATIONS * unit * spread, 2 * unit * size) + _FP32 * size + 1e-7
    step = 2.0 ** (np.floor(np.log2(np.abs(result) + allowed)) + 1 - DIGITS[problem.dtype])
    return result, allowed + step / 2
