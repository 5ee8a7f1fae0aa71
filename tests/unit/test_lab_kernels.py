"""Kernels as people name them: a rung, a rung with another config, or a file, in every command of the lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright import lab
from tilewright.errors import ConfigRejected, InvalidOperand, WrongResult
from tilewright.gpus import GPUS
from tilewright.jit import compile_source
from tilewright.lab.starters import STARTERS, new_kernel
from tilewright.lab.subject import named, subject_of

H200 = GPUS["H200"].arch
SOLUTIONS = Path(__file__).parents[2] / "docs/learn/solutions"


@pytest.fixture
def mine(tmp_path):
    return new_kernel(tmp_path / "mine.cu", "transpose")


def test_a_rung_is_named_with_its_config():
    rung, config = named("f09:tile_k=8")
    assert (rung.id, config) == ("f09_transposed", "tile_k=8")
    assert named("a07:(128, 64, 64, 4): load_0_2_2_fragments")[1] == "(128, 64, 64, 4): load_0_2_2_fragments"
    assert named("f09", "tile_k=8")[1] == "tile_k=8"
    assert named("f99:tile_k=8") == (None, None)
    with pytest.raises(ConfigRejected, match="Give one of them"):
        named("f09:tile_k=8", "tile_k=16")
    with pytest.raises(ConfigRejected, match="is not FIELD=VALUE"):
        subject_of("f09:quick", H200)


def test_a_file_named_like_a_rung_is_the_file(tmp_path, monkeypatch, mine):
    mine.rename(tmp_path / "f09")
    monkeypatch.chdir(tmp_path)
    assert named("f09") == (None, None)


def test_a_file_gives_its_launch_by_its_check_lines(mine):
    assert subject_of(mine, H200).threads == 256
    assert subject_of(mine, H200, threads=64).threads == 64
    mine.write_text(mine.read_text().replace("block 32, 8", "block 32, 8\n// check: shared 4 * n"))
    assert subject_of(mine, H200).dynamic_shared == 512
    mine.write_text("__global__ void k(int* x) { *x = 1; }")
    assert subject_of(mine, H200).threads == 0


def test_occupancy_of_a_kernel_is_that_of_its_registers_and_shared_memory(mine):
    found = lab.occupancy_of("f09:tile_k=8", gpu="RTX 4090")
    inspected = subject_of("f09:tile_k=8", GPUS["RTX 4090"].arch).resources
    assert found.kernel.startswith("f09_transposed 64x128x8")
    assert (found.registers, found.shared_bytes) == (inspected.registers, inspected.shared_bytes)
    assert found.limits == lab.occupancy(128, found.registers, found.shared_bytes, "RTX 4090").limits
    assert lab.occupancy_of(mine, gpu="sm_89").threads == 256
    assert "f09_transposed" in str(found)
    mine.write_text("__global__ void k(int* x) { *x = 1; }")
    with pytest.raises(InvalidOperand, match="does not say how many threads"):
        lab.occupancy_of(mine)


def test_banks_of_a_rung_are_those_of_its_lines():
    unswizzled, swizzled = lab.banks_of("h08"), lab.banks_of("h09")
    assert unswizzled.wavefronts > swizzled.wavefronts >= swizzled.ideal == unswizzled.ideal
    worst = unswizzled.lines[0]
    assert worst.access == "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
    assert (worst.wavefronts / worst.requests, worst.ideal / worst.requests) == (32, 4)
    after = next(line for line in swizzled.lines if line.access == worst.access)
    assert after.wavefronts / after.requests == 8


@pytest.mark.parametrize("rung", ["f01", "f02", "f03"])
def test_counts_are_of_a_product_that_has_a_k(rung):
    assert lab.banks_of(rung).problem.endswith(" x 128")


def test_banks_of_a_file_are_those_of_its_lines(tmp_path, mine):
    found = lab.banks_of(new_kernel(tmp_path / "banks.cu", "banks"))
    text = (tmp_path / "banks.cu").read_text().splitlines()
    worst = found.lines[0]
    assert (worst.access, worst.wavefronts / worst.requests) == ("ld.shared.f32", 32)
    assert "tile[threadIdx.x][i]" in text[worst.line - 1]
    assert lab.banks_of(mine).lines == ()
    assert "does not use shared memory" in str(lab.banks_of(mine))


def test_nothing_is_counted_of_a_kernel_that_is_wrong_or_machine_code(tmp_path):
    kernel = compile_source(STARTERS["transpose"].read_text(), entry="transpose", arch="sm_90a", name="t.cu")
    (tmp_path / "t.cubin").write_bytes(kernel.cubin)
    with pytest.raises(InvalidOperand, match="the emulator runs PTX"):
        lab.banks_of(tmp_path / "t.cubin")
    racy = new_kernel(tmp_path / "racy.cu", "banks")
    racy.write_text(racy.read_text().replace("__syncthreads();", ""))
    with pytest.raises(WrongResult, match="shared_race"):
        lab.banks_of(racy)
    with pytest.raises(InvalidOperand, match="Did you mean 'f09'"):
        lab.banks_of("f99")


def test_kernels_have_places_under_a_roof(tmp_path, mine):
    found = lab.roofline("H200", kernels=["f12", "f12:tile_k=8"], shape=(4096, 4096, 4096))
    default, other = found.points
    assert found.kind == "f32"
    assert default.tflops is not None  # on record
    assert other.tflops is None
    assert default.tile_intensity == pytest.approx(41.8, abs=0.1)
    assert lab.roofline("H100", kernels=["h12"]).points[0].tflops is None
    assert lab.roofline("H200", kernels=["a17"]).kind == "bf16"
    n = 64
    product = lab.roofline("H200", kernels=[new_kernel(tmp_path / "mm.cu", "matmul")]).points[0]
    assert product.intensity == pytest.approx(2 * n**3 / (3 * 4 * n * n))
    assert product.tile_intensity < product.intensity
    assert lab.roofline("H200", kernels=[SOLUTIONS / "fragments.cu"]).kind == "f16", "it multiplies on tensor cores"
    with pytest.raises(InvalidOperand, match="0 FLOP"):
        lab.roofline("H200", kernels=[mine])
    with pytest.raises(InvalidOperand, match="not bf16"):
        lab.roofline("H200", "bf16", kernels=["f09"])


def test_a_file_is_shown_with_what_its_lines_became_and_what_is_new(tmp_path, mine):
    better = new_kernel(tmp_path / "banks.cu", "banks")
    found = lab.show(better, diff=mine, compiled=True)
    new = [line.text for line in found.lines if line.new]
    assert any("__shared__ float tile" in text for text in new)
    assert not any("check: grid" in text for text in new)
    store = next(line for line in found.lines if "tile[threadIdx.x][i]" in line.text)
    assert any("ld.shared" in text for text in store.ptx)
    assert dict(store.groups)["shared loads"] > 0
    assert found.text == better.read_text()


def test_ptx_and_machine_code_are_shown_as_they_are(tmp_path):
    kernel = compile_source(STARTERS["transpose"].read_text(), entry="transpose", arch="sm_90a", name="t.cu")
    (tmp_path / "t.cubin").write_bytes(kernel.cubin)
    (tmp_path / "t.ptx").write_text(kernel.ptx)
    assert any("STG" in line.text for line in lab.show(tmp_path / "t.cubin").lines)
    assert lab.show(tmp_path / "t.ptx").text.strip() == kernel.ptx.strip()


def test_a_rung_is_shown_over_another_than_the_one_below():
    usual, other = lab.show("f09"), lab.show("f09", diff="f05")
    assert (usual.below, other.below) == ("f08_warptile_sub", "f05")
    assert sum(line.new for line in other.lines) > sum(line.new for line in usual.lines)
    assert not any(line.new for line in lab.show("f09", diff="f09").lines)
    with pytest.raises(InvalidOperand, match="neither a rung nor a file"):
        lab.show("f09", diff="f99")
