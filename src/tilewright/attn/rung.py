"""An attention rung: data, why_not, and the launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..arrays.dtypes import CPP_TYPES, ceil_div
from ..errors import ConfigRejected
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Address, Scalar, Template, pack, pack_numbers
from ..jit.source import Constant
from .config import D_HEADS, AttentionConfig
from .problem import AttentionProblem, BiasRows, HeadRows

KERNELS = "attention/rungs.cuh"
"""The file of every rung; Cfg names one."""
_GRID_LIMIT = 65535


@dataclass(frozen=True)
class AttentionAddresses:
    """Device addresses, or places that a call fills in (jit/params.py). `lse`, `bias` and `starts_*` are 0 where the
    problem asks for none.

    `starts_q`, `starts_k`: int32 [batch + 1], where the problem has `totals`: the first row of each entry, and the end.
    """

    q: Address
    k: Address
    v: Address
    out: Address
    lse: Address = 0
    bias: Address = 0
    starts_q: Address = 0
    starts_k: Address = 0
    numbers: tuple[float | Scalar, ...] = ()
    """Those of the function of a score."""
    used: Address = 0
    """Where the problem is `seqused`: int32 [batch], the keys of each entry that are there."""
    pages: Address = 0
    """Where the problem has `pages`: the table."""
    parts: tuple[Address, Address] = (0, 0)
    """Where results of parts of the keys lie until they are added, and their maxima and sums (attn/split.py)."""
    drawn: Address = 0
    """The counter that blocks of Hopper draw the tiles of packed lengths from: uint32, 0 at the start."""


_ARGS = "<5Q12q3i2fi4q2i2f3Q"
"""AttentionArgs in cuda/attention/args.cuh; a test holds them equal."""
_MODIFICATION = """#pragma once
constexpr bool fused_brief = false;  // scores are fp32, and become exponents
#include "tile/fused_math.cuh"

{}

struct Modification {{
{}}};
"""
_FUNCTION = """  static __device__ float {}(float value, int b, int h, int i, int j, const ScoreNumbers& args) {{
{}
    return value;
  }}
"""
LOG2_E = 1.4426950408889634
_OPERANDS = ("q", "k", "v", "out")


def modification(count: int, **functions: str) -> str:
    """The file in place of cuda/attention/modification.cuh: a call's functions of a score and of `count` numbers."""
    numbers = (
        f"struct alignas(8) ScoreNumbers {{\n  float number[{count}];\n}};" if count else "struct ScoreNumbers {};"
    )
    return _MODIFICATION.format(numbers, "".join(_FUNCTION.format(name, body) for name, body in functions.items()))


def _many(problem: AttentionProblem) -> bool:
    """Return whether there are more entries than a grid's last axis holds; they then lie along its first."""
    return problem.batch > _GRID_LIMIT and problem.totals is None


def compile_attention(
    include: str, constants: Mapping[str, Constant], entry: str, problem: AttentionProblem, arch: Arch
) -> CompiledKernel:
    """A kernel with the problem's function of a score. Raises CompileError with the log."""
    generated = {}
    if problem.modify:
        generated["attention/modification.cuh"] = modification(len(problem.numbers), run=problem.modify)
    return compile_rung(include, constants, entry, arch.name, generated=generated)


def score_constants(problem: AttentionProblem) -> dict[str, Constant]:
    """Return what a score and which pairs are seen depend on, forwards and backwards."""
    return {
        "is_causal": problem.is_causal,
        "has_left": problem.window[0] >= 0,
        "has_right": problem.window[1] >= 0 and not problem.is_causal,
        "has_softcap": problem.softcap > 0,
        "has_bias": problem.bias is not None,
        "bias_type": CPP_TYPES[problem.bias.dtype if problem.bias else problem.dtype],
        "modifies": bool(problem.modify),
    }


def problem_constants(problem: AttentionProblem, scale_first: bool) -> dict[str, Constant]:
    """Return what kernels of every rung are compiled for: what scores go through, and which lengths there are."""
    return {
        "in_type": CPP_TYPES[problem.dtype],
        "d_head": problem.d_head,
        "with_lse": problem.with_lse,
        "scale_first": scale_first,
        "varlen": problem.totals is not None,
        "no_keys": problem.seq_k == 0 or problem.seqused,
        "bias_pairs": problem.bias is not None and problem.bias.in_pairs and problem.seq_k % 2 == 0,
        **score_constants(problem),
    }


