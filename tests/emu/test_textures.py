"""Textures and surfaces by object, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.emu import Surface, Texture
from tilewright.errors import EmulatorFault, InvalidOperand

RANDOM = np.random.default_rng(5)
IMAGE = RANDOM.standard_normal((5, 7)).astype(np.float32)


def fetch(expression: str, texture: Texture, points: np.ndarray, kind: str = "float") -> np.ndarray:
    """`expression` of (t, x, y, z) at each of the points [lanes, 3]."""
    source = f"""__global__ void k(cudaTextureObject_t t, const float *p, {kind} *out) {{
        int i = threadIdx.x; float x = p[3 * i], y = p[3 * i + 1], z = p[3 * i + 2]; out[i] = {expression};
    }}"""
    parts = {"float": ("f4", 1), "uint2": ("u4", 2), "uchar4": ("u1", 4), "int": ("i4", 1)}[kind]
    out = np.zeros((len(points), parts[1]), parts[0])
    return tw.emulate(source, "k", 1, len(points), [texture, points.astype("f4"), out]).arrays[1].squeeze()


def grid(low: float, high: float) -> np.ndarray:
    return RANDOM.uniform(low, high, (96, 3)).astype(np.float32)


def test_points_are_clamped_or_zero_outside():
    points = grid(-3, 10)
    x, y = np.floor(points[:, 0]).astype(int), np.floor(points[:, 1]).astype(int)
    clamped = IMAGE[np.clip(y, 0, 4), np.clip(x, 0, 6)]
    assert (fetch("tex2D<float>(t, x, y)", Texture(IMAGE), points) == clamped).all()
    inside = (x >= 0) & (x < 7) & (y >= 0) & (y < 5)
    assert 10 < inside.sum() < 90
    got = fetch("tex2D<float>(t, x, y)", Texture(IMAGE, address="border"), points)
    assert (got == np.where(inside, clamped, 0)).all()


@pytest.mark.parametrize("address", ["wrap", "mirror"])
def test_normalized_coordinates_wrap_or_mirror(address):
    points = grid(-2, 3)
    got = fetch("tex1D<float>(t, x)", Texture(IMAGE[0], address=address, normalized=True), points)
    at = np.floor(points[:, 0].astype("f8") * 7).astype(int)
    tiled = IMAGE[0] if address == "wrap" else np.concatenate([IMAGE[0], IMAGE[0][::-1]])
    assert (got == tiled[at % len(tiled)]).all()


def test_linear_filtering_weighs_neighbours_in_steps_of_256():
    points = grid(-1, 6)
    got = fetch("tex2D<float>(t, x, y)", Texture(IMAGE, filter="linear"), points)
    x, y = points[:, 0].astype("f8") - 0.5, points[:, 1].astype("f8") - 0.5
    a, b = (np.rint((v - np.floor(v)) * 256) / 256 for v in (x, y))
    i, j = np.floor(x).astype(int), np.floor(y).astype(int)

    def pick(row, column):
        return IMAGE[np.clip(row, 0, 4), np.clip(column, 0, 6)].astype("f8")

    want = (1 - b) * ((1 - a) * pick(j, i) + a * pick(j, i + 1)) + b * (
        (1 - a) * pick(j + 1, i) + a * pick(j + 1, i + 1)
    )
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    assert fetch("tex2D<float>(t, 2.5f, 3.5f)", Texture(IMAGE, filter="linear"), points)[0] == IMAGE[3, 2]


def test_three_dimensions_whole_coordinates_and_levels():
    volume = RANDOM.standard_normal((3, 4, 5)).astype(np.float16)
    points = grid(0, 3)
    x, y, z = (points[:, k].astype(int) for k in range(3))
    assert (fetch("tex3D<float>(t, x, y, z)", Texture(volume), points) == volume[z, y, x]).all()
    assert (fetch("tex1Dfetch<float>(t, (int)x)", Texture(IMAGE[1]), points) == IMAGE[1][x]).all()
    assert (fetch("tex2DLod<float>(t, x, y, 0.f)", Texture(IMAGE), points) == IMAGE[y, x]).all()


def test_integers_channels_and_normalized_reads():
    points = grid(0, 4)
    x, y = points[:, 0].astype(int), points[:, 1].astype(int)
    pixels = RANDOM.integers(0, 256, (4, 4, 4)).astype(np.uint8)
    got = fetch("tex2D<uchar4>(t, x, y)", Texture(pixels, channels=4), points, "uchar4")
    assert (got == pixels[y, x]).all()
    pairs = RANDOM.integers(0, 2**32, (4, 4, 2)).astype(np.uint32)
    assert (fetch("tex2D<uint2>(t, x, y)", Texture(pairs, channels=2), points, "uint2") == pairs[y, x]).all()
    signed = RANDOM.integers(-128, 128, (4, 4)).astype(np.int8)
    assert (fetch("tex2D<int>(t, x, y)", Texture(signed), points, "int") == signed[y, x]).all()
    got = fetch("tex2D<float>(t, x, y)", Texture(signed, read="normalized"), points)
    np.testing.assert_allclose(got, np.maximum(signed[y, x] / 127, -1), rtol=1e-6)


SURFACE = """__global__ void k(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width) {
  int x = threadIdx.x, y = threadIdx.y;
  float2 v = surf2Dread<float2>(from, x * 8, y, MODE);
  surf2Dwrite(v.x + v.y, to, (width - 1 - x) * 4, y, MODE);
}"""


def test_surfaces_are_read_and_written():
    pairs = RANDOM.standard_normal((4, 8, 2)).astype(np.float32)
    source = SURFACE.replace("MODE", "cudaBoundaryModeTrap")
    args = [Surface(pairs, channels=2), Surface(np.zeros((4, 8), np.float32)), 8]
    result = tw.emulate(source, "k", 1, (8, 4), args)
    assert (result.arrays[1] == pairs.sum(axis=2)[:, ::-1]).all()
    assert (result.arrays[0] == pairs).all()


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("surf1Dread(&v, from, (i + 1) % 64 * 4); surf1Dwrite(v, to, i * 4);", set()),
        ("surf1Dread(&v, to, i * 4); surf1Dwrite(v + 1, to, i * 4);", set()),
        ("surf1Dwrite(i * 1.f, to, i * 4); surf1Dread(&v, to, i * 4); surf1Dwrite(v, from, i * 4);", {"fixed_read"}),
        ("surf1Dread(&v, to, (i + 32) % 64 * 4); surf1Dwrite(v, to, i * 4);", {"global_race"}),
        ("surf1Dwrite(i * 1.f, to, i % 48 * 4);", {"global_race"}),
        ("surf1Dwrite(1.f, to, i % 48 * 4);", {"flag_race"}),
    ],
)
def test_what_surfaces_write_is_judged_as_other_stores_and_read_by_later_launches_alone(body, kinds):
    source = f"""__global__ void k(cudaSurfaceObject_t from, cudaSurfaceObject_t to) {{
        int i = blockIdx.x * 32 + threadIdx.x; float v; {body}
    }}"""
    args = [Surface(np.zeros(64, np.float32)) for _ in range(2)]
    assert {hazard.kind for hazard in tw.emulate(source, "k", 2, 32, args, hazards="collect").hazards} == kinds


def test_bytes_of_a_surface_are_read_and_written():
    source = """
    __global__ void k(cudaSurfaceObject_t in, cudaSurfaceObject_t out) {
        unsigned char v;
        surf2Dread(&v, in, threadIdx.x, threadIdx.y);
        surf2Dwrite((unsigned char)(v + 1), out, 7 - threadIdx.x, threadIdx.y);
    }"""
    bytes_ = RANDOM.integers(0, 255, (4, 8), np.uint8)
    result = tw.emulate(source, "k", 1, (8, 4), [Surface(bytes_), Surface(np.zeros_like(bytes_))])
    assert (result.arrays[1] == bytes_[:, ::-1] + 1).all()


def test_what_lies_outside_a_surface_faults_is_zero_or_is_the_nearest():
    pairs = RANDOM.standard_normal((3, 8, 2)).astype(np.float32)

    def run(mode):
        args = [Surface(pairs, channels=2), Surface(np.full((4, 8), 7, np.float32)), 8]
        return tw.emulate(SURFACE.replace("MODE", f"cudaBoundaryMode{mode}"), "k", 1, (8, 4), args).arrays[1]

    with pytest.raises(EmulatorFault, match=r"out_of_bounds: outside the surface of \(8, 3\) elements"):
        run("Trap")
    sums = pairs.sum(axis=2)[:, ::-1]
    assert (run("Zero") == np.concatenate([sums, np.zeros((1, 8), "f4")])).all()
    assert (run("Clamp") == np.concatenate([sums, sums[2:]])).all()


@pytest.mark.parametrize(
    ("expression", "texture", "says"),
    [
        ("tex1D<float>(t, x)", Texture(IMAGE), "a texture of 2 dimensions"),
        ("tex2D<float>(t, x, y)", Texture(np.zeros((2, 2), np.int32)), "a texture of int32 with read='element'"),
        ("surf2Dread<float>(t, 0, 0)", Texture(IMAGE), "not a surface"),
    ],
)
def test_objects_that_do_not_fit_are_named(expression, texture, says):
    with pytest.raises(EmulatorFault, match=says):
        fetch(expression, texture, grid(0, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Texture(IMAGE, filter="cubic"),
        lambda: Texture(IMAGE, address="wrap"),
        lambda: Texture(IMAGE.astype(np.float64)),
        lambda: Texture(IMAGE.astype(np.int32), filter="linear"),
        lambda: Texture(IMAGE, channels=4),
        lambda: Surface(np.zeros((1, 1, 1, 1), np.float32)),
        lambda: tw.emulate("__global__ void k(float *x) {}", "k", 1, 1, [Texture(IMAGE)]),
    ],
)
def test_textures_that_no_gpu_has_are_refused(make):
    with pytest.raises(InvalidOperand):
        make()
