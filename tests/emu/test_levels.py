"""Errors, warnings, --strict, and comments that allow a hazard at their line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import tilewright as tw
from tilewright.cli.app import app
from tilewright.errors import EmulatorFault, InvalidOperand

K = "__global__ void k"
I32 = "i32[64]=zeros"
FLAG = f"{K}(int *a) {{\n    a[0] = 1; COMMENT\n}}"
RACE = f"{K}(int *a) {{\n    a[threadIdx.x] = blockIdx.x; COMMENT\n}}"
ALLOW = "// tilewright: allow({}) any block's number will do"


def run(source: str, **options):
    return tw.emulate(source, "k", 2, 32, [I32], **options)


def test_warnings_are_listed_and_raised_where_asked_for():
    hazards = run(FLAG.replace("COMMENT", "")).hazards
    assert [(h.kind, h.level) for h in hazards] == [("flag_race", "warning")]
    with pytest.raises(EmulatorFault, match="flag_race") as caught:
        run(FLAG.replace("COMMENT", ""), strict=True)
    assert caught.value.hazard.level == "error"


@pytest.mark.parametrize("names", ["global_race", "race", "misaligned, global_race"])
def test_a_comment_with_a_reason_allows_its_kinds_at_its_line(names):
    for source in (RACE.replace("COMMENT", ALLOW.format(names)),
                   RACE.replace("    a[", f"    {ALLOW.format(names)}\n    a[").replace("COMMENT", "")):  # fmt: skip
        result = run(source, strict=True)
        assert result.hazards == []
        assert [(h.kind, h.level, h.allowed) for h in result.allowed] == [
            ("global_race", "allowed", "any block's number will do")
        ]


def test_a_comment_for_another_kind_or_on_another_line_allows_nothing():
    assert [h.kind for h in run(RACE.replace("COMMENT", ALLOW.format("misaligned")), hazards="collect").hazards] == [
        "global_race"
    ]
    below = RACE.replace("COMMENT", f"\n    {ALLOW.format('race')}")
    assert [h.kind for h in run(below, hazards="collect").hazards] == ["global_race"]
    before = RACE.replace("    a[", f"    int i = 0; {ALLOW.format('race')}\n    a[i + ").replace("COMMENT", "")
    assert [h.kind for h in run(before, hazards="collect").hazards] == ["global_race"]


def test_a_race_may_be_allowed_at_its_other_side_and_at_the_call_of_what_was_inlined():
    two = f"""{K}(int *a) {{
        if (blockIdx.x == 0) a[threadIdx.x] = 7 + threadIdx.x;
        if (blockIdx.x == 1) a[32 + threadIdx.x] = a[threadIdx.x];
    }}"""
    assert [h.kind for h in run(two, hazards="collect").hazards] == ["global_race"]
    for line in two.splitlines()[1:3]:
        assert run(two.replace(line, f"{line} {ALLOW.format('race')}")).hazards == []
    inlined = f"""__device__ __forceinline__ void put(int *a) {{
        a[threadIdx.x] = blockIdx.x;
    }}
    {K}(int *a) {{
        put(a); {ALLOW.format("race")}
    }}"""
    assert run(inlined).hazards == []


@pytest.mark.parametrize(
    ("names", "reason", "says"), [("race", "", "no reason"), ("rcae", "why", "'rcae', which is not a kind")]
)
def test_a_comment_that_is_not_understood_is_an_error(names, reason, says):
    with pytest.raises(InvalidOperand, match=says):
        run(RACE.replace("COMMENT", f"// tilewright: allow({names}) {reason}"))


def test_the_command_shows_levels_and_what_is_allowed(tmp_path):
    file = tmp_path / "k.cu"
    words = ["emulate", str(file), "--entry", "k", "--grid", "2", "--arg", I32, "--sarif", str(tmp_path / "s.json")]
    file.write_text(FLAG.replace("COMMENT", ""))
    assert CliRunner().invoke(app, words).exit_code == 0
    assert CliRunner().invoke(app, [*words, "--strict"]).exit_code == 1
    file.write_text(RACE.replace("COMMENT", ALLOW.format("race")))
    said = CliRunner().invoke(app, [*words, "--strict"])
    assert said.exit_code == 0
    assert f"ALLOWED: global_race at {file}:2: any block's number will do" in said.output.replace("\n", "")
    (found,) = json.loads((tmp_path / "s.json").read_text())["runs"][0]["results"]
    assert found["suppressions"] == [{"kind": "inSource", "justification": "any block's number will do"}]
