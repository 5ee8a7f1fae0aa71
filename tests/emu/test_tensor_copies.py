"""Tensor maps: boxes of 1 to 5 dimensions, swizzled, filled, clipped, stepped; what CUDA refuses; changed maps."""

from __future__ import annotations

import numpy as np
import pytest
from hopper_prelude import fault, kernel, run
from tensor_copies import CASES, arrays_of, expected, source, stored, stored_at

from tilewright.emu import GlobalMemory, tensor_maps
from tilewright.emu.tensor_maps import locate
from tilewright.errors import InvalidOperand
from tilewright.jit.tensor_map import TensorMap


@pytest.mark.parametrize("name", CASES)
def test_a_box_comes_in_as_the_manual_has_it_and_goes_out_clipped(name):
    array, what, at = arrays_of(CASES[name])
    skew = CASES[name].get("skew", 0)
    image_bytes = 1024 + what.shared_bytes + 512
    image, box = expected(array, what, at, image_bytes, skew)
    target = np.zeros_like(array)
    to = TensorMap.of(
        target, tuple(reversed(what.box)), dtype=what.dtype, swizzle=what.swizzle,
        element_strides=tuple(reversed(what.element_strides)),
    )  # fmt: skip
    store_at = stored_at(what, at)
    result = run(
        source(what.rank),
        [what, to, np.zeros(image_bytes // 4, np.uint32), np.array(at, np.int32), np.array(store_at, np.int32),
         what.box_bytes, image_bytes, skew, 1],
        shared_bytes=image_bytes,
    )  # fmt: skip
    assert result.hazards == []
    assert np.array_equal(result.arrays[2].view(np.uint8), image)
    assert np.array_equal(result.arrays[1].view(array.dtype), stored(array, what, box, store_at))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dtype": "f8"}, "dtype 'f8' is not one of"),
        ({"address": 8}, "the address 0x8 is not a multiple of 16"),
        ({"shape": (0, 4)}, r"shape\[0\] is 0; 1 to 4294967296"),
        ({"shape": ()}, "0 dimensions; 1 to 5"),
        ({"strides": (40,)}, "the stride of dimension 1 is 40 bytes"),
        ({"strides": (1 << 40,)}, "below 2\\^40"),
        ({"strides": ()}, "has 0 entries; a shape of 2 dimensions takes 1"),
        ({"box": (16, 257)}, r"box\[1\] is 257; 1 to 256"),
        ({"box": (6, 4)}, "a box of 6 f32 is 24 bytes wide; that has to be a multiple of 16"),
        ({"element_strides": (1, 9)}, r"element_strides\[1\] is 9; 1 to 8"),
        ({"swizzle": 16}, "swizzle 16 is not one of"),
        ({"swizzle": 32}, "a box 64 bytes wide does not fit a swizzle of 32 bytes"),
        ({"oob_fill": "inf"}, "oob_fill 'inf' is not one of"),
        ({"dtype": "u32", "oob_fill": "nan"}, "takes a floating-point dtype, not u32"),
    ],
)
def test_what_cuda_refuses_is_refused_with_the_values(changes, says):
    right = {"address": 1024, "dtype": "f32", "shape": (64, 32), "strides": (256,), "box": (16, 8)}
    assert TensorMap(**right).box_bytes == 512
    with pytest.raises(InvalidOperand, match=says):
        TensorMap(**{**right, **changes})


@pytest.mark.parametrize("how", ["columns", "turned"])
def test_a_map_of_a_part_of_an_array_or_of_turned_axes_copies_what_the_view_holds(how):
    whole = np.arange(6 * 4 * 32, dtype=np.float32).reshape(6, 4, 32)
    views = {"columns": lambda x: x[:, 1:3, 8:24], "turned": lambda x: x.transpose(1, 0, 2)}
    array, target = views[how](whole), views[how](np.zeros_like(whole))
    box, at = (2, 3, 16), (4, 1, 0)
    what, to = TensorMap.of(array, box), TensorMap.of(target, box)
    args = [
        what,
        to,
        np.zeros(1024, np.uint32),
        np.array(at, np.int32),
        np.array(at, np.int32),
        what.box_bytes,
        4096,
        0,
        1,
    ]
    result = run(source(3), args, shared_bytes=4096)
    assert np.array_equal(result.arrays[0], array)
    part = (slice(0, 2), slice(1, 4), slice(4, 20))
    expected_box = np.zeros_like(target)
    expected_box[part] = array[part]
    assert np.array_equal(result.arrays[1], expected_box)


