"""Special registers, as far as they are known before a kernel runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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
    sizes = machine.cluster
    rank = machine.cta_of_lane % machine.cluster_size
    bx, by, bz = machine.block
    gx, gy, gz = machine.grid
    thread, lane = machine.thread_of_lane, np.arange(machine.lanes) % 32
    one, every = np.uint64(1), np.uint64(0xFFFFFFFF)
    bit = one << lane.astype(np.uint64)
    up_to = (bit << one) - one
    values: dict[str, Any] = {
        "%tid.x": thread % bx, "%tid.y": thread // bx % by, "%tid.z": thread // (bx * by), "%tid.w": 0,
        "%ntid.x": bx, "%ntid.y": by, "%ntid.z": bz, "%ntid.w": 1,
        "%nctaid.x": gx, "%nctaid.y": gy, "%nctaid.z": gz,
        "%cluster_ctarank": rank, "%cluster_nctarank": machine.cluster_size,
        "%ctaid.w": 0, "%nctaid.w": 1, "%clusterid.w": 0, "%nclusterid.w": 1,
        "%cluster_ctaid.w": 0, "%cluster_nctaid.w": 1,
        "%laneid": lane, "%warpid": machine.warp_of_lane, "%nwarpid": machine.gpu.arch.warps_per_sm,
        "%smid": lane * 0, "%nsmid": machine.gpu.sm_count, "%gridid": 1,
        "%lanemask_eq": bit, "%lanemask_lt": bit - one, "%lanemask_le": up_to,
        "%lanemask_gt": every - up_to, "%lanemask_ge": every - (bit - one),
        "%dynamic_smem_size": machine.dynamic_shared,
        "%envreg1": machine.grid_workspace >> 32, "%envreg2": machine.grid_workspace & 0xFFFFFFFF,
        "%total_smem_size": machine.program.static_shared + machine.dynamic_shared,
    }  # fmt: skip
    for axis, within, count, blocks in zip("xyz", places(rank, sizes), sizes, machine.grid, strict=True):
        values |= {f"%ctaid.{axis}": lane * 0, f"%clusterid.{axis}": lane * 0}
        values |= {f"%cluster_ctaid.{axis}": within, f"%cluster_nctaid.{axis}": count}
        values |= {f"%nclusterid.{axis}": blocks // count}
    tables = {name: np.atleast_1d(np.asarray(value)).astype(np.uint32) for name, value in values.items()}
    clocks = ("%clock", "%clock64", "%globaltimer", "%globaltimer_lo")  # 32-bit ones read the low half
    explicit = np.array([machine.cluster_given], bool)
    return tables | dict.fromkeys(clocks, machine.clock) | {"%is_explicit_cluster": explicit}
