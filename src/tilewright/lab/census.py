"""How much of other projects' code the emulator takes: every kernel of folders of theirs, as the files lie there.

Of each kernel it is said whether its file compiles unedited, whether its PTX has known forms only, and whether it runs
on arguments that are made up: zeros in buffers of 4 MiB, small numbers. Made-up arguments may be wrong ones, so a
fault counts as run and is listed, as is a loop that goes on after LIMIT instructions. Templates get the arguments of a
launch that the project has, else their defaults, else small numbers: where the last do not compile the kernel does not
count, nor does one that an #if keeps out. The folders are those of corpus.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..emu import emulator
from ..emu.api import decoded, run
from ..emu.memory import GlobalMemory
from ..emu.program import Code
from ..errors import CompileError, TilewrightError
from ..jit import compile_source
from ..jit.source import gather
from .corpus import project_folder
from .ladder import Progress, silent
from .record import provenance

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(r"namespace\s+(\w[\w:]*)\s*\{|[{}]|__global__")
_NAME = re.compile(r"__global__\s+(?:[^;{(]|__\w+__\s*\((?:[^()]|\([^()]*\))*\))*?\b(?!__)(\w+)\s*\(")
_TEMPLATE = re.compile(r"template\s*<((?:[^<>]|<[^<>]*>)*)>\s*(?:static\s+|inline\s+|extern\s+\"C\"\s+)*$")
_CONSTANT = r"(?:#\s*define\s+{0}\s+|\b(?:const|constexpr)\b[\w\s:]*\b{0}\s*=\s*)([^;,\n]+)"
_PLAIN = re.compile(r"[\d\s+*/()-]+[uUlL]*|true|false|(?:unsigned |signed )?(?:float|double|int|char|short|half)\d?")
SELF = "tilewright_census"
CENSUS = "census"
"""What diagnostics call the lines that ask for kernels."""
BUFFER = 1 << 22
"""Bytes behind each pointer."""
NUMBER = 64
"""What integers are."""
LIMIT = 30_000
"""Instructions of a launch."""
MOST_DYNAMIC = 96 * 1024
"""Bytes of shared memory of a kernel that takes what the launch gives."""


def census_records(name: str, cases: list[dict[str, Any]], say: Progress = silent) -> list[dict[str, Any]]:
    """One record per file that has kernels. Raises TilewrightError where the folder or a project is not there."""
    records, origin = [], provenance(machine_kind="emulator")
    files = [(case, root, path) for case in cases for root in [project_folder(case)] for path in _files(root, case)]
    for number, (case, root, path) in enumerate(files):
        told = {key: case[key] for key in ("project", "commit")} | {
            "path": str(path.relative_to(root)),
            "row": path.name,
        }
        say(number, f"{case['project']} {told['path']}")
        kernels = file_census(path, root, [root / folder for folder in case.get("include", ())])
        if not kernels:
            continue
        for kernel in kernels:
            kernel["why"] = kernel["why"].replace(f"{root.parent}/", "")
        result = {stage: sum(kernel[stage] for kernel in kernels) for stage in STAGES} | {"kernels": kernels}
        records.append({"suite": name, "case": told, "result": result, "provenance": origin})
    return records


STAGES = ("there", "compiled", "known", "ran")
"""What is counted: kernels, those that compile unedited, those of known forms, those that run to their end."""


def _files(root: Path, case: Mapping[str, Any]) -> list[Path]:
    found = {path for pattern in case["files"] for path in root.glob(pattern)}
    return sorted(path for path in found if path.is_file() and not any(path.match(one) for one in case.get("omit", ())))


def file_census(path: Path, root: Path, include: list[Path]) -> list[dict[str, Any]]:
    """Return what becomes of each kernel of a file."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    folders = [path.parent, *include]
    texts = [text, *(body for _, body in gather(text, folders, leave=True) if "__global__" in body)]
    found = dict(pair for body in texts for pair in kernels_of(body))
    if not found:
        return []
    asked = [_instance(name, parameters, text, root) for name, parameters in found.items()]
    together = _compiled(text, [name for name, _ in asked], path, folders)
    result = []
    for number, (name, made_up) in enumerate(asked):
        alone = together if isinstance(together, str) else _compiled(text, [name], path, folders)
        told = _told(name, alone, number if alone is together else 0)
        if not told["compiled"] and (made_up or told["why"].startswith(f"{CENSUS}(")):
            told["there"] = 0
        result.append(told)
    return result


def kernels_of(text: str) -> Iterator[tuple[str, str | None]]:
    """The kernels that a text defines, by their qualified names, with the parameters of templates."""
    text = re.sub(r"\\\n", "  ", _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text))
    inside: list[str] = []
    seen = set()
    for token in _TOKEN.finditer(text):
        if token[0] == "__global__":
            line = text[text.rfind("\n", 0, token.start()) + 1 : token.start()]
            found = _NAME.match(text, token.start())
            if found is None or line.lstrip().startswith("#") or not _defined(text, found.end() - 1):
                continue
            before = _TEMPLATE.search(text, max(0, token.start() - 2000), token.start())
            name = "::".join([*filter(None, inside), found[1]])
            if name not in seen:
                seen.add(name)
                yield name, before[1] if before else None
        elif token[0] == "}":
            inside[-1:] = []
        else:
            inside.append(token[1] or "")


def _defined(text: str, opening: int) -> bool:
    """Return whether a body follows the parameters that open here."""
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return text[at + 1 :].lstrip().startswith("{")
    return False


