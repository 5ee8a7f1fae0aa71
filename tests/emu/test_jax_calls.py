"""Products and attention inside jax.jit and jax.grad: through XLA's foreign calls, on the emulator."""

from __future__ import annotations

import contextlib
from ctypes import addressof, c_uint64

import numpy as np
import pytest

from tilewright.errors import ConfigRejected, InvalidEpilogue, InvalidOperand, UnknownKeyword

jax = pytest.importorskip("jax", reason="jax is not installed")
import jax.numpy as jnp  # noqa: E402

import tilewright.jax as tj  # noqa: E402
from tilewright.jax import call_frame  # noqa: E402


def array(*shape: int, seed: int = 0, dtype: str = "float32"):
    return jnp.asarray(np.random.default_rng(sum(shape) + seed).standard_normal(shape, dtype=np.float32), dtype)


def close(found, expected, within: float = 1e-4) -> None:
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max() <= within * max(np.abs(expected).max(), 1)


def test_a_product_in_a_compiled_function_is_right_and_ours():
    a, b, bias, residual = array(3, 20, 32), array(32, 24), array(24), array(3, 20, 24)
    with tj.emulated() as emulator:
        found = jax.jit(lambda *x: tj.matmul(x[0], x[1], bias=x[2], activation="silu", residual=x[3]))(
            a, b, bias, residual
        ).block_until_ready()
        assert len(emulator.results) == 1
        half = jax.jit(lambda a, b: tj.matmul(a, b, out_dtype="bfloat16"))(a, b)
        batches = jax.jit(tj.matmul)(a, array(3, 32, 7))
        assert half.dtype == jnp.bfloat16
        close(half, a @ b, 0.01)
        close(batches, a @ array(3, 32, 7))
    close(found, jax.nn.silu(a @ b + bias) + residual)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_gradients_are_products_too_and_right(activation, dtype):
    given = array(2, 9, 16, dtype=dtype), array(16, 8, dtype=dtype), array(8, dtype=dtype), array(9, 8, dtype=dtype)

    def ours(a, b, bias, residual):
        return (tj.matmul(a, b, bias=bias, activation=activation, residual=residual).astype(jnp.float32) ** 2).sum()

    def jaxs(a, b, bias, residual):
        made = a @ b + bias
        made = made if activation is None else jax.nn.gelu(made, approximate=False)
        return ((made + residual) ** 2).sum()

    with tj.emulated() as emulator:
        found = jax.block_until_ready(jax.jit(jax.grad(ours, argnums=(0, 1, 2, 3)))(*given))
        assert len(emulator.results) >= 3, "the product, and those of a's and b's gradients"
    expected = jax.grad(jaxs, argnums=(0, 1, 2, 3))(*(x.astype(jnp.float32) for x in given))
    for one, other, like in zip(found, expected, given, strict=True):
        assert one.dtype == like.dtype
        assert one.shape == like.shape
        close(one, other, 1e-4 if dtype == "float32" else 0.03)


def test_values_of_another_d_head_than_keys_in_a_compiled_function():
    q, k, v = (array(1, h, n, d, dtype="float16") for h, n, d in ((2, 12, 48), (1, 20, 48), (1, 20, 32)))
    call = jax.jit(lambda *x: tj.attention(*x, is_causal=True))
    right = call(q, k, v)  # by jax's own operations
    with tj.emulated():
        found = jax.block_until_ready(jax.jit(lambda *x: tj.attention(*x, is_causal=True))(q, k, v))
    assert found.shape == (1, 2, 12, 32)
    close(found, right, 0.02)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (5, 2), "softcap": 3.0}], ids=str)
def test_attention_in_a_compiled_function_is_right_and_has_gradients(options):
    q, k, v = array(2, 4, 20, 32, dtype="bfloat16"), array(2, 2, 24, 32, dtype="bfloat16"), array(2, 2, 24, 32, seed=1)
    v, bias = v.astype(jnp.bfloat16), array(4, 20, 24)
    with tj.emulated() as emulator:
        found = jax.block_until_ready(jax.jit(lambda *x: tj.attention(*x, **options))(q, k, v))
        with_bias = jax.jit(lambda q, k, v, bias: tj.attention(q, k, v, bias=bias, **options))(q, k, v, bias)
        of_k = jax.jit(jax.grad(lambda k: tj.attention(q, k, v, **options).astype(jnp.float32).sum()))(k)
        jax.block_until_ready((with_bias, of_k))
        assert emulator.results
    on_cpu = jax.jit(lambda *x: tj.attention(*x, **options))
    close(found, on_cpu(q, k, v), 0.02)
    close(with_bias, jax.jit(lambda q, k, v, bias: tj.attention(q, k, v, bias=bias, **options))(q, k, v, bias), 0.02)
    close(of_k, jax.grad(lambda k: on_cpu(q, k, v).astype(jnp.float32).sum())(k), 0.02)


def test_rows_that_see_no_key_are_0_and_have_a_gradient_of_0():
    q, k = array(1, 1, 6, 32, dtype="bfloat16"), array(1, 1, 3, 32, dtype="bfloat16")
    made = lambda q: tj.attention(q, k, k, is_causal=True).astype(jnp.float32)  # noqa: E731
    assert not np.asarray(made(q)[0, 0, :3]).any()
    assert not np.asarray(jax.grad(lambda q: made(q).sum())(q)[0, 0, :3], np.float32).any()


