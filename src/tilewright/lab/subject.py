"""The subject of an inspection: a rung and a config, a person's .cu, .ptx or .cubin file, as machine code."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..attn.config import AttentionConfig
from ..attn.problem import AttentionProblem
from ..attn.rung import AttentionRung
from ..attn.rungs import EVERY_RUNG
from ..attn.rungs import EXPERIMENTS as ATTENTION_EXPERIMENTS
from ..errors import ConfigRejected, InvalidOperand, TilewrightError, did_you_mean, near_rung
from ..gemm.config import GemmConfig
from ..gemm.problem import GemmProblem
from ..gemm.rung import Rung
from ..gemm.rungs import EXPERIMENTS, GEMM_RUNGS
from ..gpus import Arch, Resources
from ..jit import CompiledKernel, compile_source
from ..jit.nvrtc import parse_resources
from .sass import find_tool, run_tool

LENGTH = 4096
"""m, n and k, or queries and keys, of the problem that a rung is compiled for: it changes nothing but the path for
ragged sizes."""
D_HEAD = 128
"""Of attention, where none is named."""
AnyRung = Rung | AttentionRung
EVERY_EXPERIMENT: tuple[AnyRung, ...] = (*EXPERIMENTS, *ATTENTION_EXPERIMENTS)
AnyConfig = GemmConfig | AttentionConfig


@dataclass(frozen=True)
class Subject:
    """One kernel. `threads`: per block; 0 where the file does not say. `dynamic_shared`: bytes that a launch adds."""

    name: str
    config: str
    arch: str
    entry: str
    cubin: bytes
    resources: Resources
    threads: int
    dynamic_shared: int
    kernel: CompiledKernel | None
    """With its source and PTX, where it was compiled here."""
    called: str = ""
    """The kernel of a file as its source names it; "" where only `entry` is known."""


def every_rung(name: str) -> AnyRung | None:
    """The rung or experiment of a name such as f09, f09_transposed, a17, a07x; None for a name that is not one."""
    rungs: tuple[AnyRung, ...] = (*GEMM_RUNGS, *EVERY_RUNG, *EVERY_EXPERIMENT)
    for rung in rungs:
        if name in (rung.id, rung.id.split("_")[0]):
            return rung
    return None


def named(what: str | Path, config: str | AnyConfig | None = None) -> tuple[AnyRung | None, str | AnyConfig | None]:
    """The rung of a name such as f09 with `config`, or of f09:tile_k=8 with the config of these words; (None, config)
    for what is a file, or not a rung's name. Raises InvalidOperand for the rungs of gradients and of groups, which are
    not looked at one by one."""
    name, colon, words = str(what).partition(":")
    is_file = Path(what).is_file()
    rung = None if is_file else every_rung(name)
    if rung is None and not is_file and re.fullmatch(r"[bg]\d\d(_\w+)?", name):
        _refuse_others(name)
    if rung is None or not colon:
        return rung, config
    if config is not None:
        raise ConfigRejected(f"{what} names a config, and config={str(config)!r} another. Give one of them.")
    return rung, words


def _refuse_others(name: str) -> None:
    from ..attn.backward_rungs import BACKWARD_RUNGS
    from ..grouped.rungs import GROUPED_RUNGS

    for kind, page, rungs in (
        ("attention's gradients", "attention", BACKWARD_RUNGS),
        ("grouped products", "products", GROUPED_RUNGS),
    ):
        if found := [rung.id for rung in rungs if name in (rung.id, rung.id.split("_")[0])]:
            raise InvalidOperand(
                f"{found[0]} is a rung of {kind}, which is not taken here. What it teaches: tilewright rungs, and "
                f"docs/{page}.md."
            )


def nearest_rung(name: str) -> str:
    """Return " Did you mean 'f08'?" for a name that is not a rung's, and where rungs are listed."""
    near = near_rung(name, [*(rung.id for rung in GEMM_RUNGS), *(rung.id for rung in EVERY_RUNG)])
    return near if "tilewright rungs" in near else f"{near} Rungs: tilewright rungs."


def problem_of(rung: AnyRung, dtype: str | None = None, d_head: int = D_HEAD) -> Any:
    """The product, or attention, of LENGTH that a rung is inspected with; by default of its own type. Raises
    InvalidOperand for a product's rung with a d_head."""
    if isinstance(rung, AttentionRung):
        return AttentionProblem.dense(1, 16, LENGTH, LENGTH, d_head, dtype=dtype or "bf16")
    if d_head != D_HEAD:
        raise InvalidOperand(f"d_head={d_head} is of attention, and {rung.id} makes products. Omit it.")
    kind = dtype or ("bf16" if "bf16" in rung.dtypes else rung.dtypes[0])
    return GemmProblem.dense(LENGTH, LENGTH, LENGTH, dtype=kind, precision=rung.precision)


