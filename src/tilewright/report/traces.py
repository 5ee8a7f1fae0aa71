"""The traces that the page's stepper steps through: kernels run on the emulator, each event of one block, packed for a
browser.

traces.json is shipped; `tilewright report --write` remakes what is of kernels that have changed since, and a test holds
it to the emulator.
A trace's arrays: `ops` the instructions, `patterns` sets of 32 offsets (null: the lane takes no part), `events`
[op, warps as bits, accesses, told, mbarriers], an access [array or -1 for shared memory, writes, bytes per lane,
[[warp, pattern, offset], ...]].
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..attn.problem import AttentionProblem
from ..emu.api import decoded, run
from ..emu.hazards import Hazard, Sources
from ..emu.memory import GlobalMemory
from ..emu.own_kernel import in_order, load
from ..emu.parameters import pack
from ..emu.ptx import Instruction
from ..emu.recorder import Access, Event, Recorder
from ..emu.session import Emulator
from ..errors import TilewrightError
from ..gemm.problem import GemmProblem
from ..gemm.rung import Rung
from ..lab.attention import AttentionStep
from ..lab.exercise_lines import read_exercise
from ..lab.fingerprint import AnyRung, kernel_hash
from ..lab.ladder import Step
from ..lab.subject import every_rung, read_config
from .pipeline import Timeline, timeline

GPU = "H200"
SHIPPED = Path(__file__).with_name("traces.json")
KERNELS = Path(__file__).with_name("kernels")
BAND = 256
"""Elements before an output's first (check.Guarded)."""
WIDE = (3, 4, 3)
"""Swizzle of bytes: 16-byte units of a row xored with the number of the 128-byte row, modulo 8."""
BOTH = {"A": WIDE, "B": WIDE}
ATTENTION = {"Q": WIDE, "K": WIDE, "V": WIDE}
SWIZZLES: dict[str, dict[str, tuple[int, int, int]]] = {
    "h09": {"B": WIDE}, "h11": {"A": (2, 4, 3), "B": (3, 4, 5)}, "h12": BOTH, "h14": BOTH, "h15": BOTH, "h17": BOTH,
    "a02": ATTENTION, "a03": ATTENTION, "a19": ATTENTION, "a22": ATTENTION,
}  # fmt: skip
"""Rung -> array -> how the tiles of it are swizzled, in bytes (swizzle.Swizzle)."""
ITEM = {"f32": 4, "bf16": 2, "f16": 2, "tf32": 4}


@dataclass(frozen=True)
class Scene:
    """One kernel to step through: a rung, a config in words ("" for its default), the sizes of its problem; or a
    kernel file with `// check:` lines."""

    rung: str
    config: str = ""
    sizes: tuple[int, ...] = ()
    """m, n, k; or queries, keys, d_head."""

    @property
    def key(self) -> str:
        """Its name in the page's address."""
        return Path(self.rung).stem + (f"-{self.config.replace(',', '-').replace('=', '')}" if self.config else "")


