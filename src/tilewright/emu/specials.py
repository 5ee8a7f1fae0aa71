"""Special registers, as far as they are known before a kernel runs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .program import CLOCKS, is_reserved

if TYPE_CHECKING:
    from .machine import Machine


def places(linear: Any, sizes: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    """A number, or an array of them, as coordinates in a grid of `sizes`: x runs first."""
    x, y, _ = sizes
    return linear % x, linear // x % y, linear // (x * y)


def special_registers(machine: Machine) -> dict[str, np.ndarray]:
    """Name -> uint32 values, one per lane or of length 1; clocks are uint64.

    %ctaid, %clusterid and %smid are set anew for each batch. All clocks read the instructions that the batch has run.
    """
    gx, gy, gz = machine.grid
    bx, by, bz = machine.block
    values = {
        "%tid.w": 0, "%ntid.x": bx, "%ntid.y": by, "%ntid.z": bz, "%ntid.w": 1,
        "%nctaid.x": gx, "%nctaid.y": gy, "%nctaid.z": gz,
        "%cluster_nctarank": machine.cluster_size,
        "%ctaid.w": 0, "%nctaid.w": 1, "%clusterid.w": 0, "%nclusterid.w": 1,
        "%cluster_ctaid.w": 0, "%cluster_nctaid.w": 1,
        "%nwarpid": machine.gpu.arch.warps_per_sm, "%nsmid": machine.gpu.sm_count, "%gridid": 1,
        "%dynamic_smem_size": machine.dynamic_shared,
        "%envreg1": machine.grid_workspace >> 32, "%envreg2": machine.grid_workspace & 0xFFFFFFFF,
        "%total_smem_size": machine.program.static_shared + machine.dynamic_shared,
    }  # fmt: skip
    values |= {name: at for name, at in machine.program.shared.items() if is_reserved(name)}
    by_batch = {"%smid": np.zeros(machine.lanes, np.uint32)}
    for axis, count, blocks in zip("xyz", machine.cluster, machine.grid, strict=True):
        block = by_batch[f"%ctaid.{axis}"] = np.zeros(machine.lanes, np.uint32)
        by_batch[f"%clusterid.{axis}"] = block if count == 1 else np.zeros(machine.lanes, np.uint32)
        values |= {f"%cluster_nctaid.{axis}": count, f"%nclusterid.{axis}": blocks // count}
    return (
        _of_lanes(machine.ctas, machine.warps_per_cta * 32, machine.block, machine.cluster)
        | {name: np.array([value], np.int64).astype(np.uint32) for name, value in values.items()}
        | by_batch
        | dict.fromkeys(CLOCKS, machine.clock)
        | {"%is_explicit_cluster": np.array([machine.cluster_given], bool)}
    )


@lru_cache(maxsize=4)
def _of_lanes(
    ctas: int, width: int, block: tuple[int, int, int], cluster: tuple[int, int, int]
) -> dict[str, np.ndarray]:
    """Those that follow from a lane's place in a batch of blocks of `width` lanes."""
    place = np.arange(ctas * width)
    thread, lane, rank = place % width, place % 32, place // width % (cluster[0] * cluster[1] * cluster[2])
    bx, by, _ = block
    one, every = np.uint64(1), np.uint64(0xFFFFFFFF)
    bit = one << lane.astype(np.uint64)
    up_to = (bit << one) - one
    values: dict[str, Any] = {
        "%tid.x": thread % bx, "%tid.y": thread // bx % by, "%tid.z": thread // (bx * by),
        "%laneid": lane, "%warpid": thread // 32, "%cluster_ctarank": rank,
        "%lanemask_eq": bit, "%lanemask_lt": bit - one, "%lanemask_le": up_to,
        "%lanemask_gt": every - up_to, "%lanemask_ge": every - (bit - one),
    }  # fmt: skip
    values |= {f"%cluster_ctaid.{axis}": at for axis, at in zip("xyz", places(rank, cluster), strict=True)}
    tables = {name: value.astype(np.uint32) for name, value in values.items()}
    for table in tables.values():
        table.flags.writeable = False
    return tables
