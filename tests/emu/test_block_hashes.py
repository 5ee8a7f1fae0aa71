"""Records of transformer blocks hold the hashes of every file of device code that their kernels are made of."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tilewright as tw  # noqa: E402
from tilewright.jit import limits, source  # noqa: E402
from tilewright.jit.limits import Recent  # noqa: E402
from tilewright.lab import fingerprint  # noqa: E402
from tilewright.lab.blocks import make_pair, run_pass  # noqa: E402

compile_module = sys.modules["tilewright.jit.compile"]
SMALL = {"d_model": 64, "d_ff": 96, "heads": 2, "kv_heads": 1, "tokens": 23, "batch": 1, "dtype": "bf16"}


@pytest.fixture
def gathered(monkeypatch):
    """The files that kernels are compiled from, and those that hashes cover."""
    compiled, hashed = set(), set()
    real = source.gather

    def seen(names):
        def gather(text, folders, generated=(), *rest, **more):
            found = real(text, folders, generated or {}, *rest, **more)
            names.update(name for name, _ in found if name not in generated)
            return found

        return gather

    monkeypatch.setattr(compile_module, "_by_arguments", Recent(limits.kernels))  # of other tests' kernels
    monkeypatch.setattr(source, "gather", seen(compiled))
    monkeypatch.setattr(fingerprint, "gather", seen(hashed))
    fingerprint._digest.cache_clear()
    yield compiled, hashed
    fingerprint._digest.cache_clear()


@pytest.mark.filterwarnings("ignore:tilewright has no kernel")
@pytest.mark.parametrize(
    ("case", "some"),
    [
        ({"block": "llama", "pass": "forward"}, {"tile/fused_math.cuh", "attention/rotary.cuh"}),
        ({"block": "llama", "pass": "training", "attention": True}, {"gemm/gated.cuh", "attention/rotary.cuh"}),
        ({"block": "encoder", "pass": "training"}, {"tile/fused_math.cuh"}),
    ],
)
def test_a_blocks_record_holds_the_hash_of_every_file_that_it_is_compiled_from(gathered, case, some):
    compiled, hashed = gathered
    case = SMALL | case
    torch.manual_seed(0)
    pair, _, _ = make_pair(torch, case, "cpu")
    with tw.emulator(gpu="H200"):
        run_pass(torch, case["pass"], pair.ours, pair.x, pair.seed)
    fingerprint.measured_hash(case)
    assert some <= compiled
    assert compiled <= hashed
