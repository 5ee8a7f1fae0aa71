"""Grouped products of fp8 operands on a GPU: every form and scale against float64, captures, torch's own product."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.gemm.config import GemmConfig
from tilewright.lab.fp8 import LOSS, whole_scale

pytestmark = pytest.mark.gpu

SIZES = (0, 1, 300, 64, 7, 513, 0, 128, 33)
KERNELS = [
    ("g06", GemmConfig(64, 64, 64, warp_m=32, warp_n=32, stages=4, group_m=8, min_blocks=3)),
    ("g06", GemmConfig(16, 64, 128, warp_m=16, warp_n=16, stages=4, group_m=8, min_blocks=4)),
    ("g07", GemmConfig(128, 128, 128, warp_m=16, warp_n=128, stages=5, group_m=8, part_n=128)),
    ("g07", GemmConfig(128, 256, 128, warp_m=16, warp_n=256, stages=4, group_m=8, part_n=128)),
    ("g07", GemmConfig(64, 128, 128, warp_m=16, warp_n=128, stages=8, group_m=8, part_n=128)),
    ("g07", GemmConfig(64, 64, 128, warp_m=16, warp_n=64, stages=6, group_m=8, min_blocks=2, part_n=64)),
    (None, None),
]


def random(torch, *shape, dtype="float8_e4m3fn"):
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def made_scales(torch, kind, form, k, n, total, groups):
    """(a_scale, b_scale), those of blocks by columns, as quantize makes a's."""

    def made(*shape):
        return torch.rand(shape, device="cuda") + 0.5

    deep, wide = -(-k // 128), -(-n // 128)
    if form == "n":
        return {
            "none": (None, None), "groups": (made(groups, 1, 1), made(groups, 1, 1)),
            "lines": (made(groups, n, 1), made(1, total)), "blocks": (made(groups, deep, n).mT, made(1, total)),
        }[kind]  # fmt: skip
    return {
        "none": (None, None), "groups": (made(groups, 1, 1), made(groups, 1, 1)),
        "lines": (made(total, 1), made(groups, 1, n)),
        "blocks": (made(deep, total).mT, made(groups, wide, deep).mT),
    }[kind]  # fmt: skip


def assert_right(torch, form, ends, a, b, a_scale, b_scale, out):
    begin = 0
    for group, end in enumerate(ends):
        cut = slice(begin, end)
        begin = end
        x, y, where = (a[cut], b[group], cut) if form == "m" else (a[group], b[:, cut], (slice(None), cut))
        sides = []
        for side, scale, cut_here in ((x, a_scale, form == "m"), (y, b_scale, form == "n")):
            if scale is not None and scale.dim() == 3:
                scale = scale[group]
            elif scale is not None and scale.dim() == 2 and cut_here:
                scale = scale[cut] if form == "m" else scale[:, cut]
            sides.append(side.double() if scale is None else side.double() * whole_scale(torch, scale, side.shape))
        if out[where].numel() == 0:
            continue
        exact, size = sides[0] @ sides[1], sides[0].abs() @ sides[1].abs()
        bound = exact.abs() * torch.finfo(out.dtype).eps + size * LOSS
        assert bool(((out[where].double() - exact).abs() <= bound).all()), group  # NaN is wrong


@pytest.mark.parametrize("kind", ["none", "groups", "lines", "blocks"])
@pytest.mark.parametrize("form", ["m", "n"])
@pytest.mark.parametrize(("rung", "config"), KERNELS, ids=[f"{rung} {config}" for rung, config in KERNELS])
@pytest.mark.parametrize("sizes", [(1040, 520), (304, 136)], ids=str)
def test_every_form_and_scale_is_right_and_writes_its_groups_only(gpu, torch, sizes, form, kind, rung, config):
    torch.manual_seed(0)
    k, n = sizes
    offs = torch.tensor(SIZES, device="cuda").cumsum(0).to(torch.int32)
    ends, groups = offs.tolist(), len(SIZES)
    total = ends[-1] + 7
    a, b = (
        (random(torch, total, k), random(torch, groups, n, k).mT) if form == "m"
        else (random(torch, groups, n, k), random(torch, total, k).mT)
    )  # fmt: skip
    a_scale, b_scale = made_scales(torch, kind, form, k, n, total, groups)
    shape = (total, n) if form == "m" else (n, total)
    memory = torch.full((shape[0] * shape[1] + 512,), float("nan"), device="cuda", dtype=torch.bfloat16)
    out = memory[256:-256].view(shape)
    try:
        tw.grouped_matmul(a, b, offs, out=out, a_scale=a_scale, b_scale=b_scale, rung=rung, config=config)
    except tw.errors.ConfigRejected as error:
        pytest.skip(str(error))
    assert_right(torch, form, ends, a, b, a_scale, b_scale, out)
    assert memory[:256].isnan().all()
    assert memory[-256:].isnan().all()
    rest = out[ends[-1] :] if form == "m" else out[:, ends[-1] :]
    assert rest.isnan().all()
    if a_scale is not None and kind == "lines":  # not even what scales would make of zeros
        (a_scale if form == "m" else b_scale.mT)[ends[-1] :] = float("nan")
    new = tw.grouped_matmul(a, b, offs, a_scale=a_scale, b_scale=b_scale, rung=rung, config=config)
    assert_right(torch, form, ends, a, b, a_scale, b_scale, new)
    assert not (new[ends[-1] :] if form == "m" else new[:, ends[-1] :]).any()


@pytest.mark.parametrize("rung", ["g06", "g07"])
@pytest.mark.parametrize("form", ["m", "n"])
def test_operands_that_tensor_cores_cannot_read_are_packed_first(gpu, torch, form, rung):
    torch.manual_seed(1)
    offs = torch.tensor(SIZES, device="cuda").cumsum(0).to(torch.int32)
    ends, k, n = offs.tolist(), 333, 140
    a, b = (
        (random(torch, k, ends[-1]).mT, random(torch, len(SIZES), k, n)) if form == "m"
        else (random(torch, len(SIZES), k, n).mT, random(torch, k, ends[-1]))
    )  # fmt: skip
    a_scale, b_scale = made_scales(torch, "lines", form, k, n, ends[-1], len(SIZES))
    try:
        out = tw.grouped_matmul(a, b, offs, a_scale=a_scale, b_scale=b_scale, rung=rung)
    except tw.errors.ConfigRejected as error:
        pytest.skip(str(error))
    assert_right(torch, form, ends, a, b, a_scale, b_scale, out)


@pytest.mark.parametrize("turned", [False, True])
def test_groups_along_k_are_multiplied_as_fp16(gpu, torch, turned):
    torch.manual_seed(3)
    offs = torch.tensor(SIZES, device="cuda").cumsum(0).to(torch.int32)
    ends, m, n = offs.tolist(), 136, 264
    a = random(torch, m, ends[-1]) if turned else random(torch, ends[-1], m).mT
    b = random(torch, ends[-1], n)
    a_scale, b_scale = torch.rand(len(SIZES), m, 1, device="cuda") + 0.5, torch.rand(1, n, device="cuda") + 0.5
    out = tw.grouped_matmul(a, b, offs, a_scale=a_scale, b_scale=b_scale)
    begin = 0
    for group, end in enumerate(ends):
        x, y = a[:, begin:end].double() * a_scale[group].double(), b[begin:end].double() * b_scale.double()
        begin = end
        exact, size = x @ y, x.abs() @ y.abs()
        assert bool(((out[group].double() - exact).abs() <= exact.abs() * 2**-8 + size * 2**-17).all()), group


def test_a_graph_replays_with_what_the_ends_are_then(gpu, torch):
    offs = torch.tensor([100, 200, 300], device="cuda", dtype=torch.int32)
    a, b = random(torch, 300, 512), random(torch, 3, 256, 512).mT
    scales = made_scales(torch, "blocks", "m", 512, 256, 300, 3)
    out = torch.empty(300, 256, device="cuda", dtype=torch.bfloat16)
    given = {"a_scale": scales[0], "b_scale": scales[1], "out": out}
    tw.grouped_matmul(a, b, offs, **given)  # what the graph holds has run before
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.grouped_matmul(a, b, offs, **given)
    for ends in ([0, 1, 300], [290, 290, 300], [7, 150, 300]):
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        assert_right(torch, "m", ends, a, b, *scales, out)


@pytest.mark.parametrize("kind", ["none", "numbers", "lines", "blocks", "of a", "of b"])
@pytest.mark.parametrize("form", ["m", "k"])
def test_a_second_call_is_remembered_and_the_same(gpu, torch, form, kind):
    from tilewright.grouped.matmul import calls
    from tilewright.run.warm import MISS

    if (form, kind) == ("k", "blocks"):
        pytest.skip("blocks along k are not cut into groups")
    offs = torch.tensor([100, 200, 300], device="cuda", dtype=torch.int32)
    a, b = (
        (random(torch, 300, 512), random(torch, 3, 256, 512).mT) if form == "m"
        else (random(torch, 300, 512).mT, random(torch, 300, 256))
    )  # fmt: skip
    of_a = torch.rand((300, 1) if form == "m" else (3, 512, 1), device="cuda") + 0.5
    of_b = torch.rand(3, 1, 256, device="cuda") + 0.5
    scales, alpha = {
        "none": ((None, None), 1.0), "numbers": ((None, None), 3.0), "lines": ((of_a, of_b), 1.0),
        "blocks": (made_scales(torch, "blocks", "m", 512, 256, 300, 3), 1.0), "of a": ((of_a, None), 0.5),
        "of b": ((None, of_b), 2.0),
    }[kind]  # fmt: skip
    of_one = {"numbers": (1.5, 2.0), "of a": (of_a, 0.5), "of b": (2.0, of_b)}.get(kind, scales)
    first = tw.grouped_matmul(a, b, offs, a_scale=of_one[0], b_scale=of_one[1])
    given = (a, b, offs, *scales)
    again = calls.run(given, (None, None, None), (alpha,))
    assert again is not MISS
    assert torch.equal(again[0], first)
    (halved,) = calls.run(given, (None, None, None), (alpha / 2,))  # a number of this call's
    assert torch.allclose(2 * halved.float(), first.float(), rtol=2**-6)


def test_near_torchs_own_grouped_product(gpu, torch):
    if not hasattr(torch, "_scaled_grouped_mm") or gpu.arch.name != "sm_90a":
        pytest.skip("torch has no grouped product of fp8 here")
    torch.manual_seed(2)
    offs = torch.tensor([64, 320, 512], device="cuda", dtype=torch.int32)
    a, b = random(torch, 512, 256), random(torch, 3, 384, 256).mT
    a_scale, b_scale = torch.rand(512, device="cuda") + 0.5, torch.rand(3, 384, device="cuda") + 0.5
    theirs = torch._scaled_grouped_mm(a, b, a_scale, b_scale, offs=offs, out_dtype=torch.bfloat16)
    ours = tw.grouped_matmul(a, b, offs, a_scale=a_scale[:, None], b_scale=b_scale[:, None])
    assert ((ours.double() - theirs.double()).norm() / theirs.double().norm()) < 2**-8
