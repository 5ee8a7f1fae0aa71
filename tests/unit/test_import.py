"""`import tilewright` is quick and light, and the core does not know the tools that stand on it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent
HEAVY = ("cuda", "rich", "typer", "torch", "cupy", "jax", "numpy", "platformdirs")


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_import_loads_nothing_else_of_the_package():
    """What it takes is in the record of cold-start."""
    loaded = run("import sys, tilewright; print(*sorted(n for n in sys.modules if n.startswith('tilewright')))").split()
    assert loaded == ["tilewright"]


def test_import_loads_no_heavy_module():
    loaded = run("import sys, tilewright; print(*sorted({name.split('.')[0] for name in sys.modules}))").split()
    assert not set(HEAVY) & set(loaded)


def test_matmul_on_numpy_loads_no_array_library():
    code = (
        "import sys, numpy as np, tilewright as tw; a = np.ones((4, 4), np.float32)\n"
        "with tw.emulator(): assert (tw.matmul(a, a, rung='f01') == 4).all()\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    assert not {"torch", "cupy", "jax", "rich", "typer"} & set(run(code).split())


def test_matmul_on_numpy_does_not_load_masked_arrays():
    """NumPy loads them when they are first asked for; old ones do so at once."""
    code = (
        "import sys, numpy as np, tilewright as tw; before = 'numpy.ma' in sys.modules\n"
        "a = np.ones((4, 4), np.float32)\n"
        "with tw.emulator(): tw.matmul(a, a, rung='f01')\n"
        "print(('numpy.ma' in sys.modules) == before)"
    )
    assert run(code) == "True"


def test_a_rung_is_inspected_and_shown_without_the_emulator():
    code = (
        "import sys, tilewright as tw; tw.lab.inspect_space('f01', ['']); tw.lab.show('f02')\n"
        "print(*(name for name in sys.modules if name.startswith('tilewright.emu')), 'and no more')"
    )
    assert run(code) == "and no more"


def test_a_product_loads_nothing_of_attention():
    code = (
        "import sys, tilewright as tw; from tilewright.arch import GPUS; tw.matmul\n"
        "from tilewright.gemm.family import plan_for; from tilewright.gemm.problem import GemmProblem\n"
        "assert 'shipped' in plan_for(GemmProblem.dense(1000, 1000, 900), GPUS['H200']).source\n"
        "print(*(name for name in sys.modules if '.attn' in name), 'and no more')"
    )
    assert run(code) == "and no more"


@pytest.mark.parametrize("gpu", ["H200", "A100"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_first_plan_of_a_process_loads_no_module(gpu, dtype):
    code = (
        "import sys; from tilewright.gpus import GPUS\n"
        "from tilewright.gemm.family import plan_for; from tilewright.gemm.problem import GemmProblem\n"
        f"problem, before = GemmProblem.dense(1000, 4096, 4096, dtype={dtype!r}), set(sys.modules)\n"
        f"plan_for(problem, GPUS[{gpu!r}]); print(*(set(sys.modules) - before), 'and no more')"
    )
    assert run(code) == "and no more"


BELOW: dict[str, set[str]] = {
    "errors": set(),
    "words": set(),
    "gpus": {"errors"},
    "swizzle": {"errors"},
    "jit": {"errors", "gpus"},
    "arrays": {"errors", "jit"},
    "epilogue": {"errors", "jit", "arrays"},
    "plan": {"words", "errors", "gpus", "jit"},
    "run": {"errors", "gpus", "jit", "arrays", "plan"},
}
"""What a room of the core may import besides itself."""
BELOW["gemm"] = {*BELOW, "words", "swizzle"}
BELOW["attn"] = BELOW["gemm"] - {"gemm"}
BELOW["grouped"] = BELOW["gemm"] | {"gemm"}
BELOW["tuning"] = {*BELOW}
SHARED = {("attn.explain", "gemm.explain")}
"""What one family takes of the other: how an explanation is told."""
CORE = set(BELOW)


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in PACKAGE.rglob("*.py")}


def loaded_by(call: ast.Call, folder: list[str]) -> set[str]:
    """The module of the package that a call of import_module names; "?" where only running it would tell."""
    name = call.args[0]
    if not isinstance(name, ast.Constant):
        return {"?"}
    if name.value.startswith("."):
        return {".".join([*folder, name.value.lstrip(".")])}
    return {name.value.removeprefix("tilewright.")} if name.value.startswith("tilewright.") else set()


def imports(module: str) -> set[str]:
    """The package's modules that a module imports, at load or later, as names below tilewright; not for types alone."""
    tree = ast.parse(FILES[module].read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    folder = module.split(".") if FILES[module].name == "__init__.py" else module.split(".")[:-1]
    folder = [part for part in folder if part]
    found = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            named = [name.name for name in node.names if name.name.startswith("tilewright.")]
            found |= {name.removeprefix("tilewright.") for name in named}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= loaded_by(node, folder)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = [*folder[: len(folder) - node.level + 1], *(node.module or "").split(".")]
            elif (node.module or "").split(".")[0] == "tilewright":
                base = (node.module or "").split(".")[1:]
            else:
                continue
            parent = ".".join(part for part in base if part)
            for name in node.names:
                whole = f"{parent}.{name.name}".lstrip(".")
                found.add(whole if whole in FILES else parent)
    return found - {module}


def room_of(module: str) -> str:
    return module.split(".")[0]


@pytest.mark.parametrize("module", sorted(name for name in FILES if room_of(name) in CORE))
def test_a_room_imports_only_what_stands_below_it(module):
    room = room_of(module)
    wrong = {
        other
        for other in imports(module)
        if room_of(other) not in BELOW[room] | {room} and (module, other) not in SHARED
    }
    assert not wrong, f"{module} imports {wrong}"


def test_no_module_imports_itself_over_others():
    """Lazy imports included; those for annotations alone are not."""
    open_, done, path = set(), set(), []

    def visit(module: str) -> None:
        if module in done:
            return
        assert module not in open_, f"circle: {' -> '.join([*path[path.index(module) :], module])}"
        open_.add(module)
        path.append(module)
        for other in sorted(imports(module)):
            if other in FILES and other:
                visit(other)
        path.pop()
        open_.discard(module)
        done.add(module)

    for module in sorted(FILES):
        if module:
            visit(module)


def test_the_walk_of_imports_sees_what_is_there():
    assert "jit.launch" in imports("emu.session")
    assert any(room_of(name) == "emu" for module in FILES if room_of(module) == "lab" for name in imports(module))
    assert "gemm.call" not in imports("gemm.verify"), "for annotations alone"


def test_public_names_resolve():
    for name in tilewright.__all__:
        assert getattr(tilewright, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        _ = tilewright.matmull
