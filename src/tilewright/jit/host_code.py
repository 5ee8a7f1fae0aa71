"""A person's CUDA file with its host part blanked: main, launches, host functions, globals, types and headers.

nvcc compiles both parts of a file; run-time compilation reads device code alone. What is blanked keeps its lines, so
that messages still point at the right ones. A device function must say so (`__device__`, `__global__`, `constexpr`, or
a macro that does), and so must a variable, so whatever says nothing is the host's. Text is scanned, not parsed: what
macros hide stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

_SKIPPED = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
      | ^[ \t]*\#(?:[^\n\\]|\\.)*""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
"""Comments, literals and preprocessor lines."""
_TRANSPARENT = re.compile(r"(?:\b(?:inline\s+)?namespace\b[^()=]*|\bextern)\s*$")
"""What a brace opens that holds declarations like the file itself. The "C" of extern is blanked with all literals."""
_NO_FUNCTION = re.compile(r"\s*(?:typedef|using|struct|class|union|enum|static_assert|friend|asm|namespace)\b")
_NAMED = re.compile(r"(?:[\w>\]]\s+|[&*]\s*)[&*]*(?:\w+\s*::\s*)*(?:~?\w+|operator\W+)\s*\(")
"""A type, then a name before parentheses: what a macro's use is not."""
_VARIABLE = re.compile(r"(?:(?:static|extern|inline|thread_local|unsigned|signed|long|short)\s+)*[A-Za-z_][\w:]*\s*"
                       r"(?:<.*>)?(?:\s+|\s*[*&]\s*)[*&\s]*\w+\s*(?:[=\[,;(]|$)", re.DOTALL)  # fmt: skip
_CONSTANT = re.compile(r"\b(?:const|constexpr)\b")
_INSTANTIATION = re.compile(r"(?:extern\s+)?template\b(?!\s*<)")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n\\]|\\.)*)", re.MULTILINE | re.DOTALL)
_DEVICE = re.compile(r"\b(?:__device__|__global__|__constant__|__shared__|__managed__|constexpr|consteval)\b")
_ENDS, _BRACES = re.compile(r"[;{}]"), re.compile(r"[{}]")
_LABELS = re.compile(r"\s*(?:(?:public|private|protected)\s*:\s*)*")
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b", re.MULTILINE)
_OF_HOST = re.compile(
    r"\bstd\s*::\s*(?:vector|w?string\w*|(?:unordered_|multi)?(?:map|set)|list|deque|queue|stack|[io]?f?stream|"
    r"[io]?stringstream|cout|cerr|cin|endl|thread|mutex|lock_guard|condition_variable|future|chrono|(?:unique|shared)_ptr|"
    r"make_(?:unique|shared)|function|random_\w+|default_random_engine|mt19937\w*|\w+_distribution|\w*exception|"
    r"runtime_error|filesystem|regex|any|variant|optional|exit|setprecision)\b|"
    r"\bcuda(?:Stream|Event|Error|Graph|DeviceProp|MemPool)(?:_t|Exec_t)?\b|\b(?:cublas|cusolver|cusparse|cudnn|cufft|nccl)"
    r"\w+|\bcurand(?:Generator|Status)\w*|\bFILE\s*\*|\b(?:at|c10|torch|thrust|py|pybind11)\s*::|"
    r"\bCU(?:context|module|function|deviceptr|stream|event|result)\b|\btime(?:val|spec)\b|\bpthread_\w+|"
    r"\bPFN\w+PROC\b|\bGL(?:uint|int|enum|sizei|float)\b"
)
"""Names that only the host has."""
_USING = re.compile(
    r"\b(?:using\s+(?:namespace\s+)?|namespace\s+\w+\s*=\s*)(?:std|thrust|at|torch|c10|pybind11)\b[\w:\s]*;"
)
_PROGRAM = re.compile(
    r"<<<|\bint\s+main\s*\(|\bcuda(?:Malloc|Memcpy|Memset|Free|Device(?:Synchronize|Reset)|Event|Stream|GetLast)\w*\s*\(|"
    r"\bcublas\w+\s*\(|\bPYBIND11_MODULE\b|\bTORCH_\w+\("
)
HOST_HEADERS = re.compile(
    r"(?:cublas|cusolver|cusparse|cufft|cudnn|nvToolsExt|nvtx3/|nvml|nvrtc|nccl|thrust/|cub/device/|torch/|ATen/|c10/|pybind11/|"
    r"curand\.h|cuda_profiler_api|cuda_runtime_api|cuda_(?:gl|egl|vdpau|d3d\d+)_interop|cudaGL|cudaEGL|(?:GL|EGL|GLES\d)/|"
    r"driver_functions|nppi?|nvjpeg)"
)
"""Headers of CUDA and others that hold nothing a kernel can use, installed or not."""
BRING_HALF = re.compile(r"cublas|torch/|ATen/")
"""Those among them that include <cuda_fp16.h> and <cuda_bf16.h>."""
HALVES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
BRING_COMPLEX = re.compile(r"cublas|cufft|cusolver|cusparse")
"""Those that include <cuComplex.h>."""
COMPLEX = """#include <cuComplex.h>
typedef float cufftReal;
typedef double cufftDoubleReal;
typedef cuComplex cufftComplex;
typedef cuDoubleComplex cufftDoubleComplex;
"""
"""What kernels use of them, and of cuFFT's own types."""


