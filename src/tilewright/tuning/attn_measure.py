"""Attention candidates on a GPU: verified one by one, then timed side by side on rotated operands larger than the L2.

A result is judged twice. Some rows, of the first and the last head and of others, are computed in float64, and each of
their elements must be as near as rounding the weights and the result to 16 bits allows. Every element of the whole is
compared on the GPU with the result of a02, which passed the same test, by a looser measure: nothing may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..arrays.dtypes import ITEM_BYTES
from ..attn.problem import AttentionProblem, HeadRows
from ..attn.rung import AttentionAddresses
from ..attn.rungs import find_attention_rung
from ..errors import WrongResult
from ..jit import CompiledKernel, Launch
from ..jit.device import Prepared, executor_for
from ..jit.timing import Launch as Start
from ..plan.space import Candidate
from .measure import FILL, GUARD
from .race import Memory, Race, rounded_up, sets_for
from .verify import DIGITS, RESULT_BYTES, Pattern, as_float64, compare_kernel, compare_launch, read_difference

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
        """How many elements are not what they must be; a NaN is not."""
        return int((~(np.abs(found - self.values) <= self.allowed)).sum())


class AttentionMeasurer:
    """Runs the candidates of one problem on one GPU. A context manager; frees what it holds.

    The problem is dense and plain: nothing is done to its scores. Raises DeviceError when the memory does not suffice.
    """

    def __init__(self, problem: AttentionProblem, ordinal: int, pattern: Pattern) -> None:
        self.problem, self.pattern, self.ordinal = problem, pattern, ordinal
        self.executor = executor_for(ordinal)
        self.gpu = self.executor.gpu
        item, d = ITEM_BYTES[problem.dtype], problem.d_head
        self.elements = problem.batch * problem.heads_q * problem.seq_q * d
        keys = problem.batch * problem.heads_kv * problem.seq_k * d
        q_bytes, kv_bytes = rounded_up(self.elements * item), rounded_up(keys * item)
        operand_bytes, out_bytes = q_bytes + 2 * kv_bytes, rounded_up(self.elements * item + 2 * GUARD)
        count = sets_for(operand_bytes + out_bytes, self.gpu.l2)
        self._stack = ExitStack()
        self._memory = Memory(ordinal, self._stack)
        try:
            self.operands = self._memory.filled(count * operand_bytes, pattern)
            outs = self._memory.allocate(count * out_bytes)
            self.expected = self._memory.allocate(4 * self.elements)
            self.result = self._memory.allocate(RESULT_BYTES)
            self.sets = []
            for i in range(count):
                q = self.operands + i * operand_bytes
                out = outs + i * out_bytes + GUARD
                self.sets.append(AttentionAddresses(q, q + q_bytes, q + q_bytes + kv_bytes, out))
            self._race = Race(ordinal, self._stack)
            self.compare = compare_kernel(problem.dtype, self.gpu.arch.name)
            self.exact = self._exact_rows()
            self.loose = 2 * max(float(rows.allowed.max()) for rows in self.exact)
            self._make_reference()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> AttentionMeasurer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- verification ------------------------------------------------------------------------------------------------

    def _values(self, name: str, rows: HeadRows, batch: int, head: int, first: int, count: int) -> np.ndarray:
        """float64 [count, d_head] of an operand of the first set."""
        base = (getattr(self.sets[0], name) - self.operands) // self.pattern.item_bytes
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

    def _make_reference(self) -> None:
        """Leave a02's result, as fp32, in self.expected. Raises WrongResult when it is not right."""
        problem, rung = self.problem, find_attention_rung(_REFERENCE)
        config = rung.default(problem, self.gpu.arch)
        kernel = rung.compile(problem, config, self.gpu.arch)
        if reason := self._run(kernel, Candidate(rung, config, None)):  # type: ignore[arg-type]
            raise WrongResult(
                f"{rung} is wrong for {problem.seq_q} x {problem.seq_k}, d_head {problem.d_head}: {reason}; so no "
                "candidate can be verified. Run `pytest -m gpu` to see which kernels are right here."
            )
        chunk = 1 << 24
        for start in range(0, self.elements, chunk):
            stop = min(start + chunk, self.elements)
            raw = self.executor.download(self.sets[0].out + 2 * start, 2 * (stop - start))
            values = as_float64(raw.view(self.pattern.stored.dtype), problem.dtype).astype(np.float32)
            self.executor.write(self.expected + 4 * start, values.view(np.uint8))

    def _run(self, kernel: CompiledKernel, candidate: Candidate) -> str:
        """Run on the first set into poisoned memory; what is wrong with the guards and the rows known exactly."""
        out, nbytes = self.sets[0].out, 2 * self.elements
        self._memory.fill(out - GUARD, FILL, nbytes + 2 * GUARD)
        self.executor.launch(kernel, candidate.rung.launch(self.problem, candidate.config, self.sets[0]))
        self.executor.synchronize()
        for place in (out - GUARD, out + nbytes):
            if (self.executor.download(place, GUARD) != FILL).any():
                return "it wrote outside its output"
        rows = self.problem.out
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

    def verify(self, candidate: Candidate, kernel: CompiledKernel) -> str:
        """ "" when the candidate is right, else what is wrong. Raises DeviceError when it cannot be launched."""
        if reason := self._run(kernel, candidate):
            return reason
        self._memory.fill(self.result, 0, RESULT_BYTES)
        launch = compare_launch(self.sets[0].out, self.expected, self.result, self.elements, self.loose)
        self.executor.launch(self.compare, launch)
        found = read_difference(self.executor.download(self.result, RESULT_BYTES))
        if found.wrong:
            return f"{found.wrong} of {self.elements} elements are wrong or unwritten (against {_REFERENCE})"
        return ""

    # --- times -------------------------------------------------------------------------------------------------------

    def prepare(self, candidate: Candidate, kernel: CompiledKernel) -> None:
        """Make ready to be timed."""
        launches = [candidate.rung.launch(self.problem, candidate.config, addresses) for addresses in self.sets]

        def starts() -> list[Start]:
            prepared = Prepared(kernel, launches[0], self.ordinal)
            return [partial(_start, prepared, launch) for launch in launches]

        self._race.enter(candidate, starts)

    def one_pass(self, candidates: Sequence[Candidate], number: int) -> list[float]:
        """Milliseconds of each, side by side."""
        return self._race.one_pass(candidates, number)


def _start(prepared: Prepared, launch: Launch, stream: int) -> None:
    prepared.launch(launch.params, stream, launch.maps)


def plain(problem: AttentionProblem) -> AttentionProblem:
    """The problem as it is tuned: dense operands, nothing done to its scores, no LSE, entries of one length."""
    return replace(
        AttentionProblem.dense(
            problem.batch, problem.heads_q, problem.seq_q, problem.seq_k, problem.d_head, heads_kv=problem.heads_kv,
            dtype=problem.dtype, is_causal=problem.is_causal,
        ),
        window=problem.window,
    )  # fmt: skip


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