SCENES = (
    Scene("f01", "", (64, 64, 16)),
    Scene("f01", "tile_m=16,tile_n=16", (32, 32, 16)),
    Scene("f02", "", (64, 64, 16)),
    Scene("f02", "tile_m=16,tile_n=16", (32, 32, 16)),
    Scene("f03", "", (64, 64, 64)),
    Scene("f03", "tile_m=16,tile_n=16,tile_k=16", (32, 32, 48)),
    Scene("f04", "", (64, 64, 24)),
    Scene("f04", "thread_m=4,tile_m=32", (32, 64, 24)),
    Scene("f05", "tile_m=64,tile_n=64,tile_k=8,thread_m=8,thread_n=4", (64, 64, 24)),
    Scene("f05", "tile_m=64,tile_n=64,tile_k=8,thread_m=4,thread_n=8", (64, 64, 24)),
    Scene("f06", "tile_m=64,tile_n=64,tile_k=8,thread_m=8,thread_n=4", (64, 64, 24)),
    Scene("f08", "tile_k=8", (64, 128, 24)),
    Scene("f09", "tile_k=8", (64, 128, 24)),
    Scene("f09", "", (64, 128, 48)),
    Scene("f10", "", (64, 128, 32)),
    Scene("f11", "tile_k=8", (64, 128, 40)),
    Scene("f12", "tile_k=8,stages=2", (128, 256, 40)),
    Scene("f12", "tile_k=8,stages=3", (128, 256, 40)),
    Scene("f12", "tile_k=8,stages=4", (128, 256, 40)),
    Scene("h08", "tile_k=16", (128, 128, 64)),
    Scene("h08", "", (128, 128, 96)),
    Scene("h09", "tile_k=16", (128, 128, 64)),
    Scene("h09", "", (128, 128, 96)),
    Scene("h11", "stages=3", (128, 256, 160)),
    Scene("h11", "stages=4", (128, 256, 160)),
    Scene("h12", "stages=3", (128, 256, 320)),
    Scene("h12", "", (128, 256, 320)),
    Scene("h14", "stages=3", (128, 256, 384)),
    Scene("h14", "", (128, 256, 384)),
    Scene("h15", "stages=3", (128, 256, 384)),
    Scene("h15", "", (128, 256, 384)),
    Scene("h17", "", (256, 384, 320)),
    Scene("a01", "", (64, 192, 64)),
    Scene("a02", "", (64, 192, 64)),
    Scene("a03", "", (64, 192, 64)),
    Scene("a03", "b_c=32", (64, 160, 64)),
    Scene("a19", "", (64, 576, 64)),
    Scene("a22", "", (64, 576, 64)),
    *(Scene(str(KERNELS / name)) for name in ("transpose.cu", "transpose_padded.cu", "no_barrier.cu")),
)


def _hash(scene: Scene) -> str:
    """The hash of the scene's device code."""
    rung = every_rung(scene.rung)
    if rung is None:
        return hashlib.sha256(Path(scene.rung).read_bytes()).hexdigest()[:12]
    return kernel_hash([rung])


def record(scene: Scene) -> dict[str, Any]:
    """Run a scene on the emulator, and pack what its first block did. Raises TilewrightError.

    A rung's result is judged. What a kernel file does wrong is part of its trace.
    """
    rung = every_rung(scene.rung)
    ran = _of_file(Path(scene.rung)) if rung is None else _of_rung(scene, rung)
    return {"key": scene.key, "kernels": _hash(scene)} | ran


