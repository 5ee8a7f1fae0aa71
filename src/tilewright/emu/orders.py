"""Other legal orders of one launch: which warps and blocks run ahead, and when asynchronous operations complete.

Nothing but barriers, waits and flags orders the warps of a grid, so each of these orders may happen on a GPU. An order
is drawn from a seed and its number alone: the same two give the same run.

Warps are put into classes, and the first class that can run goes on until it waits; now and then all of it is drawn
anew. A warp that is far ahead, one that is far behind, and roles that change the lead are thus all met, at a cost of
about one class's steps each (Burckhardt et al., "A randomized scheduler with probabilistic guarantees", ASPLOS 2010).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .machine import Machine
    from .ptx import Instruction

NOWHERE = np.iinfo(np.int32).max
MOST_CLASSES = 4
EAGER, IMPATIENT = (0.5, 0.0, 0.05), (0.0, 0.9, 0.5)
"""How likely a copy comes at any moment, and a wait that could be fulfilled is told "not yet": each pair in nine orders
that follow one another."""
ALIGNED = re.compile(r"(ld|st|mov)matrix\.|w?g?mma\.|setmaxnreg|barrier\.cluster")
"""Instructions that all lanes of a warp run together."""
_BARRIER = re.compile(r"bar\.(cta\.)?(sync|arrive|red)|barrier\.(cta\.)?(sync|arrive|red).*\.aligned")


def _together(instruction: Instruction) -> bool:
    """Return whether all lanes of a warp run it together: also an aligned barrier that counts threads, by warps."""
    counts = 2 + (".red" in instruction.opcode) * 2  # with the result and the predicate of a reduction
    named = _BARRIER.match(instruction.opcode) and len(instruction.operands) >= counts
    return bool(named or ALIGNED.match(instruction.opcode))


class Order:
    """Order `number` of the seed `seed`, for every batch of a launch."""

    def __init__(self, seed: int, number: int) -> None:
        self.seed, self.number = seed, number
        self._random = np.random.default_rng([seed, number])
        self.rank = np.zeros(0, np.int8)
        """Of each lane: the class of its warp; the lowest that can run goes first."""
        self._patience = 1
        self._left = 0
        self._place = "lowest"
        self._eager = self._impatient = 0.0
        self._aligned = False
        """Lanes of a warp that have parted come together as in the usual order, as ptxas sees to it."""

    def __str__(self) -> str:
        return (
            f"{self.number} of seed {self.seed}; order={self.number}, seed={self.seed} repeats it "
            f"(--order {self.number} --seed {self.seed})"
        )

    def start(self, machine: Machine) -> None:
        """A new batch: draw how its orders are made."""
        self._aligned = any(map(_together, machine.program.instructions))
        self._patience = int(self._random.choice([2, 12, 80, 500]))
        self._eager, self._impatient = EAGER[self.number % 3], IMPATIENT[self.number // 3 % 3]
        self._draw(machine)

    def _draw(self, machine: Machine) -> None:
        """Classes by warps, by blocks or by the warps' numbers in their blocks (roles); who of a class is first."""
        random, warps = self._random, machine.lanes // 32
        by = random.choice(["warp", "block", "role"])
        group = np.arange(warps)
        if by == "block":
            group //= machine.warps_per_cta
        elif by == "role":
            group %= machine.warps_per_cta
        classes = int(random.integers(2, MOST_CLASSES + 1))
        rank = random.integers(classes, size=warps)[group].astype(np.int8)
        self.rank = np.repeat(rank, 32)
        self._place = str(random.choice(["lowest", "highest", "any"]))
        self._left = int(random.integers(1, 2 * self._patience + 1))

    def pick(self, machine: Machine, key: np.ndarray) -> tuple[int, np.ndarray]:
        """(block of the program, which lanes may run it) for lanes at the blocks `key`, some of which is somewhere."""
        self._left -= 1
        if self._left < 0:
            self._draw(machine)
        ready = key != NOWHERE
        ready &= self.rank == self.rank[ready].min()
        if self._aligned:
            ready &= key == np.repeat(key.reshape(-1, 32).min(axis=1), 32)
        places = key[ready]
        if self._place == "lowest":
            here = places.min()
        elif self._place == "highest":
            here = places.max()
        else:
            here = places[int(self._random.integers(len(places)))]
        return int(here), ready & (key == here)

    def happens(self) -> bool:
        """Return whether something asynchronous happens now."""
        return bool(self._random.random() < self._eager)

    def gives_up(self) -> bool:
        """Return whether a wait for something that may come now is told "not yet"."""
        return bool(self._random.random() < self._impatient)

    def index(self, count: int) -> int:
        """Return which of `count` comes first."""
        return int(self._random.integers(count))

    @property
    def fair_after(self) -> int:
        """Picks after which every lane has very likely run."""
        return 8 * self._patience