def test_an_array_has_to_lie_as_tma_reads_it():
    array = np.zeros((8, 16), np.float32)
    assert TensorMap.of(array[:, :8], (4, 4)).strides == (64,)
    for bad, says in ((array[:, ::2], "the last axis"), (array.astype(np.complex64), "no type that TMA knows")):
        with pytest.raises(InvalidOperand, match=says):
            TensorMap.of(bad, (4, 4))
    with pytest.raises(InvalidOperand, match="bf16 has 2 bytes per element, the array 4"):
        TensorMap.of(array, (4, 4), dtype="bf16")
    with pytest.raises(InvalidOperand, match="no address"):
        tensor_maps.pack(TensorMap.of(array, (4, 4)))


@pytest.mark.parametrize(
    "what",
    [
        TensorMap(1 << 40, "bf16", (1 << 32, 7, 6, 5, 4), (16, 32, 48, (1 << 40) - 16), (64, 1, 2, 3, 256),
                  (1, 2, 3, 4, 8), 128, "nan"),
        TensorMap(16, "u8", (1,), (), (16,)),
    ],
)  # fmt: skip
def test_packing_loses_nothing(what):
    assert len(tensor_maps.pack(what)) == 128
    assert tensor_maps.unpack(tensor_maps.pack(what)) == what


BOX = """
    __shared__ alignas(1024) char tile[2048]; __shared__ u64 full;
    if (threadIdx.x == 0) {
        init(&full, 1); init_fence(); arrive_expect(&full, 1024); load_box(tile, &map, 0, 0, &full);
    }
    __syncwarp();
    wait(&full, 0);
    for (int i = threadIdx.x; i < 256; i += 32) out[i] = ((float *)tile)[i];
"""
SIGNATURE = "const __grid_constant__ CUtensorMap map, float *out"
TENSOR = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)


@pytest.mark.parametrize(
    ("what", "old", "new", "kind", "says"),
    [
        (TensorMap.of(TENSOR, (8, 32)), "tile, &map", "tile + 16, &map", "misaligned", "not a multiple of 128"),
        (TensorMap.of(TENSOR, (8, 32)), "load_box(tile", "load_box(tile + 1280", "out_of_bounds", "beyond the"),
        (TensorMap.of(TENSOR, (8, 32)), "&map, 0, 0", "&map, 6, 0", "misaligned", "6 f32 of a row, 24 bytes"),
        (TensorMap.of(TENSOR, (8, 32)), "&map, 0, 0", "(CUtensorMap *)out, 0, 0", "tensor_map", "not a tensor map"),
        (TensorMap.of(TENSOR, (8, 32)), "1024); load", "1020); load", "deadlock", "4 bytes more than were expected"),
        (TensorMap.of(TENSOR.reshape(4, 8, 32), (2, 4, 32)), "", "", "tensor_map", "the map has 3 dimensions"),
        (TensorMap(1 << 40, "f32", (32, 32), (128,), (32, 8)), "", "", "out_of_bounds", "in no buffer"),
    ],
)
def test_what_is_wrong_with_a_copy_is_named(what, old, new, kind, says):
    assert run(kernel(SIGNATURE, BOX), [TensorMap.of(TENSOR, (8, 32)), "f32[256]=nan"]).hazards == []
    hazard = fault(kernel(SIGNATURE, BOX.replace(old, new)), [what, "f32[256]=nan"])
    assert (hazard.kind, says in str(hazard)) == (kind, True), str(hazard)


@pytest.mark.parametrize(("wait", "kind"), [("wait_group", ""), ("wait_group.read", "bulk_not_waited")])
def test_a_box_that_a_store_may_still_write_is_not_loaded(wait, kind):
    stores = f"""asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {{%1, %2}}], [%3];"
        :: "l"(&map), "r"(0), "r"(0), "r"((u32)__cvta_generic_to_shared(drawn)) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.{wait} 0;" ::: "memory"); init(&full, 1);"""
    draws = """__shared__ alignas(128) char drawn[1024];
        for (int i = threadIdx.x; i < 256; i += 32) ((float *)drawn)[i] = i;
        asm volatile("fence.proxy.async;" ::: "memory"); __syncwarp(); if (threadIdx.x == 0) {"""
    body = BOX.replace("if (threadIdx.x == 0) {", draws).replace("init(&full, 1);", stores)
    result = run(kernel(SIGNATURE, body), [TensorMap.of(TENSOR.copy(), (8, 32)), "f32[256]=nan"], hazards="collect")
    assert [hazard.kind for hazard in result.hazards] == [kind] * bool(kind)
    assert kind or (result.arrays[1] == np.arange(256)).all()


