"""Any config of the 16-bit rungs' spaces at any small problem is right, or refused with a reason."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rung_products import Bench, Case

from tilewright.gemm.rung import GemmConfig, Rung
from tilewright.gemm.rungs import rungs_for
from tilewright.gpus import ARCHS

# h01 has one config; larger tiles take the emulator seconds.
SPACES = {
    rung: [config for config in rung.space() if config.tile_m * config.tile_n <= 64 * 64] or [rung.default]
    for rung in rungs_for("bf16")
}
CHOICES = st.sampled_from(list(SPACES)).flatmap(lambda rung: st.tuples(st.just(rung), st.sampled_from(SPACES[rung])))
LAYOUTS = st.sampled_from("nntppqouusrc")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    beta = draw(st.sampled_from([None, None, 0.0, 1.0, -0.75]))
    batch = draw(st.sampled_from([1, 1, 2]))
    return Case(
        draw(st.integers(1, 90)), draw(st.integers(1, 90)), draw(st.integers(0, 150)), draw(LAYOUTS) + draw(LAYOUTS),
        draw(st.sampled_from("nntpqous")), draw(st.sampled_from(["bf16", "f16"])),
        draw(st.sampled_from(["f32", "bf16", "f16"])), draw(st.sampled_from([1.0, 1.5, -1.0])), beta, draw(LAYOUTS),
        batch, draw(st.booleans()) and batch > 1,
    )  # fmt: skip


# A fixed seed: the same products every run, so that their kernels come from the cache.
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(CHOICES, cases())
def test_any_config_of_a_space_is_right_at_any_small_problem(chosen: tuple[Rung, GemmConfig], case: Case):
    rung, config = chosen
    bench = Bench(case)
    reason = rung.why_not(bench.problem, config, ARCHS["sm_90a"])
    assume(reason is None or "TMA cannot read" not in reason)
    assert reason is None, reason
    bench.run(rung, config).assert_right()
