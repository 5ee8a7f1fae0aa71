"""The bench of transformer blocks, as far as it goes without a GPU: the models, the verdict, the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tilewright.lab.block_models import make_block  # noqa: E402
from tilewright.lab.blocks import PASSES, check_pair, make_pair, run_pass  # noqa: E402
from tilewright.lab.suite import read_suite  # noqa: E402

CASES = read_suite(Path(__file__).parents[2] / "benchmarks" / "torch-blocks.json")["cases"]
SMALL = {"d_model": 32, "d_ff": 48, "heads": 4, "kv_heads": 2, "tokens": 6, "batch": 2, "dtype": "f32"}

pytestmark = pytest.mark.filterwarnings("ignore:tilewright has no kernel")


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(("block", "layers", "activations"), [("llama", 7, 1), ("encoder", 2, 0)])
def test_a_block_with_layers_replaced_is_right_and_a_changed_one_is_told(block, layers, activations, which):
    torch.manual_seed(0)
    pair, replaced, fused = make_pair(torch, SMALL | {"block": block}, "cpu")
    assert (replaced, fused) == (layers, activations)
    assert check_pair(torch, which, pair) == ""
    changed = list(pair.ours.parameters())[-1]
    with torch.no_grad():
        changed.view(-1)[0] += 0.5
    assert "elements are off by up to" in check_pair(torch, which, pair)
    with torch.no_grad():
        changed.view(-1)[0] = torch.nan
    assert "off by up to inf" in check_pair(torch, which, pair)


def test_training_gives_a_gradient_for_the_input_and_each_parameter():
    pair, _, _ = make_pair(torch, SMALL | {"block": "llama"}, "cpu")
    found = run_pass(torch, "training", pair.ours, pair.x, pair.seed)
    assert list(found) == ["result", "x", *(name for name, _ in pair.theirs.named_parameters())]
    assert all(torch.isfinite(tensor).all() and tensor.any() for tensor in found.values())


def test_a_llama_block_sees_no_later_token():
    torch.manual_seed(0)
    block = make_block(SMALL | {"block": "llama"})
    x = torch.randn(1, 6, 32)
    other = torch.cat((x[:, :4], torch.randn(1, 2, 32)), 1)
    torch.testing.assert_close(block(x)[:, :4], block(other)[:, :4])
    assert not torch.allclose(block(x)[:, 4], block(other)[:, 4])


def test_the_suites_cases_are_blocks_that_can_be_made():
    with torch.device("meta"):
        for case in CASES:
            assert case["pass"] in PASSES
            x = torch.empty(case["batch"], case["tokens"], case["d_model"])
            assert make_block(case)(x).shape == x.shape
