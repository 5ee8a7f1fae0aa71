"""What every call runs through: parameter templates, streams in order, memory that is kept, libraries that change."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from tilewright.arrays import streams
from tilewright.arrays.view import Operand
from tilewright.errors import DeviceError
from tilewright.jit import device_calls, limits
from tilewright.jit.launch import Launch
from tilewright.jit.params import Place, Scalar, Template, pack
from tilewright.jit.pool import Pool, rounded
from tilewright.run import libraries
from tilewright.run.program import Program, Run, Stage, Workspace
from tilewright.run.ready import Ready


def test_a_template_is_filled_where_its_places_and_scalars_are():
    layout = "<2Qq2if4x"
    made = pack(layout, Place("a", 16), 7, -3, 4, 5, Scalar("alpha"))
    filled = made.fill({"a": 1 << 40}, {"alpha": 0.5})
    assert struct.unpack(layout, filled) == ((1 << 40) + 16, 7, -3, 4, 5, 0.5)
    both = made + pack("<Q", Place("b"))
    filled = both.fill({"a": 0, "b": 9}, {"alpha": 1.0})
    assert struct.unpack_from("<Q", filled, len(made.data)) == (9,)
    with pytest.raises(KeyError):
        made.fill({}, {"alpha": 1.0})


class Echo:
    """A kernel that compiles to its name."""

    def compile(self, problem, arch):
        return problem

    def shape(self, problem):
        return Launch((1, 1, 1), (32, 1, 1), b"")


def test_every_run_launches_every_stage_at_its_own_offsets():
    shape = Launch((2, 1, 1), (32, 1, 1), b"")
    stages = tuple(Stage(name, Echo(), name, shape, pack("<Q", Place(name))) for name in ("a", "b"))
    few = Launch((1, 1, 1), (32, 1, 1), b"")
    program = Program(stages, runs=(Run((shape, shape), (("a", 100),), 2), Run((few, few), (("b", 5),), 1)))
    made = Ready(program, SimpleNamespace())
    launches = made.launches({"a": 1, "b": 2}, {})
    found = [(kernel, launch.grid[0], *struct.unpack("<Q", launch.params)) for kernel, launch in launches]
    assert found == [("a", 2, 101), ("b", 2, 2), ("a", 1, 1), ("b", 1, 7)]


def test_parts_of_a_workspace_lie_apart():
    workspace = Workspace()
    first, second = workspace.room(1), workspace.room(300)
    assert (first.offset, second.offset, workspace.bytes) == (0, 256, 768)


def operand(name: str, stream: int, kind: str = "torch") -> Operand:
    return Operand(name, kind, 256, (4,), (1,), "f32", 0, stream=stream)


@pytest.mark.parametrize("fails", [False, True])
def test_another_stream_waits_also_where_a_launch_raises_half_way(monkeypatch, fails):
    waits = []
    monkeypatch.setattr(device_calls, "make_wait", lambda waiting, awaited, ordinal: waits.append((waiting, awaited)))
    monkeypatch.setattr(device_calls, "synchronize", lambda *given: waits.append("host"))
    try:
        with streams.in_order(operand("a", 1), [operand("b", 2), operand("c", 1)]) as stream:
            assert stream == 1
            assert waits == [(1, 2)]
            if fails:
                raise DeviceError("the second launch")
    except DeviceError:
        assert fails
    assert waits == [(1, 2), (2, 1)]


def test_where_a_library_does_not_order_by_streams_the_host_waits(monkeypatch):
    waits = []
    monkeypatch.setattr(device_calls, "make_wait", lambda *given: None)
    monkeypatch.setattr(device_calls, "synchronize", waits.append)
    with streams.in_order(operand("a", 0, "dlpack"), []):
        assert not waits
    assert waits == [0]


def test_memory_given_back_is_taken_again_up_to_a_limit(monkeypatch):
    monkeypatch.setenv(limits.POOL_VARIABLE, "2K")
    taken, freed = [], []
    pool = Pool(lambda size: taken.append(size) or 4096 * len(taken), freed.append)
    first, second, third = pool.take(100), pool.take(1000), pool.take(1500)
    assert taken == [512, 1024, 1536]
    for address in (first, second, third):
        pool.give_back(address)
    assert freed == [third], "512 and 1024 are kept, 1536 more would be too much"
    assert pool.take(700) != second
    assert pool.take(1024) == second
    assert pool.take(1) == first
    assert pool.take(1) not in (first, second)


@pytest.mark.parametrize("nbytes", [0, 1, 511, 512, 513, 768, 769, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_block_holds_what_is_asked_for_and_at_most_half_more(nbytes):
    size = rounded(nbytes)
    assert size >= nbytes
    assert size == 512 or size <= 1.5 * nbytes + 512


@pytest.mark.parametrize("gone", ["_cuda_getDevice", "_cuda_getCurrentRawStream", "_current_level"])
def test_where_a_private_name_of_torch_is_gone_only_the_warm_path_goes(monkeypatch, gone):
    private = {"_cuda_getDevice": lambda: 0, "_cuda_getCurrentRawStream": lambda ordinal: 0}
    duals = {"_current_level": -1}
    private.pop(gone, None)
    duals.pop(gone, None)
    torch = SimpleNamespace(
        Tensor=type("Tensor", (), {"data_ptr": lambda self: 0}),
        nn=SimpleNamespace(Parameter=type("Parameter", (), {})),
        _C=SimpleNamespace(**private), uint8="u8", is_grad_enabled=lambda: False,
        autograd=SimpleNamespace(
            graph=SimpleNamespace(increment_version=lambda x: None), forward_ad=SimpleNamespace(**duals)
        ),
    )  # fmt: skip
    monkeypatch.setitem(libraries.sys.modules, "torch", torch)
    monkeypatch.setattr(libraries, "known", {})
    libraries._library.cache_clear()
    try:
        assert libraries.learn("torch") is None
        assert not libraries.known
    finally:
        libraries._library.cache_clear()


def test_a_base_that_a_kernel_does_not_read_is_plain_zero():
    assert Template(b"\0" * 8).fill({}, {}) == b"\0" * 8
