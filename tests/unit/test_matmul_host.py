"""matmul's own logic, apart from kernels: shapes, batches, strides, out, c, alpha and beta, and what it refuses.

The executor is NumPy (fake_executor.py): it multiplies exactly what the launches' parameters describe.
"""

from __future__ import annotations

import numpy as np
import pytest
from fake_executor import fake_gpu
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.errors import ConfigRejected, DeviceError, InvalidOperand
from tilewright.gemm import shapes as shapes_module

SEED = 20261121


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(SEED + sum(shape)).standard_normal(shape).astype(np.float32)


def expect(result: np.ndarray, wanted: np.ndarray) -> None:
    assert result.dtype == np.float32
    assert result.shape == wanted.shape
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)  # refuses NaN where none is wanted


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((7, 1, 3, 4), (2, 4, 5)),
        ((7, 2, 3, 4), (2, 4, 5)),
        ((1, 3, 4), (6, 4, 5)),
        ((4,), (2, 3, 4, 5)),
        ((2, 3, 5, 4), (4,)),
        ((1, 1), (1, 1)),
        ((1, 7), (7, 1)),
        ((9, 1), (1, 9)),
        ((0, 4), (4, 5)),
        ((3, 4), (4, 0)),
        ((0, 3, 4), (4, 5)),
        ((3, 0), (0, 5)),
        ((0,), (0,)),
        ((2, 0, 1, 4), (1, 4, 5)),
    ],
)
def test_shapes_follow_numpy(a, b):
    left, right = random(*a), random(*b)
    with fake_gpu():
        expect(np.asarray(tw.matmul(left, right)), left @ right)


def test_two_vectors_give_a_scalar_as_numpy_does():
    with fake_gpu():
        assert isinstance(tw.matmul(random(4), random(4)), np.float32)


extents = st.integers(0, 4)


@st.composite
def operands(draw):
    """Two arrays that broadcast, as views of larger ones: steps, offsets, transposes, repeated axes."""
    m, n, k = draw(extents), draw(extents), draw(extents)
    batch = draw(st.lists(extents, max_size=3))

    def array(rows: int, cols: int, seed: int) -> np.ndarray:
        own = [draw(st.sampled_from([extent, 1])) for extent in batch][draw(st.integers(0, len(batch))) :]
        shape = [*own, rows, cols]
        order = list(draw(st.permutations(range(len(shape)))))
        steps = [draw(st.integers(1, 2)) for _ in shape]
        offset = [draw(st.integers(0, 1)) for _ in shape]
        base = np.random.default_rng(seed).standard_normal(
            [shape[axis] * steps[axis] + offset[axis] for axis in order]
        ).astype(np.float32)  # fmt: skip
        base = base.transpose(np.argsort(order))
        index = tuple(slice(o, o + e * s, s) for o, e, s in zip(offset, shape, steps, strict=True))
        view = base[index]
        assert list(view.shape) == shape
        if draw(st.booleans()):
            view = np.broadcast_to(view[..., :1, :], shape) if rows > 0 else view
        return view

    return array(m, k, 1), array(k, n, 2)


@settings(max_examples=200, deadline=None)
@given(operands(), st.booleans(), st.booleans())
def test_any_strides_and_batches_equal_numpy(pair, with_c, with_out):
    a, b = pair
    wanted = a.astype(np.float64) @ b
    c = np.random.default_rng(3).standard_normal(wanted.shape[-1:]).astype(np.float32) if with_c else None
    out = np.full((*wanted.shape[:-2], wanted.shape[-1], wanted.shape[-2]), np.nan, np.float32).swapaxes(-1, -2)
    with fake_gpu() as gpu:
        result = tw.matmul(a, b, c=c, out=out if with_out else None)
        assert not gpu.buffers, "every upload is given back"
    assert (result is out) == with_out
    expect(result, wanted + (c if with_c else 0))


