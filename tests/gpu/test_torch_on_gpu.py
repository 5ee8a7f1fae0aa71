"""tilewright.torch on a GPU: the operator's checks, gradients against float64, torch.compile, graphs, whole models."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tilewright.torch as tt  # noqa: E402
from tilewright.epilogue import silu  # noqa: E402

pytestmark = pytest.mark.gpu

SHAPES = [
    ((65, 70), (70, 33)),
    ((2, 65, 70), (70, 33)),
    ((3, 1, 5, 7), (4, 7, 9)),
    ((70,), (70, 33)),
    ((65, 70), (70,)),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def values(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(grad)


def close(result: torch.Tensor, expected: torch.Tensor, size: float) -> None:
    """Within what `dtype` loses on a sum of products of normal numbers whose size is about `size`."""
    step = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[result.dtype]
    assert torch.isfinite(result).all()
    assert float((result.double() - expected).abs().max()) <= step * max(size, float(expected.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_results_and_gradients_are_right_against_float64(dtype, a, b):
    mine = [values(*a, dtype=dtype, grad=True), values(*b, dtype=dtype, grad=True)]
    exact = [tensor.detach().double().requires_grad_() for tensor in mine]
    result, expected = tt.matmul(*mine), torch.matmul(*exact)
    close(result.detach(), expected.detach(), a[-1] ** 0.5)
    seed = torch.randn_like(result)
    result.backward(seed)
    expected.backward(seed.double())
    for one, other in zip(mine, exact, strict=True):
        close(one.grad, other.grad, 70**0.5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_operator_passes_torchs_own_checks(dtype):
    a, b, c = (values(*shape, dtype=dtype, grad=True) for shape in ((33, 48), (48, 24), (24,)))
    torch.library.opcheck(torch.ops.tilewright.matmul.default, (a, b, c, 1.5, 0.5, None, "ieee", False, False))
    torch.library.opcheck(
        torch.ops.tilewright.matmul.default,
        (a.detach(), b.detach().t().contiguous().t(), None, 1.0, 0.0, None, "ieee", False, False),
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_and_their_gradients_are_the_same_bits_among_any_number_of_rows(compiled):
    def rows(x, weight, bias):
        return tt.linear(x, weight, bias, "silu", batch_invariant=True)

    call = torch.compile(rows, fullgraph=True) if compiled else rows
    weight, bias = values(96, 4096, dtype=torch.bfloat16), values(96, dtype=torch.bfloat16)
    x, seed = values(2048, 4096, dtype=torch.bfloat16), values(2048, 96, dtype=torch.bfloat16)
    found = []
    for count in (2048, 7):  # the second would be split along k
        given = x[:count].clone().requires_grad_()
        result = call(given, weight, bias)
        result.backward(seed[:count])
        found.append((result.detach()[:7], given.grad[:7]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_compiled_models_keep_the_operator_in_one_graph():
    layer = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.SiLU(), torch.nn.Linear(128, 32)).cuda().bfloat16()
    x = values(16, 64, dtype=torch.bfloat16)
    expected = layer(x).double()
    assert tt.replace_linears(layer) == 2
    compiled = torch.compile(layer, fullgraph=True)  # a graph break raises
    close(compiled(x).detach(), expected.detach(), 8.0)
    compiled(x).float().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())


def test_a_layer_is_replayed_from_a_graph():
    layer = tt.Linear(256, 512, device="cuda", dtype=torch.bfloat16)
    x = values(64, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        layer(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        x.copy_(values(64, 256, dtype=torch.bfloat16))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, layer(x))


def test_a_side_stream_is_respected():
    a, b = values(2048, 2048), values(2048, 2048)
    stream = torch.cuda.Stream()
    expected = (a * 2).double() @ b.double()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            torch.mm(b, b)  # keeps the stream busy
        result = tt.matmul(a * 2, b)
    torch.cuda.current_stream().wait_stream(stream)
    close(result, expected, 90.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_transformer_layer_gives_torchs_result_and_gradients(dtype):
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True, activation="gelu").cuda()
    exact = copy.deepcopy(theirs).double()
    mine = copy.deepcopy(theirs).to(dtype)
    theirs = theirs.to(dtype)
    assert tt.replace_linears(mine) == 2  # the attention's own projections are no calls of a module
    x = values(4, 65, 256, dtype=dtype)
    outputs = [layer(x.to(next(layer.parameters()).dtype)) for layer in (mine, theirs, exact)]
    for output in outputs:
        output.float().pow(2).sum().backward()
    error, allowed = (float((outputs[i].double() - outputs[2]).abs().max()) for i in (0, 1))
    assert error <= 2 * allowed + 1e-3
    for (name, one), other, right in zip(mine.named_parameters(), theirs.parameters(), exact.parameters(), strict=True):
        error = float((one.grad.double() - right.grad).abs().max())
        allowed = float((other.grad.double() - right.grad).abs().max())
        assert error <= 2 * allowed + 1e-2 * float(right.grad.abs().max()), name


def test_autocast_casts_as_torchs_linear_does():
    layer, x = tt.Linear(64, 32, device="cuda"), values(8, 64)
    with torch.autocast("cuda", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_autocast_casts_operands_of_attention_that_an_earlier_call_had_as_they_are():
    q, k, v = (values(1, 4, 64, 64, dtype=torch.float16) for _ in range(3))
    for _ in range(2):
        assert tt.scaled_dot_product_attention(q, k, v).dtype == torch.float16
    with torch.autocast("cuda", torch.bfloat16):
        assert tt.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16


# --- with something fused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("a", "b"), [((65, 70), (70, 33)), ((2, 64, 72), (72, 40))])
def test_results_and_gradients_through_an_epilogue_are_right_against_float64(dtype, a, b):
    m, n = a[-2], b[-1]
    mine = [values(*shape, dtype=dtype, grad=True) for shape in (a, b, (n,), (*a[:-1], n), (m, 1))]
    exact = [tensor.detach().double().requires_grad_() for tensor in mine]

    def fused(a, b, bias, r, scale):
        return tt.matmul(a, b, alpha=0.125, epilogue=lambda acc, bias, r, scale: silu(acc + bias) * scale + r,
                         bias=bias, r=r, scale=scale)  # fmt: skip

    def by_torch(a, b, bias, r, scale):
        return torch.nn.functional.silu(0.125 * (a @ b) + bias) * scale + r

    result, expected = fused(*mine), by_torch(*exact)
    close(result.detach(), expected.detach(), 1.0)
    seed = torch.randn_like(result)
    result.backward(seed)
    expected.backward(seed.double())
    for one, other in zip(mine, exact, strict=True):
        close(one.grad, other.grad, 130**0.5)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_a_fused_layer_is_right_compiled_and_not_and_trains(activation):
    torch._dynamo.reset()  # each activation compiles forward anew, and torch gives up at the eighth
    torch.manual_seed(0)
    layer = tt.Linear(64, 48, activation=activation).cuda()
    x = values(5, 64, grad=True)
    function = tt.linear.__globals__["ACTIVATIONS"].get(activation, lambda x: x)
    weight, bias = (tensor.detach().double() for tensor in (layer.weight, layer.bias))
    expected = function(torch.nn.functional.linear(x.detach().double(), weight, bias))
    compiled = torch.compile(layer, fullgraph=True)
    for call in (layer, compiled):
        close(call(x).detach(), expected, 8.0)
        with torch.no_grad():
            close(call(x), expected, 8.0)
    (mine,) = torch.autograd.grad(layer(x).sum(), x)
    (theirs,) = torch.autograd.grad(compiled(x).sum(), x)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "dtype"),
    [(name, torch.bfloat16) for name in ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")]
    + [("silu", torch.float16), ("gelu", torch.float32)],
    ids=str,
)
def test_a_training_step_with_bias_activation_and_residual_is_right_against_float64(activation, dtype):
    given = [values(*shape, dtype=dtype, grad=True) for shape in ((3, 65, 72), (40, 72), (40,), (3, 65, 40))]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    linear = torch.nn.functional.linear(*exact[:3])
    expected = tt.linear.__globals__["ACTIVATIONS"][activation](linear) + exact[3]
    seed = torch.randn(3, 65, 40, device="cuda").to(dtype)
    expected.backward(seed.double())
    for _ in range(2):  # cold, then warm
        result = tt.linear(*given[:3], activation, given[3])
        close(result.detach(), expected.detach(), 72**0.5)
        for one, other in zip(torch.autograd.grad(result, given, seed), exact, strict=True):
            assert one.dtype == dtype
            close(one, other.grad, 195**0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_behind_an_activation_nothing_of_the_results_size_is_made_but_the_sums_gradient(dtype):
    x, weight = (values(*s, dtype=dtype, grad=True) for s in ((2048, 128), (8192, 128)))
    grad = values(2048, 8192, dtype=dtype)
    for _ in range(2):
        result = tt.linear(x, weight, None, "silu")  # a bias: torch borrows 128 MiB to sum it
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(result, (x, weight), grad)
    grown = torch.cuda.max_memory_allocated() - before
    assert grown < 1.5 * grad.numel() * grad.element_size() + 8 * 2**20  # a float32 result: twice that


def test_the_gradients_run_in_the_forwards_stream():
    layer = tt.Linear(512, 512, device="cuda", dtype=torch.bfloat16, activation="silu")
    x, seed = values(256, 512, dtype=torch.bfloat16, grad=True), values(256, 512, dtype=torch.bfloat16)
    (expected,) = torch.autograd.grad(layer(x), x, seed)
    held = torch.full_like(seed, float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        result = layer(x)
        torch.cuda._sleep(20_000_000)
        held.copy_(seed)  # late: a kernel in another stream would read NaN
        (mine,) = torch.autograd.grad(result, x, held)
        assert torch.equal(mine.cpu(), expected.cpu())


def test_the_fused_operator_passes_torchs_own_checks():
    from tilewright.torch.matmul import _standard_text

    a, b, bias, r = (values(*shape, grad=True) for shape in ((33, 48), (48, 24), (24,), (33, 24)))
    text = _standard_text(("bias", "residual"), "silu")
    operator = torch.ops.tilewright.fused_matmul.default
    torch.library.opcheck(operator, (a, b, None, 1.0, 0.0, None, text, [bias, r], "ieee", False, False))
