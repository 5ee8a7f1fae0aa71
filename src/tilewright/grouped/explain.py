"""The explanation of a grouped product: what would run and why, in words and figures, with nothing launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arrays.scalar import flag
from ..errors import InvalidOperand, suggests
from ..gemm.config import GemmConfig
from ..gemm.explain import Roofline
from ..gemm.explain import _gpu_of as gpu_of
from ..gpus import Gpu, Resources
from ..plan.explained import Explained, Row, chosen_rows, compiled_words, plain, refused_rows
from ..plan.plan import Plan
from .call import read_grouped
from .problem import GroupedProblem

_CUT = {"m": "rows of A", "n": "columns of B", "k": "k"}


@dataclass(frozen=True, repr=False)
class GroupedExplanation(Explained):
    """An account of what `grouped_matmul` would run. `str()` tells it; the fields hold the same for programs."""

    problem: GroupedProblem
    gpu: Gpu
    gpu_source: str
    plan: Plan | None
    """None when the result is empty and nothing would be launched."""
    path: str
    """How operands are read, with the reason."""
    grid: tuple[int, int, int]
    """Blocks that are started on the GPU."""
    block: tuple[int, int, int]
    shared_bytes: int
    roofline: Roofline
    resources: Resources | None = None
    """The compiler's figures, when asked for."""

    def rows(self) -> list[Row]:
        rows = [("product", describe(self.problem)), ("GPU", f"{self.gpu.name} ({self.gpu.arch}): {self.gpu_source}")]
        if self.plan is None:
            rows.append(("runs", "nothing: the result is empty"))
        else:
            rows += [
                *chosen_rows(self.plan),
                ("path", self.path),
                ("launch", f"at most {self.grid[0]} blocks of {self.block[0]} threads, tile after tile, "
                           f"{self.shared_bytes} B of shared memory per block"),
            ]  # fmt: skip
            if self.resources is not None:
                rows.append(("compiled", compiled_words(self.resources)))
            bound = self.roofline
            rows.append(
                ("bound", f"{bound.bound_tflops:.3g} TFLOP/s at most, by {bound.limiter} ({plain(bound.intensity)} "
                          "FLOP per byte of least traffic, if every group has its part): a roof, not a measurement")
            )  # fmt: skip
            rows += refused_rows(self.plan.refused)
        return rows


def describe(problem: GroupedProblem) -> str:
    """One line: sizes, dtype, what is cut into how many groups."""
    whole, groups = problem.whole, f"{problem.groups} x "
    a, b = (groups if problem.axis == "n" else ""), (groups if problem.axis == "m" else "")
    dtypes = problem.widened.dtypes if problem.widened else (whole.dtype, whole.dtype_of("b"))
    dtype = " by ".join(dict.fromkeys(dtypes)) + (", as f16," if problem.widened else "")
    made = f" to {whole.out_dtype}" if whole.out_dtype != dtypes[0] else ""
    return (
        f"{a}[{whole.m} x {whole.k}] @ {b}[{whole.k} x {whole.n}] in {dtype}{made}; {_CUT[problem.axis]} in "
        f"{problem.groups} groups; {problem.flops:.4g} FLOP if none is left over"
    )


def path_of(problem: GroupedProblem, plan: Plan) -> str:
    """Return how operands are read, and why so."""
    if plan.rung.loaders:
        return "copied by TMA, over a group's end too; results end with their group"
    facts = plan.rung.own_constants(plan.config, problem.product)
    narrow = " and ".join(name.upper() for name in "ab" if not facts.get(f"{name}_wide"))
    if problem.product.dtype == "f32":
        return f"tests the ends of groups along {problem.axis}, element by element"
    alone = f"; {narrow} element by element: groups start anywhere in 16 bytes" if narrow else ""
    return f"tests the ends of groups along {problem.axis}; 16-byte accesses{alone}"


@suggests
def explain_grouped_matmul(
    a: Any, b: Any, offs: Any, *, out: Any = None, out_dtype: Any = None, rung: str | None = None,
    config: GemmConfig | None = None, gpu: str | None = None, compile: bool = False, a_scale: Any = None,
    b_scale: Any = None,
) -> GroupedExplanation:  # fmt: skip
    """Return what `grouped_matmul` would run for the same arguments, and why; nothing is launched. Print the result.

    `gpu` names the GPU to explain for (see tilewright.arch.GPUS), as for `explain`. `compile=True` adds the compiler's
    figures. Raises as `grouped_matmul` does, and InvalidOperand without offs: a batch is explained by `explain`.
    """
    compile = flag(compile, "compile")
    if offs is None:
        raise InvalidOperand("explain_grouped_matmul needs offs; tilewright.explain tells of a batch.")
    call = read_grouped(a, b, offs, out, out_dtype, (rung, config), a_scale, b_scale)
    named, source = gpu_of(call, gpu)
    problem, program = call.problem, call.program(named)
    memory, peak = named.dram_gb_s * problem.flops / max(problem.bytes, 1) * 1e-3, named.peak_tflops(problem.kind)
    bound = Roofline(
        problem.flops / max(problem.bytes, 1), min(memory, peak or memory),
        "memory" if memory <= (peak or memory) else "arithmetic",
    )  # fmt: skip
    if program is None:
        return GroupedExplanation(problem, named, source, None, "", (0, 1, 1), (0, 1, 1), 0, bound)
    plan, stage = call.plan(named), program.product
    resources = stage.compile(named.arch).resources if compile else None
    return GroupedExplanation(
        problem, named, source, plan, path_of(problem, plan),
        stage.shape.grid_on(named), stage.shape.block, stage.shape.shared_bytes, bound, resources,
    )  # fmt: skip