def test_batches_that_lie_densely_take_one_launch_and_shared_b_folds_into_m():
    a, b = random(6, 5, 3, 4), random(6, 5, 4, 2)
    with fake_gpu() as gpu:
        tw.matmul(a, b)
        tw.matmul(a, b[0, 0])
    assert [launch.grid[1] for launch in gpu.launches] == [30, 1]


def test_the_longest_axis_goes_to_the_grid_and_the_rest_loops():
    a, b = random(3, 2, 3, 4), random(50, 1, 1, 4, 2)
    with fake_gpu() as gpu:
        expect(tw.matmul(a[:, ::2], b), a[:, ::2] @ b)
    assert [launch.grid[1] for launch in gpu.launches] == [50] * 3


def test_batches_beyond_a_grid_are_cut(monkeypatch):
    monkeypatch.setattr(shapes_module, "GRID_BATCH", 4)
    a, b = random(11, 3, 4), random(11, 4, 2)
    with fake_gpu() as gpu:
        expect(tw.matmul(a, b), a @ b)
    assert [launch.grid[1] for launch in gpu.launches] == [4, 4, 3]


# --- alpha, beta, c, out ---------------------------------------------------------------------------------------------


def test_alpha_beta_and_c():
    a, b, c = random(5, 6), random(6, 7), random(5, 7)
    with fake_gpu():
        expect(tw.matmul(a, b, c=c, alpha=1.5, beta=-0.5), 1.5 * (a @ b) - 0.5 * c)
        expect(tw.matmul(a, b, c=c), a @ b + c)
        expect(tw.matmul(a, b, alpha=np.float64(2)), 2 * (a @ b))


@pytest.mark.parametrize("shape", [(7,), (1, 7), (5, 1), (1,), ()])
def test_c_broadcasts_to_the_results_shape(shape):
    a, b, c = random(2, 5, 6), random(6, 7), random(*shape)
    with fake_gpu():
        expect(tw.matmul(a, b, c=c), a @ b + c)


def test_c_of_vector_products():
    a, b, c = random(6), random(6, 7), random(7)
    with fake_gpu():
        expect(tw.matmul(a, b, c=c), a @ b + c)
        expect(np.asarray(tw.matmul(a, a, c=c[0:1].reshape(()))), a @ a + c[0])


@pytest.mark.parametrize("beta", [0, 0.0, -0.0, 1e-60])
def test_beta_zero_never_reads_c(beta):
    a, b = random(5, 6), random(6, 7)
    with fake_gpu():
        expect(tw.matmul(a, b, c=np.full((5, 7), np.nan, np.float32), beta=beta), a @ b)


@pytest.mark.parametrize("alpha", [1.0, np.inf, np.nan])
def test_an_empty_k_gives_beta_c_or_zeros(alpha):
    a, b, c = random(3, 0), random(0, 5), random(3, 5)
    with fake_gpu():
        expect(tw.matmul(a, b, alpha=alpha), np.zeros((3, 5)))
        expect(tw.matmul(a, b, c=c, alpha=alpha, beta=2), 2 * c)


def test_values_that_are_not_finite_pass_through():
    a, b = random(3, 4), random(4, 5)
    with fake_gpu():
        assert np.isnan(tw.matmul(a, b, alpha=np.nan)).all()
        a[1, 2] = np.nan
        result = tw.matmul(a, b)
    assert np.isnan(result[1]).all()
    assert np.isfinite(result[[0, 2]]).all()


def test_out_is_written_where_it_lies_and_nowhere_else():
    a, b = random(5, 6), random(6, 7)
    buffer = np.full((12, 20), 7, np.float32)
    out = buffer[1:11:2, 3:17:2]
    with fake_gpu():
        assert tw.matmul(a, b, out=out) is out
    expect(out, a @ b)
    buffer[1:11:2, 3:17:2] = 7
    assert (buffer == 7).all()


def test_out_may_be_c_itself():
    a, b, c = random(5, 6), random(6, 7), random(5, 7)
    wanted = a @ b + 3 * c
    with fake_gpu():
        assert tw.matmul(a, b, c=c, beta=3, out=c) is c
    expect(c, wanted)


