"""The attention rungs, in climbing order, as data: forward, bf16 or fp16, fp32 accumulators and softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

from ..errors import ConfigRejected, near_rung
from .config import D_HEADS, AttentionConfig, copies_reason, slice_of
from .hopper import HOPPER_RUNGS, HopperConfig
from .rung import AttentionRung
from .split import SPLIT_RUNGS, SplitConfig

Check = Callable[[AttentionConfig], str | None]

# --- what a config must satisfy --------------------------------------------------------------------------------------


def _whole(config: AttentionConfig) -> str | None:
    """Up to a03."""
    if config.load_q or config.load_k or config.load_v or config.buffer:
        return "it brings operands into registers as a whole, load_0_0_0_fragments"
    return None


def _slices(config: AttentionConfig) -> str | None:
    return "two sets of fragments come with a05" if config.buffer else None


def _any(config: AttentionConfig) -> str | None:
    return None


def _strided(config: AttentionConfig) -> str | None:
    """From a08 on, whose copies have constant distances where a step is whole turns of the swizzle."""
    return copies_reason(config.n_warps, slice_of(config.d_head))


# --- configs ---------------------------------------------------------------------------------------------------------


def _whole_configs(d_head: int) -> tuple[AttentionConfig, ...]:
    """a01 to a03: K and V take 2 b_c d_head bytes of a warp's registers each."""
    return (AttentionConfig(d_head, 64, 64 if d_head <= 128 else 16, 4),)


def _sliced_configs(d_head: int) -> tuple[AttentionConfig, ...]:
    return (AttentionConfig(d_head, 64, 64 if d_head <= 128 else 32, 4, 2, 2, 2),)


def _buffered_configs(d_head: int) -> tuple[AttentionConfig, ...]:
    return (AttentionConfig(d_head, 64, 64 if d_head <= 128 else 32, 4, 2, 2, 2, buffer=True),)


def _tuned_configs(d_head: int) -> tuple[AttentionConfig, ...]:
    return (AttentionConfig(d_head, 64, 64 if d_head <= 128 else 32, 4, 0 if d_head <= 128 else 2, 2, 2),)


def _large_configs(d_head: int) -> tuple[AttentionConfig, ...]:
    """a08 and above: addresses leave room for 32 rows per warp, up to d_head 128. The best of the sweep on an H200."""
    if d_head <= 64:
        return (AttentionConfig(d_head, 128, 64, 4, 0, 2, 2),)
    if d_head <= 128:
        return (AttentionConfig(d_head, 128, 64, 4, 2, 2, 2),)
    if d_head <= 192:
        return (AttentionConfig(d_head, 128, 64, 8, 0, 2, 2),)
    return (AttentionConfig(d_head, 64, 32, 4, 0, 2, 2),)


def _whole_space(d_head: int) -> tuple[AttentionConfig, ...]:
    return tuple(
        config
        for b_r, b_c, warps in product((64, 128), (32, 64), (4, 8))
        if (config := AttentionConfig(d_head, b_r, b_c, warps)).why_not() is None
    )


def _space(buffers: tuple[bool, ...], d_head: int) -> tuple[AttentionConfig, ...]:
    """b_r x b_c x warps x what is loaded whole x buffering. K and V as a whole never fit beside 32 rows per warp."""
    return tuple(
        config
        for b_r, b_c, warps in product((64, 128, 256), (32, 64, 128), (4, 8))
        for (q, k, v), buffer in product(((0, 0, 0), (0, 2, 2), (2, 2, 2)), buffers)
        if (config := AttentionConfig(d_head, b_r, b_c, warps, q, k, v, buffer)).why_not() is None
        and 16 * warps * (1 if k or v else 2) <= b_r * (1 if k or v else 2) <= 64 * warps
        and not (buffer and not k)
    )


# --- the rungs -------------------------------------------------------------------------------------------------------

_Configs = Callable[[int], tuple[AttentionConfig, ...]]


def _rung(id: str, teaches: str, configs: _Configs, space: _Configs, check: Check, fused: bool = False,
          static_strides: bool = False) -> AttentionRung:  # fmt: skip
    defaults = tuple(config for d_head in D_HEADS for config in configs(d_head))
    return AttentionRung(id, teaches, defaults, space, check, fused, static_strides)