def _instance(name: str, parameters: str | None, text: str, root: Path) -> tuple[str, bool]:
    """A kernel's name with arguments for its template; whether those are made up."""
    if parameters is None:
        return name, False
    simple = name.split("::")[-1]
    launch = re.compile(rf"\b{simple}\s*<((?:[^<>;]|<[^<>]*>)*)>\s*<<<")
    wanted = _split(parameters)
    for other in itertools.chain([text], _texts(root, simple)):
        for found in launch.finditer(other):
            known = [_value(argument, other) for argument in _split(found[1])]
            if all(known):
                return f"{name}<{', '.join(map(str, known))}>", False
    made = [_made_up(parameter) for parameter in wanted if "=" not in parameter]
    return f"{name}<{', '.join(made)}>", bool(made)


def _texts(root: Path, word: str) -> Iterator[str]:
    for path in sorted(root.rglob("*.cu*")):
        if path.is_file() and f"{word}<" in (text := path.read_text(errors="replace")) and "<<<" in text:
            yield text


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _value(argument: str, text: str, depth: int = 0) -> str | None:
    """A template's argument as it can stand at the end of the file; None where it is a variable of the host's."""
    if re.fullmatch(
        r"[\d\s+*/()-]+[uUlL]*|true|false|(?:unsigned |signed )?(?:float|double|int|char|short|half)\d?", argument
    ):
        return argument
    if re.fullmatch(r"\w+", argument) and depth < 4:
        found = re.search(_CONSTANT.format(argument), text)
        if found and (value := _value(found[1].strip(), text, depth + 1)):
            return f"({value})" if re.search(r"\W", value) else value
        if re.search(rf"\b(?:struct|class|typedef .*|using)\s+{argument}\b", text):
            return argument
        return None
    words = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", argument))
    known = {word: _value(word, text, depth + 1) for word in words} if depth < 4 else {}
    if known and all(known.values()):
        return re.sub(r"[A-Za-z_]\w*", lambda found: str(known[found[0]]), argument)
    return None


def _made_up(parameter: str) -> str:
    word = parameter.split()[0]
    return {"typename": "float", "class": "float", "bool": "true"}.get(word, "32")


def _compiled(text: str, names: list[str], path: Path, folders: list[Path]) -> str | CompileError:
    """The PTX of a file with these kernels, each under a variable's name that counts up."""
    asked = "".join(f'extern "C" __device__ auto *{SELF}_{k} = &{name};\n' for k, name in enumerate(names))
    whole = f'{text}\n#line 1 "{CENSUS}"\nextern "C" __global__ void {SELF}() {{}}\n{asked}'
    try:
        with emulator():
            return compile_source(whole, entry=SELF, name=str(path), include=folders).ptx
    except CompileError as error:
        return error


def _told(name: str, ptx: str | CompileError, number: int) -> dict[str, Any]:
    """Return how far a kernel came, and why no further."""
    told = {"name": name, "there": 1, "compiled": 0, "known": 0, "ran": 0, "why": "", "faults": []}
    if isinstance(ptx, CompileError):
        return told | {"why": _first_line(ptx)}
    entry = re.search(rf"{SELF}_{number} = (\w+);", ptx)
    told |= {"compiled": 1}
    if entry is None:
        return told | {"why": "its name is not in the PTX"}
    try:
        program = decoded(ptx, entry[1])
    except TilewrightError as error:
        return told | {"why": str(error)[:300]}
    told |= {"known": 1}
    try:
        with np.errstate(all="ignore"):
            found = _run(ptx, program)
    except TilewrightError as error:
        return told | {"why": str(error)[:300]}
    return told | {"ran": 1, "faults": found}


def _first_line(error: CompileError) -> str:
    return next((line for line in str(error).splitlines() if ": error" in line), str(error))[:300]


def _run(ptx: str, program: Code) -> list[str]:
    """Run a kernel on made-up arguments; the kinds of hazards."""
    memory, entry = GlobalMemory(), program.entry
    params = bytearray(entry.parameter_bytes)
    for parameter in entry.parameters:
        value = np.zeros(parameter.size, np.uint8)
        if parameter.kind == "u64":  # nearly always a pointer
            value = np.array([memory.add(np.zeros(BUFFER, np.uint8), parameter.name)], np.uint64).view(np.uint8)
        elif parameter.kind.startswith("f") and parameter.size in (2, 4, 8):
            value = np.array([1], f"f{parameter.size}").view(np.uint8)
        elif parameter.kind and parameter.size >= 4:
            value = np.array([NUMBER], f"i{parameter.size}").view(np.uint8)
        params[parameter.offset : parameter.offset + parameter.size] = value.tobytes()
    directives = entry.directives
    block = _sizes(next((directives[key] for key in ("reqntid", "maxntid") if key in directives), "128"))
    cluster = _sizes(directives.get("reqnctapercluster", "1"))
    dynamic = any(variable.extern and variable.space == "shared" for variable in program.module.variables)
    result = run(
        ptx, entry.name, grid=(2 * cluster[0], cluster[1], cluster[2]), block=block, params=bytes(params),
        memory=memory, shared_bytes=MOST_DYNAMIC - program.static_shared if dynamic else 0, hazards="collect",
        limit=LIMIT,
    )  # fmt: skip
    return sorted({hazard.kind for hazard in result.hazards})


def _sizes(text: str) -> tuple[int, int, int]:
    x, y, z = (*map(int, text.split(",")), 1, 1)[:3]
    return x, y, z
