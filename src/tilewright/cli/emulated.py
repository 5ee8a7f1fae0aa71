"""One run of `tilewright emulate`: the arguments that the command line gave, what came out, and how it is printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EmulatorFault, InvalidOperand
from .console import Progress, console, note

if TYPE_CHECKING:
    from ..emu import Counters
    from ..emu.arguments import Argument
    from ..emu.hazards import Hazard
    from ..emu.own_kernel import EmulateResult
    from ..emu.reference import Reference


@dataclass
class Names:
    """The names of the arguments: the parameters' names where they are known, else argN."""

    before: dict[str, Any]
    """The arguments before the launch, as numbers."""
    kinds: dict[str, str]
    """Buffer -> its type where the command line names it."""
    buffers: list[str]
    files: list[str]
    """What --save-args calls the buffers."""

    def saved_to(self, folder: Path) -> list[Path]:
        """The files of --save-args."""
        return [folder / f"{name}.npy" for name in self.files]


@dataclass
class Given:
    """The arguments of the command line: `values` for `emulate`, `arguments` as they were read."""

    values: list[Any] | dict[str, Any]
    arguments: list[Argument]
    keys: list[str]
    """The names given with them; "" without."""

    @classmethod
    def of(cls, texts: Sequence[str], seed: int) -> Given:
        """Read them in the order given. Raises InvalidOperand, also where only some are named."""
        import numpy as np

        from ..emu.arguments import TYPES, parse_argument

        random = np.random.default_rng(seed)
        keys, arguments, values = [], [], []
        for text in texts:
            match = re.match(r"\s*([A-Za-z_]\w*)\s*=\s*(.*)", text, re.DOTALL)
            key, rest = (match[1], match[2]) if match and match[1] not in TYPES else ("", text)
            argument = parse_argument(rest, random)
            keys.append(key)
            arguments.append(argument)
            values.append(rest if argument.array is None or argument.empty else argument.array)
        if any(keys) and not all(keys):
            raise InvalidOperand(
                f"--arg {texts[keys.index('')]!r} has no name, and others have. Name all or none of them."
            )
        if len(set(keys)) < len(keys) and any(keys):
            raise InvalidOperand(f"--arg: a name is given twice among {', '.join(keys)}.")
        return cls(dict(zip(keys, values, strict=True)) if any(keys) else values, arguments, keys)

    def named_by(self, known: Sequence[str]) -> Names:
        """Their names, of which `known` are the parameters' in order; [] where those are not known."""
        from ..emu.arguments import as_numbers

        order = list(range(len(self.arguments)))
        names = [f"arg{number}" for number in order]
        if any(self.keys):
            names = self.keys
            order.sort(key=lambda number: list(known).index(names[number]) if names[number] in known else len(known))
        elif len(known) == len(names):
            names = list(known)
        buffers = [number for number in order if self.arguments[number].array is not None]
        before = {
            names[number]: argument.scalar if argument.array is None else as_numbers(argument.array, argument.kind)
            for number, argument in enumerate(self.arguments)
        }
        return Names(
            before,
            {names[number]: self.arguments[number].kind for number in buffers},
            [names[number] for number in buffers],
            [names[number] if any(self.keys) else f"arg{number}" for number in buffers],
        )


