"""The explanation of matmul: what would run and why, in words and figures, with nothing launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..arrays.dtypes import ITEM_BYTES
from ..arrays.scalar import flag
from ..gpus import DEFAULT_GPU, Gpu, Resources, find_gpu
from ..jit.launch import current_executor
from ..plan.demands import NONE, Demands
from ..plan.explained import Explained, Row, chosen_rows, compiled_words, plain, refused_rows
from ..plan.plan import Plan
from ..run.runner import Call as AnyCall
from ..words import Activation, Precision
from .call import Call, Options, read_call
from .config import GemmConfig
from .family import plan_for
from .fusion import fold_numbers, request
from .problem import INDEX, GemmProblem, Matrix
from .rows import plan_rows
from .rung import Rung, vector_out
from .shapes import GRID_BATCH
from .stages import config_of, program_for
from .verify import by_elements


@dataclass(frozen=True)
class Roofline:
    """The most a GPU could do, from the problem's least traffic. A bound, not a measurement."""

    intensity: float
    """FLOP per byte when every operand moves once."""
    bound_tflops: float
    limiter: str
    """ "arithmetic" or "memory"."""


@dataclass(frozen=True, repr=False)
class Explanation(Explained):
    """An account of what `matmul` would run. `str()` tells it; the fields hold the same for programs."""

    problem: GemmProblem
    gpu: Gpu
    gpu_source: str
    plan: Plan | None
    """None when the result is empty and nothing would be launched."""
    path: str
    """ "aligned" or "edge", with the reason."""
    output: str
    """How results are stored."""
    grid: tuple[int, int, int]
    """Blocks that are started on the GPU."""
    block: tuple[int, int, int]
    shared_bytes: int
    """Shared memory of a block."""
    launches: int
    roofline: Roofline
    resources: Resources | None = None
    """The compiler's figures, when asked for."""
    stages: tuple[str, ...] = ()
    """What each of `launches` consists of, in order: "pack a", "pack b" or "split a", "split b"; "product";
    "sum of parts"."""
    workspace_bytes: int = 0
    """What the stages borrow to pass on to one another."""
    verification: str = ""
    """What the check costs, where verify=True asks for one."""

    def rows(self) -> list[Row]:
        rows = [("product", describe(self.problem)), ("GPU", f"{self.gpu.name} ({self.gpu.arch}): {self.gpu_source}")]
        if self.plan is None:
            rows.append(("runs", "nothing: the result is empty"))
        else:
            if self.problem.epilogue is not None:
                rows.append(("epilogue", describe_epilogue(self.problem)))
            rows += [
                *chosen_rows(self.plan),
                ("path", self.path),
                ("stores", self.output),
                ("launch", self._launch()),
            ]
            if len(self.stages) > 1:
                rows.append(("stages", f"{', '.join(self.stages)}; {self.workspace_bytes} B of memory borrowed"))
            if self.resources is not None:
                rows.append(("compiled", compiled_words(self.resources)))
            if self.verification:
                rows.append(("verify", self.verification))
            rows.append(("bound", self._bound()))
            if self.plan.ignored:
                rows.append(("ignored", self.plan.ignored))
            rows += refused_rows(self.plan.refused)
        return rows

    def _bound(self) -> str:
        bound, gpu, dtype = self.roofline, self.gpu, self.problem.kind
        unit = "FFMA" if dtype == "f32" else "tensor-core"
        peak = gpu.peak_tflops(dtype)
        told = f"{peak:.1f} TFLOP/s {unit} peak" if peak else f"{unit} peak not known"
        return (
            f"{bound.bound_tflops:.3g} TFLOP/s at most, by {bound.limiter} ({plain(bound.intensity)} FLOP per byte of "
            f"least traffic; {told}, {gpu.dram_gb_s:.0f} GB/s): a roof, not a measurement"
        )

    def _launch(self) -> str:
        axes = max((number for number, extent in enumerate(self.grid, 1) if extent > 1), default=1)
        blocks = " x ".join(str(extent) for extent in self.grid[:axes])
        blocks += " block" if self.grid == (1, 1, 1) else " blocks"
        times = "1 launch" if self.launches == 1 else f"{self.launches} launches, the largest"
        whose = "the product: " if len(self.stages) > 1 else ""
        stays = ", tile after tile" if self.plan is not None and self.plan.rung.stays else ""
        return (
            f"{whose}{times} of {blocks} of {self.block[0]} threads{stays}, {self.shared_bytes} B of shared memory "
            "per block"
        )


PRECISION_COSTS = {
    "ieee": "",
    "tf32": ", operands rounded to tf32 (11 bits: errors near 2^-12 of each operand)",
    "fp32x3": ", as accurately as fp32, by products of two or three parts an operand",
    "fast": ", summed by the tensor cores, in 14 bits where they are Hopper's",
}
"""What a precision means, as `describe` says it."""


