"""CUTLASS beside the ladder: its tilings as data, what it refuses, its launch, and what its cache key holds."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from tilewright.errors import MissingDependency
from tilewright.gemm.problem import Epilogue, GemmProblem
from tilewright.gemm.rung import GemmConfig
from tilewright.gpus import GPUS
from tilewright.jit.compile import cache_key
from tilewright.jit.source import Library, Source
from tilewright.lab.peers import cutlass

ARCH = GPUS["H200"].arch


def dense(m: int, n: int, k: int, **more) -> GemmProblem:
    return GemmProblem.dense(m, n, k, **{"dtype": "bf16", **more})


def test_nineteen_of_the_twenty_tilings_fit_an_h200_and_the_other_is_refused_with_its_bytes():
    reasons = [cutlass.TENSOR.why_not(dense(4096, 4096, 4096), config, ARCH) for config in cutlass.SWEEP]
    assert len(reasons) == len(set(cutlass.SWEEP)) == 20
    refused = [reason for reason in reasons if reason]
    assert len(refused) == 1
    assert "262144 B" in refused[0]


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (dense(64, 63, 64), "B of 64 x 63"),
        (dense(64, 64, 33), "A of 64 x 33"),
        (dense(64, 64, 64, batch=2), "batch is 2"),
        (dense(64, 64, 64, dtype="f32"), "multiplies bf16, f16"),
        (replace(dense(64, 64, 64), epilogue=Epilogue("relu(x)", "")), "no place for an epilogue"),
    ],
)
def test_what_device_gemm_cannot_take_is_refused_with_the_numbers(problem, says):
    assert says in cutlass.TENSOR.why_not(problem, cutlass.DEFAULT, ARCH)


@pytest.mark.parametrize(
    ("extent", "elements"), [(64, 8), (36, 4), (34, 2)],
)  # fmt: skip
def test_copies_are_as_wide_as_lines_allow(extent, elements):
    constants = cutlass.TENSOR.constants(dense(extent, extent, extent, out_dtype="f32"), cutlass.DEFAULT)
    assert (constants["a_elements"], constants["b_elements"]) == (elements, elements)
    assert constants["out_elements"] == min(elements, 4)


def test_fp32_copies_one_element_at_a_time_at_any_size():
    problem = dense(33, 35, 37, dtype="f32")
    assert cutlass.SIMT.why_not(problem, cutlass.FP32_DEFAULT, ARCH) is None
    constants = cutlass.SIMT.constants(problem, cutlass.FP32_DEFAULT)
    assert {constants[name] for name in ("a_elements", "b_elements", "out_elements")} == {1}


@pytest.mark.parametrize(
    ("tiles_n", "group", "grid"),
    [(7, 1, (3, 7, 1)), (5, 8, (12, 2, 1)), (7, 8, (24, 1, 1)), (3, 2, (6, 2, 1)), (1, 8, (3, 1, 1))],
)
def test_the_grid_is_that_of_the_identity_swizzle(tiles_n, group, grid):
    config = GemmConfig(128, 128, 32, warp_m=64, warp_n=64, stages=3, group_m=group)
    assert cutlass.TENSOR.grid(config, dense(384, 128 * tiles_n, 64)) == grid


def test_a_key_holds_what_the_headers_say_and_not_where_they_lie():
    def key(folder: str, identity: str) -> str:
        return cache_key(Source("x", "x.cu", "x"), "sm_90a", (), "13.0", (Library((Path(folder),), identity),))

    assert key("/one", "cutlass 4.2 abc") == key("/two", "cutlass 4.2 abc") != key("/one", "cutlass 4.2 abd")


def test_without_the_wheels_the_error_names_each_and_how_to_get_them(monkeypatch):
    def missing(name: str):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cutlass.metadata, "distribution", missing)
    cutlass.libraries.cache_clear()
    with pytest.raises(MissingDependency) as caught:
        cutlass.libraries()
    for wheel in ("nvidia-cutlass", "nvidia-cuda-cccl", "nvidia-cuda-runtime", "nvidia-cuda-crt"):
        assert wheel in str(caught.value)
    assert "pip install 'tilewright[cutlass]'" in str(caught.value)
    cutlass.libraries.cache_clear()