def test_a_map_that_promises_more_than_the_buffer_holds_is_out_of_bounds():
    memory = GlobalMemory()
    beyond = TensorMap(memory.add(TENSOR), "f32", (32, 64), (128,), (32, 8))
    from tilewright import emu
    from tilewright.errors import EmulatorFault
    from tilewright.jit import compile_source

    text = kernel(SIGNATURE, BOX.replace("&map, 0, 0", "&map, 0, 28"))
    ptx = compile_source(text, entry="k", arch="sm_90a").ptx
    params = tensor_maps.pack(beyond) + memory.add(np.zeros(256, np.float32)).to_bytes(8, "little")
    with pytest.raises(EmulatorFault) as caught:
        emu.run(ptx, "k", grid=(1, 1, 1), block=(32, 1, 1), params=params, memory=memory)
    assert caught.value.hazard.kind == "out_of_bounds"


def test_maps_and_arrays_over_one_array_share_its_buffer():
    text = kernel(
        "const __grid_constant__ CUtensorMap map, float *out, const float *whole",
        BOX.replace("out[i] = ", "out[i] = whole[i] + "),
    )
    result = run(text, [TensorMap.of(TENSOR, (8, 32)), "f32[256]=nan", TENSOR])
    assert len(result.arrays) == 3
    assert np.array_equal(result.arrays[1], 2 * TENSOR.reshape(-1)[:256])


@pytest.mark.parametrize("store_at", [(-4, 0), (0, -1)])
def test_a_store_that_begins_before_a_tensors_start_is_a_fault(store_at):
    array, what, at = arrays_of(CASES["2d"])
    hazard = fault(
        source(2),
        [what, TensorMap.of(np.zeros_like(array), (8, 16), dtype="f32"), np.zeros(512, np.uint32),
         np.array(at, np.int32), np.array(store_at, np.int32), what.box_bytes, 2048, 0, 1],
        shared_bytes=2048,
    )  # fmt: skip
    assert hazard.kind == "tensor_map"
    assert f"a box that is stored starts at {store_at}" in str(hazard)


@pytest.mark.parametrize("op", ["add", "min"])
def test_a_reduction_meets_what_lies_in_the_tensor(op):
    array, what, at = arrays_of(CASES["2d over both ends, nan"])
    case = TensorMap.of(array, (8, 16), dtype="s32")
    old = np.full(array.shape, 50, np.int32)
    result = run(
        source(2, f".{op}"),
        [case, TensorMap.of(old, (8, 16)), np.zeros(512, np.uint32), np.array(at, np.int32),
         np.array((40, 36), np.int32), case.box_bytes, 1024, 0, 1],
        shared_bytes=1024,
    )  # fmt: skip
    expected_left = old.copy()
    part = array[36:, 40:].astype(np.int32)
    expected_left[36:, 40:] = 50 + part if op == "add" else np.minimum(50, part)
    assert np.array_equal(result.arrays[1].view(np.int32), expected_left)
    assert what.dtype == "f32"


PUBLISHED = """asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
            "[%0], [%1], 128;" :: "l"(mine), "r"(at(&draft)) : "memory");"""
STORED = """((u32 *)mine)[threadIdx.x] = ((u32 *)&draft)[threadIdx.x];
        asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory"); __syncwarp();"""
ACQUIRED = """asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(mine) : "memory");"""


@pytest.mark.parametrize("acquired", ["", ACQUIRED], ids=["unseen", "acquired"])
@pytest.mark.parametrize("brought", [PUBLISHED, STORED], ids=["published", "stored"])
def test_a_map_may_be_changed_in_shared_memory_and_brought_to_global_memory(brought, acquired):
    text = kernel(
        "const __grid_constant__ CUtensorMap map, CUtensorMap *mine, const float *other, float *out",
        """
        __shared__ alignas(1024) char tile[1024]; __shared__ CUtensorMap draft; __shared__ u64 full;
        if (threadIdx.x == 0) { init(&full, 1); init_fence(); }
        ((u32 *)&draft)[threadIdx.x] = ((const u32 *)&map)[threadIdx.x];
        __syncwarp();
        if (threadIdx.x == 0) {
            asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;"
                :: "r"(at(&draft)), "l"(other) : "memory");
            asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;"
                :: "r"(at(&draft)), "r"(5) : "memory");
        }
        __syncwarp();
        """
        + brought
        + acquired
        + """
        if (threadIdx.x == 0) { arrive_expect(&full, 1024); load_box(tile, mine, 0, 0, &full); }
        __syncwarp();
        wait(&full, 0);
        for (int i = threadIdx.x; i < 256; i += 32) out[i] = ((float *)tile)[i];
        """,
    )
    other = -TENSOR
    arguments = [TensorMap.of(TENSOR, (8, 32)), "u8[128]=zeros", other, "f32[256]=nan"]
    result = run(text, arguments, hazards="collect")
    assert [hazard.kind for hazard in result.hazards] == ([] if acquired else ["proxy_fence_missing"])
    expected_box = other[:8].copy()
    expected_box[5:] = 0
    assert np.array_equal(result.arrays[3].reshape(8, 32), expected_box)