def test_c_that_is_not_read_may_lie_anywhere():
    a, b, c = random(5, 6), random(6, 7), random(40)
    with fake_gpu():
        expect(tw.matmul(a, b, c=c[:7], beta=0, out=c[:35].reshape(5, 7)), a @ b)


# --- refusals --------------------------------------------------------------------------------------------------------


def refuse(words: list[str], *arrays, kind: type[Exception] = InvalidOperand, **options) -> None:
    with fake_gpu() as gpu, pytest.raises(kind) as caught:
        tw.matmul(*arrays, **options)
    for word in words:
        assert word in str(caught.value)
    assert not gpu.launches


def test_out_that_overlaps_an_input_is_refused():
    buffer = random(100)
    a = buffer[:25].reshape(5, 5)
    refuse(["out", "overlaps a", "separate out"], a, random(5, 5), out=a)
    refuse(["overlaps b"], random(5, 5), a, out=buffer[24:49].reshape(5, 5))
    with fake_gpu():
        expect(tw.matmul(a, random(5, 5), out=buffer[25:50].reshape(5, 5)), a @ random(5, 5))


def test_interleaved_views_that_share_no_element_are_no_overlap():
    buffer = random(5, 10)
    a, out = buffer[:, ::2], buffer[:, 1::2]
    wanted = a @ random(5, 5)
    with fake_gpu():
        expect(tw.matmul(a, random(5, 5), out=out), wanted)
    refuse(["overlaps a"], a, random(5, 5), out=buffer[:, 2:7])


def test_c_that_overlaps_out_in_another_order_is_refused():
    c = random(5, 5)
    refuse(["overlaps c", "same view"], random(5, 5), random(5, 5), c=c.T, out=c)
    refuse(["overlaps c"], random(5, 5), random(5, 5), c=c[0], out=c)


def test_out_that_overlaps_itself_or_cannot_be_written_is_refused():
    shared = np.lib.stride_tricks.as_strided(random(9), (5, 5), (4, 4))
    refuse(["out", "one address"], random(5, 5), random(5, 5), out=shared)
    fixed = random(5, 5)
    fixed.flags.writeable = False
    refuse(["read-only"], random(5, 5), random(5, 5), out=fixed)


def test_shapes_that_do_not_fit_are_named():
    refuse(["a (3, 4)", "b (5, 6)", "4 elements", "second to last has 5"], random(3, 4), random(5, 6))
    refuse(["b's last has 5"], random(3, 4), random(5))
    refuse(["(2,) and (3,) do not broadcast"], random(2, 3, 4), random(3, 4, 5))
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        refuse(["too many batch axes", "reshape"], random(*[1] * 40, 3, 4), random(4, 5))
    refuse(["a has no axis"], random(), random(4, 5))
    refuse(["exactly (3, 5)", "(5, 3)"], random(3, 4), random(4, 5), out=random(5, 3))
    refuse(["c (4,)", "(3, 5)"], random(3, 4), random(4, 5), c=random(4))


def test_scalars_that_float32_cannot_hold_are_named():
    refuse(["beta=2", "without c"], random(3, 4), random(4, 5), beta=2)
    refuse(["beta=nan", "without c"], random(3, 4), random(4, 5), beta=np.nan)
    refuse(["alpha=1e+39"], random(3, 4), random(4, 5), alpha=1e39)
    refuse(["alpha='two'"], random(3, 4), random(4, 5), alpha="two")


def test_a_scalar_that_wants_a_gradient_is_refused_since_none_would_reach_it():
    class Scale(float):
        requires_grad = True

    refuse(["alpha requires a gradient", "alpha.item()"], random(3, 4), random(4, 5), alpha=Scale(2))
    refuse(["beta requires a gradient"], random(3, 4), random(4, 5), c=random(5), beta=Scale(2))


