"""Grouped products on a GPU: every form and rung beside float64, graphs that replay with other ends, gradients."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.gemm.rung import GemmConfig
from tilewright.grouped.rungs import GROUPED_RUNGS

pytestmark = pytest.mark.gpu

SIZES = [0, 5, 129, 1, 64, 0, 300, 17, 200]
KERNELS = [
    ("g01", GemmConfig(128, 256, 32, warp_m=64, warp_n=64, stages=4, group_m=8)),
    ("g01", GemmConfig(16, 64, 128, warp_m=16, warp_n=16, stages=4, group_m=8, min_blocks=4)),
    ("g02", GemmConfig(128, 256, 64, warp_m=16, warp_n=256, stages=4, group_m=8)),
    ("g02", GemmConfig(64, 64, 64, warp_m=16, warp_n=64, stages=6, group_m=8, min_blocks=2)),
    ("g03", GemmConfig(128, 256, 64, warp_m=16, warp_n=256, stages=4, group_m=8)),
    ("g03", GemmConfig(256, 128, 64, warp_m=32, warp_n=128, stages=4, group_m=8)),
    ("g05", GemmConfig(128, 160, 64, warp_m=32, warp_n=160, stages=5, group_m=8, turns=2)),
    ("g05", GemmConfig(64, 256, 64, warp_m=16, warp_n=256, stages=5, group_m=8, turns=2)),
    ("g05", GemmConfig(128, 128, 64, warp_m=32, warp_n=128, stages=5, group_m=8, turns=2)),
    (None, None),
]
FORMS = {"m": ((None, 136), (0, 136, 264)), "n": ((0, 136, 264), (264, None)), "k": ((136, None), (None, 264))}


def parts(form, ends):
    """(index into a, into b, into the result) of each group."""
    for group, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        cut, all_of = slice(begin, end), slice(None)
        yield {"m": (cut, group, cut), "n": (group, (all_of, cut), (all_of, cut)), "k": ((all_of, cut), cut, group)}[
            form
        ]


def operands(torch, form, total, turned=(False, False), groups=9):
    made = []
    for shape, turn in zip(FORMS[form], turned, strict=True):
        shape = [total if extent is None else groups if extent == 0 else extent for extent in shape]
        x = torch.randn(*shape[:-2], *(shape[-1:-3:-1] if turn else shape[-2:]), device="cuda", dtype=torch.bfloat16)
        made.append(x.mT if turn else x)
    return made


def assert_right(torch, form, a, b, ends, out):
    for in_a, in_b, in_out in parts(form, ends):
        x, y, made = a[in_a].double(), b[in_b].double(), out[in_out].double()
        wanted = x @ y
        bound = wanted.abs() * 2**-8 + x.abs() @ y.abs() * 2**-17
        assert ((made - wanted).abs() <= bound).all()  # NaN fails


@pytest.mark.parametrize("turned", [(False, False), (True, True), (False, True), (True, False)], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rung", "config"), KERNELS, ids=[f"{rung} {config}" for rung, config in KERNELS])
def test_every_form_is_right_and_writes_its_groups_only(gpu, torch, form, turned, rung, config):
    torch.manual_seed(1)
    offs = torch.tensor(SIZES, device="cuda").cumsum(0).to(torch.int32)
    ends = offs.tolist()
    a, b = operands(torch, form, ends[-1] + 7, turned)
    shape = (len(SIZES), 136, 264) if form == "k" else (a.shape[-2], b.shape[-1])
    size = torch.Size(shape).numel()
    memory = torch.full((size + 512,), float("nan"), device="cuda", dtype=torch.bfloat16)
    out = memory[256 : 256 + size].view(shape)
    try:
        tw.grouped_matmul(a, b, offs, out=out, rung=rung, config=config)
    except tw.errors.ConfigRejected as error:
        pytest.skip(str(error))
    assert_right(torch, form, a, b, ends, out)
    assert memory[:256].isnan().all()
    assert memory[-256:].isnan().all()
    if form != "k":
        rest = out[ends[-1] :] if form == "m" else out[:, ends[-1] :]
        assert rest.isnan().all()
        new = tw.grouped_matmul(a, b, offs, rung=rung, config=config)
        assert_right(torch, form, a, b, ends, new)
        assert not (new[ends[-1] :] if form == "m" else new[:, ends[-1] :]).any()


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_replays_with_what_the_ends_are_then(gpu, torch, form):
    offs = torch.tensor([100, 200, 300], device="cuda", dtype=torch.int32)
    a, b = operands(torch, form, 300, groups=3)
    out = tw.grouped_matmul(a, b, offs)
    tw.grouped_matmul(a, b, offs, out=out)  # what the graph holds has run before
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.grouped_matmul(a, b, offs, out=out)
    for ends in ([0, 1, 300], [290, 290, 300], [7, 150, 300]):
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        assert_right(torch, form, a, b, ends, out)


@pytest.mark.parametrize("rung", [rung.id for rung in GROUPED_RUNGS[:2]])
@pytest.mark.parametrize("form", FORMS)
def test_ends_that_fall_or_run_over_touch_nothing_outside(gpu, torch, form, rung):
    a, b = operands(torch, form, 300, groups=6)
    offs = torch.tensor([5, 3, -7, 400, 10, 2**31 - 1], device="cuda", dtype=torch.int32)
    out = tw.grouped_matmul(a, b, offs, rung=rung)
    assert_right(torch, form, a, b, [5, 5, 5, 300, 300, 300], out)


def test_thousands_of_groups_are_found(gpu, torch):
    groups = 3000
    torch.manual_seed(2)
    offs = torch.randint(0, 4, (groups,), device="cuda").cumsum(0).to(torch.int32)
    a, b = operands(torch, "m", int(offs[-1]), groups=groups)
    out = tw.grouped_matmul(a, b, offs)
    assert_right(torch, "m", a, b, offs.tolist(), out)


@pytest.mark.parametrize("given", [False, True], ids=["a new result", "out"])
@pytest.mark.parametrize("form", FORMS)
def test_a_second_call_is_remembered_and_the_same(gpu, torch, form, given):
    from tilewright.grouped.matmul import calls
    from tilewright.run.warm import MISS

    offs = torch.tensor([100, 200, 300], device="cuda", dtype=torch.int32)
    a, b = operands(torch, form, 300, groups=3)
    first = tw.grouped_matmul(a, b, offs)
    out = torch.empty_like(first) if given else None
    tw.grouped_matmul(a, b, offs, out=out)
    again = calls.run((a, b, offs, None, None), (None, None, None), (1.0,), out)
    assert again is not MISS
    assert torch.equal(again[0], first)
    offs.copy_(torch.tensor([0, 7, 300], dtype=torch.int32))
    (again,) = calls.run((a, b, offs, None, None), (None, None, None), (1.0,), out)
    assert_right(torch, form, a, b, [0, 7, 300], again)


def test_out_that_overlaps_an_operand_is_refused_by_a_remembered_call_too(gpu, torch):
    memory = torch.zeros(300 * 264 + 8, device="cuda", dtype=torch.bfloat16)
    offs = torch.tensor([100, 200, 300], device="cuda", dtype=torch.int32)
    a, b = operands(torch, "m", 300, groups=3)
    tw.grouped_matmul(a, b, offs, out=memory[: 300 * 264].view(300, 264))
    inside = memory[: 300 * 136].view(300, 136)
    with pytest.raises(tw.errors.InvalidOperand, match="overlap"):
        tw.grouped_matmul(inside, b, offs, out=memory[: 300 * 264].view(300, 264))


def test_cupy_arrays_are_multiplied_without_waiting(gpu, cupy):
    a = cupy.random.standard_normal((30, 64)).astype(cupy.float16)
    b = cupy.random.standard_normal((3, 64, 72)).astype(cupy.float16)
    offs = cupy.array([10, 10, 30], cupy.int32)
    out = tw.grouped_matmul(a, b, offs)
    wanted = cupy.concatenate([a[:10].astype("f8") @ b[0].astype("f8"), a[10:].astype("f8") @ b[2].astype("f8")])
    assert float(abs(out.astype("f8") - wanted).max()) < 0.05


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_single_products(gpu, torch, form):
    offs = torch.tensor([50, 50, 300], device="cuda", dtype=torch.int32)
    a, b = (x.detach().requires_grad_() for x in operands(torch, form, 300, groups=3))
    out = tw.grouped_matmul(a, b, offs)
    weights = torch.randn_like(out)
    out.backward(weights)
    x, y = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    total = sum(
        ((x[in_a] @ y[in_b]) * weights[in_out]).sum() for in_a, in_b, in_out in parts(form, offs.tolist())
    )  # fmt: skip
    total.backward()
    torch.testing.assert_close(a.grad.double(), x.grad, rtol=2e-2, atol=0.2)
    torch.testing.assert_close(b.grad.double(), y.grad, rtol=2e-2, atol=0.2)


def test_the_operator_passes_torchs_checks_on_a_gpu(gpu, torch):
    import tilewright.torch  # noqa: F401

    offs = torch.tensor([50, 50, 290], device="cuda", dtype=torch.int32)
    a, b = (x.detach().requires_grad_() for x in operands(torch, "m", 300, groups=3))
    torch.library.opcheck(torch.ops.tilewright.grouped_matmul.default, (a, b, offs, None), atol=0.2, rtol=2e-2)


TURNED = [
    GemmConfig(128, 256, 64, warp_m=16, warp_n=256, stages=4, group_m=8),
    GemmConfig(192, 192, 64, warp_m=16, warp_n=192, stages=4, group_m=8),
    GemmConfig(256, 192, 64, warp_m=32, warp_n=192, stages=4, group_m=8),
    GemmConfig(64, 64, 64, warp_m=16, warp_n=64, stages=6, group_m=8, min_blocks=2),
]


@pytest.mark.parametrize("turned", [False, True], ids=["b", "b-turned"])
@pytest.mark.parametrize("config", TURNED, ids=str)
def test_a_turned_product_is_right_and_writes_its_groups_only(gpu, torch, turned, config):
    if gpu.arch.name != "sm_90a":
        pytest.skip("g08 is of wgmma")
    torch.manual_seed(1)
    offs = torch.tensor([*SIZES, 255, 256, 257, 16], device="cuda").cumsum(0).to(torch.int32)
    ends = offs.tolist()
    a, b = operands(torch, "m", ends[-1] + 7, (False, turned), len(ends))
    out = torch.full((ends[-1] + 7, 264), 3.0, device="cuda", dtype=torch.bfloat16)
    tw.grouped_matmul(a, b, offs, out=out, rung="g08", config=config)
    assert_right(torch, "m", a, b, ends, out)
    assert (out[ends[-1] :] == 3).all()
