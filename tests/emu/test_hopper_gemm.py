"""TMA, mbarriers, wgmma and registers handed over, together: right, and wrong in one thing at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hopper_gemm import WRONG, product

from tilewright.errors import EmulatorFault


@pytest.mark.parametrize(("rows", "columns", "k", "blocks"), [(256, 256, 384, 2), (128, 256, 128, 2)])
def test_a_warp_specialised_product_is_right(rows, columns, k, blocks):
    result, c, expected = product(rows, columns, k, blocks=blocks)
    assert result.hazards == []
    np.testing.assert_allclose(c, expected, rtol=2**-8, atol=1e-3)
    tiles = rows // 128 * (columns // 128)
    assert result.counters.bulk_load_requests == 2 * tiles * k // 64
    assert result.counters.bulk_load_bytes == tiles * k * 2 * 128 * 2
    assert result.counters.bulk_store_bytes == 2 * rows * columns


SAYS = {
    "missing_wait": ("async_copy_not_waited", "this warp has not seen its mbarrier's phase complete"),
    "wrong_byte_count": ("deadlock", "128 bytes missing; waited for: phase 0"),
    "missing_proxy_fence": ("proxy_fence_missing", "a bulk store reads shared address"),
    "missing_empty_wait": ("mbarrier_misuse", "1 arrivals where 0 are pending"),
    "store_not_waited": ("bulk_not_waited", "which a bulk store still reads"),
    "wrong_parity": ("deadlock", "waited for: phase 0"),
    "no_wait_at_all": ("uninitialised_shared_read", "wgmma reads shared address"),
    "empty_too_early": ("shared_race", "a wgmma's read by warp"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_each_mutant_is_stopped_and_named(wrong):
    with pytest.raises(EmulatorFault) as caught:
        product(256, 256, 384, wrong=wrong)
    kind, says = SAYS[wrong]
    assert caught.value.hazard.kind == kind
    assert says in str(caught.value.hazard)