def test_under_no_grad_a_scalar_that_could_have_a_gradient_is_a_number():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a, b, scale = torch.ones(3, 4), torch.ones(4, 5), torch.tensor(2.0, requires_grad=True)
    with fake_gpu(), torch.no_grad():
        assert (tw.matmul(a, b, alpha=scale) == 8).all()
    refuse(["alpha requires a gradient"], a, b, alpha=scale)


@pytest.mark.parametrize("name", ["deterministic", "batch_invariant", "verify"])
@pytest.mark.parametrize("value", ["no", 2, None, [0], np.array(True), np.array([True, False])], ids=repr)
def test_a_flag_that_is_not_true_or_false_is_refused(name, value):
    refuse([f"{name}={value!r} is not True or False"], random(3, 4), random(4, 5), **{name: value})


@pytest.mark.parametrize("value", [1, np.True_, 0, np.False_], ids=repr)
def test_numpys_booleans_and_the_numbers_0_and_1_are_flags(value):
    with fake_gpu():
        expect(np.asarray(tw.matmul(random(3, 4), random(4, 5), deterministic=value)), random(3, 4) @ random(4, 5))


def test_mixed_dtypes_are_refused():
    refuse(["a is float32 and b is float16"], random(3, 4), random(4, 5).astype(np.float16))
    refuse(["out is float16 and out_dtype says float32"], random(3, 4), random(4, 5), out=np.zeros((3, 5), np.float16),
           out_dtype="f32")  # fmt: skip
    refuse(["out", "float64", "float32, float16, bfloat16"], random(3, 4), random(4, 5), out=np.zeros((3, 5)))
    refuse(["c", "float64"], random(3, 4), random(4, 5), c=np.zeros(5))
    refuse(["c is float16 and the result float32. Convert c, or ask for out_dtype='f16'"], random(3, 4), random(4, 5),
           c=np.zeros(5, np.float16))  # fmt: skip
    halves = random(3, 4).astype(np.float16), random(4, 5).astype(np.float16)
    refuse(["ask for out_dtype='f32'"], *halves, c=random(5))
    refuse(["result float16. Convert c."], *halves, c=random(5), out=np.zeros((3, 5), np.float16))
    refuse(["out is a masked array", "another out"], random(3, 4), random(4, 5), out=np.ma.zeros((3, 5), np.float32))


def test_unknown_rungs_and_configs_that_do_not_fit_are_refused():
    refuse(["f99", "f12_multistage"], random(3, 4), random(4, 5), rung="f99", kind=ConfigRejected)
    refuse(["rung is ['f12']", "such as 'f12'"], random(3, 4), random(4, 5), rung=["f12"], kind=ConfigRejected)
    from tilewright.gemm.rung import GemmConfig

    config = GemmConfig(64, 64)
    refuse(["config is 5", "GemmConfig"], random(3, 4), random(4, 5), config=5, kind=ConfigRejected)
    refuse(["4096 threads"], random(3, 4), random(4, 5), rung="f01", config=config, kind=ConfigRejected)


def test_numpy_arrays_with_no_gpu_and_no_emulator_name_the_emulator(monkeypatch):
    from tilewright.jit import device

    monkeypatch.setattr(device, "gpu_available", lambda: False)
    with pytest.raises(DeviceError, match=r"with tilewright\.emulator\(\)"):
        tw.matmul(random(3, 4), random(4, 5))


def test_a_cpu_torch_tensor_gives_a_cpu_torch_tensor():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a, b = torch.from_numpy(random(3, 4)), torch.from_numpy(random(4, 5))
    with fake_gpu():
        result = tw.matmul(a, b)
        assert isinstance(result, torch.Tensor)
        expect(result.numpy(), a.numpy() @ b.numpy())
        assert isinstance(tw.matmul(a.numpy(), b), np.ndarray), "the result is of a's kind"
    with pytest.raises(InvalidOperand, match="on the CPU"):
        tw.matmul(a, b)