def _of_rung(scene: Scene, rung: AnyRung) -> dict[str, Any]:
    recorder = Recorder()
    machine = Emulator(GPU, recorder=recorder)
    config: Any = read_config(rung, scene.config or None, machine.arch, d_head=scene.sizes[2])
    step: Any
    if isinstance(rung, Rung):
        m, n, k = scene.sizes
        dtype = "bf16" if "bf16" in rung.dtypes else rung.dtypes[0]
        step = Step(rung, config, GemmProblem.dense(m, n, k, dtype=dtype))
        shapes = {"a": ("A", m, k, 0), "b": ("B", k, n, 0), "out": ("C", m, n, BAND)}
    else:
        queries, keys, d_head = scene.sizes
        dtype = "bf16"
        step = AttentionStep(rung, config, AttentionProblem.dense(1, 1, queries, keys, d_head))
        shapes = {name: (name.upper(), rows, d_head, 0) for name, rows in (("q", queries), ("k", keys), ("v", keys))}
        shapes["out"] = ("O", queries, d_head, BAND)
    kernel = step.compile(machine.arch)
    verdict = step.run_checked(kernel, machine, step.prepare())
    if not verdict.ok:
        raise TilewrightError(f"{scene.key} gave a wrong result on the emulator: {verdict.reason}")
    texts = dict(kernel.source.headers) | {kernel.source.name: kernel.source.text}
    item = ITEM[dtype]
    arrays = [
        Array(name, rows, columns, item, recorder.buffers[key][0] + band * item)
        for key, (name, rows, columns, band) in shapes.items()
    ]
    return {
        "rung": rung.id, "teaches": rung.teaches,
        "config": str(config), "dtype": dtype, "problem": " x ".join(map(str, scene.sizes)),
        "warps": 1 + max(int(event.lanes.max()) // 32 for event in recorder.events),
        "swizzles": {name: list(of) for name, of in SWIZZLES.get(scene.rung, {}).items()},
    } | packed(recorder, arrays, Sources(texts))  # fmt: skip


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _of_file(path: Path) -> dict[str, Any]:
    """The trace of a kernel file, launched as its `// check:` lines say; the first line of its head is what it teaches.

    Arrays of one dimension are drawn in rows of 64. Raises InvalidOperand and CompileError.
    """
    exercise = read_exercise(path)
    kernel = load(path, exercise.entry, GPU, exercise.include)
    given, _, kinds = exercise.values()
    memory, recorder = GlobalMemory(), Recorder()
    parameters = decoded(kernel.ptx, kernel.entry).entry.parameters
    filled = pack(in_order(given, kernel), parameters, kernel.types, memory, 0)
    x, y, z = _three(exercise.block)
    result = run(
        kernel.ptx, kernel.entry, grid=_three(exercise.grid), block=(x, y, z), params=filled.params, memory=memory,
        shared_bytes=exercise.shared_bytes, cluster=_three(exercise.cluster) if exercise.cluster else None, gpu=GPU,
        hazards="collect", sources=kernel.sources,
        recorder=recorder, images=filled.images,
    )  # fmt: skip
    arrays = []
    for buffer in filled.buffers:
        count, item = buffer.array.size, buffer.array.itemsize
        columns = buffer.array.shape[-1] if buffer.array.ndim > 1 else min(count, 64)
        arrays.append(Array(kernel.names[buffer.number], -(-count // columns), columns, item, buffer.address))
    head = exercise.text.splitlines()[0].lstrip("/ ").rstrip(".")
    sizes = ", ".join(f"{name} = {value}" for name, value in exercise.sizes.items())
    return {
        "rung": path.name, "teaches": head, "config": f"block {' x '.join(map(str, exercise.block))}",
        "dtype": ", ".join(sorted(set(kinds.values()))), "problem": sizes, "warps": -(-x * y * z // 32), "swizzles": {},
    } | packed(recorder, arrays, Sources(kernel.sources), result.hazards)  # fmt: skip


@dataclass(frozen=True)
class Array:
    """A matrix in global memory, row-major and dense, as the page draws it."""

    name: str
    rows: int
    columns: int
    item: int
    address: int

    @property
    def nbytes(self) -> int:
        """All of it."""
        return self.rows * self.columns * self.item


class _Packer:
    """Turns events into lists, and keeps what repeats once."""

    def __init__(self, arrays: Sequence[Array], sources: Sources) -> None:
        self.arrays, self.sources = arrays, sources
        self.ops: dict[Instruction | int, int] = {}
        self.told: list[dict[str, Any]] = []
        self.patterns: dict[tuple[int | None, ...], int] = {}

    def op(self, instruction: Instruction) -> int:
        if instruction.index not in self.ops:
            self.ops[instruction.index] = len(self.told)
            one: dict[str, Any] = {"ptx": " ".join(instruction.text.split())[:160], "op": instruction.opcode}
            if instruction.location:
                calls = (instruction.location, *instruction.location.calls)
                shown = next((at for at in calls if "ptx/" not in self.sources.place(at)[0]), calls[0])
                file, line = self.sources.place(shown)
                one |= {"file": Path(file).name, "code": (self.sources.line(file, line) or "")[:160]}
            self.told.append(one)
        return self.ops[instruction.index]

    def array_at(self, address: int) -> int:
        """Return which array holds an address; -2 for none."""
        for number, array in enumerate(self.arrays):
            if array.address <= address < array.address + array.nbytes:
                return number
        return -2

    def access(self, access: Access) -> list[Any] | None:
        if not len(access.lanes):
            return None
        where, origin = -1, 0
        if access.space == "global":
            where = self.array_at(int(access.addresses[0]))
            origin = self.arrays[where].address if where >= 0 else 0
        warps = []
        for warp in np.unique(access.lanes // 32).tolist():
            mine = access.lanes // 32 == warp
            addresses = access.addresses[mine] - origin
            base = int(addresses[0])
            row: list[int | None] = [None] * 32
            for lane, address in zip((access.lanes[mine] % 32).tolist(), addresses.tolist(), strict=True):
                row[lane] = address - base
            warps.append([warp, self.patterns.setdefault(tuple(row), len(self.patterns)), base])
        return [where, int(access.writes), access.nbytes, warps]


def packed(
    recorder: Recorder, arrays: Sequence[Array], sources: Sources, hazards: Sequence[Hazard] = ()
) -> dict[str, Any]:
    """The events of a recorder, as the page reads them. A hazard stands at the first event of its instruction."""
    packer = _Packer(arrays, sources)
    wrong: dict[str, list[str]] = {}
    for hazard in hazards:
        wrong.setdefault(hazard.ptx, []).append(f"{hazard.kind}: {hazard.message}")
    events: list[list[Any]] = []
    before: tuple[Any, ...] = ()
    for event in recorder.events:
        bits = sum(1 << warp for warp in np.unique(event.lanes // 32).tolist())
        accesses = [one for one in map(packer.access, event.accesses) if one is not None]
        row: list[Any] = [packer.op(event.instruction), bits, accesses, _told(event, packer)]
        if found := wrong.pop(f"line {event.instruction.ptx_line}: {event.instruction.text}", None):
            row[3]["hazards"] = found
        if event.mbarriers != before:
            row.append(event.mbarriers)
            before = event.mbarriers
        events.append(row)
    drawn: Timeline = timeline(recorder.events, [(a.name, a.address, a.nbytes) for a in arrays])
    return {
        "arrays": [[a.name, a.rows, a.columns, a.item] for a in arrays], "ops": packer.told,
        "patterns": [list(pattern) for pattern in packer.patterns], "events": events, "left_out": recorder.left_out,
        "regions": drawn.regions, "fills": drawn.fills, "reads": drawn.reads, "barriers": drawn.barriers,
    }  # fmt: skip


def _told(event: Event, packer: _Packer) -> dict[str, Any]:
    told = dict(event.told)
    if "boxes" in told:
        told["boxes"] = [
            {k: v for k, v in box.items() if k != "address"} | {"array": packer.array_at(box["address"])}
            for box in told["boxes"]
        ]
    return told


@lru_cache(maxsize=1)
def shipped() -> str:
    """The text of traces.json."""
    return SHIPPED.read_text(encoding="utf-8")


def with_files(files: Sequence[Path]) -> str:
    """The shipped traces after those of kernel files, recorded now. Raises what `record` does."""
    own = [record(Scene(str(file))) for file in files]
    return json.dumps([*own, *json.loads(shipped())], separators=(",", ":")) if own else shipped()


def outdated() -> list[Scene]:
    """The scenes that are not shipped, or whose kernels have changed since."""
    known = {trace["key"]: trace["kernels"] for trace in json.loads(shipped())} if SHIPPED.is_file() else {}
    return [scene for scene in SCENES if known.get(scene.key) != _hash(scene)]


def write(scenes: Sequence[Scene], say: Callable[[str], None] = print) -> None:
    """Record scenes again, and write traces.json: one trace a line, in the order of SCENES."""
    known = {trace["key"]: trace for trace in json.loads(shipped())} if SHIPPED.is_file() else {}
    for scene in scenes:
        start = time.perf_counter()
        known[scene.key] = record(scene)
        say(f"{scene.key}: {len(known[scene.key]['events'])} events in {time.perf_counter() - start:.1f} s")
    lines = ",\n".join(json.dumps(known[scene.key], separators=(",", ":")) for scene in SCENES)
    SHIPPED.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    shipped.cache_clear()


if __name__ == "__main__":
    write(SCENES)
