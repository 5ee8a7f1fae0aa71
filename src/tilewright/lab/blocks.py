"""Whole transformer blocks: torch's own, and the same after accelerate; on a GPU, with torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .bench import time_pairs
from .ladder import Progress, silent
from .origin import torch_origin
from .reference import torch_stream

PASSES = ("forward", "training")
"""forward: without gradients. training: forward, and the gradients of the input and of all parameters."""


class Pair(NamedTuple):
    """A block by torch and its copy with tilewright's layers, an input, and the gradient of the result."""

    theirs: Any
    ours: Any
    x: Any
    seed: Any


def make_pair(torch: Any, case: Mapping[str, Any], device: str) -> tuple[Pair, int, int]:
    """A pair with random parameters and normal inputs; how many layers were replaced, how many feed-forwards fused."""
    from ..torch import accelerate, scaled_dot_product_attention
    from .block_models import make_block, replace_attention

    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case["dtype"]]
    theirs = make_block(dict(case)).to(device, dtype)
    ours = copy.deepcopy(theirs)
    changes = accelerate(ours)
    if case.get("attention"):
        replace_attention(ours, scaled_dot_product_attention)
    shape = (case["batch"], case["tokens"], case["d_model"])
    x, seed = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    return Pair(theirs, ours, x, seed), len(changes.layers), len(changes.feeds)


def run_pass(torch: Any, which: str, block: Any, x: Any, seed: Any) -> dict[str, Any]:
    """The result by name, and for training the gradients."""
    if which == "forward":
        with torch.no_grad():
            return {"result": block(x)}
    names, parameters = zip(*block.named_parameters(), strict=True)
    given = x.detach().requires_grad_()
    result = block(given)
    gradients = torch.autograd.grad(result, (given, *parameters), seed)
    return {"result": result.detach(), **dict(zip(("x", *names), gradients, strict=True))}


def verdict(torch: Any, ours: Mapping[str, Any], theirs: Mapping[str, Any], exact: Mapping[str, Any]) -> str:
    """Why `ours` are wrong, "" when they are not: each within twice the error of torch's, in the same dtype, against
    the same block in float64."""
    for name, right in exact.items():
        mine = ours[name].double()
        measure = float((theirs[name].double() - right).abs().max())
        allowed = 2 * measure + 1e-6 * float(right.abs().max())
        error = (mine - right).abs()
        wrong = ~(error <= allowed)  # NaN is wrong
        if wrong.any():
            worst = float(error.nan_to_num(nan=float("inf")).max())
            return f"{name}: {int(wrong.sum())} elements are off by up to {worst:.3g}; torch's by {measure:.3g}"
    return ""


Run = Callable[[], dict[str, Any]]


def make_run(torch: Any, which: str, block: Any, pair: Pair, replayed: bool = False) -> Run:
    """What runs a pass of a block of the pair; `replayed`: from a CUDA graph, which takes the host out of it."""

    def run() -> dict[str, Any]:
        return run_pass(torch, which, block, pair.x, pair.seed)

    if not replayed:
        return run
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()

    def replay() -> dict[str, Any]:
        graph.replay()
        return results

    return replay


def check_pair(torch: Any, which: str, pair: Pair, replayed: bool = False) -> str:
    """The verdict on a pair."""
    ours, theirs = (make_run(torch, which, block, pair, replayed)() for block in (pair.ours, pair.theirs))
    exact = run_pass(torch, which, copy.deepcopy(pair.theirs).double(), pair.x.double(), pair.seed.double())
    return verdict(torch, ours, theirs, exact)


def block_records(
    suite: str, cases: Sequence[dict[str, Any]], seconds: float = 1.0, say: Progress = silent
) -> list[dict[str, Any]]:
    """Records of cases {"block": "llama" or "encoder", "pass": one of PASSES, sizes, "dtype"}; verified, then timed in
    pairs. "layers": how many blocks follow one another; "attention": true has Llama's made here too. Times hold what
    the host cannot hide behind the GPU, as a model's do; "replayed": true has both sides replayed from CUDA graphs.
    Raises MissingDependency."""
    torch, origin = torch_origin("the suite of blocks")
    from ..jit.device import device

    l2 = device(0).gpu.l2
    records = []
    for number, case in enumerate(cases):
        say(number, f"{case['block']}, {case['pass']}, d_model {case['d_model']}, d_ff {case['d_ff']}")
        torch.manual_seed(0)
        replayed = bool(case.get("replayed"))
        first, replaced, fused = make_pair(torch, case, "cuda")
        reason = check_pair(torch, case["pass"], first, replayed)
        result: dict[str, Any] = {"right": not reason, "reason": reason}
        if not reason:
            torch.cuda.empty_cache()
            of_block = sum(x.nbytes for x in (*first.ours.parameters(), first.x))
            pairs = [first, *(make_pair(torch, case, "cuda")[0] for _ in range(max(1, -(-3 * l2 // of_block) - 1)))]
            sides = [
                [_launch(torch, make_run(torch, case["pass"], p[side], p, replayed)) for p in pairs] for side in (1, 0)
            ]
            timing, conditions = time_pairs(0, sides[0], sides[1], seconds=seconds, graphs=False)
            result |= timing.to_dict() | {"buffer_sets": len(pairs), "conditions": conditions}
        call = f"{case['block']}, {case['pass']}{', replayed' if replayed else ''}"
        told = case | {"call": call, "replaced": replaced, "fused": fused}
        records.append({"suite": suite, "case": told, "result": result, "provenance": origin})
    return records


def _launch(torch: Any, run: Run) -> Callable[[int], None]:
    def launch(stream: int) -> None:
        with torch.cuda.stream(torch_stream(torch, stream, 0)):
            run()

    return launch
