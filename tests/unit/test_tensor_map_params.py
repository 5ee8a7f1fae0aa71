"""Tensor maps among a launch's parameters: where they go, and how often the driver encodes them."""

from __future__ import annotations

import threading
import types

import pytest
from test_device import FakeDriver, api  # noqa: F401 (a fixture)

from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.stages import program_for
from tilewright.gpus import ARCHS
from tilewright.jit import loaded
from tilewright.jit.launch import Launch
from tilewright.jit.loaded import Prepared
from tilewright.jit.params import MAP_BYTES, Place, pack, pack_maps
from tilewright.jit.tensor_map import TensorMap
from tilewright.plan.plan import Plan
from tilewright.run.warm import Remembered, Step

MAP = TensorMap(None, "bf16", (64, 64), (128,), (64, 64), swizzle=128)


def test_maps_come_first_and_name_where_they_point():
    template = pack_maps([(MAP, Place("a", 32)), (None, 0), (MAP, 4096)]) + pack("<2Q", Place("b"), 7)
    assert len(template.data) == 3 * MAP_BYTES + 16
    assert template.addresses == ((3 * MAP_BYTES, Place("b")),)
    assert template.maps_at({"a": 1024}) == ((0, MAP, 1056), (2 * MAP_BYTES, MAP, 4096))


def test_a_products_program_says_which_maps_its_kernel_takes():
    rung = find_rung("h14")
    problem = GemmProblem.dense(4096, 2048, 1024, layout="nt", dtype="bf16", batch=3)
    (stage,) = program_for(problem, Plan(rung, rung.default, "", "")).stages
    (_, a, at_a), (_, b, at_b) = stage.params.maps
    assert (a.shape, a.box, at_a) == ((1024, 4096, 3), (64, 128, 1), Place("a"))
    assert (b.shape, b.strides, b.box, at_b) == ((1024, 2048, 3), (2048, 2048 * 2048), (64, 256, 1), Place("b"))
    assert stage.shape.block == (384, 1, 1)
    (nothing,) = program_for(GemmProblem.dense(64, 64, 0, dtype="bf16"), Plan(rung, rung.default, "", "")).stages
    assert nothing.params.maps == ()
    assert len(nothing.params.data) == len(stage.params.data)


@pytest.fixture
def encodings(api, monkeypatch) -> list[int]:  # noqa: F811
    """The addresses that the driver encoded maps of."""
    asked: list[int] = []

    def encode(description: TensorMap, address: int, ordinal: int) -> bytes:
        asked.append(address)
        return address.to_bytes(MAP_BYTES, "little")

    monkeypatch.setattr(loaded, "encode_for_driver", encode)
    monkeypatch.setattr(loaded, "_encoded", type(loaded._encoded)(lambda: 2))
    return asked


def launched(api: FakeDriver) -> Prepared:  # noqa: F811
    source = types.SimpleNamespace(name="kernel.cu")
    kernel = types.SimpleNamespace(key="maps", cubin=b"", entry="kernel", source=source)
    return Prepared(kernel, Launch((1, 1, 1), (32, 1, 1), bytes(2 * MAP_BYTES + 8)), 0)


def test_a_map_is_encoded_once_for_an_address_and_forgotten_after_others(api, encodings):  # noqa: F811
    step = Step(launched(api), ((2 * MAP_BYTES // 8, 1, 0),), (), ((0, MAP, 0, 0), (MAP_BYTES, MAP, 1, 16)))
    call = Remembered(0, (step,), 0)
    for _ in range(3):
        assert call.start((1 << 20, 2 << 20), (), 0)
    assert encodings == [1 << 20, (2 << 20) + 16]
    held = step.prepared.bytes
    assert int.from_bytes(held[:MAP_BYTES], "little") == 1 << 20
    assert int.from_bytes(held[MAP_BYTES : 2 * MAP_BYTES], "little") == (2 << 20) + 16
    assert int.from_bytes(held[2 * MAP_BYTES :], "little") == 2 << 20
    call.start((3 << 20, 2 << 20), (), 0)
    assert encodings[2:] == [3 << 20], "the other is the one used of late"
    call.start((1 << 20, 2 << 20), (), 0)
    assert encodings[3:] == [1 << 20], "two are kept here"


def test_an_executor_encodes_what_a_launch_brings(api, encodings):  # noqa: F811
    prepared = launched(api)
    prepared.launch(bytes(2 * MAP_BYTES + 8), 0, ((MAP_BYTES, MAP, 4096),))
    assert encodings == [4096]
    assert int.from_bytes(prepared.bytes[MAP_BYTES : 2 * MAP_BYTES], "little") == 4096


def test_threads_share_what_is_encoded(api, encodings):  # noqa: F811
    threads = [threading.Thread(target=loaded.encoded, args=(MAP, 4096, 0)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = len(encodings)
    loaded.encoded(MAP, 4096, 0)
    assert len(encodings) == before
    loaded.encoded(MAP, 4096, 1)
    assert len(encodings) == before + 1, "another GPU has its own"


def test_what_is_launched_on_an_architecture_without_tma_is_refused():
    problem = GemmProblem.dense(64, 64, 64, dtype="bf16")
    rung = find_rung("h14")
    assert "only sm_90a has" in (rung.why_not(problem, rung.default, ARCHS["sm_80"]) or "")


@pytest.mark.parametrize("fetched", [128, 256])
def test_the_driver_is_told_how_much_l2_fetches_at_once(monkeypatch, fetched):
    kinds = types.SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_L2_128B=128, CU_TENSOR_MAP_L2_PROMOTION_L2_256B=256)
    driver = types.SimpleNamespace(
        CUtensorMapL2promotion=kinds, CUtensorMapInterleave=types.SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE=0),
        CUtensorMapDataType=int, CUtensorMapSwizzle=int, CUtensorMapFloatOOBfill=int, cuuint64_t=int, cuuint32_t=int,
    )  # fmt: skip
    monkeypatch.setattr(loaded.device, "driver", lambda: driver)
    _, after = loaded._encoding.__wrapped__(TensorMap(None, "bf16", (8, 64), (2000,), (8, 64), fetched=fetched))
    assert after[-2] == fetched
