"""Around wgmma: its fence, groups and waits, the fence between proxies, and registers handed between warpgroups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from ..ptx import Immediate, Instruction
from .mma import whole_warps
from .registry import Step, executes


def whole_warpgroups(machine: Machine, instruction: Instruction) -> np.ndarray:
    """The first warp, in the batch, of each warpgroup that is here with all its lanes. Complains of others."""
    first = machine.warpgroups
    if machine.mask is not None:
        active = machine.mask.reshape(-1, 32).sum(axis=1)
        first = first[(active[first[:, None] + np.arange(4)] == 32).all(axis=1)]
    count = machine.lanes if machine.mask is None else int(np.count_nonzero(machine.mask))
    if count != 128 * len(first):
        left = np.ones(machine.lanes, bool) if machine.mask is None else machine.mask.copy()
        left[(first[:, None] * 32 + np.arange(128)).reshape(-1)] = False
        machine.report(
            "warp_divergence",
            f"{'.'.join(instruction.opcode.split('.')[:2])} runs without some lanes of the warpgroup; it is the work "
            "of all 128 of four warps, the first of them a multiple of four",
            instruction, np.flatnonzero(left), None,
        )  # fmt: skip
    return first


def _by_warps(machine: Machine, instruction: Instruction, act: Callable[[], None]) -> Step:
    def step() -> None:
        whole_warps(machine, instruction)
        act()

    return step


@executes("wgmma.{what:fence|commit_group}.sync.aligned", kind="control", destination="none")
def order(machine: Machine, instruction: Instruction) -> Step:
    """Order registers before the products to come; close the group of products issued since the last commit."""
    if machine.products is None:
        return _by_warps(machine, instruction, lambda: None)
    products = machine.products
    fence = instruction.fields["what"] == "fence"
    return _by_warps(machine, instruction, products.fence if fence else products.commit)


@executes("wgmma.wait_group.sync.aligned", kind="control", destination="none")
def wait_group(machine: Machine, instruction: Instruction) -> Step:
    """All groups but the n newest are done."""
    n = instruction.operands[0]
    machine.expect(instruction, isinstance(n, Immediate) and n.bits >= 0, "needs a constant")
    assert isinstance(n, Immediate)
    newest, products = n.bits, machine.products
    return _by_warps(machine, instruction, (lambda: products.wait(newest)) if products else (lambda: None))


@executes("fence.proxy.async{space:.global|.shared::cta|.shared::cluster|}", kind="control", destination="none")
def proxy_fence(machine: Machine, instruction: Instruction) -> Step:
    """Let wgmma and bulk copies read what the active threads wrote before."""
    space, shadow = instruction.fields["space"], machine.shadow
    return lambda: shadow.fence(shared=space != ".global", everywhere=not space.startswith(".shared"))


@executes("fence.mbarrier_init.release.cluster", kind="control", destination="none")
def init_fence(machine: Machine, instruction: Instruction) -> Step:
    """The mbarriers that the active threads initialised may be used by the cluster and by bulk copies."""
    return machine.shadow.fence_init


@executes(
    "setmaxnreg.{op:inc|dec}.sync.aligned.u32", kind="control", ends_block=True, destination="none", warpgroup=True,
)  # fmt: skip
def set_registers(machine: Machine, instruction: Instruction) -> Step:
    """Registers a thread may use from here on: given back to the block's pool, or taken, once it has them."""
    n = instruction.operands[0]
    right = isinstance(n, Immediate) and 24 <= n.bits <= 256 and n.bits % 8 == 0
    machine.expect(instruction, right, "needs a constant from 24 to 256, a multiple of 8")
    machine.expect(instruction, instruction.guard is None, "has a guard, which a warpgroup's instruction may not")
    assert isinstance(n, Immediate)
    wanted, more, resume = n.bits, instruction.fields["op"] == "inc", machine.following(instruction)
    scheduler, pool = machine.scheduler, machine.registers

    def step() -> None:
        first_warps = whole_warpgroups(machine, instruction)
        late = pool.change(instruction, first_warps, wanted, more)
        if not len(late):
            scheduler.goto(resume)
            return
        scheduler.separate()
        scheduler.goto(resume)
        scheduler.park((late[:, None] * 32 + np.arange(128)).reshape(-1), instruction, resume)

    return step
