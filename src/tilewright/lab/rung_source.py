"""A rung's source as a lesson: which lines are new over the rung below, and the PTX and SASS that each line became."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..attn.rung import AttentionRung
from ..attn.rungs import EVERY_RUNG
from ..errors import ConfigRejected, InvalidOperand, suggests
from ..gemm.rungs import GEMM_RUNGS
from ..gpus import DEFAULT_GPU, find_gpu
from ..jit.source import CUDA_ROOT, gather
from .file_source import show_file
from .kernel_source import Definition, KernelSource, SourceLine, is_new, key_of, with_code
from .subject import (
    EVERY_EXPERIMENT,
    AnyConfig,
    AnyRung,
    every_rung,
    named,
    nearest_rung,
    of_rung,
    read_config,
    text_of,
)

_COMMENT = re.compile(r"//.*$")
_WORD = re.compile(r"\b[A-Za-z_]\w{3,}\b")
_CONSTANT = re.compile(r"\bstatic constexpr \w+ (\w+) =")
_HEADING = re.compile(r"^(?=// ---- )", re.MULTILINE)


def below(rung: AnyRung) -> AnyRung | None:
    """The rung that this one is compared with: the one before it in its ladder, None for the first; of an experiment
    the rung that it changes."""
    if rung in EVERY_EXPERIMENT:
        return every_rung(rung.id[:3])
    ladder: tuple[AnyRung, ...] = EVERY_RUNG if isinstance(rung, AttentionRung) else GEMM_RUNGS
    before = [other for other in ladder[: ladder.index(rung)] if other.id[0] == rung.id[0]]
    return before[-1] if before else None


def own_part(rung: AnyRung) -> tuple[int, str]:
    """(first line's number, text) of a rung's own source: what is below its heading, or all of its file."""
    text = (CUDA_ROOT / rung.include).read_text(encoding="utf-8")
    at = 1
    for part in _HEADING.split(text):
        if part.startswith(f"// ---- {rung.id} "):
            return at, part
        at += part.count("\n")
    return 1, text


def _texts(rung: AnyRung) -> dict[str, str]:
    """The texts of a rung by file: its own part, and what that includes. Attention's rungs share a file, of which those
    above a rung are not part of it."""
    first, own = own_part(rung)
    whole = dict(gather(f'#include "{rung.include}"\n', [CUDA_ROOT]))
    if first > 1:
        lines = whole[rung.include].splitlines(keepends=True)
        own = "".join(lines[: first - 1]) + own
    return whole | {rung.include: own}


def _marked(
    rung: AnyRung, over: set[str] | None = None
) -> tuple[list[SourceLine], AnyRung | None, tuple[Definition, ...]]:
    """Its lines, the rung below, and what the new lines bring in. `over`: what is not new, instead of that rung's."""
    first, own = own_part(rung)
    lower = below(rung)
    texts = own.splitlines()
    if over is not None:
        return [SourceLine(first + n, text, is_new(text, over)) for n, text in enumerate(texts)], lower, ()
    if lower is None:
        return [SourceLine(first + n, text, False) for n, text in enumerate(texts)], None, ()
    known = _known(lower.id)
    if isinstance(rung, AttentionRung):  # each rung's structure has lines that say its name
        low, high = (each.id.split("_")[0].upper() for each in (lower, rung))
        known |= {key.replace(low, high) for key in known}
    lines = [SourceLine(first + n, text, is_new(text, known)) for n, text in enumerate(texts)]
    _, below_own = own_part(lower)
    own_files = [text for name, text in _texts(lower).items() if name.startswith(("gemm/", "attention/"))]
    old = set(_WORD.findall("\n".join([below_own, *own_files])))
    new = dict.fromkeys(word for line in lines if line.new for word in _WORD.findall(_COMMENT.sub("", line.text)))
    return lines, lower, tuple(_defined([word for word in new if word not in old], rung))


def _switched(lines: list[SourceLine], rung: AnyRung) -> list[Definition]:
    """Return where the code that rungs share reads the constants that a rung's new lines set, as Rung::NAME."""
    set_here = [match[1] for line in lines if line.new and (match := _CONSTANT.search(line.text))]
    if not set_here:
        return []
    reads = re.compile(rf"\bRung::({'|'.join(set_here)})\b")
    whole = gather(f'#include "{rung.include}"\n', [CUDA_ROOT])
    found = [
        Definition(match[1], file, number)
        for file, text in whole
        for number, line in enumerate(text.splitlines(), 1)
        if (match := reads.search(_COMMENT.sub("", line)))
    ]
    return sorted(found, key=lambda each: set_here.index(each.name))


def _defined(names: list[str], rung: AnyRung) -> list[Definition]:
    """Return where functions and types of these names are defined in the files that a rung includes."""
    found = []
    texts = {name: text for name, text in _texts(rung).items() if name != rung.include}
    for name in names:
        pattern = re.compile(
            rf"^[^\n/]*(?:\b(?:struct|class|using)\s+{name}\b|__device__[^\n;]*\b{name}\s*\()", re.MULTILINE
        )
        for file, text in texts.items():
            match = pattern.search(text)
            if match:
                found.append(Definition(name, file, text.count("\n", 0, match.start()) + 1))
                break
    return found


@suggests
def show(
    what: str | Path,
    *,
    diff: str | Path | None = None,
    config: str | AnyConfig | None = None,
    gpu: str = DEFAULT_GPU,
    compiled: bool = False,
    sass: bool = True,
    file: str | None = None,
    entry: str = "",
    include: Sequence[str | Path] = (),
) -> KernelSource:
    """Return the source of a rung or of a .cu, .ptx or .cubin file (of a cubin: its SASS); new lines are marked.

    what: "f09", "f09:tile_k=8", or a file. diff: another rung or file, over which lines are new; of a rung by default
    the rung below. compiled: also the PTX and SASS of each line, counting what it calls. SASS needs a disassembler;
    sass=False omits it. config, gpu: what it is compiled with and for. file: of a rung, show this file that it includes
    ("gemm/warp_tiled.cuh") instead of its own; every line then has what was made from it and what it calls. entry,
    include: of a file, its kernel and folders of headers.

    Raises ConfigRejected, InvalidOperand, CompileError.
    """
    board = find_gpu(gpu)
    rung, words = named(what, config)
    known = None if diff is None else _known(diff)
    if rung is None:
        if not Path(what).is_file():
            raise ConfigRejected(f"{str(what)!r} is neither a rung nor a file.{nearest_rung(str(what))}")
        if file is not None or config is not None:
            raise InvalidOperand(f"file and config are of a rung; {what} is a file.")
        return show_file(
            Path(what), board.arch, entry, include, known, "" if diff is None else str(diff), compiled, sass
        )
    if entry or include:
        raise InvalidOperand(f"entry and include are of a file; {what} is a rung.")
    chosen = read_config(rung, words, board.arch)
    lines, lower, uses = _marked(rung, known)
    switches = tuple(_switched(lines, rung))
    place = rung.include
    if file is not None and file != place:
        lines, place = _shared_file(rung, lower, file, known), file
    by_file: tuple[tuple[str, int], ...] = ()
    if compiled:
        lines, by_file = with_code(of_rung(rung, chosen, board.arch), lines, place, sass)
    below_name, below_config = "" if lower is None else lower.id, ""
    if diff is not None:
        below_name = str(diff)
    elif lower is not None and words is None:
        below_config = str(read_config(lower, None, board.arch))
    return KernelSource(
        rung.id, tuple(rung.dtypes), getattr(rung, "precision", "ieee"), rung.teaches, str(chosen), below_name,
        below_config, place, tuple(lines), *((uses, switches) if file is None else ((), ())), by_file,
    )  # fmt: skip


def _known(what: str | Path) -> set[str]:
    """The lines of another rung with what it includes, or of a file. Raises InvalidOperand."""
    rung, _ = named(what)
    if rung is not None:
        texts = list(_texts(rung).values())
    elif Path(what).is_file():
        texts = [text_of(Path(what))]
    else:
        raise InvalidOperand(f"{str(what)!r} is neither a rung nor a file.{nearest_rung(str(what))}")
    return {key_of(line) for text in texts for line in text.splitlines()}


def _shared_file(rung: AnyRung, lower: AnyRung | None, file: str, known: set[str] | None) -> list[SourceLine]:
    """The lines of a file that the rung includes; all are new where the rung below does not include it."""
    texts = _texts(rung)
    if file not in texts:
        raise InvalidOperand(f"{rung.id} does not include {file!r}. It includes {', '.join(texts)}.")
    if known is None and lower is not None:
        known = _known(lower.id)
    return [
        SourceLine(n, text, known is not None and is_new(text, known))
        for n, text in enumerate(texts[file].splitlines(), 1)
    ]