def read_config(rung: AnyRung, text: str | AnyConfig | None, arch: Arch, d_head: int = D_HEAD) -> AnyConfig:
    """A config from words: fields that replace those of the default ("tile_k=16,stages=3"); of attention also whole, as
    "(128, 64, 64, 4): load_2_2_2_fragments". None: the default. Raises ConfigRejected."""
    if text is not None and not isinstance(text, str):
        return text
    if isinstance(rung, AttentionRung):
        if text is not None and text.strip().startswith("("):
            return AttentionConfig.parse(text)
        base: Any = rung.default(problem_of(rung, d_head=d_head), arch)
    else:
        base = rung.default
    known = {f.name: type(getattr(base, f.name)) for f in fields(base)}
    changed: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in known:
            near = did_you_mean(name, known) if equals else ""
            raise ConfigRejected(
                f"config {part!r} is not FIELD=VALUE, with a field of {rung.id}'s configs.{near} "
                f"Fields: {', '.join(known)}; for example "
                f"{'b_c=32,buffer=1' if isinstance(rung, AttentionRung) else 'tile_k=16,stages=3'}."
            )
        try:
            changed[name] = value if known[name] is str else known[name](int(value))
        except ValueError:
            raise ConfigRejected(f"config {part!r}: {value!r} is not a whole number.") from None
    return replace(base, **changed)


def subject_of(
    what: str | Path, arch: Arch, *, config: str | AnyConfig | None = None, dtype: str | None = None,
    d_head: int = D_HEAD, entry: str = "", threads: int = 0, shared: int = 0, include: Sequence[str | Path] = (),
) -> Subject:  # fmt: skip
    """A rung or a file, compiled for `arch`: the options are those of `inspect`. Raises what it raises."""
    rung, words = named(what, config)
    if rung is not None:
        if entry or threads or shared or include:
            raise InvalidOperand(
                f"{rung.id} brings its entry, launch and headers: entry, threads, shared and include are of files."
            )
        return of_rung(rung, read_config(rung, words, arch, d_head), arch, dtype, d_head)
    if (config, dtype, d_head) != (None, None, D_HEAD) and Path(what).is_file():
        raise InvalidOperand(
            f"config, dtype and d_head are of rungs; {what} is a file, which says itself what it is compiled with."
        )
    return of_file(Path(what), arch, entry, threads, shared, include)


def of_rung(rung: AnyRung, config: AnyConfig, arch: Arch, dtype: str | None = None, d_head: int = D_HEAD) -> Subject:
    """A rung compiled for an architecture. Raises ConfigRejected and CompileError."""
    problem: Any = problem_of(rung, dtype, d_head)
    kernel = rung.compile(problem, config, arch)  # type: ignore[arg-type]
    launch = rung.shape(problem, config)  # type: ignore[arg-type]
    return Subject(
        rung.id, str(config), arch.name, kernel.entry, kernel.cubin, kernel.resources, launch.block[0],
        launch.shared_bytes, kernel,
    )  # fmt: skip


def of_file(
    path: Path,
    arch: Arch,
    entry: str = "",
    threads: int = 0,
    dynamic_shared: int = 0,
    include: Sequence[str | Path] = (),
) -> Subject:
    """A kernel of a .cu, .ptx or .cubin file. `entry` may be omitted where the file has one kernel.

    threads, dynamic_shared: of the launch, for its occupancy; else what the file's `// check:` lines say, or the
    threads that __launch_bounds__ allows. include: folders of headers, besides those of such lines. A .ptx file needs
    ptxas. Raises InvalidOperand, CompileError, MissingDependency.
    """
    if not path.is_file():
        raise InvalidOperand(
            f"{str(path)!r} is neither a rung nor a file.{nearest_rung(str(path))} Files: .cu, .ptx or .cubin."
        )
    for what, value, most in (
        ("threads", threads, arch.threads_per_block),
        ("shared", dynamic_shared, arch.shared_per_block),
    ):
        if not 0 <= value <= most:
            raise InvalidOperand(f"{what}={value} is not from 0 to {most}, which {arch} allows.")
    if path.suffix == ".cubin":
        return _of_cubin(path.read_bytes(), path, entry, threads, dynamic_shared)
    from .exercise_lines import kernels_of, launch_said  # which load the emulator: rungs do without

    text = text_of(path)
    said = launch_said(path, text)
    threads, dynamic_shared = threads or said.threads, dynamic_shared or said.shared_bytes
    if path.suffix == ".ptx":
        return _of_ptx(text, path, arch, entry, threads, dynamic_shared)
    name = entry or _only(kernels_of(text), path)
    folders = [path.parent, *include, *said.include]
    kernel = compile_source(text, entry=name, arch=arch.name, name=str(path), include=folders)
    threads = threads or _bounds(kernel.ptx, kernel.entry)
    return Subject(
        path.name, "", arch.name, kernel.entry, kernel.cubin, kernel.resources, threads, dynamic_shared, kernel,
        name,
    )  # fmt: skip