def describe(problem: GemmProblem) -> str:
    """One line: sizes, dtype, and how each operand lies in memory."""
    batch = f"{problem.batch} x " if problem.batch != 1 else ""
    lies = {"col": "rows contiguous", "row": "columns contiguous", "none": "strided"}
    a, b = problem.a.unit(problem.m, problem.k), problem.b.unit(problem.k, problem.n)
    plus_c = " + beta C" if problem.use_c else ""
    made = f" to {problem.out_dtype}" if problem.out_dtype != problem.dtype else ""
    by = f" by {problem.b_dtype}" if problem.b_dtype else ""
    made += PRECISION_COSTS[problem.precision]
    return (
        f"{batch}[{problem.m} x {problem.k}] @ [{problem.k} x {problem.n}]{plus_c} in {problem.dtype}{by}{made}; "
        f"A {lies[a]}, B {lies[b]}; {problem.flops:.4g} FLOP"
    )


def describe_epilogue(problem: GemmProblem) -> str:
    """The expression, and how each of its operands lies over the result."""
    assert problem.epilogue is not None
    told = []
    for operand in problem.epilogue.operands:
        lies = operand.matrix
        if operand.dtype == INDEX:
            told.append(f"{operand.name}: an index")
            continue
        varies = (lies.row_stride != 0 or problem.m == 1, lies.col_stride != 0 or problem.n == 1)
        over = {(True, True): "one per element", (True, False): "one per row", (False, True): "one per column"}
        told.append(f"{operand.name}: {operand.dtype}, {over.get(varies, 'one for all')}")
    return "; ".join(
        [f"{problem.epilogue.description} of acc = {'alpha A B + beta C' if problem.use_c else 'alpha A B'}", *told]
    )


def edge_reason(rung: Rung, problem: GemmProblem, config: GemmConfig) -> str:
    """ "aligned", or "edge" with what makes the predicated path necessary."""
    if rung.halves:
        return "operands as scaled halves, which TMA copies; " + (
            "only results are predicated" if rung.edge(problem, config) else "nothing is predicated"
        )
    if rung.splits:
        ends = "only results are predicated" if rung.edge(problem, config) else "nothing is predicated"
        return f"aligned copies of split operands, zeros up to whole tiles; {ends}"
    if not rung.edge(problem, config):
        return f"aligned: whole tiles, {rung.vector_bytes}-byte global accesses"
    facts = rung.own_constants(config, problem)
    if (problem.a.padded or problem.b.padded) and not (facts["a_edge"] or facts["b_edge"]):
        return "aligned copies of packed operands, zeros up to whole tiles; only results are predicated"
    for name, size, tile in (
        ("m", problem.m, config.tile_m), ("n", problem.n, config.tile_n), ("k", problem.k, max(config.tile_k, 1)),
    ):  # fmt: skip
        if size % tile:
            return f"edge (predicated): {name}={size} is not a multiple of the tile's {tile}"
    item = ITEM_BYTES[problem.dtype]
    operands: tuple[tuple[str, Matrix, int, int], ...] = (
        ("A", problem.a, problem.m, problem.k), ("B", problem.b, problem.k, problem.n),
    )  # fmt: skip
    for name, matrix, rows, cols in operands:
        if matrix.unit(rows, cols) == "none":
            steps = f"{matrix.row_stride} and {matrix.col_stride}"
            return f"edge (predicated): {name} has no contiguous lines (strides {steps} elements)"
        width = matrix.vector_bytes(rows, cols, item)
        if width < rung.vector_bytes:
            return (
                f"edge (predicated): {name}'s lines start at multiples of {width} B (base aligned to "
                f"{matrix.alignment} B, strides {matrix.row_stride} and {matrix.col_stride} elements); accesses of "
                f"{rung.vector_bytes} B need more"
            )
    return "edge (predicated)"


def half_sectors(rung: Rung, problem: GemmProblem, config: GemmConfig) -> str:
    """Return which operands' lines start in the middle of sectors, and what is done about it; "" where none do."""
    facts = rung.own_constants(config, problem)
    names = " and ".join(
        name.upper() for name in "ab" if facts.get(f"{name}_wide") and not facts.get(f"{name}_sectors", True)
    )
    return f"; {names} through L1: lines start in the middle of 32-byte sectors" if names else ""


def roofline(problem: GemmProblem, gpu: Gpu, halves: int = 0) -> Roofline:
    """The bound from the peak for the operands' dtype, where it is known, and the bandwidth of device memory.

    `halves`: Rung.halves of what multiplies them.
    """
    memory = gpu.dram_gb_s * problem.intensity * 1e-3
    peak = (gpu.peak_tflops("f16") / (2 * halves - 1) if halves else gpu.peak_tflops(problem.kind)) or memory
    return Roofline(problem.intensity, min(memory, peak), "memory" if memory <= peak else "arithmetic")


