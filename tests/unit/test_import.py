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
CORE = ("arrays", "attn", "epilogue", "gemm", "jit", "plan", "run", "tuning")
TOOLS = ("emu", "lab", "report", "cli")


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


def test_a_product_loads_nothing_of_attention():
    code = (
        "import sys, tilewright as tw; from tilewright.arch import GPUS; tw.matmul\n"
        "from tilewright.gemm.family import plan_for; from tilewright.gemm.problem import GemmProblem\n"
        "assert 'shipped' in plan_for(GemmProblem.dense(1000, 1000, 900), GPUS['H200']).source\n"
        "print(*(name for name in sys.modules if '.attn' in name), 'and no more')"
    )
    assert run(code) == "and no more"


def imports(path: Path) -> set[str]:
    """Every module that a file of the package imports, anywhere in it, as a dotted name below tilewright."""
    folder = path.relative_to(PACKAGE).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {
                name.name.removeprefix("tilewright.") for name in node.names if name.name.startswith("tilewright")
            }
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = folder[: len(folder) - node.level + 1]
                found |= {".".join((*base, *(node.module or name.name).split("."))) for name in node.names}
            elif (node.module or "").startswith("tilewright"):
                module = node.module.removeprefix("tilewright").lstrip(".")
                found |= {f"{module}.{name.name}".lstrip(".") for name in node.names}
    return found


core_files = sorted(p for p in PACKAGE.rglob("*.py") if (p.relative_to(PACKAGE).parts[0] in CORE)) + sorted(
    p for p in PACKAGE.glob("*.py") if p.name not in ("__init__.py", "__main__.py")
)


@pytest.mark.parametrize("path", core_files, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_core_imports_no_tool(path):
    tools = {name for name in imports(path) if name.split(".")[0] in TOOLS}
    assert not tools, f"{path.name} imports {tools}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "plan").glob("*.py")), ids=lambda p: p.name)
def test_planning_knows_no_family(path):
    """Families are passed in: what products and attention are, only the protocol in plan/family.py may ask."""
    above = {name for name in imports(path) if name.split(".")[0] in ("gemm", "attn", "run", "tuning")}
    assert not above, f"plan/{path.name} imports {above}"


def test_the_walk_of_imports_sees_tools_where_they_are():
    assert any(name.startswith("jit.launch") for name in imports(PACKAGE / "emu" / "session.py"))
    assert any(name.startswith("emu") for path in (PACKAGE / "lab").rglob("*.py") for name in imports(path))


def test_public_names_resolve():
    for name in tilewright.__all__:
        assert getattr(tilewright, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        _ = tilewright.matmull