@dataclass(frozen=True)
class AttentionRung:
    """One rung of the attention ladder."""

    id: str
    teaches: str
    """One line: what is new against the rung below, and what should move because of it."""
    defaults: tuple[Any, ...]
    """For each d_head, the best measured first; the first that fits the GPU is taken."""
    space: Callable[[int], tuple[Any, ...]]
    """Every config worth trying for a d_head."""
    check: Callable[[Any], str | None]
    """The rung's own demands on a config: None, or the reason."""
    fused: bool = False
    """The scale belongs to the softmax's exponent (a06 and above)."""
    static_strides: bool = False
    """Compiled for the problem's row strides and head group (a16)."""
    least_capability: tuple[int, int] = (8, 0)
    dtypes: tuple[str, ...] = ("bf16", "f16")
    entry: str = "attention"
    file: str = KERNELS
    takes_caches: bool = False
    """Reads on the device how many keys of an entry are there, and in which pages."""

    def __str__(self) -> str:
        return self.id

    @property
    def include(self) -> str:
        """Its file below cuda/."""
        return self.file

    def defaults_for(self, problem: AttentionProblem) -> tuple[Any, ...]:
        """The defaults for the problem's columns."""
        return tuple(config for config in self.defaults if config.d_head == problem.d_head)

    def default(self, problem: AttentionProblem, arch: Arch) -> Any:
        """The best measured config that can run the problem on the architecture.

        Raises ConfigRejected with every candidate's reason when there is none.
        """
        reasons = []
        for config in self.defaults_for(problem):
            reason = self.why_not(problem, config, arch)
            if reason is None:
                return config
            reasons.append(reason)
        raise ConfigRejected(
            f"{self.id} cannot run d_head={problem.d_head} on {arch}: "
            + ("; ".join(dict.fromkeys(reasons)) or f"it is not one of {', '.join(map(str, D_HEADS))}")
            + "."
        )

    def shared_bytes(self, config: Any) -> int:
        """Dynamic shared memory of a block, in bytes."""
        return config.shared_bytes

    def not_on(self, arch: Arch) -> str | None:
        """Return why no config of the rung can run on the architecture; None where some may."""
        if arch.compute_capability < self.least_capability:
            need, have = ("{}.{}".format(*cc) for cc in (self.least_capability, arch.compute_capability))
            return f"{self.id} needs compute capability {need}; {arch} has {have}"
        return None

    def why_not(self, problem: AttentionProblem, config: Any, arch: Arch) -> str | None:
        """Return None when the config can run the problem on the architecture; else the reason, with the numbers."""
        if reason := self.not_on(arch):
            return reason
        if type(self) is AttentionRung and not isinstance(config, AttentionConfig):
            return f"{self.id} takes configs like {self.defaults[0]}; {config} is of another kind of rung"
        if reason := config.why_not() or self.check(config):
            return f"{self.id} cannot take {config}: {reason}"
        if (problem.seqused or problem.pages) and not self.takes_caches:
            return f"{self.id} takes whole entries that lie row by row, not caches with seqused or pages"
        if config.d_head != problem.d_head:
            return f"{config} is for d_head={config.d_head}; the operands have {problem.d_head}"
        if (d_v := getattr(config, "d_v", 0)) != problem.d_v:
            of_config, of_problem = (d or "d_head" for d in (d_v, problem.d_v))
            return f"{config} is for values of {of_config} columns; these have {of_problem}"
        if config.shared_bytes > arch.shared_per_block:
            return (
                f"{config} needs {config.shared_bytes} B of shared memory per block; {arch} allows "
                f"{arch.shared_per_block}"
            )
        for name in _OPERANDS:
            rows: HeadRows = getattr(problem, name)
            if rows.vector_bytes < 16:
                return (
                    f"rows of {name} must start at multiples of 16 bytes; base and strides ({rows.batch_stride}, "
                    f"{rows.head_stride}, {rows.row_stride} elements) allow {rows.vector_bytes}"
                )
        if problem.heads_q > _GRID_LIMIT:
            return f"heads_q={problem.heads_q}; a grid holds {_GRID_LIMIT}"
        if _many(problem) and ceil_div(problem.seq_q, config.b_r) > _GRID_LIMIT:
            return (
                f"batch={problem.batch} and seq_q={problem.seq_q} in tiles of {config.b_r}; a grid holds {_GRID_LIMIT}"
            )
        return None

    def scale_first(self, problem: AttentionProblem) -> bool:
        """Return whether scores are scaled before the maximum is taken: a scale that is not positive would turn it
        around."""
        return not self.fused or problem.scale <= 0 or problem.modifies

    def constants(self, problem: AttentionProblem, config: Any) -> dict[str, Constant]:
        """Return what the kernel is compiled for: the config, and what of the problem selects a path."""
        varlen = problem.totals is not None
        values: dict[str, Constant] = {
            "rung": f"struct {self.id[:3].upper()}",  # an experiment's is that of the rung it changes
            "b_r": config.b_r,
            "b_c": config.b_c,
            "n_warps": config.n_warps,
            "load_q": config.load_q,
            "load_k": config.load_k,
            "load_v": config.load_v,
            "buffer": config.buffer,
            "threads": config.threads,
            "min_blocks": config.min_blocks,
            "edge_q": varlen or problem.seq_q % config.b_r != 0,
            "edge_k": varlen or problem.seq_k % config.b_c != 0,
            "many": _many(problem),
            "packed": 1,
        }
        values |= problem_constants(problem, self.scale_first(problem))
        strides = {f"{name}_stride": getattr(problem, name).row_stride for name in _OPERANDS}
        static = self.static_strides and all(0 < stride < 2**31 for stride in strides.values())
        values |= {name: stride if static else 0 for name, stride in strides.items()}
        values["group"] = problem.group if self.static_strides else 0
        return values

    def compile(self, problem: AttentionProblem, config: Any, arch: Arch) -> CompiledKernel:
        """The kernel for this problem's class. Raises ConfigRejected with the reason, CompileError with the log."""
        if reason := self.why_not(problem, config, arch):
            raise ConfigRejected(f"{reason}.")
        return compile_attention(self.include, self.constants(problem, config), self.entry, problem, arch)

    def shape(self, problem: AttentionProblem, config: Any) -> Launch:
        """The grid, block and shared memory of the launch."""
        tiles = ceil_div(problem.seq_q, config.b_r)
        across = (problem.batch, tiles) if _many(problem) else (tiles, problem.batch)
        if problem.totals is not None:  # each entry ends with a tile that others have no part in
            across = (problem.totals[0] // config.b_r + problem.batch, 1)
        return Launch((across[0], problem.heads_q, across[1]), (config.threads, 1, 1), b"", config.shared_bytes)

    def launch(self, problem: AttentionProblem, config: Any, addresses: AttentionAddresses) -> Launch:
        """The launch on operands at known addresses."""
        params = self.params(problem, config, addresses)
        return replace(self.shape(problem, config), params=params.data, maps=params.maps_at({}))

    def params(self, problem: AttentionProblem, config: Any, at: AttentionAddresses) -> Template:
        """The kernel's parameters."""
        return pack_args(problem, self, at)


def pack_args(problem: AttentionProblem, rung: AttentionRung, at: AttentionAddresses) -> Template:
    """The parameters of an attention kernel: AttentionArgs, which begins with the numbers of a function of a score."""
    if len(at.numbers) != len(problem.numbers):
        raise ValueError(f"{len(at.numbers)} numbers for a function of a score that reads {len(problem.numbers)}")
    first = pack_numbers(at.numbers)
    strides = (
        stride
        for rows in (problem.q, problem.k, problem.v, problem.out)
        for stride in (rows.batch_stride, rows.head_stride, rows.row_stride)
    )
    factor = LOG2_E * (1.0 if rung.scale_first(problem) else problem.scale)
    bias = problem.bias or BiasRows(0, 0, 0, 0, problem.dtype)
    return first + pack(
        _ARGS, at.q, at.k, at.v, at.out, at.lse, *strides, problem.group,
        *(problem.totals or (problem.seq_q, problem.seq_k)), problem.scale, factor, problem.batch,
        bias.batch_stride, bias.head_stride, bias.row_stride, bias.col_stride, *problem.window,
        problem.softcap, problem.scale / problem.softcap if problem.softcap else 0.0,
        at.bias, at.starts_q, at.starts_k,
    )  # fmt: skip