@lru_cache(maxsize=512)
def is_program(text: str) -> bool:
    """Return whether a file holds code that only the host can run, so that nvcc is what it was written for.

    A file that asks for run-time compilation by itself is taken to be right for it.
    """
    if "__CUDACC_RTC__" in text:
        return False
    if not (_PROGRAM.search(text) or _OF_HOST.search(text)):
        return False
    plain = _SKIPPED.sub(lambda found: _blank(found[0]), text)
    return bool(_PROGRAM.search(plain) or _OF_HOST.search(plain))


def device_part(
    text: str,
    others: Iterable[str] = (),
    dropped: Collection[str] = (),
    lines: Collection[int] = (),
    whole: bool = True,
) -> str:
    """`text` without what only the host can use, in as many lines.

    others: texts whose macros it uses. dropped: headers whose includes are left out. lines: what stands there is the
    host's as well, unless it says that it is the device's. whole: False leaves everything but those lines, and
    functions that say `__host__`, which run-time compilation refuses.
    """
    macros = [_marking_macros(body) for body in (text, *others)]
    device, says_host = (
        re.compile("|".join([pattern, *(rf"\b{re.escape(name)}\b" for names in macros for name in names[k])]))
        for k, pattern in enumerate((_DEVICE.pattern, r"\b__host__\b"))
    )
    if not (whole or lines or says_host.search(text) or any(header in text for header in dropped)):
        return text
    plain = _SKIPPED.sub(lambda found: _blank(found[0]), text)
    for name in (name for names in macros for name in names[2]):
        plain = re.sub(rf"\b{re.escape(name)}\s*\((?:[^()]|\([^()]*\))*\)", lambda found: _blank(found[0]), plain)
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    wrong = [starts[line - 1] for line in lines if 0 < line <= len(starts)]
    places = [*wrong, *(found.start() for found in says_host.finditer(plain))]
    spans = [span for branch in _branches(text, plain) for span in _host_spans(branch, device, wrong, places)]
    if not whole:
        spans = [(start, stop) for start, stop in spans if any(start <= place < stop for place in places)]
    for start, stop in spans:
        text = text[:start] + _without_code(text[start:stop]) + text[stop:]
    text = _USING.sub(lambda found: _blank(found[0]), text)
    for name in dropped:
        line = re.compile(rf"""^[ \t]*#[ \t]*include[ \t]*[<"]{re.escape(name)}[>"][^\n]*""", re.MULTILINE)
        text = line.sub(lambda found: _blank(found[0]), text)
    return text


