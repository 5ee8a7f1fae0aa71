"""PTX text -> Module."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.emu.program import decode
from tilewright.emu.ptx import (
    Immediate,
    Location,
    Memory,
    Negated,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
    registers_of,
)
from tilewright.emu.ptx_parser import parse
from tilewright.errors import EmulatorFault, PtxError
from tilewright.jit.entry import file_name

HEADER = ".version 8.3\n.target sm_90a\n.address_size 64\n"


def entry_of(body: str, params: str = "", before: str = "", after: str = ""):
    module = parse(f"{HEADER}{before}\n.visible .entry k({params})\n{after}{{\n{body}\n}}\n")
    if module.refused:
        raise PtxError(module.refused["k"])
    return module.entries["k"]


def test_header_and_several_entries():
    module = parse(HEADER + ".visible .entry a()\n{\nret;\n}\n.entry b(.param .u32 b_0)\n{\nret;\n}\n")
    assert (module.version, module.target, list(module.entries)) == ("8.3", "sm_90a", ["a", "b"])


def test_parameters_lie_at_natural_alignment():
    entry = entry_of(
        "ret;", ".param .u32 p0, .param .u64 p1, .param .align 8 .b8 p2[20],\n .param .u16 p3, .param .f64 p4"
    )
    assert [(p.name, p.offset, p.size) for p in entry.parameters] == [
        ("p0", 0, 4), ("p1", 8, 8), ("p2", 16, 20), ("p3", 36, 2), ("p4", 40, 8)
    ]  # fmt: skip
    assert entry.parameter_bytes == 48


def test_pointer_attributes_of_a_parameter():
    entry = entry_of("ret;", ".param .u64 .ptr .global .align 16 p0, .param .u32 p1")
    assert [(p.name, p.size) for p in entry.parameters] == [("p0", 8), ("p1", 4)]


def test_operands():
    entry = entry_of(
        ".reg .pred %p<3>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<3>;\n.reg .f32 %f<5>;\n"
        "ld.global.v4.f32 {%f1, %f2, _, %f4}, [%rd1+-16];\n"
        "setp.lt.and.s32 %p1|%p2, %r1, -5, !%p0;\n"
        "mov.f32 %f1, 0f3F800000;\nmov.u32 %r1, %tid.x;\nmov.u64 %rd1, table+8;\n"
        "@!%p1 add.s32 %r2, %r3, 0x7fU;\nst.shared.f32 [buffer+4], %f1;\nret;"
    )
    load, setp, mov, tid, table, add, store, _ = entry.instructions
    vector, memory = load.operands
    assert isinstance(vector, Vector)
    assert [item.name if item else None for item in vector.items] == ["%f1", "%f2", None, "%f4"]
    assert isinstance(memory, Memory)
    assert (memory.base.name, memory.offset) == ("%rd1", -16)
    assert isinstance(setp.operands[0], Pair)
    assert setp.operands[2] == Immediate(-5)
    assert isinstance(setp.operands[3], Negated)
    assert mov.operands[1] == Immediate(0x3F800000, 4)
    assert tid.operands[1] == Special("%tid.x")
    assert table.operands[1] == Symbol("table", 8)
    assert (add.guard.name, add.guard_negated, add.operands[2]) == ("%p1", True, Immediate(0x7F))
    assert store.operands[0] == Memory(Symbol("buffer"), 4)


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", Immediate(12)), ("-7", Immediate(-7)), ("017", Immediate(15)), ("0xFFu", None), ("0xFFU", Immediate(255)),
     ("0d3FF0000000000000", Immediate(0x3FF0 << 48, 8)), ("1.5", Immediate(0x3FF8 << 48, 8)),
     ("WARP_SZ", Immediate(32))],
)  # fmt: skip
def test_constants(text, value):
    body = f".reg .b64 %rd<2>;\nmov.b64 %rd1, {text};\nret;"
    if value is None:
        with pytest.raises(PtxError, match="line 8"):
            entry_of(body)
    else:
        assert entry_of(body).instructions[0].operands[1] == value


def test_registers_of_an_inner_scope_are_others():
    entry = entry_of(
        ".reg .b32 q; mov.u32 q, 1;\n{ .reg .pred p; .reg .b32 q; mov.u32 q, 2; }\nmov.u32 q, 3;\nret;"
    ).instructions
    outer, inner, again = (i.operands[0] for i in entry[:3])
    assert isinstance(outer, Register)
    assert outer is again
    assert outer is not inner


def test_a_name_means_what_was_declared_last_before_it():
    before, inner, renamed, after = entry_of(
        ".reg .b32 %r<9>;\nmov.b32 %r1, %r2;\n{\nmov.b32 %r1, %r2;\n.reg .b32 %r2;\nmov.b32 %r1, %r2;\n}\n"
        "mov.b32 %r1, %r2;\n"
    ).instructions
    assert before.operands == inner.operands == after.operands
    assert renamed.operands[0] is before.operands[0]
    assert renamed.operands[1] is not before.operands[1]


def test_lines_of_the_source():
    body = (
        ".loc 1 12 3\nmov.u32 %r1, 0;\n"
        ".loc\t1 5 1, function_name $L__info_string0, inlined_at 1 12 3\nmov.u32 %r1, 1;\nret;"
    )
    entry = parse(
        f'{HEADER}.visible .entry k()\n{{\n.reg .b32 %r<2>;\n{body}\n}}\n.file 1 "/home/me/kernel.cu"\n'
        '.section .debug_str\n{\n$L__info_string0:\n.b8 95,90,0\n}\n'
    ).entries["k"]  # fmt: skip
    first, second, _ = entry.instructions
    assert first.location == Location("/home/me/kernel.cu", 12)
    assert second.location == Location("/home/me/kernel.cu", 5, Location("/home/me/kernel.cu", 12))
    assert str(second.location) == "/home/me/kernel.cu:5 (inlined at /home/me/kernel.cu:12)"
    assert first.ptx_line == 8


def test_code_without_a_line_of_its_own_keeps_the_one_before_and_says_so():
    body = "mov.u32 %r1, 1;\n.loc 1 7 1\nmov.u32 %r1, 2;\n.loc 1 0 9\nmov.u32 %r1, 3;\nret;"
    entry = entry_of(f".reg .b32 %r<3>;\n{body}", before='.file 1 "k.cu"')
    first, second, third, _ = (instruction.location for instruction in entry.instructions)
    assert (first, second, third) == (None, Location("k.cu", 7), Location("k.cu", 7, near=True))


def test_a_line_inlined_into_an_inlined_call_names_both_calls():
    body = (
        ".loc 1 12 3\n.loc 2 7 5, function_name $L__info_string0, inlined_at 1 12 3\n"
        ".loc 2 3 1, function_name $L__info_string1, inlined_at 2 7 5\nmov.u32 %r1, 0;\n"
        ".loc 1 20 3\n.loc 2 7 5, function_name $L__info_string0, inlined_at 1 20 3\n"
        ".loc 2 3 1, function_name $L__info_string1, inlined_at 2 7 5\nmov.u32 %r1, 1;\n"
        ".loc 2 7 5, function_name $L__info_string0, inlined_at 2 7 5\nret;"
    )
    entry = parse(
        f'{HEADER}.visible .entry k()\n{{\n.reg .b32 %r<2>;\n{body}\n}}\n.file 1 "k.cu"\n.file 2 "tile.cuh"\n'
    ).entries["k"]
    assert str(entry.instructions[0].location) == "tile.cuh:3 (inlined at tile.cuh:7, from k.cu:12)"
    chains = [[(call.file, call.line) for call in one.location.calls] for one in entry.instructions]
    assert chains == [[("tile.cuh", 7), ("k.cu", 12)], [("tile.cuh", 7), ("k.cu", 20)], [("tile.cuh", 7)]]


def test_variables_and_their_initialisers():
    module = parse(
        HEADER + ".const .align 4 .b8 table[6] = {0, 255, 7};\n.global .align 4 .u32 counter = 5;\n"
        ".global .align 8 .u64 where[2] = {counter, generic(table)+2};\n.extern .shared .align 16 .b8 dyn[];\n"
        ".visible .entry k()\n{\n.local .align 16 .b8 depot[96];\n.shared .align 4 .f32 s[3][5];\nret;\n}\n"
    )
    table, counter, where, dyn = module.variables
    assert (table.space, table.size, table.init) == ("const", 6, b"\x00\xff\x07\x00\x00\x00")
    assert counter.init == (5).to_bytes(4, "little")
    assert where.relocations == ((0, "counter", 0), (8, "table", 2))
    assert (dyn.extern, dyn.size, dyn.align) == (True, 0, 16)
    assert [(v.name, v.space, v.size) for v in module.entries["k"].variables] == [
        ("depot", "local", 96),
        ("s", "shared", 60),
    ]


def test_labels_jump_tables_directives_and_comments():
    entry = entry_of(
        ".reg .b32 %r<2>;\nbra.uni $L__BB0_2; // a comment; with {braces}\n/* and\n another */\n$L__BB0_2:\n"
        '.pragma "nounroll";\nts: .branchtargets $L__BB0_2, $end;\nbrx.idx %r1, ts;\n$end:\nret;',
        after=".maxntid 256, 1, 1\n.minnctapersm 2\n",
    )
    assert entry.labels == {"$L__BB0_2": 1, "ts": 1, "$end": 2}
    assert entry.tables == {"ts": ["$L__BB0_2", "$end"]}
    assert entry.directives == {"maxntid": "256, 1, 1", "minnctapersm": "2"}


def test_functions_are_kept_with_what_they_take_and_give_and_declarations_are_not():
    module = parse(
        HEADER + ".func (.param .align 8 .b8 r[16]) helper(\n.param .b32 x\n,.param .b64 y)\n{\n.reg .b32 %r<2>;\n"
        "{ L: bra L; }\n L: ret;\n}\n"
        ".extern .func (.param .b32 r) vprintf\n(\n.param .b64 a\n)\n;\n"
        ".extern .func stop ( .param .b32 s ) .noreturn\n;\n"
        ".visible .entry k()\n{\n{ // callseq 0, 0\n.param .b32 p0;\ncall.uni (p0), helper, (p0);\n}\nret;\n}\n"
    )
    assert list(module.entries) == ["k"]
    helper = module.functions.pop("helper")
    assert not module.functions
    assert [(p.size, p.align, p.kind) for p in helper.returns] == [(16, 8, "")]
    assert [(p.name, p.size) for p in helper.parameters] == [("x", 4), ("y", 8)]
    assert [operand.name in helper.labels for operand in helper.instructions[0].operands] == [True]
    assert sorted(helper.labels.values()) == [0, 1]


@pytest.mark.parametrize(
    "body", ["mov.u32 %r1, %%;", "ld.global.u32 %r1, [%rd1*4];", ".wibble 3;", "@%q bra L;", "mov.u32 %r1, 3", "\x00"]
)
def test_what_is_not_understood_raises_with_its_line(body):
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        entry_of(f".reg .b32 %r<3>;\n.reg .b64 %rd<3>;\n{body}\nret;")


def test_an_entry_that_is_not_there_names_those_that_are():
    with pytest.raises(PtxError, match="'nope'; it has k"):
        decode(parse(HEADER + ".visible .entry k()\n{\nret;\n}\n"), "nope")


def test_registers_share_rows_only_when_they_never_live_together():
    body = ".reg .b32 %r<100>;\n" + "".join(f"add.u32 %r{k + 1}, %r{k}, 1;\n" for k in range(98)) + "ret;"
    program = decode(parse(f"{HEADER}.visible .entry k()\n{{\n{body}\n}}\n"), "k")
    assert program.row_counts[4] <= 2
    both = (
        ".reg .b32 %r<9>;\nmov.u32 %r1, 1;\nmov.u32 %r2, 2;\nmov.u32 %r3, 3;\n"
        "add.u32 %r4, %r1, %r2;\nadd.u32 %r5, %r4, %r3;\nret;"
    )
    rows = decode(parse(f"{HEADER}.visible .entry k()\n{{\n{both}\n}}\n"), "k").rows
    assert len({row for register, row in rows.items() if register.name in ("%r1", "%r2", "%r3")}) == 3


def test_a_register_read_around_a_loop_keeps_its_row():
    body = (
        ".reg .pred %p<2>;\n.reg .b32 %r<9>;\nmov.u32 %r1, 10;\nmov.u32 %r2, 0;\nL:\nadd.u32 %r2, %r2, %r1;\n"
        "mov.u32 %r3, 7;\nadd.u32 %r4, %r3, %r2;\nsetp.lt.u32 %p1, %r2, 100;\n@%p1 bra L;\nret;"
    )
    program = decode(parse(f"{HEADER}.visible .entry k()\n{{\n{body}\n}}\n"), "k")
    rows = {register.name: row for register, row in program.rows.items()}
    assert rows["%r1"] not in (rows["%r3"], rows["%r4"], rows["%r2"])


def test_coordinates_of_a_tensor_stay_with_its_map():
    load, store = entry_of(
        ".reg .b32 %r<5>;\n.reg .b64 %rd<2>;\n"
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd1, {%r2, %r3}], [%r4];"
        "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r2}], [%r0];"
    ).instructions
    names = [[register.name for register in registers_of(operand)] for operand in load.operands]
    assert names == [["%r0"], ["%rd1", "%r2", "%r3"], ["%r4"]]
    assert [len(list(registers_of(operand))) for operand in store.operands] == [2, 1]


@pytest.mark.parametrize(
    ("written", "name"),
    [(r"/tmp/\347\224\250\346\210\267/123/k.cu", "/tmp/用户/123/k.cu"), (r"\303\251.cu", "é.cu"),
     (r"\303/251.cu", "é.cu"), (r"\346\227\245\346\234/254.cu", "日本.cu"), ("/plain/251/k.cu", "/plain/251/k.cu"),
     (r"C:\new\101.cu", r"C:\new\101.cu"), (r"a\346b", "a\udce6b")],
)  # fmt: skip
def test_names_of_files_are_read_as_nvrtc_and_line_tables_write_them(written, name):
    assert file_name(written) == name


def test_a_fault_in_a_folder_beyond_ascii_shows_its_line(tmp_path):
    file = tmp_path / "用户" / "é.cu"
    file.parent.mkdir()
    file.write_text('extern "C" __global__ void k(float *x) {\n  x[threadIdx.x + 1] = 3;\n}\n')
    with pytest.raises(EmulatorFault, match=r"用户/é\.cu:2: x\[threadIdx\.x \+ 1\] = 3;"):
        tw.emulate(file, "k", 1, 32, [np.ones(32, np.float32)])
