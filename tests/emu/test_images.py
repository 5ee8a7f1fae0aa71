"""Columns of pixels by TMA ("im2col"), as a convolution by an implicit product copies them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hopper_prelude import PRELUDE, fault, run

from tilewright.emu import TensorMap
from tilewright.emu.tensor_maps import pack, unpack
from tilewright.errors import InvalidOperand
from tilewright.jit import loaded


def source(axes: int, store: bool = False) -> str:
    """Block (x, y) copies the x-th column at the y-th tap; out[tap][column][pixel][channel]."""
    rank = axes + 2
    coordinates, taps = (
        ", ".join(f"%{k}" for k in range(first, first + count)) for first, count in ((3, rank), (3 + rank, axes))
    )
    starts = ", ".join(f'"r"(start[{k}])' for k in range(rank))
    offsets = ", ".join(f'"h"((unsigned short)tap[{k}])' for k in range(axes))
    out = (
        f"""
        asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group "
            "[%0, {{{", ".join(f"%{k}" for k in range(2, 2 + rank))}}}], [%1];" :: "l"(&to), "r"(at(tile)), {starts}
            : "memory");
        commit(); wait_done<0>();"""
        if store
        else ""
    )
    return (
        PRELUDE
        + f"""
extern "C" __global__ void k(const __grid_constant__ CUtensorMap images, const __grid_constant__ CUtensorMap to,
        const int *starts, const int *taps, char *out, int bytes) {{
    extern __shared__ __align__(1024) char tile[];
    __shared__ u64 full;
    const int *start = starts + blockIdx.x * {rank}, *tap = taps + blockIdx.y * {axes};
    if (threadIdx.x == 0) {{ init(&full, 1); }}
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {{
        arrive_expect(&full, bytes);
        asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
            "[%0], [%1, {{{coordinates}}}], [%2], {{{taps}}};"
            :: "r"(at(tile)), "l"(&images), "r"(at(&full)), {starts}, {offsets} : "memory");
    }}
    wait(&full, 0);
    out += (blockIdx.y * gridDim.x + blockIdx.x) * bytes;
    for (int i = threadIdx.x; i < bytes; i += 32) out[i] = tile[i];
    __syncthreads();
    if (threadIdx.x == 0) {{{out}
    }}
}}
"""
    )


def gathered(images, lower, upper, steps, tap, fill):
    """What a filter's tap sees at every place of its walk, [places, channels]: by padding, not by a map's rules."""
    axes = images.ndim - 2
    pads = [(0, 0), *[(-low, max(0, high + more)) for low, high, more in zip(lower, upper, tap, strict=True)], (0, 0)]
    padded = np.pad(images, pads, constant_values=fill)
    spans = [range(0, extent - 1 + high - low + 1, step)
             for extent, low, high, step in zip(images.shape[1:-1], lower, upper, steps, strict=True)]  # fmt: skip
    rows = [padded[(n, *(place[k] + tap[k] for k in range(axes)))]
            for n in range(images.shape[0]) for place in itertools.product(*spans)]  # fmt: skip
    places = [
        (n, *(place[k] + lower[k] for k in range(axes)))
        for n in range(images.shape[0])
        for place in itertools.product(*spans)
    ]
    return np.array(rows), places


CASES = {
    "3x3, padded by 1": ((2, 7, 9, 16), (-1, -1), (-1, -1), (1, 1), [(0, 0), (1, 2), (2, 2)], {}),
    "3x3, padded by 1, every second pixel": ((3, 8, 11, 32), (-1, -1), (-1, -1), (2, 2), [(0, 0), (2, 1)], {}),
    "3x3, two apart, no padding": ((2, 9, 10, 16), (0, 0), (-4, -4), (1, 1), [(0, 0), (2, 4), (4, 4)], {}),
    "1x1": ((2, 5, 6, 24), (0, 0), (0, 0), (1, 1), [(0, 0)], {}),
    "5 wide, uneven padding": ((2, 6, 12, 16), (0, -3), (0, -1), (1, 3), [(0, 0), (0, 4)], {}),
    "one axis": ((4, 13, 8), (-2,), (0,), (1,), [(0,), (2,)], {}),
    "three axes": ((2, 4, 5, 6, 8), (-1, -1, -1), (-1, -1, -1), (1, 2, 1), [(0, 0, 0), (2, 1, 2)], {}),
    "swizzled, filled with NaN": ((2, 7, 9, 32), (-1, -1), (-1, -1), (1, 1), [(0, 0), (2, 2)],
                                  {"swizzle": 64, "oob_fill": "nan"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_columns_hold_what_a_tap_of_a_convolution_sees(name):
    shape, lower, upper, steps, taps, options = CASES[name]
    axes, pixels, channels = len(shape) - 2, 16, shape[-1]
    images = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    what = TensorMap.of_images(images, lower, upper, channels, pixels, steps=steps, **options)
    assert unpack(pack(what.at(1 << 20))) == what.at(1 << 20)
    fill = np.uint16(0x7FF7).view(np.float16) if options else np.float16(0)
    wanted, places = zip(*(gathered(images, lower, upper, steps, tap, fill) for tap in taps), strict=True)
    count = len(places[0]) // pixels + 1  # the last column ends outside
    starts = np.array([[0, *reversed(place[1:]), place[0]] for place in places[0][::pixels]], np.int32)
    starts = np.vstack([starts, np.array([[0, *reversed(lower), shape[0]]], np.int32)])[:count]
    told = np.array([list(reversed(tap)) for tap in taps], np.int32)
    out = np.zeros(len(taps) * count * what.box_bytes, np.uint8)
    result = run(
        source(axes),
        [what, what, starts, told, out, what.box_bytes],
        grid=(count, len(taps)),
        shared_bytes=what.shared_bytes,
    )
    assert result.hazards == []
    found = result.arrays[-1].view(np.float16).reshape(len(taps), count * pixels, channels)
    if options:  # rows of 64 bytes: 16-byte units are exchanged by bits of the address
        unit = np.arange(pixels * 4)
        moved = unit ^ (unit >> 3 & 3)
        found = found.reshape(-1, pixels * 4, 8)[:, moved].reshape(found.shape)
    for one, right in zip(found, wanted, strict=True):
        assert np.array_equal(one[: len(right)].view(np.uint16), right.view(np.uint16))
        assert (one[len(right) :].view(np.uint16) == fill.view(np.uint16)).all(), "images after the last are filled"


def test_a_column_is_stored_where_its_pixels_lie_and_clipped():
    images = np.random.default_rng(1).standard_normal((1, 5, 6, 16)).astype(np.float16)
    target = np.zeros_like(images)
    what = TensorMap.of_images(images, (-1, -1), (1, 1), 16, 16)
    to = TensorMap.of_images(target, (-1, -1), (1, 1), 16, 16)
    starts = np.array([[0, -1, 1, 0]], np.int32)  # 16 pixels of rows of 8 that begin before the image: rows 1 and 2
    args = [what, to, starts, np.zeros((1, 2), np.int32), np.zeros(what.box_bytes, np.uint8), what.box_bytes]
    result = run(source(2, store=True), args, shared_bytes=what.shared_bytes)
    expected = np.zeros_like(images)
    expected[0, 1:3] = images[0, 1:3]
    assert np.array_equal(result.arrays[1], expected)


def test_a_map_of_images_and_a_copy_of_tiles_do_not_fit():
    images = np.zeros((2, 5, 6, 16), np.float16)
    tiled = TensorMap.of(images, (1, 1, 16, 16))
    args = [tiled, tiled, np.zeros((1, 4), np.int32), np.zeros((1, 2), np.int32), np.zeros(512, np.uint8), 512]
    assert "the map is one of tiles, the instruction of images" in str(fault(source(2), args, shared_bytes=512))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lower": (-200, 0)}, "a corner is 2 numbers from -128 to 127"),
        ({"upper": (0,)}, "a corner is 2 numbers"),
        ({"channels": 12}, "24 bytes wide; that has to be a multiple of 16"),
        ({"pixels": 2000}, r"box\[1\] is 2000; 1 to 1024"),
        ({"steps": (1, 9)}, r"element_strides\[1\] is 9; 1 to 8"),
    ],
)
def test_what_cuda_refuses_of_images_is_refused(changes, says):
    right = {"lower": (-1, -1), "upper": (-1, -1), "channels": 16, "pixels": 64}
    images = np.zeros((2, 5, 6, 16), np.float16)
    assert TensorMap.of_images(images, **right).box_bytes == 64 * 16 * 2
    with pytest.raises(InvalidOperand, match=says):
        TensorMap.of_images(images, **{**right, **changes})
    with pytest.raises(InvalidOperand, match="2 dimensions; images have 3 to 5"):
        TensorMap.of_images(np.zeros((5, 16), np.float16), (), (), 16, 8)


def test_a_gpu_does_not_get_a_map_of_images_from_here():
    with pytest.raises(InvalidOperand, match="run on the emulator only"):
        loaded.encode_for_driver(TensorMap.of_images(np.zeros((2, 5, 6, 16), np.float16), (0, 0), (0, 0), 16, 8), 1024)
