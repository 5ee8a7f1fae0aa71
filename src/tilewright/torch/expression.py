"""Recorded epilogues on torch tensors, made of torch's own operations, so that they have derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..epilogue.ops import OPS
from ..epilogue.trace import FLOAT, INT, Node


class Frame(NamedTuple):
    """The shape, dtype and device that an expression is computed in."""

    shape: tuple[Any, ...]
    """The result's, to which operands broadcast. Extents may be symbolic."""
    has_rows: bool
    has_cols: bool
    dtype: torch.dtype
    """In which all is computed."""
    device: torch.device


def evaluate(
    nodes: Sequence[Node], wanted: Sequence[int], product: Callable[[], torch.Tensor],
    operands: Mapping[str, torch.Tensor], frame: Frame,
) -> list[torch.Tensor]:  # fmt: skip
    """The values of the `wanted` operations, by number, of the whole shape. What they need is computed once, and let go
    after its last use; `product`, which gives the sum, is called if they need it."""
    last: dict[int, int] = {}
    pending = list(wanted)
    while pending:
        number = pending.pop()
        if number not in last:
            last[number] = number
            pending.extend(nodes[number].args)
    for number in sorted(last):
        last.update((arg, number) for arg in nodes[number].args)
    last.update((number, len(nodes)) for number in wanted)
    values: dict[int, torch.Tensor] = {}
    for number in sorted(last):
        node = nodes[number]
        if node.op == "sum":
            values[number] = product()
        elif node.op == "input" and node.value in operands:
            operand = operands[node.value]
            values[number] = operand.to(frame.dtype) if node.kind == FLOAT else operand
        else:
            values[number] = _compute(node, [values[arg] for arg in node.args], frame)
        for arg in {arg for arg in node.args if last[arg] == number}:
            del values[arg]
    return [values[number].expand(frame.shape) for number in wanted]


def _compute(node: Node, args: list[torch.Tensor], frame: Frame) -> torch.Tensor:
    if node.op == "input":
        return _index(node.value, frame)
    if node.op == "constant":
        dtype = {FLOAT: frame.dtype, INT: torch.int64}.get(node.kind, torch.bool)
        return torch.full((), node.value, dtype=dtype, device=frame.device)
    compute = OPS[node.op].torch
    return args[0].to(frame.dtype) if compute is None else compute(torch, *args)


def _index(name: str, frame: Frame) -> torch.Tensor:
    """An index along its axes of the result, and of one element along all others."""
    shape, rows, cols = frame.shape, frame.has_rows, frame.has_cols
    axes = len(shape) - rows - cols
    if name == "batch":
        sizes = list(shape[:axes])
        lies = [*sizes, *(1 for _ in shape[axes:])]
    elif not (rows if name == "row" else cols):
        return torch.zeros((), dtype=torch.int64, device=frame.device)
    else:
        sizes = [shape[axes if name == "row" else -1]]
        lies = [*sizes, 1] if name == "row" and cols else sizes
    return torch.arange(math.prod(sizes), device=frame.device).view(lies)


def in_one_operation(
    nodes: Sequence[Node], number: int, operands: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> torch.Tensor | None:
    """The value where it is one operation on operands of `dtype`: torch then rounds it once, as by way of float32. None
    where it is not."""
    node = nodes[number]
    args = [nodes[arg] for arg in node.args]
    if node.op not in ("*", "/", "negative"):
        return None
    if not all(x.op == "constant" or (x.op == "input" and operands[x.value].dtype == dtype) for x in args):
        return None
    compute = OPS[node.op].torch
    assert compute is not None
    return compute(torch, *(operands[x.value] if x.op == "input" else x.value for x in args))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32, as kernels compute; float64 for float64, which only the CPU's own path takes."""
    return torch.float64 if dtype == torch.float64 else torch.float32