@lru_cache(maxsize=1024)
def _marking_macros(text: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The macros that say `__device__` or its like, those that say `__host__` alone, and those that make whole
    functions of the device, after which no semicolon stands."""
    macros = _MACRO.findall(text) if "__" in text else []
    device = tuple(name for name, meaning in macros if _DEVICE.search(meaning))
    functions = tuple(name for name, meaning in macros if name in device and meaning.rstrip().endswith("}"))
    return device, tuple(name for name, meaning in macros if "__host__" in meaning and name not in device), functions


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _without_code(text: str) -> str:
    """Blanks and the preprocessor's lines: a condition that begins here may end elsewhere."""
    kept, at = [], 0
    for found in _SKIPPED.finditer(text):
        if found[0].lstrip().startswith("#"):
            kept += [_blank(text[at : found.start()]), found[0]]
            at = found.end()
    return "".join([*kept, _blank(text[at:])])


def _branches(text: str, plain: str) -> list[str]:
    """`plain` with one branch of every condition left: the first of each, and the others of each."""
    alternatives: list[tuple[int, int, bool]] = []  # start, end, whether it is a first branch
    opened: list[tuple[int, bool]] = []
    for found in _CONDITION.finditer(text):
        word = found[1]
        if word.startswith("if"):
            opened.append((found.end(), True))
        elif opened:
            start, first = opened.pop()
            alternatives.append((start, found.start(), first))
            if word != "endif":
                opened.append((found.end(), False))
    if all(first for _, _, first in alternatives):
        return [plain]
    with_else = {end for start, end, first in alternatives if first} & {
        end
        for _, end, first in alternatives
        if first and _CONDITION.match(text, end)[1] != "endif"  # type: ignore[index]
    }
    out = []
    for keep_first in (True, False):
        branch = plain
        for start, end, first in alternatives:
            if first != keep_first and (not first or end in with_else):
                branch = branch[:start] + _blank(branch[start:end]) + branch[end:]
        out.append(branch)
    return out


def _host_spans(
    plain: str, device: re.Pattern[str], wrong: list[int], places: list[int], start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, int]]:
    """The host's declarations at file or namespace level, from their first word to after their last character.

    Of a class that is kept, its members at `places`: those that say `__host__`, and those that do not compile. `plain`:
    a text without comments, literals and preprocessor lines, read from `start` to `stop`. `wrong`: what does not
    compile.
    """
    at, opened = start, 0  # of the scan, and after the first brace of the declaration that is read
    body = False  # whether the declaration has had one in braces
    while found := _ENDS.search(plain, at, len(plain) if stop is None else stop):
        head, mark, at = plain[start : found.start()], found[0], found.end()
        first = start + _LABELS.match(head).end()  # type: ignore[union-attr]
        if mark == "{" and not _TRANSPARENT.search(head):
            at = _after_brace(plain, at)
            if head.count("(") > head.count(")"):
                continue  # braces in an expression: __launch_bounds__(size(Tile{}))
            if not _is_function(head):
                opened = opened if body else found.end()
                body = True
                continue  # a type or an initializer: its declaration goes on until a semicolon
            if not device.search(head):
                yield first, at
        elif mark == ";" and head.strip():
            fails = any(first <= place < at for place in wrong)
            if not device.search(head) and (fails or _is_hosts(head, body)):
                yield first, at
            elif body and any(first <= place < at for place in places):
                members = _host_spans(plain, device, wrong, places, opened, found.start())
                yield from (span for span in members if any(span[0] <= place < span[1] for place in places))
        start, body = at, False


def _is_hosts(head: str, body: bool) -> bool:
    """Return whether a declaration up to its semicolon, which does not name the device, is the host's."""
    text = head.strip()
    if _INSTANTIATION.match(text):
        return True
    if not body and _is_function(head):
        return bool(_NAMED.search(head))
    if _NO_FUNCTION.match(re.sub(r"^\s*template\s*<[^{}]*>(?=\s*\w)", "", text)):
        return bool(_OF_HOST.search(text))
    if _CONSTANT.search(text.partition("=")[0]):
        return bool(_OF_HOST.search(text))
    return bool(_VARIABLE.match(text.partition("{")[0]))


def _is_function(head: str) -> bool:
    if "(" not in head or _NO_FUNCTION.match(re.sub(r"^\s*template\s*<[^{}]*>(?=\s*\w)", "", head)):
        return False
    flat, before = head, ""
    while flat != before:  # what stands in parentheses may hold defaults
        flat, before = re.sub(r"\([^()]*\)", " ", flat), flat
    flat = re.sub(r"^\s*template\s*<.*>", "", flat, flags=re.DOTALL)
    return "=" not in flat or "operator" in flat


def _after_brace(plain: str, at: int) -> int:
    """After the brace that closes the one before `at`; the end of the text where none does."""
    depth = 1
    while depth and (found := _BRACES.search(plain, at)):
        depth += 1 if found[0] == "{" else -1
        at = found.end()
    return at if depth == 0 else len(plain)