def test_a_map_that_is_stored_and_not_released_is_a_fault_where_it_is_acquired():
    stored = STORED.replace('asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");', "")
    text = kernel(
        "const __grid_constant__ CUtensorMap map, CUtensorMap *mine",
        """
        __shared__ CUtensorMap draft;
        ((u32 *)&draft)[threadIdx.x] = ((const u32 *)&map)[threadIdx.x];
        if (threadIdx.x == 0)
            asm volatile("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 1;" :: "r"(at(&draft)) : "memory");
        __syncwarp();
        BROUGHT
        """
        + ACQUIRED,
    )
    args = [TensorMap.of(np.zeros((8, 32), np.float32), (8, 32)), np.zeros(128, np.uint8)]
    hazard = fault(text.replace("BROUGHT", stored), args)
    assert hazard.kind == "proxy_fence_missing"
    assert "tensormap::generic.release" in hazard.message
    for brought in (STORED, PUBLISHED):
        assert run(text.replace("BROUGHT", brought), args).hazards == []


def test_what_a_store_clips_it_does_not_read_either():
    text = kernel(
        "const __grid_constant__ CUtensorMap map",
        """
        __shared__ alignas(128) float tile[8][36]; // rows padded by 4, which the tensor does not have
        for (int y = 0; y < 8; ++y) tile[y][threadIdx.x] = 100 * y + threadIdx.x;
        proxy_fence();
        __syncwarp();
        if (threadIdx.x == 0) { store_box(&map, 0, 8, tile); commit(); wait_done<0>(); }
        """,
    )
    whole = np.zeros((16, 32), np.float32)
    result = run(text, [TensorMap.of(whole, (8, 36))])
    assert result.hazards == []
    assert np.array_equal(result.arrays[0][8:], 100 * np.arange(8)[:, None] + np.arange(32))
    assert result.counters.bulk_store_bytes == 8 * 32 * 4


def test_hints_and_every_spelling_of_a_load_change_nothing():
    text = kernel(
        "const __grid_constant__ CUtensorMap map, const float *from, float *out",
        """
        __shared__ alignas(128) float tile[256]; __shared__ u64 full;
        if (threadIdx.x == 0) {
            init(&full, 1); init_fence();
            u64 policy; asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
            asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], 1024;" :: "l"(from));
            asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %1}];" :: "l"(&map), "r"(0));
            asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], 1024;" :: "r"(at(&full)));
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                ".L2::cache_hint [%0], [%1, {%2, %2}], [%3], %4;"
                :: "r"(at(tile)), "l"(&map), "r"(0), "r"(at(&full)), "l"(policy) : "memory");
        }
        __syncwarp();
        for (u32 done = 0; !done;)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], 0, 1000;"
                " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(&full)) : "memory");
        for (int i = threadIdx.x; i < 256; i += 32) out[i] = tile[i];
        """,
    )
    result = run(text, [TensorMap.of(TENSOR, (8, 32)), "f32[256]=zeros", "f32[256]=nan"])
    assert result.hazards == []
    assert np.array_equal(result.arrays[2].reshape(8, 32), TENSOR[:8])


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_a_box_within_its_tensor_is_found_by_units_of_16_bytes(dtype):
    rng, size = np.random.default_rng(0), {"f16": 2, "f32": 4, "f64": 8}[dtype]
    wholes = 0
    for _ in range(60):
        rank = int(rng.integers(1, 6))
        shape = (int(rng.integers(4, 9)) * 16 // size, *rng.integers(3, 9, rank - 1).tolist())
        strides = tuple((rng.integers(8, 40, rank - 1) * 16).tolist())
        box = (16 // size * int(rng.integers(1, 3)), *rng.integers(1, 4, rank - 1).tolist())
        steps = (1, *rng.integers(1, 3, rank - 1).tolist())
        what = TensorMap(1 << 40, dtype, shape, strides, box, steps)
        at = (int(rng.integers(-1, 3)) * 16 // size, *rng.integers(-1, 4, rank - 1).tolist())
        elements, units = locate(what, at), locate(what, at, units=True)
        assert elements.size == size
        assert (units.size == 16) == elements.inside.all()
        wholes += units.size == 16
        parts = units.addresses[:, None] + np.arange(units.size // size) * size
        np.testing.assert_array_equal(parts.reshape(-1), elements.addresses)
        np.testing.assert_array_equal(np.repeat(units.inside, units.size // size), elements.inside)
    assert 5 < wholes < 55
