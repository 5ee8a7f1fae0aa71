"""A person's file as `show` has it: CUDA C++ with the PTX and SASS of each line, PTX, or the SASS of a cubin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import InvalidOperand
from ..gpus import Arch
from .kernel_source import KernelSource, SourceLine, in_words, is_new, short_name, with_code
from .sass import listings
from .subject import of_file, text_of


def show_file(
    path: Path, arch: Arch, entry: str, include: Sequence[str | Path], known: set[str] | None, over: str,
    compiled: bool, sass: bool,
) -> KernelSource:  # fmt: skip
    """The lines of a file; new are those that `known` (by key_of), of the file or rung `over`, has not.

    Of PTX, what it was assembled to follows its last line. Raises InvalidOperand, CompileError, MissingDependency.
    """
    is_machine_code = path.suffix == ".cubin"
    if entry and not (compiled or is_machine_code):
        raise InvalidOperand("entry names the kernel whose PTX or SASS is shown: ask for one of them, or omit entry.")
    subject = of_file(path, arch, entry, include=include) if compiled or is_machine_code else None
    if is_machine_code:
        assert subject is not None
        texts = [in_words(instruction) for instruction in listings(subject.cubin)[subject.entry]]
    else:
        texts = text_of(path).splitlines()
    lines = [SourceLine(n, text, known is not None and is_new(text, known)) for n, text in enumerate(texts, 1)]
    by_file: tuple[tuple[str, int], ...] = ()
    if subject is not None and subject.kernel is not None:
        lines, by_file = with_code(subject, lines, short_name(str(path.absolute())), sass)
    elif subject is not None and sass and not is_machine_code:
        code = tuple(in_words(instruction) for instruction in listings(subject.cubin)[subject.entry])
        lines[-1:] = [SourceLine(last.number, last.text, last.new, sass=code) for last in lines[-1:]]
    called = subject.called or subject.entry if subject is not None else ""
    return KernelSource(path.name, (), "", called, "", over, "", str(path), tuple(lines), (), (), by_file)