_both = partial(_space, (False, True))

ATTENTION_RUNGS: tuple[AttentionRung, ...] = (
    _rung("a01_base", "tiles in shared memory, mma.sync, online softmax; ldmatrix meets eight rows in one bank",
          _whole_configs, _whole_space, _whole),
    _rung("a02_swizzle", "chunks of 16 bytes swizzled: eight passes of a shared load become one",
          _whole_configs, _whole_space, _whole),
    _rung("a03_eager_kv", "the next K is copied under P V, and V under Q K^T: global memory is not waited for",
          _whole_configs, _whole_space, _whole),
    _rung("a04_interleave", "slices of two fragments, loaded and multiplied in turns: fewer registers, larger tiles",
          _sliced_configs, partial(_space, (False,)), _slices),
    _rung("a05_smem_rf_double_buffer", "two sets of fragments: the next slice loads while this one is multiplied",
          _buffered_configs, _both, _any),
    _rung("a06_fp_fusion", "scale, maximum and base of the exponent in one FFMA: fewer FMUL and FADD",
          _buffered_configs, _both, _any, True),
    _rung("a07_autotuned", "the config is what a sweep found best", _tuned_configs, _both, _any, True),
    _rung("a08_strided_swizzle", "the swizzle as signed strides computed once: addresses take registers, not LOP3",
          _large_configs, _both, _strided, True),
    _rung("a09_fragment_order", "K's fragments in the order in which mma.sync takes them: no moves",
          _large_configs, _both, _strided, True),
    _rung("a10_peel_first", "the first tile apart: nothing is zeroed, nothing rescaled in it",
          _large_configs, _both, _strided, True),
    _rung("a11_strided_store", "results reach shared memory by strides too", _large_configs, _both, _strided, True),
    _rung("a12_block_index", "pointers computed once a block and moved; 1 / sum multiplied; heavy causal blocks first",
          _large_configs, _both, _strided, True),
    _rung("a13_reverse_kv", "keys backwards: tiles with hidden pairs first, the count of tiles is the index",
          _large_configs, _both, _strided, True),
    _rung("a14_store_policy", "results are stored to be evicted first", _large_configs, _both, _strided, True),
    _rung("a15_head_slices", "tiles in slices of 64 columns: a row of a slice is a row of banks",
          _large_configs, _both, _strided, True),
    _rung("a16_static_strides", "row strides and the head group are constants of the compiled kernel",
          _large_configs, _both, _strided, True, True),
    _rung("a17_lazy_rescale", "out follows the maximum only when it grew by 2^8: hardly a row is ever rescaled",
          _large_configs, _both, _strided, True, True),
)  # fmt: skip


EVERY_RUNG: tuple[AttentionRung, ...] = (*ATTENTION_RUNGS, *HOPPER_RUNGS, *SPLIT_RUNGS)
"""The rungs of all ladders: mma.sync, Hopper's wgmma after it, and keys in parts."""


EXPERIMENTS: tuple[AttentionRung, ...] = (
    replace(
        next(rung for rung in ATTENTION_RUNGS if rung.id == "a07_autotuned"), id="a07x_unswizzled",
        file="attention/a07x_unswizzled.cuh", entry="attention_unswizzled",
        teaches="an experiment: a07 without a02's swizzle, so that ldmatrix meets eight rows in one bank again",
    ),
)  # fmt: skip
"""Rungs with one thing changed, on no ladder and in no plan: suites and calls name them."""


def find_attention_rung(name: str) -> AttentionRung:
    """The rung or experiment by its id or the id's number ("a16_static_strides" or "a16"). Raises ConfigRejected with
    the ladders' ids."""
    for rung in (*EVERY_RUNG, *EXPERIMENTS):
        if name in (rung.id, rung.id.split("_")[0]):
            return rung
    ids = [rung.id for rung in EVERY_RUNG]
    raise ConfigRejected(f"attention rung {name!r} is not known.{near_rung(name, ids)} Known: {', '.join(ids)}.")


def parse_config(text: str) -> AttentionConfig | HopperConfig | SplitConfig:
    """A config of any ladder from its text. Raises ConfigRejected."""
    if "_stages" in text:
        return HopperConfig.parse(text)
    return SplitConfig.parse(text) if "stages" in text else AttentionConfig.parse(text)
