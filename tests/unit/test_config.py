"""Configs by family: what GemmConfig(...) makes, what a rung takes, what tables hold."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from tilewright.errors import ConfigRejected
from tilewright.gemm.config import FAMILIES, GemmConfig, MmaConfig, SimtConfig, WgmmaConfig, defaults_of, of_fields
from tilewright.gemm.family import PRODUCTS, plan_for
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import GEMM_RUNGS, find_rung
from tilewright.gpus import ARCHS, GPUS
from tilewright.grouped.rungs import GROUPED_RUNGS
from tilewright.plan.entries import Entry, Timed, decode, encode, table_of
from tilewright.plan.tables import shipped

BF16 = GemmProblem.dense(256, 256, 256, dtype="bf16")
RUNGS = (*GEMM_RUNGS, *GROUPED_RUNGS)


@pytest.mark.parametrize(
    ("config", "family"),
    [
        (GemmConfig(32, 32), SimtConfig),
        (GemmConfig(64, 128, 16, 4, 4, 32, 64, 2, 2, 4, "ca", 8, 2), SimtConfig),
        (GemmConfig(128, 128, 32, warp_m=64, warp_n=64, stages=4, group_m=8), MmaConfig),
        (GemmConfig(128, 128, 32, warp_m=64, warp_n=64, subtiles_m=4, subtiles_n=4), MmaConfig),
        (GemmConfig(64, 16, 64, warp_m=16, warp_n=16, stages=3), MmaConfig),
        (GemmConfig(128, 256, 64, warp_m=16, warp_n=256, stages=4, staged=0, split_k=1), WgmmaConfig),
        (GemmConfig(128, 192, 64, warp_m=32, warp_n=192, turns=2), WgmmaConfig),
    ],
)
def test_the_fields_that_are_named_decide_the_family(config, family):
    assert type(config) is family
    assert isinstance(config, GemmConfig)


def test_values_without_names_are_in_the_order_of_stored_configs():
    config = GemmConfig(64, 128, 16, 4, 8, 32, 64, 2, 1, 4, "ca", 8, 3)
    named = SimtConfig(
        64, 128, 16, thread_m=4, thread_n=8, warp_m=32, warp_n=64, subtiles_m=2, subtiles_n=1, stages=4, cache="ca",
        group_m=8, min_blocks=3,
    )  # fmt: skip
    assert config == named


def test_fields_that_no_family_has_together_are_refused_by_name():
    with pytest.raises(TypeError, match="thread_m"):
        GemmConfig(64, 64, 16, thread_m=4, turns=2)
    with pytest.raises(TypeError, match="a SimtConfig has no depth: its fields are tile_m"):
        GemmConfig(64, 64, depth=3)
    with pytest.raises(TypeError, match="each once"):
        GemmConfig(64, 64, tile_m=64)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_field_of_a_family_is_one_that_some_rung_of_it_knows(family):
    of_family = [rung for rung in RUNGS if type(rung.default) is family]
    known = {
        name for rung in of_family for name in (*rung.levels, *(n for config in rung.space() for n in config.given))
    }
    assert set(defaults_of(family)) <= known


@pytest.mark.parametrize("rung", RUNGS, ids=str)
def test_all_configs_of_a_rung_are_of_its_family_and_read_back_as_stored(rung):
    for config in (rung.default, *rung.space()):
        assert type(config) is type(rung.default)
        assert of_fields(config.to_dict(), type(config)) == config
        assert list(config.to_dict()) == [name for name in defaults_of(type(config)) if name in config.given]


def test_copies_of_a_config_are_equal_to_it():
    for family in FAMILIES:
        config = family(128, 128, 32, warp_m=32, warp_n=64, stages=3, split_k=2)
        assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == dataclasses.replace(config) == config
        assert hash(copy.copy(config)) == hash(config)


def test_a_config_of_another_family_is_refused_in_words():
    reason = find_rung("h11").why_not(BF16, WgmmaConfig(64, 64, 64, warp_m=16, warp_n=64, stages=3), ARCHS["sm_90a"])
    assert "it is a WgmmaConfig, and the rung takes a MmaConfig" in reason


def test_a_config_whose_fields_two_families_have_runs_on_the_rung_that_the_caller_names():
    config = GemmConfig(64, 64, 64, warp_m=16, warp_n=64, stages=3)
    assert type(config) is WgmmaConfig
    on_mma = plan_for(BF16, GPUS["A100"], "h11", config)
    assert on_mma.config == MmaConfig(64, 64, 64, warp_m=16, warp_n=64, stages=3)
    assert plan_for(BF16, GPUS["A100"], config=config).rung.id == "h11_mma_multistage"
    assert plan_for(BF16, GPUS["H200"], "h13", on_mma.config).config == config
    with pytest.raises(ConfigRejected, match="it is a WgmmaConfig"):
        plan_for(BF16, GPUS["H200"], "h11", dataclasses.replace(config, staged=1))


def test_every_stored_config_of_the_shipped_tables_is_read():
    for gpu in GPUS:
        view = shipped(gpu).of(PRODUCTS)
        assert all(view[key].unknown == 0 for key in view)
    assert len(shipped("H200").of(PRODUCTS)) > 100


def test_a_stored_config_with_a_field_of_another_family_is_set_aside_alone():
    klass = PRODUCTS.classes(BF16)[0][0]
    mma = MmaConfig(64, 64, 64, warp_m=32, warp_n=32, stages=3)
    entry = Entry(klass, (256, 256, 256, 1), (Timed("h11_mma_multistage", mma, 0.5),
                                              Timed("h15_tma_store", WgmmaConfig(64, 64, staged=1), 0.4)))  # fmt: skip
    data = encode(table_of([entry])).replace(b'"h15_tma_store"', b'"h11_mma_multistage"')
    read = decode(data).of(PRODUCTS)[str(klass)]
    assert [timed.config for timed in read.timed] == [mma]
    assert read.unknown == 1
