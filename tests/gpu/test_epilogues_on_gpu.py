"""Fused epilogues on a GPU: every rung, random calls, warm calls, graphs; torch tensors in, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from products import Target, place, torch_type

import tilewright as tw
from tilewright import epilogue as ep
from tilewright.arrays.dtypes import FP8
from tilewright.gemm import matmul as matmul_module
from tilewright.gemm.rung import Rung
from tilewright.gemm.rungs import GEMM_RUNGS, find_rung
from tilewright.gemm.warm import calls
from tilewright.lab.epilogues import verdict
from tilewright.lab.numbers import to_tf32

pytestmark = pytest.mark.gpu


def normal(torch, *shape: int, dtype: str = "f32"):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(torch_type(torch, dtype))


def silu64(torch, x):
    return x * torch.sigmoid(x)


def right(torch, out, a, b, function, *operands, alpha=1.0) -> None:
    reason = verdict(torch, out, a, b, function, operands, alpha=alpha)
    assert not reason, reason


@pytest.mark.parametrize("rung", [rung.id for rung in GEMM_RUNGS if rung.dtypes[0] not in FP8])
def test_every_rung_fuses_on_whole_tiles_and_at_edges(torch, rung):
    dtype = "bf16" if rung.startswith("h") else "f32"
    for m, n, k in ((256, 256, 64), (131, 77, 50)):
        a, b = normal(torch, m, k, dtype=dtype), normal(torch, k, n, dtype=dtype)
        if find_rung(rung).precision == "tf32":  # numbers that tf32 holds
            a, b = (torch.from_numpy(to_tf32(side.cpu().numpy())).cuda() for side in (a, b))
        bias, rows, r = normal(torch, n), normal(torch, m, 1, dtype="f16"), normal(torch, m, n, dtype=dtype)
        target = Target(torch, (m, n), "n", dtype if m == 256 else "f16")
        assert tw.matmul(a, b, out=target.view, rung=rung, bias=bias, row_scale=rows, residual=r, activation="silu",
                         precision=find_rung(rung).precision) is target.view  # fmt: skip
        right(torch, target.view, a, b, lambda acc, bias, rows, r: silu64(torch, acc * rows + bias) + r, bias, rows, r)
        assert target.unwritten() == 0
        assert target.intact_around()


CHOICES = {
    "gelu": (ep.gelu, lambda torch, x: torch.nn.functional.gelu(x)),
    "gelu_tanh": (ep.gelu_tanh, lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh")),
    "tanh": (ep.tanh, lambda torch, x: torch.tanh(x)),
    "relu": (ep.relu, lambda torch, x: torch.relu(x)),
}


@pytest.mark.parametrize("seed", range(24))
def test_random_calls(torch, seed):
    """Sizes, batches, layouts and dtypes of every operand, poisoned and guarded results."""
    rng = np.random.default_rng(seed)
    m, n, k = (int(x) for x in rng.integers(1, 300, 3))
    if seed % 3 == 0:
        m, n, k = 8 * (m // 8 + 1), 8 * (n // 8 + 1), 8 * (k // 8 + 1)
    batch = ((), (3,), (2, 3))[seed % 3]
    dtype = ("f32", "bf16", "f16")[rng.integers(3)]
    out_dtype = ("f32", "bf16", "f16")[rng.integers(3)]
    name = list(CHOICES)[rng.integers(len(CHOICES))]
    traced, exact = CHOICES[name]
    a = place(torch, (*batch, m, k), "ntpso"[rng.integers(5)], dtype)
    b = place(torch, (k, n) if rng.integers(2) else (*batch, k, n), "ntpso"[rng.integers(5)], dtype)
    kinds = [((n,), "n"), ((m, 1), "n"), ((m, n), "ntps"[rng.integers(4)]), ((*batch, m, n), "ntps"[rng.integers(4)])]
    operands = []
    for _ in range(2):
        shape, layout = kinds[rng.integers(4)]
        other = ("f32", "bf16", "f16")[rng.integers(3)]
        operands.append(place(torch, shape, layout, other) if len(shape) > 1 else normal(torch, *shape, dtype=other))
    target = Target(torch, (*batch, m, n), "ntp"[rng.integers(3)], out_dtype)
    alpha = float(rng.normal()) / k**0.5
    x, y = operands
    tw.matmul(a, b, out=target.view, alpha=alpha, epilogue=lambda acc, x, y: traced(acc + x) * y, x=x, y=y)
    right(torch, target.view, a, b, lambda acc, x, y: exact(torch, acc + x) * y, x, y, alpha=alpha)
    assert target.unwritten() == 0
    assert target.intact_around()


def test_each_function_is_within_what_it_says(torch):
    x = torch.cat([torch.linspace(-87, 88, 20001), torch.linspace(-1, 1, 10001), torch.logspace(-30, 30, 2000)]).cuda()
    x = x[: x.numel() // 64 * 64].view(-1, 64)
    eye = torch.eye(64, device="cuda")
    doubles = {
        "exp": (torch.exp, 2), "exp2": (torch.exp2, 2), "tanh": (torch.tanh, 2), "erf": (torch.erf, 2),
        "sigmoid": (torch.sigmoid, 4),
        "silu": (lambda v: v * torch.sigmoid(v), 5), "log": (lambda v: torch.log(v.abs()), 1),
        "sqrt": (lambda v: torch.sqrt(v.abs()), 0.5), "rsqrt": (lambda v: v.abs().rsqrt(), 2),
    }  # fmt: skip
    for name, (exact, ulps) in doubles.items():
        function = getattr(ep, name)
        takes_abs = name in ("log", "sqrt", "rsqrt")
        out = tw.matmul(x, eye, rung="f12", epilogue=lambda acc: function(abs(acc) if takes_abs else acc))  # noqa: B023
        wanted = exact(x.double())
        held = wanted.float()
        judged = held.isfinite() & (held.abs() > 1.2e-36)
        spacing = torch.ldexp(torch.ones_like(wanted), torch.frexp(held.double())[1] - 24)
        off = ((out.double() - wanted).abs() / spacing)[judged]
        assert (off <= ulps + 0.01).all(), (name, float(off.max()))
        assert (out[~judged & held.isfinite()].abs() <= 1.2e-36).all()
    gelu = tw.matmul(x, eye, rung="f12", activation="gelu")
    assert ((gelu.double() - torch.nn.functional.gelu(x.double())).abs() <= 2**-22 * x.abs()).all()


def reads_of(monkeypatch) -> list[int]:
    read, reads = matmul_module.read_call, []
    monkeypatch.setattr(matmul_module, "read_call", lambda *given: reads.append(1) or read(*given))
    return reads


def test_a_warm_call_is_not_read_again_and_sees_new_values_and_closures(torch, monkeypatch):
    a, b = normal(torch, 64, 32), normal(torch, 32, 48)

    def call(scale, x):
        return tw.matmul(a, b, epilogue=lambda acc, x: ep.silu(acc * scale) + x, x=x)

    call(2.0, normal(torch, 48))
    reads = reads_of(monkeypatch)
    for _ in range(3):
        x = normal(torch, 48)
        right(torch, call(2.0, x), a, b, lambda acc, x: silu64(torch, acc * 2) + x, x)
    assert not reads
    x = normal(torch, 48)
    right(torch, call(3.0, x), a, b, lambda acc, x: silu64(torch, acc * 3) + x, x)
    assert not reads, "another number is a parameter of the same kernel"
    right(torch, call(1.0, x), a, b, lambda acc, x: silu64(torch, acc) + x, x)
    assert len(reads) == 1, "an identity is another kernel"
    r = normal(torch, 64, 48)
    right(torch, call(3.0, r), a, b, lambda acc, x: silu64(torch, acc * 3) + x, r)
    assert len(reads) == 2, "another shape is another kernel"


def test_out_may_be_the_residual_warm_too_and_no_other_overlap(torch):
    a, b, bias = normal(torch, 128, 64), normal(torch, 64, 128), normal(torch, 128)
    out = normal(torch, 128, 128)
    for _ in range(3):
        held = out.clone()
        assert tw.matmul(a, b, out=out, bias=bias, residual=out, activation="relu") is out
        right(torch, out, a, b, lambda acc, bias, r: torch.relu(acc + bias) + r, bias, held)
    apart = normal(torch, 128, 128)
    for _ in range(3):  # the same kernel, or one whose loads may pass stores
        tw.matmul(a, b, out=out, bias=bias, residual=apart, activation="relu")
        right(torch, out, a, b, lambda acc, bias, r: torch.relu(acc + bias) + r, bias, apart)
        held = out.clone()
        tw.matmul(a, b, out=out, bias=bias, residual=out, activation="relu")
        right(torch, out, a, b, lambda acc, bias, r: torch.relu(acc + bias) + r, bias, held)
    memory = torch.zeros(128 * 128 + 128, device="cuda")
    with pytest.raises(tw.errors.InvalidOperand, match="overlaps"):
        tw.matmul(a, b, out=memory[: 128 * 128].view(128, 128), bias=memory[64 : 64 + 128])


def test_an_epilogue_is_captured_and_replayed_with_new_values(torch):
    a, b, bias, r = normal(torch, 96, 64), normal(torch, 64, 80), normal(torch, 80), normal(torch, 96, 80)
    out = torch.empty(96, 80, device="cuda")
    tw.matmul(a, b, out=out, bias=bias, residual=r, activation="gelu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.matmul(a, b, out=out, bias=bias, residual=r, activation="gelu")
    for tensor in (a, b, bias, r):
        tensor.copy_(torch.randn_like(tensor))
    graph.replay()
    right(torch, out, a, b, lambda acc, bias, r: torch.nn.functional.gelu(acc + bias) + r, bias, r)


def test_a_fused_call_that_has_run_is_remembered(torch):
    """What it costs: tilewright bench host-calls."""
    a, b, bias = (normal(torch, *shape, dtype="bf16") for shape in ((128, 128), (128, 128), (128,)))
    tw.matmul(a, b, bias=bias, activation="silu")
    assert any(call.fused for call in calls._young.values())


def test_a_schedule_of_numbers_runs_one_warm_kernel_with_its_own_number_each_time(torch, monkeypatch):
    compiled = []
    compile_ = Rung.compile

    def counted(self, problem, *more):
        compiled.extend([problem] if problem.epilogue is not None else [])
        return compile_(self, problem, *more)

    monkeypatch.setattr(Rung, "compile", counted)
    a, b, x = normal(torch, 96, 64, dtype="bf16"), normal(torch, 64, 128, dtype="bf16"), normal(torch, 96, 128)

    def step(rate, shift):
        return tw.matmul(a, b, epilogue=lambda acc, x: acc * rate + shift * x, x=x, out_dtype="f32")

    kept = None
    for number in range(2, 60):
        rate, shift = 1 / (number + 0.5), number / 3.5
        right(torch, step(rate, shift), a, b, lambda acc, x, r=rate, s=shift: acc * r + s * x, x)
        kept = kept or len(calls)  # the check makes products of its own
    assert len(compiled) <= 1
    assert len(calls) == kept
