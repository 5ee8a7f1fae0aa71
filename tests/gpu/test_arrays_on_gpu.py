"""Every array kind comes in and goes out as it should, in the right stream, at the host time promised."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import tilewright as tw
from tilewright.arrays import dlpack
from tilewright.arrays.device_array import DeviceArray
from tilewright.errors import InvalidOperand
from tilewright.gemm.warm import calls
from tilewright.lab.check import check

pytestmark = pytest.mark.gpu


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


A, B = normal(3, 130, 70), normal(70, 90)


def right(out: np.ndarray, a: np.ndarray = A, b: np.ndarray = B, **options) -> None:
    verdict = check(np.asarray(out), a, b, **options)
    assert verdict.ok, verdict.reason


class OnlyDLPack:
    def __init__(self, tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class OnlyInterface:
    def __init__(self, tensor, stream=None) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 3, "stream": stream}


# --- kinds -----------------------------------------------------------------------------------------------------------


def test_numpy_arrays_go_to_the_gpu_and_come_back():
    out = tw.matmul(A, B)
    assert isinstance(out, np.ndarray)
    right(out)
    place = np.full((3, 90, 130), np.nan, np.float32).swapaxes(1, 2)
    assert tw.matmul(A[:, ::-1][:, ::-1], B, out=place) is place
    right(place)


def test_torch_tensors_give_a_torch_tensor_on_their_gpu(torch):
    a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    out = tw.matmul(a, b)
    assert isinstance(out, torch.Tensor)
    assert (out.device, out.dtype, out.shape) == (a.device, torch.float32, (3, 130, 90))
    right(out.cpu())
    right(tw.matmul(a, b).cpu())  # warm
    assert tw.matmul(a[0, 0], b[:, 0]).shape == ()


def test_cupy_arrays_give_a_cupy_array(cupy):
    a, b = cupy.asarray(A), cupy.asarray(B)
    out = tw.matmul(a, b)
    assert isinstance(out, cupy.ndarray)
    right(out.get())
    place = cupy.full((3, 130, 90), cupy.nan, cupy.float32)
    assert tw.matmul(a, b, out=place) is place
    right(place.get())


def test_jax_arrays_give_a_jax_array_and_are_never_written(jax):
    a, b = jax.numpy.asarray(A), jax.numpy.asarray(B)
    if a.device.platform not in ("gpu", "cuda"):
        pytest.skip(f"JAX has no GPU here, but {a.device.platform}")
    out = tw.matmul(a, b)
    assert isinstance(out, jax.Array)
    assert out.device == a.device
    right(np.asarray(out))
    right(np.asarray(out + 0))
    with pytest.raises(InvalidOperand, match="read-only"):
        tw.matmul(a, b, out=out)


@pytest.mark.parametrize("wrap", [OnlyDLPack, OnlyInterface])
def test_arrays_of_no_known_library_give_one_of_ours_that_others_read(torch, wrap):
    a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    out = tw.matmul(wrap(a), wrap(b))
    assert isinstance(out, DeviceArray)
    right(out.numpy())
    taken = torch.from_dlpack(out)
    assert taken.data_ptr() == out.address
    right(taken.cpu())
    right(torch.as_tensor(out, device="cuda").cpu())


def test_memory_of_ours_lives_as_long_as_what_was_made_from_it(torch):
    a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    gc.collect()  # what earlier tests left
    before = len(dlpack._exports)
    taken = torch.from_dlpack(tw.matmul(OnlyDLPack(a), OnlyDLPack(b)))
    gc.collect()
    filler = [tw.matmul(OnlyDLPack(a), OnlyDLPack(b)) for _ in range(4)]  # would reuse freed memory
    right(taken.cpu())
    del taken, filler
    gc.collect()
    assert len(dlpack._exports) == before


def test_kinds_mix_on_one_gpu_and_the_result_is_of_as_kind(torch, cupy):
    a, b, c = torch.from_numpy(A).cuda(), cupy.asarray(B), normal(90)
    out = tw.matmul(a, b, c=OnlyInterface(torch.from_numpy(c).cuda()))
    assert isinstance(out, torch.Tensor)
    right(out.cpu(), c=np.broadcast_to(c, (3, 130, 90)), beta=1.0)


def test_host_and_gpu_do_not_mix(torch):
    a = torch.from_numpy(A).cuda()
    with pytest.raises(InvalidOperand, match="a is on GPU 0 and b on the host"):
        tw.matmul(a, B)
    with pytest.raises(InvalidOperand, match="on the CPU"):
        tw.matmul(a.cpu(), torch.from_numpy(B))
    with tw.emulator(), pytest.raises(InvalidOperand, match="emulator in force runs host arrays"):
        tw.matmul(a, torch.from_numpy(B).cuda())


def test_a_tensor_that_requires_a_gradient_gets_one(torch):
    a, b = torch.from_numpy(A).cuda().requires_grad_(), torch.from_numpy(B).cuda()
    for _ in range(2):
        a.grad = None
        product = tw.matmul(a, b)
        right(product.detach().cpu())
        product.sum().backward()
        torch.testing.assert_close(a.grad, torch.ones_like(product) @ b.T, rtol=1e-4, atol=1e-4)
        with pytest.raises(InvalidOperand, match="rung is not supported where an operand requires a gradient"):
            tw.matmul(a, b, rung="f12")
        with torch.no_grad():
            right(tw.matmul(a, b).cpu())


def test_a_backward_pass_that_saved_what_out_overwrites_raises_warm_too(torch):
    a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    for _ in range(3):
        x = torch.zeros(*A.shape[:-1], B.shape[1], device="cuda")
        w = torch.ones_like(x).requires_grad_()
        y = (w * x).sum()
        tw.matmul(a, b, out=x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


# --- the warm path ---------------------------------------------------------------------------------------------------


def test_a_warm_call_obeys_every_change_of_its_arguments(torch):
    """Each variation right after the plain call, so that a key that lacks something would serve the wrong plan."""
    flat = torch.randn(70 * 130 + 8, device="cuda")
    b = torch.from_numpy(B).cuda()
    c = torch.randn(130, 90, device="cuda")
    plain = flat[: 130 * 70].view(130, 70)
    variations = [
        (plain, b, {}),
        (flat[1 : 130 * 70 + 1].view(130, 70), b, {}),
        (flat[: 130 * 70].view(70, 130).T, b, {}),
        (plain[::2], b, {}),
        (plain, b.T.contiguous().T, {}),
        (plain, b, {"c": c}),
        (plain, b, {"c": c, "beta": 0.0}),
        (plain, b, {"c": c, "beta": 1e-60}),
        (plain, b, {"c": c, "beta": -2.0, "alpha": 3.0}),
        (plain, b, {"c": c.T.contiguous().T, "beta": 0.5}),
        (plain, b, {"c": c[0]}),
        (plain, b, {"alpha": 0.25}),
        (plain, b, {"rung": "f01"}),
        (plain, b[:, :64], {}),
        (plain[:0], b, {}),
    ]
    for _ in range(2):
        for a, other, options in variations:
            right(tw.matmul(plain, b).cpu(), plain.cpu().numpy(), B)
            extra = {k: v for k, v in options.items() if k != "rung"}
            held = extra.get("c")
            if held is not None:
                extra["beta"] = float(np.float32(extra.get("beta", 1.0)))
                extra["c"] = held.expand(130, 90).cpu().numpy()
            wanted = (a.cpu().numpy(), other.cpu().numpy())
            right(tw.matmul(a, other, **options).cpu(), *wanted, **extra)
            out = torch.full((a.shape[0], other.shape[1]), float("nan"), device="cuda")
            assert tw.matmul(a, other, out=out, **options) is out
            right(out.cpu(), *wanted, **extra)


def test_an_empty_sum_is_0_whatever_alpha_is(torch):
    a, b = torch.zeros(5, 0, device="cuda"), torch.zeros(0, 7, device="cuda")
    for alpha in (0.0, 0.0, float("inf"), float("nan"), 2.0):
        assert bool((tw.matmul(a, b, alpha=alpha) == 0).all()), alpha


def test_a_warm_call_still_refuses_an_out_that_overlaps(torch):
    flat = torch.randn(3 * 128 * 128, device="cuda")
    a, apart = flat[: 128 * 128].view(128, 128), flat[128 * 128 :][: 128 * 128].view(128, 128)
    b = torch.randn(128, 128, device="cuda")
    for _ in range(2):
        tw.matmul(a, b, out=apart)
    with pytest.raises(InvalidOperand, match="overlaps a"):
        tw.matmul(a, b, out=flat[64 * 128 :][: 128 * 128].view(128, 128))
    with pytest.raises(InvalidOperand, match="overlaps b"):
        tw.matmul(a, b, out=b)


def test_out_may_be_c_warm_too(torch):
    a, b, c = (torch.randn(128, 128, device="cuda") for _ in range(3))
    wanted = c.cpu().numpy().copy()
    host = a.cpu().numpy(), b.cpu().numpy()
    for _ in range(3):
        wanted = (host[0].astype(np.float64) @ host[1] + 0.5 * wanted).astype(np.float32)
        tw.matmul(a, b, c=c, beta=0.5, out=c)
    np.testing.assert_allclose(c.cpu().numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_a_new_thread_runs_warm_plans(torch, monkeypatch):
    from tilewright.gemm import matmul as module

    a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    tw.matmul(a, b)
    read, reads = module.read_call, []
    monkeypatch.setattr(module, "read_call", lambda *given: reads.append(1) or read(*given))
    results, errors = [], []

    def work() -> None:
        try:
            results.extend(tw.matmul(a, b) for _ in range(20))
            torch.cuda.synchronize()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(results) == 80
    assert len(reads) <= 4, "the full path at most once a thread"
    for result in results:
        right(result.cpu())


def test_a_call_that_has_run_is_remembered(torch):
    """What it costs: tilewright bench host-calls."""
    a, b = torch.randn(128, 128, device="cuda"), torch.randn(128, 128, device="cuda")
    tw.matmul(a, b)
    assert len(calls)


# --- streams and graphs ----------------------------------------------------------------------------------------------

DELAY = 20_000_000
"""Cycles: long against a launch, short against a person's patience."""


