"""Asynchronous copies in flight: cp.async lands at the wait of the thread that issued it, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .compiled import address
from .shadow import Landing
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .machine import Machine
    from .mbarriers import Delivery, Mbarrier


class _Flight:
    """One executed copy instruction. `waiting`, and `group` where lanes differ, hold one value for each active lane of
    the pattern."""

    __slots__ = ("data", "group", "pattern", "waiting", "whole")

    def __init__(self, pattern: SharedPattern, data: np.ndarray, group: np.ndarray | int) -> None:
        self.pattern = pattern
        self.data = data
        self.group = group
        self.waiting = np.ones(len(data), bool)
        self.whole = True
        """No lane has landed yet."""


class CopiesArrive(NamedTuple):
    """An arrival at an mbarrier that waits for the copies of lanes."""

    lanes: np.ndarray
    barrier: Mbarrier
    deliver: Delivery


class AsyncCopies:
    """The copies of one batch. A thread's group number counts the groups that it has committed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.flights: list[_Flight] = []
        self.groups = np.zeros(machine.lanes, np.int64)
        self.common: int | None = 0
        """The group of all lanes; None: they differ."""
        self.arrivals: list[CopiesArrive] = []

    def reset(self) -> None:
        """A new batch of blocks starts. Copies of a finished block that nobody waited for never land."""
        self.flights.clear()
        self.arrivals.clear()
        self.groups[:] = 0
        self.common = 0

    def issue(self, pattern: SharedPattern, data: np.ndarray) -> None:
        """A copy starts: `data` holds one element for each active lane, as read from global memory now."""
        group: np.ndarray | int
        if self.common is not None:
            group = self.common
        else:
            group = self.groups.copy() if pattern.lanes is None else self.groups[pattern.lanes]
        self.flights.append(_Flight(pattern, data, group))

    def commit(self) -> None:
        """The active threads close their group."""
        lanes = self.machine.lane_list()
        if lanes is None:
            self.groups += 1
            self.common = None if self.common is None else self.common + 1
        else:
            self.groups[lanes] += 1
            self.common = None

    def wait(self, newest: int | None) -> None:
        """Land the groups of the active threads except their `newest` last ones; None: everything, committed or not."""
        mask = self.machine.mask
        kept = []
        for flight in self.flights:
            if mask is None and self.common is not None and flight.whole:
                assert isinstance(flight.group, int)
                if newest is None or flight.group < self.common - newest:
                    self._land(flight, None)
                else:
                    kept.append(flight)
                continue
            lanes = flight.pattern.lanes
            committed = self.groups if lanes is None else self.groups[lanes]
            due = flight.waiting if newest is None else flight.waiting & (flight.group < committed - newest)
            if mask is not None:
                due = due & (mask if lanes is None else mask[lanes])
            if due.any():
                self._land(flight, due)
            if flight.waiting.any():
                kept.append(flight)
        self.flights = kept

    def of(self, lanes: np.ndarray) -> list[_Flight]:
        """The copies that some of the lanes have in flight."""
        mine = np.zeros(self.machine.lanes, bool)
        mine[lanes] = True
        return [flight for flight in self.flights if (self._own(flight, mine) & flight.waiting).any()]

    def arrivals_of(self, lanes: np.ndarray, barrier: Mbarrier) -> list[CopiesArrive]:
        """The arrivals of some of the lanes at other mbarriers that have yet to come."""
        self.arrivals = [one for one in self.arrivals if one.deliver in one.barrier.deliveries]
        return [one for one in self.arrivals if one.barrier is not barrier and np.isin(one.lanes, lanes).any()]

    @staticmethod
    def _own(flight: _Flight, mine: np.ndarray) -> np.ndarray:
        return mine if flight.pattern.lanes is None else mine[flight.pattern.lanes]

    def land(self, flights: list[_Flight], lanes: np.ndarray, barrier: Mbarrier) -> None:
        """Land what lanes have in flight of these copies: an mbarrier's phase tells of it."""
        mine = np.zeros(self.machine.lanes, bool)
        mine[lanes] = True
        for flight in flights:
            due = self._own(flight, mine) & flight.waiting
            if due.any():
                self._land(flight, due, barrier)
        self.flights = [flight for flight in self.flights if flight.waiting.any()]

    def _land(self, flight: _Flight, due: np.ndarray | None, barrier: Mbarrier | None = None) -> None:
        """Let lanes (None: all) of a copy land."""
        shared, pattern = self.machine.shared, flight.pattern
        everything = due is None or (flight.whole and bool(due.all()))
        rows = None if due is None or everything else np.flatnonzero(due)
        granules, data = pattern.granules, flight.data
        if rows is not None:
            granules, data = granules[rows], data[rows]
        library = self.machine.compiled
        if library is not None and everything:
            where = shared.host, address(shared.initialised), shared.granule.bit_length() - 1, address(pattern.offsets)
            library.land(*where, len(data), pattern.nbytes, address(data))
        else:
            shared.views[pattern.nbytes][pattern.index if rows is None else pattern.index[rows]] = data
            shared.initialised[granules] = True
        if everything:
            pattern.batch = shared.batch
        flight.waiting &= False if due is None else ~due
        flight.whole = False
        self.machine.shadow.landed(pattern, rows, barrier)

    def in_flight(self) -> list[tuple[SharedPattern, np.ndarray]]:
        """(pattern, which of its lanes are still waiting) of each copy."""
        return [(flight.pattern, flight.waiting) for flight in self.flights]

    def snapshot(self) -> tuple[Any, ...]:
        """Return what is in flight now, as the hazard checker names it: equal for equal states of a loop."""
        return tuple(f.pattern if f.whole else Landing(f.pattern, np.flatnonzero(f.waiting)) for f in self.flights)