@dataclass
class Outcome:
    """The outcome of a run. `result` is None where a fault ended it."""

    result: EmulateResult | None = None
    hazards: list[Hazard] = field(default_factory=list)
    allowed: list[Hazard] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What each reference says against a buffer."""

    @property
    def faults(self) -> list[Hazard]:
        """The hazards that are not warnings."""
        return [hazard for hazard in self.hazards if hazard.level == "error"]

    @property
    def is_right(self) -> bool:
        """Return whether there is neither a fault nor a wrong buffer."""
        return not self.faults and not self.wrong

    def to_dict(self) -> dict[str, Any]:
        """All of it as --json writes it."""
        result, faults = self.result, self.faults
        return {
            "fault": faults[0].to_dict() if faults else None,
            "hazards": [hazard.to_dict() for hazard in self.hazards],
            "allowed": [hazard.to_dict() for hazard in self.allowed],
            "wrong": self.wrong,
            "explored": 0 if result is None else result.explored,
            "differing": [] if result is None else list(result.differing),
            "counters": None if result is None else result.counters.to_dict(),
        }


def outcome_of(
    file: Path, entry: str, values: Any, options: dict[str, Any], names: Names, references: Sequence[Reference],
    tolerance: float | None,
) -> Outcome:  # fmt: skip
    """Run the kernel with the options of `own_kernel.emulate`, and hold its buffers to the references."""
    from ..emu.orders import Order
    from ..emu.own_kernel import emulate
    from ..emu.reference import after_of

    with Progress(1.0) as progress:
        try:
            result = emulate(file, entry, args=values, progress=progress.blocks, **options)
        except EmulatorFault as error:
            return Outcome(hazards=[error.hazard])
    wrong = []
    for number, run_of in ((0, result), *result.differing.items()):
        after = after_of(run_of, names.buffers, names.kinds)
        found = [said for one in references if (said := one.wrong(names.before, after, tolerance))]
        wrong += [f"{said} (in order {Order(options['seed'], number)})" if number else said for said in found]
    return Outcome(result, result.hazards, result.allowed, wrong)


def print_outcome(outcome: Outcome, names: Names, is_judged: bool, folder: Path | None) -> None:
    """Print what was found, and what the kernel printed and counted; save its buffers to `folder`.

    `is_judged`: there was a reference, so that a result without a word against it is right.
    """
    from ..lab.record import save_array

    for hazard in outcome.hazards:
        note(f"{'FAULT' if hazard.level == 'error' else 'WARNING'}: {hazard}")
    for said in outcome.wrong:
        note(f"WRONG: {said}")
    for hazard in outcome.allowed:
        note(f"ALLOWED: {hazard.kind} at {hazard.file}:{hazard.line}: {hazard.allowed}")
    if (result := outcome.result) is None:
        return
    if result.printed:
        print(result.printed, end="" if result.printed.endswith("\n") else "\n")
    if outcome.is_right:
        print("No fault, and the result is right." if is_judged else "No fault.")
    if result.explored:
        others = ", ".join(map(str, result.differing))
        says = f"order {others} left other results" if others else "all with the same result"
        print(f"{result.explored} other orders of warps, blocks and completions: {says}.")
    if result.alone:
        note(f"One process ran it: {result.alone}.")
    print_counters(result.counters)
    if folder is not None:
        for place, array in zip(names.saved_to(folder), result.arrays, strict=True):
            save_array(place, array)
        note(f"{len(names.files)} arrays in {folder}")


def print_counters(counters: Counters) -> None:
    """Print what was executed, as a table; kinds of access that did not happen are left out."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column()
    table.add_row("threads", f"{counters.threads:,}")
    table.add_row("thread instructions", f"{counters.thread_instructions:,}")
    for kind, count in sorted(counters.by_class.items(), key=lambda item: -item[1]):
        table.add_row(f"  {kind}", f"{count:,}", f"{count / counters.threads:.4g} per thread")
    for name, requests, sectors in (
        ("global loads", counters.global_load_requests, counters.global_load_sectors),
        ("global stores", counters.global_store_requests, counters.global_store_sectors),
        ("global atomics", counters.global_atomic_requests, counters.global_atomic_sectors),
        ("asynchronous copies", counters.async_copy_requests, counters.async_copy_sectors),
    ):
        if requests:
            table.add_row(name, f"{requests:,}", f"requests, {sectors:,} sectors: {sectors / requests:.2f} per request")
    for name, requests, nbytes in (
        ("bulk loads", counters.bulk_load_requests, counters.bulk_load_bytes),
        ("bulk stores", counters.bulk_store_requests, counters.bulk_store_bytes),
    ):
        if requests:
            table.add_row(name, f"{requests:,}", f"copies, {nbytes:,} bytes")
    for name, requests, wavefronts, ideal in (
        ("shared loads", counters.shared_load_requests, counters.shared_load_wavefronts, counters.shared_load_ideal),
        ("shared stores", counters.shared_store_requests, counters.shared_store_wavefronts,
         counters.shared_store_ideal),
        ("  copies' shared side", counters.async_copy_requests, counters.async_copy_wavefronts,
         counters.async_copy_ideal),
    ):  # fmt: skip
        if requests:
            each, best = wavefronts / requests, ideal / requests
            words = f"requests, {wavefronts:,} wavefronts: {each:.2f} per request, at best {best:.2f}"
            table.add_row(name, f"{requests:,}", words)
    local = counters.local_load_bytes + counters.local_store_bytes
    if local:
        table.add_row("local memory", f"{local:,}", "bytes")
    for pipe, count in counters.flops.items():
        table.add_row(f"FLOP by {pipe}", f"{count:,}")
    console().print(table)