def test_torch_products_run_in_the_current_stream(torch):
    b = torch.from_numpy(B).cuda()
    source = torch.from_numpy(A).cuda()
    a = torch.full_like(source, float("nan"))
    torch.cuda.synchronize()
    for _ in range(2):  # cold, then warm
        a.fill_(float("nan"))
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(DELAY)
            a.copy_(source)
            out = tw.matmul(a, b)
            host = out.cpu()
        right(host)


def test_cupy_products_run_in_the_current_stream(cupy):
    source, b = cupy.asarray(A), cupy.asarray(B)
    spin = cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }', "spin"
    )
    a = cupy.full(A.shape, cupy.nan, cupy.float32)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        spin((1,), (1,), (np.int64(DELAY),))
        a[...] = source
        out = tw.matmul(a, b)
        host = out.get()
    right(host)


def test_a_second_arrays_stream_is_waited_for(torch, cupy):
    a, source = torch.from_numpy(A).cuda(), cupy.asarray(B)
    spin = cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }', "spin"
    )
    b = cupy.full(B.shape, cupy.nan, cupy.float32)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        spin((1,), (1,), (np.int64(DELAY),))
        b[...] = source
        out = tw.matmul(a, b)
    right(out.cpu())


@pytest.mark.parametrize("wrap", ["dlpack", "interface"])
def test_a_producers_stream_is_waited_for(torch, wrap):
    source, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    a = torch.full_like(source, float("nan"))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(DELAY)
        a.copy_(source)
        given = OnlyDLPack(a) if wrap == "dlpack" else OnlyInterface(a, side.cuda_stream)
        out = tw.matmul(given, b)
    right(out.numpy())