def test_on_the_cpu_alone_jaxs_own_operations_run():
    a, b = array(4, 8), array(8, 5)
    close(jax.jit(tj.matmul)(a, b), a @ b)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_vmap_runs_one_call_after_another_with_gradients():
    a, b, bias = array(3, 8, 32), array(3, 32, 16), array(16)
    q = array(2, 1, 2, 16, 16, dtype="bfloat16")

    def layer(a, b):
        return tj.matmul(a, b, bias=bias, activation="relu")

    with tj.emulated() as emulator:
        found = jax.vmap(layer)(a, b).block_until_ready()
        assert len(emulator.results) == 3
        of_b = jax.grad(lambda b: jax.vmap(layer, (0, None))(a, b).sum())(b[0])
        seen = jax.vmap(lambda q: tj.attention(q, q, q))(q)
        each = jnp.stack([tj.attention(one, one, one) for one in q])
    right = jax.nn.relu(a @ b + bias)
    close(found, right)
    close(of_b, jax.grad(lambda b: jax.nn.relu(a @ b + bias).sum())(b[0]))
    close(seen, each)


def test_errors_come_at_the_trace():
    a, b = array(4, 8), array(8, 5)
    with pytest.raises(InvalidOperand, match=r"a \(4, 8\) and b \(5, 8\) are not"):
        tj.matmul(a, b.T)
    with pytest.raises(InvalidOperand, match="a is int32 and b float32"):
        tj.matmul(a.astype(jnp.int32), b)
    with pytest.raises(InvalidOperand, match="a is float8_e4m3fn and b float8_e4m3fn"):
        tj.matmul(a.astype(jnp.float8_e4m3fn), b.astype(jnp.float8_e4m3fn))
    with pytest.raises(
        InvalidEpilogue, match=r"activation='swish' is not known.* tanh; apply any other function to the result$"
    ):
        tj.matmul(a, b, activation="swish")
    for options, words in (
        ({"bias": b[0, :3]}, r"bias \(3,\) does not broadcast"), ({"residual": array(2, 4, 8)}, "residual"),
        ({"out_dtype": "int32"}, "out_dtype='int32'"), ({"precision": "tf3"}, "precision 'tf3' is not known"),
        ({"deterministic": "no"}, "deterministic='no' is not True or False"),
    ):  # fmt: skip
        with pytest.raises(InvalidOperand, match=words):
            tj.matmul(a, b, **options)
    q = array(1, 1, 4, 32, dtype="float16")
    for options, words in (
        ({"window": 5}, "window=5 must be two"), ({"window": (-7, 2)}, r"window=\(-7, 2\)"),
        ({"softcap": -1.0}, "softcap=-1.0"), ({"bias": array(5)}, r"bias \(5,\) does not broadcast"),
    ):  # fmt: skip
        with pytest.raises(InvalidOperand, match=words):
            tj.attention(q, q, q, **options)
    with pytest.raises(InvalidOperand, match="all must be float16, or bfloat16"):
        tj.attention(*[array(1, 1, 4, 32)] * 3)
    with pytest.raises(ConfigRejected, match="batch_invariant=True cannot be had with precision='fp32x3'"):
        tj.matmul(a, b, precision="fp32x3", batch_invariant=True)
    with pytest.raises(UnknownKeyword, match=r"matmul has no argument 'activaton'\. Did you mean 'activation'\?"):
        tj.matmul(a, b, activaton="relu")
    with pytest.raises(UnknownKeyword, match=r"attention has no argument 'causal'\. Did you mean 'is_causal'"):
        tj.attention(q, q, q, causal=True)


def test_a_gradient_has_a_gradient():
    a, b, bias = array(2, 5, 16), array(16, 8), array(8)

    def twice(product):
        def once(a, b, bias):
            return sum(
                (x**2).sum() for x in jax.grad(lambda *x: (product(*x) ** 3).sum(), argnums=(0, 1, 2))(a, b, bias)
            )

        return jax.grad(once, argnums=(0, 1, 2))(a / 8, b / 8, bias)

    with tj.emulated():
        found = twice(lambda a, b, bias: tj.matmul(a, b, bias=bias, activation="silu"))
        for mine, theirs in zip(found, twice(lambda a, b, bias: jax.nn.silu(a @ b + bias)), strict=True):
            close(mine, theirs, 1e-3)


def test_a_boolean_bias_hides_the_pairs_where_it_is_false():
    q = array(1, 2, 12, 32, dtype="float16")
    seen = jnp.tril(jnp.ones((12, 12), bool))
    for place in (tj.emulated(), contextlib.nullcontext()):
        with place:
            close(tj.attention(q, q, q, bias=seen), tj.attention(q, q, q, is_causal=True), 2e-3)
            close(tj.attention(q, q, q, window=(None, 0)), tj.attention(q, q, q, is_causal=True), 2e-3)


def test_a_registration_without_xlas_api_is_answered():
    asked = call_frame._Metadata()
    extension = call_frame._Extension(type=call_frame.METADATA, metadata=addressof(asked))
    frame = (c_uint64 * 21)(8 * 21, addressof(extension))  # all else is 0, as jax 0.5 and 0.6 ask
    handler = call_frame.handler(lambda *_: pytest.fail("nothing is to be run"), on_gpu=False)
    assert handler(addressof(frame)) is None
    assert (asked.version.major, asked.version.minor) == (0, 1)
