"""Calls like those of late, among others that differ in one thing: each is right, in whatever order they come."""

from __future__ import annotations

import contextlib
import random

import pytest

import tilewright as tw

pytestmark = pytest.mark.gpu
CALLS = 300


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Guards are made at a call's first repetition, and as many as there are ways."""
    monkeypatch.setattr("tilewright.run.lately.ENOUGH", 1)
    monkeypatch.setattr("tilewright.run.lately.MOST_GUARDS", 1000)


def close(torch, found, right, scale=1.0):
    assert found.shape == right.shape
    assert not found.isnan().any()
    bound = 2e-2 * scale * max(1.0, float(right.abs().max()))
    assert float((found.double() - right.double()).abs().max()) <= bound


def states(torch):
    side = torch.cuda.Stream()
    return {
        "": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cuda", torch.float16), "stream": lambda: torch.cuda.stream(side),
    }  # fmt: skip


def drawn(torch, rng, rows, columns, dtype):
    """A matrix of memory of its own, of another's or not aligned, or a transpose."""
    kind = rng.choice(["own", "own", "own", "wide", "odd", "turned"])
    if kind == "turned":
        return torch.randn(columns, rows, device="cuda").to(dtype).t()
    if kind == "odd":
        return torch.randn(rows * columns + 1, device="cuda").to(dtype)[1:].view(rows, columns)
    wide = torch.randn(rows, columns + (8 if kind == "wide" else 0), device="cuda").to(dtype)
    return wide[:, :columns]


def test_products_in_any_order(torch):
    rng, ways = random.Random(0), states(torch)
    weights = [torch.randn(96, 72, device="cuda").to(dtype) for dtype in (torch.bfloat16, torch.float32) * 2]
    for _ in range(CALLS):
        b, way = rng.choice(weights), rng.choice([*ways, "", ""])
        a = drawn(torch, rng, rng.choice([32, 48]), 96, b.dtype)
        alpha = rng.choice([1.0, 1.0, 1.0, -0.5])
        options, right = {}, alpha * (a.double() @ b.double())
        fused = rng.choice([(), (), ("bias",), ("row_scale",), ("bias", "activation")])  # each is another kernel
        if "row_scale" in fused:
            options["row_scale"] = torch.rand(len(a), 1, device="cuda")
            right = right * options["row_scale"].double()
        if "bias" in fused:
            options["bias"] = torch.randn(72, device="cuda").to(b.dtype)
            right = right + options["bias"].double()
        if "activation" in fused:
            options["activation"] = "silu"
            right = torch.nn.functional.silu(right)
        if rng.random() < 0.3:
            options["out"] = torch.full((len(a), 72), float("nan"), device="cuda", dtype=b.dtype)
        torch.cuda.synchronize()
        with ways[way]():
            found = tw.matmul(a, b, alpha=alpha, verify=rng.random() < 0.1, **options)
        torch.cuda.synchronize()
        close(torch, found, right)


@pytest.mark.parametrize("bias", [False, True])
def test_layers_in_any_order(torch, bias):
    rng, ways = random.Random(bias), states(torch)
    layers = [tw.torch.Linear(96, 72, bias=bias, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    for number in range(CALLS):
        layer, way = rng.choice(layers), rng.choice([*ways, "", ""])
        x = drawn(torch, rng, rng.choice([32, 40]), 96, torch.bfloat16).requires_grad_(rng.random() < 0.7)
        layer.weight.requires_grad_(rng.random() < 0.8)
        torch.cuda.synchronize()
        with ways[way]():
            found = layer(x)
        torch.cuda.synchronize()
        assert found.dtype == (torch.float16 if way == "autocast" else torch.bfloat16)
        wide = [one.detach().double().requires_grad_(one.requires_grad) for one in (x, *layer.parameters())]
        right = torch.nn.functional.linear(*wide)
        close(torch, found, right.detach())
        wanted = [one for one in (x, *layer.parameters()) if one.requires_grad]
        assert found.requires_grad == (bool(wanted) and way not in ("no_grad", "inference"))
        if found.requires_grad:
            grad = drawn(torch, rng, *right.shape, found.dtype)
            mine = torch.autograd.grad(found, wanted, grad, create_graph=rng.random() < 0.1)
            of = torch.autograd.grad(right, [one for one in wide if one.requires_grad], grad.double())
            for one, other in zip(mine, of, strict=True):
                close(torch, one.detach(), other)
        if number % 50 == 0:
            with torch.no_grad():
                layer.weight.mul_(-1)


def test_attention_in_any_order(torch):
    rng, ways = random.Random(0), states(torch)
    functional = torch.nn.functional
    for _ in range(CALLS):
        way, shape = rng.choice([*ways, "", "", ""]), (1, rng.choice([2, 4]), rng.choice([64, 100]), 64)
        given = []
        for _ in range(3):
            turned = rng.random() < 0.3
            laid = (shape[0], shape[2], shape[1], shape[3]) if turned else shape
            x = torch.randn(laid, device="cuda").to(torch.bfloat16)
            given.append((x.transpose(1, 2) if turned else x).requires_grad_(rng.random() < 0.8))
        if rng.random() < 0.1:
            given[1] = given[0]
        options = {"is_causal": rng.random() < 0.5, "scale": rng.choice([None, None, 0.25])}
        torch.cuda.synchronize()
        with ways[way]():
            found = tw.torch.scaled_dot_product_attention(*given, **options)
        torch.cuda.synchronize()
        assert found.dtype == (torch.float16 if way == "autocast" else torch.bfloat16)
        wide = [x.detach().double().requires_grad_(x.requires_grad) for x in given]
        right = functional.scaled_dot_product_attention(*wide, **options)
        close(torch, found, right.detach())
        wanted = [n for n, x in enumerate(given) if x.requires_grad]
        assert found.requires_grad == (bool(wanted) and way not in ("no_grad", "inference"))
        if found.requires_grad:
            grad = torch.randn_like(found)
            mine = torch.autograd.grad(found, [given[n] for n in wanted], grad, retain_graph=True)
            of = torch.autograd.grad(right, [wide[n] for n in wanted], grad.double())
            if given[0] is given[1] and given[0].requires_grad:  # one tensor has the sum of both
                of = [of[0] + of[1]] * 2 + [*of[2:]]
            # where k is q a query sees itself, and little else: of its gradient what out is rounded by is left over
            scale = 5.0 if given[0] is given[1] else 2.0
            for one, other in zip(mine, of, strict=True):
                close(torch, one, other, scale)