def only_kernel(path: Path) -> str:
    """The one kernel of a .cu or .ptx file. Raises InvalidOperand for none and for several, which it names."""
    from .exercise_lines import kernels_of

    text = text_of(path)
    return _only(_entries(text) if path.suffix == ".ptx" else kernels_of(text), path)


def text_of(path: Path) -> str:
    """The text of a kernel file. Raises InvalidOperand for one that is not text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except ValueError as error:
        raise InvalidOperand(f"{path} is not text in UTF-8 ({error}). Machine code must be named .cubin.") from error


def _entries(ptx: str) -> list[str]:
    return re.findall(r"\.entry\s+([\w$]+)", ptx)


def _only(names: Sequence[str], path: Path) -> str:
    if len(names) != 1:
        if not names:
            raise InvalidOperand(f"{path} has no kernel: no __global__ function in CUDA C++, no .entry in PTX.")
        told = f"{len(names)} kernels ({', '.join(names[:12])})"
        raise InvalidOperand(f"{path} has {told}: name one as entry, a template's with its arguments.")
    return names[0]


def _bounds(ptx: str, entry: str) -> int:
    """The threads per block that the PTX of an entry allows at most; 0 where it does not say."""
    start = ptx.find(f".entry {entry}(")
    head = ptx[start : ptx.find("{", start)] if start >= 0 else ""
    match = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", head)
    return int(match[1]) * int(match[2] or 1) * int(match[3] or 1) if match else 0


def _of_ptx(text: str, path: Path, arch: Arch, entry: str, threads: int, dynamic_shared: int) -> Subject:
    there = _entries(text)
    name = entry or _only(there, path)
    if name not in there:
        raise InvalidOperand(f"{path} has no entry {name!r}; it has {', '.join(there)}.")
    tool = find_tool("ptxas", "nvidia-cuda-nvcc")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.cubin"
        command = [str(tool), "-v", "-lineinfo", f"-arch={arch.name}", str(path), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            told = (done.stderr or done.stdout).strip()
            newer = "\nThe file is of a newer compiler: pip install -U nvidia-cuda-nvcc" * (
                "Unsupported .version" in told
            )
            other = "\nThe file is for a newer GPU: name that one as gpu." * ("higher than default SM" in told)
            raise TilewrightError(f"ptxas does not assemble {path} for {arch}:\n{told}{newer}{other}")
        cubin = out.read_bytes()
    resources = parse_resources(done.stdout + done.stderr, name)
    threads = threads or _bounds(text, name)
    return Subject(path.name, "", arch.name, name, cubin, resources, threads, dynamic_shared, None)


_USED = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)")


def _of_cubin(cubin: bytes, path: Path, entry: str, threads: int, dynamic_shared: int) -> Subject:
    """Its report has no bytes of spills, which are counted from the code (see inspection)."""
    told = run_tool(find_tool("cuobjdump", "nvidia-cuda-cuobjdump"), ("-res-usage",), cubin)
    found = {name: (int(r), int(stack), int(shared)) for name, r, stack, shared in _USED.findall(told)}
    name = entry or _only(list(found), path)
    if name not in found:
        raise InvalidOperand(f"{path} has no kernel {name!r}; it has {', '.join(found)}.")
    registers, stack, shared = found[name]
    arch = cubin[49] if cubin[8] >= 8 else cubin[48]  # in the flags of the ELF header, since ABI 8 a byte later
    return Subject(
        path.name, "", f"sm_{arch}", name, cubin, Resources(registers, 0, 0, stack, shared, 0), threads, dynamic_shared,
        None,
    )  # fmt: skip
