"""Grouped products of torch tensors: gradients, the operator, torch.compile, and torch's own grouped product."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright.errors import InvalidOperand  # noqa: E402

ENDS = [0, 5, 5, 30]
REST = 3
FORMS = {
    "m": ((33, 16), (4, 16, 24)), "n": ((4, 16, 24), (24, 33)), "k": ((16, 33), (33, 24)),
}  # fmt: skip


def operands(form: str, turned: bool = False):
    """a and b; `turned`: b's columns lie in a row."""
    torch.manual_seed(1)
    of_a, of_b = FORMS[form]
    a, b = torch.randn(of_a, dtype=torch.float16), torch.randn(of_b, dtype=torch.float16)
    return a.requires_grad_(), (b.mT.contiguous().mT if turned else b).detach().requires_grad_()


def plain(form: str, a, b):
    """The same by torch's own products, in float64."""
    wide, other, begin, made = a.double(), b.double(), 0, []
    for group, end in enumerate(ENDS):
        cut = slice(begin, end)
        made.append({
            "m": lambda g, c: wide[c] @ other[g], "n": lambda g, c: wide[g] @ other[:, c],
            "k": lambda g, c: wide[:, c] @ other[c],
        }[form](group, cut))  # fmt: skip
        begin = end
    if form == "k":
        return torch.stack(made)
    rest = wide.new_zeros((REST, made[0].shape[1]) if form == "m" else (made[0].shape[0], REST))
    return torch.cat([*made, rest], dim=0 if form == "m" else 1)


@pytest.mark.parametrize("turned", [False, True], ids=["b", "b-turned"])
@pytest.mark.parametrize("form", FORMS)
def test_both_gradients_are_grouped_products_of_our_kernels(form, turned):
    a, b = operands(form, turned)
    offs = torch.tensor(ENDS, dtype=torch.int32)
    with tw.emulator() as emulator:
        result = tw.grouped_matmul(a, b, offs)
        weights = torch.randn(result.shape, dtype=torch.float16)
        (result * weights).sum().backward()
        assert len(emulator.results) == 3
    x, y = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    wanted = plain(form, x, y)
    (wanted * weights).sum().backward()
    torch.testing.assert_close(result.detach().double(), wanted.detach(), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(a.grad.double(), x.grad, rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(b.grad.double(), y.grad, rtol=4e-3, atol=4e-3)
    assert b.grad.stride() == b.stride()


@pytest.mark.parametrize("form", FORMS)
def test_the_operator_passes_torchs_checks(form):
    a, b = operands(form)
    offs = torch.tensor(ENDS, dtype=torch.int32)
    torch.library.opcheck(torch.ops.tilewright.grouped_matmul.default, (a, b, offs, None), atol=1e-2, rtol=1e-2)
    torch.library.opcheck(
        torch.ops.tilewright.grouped_matmul.default, (a.detach(), b.detach(), offs, torch.float32), atol=1e-2, rtol=1e-2
    )


@pytest.mark.parametrize("form", FORMS)
def test_torch_compile_keeps_it_whole_and_differentiates_it(form):
    a, b = operands(form)
    offs = torch.tensor(ENDS, dtype=torch.int32)

    def loss(a, b):
        return tt.grouped_matmul(a, b, offs).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    compiled(a, b).backward()
    grads = a.grad.clone(), b.grad.clone()
    a.grad = b.grad = None
    loss(a, b).backward()
    torch.testing.assert_close(grads, (a.grad, b.grad))


def test_on_the_cpu_it_is_torchs_own_grouped_product_for_every_form():
    grouped = getattr(torch, "_grouped_mm", None)
    if grouped is None:
        pytest.skip("this torch has no grouped product")
    offs = torch.tensor([16, 16, 40], dtype=torch.int32)
    for of_a, of_b in (((40, 16), (3, 16, 24)), ((3, 16, 24), (24, 40)), ((16, 40), (40, 24))):
        a, b = torch.randn(of_a, dtype=torch.bfloat16), torch.randn(of_b, dtype=torch.bfloat16)
        try:
            theirs = grouped(a, b, offs=offs)
        except (RuntimeError, NotImplementedError) as error:
            pytest.skip(f"this torch has no grouped product of CPU tensors: {error}")
        torch.testing.assert_close(tt.grouped_matmul(a, b, offs), theirs, rtol=2e-2, atol=2e-2)
        with tw.emulator():
            torch.testing.assert_close(tw.grouped_matmul(a, b, offs), theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("ends", [[5, 3], [5, 99], [-1, 5], [5]], ids=str)
def test_ends_that_cannot_be_are_refused_on_the_cpu_too(ends):
    a, b, offs = torch.randn(8, 4), torch.randn(2, 4, 6), torch.tensor(ends, dtype=torch.int32)
    with pytest.raises(InvalidOperand, match="offs"):
        tt.grouped_matmul(a, b, offs)


def test_a_grouped_product_with_gradients_takes_dtypes_as_matmul_does():
    a, b = operands("m")
    offs = torch.tensor(ENDS, dtype=torch.int32)
    with tw.emulator():
        assert tw.grouped_matmul(a, b, offs, out_dtype="f32").dtype == torch.float32


def test_options_without_a_gradient_are_refused_with_one():
    a, b = operands("m")
    offs = torch.tensor(ENDS, dtype=torch.int32)
    with tw.emulator():
        with pytest.raises(InvalidOperand, match="rung is not supported where an operand requires"):
            tw.grouped_matmul(a, b, offs, rung="g01")
        with pytest.raises(InvalidOperand, match="offs is of type list"):
            tt.grouped_matmul(a, b, ENDS)