def test_a_warm_call_is_captured_in_a_graph_and_replayed(torch):
    a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    out = torch.empty(3, 130, 90, device="cuda")
    tw.matmul(a, b, out=out)
    tw.matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.matmul(a, b, out=out)
        fresh = tw.matmul(a, b)
    other = normal(3, 130, 70) * 2
    a.copy_(torch.from_numpy(other))
    out.fill_(float("nan"))
    graph.replay()
    right(out.cpu(), other)
    right(fresh.cpu(), other)


def test_many_launches_of_one_call_are_all_run(torch):
    a = torch.randn(5, 2, 33, 20, device="cuda")[:, ::2]
    b = torch.randn(7, 1, 1, 20, 17, device="cuda")
    for _ in range(2):
        right(tw.matmul(a, b).cpu(), a.cpu().numpy(), b.cpu().numpy())


def test_a_batch_beyond_a_grids_limit_is_right(torch):
    a, b = torch.randn(70_000, 2, 3, device="cuda"), torch.randn(70_000, 3, 2, device="cuda")
    for _ in range(2):
        right(tw.matmul(a, b).cpu(), a.cpu().numpy(), b.cpu().numpy())


# --- calls that are remembered by views ------------------------------------------------------------------------------


class Exported:
    """A tensor that is offered through DLPack alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class Interfaced:
    """A tensor that is offered through __cuda_array_interface__ alone."""

    def __init__(self, tensor):
        self.__cuda_array_interface__, self.tensor = tensor.__cuda_array_interface__, tensor


def arrays_of(kind, request, *values):
    if kind == "numpy":
        return values
    if kind == "cupy":
        return tuple(map(request.getfixturevalue("cupy").asarray, values))
    if kind == "jax":
        return tuple(map(request.getfixturevalue("jax").numpy.asarray, values))
    torch = request.getfixturevalue("torch")
    made = (torch.from_numpy(value).cuda() for value in values)
    return tuple(map(Exported if kind == "dlpack" else Interfaced, made))


def as_numpy(result):
    if hasattr(result, "numpy"):
        return np.asarray(result.numpy())
    return result.get() if hasattr(result, "get") else np.asarray(result)


@pytest.mark.parametrize("kind", ["numpy", "cupy", "jax", "dlpack", "cuda_array_interface"])
def test_calls_of_one_kind_after_another_see_new_values_scalars_and_epilogues(kind, request, monkeypatch):
    from tilewright.gemm import matmul as module

    rng = np.random.default_rng(3)
    read, reads = module.read_call, []
    monkeypatch.setattr(module, "read_call", lambda *given: reads.append(1) or read(*given))
    for number in range(4):
        x, y, z = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 33), (33, 41), (70, 41)))
        a, b, c = arrays_of(kind, request, x, y, z)
        alpha = 0.5 + number
        np.testing.assert_allclose(as_numpy(tw.matmul(a, b)), x @ y, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            as_numpy(tw.matmul(a, b, c=c, alpha=alpha)), alpha * (x @ y) + z, rtol=1e-4, atol=1e-4
        )
        fused = tw.matmul(a, b, epilogue=lambda acc, r, alpha=alpha: acc * alpha + r, r=c)
        np.testing.assert_allclose(as_numpy(fused), alpha * (x @ y) + z, rtol=1e-4, atol=1e-4)
    own = kind == "jax"  # XLA's call, which repeats the first form, reads it once for itself
    assert len(reads) == 3 + own, "each form is read in full once"
    flipped = arrays_of(kind, request, x[::-1].copy(), y[:, ::-1].copy())
    np.testing.assert_allclose(as_numpy(tw.matmul(*flipped)), x[::-1] @ y[:, ::-1], rtol=1e-4, atol=1e-4)


def test_numpy_results_go_to_the_array_given_also_with_gaps(request):
    rng = np.random.default_rng(4)
    for _ in range(3):
        x, y = rng.standard_normal((20, 30)).astype(np.float32), rng.standard_normal((30, 24)).astype(np.float32)
        held = np.full((20, 50), 7, np.float32)
        assert tw.matmul(x, y, out=held[:, :24]) is not None
        np.testing.assert_allclose(held[:, :24], x @ y, rtol=1e-4, atol=1e-4)
        assert (held[:, 24:] == 7).all()