def explain_problem(
    problem: GemmProblem, gpu: Gpu, gpu_source: str, rung: str | None = None, config: GemmConfig | None = None, *,
    launches: int = 1, compile: bool = False, demands: Demands = NONE,
    plan: Plan | None = None,
) -> Explanation:  # fmt: skip
    """Explain a problem apart from arrays. Raises ConfigRejected as plan_for does, CompileError if compiled."""
    bound = roofline(problem, gpu)
    if launches == 0 or problem.m * problem.n * problem.batch == 0:
        return Explanation(problem, gpu, gpu_source, None, "", "", (0, 1, 1), (0, 1, 1), 0, 0, bound)
    plan = plan or plan_for(problem, gpu, rung, config, demands=demands)
    program = program_for(replace(problem, batch=min(problem.batch, GRID_BATCH)), plan)
    bound = roofline(problem, gpu, plan.rung.halves)
    product, config, launch = program.product.problem, config_of(program), program.product.shape
    wide = plan.rung.vector_bytes > 4 and vector_out(problem)
    resources = plan.rung.compile(product, config, gpu.arch).resources if compile else None
    return Explanation(
        problem, gpu, gpu_source, plan,
        edge_reason(plan.rung, product, config) + half_sectors(plan.rung, product, config),
        "16-byte vectors" if wide else "less than 16 bytes at a time", launch.grid_on(gpu), launch.block,
        plan.rung.shared_bytes(config, product), launches, bound, resources,
        tuple(stage.name for stage in program.stages), program.workspace_bytes,
    )  # fmt: skip


def explain(
    a: Any, b: Any, *, c: Any = None, alpha: float = 1.0, beta: float | None = None, out: Any = None,
    out_dtype: Any = None, bias: Any = None, activation: Activation | None = None, residual: Any = None,
    row_scale: Any = None, col_scale: Any = None, epilogue: Callable[..., Any] | None = None,
    deterministic: bool = False, batch_invariant: bool = False, verify: bool = False, precision: Precision = "ieee",
    rung: str | None = None, config: GemmConfig | None = None, gpu: str | None = None, compile: bool = False,
    a_scale: Any = None, b_scale: Any = None, **operands: Any,
) -> Explanation:  # fmt: skip
    """Return what `matmul` would run for the same arguments, and why; nothing is launched. Print the result.

    `gpu` names the GPU to explain for (see tilewright.arch.GPUS). Else it is the emulator's in force, the arrays' own,
    the first of this machine, or, with none, the default of the package, which the explanation then says.
    `compile=True` adds the compiler's figures: registers, spills, shared memory. Raises as `matmul` does.
    """
    compile = flag(compile, "compile")
    alpha, a_scale, b_scale = fold_numbers(a, alpha, a_scale, b_scale)
    asked = request(epilogue, activation, bias, residual, row_scale, col_scale, operands, a_scale, b_scale)
    options = Options(out_dtype, deterministic, batch_invariant, rung, config, precision)
    return explain_call(read_call(a, b, c, alpha, beta, out, options, asked, flag(verify, "verify")), gpu, compile)


def explain_call(call: Call, gpu: str | None, compile: bool) -> Explanation:
    """See tilewright.explain."""
    options = call.options
    named, source = _gpu_of(call, gpu)
    counts = [count for count, _ in call.product.launches()]
    told = explain_problem(
        call.product.problem, named, source, options.rung, options.config, launches=len(counts), compile=compile,
        demands=options.demands, plan=_plan_of(call, named),
    )  # fmt: skip
    return replace(told, verification=_verification(call)) if call.verify else told


def _plan_of(call: Call, gpu: Gpu) -> Plan | None:
    """Return what the call would take from other numbers of rows; None where its plan is its own or the caller's."""
    if call.options.rung is not None or call.options.config is not None or not call.product.problem.m:
        return None
    return plan_rows(call.product, gpu, call.options.demands, note=False)


def _verification(call: Call) -> str:
    problem = call.product.problem
    if by_elements(call):
        elements = problem.m * problem.n * problem.batch
        return (
            "each element: the same kernel makes the product once more, without what follows it; "
            f"{12 * elements} B of memory borrowed and passed over twice; the host waits"
        )
    return (
        f"by Freivalds' product: {problem.bytes} B of operands and result read once more, in two launches; the host "
        "waits"
    )


def _gpu_of(call: AnyCall, name: str | None) -> tuple[Gpu, str]:
    if name is not None:
        return find_gpu(name), "named in the call"
    executor = current_executor()
    if executor is not None:
        return executor.gpu, "the emulator in force"
    from ..jit.device import device

    if call.first.device is not None:
        return device(call.first.device).gpu, "where the arrays are"
    return gpu_of_machine("gpu=")


def gpu_of_machine(option: str) -> tuple[Gpu, str]:
    """The GPU to plan for where nobody named one, and why it. `option`: how to name another."""
    from ..jit.device import device, gpu_available

    if gpu_available():
        return device(0).gpu, "the first GPU of this machine"
    return find_gpu(DEFAULT_GPU), f"assumed, since this machine has no usable GPU; name another with {option}"
